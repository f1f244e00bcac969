//! The epochs of a host, and the times at which it takes part in a matching.

use rackweave_core::rng::mix;
use rackweave_core::{HostId, Span, Time};

use super::config::Config;

/// The grid of a host's epochs (`docs/protocols/dcpim.md#dcpim-epochs`).
///
/// An epoch has `rounds + 1` *stages* of the host as a receiver, a round apart: at each but the last it sends requests, at each but
/// the first it accepts offers, and the last starts the data phase. The host's stages as a sender, at which it offers channels, are in
/// the middle between them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// By how many ticks the host's clock is ahead of its driver's.
    ahead: u64,
    epoch: u64,
    round: u64,
    rounds: u64,
}

impl Clock {
    pub(super) fn new(host: HostId, config: &Config) -> Self {
        // (Our choice of how clocks differ. Spread by a hash because machines own no randomness.)
        let ahead = mix(u64::from(host.0)) % config.clock_skew.ticks().max(1);
        Self {
            ahead,
            epoch: config.epoch.ticks(),
            round: config.round.ticks(),
            rounds: u64::from(config.rounds),
        }
    }

    fn time(&self, epoch: u64, within: u64) -> Time {
        let by_the_clock = epoch.saturating_mul(self.epoch).saturating_add(within);
        Time::from_ticks(by_the_clock.saturating_sub(self.ahead))
    }

    /// The epoch at a time, and the ticks since it started.
    const fn position(&self, now: Time) -> (u64, u64) {
        let by_the_clock = now.ticks().saturating_add(self.ahead);
        (by_the_clock / self.epoch, by_the_clock % self.epoch)
    }

    /// The epoch at this time.
    pub(super) const fn epoch_at(&self, now: Time) -> u64 {
        self.position(now).0
    }

    /// The epoch of a receiver's stage, and its index there, from 0 to `rounds`.
    pub(super) const fn receiver_stage(&self, stage: u64) -> (u64, u64) {
        (stage / (self.rounds + 1), stage % (self.rounds + 1))
    }

    /// When a receiver's stage is.
    pub(super) fn receiver_stage_at(&self, stage: u64) -> Time {
        let (epoch, index) = self.receiver_stage(stage);
        self.time(epoch, index * self.round)
    }

    /// When the data phase starts for which hosts are matched in an epoch.
    pub(super) fn data_phase_at(&self, epoch: u64) -> Time {
        self.time(epoch, self.rounds * self.round)
    }

    /// A receiver's first stage at or after a time.
    pub(super) fn next_receiver_stage(&self, now: Time) -> u64 {
        let (epoch, within) = self.position(now);
        let stages = self.rounds + 1;
        if within == 0 && epoch > 0 && self.rounds * self.round == self.epoch {
            // The last stage of an epoch precedes the first of the next one at the same time.
            return epoch * stages - 1;
        }
        epoch * stages + within.div_ceil(self.round).min(stages)
    }

    /// A receiver's last stage at or before a time, 0 if there is none.
    pub(super) fn last_receiver_stage(&self, now: Time) -> u64 {
        let later = now.saturating_add(Span::from_ticks(1));
        self.next_receiver_stage(later).saturating_sub(1)
    }

    /// When a sender's stage is.
    pub(super) fn sender_stage_at(&self, stage: u64) -> Time {
        let (epoch, index) = (stage / self.rounds, stage % self.rounds);
        self.time(epoch, index * self.round + self.round / 2)
    }

    /// A sender's index within its epoch of a stage, from 0.
    pub(super) const fn sender_stage_index(&self, stage: u64) -> u64 {
        stage % self.rounds
    }

    /// A sender's first stage at or after a time.
    pub(super) fn next_sender_stage(&self, now: Time) -> u64 {
        let (epoch, within) = self.position(now);
        let index = within.saturating_sub(self.round / 2).div_ceil(self.round);
        epoch * self.rounds + index.min(self.rounds)
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::Rate;

    use super::*;

    const LINK: Rate = Rate::from_gbps(10);

    fn clock(epoch: Span, skew: Span) -> Clock {
        let rtt = Span::from_us(10);
        let config = Config::paper(LINK, rtt, rtt).with_rounds(LINK, 3, Span::from_us(10));
        Clock::new(HostId(0), &Config { epoch, clock_skew: skew, ..config })
    }

    fn us(n: u64) -> Time {
        Time::ZERO + Span::from_us(n)
    }

    #[test]
    fn stages_are_a_round_apart() {
        let clock = clock(Span::from_us(30), Span::ZERO);
        let times: Vec<_> = (0..9).map(|stage| clock.receiver_stage_at(stage)).collect();
        assert_eq!(times, [0, 10, 20, 30, 30, 40, 50, 60, 60].map(us));
        let times: Vec<_> = (0..5).map(|stage| clock.sender_stage_at(stage)).collect();
        assert_eq!(times, [5, 15, 25, 35, 45].map(us));
        assert_eq!((clock.data_phase_at(0), clock.data_phase_at(1)), (us(30), us(60)));
    }

    /// The first stage at or after each time, by search. (Stages before time 0 are at time 0.)
    #[test]
    fn the_next_stage_is_the_first_that_is_not_over() {
        for (epoch, skew) in [(30, 0), (41, 0), (30, 30), (41, 100)] {
            let clock = clock(Span::from_us(epoch), Span::from_us(skew));
            for ns in (1..300_000).step_by(249) {
                let now = Time::from_ns(ns);
                let receiver = (0..).find(|stage| clock.receiver_stage_at(*stage) >= now);
                assert_eq!(Some(clock.next_receiver_stage(now)), receiver, "{epoch} {skew} {now}");
                let sender = (0..).find(|stage| clock.sender_stage_at(*stage) >= now);
                assert_eq!(Some(clock.next_sender_stage(now)), sender, "{epoch} {skew} {now}");
                let over = (0..).take_while(|stage| clock.receiver_stage_at(*stage) <= now).last();
                assert_eq!(
                    clock.last_receiver_stage(now),
                    over.unwrap_or(0),
                    "{epoch} {skew} {now}"
                );
            }
        }
    }
}
