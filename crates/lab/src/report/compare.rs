//! The best point of a comparison, and warnings about points, for the terminal and the page.

use std::collections::BTreeSet;
use std::ops::Range;

use super::number;
use crate::results::columns::{Better, Column, POINT, Shown, Unit, Value};
use crate::results::{PointResult, PointSummary, SizeBucket, short_key};

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
fn half_width(point: &PointSummary, name: &str) -> f64 {
    let Some(spread) = &point.over_seeds else { return 0.0 };
    let half = match name {
        "slowdown_p50" => spread.slowdown.p50,
        "slowdown_p99" => spread.slowdown.p99,
        "slowdown_mean" => spread.slowdown.mean,
        "latency_p50_us" => spread.latency_us.p50,
        "latency_p99_us" => spread.latency_us.p99,
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
fn are_close((a, a_half): (f64, f64), (b, b_half): (f64, f64)) -> bool {
    (a - b).abs() <= (0.0005 * b.abs()).max(a_half + b_half)
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

/// Names the best point or group in a sentence; `None` if there is nothing to compare.
pub(super) fn verdict(points: &[PointResult]) -> Option<String> {
    let p99 = |p: &PointResult| p.summary.slowdown.p99;
    let mut ranked: Vec<&PointResult> =
        points.iter().filter(|p| p99(p).is_finite() && p.summary.is_complete()).collect();
    if ranked.len() < 2 {
        return None;
    }
    let variants = points.iter().map(PointResult::variant_label).collect::<BTreeSet<_>>();
    let several_groups = points.iter().any(|p| p.summary.label != points[0].summary.label);
    if several_groups && variants.len() > 1 {
        let wins = best(points, true, |p| {
            let value = if p.summary.is_complete() { p99(p) } else { f64::NAN };
            (value, half_width(&p.summary, "slowdown_p99"))
        });
        let mut count: Vec<(&str, usize)> = Vec::new();
        for (point, _) in points.iter().zip(wins).filter(|(_, won)| *won) {
            match count.iter_mut().find(|(group, _)| *group == point.summary.label) {
                Some((_, n)) => *n += 1,
                None => count.push((&point.summary.label, 1)),
            }
        }
        count.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        return match count[..] {
            [] => None,
            [(group, n)] if n == variants.len() => {
                Some(format!("{group} has the lowest p99 slowdown at all {n} {}.", values(points)))
            }
            _ => {
                let of: Vec<String> =
                    count.iter().map(|(group, n)| format!("{group} at {n}")).collect();
                let (of, all) = (of.join(", "), variants.len());
                Some(format!("Lowest p99 slowdown at the {all} {}: {of}.", values(points)))
            }
        };
    }
    ranked.sort_by(|a, b| p99(a).total_cmp(&p99(b)));
    let (first, rest) = ranked.split_first()?;
    let mut others: Vec<String> = rest
        .iter()
        .take(4)
        .map(|p| {
            format!(
                "{} {} ({} times)",
                p.label,
                number::short(p99(p)),
                number::short(p99(p) / p99(first))
            )
        })
        .collect();
    let with_half = |p: &PointResult| (p99(p), half_width(&p.summary, "slowdown_p99"));
    let tied = rest.iter().filter(|p| are_close(with_half(p), with_half(first))).count();
    let is_tied = match (first.summary.over_seeds.is_some(), tied) {
        (false, _) | (true, 0) => String::new(),
        (true, 1) => format!(" The seeds do not tell {} from {}.", first.label, rest[0].label),
        (true, n) => format!(" The seeds do not tell {} from the next {n}.", first.label),
    };
    if rest.len() > others.len() {
        others.push(format!("{} more", rest.len() - others.len()));
    }
    let missing = points.len() - ranked.len();
    let not_compared = match missing {
        0 => String::new(),
        1 => " One point with missing messages is not compared.".to_owned(),
        n => format!(" {n} points with missing messages are not compared."),
    };
    Some(format!(
        "Lowest p99 slowdown: {} with {}; {}.{is_tied}{not_compared}",
        first.label,
        number::short(p99(first)),
        others.join(", ")
    ))
}

/// Names the values of the sweep other than the groups: "values of load" if it has one key.
fn values(points: &[PointResult]) -> String {
    let keys: BTreeSet<&str> =
        points.iter().flat_map(PointResult::variant).map(|(key, _)| short_key(key)).collect();
    match (keys.first(), keys.len()) {
        (Some(key), 1) => format!("values of {key}"),
        _ => "combinations of the sweep".to_owned(),
    }
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
