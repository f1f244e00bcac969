//! The scenario of Homa's SIGCOMM 2018 paper, on a fabric of 24 hosts instead of 144, must give the
//! paper's numbers for messages of all but the largest sizes.

use std::collections::BTreeMap;

use rackweave_lab::{Batch, Scenario};

/// A cell of the paper's figures 12 and 13: (upper edge of its bucket, median, 99th percentile of the slowdown), from
/// the authors' published data.
type Cell = (u64, f64, f64);
/// At 2, 28, 508 and 1733 bytes; messages of 2 bytes are not in our W1, whose smallest have 8.
const W1_AT_80: [Cell; 4] =
    [(8, 1.198, 1.838), (28, 1.268, 2.009), (508, 1.457, 2.856), (1733, 1.900, 8.317)];
const W3_AT_80: [Cell; 4] =
    [(32, 1.493, 2.220), (256, 1.421, 2.024), (1755, 1.228, 1.676), (21_984, 1.582, 3.949)];
const W3_AT_50: [Cell; 4] =
    [(32, 1.275, 2.035), (256, 1.230, 1.869), (1755, 1.109, 1.526), (21_984, 1.270, 2.556)];

/// Runs one case of the scenario on three leaves of eight hosts, with messages until `stop`. Uplinks carry what the hosts
/// send, as in the paper; queues and grants are then much the same, for a seventh of the work.
fn smaller(workload: &str, load: f64, stop: &str) -> BTreeMap<u64, (f64, f64)> {
    let sets = [
        "fabric.leaves=3".to_owned(),
        "fabric.hosts_per_leaf=8".to_owned(),
        "fabric.spines=2".to_owned(),
        format!("workload.stop={stop:?}"),
    ];
    let mut scenario = Scenario::load("papers/homa-sigcomm18", &sets, None).unwrap();
    scenario.points.retain(|point| {
        let is = |key: &str, value: serde_json::Value| {
            point.set.iter().any(|(name, set)| name == key && *set == value)
        };
        is("workload.sizes", workload.into()) && is("workload.load", load.into())
    });
    assert_eq!(scenario.points.len(), 1);
    let results = Batch::new(scenario).run(Some(1)).unwrap();
    assert_eq!(results.warnings().next(), None);
    let summary = &results.points[0].summary;
    assert_eq!((summary.drops, summary.end), (0, "all done"));
    let buckets = summary.by_size.iter();
    buckets
        .filter_map(|bucket| Some((bucket.up_to_bytes?, (bucket.p50, bucket.p99_by_receiver))))
        .collect()
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
    check("W1", &smaller("W1", 0.8, "4 ms"), &W1_AT_80);
}

#[test]
fn messages_of_a_data_center_take_as_long_as_in_the_paper() {
    check("W3", &smaller("W3", 0.8, "40 ms"), &W3_AT_80);
    check("W3", &smaller("W3", 0.5, "40 ms"), &W3_AT_50);
}
