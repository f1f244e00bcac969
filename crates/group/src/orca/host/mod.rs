//! A host: sender and receiver of sessions, and agent of its rack.
//!
//! ```text
//!   open / offer / finish ──> Sending: flow::Sender ── pieces ──> copies (labelled, to relays, to hosts) ──> ports
//!                                      client of the controller │ tree of relays
//!   Handled, Event <── Receiving: flow::Receiver <── data ── data with pilot labels ──> Agent ──> outbox ──> ports
//! ```
//!
//! A host with two ports sends data for the group by both and takes answers from either (evaluation, section IV.C: the Replicate
//! and Merger modules of the sender). Where the racks behind the ports are joined ([`Host::with_places`]), each port's pilot
//! label names only the racks next to it. That is ours: in the evaluation's testbed the racks are not joined.
//!
//! # What the driver does
//! It drives a [`Node`] and holds the bytes. [`Handled::store`] says which bytes of a packet to keep, and
//! [`ReceiverEvent::Recover`] which are to be computed from parities. The packets that an agent forwards ([`Handled::relays`])
//! are polled in the order in which they were announced, as [`Data`] of a session that the host does not send. The driver keeps
//! their payload, with its check, until then. The outbox is bounded: a driver that stops reading while [`Host::relay_room`] is 0
//! loses nothing.

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

/// Packets that an agent holds to forward them.
pub const OUTBOX: usize = 1024;
/// Control packets that wait for a link. Further ones are dropped, which is safe since all are repeated.
const MAX_CONTROLS: usize = 8192;
/// Invitations that wait for the application's answer.
const MAX_INVITATIONS: usize = 1024;
/// Sessions whose end is remembered, so that late invitations are not taken for new ones.
const MAX_ENDED: usize = 256;
/// Pieces sent to one host in a row when each needs several copies, so that UDP GSO can combine them.
const BURST: usize = 16;
/// The sender stops while a port has this many data packets waiting.
const MAX_PORT_LAG: usize = 64;
/// Without labelled data for this long, reports go to the sender itself, since the agent may not know the sender.
const AGENT_TIMEOUT: Span = Span::from_ms(10);
/// The priority of control packets, which overtake data where switches have priorities.
const CONTROL_PRIORITY: u8 = 7;
/// Up to this number of receivers reports go to the sender directly, since agents save too little.
const DIRECT_RECEIVERS: usize = 16;

/// Whether the rack's switch forwards by labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tor {
    /// The switch forwards by labels.
    #[default]
    Switch,
    /// The switch is a plain one, and agents send the copies themselves.
    None,
}

/// How data for the group reaches all receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// By labels, agents and label switches.
    Labels,
    /// From host to host in a tree of relays, without label switches.
    Relay,
    /// By IP multicast.
    Multicast,
    /// By a copy to each receiver.
    Unicast,
}

impl Spread {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Labels, Self::Relay, Self::Multicast, Self::Unicast];

    /// Its name in scenarios, options, requests and results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Labels => "labels",
            Self::Relay => "relay",
            Self::Multicast => "multicast",
            Self::Unicast => "unicast",
        }
    }

    /// The one with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|spread| spread.name() == name)
    }
}

/// Settings of a host.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The host's number.
    pub me: HostId,
    /// The places of all hosts, which must be the same everywhere.
    pub layout: Arc<Layout>,
    /// The number of its ports: 1, or 2 that lead to different switches.
    pub ports: u8,
    /// The controller's host, if there is one. Labels need it.
    pub controller: Option<HostId>,
    /// Whether the rack's switch forwards by labels.
    pub tor: Tor,
    /// The interval of the host's pings, if it is an agent.
    pub heartbeat: Option<Span>,
    /// The settings of sessions that it receives.
    pub flow: FlowConfig,
    /// Upper bound of the sessions that it receives, of those that it sends, and of those that its agent has labels of.
    pub max_sessions: u32,
    /// The interval at which an agent forwards its rack's reports.
    pub status_interval: Span,
}

/// What the driver has to do with a received packet's payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handled {
    /// Where to store it, if it is to be stored.
    pub store: Option<Placement>,
    /// How many packets with this payload the agent will forward.
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
    /// The host sends or receives a session with this number already.
    #[error("session {:08x} exists already", .0.0)]
    Exists(Session),
    /// The host sends as many sessions as its settings allow.
    #[error("this host sends {0} sessions already, as many as it may")]
    TooMany(u32),
    /// The session is to use labels, which need a controller and label switches.
    #[error(
        "sending by labels needs a controller and label switches; without them, send by relays"
    )]
    NoLabels,
    /// The payload size is zero, or longer than fits an IP packet.
    #[error("a packet can't carry {0} bytes of payload")]
    Payload(u16),
}

/// The counters of a host, beside those of its sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounters {
    /// Packets that the agent has forwarded.
    pub relayed: u64,
    /// Packets that the agent dropped because the outbox was full.
    pub relays_dropped: u64,
    /// Control packets that were dropped because too many waited.
    pub controls_dropped: u64,
    /// Data of sessions that this host does not receive, and unexpected control packets.
    pub ignored: u64,
}

/// A session that this host receives.
#[derive(Debug)]
struct Receiving {
    flow: flow::Receiver,
    /// When labelled data last arrived. Agents know the sender of such a session.
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

/// A session in the queue of those that may have something to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Send(Session),
    Receive(Session),
}

/// Packets that wait for the link of a port.
#[derive(Debug, Default)]
struct Link {
    controls: VecDeque<Packet<Header>>,
    data: VecDeque<Packet<Header>>,
}

/// A host of a group. See the [module](self) for what its driver does.
#[derive(Debug)]
pub struct Host {
    config: HostConfig,
    place: Place,
    words: u8,
    agent: Agent,
    sending: BTreeMap<Session, Sending>,
    receiving: BTreeMap<Session, Receiving>,
    invitations: BTreeMap<Session, Invitation>,
    /// Sessions that were received to their end.
    ended: VecDeque<Session>,
    /// Sessions that may have something to send, served round robin.
    ready: VecDeque<Key>,
    is_ready: BTreeSet<Key>,
    timers: BTreeSet<(Time, Key)>,
    armed: BTreeMap<Key, Time>,
    links: Vec<Link>,
    outbox: VecDeque<(u8, Packet<Header>)>,
    /// The host that each port is in the layout, if racks are to be divided among the ports.
    places: Vec<HostId>,
    /// The pilot label that was divided last, and the label for each port.
    split: Option<(Session, Label, Vec<Label>)>,
    /// The port at which each host's last control packet arrived, if there are several ports.
    last_port: BTreeMap<HostId, u8>,
    events: VecDeque<Event>,
    /// The epoch of the last [`Body::Served`] for each rack.
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
            last_port: BTreeMap::new(),
            events: VecDeque::new(),
            served: BTreeMap::new(),
            counters: HostCounters::default(),
            config,
        }
    }

    /// For several ports that lead to joined racks: `places` names each port as a host of the layout. At each port pilot labels
    /// then name only the racks to which no other port is nearer, so that none gets two copies. Without it, data for the group
    /// leaves by all ports alike.
    #[must_use]
    pub fn with_places(mut self, places: Vec<HostId>) -> Self {
        if places.len() == self.links.len() {
            self.places = places;
        }
        self
    }

    /// The host's settings.
    #[must_use]
    pub const fn config(&self) -> &HostConfig {
        &self.config
    }

    /// The agent of this host.
    #[must_use]
    pub const fn agent(&self) -> &Agent {
        &self.agent
    }

    /// The host's counters.
    #[must_use]
    pub const fn counters(&self) -> HostCounters {
        self.counters
    }

    /// How many more packets the agent can hold to forward them. At 0 it drops those that a driver goes on to read.
    #[must_use]
    pub fn relay_room(&self) -> usize {
        OUTBOX.saturating_sub(self.outbox.len())
    }

    // --- as a sender

    /// Opens a session and invites its receivers. `stream` identifies the content, and is the same again after a restart.
    ///
    /// # Errors
    /// [`OpenError`] if the session cannot be opened.
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
        // An agent learns the sender of a session from labelled data. Data that does not pass an agent, as in the sender's own
        // rack where pilot labels do not lead back to it, teaches it nothing.
        let layout = &self.config.layout;
        let elsewhere = |host: &HostId| layout.place(*host).rack != self.place.rack;
        let via_agent = spread == Spread::Labels
            && receivers.len() > DIRECT_RECEIVERS
            && receivers.iter().any(elsewhere)
            && (layout.reaches_own_rack() || receivers.iter().all(elsewhere));
        let sender = flow::Sender::new(now, session, stream, via_agent, flow);
        let mut sending = Sending::new(now, sender, spread);
        for &host in receivers.iter().filter(|host| **host != self.config.me) {
            sending.flow.invite(now, host, layout.place(host));
        }
        self.sending.insert(session, sending);
        self.mark_ready(now, Key::Send(session));
        Ok(())
    }

    /// The application has written all bytes below `upto`.
    pub fn offer(&mut self, now: Time, session: Session, upto: u64) {
        self.with_sending(now, session, |sending, _| sending.offer(now, upto));
    }

    /// The stream ends with the bytes that have been offered.
    pub fn finish(&mut self, now: Time, session: Session) {
        self.with_sending(now, session, |sending, _| sending.flow.finish(now));
    }

    /// Ends the session for all receivers that have not completed.
    pub fn abort(&mut self, now: Time, session: Session, reason: Reason) {
        self.with_sending(now, session, |sending, _| sending.flow.abort(now, reason));
    }

    /// Invites another host to a session.
    pub fn add(&mut self, now: Time, session: Session, host: HostId) {
        self.with_sending(now, session, |sending, layout| {
            sending.flow.invite(now, host, layout.place(host));
        });
    }

    /// Removes a host from a session.
    pub fn remove(&mut self, now: Time, session: Session, host: HostId) {
        self.with_sending(now, session, |sending, _| {
            sending.flow.remove(now, host, Reason::Left);
        });
    }

    /// No receiver needs the session's bytes below this offset. `u64::MAX` for an unknown session.
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

    /// How many copies of each packet the sender's link carries at present.
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
            self.mark_ready(now, Key::Send(session));
        }
    }

    // --- as a receiver

    /// Joins a session to which this host is invited, from byte `at` on and with a receive window of `room` bytes.
    pub fn join(&mut self, now: Time, session: Session, at: u64, room: u64) {
        let Some(invitation) = self.invitations.remove(&session) else { return };
        let Invitation { from, stream, place, payload, via_agent } = invitation;
        let config = FlowConfig { payload: payload.max(1), ..self.config.flow };
        let me = (place, via_agent);
        self.receive(now, session, stream, from, at, room, me, config);
    }

    /// Joins a session without an invitation: late, or again.
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

    #[expect(clippy::too_many_arguments, reason = "they identify the session and its settings")]
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
            self.send_control(Some(sender), session, Body::Bye { reason: Reason::Busy });
            let event = ReceiverEvent::Failed { reason: Reason::Busy };
            self.events.push_back(Event::Receiver(session, event));
            return;
        }
        self.ended.retain(|ended| *ended != session);
        let flow =
            flow::Receiver::new(now, session, stream, sender, place, at, room, via_agent, config);
        self.receiving.insert(session, Receiving { flow, data_at: now });
        self.mark_ready(now, Key::Receive(session));
    }

    /// Refuses the invitation to a session.
    pub fn refuse(&mut self, _now: Time, session: Session, reason: Reason) {
        if let Some(invitation) = self.invitations.remove(&session) {
            self.send_control(Some(invitation.from), session, Body::Bye { reason });
        }
    }

    /// The application has consumed all bytes below `upto`.
    pub fn consume(&mut self, now: Time, session: Session, upto: u64) {
        self.with_receiving(now, session, |flow| flow.consume(now, upto));
    }

    /// [`ReceiverEvent::Recover`] has been handled: the missing bytes are `stored`, or could not be computed.
    pub fn recovered(&mut self, now: Time, session: Session, block: u64, stored: bool) {
        self.with_receiving(now, session, |flow| flow.recovered(now, block, stored));
    }

    /// The application has the whole stream and has verified it.
    pub fn complete(&mut self, now: Time, session: Session) {
        self.with_receiving(now, session, |flow| flow.complete(now));
    }

    /// The application leaves the session.
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
            self.mark_ready(now, Key::Receive(session));
        }
    }

    /// The number of sessions that this host sends or receives.
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
        match &packet.header {
            Header::Data(data) => self.handle_data(now, port, packet.src, data),
            Header::Control(control) => {
                if control.from == packet.src {
                    self.handle_control(now, port, control);
                } else {
                    self.counters.ignored += 1;
                }
                Handled::default()
            }
        }
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
            self.mark_ready(now, key);
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
