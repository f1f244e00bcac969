//! The manifest: everything about an image except the bytes of its chunks.
//!
//! A file (`.rwi`) is a header, the stored chunks in ascending order without gaps, an index, and a
//! footer. The manifest, which a client gets first, is header, index and footer. There is exactly
//! one encoding of a manifest; any other is refused. All integers are little endian.
//!
//! Header, 512 bytes:
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 8 | `89 52 57 49 0d 0a 1a 0a` (`\x89RWI\r\n\x1a\n`) |
//! | 8 | 2 | version, 1 |
//! | 10 | 2 | format of chunks: 1 Rackweave; 2 `.ndz`, in manifests only |
//! | 12 | 4 | chunk size: bytes of the disk in a chunk (`.ndz`: 2^20) |
//! | 16 | 8 | size of the disk |
//! | 24 | 4 | number of chunks, at most 2^24 |
//! | 28 | 1 | level of zstd, 1 to 22 (`.ndz`: 0) |
//! | 29 | 1 | 1 if unused blocks were skipped, otherwise 0 |
//! | 30 | 2 | length of the name, at most 255 |
//! | 32 | 8 | offset of the index in the file (`.ndz`: 0) |
//! | 40 | 8 | length of the index |
//! | 48 | 4 | bytes of a logical sector of the disk, a power of two from 512 to 65536; 0 if it is not known |
//! | 52 | 12 | zeros |
//! | 64 | 448 | the name in UTF-8 without control characters, then zeros |
//!
//! Index, for each chunk:
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 8 | offset of the stored bytes in the file |
//! | 8 | 4 | length of the stored bytes |
//! | 12 | 1 | 0 nothing is stored, 1 the data, 2 one zstd frame, 3 a chunk of `.ndz` without padding |
//! | 13 | 1 | zero |
//! | 14 | 2 | number of extents |
//! | 16 | 32 | BLAKE3 of the stored bytes |
//! | 48 | 32 | identity of the content |
//! | 80 | 16 each | extents: start on the disk (8), length (8); bit 63 of the length marks zeros |
//!
//! Extents are in ascending order, within their chunk, and begin at multiples of 512. Bytes outside
//! all extents are unused; zeros are not stored. The data are the bytes of the other extents, one
//! after the other. Runs of zeros or unused blocks below 32 KiB between data are stored as zeros with
//! the data (Frisbee's limit, 64 sectors).
//!
//! Footer, 144 bytes:
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 32 | root: BLAKE3 key derivation of header and index, context `rackweave image 2026 root of header and index, version 1` |
//! | 32 | 8 | 1 if the image is signed, otherwise 0 and zeros in the next two fields |
//! | 40 | 32 | ed25519 public key |
//! | 72 | 64 | its signature of `rackweave image root, version 1`, a zero byte, and the root |
//! | 136 | 8 | `RWI end\n` |
//!
//! A receiver must check the hash of the *stored* bytes before it expands, keeps or serves them. The
//! identity of the *content* does not depend on compression, and so finds chunks that a client
//! already has. It is BLAKE3 key derivation, context
//! `rackweave image 2026 content of a chunk, version 1`, of the number of extents (8), for each
//! extent start (8), length (8) and a byte that is 1 for zeros, and then the data. The signature is
//! not part of the root.

mod codec;

use std::ops::Range;

pub(crate) use self::codec::{FOOTER, HEADER, MAGIC, RECORD};
use crate::{ChunkError, PublicKey, SecretKey};

/// A BLAKE3 hash.
pub type Hash = [u8; 32];

/// The smallest chunk of an image in Rackweave's format, in bytes.
pub const MIN_CHUNK: u32 = 64 << 10;

/// The largest chunk, in bytes.
pub const MAX_CHUNK: u32 = 16 << 20;

/// The largest number of chunks. Rackweave's choice: 16 TiB in chunks of 1 MiB.
pub(crate) const MAX_CHUNKS: u32 = 1 << 24;

/// The longest name, in bytes.
pub(crate) const MAX_NAME: usize = 255;

/// The largest image, in bytes, which is that of a file in Linux.
pub(crate) const MAX_SIZE: u64 = i64::MAX as u64;

/// The format of stored chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Rackweave's: chunk `i` holds what is at `i * chunk_size` in the expanded image, compressed by itself.
    Rackweave,
    /// Frisbee's: a chunk has at most 1 MiB as stored, and names the ranges of the disk that it holds.
    Ndz,
}

/// How the data of a chunk is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// The chunk has no data: it is not stored.
    Empty,
    /// The data of all extents, one after the other.
    Raw,
    /// The same in one zstd frame, which is shorter.
    Zstd,
    /// A chunk of an `.ndz` file, without the padding at its end.
    Ndz,
}

/// A range of the expanded image whose content the image determines. What lies outside of all extents is unused: its
/// content means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first byte, from the beginning of the image.
    pub start: u64,
    /// The length in bytes, at least 1.
    pub len: u64,
    /// Whether all bytes are zero, and therefore not stored.
    pub zero: bool,
}

impl Extent {
    /// Returns the first byte after the range.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// What an image is, apart from its chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The format of its chunks.
    pub format: Format,
    /// Rackweave's format: the bytes of the expanded image in a chunk, a power of two from 64 KiB to 16 MiB. `.ndz`:
    /// 1 MiB, the largest stored chunk.
    pub chunk_size: u32,
    /// The size of the expanded image in bytes.
    pub size: u64,
    /// The number of chunks, at most 2^24.
    pub chunks: u32,
    /// The level of zstd with which chunks were compressed, from 1 to 22; 0 for `.ndz`.
    pub level: u8,
    /// Whether the unused blocks of file systems were skipped.
    pub skipped_free: bool,
    /// The bytes of a logical sector of the disk: that of its GUID partition table, or of the device that was read. `None` if it is
    /// not known. Places in partition tables count sectors, so the disk is of no use with others.
    pub sector_size: Option<u32>,
    /// The name of the image, at most 255 bytes, without control characters.
    pub name: String,
}

impl Head {
    /// Returns the range of the expanded image that a chunk of Rackweave's format holds.
    #[must_use]
    pub fn range(&self, chunk: u32) -> Range<u64> {
        let start = u64::from(chunk) * u64::from(self.chunk_size);
        start.min(self.size)..(start + u64::from(self.chunk_size)).min(self.size)
    }
}

/// A chunk of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Where its stored bytes are in the image file.
    pub offset: u64,
    /// How many bytes are stored; at most the chunk size.
    pub stored: u32,
    /// How they are stored.
    pub codec: Codec,
    /// The BLAKE3 hash of the stored bytes: what a receiver checks before it expands, stores or serves them.
    pub hash: Hash,
    /// The identity of the content: a hash of its extents and their data, which does not depend on the compression.
    pub content: Hash,
    first: u32,
    count: u16,
}

/// The signature of an image's root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The key that signed. Its trustworthiness is for the reader to determine.
    pub key: PublicKey,
    bytes: [u8; 64],
}

/// Why bytes are not a manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The first bytes are not those of an image.
    #[error("it is not an image")]
    Magic,
    /// The image has a version of the format that this program does not know.
    #[error("it has version {0} of the image format, and this program reads version 1")]
    Version(u16),
    /// The file ends before the image does, or goes on after it.
    #[error(
        "it has {found} bytes, but the image has {expected}: it is truncated or has been appended to"
    )]
    Length {
        /// The length that the header implies.
        expected: u64,
        /// The length that was found.
        found: u64,
    },
    /// Header and index do not have the recorded root hash.
    #[error("its header or index is damaged: they do not have the recorded root hash")]
    Root,
    /// A field has a value that no writer produces.
    #[error("its {0}")]
    Invalid(&'static str),
    /// The signature does not match the root hash.
    #[error("its signature is wrong: the image was changed after it was signed")]
    Signature,
    /// A signature was required, and the image has none.
    #[error("it is not signed")]
    Unsigned,
    /// A signature by another key was required.
    #[error("it is signed by another key, {0}")]
    Signer(PublicKey),
}

/// Everything about an image except the bytes of its chunks: its header, the index of chunks, the root hash over both,
/// and perhaps a signature.
///
/// A client that has authenticated the root hash, or the key of the signature, can verify each chunk from any source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    head: Head,
    chunks: Vec<Chunk>,
    extents: Vec<Extent>,
    root: Hash,
    signature: Option<Signature>,
}

/// The chunks of an image that is being made.
#[derive(Debug, Default)]
pub(crate) struct Index {
    chunks: Vec<Chunk>,
    extents: Vec<Extent>,
}

/// A chunk before its place in the file is known.
#[derive(Debug)]
pub(crate) struct NewChunk {
    pub(crate) codec: Codec,
    pub(crate) stored: u32,
    pub(crate) hash: Hash,
    pub(crate) content: Hash,
    pub(crate) extents: Vec<Extent>,
}

impl Index {
    pub(crate) fn push(&mut self, offset: u64, chunk: &NewChunk) {
        let NewChunk { codec, stored, hash, content, ref extents } = *chunk;
        let (first, count) = (self.extents.len() as u32, extents.len() as u16);
        self.chunks.push(Chunk { offset, stored, codec, hash, content, first, count });
        self.extents.extend_from_slice(extents);
    }

    /// Completes the manifest, and signs it if there is a key.
    pub(crate) fn finish(self, head: Head, key: Option<&SecretKey>) -> Manifest {
        let Self { chunks, extents } = self;
        let mut manifest = Manifest { head, chunks, extents, root: [0; 32], signature: None };
        let encoded = manifest.encode();
        manifest.root = codec::root(&encoded[..encoded.len() - FOOTER]);
        if let Some(key) = key {
            let bytes = key.sign(&manifest.root);
            manifest.signature = Some(Signature { key: key.public(), bytes });
        }
        manifest
    }
}

impl Manifest {
    /// Returns what the image is.
    #[must_use]
    pub const fn head(&self) -> &Head {
        &self.head
    }

    /// Returns the number of chunks.
    #[must_use]
    pub const fn chunks(&self) -> u32 {
        self.head.chunks
    }

    /// Returns a chunk; `None` beyond the end of the image.
    #[must_use]
    pub fn chunk(&self, chunk: u32) -> Option<&Chunk> {
        self.chunks.get(chunk as usize)
    }

    /// Returns the extents of a chunk, in ascending order; none beyond the end of the image.
    #[must_use]
    pub fn extents(&self, chunk: u32) -> &[Extent] {
        let Some(chunk) = self.chunk(chunk) else { return &[] };
        &self.extents[chunk.first as usize..][..usize::from(chunk.count)]
    }

    /// Returns the number of bytes of data that a chunk expands to, without zeros.
    #[must_use]
    pub fn data(&self, chunk: u32) -> u64 {
        self.extents(chunk).iter().filter(|it| !it.zero).map(|it| it.len).sum()
    }

    /// Returns the hash over header and index, which identifies the image.
    #[must_use]
    pub const fn root(&self) -> &Hash {
        &self.root
    }

    /// Returns the signature. [`Self::decode`] has checked it, but not that the key is a trusted one.
    #[must_use]
    pub const fn signature(&self) -> Option<&Signature> {
        self.signature.as_ref()
    }

    /// Checks that the image was signed by this key.
    ///
    /// # Errors
    /// If it was not signed, or by another key.
    pub fn require_signer(&self, key: &PublicKey) -> Result<(), ManifestError> {
        match self.signature {
            None => Err(ManifestError::Unsigned),
            Some(signature) if signature.key != *key => Err(ManifestError::Signer(signature.key)),
            Some(_) => Ok(()),
        }
    }

    /// Checks that bytes are those of a stored chunk. Only verified chunks should be expanded, stored or served.
    ///
    /// # Errors
    /// If the image has no such chunk, or the bytes differ.
    pub fn verify_chunk(&self, chunk: u32, stored: &[u8]) -> Result<(), ChunkError> {
        let expected = self.chunk(chunk).ok_or(ChunkError::Unknown)?;
        if stored.len() != expected.stored as usize {
            let (expected, found) = (expected.stored, stored.len());
            return Err(ChunkError::Length { expected, found });
        }
        match *blake3::hash(stored).as_bytes() == expected.hash {
            true => Ok(()),
            false => Err(ChunkError::Hash),
        }
    }

    /// Returns the chunks whose content another image does not have at the same number.
    pub fn differing<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = u32> + 'a {
        let same = move |chunk| {
            let (ours, theirs) = (self.chunk(chunk), other.chunk(chunk));
            ours.map(|it| it.content) == theirs.map(|it| it.content)
        };
        (0..self.chunks()).filter(move |chunk| !same(*chunk))
    }

    /// Returns the ranges of the image that are unused, in ascending order.
    #[must_use]
    pub fn unused(&self) -> Vec<Range<u64>> {
        gaps(self.extents.iter().map(|it| it.start..it.end()).collect(), self.head.size)
    }
}

/// Returns what of an image is in none of these ranges, which do not overlap, in ascending order.
pub(crate) fn gaps(mut used: Vec<Range<u64>>, size: u64) -> Vec<Range<u64>> {
    used.sort_unstable_by_key(|range| range.start);
    let ends = std::iter::once(0).chain(used.iter().map(|range| range.end));
    let starts = used.iter().map(|range| range.start).chain([size]);
    ends.zip(starts).map(|(end, start)| end..start).filter(|gap| !gap.is_empty()).collect()
}
