//! Circuits that change while packets are under way.

use super::*;
use crate::config::{Circuits, Dark, Move, Ocs, Pod, Tor};

/// The seed's pod: 8 servers, and ToRs with 4, 2 and 2 server ports.
fn pod(circuits: Circuits, uplinks: [u32; 3], circuit_ports: [u32; 3], ocs: Ocs) -> FabricConfig {
    let tors = [4, 2, 2].into_iter().zip(uplinks).zip(circuit_ports);
    let tor =
        |((server_ports, uplinks), circuit_ports)| Tor { server_ports, uplinks, circuit_ports };
    let tors = tors.map(tor).collect();
    config(Topology::Pod(Arc::new(Pod { tors, host_link: LINK, core_link: LINK, circuits, ocs })))
}

const fn ocs(dark: Dark, switching_us: u64, link_us: u64) -> Ocs {
    Ocs { switching_delay: Span::from_us(switching_us), link_delay: Span::from_us(link_us), dark }
}

fn in_order() -> Circuits {
    Circuits::Servers(vec![0, 0, 0, 0, 1, 1, 2, 2])
}

fn rackless(ocs: Ocs) -> FabricConfig {
    pod(in_order(), [1, 1, 1], [0, 0, 0], ocs)
}

/// Servers 3 and 4 exchange their ToRs.
fn exchanged() -> Circuits {
    Circuits::Servers(vec![0, 0, 0, 1, 0, 1, 2, 2])
}

fn lost(net: &TestNet) -> u64 {
    net.counters().drops[DropReason::Reconfiguration as usize]
}

fn at_us(us: u64) -> Time {
    Time::ZERO + Span::from_us(us)
}

const fn before(at: Time, span: u64) -> Time {
    Time::from_ps(at.as_ps() - span)
}

/// All ways to connect 8 servers to ports 4, 2 and 2.
fn configurations() -> Vec<Circuits> {
    let mut all = Vec::new();
    for n in 0..3_u32.pow(8) {
        let tors: Vec<u16> = (0..8).map(|server| (n / 3_u32.pow(server) % 3) as u16).collect();
        let count = |tor| tors.iter().filter(|it| **it == tor).count();
        if [count(0), count(1), count(2)] == [4, 2, 2] {
            all.push(Circuits::Servers(tors));
        }
    }
    all
}

const FRAME: u64 = 1538 * 8000;
const FLIGHT: u64 = FRAME + 1_000_000;

#[test]
fn packets_find_every_server_in_each_configuration() {
    let mut all = configurations();
    assert_eq!(all.len(), 420);
    // Not in the order of enumeration, so that many servers move at once.
    let mut rng = Rng::stream(3, 0, 0, "order");
    for left in (1..all.len()).rev() {
        all.swap(left, rng.below(left as u64 + 1) as usize);
    }
    let mut net = net(&rackless(ocs(Dark::Moved, 20, 5)));
    for circuits in &all {
        net.reconfigure(&mut (), circuits).unwrap();
        net.run(net.now() + Span::from_us(25));
        let Circuits::Servers(tors) = circuits else { panic!("{circuits:?}") };
        for (src, dst) in (0..8).flat_map(|src| (0..8).map(move |dst| (src, dst))) {
            let before = net.now();
            put(&mut net, before, src, dst, ROUTE);
            net.run(before + Span::from_ms(1));
            let arrived = net.departure().expect("it arrives");
            net.payloads().release(&arrived.packet);
            let links = if tors[src as usize] == tors[dst as usize] { 2 } else { 4 };
            let path = net.fabric().path(HostId(src), HostId(dst));
            assert_eq!((arrived.host, path.len()), (HostId(dst), links), "{circuits:?}");
            assert_eq!(
                arrived.due.since(before),
                Span::from_ps(FLIGHT * links as u64),
                "{circuits:?}"
            );
        }
    }
    assert_eq!((net.counters().dropped(), net.packets()), (0, 0));
}

/// A host whose link is dark is not polled; it is polled at the time at which the link comes up.
#[test]
fn a_nic_holds_packets_back_for_exactly_the_dark_time() {
    #[derive(Debug, Default)]
    struct Sender(Vec<u64>);
    impl Edge<Tag> for Sender {
        fn poll_transmit(&mut self, host: HostId, at: Time) -> Option<Packet<Tag>> {
            if host != HostId(3) {
                return None;
            }
            self.0.push(at.as_ps());
            Some(Packet::new(host, HostId(0), 1500, Tag { number: ROUTE, slot: 0 }))
        }
        fn poll_timeout(&self, _host: HostId) -> Time {
            Time::MAX
        }
    }
    for (dark, circuits, stops) in [
        (Dark::Moved, exchanged(), true),
        (Dark::All, exchanged(), true),
        (Dark::Moved, Circuits::Servers(vec![0, 0, 0, 0, 1, 2, 1, 2]), false),
        (Dark::All, Circuits::Servers(vec![0, 0, 0, 0, 1, 2, 1, 2]), true),
        // Nothing moves.
        (Dark::All, in_order(), false),
    ] {
        let fabric = Arc::new(Fabric::new(&rackless(ocs(dark, 1000, 234))).unwrap());
        let moved = Move { at: at_us(100), circuits };
        let config = NetConfig { moves: vec![moved], ..NetConfig::new(fabric, 1, 0) };
        let mut net: Net<ForwardOnly<Tag>> = Net::new(config, (), |_| ForwardOnly::new());
        let mut sender = Sender::default();
        net.wake(&mut sender, HostId(3));
        while let Some(event) = net.step(&mut sender, at_us(3000)) {
            if let NetEvent::Arrived { packet, .. } = event {
                net.free(packet);
            }
        }
        let gap = |pair: &[u64]| pair[1] - pair[0] != FRAME;
        let gaps: Vec<&[u64]> = sender.0.windows(2).filter(|pair| gap(pair)).collect();
        if stops {
            assert_eq!(gaps.len(), 1, "{dark:?}");
            assert!(gaps[0][0] < at_us(100).as_ps());
            assert_eq!(gaps[0][1], at_us(1334).as_ps(), "{dark:?}");
            // What was on the uplink, and on the link to host 0 if that is dark too.
            let lost = net.counters().drops[DropReason::Reconfiguration as usize];
            assert!((1..=3).contains(&lost), "{lost}");
        } else {
            assert_eq!((gaps.len(), net.counters().dropped()), (0, 0), "{dark:?}");
        }
    }
}

#[test]
fn a_tor_drops_what_it_would_send_into_a_dark_port_for_exactly_the_dark_time() {
    // From host 0 to host 4, which comes to ToR 0 by a change at 100 us that takes 50 us.
    let delivered = |arrival: u64| {
        let mut net = net(&rackless(ocs(Dark::Moved, 30, 20)));
        put(&mut net, Time::from_ps(arrival - FLIGHT), 0, 4, ROUTE);
        net.run(before(at_us(100), 1));
        net.advance(at_us(100));
        assert_eq!(net.reconfigure(&mut (), &exchanged()), Ok(at_us(150)));
        let arrived = departures(&mut net, LATER).len();
        assert_eq!((net.packets(), arrived as u64 + lost(&net)), (0, 1));
        arrived == 1
    };
    let (from, until) = (at_us(100).as_ps(), at_us(150).as_ps());
    assert!(delivered(until + 1000), "a nanosecond after the links are up");
    assert!(!delivered(until - 1000));
    assert!(!delivered(from + 1000));
}

#[test]
fn what_is_on_moved_links_is_lost_and_nothing_else() {
    // At 100 us: a packet of host 3, which moves, on its uplink; two to host 4, which moves, on the last link, and one
    // that waits for that link; and a packet between hosts that stay.
    let mut net = net(&rackless(ocs(Dark::Moved, 30, 20)));
    let moved = at_us(100);
    put(&mut net, before(moved, 1000), 3, 0, ROUTE);
    for (src, travel) in [(6, 3 * FLIGHT + FRAME), (0, 3 * FLIGHT), (5, FLIGHT)] {
        put(&mut net, before(moved, travel + 500_000), src, 4, ROUTE);
    }
    put(&mut net, before(moved, 1000), 1, 7, ROUTE);
    net.run(before(moved, 1));
    net.advance(moved);
    assert_eq!(net.packets(), 5);
    net.reconfigure(&mut (), &exchanged()).unwrap();
    assert_eq!(net.packets(), 4, "the one that waited is dropped at once");
    let out = departures(&mut net, LATER);
    assert_eq!(out, [(moved.as_ps() - 1000 + 4 * FLIGHT, 7)]);
    assert_eq!((lost(&net), net.counters().dropped(), net.payloads().live()), (4, 4, 0));
    let drops = |name: &str, net: &mut TestNet| {
        net.link_stats(&mut ()).iter().find(|link| link.name == name).unwrap().drops
    };
    assert_eq!(drops("h3->ocs", &mut net), 1);
    assert_eq!(drops("tor1.0->ocs", &mut net), 3);
}

#[test]
fn a_packet_that_arrives_after_its_server_has_moved_follows_it() {
    // The dark time is shorter than the time that the packet takes through the core.
    let mut net = net(&rackless(ocs(Dark::Moved, 0, 1)));
    put(&mut net, Time::ZERO, 6, 4, ROUTE);
    // On the way from the core to ToR 1, which server 4 leaves for ToR 0.
    let moved = Time::from_ps(2 * FLIGHT + 1000);
    net.run(moved);
    net.reconfigure(&mut (), &exchanged()).unwrap();
    let out = departures(&mut net, LATER);
    assert_eq!(
        out,
        [(6 * FLIGHT, 4)],
        "over the former ToR, the core a second time, and the new ToR"
    );
    assert_eq!(net.counters().dropped(), 0);
}

#[test]
fn a_quiesced_change_loses_nothing() {
    for dark in [Dark::All, Dark::Moved] {
        let mut net = net(&rackless(ocs(dark, 1000, 500)));
        let mut rng = Rng::stream(2, 0, 0, "quiesced");
        let all = configurations();
        let (mut sent, mut arrived) = (0, 0);
        for _ in 0..200 {
            for _ in 0..20 {
                let (src, dst) = (rng.below(8) as u32, rng.below(8) as u32);
                let now = net.now();
                put(&mut net, now, src, dst, ROUTE);
                sent += 1;
            }
            let idle = net.now() + Span::from_ms(2);
            arrived += departures(&mut net, idle).len();
            let circuits = &all[rng.below(all.len() as u64) as usize];
            let up = net.reconfigure(&mut (), circuits).unwrap();
            net.run(up);
        }
        assert_eq!((arrived, net.counters().dropped(), net.packets()), (sent, 0, 0));
    }
}

fn tors(pairs: &[(u16, u16)]) -> Circuits {
    Circuits::Tors(pairs.to_vec())
}

#[test]
fn circuits_between_tors_carry_packets_directly() {
    let dark = ocs(Dark::Moved, 30, 20);
    // A star around ToR 0; then ToR 1 in the middle.
    let config = pod(tors(&[(0, 1), (0, 2)]), [0, 0, 0], [2, 2, 2], dark);
    let mut net = net(&config);
    let hops = |net: &mut TestNet, src: u32, dst: u32| {
        let before = net.now();
        put(net, before, src, dst, ROUTE);
        net.run(before + Span::from_ms(1));
        let arrived = net.departure()?;
        net.payloads().release(&arrived.packet);
        Some(arrived.due.since(before).as_ps() / FLIGHT)
    };
    assert_eq!((hops(&mut net, 0, 4), hops(&mut net, 4, 6)), (Some(3), Some(4)));
    let up = net.reconfigure(&mut (), &tors(&[(0, 1), (1, 2)])).unwrap();
    assert_eq!(hops(&mut net, 0, 4), Some(3), "this circuit is still there");
    net.run(up);
    assert_eq!((hops(&mut net, 0, 6), hops(&mut net, 4, 6)), (Some(4), Some(3)));
    assert_eq!((net.counters().dropped(), net.fabric().core_links().len()), (0, 2));
    // While a circuit is dark there is no other way.
    net.reconfigure(&mut (), &tors(&[(0, 1), (0, 2)])).unwrap();
    let now = net.now();
    put(&mut net, now, 0, 6, ROUTE);
    net.run(now + Span::from_us(49));
    assert_eq!((lost(&net), net.counters().dropped()), (1, 1));
    let missing = net.reconfigure(&mut (), &tors(&[(0, 1)])).unwrap_err();
    assert_eq!(
        missing.to_string(),
        "no path leads from ToR 0 to ToR 2: it takes uplinks, or other circuits"
    );
}

#[test]
fn with_uplinks_too_packets_go_round_a_dark_circuit() {
    let config = pod(tors(&[(0, 1)]), [1, 1, 1], [1, 1, 1], ocs(Dark::Moved, 1000, 0));
    let mut net = net(&config);
    assert_eq!(net.fabric().path(HostId(0), HostId(4)).len(), 3);
    assert_eq!(net.fabric().path(HostId(4), HostId(6)).len(), 4, "through the core");
    net.reconfigure(&mut (), &tors(&[(1, 2)])).unwrap();
    put(&mut net, Time::ZERO, 4, 6, ROUTE);
    assert_eq!(departures(&mut net, at_us(900)), [(4 * FLIGHT, 6)]);
    net.run(at_us(1000));
    put(&mut net, at_us(1000), 4, 6, ROUTE);
    assert_eq!(departures(&mut net, at_us(2000)), [(at_us(1000).as_ps() + 3 * FLIGHT, 6)]);
    let names: Vec<_> = net.link_stats(&mut ()).into_iter().map(|link| link.name).collect();
    assert_eq!(names[..10].last().unwrap(), "tor0->h1");
    assert_eq!(names[12..14], ["tor0.0->ocs", "tor0->core0"]);
}

#[test]
fn parallel_uplinks_share_flows_and_have_names() {
    let config = pod(Circuits::None, [2, 1, 1], [0, 0, 0], ocs(Dark::Moved, 0, 0));
    let mut net = net(&config);
    for port in 0..64 {
        let Some(slot) = net.payloads().slot() else { panic!("slots are not limited") };
        let packet = Packet::new(HostId(0), HostId(4), 1500, Tag { number: ROUTE, slot });
        net.arrive(Time::ZERO, HostId(0), packet.with_ports(port, 80));
    }
    assert_eq!(departures(&mut net, LATER).len(), 64);
    let links = net.link_stats(&mut ());
    let frames = |name: &str| links.iter().find(|link| link.name == name).unwrap().frames;
    let (first, second) = (frames("tor0->core0#0"), frames("tor0->core0#1"));
    assert!(first > 20 && second > 20 && first + second == 64, "{first} and {second}");
    assert_eq!((frames("core0->tor1"), frames("tor1->h4")), (64, 64));
    let fixed = net.reconfigure(&mut (), &in_order()).unwrap_err();
    assert_eq!(
        fixed.to_string(),
        "the fabric has no optical circuit switch for circuits of servers"
    );
}

/// Sprayed over two uplinks of half the rate, a message takes as long as over one of the full rate, except that its last two
/// packets take longer on slow links ([`Fabric::ideal`] lets the last one wait for the one before it). Where the paths through the
/// core and through another `ToR` are equally long, each carries half.
#[test]
fn a_sprayed_message_shares_parallel_links() {
    let framing =
        rackweave_core::Framing { max_payload: 1460, header_bytes: 40, spray_above_bytes: 0 };
    let ideal = |uplinks, circuits: Circuits, core_mbps: u64| {
        let circuit_ports = if circuits == Circuits::None { [0; 3] } else { [1, 2, 1] };
        let mut config = pod(circuits, uplinks, circuit_ports, ocs(Dark::Moved, 0, 0));
        config.switch.routing = Routing::Spray;
        if let Topology::Pod(pod) = &mut config.topology {
            Arc::make_mut(pod).core_link = Rate(core_mbps * 1_000_000);
        }
        Fabric::new(&config).unwrap().ideal(HostId(0), HostId(6), 1460 * 100, framing)
    };
    let one = ideal([1, 1, 1], Circuits::None, 1000);
    assert_eq!(one, Span::from_ps(FRAME * 103 + 4_000_000));
    assert_eq!(ideal([1, 1, 1], Circuits::None, 500), Span::from_ps(FRAME * 204 + 4_000_000));
    assert_eq!(ideal([2, 1, 2], Circuits::None, 500), Span::from_ps(FRAME * 106 + 4_000_000));
    let both = Circuits::Tors(vec![(0, 1), (1, 2)]);
    assert_eq!(ideal([1, 0, 1], both, 500), Span::from_ps(FRAME * 106 + 4_000_000));
}

/// Where fibres differ in length, what was sent into a long one must not arrive after what follows in a short one.
#[test]
fn time_never_goes_back_on_a_port_that_gets_a_shorter_fibre() {
    let mut config = rackless(ocs(Dark::Moved, 0, 0));
    config.host_link_delays = [1, 1, 1, 1, 500, 1, 1, 1].map(|us: u64| Span::from_us(us)).to_vec();
    let mut net = net(&config);
    for n in 0..20 {
        put(&mut net, Time::ZERO, n % 3, 4, ROUTE);
    }
    net.run(at_us(200));
    net.reconfigure(&mut (), &exchanged()).unwrap();
    // Server 3 has the port of server 4 now, whose lost packets are still on their way.
    for _ in 0..20 {
        put(&mut net, at_us(200), 5, 3, ROUTE);
    }
    let out = departures(&mut net, LATER);
    assert!(
        out.is_sorted_by_key(|(at, _)| *at) && out.iter().any(|(_, host)| *host == 3),
        "{out:?}"
    );
    assert_eq!(out.len() as u64 + lost(&net), 40);
    assert_eq!((net.packets(), net.payloads().live()), (0, 0));
}

#[derive(Debug, PartialEq)]
struct Outcome {
    arrived: Vec<(u64, u32)>,
    counters: Counters,
    names: Vec<String>,
}

/// Random traffic and changes, and at some of the times also faults: packets sent are those delivered, dropped by
/// reason, or under way, at every time.
fn random_run(case: u64) -> Outcome {
    let mut rng = Rng::stream(11, 0, case, "circuits");
    let dark = if rng.chance(0.5) { Dark::All } else { Dark::Moved };
    let ocs = Ocs {
        switching_delay: Span::from_ps(rng.below(200_000_000)),
        link_delay: Span::from_ps(rng.below(3) * 10_000_000),
        dark,
    };
    let is_rackless = rng.chance(0.6);
    let stars: Vec<Circuits> = vec![
        tors(&[(0, 1), (0, 2)]),
        tors(&[(0, 1), (1, 2)]),
        tors(&[(0, 2), (1, 2)]),
        tors(&[(0, 1), (0, 2), (1, 2)]),
    ];
    let all = if is_rackless { configurations() } else { stars };
    let mut config = if is_rackless {
        pod(all[0].clone(), [2, 1, 1], [0, 0, 0], ocs)
    } else {
        pod(all[0].clone(), [0, u32::from(case.is_multiple_of(2)), 1], [2, 2, 2], ocs)
    };
    config.switch.buffer = match case % 3 {
        0 => BufferConfig::PerPort { bytes: 4 * 1538 },
        1 => BufferConfig::Shared { bytes: 12 * 1538, alpha: 1.0 },
        _ => BufferConfig::PerPort { bytes: u64::MAX },
    };
    if case % 4 == 3 {
        config.host_link_delays =
            (0..8).map(|_| Span::from_ps(rng.below(30) * 1_000_000)).collect();
    }
    let fault = |place, kind| Fault { from: at_us(500), until: at_us(2500), place, kind };
    let faults = match case % 5 {
        0 => vec![
            fault(FaultPlace::HostLink(HostId(4)), FaultKind::Down),
            fault(FaultPlace::AllLinks, FaultKind::Loss(0.02)),
            fault(FaultPlace::CoreLink(1), FaultKind::Down),
        ],
        1 => vec![fault(
            FaultPlace::AllLinks,
            FaultKind::Reordering { probability: 0.2, delay: Span::from_us(40) },
        )],
        _ => Vec::new(),
    };
    let mut net = net_of(&config, faults, Slots::new(usize::MAX), &Scripted::default());
    let mut arrived = Vec::new();
    let check = |net: &TestNet, arrived: usize| {
        let counters = net.counters();
        let gone = arrived as u64 + counters.dropped() + counters.consumed;
        assert_eq!(counters.sent, gone + u64::from(net.packets()), "case {case}: {counters:?}");
        assert_eq!(net.payloads.live(), net.packets() as usize);
    };
    let mut now = Time::ZERO;
    for _ in 0..600 {
        now += Span::from_ps(rng.below(12_000_000));
        arrived.extend(departures(&mut net, now));
        check(&net, arrived.len());
        if rng.chance(0.04) {
            let circuits = &all[rng.below(all.len() as u64) as usize];
            let up = net.reconfigure(&mut (), circuits).unwrap();
            assert!(up >= now && up <= now + ocs.switching_delay + ocs.link_delay);
            check(&net, arrived.len());
        }
        let (src, dst) = (rng.below(8) as u32, rng.below(8) as u32);
        put(&mut net, now, src, dst, ROUTE);
    }
    arrived.extend(departures(&mut net, LATER));
    check(&net, arrived.len());
    assert_eq!((net.packets(), net.next_due()), (0, None), "case {case}");
    assert!(arrived.is_sorted_by_key(|(at, _)| *at), "case {case}");
    let names = net.link_stats(&mut ()).into_iter().map(|link| link.name).collect();
    Outcome { arrived, counters: *net.counters(), names }
}

#[test]
fn every_packet_is_delivered_or_dropped_for_a_reason_under_random_changes() {
    let (mut moved_losses, mut arrived) = (0, 0);
    for case in 0..200 {
        let outcome = random_run(case);
        arrived += outcome.arrived.len();
        moved_losses += outcome.counters.drops[DropReason::Reconfiguration as usize];
        if case % 20 == 0 {
            assert_eq!(outcome, random_run(case), "case {case} is the same each time");
        }
        let distinct: BTreeSet<&String> = outcome.names.iter().collect();
        assert_eq!(distinct.len(), outcome.names.len(), "{:?}", outcome.names);
    }
    assert!(moved_losses > 5000 && arrived > 50_000, "{moved_losses} lost, {arrived} arrived");
}

/// Once all is lit again, every server reaches every other one, whatever happened before.
#[test]
fn after_overlapping_changes_all_links_come_up() {
    let mut rng = Rng::stream(5, 0, 0, "overlapping");
    let all = configurations();
    for dark in [Dark::All, Dark::Moved] {
        let mut net = net(&rackless(ocs(dark, 100, 20)));
        for _ in 0..50 {
            for _ in 0..4 {
                let circuits = &all[rng.below(all.len() as u64) as usize];
                net.reconfigure(&mut (), circuits).unwrap();
                let later = net.now() + Span::from_us(rng.below(110));
                net.run(later);
            }
            let lit = net.now() + Span::from_us(120);
            net.run(lit);
            for (src, dst) in (0..8).flat_map(|src| (0..8).map(move |dst| (src, dst))) {
                put(&mut net, lit, src, dst, ROUTE);
            }
            assert_eq!(departures(&mut net, lit + Span::from_ms(5)).len(), 64);
        }
    }
}
