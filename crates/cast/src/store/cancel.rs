//! Ending work that takes long.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Says to work that takes long, such as hashing a file, that its result is not needed any more. Clones share one state; the default is
/// never set.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Option<Arc<AtomicBool>>);

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
        if let Some(state) = &self.0 {
            state.store(true, Ordering::Release);
        }
    }

    /// Returns whether the result is not needed any more.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.as_ref().is_some_and(|state| state.load(Ordering::Acquire))
    }
}

/// A reader that fails once the result is not needed any more.
pub(crate) struct UntilCancelled<'a, R>(pub(crate) R, pub(crate) &'a Cancel);

impl<R: io::Read> io::Read for UntilCancelled<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.1.is_set() { Err(io::Error::other("cancelled")) } else { self.0.read(buffer) }
    }
}
