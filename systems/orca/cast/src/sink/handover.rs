//! What an attempt at a stream leaves to the next one of the same process.
//!
//! An attempt that finds another file in place of the one that is sent ends, and the next one begins with that file. What comes before it
//! was verified by the first attempt: to hash it once more for each such file would take time that grows with the square of their number.
//! The next attempt is therefore told of it, as if there had been one attempt. After any other end, and in another process, everything is
//! hashed ([`super::state`]).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::FileDone;
use super::folder::Names;
use super::state::{Place, State};
use crate::format::{FileHeader, StreamDigest};

/// The largest number of streams whose senders have not come back yet. Further ones are hashed.
const MAX_HANDOVERS: usize = 64;

/// An attempt's progress.
#[derive(Debug)]
pub(super) struct Handover {
    pub(super) state: Option<State>,
    /// The file with which the next attempt begins, and the position of its first chunk.
    pub(super) header: FileHeader,
    pub(super) place: Place,
    /// The digest of what is before it.
    pub(super) digest: StreamDigest,
    pub(super) done: Vec<FileDone>,
    pub(super) directories: Vec<FileHeader>,
    pub(super) names: Names,
}

/// The progress of attempts whose next ones have not begun yet. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Handovers(Arc<Mutex<BTreeMap<u128, Handover>>>);

impl Handovers {
    pub(super) fn put(&self, stream: u128, handover: Handover) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < MAX_HANDOVERS {
            all.insert(stream, handover);
        }
    }

    /// Returns the progress of the last attempt at a stream, once.
    pub(super) fn take(&self, stream: u128) -> Option<Handover> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&stream)
    }
}
