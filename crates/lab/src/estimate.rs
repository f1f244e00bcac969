//! How long a run with open-loop load goes on after its last measured message has started: until the longest of them have ended.
//!
//! Every link of a host is taken for a queue that serves the message with the least left first, at a rate below that of the link.
//! A long message then waits for all shorter ones that arrive meanwhile, and the run for the unluckiest long message of all hosts.
//! The queues are simulated with messages of the workload's sizes, which takes about as long per message as drawing it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rackweave_core::{Rng, Span};
use rackweave_workload::SizeDist;

/// The share of a link that transports use under load: fitted to Homa, DCTCP, TCP and NDP with W3 on a fat-tree of 128 hosts, whose
/// times are in the tests of `--explain`.
const USED_SHARE: f64 = 0.88;
/// The highest load of a queue. Near 1 the time is without bound, and depends on details that the queues do not have.
const MAX_LOAD: f64 = 0.98;
/// The number of times that the queues are simulated; the estimate is their mean.
const RUNS: u64 = 4;
/// The most messages that are drawn before the last measured one, over all runs and links.
const MAX_MESSAGES: f64 = 1.6e6;

/// The load for which the end of a run is estimated.
pub(crate) struct Load<'a> {
    pub(crate) sizes: &'a SizeDist,
    /// Bytes on the link of a message of a size, with what is sent back for it.
    pub(crate) wire_bytes: &'a dyn Fn(u64) -> f64,
    /// For the links of senders, and for those of receivers: their number, and the messages of each in a second.
    pub(crate) links: [(u64, f64); 2],
    /// The rate of the narrowest links, as a share of a host.
    pub(crate) link_bps: f64,
    /// What other traffic takes of it.
    pub(crate) taken_bps: f64,
    pub(crate) warmup: Span,
    /// When the last measured message starts.
    pub(crate) last_start: Span,
    /// When the load ends; [`Span::MAX`] if it goes on until the last measured message has ended.
    pub(crate) load_until: Span,
    pub(crate) time_limit: Span,
}

impl Load<'_> {
    /// Returns the time at which the last measured message ends.
    pub(crate) fn end(&self) -> Span {
        let mean = self.sizes.mean_of(self.wire_bytes);
        let busiest = self.links.iter().map(|(_, rate)| rate * mean * 8.0).fold(0.0, f64::max);
        let bps = (self.link_bps * USED_SHARE - self.taken_bps).max(busiest / MAX_LOAD);
        let measured = (self.last_start - self.warmup).as_secs_f64();
        let drawn: f64 = self.links.iter().map(|(n, rate)| *n as f64 * rate * measured).sum();
        let share = (MAX_MESSAGES / (drawn * RUNS as f64).max(1.0)).min(1.0);
        let mut sum = 0.0;
        for run in 0..RUNS {
            let mut last = self.last_start.as_secs_f64();
            for (kind, (links, rate)) in (0..).zip(self.links) {
                let simulated = ((links as f64 * share).ceil() as u64).max(1);
                for link in 0..simulated {
                    let rng = Rng::stream(1, run, kind << 32 | link, "estimate");
                    last = last.max(self.last_end(rate, bps, rng));
                }
            }
            sum += last;
        }
        Span::from_secs_f64(sum / RUNS as f64).min(self.time_limit)
    }

    /// Returns when the last measured message of a link ends, in seconds; 0 without any.
    fn last_end(&self, rate: f64, bps: f64, mut rng: Rng) -> f64 {
        let (warmup, until) = (self.warmup.as_secs_f64(), self.last_start.as_secs_f64());
        let (limit, load_until) = (self.time_limit.as_secs_f64(), self.load_until.as_secs_f64());
        let (mut now, mut next, mut last) = (0.0, rng.exponential(1.0 / rate), 0.0);
        // Bits of the messages, least first, and whether they are measured.
        let mut queue: BinaryHeap<Reverse<(u64, bool)>> = BinaryHeap::new();
        let mut measured = 0_u64;
        while measured > 0 || next <= until {
            if now > limit {
                return limit;
            }
            match queue.pop() {
                Some(Reverse((bits, is_measured))) => {
                    let end = now + bits as f64 / bps;
                    if end <= next {
                        now = end;
                        if is_measured {
                            measured -= 1;
                            last = end;
                        }
                        continue;
                    }
                    let left = bits.saturating_sub(((next - now) * bps) as u64).max(1);
                    queue.push(Reverse((left, is_measured)));
                    now = next;
                }
                None => now = next,
            }
            if next > load_until {
                // Nothing is measured any more that is not in the queue.
                next = f64::INFINITY;
                if measured == 0 {
                    break;
                }
                continue;
            }
            let is_measured = (warmup..=until).contains(&next);
            measured += u64::from(is_measured);
            let bits = (self.wire_bytes)(self.sizes.sample(&mut rng)) * 8.0;
            queue.push(Reverse((bits as u64, is_measured)));
            next += rng.exponential(1.0 / rate);
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(sizes: &SizeDist, load: f64) -> f64 {
        end_with(sizes, load, Span::MAX)
    }

    fn end_with(sizes: &SizeDist, load: f64, load_until: Span) -> f64 {
        let rate = load * 25e9 / 8.0 / sizes.mean();
        let load = Load {
            sizes,
            wire_bytes: &|bytes| bytes as f64,
            links: [(64, rate), (64, rate)],
            link_bps: 25e9,
            taken_bps: 0.0,
            warmup: Span::from_ms(1),
            last_start: Span::from_ms(2),
            load_until,
            time_limit: Span::from_secs(10),
        };
        load.end().as_us_f64()
    }

    #[test]
    fn short_messages_end_at_once_and_long_ones_wait_for_the_short_ones() {
        // A packet takes half a microsecond, and few of them meet.
        let short = end(&SizeDist::fixed(1500).unwrap(), 0.5);
        assert!((2000.0..2020.0).contains(&short), "{short}");
        let w3 = SizeDist::named("W3").unwrap();
        let (low, high) = (end(&w3, 0.3), end(&w3, 0.8));
        // 15 MB take 4.9 ms, if any of them is measured.
        assert!(low > 2100.0 && high > low * 1.5, "{low} {high}");
    }

    #[test]
    fn long_messages_end_sooner_if_no_others_follow() {
        let w3 = SizeDist::named("W3").unwrap();
        let (goes_on, stops) = (end(&w3, 0.8), end_with(&w3, 0.8, Span::from_ms(2)));
        assert!(stops > 2000.0 && stops < goes_on, "{stops} {goes_on}");
        // What has not started by then does not count.
        assert!(end_with(&w3, 0.8, Span::from_us(1500)) < stops);
    }

    #[test]
    fn a_load_beyond_the_link_still_has_an_end() {
        let w3 = SizeDist::named("W3").unwrap();
        assert!(end(&w3, 1.0) <= 10e6);
    }
}
