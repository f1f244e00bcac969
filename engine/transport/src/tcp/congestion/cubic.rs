//! CUBIC (RFC 9438) in integers. Times are in units of 2^20 ps (about 1.05 us), windows in bytes.

use rackweave_core::{Span, Time};

use super::hystart::Exit;
use super::{AckInfo, CongestionEvent, CongestionKind, Controller, NewReno};
use crate::tcp::config::Config;

/// Picoseconds per unit of time, as a shift.
const UNIT_SHIFT: u32 = 20;

/// C = 0.4 segments/s^3 is `mss * 2/5` bytes/s^3; a unit cubed is 2^60 * 10^-36 s^3, which is
/// `87112 * 2^-76` (87112 = 2^136 / 10^36 rounded).
const UNIT_CUBED: u128 = 87_112;
const UNIT_CUBED_SHIFT: u32 = 76;

/// Maximum time since the reduction, longer than any real one: 2^31 units are 37 minutes. It keeps the cube
/// within 128 bits.
const MAX_UNITS: u64 = 1 << 31;

/// CUBIC: NewReno's slow start, and a window that is a cubic function of the time since its last reduction.
#[derive(Clone, Debug)]
pub(in crate::tcp) struct Cubic {
    reno: NewReno,
    curve: Curve,
    /// The function before the last reduction.
    before: Curve,
    exit: Exit,
}

impl Cubic {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            reno: NewReno::new(config),
            curve: Curve::default(),
            before: Curve::default(),
            exit: Exit::new(config),
        }
    }
}

impl Controller for Cubic {
    #[inline]
    fn on_ack(&mut self, ack: &AckInfo) {
        if self.reno.in_slow_start() && self.exit.on_ack(ack, self.reno.window()) {
            self.reno.end_slow_start();
        }
    }

    #[inline]
    fn on_end_acks(&mut self, ack: &AckInfo) {
        let slow = self.reno.in_slow_start();
        let acked = if slow { self.exit.growth(ack.acked) } else { ack.acked };
        if let Some(bytes) = self.reno.slow_start(&AckInfo { acked, ..*ack }) {
            let (window, mss) = (self.reno.window(), self.reno.mss());
            self.reno.set_window(self.curve.grow(window, ack.now, bytes, ack.rtt, mss));
        }
    }

    fn on_congestion_event(&mut self, event: &CongestionEvent) {
        if event.kind == CongestionKind::RepeatedTimeout {
            return self.reno.collapse();
        }
        self.before = self.curve;
        if event.kind == CongestionKind::Timeout {
            // Slow start begins again (Linux, `cubictcp_state`).
            self.exit.restart();
        }
        let used = self.reno.used(event.in_flight);
        let threshold = self.curve.shrink(self.reno.window(), used);
        self.reno.reduce(event.kind, threshold);
    }

    /// RFC 9438, 4.9. Linux restores the window and the threshold only.
    fn on_spurious_congestion(&mut self) {
        self.reno.restore();
        self.curve = self.before;
    }

    fn on_idle(&mut self, now: Time, idle: Span, restart: Option<Span>) {
        if restart.is_some_and(|restart| self.reno.decay(idle, restart)) {
            self.curve.restart();
        } else {
            self.curve.skip(now, idle);
        }
    }

    #[inline]
    fn window(&self) -> u64 {
        self.reno.window()
    }
}

/// The window's function of time between two reductions.
#[derive(Clone, Copy, Debug, Default)]
struct Curve {
    /// `W_max`: the window before the last reduction, and the plateau of the function.
    w_max: u64,
    /// Start of the epoch; `None` until the window grows again.
    epoch: Option<Time>,
    /// `K`: time from the start of the epoch to the plateau, in units.
    k: u64,
    /// The plateau of this epoch.
    origin: u64,
    /// `W_est`: the window that Reno would have (section 4.3).
    w_est: u64,
    /// Bytes of progress towards the next segment of `w_est`, times 17.
    est_credit: u64,
    /// The window before the reduction. From here on the Reno-friendly window grows by a full segment.
    prior: u64,
    /// Bytes of growth not yet applied, times the window.
    credit: u64,
}

impl Curve {
    /// Starts a new epoch with the next acknowledgement.
    const fn restart(&mut self) {
        self.epoch = None;
    }

    /// Leaves idle time out of the time since the start of the epoch: nothing was sent that could have shown congestion
    /// (RFC 9438, 5.8; Linux, `cubictcp_cwnd_event`).
    fn skip(&mut self, now: Time, idle: Span) {
        self.epoch = self.epoch.map(|epoch| epoch.saturating_add(idle).min(now));
    }

    /// The window after congestion: beta = 0.7 of the bytes in use (section 4.6).
    fn shrink(&mut self, window: u64, base: u64) -> u64 {
        // Fast convergence (4.7): a window that did not reach its previous plateau releases bandwidth.
        self.w_max = if window < self.w_max { window / 20 * 17 } else { window };
        self.prior = window;
        self.epoch = None;
        base / 10 * 7 + base % 10 * 7 / 10
    }

    /// The window after `bytes` were acknowledged in congestion avoidance.
    fn grow(&mut self, window: u64, now: Time, bytes: u64, rtt: Span, mss: u64) -> u64 {
        let epoch = *self.epoch.get_or_insert_with(|| {
            // Without an earlier reduction, the plateau is the current window (section 4.8).
            self.origin = self.w_max.max(window);
            self.k = time_to_plateau(self.origin - window, mss);
            self.w_est = window;
            self.est_credit = 0;
            self.credit = 0;
            now
        });
        // (4.3): alpha = 3 (1 - beta) / (1 + beta) = 9/17 of a segment per window, and one segment later.
        self.est_credit += bytes * if self.w_est < self.prior { 9 } else { 17 };
        while self.est_credit >= 17 * window {
            self.est_credit -= 17 * window;
            self.w_est += mss;
        }
        let elapsed = now.since(epoch).as_ps();
        if self.at(elapsed, mss) < self.w_est {
            return window.max(self.w_est);
        }
        // (4.4, 4.5): the target is the window one RTT later, limited to 1.5 times the current one.
        let target = self.at(elapsed.saturating_add(rtt.as_ps()), mss);
        let target = target.clamp(window, window + window / 2);
        self.credit += (target - window) * bytes.min(window);
        let step = self.credit / window;
        self.credit -= step * window;
        window + step
    }

    /// `W_cubic(t) = C (t - K)^3 + W_max`, in bytes.
    fn at(&self, elapsed_ps: u64, mss: u64) -> u64 {
        let t = (elapsed_ps >> UNIT_SHIFT).min(MAX_UNITS);
        let distance = u128::from(t.abs_diff(self.k));
        let cubed = distance * distance * distance * UNIT_CUBED * u128::from(mss * 2 / 5);
        let bytes = (cubed >> UNIT_CUBED_SHIFT) as u64;
        if t < self.k { self.origin.saturating_sub(bytes) } else { self.origin + bytes }
    }
}

/// K = cbrt(gap / C), in units.
fn time_to_plateau(gap: u64, mss: u64) -> u64 {
    let c = UNIT_CUBED * u128::from((mss * 2 / 5).max(1));
    cube_root((u128::from(gap) << UNIT_CUBED_SHIFT) / c)
}

/// The largest number whose cube does not exceed `n`, limited to [`MAX_UNITS`].
fn cube_root(n: u128) -> u64 {
    let (mut low, mut high) = (0, MAX_UNITS);
    while high - low > 1 {
        let middle = u64::midpoint(low, high);
        if u128::from(middle).pow(3) <= n {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1460;

    /// The RFC's formula in floating point, in segments.
    fn formula(t_s: f64, w_max: f64, k_s: f64) -> f64 {
        0.4 * (t_s - k_s).powi(3) + w_max
    }

    #[test]
    fn the_curve_is_the_rfc_s() {
        let mut curve = Curve::default();
        let window = curve.shrink(1000 * MSS, 1000 * MSS);
        assert_eq!(window, 700 * MSS);
        curve.grow(window, Time::ZERO, 0, Span::from_us(100), MSS);
        // K = cbrt(300 / 0.4) = 9.0856 s
        let k_s = 750_f64.cbrt();
        assert!((curve.k as f64 * 1.048_576e-6 - k_s).abs() < 1e-4, "{}", curve.k);
        for t_s in [0.0, 1.0, 3.0, 9.0, 9.0856, 12.0, 20.0] {
            let segments = curve.at((t_s * 1e12) as u64, MSS) as f64 / MSS as f64;
            let expected = formula(t_s, 1000.0, k_s);
            assert!((segments - expected).abs() < 0.01 + expected * 1e-4, "{t_s}: {segments}");
        }
    }

    #[test]
    fn with_a_long_rtt_the_window_follows_the_curve() {
        // An RTT of 100 ms is outside of the Reno-friendly region. One acknowledgement per RTT covers a full
        // window.
        let mut curve = Curve::default();
        let mut window = curve.shrink(1000 * MSS, 1000 * MSS);
        let rtt = Span::from_ms(100);
        let mut now = Time::ZERO;
        for _ in 0..100 {
            // In ten parts, as acknowledgements arrive.
            for _ in 0..10 {
                window = curve.grow(window, now, window / 10, rtt, MSS);
                now += Span::from_ms(10);
            }
        }
        let expected = formula(10.0, 1000.0, 750_f64.cbrt());
        let segments = window as f64 / MSS as f64;
        assert!((segments / expected - 1.0).abs() < 0.01, "{segments} against {expected}");
    }

    #[test]
    fn with_a_short_rtt_it_grows_like_reno_at_the_same_average() {
        // At an RTT of 100 us the cubic function is flat, and 9/17 of a segment per window is Reno's growth.
        let mut curve = Curve::default();
        let mut window = curve.shrink(100 * MSS, 100 * MSS);
        assert_eq!(window, 70 * MSS);
        let mut now = Time::ZERO;
        for _ in 0..17 {
            for _ in 0..10 {
                window = curve.grow(window, now, window / 10, Span::from_us(100), MSS);
                now += Span::from_us(10);
            }
        }
        assert!((78 * MSS..=79 * MSS).contains(&window), "{}", window as f64 / MSS as f64);
    }

    /// RFC 9438, 5.8 and 4.9.
    #[test]
    fn idle_time_does_not_count_and_a_reduction_in_vain_is_taken_back() {
        let mut cubic = Cubic::new(&Config::tcp());
        let loss = |cubic: &mut Cubic| {
            let in_flight = cubic.window();
            cubic.on_congestion_event(&CongestionEvent::of(CongestionKind::Loss, in_flight));
        };
        cubic.reno.set_window(1000 * MSS);
        loss(&mut cubic);
        let now = Time::ZERO + Span::from_ms(1);
        cubic.on_end_acks(&AckInfo { now, ..AckInfo::of(MSS) });
        let (window, epoch) = (cubic.window(), cubic.curve.epoch.unwrap());
        let idle = Span::from_secs(5);
        cubic.on_idle(now + idle, idle, Some(Span::from_secs(6)));
        assert_eq!((cubic.window(), cubic.curve.epoch), (window, Some(epoch + idle)));
        loss(&mut cubic);
        assert!(cubic.window() < window && cubic.curve.epoch.is_none());
        cubic.on_spurious_congestion();
        assert_eq!((cubic.window(), cubic.curve.epoch), (window, Some(epoch + idle)));
    }

    #[test]
    fn a_second_loss_below_the_plateau_makes_room() {
        let mut curve = Curve::default();
        curve.shrink(1000 * MSS, 1000 * MSS);
        curve.shrink(800 * MSS, 800 * MSS);
        assert_eq!(curve.w_max, 680 * MSS);
    }

    #[test]
    fn cube_roots() {
        for (n, root) in [(0, 0), (1, 1), (7, 1), (8, 2), (26, 2), (27, 3), (1_000_000, 100)] {
            assert_eq!(cube_root(n), root);
        }
        assert_eq!(cube_root(u128::MAX), MAX_UNITS - 1);
    }
}
