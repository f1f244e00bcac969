//! The records of a stream: which files it carries, their content, and hashes of both. The format is our own.
//!
//! ```text
//!  start     01 "RWCAST" version(2)
//!  file      02 kind(1) mode(2) seconds(8) nanoseconds(4) length(8, all ones: unknown) path length(2) path
//!  chunk     03 length(4) bytes hash(32)
//!  file end  04 length(8) hash(32)
//!  digest    06 hash(32)
//!  end       05 files(8) bytes(8)
//! ```
//!
//! Numbers are big endian. A file of known length has chunks of [`CHUNK`] bytes, except for its last one: the offset of each
//! byte in the stream follows from that of the file record. A file of unknown length (a pipe) has chunks of any length up to
//! [`CHUNK`].
//!
//! **Hashes.** A file's hash is BLAKE3 of its bytes: what `b3sum` prints. With known length, a chunk's hash is the
//! *chaining value* of its subtree in that tree, so that nothing is hashed twice: the file's hash follows from those of its
//! chunks ([`tree::TreeHash`]). With unknown length, a chunk's hash is BLAKE3 of the chunk.
//!
//! **Digest.** The record before the end has a hash over the headers and hashes of all files ([`StreamDigest`]). A receiver that
//! resumes has not seen the end records of the files that it received in earlier attempts: the digest shows that they
//! are the ones that are sent now. Only a stream that can be resumed needs it.

mod decode;
mod encode;
mod manifest;
mod path;
#[cfg(test)]
mod tests;
pub mod tree;

pub use decode::{DecodeError, Decoder, Kept, Resume, Visitor};
pub use encode::{
    DIGEST_BYTES, END_BYTES, FILE_END_BYTES, START_BYTES, StreamDigest, chunk_front, digest, end,
    file, file_end, file_record_bytes, start,
};
pub use manifest::{
    Lacking, MANIFEST_FRONT, MAX_MANIFEST, Manifest, ManifestEntry, Purpose, content_number,
    is_manifest, is_same_cast, part_number,
};
pub use path::{PathError, STATE_PREFIX, check_path};

/// Content bytes of a full chunk: 1 MiB, a whole subtree of BLAKE3.
pub const CHUNK: usize = 1 << 20;

/// The length of a hash in bytes.
pub const HASH: usize = 32;

/// The length in bytes of a chunk record's header, which precedes the content.
pub const CHUNK_FRONT: usize = 5;

/// The version of this format. Version 1, which had no digest, is still read.
pub const VERSION: u16 = 2;

/// The longest path in bytes.
pub const MAX_PATH: usize = 4096;

const MAGIC: &[u8; 6] = b"RWCAST";

mod tag {
    pub(super) const START: u8 = 1;
    pub(super) const FILE: u8 = 2;
    pub(super) const CHUNK: u8 = 3;
    pub(super) const FILE_END: u8 = 4;
    pub(super) const END: u8 = 5;
    pub(super) const DIGEST: u8 = 6;
}

/// A BLAKE3 hash or chaining value.
pub type Hash = [u8; HASH];

/// The fields of a file record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// The path, relative and without `..` (see [`check_path`]). It is a byte string, as on Linux.
    pub path: Vec<u8>,
    /// Whether this is a directory, which has no chunks and no file end record.
    pub directory: bool,
    /// The length in bytes; `None` if it is not known in advance.
    pub length: Option<u64>,
    /// The permission bits: the lowest nine bits of the mode.
    pub mode: u16,
    /// The seconds of the modification time, since 1970.
    pub mtime_s: i64,
    /// The nanoseconds of the modification time.
    pub mtime_ns: u32,
}

/// Returns the length in bytes of all chunk records of a file of this length.
#[must_use]
pub const fn chunks_bytes(length: u64) -> u64 {
    let chunks = length.div_ceil(CHUNK as u64);
    length + chunks * (CHUNK_FRONT + HASH) as u64
}
