//! The choice of an entropy value for each packet, by which switches choose its path.
//!
//! Sources: `docs/protocols/uet.md#eqds-paths` and `docs/protocols/uet.md#uet-paths`. In the simulators switches hash the value, so that two values
//! may name the same path; here it is a number of a path, as with NDP (our choice: these switches hash ports only).

use std::collections::VecDeque;

use rackweave_core::rng::mix;
use rackweave_wire::uet::ANY_ENTROPY;

use super::config::{Balancing, Config};

/// What the answer to a packet says of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feedback {
    /// The packet arrived unmarked.
    Good,
    /// The packet was marked.
    Marked,
    /// The packet was trimmed.
    Trimmed,
}

impl Balancing {
    const fn penalty(self, feedback: Feedback) -> u8 {
        match (self, feedback) {
            (_, Feedback::Good) => 0,
            (Self::Skip, _) | (Self::Mixed, Feedback::Marked) => 1,
            (Self::Mixed, Feedback::Trimmed) => 4,
        }
    }

    const fn max_penalty(self) -> u8 {
        match self {
            Self::Skip => 1,
            Self::Mixed => 15,
        }
    }
}

/// The entropy values of a message.
#[derive(Debug, Default)]
pub(super) struct Entropy {
    random: u64,
    /// The bits above those of the values, which stay the same for the whole message.
    upper: u16,
    /// The next position in the present round of all values.
    at: u16,
    /// The value at a position is this XOR the position. It changes in each round.
    xor: u16,
    /// How often each value is to be skipped; empty if none is.
    penalties: Vec<u8>,
    /// Values to be used again, at most as many as there are.
    recycled: VecDeque<u16>,
}

impl Entropy {
    /// Begins a new message, keeping the allocations.
    pub(super) fn restart(&mut self, seed: u64) {
        // The highest bit is never set, so that no value is `ANY_ENTROPY`.
        (self.random, self.upper, self.at) = (seed, mix(seed) as u16 & 0x7fff, 0);
        self.penalties.clear();
        self.recycled.clear();
        self.begin_round();
    }

    fn begin_round(&mut self) {
        self.random = mix(self.random);
        self.xor = (self.random >> 32) as u16;
    }

    /// The value of the next packet.
    #[inline]
    pub(super) fn next(&mut self, config: &Config) -> u16 {
        let count = config.entropies;
        if count == 0 {
            return ANY_ENTROPY;
        }
        let index = self.recycled.pop_front().unwrap_or_else(|| self.next_index(config));
        self.upper & !(count - 1) | index
    }

    fn next_index(&mut self, config: &Config) -> u16 {
        let count = config.entropies;
        let mut forgives = true;
        // After a whole round of values with penalties the next one is used all the same.
        for _ in 0..=count {
            let index = self.step(count);
            match self.penalties.get_mut(usize::from(index)) {
                Some(penalty) if *penalty > 0 => {
                    if forgives {
                        *penalty -= 1;
                    }
                    // UET forgives only the first of the values that it skips for one packet, EQDS each.
                    forgives = config.balancing == Balancing::Skip;
                }
                _ => return index,
            }
        }
        self.step(count)
    }

    #[inline]
    fn step(&mut self, count: u16) -> u16 {
        let index = (self.at ^ self.xor) & (count - 1);
        self.at += 1;
        if self.at >= count {
            self.at = 0;
            self.begin_round();
        }
        index
    }

    /// Takes note of the answer to a packet with this value.
    #[inline]
    pub(super) fn answered(&mut self, entropy: u16, feedback: Feedback, config: &Config) {
        let count = config.entropies;
        // An answer to another message, or to none.
        if count == 0 || entropy & !(count - 1) != self.upper & !(count - 1) {
            return;
        }
        let (balancing, index) = (config.balancing, entropy & (count - 1));
        if feedback == Feedback::Good {
            if balancing == Balancing::Mixed && self.recycled.len() < usize::from(count) {
                self.recycled.push_back(index);
            }
            return;
        }
        if self.penalties.len() != usize::from(count) {
            self.penalties.clear();
            self.penalties.resize(usize::from(count), 0);
        }
        let penalty = &mut self.penalties[usize::from(index)];
        *penalty = (*penalty + balancing.penalty(feedback)).min(balancing.max_penalty());
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::{Rate, Span};

    use super::*;

    const LINK: Rate = Rate::from_gbps(100);

    fn eqds() -> Config {
        Config { entropies: 16, ..Config::eqds(LINK) }
    }

    fn uet() -> Config {
        Config { entropies: 16, ..Config::uet(LINK, Span::from_us(12)) }
    }

    fn started(seed: u64) -> Entropy {
        let mut entropy = Entropy::default();
        entropy.restart(seed);
        entropy
    }

    fn round(entropy: &mut Entropy, config: &Config) -> Vec<u16> {
        (0..16).map(|_| entropy.next(config)).collect()
    }

    #[test]
    fn every_round_has_each_value_once_in_another_order() {
        for config in [eqds(), uet()] {
            let mut entropy = started(7);
            let rounds: Vec<_> = (0..20).map(|_| round(&mut entropy, &config)).collect();
            assert!(rounds.windows(2).any(|pair| pair[0] != pair[1]));
            for mut round in rounds {
                round.sort_unstable();
                let upper = round[0] & !15;
                assert_eq!(round, (0..16).map(|value| upper | value).collect::<Vec<_>>());
            }
        }
        // With one value, messages differ in the upper bits.
        let one = Config { entropies: 1, ..eqds() };
        let values: Vec<_> = (0..20).map(|seed| started(seed).next(&one)).collect();
        assert!(values.iter().any(|value| *value != values[0]));
        assert!(values.iter().all(|value| *value != ANY_ENTROPY));
        assert_eq!(started(1).next(&Config { entropies: 0, ..eqds() }), ANY_ENTROPY);
    }

    /// EQDS: a mark or a trimmed packet skips the value once, however many there were.
    #[test]
    fn eqds_skips_a_value_once() {
        let config = eqds();
        for feedback in [Feedback::Marked, Feedback::Trimmed] {
            let mut entropy = started(7);
            let bad = round(&mut entropy, &config)[3];
            (0..5).for_each(|_| entropy.answered(bad, feedback, &config));
            let uses = |entropy: &mut Entropy, packets: usize| {
                (0..packets).filter(|_| entropy.next(&config) == bad).count()
            };
            assert_eq!(uses(&mut entropy, 15), 0, "{feedback:?}");
            assert_eq!(uses(&mut entropy, 16), 1, "{feedback:?}");
        }
    }

    /// UET: one for a mark, four for a trimmed packet, at most fifteen.
    #[test]
    fn uet_skips_a_value_as_often_as_its_penalties() {
        let config = uet();
        for (feedback, answers, skipped) in [
            (Feedback::Marked, 1, 1),
            (Feedback::Marked, 3, 3),
            (Feedback::Trimmed, 1, 4),
            (Feedback::Trimmed, 9, 15),
        ] {
            let mut entropy = started(7);
            let bad = round(&mut entropy, &config)[3];
            (0..answers).for_each(|_| entropy.answered(bad, feedback, &config));
            let until = (0..).find(|_| entropy.next(&config) == bad).expect("it is used again");
            let rounds = until / 15;
            assert_eq!(rounds, skipped, "{feedback:?}, {answers} times: after {until} packets");
        }
    }

    #[test]
    fn uet_uses_a_good_value_again_first() {
        let (config, mut entropy) = (uet(), started(7));
        let first = round(&mut entropy, &config);
        for value in [first[5], first[2]] {
            entropy.answered(value, Feedback::Good, &config);
        }
        assert_eq!([entropy.next(&config), entropy.next(&config)], [first[5], first[2]]);
        // EQDS does not.
        let (config, mut entropy) = (eqds(), started(7));
        let mut other = started(7);
        round(&mut entropy, &config);
        let value = round(&mut other, &config)[5];
        entropy.answered(value, Feedback::Good, &config);
        assert_eq!(round(&mut entropy, &config), round(&mut other, &config));
    }

    #[test]
    fn there_is_a_value_even_if_all_have_penalties() {
        for config in [eqds(), uet()] {
            let mut entropy = started(7);
            for _ in 0..1000 {
                let value = entropy.next(&config);
                entropy.answered(value, Feedback::Trimmed, &config);
            }
            entropy.answered(entropy.upper & !15 ^ 0x4000, Feedback::Trimmed, &config);
            entropy.answered(ANY_ENTROPY, Feedback::Good, &config);
            assert_eq!(entropy.penalties.len(), 16);
            assert!(entropy.recycled.is_empty());
        }
    }
}
