//! The sender's side of the control plane: its session and its members at the controller.
//!
//! The evaluation inserts labels into agents by an API (section IV.B) and does not specify how senders ask for them, so
//! these packets are our choice. Changes of members are numbered and sent in order, several at a time. The controller
//! answers with the number of the last change that all live agents have confirmed. Members that the labels do not
//! include yet get unicast copies.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rackweave_core::{HostId, Span, Time};
use rackweave_wire::orca::{Body, Label, Reason};

use crate::label::Layout;

/// The number of changes in flight at a time.
const WINDOW: u32 = 32;
/// The interval before the first repetition; it doubles up to the maximum.
const RETRY: Span = Span::from_ms(5);
const RETRY_MAX: Span = Span::from_ms(200);
/// The interval before a denied member is requested again; it doubles each time.
const DENIED_RETRY: Span = Span::from_ms(20);
/// The interval between renewals. Many fit into the time after which the controller forgets a session.
const RENEW_INTERVAL: Span = Span::from_secs(2);
/// The largest number of `Destroy` packets.
const MAX_DESTROYS: u8 = 6;

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

/// The state of a session at the controller, as far as its sender knows it.
#[derive(Clone, Debug)]
pub(super) struct Client {
    stage: Stage,
    /// The numbers of the last change that was made, of the last one sent, and of the last one that is in effect.
    last_made: u32,
    last_sent: u32,
    last_acked: u32,
    queue: VecDeque<Change>,
    retry_at: Time,
    attempts: u8,
    wanted: BTreeSet<HostId>,
    covered: BTreeSet<HostId>,
    denied: BTreeMap<HostId, (Time, u8)>,
    /// The racks without a live agent.
    unserved: BTreeSet<u16>,
    renew_at: Time,
    pilot: Label,
    ports: u64,
}

impl Client {
    pub(super) const fn new(now: Time) -> Self {
        Self {
            stage: Stage::Creating,
            last_made: 0,
            last_sent: 0,
            last_acked: 0,
            queue: VecDeque::new(),
            retry_at: now,
            attempts: 0,
            wanted: BTreeSet::new(),
            covered: BTreeSet::new(),
            denied: BTreeMap::new(),
            unserved: BTreeSet::new(),
            renew_at: Time::MAX,
            pilot: Label(0),
            ports: 0,
        }
    }

    /// Requests that data for the group reaches this host from now on, or that it need not any more.
    pub(super) fn set_member(&mut self, now: Time, host: HostId, wants: bool) {
        let changed = if wants { self.wanted.insert(host) } else { self.wanted.remove(&host) };
        if changed {
            self.denied.remove(&host);
            self.queue_change(now, host, wants);
        }
    }

    fn queue_change(&mut self, now: Time, host: HostId, joins: bool) {
        if self.last_sent == self.last_acked {
            (self.retry_at, self.attempts) = (now, 0);
        }
        self.last_made = self.last_made.wrapping_add(1);
        self.queue.push_back(Change { number: self.last_made, host, joins });
    }

    /// Records that a rack has lost its last agent, or has one again. Returns whether that is new.
    pub(super) fn set_rack_served(
        &mut self,
        now: Time,
        rack: u16,
        agent: bool,
        layout: &Layout,
    ) -> bool {
        if !agent {
            return self.unserved.insert(rack);
        }
        // Members that were denied because the rack had no agent are requested again at once.
        for (host, (at, times)) in &mut self.denied {
            if layout.place(*host).rack == rack && *at < Time::MAX {
                (*at, *times) = (now, 0);
            }
        }
        self.unserved.remove(&rack)
    }

    /// Returns whether a rack has no agent that could label data for it.
    pub(super) fn is_unserved(&self, rack: u16) -> bool {
        self.unserved.contains(&rack)
    }

    /// Returns the hosts that the labels include. They are reached if their racks have agents.
    pub(super) const fn covered(&self) -> &BTreeSet<HostId> {
        &self.covered
    }

    /// Returns the pilot label, which is 0 without other racks, and the ports of members in the sender's own rack.
    pub(super) const fn labels(&self) -> (Label, u64) {
        (self.pilot, self.ports)
    }

    /// Ends the session.
    pub(super) fn close(&mut self, now: Time) {
        if !matches!(self.stage, Stage::Closing | Stage::Closed) {
            (self.stage, self.retry_at, self.attempts) = (Stage::Closing, now, 0);
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.stage == Stage::Closed
    }

    /// Handles a packet from the controller. Returns whether the labels or the covered hosts may have changed.
    pub(super) fn handle(&mut self, now: Time, body: &Body) -> bool {
        match *body {
            Body::Labels { pilot, ports, change, .. } => self.labelled(now, pilot, ports, change),
            Body::Denied { reason, change } => self.refused(now, reason, change),
            _ => false,
        }
    }

    fn labelled(&mut self, now: Time, pilot: Label, ports: u64, change: u32) -> bool {
        match self.stage {
            Stage::Creating => {
                self.stage = Stage::Ready;
                self.renew_at = now.saturating_add(RENEW_INTERVAL);
                self.number_from(change);
            }
            Stage::Ready
                if change.wrapping_sub(self.last_acked)
                    > self.last_made.wrapping_sub(self.last_acked) =>
            {
                return false; // It is late, or about changes that were not made.
            }
            Stage::Ready => {}
            Stage::Closing | Stage::Closed => return false,
        }
        if change != self.last_acked {
            // Changes that are still in flight are not repeated at once.
            (self.retry_at, self.attempts) = (now.saturating_add(RETRY), 0);
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
        self.last_acked = change;
        if change.wrapping_sub(self.last_sent) < 1 << 31 {
            self.last_sent = change;
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
                // The controller has restarted: the session is created again with all members.
                (self.stage, self.retry_at, self.attempts) = (Stage::Creating, now, 0);
                self.covered.clear();
                self.unserved.clear();
                self.denied.clear();
                self.queue.clear();
                (self.pilot, self.ports) = (Label(0), 0);
                self.number_from(0);
                for host in self.wanted.clone() {
                    self.queue_change(now, host, true);
                }
                true
            }
            (Stage::Creating, _) => {
                (self.retry_at, self.attempts) = (now.saturating_add(RETRY_MAX), 6);
                false
            }
            (Stage::Ready, _) => {
                let Some(at) = self.queue.iter().position(|c| c.number == change && c.joins) else {
                    return false;
                };
                // The number must be used up by a change that is never denied: removing a host that is not a member.
                self.queue[at].joins = false;
                let host = self.queue[at].host;
                self.last_sent = self.last_acked;
                self.retry_at = now;
                let times = self.denied.get(&host).map_or(0, |(_, times)| *times);
                let wait = DENIED_RETRY * (1 << times.min(6));
                self.denied.insert(host, (now.saturating_add(wait), times.saturating_add(1)));
                false
            }
        }
    }

    /// Renumbers the changes that the controller does not know, starting after this number.
    fn number_from(&mut self, number: u32) {
        (self.last_made, self.last_sent, self.last_acked) = (number, number, number);
        for change in &mut self.queue {
            self.last_made = self.last_made.wrapping_add(1);
            change.number = self.last_made;
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let denied = self.denied.values().map(|(at, _)| *at).min();
        match self.stage {
            Stage::Creating | Stage::Closing => Some(self.retry_at),
            Stage::Ready => {
                let repeat = (!self.queue.is_empty()).then_some(self.retry_at);
                [Some(self.renew_at), repeat, denied].into_iter().flatten().min()
            }
            Stage::Closed => None,
        }
    }

    /// Returns the next control packet for the controller.
    pub(super) fn poll(&mut self, now: Time) -> Option<Body> {
        match self.stage {
            Stage::Closed => None,
            Stage::Closing if self.attempts >= MAX_DESTROYS && now >= self.retry_at => {
                self.stage = Stage::Closed;
                None
            }
            Stage::Creating | Stage::Closing => {
                if now < self.retry_at {
                    return None;
                }
                self.schedule_retry(now);
                Some(if self.stage == Stage::Creating { Body::Create } else { Body::Destroy })
            }
            Stage::Ready if now >= self.renew_at => {
                self.renew_at = now.saturating_add(RENEW_INTERVAL);
                Some(Body::Renew)
            }
            Stage::Ready => self.poll_changes(now),
        }
    }

    fn poll_changes(&mut self, now: Time) -> Option<Body> {
        while let Some((&host, _)) = self.denied.iter().find(|(_, (at, _))| *at <= now) {
            // The entry stays for the length of the next interval, and is not due until the member is denied again.
            if let Some((at, _)) = self.denied.get_mut(&host) {
                *at = Time::MAX;
            }
            if self.wanted.contains(&host) && !self.covered.contains(&host) {
                self.queue_change(now, host, true);
            }
        }
        if self.last_sent != self.last_acked && now >= self.retry_at {
            self.last_sent = self.last_acked;
        }
        let under_way = self.last_sent.wrapping_sub(self.last_acked);
        let Change { number, host, joins } = *self.queue.get(under_way as usize)?;
        if under_way >= WINDOW {
            return None;
        }
        if under_way == 0 {
            self.schedule_retry(now);
        }
        self.last_sent = number;
        Some(Body::Member { host, joins, change: number })
    }

    fn schedule_retry(&mut self, now: Time) {
        let wait = (RETRY * (1 << self.attempts.min(10))).min(RETRY_MAX);
        self.retry_at = now.saturating_add(wait);
        self.attempts = self.attempts.saturating_add(1);
    }
}
