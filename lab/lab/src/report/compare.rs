//! The best point of a comparison, and warnings about points, for the terminal and the page.

use std::collections::BTreeSet;
use std::ops::Range;

use super::number;
use crate::results::columns::{
    Better, COLLECTIVE_US, Column, OF_COLLECTIVES, POINT, STREAM, Shown, Unit, Value,
};
use crate::results::{PointResult, PointSummary, SizeBucket, StreamSummary};

/// The name of the central scheduler: what transports could still gain, and none of them.
const BOUND: &str = "srpt-oracle";

/// A column that the report shows, with its presentation.
pub(crate) type ShownColumn<T> = (&'static Column<T>, Shown);

/// Returns the columns of `all` that the report shows.
pub(crate) fn shown<T>(all: &'static [Column<T>]) -> impl Iterator<Item = ShownColumn<T>> {
    all.iter().filter_map(|column| Some((column, column.shown?)))
}

/// Returns the shown measures of points, without measures that are zero or missing for all of them.
pub(super) fn measures(points: &[PointResult]) -> Vec<ShownColumn<PointSummary>> {
    let says = |column: &Column<PointSummary>| {
        points.iter().any(|point| (column.get)(&point.summary).number() > 0.0)
    };
    let has_collectives = points.iter().any(|point| point.summary.collective.is_some());
    let fits = |shown: &Shown| has_collectives || shown.group != OF_COLLECTIVES;
    shown(POINT)
        .filter(|(column, shown)| fits(shown) && (!shown.optional || says(column)))
        .collect()
}

/// Returns the shown columns of streams, without columns that are zero or missing for all of them.
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

/// Returns half the width of the confidence interval of a measure, by its name in CSV files: 0 of a single run, and NaN of a mean over
/// seeds whose spread is not known.
pub(super) fn half_width(point: &PointSummary, name: &str) -> f64 {
    let Some(spread) = &point.over_seeds else { return 0.0 };
    match name {
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
        COLLECTIVE_US => spread.collective_us.map_or(f64::NAN, |it| it.half_width),
        _ => f64::NAN,
    }
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

/// Returns which points have the best `value` among comparable ones: where groups were run at several values of a
/// sweep, those at the same value. Returns none unless two values differ. A value that is not finite is never
/// best. With each value is half the width of its confidence interval: those whose intervals meet the best one's do not
/// differ from it, and one whose interval is not known (NaN) is not compared. The central scheduler, which is a bound and no
/// transport, is never best among transports.
pub(super) fn best(
    points: &[PointResult],
    lower: bool,
    value: impl Fn(&PointResult) -> (f64, f64),
) -> Vec<bool> {
    let several_groups = points.iter().any(|p| p.summary.label != points[0].summary.label);
    let class = |p: &PointResult| if several_groups { p.variant_label() } else { String::new() };
    let classes: Vec<String> = points.iter().map(class).collect();
    let known = |point: &PointResult| {
        let (value, half) = value(point);
        let is_compared = !half.is_nan() && competes(points, point) && !point.lacks_rivals;
        (if is_compared { value } else { f64::NAN }, half)
    };
    let values: Vec<(f64, f64)> = points.iter().map(known).collect();
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

/// Returns whether a point may be the best: the bound among transports may not.
pub(super) fn competes(points: &[PointResult], point: &PointResult) -> bool {
    let is_bound = |point: &PointResult| point.summary.transport == BOUND;
    !is_bound(point) || points.iter().all(is_bound)
}

/// Returns whether two values, each with half the width of its confidence interval, look equal: when written with three digits, or
/// because their intervals meet. Values without a known interval do not.
pub(super) fn are_close((a, a_half): (f64, f64), (b, b_half): (f64, f64)) -> bool {
    let halves = a_half + b_half;
    !halves.is_nan() && (a - b).abs() <= (0.0005 * b.abs()).max(halves)
}

/// Returns the background streams, and all streams together.
pub(crate) fn streams(point: &PointResult) -> impl Iterator<Item = &StreamSummary> {
    point.summary.background.iter().chain(&point.summary.all_streams)
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

/// Returns which points have the lowest `value` in the bucket with this edge: none of means over seeds, as their spread within a bucket
/// is not recorded.
pub(super) fn best_in_bucket(
    points: &[PointResult],
    edge: u64,
    value: fn(&SizeBucket) -> f64,
) -> Vec<bool> {
    best(points, true, |p| {
        let bucket = bucket(p, edge).filter(|_| p.summary.is_complete());
        let half = if p.summary.over_seeds.is_some() { f64::NAN } else { 0.0 };
        (bucket.map_or(f64::NAN, value), half)
    })
}

#[cfg(test)]
mod tests {
    use super::super::demo;
    use super::*;
    use crate::results::{SeedSpread, Stats};

    const ALL: Stats = Stats { p50: 0.1, p99: 0.1, mean: 0.1, p999: 0.1, max: 0.1 };

    /// Points that are complete, and their lowest p99 slowdown first.
    fn points(spread: impl Fn(usize) -> Option<Stats>) -> Vec<PointResult> {
        let mut points = demo::transports().points;
        points.truncate(2);
        for (nth, point) in points.iter_mut().enumerate() {
            let counts = &mut point.summary.messages;
            (counts.failed, counts.unfinished) = (0, 0);
            point.summary.end = "all done";
            point.variant.clear();
            point.summary.slowdown.p99 = 2.0 + 2.0 * nth as f64;
            for bucket in &mut point.summary.by_size {
                (bucket.count, bucket.p99) = (100, 2.0 + 2.0 * nth as f64);
            }
            point.summary.over_seeds = spread(nth).map(|stats| SeedSpread {
                seeds: vec![1, 2],
                missing: Vec::new(),
                slowdown: stats,
                latency_us: stats,
                goodput_gbps: 0.1,
                collective_us: None,
                background: Vec::new(),
            });
        }
        points
    }

    fn best_p99(points: &[PointResult]) -> Vec<bool> {
        let p99 = shown(POINT).find(|(column, _)| column.name == "slowdown_p99").expect("shown");
        best_in(points, p99)
    }

    #[test]
    fn a_bound_is_not_the_best_of_the_transports() {
        let mut points = points(|_| None);
        points.push(points[1].clone());
        points[0].summary.transport = BOUND.to_owned();
        points[2].summary.slowdown.p99 = 5.0;
        assert_eq!(best_p99(&points), [false, true, false]);
        // With others of its kind it is compared.
        for point in &mut points {
            point.summary.transport = BOUND.to_owned();
        }
        assert_eq!(best_p99(&points), [true, false, false]);
    }

    /// The seeds' spread of a bucket is not recorded: its mean cannot be called better than another.
    #[test]
    fn no_bucket_is_best_over_seeds() {
        let of = |points: &[PointResult]| {
            let edge = bucket_edges(points)[0];
            best_in_bucket(points, edge, |bucket| bucket.p99)
        };
        assert_eq!(of(&points(|_| None)), [true, false]);
        assert_eq!(of(&points(|_| Some(ALL))), [false, false]);
    }

    /// One seed of two failed: what is left has no interval.
    #[test]
    fn a_mean_without_an_interval_is_not_compared() {
        assert_eq!(best_p99(&points(|_| Some(ALL))), [true, false]);
        let one_seed = Stats { p99: f64::NAN, ..ALL };
        assert_eq!(
            best_p99(&points(|nth| Some(if nth == 0 { one_seed } else { ALL }))),
            [false; 2]
        );
        assert_eq!(
            best_p99(&points(|nth| Some(if nth == 1 { one_seed } else { ALL }))),
            [false; 2]
        );
    }

    #[test]
    fn intervals_that_are_not_known_are_not_close() {
        assert!(!are_close((1.0, f64::NAN), (1.0001, 0.1)));
        assert!(are_close((1.0, 0.2), (1.2, 0.1)));
    }
}
