//! What an attacker learns from a capture of a cast, and what recorded and forged datagrams do: nothing is kept or written for
//! a host that has not proved to receive at its address, answers are short, and memory is bounded.

use std::net::UdpSocket;

use rackweave_wire::orca::{
    Body, Control, Header, Place, Reason, Session, Status, TO_AGENT, encode_header,
};

use super::forged::{Between, Record};
use super::*;

/// The bytes of the IPv4 and UDP headers.
const HEADERS: usize = 28;

/// A receiver in this thread, which writes to a folder.
pub(super) fn receiver(folder: &Path, secret: Option<&[u8]>, memory: u64) -> Engine {
    let config = FolderConfig { folder: folder.to_owned(), ..FolderConfig::default() };
    let accept: Accept = Box::new(move |offer| {
        let (config, stream) = (config.clone(), offer.stream);
        Decision::Accept(Box::new(move |_| {
            Folder::new(config, stream).map(|folder| Box::new(folder) as Box<dyn Sink>)
        }))
    });
    let mut config = EngineConfig::new("127.0.0.1:0".parse().unwrap());
    (config.secret, config.receive_memory) = (secret.map(<[u8]>::to_vec), memory);
    Engine::new(config, Some(accept)).unwrap()
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// Receives all datagrams that wait; returns their number and their bytes with headers.
fn answers(socket: &UdpSocket) -> (usize, usize) {
    let (mut buffer, mut count, mut bytes) = (vec![0; 1 << 16], 0, 0);
    while let Ok((len, _)) = socket.recv_from(&mut buffer) {
        (count, bytes) = (count + 1, bytes + len + HEADERS);
    }
    (count, bytes)
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().count() == 0
}

fn invitation(session: u32) -> Control {
    let place = Place::default();
    let body = Body::Invite { stream: 7, place, payload: 1400, via_agent: false };
    Control { from: HostId(0), to: HostId(0), session: Session(session), body }
}

fn encoded(control: Control) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_header(&Header::Control(control), 1, None, &[], &mut bytes);
    bytes
}

/// Content without 16 bytes that occur in other data by chance.
fn recognizable(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"recognizable content").finalize_xof().fill(&mut bytes);
    bytes
}

fn contains(all: &[Vec<u8>], wanted: &[u8]) -> bool {
    all.iter().any(|bytes| bytes.windows(wanted.len()).any(|window| window == wanted))
}

/// Sends a file with a recognizable name and content through a recorder. Returns the datagrams of both directions.
fn capture(receiver: &Receiving, from: &Path, secret: Option<&[u8]>) -> Vec<Vec<u8>> {
    let path = from.join("recognizable-name.txt");
    std::fs::write(&path, recognizable(300_000)).unwrap();
    let record = Record::default();
    let seen = Arc::clone(&record);
    let between = Between::start(receiver.address, move |_| {
        let seen = Arc::clone(&seen);
        Box::new(move |bytes| {
            seen.lock().unwrap().push(bytes.to_vec());
            vec![bytes.to_vec()]
        })
    });
    let mut engine = sender(secret);
    let view = send(&mut engine, Box::new(Files::new(&[path]).unwrap()), &[between.address]);
    assert_eq!(completed(&view), 1, "{view:?}");
    between.end();
    std::mem::take(&mut *record.lock().unwrap())
}

#[test]
fn a_capture_shows_neither_names_nor_content_with_a_key() {
    for secret in [None, Some(SECRET)] {
        let receiver = Receiving::start(secret, None);
        let from = tempfile::tempdir().unwrap();
        let all = capture(&receiver, from.path(), secret);
        assert!(receiver.received());
        assert!(receiver.read("recognizable-name.txt") == recognizable(300_000));
        let plain = secret.is_none();
        // The same search finds both without a key, so that it cannot miss them.
        assert_eq!(contains(&all, b"recognizable-name"), plain);
        let content = recognizable(300_000);
        let pieces: Vec<&[u8]> = content.chunks_exact(16).step_by(40).collect();
        let found = pieces.iter().filter(|piece| contains(&all, piece)).count();
        // Without a key, some pieces lie across two packets.
        assert!(if plain { found > pieces.len() * 9 / 10 } else { found == 0 }, "{found}");
        if !plain {
            let kind = |first: u8| all.iter().filter(|bytes| bytes[0] == first).count();
            // Handshake and sealed control, and sealed data, whose header switches can read; nothing else.
            assert!(kind(0xa2) > 5 && kind(0xc3) > 100);
            assert_eq!(kind(0xa2) + kind(0xc3), all.len());
            assert!(all.iter().filter(|it| it[0] == 0xc3).all(|it| it[1] & 0x88 == 0x08));
        }
    }
}

#[test]
fn a_recorded_cast_does_nothing_when_it_is_replayed() {
    for secret in [None, Some(SECRET)] {
        let first = Receiving::start(secret, None);
        let from = tempfile::tempdir().unwrap();
        let all = capture(&first, from.path(), secret);
        // The receiver that had the cast, and one that is started afterwards.
        let address = first.address;
        let (folder, _) = first.crash();
        std::fs::remove_file(folder.path().join("recognizable-name.txt")).unwrap();
        let again = Receiving::start_in(folder, secret, None, address);
        let fresh = tempfile::tempdir().unwrap();
        let mut engine = receiver(fresh.path(), secret, 1 << 30);
        let attacker = socket();
        let (mut out, mut back) = (0, 0);
        for _ in 0..2 {
            for bytes in &all {
                for to in [address, engine.local_addr()] {
                    attacker.send_to(bytes, to).unwrap();
                    out += bytes.len() + HEADERS;
                }
                engine.turn().unwrap();
                assert!(engine.poll_event().is_none());
                assert_eq!((engine.receive_memory(), engine.incoming().len()), (0, 0));
                back += answers(&attacker).1;
            }
        }
        assert!(is_empty(fresh.path()) && is_empty(again.folder.path()));
        assert!(back > 0 && back <= out, "{back} {out}");
        // The receiver serves the real sender as before.
        let path = from.path().join("recognizable-name.txt");
        let source = Box::new(Files::new(&[path]).unwrap());
        assert_eq!(completed(&send(&mut sender(secret), source, &[address])), 1);
        let (folder, _) = again.crash();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

#[test]
fn forged_invitations_take_no_place_and_no_memory() {
    for secret in [None, Some(SECRET)] {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = receiver(folder.path(), secret, 1 << 30);
        engine.config.max_sessions = 2;
        let attackers: Vec<UdpSocket> = (0..20).map(|_| socket()).collect();
        let (mut out, mut back) = (0, 0);
        for number in 0..4000 {
            let attacker = &attackers[number as usize % attackers.len()];
            let mut bytes = encoded(invitation(number));
            if number % 3 == 0 {
                // A guess at the cookie.
                let (session, packet) = (Session(number), &bytes[..]);
                bytes = CookieMessage::Echo { session, cookie: 99, packet }.encode();
            }
            attacker.send_to(&bytes, engine.local_addr()).unwrap();
            out += bytes.len() + HEADERS;
            engine.turn().unwrap();
            assert!(engine.poll_event().is_none());
            assert_eq!((engine.receive_memory(), engine.incoming().len()), (0, 0));
        }
        attackers.iter().for_each(|attacker| back += answers(attacker).1);
        assert!(back > 0 && back < out, "{back} {out}");
        assert!(engine.peers.find(Time::MAX, attackers[0].local_addr().unwrap().into()).is_none());
        assert!(secret.is_some() || engine.stats().challenged == 4000);
        // The real sender is served while the flood goes on.
        let from = tempfile::tempdir().unwrap();
        let path = file(from.path(), "x", 500_000);
        let mut sender = sender(secret);
        let host = sender.add_peer(engine.local_addr());
        let flow = sender.config.flow;
        sender
            .open(Box::new(Files::new(&[path]).unwrap()), &[host], Spread::Unicast, flow)
            .unwrap();
        let (deadline, mut number) = (engine.clock().now() + TIMEOUT, 4000);
        loop {
            number += 1;
            let bytes = encoded(invitation(number));
            attackers[0].send_to(&bytes, engine.local_addr()).unwrap();
            engine.turn().unwrap();
            sender.turn().unwrap();
            let event = sender.poll_event();
            if let Some(EngineEvent::Sent { view, .. }) = event {
                assert_eq!(completed(&view), 1);
                break;
            }
            assert!(engine.clock().now() < deadline, "the sender is locked out");
        }
        assert!(std::fs::read(folder.path().join("x")).unwrap() == content(500_000));
    }
}

/// A sender that may send opens more sessions than fit.
#[test]
fn memory_is_bounded_across_sessions() {
    const MEMORY: u64 = 100 << 20;
    for secret in [None, Some(SECRET)] {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = receiver(folder.path(), secret, MEMORY);
        let mut sender = sender(secret);
        let host = sender.add_peer(engine.local_addr());
        let from = tempfile::tempdir().unwrap();
        let flow = sender.config.flow;
        for number in 0..60 {
            let path = file(from.path(), &format!("x{number}"), 100_000 + number);
            let source = Box::new(Files::new(&[path]).unwrap());
            sender.open(source, &[host], Spread::Unicast, flow).unwrap();
        }
        let (mut most, mut ended, mut whole, mut at_once) = (0, 0, 0, 0);
        let deadline = engine.clock().now() + TIMEOUT;
        while ended < 60 {
            engine.turn().unwrap();
            while engine.poll_event().is_some() {}
            most = most.max(engine.receive_memory());
            at_once = at_once.max(engine.incoming().len());
            sender.turn().unwrap();
            while let Some(event) = sender.poll_event() {
                if let EngineEvent::Sent { view, .. } = event {
                    ended += 1;
                    whole += completed(&view);
                }
            }
            assert!(engine.clock().now() < deadline, "{ended} of 60");
        }
        assert!(most > MEMORY / 2 && most <= MEMORY, "{most}");
        assert!((2..60).contains(&at_once) && whole >= at_once, "{at_once} {whole}");
        // All of it is free again once the sender has acknowledged the last one.
        while engine.receive_memory() > 0 {
            engine.turn().unwrap();
            sender.turn().unwrap();
            assert!(engine.clock().now() < deadline, "{} bytes", engine.receive_memory());
        }
    }
}

/// Each datagram that a stranger can send is answered by at most as many bytes.
#[test]
fn nothing_is_amplified() {
    let place = Place::default();
    let bodies = [
        invitation(5).body,
        Body::Join { incarnation: 1, stream: 7, place, at: 0, limit: 1 << 20 },
        Body::Status(Status::default()),
        Body::End { length: 9 },
        Body::Complete { place },
        Body::Bye { reason: Reason::Left },
        Body::Mode { detached: true },
        Body::Ping { place, number: 3 },
        Body::Create,
        Body::Destroy,
        Body::Renew,
        Body::Preparing,
        Body::Sync { rack: 0, ports: 1, version: 3 },
    ];
    let mut datagrams: Vec<Vec<u8>> = Vec::new();
    for body in bodies {
        for to in [HostId(0), TO_AGENT] {
            datagrams.push(encoded(Control { to, body, ..invitation(5) }));
        }
    }
    for kind in 0..6 {
        for len in [4, 30, 32, 92] {
            let mut bytes = vec![0xa2, kind];
            bytes.resize(len, 0);
            datagrams.push(bytes);
        }
    }
    let ask = capture_ask();
    for secret in [None, Some(SECRET)] {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = receiver(folder.path(), secret, 1 << 30);
        let (attacker, mut answered) = (socket(), 0);
        for bytes in datagrams.iter().chain([&ask]) {
            attacker.send_to(bytes, engine.local_addr()).unwrap();
            // Nothing is sent later, either: there is no state that could.
            for _ in 0..3 {
                engine.turn().unwrap();
            }
            assert!(engine.next_ask().is_none());
            let (count, back) = answers(&attacker);
            assert!(back <= bytes.len() + HEADERS && count <= 1, "{bytes:02x?}: {count} {back}");
            answered += count;
        }
        assert!(answered > 5, "{answered}");
        assert!(engine.host.poll_timeout().is_none_or(|at| at > engine.driver.now()));
        assert!(engine.incoming().is_empty() && is_empty(folder.path()));
    }
}

/// Returns the first datagram of a sender that has the key.
fn capture_ask() -> Vec<u8> {
    let (from, listener) = (tempfile::tempdir().unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let mut engine = sender(Some(SECRET));
    let host = engine.add_peer(listener.local_addr().unwrap());
    let source = Box::new(Files::new(&[file(from.path(), "x", 9)]).unwrap());
    engine.open(source, &[host], Spread::Unicast, engine.config.flow).unwrap();
    let until = engine.turn().unwrap();
    engine.wait(until).unwrap();
    engine.turn().unwrap();
    let mut buffer = [0; 200];
    let (len, _) = listener.recv_from(&mut buffer).unwrap();
    assert_eq!((buffer[0], buffer[1], len), (0xa2, 0, 92));
    buffer[..len].to_vec()
}

/// A packet that a sender repeats, because no report has come (a probe), is sealed again with a number of its own. The
/// same bytes would be a replay to the receiver, which would not report what it has.
#[test]
fn a_probe_is_sealed_anew() {
    // With two receivers the sender keeps what it has sealed, for the other one's copy.
    let receivers = [Receiving::start(Some(SECRET), None), Receiving::start(Some(SECRET), None)];
    // The numbers of the packets with which each part of the stream was sent to the first receiver.
    let sent: Arc<Mutex<BTreeMap<u64, Vec<u64>>>> = Arc::default();
    let key = keys(SECRET).0;
    let between = Between::start(receivers[0].address, |there| {
        let (sent, key) = (Arc::clone(&sent), key.clone());
        Box::new(move |bytes| {
            let mut sent = sent.lock().unwrap();
            let read = rackweave_wire::orca::decode(bytes, Some(&key));
            if let Ok(read) = read
                && let Header::Data(data) = read.header
            {
                let rackweave_wire::orca::Check::Sealed { counter, .. } = read.check else {
                    panic!("data in clear text")
                };
                sent.entry(data.offset).or_default().push(counter);
            }
            // The receiver is not heard from its first data until some were sent three times.
            let is_quiet = !sent.is_empty() && sent.values().all(|numbers| numbers.len() < 3);
            if there || !is_quiet { vec![bytes.to_vec()] } else { Vec::new() }
        })
    });
    let from = tempfile::tempdir().unwrap();
    let path = file(from.path(), "x", 5000);
    let to = [between.address, receivers[1].address];
    let view = send(&mut sender(Some(SECRET)), Box::new(Files::new(&[path]).unwrap()), &to);
    assert_eq!(completed(&view), 2, "{view:?}");
    between.end();
    let sent = std::mem::take(&mut *sent.lock().unwrap());
    assert!(sent.values().any(|numbers| numbers.len() >= 3), "nothing was repeated: {sent:?}");
    let mut numbers: Vec<u64> = sent.into_values().flatten().collect();
    let count = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), count, "two packets had one number");
    for receiver in receivers {
        assert!(receiver.received());
        assert_eq!(receiver.read("x"), content(5000));
        let (_, stats) = receiver.crash();
        assert_eq!((stats.replayed, stats.forged), (0, 0));
    }
}

/// Anyone can send a notice: it explains why a host that does not answer is silent, and nothing once it has.
#[test]
fn a_notice_explains_a_silence_until_there_is_a_session() {
    use rackweave_wire::secure::Notice;
    let receiver = Receiving::start(Some(SECRET), None);
    let mut engine = sender(Some(SECRET));
    let host = engine.add_peer(receiver.address);
    engine.on_notice(None, Notice::OtherKey);
    engine.on_notice(Some(host), Notice::NeedsKey);
    assert!(!engine.has_other_key(host), "it does not fit");
    engine.on_notice(Some(host), Notice::OtherKey);
    assert!(engine.has_other_key(host));
    assert_eq!(engine.stats().key_mismatch, 1);
    let from = tempfile::tempdir().unwrap();
    let path = file(from.path(), "x", 5);
    let view = send(&mut engine, Box::new(Files::new(&[path]).unwrap()), &[receiver.address]);
    assert_eq!(completed(&view), 1);
    assert!(!engine.has_other_key(host));
}

/// Control packets are repeated, so the last ones that wait for a session are kept.
#[test]
fn few_control_packets_wait_for_a_session() {
    let mut engine = sender(Some(SECRET));
    let host = engine.add_peer("127.0.0.1:9".parse().unwrap());
    let now = engine.driver.now();
    for session in 0..40 {
        engine.seal_control(now, host, invitation(session));
    }
    let held = engine.peers.get_mut(host).unwrap().held.take();
    let sessions: Vec<u32> = held.iter().map(|control| control.session.0).collect();
    assert_eq!(sessions, (24..40).collect::<Vec<_>>());
    assert_eq!(engine.peers.get(host).and_then(|peer| peer.association.ask_due()), Some(now));
}
