//! A thousand hosts and one port: each message arrives once and complete, over every transport.

use std::sync::Arc;

use crate::common::*;
use rackweave_core::{Rate, Span};
use rackweave_sim::Fabric;
use rackweave_sim::config::{BufferConfig, FabricConfig, PfcConfig, Topology, TrimConfig};
use rackweave_sim::result::RunResult;
use rackweave_transport::{Profile as _, TransportConfig, dcqcn, homa, ndp, phost, polo};

/// Each sender is a separate host. The port's buffer holds a third of their first packets.
const THOUSAND: Topology = Topology::LeafSpine {
    leaves: 26,
    hosts_per_leaf: 40,
    spines: 10,
    host_link: G10,
    core_link: G40,
};

/// The fabric, with switches that trim or with ones that drop.
fn thousand_hosts(trims: bool) -> FabricConfig {
    let mut fabric = fabric(THOUSAND);
    fabric.switch.trim = trims
        .then_some(TrimConfig::NDP.with_queues(8 * 1538, 500_000).with_return_to_sender(false));
    fabric
}

/// The fabric, with switches that pause their senders.
fn lossless(mut fabric: FabricConfig) -> FabricConfig {
    let pfc = PfcConfig::default().with_priorities(1 << 3 | 1 << 7);
    fabric.switch = fabric.switch.with_shared_buffer(4_000_000, 0.125).with_pfc(pfc);
    fabric
}

fn linux(link: Rate) -> TransportConfig {
    TransportConfig::Homa(Arc::new(homa::Config::linux(link)))
}

fn ndp_over(fabric: &FabricConfig) -> TransportConfig {
    let link = Fabric::new(fabric).expect("a possible fabric").host_rate();
    TransportConfig::Ndp(Arc::new(ndp::Config::paper(link)))
}

fn phost_over(fabric: &FabricConfig) -> TransportConfig {
    let fabric = Fabric::new(fabric).expect("a possible fabric");
    let config = phost::Config::paper(fabric.host_rate());
    let rtt = fabric.base_rtt(config.framing(), 84);
    TransportConfig::PHost(Arc::new(config.for_round_trip(rtt)))
}

fn polo_over(fabric: &FabricConfig) -> TransportConfig {
    let config = polo::Config::slides();
    let fabric = Fabric::new(fabric).expect("a possible fabric");
    let rtt = fabric.base_rtt(config.framing(), 84);
    TransportConfig::Polo(Arc::new(config.for_path(fabric.host_rate(), rtt)))
}

fn leverage(link: Rate) -> TransportConfig {
    TransportConfig::Homa(Arc::new(homa::Config::leverage(link)))
}

/// All hosts send at once; every message must arrive once and complete. Returns the time taken as a multiple of what
/// the receiver's link needs.
fn times_the_link(
    name: &str,
    fabric: &FabricConfig,
    transport: TransportConfig,
    senders: u32,
    bytes: u64,
) -> (f64, RunResult) {
    let link = Fabric::new(fabric).expect("a possible fabric").host_rate();
    let config = config(fabric.clone(), vec![stream(transport, incast(Some(senders), bytes))]);
    let result = run_to_completion(&config);
    assert_eq!(result.messages.len() as u32, senders, "{name}");
    assert_eq!(result.verified_messages, u64::from(senders), "{name}");
    let last = result.messages.iter().map(latency).max().expect("a message");
    let least = link.span_of(u64::from(senders) * bytes.div_ceil(1460) * 1538);
    (last.as_ps() as f64 / least.as_ps() as f64, result)
}

/// One line per transport.
fn transports() -> Vec<(&'static str, FabricConfig, TransportConfig)> {
    let (drops, trims) = (thousand_hosts(false), thousand_hosts(true));
    let (pfabric, ranks) = pfabric(&drops);
    let (uet_over, eqds_over) = (uet(&drops), eqds(&drops));
    vec![
        ("homa", drops.clone(), homa(&drops, &fixed(10_000))),
        ("homa, linux", drops.clone(), linux(G10)),
        ("dctcp", drops.clone(), dctcp()),
        ("tcp", drops.clone(), cubic()),
        ("phost", drops.clone(), phost_over(&drops)),
        ("ndp", trims.clone(), ndp_over(&trims)),
        ("polo", drops.clone(), polo_over(&drops)),
        ("pfabric", ranks, pfabric),
        ("leverage homa", drops.clone(), leverage(G10)),
        ("sird", drops.clone(), sird(&drops)),
        ("swift", drops.clone(), swift(&drops)),
        ("dcpim", drops.clone(), dcpim(&drops)),
        ("uet", trims.clone(), uet_over.0),
        ("eqds", trims, eqds_over.0),
        ("dcqcn", lossless(drops.clone()), dcqcn::Config::hpcc(G10).into()),
        ("hpcc", lossless(drops.clone()), hpcc(&drops)),
    ]
}

#[test]
fn every_transport_that_repairs_losses_is_among_these() {
    let here = transports();
    for name in TransportConfig::names().filter(|name| *name != "datagram") {
        assert!(here.iter().any(|(_, _, transport)| transport.name() == name), "{name}");
    }
}

#[test]
fn a_thousand_short_messages_arrive_over_every_transport() {
    for (name, fabric, transport) in transports() {
        let (times, _) = times_the_link(name, &fabric, transport, 1000, 10_000);
        // The kernel module of 2023 asks a peer once in 10 ms, whatever it has answered.
        assert!((0.95..10.0).contains(&times), "{name}: {times:.2}");
    }
}

#[test]
fn a_thousand_longer_messages_arrive_over_every_transport() {
    for (name, fabric, transport) in transports() {
        let (times, _) = times_the_link(name, &fabric, transport, 1000, 50_000);
        assert!((0.95..3.5).contains(&times), "{name}: {times:.2}");
    }
}

/// Retransmissions are requested no faster than the link can carry them, and only for lost packets: packets of low
/// priority may wait for seconds.
#[test]
fn homa_repairs_an_incast_and_sends_nothing_twice() {
    let mut fabric = fabric(single_switch(128));
    // The few long messages with grants wait for each other longer than `resend_ticks`.
    let bytes = 8_000_000;
    fabric.switch.buffer = BufferConfig::PerPort { bytes: 300_000 };
    let transport = homa(&fabric, &fixed(bytes));
    let (times, result) = times_the_link("homa", &fabric, transport, 40, bytes);
    assert!((0.95..1.06).contains(&times), "{times:.3}");
    let drops: u64 = result.counters.drops.iter().sum();
    assert!((1..400).contains(&drops), "{drops}");
}

/// The fabric of Polo's slides: 1 Gbps, a round trip of about 50 us, 86 KB. Homa may be slow there, with timers of 1
/// or 5 ms, but no message is lost.
#[test]
fn homa_completes_on_polos_fabric() {
    let slow = Rate::from_gbps(1);
    let mut fabric = fabric(Topology::SingleSwitch { hosts: 301, host_link: slow });
    fabric.switch.buffer = BufferConfig::PerPort { bytes: 86_000 };
    fabric.host_link_delay = Span::from_us(10);
    for (tick_us, ticks) in [(1_000, 1), (250, 4), (1_000, 5)] {
        let TransportConfig::Homa(config) = homa(&fabric, &fixed(100_000)) else { unreachable!() };
        let mut config = homa::Config::clone(&config);
        config.tick = Span::from_us(tick_us);
        (config.resend_ticks, config.resend_interval) = (ticks, ticks);
        let transport = TransportConfig::Homa(Arc::new(config));
        let (times, _) = times_the_link("homa", &fabric, transport, 300, 100_000);
        assert!((0.95..2.0).contains(&times), "{tick_us} us, {ticks} ticks: {times:.2}");
    }
}
