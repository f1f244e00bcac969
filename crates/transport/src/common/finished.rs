//! The exchanges that have ended, remembered for as long as late packets of them may arrive.

use rackweave_core::{HostId, Span, Time};
use rustc_hash::FxHashSet;

/// Number of sets, which expire as a whole: an entry costs twelve bytes plus the set's overhead, and expiry
/// costs nothing per entry.
const SETS: usize = 3;

/// Ended exchanges. Each is remembered for at least the configured time, and at most for one and a half times
/// that.
#[derive(Debug)]
pub(crate) struct Finished {
    /// The sets, newest first.
    sets: [FxHashSet<[u32; 3]>; SETS],
    /// When the newest set was started.
    since: Time,
    /// How long a set stays the newest one.
    turn: Span,
}

const fn key(peer: HostId, local: u64) -> [u32; 3] {
    [peer.0, local as u32, (local >> 32) as u32]
}

impl Finished {
    /// Creates an empty memory whose entries last for at least `least`.
    pub(crate) fn new(least: Span) -> Self {
        let turn = Span::from_ticks(least.ticks().div_ceil(SETS as u64 - 1).max(1));
        Self { sets: Default::default(), since: Time::ZERO, turn }
    }

    /// Number of remembered exchanges.
    pub(crate) fn len(&self) -> usize {
        self.sets.iter().map(FxHashSet::len).sum()
    }

    /// Whether an exchange is remembered.
    #[inline]
    pub(crate) fn contains(&self, peer: HostId, local: u64) -> bool {
        let key = key(peer, local);
        self.sets.iter().any(|set| !set.is_empty() && set.contains(&key))
    }

    /// Remembers an exchange that has ended.
    pub(crate) fn insert(&mut self, now: Time, peer: HostId, local: u64) {
        self.forget(now);
        self.sets[0].insert(key(peer, local));
    }

    /// Drops the sets that have expired.
    #[inline]
    pub(crate) fn forget(&mut self, now: Time) {
        let turns = now.since(self.since).ticks() / self.turn.ticks();
        if turns == 0 {
            return;
        }
        for _ in 0..turns.min(SETS as u64) {
            self.sets.rotate_right(1);
            // The allocation is kept unless it is far larger than needed.
            let len = self.sets[0].len();
            self.sets[0].clear();
            self.sets[0].shrink_to(len);
        }
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_remembered_long_enough_and_not_much_longer() {
        let ms = |n| Time::ZERO + Span::from_ms(n);
        let mut finished = Finished::new(Span::from_ms(200));
        for n in 0..1000 {
            finished.insert(ms(n), HostId(n as u32 % 3), n << 30);
            for old in 0..=n {
                let is_known = finished.contains(HostId(old as u32 % 3), old << 30);
                assert!(is_known || n - old >= 200, "{old} at {n} ms");
                assert!(!is_known || n - old <= 300, "{old} at {n} ms");
            }
            assert!(!finished.contains(HostId(n as u32 % 3), (n << 30) + 1));
            assert!(finished.len() <= 300);
        }
        finished.forget(ms(1300));
        assert_eq!(finished.len(), 0);
    }

    #[test]
    fn a_long_silence_forgets_all() {
        let mut finished = Finished::new(Span::from_ms(200));
        finished.insert(Time::ZERO, HostId(1), 1);
        finished.forget(Time::ZERO + Span::from_ms(199));
        assert!(finished.contains(HostId(1), 1));
        finished.forget(Time::ZERO + Span::from_secs(10));
        assert_eq!(finished.len(), 0);
    }
}
