//! NDP, pHost and dcPIM on simulated fabrics: links used, incasts, thousands of senders, cores that are oversubscribed.

use crate::common::*;
use rackweave_core::{Rate, Span};
use rackweave_sim::RunConfig;
use rackweave_sim::config::{BufferConfig, FabricConfig, Topology};
use rackweave_sim::result::RunResult;
use rackweave_transport::TransportConfig;
use rackweave_workload::{Exchange, Pattern};

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

/// The hosts' requests could take all of an oversubscribed core, and control packets precede data. The core carries an eighth of what
/// the hosts' links carry. With constant numbers of requests, nothing arrives from other leaves.
#[test]
fn requests_of_dcpim_leave_an_oversubscribed_core_to_data() {
    let (leaves, hosts_per_leaf, spines, bytes) = (3, 4, 2, 100_000);
    let (host_link, core_link) = (Rate::from_gbps(1), Rate(250_000_000));
    for buffer in [500_000, u64::MAX] {
        let mut fabric =
            fabric(Topology::LeafSpine { leaves, hosts_per_leaf, spines, host_link, core_link });
        fabric.switch.buffer = BufferConfig::PerPort { bytes: buffer };
        let transport = dcpim(&fabric);
        // Each host of a leaf sends to the eight hosts of others, and answers them.
        let wire_bytes = 2 * 4 * 8 * transport.framing().message_wire_bytes(bytes);
        let ideal = core_link.span_of(wire_bytes / u64::from(spines));
        let pattern = Pattern::AllToAll { sizes: fixed(bytes), messages_per_pair: 1 };
        let mut config = config(fabric, vec![rpc(transport, pattern, Exchange::Echo)]);
        config.measure.time_limit = Span::from_secs(1);
        let result = run_to_completion(&config);
        let times = last(&result).as_ps() as f64 / ideal.as_ps() as f64;
        assert!((1.0..5.0).contains(&times), "{buffer} bytes: {times} times the ideal");
    }
}
