
//! The schemes against each other, small.

use std::path::Path;

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
    results.points[point].summary.cast.as_ref().unwrap()
}

#[test]
fn copies_in_the_application_cross_the_senders_links_once_for_each_receiver() {
    let results = run(&["sweep.transport.name=['cast-unicast', 'cast-tcp', 'cast-chain']"]);
    for (point, copies) in [(0, 4.0), (1, 4.0), (2, 1.0)] {
        let cast = cast(&results, point);
        eprintln!("{point} {:?} {:?}", results.points[point].summary.end, cast);
        eprintln!("{:?}", results.points[point].summary.drops_by_reason);
        assert_eq!((cast.missing_bytes, cast.lost, cast.files), (0, 0, 3));
        assert!((copies..copies * 1.15).contains(&cast.copies), "{point}: {}", cast.copies);
        assert_eq!(results.points[point].summary.messages.completed, 12);
        assert_eq!(results.points[point].summary.warning(), None);
    }
}

#[test]
fn without_cost_the_links_decide_and_with_cost_the_processes() {
    let results = run(&["workload.cast.files=20 MB"]);
    // Two copies over each of two links of 10 Gbps, with headers.
    let bound = 2.0 * 20e6 * 8.0 / 10e9 * 1e6 / 0.9616;
    let took = cast(&results, 0).execution_us;
    assert!((bound..bound * 1.01).contains(&took), "{took} {bound}");
    let results = run(&[
        "workload.cast.files=20 MB",
        "workload.cast.cpu.copy_rate=8 Gbps",
        "sweep.workload.cast.processes=[1, 2, 4]",
    ]);
    // 20 ms of copying for each receiver.
    let took: Vec<f64> = (0..3).map(|point| cast(&results, point).execution_us).collect();
    assert!((80e3..81e3).contains(&took[0]) && (40e3..41e3).contains(&took[1]), "{took:?}");
    assert!((bound..bound * 1.01).contains(&took[2]), "{took:?}");
}

#[test]
fn a_lost_datagram_is_told_as_unfinished() {
    let results = run(&[
        "faults=[{ kind = 'loss', place = 'link of host 1', probability = 0.05 }]",
        "measure.time_limit=50 ms",
    ]);
    let summary = &results.points[0].summary;
    assert!(summary.messages.unfinished > 0 && summary.warning().is_some());
    assert!(cast(&results, 0).execution_us.is_nan() && cast(&results, 0).missing_bytes > 0);
    // Those over TCP are repaired.
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
    // Four copies of each file, one after the other; the last receiver has it last.
    assert!((2000.0..2100.0).contains(&cast.send_us.max), "{:?}", cast.send_us);
    assert!((12.0..60.0).contains(&cast.send_us.p10), "{:?}", cast.send_us);
    // From the first file to the second and from there to the third, for four receivers.
    assert!((800.0..900.0).contains(&cast.wait_us.max), "{:?}", cast.wait_us);
    let total: f64 = cast.send_us.mean * 3.0;
    assert!((cast.execution_us - total).abs() < 1.0, "{} {total}", cast.execution_us);
}
