//! NewReno's window (RFC 5681), and what CUBIC and DCTCP share with it: slow start, and the reactions to
//! timeouts and idle time.

use rackweave_core::{Span, Time};

use super::{AckInfo, CongestionEvent, CongestionKind, Controller};
use crate::tcp::config::Config;

/// Slow start, additive increase, multiplicative decrease.
#[derive(Clone, Debug)]
pub(in crate::tcp) struct NewReno {
    window: u64,
    /// The window at which slow start ends (ssthresh).
    threshold: u64,
    /// Bytes acknowledged since the last step of the additive increase.
    acked: u64,
    /// The window and the threshold before the last reduction.
    before: (u64, u64),
    initial_window: u64,
    mss: u64,
}

impl NewReno {
    pub(super) fn new(config: &Config) -> Self {
        let (initial_window, mss) = (config.initial_window(), config.segment_bytes());
        let (window, threshold) = (initial_window, u64::MAX);
        Self { window, threshold, acked: 0, before: (0, 0), initial_window, mss }
    }

    pub(super) const fn mss(&self) -> u64 {
        self.mss
    }

    /// Sets the window that another algorithm's congestion avoidance has computed.
    pub(super) const fn set_window(&mut self, window: u64) {
        self.window = window;
    }

    /// Applies an acknowledgement in slow start, and returns the bytes that are left for congestion avoidance;
    /// `None` if there are none.
    #[inline]
    pub(super) fn slow_start(&mut self, ack: &AckInfo) -> Option<u64> {
        let in_slow_start = self.window < self.threshold;
        // A window that is not used must not grow (RFC 7661). As in Linux's tcp_is_cwnd_limited, slow start
        // continues while more than half of the window is used.
        let doubling = in_slow_start && self.window < 2 * ack.in_flight;
        if ack.app_limited && !doubling && ack.in_flight < self.window {
            return None;
        }
        if !in_slow_start {
            return Some(ack.acked);
        }
        // Every acknowledged byte counts, with or without delayed acknowledgements, as in Linux.
        let step = ack.acked.min(self.threshold - self.window);
        self.window += step;
        (ack.acked > step).then(|| ack.acked - step)
    }

    /// Appropriate byte counting (RFC 3465): one segment per window of acknowledged bytes.
    #[inline]
    pub(super) const fn avoid_congestion(&mut self, bytes: u64) {
        self.acked += bytes;
        if self.acked >= self.window {
            self.acked -= self.window;
            self.window += self.mss;
        }
    }

    /// The bytes to which a reduction applies: those in flight, so that an unused part of the window is not
    /// kept (RFC 5681, equation 4; RFC 9438, section 4.6).
    pub(super) fn used(&self, in_flight: u64) -> u64 {
        self.window.min(in_flight.max(self.mss))
    }

    /// Sets the threshold, to two segments at least (RFC 5681, equation 4), and the window.
    pub(super) fn reduce(&mut self, kind: CongestionKind, threshold: u64) {
        self.acked = 0;
        self.before = (self.window, self.threshold);
        self.threshold = threshold.max(2 * self.mss);
        // RFC 5681, section 3.1: after a timeout, the loss window of one segment applies.
        self.window = if kind == CongestionKind::Timeout { self.mss } else { self.threshold };
    }

    /// Reacts to a repeated timeout for the same data: the threshold is kept (RFC 5681, page 8).
    pub(super) const fn collapse(&mut self) {
        self.acked = 0;
        self.window = self.mss;
    }

    /// Takes back the last reduction. Growth since then is kept (Linux, `tcp_reno_undo_cwnd`).
    pub(super) fn restore(&mut self) {
        self.window = self.window.max(self.before.0);
        self.threshold = self.threshold.max(self.before.1);
    }

    pub(super) const fn in_slow_start(&self) -> bool {
        self.window < self.threshold
    }

    /// Ends slow start at the current window.
    pub(super) const fn end_slow_start(&mut self) {
        self.threshold = self.window;
    }

    /// RFC 2861: the window is halved for each RTO without a transmission, down to the initial window, and the
    /// threshold is set to three quarters of it. Returns whether the window has changed.
    pub(super) fn decay(&mut self, idle: Span, rto: Span) -> bool {
        let floor = self.initial_window.min(self.window);
        let mut left = idle.ticks();
        if left <= rto.ticks() || self.window <= floor {
            return false;
        }
        self.threshold = self.threshold.max(self.window / 4 * 3);
        while left > rto.ticks() && self.window > floor {
            left -= rto.ticks();
            self.window = (self.window / 2).max(floor);
        }
        true
    }
}

impl Controller for NewReno {
    #[inline]
    fn on_end_acks(&mut self, ack: &AckInfo) {
        if let Some(bytes) = self.slow_start(ack) {
            self.avoid_congestion(bytes);
        }
    }

    fn on_congestion_event(&mut self, event: &CongestionEvent) {
        match event.kind {
            CongestionKind::RepeatedTimeout => self.collapse(),
            kind => self.reduce(kind, self.used(event.in_flight) / 2),
        }
    }

    fn on_spurious_congestion(&mut self) {
        self.restore();
    }

    fn on_idle(&mut self, _now: Time, idle: Span, restart: Option<Span>) {
        if let Some(restart) = restart {
            self.decay(idle, restart);
        }
    }

    #[inline]
    fn window(&self) -> u64 {
        self.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1460;

    fn loses(reno: &mut NewReno, kind: CongestionKind, in_flight: u64) {
        reno.on_congestion_event(&CongestionEvent::of(kind, in_flight));
    }

    #[test]
    fn doubles_then_adds_one_segment_a_window_then_halves() {
        let mut reno = NewReno::new(&Config::new_reno());
        assert_eq!(reno.window(), 10 * MSS);
        reno.on_end_acks(&AckInfo::of(10 * MSS));
        assert_eq!(reno.window(), 20 * MSS);
        loses(&mut reno, CongestionKind::Loss, 20 * MSS);
        assert_eq!(reno.window(), 10 * MSS);
        for _ in 0..10 {
            assert_eq!(reno.window(), 10 * MSS);
            reno.on_end_acks(&AckInfo::of(MSS));
        }
        assert_eq!(reno.window(), 11 * MSS);
        loses(&mut reno, CongestionKind::Timeout, 11 * MSS);
        assert_eq!(reno.window(), MSS);
        // Slow start up to half of the bytes that were in flight; the remaining bytes count for congestion
        // avoidance.
        reno.on_end_acks(&AckInfo::of(5 * MSS));
        assert_eq!(reno.window(), 11 * MSS / 2);
        loses(&mut reno, CongestionKind::RepeatedTimeout, MSS);
        assert_eq!((reno.window(), reno.threshold), (MSS, 11 * MSS / 2), "the threshold stays");
    }

    #[test]
    fn a_window_that_was_not_in_use_is_cut_to_half_of_what_was() {
        let mut reno = NewReno::new(&Config::new_reno());
        loses(&mut reno, CongestionKind::Loss, 6 * MSS);
        assert_eq!(reno.window(), 3 * MSS);
        loses(&mut reno, CongestionKind::Loss, MSS);
        assert_eq!(reno.window(), 2 * MSS, "the floor");
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut reno = NewReno::new(&Config::new_reno());
        let idle = AckInfo { app_limited: true, in_flight: 5 * MSS, ..AckInfo::of(MSS) };
        reno.on_end_acks(&idle);
        assert_eq!(reno.window(), 10 * MSS, "half of it was in use");
        reno.on_end_acks(&AckInfo { in_flight: 6 * MSS, ..idle });
        assert_eq!(reno.window(), 11 * MSS, "more than half: slow start goes on");
        loses(&mut reno, CongestionKind::Loss, 20 * MSS);
        let window = reno.window();
        reno.on_end_acks(&AckInfo { in_flight: window - 1, ..AckInfo { acked: window, ..idle } });
        assert_eq!(reno.window(), window, "congestion avoidance wants all of it in use");
        reno.on_end_acks(&AckInfo { in_flight: window, ..AckInfo { acked: window, ..idle } });
        assert_eq!(reno.window(), window + MSS);
    }

    #[test]
    fn idle_time_halves_the_window_down_to_the_initial_one() {
        let mut reno = NewReno::new(&Config::new_reno());
        reno.on_end_acks(&AckInfo::of(70 * MSS));
        let rto = Span::from_ms(1);
        reno.on_idle(Time::ZERO, rto, Some(rto));
        assert_eq!(reno.window(), 80 * MSS, "not longer than the timeout");
        reno.on_idle(Time::ZERO, Span::from_us(2500), Some(rto));
        assert_eq!(reno.window(), 20 * MSS);
        reno.on_idle(Time::ZERO, Span::from_secs(1), Some(rto));
        assert_eq!(reno.window(), 10 * MSS);
    }
}
