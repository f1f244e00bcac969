//! Results as tables of typed columns: those of the CSV files, in memory.
//!
//! Each table has any number of rows for each point. Its first columns are the index of the point, its transport and label, and the
//! swept keys; the others are declared in `results/columns.rs`.

use std::borrow::Borrow;
use std::convert::Infallible;

use rackweave_sim::config::Circuits;

use crate::report::compare;
use crate::results::columns::{self, Circuit, Column, Kind, Value};
use crate::results::{PointResult, Results, TrafficSeries, plain, seeds};
use crate::study::{self, Listed};

/// A table of results.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The name of its file, without `.csv`.
    pub name: String,
    /// The columns, which are equally long.
    pub columns: Vec<TableColumn>,
}

/// A column of a [`Table`].
#[derive(Clone, Debug, PartialEq)]
pub struct TableColumn {
    /// Its heading, with the unit.
    pub name: String,
    /// Its values, one for each row.
    pub values: Values,
}

/// The values of a column. Missing ones are `None`, as they are empty in a CSV file.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Whole numbers.
    Counts(Vec<Option<u64>>),
    /// Finite numbers.
    Reals(Vec<Option<f64>>),
    /// Texts.
    Texts(Vec<Option<String>>),
}

/// Why a CSV file is not a table of results.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum TableError {
    /// The file is not a CSV file.
    #[error("{name}.csv is not a CSV file")]
    Csv {
        /// The name of the table.
        name: String,
        /// The reason.
        source: csv::Error,
    },
    /// A value is not of the kind of its column.
    #[error("{name}.csv: `{value}` in row {row} is no value of the column `{column}`")]
    Value {
        /// The name of the table.
        name: String,
        /// The name of the column.
        column: String,
        /// The number of the row, from 1, without the heading.
        row: usize,
        /// The value.
        value: String,
    },
}

impl Results {
    /// Returns the tables that [`crate::output::OutputDir::write`] writes as CSV files.
    #[must_use]
    pub fn tables(&self) -> Vec<Table> {
        let mut tables = Collect(Vec::new());
        match write(&self.points, &mut tables) {
            Ok(()) => tables.0,
        }
    }
}

impl Table {
    /// Reads a table from the text of its CSV file, `NAME.csv`. Columns that this version does not know are swept keys.
    ///
    /// # Errors
    /// If the file is not one that [`crate::output::OutputDir::write`] writes.
    pub fn from_csv(name: &str, text: &str) -> Result<Self, TableError> {
        let failed = |source| TableError::Csv { name: name.to_owned(), source };
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let names: Vec<String> =
            reader.headers().map_err(failed)?.iter().map(str::to_owned).collect();
        let mut cells: Vec<Vec<String>> = vec![Vec::new(); names.len()];
        for record in reader.records() {
            let record = record.map_err(failed)?;
            cells.iter_mut().zip(&record).for_each(|(cells, cell)| cells.push(cell.to_owned()));
        }
        let declared = Declared::of(name);
        let columns = names.into_iter().zip(cells).map(|(column, cells)| {
            let values = match declared.kind(&column) {
                None => Values::inferred(cells),
                Some(kind) => Values::parsed(kind, cells).map_err(|(row, value)| {
                    let (name, column) = (name.to_owned(), column.clone());
                    TableError::Value { name, column, row, value }
                })?,
            };
            Ok(TableColumn { name: column, values })
        });
        Ok(Self { name: name.to_owned(), columns: columns.collect::<Result<_, _>>()? })
    }

    /// Returns the values of a column of whole numbers.
    #[must_use]
    pub fn counts(&self, name: &str) -> Option<&[Option<u64>]> {
        if let Values::Counts(values) = self.column(name)? { Some(values) } else { None }
    }

    /// Returns the values of a column of numbers.
    #[must_use]
    pub fn reals(&self, name: &str) -> Option<&[Option<f64>]> {
        if let Values::Reals(values) = self.column(name)? { Some(values) } else { None }
    }

    /// Returns the values of a column of texts.
    #[must_use]
    pub fn texts(&self, name: &str) -> Option<&[Option<String>]> {
        if let Values::Texts(values) = self.column(name)? { Some(values) } else { None }
    }

    fn column(&self, name: &str) -> Option<&Values> {
        self.columns.iter().find(|column| column.name == name).map(|column| &column.values)
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.columns.first().map_or(0, |column| column.values.len())
    }
}

impl Values {
    /// Returns the number of values.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::Counts(values) => values.len(),
            Self::Reals(values) => values.len(),
            Self::Texts(values) => values.len(),
        }
    }

    /// Returns whether there is no value.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn new(kind: Kind) -> Self {
        match kind {
            Kind::Count => Self::Counts(Vec::new()),
            Kind::Real => Self::Reals(Vec::new()),
            Kind::Text => Self::Texts(Vec::new()),
        }
    }

    /// Adds a value. One that is not of the column's kind is missing.
    fn push(&mut self, value: Value<'_>) {
        match self {
            Self::Counts(values) => values.push(match value {
                Value::Count(n) => Some(n),
                Value::Real(_) | Value::Text(_) => None,
            }),
            Self::Reals(values) => values.push(match value {
                Value::Real(x) if x.is_finite() => Some(x),
                Value::Real(_) | Value::Count(_) | Value::Text(_) => None,
            }),
            Self::Texts(values) => values.push(match value {
                Value::Text(text) => present(text.into_owned()),
                Value::Real(_) | Value::Count(_) => None,
            }),
        }
    }

    /// Returns the values of cells, or the first one (and its row, from 1) that is not of this kind.
    fn parsed(kind: Kind, cells: Vec<String>) -> Result<Self, (usize, String)> {
        fn each<T>(
            cells: Vec<String>,
            parse: impl Fn(&str) -> Option<T>,
        ) -> Result<Vec<Option<T>>, (usize, String)> {
            let parsed = cells.into_iter().zip(1..).map(|(cell, row)| {
                if cell.is_empty() { Ok(None) } else { parse(&cell).map(Some).ok_or((row, cell)) }
            });
            parsed.collect()
        }
        Ok(match kind {
            Kind::Count => Self::Counts(each(cells, |cell| cell.parse().ok())?),
            Kind::Real => Self::Reals(each(cells, real)?),
            Kind::Text => Self::Texts(cells.into_iter().map(present).collect()),
        })
    }

    /// Returns the values of a swept key: numbers if all of them are, or else texts. A point without the key has none.
    fn inferred(cells: Vec<String>) -> Self {
        let all = |is: fn(&str) -> bool| {
            let mut present = cells.iter().filter(|cell| !cell.is_empty()).peekable();
            present.peek().is_some() && present.all(|cell| is(cell))
        };
        let kind = if all(|cell| cell.parse::<u64>().is_ok()) {
            Kind::Count
        } else if all(|cell| real(cell).is_some()) {
            Kind::Real
        } else {
            Kind::Text
        };
        Self::parsed(kind, cells).unwrap_or(Self::Texts(Vec::new()))
    }
}

fn present(text: String) -> Option<String> {
    if text.is_empty() { None } else { Some(text) }
}

fn real(cell: &str) -> Option<f64> {
    cell.parse().ok().filter(|x: &f64| x.is_finite())
}

/// The name of the table of means over seeds.
const OVER_SEEDS: &str = "over_seeds";

/// What takes the tables of results, one after the other.
pub(crate) trait Sink {
    type Error;

    /// Takes a table with any number of rows for each point. It is left out unless it is `wanted`.
    fn table<'a, T: 'static, R: IntoIterator<Item: Borrow<T>>>(
        &mut self,
        name: &'static str,
        wanted: bool,
        points: &'a [PointResult],
        columns: &'static [Column<T>],
        rows: impl Fn(&'a PointResult) -> R,
    ) -> Result<(), Self::Error>;
}

/// Passes all tables of these points to a sink: first the ones that every run has.
pub(crate) fn write<S: Sink>(points: &[PointResult], sink: &mut S) -> Result<(), S::Error> {
    let any = |is: &dyn Fn(&PointResult) -> bool| points.iter().any(is);
    let always = true;
    sink.table("points", always, points, columns::POINT, |p| std::iter::once(&p.summary))?;
    sink.table("slowdown_by_size", always, points, columns::BY_SIZE, |p| &p.summary.by_size)?;
    sink.table("slowdown_curve", always, points, columns::CURVE, |p| &p.slowdown_curve)?;
    sink.table("latency_cdf", always, points, columns::CDF, |p| &p.latency_cdf)?;
    sink.table("queues", always, points, columns::QUEUES, |p| &p.queue_series)?;
    sink.table("links", always, points, columns::LINKS, |p| &p.links)?;
    let wanted = any(&|point| !point.summary.background.is_empty());
    sink.table("streams", wanted, points, columns::STREAM, compare::streams)?;
    let wanted = any(&|point| point.messages.is_some());
    sink.table("messages", wanted, points, columns::MESSAGE, |p| p.messages.iter().flatten())?;
    let wanted = any(&|point| point.summary.collective.is_some());
    sink.table("collective_iterations", wanted, points, columns::ITERATION, |point| {
        point.summary.collective.iter().flat_map(|it| &it.iterations)
    })?;
    sink.table("collective_ranks", wanted, points, columns::RANK, |point| &point.ranks)?;
    let wanted = any(&|point| !point.round_trips.is_empty());
    sink.table("round_trips", wanted, points, columns::ROUND_TRIP, |p| &p.round_trips)?;
    let wanted = any(&|point| point.goodput_samples().next().is_some());
    sink.table(
        "goodput",
        wanted,
        points,
        columns::GOODPUT_OVER_TIME,
        PointResult::goodput_samples,
    )?;
    let wanted = any(&|point| !point.traffic.is_empty());
    sink.table("traffic", wanted, points, columns::TRAFFIC, |point| {
        point.traffic.iter().flat_map(TrafficSeries::samples)
    })?;
    let wanted = any(&|point| !point.circuits.is_empty());
    sink.table("circuits", wanted, points, columns::CIRCUITS, circuits)?;
    study::tables(points, sink)?;
    write_over_seeds(points, sink)
}

/// Passes the table of a kind of workload to a sink: the rows of each point's summary.
pub(crate) fn rows_of<K: Listed, T: 'static, S: Sink>(
    name: &'static str,
    points: &[PointResult],
    sink: &mut S,
    columns: &'static [Column<T>],
    rows: fn(&K::Summary) -> &[T],
) -> Result<(), S::Error> {
    let wanted = points.iter().any(|point| point.summary.of::<K>().is_some());
    sink.table(name, wanted, points, columns, |point| {
        point.summary.of::<K>().into_iter().flat_map(rows)
    })
}

/// Passes the means over seeds to a sink, if seeds are swept.
pub(crate) fn write_over_seeds<S: Sink>(
    points: &[PointResult],
    sink: &mut S,
) -> Result<(), S::Error> {
    let means = seeds::combined(points);
    let wanted = means.is_some();
    let means = means.unwrap_or_default();
    let rows = |point: &PointResult| std::iter::once(point.summary.clone());
    sink.table(OVER_SEEDS, wanted, &means, columns::OVER_SEEDS, rows)
}

/// The first columns of every table, before the swept keys.
const LEAD_COLUMNS: [(&str, Kind); 3] =
    [("point", Kind::Count), ("transport", Kind::Text), ("label", Kind::Text)];

/// The columns that identify the point of a row.
pub(crate) struct Lead<'a> {
    swept: Vec<&'a String>,
}

impl<'a> Lead<'a> {
    pub(crate) fn of(points: &'a [PointResult]) -> Self {
        let mut swept: Vec<&String> = Vec::new();
        for key in points.iter().flat_map(|point| point.summary.set.keys()) {
            let is_lead = matches!(key.as_str(), "transport.name" | "transport.label")
                || LEAD_COLUMNS.iter().any(|(name, _)| name == key);
            if !is_lead && !swept.contains(&key) {
                swept.push(key);
            }
        }
        Self { swept }
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let swept = self.swept.iter().map(|key| key.as_str());
        LEAD_COLUMNS.iter().map(|(name, _)| *name).chain(swept)
    }

    pub(crate) fn values(&self, point: &PointResult) -> Vec<String> {
        let PointResult { index, summary, .. } = point;
        let value = |key: &&String| summary.set.get(*key).map_or(String::new(), plain);
        let lead = [index.to_string(), summary.transport.clone(), summary.label.clone()];
        lead.into_iter().chain(self.swept.iter().map(value)).collect()
    }
}

/// Returns the columns of a CSV file: those with a heading.
pub(crate) fn in_files<T>(
    columns: &'static [Column<T>],
) -> impl Iterator<Item = &'static Column<T>> {
    columns.iter().filter(|column| !column.name.is_empty())
}

/// Collects tables in memory.
struct Collect(Vec<Table>);

impl Sink for Collect {
    type Error = Infallible;

    fn table<'a, T: 'static, R: IntoIterator<Item: Borrow<T>>>(
        &mut self,
        name: &'static str,
        wanted: bool,
        points: &'a [PointResult],
        columns: &'static [Column<T>],
        rows: impl Fn(&'a PointResult) -> R,
    ) -> Result<(), Infallible> {
        if wanted {
            self.0.push(collected(name, points, columns, rows));
        }
        Ok(())
    }
}

/// Returns a table in memory.
pub(crate) fn collected<'a, T: 'static, R: IntoIterator<Item: Borrow<T>>>(
    name: &'static str,
    points: &'a [PointResult],
    columns: &'static [Column<T>],
    rows: impl Fn(&'a PointResult) -> R,
) -> Table {
    let lead = Lead::of(points);
    let mut keys: Vec<Vec<String>> = lead.names().map(|_| Vec::new()).collect();
    let mut values: Vec<Values> =
        in_files(columns).map(|column| Values::new(column.kind)).collect();
    for point in points {
        let of_point = lead.values(point);
        for row in rows(point) {
            keys.iter_mut().zip(&of_point).for_each(|(keys, key)| keys.push(key.clone()));
            for (values, column) in values.iter_mut().zip(in_files(columns)) {
                values.push((column.get)(row.borrow()));
            }
        }
    }
    let kinds = LEAD_COLUMNS.iter().map(|(_, kind)| Some(*kind)).chain(std::iter::repeat(None));
    let keys = lead.names().zip(keys).zip(kinds).map(|((name, cells), kind)| {
        let values = match kind {
            Some(kind) => Values::parsed(kind, cells).unwrap_or_else(|_| Values::new(kind)),
            None => Values::inferred(cells),
        };
        TableColumn { name: name.to_owned(), values }
    });
    let values = in_files(columns)
        .zip(values)
        .map(|(column, values)| TableColumn { name: column.name.to_owned(), values });
    Table { name: name.to_owned(), columns: keys.chain(values).collect() }
}

/// Returns a count as frames and Parquet files have it: signed, because differences of unsigned numbers wrap around in pandas and polars.
#[must_use]
pub fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The names and kinds of a table's columns, except for swept keys.
struct Declared {
    name: String,
    columns: Vec<(&'static str, Kind)>,
}

/// Collects the names of tables.
struct Names(Vec<&'static str>);

impl Sink for Names {
    type Error = Infallible;

    fn table<'a, T: 'static, R: IntoIterator<Item: Borrow<T>>>(
        &mut self,
        name: &'static str,
        _: bool,
        _: &'a [PointResult],
        _: &'static [Column<T>],
        _: impl Fn(&'a PointResult) -> R,
    ) -> Result<(), Infallible> {
        self.0.push(name);
        Ok(())
    }
}

/// Returns the names of the tables that have rows of single points.
pub(crate) fn names() -> Vec<&'static str> {
    let mut names = Names(Vec::new());
    match write(&[], &mut names) {
        Ok(()) => names.0.retain(|name| *name != OVER_SEEDS),
    }
    names.0
}

/// Returns the names of the tables that only kinds of workload have.
pub(crate) fn names_of_kinds() -> Vec<&'static str> {
    let mut names = Names(Vec::new());
    match study::tables(&[], &mut names) {
        Ok(()) => names.0,
    }
}

/// Returns the names of a table's columns after the ones that identify the point.
pub(crate) fn columns_of(name: &str) -> Vec<&'static str> {
    let columns = Declared::of(name).columns;
    columns.into_iter().skip(LEAD_COLUMNS.len()).map(|(name, _)| name).collect()
}

/// Returns whether results have a table of this name.
pub(crate) fn exists(name: &str) -> bool {
    Declared::of(name).columns.len() > LEAD_COLUMNS.len()
}

impl Declared {
    fn of(name: &str) -> Self {
        let mut declared = Self { name: name.to_owned(), columns: LEAD_COLUMNS.to_vec() };
        match write(&[], &mut declared) {
            Ok(()) => declared,
        }
    }

    fn kind(&self, column: &str) -> Option<Kind> {
        self.columns.iter().find(|(name, _)| *name == column).map(|(_, kind)| *kind)
    }
}

impl Sink for Declared {
    type Error = Infallible;

    fn table<'a, T: 'static, R: IntoIterator<Item: Borrow<T>>>(
        &mut self,
        name: &'static str,
        _: bool,
        _: &'a [PointResult],
        columns: &'static [Column<T>],
        _: impl Fn(&'a PointResult) -> R,
    ) -> Result<(), Infallible> {
        if name == self.name {
            self.columns.extend(in_files(columns).map(|column| (column.name, column.kind)));
        }
        Ok(())
    }
}

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
