//! Where a stream's bytes come from: files, which are read again when that is needed, or a pipe, which is spooled.

mod files;
mod pipe;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use smallvec::SmallVec;

pub use self::files::Files;
pub use self::pipe::Pipe;
use crate::wake::Waker;

/// A packet's payload: one piece, or two at the border of records.
pub type Payload = SmallVec<[Bytes; 2]>;

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
    /// Its bytes can't be counted before they are read.
    #[error("{path} holds something, though its length is 0: send it by standard input")]
    NoLength {
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
    /// An application that gives streams at an agent's door.
    #[error("the application's stream broke off at byte {had} of {length}")]
    Cut {
        /// Bytes that came.
        had: u64,
        /// Bytes that were to come.
        length: u64,
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

fn read_error(path: &Path, source: io::Error) -> SourceError {
    SourceError::Read { path: path.to_owned(), source }
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
