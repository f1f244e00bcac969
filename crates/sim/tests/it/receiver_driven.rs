//! NDP and pHost on simulated fabrics: links used, incasts, thousands of senders.

use crate::common::*;
use rackweave_core::Span;
use rackweave_sim::RunConfig;
use rackweave_sim::config::{FabricConfig, Topology};
use rackweave_sim::result::RunResult;
use rackweave_transport::TransportConfig;
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
