//! NSCC, the congestion control of UET's senders: a window that follows the delay of acknowledged packets, their marks, and
//! trimmed packets.
//!
//! The rules are those of `docs/protocols/uet.md#uet-nscc`. A network of 100 Gbps and 12 us is their reference: in others, increases are
//! multiplied by `a`, the ratio of the bandwidth-delay products.

use rackweave_core::{Span, Time};

use super::config::{Config, MIN_WINDOW_PACKETS};

/// Bandwidth-delay product of the reference network, 100 Gbps times 12 us, in bytes.
const REFERENCE_BDP: u128 = 150_000;
/// Round trip of the reference network.
const REFERENCE_RTT: Span = Span::from_us(12);
/// A packet that waited for less than this found an empty network.
const EMPTY: Span = Span::from_us(1);
/// The weight of a delay in the mean is the inverse of this.
const DELAY_WEIGHT: u64 = 80;
/// Full packets that are acknowledged between two adjustments.
const ADJUST_PACKETS: u64 = 8;

/// What NSCC's rules need of the configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Params {
    packet_bytes: u64,
    /// Payload bytes of a full packet, times the bandwidth-delay product of the network. By [`REFERENCE_BDP`] it is `a` packets.
    scaled_packet: u128,
    bdp: u128,
    base_rtt: Span,
    target: Span,
    shrink_on_trim: bool,
}

impl Params {
    pub(super) fn new(config: &Config) -> Self {
        let bdp = u128::from(config.link.bytes_in(config.base_rtt));
        Self {
            packet_bytes: u64::from(config.packet_bytes()),
            scaled_packet: u128::from(config.common.max_payload) * bdp,
            bdp,
            base_rtt: config.base_rtt,
            target: config.target_delay,
            shrink_on_trim: config.shrink_on_trim,
        }
    }
}

/// An acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acked {
    /// Whether the packet that caused it was marked.
    pub(super) ecn: bool,
    /// The round trip of that packet, if it is known.
    pub(super) rtt: Option<Span>,
    /// Bytes that have arrived since the acknowledgement before.
    pub(super) bytes: u64,
    /// Bytes in flight after it.
    pub(super) in_flight: u64,
}

/// The window of one message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Nscc {
    window: u64,
    max_window: u64,
    /// The shortest round trip of the message, and at most that of the network.
    base_rtt: Span,
    mean_delay: Span,
    /// What the window is to grow by at the next adjustment, times the window.
    increase: u128,
    /// Bytes that have arrived since the last adjustment.
    since_adjust: u64,
    adjusted_at: Time,
    decreased_at: Time,
    /// Bytes that have been acknowledged from an empty network without interruption.
    empty_bytes: u64,
    is_fast: bool,
    /// Quick adaptation: bytes that have arrived in its present period, when that ends, and whether a packet was trimmed.
    achieved: u64,
    period_end: Option<Time>,
    was_trimmed: bool,
    /// After a quick adaptation, the bytes to ignore because they were sent before it, and the bytes ignored so far.
    to_ignore: u64,
    ignored: u64,
}

impl Nscc {
    pub(super) fn new(config: &Config) -> Self {
        let (window, base_rtt) = (config.max_window, config.base_rtt);
        Self { window, max_window: window, base_rtt, ..Self::default() }
    }

    /// The window, in bytes.
    #[inline]
    pub(super) const fn window(&self) -> u64 {
        self.window
    }

    fn bound(&mut self, params: &Params) {
        self.window = self.window.min(self.max_window).max(params.packet_bytes);
    }

    /// Takes note of a round trip. A shorter one than before makes the largest window shorter: it is one and a half
    /// bandwidth-delay products, with the same minimum as in [`Config::for_round_trip`].
    pub(super) fn measured(&mut self, rtt: Span, config: &Config) {
        if rtt < self.base_rtt {
            self.base_rtt = rtt;
            let bdp = config.link.bytes_in(rtt);
            let least = MIN_WINDOW_PACKETS * u64::from(config.packet_bytes());
            let least = least.min(config.max_window);
            self.max_window = (bdp + bdp / 2).clamp(least, config.max_window);
        }
    }

    fn average(&mut self, delay: Span, ecn: bool, params: &Params) {
        // Without a mark the queue is short by now, and a long delay counts as a quarter of the idle round trip.
        let sample = if !ecn && delay > params.target { self.base_rtt / 4 } else { delay };
        let mean = self.mean_delay.ticks();
        let kept = mean - mean.div_ceil(DELAY_WEIGHT);
        self.mean_delay = Span::from_ticks(kept + sample.ticks() / DELAY_WEIGHT);
    }

    /// Handles an acknowledgement.
    pub(super) fn acked(&mut self, now: Time, acked: Acked, params: &Params) {
        self.achieved += acked.bytes;
        self.since_adjust += acked.bytes;
        self.ignored += acked.bytes;
        let delay = match acked.rtt {
            Some(rtt) if rtt >= self.base_rtt => {
                let delay = rtt.saturating_sub(self.base_rtt);
                self.average(delay, acked.ecn, params);
                delay
            }
            _ => self.mean_delay,
        };
        if self.quick_adapt(now, false, acked.ecn, delay, acked.in_flight, params) {
            return;
        }
        match (acked.ecn, delay >= params.target) {
            (false, true) => {
                // "Fair increase": 5 a packets in a window.
                self.increase += 5 * params.scaled_packet * u128::from(acked.bytes) / REFERENCE_BDP;
            }
            (false, false) => self.increase_in_proportion(delay, acked.bytes, params),
            (true, true) => self.decrease(now, params),
            // Only the path changes.
            (true, false) => {}
        }
        self.bound(params);
        if self.since_adjust > ADJUST_PACKETS * params.packet_bytes
            || now.since(self.adjusted_at) > params.base_rtt
        {
            self.adjust(now, params);
        }
        self.bound(params);
    }

    /// "Proportional increase": 4 a packets in a window, times what is left to the target, in units of the reference round trip. In
    /// an empty network the window grows by a share `a` / 4 of what is acknowledged.
    fn increase_in_proportion(&mut self, delay: Span, bytes: u64, params: &Params) {
        if delay < EMPTY {
            self.empty_bytes = self.empty_bytes.saturating_add(bytes);
            if self.empty_bytes > self.window || self.is_fast {
                self.window += (u128::from(bytes) * params.bdp / (4 * REFERENCE_BDP)) as u64;
                self.is_fast = true;
                return;
            }
        } else {
            self.empty_bytes = 0;
        }
        self.is_fast = false;
        let left = u128::from(params.target.saturating_sub(delay).ticks());
        let per_window = 4 * params.scaled_packet * left / u128::from(REFERENCE_RTT.ticks());
        self.increase += per_window * u128::from(bytes) / REFERENCE_BDP;
    }

    /// "Multiplicative decrease": at most once in a round trip, by 0.8 of the share of the mean delay that exceeds the target, and
    /// by half at most.
    fn decrease(&mut self, now: Time, params: &Params) {
        (self.is_fast, self.empty_bytes) = (false, 0);
        let (mean, target) = (self.mean_delay.ticks(), params.target.ticks());
        if mean > target && now.since(self.decreased_at) > self.base_rtt {
            let less =
                u128::from(self.window) * u128::from(mean - target) * 4 / (5 * u128::from(mean));
            self.window -= (less as u64).min(self.window / 2);
            self.window = self.window.max(params.packet_bytes);
            self.decreased_at = now;
        }
    }

    /// Carries out the increases, and once in a round trip one of 0.15 `a` packets.
    fn adjust(&mut self, now: Time, params: &Params) {
        self.window += (self.increase / u128::from(self.window)) as u64;
        if now.since(self.adjusted_at) >= params.base_rtt {
            self.window += (params.scaled_packet * 3 / (20 * REFERENCE_BDP)) as u64;
            self.adjusted_at = now;
        }
        (self.increase, self.since_adjust) = (0, 0);
    }

    /// "Quick adaptation": after packets were trimmed or waited for long, the window becomes what arrived in the last period, if that
    /// is less than an eighth of the largest window. Returns whether the acknowledgement has no further effect.
    fn quick_adapt(
        &mut self,
        now: Time,
        is_loss: bool,
        ecn: bool,
        delay: Span,
        in_flight: u64,
        params: &Params,
    ) -> bool {
        let mut no_further = false;
        if self.ignored < self.to_ignore && ecn {
            no_further = true;
        } else if self.period_end.is_none_or(|end| now > end) {
            let is_congested = self.was_trimmed || is_loss || delay > params.target * 4;
            if self.period_end.is_some() && is_congested && self.achieved < self.max_window >> 3 {
                // An adaptation never makes the window longer (our choice; the simulator prints a warning).
                self.window = self.achieved.min(self.window).max(params.packet_bytes);
                (self.to_ignore, self.ignored) = (in_flight, 0);
                self.was_trimmed = false;
                no_further = true;
            }
            self.achieved = 0;
            let period = self.base_rtt.saturating_add(params.target);
            self.period_end = Some(now.saturating_add(period));
        }
        if no_further {
            (self.increase, self.since_adjust) = (0, 0);
        }
        no_further
    }

    /// Handles a trimmed packet: it counts as one that waited for a round trip.
    pub(super) fn trimmed(&mut self, now: Time, bytes: u64, in_flight: u64, params: &Params) {
        self.ignored += bytes;
        self.average(params.base_rtt, true, params);
        self.was_trimmed = true;
        let adapted = self.quick_adapt(now, true, true, Span::ZERO, in_flight, params);
        if !adapted && params.shrink_on_trim {
            self.window = self.window.saturating_sub(bytes);
            self.bound(params);
        }
    }

    /// Handles a packet that timed out.
    pub(super) fn timed_out(&mut self, bytes: u64, params: &Params) {
        self.window = self.window.saturating_sub(bytes).max(params.packet_bytes);
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::Rate;

    use super::*;

    const LINK: Rate = Rate::from_gbps(100);
    const RTT: Span = Span::from_us(12);
    const US: fn(u64) -> Span = Span::from_us;

    /// The reference network, where `a` is 1: a largest window of 225 KB and a target of 9 us.
    fn reference() -> (Config, Params) {
        let config = Config::nscc(LINK, RTT);
        let params = Params::new(&config);
        (config, params)
    }

    fn at(us: u64) -> Time {
        Time::ZERO + US(us)
    }

    /// A window in the middle, in a period of quick adaptation that does not end.
    fn steady(window: u64, config: &Config) -> Nscc {
        Nscc { window, period_end: Some(at(1_000_000)), ..Nscc::new(config) }
    }

    fn ack(ecn: bool, delay: Span, bytes: u64) -> Acked {
        Acked { ecn, rtt: Some(RTT + delay), bytes, in_flight: 0 }
    }

    /// Each of the four cases of an acknowledgement of eight and a half packets, at a window of 100 KB.
    #[test]
    fn the_window_by_marks_and_delay() {
        let (config, params) = reference();
        let bytes = 12_750;
        for (ecn, delay, change, case) in [
            // 5 * 1436 * 12750 / 100000 = 915 bytes.
            (false, US(9), 915, "fair increase"),
            (false, US(30), 915, "fair increase"),
            // 4 * 1436 * 12750 / 100000 = 732 bytes, times what is left to the target by 12 us.
            (false, US(3), 366, "proportional increase, half of a round trip left"),
            (false, US(6), 183, "proportional increase, a quarter left"),
            (true, US(6), 0, "only the path changes"),
            (true, US(9), 0, "the mean is still below the target"),
        ] {
            let mut nscc = Nscc { adjusted_at: at(995), ..steady(100_000, &config) };
            nscc.acked(at(1000), ack(ecn, delay, bytes), &params);
            assert_eq!(nscc.window as i64 - 100_000, change, "{case} at {delay}");
        }
    }

    #[test]
    fn increases_wait_for_eight_packets_or_a_round_trip() {
        let (config, params) = reference();
        let mut nscc = Nscc { adjusted_at: at(995), ..steady(100_000, &config) };
        nscc.acked(at(1000), ack(false, US(9), 12_000), &params);
        assert_eq!(nscc.window, 100_000, "exactly eight packets");
        nscc.acked(at(1001), ack(false, US(9), 1), &params);
        // 5 * 1436 * 12001 / 100000.
        assert_eq!(nscc.window, 100_861);
        // After a round trip 0.15 packets are added: 215 bytes.
        nscc.acked(at(1008), ack(true, US(6), 1), &params);
        assert_eq!(nscc.window, 101_076);
    }

    /// A window that is acknowledged from an empty network grows by a quarter of what follows.
    #[test]
    fn an_empty_network_lets_the_window_grow_fast() {
        let (config, params) = reference();
        let mut nscc = Nscc { adjusted_at: at(1000), ..steady(15_000, &config) };
        nscc.acked(at(1000), ack(false, Span::from_ns(999), 15_000), &params);
        // 4 * 1436 * 15000 / 15000 * 8.001 / 12, since it was exactly a window.
        assert_eq!(nscc.window, 15_000 + 3_829);
        nscc.acked(at(1001), ack(false, Span::ZERO, 4_000), &params);
        assert_eq!(nscc.window, 18_829 + 1_000);
        nscc.acked(at(1002), ack(false, US(1), 4_000), &params);
        assert_eq!(nscc.window, 19_829, "the network is no longer empty");
        assert_eq!((nscc.is_fast, nscc.empty_bytes), (false, 0));
    }

    /// By 0.8 of the share of the mean that exceeds the target, by half at most, once in a round trip.
    #[test]
    fn marks_above_the_target_decrease_the_window() {
        let (config, params) = reference();
        for (mean, window) in [(9, 100_000), (12, 80_000), (18, 60_000), (24, 50_000), (90, 50_000)]
        {
            let mut nscc = Nscc {
                // The next sample is the mean itself, so that it does not change.
                mean_delay: US(mean),
                adjusted_at: at(1000),
                ..steady(100_000, &config)
            };
            nscc.acked(at(1000), ack(true, US(mean), 1), &params);
            assert!(nscc.window.abs_diff(window) < 10, "{mean} us: {}", nscc.window);
            let after = nscc.window;
            nscc.acked(at(1012), ack(true, US(mean), 1), &params);
            assert_eq!(nscc.window, after, "only once in a round trip");
            nscc.acked(at(1013), ack(true, US(mean), 1), &params);
            assert!(nscc.window < after || mean == 9);
        }
    }

    #[test]
    fn the_mean_delay_has_a_weight_of_one_in_eighty() {
        let (config, params) = reference();
        let mut nscc = steady(100_000, &config);
        nscc.average(US(8), false, &params);
        assert_eq!(nscc.mean_delay, Span::from_ns(100));
        // A long delay without a mark counts as a quarter of the idle round trip, 3 us.
        let mut nscc = steady(100_000, &config);
        nscc.average(US(40), false, &params);
        assert_eq!(nscc.mean_delay, Span::from_ps(37_500));
        nscc.average(US(40), true, &params);
        let mean = nscc.mean_delay.as_ns();
        assert_eq!(mean, 537, "37.5 * 79 / 80 + 500");
    }

    /// After trimming the window is what arrived in a round trip and a target delay, if that is little.
    #[test]
    fn quick_adaptation_follows_what_arrived() {
        let (config, params) = reference();
        for (arrived, window) in
            [(10_000, 10_000), (100, 1_500), (28_124, 28_124), (28_125, 200_000 - 1_500)]
        {
            let mut nscc = Nscc { window: 200_000, ..Nscc::new(&config) };
            nscc.acked(at(1000), ack(true, Span::ZERO, 1), &params);
            assert_eq!(nscc.period_end, Some(at(1021)), "a round trip and the target");
            nscc.acked(at(1010), ack(true, Span::ZERO, arrived), &params);
            nscc.trimmed(at(1020), 0, 0, &params);
            nscc.trimmed(at(1022), 1_500, 60_000, &params);
            let eta = 215 * u64::from(window > 100_000);
            assert_eq!(nscc.window, window + eta, "{arrived} arrived");
            if eta > 0 {
                continue;
            }
            // What was sent before has no effect if it is marked.
            nscc.mean_delay = US(90);
            nscc.acked(at(1030), ack(true, US(90), 59_999), &params);
            assert_eq!(nscc.window, window);
            nscc.acked(at(1031), ack(true, US(90), 1), &params);
            assert!(nscc.window < window || window == 1_500);
        }
    }

    #[test]
    fn long_delays_cause_a_quick_adaptation_too() {
        let (config, params) = reference();
        for (delay, window) in [(US(36), 150_000), (Span::from_ns(36_001), 3_000)] {
            let mut nscc = Nscc { period_end: Some(at(990)), ..steady(150_000, &config) };
            (nscc.period_end, nscc.adjusted_at) = (Some(at(990)), at(999));
            nscc.acked(at(1000), ack(false, delay, 3_000), &params);
            assert_eq!(nscc.window, window);
        }
    }

    #[test]
    fn a_trimmed_packet_shrinks_the_window_unless_there_is_credit() {
        let (config, params) = reference();
        let mut nscc = steady(100_000, &config);
        nscc.trimmed(at(1000), 1_500, 0, &params);
        assert_eq!(nscc.window, 98_500);
        assert_eq!(nscc.mean_delay, Span::from_ns(150), "as one that waited for 12 us");
        nscc.timed_out(1_500, &params);
        assert_eq!(nscc.window, 97_000);
        (0..100).for_each(|_| nscc.timed_out(1_500, &params));
        assert_eq!(nscc.window, 1_500);
        let both = Params::new(&Config::uet(LINK, RTT));
        let mut nscc = steady(100_000, &config);
        nscc.trimmed(at(1000), 1_500, 0, &both);
        assert_eq!(nscc.window, 100_000);
    }

    #[test]
    fn a_shorter_round_trip_shortens_the_largest_window() {
        let (config, params) = reference();
        let mut nscc = Nscc::new(&config);
        nscc.measured(US(20), &config);
        assert_eq!((nscc.base_rtt, nscc.max_window), (RTT, 225_000));
        nscc.measured(US(6), &config);
        assert_eq!((nscc.base_rtt, nscc.max_window), (US(6), 112_500));
        nscc.acked(at(1), ack(true, Span::ZERO, 1), &params);
        assert_eq!(nscc.window, 112_500);
        nscc.measured(Span::TICK, &config);
        assert_eq!(nscc.max_window, 12_000, "eight packets");
    }

    /// `a` is 8 in a network of 400 Gbps and 24 us.
    #[test]
    fn increases_are_multiplied_by_the_ratio_of_the_products() {
        let config = Config::nscc(Rate::from_gbps(400), US(24));
        let params = Params::new(&config);
        assert_eq!(params.target, US(18));
        let mut nscc = Nscc { adjusted_at: at(999), ..steady(1_000_000, &config) };
        let acked = Acked { ecn: false, rtt: Some(US(24 + 18)), bytes: 12_750, in_flight: 0 };
        nscc.acked(at(1000), acked, &params);
        assert_eq!(nscc.window, 1_000_000 + 8 * 5 * 1_436 * 12_750 / 1_000_000);
    }

    proptest::proptest! {
        /// Whatever happens, the window stays within its bounds.
        #[test]
        fn the_window_is_never_out_of_bounds(
            events in proptest::collection::vec(
                (0..4_u8, proptest::bool::ANY, 0..200_u64, 0..300_000_u64, 0..30_u64), 1..300,
            ),
        ) {
            let (config, params) = reference();
            let (mut nscc, mut now) = (Nscc::new(&config), Time::ZERO);
            for (kind, ecn, delay, bytes, later) in events {
                now += US(later);
                match kind {
                    0 => nscc.trimmed(now, bytes, bytes, &params),
                    1 => nscc.timed_out(bytes, &params),
                    2 => nscc.measured(US(delay), &config),
                    _ => {
                        let rtt = (bytes % 7 > 0).then(|| US(delay));
                        let acked = Acked { ecn, rtt, bytes, in_flight: bytes };
                        nscc.acked(now, acked, &params);
                    }
                }
                assert!((1_500..=225_000).contains(&nscc.window), "{}", nscc.window);
            }
        }
    }
}
