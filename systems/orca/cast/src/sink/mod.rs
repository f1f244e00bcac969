//! The destinations of received streams: files, which get their final names once their hashes are verified, or a pipe.

mod attributes;
mod comparing;
mod deleting;
mod drain;
mod folder;
mod handover;
mod output;
mod state;
#[cfg(test)]
mod tests;
mod window;

use std::io::{self, Write};
use std::path::PathBuf;

#[cfg(test)]
pub(crate) use attributes::tests::acl as acl_in_tests;
pub(crate) use attributes::{ACL, of as attributes_of, without_acl};
use bytes::Bytes;
pub use comparing::{Comparing, Manifests};
pub use drain::{Drain, MakeSink, SinkTask, SinkWork};
pub use folder::{Folder, FolderConfig};
pub use handover::Handovers;
pub use output::Output;
use rackweave_wire::orca::Reason;
pub use window::Window;

use crate::format::{DecodeError, Decoder, Deletion, FileHeader, Hash, Obstacle, Purpose, Visitor};
use crate::store::StoreError;

/// Why a stream cannot be received.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The bytes are not a valid stream, or not the sent ones.
    #[error(transparent)]
    Stream(#[from] DecodeError),
    /// A file cannot be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The stream has several files, but the sink takes only one.
    #[error("the stream has several files: use --dir, because --out takes only one")]
    Several,
    /// The application behind a control socket has refused the stream or failed.
    #[error("the application refuses the stream: {why}")]
    Application {
        /// What it says.
        why: String,
        /// The reason that the sender is given.
        reason: Reason,
    },
    /// The application behind a control socket has received other bytes than were sent.
    #[error("the application has received other bytes than were sent: {0}")]
    Damaged(String),
    /// The application behind a control socket writes nothing, not even that it is at work.
    #[error(
        "the application that takes the stream from this host's agent does not respond: it is stopped, or hangs"
    )]
    NoAnswer,
    /// The output takes no stream now.
    #[error("the output cannot take the stream: {0}")]
    Output(&'static str),
    /// The stream is to be forwarded along a chain of receivers, which this one does not do.
    #[error(
        "this receiver does not forward to the hosts that a sender names: start it with --forward"
    )]
    NoForwarding,
    /// The thread that is to write cannot be started.
    #[error("the system refuses a thread for the stream: {0}")]
    Thread(io::Error),
    /// Reading what an earlier attempt has stored does not go on.
    #[error(
        "what is here already of the stream cannot be read: the disk, or an earlier transfer of the same files, does not respond"
    )]
    Stuck,
    /// The patterns of what is not to be deleted are not understood.
    #[error("what the sender excludes cannot be read here, and so nothing is deleted: {0}")]
    Excludes(#[from] crate::excludes::ExcludesError),
    /// A file that was taken for the same has other content. The next attempt receives all of it.
    #[error("{0} has another content than the file that was sent")]
    Again(PathBuf),
    /// The bytes from this offset of the stream on are not the ones that the sender has sent.
    #[error("the bytes from {0} on are not those that the sender has sent")]
    Foreign(u64),
    /// The reader of the output has closed it.
    #[error("the reader of the output has closed it: {0}")]
    Pipe(io::Error),
}

impl SinkError {
    /// An application's error that is its own.
    #[must_use]
    pub fn application(why: impl Into<String>) -> Self {
        Self::Application { why: why.into(), reason: Reason::Refused }
    }

    /// Returns whether the received bytes are at fault, and not this host.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        matches!(self, Self::Stream(_) | Self::Foreign(_) | Self::Damaged(_))
    }

    /// Returns the reason that the sender is given. After [`Reason::Unknown`] it invites this host once more.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        match self {
            Self::Again(_) => Reason::Unknown,
            Self::Application { reason, .. } => *reason,
            Self::NoAnswer | Self::Stuck => Reason::Unresponsive,
            Self::Store(StoreError::Exists(_)) => Reason::Exists,
            Self::Store(StoreError::Full { .. }) => Reason::Full,
            _ if self.is_damage() => Reason::Damaged,
            _ => Reason::Refused,
        }
    }
}

/// The consumer of a stream. It is called by a thread of its own, so it may block; the sender then waits.
pub trait Sink: Send {
    /// Returns the offset in the stream of the first byte that it needs.
    fn begins_at(&self) -> u64;

    /// Consumes the next bytes.
    ///
    /// # Errors
    /// If the rest of the stream cannot be received.
    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkError>;

    /// Consumes the next bytes, which it may hold by reference instead of copying them.
    ///
    /// # Errors
    /// The same as for [`Self::put`].
    fn put_shared(&mut self, bytes: &Bytes) -> Result<(), SinkError> {
        self.put(bytes)
    }

    /// Returns the offset of the first byte that it needs, if it does not need the bytes before that. They may be put or
    /// omitted.
    fn needs_from(&self) -> Option<u64> {
        None
    }

    /// Records that all bytes before [`Self::needs_from`] that were not put are omitted.
    fn omit_rest(&mut self) {}

    /// Handles that no more bytes come, although the stream is not complete.
    fn interrupted(&mut self, _reason: Reason) {}

    /// Returns whether the stream is complete and verified, and its files have their final names.
    fn is_complete(&self) -> bool;

    /// Returns the complete files.
    fn files(&self) -> Vec<FileDone> {
        Vec::new()
    }

    /// Returns in what the files differ from the sender's, though they have the same bytes.
    fn caveats(&self) -> Caveats {
        Caveats::default()
    }

    /// Returns the bytes of file content so far, and the total length of all files begun so far, if it is known.
    fn content(&self) -> (u64, Option<u64>) {
        (0, None)
    }

    /// Returns the answer to the sender, if the stream was a manifest and is complete.
    fn answer(&self) -> Option<Answer> {
        None
    }
}

/// In what received files differ from the sender's, though they have the same bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caveats {
    /// The number of files and directories that have not all extended attributes that were sent.
    pub unkept: u64,
    /// The number of files, directories and links that have not the owner and the group that were sent.
    pub unowned: u64,
    /// The number of further names of files that are copies, because the system refuses hard links there.
    pub copied: u64,
    /// The number of files and links that keep their modes and times, because they belong to another user and are not replaced.
    pub foreign: u64,
}

impl Caveats {
    fn count(&mut self, kept: &attributes::Kept) {
        self.unkept += u64::from(!kept.all);
        self.unowned += u64::from(!kept.owned);
    }
}

/// What a manifest was found to have in common with a receiver's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// What the sender asks.
    pub purpose: Purpose,
    /// The number of files of the manifest.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The number of those files that the receiver lacks.
    pub lacking_files: u64,
    /// Their bytes.
    pub lacking_bytes: u64,
    /// Whether it lacks nothing, directories included.
    pub is_complete: bool,
    /// What was deleted.
    pub deletion: Deletion,
    /// Why nothing of the cast is taken.
    pub obstacle: Option<Obstacle>,
}

/// The answer to a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What the sender gets: encoded [`Findings`](crate::format::Findings).
    pub bytes: Bytes,
    /// What the receiver's user is shown.
    pub comparison: Comparison,
}

/// A file that was received completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDone {
    /// The path at which it was written.
    pub path: PathBuf,
    /// The length in bytes.
    pub bytes: u64,
    /// The BLAKE3 hash, as `b3sum` prints it.
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
    /// The bytes that are currently being put.
    now: Bytes,
    /// Pieces of the chunk that wait for its hash, held by reference.
    held: Vec<Bytes>,
    /// The short pieces after those in `held`, copied.
    short: Vec<u8>,
}

/// Shorter pieces are copied, since holding a reference would keep more memory than they take.
const SHORT: usize = 4096;

impl<W> std::fmt::Debug for PipeSink<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PipeSink").field("bytes", &self.to.bytes).finish_non_exhaustive()
    }
}

impl<W: Write> PipeSink<W> {
    /// Creates a sink that writes to `to`.
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
        if self.files > 1 || !header.is_file() { Err(SinkError::Several) } else { Ok(()) }
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

    fn hole(&mut self, len: usize, _: &Hash) -> Result<(), SinkError> {
        self.bytes += len as u64;
        self.to.write_all(&vec![0; len]).map_err(SinkError::Pipe)
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
