//! A cap on what is sent.

use std::cell::Cell;
use std::time::Duration;

use rackweave_core::time::TICKS_PER_SECOND;
use rackweave_core::{Rate, Span, Time};
use rackweave_linux::Clock;

/// The most that is sent at once after a pause: a time at the full rate.
const BURST: Span = Span::from_ms(20);

/// A token bucket for all connections of a process together.
#[derive(Debug)]
pub(crate) struct Limiter {
    rate: Option<Rate>,
    clock: Clock,
    /// When all that was sent so far would have ended at the rate.
    free: Cell<Time>,
}

impl Limiter {
    pub(crate) const fn new(rate: Option<Rate>, clock: Clock) -> Self {
        Self { rate, clock, free: Cell::new(Time::ZERO) }
    }

    /// How many bytes should be sent at once: about a millisecond's worth, or much without a cap.
    pub(crate) fn piece(&self) -> usize {
        self.rate.map_or(1 << 20, |rate| (rate.0 / 8000).clamp(4 << 10, 256 << 10) as usize)
    }

    /// Waits until this many bytes may be sent.
    pub(crate) async fn take(&self, bytes: usize) {
        let Some(Rate(bits_per_second)) = self.rate else { return };
        let now = self.clock.now();
        let start = self.free.get().max(now.saturating_sub(BURST));
        let takes = u128::from(bytes as u64) * 8 * u128::from(TICKS_PER_SECOND)
            / u128::from(bits_per_second.max(1));
        self.free
            .set(start.saturating_add(Span::from_ticks(u64::try_from(takes).unwrap_or(u64::MAX))));
        if start > now {
            tokio::time::sleep(Duration::from_nanos(start.since(now).as_ns())).await;
        }
    }
}
