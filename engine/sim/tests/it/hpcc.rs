//! HPCC over switches that stamp packets and pause: its fixed point, shares of long flows, queues of incasts.

use crate::common::*;
use rackweave_core::{Rate, Span};
use rackweave_sim::config::{
    BufferConfig, FabricConfig, Marking, PfcConfig, SwitchConfig, Topology,
};
use rackweave_sim::result::{End, RunResult};
use rackweave_sim::{BuildError, Control, Fabric, run};
use rackweave_transport::{TransportConfig, dcqcn, hpcc};

/// A switch of 8 MB that pauses.
fn lossless(topology: Topology) -> FabricConfig {
    let mut fabric = fabric(topology);
    let pfc = PfcConfig::default();
    fabric.switch = SwitchConfig::default().with_shared_buffer(8_000_000, 0.125).with_pfc(pfc);
    fabric
}

/// The utilisation of a link by data in the time that is measured, headers and gaps included.
fn utilisation(result: &RunResult, link: &str) -> f64 {
    result.links.iter().find(|it| it.name == link).expect("a link").utilisation
}

/// Runs flows of 4 GB from these hosts to host 0, which begin 20 ms apart, and measures for `ms` from 100 ms on.
fn long_flows(
    fabric: &FabricConfig,
    transport: &TransportConfig,
    from: &[u32],
    ms: u64,
) -> RunResult {
    let row = |(host, at_us): (&u32, f64)| (at_us, *host, 0, 4_000_000_000);
    let starts = (0..from.len()).map(|number| number as f64 * 20_000.0);
    let rows: Vec<_> = from.iter().zip(starts).map(row).collect();
    let mut config = config(fabric.clone(), vec![stream(transport.clone(), trace(&rows))]);
    config.measure.verify = false;
    config.measure.warmup = Span::from_ms(100);
    config.measure.time_limit = Span::from_ms(100 + ms);
    run_until(&config, End::TimeLimit)
}

/// Theory: U = eta (1 + W_AI / W) of the busiest port. With W_AI of 1/2000 of a product that is eta.
#[test]
fn a_flow_alone_fills_eta_of_its_path_with_empty_queues() {
    for topology in [single_switch(3), LEAF_SPINE] {
        let fabric = lossless(topology);
        let result = long_flows(&fabric, &hpcc(&fabric), &[2], 50);
        let link = result.links.iter().find(|link| link.name.ends_with("->h0")).expect("a link");
        assert!((link.utilisation - 0.95).abs() < 0.005, "{}", link.utilisation);
        assert!(result.max_queue_bytes < 10_000, "{}", result.max_queue_bytes);
        assert_eq!((result.counters.dropped(), result.counters.pauses), (0, 0));
    }
}

/// With a bandwidth-delay product of many packets, as in the paper, and `W_AI` for ten flows: they converge in milliseconds. Theory:
/// a window keeps its size where W (1 - eta / U) = W_AI, so with n flows U is eta / (1 - n W_AI / (eta B T)). The tolerances are our choice.
#[test]
fn flows_of_one_link_get_fair_shares() {
    let link = Rate::from_gbps(100);
    let mut fabric = lossless(Topology::SingleSwitch { hosts: 4, host_link: link })
        .with_link_delay(Span::from_us(2));
    fabric.switch.buffer = BufferConfig::Shared { bytes: 32_000_000, alpha: 0.125 };
    let rtt = Fabric::new(&fabric).unwrap().base_rtt(hpcc(&fabric).framing(), 84);
    let paper = hpcc::Config::paper(link, rtt);
    let quick = hpcc::Config { additive_bytes: paper.additive_for(10), ..paper };
    let rows: Vec<_> =
        (1..4).map(|host| (f64::from(host) * 1_000.0, host, 0, 4_000_000_000)).collect();
    let mut config = config(fabric, vec![stream(quick.into(), trace(&rows))]);
    config.measure.verify = false;
    config.measure.warmup = Span::from_ms(20);
    config.measure.time_limit = Span::from_ms(30);
    let result = run_until(&config, End::TimeLimit);
    let shares = [1, 2, 3].map(|host| utilisation(&result, &format!("h{host}->switch0")));
    let total: f64 = shares.iter().sum();
    let theory = 0.95 / (1.0 - 3.0 * 0.05 / 10.0 / 0.95);
    assert!((total - theory).abs() < 0.003, "{shares:?} {theory}");
    assert!(shares.iter().all(|share| (share / total * 3.0 - 1.0).abs() < 0.02), "{shares:?}");
    assert_eq!(result.counters.dropped(), 0);
}

/// 64 to 1: nothing is lost. Theory: HPCC carries eta of the link, and once windows have shrunk it queues at most a packet of each flow,
/// the least window. Over DCQCN the least rates, 1 Gbps each, fill the buffer until all 64 ports pause, at t = alpha (B - 64 t).
/// Our choice: a tenth more time, for the first round trips and the last flow alone; half of that queue, as it drains at the end.
#[test]
fn an_incast_loses_nothing_and_its_queue_is_short_where_that_of_dcqcn_is_long() {
    let fabric = lossless(single_switch(65));
    let mut marking = fabric.clone();
    marking.switch.marking = Marking::DCQCN;
    let transports = [(hpcc(&fabric), fabric), (dcqcn::Config::hpcc(G10).into(), marking)];
    let [over_hpcc, over_dcqcn] = transports.map(|(transport, fabric)| {
        let mut config = config(fabric, vec![stream(transport, incast(Some(64), 2_000_000))]);
        config.measure.ports_from = Some(Span::from_ms(20));
        let result = run_to_completion(&config);
        assert_eq!(result.counters.dropped(), 0);
        let last = result.messages.iter().map(latency).max().expect("a message");
        let port = result.links.iter().find(|link| link.name == "switch0->h0").expect("a link");
        (last.as_secs_f64(), port.mean_queue_bytes)
    });
    let wire_bytes = hpcc(&lossless(single_switch(65))).framing().message_wire_bytes(2_000_000);
    let least = G10.span_of(64 * wire_bytes).as_secs_f64() / 0.95;
    assert!(over_hpcc.0 > least * 0.95 && over_hpcc.0 < least * 1.1, "{over_hpcc:?} {least}");
    assert!(over_hpcc.1 < 64.0 * 1_538.0, "{over_hpcc:?}");
    let paused = 64.0 * 0.125 * 8e6 / (1.0 + 64.0 * 0.125);
    assert!(over_dcqcn.1 > paused / 2.0 && over_dcqcn.1 < paused * 1.1, "{over_dcqcn:?} {paused}");
}

/// Its packets have five hops over three stages.
#[test]
fn a_fat_tree_of_three_stages_is_not_too_deep() {
    let tree = Topology::fat_tree(4, G10);
    let fabric = lossless(tree);
    let result = long_flows(&fabric, &hpcc(&fabric), &[15], 20);
    assert!((utilisation(&result, "h15->edge7") - 0.95).abs() < 0.01);
}

#[test]
fn a_rate_without_a_code_is_refused() {
    let topology = Topology::SingleSwitch { hosts: 2, host_link: Rate::from_gbps(17) };
    let fabric = lossless(topology);
    let streams = vec![stream(hpcc(&fabric), incast(Some(1), 1_000))];
    let error = run(&config(fabric, streams), &Control::default()).unwrap_err();
    assert!(matches!(error, BuildError::StampedRate(_)), "{error}");
    assert_eq!(
        error.to_string(),
        "HPCC's packets cannot name links of 17 Gbps: in-band telemetry has codes for 1, 2.5, 5, 10, 20, 25, 40, 50, 80, 100, 160, 200, \
         400, 800, 1600 and 3200 Gbps"
    );
}

/// HPCC's results, too, are the same with any number of threads.
#[test]
fn threads_change_nothing() {
    use rackweave_sim::{Threads, run_divided};
    // Switches that pause keep a run on one thread.
    let mut fabric = fabric(LEAF_SPINE);
    fabric.core_link_delay = Span::from_ns(500);
    let streams = vec![stream(hpcc(&fabric), incast(Some(20), 200_000))];
    let config = config(fabric, streams);
    let on = |threads| run_divided(&config, Threads::new(threads), &Control::default()).unwrap();
    let (one, three) = (on(1), on(3));
    assert_eq!(one.messages, three.messages);
    assert_eq!(one.counters, three.counters);
}
