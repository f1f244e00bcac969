//! What `cast send` reads: files, whose last bytes are readable only after work, or a pipe, which gives back what no receiver needs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rackweave_cast::format::tree::{TreeHash, chunk_hash};
use rackweave_cast::format::{self, CHUNK, FileHeader, Hash, StreamDigest};
use rackweave_cast::source::{Catalogue, Payload, Source, SourceError};
use rackweave_core::{Rate, Span};

/// The stream that is sent.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) number: u128,
    pub(super) bytes: Vec<u8>,
}

/// The streams of any of the files: `cast send` sends what a receiver lacks.
#[derive(Debug)]
pub(super) struct Streams {
    seed: u64,
    files: Vec<(FileHeader, Vec<u8>)>,
    all: Arc<Stream>,
    made: Mutex<BTreeMap<u128, Arc<Stream>>>,
}

impl Streams {
    pub(super) fn new(seed: u64, files: Vec<(FileHeader, Vec<u8>)>) -> Self {
        let all = Arc::new(Stream { number: 0, bytes: Vec::new() });
        let mut this = Self { seed, files, all, made: Mutex::default() };
        this.all = this.of(&|_| true);
        this
    }

    /// The stream of all files.
    pub(super) const fn all(&self) -> &Arc<Stream> {
        &self.all
    }

    /// Returns a stream that was made before.
    pub(super) fn get(&self, number: u128) -> Option<Arc<Stream>> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.get(&number).cloned()
    }

    fn of(&self, wanted: &dyn Fn(u32) -> bool) -> Arc<Stream> {
        let chosen = (0..).zip(&self.files).filter(|(entry, _)| wanted(*entry));
        let mut number = u128::from(self.seed) << 64 & !(1 << 127);
        let (mut out, mut digest, mut count, mut total) =
            (Vec::new(), StreamDigest::default(), 0, 0);
        format::start(&mut out);
        for (entry, (header, bytes)) in chosen {
            number |= 1 << entry;
            count += 1;
            format::file(header, &mut out);
            digest.file(header);
            if !header.is_file() {
                continue;
            }
            let hash = hash_of(bytes, |number, chunk, hash| {
                if header.is_hole(number) {
                    return;
                }
                out.extend_from_slice(&format::chunk_front(chunk.len() as u32));
                out.extend_from_slice(chunk);
                out.extend_from_slice(hash);
            });
            format::file_end(bytes.len() as u64, &hash, &mut out);
            digest.file_end(&hash);
            total += bytes.len() as u64;
        }
        format::digest(&digest, &mut out);
        format::end(count, total, &mut out);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(made.entry(number).or_insert_with(|| Arc::new(Stream { number, bytes: out })))
    }
}

/// Returns the hash of a file, and passes on its chunks with their hashes.
fn hash_of(bytes: &[u8], mut each: impl FnMut(u64, &[u8], &Hash)) -> Hash {
    let mut tree = TreeHash::default();
    for (number, chunk) in (0..).zip(bytes.chunks(CHUNK)) {
        let (hash, single) = chunk_hash(number, chunk);
        each(number, chunk, &hash);
        tree.push(hash, single);
    }
    tree.finish()
}

/// The files that `cast send` was given.
pub(super) struct Files {
    pub(super) streams: Arc<Streams>,
    pub(super) reads: Reads,
}

impl Catalogue for Files {
    fn headers(&self) -> Vec<FileHeader> {
        self.streams.files.iter().map(|(header, _)| header.clone()).collect()
    }

    fn hash(&mut self, entry: u32) -> Result<Option<Hash>, SourceError> {
        let file = self.streams.files.get(entry as usize).filter(|(header, _)| header.is_file());
        Ok(file.map(|(_, bytes)| hash_of(bytes, |_, _, _| ())))
    }

    fn stream(&self, wanted: &dyn Fn(u32) -> bool) -> Result<Box<dyn Source>, SourceError> {
        Ok(Box::new(Reader::new(&self.streams.of(wanted), self.reads).0))
    }
}

/// How the stream is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// Every byte at once.
    Memory,
    /// Bytes must be prepared before they can be read ([`SourceError::NotYet`]), as those of files.
    Files,
    /// Bytes come at a rate, and wait while receivers still need more than `limit` bytes, which is the spool's.
    Pipe {
        /// The rate of the bytes.
        rate: Rate,
        /// The limit in bytes.
        limit: Option<u64>,
    },
}

/// The bytes that one call of [`Source::work`] prepares.
const WORK: u64 = 300_000;

/// As in `cast::source::Pipe`: space is given back in pieces of this size.
const PUNCH: u64 = 256 << 10;

#[derive(Debug, Default)]
struct State {
    written: u64,
    released: u64,
}

/// The part of a pipe that fills with time.
#[derive(Clone, Debug)]
pub(super) struct Pipe {
    state: Arc<Mutex<State>>,
    length: u64,
    rate: Rate,
    limit: Option<u64>,
}

impl Pipe {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets what has come in this span be read. Returns whether more may come.
    pub(super) fn fill(&self, span: Span) -> bool {
        let mut state = self.state();
        let most = self.limit.map_or(u64::MAX, |limit| state.released.saturating_add(limit));
        let more = state.written.saturating_add(self.rate.bytes_in(span));
        state.written = more.min(most).min(self.length).max(state.written);
        state.written < self.length
    }

    /// Returns the offset below which bytes were given back.
    pub(super) fn readable_from(&self) -> u64 {
        let state = self.state();
        if self.limit.is_none() { 0 } else { state.released.min(state.written) / PUNCH * PUNCH }
    }
}

/// The source of one `cast send`.
#[derive(Debug)]
pub(super) struct Reader {
    stream: Arc<Stream>,
    /// The bytes that are prepared, and the bytes that a read has needed.
    prepared: u64,
    wanted: u64,
    pipe: Option<Pipe>,
}

impl Reader {
    /// Returns the source, and its pipe if it is one.
    pub(super) fn new(stream: &Arc<Stream>, reads: Reads) -> (Self, Option<Pipe>) {
        let length = stream.bytes.len() as u64;
        let pipe = match reads {
            Reads::Pipe { rate, limit } => {
                Some(Pipe { state: Arc::default(), length, rate, limit })
            }
            _ => None,
        };
        let prepared = if reads == Reads::Files { 0 } else { length };
        (Self { stream: Arc::clone(stream), prepared, wanted: 0, pipe: pipe.clone() }, pipe)
    }

    fn length(&self) -> u64 {
        self.stream.bytes.len() as u64
    }
}

impl Source for Reader {
    fn stream(&self) -> u128 {
        self.stream.number
    }

    fn available(&self) -> u64 {
        self.pipe.as_ref().map_or(self.length(), |pipe| pipe.state().written)
    }

    fn end(&self) -> Option<u64> {
        Some(self.length()).filter(|length| self.available() == *length)
    }

    fn content(&self) -> u64 {
        self.available()
    }

    fn read(&mut self, offset: u64, len: usize, out: &mut Payload) -> Result<(), SourceError> {
        let end = offset + len as u64;
        let gone = self.pipe.as_ref().is_some_and(|pipe| offset < pipe.readable_from());
        if gone || end > self.available() {
            return Err(SourceError::Gone(offset));
        }
        if end > self.prepared {
            self.wanted = end;
            return Err(SourceError::NotYet(offset));
        }
        out.push(self.stream.bytes[offset as usize..end as usize].to_vec().into());
        Ok(())
    }

    fn readable_from(&self) -> u64 {
        self.pipe.as_ref().map_or(0, Pipe::readable_from)
    }

    fn released(&mut self, below: u64) {
        if let Some(pipe) = &self.pipe {
            let mut state = pipe.state();
            state.released = state.released.max(below);
        }
    }

    fn work(&mut self) -> bool {
        self.prepared = (self.prepared + WORK).min(self.length());
        self.prepared < self.wanted
    }
}
