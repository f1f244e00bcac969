//! Ending work that takes long, and seeing that it goes on.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Says to work that takes long, such as hashing a file, that its result is not needed any more. Clones share one state; the default is
/// never set. Whoever works looks at it in intervals, which shows that the work goes on ([`Cancel::checks`]).
#[derive(Clone, Debug, Default)]
pub struct Cancel(Option<Arc<Shared>>);

#[derive(Debug, Default)]
struct Shared {
    is_set: AtomicBool,
    begins_again: AtomicBool,
    checks: AtomicU64,
}

impl Cancel {
    /// Returns one that is never set.
    #[must_use]
    pub const fn never() -> Self {
        Self(None)
    }

    /// Returns one that is not set yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Some(Arc::default()))
    }

    /// Ends the work.
    pub fn set(&self) {
        if let Some(shared) = &self.0 {
            shared.is_set.store(true, Ordering::Release);
        }
    }

    /// Ends the work, which follows once more.
    pub fn set_to_begin_again(&self) {
        if let Some(shared) = &self.0 {
            shared.begins_again.store(true, Ordering::Relaxed);
        }
        self.set();
    }

    /// Returns whether the work that was ended follows once more.
    #[must_use]
    pub fn begins_again(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| shared.begins_again.load(Ordering::Relaxed))
    }

    /// Returns whether the result is not needed any more, and counts the call as progress of the work.
    #[must_use]
    pub fn is_set(&self) -> bool {
        let Some(shared) = &self.0 else { return false };
        shared.checks.fetch_add(1, Ordering::Relaxed);
        shared.is_set.load(Ordering::Acquire)
    }

    /// Returns how often the work has called [`Self::is_set`]. A number that stays the same means that the work waits for something,
    /// such as a disk that does not answer.
    #[must_use]
    pub fn checks(&self) -> u64 {
        self.0.as_ref().map_or(0, |shared| shared.checks.load(Ordering::Relaxed))
    }
}

/// A reader that fails once the result is not needed any more.
pub(crate) struct UntilCancelled<'a, R>(pub(crate) R, pub(crate) &'a Cancel);

impl<R: io::Read> io::Read for UntilCancelled<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.1.is_set() { Err(io::Error::other("cancelled")) } else { self.0.read(buffer) }
    }
}
