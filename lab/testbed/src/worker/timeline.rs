//! What hosts need whose application runs in threads of its own: the time since the load started, and the bytes on their link.

use rackweave_core::{Span, Time};
use rackweave_linux::Clock;
use rackweave_linux::netns::HOST_INTERFACE;

use crate::protocol::Bind;

/// A time line that starts with the load.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeLine {
    pub(super) clock: Clock,
    pub(super) start: Span,
}

impl TimeLine {
    /// Returns the time line that the coordinator gives to all hosts.
    pub(super) fn new(bind: &Bind) -> Self {
        Self {
            clock: Clock::with_origin(bind.origin_ns),
            start: Span::from_ticks(bind.start_ticks),
        }
    }

    /// Returns the time since the load started; `None` before.
    pub(super) fn now(self) -> Option<Time> {
        self.clock.now().ticks().checked_sub(self.start.ticks()).map(Time::from_ticks)
    }

    /// Returns the time since the load started; zero before.
    pub(super) fn since(self) -> Time {
        self.now().unwrap_or(Time::ZERO)
    }

    /// Waits until this time.
    pub(super) fn wait_until(self, at: Time) {
        let at = at.saturating_add(self.start);
        pause(Span::from_ticks(at.ticks().saturating_sub(self.clock.now().ticks())));
    }
}

#[expect(clippy::disallowed_methods, reason = "a thread without a socket of its own to wait for")]
pub(super) fn pause(span: Span) {
    std::thread::sleep(std::time::Duration::from_nanos(span.as_ns_ceil()));
}

/// The bytes of a frame on Ethernet that an interface's counters do not include: checksum, preamble, and gap.
const BEYOND_FRAME: u64 = 24;

/// Counts the bytes that this host sends over its link, including Ethernet's preamble and gap.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkMeter {
    /// Bytes and packets before.
    before: (u64, u64),
}

impl LinkMeter {
    pub(super) fn start() -> Self {
        Self { before: link_counters() }
    }

    /// Returns the number of bytes sent since the start.
    pub(super) fn bytes(self) -> u64 {
        let after = link_counters();
        after.0.saturating_sub(self.before.0) + BEYOND_FRAME * after.1.saturating_sub(self.before.1)
    }
}

/// Returns the number of bytes and packets sent over this host's interface.
fn link_counters() -> (u64, u64) {
    // The counters must be those of this thread's network namespace, because the process started in another one.
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let line = table.lines().find_map(|line| {
        let (name, numbers) = line.split_once(':')?;
        (name.trim() == HOST_INTERFACE).then_some(numbers)
    });
    // Eight columns of received traffic precede the bytes and packets sent.
    let column = |nth| {
        let word = line?.split_whitespace().nth(nth)?;
        word.parse().ok()
    };
    (column(8).unwrap_or(0), column(9).unwrap_or(0))
}
