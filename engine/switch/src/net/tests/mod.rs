//! Programs, replication, and that no packet or payload is lost or released twice.

mod circuits;
mod edge;
mod payload;
mod pfc;

use std::collections::BTreeSet;
use std::num::NonZeroU8;

use rackweave_core::{
    Ecn, Egress, Header, HostId, Packet, Port, PortSet, Rate, Rng, Slice, Verdict,
};

use super::*;
use crate::config::{
    BufferConfig, FabricConfig, FaultKind, FaultPlace, Routing, SwitchConfig, Topology, TrimConfig,
};

const LINK: Rate = Rate(1_000_000_000);
const LATER: Time = Time::from_ticks(Span::from_secs(10).ticks());

/// A header with the packet's number and its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tag {
    number: u32,
    slot: u32,
}

impl Header for Tag {
    fn payload(&self) -> Option<Slice> {
        None
    }
}

/// A payload store that detects the release of a free slot.
#[derive(Debug)]
struct Slots {
    taken: Vec<bool>,
    most: usize,
    damages: bool,
}

impl Slots {
    const fn new(most: usize) -> Self {
        Self { taken: Vec::new(), most, damages: true }
    }

    fn live(&self) -> usize {
        self.taken.iter().filter(|taken| **taken).count()
    }

    fn slot(&mut self) -> Option<u32> {
        if self.live() >= self.most {
            return None;
        }
        let free = self.taken.iter().position(|taken| !taken).unwrap_or(self.taken.len());
        if free == self.taken.len() {
            self.taken.push(false);
        }
        self.taken[free] = true;
        Some(free as u32)
    }
}

impl PayloadStore<Tag> for Slots {
    fn release(&mut self, packet: &Packet<Tag>) {
        let taken = std::mem::replace(&mut self.taken[packet.header.slot as usize], false);
        assert!(taken, "released twice: {packet:?}");
    }

    fn duplicate(&mut self, packet: &mut Packet<Tag>) -> bool {
        let slot = self.slot();
        packet.header.slot = slot.unwrap_or(packet.header.slot);
        slot.is_some()
    }

    fn damage(&mut self, _packet: &mut Packet<Tag>, _rng: &mut Rng) -> bool {
        self.damages
    }

    fn read(&self, _packet: &Packet<Tag>) -> &[u8] {
        &[]
    }

    fn write(&mut self, _packet: &Packet<Tag>) -> &mut [u8] {
        &mut []
    }

    fn combine(
        &mut self,
        _into: &Packet<Tag>,
        _from: &Packet<Tag>,
        _combine: impl FnOnce(&mut [u8], &[u8]),
    ) -> bool {
        false
    }

    fn make(&mut self, _header: Tag, _len: usize) -> Option<Tag> {
        None
    }
}

/// A program whose action is the packet's number.
#[derive(Clone, Debug, Default)]
struct Scripted {
    /// The ports at which packets arrived.
    seen: Vec<u16>,
    /// When it next sends a packet through port 0; then one per millisecond, this many.
    next: Option<Time>,
    left: u32,
    ready: u32,
}

const ROUTE: u32 = 0;
const TO_ALL: u32 = 1;
const CONSUME: u32 = 2;
const DROP: u32 = 3;
const BACK: u32 = 4;
const TO_NONE: u32 = 5;
const TO_NO_PORT: u32 = 6;
const REPLICATE_NO_PORT: u32 = 7;

impl SwitchProgram for Scripted {
    type Header = Tag;

    fn handle_packet<S: PayloadStore<Tag>>(
        &mut self,
        _now: Time,
        port: Port,
        packet: &mut Packet<Tag>,
        _payloads: &mut S,
    ) -> Verdict {
        self.seen.push(port.0);
        match packet.header.number {
            TO_ALL => Verdict::Replicate(PortSet::first(64).without(port)),
            CONSUME => Verdict::Consume,
            DROP => Verdict::Drop(DropReason::Program),
            BACK => Verdict::Forward(port),
            TO_NONE => Verdict::Replicate(PortSet::EMPTY),
            TO_NO_PORT => Verdict::Forward(Port(63)),
            REPLICATE_NO_PORT => Verdict::Replicate(PortSet::single(Port(63))),
            _ => Verdict::Route,
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        if self.next.is_some_and(|next| next <= now) {
            self.ready += 1;
            self.left -= 1;
            self.next = (self.left > 0).then_some(now + Span::from_ms(1));
        }
    }

    fn poll_transmit<S: PayloadStore<Tag>>(
        &mut self,
        _now: Time,
        _payloads: &mut S,
    ) -> Option<(Egress, Packet<Tag>)> {
        self.ready = self.ready.checked_sub(1)?;
        let header = Tag { number: self.left, slot: 0 };
        Some((Egress::Port(Port(0)), Packet::new(HostId(9), HostId(0), 100, header)))
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.next
    }
}

fn config(topology: Topology) -> FabricConfig {
    FabricConfig::new(topology)
        .with_link_delay(Span::from_us(1))
        .without_host_delays()
        .with_switch(SwitchConfig::unlimited())
}

fn single(hosts: u32) -> FabricConfig {
    config(Topology::SingleSwitch { hosts, host_link: LINK })
}

const LEAF_SPINE: Topology = Topology::LeafSpine {
    leaves: 3,
    hosts_per_leaf: 4,
    spines: 2,
    host_link: LINK,
    core_link: LINK,
};

fn net_of(config: &FabricConfig, faults: Vec<Fault>, slots: Slots, program: &Scripted) -> TestNet {
    let fabric = Arc::new(Fabric::new(config).unwrap());
    let config = NetConfig { faults, wakes: 2, count_frames: true, ..NetConfig::new(fabric, 1, 0) };
    Net::new(config, slots, |_| program.clone())
}

type TestNet = Net<Scripted, Slots>;

fn net(config: &FabricConfig) -> TestNet {
    net_of(config, Vec::new(), Slots::new(usize::MAX), &Scripted::default())
}

fn put(net: &mut TestNet, at: Time, src: u32, dst: u32, number: u32) {
    let Some(slot) = net.payloads().slot() else { return };
    let packet = Packet::new(HostId(src), HostId(dst), 1500, Tag { number, slot });
    net.arrive(at, HostId(src), packet.with_ecn(Ecn::Capable));
}

/// The packets that reached hosts, with their times.
fn departures(net: &mut TestNet, until: Time) -> Vec<(u64, u32)> {
    net.run(until);
    let mut all = Vec::new();
    while let Some(departure) = net.departure() {
        net.payloads().release(&departure.packet);
        all.push((departure.due.as_ps(), departure.host.0));
    }
    all
}

#[test]
fn a_copy_goes_out_of_each_port_and_all_arrive_at_once() {
    let mut net = net(&single(5));
    put(&mut net, Time::ZERO, 2, 0, TO_ALL);
    let out = departures(&mut net, LATER);
    // Two links of 1 Gbps and 1 us each.
    let due = 2 * (1538 * 8000 + 1_000_000);
    let hosts: BTreeSet<_> = out.iter().map(|(_, host)| *host).collect();
    assert!(out.iter().all(|(at, _)| *at == due), "{out:?}");
    assert_eq!((out.len(), hosts), (4, BTreeSet::from([0, 1, 3, 4])));
    let counters = net.counters();
    assert_eq!((counters.copied, counters.packet_hops, counters.dropped()), (3, 5, 0));
    assert_eq!((net.packets(), net.payloads().live(), net.next_due()), (0, 0, None));
    let links = net.link_stats(&mut ());
    let of = |name: &str| links.iter().find(|link| link.name == name).unwrap().frames;
    assert_eq!((of("h2->switch0"), of("switch0->h2"), of("switch0->h4")), (1, 0, 1));
}

#[test]
fn verdicts_are_obeyed_and_counted() {
    let mut net = net(&single(3));
    for number in [ROUTE, CONSUME, DROP, BACK, TO_NONE, TO_NO_PORT, REPLICATE_NO_PORT] {
        put(&mut net, Time::ZERO, 1, 2, number);
    }
    let mut hosts: Vec<_> = departures(&mut net, LATER).into_iter().map(|(_, host)| host).collect();
    hosts.sort_unstable();
    assert_eq!(hosts, [1, 2], "one came back, one was routed");
    let counters = net.counters();
    assert_eq!((counters.consumed, counters.copied), (2, 0));
    assert_eq!(counters.drops[DropReason::Program as usize], 1);
    assert_eq!(counters.drops[DropReason::NoRoute as usize], 2);
    assert_eq!((net.packets(), net.payloads().live()), (0, 0));
    assert_eq!(net.program(0).seen, [1; 7]);
}

#[test]
fn programs_know_the_port_by_which_a_packet_came() {
    let topologies = [
        LEAF_SPINE,
        Topology::fat_tree(4, LINK),
        Topology::Dumbbell { left: 2, right: 3, host_link: LINK, core_link: LINK },
        Topology::SingleSwitch { hosts: 3, host_link: LINK },
    ];
    for topology in topologies {
        let fabric = Fabric::new(&config(topology.clone())).unwrap();
        for (link, port) in fabric.links().iter().zip(ports_into(&fabric)) {
            if let Node::Switch(switch) = link.to {
                let back = fabric.ports(switch).start + u32::from(port);
                assert!(fabric.ports(switch).contains(&back));
                assert_eq!(fabric.links()[back as usize].to, link.from, "{topology:?}");
            }
        }
    }
}

#[test]
fn programs_make_packets_and_have_timers() {
    let program = Scripted { next: Some(Time::from_ps(50)), left: 3, ..Scripted::default() };
    let mut net = net_of(&single(2), Vec::new(), Slots::new(1), &program);
    let mut due = Vec::new();
    while let Some(happening) = net.step(&mut (), LATER) {
        if let NetEvent::Arrived { host, packet } = happening {
            assert_eq!(host, HostId(0));
            due.push((net.now().as_ps(), net.take(packet).header.number));
        }
    }
    let first = 50 + 138 * 8000 + 1_000_000;
    let ms = Span::from_ms(1).as_ps();
    assert_eq!(due, [(first, 2), (first + ms, 1), (first + 2 * ms, 0)]);
    assert_eq!((net.counters().made, net.next_due()), (3, None));
}

#[test]
fn copies_without_room_are_counted() {
    let mut net = net_of(&single(9), Vec::new(), Slots::new(4), &Scripted::default());
    put(&mut net, Time::ZERO, 0, 1, TO_ALL);
    assert_eq!(departures(&mut net, LATER).len(), 4, "three copies, and the packet itself");
    assert_eq!(net.counters().drops[DropReason::NoBuffer as usize], 4);
    assert_eq!(net.payloads().live(), 0);
}

#[test]
fn wake_ups_come_at_their_time_and_never_in_the_past() {
    let mut net = net(&single(2));
    net.wake_at(Time::from_ps(70), 1);
    net.wake_at(Time::from_ps(50), 0);
    net.wake_at(Time::from_ps(90), 1);
    let mut woken = Vec::new();
    while let Some(happening) = net.step(&mut (), LATER) {
        woken.push((net.now().as_ps(), happening));
        if net.now() == Time::from_ps(70) {
            net.wake_at(Time::from_ps(10), 0);
        }
        assert!(woken.len() < 10);
        if woken.len() == 3 {
            break;
        }
    }
    let wake = NetEvent::Wake;
    assert_eq!(woken[0], (50, wake(0)));
    assert_eq!(woken[1], (70, wake(1)));
    assert_eq!(woken[2], (70, wake(0)));
}

/// All faults at once, all kinds of queues, all verdicts: at the end the network is empty, and every packet has been
/// counted.
#[test]
fn no_slot_is_lost_under_faults() {
    let trim = TrimConfig::NDP.with_queues(2 * 1538, 84).with_headers_per_packet(NonZeroU8::new(2));
    let buffers = [
        (BufferConfig::PerPort { bytes: 5 * 1538 }, None),
        (BufferConfig::Shared { bytes: 20 * 1538, alpha: 1.0 }, None),
        (BufferConfig::PerPort { bytes: u64::MAX }, Some(trim)),
    ];
    let kinds = [
        FaultKind::Loss(0.05),
        FaultKind::Corruption(0.05),
        FaultKind::Duplication(0.1),
        FaultKind::Reordering { probability: 0.1, delay: Span::from_us(100) },
    ];
    for (case, (buffer, trim)) in buffers.into_iter().enumerate() {
        let mut config = config(LEAF_SPINE);
        config.switch.buffer = buffer;
        config.switch.trim = trim;
        let all =
            |kind| Fault { from: Time::ZERO, until: Time::MAX, place: FaultPlace::AllLinks, kind };
        let mut faults: Vec<_> = kinds.into_iter().map(all).collect();
        for (from_us, place) in [
            (300, FaultPlace::CoreLink(1)),
            (500, FaultPlace::HostLink(HostId(3))),
            (700, FaultPlace::CoreLinks),
        ] {
            let (from, until) =
                (Time::from_ps(from_us * 1_000_000), Time::from_ps((from_us + 150) * 1_000_000));
            faults.push(Fault { from, until, place, kind: FaultKind::Down });
        }
        let mut slots = Slots::new(300);
        slots.damages = case == 0;
        let mut net = net_of(&config, faults, slots, &Scripted::default());
        let mut rng = Rng::stream(5, 0, case as u64, "traffic");
        let mut arrived = 0;
        for step in 0..3000_u64 {
            let at = Time::from_ps(step * 1_500_000);
            arrived += departures(&mut net, at).len() as u64;
            let (src, dst) = (rng.below(12) as u32, rng.below(2) as u32);
            // Copies to all ports would circulate indefinitely through the spines.
            let number = [ROUTE, ROUTE, CONSUME, DROP, TO_NONE][rng.below(5) as usize];
            let Some(slot) = net.payloads().slot() else { continue };
            let mut packet = Packet::new(HostId(src), HostId(dst), 1500, Tag { number, slot });
            if trim.is_some() {
                packet = packet.trimmable();
            }
            net.arrive(at, HostId(src), packet);
            if step % 50 == 0 {
                // A packet to the sending host itself goes to its switch and back.
                put(&mut net, at, src, src, ROUTE);
            }
        }
        arrived += departures(&mut net, LATER).len() as u64;
        assert_eq!((net.packets(), net.payloads().live()), (0, 0), "case {case}");
        let counters = *net.counters();
        let (copies, drops) = (counters.duplicated + counters.copied, counters.drops);
        // A copy for which there was no room never became a packet.
        let dropped = counters.dropped() - drops[DropReason::NoBuffer as usize];
        assert_eq!(counters.sent + copies, arrived + dropped + counters.consumed);
        assert!(drops[DropReason::LinkDown as usize] > 0 && counters.reordered > 50);
        assert!(drops[DropReason::FaultLoss as usize] > 50 && arrived > 300, "{counters:?}");
        assert_eq!(counters.corrupted > 0, case == 0, "{counters:?}");
        assert_eq!(drops[DropReason::Corrupted as usize] > 0, case > 0);
        assert_eq!(counters.returned_to_sender > 0, trim.is_some(), "{counters:?}");
    }
}

/// The faults of a link's packets do not depend on the packets of other links.
#[test]
fn fault_draws_of_a_link_are_its_own() {
    let kinds = [
        FaultKind::Loss(0.2),
        FaultKind::Corruption(0.2),
        FaultKind::Duplication(0.2),
        FaultKind::Reordering { probability: 0.2, delay: Span::from_us(100) },
    ];
    let all =
        |kind| Fault { from: Time::ZERO, until: Time::MAX, place: FaultPlace::AllLinks, kind };
    let arrivals = |others: &[(u32, u32)], at_first: u64| {
        let faults = kinds.into_iter().map(all).collect();
        let mut slots = Slots::new(usize::MAX);
        slots.damages = false;
        let mut net = net_of(&single(6), faults, slots, &Scripted::default());
        for n in 0..1000_u64 {
            put(&mut net, Time::from_ps(n * 20_000_000), 0, 1, ROUTE);
            for (src, dst) in others {
                put(&mut net, Time::from_ps(n * 20_000_000 + at_first), *src, *dst, ROUTE);
            }
        }
        let mut arrived = departures(&mut net, LATER);
        arrived.retain(|(_, host)| *host == 1);
        arrived
    };
    let expected = arrivals(&[], 0);
    assert!((500..900).contains(&expected.len()), "{}", expected.len());
    // Before the flow's packets, after them, and at the same time.
    for at_first in [0, 10, 7_000_000] {
        assert_eq!(arrivals(&[(2, 3), (5, 4), (3, 2)], at_first), expected);
    }
    // Packets that share the last link change what this link draws.
    assert_ne!(arrivals(&[(2, 1)], 7_000_000), expected);
}

/// Captures hold the first packets by the time at which they were sent, although links are recorded as they are
/// updated.
#[test]
fn captures_are_cut_by_time() {
    let captured = |from, limit| {
        let mut net = net(&single(6));
        for link in [7, 6, 0, 3] {
            net.tap(link);
        }
        net.limit_captures(from, limit);
        for n in 0..2000_u64 {
            put(&mut net, Time::from_ps(n * 3_000_000), 0, 1, ROUTE);
            put(
                &mut net,
                Time::from_ps(n * 3_000_000 + 50),
                3,
                if n % 3 == 0 { 0 } else { 1 },
                ROUTE,
            );
        }
        departures(&mut net, LATER);
        let captured = net.take_captures();
        captured.into_iter().map(|packet| (packet.at, packet.interface)).collect::<Vec<_>>()
    };
    let all = captured(Time::ZERO, usize::MAX);
    assert!(all.len() > 7000 && all.is_sorted(), "{}", all.len());
    for limit in [0, 1, 1000, 3001, all.len() - 1] {
        assert_eq!(captured(Time::ZERO, limit), all[..limit]);
    }
    let from = all[500].0;
    let first = all.partition_point(|(at, _)| *at < from);
    assert_eq!(
        captured(from, 1000),
        all[first..first + 1000],
        "what was sent before does not count"
    );
}

/// Replication under faults on one switch, where copies cannot circulate.
#[test]
fn no_copy_is_lost_under_faults() {
    let kinds = [FaultKind::Loss(0.1), FaultKind::Corruption(0.1), FaultKind::Duplication(0.1)];
    let all =
        |kind| Fault { from: Time::ZERO, until: Time::MAX, place: FaultPlace::AllLinks, kind };
    let mut config = single(8);
    config.switch.buffer = BufferConfig::PerPort { bytes: 3 * 1538 };
    let mut faults: Vec<_> = kinds.into_iter().map(all).collect();
    faults.push(Fault {
        from: (Time::ZERO + Span::from_ms(2)),
        until: (Time::ZERO + Span::from_ms(3)),
        place: FaultPlace::HostLink(HostId(7)),
        kind: FaultKind::Down,
    });
    let mut net = net_of(&config, faults, Slots::new(60), &Scripted::default());
    let mut arrived = 0;
    for n in 0..2000_u64 {
        let at = Time::from_ps(n * 12_000_000);
        arrived += departures(&mut net, at).len() as u64;
        put(&mut net, at, (n % 3) as u32, 0, TO_ALL);
    }
    arrived += departures(&mut net, LATER).len() as u64;
    let counters = *net.counters();
    assert_eq!((net.packets(), net.payloads().live()), (0, 0));
    for reason in [DropReason::QueueFull, DropReason::FaultLoss, DropReason::LinkDown] {
        assert!(counters.drops[reason as usize] > 0, "{reason:?} {counters:?}");
    }
    assert!(counters.copied > 2000 && arrived > 2000, "{arrived} {counters:?}");
}
