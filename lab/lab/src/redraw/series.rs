//! What charts are drawn from, read from the CSV files of a result.

use std::collections::BTreeMap;

use rackweave_core::{Span, Time};
use rackweave_sim::config::Circuits;
use rackweave_sim::result::{Goodput, LinkStats, QueueSample};

use crate::results::{CurvePoint, PointResult, TrafficSeries};
use crate::study;
use crate::tables::Table;

/// Adds the rows of a table to the points that they are of. Tables that no chart needs are ignored.
///
/// # Errors
/// If the table has no column that its rows need, with the name of the column.
pub(super) fn add(
    table: &Table,
    points: &mut BTreeMap<u64, &mut PointResult>,
) -> Result<(), String> {
    let rows = Rows::of(table)?;
    match table.name.as_str() {
        "slowdown_curve" => {
            let (fraction, size) = (rows.reals("count_fraction")?, rows.counts("size_bytes")?);
            let (p50, p99) = (rows.reals("slowdown_p50")?, rows.reals("slowdown_p99")?);
            rows.each(points, |row, point| {
                point.slowdown_curve.push(CurvePoint {
                    count_fraction: fraction.at(row),
                    size_bytes: size.at(row),
                    p50: p50.at(row),
                    p99: p99.at(row),
                });
            });
        }
        "latency_cdf" => {
            let (latency, fraction) = (rows.reals("latency_us")?, rows.reals("fraction")?);
            rows.each(points, |row, point| {
                point.latency_cdf.push((latency.at(row), fraction.at(row)));
            });
        }
        "queues" => {
            let (at, max) = (rows.reals("time_us")?, rows.counts("max_bytes")?);
            let total = rows.counts("total_bytes")?;
            let switch = rows.counts("max_switch_bytes")?;
            rows.each(points, |row, point| {
                point.queue_series.push(QueueSample {
                    at: time(at.at(row)),
                    max_bytes: max.at(row),
                    max_switch_bytes: switch.at(row),
                    total_bytes: total.at(row),
                });
            });
        }
        "links" => links(&rows, points)?,
        "goodput" => {
            let (stream, from) = (rows.counts("stream")?, rows.reals("from_us")?);
            let (bytes, gbps) = (rows.counts("bytes")?, rows.reals("gbps")?);
            rows.each(points, |row, point| {
                let Goodput { interval, bytes: by_stream } = &mut point.goodput;
                let stream = usize::try_from(stream.at(row)).unwrap_or(usize::MAX);
                // A file may say anything; there are not more streams than this.
                if stream < usize::from(u16::MAX) {
                    by_stream.resize(by_stream.len().max(stream + 1), Vec::new());
                    by_stream[stream].push(bytes.at(row));
                    widen(interval, from.at(row), (bytes.at(row), gbps.at(row)));
                }
            });
        }
        "traffic" => {
            let (name, from) = (rows.texts("traffic")?, rows.reals("from_us")?);
            let (bytes, gbps) = (rows.counts("bytes")?, rows.reals("gbps")?);
            rows.each(points, |row, point| {
                let (name, series) = (name.at(row), &mut point.traffic);
                let series = match series.iter_mut().find(|series| series.name == name) {
                    Some(series) => series,
                    None => {
                        let interval = Span::ZERO;
                        series.push_mut(TrafficSeries { name, interval, bytes: Vec::new() })
                    }
                };
                series.bytes.push(bytes.at(row));
                widen(&mut series.interval, from.at(row), (bytes.at(row), gbps.at(row)));
            });
        }
        "circuits" => circuits(&rows, points)?,
        _ => study::restore(table, points)?,
    }
    Ok(())
}

fn links(rows: &Rows<'_>, points: &mut BTreeMap<u64, &mut PointResult>) -> Result<(), String> {
    let (name, utilisation) = (rows.texts("link")?, rows.reals("utilisation")?);
    let (mean, max) = (rows.reals("mean_queue_bytes")?, rows.counts("max_queue_bytes")?);
    let drops = rows.counts("drops")?;
    // Not in files of earlier versions.
    let (pauses, paused) = (rows.counts("pauses").ok(), rows.reals("paused").ok());
    rows.each(points, |row, point| {
        point.links.push(LinkStats {
            name: name.at(row),
            utilisation: utilisation.at(row),
            mean_queue_bytes: mean.at(row),
            max_queue_bytes: max.at(row),
            drops: drops.at(row),
            // Not in the file, and not in the report.
            queue_bytes: 0,
            frames: 0,
            bytes: 0,
            pauses: pauses.as_ref().map_or(0, |pauses| pauses.at(row)),
            paused: paused.as_ref().map_or(0.0, |paused| paused.at(row)),
        });
    });
    Ok(())
}

/// Rows of one time are the circuits from then on. Servers are written in the order of their numbers.
fn circuits(rows: &Rows<'_>, points: &mut BTreeMap<u64, &mut PointResult>) -> Result<(), String> {
    let (from, end, other) = (rows.reals("from_us")?, rows.texts("end")?, rows.texts("other_end")?);
    let tor = |text: String| text.strip_prefix("tor").and_then(|tor| tor.parse::<u16>().ok());
    rows.each(points, |row, point| {
        let (at, end) = (time(from.at(row)), end.at(row));
        let Some(other) = tor(other.at(row)) else { return };
        let is_new = point.circuits.last().is_none_or(|(last, _)| *last != at);
        if is_new {
            let kind = match tor(end.clone()) {
                Some(_) => Circuits::Tors(Vec::new()),
                None => Circuits::Servers(Vec::new()),
            };
            point.circuits.push((at, kind));
        }
        match (point.circuits.last_mut(), tor(end)) {
            (Some((_, Circuits::Tors(pairs))), Some(end)) => pairs.push((end, other)),
            (Some((_, Circuits::Servers(tor_of))), None) => tor_of.push(other),
            _ => {}
        }
    });
    Ok(())
}

/// The length of an interval is in no column: it is the largest begin of an interval divided by its number, or what bytes and rate say.
fn widen(interval: &mut Span, from_us: f64, (bytes, gbps): (u64, f64)) {
    if *interval == Span::ZERO {
        let by_rate = bytes as f64 * 8e-3 / gbps;
        *interval = time(if from_us > 0.0 { from_us } else { by_rate }).since(Time::ZERO);
    }
}

/// Returns a time from microseconds, which files have with all their digits.
fn time(us: f64) -> Time {
    const TICKS_PER_US: f64 = 1e5;
    // A cast saturates, and of NaN it is zero.
    Time::from_ticks((us * TICKS_PER_US).round() as u64)
}

/// The rows of a table.
pub(crate) struct Rows<'a> {
    table: &'a Table,
    point: Column<'a, u64>,
}

/// A column, in which a missing value is what `missing` says.
pub(crate) struct Column<'a, T> {
    values: &'a [Option<T>],
    missing: T,
}

impl<T: Clone> Column<'_, T> {
    pub(crate) fn at(&self, row: usize) -> T {
        self.values.get(row).cloned().flatten().unwrap_or_else(|| self.missing.clone())
    }
}

impl<'a> Rows<'a> {
    pub(crate) fn of(table: &'a Table) -> Result<Self, String> {
        let point = counts(table, "point")?;
        Ok(Self { table, point })
    }

    fn counts(&self, name: &str) -> Result<Column<'a, u64>, String> {
        counts(self.table, name)
    }

    pub(crate) fn reals(&self, name: &str) -> Result<Column<'a, f64>, String> {
        let values = self.table.reals(name).ok_or_else(|| name.to_owned())?;
        Ok(Column { values, missing: f64::NAN })
    }

    fn texts(&self, name: &str) -> Result<Column<'a, String>, String> {
        let values = self.table.texts(name).ok_or_else(|| name.to_owned())?;
        Ok(Column { values, missing: String::new() })
    }

    /// Passes each row to the function, with the point that it is of.
    pub(crate) fn each(
        &self,
        points: &mut BTreeMap<u64, &mut PointResult>,
        mut add: impl FnMut(usize, &mut PointResult),
    ) {
        for row in 0..self.table.rows() {
            if let Some(point) = points.get_mut(&self.point.at(row)) {
                add(row, point);
            }
        }
    }
}

fn counts<'a>(table: &'a Table, name: &str) -> Result<Column<'a, u64>, String> {
    let values = table.counts(name).ok_or_else(|| name.to_owned())?;
    // No point has this index.
    Ok(Column { values, missing: if name == "point" { u64::MAX } else { 0 } })
}
