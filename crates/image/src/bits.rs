//! Sets of chunk numbers.

/// A set of chunks of one image, as a bitmap. Bit `i % 8` of byte `i / 8` stands for chunk `i`, which is the order of
/// bits in Frisbee's messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkSet {
    bytes: Vec<u8>,
    chunks: u32,
    count: u32,
}

impl ChunkSet {
    /// Creates the empty set for an image with this number of chunks.
    #[must_use]
    pub fn new(chunks: u32) -> Self {
        Self { bytes: vec![0; chunks.div_ceil(8) as usize], chunks, count: 0 }
    }

    /// Returns the number of chunks in the set.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.count
    }

    /// Returns whether the set contains no chunk.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns whether the set contains all chunks of the image.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.count == self.chunks
    }

    /// Returns whether the set contains a chunk; false for one beyond the end of the image.
    #[must_use]
    pub fn contains(&self, chunk: u32) -> bool {
        self.bytes.get(chunk as usize / 8).is_some_and(|byte| byte >> (chunk % 8) & 1 == 1)
    }

    /// Adds a chunk of the image; returns whether it is new.
    pub fn insert(&mut self, chunk: u32) -> bool {
        let new = chunk < self.chunks && !self.contains(chunk);
        if new {
            self.bytes[chunk as usize / 8] |= 1 << (chunk % 8);
            self.count += 1;
        }
        new
    }

    /// Iterates over the chunks that are not in the set, in ascending order.
    pub fn missing(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.chunks).filter(|chunk| !self.contains(*chunk))
    }

    /// Returns the bitmap; bits beyond the last chunk are zero.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::ChunkSet;

    #[test]
    fn a_set_holds_chunks_of_its_image_only() {
        let mut set = ChunkSet::new(10);
        assert!(set.is_empty() && !set.is_full());
        assert!(set.insert(9) && set.insert(0) && !set.insert(9) && !set.insert(10));
        assert_eq!((set.len(), set.as_bytes()), (2, &[1, 2][..]));
        assert!(set.contains(9) && !set.contains(1) && !set.contains(1000));
        assert!(set.missing().eq(1..9));
        for chunk in 0..10 {
            set.insert(chunk);
        }
        assert!(set.is_full() && set.missing().next().is_none());
        assert!(ChunkSet::new(0).is_full());
    }
}
