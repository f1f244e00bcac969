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
        table::render(&self.compared(), width, style)
    }

    /// Returns the HTML page; `command` is the command that reproduces the numbers.
    #[must_use]
    pub fn to_html(&self, scenario: &Scenario, command: &str) -> String {
        self.to_html_beside(scenario, command, Vec::new())
    }

    /// Returns the HTML page with links to the files beside it.
    fn to_html_beside(&self, scenario: &Scenario, command: &str, files: Vec<String>) -> String {
        let head = Head {
            title: scenario.title.clone(),
            description: scenario.description.clone(),
            scenario_toml: scenario.resolved.clone(),
            command: command.to_owned(),
            version: self.summary.version.to_owned(),
            seed: scenario.seed,
            facts: scenario.facts(),
            files,
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

/// The directory for results, which was checked to be writable.
#[derive(Debug)]
pub struct OutputDir {
    path: PathBuf,
}

/// The suffix of files that are not complete yet.
const PARTIAL_SUFFIX: &str = ".part";
/// Files that every run writes beside CSV files and pictures.
const ALWAYS: [&str; 3] = ["summary.json", "scenario.resolved.toml", "report.html"];
/// Files that only some runs write. Those of an earlier run must not remain beside new ones.
const OPTIONAL: [&str; 14] = [
    "over_seeds.csv",
    "traffic.csv",
    "goodput.csv",
    "circuits.csv",
    "streams.svg",
    "streams.csv",
    "messages.csv",
    "round_trips.csv",
    "capture",
    "cast_files.csv",
    "cast_receivers.csv",
    "image_clients.csv",
    "reduce_jobs.csv",
    "allreduce_steps.csv",
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
        // The probe's name is random, because the shards of a sweep test one directory at one time.
        let mut probe = tempfile::Builder::new();
        let probe = probe.prefix(".probe").suffix(PARTIAL_SUFFIX).tempfile_in(path);
        probe.and_then(|file| file.close()).map_err(folder)?;
        Ok(Self { path: path.to_owned() })
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes all result files; `command` is the command that reproduces the results.
    ///
    /// # Errors
    /// If a file cannot be written; in that case no file changes.
    pub fn write(
        &self,
        scenario: &Scenario,
        results: &Results,
        command: &str,
    ) -> Result<(), OutputError> {
        let mut staged = Staged { folder: &self.path, names: Vec::new() };
        staged.add("summary.json", results.to_json().as_bytes())?;
        let subcommand = match scenario.world {
            World::Simulator => "`rackweave run` with this file gives the same results.",
            World::Testbed => "`rackweave testbed` with this file runs the same experiment.",
        };
        let head = format!(
            "# Written by rackweave {}: the scenario as it was run, with all defaults.\n# {subcommand}\n\n",
            env!("CARGO_PKG_VERSION")
        );
        staged.add("scenario.resolved.toml", (head + &scenario.resolved).as_bytes())?;
        staged.add("slowdown.svg", results.to_svg().as_bytes())?;
        let title = "99th-percentile slowdown beside each run";
        if let Some(chart) = charts::streams_chart(&results.points, title) {
            staged.add("streams.svg", chart.render(svg::Theme::Standalone).as_bytes())?;
        }
        tables::write(&results.points, &mut staged)?;
        let points = &results.points;
        for point in points.iter().filter(|point| !point.capture_names.is_empty()) {
            staged.capture(point)?;
        }
        let is_linked = |name: &&String| !name.ends_with(".pcapng");
        let files = staged.names.iter().filter(is_linked).cloned().collect();
        let page = results.to_html_beside(scenario, command, files);
        staged.add("report.html", page.as_bytes())?;
        self.remove_optional();
        staged.finish()
    }

    /// Writes files of any kind, all of them or none.
    ///
    /// # Errors
    /// If a file cannot be written; in that case no file changes.
    pub(crate) fn write_all(&self, files: &[(String, String)]) -> Result<(), OutputError> {
        let mut staged = Staged { folder: &self.path, names: Vec::new() };
        for (name, text) in files {
            staged.add(name, text.as_bytes())?;
        }
        staged.finish()
    }

    fn remove_optional(&self) {
        let Ok(entries) = std::fs::read_dir(&self.path) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let whole = !name.ends_with(PARTIAL_SUFFIX);
            if whole && OPTIONAL.iter().any(|optional| name.starts_with(optional)) {
                // A file that cannot be removed is overwritten or remains, which is no reason to lose the results.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
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
    fn names(&self) -> Result<Vec<String>, OutputError> {
        let cannot = |source| OutputError::Read { path: self.path.clone(), source };
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(cannot)? {
            let Ok(name) = entry.map_err(cannot)?.file_name().into_string() else { continue };
            let is_table = name.ends_with(".csv") || name.ends_with(".svg");
            let is_capture = name.starts_with("capture-") && name.ends_with(".pcapng");
            if ALWAYS.contains(&name.as_str()) || is_table || is_capture {
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

    /// Copies its result files, byte for byte.
    ///
    /// # Errors
    /// If a file cannot be read or written; in the latter case no file of the other directory changes.
    pub fn copy_to(&self, out: &OutputDir) -> Result<(), OutputError> {
        let mut staged = Staged { folder: &out.path, names: Vec::new() };
        for name in self.names()? {
            let path = staged.part(&name);
            staged.names.push(name.clone());
            std::fs::copy(self.path.join(&name), &path)
                .map_err(|error| OutputError::file(&path, error))?;
        }
        if self.path.canonicalize().ok() != out.path.canonicalize().ok() {
            out.remove_optional();
        }
        staged.finish()
    }
}

/// Files under temporary names, until they are renamed.
struct Staged<'a> {
    folder: &'a Path,
    names: Vec<String>,
}

impl Staged<'_> {
    fn part(&self, name: &str) -> PathBuf {
        self.folder.join(format!(".{name}{PARTIAL_SUFFIX}"))
    }

    fn add(&mut self, name: &str, bytes: &[u8]) -> Result<(), OutputError> {
        self.names.push(name.to_owned());
        let path = self.part(name);
        std::fs::write(&path, bytes).map_err(|error| OutputError::file(&path, error))
    }

    fn file(
        &mut self,
        name: &str,
    ) -> Result<(PathBuf, std::io::BufWriter<std::fs::File>), OutputError> {
        self.names.push(name.to_owned());
        let path = self.part(name);
        let file = std::fs::File::create(&path).map_err(|error| OutputError::file(&path, error))?;
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

    fn finish(mut self) -> Result<(), OutputError> {
        for name in std::mem::take(&mut self.names) {
            let path = self.folder.join(&name);
            std::fs::rename(self.part(&name), &path)
                .map_err(|error| OutputError::file(&path, error))?;
        }
        Ok(())
    }
}

impl Drop for Staged<'_> {
    /// After an error, the temporary files are removed.
    fn drop(&mut self) {
        for name in &self.names {
            let _ = std::fs::remove_file(self.part(name));
        }
    }
}

/// Writes the tables as CSV files. The columns that identify the point come first.
impl Sink for Staged<'_> {
    type Error = OutputError;

    fn table<'a, T: 'static, R: IntoIterator<Item: Borrow<T>>>(
        &mut self,
        name: &str,
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
