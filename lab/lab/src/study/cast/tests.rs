//! Comparisons of the schemes in small runs.

use std::borrow::Cow;
use std::path::Path;

use rackweave_orca::app::CastTimes;

use super::{CastConfig, CastDetail};
use crate::results::{Capture, PointResult};
use crate::study::StudyDetail;
use crate::{Batch, Results, Scenario};

const SMALL: &str = "
    [fabric]
    topology = 'leaf-spine'
    leaves = 2
    hosts_per_leaf = 4
    spines = 1
    core_link = '10 Gbps'
    [workload.cast]
    sender = [0, 4]
    receivers = [1, 2, 5, 6]
    files = ['500 KB', '3 KB', '200 KB']
    [transport]
    name = 'cast-unicast'
";

fn run(sets: &[&str]) -> Results {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let scenario = Scenario::parse("small.toml", SMALL, Path::new("."), &sets, None).unwrap();
    Batch::new(scenario).run(Some(1)).unwrap()
}

fn cast(results: &Results, point: usize) -> &super::CastSummary {
    results.points[point].summary.of::<CastConfig>().unwrap()
}

#[test]
fn copies_in_the_application_cross_the_senders_links_once_for_each_receiver() {
    let results = run(&["sweep.transport.name=['cast-unicast', 'cast-tcp', 'cast-chain']"]);
    for (point, copies) in [(0, 4.0), (1, 4.0), (2, 1.0)] {
        let cast = cast(&results, point);
        assert_eq!((cast.missing_bytes, cast.lost, cast.files), (0, 0, 3));
        assert!((copies..copies * 1.15).contains(&cast.copies), "{point}: {}", cast.copies);
        assert_eq!(results.points[point].summary.messages.completed, 12);
        assert_eq!(results.points[point].summary.warning(), None);
    }
}

#[test]
fn links_limit_casts_without_cost_and_processes_limit_casts_with_cost() {
    let results = run(&["workload.cast.files=20 MB"]);
    // Each of two links of 10 Gbps carries two copies, with headers.
    let bound = 2.0 * 20e6 * 8.0 / 10e9 * 1e6 / 0.9616;
    let took = cast(&results, 0).execution_us;
    assert!((bound..bound * 1.01).contains(&took), "{took} {bound}");
    let results = run(&[
        "workload.cast.files=20 MB",
        "workload.cast.cpu.copy_rate=8 Gbps",
        "sweep.workload.cast.processes=[1, 2, 4]",
    ]);
    // Copying takes 20 ms for each receiver.
    let took: Vec<f64> = (0..3).map(|point| cast(&results, point).execution_us).collect();
    assert!((80e3..81e3).contains(&took[0]) && (40e3..41e3).contains(&took[1]), "{took:?}");
    assert!((bound..bound * 1.01).contains(&took[2]), "{took:?}");
}

#[test]
fn a_lost_datagram_counts_as_unfinished() {
    let results = run(&[
        "faults=[{ kind = 'loss', place = 'link of host 1', probability = 0.05 }]",
        "measure.time_limit=50 ms",
    ]);
    let summary = &results.points[0].summary;
    assert!(summary.messages.unfinished > 0 && summary.warning().is_some());
    assert!(cast(&results, 0).execution_us.is_nan() && cast(&results, 0).missing_bytes > 0);
    // The connections over TCP repair losses.
    let results = run(&[
        "faults=[{ kind = 'loss', place = 'link of host 1', probability = 0.05 }]",
        "transport.name=cast-chain",
    ]);
    assert_eq!(cast(&results, 0).missing_bytes, 0);
}

#[test]
fn wait_and_send_times_are_those_of_the_files() {
    let results = run(&["workload.cast.cpu.copy_rate=8 Gbps"]);
    let cast = cast(&results, 0);
    // The four copies of a file leave one after the other, so the last receiver has it last.
    assert!((2000.0..2100.0).contains(&cast.send_us.max), "{:?}", cast.send_us);
    assert!((12.0..60.0).contains(&cast.send_us.p10), "{:?}", cast.send_us);
    // The waits from the first file to the second and from there to the third, for four receivers.
    assert!((800.0..900.0).contains(&cast.wait_us.max), "{:?}", cast.wait_us);
    let total: f64 = cast.send_us.mean * 3.0;
    assert!((cast.execution_us - total).abs() < 1.0, "{} {total}", cast.execution_us);
}

fn casts_of(point: &PointResult) -> &[CastTimes] {
    let Some(StudyDetail::Cast(CastDetail::Run(result))) = &point.detail else {
        panic!("{} was run", point.label)
    };
    &result.app.casts
}

#[test]
fn files_that_begin_in_the_warm_up_are_not_measured() {
    for scheme in ["cast-tcp", "orca"] {
        let name = format!("transport.name={scheme}");
        let all = run(&[&name]);
        let casts = casts_of(&all.points[0]);
        assert_eq!(casts.len(), 3);
        let warmup = format!("measure.warmup={} ns", casts[0].begun.as_ns() + 1);
        let warm = run(&[&name, &warmup]);
        let (all, warm) = (cast(&all, 0), (cast(&warm, 0), &warm.points[0]));
        assert_eq!((all.files, warm.0.files, warm.0.total_bytes), (3, 2, 203_000));
        assert_eq!((warm.0.missing_bytes, warm.1.summary.messages.completed), (0, 8));
        assert_eq!(casts_of(warm.1), &casts[1..]);
        assert!(warm.0.execution_us < all.execution_us);
    }
}

fn orca(sets: &[&str]) -> Results {
    run(&[&["transport.name=orca"], sets].concat())
}

#[test]
fn every_scheme_delivers_every_byte() {
    let results = orca(&[
        "workload.cast.sender=0",
        "sweep.transport.spread=['labels', 'relay', 'multicast', 'unicast']",
    ]);
    for (point, copies) in [(0, 1.0), (1, 2.0), (2, 1.0), (3, 4.0)] {
        let cast = cast(&results, point);
        assert_eq!((cast.missing_bytes, cast.wrong_bytes, cast.lost), (0, 0, 0), "{point}");
        assert!(cast.copies < copies * 1.3, "{point}: {}", cast.copies);
        assert_eq!(results.points[point].summary.warning(), None);
    }
}

#[test]
fn lost_packets_are_repaired_with_labels() {
    let results = orca(&["faults=[{ kind = 'loss', place = 'all links', probability = 0.01 }]"]);
    let cast = cast(&results, 0);
    assert_eq!((cast.missing_bytes, cast.wrong_bytes, cast.lost), (0, 0, 0));
    assert!(cast.repaired_bytes > 0);
}

#[test]
fn a_crash_of_the_active_agent_is_detected_and_repaired() {
    // In each rack the host that receives nothing is the first agent. That of the second rack crashes during the file.
    let results = orca(&[
        "workload.cast.sender=1",
        "workload.cast.receivers=[5, 6]",
        "workload.cast.files=5 MB",
        "transport.timeout=2 ms",
        "transport.heartbeat=0.2 ms",
        "fabric.host_link=1 Gbps",
        "fabric.core_link=1 Gbps",
        "faults=[{ kind = 'crash', place = 'host 4', from = '30 ms' }]",
    ]);
    let cast = cast(&results, 0);
    assert_eq!((cast.missing_bytes, cast.wrong_bytes, cast.lost), (0, 0, 0));
    assert!(cast.silent_agents >= 1, "{cast:?}");
    let delay = cast.failover_us.unwrap();
    assert!((1_300.0..4_000.0).contains(&delay), "{delay}");
}

/// While an agent is replaced, its rack hears nothing: its receivers are not slow, however long that takes.
#[test]
fn receivers_whose_agent_is_replaced_stay_in_the_group() {
    for (timeout, crash) in [(60, 30), (200, 21), (200, 74), (600, 43)] {
        let results = orca(&[
            "workload.cast.sender=1",
            "workload.cast.receivers=[2, 3, 5, 6]",
            "workload.cast.files=20 MB",
            &format!("transport.timeout={timeout} ms"),
            "transport.heartbeat=1 ms",
            "fabric.host_link=1 Gbps",
            "fabric.core_link=1 Gbps",
            &format!("faults=[{{ kind = 'crash', place = 'host 4', from = '{crash} ms' }}]"),
        ]);
        let cast = cast(&results, 0);
        assert_eq!((cast.missing_bytes, cast.wrong_bytes, cast.lost), (0, 0, 0));
        assert!(cast.silent_agents >= 1 && cast.detached == 0, "{timeout}: {cast:?}");
        assert!(cast.copies < 1.25, "{timeout}: {}", cast.copies);
        let delay = cast.failover_us.unwrap() / (f64::from(timeout) * 1000.0);
        assert!((0.8..1.2).contains(&delay), "{timeout}: {delay}");
    }
}

/// A receiver whose host does little is slow, whatever may have happened to its rack's agent: alone in its rack, or next to one that
/// keeps up.
#[test]
fn a_slow_receiver_does_not_hide_behind_its_agent() {
    let pauses: Vec<String> = (0..8)
        .map(|n| (25 + n * 385, 25 + n * 385 + 380))
        .map(|(from, to)| {
            format!("{{ kind = 'pause', place = 'host 5', from = '{from} ms', until = '{to} ms' }}")
        })
        .collect();
    for receivers in ["[2, 3, 5]", "[2, 3, 5, 6]"] {
        let results = orca(&[
            "workload.cast.sender=1",
            &format!("workload.cast.receivers={receivers}"),
            "workload.cast.files=16 MB",
            "transport.timeout=200 ms",
            "transport.heartbeat=1 ms",
            "fabric.host_link=1 Gbps",
            "fabric.core_link=1 Gbps",
            &format!("faults=[{}]", pauses.join(", ")),
        ]);
        let cast = cast(&results, 0);
        assert_eq!((cast.missing_bytes, cast.wrong_bytes, cast.lost), (0, 0, 0));
        assert!(cast.detached >= 1, "{receivers}: {cast:?}");
        let others = cast.receivers.iter().filter(|receiver| receiver.host != 5);
        let last = others.map(|receiver| receiver.completed_us).fold(0.0, f64::max);
        let most = if receivers == "[2, 3, 5]" { 700_000.0 } else { 350_000.0 };
        assert!(last < most, "{receivers}: {last}");
    }
}

#[test]
fn a_host_that_is_back_after_a_crash_has_lost_its_connections_and_bytes() {
    let schemes = "sweep.transport.name=['cast-tcp', 'cast-chain', 'cast-unicast', 'orca']";
    let sets = ["workload.cast.sender=0", "workload.cast.files=['40 MB', '1 MB']", schemes];
    let outcomes = |host: u32| {
        let fault = format!(
            "faults=[{{ kind = 'crash', place = 'host {host}', from = '25 ms', until = '26 ms' }}]"
        );
        let results = run(&[&sets[..], &[&fault, "measure.time_limit='5 s'"]].concat());
        let messages = |point: &PointResult| point.summary.messages;
        results.points.iter().map(messages).collect::<Vec<_>>()
    };
    // The receiver gets neither file; in a chain those behind it do not, either. Orca's is invited again.
    for (point, messages) in outcomes(5).into_iter().enumerate() {
        if point == 3 {
            assert_eq!((messages.completed, messages.failed), (8, 0), "{messages:?}");
            continue;
        }
        assert!(messages.failed > 0, "{point}: {messages:?}");
        assert!(messages.completed <= 6, "{point}: {messages:?}");
    }
    // No receiver gets anything from a sender that has crashed: neither the file that was under way nor the next one.
    for (point, messages) in outcomes(0).into_iter().enumerate() {
        assert_eq!((messages.started, messages.failed), (8, 8), "{point}: {messages:?}");
    }
}

/// How a run ended, why each receiver lacks files, and the warning.
type Ending = (&'static str, Vec<Option<&'static str>>, Option<String>);

/// Runs a cast with each scheme.
fn ends(sets: &[&str]) -> Vec<Ending> {
    let schemes = "sweep.transport.name=['cast-tcp', 'cast-chain', 'cast-unicast', 'orca']";
    let base = ["workload.cast.sender=0", "workload.cast.files=['40 MB', '1 MB']", schemes];
    let results = run(&[&base[..], sets].concat());
    let points = results.points.iter().map(|point| &point.summary);
    points
        .map(|summary| {
            let receivers = &summary.of::<CastConfig>().unwrap().receivers;
            let why = receivers.iter().map(|receiver| match receiver.incomplete {
                Some(Cow::Borrowed(why)) => Some(why),
                Some(Cow::Owned(_)) | None => None,
            });
            let why = why.collect();
            (summary.end, why, summary.warning())
        })
        .collect()
}

#[test]
fn a_sender_that_crashes_for_good_leaves_no_run_that_looks_complete() {
    for at in ["1 us", "25 ms"] {
        let fault = format!("faults=[{{ kind = 'crash', place = 'host 0', from = '{at}' }}]");
        for (point, (_, why, warning)) in ends(&[&fault]).into_iter().enumerate() {
            assert_eq!(why, [Some("sender crashed"); 4], "{point} {at}");
            let warning = warning.unwrap();
            assert!(warning.contains("of 8 messages 8 failed"), "{point} {at}: {warning}");
            assert!(
                warning.contains("4 of 4 receivers lack files (host 1: sender crashed"),
                "{warning}"
            );
        }
    }
}

#[test]
fn a_crashed_receiver_and_those_behind_it_in_a_chain_are_named() {
    for until in ["", ", until = '26 ms'"] {
        let fault =
            format!("faults=[{{ kind = 'crash', place = 'host 2', from = '25 ms'{until} }}]");
        let ends = ends(&[&fault, "measure.time_limit='600 s'"]);
        let (end, why, warning) = &ends[1];
        let behind = Some("peer silent");
        assert_eq!(why, &[None, Some("host crashed"), behind, behind], "{until} {warning:?}");
        assert_eq!(*end, "all done", "nobody waits for ever: {warning:?}");
        let warning = warning.as_ref().unwrap();
        assert!(warning.contains("3 of 4 receivers lack files"), "{warning}");
        // Connections in parallel do not depend on one another.
        assert_eq!(ends[0].1, [None, Some("host crashed"), None, None]);
        assert_eq!(ends[0].0, "all done");
    }
}

#[test]
fn a_receiver_that_is_back_before_the_cast_is_invited_again() {
    // Orca's first file begins after 20 ms.
    let fault = "faults=[{ kind = 'crash', place = 'host 5', from = '5 ms', until = '10 ms' }]";
    for spread in ["labels", "multicast", "unicast", "relay"] {
        let spread = format!("transport.spread={spread}");
        let results = orca(&["workload.cast.sender=0", fault, &spread]);
        let cast = cast(&results, 0);
        assert_eq!((cast.missing_bytes, cast.wrong_bytes), (0, 0), "{spread}");
        assert!(cast.receivers.iter().all(|it| it.incomplete.is_none()), "{spread}: {cast:?}");
    }
}

#[test]
fn errors_about_tables_name_the_mistake() {
    let error = |sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        Scenario::parse("small.toml", SMALL, Path::new("."), &sets, None).unwrap_err().to_string()
    };
    for (set, named) in [
        ("workload.cast.sender=9", "no host 9"),
        ("workload.cast.receivers=[1, 1]", "host 1 is there twice"),
        ("workload.cast.receivers=[0]", "is the sender's"),
        ("workload.cast.receivers=40", "the fabric has 1 to"),
        ("workload.cast.files=[]", "at least one file"),
        ("workload.cast.scale=0", "`scale` must be at least 1"),
        ("workload.cast.recievers=4", "unknown key `recievers`"),
        ("workload.arrivals=incast", "`arrivals` has no meaning with [workload.cast]"),
        ("workload.cast.buffer=70 KB", "UDP takes 65507 at most"),
        ("transport.name=homa", "carries messages between two hosts"),
        ("transport.name=orka", "unknown scheme `orka`"),
        ("transport.chunk=1 MB", "`chunk` is not a key of cast-unicast, but of cast-chain"),
        ("transport.spraed=labels", "unknown key `spraed`"),
        ("transport.orca.heartbeat=fast", "fast"),
        (
            "transport={ name = 'orca', timeout = '1 s' }",
            "at most 750 ms, a quarter of the patience 3 s",
        ),
        ("measure.messages=5", "`messages` has no meaning with [workload.cast]"),
        ("background=[{ arrivals = 'permutation' }]", "this background stream has no `transport`"),
    ] {
        let message = error(&[set]);
        assert!(message.contains(named), "{set}: {message}");
    }
    let own = error(&["transport.name=orca", "transport.controller=4"]);
    assert!(own.contains("is the sender's"), "{own}");
    let relay = error(&["transport.name=orca", "transport.spread=relay"]);
    assert!(relay.contains("a sender with one port only"), "{relay}");
    let message = "fabric = { topology = 'single-switch', hosts = 4 }\ntransport.name = 'orca'\n\
                   workload = { arrivals = 'permutation', sizes = '1 KB' }";
    let error = Scenario::parse("x.toml", message, Path::new("."), &[], None).unwrap_err();
    assert!(error.to_string().contains("it needs [workload.cast]"), "{error}");
}

/// A cast and two message transports run on one fabric, with all measurements of a run.
#[test]
fn a_cast_runs_beside_transports_with_captures_and_queue_series() {
    let text = format!(
        "{SMALL}
    [[background]]
    transport = {{ name = 'homa' }}
    arrivals = 'poisson'
    sizes = 'W3'
    truncate = '50 KB'
    load = 0.2
    [[background]]
    transport = {{ name = 'dctcp' }}
    arrivals = 'poisson'
    sizes = '20 KB'
    load = 0.1
    [measure]
    verify = true
    sample_every = '20 us'
    capture = ['host 1 receives']
    capture_limit = 5000
    "
    );
    let sets = ["sweep.transport.name=['orca', 'cast-tcp', 'cast-unicast']".to_owned()];
    let run = || {
        let scenario = Scenario::parse("beside.toml", &text, Path::new("."), &sets, None).unwrap();
        Batch::new(scenario).run(Some(2)).unwrap()
    };
    let results = run();
    let points = &results.points;
    assert_eq!(points.len(), 3);
    for point in points {
        let summary = &point.summary;
        let cast = summary.of::<CastConfig>().unwrap();
        assert_eq!((cast.missing_bytes, cast.lost), (0, 0), "{}", summary.transport);
        assert_eq!(summary.messages.completed, 12);
        let labels: Vec<_> = summary.background.iter().map(|s| s.label.as_str()).collect();
        assert_eq!(labels, ["homa", "dctcp"]);
        for stream in &summary.background {
            assert!(stream.messages.completed > 50 && stream.messages.failed == 0, "{stream:?}");
            assert!(stream.slowdown.p50 >= 1.0 && stream.goodput_gbps > 1.0, "{stream:?}");
        }
        assert!(summary.verified_messages > 100);
        assert!(point.queue_series.len() > 10);
        assert!(point.queue_series.iter().any(|sample| sample.total_bytes > 0));
        let Capture::Frames(frames) = &point.capture else { panic!("frames of several protocols") };
        assert!(frames.len() > 100, "{}", frames.len());
    }
    // The results of the other streams depend on the scheme, but not on the number of threads or the repetition.
    let again = run();
    for (point, other) in points.iter().zip(&again.points) {
        assert_eq!(format!("{:?}", point.capture), format!("{:?}", other.capture));
        assert_eq!(point.queue_series, other.queue_series);
    }
    let text = results
        .to_table(100, crate::report::table::Style { color: false, unicode: false, wide: false });
    assert!(text.contains("Background streams"), "{text}");
    assert!(text.lines().any(|line| line.contains("dctcp")), "{text}");
}

/// Found by `rackweave chaos cast --seed 802`: it forwarded bytes of files that the crash had taken from it.
#[test]
fn a_member_of_a_chain_that_has_crashed_forwards_only_what_it_has() {
    let results = run(&[
        "transport.name=cast-chain",
        "workload.cast.files=['1000 B', '1000 B']",
        "workload.cast.rounds=false",
        "faults=[{ kind = 'crash', place = 'host 2', from = '11 us', until = '1127 us' }]",
        "measure.time_limit='1 s'",
    ]);
    assert!(results.summary.failures.is_empty());
    assert_eq!(cast(&results, 0).wrong_bytes, 0);
}
