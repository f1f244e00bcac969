//! Where a stream goes: files aside until their hashes are right, or a pipe.

mod drain;
mod folder;
mod state;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::path::PathBuf;

use bytes::Bytes;
pub use drain::{Drain, MakeSink, Window};
pub use folder::{Folder, FolderConfig};

use crate::format::{DecodeError, Decoder, FileHeader, Hash, Take};
use crate::store::StoreError;

/// Why a stream can't be taken.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// What came is not what was sent, or no stream.
    #[error(transparent)]
    Stream(#[from] DecodeError),
    /// A file cannot be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// One file was asked for.
    #[error("the stream holds several files: --dir takes them, --out only one")]
    Several,
    /// An application that takes streams at an agent's door.
    #[error("the application does not take it: {0}")]
    Application(String),
    /// Who reads a pipe is gone.
    #[error("nobody reads the output any more: {0}")]
    Pipe(io::Error),
}

impl SinkError {
    /// Whether the bytes are at fault, not this host.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        matches!(self, Self::Stream(_))
    }
}

/// What a receiver does with a stream. It is called by a thread of its own and may block: the sender waits then.
pub trait Sink: Send {
    /// Offset in the stream of the first byte that it needs.
    fn begins_at(&self) -> u64;

    /// The next bytes.
    ///
    /// # Errors
    /// What stops it for good.
    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkError>;

    /// The next bytes, which it may keep for a while instead of copying them.
    ///
    /// # Errors
    /// As [`Self::put`].
    fn put_shared(&mut self, bytes: &Bytes) -> Result<(), SinkError> {
        self.put(bytes)
    }

    /// Whether the stream is complete, checked, and where it belongs.
    fn is_complete(&self) -> bool;

    /// Files that are complete.
    fn files(&self) -> Vec<FileDone> {
        Vec::new()
    }

    /// Bytes of files so far, and of the files that have begun, where that is known.
    fn content(&self) -> (u64, Option<u64>) {
        (0, None)
    }
}

/// A file that is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDone {
    /// Where it is.
    pub path: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
    /// BLAKE3: what `b3sum` prints.
    pub hash: Hash,
}

/// The one file of a stream, into a pipe. Each chunk goes once its hash is right.
pub struct PipeSink<W> {
    decoder: Decoder,
    to: PipeTake<W>,
}

struct PipeTake<W> {
    to: W,
    files: u64,
    bytes: u64,
    /// What is being put, ...
    now: Bytes,
    /// ... and what of the chunk waits for its hash: pieces that are kept as they came, ...
    held: Vec<Bytes>,
    /// ... and behind them short ones, copied.
    short: Vec<u8>,
}

/// A piece that is shorter is copied: to keep it would cost more.
const SHORT: usize = 4096;

impl<W> std::fmt::Debug for PipeSink<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PipeSink").field("bytes", &self.to.bytes).finish_non_exhaustive()
    }
}

impl<W: Write> PipeSink<W> {
    /// Into this.
    pub fn new(to: W) -> Self {
        let (now, held, short) = (Bytes::new(), Vec::new(), Vec::new());
        let to = PipeTake { to, files: 0, bytes: 0, now, held, short };
        Self { decoder: Decoder::default(), to }
    }
}

impl<W> PipeTake<W> {
    fn hold_short(&mut self) {
        if !self.short.is_empty() {
            self.held.push(std::mem::take(&mut self.short).into());
        }
    }
}

impl<W: Write> Take for PipeTake<W> {
    type Error = SinkError;

    fn file(&mut self, header: &FileHeader, _: u64) -> Result<(), SinkError> {
        self.files += 1;
        if self.files > 1 || header.directory { Err(SinkError::Several) } else { Ok(()) }
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        if bytes.len() < SHORT {
            self.short.extend_from_slice(bytes);
            return Ok(());
        }
        self.hold_short();
        self.held.push(self.now.slice_ref(bytes));
        Ok(())
    }

    fn chunk(&mut self, _: &Hash, _: u64) -> Result<(), SinkError> {
        self.hold_short();
        for bytes in self.held.drain(..) {
            self.bytes += bytes.len() as u64;
            self.to.write_all(&bytes).map_err(SinkError::Pipe)?;
        }
        self.to.flush().map_err(SinkError::Pipe)
    }

    fn file_end(&mut self, _: u64, _: &Hash, _: u64) -> Result<(), SinkError> {
        Ok(())
    }

    fn end(&mut self, _: u64, _: u64) -> Result<(), SinkError> {
        Ok(())
    }
}

impl<W: Write + Send> Sink for PipeSink<W> {
    fn begins_at(&self) -> u64 {
        0
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        self.put_shared(&Bytes::copy_from_slice(bytes))
    }

    fn put_shared(&mut self, bytes: &Bytes) -> Result<(), SinkError> {
        self.to.now = bytes.clone();
        let result = self.decoder.push(bytes, &mut self.to);
        self.to.now = Bytes::new();
        result
    }

    fn is_complete(&self) -> bool {
        self.decoder.is_ended()
    }

    fn content(&self) -> (u64, Option<u64>) {
        (self.to.bytes, None)
    }
}
