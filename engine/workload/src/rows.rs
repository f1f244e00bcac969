//! A reader of CSV files of numbers, which reports the line of every error.

use csv::{ByteRecord, Reader, ReaderBuilder, Trim};

use crate::error::LineProblem;

/// The rows of a file whose first row names the columns.
pub(crate) struct Rows<'t> {
    text: &'t [u8],
    reader: Reader<&'t [u8]>,
    record: ByteRecord,
    columns: Vec<(&'static str, usize)>,
    /// The position up to which lines have been counted, and their number.
    counted: usize,
    line: u64,
}

impl<'t> Rows<'t> {
    /// Finds `columns` in the header. `Err(None)` means that there is no row at all.
    pub(crate) fn new(
        text: &'t [u8],
        columns: &[&'static str],
        expected: &'static str,
    ) -> Result<Self, Option<(u64, LineProblem)>> {
        let mut rows = Self::open(text);
        if !rows.advance() {
            return Err(None);
        }
        for &column in columns {
            rows.find(column, expected).map_err(|problem| Some((rows.line, problem)))?;
        }
        Ok(rows)
    }

    fn open(text: &'t [u8]) -> Self {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let reader = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            // A stray quote must not swallow the rest of the file.
            .quoting(false)
            .comment(Some(b'#'))
            .trim(Trim::All)
            .from_reader(text);
        let record = ByteRecord::new();
        Self { text, reader, record, columns: Vec::new(), counted: 0, line: 1 }
    }

    /// Reads the next row; false at the end.
    pub(crate) fn advance(&mut self) -> bool {
        // The bytes are in memory, rows may have any width and quotes are disabled, so reading cannot fail.
        if !self.reader.read_byte_record(&mut self.record).unwrap_or(false) {
            return false;
        }
        // The reader reports the line at which it began to search, before blank lines and comments.
        let end = (self.reader.position().byte() as usize).min(self.text.len());
        let row = self.text[..end].trim_ascii_end().len().max(self.counted);
        self.line += self.text[self.counted..row].iter().filter(|&&b| b == b'\n').count() as u64;
        self.counted = row;
        true
    }

    /// Returns the number of the current row's line, from 1.
    pub(crate) const fn line(&self) -> u64 {
        self.line
    }

    fn find(&mut self, column: &'static str, expected: &'static str) -> Result<(), LineProblem> {
        for (index, name) in self.record.iter().enumerate() {
            let name = str::from_utf8(name).map_err(|_| LineProblem::NotText)?;
            if unquoted(name).eq_ignore_ascii_case(column) {
                self.columns.push((column, index));
                return Ok(());
            }
        }
        Err(LineProblem::MissingColumn { column, expected })
    }

    /// Returns the value of the `n`-th required column, or an error with the `expected` format.
    pub(crate) fn value<T>(
        &self,
        n: usize,
        expected: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, LineProblem> {
        let (column, index) = self.columns[n];
        let value = self.record.get(index).ok_or(LineProblem::MissingValue { column })?;
        let value = str::from_utf8(value).map_err(|_| LineProblem::NotText)?;
        let value = unquoted(value);
        if value.is_empty() {
            return Err(LineProblem::MissingValue { column });
        }
        read(value).ok_or_else(|| self.bad_value(n, expected))
    }

    /// Returns the error that the `n`-th required column does not have the `expected` format.
    pub(crate) fn bad_value(&self, n: usize, expected: &'static str) -> LineProblem {
        let (column, index) = self.columns[n];
        let value = String::from_utf8_lossy(self.record.get(index).unwrap_or_default());
        let value = value.chars().filter(|c| !c.is_control()).take(40).collect();
        LineProblem::BadValue { column, value, expected }
    }
}

fn unquoted(text: &str) -> &str {
    text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text)
}

/// Parses "1460", or "1460.0" as spreadsheets write it, up to `max`.
pub(crate) fn whole_number(text: &str, max: u64) -> Option<u64> {
    let value = text.parse::<u64>().ok().or_else(|| {
        let value: f64 = text.parse().ok()?;
        let whole = (0.0..=9e15).contains(&value) && libm::trunc(value) == value;
        whole.then_some(value as u64)
    })?;
    (value <= max).then_some(value)
}
