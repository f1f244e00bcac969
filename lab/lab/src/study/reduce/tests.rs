use std::path::Path;
use std::sync::Arc;

use rackweave_aggregation::source::Order;
use rackweave_core::{HostId, Node as _, Schedule, Span, Time};
use rackweave_sim::GroupNode as _;
use rackweave_transport::{TransportConfig, tcp};
use rackweave_wire::reduce::Operator;
use rackweave_workload::text::TextModel;

use super::job::{Config, Costs, Job, JobNode, Map};
use super::{ReduceConfig, ReduceSummary};
use crate::run::Batch;
use crate::scenario::Scenario;

fn run(text: &str, sets: &[&str]) -> ReduceSummary {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let scenario = Scenario::parse("test.toml", text, Path::new("."), &sets, None).unwrap();
    let results = Batch::new(scenario).run(Some(1)).unwrap();
    assert!(results.summary.failures.is_empty(), "{:?}", results.summary.failures);
    results.points[0].summary.of::<ReduceConfig>().unwrap().clone()
}

const ONE: &str = "fabric = { topology = 'single-switch', hosts = 8 }
    transport = { name = 'reduce-switch', slots = 4096 }
    workload.reduce = { workers = 7, size = '2 MB', map = 'local' }
    measure = { time_limit = '60 s' }";

#[test]
fn a_job_is_exact_and_the_switch_takes_what_it_can() {
    let summary = run(ONE, &[]);
    assert_eq!((summary.exact, summary.finished, summary.unfinished), (1, 1, 0));
    assert!(summary.jobs[0].epochs > 5, "{summary:?}");
    let over = summary.to_master / summary.to_master_bound;
    assert!((1.0..1.04).contains(&over), "{over}: {summary:?}");
    let alone = run(ONE, &["transport={ name = 'reduce-master' }"]);
    assert_eq!((alone.exact, alone.to_master, alone.absorbed), (1, 1.0, 0.0));
    assert!(alone.upload_us.mean > summary.upload_us.mean, "{alone:?} {summary:?}");
}

#[test]
fn jobs_are_exact_while_the_network_loses_and_reorders() {
    let faults = "faults=[{ kind = 'loss', place = 'all links', probability = 0.01 }]";
    let summary = run(ONE, &[faults, "workload.reduce.size='1 MB'", "workload.reduce.jobs=3"]);
    assert_eq!((summary.exact, summary.finished), (3, 3), "{summary:?}");
    assert!(summary.duplicates > 0);
}

#[test]
fn faults_that_no_real_link_lets_through_are_refused() {
    for (fault, reason) in [
        (
            "{ kind = 'corruption', place = 'all links', probability = 0.1 }",
            "no check of their own",
        ),
        (
            "{ kind = 'crash', place = 'host 1', until = '1 ms' }",
            "a job does not outlive its master",
        ),
    ] {
        let sets = [format!("faults=[{fault}]"), "workload.reduce.masters=[1]".into()];
        let error = Scenario::parse("test.toml", ONE, Path::new("."), &sets, None).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn the_published_rule_is_not_exact() {
    let summary =
        run(ONE, &["transport={ name = 'reduce-switch', rule = 'counter', slots = 65536 }"]);
    assert_eq!((summary.exact, summary.finished), (0, 1), "{summary:?}");
    // Most words are missing at one of seven workers, and most of the rest share registers.
    assert!(summary.words_missing > 0.5 && summary.words_missing < 1.0, "{summary:?}");
    assert!(summary.words_wrong > 0.0 && summary.occurrences_missing > 0.1, "{summary:?}");
    let exact = run(ONE, &[]);
    let errors = (exact.words_missing, exact.words_wrong, exact.occurrences_missing);
    assert_eq!(errors, (0.0, 0.0, 0.0), "{exact:?}");
}

#[test]
fn phases_follow_one_another_and_data_are_sent_to_workers() {
    let summary = run(ONE, &["workload.reduce.map='scatter'", "workload.reduce.workers=3"]);
    let job = &summary.jobs[0];
    let times = [job.start_us, job.ready_us, job.granted_us, job.uploaded_us, job.finished_us];
    assert!(times.is_sorted(), "{times:?}");
    // 2 MB at 10 Gbit/s, and 10 ms for each MiB of a third.
    assert!(job.ready_us > 1_600.0 + 6_000.0, "{times:?}");
    assert_eq!(summary.exact, 1);
}

#[test]
fn placements_differ_in_where_workers_are() {
    for placement in ["random", "worker-localized", "cluster-localized"] {
        let set = format!("workload.reduce.placement='{placement}'");
        let more = ["workload.reduce.per_host=2", "workload.reduce.workers=4"];
        let summary = run(ONE, &[&set, more[0], more[1]]);
        assert_eq!(summary.exact, 1, "{placement}");
    }
}

const POD: &str = "fabric = { topology = 'rackless', tors = [4, 2, 2], uplinks = 1, core_link = '1 Gbps',
        circuits = [0, 0, 0, 0, 1, 1, 2, 2], switching_delay = '100 us', dark = 'moved' }
    transport = { name = 'reduce-switch', schedule = 'plan', plan_period = '2 ms' }
    workload.reduce = { jobs = 4, workers = 3, size = '2 MB', groups = [[0, 1, 2, 3], [4, 5, 6, 7]] }
    measure = { time_limit = '60 s' }";

#[test]
fn the_control_plane_moves_servers_for_uploads_and_every_result_is_exact() {
    let planned = run(POD, &[]);
    assert_eq!((planned.exact, planned.finished), (4, 4), "{planned:?}");
    assert!(planned.reconfigurations > 0, "{planned:?}");
    // One upload after the other has the switch.
    let mut uploads: Vec<_> =
        planned.jobs.iter().map(|job| (job.granted_us, job.uploaded_us)).collect();
    uploads.sort_by(|left, right| left.0.total_cmp(&right.0));
    assert!(uploads.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{uploads:?}");
    let over = planned.to_master / planned.to_master_bound;
    assert!((1.0..1.04).contains(&over), "{over}: {planned:?}");
    // A change that takes longer than it saves is not made.
    let slow = run(POD, &["fabric.switching_delay='10 s'"]);
    assert_eq!((slow.exact, slow.reconfigurations), (4, 0), "{slow:?}");
}

#[test]
fn circuits_follow_the_traffic_of_jobs_without_a_switch_that_adds_up() {
    let planned = run(
        POD,
        &["transport={ name = 'reduce-master', schedule = 'plan', plan_period = '2 ms' }"],
    );
    assert_eq!((planned.exact, planned.to_master), (4, 1.0), "{planned:?}");
    assert!(planned.reconfigurations > 0, "{planned:?}");
}

#[test]
fn uploads_have_their_turns_whatever_becomes_of_the_messages_of_the_control_plane() {
    let lossy = "transport={ name = 'reduce-switch', schedule = 'plan', plan_period = '2 ms', control_latency = '3 ms', \
                 control_loss = 0.3 }";
    let planned = run(POD, &[lossy]);
    assert_eq!((planned.exact, planned.finished), (4, 4), "{planned:?}");
    assert!(planned.reconfigurations > 0 && planned.upload_overlap == 0.0, "{planned:?}");
    // Each request, command and report is at least once under way.
    let fast = run(POD, &[]);
    assert!(planned.jct_us.mean > fast.jct_us.mean + 3_000.0, "{planned:?} {fast:?}");
    let set = "transport={ name = 'reduce-switch', grant_order = 'shortest' }".to_owned();
    let error = Scenario::parse("test.toml", POD, Path::new("."), &[set], None).unwrap_err();
    assert!(error.to_string().contains("there is no control plane"), "{error}");
}

#[test]
fn uploads_have_their_turns_at_a_switch_without_circuits_too() {
    let sets =
        ["transport={ name = 'reduce-switch', schedule = 'plan' }", "workload.reduce.jobs=3"];
    let planned = run(ONE, &sets);
    assert_eq!((planned.exact, planned.reconfigurations), (3, 0), "{planned:?}");
    assert_eq!(planned.upload_overlap, 0.0, "{planned:?}");
    assert!(planned.to_master < planned.to_master_bound * 1.04, "{planned:?}");
}

#[test]
fn circuits_between_tors_are_planned_too() {
    let pod = "fabric={ topology = 'tor-circuits', tors = [4, 2, 2], circuit_ports = [2, 1, 1], uplinks = 1,
        core_link = '1 Gbps', circuits = [[0, 1], [0, 2]], switching_delay = '100 us' }";
    let planned = run(POD, &[&pod.replace('\n', " ")]);
    assert_eq!((planned.exact, planned.finished), (4, 4), "{planned:?}");
}

#[test]
fn workers_that_crash_need_their_data_on_disk() {
    let sets = [
        "faults=[{ kind = 'crash', place = 'host 1', until = '1 ms' }]".to_owned(),
        "workload.reduce.map='scatter'".to_owned(),
    ];
    let error = Scenario::parse("test.toml", ONE, Path::new("."), &sets, None).unwrap_err();
    assert!(error.to_string().contains("need map = \"local\""), "{error}");
}

/// Runs of the claim `ordc-correct` with other seeds than its own. `RACKWEAVE_SEEDS=400` runs 8000 jobs.
#[test]
fn seeded_runs_are_exact_whatever_fails() {
    let seeds = std::env::var("RACKWEAVE_SEEDS").ok().and_then(|text| text.parse().ok());
    let seeds: u64 = seeds.unwrap_or(4);
    let text = crate::builtin::scenario("ordc-correct").unwrap().text;
    let list: Vec<String> = (1_000..1_000 + seeds).map(|seed| seed.to_string()).collect();
    let sets = [format!("sweep.seed=[{}]", list.join(", "))];
    let scenario = Scenario::parse("correct.toml", text, Path::new("."), &sets, None).unwrap();
    let results = Batch::new(scenario).run(None).unwrap();
    assert!(results.summary.failures.is_empty(), "{:?}", results.summary.failures);
    assert_eq!(results.points.len() as u64, 5 * seeds);
    for point in &results.points {
        let summary = point.summary.of::<ReduceConfig>().unwrap();
        let seen = (summary.exact, summary.finished, summary.unfinished);
        assert_eq!(seen, (4, 4, 0), "{}: {summary:?}", point.label);
    }
}

#[test]
fn tasks_wait_for_one_another_and_take_the_time_of_their_profile() {
    let sets = ["workload.reduce.jobs=3", "workload.reduce.costs='hadoop'"];
    let together = run(ONE, &sets);
    let in_turn = run(ONE, &[&sets[..], &["workload.reduce.tasks=1"]].concat());
    // A start of 1 s, 210 ms for each MiB of 2 MB among seven, and a reduce with a start of its own.
    let least = 1e6 + 0.21e6 * 2.0 / 7.0 / 1.048_576 + 1e6;
    assert!((least..least * 1.2).contains(&together.jct_us.min), "{together:?}");
    assert!(together.jct_us.max < together.jct_us.min * 1.1, "{together:?}");
    assert!(in_turn.jct_us.max > together.jct_us.max * 1.4, "{in_turn:?}");
    assert_eq!((together.exact, in_turn.exact), (3, 3));
}

#[test]
fn traffic_is_counted_over_time_by_sender() {
    let traffic = "measure.traffic=[
        { name = 'all', at = 'switch 0', interval = '1 ms' },
        { name = 'low', at = 'switch 0', from = [0, 1, 2, 3], interval = '1 ms' },
        { name = 'high', at = 'switch 0', from = [4, 5, 6, 7], interval = '1 ms' },
        { name = 'one', at = ['host 5 sends'], interval = '1 ms' }]"
        .replace('\n', " ");
    let sets = [traffic];
    let scenario = Scenario::parse("test.toml", ONE, Path::new("."), &sets, None).unwrap();
    let results = Batch::new(scenario).run(Some(1)).unwrap();
    let traffic = &results.points[0].traffic;
    let total = |index: usize| traffic[index].bytes.iter().sum::<u64>();
    assert_eq!(total(0), total(1) + total(2));
    assert!(total(3) > 0 && total(3) < total(2));
    let pairs = results.points[0].summary.of::<ReduceConfig>().unwrap().jobs[0].pairs;
    assert!(total(0) > pairs * 20, "{} of {pairs} pairs", total(0));
    assert_eq!(traffic[0].samples().map(|sample| sample.bytes).sum::<u64>(), total(0));
}

#[test]
fn uploads_without_a_combiner_send_each_word_as_often_as_it_occurs() {
    let summary = run(ONE, &["workload.reduce.combiner=false"]);
    let words = 2_000_000.0 / 7.392;
    assert!((summary.jobs[0].pairs as f64 / words - 1.0).abs() < 0.02, "{summary:?}");
    assert_eq!(summary.exact, 1);
    assert!(summary.to_master < 0.25, "{summary:?}");
}

#[test]
fn jobs_run_beside_messages_whose_hosts_they_share() {
    let background = "background=[
        { transport = { name = 'homa' }, arrivals = 'poisson', sizes = 'W3', load = 0.2 },
        { transport = { name = 'dctcp' }, arrivals = 'poisson', sizes = '100 KB', load = 0.2 }]"
        .replace('\n', " ");
    let sets = [background, "measure.time_limit='200 ms'".to_owned()];
    let scenario = Scenario::parse("test.toml", ONE, Path::new("."), &sets, None).unwrap();
    let results = Batch::new(scenario).run(Some(1)).unwrap();
    let summary = &results.points[0].summary;
    let reduce = summary.of::<ReduceConfig>().unwrap();
    assert_eq!((reduce.exact, reduce.unfinished), (1, 0), "{reduce:?}");
    assert!(reduce.absorbed > 0.9, "what the program of the switch sends arrives: {reduce:?}");
    assert!(summary.background.iter().all(|stream| stream.messages.completed > 100));
}

/// One worker over fast links, so that the processors of hosts are the bottleneck when pairs cost them a microsecond each.
#[test]
fn an_upload_takes_as_long_as_the_pairs_cost_those_who_handle_them() {
    const JOB: &str = "fabric = { topology = 'single-switch', hosts = 2, host_link = '100 Gbps' }
        transport = { name = 'reduce-master' }
        workload.reduce = { workers = 1, size = '2 MB', map = 'local' }
        measure = { time_limit = '60 s' }";
    let upload = |scheme: &str, costs: &str| {
        let sets = [format!("transport={{ name = '{scheme}' }}"), format!("host={{ {costs} }}")];
        let summary = run(JOB, &[&sets[0], &sets[1]]);
        assert_eq!(summary.exact, 1, "{scheme}, {costs}");
        // Each pair passes once through either host: there is nothing to add up for a single worker that combines.
        (summary.upload_us.mean, summary.jobs[0].pairs as f64)
    };
    let process = |pair_ns: u32| format!("switch = {{ pair_ns = {pair_ns}, window_us = 1 }}");
    for (scheme, without, with) in [
        ("reduce-master", String::new(), "send_pair_ns = 1000".to_owned()),
        ("reduce-master", String::new(), "receive_pair_ns = 1000".to_owned()),
        ("reduce-switch", process(0), process(1000)),
    ] {
        let (free, pairs) = upload(scheme, &without);
        let (costs, _) = upload(scheme, &with);
        assert!(free < 0.2 * pairs, "{scheme}: {free} us for {pairs} pairs without costs");
        let share = costs / pairs;
        // A few words are too long for a pair, and epochs wait for one another.
        assert!((0.99..1.2).contains(&share), "{scheme}, {with}: {costs} us for {pairs} pairs");
    }
    // Pairs that only pass cost the switch process nothing.
    assert_eq!(upload("reduce-master", &process(0)), upload("reduce-master", &process(1000)));
}

#[test]
fn a_result_is_compared_when_the_driver_says_so_and_the_job_ends_as_of_its_upload() {
    let carrier = TransportConfig::Tcp(Arc::new(tcp::Config::tcp()));
    let config = Config {
        map: Map::Local,
        costs: Costs { reduce_per_pair: Span::from_us(1), ..Costs::default() },
        text: TextModel::default(),
        combiner: true,
        operator: Operator::Sum,
        order: Order::Hash,
        window: 64,
        hold: false,
        aggregation: None,
        seed: 1,
    };
    let (master, worker) = (HostId(0), HostId(1));
    let workers = vec![worker];
    let job = Job { number: 0, start: Time::ZERO, master, workers, bytes: 20_000 };
    let node = |host| JobNode::new(host, config.clone(), &carrier, std::slice::from_ref(&job));
    let mut nodes = [node(master).with_deferred_comparison(), node(worker)];
    // Packets arrive a millisecond after they were sent.
    let mut under_way = Schedule::default();
    let mut now = Time::ZERO;
    while !nodes[0].has_to_compare() {
        now += Span::from_ms(1);
        while let Some((at, (to, packet, payload))) = under_way.pop_due(now) {
            let payload: Vec<u8> = payload;
            nodes[usize::from(to == worker)].receive(at, &packet, &payload);
        }
        for node in &mut nodes {
            node.handle_timeout(now);
            while let Some(packet) = node.poll_transmit(now, 0) {
                let sent = (packet.dst, packet, node.payload().to_vec());
                under_way.push(now + Span::from_ms(1), sent);
            }
        }
        assert!(now < Time::ZERO + Span::from_secs(10), "the upload ends");
    }
    let record = |nodes: &[JobNode; 2]| *nodes[0].records().next().unwrap().1;
    let before = record(&nodes);
    assert_eq!((before.uploaded, before.finished, before.exact), (None, None, false));
    nodes[0].handle_timeout(now + Span::from_ms(500));
    assert_eq!(record(&nodes), before);
    nodes[0].compare();
    assert!(!nodes[0].has_to_compare());
    nodes[0].handle_timeout(now + Span::from_secs(1));
    let after = record(&nodes);
    assert_eq!((after.uploaded, after.exact), (Some(now), true));
    assert_eq!(after.finished, Some(now + Span::from_us(1) * after.received));
}

#[test]
fn without_a_detour_the_switch_adds_up_for_those_whose_group_is_below_it() {
    // Pairs cost the master so much that a move pays.
    let of = |more: &str| {
        let set = format!(
            "transport={{ name = 'reduce-switch', schedule = 'plan', plan_period = '2 ms'{more} }}"
        );
        run(POD, &[&set, "workload.reduce.reduce_cost='2 us'"])
    };
    let (around, below) = (of(""), of(", detour = false"));
    assert_eq!((around.exact, below.exact), (4, 4), "{around:?} {below:?}");
    assert!(below.to_master < below.to_master_bound * 1.04, "{below:?}");
    assert!(below.reconfigurations >= 1, "the second group moves below the switch: {below:?}");
    // Where circuits cannot move in time, the masters of the other group add up themselves.
    let set = "transport={ name = 'reduce-switch', schedule = 'plan', plan_period = '2 ms', detour = false }";
    let fixed = run(POD, &[set, "fabric.switching_delay='10 s'"]);
    assert_eq!((fixed.exact, fixed.reconfigurations), (4, 0), "{fixed:?}");
    let slots: Vec<bool> = fixed.jobs.iter().map(|job| job.slots > 0).collect();
    assert_eq!(slots, [true, false, true, false], "{fixed:?}");
}

#[test]
fn circuits_follow_measured_traffic_without_declarations() {
    let set = "transport={ name = 'reduce-master', schedule = 'traffic', plan_period = '2 ms' }";
    let measured = run(POD, &[set, "workload.reduce.groups=[[0, 4, 5, 6], [1, 2, 3, 7]]"]);
    assert_eq!((measured.exact, measured.to_master), (4, 1.0), "{measured:?}");
    assert!(measured.reconfigurations > 0, "{measured:?}");
}
