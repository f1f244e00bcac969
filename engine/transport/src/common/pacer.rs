//! The pacer of a receiver's credit.

use rackweave_core::{Span, Time};

/// Maximum number of overdue credits that are given at once when the driver is late.
const CATCH_UP: u64 = 8;

/// Spaces the credit of a host, for all its messages together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    /// The earliest time of the next credit.
    next_at: Time,
}

impl Default for Pacer {
    fn default() -> Self {
        Self { next_at: Time::ZERO }
    }
}

impl Pacer {
    /// The earliest time of the next credit.
    #[inline]
    pub(crate) const fn next_at(&self) -> Time {
        self.next_at
    }

    /// Credit that could not be given until now is not given later in addition.
    #[inline]
    pub(crate) fn not_before(&mut self, now: Time) {
        self.next_at = self.next_at.max(now);
    }

    /// Forgets all overdue credits but the last few.
    pub(crate) fn limit_overdue(&mut self, now: Time, spacing: Span) {
        self.not_before(now.saturating_sub(spacing.saturating_mul(CATCH_UP)));
    }

    /// Accounts for credit whose data takes `span` on the link.
    #[inline]
    pub(crate) fn spend(&mut self, span: Span) {
        self.next_at = self.next_at.saturating_add(span);
    }
}
