//! Transports on pods whose circuits change.

use std::sync::Arc;

use crate::common::*;
use rackweave_core::{DropReason, Rate, Span, Time};
use rackweave_sim::config::{
    Circuits, Dark, FabricConfig, Move, Ocs, Pod, RunConfig, Topology, Tor,
};
use rackweave_sim::result::{Outcome, RunResult};
use rackweave_sim::{BuildError, Control, run};
use rackweave_transport::TransportConfig;
use rackweave_workload::Pattern;

fn pod(circuits: Circuits, circuit_ports: u32, dark: Dark) -> FabricConfig {
    let tor = |server_ports| Tor { server_ports, uplinks: 1, circuit_ports };
    fabric(Topology::Pod(Arc::new(Pod {
        tors: [4, 2, 2].map(tor).to_vec(),
        host_link: G10,
        core_link: Rate::from_gbps(20),
        circuits,
        ocs: Ocs { switching_delay: Span::from_us(80), link_delay: Span::from_us(20), dark },
    })))
}

fn servers(tors: [u16; 8]) -> Circuits {
    Circuits::Servers(tors.to_vec())
}

fn rackless(dark: Dark) -> FabricConfig {
    pod(servers([0, 0, 0, 0, 1, 1, 2, 2]), 0, dark)
}

/// A change every millisecond, from 1 ms on.
fn moves(circuits: impl IntoIterator<Item = Circuits>) -> Vec<Move> {
    let at = |n: u64| Time::ZERO + Span::from_ms(n);
    circuits.into_iter().zip(1..).map(|(circuits, n)| Move { at: at(n), circuits }).collect()
}

fn four_moves() -> Vec<Move> {
    let there = servers([1, 0, 0, 1, 0, 0, 2, 2]);
    let back = servers([0, 0, 0, 0, 1, 1, 2, 2]);
    let other = servers([2, 2, 1, 1, 0, 0, 0, 0]);
    moves([there, other.clone(), back, other])
}

fn all_delivered(config: &RunConfig) -> RunResult {
    let result = run_to_completion(config);
    for message in &result.messages {
        assert!(matches!(message.outcome, Outcome::Completed(_)), "{message:?}");
    }
    assert_eq!(result.verified_messages, result.messages.len() as u64);
    result
}

fn permutation() -> Pattern {
    Pattern::Permutation { sizes: fixed(2_000_000), messages_per_host: 3 }
}

/// Every transport that repairs losses delivers all messages, though links move under them four times.
#[test]
fn messages_survive_changes_of_circuits() {
    for dark in [Dark::Moved, Dark::All] {
        let fabric = rackless(dark);
        let mut cases: Vec<(&str, TransportConfig, FabricConfig)> = vec![
            ("homa", homa(&fabric, &fixed(2_000_000)), fabric.clone()),
            ("tcp", cubic(), fabric.clone()),
            ("new-reno", new_reno(), fabric.clone()),
            ("dctcp", dctcp(), fabric.clone()),
            ("polo", polo(), fabric.clone()),
        ];
        cases.extend(receiver_driven(&fabric));
        for (name, transport, fabric) in cases {
            let still = config(fabric, vec![stream(transport, permutation())]);
            let mut moving = still.clone();
            moving.moves = four_moves();
            let (still, moving) = (all_delivered(&still), all_delivered(&moving));
            let lost = moving.counters.drops[DropReason::Reconfiguration as usize];
            println!("{name} {dark:?}: {lost} lost, {} and {}", still.ended_at, moving.ended_at);
            assert!(lost > 0, "{name}");
            assert_eq!(still.counters.drops[DropReason::Reconfiguration as usize], 0);
        }
    }
}

#[test]
fn messages_survive_changes_of_circuits_between_tors() {
    let tors = |pairs: &[(u16, u16)]| Circuits::Tors(pairs.to_vec());
    let fabric = pod(tors(&[(0, 1), (0, 2)]), 2, Dark::All);
    let transports = [homa(&fabric, &fixed(2_000_000)), cubic()];
    for transport in transports {
        let mut config = config(fabric.clone(), vec![stream(transport, permutation())]);
        config.moves = moves([
            tors(&[(0, 1), (1, 2)]),
            tors(&[(0, 2), (1, 2)]),
            tors(&[(0, 1), (0, 1)]),
            tors(&[(0, 1), (0, 2)]),
        ]);
        let result = all_delivered(&config);
        assert!(result.counters.drops[DropReason::Reconfiguration as usize] > 0);
        let used = result.links.iter().filter(|link| link.name.ends_with("->ocs"));
        assert!(used.filter(|link| link.utilisation > 0.01).count() >= 4);
    }
}

/// The ideal time of a message is that of the circuits at its start: two links within a ToR, four through the core.
#[test]
fn ideal_times_follow_the_circuits() {
    let fabric = rackless(Dark::Moved);
    let rows: Vec<_> = (0..30).map(|n| (f64::from(n) * 200.0 + 150.0, 3, 4, 1000)).collect();
    let transport = homa(&fabric, &fixed(1000));
    let mut config = config(fabric, vec![stream(transport, trace(&rows))]);
    config.moves = four_moves();
    let result = all_delivered(&config);
    let mut ideals = Vec::new();
    for message in &result.messages {
        let Outcome::Completed(at) = message.outcome else { panic!("{message:?}") };
        assert_eq!(at.since(message.start), message.ideal, "{message:?}");
        if ideals.last() != Some(&message.ideal) {
            ideals.push(message.ideal);
        }
    }
    // Hosts 3 and 4 never share a ToR.
    assert_eq!(ideals.len(), 1);
    let rows: Vec<_> = (0..30).map(|n| (f64::from(n) * 200.0 + 150.0, 3, 5, 1000)).collect();
    config.streams[0].workload.pattern = trace(&rows);
    config.moves = moves([servers([0, 0, 0, 1, 0, 1, 2, 2]), servers([0, 0, 0, 0, 1, 1, 2, 2])]);
    let result = all_delivered(&config);
    let mut ideals: Vec<Span> = result.messages.iter().map(|message| message.ideal).collect();
    assert!(
        result.messages.iter().all(|message| {
            message.outcome == Outcome::Completed(message.start + message.ideal)
        })
    );
    ideals.dedup();
    assert_eq!(ideals.len(), 3, "far, near, far: {ideals:?}");
    assert!(ideals[0] == ideals[2] && ideals[1] < ideals[0]);
}

#[test]
fn a_run_with_changes_is_the_same_each_time() {
    let fabric = rackless(Dark::All);
    let transport = homa(&fabric, &fixed(2_000_000));
    let mut config = config(fabric, vec![stream(transport, permutation())]);
    config.moves = four_moves();
    let (one, two) = (all_delivered(&config), all_delivered(&config));
    assert_eq!((one.messages, one.counters, one.links), (two.messages, two.counters, two.links));
}

#[test]
fn impossible_changes_are_refused_before_the_run() {
    let fabric = rackless(Dark::All);
    let mut config = config(fabric, vec![stream(cubic(), permutation())]);
    config.moves = moves([servers([0, 0, 0, 0, 0, 1, 2, 2])]);
    let error = run(&config, &Control::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the circuits from 1 ms on are impossible: ToR 0 has 4 ports at the optical circuit switch, and would need 5"
    );
    config.moves.clear();
    config.fabric.topology = LEAF_SPINE;
    config.moves = moves([Circuits::None]);
    let error = run(&config, &Control::default()).unwrap_err();
    assert!(matches!(error, BuildError::Circuits { .. }), "{error}");
}
