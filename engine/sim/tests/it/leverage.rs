//! Leverage Homa on simulated fabrics: measured round trips, and the rules that depend on them.

use std::sync::Arc;

use crate::common::{config, fabric, fixed, run_to_completion, single_switch, stream, trace};
use rackweave_core::{Rate, Span};
use rackweave_sim::config::{BufferConfig, FabricConfig};
use rackweave_transport::{TransportConfig, homa};
use rackweave_workload::Pattern;

const LINK: Rate = crate::common::G10;

fn leverage() -> TransportConfig {
    TransportConfig::Homa(Arc::new(homa::Config::leverage(LINK)))
}

/// Hosts whose round trips to each other, a full packet there and a GRANT back, are 6 to 200 us.
fn different_links() -> FabricConfig {
    let mut fabric = fabric(single_switch(6));
    fabric.host_receive_delay = Span::from_ns(500);
    fabric.host_link_delays =
        [500, 1_000, 4_000, 15_000, 47_000, 48_000].map(Span::from_ns).to_vec();
    fabric
}

#[test]
fn each_pair_finds_its_round_trip() {
    // One message for each pair of hosts, in sequence.
    let mut rows = Vec::new();
    for src in 0..6 {
        for dst in (0..6).filter(|dst| *dst != src) {
            rows.push((3_000.0 * rows.len() as f64, src, dst, 400_000));
        }
    }
    let result =
        run_to_completion(&config(different_links(), vec![stream(leverage(), trace(&rows))]));
    assert_eq!(result.round_trips.len(), 30);
    for trip in &result.round_trips {
        let (min, base) = (trip.min.as_us_f64(), trip.base.as_us_f64());
        assert!((min / base - 1.0).abs() < 0.05, "{trip:?}");
    }
}

#[test]
fn the_kernel_modules_homa_measures_none() {
    let transport = TransportConfig::Homa(Arc::new(homa::Config::linux(LINK)));
    let rows = [(0.0, 0, 1, 400_000)];
    let result =
        run_to_completion(&config(different_links(), vec![stream(transport, trace(&rows))]));
    assert!(result.round_trips.is_empty());
}

#[test]
fn with_congestion_fewer_unscheduled_packets_arrive_at_once() {
    // Hosts that have measured each other, then rounds of an incast that nearly exceeds the port's buffer: windows of
    // a round trip are too large for it, and congestion control reduces them.
    let drops = |congestion| {
        let mut leverage = homa::Leverage::talk();
        leverage.congestion = congestion;
        leverage.unscheduled_ratio = false;
        leverage.scheduled_factor = 1;
        let homa = homa::Config::linux(LINK).with_leverage(leverage);
        let transport = TransportConfig::Homa(Arc::new(homa));
        let mut rows: Vec<_> =
            (1..25).map(|src| (500.0 * f64::from(src), src, 0, 100_000)).collect();
        for round in 0..20 {
            let at = 20_000.0 + 10_000.0 * f64::from(round);
            rows.extend((1..25).map(|src| (at, src, 0, 100_000)));
        }
        let mut fabric = fabric(single_switch(25));
        fabric.host_link_delay = Span::from_us(5);
        fabric.switch.buffer = BufferConfig::PerPort { bytes: 600_000 };
        let run = config(fabric, vec![stream(transport, trace(&rows))]);
        let result = run_to_completion(&run);
        assert_eq!(result.messages.len(), 24 * 21);
        result.counters.drops.iter().sum::<u64>()
    };
    let (without, with) = (drops(None), drops(Some(homa::Detection::Recent)));
    assert!(with < without / 2, "{with} of {without}");
}

#[test]
fn a_run_is_a_function_of_its_configuration() {
    let run = || {
        let senders = Pattern::Incast {
            senders: None,
            receiver: rackweave_core::HostId(0),
            sizes: fixed(300_000),
            messages_per_sender: 3,
            at: Span::ZERO,
            spread: Span::from_us(50),
        };
        let result =
            run_to_completion(&config(different_links(), vec![stream(leverage(), senders)]));
        format!("{:?} {:?}", result.round_trips, result.messages)
    };
    assert_eq!(run(), run());
}
