//! Flows that start and end.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use rackweave_core::rng::mix;
use rackweave_core::time::TICKS_PER_SECOND;
use rackweave_core::{Event, FailReason, Framing, HostId, Span, Submit, Time};

use super::share::{MaxMin, Path};
use crate::fabric::Fabric;

/// How transfers become flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Rates are computed at most once in this time. Zero: at each start and end of a flow, which is exact, and costs for each of them the time
    /// of all flows. Otherwise a flow that starts in between takes what its links have left, which usually is what the previous one of
    /// its host had.
    pub interval: Span,
    /// The packets that would carry a transfer: their headers count.
    pub framing: Framing,
    /// Maximum rate of what a host sends, in bits per second; `None`: that of its link.
    pub host_rate: Option<u64>,
}

/// After this time the peers of a host that has crashed learn it. Rackweave's choice: TCP's depends on its retransmission timer.
const FAILURE: Span = Span::from_secs(1);

/// A flow.
#[derive(Clone, Debug)]
struct Flow {
    src: HostId,
    message: Submit,
    /// What is left, in bits times ticks per second.
    left: u128,
    rate: u64,
    /// When `left` was computed.
    since: Time,
    /// Ends that were computed for an earlier rate are ignored.
    stamp: u64,
    wire_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    End { slot: u32, stamp: u64 },
    Fill,
    Deliver { number: u32 },
}

/// Picoseconds of a second.
const SECOND: u128 = TICKS_PER_SECOND as u128;

/// Transfers between the hosts of a fabric.
#[derive(Debug)]
pub struct Fluid {
    config: Config,
    fabric: Arc<Fabric>,
    shares: MaxMin,
    flows: Vec<Option<Flow>>,
    /// The links of each flow; empty where there is none.
    paths: Vec<Path>,
    free: Vec<u32>,
    rates: Vec<u64>,
    /// What is left of each link; below 0 where its flows have 1 bit per second each, and that is more than it has.
    spare: Vec<i64>,
    /// The bytes that each link has carried.
    bytes: Vec<u64>,
    due: BinaryHeap<Reverse<(Time, u64, Due)>>,
    /// Events for hosts that have not come yet.
    events: Vec<Option<(HostId, Event)>>,
    free_events: Vec<u32>,
    paths_of: BTreeMap<(HostId, HostId), Path>,
    sequence: u64,
    filled: Option<Time>,
    will_fill: bool,
    active: usize,
    fills: u64,
}

impl Fluid {
    /// No flows yet.
    #[must_use]
    pub fn new(config: Config, fabric: Arc<Fabric>) -> Self {
        let hosts = fabric.hosts() as usize;
        let cap = config.host_rate.unwrap_or(u64::MAX);
        let rate = |(number, rate): (usize, u64)| if number < hosts { rate.min(cap) } else { rate };
        let rates = fabric.links().iter().map(|link| link.rate.0);
        let capacity: Vec<u64> = rates.enumerate().map(rate).collect();
        Self {
            config,
            spare: capacity.iter().map(|rate| *rate as i64).collect(),
            bytes: vec![0; capacity.len()],
            shares: MaxMin::new(capacity),
            fabric,
            flows: Vec::new(),
            paths: Vec::new(),
            free: Vec::new(),
            rates: Vec::new(),
            due: BinaryHeap::new(),
            events: Vec::new(),
            free_events: Vec::new(),
            paths_of: BTreeMap::new(),
            sequence: 0,
            filled: None,
            will_fill: false,
            active: 0,
            fills: 0,
        }
    }

    /// Starts a transfer from a host.
    pub fn start(&mut self, now: Time, src: HostId, message: Submit) {
        let path = self.path(src, message.peer);
        let wire_bytes = self.config.framing.message_wire_bytes(message.bytes);
        let spare = path.iter().map(|link| self.spare[*link as usize]).min();
        let rate = spare.unwrap_or(0).max(0) as u64;
        self.sequence += 1;
        let left = u128::from(wire_bytes) * 8 * SECOND;
        let flow = Flow { src, message, left, rate, since: now, stamp: self.sequence, wire_bytes };
        for link in &path {
            self.spare[*link as usize] -= rate as i64;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.flows.push(None);
            self.paths.push(Path::new());
            self.flows.len() as u32 - 1
        });
        self.schedule_end(slot, &flow);
        self.flows[slot as usize] = Some(flow);
        self.paths[slot as usize] = path;
        self.active += 1;
        self.change(now);
    }

    /// Returns the next event for a host that is due by `now`.
    pub fn poll(&mut self, now: Time) -> Option<(HostId, Event)> {
        while let Some(&Reverse((at, _, due))) = self.due.peek()
            && at <= now
        {
            self.due.pop();
            match due {
                Due::Fill => {
                    self.will_fill = false;
                    self.fill(at);
                }
                Due::End { slot, stamp } => self.end(at, slot, stamp),
                Due::Deliver { number } => {
                    self.free_events.push(number);
                    if let Some(event) = self.events[number as usize].take() {
                        return Some(event);
                    }
                }
            }
        }
        None
    }

    /// Returns when [`Fluid::poll`] is to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.due.peek().map(|Reverse((at, ..))| *at)
    }

    /// The host has crashed: its transfers end, and the hosts at their other ends learn that later.
    pub fn crash(&mut self, now: Time, host: HostId) {
        for slot in 0..self.flows.len() as u32 {
            let ends = |flow: &&Flow| flow.src == host || flow.message.peer == host;
            if self.flows[slot as usize].as_ref().is_some_and(|flow| ends(&flow))
                && let Some(flow) = self.remove(now, slot)
            {
                let other = if flow.src == host { flow.message.peer } else { flow.src };
                let reason = FailReason::PeerSilent;
                let event = Event::Failed { peer: host, id: flow.message.id, reason };
                self.deliver(now + FAILURE, other, event);
            }
        }
        for event in &mut self.events {
            if event.is_some_and(|(to, _)| to == host) {
                *event = None;
            }
        }
    }

    /// The bytes that each link has carried in whole transfers, with headers and gaps.
    #[must_use]
    pub fn link_bytes(&self) -> &[u64] {
        &self.bytes
    }

    /// The number of flows.
    #[must_use]
    pub const fn active(&self) -> usize {
        self.active
    }

    /// How often the rates of all flows have been computed.
    #[must_use]
    pub const fn fills(&self) -> u64 {
        self.fills
    }

    /// The rate of a host's flow to another, in bits per second; 0 if there is none.
    #[must_use]
    pub fn rate(&self, src: HostId, dst: HostId) -> u64 {
        let own = |flow: &&Flow| flow.src == src && flow.message.peer == dst;
        self.flows.iter().flatten().find(own).map_or(0, |flow| flow.rate)
    }

    /// The path of a connection: of several equal ones, by a hash of its ends, as with ECMP.
    fn path(&mut self, src: HostId, dst: HostId) -> Path {
        let fabric = &self.fabric;
        let path = self.paths_of.entry((src, dst)).or_insert_with(|| {
            fabric.path_by(src, dst, mix(u64::from(src.0) << 32 | u64::from(dst.0)) as u32)
        });
        path.clone()
    }

    fn delay(&self, path: &[u32]) -> Span {
        let links = self.fabric.links();
        path.iter().fold(Span::ZERO, |sum, link| sum + links[*link as usize].delay)
    }

    fn end(&mut self, at: Time, slot: u32, stamp: u64) {
        if self.flows[slot as usize].as_ref().is_none_or(|flow| flow.stamp != stamp) {
            return;
        }
        let delay = self.delay(&self.paths[slot as usize]);
        let Some(flow) = self.remove(at, slot) else { return };
        let Submit { id, peer, bytes, kind } = flow.message;
        self.deliver(at + delay, peer, Event::Delivered { peer: flow.src, id, bytes, kind });
        self.deliver(at + delay * 2, flow.src, Event::Sent { peer, id });
    }

    fn remove(&mut self, now: Time, slot: u32) -> Option<Flow> {
        let mut flow = self.flows[slot as usize].take()?;
        flow.advance(now);
        let left_bytes = (flow.left / (8 * SECOND)) as u64;
        for link in self.paths[slot as usize].drain(..) {
            self.spare[link as usize] += flow.rate as i64;
            self.bytes[link as usize] += flow.wire_bytes.saturating_sub(left_bytes);
        }
        self.free.push(slot);
        self.active -= 1;
        self.change(now);
        Some(flow)
    }

    fn deliver(&mut self, at: Time, to: HostId, event: Event) {
        let number = self.free_events.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() as u32 - 1
        });
        self.events[number as usize] = Some((to, event));
        self.push(at, Due::Deliver { number });
    }

    fn push(&mut self, at: Time, due: Due) {
        self.sequence += 1;
        self.due.push(Reverse((at, self.sequence, due)));
    }

    /// The set of flows has changed: rates are computed when that is permitted again.
    fn change(&mut self, now: Time) {
        if !self.will_fill {
            self.will_fill = true;
            let at = self.filled.map_or(now, |filled| (filled + self.config.interval).max(now));
            self.push(at, Due::Fill);
        }
    }

    fn schedule_end(&mut self, slot: u32, flow: &Flow) {
        if let Some(at) = flow.end() {
            let due = Due::End { slot, stamp: flow.stamp };
            self.push(at, due);
        }
    }

    fn fill(&mut self, now: Time) {
        self.fills += 1;
        self.filled = Some(now);
        let mut rates = std::mem::take(&mut self.rates);
        self.shares.fill(&self.paths, &mut rates);
        for (slot, (flow, &new)) in self.flows.iter_mut().zip(&rates).enumerate() {
            let Some(flow) = flow else { continue };
            let old = flow.rate;
            if old == new {
                continue;
            }
            flow.advance(now);
            flow.rate = new;
            self.sequence += 1;
            flow.stamp = self.sequence;
            let due = Due::End { slot: slot as u32, stamp: flow.stamp };
            if let Some(at) = flow.end() {
                self.sequence += 1;
                self.due.push(Reverse((at, self.sequence, due)));
            }
            for link in &self.paths[slot] {
                self.spare[*link as usize] += old as i64 - new as i64;
            }
        }
        self.rates = rates;
    }
}

impl Flow {
    fn advance(&mut self, now: Time) {
        let moved = u128::from(self.rate) * u128::from(now.since(self.since).ticks());
        self.left = self.left.saturating_sub(moved);
        self.since = now;
    }

    /// When the flow ends at its present rate.
    fn end(&self) -> Option<Time> {
        (self.rate > 0).then(|| {
            let ticks = self.left.div_ceil(u128::from(self.rate));
            self.since.saturating_add(Span::from_ticks(u64::try_from(ticks).unwrap_or(u64::MAX)))
        })
    }
}
