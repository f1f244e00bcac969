//! A queue of items that are due at given times.
//!
//! ```
//! use rackweave_core::{Schedule, Time};
//!
//! let mut schedule = Schedule::default();
//! schedule.push(Time::from_ticks(20), "second");
//! schedule.push(Time::from_ticks(10), "first");
//! schedule.push(Time::from_ticks(20), "third");
//! assert_eq!(schedule.next_time(), Some(Time::from_ticks(10)));
//! assert_eq!(schedule.pop_due(Time::from_ticks(10)), Some((Time::from_ticks(10), "first")));
//! assert_eq!(schedule.pop_due(Time::from_ticks(10)), None);
//! assert_eq!(schedule.pop(), Some((Time::from_ticks(20), "second")));
//! ```

use core::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::time::Time;

/// A priority queue of items by time. Items due at the same time are returned in the order in which they were added, so
/// that a run is deterministic.
#[derive(Clone, Debug)]
pub struct Schedule<T> {
    heap: BinaryHeap<Entry<T>>,
    pushed: u64,
}

#[derive(Clone, Debug)]
struct Entry<T> {
    at: Time,
    sequence: u64,
    item: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl<T> Eq for Entry<T> {}
impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Entry<T> {
    /// The order is reversed: the greatest entry of the heap is the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), pushed: 0 }
    }
}

impl<T> Schedule<T> {
    /// Adds an item and returns its sequence number, which is unique in this schedule.
    pub fn push(&mut self, at: Time, item: T) -> u64 {
        let sequence = self.pushed;
        self.pushed += 1;
        self.heap.push(Entry { at, sequence, item });
        sequence
    }

    /// Returns the time of the earliest item.
    #[must_use]
    pub fn next_time(&self) -> Option<Time> {
        self.heap.peek().map(|entry| entry.at)
    }

    /// Removes and returns the earliest item.
    pub fn pop(&mut self) -> Option<(Time, T)> {
        self.heap.pop().map(|entry| (entry.at, entry.item))
    }

    /// Removes and returns the earliest item if its time is not later than `now`.
    pub fn pop_due(&mut self, now: Time) -> Option<(Time, T)> {
        if self.next_time()? <= now { self.pop() } else { None }
    }

    /// Returns the number of items.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Returns whether the schedule has no items.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Removes the items for which `keep` is false.
    pub fn retain(&mut self, mut keep: impl FnMut(Time, &T) -> bool) {
        self.heap.retain(|entry| keep(entry.at, &entry.item));
    }

    /// Removes all items.
    pub fn clear(&mut self) {
        self.heap.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Compares the schedule with a list that is sorted stably by time.
        #[test]
        fn earliest_first_and_in_order_at_one_time(
            steps in prop::collection::vec((any::<bool>(), 0_u64..20), 1..80),
        ) {
            let mut schedule = Schedule::default();
            let mut list: Vec<(Time, u64)> = Vec::new();
            for (push, time) in steps {
                let time = Time::from_ticks(time);
                if push {
                    let item = schedule.pushed;
                    prop_assert_eq!(schedule.push(time, item), item);
                    list.insert(list.partition_point(|entry| entry.0 <= time), (time, item));
                } else {
                    let due = list.first().is_some_and(|entry| entry.0 <= time);
                    let expected = due.then(|| list.remove(0));
                    prop_assert_eq!(schedule.pop_due(time), expected);
                }
                prop_assert_eq!(schedule.next_time(), list.first().map(|entry| entry.0));
                prop_assert_eq!((schedule.len(), schedule.is_empty()), (list.len(), list.is_empty()));
            }
            schedule.retain(|time, item| time.ticks() % 2 == 0 && item % 3 != 0);
            list.retain(|(time, item)| time.ticks() % 2 == 0 && item % 3 != 0);
            for entry in list {
                prop_assert_eq!(schedule.pop(), Some(entry));
            }
            prop_assert_eq!(schedule.pop(), None);
        }
    }
}
