//! Sets of block numbers.

/// A set of the blocks of one file, as a bitmap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSet {
    words: Vec<u64>,
    blocks: u64,
    count: u64,
}

impl BlockSet {
    /// Creates the empty set for a file with this number of blocks.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        Self { words: vec![0; blocks.div_ceil(64) as usize], blocks, count: 0 }
    }

    /// Returns the number of blocks in the set.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.count
    }

    /// Returns whether the set contains no block.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns whether the set contains all blocks of the file.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.count == self.blocks
    }

    /// Returns whether the set contains a block; false for a block beyond the end of the file.
    #[must_use]
    pub fn contains(&self, block: u64) -> bool {
        let word = usize::try_from(block / 64).ok().and_then(|index| self.words.get(index));
        word.is_some_and(|word| word >> (block % 64) & 1 == 1)
    }

    /// Adds a block of the file; returns whether it is new.
    pub fn insert(&mut self, block: u64) -> bool {
        let new = block < self.blocks && !self.contains(block);
        if new {
            self.words[(block / 64) as usize] |= 1 << (block % 64);
            self.count += 1;
        }
        new
    }

    /// Iterates over the blocks that are not in the set, in ascending order.
    pub fn missing(&self) -> impl Iterator<Item = u64> + '_ {
        let words = self.words.iter().zip((0..).step_by(64));
        words
            .filter(|(word, _)| **word != u64::MAX)
            .flat_map(|(word, first)| {
                (first..first + 64).filter(move |b| word >> (b % 64) & 1 == 0)
            })
            .take_while(|block| *block < self.blocks)
    }
}
