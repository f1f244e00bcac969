//! How an image is divided into the chunks and blocks of a session.

use std::sync::Arc;

use rackweave_wire::frisbee::{BLOCK_BYTES, CHUNK_BLOCKS};

use crate::Shape;

/// The number of blocks of each chunk of an image.
///
/// Frisbee's images consist of chunks of 1 MiB, which are padded. Chunks of other images have lengths of their own, which their
/// manifest names: a block that both ends know to be padding is not sent. Only the end of a chunk's last block is padded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Even(Shape),
    /// The number of blocks of each chunk, and of all.
    Each(Arc<[u16]>, u64),
}

impl Layout {
    /// Returns the layout of an image whose chunks have the same length, which is that of Frisbee's.
    #[must_use]
    pub const fn even(image: Shape) -> Self {
        Self(Kind::Even(image))
    }

    /// Returns the layout of chunks with these lengths in bytes. `None` if there is none, or one does not fit a chunk of
    /// Frisbee's, which has 1 MiB.
    #[must_use]
    pub fn of_lengths(lengths: impl Iterator<Item = u32>) -> Option<Self> {
        let blocks = |bytes: u32| {
            let blocks = bytes.div_ceil(BLOCK_BYTES);
            if blocks > CHUNK_BLOCKS { None } else { u16::try_from(blocks).ok() }
        };
        let each: Option<Arc<[u16]>> = lengths.map(blocks).collect();
        let each = each.filter(|each| !each.is_empty())?;
        let all = each.iter().map(|blocks| u64::from(*blocks)).sum();
        Some(Self(Kind::Each(each, all)))
    }

    /// Returns the number of chunks: at least 1.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        match &self.0 {
            Kind::Even(image) => image.chunks(),
            Kind::Each(each, _) => each.len() as u32,
        }
    }

    /// Returns the number of blocks of a chunk; 0 if it does not exist.
    #[must_use]
    pub fn blocks_of(&self, chunk: u32) -> u32 {
        match &self.0 {
            Kind::Even(image) => image.len_of(chunk).div_ceil(BLOCK_BYTES),
            Kind::Each(each, _) => each.get(chunk as usize).copied().map_or(0, u32::from),
        }
    }

    /// Returns the number of blocks of the image, by which the reply to a JOIN names it.
    #[must_use]
    pub const fn blocks(&self) -> u64 {
        match &self.0 {
            Kind::Even(image) => image.bytes().div_ceil(BLOCK_BYTES as u64),
            Kind::Each(_, all) => *all,
        }
    }

    /// Returns the length of the image in bytes, by which the reply to a JOIN2 names it.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        match &self.0 {
            Kind::Even(image) => image.bytes(),
            Kind::Each(_, all) => *all * BLOCK_BYTES as u64,
        }
    }

    /// Returns whether a client that knows only the number of blocks knows the layout, or has it from elsewhere.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        match &self.0 {
            Kind::Even(image) => image.bytes().is_multiple_of(image.chunk_bytes() as u64),
            Kind::Each(..) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_different_lengths_have_only_the_blocks_that_they_need() {
        let layout = Layout::of_lengths([0, 1, 1024, 1025, 1 << 20].into_iter()).unwrap();
        assert_eq!([0, 1, 2, 3, 4, 5].map(|chunk| layout.blocks_of(chunk)), [0, 1, 1, 2, 1024, 0]);
        assert_eq!((layout.chunks(), layout.blocks()), (5, 1028));
        assert_eq!(Layout::of_lengths([5, (1 << 20) + 1].into_iter()), None);
        assert_eq!(Layout::of_lengths(std::iter::empty()), None);
        let even = Layout::even(Shape::new(5 << 19, Shape::FRISBEE_CHUNK).unwrap());
        assert_eq!((even.chunks(), even.blocks_of(2), even.is_plain()), (3, 512, false));
    }
}
