//! The end of slow start before a loss: `HyStart` as in Linux, and `HyStart++` (RFC 9406).

use rackweave_core::{Span, Time};

use super::AckInfo;
use crate::tcp::config::{Config, HyStart};

/// The RTT has to grow by an eighth, within these bounds (RFC 9406, 4.3: `MIN_RTT_THRESH`, `MAX_RTT_THRESH`,
/// `MIN_RTT_DIVISOR`; Linux has the same).
const MIN_GROWTH: Span = Span::from_ms(4);
const MAX_GROWTH: Span = Span::from_ms(16);
const GROWTH_SHIFT: u32 = 3;

/// Number of samples of the RTT in each round before it counts (`N_RTT_SAMPLE`; Linux, `HYSTART_MIN_SAMPLES`).
const SAMPLES: u32 = 8;

/// Growth during conservative slow start, as a share of that in slow start (`CSS_GROWTH_DIVISOR`), and its length
/// (`CSS_ROUNDS`).
const CONSERVATIVE_DIVISOR: u64 = 4;
const CONSERVATIVE_ROUNDS: u32 = 5;

/// Maximum growth for one acknowledgement, in segments, without pacing (`L`).
const LIMIT_SEGMENTS: u64 = 8;

/// Smaller windows never end slow start (Linux, `hystart_low_window`).
const LOW_WINDOW_SEGMENTS: u64 = 16;

/// Acknowledgements form a train if they follow each other within this time (Linux, `hystart_ack_delta_us`).
const TRAIN_GAP: Span = Span::from_ms(2);

/// Linux allows for trains that are as long as it takes to send four of the largest bursts of segmentation offload
/// (`sk_gso_max_size`) at the pacing rate, and for at most 1 ms (`hystart_ack_delay`).
const BURST_ALLOWANCE: u64 = 4 * 65_536;
const MAX_ALLOWANCE: Span = Span::from_ms(1);

/// Finds the end of slow start.
#[derive(Clone, Debug)]
pub(super) struct Exit {
    kind: HyStart,
    /// The round ends when more than this position is acknowledged.
    round_end: u64,
    round_started: Time,
    /// Linux: the last acknowledgement of the train.
    last_ack: Time,
    /// Minimum RTT, of all rounds (Linux) or of the last (RFC 9406), of this round, and at the start of conservative
    /// slow start.
    before: Span,
    current: Span,
    baseline: Span,
    samples: u32,
    /// Number of rounds of conservative slow start that are left; `None` outside of it.
    conservative: Option<u32>,
    found: bool,
    mss: u64,
}

impl Exit {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            kind: config.hystart,
            round_end: 0,
            round_started: Time::ZERO,
            last_ack: Time::ZERO,
            before: Span::MAX,
            current: Span::MAX,
            baseline: Span::MAX,
            samples: 0,
            conservative: None,
            found: false,
            mss: config.segment_bytes(),
        }
    }

    /// Starts again after a timeout. RFC 9406 is for the first slow start only (4.2).
    pub(super) const fn restart(&mut self) {
        if matches!(self.kind, HyStart::Linux) {
            self.found = false;
            self.round_end = 0;
            self.samples = 0;
            self.current = Span::MAX;
        } else {
            self.found = true;
            self.conservative = None;
        }
    }

    /// The bytes by which an acknowledgement of `acked` bytes lets the window grow in slow start.
    #[inline]
    pub(super) fn growth(&self, acked: u64) -> u64 {
        if self.kind != HyStart::PlusPlus || self.found {
            return acked;
        }
        let limited = acked.min(LIMIT_SEGMENTS * self.mss);
        if self.conservative.is_some() { limited / CONSERVATIVE_DIVISOR } else { limited }
    }

    /// Handles an acknowledgement in slow start. Returns whether slow start ends.
    #[inline]
    pub(super) fn on_ack(&mut self, ack: &AckInfo, window: u64) -> bool {
        let Some(delay) = ack.delay().filter(|_| !self.found && self.kind != HyStart::Off) else {
            return false;
        };
        self.found = match self.kind {
            HyStart::Off => false,
            HyStart::Linux => self.linux(ack, delay, window),
            HyStart::PlusPlus => self.plus_plus(ack, delay),
        };
        self.found
    }

    fn begin_round(&mut self, ack: &AckInfo) {
        self.round_end = ack.nxt;
        self.round_started = ack.now;
        self.last_ack = ack.now;
        self.current = Span::MAX;
        self.samples = 0;
    }

    fn threshold(base: Span) -> Span {
        Span::from_ticks(base.ticks() >> GROWTH_SHIFT).clamp(MIN_GROWTH, MAX_GROWTH)
    }

    /// Linux, `hystart_update`.
    fn linux(&mut self, ack: &AckInfo, delay: Span, window: u64) -> bool {
        self.before = self.before.min(delay);
        if ack.una > self.round_end || self.round_end == 0 {
            self.begin_round(ack);
        }
        if window < LOW_WINDOW_SEGMENTS * self.mss {
            return false;
        }
        if ack.now.since(self.last_ack) <= TRAIN_GAP {
            self.last_ack = ack.now;
            // In slow start the pacing rate is twice the window per RTT.
            let burst = u128::from(ack.rtt.ticks()) * u128::from(BURST_ALLOWANCE);
            let burst = burst / u128::from(2 * window);
            let most = MAX_ALLOWANCE.ticks();
            let allowance = u64::try_from(burst).map_or(most, |burst| burst.min(most));
            let longest = self.before.ticks().saturating_add(allowance) / 2;
            if ack.now.since(self.round_started).ticks() > longest {
                return true;
            }
        }
        self.current = self.current.min(delay);
        if self.samples < SAMPLES {
            self.samples += 1;
            return false;
        }
        self.current.ticks()
            > self.before.ticks().saturating_add(Self::threshold(self.before).ticks())
    }

    /// RFC 9406, 4.2.
    fn plus_plus(&mut self, ack: &AckInfo, delay: Span) -> bool {
        if ack.una > self.round_end || self.round_end == 0 {
            if let Some(left) = &mut self.conservative {
                *left -= 1;
                if *left == 0 {
                    return true;
                }
            }
            self.before = self.current;
            self.begin_round(ack);
        }
        self.current = self.current.min(delay);
        self.samples += 1;
        if self.samples < SAMPLES || self.before == Span::MAX {
            return false;
        }
        if self.conservative.is_none() {
            let limit = self.before.ticks().saturating_add(Self::threshold(self.before).ticks());
            if self.current.ticks() >= limit {
                self.baseline = self.current;
                self.conservative = Some(CONSERVATIVE_ROUNDS);
            }
        } else if self.current < self.baseline {
            // The increase was spurious.
            self.baseline = Span::MAX;
            self.conservative = None;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1460;

    /// The number of acknowledgements after which slow start ends and the bytes by which the window has grown, in rounds
    /// of 32 acknowledgements that are `gap` apart. Round `n` has an RTT of `rtt(n)`.
    fn run(kind: HyStart, rounds: u64, gap: Span, rtt: impl Fn(u64) -> Span) -> (Option<u64>, u64) {
        let mut exit = Exit::new(&Config { hystart: kind, ..Config::tcp() });
        let (mut window, mut now) = (64 * MSS, Time::ZERO + Span::from_secs(1));
        let before = window;
        for n in 0..rounds * 32 {
            let (round, rtt) = (n / 32, rtt(n / 32));
            let (una, nxt) = ((n + 1) * MSS, (round + 1) * 32 * MSS + 1);
            let sent = Some(Time::from_ticks(now.ticks() - rtt.ticks()));
            let ack = AckInfo { now, sent, una, nxt, rtt, ..AckInfo::of(MSS) };
            if exit.on_ack(&ack, window) {
                return (Some(n), window - before);
            }
            window += exit.growth(MSS);
            now += gap;
        }
        (None, window - before)
    }

    #[test]
    fn linux_ends_slow_start_at_half_of_the_minimum_rtt() {
        // A burst of 256 KB at twice 64 segments per RTT takes 1.4 RTTs, but at most 1 ms. Half of 11 ms is 5.5 ms.
        let gap = Span::from_us(200);
        let (found, _) = run(HyStart::Linux, 3, gap, |_| Span::from_ms(10));
        assert_eq!(found, Some(28), "the first after 5.5 ms");
        let (found, _) = run(HyStart::Linux, 3, Span::from_us(100), |_| Span::from_ms(10));
        assert_eq!(found, None, "the rounds are shorter");
        let gap = Span::from_us(2_100);
        assert_eq!(run(HyStart::Linux, 3, gap, |_| Span::from_ms(10)).0, None, "no train");
    }

    #[test]
    fn linux_ends_slow_start_when_the_rtt_has_grown_by_four_milliseconds() {
        let gap = Span::from_us(1);
        let rtt =
            |by_us: u64| move |round| Span::from_us(1_000 + if round < 2 { 0 } else { by_us });
        assert_eq!(run(HyStart::Linux, 5, gap, rtt(3_900)).0, None);
        assert_eq!(run(HyStart::Linux, 5, gap, rtt(4_100)).0, Some(2 * 32 + 8), "after 8 samples");
        assert_eq!(run(HyStart::Off, 5, gap, rtt(4_100)).0, None);
    }

    #[test]
    fn plus_plus_grows_a_quarter_as_fast_for_five_rounds() {
        let gap = Span::from_us(1);
        let rtt = |round| Span::from_ms(if round < 2 { 1 } else { 6 });
        let (found, grown) = run(HyStart::PlusPlus, 20, gap, rtt);
        assert_eq!(found, Some(7 * 32), "from round 2 on, five rounds");
        // The eighth sample of the round begins it.
        let (fast, slow) = (2 * 32 + 7, 5 * 32 - 7);
        assert_eq!(grown, fast * MSS + slow * (MSS / 4));
        // The increase was spurious: slow start continues.
        let rtt = |round| Span::from_ms(if round == 2 { 6 } else { 1 });
        assert_eq!(run(HyStart::PlusPlus, 20, gap, rtt).0, None);
    }
}
