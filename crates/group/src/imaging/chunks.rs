//! Sets of chunks, and their windows in reports.

use rackweave_wire::frisbee::{REPORT_CHUNKS, REPORT_MAP_BYTES};

/// A set of the chunks of one image.
#[derive(Clone, PartialEq, Eq)]
pub struct ChunkSet {
    words: Vec<u64>,
    /// The number of chunks that the image has.
    chunks: u32,
    /// The number of members.
    len: u32,
}

impl ChunkSet {
    /// The empty set for an image with this number of chunks.
    #[must_use]
    pub fn new(chunks: u32) -> Self {
        Self { words: vec![0; chunks.div_ceil(64) as usize], chunks, len: 0 }
    }

    /// Returns the number of chunks that the image has.
    #[must_use]
    pub const fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Returns the number of members.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether the set has no members.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether all chunks are members.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.len == self.chunks
    }

    /// Returns whether the chunk is a member.
    #[must_use]
    #[inline]
    pub fn contains(&self, chunk: u32) -> bool {
        chunk < self.chunks && self.words[chunk as usize / 64] >> (chunk % 64) & 1 == 1
    }

    /// Adds a chunk; returns whether it is new. A chunk that the image does not have is not added.
    pub fn insert(&mut self, chunk: u32) -> bool {
        let is_new = chunk < self.chunks && !self.contains(chunk);
        if is_new {
            self.words[chunk as usize / 64] |= 1 << (chunk % 64);
            self.len += 1;
        }
        is_new
    }

    /// Removes a chunk; returns whether it was a member.
    pub fn remove(&mut self, chunk: u32) -> bool {
        let was = self.contains(chunk);
        if was {
            self.words[chunk as usize / 64] &= !(1 << (chunk % 64));
            self.len -= 1;
        }
        was
    }

    /// Returns the members in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(index, &word)| {
            let mut rest = word;
            core::iter::from_fn(move || {
                (rest != 0).then(|| {
                    let bit = rest.trailing_zeros();
                    rest &= rest - 1;
                    index as u32 * 64 + bit
                })
            })
        })
    }

    /// Returns the number of windows that reports divide an image with this number of chunks into.
    #[must_use]
    pub const fn windows(chunks: u32) -> u32 {
        chunks.div_ceil(REPORT_CHUNKS)
    }

    /// Returns the window in which a chunk is.
    #[must_use]
    pub const fn window_of(chunk: u32) -> u32 {
        chunk / REPORT_CHUNKS
    }

    /// Returns the bitmap of a window, as in a report; empty beyond the image's end.
    #[must_use]
    pub fn window(&self, window: u32) -> [u8; REPORT_MAP_BYTES as usize] {
        let mut map = [0; REPORT_MAP_BYTES as usize];
        let words = REPORT_MAP_BYTES as usize / 8;
        let first = (window as usize).saturating_mul(words);
        let own = self.words.get(first..).unwrap_or_default();
        for (bytes, word) in map.chunks_exact_mut(8).zip(own) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        map
    }

    /// Replaces a window by the bitmap of a report, and calls `changed` for each chunk that is new (true) or gone. Bits of
    /// chunks that the image does not have are ignored, and bytes that a shorter map lacks count as zero.
    pub fn set_window(&mut self, window: u32, map: &[u8], mut changed: impl FnMut(u32, bool)) {
        let words = REPORT_MAP_BYTES as usize / 8;
        let first = (window as usize).saturating_mul(words);
        let all = self.words.len();
        for index in first..all.min(first.saturating_add(words)) {
            let mut bytes = [0; 8];
            for (byte, from) in bytes.iter_mut().zip(map.iter().skip((index - first) * 8)) {
                *byte = *from;
            }
            let mut new = u64::from_le_bytes(bytes);
            if index + 1 == all && !self.chunks.is_multiple_of(64) {
                new &= (1 << (self.chunks % 64)) - 1;
            }
            let old = core::mem::replace(&mut self.words[index], new);
            self.len = self.len + new.count_ones() - old.count_ones();
            let mut different = old ^ new;
            while different != 0 {
                let bit = different.trailing_zeros();
                different &= different - 1;
                changed(index as u32 * 64 + bit, new >> bit & 1 == 1);
            }
        }
    }
}

impl core::fmt::Debug for ChunkSet {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} of {} chunks", self.len, self.chunks)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bits_are_those_of_the_report() {
        let mut set = ChunkSet::new(8_192 + 3);
        for chunk in [0, 9, 8_191, 8_194] {
            assert!(set.insert(chunk));
        }
        assert!(!set.insert(9) && !set.insert(8_195));
        assert_eq!(
            (set.len(), ChunkSet::windows(set.chunks()), ChunkSet::window_of(8_194)),
            (4, 2, 1)
        );
        let first = set.window(0);
        assert_eq!((first[0], first[1], first[1_023]), (1, 2, 0x80));
        assert_eq!(set.window(1)[0], 4);
        assert_eq!(set.window(2), [0; 1_024]);
        assert_eq!(set.window(u32::MAX), [0; 1_024]);
        assert!(set.remove(9) && !set.remove(9));
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 8_191, 8_194]);
    }

    #[test]
    fn a_report_cannot_add_chunks_that_do_not_exist() {
        let mut set = ChunkSet::new(8_192 + 3);
        let mut changes = Vec::new();
        set.set_window(1, &[0xff; 1_024], |chunk, held| changes.push((chunk, held)));
        assert_eq!(changes, [(8_192, true), (8_193, true), (8_194, true)]);
        assert_eq!(set.len(), 3);
        set.set_window(7, &[0xff; 1_024], |_, _| panic!("there is no such window"));
        set.set_window(1, &[], |_, held| assert!(!held));
        assert!(set.is_empty());
    }

    proptest! {
        #[test]
        fn windows_copy_a_set(
            chunks in 1_u32..20_000,
            members in prop::collection::vec(0_u32..20_000, 0..200),
            others in prop::collection::vec(0_u32..20_000, 0..200),
        ) {
            let (mut set, mut copy) = (ChunkSet::new(chunks), ChunkSet::new(chunks));
            for chunk in members { set.insert(chunk); }
            for chunk in others { copy.insert(chunk); }
            let mut expected: Vec<u32> = copy.iter().filter(|chunk| !set.contains(*chunk)).collect();
            expected.extend(set.iter().filter(|chunk| !copy.contains(*chunk)));
            let mut changes = Vec::new();
            for window in 0..ChunkSet::windows(chunks) {
                copy.set_window(window, &set.window(window), |chunk, _| changes.push(chunk));
            }
            expected.sort_unstable();
            prop_assert_eq!(changes, expected);
            prop_assert_eq!(&copy, &set);
            prop_assert_eq!(copy.iter().count(), copy.len() as usize);
        }
    }
}
