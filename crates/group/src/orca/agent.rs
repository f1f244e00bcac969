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
const SPOKEN_FOR: usize = 1024;

/// Pings without answer until the agent falls silent but for
const TRIES: u8 = 3;
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
struct Spoken {
    sender: HostId,
    summary: Summary,
    heard: Time,
    /// When the summary is told, if there is one.
    due: Option<Time>,
}

#[derive(Clone, Copy, Debug)]
struct Heart {
    every: Span,
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
    spoken: BTreeMap<Session, Spoken>,
    due: Option<Time>,
    heart: Option<Heart>,
    counters: AgentCounters,
}

impl Agent {
    /// An agent at a place, for at most so many sessions; statuses are told once in `interval`. It pings the controller each
    /// `heartbeat`, the first time at once.
    #[must_use]
    pub fn new(place: Place, max_sessions: u32, interval: Span, heartbeat: Option<Span>) -> Self {
        let heart = heartbeat.map(|every| Heart {
            every: every.max(Span::from_us(1)),
            next: Time::ZERO,
            number: 0,
            unanswered: 0,
            ticks: 0,
        });
        Self {
            place,
            table: SessionTable::new(max_sessions),
            interval,
            spoken: BTreeMap::new(),
            due: None,
            heart,
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
    pub fn external(&mut self, now: Time, session: Session, sender: HostId) -> Relay {
        let ports = self.table.ports(session);
        let redundant = ports == 0;
        self.counters.unlabelled += 1;
        self.counters.redundant += u64::from(redundant);
        if !redundant {
            self.hear(now, session, sender);
        }
        Relay { ports: ports & !self.bit(), redundant }
    }

    /// Who sends a session is known.
    pub fn hear(&mut self, now: Time, session: Session, sender: HostId) {
        if let Some(spoken) = self.spoken.get_mut(&session) {
            (spoken.sender, spoken.heard) = (sender, now);
            return;
        }
        if self.spoken.len() >= SPOKEN_FOR
            && let Some(oldest) = self.spoken.iter().min_by_key(|(_, s)| s.heard).map(|(k, _)| *k)
        {
            self.spoken.remove(&oldest);
        }
        let spoken = Spoken { sender, summary: Summary::default(), heard: now, due: None };
        self.spoken.insert(session, spoken);
    }

    /// A `Sync` for this rack has come; the answer to it, if it is one to answer.
    pub fn sync(&mut self, session: Session, ports: u64, version: u32) -> Option<Body> {
        match self.table.set(session, Entry { ports, version }) {
            Updated::Full => return None,
            Updated::Old => self.counters.old_syncs += 1,
            Updated::Held => {}
        }
        if ports == 0 {
            self.spoken.remove(&session);
        }
        // Also to what is old: it must not be repeated for ever.
        Some(Body::SyncDone { place: self.place, version })
    }

    /// A receiver of this rack reports: it is told with the others'. False: not to be told by this agent.
    pub fn report(&mut self, now: Time, session: Session, status: &Status) -> bool {
        let Some(spoken) = self.spoken.get_mut(&session).filter(|_| status.rack == self.place.rack)
        else {
            return false;
        };
        if !spoken.summary.add(status) {
            return false;
        }
        self.counters.reports += 1;
        if spoken.due.is_none() {
            let due = now.saturating_add(self.interval);
            spoken.due = Some(due);
            self.due = Some(self.due.map_or(due, |first| first.min(due)));
        }
        true
    }

    /// The controller has answered a ping.
    pub fn pong(&mut self, number: u32) {
        if let Some(heart) = &mut self.heart
            && number == heart.number
        {
            heart.unanswered = 0;
        }
    }

    /// The controller is there (again): an agent that has fallen silent pings at once.
    pub fn wake(&mut self, now: Time) {
        if let Some(heart) = self.heart.as_mut().filter(|heart| heart.unanswered >= TRIES) {
            (heart.unanswered, heart.next) = (0, now);
        }
    }

    /// When [`Agent::poll`] has something.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.due, self.heart.map(|heart| heart.next)].into_iter().flatten().min()
    }

    /// What the agent says now: summaries to senders; `None` as the host: to the controller.
    pub fn poll(&mut self, now: Time, mut say: impl FnMut(Option<HostId>, Session, Body)) {
        if let Some(heart) = self.heart.as_mut().filter(|heart| now >= heart.next) {
            // Not faster after a delay: what was missed is not made up for.
            heart.next = now.saturating_add(heart.every);
            heart.ticks = (heart.ticks + 1) % SILENT_TICKS;
            if heart.unanswered < TRIES || heart.ticks == 0 {
                heart.unanswered = heart.unanswered.saturating_add(1);
                heart.number = heart.number.wrapping_add(1);
                say(None, Session(0), Body::Ping { place: self.place, number: heart.number });
            }
        }
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        let mut next = None;
        for (session, spoken) in &mut self.spoken {
            match spoken.due {
                Some(due) if due <= now => {
                    for status in spoken.summary.statuses() {
                        self.counters.summaries += 1;
                        say(Some(spoken.sender), *session, Body::Status(status));
                    }
                    spoken.summary.clear();
                    spoken.due = None;
                }
                Some(due) => next = Some(next.map_or(due, |first: Time| first.min(due))),
                None => {}
            }
        }
        self.due = next;
    }
}
