//! Manifests: what a sender has, before any content of it. The format is Rackweave's; the Orca paper knows no files.
//!
//! ```text
//! "RWCASTM1" length of all(8) flags(1) entries(4) entry... [patterns names] BLAKE3 of what precedes(32)
//! entry: the file record, and with the flag `checksum` the hash of a file(32); a hard link is to an entry before it
//! patterns, names: if receivers delete, what they must not: count(4), each with its length(2)
//! ```
//!
//! A receiver answers with [`Findings`](super::Findings). Numbers are big endian.

use std::collections::BTreeSet;

use super::decode::{file_header, record_len};
use super::{DecodeError, FileHeader, HASH, Hash, file};

/// The longest manifest in bytes: that of some 600,000 files.
pub const MAX_MANIFEST: usize = 64 << 20;

/// The length in bytes of what precedes the entries.
pub const MANIFEST_FRONT: usize = 8 + 8 + 1 + 4;

const MAGIC: &[u8; 8] = b"RWCASTM1";

/// The flags of [`Purpose`].
const DRY_RUN: u8 = 1;
const CHECKSUM: u8 = 2;
const LATER: u8 = 4;
const NOW: u8 = 8;
const ITEMIZE: u8 = 16;

/// The bit that tells the streams of manifests from those of content.
const KIND: u128 = 1 << 127;

/// Returns whether a stream of this number is a manifest.
#[must_use]
pub const fn is_manifest(stream: u128) -> bool {
    stream & KIND != 0
}

/// Returns the number of a stream of content that these bits identify.
#[must_use]
pub const fn content_number(bits: u128) -> u128 {
    bits & !KIND
}

/// Returns a hash of the names and attributes of files, in this order.
#[must_use]
pub fn cast_hash<'a>(headers: impl Iterator<Item = &'a FileHeader>) -> Hash {
    let mut hasher = blake3::Hasher::new_derive_key("rackweave cast 1 stream of files");
    let mut record = Vec::new();
    for header in headers {
        record.clear();
        file(header, &mut record);
        hasher.update(&record);
    }
    *hasher.finalize().as_bytes()
}

/// Returns the number of a stream of some files: the first half identifies all files of a sender, the
/// second half the files that are sent.
#[must_use]
pub fn part_number(all: &[u8; 32], part: &[u8; 32]) -> u128 {
    let half = |bytes: &[u8; 32]| bytes.first_chunk().map_or(0, |bits| u64::from_be_bytes(*bits));
    content_number(u128::from(half(all)) << 64 | u128::from(half(part)))
}

/// Returns whether two streams of content may write the same files: one sender sends them, perhaps after a restart.
#[must_use]
pub const fn is_same_cast(one: u128, other: u128) -> bool {
    !is_manifest(one) && !is_manifest(other) && one >> 64 == other >> 64
}

/// What a sender asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purpose {
    /// Nothing is sent, and no receiver changes anything.
    pub dry_run: bool,
    /// Files are compared by their hashes, and not by length and time.
    pub checksum: bool,
    /// Receivers answer how what they have differs from each entry ([`Difference`](super::Difference)).
    pub itemize: bool,
    /// Whether receivers delete what is in the sender's directories and not in the manifest.
    pub delete: Delete,
}

impl Purpose {
    /// Returns whether a receiver may be sent everything without having answered.
    #[must_use]
    pub fn is_plain(self) -> bool {
        !self.dry_run && self.delete == Delete::Never
    }
}

/// What receivers delete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delete {
    /// Nothing.
    #[default]
    Never,
    /// Nothing yet: a manifest with [`Delete::Now`] follows, once this receiver has all content.
    Later,
    /// What they have and the sender has not, if they lack nothing.
    Now,
}

/// What receivers must not delete although it is not in the manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Protected {
    /// The patterns that the sender excludes ([`Excludes`](crate::excludes::Excludes)).
    pub patterns: Vec<String>,
    /// Paths that the sender has and does not send, such as those of devices.
    pub paths: Vec<Vec<u8>>,
}

impl Protected {
    fn encode(&self, out: &mut Vec<u8>) -> Option<()> {
        let patterns = self.patterns.iter().map(String::as_bytes).collect();
        let paths = self.paths.iter().map(Vec::as_slice).collect();
        let lists: [Vec<&[u8]>; 2] = [patterns, paths];
        for list in lists {
            out.extend_from_slice(&u32::try_from(list.len()).ok()?.to_be_bytes());
            for text in list {
                out.extend_from_slice(&u16::try_from(text.len()).ok()?.to_be_bytes());
                out.extend_from_slice(text);
            }
        }
        Some(())
    }
}

/// A file or directory of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestEntry {
    /// Its name and attributes.
    pub header: FileHeader,
    /// The hash of a file, with [`Purpose::checksum`].
    pub hash: Option<Hash>,
}

/// The files and directories of a sender.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// What is asked.
    pub purpose: Purpose,
    /// The files and directories, directories before what is in them.
    pub entries: Vec<ManifestEntry>,
    /// What [`Purpose::delete`] does not concern; not sent if nothing is deleted.
    pub protected: Protected,
}

impl Manifest {
    /// Encodes the manifest; `None` if it is longer than [`MAX_MANIFEST`].
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&[0; 8]);
        let Purpose { dry_run, checksum, itemize, delete } = self.purpose;
        let delete = match delete {
            Delete::Never => 0,
            Delete::Later => LATER,
            Delete::Now => NOW,
        };
        let flags = [(dry_run, DRY_RUN), (checksum, CHECKSUM), (itemize, ITEMIZE)];
        let flags = flags.into_iter().filter(|it| it.0).fold(0, |sum, it| sum | it.1);
        out.push(flags | delete);
        out.extend_from_slice(&u32::try_from(self.entries.len()).ok()?.to_be_bytes());
        for entry in &self.entries {
            file(&entry.header, &mut out);
            if checksum && entry.header.is_file() {
                out.extend_from_slice(&entry.hash.unwrap_or_default());
            }
            if out.len() > MAX_MANIFEST - HASH {
                return None;
            }
        }
        if delete != 0 {
            self.protected.encode(&mut out)?;
        }
        if out.len() > MAX_MANIFEST - HASH {
            return None;
        }
        let length = (out.len() + HASH) as u64;
        out[8..16].copy_from_slice(&length.to_be_bytes());
        let hash = blake3::hash(&out);
        out.extend_from_slice(hash.as_bytes());
        Some(out)
    }

    /// Returns the number of the stream that consists of these bytes of a manifest.
    #[must_use]
    pub fn number(bytes: &[u8]) -> u128 {
        let hash = blake3::hash(bytes);
        hash.as_bytes().first_chunk().map_or(0, |bits| u128::from_be_bytes(*bits)) | KIND
    }

    /// Returns the length of a manifest by its first [`MANIFEST_FRONT`] bytes.
    ///
    /// # Errors
    /// If it is none, or longer than [`MAX_MANIFEST`].
    pub fn length(front: &[u8]) -> Result<usize, DecodeError> {
        let length = front.get(8..16).filter(|_| front.starts_with(MAGIC));
        let length = length.and_then(<[_]>::first_chunk).ok_or(DecodeError::NoStream)?;
        let length = usize::try_from(u64::from_be_bytes(*length)).unwrap_or(usize::MAX);
        match (MANIFEST_FRONT + HASH..=MAX_MANIFEST).contains(&length) {
            true => Ok(length),
            false => Err(DecodeError::Length { bytes: 8 }),
        }
    }

    /// Decodes a whole manifest.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if Self::length(bytes)? != bytes.len() {
            return Err(DecodeError::Length { bytes: 8 });
        }
        let (rest, hash) = bytes.split_at(bytes.len() - HASH);
        if blake3::hash(rest) != *hash {
            return Err(DecodeError::Digest);
        }
        let flags = rest[16];
        let delete = match flags & !(DRY_RUN | CHECKSUM | ITEMIZE) {
            0 => Delete::Never,
            LATER => Delete::Later,
            NOW => Delete::Now,
            _ => return Err(DecodeError::Length { bytes: 16 }),
        };
        let is_set = |flag| flags & flag != 0;
        let (dry_run, checksum) = (is_set(DRY_RUN), is_set(CHECKSUM));
        let purpose = Purpose { dry_run, checksum, itemize: is_set(ITEMIZE), delete };
        let count = rest[17..21].iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
        let mut at = MANIFEST_FRONT;
        let cut = |at: &mut usize, len: usize| {
            let wrong = DecodeError::Length { bytes: *at as u64 };
            let (from, to) = (*at, at.checked_add(len).ok_or(wrong)?);
            *at = to;
            rest.get(from..to).ok_or(wrong)
        };
        let mut entries = Vec::new();
        for _ in 0..count {
            let len = record_len(rest.get(at..).unwrap_or_default(), at as u64);
            let len = len.ok_or(DecodeError::Length { bytes: at as u64 })??;
            let record = cut(&mut at, len)?;
            let header = file_header(record, 0)?;
            let hash = match purpose.checksum && header.is_file() {
                true => cut(&mut at, HASH)?.try_into().ok(),
                false => None,
            };
            if header.length.is_none() {
                return Err(DecodeError::Length { bytes: 0 });
            }
            entries.push(ManifestEntry { header, hash });
        }
        check_links(&entries)?;
        let mut texts = [Vec::new(), Vec::new()];
        if delete != Delete::Never {
            for texts in &mut texts {
                let count =
                    cut(&mut at, 4)?.iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
                for _ in 0..count {
                    let length =
                        cut(&mut at, 2)?.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
                    texts.push(cut(&mut at, length)?.to_vec());
                }
            }
        }
        let [patterns, paths] = texts;
        let patterns = patterns.into_iter().map(String::from_utf8).collect::<Result<_, _>>();
        match patterns {
            Ok(patterns) if at == rest.len() => {
                Ok(Self { purpose, entries, protected: Protected { patterns, paths } })
            }
            _ => Err(DecodeError::Length { bytes: at as u64 }),
        }
    }
}

/// Checks that each hard link is to a file before it, so that none leads out of the cast, to itself, or in a circle.
fn check_links(entries: &[ManifestEntry]) -> Result<(), DecodeError> {
    if entries.iter().all(|entry| entry.header.hard_link().is_none()) {
        return Ok(());
    }
    let mut files = BTreeSet::new();
    for ManifestEntry { header, .. } in entries {
        match header.hard_link() {
            Some(target) if !files.contains(target) => return Err(DecodeError::Link),
            None if header.is_file() => drop(files.insert(&header.path[..])),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::{Extents, RecordKind};

    fn manifest(checksum: bool, paths: &[String]) -> Manifest {
        let entry = |(index, path): (usize, &String)| {
            let kind = match index {
                _ if index % 3 == 0 => RecordKind::Directory,
                _ if index % 5 == 1 => RecordKind::WithHoles(Extents::new(std::iter::once(0..1))),
                _ if index % 7 == 2 => RecordKind::SymbolicLink(b"../\xff".to_vec()),
                _ => RecordKind::File,
            };
            let has_content = matches!(kind, RecordKind::File | RecordKind::WithHoles(_));
            let header = FileHeader {
                path: path.clone().into_bytes(),
                kind,
                length: Some(if has_content { index as u64 * 77 } else { 0 }),
                attributes: None,
                owner: None,
                mode: 0o640,
                mtime_s: -5,
                mtime_ns: 7,
            };
            ManifestEntry { header, hash: (checksum && has_content).then_some([index as u8; 32]) }
        };
        let delete = [Delete::Never, Delete::Later, Delete::Now][paths.len() % 3];
        let purpose = Purpose {
            dry_run: paths.len().is_multiple_of(2),
            checksum,
            itemize: paths.len() % 5 < 2,
            delete,
        };
        let protected = match delete {
            Delete::Never => Protected::default(),
            _ => Protected { patterns: paths.to_vec(), paths: vec![b"a/\xff".to_vec()] },
        };
        Manifest { purpose, entries: paths.iter().enumerate().map(entry).collect(), protected }
    }

    proptest! {
        #[test]
        fn a_manifest_comes_back_and_any_bytes_are_harmless(
            checksum: bool,
            paths in prop::collection::vec("[a-z]{1,9}(/[a-z]{1,9}){0,3}", 0..40),
            at in any::<prop::sample::Index>(),
            byte: u8,
            noise in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let manifest = manifest(checksum, &paths);
            let mut bytes = manifest.encode().unwrap();
            prop_assert!(is_manifest(Manifest::number(&bytes)));
            prop_assert_eq!(Manifest::decode(&bytes), Ok(manifest));
            let at = at.index(bytes.len());
            let changed = bytes[at] != byte;
            bytes[at] = byte;
            prop_assert_eq!(Manifest::decode(&bytes).is_err(), changed);
            // Also where the hash is right.
            let to = bytes.len() - HASH;
            let hash = *blake3::hash(&bytes[..to]).as_bytes();
            bytes[to..].copy_from_slice(&hash);
            let _ = Manifest::decode(&bytes);
            let _ = Manifest::decode(&noise);
            prop_assert!(Manifest::length(&noise).is_err());
        }
    }
}
