//! Storage of files whose blocks arrive in any order.
//!
//! A [`BlockStore`] writes a file under another name (with the suffix `.part`), records which blocks are complete
//! together with their hashes, and renames the file when it has all of them. It can be abandoned at any moment: when it
//! is opened again with the same content, it has exactly the blocks whose bytes on disk match the recorded hashes.
//!
//! ```
//! use rackweave_cast::format::{CHUNK, tree::chunk_hash};
//! use rackweave_cast::store::{BlockConfig, BlockStore, Dir, Finish};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! let image = vec![7; 2 * CHUNK + 100];
//! let dir = Dir::open(folder.path())?;
//! let config = || BlockConfig {
//!     table: Some(dir.entry(".image.blocks".as_ref())),
//!     resume: true,
//!     ..BlockConfig::new(dir.entry("image".as_ref()), image.len() as u64)
//! };
//! let mut store = BlockStore::open(config())?;
//! for block in [2, 0, 1] {
//!     let bytes = image.chunks(CHUNK).nth(block as usize).unwrap();
//!     store.write_at(block * CHUNK as u64, bytes)?;
//!     assert!(store.verify(block, &chunk_hash(block, bytes).0)?);
//! }
//! // After an interruption, the reopened store has the blocks that were verified.
//! drop(store);
//! let store = BlockStore::open(config())?;
//! assert!(store.have().is_full());
//! store.finish(&Finish::default())?;
//! assert!(std::fs::read(folder.path().join("image"))? == image);
//! # Ok(())
//! # }
//! ```

pub use rackweave_disk as disk;
mod cancel;
mod place;
mod table;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;

use rackweave_core::Bitmap;

pub use self::cancel::Cancel;
pub(crate) use self::cancel::UntilCancelled;
use self::disk::{
    DiskFile, FileKind, INCOMPLETE, Part, PartError, Stat, is_incomplete, write_all_at,
};
pub use self::place::{Dir, Entry};
pub(crate) use self::place::{PART, failed, is_exhausted, is_left_link, part_name, refuses_links};
use self::table::Table;
use crate::format::tree::chunk_hash;
use crate::format::{CHUNK, Hash};

/// Why a file cannot be stored.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file exists, and must not be replaced.
    #[error("{0} exists already: use --overwrite to replace it")]
    Exists(PathBuf),
    /// The disk, or the user's quota of it, is full.
    #[error("the disk is full: cannot write {}{}", path.display(), shortage(*needs, *free))]
    Full {
        /// The file that cannot be written.
        path: PathBuf,
        /// The number of bytes that are missing, if it is known.
        needs: Option<u64>,
        /// The number of bytes that are free, if it is known.
        free: Option<u64>,
    },
    /// The file would exceed a limit of the process or of the file system.
    #[error("{0} would be larger than the file system or `ulimit -f` allows")]
    TooLarge(PathBuf),
    /// Nothing more can be opened, and so the place may hold anything.
    #[error(
        "cannot open {0}: this process, or the system, has as many files open as it may (`ulimit -n`)"
    )]
    ManyOpen(PathBuf),
    /// Another transfer holds the lock on the incomplete file.
    #[error("another transfer is writing {0}")]
    Busy(PathBuf),
    /// The path of the file is that of a directory.
    #[error("{0} is a directory and cannot be replaced by a file")]
    IsDirectory(PathBuf),
    /// The path of a directory is that of a link or a file.
    #[error("{0} is not a directory, and links are not followed")]
    NotDirectory(PathBuf),
    /// Bytes lie beyond the announced length.
    #[error("byte {offset} is beyond the length of {path}, {length} bytes")]
    Beyond {
        /// The path of the file.
        path: PathBuf,
        /// The announced length of the file.
        length: u64,
        /// The first offset beyond the file.
        offset: u64,
    },
    /// The file was to be finished, but a block is missing.
    #[error("{path} is not complete: block {block} is missing")]
    Missing {
        /// The path of the file.
        path: PathBuf,
        /// The number of the first missing block.
        block: u64,
    },
    /// A block was stored with two different hashes.
    #[error("block {block} of {path} has another hash than when it was verified")]
    Conflict {
        /// The path of the file.
        path: PathBuf,
        /// The number of the block.
        block: u64,
    },
    /// Reading an existing file was ended before its end, because nobody needs the result any more ([`Cancel`]).
    #[error("the transfer has ended while {0} was read")]
    Cancelled(PathBuf),
    /// The system refused to write for another reason.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

fn shortage(needs: Option<u64>, free: Option<u64>) -> String {
    match (needs, free) {
        (Some(needs), Some(free)) => {
            format!(": it needs {needs} more bytes, and {free} are free")
        }
        _ => String::new(),
    }
}

/// The configuration of a [`BlockStore`].
#[derive(Clone, Debug)]
pub struct BlockConfig {
    /// The name of the complete file.
    pub target: Entry,
    /// Where block hashes are recorded; with `None`, an interruption loses the file. Only files of known length can be
    /// resumed.
    pub table: Option<Entry>,
    /// An identifier of the content: blocks that were stored for another one are not used.
    pub content: Hash,
    /// The length of the file in bytes; with `None`, it is determined by what is written.
    pub length: Option<u64>,
    /// Whether to keep the blocks that an earlier attempt has left; otherwise the store starts with an empty file.
    pub resume: bool,
    /// Whether to replace a file that has the target's name.
    pub replace: bool,
    /// Whether an existing incomplete file was certainly left by an earlier attempt, whatever its mode and length. Another one that no
    /// attempt can have left stays, and this file is written under another name.
    pub ours: bool,
    /// Ends [`BlockStore::open`] while it hashes an existing file.
    pub cancel: Cancel,
}

impl BlockConfig {
    /// Returns the configuration for a file of this length that cannot be resumed and replaces no other file.
    #[must_use]
    pub const fn new(target: Entry, length: u64) -> Self {
        Self {
            target,
            table: None,
            content: [0; 32],
            length: Some(length),
            resume: false,
            replace: false,
            ours: false,
            cancel: Cancel::never(),
        }
    }
}

/// Attributes that a file gets together with its final name.
#[derive(Clone, Debug)]
pub struct Finish {
    /// The permission bits.
    pub mode: u32,
    /// The time of the last modification, in seconds and nanoseconds since 1970; with `None`, that of writing it.
    pub modified: Option<(i64, u32)>,
    /// Whether the file is synced to the disk before it is renamed.
    pub sync: bool,
}

impl Default for Finish {
    fn default() -> Self {
        Self { mode: 0o644, modified: None, sync: false }
    }
}

/// A file in blocks of [`CHUNK`] bytes (the last one is shorter) that are written in any order, verified by BLAKE3, and kept across
/// interruptions. See the [module](self).
///
/// Blocks that were never written read as zeros and can be verified as such: holes of a disk image need not be written.
#[derive(Debug)]
pub struct BlockStore {
    place: Place,
    target: Entry,
    length: Option<u64>,
    replace: bool,
    have: Bitmap,
    /// From here on the file had no bytes when it was opened.
    fresh_from: u64,
    table: Option<Table>,
    buffer: Vec<u8>,
}

/// Where the bytes are.
#[derive(Debug)]
enum Place {
    Part(Part),
    /// An earlier attempt was interrupted after the file got its final name.
    Named(Box<dyn DiskFile>),
}

/// The bytes that a file system stores together, and that can be a hole.
const PAGE: usize = 4096;

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Reads a whole buffer; bytes beyond the end of the file are zero.
fn read_full(file: &dyn DiskFile, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    let mut at = 0;
    while at < buffer.len() {
        match file.read_at(&mut buffer[at..], offset + at as u64) {
            Ok(0) => break,
            Ok(len) => at += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buffer[at..].fill(0);
    Ok(())
}

/// Returns the offset and the length of a block in a file.
fn range_of(block: u64, length: u64) -> Option<(u64, usize)> {
    let offset = block.checked_mul(CHUNK as u64).filter(|offset| *offset < length)?;
    Some((offset, (length - offset).min(CHUNK as u64) as usize))
}

/// Returns the blocks whose bytes have the hashes in the table; `None` if the result is not needed any more.
fn check_all(file: &dyn DiskFile, length: u64, table: &Table, cancel: &Cancel) -> Option<Bitmap> {
    let mut have = Bitmap::new(length.div_ceil(CHUNK as u64));
    let mut buffer = vec![0; CHUNK];
    let blocks = (0..).map_while(|block| Some((block, range_of(block, length)?)));
    for (block, (offset, len)) in blocks {
        if cancel.is_set() {
            return None;
        }
        let Some(hash) = table.get(block) else { continue };
        let read = read_full(file, &mut buffer[..len], offset);
        if read.is_ok() && chunk_hash(block, &buffer[..len]).0 == hash {
            have.insert(block);
        }
    }
    Some(have)
}

impl BlockStore {
    /// Opens or creates the incomplete file. The blocks that an earlier attempt has stored are hashed again, which
    /// takes as long as reading them.
    ///
    /// The file is checked against the table, and the table is as trustworthy as its directory. A client that knows the
    /// correct hashes compares them with [`Self::hash`]; one that does not checks the hash of the whole file in the
    /// end.
    ///
    /// # Errors
    /// If the target exists, another transfer writes the same file, or the system refuses.
    pub fn open(config: BlockConfig) -> Result<Self, StoreError> {
        let BlockConfig { target, table: entry, content, length, resume, replace, ours, cancel } =
            config;
        let is_rest = |found: &Stat| {
            let has_table = || entry.as_ref().is_some_and(|entry| entry.kind().is_some());
            is_incomplete(found) && (found.len < CHUNK as u64 || length.is_none() || has_table())
        };
        let table = entry.as_ref().zip(length);
        let left = table.filter(|_| resume);
        let left = left.map(|(entry, length)| Table::open(entry, &content, length));
        let left = left.transpose()?.flatten();
        let (mut part, kind) = (target.part(), target.kind());
        let mut is_known = ours || left.is_some();
        let is_free = part
            .stat()
            .is_none_or(|found| found.kind == FileKind::File && (is_known || is_rest(&found)));
        if !is_free || is_known && target.aside().kind().is_some() {
            (part, is_known) = (target.aside(), true);
        }
        if kind == Some(FileKind::Directory) {
            return Err(StoreError::IsDirectory(target.path()));
        }
        let blocks = length.map_or(0, |length| length.div_ceil(CHUNK as u64));
        let buffer = Vec::new();
        if let (Some(table), Some(length)) = (&left, length)
            && part.kind().is_none()
            && let Some(file) = target.open_read()?
            && file.settle().is_ok()
        {
            let have = check_all(&*file, length, table, &cancel)
                .ok_or_else(|| StoreError::Cancelled(target.path()))?;
            if have.is_full() && file.stat().is_ok_and(|stat| stat.len == length) {
                let (length, table, place) = (Some(length), left, Place::Named(file));
                let fresh_from = u64::MAX;
                return Ok(Self {
                    place,
                    target,
                    length,
                    replace,
                    have,
                    fresh_from,
                    table,
                    buffer,
                });
            }
        }
        if kind.is_some() && !replace {
            return Err(StoreError::Exists(target.path()));
        }
        let wrap = |error| failed(&part.path(), error);
        let open = part.open_part(is_known)?;
        let mut have = Bitmap::new(blocks);
        let mut keep = 0;
        if let (Some(table), Some(length)) = (&left, length)
            && open.file().settle().is_ok()
        {
            have = check_all(open.file(), length, table, &cancel)
                .ok_or_else(|| StoreError::Cancelled(part.path()))?;
            let last = have.iter().last();
            keep = last.map_or(0, |block| length.min((block + 1) * CHUNK as u64));
        }
        // Everything beyond the last correct block must read as zeros.
        fault::step().and_then(|()| open.file().set_len(keep)).map_err(wrap)?;
        let table = match (left, table) {
            (None, Some((entry, length))) => {
                let wrap = |error| failed(&entry.path(), error);
                Some(Table::create(entry, &content, length).map_err(wrap)?)
            }
            (left, _) => left,
        };
        let place = Place::Part(open);
        Ok(Self { place, target, length, replace, have, fresh_from: keep, table, buffer })
    }

    /// Returns the path of the complete file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.target.path()
    }

    /// Returns the blocks that are stored and verified.
    #[must_use]
    pub const fn have(&self) -> &Bitmap {
        &self.have
    }

    pub(crate) fn file(&self) -> &dyn DiskFile {
        match &self.place {
            Place::Part(part) => part.file(),
            Place::Named(file) => &**file,
        }
    }

    fn failed(&self, error: io::Error) -> StoreError {
        match failed(&self.target.part().path(), error) {
            StoreError::Full { path, .. } => {
                let needs = self.length.map(|length| {
                    let missing = self.have.missing().filter_map(|it| range_of(it, length));
                    missing.map(|(_, len)| len as u64).sum()
                });
                StoreError::Full { path, needs, free: self.target.dir().free() }
            }
            other => other,
        }
    }

    /// Writes bytes at their offset. Those of blocks that are already verified are ignored, so duplicates are harmless.
    ///
    /// # Errors
    /// If they lie beyond the file's length, or the system refuses.
    pub fn write_at(&mut self, mut offset: u64, mut bytes: &[u8]) -> Result<(), StoreError> {
        let length = self.length.unwrap_or(1 << 62);
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > length) {
            let (path, offset) = (self.path(), offset.max(length));
            return Err(StoreError::Beyond { path, length, offset });
        }
        while !bytes.is_empty() {
            let room = CHUNK - (offset % CHUNK as u64) as usize;
            let (now, rest) = bytes.split_at(room.min(bytes.len()));
            if !self.have.contains(offset / CHUNK as u64) {
                let written = fault::step().and_then(|()| write_all_at(self.file(), now, offset));
                written.map_err(|error| self.failed(error))?;
            }
            offset += now.len() as u64;
            bytes = rest;
        }
        Ok(())
    }

    /// As [`Self::write_at`], for a file with holes: pages of zeros become holes where nothing was written.
    ///
    /// # Errors
    /// The same as for [`Self::write_at`].
    pub fn write_sparse_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        if offset < self.fresh_from {
            return self.write_at(offset, bytes);
        }
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let page = |at: u64| PAGE - (at % PAGE as u64) as usize;
            let (mut len, mut next) = (page(at).min(rest.len()), at);
            let is_zero = is_zero(&rest[..len]);
            // Pages of one kind are written, or left out, together.
            loop {
                next += (len - (next - at) as usize) as u64;
                let more = page(next).min(rest.len() - len);
                if more == 0 || is_zero != self::is_zero(&rest[len..len + more]) {
                    break;
                }
                len += more;
            }
            let (now, after) = rest.split_at(len);
            if !is_zero {
                self.write_at(at, now)?;
            }
            (at, rest) = (next, after);
        }
        Ok(())
    }

    /// Makes a block permanent that is a hole.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn hole(&mut self, block: u64, hash: &Hash) -> Result<(), StoreError> {
        if let Some((offset, len)) = self.length.and_then(|length| range_of(block, length))
            && offset < self.fresh_from
            && !self.have.contains(block)
        {
            // An earlier attempt may have left something else.
            let range = offset..offset + len as u64;
            if self.file().punch(range).is_err() {
                self.write_at(offset, &vec![0; len])?;
            }
        }
        self.commit(block, hash)
    }

    /// Returns a block's bytes as they are on disk, verified or not; `None` for a block beyond the end of the file.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn read(&mut self, block: u64) -> Result<Option<&[u8]>, StoreError> {
        let Some((offset, len)) = self.length.and_then(|length| range_of(block, length)) else {
            return Ok(None);
        };
        self.buffer.resize(len, 0);
        let file = match &self.place {
            Place::Part(part) => part.file(),
            Place::Named(file) => &**file,
        };
        let read = read_full(file, &mut self.buffer, offset);
        read.map_err(|error| self.failed(error))?;
        Ok(Some(&self.buffer))
    }

    /// Reads a block back and compares it with its hash (that of [`chunk_hash`]). If they match, the block becomes
    /// permanent; otherwise `false` is returned, and the block can be written again.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn verify(&mut self, block: u64, hash: &Hash) -> Result<bool, StoreError> {
        match self.read(block)? {
            Some(bytes) if chunk_hash(block, bytes).0 == *hash => {}
            _ => return Ok(false),
        }
        self.commit(block, hash)?;
        Ok(true)
    }

    /// Makes a block permanent whose bytes the caller has hashed while writing them: [`Self::verify`] without reading
    /// them back.
    /// # Errors
    /// If the block was stored with another hash before, or the system refuses.
    pub fn commit(&mut self, block: u64, hash: &Hash) -> Result<(), StoreError> {
        let Some(table) = &self.table else {
            self.have.insert(block);
            return Ok(());
        };
        if self.have.contains(block) {
            return match table.get(block) {
                Some(known) if known != *hash => {
                    Err(StoreError::Conflict { path: self.path(), block })
                }
                _ => Ok(()),
            };
        }
        table.put(block, hash).map_err(|error| self.failed(error))?;
        self.have.insert(block);
        Ok(())
    }

    /// Returns the hash with which a block was stored, if the store has a table.
    #[must_use]
    pub fn hash(&self, block: u64) -> Option<Hash> {
        self.table.as_ref()?.get(block).filter(|_| self.have.contains(block))
    }

    /// Removes the incomplete file, and what is recorded of it.
    pub fn abandon(self) {
        if let Place::Part(part) = &self.place {
            part.abandon();
        }
        let _ = self.table.map(Table::remove);
    }

    /// Gives the file its final name.
    ///
    /// # Errors
    /// If a block is missing, the target has been created in the meantime, or the system refuses. The stored blocks
    /// stay, and can be opened again.
    pub fn finish(self, how: &Finish) -> Result<(), StoreError> {
        if self.length.is_some()
            && let Some(block) = self.have.missing().next()
        {
            return Err(StoreError::Missing { path: self.path(), block });
        }
        match &self.place {
            Place::Part(part) => self.name(part, how)?,
            // The earlier attempt may have been interrupted before it synced the name.
            Place::Named(file) if how.sync => {
                file.sync().map_err(|error| failed(&self.path(), error))?;
                self.target.dir().sync()?;
            }
            Place::Named(_) => {}
        }
        self.target.dir().check_place()?;
        // If the table cannot be removed, it does not match the next content.
        let _ = self.table.map(Table::remove);
        Ok(())
    }

    /// The file gets its attributes before its name, so that nobody sees it with others.
    fn name(&self, part: &Part, how: &Finish) -> Result<(), StoreError> {
        let (path, file) = (self.target.part().path(), part.file());
        let wrap = |error| failed(&path, error);
        if let Some(length) = self.length {
            // The file may end with a hole.
            fault::step().and_then(|()| file.set_len(length)).map_err(wrap)?;
        }
        if let Some(modified) = how.modified {
            file.set_modified(modified).map_err(wrap)?;
        }
        let set_mode = |mode| fault::step().and_then(|()| file.set_mode(mode));
        set_mode(how.mode).map_err(wrap)?;
        let named = self.target.publish(part, self.replace, self.length, how.sync);
        if let Err(PartError::Unsynced(_)) = &named {
            // Another attempt has to write all of it.
            let _ = file.set_len(0);
        }
        if named.is_err() && part.is_named() {
            // Another attempt must be able to write the file.
            let _ = set_mode(INCOMPLETE);
        }
        named.map_err(|error| match error {
            PartError::Exists => StoreError::Exists(self.path()),
            PartError::Unsettled(error) => failed(self.target.dir().path(), error),
            PartError::System(error) => failed(&self.path(), error),
            error => wrap(error.into()),
        })
    }
}

/// Injects failures, in tests, before each operation that changes the disk.
pub(crate) mod fault {
    #[cfg(test)]
    thread_local! {
        /// How many operations still succeed, and the error of all later ones.
        pub(crate) static FAULT: std::cell::Cell<Option<(u32, std::io::ErrorKind)>> =
            const { std::cell::Cell::new(None) };

        /// The error of all hard links.
        pub(crate) static LINKS: std::cell::Cell<Option<std::io::ErrorKind>> =
            const { std::cell::Cell::new(None) };
    }

    #[cfg(test)]
    thread_local! {
        /// The file or link that belongs to another user.
        pub(crate) static FOREIGN: std::cell::Cell<Option<(u64, u64)>> =
            const { std::cell::Cell::new(None) };

        /// How many times a directory was synced.
        pub(crate) static SYNCED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }

    #[cfg(not(test))]
    #[expect(clippy::unnecessary_wraps, reason = "tests fail here")]
    pub(crate) const fn owner(_: (u64, u64)) -> std::io::Result<()> {
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn owner(id: (u64, u64)) -> std::io::Result<()> {
        match FOREIGN.get() == Some(id) {
            true => Err(std::io::ErrorKind::PermissionDenied.into()),
            false => Ok(()),
        }
    }

    #[cfg(not(test))]
    pub(crate) const fn synced() {}

    #[cfg(test)]
    pub(crate) fn synced() {
        SYNCED.set(SYNCED.get() + 1);
    }

    #[cfg(not(test))]
    #[expect(clippy::unnecessary_wraps, reason = "tests fail here")]
    pub(crate) const fn link() -> std::io::Result<()> {
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn link() -> std::io::Result<()> {
        LINKS.get().map_or(Ok(()), |kind| Err(kind.into()))
    }

    #[cfg(not(test))]
    #[expect(clippy::unnecessary_wraps, reason = "tests fail here")]
    pub(crate) const fn step() -> std::io::Result<()> {
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn step() -> std::io::Result<()> {
        FAULT.with(|fault| match fault.get() {
            Some((0, kind)) => Err(kind.into()),
            Some((left, kind)) => {
                fault.set(Some((left - 1, kind)));
                Ok(())
            }
            None => Ok(()),
        })
    }
}
