//! NDP, pHost and EQDS on simulated fabrics: links used, incasts, thousands of senders.

use crate::common::*;
use rackweave_core::{HostId, Rate, Span};
use rackweave_sim::RunConfig;
use rackweave_sim::config::{FabricConfig, Topology, TrimConfig};
use rackweave_sim::result::RunResult;
use rackweave_transport::{TransportConfig, uet};
use rackweave_workload::Pattern;

const FAT_TREE: Topology = Topology::fat_tree(8, G10);

fn quick(fabric: FabricConfig, transport: TransportConfig, pattern: Pattern) -> RunConfig {
    let mut config = config(fabric, vec![stream(transport, pattern)]);
    config.measure.verify = false;
    config
}

fn last(result: &RunResult) -> Span {
    result.messages.iter().map(latency).max().unwrap()
}

/// Every host of a fat-tree sends to another one. At most 1538 of 1622 bytes on a link are data: the others are the
/// acknowledgements of what the host receives.
#[test]
fn a_permutation_over_ndp_uses_the_links() {
    let bytes = 2_000_000;
    let share = |paths| {
        let fabric = trimming(fabric(FAT_TREE), 15, false);
        let transport = ndp(&fabric, paths);
        let ideal = G10.span_of(transport.framing().message_wire_bytes(bytes));
        let pattern = Pattern::Permutation { sizes: fixed(bytes), messages_per_host: 1 };
        let result = run_to_completion(&quick(fabric, transport, pattern));
        ideal.as_ps() as f64 / last(&result).as_ps() as f64
    };
    let (named, random) = (share(FAT_TREE.paths()), share(0));
    assert!(named > 0.92, "{named}");
    assert!(random < named - 0.03, "switches that pick at random: {random}, senders: {named}");
}

#[test]
fn an_incast_over_ndp_takes_the_ideal_time() {
    for senders in [8, 32, 64, 127] {
        let fabric = trimming(fabric(FAT_TREE), 8, true);
        let transport = ndp(&fabric, FAT_TREE.paths());
        let wire_bytes = transport.framing().message_wire_bytes(100_000);
        let result = run_to_completion(&quick(fabric, transport, incast(Some(senders), 100_000)));
        let ideal = G10.span_of(u64::from(senders) * wire_bytes) + Span::from_us(12);
        let times = last(&result).as_ps() as f64 / ideal.as_ps() as f64;
        assert!((0.99..1.05).contains(&times), "{senders} senders: {times} times the ideal");
        assert_eq!(result.counters.drops.iter().sum::<u64>(), 0, "headers go back instead");
        assert_eq!(result.counters.returned_to_sender > 0, senders > 8, "{senders} senders");
    }
}

/// Headers that are returned to their senders avoid the timeout that their loss would cost.
#[test]
fn without_returned_headers_an_incast_waits_for_a_timeout() {
    let fabric = trimming(fabric(FAT_TREE), 8, false);
    let transport = ndp(&fabric, FAT_TREE.paths());
    let result = run_to_completion(&quick(fabric, transport, incast(Some(32), 100_000)));
    assert!(result.counters.drops.iter().sum::<u64>() > 0);
    assert_eq!(result.counters.returned_to_sender, 0);
    assert!(last(&result) > Span::from_ms(5));
}

/// Thousands of senders at once: each message arrives once and complete, and the link stays busy.
#[test]
fn thousands_of_senders_at_one_port() {
    for senders in [1000, 4000] {
        let plain = fabric(LEAF_SPINE);
        let trimming = trimming(plain.clone(), 8, true);
        for (name, transport, fabric, most) in [
            ("ndp", ndp(&trimming, LEAF_SPINE.paths()), trimming.clone(), 1.10),
            ("phost", phost(&plain), plain.clone(), 2.0),
        ] {
            let wire_bytes = transport.framing().message_wire_bytes(20_000);
            let pattern = incast(Some(senders), 20_000);
            let result = run_to_completion(&config(fabric, vec![stream(transport, pattern)]));
            assert_eq!(result.verified_messages, u64::from(senders), "{name}");
            let ideal = G10.span_of(u64::from(senders) * wire_bytes);
            let times = last(&result).as_ps() as f64 / ideal.as_ps() as f64;
            assert!((0.95..most).contains(&times), "{name}, {senders}: {times} times the ideal");
        }
    }
}

/// A run with the links, packets and queues of EQDS's validation (`docs/sources.md#eqds-validation`), as in
/// `scenarios/papers/uet/eqds-validate.toml`: 2 MB for each pair of hosts.
fn eqds_validation(k: u32, pairs: &[(u32, u32)]) -> RunResult {
    let link = Rate(100_916_000_000);
    let mut fabric =
        fabric(Topology::FatTree { k, host_link: link, aggregation_link: link, core_link: link });
    (fabric.host_link_delay, fabric.core_link_delay) = (Span::from_us(1), Span::from_us(1));
    (fabric.host_send_delay, fabric.host_receive_delay) = (Span::ZERO, Span::ZERO);
    fabric.switch.latency = Span::ZERO;
    fabric.switch.ecn_threshold_bytes = None;
    let (data_queue_bytes, header_queue_bytes) = (146_580, 293_160);
    fabric.switch.trim =
        Some(TrimConfig { data_queue_bytes, header_queue_bytes, return_to_sender: false });
    let config = uet::Config {
        max_payload: 4086,
        max_window: 50 * 4150,
        entropies: 64,
        ..uet::Config::eqds(link)
    };
    let rows: Vec<_> = pairs.iter().map(|(src, dst)| (0.0, *src, *dst, 2_000_000)).collect();
    run_to_completion(&quick(fabric, config.into(), trace(&rows)))
}

/// The acknowledgement's way, which is in the simulator's times and not in ours.
const WAY_BACK: Span = Span::from_ns(6_100);

#[test]
fn flows_over_eqds_end_within_the_bounds_of_its_simulator() {
    let incast = |hosts: u32, receiver| {
        let senders = (0..hosts).filter(|host| *host != receiver);
        senders.map(|sender| (sender, receiver)).collect::<Vec<_>>()
    };
    let shifted = (0..16).map(|host| (host, (host + 7) % 16)).collect();
    let cases = [
        (4, vec![(0, 13)], 180),
        (4, vec![(3, 4), (4, 3)], 190),
        (4, incast(16, 15), 2_500),
        (8, incast(128, 33), 23_000),
        (4, shifted, 210),
    ];
    for (k, pairs, bound) in cases {
        let last = last(&eqds_validation(k, &pairs)) + WAY_BACK;
        println!("{} flows: {last}, bound {bound} us", pairs.len());
        assert!(last <= Span::from_us(bound), "{} flows: {last}", pairs.len());
    }
}

/// Hosts 1, 2 and 3 send to host 0, and the latter two to nine others each as well.
#[test]
fn over_eqds_a_sender_to_one_host_is_not_held_up_by_senders_to_ten() {
    let mut pairs = vec![(1, 0), (2, 0), (3, 0)];
    pairs.extend((4..13).map(|to| (2, to)));
    pairs.extend((13..22).map(|to| (3, to)));
    let result = eqds_validation(8, &pairs);
    let first = result.messages.iter().find(|record| record.src == HostId(1)).map(latency).unwrap();
    println!("outcast: {first}, all {}", last(&result));
    assert!(first + WAY_BACK <= Span::from_us(215), "{first}");
    assert!(last(&result) + WAY_BACK <= Span::from_us(2_500));
}
