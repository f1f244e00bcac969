//! The windows: Algorithm 1 of the paper, and the target delay of section 3.5.
//!
//! Windows are real numbers of packets. Only operations that IEEE 754 rounds correctly (the four of arithmetic and the
//! square root) are used, so that a run has the same results on each machine.

use rackweave_core::{Span, Time};

use super::config::Config;

/// Converts a number of thousandths.
fn thousandths(value: u32) -> f64 {
    f64::from(value) / 1000.0
}

/// Converts a span to a number of ticks.
fn ticks(span: Span) -> f64 {
    span.ticks() as f64
}

/// The parameters of Algorithm 1 as real numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rules {
    /// `ai`: packets by which a window grows in a round trip.
    increase: f64,
    /// The constant beta of the multiplicative decrease.
    beta: f64,
    /// The largest share of the window that one decrease takes.
    max_mdf: f64,
    min: f64,
    max: f64,
}

impl Rules {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            increase: thousandths(config.increase_millipackets),
            beta: thousandths(config.beta_permille),
            max_mdf: thousandths(config.max_mdf_permille),
            min: thousandths(config.min_window_millipackets),
            max: f64::from(config.max_window),
        }
    }
}

/// One of a flow's two windows: `fcwnd` or `ecwnd` of section 3.3 (`unverified`; htsim has one window).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Window {
    packets: f64,
    /// When the window last shrank.
    last_decrease: Option<Time>,
}

impl Window {
    pub(super) fn new(config: &Config) -> Self {
        Self { packets: f64::from(config.initial_window), last_decrease: None }
    }

    pub(super) const fn packets(&self) -> f64 {
        self.packets
    }

    /// Algorithm 1: at most one decrease in each round trip, so that a window does not react again to the queue that it
    /// has reduced already. (The paper's `rtt` is not specified; htsim takes the smoothed one, and so do we.)
    fn can_decrease(&self, now: Time, rtt: Span) -> bool {
        self.last_decrease.is_none_or(|at| now.since(at) >= rtt)
    }

    /// Handles an acknowledgement of `acked` packets with this delay. `can_grow` is false for a flow that does not use
    /// its window.
    pub(super) fn on_ack(&mut self, ack: &Ack, delay: Span, target: Span, rules: &Rules) {
        if delay < target {
            if ack.can_grow {
                let per_packet = rules.increase / self.packets.max(1.0);
                self.packets = (self.packets + per_packet * f64::from(ack.acked)).min(rules.max);
            }
        } else if self.can_decrease(ack.now, ack.rtt) {
            let excess = ticks(delay.saturating_sub(target)) / ticks(delay).max(1.0);
            let factor = (1.0 - rules.beta * excess).max(1.0 - rules.max_mdf);
            self.shrink(ack.now, factor, rules);
        }
    }

    /// Handles a loss that the acknowledgements show, or a timeout: the largest decrease, at most once in a round trip.
    pub(super) fn on_loss(&mut self, now: Time, rtt: Span, rules: &Rules) {
        if self.can_decrease(now, rtt) {
            self.shrink(now, 1.0 - rules.max_mdf, rules);
        }
    }

    /// Handles the timeout that makes `RETX_RESET_THRESHOLD` in succession.
    pub(super) const fn reset(&mut self, now: Time, rules: &Rules) {
        self.packets = rules.min;
        self.last_decrease = Some(now);
    }

    fn shrink(&mut self, now: Time, factor: f64, rules: &Rules) {
        let before = self.packets;
        self.packets = (before * factor).max(rules.min);
        // htsim: a window that the lower bound holds has not shrunk.
        if self.packets < before {
            self.last_decrease = Some(now);
        }
    }

    #[cfg(test)]
    pub(super) fn check_bounds(&self, rules: &Rules) {
        assert!(self.packets >= rules.min && self.packets <= rules.max, "{}", self.packets);
    }
}

/// What an acknowledgement says to both windows of a flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ack {
    pub(super) now: Time,
    /// The smoothed round-trip time.
    pub(super) rtt: Span,
    /// Packets that are now known to have arrived.
    pub(super) acked: u32,
    /// Whether the flow was limited by its window.
    pub(super) can_grow: bool,
}

/// The constants of flow-based scaling (section 3.5), which follow from the parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scaling {
    /// In ticks times the root of a packet.
    alpha: f64,
    /// In ticks; negative.
    beta: f64,
    /// `fs_range`: the most that is added to the target, in ticks.
    range: f64,
}

impl Scaling {
    pub(super) fn new(config: &Config) -> Self {
        let range = ticks(config.scaling_range);
        let root = |millipackets| 1.0 / thousandths(millipackets).sqrt();
        let (least, most) =
            (root(config.scaling_max_millipackets), root(config.scaling_min_millipackets));
        let alpha = range / (most - least);
        Self { alpha, beta: -alpha * least, range }
    }

    /// The term of the target that grows as the window shrinks: `max(0, min(alpha / sqrt(fcwnd) + beta, fs_range))`.
    pub(super) fn extra(&self, window: f64) -> Span {
        let extra = (self.alpha / window.sqrt() + self.beta).min(self.range).max(0.0);
        Span::from_ticks(extra as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const US: fn(u64) -> Span = Span::from_us;

    fn config() -> Config {
        Config { initial_window: 10, ..Config::htsim() }
    }

    fn at(us: u64) -> Time {
        Time::ZERO + US(us)
    }

    fn ack(us: u64, acked: u32) -> Ack {
        Ack { now: at(us), rtt: US(50), acked, can_grow: true }
    }

    /// The window after acknowledgements at these times with these delays and a target of 40 us.
    fn after(start: f64, acks: &[(u64, u64, u32)]) -> f64 {
        let mut window = Window { packets: start, last_decrease: None };
        for (time, delay, acked) in acks {
            window.on_ack(&ack(*time, *acked), US(*delay), US(40), &Rules::new(&config()));
        }
        window.packets
    }

    fn near(actual: f64, expected: f64) {
        assert!((actual - expected).abs() < 1e-9, "{actual} is not {expected}");
    }

    /// Algorithm 1, with ai = 1, beta = 0.8 and max_mdf = 0.5.
    #[test]
    fn algorithm_1_by_hand() {
        // Additive increase: ai / cwnd for each acknowledged packet.
        near(after(10.0, &[(0, 39, 1)]), 10.1);
        near(after(10.0, &[(0, 39, 3)]), 10.3);
        // Below one packet, ai for each.
        near(after(0.25, &[(0, 39, 1)]), 1.25);
        // At the target already a decrease, here by nothing.
        near(after(10.0, &[(0, 40, 1)]), 10.0);
        // By 0.8 of the excess of 10 in 50.
        near(after(10.0, &[(0, 50, 1)]), 8.4);
        // By half at most: 0.8 of 160 in 200 would be 0.64.
        near(after(10.0, &[(0, 200, 1)]), 5.0);
        // Once in a round trip of 50 us.
        near(after(10.0, &[(0, 50, 1), (49, 50, 1), (50, 50, 1)]), 10.0 * 0.84 * 0.84);
        // An increase is possible in between.
        near(after(10.0, &[(0, 50, 1), (10, 30, 1)]), 8.4 + 1.0 / 8.4);
    }

    #[test]
    fn windows_stay_within_their_limits() {
        let rules = Rules::new(&config());
        let mut window = Window { packets: 0.0015, last_decrease: None };
        window.on_ack(&ack(0, 1), US(900), US(40), &rules);
        near(window.packets, 0.001);
        assert_eq!(window.last_decrease, Some(at(0)));
        // At the limit nothing shrinks.
        window.on_loss(at(60), US(50), &rules);
        assert_eq!(window.last_decrease, Some(at(0)));
        window.packets = f64::from(config().max_window);
        window.on_ack(&ack(100, 1), US(1), US(40), &rules);
        near(window.packets, f64::from(config().max_window));
    }

    #[test]
    fn a_flow_that_does_not_use_its_window_does_not_grow_it() {
        let mut window = Window::new(&config());
        let ack = Ack { can_grow: false, ..ack(0, 1) };
        window.on_ack(&ack, US(1), US(40), &Rules::new(&config()));
        near(window.packets, 10.0);
    }

    #[test]
    fn losses_halve_and_timeouts_in_succession_reset() {
        let rules = Rules::new(&config());
        let mut window = Window::new(&config());
        window.on_loss(at(0), US(50), &rules);
        window.on_loss(at(49), US(50), &rules);
        near(window.packets, 5.0);
        window.reset(at(49), &rules);
        near(window.packets, 0.001);
    }

    /// Section 3.5: the whole range at `fs_min_cwnd`, nothing at `fs_max_cwnd`, and 1 / sqrt(cwnd) in between.
    #[test]
    fn flow_based_scaling_by_hand() {
        let scaling = Scaling::new(&config());
        let extra_us = |window: f64| scaling.extra(window).as_us_f64();
        // fs_range = 100 us, from 0.1 to 100 packets: alpha = 100 / (3.16228 - 0.1) = 32.6554.
        for (window, expected) in [
            (0.01, 100.0),
            (0.1, 100.0),
            (1.0, 32.655_4 - 3.265_5),
            (25.0, 6.531_1 - 3.265_5),
            (100.0, 0.0),
            (900.0, 0.0),
        ] {
            assert!((extra_us(window) - expected).abs() < 1e-3, "{window}: {}", extra_us(window));
        }
        let off = Scaling::new(&Config { scaling_range: Span::ZERO, ..config() });
        assert_eq!(off.extra(0.1), Span::ZERO);
    }

    proptest! {
        /// Whatever arrives, a window stays within its limits, and shrinks by at most `max_mdf` in a round trip.
        #[test]
        fn any_sequence_of_delays(
            steps in proptest::collection::vec((0_u64..100, any::<u32>(), 0_u32..100, 0_u8..8), 1..200),
        ) {
            let rules = Rules::new(&config());
            let mut window = Window::new(&config());
            let mut now = 0;
            let mut decreases: Vec<(Time, f64)> = Vec::new();
            for (gap, delay_ns, acked, kind) in steps {
                now += gap;
                let before = window.packets;
                match kind {
                    0 => window.on_loss(at(now), US(50), &rules),
                    1 => window.on_loss(at(now), US(50), &rules),
                    _ => window.on_ack(&ack(now, acked), Span::from_ns(delay_ns.into()), US(40), &rules),
                }
                window.check_bounds(&rules);
                if window.packets < before {
                    prop_assert!(window.packets >= before * 0.499_999);
                    if let Some((last, _)) = decreases.last() {
                        prop_assert!(at(now).since(*last) >= US(50));
                    }
                    decreases.push((at(now), window.packets));
                }
            }
        }

        /// The target never falls as the window shrinks.
        #[test]
        fn smaller_windows_have_longer_targets(small in 1_u32..1_000_000, more in 1_u32..1_000_000) {
            let scaling = Scaling::new(&config());
            let (small, large) = (thousandths(small), thousandths(small + more));
            prop_assert!(scaling.extra(small) >= scaling.extra(large));
        }
    }
}
