//! Where a received stream goes: into files, which get their names once their hashes are verified, or into a pipe.

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

use crate::format::{DecodeError, Decoder, FileHeader, Hash, Visitor};
use crate::store::StoreError;

/// Why a stream cannot be received.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The bytes are not a stream, or not what was sent.
    #[error(transparent)]
    Stream(#[from] DecodeError),
    /// A file cannot be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The stream has several files, and only one was expected.
    #[error("the stream holds several files: --dir takes them, --out only one")]
    Several,
    /// The application behind a control socket has refused or failed.
    #[error("the application does not take it: {0}")]
    Application(String),
    /// The reader of the output has closed it.
    #[error("nobody reads the output any more: {0}")]
    Pipe(io::Error),
}

impl SinkError {
    /// Whether the received bytes are at fault, and not this host.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        matches!(self, Self::Stream(_))
    }
}

/// The consumer of a stream. A thread of its own calls it, so it may block: the sender then waits.
pub trait Sink: Send {
    /// The offset in the stream of the first byte that it needs.
    fn begins_at(&self) -> u64;

    /// Takes the next bytes.
    ///
    /// # Errors
    /// If the stream cannot be received any further.
    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkError>;

    /// Takes the next bytes, which it may keep for a while instead of copying them.
    ///
    /// # Errors
    /// As [`Self::put`].
    fn put_shared(&mut self, bytes: &Bytes) -> Result<(), SinkError> {
        self.put(bytes)
    }

    /// Whether the stream is complete and verified, and its files have their names.
    fn is_complete(&self) -> bool;

    /// The complete files.
    fn files(&self) -> Vec<FileDone> {
        Vec::new()
    }

    /// Bytes of file content so far, and the bytes of all files begun so far, where that is known.
    fn content(&self) -> (u64, Option<u64>) {
        (0, None)
    }
}

/// A complete file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDone {
    /// Its path.
    pub path: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its BLAKE3 hash, as `b3sum` prints it.
    pub hash: Hash,
}

/// Writes the only file of a stream to a pipe, each chunk once its hash is verified.
pub struct PipeSink<W> {
    decoder: Decoder,
    to: PipeVisitor<W>,
}

struct PipeVisitor<W> {
    to: W,
    files: u64,
    bytes: u64,
    /// The bytes that are being put.
    now: Bytes,
    /// Pieces of the chunk that wait for its hash, kept without a copy ...
    held: Vec<Bytes>,
    /// ... and the short ones behind them, copied.
    short: Vec<u8>,
}

/// A shorter piece is copied, since keeping it would cost more memory than it has.
const SHORT: usize = 4096;

impl<W> std::fmt::Debug for PipeSink<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PipeSink").field("bytes", &self.to.bytes).finish_non_exhaustive()
    }
}

impl<W: Write> PipeSink<W> {
    /// A sink that writes to `to`.
    pub fn new(to: W) -> Self {
        let (now, held, short) = (Bytes::new(), Vec::new(), Vec::new());
        let to = PipeVisitor { to, files: 0, bytes: 0, now, held, short };
        Self { decoder: Decoder::default(), to }
    }
}

impl<W> PipeVisitor<W> {
    fn hold_short(&mut self) {
        if !self.short.is_empty() {
            self.held.push(std::mem::take(&mut self.short).into());
        }
    }
}

impl<W: Write> Visitor for PipeVisitor<W> {
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
