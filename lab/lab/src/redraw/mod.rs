//! Reports on finished results, from their files: one result again, or several as one.
//!
//! Everything that a report shows is in `summary.json` and the CSV files next to it, so that the results of other
//! versions, of the testbed and of machines that are gone can be drawn. Nothing is run.

mod read;
mod series;
mod write;

pub(crate) use self::series::Rows;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use miette::Diagnostic;
use serde_json::Value;

use self::read::Source;
use crate::command_line::quoted;
use crate::error::OutputError;
use crate::report::{Head, html};
use crate::results::seeds::SEED;
use crate::results::{PointResult, Results, Summary, plain};

/// The swept key that distinguishes points of different results if nothing else does.
const RESULT: &str = "result";

/// Why results cannot be drawn.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum RedrawError {
    /// A folder has no results, or a file cannot be read or written.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Output(#[from] OutputError),
    /// A folder has the points of a sweep whose shards were not merged.
    #[error("`{}` has points of a sweep, and no results yet", .0.display())]
    #[diagnostic(help("when all of its shards are finished: rackweave merge {} --out DIR", .0.display()))]
    NotMerged(PathBuf),
    /// `summary.json` is not a summary of `rackweave run`.
    #[error("{} is not a summary of `rackweave run`{}: {problem}", path.display(), of_version(version))]
    #[diagnostic(help(
        "results of another version may have other fields: use that version, or run the scenario again"
    ))]
    Summary {
        /// The file.
        path: PathBuf,
        /// The version that wrote it; empty if it names none.
        version: String,
        /// What is wrong.
        problem: String,
    },
    /// A file that every run writes is missing.
    #[error("`{}` is incomplete: it has no {file}", folder.display())]
    #[diagnostic(help(
        "a directory that `rackweave run` has written has it: copy the whole directory"
    ))]
    Incomplete {
        /// The folder.
        folder: PathBuf,
        /// The name of the file.
        file: String,
    },
    /// A table has no column that a chart needs.
    #[error("{} has no column `{column}`", path.display())]
    Column {
        /// The file.
        path: PathBuf,
        /// The name of the column.
        column: String,
    },
    /// A result was named twice.
    #[error("`{}` and `{}` are the same directory", .0.display(), .1.display())]
    Twice(PathBuf, PathBuf),
    /// The folder for the report is one of several whose results it would replace.
    #[error("the report on several results cannot be written to one of them, `{}`", .0.display())]
    #[diagnostic(help("name another directory with --out DIR"))]
    Among(PathBuf),
}

fn of_version(version: &str) -> String {
    if version.is_empty() { String::new() } else { format!(" (it names version {version})") }
}

/// Finished results for a report.
#[derive(Debug)]
pub struct Redrawn {
    results: Results,
    head: Head,
    sources: Vec<Source>,
}

impl Redrawn {
    /// Reads results: directories that `rackweave run`, `merge`, `testbed` or `report` has written.
    ///
    /// Points of several results are one sweep: the settings that differ distinguish those of one transport, points
    /// that differ in their seeds only are repetitions, and points that do not differ at all get the name of their
    /// directory.
    ///
    /// # Errors
    /// If a directory has no results, or they are incomplete.
    pub fn read(folders: &[PathBuf]) -> Result<Self, RedrawError> {
        let mut sources: Vec<Source> = Vec::new();
        for folder in folders {
            let source = Source::read(folder)?;
            let real = |folder: &Path| folder.canonicalize().ok();
            let same = |other: &&Source| real(&other.folder) == real(&source.folder);
            if let Some(other) = sources.iter().find(same) {
                return Err(RedrawError::Twice(other.folder.clone(), source.folder));
            }
            sources.push(source);
        }
        let head = head(&sources);
        let summary = summary(&sources);
        let mut points: Vec<PointResult> = Vec::new();
        if let [only] = &mut sources[..] {
            points.append(&mut only.points);
        } else {
            sweep(&mut sources);
            for source in &mut sources {
                source.first = points.len();
                points.append(&mut source.points);
            }
            points.iter_mut().enumerate().for_each(|(index, point)| point.index = index);
        }
        Ok(Self { results: Results::of(summary, points), head, sources })
    }

    /// Returns the results.
    #[must_use]
    pub const fn results(&self) -> &Results {
        &self.results
    }

    /// Returns the directory of the result, if there is only one.
    #[must_use]
    pub fn only_folder(&self) -> Option<&Path> {
        if let [only] = &self.sources[..] { Some(&only.folder) } else { None }
    }

    /// Returns the page, with links to these files next to it.
    fn html(&self, files: Vec<String>) -> String {
        let incomplete = self.results.incomplete();
        html::render(&Head { files, incomplete, ..self.head.clone() }, &self.results.compared())
    }

    /// Returns remarks: results of other versions.
    pub fn notes(&self) -> impl Iterator<Item = String> + '_ {
        let own = env!("CARGO_PKG_VERSION");
        self.sources.iter().filter(move |source| source.version != own).map(move |source| {
            let (folder, version) = (source.folder.display(), &source.version);
            format!("{folder} is of Rackweave {version}, and this is {own}: what it does not have is left out")
        })
    }
}

/// The head of the page: of several results what they have in common, and the commands and scenarios of all.
fn head(sources: &[Source]) -> Head {
    let Some(first) = sources.first() else { return Head::default() };
    let distinct = |of: fn(&Source) -> &str, between: &str| {
        let mut texts: Vec<&str> = Vec::new();
        for text in sources.iter().map(of).filter(|text| !text.is_empty()) {
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        texts.join(between)
    };
    let is_common = |fact: &&(String, String)| sources.iter().all(|it| it.facts.contains(fact));
    let described = |source: &Source| {
        let folder = source.folder.display();
        if sources.len() == 1 {
            source.toml.clone()
        } else {
            format!("# {folder}\n{}", source.toml)
        }
    };
    let is_same = sources.iter().all(|source| source.description == first.description);
    Head {
        title: distinct(|source| &source.title, ", "),
        description: if is_same { first.description.clone() } else { String::new() },
        scenario_toml: sources.iter().map(described).collect::<Vec<_>>().join("\n"),
        command: distinct(|source| &source.command, "\n"),
        version: distinct(|source| &source.version, ", "),
        seed: first.seed,
        facts: first.facts.iter().filter(is_common).cloned().collect(),
        files: Vec::new(),
        incomplete: None,
    }
}

fn summary(sources: &[Source]) -> Summary {
    let mut names: Vec<&str> = sources.iter().map(|source| source.scenario.as_str()).collect();
    let mut versions: Vec<&str> = sources.iter().map(|source| source.version.as_str()).collect();
    names.dedup();
    versions.dedup();
    Summary {
        scenario: names.join(", "),
        seed: sources.first().map_or(0, |source| source.seed),
        wall_s: sources.iter().map(|source| source.wall_s).sum(),
        peak_rss_bytes: sources.iter().map(|source| source.peak_rss_bytes).max().unwrap_or(0),
        interrupted: sources.iter().any(|source| source.is_interrupted),
        failures: sources.iter().flat_map(|source| source.failures.clone()).collect(),
        missing: sources.iter().flat_map(|source| source.missing.clone()).collect(),
        version: versions.join(", "),
    }
}

/// Makes the points of several results those of one sweep, by adding to their swept keys what distinguishes them.
fn sweep(sources: &mut [Source]) {
    let settings: Vec<Vec<BTreeMap<String, Value>>> = sources
        .iter()
        .map(|source| source.points.iter().map(|p| source.settings(p)).collect())
        .collect();
    // Settings of the transport differ between transports, and so do defaults that follow from them: only settings that
    // differ among points of one transport distinguish anything.
    let mut values: BTreeMap<(&str, &str), BTreeSet<String>> = BTreeMap::new();
    for (source, settings) in sources.iter().zip(&settings) {
        for (point, settings) in source.points.iter().zip(settings) {
            for (key, value) in settings {
                let of_label = (point.summary.label.as_str(), key.as_str());
                values.entry(of_label).or_default().insert(plain(value));
            }
        }
    }
    let varying: BTreeSet<(String, String)> = values
        .iter()
        .filter(|(_, values)| values.len() > 1)
        .map(|((label, key), _)| ((*label).to_owned(), (*key).to_owned()))
        .collect();
    for (source, settings) in sources.iter_mut().zip(settings) {
        for (point, settings) in source.points.iter_mut().zip(settings) {
            let summary = &mut point.summary;
            for (key, value) in settings {
                if varying.contains(&(summary.label.clone(), key.clone())) {
                    summary.set.entry(key).or_insert(value);
                }
            }
        }
    }
    // With seeds in some points only, those of the others would be alternatives to them.
    let has_seed = |point: &PointResult| point.summary.set.contains_key(SEED);
    if sources.iter().flat_map(|source| &source.points).any(has_seed) {
        for source in &mut *sources {
            let seed = Value::from(source.seed);
            for point in &mut source.points {
                point.summary.set.entry(SEED).or_insert_with(|| seed.clone());
            }
        }
    }
    let mut known = BTreeSet::new();
    let mut is_new = |point: &PointResult| {
        let set: BTreeMap<&String, String> =
            point.summary.set.iter().map(|(key, value)| (key, plain(value))).collect();
        known.insert((point.summary.label.clone(), format!("{set:?}")))
    };
    if !sources.iter().flat_map(|source| &source.points).all(&mut is_new) {
        let names = names(sources);
        for (source, name) in sources.iter_mut().zip(names) {
            for point in &mut source.points {
                point.summary.set.insert(RESULT.to_owned(), Value::from(name.clone()));
            }
        }
    }
}

/// Returns the names of the folders, or their paths if two have the same name.
fn names(sources: &[Source]) -> Vec<String> {
    let name = |source: &Source| {
        let name = source.folder.file_name().map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_else(|| source.folder.display().to_string())
    };
    let names: Vec<String> = sources.iter().map(name).collect();
    if names.iter().collect::<BTreeSet<_>>().len() == names.len() {
        names
    } else {
        sources.iter().map(|source| source.folder.display().to_string()).collect()
    }
}

/// Returns the command that repeats a result when only its resolved scenario is known.
fn repeating(folder: &Path, is_testbed: bool) -> String {
    let scenario = folder.join(read::RESOLVED);
    let subcommand = if is_testbed { "testbed" } else { "run" };
    format!("rackweave {subcommand} {}", quoted(&scenario.display().to_string()))
}

#[cfg(test)]
mod tests;
