//! Results as they are on the disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use miette::Diagnostic;
use serde::Serialize;
use serde_json::{Map, Value};
use thiserror::Error;

use super::Setting;
use crate::results::seeds::SEED;
use crate::results::{MissingPoint, WALL_CLOCK_FIELDS};
use crate::scenario::follows;

/// The values of a measure, each with the seed of its run.
pub(super) type Values = Vec<(Option<u64>, f64)>;

/// The fields of a point that name it, or say how much there was to simulate.
const NO_MEASURES: [&str; 5] = ["set", "over_seeds", "events", "peak_packets", "simulated_us"];

/// Why a result cannot be compared.
#[derive(Debug, Error, Diagnostic)]
pub enum ReadError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    #[diagnostic(help(
        "a result is a directory that `rackweave run` has written, or the `summary.json` in it"
    ))]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not JSON, or not TOML.
    #[error("{} cannot be understood: {problem}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and column.
        problem: String,
    },
    /// A file has the syntax, and is not a result.
    #[error("{} is not a summary of `rackweave run`: {problem}", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// What is missing.
        problem: &'static str,
    },
}

/// Where a result is from.
#[derive(Clone, Debug, Serialize)]
pub struct Origin {
    /// The path that was given.
    pub path: PathBuf,
    /// The name of the scenario.
    pub scenario: String,
    /// The version of Rackweave that made it.
    pub version: String,
    /// The number of runs.
    pub runs: usize,
    /// Whether points are missing, because the run was stopped or failed.
    pub is_partial: bool,
    /// The names of the points that have no results.
    pub missing: Vec<String>,
}

/// A result.
#[derive(Clone, Debug)]
pub struct Results {
    pub(super) origin: Origin,
    pub(super) groups: Vec<Group>,
    /// The keys of the resolved scenario. Empty if it is not there.
    keys: BTreeMap<String, String>,
}

/// The points of a result that differ in nothing but their seeds.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) label: String,
    pub(super) set: Map<String, Value>,
    pub(super) runs: usize,
    pub(super) seeds: Vec<Option<u64>>,
    pub(super) measures: BTreeMap<String, Values>,
    /// The seeds that have no results.
    pub(super) missing: Vec<u64>,
}

impl Group {
    pub(super) fn is_same_point(&self, other: &Self) -> bool {
        self.label == other.label && self.set == other.set
    }
}

impl Results {
    /// Reads a result: a directory that `rackweave run` has written, or its `summary.json`.
    ///
    /// # Errors
    /// If a file cannot be read, or is not what its name says.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let summary = if path.is_dir() { path.join("summary.json") } else { path.to_owned() };
        let text = read_text(&summary)?;
        let syntax = |problem: String| ReadError::Syntax { path: summary.clone(), problem };
        let value: Value =
            serde_json::from_str(&text).map_err(|error| syntax(error.to_string()))?;
        let scenario = summary.with_file_name("scenario.resolved.toml");
        let keys = if scenario.exists() { scenario_keys(&scenario)? } else { BTreeMap::new() };
        Self::from_summary(path, &value, keys)
            .map_err(|problem| ReadError::Form { path: summary, problem })
    }

    pub(super) fn from_summary(
        path: &Path,
        summary: &Value,
        keys: BTreeMap<String, String>,
    ) -> Result<Self, &'static str> {
        let points = summary["points"].as_array().ok_or("it has no list `points`")?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut groups: Vec<Group> = Vec::new();
        for point in points {
            let mut set = point["set"].as_object().ok_or("a point has no table `set`")?.clone();
            // One that is not swept is the scenario's.
            let seed = set.shift_remove(SEED).unwrap_or_else(|| summary[SEED].clone()).as_u64();
            let label = point["label"].as_str().or(point["transport"].as_str());
            let label = label.ok_or("a point has no `label`")?.to_owned();
            let known = groups.iter_mut().find(|it| it.label == label && it.set == set);
            let group = match known {
                Some(group) => group,
                None => groups.push_mut(Group {
                    label,
                    set,
                    runs: 0,
                    seeds: Vec::new(),
                    measures: BTreeMap::new(),
                    missing: Vec::new(),
                }),
            };
            // A run that counts twice would narrow the interval.
            if seed.is_some() && group.seeds.contains(&seed) {
                return Err("two points have the same label, swept values and the same seed");
            }
            group.runs += 1;
            group.seeds.push(seed);
            let fields = point.as_object().into_iter().flatten();
            for (field, value) in fields.filter(|(field, _)| !NO_MEASURES.contains(&field.as_str()))
            {
                collect(field, value, seed, &mut group.measures);
            }
        }
        for group in &mut groups {
            group.seeds.sort_unstable();
            group.measures.values_mut().for_each(|values| values.sort_by_key(|(seed, _)| *seed));
        }
        let missing = without_results(summary);
        for group in &mut groups {
            let is_of = |it: &&MissingPoint| {
                let others = it.set.iter().filter(|(key, _)| *key != SEED);
                it.label == group.label && others.eq(group.set.iter())
            };
            group.missing = missing.iter().filter(is_of).map(|it| it.seed).collect();
        }
        let failed = summary["failures"].as_array().is_some_and(|failures| !failures.is_empty());
        let origin = Origin {
            path: path.to_owned(),
            scenario: text(&summary["scenario"]),
            version: text(&summary["version"]),
            runs: points.len(),
            missing: missing.iter().map(MissingPoint::name).collect(),
            is_partial: failed || summary["interrupted"] == Value::Bool(true),
        };
        Ok(Self { origin, groups, keys })
    }

    pub(super) fn settings_that_differ(&self, other: &Self) -> Vec<Setting> {
        if self.keys.is_empty() || other.keys.is_empty() {
            return Vec::new();
        }
        let mut names: Vec<&String> = self.keys.keys().chain(other.keys.keys()).collect();
        names.sort_unstable();
        names.dedup();
        let setting = |key: &String| {
            let (a, b) = (self.keys.get(key), other.keys.get(key));
            (a != b).then(|| Setting { key: key.clone(), a: a.cloned(), b: b.cloned() })
        };
        names.into_iter().filter_map(setting).collect()
    }
}

/// Returns the points of a summary that were not finished, or in which the simulator failed.
fn without_results(summary: &Value) -> Vec<MissingPoint> {
    let of = |list: &str, label: &str| {
        let points = summary[list].as_array().map_or(&[][..], Vec::as_slice);
        let point = |point: &Value| MissingPoint {
            set: point["set"].as_object().cloned().unwrap_or_default(),
            label: point[label].as_str().unwrap_or_default().to_owned(),
            seed: point[SEED].as_u64().unwrap_or(0),
        };
        points.iter().map(point).collect::<Vec<_>>()
    };
    [of("missing", "label"), of("failures", "transport")].concat()
}

fn read_text(path: &Path) -> Result<String, ReadError> {
    std::fs::read_to_string(path)
        .map_err(|source| ReadError::File { path: path.to_owned(), source })
}

/// Adds the numbers in a value to the measures, under their paths. The entries of a list are named by their upper edge, or their
/// label; other lists are no measures.
fn collect(path: &str, value: &Value, seed: Option<u64>, measures: &mut BTreeMap<String, Values>) {
    match value {
        Value::Number(number) if !WALL_CLOCK_FIELDS.iter().any(|clock| path.ends_with(clock)) => {
            if let Some(number) = number.as_f64() {
                measures.entry(path.to_owned()).or_default().push((seed, number));
            }
        }
        Value::Object(fields) => {
            for (field, value) in fields {
                if !["up_to_bytes", "count"].contains(&field.as_str()) {
                    collect(&format!("{path}.{field}"), value, seed, measures);
                }
            }
        }
        Value::Array(entries) => {
            for (nth, entry) in entries.iter().enumerate() {
                // Streams are named by their arrivals: their labels, those of transports, are compared with each other.
                let name = if entry["arrivals"].is_string() { "arrivals" } else { "label" };
                let name = match (entry.get("up_to_bytes"), &entry[name]) {
                    (Some(Value::Number(edge)), _) => edge.to_string(),
                    // The last size bucket has no edge.
                    (Some(Value::Null), _) => "more".to_owned(),
                    // Several streams may have one label.
                    (_, Value::String(label)) if nth > 0 => format!("{label} {nth}"),
                    (_, Value::String(label)) => label.clone(),
                    _ => continue,
                };
                collect(&format!("{path}[{name}]"), entry, seed, measures);
            }
        }
        _ => {}
    }
}

/// Returns the keys of a resolved scenario and their values, with the tables that they are in.
fn scenario_keys(path: &Path) -> Result<BTreeMap<String, String>, ReadError> {
    let text = read_text(path)?;
    let syntax = |problem: String| ReadError::Syntax { path: path.to_owned(), problem };
    let table: toml::Table = toml::from_str(&text).map_err(|error| syntax(error.to_string()))?;
    let mut keys = BTreeMap::new();
    flatten("", &toml::Value::Table(table), &mut |path, value| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        keys.insert(path, text);
    });
    // What one scenario sets follows from others in the other one.
    for (key, value) in follows::read(&text) {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        keys.entry(key.to_owned()).or_insert(text);
    }
    // How the results were made, and not what was run.
    for key in ["name", "description", "version"] {
        keys.remove(key);
    }
    Ok(keys)
}

/// Passes each value that is no table, and its key with those of the tables that it is in. Entries of a list of tables are numbered.
pub(crate) fn flatten(
    path: &str,
    value: &toml::Value,
    take: &mut impl FnMut(String, &toml::Value),
) {
    let below =
        |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        toml::Value::Table(table) => {
            table.iter().for_each(|(name, value)| flatten(&below(name), value, take));
        }
        toml::Value::Array(entries) if entries.iter().any(toml::Value::is_table) => {
            for (nth, entry) in entries.iter().enumerate() {
                flatten(&format!("{path}[{nth}]"), entry, take);
            }
        }
        value => take(path.to_owned(), value),
    }
}
