//! A recorded trace as CSV (docs/ops/reduce-plan.md): one transfer in a line, by period or by start and end.

use std::collections::BTreeMap;
use std::io::BufRead;

use rackweave_core::Span;

use crate::demand::{Broadcast, Flow, JobId, MAX_TRANSFER_BYTES, Period, Upload};

/// The longest line in bytes.
pub const MAX_LINE: usize = 64 << 10;
/// The most transfers of a trace, each counted in every period in which it is.
pub const MAX_TRANSFERS: usize = 4_000_000;
/// The most periods of a trace.
pub const MAX_PERIODS: usize = 100_000;

const COLUMNS: [&str; 9] =
    ["period", "start_s", "end_s", "src", "dst", "bytes", "job", "kind", "distinct"];
const PERIOD: usize = 0;
const START: usize = 1;
const END: usize = 2;
const SRC: usize = 3;
const DST: usize = 4;
const BYTES: usize = 5;
const JOB: usize = 6;
const KIND: usize = 7;
const DISTINCT: usize = 8;
/// The names that traces of messages have for the same columns.
const ALIASES: [(&str, usize); 2] = [("source", SRC), ("destination", DST)];
/// The picoseconds of a second.
const SECOND: u128 = 1_000_000_000_000;

/// What is wrong with a trace, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {problem}")]
pub struct TraceError {
    /// The number of the line, from 1.
    pub line: u64,
    /// The number of the character in the line, from 1.
    pub column: usize,
    /// What is wrong.
    pub problem: String,
}

/// A trace that has been read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// The demand of each period. Periods without transfers are there too.
    pub periods: Vec<Period>,
    /// The number of transfers in the file.
    pub transfers: usize,
    /// Whether the transfers had start and end, and were divided into periods.
    pub divided: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data,
    Upload,
    Broadcast,
}

/// When a transfer takes place.
#[derive(Clone, Copy, Debug)]
enum When {
    Period(usize),
    /// In picoseconds.
    Interval(u128, u128),
}

#[derive(Clone, Copy, Debug)]
struct Row {
    line: u64,
    when: When,
    src: u32,
    dst: u32,
    bytes: u64,
    job: Option<JobId>,
    kind: Kind,
    distinct: Option<u64>,
    /// The column of `distinct`, or of `bytes` without one.
    place: u32,
}

/// Reads a trace of a pod with `servers` servers. Transfers with start and end are divided into periods of the given length, in
/// proportion to time, from the earliest start on.
///
/// # Errors
/// If the text does not have this format, or is too long; the error names line and column.
pub fn read(mut text: impl BufRead, servers: u32, period: Span) -> Result<Trace, TraceError> {
    let mut line = Vec::new();
    let mut number = 0;
    let mut header: Option<Header> = None;
    let mut rows: Vec<Row> = Vec::new();
    while next_line(&mut text, &mut line, &mut number)? {
        let bytes = line.strip_prefix(b"\xef\xbb\xbf").filter(|_| number == 1).unwrap_or(&line);
        let content = std::str::from_utf8(bytes).map_err(|error| {
            let column = String::from_utf8_lossy(&bytes[..error.valid_up_to()]).chars().count();
            wrong(number, column + 1, "this is not text (UTF-8)")
        })?;
        if content.trim().is_empty() || content.trim_start().starts_with('#') {
            continue;
        }
        let Some(header) = &header else {
            header = Some(Header::read(content, number)?);
            continue;
        };
        if rows.len() == MAX_TRANSFERS {
            return Err(wrong(number, 1, format!("a trace has at most {MAX_TRANSFERS} transfers")));
        }
        rows.push(header.row(content, number, servers)?);
    }
    let Some(header) = header else {
        return Err(wrong(number.max(1), 1, "the trace is empty: it needs a header of columns"));
    };
    if rows.is_empty() {
        return Err(wrong(number, 1, "the trace has a header, but no transfers"));
    }
    let divided = header.columns[START].is_some();
    let transfers = rows.len();
    let periods = Builder::new(&rows, period)?.build(rows, servers)?;
    Ok(Trace { periods, transfers, divided })
}

fn wrong(line: u64, column: usize, problem: impl Into<String>) -> TraceError {
    TraceError { line, column, problem: problem.into() }
}

/// Reads the next line without its end; false at the end of the text.
fn next_line(
    text: &mut impl BufRead,
    line: &mut Vec<u8>,
    number: &mut u64,
) -> Result<bool, TraceError> {
    use std::io::Read as _;
    line.clear();
    *number += 1;
    let read = text.by_ref().take(MAX_LINE as u64 + 1).read_until(b'\n', line);
    read.map_err(|error| wrong(*number, 1, format!("cannot read the trace: {error}")))?;
    if line.is_empty() {
        *number -= 1;
        return Ok(false);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() > MAX_LINE {
        return Err(wrong(*number, 1, format!("the line is longer than {MAX_LINE} bytes")));
    }
    Ok(true)
}

/// The fields of a line with their positions, trimmed and without quotes.
fn fields(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut column = 1;
    line.split(',').map(move |field| {
        let start = column + field.chars().take_while(|letter| letter.is_whitespace()).count();
        column += field.chars().count() + 1;
        let field = field.trim();
        let bare = field.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        (start, bare.map_or(field, str::trim))
    })
}

/// A value from a file as it can be printed.
fn shown(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(40).collect()
}

struct Header {
    columns: [Option<usize>; 9],
    count: usize,
}

impl Header {
    fn read(line: &str, number: u64) -> Result<Self, TraceError> {
        let mut this = Self { columns: [None; 9], count: 0 };
        for (index, (column, name)) in fields(line).enumerate() {
            let is = |other: &str| other.eq_ignore_ascii_case(name);
            let alias = ALIASES.iter().find(|(alias, _)| is(alias)).map(|(_, column)| *column);
            let Some(known) = COLUMNS.iter().position(|it| is(it)).or(alias) else {
                let problem = format!(
                    "`{}` is not a column; the columns are {}",
                    shown(name),
                    COLUMNS.join(", ")
                );
                return Err(wrong(number, column, problem));
            };
            if this.columns[known].replace(index).is_some() {
                let problem = format!("the column `{}` is there twice", COLUMNS[known]);
                return Err(wrong(number, column, problem));
            }
            this.count += 1;
        }
        let has = |column: usize| this.columns[column].is_some();
        if has(PERIOD) == (has(START) && has(END)) || has(START) != has(END) {
            let problem = "the header needs either `period`, or both `start_s` and `end_s`";
            return Err(wrong(number, 1, problem));
        }
        if let Some(missing) = [SRC, DST, BYTES].into_iter().find(|&column| !has(column)) {
            let problem = format!(
                "the header has no column `{}`; it needs src, dst, bytes and either period or start_s and end_s",
                COLUMNS[missing]
            );
            return Err(wrong(number, 1, problem));
        }
        Ok(this)
    }

    fn row(&self, line: &str, number: u64, servers: u32) -> Result<Row, TraceError> {
        let end = line.chars().count() + 1;
        let mut values = [(end, ""); 9];
        let mut by_index = [None; 9];
        for (column, index) in self.columns.iter().enumerate() {
            if let Some(index) = *index {
                by_index[index] = Some(column);
            }
        }
        for (index, field) in fields(line).enumerate() {
            match by_index.get(index).copied().flatten() {
                Some(column) => values[column] = field,
                None => {
                    let problem = format!("the line has more than {} values", self.count);
                    return Err(wrong(number, field.0, problem));
                }
            }
        }
        let bad = |column: usize, expected: &str| {
            let (place, value) = values[column];
            let name = COLUMNS[column];
            let problem = match value.is_empty() {
                true => format!("there is no value for `{name}`: it must be {expected}"),
                false => {
                    format!("`{}` is not a value for `{name}`: it must be {expected}", shown(value))
                }
            };
            wrong(number, place, problem)
        };
        let whole = |column: usize, max: u64, expected: &str| {
            let value = values[column].1.parse::<u64>().ok().filter(|&value| value <= max);
            value.ok_or_else(|| bad(column, expected))
        };
        let when = if self.columns[PERIOD].is_some() {
            let most = MAX_PERIODS as u64 - 1;
            let expected = format!("the number of a period, from 0 to {most}");
            When::Period(whole(PERIOD, most, &expected)? as usize)
        } else {
            let time = |column: usize| {
                seconds(values[column].1)
                    .ok_or_else(|| bad(column, "a number of seconds such as 12.5"))
            };
            let (start, end) = (time(START)?, time(END)?);
            if end < start {
                return Err(bad(END, "at least start_s"));
            }
            When::Interval(start, end)
        };
        let server = |column| {
            let expected = format!("a server, from 0 to {}", servers.saturating_sub(1));
            let last = u64::from(servers.saturating_sub(1));
            whole(column, last, &expected).map(|server| server as u32)
        };
        let (src, dst) = (server(SRC)?, server(DST)?);
        let size = "a whole number of bytes, up to 2^50";
        let bytes = whole(BYTES, MAX_TRANSFER_BYTES, size)?;
        let kind = match values[KIND].1 {
            "" | "data" => Kind::Data,
            "upload" => Kind::Upload,
            "broadcast" => Kind::Broadcast,
            _ => return Err(bad(KIND, "data, upload or broadcast")),
        };
        let job = match values[JOB].1 {
            "" if kind == Kind::Data => None,
            _ => {
                let expected = "the number of a job, from 1 to 65535";
                let job = whole(JOB, u64::from(u16::MAX), expected)?;
                if job == 0 {
                    return Err(bad(JOB, expected));
                }
                Some(JobId(job as u16))
            }
        };
        let distinct = match values[DISTINCT].1 {
            "" => None,
            _ if kind != Kind::Upload => {
                return Err(bad(DISTINCT, "empty, because the transfer is not an upload"));
            }
            _ => Some(whole(DISTINCT, crate::demand::MAX_PERIOD_BYTES, size)?),
        };
        if src == dst && kind != Kind::Upload {
            return Err(wrong(number, values[DST].0, format!("server {src} sends to itself")));
        }
        let place = values[if distinct.is_some() { DISTINCT } else { BYTES }].0 as u32;
        Ok(Row { line: number, when, src, dst, bytes, job, kind, distinct, place })
    }
}

/// Parses a decimal number of seconds as picoseconds, up to the year 33658.
fn seconds(text: &str) -> Option<u128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || whole.len() > 12 || !digits(whole) || !digits(fraction) {
        return None;
    }
    let mut picoseconds = whole.parse::<u128>().ok()? * SECOND;
    let mut unit = SECOND;
    for digit in fraction.bytes() {
        unit /= 10;
        picoseconds += u128::from(digit - b'0') * unit;
    }
    Some(picoseconds)
}

/// The uploads of a job that share their distinct bytes: those of one period, or all of a job with start and end.
#[derive(Clone, Copy, Debug)]
struct Whole {
    bytes: u128,
    distinct: Option<u64>,
    master: u32,
    line: u64,
}

#[derive(Default)]
struct Parts {
    flows: Vec<Flow>,
    uploads: BTreeMap<JobId, Vec<(u32, u64)>>,
    broadcasts: BTreeMap<(JobId, u32), (Vec<u32>, u64)>,
    /// Where the last of the transfers is.
    place: (u64, u32),
}

struct Builder {
    first: u128,
    period: u128,
    wholes: BTreeMap<(JobId, Option<usize>), Whole>,
}

impl Builder {
    fn new(rows: &[Row], period: Span) -> Result<Self, TraceError> {
        let starts = rows.iter().filter_map(|row| match row.when {
            When::Interval(start, _) => Some(start),
            When::Period(_) => None,
        });
        let first = starts.min().unwrap_or(0);
        let mut this =
            Self { first, period: u128::from(period.as_ps()).max(1), wholes: BTreeMap::new() };
        for row in rows.iter().filter(|row| row.kind == Kind::Upload) {
            this.join(row)?;
        }
        Ok(this)
    }

    /// Adds an upload to the others of its job.
    fn join(&mut self, row: &Row) -> Result<(), TraceError> {
        let place = row.place as usize;
        let Some(key) = Self::key(row) else { return Ok(()) };
        let new = Whole { bytes: 0, distinct: row.distinct, master: row.dst, line: row.line };
        let whole = self.wholes.entry(key).or_insert(new);
        whole.bytes += u128::from(row.bytes);
        let problem = if whole.master != row.dst {
            let (master, line) = (whole.master, whole.line);
            format!(
                "{} uploads to server {}, but in line {line} to server {master}",
                key.0, row.dst
            )
        } else if whole.distinct != row.distinct {
            format!(
                "`distinct` of {} differs from line {}: it is that of all workers together",
                key.0, whole.line
            )
        } else {
            return Ok(());
        };
        Err(wrong(row.line, place, problem))
    }

    fn key(row: &Row) -> Option<(JobId, Option<usize>)> {
        let period = match row.when {
            When::Period(period) => Some(period),
            When::Interval(..) => None,
        };
        row.job.map(|job| (job, period))
    }

    fn build(&self, rows: Vec<Row>, servers: u32) -> Result<Vec<Period>, TraceError> {
        let mut parts: Vec<Parts> = Vec::new();
        let mut transfers = 0;
        for row in rows {
            let (first, last, start, end) = match row.when {
                When::Period(period) => (period, period, 0, 0),
                When::Interval(start, end) => {
                    let (start, end) = (start - self.first, end - self.first);
                    let last = end.saturating_sub(1).max(start) / self.period;
                    if last >= MAX_PERIODS as u128 {
                        let problem = format!(
                            "the transfer ends in period {last}, but a trace has at most {MAX_PERIODS} periods: \
                             choose longer ones"
                        );
                        return Err(wrong(row.line, 1, problem));
                    }
                    ((start / self.period) as usize, last as usize, start, end)
                }
            };
            transfers += last - first + 1;
            if transfers > MAX_TRANSFERS {
                let problem = format!(
                    "the transfers up to here are in more than {MAX_TRANSFERS} periods together: choose longer ones"
                );
                return Err(wrong(row.line, 1, problem));
            }
            if parts.len() <= last {
                parts.resize_with(last + 1, Parts::default);
            }
            for (index, part) in parts.iter_mut().enumerate().take(last + 1).skip(first) {
                let bytes = if end == start {
                    row.bytes
                } else {
                    let from = (index as u128 * self.period).max(start) - start;
                    let to = ((index as u128 + 1) * self.period).min(end) - start;
                    share(row.bytes, to, end - start) - share(row.bytes, from, end - start)
                };
                part.add(&row, bytes);
            }
        }
        let numbered = parts.into_iter().enumerate();
        numbered.map(|(index, part)| self.period_of(index, part, servers)).collect()
    }

    fn period_of(&self, index: usize, part: Parts, servers: u32) -> Result<Period, TraceError> {
        let mut uploads = Vec::with_capacity(part.uploads.len());
        for (job, workers) in part.uploads {
            let whole = self.wholes.get(&(job, Some(index))).or(self.wholes.get(&(job, None)));
            let Some(whole) = whole else { continue };
            let bytes: u128 = workers.iter().map(|it| u128::from(it.1)).sum();
            if bytes == 0 {
                continue;
            }
            let upload = match whole.distinct {
                None => Upload::estimated(job, whole.master, workers, Upload::ENGLISH),
                Some(distinct) if bytes == whole.bytes => {
                    Upload::new(job, whole.master, workers, distinct)
                }
                // A part of the upload has its share of the distinct bytes, within what is possible.
                Some(distinct) => {
                    let low = workers.iter().map(|it| it.1).max().unwrap_or(0);
                    let high = u64::try_from(bytes).unwrap_or(u64::MAX);
                    let part = u128::from(distinct).min(whole.bytes) * bytes / whole.bytes;
                    let part = u64::try_from(part).unwrap_or(u64::MAX).clamp(low, high);
                    Upload::new(job, whole.master, workers, part)
                }
            };
            let problem = |error: crate::demand::DemandError| {
                wrong(whole.line, part.place.1 as usize, error.to_string())
            };
            uploads.push(upload.map_err(problem)?);
        }
        let (line, column) = (part.place.0, part.place.1 as usize);
        let problem = |error: crate::demand::DemandError| {
            wrong(line, column, format!("in period {index}, which ends here: {error}"))
        };
        let mut broadcasts = Vec::with_capacity(part.broadcasts.len());
        for ((job, src), (dsts, bytes)) in part.broadcasts {
            broadcasts.push(Broadcast::new(job, src, dsts, bytes).map_err(problem)?);
        }
        Period::new(servers, part.flows, uploads, broadcasts).map_err(problem)
    }
}

/// The bytes of the first `part` of a transfer's time.
fn share(bytes: u64, part: u128, whole: u128) -> u64 {
    // At most 2^50 bytes in 2^90 ps: both are shortened so that the product fits.
    let excess = (128 - whole.leading_zeros()).saturating_sub(70);
    (u128::from(bytes) * (part >> excess) / (whole >> excess).max(1)).min(u128::from(bytes)) as u64
}

impl Parts {
    fn add(&mut self, row: &Row, bytes: u64) {
        self.place = (row.line, row.place);
        match (row.kind, row.job) {
            (Kind::Upload, Some(job)) => {
                self.uploads.entry(job).or_default().push((row.src, bytes));
            }
            (Kind::Broadcast, Some(job)) => {
                let entry = self.broadcasts.entry((job, row.src)).or_default();
                entry.0.push(row.dst);
                entry.1 = entry.1.max(bytes);
            }
            _ => self.flows.push(Flow { src: row.src, dst: row.dst, bytes }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Trace, TraceError> {
        read(text.as_bytes(), 8, Span::from_secs(1))
    }

    fn sentence(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn periods_uploads_and_broadcasts_are_read() {
        let text = "\u{feff}# recorded\nPeriod, src,dst,bytes,job,kind,distinct\r\n\n\
                    0,0,1,100,,,\n0,0,1,50,,data,\n2,1,0,40,7,upload,60\n2,\"2\",0,30,7,upload,60\n\
                    2,3,4,5,8,broadcast,\n2,3,5,5,8,broadcast\n";
        let trace = parse(text).unwrap();
        assert_eq!((trace.periods.len(), trace.transfers, trace.divided), (3, 6, false));
        assert_eq!(trace.periods[0].flows(), [Flow { src: 0, dst: 1, bytes: 150 }]);
        assert_eq!(trace.periods[1], Period::default());
        let upload = Upload::new(JobId(7), 0, vec![(1, 40), (2, 30)], 60).unwrap();
        assert_eq!(trace.periods[2].uploads(), [upload]);
        assert_eq!(trace.periods[2].broadcasts()[0].dsts(), [4, 5]);
    }

    #[test]
    fn a_header_may_have_the_names_of_traces_of_messages() {
        let short = parse("period,src,dst,bytes\n0,1,2,30\n").unwrap();
        assert_eq!(parse("period,source,Destination,bytes\n0,1,2,30\n").unwrap(), short);
        let twice = sentence("period,src,source,dst,bytes\n0,1,1,2,30\n");
        assert!(twice.contains("the column `src` is there twice"), "{twice}");
    }

    #[test]
    fn intervals_are_divided_in_proportion_to_time() {
        let text = "start_s,end_s,src,dst,bytes,job,kind,distinct\n\
                    1700000000.5,1700000002.5,0,1,1000,,,\n\
                    1700000001.0,1700000002.0,2,3,100,1,upload,120\n\
                    1700000001.0,1700000002.0,4,3,100,1,upload,120\n\
                    1700000003.5,1700000003.5,5,6,9,,,\n";
        let trace = parse(text).unwrap();
        let bytes: Vec<u64> = trace.periods.iter().map(Period::bytes).collect();
        assert_eq!(bytes, [500 + 100, 500 + 100, 0, 9]);
        assert_eq!(trace.periods[0].uploads()[0].distinct(), 60);
        assert!(trace.divided);
    }

    #[test]
    fn errors_name_line_and_column() {
        assert_eq!(sentence(""), "1:1: the trace is empty: it needs a header of columns");
        assert_eq!(
            sentence("period,src,dst,bytes\n0,0,1,x\n"),
            "2:7: `x` is not a value for `bytes`: it must be a whole number of bytes, up to 2^50"
        );
        assert_eq!(
            sentence("period,src,dst,bytes\n0,0,8,5\n"),
            "2:5: `8` is not a value for `dst`: it must be a server, from 0 to 7"
        );
        assert_eq!(
            sentence("period,src,dst,bytes\n# x\n0, 0,1\n"),
            "3:7: there is no value for `bytes`: it must be a whole number of bytes, up to 2^50"
        );
        assert_eq!(
            sentence("period,src,dst,bytes\n0,0,1,5,6\n"),
            "2:9: the line has more than 4 values"
        );
        assert!(sentence("period,src,dst,byte\n").starts_with("1:16: `byte` is not a column"));
        assert!(sentence("period,src,src,bytes\n").starts_with("1:12: the column `src`"));
        assert!(sentence("src,dst,bytes\n").contains("either `period`"));
        assert!(sentence("period,start_s,src,dst,bytes\n").contains("either `period`"));
        assert!(sentence("period,src,dst\n").contains("no column `bytes`"));
        assert!(sentence("period,src,dst,bytes\n").contains("no transfers"));
        assert!(sentence("period,src,dst,bytes\n0,1,1,5\n").ends_with("server 1 sends to itself"));
        let header = "period,src,dst,bytes,job,kind,distinct\n";
        let upload = |rows: &str| sentence(&format!("{header}{rows}"));
        assert!(upload("0,0,1,5,,upload,\n").starts_with("2:9: there is no value for `job`"));
        assert!(upload("0,0,1,5,0,upload,\n").contains("from 1 to 65535"));
        assert!(upload("0,0,1,5,1,gather,\n").contains("data, upload or broadcast"));
        assert!(upload("0,0,1,5,1,data,5\n").contains("not an upload"));
        let differs = upload("0,0,1,5,1,upload,5\n0,2,1,5,1,upload,6\n");
        assert!(differs.starts_with("3:18: `distinct` of job 1 differs from line 2"), "{differs}");
        assert!(upload("0,0,1,5,1,upload,\n0,2,3,5,1,upload,\n").contains("in line 2 to server 1"));
        assert!(upload("0,0,1,5,1,upload,9\n").starts_with("2:18: the distinct bytes of job 1"));
        let times = |row: &str| sentence(&format!("start_s,end_s,src,dst,bytes\n{row}\n"));
        assert!(times("2,1,0,1,5").starts_with("2:3: `1` is not a value for `end_s`"));
        assert!(times("-1,1,0,1,5").starts_with("2:1: `-1` is not a value"));
        assert!(times("0,999999999,0,1,5").contains("choose longer ones"));
        assert!(sentence(&format!("{}\n", "x".repeat(MAX_LINE + 1))).contains("longer than"));
        let not_text = read(&b"period,src,dst,bytes\n0,\xff"[..], 8, Span::from_secs(1));
        assert_eq!(not_text.unwrap_err().to_string(), "2:3: this is not text (UTF-8)");
        let long = format!("period,src,dst,bytes\n{}", "0,0,1,1125899906842624\n".repeat(1025));
        assert!(sentence(&long).starts_with("1026:7: in period 0, which ends here: the transfers"));
    }

    proptest::proptest! {
        #![proptest_config(rackweave_testing::cases(2000))]

        /// A file with any damage is read or refused with a place in it.
        #[test]
        fn damaged_traces_do_no_harm(
            changes in proptest::collection::vec((0..200_usize, proptest::prelude::any::<u8>()), 0..6),
            numbers in proptest::collection::vec(proptest::prelude::any::<u64>(), 6),
            interval in proptest::prelude::any::<bool>(),
        ) {
            let [a, b, c, d, e, f] = numbers[..] else { unreachable!() };
            let (a, b) = (a >> (c % 64), b >> (d % 64));
            let (job, bytes) = (1 + c % 4, e >> (f % 64));
            let text = match interval {
                true => format!(
                    "start_s,end_s,src,dst,bytes,job,kind,distinct\n{a}.5,{b}.7,1,0,{bytes},{job},upload,{f}\n\
                     0,{b},3,0,{e},{job},upload,{f}\n{a},{a},0,3,{c},2,broadcast,\n"
                ),
                false => format!(
                    "period,src,dst,bytes,job,kind,distinct\n{},1,0,{bytes},{job},upload,\n\
                     {},2,0,{bytes},{job},upload,\n7,0,3,{c},2,broadcast,\n1,5,6,{d},,,\n",
                    a % 100, a % 100
                ),
            };
            let mut bytes = text.into_bytes();
            for (place, byte) in changes {
                if let Some(it) = bytes.get_mut(place) {
                    *it = byte;
                }
            }
            match read(&bytes[..], 8, Span::from_ticks(1 + d)) {
                Ok(trace) => proptest::prop_assert!(trace.periods.len() <= MAX_PERIODS),
                Err(error) => {
                    let lines = bytes.iter().filter(|&&byte| byte == b'\n').count() as u64 + 1;
                    proptest::prop_assert!((1..=lines).contains(&error.line), "{}", error);
                    proptest::prop_assert!(error.column >= 1 && !error.problem.is_empty());
                }
            }
        }
    }
}
