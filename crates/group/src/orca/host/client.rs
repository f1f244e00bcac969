//! The sender's side of the control plane: its session and its members at the controller.
//!
//! Changes are numbered and go out in order, several at a time; the controller answers with the number of the last one that
//! all live agents know of. Who is not in the labels yet gets copies of his own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rackweave_core::{HostId, Span, Time};
use rackweave_wire::orca::{Body, Label, Reason};

use crate::orca::label::Layout;

/// Changes under way at a time.
const WINDOW: u32 = 32;
/// First repetition; each later one waits twice as long, up to the longest.
const REPEAT: Span = Span::from_ms(5);
const REPEAT_MOST: Span = Span::from_ms(200);
/// A member that was denied is asked for again so much later, and later each time.
const DENIED: Span = Span::from_ms(20);
/// A session is renewed so often: many times before the controller forgets it.
const RENEW: Span = Span::from_secs(2);
/// `Destroy` is told so often at most.
const FAREWELLS: u8 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Creating,
    Ready,
    Closing,
    Closed,
}

#[derive(Clone, Copy, Debug)]
struct Change {
    number: u32,
    host: HostId,
    joins: bool,
}

/// A session's standing at the controller.
#[derive(Clone, Debug)]
pub(super) struct Client {
    stage: Stage,
    /// Number of the last change that was made, of the last that was sent, and of the last that holds.
    made: u32,
    sent: u32,
    acked: u32,
    queue: VecDeque<Change>,
    repeat_at: Time,
    repeats: u8,
    wanted: BTreeSet<HostId>,
    covered: BTreeSet<HostId>,
    denied: BTreeMap<HostId, (Time, u8)>,
    /// Racks that have no agent at present.
    dark: BTreeSet<u16>,
    renew_at: Time,
    pilot: Label,
    ports: u64,
}

impl Client {
    pub(super) const fn new(now: Time) -> Self {
        Self {
            stage: Stage::Creating,
            made: 0,
            sent: 0,
            acked: 0,
            queue: VecDeque::new(),
            repeat_at: now,
            repeats: 0,
            wanted: BTreeSet::new(),
            covered: BTreeSet::new(),
            denied: BTreeMap::new(),
            dark: BTreeSet::new(),
            renew_at: Time::MAX,
            pilot: Label(0),
            ports: 0,
        }
    }

    /// What goes to everyone is to reach this host, or need not any more.
    pub(super) fn want(&mut self, now: Time, host: HostId, wants: bool) {
        let changed = if wants { self.wanted.insert(host) } else { self.wanted.remove(&host) };
        if changed {
            self.denied.remove(&host);
            self.change(now, host, wants);
        }
    }

    fn change(&mut self, now: Time, host: HostId, joins: bool) {
        if self.sent == self.acked {
            (self.repeat_at, self.repeats) = (now, 0);
        }
        self.made = self.made.wrapping_add(1);
        self.queue.push_back(Change { number: self.made, host, joins });
    }

    /// A rack has lost its last agent, or has one again; says whether that changes anything.
    pub(super) fn served(&mut self, now: Time, rack: u16, agent: bool, layout: &Layout) -> bool {
        if !agent {
            return self.dark.insert(rack);
        }
        // Whoever was denied for want of it need not wait.
        for (host, (at, times)) in &mut self.denied {
            if layout.place(*host).rack == rack && *at < Time::MAX {
                (*at, *times) = (now, 0);
            }
        }
        self.dark.remove(&rack)
    }

    /// Whether a rack has no agent that could label what comes for it.
    pub(super) fn is_dark(&self, rack: u16) -> bool {
        self.dark.contains(&rack)
    }

    /// Hosts that the labels reach, if their racks are not dark.
    pub(super) const fn covered(&self) -> &BTreeSet<HostId> {
        &self.covered
    }

    /// The label to other racks (0: none), and the ports in the sender's own.
    pub(super) const fn labels(&self) -> (Label, u64) {
        (self.pilot, self.ports)
    }

    /// The session is over.
    pub(super) fn close(&mut self, now: Time) {
        if !matches!(self.stage, Stage::Closing | Stage::Closed) {
            (self.stage, self.repeat_at, self.repeats) = (Stage::Closing, now, 0);
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.stage == Stage::Closed
    }

    /// The controller has spoken; says whether the labels or who is covered may be others now.
    pub(super) fn handle(&mut self, now: Time, body: &Body) -> bool {
        match *body {
            Body::Labels { pilot, ports, change } => self.labelled(now, pilot, ports, change),
            Body::Denied { reason, change } => self.refused(now, reason, change),
            _ => false,
        }
    }

    fn labelled(&mut self, now: Time, pilot: Label, ports: u64, change: u32) -> bool {
        match self.stage {
            Stage::Creating => {
                self.stage = Stage::Ready;
                self.renew_at = now.saturating_add(RENEW);
                self.number_from(change);
            }
            Stage::Ready
                if change.wrapping_sub(self.acked) > self.made.wrapping_sub(self.acked) =>
            {
                return false; // Late, or of changes that we have not made.
            }
            Stage::Ready => {}
            Stage::Closing | Stage::Closed => return false,
        }
        if change != self.acked {
            // What is still under way is not repeated at once.
            (self.repeat_at, self.repeats) = (now.saturating_add(REPEAT), 0);
        }
        while self.queue.front().is_some_and(|first| change.wrapping_sub(first.number) < 1 << 31) {
            let Some(Change { host, joins, .. }) = self.queue.pop_front() else { break };
            if joins {
                self.denied.remove(&host);
                self.covered.insert(host);
            } else {
                self.covered.remove(&host);
            }
        }
        self.acked = change;
        if change.wrapping_sub(self.sent) < 1 << 31 {
            self.sent = change;
        }
        (self.pilot, self.ports) = (pilot, ports);
        true
    }

    fn refused(&mut self, now: Time, reason: Reason, change: u32) -> bool {
        match (self.stage, reason) {
            (Stage::Closing, _) => {
                self.stage = Stage::Closed;
                false
            }
            (Stage::Closed, _) => false,
            (_, Reason::Unknown) if self.stage == Stage::Ready => {
                // The controller has lost its memory: everything from the beginning.
                (self.stage, self.repeat_at, self.repeats) = (Stage::Creating, now, 0);
                self.covered.clear();
                self.dark.clear();
                self.denied.clear();
                self.queue.clear();
                (self.pilot, self.ports) = (Label(0), 0);
                self.number_from(0);
                for host in self.wanted.clone() {
                    self.change(now, host, true);
                }
                true
            }
            (Stage::Creating, _) => {
                (self.repeat_at, self.repeats) = (now.saturating_add(REPEAT_MOST), 6);
                false
            }
            (Stage::Ready, _) => {
                let Some(at) = self.queue.iter().position(|c| c.number == change && c.joins) else {
                    return false;
                };
                // The number is used for a change that nobody denies: out of the session, where it is not.
                self.queue[at].joins = false;
                let host = self.queue[at].host;
                self.sent = self.acked;
                self.repeat_at = now;
                let times = self.denied.get(&host).map_or(0, |(_, times)| *times);
                let wait = Span(DENIED.0 << times.min(6));
                self.denied.insert(host, (now.saturating_add(wait), times.saturating_add(1)));
                false
            }
        }
    }

    /// The changes that are not known to the controller get numbers after this one.
    fn number_from(&mut self, number: u32) {
        (self.made, self.sent, self.acked) = (number, number, number);
        for change in &mut self.queue {
            self.made = self.made.wrapping_add(1);
            change.number = self.made;
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let denied = self.denied.values().map(|(at, _)| *at).min();
        match self.stage {
            Stage::Creating | Stage::Closing => Some(self.repeat_at),
            Stage::Ready => {
                let repeat = (!self.queue.is_empty()).then_some(self.repeat_at);
                [Some(self.renew_at), repeat, denied].into_iter().flatten().min()
            }
            Stage::Closed => None,
        }
    }

    /// The next thing to tell the controller.
    pub(super) fn poll(&mut self, now: Time) -> Option<Body> {
        match self.stage {
            Stage::Closed => None,
            Stage::Closing if self.repeats >= FAREWELLS && now >= self.repeat_at => {
                self.stage = Stage::Closed;
                None
            }
            Stage::Creating | Stage::Closing => {
                if now < self.repeat_at {
                    return None;
                }
                self.repeat(now);
                Some(if self.stage == Stage::Creating { Body::Create } else { Body::Destroy })
            }
            Stage::Ready if now >= self.renew_at => {
                self.renew_at = now.saturating_add(RENEW);
                Some(Body::Renew)
            }
            Stage::Ready => self.poll_changes(now),
        }
    }

    fn poll_changes(&mut self, now: Time) -> Option<Body> {
        while let Some((&host, _)) = self.denied.iter().find(|(_, (at, _))| *at <= now) {
            // Kept, so that the next time is later; not due again until it is denied again.
            if let Some((at, _)) = self.denied.get_mut(&host) {
                *at = Time::MAX;
            }
            if self.wanted.contains(&host) && !self.covered.contains(&host) {
                self.change(now, host, true);
            }
        }
        if self.sent != self.acked && now >= self.repeat_at {
            self.sent = self.acked;
        }
        let under_way = self.sent.wrapping_sub(self.acked);
        let Change { number, host, joins } = *self.queue.get(under_way as usize)?;
        if under_way >= WINDOW {
            return None;
        }
        if under_way == 0 {
            self.repeat(now);
        }
        self.sent = number;
        Some(Body::Member { host, joins, change: number })
    }

    fn repeat(&mut self, now: Time) {
        let wait = Span(REPEAT.0 << self.repeats.min(10)).min(REPEAT_MOST);
        self.repeat_at = now.saturating_add(wait);
        self.repeats = self.repeats.saturating_add(1);
    }
}
