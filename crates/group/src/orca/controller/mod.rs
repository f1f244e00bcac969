//! The controller: which sessions there are, which agent of each rack is active.
//!
//! What senders ask it (all repeated until answered):
//! - [`Body::Create`]: a session of theirs. Answer: [`Body::Labels`] (with the number of the last change that it knows), or
//!   `Denied` ([`Reason::Busy`]: the number is taken, or there are too many).
//! - [`Body::Member`]: a host joins or leaves. Changes are numbered and taken in order. Answer: `Labels` with the last change's number, when
//!   **all live agents** of the racks have confirmed their rack labels ([`Body::SyncDone`]): from then on the labels reach
//!   whom they name. Dead agents don't hold it up. Or `Denied`: [`Reason::NoLabel`] (no such host), [`Reason::Silent`] (no
//!   agent lives in its rack), [`Reason::Unknown`] (no such session: also after the controller has lost its memory; the
//!   sender creates it anew and tells all members again, which is how the state is rebuilt). A denied change does not count:
//!   its number is used again.
//! - [`Body::Destroy`]: answered by `Denied` ([`Reason::Left`]).
//! - [`Body::Renew`], now and then: the session lives. Answer: `Labels`, or `Denied` ([`Reason::Unknown`]), by which a sender learns of
//!   a controller without memory although nothing changes. A session of which its sender says nothing for
//!   [`ControllerConfig::forget`] is forgotten, and its agents are told (ours; the paper's sessions end only by a word).
//!
//! What it tells senders unasked (ours): [`Body::Served`], when a rack's last agent is dead, and when one lives again. Senders confirm
//! it ([`Body::SyncDone`]), and until then it is repeated. In between the rack's receivers get copies of their own.
//!
//! Agents ping; one that is silent for the timeout T is dead, and if it was the active one another live agent of its rack
//! is made active at once: `SetActive`, a few times (`ToR`s don't answer), and now and then for `ToR`s that have
//! forgotten. An agent that comes back, or has forgotten (its pings count from 1 again), gets all its rack's labels before it
//! may be active.
//!
//! Versions and epochs count up, and not below what the clock says: those of a controller that comes back are newer than
//! its former life's.

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

/// Most events that wait to be taken; of more, the oldest go.
const MAX_EVENTS: usize = 4096;

/// What a controller is told.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// Its host.
    pub me: HostId,
    /// Where hosts are, the same for all.
    pub layout: Arc<Layout>,
    /// T: an agent that has not pinged for so long is dead.
    pub timeout: Span,
    /// What is not answered is repeated after so long, and later each time.
    pub retry: Span,
    /// `SetActive` is repeated so often at all times.
    pub refresh: Span,
    /// Sessions of which their senders have said nothing for so long are forgotten.
    pub forget: Span,
    /// Most sessions.
    pub max_sessions: u32,
    /// Versions and epochs begin here, plus a millisecond each: after a restart with a clock from zero, milliseconds of
    /// the calendar, or it is not believed.
    pub first: u32,
}

impl ControllerConfig {
    /// The usual settings.
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

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerEvent {
    /// A rack has another active agent; `None`: no agent lives there.
    Promoted {
        /// The rack.
        rack: u16,
        /// The agent.
        agent: Option<HostId>,
    },
    /// An agent is dead.
    Silent {
        /// Which.
        host: HostId,
    },
    /// An agent lives, and knows all labels of its rack.
    Live {
        /// Which.
        host: HostId,
    },
    /// A session is forgotten: its sender says nothing of it any more.
    Expired {
        /// Which.
        session: Session,
        /// Whose it was.
        sender: HostId,
    },
    /// A change was denied.
    Denied {
        /// Of which session.
        session: Session,
        /// Of which host.
        host: HostId,
        /// Why.
        reason: Reason,
    },
}

/// What controllers count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerCounters {
    /// Changes of members taken.
    pub changes: u64,
    /// `Sync` packets sent, repetitions too.
    pub syncs: u64,
    /// Of these, to single agents.
    pub resyncs: u64,
    /// Confirmations that came in.
    pub confirmed: u64,
    /// `SetActive` packets sent.
    pub set_active: u64,
    /// Pings that came in.
    pub pings: u64,
    /// `Served` packets sent, repetitions too.
    pub served: u64,
    /// Sessions that were forgotten because their senders said nothing.
    pub expired: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Liveness {
    #[default]
    Dead,
    /// Gets its rack's labels.
    Syncing,
    Live,
}

#[derive(Clone, Copy, Debug, Default)]
struct AgentState {
    last_heard: Time,
    number: u32,
    /// Sessions that its host sends.
    sends: u32,
    liveness: Liveness,
}

#[derive(Clone, Copy, Debug)]
struct Rack {
    /// Ports of live agents, and of those that get labels.
    live: u64,
    syncing: u64,
    active: u8,
    epoch: u32,
    /// How often `SetActive` is still told in a row.
    set_active_left: u8,
    /// Sessions with members in it.
    sessions: u32,
    /// When its agents are looked at next.
    check_at: Time,
}

/// A rack label that not all live agents have confirmed.
#[derive(Clone, Copy, Debug)]
struct Pending {
    ports: u64,
    version: u32,
    waiting: u64,
    tries: u8,
    at: Time,
}

/// A sender that has not confirmed whether a rack has an agent.
#[derive(Clone, Copy, Debug)]
struct Notice {
    agent: bool,
    epoch: u32,
    tries: u8,
    at: Time,
}

/// An agent that gets all its rack's labels.
#[derive(Clone, Debug, Default)]
struct Resync {
    /// The next slot of the store to look at.
    cursor: usize,
    /// Labels that it has not confirmed: their version, and when they are told again.
    under_way: BTreeMap<Session, (u32, Time)>,
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

/// The controller. See the [module](self) for what it can be asked.
#[derive(Debug)]
pub struct Controller {
    config: ControllerConfig,
    words: u8,
    store: Store,
    agents: Vec<AgentState>,
    racks: Vec<Rack>,
    pending: BTreeMap<(u16, Session), Pending>,
    /// How many racks' labels of a session are not confirmed.
    unconfirmed: BTreeMap<Session, u16>,
    resyncs: BTreeMap<HostId, Resync>,
    notices: BTreeMap<(HostId, u16), Notice>,
    /// The next slot of the store whose session may have to be forgotten; `None`: nobody looks.
    sweep: Option<usize>,
    timers: BTreeSet<(Time, Timer)>,
    outbox: VecDeque<(HostId, Session, Body)>,
    events: VecDeque<ControllerEvent>,
    counters: ControllerCounters,
    /// The last version or epoch.
    number: u32,
}

impl Controller {
    /// A controller that knows nothing.
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
            number: config.first,
            config,
        }
    }

    /// Its sessions, with their senders and the numbers of their members.
    pub fn sessions(&self) -> impl Iterator<Item = (Session, HostId, u32)> + '_ {
        (0..self.store.slots()).filter_map(|slot| self.store.at(slot)).map(|(session, known)| {
            let members = self.store.members(session).map(|(_, ports)| ports.count_ones()).sum();
            (session, known.sender, members)
        })
    }

    /// Its sessions as they are stored.
    #[must_use]
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// A rack's active agent.
    #[must_use]
    pub fn active(&self, rack: u16) -> Option<HostId> {
        let active = self.racks.get(usize::from(rack))?.active;
        if active == NO_AGENT {
            return None;
        }
        self.config.layout.host(Place { rack, port: active })
    }

    /// A rack's live agents.
    pub fn live(&self, rack: u16) -> impl Iterator<Item = HostId> + '_ {
        let live = self.racks.get(usize::from(rack)).map_or(0, |rack| rack.live);
        (0..64)
            .filter(move |port| live >> port & 1 == 1)
            .filter_map(move |port| self.config.layout.host(Place { rack, port }))
    }

    /// What it has counted.
    #[must_use]
    pub const fn counters(&self) -> ControllerCounters {
        self.counters
    }

    /// This controller after a restart: the same settings, and nothing known.
    #[must_use]
    pub fn restarted(&self) -> Self {
        Self::new(self.config.clone())
    }

    /// Puts a session with all its members (racks in order, each once, with its ports) into the store, as if they had joined
    /// long ago: for measurements of large states, and for controllers that keep theirs elsewhere. False if there is no room.
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

    /// Takes an agent for alive and for one that holds all its rack's labels, as [`Controller::restore`] takes sessions.
    pub fn assume_live(&mut self, now: Time, host: HostId) {
        if host.0 < self.config.layout.hosts() {
            self.assume_live_at(now, host);
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

    /// A version or epoch that is newer than all before.
    fn next_version(&mut self, now: Time) -> u32 {
        let clock = self.config.first.wrapping_add((now.0 / Span::from_ms(1).0) as u32);
        let next = self.number.wrapping_add(1);
        self.number = if is_newer(clock, next) { clock } else { next };
        self.number
    }

    /// Where packets for a rack's switch or all its agents are sent: to one of its hosts, by whom they come.
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
