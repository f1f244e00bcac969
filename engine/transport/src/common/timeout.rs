//! Retransmission timeouts and probes of a message at its sender, as NDP and EQDS have them.

use rackweave_core::{RttEstimator, Span, Time};

use super::Jitter;

/// Bounds of a retransmission timeout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RtoBounds {
    pub(crate) min: Span,
    pub(crate) max: Span,
    /// A quarter of it is the longest interval of probes.
    pub(crate) patience: Span,
}

/// The timers of one message.
#[derive(Debug, Default)]
pub(crate) struct Timeout {
    pub(crate) rtt: RttEstimator,
    jitter: Jitter,
    /// Number of timeouts since the last acknowledgement. NACKs do not reset it: they indicate too many senders, not too
    /// few.
    doublings: u32,
    /// When the last timeout was. Packets that are sent later start with a timeout of their own.
    round_at: Time,
    /// Number of probes since the last pull.
    pub(crate) stalls: u32,
    /// When the message last made progress.
    pub(crate) quiet_since: Time,
    /// When the last pull arrived.
    pulled_at: Time,
    /// The interval between the last two pulls.
    pull_gap: Span,
}

impl Timeout {
    pub(crate) fn new(jitter: Jitter) -> Self {
        Self { jitter, ..Self::default() }
    }

    /// Records an acknowledgement.
    #[inline]
    pub(crate) const fn acknowledged(&mut self) {
        self.doublings = 0;
    }

    /// Records new credit.
    #[inline]
    pub(crate) fn pulled(&mut self, now: Time) {
        self.stalls = 0;
        self.quiet_since = now;
        self.pull_gap = now.since(self.pulled_at);
        self.pulled_at = now;
    }

    /// The timeout after `doublings` consecutive ones.
    #[inline]
    fn rto(&self, bounds: &RtoBounds, doublings: u32) -> Span {
        let rto = self.rtt.rto().map_or(bounds.min, |rto| rto.max(bounds.min)).ticks();
        let rto =
            Span::from_ticks(rto.saturating_mul(1 << doublings.min(20)).min(bounds.max.ticks()));
        self.jitter.apply(rto, doublings)
    }

    /// Time to wait for a pull before probing. At a receiver with a thousand senders, pulls to each are rare,
    /// so that it adapts to the interval between pulls (our choice).
    fn ask_after(&self, bounds: &RtoBounds) -> Span {
        let rto = self.rto(bounds, 0).ticks().saturating_mul(1 << self.stalls.min(20));
        let wait =
            rto.max(self.pull_gap.ticks().saturating_mul(2)).min(bounds.patience.ticks() / 4);
        self.jitter.apply(Span::from_ticks(wait), self.stalls)
    }

    /// When a sender that waits for credit probes.
    #[inline]
    pub(crate) fn ask_at(&self, bounds: &RtoBounds) -> Time {
        self.quiet_since.saturating_add(self.ask_after(bounds))
    }

    /// When the packet sent at `at` counts as lost.
    #[inline]
    pub(crate) fn lost_at(&self, bounds: &RtoBounds, at: Time) -> Time {
        // The last timeout does not lengthen that of packets that were sent before it.
        let before = u32::from(at < self.round_at);
        let doublings = self.doublings.saturating_sub(before);
        at.saturating_add(self.rto(bounds, doublings))
    }

    /// Counts one timeout at `now` for all packets that were sent since the one before, the first of them at `at`; returns whether
    /// it is a new one.
    #[inline]
    pub(crate) fn expired(&mut self, now: Time, at: Time) -> bool {
        // Packets that were sent before a timeout share it.
        let is_new = at >= self.round_at;
        if is_new {
            self.doublings += 1;
            self.round_at = now;
        }
        is_new
    }
}
