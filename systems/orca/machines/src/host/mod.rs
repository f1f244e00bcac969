//! A host: sender and receiver of sessions, and agent of its rack.
//!
//! ```text
//!   open / offer / finish ──> Sending: flow::Sender ── pieces ──> copies (labelled, to relays, to hosts) ──> ports
//!                                      client of the controller │ tree of relays
//!   Handled, Event <── Receiving: flow::Receiver <── data ── data with pilot labels ──> Agent ──> outbox ──> ports
//! ```
//!
//! A host with two ports sends data for the group through both and takes answers from either (evaluation, section IV.C:
//! the Replicate and Merger modules of the sender). Where the racks behind the ports are connected
//! ([`Host::with_places`]), each port's pilot label names only the racks next to it. This is our extension: in the
//! evaluation's testbed the racks are not connected.
//!
//! # What the driver does
//! It drives a [`Node`] and holds the bytes. [`Handled::store`] says which bytes of a packet to store, and
//! [`ReceiverEvent::Recover`] which bytes to compute from parities. The packets that an agent forwards
//! ([`Handled::relays`]) are polled in the order in which they were announced, as [`Data`] of a session that the host
//! does not send. The driver keeps their payload, with its checksum, until then. The outbox is bounded: a driver that
//! stops reading while [`Host::relay_room`] is 0 loses nothing.

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

/// The number of packets that an agent can hold to forward them.
pub const OUTBOX: usize = 1024;
/// The number of control packets that can wait for a link. Further ones are dropped, which is safe because all are
/// repeated.
const MAX_CONTROLS: usize = 8192;
/// The number of invitations that can wait for the application's answer.
const MAX_INVITATIONS: usize = 1024;
/// The number of ended sessions that are remembered, so that late invitations are not taken for new ones.
const MAX_ENDED: usize = 256;
/// The number of pieces sent to one host in a row when each needs several copies, so that UDP GSO can combine them.
const BURST: usize = 16;
/// The sender pauses while a port has this many data packets waiting.
const MAX_PORT_LAG: usize = 64;
/// The time without labelled data after which reports go to the sender directly, since the agent may not know the
/// sender.
const AGENT_TIMEOUT: Span = Span::from_ms(10);
/// The priority of control packets, which overtake data where switches have priorities.
const CONTROL_PRIORITY: u8 = 7;
/// Up to this number of receivers, reports go to the sender directly, because agents would save too little.
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
    /// Labels, agents and label switches replicate the data.
    Labels,
    /// Hosts relay the data in a tree, without label switches.
    Relay,
    /// IP multicast replicates the data.
    Multicast,
    /// The sender sends a copy to each receiver.
    Unicast,
}

impl Spread {
    /// All variants, in the order of their declaration.
    pub const ALL: [Self; 4] = [Self::Labels, Self::Relay, Self::Multicast, Self::Unicast];

    /// Returns the name used in scenarios, options, requests and results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Labels => "labels",
            Self::Relay => "relay",
            Self::Multicast => "multicast",
            Self::Unicast => "unicast",
        }
    }

    /// Returns the variant with this name, or `None` if there is none.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|spread| spread.name() == name)
    }
}

/// Settings of a host.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The number of this host.
    pub me: HostId,
    /// The number of its first [`Body::Join`]; further ones count up. A host that starts again must not repeat numbers of its
    /// earlier starts, so it draws this one at random; [`Host::restarted`] goes on counting instead.
    pub incarnation: u32,
    /// The places of all hosts, which must be the same everywhere.
    pub layout: Arc<Layout>,
    /// The number of its ports: 1, or 2 that lead to different switches.
    pub ports: u8,
    /// The controller's host; `None` without a controller. Labels need one.
    pub controller: Option<HostId>,
    /// Whether the rack's switch forwards by labels.
    pub tor: Tor,
    /// The interval of the host's pings if it is an agent; `None` if it is not.
    pub heartbeat: Option<Span>,
    /// The settings of sessions that it receives.
    pub flow: FlowConfig,
    /// The largest number of sessions that it receives, of sessions that it sends, and of sessions whose labels its
    /// agent holds.
    pub max_sessions: u32,
    /// The interval at which an agent forwards its rack's reports.
    pub status_interval: Span,
}

/// How the driver must handle a received packet's payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handled {
    /// Where to store the payload; `None` if it is not stored.
    pub store: Option<Placement>,
    /// The number of packets with this payload that the agent will forward.
    pub relays: u16,
}

/// An event for a host's application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Another host invites this one to a session. The application answers with [`Host::join`] or [`Host::refuse`].
    Invited {
        /// The number of the session.
        session: Session,
        /// The host that sends the session.
        from: HostId,
        /// The identity of its content, which is unchanged after a restart of the sender.
        stream: u128,
        /// The payload of its full data packets, in bytes.
        payload: u16,
    },
    /// The host that had invited this one has withdrawn that before the application has answered.
    Withdrawn {
        /// The number of the session.
        session: Session,
    },
    /// An event of a session that this host sends.
    Sender(Session, SenderEvent),
    /// An event of a session that this host receives. [`ReceiverEvent::Recover`] is answered with [`Host::recovered`],
    /// [`ReceiverEvent::Ended`] with [`Host::complete`] or [`Host::leave`].
    Receiver(Session, ReceiverEvent),
}

/// Why a session cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The host sends or receives a session with this number already.
    #[error("session {:08x} exists already", .0.0)]
    Exists(Session),
    /// The host sends as many sessions as its settings allow.
    #[error("this host sends {0} sessions already, as many as it may")]
    TooMany(u32),
    /// The session would use labels, which need a controller and label switches.
    #[error(
        "sending by labels needs a controller and label switches; without them, send by relays"
    )]
    NoLabels,
    /// The payload size is zero, or longer than fits an IP packet.
    #[error("a packet can't carry {0} bytes of payload")]
    Payload(u16),
}

/// The counters of a host, in addition to those of its sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounters {
    /// The number of packets that the agent has forwarded.
    pub relayed: u64,
    /// The number of packets that the agent dropped because the outbox was full.
    pub relays_dropped: u64,
    /// The number of control packets that were dropped because too many waited.
    pub controls_dropped: u64,
    /// The number of data packets of sessions that this host does not receive, and of unexpected control packets.
    pub ignored: u64,
}

/// A session that this host receives.
#[derive(Debug)]
struct Receiving {
    flow: flow::Receiver,
    /// The time at which labelled data last arrived; the rack's agent knows the sender of such a session.
    data_at: Time,
    /// Whether the application has left it such that its sender invites this host again, to the same session if other receivers have
    /// kept it.
    returns: bool,
}

#[derive(Clone, Copy, Debug)]
struct Invitation {
    from: HostId,
    stream: u128,
    place: Place,
    payload: u16,
    via_agent: bool,
    /// The time at which it was last repeated.
    heard: Time,
}

/// The key of a session in the queue of sessions that may have something to send.
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
    /// Sessions that were received to their end, so that late invitations are not taken for new ones.
    ended: VecDeque<Session>,
    /// Sessions that may have something to send, served round robin.
    ready: VecDeque<Key>,
    is_ready: BTreeSet<Key>,
    timers: BTreeSet<(Time, Key)>,
    armed: BTreeMap<Key, Time>,
    links: Vec<Link>,
    outbox: VecDeque<(u8, Packet<Header>)>,
    /// For each port, the host of the layout at whose place it is, if racks are divided among the ports.
    places: Vec<HostId>,
    /// The last pilot label that was divided, and the resulting label for each port.
    split: Option<(Session, Label, Vec<Label>)>,
    /// For hosts with several ports, the port at which each peer's last control packet arrived.
    last_port: BTreeMap<HostId, u8>,
    events: VecDeque<Event>,
    /// The epoch of the last [`Body::Served`] of each rack.
    served: BTreeMap<u16, u32>,
    /// The number of the next session that it joins.
    incarnation: u32,
    counters: HostCounters,
}

impl Host {
    /// Returns a host without sessions.
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
            incarnation: config.incarnation,
            counters: HostCounters::default(),
            config,
        }
    }

    /// For several ports that lead to connected racks: `places` gives for each port a host of the layout with the same
    /// place. Pilot labels then name at each port only the racks to which no other port is nearer, so that no rack gets
    /// two copies. Without it, data for the group leaves through all ports unchanged.
    #[must_use]
    pub fn with_places(mut self, places: Vec<HostId>) -> Self {
        if places.len() == self.links.len() {
            self.places = places;
        }
        self
    }

    /// Returns the host's settings.
    #[must_use]
    pub const fn config(&self) -> &HostConfig {
        &self.config
    }

    /// Returns the agent of this host.
    #[must_use]
    pub const fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Returns the host's counters.
    #[must_use]
    pub const fn counters(&self) -> HostCounters {
        self.counters
    }

    /// Returns how many more packets the agent can hold to forward them. At 0 it drops the packets that the driver goes
    /// on to read.
    #[must_use]
    pub fn relay_room(&self) -> usize {
        OUTBOX.saturating_sub(self.outbox.len())
    }

    // --- as a sender

    /// Opens a session and invites its receivers. `stream` identifies the content, and is unchanged after a restart.
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
        // An agent learns the sender of a session from labelled data. It learns nothing from data that does not pass
        // it, as in the sender's own rack where pilot labels do not lead back to it.
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

    /// Records that the application has written all bytes below `upto`.
    pub fn offer(&mut self, now: Time, session: Session, upto: u64) {
        self.with_sending(now, session, |sending, _| sending.offer(now, upto));
    }

    /// Records whether the driver cannot provide some of a session's bytes yet; see [`flow::Sender::hold`].
    pub fn hold(&mut self, now: Time, session: Session, held: bool) {
        if let Some(sending) = self.sending.get_mut(&session) {
            sending.flow.hold(now, held);
        }
    }

    /// Records from which offset on the driver can provide a session's bytes, whatever was released; see
    /// [`flow::Sender::set_readable_from`].
    pub fn set_readable_from(&mut self, session: Session, from: u64) {
        if let Some(sending) = self.sending.get_mut(&session) {
            sending.flow.set_readable_from(from);
        }
    }

    /// Records that packets to the group do not reach a receiver of a session; see [`flow::Sender::serve_by_unicast`].
    pub fn serve_by_unicast(&mut self, session: Session, host: HostId) {
        if let Some(sending) = self.sending.get_mut(&session) {
            sending.flow.serve_by_unicast(host);
        }
    }

    /// Records the same, from now on; see [`flow::Sender::take_from_group`].
    pub fn take_from_group(&mut self, now: Time, session: Session, host: HostId) {
        self.with_sending(now, session, |sending, _| sending.flow.take_from_group(now, host));
    }

    /// Ends the stream after the bytes that have been offered.
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

    /// Returns the offset below which no receiver needs the session's bytes; `u64::MAX` for an unknown session.
    #[must_use]
    pub fn released(&self, session: Session) -> u64 {
        self.sending.get(&session).map_or(u64::MAX, |sending| sending.flow.released())
    }

    /// Iterates over the receivers of a session that this host sends.
    pub fn receivers(&self, session: Session) -> impl Iterator<Item = ReceiverView> + '_ {
        self.sending.get(&session).into_iter().flat_map(|sending| sending.flow.receivers())
    }

    /// Returns the counters of a session that this host sends.
    #[must_use]
    pub fn summary(&self, session: Session) -> Option<SenderSummary> {
        self.sending.get(&session).map(|sending| sending.flow.summary())
    }

    /// Returns whether a host that labels are to reach has got copies of its own only.
    #[must_use]
    pub fn is_unlabelled(&self, session: Session, host: HostId) -> bool {
        self.sending.get(&session).is_some_and(|sending| sending.is_unlabelled(host))
    }

    /// Returns how many copies of each packet the sender's link carries at present.
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

    /// Joins a session to which this host is invited, from byte `at` on and with a receive window of `room` bytes. Returns `false`
    /// if it is not invited, as after [`Event::Withdrawn`].
    pub fn join(&mut self, now: Time, session: Session, at: u64, room: u64) -> bool {
        let Some(invitation) = self.invitations.remove(&session) else { return false };
        let Invitation { from, stream, place, payload, via_agent, .. } = invitation;
        let config = FlowConfig { payload: payload.max(1), ..self.config.flow };
        let me = (place, via_agent);
        self.receive(now, session, stream, from, at, room, me, config);
        true
    }

    /// Joins a session without an invitation: after its start, or after leaving it.
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
        if self.receiving.len() >= self.config.max_sessions as usize && !self.drop_leaving() {
            self.send_control(Some(sender), session, Body::Bye { reason: Reason::Busy });
            let event = ReceiverEvent::Failed { reason: Reason::Busy };
            self.events.push_back(Event::Receiver(session, event));
            return;
        }
        self.ended.retain(|ended| *ended != session);
        let incarnation = self.incarnation;
        self.incarnation = incarnation.wrapping_add(1);
        let flow = flow::Receiver::new(
            now,
            session,
            incarnation,
            stream,
            sender,
            place,
            at,
            room,
            via_agent,
            config,
        );
        self.receiving.insert(session, Receiving { flow, data_at: now, returns: false });
        self.mark_ready(now, Key::Receive(session));
    }

    /// Drops a session that this host is leaving, so that there is room for another one. Its sender gets one last
    /// `Bye`; if that is lost, the sender finds this host to be silent. Returns whether there was such a session.
    fn drop_leaving(&mut self) -> bool {
        let leaving = self.receiving.iter().find_map(|(session, receiving)| {
            receiving.flow.leaves().map(|reason| (*session, receiving.flow.sender(), reason))
        });
        let Some((session, sender, reason)) = leaving else { return false };
        self.send_control(Some(sender), session, Body::Bye { reason });
        self.receiving.remove(&session);
        true
    }

    /// Returns whether the sender of a session that this host has joined has not answered yet: nothing shows that it is
    /// more than an old invitation that somebody has recorded and sent again.
    #[must_use]
    pub fn is_unanswered(&self, session: Session) -> bool {
        self.receiving.get(&session).is_some_and(|receiving| receiving.flow.is_joining())
    }

    /// Returns when a packet of the sender of a session last arrived; `None` if this host has neither joined the session nor an
    /// invitation to it.
    #[must_use]
    pub fn last_heard(&self, session: Session) -> Option<Time> {
        let invited = self.invitations.get(&session).map(|invitation| invitation.heard);
        invited.or_else(|| Some(self.receiving.get(&session)?.flow.last_heard()))
    }

    /// Forgets the invitation to a session without an answer, so that a repetition of it is reported once more.
    pub fn ignore(&mut self, session: Session) {
        self.invitations.remove(&session);
    }

    /// Refuses the invitation to a session.
    pub fn refuse(&mut self, _now: Time, session: Session, reason: Reason) {
        if let Some(invitation) = self.invitations.remove(&session) {
            self.send_control(Some(invitation.from), session, Body::Bye { reason });
        }
    }

    /// Records that the application has consumed all bytes below `upto`.
    pub fn consume(&mut self, now: Time, session: Session, upto: u64) {
        self.with_receiving(now, session, |flow| flow.consume(now, upto));
    }

    /// Records that the application needs no bytes below `upto`, because it has them from elsewhere.
    pub fn skip(&mut self, now: Time, session: Session, upto: u64) {
        self.with_receiving(now, session, |flow| flow.skip(now, upto));
    }

    /// Records the length of a session's stream; see [`flow::Receiver::end`].
    pub fn end(&mut self, now: Time, session: Session, length: u64) -> bool {
        let mut agrees = false;
        self.with_receiving(now, session, |flow| agrees = flow.end(now, length));
        agrees
    }

    /// Receives a session once more from byte `at` on, and forgets what has arrived beyond it; see [`flow::Receiver::restart`].
    /// Returns `false`, without effect, if the session is not being received any more.
    pub fn rejoin(&mut self, now: Time, session: Session, at: u64) -> bool {
        if !self.receiving.get(&session).is_some_and(|receiving| receiving.flow.can_restart()) {
            return false;
        }
        let incarnation = self.incarnation;
        self.incarnation = incarnation.wrapping_add(1);
        self.events.retain(|event| match event {
            Event::Receiver(of, event) => *of != session || flow::is_mode(event),
            _ => true,
        });
        self.with_receiving(now, session, |flow| flow.restart(now, incarnation, at));
        true
    }

    /// Answers [`ReceiverEvent::Recover`]: the missing bytes are `stored`, or could not be computed.
    pub fn recovered(&mut self, now: Time, session: Session, block: u64, stored: bool) {
        self.with_receiving(now, session, |flow| flow.recovered(now, block, stored));
    }

    /// Records that the application has verified the whole stream.
    pub fn complete(&mut self, now: Time, session: Session) {
        self.with_receiving(now, session, |flow| flow.complete(now));
    }

    /// Leaves a session for this reason, or refuses the invitation to it. After [`Reason::Unknown`], which says that this host knows
    /// nothing of the session and can begin again, an invitation to the same session is a new one.
    pub fn leave(&mut self, now: Time, session: Session, reason: Reason) {
        self.refuse(now, session, reason);
        if let Some(receiving) = self.receiving.get_mut(&session) {
            receiving.returns = reason == Reason::Unknown;
        }
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

    /// Returns the number of sessions that this host sends or receives.
    #[must_use]
    pub fn open_sessions(&self) -> usize {
        let sending = self.sending.values().filter(|sending| sending.over_at.is_none());
        sending.count() + self.receiving.len()
    }

    /// Returns whether no session is open and no packet waits to be relayed.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.open_sessions() == 0 && self.outbox.is_empty()
    }

    /// Returns this host as it is after a restart: the same settings, no session, and numbers of joins that it has not used.
    #[must_use]
    pub fn restarted(&self) -> Self {
        let config = HostConfig { incarnation: self.incarnation, ..self.config.clone() };
        Self::new(config).with_places(self.places.clone())
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
