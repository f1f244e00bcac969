//! RoCEv2 with DCQCN over switches that pause: shares of long flows, and incasts.

use crate::common::*;
use rackweave_core::Span;
use rackweave_sim::config::FabricConfig;
use rackweave_sim::result::{End, RunResult};
use rackweave_transport::{TransportConfig, dcqcn};

fn lossless(hosts: u32) -> FabricConfig {
    pausing(fabric(single_switch(hosts)))
}

fn hpcc() -> dcqcn::Config {
    dcqcn::Config::hpcc(G10)
}

fn utilisation(result: &RunResult, link: &str) -> f64 {
    result.links.iter().find(|it| it.name == link).expect("a link").utilisation
}

#[test]
fn two_long_flows_get_fair_shares_of_a_full_link_and_lose_nothing() {
    for (name, transport) in [("hpcc", hpcc()), ("paper", dcqcn::Config::paper(G10))] {
        // The second one begins when the first one has the whole link.
        let rows = [(0.0, 1, 0, 4_000_000_000), (20_000.0, 2, 0, 4_000_000_000)];
        let transport = TransportConfig::from(transport);
        let mut config = config(lossless(3), vec![stream(transport, trace(&rows))]);
        config.measure.verify = false;
        config.measure.warmup = Span::from_ms(100);
        config.measure.time_limit = Span::from_ms(600);
        let result = run_until(&config, End::TimeLimit);
        assert_eq!(result.counters.dropped(), 0, "{name}");
        let shares = [1, 2].map(|host| utilisation(&result, &format!("h{host}->switch0")));
        let total: f64 = shares.iter().sum();
        assert!(total > 0.95, "{name}: the link is filled: {shares:?}");
        assert!(
            shares.iter().all(|share| (share / total * 2.0 - 1.0).abs() < 0.1),
            "{name}: {shares:?}"
        );
    }
}

/// Theory: after its n-th increase a rate that was halved misses 2^-(n+1) of the link. The network polls a link by itself only
/// when a packet has arrived, here ten packets later.
#[test]
fn a_rate_just_below_that_of_the_link_is_kept_on_long_cables() {
    let interval = Span::from_ms(2);
    let transport = dcqcn::Config {
        cut_interval: interval,
        raise_interval: interval,
        fast_recovery: u32::MAX,
        ..hpcc()
    };
    // The second message makes marks; its queue is gone after the cut.
    let rows = [(0.0, 1, 0, 4_000_000_000), (100.0, 2, 0, 100_000)];
    let fabric = lossless(3).with_link_delay(Span::from_us(12));
    let mut config = config(fabric, vec![stream(transport.into(), trace(&rows))]);
    config.measure.verify = false;
    config.measure.warmup = Span::from_ms(20);
    config.measure.time_limit = Span::from_ms(30);
    let kept = utilisation(&run_until(&config, End::TimeLimit), "h1->switch0");
    // From 7 to 14 increases.
    assert!(kept > 1.0 - 0.5_f64.powi(8) && kept < 1.0 - 0.5_f64.powi(16), "{kept}");
}

#[test]
fn eight_to_one_loses_nothing_and_keeps_the_link_busy() {
    let bytes = 10_000_000;
    let config = config(lossless(9), vec![stream(hpcc().into(), incast(Some(8), bytes))]);
    let result = run_to_completion(&config);
    assert_eq!(result.counters.dropped(), 0);
    let last = result.messages.iter().map(latency).max().expect("a message");
    let least = G10.span_of(8 * hpcc_wire_bytes(bytes));
    let busy = least.ticks() as f64 / last.ticks() as f64;
    assert!(busy > 0.9, "{busy:.3}");
    assert!(result.counters.pauses > 0);
}

/// The bytes of a message on the link.
fn hpcc_wire_bytes(bytes: u64) -> u64 {
    TransportConfig::from(hpcc()).framing().message_wire_bytes(bytes)
}
