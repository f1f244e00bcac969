//! Random topologies and faults: every client that lives ends with every chunk, or fails with a reason.

use proptest::prelude::*;
use rackweave_switch::config::FaultPlace;

use super::*;
use crate::directory::Policy;
use crate::order::Order;

fn fault(place: FaultPlace, kind: FaultKind, from_ms: u64, until_ms: u64) -> Fault {
    let at = |ms| Time::ZERO + Span::from_ms(ms);
    Fault { place, kind, from: at(from_ms), until: at(until_ms) }
}

#[derive(Clone, Debug)]
enum Trouble {
    Crash { host: u32, from: u64, for_ms: u64 },
    Link { host: u32, kind: FaultKind },
    Corrupts { host: u32 },
}

fn trouble() -> impl Strategy<Value = Trouble> {
    let kind = prop_oneof![
        Just(FaultKind::Loss(0.02)),
        Just(FaultKind::Duplication(0.05)),
        Just(FaultKind::Reordering { probability: 0.05, delay: Span::from_us(300) }),
    ];
    prop_oneof![
        2 => (0_u32..7, 1_u64..400, 1_u64..3000)
            .prop_map(|(host, from, for_ms)| Trouble::Crash { host, from, for_ms }),
        3 => (0_u32..7, kind).prop_map(|(host, kind)| Trouble::Link { host, kind }),
        1 => (1_u32..7).prop_map(|host| Trouble::Corrupts { host }),
    ]
}

fn setup() -> impl Strategy<Value = Setup> {
    let order = prop_oneof![
        Just(Order::Random),
        Just(Order::InOrder),
        Just(Order::Rotation),
        Just(Order::Windows(4)),
    ];
    (
        (1_u32..6, 1_u64..24, 1_u32..4, 0_u64..1000),
        (order, 1_u16..6, 1_u16..12, 0_u8..3, any::<bool>(), 0_u32..3),
        prop::collection::vec(trouble(), 0..5),
        prop::collection::vec(0_u64..300, 6),
        any::<bool>(),
    )
        .prop_map(|((clients, chunks, leaves, seed), knobs, troubles, starts, slow)| {
            let (order, batch, outstanding, pending, turns, assist) = knobs;
            let mut setup = Setup::new(clients, chunks, 1000);
            setup.seed = seed;
            setup.leaves = leaves;
            setup.per_leaf = (clients + 1).div_ceil(leaves);
            setup.starts = starts.iter().map(|ms| Span::from_ms(*ms)).collect();
            setup.client.order = order;
            setup.client.batch = batch;
            setup.client.outstanding = outstanding;
            setup.client.give_up = Span::from_secs(40);
            setup.directory.pending = pending;
            setup.directory.policy = if turns { Policy::RoundRobin } else { Policy::LeastLoaded };
            setup.directory.hosts_per_rack = Some(setup.per_leaf);
            setup.assist = [Assist::Switch, Assist::Server, Assist::Nobody][assist as usize];
            setup.per_second = if slow { 400 } else { 0 };
            setup.queue = 20;
            for trouble in troubles {
                match trouble {
                    Trouble::Crash { host, from, for_ms } if host <= clients => {
                        let place = FaultPlace::Host(HostId(host));
                        setup.faults.push(fault(place, FaultKind::Crash, from, from + for_ms));
                    }
                    Trouble::Link { host, kind } if host <= clients => {
                        let place = FaultPlace::HostLink(HostId(host));
                        setup.faults.push(fault(place, kind, 0, 600_000));
                    }
                    Trouble::Corrupts { host } if host <= clients => setup.corrupts.push(host),
                    _ => {}
                }
            }
            setup
        })
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        max_shrink_iters: 60,
        ..rackweave_testing::cases(40)
    })]

    #[test]
    fn every_client_completes(setup in setup()) {
        let outcome = setup.run();
        for host in 1..=setup.clients {
            let record = outcome.record(host);
            prop_assert!(record.written.is_some(), "client {host}: {record:?} at {}", outcome.end);
            // A host that crashes after it has written the image does not start again.
            let Some(client) = outcome.world.hosts.nodes[host as usize].as_client() else { continue };
            prop_assert!(client.have().is_full());
            let counters = client.counters();
            let chunks: u32 = counters.received.values().sum();
            prop_assert_eq!(chunks, setup.shape.chunks(), "each counts once");
            // At most what all others have on request at a time.
            let bound = u32::from(setup.client.outstanding.max(setup.client.batch)) * setup.clients;
            prop_assert!(counters.most_queued <= 2 * bound, "{} queued", counters.most_queued);
        }
        for switch in outcome.switches() {
            prop_assert!(switch.most_queued <= u64::from(setup.queue));
        }
    }
}

#[test]
fn a_client_whose_server_is_gone_fails_with_a_reason() {
    let mut setup = Setup::new(2, 64, 100);
    setup.faults = vec![fault(FaultPlace::Host(SERVER), FaultKind::Crash, 500, 10_000_000)];
    setup.client.give_up = Span::from_secs(10);
    let outcome = setup.run();
    for host in [1, 2] {
        let failed = outcome.record(host).failed.expect("it fails");
        assert!(matches!(failed, client::Failure::Stalled { missing: 1.., .. }), "{failed}");
    }
}

#[test]
fn a_holder_that_dies_costs_its_chunks_and_a_second() {
    let mut setup = Setup::new(3, 64, 200);
    setup.faults = vec![fault(FaultPlace::Host(HostId(2)), FaultKind::Crash, 1000, 4000)];
    let outcome = setup.run();
    outcome.check_complete();
    assert!(outcome.copies() < 1.75, "{}", outcome.copies());
    assert_eq!(outcome.record(2).crashes, 1);
}

#[test]
fn a_client_that_corrupts_is_named_and_avoided() {
    let mut setup = Setup::new(4, 64, 1000);
    setup.corrupts = vec![2];
    let outcome = setup.run();
    outcome.check_complete();
    let damaged: u32 = (1..=4).map(|host| outcome.client(host).counters().damaged).sum();
    // What was already on request from it when it was first named.
    assert!((1..=64).contains(&damaged), "{damaged}");
    assert_eq!(outcome.server().counters().damaged, u64::from(damaged));
}

#[test]
fn a_server_that_restarts_is_joined_again() {
    for assist in [Assist::Switch, Assist::Server] {
        let mut setup = Setup { assist, ..Setup::new(4, 64, 200) };
        setup.faults = vec![fault(FaultPlace::Host(SERVER), FaultKind::Crash, 700, 1700)];
        // What is on request is requested again at once, and the restarted server does not know who has it.
        setup.client.outstanding = 8;
        let outcome = setup.run();
        outcome.check_complete();
        assert!(outcome.copies() < 1.5, "{}", outcome.copies());
        let counters = outcome.server().counters();
        assert!(counters.unknown > 0 && counters.reports > 0, "{counters:?}");
    }
}

#[test]
fn an_image_of_more_than_8192_chunks_has_several_windows() {
    let mut setup = Setup::new(2, 1, 1000);
    setup.shape = Shape::new(9000 * 1024, 1024).unwrap();
    setup.client.outstanding = 64;
    setup.client.batch = 16;
    setup.client.report_every = 16;
    let outcome = setup.run();
    outcome.check_complete();
    assert!(outcome.copies() < 1.1, "{}", outcome.copies());
}
