use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

mod forged;
mod insider;
mod labels;
mod restarts;
mod secrecy;
mod waiting;

use super::*;
use rackweave_orca::flow::SenderEvent;
use rackweave_orca::host::Spread;
use rackweave_testing::free_address;

use crate::sink::{Folder, FolderConfig, Sink};
use crate::source::{Files, Pipe, Source};

pub(super) const SECRET: &[u8] = b"a secret of both hosts";
const OTHER: &[u8] = b"another secret than that";

/// Much longer than a test takes even on an overloaded machine.
const TIMEOUT: Span = Span::from_secs(60);

/// A receiver in a thread of its own.
pub(super) struct Receiving {
    pub(super) address: SocketAddr,
    pub(super) folder: tempfile::TempDir,
    pub(super) events: Receiver<EngineEvent>,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<Stats>>,
}

impl Receiving {
    pub(super) fn start(secret: Option<&[u8]>, limit: Option<u64>) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), secret, limit, free_address())
    }

    fn start_in(
        folder: tempfile::TempDir,
        secret: Option<&[u8]>,
        limit: Option<u64>,
        bind: SocketAddr,
    ) -> Self {
        let mut config =
            EngineConfig { secret: secret.map(<[u8]>::to_vec), ..EngineConfig::new(bind) };
        // The tests do not wait for the end of this patience.
        config.flow.patience = Span::from_secs(3600);
        Self::start_with(folder, limit, config).unwrap()
    }

    fn start_with(
        folder: tempfile::TempDir,
        limit: Option<u64>,
        engine: EngineConfig,
    ) -> Result<Self, EngineError> {
        let config =
            FolderConfig { folder: folder.path().to_owned(), limit, ..FolderConfig::default() };
        let accept: Accept = Box::new(move |offer| {
            let (config, stream) = (config.clone(), offer.stream);
            Decision::Accept(Box::new(move |_| {
                Folder::new(config, stream).map(|folder| Box::new(folder) as Box<dyn Sink>)
            }))
        });
        Self::start_accepting(folder, engine, accept)
    }

    fn start_accepting(
        folder: tempfile::TempDir,
        engine: EngineConfig,
        accept: Accept,
    ) -> Result<Self, EngineError> {
        Ok(Self::run(folder, Engine::new(engine, Some(accept))?))
    }

    fn run(folder: tempfile::TempDir, mut engine: Engine) -> Self {
        let (address, waker) = (engine.local_addr(), engine.waker());
        let stop = Arc::new(AtomicBool::new(false));
        let (send, events) = channel();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let until = engine.turn().unwrap();
                while let Some(event) = engine.poll_event() {
                    let _ = send.send(event);
                }
                engine.wait(until).unwrap();
            }
            engine.stats()
        });
        Self { address, folder, events, stop, waker, thread: Some(thread) }
    }

    /// Stops without notifying the sender, as a crash does.
    pub(super) fn crash(mut self) -> (tempfile::TempDir, Stats) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        let stats = self.thread.take().unwrap().join().unwrap();
        (self.folder, stats)
    }

    pub(super) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.folder.path().join(name)).unwrap()
    }

    pub(super) fn received(&self) -> bool {
        loop {
            match self.events.recv_timeout(std::time::Duration::from_secs(60)).unwrap() {
                EngineEvent::Received { .. } => return true,
                EngineEvent::ReceiveFailed { .. } => return false,
                _ => {}
            }
        }
    }
}

fn sender(secret: Option<&[u8]>) -> Engine {
    let config = EngineConfig::new("127.0.0.1:0".parse().unwrap());
    Engine::new(EngineConfig { secret: secret.map(<[u8]>::to_vec), ..config }, None).unwrap()
}

pub(super) fn drive(engine: &mut Engine, seen: Option<&Sender<EngineEvent>>) -> SendView {
    let deadline = engine.clock().now() + TIMEOUT;
    loop {
        let until = engine.turn().unwrap();
        while let Some(event) = engine.poll_event() {
            if let EngineEvent::Sent { view, .. } = event {
                engine.turn().unwrap();
                return view;
            }
            if let Some(seen) = seen {
                let _ = seen.send(event);
            }
        }
        assert!(engine.clock().now() < deadline, "the cast takes for ever");
        engine.wait(Some(until.unwrap_or(deadline).min(deadline))).unwrap();
    }
}

fn send(engine: &mut Engine, source: Box<dyn Source>, to: &[SocketAddr]) -> SendView {
    let hosts: Vec<HostId> = to.iter().map(|to| engine.add_peer(*to)).collect();
    let flow = engine.config.flow;
    engine.open(source, &hosts, Spread::Unicast, flow).unwrap();
    drive(engine, None)
}

pub(super) fn content(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 3) as u8 ^ (i / 70_000) as u8).collect()
}

pub(super) fn file(folder: &Path, name: &str, len: usize) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, content(len)).unwrap();
    path
}

pub(super) fn completed(view: &SendView) -> usize {
    use rackweave_orca::flow::ReceiverStatus;
    view.receivers.iter().filter(|it| it.status == ReceiverStatus::Completed).count()
}

#[test]
fn files_reach_all_receivers() {
    let receivers: Vec<Receiving> = (0..4).map(|_| Receiving::start(None, None)).collect();
    let from = tempfile::tempdir().unwrap();
    let paths = [
        file(from.path(), "big", 5_000_000),
        file(from.path(), "none", 0),
        file(from.path(), "x", 7),
    ];
    let to: Vec<SocketAddr> = receivers.iter().map(|it| it.address).collect();
    let mut engine = sender(None);
    let view = send(&mut engine, Box::new(Files::new(&paths).unwrap()), &to);
    assert_eq!(completed(&view), 4);
    for receiver in &receivers {
        assert!(receiver.received());
        assert_eq!(receiver.read("big"), content(5_000_000));
        assert!(receiver.read("none").is_empty());
        assert_eq!(receiver.read("x"), content(7));
        assert_eq!(std::fs::read_dir(receiver.folder.path()).unwrap().count(), 3);
    }
    // Runs of packets are sent as trains.
    let stats = engine.stats();
    assert!(stats.trains < stats.sent / 2, "{stats:?}");
}

#[test]
fn a_pipe_reaches_all_receivers() {
    let receivers = [Receiving::start(None, None), Receiving::start(None, None)];
    let spool = tempfile::tempdir().unwrap();
    let input = Box::new(io::Cursor::new(content(3_000_000)));
    let pipe =
        Pipe::new("pipe", input, spool.path(), rackweave_linux::random(), 65_536, None).unwrap();
    let to = receivers.each_ref().map(|it| it.address);
    let view = send(&mut sender(None), Box::new(pipe), &to);
    assert_eq!(completed(&view), 2);
    for receiver in &receivers {
        assert!(receiver.received());
        assert_eq!(receiver.read("pipe"), content(3_000_000));
    }
}

/// What an application writes reaches the receivers while the stream goes on, also with a key, under which bytes are verified first:
/// its spool is so small that it waits for what they have verified.
#[test]
fn a_live_pipe_is_passed_on_before_a_block_is_full() {
    for secret in [None, Some(SECRET)] {
        let receiver = Receiving::start(secret, None);
        let spool = tempfile::tempdir().unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        let (number, clock) = (rackweave_linux::random(), Clock::start());
        let pipe = Pipe::new("live", Box::new(reader), spool.path(), number, 65_536, Some(1));
        let mut engine = sender(secret);
        let host = engine.add_peer(receiver.address);
        let flow = engine.config.flow;
        engine.open(Box::new(pipe.unwrap()), &[host], Spread::Unicast, flow).unwrap();
        let thread = std::thread::spawn(move || drive(&mut engine, None));
        let mut all = Vec::new();
        let place = receiver.folder.path().join("live.part");
        let length = || place.metadata().map_or(0, |meta| meta.len());
        for round in 1..20 {
            let bytes = content(round * round * 1000);
            io::Write::write_all(&mut writer, &bytes).unwrap();
            all.extend_from_slice(&bytes);
            let deadline = clock.now() + TIMEOUT;
            while length() < all.len() as u64 {
                assert!(clock.now() < deadline, "{round}: {}", length());
                std::thread::yield_now();
            }
        }
        drop(writer);
        assert_eq!(completed(&thread.join().unwrap()), 1);
        assert!(receiver.received());
        assert!(receiver.read("live") == all);
    }
}

#[test]
fn a_full_disk_stops_one_receiver_only() {
    let receivers = [Receiving::start(None, None), Receiving::start(None, Some(1 << 20))];
    let from = tempfile::tempdir().unwrap();
    let path = file(from.path(), "big", 6_000_000);
    let to = receivers.each_ref().map(|it| it.address);
    let view = send(&mut sender(None), Box::new(Files::new(&[path]).unwrap()), &to);
    assert_eq!(completed(&view), 1);
    let lost: Vec<_> = view.receivers.iter().map(|it| it.status).collect();
    use rackweave_orca::flow::ReceiverStatus;
    assert!(lost.contains(&ReceiverStatus::Lost(rackweave_wire::orca::Reason::Full)), "{lost:?}");
    assert!(receivers[0].received() && !receivers[1].received());
    assert_eq!(receivers[0].read("big"), content(6_000_000));
}

#[test]
fn the_key_decides() {
    let receivers = [
        Receiving::start(Some(SECRET), None),
        Receiving::start(Some(OTHER), None),
        Receiving::start(None, None),
    ];
    let from = tempfile::tempdir().unwrap();
    let path = file(from.path(), "x", 2_000_000);
    let to = receivers.each_ref().map(|it| it.address);
    let mut engine = sender(Some(SECRET));
    engine.config.flow.patience = Span::from_ms(500);
    let view = send(&mut engine, Box::new(Files::new(&[path]).unwrap()), &to);
    assert_eq!(completed(&view), 1);
    assert_eq!(receivers[0].read("x"), content(2_000_000));
    for (index, receiver) in receivers.into_iter().enumerate() {
        let (folder, stats) = receiver.crash();
        if index > 0 {
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
            assert!(stats.malformed > 0 && stats.malformed == stats.received);
        }
    }
}

#[test]
fn who_is_not_named_is_not_listened_to() {
    let receiver = Receiving::start(None, None);
    let config = EngineConfig {
        admission: Admission::default(),
        ..EngineConfig::new("127.0.0.1:0".parse().unwrap())
    };
    let mut stranger = Engine::new(config, None).unwrap();
    // No peer is named, so the answers to its own invitation come from strangers, too.
    let from = tempfile::tempdir().unwrap();
    let path = file(from.path(), "x", 1000);
    let host = stranger.add_peer(receiver.address);
    stranger.peers = Peers::new(Admission::default(), 1, stranger.peers.incarnation());
    let flow = FlowConfigOf::quick(stranger.config.flow);
    stranger.open(Box::new(Files::new(&[path]).unwrap()), &[host], Spread::Unicast, flow).unwrap();
    let view = drive(&mut stranger, None);
    assert_eq!(completed(&view), 0);
    assert!(stranger.stats().unroutable > 0);
}

/// Constructors of configurations that give up soon.
struct FlowConfigOf;

impl FlowConfigOf {
    fn quick(flow: FlowConfig) -> FlowConfig {
        FlowConfig { patience: Span::from_ms(300), ..flow }
    }
}

#[test]
fn a_receiver_that_is_started_again_goes_on() {
    [None, Some(SECRET)].into_iter().for_each(receiver_is_started_again);
}

fn receiver_is_started_again(secret: Option<&[u8]>) {
    let receiver = Receiving::start(secret, None);
    let (address, from) = (receiver.address, tempfile::tempdir().unwrap());
    let path = file(from.path(), "big", 30_000_000);
    let mut engine = sender(secret);
    let flow = FlowConfig {
        // The rate is so low that the crash happens in the middle of the transfer.
        max_rate: Some(Rate(400_000_000)),
        patience: Span::from_secs(1),
        ..engine.config.flow
    };
    let host = engine.add_peer(address);
    engine.config.retry = TIMEOUT;
    engine.open(Box::new(Files::new(&[path]).unwrap()), &[host], Spread::Unicast, flow).unwrap();
    let (send, seen) = channel();
    let thread = std::thread::spawn(move || drive(&mut engine, Some(&send)));
    let part = receiver.folder.path().join("big.part");
    while part.metadata().map_or(0, |meta| meta.len()) < 5_000_000 {
        std::thread::yield_now();
    }
    let (folder, _) = receiver.crash();
    let again = Receiving::start_in(folder, secret, None, address);
    assert!(again.received());
    assert_eq!(completed(&thread.join().unwrap()), 1);
    assert_eq!(again.read("big"), content(30_000_000));
    let joined: Vec<u64> = seen
        .try_iter()
        .filter_map(|event| match event {
            EngineEvent::Sender(_, SenderEvent::Joined { at, .. }) => Some(at),
            _ => None,
        })
        .collect();
    assert!(
        joined.len() >= 2 && joined[0] == 0 && joined[joined.len() - 1] > 4_000_000,
        "{joined:?}"
    );
}

#[test]
fn a_sender_that_is_started_again_goes_on() {
    [None, Some(SECRET)].into_iter().for_each(sender_is_started_again);
}

fn sender_is_started_again(secret: Option<&[u8]>) {
    let receiver = Receiving::start(secret, None);
    let from = tempfile::tempdir().unwrap();
    let path = file(from.path(), "big", 30_000_000);
    let part = receiver.folder.path().join("big.part");
    {
        let mut engine = sender(secret);
        let flow = FlowConfig { max_rate: Some(Rate(400_000_000)), ..engine.config.flow };
        let host = engine.add_peer(receiver.address);
        let source = Box::new(Files::new(std::slice::from_ref(&path)).unwrap());
        engine.open(source, &[host], Spread::Unicast, flow).unwrap();
        while part.metadata().map_or(0, |meta| meta.len()) < 5_000_000 {
            let until = engine.turn().unwrap();
            engine.wait(until).unwrap();
        }
        // The engine is dropped without notifying any peer.
    }
    let mut engine = sender(secret);
    let view = send(&mut engine, Box::new(Files::new(&[path]).unwrap()), &[receiver.address]);
    assert_eq!(completed(&view), 1);
    assert!(view.receivers[0].from > 4_000_000, "{view:?}");
    assert_eq!(receiver.read("big"), content(30_000_000));
}

#[test]
fn a_probe_finds_reachable_receivers() {
    let receivers = [Receiving::start(Some(SECRET), None), Receiving::start(Some(OTHER), None)];
    let mut engine = sender(Some(SECRET));
    let hosts = receivers.each_ref().map(|it| engine.add_peer(it.address));
    // The group's datagrams do not leave the loopback interface.
    let reach = engine.probe(&hosts).unwrap();
    assert_eq!(reach.spread, Spread::Unicast);
    assert_eq!(reach.silent, [hosts[1]]);
    assert_eq!(reach.apart, [hosts[0]]);
}

/// Forwards datagrams between two sockets unreliably: some are lost, duplicated, damaged or delayed.
fn forward(
    from: Arc<std::net::UdpSocket>,
    by: Arc<std::net::UdpSocket>,
    to: impl Fn(SocketAddr) -> Option<SocketAddr> + Send + 'static,
    stop: Arc<AtomicBool>,
) -> JoinHandle<u64> {
    std::thread::spawn(move || {
        from.set_read_timeout(Some(std::time::Duration::from_millis(20))).unwrap();
        let (mut buffer, mut late, mut harm) = (vec![0; 1 << 16], None::<Vec<u8>>, 0);
        let mut random = 1_u64;
        while !stop.load(Ordering::Relaxed) {
            let Ok((len, sender)) = from.recv_from(&mut buffer) else { continue };
            let Some(to) = to(sender) else { continue };
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let bytes = &mut buffer[..len];
            let chance = (random >> 33) % 100;
            harm += u64::from(chance < 8);
            match chance {
                0 | 1 => continue,
                2 | 3 => drop(by.send_to(bytes, to)),
                4 | 5 => bytes[(random >> 40) as usize % len] ^= 1 << (random >> 61),
                6 | 7 => {
                    late = Some(bytes.to_vec());
                    continue;
                }
                _ => {}
            }
            let _ = by.send_to(bytes, to);
            if let Some(late) = late.take() {
                let _ = by.send_to(&late, to);
            }
        }
        harm
    })
}

#[test]
fn a_bad_network_damages_nothing() {
    for secret in [None, Some(SECRET)] {
        let receiver = Receiving::start(secret, None);
        let bind = || Arc::new(std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
        let (front, back) = (bind(), bind());
        let address = front.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (sender_at, known) = (Arc::new(Mutex::new(None)), receiver.address);
        let (set, get) = (Arc::clone(&sender_at), sender_at);
        let there = forward(
            Arc::clone(&front),
            Arc::clone(&back),
            move |sender| {
                *set.lock().unwrap() = Some(sender);
                Some(known)
            },
            Arc::clone(&stop),
        );
        let here = forward(back, front, move |_| *get.lock().unwrap(), Arc::clone(&stop));
        let from = tempfile::tempdir().unwrap();
        let path = file(from.path(), "x", 3_000_000);
        let mut engine = sender(secret);
        let view = send(&mut engine, Box::new(Files::new(&[path]).unwrap()), &[address]);
        assert_eq!(completed(&view), 1);
        assert_eq!(receiver.read("x"), content(3_000_000));
        stop.store(true, Ordering::Relaxed);
        assert!(there.join().unwrap() > 0);
        here.join().unwrap();
    }
}

#[test]
fn a_lost_bye_delays_no_receiver() {
    let receiver = Receiving::start(None, None);
    let (front, back) = (
        std::net::UdpSocket::bind("127.0.0.1:0").unwrap(),
        std::net::UdpSocket::bind("127.0.0.1:0").unwrap(),
    );
    let (front, back) = (Arc::new(front), Arc::new(back));
    let (address, known) = (front.local_addr().unwrap(), receiver.address);
    let sender_at = Arc::new(Mutex::new(None));
    // Everything passes except the sender's `Bye` (tag 5 of control packets).
    let (from, by, set) = (Arc::clone(&front), Arc::clone(&back), Arc::clone(&sender_at));
    let (send, byes) = channel();
    let there = std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok((len, sender)) = from.recv_from(&mut buffer) {
            *set.lock().unwrap() = Some(sender);
            let decoded = rackweave_wire::orca::decode(&buffer[..len], None);
            if let Ok(rackweave_wire::orca::Decoded {
                header: rackweave_wire::orca::Header::Control(control),
                ..
            }) = &decoded
                && matches!(control.body, rackweave_wire::orca::Body::Bye { .. })
            {
                let _ = send.send(());
                return;
            }
            let _ = by.send_to(&buffer[..len], known);
        }
    });
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let here = std::thread::spawn(move || {
        back.set_read_timeout(Some(std::time::Duration::from_millis(20))).unwrap();
        let mut buffer = vec![0; 1 << 16];
        while !stopped.load(Ordering::Relaxed) {
            if let Ok((len, _)) = back.recv_from(&mut buffer)
                && let Some(to) = *sender_at.lock().unwrap()
            {
                let _ = front.send_to(&buffer[..len], to);
            }
        }
    });
    let from = tempfile::tempdir().unwrap();
    let path = file(from.path(), "x", 100_000);
    let view = send_one(path, address);
    assert_eq!(completed(&view), 1);
    byes.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    // The receiver's patience is an hour, so it did not wait for it.
    assert!(receiver.received());
    stop.store(true, Ordering::Relaxed);
    there.join().unwrap();
    here.join().unwrap();
}

fn send_one(path: PathBuf, to: SocketAddr) -> SendView {
    send(&mut sender(None), Box::new(Files::new(&[path]).unwrap()), &[to])
}

/// Starts a member of these groups on loopback, in a thread of its own.
fn member(groups: &[&str], port: u16, secret: Option<&[u8]>, loopback: bool) -> Receiving {
    let mut config = EngineConfig::new("127.0.0.1:0".parse().unwrap());
    config.groups = groups.iter().map(|name| (*name).to_owned()).collect();
    (config.in_group, config.interface) = (true, Ipv4Addr::LOCALHOST);
    (config.group_port, config.secret) = (port, secret.map(<[u8]>::to_vec));
    config.admission = Admission { loopback, ..Admission::default() };
    Receiving::start_with(tempfile::tempdir().unwrap(), None, config).unwrap()
}

#[test]
fn members_of_a_group_are_found() {
    rackweave_testing::needs!(Multicast);
    // No other process on this machine uses the group at this port.
    let port = std::net::UdpSocket::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
    let mut asker = sender(None);
    asker = Engine::new(
        EngineConfig {
            interface: Ipv4Addr::LOCALHOST,
            group_loops: true,
            group_port: port,
            // It is not known in advance which hosts answer.
            admission: Admission::default(),
            ..asker.config
        },
        None,
    )
    .unwrap();
    let all = [
        member(&["blue"], port, None, true),
        member(&["red", "blue"], port, None, true),
        member(&["red"], port, None, true),
        member(&["blue"], port, Some(SECRET), true),
        member(&["blue"], port, None, false),
    ];
    let ask = |asker: &mut Engine, name: &str, expect| {
        asker.members(name, Some(expect), TIMEOUT, &|| false).unwrap()
    };
    let mut expected = vec![all[0].address, all[1].address];
    expected.sort();
    assert_eq!(ask(&mut asker, "blue", 2), expected);
    assert_eq!(ask(&mut asker, "red", 2).len(), 2);
    // Neither a member with another key nor one that does not admit the querier ever answers.
    let span = Span::from_ms(300);
    assert!(asker.members("blue", Some(3), span, &|| false).unwrap().len() <= 2);
    assert!(asker.members("green", None, Span::from_ms(50), &|| false).unwrap().is_empty());
    // No member has become a peer by answering, so no state grows.
    assert!(asker.query.is_none() && !asker.peers.admits(all[0].address));
}

/// With copies of its own it does not listen to the group.
#[test]
fn a_member_that_was_sent_copies_of_its_own_is_found_afterwards() {
    rackweave_testing::needs!(Multicast);
    let port = std::net::UdpSocket::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
    let member = member(&["blue"], port, None, true);
    let config = EngineConfig {
        interface: Ipv4Addr::LOCALHOST,
        group_loops: true,
        group_port: port,
        admission: Admission::default(),
        ..sender(None).config
    };
    let mut engine = Engine::new(config, None).unwrap();
    let from = tempfile::tempdir().unwrap();
    let source = Box::new(Files::new(&[file(from.path(), "x", 3_000_000)]).unwrap());
    let (host, flow) = (engine.add_peer(member.address), engine.config.flow);
    let session = engine.open(source, &[host], Spread::Multicast, flow).unwrap();
    engine.host.serve_by_unicast(session, host);
    assert_eq!(completed(&drive(&mut engine, None)), 1);
    let found = engine.members("blue", Some(1), Span::from_secs(10), &|| false).unwrap();
    assert_eq!(found, [member.address]);
}

#[test]
fn packets_are_gathered_only_while_they_come_fast() {
    let mut arrivals = Arrivals { since: Time::ZERO, bytes: 0, fast: false, roomy: true };
    let at = |ms: u64| Time::ZERO + Span::from_ms(ms);
    let per_ms = FAST.bytes_in(Span::from_ms(1));
    arrivals.bytes = per_ms * 3;
    assert!(!arrivals.is_fast(Time::ZERO + Span::from_us(999)));
    assert!(arrivals.is_fast(at(1)));
    arrivals.bytes = per_ms;
    assert!(!arrivals.is_fast(at(2)), "not faster than the bound");
    arrivals.bytes = per_ms * 2;
    assert!(arrivals.is_fast(at(3)));
    assert!(!arrivals.is_fast(at(4)), "nothing comes any more");
    // Packets that exceed the socket's buffer would be lost.
    (arrivals.bytes, arrivals.roomy) = (per_ms * 9, false);
    assert!(!arrivals.is_fast(at(5)));
}
