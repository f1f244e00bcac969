//! Results as a table, a page and files. Files are written under temporary names and renamed when all are complete, so
//! that a file under its final name is never partial.

use std::borrow::Borrow;
use std::io::Write;
use std::path::{Path, PathBuf};

use rackweave_wire::pcapng::{CaptureError, CaptureWriter};

use crate::error::OutputError;
use crate::report::table::{self, Style};
use crate::report::{Head, charts, html, svg};
use crate::results::columns::{self, Arrival, Circuit, Column};
use crate::results::seeds;
use crate::results::{Capture, PointResult, Results, TrafficSeries, plain};
use crate::scenario::{Scenario, World};
use rackweave_group::app::CastTimes;
use rackweave_sim::config::Circuits;

impl Results {
    /// Returns the tables for a terminal of this width in columns.
    #[must_use]
    pub fn to_table(&self, width: usize, style: Style) -> String {
        table::render(&self.compared(), width, style)
    }

    /// Returns the HTML page; `command` is the command that reproduces the numbers.
    #[must_use]
    pub fn to_html(&self, scenario: &Scenario, command: &str) -> String {
        let head = Head {
            title: scenario.title.clone(),
            description: scenario.description.clone(),
            scenario_toml: scenario.resolved.clone(),
            command: command.to_owned(),
            version: self.summary.version.to_owned(),
            seed: scenario.seed,
            facts: scenario.facts(),
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
/// Files that only some runs write. Those of an earlier run must not remain beside new ones.
const OPTIONAL: [&str; 13] = [
    "over_seeds.csv",
    "traffic.csv",
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
        let probe = path.join(format!(".probe{PARTIAL_SUFFIX}"));
        std::fs::write(&probe, b"").map_err(folder)?;
        std::fs::remove_file(&probe).map_err(folder)?;
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
        staged.add("report.html", results.to_html(scenario, command).as_bytes())?;
        staged.add("slowdown.svg", results.to_svg().as_bytes())?;
        let title = "99th-percentile slowdown beside each run";
        if let Some(chart) = charts::streams_chart(&results.points, title) {
            staged.add("streams.svg", chart.render(svg::Theme::Standalone).as_bytes())?;
        }
        staged.tables(&results.points)?;
        if let Some(means) = seeds::combined(&results.points) {
            let rows = |point: &PointResult| std::iter::once(point.summary.clone());
            staged.csv("over_seeds.csv", &means, columns::OVER_SEEDS, rows)?;
        }
        let points = &results.points;
        for point in points.iter().filter(|point| !point.capture_names.is_empty()) {
            staged.capture(point)?;
        }
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

    /// Writes the CSV files.
    fn tables(&mut self, points: &[PointResult]) -> Result<(), OutputError> {
        self.csv("points.csv", points, columns::POINT, |p| std::iter::once(&p.summary))?;
        self.csv("slowdown_by_size.csv", points, columns::BY_SIZE, |p| &p.summary.by_size)?;
        self.csv("slowdown_curve.csv", points, columns::CURVE, |p| &p.slowdown_curve)?;
        self.csv("latency_cdf.csv", points, columns::CDF, |p| &p.latency_cdf)?;
        self.csv("queues.csv", points, columns::QUEUES, |p| &p.queue_series)?;
        self.csv("links.csv", points, columns::LINKS, |p| &p.links)?;
        if points.iter().any(|point| !point.summary.background.is_empty()) {
            self.csv("streams.csv", points, columns::STREAM, |p| &p.summary.background)?;
        }
        if points.iter().any(|point| point.messages.is_some()) {
            self.csv("messages.csv", points, columns::MESSAGE, |p| p.messages.iter().flatten())?;
        }
        if points.iter().any(|point| !point.round_trips.is_empty()) {
            self.csv("round_trips.csv", points, columns::ROUND_TRIP, |p| &p.round_trips)?;
        }
        if points.iter().any(|point| !point.traffic.is_empty()) {
            self.csv("traffic.csv", points, columns::TRAFFIC, |point| {
                point.traffic.iter().flat_map(TrafficSeries::samples)
            })?;
        }
        if points.iter().any(|point| !point.circuits.is_empty()) {
            self.csv("circuits.csv", points, columns::CIRCUITS, circuits)?;
        }
        if points.iter().any(|point| point.cast.is_some()) {
            self.csv("cast_files.csv", points, columns::CAST_FILE, files)?;
            self.csv("cast_receivers.csv", points, columns::CAST_RECEIVER, arrivals)?;
        }
        if points.iter().any(|point| point.summary.image.is_some()) {
            self.csv("image_clients.csv", points, columns::IMAGE_CLIENT, |point| {
                point.summary.image.iter().flat_map(|image| &image.clients)
            })?;
        }
        if points.iter().any(|point| point.summary.reduce.is_some()) {
            self.csv("reduce_jobs.csv", points, columns::REDUCE_JOB, |point| {
                point.summary.reduce.iter().flat_map(|reduce| &reduce.jobs)
            })?;
        }
        if points.iter().any(|point| point.summary.allreduce.is_some()) {
            self.csv("allreduce_steps.csv", points, columns::ALLREDUCE_STEP, |point| {
                point.summary.allreduce.iter().flat_map(|allreduce| &allreduce.steps)
            })?;
        }
        Ok(())
    }

    /// Writes a table with any number of rows for each point. The columns that identify the point come first.
    fn csv<'a, T: 'static, R: IntoIterator<Item: Borrow<T>>>(
        &mut self,
        name: &str,
        points: &'a [PointResult],
        columns: &[Column<T>],
        rows: impl Fn(&'a PointResult) -> R,
    ) -> Result<(), OutputError> {
        let (path, file) = self.file(name)?;
        let mut writer = csv::Writer::from_writer(file);
        let written = (|| {
            let mut swept: Vec<&String> = Vec::new();
            for key in points.iter().flat_map(|point| point.summary.set.keys()) {
                let is_lead = key == "transport.name" || key == "transport.label";
                if !is_lead && !LEAD_COLUMNS.contains(&key.as_str()) && !swept.contains(&key) {
                    swept.push(key);
                }
            }
            let columns = || columns.iter().filter(|column| !column.name.is_empty());
            let lead = LEAD_COLUMNS.into_iter().chain(swept.iter().map(|key| key.as_str()));
            writer.write_record(lead.chain(columns().map(|column| column.name)))?;
            for point in points {
                let PointResult { index, summary, .. } = point;
                let mut lead =
                    vec![index.to_string(), summary.transport.clone(), summary.label.clone()];
                let value = |key: &&String| summary.set.get(*key).map_or(String::new(), plain);
                lead.extend(swept.iter().map(value));
                for row in rows(point) {
                    let values = columns().map(|column| (column.get)(row.borrow()).to_string());
                    writer.write_record(lead.iter().cloned().chain(values))?;
                }
            }
            writer.flush()?;
            Ok::<(), csv::Error>(())
        })();
        written.map_err(|error| OutputError::file(&path, std::io::Error::other(error)))
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

/// The first columns of every table, before the swept keys.
const LEAD_COLUMNS: [&str; 3] = ["point", "transport", "label"];

/// Returns the circuits of a point after each change, one row for each circuit.
fn circuits(point: &PointResult) -> impl Iterator<Item = Circuit> {
    point.circuits.iter().flat_map(|(from, circuits)| {
        let ends: Vec<(String, String)> = match circuits {
            Circuits::None => Vec::new(),
            Circuits::Servers(tor_of) => (0..)
                .zip(tor_of)
                .map(|(host, tor): (u32, _)| (format!("h{host}"), format!("tor{tor}")))
                .collect(),
            Circuits::Tors(pairs) => {
                pairs.iter().map(|(a, b)| (format!("tor{a}"), format!("tor{b}"))).collect()
            }
        };
        ends.into_iter().map(|ends| Circuit { from: *from, ends })
    })
}

/// Returns the rows of a point's cast, one for each file.
fn files(point: &PointResult) -> impl Iterator<Item = CastTimes> {
    point.cast.iter().flat_map(|cast| &cast.app.casts).copied()
}

/// Returns the rows of a point's cast, one for each file at each receiver.
fn arrivals(point: &PointResult) -> impl Iterator<Item = Arrival> {
    point.cast.iter().flat_map(|cast| &cast.app.receivers).flat_map(|receiver| {
        let before = std::iter::once(None).chain(receiver.completed.iter().map(Some));
        let completed = (0..).zip(receiver.completed.iter().copied()).zip(before);
        completed.map(|((file, completed), before)| Arrival {
            host: receiver.host,
            file,
            completed,
            wait: before.map(|before| completed.since(*before)),
        })
    })
}
