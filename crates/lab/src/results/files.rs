//! The files of a run. They are written aside and renamed when all are whole: under its final
//! name a file is never partial.

use std::io::Write;
use std::path::{Path, PathBuf};

use rackweave_sim::result::Outcome;
use rackweave_wire::pcapng::{CaptureError, CaptureWriter};

use super::{PointResult, Results, Spread, plain};
use crate::error::OutputError;
use crate::scenario::{Scenario, World};

/// The folder of results, checked to be writable.
#[derive(Debug)]
pub struct OutputFolder {
    path: PathBuf,
}

/// Ends the name of a file that is not whole yet.
const PART: &str = ".part";
/// Files that only some runs write: those of an earlier run must not stay beside new ones.
const OPTIONAL: [&str; 5] =
    ["messages.csv", "round_trips.csv", "capture", "cast_files.csv", "cast_receivers.csv"];

impl OutputFolder {
    /// Makes the folder and tries to write there, so that a long run does not fail at its end.
    ///
    /// # Errors
    /// If it can't be made or written to.
    pub fn prepare(path: &Path) -> Result<Self, OutputError> {
        let folder = |source| OutputError::Folder { path: path.to_owned(), source };
        if path.exists() && !path.is_dir() {
            return Err(folder(std::io::ErrorKind::NotADirectory.into()));
        }
        std::fs::create_dir_all(path).map_err(folder)?;
        let probe = path.join(format!(".probe{PART}"));
        std::fs::write(&probe, b"").map_err(folder)?;
        std::fs::remove_file(&probe).map_err(folder)?;
        Ok(Self { path: path.to_owned() })
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes everything; `command` is what gives the same results again.
    ///
    /// # Errors
    /// If a file can't be written; then none of them changes.
    pub fn write(
        &self,
        scenario: &Scenario,
        results: &Results,
        command: &str,
    ) -> Result<(), OutputError> {
        let mut staged = Staged { folder: &self.path, names: Vec::new() };
        staged.add("summary.json", results.to_json().as_bytes())?;
        let again = match scenario.world {
            World::Simulator => "`rackweave run` with this file gives the same results.",
            World::Testbed => "`rackweave testbed` with this file does the same again.",
        };
        let head = format!(
            "# Written by rackweave {}: the scenario as it was run, with all defaults.\n# {again}\n\n",
            env!("CARGO_PKG_VERSION")
        );
        staged.add("scenario.resolved.toml", (head + &scenario.resolved).as_bytes())?;
        staged.add("report.html", results.to_html(scenario, command).as_bytes())?;
        let points = &results.points;
        staged.add("slowdown.svg", results.to_svg(scenario).as_bytes())?;
        staged.csv("points.csv", points, &POINT_COLUMNS, points_rows)?;
        staged.csv("slowdown_by_size.csv", points, &BY_SIZE_COLUMNS, by_size_rows)?;
        staged.csv("slowdown_curve.csv", points, &CURVE_COLUMNS, curve_rows)?;
        staged.csv("latency_cdf.csv", points, &["latency_us", "fraction"], cdf_rows)?;
        staged.csv("queues.csv", points, &["time_us", "max_bytes", "total_bytes"], queue_rows)?;
        staged.csv("links.csv", points, &LINK_COLUMNS, link_rows)?;
        if points.iter().any(|point| point.messages.is_some()) {
            staged.csv("messages.csv", points, &MESSAGE_COLUMNS, message_rows)?;
        }
        if points.iter().any(|point| !point.round_trips.is_empty()) {
            staged.csv("round_trips.csv", points, &ROUND_TRIP_COLUMNS, round_trip_rows)?;
        }
        if points.iter().any(|point| point.cast.is_some()) {
            staged.csv("cast_files.csv", points, &CAST_FILE_COLUMNS, cast_file_rows)?;
            staged.csv("cast_receivers.csv", points, &CAST_RECEIVER_COLUMNS, cast_receiver_rows)?;
        }
        for point in points.iter().filter(|point| !point.capture_names.is_empty()) {
            staged.capture(point)?;
        }
        self.remove_optional();
        staged.finish()
    }

    /// Writes files of any kind, all or none of them.
    ///
    /// # Errors
    /// If a file can't be written; then none of them changes.
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
            let whole = !name.ends_with(PART);
            if whole && OPTIONAL.iter().any(|optional| name.starts_with(optional)) {
                // What can't be removed is overwritten or stays: no reason to lose the results.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

/// Files that wait for their final names.
struct Staged<'a> {
    folder: &'a Path,
    names: Vec<String>,
}

impl Staged<'_> {
    fn part(&self, name: &str) -> PathBuf {
        self.folder.join(format!(".{name}{PART}"))
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

    /// A table with a row or more for each point: which point it is comes first.
    fn csv(
        &mut self,
        name: &str,
        points: &[PointResult],
        columns: &[&str],
        rows: fn(&PointResult, &mut Rows<'_>) -> csv::Result<()>,
    ) -> Result<(), OutputError> {
        let (path, file) = self.file(name)?;
        let mut writer = csv::Writer::from_writer(file);
        let written = (|| {
            let keys = points.iter().flat_map(|point| point.summary.set.keys());
            let mut header = LEAD_COLUMNS.map(str::to_owned).to_vec();
            for key in keys {
                let told = key == "transport.name" || key == "transport.label";
                if !told && !header.contains(key) {
                    header.push(key.clone());
                }
            }
            let own = header.len();
            header.extend(columns.iter().map(|column| (*column).to_owned()));
            writer.write_record(&header)?;
            for point in points {
                let set = &point.summary.set;
                let summary = &point.summary;
                let mut lead =
                    vec![point.index.to_string(), summary.transport.clone(), summary.label.clone()];
                lead.extend(
                    header[LEAD_COLUMNS.len()..own]
                        .iter()
                        .map(|key| set.get(key).map_or(String::new(), plain)),
                );
                rows(point, &mut Rows { writer: &mut writer, lead: &lead })?;
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
            for packet in &point.capture {
                writer.write(packet.at, packet.interface, &packet.packet)?;
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
    /// After an error: nothing of it stays.
    fn drop(&mut self) {
        for name in &self.names {
            let _ = std::fs::remove_file(self.part(name));
        }
    }
}

/// Rows of one point.
struct Rows<'a> {
    writer: &'a mut csv::Writer<std::io::BufWriter<std::fs::File>>,
    lead: &'a [String],
}

impl Rows<'_> {
    fn row<const N: usize>(&mut self, fields: [String; N]) -> csv::Result<()> {
        self.writer.write_record(self.lead.iter().chain(&fields))
    }
}

/// Empty where there is no number.
fn number(x: f64) -> String {
    if x.is_finite() { x.to_string() } else { String::new() }
}

/// What every table begins with, before the swept keys.
const LEAD_COLUMNS: [&str; 3] = ["point", "transport", "label"];

const POINT_COLUMNS: [&str; 31] = [
    "started",
    "completed",
    "failed",
    "unfinished",
    "slowdown_p50",
    "slowdown_p99",
    "slowdown_p999",
    "slowdown_mean",
    "latency_p50_us",
    "latency_p99_us",
    "latency_p999_us",
    "latency_mean_us",
    "goodput_gbps",
    "drops",
    "trims",
    "ecn_marks",
    "queue_mean_bytes",
    "queue_max_bytes",
    "packet_hops",
    "events",
    "cpu_s",
    "simulated_us",
    "measured_us",
    "end",
    "left_out",
    "goodput_by_sender_min_gbps",
    "goodput_by_sender_mean_gbps",
    "goodput_by_sender_max_gbps",
    "busiest_port",
    "busiest_port_mean_queue_bytes",
    "turned_back",
];

fn points_rows(point: &PointResult, rows: &mut Rows<'_>) -> csv::Result<()> {
    let p = &point.summary;
    let by_sender = |of: fn(&Spread) -> f64| p.goodput_by_sender_gbps.as_ref().map_or(f64::NAN, of);
    let busiest = p.busiest_port.as_ref();
    rows.row([
        p.messages.started.to_string(),
        p.messages.completed.to_string(),
        p.messages.failed.to_string(),
        p.messages.unfinished.to_string(),
        number(p.slowdown.p50),
        number(p.slowdown.p99),
        number(p.slowdown.p999),
        number(p.slowdown.mean),
        number(p.latency_us.p50),
        number(p.latency_us.p99),
        number(p.latency_us.p999),
        number(p.latency_us.mean),
        number(p.goodput_gbps),
        p.drops.to_string(),
        p.trims.to_string(),
        p.ecn_marks.to_string(),
        number(p.queue_bytes.mean),
        p.queue_bytes.max.to_string(),
        p.packet_hops.to_string(),
        p.events.to_string(),
        number(p.cpu_s),
        number(p.simulated_us),
        number(p.measured_us),
        p.end.to_owned(),
        p.messages.left_out.to_string(),
        number(by_sender(|spread| spread.min)),
        number(by_sender(|spread| spread.mean)),
        number(by_sender(|spread| spread.max)),
        busiest.map_or(String::new(), |port| port.name.clone()),
        number(busiest.map_or(f64::NAN, |port| port.mean_queue_bytes)),
        p.turned_back.to_string(),
    ])
}

const BY_SIZE_COLUMNS: [&str; 7] = [
    "up_to_bytes",
    "count",
    "slowdown_mean",
    "slowdown_p50",
    "slowdown_p99",
    "latency_p50_us",
    "latency_p99_us",
];

fn by_size_rows(point: &PointResult, rows: &mut Rows<'_>) -> csv::Result<()> {
    for bucket in &point.summary.by_size {
        rows.row([
            bucket.up_to_bytes.map_or(String::new(), |edge| edge.to_string()),
            bucket.count.to_string(),
            number(bucket.mean),
            number(bucket.p50),
            number(bucket.p99),
            number(bucket.latency_p50_us),
            number(bucket.latency_p99_us),
        ])?;
    }
    Ok(())
}

const CURVE_COLUMNS: [&str; 4] = ["count_fraction", "size_bytes", "slowdown_p50", "slowdown_p99"];

fn curve_rows(point: &PointResult, rows: &mut Rows<'_>) -> csv::Result<()> {
    for step in &point.slowdown_curve {
        let size = step.size_bytes.to_string();
        rows.row([number(step.count_fraction), size, number(step.p50), number(step.p99)])?;
    }
    Ok(())
}

fn cdf_rows(point: &PointResult, rows: &mut Rows<'_>) -> csv::Result<()> {
    for (latency, fraction) in &point.latency_cdf {
        rows.row([number(*latency), number(*fraction)])?;
    }
    Ok(())
}

fn queue_rows(point: &PointResult, rows: &mut Rows<'_>) -> csv::Result<()> {
    for sample in &point.queue_series {
        let (max, total) = (sample.max_bytes.to_string(), sample.total_bytes.to_string());
        rows.row([number(sample.at.as_us_f64()), max, total])?;
    }
    Ok(())
}

const LINK_COLUMNS: [&str; 5] =
    ["link", "utilisation", "mean_queue_bytes", "max_queue_bytes", "drops"];

fn link_rows(point: &PointResult, rows: &mut Rows<'_>) -> csv::Result<()> {
    for link in &point.links {
        rows.row([
            link.name.clone(),
            number(link.utilisation),
            number(link.mean_queue_bytes),
            link.max_queue_bytes.to_string(),
            link.drops.to_string(),
        ])?;
    }
    Ok(())
}

const MESSAGE_COLUMNS: [&str; 9] = [
    "stream",
    "source",
    "destination",
    "bytes",
    "start_us",
    "ideal_us",
    "latency_us",
    "slowdown",
    "outcome",
];

fn message_rows(point: &PointResult, rows: &mut Rows<'_>) -> csv::Result<()> {
    for message in point.messages.iter().flatten() {
        let (latency, outcome) = match message.outcome {
            Outcome::Completed(at) => (Some(at.since(message.start)), "completed".to_owned()),
            Outcome::Failed(reason) => (None, reason.to_string()),
            Outcome::Unfinished => (None, "unfinished".to_owned()),
        };
        let ideal = message.ideal.0.max(1) as f64;
        rows.row([
            message.stream.to_string(),
            message.src.0.to_string(),
            message.dst.0.to_string(),
            message.bytes.to_string(),
            number(message.start.as_us_f64()),
            number(message.ideal.as_us_f64()),
            latency.map_or(String::new(), |span| number(span.as_us_f64())),
            latency.map_or(String::new(), |span| number(span.0 as f64 / ideal)),
            outcome,
        ])?;
    }
    Ok(())
}

const ROUND_TRIP_COLUMNS: [&str; 7] =
    ["stream", "src", "dst", "min_us", "recent_us", "base_us", "samples"];

fn round_trip_rows(point: &PointResult, rows: &mut Rows<'_>) -> csv::Result<()> {
    for trip in &point.round_trips {
        rows.row([
            trip.stream.to_string(),
            trip.src.0.to_string(),
            trip.dst.0.to_string(),
            number(trip.min.as_us_f64()),
            number(trip.recent.as_us_f64()),
            number(trip.base.as_us_f64()),
            trip.samples.to_string(),
        ])?;
    }
    Ok(())
}

const CAST_FILE_COLUMNS: [&str; 5] = ["file", "bytes", "begun_us", "ended_us", "send_us"];

fn cast_file_rows(point: &PointResult, rows: &mut Rows<'_>) -> csv::Result<()> {
    for (nth, file) in point.cast.iter().flat_map(|cast| cast.files.iter().enumerate()) {
        let ended = file.ended.map(|at| number(at.as_us_f64()));
        let send = file.ended.map(|at| number(at.since(file.begun).as_us_f64()));
        rows.row([
            nth.to_string(),
            file.bytes.to_string(),
            number(file.begun.as_us_f64()),
            ended.unwrap_or_default(),
            send.unwrap_or_default(),
        ])?;
    }
    Ok(())
}

const CAST_RECEIVER_COLUMNS: [&str; 4] = ["host", "file", "completed_us", "wait_us"];

fn cast_receiver_rows(point: &PointResult, rows: &mut Rows<'_>) -> csv::Result<()> {
    for receiver in point.cast.iter().flat_map(|cast| &cast.receivers) {
        for (nth, at) in receiver.completed.iter().enumerate() {
            // Before the first file there is none to wait after.
            let before = nth.checked_sub(1).map(|before| receiver.completed[before]);
            let wait = before.map(|before| number(at.since(before).as_us_f64()));
            rows.row([
                receiver.host.0.to_string(),
                nth.to_string(),
                number(at.as_us_f64()),
                wait.unwrap_or_default(),
            ])?;
        }
    }
    Ok(())
}
