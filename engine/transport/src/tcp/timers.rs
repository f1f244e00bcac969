//! The deadlines of a host's connections: an indexed heap that postpones entries lazily.
//!
//! Almost every acknowledgement moves a deadline to a later time. The entry of the connection is not updated
//! then; when it expires, it is moved to the current deadline. Only a deadline that becomes earlier updates the
//! entry at once. There is never more than one entry per connection.

use rackweave_core::Time;

use crate::common::Heap;

/// One entry for each connection that has a deadline.
#[derive(Debug, Default)]
pub(super) struct Timers(Heap<Time>);

impl Timers {
    /// A lower bound of the earliest deadline.
    #[inline]
    pub(super) fn next(&self) -> Option<Time> {
        self.0.first().map(|entry| entry.0)
    }

    /// The connection whose entry has expired, if any.
    #[inline]
    pub(super) fn due(&self, now: Time) -> Option<u32> {
        self.0.first().filter(|entry| entry.0 <= now).map(|entry| entry.1)
    }

    /// Ensures that the connection's entry expires no later than its deadline.
    #[inline]
    pub(super) fn arm(&mut self, slot: u32, deadline: Time) {
        if deadline != Time::MAX {
            self.0.set_earlier(slot, deadline);
        }
    }

    /// Sets the connection's entry to its deadline; [`Time::MAX`] removes it.
    pub(super) fn rearm(&mut self, slot: u32, deadline: Time) {
        if deadline == Time::MAX {
            self.0.remove(slot);
        } else {
            self.0.set(slot, deadline);
        }
    }

    /// Removes the connection's entry.
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

        /// Compared with a table: `arm` only moves entries to earlier times, `rearm` sets them, `remove`
        /// removes them.
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
                        timers.arm(slot, Time::from_ticks(at));
                        *entry = (*entry).min(Time::from_ticks(at));
                    }
                    1 => {
                        timers.rearm(slot, Time::from_ticks(at));
                        *entry = Time::from_ticks(at);
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
