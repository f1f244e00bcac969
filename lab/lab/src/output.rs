//! Results as a table, a page and files. Files are written under temporary names and renamed when all are complete, so
//! that a file under its final name is never partial.

use std::borrow::Borrow;
use std::io::Write;
use std::path::{Path, PathBuf};

use rackweave_wire::pcapng::{CaptureError, CaptureWriter};

use crate::error::OutputError;
use crate::report::table::{self, Style};
use crate::report::{Head, charts, html, svg};
use crate::results::columns::Column;
use crate::results::{Capture, PointResult, Results};
use crate::scenario::{Scenario, World};
use crate::tables::{self, Lead, Sink, Table, in_files};

impl Results {
    /// Returns the tables for a terminal of this width in columns.
    #[must_use]
    pub fn to_table(&self, width: usize, style: Style) -> String {
        table::render(&self.compared(), self.incomplete().as_deref(), width, style)
    }

    /// Returns the HTML page; `command` is the command that reproduces the numbers.
    #[must_use]
    pub fn to_html(&self, scenario: &Scenario, command: &str) -> String {
        self.to_html_beside(scenario, command, Vec::new())
    }

    /// Returns the HTML page with links to the files next to it.
    fn to_html_beside(&self, scenario: &Scenario, command: &str, files: Vec<String>) -> String {
        let head = Head {
            title: scenario.title.clone(),
            description: scenario.description.clone(),
            scenario_toml: scenario.resolved.clone(),
            command: command.to_owned(),
            version: self.summary.version.clone(),
            seed: scenario.seed,
            facts: scenario.facts(),
            files,
            incomplete: self.incomplete(),
        };
        html::render(&head, &self.compared())
    }

    /// Returns one chart of the 99th percentile of slowdown by message size, for a document or a slide.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let title = "99th-percentile slowdown by message size";
        charts::slowdown_chart(&self.compared(), charts::Percentile::P99, title)
            .render(svg::Theme::Standalone)
    }
}

impl Results {
    /// Writes the charts that are files of their own, and returns their names.
    pub(crate) fn pictures(
        &self,
        staged: &mut Staged<'_>,
    ) -> Result<Vec<&'static str>, OutputError> {
        let mut names = vec!["slowdown.svg"];
        staged.add(names[0], self.to_svg().as_bytes())?;
        let title = "99th-percentile slowdown of background streams";
        if let Some(chart) = charts::streams_chart(&self.points, title) {
            staged.add("streams.svg", chart.render(svg::Theme::Standalone).as_bytes())?;
            names.push("streams.svg");
        }
        Ok(names)
    }
}

/// The beginning of the line of a resolved scenario that has the command.
pub(crate) const COMMAND_LINE: &str = "# The command: ";

/// The directory for results, which was checked to be writable.
#[derive(Debug)]
pub struct OutputDir {
    path: PathBuf,
    #[cfg_attr(not(feature = "parquet"), expect(dead_code, reason = "it is false then"))]
    parquet: bool,
}

/// The suffix of files that are not complete yet.
const PARTIAL_SUFFIX: &str = ".part";
/// Files that every run writes as well as CSV files and pictures.
const ALWAYS: [&str; 3] = ["summary.json", "scenario.resolved.toml", "report.html"];
/// Files that only some runs write. Those of an earlier run must not remain next to new ones.
const OPTIONAL: [&str; 10] = [
    "over_seeds.csv",
    "traffic.csv",
    "goodput.csv",
    "circuits.csv",
    "streams.svg",
    "streams.csv",
    "messages.csv",
    "round_trips.csv",
    "collective_iterations.csv",
    "collective_ranks.csv",
];

impl OutputDir {
    /// Creates the directory and tests that it is writable, so that a long run does not fail at its end.
    ///
    /// # Errors
    /// If the directory cannot be created or written to.
    pub fn prepare(path: &Path) -> Result<Self, OutputError> {
        let folder = |source| OutputError::Folder { path: path.to_owned(), source };
        if path.exists() && !path.is_dir() {
            return Err(folder(std::io::ErrorKind::NotADirectory.into()));
        }
        std::fs::create_dir_all(path).map_err(folder)?;
        Self::probe(path)?;
        Ok(Self { path: path.to_owned(), parquet: false })
    }

    /// Has [`OutputDir::write`] write every table as a Parquet file too, if `wanted`.
    ///
    /// # Errors
    /// If it is wanted and this build has no Parquet (feature `parquet`).
    pub fn with_parquet(self, wanted: bool) -> Result<Self, OutputError> {
        if wanted && !cfg!(feature = "parquet") {
            return Err(OutputError::NoParquet);
        }
        Ok(Self { parquet: wanted, ..self })
    }

    /// Tests that files can be created in a directory.
    ///
    /// # Errors
    /// If they cannot.
    pub fn probe(path: &Path) -> Result<(), OutputError> {
        // The name is random, because the shards of a sweep test one directory at one time.
        let mut probe = tempfile::Builder::new();
        let probe = probe.prefix(".probe").suffix(PARTIAL_SUFFIX).tempfile_in(path);
        let closed = probe.and_then(|file| file.close());
        closed.map_err(|source| OutputError::Folder { path: path.to_owned(), source })
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes all result files; `command` is the command that reproduces the results.
    ///
    /// # Errors
    /// If a file cannot be written, or a directory has its name: in both cases no file changes.
    pub fn write(
        &self,
        scenario: &Scenario,
        results: &Results,
        command: &str,
    ) -> Result<(), OutputError> {
        let mut staged = Staged::new(&self.path);
        staged.add("summary.json", results.to_json().as_bytes())?;
        let subcommand = match scenario.world {
            World::Simulator => "`rackweave run` with this file gives the same results.",
            World::Testbed => "`rackweave testbed` with this file runs the same experiment.",
        };
        // A value of `--set` may have several lines, which a comment cannot.
        let is_line = !command.is_empty() && !command.chars().any(char::is_control);
        let command_line =
            if is_line { format!("{COMMAND_LINE}{command}\n") } else { String::new() };
        let head = format!(
            "# Written by rackweave {}: the scenario as it was run, with all defaults.\n# {subcommand}\n{command_line}\n",
            env!("CARGO_PKG_VERSION")
        );
        staged.add("scenario.resolved.toml", (head + &scenario.resolved).as_bytes())?;
        results.pictures(&mut staged)?;
        tables::write(&results.points, &mut staged)?;
        #[cfg(feature = "parquet")]
        if self.parquet {
            tables::write(&results.points, &mut crate::parquet::ParquetFiles(&mut staged))?;
        }
        let points = &results.points;
        for point in points.iter().filter(|point| !point.capture_names.is_empty()) {
            staged.capture(point)?;
        }
        let files = staged.names().filter(|name| is_linked(name));
        let mut files: Vec<String> = files.map(str::to_owned).collect();
        files.sort_unstable();
        let page = results.to_html_beside(scenario, command, files);
        staged.add("report.html", page.as_bytes())?;
        let written = staged.finish()?;
        self.remove_optional(&written);
        Ok(())
    }

    /// Writes files of any kind, all of them or none.
    ///
    /// # Errors
    /// If a file cannot be written; in that case no file changes.
    pub fn write_all(&self, files: &[(String, String)]) -> Result<(), OutputError> {
        let mut staged = Staged::new(&self.path);
        for (name, text) in files {
            staged.add(name, text.as_bytes())?;
        }
        staged.finish().map(drop)
    }

    /// Removes what an earlier run has written and this one has not. Files of others may have similar names.
    pub(crate) fn remove_optional(&self, written: &[String]) {
        let Ok(entries) = std::fs::read_dir(&self.path) else { return };
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let is_result = OPTIONAL.contains(&name.as_str())
                || is_of_kind(&name)
                || is_capture(&name)
                || is_parquet(&name);
            if is_result && !written.contains(&name) {
                // A file that cannot be removed is overwritten or remains, which is no reason to lose the results.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

/// Whether a file has the name of a table that only a kind of workload has.
fn is_of_kind(name: &str) -> bool {
    let table = name.strip_suffix(".csv");
    table.is_some_and(|table| tables::names_of_kinds().contains(&table))
}

/// Whether a file has the name of a capture, `capture-N.pcapng`.
fn is_capture(name: &str) -> bool {
    let number = name.strip_prefix("capture-").and_then(|rest| rest.strip_suffix(".pcapng"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit()))
}

/// Whether a file has the name of a table in Parquet.
fn is_parquet(name: &str) -> bool {
    name.strip_suffix(".parquet").is_some_and(tables::exists)
}

/// Whether the page has a link to a file. Parquet files have the numbers of CSV files, and the page is the same with and without them.
pub(crate) fn is_linked(name: &str) -> bool {
    name != "report.html" && !name.ends_with(".pcapng") && !is_parquet(name)
}

/// A directory that [`OutputDir::write`] has written.
#[derive(Debug)]
pub struct SavedDir {
    path: PathBuf,
}

impl SavedDir {
    /// Opens a directory of results.
    ///
    /// # Errors
    /// If there is no `summary.json` in it.
    pub fn open(path: &Path) -> Result<Self, OutputError> {
        let summary = path.join("summary.json");
        match std::fs::metadata(&summary) {
            Ok(_) => Ok(Self { path: path.to_owned() }),
            Err(source) => Err(OutputError::NoResults { path: path.to_owned(), source }),
        }
    }

    /// Returns the text of one of its files.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn text(&self, name: &str) -> Result<String, OutputError> {
        let path = self.path.join(name);
        std::fs::read_to_string(&path).map_err(|source| OutputError::Read { path, source })
    }

    /// Returns the names of its result files, sorted.
    ///
    /// # Errors
    /// If the directory cannot be listed.
    pub(crate) fn names(&self) -> Result<Vec<String>, OutputError> {
        let cannot = |source| OutputError::Read { path: self.path.clone(), source };
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(cannot)? {
            let Ok(name) = entry.map_err(cannot)?.file_name().into_string() else { continue };
            let is_table = name.ends_with(".csv") || name.ends_with(".svg");
            if ALWAYS.contains(&name.as_str()) || is_table || is_capture(&name) || is_parquet(&name)
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Returns the tables of its CSV files.
    ///
    /// # Errors
    /// If a file cannot be read, or is not a table of results.
    pub fn tables(&self) -> Result<Vec<Table>, OutputError> {
        let mut tables = Vec::new();
        for file in self.names()? {
            if let Some(name) = file.strip_suffix(".csv").filter(|name| tables::exists(name)) {
                tables.push(Table::from_csv(name, &self.text(&file)?)?);
            }
        }
        Ok(tables)
    }

    /// Copies one of its files, under another name.
    pub(crate) fn copy_file(
        &self,
        name: &str,
        staged: &mut Staged<'_>,
        to: &str,
    ) -> Result<(), OutputError> {
        let from = self.path.join(name);
        let mut from = std::fs::File::open(&from)
            .map_err(|source| OutputError::Read { path: from.clone(), source })?;
        let (path, mut file) = staged.file(to)?;
        std::io::copy(&mut from, &mut file)
            .and_then(|_| file.flush())
            .map_err(|error| OutputError::file(&path, error))
    }

    /// Copies its result files, byte for byte.
    ///
    /// # Errors
    /// If a file cannot be read or written; in the latter case no file of the other directory changes.
    pub fn copy_to(&self, out: &OutputDir) -> Result<(), OutputError> {
        let mut staged = Staged::new(&out.path);
        for name in self.names()? {
            self.copy_file(&name, &mut staged, &name)?;
        }
        let written = staged.finish()?;
        if self.path.canonicalize().ok() != out.path.canonicalize().ok() {
            out.remove_optional(&written);
        }
        Ok(())
    }
}

/// Files under temporary names, which no other process uses, until they are renamed. What is not renamed is removed on drop.
pub(crate) struct Staged<'a> {
    folder: &'a Path,
    files: Vec<(String, tempfile::TempPath)>,
}

impl<'a> Staged<'a> {
    pub(crate) const fn new(folder: &'a Path) -> Self {
        Self { folder, files: Vec::new() }
    }

    pub(crate) fn add(&mut self, name: &str, bytes: &[u8]) -> Result<(), OutputError> {
        let (path, mut file) = self.file(name)?;
        let written = file.write_all(bytes).and_then(|()| file.flush());
        written.map_err(|error| OutputError::file(&path, error))
    }

    /// Creates a file; the path is the final one.
    pub(crate) fn file(
        &mut self,
        name: &str,
    ) -> Result<(PathBuf, std::io::BufWriter<std::fs::File>), OutputError> {
        let path = self.folder.join(name);
        let prefix = format!(".{name}.");
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(PARTIAL_SUFFIX);
        // As for any new file: readable as far as the umask permits it.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let file = builder.tempfile_in(self.folder);
        let (file, part) = file.map_err(|error| OutputError::file(&path, error))?.into_parts();
        self.files.push((name.to_owned(), part));
        Ok((path, std::io::BufWriter::new(file)))
    }

    fn capture(&mut self, point: &PointResult) -> Result<(), OutputError> {
        let (path, file) = self.file(&format!("capture-{}.pcapng", point.index))?;
        let written = (|| {
            let names = point.capture_names.iter().map(String::as_str);
            let mut writer = CaptureWriter::new(file, point.capture_layout, names)?;
            match &point.capture {
                Capture::Packets(packets) => {
                    for packet in packets {
                        writer.write(packet.at, packet.interface, &packet.packet)?;
                    }
                }
                Capture::Frames(frames) => {
                    for frame in frames {
                        writer.write_frame(frame)?;
                    }
                }
            }
            writer.finish()?.flush()?;
            Ok::<(), CaptureError>(())
        })();
        written.map_err(|error| OutputError::file(&path, std::io::Error::other(error)))
    }

    /// Returns the names of the files so far.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|(name, _)| name.as_str())
    }

    /// Renames all files, and returns their names.
    pub(crate) fn finish(self) -> Result<Vec<String>, OutputError> {
        for (name, _) in &self.files {
            let path = self.folder.join(name);
            // Found before the first file is renamed.
            if path.is_dir() {
                return Err(OutputError::file(
                    &path,
                    std::io::Error::from(std::io::ErrorKind::IsADirectory),
                ));
            }
        }
        let mut names = Vec::new();
        for (name, part) in self.files {
            let path = self.folder.join(&name);
            part.persist(&path).map_err(|error| OutputError::file(&path, error.error))?;
            names.push(name);
        }
        Ok(names)
    }
}

/// Writes the tables as CSV files. The columns that identify the point come first.
impl Sink for Staged<'_> {
    type Error = OutputError;

    fn table<'a, T: 'static, R: IntoIterator<Item: Borrow<T>>>(
        &mut self,
        name: &'static str,
        wanted: bool,
        points: &'a [PointResult],
        columns: &'static [Column<T>],
        rows: impl Fn(&'a PointResult) -> R,
    ) -> Result<(), OutputError> {
        if !wanted {
            return Ok(());
        }
        let (path, file) = self.file(&format!("{name}.csv"))?;
        let mut writer = csv::Writer::from_writer(file);
        let written = (|| {
            let lead = Lead::of(points);
            writer.write_record(lead.names().chain(in_files(columns).map(|column| column.name)))?;
            for point in points {
                let lead = lead.values(point);
                for row in rows(point) {
                    let values =
                        in_files(columns).map(|column| (column.get)(row.borrow()).to_string());
                    writer.write_record(lead.iter().cloned().chain(values))?;
                }
            }
            writer.flush()?;
            Ok::<(), csv::Error>(())
        })();
        written.map_err(|error| OutputError::file(&path, std::io::Error::other(error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "fabric = { topology = 'single-switch', hosts = 2 }\ntransport.name = 'homa'\n\
                        workload = { arrivals = 'permutation', sizes = '10 KB' }\n";

    fn results() -> (Scenario, Results) {
        let scenario = Scenario::parse("x.toml", TEXT, Path::new("."), &[], None).unwrap();
        let results = crate::Batch::new(scenario.clone()).run(Some(1)).unwrap();
        (scenario, results)
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }

    #[cfg(not(feature = "parquet"))]
    #[test]
    fn a_build_without_parquet_says_so_before_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let prepare = || OutputDir::prepare(folder.path()).unwrap();
        let error = prepare().with_parquet(true).unwrap_err();
        assert!(matches!(error, OutputError::NoParquet), "{error}");
        assert!(prepare().with_parquet(false).is_ok());
    }

    #[test]
    fn files_of_an_earlier_run_go_and_those_of_others_stay() {
        let (scenario, results) = results();
        let folder = tempfile::tempdir().unwrap();
        let others = ["capture.py", "capture-0.pcapng.gz", "traffic.csv.orig", "messages.csv.bak"];
        let ours = ["capture-12.pcapng", "traffic.csv", "messages.csv"];
        for name in others.iter().chain(&ours) {
            std::fs::write(folder.path().join(name), name).unwrap();
        }
        let out = OutputDir::prepare(folder.path()).unwrap();
        out.write(&scenario, &results, "rackweave run x.toml").unwrap();
        let left = names(folder.path());
        assert!(others.iter().all(|name| left.contains(&(*name).to_owned())), "{left:?}");
        assert!(!ours.iter().any(|name| left.contains(&(*name).to_owned())), "{left:?}");
        let copied = tempfile::tempdir().unwrap();
        std::fs::write(copied.path().join("capture.py"), "mine").unwrap();
        let saved = SavedDir::open(folder.path()).unwrap();
        saved.copy_to(&OutputDir::prepare(copied.path()).unwrap()).unwrap();
        assert!(names(copied.path()).contains(&"capture.py".to_owned()));
    }

    #[test]
    fn a_directory_with_the_name_of_a_result_changes_nothing_and_leaves_nothing() {
        let (scenario, results) = results();
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("report.html")).unwrap();
        std::fs::write(folder.path().join("messages.csv"), "earlier").unwrap();
        std::fs::write(folder.path().join("summary.json"), "earlier").unwrap();
        let out = OutputDir::prepare(folder.path()).unwrap();
        let error = out.write(&scenario, &results, "rackweave run x.toml").unwrap_err();
        assert!(error.to_string().contains("report.html"), "{error}");
        assert_eq!(names(folder.path()), ["messages.csv", "report.html", "summary.json"]);
        assert_eq!(std::fs::read_to_string(folder.path().join("summary.json")).unwrap(), "earlier");
    }
}
