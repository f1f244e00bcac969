//! The evaluation of rules on the points of a scenario.

use rackweave_lab::report::number::short;
use rackweave_lab::results::plain;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::claim::{Cell, End, Fold, Operand, Rule, RuleSet};
use super::path::{Missing, Path};
use super::select::{PointKey, Relation, Selector, known_keys, number};

/// The points of a scenario: the keys that identify them, and their summaries where they have finished.
#[derive(Debug)]
pub(crate) struct Points {
    pub(crate) keys: Vec<PointKey>,
    pub(crate) summaries: Vec<Option<Value>>,
    /// For each point that finished, a description of messages that failed or were not finished.
    pub(crate) failures: Vec<Option<String>>,
    /// For each point on real hosts whose machine was busy, what they got of it.
    pub(crate) busy: Vec<Option<String>>,
}

/// A comparison of two numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// The values of the keys that identify this case; empty if there is only one case.
    pub case: String,
    /// The left side of the comparison, which is measured.
    #[serde(deserialize_with = "or_nan")]
    pub left: f64,
    /// The relation to the right side that must hold.
    pub relation: String,
    /// The right side of the comparison, or the published number.
    #[serde(deserialize_with = "or_nan")]
    pub right: f64,
    /// Whether the relation holds.
    pub holds: bool,
    /// The distance from the limit as a share of the right side; negative if the relation does not hold.
    #[serde(deserialize_with = "or_nan")]
    pub margin: f64,
    /// Both sides with their units, in words.
    pub text: String,
}

/// Reads a number that is `null` in JSON if it is not finite.
fn or_nan<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// The result of a rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ruling {
    /// The rule in words.
    pub rule: String,
    /// Whether it holds; `null` if a number is missing.
    pub holds: Option<bool>,
    /// Whether the claim depends on it.
    pub decides: bool,
    /// Whether it was settled before the first run of its claim; `None` if it only reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<RuleSet>,
    /// The measured numbers that decided, in words.
    pub here: String,
    /// The paper's ratio of left to right, if the rule has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paper_ratio: Option<String>,
    /// Every comparison of the rule.
    pub checks: Vec<Check>,
}

/// Why a rule cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RuleError {
    /// The rule is invalid: it names something that does not exist.
    Wrong(String),
    /// A number is missing, because the point was not finished or had no message to measure.
    Missing(String),
}

/// The points that one side of a rule refers to.
enum Selection {
    Constant(f64),
    Points(Vec<usize>),
}

/// Both sides of a rule, for one combination of values of the keys in `for_each`.
struct Case {
    name: String,
    left: Selection,
    right: Selection,
    /// The factor from `per` for this case, by which the right side is multiplied.
    factor: f64,
    /// The value of `plus` in this case, which is added to the right side.
    plus: f64,
}

/// Applies a rule to points.
pub(crate) fn apply(rule: &Rule, points: &Points) -> Result<Ruling, RuleError> {
    let (checks, skipped) =
        if rule.cells.is_empty() { (comparisons(rule, points)?, 0) } else { cells(rule, points)? };
    let mut holds = Some(checks.iter().all(|check| check.holds));
    let mut here = sentence(&checks);
    // Statistics over the remaining messages would look better than they are.
    if holds == Some(true)
        && !rule.despite_failures
        && let Some(failure) = failure(rule, points).map_err(RuleError::Wrong)?
    {
        holds = None;
        here += &format!(", but of what is compared {failure}");
    }
    if let Some(busy) = busy(rule, points).map_err(RuleError::Wrong)? {
        holds = None;
        here += &format!(", but the machine was busy: {busy}");
    }
    if let Some(ratio) = &rule.paper_ratio {
        here += &format!(", paper {ratio}");
    }
    if skipped > 0 {
        here += &format!(" ({skipped} of the published numbers are not tried in this run)");
    }
    Ok(Ruling {
        rule: rule.say.clone(),
        holds,
        decides: !rule.report,
        set: rule.set,
        here,
        paper_ratio: rule.paper_ratio.clone(),
        checks,
    })
}

impl Ruling {
    /// Returns the measured numbers in a few words, for an overview: how many comparisons hold, and the sides of the one with the least
    /// margin.
    pub(crate) fn brief(&self) -> String {
        let worst = self.checks.iter().min_by(|a, b| a.margin.total_cmp(&b.margin));
        let Some(worst) = worst.filter(|_| self.holds.is_some()) else {
            return "no numbers".into();
        };
        let sides = &worst.text;
        let held = self.checks.iter().filter(|check| check.holds).count();
        match (self.checks.len(), held) {
            (1, _) => sides.clone(),
            (all, _) => format!("{held} of {all}, {sides}"),
        }
    }

    /// Returns the result of a rule that cannot be applied because a number is missing.
    pub(crate) fn undecided(rule: &Rule, why: String) -> Self {
        Self {
            rule: rule.say.clone(),
            holds: None,
            decides: !rule.report,
            set: rule.set,
            here: why,
            paper_ratio: rule.paper_ratio.clone(),
            checks: Vec::new(),
        }
    }
}

/// Checks that every point that the rule names exists, without running anything.
///
/// `whole` has the points of the full run, which contains every cell.
pub(crate) fn check(rule: &Rule, keys: &[PointKey], whole: &[PointKey]) -> Result<(), String> {
    if rule.cells.is_empty() {
        return cases(rule, keys).map(drop);
    }
    let mut any = false;
    for cell in &rule.cells {
        if cell_point(rule, cell, whole)?.is_none() {
            return Err(format!("no point has the cell {:?}; {}", cell.name, known(whole)));
        }
        any |= cell_point(rule, cell, keys)?.is_some();
    }
    if any { Ok(()) } else { Err("no point has any of its cells".into()) }
}

/// Returns what went wrong at a point that the rule uses, unless the rule is about that.
fn failure<'a>(rule: &Rule, points: &'a Points) -> Result<Option<&'a str>, String> {
    let mut used = Vec::new();
    let mut note = |operand: Option<&Operand>, picked: Selection| {
        let counts =
            |path: &Path| path.as_str().starts_with("messages.") || path.as_str() == "refused";
        let is_of_failures =
            operand.and_then(|operand| operand.metric.as_ref()).is_some_and(counts);
        if let Selection::Points(indices) = picked
            && !is_of_failures
        {
            used.extend(indices);
        }
    };
    if rule.cells.is_empty() {
        for Case { left, right, .. } in cases(rule, &points.keys)? {
            note(rule.left.as_ref(), left);
            note(rule.right.as_ref(), right);
        }
    }
    for cell in &rule.cells {
        let found = cell_point(rule, cell, &points.keys)?;
        note(None, Selection::Points(found.into_iter().collect()));
    }
    Ok(used.into_iter().find_map(|index| points.failures[index].as_deref()))
}

/// Returns what the hosts of a side lacked if its number is that of a busy machine; `None` for counts, which a busy machine does
/// not change. The median of several runs stays among those of a quiet machine while fewer than half were on a busy one.
fn busy<'a>(rule: &Rule, points: &'a Points) -> Result<Option<&'a str>, String> {
    if rule.is == Some(Relation::Equal) || points.busy.iter().all(Option::is_none) {
        return Ok(None);
    }
    for Case { left, right, .. } in cases(rule, &points.keys)? {
        for (operand, picked) in [(&rule.left, left), (&rule.right, right)] {
            let Selection::Points(indices) = picked else { continue };
            let mut busy = indices.iter().filter_map(|index| points.busy[*index].as_deref());
            let count = busy.clone().count();
            let is_median = operand.as_ref().is_some_and(|side| side.over == Some(Fold::Median));
            if count > 0 && !(is_median && count * 2 < indices.len()) {
                return Ok(busy.next());
            }
        }
    }
    Ok(None)
}

fn cases(rule: &Rule, keys: &[PointKey]) -> Result<Vec<Case>, String> {
    let (Some(left), Some(right)) = (&rule.left, &rule.right) else {
        return Err("it has no sides".into());
    };
    let mut names: Vec<Vec<(&str, &Value)>> = vec![Vec::new()];
    if !rule.for_each.is_empty() {
        let of_left = |key: &&PointKey| rule.of.matches(key) && left.of.matches(key);
        names.clear();
        for point in keys.iter().filter(of_left) {
            let group: Option<Vec<(&str, &Value)>> =
                rule.for_each.iter().map(|key| Some((key.as_str(), point.get(key)?))).collect();
            let group =
                group.ok_or_else(|| unknown_key(&format!("for_each {:?}", rule.for_each), keys))?;
            if !names.contains(&group) {
                names.push(group);
            }
        }
        if names.is_empty() {
            return Err(format!("no point for the left side; {}", known(keys)));
        }
    }
    let case = |group: Vec<(&str, &Value)>| {
        let name = group.iter().map(|(key, value)| {
            format!("{} {}", key.rsplit('.').next().unwrap_or(key), plain(value))
        });
        let name = name.collect::<Vec<_>>().join(", ");
        let side = |operand: &Operand, side: &str| {
            // The left side determines the cases. The right side may be the same for all of them.
            let free = |key: &str| {
                let own = operand.of.keys().any(|own| own == key);
                side == "right" && (own || operand.at.contains_key(key))
            };
            let tied: Vec<_> = group.iter().copied().filter(|(key, _)| !free(key)).collect();
            pick(operand, &rule.of, &tied, keys).map_err(|error| {
                let at = if name.is_empty() { String::new() } else { format!(" at {name}") };
                format!("{side} side{at}: {error}")
            })
        };
        let factor = match (&group[..], right.per.is_empty()) {
            (_, true) => 1.0,
            ([(key, value)], false) => *right
                .per
                .get(&plain(value))
                .ok_or_else(|| format!("`per` has no number for {key} = {}", plain(value)))?,
            _ => return Err("`per` goes with a `for_each` of one key".into()),
        };
        let plus = match &right.plus {
            None => 0.0,
            Some(plus) => (group.iter().find(|(key, _)| key == plus))
                .and_then(|(_, value)| number(value))
                .ok_or_else(|| format!("`plus`: `{plus}` is no number"))?,
        };
        let (left, right) = (side(left, "left")?, side(right, "right")?);
        Ok(Case { left, right, factor, plus, name: name.clone() })
    };
    names.into_iter().map(case).collect()
}

fn known(keys: &[PointKey]) -> String {
    format!("points differ in {}", known_keys(keys).join(", "))
}

fn unknown_key(what: &str, keys: &[PointKey]) -> String {
    format!("{what}: some point has no such key; {}", known(keys))
}

/// Returns an error for a key that no point of the scenario has, which is a mistake in the rule.
pub(crate) fn refuse_unknown(selector: &Selector, keys: &[PointKey]) -> Result<(), String> {
    match selector.keys().find(|key| keys.iter().all(|point| point.get(key).is_none())) {
        None => Ok(()),
        Some(key) => Err(format!("no point has the key `{key}`; {}", known(keys))),
    }
}

/// Returns the points of one side in a case, which binds keys to values.
fn pick(
    operand: &Operand,
    of: &Selector,
    tied: &[(&str, &Value)],
    keys: &[PointKey],
) -> Result<Selection, String> {
    if let Some(value) = operand.value {
        return Ok(Selection::Constant(value * operand.times));
    }
    refuse_unknown(of, keys)?;
    refuse_unknown(&operand.of, keys)?;
    let in_group =
        |point: &PointKey| tied.iter().all(|(key, value)| point.get(key) == Some(*value));
    let mut picked: Vec<usize> = (0..keys.len())
        .filter(|&i| {
            let point = &keys[i];
            of.matches(point) && operand.of.matches(point) && in_group(point)
        })
        .collect();
    for (key, end) in &operand.at {
        let at = |i: usize| keys[i].get(key).and_then(number);
        let values = picked.iter().filter_map(|&i| at(i));
        let best = match end {
            End::Min => values.fold(f64::INFINITY, f64::min),
            End::Max => values.fold(f64::NEG_INFINITY, f64::max),
        };
        picked.retain(|&i| at(i) == Some(best));
        if picked.is_empty() {
            return Err(format!("no point has a number at `{key}`; {}", known(keys)));
        }
    }
    match (picked.len(), operand.over) {
        (0, _) => Err(format!("no point is like that; {}", known(keys))),
        (1, _) | (_, Some(_)) => Ok(Selection::Points(picked)),
        (n, None) => {
            Err(format!("{n} points are like that: choose one, or say `over`; {}", known(keys)))
        }
    }
}

/// Returns the numbers at a path in a point.
fn read(points: &Points, index: usize, path: &Path) -> Result<Vec<f64>, RuleError> {
    let Some(summary) = &points.summaries[index] else {
        return Err(RuleError::Missing("a point that it needs was not finished".into()));
    };
    path.numbers(summary).map_err(|missing| match missing {
        Missing::Unknown(message) => RuleError::Wrong(message),
        Missing::NoNumber => {
            RuleError::Missing(format!("`{path}` has no number at one of its points"))
        }
    })
}

/// One side's number and, if it is the mean or median of several points, their lowest and highest number.
struct Side {
    number: f64,
    spread: Option<(f64, f64)>,
}

impl Side {
    fn constant(number: f64) -> Self {
        Self { number, spread: None }
    }

    fn of(numbers: &[f64], operand: &Operand) -> Self {
        let fold = |fold: Fold| fold.of(numbers) * operand.times;
        let is_middle =
            matches!(operand.over, Some(Fold::Mean | Fold::Median)) && numbers.len() > 1;
        Self {
            number: operand.over.map_or_else(|| numbers[0] * operand.times, fold),
            spread: is_middle.then(|| (fold(Fold::Min), fold(Fold::Max))),
        }
    }

    fn write(&self, factor: f64, plus: f64, write: impl Fn(f64) -> String) -> String {
        let number = write(self.number * factor + plus);
        match self.spread {
            Some((low, high)) => {
                format!(
                    "{number} [{} to {}]",
                    write(low * factor + plus),
                    write(high * factor + plus)
                )
            }
            None => number,
        }
    }
}

fn side(operand: &Operand, picked: &Selection, points: &Points) -> Result<Side, RuleError> {
    if let (Selection::Points(indices), Some(key)) = (picked, &operand.key) {
        let value = |index: &usize| points.keys[*index].get(key).and_then(number);
        let values: Vec<f64> = indices.iter().filter_map(value).collect();
        if values.len() < indices.len() {
            return Err(RuleError::Wrong(format!("`{key}` is no number at some point")));
        }
        return Ok(Side::of(&values, operand));
    }
    let (indices, path) = match (picked, &operand.metric) {
        (Selection::Constant(value), _) => return Ok(Side::constant(*value)),
        (Selection::Points(indices), Some(path)) => (indices, path),
        (Selection::Points(_), None) => {
            return Err(RuleError::Wrong("a side without metric".into()));
        }
    };
    let mut numbers = Vec::with_capacity(indices.len());
    for &index in indices {
        let found = read(points, index, path)?;
        numbers.push(match operand.each {
            Some(fold) => fold.of(&found),
            None => found[0],
        });
    }
    Ok(Side::of(&numbers, operand))
}

fn comparisons(rule: &Rule, points: &Points) -> Result<Vec<Check>, RuleError> {
    let (Some(left), Some(relation), Some(right)) = (&rule.left, rule.is, &rule.right) else {
        return Err(RuleError::Wrong("it has no sides".into()));
    };
    let metric = left.metric.as_ref().or(right.metric.as_ref());
    let write = |x: f64| metric.map_or_else(|| short(x), |metric| metric.write(x));
    let cases = cases(rule, &points.keys).map_err(RuleError::Wrong)?;
    let mut checks = Vec::with_capacity(cases.len());
    if relation == Relation::SameOrder {
        let numbers = cases.into_iter().map(|case| {
            let left = side(left, &case.left, points)?.number;
            let right = side(right, &case.right, points)?.number * case.factor + case.plus;
            Ok(Numbers { name: case.name, left, right })
        });
        let numbers: Vec<Numbers> = numbers.collect::<Result<_, RuleError>>()?;
        return Ok(orders(&numbers, rule.tolerance, write));
    }
    for case in cases {
        let left_side = side(left, &case.left, points)?;
        let right_side = side(right, &case.right, points)?;
        let (a, b) = (left_side.number, right_side.number * case.factor + case.plus);
        // The slack in the unit of the metric, as a share.
        let slack = if b == 0.0 { 0.0 } else { rule.slack / b.abs() };
        let tolerance = rule.tolerance + slack;
        let ratio = if b == 0.0 || a == b || right.value.is_some() && right.times == 1.0 {
            String::new()
        } else {
            format!(" ({} times)", short(a / b))
        };
        let holds = relation.holds(a, b, tolerance);
        let sign = if holds { relation.to_string() } else { format!("not {relation}") };
        checks.push(Check {
            text: format!(
                "{} {sign} {}{ratio}",
                left_side.write(1.0, 0.0, write),
                right_side.write(case.factor, case.plus, write)
            ),
            case: case.name,
            left: a,
            relation: relation.to_string(),
            right: b,
            holds,
            margin: margin(relation, a, b, tolerance),
        });
    }
    Ok(checks)
}

/// Returns the distance from the limit as a share of the right side.
fn margin(relation: Relation, left: f64, right: f64, tolerance: f64) -> f64 {
    let scale = if right == 0.0 { 1.0 } else { right.abs() };
    let over = (left - right) / scale;
    match relation {
        Relation::Above | Relation::AtLeast => over + tolerance,
        Relation::Below | Relation::AtMost => tolerance - over,
        Relation::Equal => -over.abs(),
        Relation::Within => tolerance - over.abs(),
        Relation::SameOrder => over,
    }
}

/// A case with its numbers: of its left side and of its right side.
struct Numbers {
    name: String,
    left: f64,
    right: f64,
}

/// Returns a check for each two cases whose right sides are more than `apart` from each other, as a share of the smaller one: the left
/// sides must have the same order.
fn orders(cases: &[Numbers], apart: f64, write: impl Fn(f64) -> String) -> Vec<Check> {
    let mut checks = Vec::new();
    for high in cases {
        for low in cases.iter().filter(|low| high.right > low.right * (1.0 + apart)) {
            let relation = Relation::SameOrder;
            let holds = relation.holds(high.left, low.left, 0.0);
            let sign = if holds { relation.to_string() } else { format!("not {relation}") };
            checks.push(Check {
                case: format!("{} and {}", high.name, low.name),
                left: high.left,
                relation: relation.to_string(),
                right: low.left,
                holds,
                margin: margin(relation, high.left, low.left, 0.0),
                text: format!(
                    "{} {sign} {} (to be compared with {} > {})",
                    write(high.left),
                    write(low.left),
                    write(high.right),
                    write(low.right)
                ),
            });
        }
    }
    checks
}

/// Returns the point of a cell; `None` if this run leaves it out.
fn cell_point(rule: &Rule, cell: &Cell, keys: &[PointKey]) -> Result<Option<usize>, String> {
    refuse_unknown(&rule.of, keys)?;
    refuse_unknown(&cell.of, keys)?;
    let is = |i: &usize| rule.of.matches(&keys[*i]) && cell.of.matches(&keys[*i]);
    let found: Vec<usize> = (0..keys.len()).filter(is).collect();
    match found[..] {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        _ => Err(format!("{} points have the cell {:?}; {}", found.len(), cell.name, known(keys))),
    }
}

/// Returns comparisons of published and measured numbers, and the number of cells that were not run.
fn cells(rule: &Rule, points: &Points) -> Result<(Vec<Check>, usize), RuleError> {
    let (mut checks, mut skipped) = (Vec::new(), 0);
    for cell in &rule.cells {
        let found = cell_point(rule, cell, &points.keys).map_err(RuleError::Wrong)?;
        let Some(index) = found else {
            skipped += cell.numbers.len();
            continue;
        };
        for (field, paper) in &cell.numbers {
            let path = cell.metric(field).map_err(RuleError::Wrong)?;
            let here = read(points, index, &path)?[0];
            let tolerance = rule.within.get(field).copied().unwrap_or(0.0);
            checks.push(Check {
                case: format!("{}, {field}", cell.name),
                left: here,
                relation: Relation::Within.to_string(),
                right: *paper,
                holds: Relation::Within.holds(here, *paper, tolerance),
                margin: margin(Relation::Within, here, *paper, tolerance),
                text: format!(
                    "{}, paper {} ({:+.0} %)",
                    path.write(here),
                    path.write(*paper),
                    (here / paper - 1.0) * 100.0
                ),
            });
        }
    }
    Ok((checks, skipped))
}

/// Describes the case that decided: the one nearest to the limit, or farthest beyond it.
fn sentence(checks: &[Check]) -> String {
    let worst = checks.iter().min_by(|a, b| a.margin.total_cmp(&b.margin));
    let Some(worst) = worst else { return "nothing to compare".into() };
    if checks.len() == 1 {
        return worst.text.clone();
    }
    let Check { case, text, .. } = worst;
    let (held, all) = (checks.iter().filter(|check| check.holds).count(), checks.len());
    if held < all {
        return format!("{held} of {all} comparisons hold; the worst, {case}: {text}");
    }
    // Where all are equally close, none is the closest.
    let is_closest = checks.iter().any(|check| check.margin > worst.margin);
    let which = if is_closest { "the closest, " } else { "" };
    format!("all {all} comparisons hold; {which}{case}: {text}")
}
