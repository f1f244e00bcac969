//! DCTCP's estimate of congestion (Alizadeh et al., SIGCOMM 2010; RFC 8257), in Linux's fixed-point arithmetic.

use rackweave_core::{Span, Time};

use super::{AckInfo, CongestionEvent, CongestionKind, Controller, NewReno};
use crate::tcp::config::Config;

/// The value 1 in the fixed-point format of alpha.
const ONE: u64 = 1 << 10;

/// NewReno's window, which ECN marks reduce in proportion to the share of marked bytes.
#[derive(Clone, Debug)]
pub(in crate::tcp) struct Dctcp {
    reno: NewReno,
    share: MarkedShare,
}

impl Dctcp {
    pub(super) fn new(config: &Config) -> Self {
        Self { reno: NewReno::new(config), share: MarkedShare::new(config.dctcp_gain_shift) }
    }

    #[cfg(test)]
    pub(super) const fn alpha(&self) -> u64 {
        self.share.alpha
    }
}

impl Controller for Dctcp {
    #[inline]
    fn on_ack(&mut self, ack: &AckInfo) {
        self.share.delivered(ack.delivered, ack.marked, ack.una, ack.nxt);
    }

    #[inline]
    fn on_end_acks(&mut self, ack: &AckInfo) {
        self.reno.on_end_acks(ack);
    }

    fn on_congestion_event(&mut self, event: &CongestionEvent) {
        if event.kind == CongestionKind::Mark {
            self.reno.reduce(event.kind, self.share.cut(self.reno.window()));
        } else {
            // RFC 8257, section 3.5: the reaction to a loss is that of conventional TCP.
            self.reno.on_congestion_event(event);
        }
    }

    /// Linux, `dctcp_cwnd_undo`. The estimate of the marked share stays.
    fn on_spurious_congestion(&mut self) {
        self.reno.restore();
    }

    fn on_idle(&mut self, now: Time, idle: Span, restart: Option<Span>) {
        self.reno.on_idle(now, idle, restart);
    }

    #[inline]
    fn window(&self) -> u64 {
        self.reno.window()
    }
}

/// The marked share of bytes, averaged over windows.
#[derive(Clone, Debug)]
struct MarkedShare {
    /// The average in 1/1024. It starts at one, so that the first mark halves the window.
    alpha: u64,
    gain_shift: u32,
    /// Bytes acknowledged in this window.
    arrived: u64,
    /// Number of these bytes that were marked.
    marked: u64,
    /// The window ends when this position is acknowledged.
    window_end: u64,
}

impl MarkedShare {
    fn new(gain_shift: u32) -> Self {
        Self { alpha: ONE, gain_shift: gain_shift.min(10), arrived: 0, marked: 0, window_end: 0 }
    }

    /// Counts acknowledged bytes. At the end of a window, alpha = (1 - g) alpha + g F, with F = marked /
    /// arrived.
    #[inline]
    fn delivered(&mut self, bytes: u64, marked: bool, una: u64, nxt: u64) {
        self.arrived += bytes;
        if marked {
            self.marked += bytes;
        }
        if una < self.window_end {
            return;
        }
        let marked = self.marked << (10 - self.gain_shift);
        if let Some(share) = marked.checked_div(self.arrived) {
            // Below 2^g the shift alone would never reach zero: as in Linux, the remainder is dropped.
            let decay = match self.alpha >> self.gain_shift {
                0 => self.alpha,
                decay => decay,
            };
            self.alpha = (self.alpha - decay + share).min(ONE);
        }
        self.arrived = 0;
        self.marked = 0;
        self.window_end = nxt;
    }

    /// The window after a mark: window * (1 - alpha / 2).
    const fn cut(&self, window: u64) -> u64 {
        window - (((window as u128) * (self.alpha as u128)) >> 11) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alpha_follows_the_marked_share_as_computed_by_hand() {
        let mut share = MarkedShare::new(4);
        share.delivered(0, false, 0, 10_000);
        assert_eq!(share.alpha, 1024, "the first acknowledgement begins a window");

        // An unmarked window: 1024 - 64.
        share.delivered(10_000, false, 10_000, 20_000);
        assert_eq!(share.alpha, 960);

        // A quarter marked: 960 - 60 + 64 * 2500/10000.
        share.delivered(2_500, true, 12_500, 22_000);
        assert_eq!(share.alpha, 960, "not before the window's end");
        share.delivered(7_500, false, 20_000, 30_000);
        assert_eq!(share.alpha, 916);

        // Everything marked: 916 - 57 + 64.
        share.delivered(10_000, true, 30_000, 40_000);
        assert_eq!(share.alpha, 923);

        // cwnd * (1 - 923/2048) = 100000 - 45068.
        assert_eq!(share.cut(100_000), 54_932);
    }

    #[test]
    fn alpha_decays_to_zero_and_never_exceeds_one() {
        let mut share = MarkedShare::new(4);
        let mut una = 0;
        for _ in 0..200 {
            una += 1000;
            share.delivered(1000, true, una, una + 1);
        }
        assert_eq!(share.alpha, 1024);
        for _ in 0..200 {
            una += 1000;
            share.delivered(1000, false, una, una + 1);
        }
        assert_eq!(share.alpha, 0);
        assert_eq!(share.cut(5000), 5000);
    }
}
