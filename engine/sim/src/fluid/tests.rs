use proptest::prelude::*;
use rackweave_core::{Event, Framing, HostId, Kind, MessageId, Rate, Span, Submit, Time};

use super::*;
use crate::config::{FabricConfig, Routing, SwitchConfig, Topology};
use crate::fabric::Fabric;

fn rates(capacity: &[u64], paths: &[&[u32]]) -> Vec<u64> {
    let paths: Vec<Path> = paths.iter().map(|path| path.to_vec()).collect();
    let mut rates = Vec::new();
    MaxMin::new(capacity.to_vec()).fill(&paths, &mut rates);
    rates
}

/// Examples whose max-min rates follow by hand.
#[test]
fn known_examples() {
    // One link is shared evenly, and what a flow cannot use elsewhere is left to the others.
    assert_eq!(rates(&[90], &[&[0], &[0], &[0]]), [30, 30, 30]);
    assert_eq!(rates(&[90, 10], &[&[0], &[0], &[0, 1]]), [40, 40, 10]);
    // A chain of links ("parking lot"): the long flow has the share of the narrowest link.
    assert_eq!(rates(&[100, 100, 60], &[&[0, 1, 2], &[0], &[1], &[2]]), [30, 70, 70, 30]);
    // The last flow has what the crowded link in the middle leaves of its own.
    let chain: [&[u32]; 5] = [&[0, 1], &[1], &[1], &[1, 2], &[2]];
    assert_eq!(rates(&[1200, 1200, 1200], &chain), [300, 300, 300, 300, 900]);
    // Flows without links do not exist, and nobody is without a rate.
    assert_eq!(rates(&[2], &[&[], &[0], &[0], &[0]]), [0, 1, 1, 1]);
    assert_eq!(rates(&[7], &[]), [0_u64; 0]);
}

prop_compose! {
    fn network()(links in 1_usize..9)(
        capacity in prop::collection::vec(40_u64..400, links),
        paths in prop::collection::vec(prop::collection::btree_set(0..links as u32, 0..5), 0..25),
    ) -> (Vec<u64>, Vec<Path>) {
        (capacity, paths.into_iter().map(|path| path.into_iter().collect()).collect())
    }
}

proptest! {
    #[test]
    fn rates_depend_on_paths_only((capacity, paths) in network()) {
        let mut rates = vec![5; 3];
        let mut shares = MaxMin::new(capacity.clone());
        shares.fill(&paths, &mut rates);
        // No memory of the last computation.
        let before = rates.clone();
        shares.fill(&paths, &mut rates);
        prop_assert_eq!(before, rates);
    }

    /// Rates are max-min fair if and only if each flow has a bottleneck: a full link on which no flow is faster (Bertsekas and
    /// Gallager, Data Networks, 6.5.2). Here a link is full if not all its flows can have another unit.
    #[test]
    fn every_flow_has_a_bottleneck((capacity, paths) in network()) {
        let mut rates = Vec::new();
        MaxMin::new(capacity.clone()).fill(&paths, &mut rates);
        let on = |link: u32| {
            let on = paths.iter().zip(&rates).filter(move |(path, _)| path.contains(&link));
            on.map(|(_, rate)| *rate).collect::<Vec<u64>>()
        };
        for (link, capacity) in capacity.iter().enumerate() {
            prop_assert!(on(link as u32).iter().sum::<u64>() <= *capacity);
        }
        for (path, rate) in paths.iter().zip(&rates).filter(|(path, _)| !path.is_empty()) {
            let is_bottleneck = |link: &u32| {
                let on = on(*link);
                let unused = capacity[*link as usize] - on.iter().sum::<u64>();
                on.iter().max() == Some(rate) && unused < on.len() as u64
            };
            prop_assert!(path.iter().any(is_bottleneck), "{path:?} at {rate}");
        }
    }

    /// All bytes arrive, once each, whatever starts when and whoever crashes; and what links carried is what was sent.
    #[test]
    fn every_transfer_ends_once(
        starts in prop::collection::vec((0_u64..5_000, 0_u32..8, 1_u32..8, 1_u64..3_000_000), 1..60),
        crash in prop::option::of((0_u64..5_000, 0_u32..8)),
        interval_us in prop::sample::select(vec![0_u64, 100, 2_000]),
    ) {
        let mut fluid = engine(Span::from_us(interval_us));
        let mut starts = starts;
        starts.sort_unstable();
        let (mut delivered, mut sent, mut failed) = (0, 0, 0);
        let mut crash = crash;
        let mut expected = 0;
        let mut starts = starts.into_iter().enumerate().peekable();
        let mut last = Time::ZERO;
        loop {
            let start = starts.peek().map(|(_, start)| at(start.0));
            let stop = crash.map(|(us, _)| at(us));
            let Some(now) = [start, stop, fluid.poll_timeout()].into_iter().flatten().min() else {
                break;
            };
            prop_assert!(now >= last, "time goes back from {last} to {now}");
            last = now;
            while let Some((_, event)) = fluid.poll(now) {
                match event {
                    Event::Delivered { .. } => delivered += 1,
                    Event::Sent { .. } => sent += 1,
                    Event::Failed { .. } => failed += 1,
                    Event::Stream(_) => prop_assert!(false),
                }
            }
            if start == Some(now)
                && let Some((number, (_, src, hop, bytes))) = starts.next()
            {
                let peer = HostId((src + hop) % 8);
                fluid.start(now, HostId(src), message(number as u64, peer, bytes));
                expected += 1;
            } else if stop == Some(now)
                && let Some((_, host)) = crash.take()
            {
                fluid.crash(now, HostId(host));
            }
        }
        prop_assert_eq!(fluid.active(), 0);
        if failed == 0 && crash.is_none() {
            prop_assert!(delivered <= expected && sent <= expected);
        }
        prop_assert!(delivered + failed <= expected && delivered + sent + failed >= expected - failed);
    }
}

const FRAMING: Framing =
    Framing { max_payload: 1000, header_bytes: 40, spray_above_bytes: u32::MAX };

fn at(us: u64) -> Time {
    Time::ZERO + Span::from_us(us)
}

fn message(number: u64, peer: HostId, bytes: u64) -> Submit {
    Submit { id: MessageId::request(number), peer, bytes, kind: Kind::OneWay }
}

/// Two racks of four hosts at 1 Gbps, with two spines at 1 Gbps.
fn fabric() -> Fabric {
    let topology = Topology::LeafSpine {
        leaves: 2,
        hosts_per_leaf: 4,
        spines: 2,
        host_link: Rate::from_gbps(1),
        core_link: Rate::from_gbps(1),
    };
    Fabric::new(
        &FabricConfig::new(topology)
            .with_link_delays(Span::from_us(1), Span::from_us(2))
            .without_host_delays()
            .with_switch(
                SwitchConfig::default()
                    .with_latency(Span::from_us(1))
                    .with_buffer(100_000)
                    .without_marking()
                    .with_routing(Routing::Ecmp),
            ),
    )
    .unwrap()
}

fn engine(interval: Span) -> Fluid {
    let config = Config { interval, framing: FRAMING, host_rate: None };
    Fluid::new(config, std::sync::Arc::new(fabric()))
}

/// Runs to the end; returns when each transfer was delivered, by its number.
fn deliveries(fluid: &mut Fluid) -> Vec<(u64, f64)> {
    let mut all = Vec::new();
    while let Some(now) = fluid.poll_timeout() {
        while let Some((_, event)) = fluid.poll(now) {
            if let Event::Delivered { id, .. } = event {
                all.push((id.number(), now.since(Time::ZERO).as_us_f64()));
            }
        }
    }
    all.sort_by_key(|(number, _)| *number);
    all
}

#[test]
fn flows_share_a_link_and_the_last_one_speeds_up() {
    // 1000 packets of 1078 bytes with headers, preamble and gap: 8.624 ms at 1 Gbps.
    let wire = FRAMING.message_wire_bytes(1_000_000) as f64 * 8.0 / 1000.0;
    let mut fluid = engine(Span::ZERO);
    for (number, bytes) in [(0, 1_000_000), (1, 2_000_000)] {
        fluid.start(Time::ZERO, HostId(number), message(u64::from(number), HostId(3), bytes));
    }
    let delay = 2.0 + 1.0;
    let ends = deliveries(&mut fluid);
    assert!((ends[0].1 - (2.0 * wire + delay)).abs() < 0.01, "{ends:?}, {wire}");
    assert!((ends[1].1 - (3.0 * wire + delay)).abs() < 0.01, "{ends:?}, {wire}");
    let downlink = fabric().downlink(HostId(3)) as usize;
    assert_eq!(fluid.link_bytes()[downlink], FRAMING.message_wire_bytes(3_000_000));
}

#[test]
fn between_computations_a_flow_takes_what_is_left() {
    let mut fluid = engine(Span::from_ms(5));
    let rate = |fluid: &Fluid, src, dst| fluid.rate(HostId(src), HostId(dst));
    fluid.start(Time::ZERO, HostId(0), message(0, HostId(1), 100_000));
    assert!(fluid.poll(Time::ZERO).is_none());
    // Nothing is left of the link until rates are computed again.
    fluid.start(at(100), HostId(0), message(1, HostId(2), 1_000_000));
    assert_eq!((rate(&fluid, 0, 1), rate(&fluid, 0, 2)), (1_000_000_000, 0));
    // The first one ends after 0.86 ms, and the third has its rate at once.
    assert!(fluid.poll(at(870)).is_some());
    fluid.start(at(900), HostId(0), message(2, HostId(3), 1_000_000));
    assert_eq!((rate(&fluid, 0, 2), rate(&fluid, 0, 3)), (0, 1_000_000_000));
    while fluid.poll(at(5_000)).is_some() {}
    assert_eq!((rate(&fluid, 0, 2), rate(&fluid, 0, 3)), (500_000_000, 500_000_000));
}

#[test]
fn peers_of_a_crashed_host_learn_it() {
    let mut fluid = engine(Span::ZERO);
    fluid.start(Time::ZERO, HostId(0), message(0, HostId(5), 1_000_000));
    fluid.start(Time::ZERO, HostId(6), message(1, HostId(0), 1_000_000));
    fluid.start(Time::ZERO, HostId(1), message(2, HostId(2), 1_000_000));
    while fluid.poll(at(10)).is_some() {}
    fluid.crash(at(10), HostId(0));
    assert_eq!(fluid.active(), 1);
    let mut failed = Vec::new();
    while let Some(now) = fluid.poll_timeout() {
        while let Some((host, event)) = fluid.poll(now) {
            if let Event::Failed { peer, .. } = event {
                failed.push((host.0, peer.0));
            }
        }
    }
    failed.sort_unstable();
    assert_eq!(failed, [(5, 0), (6, 0)]);
}

#[test]
fn connections_between_racks_use_both_spines() {
    let fabric = fabric();
    let path = |number| fabric.path_by(HostId(0), HostId(5), number);
    assert_eq!(path(0), fabric.path(HostId(0), HostId(5)));
    assert_eq!((path(0).len(), path(2)), (4, path(0)));
    assert_ne!(path(0)[1..3], path(1)[1..3]);
    assert_eq!(fabric.path_by(HostId(0), HostId(1), 1), fabric.path(HostId(0), HostId(1)));
}
