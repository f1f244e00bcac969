//! How many packets a worker keeps in flight.
//!
//! ATP and ASK control the rate of workers by ECN; SwitchML has a fixed window. Here the window opens by one packet for each acknowledged
//! packet (slow start) or each acknowledged window, and is halved at most once a window, by a mark or a loss. That the rest of full tables
//! meets at the master's link is what it protects from.

use rackweave_core::{RttEstimator, Span};

const INITIAL: u32 = 16;
const SMALLEST: u32 = 2;
const LARGEST: u32 = 1024;
/// The backoff stops here: after silence a worker still asks twice a second.
const LONGEST_RTO: Span = Span::from_ms(500);

#[derive(Clone, Debug)]
pub(super) struct Congestion {
    window: u32,
    threshold: u32,
    /// Packets acknowledged since the window last grew by one.
    acked: u32,
    /// The window is not reduced for packets before this sequence number.
    recover: u32,
    rtt: RttEstimator,
    min_rto: Span,
    backoff: u32,
}

impl Congestion {
    pub(super) const fn new(min_rto: Span) -> Self {
        let rtt = RttEstimator::new();
        Self {
            window: INITIAL,
            threshold: u32::MAX,
            acked: 0,
            recover: 0,
            rtt,
            min_rto,
            backoff: 0,
        }
    }

    pub(super) const fn window(&self) -> u32 {
        self.window
    }

    /// A packet was acknowledged; `next` is the first sequence number that has not been sent.
    pub(super) fn acknowledged(&mut self, seq: u32, rtt: Option<Span>, marked: bool, next: u32) {
        if let Some(rtt) = rtt {
            self.rtt.sample(rtt);
            self.backoff = 0;
        }
        if marked {
            return self.reduce(seq, next);
        }
        self.acked += 1;
        if self.window < self.threshold || self.acked >= self.window {
            self.acked = 0;
            self.window = (self.window + 1).min(LARGEST);
        }
    }

    pub(super) fn lost(&mut self, first: u32, next: u32) {
        self.reduce(first, next);
    }

    pub(super) fn timed_out(&mut self, first: u32, next: u32) {
        self.backoff = (self.backoff + 1).min(16);
        self.reduce(first, next);
    }

    fn reduce(&mut self, seq: u32, next: u32) {
        if seq < self.recover {
            return;
        }
        self.recover = next;
        self.window = (self.window / 2).max(SMALLEST);
        self.threshold = self.window;
        self.acked = 0;
    }

    /// How long a packet may be overtaken before it counts as lost. Acknowledgements of the switch overtake those of the master, so this
    /// is the timeout without its lower bound, not a quarter of the round-trip time as in RFC 8985.
    pub(super) fn loss_delay(&self) -> Option<Span> {
        self.rtt.rto()
    }

    pub(super) fn rto(&self) -> Span {
        let rto = self.rtt.rto().unwrap_or_default().max(self.min_rto);
        rto.saturating_mul(1 << self.backoff).min(LONGEST_RTO.max(rto))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_doubles_until_a_mark_and_is_halved_once_a_window() {
        let mut congestion = Congestion::new(Span::from_ms(10));
        for seq in 0..16 {
            congestion.acknowledged(seq, Some(Span::from_us(20)), false, 32);
        }
        assert_eq!(congestion.window(), 32);
        congestion.acknowledged(16, None, true, 48);
        congestion.acknowledged(17, None, true, 48);
        assert_eq!(congestion.window(), 16);
        for seq in 18..34 {
            congestion.acknowledged(seq, None, false, 60);
        }
        assert_eq!(congestion.window(), 17);
        congestion.lost(47, 80);
        assert_eq!(congestion.window(), 17, "sent before the reduction");
        congestion.lost(48, 80);
        assert_eq!(congestion.window(), 8);
        for _ in 0..10 {
            congestion.lost(u32::MAX - 1, 0);
        }
        assert_eq!(congestion.window(), SMALLEST);
    }

    #[test]
    fn the_timeout_has_a_lower_bound_and_backs_off_to_an_upper_one() {
        let mut congestion = Congestion::new(Span::from_ms(10));
        assert_eq!((congestion.rto(), congestion.loss_delay()), (Span::from_ms(10), None));
        congestion.acknowledged(0, Some(Span::from_us(20)), false, 1);
        assert_eq!(congestion.loss_delay(), Some(Span::from_us(60)));
        congestion.timed_out(1, 2);
        assert_eq!(congestion.rto(), Span::from_ms(20));
        for _ in 0..40 {
            congestion.timed_out(1, 2);
        }
        assert_eq!(congestion.rto(), LONGEST_RTO);
    }
}
