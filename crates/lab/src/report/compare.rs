//! The best point of a comparison, and warnings about points, for the terminal and the page.

use std::collections::BTreeSet;
use std::ops::Range;

use super::number;
use crate::results::columns::{Better, Column, POINT, STREAM, Shown, Unit, Value};
use crate::results::{PointResult, PointSummary, SizeBucket, StreamSummary};

/// A column that the report shows, with its presentation.
pub(super) type ShownColumn<T> = (&'static Column<T>, Shown);

/// Returns the columns of `all` that the report shows.
pub(super) fn shown<T>(all: &'static [Column<T>]) -> impl Iterator<Item = ShownColumn<T>> {
    all.iter().filter_map(|column| Some((column, column.shown?)))
}

/// Returns the shown measures of points, without those that are zero or missing for all of them.
pub(super) fn measures(points: &[PointResult]) -> Vec<ShownColumn<PointSummary>> {
    let says = |column: &Column<PointSummary>| {
        points.iter().any(|point| (column.get)(&point.summary).number() > 0.0)
    };
    shown(POINT).filter(|(column, shown)| !shown.optional || says(column)).collect()
}

/// Returns the shown columns of streams, without those that are zero or missing for all of them.
pub(super) fn stream_columns(points: &[PointResult]) -> Vec<ShownColumn<StreamSummary>> {
    let says = |column: &Column<StreamSummary>| {
        points.iter().flat_map(streams).any(|stream| (column.get)(stream).number() > 0.0)
    };
    shown(STREAM).filter(|(column, shown)| !shown.optional || says(column)).collect()
}

/// Formats a value for people.
pub(super) fn text(value: &Value<'_>, unit: Unit) -> String {
    match (value, unit) {
        (Value::Text(text), _) => text.clone().into_owned(),
        (Value::Count(n), Unit::Count) => number::count(*n),
        (value, Unit::Bytes) => number::bytes(value.number()),
        (value, Unit::Micros) => number::micros(value.number()),
        (value, Unit::None | Unit::Count) => number::short(value.number()),
    }
}

/// Formats a measure of a point, with the confidence interval if it is a mean over seeds.
pub(super) fn measure(point: &PointSummary, (column, shown): ShownColumn<PointSummary>) -> String {
    let mean = text(&(column.get)(point), shown.unit);
    let half = half_width(point, column.name);
    // A narrower interval would not change the three digits of the mean.
    if half > 0.001 * (column.get)(point).number().abs() {
        format!("{mean} \u{b1}{}", text(&Value::Real(half), shown.unit))
    } else {
        mean
    }
}

/// Returns half the width of the confidence interval of a measure, by its name in CSV files; 0 if none is known.
pub(super) fn half_width(point: &PointSummary, name: &str) -> f64 {
    let Some(spread) = &point.over_seeds else { return 0.0 };
    let half = match name {
        "slowdown_p50" => spread.slowdown.p50,
        "slowdown_p99" => spread.slowdown.p99,
        "slowdown_p999" => spread.slowdown.p999,
        "slowdown_max" => spread.slowdown.max,
        "slowdown_mean" => spread.slowdown.mean,
        "latency_p50_us" => spread.latency_us.p50,
        "latency_p99_us" => spread.latency_us.p99,
        "latency_p999_us" => spread.latency_us.p999,
        "latency_max_us" => spread.latency_us.max,
        "latency_mean_us" => spread.latency_us.mean,
        "goodput_gbps" => spread.goodput_gbps,
        _ => 0.0,
    };
    if half.is_finite() { half } else { 0.0 }
}

/// Returns which points are the best in a column.
pub(super) fn best_in(
    points: &[PointResult],
    (column, shown): ShownColumn<PointSummary>,
) -> Vec<bool> {
    if shown.better == Better::Neither {
        return vec![false; points.len()];
    }
    best(points, shown.better == Better::Lower, |point| {
        let is_valid = !shown.of_messages || point.summary.is_complete();
        let value = if is_valid { (column.get)(&point.summary).number() } else { f64::NAN };
        (value, half_width(&point.summary, column.name))
    })
}

/// Returns which points have the best `value` among those that can be compared: where groups were run at several values
/// of a sweep, those at the same value. Returns none unless two values differ. A value that is not finite is never
/// best. With each value is half the width of its confidence interval: those whose intervals meet the best one's do not
/// differ from it.
pub(super) fn best(
    points: &[PointResult],
    lower: bool,
    value: impl Fn(&PointResult) -> (f64, f64),
) -> Vec<bool> {
    let several_groups = points.iter().any(|p| p.summary.label != points[0].summary.label);
    let class = |p: &PointResult| if several_groups { p.variant_label() } else { String::new() };
    let classes: Vec<String> = points.iter().map(class).collect();
    let values: Vec<(f64, f64)> = points.iter().map(value).collect();
    (0..points.len())
        .map(|i| {
            let rivals = || {
                let alike = values.iter().zip(&classes).filter(|(_, class)| **class == classes[i]);
                alike.map(|(value, _)| *value).filter(|(value, _)| value.is_finite())
            };
            let low = rivals().min_by(|a, b| a.0.total_cmp(&b.0));
            let high = rivals().max_by(|a, b| a.0.total_cmp(&b.0));
            let (Some(low), Some(high)) = (low, high) else { return false };
            let winner = if lower { low } else { high };
            values[i].0.is_finite() && !are_close(low, high) && are_close(values[i], winner)
        })
        .collect()
}

/// Returns whether two values, each with half the width of its confidence interval, look equal: when written with three digits, or
/// because their intervals meet.
pub(super) fn are_close((a, a_half): (f64, f64), (b, b_half): (f64, f64)) -> bool {
    (a - b).abs() <= (0.0005 * b.abs()).max(a_half + b_half)
}

/// Returns the streams beside the measured one, and all streams together.
pub(crate) fn streams(point: &PointResult) -> impl Iterator<Item = &StreamSummary> {
    point.summary.background.iter().chain(&point.summary.all_streams)
}

/// Describes what is wrong with a point; `None` if nothing is.
pub(super) fn warning(point: &PointResult) -> Option<String> {
    let summary = &point.summary;
    if summary.is_complete() {
        return None;
    }
    let t = summary.messages;
    let mut parts = Vec::new();
    for (count, what) in [(t.failed, "failed"), (t.unfinished, "unfinished")] {
        if count > 0 {
            parts.push(format!("{} {what}", number::grouped(count)));
        }
    }
    let missing = if parts.is_empty() {
        String::new()
    } else {
        format!("of {} messages {}; ", number::grouped(t.started), parts.join(" and "))
    };
    let left_out = match t.left_out {
        0 => "",
        _ => {
            "; unfinished messages are left out of all statistics, which makes long messages look better than \
              they are"
        }
    };
    Some(format!("{}: {missing}the run ended with \"{}\"{left_out}", point.label, summary.end))
}

/// Divides points into ranges of adjacent points with the same buckets; each range is a table.
pub(super) fn with_equal_buckets(points: &[PointResult]) -> Vec<Range<usize>> {
    let edges =
        |p: &PointResult| -> Vec<u64> { p.summary.by_size.iter().map(SizeBucket::edge).collect() };
    let mut from = 0;
    let alike = points.chunk_by(|a, b| edges(a) == edges(b));
    alike
        .map(|chunk| {
            let range = from..from + chunk.len();
            from = range.end;
            range
        })
        .collect()
}

/// Returns the bucket edges of all points together, ascending, without buckets that are empty in all of them.
pub(super) fn bucket_edges(points: &[PointResult]) -> Vec<u64> {
    let buckets = points.iter().flat_map(|p| &p.summary.by_size);
    let edges: BTreeSet<u64> = buckets.filter(|b| b.count > 0).map(SizeBucket::edge).collect();
    edges.into_iter().collect()
}

/// Returns the bucket of a point with this edge, if it has messages.
pub(super) fn bucket(point: &PointResult, edge: u64) -> Option<&SizeBucket> {
    point.summary.by_size.iter().find(|bucket| bucket.edge() == edge && bucket.count > 0)
}

/// Returns which points have the lowest `value` in the bucket with this edge.
pub(super) fn best_in_bucket(
    points: &[PointResult],
    edge: u64,
    value: fn(&SizeBucket) -> f64,
) -> Vec<bool> {
    best(points, true, |p| {
        let bucket = bucket(p, edge).filter(|_| p.summary.is_complete());
        (bucket.map_or(f64::NAN, value), 0.0)
    })
}
