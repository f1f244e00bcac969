//! The verdict: who has the lowest slowdown, and who loses what by it.

use std::collections::BTreeSet;

use super::compare::{are_close, best, competes, half_width};
use super::number;
use crate::results::{PointResult, StreamSpread, StreamSummary, short_key};

/// Says in sentences which point or group is the best in what; `None` if there is nothing to compare.
///
/// It compares points that differ in nothing but the transport (and what follows from it). Of goodput it says nothing: over the
/// measured time, which ends with the last message, it depends on that message.
pub(super) fn verdict(points: &[PointResult]) -> Option<String> {
    let winner = sole_leader(points);
    let first = measured(points);
    let latency = winner.as_deref().and_then(|winner| latency(points, winner));
    let streams = points.iter().map(|point| point.summary.background.len()).min().unwrap_or(0);
    let beside = (0..streams).filter_map(|nth| beside(points, nth, winner.as_deref()));
    let sentences: Vec<String> = first.into_iter().chain(latency).chain(beside).collect();
    (!sentences.is_empty()).then(|| sentences.join(" "))
}

/// A measure of points: its value and half the width of its confidence interval.
type Measure<'a> = &'a dyn Fn(&PointResult) -> (f64, f64);

/// Who has the lowest values of a measure.
struct Standings {
    /// The number of values of the sweep at which points are compared.
    classes: usize,
    /// The names of the groups that are the lowest, and at how many of these values; most first.
    leaders: Vec<(String, usize)>,
}

impl Standings {
    fn of(points: &[PointResult], measure: Measure<'_>) -> Self {
        let mut leaders: Vec<(String, usize)> = Vec::new();
        for (point, _) in points.iter().zip(best(points, true, measure)).filter(|(_, won)| *won) {
            let name = name(points, point);
            match leaders.iter_mut().find(|(leader, _)| *leader == name) {
                Some((_, n)) => *n += 1,
                None => leaders.push((name, 1)),
            }
        }
        leaders.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        Self { classes: classes(points).len(), leaders }
    }

    /// Returns the group that is the lowest at all values of the sweep without being equalled.
    fn sole_leader(self) -> Option<String> {
        match &self.leaders[..] {
            [(name, n)] if *n == self.classes => Some(name.clone()),
            _ => None,
        }
    }

    /// Names the leaders: "DCTCP at all 3 values of load".
    fn text(&self, points: &[PointResult]) -> String {
        let names = || self.leaders.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>();
        match &self.leaders[..] {
            _ if self.classes == 1 => names().join(" and "),
            [(name, n)] if *n == self.classes => format!("{name} at all {n} {}", values(points)),
            leaders => {
                let each: Vec<String> =
                    leaders.iter().map(|(name, n)| format!("{name} at {n}")).collect();
                format!("{} of the {} {}", each.join(", "), self.classes, values(points))
            }
        }
    }
}

/// Returns whether points of several groups are compared at several values of a sweep.
fn is_crossed(points: &[PointResult]) -> bool {
    has_several_groups(points) && classes(points).len() > 1
}

fn has_several_groups(points: &[PointResult]) -> bool {
    points.iter().any(|point| point.summary.label != points[0].summary.label)
}

/// Returns the values of the sweep within which points are compared.
fn classes(points: &[PointResult]) -> BTreeSet<String> {
    let class = |point: &PointResult| {
        if has_several_groups(points) { point.variant_label() } else { String::new() }
    };
    points.iter().map(class).collect()
}

fn name(points: &[PointResult], point: &PointResult) -> String {
    if is_crossed(points) { point.summary.label.clone() } else { point.label.clone() }
}

/// Returns the group that has the lowest slowdown of the measured messages at all values of the sweep.
fn sole_leader(points: &[PointResult]) -> Option<String> {
    let slowdown = |point: &PointResult| {
        let summary = &point.summary;
        let value = if summary.is_complete() { summary.slowdown.p99 } else { f64::NAN };
        (value, half_width(summary, "slowdown_p99"))
    };
    Standings::of(points, &slowdown).sole_leader()
}

/// Returns the smallest and largest factor between a group's value and the lowest one at the same value of the sweep.
fn factors(points: &[PointResult], measure: Measure<'_>, group: &str) -> Option<(f64, f64)> {
    let several = has_several_groups(points);
    let mut range: Option<(f64, f64)> = None;
    for point in points.iter().filter(|point| name(points, point) == group) {
        let rivals = points
            .iter()
            .filter(|rival| !several || rival.variant_label() == point.variant_label())
            .filter(|rival| competes(points, rival));
        let lowest = rivals.map(|rival| measure(rival).0).filter(|x| x.is_finite());
        let factor = measure(point).0 / lowest.reduce(f64::min)?;
        if !factor.is_finite() {
            return None;
        }
        let (low, high) = range.unwrap_or((factor, factor));
        range = Some((low.min(factor), high.max(factor)));
    }
    range
}

/// Says by how much a group that leads elsewhere is above the lowest; empty if its own values are missing.
fn loss(points: &[PointResult], measure: Measure<'_>, group: &str) -> String {
    let Some((low, high)) = factors(points, measure, group) else { return String::new() };
    let (low, high) = (number::short(low), number::short(high));
    let times = if low == high { low } else { format!("{low} to {high}") };
    format!("; with {group} it is {times} times as high")
}

/// Says so if the group with the lowest slowdown does not have the lowest latency: slowdown weighs all messages alike, and latency
/// over all sizes is that of the long ones.
fn latency(points: &[PointResult], winner: &str) -> Option<String> {
    let measure = |point: &PointResult| {
        let summary = &point.summary;
        let value = if summary.is_complete() { summary.latency_us.p99 } else { f64::NAN };
        (value, half_width(summary, "latency_p99_us"))
    };
    let standings = Standings::of(points, &measure);
    if standings.leaders.is_empty() || standings.leaders.iter().any(|(name, _)| name == winner) {
        return None;
    }
    let (leaders, loss) = (standings.text(points), loss(points, &measure, winner));
    Some(format!("The p99 latency over all sizes is lowest with {leaders}{loss}."))
}

/// Says with what a background stream has its lowest slowdown.
fn beside(points: &[PointResult], nth: usize, winner: Option<&str>) -> Option<String> {
    let measure = |point: &PointResult| {
        let stream = &point.summary.background[nth];
        let of = |spread: &StreamSpread| spread.slowdown.p99;
        let half = point.summary.over_seeds.as_ref();
        let half = half.map_or(0.0, |all| all.background.get(nth).map_or(f64::NAN, of));
        let value = if has_p99(stream) { stream.slowdown.p99 } else { f64::NAN };
        (value, half)
    };
    let standings = Standings::of(points, &measure);
    if standings.leaders.is_empty() {
        return None;
    }
    let what = stream_name(points, nth);
    let missing = points.iter().filter(|point| !has_p99(&point.summary.background[nth])).count();
    let not_compared = match missing {
        0 => String::new(),
        n => format!(" (not compared: {n} points with missing messages of it)"),
    };
    let leads = winner.is_some_and(|winner| {
        matches!(&standings.leaders[..], [(name, n)] if name == winner && *n == standings.classes)
    });
    if leads {
        let winner = winner.unwrap_or_default();
        return Some(format!(
            "{what} has its lowest p99 slowdown with {winner} too{not_compared}."
        ));
    }
    let leaders = standings.text(points);
    let loss = winner.map_or_else(String::new, |winner| loss(points, &measure, winner));
    Some(format!("{what} has its lowest p99 slowdown with {leaders}{loss}{not_compared}."))
}

/// Returns whether the 99th percentile of a stream is known: messages that are under way at the end of a run count with less than
/// they would have taken, which affects the percentile if they are more than one in a hundred.
const fn has_p99(stream: &StreamSummary) -> bool {
    let counts = &stream.messages;
    counts.failed == 0 && counts.completed > 0 && counts.unfinished * 100 <= counts.started
}

/// Names a background stream at the beginning of a sentence.
fn stream_name(points: &[PointResult], nth: usize) -> String {
    let streams = &points[0].summary.background;
    let StreamSummary { arrivals, label, .. } = &streams[nth];
    let alike = streams.iter().filter(|other| other.arrivals == *arrivals).count();
    let what = match arrivals.as_str() {
        "" => "stream".to_owned(),
        "incast" | "permutation" | "trace" | "closed-loop" => arrivals.replace('-', " "),
        "poisson" => "Poisson traffic".to_owned(),
        other => format!("{other} traffic"),
    };
    let fixed = points.iter().all(|point| point.summary.background[nth].label == *label);
    let over =
        if fixed && has_several_groups(points) { format!(" over {label}") } else { String::new() };
    match alike {
        1 => format!("The {what}{over} beside it"),
        _ => format!("The {what}{over} beside it (stream {})", nth + 1),
    }
}

fn not_compared(missing: usize) -> String {
    match missing {
        0 => String::new(),
        1 => " One point with missing messages is not compared.".to_owned(),
        n => format!(" {n} points with missing messages are not compared."),
    }
}

/// Names the best point or group by the slowdown of the measured messages; `None` if there is nothing to compare.
fn measured(points: &[PointResult]) -> Option<String> {
    let p99 = |p: &PointResult| p.summary.slowdown.p99;
    let known = points.iter().filter(|p| p99(p).is_finite() && p.summary.is_complete());
    let (mut ranked, bounds): (Vec<&PointResult>, Vec<&PointResult>) =
        known.partition(|point| competes(points, point));
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
        let sentence = match count[..] {
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
        let missing = points.iter().filter(|point| !point.summary.is_complete()).count();
        return sentence.map(|sentence| sentence + &not_compared(missing));
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
    let missing = points.len() - ranked.len() - bounds.len();
    let not_compared = not_compared(missing);
    let bounds: String = (bounds.iter())
        .map(|bound| format!(" The bound, {}, has {}.", bound.label, number::short(p99(bound))))
        .collect();
    Some(format!(
        "Lowest p99 slowdown: {} with {}; {}.{is_tied}{bounds}{not_compared}",
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

#[cfg(test)]
mod tests {
    use super::super::demo;
    use super::*;
    use crate::results::{SeedSpread, Stats};

    fn said(change: impl Fn(&mut PointResult)) -> String {
        let mut points = demo::incast().points;
        points.iter_mut().for_each(change);
        verdict(&points).expect("points differ")
    }

    #[test]
    fn the_winner_of_the_measured_messages_may_lose_the_incast() {
        assert_eq!(
            said(|_| ()),
            "homa has the lowest p99 slowdown at all 3 values of load. The incast beside it has its lowest p99 slowdown \
             with ndp at all 3 values of load; with homa it is 4.00 times as high."
        );
    }

    #[test]
    fn the_winner_may_win_the_incast_too() {
        let swapped = said(|point| {
            if point.summary.label == "ndp" {
                point.summary.background[0].slowdown.p99 *= 10.0;
            }
        });
        assert!(
            swapped.ends_with("The incast beside it has its lowest p99 slowdown with homa too."),
            "{swapped}"
        );
    }

    #[test]
    fn a_stream_with_messages_missing_has_no_rank() {
        let missing = said(|point| {
            if point.summary.label == "ndp" {
                point.summary.background[0].messages.failed = 1;
            }
        });
        assert!(!missing.contains("incast"), "nothing is left to compare it with: {missing}");
        let one = said(|point| {
            if point.label == "ndp, load 0.7" {
                point.summary.background[0].messages.unfinished = 5;
            }
        });
        assert!(one.contains("not compared: 1 points"), "{one}");
    }

    #[test]
    fn what_the_seeds_do_not_tell_apart_is_no_loss() {
        let wide = said(|point| {
            let stats = Stats { p99: 1e6, ..Stats::default() };
            let narrow = Stats { p99: 0.0, ..Stats::default() };
            point.summary.over_seeds = Some(SeedSpread {
                seeds: vec![1, 2],
                slowdown: narrow,
                latency_us: narrow,
                goodput_gbps: 0.0,
                background: vec![StreamSpread {
                    slowdown: stats,
                    latency_us: stats,
                    goodput_gbps: 0.0,
                }],
            });
        });
        assert!(!wide.contains("incast"), "{wide}");
    }

    #[test]
    fn latency_is_said_where_it_has_another_winner() {
        let latency = said(|point| {
            point.summary.latency_us.p99 = if point.summary.label == "ndp" { 10.0 } else { 12.0 };
        });
        assert!(
            latency.contains("The p99 latency over all sizes is lowest with ndp at all 3 values of load; with homa it is 1.20 times as high."),
            "{latency}"
        );
    }
}
