//! Run configurations with defaults, for tests of the real transports on simulated fabrics.
use std::sync::Arc;

use rackweave_core::{Framing, HostId, Rate, Span, frame};
use rackweave_sim::config::{
    BufferConfig, FabricConfig, Marking, MeasureConfig, PfcConfig, StreamConfig, SwitchConfig,
    Topology, TrimConfig,
};
use rackweave_sim::result::{End, MessageRecord, Outcome, RunResult};
use rackweave_sim::{Control, Fabric, RunConfig, run};
use rackweave_transport::{
    Profile as _, TransportConfig, dcpim, dcqcn, homa, hpcc, ndp, pfabric, phost, polo, sird,
    swift, tcp, uet,
};
use rackweave_workload::{Exchange, Generator, Pattern, SizeDist, Trace, WorkloadConfig};

pub(crate) const G10: Rate = Rate::from_gbps(10);
pub(crate) const G40: Rate = Rate::from_gbps(40);

/// The smaller fabric of the tests: 3 leaves of 8 hosts, 2 spines.
pub(crate) const LEAF_SPINE: Topology =
    Topology::LeafSpine { leaves: 3, hosts_per_leaf: 8, spines: 2, host_link: G10, core_link: G40 };

pub(crate) fn single_switch(hosts: u32) -> Topology {
    Topology::SingleSwitch { hosts, host_link: G10 }
}

pub(crate) fn fabric(topology: Topology) -> FabricConfig {
    FabricConfig::new(topology)
        .with_link_delay(Span::ZERO)
        .with_host_delays(Span::from_ns(500), Span::from_us(1))
        .with_switch(SwitchConfig::default())
}

/// Homa with SIGCOMM'18's parameters: its window covers this fabric's round trip, and its priorities follow these
/// sizes.
pub(crate) fn homa(fabric: &FabricConfig, sizes: &SizeDist) -> TransportConfig {
    let fabric = Fabric::new(fabric).expect("a possible fabric");
    let link = fabric.host_rate();
    let framing = homa::Config::fabric(link, 10_000).framing();
    let rtt_bytes = link.bytes_in(fabric.base_rtt(framing, 86)) as u32;
    let points: Vec<_> = sizes.points().map(|(size, p)| (size as u32, p)).collect();
    let config = homa::Config::fabric(link, rtt_bytes).with_workload(&points, None);
    TransportConfig::Homa(Arc::new(config))
}

/// The queues of NDP's authors: a number of data packets, and twice their bytes of headers.
pub(crate) fn trimming(
    mut fabric: FabricConfig,
    packets: u64,
    return_to_sender: bool,
) -> FabricConfig {
    let data_queue_bytes = packets * 1538;
    let header_queue_bytes = 2 * data_queue_bytes;
    fabric.switch.trim = Some(
        TrimConfig::NDP
            .with_queues(data_queue_bytes, header_queue_bytes)
            .with_return_to_sender(return_to_sender),
    );
    fabric
}

/// NDP with a window of three round trips, as in the scenarios.
pub(crate) fn ndp(fabric: &FabricConfig, paths: u32) -> TransportConfig {
    let paper = ndp::Config::paper(G10);
    let rtt = Fabric::new(fabric).unwrap().base_rtt(paper.framing(), 84);
    let window = (3 * G10.bytes_in(rtt)).div_ceil(u64::from(frame::wire_bytes(frame::MTU)));
    let initial_window = paper.initial_window.max(window as u16);
    TransportConfig::Ndp(Arc::new(ndp::Config { initial_window, paths: paths as u16, ..paper }))
}

pub(crate) fn phost(fabric: &FabricConfig) -> TransportConfig {
    let config = phost::Config::paper(G10);
    let rtt = Fabric::new(fabric).unwrap().base_rtt(config.framing(), 84);
    TransportConfig::PHost(Arc::new(config.for_round_trip(rtt)))
}

/// SIRD with the paper's parameters for this fabric.
pub(crate) fn sird(fabric: &FabricConfig) -> TransportConfig {
    let fabric = Fabric::new(fabric).expect("a possible fabric");
    let full = sird::Config::paper(fabric.host_rate(), 0).framing();
    let bdp = fabric.host_rate().bytes_in(fabric.base_rtt(full, 84));
    sird::Config::paper(fabric.host_rate(), bdp).into()
}

/// Swift with targets and a first window for this fabric, whose hosts all count as far.
pub(crate) fn swift(fabric: &FabricConfig) -> TransportConfig {
    let fabric = Fabric::new(fabric).expect("a possible fabric");
    let htsim = swift::Config::htsim();
    let rtt = fabric.base_rtt(htsim.framing(), 84);
    htsim.for_paths(fabric.host_rate(), (1, rtt), (1, rtt)).into()
}

/// HPCC with the paper's parameters for this fabric.
pub(crate) fn hpcc(fabric: &FabricConfig) -> TransportConfig {
    let fabric = Fabric::new(fabric).expect("a possible fabric");
    let config = hpcc::Config::paper(fabric.host_rate(), Span::from_us(1));
    let rtt = fabric.base_rtt(config.framing(), 84);
    hpcc::Config::paper(fabric.host_rate(), rtt).into()
}

/// dcPIM with the paper's parameters for this fabric.
pub(crate) fn dcpim(fabric: &FabricConfig) -> TransportConfig {
    let fabric = Fabric::new(fabric).expect("a possible fabric");
    let framing = |max_payload| Framing { max_payload, header_bytes: 40, spray_above_bytes: 0 };
    let rtt = fabric.base_rtt(framing(1_460), frame::wire_bytes(frame::MTU));
    let control_rtt = fabric.base_rtt(framing(1), frame::wire_bytes(0));
    dcpim::Config::paper(fabric.host_rate(), rtt, control_rtt).into()
}

/// pFabric with the paper's parameters for this fabric, and the fabric with its queues: two bandwidth-delay products, at
/// least 24 packets.
pub(crate) fn pfabric(fabric: &FabricConfig) -> (TransportConfig, FabricConfig) {
    let (config, link) = (pfabric::Config::paper(), {
        let fabric = Fabric::new(fabric).expect("a possible fabric");
        fabric.host_rate()
    });
    let rtt = Fabric::new(fabric).unwrap().base_rtt(config.framing(), 84);
    let mut fabric = fabric.clone();
    let bytes = (2 * link.bytes_in(rtt)).max(24 * 1538);
    fabric.switch = fabric.switch.with_pfabric().with_buffer(bytes);
    (TransportConfig::PFabric(Arc::new(config.for_round_trip(link, rtt))), fabric)
}

/// UET with NSCC and RCCC, and the fabric with its queues of a bandwidth-delay product, which trim.
pub(crate) fn uet(fabric: &FabricConfig) -> (TransportConfig, FabricConfig) {
    let layout = Fabric::new(fabric).expect("a possible fabric");
    let link = layout.host_rate();
    let full = uet::Config::eqds(link).framing();
    let rtt = layout.base_rtt(full, 84);
    let packets = link.bytes_in(rtt).div_ceil(1538).max(8);
    (uet::Config::uet(link, rtt).into(), trimming(fabric.clone(), packets, false))
}

/// EQDS, and the fabric with its queues of 35 packets, which trim.
pub(crate) fn eqds(fabric: &FabricConfig) -> (TransportConfig, FabricConfig) {
    let link = Fabric::new(fabric).expect("a possible fabric").host_rate();
    (uet::Config::eqds(link).into(), trimming(fabric.clone(), 35, false))
}

/// The transport with this name, and the fabric that it needs: trimming for NDP, EQDS and UET, a plain one for pHost and SIRD.
pub(crate) fn receiver_driven(
    fabric: &FabricConfig,
) -> Vec<(&'static str, TransportConfig, FabricConfig)> {
    let trimming = trimming(fabric.clone(), 8, true);
    let paths = fabric.topology.paths();
    let ((uet, uet_fabric), (eqds, eqds_fabric)) = (uet(fabric), eqds(fabric));
    vec![
        ("uet", uet, uet_fabric),
        ("eqds", eqds, eqds_fabric),
        ("ndp", ndp(&trimming, paths), trimming),
        ("phost", phost(fabric), fabric.clone()),
        ("sird", sird(fabric), fabric.clone()),
        ("swift", swift(fabric), fabric.clone()),
        ("dcpim", dcpim(fabric), fabric.clone()),
        ("dcqcn", dcqcn::Config::hpcc(G10).into(), fabric.clone()),
        ("hpcc", hpcc(fabric), fabric.clone()),
    ]
}

pub(crate) fn dctcp() -> TransportConfig {
    TransportConfig::Tcp(Arc::new(tcp::Config::dctcp()))
}

pub(crate) fn polo() -> TransportConfig {
    let rtt = Span::from_us(8);
    TransportConfig::Polo(Arc::new(polo::Config::slides().for_path(G10, rtt)))
}

pub(crate) fn cubic() -> TransportConfig {
    TransportConfig::Tcp(Arc::new(tcp::Config::tcp()))
}

pub(crate) fn new_reno() -> TransportConfig {
    TransportConfig::Tcp(Arc::new(tcp::Config::new_reno()))
}

pub(crate) fn stream(transport: TransportConfig, pattern: Pattern) -> StreamConfig {
    StreamConfig::new(transport, pattern)
}

pub(crate) fn rpc(
    transport: TransportConfig,
    pattern: Pattern,
    exchange: Exchange,
) -> StreamConfig {
    let workload = WorkloadConfig { exchange, ..WorkloadConfig::new(pattern) };
    StreamConfig::new(transport, workload)
}

pub(crate) fn measure() -> MeasureConfig {
    MeasureConfig::default().with_samples(Span::ZERO).with_verification()
}

pub(crate) fn config(fabric: FabricConfig, streams: Vec<StreamConfig>) -> RunConfig {
    let mut config = RunConfig::new(fabric).with_measure(measure());
    config.streams = streams;
    config
}

/// Runs a configuration in which every measured message completes or fails, and none is missing.
pub(crate) fn run_to_completion(config: &RunConfig) -> RunResult {
    let result = run_until(config, End::AllDone);
    let (hosts, main) = (config.fabric.topology.hosts(), &config.streams[0].workload);
    // The gap affects times only.
    let generator = Generator::new(main, hosts, Some(Span::from_us(1)), config.seed, config.run, 0);
    let total = generator.expect("a possible workload").total().unwrap_or(u64::MAX);
    let wanted = match total.min(config.measure.messages) {
        u64::MAX => 1,
        wanted => wanted,
    };
    let measured = result.messages.len() as u64;
    assert!(measured >= wanted, "{measured} of {wanted} messages");
    result
}

/// Runs a configuration and checks that it ends for this reason.
pub(crate) fn run_until(config: &RunConfig, end: End) -> RunResult {
    let result = run(config, &Control::default()).expect("a possible run");
    assert_eq!(result.end, end);
    result
}

pub(crate) fn fixed(bytes: u64) -> SizeDist {
    SizeDist::fixed(bytes).expect("a positive size")
}

pub(crate) fn trace(rows: &[(f64, u32, u32, u64)]) -> Pattern {
    let mut text = String::from("time_us,source,destination,bytes\n");
    for (at_us, src, dst, bytes) in rows {
        text += &format!("{at_us},{src},{dst},{bytes}\n");
    }
    Pattern::Trace(Trace::from_csv(text).expect("a right trace"))
}

pub(crate) fn incast(senders: Option<u32>, bytes: u64) -> Pattern {
    let (receiver, at, spread) = (HostId(0), Span::ZERO, Span::ZERO);
    let sizes = fixed(bytes);
    Pattern::Incast { senders, receiver, sizes, messages_per_sender: 1, at, spread }
}

pub(crate) fn latency(record: &MessageRecord) -> Span {
    match record.outcome {
        Outcome::Completed(at) => at.since(record.start),
        other => panic!("message ended as {other:?}: {record:?}"),
    }
}

pub(crate) fn slowdown(record: &MessageRecord) -> f64 {
    latency(record).ticks() as f64 / record.ideal.ticks() as f64
}

/// The share of the receiver's link that each of several long flows into one host takes, counted at the senders'
/// links after 100 ms.
pub(crate) fn shares(
    transport: TransportConfig,
    flows: u32,
    time_limit: Span,
    start_gap_us: f64,
) -> Vec<f64> {
    let mut fabric = fabric(single_switch(flows + 1));
    fabric.switch.buffer = BufferConfig::PerPort { bytes: 300_000 };
    let rows: Vec<_> =
        (1..=flows).map(|src| (f64::from(src) * start_gap_us, src, 0, 4_000_000_000)).collect();
    let mut config = config(fabric, vec![stream(transport, trace(&rows))]);
    config.measure.verify = false;
    config.measure.warmup = Span::from_ms(100);
    config.measure.time_limit = time_limit;
    let result = run_until(&config, End::TimeLimit);
    (1..=flows).map(|host| result.links[host as usize].utilisation).collect()
}

/// A fabric whose switches have 2 MB and pause, with the marks of HPCC's evaluation.
pub(crate) fn pausing(mut fabric: FabricConfig) -> FabricConfig {
    let pfc = PfcConfig::default().with_priorities(1 << 3 | 1 << 7);
    fabric.switch = SwitchConfig::default().with_shared_buffer(2_000_000, 0.125).with_pfc(pfc);
    fabric.switch.marking = Marking::DCQCN;
    fabric
}
