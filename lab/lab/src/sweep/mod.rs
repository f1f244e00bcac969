//! Sweeps whose points are run by several processes, or in several goes: finished points as files, shards, and their combination.
//!
//! A folder of results has two more entries then:
//!
//! - `points/KEY.point` for each finished point. The key is a hash of the point's configuration, so a file counts for exactly the point
//!   that was run, in whichever sweep it is; points of other settings in the same folder do no harm.
//! - `sweep.json`: the scenario and its settings, from which [`merge`] makes the results of all points.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rackweave_wire::pcapng::Frame;
use serde::{Deserialize, Serialize};

use crate::error::{OutputError, ScenarioError};
use crate::output::OutputDir;
use crate::results::{Capture, PointFailure, PointResult, Results, capture_layout, frames};
use crate::run::{PointEnd, collect};
use crate::scenario::{PointSpec, Scenario, ScenarioText, World};

/// The beginning of a file with a finished point. The number changes with the layout.
const MAGIC: &[u8] = b"rackweave point 2\n";
/// The length of the hash that follows, of all that follows it.
const HASH_BYTES: usize = 32;
/// The suffix of files with finished points.
const SUFFIX: &str = ".point";
/// The name of the folder of finished points in a folder of results.
const POINTS: &str = "points";
/// The name of the file with the scenario of a sweep.
pub(crate) const SWEEP: &str = "sweep.json";

/// A share of a sweep's points: those whose index is `index` modulo `count`, so that shards are about equally long where the cost
/// changes along the sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: u32,
    count: u32,
}

/// Why a text is not a [`Shard`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    /// It is not of the form `I/N`.
    #[error("expected I/N, such as 0/8")]
    Form,
    /// There are not that many shards.
    #[error("shard {index} of {count}: shards are numbered from 0 to one less than their number")]
    Index {
        /// The number of the shard.
        index: u32,
        /// The number of shards.
        count: u32,
    },
}

impl Shard {
    /// All points.
    pub const ALL: Self = Self { index: 0, count: 1 };

    /// Returns whether a point of this index belongs to the shard.
    #[must_use]
    pub const fn has(self, point: usize) -> bool {
        point % self.count as usize == self.index as usize
    }
}

impl FromStr for Shard {
    type Err = ShardError;

    fn from_str(text: &str) -> Result<Self, ShardError> {
        let (index, count) = text.split_once('/').ok_or(ShardError::Form)?;
        let number = |text: &str| text.parse().map_err(|_| ShardError::Form);
        let (index, count) = (number(index)?, number(count)?);
        if index < count {
            Ok(Self { index, count })
        } else {
            Err(ShardError::Index { index, count })
        }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

/// The scenario of a sweep and its settings, as it is passed to other processes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct SweepFile {
    /// The version of Rackweave.
    pub version: String,
    /// The command that runs all points.
    pub command: String,
    /// The name of the scenario in errors, from which its name is derived if it has none.
    pub file: String,
    /// The directory of the files that the scenario names.
    pub folder: PathBuf,
    /// The `KEY=VALUE` arguments of `--set`.
    pub sets: Vec<String>,
    /// The seed, if it is not the scenario's.
    pub seed: Option<u64>,
    /// The scenario.
    pub text: String,
}

impl SweepFile {
    /// Returns the description of a sweep of this version.
    #[must_use]
    pub fn new(text: ScenarioText, sets: &[String], seed: Option<u64>, command: &str) -> Self {
        Self {
            version: BUILD.to_owned(),
            command: command.to_owned(),
            file: text.file,
            // Another process may have another working directory.
            folder: std::path::absolute(&text.folder).unwrap_or(text.folder),
            sets: sets.to_vec(),
            seed,
            text: text.text,
        }
    }

    /// Reads the scenario.
    ///
    /// # Errors
    /// If it is invalid, or of another version of Rackweave.
    pub fn scenario(&self) -> Result<Scenario, ScenarioError> {
        let own = BUILD;
        if self.version != own {
            let message = format!("the sweep is of Rackweave {}, and this is {own}", self.version);
            return Err(ScenarioError::new(message)
                .with_help("results of different builds may differ: use one for all points"));
        }
        let (file, text) = (self.file.clone(), self.text.clone());
        let text = ScenarioText { file, text, folder: self.folder.clone() };
        text.read(World::Simulator, &self.sets, self.seed)
    }

    /// Returns the description as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Reads a description.
    ///
    /// # Errors
    /// If the text is not JSON, or has other keys.
    pub fn from_json(json: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json)
    }

    /// Writes the description to a folder of results.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, out: &OutputDir) -> Result<(), OutputError> {
        write_aside(out.path(), SWEEP, self.to_json().as_bytes())
    }

    fn read(folder: &Path) -> Result<Self, MergeError> {
        let path = folder.join(SWEEP);
        let cannot = |source: std::io::Error| MergeError::NoSweep { folder: folder.into(), source };
        let text = std::fs::read_to_string(path).map_err(cannot)?;
        Self::from_json(&text).map_err(|error| cannot(error.into()))
    }

    /// Returns whether both describe the same points. The folder of the scenario may have other names on other machines.
    fn is_same(&self, other: &Self) -> bool {
        (&self.text, &self.sets, self.seed, &self.version)
            == (&other.text, &other.sets, other.seed, &other.version)
    }
}

/// Writes a file under a temporary name, which no other process uses, and renames it.
fn write_aside(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), OutputError> {
    let path = folder.join(name);
    let written = (|| {
        let mut file = tempfile::Builder::new().prefix(".").suffix(".part").tempfile_in(folder)?;
        file.write_all(bytes)?;
        // Temporary files are readable by their owner only, and merging may be another user's.
        #[cfg(unix)]
        {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
            file.as_file().set_permissions(mode)?;
        }
        file.persist(&path).map_err(|error| error.error)?;
        Ok::<(), std::io::Error>(())
    })();
    written.map_err(|source| OutputError::file(&path, source))
}

/// A finished point as it is stored: what its configuration was, and how it ended.
#[derive(Deserialize, Serialize)]
struct Stored {
    /// See [`key`].
    key: String,
    /// The peak resident memory of the process that ran it, in bytes.
    peak_rss_bytes: u64,
    end: StoredEnd,
}

#[derive(Deserialize, Serialize)]
enum StoredEnd {
    Finished(Box<PointResult>, Vec<Frame>),
    Failed(PointFailure),
}

/// Why bytes are not a finished point.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum PointError {
    /// They are of another layout, or are damaged.
    #[error("this is not a finished point, or it is damaged")]
    Damaged,
    /// They are of a point with another configuration.
    #[error(
        "the finished point was run with another configuration than point {index} of this sweep"
    )]
    #[diagnostic(help(
        "all processes need the same build of Rackweave, and the same files next to the scenario"
    ))]
    Other {
        /// The index of the point.
        index: usize,
    },
    /// A captured packet cannot be encoded.
    #[error("a captured packet cannot be stored")]
    Capture(#[source] rackweave_wire::frame::Unframeable),
    /// The point was cancelled.
    #[error("the point was cancelled")]
    Cancelled,
}

/// The build: its version, and a fingerprint of the sources (`build.rs`), so that whoever changes a transport does not get points of before.
const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), "+", env!("RACKWEAVE_SOURCES"));

/// Returns the key of a point: a hash of all that its results depend on.
///
/// It covers the checked configuration rather than the text, so that it is the same for all scenarios that mean the same, and differs if
/// a file of message sizes differs. The fabric's layout follows from its configuration, and is not hashed because it is large.
fn key(spec: &PointSpec) -> String {
    struct Hash(blake3::Hasher);
    impl fmt::Write for Hash {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.update(text.as_bytes());
            Ok(())
        }
    }
    let PointSpec {
        world,
        set,
        transport,
        labels,
        arguments,
        config,
        fabric: _,
        size_buckets,
        unfinished,
        messages_csv,
        kernel_tcp: _,
        testbed: _,
        study,
        parameters: _,
    } = spec;
    let mut hash = Hash(blake3::Hasher::new());
    let names = (world, set, transport, labels, arguments);
    let measured = (size_buckets, unfinished, messages_csv);
    // Writing to a hash cannot fail.
    let _ = write!(hash, "{BUILD}\n{names:?}\n{config:?}\n{measured:?}\n{study:?}\n");
    hash.0.finalize().to_hex().chars().take(32).collect()
}

/// Encodes a finished point.
pub(crate) fn encode(
    spec: &PointSpec,
    end: &PointEnd,
    peak_rss_bytes: u64,
) -> Result<Vec<u8>, PointError> {
    let end = match end {
        PointEnd::Finished(point) => {
            let frames = match &point.capture {
                Capture::Frames(frames) => frames.clone(),
                Capture::Packets(packets) => {
                    frames(packets, capture_layout(spec)).map_err(PointError::Capture)?
                }
            };
            StoredEnd::Finished(point.clone(), frames)
        }
        PointEnd::Failed(failure) => StoredEnd::Failed(failure.clone()),
        PointEnd::Cancelled => return Err(PointError::Cancelled),
    };
    let mut payload = Vec::new();
    let stored = Stored { key: key(spec), peak_rss_bytes, end };
    // Writing to memory cannot fail, and nor can these types.
    ciborium::into_writer(&stored, &mut payload).map_err(|_| PointError::Damaged)?;
    let hash = blake3::hash(&payload);
    Ok([MAGIC, hash.as_bytes(), &payload].concat())
}

/// Decodes a point of this configuration and index. Returns it with the peak resident memory of the process that ran it.
fn decode(spec: &PointSpec, index: usize, bytes: &[u8]) -> Result<(PointEnd, u64), PointError> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(PointError::Damaged)?;
    let (hash, payload) = rest.split_at_checked(HASH_BYTES).ok_or(PointError::Damaged)?;
    if blake3::hash(payload).as_bytes() != hash {
        return Err(PointError::Damaged);
    }
    let stored: Stored = ciborium::from_reader(payload).map_err(|_| PointError::Damaged)?;
    if stored.key != key(spec) {
        return Err(PointError::Other { index });
    }
    let end = match stored.end {
        StoredEnd::Finished(mut point, frames) => {
            point.index = index;
            point.capture_layout = capture_layout(spec);
            point.capture = Capture::Frames(frames);
            PointEnd::Finished(point)
        }
        StoredEnd::Failed(failure) => PointEnd::Failed(failure),
    };
    Ok((end, stored.peak_rss_bytes))
}

/// The finished points in a folder of results.
#[derive(Debug)]
pub struct PointStore {
    folder: PathBuf,
}

impl PointStore {
    /// Opens the store of a folder of results, and creates it if it does not exist.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn create(out: &OutputDir) -> Result<Self, OutputError> {
        let folder = out.path().join(POINTS);
        std::fs::create_dir_all(&folder)
            .map_err(|source| OutputError::Folder { path: folder.clone(), source })?;
        Ok(Self { folder })
    }

    fn name(spec: &PointSpec) -> String {
        key(spec) + SUFFIX
    }

    /// Returns a finished point, or `None` if it is missing, damaged or failed, so that it has to be run.
    fn get(&self, spec: &PointSpec, index: usize) -> Option<(PointEnd, u64)> {
        let bytes = std::fs::read(self.folder.join(Self::name(spec))).ok()?;
        decode(spec, index, &bytes).ok()
    }

    /// Returns a point that was run successfully.
    pub(crate) fn finished(&self, spec: &PointSpec, index: usize) -> Option<PointEnd> {
        let (end, _) = self.get(spec, index)?;
        if let PointEnd::Finished(_) = end { Some(end) } else { None }
    }

    /// Stores a point that [`encode`] returned.
    pub(crate) fn put(&self, spec: &PointSpec, bytes: &[u8]) -> Result<(), OutputError> {
        write_aside(&self.folder, &Self::name(spec), bytes)
    }
}

/// The points of a sweep that are finished so far, wherever they were run.
#[derive(Debug)]
pub struct Sweep {
    scenario: Scenario,
    store: Option<PointStore>,
    ends: BTreeMap<usize, PointEnd>,
    peak_rss_bytes: u64,
}

impl Sweep {
    /// Returns a sweep, with the points that are finished in its store.
    #[must_use]
    pub fn new(scenario: Scenario, store: Option<PointStore>) -> Self {
        let mut sweep = Self { scenario, store: None, ends: BTreeMap::new(), peak_rss_bytes: 0 };
        if let Some(store) = &store {
            sweep.take(store);
        }
        sweep.store = store;
        sweep
    }

    /// Takes the finished points of another store. Failed ones are not taken: they are run again.
    fn take(&mut self, store: &PointStore) {
        self.take_some(store, |end| matches!(end, PointEnd::Finished(_)));
    }

    fn take_some(&mut self, store: &PointStore, is_wanted: fn(&PointEnd) -> bool) {
        for (index, spec) in self.scenario.points.iter().enumerate() {
            if self.ends.contains_key(&index) {
                continue;
            }
            if let Some((end, peak)) = store.get(spec, index).filter(|(end, _)| is_wanted(end)) {
                self.peak_rss_bytes = self.peak_rss_bytes.max(peak);
                self.ends.insert(index, end);
            }
        }
    }

    /// Returns the scenario.
    #[must_use]
    pub const fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// Returns the indices of the points that are not finished.
    #[must_use]
    pub fn missing(&self) -> Vec<usize> {
        (0..self.scenario.points.len()).filter(|index| !self.ends.contains_key(index)).collect()
    }

    /// Adds a finished point, which [`crate::Batch::run_encoded`] returned, and stores it.
    ///
    /// # Errors
    /// If it is damaged or of another configuration, or cannot be stored.
    pub fn add(&mut self, index: usize, bytes: &[u8]) -> Result<(), SweepError> {
        let spec = self.scenario.points.get(index).ok_or(PointError::Other { index })?;
        let (end, peak) = decode(spec, index, bytes)?;
        if let Some(store) = &self.store {
            store.put(spec, bytes)?;
        }
        self.peak_rss_bytes = self.peak_rss_bytes.max(peak);
        self.ends.insert(index, end);
        Ok(())
    }

    /// Returns the results of the finished points. Their `wall_s` is the sum of the points' processor times, because the points were not
    /// run by one process at one time. If points are missing, the results are those of an interrupted run.
    #[must_use]
    pub fn into_results(self) -> (Scenario, Results) {
        let is_interrupted = !self.missing().is_empty();
        let ends: Vec<PointEnd> = self.ends.into_values().collect();
        let cpu_s = ends.iter().map(|end| match end {
            PointEnd::Finished(point) => point.summary.cpu_s,
            PointEnd::Failed(_) | PointEnd::Cancelled => 0.0,
        });
        let wall_s = cpu_s.sum();
        let results = collect(&self.scenario, ends, is_interrupted, wall_s, self.peak_rss_bytes);
        (self.scenario, results)
    }
}

/// Why a finished point cannot be added to a sweep.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum SweepError {
    /// It is not a finished point of the sweep.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Point(#[from] PointError),
    /// It cannot be stored.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Output(#[from] OutputError),
}

/// Why folders cannot be merged.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum MergeError {
    /// A folder has no finished points.
    #[error("`{}` has no {SWEEP} that can be read", .folder.display())]
    #[diagnostic(help(
        "name directories that `rackweave run` has written with --shard or --resume"
    ))]
    NoSweep {
        /// The path of the folder.
        folder: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// Two folders are of different sweeps.
    #[error("`{}` and `{}` have points of different scenarios, settings, seeds or versions", .0.display(), .1.display())]
    Different(PathBuf, PathBuf),
    /// The scenario cannot be read any more.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Scenario(#[from] ScenarioError),
    /// Points are missing.
    #[error("{} of {points} points are missing: {}", .missing.len(), first_of(.missing))]
    #[diagnostic(help("run their shards again: finished points are not run twice"))]
    Missing {
        /// The indices of the missing points.
        missing: Vec<usize>,
        /// The number of all points.
        points: usize,
    },
}

/// Returns the first numbers of a list.
fn first_of(numbers: &[usize]) -> String {
    const SHOWN: usize = 16;
    let shown: Vec<String> = numbers.iter().take(SHOWN).map(usize::to_string).collect();
    let more = if numbers.len() > SHOWN { ", ..." } else { "" };
    shown.join(", ") + more
}

/// Returns the results of all points of a sweep, whose finished points are in these folders, and the command that runs them in one go.
///
/// # Errors
/// If a point is missing, or the folders are not of one sweep.
pub fn merge(folders: &[PathBuf]) -> Result<(Scenario, Results, String), MergeError> {
    let mut files = Vec::new();
    for folder in folders {
        files.push((folder, SweepFile::read(folder)?));
    }
    let Some((first, file)) = files.first() else {
        return Err(MergeError::Missing { missing: Vec::new(), points: 0 });
    };
    if let Some((other, _)) = files.iter().find(|(_, other)| !other.is_same(file)) {
        return Err(MergeError::Different((*first).clone(), (*other).clone()));
    }
    let mut sweep = Sweep::new(file.scenario()?, None);
    let stores = || folders.iter().map(|folder| PointStore { folder: folder.join(POINTS) });
    stores().for_each(|store| sweep.take(&store));
    // Points in which the simulator failed are results too, unless another run of them was successful.
    stores().for_each(|store| sweep.take_some(&store, |_| true));
    let missing = sweep.missing();
    if !missing.is_empty() {
        return Err(MergeError::Missing { missing, points: sweep.scenario.points.len() });
    }
    let (scenario, results) = sweep.into_results();
    Ok((scenario, results, file.command.clone()))
}

#[cfg(test)]
pub(crate) mod tests;
