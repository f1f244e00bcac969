//! The task that turns the endpoint when packets come or the time has come, and the timer that it shares with
//! whoever else turns it.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::task::{Context, Poll};

use rackweave_core::Time;
use rackweave_linux::Clock;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use crate::state::Shared;

/// Turns without letting other tasks run.
const TURNS: u32 = 8;

/// The kernel's timer: tokio's have a grain of a millisecond.
#[derive(Clone, Debug)]
pub(crate) struct Timer {
    fd: Arc<OwnedFd>,
    clock: Clock,
}

impl AsRawFd for Timer {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Timer {
    pub(crate) fn new(clock: Clock) -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { fd: Arc::new(fd), clock })
    }

    /// It fires at this time, at once if that has passed, and not at the time it was set to before.
    pub(crate) fn set(&self, at: Time) -> io::Result<()> {
        // Zero would stop it.
        let ns = self.clock.monotonic_ns(at).max(1);
        let it_value =
            Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval, it_value };
        timerfd_settime(self.fd.as_fd(), TimerfdTimerFlags::ABSTIME, &spec)?;
        Ok(())
    }
}

/// Drives a node until it stops; the node stops, too, if this is dropped with its runtime.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    /// The socket and the timer.
    files: Option<(AsyncFd<OwnedFd>, AsyncFd<Timer>)>,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.lock().stop(None);
        // The port is free when shutdown returns.
        self.files = None;
        self.shared.lock().set_ended();
        self.shared.ended.notify_waiters();
    }
}

impl Driver {
    pub(crate) const fn new(
        shared: Arc<Shared>,
        socket: AsyncFd<OwnedFd>,
        timer: AsyncFd<Timer>,
    ) -> Self {
        Self { shared, files: Some((socket, timer)) }
    }

    pub(crate) async fn run(self) {
        poll_fn(|cx| self.poll(cx)).await;
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let Some((socket, timer)) = &self.files else { return Poll::Ready(()) };
        for _ in 0..TURNS {
            let mut state = self.shared.lock();
            if state.is_stopped() {
                return Poll::Ready(());
            }
            state.set_driver(cx.waker());
            let readable = match socket.poll_read_ready(cx) {
                Poll::Ready(Ok(guard)) => Some(guard),
                Poll::Ready(Err(error)) => {
                    state.stop(Some(error));
                    return Poll::Ready(());
                }
                Poll::Pending => None,
            };
            let mut due = state.take_due();
            if let Poll::Ready(Ok(mut guard)) = timer.poll_read_ready(cx) {
                guard.clear_ready();
                state.timer_fired();
                due = true;
            }
            if state.is_blocked()
                && let Poll::Ready(Ok(mut guard)) = socket.poll_write_ready(cx)
            {
                // If it blocks again, the next event says when not any more.
                guard.clear_ready();
                due = true;
            }
            if readable.is_none() && !due {
                return Poll::Pending;
            }
            let drained = state.turn();
            if let Some(mut guard) = readable
                && drained
            {
                guard.clear_ready();
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
