//! The clock.

use rackweave_core::Time;
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::wait::timespec_of_ns;

/// Monotonic time since an origin, which processes of one machine can share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    origin_ns: u64,
}

const PS_PER_NS: u64 = 1000;

fn read_ns(id: ClockId) -> u64 {
    let time = clock_gettime(id);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Clock {
    /// A clock that begins now.
    #[must_use]
    pub fn start() -> Self {
        Self { origin_ns: read_ns(ClockId::Monotonic) }
    }

    /// The clock whose origin is at so many nanoseconds of this machine's `CLOCK_MONOTONIC`.
    #[must_use]
    pub const fn with_origin(origin_ns: u64) -> Self {
        Self { origin_ns }
    }

    /// Its origin: what [`Clock::with_origin`] wants.
    #[must_use]
    pub const fn origin_ns(self) -> u64 {
        self.origin_ns
    }

    /// The time since the origin; zero before it. It lasts for 213 days.
    #[must_use]
    pub fn now(self) -> Time {
        self.at(read_ns(ClockId::Monotonic))
    }

    /// The time at so many nanoseconds of `CLOCK_MONOTONIC`.
    #[must_use]
    pub const fn at(self, monotonic_ns: u64) -> Time {
        Time(monotonic_ns.saturating_sub(self.origin_ns).saturating_mul(PS_PER_NS))
    }

    /// `CLOCK_MONOTONIC`, in nanoseconds, at a time of this clock.
    #[must_use]
    pub const fn monotonic_ns(self, at: Time) -> u64 {
        self.origin_ns.saturating_add(at.0 / PS_PER_NS)
    }

    /// A time of this clock on `CLOCK_MONOTONIC`, as the system's timers take it.
    #[must_use]
    pub const fn timespec(self, at: Time) -> Timespec {
        timespec_of_ns(self.monotonic_ns(at))
    }
}

/// What to add to `CLOCK_REALTIME` (in which the kernel stamps packets) to get `CLOCK_MONOTONIC`, in nanoseconds.
#[must_use]
pub(crate) fn realtime_to_monotonic_ns() -> i64 {
    let realtime = read_ns(ClockId::Realtime);
    read_ns(ClockId::Monotonic) as i64 - realtime as i64
}

/// `CLOCK_REALTIME`, in nanoseconds since 1970.
#[must_use]
pub(crate) fn realtime_ns() -> u64 {
    read_ns(ClockId::Realtime)
}
