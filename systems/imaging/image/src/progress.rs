//! How far a long operation is, and the request to end it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The progress of one operation, shared with the thread that shows it.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    total: AtomicU64,
    stopped: AtomicBool,
}

impl Progress {
    /// Requests that the operation ends at the next chunk, with [`ImageError::Interrupted`](crate::ImageError).
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Returns whether [`Self::stop`] was called.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the image that have been processed, and all that will be; both are zero before the
    /// operation knows them.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }

    /// Starts a phase that processes this number of bytes. The library's functions do so themselves.
    pub fn start(&self, total: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    /// Adds to the bytes that have been processed.
    pub fn advance(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }
}
