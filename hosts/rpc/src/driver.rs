//! The task that turns the endpoint when packets arrive or a timer is due, and the timer, which it shares with
//! the callers that turn the endpoint themselves.

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
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::RuntimeFlavor;

use crate::state::Shared;

/// Turns before other tasks may run.
const TURNS: u32 = 8;

/// The kernel's timer: tokio's have a resolution of a millisecond.
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
        let fd = timerfd_create(TimerfdClockId::Boottime, flags)?;
        Ok(Self { fd: Arc::new(fd), clock })
    }

    /// Sets the timer to this time, replacing the earlier one; a time in the past fires at once.
    pub(crate) fn set(&self, at: Time) -> io::Result<()> {
        // Zero would disarm it.
        let it_value = self.clock.timespec(at.max(Time::from_ns(1)));
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval, it_value };
        timerfd_settime(self.fd.as_fd(), TimerfdTimerFlags::ABSTIME, &spec)?;
        Ok(())
    }
}

/// Drives a node until it stops. Dropping the future with its runtime stops the node, too.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    /// The socket and the timer.
    files: Option<(AsyncFd<OwnedFd>, AsyncFd<Timer>)>,
    /// The socket again, while its buffer is full. It is not registered permanently, because the kernel would wake the task
    /// for each datagram that has left.
    writable: Option<AsyncFd<OwnedFd>>,
    /// Whether a task that it wakes, or that wakes it, may run before ready ones: the runtime has several threads. To
    /// send what waits, it then lets the ready tasks run first.
    yields: bool,
    /// Whether it has done so.
    yielded: bool,
}

/// Registers a file with tokio.
#[expect(
    deprecated,
    reason = "what replaces it is unsafe, and asks for what holds here: files own \
    their descriptors and never change them"
)]
pub(crate) fn watch<T: AsRawFd>(file: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(file, interest)
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.lock().stop(None);
        // The port is free when `shutdown` returns.
        (self.files, self.writable) = (None, None);
        self.shared.lock().set_ended();
        self.shared.ended.notify_waiters();
    }
}

impl Driver {
    pub(crate) const fn new(
        shared: Arc<Shared>,
        socket: AsyncFd<OwnedFd>,
        timer: AsyncFd<Timer>,
        flavor: RuntimeFlavor,
    ) -> Self {
        let yields = !matches!(flavor, RuntimeFlavor::CurrentThread);
        Self { shared, files: Some((socket, timer)), writable: None, yields, yielded: false }
    }

    pub(crate) async fn run(mut self) {
        poll_fn(|cx| self.poll(cx)).await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some((socket, timer)) = &self.files else { return Poll::Ready(()) };
        for turn in 0..TURNS {
            let mut state = self.shared.lock();
            if state.is_stopped() {
                return Poll::Ready(());
            }
            if turn == 0 {
                state.driver_runs(cx.waker());
            }
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
            if !state.is_blocked() {
                self.writable = None;
            } else {
                match is_writable(&mut self.writable, socket, cx) {
                    Ok(writable) => due |= writable,
                    // Without a spare descriptor, the next turn tries again.
                    Err(_) => state.retry_soon(),
                }
            }
            if readable.is_none() && !due {
                if !state.is_dirty() {
                    return Poll::Pending;
                }
                if self.yields && !self.yielded {
                    self.yielded = true;
                    break;
                }
            }
            self.yielded = false;
            let left = state.drive(readable.is_some());
            if let Some(mut guard) = readable
                && !left
            {
                guard.clear_ready();
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Whether the socket is known to be writable; if not, the task is woken when it is.
fn is_writable(
    writable: &mut Option<AsyncFd<OwnedFd>>,
    socket: &AsyncFd<OwnedFd>,
    cx: &mut Context<'_>,
) -> io::Result<bool> {
    let file = match writable {
        Some(file) => file,
        None => writable.insert(watch(socket.get_ref().try_clone()?, Interest::WRITABLE)?),
    };
    match file.poll_write_ready(cx) {
        Poll::Ready(guard) => {
            // If it is full again, the next event reports it.
            guard?.clear_ready();
            Ok(true)
        }
        Poll::Pending => Ok(false),
    }
}
