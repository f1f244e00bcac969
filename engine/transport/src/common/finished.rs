//! The exchanges that have ended, remembered for as long as late packets of them may arrive.

use rackweave_core::{HostId, Span, Time};
use rustc_hash::FxHashSet;

/// Number of sets, which expire as a whole: an entry costs twelve bytes plus the set's overhead, and expiry
/// costs nothing per entry.
const SETS: usize = 3;

/// Ended exchanges. Each is remembered for at least the configured time, and at most for one and a half times
/// that, as far as all packets that had arrived by then were handled.
#[derive(Debug)]
pub(crate) struct Finished {
    /// The sets, newest first.
    sets: [Set; SETS],
    /// When the newest set was started.
    since: Time,
    least: Span,
    /// How long a set stays the newest one.
    turn: Span,
    /// All packets that had arrived by then were handled.
    handled: Time,
}

#[derive(Debug, Default)]
struct Set {
    keys: FxHashSet<[u32; 3]>,
    /// When the last one was added.
    last: Time,
}

const fn key(peer: HostId, local: u64) -> [u32; 3] {
    [peer.0, local as u32, (local >> 32) as u32]
}

impl Finished {
    /// Creates an empty memory whose entries last for at least `least`.
    pub(crate) fn new(least: Span) -> Self {
        let turn = Span::from_ticks(least.ticks().div_ceil(SETS as u64 - 1).max(1));
        Self { sets: Default::default(), since: Time::ZERO, least, turn, handled: Time::MAX }
    }

    /// See [`rackweave_core::Transport::arrived_until`].
    pub(crate) const fn arrived_until(&mut self, at: Time) {
        self.handled = at;
    }

    /// Number of remembered exchanges.
    pub(crate) fn len(&self) -> usize {
        self.sets.iter().map(|set| set.keys.len()).sum()
    }

    /// Whether an exchange is remembered.
    #[inline]
    pub(crate) fn contains(&self, peer: HostId, local: u64) -> bool {
        let key = key(peer, local);
        self.sets.iter().any(|set| !set.keys.is_empty() && set.keys.contains(&key))
    }

    /// Remembers an exchange that has ended.
    pub(crate) fn insert(&mut self, now: Time, peer: HostId, local: u64) {
        self.forget(now);
        // While packets wait that were not handled, the oldest set stays, and the newest one grows.
        if now.since(self.since) >= self.turn && self.sets[SETS - 1].keys.is_empty() {
            self.sets.rotate_right(1);
            self.since = now;
        }
        let newest = &mut self.sets[0];
        newest.keys.insert(key(peer, local));
        newest.last = now;
    }

    /// Drops the sets that have expired.
    #[inline]
    pub(crate) fn forget(&mut self, now: Time) {
        let handled = now.min(self.handled);
        for set in &mut self.sets {
            if !set.keys.is_empty() && handled.since(set.last) >= self.least {
                // The allocation is kept unless it is far larger than needed.
                let len = set.keys.len();
                set.keys.clear();
                set.keys.shrink_to(len);
            }
        }
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

    /// A process stood still for ten seconds: what waits for it must find what it remembered before.
    #[test]
    fn nothing_is_forgotten_while_packets_wait() {
        let at = |ms| Time::ZERO + Span::from_ms(ms);
        let mut finished = Finished::new(Span::from_ms(200));
        finished.arrived_until(at(5));
        finished.insert(at(10), HostId(1), 2);
        for n in 0..50 {
            finished.insert(at(10_000 + n * 100), HostId(2), n * 2);
            assert!(finished.contains(HostId(1), 2), "{n}");
        }
        finished.arrived_until(at(10_100));
        finished.forget(at(15_000));
        assert!(!finished.contains(HostId(1), 2) || finished.contains(HostId(2), 0));
        assert!(finished.contains(HostId(2), 98));
        finished.arrived_until(at(15_100));
        finished.forget(at(15_200));
        assert_eq!(finished.len(), 0);
    }
}
