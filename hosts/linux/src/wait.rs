//! Waiting until a socket is ready or a time has come.

use std::io;
use std::os::fd::BorrowedFd;

use rackweave_core::{Span, Time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smallvec::SmallVec;

use crate::Clock;

/// Waits until one of the descriptors is readable (or writable, if its flag asks for that), or until a time. It polls
/// for the span of `busy` before it sleeps. A signal also ends the wait.
///
/// # Errors
/// If polling fails.
pub fn until(
    clock: Clock,
    fds: &[(BorrowedFd<'_>, bool)],
    until: Option<Time>,
    busy: Span,
) -> io::Result<()> {
    let began = clock.now();
    let mut now = began;
    let mut polled: SmallVec<[PollFd<'_>; 8]> = fds
        .iter()
        .map(|(fd, writable)| {
            let out = if *writable { PollFlags::OUT } else { PollFlags::empty() };
            PollFd::new(fd, PollFlags::IN | out)
        })
        .collect();
    loop {
        let left = until.map(|until| until.since(now));
        if left.is_some_and(|left| left.ticks() == 0) {
            return Ok(());
        }
        let spinning = now.since(began) < busy;
        let timeout = if spinning { Some(Timespec::default()) } else { left.map(timespec) };
        match poll(&mut polled, timeout.as_ref()) {
            Ok(0) if spinning => now = clock.now(),
            Ok(_) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Converts a span to the system's type, rounded up to nanoseconds.
#[must_use]
pub const fn timespec(span: Span) -> Timespec {
    timespec_of_ns(span.as_ns_ceil())
}

pub(crate) const fn timespec_of_ns(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_rounded_up_and_split() {
        let split = |span| (timespec(span).tv_sec, timespec(span).tv_nsec);
        let spans = [Span::ZERO, Span::TICK, Span::from_ns(1)].map(split);
        assert_eq!(spans, [(0, 0), (0, 1), (0, 1)]);
        assert_eq!(split(Span::from_secs(3) + Span::from_ps(1_500)), (3, 2));
        let at = Clock::with_origin(5).timespec(Time::ZERO + Span::from_secs(2));
        assert_eq!((at.tv_sec, at.tv_nsec), (2, 5));
    }

    #[test]
    fn without_descriptors_it_is_a_sleep() {
        let clock = Clock::start();
        for busy in [Span::ZERO, Span::from_secs(1)] {
            let end = clock.now() + Span::from_ms(3);
            until(clock, &[], Some(end), busy).unwrap();
            assert!(clock.now() >= end);
        }
    }
}
