//! Files and directories as the source of a stream.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;

use bytes::Bytes;

use super::listing::{Found, Listing, header_of, open};
use super::{MAX_STREAM, Payload, Source, SourceError, gather, read_error};
use crate::format::tree::{TreeHash, chunk_hash};
use crate::format::{
    self, CHUNK, CHUNK_FRONT, DIGEST_BYTES, END_BYTES, FILE_END_BYTES, FileHeader, HASH, Hash,
    START_BYTES, StreamDigest,
};

/// The number of chunks that are read and hashed at a time, if no receiver has needed them.
const SLICE: usize = 32;

/// The number of chunks that are kept in memory for retransmissions.
const KEPT: usize = 32;

/// The number of chunks whose memory is kept for reuse.
const SPARE: usize = 4;

/// How many bytes ahead the kernel is asked to read.
const AHEAD: u64 = 8 << 20;

struct Entry {
    header: FileHeader,
    local: PathBuf,
    /// The time of the last change of its inode. Unlike the modification time, it cannot be set.
    changed: (i64, i64),
    /// The offset in the stream of the file record.
    start: u64,
    /// The offset in the stream of the first chunk.
    data: u64,
    /// The offset in the stream after the file end record.
    end: u64,
    hashes: Vec<Option<Hash>>,
    /// All chunks before this one have their hashes.
    hashed: usize,
    single: Option<Hash>,
    /// The hash of the file, once it was computed.
    whole: Option<Hash>,
}

impl Entry {
    fn length(&self) -> u64 {
        self.header.length.unwrap_or(0)
    }

    /// Returns the hash of the file, all of whose chunks were hashed.
    fn hash(&mut self) -> Hash {
        *self.whole.get_or_insert_with(|| {
            let mut tree = TreeHash::default();
            for hash in self.hashes.iter().flatten() {
                tree.push(*hash, self.single);
            }
            tree.finish()
        })
    }

    /// Returns the offset in the stream after the record of a chunk.
    fn end_of(&self, chunk: u64) -> u64 {
        self.data + self.header.bytes_before(chunk + 1)
    }

    /// Returns the number of content bytes in a chunk.
    fn chunk_len(&self, chunk: u64) -> usize {
        (self.length() - chunk * CHUNK as u64).min(CHUNK as u64) as usize
    }
}

/// Files and directories as a [`Source`].
pub struct Files {
    entries: Vec<Entry>,
    length: u64,
    content: u64,
    stream: u128,
    open: Option<(usize, File)>,
    /// The files whose chunks are being hashed for an end record, or for the digest.
    hashing: Range<usize>,
    /// The error of hashing one.
    failed: Option<SourceError>,
    /// The digest of the first entries, and their number.
    digest: (StreamDigest, usize),
    /// Chunk records in memory as entry, chunk and bytes, the latest one last.
    kept: VecDeque<(usize, u64, Bytes)>,
    /// Chunk records that were released. Their memory may still be in the processor's cache, so it is reused first.
    spare: Vec<Bytes>,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").field("files", &self.entries.len()).finish_non_exhaustive()
    }
}

impl Files {
    /// Creates the stream of these files and of everything below these directories ([`Listing::new`]).
    ///
    /// # Errors
    /// If one of them cannot be read or has no name.
    pub fn new(paths: &[PathBuf]) -> Result<Self, SourceError> {
        Self::of(&Listing::new(paths)?, |_| true)
    }

    /// Creates the stream of some files and directories of a listing.
    ///
    /// # Errors
    /// If it would be too long.
    pub fn of(listing: &Listing, wanted: impl Fn(u32) -> bool) -> Result<Self, SourceError> {
        let mut at = START_BYTES as u64;
        let mut content = 0_u64;
        let mut entries = Vec::new();
        for (number, Found { local, header, changed }) in (0..).zip(listing.found()) {
            if !wanted(number) {
                continue;
            }
            let length = header.length.unwrap_or(0);
            let data = at + header.record_bytes() as u64;
            let end = match header.is_file() {
                true => data + header.chunks_bytes() + FILE_END_BYTES as u64,
                false => data,
            };
            if end >= MAX_STREAM {
                return Err(SourceError::Large);
            }
            entries.push(Entry {
                header: header.clone(),
                local: local.clone(),
                changed: *changed,
                start: at,
                data,
                end,
                hashes: vec![None; length.div_ceil(CHUNK as u64) as usize],
                hashed: 0,
                single: None,
                whole: None,
            });
            at = end;
            content += length;
        }
        let all = format::cast_hash(listing.found().iter().map(|found| &found.header));
        let part = format::cast_hash(entries.iter().map(|entry: &Entry| &entry.header));
        Ok(Self {
            entries,
            length: at + (DIGEST_BYTES + END_BYTES) as u64,
            content,
            stream: format::part_number(&all, &part),
            open: None,
            hashing: 0..0,
            failed: None,
            digest: (StreamDigest::default(), 0),
            kept: VecDeque::new(),
            spare: Vec::new(),
        })
    }

    /// Returns the number of files and directories.
    #[must_use]
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Returns the record of a chunk.
    fn chunk(&mut self, entry: usize, chunk: u64) -> Result<Bytes, SourceError> {
        if let Some(found) = self.kept.iter().rev().find(|kept| (kept.0, kept.1) == (entry, chunk))
        {
            return Ok(found.2.clone());
        }
        if self.kept.len() >= KEPT
            && let Some((_, _, old)) = self.kept.pop_front()
        {
            self.spare.push(old);
        }
        // Packets that wait to be sent may still hold the memory.
        let old = self.spare.pop().and_then(|old| old.try_into_mut().ok());
        let mut buffer = old.unwrap_or_default();
        let len = self.entries[entry].chunk_len(chunk);
        buffer.resize(CHUNK_FRONT + len + HASH, 0);
        buffer[..CHUNK_FRONT].copy_from_slice(&format::chunk_front(len as u32));
        self.load(entry, chunk, &mut buffer[CHUNK_FRONT..CHUNK_FRONT + len])?;
        let hash = self.hash(entry, chunk, &buffer[CHUNK_FRONT..CHUNK_FRONT + len])?;
        buffer[CHUNK_FRONT + len..].copy_from_slice(&hash);
        let bytes = buffer.freeze();
        self.kept.push_back((entry, chunk, bytes.clone()));
        Ok(bytes)
    }

    /// Hashes a chunk that was read. The hash must be the same as when the chunk was read before.
    fn hash(&mut self, entry: usize, chunk: u64, bytes: &[u8]) -> Result<Hash, SourceError> {
        let (hash, single) = chunk_hash(chunk, bytes);
        let entry = &mut self.entries[entry];
        let known = &mut entry.hashes[chunk as usize];
        if known.is_some_and(|known| known != hash) {
            return Err(SourceError::Changed { path: entry.local.clone() });
        }
        *known = Some(hash);
        entry.single = entry.single.or(single);
        Ok(hash)
    }

    fn open(&mut self, index: usize) -> Result<(), SourceError> {
        let path = &self.entries[index].local;
        if self.open.as_ref().is_none_or(|open| open.0 != index) {
            let file = open(path).map_err(|error| read_error(path, error))?;
            // Another file may have taken the place of this one, and opening a pipe must not block.
            if !file.metadata().is_ok_and(|meta| meta.is_file()) {
                return Err(SourceError::Changed { path: path.clone() });
            }
            self.open = Some((index, file));
        }
        Ok(())
    }

    /// Reads a chunk of a file, which must still be the same file.
    fn load(&mut self, index: usize, chunk: u64, to: &mut [u8]) -> Result<(), SourceError> {
        self.open(index)?;
        let path = &self.entries[index].local;
        let Some((_, file)) = &self.open else { return Ok(()) };
        let offset = chunk * CHUNK as u64;
        let _ = rustix::fs::fadvise(
            file,
            offset + CHUNK as u64,
            std::num::NonZeroU64::new(AHEAD),
            rustix::fs::Advice::WillNeed,
        );
        match file.read_exact_at(to, offset) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(SourceError::Changed { path: path.clone() });
            }
            Err(error) => return Err(read_error(path, error)),
        }
        self.check_unchanged(index)
    }

    /// Fails if the file that is open has changed since it was listed.
    fn check_unchanged(&self, index: usize) -> Result<(), SourceError> {
        let entry = &self.entries[index];
        let path = &entry.local;
        let Some((_, file)) = self.open.as_ref().filter(|open| open.0 == index) else {
            return Ok(());
        };
        let meta = file.metadata().map_err(|error| read_error(path, error))?;
        let now = header_of(&entry.header.path, &meta);
        // Whoever changes bytes can restore the modification time, but not that of the inode. It also changes with the mode, the
        // owner or a further link, which is an error too: nothing tells these from a change of the content.
        if (now.length, now.mtime_s, now.mtime_ns)
            != (entry.header.length, entry.header.mtime_s, entry.header.mtime_ns)
            || (meta.ctime(), meta.ctime_nsec()) != entry.changed
        {
            return Err(SourceError::Changed { path: path.clone() });
        }
        Ok(())
    }

    /// Returns the file end record. Chunks that no receiver has needed are read to be hashed.
    fn file_end(&mut self, index: usize) -> Result<Bytes, SourceError> {
        if self.hash_some(index, &mut { SLICE })? {
            self.hashing = index..index + 1;
            return Err(SourceError::NotYet(self.entries[index].end));
        }
        let entry = &mut self.entries[index];
        let mut record = Vec::with_capacity(FILE_END_BYTES);
        format::file_end(entry.length(), &entry.hash(), &mut record);
        Ok(Bytes::from(record))
    }

    /// Returns the digest record. Files that no receiver has needed are read to be hashed.
    fn digest(&mut self) -> Result<Bytes, SourceError> {
        let mut left = SLICE;
        while self.digest.1 < self.entries.len() {
            let index = self.digest.1;
            if self.hash_some(index, &mut left)? {
                self.hashing = index..self.entries.len();
                return Err(SourceError::NotYet(self.entries[index].end));
            }
            let entry = &mut self.entries[index];
            self.digest.0.file(&entry.header);
            if entry.header.is_file() {
                self.digest.0.file_end(&entry.hash());
            }
            self.digest.1 += 1;
        }
        let mut record = Vec::with_capacity(DIGEST_BYTES);
        format::digest(&self.digest.0, &mut record);
        Ok(Bytes::from(record))
    }

    /// Hashes up to `left` chunks of a file that have not been hashed, and counts them. Returns whether there are more.
    fn hash_some(&mut self, index: usize, left: &mut usize) -> Result<bool, SourceError> {
        let (mut buffer, mut zeros) = (Vec::new(), Vec::new());
        // A search from the first chunk on would take time that grows with the square of the file's length.
        let Entry { hashes, hashed, .. } = &mut self.entries[index];
        *hashed += hashes[*hashed..].iter().take_while(|hash| hash.is_some()).count();
        let rest = hashes[*hashed..].iter().zip(*hashed..);
        let unknown: Vec<usize> =
            rest.filter(|it| it.0.is_none()).map(|it| it.1).take(*left + 1).collect();
        for chunk in unknown.iter().take(*left) {
            let chunk = *chunk as u64;
            let entry = &self.entries[index];
            if entry.header.is_hole(chunk) {
                // It need not be read: a file whose holes were filled has changed.
                zeros.resize(entry.chunk_len(chunk), 0);
                self.open(index)?;
                self.check_unchanged(index)?;
                self.hash(index, chunk, &zeros)?;
                continue;
            }
            buffer.resize(entry.chunk_len(chunk), 0);
            self.load(index, chunk, &mut buffer)?;
            self.hash(index, chunk, &buffer)?;
        }
        let more = unknown.len() > *left;
        *left = left.saturating_sub(unknown.len());
        Ok(more)
    }

    /// Hashes some chunks of the files that are to be hashed. Returns whether there are more.
    fn hash_next(&mut self) -> Result<bool, SourceError> {
        let mut left = SLICE;
        while !self.hashing.is_empty() {
            if self.hash_some(self.hashing.start, &mut left)? {
                return Ok(true);
            }
            self.hashing.start += 1;
        }
        Ok(false)
    }

    /// Returns the record at an offset, and the offset at which it begins.
    fn record(&mut self, offset: u64) -> Result<(Bytes, u64), SourceError> {
        if offset < START_BYTES as u64 {
            let mut record = Vec::new();
            format::start(&mut record);
            return Ok((record.into(), 0));
        }
        let index = self.entries.partition_point(|entry| entry.end <= offset);
        let Some(entry) = self.entries.get(index) else {
            let ends = self.length - END_BYTES as u64;
            if offset < ends {
                return Ok((self.digest()?, ends - DIGEST_BYTES as u64));
            }
            let mut record = Vec::new();
            format::end(self.entries.len() as u64, self.content, &mut record);
            return Ok((record.into(), ends));
        };
        if offset < entry.data {
            let mut record = Vec::new();
            format::file(&entry.header, &mut record);
            return Ok((record.into(), entry.start));
        }
        let ends = entry.end - FILE_END_BYTES as u64;
        if offset >= ends {
            return Ok((self.file_end(index)?, ends));
        }
        let chunk = entry.header.chunk_at(offset - entry.data);
        let begins = entry.data + entry.header.bytes_before(chunk);
        Ok((self.chunk(index, chunk)?, begins))
    }
}

impl Source for Files {
    fn stream(&self) -> u128 {
        self.stream
    }

    fn available(&self) -> u64 {
        self.length
    }

    fn end(&self) -> Option<u64> {
        Some(self.length)
    }

    fn content(&self) -> u64 {
        self.content
    }

    fn work(&mut self) -> bool {
        match self.hash_next() {
            Ok(more) => more,
            Err(error) => {
                (self.failed, self.hashing) = (Some(error), 0..0);
                false
            }
        }
    }

    fn error(&mut self) -> Option<SourceError> {
        self.failed.take()
    }

    fn released(&mut self, below: u64) {
        while let Some((entry, chunk, _)) = self.kept.front()
            && self.entries[*entry].end_of(*chunk) <= below
        {
            self.spare.extend(self.kept.pop_front().map(|kept| kept.2));
        }
        self.spare.truncate(SPARE);
    }

    fn read(&mut self, offset: u64, len: usize, out: &mut Payload) -> Result<(), SourceError> {
        if offset + len as u64 > self.length {
            return Err(SourceError::Gone(offset));
        }
        gather(offset, len, out, |at| self.record(at))
    }
}
