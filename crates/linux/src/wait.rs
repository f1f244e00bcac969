//! Waiting for sockets.

use std::io;
use std::os::fd::BorrowedFd;

use rackweave_core::{Span, Time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smallvec::SmallVec;

use crate::Clock;

/// Waits until one of these is readable (or writable, where that is asked for) or until a time; looks again and
/// again for the span of `busy` before it sleeps. A signal ends it too.
pub(crate) fn wait(
    clock: Clock,
    fds: &[(BorrowedFd<'_>, bool)],
    until: Option<Time>,
    busy: Span,
) -> io::Result<()> {
    let began = clock.now();
    let mut polled: SmallVec<[PollFd<'_>; 8]> = fds
        .iter()
        .map(|(fd, writable)| {
            let out = if *writable { PollFlags::OUT } else { PollFlags::empty() };
            PollFd::new(fd, PollFlags::IN | out)
        })
        .collect();
    loop {
        let now = clock.now();
        let left = until.map(|until| until.since(now));
        if left.is_some_and(|left| left.0 == 0) {
            return Ok(());
        }
        let spinning = now.since(began) < busy;
        let timeout = if spinning { Some(Timespec::default()) } else { left.map(timespec) };
        match poll(&mut polled, timeout.as_ref()) {
            Ok(0) if spinning => {}
            Ok(_) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn timespec(span: Span) -> Timespec {
    let ns = span.0.div_ceil(1000);
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}
