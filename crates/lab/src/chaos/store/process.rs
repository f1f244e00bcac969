//! A simulated process: `cast receive` or `cast send` at one host, without sockets. It makes the decisions that `cast::orca::Engine` makes.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;

use rackweave_cast::orca::Verifier;
use rackweave_cast::sink::{Folder, FolderConfig, Sink as _};
use rackweave_cast::store::Dir;
use rackweave_core::{HostId, Node as _, Packet, RangeSet, Rng, Span, Time};
use rackweave_crypt::GroupSeal;
use rackweave_group::orca::flow::{FlowConfig, Placement, ReceiverEvent, SenderEvent};
use rackweave_group::orca::host::{self, Event, HostConfig, Spread, Tor};
use rackweave_group::orca::label::Layout;
use rackweave_wire::orca::{Body, Header, Reason, Session};

use super::disk::Disk;
use super::draw::Scenario;
use super::secure::{Carried, Opened, Refused, Secure};

/// The bytes of a receive window.
const ROOM: u64 = 16 << 20;

/// As in `cast::orca::Engine`: after how long a receiver that fell silent is invited again, and for how long.
const REINVITE_AFTER: Span = Span::from_ms(250);
const RETRY: Span = Span::from_secs(10);

/// As in `cast::orca`: how long received bytes may wait for the rest of their block.
const FLUSH_AFTER: Span = Span::from_ms(2);

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
    from: HostId,
    sink: Folder,
    stored: RangeSet<u64>,
    consumed: u64,
    readable: u64,
    is_complete: bool,
    /// With a key, what has arrived, and which of it is the sender's.
    verified: Option<Box<Verified>>,
}

/// An invitation that waits for its sink.
#[derive(Clone, Copy, Debug)]
struct Preparing {
    from: HostId,
    stream: u128,
    /// When the sink is ready.
    until: Time,
}

/// The bytes that have arrived in a session with a key.
#[derive(Debug)]
struct Verified {
    verifier: Verifier,
    bytes: Vec<u8>,
    ended: Option<u64>,
    /// When bytes have last become readable.
    progressed: Time,
    /// When there is something to do.
    next: Option<Time>,
}

impl Verified {
    fn put(&mut self, offset: u64, piece: &[u8]) {
        let from = offset as usize;
        if self.bytes.len() < from + piece.len() {
            self.bytes.resize(from + piece.len(), 0);
        }
        self.bytes[from..from + piece.len()].copy_from_slice(piece);
    }
}

impl Incoming {
    /// The offset below which bytes may be passed to the sink.
    fn passable(&self) -> u64 {
        let verified = self.verified.as_ref().map_or(u64::MAX, |it| it.verifier.verified());
        self.readable.min(verified)
    }
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
    /// Sessions whose invitations are not answered yet, because their sinks still read what this host has.
    preparing: BTreeMap<Session, Preparing>,
    /// How long a sink reads.
    prepares_for: Span,
    sending: Option<Sending>,
    sessions: u32,
    config: FolderConfig,
    spread: Spread,
    flow: FlowConfig,
    stream: Arc<Stream>,
    pub(super) reports: VecDeque<Report>,
    secure: Option<Box<Secure>>,
    rng: Rng,
    /// Receivers that have asked for a key of their own.
    pub(super) forged: u64,
}

impl Process {
    pub(super) fn new(number: u32, disk: Disk, stream: Arc<Stream>, scenario: &Scenario) -> Self {
        let flow = FlowConfig {
            fec_block: scenario.fec_block,
            window: scenario.window,
            ignore_end_mark: scenario.key,
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
            preparing: BTreeMap::new(),
            prepares_for: scenario.hosts[number as usize].preparing,
            sending: None,
            sessions: 0,
            config: FolderConfig { overwrite, sync, ..FolderConfig::default() },
            spread,
            flow: flow.sane(),
            stream,
            reports: VecDeque::new(),
            secure: secure.map(Box::new),
            rng: Rng::stream(seed, 0, u64::from(number), "nonces"),
            forged: 0,
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
        self.preparing.clear();
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

    /// Returns the session that this host sends with a key, and the protection of its data.
    pub(super) fn sealer(&self) -> Option<(Session, &GroupSeal)> {
        self.secure.as_ref()?.sealer()
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
        let verified = self.incoming.values().filter_map(|it| it.verified.as_ref()?.next).min();
        let ready = self.preparing.values().map(|it| it.until).min();
        [self.node.poll_timeout(), retry, ask, verified, ready].into_iter().flatten().min()
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
        let ready = self.preparing.iter().filter(|(_, it)| it.until <= now);
        for (session, it) in ready.map(|(session, it)| (*session, *it)).collect::<Vec<_>>() {
            self.preparing.remove(&session);
            self.start(now, session, it.stream, it.from);
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
                if let Some(opened) = secure.open(now, *from, bytes) {
                    self.handle_opened(now, opened);
                }
            }
            _ => {}
        }
    }

    fn handle_opened(&mut self, now: Time, opened: Opened) {
        match opened {
            Opened::Packet(packet, payload, relayed) => {
                if let Header::Control(control) = packet.header
                    && let Body::End { length } = control.body
                    && let Some(verified) = self.verified_of(control.session, control.from)
                {
                    verified.verifier.set_length(length);
                }
                let relays = self.handle_payload(now, &packet, &payload);
                if let (Some(secure), Some(relayed)) = (&mut self.secure, relayed) {
                    secure.relay(relayed, relays);
                }
            }
            Opened::Forward(from, data, relayed) => {
                let relays = self.node.forward_data(now, 0, from, &data);
                if let Some(secure) = &mut self.secure {
                    secure.relay(relayed, relays);
                }
            }
            Opened::Replay(data, bytes) => {
                if let Some(incoming) = self.incoming.get_mut(&data.session)
                    && data.parity.is_none()
                    && data.offset + u64::from(data.len) > incoming.readable
                    && let Some(verified) = &mut incoming.verified
                {
                    verified.verifier.on_replay(bytes);
                }
            }
            Opened::Hashes(from, hashes) => {
                if let Some(verified) = self.verified_of(hashes.session, from) {
                    verified.verifier.handle_hashes(now, &hashes);
                }
            }
            Opened::OwnKey(from, answer, opener) => {
                let Some(verified) = self.verified_of(answer.session, from) else { return };
                let Some(at) = verified.verifier.handle_own_key(&answer) else { return };
                if let Some(secure) = &mut self.secure {
                    secure.use_key(answer.session, opener);
                }
                if self.node.rejoin(now, answer.session, at)
                    && let Some(incoming) = self.incoming.get_mut(&answer.session)
                {
                    (incoming.readable, incoming.stored) = (at, RangeSet::default());
                    incoming.stored.insert(0..at);
                    incoming.verified.iter_mut().for_each(|verified| verified.ended = None);
                }
            }
            Opened::HashRequest(from, request) => {
                if self.sends(request.session, from)
                    && let Some(secure) = &mut self.secure
                {
                    secure.answer(from, &request, &self.stream);
                }
            }
            Opened::KeyRequest(from, request) => {
                if self.sends(request.session, from)
                    && let Some(secure) = &mut self.secure
                {
                    self.node.serve_by_unicast(request.session, from);
                    secure.give_key(from, &request);
                }
            }
        }
        self.work(now);
    }

    /// Whether this host sends a session to another one.
    fn sends(&self, session: Session, to: HostId) -> bool {
        let sending = self.sending.as_ref().filter(|it| it.session == session);
        sending.is_some_and(|it| it.receivers.contains_key(&to))
    }

    fn verified_of(&mut self, session: Session, from: HostId) -> Option<&mut Verified> {
        let incoming = self.incoming.get_mut(&session).filter(|it| it.from == from)?;
        incoming.verified.as_deref_mut()
    }

    fn handle_packet(&mut self, now: Time, packet: &Packet<Header>) {
        self.handle_payload(now, packet, &[]);
        self.work(now);
    }

    /// Returns in how many packets the node relays the payload.
    fn handle_payload(&mut self, now: Time, packet: &Packet<Header>, payload: &[u8]) -> u16 {
        let handled = self.node.handle_packet(now, 0, packet);
        if let Some(Placement::Store { session, offset, skip, len }) = handled.store
            && let Some(incoming) = self.incoming.get_mut(&session)
        {
            incoming.stored.insert(offset..offset + u64::from(len));
            if let Some(verified) = &mut incoming.verified
                && let Some(piece) =
                    payload.get(usize::from(skip)..).and_then(|it| it.get(..usize::from(len)))
            {
                verified.put(offset, piece);
            }
        }
        handled.relays
    }

    /// Handles the events of the node, and verifies what has arrived.
    pub(super) fn work(&mut self, now: Time) {
        self.handle_events(now);
        if self.secure.is_some() && !self.disk.is_dead() {
            let sessions: Vec<Session> = self.incoming.keys().copied().collect();
            for session in sessions {
                self.verify(now, session);
            }
            self.handle_events(now);
        }
        if let Some(secure) = &mut self.secure {
            let (incoming, preparing) = (&self.incoming, &self.preparing);
            secure.retain(|it| incoming.contains_key(&it) || preparing.contains_key(&it));
            let sending = self.sending.as_ref().map(|it| it.session);
            secure.retain_sent(|session| sending == Some(session));
        }
    }

    fn handle_events(&mut self, now: Time) {
        while !self.disk.is_dead()
            && let Some(event) = self.node.poll_event()
        {
            match event {
                Event::Invited { session, stream, from, .. } => {
                    self.on_invitation(now, session, stream, from);
                }
                Event::Withdrawn { session } => {
                    if self.preparing.remove(&session).is_some() {
                        self.note(format_args!("session {:08x} is withdrawn", session.0));
                    }
                }
                Event::Receiver(session, event) => self.on_receiver_event(now, session, event),
                Event::Sender(session, event) => self.on_sender_event(now, session, event),
            }
        }
    }

    /// As the engine, with a key: verifies, requests, passes on, and ends.
    fn verify(&mut self, now: Time, session: Session) {
        let Some(incoming) = self.incoming.get_mut(&session) else { return };
        if incoming.is_complete {
            return;
        }
        let (from, readable) = (incoming.from, incoming.readable);
        let Some(verified) = incoming.verified.as_deref_mut() else { return };
        let Verified { verifier, bytes, ended, progressed, next } = verified;
        let due = *progressed + FLUSH_AFTER;
        let flush = ended.is_some() || now >= due;
        let mut checked = verifier.check(now, session, readable, flush, |range| {
            let bytes = bytes.get(range.start as usize..range.end as usize)?;
            Some(*blake3::hash(bytes).as_bytes())
        });
        assert!(!checked.failed, "bytes under a key of its own are not the sender's");
        if let (Some(length), None) = (checked.ends_at, *ended)
            && !self.node.end(now, session, length)
        {
            verifier.suspect(now, &mut checked);
        }
        *next = checked.next;
        if !flush && verifier.verified() < readable {
            *next = Some(next.map_or(due, |at| at.min(due)));
        }
        self.forged += u64::from(checked.forged);
        if let Some(secure) = &mut self.secure {
            secure.send_requests(from, &checked);
        }
        if checked.forged {
            self.note(format_args!(
                "session {:08x} has bytes that are not the sender's",
                session.0
            ));
        }
        let upto = self.incoming.get(&session).map_or(0, Incoming::passable);
        self.feed(now, session, upto);
        let Some(incoming) = self.incoming.get(&session) else { return };
        let ended = incoming.verified.as_ref().and_then(|it| it.ended);
        if ended.is_some_and(|length| incoming.consumed >= length) {
            self.end(now, session);
        }
    }

    /// All bytes of the stream were passed to the sink.
    fn end(&mut self, now: Time, session: Session) {
        let Some(incoming) = self.incoming.get_mut(&session) else { return };
        if incoming.sink.is_complete() {
            incoming.is_complete = true;
            if let Some(verified) = &mut incoming.verified {
                verified.next = None;
            }
            self.node.complete(now, session);
            self.reports.push_back(Report::Received);
        } else {
            self.node.leave(now, session, Reason::Damaged);
            self.incoming.remove(&session);
            self.note(format_args!("the stream has ended, and is not complete"));
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
        for old in std::mem::take(&mut self.preparing).into_keys() {
            self.node.ignore(old);
        }
        if self.prepares_for > Span::ZERO {
            self.note(format_args!("reads what it has, for session {:08x}", session.0));
            let until = now + self.prepares_for;
            self.preparing.insert(session, Preparing { from, stream, until });
            return;
        }
        self.start(now, session, stream, from);
    }

    /// Starts the sink of a session, and joins the session.
    fn start(&mut self, now: Time, session: Session, stream: u128, from: HostId) {
        let root = Dir::on(self.disk.root(), "/srv".into());
        match Folder::in_dir(root, self.config.clone(), stream) {
            Ok(sink) => {
                let at = sink.begins_at();
                self.note(format_args!("receives session {:08x} from byte {at}", session.0));
                let stored = RangeSet::default();
                let (consumed, readable, is_complete) = (at, at, false);
                let mut verifier = Verifier::new(now, self.rng.next_u64());
                verifier.skip(at);
                let verified = self.secure.is_some().then(|| {
                    let (ended, progressed, next) = (None, now, None);
                    Box::new(Verified { verifier, bytes: Vec::new(), ended, progressed, next })
                });
                self.incoming.insert(
                    session,
                    Incoming { from, sink, stored, consumed, readable, is_complete, verified },
                );
                if !self.node.join(now, session, at, ROOM) {
                    self.incoming.remove(&session);
                }
            }
            Err(error) => {
                self.note(format_args!("refuses session {:08x}: {error}", session.0));
                self.node.refuse(now, session, error.reason());
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
                match &mut incoming.verified {
                    Some(verified) => verified.progressed = now,
                    None => self.feed(now, session, upto),
                }
            }
            ReceiverEvent::Recover(recovery) => {
                // What a parity repairs: the bytes that are missing.
                if let Some(verified) = &mut incoming.verified {
                    for gap in incoming.stored.gaps(recovery.block..recovery.end) {
                        let bytes = &self.stream.bytes[gap.start as usize..gap.end as usize];
                        verified.put(gap.start, bytes);
                    }
                }
                incoming.stored.insert(recovery.block..recovery.end);
                self.node.recovered(now, session, recovery.block, true);
            }
            ReceiverEvent::Ended { length } => {
                if let Some(verified) = &mut incoming.verified {
                    (incoming.readable, verified.ended) = (length, Some(length));
                    return;
                }
                self.feed(now, session, length);
                self.end(now, session);
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
            let range = incoming.consumed as usize..upto as usize;
            let bytes = &self.stream.bytes[range.clone()];
            if let Some(verified) = &incoming.verified {
                let arrived = verified.bytes.get(range);
                assert!(arrived == Some(bytes), "bytes are passed on that the sender has not sent");
            }
            if let Err(error) = incoming.sink.put(bytes) {
                self.incoming.remove(&session);
                self.node.leave(now, session, error.reason());
                return self.note(format_args!("session {:08x}: {error}", session.0));
            }
            incoming.consumed = upto;
        }
        if let Some(needs) = incoming.sink.needs_from()
            && needs > incoming.consumed
        {
            incoming.sink.omit_rest();
            (incoming.consumed, incoming.readable) = (needs, needs.max(incoming.readable));
            if let Some(verified) = &mut incoming.verified {
                verified.verifier.skip(needs);
            }
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
            // As in the engine: the time that a receiver may take to return does not run meanwhile.
            SenderEvent::Preparing { host } => {
                let receiver = sending.receivers.get_mut(&host);
                if let Some(lost) = receiver.and_then(|it| it.lost.as_mut()) {
                    *lost = now;
                }
                self.note(format_args!("host {} prepares", host.0));
            }
            SenderEvent::Attached { .. } | SenderEvent::Detached { .. } => {}
        }
    }
}
