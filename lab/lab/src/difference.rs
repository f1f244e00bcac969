//! What differs between two results of `rackweave run`: their settings, and their measures beyond what chance explains.
//!
//! Results are read from `summary.json`, so that those of other versions and of runs on hosts can be compared too.

mod read;
mod text;

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Map, Value};

pub(crate) use self::read::flatten;
use self::read::{Group, Values};
pub use self::read::{ReadError, Results};
use crate::results::seeds::t_quantile;
use crate::study;

/// The number of measures of a point that are compared unless all are asked for, without those of background streams.
pub const HEADLINE_MEASURES: usize = HEADLINES.len();

/// The measures that are compared unless all are asked for: those of every point that its table shows.
const HEADLINES: [&str; 13] = [
    "messages.completed",
    "messages.failed",
    "messages.unfinished",
    "slowdown.p50",
    "slowdown.p99",
    "slowdown.mean",
    "latency_us.p50",
    "latency_us.p99",
    "goodput_gbps",
    "drops",
    "trims",
    "ecn_marks",
    "queue_bytes.mean",
];

/// Likewise of a collective.
const COLLECTIVE_HEADLINES: [&str; 2] = ["collective.time_us.mean", "collective.unfinished"];

/// The measures of every background stream that are compared unless all are asked for.
const STREAM_HEADLINES: [&str; 7] = [
    "messages.completed",
    "messages.failed",
    "messages.unfinished",
    "slowdown.p50",
    "slowdown.p99",
    "latency_us.p50",
    "latency_us.p99",
];

/// Returns whether a measure is one of those of a background stream, such as `background[incast].slowdown.p99`.
fn is_stream_headline(name: &str) -> bool {
    let of_stream = name.strip_prefix("background[").and_then(|rest| rest.split_once("]."));
    of_stream.is_some_and(|(_, measure)| STREAM_HEADLINES.contains(&measure))
}

/// The probability that a comparison calls any measure different that is not.
const ERROR_RATE: f64 = 0.05;

/// What a comparison of one measure says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// All values are the same.
    Same,
    /// The values differ, with Holm's correction for the number of measures that are compared.
    Differs,
    /// The confidence interval of the difference does not contain zero, which is so for one of 20 measures that do not differ: with
    /// Holm's correction it is not known whether this one does.
    Uncorrected,
    /// The values differ by no more than they do between seeds.
    WithinNoise,
    /// The values differ, and one side has a single seed, which says nothing of noise; or seeds without results.
    Unknown,
}

/// One measure of a point, in both results.
#[derive(Clone, Debug, Serialize)]
pub struct Measure {
    /// The path of the measure in a point of `summary.json`, such as `slowdown.p99` or `by_size[1000].p99`.
    pub name: String,
    /// The mean over the first result's seeds.
    pub a: f64,
    /// The mean over the second result's seeds.
    pub b: f64,
    /// Half the width of the 95 % confidence interval of `b - a`; `null` without several seeds on both sides.
    pub half_width: f64,
    /// The probability of a difference as large as this, or larger, if there is none in truth: of a two-sided t-test. `null` without several
    /// seeds on both sides.
    pub p_value: f64,
    /// The same with Holm's correction for all measures of all points, at least `p_value`: that one of them has such a difference.
    pub p_holm: f64,
    /// What that says.
    pub finding: Finding,
}

impl Measure {
    /// Returns the change relative to the first result; `None` if that is zero.
    #[must_use]
    pub fn change(&self) -> Option<f64> {
        (self.a != 0.0).then(|| (self.b - self.a) / self.a.abs())
    }
}

/// One point of both results.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The label of its transport.
    pub label: String,
    /// The swept keys and their values, without the seed.
    pub set: Map<String, Value>,
    /// The numbers of seeds on both sides.
    pub seeds: [usize; 2],
    /// The seeds without results on both sides. The others are no sample of all, so that no measure is called different.
    pub missing_seeds: [Vec<u64>; 2],
    /// Whether both sides have the same seeds, so that each is compared with itself.
    pub paired: bool,
    /// The measures that both sides have.
    pub measures: Vec<Measure>,
    /// The measures that one side has only, or that it has no value of for some of its seeds: those of messages that did not arrive, for
    /// instance. The values of the other seeds are no sample of all, so that nothing is said about them.
    pub incomplete: Vec<String>,
}

/// A setting that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The key in `scenario.resolved.toml`.
    pub key: String,
    /// The first result's value; `None` if it has none.
    pub a: Option<String>,
    /// The second result's value; `None` if it has none.
    pub b: Option<String>,
}

/// The differences of two results.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// What was compared: path, scenario and version of each.
    pub of: [read::Origin; 2],
    /// The settings that differ.
    pub settings: Vec<Setting>,
    /// The points that both results have.
    pub points: Vec<Point>,
    /// The points that only the first result has.
    pub only_in_a: Vec<String>,
    /// The points that only the second result has.
    pub only_in_b: Vec<String>,
}

impl Difference {
    /// Compares two results. With `all` every measure is compared, otherwise the headlines of the measured messages and of
    /// background streams, and what is particular to casts, images, aggregation and plans.
    ///
    /// Points are the same if their labels and swept values are. If those of one sweep have no counterpart at all, points with a
    /// label that is unique on both sides are.
    #[must_use]
    pub fn between(a: &Results, b: &Results, all: bool) -> Self {
        let mut left: Vec<Option<&Group>> = a.groups.iter().map(Some).collect();
        let mut right: Vec<Option<&Group>> = b.groups.iter().map(Some).collect();
        let mut points = pairs(&mut left, &mut right, |x, y| x.is_same_point(y), all);
        if points.is_empty() {
            let is_unique = |groups: &[Group], label: &str| {
                groups.iter().filter(|group| group.label == label).count() == 1
            };
            let by_label = |x: &Group, y: &Group| {
                x.label == y.label
                    && is_unique(&a.groups, &x.label)
                    && is_unique(&b.groups, &y.label)
            };
            points = pairs(&mut left, &mut right, by_label, all);
        }
        let names = |groups: &[Option<&Group>]| {
            groups.iter().flatten().map(|group| name_of(&group.label, &group.set)).collect()
        };
        correct(points.iter_mut().flat_map(|point| &mut point.measures).collect());
        Self {
            of: [a.origin.clone(), b.origin.clone()],
            settings: a.settings_that_differ(b),
            only_in_a: names(&left),
            only_in_b: names(&right),
            points,
        }
    }

    /// Returns how many measures have this finding.
    #[must_use]
    pub fn count(&self, finding: Finding) -> usize {
        let measures = self.points.iter().flat_map(|point| &point.measures);
        measures.filter(|measure| measure.finding == finding).count()
    }

    /// Returns whether the results are the same as far as can be said: both complete, with the same points and
    /// measures, and no measure that differs, or may differ.
    #[must_use]
    pub fn is_none(&self) -> bool {
        let differs = |finding| self.count(finding) > 0;
        !self.points.is_empty()
            && !self.of.iter().any(|origin| origin.is_partial)
            && self.points.iter().all(|point| point.incomplete.is_empty())
            && self.only_in_a.is_empty()
            && self.only_in_b.is_empty()
            && !differs(Finding::Differs)
            && !differs(Finding::Uncorrected)
            && !differs(Finding::Unknown)
    }
}

/// Takes the groups of both sides that are the same point, and compares them.
fn pairs(
    left: &mut [Option<&Group>],
    right: &mut [Option<&Group>],
    is_same: impl Fn(&Group, &Group) -> bool,
    all: bool,
) -> Vec<Point> {
    let mut points = Vec::new();
    for x in left {
        let Some(group) = *x else { continue };
        let other = right.iter_mut().find(|y| y.is_some_and(|y| is_same(group, y)));
        if let Some(other) = other.and_then(Option::take) {
            points.push(compare(group, other, all));
            *x = None;
        }
    }
    points
}

/// Returns the name of a point: its label, and the values that are swept in addition to the transport.
fn name_of(label: &str, set: &Map<String, Value>) -> String {
    let others = set.iter().filter(|(key, _)| *key != "transport.name");
    let others = others.map(|(key, value)| {
        let key = key.rsplit('.').next().unwrap_or(key);
        format!(", {key} {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    });
    format!("{label}{}", others.collect::<String>())
}

fn compare(a: &Group, b: &Group, all: bool) -> Point {
    let is_shown = |name: &str| {
        let first = name.split('.').next().unwrap_or(name);
        let other_systems = study::names().any(|name| name == first);
        let headlines = HEADLINES.contains(&name) || COLLECTIVE_HEADLINES.contains(&name);
        all || headlines || is_stream_headline(name) || other_systems
    };
    let names: BTreeSet<&String> = a.measures.keys().chain(b.measures.keys()).collect();
    let is_equal = |x: &Values, y: &Values| a.seeds == b.seeds && x == y;
    let (mut measures, mut incomplete) = (Vec::new(), Vec::new());
    for name in names.into_iter().filter(|name| is_shown(name)) {
        match (a.measures.get(name), b.measures.get(name)) {
            // Values that are missing in the same runs of both, next to equal ones, are no difference.
            (Some(x), Some(y)) if (x.len() == a.runs && y.len() == b.runs) || is_equal(x, y) => {
                measures.push(measure(name.clone(), x, y));
            }
            _ => incomplete.push(name.clone()),
        }
    }
    if !a.missing.is_empty() || !b.missing.is_empty() {
        for measure in &mut measures {
            (measure.half_width, measure.p_value) = (f64::NAN, f64::NAN);
            measure.finding = Finding::Unknown;
        }
    }
    Point {
        label: a.label.clone(),
        set: a.set.clone(),
        seeds: [a.runs, b.runs],
        missing_seeds: [a.missing.clone(), b.missing.clone()],
        paired: a.seeds == b.seeds && a.runs > 1,
        measures,
        incomplete,
    }
}

/// Compares a measure. Runs of the same seeds have the same arrivals and sizes, so that their differences vary less than they do.
fn measure(name: String, a: &Values, b: &Values) -> Measure {
    let (x, y) = (Moments::of(a.iter().map(|(_, v)| *v)), Moments::of(b.iter().map(|(_, v)| *v)));
    let same_seeds = a.len() == b.len() && a.iter().zip(b).all(|((s, _), (t, _))| s == t);
    let (error, degrees) = if same_seeds && a.iter().all(|(seed, _)| seed.is_some()) {
        let differences = Moments::of(a.iter().zip(b).map(|((_, v), (_, w))| w - v));
        (differences.error(), differences.count - 1.0)
    } else {
        // Welch's test, with its number of degrees of freedom (NIST/SEMATECH e-Handbook 1.3.5.3).
        let errors = [x.error().powi(2), y.error().powi(2)];
        let sum = errors[0] + errors[1];
        let weights = errors[0].powi(2) / (x.count - 1.0) + errors[1].powi(2) / (y.count - 1.0);
        let degrees = if weights > 0.0 { sum * sum / weights } else { x.count + y.count - 2.0 };
        (sum.sqrt(), degrees)
    };
    let difference = y.mean - x.mean;
    let half_width = error * quantile(degrees);
    let is_same = difference == 0.0 && a.iter().zip(b).all(|((_, v), (_, w))| v == w);
    let p_value = match half_width {
        width if width.is_nan() => f64::NAN,
        _ if is_same => 1.0,
        _ => two_sided(difference.abs() / error, degrees),
    };
    let finding = if is_same {
        Finding::Same
    } else if half_width.is_nan() {
        Finding::Unknown
    } else if difference.abs() > half_width {
        Finding::Uncorrected
    } else {
        Finding::WithinNoise
    };
    // The correction needs all measures: see `correct`.
    Measure { name, a: x.mean, b: y.mean, half_width, p_value, p_holm: f64::NAN, finding }
}

/// Corrects for the number of measures (Holm, "A simple sequentially rejective multiple test procedure", 1979): that any of those which
/// do not differ in truth is a finding has a probability of 5 % at most, however they depend on each other. Measures that are the same in
/// every run count too, since only the results tell which ones these are.
fn correct(mut measures: Vec<&mut Measure>) {
    measures.retain(|measure| !measure.p_value.is_nan());
    measures.sort_by(|x, y| x.p_value.total_cmp(&y.p_value));
    let (mut largest, mut others) = (0.0_f64, measures.len() as f64);
    for measure in measures {
        largest = largest.max(measure.p_value * others).min(1.0);
        others -= 1.0;
        measure.p_holm = largest;
        if measure.finding == Finding::Uncorrected && largest <= ERROR_RATE {
            measure.finding = Finding::Differs;
        }
    }
}

/// Number, mean and variance of some values.
#[derive(Clone, Copy, Debug)]
struct Moments {
    count: f64,
    mean: f64,
    variance: f64,
}

impl Moments {
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let count = values.clone().count() as f64;
        let mean = values.clone().sum::<f64>() / count;
        let squares: f64 = values.map(|value| (value - mean).powi(2)).sum();
        // Not a number for a single value.
        Self { count, mean, variance: squares / (count - 1.0) }
    }

    /// Returns the standard error of the mean.
    fn error(self) -> f64 {
        (self.variance / self.count).sqrt()
    }
}

/// The quantile 0.975 of Student's t distribution; a fraction of a degree of freedom is ignored, which widens the interval.
fn quantile(degrees: f64) -> f64 {
    if degrees >= 1.0 { t_quantile(degrees as usize) } else { f64::NAN }
}

/// The probability that Student's t is at least this far from zero (Abramowitz and Stegun, 26.7.3 and 26.7.4). As for [`quantile`], a
/// fraction of a degree of freedom is ignored, and more than 30 count as 30, which makes it larger.
fn two_sided(t: f64, degrees: f64) -> f64 {
    let degrees = (degrees as u32).clamp(1, 30);
    let angle = (t / f64::from(degrees).sqrt()).atan();
    let is_odd = degrees % 2 == 1;
    let mut term = if is_odd { angle.cos() } else { 1.0 };
    let mut sum = if degrees == 1 { 0.0 } else { term };
    let mut power = if is_odd { 3 } else { 2 };
    while power + 2 <= degrees {
        term *= f64::from(power - 1) / f64::from(power) * angle.cos().powi(2);
        sum += term;
        power += 2;
    }
    let within = if is_odd {
        std::f64::consts::FRAC_2_PI * (angle + angle.sin() * sum)
    } else {
        angle.sin() * sum
    };
    (1.0 - within).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests;
