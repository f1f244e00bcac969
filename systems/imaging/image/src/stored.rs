//! Chunks that were verified.

use bytes::Bytes;

use crate::{ChunkError, Manifest};

/// The stored bytes of a chunk whose hash is that of the manifest. Only such chunks may be written, counted or served, and there is
/// no other way to make one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredChunk {
    number: u32,
    bytes: Bytes,
}

impl StoredChunk {
    /// Checks the bytes of a chunk.
    ///
    /// # Errors
    /// If the image has no such chunk, or the bytes differ.
    pub fn verify(manifest: &Manifest, number: u32, bytes: Bytes) -> Result<Self, ChunkError> {
        manifest.verify_chunk(number, &bytes)?;
        Ok(Self { number, bytes })
    }

    /// Returns the number of the chunk.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Returns the stored bytes.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}
