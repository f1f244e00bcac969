//! The fabric in virtual time: links, queues and switches, without sockets and without a clock.
//!
//! It is the simulator's engine with hosts that are fed from outside: a host's frames queue for its own link
//! in the order in which they came, one link has at most one event pending, and what a port would
//! have sent since it was last looked at is decided when it is looked at next, with exactly the frames
//! that had come by then. All times are those of the frames: when the process that turns it was late, frames
//! leave late, but which frame left when, before which other, does not change.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use rackweave_core::{
    Admission, DropReason, Fifo, HostId, Packet, PacketRef, Pool, Queue as _, Span, Time,
};
use rackweave_switch::config::{BufferConfig, Fault};
use rackweave_switch::fabric::{Fabric, Node, serialisation};
use rackweave_switch::{Forwarder, PortQueue, SharedBuffer};

use super::faults::Faults;
use super::frame::{Carried, Frames};
use super::stats::{Counters, LinkStats, MAX_SAMPLES, PortStats, QueueSample};

/// The fabric in virtual time.
#[derive(Debug)]
pub struct Core {
    pub(super) fabric: Fabric,
    /// All that was due until now has happened.
    pub(super) now: Time,
    due: BinaryHeap<Due>,
    order: u64,
    pub(super) pool: Pool<Carried>,
    frames: Frames,
    pub(super) links: Vec<Link>,
    pub(super) switches: Vec<Switch>,
    pub(super) shares_buffers: bool,
    /// How far ahead of its link a host may send.
    nic_queue: Span,
    pub(super) faults: Faults,
    departures: VecDeque<Departure>,
    pub(super) counters: Counters,
    /// Since when ports are measured.
    since: Time,
    sample_every: Span,
    series: Vec<QueueSample>,
}

/// What a [`Core`] is made of.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// The fabric.
    pub fabric: Fabric,
    /// What goes wrong in it. Faults of hosts are of no meaning here.
    pub faults: Vec<Fault>,
    /// Everything random follows from it.
    pub seed: u64,
    /// Repetition.
    pub run: u64,
    /// Most frames inside.
    pub frames: u32,
    /// Most bytes that wait for a host's own link.
    pub nic_queue_bytes: u64,
    /// How often queues are looked at for a series; zero: never.
    pub sample_every: Span,
}

/// A frame that has reached its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// When its last bit was there.
    pub due: Time,
    /// The host.
    pub host: HostId,
    /// The frame; its slot is the caller's to release.
    pub packet: Packet<Carried>,
}

/// One direction of a cable, and the port that sends into it.
#[derive(Debug)]
pub(super) struct Link {
    /// When the last bit of what was sent so far is out.
    pub(super) busy_until: Time,
    /// What is on the way, first to arrive first.
    pub(super) in_flight: Fifo,
    /// Time spent sending since statistics began.
    busy: Span,
    to: Node,
    ps_per_byte_q16: u64,
    delay: Span,
    /// A fault is on it.
    pub(super) special: bool,
    pub(super) down: bool,
    /// What waits for it (a switch's ports only).
    queue: PortQueue,
    pub(super) stats: PortStats,
    frames: u64,
    bytes: u64,
}

#[derive(Debug)]
pub(super) struct Switch {
    pub(super) forwarder: Forwarder,
    shared: Option<SharedBuffer>,
    first_link: u32,
    end_link: u32,
}

/// Something that is due.
#[derive(Clone, Copy, Debug)]
struct Due {
    at: Time,
    order: u64,
    what: What,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    /// The first frame on a link arrives.
    Link(u32),
    /// A late frame arrives at the end of a link.
    Stray { link: u32, packet: PacketRef },
    /// Some fault begins or ends.
    Fault,
    /// Statistics of ports begin.
    Since,
    /// Queues are looked at.
    Sample,
}

impl Ord for Due {
    /// Earliest first in a max-heap.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Due {}

impl Core {
    /// An idle fabric at time 0.
    #[must_use]
    pub fn new(config: CoreConfig) -> Self {
        let CoreConfig { fabric, faults, seed, run, frames, nic_queue_bytes, sample_every } =
            config;
        let queue = PortQueue::new(Arc::new(fabric.config().switch.queue()));
        let links = fabric.links().iter().map(|spec| Link {
            busy_until: Time::ZERO,
            in_flight: Fifo::EMPTY,
            busy: Span::ZERO,
            to: spec.to,
            ps_per_byte_q16: spec.ps_per_byte_q16(),
            delay: spec.delay,
            special: false,
            down: false,
            queue: queue.clone(),
            stats: PortStats::default(),
            frames: 0,
            bytes: 0,
        });
        let switches = (0..fabric.switches()).map(|number| Switch {
            forwarder: fabric.forwarder(number, seed, run),
            shared: fabric.config().switch.shared_buffer(),
            first_link: fabric.ports(number).start,
            end_link: fabric.ports(number).end,
        });
        let mut core = Self {
            now: Time::ZERO,
            due: BinaryHeap::new(),
            order: 0,
            pool: Pool::new(),
            frames: Frames::new(frames),
            links: links.collect(),
            switches: switches.collect(),
            shares_buffers: matches!(fabric.config().switch.buffer, BufferConfig::Shared { .. }),
            nic_queue: fabric.host_rate().span_of(nic_queue_bytes),
            faults: Faults::new(faults, fabric.links().len(), seed, run),
            departures: VecDeque::new(),
            counters: Counters::default(),
            since: Time::ZERO,
            sample_every,
            series: Vec::new(),
            fabric,
        };
        core.start_faults();
        if sample_every > Span::ZERO {
            core.at(Time::ZERO, What::Sample);
        }
        core
    }

    /// Number of hosts.
    #[must_use]
    pub const fn hosts(&self) -> u32 {
        self.fabric.hosts()
    }

    /// The bytes of frames.
    pub const fn frames(&mut self) -> &mut Frames {
        &mut self.frames
    }

    /// What was counted.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(super) fn at(&mut self, at: Time, what: What) {
        self.order += 1;
        self.due.push(Due { at, order: self.order, what });
    }

    /// Statistics of ports begin at this time, or now if it has passed.
    pub fn measure_from(&mut self, at: Time) {
        self.at(at.max(self.now), What::Since);
    }

    /// When something is due next.
    #[must_use]
    pub fn next_due(&self) -> Option<Time> {
        self.due.peek().map(|due| due.at)
    }

    /// The next frame that has reached its host.
    pub fn departure(&mut self) -> Option<Departure> {
        self.departures.pop_front()
    }

    /// A host hands a frame to its link. Of one host, times never decrease; a frame that is told so late that it
    /// should have been at the switch before now is there now.
    pub fn arrive(&mut self, at: Time, host: HostId, packet: Packet<Carried>) {
        self.counters.received += 1;
        let packet = self.pool.insert(packet);
        let link = &mut self.links[host.0 as usize];
        let start = link.busy_until.max(at);
        let full = start.since(at) > self.nic_queue;
        if link.down || full {
            link.stats.drops += 1;
            let reason = if full { DropReason::QueueFull } else { DropReason::LinkDown };
            return self.discard(packet, reason);
        }
        self.transmit(host.0, packet, start);
    }

    /// Everything that is due until this time happens.
    pub fn run(&mut self, until: Time) {
        while let Some(due) = self.due.peek()
            && due.at <= until
        {
            let Due { at, what, .. } = *due;
            self.due.pop();
            self.now = self.now.max(at);
            match what {
                What::Link(link) => self.on_link(link),
                What::Stray { link, packet } => self.hand_over(link, packet),
                What::Fault => self.on_fault(),
                What::Since => self.on_since(),
                What::Sample => self.on_sample(),
            }
        }
        self.now = self.now.max(until);
    }

    fn on_link(&mut self, link: u32) {
        let state = &mut self.links[link as usize];
        let Some(packet) = state.in_flight.pop(&self.pool) else { return };
        let next = state.in_flight.front().map(|next| self.pool.at(next));
        let special = state.special;
        if let Some(at) = next {
            self.at(at, What::Link(link));
        }
        // Decisions of the sending port that are due: at least one, if it has anything left.
        if link >= self.fabric.hosts() {
            self.catch_up(link, Time(self.now.0 + 1));
        }
        if special && !self.survives(link, packet) {
            return;
        }
        self.hand_over(link, packet);
    }

    /// Gives a frame to the node at the end of a link.
    fn hand_over(&mut self, link: u32, packet: PacketRef) {
        match self.links[link as usize].to {
            Node::Switch(switch) => self.forward(switch, packet),
            Node::Host(host) => {
                let packet = self.pool.remove(packet);
                self.departures.push_back(Departure { due: self.now, host: HostId(host), packet });
            }
        }
    }

    fn forward(&mut self, number: u32, packet: PacketRef) {
        let switch = &mut self.switches[number as usize];
        match switch.forwarder.route(self.pool.get(packet)) {
            Some(port) => {
                let link = switch.first_link + u32::from(port.0);
                self.enqueue(number, link, packet);
            }
            None => self.discard(packet, DropReason::NoRoute),
        }
    }

    /// Frees a frame and counts it.
    pub(super) fn discard(&mut self, packet: PacketRef, reason: DropReason) {
        let slot = self.pool.remove(packet).header.slot;
        self.frames.release(slot);
        self.counters.drops[reason as usize] += 1;
    }

    /// A frame wants to leave a switch by `link`.
    fn enqueue(&mut self, switch: u32, link: u32, packet: PacketRef) {
        let now = self.now;
        let state = &mut self.links[link as usize];
        if state.down {
            state.stats.drops += 1;
            return self.discard(packet, DropReason::LinkDown);
        }
        if !state.queue.is_empty() {
            self.catch_up(link, now);
        }
        let state = &self.links[link as usize];
        if state.busy_until <= now && state.queue.is_empty() {
            return self.transmit(link, packet, now);
        }
        self.wait(switch, link, packet);
    }

    /// A frame joins the queue of a busy port.
    fn wait(&mut self, number: u32, link: u32, packet: PacketRef) {
        if self.shares_buffers && !self.shared_buffer_admits(number, link, packet) {
            self.links[link as usize].stats.drops += 1;
            return self.discard(packet, DropReason::SharedBufferFull);
        }
        let switch = &mut self.switches[number as usize];
        let state = &mut self.links[link as usize];
        let before = state.queue.bytes();
        let admission = state.queue.enqueue(&mut self.pool, packet, switch.forwarder.rng());
        let after = state.queue.bytes();
        state.stats.queue_changes(self.now, before, after);
        match admission {
            Admission::Queued => {}
            Admission::Marked => self.counters.ecn_marks += 1,
            Admission::Trimmed => self.counters.trims += 1,
            Admission::TurnedBack(_) => self.counters.turned_back += 1,
            Admission::Dropped(reason) => {
                state.stats.drops += 1;
                self.counters.drops[reason as usize] += 1;
                // The queue has freed the packet, which may be another than the one that came: what was
                // in the pool's slot can be read until the next one is inserted.
                self.frames.release(self.pool.get(packet).header.slot);
            }
        }
        // A frame that was cut in place of a shorter one may leave less waiting than before.
        if let Some(shared) = &mut switch.shared {
            shared.take(after.saturating_sub(before));
            shared.give_back(before.saturating_sub(after));
        }
        if let Admission::TurnedBack(packet) = admission {
            // Not twice: what was turned back cannot be cut again.
            self.forward(number, packet);
        }
    }

    /// Whether the shared buffer has room. What other ports have sent since they were last looked at
    /// is still counted, so a "no" is only believed once they all have been.
    fn shared_buffer_admits(&mut self, number: u32, link: u32, packet: PacketRef) -> bool {
        let bytes = u64::from(self.pool.wire_bytes(packet));
        for settled in [false, true] {
            let switch = &self.switches[number as usize];
            let Some(shared) = &switch.shared else { return true };
            if shared.admits(self.links[link as usize].queue.bytes(), bytes) {
                return true;
            }
            if !settled {
                for other in switch.first_link..switch.end_link {
                    self.catch_up(other, self.now);
                }
            }
        }
        false
    }

    /// Makes the decisions of a switch port that were due before `before`.
    pub(super) fn catch_up(&mut self, link: u32, before: Time) {
        loop {
            let state = &mut self.links[link as usize];
            let start = state.busy_until;
            if start >= before {
                return;
            }
            let waiting = state.queue.bytes();
            let Some(packet) = state.queue.dequeue(&mut self.pool) else { return };
            let left = state.queue.bytes();
            state.stats.queue_changes(start, waiting, left);
            if self.shares_buffers {
                self.give_back(link, waiting - left);
            }
            self.transmit(link, packet, start);
        }
    }

    /// A frame of so many bytes has left a shared buffer.
    fn give_back(&mut self, link: u32, bytes: u64) {
        if let Node::Switch(number) = self.fabric.links()[link as usize].from
            && let Some(shared) = &mut self.switches[number as usize].shared
        {
            shared.give_back(bytes);
        }
    }

    /// Puts a frame on a link.
    fn transmit(&mut self, link: u32, packet: PacketRef, start: Time) {
        let state = &mut self.links[link as usize];
        let bytes = self.pool.wire_bytes(packet);
        let span = serialisation(state.ps_per_byte_q16, bytes);
        let end = start + span;
        state.busy_until = end;
        state.busy += span;
        state.frames += 1;
        state.bytes += u64::from(bytes);
        let mut arrival = end + state.delay;
        if arrival < self.now {
            arrival = self.now;
            self.counters.clamped += 1;
        }
        self.pool.set_at(packet, arrival);
        let was_empty = state.in_flight.is_empty();
        state.in_flight.push(&mut self.pool, packet);
        if was_empty {
            self.at(arrival, What::Link(link));
        }
    }

    /// Throws away all frames that wait for a switch's port.
    pub(super) fn drop_queue(&mut self, link: u32) {
        loop {
            let state = &mut self.links[link as usize];
            let before = state.queue.bytes();
            let Some(packet) = state.queue.dequeue(&mut self.pool) else { return };
            let after = state.queue.bytes();
            state.stats.queue_changes(self.now, before, after);
            state.stats.drops += 1;
            if self.shares_buffers {
                self.give_back(link, before - after);
            }
            self.discard(packet, DropReason::LinkDown);
        }
    }

    /// Puts a copy of a frame into the pool, if there is a slot for its bytes.
    pub(super) fn duplicate(&mut self, packet: PacketRef) -> Option<PacketRef> {
        let packet = *self.pool.get(packet);
        let slot = self.frames.copy(&packet.header)?;
        Some(self.pool.insert(packet.map(|carried| carried.at(slot))))
    }

    /// Damages the bytes of a frame.
    pub(super) fn damage(&mut self, packet: PacketRef) {
        let packet = *self.pool.get(packet);
        self.frames.damage(&packet, &mut self.faults.rng);
    }

    fn switch_links(&self) -> std::ops::Range<u32> {
        self.fabric.hosts()..self.links.len() as u32
    }

    fn on_since(&mut self) {
        let now = self.now;
        self.since = now;
        self.settle();
        for link in &mut self.links {
            link.stats = PortStats::since(now, link.queue.bytes());
            link.busy = link.busy_until.since(now);
        }
    }

    fn on_sample(&mut self) {
        self.settle();
        let waiting = || self.switch_links().map(|link| self.links[link as usize].queue.bytes());
        let sample = QueueSample {
            at: self.now,
            max_bytes: waiting().max().unwrap_or(0),
            total_bytes: waiting().sum(),
        };
        if self.series.len() < MAX_SAMPLES {
            self.series.push(sample);
            self.at(self.now + self.sample_every, What::Sample);
        }
    }

    /// Makes all decisions that were due before now.
    fn settle(&mut self) {
        for link in self.switch_links() {
            self.catch_up(link, self.now);
        }
    }

    /// Since when links are measured.
    #[must_use]
    pub const fn since(&self) -> Time {
        self.since
    }

    /// Queues over time.
    #[must_use]
    pub fn series(&self) -> &[QueueSample] {
        &self.series
    }

    /// All links.
    pub fn link_stats(&mut self) -> Vec<LinkStats> {
        self.settle();
        let now = self.now;
        let observed = now.since(self.since).0.max(1) as f64;
        let links = self.links.iter().enumerate().map(|(number, link)| {
            let mut stats = link.stats;
            stats.queue_changes(now, link.queue.bytes(), link.queue.bytes());
            // What is still being sent counts up to now only.
            let busy = link.busy.0.saturating_sub(link.busy_until.since(now).0);
            LinkStats {
                name: self.fabric.link_name(number as u32),
                utilisation: busy as f64 / observed,
                mean_queue_bytes: stats.area as f64 / observed,
                max_queue_bytes: stats.max_bytes,
                drops: stats.drops,
                queue_bytes: link.queue.bytes(),
                frames: link.frames,
                bytes: link.bytes,
            }
        });
        links.collect()
    }
}
