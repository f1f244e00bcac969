//! Which message's bytes go next: shortest remaining processing time first.

use std::collections::VecDeque;

/// A message with bytes that may be sent now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    /// Bytes of it not yet sent, granted or not.
    pub(super) left: u32,
    /// Its place among the RPCs.
    pub(super) slot: u32,
    /// The smaller, the older.
    pub(super) birth: u64,
}

impl Ready {
    const fn key(&self) -> (u32, u64) {
        (self.left, self.birth)
    }
}

/// The messages with bytes that may be sent now: a binary heap, and those to send again.
///
/// It stands in for the kernel module's throttled list and pacer thread: bytes wait here, not in
/// the NIC, because the driver asks for a packet only when the link is free.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    heap: Vec<Ready>,
    /// RPCs of which a range is to be sent again, each at most once.
    again: VecDeque<u32>,
    /// What the oldest message has to its credit, in 1/1000 of a packet.
    fifo_credit: u32,
}

impl SendQueue {
    /// Adds a message that is not in the queue.
    pub(super) fn push(&mut self, ready: Ready) {
        self.heap.push(ready);
        self.sift_up(self.heap.len() - 1);
    }

    /// The index of the message whose packet goes next. `fifo_fraction` of 1000 packets are of the
    /// oldest message instead of the shortest.
    #[inline]
    pub(super) fn pick(&mut self, fifo_fraction: u32) -> Option<(usize, u32)> {
        let shortest = self.heap.first()?;
        if fifo_fraction > 0 && self.heap.len() > 1 {
            self.fifo_credit += fifo_fraction;
            if self.fifo_credit >= 1000 {
                self.fifo_credit -= 1000;
                let oldest = (0..self.heap.len()).min_by_key(|&i| self.heap[i].birth)?;
                return Some((oldest, self.heap[oldest].slot));
            }
        }
        Some((0, shortest.slot))
    }

    /// A packet of the message at `index` was sent; it has `left` bytes now, and more of them may
    /// be sent or not.
    #[inline]
    pub(super) fn sent(&mut self, index: usize, left: u32, more: bool) {
        if more {
            // Fewer bytes left: it can only move towards the root, where it mostly is already.
            self.heap[index].left = left;
            self.sift_up(index);
        } else {
            self.remove_at(index);
        }
    }

    /// Takes a message out, whatever of it waits.
    pub(super) fn remove(&mut self, slot: u32) {
        if let Some(index) = self.heap.iter().position(|ready| ready.slot == slot) {
            self.remove_at(index);
        }
        self.again.retain(|other| *other != slot);
    }

    /// Whether no message has bytes that may be sent and never were.
    pub(super) fn nothing_new(&self) -> bool {
        self.heap.is_empty()
    }

    /// Bytes of this RPC, not yet in the list, are to be sent again.
    pub(super) fn push_again(&mut self, slot: u32) {
        self.again.push_back(slot);
    }

    /// The RPC that is to send bytes again first.
    #[inline]
    pub(super) fn first_again(&self) -> Option<u32> {
        self.again.front().copied()
    }

    /// The first RPC has sent a packet again; with `more` to send, the others have their turn first.
    pub(super) fn again_sent(&mut self, more: bool) {
        if let Some(slot) = self.again.pop_front()
            && more
        {
            self.again.push_back(slot);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.heap.is_empty() && self.again.is_empty()
    }

    fn remove_at(&mut self, index: usize) {
        self.heap.swap_remove(index);
        if index < self.heap.len() {
            self.sift_up(index);
            self.sift_down(index);
        }
    }

    fn sift_up(&mut self, mut index: usize) {
        let moving = self.heap[index];
        while index > 0 {
            let parent = (index - 1) / 2;
            if self.heap[parent].key() <= moving.key() {
                break;
            }
            self.heap[index] = self.heap[parent];
            index = parent;
        }
        self.heap[index] = moving;
    }

    fn sift_down(&mut self, mut index: usize) {
        let moving = self.heap[index];
        loop {
            let mut child = 2 * index + 1;
            if child >= self.heap.len() {
                break;
            }
            if child + 1 < self.heap.len() && self.heap[child + 1].key() < self.heap[child].key() {
                child += 1;
            }
            if moving.key() <= self.heap[child].key() {
                break;
            }
            self.heap[index] = self.heap[child];
            index = child;
        }
        self.heap[index] = moving;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackweave_core::Rng;

    #[test]
    fn serves_the_shortest_and_among_equals_the_oldest() {
        let mut rng = Rng::stream(1, 0, 0, "srpt");
        let mut queue = SendQueue::default();
        let mut model: Vec<Ready> = Vec::new();
        for birth in 0..2_000 {
            let slot = birth as u32;
            let ready = Ready { left: 1 + rng.below(50) as u32, slot, birth };
            queue.push(ready);
            model.push(ready);
            for _ in 0..rng.below(4) {
                let Some((index, slot)) = queue.pick(0) else { break };
                let expected = (0..model.len()).min_by_key(|&i| model[i].key()).unwrap();
                assert_eq!(model[expected].slot, slot);
                let left = model[expected].left - 1;
                let more = left > 0 && !rng.chance(0.3);
                queue.sent(index, left, more);
                if more {
                    model[expected].left = left;
                } else {
                    model.swap_remove(expected);
                }
            }
            if rng.chance(0.4) && !model.is_empty() {
                let victim = rng.below(model.len() as u64) as usize;
                queue.remove(model.swap_remove(victim).slot);
            }
        }
        assert_eq!(queue.heap.len(), model.len());
    }

    #[test]
    fn one_packet_in_twenty_is_of_the_oldest() {
        let mut queue = SendQueue::default();
        queue.push(Ready { left: 1_000_000, slot: 7, birth: 0 });
        queue.push(Ready { left: 10, slot: 8, birth: 1 });
        let oldest = (0..2_000).filter(|_| queue.pick(50).unwrap().1 == 7).count();
        assert_eq!(oldest, 100);
    }
}
