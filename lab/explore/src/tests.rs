//! Runs that are looked at, stepped and traced, compared with the same runs that are not.

use std::path::PathBuf;
use std::sync::Arc;

use rackweave_core::{Span, Time};
use rackweave_lab::results::PointResult;
use rackweave_lab::run::PointEnd;
use rackweave_lab::scenario::ScenarioText;
use rackweave_lab::{Batch, Scenario};
use rackweave_sim::result::{End, MessageRecord, Outcome};
use rackweave_sim::world::{Next, Observer, View};
use rackweave_workload::app::MessageStart;

use crate::session::{Command, Session, Start, Which};
use crate::trace::{self, Fate, MessageTrace, Tracing};

fn scenario(keys: &str) -> Scenario {
    let text = format!(
        "fabric.topology = 'leaf-spine'\nfabric.leaves = 3\nfabric.hosts_per_leaf = 4\nfabric.spines = 2\n\
         fabric.host_link = '10 Gbps'\nfabric.core_link = '20 Gbps'\n\
         workload = {{ arrivals = 'poisson', sizes = 'W3', load = 0.6, truncate = '300 KB' }}\n\
         measure = {{ messages = 150, messages_csv = true }}\n{keys}"
    );
    Scenario::parse("x.toml", &text, std::path::Path::new("."), &[], None).unwrap()
}

fn point(batch: &Batch) -> PointResult {
    match batch.simulate(0).unwrap() {
        PointEnd::Finished(point) => *point,
        other => panic!("{other:?}"),
    }
}

/// The parts of a result that do not depend on the machine.
fn facts(mut point: PointResult) -> String {
    point.summary.cpu_s = 0.0;
    format!("{point:?}")
}

#[derive(Debug)]
struct Often(Span);

impl Observer for Often {
    fn is_due(&mut self) -> bool {
        true
    }

    fn look(&mut self, view: &mut dyn View) -> Next {
        let state = view.state(3);
        assert!(state.waiting.len() <= 3 && state.packets <= 1 << 20);
        Next::Until(view.now() + self.0)
    }

    fn end(&mut self, _: &mut dyn View, _: End) {}
}

const TRANSPORTS: [&str; 10] = [
    "transport.name = 'homa'",
    "transport.name = 'dctcp'",
    "transport.name = 'tcp'\nfabric.switch.buffer = '20 KB'",
    "transport.name = 'ndp'\nfabric.switch.trim = true",
    "transport.name = 'phost'",
    "transport.name = 'polo'",
    "transport.name = 'pfabric'\nfabric.switch.pfabric = true",
    "transport.name = 'sird'",
    "transport.name = 'swift'",
    "transport.name = 'uet'\nfabric.switch.trim = true",
];

#[test]
fn a_run_that_is_looked_at_is_the_same_run() {
    for keys in TRANSPORTS {
        let plain = facts(point(&Batch::new(scenario(keys))));
        for step in [Span::from_ns(701), Span::from_us(50)] {
            let watched = Batch::new(scenario(keys)).with_observer(0, Box::new(Often(step)));
            let found = facts(point(&watched));
            let differs = found.bytes().zip(plain.bytes()).position(|(one, other)| one != other);
            let around = differs.map(|at| {
                (&found[at.saturating_sub(60)..at + 20], &plain[at.saturating_sub(60)..at + 20])
            });
            assert!(found == plain, "{keys}, each {step}: {around:?}");
        }
    }
}

/// All hosts send to one, so that buffers overflow.
fn incast(keys: &str) -> Scenario {
    let text = format!(
        "fabric.topology = 'leaf-spine'\nfabric.leaves = 3\nfabric.hosts_per_leaf = 4\nfabric.spines = 2\n\
         fabric.host_link = '10 Gbps'\nfabric.core_link = '20 Gbps'\n\
         workload = {{ arrivals = 'incast', sizes = '60 KB', receiver = 0 }}\nmeasure.messages_csv = true\n{keys}"
    );
    Scenario::parse("x.toml", &text, std::path::Path::new("."), &[], None).unwrap()
}

fn start(it: &MessageRecord) -> MessageStart {
    MessageStart { stream: it.stream, src: it.src, dst: it.dst, bytes: it.bytes, at: it.start }
}

fn take(scenario: &Scenario, it: &MessageRecord) -> MessageTrace {
    let traced = trace::take(scenario.clone(), start(it), Time::MAX, &Arc::new(Tracing::default()));
    traced.unwrap()
}

/// Checks that each packet's hops follow each other without a gap.
fn check_hops(trace: &MessageTrace) {
    let same = |one: f64, other: f64| (one - other).abs() < 1e-6;
    for packet in &trace.packets {
        let waits = |it: &trace::Hop| it.queued.map_or(0.0, |from| it.sent.unwrap_or(from) - from);
        for pair in packet.hops.windows(2) {
            let there = pair[0].arrival.expect("it was sent");
            let next = pair[1].queued.or(pair[1].sent).unwrap();
            assert!(same(there, next), "{packet:?}");
            assert!(waits(&pair[1]) >= 0.0 && pair[1].sent.is_none_or(|sent| sent >= there));
        }
        let last = packet.hops.last().unwrap();
        match &packet.fate {
            Fate::Delivered { at } => {
                let ways = packet.hops.iter().map(|it| it.arrival.unwrap() - it.sent.unwrap());
                let all = ways.sum::<f64>() + packet.hops.iter().map(waits).sum::<f64>();
                let first = packet.hops[0].sent.unwrap();
                assert!(same(first + all, *at), "{packet:?}");
                assert_eq!(packet.hops.len() % 2, 0, "{packet:?}");
            }
            Fate::Dropped { at, .. } => {
                assert!(last.arrival.is_none_or(|arrival| same(arrival, *at)), "{packet:?}");
            }
            // The run ended first.
            Fate::UnderWay => {
                assert!(last.arrival.is_none_or(|arrival| arrival > trace.traced_to), "{packet:?}");
            }
        }
    }
}

#[test]
fn a_trace_has_all_packets_and_ends_with_its_message() {
    for keys in TRANSPORTS {
        let scenario = scenario(keys);
        let run = point(&Batch::new(scenario.clone()));
        let messages = run.messages.unwrap();
        let longest = messages.iter().max_by_key(|it| it.bytes).unwrap();
        for it in [&messages[0], &messages[77], longest] {
            let trace = take(&scenario, it);
            let Outcome::Completed(end) = it.outcome else { panic!("{it:?}") };
            assert_eq!(trace.end, Some(trace::ns(end)), "{keys}");
            check_hops(&trace);
            let data = trace.packets.iter().filter(|packet| {
                packet.has_payload && matches!(packet.fate, Fate::Delivered { .. })
            });
            let carried = data.map(|packet| u64::from(packet.bytes)).sum::<u64>();
            assert!(carried > it.bytes, "{keys}: {carried} of {it:?}");
            // The last byte arrives when the message ends.
            let last = trace.packets.iter().any(
                |packet| matches!(packet.fate, Fate::Delivered { at } if Some(at) == trace.end),
            );
            assert!(last, "{keys}");
        }
    }
}

/// The traces of all messages have all drops, marks and trims of a run, in queues that exchange packets too.
#[test]
fn no_drop_mark_or_trim_is_missed() {
    for keys in [
        "transport.name = 'tcp'\nfabric.switch.buffer = '30 KB'",
        "transport.name = 'dctcp'\nfabric.switch.buffer = '40 KB'",
        "transport.name = 'homa'\nfabric.switch.buffer = '30 KB'",
        "transport.name = 'pfabric'\nfabric.switch.pfabric = true",
        "transport.name = 'ndp'\nfabric.switch.trim = true",
    ] {
        let scenario = incast(keys);
        let run = point(&Batch::new(scenario.clone()));
        let (mut drops, mut marks, mut trims) = (0, 0, 0);
        for it in run.messages.as_ref().unwrap() {
            let trace = take(&scenario, it);
            check_hops(&trace);
            let packets = trace.packets.iter();
            drops += packets.clone().filter(|it| matches!(it.fate, Fate::Dropped { .. })).count();
            let hops = packets.flat_map(|packet| &packet.hops);
            marks += hops.clone().filter(|hop| hop.marked).count();
            trims += hops.filter(|hop| hop.trimmed).count();
        }
        let found = (drops as u64, marks as u64, trims as u64);
        let summary = &run.summary;
        assert_eq!(found, (summary.drops, summary.ecn_marks, summary.trims), "{keys}");
        assert!(drops + trims > 0, "{keys}: nothing was lost");
    }
}

fn session(scenario: &Scenario) -> Arc<Session> {
    let text = scenario.resolved.clone();
    let text = ScenarioText { file: "x.toml".into(), text, folder: PathBuf::from(".") };
    let session = Session::new(text, Vec::new());
    session.start(Start::default()).unwrap();
    session
}

/// Waits until the lanes are in a mode, and returns what is shown then.
fn until(session: &Session, mode: &str) -> serde_json::Value {
    let mut changes = session.changes();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    loop {
        let shown = session.shown();
        if shown["mode"] == mode {
            return shown;
        }
        let next = runtime.block_on(async {
            tokio::time::timeout(std::time::Duration::from_secs(60), changes.changed()).await
        });
        next.expect("it takes too long").unwrap();
    }
}

#[test]
fn steps_are_exact_and_the_end_is_that_of_run() {
    let scenario = scenario("transport.name = 'homa'");
    let session = session(&scenario);
    assert_eq!(until(&session, "paused")["lanes"][0]["picture"]["at_ns"], 0.0);
    for nth in 1..=3 {
        session.control(&Command::Step { ns: 10_000.0 }).unwrap();
        let shown = until(&session, "paused");
        assert_eq!(shown["lanes"][0]["picture"]["at_ns"], f64::from(nth) * 10_000.0);
    }
    assert!(session.control(&Command::Step { ns: -1.0 }).is_err());
    session.control(&Command::Run { speed: None }).unwrap();
    let shown = until(&session, "over");
    assert_eq!(shown["lanes"][0]["picture"]["end"], "all done");
    let of = |text: &str| {
        let mut json: serde_json::Value = serde_json::from_str(text).unwrap();
        json["wall_s"].take();
        json["peak_rss_bytes"].take();
        json["points"][0]["cpu_s"].take();
        json
    };
    let batch = Batch::new(
        Scenario::parse("x.toml", &scenario.resolved, std::path::Path::new("."), &[], None)
            .unwrap(),
    );
    let plain = batch.run(Some(1)).unwrap().to_json();
    assert_eq!(of(&session.summary(0).unwrap()), of(&plain));
    // A message by its line in messages.csv.
    session.trace(&serde_json::from_str(r#"{"number": 78}"#).unwrap()).unwrap();
    while session.traced().is_none() {
        std::thread::yield_now();
    }
    let (trace, names) = session.traced().unwrap();
    let csv = String::from_utf8(trace::csv(&trace, &names).unwrap()).unwrap();
    assert_eq!(
        csv.lines().count() - 1,
        trace.packets.iter().map(|it| it.hops.len()).sum::<usize>()
    );
    let missing: Which = serde_json::from_str(r#"{"number": 100000}"#).unwrap();
    assert!(session.trace(&missing).is_err());
    session.end();
}

#[test]
fn two_runs_wait_at_the_same_time() {
    let session = session(&scenario("transport.name = 'homa'"));
    let compare = r#"{"compare": ["transport.name=dctcp"]}"#;
    session.start(serde_json::from_str(compare).unwrap()).unwrap();
    session.control(&Command::Run { speed: Some(1e6) }).unwrap();
    let at = |shown: &serde_json::Value, lane: usize| {
        shown["lanes"][lane]["picture"]["at_ns"].as_f64().unwrap_or(0.0)
    };
    while at(&session.shown(), 1) < 50_000.0 {
        std::thread::yield_now();
    }
    session.control(&Command::Pause).unwrap();
    let shown = until(&session, "paused");
    assert_eq!(at(&shown, 0), at(&shown, 1));
    session.control(&Command::Step { ns: 25_000.0 }).unwrap();
    let next = until(&session, "paused");
    assert_eq!((at(&next, 0), at(&next, 1)), (at(&shown, 0) + 25_000.0, at(&shown, 0) + 25_000.0));
    session.end();
    assert_eq!(session.shown()["mode"], "over");
}

#[test]
fn what_is_wrong_is_told_as_the_command_tells_it() {
    let session = session(&scenario("transport.name = 'homa'"));
    let start = serde_json::from_str(r#"{"sets": ["fabric.spinez = 3"]}"#).unwrap();
    let told = session.start(start).unwrap_err().0;
    assert!(told.contains("unknown key `spinez`") && told.contains("did you mean"), "{told}");
    assert_eq!(session.shown()["generation"], 1, "the run goes on");
    session.end();
}

/// Any number that JSON has is a speed or a step, or is refused: no time overflows.
#[test]
fn no_speed_and_no_step_is_too_large() {
    let session = session(&scenario("transport.name = 'homa'"));
    for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(session.control(&Command::Run { speed: Some(wrong) }).is_err(), "{wrong}");
        assert!(session.control(&Command::Step { ns: wrong }).is_err(), "{wrong}");
    }
    session.control(&Command::Run { speed: Some(5e-324) }).unwrap();
    session.control(&Command::Pause).unwrap();
    until(&session, "paused");
    session.control(&Command::Step { ns: 5e-324 }).unwrap();
    until(&session, "paused");
    session.control(&Command::Run { speed: Some(f64::MAX) }).unwrap();
    assert_eq!(until(&session, "over")["lanes"][0]["picture"]["end"], "all done");
    session.end();
    let steps = self::session(&scenario("transport.name = 'homa'"));
    steps.control(&Command::Step { ns: f64::MAX }).unwrap();
    steps.control(&Command::Step { ns: f64::MAX }).unwrap();
    assert_eq!(until(&steps, "over")["lanes"][0]["picture"]["end"], "all done");
    steps.end();
}

/// A fabric that is too large to be drawn is refused before it is laid out, which would take gigabytes.
#[test]
fn a_fabric_that_is_too_large_is_refused_at_once() {
    let session = session(&scenario("transport.name = 'homa'"));
    let start =
        r#"{"sets": ["fabric.leaves=1000", "fabric.hosts_per_leaf=1000", "fabric.spines=60000"]}"#;
    let told = session.start(serde_json::from_str(start).unwrap()).unwrap_err().0;
    assert!(told.contains("the fabric has 122000000 links, more than 20000"), "{told}");
    assert!(
        session.start(serde_json::from_str(r#"{"sets": ["fabric.leaves=30"]}"#).unwrap()).is_ok()
    );
    session.end();
}
