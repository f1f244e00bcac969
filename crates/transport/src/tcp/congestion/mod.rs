//! Congestion control: how large the window is. What is lost, and what goes out next, is the
//! sender's business.

mod cubic;
mod dctcp;

use rackweave_core::{Span, Time};

use super::config::{Config, CongestionControl};
use cubic::Cubic;
use dctcp::Dctcp;

/// The window of one connection, and the rule that moves it.
#[derive(Clone, Debug)]
pub(super) struct Congestion {
    /// Bytes that may be under way.
    window: u64,
    /// Slow start ends here.
    threshold: u64,
    /// Bytes acknowledged since the last step of the additive increase.
    acked: u64,
    mss: u64,
    rule: Rule,
}

#[derive(Clone, Debug)]
enum Rule {
    NewReno,
    Cubic(Cubic),
    Dctcp(Dctcp),
}

/// Why the window shrinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// Segments were lost, and acknowledgements still come.
    Loss,
    /// The retransmission timer ran out.
    Timeout,
    /// The network marked packets.
    Mark,
}

impl Congestion {
    pub(super) fn new(config: &Config) -> Self {
        let rule = match config.congestion_control {
            CongestionControl::NewReno => Rule::NewReno,
            CongestionControl::Cubic => Rule::Cubic(Cubic::default()),
            CongestionControl::Dctcp => Rule::Dctcp(Dctcp::new(config.dctcp_gain_shift)),
        };
        let mss = config.segment_bytes();
        Self { window: config.initial_window(), threshold: u64::MAX, acked: 0, mss, rule }
    }

    /// Bytes that may be under way.
    #[inline]
    pub(super) const fn window(&self) -> u64 {
        self.window
    }

    pub(super) const fn in_slow_start(&self) -> bool {
        self.window < self.threshold
    }

    /// DCTCP's estimate of the marked share, in 1/1024.
    #[cfg(test)]
    pub(super) fn alpha(&self) -> Option<u64> {
        match &self.rule {
            Rule::Dctcp(dctcp) => Some(dctcp.alpha()),
            _ => None,
        }
    }

    /// `bytes` are known to have arrived, marked or not; the stream is acknowledged up to `una` and
    /// sent up to `nxt`. Comes before the other calls for the same acknowledgement.
    #[inline]
    pub(super) fn delivered(&mut self, bytes: u64, marked: bool, una: u64, nxt: u64) {
        if let Rule::Dctcp(dctcp) = &mut self.rule {
            dctcp.delivered(bytes, marked, una, nxt);
        }
    }

    /// `bytes` were acknowledged while the window was in use and nothing is wrong.
    #[inline]
    pub(super) fn grow(&mut self, now: Time, mut bytes: u64, rtt: Span) {
        if self.in_slow_start() {
            // Every byte acknowledged counts, delayed acknowledgement or not, as in Linux.
            let step = bytes.min(self.threshold - self.window);
            self.window += step;
            bytes -= step;
            if bytes == 0 {
                return;
            }
        }
        match &mut self.rule {
            Rule::Cubic(cubic) => {
                self.window = cubic.grow(self.window, now, bytes, rtt, self.mss);
            }
            Rule::NewReno | Rule::Dctcp(_) => {
                // Appropriate byte counting (RFC 3465): one segment for each window of bytes.
                self.acked += bytes;
                if self.acked >= self.window {
                    self.acked -= self.window;
                    self.window += self.mss;
                }
            }
        }
    }

    /// Congestion, with `flight` bytes under way: the caller sees to it that one window brings no
    /// more than one.
    pub(super) fn shrink(&mut self, signal: Signal, flight: u64) {
        let floor = 2 * self.mss;
        // RFC 5681 (4) and RFC 9438 4.6 cut what is under way, so that a window that was
        // not in use is no reserve.
        let base = self.window.min(flight.max(self.mss));
        self.threshold = match &mut self.rule {
            Rule::NewReno => base / 2,
            Rule::Cubic(cubic) => cubic.shrink(self.window, base),
            Rule::Dctcp(dctcp) if signal == Signal::Mark => dctcp.cut(self.window),
            // A loss is a loss (RFC 8257, 3.5).
            Rule::Dctcp(_) => base / 2,
        }
        .max(floor);
        self.acked = 0;
        self.window = if signal == Signal::Timeout { self.mss } else { self.threshold };
    }

    /// The timer ran out again for the same data: RFC 5681 (page 8) keeps the threshold.
    pub(super) const fn collapse(&mut self) {
        self.acked = 0;
        self.window = self.mss;
    }

    /// Nothing was sent for `idle`: the window halves for each timeout (RFC 2861), down to the
    /// initial one; the threshold remembers three quarters of it.
    pub(super) fn after_idle(&mut self, idle: Span, rto: Span, initial_window: u64) {
        let floor = initial_window.min(self.window);
        let mut left = idle.0;
        if left > rto.0 && self.window > floor {
            self.threshold = self.threshold.max(self.window / 4 * 3);
            if let Rule::Cubic(cubic) = &mut self.rule {
                cubic.restart();
            }
        }
        while left > rto.0 && self.window > floor {
            left -= rto.0;
            self.window = (self.window / 2).max(floor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1460;

    fn window_of(config: &Config) -> Congestion {
        Congestion::new(config)
    }

    #[test]
    fn reno_doubles_then_adds_one_segment_a_window_then_halves() {
        let mut reno = window_of(&Config::new_reno());
        assert_eq!(reno.window(), 10 * MSS);
        reno.grow(Time::ZERO, 10 * MSS, Span::from_us(10));
        assert_eq!(reno.window(), 20 * MSS);
        reno.shrink(Signal::Loss, 20 * MSS);
        assert_eq!(reno.window(), 10 * MSS);
        for _ in 0..10 {
            assert_eq!(reno.window(), 10 * MSS);
            reno.grow(Time::ZERO, MSS, Span::from_us(10));
        }
        assert_eq!(reno.window(), 11 * MSS);
        reno.shrink(Signal::Timeout, 11 * MSS);
        assert_eq!(reno.window(), MSS);
        // Slow start up to half of what was under way, the rest of the bytes count beyond.
        reno.grow(Time::ZERO, 5 * MSS, Span::from_us(10));
        assert_eq!(reno.window(), 11 * MSS / 2);
    }

    #[test]
    fn a_window_that_was_not_in_use_is_cut_to_half_of_what_was() {
        let mut reno = window_of(&Config::new_reno());
        reno.shrink(Signal::Loss, 6 * MSS);
        assert_eq!(reno.window(), 3 * MSS);
        reno.shrink(Signal::Loss, MSS);
        assert_eq!(reno.window(), 2 * MSS, "the floor");
    }

    #[test]
    fn idle_time_halves_the_window_down_to_the_initial_one() {
        let mut reno = window_of(&Config::new_reno());
        reno.grow(Time::ZERO, 70 * MSS, Span::from_us(10));
        let rto = Span::from_ms(1);
        reno.after_idle(rto, rto, 10 * MSS);
        assert_eq!(reno.window(), 80 * MSS, "not longer than the timeout");
        reno.after_idle(Span::from_us(2500), rto, 10 * MSS);
        assert_eq!(reno.window(), 20 * MSS);
        reno.after_idle(Span::from_secs(1), rto, 10 * MSS);
        assert_eq!(reno.window(), 10 * MSS);
    }
}
