//! A run has the same result on any number of threads.

use std::sync::Arc;

use crate::common::*;
use rackweave_core::{HostId, Span, Time};
use rackweave_sim::config::{
    BufferConfig, CapturePort, FabricConfig, Fault, FaultKind, FaultPlace, Routing, StreamConfig,
    Topology, TrafficConfig, TrafficPlace,
};
use rackweave_sim::result::{End, MessageRecord, Outcome, RunResult};
use rackweave_sim::{Control, Fabric, OneThread, RunConfig, Threads, run, run_divided, windows};
use rackweave_transport::{TransportConfig, datagram};
use rackweave_workload::{Application, Exchange, LoadCounts, Pattern, SizeDist};

/// Four pods of two leaves of two hosts: on 3 and 7 threads it is divided by leaves.
fn fat_tree() -> Topology {
    Topology::fat_tree(4, G10)
}

/// A fabric with long cables, so that windows are long: threads wait for each other at the end of each.
pub(crate) fn long_fabric(topology: Topology) -> FabricConfig {
    fabric(topology).with_link_delays(Span::ZERO, Span::from_us(2))
}

/// Whole results as text, one line for each value.
fn text(result: &RunResult) -> String {
    format!("{result:#?}")
}

/// Compares the results on 1, 2, 3 and 7 threads, and returns the first one.
pub(crate) fn on_any_threads(name: &str, config: &RunConfig) -> RunResult {
    within(name, config, &Control::default())
}

/// As [`on_any_threads`], within the limits of `control`.
fn within(name: &str, config: &RunConfig, control: &Control) -> RunResult {
    let on = |threads| run_divided(config, Threads::new(threads), control).expect("a possible run");
    let one = on(1);
    assert!(one.counters.packet_hops > 1000, "{name}: {} hops", one.counters.packet_hops);
    let expected = text(&one);
    for threads in [2, 3, 7] {
        let result = text(&on(threads));
        if let Some((line, (is, was))) =
            (1..).zip(result.lines().zip(expected.lines())).find(|(_, (is, was))| is != was)
        {
            panic!("{name} on {threads} threads: line {line} is\n{is}\ninstead of\n{was}");
        }
        assert_eq!(result.len(), expected.len(), "{name} on {threads} threads");
    }
    one
}

/// Checks that windows change nothing about messages, for transports in which nothing depends on ids: the paths of Homa's short
/// messages and of NDP's packets do, and in windows ids are others.
pub(crate) fn as_without_windows(name: &str, config: &RunConfig, divided: &RunResult) {
    let depends_on_ids = |stream: &StreamConfig| {
        !matches!(stream.transport, TransportConfig::Tcp(_) | TransportConfig::Datagram(_))
    };
    if config.streams.iter().any(depends_on_ids) {
        return;
    }
    let plain = run(config, &Control::default()).expect("a possible run");
    assert_eq!(plain.end, divided.end, "{name}");
    assert_eq!(plain.messages.len(), divided.messages.len(), "{name}");
    let ended = |record: &MessageRecord| record.outcome != Outcome::Unfinished;
    for (plain, divided) in plain.messages.iter().zip(&divided.messages).filter(|it| ended(it.0)) {
        assert_eq!(plain, divided, "{name}");
    }
    assert_eq!(plain.measured, divided.measured, "{name}");
    if divided.end == End::AllDone {
        let window = Fabric::new(&config.fabric).unwrap().lookahead().expect("several switches");
        let late = divided.ended_at.since(plain.ended_at);
        assert!(plain.ended_at <= divided.ended_at && late <= window, "{name}: {late}");
    }
}

fn poisson(sizes: &str, load: f64) -> Pattern {
    let sizes = SizeDist::named(sizes).expect("a known distribution");
    Pattern::OpenLoop { sizes, load, counts: LoadCounts::Payload }
}

/// Every transport, with the fabric that it needs.
pub(crate) fn transports(
    fabric: &FabricConfig,
) -> Vec<(&'static str, TransportConfig, FabricConfig)> {
    let (pfabric, pfabric_fabric) = pfabric(fabric);
    let mut all = receiver_driven(fabric);
    all.extend([
        ("homa", homa(fabric, &fixed(10_000)), fabric.clone()),
        ("dctcp", dctcp(), fabric.clone()),
        ("cubic", cubic(), fabric.clone()),
        ("polo", polo(), fabric.clone()),
        ("pfabric", pfabric, pfabric_fabric),
        ("datagram", datagram::Config::default().into(), fabric.clone()),
    ]);
    all
}

/// A transport that is missing here is missing in most of the tests below, and if it repairs losses in those of `receiver_driven`.
#[test]
fn every_transport_is_among_these() {
    let here = transports(&fabric(LEAF_SPINE));
    for name in TransportConfig::names() {
        assert!(here.iter().any(|(_, transport, _)| transport.name() == name), "{name}");
    }
}

#[test]
fn all_transports_at_high_load() {
    for topology in [fat_tree(), LEAF_SPINE] {
        for (name, transport, fabric) in transports(&long_fabric(topology.clone())) {
            let mut config = config(fabric, vec![stream(transport, poisson("W2", 0.7))]);
            config.measure.messages = 600;
            config.measure.warmup = Span::from_us(20);
            config.measure.time_limit = Span::from_ms(2);
            let name = format!("{name} on {topology:?}");
            let result = on_any_threads(&name, &config);
            if name.starts_with("datagram") {
                // Lost messages never end.
                assert!(result.counters.dropped() > 0 || result.end == End::AllDone);
            }
            as_without_windows(&name, &config, &result);
        }
    }
}

#[test]
fn all_transports_when_all_hosts_send_at_once() {
    for (name, transport, fabric) in transports(&long_fabric(fat_tree())) {
        for pattern in [
            Pattern::Permutation { sizes: fixed(100_000), messages_per_host: 2 },
            incast(None, 60_000),
            Pattern::AllToAll { sizes: fixed(5_000), messages_per_pair: 1 },
        ] {
            let mut config = config(fabric.clone(), vec![stream(transport.clone(), pattern)]);
            config.measure.time_limit = Span::from_ms(3);
            let name = format!("{name} {}", config.streams[0].workload.pattern.name());
            let result = on_any_threads(&name, &config);
            as_without_windows(&name, &config, &result);
        }
    }
}

/// Equal packets and a delay that is a multiple of their time on the link: packets arrive at the moments at which the ports
/// that have sent them decide.
#[test]
fn ties_of_arrivals_and_decisions() {
    let packet = Span::from_ns(1230) + Span::from_ticks(40);
    for (multiple, latency) in [(1, Span::ZERO), (2, Span::ZERO), (1, packet), (3, packet)] {
        for routing in [Routing::Ecmp, Routing::Spray] {
            let mut fabric = fabric(fat_tree());
            fabric.core_link_delay = packet * multiple;
            fabric.switch.latency = latency;
            fabric.switch.routing = routing;
            let pattern = Pattern::AllToAll { sizes: fixed(1460 * 12), messages_per_pair: 2 };
            for (name, transport) in
                [("dctcp", dctcp()), ("datagram", datagram::Config::default().into())]
            {
                let mut config = config(fabric.clone(), vec![stream(transport, pattern.clone())]);
                config.measure.time_limit = Span::from_ms(10);
                let name = format!("{name} {multiple} {latency} {routing:?}");
                let result = on_any_threads(&name, &config);
                as_without_windows(&name, &config, &result);
            }
        }
    }
}

#[test]
fn shared_buffers_and_slow_core_links() {
    let (host_link, core_link) = (G10, rackweave_core::Rate::from_gbps(5));
    let topology =
        Topology::LeafSpine { leaves: 7, hosts_per_leaf: 4, spines: 3, host_link, core_link };
    let mut fabric = fabric(topology);
    fabric.switch.buffer = BufferConfig::Shared { bytes: 200_000, alpha: 0.5 };
    fabric.core_link_delay = Span::from_us(1);
    for transport in [dctcp(), homa(&fabric, &fixed(10_000))] {
        let mut config = config(fabric.clone(), vec![stream(transport, poisson("W3", 0.8))]);
        config.measure.messages = 600;
        config.measure.time_limit = Span::from_ms(5);
        let result = on_any_threads("shared", &config);
        assert!(result.max_queue_bytes > 10_000, "{}", result.max_queue_bytes);
        as_without_windows("shared", &config, &result);
    }
}

/// What is measured besides messages: captures with a limit, traffic over time, late statistics, several streams, a time limit.
#[test]
fn what_is_measured_does_not_depend_on_threads() {
    let fabric = long_fabric(fat_tree());
    let background = [
        stream(dctcp(), poisson("W1", 0.2)),
        stream(homa(&fabric, &fixed(10_000)), incast(Some(30), 20_000)),
    ];
    let mut streams = vec![stream(homa(&fabric, &fixed(10_000)), poisson("W3", 0.5))];
    streams.extend(background);
    let mut config = config(fabric, streams);
    config.measure.messages = 800;
    config.measure.capture = vec![
        CapturePort::HostSends(HostId(3)),
        CapturePort::CoreLink(9),
        CapturePort::HostReceives(HostId(12)),
        CapturePort::CoreLink(2),
    ];
    config.measure.capture_limit = 700;
    config.measure.sample_every = Span::from_us(7);
    config.measure.traffic = vec![TrafficConfig {
        name: "core".into(),
        at: TrafficPlace::Ports((0..16).map(CapturePort::CoreLink).collect()),
        from: vec![HostId(1), HostId(9)],
        interval: Span::from_us(10),
    }];
    for (ports_from, limit, end) in [
        (None, Span::from_ms(50), End::AllDone),
        (Some(Span::from_us(123)), Span::from_ms(50), End::AllDone),
        (Some(Span::from_us(190)), Span::from_us(200), End::TimeLimit),
    ] {
        config.measure.ports_from = ports_from;
        config.measure.time_limit = limit;
        let result = on_any_threads("measured", &config);
        assert_eq!(result.end, end);
        assert!(result.queue_series.len() > 20, "{} samples", result.queue_series.len());
        assert!(!result.capture.is_empty() && result.traffic[0].iter().sum::<u64>() > 0);
        as_without_windows("measured", &config, &result);
    }
}

/// Requests and responses, in open and in closed loops, and calls that fail at either end.
#[test]
fn calls() {
    let plain = long_fabric(fat_tree());
    let mut short = plain.clone();
    short.switch.buffer = BufferConfig::PerPort { bytes: 4_000 };
    let closed = |think| Pattern::ClosedLoop {
        sizes: fixed(3_000),
        outstanding: 3,
        think,
        ramp: Span::from_us(20),
    };
    let impatient = rackweave_transport::homa::Config {
        resend_ticks: 1,
        timeout_resends: 1,
        ..match homa(&plain, &fixed(10_000)) {
            TransportConfig::Homa(config) => (*config).clone(),
            _ => unreachable!("it is Homa"),
        }
    };
    let few = rackweave_transport::tcp::Config {
        max_messages: 2,
        ..rackweave_transport::tcp::Config::dctcp()
    };
    let mut failures = 0;
    for (name, transport, fabric) in [
        ("dctcp", dctcp(), &plain),
        ("homa", homa(&plain, &fixed(10_000)), &plain),
        ("impatient homa", impatient.into(), &short),
        ("dctcp with few", TransportConfig::Tcp(Arc::new(few)), &short),
    ] {
        for (pattern, exchange) in [
            (poisson("W2", 0.5), Exchange::Respond(2_000)),
            (closed(Span::ZERO), Exchange::Echo),
            (closed(Span::from_us(3)), Exchange::Respond(20_000)),
        ] {
            let name = format!("{name} {} {exchange:?}", pattern.name());
            let calls = rpc(transport.clone(), pattern, exchange);
            let mut config = config(fabric.clone(), vec![calls]);
            config.measure.messages = 600;
            config.measure.time_limit = Span::from_ms(5);
            let result = on_any_threads(&name, &config);
            let failed = |record: &&MessageRecord| matches!(record.outcome, Outcome::Failed(_));
            let failed = result.messages.iter().filter(failed).count();
            failures += failed;
            if failed == 0 {
                as_without_windows(&name, &config, &result);
            }
        }
    }
    assert!(failures > 100, "{failures} calls failed");
}

/// Messages that fail at either end, and hosts that refuse more of them.
#[test]
fn failures_and_refusals() {
    let mut fabric = fabric(LEAF_SPINE);
    fabric.switch.buffer = BufferConfig::PerPort { bytes: 4_000 };
    fabric.core_link_delay = Span::from_us(3);
    let impatient = rackweave_transport::homa::Config {
        resend_ticks: 1,
        timeout_resends: 1,
        ..match homa(&fabric, &fixed(10_000)) {
            TransportConfig::Homa(config) => (*config).clone(),
            _ => unreachable!("it is Homa"),
        }
    };
    let few = rackweave_transport::tcp::Config {
        max_messages: 3,
        ..rackweave_transport::tcp::Config::dctcp()
    };
    let cases: [(&str, TransportConfig); 2] =
        [("homa", impatient.into()), ("dctcp", TransportConfig::Tcp(Arc::new(few)))];
    for (name, transport) in cases {
        let pattern = Pattern::RecurringIncast {
            senders: Some(20),
            receiver: None,
            sizes: fixed(40_000),
            messages_per_sender: 2,
            every: Span::from_us(100),
        };
        let mut config = config(fabric.clone(), vec![stream(transport, pattern)]);
        config.measure.sample_every = Span::from_us(30);
        config.measure.messages = 800;
        config.measure.time_limit = Span::from_ms(20);
        let result = on_any_threads(name, &config);
        let failed = |record: &&MessageRecord| matches!(record.outcome, Outcome::Failed(_));
        let failures = result.messages.iter().filter(failed).count();
        assert!(failures > 10, "{name}: {failures} of {} failed", result.messages.len());
    }
}

/// A run in which nothing happens any more ends as stalled, although queues are sampled; and one that is sampled at the moments at which
/// packets arrive.
#[test]
fn a_stalled_run_with_samples() {
    let mut fabric = long_fabric(fat_tree());
    fabric.switch.buffer = BufferConfig::PerPort { bytes: 10_000 };
    let pattern = incast(None, 100_000);
    let mut config = config(fabric, vec![stream(datagram::Config::default().into(), pattern)]);
    config.measure.sample_every = Span::from_ns(10);
    let result = on_any_threads("stalled", &config);
    assert!(result.counters.dropped() > 0);
    assert_eq!(result.end, End::Stalled);
}

/// What a transport without repair has lost is no backlog that grows, and no run waits for it.
#[test]
fn lost_datagrams_are_no_overload() {
    let mut fabric = long_fabric(fat_tree());
    fabric.switch.buffer = BufferConfig::PerPort { bytes: 6_000 };
    let lost_after = Span::from_ms(5);
    let datagrams = datagram::Config { forget_after: lost_after, ..datagram::Config::default() };
    let mut config = config(fabric, vec![stream(datagrams.into(), poisson("W3", 0.5))]);
    config.measure.messages = 500;
    config.measure.time_limit = Span::from_ms(50);
    // The detector looks after 4 ms already.
    config.measure.offered_too_much = true;
    let result = on_any_threads("lost datagrams", &config);
    assert_eq!((result.end, result.backlog), (End::AllDone, None));
    // Without windows the run looks whether it is done after 1024 events.
    let plain = run(&config, &Control::default()).expect("a possible run");
    assert_eq!((plain.end, plain.messages), (End::AllDone, result.messages.clone()));
    let count = |is: fn(&Outcome) -> bool| {
        result.messages.iter().filter(|message| is(&message.outcome)).count()
    };
    let lost = count(|outcome| matches!(outcome, Outcome::Unfinished));
    assert_eq!(lost + count(|outcome| matches!(outcome, Outcome::Completed(_))), 500);
    assert!(lost > 10, "{lost}");
    let last = result.messages.iter().map(|message| message.start).max().expect("500 messages");
    let waited = result.ended_at.since(last);
    assert!((lost_after..lost_after * 2).contains(&waited), "{waited:?}");

    // What waits at its sender is backlog as ever.
    config.streams = vec![stream(datagram::Config::default().into(), poisson("W1", 0.9))];
    let result = run(&config, &Control::default()).expect("a possible run");
    assert_eq!(result.end, End::Overloaded);
}

/// What waits for a host that is cut off fails with each transport, while load goes on, and is no overload.
#[test]
fn messages_of_a_host_that_is_cut_off_fail() {
    for (name, transport, fabric) in transports(&long_fabric(LEAF_SPINE)) {
        let rare = LoadCounts::Payload;
        let pattern = Pattern::OpenLoop { sizes: fixed(5_000), load: 0.0005, counts: rare };
        let mut config = config(fabric, vec![stream(transport, pattern)]);
        config.measure.messages = 300;
        let (from, until) = (Time::ZERO + Span::from_ms(5), Time::MAX);
        let place = FaultPlace::HostLink(HostId(3));
        config.faults = vec![Fault { from, until, place, kind: FaultKind::Down }];
        let result = on_any_threads(name, &config);
        assert_eq!(result.end, End::AllDone, "{name}: {:?}", result.waiting);
        let failed_from = |is_source: bool| {
            let failed =
                result.messages.iter().filter(|it| matches!(it.outcome, Outcome::Failed(_)));
            failed.filter(|it| (it.src == HostId(3)) == is_source).count()
        };
        assert!(failed_from(true) > 2, "{name}: messages from the host");
        // Nobody waits for an answer to datagrams.
        assert_eq!(failed_from(false) > 2, name != "datagram", "{name}: messages to the host");
    }
}

/// A host that stands still for good fails nothing. The run ends when its peers had time to find out.
#[test]
fn a_run_that_waits_for_a_paused_host_ends() {
    for (name, transport) in
        [("homa", homa(&fabric(LEAF_SPINE), &fixed(10_000))), ("dctcp", dctcp())]
    {
        let rows: Vec<_> = (0..200).map(|n| (f64::from(n), n % 24, (n + 7) % 24, 20_000)).collect();
        let patience = transport.patience();
        let streams = vec![stream(transport, trace(&rows))];
        let mut config = config(long_fabric(LEAF_SPINE), streams);
        config.measure.time_limit = Span::from_secs(20);
        let (from, place) = (Time::ZERO + Span::from_us(5), FaultPlace::Host(HostId(3)));
        config.faults = vec![Fault { from, until: Time::MAX, place, kind: FaultKind::Pause }];
        let result = on_any_threads(name, &config);
        assert_eq!(result.end, End::CutOff, "{name}");
        // After the last failure nothing happens until TCP closes idle connections.
        let waited = result.ended_at.since(from);
        assert!(waited < (patience * 3).max(Span::from_secs(11)), "{name}: {waited}");
        for message in &result.messages {
            let is_of_host = message.src == HostId(3) || message.dst == HostId(3);
            let is_complete = matches!(message.outcome, Outcome::Completed(_));
            assert!(is_complete || is_of_host, "{name}: {message:?}");
        }
        // If the host returns later, the run waits for it.
        config.faults[0].until = Time::ZERO + patience * 4;
        let result = on_any_threads(name, &config);
        assert_eq!(result.end, End::AllDone, "{name}");
    }
}

/// A cut-off host goes on and its transport reports what fails, however late a message starts. A run that has everything is not cut off.
#[test]
fn a_run_waits_for_what_ends_by_itself() {
    for (name, transport) in
        [("homa", homa(&fabric(LEAF_SPINE), &fixed(10_000))), ("dctcp", dctcp())]
    {
        let of_others = (0..200).map(|n| (f64::from(n), 4 + n % 20, 4 + (n + 7) % 20, 20_000));
        let late = |at_s: f64, src, dst| (at_s * 1e6, src, dst, 20_000);
        let with_host = [late(6.0, 0, 1), late(6.1, 3, 1), late(6.2, 0, 3), late(6.201, 1, 2)];
        // The fourth row is beyond the measured messages: before it, the run would wait for what may start.
        for (last, measured, failed) in [(&with_host[..], 203, 2), (&with_host[..1], 201, 0)] {
            let rows: Vec<_> = of_others.clone().chain(last.iter().copied()).collect();
            let streams = vec![stream(transport.clone(), trace(&rows))];
            let mut config = config(long_fabric(LEAF_SPINE), streams);
            config.measure.messages = 203;
            config.measure.time_limit = Span::from_secs(20);
            let (from, place) = (Time::ZERO + Span::from_us(5), FaultPlace::HostLink(HostId(3)));
            config.faults = vec![Fault { from, until: Time::MAX, place, kind: FaultKind::Down }];
            let whole = run(&config, &Control::default()).expect("a possible run");
            for result in [whole, on_any_threads(name, &config)] {
                assert_eq!(result.end, End::AllDone, "{name}: {:?}", result.waiting);
                let outcomes = result.messages.iter().map(|message| message.outcome);
                let of_failed = outcomes.filter(|it| matches!(it, Outcome::Failed(_))).count();
                assert_eq!((result.messages.len(), of_failed), (measured, failed), "{name}");
            }
        }
    }
}

/// Queues without a limit do not fill the memory: the run ends and says why, at the same time on any number of threads.
#[test]
fn a_run_with_too_many_packets_ends() {
    let fabric = long_fabric(fat_tree());
    let pattern = incast(None, 1_000_000);
    let mut config = config(fabric, vec![stream(datagram::Config::default().into(), pattern)]);
    config.fabric.switch.buffer = BufferConfig::PerPort { bytes: u64::MAX };
    let control = Control { packet_limit: 2_000, ..Control::default() };
    let divided = within("packet limit", &config, &control);
    let whole = run(&config, &control).expect("a possible run");
    for result in [divided, whole] {
        assert_eq!(result.end, End::PacketLimit);
        // Without windows, the limit is looked at after 1024 steps.
        assert!((2_001..20_000).contains(&result.peak_packets), "{}", result.peak_packets);
        assert!(result.ended_at < Time::ZERO + config.measure.time_limit);
    }
}

/// The work of a run is bounded: it ends at the same time on any number of threads.
#[test]
fn a_run_over_too_many_hops_ends() {
    let mut config = config(long_fabric(fat_tree()), vec![stream(dctcp(), poisson("W3", 0.5))]);
    config.measure.hop_limit = 20_000;
    let divided = within("hop limit", &config, &Control::default());
    let whole = run(&config, &Control::default()).expect("a possible run");
    for result in [divided, whole] {
        assert_eq!(result.end, End::HopLimit);
        // Without windows, the limit is looked at after 1024 steps.
        let hops = result.counters.packet_hops;
        assert!((20_001..22_000).contains(&hops), "{hops}");
    }
}

#[test]
fn what_needs_one_thread_is_known_and_runs_on_one() {
    let config = config(fabric(fat_tree()), vec![stream(dctcp(), incast(None, 5_000))]);
    let why = |config: &RunConfig| windows(config, &Fabric::new(&config.fabric).unwrap());
    assert_eq!(why(&config), Err(OneThread::FewHosts(16)));
    let mut config = config;
    config.fabric.topology = Topology::fat_tree(12, G10);
    assert!(why(&config).is_ok_and(|window| window > Span::from_ns(300)));
    let with = |change: &dyn Fn(&mut RunConfig)| {
        let mut config = config.clone();
        change(&mut config);
        why(&config)
    };
    let fault = Fault {
        from: Time::ZERO,
        until: Time::MAX,
        place: FaultPlace::AllLinks,
        kind: FaultKind::Loss(0.1),
    };
    let costs = Application { per_message: Span::from_us(1), ..Application::INSTANT };
    let closed = Pattern::ClosedLoop {
        sizes: fixed(10),
        outstanding: 1,
        think: Span::ZERO,
        ramp: Span::ZERO,
    };
    let single = Topology::SingleSwitch { hosts: 300, host_link: G10 };
    type Change<'a> = &'a dyn Fn(&mut RunConfig);
    let fast = Topology::fat_tree(12, rackweave_core::Rate::from_gbps(400));
    let changes: [(Change<'_>, OneThread); 7] = [
        (&|config| config.faults = vec![fault], OneThread::Faults),
        (&|config| config.measure.stop_load = true, OneThread::StopLoad),
        (
            &|config| {
                config.streams[0].workload.exchange = Exchange::Echo;
                config.streams[0].workload.pattern = closed.clone();
                config.fabric.core_link_delay = Span::from_us(10);
            },
            OneThread::LongWindow(0),
        ),
        (&|config| config.streams[0].workload.pattern = closed.clone(), OneThread::ClosedLoop(0)),
        (&|config| config.streams[0].workload.application = costs, OneThread::Application(0)),
        (&|config| config.fabric.topology = single.clone(), OneThread::OneSwitch),
        (
            &|config| {
                config.fabric.switch.latency = Span::ZERO;
                config.fabric.topology = fast.clone();
            },
            OneThread::NoDelay,
        ),
    ];
    for (change, reason) in changes {
        assert_eq!(with(change), Err(reason));
    }
    let mut lossy = config.clone();
    lossy.fabric.topology = fat_tree();
    lossy.faults = vec![Fault { kind: FaultKind::Loss(0.01), ..fault }];
    let on =
        |threads| text(&run_divided(&lossy, Threads::new(threads), &Control::default()).unwrap());
    assert_eq!(on(3), text(&run(&lossy, &Control::default()).unwrap()));
}

#[test]
fn a_cancelled_run_ends_on_all_threads() {
    let mut config = config(fabric(fat_tree()), vec![stream(dctcp(), poisson("W3", 0.5))]);
    config.measure.messages = u64::MAX;
    let control = Control::default();
    control.cancel.store(true, std::sync::atomic::Ordering::Relaxed);
    let result = run_divided(&config, Threads::new(3), &control).unwrap();
    assert_eq!(result.end, End::Cancelled);
}

/// Load that exceeds the links of two receivers ends a run as overloaded, at the same time on any number of threads.
#[test]
fn overload() {
    let fabric = long_fabric(fat_tree());
    // The long ones wait for all others.
    let pattern = poisson("W3", 0.2);
    let transport = homa(&fabric, pattern.sizes().expect("they have some"));
    let mut load = stream(transport, pattern);
    load.workload.receivers = Some(0..2);
    let mut config = config(fabric, vec![load]);
    config.measure.messages = 5_000;
    let divided = on_any_threads("overload", &config);
    let whole = run(&config, &Control::default()).expect("a possible run");
    for result in [divided, whole] {
        assert_eq!(result.end, End::Overloaded);
        assert!(result.ended_at < Time::ZERO + Span::from_ms(100), "{}", result.ended_at);
        let backlog = result.backlog.expect("it grew");
        assert!(backlog.to_bytes > backlog.from_bytes && !result.waiting.is_empty());
    }
}

/// Messages that start in a time are measured, and the run waits for the last ones of all streams.
#[test]
fn a_measured_time_with_a_background_stream() {
    let mut beside = stream(dctcp(), incast(None, 200_000));
    beside.workload.start = Span::from_us(240);
    let measured = stream(dctcp(), poisson("W2", 0.4));
    let mut config = config(long_fabric(fat_tree()), vec![measured, beside]);
    (config.measure.warmup, config.measure.duration) =
        (Span::from_us(50), Some(Span::from_us(200)));
    let result = on_any_threads("a time", &config);
    as_without_windows("a time", &config, &result);
    assert_eq!(result.end, End::AllDone);
    let of = |stream| result.messages.iter().filter(move |message| message.stream == stream);
    assert_eq!((of(1).count(), of(0).count() > 100), (15, true));
    let last_start = of(0).map(|message| message.start).max().unwrap();
    assert!(last_start < Time::ZERO + Span::from_us(250));
    // 15 times 200 KB take 2.4 ms of the receiver's link.
    assert!(result.ended_at > Time::ZERO + Span::from_ms(2));
    assert!(result.messages.iter().all(|message| message.outcome != Outcome::Unfinished));
}
