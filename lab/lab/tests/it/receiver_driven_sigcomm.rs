//! The scenario of pHost and NDP compared with Homa, on a fabric of 24 hosts instead of 144: the
//! cells that hold, within 25 % of the published means.

use rackweave_lab::{Batch, Scenario};

/// Runs the case of this load on three leaves of eight hosts, as the test of Homa's scenario does.
fn mean(load: f64, warmup: &str, time_limit: &str) -> f64 {
    let sets = [
        "fabric.leaves=3".to_owned(),
        "fabric.hosts_per_leaf=8".to_owned(),
        "fabric.spines=2".to_owned(),
        format!("measure.warmup={warmup:?}"),
        format!("measure.time_limit={time_limit:?}"),
    ];
    let mut scenario =
        Scenario::load("papers/receiver-driven-sigcomm18", &sets, None).expect("a right scenario");
    scenario.points.retain(|point| point.set.iter().any(|(_, set)| set.as_f64() == Some(load)));
    assert_eq!(scenario.points.len(), 1);
    let results = Batch::new(scenario).run(Some(1)).expect("it runs");
    results.points[0].summary.slowdown.mean
}

fn check(measured: f64, published: f64) {
    assert!((measured / published - 1.0).abs() <= 0.25, "{measured:.2}, published {published}");
}

/// Of pHost's cells only W3's mean is the published one under every reading of its load.
#[test]
fn phost_takes_as_long_as_in_the_paper_with_w3() {
    check(mean(0.683, "10 ms", "25 ms"), 1.73);
}

#[test]
fn ndp_takes_as_long_as_in_the_paper_at_half_load() {
    check(mean(0.443, "50 ms", "150 ms"), 2.65);
}
