//! Where a stream's bytes come from: files, which are read again when that is needed, or a pipe, which is spooled.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blake3::Hasher;
use bytes::Bytes;
use smallvec::SmallVec;

use crate::format::tree::{TreeHash, chunk_hash};
use crate::format::{
    self, CHUNK, CHUNK_FRONT, END_BYTES, FILE_END_BYTES, FileHeader, HASH, Hash, START_BYTES,
};
use crate::wake::Waker;

/// A packet's payload: one piece, or two at the border of records.
pub type Payload = SmallVec<[Bytes; 2]>;

/// Bytes of a chunk with what stands around it.
const FRAMED: u64 = (CHUNK_FRONT + CHUNK + HASH) as u64;

/// Chunks that are kept in memory for packets that go again.
const KEPT: usize = 32;

/// How far ahead the system is told to read.
const AHEAD: u64 = 8 << 20;

/// Why a stream can't be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A file can't be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// What is hashed and what is sent must be one.
    #[error("{path} has changed while it was sent")]
    Changed {
        /// Which.
        path: PathBuf,
    },
    /// Not a file, a directory or a pipe.
    #[error("{path} is neither a file nor a directory")]
    Kind {
        /// Which.
        path: PathBuf,
    },
    /// Nothing names it.
    #[error("{path} has no name that a receiver could give it")]
    NoName {
        /// Which.
        path: PathBuf,
    },
    /// Two files would be one.
    #[error("two of the files are called {name}: receivers could not tell them apart")]
    Twice {
        /// The name.
        name: String,
    },
    /// Offsets have 48 bits.
    #[error("more than 128 TB in one stream")]
    Large,
    /// The pipe's spool.
    #[error("cannot keep what comes from standard input in {folder}: {source}")]
    Spool {
        /// Where.
        folder: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A byte that is no longer there.
    #[error("byte {0} of the stream is no longer to be had")]
    Gone(u64),
}

/// A stream to send.
pub trait Source: Send {
    /// Names its content: the same again after a restart, if the content is.
    fn stream(&self) -> u128;

    /// Bytes that can be read now.
    fn available(&self) -> u64;

    /// Its length, once that is known.
    fn end(&self) -> Option<u64>;

    /// Bytes of files in it, as far as known: what people count.
    fn content(&self) -> u64;

    /// Appends `len` bytes from `offset` on to `out`.
    ///
    /// # Errors
    /// If they can't be read.
    fn read(&mut self, offset: u64, len: usize, out: &mut Payload) -> Result<(), SourceError>;

    /// Bytes below are needed by nobody.
    fn released(&mut self, _below: u64) {}

    /// Who is to be woken when there is more. Called once, before all else.
    fn start(&mut self, _waker: Waker) {}

    /// What went wrong while it waited for more.
    fn error(&mut self) -> Option<SourceError> {
        None
    }
}

struct Entry {
    header: FileHeader,
    local: PathBuf,
    /// Offset in the stream of its file record, ...
    start: u64,
    /// ... of its first chunk, ...
    data: u64,
    /// ... and behind its file end.
    end: u64,
    hashes: Vec<Option<Hash>>,
    single: Option<Hash>,
}

impl Entry {
    fn length(&self) -> u64 {
        self.header.length.unwrap_or(0)
    }

    /// Bytes of a chunk.
    fn chunk_len(&self, chunk: u64) -> usize {
        (self.length() - chunk * CHUNK as u64).min(CHUNK as u64) as usize
    }
}

/// Files and directories.
pub struct Files {
    entries: Vec<Entry>,
    length: u64,
    content: u64,
    stream: u128,
    open: Option<(usize, File)>,
    /// Framed chunks: entry, chunk, bytes. The latest is the last.
    kept: VecDeque<(usize, u64, Bytes)>,
    /// Directories hold these too; they are not sent.
    skipped: Vec<PathBuf>,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").field("files", &self.entries.len()).finish_non_exhaustive()
    }
}

fn read_error(path: &Path, source: io::Error) -> SourceError {
    SourceError::Read { path: path.to_owned(), source }
}

fn header_of(path: &[u8], meta: &Metadata) -> FileHeader {
    FileHeader {
        path: path.to_vec(),
        directory: meta.is_dir(),
        length: Some(if meta.is_dir() { 0 } else { meta.len() }),
        mode: (meta.mode() & 0o777) as u16,
        mtime_s: meta.mtime(),
        mtime_ns: meta.mtime_nsec() as u32,
    }
}

impl Files {
    /// These files, and what is below these directories. A file is called by its last name, what is in a directory by the
    /// directory's and the path below it. Links and devices inside directories are skipped.
    ///
    /// # Errors
    /// If one can't be read, or can't be named.
    pub fn new(paths: &[PathBuf]) -> Result<Self, SourceError> {
        let mut found = Vec::new();
        let mut skipped = Vec::new();
        for path in paths {
            let meta = std::fs::metadata(path).map_err(|error| read_error(path, error))?;
            if !meta.is_file() && !meta.is_dir() {
                return Err(SourceError::Kind { path: path.clone() });
            }
            let whole = std::fs::canonicalize(path).map_err(|error| read_error(path, error))?;
            // A link's own name is the one that was asked for.
            let name = match path.file_name() {
                Some(name) => Some(name.as_bytes().to_vec()),
                None => whole.file_name().map(|name| name.as_bytes().to_vec()),
            };
            let name = name.ok_or_else(|| SourceError::NoName { path: path.clone() })?;
            walk(&whole, &name, &meta, &mut found, &mut skipped)?;
        }
        let mut names = BTreeSet::new();
        for (_, header) in &found {
            if !names.insert(header.path.clone()) {
                let name = String::from_utf8_lossy(&header.path).into_owned();
                return Err(SourceError::Twice { name });
            }
        }
        let mut at = START_BYTES as u64;
        let mut content = 0_u64;
        let mut id = Hasher::new_derive_key("rackweave cast 1 stream of files");
        let mut entries = Vec::with_capacity(found.len());
        for (local, header) in found {
            let mut record = Vec::new();
            format::file(&header, &mut record);
            id.update(&record);
            let length = header.length.unwrap_or(0);
            let data = at + record.len() as u64;
            let end = match header.directory {
                true => data,
                false => data + format::chunks_bytes(length) + FILE_END_BYTES as u64,
            };
            if end >= 1 << 47 {
                return Err(SourceError::Large);
            }
            let hashes = vec![None; length.div_ceil(CHUNK as u64) as usize];
            entries.push(Entry { header, local, start: at, data, end, hashes, single: None });
            at = end;
            content += length;
        }
        let mut stream = [0; 16];
        stream.copy_from_slice(&id.finalize().as_bytes()[..16]);
        Ok(Self {
            entries,
            length: at + END_BYTES as u64,
            content,
            stream: u128::from_be_bytes(stream),
            open: None,
            kept: VecDeque::new(),
            skipped,
        })
    }

    /// How many files and directories.
    #[must_use]
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Links and devices that are not sent.
    #[must_use]
    pub fn skipped(&self) -> &[PathBuf] {
        &self.skipped
    }

    /// A chunk with its front and hash.
    fn chunk(&mut self, entry: usize, chunk: u64) -> Result<Bytes, SourceError> {
        if let Some(found) = self.kept.iter().rev().find(|kept| (kept.0, kept.1) == (entry, chunk))
        {
            return Ok(found.2.clone());
        }
        let mut buffer = Vec::new();
        if self.kept.len() >= KEPT
            && let Some((_, _, old)) = self.kept.pop_front()
            && old.is_unique()
        {
            buffer = Vec::from(old);
        }
        let len = self.entries[entry].chunk_len(chunk);
        buffer.resize(CHUNK_FRONT + len + HASH, 0);
        buffer[..CHUNK_FRONT].copy_from_slice(&format::chunk_front(len as u32));
        self.load(entry, chunk, &mut buffer[CHUNK_FRONT..CHUNK_FRONT + len])?;
        let hash = self.hash(entry, chunk, &buffer[CHUNK_FRONT..CHUNK_FRONT + len])?;
        buffer[CHUNK_FRONT + len..].copy_from_slice(&hash);
        let bytes = Bytes::from(buffer);
        self.kept.push_back((entry, chunk, bytes.clone()));
        Ok(bytes)
    }

    /// Hashes a chunk that was read; it must be what it was before.
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

    /// Reads a chunk of a file that must still be what it was.
    fn load(&mut self, index: usize, chunk: u64, to: &mut [u8]) -> Result<(), SourceError> {
        let entry = &self.entries[index];
        let path = &entry.local;
        if self.open.as_ref().is_none_or(|open| open.0 != index) {
            let file = File::open(path).map_err(|error| read_error(path, error))?;
            self.open = Some((index, file));
        }
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
        let meta = file.metadata().map_err(|error| read_error(path, error))?;
        let now = header_of(&entry.header.path, &meta);
        if (now.length, now.mtime_s, now.mtime_ns)
            != (entry.header.length, entry.header.mtime_s, entry.header.mtime_ns)
        {
            return Err(SourceError::Changed { path: path.clone() });
        }
        Ok(())
    }

    /// The file end record. Chunks that nobody has asked for, because receivers had them, are read for their hashes.
    fn file_end(&mut self, index: usize) -> Result<Bytes, SourceError> {
        let mut buffer = Vec::new();
        for chunk in 0..self.entries[index].hashes.len() as u64 {
            if self.entries[index].hashes[chunk as usize].is_none() {
                buffer.resize(self.entries[index].chunk_len(chunk), 0);
                self.load(index, chunk, &mut buffer)?;
                self.hash(index, chunk, &buffer)?;
            }
        }
        let entry = &self.entries[index];
        let mut tree = TreeHash::default();
        for hash in entry.hashes.iter().flatten() {
            tree.push(*hash, entry.single);
        }
        let mut record = Vec::with_capacity(FILE_END_BYTES);
        format::file_end(entry.length(), &tree.finish(), &mut record);
        Ok(Bytes::from(record))
    }

    /// The record at an offset, and where it begins.
    fn record(&mut self, offset: u64) -> Result<(Bytes, u64), SourceError> {
        if offset < START_BYTES as u64 {
            let mut record = Vec::new();
            format::start(&mut record);
            return Ok((record.into(), 0));
        }
        let index = self.entries.partition_point(|entry| entry.end <= offset);
        let Some(entry) = self.entries.get(index) else {
            let mut record = Vec::new();
            format::end(self.entries.len() as u64, self.content, &mut record);
            return Ok((record.into(), self.length - END_BYTES as u64));
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
        let chunk = (offset - entry.data) / FRAMED;
        let begins = entry.data + chunk * FRAMED;
        Ok((self.chunk(index, chunk)?, begins))
    }
}

fn walk(
    local: &Path,
    name: &[u8],
    meta: &Metadata,
    found: &mut Vec<(PathBuf, FileHeader)>,
    skipped: &mut Vec<PathBuf>,
) -> Result<(), SourceError> {
    format::check_path(name).map_err(|_| SourceError::NoName { path: local.to_owned() })?;
    found.push((local.to_owned(), header_of(name, meta)));
    if !meta.is_dir() {
        return Ok(());
    }
    let read = std::fs::read_dir(local).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let mut inside = read.map_err(|error| read_error(local, error))?;
    inside.sort_by_key(std::fs::DirEntry::file_name);
    for entry in inside {
        let path = entry.path();
        let meta = entry.metadata().map_err(|error| read_error(&path, error))?;
        if !meta.is_file() && !meta.is_dir() {
            skipped.push(path);
            continue;
        }
        let mut name = name.to_vec();
        name.push(b'/');
        name.extend_from_slice(entry.file_name().as_bytes());
        walk(&path, &name, &meta, found, skipped)?;
    }
    Ok(())
}

/// Cuts `len` bytes from `offset` on out of records; more than two pieces are made one.
fn gather(
    offset: u64,
    len: usize,
    out: &mut Payload,
    mut record: impl FnMut(u64) -> Result<(Bytes, u64), SourceError>,
) -> Result<(), SourceError> {
    let (mut at, end) = (offset, offset + len as u64);
    while at < end {
        let (bytes, begins) = record(at)?;
        let from = (at - begins) as usize;
        let to = bytes.len().min((end - begins) as usize);
        if from >= to {
            return Err(SourceError::Gone(at));
        }
        out.push(bytes.slice(from..to));
        at = begins + to as u64;
    }
    if out.len() > 2 {
        let joined: Vec<u8> = out.iter().flat_map(|bytes| bytes.iter().copied()).collect();
        out.clear();
        out.push(joined.into());
    }
    Ok(())
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

    fn read(&mut self, offset: u64, len: usize, out: &mut Payload) -> Result<(), SourceError> {
        if offset + len as u64 > self.length {
            return Err(SourceError::Gone(offset));
        }
        gather(offset, len, out, |at| self.record(at))
    }
}

/// Bytes of the spool that are also in memory.
const RECENT: usize = 16 << 20;

/// A pipe: a thread reads it and puts its records into a file that has no name, so that late receivers get them too.
pub struct Pipe {
    stream: u128,
    shared: Arc<Mutex<Spool>>,
    room: Arc<std::sync::Condvar>,
    reader: Option<Reader>,
}

struct Reader {
    input: Box<dyn Read + Send>,
    batch: usize,
    limit: u64,
}

impl std::fmt::Debug for Pipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipe").finish_non_exhaustive()
    }
}

struct Spool {
    file: File,
    folder: PathBuf,
    written: u64,
    content: u64,
    released: u64,
    punched: u64,
    ended: bool,
    /// Records that are in memory too, and where each begins.
    recent: VecDeque<(u64, Bytes)>,
    recent_bytes: usize,
    error: Option<SourceError>,
}

fn lock(spool: &Mutex<Spool>) -> MutexGuard<'_, Spool> {
    spool.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Spool {
    fn put(&mut self, record: Vec<u8>) -> Result<(), SourceError> {
        let spool = |source| SourceError::Spool { folder: self.folder.clone(), source };
        self.file.write_all_at(&record, self.written).map_err(spool)?;
        let bytes = Bytes::from(record);
        self.recent_bytes += bytes.len();
        self.recent.push_back((self.written, bytes.clone()));
        self.written += bytes.len() as u64;
        while self.recent_bytes > RECENT
            && let Some((_, old)) = self.recent.pop_front()
        {
            self.recent_bytes -= old.len();
        }
        Ok(())
    }

    fn record(&self, offset: u64) -> Result<(Bytes, u64), SourceError> {
        let index = self.recent.partition_point(|(begins, _)| *begins <= offset);
        if let Some((begins, bytes)) = index.checked_sub(1).and_then(|index| self.recent.get(index))
        {
            return Ok((bytes.clone(), *begins));
        }
        if offset < self.punched {
            return Err(SourceError::Gone(offset));
        }
        let first = self.recent.front().map_or(self.written, |(begins, _)| *begins);
        let mut buffer = vec![0; (first - offset).min(64 << 10) as usize];
        let spool = |source| SourceError::Spool { folder: self.folder.clone(), source };
        self.file.read_exact_at(&mut buffer, offset).map_err(spool)?;
        Ok((buffer.into(), offset))
    }
}

impl Pipe {
    /// A stream of one file with this name from `input`, whose bytes are kept below `folder`: all of them, or, with a
    /// limit, so many of them, and the input waits when receivers lack more. `stream` must be random; `batch` is what is read at a time.
    ///
    /// # Errors
    /// If there can be no such file.
    pub fn new(
        name: &str,
        input: Box<dyn Read + Send>,
        folder: &Path,
        stream: u128,
        batch: usize,
        limit: Option<u64>,
    ) -> Result<Self, SourceError> {
        let failed = |source| SourceError::Spool { folder: folder.to_owned(), source };
        let file = unnamed(folder, stream).map_err(failed)?;
        let mut spool = Spool {
            file,
            folder: folder.to_owned(),
            written: 0,
            content: 0,
            released: 0,
            punched: 0,
            ended: false,
            recent: VecDeque::new(),
            recent_bytes: 0,
            error: None,
        };
        let mut record = Vec::new();
        format::start(&mut record);
        let path = name.as_bytes().to_vec();
        let header = FileHeader {
            path,
            directory: false,
            length: None,
            mode: 0o644,
            mtime_s: 0,
            mtime_ns: 0,
        };
        format::file(&header, &mut record);
        spool.put(record)?;
        Ok(Self {
            stream,
            shared: Arc::new(Mutex::new(spool)),
            room: Arc::default(),
            reader: Some(Reader {
                input,
                batch: batch.clamp(1, CHUNK),
                limit: limit.unwrap_or(u64::MAX).max(2 * CHUNK as u64),
            }),
        })
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // A reader that waits for room ends.
        let mut spool = lock(&self.shared);
        spool.released = u64::MAX;
        spool.error = Some(SourceError::Gone(spool.written));
        self.room.notify_one();
    }
}

/// A file that vanishes with its last user.
fn unnamed(folder: &Path, number: u128) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let path = folder.join(format!(".rackweave-cast-{number:032x}.spool"));
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

impl Reader {
    fn run(mut self, shared: &Mutex<Spool>, room: &std::sync::Condvar, waker: &Waker) {
        let mut whole = Hasher::new();
        let mut total = 0_u64;
        loop {
            {
                let mut spool = lock(shared);
                while spool.written - spool.released.min(spool.written) > self.limit {
                    spool = room.wait(spool).unwrap_or_else(PoisonError::into_inner);
                }
                // Nobody sends it any more.
                if spool.error.is_some() {
                    return;
                }
            }
            let mut record = vec![0; CHUNK_FRONT + self.batch + HASH];
            let read = self.input.read(&mut record[CHUNK_FRONT..CHUNK_FRONT + self.batch]);
            let mut spool = lock(shared);
            let result = match read {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(read_error(Path::new("standard input"), error)),
                Ok(0) => {
                    record.clear();
                    format::file_end(total, whole.finalize().as_bytes(), &mut record);
                    format::end(1, total, &mut record);
                    spool.ended = true;
                    spool.put(record)
                }
                Ok(len) => {
                    record[..CHUNK_FRONT].copy_from_slice(&format::chunk_front(len as u32));
                    record.truncate(CHUNK_FRONT + len);
                    let bytes = &record[CHUNK_FRONT..];
                    whole.update(bytes);
                    let hash = blake3::hash(bytes);
                    record.extend_from_slice(hash.as_bytes());
                    total += len as u64;
                    spool.content = total;
                    spool.put(record)
                }
            };
            if let Err(error) = result {
                spool.ended = false;
                spool.error = Some(error);
            }
            let stop = spool.ended || spool.error.is_some();
            drop(spool);
            waker.wake();
            if stop {
                return;
            }
        }
    }
}

impl Source for Pipe {
    fn stream(&self) -> u128 {
        self.stream
    }

    fn available(&self) -> u64 {
        lock(&self.shared).written
    }

    fn end(&self) -> Option<u64> {
        let spool = lock(&self.shared);
        spool.ended.then_some(spool.written)
    }

    fn content(&self) -> u64 {
        lock(&self.shared).content
    }

    fn read(&mut self, offset: u64, len: usize, out: &mut Payload) -> Result<(), SourceError> {
        let spool = lock(&self.shared);
        if offset + len as u64 > spool.written {
            return Err(SourceError::Gone(offset));
        }
        gather(offset, len, out, |at| spool.record(at))
    }

    fn released(&mut self, below: u64) {
        let mut spool = lock(&self.shared);
        spool.released = spool.released.max(below);
        self.room.notify_one();
    }

    fn start(&mut self, waker: Waker) {
        if let Some(reader) = self.reader.take() {
            let (shared, room) = (Arc::clone(&self.shared), Arc::clone(&self.room));
            let started = std::thread::Builder::new().name("cast input".into());
            if let Err(source) = started.spawn(move || reader.run(&shared, &room, &waker)) {
                let folder = PathBuf::from("a thread");
                lock(&self.shared).error = Some(SourceError::Spool { folder, source });
            }
        }
    }

    fn error(&mut self) -> Option<SourceError> {
        lock(&self.shared).error.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{DecodeError, Decoder, Take};

    #[derive(Default)]
    struct Got(Vec<(String, bool, Vec<u8>)>, bool);

    impl Take for Got {
        type Error = DecodeError;
        fn file(&mut self, header: &FileHeader, _: u64) -> Result<(), DecodeError> {
            let name = String::from_utf8(header.path.clone()).unwrap();
            self.0.push((name, header.directory, Vec::new()));
            Ok(())
        }
        fn chunk(&mut self, bytes: &[u8], _: &Hash, _: u64) -> Result<(), DecodeError> {
            self.0.last_mut().unwrap().2.extend_from_slice(bytes);
            Ok(())
        }
        fn file_end(&mut self, _: u64, _: &Hash, _: u64) -> Result<(), DecodeError> {
            Ok(())
        }
        fn end(&mut self, _: u64, _: u64) -> Result<(), DecodeError> {
            self.1 = true;
            Ok(())
        }
    }

    fn read_all(source: &mut dyn Source, payload: usize) -> Got {
        let (mut got, mut decoder) = (Got::default(), Decoder::default());
        let end = source.end().unwrap();
        let mut at = 0;
        while at < end {
            let len = payload.min((end - at) as usize);
            let mut out = Payload::new();
            source.read(at, len, &mut out).unwrap();
            assert!(out.len() <= 2);
            assert_eq!(out.iter().map(Bytes::len).sum::<usize>(), len);
            for bytes in out {
                decoder.push(&bytes, &mut got).unwrap();
            }
            at += len as u64;
        }
        assert!(got.1);
        got
    }

    #[test]
    fn files_are_streams_that_can_be_read_anywhere() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("dir/sub/empty")).unwrap();
        let big: Vec<u8> = (0..2 * CHUNK + 100).map(|i| (i / 3) as u8).collect();
        std::fs::write(at("dir/sub/big"), &big).unwrap();
        std::fs::write(at("dir/none"), []).unwrap();
        for i in 0..30 {
            std::fs::write(at(&format!("dir/small{i:02}")), [i; 3]).unwrap();
        }
        std::os::unix::fs::symlink("/etc/passwd", at("dir/link")).unwrap();
        std::fs::write(at("one"), b"one").unwrap();
        let mut files = Files::new(&[at("one"), at("dir")]).unwrap();
        assert_eq!(files.skipped().len(), 1);
        let got = read_all(&mut files, 1424).0;
        assert_eq!(got[0], ("one".into(), false, b"one".to_vec()));
        assert_eq!(got[1].0, "dir");
        assert!(got[1].1);
        assert!(got.contains(&("dir/sub/big".into(), false, big)));
        assert!(got.contains(&("dir/sub/empty".into(), true, Vec::new())));
        assert_eq!(got.len(), files.count());
        // The same again is the same stream, and its end can be read without the rest.
        let mut again = Files::new(&[at("one"), at("dir")]).unwrap();
        assert_eq!(again.stream(), files.stream());
        let (mut first, mut second) = (Payload::new(), Payload::new());
        let end = files.end().unwrap();
        files.read(end - 1400, 1400, &mut first).unwrap();
        again.read(end - 1400, 1400, &mut second).unwrap();
        let join = |payload: Payload| payload.iter().flat_map(|b| b.to_vec()).collect::<Vec<_>>();
        assert_eq!(join(first), join(second));
    }

    #[test]
    fn a_file_that_changes_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, vec![1; 3 * CHUNK]).unwrap();
        let mut files = Files::new(std::slice::from_ref(&path)).unwrap();
        files.read(100, 1000, &mut Payload::new()).unwrap();
        std::fs::write(&path, vec![2; 3 * CHUNK - 5]).unwrap();
        let error = files.read(2 * CHUNK as u64, 1000, &mut Payload::new()).unwrap_err();
        assert!(matches!(error, SourceError::Changed { .. }), "{error}");
        let twice = Files::new(&[path.clone(), path]).unwrap_err();
        assert!(matches!(twice, SourceError::Twice { .. }));
    }

    #[test]
    fn a_pipe_is_spooled() {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..20 * CHUNK + 7).map(|i| (i / 5) as u8).collect();
        let input = Box::new(io::Cursor::new(bytes.clone()));
        let mut pipe = Pipe::new("pipe", input, folder.path(), 7, CHUNK, None).unwrap();
        let waker = Waker::new().unwrap();
        pipe.start(waker.clone());
        while pipe.end().is_none() {
            waker.wait_in_tests();
        }
        assert_eq!(pipe.content(), bytes.len() as u64);
        let got = read_all(&mut pipe, 5000).0;
        assert_eq!(got, [("pipe".into(), false, bytes)]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
