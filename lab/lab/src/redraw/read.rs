//! One result, as it is on the disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rackweave_core::Span;
use rackweave_sim::config::{Dark, Pod};
use serde::Deserialize as _;
use serde_json::Value;

use super::{RedrawError, repeating, series};
use crate::difference::flatten;
use crate::error::OutputError;
use crate::null::Nullable;
use crate::output::{COMMAND_LINE, SavedDir};
use crate::results::seeds::SEED;
use crate::results::{MissingPoint, PointFailure, PointResult, PointSummary};
use crate::scenario::{Scenario, ScenarioText, World};
use crate::study::{self, StudySummary};
use crate::sweep::SWEEP;
use crate::tables::Table;

/// The name of the file with the scenario.
pub(super) const RESOLVED: &str = "scenario.resolved.toml";

/// The tables that every run writes and a report needs.
const NEEDED: [&str; 5] = ["points", "slowdown_curve", "latency_cdf", "queues", "links"];

/// The tables that only some runs write.
const FURTHER: [&str; 3] = ["goodput", "traffic", "circuits"];

/// A result.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) folder: PathBuf,
    pub(super) saved: SavedDir,
    pub(super) scenario: String,
    pub(super) seed: u64,
    pub(super) version: String,
    pub(super) wall_s: f64,
    pub(super) peak_rss_bytes: u64,
    pub(super) is_interrupted: bool,
    pub(super) failures: Vec<PointFailure>,
    pub(super) missing: Vec<MissingPoint>,
    pub(super) points: Vec<PointResult>,
    /// The indices of its points in its own files, in their order.
    pub(super) indices: Vec<u64>,
    /// The index of its first point among those of all results.
    pub(super) first: usize,
    pub(super) title: String,
    pub(super) description: String,
    /// The resolved scenario, without the comment at its head; empty if it is not there.
    pub(super) toml: String,
    /// The keys of the resolved scenario, and their values.
    keys: BTreeMap<String, Value>,
    pub(super) command: String,
    pub(super) facts: Vec<(String, String)>,
}

impl Source {
    pub(super) fn read(path: &Path) -> Result<Self, RedrawError> {
        let is_summary = path.file_name().is_some_and(|name| name == "summary.json");
        let folder = if is_summary && path.is_file() { path.parent() } else { None };
        let folder = folder.unwrap_or(path);
        let saved = match SavedDir::open(folder) {
            Err(_) if folder.join(SWEEP).exists() => {
                return Err(RedrawError::NotMerged(folder.to_owned()));
            }
            saved => saved?,
        };
        let summary = folder.join("summary.json");
        let text = saved.text("summary.json")?;
        let wrong = |version: &str, problem: String| RedrawError::Summary {
            path: summary.clone(),
            version: version.to_owned(),
            problem,
        };
        let value: Value =
            serde_json::from_str(&text).map_err(|error| wrong("", error.to_string()))?;
        let version = value["version"].as_str().unwrap_or_default().to_owned();
        let wrong = |problem: String| wrong(&version, problem);
        let list = |name: &str| value[name].as_array().map_or(&[][..], Vec::as_slice);
        if !value["points"].is_array() {
            return Err(wrong("it has no list `points`".to_owned()));
        }
        let read = |point| PointSummary::deserialize(Nullable(point));
        let summaries: Result<Vec<PointSummary>, _> = list("points").iter().map(read).collect();
        let failure = |failure| PointFailure::deserialize(Nullable(failure));
        let failures: Result<Vec<PointFailure>, _> = list("failures").iter().map(failure).collect();
        let missing = |missing| MissingPoint::deserialize(Nullable(missing));
        let missing: Result<Vec<MissingPoint>, _> = list("missing").iter().map(missing).collect();
        let scenario = value["scenario"].as_str().unwrap_or_default().to_owned();
        let toml = saved.text(RESOLVED).unwrap_or_default();
        let mut source = Self {
            folder: folder.to_owned(),
            title: scenario.clone(),
            scenario,
            seed: value[SEED].as_u64().unwrap_or(0),
            wall_s: value["wall_s"].as_f64().unwrap_or(0.0),
            peak_rss_bytes: value["peak_rss_bytes"].as_u64().unwrap_or(0),
            is_interrupted: value["interrupted"] == Value::Bool(true),
            failures: failures.map_err(|error| wrong(error.to_string()))?,
            missing: missing.map_err(|error| wrong(error.to_string()))?,
            points: Vec::new(),
            indices: Vec::new(),
            first: 0,
            description: String::new(),
            keys: BTreeMap::new(),
            command: String::new(),
            facts: Vec::new(),
            version: version.clone(),
            saved,
            toml,
        };
        let summaries = summaries.map_err(|error| wrong(error.to_string()))?;
        source.points = source.points_of(summaries)?;
        source.describe();
        Ok(source)
    }

    /// Returns the points of these summaries, with what charts are drawn from.
    fn points_of(&mut self, summaries: Vec<PointSummary>) -> Result<Vec<PointResult>, RedrawError> {
        let number = self.table("points")?.counts("point").map(<[_]>::to_vec).unwrap_or_default();
        // An interrupted run has no point of some indices.
        self.indices = number.into_iter().zip(0..).map(|(at, nth)| at.unwrap_or(nth)).collect();
        if self.indices.len() != summaries.len() {
            let problem = format!(
                "it has {} points, and points.csv has {}",
                summaries.len(),
                self.indices.len()
            );
            let (path, version) = (self.folder.join("summary.json"), self.version.clone());
            return Err(RedrawError::Summary { path, version, problem });
        }
        let point = |(summary, index): (PointSummary, &u64)| PointResult {
            index: usize::try_from(*index).unwrap_or(usize::MAX),
            summary,
            ..PointResult::default()
        };
        let mut points: Vec<PointResult> =
            summaries.into_iter().zip(&self.indices).map(point).collect();
        let mut by_index: BTreeMap<u64, &mut PointResult> =
            self.indices.iter().copied().zip(&mut points).collect();
        let of_kinds = study::KINDS.iter().flat_map(|kind| kind.drawn.iter().copied());
        for name in NEEDED.into_iter().chain(FURTHER).chain(of_kinds) {
            let is_there = self.folder.join(format!("{name}.csv")).exists();
            if !is_there && !NEEDED.contains(&name) {
                continue;
            }
            series::add(&self.table(name)?, &mut by_index).map_err(|column| {
                RedrawError::Column { path: self.folder.join(format!("{name}.csv")), column }
            })?;
        }
        for PointResult { summary, goodput, .. } in &mut points {
            // Streams without goodput have no rows. A kind of workload is not one of the streams.
            let is_stream = matches!(summary.study, StudySummary::Messages);
            let streams = summary.background.len() + usize::from(is_stream);
            if !goodput.bytes.is_empty() && goodput.bytes.len() < streams {
                goodput.bytes.resize(streams, Vec::new());
            }
        }
        Ok(points)
    }

    fn table(&self, name: &str) -> Result<Table, RedrawError> {
        let file = format!("{name}.csv");
        if !self.folder.join(&file).exists() {
            return Err(RedrawError::Incomplete { folder: self.folder.clone(), file });
        }
        Ok(Table::from_csv(name, &self.saved.text(&file)?).map_err(OutputError::from)?)
    }

    /// Takes title, description, facts and settings from the resolved scenario. One of another version may not be readable as a scenario;
    /// its keys are.
    fn describe(&mut self) {
        if self.toml.is_empty() {
            return;
        }
        let line = |start: &str| self.toml.lines().find_map(|line| line.strip_prefix(start));
        let is_testbed = line("# `rackweave testbed`").is_some();
        let command = line(COMMAND_LINE).map(str::to_owned);
        self.command = command.unwrap_or_else(|| repeating(&self.folder, is_testbed));
        if let Ok(table) = toml::from_str::<toml::Table>(&self.toml) {
            let text = |value: Option<&toml::Value>| {
                value.and_then(toml::Value::as_str).map(str::to_owned)
            };
            self.description = text(table.get("description")).unwrap_or_default().trim().to_owned();
            let title = table.get("plot").and_then(|plot| plot.get("title"));
            // Without a name in the file, a scenario has that of its file.
            if let Some(title) = text(title).or_else(|| text(table.get("name"))) {
                self.title = title;
            }
            flatten("", &toml::Value::Table(table), &mut |key, value| {
                let first = key.split(['.', '[']).next().unwrap_or_default();
                if !["name", "description", "version", "plot", "sweep"].contains(&first) {
                    // As swept keys are written: `background.0.transport.name`.
                    let key = key.replace('[', ".").replace(']', "");
                    self.keys.insert(key, json(value));
                }
            });
        }
        let head = self.toml.lines().take_while(|line| line.starts_with('#'));
        let head: usize = head.map(|line| line.len() + 1).sum();
        self.toml = self.toml.get(head..).unwrap_or_default().trim_start_matches('\n').to_owned();
        let world = if is_testbed { World::Testbed } else { World::Simulator };
        let text = ScenarioText {
            file: RESOLVED.to_owned(),
            text: self.toml.clone(),
            folder: self.folder.clone(),
        };
        // A fabric of another version, or a file that is gone: the numbers are there nevertheless.
        let Ok(scenario) = text.read(world, &[], None) else { return };
        self.facts = scenario.facts();
        self.take_pods(&scenario);
    }

    /// Takes how long circuits are dark, which is in no table.
    fn take_pods(&mut self, scenario: &Scenario) {
        for (point, index) in self.points.iter_mut().zip(&self.indices) {
            let spec = usize::try_from(*index).ok().and_then(|index| scenario.points.get(index));
            let pod = spec.and_then(|spec| spec.fabric.pod());
            point.dark = pod.map_or(Span::ZERO, Pod::dark_time);
            point.is_all_dark = pod.is_some_and(|pod| pod.ocs.dark == Dark::All);
        }
    }

    /// Returns the settings of a point: the scenario's, with the swept ones.
    pub(super) fn settings(&self, point: &PointResult) -> BTreeMap<String, Value> {
        let mut settings = self.keys.clone();
        let set = point.summary.set.iter();
        settings.extend(set.map(|(key, value)| (key.clone(), value.clone())));
        settings.remove("transport.label");
        settings
    }
}

/// Returns a value as `summary.json` has it.
fn json(value: &toml::Value) -> Value {
    match value {
        toml::Value::String(text) => Value::from(text.as_str()),
        toml::Value::Integer(number) => Value::from(*number),
        toml::Value::Float(number) => Value::from(*number),
        toml::Value::Boolean(is) => Value::from(*is),
        other => Value::from(other.to_string()),
    }
}
