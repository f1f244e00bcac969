//! The scenario of Homa's SIGCOMM 2018 paper, on a fabric of 24 hosts instead of 144, must give the
//! paper's numbers for messages of all but the largest sizes.

use std::collections::BTreeMap;

use rackweave_lab::{Batch, Scenario};

/// A cell of the paper's figures 12 and 13 at 80 % load: (upper edge of our bucket around it, median,
/// 99th percentile of the slowdown), from the authors' published data.
type Cell = (u64, f64, f64);
/// At 2, 28, 508 and 1733 bytes; messages of 2 bytes are not in our W1, whose smallest have 8.
const W1: [Cell; 4] = [(8, 1.20, 1.84), (30, 1.27, 2.01), (540, 1.46, 2.86), (1850, 1.90, 8.32)];
/// At 32, 256, 1755 and 21984 bytes.
const W3: [Cell; 4] =
    [(36, 1.49, 2.22), (260, 1.42, 2.02), (1800, 1.23, 1.68), (23_500, 1.58, 3.95)];

/// Runs one case of the scenario on three leaves of eight hosts. Uplinks carry what the hosts send, as
/// in the paper; queues and grants are then much the same, for a seventh of the work.
fn smaller(workload: &str, warmup: &str, messages: u32) -> BTreeMap<u64, (f64, f64)> {
    let sets = [
        "fabric.leaves=3".to_owned(),
        "fabric.hosts_per_leaf=8".to_owned(),
        "fabric.spines=2".to_owned(),
        format!("measure.warmup={warmup:?}"),
        format!("measure.messages={messages}"),
    ];
    let mut scenario = Scenario::load("papers/homa-sigcomm18", &sets, None).unwrap();
    scenario.points.retain(|point| point.set[0].1 == workload);
    assert_eq!(scenario.points.len(), 1);
    let results = Batch::new(scenario).run(Some(1)).unwrap();
    assert_eq!(results.warnings().next(), None);
    let buckets = results.points[0].summary.by_size.iter();
    buckets.filter_map(|bucket| Some((bucket.up_to_bytes?, (bucket.p50, bucket.p99)))).collect()
}

/// The bounds of the claim `homa-sigcomm`: 15 % for medians, 30 % for 99th percentiles.
fn check(workload: &str, measured: &BTreeMap<u64, (f64, f64)>, cells: &[Cell]) {
    for (edge, paper_p50, paper_p99) in cells {
        let (p50, p99) = measured[edge];
        let text = format!(
            "{workload} at {edge} bytes: {p50:.2} / {p99:.2}, in the paper {paper_p50} / {paper_p99}"
        );
        assert!((p50 / paper_p50 - 1.0).abs() <= 0.15, "{text}");
        assert!((p99 / paper_p99 - 1.0).abs() <= 0.30, "{text}");
    }
}

#[test]
fn memcached_messages_take_as_long_as_in_the_paper() {
    check("W1", &smaller("W1", "2 ms", 400_000), &W1);
}

#[test]
fn messages_of_a_data_center_take_as_long_as_in_the_paper() {
    check("W3", &smaller("W3", "5 ms", 200_000), &W3);
}
