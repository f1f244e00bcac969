//! A blob that arrives in chunks.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rackweave_core::Bitmap;
use rackweave_disk::{Part, read_exact_at, write_all_at};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::CHUNK;
use crate::digest::{Digest, Hasher};
use crate::store::Store;

/// The largest blob: as many chunks as a directory has for an image.
pub(crate) const LARGEST: u64 = CHUNK << 20;

/// Why a blob does not arrive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    /// The registry has none of this digest.
    #[error("the registry does not have it")]
    Missing,
    /// Its content did not have its digest, from the registry either.
    #[error("what the registry sends does not have this digest")]
    Damaged,
    /// Something else, in a sentence.
    #[error("{0}")]
    Other(String),
}

/// Who has sent a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Registry,
    Node(SocketAddr),
}

/// What happened when a chunk was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// It was there already.
    Known,
    More,
    /// The blob is whole, and in the store, for which this number of others was removed.
    Whole(usize),
    /// All chunks are there, and do not have the digest. All are forgotten.
    Damaged,
}

#[derive(Debug)]
struct State {
    have: Bitmap<u32>,
    /// Which attempt this is: what was read of an earlier one was damaged.
    attempt: u32,
    outcome: Option<Result<(), Failure>>,
}

#[derive(Debug)]
struct Hashing {
    hasher: Option<Hasher>,
    next: u32,
}

/// A chunk that a node has sent, in an attempt whose content was damaged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suspect {
    chunk: u32,
    pub(crate) node: SocketAddr,
    digest: Digest,
}

/// A blob that arrives.
#[derive(Debug)]
pub(crate) struct Arriving {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    part: Part,
    state: Mutex<State>,
    hashing: Mutex<Hashing>,
    /// Held while a chunk is looked for, written and noted, and while all are forgotten: nobody writes to a chunk twice.
    writing: Mutex<()>,
    suspects: Mutex<Vec<Suspect>>,
    news: watch::Sender<()>,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Arriving {
    /// Makes a file for it.
    pub(crate) fn new(store: &Store, digest: Digest, size: u64) -> io::Result<Self> {
        let part = store.create(&digest)?;
        part.file().set_len(size)?;
        let chunks = u32::try_from(size.div_ceil(CHUNK)).unwrap_or(u32::MAX);
        let state = State { have: Bitmap::new(chunks), attempt: 0, outcome: None };
        let hashing = Hashing { hasher: Some(Hasher::new()), next: 0 };
        Ok(Self {
            digest,
            size,
            part,
            state: Mutex::new(state),
            hashing: Mutex::new(hashing),
            writing: Mutex::default(),
            suspects: Mutex::default(),
            news: watch::Sender::new(()),
        })
    }

    pub(crate) fn chunks(&self) -> u32 {
        u32::try_from(self.size.div_ceil(CHUNK)).unwrap_or(u32::MAX)
    }

    /// The bytes of a chunk.
    pub(crate) fn range(&self, chunk: u32) -> Range<u64> {
        let first = u64::from(chunk) * CHUNK;
        first..(first + CHUNK).min(self.size)
    }

    pub(crate) fn has(&self, chunk: u32) -> bool {
        locked(&self.state).have.contains(chunk)
    }

    /// The words of the chunks that are there.
    pub(crate) fn map(&self) -> Vec<u64> {
        locked(&self.state).have.words().to_vec()
    }

    pub(crate) fn outcome(&self) -> Option<Result<(), Failure>> {
        locked(&self.state).outcome.clone()
    }

    pub(crate) fn attempt(&self) -> u32 {
        locked(&self.state).attempt
    }

    /// It does not arrive.
    pub(crate) fn fail(&self, failure: Failure) {
        locked(&self.state).outcome.get_or_insert(Err(failure));
        self.news.send_replace(());
    }

    /// Takes in a chunk of an attempt, of its whole length. Blocks.
    pub(crate) fn write(
        &self,
        store: &Store,
        (chunk, attempt): (u32, u32),
        bytes: &[u8],
        source: Source,
    ) -> io::Result<Written> {
        {
            let _one = locked(&self.writing);
            let state = locked(&self.state);
            let is_late = state.attempt != attempt || state.outcome.is_some();
            if is_late || state.have.contains(chunk) {
                return Ok(Written::Known);
            }
            drop(state);
            write_all_at(self.part.file(), bytes, self.range(chunk).start)?;
            if let Source::Node(node) = source {
                let digest = Digest::of(bytes);
                locked(&self.suspects).push(Suspect { chunk, node, digest });
            }
            locked(&self.state).have.insert(chunk);
        }
        self.news.send_replace(());
        self.hash(store)
    }

    /// Hashes the chunks from the start on, up to the first missing one. The last one ends the blob.
    pub(crate) fn hash(&self, store: &Store) -> io::Result<Written> {
        let mut hashing = locked(&self.hashing);
        let mut buffer = Vec::new();
        while hashing.next < self.chunks() && self.has(hashing.next) {
            let range = self.range(hashing.next);
            buffer.resize(usize::try_from(range.end - range.start).unwrap_or(0), 0);
            read_exact_at(self.part.file(), &mut buffer, range.start)?;
            if let Some(hasher) = &mut hashing.hasher {
                hasher.update(&buffer);
            }
            hashing.next += 1;
        }
        if hashing.next < self.chunks() {
            return Ok(Written::More);
        }
        // Another chunk has ended it.
        let Some(hasher) = hashing.hasher.take() else { return Ok(Written::More) };
        if hasher.finish() == self.digest {
            let gone = store.publish(&self.digest, &self.part, self.size)?;
            locked(&self.state).outcome = Some(Ok(()));
            self.news.send_replace(());
            return Ok(Written::Whole(gone));
        }
        let _one = locked(&self.writing);
        *hashing = Hashing { hasher: Some(Hasher::new()), next: 0 };
        let mut state = locked(&self.state);
        state.have = Bitmap::new(self.chunks());
        state.attempt += 1;
        drop(state);
        self.news.send_replace(());
        Ok(Written::Damaged)
    }

    /// The chunks that nodes have sent otherwise than they are. Called when the blob is whole; blocks.
    pub(crate) fn damaged(&self) -> Vec<Suspect> {
        if self.attempt() == 0 {
            return Vec::new();
        }
        let mut suspects = std::mem::take(&mut *locked(&self.suspects));
        suspects.retain(|suspect| {
            let range = self.range(suspect.chunk);
            let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(0)];
            let read = read_exact_at(self.part.file(), &mut bytes, range.start);
            read.is_ok() && Digest::of(&bytes) != suspect.digest
        });
        suspects
    }

    /// Waits for the outcome.
    pub(crate) async fn ended(&self, patience: Duration) -> Result<(), Failure> {
        let mut news = self.news.subscribe();
        loop {
            news.borrow_and_update();
            if let Some(outcome) = self.outcome() {
                return outcome;
            }
            if !matches!(timeout(patience, news.changed()).await, Ok(Ok(()))) {
                return Err(Failure::Other("it does not arrive".to_owned()));
            }
        }
    }

    /// Reads bytes of one chunk, once it is there: within `patience`, and of this attempt. With `is_checked`, they wait for the digest.
    pub(crate) async fn read(
        self: &Arc<Self>,
        bytes: Range<u64>,
        attempt: u32,
        is_checked: bool,
        patience: Duration,
    ) -> io::Result<Bytes> {
        let chunk = u32::try_from(bytes.start / CHUNK).unwrap_or(u32::MAX);
        let mut news = self.news.subscribe();
        loop {
            news.borrow_and_update();
            {
                let state = locked(&self.state);
                if let Some(Err(failure)) = &state.outcome {
                    return Err(io::Error::other(failure.to_string()));
                }
                if state.attempt != attempt {
                    return Err(io::Error::other("its content was damaged"));
                }
                let waits = is_checked && state.outcome.is_none();
                if state.have.contains(chunk) && !waits {
                    break;
                }
            }
            match timeout(patience, news.changed()).await {
                Ok(Ok(())) => {}
                _ => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
        let blob = Arc::clone(self);
        let read = tokio::task::spawn_blocking(move || {
            let mut buffer = vec![0; usize::try_from(bytes.end - bytes.start).unwrap_or(0)];
            read_exact_at(blob.part.file(), &mut buffer, bytes.start)?;
            Ok::<_, io::Error>(Bytes::from(buffer))
        });
        let read = read.await.map_err(io::Error::other)??;
        // It may have been forgotten meanwhile.
        match self.attempt() == attempt {
            true => Ok(read),
            false => Err(io::Error::other("its content was damaged")),
        }
    }
}
