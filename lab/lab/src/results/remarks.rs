//! What must be said next to the numbers: messages that are missing in them, and windows that are too short for what they measure.
//!
//! One mechanism for the measured messages and for background streams. The terminal, the page, `summary.json` and the exit code
//! of the command take what they say from here.

use rackweave_sim::result::End;

use super::{
    Halves, MessageCounts, MissingPoint, PointResult, PointSummary, Results, StreamSummary,
    end_name, plain, short_key,
};
use crate::report::number;
use crate::study::{self, StudySummary};

/// An incast that recurs fewer times than this in the measured window is not measured by it: the choice is Rackweave's. With five, the
/// worst round is one of five.
pub(crate) const FEW_ROUNDS: u64 = 5;
/// What a longer window needs.
pub(crate) const LENGTHENS: &str =
    "a longer `measure.duration`, or more `measure.messages`, lengthens";
/// The p99 of the halves of a window differ from this factor on. Below it they do by chance, because messages that meet in a queue are not
/// independent: the choice is Rackweave's.
const HALVES_DIFFER: f64 = 1.5;

/// How much a remark matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Numbers are missing or wrong; the command ends with exit code 1.
    Warning,
    /// Numbers are right as far as they go, and may not be what one believes.
    Note,
    /// The measured window is too short.
    Window,
}

/// A remark about a point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// How much it matters.
    pub weight: Weight,
    /// What is said, without the name of the point.
    pub text: String,
}

impl Halves {
    /// Returns the percentiles of two halves. With `beyond_chance`, chance does not explain how they differ.
    pub(super) fn new(p99: [f64; 2], beyond_chance: bool) -> Self {
        let [a, b] = p99;
        let differ = beyond_chance && (a >= HALVES_DIFFER * b || b >= HALVES_DIFFER * a);
        Self { p99, differ }
    }
}

impl PointSummary {
    /// Returns whether no measured message is missing from the numbers.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let MessageCounts { failed, unfinished, .. } = self.messages;
        let lacks_seeds = self.over_seeds.as_ref().is_some_and(|spread| !spread.missing.is_empty());
        let is_whole = self.collective.as_ref().is_none_or(|it| it.unfinished == 0);
        failed == 0
            && unfinished == 0
            && is_whole
            && self.end == end_name(End::AllDone)
            && !lacks_seeds
    }

    /// Names a background stream: "the incast", or "the incast (stream 2)" if several are alike.
    #[must_use]
    pub fn stream_name(&self, nth: usize) -> String {
        let of = |stream: &StreamSummary| match stream.arrivals.as_str() {
            "" => "stream".to_owned(),
            "incast" | "permutation" | "trace" | "closed-loop" => stream.arrivals.replace('-', " "),
            "poisson" => "Poisson traffic".to_owned(),
            other => format!("{other} traffic"),
        };
        let name = self.background.get(nth).map_or_else(String::new, of);
        match self.background.iter().filter(|stream| of(stream) == name).count() {
            0 | 1 => format!("the {name}"),
            _ => format!("the {name} (stream {})", nth + 1),
        }
    }

    /// Describes what went wrong; `None` if nothing did. Messages that the scenario leaves out are not a failure if the
    /// time limit ended the run.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        self.trouble(|_| true)
    }

    /// Describes what is missing in the numbers; `None` if nothing is. Unlike [`Self::warning`] it passes over background streams
    /// without a message in the measured time, which have no numbers that could lack any.
    #[must_use]
    pub fn missing_in_numbers(&self) -> Option<String> {
        self.trouble(|stream| stream.messages.started > 0)
    }

    /// Describes what went wrong, of background streams only those `of`.
    fn trouble(&self, of: impl Fn(&StreamSummary) -> bool) -> Option<String> {
        let is_cut_off = self.is_cut_off();
        let of_streams = (0..self.background.len()).filter(|nth| of(&self.background[*nth]));
        let of_streams = of_streams.filter_map(|nth| {
            let text = self.missing(&self.background[nth].messages, is_cut_off)?;
            Some(format!("{}: {text}", self.stream_name(nth)))
        });
        let mut parts = Vec::new();
        if let Some(spread) = &self.over_seeds
            && let Some((last, rest)) = spread.missing.split_last()
        {
            let rest: String = rest.iter().map(|seed| format!("{seed}, ")).collect();
            parts.push(format!("means without seed {rest}{last}, which did not end"));
        }
        parts.extend(self.missing(&self.messages, false));
        parts.extend(of_streams);
        if self.refused > 0 {
            parts.push(format!("{} messages were refused", self.refused));
        }
        if let Some(collective) = &self.collective
            && collective.unfinished > 0
        {
            parts.extend(collective.waits.iter().cloned());
        }
        parts.extend(study::KINDS.iter().find_map(|kind| (kind.warning)(&self.study)));
        if self.end == end_name(End::PacketLimit) {
            let millions = rackweave_sim::Control::PACKETS / 1_000_000;
            parts.push(format!("more than {millions} million packets were under way at once"));
        }
        if let Some(first) = self.deadlock.first() {
            let cycle = self.deadlock.join(", ");
            parts.push(format!(
                "switches paused each other for good (PFC): {cycle} and {first} again each wait for the next"
            ));
        }
        if let Some(growth) = &self.backlog {
            let [from, to] =
                [growth.from_bytes, growth.to_bytes].map(|it| number::bytes(it as f64));
            let since = number::micros(growth.since_us);
            parts.push(format!("unfinished messages grew from {from} to {to} since {since}"));
        }
        let without_steady_state =
            [End::Overloaded, End::Starved, End::TimeLimit, End::HopLimit, End::PointLimit];
        // The links explain what is missing. If nothing is, the scenario wants the time limit as the end.
        let has_none = without_steady_state.iter().any(|end| self.end == end_name(*end));
        if has_none && !parts.is_empty() {
            parts.extend(self.full_links.iter().cloned());
        }
        if !parts.is_empty()
            && let Some((first, more)) = self.cut_off.split_first()
        {
            let more = if more.is_empty() { "" } else { ", ..." };
            parts.push(format!("{first}{more}"));
        }
        if let Some((first, more)) = self.waiting.split_first() {
            let more = if more.is_empty() { "" } else { ", ..." };
            parts.push(format!("waits for {}{more}", first.text()));
        }
        if self.end == end_name(End::PointLimit) {
            parts.push(
                "ended by --point-limit, so that the numbers depend on the machine".to_owned(),
            );
        }
        if parts.is_empty() && self.end == end_name(End::Stalled) {
            parts.push("the simulation ran out of events".into());
        }
        if parts.is_empty() && self.end == end_name(End::CutOff) {
            parts.push("hosts that stand still have not started all their messages".into());
            parts.extend(self.cut_off.first().cloned());
        }
        if parts.is_empty() { None } else { Some(format!("{} ({})", parts.join(", "), self.end)) }
    }

    /// Whether background streams were cut off: a kind of workload ends the run, whatever they have under way.
    fn is_cut_off(&self) -> bool {
        let is_of_messages = matches!(self.study, StudySummary::Messages);
        !is_of_messages && self.end == end_name(End::AllDone)
    }

    /// The number of messages of all streams that failed, or did not end though the run waited for them.
    #[must_use]
    pub fn missing_messages(&self) -> u64 {
        let is_cut_off = self.is_cut_off();
        let of = |counts: &MessageCounts, is_cut_off: bool| {
            let waited = if is_cut_off { 0 } else { counts.unfinished - counts.left_out };
            counts.failed + waited
        };
        let background = self.background.iter().map(|stream| of(&stream.messages, is_cut_off));
        of(&self.messages, false) + background.sum::<u64>()
    }

    /// Says which messages of a stream are missing in its numbers; `None` if none is. Nothing waited for those of a stream that was cut
    /// off.
    fn missing(&self, counts: &MessageCounts, is_cut_off: bool) -> Option<String> {
        let MessageCounts { started, completed, failed, unfinished, left_out } = *counts;
        if started == 0 {
            return Some("no message started in the measured time".to_owned());
        }
        let expected = match self.end {
            _ if is_cut_off => unfinished,
            end if end == end_name(End::TimeLimit) => left_out,
            _ => 0,
        };
        let unfinished = if completed > 0 { unfinished - expected } else { unfinished };
        let parts: Vec<String> = [(failed, "failed"), (unfinished, "were unfinished at the end")]
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{} {what}", number::grouped(count)))
            .collect();
        (!parts.is_empty())
            .then(|| format!("of {} messages {}", number::grouped(started), parts.join(" and ")))
    }

    /// Returns all that must be said next to the numbers.
    #[must_use]
    pub fn remarks(&self) -> Vec<Remark> {
        let warning = self.warning().map(|text| Remark { weight: Weight::Warning, text });
        let left_out = (self.messages.left_out > 0).then(|| {
            let MessageCounts { started, left_out, .. } = self.messages;
            format!(
                "{left_out} of {started} messages were unfinished at the end ({}) and are left out \
                 of all statistics: long messages look better than they are",
                self.end
            )
        });
        let full = (warning.is_none() && !self.full_links.is_empty()).then(|| {
            let links = self.full_links.join(", ");
            format!("{links}: such numbers depend on how long the run is")
        });
        let notes = left_out.into_iter().chain(full).chain(self.doubts.iter().cloned());
        let notes = notes.map(|text| Remark { weight: Weight::Note, text });
        let windows = self.of_window().into_iter();
        let windows = windows.map(|text| Remark { weight: Weight::Window, text });
        warning.into_iter().chain(notes).chain(windows).collect()
    }

    /// Says for which streams the measured window is too short.
    fn of_window(&self) -> Vec<String> {
        let window = number::micros(self.window_us);
        let halves = |of: Option<Halves>, whose: &str| {
            let halves = of.filter(|halves| halves.differ)?;
            let [first, second] = halves.p99.map(number::short);
            Some(format!(
                "the measured window of {window} is too short: p99 slowdown{whose} in its halves is {first} and {second}; \
                 {LENGTHENS} it"
            ))
        };
        let mut texts: Vec<String> = halves(self.halves, "").into_iter().collect();
        for (nth, stream) in self.background.iter().enumerate() {
            let name = self.stream_name(nth);
            match stream.rounds {
                Some(0) => {}
                Some(rounds) if rounds < FEW_ROUNDS => {
                    let times = if rounds == 1 { "once" } else { "only a few times" };
                    texts.push(format!(
                        "{name} occurs {times} ({rounds}) in the measured window of {window}: its p99 depends on single rounds; \
                         {LENGTHENS} the window"
                    ));
                }
                _ => texts.extend(halves(stream.halves, &format!(" of {name}"))),
            }
        }
        texts
    }
}

impl Results {
    /// Returns the remarks of a weight about finished points, one line for each point concerned.
    pub fn remarks(&self, weight: Weight) -> impl Iterator<Item = String> + '_ {
        remarks_of(&self.points, weight)
    }

    /// Returns the points that have no results, because they were not finished or the simulator failed in them.
    pub(super) fn without_results(&self) -> impl Iterator<Item = MissingPoint> + '_ {
        let failed = self.summary.failures.iter().map(|failure| MissingPoint {
            set: failure.set.clone(),
            label: failure.transport.clone(),
            seed: failure.seed,
        });
        self.summary.missing.iter().cloned().chain(failed)
    }

    /// Says which points have no results; `None` if all have.
    #[must_use]
    pub fn incomplete(&self) -> Option<String> {
        let names: Vec<String> = self.without_results().map(|point| point.name()).collect();
        let interrupted = self.summary.interrupted;
        let why = if interrupted { "The run was interrupted: " } else { "" };
        match names.len() {
            0 if interrupted => Some("The run was interrupted: points are missing.".to_owned()),
            0 => None,
            n => {
                let of = self.points.len() + n;
                let more = if n > MOST_MISSING {
                    format!("; and {} more", n - MOST_MISSING)
                } else {
                    String::new()
                };
                let names = names[..n.min(MOST_MISSING)].join("; ");
                let noun = match (of, n) {
                    (1, _) => "point has",
                    (_, 1) => "points has",
                    _ => "points have",
                };
                Some(format!("{why}{n} of {of} {noun} no results: {names}{more}"))
            }
        }
    }

    /// Returns the warnings about points, one line for each point concerned.
    pub fn warnings(&self) -> impl Iterator<Item = String> + '_ {
        self.remarks(Weight::Warning)
    }
}

/// Returns the remarks of a weight about points, one line for each of them.
fn remarks_of(points: &[PointResult], weight: Weight) -> impl Iterator<Item = String> + '_ {
    points.iter().flat_map(move |point| {
        let remarks = point.summary.remarks().into_iter();
        let texts = remarks.filter(move |it| it.weight == weight).map(|it| it.text);
        texts.map(|text| format!("{}: {text}", point.label))
    })
}

/// The most points without results that are named.
const MOST_MISSING: usize = 12;

impl MissingPoint {
    /// Names the point: "homa, buffer 250 KB, seed 2".
    #[must_use]
    pub fn name(&self) -> String {
        let is_label = |key: &str| key == "transport.name" || key == "transport.label";
        let others =
            self.set.iter().filter(|(key, value)| !is_label(key) && plain(value) != self.label);
        let others = others.map(|(key, value)| format!(", {} {}", short_key(key), plain(value)));
        format!("{}{}", self.label, others.collect::<String>())
    }
}

/// The most points that a line names.
const MOST_NAMES: usize = 4;

/// Returns the remarks of a weight about points, points that share a remark share a line.
pub(crate) fn grouped(points: &[PointResult], weight: Weight) -> Vec<String> {
    let mut lines: Vec<(String, Vec<&str>)> = Vec::new();
    for point in points {
        for remark in point.summary.remarks().into_iter().filter(|it| it.weight == weight) {
            match lines.iter_mut().find(|(text, _)| *text == remark.text) {
                Some((_, labels)) => labels.push(&point.label),
                None => lines.push((remark.text, vec![&point.label])),
            }
        }
    }
    let line = |(text, labels): (String, Vec<&str>)| match labels.len() {
        n if n == points.len() && n > 1 => format!("All points: {text}"),
        n if n > MOST_NAMES => {
            format!("{} and {} more: {text}", labels[..MOST_NAMES].join("; "), n - MOST_NAMES)
        }
        _ => format!("{}: {text}", labels.join("; ")),
    };
    lines.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::demo;

    fn point() -> PointSummary {
        demo::incast().points.remove(0).summary
    }

    fn texts(point: &PointSummary, weight: Weight) -> Vec<String> {
        let remarks = point.remarks().into_iter().filter(|it| it.weight == weight);
        remarks.map(|it| it.text).collect()
    }

    #[test]
    fn a_stream_counts_like_the_measured_messages() {
        assert_eq!(point().warning(), None);
        let with = |change: fn(&mut MessageCounts)| {
            let mut point = point();
            change(&mut point.background[0].messages);
            point.warning().unwrap()
        };
        assert_eq!(
            with(|counts| *counts = MessageCounts::default()),
            "the incast: no message started in the measured time (all done)"
        );
        let mut idle = point();
        idle.background[0].messages = MessageCounts::default();
        assert_eq!(idle.missing_in_numbers(), None, "it has no numbers");
        idle.messages.failed = 1;
        assert!(idle.missing_in_numbers().unwrap().contains(" 1 failed"));
        assert_eq!(
            with(|counts| counts.unfinished = 4),
            "the incast: of 3,200 messages 4 were unfinished at the end (all done)"
        );
        assert_eq!(
            with(|counts| (counts.failed, counts.unfinished) = (1, 2)),
            "the incast: of 3,200 messages 1 failed and 2 were unfinished at the end (all done)"
        );
    }

    /// A cast ends the run while background traffic is under way.
    #[test]
    fn traffic_beside_a_kind_of_workload_is_cut_off() {
        let mut point = point();
        point.study = study::probe::summary();
        point.background[0].messages.unfinished = 4;
        assert_eq!(point.warning(), None);
        point.background[0].messages.failed = 1;
        assert!(point.warning().unwrap().contains("1 failed"));
    }

    #[test]
    fn an_incast_that_recurs_a_few_times_is_not_measured_by_the_window() {
        let mut point = point();
        point.window_us = 3810.0;
        for (rounds, is_few) in [(None, false), (Some(1), true), (Some(4), true), (Some(5), false)]
        {
            point.background[0].rounds = rounds;
            let said = texts(&point, Weight::Window);
            assert_eq!(!said.is_empty(), is_few, "{rounds:?}: {said:?}");
        }
        point.background[0].rounds = Some(1);
        assert!(
            texts(&point, Weight::Window)[0]
                .contains("occurs once (1) in the measured window of 3.81 ms")
        );
    }

    #[test]
    fn halves_that_differ_are_said_and_no_others() {
        let cases = [
            (Some(Halves::new([10.8, 3.7], true)), true),
            (Some(Halves::new([3.7, 10.8], true)), true),
            (Some(Halves::new([10.8, 3.7], false)), false),
            // However many messages tell them apart.
            (Some(Halves::new([3.7, 2.8], true)), false),
            (Some(Halves::new([f64::NAN; 2], true)), false),
            (None, false),
        ];
        for (halves, differ) in cases {
            let mut point = point();
            point.halves = halves;
            let said = texts(&point, Weight::Window);
            assert_eq!(said.len(), usize::from(differ), "{halves:?}");
            (point.background[0].halves, point.halves) = (halves, None);
            let said = texts(&point, Weight::Window);
            assert_eq!(said.len(), usize::from(differ), "{halves:?}");
            if differ {
                assert!(
                    said[0].contains("p99 slowdown of the incast in its halves is"),
                    "{said:?}"
                );
            }
        }
    }

    #[test]
    fn points_of_which_the_same_is_said_share_a_line() {
        let mut points = demo::incast().points;
        for point in &mut points[..2] {
            point.summary.background[0].messages = MessageCounts::default();
        }
        let lines = grouped(&points, Weight::Warning);
        assert_eq!(
            lines,
            [
                "homa, load 0.3; homa, load 0.5: the incast: no message started in the measured time (all done)"
            ]
        );
    }
}
