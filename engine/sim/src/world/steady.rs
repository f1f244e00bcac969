//! Whether a run has a steady state. Load that exceeds what links carry leaves ever more messages unfinished, so that a run which waits for
//! its last measured ones may wait for ever: overload must starve somebody.
//!
//! The rules are Rackweave's, and are on simulated time only, so that they give the same results on every machine. They apply once all
//! measured messages have started, and while load goes on.
//!
//! - *Overloaded*: in each of six equal parts of the second half of the run, the bytes of unfinished messages never fell below the least
//!   of the part before, and the least of the last part is at least half as much again as that of the first. Backlog that grows
//!   with time since its beginning doubles. The run has lasted at least four times as long as its messages took to start, and 50 ms: until
//!   the longest of a heavy tail have ended, the backlog of any load grows. The 50 ms do not count where a link is offered more than
//!   it carries ([`crate::config::MeasureConfig::offered_too_much`]).
//! - *Starved*: the run has lasted 200 times as long as its messages took to start. Among runs whose last message ended, 62
//!   times is the most that is known (NDP with the sizes W3 at 70 % load).

use rackweave_core::{Span, Time};

use crate::result::{Backlog, End};

/// The most samples. When they are used up, each two of them become one.
const MAX_SAMPLES: usize = 512;
/// The interval of the samples at first.
const FIRST: Span = Span::from_us(10);
/// The parts of the second half of a run that are compared.
const PARTS: usize = 6;
/// How long a run lasts before it is called overloaded, and starved, as multiples of the time in which its messages started.
const OVERLOADED_FROM: u64 = 4;
const STARVED_FROM: u64 = 200;
/// No run is called overloaded before, unless a link is offered too much. Of W3 and W4 the longest messages take 8 ms at 10 Gbps by themselves.
const OVERLOADED_LEAST: Span = Span::from_ms(50);
/// That time counts as this much at least.
const LEAST_START: Span = Span::from_ms(1);
/// Backlog that grows by less is what few messages make, whatever the load.
const LEAST_GROWTH_BYTES: u64 = 200_000;

/// The bytes of unfinished messages over time.
#[derive(Clone, Debug)]
pub(crate) struct Steady {
    interval: Span,
    /// The least backlog that was seen in each interval.
    samples: Vec<u64>,
    /// No run is called overloaded before.
    overloaded_least: Span,
    /// The next check.
    check_at: Time,
}

impl Steady {
    pub(crate) const fn new(offered_too_much: bool) -> Self {
        let overloaded_least = if offered_too_much { Span::ZERO } else { OVERLOADED_LEAST };
        Self { interval: FIRST, samples: Vec::new(), overloaded_least, check_at: Time::ZERO }
    }

    /// Returns whether a sample is due.
    #[inline]
    pub(crate) fn is_due(&self, now: Time) -> bool {
        now.ticks() / self.interval.ticks() >= self.samples.len() as u64
    }

    /// Takes a sample: of all intervals since the last one.
    pub(crate) fn sample(&mut self, now: Time, backlog_bytes: u64) {
        while now.ticks() / self.interval.ticks() >= MAX_SAMPLES as u64 {
            self.interval = self.interval * 2;
            let pairs = self.samples.chunks(2);
            self.samples = pairs.filter_map(|pair| pair.iter().min().copied()).collect();
        }
        let index = (now.ticks() / self.interval.ticks()) as usize;
        if index < self.samples.len() {
            return;
        }
        self.samples.resize(index + 1, backlog_bytes);
    }

    /// Returns how the run ends, if it has no steady state. All measured messages have started by `started_until`.
    pub(crate) fn end(&mut self, now: Time, started_until: Time) -> Option<(End, Backlog)> {
        let started_in = started_until.since(Time::ZERO).max(LEAST_START);
        let from = Time::ZERO + (started_in * OVERLOADED_FROM).max(self.overloaded_least);
        if now < from || now < self.check_at {
            return None;
        }
        // A check an eighth later, so that there are few of them.
        self.check_at = now + now.since(Time::ZERO) / 8;
        let second_half = &self.samples[self.samples.len() / 2..];
        let length = second_half.len() / PARTS;
        if length == 0 {
            return None;
        }
        let parts = second_half[second_half.len() - length * PARTS..].chunks(length);
        let least: Vec<u64> = parts.filter_map(|part| part.iter().min().copied()).collect();
        let (first, last) = (least[0], *least.last()?);
        let backlog =
            Backlog { since: Time::from_ticks(now.ticks() / 2), from_bytes: first, to_bytes: last };
        let grows = least.windows(2).all(|pair| pair[0] < pair[1])
            && last >= first.saturating_add(LEAST_GROWTH_BYTES)
            && last >= first.saturating_add(first / 2);
        if grows {
            return Some((End::Overloaded, backlog));
        }
        (now >= Time::ZERO + started_in * STARVED_FROM).then_some((End::Starved, backlog))
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::Rng;

    use super::*;

    /// Runs a detector over a backlog at each 10 us, up to 400 ms, with all messages started after 4 ms.
    fn run(backlog: impl Fn(f64) -> f64) -> Option<(f64, End)> {
        run_offered(false, backlog)
    }

    fn run_offered(too_much: bool, backlog: impl Fn(f64) -> f64) -> Option<(f64, End)> {
        let mut steady = Steady::new(too_much);
        (0..40_000).find_map(|n| {
            let now = Time::ZERO + Span::from_us(10 * n);
            if steady.is_due(now) {
                steady.sample(now, backlog(n as f64 / 100.0) as u64);
            }
            let end = steady.end(now, Time::ZERO + Span::from_ms(4));
            end.map(|(end, _)| (now.as_us_f64() / 1e3, end))
        })
    }

    #[test]
    fn backlog_that_grows_is_overload_and_no_other() {
        // 125 KB a millisecond: a link of 25 Gbps with 26 offered.
        let (at, end) = run(|ms| 125e3 * ms).expect("it grows");
        assert!((50.0..60.0).contains(&at) && end == End::Overloaded, "{at} {end:?}");
        // A link that is offered too much needs no 50 ms, but its backlog must grow.
        let (at, end) = run_offered(true, |ms| 125e3 * ms).expect("it grows");
        assert!((16.0..20.0).contains(&at) && end == End::Overloaded, "{at} {end:?}");
        assert_eq!(run_offered(true, |ms| 50e6 * (1.0 - (-ms / 2.0).exp())), None);
        // Below the sawtooth of an incast of 10 MB every 5 ms.
        let sawtooth = |ms: f64| 10e6 * (1.0 - ms % 5.0 / 5.0);
        let (at, end) = run(|ms| 125e3 * ms + sawtooth(ms)).expect("it grows");
        assert!((50.0..150.0).contains(&at) && end == End::Overloaded, "{at} {end:?}");
        assert_eq!(run(sawtooth), None);
        // Grows to a level and stays there, and what few messages make.
        assert_eq!(run(|ms| 50e6 * (1.0 - (-ms / 5.0).exp())), None);
        assert_eq!(run(|ms| 100.0 * ms), None);
    }

    /// A queue at 97 % load of messages of a heavy-tailed length is steady, however long it takes to empty.
    #[test]
    fn a_busy_queue_is_no_overload() {
        for seed in 1..=20 {
            let mut rng = Rng::stream(seed, 0, 0, "steady");
            let (mut queue, mut series) = (0.0_f64, Vec::new());
            for _ in 0..40_000 {
                // In 10 us a link carries 31,250 bytes; messages are of 1 KB to 10 MB with a Pareto tail of 1.2.
                let mut arrived = 0.0;
                let mut at = rng.exponential(1.0);
                while at < 5.8 {
                    let u = rng.exponential(1.0);
                    arrived += 1e3 * (u / 1.2).exp().min(1e4);
                    at += rng.exponential(1.0);
                }
                queue = (queue + arrived - 31_250.0).max(0.0);
                series.push(queue);
            }
            let end = run(|ms| series[(ms * 100.0) as usize]);
            assert_eq!(end, None, "seed {seed}");
        }
    }

    #[test]
    fn waiting_without_end_is_starvation() {
        let mut steady = Steady::new(false);
        let end = (0..3_000).find_map(|n| {
            let now = Time::ZERO + Span::from_us(100 * n);
            steady.sample(now, 5_000_000);
            let end = steady.end(now, Time::ZERO + Span::from_us(10));
            end.map(|(end, _)| (n, end))
        });
        let (n, end) = end.expect("200 times the least time");
        assert!((2000..2300).contains(&n) && end == End::Starved, "{n} {end:?}");
    }
}
