//! How many requests a receiver sends, by how late they are answered.
//!
//! (Our rule. Control packets have the highest priority, so that in an oversubscribed core the requests of all receivers leave no time
//! to data, and a queue of them grows for ever: `docs/protocols/dcpim.md#dcpim-matching`.)

use super::config::Config;

/// An answer this many epochs after that of its request, or more, is late. Where no core is oversubscribed, at most three were measured
/// with up to 1000 senders to a host (requests that wait at the links of hosts).
const LATE: u32 = 4;
/// After this many epochs in which no more than a quarter of the answers were late, a halving is undone.
const CALM: u8 = 16;

/// The number of requests that a receiver sends in an epoch.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// How often the number has been halved.
    halvings: u8,
    /// Epochs, since that was last changed, in which no more than a quarter of the answers were late.
    calm: u8,
    /// The epoch in which the rest counts.
    epoch: u64,
    /// Requests that were sent in it.
    sent: u32,
    /// The answers that arrived in it, in time and late. A quarter is needed, so that one peer of several that is far away, or
    /// that lies about epochs, does not slow down the requests to all others. (With more than half, peers in the same
    /// rack outvote the peers behind the core, and two of 1984 messages fail.)
    in_time: u32,
    late: u32,
}

impl Pace {
    /// The most that it sends in an epoch.
    const fn most(config: &Config) -> u32 {
        config.requests_per_round.saturating_mul(config.rounds as u32)
    }

    /// Judges the answers of the epoch before, if another one has begun.
    fn begin_epoch(&mut self, epoch: u64, config: &Config) {
        if epoch == self.epoch {
            return;
        }
        // More than a quarter are late.
        if self.late.saturating_mul(3) > self.in_time {
            self.calm = 0;
            // At least one request an epoch is left.
            self.halvings = (self.halvings + 1).min(Self::most(config).ilog2() as u8);
        } else if self.halvings > 0 && self.in_time > 0 {
            self.calm += 1;
            if self.calm == CALM {
                (self.halvings, self.calm) = (self.halvings - 1, 0);
            }
        }
        (self.epoch, self.sent, self.in_time, self.late) = (epoch, 0, 0, 0);
    }

    /// An offer has arrived for a request of the epoch `asked`. Only the first one after a request counts, whatever a peer sends.
    pub(super) fn answered(&mut self, epoch: u64, asked: u32, config: &Config) {
        self.begin_epoch(epoch, config);
        let age = (epoch as u32).wrapping_sub(asked);
        let is_late = (LATE..=u32::MAX / 2).contains(&age);
        let count = if is_late { &mut self.late } else { &mut self.in_time };
        *count = count.saturating_add(1);
    }

    /// The number of requests that may be sent in a round, by its index in the epoch.
    pub(super) fn requests(&mut self, epoch: u64, round: u64, config: &Config) -> u32 {
        self.begin_epoch(epoch, config);
        if self.halvings == 0 {
            return config.requests_per_round;
        }
        let of_epoch = u64::from(Self::most(config) >> self.halvings);
        // As even as possible over the rounds.
        let until_now = (of_epoch * (round + 1)).div_ceil(u64::from(config.rounds));
        until_now.saturating_sub(u64::from(self.sent)).min(u64::from(config.requests_per_round))
            as u32
    }

    /// A request has been sent.
    pub(super) const fn sent(&mut self) {
        self.sent = self.sent.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::{Rate, Span};

    use super::*;

    /// Four rounds of 20 requests.
    fn config() -> Config {
        let rtt = Span::from_us(10);
        let paper = Config::paper(Rate::from_gbps(10), rtt, rtt);
        Config { requests_per_round: 20, ..paper }
    }

    /// The numbers of requests in the rounds of an epoch in which all that may be sent are.
    fn rounds(pace: &mut Pace, epoch: u64, config: &Config) -> [u32; 4] {
        [0, 1, 2, 3].map(|round| {
            let requests = pace.requests(epoch, round, config);
            (0..requests).for_each(|_| pace.sent());
            requests
        })
    }

    #[test]
    fn late_answers_halve_the_requests_of_the_next_epoch() {
        let config = config();
        let mut pace = Pace::default();
        for epoch in 10..15 {
            assert_eq!(rounds(&mut pace, epoch, &config), [20; 4], "{epoch}: in time");
            pace.answered(epoch, 10, &config);
        }
        // Once for an epoch, however many are late.
        let expected = [[10; 4], [5; 4], [3, 2, 3, 2], [2, 1, 1, 1], [1, 0, 1, 0], [1, 0, 0, 0]];
        for (epoch, expected) in (15..).zip(expected) {
            assert_eq!(rounds(&mut pace, epoch, &config), expected, "{epoch}");
            pace.answered(epoch, 10, &config);
            pace.answered(epoch, 10, &config);
            pace.answered(epoch, epoch as u32, &config);
        }
        assert_eq!(rounds(&mut pace, 21, &config), [1, 0, 0, 0], "one is left");
    }

    /// A peer that is always late, or says so, is outvoted by three that are not.
    #[test]
    fn one_late_peer_does_not_slow_down_the_others() {
        let config = config();
        let mut pace = Pace::default();
        for epoch in 10..100 {
            pace.answered(epoch, 0, &config);
            (0..3).for_each(|_| pace.answered(epoch, epoch as u32, &config));
            assert_eq!(rounds(&mut pace, epoch, &config), [20; 4], "{epoch}");
        }
    }

    #[test]
    fn epochs_with_answers_in_time_undo_it() {
        let config = config();
        let mut pace = Pace::default();
        pace.answered(20, 10, &config);
        pace.answered(21, 10, &config);
        // Silence does not count.
        for epoch in 22..100 {
            assert_eq!(rounds(&mut pace, epoch, &config), [5; 4], "{epoch}");
        }
        let mut total = |epoch: u64, asked: u64| {
            let sum = rounds(&mut pace, epoch, &config).iter().sum::<u32>();
            pace.answered(epoch, asked as u32, &config);
            sum
        };
        for epoch in 100..116 {
            assert_eq!(total(epoch, epoch - 1), 20, "{epoch}");
        }
        assert_eq!(total(116, 112), 40, "16 were calm; this one is late");
        for epoch in 117..133 {
            assert_eq!(total(epoch, epoch), 20, "{epoch}");
        }
        for epoch in 133..149 {
            assert_eq!(total(epoch, epoch), 40, "{epoch}");
        }
        assert_eq!(total(149, 149), 80);
    }

    /// Epochs are carried by 32 bits, and a peer may send any.
    #[test]
    fn epochs_that_wrap_or_are_ahead_are_in_time() {
        let config = config();
        let mut pace = Pace::default();
        let now = 1 << 32;
        for asked in [u32::MAX, u32::MAX - 2, 0, 1, 1_000] {
            pace.answered(now, asked, &config);
        }
        assert_eq!(rounds(&mut pace, now, &config), [20; 4]);
        pace.answered(now + 1, u32::MAX - 2, &config);
        assert_eq!(pace.requests(now + 2, 0, &config), 10);
    }
}
