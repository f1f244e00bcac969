//! Distributions of message sizes.

use core::fmt;
use std::sync::Arc;

use rackweave_core::{Bytes, Rng};

use crate::error::{LineProblem, SizesError, WorkloadError};
use crate::rows::{Rows, whole_number};
use crate::tables;

/// The longest message (1 TiB). With this limit, sums of sizes and of wire bytes cannot overflow.
pub const MAX_MESSAGE_BYTES: u64 = 1 << 40;

/// The largest number of sizes by which a range is represented in sums.
const STRATA: u64 = 1024;

/// Scales a probability to a threshold for 64 random bits.
const TWO_TO_64: f64 = 18_446_744_073_709_551_616.0;

/// A distribution of message sizes.
///
/// It is cheap to clone, because clones share one table. Drawing takes constant time.
#[derive(Clone, PartialEq)]
pub struct SizeDist(Arc<Table>);

#[derive(PartialEq)]
struct Table {
    name: String,
    description: String,
    source: String,
    pieces: Vec<Piece>,
    columns: Vec<Column>,
    mean: f64,
}

/// A range of equally probable sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Piece {
    /// The smallest size of the piece.
    pub(crate) first: u64,
    /// The largest size of the piece.
    pub(crate) last: u64,
    /// The probability of a size up to `last`.
    pub(crate) cdf: f64,
}

/// A column of the alias method: values below `threshold` select its own piece, others another piece.
#[derive(Clone, Copy, PartialEq)]
struct Column {
    threshold: u64,
    first: u64,
    count: u64,
    other: u32,
}

/// How the CDF continues between two points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpolation {
    /// Only the listed sizes occur.
    Steps,
    /// The CDF is linear between points: all sizes between two points are equally probable.
    Linear,
}

impl SizeDist {
    /// The names that [`SizeDist::named`] accepts.
    pub const NAMES: [&str; 10] = tables::NAMES;

    /// Returns a published distribution. Case, blanks and hyphens in the name are ignored.
    ///
    /// # Errors
    /// If there is no distribution of this name; the error lists the existing ones.
    pub fn named(name: &str) -> Result<Self, WorkloadError> {
        let plain: String = name
            .chars()
            .filter(|c| !matches!(c, ' ' | '-' | '_'))
            .map(|c| c.to_ascii_lowercase())
            .collect();
        let published = tables::PUBLISHED
            .iter()
            .find(|published| published.name.to_ascii_lowercase() == plain)
            .ok_or_else(|| WorkloadError::UnknownDistribution(name.chars().take(40).collect()))?;
        let pieces = published.curve.pieces();
        Ok(Self::build(published.name, published.description, published.source, pieces))
    }

    /// Returns the distribution in which all messages have one size.
    ///
    /// # Errors
    /// If the size is not between 1 and [`MAX_MESSAGE_BYTES`].
    pub fn fixed(bytes: u64) -> Result<Self, SizesError> {
        check_size(bytes)?;
        let pieces = vec![Piece { first: bytes, last: bytes, cdf: 1.0 }];
        Ok(Self::build(&Bytes(bytes).to_string(), "all messages of one size", "", pieces))
    }

    /// Returns the distribution in which all sizes from `low` to `high` are equally probable.
    ///
    /// # Errors
    /// If they are not between 1 and [`MAX_MESSAGE_BYTES`], or `low` is above `high`.
    pub fn uniform(low: u64, high: u64) -> Result<Self, SizesError> {
        check_size(low)?;
        check_size(high)?;
        if low > high {
            return Err(SizesError::Reversed { low, high });
        }
        let name = format!("{} to {}", Bytes(low), Bytes(high));
        let pieces = vec![Piece { first: low, last: high, cdf: 1.0 }];
        Ok(Self::build(&name, "all sizes in a range equally probable", "", pieces))
    }

    /// Parses a CDF: a header with the columns `size_bytes` and `cdf`, then points in which neither value decreases, up
    /// to a cdf of 1. Lines that begin with # are ignored.
    ///
    /// # Errors
    /// If the text does not have this format; the error names the line.
    pub fn from_csv(
        text: impl AsRef<[u8]>,
        interpolation: Interpolation,
    ) -> Result<Self, SizesError> {
        let problem = |line, problem| SizesError::Line { line, problem };
        let mut rows = Rows::new(text.as_ref(), &["size_bytes", "cdf"], "size_bytes,cdf")
            .map_err(|error| error.map_or(SizesError::Empty, |(line, what)| problem(line, what)))?;
        let mut points = Vec::new();
        let (mut before, mut cdf_before) = (0, 0.0);
        while rows.advance() {
            let point = read_point(&rows, before, cdf_before);
            let (size, cdf) = point.map_err(|what| problem(rows.line(), what))?;
            (before, cdf_before) = (size, cdf);
            points.push((size, cdf));
        }
        if points.is_empty() {
            return Err(SizesError::Empty);
        }
        if (cdf_before - 1.0).abs() > 1e-6 {
            return Err(problem(rows.line(), LineProblem::CdfEnd(cdf_before)));
        }
        let pieces = pieces_of(&points, interpolation);
        Ok(Self::build("custom", "a CDF read from a file", "", pieces))
    }

    /// Returns the same distribution, except that sizes above `max` become `max`.
    ///
    /// # Errors
    /// If `max` is not between 1 and [`MAX_MESSAGE_BYTES`].
    pub fn truncated(&self, max: u64) -> Result<Self, SizesError> {
        check_size(max)?;
        let table = &*self.0;
        if table.pieces.last().is_none_or(|piece| piece.last <= max) {
            return Ok(self.clone());
        }
        let mut pieces = Vec::new();
        let mut below = 0.0;
        for piece in &table.pieces {
            if piece.last <= max {
                pieces.push(*piece);
            } else {
                if piece.first <= max {
                    let share = (max + 1 - piece.first) as f64 / piece.count() as f64;
                    pieces.push(Piece {
                        first: piece.first,
                        last: max,
                        cdf: below + share * (piece.cdf - below),
                    });
                }
                pieces.push(Piece { first: max, last: max, cdf: 1.0 });
                break;
            }
            below = piece.cdf;
        }
        let name = format!("{}, at most {}", table.name, Bytes(max));
        Ok(Self::build(&name, &table.description, &table.source, pieces))
    }

    /// Returns the same distribution under another name, such as that of a file.
    #[must_use]
    pub fn with_name(&self, name: &str) -> Self {
        let table = &*self.0;
        Self::build(name, &table.description, &table.source, table.pieces.clone())
    }

    /// Builds the table. `pieces` must be ordered and not empty, and the last cdf must be 1.
    fn build(name: &str, description: &str, source: &str, pieces: Vec<Piece>) -> Self {
        let columns = alias_columns(&pieces);
        let mean = probabilities(&pieces)
            .zip(&pieces)
            .map(|(p, piece)| p * (piece.first as f64 + piece.last as f64) / 2.0)
            .sum();
        Self(Arc::new(Table {
            name: name.into(),
            description: description.into(),
            source: source.into(),
            pieces,
            columns,
            mean,
        }))
    }

    /// Returns the name of the distribution.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns a short description.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.0.description
    }

    /// Returns the publication; empty if there is none.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.0.source
    }

    /// Draws a size by the alias method.
    #[inline]
    #[must_use]
    pub fn sample(&self, rng: &mut Rng) -> u64 {
        let columns = &self.0.columns[..];
        if let [only] = columns {
            return only.draw(rng);
        }
        // The high half of the product selects the column; the low half, still uniform, decides within it.
        let product = u128::from(rng.next_u64()) * columns.len() as u128;
        let column = columns[(product >> 64) as usize];
        if (product as u64) < column.threshold {
            column.draw(rng)
        } else {
            columns[column.other as usize].draw(rng)
        }
    }

    /// Returns the mean size in bytes.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.0.mean
    }

    /// Returns the smallest size that is not exceeded with probability `p` (clamped to 0..=1).
    #[must_use]
    pub fn quantile(&self, p: f64) -> u64 {
        // If `p` was meant to be exactly the cdf of a point, that point must be found despite rounding.
        let p = p - 1e-12;
        let pieces = &self.0.pieces;
        let at = pieces.partition_point(|piece| piece.cdf < p).min(pieces.len() - 1);
        let piece = pieces[at];
        let below = if at == 0 { 0.0 } else { pieces[at - 1].cdf };
        if piece.first == piece.last || piece.cdf <= below {
            return piece.first;
        }
        let share = ((p - below) / (piece.cdf - below)).clamp(0.0, 1.0);
        let rank = libm::ceil(share * piece.count() as f64) as u64;
        piece.first + rank.clamp(1, piece.count()) - 1
    }

    /// Returns the probability of a size of at most `size`.
    #[must_use]
    pub fn cdf(&self, size: u64) -> f64 {
        let pieces = &self.0.pieces;
        let at = pieces.partition_point(|piece| piece.last <= size);
        let below = if at == 0 { 0.0 } else { pieces[at - 1].cdf };
        match pieces.get(at) {
            Some(piece) if piece.first <= size => {
                let share = (size + 1 - piece.first) as f64 / piece.count() as f64;
                below + share * (piece.cdf - below)
            }
            _ => below,
        }
    }

    /// Returns the largest size.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.0.pieces.last().map_or(0, |piece| piece.last)
    }

    /// Returns the expectation of a function of the size, over [`SizeDist::points`].
    #[must_use]
    pub fn mean_of(&self, function: impl Fn(u64) -> f64) -> f64 {
        self.points().map(|(size, probability)| probability * function(size)).sum()
    }

    /// Iterates over sizes, in increasing order, and their probabilities. In a range of more than 1024 sizes, each of
    /// 1024 equal parts is represented by its middle.
    pub fn points(&self) -> impl Iterator<Item = (u64, f64)> + '_ {
        let pieces = &self.0.pieces;
        probabilities(pieces).zip(pieces).flat_map(|(probability, piece)| {
            let count = piece.count();
            let parts = count.min(STRATA);
            (0..parts).map(move |part| {
                let (from, to) = (part * count / parts, (part + 1) * count / parts);
                let middle = piece.first + (from + to - 1) / 2;
                (middle, probability * (to - from) as f64 / count as f64)
            })
        })
    }
}

impl fmt::Debug for SizeDist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SizeDist").field(&self.0.name).finish()
    }
}

impl Piece {
    const fn count(&self) -> u64 {
        self.last - self.first + 1
    }
}

impl Column {
    #[inline]
    fn draw(&self, rng: &mut Rng) -> u64 {
        if self.count == 1 { self.first } else { self.first + rng.below(self.count) }
    }
}

fn probabilities(pieces: &[Piece]) -> impl Iterator<Item = f64> + '_ {
    let mut below = 0.0;
    pieces.iter().map(move |piece| {
        let probability = piece.cdf - below;
        below = piece.cdf;
        probability
    })
}

/// Constructs the table of the alias method by Vose's algorithm.
fn alias_columns(pieces: &[Piece]) -> Vec<Column> {
    let n = pieces.len();
    let mut shares: Vec<f64> = probabilities(pieces).map(|p| p * n as f64).collect();
    let mut columns: Vec<Column> = pieces
        .iter()
        .enumerate()
        .map(|(i, piece)| Column {
            threshold: u64::MAX,
            first: piece.first,
            count: piece.count(),
            other: i as u32,
        })
        .collect();
    let (mut small, mut large): (Vec<usize>, Vec<usize>) = (0..n).partition(|&i| shares[i] < 1.0);
    while let (Some(&less), Some(&more)) = (small.last(), large.last()) {
        small.pop();
        columns[less].threshold = (shares[less] * TWO_TO_64) as u64;
        columns[less].other = more as u32;
        shares[more] -= 1.0 - shares[less];
        if shares[more] < 1.0 {
            large.pop();
            small.push(more);
        }
    }
    // The remaining columns are 1 except for rounding, so they keep their whole column.
    columns
}

pub(crate) fn check_size(bytes: u64) -> Result<(), SizesError> {
    if (1..=MAX_MESSAGE_BYTES).contains(&bytes) { Ok(()) } else { Err(SizesError::Size(bytes)) }
}

/// Reads the point in the current row, which must not be below the previous one.
fn read_point(rows: &Rows<'_>, before: u64, cdf_before: f64) -> Result<(u64, f64), LineProblem> {
    const SIZE: &str = "a whole number of bytes, at most 2^40";
    const CDF: &str = "a number from 0 to 1";
    let size = rows.value(0, SIZE, |text| whole_number(text, MAX_MESSAGE_BYTES))?;
    let cdf: f64 = rows.value(1, CDF, |text| text.parse().ok())?;
    if !(0.0..=1.0 + 1e-6).contains(&cdf) {
        return Err(rows.bad_value(1, CDF));
    }
    if size == 0 && cdf > 0.0 {
        return Err(rows.bad_value(0, "at least 1 where the cdf is above 0"));
    }
    if size < before {
        return Err(LineProblem::SizeDecreases { size, before });
    }
    if cdf < cdf_before {
        return Err(LineProblem::CdfDecreases { cdf, before: cdf_before });
    }
    Ok((size, cdf))
}

/// Returns the pieces of the CDF through `points`, which must not decrease and must end near a cdf of 1.
pub(crate) fn pieces_of(points: &[(u64, f64)], interpolation: Interpolation) -> Vec<Piece> {
    let total = points.last().map_or(1.0, |&(_, cdf)| cdf);
    let mut pieces = Vec::new();
    let (mut before, mut cdf_before) = (None, 0.0);
    for &(size, cdf) in points {
        if cdf > cdf_before {
            let first = match (interpolation, before) {
                // The range begins above the size of the previous point, so that the CDF at whole bytes is the line
                // itself.
                (Interpolation::Linear, Some(before)) if before < size => before + 1,
                _ => size,
            };
            pieces.push(Piece { first, last: size, cdf: cdf / total });
        }
        (before, cdf_before) = (Some(size), cdf);
    }
    pieces
}
