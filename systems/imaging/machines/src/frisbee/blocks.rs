//! Sets of the blocks of one chunk.

use rackweave_wire::frisbee::{CHUNK_BLOCKS, CHUNK_MAP_BYTES};

const WORDS: usize = CHUNK_BLOCKS as usize / 64;

/// A set of the blocks of a chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    words: [u64; WORDS],
}

/// Consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first block.
    pub block: u32,
    /// The number of blocks.
    pub count: u32,
}

impl Run {
    /// Returns the block after the last one.
    #[must_use]
    pub const fn end(self) -> u32 {
        self.block + self.count
    }
}

impl Blocks {
    /// The set without members.
    pub const EMPTY: Self = Self { words: [0; WORDS] };

    /// Returns the set of these blocks, as far as a chunk has them.
    #[must_use]
    pub fn of(run: Run) -> Self {
        let mut words = [0; WORDS];
        for (index, word) in words.iter_mut().enumerate() {
            *word = Self::mask(run, index);
        }
        Self { words }
    }

    /// The bits of `run` in the word with this index.
    fn mask(run: Run, index: usize) -> u64 {
        let first = index as u32 * 64;
        let from = run.block.max(first);
        let to = run.block.saturating_add(run.count).min(first + 64);
        if from >= to {
            return 0;
        }
        let len = to - from;
        (u64::MAX >> (64 - len)) << (from - first)
    }

    /// Reads a bitmap: bit i is bit i % 8 of byte i / 8. Bytes that are missing count as zero.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut map = [0; CHUNK_MAP_BYTES as usize];
        for (to, from) in map.iter_mut().zip(bytes) {
            *to = *from;
        }
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(map.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Self { words }
    }

    /// Returns the set as a bitmap.
    #[must_use]
    pub fn to_bytes(self) -> [u8; CHUNK_MAP_BYTES as usize] {
        let mut map = [0; CHUNK_MAP_BYTES as usize];
        for (bytes, word) in map.chunks_exact_mut(8).zip(self.words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        map
    }

    /// Returns the number of members.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Returns whether the block is a member.
    #[must_use]
    #[inline]
    pub const fn contains(&self, block: u32) -> bool {
        block < CHUNK_BLOCKS && self.words[block as usize / 64] >> (block % 64) & 1 == 1
    }

    /// Adds a block; returns whether it is new and exists.
    #[inline]
    pub const fn insert(&mut self, block: u32) -> bool {
        let is_new = block < CHUNK_BLOCKS && !self.contains(block);
        if is_new {
            self.words[block as usize / 64] |= 1 << (block % 64);
        }
        is_new
    }

    /// Returns whether all of these blocks are members.
    #[must_use]
    pub fn contains_run(&self, run: Run) -> bool {
        let words = self.words.iter().enumerate();
        words.into_iter().all(|(index, word)| {
            let mask = Self::mask(run, index);
            word & mask == mask
        })
    }

    /// Adds all members of the other set; returns the number of new ones.
    pub fn merge(&mut self, other: &Self) -> u32 {
        let before = self.count();
        for (word, more) in self.words.iter_mut().zip(other.words) {
            *word |= more;
        }
        self.count() - before
    }

    /// Returns the blocks below `limit` that are not members.
    #[must_use]
    pub fn missing(&self, limit: u32) -> Self {
        let mut missing = Self::of(Run { block: 0, count: limit });
        for (word, have) in missing.words.iter_mut().zip(self.words) {
            *word &= !have;
        }
        missing
    }

    /// Removes the members from `limit` on.
    pub fn truncate(&mut self, limit: u32) {
        *self = Self::EMPTY.missing(limit).intersection(self);
    }

    fn intersection(&self, other: &Self) -> Self {
        let mut both = *self;
        for (word, more) in both.words.iter_mut().zip(other.words) {
            *word &= more;
        }
        both
    }

    /// Returns the lowest member.
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        let index = self.words.iter().position(|word| *word != 0)?;
        Some(index as u32 * 64 + self.words[index].trailing_zeros())
    }

    /// Removes the first members that follow each other, and returns them.
    pub fn take_run(&mut self) -> Option<Run> {
        let block = self.first()?;
        let mut end = block;
        while self.contains(end) {
            self.words[end as usize / 64] &= !(1 << (end % 64));
            end += 1;
        }
        Some(Run { block, count: end - block })
    }
}

impl core::fmt::Debug for Blocks {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut rest = *self;
        f.debug_set()
            .entries(core::iter::from_fn(|| rest.take_run().map(|run| run.block..run.end())))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #[test]
        fn sets_of_blocks_are_sets(
            ones in prop::collection::btree_set(0_u32..1024, 0..300),
            others in prop::collection::btree_set(0_u32..1024, 0..300),
            block in 0_u32..1024, count in 0_u32..1100, limit in 0_u32..1100,
        ) {
            let of = |members: &std::collections::BTreeSet<u32>| {
                let mut set = Blocks::EMPTY;
                members.iter().for_each(|block| assert!(set.insert(*block)));
                set
            };
            let (one, mut both) = (of(&ones), of(&others));
            prop_assert_eq!(Blocks::from_bytes(&one.to_bytes()), one);
            prop_assert_eq!(both.merge(&one) as usize, ones.difference(&others).count());
            prop_assert_eq!(both.count() as usize, ones.union(&others).count());
            let run = Run { block, count: count.min(1024 - block) };
            prop_assert_eq!(one.contains_run(run), (block..run.end()).all(|b| ones.contains(&b)));
            prop_assert_eq!(Blocks::of(run).count(), run.count);
            let missing = one.missing(limit);
            prop_assert_eq!(missing.count(), (0..limit.min(1024)).filter(|b| !ones.contains(b)).count() as u32);
            let mut short = one;
            short.truncate(limit);
            prop_assert_eq!(short.count() as usize, ones.range(..limit).count());
            let mut rest = one;
            let mut taken = Vec::new();
            while let Some(run) = rest.take_run() {
                taken.extend(run.block..run.end());
                prop_assert_eq!(ones.contains(&run.end()), false);
            }
            prop_assert_eq!(taken, ones.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn blocks_beyond_a_chunk_are_not_added() {
        let mut set = Blocks::of(Run { block: 1000, count: u32::MAX });
        assert_eq!((set.count(), set.insert(1024), set.contains(4000)), (24, false, false));
        assert_eq!(format!("{set:?}"), "{1000..1024}");
    }
}
