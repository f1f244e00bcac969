//! What `cast send` reads: files, whose last bytes are readable only after work, or a pipe, which gives back what no receiver needs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rackweave_cast::source::{Payload, Source, SourceError};
use rackweave_core::{Rate, Span};

/// The stream that is sent.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) number: u128,
    pub(super) bytes: Vec<u8>,
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
