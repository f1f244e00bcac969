//! The deadlines of a host's connections: an indexed heap, lazy in one direction.
//!
//! Almost every acknowledgement moves a deadline away. That changes nothing here: the entry stays
//! too early, and when it comes up it is put where it belongs. Only a deadline that comes nearer
//! moves its entry at once. So there is never more than one entry a connection.

use rackweave_core::Time;

const NOWHERE: u32 = u32::MAX;

/// One entry for each connection that has a deadline.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: Vec<(Time, u32)>,
    /// Where each connection's entry is in the heap.
    position: Vec<u32>,
}

impl Timers {
    /// No later than the earliest deadline.
    #[inline]
    pub(super) fn next(&self) -> Option<Time> {
        self.heap.first().map(|entry| entry.0)
    }

    /// The connection whose entry has come up.
    #[inline]
    pub(super) fn due(&self, now: Time) -> Option<u32> {
        self.heap.first().filter(|entry| entry.0 <= now).map(|entry| entry.1)
    }

    /// Makes sure that the connection comes up no later than at its deadline.
    #[inline]
    pub(super) fn arm(&mut self, slot: u32, deadline: Time) {
        if deadline == Time::MAX {
            return;
        }
        match self.position.get(slot as usize) {
            Some(&at) if at != NOWHERE => {
                if deadline < self.heap[at as usize].0 {
                    self.heap[at as usize].0 = deadline;
                    self.sift_up(at as usize);
                }
            }
            _ => self.insert(slot, deadline),
        }
    }

    /// Puts the connection's entry where its deadline is; [`Time::MAX`] removes it.
    pub(super) fn rearm(&mut self, slot: u32, deadline: Time) {
        let at = self.position.get(slot as usize).copied().unwrap_or(NOWHERE);
        if at == NOWHERE {
            self.arm(slot, deadline);
        } else if deadline == Time::MAX {
            self.remove(slot);
        } else {
            self.heap[at as usize].0 = deadline;
            let at = self.sift_up(at as usize);
            self.sift_down(at);
        }
    }

    /// Forgets the connection.
    pub(super) fn remove(&mut self, slot: u32) {
        let Some(at) = self.position.get_mut(slot as usize) else { return };
        if *at == NOWHERE {
            return;
        }
        let at = core::mem::replace(at, NOWHERE) as usize;
        self.heap.swap_remove(at);
        if let Some(&(_, moved)) = self.heap.get(at) {
            self.position[moved as usize] = at as u32;
            let at = self.sift_up(at);
            self.sift_down(at);
        }
    }

    #[cold]
    fn insert(&mut self, slot: u32, deadline: Time) {
        if self.position.len() <= slot as usize {
            self.position.resize(slot as usize + 1, NOWHERE);
        }
        let at = self.heap.len();
        self.heap.push((deadline, slot));
        self.position[slot as usize] = at as u32;
        self.sift_up(at);
    }

    fn sift_up(&mut self, mut at: usize) -> usize {
        let entry = self.heap[at];
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.heap[parent] <= entry {
                break;
            }
            self.place(at, self.heap[parent]);
            at = parent;
        }
        self.place(at, entry);
        at
    }

    fn sift_down(&mut self, mut at: usize) {
        let entry = self.heap[at];
        loop {
            let mut child = 2 * at + 1;
            if child >= self.heap.len() {
                break;
            }
            if child + 1 < self.heap.len() && self.heap[child + 1] < self.heap[child] {
                child += 1;
            }
            if entry <= self.heap[child] {
                break;
            }
            self.place(at, self.heap[child]);
            at = child;
        }
        self.place(at, entry);
    }

    #[inline]
    fn place(&mut self, at: usize, entry: (Time, u32)) {
        self.heap[at] = entry;
        self.position[entry.1 as usize] = at as u32;
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
                prop_assert_eq!(timers.heap.len(), live);
            }
        }
    }
}
