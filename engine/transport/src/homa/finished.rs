//! The order in which RPCs have finished.
//!
//! A server with short messages remembers tens of thousands of finished RPCs, far more than are in progress: an entry takes
//! twelve bytes here, since the many entries of one tick share it.

use std::collections::VecDeque;

use rackweave_core::HostId;

/// A finished RPC, remembered so that late packets of it are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Finished {
    pub(super) tick: u64,
    pub(super) host: HostId,
    pub(super) id: u64,
}

/// Finished RPCs, first finished first.
#[derive(Debug, Default)]
pub(super) struct FinishedQueue {
    /// The host, and the low and the high half of the id.
    entries: VecDeque<[u32; 3]>,
    /// Ticks, each with its number of entries.
    ticks: VecDeque<(u64, u32)>,
}

impl FinishedQueue {
    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds an entry. Ticks do not decrease.
    pub(super) fn push(&mut self, entry: Finished) {
        let Finished { tick, host, id } = entry;
        self.entries.push_back([host.0, id as u32, (id >> 32) as u32]);
        match self.ticks.back_mut() {
            Some((last, count)) if *last == tick => *count += 1,
            _ => self.ticks.push_back((tick, 1)),
        }
    }

    /// The first entry.
    pub(super) fn front(&self) -> Option<Finished> {
        let (&[host, low, high], &(tick, _)) = (self.entries.front()?, self.ticks.front()?);
        Some(Finished { tick, host: HostId(host), id: u64::from(high) << 32 | u64::from(low) })
    }

    /// Removes the first entry.
    pub(super) fn pop(&mut self) {
        self.entries.pop_front();
        if let Some((_, count)) = self.ticks.front_mut() {
            *count -= 1;
            if *count == 0 {
                self.ticks.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::Rng;

    use super::*;

    #[test]
    fn entries_come_out_as_they_went_in() {
        let mut rng = Rng::stream(5, 0, 0, "finished");
        let (mut queue, mut model) = (FinishedQueue::default(), VecDeque::new());
        let mut tick = 0;
        for _ in 0..20_000 {
            tick += u64::from(rng.chance(0.1));
            if rng.below(100) < 55 {
                let host = HostId(rng.below(5) as u32);
                let entry = Finished { tick, host, id: rng.next_u64() };
                queue.push(entry);
                model.push_back(entry);
            } else {
                queue.pop();
                model.pop_front();
            }
            assert_eq!((queue.front(), queue.len()), (model.front().copied(), model.len()));
        }
        assert!(model.len() > 1000);
    }
}
