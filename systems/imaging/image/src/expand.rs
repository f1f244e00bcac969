//! Stored chunks to writes of the expanded image, and back.

use std::io;

use zstd::bulk::{Compressor, Decompressor};

use crate::manifest::{Codec, Extent, Hash, Manifest, NewChunk};
use crate::ndz;

/// Why a chunk is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum ChunkError {
    /// The image has fewer chunks.
    #[error("the image has no such chunk")]
    Unknown,
    /// The stored bytes have another length than the index requires.
    #[error("it has {found} bytes instead of {expected}")]
    Length {
        /// The length in the index.
        expected: u32,
        /// The length of the bytes.
        found: usize,
    },
    /// The stored bytes do not have the hash in the index.
    #[error("it is damaged: its bytes do not have the hash in the index")]
    Hash,
    /// The stored bytes cannot be decompressed.
    #[error("it cannot be decompressed: {0}")]
    Compressed(&'static str),
    /// The expanded bytes do not have the content hash in the index.
    #[error("its expanded content does not have the hash in the index")]
    Content,
    /// It is not an acceptable chunk of an `.ndz` file.
    #[error("{0}")]
    Ndz(String),
    /// What receives the expanded bytes refused them.
    #[error("{0}")]
    Sink(io::Error),
}

/// A piece of an expanded chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// These bytes, at most 16 MiB.
    Data(&'a [u8]),
    /// This number of zeros.
    Zero(u64),
}

/// What the identity of a chunk's content is of (the context of BLAKE3's key derivation).
const CONTENT: &str = "rackweave image 2026 content of a chunk, version 1";

/// Computes the identity of a chunk's content from its extents and then the data in them.
pub(crate) fn content_hasher(extents: &[Extent]) -> blake3::Hasher {
    let mut hasher = blake3::Hasher::new_derive_key(CONTENT);
    hasher.update(&(extents.len() as u64).to_le_bytes());
    for extent in extents {
        hasher.update(&extent.start.to_le_bytes());
        hasher.update(&extent.len.to_le_bytes());
        hasher.update(&[u8::from(extent.zero)]);
    }
    hasher
}

/// Compresses the data of a chunk: in one zstd frame if that is shorter, otherwise not at all. Returns how, and the
/// stored bytes, which are either `data` or in `room`.
pub(crate) fn compress<'a>(
    compressor: &mut Compressor<'_>,
    data: &'a [u8],
    room: &'a mut Vec<u8>,
) -> (Codec, &'a [u8]) {
    if data.is_empty() {
        return (Codec::Empty, data);
    }
    // With less room zstd may fail although the result would fit, so the result would depend on the capacity.
    room.clear();
    room.reserve(zstd::zstd_safe::compress_bound(data.len()));
    match compressor.compress_to_buffer(data, room) {
        Ok(len) if len < data.len() => (Codec::Zstd, &room[..len]),
        _ => (Codec::Raw, data),
    }
}

impl NewChunk {
    /// Describes a chunk of Rackweave's format.
    pub(crate) fn new(codec: Codec, stored: &[u8], extents: Vec<Extent>, data: &[u8]) -> Self {
        let content = *content_hasher(&extents).update(data).finalize().as_bytes();
        let hash = *blake3::hash(stored).as_bytes();
        Self { codec, stored: stored.len() as u32, hash, content, extents }
    }
}

/// Makes the stored bytes of a chunk from its data, for a server that has the expanded image only. Returns `None` if
/// they differ from those in the manifest, as they may if another version of zstd made the image; and for `.ndz`.
///
/// # Errors
/// If zstd cannot be initialised.
pub fn recompress(manifest: &Manifest, chunk: u32, data: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let level = i32::from(manifest.head().level);
    if level == 0 {
        return Ok(None);
    }
    if manifest.chunk(chunk).is_some_and(|it| it.codec == Codec::Raw) {
        return Ok(manifest.verify_chunk(chunk, data).is_ok().then(|| data.to_vec()));
    }
    let mut room = Vec::new();
    let (_, stored) = compress(&mut Compressor::new(level)?, data, &mut room);
    Ok(manifest.verify_chunk(chunk, stored).is_ok().then(|| stored.to_vec()))
}

/// Expands stored chunks. It keeps its buffers from chunk to chunk, at most 16 MiB (64 MiB for `.ndz` chunks with
/// relocations).
pub struct Expander {
    decompressor: Decompressor<'static>,
    data: Vec<u8>,
    partition_start: u64,
}

impl std::fmt::Debug for Expander {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Expander")
            .field("partition_start", &self.partition_start)
            .finish_non_exhaustive()
    }
}

impl Expander {
    /// Creates an expander.
    ///
    /// # Errors
    /// If there is no memory for zstd's state.
    pub fn new() -> io::Result<Self> {
        Ok(Self { decompressor: Decompressor::new()?, data: Vec::new(), partition_start: 0 })
    }

    /// Sets the sector of the disk at which the target partition starts. Relocations of `.ndz` chunks, such as LILO's
    /// sector addresses, are relative to it; the default is 0.
    #[must_use]
    pub const fn partition_start(mut self, sector: u64) -> Self {
        self.partition_start = sector;
        self
    }

    /// Expands a chunk, and passes all its pieces with their offsets in the image, in ascending order. They are exactly the
    /// extents in the manifest, so none lies outside of the image. Call [`Manifest::verify_chunk`] first.
    ///
    /// The content is checked before the first piece is passed; that of `.ndz` chunks, which may be much larger than
    /// memory, while pieces are passed.
    ///
    /// # Errors
    /// If the stored bytes do not expand to the content in the manifest, or the sink fails.
    pub fn expand(
        &mut self,
        manifest: &Manifest,
        chunk: u32,
        stored: &[u8],
        sink: &mut dyn FnMut(u64, Piece<'_>) -> io::Result<()>,
    ) -> Result<(), ChunkError> {
        self.expand_checked(manifest, chunk, stored, true, sink)
    }

    /// Like [`Self::expand`], but does not compute the hash of a raw chunk's content: the stored bytes are the content, and their hash was
    /// verified. A manifest in which the two hashes contradict each other is found by [`Image::verify`](crate::Image::verify).
    pub(crate) fn expand_verified(
        &mut self,
        manifest: &Manifest,
        chunk: u32,
        stored: &[u8],
        sink: &mut dyn FnMut(u64, Piece<'_>) -> io::Result<()>,
    ) -> Result<(), ChunkError> {
        self.expand_checked(manifest, chunk, stored, false, sink)
    }

    fn expand_checked(
        &mut self,
        manifest: &Manifest,
        chunk: u32,
        stored: &[u8],
        checks_raw: bool,
        sink: &mut dyn FnMut(u64, Piece<'_>) -> io::Result<()>,
    ) -> Result<(), ChunkError> {
        let described = manifest.chunk(chunk).ok_or(ChunkError::Unknown)?;
        let extents = manifest.extents(chunk);
        let data = match described.codec {
            Codec::Ndz => return self.expand_ndz(stored, extents, &described.content, sink),
            Codec::Empty => &[],
            Codec::Raw => stored,
            // The manifest's decoder has limited it to the size of a chunk.
            Codec::Zstd => self.decompress(stored, manifest.data(chunk) as usize)?,
        };
        if data.len() as u64 != manifest.data(chunk) {
            return Err(ChunkError::Compressed("its data are too short or too long"));
        }
        let is_checked = checks_raw || described.codec != Codec::Raw;
        if is_checked
            && *content_hasher(extents).update(data).finalize().as_bytes() != described.content
        {
            return Err(ChunkError::Content);
        }
        let mut rest = data;
        for extent in extents {
            let piece = match extent.zero {
                true => Piece::Zero(extent.len),
                false => {
                    let (now, later) = rest.split_at(extent.len as usize);
                    rest = later;
                    Piece::Data(now)
                }
            };
            sink(extent.start, piece).map_err(ChunkError::Sink)?;
        }
        Ok(())
    }

    fn decompress(&mut self, stored: &[u8], len: usize) -> Result<&[u8], ChunkError> {
        self.data.clear();
        self.data.reserve_exact(len);
        let room = &mut self.data;
        let found = self.decompressor.decompress_to_buffer(stored, room);
        match found {
            Ok(found) if found == len => Ok(&self.data[..len]),
            Ok(_) => Err(ChunkError::Compressed("its data are too short or too long")),
            Err(_) => Err(ChunkError::Compressed("its bytes are not zstd, or expand too far")),
        }
    }

    fn expand_ndz(
        &mut self,
        stored: &[u8],
        extents: &[Extent],
        content: &Hash,
        sink: &mut dyn FnMut(u64, Piece<'_>) -> io::Result<()>,
    ) -> Result<(), ChunkError> {
        let header = ndz::ChunkHeader::decode(stored).map_err(ChunkError::Ndz)?;
        if header.extents().map_err(ChunkError::Ndz)? != extents {
            return Err(ChunkError::Ndz("its regions differ from the manifest's".to_owned()));
        }
        let mut hasher = content_hasher(extents);
        header.expand(stored, self.partition_start, &mut self.data, &mut |offset, bytes| {
            hasher.update(bytes);
            sink(offset, Piece::Data(bytes)).map_err(ChunkError::Sink)
        })?;
        // Relocation to another place changes the content as intended.
        let moved = self.partition_start != 0 && header.is_relocated();
        match moved || hasher.finalize().as_bytes() == content {
            true => Ok(()),
            false => Err(ChunkError::Content),
        }
    }
}
