//! A simulated process: `cast receive` or `cast send` at one host, without sockets. It makes the decisions that `cast::orca::Engine` makes.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;

use rackweave_cast::sink::{Folder, FolderConfig, Sink as _, SinkError};
use rackweave_cast::store::Dir;
use rackweave_core::{HostId, Node as _, Packet, RangeSet, Span, Time};
use rackweave_group::orca::flow::{FlowConfig, Placement, ReceiverEvent, SenderEvent};
use rackweave_group::orca::host::{self, Event, HostConfig, Spread, Tor};
use rackweave_group::orca::label::Layout;
use rackweave_wire::orca::{Header, Reason, Session};

use super::disk::Disk;
use super::draw::Scenario;
use super::secure::{Carried, Refused, Secure};

/// The bytes of a receive window.
const ROOM: u64 = 16 << 20;

/// As in `cast::orca::Engine`: after how long a receiver that fell silent is invited again, and for how long.
const REINVITE_AFTER: Span = Span::from_ms(250);
const RETRY: Span = Span::from_secs(10);

/// The stream that is sent.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) number: u128,
    pub(super) bytes: Vec<u8>,
}

/// What a process reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// A receiver has the whole stream.
    Received,
    /// `send` has ended; `true` if every receiver has everything, which is exit code 0.
    Exit(bool),
    /// Anything else, for the trace.
    Note(String),
}

/// A session that a process receives.
#[derive(Debug)]
struct Incoming {
    sink: Folder,
    stored: RangeSet<u64>,
    consumed: u64,
    readable: u64,
    is_complete: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Receiver {
    completed: bool,
    joined: bool,
    lost: Option<Time>,
    retry: Option<Time>,
}

/// A run of `cast send`.
#[derive(Debug)]
struct Sending {
    session: Session,
    receivers: BTreeMap<HostId, Receiver>,
}

#[derive(Debug)]
pub(super) struct Process {
    node: host::Host,
    pub(super) disk: Disk,
    pub(super) is_up: bool,
    incoming: BTreeMap<Session, Incoming>,
    sending: Option<Sending>,
    sessions: u32,
    config: FolderConfig,
    spread: Spread,
    flow: FlowConfig,
    stream: Arc<Stream>,
    pub(super) reports: VecDeque<Report>,
    secure: Option<Box<Secure>>,
}

impl Process {
    pub(super) fn new(number: u32, disk: Disk, stream: Arc<Stream>, scenario: &Scenario) -> Self {
        let flow = FlowConfig {
            fec_block: scenario.fec_block,
            window: scenario.window,
            ..FlowConfig::default()
        };
        let config = HostConfig {
            me: HostId(number),
            incarnation: 0,
            layout: Arc::new(Layout::flat(scenario.hosts.len() as u32)),
            ports: 1,
            controller: None,
            tor: Tor::None,
            heartbeat: None,
            flow: flow.sane(),
            max_sessions: 16,
            status_interval: Span::from_ms(1),
        };
        let Scenario { sync, overwrite, spread, seed, key, .. } = *scenario;
        let has_aes = scenario.hosts[number as usize].has_aes;
        let secure = key.then(|| Secure::new(HostId(number), seed, has_aes)).flatten();
        Self {
            node: host::Host::new(config),
            disk,
            is_up: true,
            incoming: BTreeMap::new(),
            sending: None,
            sessions: 0,
            config: FolderConfig { overwrite, sync, ..FolderConfig::default() },
            spread,
            flow: flow.sane(),
            stream,
            reports: VecDeque::new(),
            secure: secure.map(Box::new),
        }
    }

    fn note(&mut self, text: std::fmt::Arguments<'_>) {
        let mut line = String::new();
        // Writing to a string does not fail.
        let _ = line.write_fmt(text);
        self.reports.push_back(Report::Note(line));
    }

    /// Ends the process: its memory is gone.
    pub(super) fn kill(&mut self) {
        self.is_up = false;
        self.incoming.clear();
        self.sending = None;
        self.disk.release();
        self.node = self.node.restarted();
        if let Some(secure) = &mut self.secure {
            secure.restart();
        }
    }

    /// Datagrams that were refused.
    pub(super) fn refused(&self) -> Refused {
        self.secure.as_ref().map(|secure| secure.refused).unwrap_or_default()
    }

    pub(super) const fn is_sending(&self) -> bool {
        self.sending.is_some()
    }

    /// Starts `cast send` to these hosts.
    pub(super) fn send(&mut self, now: Time, to: &[HostId]) {
        let receivers = to.iter().map(|host| (*host, Receiver::default())).collect();
        self.open(now, receivers);
        self.work(now);
    }

    fn open(&mut self, now: Time, receivers: BTreeMap<HostId, Receiver>) {
        let to: Vec<HostId> =
            receivers.iter().filter(|(_, it)| !it.completed).map(|(host, _)| *host).collect();
        self.sessions += 1;
        // Numbers of sessions do not repeat after a restart.
        let session = Session(self.sessions.wrapping_mul(0x9e37_79b9));
        let opened = self.node.open(now, session, self.stream.number, &to, self.spread, self.flow);
        if let Err(error) = opened {
            self.note(format_args!("cannot open a session: {error}"));
            return self.reports.push_back(Report::Exit(false));
        }
        if let Some(secure) = &mut self.secure {
            secure.seal_session(session);
        }
        self.node.set_readable_from(session, 0);
        self.node.offer(now, session, self.stream.bytes.len() as u64);
        self.node.finish(now, session);
        self.sending = Some(Sending { session, receivers });
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let retry = self.sending.iter().flat_map(|it| it.receivers.values());
        let retry = retry.filter_map(|receiver| receiver.retry).min();
        let ask = self.secure.as_ref().and_then(|secure| secure.poll_timeout());
        [self.node.poll_timeout(), retry, ask].into_iter().flatten().min()
    }

    pub(super) fn handle_timeout(&mut self, now: Time) {
        if self.node.poll_timeout().is_some_and(|at| at <= now) {
            self.node.handle_timeout(now);
        }
        if let Some(secure) = &mut self.secure {
            secure.handle_timeout(now);
        }
        if let Some(sending) = &mut self.sending {
            for (host, receiver) in &mut sending.receivers {
                if receiver.retry.is_some_and(|at| at <= now) {
                    receiver.retry = None;
                    self.node.add(now, sending.session, *host);
                }
            }
        }
        self.work(now);
    }

    pub(super) fn poll_transmit(&mut self, now: Time) -> Option<Carried> {
        let Some(secure) = &mut self.secure else {
            return self.node.poll_transmit(now, 0).map(Carried::Plain);
        };
        loop {
            if let Some(carried) = secure.poll_transmit() {
                return Some(carried);
            }
            let packet = self.node.poll_transmit(now, 0)?;
            secure.protect(now, &packet, &self.stream);
        }
    }

    /// Handles what has arrived.
    pub(super) fn receive(&mut self, now: Time, carried: &Carried) {
        match (carried, &mut self.secure) {
            (Carried::Plain(packet), None) => self.handle_packet(now, packet),
            (Carried::Bytes { from, bytes, .. }, Some(secure)) => {
                if let Some(packet) = secure.open(now, *from, bytes, &self.stream) {
                    self.handle_packet(now, &packet);
                }
            }
            _ => {}
        }
    }

    fn handle_packet(&mut self, now: Time, packet: &Packet<Header>) {
        let handled = self.node.handle_packet(now, 0, packet);
        if let Some(Placement::Store { session, offset, len, .. }) = handled.store
            && let Some(incoming) = self.incoming.get_mut(&session)
        {
            incoming.stored.insert(offset..offset + u64::from(len));
        }
        self.work(now);
    }

    /// Handles the events of the node.
    pub(super) fn work(&mut self, now: Time) {
        while !self.disk.is_dead()
            && let Some(event) = self.node.poll_event()
        {
            match event {
                Event::Invited { session, stream, from, .. } => {
                    self.on_invitation(now, session, stream, from);
                }
                Event::Receiver(session, event) => self.on_receiver_event(now, session, event),
                Event::Sender(session, event) => self.on_sender_event(now, session, event),
            }
        }
        if let Some(secure) = &mut self.secure {
            secure.retain(|session| self.incoming.contains_key(&session));
        }
    }

    fn on_invitation(&mut self, now: Time, session: Session, stream: u128, from: HostId) {
        if let Some(secure) = &mut self.secure
            && !secure.accept(session, from)
        {
            return self.node.ignore(session);
        }
        for old in std::mem::take(&mut self.incoming).into_keys() {
            self.node.leave(now, old, Reason::Unknown);
        }
        let root = Dir::on(self.disk.root(), "/srv".into());
        match Folder::in_dir(root, self.config.clone(), stream) {
            Ok(sink) => {
                let at = sink.begins_at();
                self.note(format_args!("receives session {:08x} from byte {at}", session.0));
                let stored = RangeSet::default();
                let (consumed, readable) = (at, at);
                self.incoming.insert(
                    session,
                    Incoming { sink, stored, consumed, readable, is_complete: false },
                );
                self.node.join(now, session, at, ROOM);
            }
            Err(error) => {
                self.note(format_args!("refuses session {:08x}: {error}", session.0));
                let reason = if error.is_damage() { Reason::Damaged } else { Reason::Refused };
                self.node.refuse(now, session, reason);
            }
        }
    }

    fn on_receiver_event(&mut self, now: Time, session: Session, event: ReceiverEvent) {
        let Some(incoming) = self.incoming.get_mut(&session) else { return };
        match event {
            ReceiverEvent::Readable { upto } => {
                let from = incoming.readable.min(upto);
                assert!(
                    incoming.stored.contains_range(from..upto),
                    "{from}..{upto} is readable and not stored"
                );
                incoming.readable = incoming.readable.max(upto);
                self.feed(now, session, upto);
            }
            ReceiverEvent::Recover(recovery) => {
                incoming.stored.insert(recovery.block..recovery.end);
                self.node.recovered(now, session, recovery.block, true);
            }
            ReceiverEvent::Ended { length } => {
                self.feed(now, session, length);
                let Some(incoming) = self.incoming.get_mut(&session) else { return };
                if incoming.sink.is_complete() {
                    incoming.is_complete = true;
                    self.node.complete(now, session);
                    self.reports.push_back(Report::Received);
                } else {
                    self.node.leave(now, session, Reason::Damaged);
                    self.incoming.remove(&session);
                    self.note(format_args!("the stream has ended, and is not complete"));
                }
            }
            ReceiverEvent::Failed { reason } => {
                self.incoming.remove(&session);
                self.note(format_args!("session {:08x} has failed: {reason:?}", session.0));
            }
            ReceiverEvent::Closed => {
                self.incoming.remove(&session);
            }
            ReceiverEvent::Detached | ReceiverEvent::Rejoined => {}
        }
    }

    /// Passes the bytes below an offset to the sink.
    fn feed(&mut self, now: Time, session: Session, upto: u64) {
        let Some(incoming) = self.incoming.get_mut(&session) else { return };
        if upto > incoming.consumed {
            let bytes = &self.stream.bytes[incoming.consumed as usize..upto as usize];
            if let Err(error) = incoming.sink.put(bytes) {
                self.incoming.remove(&session);
                let reason = match &error {
                    SinkError::Again(_) => Reason::Unknown,
                    _ if error.is_damage() => Reason::Damaged,
                    _ => Reason::Refused,
                };
                self.node.leave(now, session, reason);
                return self.note(format_args!("session {:08x}: {error}", session.0));
            }
            incoming.consumed = upto;
        }
        if let Some(needs) = incoming.sink.needs_from()
            && needs > incoming.consumed
        {
            incoming.sink.omit_rest();
            (incoming.consumed, incoming.readable) = (needs, needs.max(incoming.readable));
            self.node.skip(now, session, needs);
        }
        self.node.consume(now, session, incoming.consumed);
    }

    fn on_sender_event(&mut self, now: Time, session: Session, event: SenderEvent) {
        let Some(sending) = self.sending.as_mut().filter(|it| it.session == session) else {
            return;
        };
        match event {
            SenderEvent::Joined { host, at } => {
                if let Some(receiver) = sending.receivers.get_mut(&host) {
                    *receiver = Receiver { joined: true, ..Receiver::default() };
                }
                self.note(format_args!("host {} has joined at byte {at}", host.0));
            }
            SenderEvent::Completed { host } => {
                if let Some(receiver) = sending.receivers.get_mut(&host) {
                    receiver.completed = true;
                }
                self.note(format_args!("host {} has completed", host.0));
            }
            SenderEvent::Lost { host, reason } => {
                if let Some(receiver) = sending.receivers.get_mut(&host) {
                    let lost = *receiver.lost.get_or_insert(now);
                    let may_return =
                        matches!(reason, Reason::Silent | Reason::Unknown | Reason::TooLate);
                    let back = receiver.joined && may_return && now.since(lost) < RETRY;
                    receiver.retry = back.then(|| now + REINVITE_AFTER);
                }
                self.note(format_args!("host {} is lost: {reason:?}", host.0));
            }
            SenderEvent::Finished | SenderEvent::Failed { .. } => {
                let Some(sending) = self.sending.take() else { return };
                let mut receivers = sending.receivers;
                if receivers.values().any(|receiver| receiver.retry.is_some()) {
                    let gone = receivers.values().filter(|it| !it.completed && it.retry.is_none());
                    if gone.count() > 0 {
                        self.reports.push_back(Report::Note("goes on without a host".into()));
                    }
                    for receiver in receivers.values_mut() {
                        receiver.retry = None;
                    }
                    return self.open(now, receivers);
                }
                let all = receivers.values().all(|receiver| receiver.completed);
                self.reports.push_back(Report::Exit(all));
            }
            SenderEvent::Attached { .. } | SenderEvent::Detached { .. } => {}
        }
    }
}
