//! The records of a stream: which files it carries, their content, and hashes of both. The format is our own.
//!
//! ```text
//!  start     01 "RWCAST" version(2)
//!  file      02 kind(1) mode(2) seconds(8) nanoseconds(4) length(8, all ones: unknown) path length(2) path [runs | target]
//!            [attributes] [owner]
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
//! **Holes.** A file of kind 2 has only the chunks of some runs: count(4), and for each its first chunk(4) and its length(4). The
//! others read as zeros, and count in the file's hash as such. Kind 0 is a file without holes, 1 a directory.
//!
//! **Hard links.** Kind 3 is another name of a file that precedes it in the stream: target length(2) target. It has no content.
//!
//! **Symbolic links.** Kind 4 has the text of the link, which may be any: target length(2) target.
//!
//! **Extended attributes.** With 16 added to the kind: length of all(4), and for each its name length(1), name, value length(4) and
//! value.
//!
//! **Owners.** With 32 added to the kind: user(4) and group(4), by their numbers.
//!
//! **Hashes.** A file's hash is BLAKE3 of its bytes: what `b3sum` prints. With known length, a chunk's hash is the
//! *chaining value* of its subtree in that tree, so that nothing is hashed twice: the file's hash follows from those of its
//! chunks ([`tree::TreeHash`]). With unknown length, a chunk's hash is BLAKE3 of the chunk.
//!
//! **Digest.** The record before the end has a hash over the headers and hashes of all files ([`StreamDigest`]). A receiver that
//! resumes has not seen the end records of the files that it received in earlier attempts: the digest shows that they
//! are the ones that are sent now. Only a stream that can be resumed needs it.

mod answer;
mod decode;
mod encode;
mod extents;
mod manifest;
mod path;
#[cfg(test)]
mod tests;
pub mod tree;

pub use answer::{Deleted, Deletion, Difference, Findings, Lacking, Obstacle, ObstacleKind};
pub use decode::{DecodeError, Decoder, Kept, Resume, Visitor};
pub use encode::{
    DIGEST_BYTES, END_BYTES, FILE_END_BYTES, START_BYTES, StreamDigest, attribute_bytes,
    chunk_front, digest, end, file, file_end, file_record_bytes, start,
};
pub use extents::{Extents, MAX_EXTENTS};
pub use manifest::{
    Delete, MANIFEST_FRONT, MAX_MANIFEST, Manifest, ManifestEntry, Protected, Purpose, cast_hash,
    content_number, is_manifest, is_same_cast, part_number,
};
pub use path::{PathError, STATE_PREFIX, check_path};

/// Content bytes of a full chunk: 1 MiB, a whole subtree of BLAKE3.
pub const CHUNK: usize = 1 << 20;

/// The length of a hash in bytes.
pub const HASH: usize = 32;

/// The length in bytes of a chunk record's header, which precedes the content.
pub const CHUNK_FRONT: usize = 5;

/// The version of this format. Version 1, which had no digest, 2, which had no holes, 3, which had no hard links and no attributes, 4,
/// which had no symbolic links, and 5, which had no owners, are still read.
pub const VERSION: u16 = 6;

/// The longest path in bytes.
pub const MAX_PATH: usize = 4096;

/// The longest text of a symbolic link in bytes: Linux has no longer one, as it counts the zero at the end.
pub const MAX_TARGET: usize = 4095;

const MAGIC: &[u8; 6] = b"RWCAST";

mod tag {
    pub(super) const START: u8 = 1;
    pub(super) const FILE: u8 = 2;
    pub(super) const CHUNK: u8 = 3;
    pub(super) const FILE_END: u8 = 4;
    pub(super) const END: u8 = 5;
    pub(super) const DIGEST: u8 = 6;
}

/// The kinds of files.
mod kind {
    pub(super) const FILE: u8 = 0;
    pub(super) const DIRECTORY: u8 = 1;
    pub(super) const WITH_HOLES: u8 = 2;
    pub(super) const HARD_LINK: u8 = 3;
    pub(super) const SYMBOLIC_LINK: u8 = 4;
    /// These are added to the others.
    pub(super) const WITH_ATTRIBUTES: u8 = 16;
    pub(super) const WITH_OWNER: u8 = 32;

    /// Returns a kind without what is added.
    pub(super) const fn plain(kind: u8) -> u8 {
        kind & !(WITH_ATTRIBUTES | WITH_OWNER)
    }
}

/// The most bytes of the extended attributes of a file or directory.
pub const MAX_ATTRIBUTES: usize = 256 << 10;

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attribute {
    /// The name with its namespace, such as `user.comment`: at most 255 bytes, without zeros.
    pub name: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}

/// A BLAKE3 hash or chaining value.
pub type Hash = [u8; HASH];

/// What a file record describes. Only files have chunks and a file end record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A file all of whose chunks are sent.
    File,
    /// A file with holes, and its chunks that are sent.
    WithHoles(Extents),
    /// A directory.
    Directory,
    /// Another name of a file before it, whose path this is.
    HardLink(Vec<u8>),
    /// A symbolic link, and its text: any bytes without zeros. Nothing is read or written through it.
    SymbolicLink(Vec<u8>),
}

/// The fields of a file record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// The path, relative and without `..` (see [`check_path`]). It is a byte string, as on Linux.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: RecordKind,
    /// The length in bytes; `None` if it is not known in advance, 0 for what is no file.
    pub length: Option<u64>,
    /// The extended attributes, if they are kept.
    pub attributes: Option<Vec<Attribute>>,
    /// The numbers of the user and the group that it belongs to, if they are kept.
    pub owner: Option<(u32, u32)>,
    /// The permission bits: the lowest nine bits of the mode.
    pub mode: u16,
    /// The seconds of the modification time, since 1970.
    pub mtime_s: i64,
    /// The nanoseconds of the modification time.
    pub mtime_ns: u32,
}

/// The length in bytes of a full chunk record.
const FRAMED: u64 = (CHUNK_FRONT + CHUNK + HASH) as u64;

impl FileHeader {
    /// Returns whether it is a file with content of its own, and thus no directory, further name or symbolic link.
    #[must_use]
    pub const fn is_file(&self) -> bool {
        matches!(self.kind, RecordKind::File | RecordKind::WithHoles(_))
    }

    /// Returns whether it is a directory.
    #[must_use]
    pub const fn is_directory(&self) -> bool {
        matches!(self.kind, RecordKind::Directory)
    }

    /// Returns the path of the file that it is another name of.
    #[must_use]
    pub fn hard_link(&self) -> Option<&[u8]> {
        match &self.kind {
            RecordKind::HardLink(target) => Some(target),
            _ => None,
        }
    }

    /// Returns the text of a symbolic link.
    #[must_use]
    pub fn symbolic_link(&self) -> Option<&[u8]> {
        match &self.kind {
            RecordKind::SymbolicLink(target) => Some(target),
            _ => None,
        }
    }

    /// Returns the chunks that are sent of a file with holes.
    #[must_use]
    pub const fn extents(&self) -> Option<&Extents> {
        match &self.kind {
            RecordKind::WithHoles(extents) => Some(extents),
            _ => None,
        }
    }

    /// Returns the number of chunks of a file of known length.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.length.unwrap_or(0).div_ceil(CHUNK as u64)
    }

    /// Returns whether a chunk is a hole.
    #[must_use]
    pub fn is_hole(&self, chunk: u64) -> bool {
        self.extents().is_some_and(|extents| !extents.contains(chunk))
    }

    /// Returns the length in bytes of the chunk records before a chunk.
    #[must_use]
    pub fn bytes_before(&self, chunk: u64) -> u64 {
        self.extents().map_or(chunk, |extents| extents.rank(chunk)) * FRAMED
    }

    /// Returns the chunk in whose record an offset is, counted from the first chunk record.
    #[must_use]
    pub fn chunk_at(&self, offset: u64) -> u64 {
        let rank = offset / FRAMED;
        self.extents().map_or(rank, |extents| extents.nth(rank))
    }

    /// Returns the length in bytes of all chunk records.
    #[must_use]
    pub fn chunks_bytes(&self) -> u64 {
        let (length, chunks) = (self.length.unwrap_or(0), self.chunks());
        let Some(last) = chunks.checked_sub(1) else { return 0 };
        let short = if self.is_hole(last) { 0 } else { chunks * CHUNK as u64 - length };
        self.bytes_before(chunks) - short
    }

    /// Returns the length in bytes of its file record.
    #[must_use]
    pub fn record_bytes(&self) -> usize {
        let mut record = Vec::with_capacity(file_record_bytes(self.path.len()));
        file(self, &mut record);
        record.len()
    }
}
