use std::path::Path;

use super::ReduceSummary;
use crate::run::Batch;
use crate::scenario::Scenario;

fn run(text: &str, sets: &[&str]) -> ReduceSummary {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let scenario = Scenario::parse("test.toml", text, Path::new("."), &sets, None).unwrap();
    let results = Batch::new(scenario).run(Some(1)).unwrap();
    assert!(results.summary.failures.is_empty(), "{:?}", results.summary.failures);
    results.points[0].summary.reduce.clone().unwrap()
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
        ("{ kind = 'crash', place = 'host 1' }", "do not crash"),
    ] {
        let sets = [format!("faults=[{fault}]")];
        let error = Scenario::parse("test.toml", ONE, Path::new("."), &sets, None).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn the_published_rule_is_not_exact() {
    let summary =
        run(ONE, &["transport={ name = 'reduce-switch', rule = 'counter', slots = 65536 }"]);
    assert_eq!((summary.exact, summary.finished), (0, 1), "{summary:?}");
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
    transport = { name = 'reduce-switch', schedule = 'plan' }
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
    let planned = run(POD, &["transport={ name = 'reduce-master', schedule = 'plan' }"]);
    assert_eq!((planned.exact, planned.to_master), (4, 1.0), "{planned:?}");
    assert!(planned.reconfigurations > 0, "{planned:?}");
}

#[test]
fn circuits_between_tors_are_planned_too() {
    let pod = "fabric={ topology = 'tor-circuits', tors = [4, 2, 2], circuit_ports = [2, 1, 1], uplinks = 1,
        core_link = '1 Gbps', circuits = [[0, 1], [0, 2]], switching_delay = '100 us' }";
    let planned = run(POD, &[&pod.replace('\n', " ")]);
    assert_eq!((planned.exact, planned.finished), (4, 4), "{planned:?}");
}
