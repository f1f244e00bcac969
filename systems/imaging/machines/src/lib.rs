//! Disk imaging: one image on many hosts, while its server sends as little of it as possible (`docs/protocols/swp2p.md`).
//!
//! - [`Shape`]: how an image is divided; [`order`]: in which order clients ask for them.
//! - [`intake`]: how long a client takes to expand and write what it has received.
//! - [`frisbee`]: the multicast system of Hibler et al. (USENIX 2003), the baseline; [`multicast`]: how switches copy its packets to the
//!   members of a session.
//! - [`p2p`]: SWP2P, whose clients serve each other; [`directory`]: who has which chunk; [`switch`] and [`system`]: how switches
//!   redirect requests.
//! - [`packet`]: packets in the simulator; [`node`] and [`p2p::node`]: the machines as nodes there.

pub mod directory;
pub mod frisbee;
pub mod intake;
pub mod multicast;
pub mod node;
pub mod order;
pub mod p2p;
pub mod packet;
pub mod switch;
pub mod system;

/// The division of an image into chunks. All have the same length, except the last, which may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    bytes: u64,
    chunk_bytes: u32,
}

impl Shape {
    /// The length of Frisbee's chunks.
    pub const FRISBEE_CHUNK: u32 =
        rackweave_wire::frisbee::BLOCK_BYTES * rackweave_wire::frisbee::CHUNK_BLOCKS;

    /// The most chunks of an image: their numbers are positive 32-bit integers in packets.
    pub const MAX_CHUNKS: u32 = 1 << 31;

    /// Divides an image. `None` if it is empty, has no chunk length or has more than [`Shape::MAX_CHUNKS`].
    #[must_use]
    pub const fn new(bytes: u64, chunk_bytes: u32) -> Option<Self> {
        if bytes == 0 || chunk_bytes == 0 {
            return None;
        }
        if bytes.div_ceil(chunk_bytes as u64) > Self::MAX_CHUNKS as u64 {
            return None;
        }
        Some(Self { bytes, chunk_bytes })
    }

    /// Returns the length of the image in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Returns the length in bytes of each chunk but the last.
    #[must_use]
    pub const fn chunk_bytes(self) -> u32 {
        self.chunk_bytes
    }

    /// Returns the number of chunks: at least 1.
    #[must_use]
    pub const fn chunks(self) -> u32 {
        self.bytes.div_ceil(self.chunk_bytes as u64) as u32
    }

    /// Returns where a chunk begins in the image, in bytes.
    #[must_use]
    pub const fn offset(self, chunk: u32) -> u64 {
        chunk as u64 * self.chunk_bytes as u64
    }

    /// Returns the length of a chunk in bytes; 0 beyond the end.
    #[must_use]
    pub const fn len_of(self, chunk: u32) -> u32 {
        let left = self.bytes.saturating_sub(self.offset(chunk));
        if left < self.chunk_bytes as u64 { left as u32 } else { self.chunk_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_chunk_may_be_short() {
        let shape = Shape::new(2_500, 1_000).unwrap();
        assert_eq!(shape.chunks(), 3);
        assert_eq!([0, 1, 2, 3].map(|chunk| shape.len_of(chunk)), [1_000, 1_000, 500, 0]);
        assert_eq!(shape.offset(2), 2_000);
        let even = Shape::new(2_000, 1_000).unwrap();
        assert_eq!((even.chunks(), even.len_of(1)), (2, 1_000));
        assert_eq!(Shape::FRISBEE_CHUNK, 1 << 20);
    }

    #[test]
    fn what_cannot_be_divided_is_refused() {
        assert_eq!(Shape::new(0, 1_000), None);
        assert_eq!(Shape::new(1_000, 0), None);
        assert_eq!(Shape::new((1 << 31) + 1, 1), None);
        assert!(Shape::new(1 << 31, 1).is_some());
        assert!(Shape::new(u64::MAX, u32::MAX).is_none());
    }
}
