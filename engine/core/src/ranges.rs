//! Sets of byte or packet positions, stored as ranges: what has arrived, or what was selectively acknowledged.
//!
//! - [`RangeSet`]: any disjoint ranges, as many as there are unless the caller passes a limit.
//! - [`Assembler`]: all positions below an edge, and a bounded number of ranges above it. This is the state of a
//!   receiver that reassembles a message or a stream (the name is smoltcp's).
//!
//! Ranges are half-open, sorted, and neither overlap nor touch. Three are held without allocation, and an
//! [`Assembler`] whose data arrive in order is a single number.
//!
//! ```
//! use rackweave_core::{Assembler, TooManyRanges};
//!
//! let mut arrived = Assembler::<u64>::default();
//! assert_eq!(arrived.insert(0..1000, 2), Ok(1000));
//! assert_eq!(arrived.insert(2000..3000, 2), Ok(1000));
//! assert_eq!(arrived.gaps(4000).collect::<Vec<_>>(), [1000..2000, 3000..4000]);
//! // At most two ranges above the edge: what a peer sends cannot make the state grow.
//! assert_eq!(arrived.insert(4000..5000, 2), Ok(1000));
//! assert_eq!(arrived.insert(6000..7000, 2), Err(TooManyRanges));
//! assert_eq!(arrived.insert(500..2500, 2), Ok(1000));
//! assert_eq!(arrived.prefix(), 3000);
//! ```

use core::fmt::Debug;
use core::iter::once;
use core::ops::{Add, AddAssign, Range, Sub, SubAssign};

use smallvec::SmallVec;

/// A type that counts positions: `u32` within a message, `u64` within a stream.
pub trait Position:
    Copy
    + Ord
    + Default
    + Debug
    + Add<Output = Self>
    + Sub<Output = Self>
    + AddAssign
    + SubAssign
    + Into<u64>
{
    /// The largest value, which lies beyond every position in use.
    const MAX: Self;

    /// Returns the position with this number, which is one of the type.
    fn from_u64(number: u64) -> Self;
}

impl Position for u32 {
    const MAX: Self = Self::MAX;

    #[inline]
    fn from_u64(number: u64) -> Self {
        number as Self
    }
}
impl Position for u64 {
    const MAX: Self = Self::MAX;

    #[inline]
    fn from_u64(number: u64) -> Self {
        number
    }
}

/// The range was rejected: it touches no other range, and the set already holds the largest permitted number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the set already holds the largest permitted number of ranges")]
pub struct TooManyRanges;

/// A set of positions as disjoint ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet<T: Position = u64> {
    ranges: SmallVec<[(T, T); 3]>,
    covered: T,
}

impl<T: Position> RangeSet<T> {
    /// Creates an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether the set contains no position.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the number of ranges.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Returns the number of positions in all ranges.
    #[must_use]
    #[inline]
    pub const fn covered(&self) -> T {
        self.covered
    }

    /// Removes all positions.
    pub fn clear(&mut self) {
        self.ranges.clear();
        self.covered = T::default();
    }

    /// Adds a range and returns how many of its positions are new.
    pub fn insert(&mut self, range: Range<T>) -> T {
        // No set holds `usize::MAX` ranges, so none is refused.
        self.insert_bounded(range, usize::MAX).unwrap_or_default()
    }

    /// Adds a range and returns how many of its positions are new.
    ///
    /// # Errors
    /// [`TooManyRanges`] if the set would hold more than `max_ranges` ranges. The set is then unchanged.
    #[inline]
    pub fn insert_bounded(
        &mut self,
        range: Range<T>,
        max_ranges: usize,
    ) -> Result<T, TooManyRanges> {
        let Range { start, end } = range;
        if start >= end {
            return Ok(T::default());
        }
        // The range is usually at or beyond the end of the last one.
        let first = match self.ranges.last() {
            Some(&(_, last_end)) if start > last_end => self.ranges.len(),
            _ => self.ranges.partition_point(|range| range.1 < start),
        };
        let mut last = first;
        let (mut merged_start, mut merged_end, mut known) = (start, end, T::default());
        while let Some(&(from, to)) = self.ranges.get(last)
            && from <= end
        {
            merged_start = merged_start.min(from);
            merged_end = merged_end.max(to);
            known += to - from;
            last += 1;
        }
        if first == last {
            if self.ranges.len() >= max_ranges {
                return Err(TooManyRanges);
            }
            self.ranges.insert(first, (start, end));
        } else {
            self.ranges[first] = (merged_start, merged_end);
            self.ranges.drain(first + 1..last);
        }
        let new = (merged_end - merged_start) - known;
        self.covered += new;
        Ok(new)
    }

    /// Removes all positions below `edge` and returns how many there were.
    pub fn remove_below(&mut self, edge: T) -> T {
        let gone = self.ranges.partition_point(|range| range.1 <= edge);
        let mut removed = T::default();
        for (from, to) in self.ranges.drain(..gone) {
            removed += to - from;
        }
        if let Some(first) = self.ranges.first_mut()
            && first.0 < edge
        {
            removed += edge - first.0;
            first.0 = edge;
        }
        self.covered -= removed;
        removed
    }

    /// Removes the highest range.
    pub fn pop_last(&mut self) -> Option<Range<T>> {
        let (from, to) = self.ranges.pop()?;
        self.covered -= to - from;
        Some(from..to)
    }

    /// Returns the range that contains `position`.
    #[must_use]
    #[inline]
    pub fn range_at(&self, position: T) -> Option<Range<T>> {
        let index = self.ranges.partition_point(|range| range.1 <= position);
        self.ranges.get(index).filter(|range| range.0 <= position).map(|&(from, to)| from..to)
    }

    /// Returns whether `position` is in the set.
    #[must_use]
    #[inline]
    pub fn contains(&self, position: T) -> bool {
        self.range_at(position).is_some()
    }

    /// Returns whether all of `range` is in the set. An empty range always is.
    #[must_use]
    pub fn contains_range(&self, range: Range<T>) -> bool {
        range.is_empty() || self.range_at(range.start).is_some_and(|held| held.end >= range.end)
    }

    /// Returns the number of positions below `edge`.
    #[must_use]
    pub fn covered_below(&self, edge: T) -> T {
        match self.ranges.last() {
            None => T::default(),
            Some(&(_, end)) if end <= edge => self.covered,
            Some(_) => {
                let before = self.ranges.iter().take_while(|range| range.0 < edge);
                before.fold(T::default(), |sum, &(from, to)| sum + (to.min(edge) - from))
            }
        }
    }

    /// Returns the first position from `start` on that is not in the set.
    #[must_use]
    #[inline]
    pub fn first_missing(&self, start: T) -> T {
        self.range_at(start).map_or(start, |range| range.end)
    }

    /// Returns the first gap at or above `start`. It ends where the next range begins, or at [`Position::MAX`].
    #[must_use]
    pub fn gap_from(&self, start: T) -> Range<T> {
        let index = self.ranges.partition_point(|range| range.1 <= start);
        match self.ranges.get(index) {
            Some(&(from, to)) if from <= start => {
                to..self.ranges.get(index + 1).map_or(T::MAX, |next| next.0)
            }
            Some(&(from, _)) => start..from,
            None => start..T::MAX,
        }
    }

    /// Iterates over the gaps within a range, lowest first.
    pub fn gaps(&self, within: Range<T>) -> impl Iterator<Item = Range<T>> + '_ {
        let Range { start, end } = within;
        let after = self.ranges.partition_point(|range| range.1 <= start);
        let above = &self.ranges[after..];
        let starts = once(start).chain(above.iter().map(|range| range.1));
        let ends = above.iter().map(|range| range.0).chain(once(end));
        starts
            .zip(ends)
            .map(move |(from, to)| from..to.min(end))
            .take_while(move |gap| gap.start < end)
            .filter(|gap| !gap.is_empty())
    }

    /// Iterates over the ranges, lowest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<T>> + ExactSizeIterator + '_ {
        self.ranges.iter().map(|&(from, to)| from..to)
    }
}

/// The positions of a message or a stream that have arrived: everything below an edge, and ranges above it.
///
/// The caller passes the limit on the number of ranges to each call, because the limit is a parameter of the host and
/// thousands of assemblers share it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assembler<T: Position = u64> {
    prefix: T,
    above: RangeSet<T>,
}

impl<T: Position> Assembler<T> {
    /// Creates an assembler that contains every position below `position`.
    #[must_use]
    pub fn starting_at(position: T) -> Self {
        Self { prefix: position, above: RangeSet::default() }
    }

    /// Returns the edge: the first position that has not arrived.
    #[must_use]
    #[inline]
    pub const fn prefix(&self) -> T {
        self.prefix
    }

    /// Returns the ranges above [`Assembler::prefix`]; none of them touches it.
    #[must_use]
    #[inline]
    pub const fn above(&self) -> &RangeSet<T> {
        &self.above
    }

    /// Adds a range and returns how many of its positions are new.
    ///
    /// # Errors
    /// [`TooManyRanges`] if there would be more than `max_ranges` ranges above the prefix. The assembler is then
    /// unchanged. A range that touches the prefix or another range is always accepted.
    #[inline]
    pub fn insert(&mut self, range: Range<T>, max_ranges: usize) -> Result<T, TooManyRanges> {
        if range.start <= self.prefix && self.above.is_empty() {
            let new = range.end.max(self.prefix) - self.prefix;
            self.prefix += new;
            return Ok(new);
        }
        self.insert_among(range, max_ranges)
    }

    fn insert_among(&mut self, range: Range<T>, max_ranges: usize) -> Result<T, TooManyRanges> {
        if range.start > self.prefix {
            return self.above.insert_bounded(range, max_ranges);
        }
        if range.end <= self.prefix {
            return Ok(T::default());
        }
        let prefix = self.above.first_missing(range.end);
        let known = self.above.remove_below(prefix);
        let new = prefix - self.prefix - known;
        self.prefix = prefix;
        Ok(new)
    }

    /// Adds a range and returns the span from its first to its last new position; `None` if nothing is new. At the
    /// limit, the highest range is evicted in favour of a lower one, which is needed sooner; a range above all others
    /// is rejected.
    pub fn insert_evicting(&mut self, range: Range<T>, max_ranges: usize) -> Option<Range<T>> {
        let range = range.start.max(self.prefix)..range.end;
        if range.is_empty() {
            return None;
        }
        if self.above.is_empty() && range.start == self.prefix {
            self.prefix = range.end;
            return Some(range);
        }
        let first = self.first_missing(range.start);
        if first >= range.end {
            return None;
        }
        // The last missing position lies just below the range that contains the end, if one does.
        let index = self.above.ranges.partition_point(|held| held.1 < range.end);
        let last = self.above.ranges.get(index).map_or(range.end, |held| held.0.min(range.end));
        if self.insert(range.clone(), max_ranges).is_err() {
            self.above.ranges.last().filter(|highest| highest.0 > range.start)?;
            self.above.pop_last();
            self.insert(range, max_ranges).ok()?;
        }
        Some(first..last)
    }

    /// Returns whether `position` has arrived.
    #[must_use]
    #[inline]
    pub fn contains(&self, position: T) -> bool {
        position < self.prefix || self.above.contains(position)
    }

    /// Returns whether all of `range` has arrived. An empty range always has.
    #[must_use]
    pub fn contains_range(&self, range: Range<T>) -> bool {
        range.end <= self.prefix
            || self.above.contains_range(range.start.max(self.prefix)..range.end)
    }

    /// Returns the first missing position from `start` on.
    #[must_use]
    #[inline]
    pub fn first_missing(&self, start: T) -> T {
        self.above.first_missing(start.max(self.prefix))
    }

    /// Iterates over the gaps below `limit`, lowest first.
    pub fn gaps(&self, limit: T) -> impl Iterator<Item = Range<T>> + '_ {
        self.above.gaps(self.prefix..limit)
    }

    /// Returns the first gap below `limit`.
    #[must_use]
    #[inline]
    pub fn first_gap(&self, limit: T) -> Option<Range<T>> {
        let end = self.above.ranges.first().map_or(limit, |range| range.0.min(limit));
        (self.prefix < end).then_some(self.prefix..end)
    }

    /// Moves the origin: subtracts `by` from all positions. Everything below `by` must have arrived.
    pub fn rebase(&mut self, by: T) {
        self.prefix -= by;
        for (from, to) in &mut self.above.ranges {
            *from -= by;
            *to -= by;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CELLS: usize = 80;
    type Bitmap = [bool; CELLS];

    fn count(bitmap: &[bool]) -> u64 {
        bitmap.iter().filter(|cell| **cell).count() as u64
    }

    /// Returns the runs of cells within a range whose value is `set`.
    fn runs(bitmap: &Bitmap, within: Range<u64>, set: bool) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for cell in within.filter(|cell| bitmap[*cell as usize] == set) {
            match runs.last_mut() {
                Some(run) if run.end == cell => run.end += 1,
                _ => runs.push(cell..cell + 1),
            }
        }
        runs
    }

    fn agrees(set: &RangeSet, bitmap: &Bitmap) -> Result<(), TestCaseError> {
        let ranges: Vec<_> = set.iter().collect();
        prop_assert_eq!(&ranges, &runs(bitmap, 0..CELLS as u64, true));
        prop_assert_eq!((set.len(), set.is_empty()), (ranges.len(), ranges.is_empty()));
        prop_assert_eq!(set.covered(), count(bitmap));
        for (from, here) in (0..).zip(bitmap) {
            prop_assert_eq!(set.contains(from), *here);
            prop_assert_eq!(set.covered_below(from), count(&bitmap[..from as usize]));
            prop_assert_eq!(set.range_at(from), ranges.iter().find(|r| r.contains(&from)).cloned());
            let gap = runs(bitmap, from..CELLS as u64, false).into_iter().next();
            let gap = gap.unwrap_or(CELLS as u64..CELLS as u64);
            prop_assert_eq!(set.first_missing(from), gap.start);
            let end = if gap.end == CELLS as u64 { u64::MAX } else { gap.end };
            prop_assert_eq!(set.gap_from(from), gap.start..end);
            for to in from..CELLS as u64 {
                let all = !bitmap[from as usize..to as usize].contains(&false);
                prop_assert_eq!(set.contains_range(from..to), all);
                prop_assert_eq!(
                    set.gaps(from..to).collect::<Vec<_>>(),
                    runs(bitmap, from..to, false)
                );
            }
        }
        Ok(())
    }

    /// Returns the positions of an assembler as a set.
    fn as_set(assembler: &Assembler) -> RangeSet {
        let mut set = assembler.above().clone();
        set.insert(0..assembler.prefix());
        set
    }

    fn assembler_agrees(assembler: &Assembler, bitmap: &Bitmap) -> Result<(), TestCaseError> {
        agrees(&as_set(assembler), bitmap)?;
        let prefix = bitmap.iter().position(|here| !here).unwrap_or(CELLS) as u64;
        prop_assert_eq!(assembler.prefix(), prefix);
        prop_assert_eq!(assembler.above().contains(prefix), false);
        for from in 0..CELLS as u64 {
            prop_assert_eq!(assembler.contains(from), bitmap[from as usize]);
            let missing = (from as usize..CELLS).find(|cell| !bitmap[*cell]).unwrap_or(CELLS);
            prop_assert_eq!(assembler.first_missing(from), missing as u64);
            let gaps = runs(bitmap, 0..from, false);
            prop_assert_eq!(assembler.first_gap(from), gaps.first().cloned());
            prop_assert_eq!(assembler.gaps(from).collect::<Vec<_>>(), gaps);
            for to in from..CELLS as u64 {
                let all = !bitmap[from as usize..to as usize].contains(&false);
                prop_assert_eq!(assembler.contains_range(from..to), all);
            }
        }
        Ok(())
    }

    fn cells(start: u64, len: u64) -> Range<usize> {
        start as usize..(start + len) as usize
    }

    #[test]
    fn in_order_is_one_number() {
        let mut arrived = Assembler::<u32>::default();
        assert_eq!(arrived.insert(0..10, 0), Ok(10));
        assert_eq!(arrived.insert(10..20, 0), Ok(10));
        assert_eq!(arrived.insert(5..20, 0), Ok(0));
        assert_eq!(arrived, Assembler::starting_at(20));
        assert_eq!((arrived.first_gap(20), arrived.first_gap(30)), (None, Some(20..30)));
    }

    #[test]
    fn the_number_of_ranges_is_limited() {
        let mut arrived = Assembler::<u32>::default();
        let taken = (1..1000).filter(|i| arrived.insert(i * 2..i * 2 + 1, 4).is_ok());
        assert_eq!(taken.count(), 4);
        assert_eq!(arrived.above().len(), 4);
        assert_eq!(arrived.insert(0..2, 4), Ok(2), "a range that closes a gap is always taken");
    }

    #[test]
    fn positions_are_counted_from_a_later_one() {
        let mut arrived = Assembler::<u32>::default();
        arrived.insert(0..10, 2).unwrap();
        arrived.insert(20..30, 2).unwrap();
        arrived.rebase(6);
        assert_eq!((arrived.prefix(), arrived.first_gap(100)), (4, Some(4..14)));
        assert!(arrived.above().iter().eq(once(14..24)));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn sets_agree_with_a_bitmap(
            steps in prop::collection::vec((0_u8..8, 0_u64..60, 0_u64..12), 1..40),
        ) {
            let (mut set, mut bitmap) = (RangeSet::new(), [false; CELLS]);
            for (what, start, len) in steps {
                let before = bitmap;
                let range = start..start + len;
                match what {
                    0 => {
                        bitmap[..start as usize].fill(false);
                        let removed = count(&before) - count(&bitmap);
                        prop_assert_eq!(set.remove_below(start), removed);
                    }
                    1 => {
                        let last = runs(&bitmap, 0..CELLS as u64, true).pop();
                        prop_assert_eq!(set.pop_last(), last.clone());
                        if let Some(last) = last {
                            bitmap[last.start as usize..last.end as usize].fill(false);
                        }
                    }
                    2..4 => {
                        bitmap[cells(start, len)].fill(true);
                        prop_assert_eq!(set.insert(range), count(&bitmap) - count(&before));
                    }
                    _ => {
                        bitmap[cells(start, len)].fill(true);
                        let full = set.len() >= 4;
                        let grows = runs(&bitmap, 0..CELLS as u64, true).len() > set.len();
                        let new = set.insert_bounded(range, 4);
                        if full && grows {
                            prop_assert_eq!(new, Err(TooManyRanges));
                            bitmap = before;
                        } else {
                            prop_assert_eq!(new, Ok(count(&bitmap) - count(&before)));
                        }
                    }
                }
                prop_assert_eq!(set.iter().collect::<Vec<_>>(), runs(&bitmap, 0..CELLS as u64, true));
            }
            agrees(&set, &bitmap)?;
            set.clear();
            prop_assert_eq!(set, RangeSet::new());
        }

        #[test]
        fn assemblers_agree_with_a_bitmap(
            at in 0_u64..8,
            steps in prop::collection::vec((0_u64..60, 0_u64..12), 1..40),
        ) {
            let (mut arrived, mut bitmap) = (Assembler::starting_at(at), [false; CELLS]);
            bitmap[..at as usize].fill(true);
            for (start, len) in steps {
                let (before, ranges) = (bitmap, arrived.above().len());
                bitmap[cells(start, len)].fill(true);
                match arrived.insert(start..start + len, 4) {
                    Ok(new) => prop_assert_eq!(new, count(&bitmap) - count(&before)),
                    Err(TooManyRanges) => {
                        let held = runs(&bitmap, 0..CELLS as u64, true).len();
                        prop_assert!(ranges == 4 && held > runs(&before, 0..CELLS as u64, true).len());
                        bitmap = before;
                    }
                }
            }
            assembler_agrees(&arrived, &bitmap)?;
        }

        #[test]
        fn eviction_keeps_what_is_lowest(
            at in 0_u64..8,
            steps in prop::collection::vec((0_u64..60, 0_u64..12), 1..40),
        ) {
            let (mut arrived, mut bitmap) = (Assembler::starting_at(at), [false; CELLS]);
            bitmap[..at as usize].fill(true);
            for (start, len) in steps {
                let before = bitmap;
                bitmap[cells(start, len)].fill(true);
                let missing: Vec<u64> =
                    (start..start + len).filter(|cell| !before[*cell as usize]).collect();
                let expected = missing.first().map(|first| *first..missing[missing.len() - 1] + 1);
                // There is one range too many: the highest is evicted, which may be the new one.
                let mut held = runs(&bitmap, 0..CELLS as u64, true);
                held.retain(|run| run.start > 0);
                let evicted = if held.len() > 4 { held.pop() } else { None };
                let refused = evicted.as_ref().is_some_and(|run| run.start == start);
                if let Some(run) = evicted {
                    bitmap[run.start as usize..run.end as usize].fill(false);
                }
                let new = arrived.insert_evicting(start..start + len, 4);
                prop_assert_eq!(new, if refused { None } else { expected });
            }
            assembler_agrees(&arrived, &bitmap)?;
        }

        /// The narrow implementation must agree with the wide one.
        #[test]
        fn widths_agree(steps in prop::collection::vec((0_u32..200, 0_u32..20), 1..60)) {
            let (mut narrow, mut wide) = (Assembler::<u32>::default(), Assembler::<u64>::default());
            for (start, len) in steps {
                let new = narrow.insert(start..start + len, 5).map(u64::from);
                prop_assert_eq!(new, wide.insert(u64::from(start)..u64::from(start + len), 5));
                prop_assert_eq!(u64::from(narrow.prefix()), wide.prefix());
            }
        }
    }
}
