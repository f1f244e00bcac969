//! The encoder of records.

use blake3::Hasher;

use super::{Attribute, CHUNK_FRONT, FileHeader, Hash, MAGIC, RecordKind, VERSION, kind, tag};

/// The length of the start record in bytes.
pub const START_BYTES: usize = 9;
/// The length of a file end record in bytes.
pub const FILE_END_BYTES: usize = 41;
/// The length of the digest record in bytes.
pub const DIGEST_BYTES: usize = 33;
/// The length of the end record in bytes.
pub const END_BYTES: usize = 17;

/// Appends the start record.
pub fn start(out: &mut Vec<u8>) {
    out.push(tag::START);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_be_bytes());
}

/// Returns the length in bytes of the record of a file without holes with a path of this length.
#[must_use]
pub const fn file_record_bytes(path: usize) -> usize {
    1 + 1 + 2 + 8 + 4 + 8 + 2 + path
}

/// Returns the length in bytes of an extended attribute in a record.
#[must_use]
pub const fn attribute_bytes(name: usize, value: usize) -> usize {
    1 + name + 4 + value
}

/// Appends a file record. The path must not be longer than [`super::MAX_PATH`].
pub fn file(header: &FileHeader, out: &mut Vec<u8>) {
    out.push(tag::FILE);
    let kind = match header.kind {
        RecordKind::File => kind::FILE,
        RecordKind::Directory => kind::DIRECTORY,
        RecordKind::WithHoles(_) => kind::WITH_HOLES,
        RecordKind::HardLink(_) => kind::HARD_LINK,
        RecordKind::SymbolicLink(_) => kind::SYMBOLIC_LINK,
    };
    let with = |has, bit| if has { bit } else { 0 };
    let attributes = with(header.attributes.is_some(), kind::WITH_ATTRIBUTES);
    out.push(kind | attributes | with(header.owner.is_some(), kind::WITH_OWNER));
    out.extend_from_slice(&header.mode.to_be_bytes());
    out.extend_from_slice(&header.mtime_s.to_be_bytes());
    out.extend_from_slice(&header.mtime_ns.to_be_bytes());
    out.extend_from_slice(&header.length.unwrap_or(u64::MAX).to_be_bytes());
    out.extend_from_slice(&(header.path.len() as u16).to_be_bytes());
    out.extend_from_slice(&header.path);
    match &header.kind {
        RecordKind::WithHoles(extents) => extents.encode(out),
        RecordKind::HardLink(target) | RecordKind::SymbolicLink(target) => {
            out.extend_from_slice(&(target.len() as u16).to_be_bytes());
            out.extend_from_slice(target);
        }
        RecordKind::File | RecordKind::Directory => {}
    }
    if let Some(attributes) = &header.attributes {
        let lengths = attributes.iter().map(|it| attribute_bytes(it.name.len(), it.value.len()));
        out.extend_from_slice(&(lengths.sum::<usize>() as u32).to_be_bytes());
        for Attribute { name, value } in attributes {
            out.push(name.len() as u8);
            out.extend_from_slice(name);
            out.extend_from_slice(&(value.len() as u32).to_be_bytes());
            out.extend_from_slice(value);
        }
    }
    if let Some((user, group)) = header.owner {
        out.extend_from_slice(&user.to_be_bytes());
        out.extend_from_slice(&group.to_be_bytes());
    }
}

/// Returns the bytes of a chunk record that precede its content.
#[must_use]
pub const fn chunk_front(len: u32) -> [u8; CHUNK_FRONT] {
    let [a, b, c, d] = len.to_be_bytes();
    [tag::CHUNK, a, b, c, d]
}

/// Appends a file end record.
pub fn file_end(length: u64, hash: &Hash, out: &mut Vec<u8>) {
    out.push(tag::FILE_END);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(hash);
}

/// The hash over the headers and hashes of a stream's files, in their order.
#[derive(Clone, Debug)]
pub struct StreamDigest(Hasher);

impl Default for StreamDigest {
    fn default() -> Self {
        Self(Hasher::new_derive_key("rackweave cast 2 digest of files"))
    }
}

impl StreamDigest {
    /// Adds the header of the next file or directory.
    pub fn file(&mut self, header: &FileHeader) {
        let mut record = Vec::with_capacity(header.record_bytes());
        file(header, &mut record);
        self.0.update(&record);
    }

    /// Adds the hash of the file whose header was added last. A directory has none.
    pub fn file_end(&mut self, hash: &Hash) {
        self.0.update(hash);
    }

    /// Returns the digest of what was added.
    #[must_use]
    pub fn finish(&self) -> Hash {
        *self.0.finalize().as_bytes()
    }
}

/// Appends the digest record, which precedes the end record.
pub fn digest(digest: &StreamDigest, out: &mut Vec<u8>) {
    out.push(tag::DIGEST);
    out.extend_from_slice(&digest.finish());
}

/// Appends the end record: the number of files and their total bytes.
pub fn end(files: u64, bytes: u64, out: &mut Vec<u8>) {
    out.push(tag::END);
    out.extend_from_slice(&files.to_be_bytes());
    out.extend_from_slice(&bytes.to_be_bytes());
}
