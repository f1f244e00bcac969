//! Which chunks of a file are sent. The others are holes: they read as zeros, and their hashes follow from that.

use std::ops::Range;

/// The most runs of chunks of a file.
pub const MAX_EXTENTS: usize = 1 << 16;

/// The length in bytes of an encoded run.
pub(super) const EXTENT_BYTES: usize = 8;

/// The chunks of a file that have content, as runs in ascending order with holes between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extents(Vec<Extent>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    first: u64,
    end: u64,
    /// The number of chunks in the runs before this one.
    before: u64,
}

impl Extents {
    /// Creates them from ranges of chunks in ascending order. Ranges that touch become one run. What follows the first
    /// [`MAX_EXTENTS`] runs counts as content, up to the end of the last range.
    #[must_use]
    pub fn new(ranges: impl Iterator<Item = Range<u64>>) -> Self {
        let mut runs: Vec<Extent> = Vec::new();
        for range in ranges.filter(|range| !range.is_empty()) {
            let is_full = runs.len() == MAX_EXTENTS;
            match runs.last_mut() {
                Some(last) if is_full || range.start <= last.end => {
                    last.end = last.end.max(range.end);
                }
                last => {
                    let before = last.map_or(0, |last| last.before + last.end - last.first);
                    runs.push(Extent { first: range.start, end: range.end, before });
                }
            }
        }
        Self(runs)
    }

    /// Returns the number of chunks with content.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.last().map_or(0, |last| last.before + last.end - last.first)
    }

    /// Returns the number of chunks with content before a chunk.
    #[must_use]
    pub fn rank(&self, chunk: u64) -> u64 {
        let run = self.0.partition_point(|run| run.first < chunk).checked_sub(1);
        run.and_then(|run| self.0.get(run))
            .map_or(0, |run| run.before + chunk.min(run.end) - run.first)
    }

    /// Returns the chunk with content that this many others precede; one behind the last run is a chunk that does not exist.
    #[must_use]
    pub fn nth(&self, rank: u64) -> u64 {
        let run = self.0.partition_point(|run| run.before <= rank).checked_sub(1);
        run.and_then(|run| self.0.get(run)).map_or(rank, |run| run.first + rank - run.before)
    }

    /// Returns whether a chunk has content.
    #[must_use]
    pub fn contains(&self, chunk: u64) -> bool {
        self.rank(chunk + 1) > self.rank(chunk)
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.0.len() as u32).to_be_bytes());
        for run in &self.0 {
            out.extend_from_slice(&(run.first as u32).to_be_bytes());
            out.extend_from_slice(&((run.end - run.first) as u32).to_be_bytes());
        }
    }

    /// Decodes runs of a file with this many chunks; `None` if they are not in order, or a hole between them is missing.
    pub(super) fn decode(bytes: &[u8], chunks: u64) -> Option<Self> {
        let (pairs, []) = bytes.as_chunks::<4>() else { return None };
        let (pairs, []) = pairs.as_chunks::<2>() else { return None };
        let mut end = None;
        for pair in pairs {
            let [first, len] = pair.map(|bytes| u64::from(u32::from_be_bytes(bytes)));
            if len == 0 || end.is_some_and(|end| first <= end) {
                return None;
            }
            end = Some(first + len);
        }
        if end.is_some_and(|end| end > chunks) || pairs.len() > MAX_EXTENTS {
            return None;
        }
        let ranges = pairs.iter().map(|pair| {
            let [first, len] = pair.map(|bytes| u64::from(u32::from_be_bytes(bytes)));
            first..first + len
        });
        Some(Self::new(ranges))
    }

    /// Returns the length in bytes of the encoded runs.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        4 + self.0.len() * EXTENT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranks_and_places_are_those_of_a_list(
            lengths in prop::collection::vec((0_u64..4, 1_u64..4), 0..9),
            noise in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut at = 0;
            let ranges = lengths.iter().map(|(hole, len)| {
                let first = at + hole;
                at = first + len;
                first..at
            });
            let ranges: Vec<_> = ranges.collect();
            let extents = Extents::new(ranges.iter().cloned());
            let list: Vec<u64> = ranges.into_iter().flatten().collect();
            prop_assert_eq!(extents.count(), list.len() as u64);
            for (rank, chunk) in (0..).zip(&list) {
                prop_assert_eq!((extents.nth(rank), extents.rank(*chunk)), (*chunk, rank));
            }
            for chunk in 0..at + 3 {
                prop_assert_eq!(extents.contains(chunk), list.contains(&chunk));
            }
            let mut bytes = Vec::new();
            extents.encode(&mut bytes);
            prop_assert_eq!(bytes.len(), extents.encoded_len());
            prop_assert_eq!(Extents::decode(&bytes[4..], at), Some(extents));
            if at > 0 {
                prop_assert_eq!(Extents::decode(&bytes[4..], at - 1), None);
            }
            if let Some(extents) = Extents::decode(&noise, 1 << 40) {
                let mut again = Vec::new();
                extents.encode(&mut again);
                prop_assert_eq!(&again[4..], &noise[..]);
            }
        }
    }

    #[test]
    fn too_many_runs_become_longer_ones() {
        let extents = Extents::new((0..1 << 17).map(|run| run * 2..run * 2 + 1));
        assert_eq!(extents.count(), (1 << 16) - 1 + (1 << 17) + 1);
        assert!(extents.contains((1 << 18) - 2) && !extents.contains((1 << 18) - 1));
    }
}
