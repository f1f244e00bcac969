//! The hashes of a file's blocks, in a separate file next to it.
//!
//! ```text
//!  0  a line of text that names the format and its version, padded with zeros to 64 bytes
//! 64  an identifier of the content (32)
//! 96  length of the content in bytes (8), then zeros up to 128
//! 128 the hash of each block (32); zeros if the file does not have the block
//! ```
//!
//! Each hash has a fixed position, so that blocks can be recorded in any order, and recording one twice changes
//! nothing. The table is not synced to the disk: a hash is a claim that is checked against the block when the file is
//! opened again, and torn, stale or damaged entries fail that check.

use std::io;

use super::disk::{DiskFile, write_all_at};
use super::place::Entry;
use super::{StoreError, fault, read_full};
use crate::format::{HASH, Hash};

const MAGIC: &[u8] = b"rackweave cast: blocks of an incomplete file, version 2\n";

const CONTENT_AT: usize = 64;
const LENGTH_AT: usize = CONTENT_AT + HASH;
pub(super) const HEADER: usize = 128;

/// The entry of a block that the file does not have.
const ABSENT: Hash = [0; HASH];

#[derive(Debug)]
pub(super) struct Table {
    file: Box<dyn DiskFile>,
    entry: Entry,
}

fn header(content: &Hash, length: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..MAGIC.len()].copy_from_slice(MAGIC);
    header[CONTENT_AT..LENGTH_AT].copy_from_slice(content);
    header[LENGTH_AT..LENGTH_AT + 8].copy_from_slice(&length.to_be_bytes());
    header
}

impl Table {
    /// Opens the table that an earlier attempt has left, if it is for this content.
    pub(super) fn open(
        entry: &Entry,
        content: &Hash,
        length: u64,
    ) -> Result<Option<Self>, StoreError> {
        let Some(file) = entry.open_update()? else { return Ok(None) };
        let mut found = [0; HEADER];
        let read = read_full(&*file, &mut found, 0);
        let is_right = read.is_ok() && found == header(content, length);
        Ok(is_right.then(|| Self { file, entry: entry.clone() }))
    }

    /// Creates an empty table, replacing any file with this name.
    pub(super) fn create(entry: &Entry, content: &Hash, length: u64) -> io::Result<Self> {
        entry.remove()?;
        let file = entry.create()?;
        fault::step()?;
        write_all_at(&*file, &header(content, length), 0)?;
        Ok(Self { file, entry: entry.clone() })
    }

    fn offset(block: u64) -> u64 {
        HEADER as u64 + block * HASH as u64
    }

    pub(super) fn get(&self, block: u64) -> Option<Hash> {
        let mut hash = ABSENT;
        read_full(&*self.file, &mut hash, Self::offset(block)).ok()?;
        (hash != ABSENT).then_some(hash)
    }

    pub(super) fn put(&self, block: u64, hash: &Hash) -> io::Result<()> {
        fault::step()?;
        write_all_at(&*self.file, hash, Self::offset(block))
    }

    pub(super) fn remove(self) -> io::Result<()> {
        self.entry.remove()
    }
}
