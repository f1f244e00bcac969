//! The deadlines of a host's connections: an indexed heap, lazy in one direction.
//!
//! Almost every acknowledgement moves a deadline away. That changes nothing here: the entry stays
//! too early, and when it comes up it is put where it belongs. Only a deadline that comes nearer
//! moves its entry at once. So there is never more than one entry a connection.

use rackweave_core::Time;

use crate::common::Heap;

/// One entry for each connection that has a deadline.
#[derive(Debug, Default)]
pub(super) struct Timers(Heap<Time>);

impl Timers {
    /// No later than the earliest deadline.
    #[inline]
    pub(super) fn next(&self) -> Option<Time> {
        self.0.first().map(|entry| entry.0)
    }

    /// The connection whose entry has come up.
    #[inline]
    pub(super) fn due(&self, now: Time) -> Option<u32> {
        self.0.first().filter(|entry| entry.0 <= now).map(|entry| entry.1)
    }

    /// Makes sure that the connection comes up no later than at its deadline.
    #[inline]
    pub(super) fn arm(&mut self, slot: u32, deadline: Time) {
        if deadline != Time::MAX {
            self.0.set_earlier(slot, deadline);
        }
    }

    /// Puts the connection's entry where its deadline is; [`Time::MAX`] removes it.
    pub(super) fn rearm(&mut self, slot: u32, deadline: Time) {
        if deadline == Time::MAX {
            self.0.remove(slot);
        } else {
            self.0.set(slot, deadline);
        }
    }

    /// Forgets the connection.
    pub(super) fn remove(&mut self, slot: u32) {
        self.0.remove(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Against a table: `arm` only brings nearer, `rearm` sets, `remove` clears.
        #[test]
        fn the_earliest_is_on_top(
            steps in prop::collection::vec((0_u32..3, 0_u32..12, 1_u64..100), 1..120),
        ) {
            let mut timers = Timers::default();
            let mut table = [Time::MAX; 12];
            for (what, slot, at) in steps {
                let entry = &mut table[slot as usize];
                match what {
                    0 => {
                        timers.arm(slot, Time(at));
                        *entry = (*entry).min(Time(at));
                    }
                    1 => {
                        timers.rearm(slot, Time(at));
                        *entry = Time(at);
                    }
                    _ => {
                        timers.remove(slot);
                        *entry = Time::MAX;
                    }
                }
                let earliest = *table.iter().min().unwrap();
                prop_assert_eq!(timers.next().unwrap_or(Time::MAX), earliest);
                let live = table.iter().filter(|at| **at != Time::MAX).count();
                prop_assert_eq!(timers.0.len(), live);
            }
        }
    }
}
