//! Results as the [report](crate::report) wants them.

use std::collections::BTreeSet;

use rackweave_sim::result::QueueSample;

use crate::cast::ReceiverSummary;
use crate::report::model;
use crate::results::stats::cdf;
use crate::results::{OF_TRANSPORT, PointResult, Results, Stats, are_labelled, plain};
use crate::scenario::Scenario;

/// Most points of a queue's curve: about what a chart has pixels for.
const QUEUE_POINTS: usize = 600;

/// The input of a report.
pub(crate) fn report(scenario: &Scenario, results: &Results, command: &str) -> model::Report {
    model::Report {
        title: scenario.title.clone(),
        description: scenario.description.clone(),
        scenario_toml: scenario.resolved.clone(),
        command: command.to_owned(),
        version: results.summary.version.to_owned(),
        seed: scenario.seed,
        facts: scenario.facts(),
        points: points(results),
    }
}

/// The points of a report or table.
pub(crate) fn points(results: &Results) -> Vec<model::Point> {
    let mut points: Vec<model::Point> = results.points.iter().map(point).collect();
    // How a point is measured is not what is compared, nor is what a transport's label stands for,
    // unless nothing else tells points apart.
    let labelled = are_labelled(&results.points);
    let compared = |point: &model::Point| -> Vec<(String, String)> {
        let aside =
            |key: &str| key.starts_with("measure.") || (labelled && key.starts_with(OF_TRANSPORT));
        point.set.iter().filter(|(key, _)| !aside(key)).cloned().collect()
    };
    let told: BTreeSet<_> =
        points.iter().map(|point| (point.group.clone(), compared(point))).collect();
    if told.len() == points.len() {
        for point in &mut points {
            point.set = compared(point);
        }
    }
    points
}

fn point(point: &PointResult) -> model::Point {
    let summary = &point.summary;
    model::Point {
        label: point.label.clone(),
        group: summary.label.clone(),
        set: (summary.set.iter())
            .filter(|(key, _)| *key != "transport.label")
            .map(|(key, value)| (key.clone(), plain(value)))
            .filter(|(_, value)| *value != summary.transport)
            .collect(),
        by_size: summary
            .by_size
            .iter()
            .map(|bucket| model::SizeBucket {
                up_to_bytes: bucket.up_to_bytes.unwrap_or(u64::MAX),
                count: bucket.count,
                slowdown: model::Stats { p50: bucket.p50, p99: bucket.p99, mean: bucket.mean },
            })
            .collect(),
        slowdown_curve: point
            .slowdown_curve
            .iter()
            .map(|step| model::CurvePoint {
                count_fraction: step.count_fraction,
                size_bytes: step.size_bytes as f64,
                p50: step.p50,
                p99: step.p99,
            })
            .collect(),
        latency_cdf: point.latency_cdf.clone(),
        queue_series: thinned(&point.queue_series, QUEUE_POINTS),
        totals: totals(point),
        cast: cast(point),
    }
}

fn cast(point: &PointResult) -> Option<model::Cast> {
    let (summary, result) = (point.summary.cast.as_ref()?, point.cast.as_ref()?);
    let receiver = |r: &ReceiverSummary| (r.host, r.completed_us, r.longest_gap_us);
    Some(model::Cast {
        copied_by: summary.copied_by.to_owned(),
        execution_us: summary.execution_us,
        receiver_gbps: summary.receiver_gbps,
        copies: summary.copies,
        send_us: (summary.send_us.p50, summary.send_us.p99),
        wait_us: (summary.wait_us.p50, summary.wait_us.p99),
        repaired_bytes: summary.repaired_bytes,
        detached: summary.detached,
        lost: summary.lost,
        send_cdf: cdf(&mut result.send_times()),
        wait_cdf: cdf(&mut result.wait_times()),
        receivers: summary.receivers.iter().map(receiver).collect(),
    })
}

fn totals(point: &PointResult) -> model::Totals {
    let summary = &point.summary;
    let by_reason = &summary.drops_by_reason;
    model::Totals {
        slowdown: stats(summary.slowdown),
        latency_us: stats(summary.latency_us),
        goodput_gbps: summary.goodput_gbps,
        started: summary.messages.started,
        completed: summary.messages.completed,
        failed: summary.messages.failed,
        unfinished: summary.messages.unfinished,
        left_out: summary.messages.left_out,
        drops: summary.drops,
        drops_by_reason: by_reason
            .iter()
            .map(|(reason, drops)| (reason.clone(), drops.as_u64().unwrap_or(0)))
            .collect(),
        trims: summary.trims,
        ecn_marks: summary.ecn_marks,
        queue_mean_bytes: summary.queue_bytes.mean,
        queue_max_bytes: summary.queue_bytes.max as f64,
        end: summary.end.to_owned(),
    }
}

const fn stats(stats: Stats) -> model::Stats {
    model::Stats { p50: stats.p50, p99: stats.p99, mean: stats.mean }
}

/// At most `most` samples: each stands for several, with their highest maximum and mean total.
fn thinned(series: &[QueueSample], most: usize) -> Vec<model::QueueDepth> {
    let several = series.len().div_ceil(most).max(1);
    series
        .chunks(several)
        .map(|chunk| model::QueueDepth {
            time_us: chunk[0].at.as_us_f64(),
            max_bytes: chunk.iter().map(|sample| sample.max_bytes).max().unwrap_or(0) as f64,
            total_bytes: chunk.iter().map(|sample| sample.total_bytes as f64).sum::<f64>()
                / chunk.len() as f64,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackweave_core::Time;

    #[test]
    fn thinning_keeps_the_highest_queue() {
        let sample = |i: u64| QueueSample { at: Time(i), max_bytes: i % 1000, total_bytes: 7 };
        let series: Vec<QueueSample> = (0..5000).map(sample).collect();
        let thin = thinned(&series, 600);
        assert!(thin.len() <= 600);
        assert!(thin.iter().any(|depth| depth.max_bytes == 999.0));
        assert!(thin.iter().all(|depth| depth.total_bytes == 7.0));
        assert!(thinned(&[], 600).is_empty());
    }
}
