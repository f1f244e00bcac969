//! The rate of a message's sender, the reaction point (DCQCN, SIGCOMM'15, section 3.1).
//!
//! The rules are those of HPCC's simulator, which follow a vendor's NIC: timers only, no byte counter, and a cut at most
//! once in an interval instead of one for each CNP.

use rackweave_core::{Rate, Time};

use super::config::Config;
use crate::rdma::Limit;

/// 1.0 as an estimate of congestion.
const ONE: u64 = 1 << 32;

/// After this number of intervals without a CNP the estimate counts as zero.
const FORGETS: u64 = 1 << 14;

/// The rate of one message.
#[derive(Clone, Debug)]
pub struct ReactionPoint {
    /// Bits per second: what is sent now, and what the rate recovers to.
    current: u64,
    target: u64,
    /// The estimate of congestion, alpha, in units of 2^-32.
    alpha: u64,
    /// When the interval of `alpha` began.
    alpha_from: Time,
    /// Whether a CNP has come in that interval.
    is_told: bool,
    /// When the first CNP came: cuts are decided at whole intervals after it.
    since: Time,
    /// The next cut; [`Time::MAX`] without a CNP since the last one.
    cut_at: Time,
    /// The next increase; [`Time::MAX`] at the full rate.
    raise_at: Time,
    /// Increases since the last cut.
    raised: u32,
}

impl Limit<Config> for ReactionPoint {
    /// No limit but the link.
    fn new(config: &Config) -> Self {
        Self {
            current: config.link.0,
            target: config.link.0,
            alpha: 0,
            alpha_from: Time::MAX,
            is_told: false,
            since: Time::MAX,
            cut_at: Time::MAX,
            raise_at: Time::MAX,
            raised: 0,
        }
    }

    fn rate(&mut self, now: Time, config: &Config) -> Option<Rate> {
        self.advance(now, config);
        (self.current < config.link.0).then_some(Rate(self.current))
    }

    fn window(&self, config: &Config) -> u32 {
        config.window
    }

    #[cfg(test)]
    fn check_bounds(&self, config: &Config) {
        assert!(self.current <= config.link.0 && self.target <= config.link.0 && self.alpha <= ONE);
        assert!(self.current >= config.min_rate.0.min(config.link.0));
    }
}

impl ReactionPoint {
    /// Notes a CNP.
    pub(super) fn on_cnp(&mut self, now: Time, config: &Config) {
        self.advance(now, config);
        if self.since == Time::MAX {
            (self.since, self.alpha_from, self.alpha) = (now, now, ONE);
        } else {
            self.age_alpha(now, config);
            self.is_told = true;
        }
        if self.cut_at == Time::MAX {
            let interval = config.cut_interval.ticks();
            let passed = now.since(self.since).ticks() / interval + 1;
            self.cut_at = self.since.saturating_add(config.cut_interval.saturating_mul(passed));
        }
    }

    /// Makes the changes that were due by now, in the order of time.
    fn advance(&mut self, now: Time, config: &Config) {
        loop {
            let at = self.cut_at.min(self.raise_at);
            if at > now {
                return;
            }
            if at == self.cut_at { self.cut(at, config) } else { self.raise(at, config) }
        }
    }

    /// Moves the estimate on by whole intervals: the first one is that of a CNP, if any came.
    fn age_alpha(&mut self, now: Time, config: &Config) {
        let interval = config.alpha_interval.ticks();
        let passed = now.since(self.alpha_from).ticks() / interval;
        self.alpha_from =
            self.alpha_from.saturating_add(config.alpha_interval.saturating_mul(passed));
        let gain = (config.gain * ONE as f64) as u64;
        let part = |of: u64| ((u128::from(of) * u128::from(gain)) >> 32) as u64;
        for nth in 0..passed.min(FORGETS) {
            if nth == 0 && self.is_told {
                self.alpha += part(ONE - self.alpha);
                self.is_told = false;
            } else {
                self.alpha -= part(self.alpha);
            }
        }
        if passed >= FORGETS {
            self.alpha = 0;
        }
    }

    /// Section 3.1, equation 1.
    fn cut(&mut self, at: Time, config: &Config) {
        self.age_alpha(at, config);
        if self.raised > 0 || config.clamp_target {
            self.target = self.current;
        }
        let cut = (u128::from(self.current) * u128::from(self.alpha)) >> 33;
        self.current = (self.current - cut as u64).max(config.min_rate.0.min(config.link.0));
        (self.raised, self.cut_at) = (0, Time::MAX);
        self.raise_at = at.saturating_add(config.raise_interval);
    }

    /// Fast recovery, then additive, then hyper increase (section 3.1, equations 3 and 4).
    fn raise(&mut self, at: Time, config: &Config) {
        let more = match self.raised.cmp(&config.fast_recovery) {
            core::cmp::Ordering::Less => 0,
            core::cmp::Ordering::Equal => config.additive.0,
            core::cmp::Ordering::Greater => config.hyper.0,
        };
        self.target = self.target.saturating_add(more).min(config.link.0);
        self.current = self.current.midpoint(self.target + u64::from(self.current < self.target));
        self.raised = self.raised.saturating_add(1);
        self.raise_at = if self.current >= config.link.0 {
            Time::MAX
        } else {
            at.saturating_add(config.raise_interval)
        };
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::Span;

    use super::*;

    const LINK: Rate = Rate::from_gbps(25);

    fn us(us: u64) -> Time {
        Time::ZERO + Span::from_us(us)
    }

    fn gbps(limit: &mut ReactionPoint, at: Time, config: &Config) -> f64 {
        limit.rate(at, config).unwrap_or(LINK).as_gbps_f64()
    }

    #[test]
    fn a_first_cnp_halves_the_rate_after_the_interval_and_timers_bring_it_back() {
        let config = Config { link: LINK, ..Config::hpcc(LINK) };
        let mut limit = ReactionPoint::new(&config);
        assert_eq!(limit.rate(us(5), &config), None);
        limit.on_cnp(us(10), &config);
        assert_eq!(limit.rate(us(13), &config), None);
        // Alpha was 1, and has aged for four intervals of 1 us by 1/256 each.
        let cut = 25.0 * (1.0 - (255.0_f64 / 256.0).powi(4) / 2.0);
        assert!((gbps(&mut limit, us(14), &config) - cut).abs() < 1e-6);
        // 300 us later fast recovery, once, to half of what is missing; the target has stayed.
        let recovered = (cut + 25.0) / 2.0;
        assert!((gbps(&mut limit, us(314), &config) - recovered).abs() < 1e-6);
        assert_eq!(limit.rate(us(20_000), &config), None, "the link again");
        limit.check_bounds(&config);
    }

    #[test]
    fn cnps_in_one_interval_cut_once_and_alpha_settles_at_their_share() {
        let config = Config { link: LINK, ..Config::hpcc(LINK) };
        let mut limit = ReactionPoint::new(&config);
        for at in [10, 11, 12, 13] {
            limit.on_cnp(us(at), &config);
        }
        let once = gbps(&mut limit, us(14), &config);
        assert!(once > 12.4 && once < 12.7, "{once}");
        // One CNP for each second interval of 1 us: alpha nears a half, whatever it was.
        for at in (14..4_000).step_by(2) {
            limit.on_cnp(us(at), &config);
        }
        let half = limit.alpha as f64 / ONE as f64;
        assert!((half - 0.5).abs() < 0.01, "{half}");
        assert_eq!(limit.rate(us(4_000), &config), Some(config.min_rate));
        limit.check_bounds(&config);
    }

    /// Theory: with target R_t the rate after n increases of fast recovery is R_t - (R_t - R_c) / 2^n.
    #[test]
    fn increases_are_fast_recovery_then_additive_then_hyper() {
        let config = Config { fast_recovery: 5, ..Config::paper(LINK) };
        let mut limit =
            ReactionPoint { current: 4 << 30, target: 8 << 30, ..ReactionPoint::new(&config) };
        for n in 1..=5_u32 {
            limit.raise(us(0), &config);
            let expected = (8_u64 << 30) - ((4 << 30) >> n);
            assert!(limit.current.abs_diff(expected) <= 1, "{n}: {}", limit.current);
        }
        limit.raise(us(0), &config);
        assert_eq!(limit.target, (8 << 30) + config.additive.0);
        limit.raise(us(0), &config);
        assert_eq!(limit.target, (8 << 30) + config.additive.0 + config.hyper.0);
    }
}
