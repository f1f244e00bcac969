//! Receivers and senders that are killed, and started again, while they take part in a cast.

use std::time::Duration;

use rackweave_orca::flow::ReceiverStatus;
use rackweave_wire::orca::Reason;

use super::*;

/// Opens a transfer of a file to these receivers at a rate at which it takes a second or more.
fn open_slowly(engine: &mut Engine, path: &Path, to: &[SocketAddr]) -> Session {
    let flow = FlowConfig {
        max_rate: Some(Rate(400_000_000)),
        patience: Span::from_secs(1),
        ..engine.config.flow
    };
    let hosts: Vec<HostId> = to.iter().map(|to| engine.add_peer(*to)).collect();
    let source = Box::new(Files::new(&[path.to_owned()]).unwrap());
    engine.open(source, &hosts, Spread::Unicast, flow).unwrap()
}

fn stored(folder: &Path) -> u64 {
    folder.join("big.part").metadata().map_or(0, |meta| meta.len())
}

pub(super) fn until(mut holds: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if holds() {
            return;
        }
        pause(1);
    }
    panic!("this takes for ever");
}

#[expect(clippy::disallowed_methods, reason = "threads are waited for")]
pub(super) fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Without a key, and with one.
pub(super) const SECRETS: [Option<&[u8]>; 2] = [None, Some(SECRET)];

#[test]
fn a_receiver_that_is_started_again_goes_on_beside_others() {
    SECRETS.into_iter().for_each(one_goes_on_beside_others);
}

fn one_goes_on_beside_others(secret: Option<&[u8]>) {
    let receivers = [Receiving::start(secret, None), Receiving::start(secret, None)];
    let to = receivers.each_ref().map(|it| it.address);
    let from = tempfile::tempdir().unwrap();
    let path = file(from.path(), "big", 50_000_000);
    let mut engine = sender(secret);
    engine.config.retry = TIMEOUT;
    open_slowly(&mut engine, &path, &to);
    let thread = std::thread::spawn(move || drive(&mut engine, None));
    let [first, second] = receivers;
    until(|| stored(second.folder.path()) >= 5_000_000);
    let (folder, _) = second.crash();
    // The other receiver gets on by more than a window.
    until(|| stored(first.folder.path()) >= 25_000_000);
    let again = Receiving::start_in(folder, secret, None, to[1]);
    let view = thread.join().unwrap();
    assert_eq!(completed(&view), 2, "{view:?}");
    assert!(first.received() && again.received());
    assert_eq!(first.read("big"), content(50_000_000));
    assert_eq!(again.read("big"), content(50_000_000));
}

#[test]
fn every_receiver_has_its_outcome_after_a_session_was_renewed() {
    SECRETS.into_iter().for_each(each_has_its_outcome_after_a_renewal);
}

fn each_has_its_outcome_after_a_renewal(secret: Option<&[u8]>) {
    let receivers = [
        Receiving::start(secret, Some(1 << 20)),
        Receiving::start(secret, None),
        Receiving::start(secret, None),
    ];
    let to = receivers.each_ref().map(|it| it.address);
    let from = tempfile::tempdir().unwrap();
    let path = file(from.path(), "big", 20_000_000);
    let mut engine = sender(secret);
    engine.config.retry = TIMEOUT;
    open_slowly(&mut engine, &path, &to);
    let (send, seen) = channel();
    let thread = std::thread::spawn(move || drive(&mut engine, Some(&send)));
    let [full, good, killed] = receivers;
    until(|| stored(killed.folder.path()) >= 5_000_000);
    let (folder, _) = killed.crash();
    assert!(!full.received() && good.received());
    let is_renewal = |event: &EngineEvent| matches!(event, EngineEvent::Renewed { .. });
    until(|| seen.try_iter().any(|event| is_renewal(&event)));
    let again = Receiving::start_in(folder, secret, None, to[2]);
    let view = thread.join().unwrap();
    let states: Vec<_> = view.receivers.iter().map(|it| (it.address, it.status)).collect();
    let refused = ReceiverStatus::Lost(Reason::Full);
    let expected = [refused, ReceiverStatus::Completed, ReceiverStatus::Completed];
    assert_eq!(states, to.into_iter().zip(expected).collect::<Vec<_>>());
    assert_eq!(again.read("big"), content(20_000_000));
}

/// A receiver is killed, and does not return in the session that follows for it.
#[test]
fn what_a_receiver_had_before_a_renewal_is_still_reported() {
    let receivers = [Receiving::start(None, None), Receiving::start(None, None)];
    let to = receivers.each_ref().map(|it| it.address);
    let from = tempfile::tempdir().unwrap();
    let path = file(from.path(), "big", 20_000_000);
    let mut engine = sender(None);
    engine.config.retry = Span::from_secs(2);
    open_slowly(&mut engine, &path, &to);
    let (send, seen) = channel();
    let thread = std::thread::spawn(move || drive(&mut engine, Some(&send)));
    let [good, killed] = receivers;
    until(|| stored(killed.folder.path()) >= 5_000_000);
    let _ = killed.crash();
    let view = thread.join().unwrap();
    assert!(good.received());
    assert!(seen.try_iter().any(|event| matches!(event, EngineEvent::Renewed { .. })));
    let lost = view.receivers[1];
    assert_eq!(lost.status, ReceiverStatus::Lost(Reason::Silent));
    assert!(lost.have >= 4_000_000, "{lost:?}");
}

/// A receiver that takes one stream at a time, as `receive --once` does.
pub(super) fn one_place(secret: Option<&[u8]>) -> Receiving {
    let mut config = EngineConfig::new("127.0.0.1:0".parse().unwrap());
    (config.max_sessions, config.secret) = (1, secret.map(<[u8]>::to_vec));
    Receiving::start_with(tempfile::tempdir().unwrap(), None, config).unwrap()
}

#[test]
fn a_receiver_with_one_place_takes_a_sender_that_is_started_again() {
    for secret in SECRETS {
        let receiver = one_place(secret);
        let from = tempfile::tempdir().unwrap();
        let path = file(from.path(), "big", 30_000_000);
        {
            let mut engine = sender(secret);
            open_slowly(&mut engine, &path, &[receiver.address]);
            while stored(receiver.folder.path()) < 5_000_000 {
                let until = engine.turn().unwrap();
                engine.wait(until).unwrap();
            }
        }
        let mut engine = sender(secret);
        let view = send(&mut engine, Box::new(Files::new(&[path]).unwrap()), &[receiver.address]);
        assert_eq!(completed(&view), 1, "{view:?}");
        assert!(receiver.received(), "the first sender's session is not reported as a failure");
        assert_eq!(receiver.read("big"), content(30_000_000));
    }
}

#[test]
fn an_invitation_whose_sender_is_gone_keeps_no_other_sender_out() {
    for secret in SECRETS {
        let receiver = one_place(secret);
        let from = tempfile::tempdir().unwrap();
        let (old, new) = (file(from.path(), "old", 3000), file(from.path(), "new", 3000));
        {
            let mut engine = sender(secret);
            let host = engine.add_peer(receiver.address);
            let flow = engine.config.flow;
            let source = Box::new(Files::new(&[old]).unwrap());
            let session = engine.open(source, &[host], Spread::Unicast, flow).unwrap();
            // The turn in which its address is proved sends the invitation.
            while !engine.has_proved_itself(session, host) {
                let until = engine.turn().unwrap();
                engine.wait(until).unwrap();
            }
        }
        let mut engine = sender(secret);
        let view = send(&mut engine, Box::new(Files::new(&[new]).unwrap()), &[receiver.address]);
        assert_eq!(completed(&view), 1, "{view:?}");
        assert!(receiver.received());
        assert_eq!(receiver.read("new"), content(3000));
    }
}

/// A receiver whose sinks for a stream are created only once this is opened, as where what it has of that stream takes long to hash.
#[derive(Clone, Default)]
pub(super) struct Gate(Arc<AtomicBool>);

impl Gate {
    pub(super) fn open(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Starts a receiver with this many places; only the first stream has to wait.
    pub(super) fn receiver(&self, secret: Option<&[u8]>, places: u32) -> Receiving {
        let mut config = EngineConfig::new("127.0.0.1:0".parse().unwrap());
        (config.max_sessions, config.secret) = (places, secret.map(<[u8]>::to_vec));
        self.receiver_with(config)
    }

    pub(super) fn receiver_with(&self, config: EngineConfig) -> Receiving {
        let folder = tempfile::tempdir().unwrap();
        let into = FolderConfig { folder: folder.path().to_owned(), ..FolderConfig::default() };
        let (gate, mut first) = (self.clone(), None);
        let accept: Accept = Box::new(move |offer| {
            let (into, stream, gate) = (into.clone(), offer.stream, gate.clone());
            let waits = *first.get_or_insert(stream) == stream;
            Decision::Accept(Box::new(move |_| {
                until(|| !waits || gate.0.load(Ordering::Relaxed));
                Folder::new(into, stream).map(|folder| Box::new(folder) as Box<dyn Sink>)
            }))
        });
        Receiving::start_accepting(folder, config, accept).unwrap()
    }
}

/// Opens a session with this patience, and turns the engine until its receiver has answered that it is preparing.
pub(super) fn open_until_preparing(
    engine: &mut Engine,
    path: &Path,
    to: SocketAddr,
    patience: Span,
) -> Session {
    let host = engine.add_peer(to);
    let flow = FlowConfig { patience, ..engine.config.flow };
    let source = Box::new(Files::new(&[path.to_owned()]).unwrap());
    let session = engine.open(source, &[host], Spread::Unicast, flow).unwrap();
    until(|| {
        let _ = engine.turn().unwrap();
        status(engine, session) == ReceiverStatus::Preparing
    });
    session
}

pub(super) fn status(engine: &Engine, session: Session) -> ReceiverStatus {
    engine.view(session).unwrap().receivers[0].status
}

#[test]
fn a_receiver_that_takes_longer_than_patience_to_prepare_is_waited_for() {
    for secret in SECRETS {
        let gate = Gate::default();
        let receiver = gate.receiver(secret, 1);
        let from = tempfile::tempdir().unwrap();
        let path = file(from.path(), "x", 3000);
        let mut engine = sender(secret);
        let patience = Span::from_ms(500);
        let session = open_until_preparing(&mut engine, &path, receiver.address, patience);
        let began = engine.clock().now();
        let before = engine.stats();
        while engine.clock().now().since(began) < patience * 4 {
            let turned = engine.turn().unwrap();
            assert_eq!(status(&engine, session), ReceiverStatus::Preparing);
            engine.wait(turned).unwrap();
        }
        let after = engine.stats();
        let (asked, answered) = (after.sent - before.sent, after.received - before.received);
        assert!(answered <= asked + 1 && asked < 40, "{asked} {answered}");
        gate.open();
        assert_eq!(completed(&drive(&mut engine, None)), 1);
        assert!(receiver.received());
        assert_eq!(receiver.read("x"), content(3000));
    }
}

#[test]
fn a_sender_that_leaves_while_its_receiver_prepares_keeps_no_other_one_out() {
    for secret in SECRETS {
        let gate = Gate::default();
        // The thread of the first sink still waits, so that there must be memory for a second one.
        let receiver = gate.receiver(secret, 1);
        let from = tempfile::tempdir().unwrap();
        let (old, new) = (file(from.path(), "old", 3000), file(from.path(), "new", 3000));
        let patience = Span::from_secs(3);
        for _ in 0..3 {
            let mut engine = sender(secret);
            let session = open_until_preparing(&mut engine, &old, receiver.address, patience);
            engine.abort(session);
            let _ = engine.turn().unwrap();
        }
        let mut engine = sender(secret);
        let view = send(&mut engine, Box::new(Files::new(&[new]).unwrap()), &[receiver.address]);
        assert_eq!(completed(&view), 1, "{view:?}");
        assert!(receiver.received());
        assert_eq!(receiver.read("new"), content(3000));
        gate.open();
    }
}

/// Two senders send the same stream to a receiver at once: the first one has it, and the other one gets the reason Busy.
#[test]
fn two_senders_of_one_stream_do_not_replace_each_other() {
    for (secret, prepares) in SECRETS.into_iter().flat_map(|it| [(it, true), (it, false)]) {
        let gate = Gate::default();
        let receiver = gate.receiver(secret, 4);
        let from = tempfile::tempdir().unwrap();
        let path = file(from.path(), "big", 50_000_000);
        let mut first = sender(secret);
        if prepares {
            open_until_preparing(&mut first, &path, receiver.address, Span::from_secs(3));
        } else {
            gate.open();
            open_slowly(&mut first, &path, &[receiver.address]);
            while stored(receiver.folder.path()) < 2_000_000 {
                let turned = first.turn().unwrap();
                first.wait(turned).unwrap();
            }
        }
        let first = std::thread::spawn(move || drive(&mut first, None));
        let source = Box::new(Files::new(&[path]).unwrap());
        let view = send(&mut sender(secret), source, &[receiver.address]);
        assert_eq!(view.receivers[0].status, ReceiverStatus::Lost(Reason::Busy));
        gate.open();
        assert_eq!(completed(&first.join().unwrap()), 1);
        assert!(receiver.received());
        assert_eq!(receiver.read("big"), content(50_000_000));
    }
}

impl Engine {
    /// Returns whether the sender of a session can prove its address to a host: with a cookie, or in a session of the two.
    fn has_proved_itself(&self, session: Session, host: HostId) -> bool {
        match &self.secure {
            Some(_) => self.peers.get(host).is_some_and(|peer| peer.association.is_ready()),
            None => self.sending[&session].hosts[&host].cookie.is_some(),
        }
    }
}

/// The sink of a receiver that has all but the end of a stream already.
struct AtEnd(u64);

impl Sink for AtEnd {
    fn begins_at(&self) -> u64 {
        self.0
    }

    fn put(&mut self, _: &[u8]) -> Result<(), crate::sink::SinkError> {
        Ok(())
    }

    fn is_complete(&self) -> bool {
        false
    }
}

/// To send the end of a stream, a sender hashes what no receiver needs: here a tebibyte, which takes minutes.
#[test]
fn a_sender_that_hashes_can_be_ended() {
    let from = tempfile::tempdir().unwrap();
    let path = from.path().join("big");
    std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    let source = Files::new(&[path]).unwrap();
    let end = source.end().unwrap();
    let accept: Accept = Box::new(move |_| {
        Decision::Accept(Box::new(move |_| Ok(Box::new(AtEnd(end - 60)) as Box<dyn Sink>)))
    });
    let config = EngineConfig::new("127.0.0.1:0".parse().unwrap());
    let to = Receiving::start_accepting(tempfile::tempdir().unwrap(), config, accept).unwrap();
    let mut engine = sender(None);
    let host = engine.add_peer(to.address);
    let flow = engine.config.flow;
    let session = engine.open(Box::new(source), &[host], Spread::Unicast, flow).unwrap();
    until(|| {
        let _ = engine.turn().unwrap();
        engine.has_work()
    });
    for _ in 0..10 {
        let began = engine.clock().now();
        let _ = engine.turn().unwrap();
        let took = engine.clock().now().since(began);
        assert!(took < Span::from_secs(30) && engine.has_work(), "{took}");
    }
    engine.abort(session);
    let began = engine.clock().now();
    drive(&mut engine, None);
    let took = engine.clock().now().since(began);
    assert!(took < Span::from_secs(30), "{took}");
    drop(to.crash());
}
