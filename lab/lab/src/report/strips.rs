//! The tables of a comparison as columns of formatted cells, which the terminal and the page lay out.

use super::compare::{
    self, ShownColumn, best_in, best_in_bucket, bucket, bucket_edges, measures, stream_columns,
};
use super::number;
use crate::results::columns::Kind;
use crate::results::{PointResult, SizeBucket};

/// The number of messages below which a 99th percentile depends on a single message.
pub(super) const FEW: u64 = 100;

/// A formatted value.
#[derive(Clone, Default)]
pub(super) struct Cell {
    pub(super) text: String,
    /// Whether it is the best value.
    pub(super) best: bool,
    /// Whether it is a percentile of few messages.
    pub(super) few: bool,
    /// What a page says about it under the pointer; may be empty.
    pub(super) note: String,
}

/// A column with its cells. Adjacent strips with the same heading share it.
#[derive(Clone)]
pub(super) struct Strip {
    /// The heading above adjacent columns; may be empty.
    pub(super) heading: String,
    pub(super) name: String,
    pub(super) cells: Vec<Cell>,
    /// Whether the cells are texts, which begin at the left and may be wrapped.
    pub(super) left: bool,
    /// The rank: the strips with the highest rank are the first to be left out where space is scarce; those of rank 0 never are.
    pub(super) rank: u8,
}

impl Strip {
    /// Returns a column of numbers that is never left out.
    pub(super) fn new(heading: impl Into<String>, name: &str, cells: Vec<Cell>) -> Self {
        Self { heading: heading.into(), name: name.to_owned(), cells, left: false, rank: 0 }
    }

    /// Returns the same column as one of texts.
    pub(super) fn of_texts(self) -> Self {
        Self { left: true, ..self }
    }

    /// Returns heading and name.
    pub(super) fn full_name(&self) -> String {
        format!("{} {}", self.heading, self.name).trim().to_owned()
    }
}

/// Returns a cell without emphasis.
pub(super) fn plain(text: String) -> Cell {
    Cell { text, ..Cell::default() }
}

/// Divides strips into tables for which `fits` holds, at headings where possible. A strip that does not fit alone is a table.
pub(super) fn divide(strips: &[Strip], fits: impl Fn(&[Strip]) -> bool) -> Vec<&[Strip]> {
    let mut tables = Vec::new();
    let mut rest = strips;
    while !rest.is_empty() {
        let mut take = 0;
        for group in rest.chunk_by(|a, b| a.heading == b.heading && !a.heading.is_empty()) {
            if !fits(&rest[..take + group.len()]) {
                break;
            }
            take += group.len();
        }
        if take == 0 {
            // Not even the first group fits.
            take = 1;
            while take < rest.len() && rest[take].heading == rest[0].heading && fits(&rest[..=take])
            {
                take += 1;
            }
        }
        let (table, later) = rest.split_at(take);
        tables.push(table);
        rest = later;
    }
    tables
}

/// Returns the measures of points.
pub(super) fn of_points(points: &[PointResult]) -> Vec<Strip> {
    let strip = |column: ShownColumn<_>| {
        let best = best_in(points, column);
        let text = |point: &PointResult| compare::measure(&point.summary, column);
        let cells = points.iter().zip(best);
        let cells = cells.map(|(point, best)| Cell { best, ..plain(text(point)) });
        let (_, shown) = column;
        Strip { rank: shown.rank, ..Strip::new(shown.group, shown.name, cells.collect()) }
    };
    measures(points).into_iter().map(strip).collect()
}

/// Returns the columns of rows of any kind.
pub(super) fn of_rows<T: 'static>(columns: &[ShownColumn<T>], rows: &[&T]) -> Vec<Strip> {
    let strip = |(column, shown): &ShownColumn<T>| {
        let cell = |row: &&T| plain(compare::text(&(column.get)(row), shown.unit));
        Strip {
            rank: shown.rank,
            left: column.kind == Kind::Text,
            ..Strip::new(shown.group, shown.name, rows.iter().map(cell).collect())
        }
    };
    columns.iter().map(strip).collect()
}

/// Returns the columns of the background streams, for a row for each stream of each point.
pub(super) fn of_streams(points: &[PointResult]) -> Vec<Strip> {
    let rows: Vec<_> = points.iter().flat_map(compare::streams).collect();
    of_rows(&stream_columns(points), &rows)
}

/// A number of a bucket.
type OfBucket = fn(&SizeBucket) -> f64;

/// Returns the slowdown by message size of points that have the same buckets.
pub(super) fn of_sizes(points: &[PointResult]) -> Vec<Strip> {
    let measures: [(&str, OfBucket); 2] = [("p50", |b| b.p50), ("p99", |b| b.p99)];
    let strip = |edge: u64, (name, of): (&str, OfBucket)| {
        let best = best_in_bucket(points, edge, of);
        let cells = points.iter().zip(best).map(|(point, best)| {
            let found = bucket(point, edge);
            let count = found.map_or(0, |bucket| bucket.count);
            Cell {
                text: number::short(found.map_or(f64::NAN, of)),
                best,
                few: name == "p99" && (1..FEW).contains(&count),
                note: format!("{} messages", number::grouped(count)),
            }
        });
        Strip::new(number::bucket(edge), name, cells.collect())
    };
    bucket_edges(points).into_iter().flat_map(|edge| measures.map(|of| strip(edge, of))).collect()
}

/// Returns the dropped packets of points by reason.
pub(super) fn of_drops(points: &[PointResult]) -> Vec<Strip> {
    let mut reasons: Vec<&str> = Vec::new();
    for reason in points.iter().flat_map(|p| p.summary.drops_by_reason.keys()) {
        if !reasons.contains(&reason.as_str()) {
            reasons.push(reason);
        }
    }
    let all = points.iter().map(|point| plain(number::grouped(point.summary.drops)));
    let of_reason = |reason: &&str| {
        let count = |point: &PointResult| {
            let count = point.summary.drops_by_reason.get(*reason);
            count.and_then(serde_json::Value::as_u64).unwrap_or(0)
        };
        let cells = points.iter().map(|point| plain(number::grouped(count(point))));
        Strip::new("by reason", &reason.replace('_', " "), cells.collect())
    };
    let all = Strip::new("", "all", all.collect());
    std::iter::once(all).chain(reasons.iter().map(of_reason)).collect()
}
