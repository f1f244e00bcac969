//! Disjoint ranges of a stream: what was SACKed, or arrived out of order.

/// Sorted, disjoint, not touching, and no more than a given number.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges {
    list: Vec<(u64, u64)>,
    bytes: u64,
}

impl Ranges {
    pub(super) const EMPTY: Self = Self { list: Vec::new(), bytes: 0 };

    pub(super) const fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Bytes in all ranges.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.bytes = 0;
    }

    /// Adds a range and says how many of its bytes are new; `None`, and nothing changed, if there
    /// would be more than `limit` ranges.
    pub(super) fn insert(&mut self, start: u64, end: u64, limit: usize) -> Option<u64> {
        if start >= end {
            return Some(0);
        }
        // The usual case: at or beyond the end of the last range.
        let first = match self.list.last() {
            Some(&(_, last_end)) if start > last_end => self.list.len(),
            _ => self.list.partition_point(|range| range.1 < start),
        };
        let mut last = first;
        let (mut merged_start, mut merged_end, mut known) = (start, end, 0);
        while let Some(&(s, e)) = self.list.get(last)
            && s <= end
        {
            merged_start = merged_start.min(s);
            merged_end = merged_end.max(e);
            known += e - s;
            last += 1;
        }
        if first == last {
            if self.list.len() >= limit {
                return None;
            }
            self.list.insert(first, (start, end));
        } else {
            self.list[first] = (merged_start, merged_end);
            self.list.drain(first + 1..last);
        }
        let new = (merged_end - merged_start) - known;
        self.bytes += new;
        Some(new)
    }

    /// Forgets everything below `edge` and says how many bytes that were.
    pub(super) fn remove_below(&mut self, edge: u64) -> u64 {
        let gone = self.list.partition_point(|range| range.1 <= edge);
        let mut removed: u64 = self.list[..gone].iter().map(|(s, e)| e - s).sum();
        self.list.drain(..gone);
        if let Some(first) = self.list.first_mut()
            && first.0 < edge
        {
            removed += edge - first.0;
            first.0 = edge;
        }
        self.bytes -= removed;
        removed
    }

    /// How many bytes below `edge` are covered.
    pub(super) fn covered_below(&self, edge: u64) -> u64 {
        match self.list.last() {
            None => 0,
            Some(&(_, end)) if end <= edge => self.bytes,
            Some(_) => {
                let before = self.list.iter().take_while(|range| range.0 < edge);
                before.map(|&(s, e)| e.min(edge) - s).sum()
            }
        }
    }

    /// The range that holds `point`.
    pub(super) fn containing(&self, point: u64) -> Option<(u64, u64)> {
        let index = self.list.partition_point(|range| range.1 <= point);
        self.list.get(index).copied().filter(|range| range.0 <= point)
    }

    /// The first uncovered stretch at or above `from`: its start, and where the next range begins
    /// (`u64::MAX` if none does).
    pub(super) fn gap_from(&self, from: u64) -> (u64, u64) {
        let index = self.list.partition_point(|range| range.1 <= from);
        match self.list.get(index) {
            Some(&(start, end)) if start <= from => {
                (end, self.list.get(index + 1).map_or(u64::MAX, |next| next.0))
            }
            Some(&(start, _)) => (from, start),
            None => (from, u64::MAX),
        }
    }

    /// Where a stream that is whole up to `edge` is whole up to, with these ranges.
    pub(super) fn extend(&self, edge: u64) -> u64 {
        match self.list.first() {
            Some(&(start, end)) if start <= edge => edge.max(end),
            _ => edge,
        }
    }

    /// RFC 6675's `IsLost`, for all sequence numbers at once: every gap below the returned number
    /// has `threshold` ranges, or more than `threshold - 1` segments' bytes, SACKed above it.
    pub(super) fn lost_below(&self, threshold: u32, mss: u64) -> Option<u64> {
        let threshold = u64::from(threshold.max(1));
        let mut bytes = 0;
        for (above, &(start, end)) in (1_u64..).zip(self.list.iter().rev()) {
            bytes += end - start;
            if above >= threshold || bytes > (threshold - 1) * mss {
                return Some(start);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_lost_has_enough_sacked_above() {
        let mut ranges = Ranges::default();
        ranges.insert(10, 11, 9);
        assert_eq!(ranges.lost_below(3, 10), None);
        ranges.insert(20, 21, 9);
        ranges.insert(30, 31, 9);
        assert_eq!(ranges.lost_below(3, 10), Some(10), "three ranges");
        ranges.insert(31, 60, 9);
        assert_eq!(ranges.lost_below(3, 10), Some(30), "more than two segments' bytes");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Against a bitmap.
        #[test]
        fn agree_with_a_bitmap(
            steps in prop::collection::vec((any::<bool>(), 0_u64..60, 0_u64..12), 1..60),
            probe in 0_u64..80,
        ) {
            let mut ranges = Ranges::default();
            let mut bitmap = [false; 80];
            for (add, start, len) in steps {
                let cells = start as usize..(start + len) as usize;
                if add {
                    let new = bitmap[cells.clone()].iter().filter(|set| !**set).count();
                    if ranges.insert(start, start + len, 6) == Some(new as u64) {
                        bitmap[cells].fill(true);
                    } else {
                        prop_assert_eq!(ranges.len(), 6, "refused only when full");
                    }
                } else {
                    let old = bitmap[..cells.start].iter().filter(|set| **set).count();
                    prop_assert_eq!(ranges.remove_below(start), old as u64);
                    bitmap[..cells.start].fill(false);
                }
                prop_assert!(ranges.list.windows(2).all(|pair| pair[0].1 < pair[1].0));
            }
            let set = |edge: u64| bitmap[..edge as usize].iter().filter(|set| **set).count() as u64;
            prop_assert_eq!(ranges.bytes(), set(80));
            prop_assert_eq!(ranges.covered_below(probe), set(probe));
            prop_assert_eq!(ranges.containing(probe).is_some(), bitmap[probe as usize]);
            let gap = (probe..80).find(|at| !bitmap[*at as usize]).unwrap_or(80);
            prop_assert_eq!(ranges.gap_from(probe).0, gap);
        }
    }
}
