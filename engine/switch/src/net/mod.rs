//! A network in virtual time: links, port queues, switches with their programs, and the hosts' NICs. It has no
//! sockets and no clock.
//!
//! The simulator, the user-space switch on Linux and the networks of tests all use this engine. Hosts are
//! outside: their owner implements [`Edge`], or hands over the packets of real hosts with [`Net::arrive`].
//!
//! # One event per hop
//! A link has at most one pending event: the arrival of the first packet on it. There is no event for a port
//! that becomes free. The decisions of a port since its last update are made at the next update: before a
//! packet joins its queue, and when a packet that it sent arrives (`Link::busy_until` is the time when a
//! decision was due). Whenever a port has packets queued, a packet that it sent is still on the link, so that
//! no decision is missed; and each is made with exactly the packets that had arrived by then.
//!
//! # Lazy NICs
//! A host's NIC works in the same manner, with [`Edge::poll_transmit`] in place of the queue: the host is
//! polled for a packet as of the time when its link became free. The owner calls [`Net::flush`] before the
//! host's state changes and [`Net::wake`] after it, so that the host decides with its state of that time.
//!
//! # Payload
//! A packet's bytes, if it has any, are in a [`PayloadStore`]. Every payload that enters (by [`Net::arrive`],
//! from an [`Edge`], or as a copy requested by a program) is released once: by the network when the packet is
//! dropped or consumed, otherwise by the owner that takes the packet out.
//!
//! # Circuits
//! In a pod with an optical circuit switch ([`crate::pod`]) the far ends of links change while the network runs: see
//! [`Net::reconfigure`].

mod circuits;
mod faults;
mod hop;
mod meters;
mod nic;
mod payload;
mod pfc;
mod read_ahead;
mod shard;
mod stamps;
mod stats;
#[cfg(test)]
mod tests;
mod trace;

use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

use rackweave_core::{
    DropReason, Fifo, HostId, Packet, PacketRef, PayloadStore, Pool, Rate, Span, SwitchProgram,
    Time,
};

use crate::config::{Fault, Move};
use crate::events::{EventQueue, LARGE};
use crate::fabric::{Fabric, Node, Partition};
use crate::{Forwarder, PortQueue, SharedBuffer};

pub use self::meters::MeterConfig;
pub use self::nic::Edge;
pub use self::payload::{ForwardOnly, HasPayload, PayloadId, Slab};
pub use self::pfc::Deadlock;
pub use self::shard::Crossing;
pub use self::stats::{Captured, Counters, LinkState, LinkStats, QueueSample};
pub use self::trace::{Trace, TraceEvent, TraceFilter, TraceStep};

use self::circuits::Ocs;
use self::faults::{Delayed, Faults};
use self::meters::Meters;
use self::nic::Nics;
use self::pfc::Lossless;
use self::shard::Shard;
use self::stamps::Stamper;
use self::stats::{LinkCounts, PortStats, Taps};

/// The configuration of a [`Net`].
#[derive(Clone, Debug)]
pub struct NetConfig {
    /// Switches and links.
    pub fabric: Arc<Fabric>,
    /// Injected faults. Those of hosts are only reported: see [`Net::host_fault`].
    pub faults: Vec<Fault>,
    /// Changes of circuits at known times, in any order. Changes that the fabric cannot have
    /// ([`Fabric::with_circuits`]) are left out.
    pub moves: Vec<Move>,
    /// Seed of all random streams of the network.
    pub seed: u64,
    /// Index of the repetition. Each repetition of a seed has random streams of its own.
    pub run: u64,
    /// Maximum number of bytes queued for a host's own link, among the packets given to [`Net::arrive`].
    pub nic_queue_bytes: u64,
    /// Interval of the queue samples for [`Net::series`]; zero for no samples.
    pub sample_every: Span,
    /// Number of the owner's event sources with at most one pending event each: see [`Net::schedule`].
    pub sources: u32,
    /// Number of the owner's wake-ups: see [`Net::wake_at`].
    pub wakes: u32,
    /// Nodes with several ports: for each, its hosts of the fabric. A host is in at most one of these lists.
    pub multi_homed: Vec<Vec<HostId>>,
    /// Whether the frames and bytes of each link are counted ([`LinkStats::frames`]), which costs some time per
    /// packet.
    pub count_frames: bool,
    /// Whether queues are sampled even if no other event is pending, for an owner that asks for [`Net::is_idle`].
    pub samples_when_idle: bool,
    /// The owner's wake-up for packets that programs have consumed. [`Net::poll_consumed`] returns each of them. `None` if the owner
    /// does not ask for them.
    pub consumed_wake: Option<u32>,
    /// The division of the fabric into shards and the number of the one that this network is; `None` if it is all of the
    /// fabric. A shard has no faults and no circuits, and its programs are not active.
    pub shard: Option<(Arc<Partition>, u32)>,
}

impl NetConfig {
    /// A network without faults, for hosts with one port each and an owner without events.
    #[must_use]
    pub const fn new(fabric: Arc<Fabric>, seed: u64, run: u64) -> Self {
        Self {
            fabric,
            faults: Vec::new(),
            moves: Vec::new(),
            seed,
            run,
            nic_queue_bytes: u64::MAX,
            sample_every: Span::ZERO,
            sources: 0,
            wakes: 0,
            multi_homed: Vec::new(),
            count_frames: false,
            samples_when_idle: false,
            consumed_wake: None,
            shard: None,
        }
    }
}

/// A network in virtual time. `P` is the program of each switch, `B` the store of packets' payload.
#[derive(Debug)]
pub struct Net<P: SwitchProgram, B: PayloadStore<P::Header> = ()> {
    fabric: Arc<Fabric>,
    /// The current time: all events before it have been handled.
    now: Time,
    events: EventQueue,
    components: Components,
    pool: Pool<P::Header>,
    payloads: B,
    links: Vec<Link>,
    kinds: Vec<LinkKind>,
    stats: Vec<PortStats>,
    counts: Vec<LinkCounts>,
    /// For each link, the port of the switch that it leads to; empty if no program is active.
    to_ports: Vec<u16>,
    switches: Vec<Switch<P>>,
    nics: Nics,
    shares_buffers: bool,
    reads_ahead: bool,
    /// Whether reading ahead guesses the ports by which packets go up.
    guesses_ports: bool,
    /// How far ahead of its link a host may send, as a time on the link.
    nic_queue: Span,
    faults: Faults,
    delayed: BinaryHeap<Delayed>,
    departures: VecDeque<(Time, HostId, PacketRef)>,
    counters: Counters,
    /// The drops among them before the statistics of ports began.
    dropped_before: u64,
    taps: Taps<P::Header>,
    trace: Option<Box<Trace<P::Header>>>,
    meters: Meters,
    /// When the statistics of ports started.
    since: Time,
    sample_every: Span,
    samples_when_idle: bool,
    /// Whether the next sample has an event.
    will_sample: bool,
    series: Vec<QueueSample>,
    /// The ports towards each switch that packets have been addressed to.
    towards_switches: BTreeMap<u32, Vec<u16>>,
    /// See [`NetConfig::consumed_wake`].
    consumed_wake: Option<u32>,
    consumed: VecDeque<Consumed>,
    /// The optical circuit switch, if the fabric has one.
    ocs: Option<Box<Ocs>>,
    /// The other shards, if the network is one.
    shard: Option<Box<Shard<P::Header>>>,
    /// The state of PFC, if switches pause.
    lossless: Option<Box<Lossless>>,
    /// What ports write into packets; empty if these have no room.
    stampers: Vec<Stamper>,
}

/// Numbers of components in the event queue; links come first.
#[derive(Clone, Copy, Debug)]
struct Components {
    /// The links of hosts; those of switches follow.
    hosts: u32,
    /// The owner's sources of events.
    sources: u32,
    /// The timers of hosts.
    timers: u32,
    fault: u32,
    delayed: u32,
    since: u32,
    sample: u32,
    wakes: u32,
    programs: u32,
    /// The optical circuit switch; only fabrics that have one count it.
    ocs: u32,
    /// The decisions of ports, the pauses of links and the search for deadlocks, of fabrics with PFC.
    pfc: u32,
    end: u32,
}

/// A packet that has reached its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure<H> {
    /// When the packet's last bit arrived.
    pub due: Time,
    /// The host at which the packet arrived.
    pub host: HostId,
    /// The packet. The caller must release its payload.
    pub packet: Packet<H>,
}

/// A packet that a switch's program has consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consumed {
    /// The bytes that it occupied on a link.
    pub wire_bytes: u16,
    /// Its work ([`Header::work`](rackweave_core::Header::work)).
    pub work: u32,
}

/// The result of [`Net::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetEvent {
    /// Only events inside the network were handled; none concerns the owner.
    Internal,
    /// A packet has reached a host. The caller reads it ([`Net::packet`]) and then takes it out ([`Net::take`]) or
    /// drops it ([`Net::free`], [`Net::discard`]).
    Arrived {
        /// The receiving host.
        host: HostId,
        /// Reference to the packet in the network's pool.
        packet: PacketRef,
    },
    /// The time that [`Edge::poll_timeout`] returned for a host has come.
    Timer(HostId),
    /// An event requested by [`Net::schedule`] is due.
    Source(u32),
    /// A wake-up requested by [`Net::wake_at`] is due.
    Wake(u32),
    /// Faults have begun or ended: the owner checks [`Net::host_fault`] for its hosts.
    Faults,
    /// Ports wait for each other and none will ever send: see [`Net::deadlock`].
    Deadlock,
}

/// Maximum number of events inside the network that [`Net::step`] handles before it returns.
const MOST_INTERNAL: u32 = 1024;

/// One direction of a cable, and the port that sends into it. The state that an idle port needs fills one cache line;
/// its queue's lists are on the second.
#[derive(Debug)]
#[repr(C, align(64))]
struct Link {
    /// When the last bit of the packets sent so far leaves.
    busy_until: Time,
    /// The packets on the link, first to arrive first.
    in_flight: Fifo,
    /// Time spent sending since statistics started.
    busy: Span,
    to: Node32,
    /// Index of the link's rate and delay in [`Net::kinds`].
    kind: u16,
    /// Bits of [`FAULTY`], [`TAPPED`], [`COUNTED`], [`METERED`], [`CROSSING`], [`CHARGED`] and [`STAMPING`]; zero on most links.
    special: u8,
    /// Bits of [`DOWN`] and [`PACED`]; zero on most links, whose packets may be sent as soon as they are free.
    gate: u8,
    /// The packets queued for the link. Only ports of switches use it: hosts are polled instead.
    queue: PortQueue,
}

const _: () = assert!(size_of::<Link>() == 128);

impl Link {
    /// The time for which it was sending: what is still being sent counts up to now only.
    fn busy_by(&self, now: Time) -> Span {
        Span::from_ticks(self.busy.ticks().saturating_sub(self.busy_until.since(now).ticks()))
    }

    const fn is_down(&self) -> bool {
        self.gate & DOWN != 0
    }

    /// Whether the port has to decide what it sends next, by now.
    #[inline]
    fn is_due(&self, now: Time) -> bool {
        self.busy_until <= now && !self.queue.is_empty()
    }
}

/// The link is down.
const DOWN: u8 = 1;
/// The link's port follows PFC ([`pfc`]).
const PACED: u8 = 2;

/// The link has a fault.
const FAULTY: u8 = 1;
/// The link's packets are captured or traced.
const TAPPED: u8 = 2;
/// The link's frames are counted.
const COUNTED: u8 = 4;
/// The link's bytes are counted over time.
const METERED: u8 = 8;
/// The link leads to another shard.
const CROSSING: u8 = 16;
/// The switch at the link's end counts by PFC what arrives.
const CHARGED: u8 = 32;
/// The port before the link writes into packets ([`Header::STAMPED`]).
const STAMPING: u8 = 64;

/// A rate and a delay: a fabric has few different ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LinkKind {
    ticks_per_byte_q16: u64,
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
struct Switch<P> {
    forwarder: Forwarder,
    shared: Option<SharedBuffer>,
    first_link: u32,
    end_link: u32,
    program: P,
    /// The earliest valid time of the program's timer. Others are ignored.
    armed: Time,
    /// When the program's timer last expired.
    timed: Option<Time>,
}

impl<P: SwitchProgram, B: PayloadStore<P::Header>> Net<P, B> {
    /// An idle network at time 0, with a program for each switch.
    #[must_use]
    pub fn new(config: NetConfig, payloads: B, mut programs: impl FnMut(u32) -> P) -> Self {
        let fabric = config.fabric;
        let (links, kinds) = links_of(&fabric, config.count_frames);
        let switches = (0..fabric.switches()).map(|number| Switch {
            forwarder: fabric.forwarder(number, config.seed, config.run),
            shared: fabric.config().switch.shared_buffer(),
            first_link: fabric.ports(number).start,
            end_link: fabric.ports(number).end,
            program: programs(number),
            armed: Time::MAX,
            timed: None,
        });
        let switches: Vec<Switch<P>> = switches.collect();
        let sources = links.len() as u32;
        let timers = sources + config.sources;
        let fault = timers + fabric.hosts();
        let wakes = fault + 4;
        let programs = wakes + config.wakes;
        let ocs = programs + if P::ACTIVE { switches.len() as u32 } else { 0 };
        let pfc = ocs + u32::from(fabric.has_ocs());
        let lossless = Lossless::of(&fabric).map(Box::new);
        let components = Components {
            hosts: fabric.hosts(),
            sources,
            timers,
            fault,
            delayed: fault + 1,
            since: fault + 2,
            sample: fault + 3,
            wakes,
            programs,
            ocs,
            pfc,
            end: pfc + lossless.as_ref().map_or(0, |_| 2 * links.len() as u32 + 1),
        };
        let count_of = |wanted: bool| if wanted { links.len() } else { 0 };
        let mut net = Self {
            now: Time::ZERO,
            events: EventQueue::new(components.end as usize, fabric.longest_hop() * 4),
            components,
            pool: Pool::new(),
            payloads,
            stats: vec![PortStats::default(); links.len()],
            counts: vec![LinkCounts::default(); count_of(config.count_frames)],
            to_ports: if P::ACTIVE { ports_into(&fabric) } else { Vec::new() },
            nics: Nics::new(fabric.hosts(), &config.multi_homed),
            shares_buffers: fabric.config().switch.shared_buffer().is_some(),
            reads_ahead: components.end as usize >= LARGE,
            guesses_ports: components.end as usize >= read_ahead::GUESSES,
            nic_queue: fabric.host_rate().span_of(config.nic_queue_bytes),
            faults: Faults::new(
                config.faults,
                links.len(),
                fabric.has_ocs(),
                (config.seed, config.run),
            ),
            shard: config
                .shard
                .map(|(partition, number)| Box::new(Shard::new(number, partition, links.len()))),
            links,
            kinds,
            switches,
            delayed: BinaryHeap::new(),
            departures: VecDeque::new(),
            counters: Counters::default(),
            dropped_before: 0,
            taps: Taps::default(),
            trace: None,
            meters: Meters::default(),
            since: Time::ZERO,
            sample_every: config.sample_every,
            samples_when_idle: config.samples_when_idle,
            will_sample: false,
            series: Vec::new(),
            towards_switches: BTreeMap::new(),
            consumed_wake: config.consumed_wake,
            consumed: VecDeque::new(),
            ocs: fabric.has_ocs().then(|| Box::new(Ocs::new(config.moves, &fabric))),
            lossless,
            stampers: Vec::new(),
            fabric,
        };
        net.mark_crossing_ports();
        net.mark_stamping_ports();
        net.mark_paced_ports();
        net.start_faults();
        net.start_moves();
        if net.sample_every > Span::ZERO {
            net.events.push_timer(Time::ZERO, net.components.sample);
            net.will_sample = true;
        }
        if P::ACTIVE {
            for switch in 0..net.switches.len() as u32 {
                net.after_program(switch);
            }
        }
        net
    }

    /// The fabric that the network was built from.
    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The number of hosts.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        self.fabric.hosts()
    }

    /// The current time.
    #[must_use]
    #[inline]
    pub const fn now(&self) -> Time {
        self.now
    }

    /// The payload of packets.
    pub const fn payloads(&mut self) -> &mut B {
        &mut self.payloads
    }

    /// Counts since the network began.
    #[must_use]
    #[inline]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The packets in the network, on links and in queues.
    #[must_use]
    pub const fn packets(&self) -> u32 {
        self.pool.live()
    }

    /// The most packets that were in the network at one time.
    #[must_use]
    pub fn peak_packets(&self) -> u64 {
        self.pool.capacity_used() as u64
    }

    /// The program of a switch.
    ///
    /// # Panics
    /// If there is no such switch.
    #[must_use]
    pub fn program(&self, switch: u32) -> &P {
        &self.switches[switch as usize].program
    }

    /// When the next event is due; `None` if no event is pending.
    #[must_use]
    pub fn next_due(&self) -> Option<Time> {
        self.events.next_at()
    }

    /// Returns the next packet that a program has consumed, if [`NetConfig::consumed_wake`] asks for them.
    pub fn poll_consumed(&mut self) -> Option<Consumed> {
        self.consumed.pop_front()
    }

    /// Whether no event is pending.
    #[must_use]
    pub const fn is_quiet(&self) -> bool {
        self.events.is_empty()
    }

    /// Whether no event is pending but that of the next queue sample.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.events.len() == self.will_sample as usize
    }

    /// Requests [`NetEvent::Source`] at this time, or now if the time has passed. `source` must be below
    /// [`NetConfig::sources`] and have no pending event.
    #[inline]
    pub fn schedule(&mut self, at: Time, source: u32) {
        self.events.push(at.max(self.now), self.components.sources + source);
    }

    /// Requests [`NetEvent::Wake`] at this time, or now if the time has passed. `number` must be below
    /// [`NetConfig::wakes`]; it may have several pending wake-ups.
    pub fn wake_at(&mut self, at: Time, number: u32) {
        self.events.push_timer(at.max(self.now), self.components.wakes + number);
    }

    /// Accepts a packet that an external host puts on its link at time `at`. The times of one host must not
    /// decrease. A packet that is handed over after the time at which it should have arrived at the switch
    /// arrives there now.
    pub fn arrive(&mut self, at: Time, host: HostId, packet: Packet<P::Header>) {
        self.counters.sent += 1;
        let packet = self.pool.insert(packet);
        let link = &self.links[host.0 as usize];
        let start = link.busy_until.max(at);
        let full = start.since(at) > self.nic_queue;
        if link.is_down() || full {
            self.stats[host.0 as usize].count_drop();
            let reason = if full { DropReason::QueueFull } else { self.why_down(host.0) };
            return self.discard(packet, reason);
        }
        self.transmit(host.0, packet, start);
    }

    /// A packet that has arrived at a host.
    #[must_use]
    #[inline]
    pub fn packet(&self, packet: PacketRef) -> &Packet<P::Header> {
        self.pool.get(packet)
    }

    /// The payload of a packet that has arrived; empty if the network's store holds none.
    #[must_use]
    #[inline]
    pub fn payload(&self, packet: PacketRef) -> &[u8] {
        self.payloads.read(self.pool.get(packet))
    }

    /// Takes out a packet that has arrived at a host. The caller must release its payload.
    #[inline]
    pub fn take(&mut self, packet: PacketRef) -> Packet<P::Header> {
        self.pool.remove(packet)
    }

    /// Releases a packet that has arrived and was read.
    #[inline]
    pub fn free(&mut self, packet: PacketRef) {
        self.payloads.release(self.pool.get(packet));
        self.pool.remove(packet);
    }

    /// Releases a packet and counts it as dropped for this reason.
    pub fn discard(&mut self, packet: PacketRef, reason: DropReason) {
        self.counters.drops[reason as usize] += 1;
        if self.trace.is_some() {
            self.trace_dropped(packet, reason);
        }
        self.free(packet);
    }

    /// Counts packets that the owner has dropped.
    pub const fn count_drops(&mut self, reason: DropReason, packets: u64) {
        self.counters.drops[reason as usize] += packets;
    }

    /// Handles the events that are due by `until`, up to the first one that concerns the owner. After many that
    /// do not, it returns [`NetEvent::Internal`], so that the owner can stop. `None` if no event is due; the
    /// time does not change then.
    #[inline]
    pub fn step<E: Edge<P::Header>>(&mut self, edge: &mut E, until: Time) -> Option<NetEvent> {
        for _ in 0..MOST_INTERNAL {
            let (at, component) = self.events.pop_until(until)?;
            if E::EXTERNAL && at < self.now {
                // A frame from outside was handed over so late that it arrives now.
                self.counters.clamped += 1;
            } else {
                self.now = at;
            }
            self.counters.events += 1;
            if self.reads_ahead {
                self.read_ahead(edge);
            }
            let c = &self.components;
            if component < c.sources {
                if let Some((host, packet)) = self.on_link(edge, component) {
                    return Some(NetEvent::Arrived { host, packet });
                }
            } else if component < c.timers {
                return Some(NetEvent::Source(component - c.sources));
            } else if component < c.fault {
                let host = HostId(component - c.timers);
                if self.timer_expires(host) {
                    return Some(NetEvent::Timer(host));
                }
            } else if let Some(event) = self.on_other(edge, component) {
                return Some(event);
            }
        }
        Some(NetEvent::Internal)
    }

    fn on_other<E: Edge<P::Header>>(&mut self, edge: &mut E, component: u32) -> Option<NetEvent> {
        let c = self.components;
        if component >= c.pfc {
            return self.on_pfc(edge, component - c.pfc);
        } else if component >= c.ocs {
            self.on_circuits(edge);
        } else if component >= c.programs {
            self.on_program(component - c.programs);
        } else if component >= c.wakes {
            return Some(NetEvent::Wake(component - c.wakes));
        } else if component == c.fault {
            self.on_fault(edge);
            return Some(NetEvent::Faults);
        } else if component == c.delayed {
            let (host, packet) = self.on_delayed()?;
            return Some(NetEvent::Arrived { host, packet });
        } else if component == c.since {
            self.uncount_common_event();
            self.measure_now(edge);
        } else if component == c.sample {
            self.on_sample::<E>();
        }
        None
    }

    /// Advances the time to `until`, if it is earlier. The caller must have handled all events that were due.
    pub fn advance(&mut self, until: Time) {
        self.now = self.now.max(until);
    }

    /// Handles all events that are due by `until`; packets that reach their hosts wait for [`Net::departure`].
    pub fn run(&mut self, until: Time) {
        while let Some(event) = self.step(&mut (), until) {
            if let NetEvent::Arrived { host, packet } = event {
                self.departures.push_back((self.now, host, packet));
            }
        }
        self.advance(until);
    }

    /// The next packet that has reached its host in [`Net::run`].
    pub fn departure(&mut self) -> Option<Departure<P::Header>> {
        let (due, host, packet) = self.departures.pop_front()?;
        Some(Departure { due, host, packet: self.pool.remove(packet) })
    }

    /// The links that leave switches.
    fn switch_links(&self) -> std::ops::Range<u32> {
        self.components.hosts..self.links.len() as u32
    }
}

/// The links of a fabric, and the kinds that they refer to.
fn links_of(fabric: &Fabric, count_frames: bool) -> (Vec<Link>, Vec<LinkKind>) {
    let mut kinds = Vec::new();
    let mut known_kinds = BTreeMap::new();
    let mut queues: BTreeMap<Rate, PortQueue> = BTreeMap::new();
    let links = (0..).zip(fabric.links()).map(|(link, spec)| {
        let kind = LinkKind { ticks_per_byte_q16: spec.ticks_per_byte_q16(), delay: spec.delay };
        let number = *known_kinds.entry(kind).or_insert_with(|| {
            kinds.push(kind);
            // There are at most two kinds for each of the hosts' delays, and those of the links between
            // switches.
            (kinds.len() - 1) as u16
        });
        Link {
            busy_until: Time::ZERO,
            in_flight: Fifo::EMPTY,
            busy: Span::ZERO,
            to: spec.to.into(),
            kind: number,
            special: if count_frames { COUNTED } else { 0 },
            gate: if fabric.is_connected(link) { 0 } else { DOWN },
            queue: (queues.entry(spec.rate))
                .or_insert_with(|| {
                    let threshold = fabric.ecn_threshold(spec.rate);
                    let ramp = fabric.ecn_ramp(spec.rate);
                    PortQueue::new(Arc::new(fabric.config().switch.queue(threshold, ramp)))
                })
                .clone(),
        }
    });
    (links.collect(), kinds)
}

/// For each link, the port of the switch that it leads to: the one whose own link leads back.
fn ports_into(fabric: &Fabric) -> Vec<u16> {
    let port = |link: u32| match fabric.links()[link as usize].to {
        Node::Switch(switch) => fabric.reverse(link) - fabric.ports(switch).start,
        Node::Host(_) => 0,
    };
    (0..fabric.links().len() as u32).map(|link| port(link) as u16).collect()
}
