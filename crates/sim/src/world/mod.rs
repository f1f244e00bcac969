//! The engine: hosts, links and switches, and the loop that moves packets between them.
//!
//! # One event a hop
//! A link has at most one event pending: the arrival of the first packet on it. There is no event
//! for "the port is free again". What a port would have sent since it was last looked at is decided
//! when it is looked at next: before a packet joins its queue, and when a packet that it sent arrives
//! (`Link::busy_until` says when each decision was due). Whenever a port has packets waiting, one
//! that it sent is still on the link, so no decision is ever missed; and each is made with exactly
//! the packets that had come by then. A host's NIC works the same way, with the transports'
//! `poll_transmit` in place of the queue.

mod app;
mod channel;
mod faults;
mod host;
mod probe;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod tests;
mod thread;

use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rackweave_core::{
    Admission, DropReason, Fifo, HostId, PacketRef, Pool, Rng, Span, Time, Transport,
};
use rackweave_switch::{Forwarder, PortQueue, SharedBuffer};
use rackweave_workload::Generator;

use crate::config::{BufferConfig, Fault, MeasureConfig, StreamConfig};
use crate::events::EventQueue;
use crate::fabric::{Fabric, Node, serialisation};
use crate::result::{Counters, End, RunResult};

use app::{Messages, StreamState};
use channel::Channels;
use faults::{LinkFaults, Stray};
use host::Host;
use probe::{LinkStats, Probe};
use thread::Threads;

/// What a run tells others while it runs, and is told.
#[derive(Debug, Default)]
pub struct Control {
    /// Set it to end the run.
    pub cancel: AtomicBool,
    /// Measured messages that have ended.
    pub finished: AtomicU64,
    /// Measured messages that are wanted (`u64::MAX`: unknown).
    pub wanted: AtomicU64,
    /// Simulated time.
    pub sim_time_ps: AtomicU64,
    /// Events so far.
    pub events: AtomicU64,
}

/// What a world is built from.
#[derive(Debug)]
pub struct Setup<'a, T> {
    /// Everything random follows from it.
    pub seed: u64,
    /// Repetition.
    pub run: u64,
    /// The fabric.
    pub fabric: Fabric,
    /// For each stream: its description and the number of its transport at each host.
    pub streams: Vec<(&'a StreamConfig, u8, Generator)>,
    /// Makes the transports of a host; also after a crash.
    pub hosts: Hosts<'a, T>,
    /// What goes wrong.
    pub faults: &'a [Fault],
    /// What is measured.
    pub measure: &'a MeasureConfig,
}

/// Makes the transports of a host.
pub struct Hosts<'a, T>(pub Box<dyn FnMut(HostId) -> Vec<T> + 'a>);

impl<T> std::fmt::Debug for Hosts<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hosts")
    }
}

/// One direction of a cable, and the port that sends into it. What an idle port needs fills one
/// cache line; its queue's lists are on the second.
#[derive(Debug)]
#[repr(C, align(64))]
struct Link {
    /// When the last bit of what was sent so far is out.
    busy_until: Time,
    /// What is on the way, first to arrive first.
    in_flight: Fifo,
    /// Time spent sending since statistics began.
    busy: Span,
    to: Node32,
    /// Its rate and delay: index into [`World::kinds`].
    kind: u16,
    /// Takes the slow path: a fault is on it, or it is captured.
    special: bool,
    down: bool,
    /// What waits for it (a switch's ports only: hosts ask their transports instead).
    queue: PortQueue,
}

/// A rate and a delay: few different ones are in a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LinkKind {
    ps_per_byte_q16: u64,
    delay: Span,
}

/// A host, or (from 2^31 on) a switch.
#[derive(Clone, Copy, Debug)]
struct Node32(u32);

impl Node32 {
    #[inline]
    const fn switch(self) -> Option<u32> {
        if self.0 >> 31 == 1 { Some(self.0 & !(1 << 31)) } else { None }
    }
}

impl From<Node> for Node32 {
    fn from(node: Node) -> Self {
        match node {
            Node::Host(host) => Self(host),
            Node::Switch(switch) => Self(switch | 1 << 31),
        }
    }
}

#[derive(Debug)]
struct Switch {
    forwarder: Forwarder,
    shared: Option<SharedBuffer>,
    first_link: u32,
    end_link: u32,
}

impl Switch {
    /// The link down to a host, if it is below.
    #[inline]
    fn way_down(&self, dst: HostId) -> Option<u32> {
        self.forwarder.way_down(dst).map(|port| self.first_link + u32::from(port.0))
    }
}

/// Numbers of components in the event queue.
#[derive(Clone, Copy, Debug)]
struct Components {
    /// Links come first: component = link.
    apps: u32,
    timers: u32,
    /// Sampling, faults, delayed starts, late packets, statistics, application threads.
    sample: u32,
    fault: u32,
    later: u32,
    stray: u32,
    measure: u32,
    ports: u32,
    work: u32,
    end: u32,
}

/// A simulated fabric with its hosts, running.
pub struct World<'a, T: Transport> {
    now: Time,
    events: EventQueue,
    components: Components,
    pool: Pool<T::Header>,
    links: Vec<Link>,
    kinds: Vec<LinkKind>,
    stats: Vec<LinkStats>,
    switches: Vec<Switch>,
    hosts: Vec<Host<T>>,
    factory: Hosts<'a, T>,
    streams: Vec<StreamState<'a>>,
    messages: Messages,
    /// Submissions that follow from events: done once the host at hand has settled.
    todo: VecDeque<app::Todo>,
    /// Somebody further up the stack is doing what is to do.
    doing: bool,
    later: BinaryHeap<app::Later>,
    threads: Threads,
    channels: Channels,
    faults: &'a [Fault],
    link_faults: Vec<LinkFaults>,
    strays: BinaryHeap<Stray>,
    fault_rng: Rng,
    measure: &'a MeasureConfig,
    probe: Probe<T::Header>,
    counters: Counters,
    tally: app::Tally,
    fabric: Fabric,
    shares_buffers: bool,
    reads_ahead: bool,
}

impl<'a, T: Transport> World<'a, T> {
    /// Builds a world at time 0.
    #[must_use]
    pub fn new(setup: Setup<'a, T>) -> Self {
        let Setup { seed, run, fabric, streams, mut hosts, faults, measure } = setup;
        let (n_hosts, n_links) = (fabric.hosts(), fabric.links().len() as u32);
        let apps = n_links;
        let timers = apps + streams.len() as u32 * n_hosts;
        let sample = timers + n_hosts;
        let components = Components {
            apps,
            timers,
            sample,
            fault: sample + 1,
            later: sample + 2,
            stray: sample + 3,
            measure: sample + 4,
            ports: sample + 5,
            work: sample + 6,
            end: sample + 7,
        };
        let horizon = fabric.longest_hop().0 * 4;
        let mut kinds = Vec::new();
        let mut known_kinds = BTreeMap::new();
        let queue = PortQueue::new(Arc::new(fabric.config().switch.queue()));
        let links = fabric.links().iter().map(|spec| {
            let kind = LinkKind { ps_per_byte_q16: spec.ps_per_byte_q16(), delay: spec.delay };
            let number = *known_kinds.entry(kind).or_insert_with(|| {
                kinds.push(kind);
                // At most two for each of the hosts' delays, and those between switches.
                (kinds.len() - 1) as u16
            });
            Link {
                busy_until: Time::ZERO,
                in_flight: Fifo::EMPTY,
                busy: Span::ZERO,
                to: spec.to.into(),
                kind: number,
                special: false,
                down: false,
                queue: queue.clone(),
            }
        });
        let links: Vec<Link> = links.collect();
        let switches = (0..fabric.switches()).map(|number| Switch {
            forwarder: fabric.forwarder(number, seed, run),
            shared: fabric.config().switch.shared_buffer(),
            first_link: fabric.ports(number).start,
            end_link: fabric.ports(number).end,
        });
        let switches = switches.collect();
        let all_hosts = (0..n_hosts).map(|host| Host::new((hosts.0)(HostId(host)))).collect();
        let applications = streams.iter().map(|(config, ..)| &config.workload.application);
        let threads = Threads::new(applications, streams.len() * n_hosts as usize);
        let has_channels = streams.iter().any(|(config, ..)| config.workload.streaming.is_some());
        let mut world = Self {
            now: Time::ZERO,
            events: EventQueue::new(components.end as usize, horizon),
            components,
            pool: Pool::new(),
            stats: vec![LinkStats::default(); links.len()],
            links,
            kinds,
            switches,
            hosts: all_hosts,
            factory: hosts,
            streams: streams.into_iter().map(StreamState::new).collect(),
            messages: Messages::default(),
            todo: VecDeque::new(),
            doing: false,
            later: BinaryHeap::new(),
            threads,
            channels: Channels::new(has_channels),
            faults,
            link_faults: vec![
                LinkFaults::default();
                if faults.is_empty() { 0 } else { n_links as usize }
            ],
            strays: BinaryHeap::new(),
            fault_rng: Rng::stream(seed, run, 0, "faults"),
            measure,
            probe: Probe::default(),
            counters: Counters::default(),
            tally: app::Tally::default(),
            shares_buffers: matches!(fabric.config().switch.buffer, BufferConfig::Shared { .. }),
            reads_ahead: components.end as usize >= crate::events::LARGE,
            fabric,
        };
        world.begin();
        world
    }

    /// The first events.
    fn begin(&mut self) {
        self.start_probes();
        self.start_streams();
        self.start_faults();
    }

    /// Runs to the end and reports.
    #[must_use]
    pub fn run(mut self, control: &Control) -> RunResult<T::Header> {
        control.wanted.store(self.tally.wanted, Ordering::Relaxed);
        let end = self.run_until_end(control);
        self.publish(control);
        self.report(end)
    }

    fn publish(&self, control: &Control) {
        control.finished.store(self.tally.measured_ended, Ordering::Relaxed);
        control.sim_time_ps.store(self.now.0, Ordering::Relaxed);
        control.events.store(self.counters.events, Ordering::Relaxed);
    }

    fn run_until_end(&mut self, control: &Control) -> End {
        let limit = Time(self.measure.time_limit.0);
        loop {
            if self.is_done() {
                return End::AllDone;
            }
            // Looked at rarely: an atomic on every event would be felt.
            for _ in 0..1024 {
                let Some((at, component)) = self.events.pop() else {
                    return if self.is_done() { End::AllDone } else { End::Stalled };
                };
                if at > limit {
                    self.now = limit;
                    return if self.is_done() { End::AllDone } else { End::TimeLimit };
                }
                self.now = at;
                self.counters.events += 1;
                if self.reads_ahead {
                    self.read_ahead();
                }
                self.dispatch(component);
                if self.tally.maybe_done {
                    break;
                }
            }
            self.tally.maybe_done = false;
            self.publish(control);
            if control.cancel.load(Ordering::Relaxed) {
                return End::Cancelled;
            }
        }
    }

    /// Reads what the next few events will need, all at once: in a large fabric nearly every event
    /// waits for memory, and independent reads wait together.
    #[inline]
    fn read_ahead(&mut self) {
        let Some(components) = self.events.read_ahead() else { return };
        let links = components.filter_map(|component| self.links.get(component as usize));
        let mut sum = 0;
        // The links; then the packets that arrive and those that may be sent next; then what
        // follows on the link, and where the packets go.
        for link in links.clone() {
            sum ^= link.busy_until.0;
        }
        for link in links.clone() {
            if let Some(head) = link.in_flight.front() {
                sum ^= self.pool.at(head).0 ^ u64::from(self.pool.get(head).dst.0);
            }
            if let Some(next) = link.queue.front() {
                sum ^= u64::from(self.pool.wire_bytes(next));
            }
        }
        for link in links {
            let Some(head) = link.in_flight.front() else { continue };
            sum ^= self.pool.after(head).map_or(0, |next| self.pool.at(next).0);
            let dst = self.pool.get(head).dst;
            let out = match link.to.switch() {
                Some(switch) => self.switches[switch as usize].way_down(dst),
                None => None,
            };
            sum ^= out.map_or(0, |out| self.links[out as usize].busy_until.0);
        }
        std::hint::black_box(sum);
    }

    #[inline]
    fn dispatch(&mut self, component: u32) {
        let c = self.components;
        if component < c.apps {
            self.on_link(component);
        } else if component < c.timers {
            self.on_arrival(component - c.apps);
        } else if component < c.sample {
            self.on_timer(component - c.timers);
        } else if component == c.sample {
            self.on_sample();
        } else if component == c.fault {
            self.on_fault();
        } else if component == c.later {
            self.on_later();
        } else if component == c.stray {
            self.on_stray();
        } else if component == c.measure {
            self.on_measure();
        } else if component == c.ports {
            self.on_ports();
        } else {
            self.on_work();
        }
    }

    /// The first packet on a link arrives.
    #[inline]
    fn on_link(&mut self, link: u32) {
        let state = &mut self.links[link as usize];
        let Some(packet) = state.in_flight.pop(&self.pool) else { return };
        if let Some(next) = state.in_flight.front() {
            self.events.push(self.pool.at(next), link);
        }
        let (to, special) = (state.to, state.special);
        self.counters.packet_hops += 1;
        // Decisions of the sending port that are due: at least one, if it has anything left.
        if (link as usize) < self.hosts.len() {
            self.pull(link, self.now);
        } else {
            self.catch_up(link, Time(self.now.0 + 1));
        }
        if special && !self.survives(link, packet) {
            return;
        }
        self.hand_over(to, packet);
    }

    /// Gives a packet to the node at the end of a link.
    #[inline]
    fn hand_over(&mut self, to: Node32, packet: PacketRef) {
        match to.switch() {
            Some(switch) => self.forward(switch, packet),
            None => self.receive(to.0, packet),
        }
    }

    #[inline]
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

    /// Frees a packet and counts it.
    fn discard(&mut self, packet: PacketRef, reason: DropReason) {
        self.pool.remove(packet);
        self.counters.drops[reason as usize] += 1;
    }

    /// A packet wants to leave a switch by `link`.
    #[inline]
    fn enqueue(&mut self, switch: u32, link: u32, packet: PacketRef) {
        let now = self.now;
        let state = &self.links[link as usize];
        if state.down {
            self.stats[link as usize].drops += 1;
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

    /// A packet joins the queue of a busy port.
    #[inline]
    fn wait(&mut self, number: u32, link: u32, packet: PacketRef) {
        let now = self.now;
        if self.switches[number as usize].shared.is_some()
            && !self.shared_buffer_admits(number, link, packet)
        {
            self.stats[link as usize].drops += 1;
            return self.discard(packet, DropReason::SharedBufferFull);
        }
        let switch = &mut self.switches[number as usize];
        let queue = &mut self.links[link as usize].queue;
        let before = queue.bytes();
        let admission = queue.enqueue(&mut self.pool, packet, switch.forwarder.rng());
        let after = queue.bytes();
        let stats = &mut self.stats[link as usize];
        stats.queue_changes(now, before, after);
        match admission {
            Admission::Queued => {}
            Admission::Marked => self.counters.ecn_marks += 1,
            Admission::Trimmed => self.counters.trims += 1,
            Admission::TurnedBack(_) => self.counters.turned_back += 1,
            Admission::Dropped(reason) => {
                stats.drops += 1;
                self.counters.drops[reason as usize] += 1;
            }
        }
        // A packet that was cut in place of a shorter one may leave less waiting than before.
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
    #[inline]
    fn catch_up(&mut self, link: u32, before: Time) {
        loop {
            let start = self.links[link as usize].busy_until;
            if start >= before {
                return;
            }
            let queue = &mut self.links[link as usize].queue;
            let waiting = queue.bytes();
            let Some(packet) = queue.dequeue(&mut self.pool) else { return };
            let left = queue.bytes();
            self.stats[link as usize].queue_changes(start, waiting, left);
            if self.shares_buffers {
                self.give_back(link, waiting - left);
            }
            self.transmit(link, packet, start);
        }
    }

    /// A packet of so many bytes has left a shared buffer.
    fn give_back(&mut self, link: u32, bytes: u64) {
        if let Node::Switch(number) = self.fabric.links()[link as usize].from
            && let Some(shared) = &mut self.switches[number as usize].shared
        {
            shared.give_back(bytes);
        }
    }

    /// Puts a packet on a link.
    #[inline]
    fn transmit(&mut self, link: u32, packet: PacketRef, start: Time) {
        let state = &mut self.links[link as usize];
        let bytes = self.pool.wire_bytes(packet);
        let kind = &self.kinds[usize::from(state.kind)];
        let span = serialisation(kind.ps_per_byte_q16, bytes);
        let end = start + span;
        state.busy_until = end;
        state.busy += span;
        let arrival = end + kind.delay;
        self.pool.set_at(packet, arrival);
        let was_empty = state.in_flight.is_empty();
        state.in_flight.push(&mut self.pool, packet);
        let special = state.special;
        if was_empty {
            self.events.push(arrival, link);
        }
        if special {
            self.capture(link, packet, start);
        }
    }
}
