//! A fabric in virtual time: links, queues and switches with their programs, without sockets and without a clock.
//!
//! The user-space switch feeds it with frames and their times; `sim::Cluster` runs group systems on it. Hosts are outside.
//!
//! # One event a hop
//! As in the simulator's engine, a link has at most one event pending, the arrival of the first packet on it, and
//! what a port would have sent since it was last looked at is decided when it is looked at next, with exactly the
//! packets that had come by then. All times are those of the packets: when the process that turns it was late, packets
//! leave late, but which packet left when, before which other, does not change.
//!
//! # Packets and their bodies
//! A packet's bytes, if it has any, are with [`Bodies`]. Whatever enters (by [`Net::arrive`], [`Net::send`], or as a
//! copy that a program asked for) is released once: by the fabric when it is dropped or consumed, else by who takes it out.

mod attach;
mod faults;
mod hop;
mod stats;
#[cfg(test)]
mod tests;

use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use rackweave_core::{
    DropReason, Fifo, HostId, Packet, PacketRef, Pool, Span, SwitchProgram, Time,
};

use crate::config::{BufferConfig, Fault};
use crate::events::EventQueue;
use crate::fabric::{Fabric, Node};
use crate::{Forwarder, PortQueue, SharedBuffer};

pub use self::attach::{Bodies, Plain};
pub use self::stats::{Counters, LinkStats, QueueSample};

use self::faults::{Faults, Stray};
use self::stats::{MAX_SAMPLES, PortStats};

/// What a [`Net`] is made of.
#[derive(Clone, Debug)]
pub struct NetConfig {
    /// Switches and links.
    pub fabric: Fabric,
    /// What goes wrong. Of hosts' faults it only tells, see [`Net::host_fault`].
    pub faults: Vec<Fault>,
    /// Everything random follows from it.
    pub seed: u64,
    /// Repetition.
    pub run: u64,
    /// Most bytes that wait for a host's own link, of those that [`Net::arrive`] is given.
    pub nic_queue_bytes: u64,
    /// How often queues are looked at for a series; zero: never.
    pub sample_every: Span,
    /// Number of wake-ups of others that it keeps: see [`Net::wake_at`].
    pub wakes: u32,
}

/// A fabric in virtual time. `P` is the program of each switch, `B` what is attached to packets.
#[derive(Debug)]
pub struct Net<P: SwitchProgram, B: Bodies<P::Header> = ()> {
    fabric: Fabric,
    /// All that was due until now has happened.
    now: Time,
    events: EventQueue,
    components: Components,
    pool: Pool<P::Header>,
    bodies: B,
    links: Vec<Link>,
    switches: Vec<Switch<P>>,
    shares_buffers: bool,
    /// How far ahead of its link a host may send.
    nic_queue: Span,
    faults: Faults,
    strays: BinaryHeap<Stray>,
    strayed: u64,
    departures: VecDeque<(Time, HostId, PacketRef)>,
    counters: Counters,
    /// Since when ports are measured.
    since: Time,
    sample_every: Span,
    series: Vec<QueueSample>,
}

/// Numbers of components in the event queue; links come first.
#[derive(Clone, Copy, Debug)]
struct Components {
    /// Hosts' links that are free again.
    free: u32,
    /// Programs' timers.
    programs: u32,
    wakes: u32,
    stray: u32,
    fault: u32,
    since: u32,
    sample: u32,
    end: u32,
}

/// A packet that has reached its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure<H> {
    /// When its last bit was there.
    pub due: Time,
    /// The host.
    pub host: HostId,
    /// The packet; what is attached to it is the caller's to release.
    pub packet: Packet<H>,
}

/// What [`Net::step`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// Something inside the fabric.
    Inside,
    /// A packet has reached a host. The caller reads it ([`Net::packet`]) and lets it go ([`Net::take`] or
    /// [`Net::discard`]).
    Arrived {
        /// The host.
        host: HostId,
        /// The packet.
        packet: PacketRef,
    },
    /// A host's link, which [`Net::send`] has given a packet, is free again.
    Free(HostId),
    /// A wake-up is due: see [`Net::wake_at`].
    Wake(u32),
    /// Some fault has begun or ended.
    Faults,
}

/// One direction of a cable, and the port that sends into it.
#[derive(Debug)]
struct Link {
    /// When the last bit of what was sent so far is out.
    busy_until: Time,
    /// What is on the way, first to arrive first.
    in_flight: Fifo,
    ps_per_byte_q16: u64,
    delay: Span,
    to: Node,
    /// The port of the switch that it leads to.
    to_port: u16,
    /// A fault is on it.
    special: bool,
    down: bool,
    /// Of a host's link: [`Net::send`] has given it a packet that is not out yet.
    sending: bool,
    /// What waits for it (a switch's ports only).
    queue: PortQueue,
    stats: PortStats,
    frames: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Switch<P> {
    program: P,
    /// The earliest timer of the program in the event queue that counts.
    armed: Time,
    /// When its timer was due last.
    timed: Option<Time>,
    forwarder: Forwarder,
    shared: Option<SharedBuffer>,
    first_link: u32,
    end_link: u32,
}

impl<P: SwitchProgram, B: Bodies<P::Header>> Net<P, B> {
    /// An idle fabric at time 0, with a program for each switch.
    #[must_use]
    pub fn new(config: NetConfig, bodies: B, mut programs: impl FnMut(u32) -> P) -> Self {
        let NetConfig { fabric, faults, seed, run, nic_queue_bytes, sample_every, wakes } = config;
        let queue = PortQueue::new(Arc::new(fabric.config().switch.queue()));
        let to_ports = ports_into(&fabric);
        let links = fabric.links().iter().zip(to_ports).map(|(spec, to_port)| Link {
            busy_until: Time::ZERO,
            in_flight: Fifo::EMPTY,
            ps_per_byte_q16: spec.ps_per_byte_q16(),
            delay: spec.delay,
            to: spec.to,
            to_port,
            special: false,
            down: false,
            sending: false,
            queue: queue.clone(),
            stats: PortStats::default(),
            frames: 0,
            bytes: 0,
        });
        let links: Vec<Link> = links.collect();
        let switches = (0..fabric.switches()).map(|number| Switch {
            program: programs(number),
            armed: Time::MAX,
            timed: None,
            forwarder: fabric.forwarder(number, seed, run),
            shared: fabric.config().switch.shared_buffer(),
            first_link: fabric.ports(number).start,
            end_link: fabric.ports(number).end,
        });
        let switches: Vec<Switch<P>> = switches.collect();
        let free = links.len() as u32;
        let programs = free + fabric.hosts();
        let first_wake = programs + switches.len() as u32;
        let stray = first_wake + wakes;
        let components = Components {
            free,
            programs,
            wakes: first_wake,
            stray,
            fault: stray + 1,
            since: stray + 2,
            sample: stray + 3,
            end: stray + 4,
        };
        let mut net = Self {
            now: Time::ZERO,
            events: EventQueue::new(components.end as usize, fabric.longest_hop().0 * 4),
            components,
            pool: Pool::new(),
            bodies,
            shares_buffers: matches!(fabric.config().switch.buffer, BufferConfig::Shared { .. }),
            nic_queue: fabric.host_rate().span_of(nic_queue_bytes),
            faults: Faults::new(faults, links.len(), seed, run),
            links,
            switches,
            strays: BinaryHeap::new(),
            strayed: 0,
            departures: VecDeque::new(),
            counters: Counters::default(),
            since: Time::ZERO,
            sample_every,
            series: Vec::new(),
            fabric,
        };
        net.start_faults();
        if sample_every > Span::ZERO {
            net.events.push_timer(Time::ZERO, net.components.sample);
        }
        for switch in 0..net.switches.len() as u32 {
            net.after_program(switch);
        }
        net
    }

    /// The fabric.
    #[must_use]
    pub const fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Number of hosts.
    #[must_use]
    pub const fn hosts(&self) -> u32 {
        self.fabric.hosts()
    }

    /// All that was due until then has happened.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.now
    }

    /// What is attached to packets.
    pub const fn bodies(&mut self) -> &mut B {
        &mut self.bodies
    }

    /// What was counted.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Packets in the fabric, on links and in queues.
    #[must_use]
    pub const fn packets(&self) -> u32 {
        self.pool.live()
    }

    /// The program of a switch.
    #[must_use]
    pub fn program(&self, switch: u32) -> &P {
        &self.switches[switch as usize].program
    }

    /// Statistics of ports begin at this time, or now if it has passed.
    pub fn measure_from(&mut self, at: Time) {
        self.events.push_timer(at.max(self.now), self.components.since);
    }

    /// When something is due next.
    #[must_use]
    pub fn next_due(&self) -> Option<Time> {
        self.events.next_at()
    }

    /// Asks for [`Happening::Wake`] at this time, or now if it has passed. `number` is below
    /// [`NetConfig::wakes`]; one may have several wake-ups pending.
    pub fn wake_at(&mut self, at: Time, number: u32) {
        self.events.push_timer(at.max(self.now), self.components.wakes + number);
    }

    /// A host hands a packet to its link. Of one host, times never decrease; a packet that is told so late that it
    /// should have been at the switch before now is there now.
    pub fn arrive(&mut self, at: Time, host: HostId, packet: Packet<P::Header>) {
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

    /// Whether a host's link is up and free: for hosts that [`Net::send`].
    #[must_use]
    #[inline]
    pub fn can_send(&self, host: HostId) -> bool {
        let link = &self.links[host.0 as usize];
        !link.down && !link.sending
    }

    /// A host whose link is free ([`Net::can_send`]) sends a packet now. [`Happening::Free`] says when it is out. A
    /// host either sends or has its packets arrive ([`Net::arrive`]), not both.
    #[inline]
    pub fn send(&mut self, host: HostId, packet: Packet<P::Header>) {
        self.counters.received += 1;
        let packet = self.pool.insert(packet);
        self.transmit(host.0, packet, self.now);
        let link = &mut self.links[host.0 as usize];
        link.sending = true;
        self.events.push(link.busy_until, self.components.free + host.0);
    }

    /// A packet that has arrived.
    #[must_use]
    #[inline]
    pub fn packet(&self, packet: PacketRef) -> &Packet<P::Header> {
        self.pool.get(packet)
    }

    /// Takes out a packet that has arrived; what is attached to it is the caller's to release.
    #[inline]
    pub fn take(&mut self, packet: PacketRef) -> Packet<P::Header> {
        self.pool.remove(packet)
    }

    /// Lets go of a packet that has arrived and was read.
    #[inline]
    pub fn free(&mut self, packet: PacketRef) {
        self.bodies.release(self.pool.get(packet));
        self.pool.remove(packet);
    }

    /// Frees a packet and counts it as dropped.
    pub fn discard(&mut self, packet: PacketRef, reason: DropReason) {
        self.counters.drops[reason as usize] += 1;
        self.free(packet);
    }

    /// The next thing that is due until then happens. `None`: there is none, and it is then now.
    #[inline]
    pub fn step(&mut self, until: Time) -> Option<Happening> {
        let Some((at, component)) = self.events.pop_until(until) else {
            self.now = self.now.max(until);
            return None;
        };
        self.now = self.now.max(at);
        self.counters.events += 1;
        let c = self.components;
        Some(if component < c.free {
            self.on_link(component)
        } else if component < c.programs {
            let host = component - c.free;
            self.links[host as usize].sending = false;
            Happening::Free(HostId(host))
        } else {
            self.on_other(component)
        })
    }

    fn on_other(&mut self, component: u32) -> Happening {
        let c = self.components;
        if component < c.wakes {
            self.on_program(component - c.programs);
        } else if component < c.stray {
            return Happening::Wake(component - c.wakes);
        } else if component == c.stray {
            return self.on_stray();
        } else if component == c.fault {
            self.on_fault();
            return Happening::Faults;
        } else if component == c.since {
            self.on_since();
        } else if component == c.sample {
            self.on_sample();
        }
        Happening::Inside
    }

    /// Everything that is due until this time happens; packets that reach their hosts wait for
    /// [`Net::departure`].
    pub fn run(&mut self, until: Time) {
        while let Some(happening) = self.step(until) {
            if let Happening::Arrived { host, packet } = happening {
                self.departures.push_back((self.now, host, packet));
            }
        }
    }

    /// The next packet that has reached its host in [`Net::run`].
    pub fn departure(&mut self) -> Option<Departure<P::Header>> {
        let (due, host, packet) = self.departures.pop_front()?;
        Some(Departure { due, host, packet: self.pool.remove(packet) })
    }

    fn switch_links(&self) -> std::ops::Range<u32> {
        self.fabric.hosts()..self.links.len() as u32
    }

    fn on_since(&mut self) {
        let now = self.now;
        self.since = now;
        self.settle();
        for link in &mut self.links {
            link.stats = PortStats::since(now, link.queue.bytes(), link.busy_until.since(now));
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
            self.events.push_timer(self.now + self.sample_every, self.components.sample);
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

    /// All links, in the fabric's order.
    pub fn link_stats(&mut self) -> Vec<LinkStats> {
        self.settle();
        let now = self.now;
        let observed = now.since(self.since).0.max(1) as f64;
        let links = self.links.iter().enumerate().map(|(number, link)| {
            let mut stats = link.stats;
            stats.queue_changes(now, link.queue.bytes(), link.queue.bytes());
            // What is still being sent counts up to now only.
            let busy = stats.busy.0.saturating_sub(link.busy_until.since(now).0);
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

/// For each link, the port of the switch that it leads to: the one whose own link leads back.
fn ports_into(fabric: &Fabric) -> Vec<u16> {
    let links = fabric.links();
    let port = |link: &crate::fabric::LinkSpec| match (link.from, link.to) {
        (Node::Host(host), Node::Switch(switch)) => {
            fabric.downlink(HostId(host)) - fabric.ports(switch).start
        }
        (from, Node::Switch(switch)) => {
            let mut ports = fabric.ports(switch);
            let first = ports.start;
            ports.find(|port| links[*port as usize].to == from).map_or(0, |port| port - first)
        }
        (_, Node::Host(_)) => 0,
    };
    links.iter().map(|link| port(link) as u16).collect()
}
