//! The agent: the module of a host that puts rack labels on data for its rack, and aggregates the reports of its receivers.
//!
//! Every agent of a rack holds the labels of all sessions of the rack, so that any of them can become the active one without a
//! transfer of state (evaluation, section IV.B, and the authors' `MdcReceiver` and `SYNC_STATE` packets;
//! `docs/protocols/orca.md#orca-agent`). Its other state, the senders of sessions and reports not yet forwarded, is soft: the next
//! packets rebuild it.

use std::collections::BTreeMap;

use rackweave_core::{HostId, Span, Time};
use rackweave_wire::orca::{Body, Place, Session, Status};

use super::flow::Summary;
use super::table::{Entry, SessionTable, Updated};

/// The rack of a `Sync` that is meant for a single agent; ToRs do not replicate it.
pub const ANY_RACK: u16 = u16::MAX;

/// The number of sessions whose reports an agent aggregates at a time. Beyond it, the session that has been silent the
/// longest is evicted.
const MAX_SESSIONS: usize = 1024;

/// After this many pings without an answer the agent pings only
const MAX_UNANSWERED: u8 = 3;
/// at every 100th interval, as the authors' agent does when its ToR is silent (`docs/protocols/orca.md#orca-agent`).
const SILENT_TICKS: u8 = 100;

/// How an agent handles data for its rack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relay {
    /// The ports of the other receivers in the rack, which form the rack label of the forwarded packet; 0 if the packet
    /// is not forwarded.
    pub ports: u64,
    /// Whether the agent knows no receiver of the session in this rack.
    pub redundant: bool,
}

/// The counters of an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentCounters {
    /// The number of packets that arrived without a rack label.
    pub unlabelled: u64,
    /// The number of those packets whose session has no receiver in this rack. They arrive because a pilot label has
    /// one field for the racks of all pods.
    pub redundant: u64,
    /// The number of reports received from receivers.
    pub reports: u64,
    /// The number of summaries sent to senders.
    pub summaries: u64,
    /// The number of `Sync` packets that were older than the label in the table.
    pub old_syncs: u64,
}

#[derive(Clone, Debug)]
struct RackSession {
    sender: HostId,
    summary: Summary,
    last_heard: Time,
    /// The time at which the summary is sent, if it is not empty.
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

/// The agent of a host.
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
    /// Returns the agent of the host at `place`, for up to `max_sessions` sessions. It forwards reports once per
    /// `interval`. It pings the controller at intervals of `heartbeat`, for the first time at once; `None` means that
    /// it never pings.
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

    /// Returns the table of rack labels.
    #[must_use]
    pub const fn table(&self) -> &SessionTable {
        &self.table
    }

    /// Returns the agent's counters.
    #[must_use]
    pub const fn counters(&self) -> AgentCounters {
        self.counters
    }

    /// Returns the bit of the agent's host in rack labels.
    #[must_use]
    pub const fn bit(&self) -> u64 {
        1 << (self.place.port & 63)
    }

    /// Handles data without a rack label from the switch (the "external flow" of the evaluation, section IV.B). The
    /// returned label never includes the agent itself: its host keeps the packet if it is a receiver.
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

    /// Records the sender of a session.
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

    /// Handles a `Sync` for this rack and returns the answer, if any.
    pub fn handle_sync(&mut self, session: Session, ports: u64, version: u32) -> Option<Body> {
        match self.table.set(session, Entry { ports, version }) {
            Updated::Full => return None,
            Updated::Old => self.counters.old_syncs += 1,
            Updated::Held => {}
        }
        if ports == 0 {
            self.sessions.remove(&session);
        }
        // Old versions are answered too, so that the controller stops repeating them.
        Some(Body::SyncDone { place: self.place, version })
    }

    /// Handles a report from a receiver of this rack. Returns false if the agent cannot forward it.
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

    /// Handles the controller's answer to a ping.
    pub fn handle_pong(&mut self, number: u32) {
        if let Some(heartbeat) = &mut self.heartbeat
            && number == heartbeat.number
        {
            heartbeat.unanswered = 0;
        }
    }

    /// Handles the arrival of any packet from the controller: an agent that had stopped pinging resumes at once.
    pub fn on_controller(&mut self, now: Time) {
        if let Some(heartbeat) =
            self.heartbeat.as_mut().filter(|heartbeat| heartbeat.unanswered >= MAX_UNANSWERED)
        {
            (heartbeat.unanswered, heartbeat.next) = (0, now);
        }
    }

    /// Returns the time at which [`Agent::poll`] has something to send.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.due, self.heartbeat.map(|heartbeat| heartbeat.next)].into_iter().flatten().min()
    }

    /// Sends what is due: summaries to senders, and pings to the controller (host `None`).
    pub fn poll(&mut self, now: Time, mut send: impl FnMut(Option<HostId>, Session, Body)) {
        if let Some(heartbeat) = self.heartbeat.as_mut().filter(|heartbeat| now >= heartbeat.next) {
            // Pings that a late timer missed are skipped.
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
