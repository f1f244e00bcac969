//! The round-trip time estimator of RFC 6298.
//!
//! ```
//! use rackweave_core::{RttEstimator, Span};
//!
//! let mut rtt = RttEstimator::default();
//! assert_eq!(rtt.rto(), None);
//! rtt.sample(Span::from_us(80));
//! assert_eq!(rtt.smoothed(), Some(Span::from_us(80)));
//! assert_eq!(rtt.rto(), Some(Span::from_us(80 + 4 * 40)));
//! ```

use crate::time::Span;

/// Smoothed round-trip time and its variation (RFC 6298, section 2).
///
/// Bounds on the timeout, its backoff, and Karn's rule (no samples from retransmitted data) are left to the caller,
/// because transports differ in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RttEstimator {
    /// SRTT in RFC 6298; zero before the first sample.
    smoothed: Span,
    /// RTTVAR in RFC 6298; zero before the first sample.
    variation: Span,
}

impl RttEstimator {
    /// Creates an estimator without samples.
    #[must_use]
    pub const fn new() -> Self {
        Self { smoothed: Span::ZERO, variation: Span::ZERO }
    }

    /// Adds a measurement.
    #[inline]
    pub fn sample(&mut self, rtt: Span) {
        // Zero stands for "no sample yet".
        let rtt = Span::from_ticks(rtt.ticks().max(1));
        if self.smoothed == Span::ZERO {
            // (2.2): "SRTT <- R, RTTVAR <- R/2".
            (self.smoothed, self.variation) = (rtt, rtt / 2);
        } else {
            // (2.3): alpha = 1/8, beta = 1/4, RTTVAR first.
            let error = self.smoothed.ticks().abs_diff(rtt.ticks());
            self.variation =
                Span::from_ticks(self.variation.ticks() - self.variation.ticks() / 4 + error / 4);
            self.smoothed = Span::from_ticks(
                self.smoothed.ticks() - self.smoothed.ticks() / 8 + rtt.ticks() / 8,
            );
        }
    }

    /// Returns the smoothed round-trip time; `None` before the first sample.
    #[must_use]
    #[inline]
    pub fn smoothed(&self) -> Option<Span> {
        (self.smoothed != Span::ZERO).then_some(self.smoothed)
    }

    /// Returns the variation of the round-trip time; zero before the first sample.
    #[must_use]
    #[inline]
    pub const fn variation(&self) -> Span {
        self.variation
    }

    /// Returns the retransmission timeout, SRTT + 4 RTTVAR, without bounds; `None` before the first sample.
    #[must_use]
    #[inline]
    pub fn rto(&self) -> Option<Span> {
        let rto = self.smoothed.ticks().saturating_add(self.variation.ticks().saturating_mul(4));
        self.smoothed().map(|_| Span::from_ticks(rto))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_rfc_by_hand() {
        let mut rtt = RttEstimator::default();
        assert_eq!((rtt.smoothed(), rtt.rto()), (None, None));
        rtt.sample(Span::from_us(80));
        assert_eq!((rtt.smoothed(), rtt.variation()), (Some(Span::from_us(80)), Span::from_us(40)));
        rtt.sample(Span::from_us(160));
        // Variation: 40 * 3/4 + 80/4 = 50; smoothed: 80 * 7/8 + 160/8 = 90.
        assert_eq!((rtt.smoothed(), rtt.variation()), (Some(Span::from_us(90)), Span::from_us(50)));
        assert_eq!(rtt.rto(), Some(Span::from_us(90 + 4 * 50)));
    }

    #[test]
    fn extreme_samples_do_not_overflow() {
        let mut rtt = RttEstimator::default();
        rtt.sample(Span::ZERO);
        assert_eq!(rtt.smoothed(), Some(Span::from_ticks(1)), "a sample counts, however short");
        for _ in 0..100 {
            rtt.sample(Span::MAX);
        }
        assert!(rtt.rto().is_some_and(|rto| rto >= rtt.smoothed().unwrap()));
    }
}
