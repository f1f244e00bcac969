//! Waking a thread that waits for sockets.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

/// Wakes an engine from another thread.
#[derive(Clone, Debug)]
pub struct Waker(pub(crate) Arc<OwnedFd>);

impl Waker {
    /// Creates the underlying eventfd.
    ///
    /// # Errors
    /// If the process has no file descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)))
    }

    /// Makes the engine's current or next wait return immediately.
    pub fn wake(&self) {
        // Writing fails if the counter is full, which has the same effect.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Resets the waker; returns whether it was used.
    pub fn clear(&self) -> bool {
        rustix::io::read(&*self.0, &mut [0; 8]).is_ok()
    }

    #[cfg(test)]
    pub(crate) fn wait_in_tests(&self) {
        let mut fds = [rustix::event::PollFd::new(&*self.0, rustix::event::PollFlags::IN)];
        let _ = rustix::event::poll(&mut fds, None);
        self.clear();
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
