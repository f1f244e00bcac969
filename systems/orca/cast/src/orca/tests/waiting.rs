//! Who waits for whom, and for how long: places of sessions, sinks that do not go on, and what is written at the end.

use std::sync::atomic::AtomicU64;

use rackweave_orca::flow::ReceiverStatus;
use rackweave_wire::orca::Reason;

use super::restarts::{Gate, SECRETS, open_until_preparing, until};
use super::*;
use crate::sink::{Handovers, SinkError};
use crate::source::{Payload, SourceError};

fn lost(view: &SendView) -> ReceiverStatus {
    view.receivers[0].status
}

/// It says nothing, as a process that is killed.
#[test]
fn a_sender_that_is_killed_while_its_receiver_prepares_keeps_no_other_one_out() {
    for secret in SECRETS {
        let gate = Gate::default();
        let receiver = gate.receiver(secret, 1);
        let from = tempfile::tempdir().unwrap();
        let (old, new) = (file(from.path(), "old", 3000), file(from.path(), "new", 3000));
        let mut engine = sender(secret);
        open_until_preparing(&mut engine, &old, receiver.address, Span::from_secs(3));
        drop(engine);
        let source = Box::new(Files::new(&[new]).unwrap());
        let view = send(&mut sender(secret), source, &[receiver.address]);
        assert_eq!(completed(&view), 1, "{view:?}");
        assert!(receiver.received());
        assert_eq!(receiver.read("new"), content(3000));
        gate.open();
    }
}

#[test]
fn a_sender_that_is_there_keeps_its_place_while_its_receiver_prepares() {
    for secret in SECRETS {
        let gate = Gate::default();
        let receiver = gate.receiver(secret, 1);
        let from = tempfile::tempdir().unwrap();
        let (old, new) = (file(from.path(), "old", 3000), file(from.path(), "new", 3000));
        let mut first = sender(secret);
        open_until_preparing(&mut first, &old, receiver.address, Span::from_secs(3));
        let first = std::thread::spawn(move || drive(&mut first, None));
        let source = Box::new(Files::new(&[new]).unwrap());
        let view = send(&mut sender(secret), source, &[receiver.address]);
        assert_eq!(lost(&view), ReceiverStatus::Lost(Reason::Busy));
        gate.open();
        assert_eq!(completed(&first.join().unwrap()), 1);
        assert!(receiver.received());
    }
}

/// As on a disk that does not answer.
#[test]
fn a_receiver_that_does_not_go_on_preparing_is_given_up_with_a_reason() {
    let gate = Gate::default();
    let mut config = EngineConfig::new("127.0.0.1:0".parse().unwrap());
    config.prepare = Span::from_ms(500);
    let receiver = gate.receiver_with(config);
    let from = tempfile::tempdir().unwrap();
    let path = file(from.path(), "x", 3000);
    let source = Box::new(Files::new(&[path]).unwrap());
    let view = send(&mut sender(None), source, &[receiver.address]);
    assert_eq!(lost(&view), ReceiverStatus::Lost(Reason::Unresponsive));
    gate.open();
    match receiver.events.recv_timeout(std::time::Duration::from_secs(60)).unwrap() {
        EngineEvent::ReceiveFailed { error: Some(SinkError::Stuck), .. } => {}
        other => panic!("{other:?}"),
    }
}

/// Counts the bytes that it gets, once it is released.
struct Counting {
    released: Arc<AtomicBool>,
    bytes: Arc<AtomicU64>,
}

impl Sink for Counting {
    fn begins_at(&self) -> u64 {
        0
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        until(|| self.released.load(Ordering::Relaxed));
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn is_complete(&self) -> bool {
        false
    }
}

#[test]
fn what_has_arrived_is_written_before_a_receiver_that_is_stopped_ends() {
    let (released, bytes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (given, counts) = (Arc::clone(&released), Arc::clone(&bytes));
    let accept: Accept = Box::new(move |_| {
        let sink = Counting { released: Arc::clone(&given), bytes: Arc::clone(&counts) };
        Decision::Accept(Box::new(move |_| Ok(Box::new(sink) as Box<dyn Sink>)))
    });
    let config = EngineConfig::new("127.0.0.1:0".parse().unwrap());
    let mut engine = Engine::new(config, Some(accept)).unwrap();
    let address = engine.local_addr();
    let from = tempfile::tempdir().unwrap();
    let path = file(from.path(), "big", 20_000_000);
    let sending = std::thread::spawn(move || {
        let source = Box::new(Files::new(&[path]).unwrap());
        send(&mut sender(None), source, &[address])
    });
    while engine.incoming().first().is_none_or(|it| it.bytes < 5_000_000) {
        let turned = engine.turn().unwrap();
        engine.wait(turned).unwrap();
    }
    let arrived = engine.incoming()[0].bytes;
    engine.leave_all();
    let _ = engine.turn().unwrap();
    let later = std::thread::spawn(move || {
        restarts::pause(100);
        released.store(true, Ordering::Relaxed);
    });
    engine.wait_for_sinks(TIMEOUT);
    assert_eq!(bytes.load(Ordering::Relaxed), arrived);
    later.join().unwrap();
    assert_eq!(lost(&sending.join().unwrap()), ReceiverStatus::Lost(Reason::Left));
}

/// The sink of its first session is blocked, by a disk or by a reader. No thread is started for sessions that only wait
/// for it.
#[test]
fn a_sender_that_is_started_again_and_again_costs_one_thread() {
    let released = Arc::new(AtomicBool::new(false));
    let given = Arc::clone(&released);
    let accept: Accept = Box::new(move |_| {
        let released = Arc::clone(&given);
        Decision::Accept(Box::new(move |_| {
            until(|| released.load(Ordering::Relaxed));
            Ok(Box::new(Counting { released, bytes: Arc::default() }) as Box<dyn Sink>)
        }))
    });
    let config = EngineConfig::new("127.0.0.1:0".parse().unwrap());
    let mut engine = Engine::new(config, Some(accept)).unwrap();
    let address = engine.local_addr();
    let from = tempfile::tempdir().unwrap();
    let path = file(from.path(), "x", 3000);
    for round in 1..=4 {
        let mut sending = sender(None);
        let host = sending.add_peer(address);
        let source = Box::new(Files::new(std::slice::from_ref(&path)).unwrap());
        let flow = sending.config.flow;
        let session = sending.open(source, &[host], Spread::Unicast, flow).unwrap();
        until(|| {
            let _ = sending.turn().unwrap();
            let _ = engine.turn().unwrap();
            restarts::status(&sending, session) == ReceiverStatus::Preparing
        });
        let drains = engine.incoming.values().map(|it| &it.drain);
        let drains = drains.chain(engine.closing.iter().map(|it| &it.1));
        let threads = drains.filter(|it| !it.is_pending() && !it.has_ended()).count();
        assert_eq!(threads, 1, "round {round}");
        assert_eq!(engine.incoming.len(), 1);
        assert!(engine.closing.len() <= 1, "round {round}");
    }
    // The last one begins when the first sink is gone.
    released.store(true, Ordering::Relaxed);
    until(|| {
        let _ = engine.turn().unwrap();
        engine.incoming.values().all(|it| !it.drain.is_pending()) && engine.closing.is_empty()
    });
}

/// Who is sent to must receive packets and acknowledge them, and may not send streams for that.
#[test]
fn a_receiver_of_this_hosts_streams_may_send_nothing_to_it() {
    let nobody = || EngineConfig {
        admission: Admission::default(),
        ..EngineConfig::new("127.0.0.1:0".parse().unwrap())
    };
    let mut other = sender(None);
    let folder = tempfile::tempdir().unwrap();
    let config = FolderConfig { folder: folder.path().to_owned(), ..FolderConfig::default() };
    let accept: Accept = Box::new(move |offer| {
        let (config, stream) = (config.clone(), offer.stream);
        Decision::Accept(Box::new(move |_| {
            Folder::new(config, stream).map(|folder| Box::new(folder) as Box<dyn Sink>)
        }))
    });
    let mut engine = Engine::new(nobody(), Some(accept)).unwrap();
    // An application of this host has sent to it.
    engine.add_peer(other.local_addr());
    let receiver = Receiving::run(folder, engine);
    let from = tempfile::tempdir().unwrap();
    let path = file(from.path(), "x", 3000);
    other.config.flow = FlowConfigOf::quick(other.config.flow);
    let view = send(&mut other, Box::new(Files::new(&[path]).unwrap()), &[receiver.address]);
    assert_eq!(lost(&view), ReceiverStatus::Lost(Reason::Silent));
    let (folder, stats) = receiver.crash();
    assert!(stats.foreign > 0, "{stats:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// A receiver that overwrites a file begins the stream again. That is not the silence that a sender may be told not to wait for.
#[test]
fn a_receiver_that_begins_again_is_invited_by_a_sender_that_waits_for_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let mut other = content(9 << 20);
    other[7] ^= 1;
    std::fs::write(folder.path().join("big"), other).unwrap();
    let into = FolderConfig {
        folder: folder.path().to_owned(),
        overwrite: true,
        handovers: Handovers::default(),
        ..FolderConfig::default()
    };
    let accept: Accept = Box::new(move |offer| {
        let (into, stream) = (into.clone(), offer.stream);
        Decision::Accept(Box::new(move |_| {
            Folder::new(into, stream).map(|folder| Box::new(folder) as Box<dyn Sink>)
        }))
    });
    let config = EngineConfig::new("127.0.0.1:0".parse().unwrap());
    let receiver = Receiving::start_accepting(folder, config, accept).unwrap();
    let from = tempfile::tempdir().unwrap();
    let path = file(from.path(), "big", 9 << 20);
    let mut engine = sender(None);
    engine.config.retry = Span::ZERO;
    let view = send(&mut engine, Box::new(Files::new(&[path]).unwrap()), &[receiver.address]);
    assert_eq!(completed(&view), 1, "{view:?}");
    assert!(receiver.received());
    assert_eq!(receiver.read("big"), content(9 << 20));
}

/// Files whose end record is missing.
struct WithoutEnd(Files);

impl Source for WithoutEnd {
    fn stream(&self) -> u128 {
        self.0.stream()
    }

    fn available(&self) -> u64 {
        self.0.available() - crate::format::END_BYTES as u64
    }

    fn end(&self) -> Option<u64> {
        Some(self.available())
    }

    fn content(&self) -> u64 {
        self.0.content()
    }

    fn read(&mut self, offset: u64, len: usize, out: &mut Payload) -> Result<(), SourceError> {
        self.0.read(offset, len, out)
    }
}

#[test]
fn a_stream_without_its_end_is_damaged_at_both_ends() {
    let receiver = Receiving::start(None, None);
    let from = tempfile::tempdir().unwrap();
    let path = file(from.path(), "x", 3000);
    let source = Box::new(WithoutEnd(Files::new(&[path]).unwrap()));
    let view = send(&mut sender(None), source, &[receiver.address]);
    assert_eq!(lost(&view), ReceiverStatus::Lost(Reason::Damaged));
    loop {
        match receiver.events.recv_timeout(std::time::Duration::from_secs(60)).unwrap() {
            EngineEvent::ReceiveFailed { reason, .. } => break assert_eq!(reason, Reason::Damaged),
            EngineEvent::Received { .. } => panic!("it is not complete"),
            _ => {}
        }
    }
}

/// Answers to queries and probes count among the waiting packets, as all others do.
#[test]
fn answers_to_queries_and_probes_are_bounded() {
    let accept: Accept = Box::new(|_| Decision::Refuse(Reason::Busy));
    let mut config = EngineConfig::new("127.0.0.1:0".parse().unwrap());
    config.groups = vec!["blue".to_owned()];
    let mut engine = Engine::new(config, Some(accept)).unwrap();
    let from = SocketAddr::from(([127, 0, 0, 1], 9)).into();
    let query = GroupMessage { answer: false, nonce: 1, name: "blue" }.encode(None);
    let probe = probe::encode(probe::Probe::Unicast, 1, None);
    for _ in 0..10_000 {
        engine.handle_group(from, &query, true);
        engine.handle_probe(Time::ZERO, from, &probe);
    }
    assert_eq!(engine.driver.batch().len(), receive::MAX_REPLIES);
}

/// Blocks of 1 MiB are verified whole. A window of that length ended in the middle of a packet, which was never sent.
#[test]
fn the_smallest_window_holds_the_block_that_is_verified() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = file(from.path(), "x", 5_000_001);
    let config = EngineConfig {
        secret: Some(SECRET.to_vec()),
        room: 1 << 20,
        ..EngineConfig::new(free_address())
    };
    let receiver = Receiving::start_with(to, None, config).unwrap();
    let source = Box::new(Files::new(&[path]).unwrap());
    let view = send(&mut sender(Some(SECRET)), source, &[receiver.address]);
    assert_eq!(completed(&view), 1, "{view:?}");
    assert!(receiver.received() && receiver.read("x") == content(5_000_001));
}
