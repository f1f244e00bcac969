//! Collectives over the real transports.

use crate::common::*;
use crate::threads::{as_without_windows, long_fabric, on_any_threads, transports};
use rackweave_core::{HostId, Rate, Span, Time};
use rackweave_sim::config::{FabricConfig, Fault, FaultKind, FaultPlace};
use rackweave_sim::result::{End, RunResult};
use rackweave_sim::{OneThread, RunConfig, run, windows};
use rackweave_transport::datagram;
use rackweave_workload::collective::generate::{ALGORITHMS, Algorithm, Operation, Shape};
use rackweave_workload::collective::{Collective, WaitReason, ideal};
use rackweave_workload::{Exchange, Pattern, WorkloadConfig};

fn named(operation: Operation, name: &str) -> &'static Algorithm {
    let mut all = ALGORITHMS.iter();
    all.find(|it| it.operation == operation && it.name == name).expect("an algorithm")
}

/// A collective on the first hosts; racks have 8 hosts.
fn on_hosts(algorithm: &Algorithm, ranks: u32, bytes: u64, compute: Option<Rate>) -> Collective {
    let groups: Vec<Vec<u32>> =
        (0..ranks / 8).map(|rack| (rack * 8..(rack + 1) * 8).collect()).collect();
    let shape = Shape { ranks, bytes, groups: &groups, compute, skew: 0.0 };
    let schedule = algorithm.schedule(&shape).expect("a possible shape");
    let hosts = (0..ranks).map(HostId).collect();
    Collective::new(schedule, hosts, 1, Span::ZERO).expect("as many hosts as ranks")
}

fn pattern(operation: Operation, name: &str, ranks: u32, bytes: u64) -> Pattern {
    Pattern::Collective(on_hosts(named(operation, name), ranks, bytes, None))
}

/// When the last rank ended.
fn end(result: &RunResult) -> Span {
    let ends = result.ranks.iter().map(|rank| rank.iterations[0].1);
    ends.max().expect("ranks").since(Time::ZERO)
}

/// Packets of 1500 bytes at 10 Gbit/s, with preamble and gap.
const PACKET: Span = Span::from_ticks(123_040);

/// Each step takes as long as its packets on one link, the last packet on the other link, and the delays of hosts and switch.
#[test]
fn times_are_exact_where_a_message_takes_its_ideal_time() {
    let fabric = fabric(single_switch(8));
    let delays = Span::from_ns(1_500) + fabric.switch.latency;
    let step = |packets: u64| PACKET * (packets + 1) + delays;
    let full = u64::from(datagram::Config::default().max_payload);
    // Parts of 3 packets: 8 of them are a vector.
    let bytes = 8 * 3 * full;
    use Operation::*;
    for (operation, name, expected) in [
        (AllReduce, "ring", step(3) * 14),
        (AllReduce, "halving-doubling", (step(12) + step(6) + step(3)) * 2),
        (AllReduce, "tree", step(24) * 6),
        (ReduceScatter, "ring", step(3) * 7),
        (AllGather, "recursive-doubling", step(12) + step(6) + step(3)),
        (AllToAll, "pairwise", step(3) * 7),
        (Broadcast, "binomial", step(24) * 3),
        (Broadcast, "chain", step(3) * 14),
        (Gather, "binomial", step(12) + step(6) + step(3)),
    ] {
        let pattern = pattern(operation, name, 8, bytes);
        let config =
            config(fabric.clone(), vec![stream(datagram::Config::default().into(), pattern)]);
        let result = run_until(&config, End::AllDone);
        assert_eq!(end(&result), expected, "{} {name}", operation.name());
        assert_eq!(result.ended_at, Time::ZERO + expected, "{name}");
    }
    // Homa does not wait for grants, and acknowledges nothing, within its first window.
    let (ring, halving) = (step(1) * 14, (step(4) + step(2) + step(1)) * 2);
    for (name, expected) in [("ring", ring), ("halving-doubling", halving)] {
        let homa = homa(&fabric, &fixed(10_000));
        let full = u64::from(homa.framing().max_payload);
        let pattern = pattern(AllReduce, name, 8, 8 * full);
        let result = run_until(&config(fabric.clone(), vec![stream(homa, pattern)]), End::AllDone);
        assert_eq!(end(&result), expected, "homa {name}");
    }
}

/// The sum of what ranks calculate is part of the time, and a run ends when the last rank has calculated.
#[test]
fn adding_up_takes_its_time() {
    let fabric = fabric(single_switch(4));
    let full = u64::from(datagram::Config::default().max_payload);
    let rate = Rate::from_gbps(3);
    let scatter = on_hosts(named(Operation::ReduceScatter, "ring"), 4, 4 * full, Some(rate));
    let step = PACKET * 2 + Span::from_ns(1_500) + fabric.switch.latency + rate.span_of(full);
    let pattern = Pattern::Collective(scatter);
    let config = config(fabric, vec![stream(datagram::Config::default().into(), pattern)]);
    let result = run_until(&config, End::AllDone);
    assert_eq!((end(&result), result.ended_at), (step * 3, Time::ZERO + step * 3));
}

#[test]
fn every_transport_carries_every_algorithm() {
    for (name, transport, fabric) in transports(&fabric(LEAF_SPINE)) {
        for algorithm in ALGORITHMS.iter().filter(|_| name != "datagram") {
            let collective = on_hosts(algorithm, 24, 240_000, Some(Rate::from_gbps(100)));
            let layout = rackweave_sim::Fabric::new(&fabric).expect("a fabric");
            let framing = transport.framing();
            let best = ideal(&collective, |src, dst, bytes| layout.ideal(src, dst, bytes, framing));
            let pattern = Pattern::Collective(collective);
            let mut config = config(fabric.clone(), vec![stream(transport.clone(), pattern)]);
            config.measure.time_limit = Span::from_secs(5);
            let result = run_to_completion(&config);
            assert!(end(&result) >= best, "{name} {algorithm:?}: {} < {best}", end(&result));
            assert!(result.ranks.iter().all(|rank| rank.waits.is_none()), "{name}");
        }
    }
}

fn of_collective(fabric: &FabricConfig, pattern: Pattern) -> RunConfig {
    let mut config = config(fabric.clone(), vec![stream(dctcp(), pattern)]);
    config.measure.time_limit = Span::from_ms(20);
    config
}

#[test]
fn results_are_the_same_with_any_number_of_threads() {
    for (name, transport, fabric) in transports(&long_fabric(LEAF_SPINE)) {
        for (operation, algorithm) in [
            (Operation::AllReduce, "ring"),
            (Operation::AllReduce, "hierarchical"),
            (Operation::AllReduce, "halving-doubling"),
            (Operation::AllToAll, "direct"),
        ] {
            // The number is not a power of two.
            let pattern = pattern(operation, algorithm, 24, 240_000);
            let mut config = config(fabric.clone(), vec![stream(transport.clone(), pattern)]);
            config.measure.time_limit = Span::from_ms(20);
            let result = on_any_threads(&format!("{name} {algorithm}"), &config);
            as_without_windows(&format!("{name} {algorithm}"), &config, &result);
        }
    }
    // Three times, one after the other.
    let once = on_hosts(named(Operation::AllReduce, "ring"), 24, 240_000, None);
    let hosts = once.hosts().to_vec();
    let thrice = Collective::new(once.schedule().clone(), hosts, 3, Span::from_us(5));
    let config =
        of_collective(&long_fabric(LEAF_SPINE), Pattern::Collective(thrice.expect("as before")));
    let result = on_any_threads("three rings", &config);
    assert!(result.ranks.iter().all(|rank| rank.iterations.len() == 3));
    for rank in &result.ranks {
        let [first, second, _] = rank.iterations[..] else { panic!("three iterations") };
        assert_eq!(second.0, first.1 + Span::from_us(5), "rank {}", rank.rank);
    }
    as_without_windows("three rings", &config, &result);
}

#[test]
fn a_rank_that_goes_on_when_its_message_has_arrived_needs_one_thread() {
    let fabric = long_fabric(rackweave_sim::config::Topology::fat_tree(12, G10));
    let reason = |operation, name| {
        let config = of_collective(&fabric, pattern(operation, name, 24, 240_000));
        windows(&config, &rackweave_sim::Fabric::new(&config.fabric).unwrap()).err()
    };
    assert_eq!(reason(Operation::AllReduce, "ring"), None);
    assert_eq!(reason(Operation::AllReduce, "tree"), Some(OneThread::Collective(0)));
    // Messages have the number of their operation and of its repetition, and a serial number.
    let often = |repeat| {
        let once = on_hosts(named(Operation::AllReduce, "ring"), 24, 240_000, None);
        let hosts = once.hosts().to_vec();
        let ring = Collective::new(once.schedule().clone(), hosts, repeat, Span::ZERO);
        let config = of_collective(&fabric, Pattern::Collective(ring.expect("as before")));
        windows(&config, &rackweave_sim::Fabric::new(&config.fabric).unwrap()).err()
    };
    assert_eq!(often(10_000), None);
    assert_eq!(often(u32::MAX), Some(OneThread::Numbers(0)));
}

#[test]
fn a_collective_that_cannot_end_says_who_waits_for_whom() {
    let mut config =
        of_collective(&fabric(single_switch(4)), pattern(Operation::AllReduce, "ring", 4, 40_000));
    config.faults = vec![Fault {
        place: FaultPlace::Host(HostId(2)),
        kind: FaultKind::Crash,
        from: Time::ZERO + Span::from_us(5),
        until: Time::MAX,
    }];
    let result = run(&config, &rackweave_sim::Control::default()).expect("a possible run");
    assert_ne!(result.end, End::AllDone);
    let reasons: Vec<WaitReason> =
        result.ranks.iter().filter_map(|rank| rank.waits).map(|wait| wait.reason).collect();
    assert_eq!(reasons.len(), 4);
    assert_eq!(reasons[2], WaitReason::Crashed);
    assert_eq!(reasons[3], WaitReason::Receive { from: 2, bytes: 10_000, tag: 0 });
}

#[test]
fn what_a_collective_cannot_be_is_refused() {
    let pattern = pattern(Operation::Broadcast, "flat", 4, 4_000);
    let with = |hosts: u32, exchange| {
        let workload = WorkloadConfig { exchange, ..WorkloadConfig::new(pattern.clone()) };
        let stream = rackweave_sim::config::StreamConfig::new(dctcp(), workload);
        let config = config(fabric(single_switch(hosts)), vec![stream]);
        run(&config, &rackweave_sim::Control::default()).err().map(|error| error.to_string())
    };
    let answered =
        "the workload: the messages of a collective are one-way, without responses and streams";
    assert_eq!(with(4, Exchange::Echo).as_deref(), Some(answered));
    let lacking = "the workload: host 3 (a rank) does not exist: the fabric has hosts 0 to 2";
    assert_eq!(with(3, Exchange::OneWay).as_deref(), Some(lacking));
    assert_eq!(with(4, Exchange::OneWay), None);
}
