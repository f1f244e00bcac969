//! A receiver of a session that forges the session's data for another receiver: it has the key of the data, as all receivers have.

use std::net::UdpSocket;

use rackweave_crypt::GroupSeal;
use rackweave_wire::orca::{self, Check, Data, Label, Labelled, Parity, Reason};

use super::super::verify::{BLOCK, HashRequest};
use super::secrecy::receiver;
use super::*;

/// The length of the file that is sent: some blocks of 1 MiB, and less than a receive window.
const LENGTH: usize = 3_500_000;

/// Numbers of packets that the sender will use, and ones that it uses in none of these tests, after which its own are too old.
const SOON: u64 = 100;
/// Numbers of packets that the sender does not use, without making its own too old.
const BESIDE: u64 = 4000;
const NEVER: u64 = 20_000;

/// A sender and a receiver in this thread, and a host that has the key of their session's data.
struct Scene {
    sender: Engine,
    victim: Engine,
    session: Session,
    insider: UdpSocket,
    folder: tempfile::TempDir,
    source: tempfile::TempDir,
    length: usize,
    deadline: Time,
    view: Option<SendView>,
    end: Option<EngineEvent>,
}

impl Scene {
    /// Begins to send a file at a rate at which all of it takes some tenths of a second.
    fn new() -> Self {
        Self::of(LENGTH)
    }

    fn of(length: usize) -> Self {
        let (folder, source) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let victim = receiver(folder.path(), Some(SECRET), 1 << 30);
        let mut sender = sender(Some(SECRET));
        let host = sender.add_peer(victim.local_addr());
        let flow = FlowConfig { max_rate: Some(Rate(60_000_000)), ..sender.config.flow };
        let path = file(source.path(), "x", length);
        let files = Box::new(Files::new(&[path]).unwrap());
        let session = sender.open(files, &[host], Spread::Unicast, flow).unwrap();
        let insider = UdpSocket::bind("127.0.0.1:0").unwrap();
        let deadline = sender.clock().now() + TIMEOUT;
        let (view, end) = (None, None);
        Self { sender, victim, session, insider, folder, source, length, deadline, view, end }
    }

    /// Goes on until a condition holds, or both ends have ended.
    fn run(&mut self, until: impl Fn(&Self) -> bool) {
        while !until(self) && (self.view.is_none() || self.end.is_none()) {
            self.sender.turn().unwrap();
            while let Some(event) = self.sender.poll_event() {
                if let EngineEvent::Sent { view, .. } = event {
                    self.view = Some(view);
                }
            }
            self.victim.turn().unwrap();
            while let Some(event) = self.victim.poll_event() {
                if let EngineEvent::Received { .. } | EngineEvent::ReceiveFailed { .. } = event {
                    self.end.get_or_insert(event);
                }
            }
            let late = self.sender.clock().now() >= self.deadline;
            assert!(!late, "the cast takes for ever: {:?}", self.state());
        }
    }

    /// Returns what both ends have got to, for the message of a failure.
    fn state(&self) -> impl std::fmt::Debug + '_ {
        let incoming = self.victim.incoming.get(&self.session);
        let verifier = incoming.map(|it| format!("{:?}", it.verifier));
        let receivers = self.sender.view(self.session).map(|view| view.receivers);
        (self.readable(), verifier, receivers, self.victim.stats(), &self.end)
    }

    /// Returns the offset below which the victim has all bytes.
    fn readable(&self) -> u64 {
        self.victim.incoming.get(&self.session).map_or(0, |incoming| incoming.readable)
    }

    /// Runs to the end. The victim must have the right file, and nothing else.
    fn ends_well(mut self) -> Stats {
        self.run(|_| false);
        assert!(matches!(self.end, Some(EngineEvent::Received { .. })), "{:?}", self.end);
        assert_eq!(self.view.as_ref().map(completed), Some(1));
        assert!(std::fs::read(self.folder.path().join("x")).unwrap() == content(self.length));
        assert_eq!(std::fs::read_dir(self.folder.path()).unwrap().count(), 1);
        self.victim.stats()
    }

    /// Returns what seals data as the sender does, with numbers of packets that are so far ahead of the sender's.
    fn seal(&self, lead: u64) -> GroupSeal {
        let sealer = self.sender.sending[&self.session].sealer.as_ref().unwrap();
        seal_ahead(sealer, lead)
    }

    /// Returns the sender's sealer for the victim only, if it has one.
    fn own_sealer(&self) -> Option<&GroupSeal> {
        self.sender.sending[&self.session].own_sealers.values().next()
    }

    /// Returns the header of a packet without data.
    const fn data(&self) -> Data {
        Data {
            labelled: Labelled::Host,
            label: Label(0),
            session: self.session,
            offset: 0,
            len: 0,
            repair: false,
            end: false,
            parity: None,
        }
    }

    /// Sends data of the session to the victim.
    fn forge(&mut self, seal: &mut GroupSeal, offset: u64, bytes: &[u8], end: bool) {
        let data = Data { offset, len: bytes.len() as u16, end, ..self.data() };
        let mut sealed = bytes.to_vec();
        let (counter, tag) = seal.seal(orca::associated(&data).as_ref(), &mut sealed).unwrap();
        self.inject(&data, (counter, tag), &sealed);
    }

    /// Sends all parities of a block of this many cells to the victim, with these bytes: it computes what has not arrived of it.
    fn forge_parity(&mut self, seal: &mut GroupSeal, offset: u64, cells: u8, bytes: u8) {
        let len = self.sender.sending[&self.session].flow.payload;
        let offset = offset - offset % u64::from(len);
        for index in 0..cells {
            let parity = Some(Parity { index, data: cells, parity: cells, last: len });
            let data = Data { offset, len, parity, ..self.data() };
            let mut sealed = vec![bytes; usize::from(len)];
            let (counter, tag) = seal.seal(orca::associated(&data).as_ref(), &mut sealed).unwrap();
            self.inject(&data, (counter, tag), &sealed);
        }
    }

    /// Sends a sealed packet, or what looks like one, to the victim.
    fn inject(&mut self, data: &Data, (counter, tag): (u64, [u8; 16]), sealed: &[u8]) {
        let mut packet = Vec::new();
        orca::encode_relayed(data, 1, Check::Sealed { counter, tag }, &mut packet);
        packet.extend_from_slice(sealed);
        self.insider.send_to(&packet, self.victim.local_addr()).unwrap();
        // Its socket's buffer need not hold what one turn of the sender brings besides.
        self.victim.turn().unwrap();
    }
}

/// Returns another user of a key, whose numbers of packets are so far ahead.
pub(super) fn seal_ahead(sealer: &GroupSeal, lead: u64) -> GroupSeal {
    let (cipher, key) = sealer.key();
    let mut seal = GroupSeal::new(cipher, *key);
    for _ in 0..sealer.sealed() + lead {
        let _ = seal.seal(b"", &mut []);
    }
    seal
}

/// The whole stream of another file of the same name and length, with all its hashes: as forged by someone who knows the first block.
/// Without the sender's own hashes, the receiver would report it as complete.
#[test]
fn another_stream_in_place_of_the_senders_is_not_accepted() {
    let mut scene = Scene::new();
    scene.run(|scene| scene.readable() > 0);
    let path = scene.source.path().join("x");
    let modified = path.metadata().unwrap().modified().unwrap();
    let mut other = content(LENGTH);
    other[2_000_000..].fill(b'!');
    let forged = scene.source.path().join("forged");
    std::fs::create_dir(&forged).unwrap();
    let forged = forged.join("x");
    std::fs::write(&forged, &other).unwrap();
    let opened = std::fs::File::options().write(true).open(&forged).unwrap();
    opened.set_modified(modified).unwrap();
    let mut files = Files::new(&[forged]).unwrap();
    let length = files.end().unwrap();
    let mut seal = scene.seal(BESIDE);
    let mut at = scene.readable() + 500_000;
    while at < length {
        let len = 1400.min(length - at);
        let mut bytes = crate::source::Payload::new();
        files.read(at, len as usize, &mut bytes).unwrap();
        scene.forge(&mut seal, at, &bytes.concat(), at + len == length);
        at += len;
    }
    let stats = scene.ends_well();
    assert_eq!(stats.forged, 1, "{stats:?}");
}

#[test]
fn wrong_bytes_in_a_block_cost_that_block_only() {
    for offset in [40_000, 1_500_000, LENGTH as u64 - 2000] {
        let mut scene = Scene::new();
        scene.run(|scene| scene.readable() > 0);
        let mut seal = scene.seal(SOON);
        scene.forge(&mut seal, scene.readable().max(offset), &[0; 900], false);
        let stats = scene.ends_well();
        assert_eq!(stats.forged, 1, "{offset}: {stats:?}");
    }
}

/// The victim computes a block from parities of the insider. No byte of it is passed on: its hash is not the sender's.
#[test]
fn forged_parity_costs_the_block_that_it_repairs_only() {
    for (ahead, cells) in [(20_000, 1), (400_000, 8), (1_500_000, 16)] {
        let mut scene = Scene::new();
        scene.run(|scene| scene.readable() > 0);
        let mut seal = scene.seal(SOON);
        scene.forge_parity(&mut seal, scene.readable() + ahead, cells, 9);
        let recovered = scene.victim.stats().recovered;
        assert!(recovered > 0 && recovered <= u64::from(cells), "{recovered} of {cells}");
        let stats = scene.ends_well();
        assert_eq!(stats.forged, 1, "{ahead}: {stats:?}");
    }
}

/// Parities of all blocks, for the whole transfer.
#[test]
fn an_insider_that_goes_on_to_forge_parity_costs_time_only() {
    let mut scene = Scene::new();
    scene.run(|scene| scene.readable() > 0);
    let mut seal = scene.seal(SOON);
    let mut random = 1_u64;
    while scene.view.is_none() || scene.end.is_none() {
        let turns = std::cell::Cell::new(0);
        scene.run(|_| turns.replace(turns.get() + 1) == 20);
        // The session ends with the transfer.
        if scene.sender.sending.contains_key(&scene.session) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            let offset = scene.readable() + (random >> 40) % 600_000;
            scene.forge_parity(&mut seal, offset, 1 + (random >> 33 & 7) as u8, 7);
        }
    }
    let stats = scene.ends_well();
    assert_eq!(stats.forged, 1, "{stats:?}");
}

#[test]
fn a_forged_end_is_ignored() {
    let mut scene = Scene::new();
    scene.run(|scene| scene.readable() > 100_000);
    let (mut seal, at) = (scene.seal(SOON), scene.readable() + 300_000);
    scene.forge(&mut seal, at, &[0; 100], true);
    scene.forge(&mut seal, at, &[], true);
    scene.ends_well();
}

#[test]
fn bytes_beyond_the_end_are_found() {
    let mut scene = Scene::new();
    scene.run(|scene| scene.readable() > 100_000);
    let mut seal = scene.seal(SOON);
    scene.forge(&mut seal, LENGTH as u64 + 50_000, &[0; 100], false);
    let stats = scene.ends_well();
    assert_eq!(stats.forged, 1, "{stats:?}");
}

/// The insider uses numbers of packets that the sender has yet to use, so that the sender's own packets count as replays.
#[test]
fn later_numbers_of_packets_end_no_session() {
    let mut scene = Scene::new();
    scene.run(|scene| scene.readable() > 100_000);
    let mut seal = scene.seal(NEVER);
    scene.forge(&mut seal, 0, &[0; 100], false);
    let stats = scene.ends_well();
    assert!(stats.forged == 1 && stats.replayed >= 64, "{stats:?}");
}

/// In addition, the insider sends a few of the right bytes now and then, so that the stream does not stand still.
#[test]
fn a_trickle_of_the_right_bytes_hides_no_later_numbers() {
    let mut scene = Scene::new();
    scene.run(|scene| scene.readable() > 100_000);
    let mut files = Files::new(&[scene.source.path().join("x")]).unwrap();
    let mut seal = scene.seal(NEVER);
    let until = scene.sender.clock().now() + Span::from_secs(8);
    while scene.own_sealer().is_none() {
        let mut bytes = crate::source::Payload::new();
        let at = scene.readable();
        files.read(at, 100, &mut bytes).unwrap();
        scene.forge(&mut seal, at, &bytes.concat(), false);
        let next = scene.sender.clock().now() + Span::from_ms(200);
        scene.run(|scene| scene.sender.clock().now() >= next || scene.own_sealer().is_some());
        assert!(scene.sender.clock().now() < until, "{:?}", scene.state());
    }
    let stats = scene.ends_well();
    assert_eq!(stats.forged, 1, "{stats:?}");
}

/// Numbers that were used before, in packets of somebody who has no key: that the tag is wrong shows that these are no replays, from which
/// the victim would conclude that another receiver forges.
#[test]
fn used_numbers_without_the_key_prove_nothing() {
    let mut scene = Scene::of(3 * LENGTH);
    scene.run(|scene| scene.readable() > 0);
    let mut sent = 0;
    while scene.view.is_none() {
        scene.run({
            let turns = std::cell::Cell::new(0);
            move |_| turns.replace(turns.get() + 1) == 5
        });
        let offset = scene.readable() + 1_000_000;
        let data = Data { offset, len: 60_000, ..scene.data() };
        scene.inject(&data, (sent % 5, [1; 16]), &[1; 60_000]);
        sent += 1;
    }
    let stats = scene.ends_well();
    assert!(sent >= 128, "{sent}");
    assert_eq!((stats.forged, stats.replayed), (0, 0), "{stats:?}");
}

/// The sender's own packets, repeated by somebody who has recorded them.
#[test]
fn repeated_packets_give_nobody_a_key_of_its_own() {
    let mut scene = Scene::of(3 * LENGTH);
    scene.run(|scene| scene.readable() > 200_000);
    let (cipher, key) = scene.sender.sending[&scene.session].sealer.as_ref().unwrap().key();
    let key = *key;
    while scene.view.is_none() {
        scene.run({
            let turns = std::cell::Cell::new(0);
            move |_| turns.replace(turns.get() + 1) == 5
        });
        scene.forge(&mut GroupSeal::new(cipher, key), 0, &[7; 60_000], false);
    }
    let stats = scene.ends_well();
    assert!(stats.replayed >= 128, "{stats:?}");
    assert_eq!(stats.forged, 0, "{stats:?}");
}

/// All bytes have arrived and are verified when data beyond the end arrives: there is nothing more to be sent with a key of its own.
#[test]
fn bytes_beyond_the_end_of_a_verified_stream_are_found() {
    let mut forged = 0;
    for missing in [1, 2000, 30_000, 300_000] {
        let mut scene = Scene::new();
        scene.run(|scene| scene.readable() + missing >= LENGTH as u64);
        // The last turn may have brought everything, and the session may have ended.
        if !scene.sender.sending.contains_key(&scene.session) {
            continue;
        }
        forged += 1;
        let mut seal = scene.seal(SOON);
        scene.forge(&mut seal, LENGTH as u64 + 50_000, &[0; 100], false);
        scene.ends_well();
    }
    assert!(forged > 0);
}

/// What has the key of one receiver alone and is not the sender's can come of the sender only, which ends the session.
#[test]
fn wrong_bytes_of_the_sender_itself_end_in_a_failure_with_its_reason() {
    let mut scene = Scene::new();
    scene.run(|scene| scene.readable() > 0);
    let mut seal = scene.seal(SOON);
    scene.forge(&mut seal, scene.readable() + 40_000, &[0; 900], false);
    scene.run(|scene| scene.own_sealer().is_some());
    scene.run(|scene| scene.readable() < BLOCK / 2);
    scene.run(|scene| scene.readable() > BLOCK / 2);
    let mut seal = seal_ahead(scene.own_sealer().unwrap(), SOON);
    scene.forge(&mut seal, scene.readable() + 100_000, &[0; 900], false);
    scene.run(|_| false);
    match &scene.end {
        Some(EngineEvent::ReceiveFailed { reason, error: Some(error), .. }) => {
            assert_eq!(*reason, Reason::Damaged);
            assert!(error.to_string().contains("not those that the sender has sent"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(scene.view.as_ref().map(completed), Some(0));
    assert!(!scene.folder.path().join("x").exists());
}

/// An insider goes on for the whole transfer.
#[test]
fn an_insider_that_does_not_stop_costs_time_only() {
    let mut scene = Scene::new();
    let mut seal = scene.seal(SOON);
    let mut random = 1_u64;
    while scene.view.is_none() || scene.end.is_none() {
        let turns = std::cell::Cell::new(0);
        scene.run(|_| turns.replace(turns.get() + 1) == 20);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        let offset = scene.readable() + (random >> 40) % 600_000;
        scene.forge(&mut seal, offset, &[7; 1000], random >> 33 & 31 == 0);
    }
    let stats = scene.ends_well();
    assert_eq!(stats.forged, 1, "{stats:?}");
}

/// A receiver asks for hashes of the end of a file that was hardly begun. To read that, the sender would have to read all of the file
/// first, and hold the session while it does.
#[test]
fn hashes_far_ahead_of_the_data_cost_the_sender_nothing() {
    let mut scene = Scene::of(40_000_000);
    scene.run(|scene| scene.readable() > 0);
    let sending = &scene.sender.sending[&scene.session];
    let (host, end) = (*sending.hosts.keys().next().unwrap(), sending.offered);
    let read = |scene: &Scene| scene.sender.sending[&scene.session].hosts[&host].read_for_hashes;
    let (now, before) = (scene.sender.clock().now(), read(&scene));
    for from in [end - 10, end - 1_000_000, end / 2] {
        let (session, nonce) = (scene.session, 1);
        let request = HashRequest { session, nonce, from, upto: end, partial: true };
        scene.sender.handle_hash_request(now, host, &request);
        assert!(!scene.sender.sending[&session].works, "{from}");
        assert_eq!(read(&scene), before, "{from}");
    }
}

/// A receiver acknowledges all bytes of a pipe and asks for no hashes, or asks for all of them from the first byte on without end. Without a limit
/// the pipe's spool would be full for ever, and the other receiver would wait.
#[test]
fn a_receiver_that_does_not_verify_holds_up_nobody() {
    for asks in [false, true] {
        let honest = Receiving::start(Some(SECRET), None);
        let folder = tempfile::tempdir().unwrap();
        let mut idle = receiver(folder.path(), Some(SECRET), 1 << 30);
        let mut sender = sender(Some(SECRET));
        sender.config.flow.patience = Span::from_ms(1500);
        let hosts = [honest.address, idle.local_addr()].map(|at| sender.add_peer(at));
        let spool = tempfile::tempdir().unwrap();
        let input = Box::new(io::Cursor::new(content(9_000_000)));
        let number = rackweave_linux::random();
        let pipe = Pipe::new("pipe", input, spool.path(), number, 65_536, Some(2 << 20)).unwrap();
        let flow = sender.config.flow;
        let session = sender.open(Box::new(pipe), &hosts, Spread::Unicast, flow).unwrap();
        let deadline = sender.clock().now() + TIMEOUT;
        let view = loop {
            sender.turn().unwrap();
            match sender.poll_event() {
                Some(EngineEvent::Sent { view, .. }) => break view,
                _ => assert!(sender.clock().now() < deadline, "{:?}", sender.view(session)),
            }
            idle.turn().unwrap();
            while idle.poll_event().is_some() {}
            // It takes what arrives for verified.
            if let Some(incoming) = idle.incoming.get_mut(&session) {
                incoming.verifier = None;
            }
            if asks {
                let request =
                    HashRequest { session, nonce: 1, from: 0, upto: 1 << 40, partial: true };
                sender.handle_hash_request(sender.clock().now(), hosts[1], &request);
            }
        };
        assert_eq!(completed(&view), 1, "{view:?}");
        assert!(honest.received());
        assert_eq!(honest.read("pipe"), content(9_000_000));
    }
}
