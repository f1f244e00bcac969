//! The agent: the part of a host that puts rack labels on what comes for its rack, and speaks for the rack's receivers.
//!
//! Every agent of a rack holds the labels of all its sessions, so that any of them can be made the active one without a word
//! (Section IV.B of the evaluation, and the authors' `MdcReceiver`). What else it holds (who sends a session, statuses not yet
//! told) is soft: it comes again with the next packets.

use std::collections::BTreeMap;

use rackweave_core::{HostId, Span, Time};
use rackweave_wire::orca::{Body, Place, Session, Status};

use super::flow::Summary;
use super::table::{Entry, SessionTable, Updated};

/// `Sync` for one agent alone, which ToRs don't copy.
pub const ANY_RACK: u16 = u16::MAX;

/// Sessions for whose receivers an agent speaks at the same time; of more, the one longest unheard of goes.
const MAX_SESSIONS: usize = 1024;

/// Pings without answer until the agent falls silent but for
const MAX_UNANSWERED: u8 = 3;
/// each such tick ("every 100th tick when the ToR is silent").
const SILENT_TICKS: u8 = 100;

/// What an agent does with data for its rack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relay {
    /// The ports of the other receivers of the rack: the label to send it on with; none: nothing to send.
    pub ports: u64,
    /// The rack has no receiver of the session at all, as far as is known.
    pub redundant: bool,
}

/// What agents count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentCounters {
    /// Packets that came for labelling.
    pub unlabelled: u64,
    /// Of these, those of sessions without a receiver here: the price of one field for all pods.
    pub redundant: u64,
    /// Reports of receivers taken.
    pub reports: u64,
    /// Summaries sent.
    pub summaries: u64,
    /// Syncs that were older than what is known.
    pub old_syncs: u64,
}

#[derive(Clone, Debug)]
struct RackSession {
    sender: HostId,
    summary: Summary,
    last_heard: Time,
    /// When the summary is told, if there is one.
    due: Option<Time>,
}

#[derive(Clone, Copy, Debug)]
struct Heartbeat {
    interval: Span,
    next: Time,
    number: u32,
    unanswered: u8,
    ticks: u8,
}

/// An agent.
#[derive(Clone, Debug)]
pub struct Agent {
    place: Place,
    table: SessionTable,
    interval: Span,
    sessions: BTreeMap<Session, RackSession>,
    due: Option<Time>,
    heartbeat: Option<Heartbeat>,
    counters: AgentCounters,
}

impl Agent {
    /// An agent at a place, for at most so many sessions; statuses are told once in `interval`. It pings the controller each
    /// `heartbeat`, the first time at once.
    #[must_use]
    pub fn new(place: Place, max_sessions: u32, interval: Span, heartbeat: Option<Span>) -> Self {
        let heartbeat = heartbeat.map(|interval| Heartbeat {
            interval: interval.max(Span::from_us(1)),
            next: Time::ZERO,
            number: 0,
            unanswered: 0,
            ticks: 0,
        });
        Self {
            place,
            table: SessionTable::new(max_sessions),
            interval,
            sessions: BTreeMap::new(),
            due: None,
            heartbeat,
            counters: AgentCounters::default(),
        }
    }

    /// Its table.
    #[must_use]
    pub const fn table(&self) -> &SessionTable {
        &self.table
    }

    /// What it has counted.
    #[must_use]
    pub const fn counters(&self) -> AgentCounters {
        self.counters
    }

    /// Its bit in rack labels.
    #[must_use]
    pub const fn bit(&self) -> u64 {
        1 << (self.place.port & 63)
    }

    /// Data without a rack label has come from above ("external flow"): what to send on. An agent never sends to itself; its
    /// own copy is taken if the host is in the session.
    pub fn handle_unlabelled(&mut self, now: Time, session: Session, sender: HostId) -> Relay {
        let ports = self.table.ports(session);
        let redundant = ports == 0;
        self.counters.unlabelled += 1;
        self.counters.redundant += u64::from(redundant);
        if !redundant {
            self.learn_sender(now, session, sender);
        }
        Relay { ports: ports & !self.bit(), redundant }
    }

    /// Who sends a session is known.
    pub fn learn_sender(&mut self, now: Time, session: Session, sender: HostId) {
        if let Some(entry) = self.sessions.get_mut(&session) {
            (entry.sender, entry.last_heard) = (sender, now);
            return;
        }
        if self.sessions.len() >= MAX_SESSIONS
            && let Some(oldest) =
                self.sessions.iter().min_by_key(|(_, s)| s.last_heard).map(|(k, _)| *k)
        {
            self.sessions.remove(&oldest);
        }
        let entry = RackSession { sender, summary: Summary::default(), last_heard: now, due: None };
        self.sessions.insert(session, entry);
    }

    /// A `Sync` for this rack has come; the answer to it, if it is one to answer.
    pub fn handle_sync(&mut self, session: Session, ports: u64, version: u32) -> Option<Body> {
        match self.table.set(session, Entry { ports, version }) {
            Updated::Full => return None,
            Updated::Old => self.counters.old_syncs += 1,
            Updated::Held => {}
        }
        if ports == 0 {
            self.sessions.remove(&session);
        }
        // Also to what is old: it must not be repeated for ever.
        Some(Body::SyncDone { place: self.place, version })
    }

    /// A receiver of this rack reports: it is told with the others'. False: not to be told by this agent.
    pub fn handle_status(&mut self, now: Time, session: Session, status: &Status) -> bool {
        let Some(entry) =
            self.sessions.get_mut(&session).filter(|_| status.rack == self.place.rack)
        else {
            return false;
        };
        if !entry.summary.add(status) {
            return false;
        }
        self.counters.reports += 1;
        if entry.due.is_none() {
            let due = now.saturating_add(self.interval);
            entry.due = Some(due);
            self.due = Some(self.due.map_or(due, |first| first.min(due)));
        }
        true
    }

    /// The controller has answered a ping.
    pub fn handle_pong(&mut self, number: u32) {
        if let Some(heartbeat) = &mut self.heartbeat
            && number == heartbeat.number
        {
            heartbeat.unanswered = 0;
        }
    }

    /// The controller is there (again): an agent that has fallen silent pings at once.
    pub fn on_controller(&mut self, now: Time) {
        if let Some(heartbeat) =
            self.heartbeat.as_mut().filter(|heartbeat| heartbeat.unanswered >= MAX_UNANSWERED)
        {
            (heartbeat.unanswered, heartbeat.next) = (0, now);
        }
    }

    /// When [`Agent::poll`] has something.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.due, self.heartbeat.map(|heartbeat| heartbeat.next)].into_iter().flatten().min()
    }

    /// What the agent says now: summaries to senders; `None` as the host: to the controller.
    pub fn poll(&mut self, now: Time, mut send: impl FnMut(Option<HostId>, Session, Body)) {
        if let Some(heartbeat) = self.heartbeat.as_mut().filter(|heartbeat| now >= heartbeat.next) {
            // Not faster after a delay: what was missed is not made up for.
            heartbeat.next = now.saturating_add(heartbeat.interval);
            heartbeat.ticks = (heartbeat.ticks + 1) % SILENT_TICKS;
            if heartbeat.unanswered < MAX_UNANSWERED || heartbeat.ticks == 0 {
                heartbeat.unanswered = heartbeat.unanswered.saturating_add(1);
                heartbeat.number = heartbeat.number.wrapping_add(1);
                send(None, Session(0), Body::Ping { place: self.place, number: heartbeat.number });
            }
        }
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        let mut next = None;
        for (session, entry) in &mut self.sessions {
            match entry.due {
                Some(due) if due <= now => {
                    for status in entry.summary.statuses() {
                        self.counters.summaries += 1;
                        send(Some(entry.sender), *session, Body::Status(status));
                    }
                    entry.summary.clear();
                    entry.due = None;
                }
                Some(due) => next = Some(next.map_or(due, |first: Time| first.min(due))),
                None => {}
            }
        }
        self.due = next;
    }
}
