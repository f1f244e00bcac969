//! The engine against theory, with a transport without any protocol.

use std::collections::{BTreeMap, VecDeque};

use rackweave_core::{
    DropReason, Event, Framing, Header, HostId, Kind, MessageId, Node, Packet, Placement, Rate,
    Refused, RoundTrip, Slice, Span, Submit, Time, Transport,
};
use rackweave_workload::{Generator, LoadCounts, Pattern, SizeDist, WorkloadConfig};

use rackweave_switch::ForwardOnly;

use super::*;
use crate::config::{
    BufferConfig, Circuits, Dark, FabricConfig, FaultKind, FaultPlace, MeasureConfig, Ocs, Pod,
    StreamConfig, SwitchConfig, Topology, Tor,
};
use crate::model::TransportsOnly;
use crate::result::{Outcome, QueueSample, RunResult};

mod processors;

/// Sends every message once, in order of submission.
#[derive(Debug)]
struct Blast {
    host: HostId,
    spray: bool,
    queue: VecDeque<(Submit, u32)>,
    arriving: BTreeMap<MessageId, u32>,
    events: VecDeque<Event>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    slice: Slice,
    total: u32,
}

impl Header for Piece {
    fn payload(&self) -> Option<Slice> {
        Some(self.slice)
    }
}

const FRAMING: Framing =
    Framing { max_payload: 1460, header_bytes: 40, spray_above_bytes: 2 * 1460 };

impl Blast {
    fn new(host: HostId, spray: bool) -> Self {
        let (queue, events) = (VecDeque::new(), VecDeque::new());
        Self { host, spray, queue, arriving: BTreeMap::new(), events }
    }
}

impl Node for Blast {
    type Header = Piece;
    type Event = Event;
    type Placement = Placement;

    fn handle_packet(&mut self, _now: Time, _port: u8, packet: &Packet<Piece>) -> Placement {
        let Piece { slice, total } = packet.header;
        let got = self.arriving.entry(slice.message).or_default();
        *got += slice.len;
        if *got >= total {
            self.arriving.remove(&slice.message);
            let (peer, id, bytes) = (packet.src, slice.message, u64::from(total));
            self.events.push_back(Event::Delivered { peer, id, bytes, kind: Kind::OneWay });
        }
        Placement::Store(slice)
    }

    fn handle_timeout(&mut self, _now: Time) {}

    fn poll_transmit(&mut self, _now: Time, _port: u8) -> Option<Packet<Piece>> {
        let (message, sent) = self.queue.front_mut()?;
        let total = message.bytes as u32;
        let len = (total - *sent).min(FRAMING.max_payload);
        let slice = Slice { message: message.id, offset: *sent, len };
        let header = Piece { slice, total };
        let packet = Packet::new(self.host, message.peer, len + FRAMING.header_bytes, header)
            .with_ports(message.id.number() as u16, 1)
            .sprayed(self.spray && message.bytes > 2 * 1460);
        *sent += len;
        if *sent == total {
            self.queue.pop_front();
        }
        Some(packet)
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

impl Transport for Blast {
    fn submit(&mut self, _now: Time, message: Submit) -> Result<(), Refused> {
        self.queue.push_back((message, 0));
        Ok(())
    }

    fn cancel(&mut self, _now: Time, _peer: HostId, _id: MessageId) {}

    fn is_arriving(&self, _peer: HostId, _id: MessageId) -> bool {
        true
    }

    fn framing(&self) -> Framing {
        FRAMING
    }

    /// Constant values: one of its neighbour, and one of a host that does not exist.
    fn round_trips(&self) -> Vec<RoundTrip> {
        let trip = |peer| RoundTrip { peer, min: RTT, recent: RTT, samples: 3 };
        vec![trip(HostId(self.host.0 ^ 1)), trip(HostId(1_000_000))]
    }
}

const RTT: Span = Span::from_us(7);

const G10: Rate = Rate::from_gbps(10);
const G40: Rate = Rate::from_gbps(40);
const LEAF_SPINE: Topology =
    Topology::LeafSpine { leaves: 3, hosts_per_leaf: 4, spines: 2, host_link: G10, core_link: G40 };

fn fabric(topology: Topology) -> FabricConfig {
    FabricConfig::new(topology)
        .with_link_delays(Span::from_ns(100), Span::from_ns(300))
        .with_host_delays(Span::from_ns(500), Span::from_us(1))
        .with_switch(SwitchConfig::default().with_buffer(u64::MAX).without_marking())
}

fn measure(messages: u64) -> MeasureConfig {
    MeasureConfig::default()
        .with_messages(messages)
        .with_time_limit(Span::from_secs(1000))
        .with_samples(Span::ZERO)
        .with_verification()
}

struct Case {
    fabric: FabricConfig,
    workload: WorkloadConfig,
    gap: Option<Span>,
    spray: bool,
    host: Option<Arc<HostConfig>>,
    faults: Vec<Fault>,
    measure: MeasureConfig,
    seed: u64,
}

impl Case {
    fn new(topology: Topology, pattern: Pattern) -> Self {
        Self {
            fabric: fabric(topology),
            workload: WorkloadConfig::new(pattern),
            gap: None,
            spray: true,
            host: None,
            faults: Vec::new(),
            measure: measure(u64::MAX),
            seed: 1,
        }
    }

    fn run(&self) -> RunResult<Piece> {
        let fabric = Fabric::new(&self.fabric).unwrap();
        let generator =
            Generator::new(&self.workload, fabric.hosts(), self.gap, self.seed, 0, 0).unwrap();
        let transport = rackweave_transport::TransportConfig::Tcp(Arc::new(
            rackweave_transport::tcp::Config::tcp(),
        ));
        let stream = StreamConfig::new(transport, self.workload.clone());
        let spray = self.spray;
        let setup = Setup {
            host: self.host.clone(),
            streams: vec![(&stream, 0, generator)],
            transports: Box::new(move |host| vec![Blast::new(host, spray)]),
            faults: &self.faults,
            ..Setup::new(self.seed, Arc::new(fabric), &self.measure, |_| ForwardOnly::new())
        };
        World::<TransportsOnly<Blast>>::new(setup).unwrap().run(&Control::default())
    }
}

fn latency(record: &crate::result::MessageRecord) -> Span {
    match record.outcome {
        Outcome::Completed(at) => at.since(record.start),
        other => panic!("a message ended as {other:?}"),
    }
}

#[test]
fn an_idle_path_takes_exactly_the_ideal_time() {
    let fat_tree = Topology::fat_tree(4, G10);
    let odd =
        Topology::Dumbbell { left: 2, right: 3, host_link: Rate(3_000_000_007), core_link: G10 };
    let single = Topology::SingleSwitch { hosts: 5, host_link: Rate::from_gbps(25) };
    let fixed = || pod(Circuits::None, [2, 1, 3], [0; 3]);
    let rackless = || pod(Circuits::Servers(vec![2, 0, 1, 0, 0, 1, 0]), [2, 1, 1], [0; 3]);
    let circuits = || pod(Circuits::Tors(vec![(0, 1), (1, 0), (1, 2)]), [1, 0, 1], [2, 3, 1]);
    let topologies = [LEAF_SPINE, fat_tree, odd, single, fixed(), rackless(), circuits()];
    for (topology, delays) in
        topologies.into_iter().flat_map(|t| [(t.clone(), vec![]), (t, uneven())])
    {
        for bytes in [1, 100, 1460, 1461, 2920, 50_000, 1_000_000] {
            let hosts = topology.hosts();
            let mut text = String::from("time_us,source,destination,bytes\n");
            let mut at = 0;
            for src in 0..hosts {
                for dst in (0..hosts).filter(|dst| *dst != src) {
                    text += &format!("{at},{src},{dst},{bytes}\n");
                    at += 4_000;
                }
            }
            let trace = rackweave_workload::Trace::from_csv(&text).unwrap();
            let mut case = Case::new(topology.clone(), Pattern::Trace(trace));
            case.fabric.host_link_delays.clone_from(&delays);
            let result = case.run();
            assert_eq!(result.end, End::AllDone);
            assert_eq!(result.messages.len() as u32, hosts * (hosts - 1));
            for record in &result.messages {
                assert_eq!(latency(record), record.ideal, "{topology:?} {bytes} {record:?}");
            }
        }
    }
}

/// A pod of ToRs with 4, 2 and 2 server ports.
fn pod(circuits: Circuits, uplinks: [u32; 3], circuit_ports: [u32; 3]) -> Topology {
    let tors = [4, 2, 2].into_iter().zip(uplinks).zip(circuit_ports);
    let tor =
        |((server_ports, uplinks), circuit_ports)| Tor { server_ports, uplinks, circuit_ports };
    let ocs = Ocs { switching_delay: Span::from_us(20), link_delay: Span::ZERO, dark: Dark::Moved };
    let tors = tors.map(tor).collect();
    Topology::Pod(Arc::new(Pod { tors, host_link: G10, core_link: G10, circuits, ocs }))
}

/// Link delays of hosts that make round trips of 5 to 200 us.
fn uneven() -> Vec<Span> {
    [1.0, 45.5, 0.25, 3.0, 11.125].map(|us| Span::from_secs_f64(us / 1e6)).into()
}

#[test]
fn the_longest_round_trip_is_that_of_the_farthest_pair() {
    let fat_tree = Topology::fat_tree(4, G10);
    let dumbbell = Topology::Dumbbell { left: 2, right: 5, host_link: G10, core_link: G10 };
    let single = Topology::SingleSwitch { hosts: 7, host_link: G10 };
    let long = |at: usize| {
        let mut delays = uneven();
        delays.resize(12, Span::ZERO);
        delays.rotate_right(at);
        delays
    };
    let lists = (0..12).map(long).chain([vec![], uneven(), vec![Span::from_us(1)]]);
    let rackless = pod(Circuits::Servers(vec![2, 0, 1, 0, 0, 1, 0]), [2, 1, 1], [0; 3]);
    let topologies = [LEAF_SPINE, fat_tree, dumbbell, single, rackless];
    for (topology, delays) in
        lists.flat_map(|list| topologies.clone().map(|topology| (topology, list.clone())))
    {
        let mut config = fabric(topology.clone());
        config.host_link_delays.clone_from(&delays);
        let fabric = Fabric::new(&config).unwrap();
        let hosts = || (0..fabric.hosts()).map(HostId);
        let pairs = hosts().flat_map(|a| hosts().filter(move |b| *b != a).map(move |b| (a, b)));
        let rtts = pairs.map(|(a, b)| fabric.base_rtt_between(a, b, FRAMING, 84));
        assert_eq!(fabric.base_rtt(FRAMING, 84), rtts.max().unwrap(), "{topology:?} {delays:?}");
    }
}

#[test]
fn a_base_round_trip_is_what_one_computes_by_hand() {
    let mut config = fabric(LEAF_SPINE);
    config.host_link_delays = uneven();
    let fabric = Fabric::new(&config).unwrap();
    // Hosts 0 (1 us) and 7 (0.25 us) across the spine, in both directions: links of hosts and core, three switches,
    // sending and receiving; a full packet to the peer, the smallest one back.
    let one_way = 1_250_000 + 600_000 + 750_000 + 1_500_000;
    let sent = 2 * 1_230_400 + 2 * 307_600 + 2 * 67_200 + 2 * 16_800;
    let rtt = fabric.base_rtt_between(HostId(0), HostId(7), FRAMING, 84);
    assert_eq!(rtt, Span::from_ps(2 * one_way + sent));
    assert_eq!(rtt, fabric.base_rtt_between(HostId(7), HostId(0), FRAMING, 84));
}

#[test]
fn what_transports_measured_stands_beside_the_fabrics_own() {
    let mut case = Case::new(LEAF_SPINE, trace_of(&[(0, 0, 1, 1000)]));
    case.fabric.host_link_delays = uneven();
    let result = case.run();
    assert_eq!(result.round_trips.len(), 12);
    for (host, trip) in result.round_trips.iter().enumerate() {
        let host = host as u32;
        assert_eq!((trip.src, trip.dst, trip.samples), (HostId(host), HostId(host ^ 1), 3));
        let fabric = Fabric::new(&case.fabric).unwrap();
        let base = fabric.base_rtt_between(trip.src, trip.dst, FRAMING, 84);
        assert_eq!((trip.min, trip.base), (RTT, base));
    }
}

fn trace_of(rows: &[(u64, u32, u32, u64)]) -> Pattern {
    let rows = rows.iter().map(|(at, src, dst, bytes)| format!("{at},{src},{dst},{bytes}\n"));
    let text = rows.fold("time_us,source,destination,bytes\n".to_owned(), |text, row| text + &row);
    Pattern::Trace(rackweave_workload::Trace::from_csv(text).unwrap())
}

/// Two hosts send at line rate to one: of 2 x 100 KB, half is queued when the senders have finished.
#[test]
fn ports_may_be_measured_later_than_messages() {
    let topology = Topology::SingleSwitch { hosts: 3, host_link: G10 };
    let rows = [(0, 1, 0, 146_000), (0, 2, 0, 146_000)];
    let mut case = Case::new(topology, trace_of(&rows));
    let whole = case.run();
    // The senders take 100 packets of 1230.4 ns each; the queue then falls for as long.
    case.measure.ports_from = Some(Span::from_ps(124_000_000));
    let late = case.run();
    assert_eq!(late.messages, whole.messages, "all are measured, and the run is the same");
    assert_eq!(late.delivered_by_sender, [0, 146_000, 146_000]);
    assert_eq!(late.delivered_bytes, [292_000]);
    let port = |result: &RunResult<Piece>| {
        let found = result.links.iter().find(|link| link.name == "switch0->h0");
        found.cloned().unwrap()
    };
    let (whole, late) = (port(&whole), port(&late));
    // A triangle of 100 packets of payload: its mean is half its height in both halves.
    for mean in [whole.mean_queue_bytes, late.mean_queue_bytes] {
        assert!((70_000.0..78_000.0).contains(&mean), "{mean}");
    }
    assert!(whole.max_queue_bytes > late.max_queue_bytes, "the peak was before");
    assert!(late.utilisation > 0.97 && late.drops == 0, "{late:?}");
    // A run that ends before then has no statistics of ports.
    case.measure.ports_from = Some(Span::from_ms(1));
    let never = port(&case.run());
    assert_eq!((never.mean_queue_bytes, never.max_queue_bytes, never.utilisation), (0.0, 0, 0.0));
}

#[test]
fn the_ideal_time_is_what_one_computes_by_hand() {
    let fabric = Fabric::new(&fabric(LEAF_SPINE)).unwrap();
    // Across the spine: 1230.4 ns on each 10G link, 307.6 on each 40G one; 100 + 300 + 300 + 100 ns of propagation,
    // 500 + 1000 at the hosts, 3 x 250 in switches.
    let one = fabric.ideal(HostId(0), HostId(11), 1460, FRAMING);
    assert_eq!(one, Span::from_ps(2 * 1_230_400 + 2 * 307_600 + 800_000 + 1_500_000 + 750_000));
    // A second full packet follows at the pace of the slowest link.
    let two = fabric.ideal(HostId(0), HostId(11), 2920, FRAMING);
    assert_eq!(two, one + Span::from_ps(1_230_400));
    // A short last packet is hidden behind the full one until the last link.
    let short = fabric.ideal(HostId(0), HostId(11), 1461, FRAMING);
    assert_eq!(short, one + Span::from_ps(84 * 800));
    assert_eq!(fabric.path(HostId(0), HostId(1)).len(), 2, "within a leaf");
}

/// Waiting time of M/D/1: rho / (2 (1 - rho)) services (Pollaczek and Khinchine).
#[test]
fn waiting_time_is_that_of_m_d_1() {
    let topology = Topology::SingleSwitch { hosts: 2, host_link: G10 };
    let service = G10.span_of(1538);
    for (load, seed) in [(0.3, 1), (0.6, 2), (0.8, 3)] {
        let sizes = SizeDist::fixed(1460).unwrap();
        let pattern = Pattern::OpenLoop { sizes, load, counts: LoadCounts::Wire };
        let mut case = Case::new(topology.clone(), pattern);
        case.seed = seed;
        case.measure.messages = 3_000_000;
        case.measure.verify = false;
        case.measure.warmup = Span::from_ms(5);
        case.workload.senders = Some(0..1);
        case.gap = Some(Span::from_ps((service.as_ps() as f64 / load) as u64));
        let result = case.run();
        let waits: f64 = (result.messages.iter())
            .map(|record| (latency(record) - record.ideal).as_ps() as f64 / service.as_ps() as f64)
            .sum();
        let mean = waits / result.messages.len() as f64;
        let expected = load / (2.0 * (1.0 - load));
        assert!(
            (mean / expected - 1.0).abs() < 0.01,
            "load {load}: {mean} services, not {expected}"
        );
        assert!((result.links[0].utilisation - load).abs() < 0.01 * load);
    }
}

/// The same waiting time at a switch port, where many senders together form a Poisson process.
#[test]
fn waiting_time_at_a_switch_port_is_that_of_m_d_1() {
    // Senders 40 times as fast as the receiver's link: no queue builds up at a sender.
    let topology =
        Topology::Dumbbell { left: 100, right: 1, host_link: Rate::from_gbps(400), core_link: G10 };
    let service = G10.span_of(1538);
    let sizes = SizeDist::fixed(1460).unwrap();
    let pattern = Pattern::OpenLoop { sizes, load: 0.01, counts: LoadCounts::Wire };
    let mut case = Case::new(topology, pattern);
    case.workload.senders = Some(0..100);
    case.workload.receivers = Some(100..101);
    case.gap = Some(service * 125);
    case.measure.messages = 2_000_000;
    case.measure.verify = false;
    case.measure.warmup = Span::from_ms(5);
    let result = case.run();
    let waits: f64 = (result.messages.iter())
        .map(|record| (latency(record) - record.ideal).as_ps() as f64 / service.as_ps() as f64)
        .sum();
    let mean = waits / result.messages.len() as f64;
    assert!((mean / 2.0 - 1.0).abs() < 0.01, "load 0.8: {mean} services, not 2");
    // Little's law: the time-averaged queue is the arrival rate times the waiting time. A packet in transmission is
    // not part of the queue.
    let core = result.links.iter().find(|link| link.name == "left0->right0").unwrap();
    let expected = 1538.0 * 0.8 * mean;
    assert!((core.mean_queue_bytes / expected - 1.0).abs() < 0.01, "{}", core.mean_queue_bytes);
}

/// The same waiting time before a host's receive processor, where the link is 40 times as fast.
#[test]
fn waiting_time_before_a_receive_processor_is_that_of_m_d_1() {
    let topology = Topology::SingleSwitch { hosts: 101, host_link: Rate::from_gbps(400) };
    let service = Span::from_ns(1_230);
    for load in [0.5, 0.8] {
        let sizes = SizeDist::fixed(1460).unwrap();
        let pattern = Pattern::OpenLoop { sizes, load: 0.01, counts: LoadCounts::Wire };
        let mut case = Case::new(topology.clone(), pattern);
        case.host = HostConfig::of_receive_cost(service);
        case.workload.senders = Some(0..100);
        case.workload.receivers = Some(100..101);
        case.gap = Some(Span::from_ps((service.as_ps() as f64 * 100.0 / load) as u64));
        case.measure.messages = 1_000_000;
        case.measure.verify = false;
        case.measure.warmup = Span::from_ms(5);
        let result = case.run();
        // Packets that arrive together wait for the link instead of the processor, at 2.5 % of its time each.
        let waits: f64 = (result.messages.iter())
            .map(|record| (latency(record) - record.ideal - service).as_ps() as f64)
            .sum();
        let mean = waits / service.as_ps() as f64 / result.messages.len() as f64;
        let expected = load / (2.0 * (1.0 - load));
        assert!((mean / expected - 1.0).abs() < 0.02, "load {load}: {mean}, not {expected}");
    }
}

#[test]
fn a_receive_processor_handles_a_burst_one_packet_at_a_time_and_its_ring_is_finite() {
    let topology = Topology::SingleSwitch { hosts: 3, host_link: Rate::from_gbps(100) };
    let cost = Span::from_us(2);
    let of_both = |bytes| {
        let mut case = Case::new(topology.clone(), trace_of(&[(0, 0, 2, bytes), (0, 1, 2, bytes)]));
        case.host = HostConfig::of_receive_cost(cost);
        case.measure.time_limit = Span::from_ms(100);
        case.run()
    };
    let result = of_both(100 * 1460);
    // D/D/1: the processor is busy from the first arrival on.
    let first = Fabric::new(&fabric(topology.clone())).unwrap();
    let first = first.ideal(HostId(0), HostId(2), 1460, FRAMING);
    let last = result.messages.iter().map(latency).max().unwrap();
    assert_eq!(last, first + cost * 200);
    assert_eq!(result.counters.drops.iter().sum::<u64>(), 0);
    // Of 2 x 800 packets in 98 us, 49 are handled meanwhile, and one is being handled.
    let result = of_both(800 * 1460);
    let dropped = result.counters.drops[DropReason::QueueFull as usize];
    assert!((1600 - 1024 - 101..1600 - 1024).contains(&dropped), "{dropped}");
}

fn open_loop(load: f64) -> Pattern {
    let sizes = SizeDist::uniform(1, 20_000).unwrap();
    Pattern::OpenLoop { sizes, load, counts: LoadCounts::Payload }
}

#[test]
fn same_seed_same_result_and_nothing_faster_than_ideal() {
    let mut case = Case::new(LEAF_SPINE, open_loop(0.6));
    case.gap = Some(Span::from_us(14));
    case.measure.messages = 20_000;
    let (one, two) = (case.run(), case.run());
    assert_eq!((&one.messages, &one.counters), (&two.messages, &two.counters));
    assert_eq!(one.verified_messages, two.verified_messages);
    case.seed = 2;
    assert_ne!(one.messages, case.run().messages);
    assert!(one.messages.iter().all(|m| latency(m) >= m.ideal), "nothing is faster than ideal");
}

#[test]
fn incast_finishes_when_the_last_link_has_carried_it_all() {
    let sizes = SizeDist::fixed(146_000).unwrap();
    let pattern = Pattern::Incast {
        senders: None,
        receiver: HostId(0),
        sizes,
        messages_per_sender: 1,
        at: Span::ZERO,
        spread: Span::ZERO,
    };
    let result = Case::new(LEAF_SPINE, pattern).run();
    let last = result.messages.iter().map(latency).max().unwrap();
    let on_the_link = G10.span_of(1538) * 100 * 11;
    let first = result.messages.iter().map(|m| m.ideal).max().unwrap();
    assert!(last >= on_the_link && last <= on_the_link + first, "{last} for {on_the_link}");
}

#[test]
fn finite_buffers_drop_and_unfinished_messages_are_reported() {
    let sizes = SizeDist::fixed(146_000).unwrap();
    let (receiver, at, spread) = (HostId(0), Span::ZERO, Span::ZERO);
    let pattern =
        Pattern::Incast { senders: None, receiver, sizes, messages_per_sender: 1, at, spread };
    let mut case = Case::new(LEAF_SPINE, pattern);
    for buffer in [
        BufferConfig::PerPort { bytes: 50_000 },
        BufferConfig::Shared { bytes: 100_000, alpha: 1.0 },
    ] {
        case.fabric.switch.buffer = buffer;
        let result = case.run();
        assert_eq!(result.end, End::Stalled, "this transport does not send again");
        let unfinished = result.messages.iter().filter(|m| m.outcome == Outcome::Unfinished);
        assert!(unfinished.count() > 0);
        assert!(result.counters.drops.iter().sum::<u64>() > 0);
        assert!(result.max_queue_bytes.abs_diff(50_000) <= 1538, "{}", result.max_queue_bytes);
    }
}

/// Lazy decisions are exact: sampling, which updates every port often, changes nothing.
#[test]
fn sampling_more_often_changes_nothing() {
    for buffer in [
        BufferConfig::PerPort { bytes: 30_000 },
        BufferConfig::Shared { bytes: 80_000, alpha: 0.5 },
    ] {
        let mut case = Case::new(LEAF_SPINE, open_loop(0.9));
        case.gap = Some(Span::from_us(9));
        case.measure.time_limit = Span::from_ms(3);
        case.measure.verify = false;
        case.fabric.switch.buffer = buffer;
        let rare = case.run();
        case.measure.sample_every = Span::from_ps(333_333);
        let often = case.run();
        assert_eq!(rare.messages, often.messages);
        assert_eq!(rare.counters.drops, often.counters.drops);
        assert!(rare.counters.drops.iter().sum::<u64>() > 0);
        assert_eq!(rare.mean_queue_bytes, often.mean_queue_bytes);
        assert_eq!(rare.max_queue_bytes, often.max_queue_bytes);
    }
}

/// What a switch holds is the sum over its ports.
#[test]
fn the_fullest_switch_holds_its_ports_queues_together() {
    let mut case = Case::new(LEAF_SPINE, open_loop(0.9));
    case.gap = Some(Span::from_us(9));
    case.measure.time_limit = Span::from_ms(3);
    case.measure.verify = false;
    case.measure.sample_every = Span::from_us(1);
    let series = case.run().queue_series;
    let bounds = |sample: &QueueSample| {
        sample.max_bytes <= sample.max_switch_bytes && sample.max_switch_bytes <= sample.total_bytes
    };
    assert!(series.iter().all(bounds));
    let more = |sample: &&QueueSample| {
        sample.max_bytes < sample.max_switch_bytes && sample.max_switch_bytes < sample.total_bytes
    };
    assert!(series.iter().filter(more).count() > series.len() / 10);
}

#[test]
fn faults_lose_damage_repeat_and_delay_as_often_as_they_say() {
    for (kind, reason) in [
        (FaultKind::Loss(0.02), Some(DropReason::FaultLoss)),
        (FaultKind::Corruption(0.02), Some(DropReason::Corrupted)),
        (FaultKind::Reordering { probability: 0.02, delay: Span::from_us(50) }, None),
    ] {
        let mut case = Case::new(LEAF_SPINE, open_loop(0.5));
        case.gap = Some(Span::from_us(14));
        case.measure.time_limit = Span::from_ms(20);
        case.measure.verify = false;
        let (from, until) = (Time::ZERO, Time::MAX);
        case.faults = vec![Fault { from, until, place: FaultPlace::AllLinks, kind }];
        let result = case.run();
        let drops: u64 = result.counters.drops.iter().sum();
        match reason {
            Some(reason) => {
                let share = result.counters.drops[reason as usize] as f64
                    / result.counters.packet_hops as f64;
                assert!((share - 0.02).abs() < 0.002, "{kind:?}: {share}");
            }
            None => {
                assert_eq!(drops, 0);
                let late =
                    result.messages.iter().filter(|m| matches!(m.outcome, Outcome::Completed(_)));
                assert!(late.count() > 1000);
            }
        }
    }
}

#[test]
fn a_dead_spine_link_is_avoided_and_a_dead_host_link_is_not_crossed() {
    let mut case = Case::new(LEAF_SPINE, open_loop(0.3));
    case.gap = Some(Span::from_us(27));
    case.measure.time_limit = Span::from_ms(4);
    case.measure.verify = false;
    let ms = |n| Time::ZERO + Span::from_ms(n);
    let fault = |place| Fault { from: ms(1), until: ms(2), place, kind: FaultKind::Down };
    case.faults = vec![fault(FaultPlace::CoreLink(0))];
    let result = case.run();
    let drops = result.counters.drops;
    let lost = drops[DropReason::LinkDown as usize];
    assert!(lost > 0 && lost < 50, "only what was on the link or waited for it: {lost}");
    assert_eq!(drops[DropReason::NoRoute as usize], 0);
    let after = |from: Time, result: &RunResult<Piece>| {
        let ended = |m: &&crate::result::MessageRecord| m.start > from && m.start < ms(3);
        result.messages.iter().filter(ended).all(|m| matches!(m.outcome, Outcome::Completed(_)))
    };
    assert!(after(ms(2), &result), "all is well once the link is back");

    case.faults = vec![fault(FaultPlace::HostLink(HostId(3)))];
    let result = case.run();
    assert!(result.counters.drops[DropReason::LinkDown as usize] > 10);
    assert!(after(ms(2) + Span::from_us(900), &result));
}

#[test]
fn paused_hosts_lose_nothing_and_crashed_ones_everything() {
    let mut case = Case::new(LEAF_SPINE, open_loop(0.2));
    case.gap = Some(Span::from_us(40));
    case.measure.time_limit = Span::from_ms(6);
    let ms = |n| Time::ZERO + Span::from_ms(n);
    let place = FaultPlace::Host(HostId(5));
    case.faults = vec![Fault { from: ms(1), until: ms(2), place, kind: FaultKind::Pause }];
    let result = case.run();
    assert_eq!(result.counters.drops.iter().sum::<u64>(), 0);
    let slow = result.messages.iter().filter(|m| m.dst == HostId(5) && m.start < ms(2));
    let worst = slow.filter(|m| m.start > ms(1)).map(latency).max().unwrap();
    assert!(worst > Span::from_us(900), "{worst}");

    case.measure.verify = false;
    case.faults = vec![Fault { from: ms(1), until: ms(2), place, kind: FaultKind::Crash }];
    let result = case.run();
    assert!(result.counters.drops[DropReason::HostDown as usize] > 0);
    let failed = |m: &&crate::result::MessageRecord| {
        m.outcome == Outcome::Failed(rackweave_core::FailReason::HostCrashed)
    };
    assert!(result.messages.iter().filter(failed).all(|m| m.src == HostId(5)));
    assert!(result.messages.iter().filter(failed).count() > 0);
    let later = result.messages.iter().filter(|m| m.start > ms(2) && m.start < ms(5));
    assert!(later.clone().count() > 100);
    assert!(later.into_iter().all(|m| matches!(m.outcome, Outcome::Completed(_))));
}

/// A host's packets, ids included, do not depend on unrelated hosts.
#[test]
fn message_ids_of_a_host_are_its_own() {
    let sent = |others: &[(u64, u32, u32, u64)]| {
        let mut rows: Vec<_> =
            (0..200).map(|n| (n * 30, 0, 1 + (n % 3) as u32, 1 + n * 100)).collect();
        rows.extend(others);
        rows.sort_unstable();
        let mut case = Case::new(LEAF_SPINE, trace_of(&rows));
        case.measure.capture = vec![crate::config::CapturePort::HostSends(HostId(0))];
        case.measure.capture_limit = usize::MAX;
        let result = case.run();
        assert_eq!(result.messages.len(), rows.len());
        let piece = |captured: &rackweave_switch::net::Captured<Piece>| {
            (captured.at, captured.packet.dst, captured.packet.header.slice)
        };
        result.capture.iter().map(piece).collect::<Vec<_>>()
    };
    let expected = sent(&[]);
    assert!(expected.len() > 1000);
    // At the same times on the same leaf, and in between on others.
    let others: Vec<_> = (0..200).map(|n| (n * 30, 2, 1, 500)).collect();
    let far: Vec<_> = (0..150).map(|n| (n * 37, 9, 5, 90_000)).collect();
    assert_eq!(sent(&others), expected);
    assert_eq!(sent(&[others, far].concat()), expected);
}

#[test]
fn captures_hold_what_the_link_carried() {
    let mut case = Case::new(LEAF_SPINE, open_loop(0.3));
    case.gap = Some(Span::from_us(27));
    case.measure.messages = 2000;
    case.measure.capture = vec![
        crate::config::CapturePort::HostSends(HostId(2)),
        crate::config::CapturePort::CoreLink(0),
    ];
    case.measure.capture_limit = 1000;
    let result = case.run();
    assert_eq!(result.capture_names, ["h2->leaf0", "leaf0->spine0", "spine0->leaf0"]);
    assert_eq!(result.capture.len(), 1000);
    assert!(result.capture.windows(2).all(|pair| pair[0].at <= pair[1].at));
    let sent = result.capture.iter().filter(|packet| packet.interface == 0);
    assert!(sent.clone().count() > 0);
    assert!(sent.into_iter().all(|captured| captured.packet.src == HostId(2)));
}
