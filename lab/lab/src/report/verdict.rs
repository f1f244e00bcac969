//! The verdict: who has the lowest slowdown, of the measured messages and of each background stream, and who loses what by it.

use std::collections::BTreeSet;

use serde::Serialize;

use super::compare::{are_close, best, competes, half_width};
use super::number;
use crate::results::{MessageCounts, PointResult, PointSummary, StreamSpread, short_key};
use crate::study::StudySummary;

/// Says in sentences which point or group is the best in what; `None` if there is nothing to compare.
///
/// It compares points that differ in nothing but the transport (and what follows from it). Of goodput it says nothing: over the
/// measured time, which ends with the last message, it depends on that message.
pub(super) fn verdict(points: &[PointResult]) -> Option<String> {
    let sentences: Vec<String> = of_streams(points).into_iter().map(|stream| stream.text).collect();
    (!sentences.is_empty()).then(|| sentences.join(" "))
}

/// The verdict about the measured messages, or about a background stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct StreamVerdict {
    /// The stream: "measured messages", or such as "the incast".
    stream: String,
    /// The verdict in words.
    text: String,
    /// Which transport or setting has the lowest 99th percentile of slowdown, at each value of the sweep at which the runs tell.
    lowest: Vec<Lowest>,
    /// The values of the sweep at which the runs do not tell: those compared look equal, or less than two can be compared.
    undecided: Vec<String>,
    /// The points that are not compared, because messages of the stream are missing.
    not_compared: Vec<String>,
}

/// Who is the lowest at a value of the sweep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Lowest {
    /// The value, such as "buffer 500 KB"; empty if nothing but what is compared is swept.
    at: String,
    /// The label of the transport or setting; several if the runs do not tell them apart.
    labels: Vec<String>,
}

/// Returns the verdicts about the measured messages and about each background stream; none if there is nothing to compare.
pub(crate) fn of_streams(points: &[PointResult]) -> Vec<StreamVerdict> {
    if points.len() < 2 {
        return Vec::new();
    }
    let winner = sole_leader(points);
    let streams = points.iter().map(|point| point.summary.background.len()).min().unwrap_or(0);
    // The time of a collective decides, not how its messages fare: the table has it.
    let has_collective = points.iter().any(|point| point.summary.collective.is_some());
    let measured = if has_collective { None } else { measured(points) };
    let first = measured.map(|text| {
        let reversals =
            OTHERS.iter().filter_map(|other| reversal(points, winner.as_deref()?, other));
        let few = few_in_tail(points, &|point| &point.summary.messages);
        let text = std::iter::once(text).chain(reversals).chain(few).collect::<Vec<_>>().join(" ");
        let is_known = |point: &PointResult| point.summary.is_complete();
        Standings::of(points, &slowdown).verdict(points, "measured messages", text, &is_known)
    });
    let background = (0..streams).map(|nth| background(points, nth, winner.as_deref()));
    first.into_iter().chain(background).collect()
}

/// A measure of points: its value and half the width of its confidence interval.
type Measure<'a> = &'a dyn Fn(&PointResult) -> (f64, f64);

/// The measure of the measured messages.
fn slowdown(point: &PointResult) -> (f64, f64) {
    let summary = &point.summary;
    let value = if summary.is_complete() { summary.slowdown.p99 } else { f64::NAN };
    (value, half_width(summary, "slowdown_p99"))
}

/// Who has the lowest values of a measure.
struct Standings {
    /// The values of the sweep at which points are compared, in its order.
    classes: Vec<String>,
    /// The names of the groups that are the lowest, and the indices of these values; most first.
    leaders: Vec<(String, Vec<usize>)>,
}

impl Standings {
    fn of(points: &[PointResult], measure: Measure<'_>) -> Self {
        let classes = classes(points);
        let mut leaders: Vec<(String, Vec<usize>)> = Vec::new();
        for (point, _) in points.iter().zip(best(points, true, measure)).filter(|(_, won)| *won) {
            let (name, class) = (name(points, point), class(points, point));
            let at = classes.iter().position(|other| *other == class).unwrap_or(0);
            match leaders.iter_mut().find(|(leader, _)| *leader == name) {
                Some((_, classes)) => classes.push(at),
                None => leaders.push((name, vec![at])),
            }
        }
        leaders.sort_by_key(|(_, classes)| std::cmp::Reverse(classes.len()));
        Self { classes, leaders }
    }

    /// Returns the values of the sweep at which nobody is the lowest.
    fn undecided(&self) -> Vec<usize> {
        let is_decided = |at: &usize| self.leaders.iter().any(|(_, classes)| classes.contains(at));
        (0..self.classes.len()).filter(|at| !is_decided(at)).collect()
    }

    /// Names some values of the sweep, as many as people read: "load 0.3 and load 0.5", or "7 of 10 values of load".
    fn names(&self, points: &[PointResult], of: &[usize]) -> String {
        const MOST: usize = 4;
        if of.len() > MOST {
            return format!("{} of {} {}", of.len(), self.classes.len(), values(points));
        }
        let names: Vec<&str> = of.iter().map(|at| self.classes[*at].as_str()).collect();
        match names.split_last() {
            Some((last, [])) => (*last).to_owned(),
            Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
            None => String::new(),
        }
    }

    fn verdict(
        &self,
        points: &[PointResult],
        stream: &str,
        text: String,
        is_known: &dyn Fn(&PointResult) -> bool,
    ) -> StreamVerdict {
        let at_value = |(at, value): (usize, &String)| {
            let leads = self.leaders.iter().filter(|(_, classes)| classes.contains(&at));
            let labels: Vec<String> = leads.map(|(name, _)| name.clone()).collect();
            (!labels.is_empty()).then(|| Lowest { at: value.clone(), labels })
        };
        let missing = points.iter().filter(|point| !is_known(point));
        StreamVerdict {
            stream: stream.to_owned(),
            text,
            lowest: self.classes.iter().enumerate().filter_map(at_value).collect(),
            undecided: self.undecided().into_iter().map(|at| self.classes[at].clone()).collect(),
            not_compared: missing.map(|point| point.label.clone()).collect(),
        }
    }

    /// Returns the group that is the lowest at all values of the sweep without being equalled.
    fn sole_leader(self) -> Option<String> {
        match &self.leaders[..] {
            [(name, at)] if at.len() == self.classes.len() => Some(name.clone()),
            _ => None,
        }
    }

    /// Names the leaders: "DCTCP at all 3 values of load", "DCTCP at load 0.3, Homa at load 0.5 and load 0.7".
    fn text(&self, points: &[PointResult]) -> String {
        let names = || self.leaders.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>();
        match &self.leaders[..] {
            _ if self.classes.len() == 1 => names().join(" and "),
            [(name, at)] if at.len() == self.classes.len() => {
                format!("{name} at all {} {}", at.len(), values(points))
            }
            leaders => {
                let each = leaders.iter();
                let each = each.map(|(name, at)| format!("{name} at {}", self.names(points, at)));
                let undecided = match &self.undecided()[..] {
                    [] => String::new(),
                    at => format!("; the runs do not tell at {}", self.names(points, at)),
                };
                each.collect::<Vec<_>>().join(", ") + &undecided
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

/// Returns the value of the sweep within which a point is compared.
fn class(points: &[PointResult], point: &PointResult) -> String {
    if has_several_groups(points) { point.variant_label() } else { String::new() }
}

/// Returns the values of the sweep within which points are compared, in its order.
fn classes(points: &[PointResult]) -> Vec<String> {
    let mut classes: Vec<String> = Vec::new();
    for point in points {
        let class = class(points, point);
        if !classes.contains(&class) {
            classes.push(class);
        }
    }
    classes
}

fn name(points: &[PointResult], point: &PointResult) -> String {
    if is_crossed(points) { point.summary.label.clone() } else { point.label.clone() }
}

/// Returns the group that has the lowest slowdown of the measured messages at all values of the sweep.
fn sole_leader(points: &[PointResult]) -> Option<String> {
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

/// A measure in which the group with the lowest p99 slowdown may not be the lowest: how it is called, its column, and its value.
type Other = (&'static str, &'static str, fn(&PointSummary) -> f64);

/// Slowdown weighs all messages alike, and latency over all sizes is that of the long ones.
const OTHERS: [Other; 3] = [
    ("p99 latency over all sizes", "latency_p99_us", |point| point.latency_us.p99),
    ("p99.9 slowdown", "slowdown_p999", |point| point.slowdown.p999),
    ("mean slowdown", "slowdown_mean", |point| point.slowdown.mean),
];

/// Says so if the group with the lowest p99 slowdown is not the lowest in another measure.
fn reversal(points: &[PointResult], winner: &str, (what, column, of): &Other) -> Option<String> {
    let measure = |point: &PointResult| {
        let summary = &point.summary;
        let value = if summary.is_complete() { of(summary) } else { f64::NAN };
        (value, half_width(summary, column))
    };
    let standings = Standings::of(points, &measure);
    if standings.leaders.is_empty() || standings.leaders.iter().any(|(name, _)| name == winner) {
        return None;
    }
    let (leaders, loss) = (standings.text(points), loss(points, &measure, winner));
    Some(format!("The {what} is lowest with {leaders}{loss}."))
}

/// The fewest messages above a 99th percentile that need no remark: the choice is Rackweave's. The interval of the
/// percentile's rank at 95 % is twice the root of their number to both sides: with 20 nearly half of them.
const FEW_IN_TAIL: u64 = 20;

/// Says how few messages decide the 99th percentile, if they are few. Over seeds the confidence interval says that.
fn few_in_tail(
    points: &[PointResult],
    counts: &dyn Fn(&PointResult) -> &MessageCounts,
) -> Option<String> {
    let single = points.iter().filter(|point| point.summary.over_seeds.is_none());
    let measured = single.map(|point| counts(point).completed).filter(|completed| *completed > 0);
    let fewest = measured.min()?;
    let of = number::grouped(fewest);
    match fewest.div_ceil(100) {
        1 => Some(format!("The slowest of {of} messages decides the p99.")),
        tail if tail < FEW_IN_TAIL => {
            Some(format!("1 % of {of} messages are {tail}: they decide the p99."))
        }
        _ => None,
    }
}

/// Says with what a background stream has its lowest slowdown.
fn background(points: &[PointResult], nth: usize, winner: Option<&str>) -> StreamVerdict {
    let is_known = |point: &PointResult| has_p99(&point.summary, nth);
    let measure = |point: &PointResult| {
        let stream = &point.summary.background[nth];
        let of = |spread: &StreamSpread| spread.slowdown.p99;
        let half = point.summary.over_seeds.as_ref();
        let half = half.map_or(0.0, |all| all.background.get(nth).map_or(f64::NAN, of));
        (if is_known(point) { stream.slowdown.p99 } else { f64::NAN }, half)
    };
    let standings = Standings::of(points, &measure);
    let what = stream_name(points, nth);
    let missing: Vec<&str> =
        points.iter().filter(|point| !is_known(point)).map(|point| point.label.as_str()).collect();
    let not_compared = match missing.len() {
        0 => String::new(),
        _ => format!(
            " Messages of it are missing, so that it is not compared, with {}.",
            listed(&missing)
        ),
    };
    let leads = winner.is_some_and(|winner| {
        matches!(&standings.leaders[..], [(name, at)] if name == winner && at.len() == standings.classes.len())
    });
    let text = if missing.len() + 1 >= points.len() {
        let none = points.iter().all(|point| point.summary.background[nth].messages.started == 0);
        let why = if none {
            "no message of it started in the measured time".to_owned()
        } else {
            format!("messages of it are missing with {}", listed(&missing))
        };
        format!("{what} is not compared: {why}.")
    } else if standings.leaders.is_empty() {
        format!("{what} has a p99 slowdown that the runs do not tell apart.{not_compared}")
    } else if let Some(winner) = winner.filter(|_| leads) {
        format!("{what} has its lowest p99 slowdown with {winner} too.{not_compared}")
    } else {
        let leaders = standings.text(points);
        let loss = winner.map_or_else(String::new, |winner| loss(points, &measure, winner));
        format!("{what} has its lowest p99 slowdown with {leaders}{loss}.{not_compared}")
    };
    let few = few_in_tail(points, &|point| &point.summary.background[nth].messages);
    let few = few.filter(|_| !standings.leaders.is_empty());
    let text = [Some(text), few].into_iter().flatten().collect::<Vec<_>>().join(" ");
    standings.verdict(points, &points[0].summary.stream_name(nth), text, &is_known)
}

/// Returns whether the 99th percentile of a stream is known. Messages that are under way at the end of a run count with less than they
/// would have taken. Background streams of a kind of workload are cut off by its end, which affects the percentile if it is more than one
/// message in a hundred.
fn has_p99(point: &PointSummary, nth: usize) -> bool {
    let counts = &point.background[nth].messages;
    let is_of_messages = matches!(point.study, StudySummary::Messages);
    let unfinished = if is_of_messages {
        counts.unfinished
    } else {
        counts.unfinished.saturating_sub(counts.started / 100)
    };
    counts.failed == 0 && counts.completed > 0 && unfinished == 0
}

/// Names some points: "homa, buffer 250 KB; homa, buffer 500 KB and 3 more".
fn listed(labels: &[&str]) -> String {
    const MOST: usize = 4;
    match labels.len() {
        n if n > MOST => format!("{} and {} more", labels[..MOST].join("; "), n - MOST),
        _ => labels.join("; "),
    }
}

/// Names a background stream at the beginning of a sentence.
fn stream_name(points: &[PointResult], nth: usize) -> String {
    let label = &points[0].summary.background[nth].label;
    let fixed = points.iter().all(|point| point.summary.background[nth].label == *label);
    let over =
        if fixed && has_several_groups(points) { format!(" over {label}") } else { String::new() };
    let name = points[0].summary.stream_name(nth);
    let name = name.strip_prefix("the ").unwrap_or(&name);
    match name.split_once(" (") {
        None => format!("The background {name}{over}"),
        Some((name, number)) => format!("The background {name}{over} ({number}"),
    }
}

/// Says which points are not compared, because measured messages are missing.
fn not_compared(points: &[PointResult]) -> String {
    let missing = points.iter().filter(|point| !point.summary.is_complete());
    let missing: Vec<&str> = missing.map(|point| point.label.as_str()).collect();
    let partial = if points.iter().any(|point| point.lacks_rivals) {
        " Where a point has no results, nothing is called the lowest."
    } else {
        ""
    };
    if missing.is_empty() {
        return partial.to_owned();
    }
    format!("{partial} Not compared, because messages or seeds are missing: {}.", listed(&missing))
}

/// Names the best point or group by the slowdown of the measured messages; `None` if there is nothing to compare.
fn measured(points: &[PointResult]) -> Option<String> {
    let p99 = |p: &PointResult| p.summary.slowdown.p99;
    let is_known = |p: &PointResult| p99(p).is_finite() && p.summary.is_complete();
    let known = points.iter().filter(|p| is_known(p) && !p.lacks_rivals);
    let (mut ranked, bounds): (Vec<&PointResult>, Vec<&PointResult>) =
        known.partition(|point| competes(points, point));
    if ranked.len() < 2 {
        // With background streams, it must be said that of these nothing can be.
        let missing = not_compared(points);
        return (!missing.is_empty()).then(|| format!("There is no verdict.{missing}"));
    }
    let not_compared = not_compared(points);
    if is_crossed(points) {
        let standings = Standings::of(points, &slowdown);
        let text = match &standings.leaders[..] {
            [] => {
                "No transport has a lowest p99 slowdown that the runs tell from others.".to_owned()
            }
            [(group, at)] if at.len() == standings.classes.len() => {
                format!(
                    "{group} has the lowest p99 slowdown at all {} {}.",
                    at.len(),
                    values(points)
                )
            }
            _ => format!("The p99 slowdown is lowest with {}.", standings.text(points)),
        };
        return Some(text + &not_compared);
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
    use crate::study::probe::ProbeSummary;

    /// The spread over two seeds, without streams.
    fn two_seeds(halves: Stats) -> SeedSpread {
        SeedSpread {
            seeds: vec![1, 2],
            missing: Vec::new(),
            slowdown: halves,
            latency_us: halves,
            goodput_gbps: 0.0,
            collective_us: None,
            background: Vec::new(),
        }
    }

    fn said(change: impl Fn(&mut PointResult)) -> String {
        let mut points = demo::incast().points;
        points.iter_mut().for_each(change);
        verdict(&points).expect("points differ")
    }

    #[test]
    fn the_winner_of_the_measured_messages_may_lose_the_incast() {
        assert_eq!(
            said(|_| ()),
            "homa has the lowest p99 slowdown at all 3 values of load. The background incast has its lowest p99 slowdown \
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
            swapped.ends_with("The background incast has its lowest p99 slowdown with homa too."),
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
        assert!(
            missing.ends_with("The background incast has a p99 slowdown that the runs do not tell apart. Messages of it are missing, \
                so that it is not compared, with ndp, load 0.3; ndp, load 0.5; ndp, load 0.7."),
            "{missing}"
        );
        let one = said(|point| {
            if point.summary.label == "ndp" && point.label.ends_with("0.7") {
                point.summary.background[0].messages.unfinished = 1;
            }
        });
        assert!(
            one.ends_with("with ndp at load 0.3 and load 0.5; the runs do not tell at load 0.7; with homa it is 1.00 to 4.00 times as \
                high. Messages of it are missing, so that it is not compared, with ndp, load 0.7."),
            "{one}"
        );
        let all = said(|point| point.summary.background[0].messages = MessageCounts::default());
        assert!(
            all.ends_with("The background incast is not compared: no message of it started in the measured time."),
            "{all}"
        );
    }

    /// Each value of the sweep has its own winner, as when a buffer is too small for one of them.
    #[test]
    fn winners_are_named_with_the_values_at_which_they_win() {
        let mut points = demo::incast().points;
        for point in &mut points {
            if point.label == "homa, load 0.3" {
                point.summary.background[0].slowdown.p99 = 1.0;
            }
        }
        let verdicts = of_streams(&points);
        let [first, incast] = &verdicts[..] else { panic!("{verdicts:?}") };
        assert_eq!(
            (first.stream.as_str(), incast.stream.as_str()),
            ("measured messages", "the incast")
        );
        let lowest: Vec<_> =
            incast.lowest.iter().map(|it| (it.at.as_str(), it.labels.join(","))).collect();
        let expected = [("load 0.3", "homa"), ("load 0.5", "ndp"), ("load 0.7", "ndp")];
        assert_eq!(lowest, expected.map(|(at, label)| (at, label.to_owned())));
        assert!(
            incast.text.contains("with ndp at load 0.5 and load 0.7, homa at load 0.3"),
            "{}",
            incast.text
        );
        assert!(incast.undecided.is_empty() && incast.not_compared.is_empty());
    }

    #[test]
    fn what_the_seeds_do_not_tell_apart_is_no_loss() {
        let wide = said(|point| {
            let stats = Stats { p99: 1e6, ..Stats::default() };
            let narrow = Stats { p99: 0.0, ..Stats::default() };
            point.summary.over_seeds = Some(SeedSpread {
                seeds: vec![1, 2],
                missing: Vec::new(),
                slowdown: narrow,
                latency_us: narrow,
                goodput_gbps: 0.0,
                collective_us: None,
                background: vec![StreamSpread {
                    slowdown: stats,
                    latency_us: stats,
                    goodput_gbps: 0.0,
                }],
            });
        });
        assert!(
            wide.ends_with(
                "The background incast has a p99 slowdown that the runs do not tell apart."
            ),
            "{wide}"
        );
    }

    /// The end of an overloaded run has less of the long messages than one that waited for them, although none failed.
    #[test]
    fn a_point_without_an_end_or_a_seed_is_not_compared() {
        let spread = SeedSpread { missing: vec![3], ..two_seeds(Stats::default()) };
        let ends: [&dyn Fn(&mut PointSummary); 2] = [
            &|summary| {
                summary.end = crate::results::end_name(rackweave_sim::result::End::Overloaded)
            },
            &|summary| summary.over_seeds = Some(spread.clone()),
        ];
        for end in ends {
            let mut points = demo::incast().points;
            end(&mut points[0].summary);
            let text = verdict(&points).unwrap();
            let begin = "The p99 slowdown is lowest with homa at load 0.5 and load 0.7; the runs do not tell at load 0.3. \
                         Not compared, because messages or seeds are missing: homa, load 0.3.";
            assert!(text.starts_with(begin), "{text}");
            let measured = &of_streams(&points)[0];
            assert_eq!(measured.undecided, ["load 0.3"]);
            assert_eq!(measured.not_compared, ["homa, load 0.3"]);
        }
        let rival = said(|point| point.lacks_rivals = point.label == "homa, load 0.3");
        let told = " Where a point has no results, nothing is called the lowest.";
        assert!(rival.contains(told) && rival.contains("do not tell at load 0.3"), "{rival}");
    }

    /// The tail of messages that ended is no tail of all.
    #[test]
    fn another_measure_of_an_incomplete_point_has_no_winner() {
        let mut points = demo::incast().points;
        for nth in 3..6 {
            let mut third = points[nth].clone();
            third.label = third.label.replace("ndp", "dctcp");
            "dctcp".clone_into(&mut third.summary.label);
            points.push(third);
            (points[nth].summary.slowdown.p999, points[nth].summary.messages.unfinished) = (1.0, 1);
        }
        let text = verdict(&points).unwrap();
        assert!(text.starts_with("homa has the lowest p99 slowdown at all 3"), "{text}");
        assert!(!text.contains("p99.9"), "{text}");
    }

    /// A kind of workload ends the run, whatever its background streams have under way: more than one message in a hundred decides the
    /// percentile.
    #[test]
    fn a_stream_that_is_cut_off_may_lack_one_message_in_a_hundred() {
        let probe: ProbeSummary =
            serde_json::from_str(r#"{ "mean_us": 1.0, "echoes": [] }"#).expect("a summary");
        let with = |unfinished| {
            let mut summary = demo::incast().points.swap_remove(0).summary;
            summary.study = StudySummary::Probe(probe.clone());
            summary.background[0].messages =
                MessageCounts { started: 200, completed: 190, unfinished, ..Default::default() };
            has_p99(&summary, 0)
        };
        assert_eq!([0, 2, 3].map(with), [true, true, false]);
    }

    #[test]
    fn one_point_with_all_messages_of_a_stream_is_no_comparison() {
        let mut points = demo::incast().points;
        for point in &mut points[1..] {
            point.summary.background[0].messages.failed = 1;
        }
        let incast = &of_streams(&points)[1];
        let told = "The background incast is not compared: messages of it are missing with homa, load 0.5; ";
        assert!(incast.text.starts_with(told), "{}", incast.text);
        assert_eq!(incast.not_compared.len(), 5);
        assert_eq!(incast.undecided, ["load 0.3", "load 0.5", "load 0.7"]);
    }

    /// A mean over seeds without the spread of a stream: how far it may be off is not known.
    #[test]
    fn a_stream_whose_spread_is_not_known_has_no_winner() {
        let text = said(|point| {
            point.summary.over_seeds = Some(two_seeds(Stats::default()));
        });
        assert!(text.ends_with("p99 slowdown that the runs do not tell apart."), "{text}");
    }

    /// The central scheduler is a bound: no transport loses to it.
    #[test]
    fn a_bound_is_no_rival_of_a_stream() {
        let mut points = demo::incast().points;
        for nth in 0..3 {
            let mut bound = points[nth].clone();
            let load = bound.label.split_off("homa".len());
            bound.label = format!("srpt-oracle{load}");
            for name in [&mut bound.summary.label, &mut bound.summary.transport] {
                "srpt-oracle".clone_into(name);
            }
            bound.summary.background[0].slowdown.p99 = 1.0;
            points.push(bound);
        }
        let text = verdict(&points).unwrap();
        let told = "with ndp at all 3 values of load; with homa it is 4.00 times as high.";
        assert!(text.ends_with(told), "{text}");
    }

    #[test]
    fn seeds_that_do_not_tell_two_apart_are_said() {
        let mut points: Vec<PointResult> = demo::incast()
            .points
            .into_iter()
            .filter(|point| point.label.ends_with("0.3"))
            .collect();
        for point in &mut points {
            point.summary.background.clear();
            let wide = Stats { p99: point.summary.slowdown.p99, ..Stats::default() };
            point.summary.over_seeds = Some(two_seeds(wide));
        }
        let text = verdict(&points).unwrap();
        let told = " The seeds do not tell homa, load 0.3 from ndp, load 0.3.";
        assert!(text.ends_with(told), "{text}");
    }

    /// Twelve of 1,200 messages: another seed has other twelve.
    #[test]
    fn few_messages_that_decide_the_p99_are_told() {
        let few = said(|point| {
            (point.summary.messages.started, point.summary.messages.completed) = (1200, 1200);
        });
        let told = "homa has the lowest p99 slowdown at all 3 values of load. 1 % of 1,200 messages are 12: they decide the p99. The";
        assert!(few.starts_with(told), "{few}");
        let incast = said(|point| point.summary.background[0].messages.completed = 80);
        assert!(incast.ends_with("The slowest of 80 messages decides the p99."), "{incast}");
        let enough = said(|point| point.summary.messages.completed = 2000);
        assert!(!enough.contains("decide"), "{enough}");
        let over_seeds = said(|point| {
            point.summary.messages.completed = 1200;
            point.summary.over_seeds = Some(two_seeds(Stats::default()));
        });
        assert!(!over_seeds.contains("messages are"), "{over_seeds}");
    }

    /// Who wins at the 99th percentile may lose beyond it.
    #[test]
    fn a_measure_with_another_winner_is_said() {
        let reversed = |of: fn(&mut Stats, f64)| {
            said(|point| {
                let value = if point.summary.label == "ndp" { 10.0 } else { 12.0 };
                of(&mut point.summary.slowdown, value);
            })
        };
        let tail = reversed(|slowdown, value| slowdown.p999 = value);
        assert!(
            tail.contains("The p99.9 slowdown is lowest with ndp at all 3 values of load; with homa it is 1.20 times as high."),
            "{tail}"
        );
        let mean = reversed(|slowdown, value| slowdown.mean = value);
        assert!(mean.contains("The mean slowdown is lowest with ndp at all 3"), "{mean}");
        assert!(!mean.contains("p99.9"), "{mean}");
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
