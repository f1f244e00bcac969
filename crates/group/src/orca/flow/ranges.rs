//! Which bytes of a stream are here.

/// All bytes below `prefix`, and some ranges after it: sorted, disjoint, not touching.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges {
    prefix: u64,
    later: Vec<(u64, u64)>,
}

impl Ranges {
    pub(super) const fn starting(at: u64) -> Self {
        Self { prefix: at, later: Vec::new() }
    }

    /// All below are here.
    pub(super) const fn prefix(&self) -> u64 {
        self.prefix
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.later.len()
    }

    /// Adds `start..end`. Returns the part of it from the first to the last new byte; `None` if nothing is new, or if
    /// there would be more than `limit` ranges after the prefix, and this one the last of them. If another were the last,
    /// that one is forgotten: what is nearer to the prefix is wanted sooner.
    pub(super) fn insert(&mut self, start: u64, end: u64, limit: usize) -> Option<(u64, u64)> {
        let start = start.max(self.prefix);
        if start >= end {
            return None;
        }
        if self.later.is_empty() && start == self.prefix {
            self.prefix = end;
            return Some((start, end));
        }
        // The usual case: at or beyond the end of the last range.
        let first = match self.later.last() {
            Some(&(_, to)) if start > to => self.later.len(),
            _ => self.later.partition_point(|range| range.1 < start),
        };
        let mut last = first;
        let (mut from, mut to) = (start, end);
        let (mut new_from, mut new_to) = (start, end);
        while let Some(&(s, e)) = self.later.get(last)
            && s <= end
        {
            if s <= new_from {
                new_from = new_from.max(e);
            }
            if e >= new_to {
                new_to = new_to.min(s);
            }
            from = from.min(s);
            to = to.max(e);
            last += 1;
        }
        if new_from >= new_to {
            return None;
        }
        if from == self.prefix {
            self.prefix = to;
            self.later.drain(..last);
        } else if first == last {
            if self.later.len() >= limit {
                if first == self.later.len() {
                    return None;
                }
                self.later.pop();
            }
            self.later.insert(first, (start, end));
        } else {
            self.later[first] = (from, to);
            self.later.drain(first + 1..last);
        }
        Some((new_from, new_to))
    }

    /// Where gaps between what is here end, highest first.
    pub(super) fn gap_ends(&self) -> impl Iterator<Item = u64> + '_ {
        self.later.iter().rev().map(|range| range.0)
    }

    /// Whether any byte of `start..end` is missing.
    pub(super) fn lacks(&self, start: u64, end: u64) -> bool {
        let start = start.max(self.prefix);
        if start >= end {
            return false;
        }
        let at = self.later.partition_point(|range| range.1 <= start);
        self.later.get(at).is_none_or(|range| range.0 > start || range.1 < end)
    }

    /// What is missing below `edge`, lowest first.
    pub(super) fn gaps(&self, edge: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let starts = core::iter::once(self.prefix).chain(self.later.iter().map(|range| range.1));
        let ends = self.later.iter().map(|range| range.0).chain(core::iter::once(u64::MAX));
        starts.zip(ends).map(move |(from, to)| (from, to.min(edge))).filter(|(from, to)| from < to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Against a bitmap.
        #[test]
        fn agree_with_a_bitmap(
            at in 0_u64..8,
            steps in prop::collection::vec((0_u64..60, 1_u64..12), 1..60),
            edge in 0_u64..80,
        ) {
            let mut ranges = Ranges::starting(at);
            let mut bitmap = [false; 80];
            bitmap[..at as usize].fill(true);
            for (start, len) in steps {
                let cells = start as usize..(start + len) as usize;
                let first = cells.clone().find(|cell| !bitmap[*cell]);
                let last = cells.clone().rfind(|cell| !bitmap[*cell]);
                let before = ranges.later.clone();
                match ranges.insert(start, start + len, 6) {
                    Some((from, to)) => {
                        if before.len() == 6 && ranges.later.last() != before.last()
                            && ranges.prefix < before[5].0
                            && ranges.later.last().is_none_or(|last| last.1 < before[5].0)
                        {
                            prop_assert!(to < before[5].0, "a lower one instead of the last");
                            bitmap[before[5].0 as usize..before[5].1 as usize].fill(false);
                        }
                        prop_assert_eq!(Some(from as usize), first);
                        prop_assert_eq!(Some(to as usize - 1), last);
                        bitmap[cells].fill(true);
                    }
                    None => prop_assert!(first.is_none() || ranges.len() == 6, "refused only when full"),
                }
                prop_assert!(ranges.later.windows(2).all(|pair| pair[0].1 < pair[1].0));
                prop_assert!(ranges.later.first().is_none_or(|range| range.0 > ranges.prefix));
            }
            let gaps: Vec<_> = ranges.gaps(edge).collect();
            for from in 0..80 {
                for to in from..80 {
                    prop_assert_eq!(ranges.lacks(from as u64, to as u64), bitmap[from..to].contains(&false));
                }
            }
            for (cell, here) in (0..).zip(bitmap) {
                let missing = gaps.iter().any(|gap| (gap.0..gap.1).contains(&cell));
                prop_assert_eq!(missing, !here && cell < edge);
            }
            prop_assert_eq!(ranges.prefix() as usize, bitmap.iter().position(|here| !here).unwrap_or(80));
        }
    }
}
