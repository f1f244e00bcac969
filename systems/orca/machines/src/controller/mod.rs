//! The controller: it knows all sessions, and the live and active agents of each rack.
//!
//! The evaluation names its tasks (section IV.B: it inserts labels into agents; the authors' code: pings, active
//! agents, `SYNC_STATE`; `docs/protocols/orca.md#orca-control-plane`). The paper does not say how senders ask for labels. The
//! requests below, their repetition and their numbers are our choice.
//!
//! Requests of senders, each repeated until it is answered:
//! - [`Body::Create`]: create a session. Answer: [`Body::Labels`] with the number of the last change that the controller knows,
//!   or `Denied` ([`Reason::Busy`]) if the number is taken or there are too many sessions.
//! - [`Body::Member`]: a host joins or leaves. Changes are numbered and handled in order. Answer: `Labels` with the number of
//!   the last change, once **all live agents** of the racks have confirmed their rack labels ([`Body::SyncDone`]). From then on
//!   the labels reach the hosts that they name. Dead agents do not delay the answer. Or `Denied`: [`Reason::NoLabel`] (no such
//!   host), [`Reason::Silent`] (no live agent in its rack), [`Reason::Unknown`] (no such session, also after a restart of the
//!   controller: then the sender recreates it with all members, which rebuilds the state). A denied change does not count,
//!   and its number is used again.
//! - [`Body::Destroy`]: delete a session. Answer: `Denied` ([`Reason::Left`]).
//! - [`Body::Renew`]: the session still exists. Answer: `Labels`, or `Denied` ([`Reason::Unknown`]), by which a sender learns
//!   of a restart of the controller although nothing changes. A session that its sender has not mentioned for
//!   [`ControllerConfig::forget`] is deleted, at its agents too.
//!
//! Notifications to senders: [`Body::Served`], when the last agent of a rack has died and when one lives again, repeated until it
//! is confirmed ([`Body::SyncDone`]). In between the senders reach the rack's receivers by unicast copies.
//!
//! Agents ping. One that is silent for the timeout T is dead, and if it was the active one, another live agent of its rack is
//! made active at once by `SetActive`. As `ToR`s do not answer, it is sent a few times in a row, and periodically for `ToR`s
//! that have restarted. An agent that comes back or has restarted, so that its pings count from 1 again, gets all labels of
//! its rack before it may become active.
//!
//! Versions and epochs increase, and are not below what the clock gives, so that a restarted controller continues with newer
//! ones.

mod agents;
mod senders;
mod sessions;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use rackweave_core::{HostId, Node, Packet, Span, Time};
use rackweave_wire::orca::{Body, Control, Header, Place, Reason, Session};

use super::host::packet;
use super::label::Layout;
use super::store::Store;
use super::switch::{NO_AGENT, is_newer};

/// The number of events that wait to be polled. Beyond it, the oldest are dropped.
const MAX_EVENTS: usize = 4096;

/// Settings of a controller.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// The controller's host.
    pub me: HostId,
    /// The places of all hosts, which must be the same everywhere.
    pub layout: Arc<Layout>,
    /// The heartbeat timeout T. An agent that has not pinged for this long is dead.
    pub timeout: Span,
    /// The interval before the first repetition of an unanswered packet. It doubles with each repetition.
    pub retry: Span,
    /// The interval at which `SetActive` is repeated while nothing changes.
    pub refresh: Span,
    /// The time after which a session is deleted if its sender has not mentioned it.
    pub forget: Span,
    /// The largest number of sessions.
    pub max_sessions: u32,
    /// The lowest version and epoch; both grow by at least one per millisecond. With a clock that starts at zero this
    /// must be the calendar time in milliseconds, because agents and switches ignore versions older than those from
    /// before a restart.
    pub first: u32,
}

impl ControllerConfig {
    /// The default settings with this heartbeat timeout.
    #[must_use]
    pub const fn new(me: HostId, layout: Arc<Layout>, timeout: Span) -> Self {
        Self {
            me,
            layout,
            timeout,
            retry: Span::from_ms(2),
            refresh: Span::from_secs(1),
            forget: Span::from_secs(30),
            max_sessions: 1 << 20,
            first: 0,
        }
    }
}

/// An event of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerEvent {
    /// A rack's active agent has changed; it has none if no agent of the rack is alive.
    Promoted {
        /// The index of the rack.
        rack: u16,
        /// The host of the new active agent.
        agent: Option<HostId>,
    },
    /// An agent has not pinged for the timeout, or has restarted.
    Silent {
        /// The agent's host.
        host: HostId,
    },
    /// An agent is alive and holds all labels of its rack.
    Live {
        /// The agent's host.
        host: HostId,
    },
    /// A session was deleted because its sender has not mentioned it for too long.
    Expired {
        /// The number of the session.
        session: Session,
        /// The host that sends the session.
        sender: HostId,
    },
    /// The controller denied that a host joins a session.
    Denied {
        /// The number of the session.
        session: Session,
        /// The host that was to join.
        host: HostId,
        /// The reason sent to the sender.
        reason: Reason,
    },
}

/// The counters of a controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerCounters {
    /// The number of accepted changes of members.
    pub changes: u64,
    /// The number of `Sync` packets sent, including repetitions.
    pub syncs: u64,
    /// The number of those `Sync` packets that were sent to single agents.
    pub resyncs: u64,
    /// The number of `SyncDone` packets received.
    pub confirmed: u64,
    /// The number of `SetActive` packets sent.
    pub set_active: u64,
    /// The number of pings received from agents.
    pub pings: u64,
    /// The number of `Served` packets sent, including repetitions.
    pub served: u64,
    /// The number of sessions deleted because their senders did not mention them.
    pub expired: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Liveness {
    #[default]
    Dead,
    /// It pings, and its rack's labels are being transferred to it.
    Syncing,
    Live,
}

#[derive(Clone, Copy, Debug, Default)]
struct AgentState {
    last_heard: Time,
    number: u32,
    /// The number of sessions that its host sends.
    sends: u32,
    liveness: Liveness,
}

#[derive(Clone, Copy, Debug)]
struct Rack {
    /// The ports of live agents, and of agents to which labels are being transferred.
    live: u64,
    syncing: u64,
    active: u8,
    epoch: u32,
    /// How many more times `SetActive` is sent in a row.
    set_active_left: u8,
    /// The number of sessions with members in this rack.
    sessions: u32,
    /// The time of the next check of its agents.
    check_at: Time,
}

/// A rack label that some live agents have not confirmed.
#[derive(Clone, Copy, Debug)]
struct Pending {
    ports: u64,
    version: u32,
    waiting: u64,
    tries: u8,
    at: Time,
}

/// A notification to a sender about a rack's agents that the sender has not confirmed.
#[derive(Clone, Copy, Debug)]
struct Notice {
    agent: bool,
    epoch: u32,
    tries: u8,
    at: Time,
}

/// The transfer of all labels of a rack to one agent.
#[derive(Clone, Debug, Default)]
struct Resync {
    /// The next slot of the store to visit.
    cursor: usize,
    /// Labels that the agent has not confirmed, with their versions and the times at which they are retransmitted.
    unconfirmed: BTreeMap<Session, (u32, Time)>,
    at: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Check(u16),
    SetActive(u16),
    Pending(u16, Session),
    Resync(HostId),
    Notice(HostId, u16),
    Sweep,
}

/// The controller. See the [module](self) for its packets.
#[derive(Debug)]
pub struct Controller {
    config: ControllerConfig,
    words: u8,
    store: Store,
    agents: Vec<AgentState>,
    racks: Vec<Rack>,
    pending: BTreeMap<(u16, Session), Pending>,
    /// For each session, the number of racks whose labels are not confirmed.
    unconfirmed: BTreeMap<Session, u16>,
    resyncs: BTreeMap<HostId, Resync>,
    notices: BTreeMap<(HostId, u16), Notice>,
    /// The next slot of the store to be checked for expired sessions; `None` while no sweep is scheduled.
    sweep: Option<usize>,
    timers: BTreeSet<(Time, Timer)>,
    outbox: VecDeque<(HostId, Session, Body)>,
    events: VecDeque<ControllerEvent>,
    counters: ControllerCounters,
    /// The last version or epoch that was used.
    version: u32,
}

impl Controller {
    /// Returns a controller without sessions.
    #[must_use]
    pub fn new(config: ControllerConfig) -> Self {
        let rack = Rack {
            live: 0,
            syncing: 0,
            active: NO_AGENT,
            epoch: 0,
            set_active_left: 0,
            sessions: 0,
            check_at: Time::MAX,
        };
        Self {
            words: config.layout.words(),
            store: Store::default(),
            agents: vec![AgentState::default(); config.layout.hosts() as usize],
            racks: vec![rack; usize::from(config.layout.racks())],
            pending: BTreeMap::new(),
            unconfirmed: BTreeMap::new(),
            resyncs: BTreeMap::new(),
            notices: BTreeMap::new(),
            sweep: None,
            timers: BTreeSet::new(),
            outbox: VecDeque::new(),
            events: VecDeque::new(),
            counters: ControllerCounters::default(),
            version: config.first,
            config,
        }
    }

    /// Iterates over all sessions, each with its sender and its number of members.
    pub fn sessions(&self) -> impl Iterator<Item = (Session, HostId, u32)> + '_ {
        (0..self.store.slots()).filter_map(|slot| self.store.slot(slot)).map(|(session, known)| {
            let members = self.store.members(session).map(|(_, ports)| ports.count_ones()).sum();
            (session, known.sender, members)
        })
    }

    /// Returns the store of all sessions.
    #[must_use]
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the host of a rack's active agent, if there is one.
    #[must_use]
    pub fn active(&self, rack: u16) -> Option<HostId> {
        let active = self.racks.get(usize::from(rack))?.active;
        if active == NO_AGENT {
            return None;
        }
        self.config.layout.host(Place { rack, port: active })
    }

    /// Iterates over the hosts of a rack's live agents.
    pub fn live(&self, rack: u16) -> impl Iterator<Item = HostId> + '_ {
        let live = self.racks.get(usize::from(rack)).map_or(0, |rack| rack.live);
        (0..64)
            .filter(move |port| live >> port & 1 == 1)
            .filter_map(move |port| self.config.layout.host(Place { rack, port }))
    }

    /// Returns the controller's counters.
    #[must_use]
    pub const fn counters(&self) -> ControllerCounters {
        self.counters
    }

    /// Returns this controller as it is after a restart: the same settings and no other state.
    #[must_use]
    pub fn restarted(&self) -> Self {
        Self::new(self.config.clone())
    }

    /// Inserts a session with all its members (distinct racks in order, each with its ports) into the store, as if they
    /// had joined earlier. It serves measurements of large states, and controllers that store their state elsewhere.
    /// Returns false if the store is full.
    pub fn restore(&mut self, session: Session, sender: HostId, members: &[(u16, u64)]) -> bool {
        let room = self.store.len() < self.config.max_sessions as usize;
        if !room || !self.store.create(session, sender) {
            return false;
        }
        self.store.set_members(session, members);
        for (rack, _) in members {
            if let Some(rack) = self.racks.get_mut(usize::from(*rack)) {
                rack.sessions += 1;
            }
        }
        if let Some(agent) = self.agents.get_mut(sender.0 as usize) {
            agent.sends += 1;
        }
        true
    }

    /// Assumes that an agent is alive and holds all labels of its rack; the counterpart of [`Controller::restore`] for
    /// agents.
    pub fn assume_live(&mut self, now: Time, host: HostId) {
        if host.0 >= self.config.layout.hosts() {
            return;
        }
        self.agents[host.0 as usize].last_heard = now;
        let place = self.config.layout.place(host);
        if self.agents[host.0 as usize].liveness == Liveness::Dead {
            self.start_watching(now, host, place);
            self.mark_live(now, host, place);
        }
    }

    fn push_event(&mut self, event: ControllerEvent) {
        if self.events.len() >= MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn send_control(&mut self, to: HostId, session: Session, body: Body) {
        match body {
            Body::Sync { .. } => self.counters.syncs += 1,
            Body::SetActive { .. } => self.counters.set_active += 1,
            Body::Served { .. } => self.counters.served += 1,
            _ => {}
        }
        self.outbox.push_back((to, session, body));
    }

    /// Returns the next version or epoch, which is newer than all earlier ones.
    fn next_version(&mut self, now: Time) -> u32 {
        let clock = self.config.first.wrapping_add(now.as_ms() as u32);
        let next = self.version.wrapping_add(1);
        self.version = if is_newer(clock, next) { clock } else { next };
        self.version
    }

    /// Returns the address of packets for a rack's switch, or for all its agents: a host of the rack, so that the
    /// packet passes the switch. It is the active agent if there is one.
    fn rack_address(&self, rack: u16) -> Option<HostId> {
        let state = self.racks.get(usize::from(rack))?;
        let port = match state.active {
            NO_AGENT if state.live | state.syncing != 0 => {
                (state.live | state.syncing).trailing_zeros() as u8
            }
            NO_AGENT => 0,
            active => active,
        };
        self.config.layout.host(Place { rack, port })
    }
}

impl Node for Controller {
    type Header = Header;
    type Event = ControllerEvent;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, _port: u8, packet: &Packet<Header>) {
        let Header::Control(Control { from, session, ref body, .. }) = packet.header else {
            return;
        };
        if from != packet.src || from.0 >= self.config.layout.hosts() {
            return;
        }
        match *body {
            Body::Ping { place, number } => self.handle_ping(now, from, place, number),
            Body::SyncDone { place, version } if place == self.config.layout.place(from) => {
                self.handle_sync_done(now, from, place, session, version);
            }
            Body::Create => self.handle_create(now, from, session),
            Body::Member { host, joins, change } => {
                self.handle_member(now, from, session, host, joins, change);
            }
            Body::Destroy => self.handle_destroy(now, from, session),
            Body::Renew => self.handle_renew(now, from, session),
            _ => {}
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        while let Some((at, timer)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.remove(&(at, timer));
            match timer {
                Timer::Check(rack) => self.check_agents(now, at, rack),
                Timer::SetActive(rack) => self.set_active(now, rack),
                Timer::Pending(rack, session) => self.retry_pending(now, at, rack, session),
                Timer::Resync(host) => self.continue_resync(now, at, host),
                Timer::Notice(host, rack) => self.retry_notice(now, at, host, rack),
                Timer::Sweep => self.sweep(now),
            }
        }
    }

    fn poll_transmit(&mut self, _now: Time, port: u8) -> Option<Packet<Header>> {
        if port != 0 {
            return None;
        }
        let (to, session, body) = self.outbox.pop_front()?;
        let control = Control { from: self.config.me, to, session, body };
        Some(packet(self.config.me, to, self.words, Header::Control(control)).with_priority(7))
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    fn poll_event(&mut self) -> Option<ControllerEvent> {
        self.events.pop_front()
    }
}
