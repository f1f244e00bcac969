//! The retransmission timeout (RFC 6298) with its bounds and its backoff.

use rackweave_core::{RttEstimator, Span};

use super::Config;

/// The round-trip time and the retransmission timeout of one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Rtt {
    estimator: RttEstimator,
    /// Number of times that the timeout was doubled.
    backoff: u32,
}

impl Rtt {
    /// Adds a sample from a segment that was sent once. Karn's algorithm is the caller's task.
    pub(super) fn sample(&mut self, rtt: Span) {
        self.estimator.sample(rtt);
    }

    /// The smoothed RTT; `None` before the first sample.
    pub(super) fn smoothed(&self) -> Option<Span> {
        self.estimator.smoothed()
    }

    /// The timeout, which is never zero, so that a timer is in the future.
    pub(super) fn rto(&self, config: &Config) -> Span {
        let base = self.estimator.rto().map_or(config.initial_rto, |rto| rto.max(config.min_rto));
        let doubled = base.ticks().saturating_mul(1 << self.backoff.min(31));
        Span::from_ticks(doubled.min(config.max_rto.max(base).ticks()).max(1))
    }

    /// Doubles the timeout after it has expired (RFC 6298, 5.5).
    pub(super) fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }

    /// Resets the backoff when new data is acknowledged.
    pub(super) fn reset_backoff(&mut self) {
        self.backoff = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_at_the_initial_timeout_and_follows_the_estimator() {
        let config = Config { min_rto: Span::from_us(1), ..Config::tcp() };
        let mut rtt = Rtt::default();
        assert_eq!(rtt.rto(&config), Span::from_ms(1), "initial");
        rtt.sample(Span::from_us(80));
        assert_eq!(rtt.rto(&config), Span::from_us(80 + 4 * 40));
    }

    #[test]
    fn backs_off_up_to_the_limit_and_has_a_floor() {
        let config = Config { max_rto: Span::from_ms(5), ..Config::tcp() };
        let mut rtt = Rtt::default();
        rtt.sample(Span::from_us(10));
        assert_eq!(rtt.rto(&config), Span::from_ms(1), "the floor");
        let mut seen = Vec::new();
        for _ in 0..4 {
            rtt.back_off();
            seen.push(rtt.rto(&config));
        }
        assert_eq!(seen, [2, 4, 5, 5].map(Span::from_ms));
        rtt.reset_backoff();
        assert_eq!(rtt.rto(&config), Span::from_ms(1));
        for _ in 0..100 {
            rtt.back_off();
        }
        assert_eq!(rtt.rto(&config), Span::from_ms(5));
    }
}
