//! Which chunks an incomplete file has, in a file next to it.
//!
//! ```text
//!  0  a line of text that names the format and its version, padded with zeros to 64 bytes
//! 64  the root hash of the image (32)
//! 96  a record for each chunk that was written: its number (4), zeros (4), a checksum (8)
//! ```
//!
//! A record is appended when its chunk is written, and is not synced to the disk: it is a claim, and the chunk is read and
//! hashed when the file is opened again. A record whose checksum does not match is ignored.
//!
//! A record of no chunk, with the number 2^32-1, says that the file was about to be synced. If that has failed, Linux has marked pages as
//! clean that are not on the disk, and a later sync does not write them: whoever opens the file again must write them once more.

use std::io::{self, Read as _};
use std::sync::Arc;

use rackweave_core::Bitmap;
use rackweave_disk::{Open, Part, PartError, Reading, is_incomplete, write_all_at};

use crate::Hash;
use crate::part::Named;

const MAGIC: &[u8] = b"rackweave image: chunks of an incomplete file, version 1\n";
const HEADER: usize = 96;
const RECORD: usize = 16;

/// In place of a chunk: the file is about to be synced.
const SYNCING: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Record {
    part: Part,
    named: Named,
    root: Hash,
    /// The length of the file.
    end: u64,
}

/// What an earlier attempt has recorded.
#[derive(Debug)]
pub(super) struct Claimed {
    /// The chunks that it claims to have written.
    pub(super) chunks: Vec<u32>,
    /// Whether it may have failed to sync them.
    pub(super) syncing: bool,
}

fn header(root: &Hash) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..MAGIC.len()].copy_from_slice(MAGIC);
    header[64..].copy_from_slice(root);
    header
}

fn record(root: &Hash, chunk: u32) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record[..4].copy_from_slice(&chunk.to_le_bytes());
    let sum = blake3::keyed_hash(root, &record[..8]);
    record[8..].copy_from_slice(&sum.as_bytes()[..8]);
    record
}

impl Record {
    /// Returns what an earlier attempt has recorded, if there was one for this image.
    pub(super) fn read(part: &Named, root: &Hash, chunks: u32) -> Option<Claimed> {
        let file = part.suffixed(".chunks").open(Open::Read).ok()?;
        // Each chunk is recorded once, and a sync once in each attempt, so Rackweave wrote no longer file.
        let limit = HEADER as u64 + (u64::from(chunks) + 1) * RECORD as u64;
        let mut bytes = Vec::new();
        Reading(&*file, 0).take(limit).read_to_end(&mut bytes).ok()?;
        let records = bytes.strip_prefix(&header(root))?;
        let is_sync = |found: &[u8]| found == record(root, SYNCING);
        let syncing = records.chunks_exact(RECORD).any(is_sync);
        let claimed = records.chunks_exact(RECORD).filter_map(|found| {
            let chunk = u32::from_le_bytes(*found.first_chunk()?);
            (chunk < chunks && found == record(root, chunk)).then_some(chunk)
        });
        let mut claimed: Vec<u32> = claimed.collect();
        claimed.sort_unstable();
        claimed.dedup();
        Some(Claimed { chunks: claimed, syncing })
    }

    /// Starts a record with the chunks that the file has.
    pub(super) fn create(part: &Named, root: &Hash, have: &Bitmap<u32>) -> io::Result<Self> {
        let named = part.suffixed(".chunks");
        let mut bytes = header(root).to_vec();
        for chunk in have.iter() {
            bytes.extend_from_slice(&record(root, chunk));
        }
        // It gets its name when it is complete: whoever is killed meanwhile keeps the record of earlier attempts.
        let aside = part.suffixed(".chunks.new");
        let foreign = |it: &Named| {
            let text = format!("{} exists already, and is not Rackweave's", it.path.display());
            io::Error::new(io::ErrorKind::AlreadyExists, text)
        };
        if named.stat().is_some_and(|found| !is_incomplete(&found)) {
            return Err(foreign(&named));
        }
        let part = match Part::open(Arc::clone(&aside.folder), &aside.name, false) {
            Err(PartError::Foreign) => return Err(foreign(&aside)),
            other => other?,
        };
        part.file().set_len(0)?;
        let mut this = Self { part, named, root: *root, end: 0 };
        this.append(&bytes)?;
        // Not synced: it only makes claims.
        this.part.publish(&this.named.name, true, None, false)?;
        Ok(this)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        write_all_at(self.part.file(), bytes, self.end)?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn add(&mut self, chunk: u32) -> io::Result<()> {
        self.append(&record(&self.root, chunk))
    }

    /// Records that the file is about to be synced.
    pub(super) fn add_sync(&mut self) -> io::Result<()> {
        self.append(&record(&self.root, SYNCING))
    }

    pub(super) fn remove(&self) {
        // Without the incomplete file it claims nothing.
        let _ = self.named.folder.remove(&self.named.name);
    }

    /// Removes the record of an incomplete file that is complete now.
    pub(super) fn remove_at(part: &Named) {
        let named = part.suffixed(".chunks");
        let _ = named.folder.remove(&named.name);
    }
}
