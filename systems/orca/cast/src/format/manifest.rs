//! Manifests: what a sender has, before any content of it. The format is Rackweave's; the Orca paper knows no files.
//!
//! ```text
//! "RWCASTM1" length of all(8) flags(1) entries(4) entry... BLAKE3 of what precedes(32)
//! entry: the file record, and with the flag `checksum` the hash of a file(32)
//! ```
//!
//! A receiver answers which entries it lacks ([`Lacking`]). Numbers are big endian.

use rackweave_core::Bitmap;

use super::decode::file_header;
use super::{DecodeError, FileHeader, HASH, Hash, MAX_PATH, file, file_record_bytes};

/// The longest manifest in bytes: that of some 600,000 files.
pub const MAX_MANIFEST: usize = 64 << 20;

/// The length in bytes of what precedes the entries.
pub const MANIFEST_FRONT: usize = 8 + 8 + 1 + 4;

const MAGIC: &[u8; 8] = b"RWCASTM1";

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
}

impl Manifest {
    /// Encodes the manifest; `None` if it is longer than [`MAX_MANIFEST`].
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&[0; 8]);
        let Purpose { dry_run, checksum } = self.purpose;
        out.push(u8::from(dry_run) | u8::from(checksum) << 1);
        out.extend_from_slice(&u32::try_from(self.entries.len()).ok()?.to_be_bytes());
        for entry in &self.entries {
            file(&entry.header, &mut out);
            if checksum && !entry.header.directory {
                out.extend_from_slice(&entry.hash.unwrap_or_default());
            }
            if out.len() > MAX_MANIFEST - HASH {
                return None;
            }
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
        let purpose = Purpose { dry_run: flags & 1 != 0, checksum: flags & 2 != 0 };
        let count = rest[17..21].iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
        let mut at = MANIFEST_FRONT;
        let mut cut = |len: usize| {
            let wrong = DecodeError::Length { bytes: at as u64 };
            let (from, to) = (at, at.checked_add(len).ok_or(wrong)?);
            at = to;
            rest.get(from..to).ok_or(wrong)
        };
        let mut entries = Vec::new();
        for _ in 0..count {
            let front = cut(file_record_bytes(0))?;
            let path = usize::from(u16::from_be_bytes([front[24], front[25]]));
            if path > MAX_PATH {
                return Err(DecodeError::Path(super::PathError::Long));
            }
            let record = [front, cut(path)?].concat();
            let header = file_header(&record, 0)?;
            let hash = match purpose.checksum && !header.directory {
                true => cut(HASH)?.try_into().ok(),
                false => None,
            };
            if header.length.is_none() {
                return Err(DecodeError::Length { bytes: 0 });
            }
            entries.push(ManifestEntry { header, hash });
        }
        match flags > 3 || at != rest.len() {
            true => Err(DecodeError::Length { bytes: at as u64 }),
            false => Ok(Self { purpose, entries }),
        }
    }
}

/// A receiver's answer to a manifest: the entries that it lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lacking(Bitmap<u32>);

impl Lacking {
    /// Returns the answer that nothing of this many entries is lacking.
    #[must_use]
    pub fn nothing(entries: u32) -> Self {
        Self(Bitmap::new(entries))
    }

    /// Returns the answer that all entries are.
    #[must_use]
    pub fn all(entries: u32) -> Self {
        let mut this = Self::nothing(entries);
        (0..entries).for_each(|entry| this.add(entry));
        this
    }

    /// Adds an entry.
    pub fn add(&mut self, entry: u32) {
        self.0.insert(entry);
    }

    /// Adds the entries of another answer.
    pub fn unite(&mut self, other: &Self) {
        other.0.iter().for_each(|entry| self.add(entry));
    }

    /// Returns whether an entry is lacking.
    #[must_use]
    pub fn contains(&self, entry: u32) -> bool {
        self.0.contains(entry)
    }

    /// Returns whether no entry is lacking.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the entries that are lacking, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter()
    }

    /// Returns the length in bytes of an answer about this many entries.
    #[must_use]
    pub const fn encoded_len(entries: u32) -> usize {
        entries.div_ceil(8) as usize
    }

    /// Encodes the answer: a bit for each entry, the lowest one of a byte first.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; Self::encoded_len(self.0.size())];
        self.0.iter().for_each(|entry| out[entry as usize / 8] |= 1 << (entry % 8));
        out
    }

    /// Decodes an answer about this many entries; `None` if it has another length, or bits of further entries.
    #[must_use]
    pub fn decode(bytes: &[u8], entries: u32) -> Option<Self> {
        let mut this = Self::nothing(entries);
        if bytes.len() != Self::encoded_len(entries) {
            return None;
        }
        for (byte, at) in bytes.iter().zip((0_u32..).step_by(8)) {
            for bit in (0..8).filter(|bit| byte >> bit & 1 != 0) {
                if !this.0.insert(at + bit) {
                    return None;
                }
            }
        }
        Some(this)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn manifest(checksum: bool, paths: &[String]) -> Manifest {
        let entry = |(index, path): (usize, &String)| {
            let directory = index % 3 == 0;
            let header = FileHeader {
                path: path.clone().into_bytes(),
                directory,
                length: Some(if directory { 0 } else { index as u64 * 77 }),
                mode: 0o640,
                mtime_s: -5,
                mtime_ns: 7,
            };
            ManifestEntry { header, hash: (checksum && !directory).then_some([index as u8; 32]) }
        };
        let purpose = Purpose { dry_run: paths.len().is_multiple_of(2), checksum };
        Manifest { purpose, entries: paths.iter().enumerate().map(entry).collect() }
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

        #[test]
        fn an_answer_comes_back_and_no_other_length_is_taken(
            entries in 0_u32..100,
            lacking in prop::collection::vec(0_u32..100, 0..50),
            noise in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let mut answer = Lacking::nothing(entries);
            lacking.iter().for_each(|entry| answer.add(*entry));
            let bytes = answer.encode();
            prop_assert_eq!(Lacking::decode(&bytes, entries), Some(answer));
            prop_assert_eq!(Lacking::decode(&bytes, entries + 8), None);
            let taken = Lacking::decode(&noise, entries);
            let fits = noise.len() == entries.div_ceil(8) as usize
                && noise.last().is_none_or(|last| entries % 8 == 0 || last >> (entries % 8) == 0);
            prop_assert_eq!(taken.is_some(), fits);
        }
    }
}
