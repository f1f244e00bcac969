//! The transports on simulated fabrics, compared with theory.

use std::sync::Arc;

use crate::common::*;
use rackweave_core::{HostId, Rate, Span, Time};
use rackweave_sim::config::{BufferConfig, Fault, FaultKind, FaultPlace, Routing, Topology};
use rackweave_sim::result::{End, Outcome};
use rackweave_transport::TransportConfig;
use rackweave_workload::{Exchange, LoadCounts, Pattern, SizeDist};

/// On an idle path a message takes exactly its ideal time: slowdown 1.00 at every size.
#[test]
fn homa_on_an_idle_path_takes_exactly_the_ideal_time() {
    let fat_tree = Topology::fat_tree(4, G10);
    let slow = Topology::SingleSwitch { hosts: 4, host_link: Rate::from_gbps(1) };
    for topology in [LEAF_SPINE, fat_tree, slow, single_switch(2)] {
        let fabric = fabric(topology.clone());
        let hosts = topology.hosts();
        let mut rows = Vec::new();
        let mut at_us = 0.0;
        for bytes in [1, 64, 1442, 1443, 2884, 2885, 9_328, 12_000, 100_000, 1_000_000, 5_000_000] {
            for dst in [1, hosts / 2, hosts - 1] {
                rows.push((at_us, 0, dst, bytes));
                at_us += 60_000.0;
            }
        }
        let transport = homa(&fabric, &fixed(10_000));
        let result = run_to_completion(&config(fabric, vec![stream(transport, trace(&rows))]));
        for record in &result.messages {
            assert_eq!(latency(record), record.ideal, "{topology:?}: {record:?}");
        }
    }
}

/// A queue builds up at slow core links even without other traffic. TCP's messages, in order, take their ideal time
/// within the first window. Homa's packets are reordered by their priorities, and sprayed ones by their paths: those
/// take somewhat longer. Nothing is faster than ideal.
#[test]
fn slow_core_links_make_nothing_faster_than_ideal() {
    let (host_link, core_link) = (G10, Rate::from_gbps(5));
    let (leaves, hosts_per_leaf, spines) = (2, 4, 4);
    let topology = Topology::LeafSpine { leaves, hosts_per_leaf, spines, host_link, core_link };
    for routing in [Routing::Transport, Routing::Ecmp, Routing::Spray] {
        let mut fabric = fabric(topology.clone());
        fabric.switch.routing = routing;
        let sizes = [100, 5_000, 100_000, 1_000_000];
        let rows: Vec<_> =
            sizes.into_iter().enumerate().map(|(i, b)| (i as f64 * 5e4, 0, 6, b)).collect();
        for (is_tcp, transport) in [(false, homa(&fabric, &fixed(10_000))), (true, dctcp())] {
            let result =
                run_to_completion(&config(fabric.clone(), vec![stream(transport, trace(&rows))]));
            for record in &result.messages {
                let slowdown = slowdown(record);
                if is_tcp && record.bytes <= 5_000 && routing != Routing::Spray {
                    assert_eq!(latency(record), record.ideal, "{routing:?} {record:?}");
                }
                // If a transport that expects order is sprayed, a short last packet may overtake.
                let least = if routing == Routing::Spray { 0.98 } else { 1.0 };
                assert!((least..3.0).contains(&slowdown), "{routing:?} {slowdown} {record:?}");
            }
        }
    }
}

/// TCP's first window covers messages of up to ten segments: they take the ideal time, too.
#[test]
fn tcp_within_its_first_window_takes_exactly_the_ideal_time() {
    for transport in [dctcp(), cubic(), new_reno()] {
        let sizes = [1, 100, 1460, 1461, 14_600];
        let rows: Vec<_> =
            sizes.into_iter().enumerate().map(|(i, b)| (i as f64 * 5e4, 0, 20, b)).collect();
        let result =
            run_to_completion(&config(fabric(LEAF_SPINE), vec![stream(transport, trace(&rows))]));
        for record in &result.messages {
            assert_eq!(latency(record), record.ideal, "{record:?}");
        }
    }
}

/// Polo's messages within the first window take the ideal time, too, except that the adjoint packet, of high
/// priority, may overtake a short last packet. Beyond the first window, adjoint packets take a small share of the
/// link.
#[test]
fn polo_within_its_first_window_takes_the_ideal_time() {
    let sizes = [1, 100, 1460, 1461, 17_520, 100_000, 1_000_000];
    let rows: Vec<_> =
        sizes.into_iter().enumerate().map(|(i, b)| (i as f64 * 5e4, 0, 20, b)).collect();
    let result = run_to_completion(&config(fabric(LEAF_SPINE), vec![stream(polo(), trace(&rows))]));
    for record in &result.messages {
        let adjoint = if record.bytes == 1461 { G10.span_of(84) } else { Span::ZERO };
        if record.bytes <= 17_520 {
            assert_eq!(latency(record), record.ideal + adjoint, "{record:?}");
        }
        assert!((1.0..1.02).contains(&slowdown(record)), "{record:?}");
    }
}

/// DCTCP section 3.3: a queue around K, whatever the number of flows, and no idle link.
#[test]
fn dctcp_holds_its_queue_near_k_and_the_link_full() {
    for flows in [1, 2, 8] {
        let topology = Topology::Dumbbell { left: flows, right: 1, host_link: G40, core_link: G10 };
        let rows: Vec<_> = (0..flows).map(|src| (0.0, src, flows, 2_000_000_000)).collect();
        let mut config = config(fabric(topology), vec![stream(dctcp(), trace(&rows))]);
        config.fabric.switch = config.fabric.switch.with_ecn_threshold(65 * 1538);
        config.measure.verify = false;
        config.measure.warmup = Span::from_ms(50);
        config.measure.time_limit = Span::from_ms(250);
        config.measure.sample_every = Span::from_us(20);
        let result = run_until(&config, End::TimeLimit);
        let port = result.links.iter().find(|link| link.name == "left0->right0").unwrap();
        assert!(port.utilisation > 0.999, "{flows} flows: {}", port.utilisation);
        assert_eq!(port.drops, 0);
        let mean = port.mean_queue_bytes / 1538.0;
        assert!((50.0..80.0).contains(&mean), "K is 65 packets, {flows} flows hold {mean}");
        let max = port.max_queue_bytes / 1538;
        assert!(max < 65 + 20 * u64::from(flows), "{flows} flows: at most {max} packets");
    }
}

/// Long flows get equal shares within 5 %: DCTCP's in a second. TCP's windows swing by a third or a half every few
/// milliseconds, and a flow's share of some seconds by several percent, so that the mean of runs whose flows start a
/// little differently is judged. The share of one of four flows in three seconds has a standard deviation of 5 %, so that
/// the mean of ten starts has one of 1.6 %, a third of the bound.
fn long_flows_share_fairly(transport: TransportConfig, seconds: u64, start_gaps_us: &[f64]) {
    for flows in [2, 4] {
        let few = start_gaps_us.len().min(4);
        let start_gaps_us = if flows == 2 { &start_gaps_us[..few] } else { start_gaps_us };
        let mut means = vec![0.0; flows as usize];
        for &start_gap_us in start_gaps_us {
            let shares = shares(transport.clone(), flows, Span::from_secs(seconds), start_gap_us);
            let total: f64 = shares.iter().sum();
            assert!(total > 0.98, "the link is filled: {total}");
            for (mean, share) in means.iter_mut().zip(&shares) {
                *mean += share / total * f64::from(flows) / start_gaps_us.len() as f64;
            }
        }
        let fair = means.iter().all(|mean| (mean - 1.0).abs() < 0.05);
        assert!(fair, "{means:?}");
    }
}

const STARTS: [f64; 10] = [0.0, 0.3, 1.2, 2.7, 4.8, 7.5, 10.8, 14.7, 19.2, 24.3];

#[test]
fn long_flows_of_dctcp_share_fairly() {
    long_flows_share_fairly(dctcp(), 1, &[0.0]);
}

#[test]
fn long_flows_of_cubic_share_fairly() {
    long_flows_share_fairly(cubic(), 3, &STARTS);
}

#[test]
fn long_flows_of_new_reno_share_fairly() {
    long_flows_share_fairly(new_reno(), 3, &STARTS);
}

#[test]
fn incast_completes_over_every_transport_each_byte_once() {
    for senders in [10, 100, 1000] {
        let fabric = fabric(LEAF_SPINE);
        let bytes = 100_000;
        let plain = |name, transport| (name, transport, fabric.clone());
        for (name, transport, fabric) in [
            plain("homa", homa(&fabric, &fixed(bytes))),
            plain("dctcp", dctcp()),
            plain("tcp", cubic()),
            plain("polo", polo()),
        ]
        .into_iter()
        .chain(receiver_driven(&fabric))
        {
            let pattern = incast(Some(senders), bytes);
            // RoCEv2 is for networks that do not drop.
            let fabric = if matches!(name, "dcqcn" | "hpcc") { pausing(fabric) } else { fabric };
            let result = run_to_completion(&config(fabric, vec![stream(transport, pattern)]));
            assert_eq!(result.messages.len() as u32, senders);
            assert_eq!(result.verified_messages, u64::from(senders), "{name}");
            let last = result.messages.iter().map(latency).max().unwrap();
            let packets = u64::from(senders) * bytes.div_ceil(1460);
            let least = G10.span_of(packets * 1538);
            let times = last.as_ps() as f64 / least.as_ps() as f64;
            // TCP loses whole windows and waits for timeouts, of 1 ms and their multiples.
            let most = if name == "tcp" { 1.6 + 2e10 / least.as_ps() as f64 } else { 1.6 };
            assert!((0.95..most).contains(&times), "{name} {senders}: {times} times the ideal");
        }
    }
}

fn some_load() -> Pattern {
    let sizes = SizeDist::uniform(1, 60_000).unwrap();
    Pattern::OpenLoop { sizes, load: 0.4, counts: LoadCounts::Payload }
}

/// Loss, damage, duplication and reordering on every link: every message arrives once and complete.
#[test]
fn faults_cost_time_and_nothing_else() {
    let fabric = fabric(LEAF_SPINE);
    let sizes = SizeDist::uniform(1, 60_000).unwrap();
    let plain = |name, transport| (name, transport, fabric.clone());
    for (name, transport, fabric) in [
        plain("homa", homa(&fabric, &sizes)),
        plain("dctcp", dctcp()),
        plain("tcp", cubic()),
        plain("reno", new_reno()),
        plain("polo", polo()),
    ]
    .into_iter()
    .chain(receiver_driven(&fabric))
    {
        for exchange in [Exchange::OneWay, Exchange::Echo] {
            let stream = rpc(transport.clone(), some_load(), exchange);
            let mut config = config(fabric.clone(), vec![stream]);
            config.measure.messages = 2000;
            let (from, until, place) = (Time::ZERO, Time::MAX, FaultPlace::AllLinks);
            let delay = Span::from_us(30);
            config.faults = [
                FaultKind::Loss(0.003),
                FaultKind::Corruption(0.001),
                FaultKind::Duplication(0.01),
                FaultKind::Reordering { probability: 0.01, delay },
            ]
            .map(|kind| Fault { from, until, place, kind })
            .to_vec();
            let result = run_to_completion(&config);
            assert_eq!(result.messages.len(), 2000, "{name} {exchange:?}");
            for message in &result.messages {
                let completed = matches!(message.outcome, Outcome::Completed(_));
                assert!(completed, "{name} {exchange:?}: {message:?}");
            }
            assert!(result.verified_messages >= 2000);
            assert!(result.counters.drops.iter().sum::<u64>() > 100);
        }
    }
}

/// A host crashes and restarts: its messages and those sent to it arrive, or fail with a reason.
#[test]
fn crashes_leave_no_message_in_between() {
    let fabric = fabric(LEAF_SPINE);
    let sizes = SizeDist::uniform(1, 60_000).unwrap();
    let plain = |name, transport| (name, transport, fabric.clone());
    for (name, transport, fabric) in [
        plain("homa", homa(&fabric, &sizes)),
        plain("dctcp", dctcp()),
        plain("tcp", cubic()),
        plain("polo", polo()),
    ]
    .into_iter()
    .chain(receiver_driven(&fabric))
    {
        for kind in [FaultKind::Crash, FaultKind::Pause] {
            let stream = rpc(transport.clone(), some_load(), Exchange::Echo);
            let mut config = config(fabric.clone(), vec![stream]);
            config.measure.messages = 2000;
            // What a host that was away has to repair is more than some transports carry next to this load.
            config.measure.stop_load = true;
            let place = FaultPlace::Host(HostId(3));
            let ms = |n| Time::ZERO + Span::from_ms(n);
            config.faults = vec![Fault { from: ms(1), until: ms(3), place, kind }];
            let result = run_to_completion(&config);
            let failed = result.messages.iter().filter(|m| matches!(m.outcome, Outcome::Failed(_)));
            for message in failed {
                assert_eq!(kind, FaultKind::Crash, "{name}: {message:?}");
                let touches = message.src == HostId(3) || message.dst == HostId(3);
                assert!(touches, "{name}: {message:?}");
            }
        }
    }
}

/// Homa and TCP on the same hosts and links: both make progress, and each receives only its own packets.
#[test]
fn two_transports_on_the_same_hosts() {
    let fabric = fabric(LEAF_SPINE);
    let sizes = SizeDist::uniform(1, 60_000).unwrap();
    let streams = vec![
        stream(homa(&fabric, &sizes), some_load()),
        stream(cubic(), some_load()),
        stream(dctcp(), some_load()),
    ];
    let mut config = config(fabric, streams);
    config.measure.messages = 3000;
    config.fabric.switch.buffer = BufferConfig::Shared { bytes: 2_000_000, alpha: 1.0 };
    for stream in &mut config.streams[1..] {
        let sizes = SizeDist::uniform(1, 60_000).unwrap();
        let pattern = Pattern::OpenLoop { sizes, load: 0.15, counts: LoadCounts::Payload };
        stream.workload.pattern = pattern;
    }
    let result = run_to_completion(&config);
    for stream in 0..3 {
        let done = |m: &&rackweave_sim::result::MessageRecord| {
            m.stream == stream && matches!(m.outcome, Outcome::Completed(_))
        };
        let count = result.messages.iter().filter(done).count();
        assert!(count > 900, "stream {stream}: {count}");
    }
    assert_eq!(result.counters.drops[9], 0, "no packet reached the wrong transport");
}

#[test]
fn closed_loops_keep_their_number_outstanding() {
    let fabric = fabric(LEAF_SPINE);
    let pattern = Pattern::ClosedLoop {
        sizes: fixed(20_000),
        outstanding: 3,
        think: Span::ZERO,
        ramp: Span::ZERO,
    };
    let stream = rpc(homa(&fabric, &fixed(20_000)), pattern, Exchange::Respond(100));
    let mut config = config(fabric, vec![stream]);
    config.measure.messages = 5000;
    let result = run_to_completion(&config);
    for host in 0..24 {
        // A sweep over starts and ends: never more than three messages at once, and mostly three.
        let of_host = result.messages.iter().filter(|m| m.src == HostId(host));
        let mut events: Vec<(Time, i32)> =
            of_host.flat_map(|m| [(m.start, 1), (m.start + latency(m), -1)]).collect();
        events.sort_unstable();
        let mut open = 0;
        for (_, change) in events {
            open += change;
            assert!(open <= 3);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run_over_every_transport() {
    let fabric = fabric(LEAF_SPINE);
    let sizes = SizeDist::named("W3").unwrap();
    let plain = [homa(&fabric, &sizes), dctcp(), cubic(), polo()];
    let plain = plain.map(|transport| ("", transport, fabric.clone()));
    for (_, transport, fabric) in plain.into_iter().chain(receiver_driven(&fabric)) {
        let pattern =
            Pattern::OpenLoop { sizes: sizes.clone(), load: 0.6, counts: LoadCounts::Payload };
        let mut config = config(fabric.clone(), vec![stream(transport, pattern)]);
        config.measure.messages = 5000;
        let (one, two) = (run_to_completion(&config), run_to_completion(&config));
        assert_eq!((&one.messages, &one.counters), (&two.messages, &two.counters));
        config.seed = 2;
        assert_ne!(one.messages, run_to_completion(&config).messages);
        config.seed = 1;
        config.run = 1;
        assert_ne!(one.messages, run_to_completion(&config).messages);
    }
}

/// A closed loop continues after failures, at a limited rate, and ends with the run.
#[test]
fn closed_loops_survive_crashes_and_refusals() {
    let fabric = fabric(LEAF_SPINE);
    let closed = |bytes| Pattern::ClosedLoop {
        sizes: fixed(bytes),
        outstanding: 4,
        think: Span::ZERO,
        ramp: Span::ZERO,
    };
    let ms = |n| Time::ZERO + Span::from_ms(n);
    for (name, transport) in [("homa", homa(&fabric, &fixed(20_000))), ("dctcp", dctcp())] {
        let mut config = config(fabric.clone(), vec![stream(transport, closed(20_000))]);
        let place = FaultPlace::Host(HostId(3));
        config.faults = vec![Fault { from: ms(1), until: ms(3), place, kind: FaultKind::Crash }];
        config.measure.messages = 20_000;
        let result = run_to_completion(&config);
        let failed = result.messages.iter().filter(|m| matches!(m.outcome, Outcome::Failed(_)));
        let failed = failed.count();
        assert!((4..2_000).contains(&failed), "{name}: {failed}");
        let back = result.messages.iter().filter(|m| m.src == HostId(3) && m.start >= ms(3));
        assert!(back.count() > 0, "{name}: the host sends again after its crash");
    }
    // Longer than the kernel module's messages can be, so each is refused.
    let linux = rackweave_transport::homa::Config::linux(G10);
    let transport = TransportConfig::Homa(linux.into());
    let mut config = config(fabric, vec![stream(transport, closed(2_000_000))]);
    config.measure.messages = 1_000;
    let result = run_to_completion(&config);
    assert_eq!(result.messages.len(), 1_000);
    assert!(result.refused >= 1_000);
}

#[test]
fn closed_loops_end_at_their_time_limit() {
    for think in [Span::ZERO, Span::from_us(1)] {
        let fabric = fabric(LEAF_SPINE);
        let pattern =
            Pattern::ClosedLoop { sizes: fixed(20_000), outstanding: 2, think, ramp: Span::ZERO };
        let mut stream = stream(homa(&fabric, &fixed(20_000)), pattern);
        stream.workload.stop = Span::from_ms(1);
        let result = run_to_completion(&config(fabric, vec![stream]));
        assert!(result.messages.len() > 24);
    }
}

/// Timers run while a link is down, so that messages fail in the end, also if their host's own link does not take them.
#[test]
fn timers_run_while_the_link_is_down() {
    let fabric = fabric(LEAF_SPINE);
    for (name, transport) in [("homa", homa(&fabric, &fixed(20_000))), ("dctcp", dctcp())] {
        for host in [0, 20] {
            let rows = [(10.0, 0, 20, 200_000), (50.0, 0, 20, 200_000)];
            let mut config = config(fabric.clone(), vec![stream(transport.clone(), trace(&rows))]);
            let (from, until) = ((Time::ZERO + Span::from_us(40)), Time::MAX);
            let place = FaultPlace::HostLink(HostId(host));
            config.faults = vec![Fault { from, until, place, kind: FaultKind::Down }];
            let silent = Outcome::Failed(rackweave_core::FailReason::PeerSilent);
            let result = run_until(&config, End::AllDone);
            let outcomes: Vec<_> = result.messages.iter().map(|message| message.outcome).collect();
            assert_eq!(outcomes, [silent; 2], "{name}, link of host {host}");
        }
    }
}

/// A message that is incomplete at the end counts for goodput with the bytes that have arrived.
#[test]
fn goodput_counts_what_has_arrived() {
    let rows = [(0.0, 0, 1, 2_000_000_000)];
    let mut config = config(fabric(single_switch(2)), vec![stream(dctcp(), trace(&rows))]);
    config.measure.verify = false;
    config.measure.time_limit = Span::from_ms(100);
    let result = run_until(&config, End::TimeLimit);
    let share = result.delivered_bytes[0] as f64 / G10.bytes_in(Span::from_ms(100)) as f64;
    assert!((share / (1460.0 / 1538.0) - 1.0).abs() < 0.02, "{share}");
}

#[test]
fn a_run_that_ends_before_its_warm_up_has_measured_nothing() {
    let rows = [(0.0, 0, 1, 20_000)];
    let mut config = config(fabric(single_switch(2)), vec![stream(dctcp(), trace(&rows))]);
    config.measure.warmup = Span::from_secs(1);
    let result = run_until(&config, End::AllDone);
    assert_eq!((result.messages.len(), result.delivered_bytes[0]), (0, 0));
    assert!(result.links.iter().all(|link| link.utilisation <= 1.0));
    assert_eq!(result.mean_queue_bytes, 0.0);
}

/// A periodic stream of datagrams on an idle path: each takes its ideal time, and the link carries exactly the
/// offered load.
#[test]
fn datagrams_at_a_constant_rate_offer_the_configured_load() {
    let transport = TransportConfig::Datagram(Arc::default());
    for bytes in [100, 1_456, 1_457, 40_000] {
        let pattern = Pattern::Periodic { sizes: fixed(bytes), rate: Rate(200_000_000) };
        let mut stream = stream(transport.clone(), pattern);
        (stream.workload.senders, stream.workload.receivers) = (Some(1..2), Some(20..21));
        let mut config = config(fabric(LEAF_SPINE), vec![stream]);
        config.measure.messages = 500;
        let result = run_to_completion(&config);
        assert_eq!(result.messages.len(), 500);
        assert_eq!(result.verified_messages, 500);
        for record in &result.messages {
            assert_eq!(latency(record), record.ideal, "{record:?}");
        }
        let starts = result.messages.windows(2).map(|pair| pair[1].start.since(pair[0].start));
        assert!(starts.eq(std::iter::repeat_n(Rate(200_000_000).span_of(bytes), 499)));
        if bytes == 1_456 {
            let used = result.links[1].utilisation;
            assert!((used / (0.02 * 1538.0 / 1456.0) - 1.0).abs() < 0.01, "{used}");
        }
    }
}

/// pFabric's receivers answer each packet, and the load on the wire counts the answers: at 40 % load each link is busy
/// for 40 % of the time, though most of the bytes of such short messages are headers and acknowledgements.
#[test]
fn pfabrics_load_on_the_wire_counts_acknowledgements() {
    let (transport, fabric) = pfabric(&fabric(LEAF_SPINE));
    for bytes in [100, 1_460, 5_000] {
        let pattern =
            Pattern::OpenLoop { sizes: fixed(bytes), load: 0.4, counts: LoadCounts::Wire };
        let mut config = config(fabric.clone(), vec![stream(transport.clone(), pattern)]);
        config.measure.messages = 100_000;
        config.measure.verify = false;
        let result = run_to_completion(&config);
        let used = result.links[..24].iter().map(|link| link.utilisation).sum::<f64>() / 24.0;
        assert!((0.38..0.42).contains(&used), "{bytes} bytes: {used}");
    }
}

/// Datagrams do not react to congestion: of two senders at line rate into one, half is lost, and TCP on the same link
/// gets the capacity that they leave.
#[test]
fn datagrams_do_not_react_and_others_do() {
    let mut fabric = fabric(single_switch(4));
    fabric.switch.buffer = BufferConfig::PerPort { bytes: 100_000 };
    let datagrams = |rate, senders| {
        let pattern = Pattern::Periodic { sizes: fixed(1_456), rate };
        let mut stream = stream(TransportConfig::Datagram(Arc::default()), pattern);
        (stream.workload.senders, stream.workload.receivers) = (Some(senders), Some(0..1));
        stream
    };
    let rate = Rate::from_gbps(9);
    let mut both = config(fabric.clone(), vec![datagrams(rate, 1..3)]);
    both.measure.time_limit = Span::from_ms(5);
    let result = run_until(&both, End::TimeLimit);
    let done = result.messages.iter().filter(|m| matches!(m.outcome, Outcome::Completed(_)));
    let share = done.count() as f64 / result.messages.len() as f64;
    assert!((0.5..0.56).contains(&share), "{share} of 18 Gbps through 10");

    let tcp = stream(cubic(), trace(&[(0.0, 3, 0, 40_000_000)]));
    let mut beside = config(fabric, vec![tcp, datagrams(Rate::from_gbps(2), 1..2)]);
    beside.measure.verify = false;
    let result = run_to_completion(&beside);
    let took = latency(&result.messages[0]);
    let goodput = 40e6 * 8e3 / took.as_ps() as f64;
    // 2 Gbps of payload are 2.11 on the link.
    assert!((6.0..7.6).contains(&goodput), "{goodput} Gbps");
}
