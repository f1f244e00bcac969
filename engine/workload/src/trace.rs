//! Traces: messages that are read from a file.

use std::sync::Arc;

use rackweave_core::{HostId, Span};

use crate::error::{LineProblem, TraceError};
use crate::rows::{Rows, whole_number};
use crate::sizes::MAX_MESSAGE_BYTES;

/// The time columns that a trace may have, with their units in picoseconds.
const TIME_COLUMNS: [(&str, f64); 5] =
    [("time_us", 1e6), ("time_ns", 1e3), ("time_ps", 1.0), ("time_ms", 1e9), ("time_s", 1e12)];
const EXPECTED: &str = "time_us,source,destination,bytes";
/// A hundred days in picoseconds, which is far from overflowing.
const MAX_TIME_PS: f64 = 100.0 * 86_400.0 * 1e12;

/// One message of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEntry {
    /// The start time, counted from the start of the workload.
    pub at: Span,
    /// The sending host.
    pub src: HostId,
    /// The receiving host.
    pub dst: HostId,
    /// The length in bytes.
    pub bytes: u64,
}

/// Messages in the order of their start. It is cheap to clone, because clones share them.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    entries: Arc<[TraceEntry]>,
    /// The highest host number and its first occurrence, by which hosts are validated later.
    highest: (u32, Place),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Line(u64),
    Message(usize),
}

impl Trace {
    /// Creates a trace of these messages, which may be in any order.
    ///
    /// # Errors
    /// If there are no messages, or one is empty, too long, or sent by a host to itself.
    pub fn new(entries: Vec<TraceEntry>) -> Result<Self, TraceError> {
        let mut highest = None;
        for (index, entry) in entries.iter().enumerate() {
            check(entry).map_err(|problem| TraceError::Entry { index, problem })?;
            raise(&mut highest, entry, Place::Message(index));
        }
        Self::sorted(entries, highest)
    }

    /// Parses a trace: a header with the columns `time_us` (or `time_ns`, `time_ps`, `time_ms`, `time_s`), `source`,
    /// `destination` and `bytes`, then one line per message. Times may have decimals and need not be in order, because
    /// traces are often combined from the files of several hosts. Messages with equal times keep their order. Lines
    /// that begin with # are ignored.
    ///
    /// # Errors
    /// If the text does not have this format; the error names the line.
    pub fn from_csv(text: impl AsRef<[u8]>) -> Result<Self, TraceError> {
        let text = text.as_ref();
        let at_line = |line, problem| TraceError::Line { line, problem };
        let (mut rows, scale) = open(text).map_err(|error| {
            error.map_or(TraceError::Empty, |(line, problem)| at_line(line, problem))
        })?;
        let (mut entries, mut highest) = (Vec::new(), None);
        while rows.advance() {
            let entry = read_entry(&rows, scale).map_err(|what| at_line(rows.line(), what))?;
            raise(&mut highest, &entry, Place::Line(rows.line()));
            entries.push(entry);
        }
        Self::sorted(entries, highest)
    }

    fn sorted(
        mut entries: Vec<TraceEntry>,
        highest: Option<(u32, Place)>,
    ) -> Result<Self, TraceError> {
        let highest = highest.ok_or(TraceError::Empty)?;
        entries.sort_by_key(|entry| entry.at);
        Ok(Self { entries: entries.into(), highest })
    }

    /// Returns the messages in the order of their start.
    #[must_use]
    pub fn entries(&self) -> &[TraceEntry] {
        &self.entries
    }

    /// Checks that all host numbers are below `hosts`.
    ///
    /// # Errors
    /// If one is not; the error names its line.
    pub fn check_hosts(&self, hosts: u32) -> Result<(), TraceError> {
        let (host, place) = self.highest;
        if host < hosts {
            return Ok(());
        }
        let place = match place {
            Place::Line(line) => format!("line {line}"),
            Place::Message(index) => format!("message {index} of the trace"),
        };
        Err(TraceError::NoSuchHost { place, host, hosts })
    }
}

fn open(text: &[u8]) -> Result<(Rows<'_>, f64), Option<(u64, LineProblem)>> {
    let mut missing = None;
    for (time, scale) in TIME_COLUMNS {
        match Rows::new(text, &[time, "source", "destination", "bytes"], EXPECTED) {
            Ok(rows) => return Ok((rows, scale)),
            // Report the error for the first unit, unless the file only uses another unit.
            Err(Some((line, LineProblem::MissingColumn { column, expected }))) => {
                if column != time {
                    return Err(Some((line, LineProblem::MissingColumn { column, expected })));
                }
                missing = missing.or(Some((line, LineProblem::MissingColumn { column, expected })));
            }
            Err(other) => return Err(other),
        }
    }
    Err(missing)
}

fn read_entry(rows: &Rows<'_>, scale: f64) -> Result<TraceEntry, LineProblem> {
    const HOST: &str = "the number of a host, from 0";
    let time = rows.value(0, "a time from 0 to 100 days", |text| {
        let picoseconds = text.parse::<f64>().ok()? * scale;
        let possible = (0.0..=MAX_TIME_PS).contains(&picoseconds);
        possible.then_some(Span::from_ps((picoseconds + 0.5) as u64))
    })?;
    let host = |text: &str| whole_number(text, u64::from(u32::MAX)).map(|n| HostId(n as u32));
    let entry = TraceEntry {
        at: time,
        src: rows.value(1, HOST, host)?,
        dst: rows.value(2, HOST, host)?,
        bytes: rows.value(3, "a whole number of bytes from 1 to 2^40", |text| {
            whole_number(text, MAX_MESSAGE_BYTES).filter(|&n| n > 0)
        })?,
    };
    check(&entry)?;
    Ok(entry)
}

fn check(entry: &TraceEntry) -> Result<(), LineProblem> {
    if entry.src == entry.dst {
        return Err(LineProblem::ToItself(entry.src.0));
    }
    if !(1..=MAX_MESSAGE_BYTES).contains(&entry.bytes) {
        return Err(LineProblem::BadValue {
            column: "bytes",
            value: entry.bytes.to_string(),
            expected: "from 1 to 2^40",
        });
    }
    Ok(())
}

fn raise(highest: &mut Option<(u32, Place)>, entry: &TraceEntry, place: Place) {
    let host = entry.src.0.max(entry.dst.0);
    if highest.is_none_or(|(before, _)| host > before) {
        *highest = Some((host, place));
    }
}
