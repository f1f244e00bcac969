//! Pauses: nothing is lost, links stay busy, and ports that wait for each other are found.

use std::collections::BTreeMap;

use super::*;
use crate::config::{Fault, PfcConfig};

/// Hosts that send packets as fast as their links allow: to whom, with what priority, and how many.
#[derive(Clone, Debug, Default)]
struct Bursts(BTreeMap<u32, Vec<(u32, u8, u32)>>);

impl Edge<Tag> for Bursts {
    fn poll_transmit(&mut self, host: HostId, _at: Time) -> Option<Packet<Tag>> {
        let bursts = self.0.get_mut(&host.0)?;
        let (to, priority, left) = bursts.last_mut()?;
        let packet = Packet::new(host, HostId(*to), 1500, Tag { number: ROUTE, slot: 0 })
            .with_priority(*priority);
        *left -= 1;
        if *left == 0 {
            bursts.pop();
        }
        Some(packet)
    }

    fn poll_timeout(&self, _host: HostId) -> Time {
        Time::MAX
    }
}

fn incast(senders: u32, packets: u32) -> Bursts {
    Bursts((1..=senders).map(|host| (host, vec![(0, 3, packets)])).collect())
}

type Arrivals = Vec<(Time, HostId, HostId)>;

/// Runs until nothing moves, or a deadlock is found; returns when packets arrived, where, and from whom.
fn run_bursts(config: &FabricConfig, bursts: &Bursts) -> (Net<ForwardOnly<Tag>>, Arrivals) {
    run_with(config, bursts, Vec::new())
}

fn run_with(
    config: &FabricConfig,
    bursts: &Bursts,
    faults: Vec<Fault>,
) -> (Net<ForwardOnly<Tag>>, Arrivals) {
    let fabric = Arc::new(Fabric::new(config).unwrap());
    let config = NetConfig { faults, ..NetConfig::new(fabric, 1, 0) };
    let mut net = Net::new(config, (), |_| ForwardOnly::new());
    let mut edge = bursts.clone();
    let (mut arrivals, mut has_begun) = (Vec::new(), false);
    loop {
        if !has_begun && net.next_due().is_none_or(|due| due > Time::ZERO) {
            has_begun = true;
            bursts.0.keys().for_each(|host| net.wake(&mut edge, HostId(*host)));
        }
        match net.step(&mut edge, LATER) {
            Some(NetEvent::Arrived { host, packet }) => {
                arrivals.push((net.now(), host, net.packet(packet).src));
                net.free(packet);
            }
            Some(NetEvent::Deadlock) | None => return (net, arrivals),
            Some(_) => {}
        }
    }
}

fn pfc(topology: Topology) -> FabricConfig {
    let switch = SwitchConfig::default().without_marking().with_pfc(PfcConfig::default());
    FabricConfig::new(topology).with_switch(switch)
}

fn star(hosts: u32) -> FabricConfig {
    pfc(Topology::SingleSwitch { hosts, host_link: LINK })
}

#[test]
fn an_incast_loses_nothing_and_its_receiver_is_never_idle() {
    for shared in [false, true] {
        let mut config = star(65);
        config.switch = config.switch.with_pfc(PfcConfig::default().with_priorities(1 << 3));
        if shared {
            config.switch = config.switch.with_shared_buffer(1_000_000, 0.125);
        }
        let (net, arrivals) = run_bursts(&config, &incast(64, 500));
        let counters = net.counters();
        assert_eq!((arrivals.len(), counters.dropped()), (64 * 500, 0));
        assert!(counters.pauses > 64, "{counters:?}");
        let between = arrivals.windows(2).map(|pair| pair[1].0.since(pair[0].0));
        assert!(between.into_iter().all(|gap| gap == LINK.span_of(1538)), "the line is full");
        // All packets have left all counts.
        let lossless = net.lossless.as_ref().unwrap();
        assert!(lossless.is_idle(), "{lossless:?}");
    }
}

#[test]
fn pauses_are_counted_by_port_and_nobody_starves() {
    let mut config = star(5);
    config.switch = config.switch.with_pfc(PfcConfig::default().with_xoff(20_000));
    let (mut net, arrivals) = run_bursts(&config, &incast(4, 1000));
    let last: BTreeMap<u32, Time> = arrivals.iter().map(|(at, _, src)| (src.0, *at)).collect();
    let (first, latest) = (last.values().min().unwrap(), last.values().max().unwrap());
    assert!(latest.ticks() - first.ticks() < latest.ticks() / 10, "{last:?}");
    let stats = net.link_stats(&mut Bursts::default());
    let paused = |name: &str| stats.iter().find(|link| link.name == name).unwrap().clone();
    let sender = paused("h1->switch0");
    assert!(sender.pauses > 10 && sender.paused > 0.5, "a quarter of the line: {sender:?}");
    let receiver = paused("switch0->h0");
    assert_eq!((receiver.pauses, receiver.paused), (0, 0.0));
}

#[test]
fn an_idle_path_is_as_fast_as_without_pauses() {
    let with = LEAF_SPINE;
    let bursts = Bursts(BTreeMap::from([(0, vec![(5, 0, 20)])]));
    let (_, paced) = run_bursts(&pfc(with.clone()), &bursts);
    let plain = FabricConfig::new(with);
    assert_eq!(paced, run_bursts(&plain, &bursts).1);
}

#[test]
fn the_derived_headroom_suffices_and_half_of_it_does_not() {
    for gbps in [1, 10, 100] {
        for meters in [0_u64, 100, 10_000] {
            let drops = |part: u64| {
                let link = Rate::from_gbps(gbps);
                let mut config = pfc(Topology::SingleSwitch { hosts: 9, host_link: link })
                    .with_link_delay(Span::from_ns(5 * meters));
                let one = PfcConfig::default().with_priorities(1 << 3).with_xoff(10_000);
                config.switch = config.switch.with_buffer(u64::MAX).with_pfc(one);
                let headroom = Fabric::new(&config).unwrap().headroom(1);
                config.switch = config.switch.with_pfc(one.with_headroom(headroom * part / 100));
                run_bursts(&config, &incast(8, 2000)).0.counters().dropped()
            };
            assert_eq!(drops(100), 0, "{gbps} Gbps, {meters} m");
            assert!(drops(50) > 0, "{gbps} Gbps, {meters} m");
        }
    }
}

#[test]
fn a_paused_priority_does_not_hold_up_others_in_a_switch() {
    // Both hosts of the first leaf send to host 4, whose link they share; the second also sends to host 5.
    let topology = Topology::LeafSpine {
        leaves: 2,
        hosts_per_leaf: 4,
        spines: 1,
        host_link: LINK,
        core_link: LINK,
    };
    let mut config = pfc(topology);
    config.switch = config.switch.with_pfc(PfcConfig::default().with_xoff(20_000));
    let of = |victim: u8| {
        let (to_4, to_5) = ((4, 3, 500), (5, victim, 500));
        // Host 5's own leaf has three more senders to host 4.
        let near = (6..8).map(|host| (host, vec![to_4]));
        let bursts = near.chain([(0, vec![to_4]), (1, vec![to_5])]).collect();
        let (net, arrivals) = run_bursts(&config, &Bursts(bursts));
        assert_eq!(net.counters().dropped(), 0);
        arrivals.iter().rev().find(|(_, host, _)| *host == HostId(5)).unwrap().0
    };
    // Head-of-line blocking: packets to host 5 wait for packets to host 4 if they share a priority.
    let (same, other) = (of(3), of(5));
    assert!(same.ticks() > other.ticks() * 5 / 4, "{same} {other}");
}

/// Five leaves and spines, and only a ring of their cables works. The first host of each sends two leaves further, so that each
/// cable of the ring waits for the next one.
fn ring() -> (FabricConfig, Bursts, Vec<Fault>) {
    let topology = Topology::LeafSpine {
        leaves: 5,
        hosts_per_leaf: 2,
        spines: 5,
        host_link: LINK,
        core_link: LINK,
    };
    let mut config = pfc(topology);
    config.switch = config.switch.with_pfc(PfcConfig::default().with_xoff(10_000));
    let works = |leaf: u32, spine: u32| spine == leaf || (spine + 1) % 5 == leaf;
    let cables = (0..25).filter(|cable| !works(cable / 5, cable % 5));
    let faults = cables.map(|cable| Fault {
        from: Time::ZERO,
        until: Time::MAX,
        place: FaultPlace::CoreLink(cable),
        kind: FaultKind::Down,
    });
    let bursts =
        Bursts((0..5).map(|leaf| (2 * leaf, vec![((2 * leaf + 4) % 10, 3, 5000)])).collect());
    (config, bursts, faults.collect())
}

#[test]
fn ports_that_wait_for_each_other_are_a_named_deadlock() {
    let (config, bursts, faults) = ring();
    let (net, arrivals) = run_with(&config, &bursts, faults);
    assert_eq!(net.counters().dropped(), 0, "{:?}", net.counters());
    let deadlock = net.deadlock().expect("a cycle");
    let names: Vec<_> = deadlock.links.iter().map(|link| net.fabric().link_name(*link)).collect();
    assert_eq!(names.len(), 10, "{names:?}");
    assert!(names.contains(&"spine0->leaf1".to_owned()), "{names:?}");
    assert!(arrivals.len() < 5 * 5000, "{}", arrivals.len());
    assert!(net.now() < Time::ZERO + Span::from_ms(100), "{}", net.now());
}

#[test]
fn without_a_cycle_the_same_ring_ends() {
    let (config, mut bursts, faults) = ring();
    bursts.0.remove(&0);
    let (net, arrivals) = run_with(&config, &bursts, faults);
    assert_eq!((net.deadlock(), arrivals.len()), (None, 4 * 5000));
}

#[test]
fn a_link_that_fails_forgets_its_pauses() {
    let mut config = star(9);
    config.switch = config.switch.with_pfc(PfcConfig::default().with_xoff(10_000));
    let at = |ms| Time::ZERO + Span::from_ms(ms);
    let place = FaultPlace::HostLink(HostId(1));
    let fault = Fault { from: at(2), until: at(3), place, kind: FaultKind::Down };
    let (net, arrivals) = run_with(&config, &incast(8, 500), vec![fault]);
    let lost = net.counters().dropped();
    assert!(lost > 0 && lost < 10, "{lost}");
    assert_eq!(arrivals.len() as u64 + lost, 8 * 500);
    assert!(net.lossless.as_ref().unwrap().is_idle());
}
