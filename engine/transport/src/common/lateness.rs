//! How much later data arrives than a constant timeout assumes.

use rackweave_core::Span;

/// How much later than a constant timeout data arrives after its request, averaged over all messages of the host.
///
/// (Our choice. The timeouts of pHost and Polo are constant, because the papers assume short queues. With long ones
/// an oversubscribed core never recovers: each packet that waits for longer than the timeout is requested again, and
/// the copies make the queue longer.)
///
/// Samples must be unambiguous: the delay of a transmission after the request that triggered it. RFC 6298, section 3,
/// excludes packets that were sent several times (Karn's rule), but then a timeout that is too short for every packet
/// is never corrected, so that both protocols identify the transmission instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lateness(Span);

impl Lateness {
    /// The weight of a sample is the inverse of this, as in RFC 6298, section 2.3.
    const WEIGHT: u64 = 8;

    /// Records the delay of a packet that `timeout` allows for.
    pub(crate) fn sample(&mut self, delay: Span, timeout: Span) {
        let (mean, late) = (self.0.ticks(), delay.ticks().saturating_sub(timeout.ticks()));
        // Rounding up lets the mean reach zero.
        self.0 = Span::from_ticks(mean - mean.div_ceil(Self::WEIGHT) + late / Self::WEIGHT);
    }

    /// The time by which a timeout is prolonged: twice the mean, so that few packets are later.
    pub(crate) const fn allowance(self) -> Span {
        self.0.saturating_mul(2)
    }

    /// A timeout of the protocol, prolonged.
    pub(crate) const fn prolong(self, timeout: Span) -> Span {
        timeout.saturating_add(self.allowance())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Span = Span::from_ms(1);

    /// The allowance in microseconds after packets with these delays, in milliseconds.
    fn allowance_us(delays_ms: &[u64]) -> u64 {
        let mut lateness = Lateness::default();
        for delay in delays_ms {
            lateness.sample(Span::from_ms(*delay), TIMEOUT);
        }
        lateness.allowance().as_us()
    }

    #[test]
    fn the_allowance_is_twice_the_mean() {
        for (delays, expected) in [
            (&[][..], 0),
            (&[0, 1, 1], 0),
            (&[9], 2_000),
            (&[9, 9], 3_750),
            // A packet that is not late is one that is late by zero.
            (&[9, 0], 1_750),
            (&[9; 60], 15_994),
        ] {
            assert_eq!(allowance_us(delays), expected, "{delays:?}");
        }
        let mut lateness = Lateness::default();
        lateness.sample(Span::from_ms(9), TIMEOUT);
        assert_eq!(lateness.prolong(TIMEOUT), Span::from_ms(3));
    }

    /// After the queue has drained, timeouts become exactly the protocol's again.
    #[test]
    fn the_allowance_returns_to_zero() {
        let mut lateness = Lateness::default();
        for _ in 0..100 {
            lateness.sample(Span::from_secs(1), TIMEOUT);
        }
        assert!(lateness.allowance() > Span::from_ms(1_990));
        for _ in 0..200 {
            lateness.sample(TIMEOUT, TIMEOUT);
        }
        assert_eq!(lateness, Lateness::default());
    }

    #[test]
    fn extreme_delays_do_not_overflow() {
        let mut lateness = Lateness::default();
        for _ in 0..1_000 {
            lateness.sample(Span::MAX, Span::ZERO);
        }
        assert_eq!(lateness.prolong(Span::MAX), Span::MAX);
    }
}
