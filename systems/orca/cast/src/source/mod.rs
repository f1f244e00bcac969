//! The sources of streams: files, which are read again for retransmissions, or a pipe, which is spooled.

mod files;
mod listing;
mod memory;
mod pipe;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use smallvec::SmallVec;

pub use self::files::Files;
pub use self::listing::{Keeps, Listing, Skipped, Unmatched};
pub use self::memory::Memory;
pub use self::pipe::Pipe;
use crate::format::{FileHeader, Hash, Protected};
use crate::wake::Waker;

/// The payload of a packet: one piece, or two if it crosses the boundary between two records.
pub type Payload = SmallVec<[Bytes; 2]>;

/// No stream is as long as this, in bytes: the sequence space of 48-bit offsets is half of it.
const MAX_STREAM: u64 = 1 << 47;

/// Why a stream cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file has changed since its chunks were hashed.
    #[error("{path} has changed while it was sent")]
    Changed {
        /// The path of the file.
        path: PathBuf,
    },
    /// A spool cannot give back the space of bytes that no receiver needs any more.
    #[error(
        "{folder} is on a file system that cannot keep the limit of the spool (holes in files: {source}): choose another --spool, or no --spool-limit"
    )]
    NoLimit {
        /// The folder of the spool.
        folder: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The path is not a file, a directory or a pipe.
    #[error("{path} is neither a file nor a directory")]
    Kind {
        /// The path as given.
        path: PathBuf,
    },
    /// The length can be determined only by reading the file, as in `/proc`.
    #[error("{path} has content although its length is 0: send it through standard input")]
    NoLength {
        /// The path of the file.
        path: PathBuf,
    },
    /// The path has no last component that could be its name in the stream.
    #[error("{path} has no file name that receivers accept")]
    NoName {
        /// The path as given.
        path: PathBuf,
    },
    /// Two files have the same name in the stream.
    #[error("two of the files have the name {name}")]
    Twice {
        /// The name that both would have.
        name: String,
    },
    /// The file alone is longer than the offsets of a stream allow.
    #[error("{path} is longer than 128 TB")]
    TooLong {
        /// The path of the file.
        path: PathBuf,
    },
    /// The stream is longer than 48-bit offsets allow.
    #[error("the stream is longer than 128 TB")]
    Large,
    /// The spool of a pipe cannot be written.
    #[error("cannot store standard input in {folder}: {source}")]
    Spool {
        /// The directory of the spool.
        folder: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// An application's stream at the control socket ended early.
    #[error("the application's stream ended early, at byte {had} of {length}")]
    Cut {
        /// The number of bytes received.
        had: u64,
        /// The number of bytes announced.
        length: u64,
    },
    /// The bytes cannot be read yet: [`Source::work`] must be called first.
    #[error("byte {0} of the stream is not ready")]
    NotYet(u64),
    /// The byte at this offset was released, or never existed.
    #[error("byte {0} of the stream is no longer available")]
    Gone(u64),
}

/// A stream to send.
pub trait Source: Send {
    /// Returns the identity of the content, which is the same after a restart if the content is the same.
    fn stream(&self) -> u128;

    /// Returns how many bytes from the beginning can be read now.
    fn available(&self) -> u64;

    /// Returns the length, once it is known.
    fn end(&self) -> Option<u64>;

    /// Returns the number of bytes of file content, as far as known.
    fn content(&self) -> u64;

    /// Appends `len` bytes from `offset` on to `out`.
    ///
    /// # Errors
    /// If they cannot be read.
    fn read(&mut self, offset: u64, len: usize, out: &mut Payload) -> Result<(), SourceError>;

    /// Returns the offset from which on all bytes that are available can be read, even after [`Self::released`].
    fn readable_from(&self) -> u64 {
        0
    }

    /// Allows the source to free the bytes below an offset, which will not be read again.
    fn released(&mut self, _below: u64) {}

    /// Starts the source. The waker is used when there is more to read. This is called once, before all other methods.
    fn start(&mut self, _waker: Waker) {}

    /// Works for some milliseconds on what a read needed that failed with [`SourceError::NotYet`]. Returns whether more
    /// is to be done.
    fn work(&mut self) -> bool {
        false
    }

    /// Returns the error that has stopped the source in the background, if there is one.
    fn error(&mut self) -> Option<SourceError> {
        None
    }
}

/// Files and directories, any part of them as a stream.
pub trait Catalogue: Send {
    /// Returns their names and attributes, directories before what is in them.
    fn headers(&self) -> Vec<FileHeader>;

    /// Returns the hash of a file, which is read for it; `None` for a directory.
    ///
    /// # Errors
    /// If it cannot be read.
    fn hash(&mut self, entry: u32) -> Result<Option<Hash>, SourceError>;

    /// Returns what receivers must not delete although it is not among them.
    fn protected(&self) -> Protected {
        Protected::default()
    }

    /// Returns the stream of those for which the function returns true.
    ///
    /// # Errors
    /// If it would be too long.
    fn stream(&self, wanted: &dyn Fn(u32) -> bool) -> Result<Box<dyn Source>, SourceError>;
}

fn read_error(path: &Path, source: io::Error) -> SourceError {
    SourceError::Read { path: path.to_owned(), source }
}

/// Collects `len` bytes from `offset` on from records; more than two pieces are joined into one.
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
