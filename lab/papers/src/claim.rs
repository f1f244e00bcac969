//! The contents of `claims.toml`: what a paper claims, and the rules by which a claim holds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path as FilePath, PathBuf};

use miette::{LabeledSpan, NamedSource};
use rackweave_lab::error::{ScenarioError, nearest};
use rackweave_lab::scenario::ScenarioText;
use serde::{Deserialize, Deserializer, Serialize};

use super::path::Path;
use super::select::{Relation, Selector, flatten};

/// The claims of one paper.
#[derive(Clone, Debug)]
pub struct Paper {
    /// The path of the file with the claims, for messages.
    pub(crate) file: String,
    /// The directory in which scenarios are looked up first, before the built-in ones; `None` for built-in claims.
    folder: Option<PathBuf>,
    pub(crate) content: File,
}

/// The contents of a `claims.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    /// The name of the paper, or of the system.
    pub(crate) paper: String,
    pub(crate) title: String,
    /// Where the paper can be found, such as its venue or URL.
    pub(crate) source: String,
    /// The day on which `cause` and `deviations` were written, whose figures are of the runs of then.
    #[serde(default)]
    pub(crate) written: String,
    /// Which of the authors' numbers are public, for the page of the papers.
    #[serde(default)]
    pub(crate) numbers: String,
    /// The paper's figures in its order.
    #[serde(default)]
    pub(crate) originals: Vec<Original>,
    /// The scenarios to run, by the name that claims use.
    pub(crate) scenarios: BTreeMap<String, ScenarioSpec>,
    pub(crate) claims: Vec<Claim>,
}

/// A figure of the paper, and what shows it here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Original {
    /// Its place in the paper: "figure 5", "slide 13".
    pub place: String,
    /// What it shows.
    pub title: String,
    /// The figures of claims that redraw it, as `CLAIM/FIGURE`, and claims whose numbers stand for it, as `CLAIM`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub here: Vec<String>,
    /// How the redrawn figure differs, or why there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScenarioSpec {
    /// A file next to `claims.toml`, or the name of a built-in scenario.
    pub(crate) file: String,
    #[serde(default)]
    pub(crate) quick: Quick,
    #[serde(default)]
    pub(crate) world: Worlds,
}

/// Where a scenario is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Worlds {
    /// The scenario runs in the simulator only.
    #[default]
    Simulated,
    /// Each point runs twice: in the simulator and on the testbed. The key `world` distinguishes them: "simulated",
    /// "real".
    Both,
}

/// What `--quick` changes in a scenario: it reduces sizes and repetitions and nothing else.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Quick {
    /// Arguments of `--set`, which may only set sizes and repetitions.
    pub(crate) set: Vec<String>,
    /// The points that are run.
    pub(crate) only: Selector,
}

/// One claim of a paper.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Claim {
    pub(crate) id: String,
    /// The claim in a sentence.
    pub(crate) claim: String,
    /// The slide, section or figure of the paper.
    pub(crate) source: String,
    /// What the paper reports, with its numbers.
    pub(crate) paper: String,
    /// The rules in words.
    pub(crate) holds_when: String,
    pub(crate) scenario: String,
    /// Where the experiment differs from the paper's.
    #[serde(default)]
    pub(crate) deviations: Vec<String>,
    /// Why it does not hold, as far as that is known. It is printed only if it does not.
    #[serde(default)]
    pub(crate) cause: String,
    pub(crate) rules: Vec<Rule>,
    #[serde(default)]
    pub(crate) figures: Vec<Figure>,
}

/// A comparison of two numbers for one case or for several, or a table of published numbers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    /// The rule in words.
    pub(crate) say: String,
    /// Whether its numbers, bounds and points were settled before the first run of its claim. Rules that only report have none.
    pub(crate) set: Option<RuleSet>,
    /// The scenario, if it is not the claim's.
    pub(crate) scenario: Option<String>,
    /// Selects the points from which both sides are taken.
    #[serde(default)]
    pub(crate) of: Selector,
    /// The swept keys for each of whose values the rule must hold.
    #[serde(default, deserialize_with = "one_or_many")]
    pub(crate) for_each: Vec<String>,
    pub(crate) left: Option<Operand>,
    pub(crate) is: Option<Relation>,
    pub(crate) right: Option<Operand>,
    /// The allowed deviation, as a share of the right side.
    #[serde(default)]
    pub(crate) tolerance: f64,
    /// A further allowed deviation, in the unit of the metric.
    #[serde(default)]
    pub(crate) slack: f64,
    /// The paper's ratio of left to right, shown next to the measured ratio.
    pub(crate) paper_ratio: Option<String>,
    /// Whether the outcome is only reported, so that the claim does not depend on it.
    #[serde(default)]
    pub(crate) report: bool,
    /// Whether the rule may hold although messages of its points failed or were not finished.
    #[serde(default)]
    pub(crate) despite_failures: bool,
    /// The published numbers of a table.
    #[serde(default)]
    pub(crate) cells: Vec<Cell>,
    /// For each field of a cell, the allowed deviation as a share of the published number.
    #[serde(default)]
    pub(crate) within: BTreeMap<String, f64>,
}

/// When a rule was settled in its present form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleSet {
    /// Before the first run of the claim, so that its outcome could not be known.
    Before,
    /// After a run of the claim: what is compared, the bound or the points were changed, whether it became looser or stricter.
    After,
}

/// One side of a rule: a number, or a metric of one or several points.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Operand {
    pub(crate) value: Option<f64>,
    pub(crate) metric: Option<Path>,
    /// The swept key whose value is used instead of a metric (times in microseconds, rates in Gbit/s).
    pub(crate) key: Option<String>,
    #[serde(default)]
    pub(crate) of: Selector,
    /// Keys whose lowest or highest value among the remaining points is chosen.
    #[serde(default, deserialize_with = "ends")]
    pub(crate) at: BTreeMap<String, End>,
    /// How a list within a point is reduced to a number.
    pub(crate) each: Option<Fold>,
    /// How several points are reduced to a number.
    pub(crate) over: Option<Fold>,
    #[serde(default = "one")]
    pub(crate) times: f64,
    /// Factors by value of the key in `for_each`: the side is multiplied by the factor of the case's value.
    #[serde(default)]
    pub(crate) per: BTreeMap<String, f64>,
    /// A key of `for_each` whose value in the case is added to the right side, after all factors.
    pub(crate) plus: Option<String>,
}

const fn one() -> f64 {
    1.0
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum End {
    Min,
    Max,
}

/// A function that reduces a list of numbers to one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Fold {
    Min,
    Max,
    Mean,
    Median,
    Sum,
}

impl Fold {
    pub(crate) fn of(self, numbers: &[f64]) -> f64 {
        match self {
            Self::Min => numbers.iter().copied().fold(f64::INFINITY, f64::min),
            Self::Max => numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            Self::Sum => numbers.iter().sum(),
            Self::Mean => numbers.iter().sum::<f64>() / numbers.len() as f64,
            Self::Median => median(numbers),
        }
    }
}

/// The middle number, or the mean of the two in the middle.
fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.get(middle.saturating_sub(1)..=middle) {
        Some([below, above]) if sorted.len().is_multiple_of(2) => f64::midpoint(*below, *above),
        _ => sorted.get(middle).copied().unwrap_or(f64::NAN),
    }
}

/// The published numbers of one place: `{ name = "W1, 28 B", of = { ... }, at = "by_size[...]", p50 = 1.27 }`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Cell {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) of: Selector,
    /// The place whose fields are compared.
    pub(crate) at: Path,
    /// The paper's number for each field.
    #[serde(flatten)]
    pub(crate) numbers: BTreeMap<String, f64>,
}

/// A figure of the paper that is redrawn from measured numbers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Figure {
    /// The suffix of the file's name.
    pub(crate) name: String,
    pub(crate) title: String,
    #[serde(default)]
    pub(crate) kind: FigureKind,
    pub(crate) scenario: Option<String>,
    #[serde(default)]
    pub(crate) of: Selector,
    /// The swept key for each of whose values a picture is drawn.
    pub(crate) for_each: Option<String>,
    /// The keys that distinguish the lines.
    #[serde(default = "by_label", deserialize_with = "one_or_many")]
    pub(crate) series: Vec<String>,
    /// How points at the same place are reduced to one. Without it, points must not coincide.
    pub(crate) over: Option<Fold>,
    #[serde(default)]
    pub(crate) x: FigureAxis,
    #[serde(default)]
    pub(crate) y: FigureAxis,
    /// Horizontal reference lines, such as the available bandwidth.
    #[serde(default)]
    pub(crate) lines: Vec<Reference>,
    /// Lines with the paper's published numbers.
    #[serde(default)]
    pub(crate) published: Vec<Published>,
}

fn by_label() -> Vec<String> {
    vec!["label".into()]
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FigureKind {
    /// A metric over a swept key.
    #[default]
    Sweep,
    /// The distribution of latency.
    Cdf,
    /// Slowdown over message size: `y.metric` is "p50" or "p99".
    BySize,
    /// The longest queue over time.
    Queue,
    /// The distribution of the send times of a cast: from a file's first buffer to its last acknowledgement.
    SendTimes,
    /// The distribution of the wait times of a cast's receivers: from the delivery of a file to that of the next one.
    WaitTimes,
    /// The traffic over time that the scenario counts, in a picture for each point.
    Traffic,
    /// The number of completed jobs over time.
    JobsDone,
    /// The circuits and jobs over time, in a picture for each point.
    Pod,
}

/// An axis of a figure.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct FigureAxis {
    pub(crate) title: String,
    pub(crate) log: bool,
    /// A value that the axis includes even if the data do not reach it.
    pub(crate) from: Option<f64>,
    /// The swept key along the axis.
    pub(crate) key: String,
    /// The metric along the axis.
    pub(crate) metric: Option<Path>,
    /// How a list within a point is reduced to a number.
    pub(crate) each: Option<Fold>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reference {
    pub(crate) name: String,
    /// Whether it is a number of the paper.
    #[serde(default)]
    pub(crate) published: bool,
    pub(crate) y: Option<f64>,
    /// In place of `y`: the mean of this metric over the points that the picture shows.
    pub(crate) metric: Option<Path>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Published {
    pub(crate) name: String,
    /// The value whose picture the line belongs to, in a figure with a picture for each value of a key.
    pub(crate) value: Option<String>,
    /// The measured line with which it is compared, and whose colour it has.
    pub(crate) of: Option<String>,
    pub(crate) points: Vec<(f64, f64)>,
}

fn one_or_many<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Keys {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Keys::deserialize(from)? {
        Keys::One(key) => vec![key],
        Keys::Many(keys) => keys,
    })
}

fn ends<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, End>, D::Error> {
    let flat = flatten(toml::Table::deserialize(from)?).into_iter();
    flat.map(|(key, value)| Ok((key, value.try_into().map_err(serde::de::Error::custom)?)))
        .collect()
}

impl Paper {
    /// Reads claims from a file.
    ///
    /// # Errors
    /// If the file cannot be read or is not a valid file of claims.
    pub fn load(path: &FilePath) -> Result<Self, ScenarioError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| ScenarioError::new(format!("cannot read `{shown}`: {error}")))?;
        let folder = path.parent().map(FilePath::to_owned).unwrap_or_default();
        Self::parse(&shown, &text, Some(folder))
    }

    /// Reads claims from a text. Scenarios are looked up in `folder`, then among the built-in ones.
    ///
    /// # Errors
    /// The error says what is invalid and where.
    pub fn parse(file: &str, text: &str, folder: Option<PathBuf>) -> Result<Self, ScenarioError> {
        let content: File = toml::from_str(text).map_err(|error| {
            let message = format!("`{file}` is no file of claims: {}", error.message().trim_end());
            let span = error.span().unwrap_or(0..0);
            let source = NamedSource::new(file, text.to_owned()).with_language("TOML");
            let label = Some("here".to_owned());
            ScenarioError::new(message).at(source, LabeledSpan::new(label, span.start, span.len()))
        })?;
        let paper = Self { file: file.to_owned(), folder, content };
        let mut ids = BTreeSet::new();
        for claim in &paper.content.claims {
            if !ids.insert(&claim.id) {
                return Err(paper.error(claim, "there is another claim of this name"));
            }
            claim.check().map_err(|message| paper.error(claim, &message))?;
            for name in claim.scenarios() {
                paper.scenario(name).map_err(|error| paper.error(claim, error.message()))?;
            }
        }
        for original in &paper.content.originals {
            paper.check_original(original).map_err(|message| {
                let Original { place, title, .. } = original;
                ScenarioError::new(format!("{file}, [[originals]] {place}, {title:?}: {message}"))
            })?;
        }
        Ok(paper)
    }

    /// Checks that the figures and claims that show an original exist.
    fn check_original(&self, original: &Original) -> Result<(), String> {
        if original.here.is_empty() && original.note.is_empty() {
            return Err("it has neither `here` nor a `note` that says why".into());
        }
        for shown in &original.here {
            let (id, figure) = match shown.split_once('/') {
                Some((id, figure)) => (id, Some(figure)),
                None => (shown.as_str(), None),
            };
            let claim = self.content.claims.iter().find(|claim| claim.id == id);
            let claim = claim.ok_or_else(|| format!("there is no claim `{id}`"))?;
            if let Some(figure) = figure
                && claim.figures.iter().all(|known| known.name != figure)
            {
                return Err(format!("claim `{id}` has no figure `{figure}`"));
            }
        }
        Ok(())
    }

    /// Returns the name of the paper or system.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.content.paper
    }

    /// Returns the names of its claims.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.content.claims.iter().map(|claim| claim.id.as_str())
    }

    /// Returns an error that names file and claim.
    pub(crate) fn error(&self, claim: &Claim, message: &str) -> ScenarioError {
        ScenarioError::new(format!("{}, claim `{}`: {message}", self.file, claim.id))
    }

    pub(crate) fn scenario(&self, name: &str) -> Result<&ScenarioSpec, ScenarioError> {
        let scenarios = &self.content.scenarios;
        scenarios.get(name).ok_or_else(|| {
            let near = nearest(name, scenarios.keys().map(String::as_str));
            let hint = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            ScenarioError::new(format!("there is no [scenarios.{name}]{hint}"))
        })
    }

    /// Returns the text of a scenario: of the file next to the claims, whose name may lack `.toml`, or else of the
    /// built-in one.
    pub(crate) fn scenario_text(&self, spec: &ScenarioSpec) -> Result<ScenarioText, ScenarioError> {
        let beside = self.folder.iter().flat_map(|folder| {
            [spec.file.clone(), format!("{}.toml", spec.file)].map(|name| folder.join(name))
        });
        match beside.into_iter().find(|path| path.is_file()) {
            Some(path) => ScenarioText::load(&path.to_string_lossy()),
            None => ScenarioText::load(&spec.file),
        }
    }
}

impl Claim {
    /// Returns the scenarios that the claim needs, its own first.
    pub(crate) fn scenarios(&self) -> Vec<&str> {
        let rules = self.rules.iter().filter_map(|rule| rule.scenario.as_deref());
        let figures = self.figures.iter().filter_map(|figure| figure.scenario.as_deref());
        let mut names = vec![self.scenario.as_str()];
        for name in rules.chain(figures) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Checks what serde does not check.
    fn check(&self) -> Result<(), String> {
        // The name is used in file names.
        let safe = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if self.id.is_empty() || self.id.starts_with('.') || !self.id.chars().all(safe) {
            return Err("a name has letters, digits, `-`, `_` and `.`".into());
        }
        if self.rules.is_empty() {
            return Err("it has no rules".into());
        }
        for rule in &self.rules {
            rule.check().map_err(|error| format!("rule {:?}: {error}", rule.say))?;
        }
        for figure in &self.figures {
            let has_lines = !figure.lines.is_empty() || !figure.published.is_empty();
            if has_lines && !figure.is_lines() {
                let name = &figure.name;
                return Err(format!(
                    "figure `{name}`: this kind has neither `lines` nor `published`"
                ));
            }
            let sweep = figure.kind == FigureKind::Sweep;
            if sweep && (figure.x.key.is_empty() || figure.y.metric.is_none()) {
                return Err(format!("figure `{}` needs `x.key` and `y.metric`", figure.name));
            }
            for line in &figure.lines {
                if line.y.is_some() == line.metric.is_some() {
                    let name = &figure.name;
                    return Err(format!("figure `{name}`: a line has either `y` or `metric`"));
                }
            }
            // By size, the metric names a percentile.
            if sweep && let Some(metric) = &figure.y.metric {
                metric.check().map_err(|error| format!("figure `{}`: {error}", figure.name))?;
            }
            for metric in figure.lines.iter().filter_map(|line| line.metric.as_ref()) {
                metric.check().map_err(|error| format!("figure `{}`: {error}", figure.name))?;
            }
            if let Some(metric) = &figure.y.metric
                && metric.is_list()
                && figure.y.each.is_none()
            {
                return Err(format!("figure `{}` needs `y.each` with [*]", figure.name));
            }
        }
        Ok(())
    }
}

impl Figure {
    /// Whether points share pictures, each as a line.
    pub(crate) const fn is_lines(&self) -> bool {
        !matches!(self.kind, FigureKind::Traffic | FigureKind::Pod)
    }
}

impl Rule {
    fn check(&self) -> Result<(), String> {
        match (&self.left, self.is, &self.right, self.cells.is_empty()) {
            (Some(left), Some(_), Some(right), true) => {
                left.check()?;
                right.check()?;
                for metric in [left, right].into_iter().filter_map(|side| side.metric.as_ref()) {
                    metric.check()?;
                }
            }
            (None, None, None, false) => {
                for field in self.cells.iter().flat_map(|cell| cell.numbers.keys()) {
                    if !self.within.contains_key(field) {
                        return Err(format!("`within` says nothing of `{field}`"));
                    }
                }
                for cell in &self.cells {
                    for field in cell.numbers.keys() {
                        let named = |error| format!("cell {:?}: {error}", cell.name);
                        cell.metric(field).and_then(|it| it.check()).map_err(named)?;
                    }
                }
                if self.cells.iter().any(|cell| cell.numbers.is_empty()) {
                    return Err("a cell has no published number".into());
                }
            }
            _ => return Err("it needs `left`, `is` and `right`, or `cells` and `within`".into()),
        }
        if !self.report && self.set.is_none() {
            return Err("it decides: `set` says whether it was settled \"before\" the claim's first run, or \"after\" one".into());
        }
        if self.is == Some(Relation::SameOrder) && self.for_each.is_empty() {
            return Err("`same-order` compares the cases of `for_each`".into());
        }
        let wrong = |x: f64| !(0.0..1.0).contains(&x);
        if !self.slack.is_finite() || self.slack < 0.0 {
            return Err("`slack` is a number of at least 0".into());
        }
        if self.right.as_ref().is_some_and(|right| !right.per.is_empty())
            && self.for_each.len() != 1
        {
            return Err("`per` goes with a `for_each` of one key".into());
        }
        if let Some(key) = self.right.as_ref().and_then(|right| right.plus.as_ref())
            && !self.for_each.contains(key)
        {
            return Err(format!("`plus` needs `{key}` in `for_each`"));
        }
        if self.left.as_ref().is_some_and(|left| left.plus.is_some()) {
            return Err("`plus` goes with a right side".into());
        }
        if wrong(self.tolerance) || self.within.values().any(|x| wrong(*x)) {
            return Err("tolerances are shares from 0 to 1".into());
        }
        Ok(())
    }
}

impl Cell {
    /// Returns the metric of one of its fields.
    pub(crate) fn metric(&self, field: &str) -> Result<Path, String> {
        Path::parse(&format!("{}.{field}", self.at))
    }
}

impl Operand {
    fn check(&self) -> Result<(), String> {
        if self.key.is_some() {
            let only_key = self.metric.is_none() && self.value.is_none() && self.each.is_none();
            let finite = self.times.is_finite() && self.per.is_empty();
            return if only_key && finite {
                Ok(())
            } else {
                Err("a side with `key` has neither `metric`, `value`, `each` nor `per`".into())
            };
        }
        match (&self.metric, self.value) {
            (Some(metric), None) if metric.is_list() != self.each.is_some() => {
                Err(format!("`each` belongs to a metric with [*]: `{metric}`"))
            }
            (Some(_), None) | (None, Some(_))
                if !self.value.unwrap_or(0.0).is_finite() || !self.times.is_finite() =>
            {
                Err("`value` and `times` are finite".into())
            }
            (Some(_), None) | (None, Some(_)) => Ok(()),
            _ => Err("a side has either `metric` or `value`".into()),
        }
    }
}
