//! The choice of a path for each packet.
//!
//! NDP's senders choose the path of every packet themselves and go through permutations of all paths
//! (`docs/protocols/ndp.md#ndp-paths`), because random choices by switches collide, which costs ten percent of the
//! links at loads near 1. A new permutation for each round is our choice. Source routing of this kind needs
//! switches that read the path in the header; otherwise the fabric sprays.

use rackweave_core::rng::mix;
use rackweave_wire::ndp::ANY_PATH;

/// Number of answers per path after which the NACK counts are halved (our choice).
const MEMORY: u32 = 16;
/// A path is skipped when its NACKs exceed twice the average of the other paths by more than this (our choice).
const MARGIN: u32 = 4;

/// A random order over all paths, in which each path occurs once per round.
#[derive(Debug, Default)]
pub(super) struct Paths {
    /// A permutation of the paths. Those before `at` have been used in this round.
    order: Vec<u16>,
    at: usize,
    random: u64,
    /// NACKs of each path; empty if there are none. Paths with many NACKs are skipped for a while
    /// (`docs/protocols/ndp.md#ndp-paths`).
    nacks: Vec<u32>,
    all_nacks: u32,
    answers: u32,
}

impl Paths {
    /// Resets the order and the counts but keeps the allocations. Any permutation is a valid start.
    pub(super) fn restart(&mut self, seed: u64) {
        (self.at, self.random) = (0, seed);
        (self.all_nacks, self.answers) = (0, 0);
        self.nacks.clear();
    }

    /// The path of the next packet among `count` paths; with 0 switches choose.
    #[inline]
    pub(super) fn next(&mut self, count: u16) -> u16 {
        if count == 0 {
            return ANY_PATH;
        }
        if self.order.len() != usize::from(count) {
            self.order = (0..count).collect();
            (self.at, self.nacks) = (0, Vec::new());
        }
        // At most half of the paths can have more than twice the average of the others, so that a path is found
        // within two rounds.
        loop {
            let path = self.draw();
            if self.nacks.is_empty() || !self.is_left_out(path) {
                return path;
            }
        }
    }

    /// One step of the Fisher-Yates shuffle.
    #[inline]
    fn draw(&mut self) -> u16 {
        if self.at >= self.order.len() {
            self.at = 0;
        }
        self.random = mix(self.random);
        let left = (self.order.len() - self.at) as u64;
        let other = self.at + (((self.random >> 32) * left) >> 32) as usize;
        self.order.swap(self.at, other);
        self.at += 1;
        self.order[self.at - 1]
    }

    fn is_left_out(&self, path: u16) -> bool {
        let others = self.nacks.len() as u64 - 1;
        let nacks = u64::from(self.nacks[usize::from(path)]);
        nacks * others > 2 * (u64::from(self.all_nacks) - nacks) + u64::from(MARGIN) * others
    }

    /// Counts an answer to a packet that took this path and arrived complete or `trimmed`.
    #[inline]
    pub(super) fn answered(&mut self, path: u16, trimmed: bool) {
        if usize::from(path) >= self.order.len() {
            return;
        }
        if trimmed {
            if self.nacks.is_empty() {
                self.nacks.resize(self.order.len(), 0);
            }
            self.nacks[usize::from(path)] += 1;
            self.all_nacks += 1;
        }
        if !self.nacks.is_empty() {
            self.answers += 1;
            if self.answers > MEMORY * self.nacks.len() as u32 {
                self.forget_half();
            }
        }
    }

    fn forget_half(&mut self) {
        self.nacks.iter_mut().for_each(|nacks| *nacks /= 2);
        self.all_nacks = self.nacks.iter().sum();
        self.answers = 0;
        if self.all_nacks == 0 {
            self.nacks.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_takes_each_path_once_in_another_order() {
        let mut paths = Paths::default();
        paths.restart(1);
        let mut rounds: Vec<Vec<u16>> =
            (0..20).map(|_| (0..16).map(|_| paths.next(16)).collect()).collect();
        assert!(rounds.windows(2).all(|pair| pair[0] != pair[1]));
        for round in &mut rounds {
            round.sort_unstable();
            assert_eq!(*round, (0..16).collect::<Vec<_>>());
        }
        assert_eq!(paths.next(0), ANY_PATH);
        assert_eq!(paths.next(1), 0);
    }

    #[test]
    fn a_path_with_many_nacks_is_left_out_for_a_while() {
        let mut paths = Paths::default();
        paths.restart(7);
        let share = |paths: &mut Paths, bad: Option<u16>| {
            let mut taken = 0;
            for _ in 0..16_000 {
                let path = paths.next(16);
                taken += u32::from(path == 3);
                paths.answered(path, bad == Some(path));
            }
            taken
        };
        // One in sixteen would be 1000: the path is tried repeatedly.
        let bad = share(&mut paths, Some(3));
        assert!((50..700).contains(&bad), "{bad}");
        let good = share(&mut paths, None);
        assert!((900..=1000).contains(&good), "it is forgiven: {good}");
    }

    #[test]
    fn nacks_from_everywhere_leave_nothing_out() {
        let mut paths = Paths::default();
        paths.restart(3);
        let mut taken = [0; 16];
        for _ in 0..16_000 {
            let path = paths.next(16);
            taken[usize::from(path)] += 1;
            paths.answered(path, true);
        }
        assert_eq!(taken, [1000; 16], "the last link of an incast is on every path");
    }

    #[test]
    fn answers_for_paths_that_do_not_exist_are_ignored() {
        let mut paths = Paths::default();
        paths.answered(3, true);
        paths.restart(3);
        for _ in 0..1000 {
            paths.next(2);
            paths.answered(2, true);
            paths.answered(ANY_PATH, true);
            // However unequal the counts are, one path remains; a single path is always used.
            paths.answered(0, true);
        }
        assert_eq!((paths.next(2), paths.next(2)), (1, 1));
        paths.next(1);
        (0..1000).for_each(|_| paths.answered(0, true));
        assert_eq!(paths.next(1), 0);
    }
}
