//! Round-trip time and the retransmission timeout (RFC 6298).

use rackweave_core::Span;

use super::Config;

/// The estimator of one connection.
#[derive(Clone, Debug)]
pub(super) struct Rtt {
    /// Zero before the first sample.
    smoothed: Span,
    variation: Span,
    /// Before backing off.
    base: Span,
    backoff: u32,
}

impl Rtt {
    pub(super) const fn new(config: &Config) -> Self {
        Self { smoothed: Span::ZERO, variation: Span::ZERO, base: config.initial_rto, backoff: 0 }
    }

    /// Takes a sample from a segment that was sent once (Karn's rule is the caller's).
    pub(super) fn sample(&mut self, rtt: Span, config: &Config) {
        let rtt = Span(rtt.0.max(1));
        if self.smoothed == Span::ZERO {
            self.smoothed = rtt;
            self.variation = Span(rtt.0 / 2);
        } else {
            // RFC 6298 (2.3): beta = 1/4, alpha = 1/8, the variation first.
            let error = self.smoothed.0.abs_diff(rtt.0);
            self.variation = Span(self.variation.0 - self.variation.0 / 4 + error / 4);
            self.smoothed = Span(self.smoothed.0 - self.smoothed.0 / 8 + rtt.0 / 8);
        }
        let rto = self.smoothed.0.saturating_add(self.variation.0.saturating_mul(4));
        self.base = Span(rto.max(config.min_rto.0));
    }

    /// The smoothed RTT, once there is a sample.
    pub(super) fn smoothed(&self) -> Option<Span> {
        (self.smoothed != Span::ZERO).then_some(self.smoothed)
    }

    /// The timeout: never zero, so that a timer lies in the future.
    pub(super) fn rto(&self, config: &Config) -> Span {
        let doubled = self.base.0.saturating_mul(1 << self.backoff.min(31));
        Span(doubled.min(config.max_rto.0.max(self.base.0)).max(1))
    }

    /// The timeout ran out: the next is twice as long (RFC 6298, 5.5).
    pub(super) fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }

    /// New data were acknowledged: the network is alive.
    pub(super) fn reset_backoff(&mut self) {
        self.backoff = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_rfc_6298_by_hand() {
        let config = Config { min_rto: Span::from_us(1), ..Config::tcp() };
        let mut rtt = Rtt::new(&config);
        assert_eq!(rtt.rto(&config), Span::from_ms(1), "initial");
        rtt.sample(Span::from_us(80), &config);
        assert_eq!(rtt.smoothed(), Some(Span::from_us(80)));
        assert_eq!(rtt.rto(&config), Span::from_us(80 + 4 * 40));
        rtt.sample(Span::from_us(160), &config);
        // variation: 40 * 3/4 + 80/4 = 50; smoothed: 80 * 7/8 + 160/8 = 90.
        assert_eq!(rtt.smoothed(), Some(Span::from_us(90)));
        assert_eq!(rtt.rto(&config), Span::from_us(90 + 4 * 50));
    }

    #[test]
    fn backs_off_up_to_the_limit_and_has_a_floor() {
        let config = Config { max_rto: Span::from_ms(5), ..Config::tcp() };
        let mut rtt = Rtt::new(&config);
        rtt.sample(Span::from_us(10), &config);
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
