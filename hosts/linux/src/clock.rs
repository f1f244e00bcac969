//! Monotonic time, as protocol code expects it.

use rackweave_core::{Span, Time};
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::wait::timespec_of_ns;

/// A monotonic clock with an origin that the processes of one machine can share.
///
/// It is `CLOCK_BOOTTIME`, which goes on while the machine is suspended, as the time of its peers does: with `CLOCK_MONOTONIC` a transport
/// would send again, after a night, what its peers have long forgotten. To a process, a suspended machine thus looks like one that did
/// not schedule it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    origin_ns: u64,
    /// What the clock shows at its origin.
    age_ns: u64,
}

fn read_ns(id: ClockId) -> u64 {
    let time = clock_gettime(id);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Clock {
    /// Creates a clock whose origin is now.
    #[must_use]
    pub fn start() -> Self {
        Self::with_origin(read_ns(ClockId::Boottime))
    }

    /// Creates a clock whose origin is this number of nanoseconds on this machine's `CLOCK_BOOTTIME`.
    #[must_use]
    pub const fn with_origin(origin_ns: u64) -> Self {
        Self { origin_ns, age_ns: 0 }
    }

    /// Creates a clock that shows `age` now, as that of a process which has run for so long: for tests of long-lived
    /// processes.
    #[must_use]
    pub fn aged(age: Span) -> Self {
        Self { age_ns: age.as_ns(), ..Self::start() }
    }

    /// Returns the origin, for [`Clock::with_origin`] in another process.
    #[must_use]
    pub const fn origin_ns(self) -> u64 {
        self.origin_ns
    }

    /// Returns the time since the origin, or zero before it. The range is 5.8 years.
    #[must_use]
    pub fn now(self) -> Time {
        self.time_of_boot_ns(read_ns(ClockId::Boottime))
    }

    /// Converts nanoseconds of `CLOCK_BOOTTIME` to a time of this clock.
    #[must_use]
    pub const fn time_of_boot_ns(self, boot_ns: u64) -> Time {
        Time::from_ns(boot_ns.saturating_sub(self.origin_ns).saturating_add(self.age_ns))
    }

    /// Converts a time of this clock to nanoseconds of `CLOCK_BOOTTIME`.
    #[must_use]
    pub const fn boot_ns(self, at: Time) -> u64 {
        self.origin_ns.saturating_add(at.as_ns().saturating_sub(self.age_ns))
    }

    /// Converts a time of this clock to `CLOCK_BOOTTIME`, in the form that system timers use.
    #[must_use]
    pub const fn timespec(self, at: Time) -> Timespec {
        timespec_of_ns(self.boot_ns(at))
    }
}

/// Returns the nanoseconds to add to `CLOCK_REALTIME`, in which the kernel stamps packets, to get `CLOCK_BOOTTIME`.
#[must_use]
pub(crate) fn realtime_to_boot_ns() -> i64 {
    let realtime = read_ns(ClockId::Realtime);
    read_ns(ClockId::Boottime) as i64 - realtime as i64
}

/// Returns `CLOCK_REALTIME` in nanoseconds since 1970.
#[must_use]
pub(crate) fn realtime_ns() -> u64 {
    read_ns(ClockId::Realtime)
}
