//! A host: sender and receiver of sessions, and agent of its rack.
//!
//! ```text
//!   open / offer / finish ──> Sending: flow::Sender ── pieces ──> copies (labelled, to relays, to hosts) ──> ports
//!                                      client of the controller │ tree of relays
//!   Handled, Event <── Receiving: flow::Receiver <── data ── handle ── pilot-labelled data ──> Agent ──> outbox ──> ports
//! ```
//!
//! With two ports, what goes to everyone leaves by both and answers come by either (Section III.C, Replicate and Merge). Where
//! the racks behind the ports are joined ([`Host::with_places`]), each port's pilot label names only the racks next to it (ours).
//!
//! # What the driver does
//! It is a [`Node`]'s driver, and holds the bytes: [`Handled::store`] says which bytes of a packet to keep, and
//! [`ReceiverEvent::Recover`] which are to be computed from parities. An agent's
//! relayed packets ([`Handled::relays`]) are polled in the order in which they were announced, as [`Data`] of a session that the
//! host does not send; the driver keeps the payload (with its check) until then. The outbox is bounded: a driver that
//! reads no more while [`Host::relay_room`] is 0 loses nothing.

mod client;
mod sending;
#[cfg(test)]
mod tests;
mod tree;
mod work;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use rackweave_core::{HostId, Node, Packet, Span, Time};
use rackweave_wire::orca::{
    self, Body, Control, Data, Header, Label, Labelled, PORT, Place, Reason, Session, TO_AGENT,
    TO_GROUP,
};

use super::agent::{ANY_RACK, Agent};
use super::flow::{
    self, FlowConfig, Placement, ReceiverEvent, ReceiverView, SenderEvent, SenderSummary,
};
use super::label::Layout;
use sending::Sending;
pub(super) use work::packet;

/// Packets that an agent holds for sending on.
pub const OUTBOX: usize = 1024;
/// Control packets that wait for a link; of more, the new ones are dropped (all are repeated).
const MOST_CONTROLS: usize = 8192;
/// Invitations that the application has not answered.
const MOST_INVITATIONS: usize = 1024;
/// Sessions whose end is remembered, so that late invitations are not new ones.
const REMEMBERED: usize = 256;
/// Pieces sent to one host in a row when each needs several copies.
const RUN: usize = 16;
/// A port that is so many packets behind the other stops the sender.
const BEHIND: usize = 64;
/// After so long without data by labels reports go to the sender itself: the agent may not know it.
const DIRECT_AFTER: Span = Span::from_ms(10);
/// Control packets overtake data where switches have priorities.
const PRIORITY: u8 = 7;
/// Most receivers whose reports need no agent.
const FEW: usize = 16;

/// Whether the rack's switch follows labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tor {
    /// It does.
    #[default]
    Switch,
    /// It doesn't: agents send copies themselves.
    None,
}

/// How what goes to everyone reaches everyone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// By labels, agents and label switches.
    Labels,
    /// From host to host, without label switches.
    Relay,
    /// By plain IP multicast.
    Multicast,
    /// A copy to each.
    Unicast,
}

/// What a host is told.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Its number.
    pub me: HostId,
    /// Where hosts are, the same for all.
    pub layout: Arc<Layout>,
    /// Its links: 1, or 2 that lead to different switches.
    pub ports: u8,
    /// Where the controller is, for labels.
    pub controller: Option<HostId>,
    /// Whether the rack's switch follows labels.
    pub tor: Tor,
    /// The host is an agent, and pings so often.
    pub heartbeat: Option<Span>,
    /// Settings of sessions that it receives.
    pub flow: FlowConfig,
    /// Most sessions that it receives, that it sends, and that it has labels of (each for itself).
    pub max_sessions: u32,
    /// An agent tells its rack's reports so often.
    pub status_interval: Span,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handled {
    /// What to do with its payload; `None`: nothing.
    pub store: Option<Placement>,
    /// So often its payload will be polled again.
    pub relays: u16,
}

/// What a host tells its application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Another host asks this one to join a session: answer with [`Host::join`] or [`Host::refuse`].
    Invited {
        /// The session.
        session: Session,
        /// Its sender.
        from: HostId,
        /// The identity of its content, which is the same again after a restart of the sender.
        stream: u128,
        /// Payload bytes of its full data packets.
        payload: u16,
    },
    /// An event of a session that this host sends.
    Sender(Session, SenderEvent),
    /// An event of a session that this host receives. [`ReceiverEvent::Recover`] is answered with [`Host::recovered`],
    /// [`ReceiverEvent::Ended`] with [`Host::complete`] or [`Host::leave`].
    Receiver(Session, ReceiverEvent),
}

/// Why a session can't be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The number is taken.
    #[error("session {:08x} exists already", .0.0)]
    Exists(Session),
    /// There are as many as the host was told.
    #[error("this host sends {0} sessions already, as many as it may")]
    TooMany(u32),
    /// Labels need a controller and label switches.
    #[error(
        "sending by labels needs a controller and label switches; without them, send by relays"
    )]
    NoLabels,
    /// Packets of nothing, or longer than an IP packet.
    #[error("a packet can't carry {0} bytes of payload")]
    Payload(u16),
}

/// What hosts count, beside their sessions' summaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounters {
    /// Packets that the agent has sent on.
    pub relayed: u64,
    /// Packets that it should have sent on, but the outbox was full.
    pub relays_dropped: u64,
    /// Control packets that were dropped because too many waited.
    pub controls_dropped: u64,
    /// Data of sessions that are not this host's, and control packets that nobody here expects.
    pub ignored: u64,
}

/// A session that this host receives.
#[derive(Debug)]
struct Receiving {
    flow: flow::Receiver,
    /// When data last came by a label: agents know the session then.
    data_at: Time,
}

#[derive(Clone, Copy, Debug)]
struct Invitation {
    from: HostId,
    stream: u128,
    place: Place,
    payload: u16,
    via_agent: bool,
}

/// A session of which something may be to do; senders before receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Send(Session),
    Receive(Session),
}

/// What waits for a link.
#[derive(Debug, Default)]
struct Link {
    controls: VecDeque<Packet<Header>>,
    data: VecDeque<Packet<Header>>,
}

/// A host. See the [module](self) for what its driver does.
#[derive(Debug)]
pub struct Host {
    config: HostConfig,
    place: Place,
    words: u8,
    agent: Agent,
    sending: BTreeMap<Session, Sending>,
    receiving: BTreeMap<Session, Receiving>,
    invitations: BTreeMap<Session, Invitation>,
    /// Sessions received to their end.
    ended: VecDeque<Session>,
    /// Sessions that may have something to send, in turn.
    ready: VecDeque<Key>,
    is_ready: BTreeSet<Key>,
    timers: BTreeSet<(Time, Key)>,
    armed: BTreeMap<Key, Time>,
    links: Vec<Link>,
    outbox: VecDeque<(u8, Packet<Header>)>,
    /// The host that each port is in the layout, if racks are to be split between them.
    places: Vec<HostId>,
    /// The pilot label that was split last, and what it is at each port.
    split: Option<(Session, Label, Vec<Label>)>,
    /// By which port a host was last heard, if there are several.
    heard_at: BTreeMap<HostId, u8>,
    events: VecDeque<Event>,
    /// What the controller last said of each rack's agents.
    served: BTreeMap<u16, u32>,
    counters: HostCounters,
}

impl Host {
    /// A host without sessions.
    #[must_use]
    pub fn new(config: HostConfig) -> Self {
        let place = config.layout.place(config.me);
        let pings = config.tor == Tor::Switch && config.controller.is_some();
        let heartbeat = config.heartbeat.filter(|_| pings);
        let agent = Agent::new(place, config.max_sessions, config.status_interval, heartbeat);
        let links = (0..config.ports.max(1)).map(|_| Link::default()).collect();
        Self {
            place,
            words: config.layout.words(),
            agent,
            sending: BTreeMap::new(),
            receiving: BTreeMap::new(),
            invitations: BTreeMap::new(),
            ended: VecDeque::new(),
            ready: VecDeque::new(),
            is_ready: BTreeSet::new(),
            timers: BTreeSet::new(),
            armed: BTreeMap::new(),
            links,
            outbox: VecDeque::new(),
            places: Vec::new(),
            split: None,
            heard_at: BTreeMap::new(),
            events: VecDeque::new(),
            served: BTreeMap::new(),
            counters: HostCounters::default(),
            config,
        }
    }

    /// With several ports that lead to racks which are joined: each port is this host of the layout, and a pilot label names
    /// at each port only the racks that no other port is nearer to, lest they get everything twice. Without it, what goes to
    /// everyone leaves by all ports alike.
    #[must_use]
    pub fn with_places(mut self, places: Vec<HostId>) -> Self {
        if places.len() == self.links.len() {
            self.places = places;
        }
        self
    }

    /// Its settings.
    #[must_use]
    pub const fn config(&self) -> &HostConfig {
        &self.config
    }

    /// Its agent.
    #[must_use]
    pub const fn agent(&self) -> &Agent {
        &self.agent
    }

    /// What it has counted.
    #[must_use]
    pub const fn counters(&self) -> HostCounters {
        self.counters
    }

    /// How many more packets the agent can hold for sending on. A driver that goes on reading at 0 makes it drop.
    #[must_use]
    pub fn relay_room(&self) -> usize {
        OUTBOX.saturating_sub(self.outbox.len())
    }

    // --- as a sender

    /// Opens a session and invites its receivers. `stream` names the content, the same again after a restart.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        &mut self,
        now: Time,
        session: Session,
        stream: u128,
        receivers: &[HostId],
        spread: Spread,
        flow: FlowConfig,
    ) -> Result<(), OpenError> {
        if self.sending.contains_key(&session) || self.receiving.contains_key(&session) {
            return Err(OpenError::Exists(session));
        }
        if self.sending.len() >= self.config.max_sessions as usize {
            return Err(OpenError::TooMany(self.config.max_sessions));
        }
        let no_labels = self.config.controller.is_none() || self.config.tor == Tor::None;
        if spread == Spread::Labels && no_labels {
            return Err(OpenError::NoLabels);
        }
        if flow.payload == 0 || flow.payload > 65_000 {
            return Err(OpenError::Payload(flow.payload));
        }
        // The agent of a rack knows a session's sender from data that came by it.
        let layout = &self.config.layout;
        let elsewhere = |host: &HostId| layout.place(*host).rack != self.place.rack;
        let via_agent = spread == Spread::Labels
            && receivers.len() > FEW
            && receivers.iter().any(elsewhere)
            && (layout.reaches_own_rack() || receivers.iter().all(elsewhere));
        let sender = flow::Sender::new(now, session, stream, via_agent, flow);
        let mut sending = Sending::new(now, sender, spread);
        for &host in receivers.iter().filter(|host| **host != self.config.me) {
            sending.flow.invite(now, host, layout.place(host));
        }
        self.sending.insert(session, sending);
        self.touch(now, Key::Send(session));
        Ok(())
    }

    /// The application has written all bytes below `upto`.
    pub fn offer(&mut self, now: Time, session: Session, upto: u64) {
        self.with_sending(now, session, |sending, _| sending.offer(now, upto));
    }

    /// The stream ends with what has been offered.
    pub fn finish(&mut self, now: Time, session: Session) {
        self.with_sending(now, session, |sending, _| sending.flow.finish(now));
    }

    /// Ends the session for all that have not completed.
    pub fn abort(&mut self, now: Time, session: Session, reason: Reason) {
        self.with_sending(now, session, |sending, _| sending.flow.abort(now, reason));
    }

    /// Invites one more host.
    pub fn add(&mut self, now: Time, session: Session, host: HostId) {
        self.with_sending(now, session, |sending, layout| {
            sending.flow.invite(now, host, layout.place(host));
        });
    }

    /// Puts a host out of the session.
    pub fn remove(&mut self, now: Time, session: Session, host: HostId) {
        self.with_sending(now, session, |sending, _| {
            sending.flow.remove(now, host, Reason::Left);
        });
    }

    /// The session's bytes below are needed by nobody; `u64::MAX` if there is no such session (any more).
    #[must_use]
    pub fn released(&self, session: Session) -> u64 {
        self.sending.get(&session).map_or(u64::MAX, |sending| sending.flow.released())
    }

    /// The receivers of a session that this host sends.
    pub fn receivers(&self, session: Session) -> impl Iterator<Item = ReceiverView> + '_ {
        self.sending.get(&session).into_iter().flat_map(|sending| sending.flow.receivers())
    }

    /// The counters of a session that this host sends.
    #[must_use]
    pub fn summary(&self, session: Session) -> Option<SenderSummary> {
        self.sending.get(&session).map(|sending| sending.flow.summary())
    }

    /// Copies of each packet that the sender's link carries at present.
    #[must_use]
    pub fn copies(&mut self, now: Time, session: Session) -> usize {
        let Self { sending, config, .. } = self;
        sending
            .get_mut(&session)
            .map_or(0, |sending| sending.copies(now, config.me, &config.layout, config.ports).len())
    }

    fn with_sending(
        &mut self,
        now: Time,
        session: Session,
        work: impl FnOnce(&mut Sending, &Layout),
    ) {
        if let Some(sending) = self.sending.get_mut(&session) {
            work(sending, &self.config.layout);
            self.touch(now, Key::Send(session));
        }
    }

    // --- as a receiver

    /// Takes part in a session to which this host is invited: from byte `at` on, with room for `room` bytes that are not
    /// consumed.
    pub fn join(&mut self, now: Time, session: Session, at: u64, room: u64) {
        let Some(invitation) = self.invitations.remove(&session) else { return };
        let Invitation { from, stream, place, payload, via_agent } = invitation;
        let config = FlowConfig { payload: payload.max(1), ..self.config.flow };
        let me = (place, via_agent);
        self.receive(now, session, stream, from, at, room, me, config);
    }

    /// Takes part in a session without being invited: late, or again.
    pub fn join_late(
        &mut self,
        now: Time,
        session: Session,
        sender: HostId,
        stream: u128,
        at: u64,
        room: u64,
    ) {
        self.invitations.remove(&session);
        let me = (self.place, false);
        self.receive(now, session, stream, sender, at, room, me, self.config.flow);
    }

    #[expect(clippy::too_many_arguments, reason = "all of them name what is joined")]
    fn receive(
        &mut self,
        now: Time,
        session: Session,
        stream: u128,
        sender: HostId,
        at: u64,
        room: u64,
        (place, via_agent): (Place, bool),
        config: FlowConfig,
    ) {
        if self.receiving.contains_key(&session) || self.sending.contains_key(&session) {
            return;
        }
        if self.receiving.len() >= self.config.max_sessions as usize {
            self.say(Some(sender), session, Body::Bye { reason: Reason::Busy });
            let event = ReceiverEvent::Failed { reason: Reason::Busy };
            self.events.push_back(Event::Receiver(session, event));
            return;
        }
        self.ended.retain(|ended| *ended != session);
        let flow =
            flow::Receiver::new(now, session, stream, sender, place, at, room, via_agent, config);
        self.receiving.insert(session, Receiving { flow, data_at: now });
        self.touch(now, Key::Receive(session));
    }

    /// Does not take part in a session to which this host is invited.
    pub fn refuse(&mut self, now: Time, session: Session, reason: Reason) {
        let _ = now;
        if let Some(invitation) = self.invitations.remove(&session) {
            self.say(Some(invitation.from), session, Body::Bye { reason });
        }
    }

    /// The application has taken all bytes below `upto`.
    pub fn consume(&mut self, now: Time, session: Session, upto: u64) {
        self.with_receiving(now, session, |flow| flow.consume(now, upto));
    }

    /// What [`ReceiverEvent::Recover`] asked for has been computed and stored; or that was not possible.
    pub fn recovered(&mut self, now: Time, session: Session, block: u64, stored: bool) {
        self.with_receiving(now, session, |flow| flow.recovered(now, block, stored));
    }

    /// The application has everything, and it is right.
    pub fn complete(&mut self, now: Time, session: Session) {
        self.with_receiving(now, session, |flow| flow.complete(now));
    }

    /// The application wants no more.
    pub fn leave(&mut self, now: Time, session: Session, reason: Reason) {
        self.with_receiving(now, session, |flow| flow.leave(now, reason));
    }

    fn with_receiving(
        &mut self,
        now: Time,
        session: Session,
        work: impl FnOnce(&mut flow::Receiver),
    ) {
        if let Some(receiving) = self.receiving.get_mut(&session) {
            work(&mut receiving.flow);
            self.touch(now, Key::Receive(session));
        }
    }

    /// Sessions that this host sends or receives.
    #[must_use]
    pub fn open_sessions(&self) -> usize {
        let sending = self.sending.values().filter(|sending| sending.over_at.is_none());
        sending.count() + self.receiving.len()
    }

    /// Whether no session is open and nothing waits to be relayed.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.open_sessions() == 0 && self.outbox.is_empty()
    }

    /// This host after a restart: the same settings, and no session.
    #[must_use]
    pub fn restarted(&self) -> Self {
        Self::new(self.config.clone()).with_places(self.places.clone())
    }
}

impl Node for Host {
    type Header = Header;
    type Event = Event;
    type Placement = Handled;

    fn handle_packet(&mut self, now: Time, port: u8, packet: &Packet<Header>) -> Handled {
        self.handle(now, port, packet)
    }

    fn handle_timeout(&mut self, now: Time) {
        self.poll_agent(now);
        while let Some((at, key)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.remove(&(at, key));
            self.armed.remove(&key);
            match key {
                Key::Send(session) => {
                    if let Some(sending) = self.sending.get_mut(&session) {
                        sending.handle_timeout(now);
                    }
                }
                Key::Receive(session) => {
                    if let Some(receiving) = self.receiving.get_mut(&session) {
                        receiving.flow.handle_timeout(now);
                    }
                }
            }
            self.touch(now, key);
        }
    }

    fn poll_transmit(&mut self, now: Time, port: u8) -> Option<Packet<Header>> {
        self.poll_port(now, port)
    }

    fn poll_timeout(&self) -> Option<Time> {
        let first = self.timers.first().map(|(at, _)| *at);
        [first, self.agent.poll_timeout()].into_iter().flatten().min()
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}
