//! Which bytes of a message have arrived.

use smallvec::SmallVec;

/// Arrived bytes: all before `prefix`, and some ranges after it.
///
/// In the common case, packets in order, it is one number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Received {
    prefix: u32,
    /// Sorted, disjoint, not touching each other nor the prefix.
    later: SmallVec<[(u32, u32); 3]>,
}

impl Received {
    /// Notes that `start..end` has arrived; returns how many of these bytes are new.
    ///
    /// A range that would make more than `max_ranges` separate ones is not taken (0): what a peer
    /// sends must not make the state grow without limit.
    #[inline]
    pub(crate) fn insert(&mut self, start: u32, end: u32, max_ranges: usize) -> u32 {
        if start <= self.prefix && self.later.is_empty() {
            let fresh = end.saturating_sub(self.prefix);
            self.prefix += fresh;
            return fresh;
        }
        self.insert_slow(start, end, max_ranges)
    }

    fn insert_slow(&mut self, start: u32, end: u32, max_ranges: usize) -> u32 {
        let start = start.max(self.prefix);
        if start >= end {
            return 0;
        }
        // Ranges first..last touch or overlap the new one.
        let first = self.later.partition_point(|&(_, to)| to < start);
        let last = first + self.later[first..].partition_point(|&(from, _)| from <= end);
        if first == last && start > self.prefix {
            if self.later.len() >= max_ranges {
                return 0;
            }
            self.later.insert(first, (start, end));
            return end - start;
        }
        let known: u32 = self.later[first..last]
            .iter()
            .map(|&(from, to)| to.min(end).saturating_sub(from.max(start)))
            .sum();
        let fresh = end - start - known;
        let (mut from, mut to) = (start, end);
        if first < last {
            from = from.min(self.later[first].0);
            to = to.max(self.later[last - 1].1);
        }
        if from <= self.prefix {
            self.prefix = to;
            self.later.drain(first..last);
        } else {
            self.later[first] = (from, to);
            self.later.drain(first + 1..last);
        }
        fresh
    }

    /// All before this one have arrived.
    #[inline]
    pub(crate) const fn prefix(&self) -> u32 {
        self.prefix
    }

    /// Counts from `by` bytes later on, of which all have arrived.
    pub(crate) fn rebase(&mut self, by: u32) {
        self.prefix -= by;
        for (from, to) in &mut self.later {
            *from -= by;
            *to -= by;
        }
    }

    /// Whether this one has arrived.
    #[inline]
    pub(crate) fn contains(&self, at: u32) -> bool {
        at < self.prefix || {
            let after = self.later.partition_point(|&(from, _)| from <= at);
            after > 0 && at < self.later[after - 1].1
        }
    }

    /// The first one from `start` on that has not arrived.
    pub(crate) fn first_missing(&self, start: u32) -> u32 {
        let start = start.max(self.prefix);
        let after = self.later.partition_point(|&(from, _)| from <= start);
        if after > 0 { start.max(self.later[after - 1].1) } else { start }
    }

    /// Gaps below `limit`, lowest first.
    pub(crate) fn gaps(&self, limit: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let starts = core::iter::once(self.prefix).chain(self.later.iter().map(|&(_, to)| to));
        let ends = self.later.iter().map(|&(from, _)| from).chain(core::iter::once(u32::MAX));
        starts
            .zip(ends)
            .map(move |(start, end)| (start, end.min(limit)))
            .filter(|(start, end)| start < end)
    }

    /// The first gap below `limit`.
    pub(crate) fn first_gap(&self, limit: u32) -> Option<(u32, u32)> {
        self.gaps(limit).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackweave_core::Rng;

    #[test]
    fn in_order_is_one_number() {
        let mut received = Received::default();
        assert_eq!(received.insert(0, 10, 8), 10);
        assert_eq!(received.insert(10, 20, 8), 10);
        assert_eq!(received.insert(5, 20, 8), 0);
        assert_eq!((received.prefix, received.later.len()), (20, 0));
        assert_eq!(received.first_gap(20), None);
        assert_eq!(received.first_gap(30), Some((20, 30)));
    }

    #[test]
    fn gaps_open_and_close() {
        let mut received = Received::default();
        assert_eq!(received.insert(10, 20, 8), 10);
        assert_eq!(received.insert(30, 40, 8), 10);
        assert_eq!(received.gaps(50).collect::<Vec<_>>(), [(0, 10), (20, 30), (40, 50)]);
        assert_eq!(received.gaps(25).collect::<Vec<_>>(), [(0, 10), (20, 25)]);
        assert_eq!(received.insert(5, 35, 8), 15);
        assert_eq!(received.gaps(50).collect::<Vec<_>>(), [(0, 5), (40, 50)]);
        assert_eq!(received.insert(0, 5, 8), 5);
        assert_eq!(received.first_gap(40), None);
    }

    #[test]
    fn the_number_of_ranges_is_limited() {
        let mut received = Received::default();
        for i in 1..1000 {
            received.insert(i * 2, i * 2 + 1, 4);
        }
        assert_eq!(received.later.len(), 4);
        assert_eq!(received.insert(0, 2, 4), 2, "a range that closes a gap is always taken");
    }

    #[test]
    fn agrees_with_a_bitmap() {
        let mut rng = Rng::stream(1, 0, 0, "ranges");
        for _ in 0..200 {
            let mut received = Received::default();
            let mut bitmap = [false; 64];
            for _ in 0..30 {
                let start = rng.below(64) as u32;
                let end = start + 1 + rng.below(u64::from(64 - start)) as u32;
                let end = end.min(start + 8);
                let slots = &mut bitmap[start as usize..end as usize];
                let fresh = slots.iter().filter(|known| !**known).count() as u32;
                slots.fill(true);
                assert_eq!(received.insert(start, end, usize::MAX), fresh);
                for (at, known) in bitmap.iter().enumerate() {
                    assert_eq!(received.contains(at as u32), *known);
                    let missing = (at..).find(|at| !bitmap.get(*at).unwrap_or(&false)).unwrap();
                    assert_eq!(received.first_missing(at as u32), missing as u32);
                }
                let missing: u32 = received.gaps(64).map(|(from, to)| to - from).sum();
                assert_eq!(missing as usize, bitmap.iter().filter(|known| !**known).count());
            }
        }
    }
}
