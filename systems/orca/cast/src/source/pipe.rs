//! A pipe as the source of a stream. It is spooled, so that it can be read again.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blake3::Hasher;
use bytes::Bytes;

use super::{Payload, Source, SourceError, gather, read_error};
use crate::format::{self, CHUNK, CHUNK_FRONT, FileHeader, HASH};
use crate::wake::Waker;

/// The number of bytes of the spool that are also kept in memory.
const RECENT: usize = 16 << 20;

/// Space is given back in multiples of this length, which is one of any file system's blocks.
pub(super) const PUNCH: u64 = 256 << 10;

/// A pipe as a [`Source`]: a thread reads it and writes its records to an unnamed file, from which late receivers are served.
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
    kind: Kind,
}

/// The kind of input.
#[derive(Clone, Copy)]
enum Kind {
    /// The input is the content of one file.
    File,
    /// The input is the records of a stream of this total length.
    Records(u64),
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
    /// The offset below which the file has no bytes any more.
    punched: u64,
    /// Whether the file gives back the space of bytes that no receiver needs.
    gives_back: bool,
    ended: bool,
    /// The offsets and bytes of the latest records.
    recent: VecDeque<(u64, Bytes)>,
    recent_bytes: usize,
    error: Option<SourceError>,
}

fn lock(spool: &Mutex<Spool>) -> MutexGuard<'_, Spool> {
    spool.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Spool {
    fn new(folder: &Path, number: u128, gives_back: bool) -> Result<Self, SourceError> {
        let failed = |source| SourceError::Spool { folder: folder.to_owned(), source };
        let file = unnamed(folder, number).map_err(failed)?;
        if gives_back {
            // Better now than when the limit is reached.
            punch(&file, 0, PUNCH)
                .map_err(|source| SourceError::NoLimit { folder: folder.to_owned(), source })?;
        }
        Ok(Self {
            file,
            folder: folder.to_owned(),
            written: 0,
            content: 0,
            released: 0,
            punched: 0,
            gives_back,
            ended: false,
            recent: VecDeque::new(),
            recent_bytes: 0,
            error: None,
        })
    }

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

    /// Records that no receiver needs the bytes below this offset, and gives back their space if there is a limit of it.
    fn release(&mut self, below: u64) {
        self.released = self.released.max(below);
        let upto = self.released.min(self.written) / PUNCH * PUNCH;
        if self.gives_back && upto > self.punched {
            match punch(&self.file, self.punched, upto - self.punched) {
                Ok(()) => self.punched = upto,
                Err(source) if self.error.is_none() => {
                    self.error = Some(SourceError::NoLimit { folder: self.folder.clone(), source });
                }
                Err(_) => {}
            }
        }
    }

    /// Appends the next bytes of a stream of records. An empty vector means that the input has ended early.
    fn put_some(&mut self, bytes: Vec<u8>, kind: Kind) -> Result<(), SourceError> {
        let Kind::Records(length) = kind else { return self.put(bytes) };
        let had = self.written + bytes.len() as u64;
        if bytes.is_empty() || had > length {
            return Err(SourceError::Cut { had, length });
        }
        // The length is known, so no end of file is needed: the connection stays open for the answer.
        self.ended = had == length;
        self.put(bytes)
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
    /// Creates the stream of one file with this name that is read from `input`. Its bytes are kept in `folder`. With a
    /// `limit`, the input waits while receivers still need more bytes than that. The space of bytes that none needs is
    /// given back, so that receivers that come later find the beginning gone. `stream` must be random. `batch` bytes
    /// are read at a time.
    ///
    /// # Errors
    /// If the spool cannot be created, or its file system cannot keep the limit.
    pub fn new(
        name: &str,
        input: Box<dyn Read + Send>,
        folder: &Path,
        stream: u128,
        batch: usize,
        limit: Option<u64>,
    ) -> Result<Self, SourceError> {
        let mut spool = Spool::new(folder, stream, limit.is_some())?;
        let mut record = Vec::new();
        format::start(&mut record);
        let path = name.as_bytes().to_vec();
        let header = FileHeader {
            attributes: None,
            owner: None,
            path,
            kind: format::RecordKind::File,
            length: None,
            mode: 0o644,
            mtime_s: 0,
            mtime_ns: 0,
        };
        format::file(&header, &mut record);
        spool.put(record)?;
        Ok(Self::over(spool, Reader::new(input, batch, limit, Kind::File), stream))
    }

    /// Creates a stream from the records that `input` delivers: `length` bytes in all, with `content` bytes of files in
    /// them. `number` must be random.
    ///
    /// # Errors
    /// If the spool cannot be created.
    pub fn records(
        input: Box<dyn Read + Send>,
        folder: &Path,
        (stream, number): (u128, u128),
        (length, content): (u64, u64),
        batch: usize,
        limit: Option<u64>,
    ) -> Result<Self, SourceError> {
        let mut spool = Spool::new(folder, number, limit.is_some())?;
        spool.content = content;
        Ok(Self::over(spool, Reader::new(input, batch, limit, Kind::Records(length)), stream))
    }

    fn over(spool: Spool, reader: Reader, stream: u128) -> Self {
        let shared = Arc::new(Mutex::new(spool));
        let stream = format::content_number(stream);
        Self { stream, shared, room: Arc::default(), reader: Some(reader) }
    }
}

#[cfg(test)]
impl Pipe {
    /// Returns the space that the spool takes on its file system.
    pub(super) fn space(&self) -> u64 {
        use std::os::unix::fs::MetadataExt as _;
        lock(&self.shared).file.metadata().expect("it is open").blocks() * 512
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // This ends a reader thread that waits for room.
        let mut spool = lock(&self.shared);
        spool.released = u64::MAX;
        spool.error = Some(SourceError::Gone(spool.written));
        self.room.notify_one();
    }
}

/// Makes a hole in a file, whose bytes take no space.
fn punch(file: &File, offset: u64, len: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, flags, offset, len).map_err(io::Error::from)
}

/// Creates a file without a name, which vanishes when it is closed.
fn unnamed(folder: &Path, number: u128) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let path = folder.join(format!(".rackweave-cast-{number:032x}.spool"));
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

impl Reader {
    fn new(input: Box<dyn Read + Send>, batch: usize, limit: Option<u64>, kind: Kind) -> Self {
        let limit = limit.unwrap_or(u64::MAX).max(2 * CHUNK as u64);
        Self { input, batch: batch.clamp(1, CHUNK), limit, kind }
    }

    fn run(mut self, shared: &Mutex<Spool>, room: &std::sync::Condvar, waker: &Waker) {
        let mut whole = Hasher::new();
        let mut total = 0_u64;
        loop {
            {
                let mut spool = lock(shared);
                while spool.written - spool.released.min(spool.written) > self.limit {
                    spool = room.wait(spool).unwrap_or_else(PoisonError::into_inner);
                }
                // The stream is no longer being sent.
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
                Ok(len) if matches!(self.kind, Kind::Records(_)) => {
                    record.drain(..CHUNK_FRONT);
                    record.truncate(len);
                    spool.put_some(record, self.kind)
                }
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

    fn readable_from(&self) -> u64 {
        lock(&self.shared).punched
    }

    fn released(&mut self, below: u64) {
        let mut spool = lock(&self.shared);
        spool.release(below);
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
