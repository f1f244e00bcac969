//! The send queue: shortest remaining processing time (SRPT) first.

use core::mem::offset_of;

use rackweave_core::prefetch;

use crate::common::{InlineHeap, List};

/// A message or stream with bytes that may be sent now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    /// Number of bytes not yet sent, granted or not.
    pub(super) left: u32,
    /// The slot of the RPC.
    pub(super) slot: u32,
    /// The creation order of the RPC: older ones have smaller numbers.
    pub(super) birth: u64,
}

/// The messages with new bytes that may be sent now, and those with retransmissions.
///
/// It replaces the kernel module's throttled list and pacer thread: bytes wait here and not in the NIC, because
/// the driver asks for a packet only when the link is free.
#[derive(Debug)]
#[repr(C)]
pub(super) struct SendQueue {
    /// The messages by age, if the oldest has a share.
    oldest: InlineHeap<u64>,
    /// Share of packets, in 1/1000, that go to the oldest message instead of the shortest.
    fifo_fraction: u32,
    /// The unused part of that share, in 1/1000 of a packet.
    fifo_credit: u32,
    /// All messages, the one with the fewest bytes left first.
    shortest: InlineHeap<(u32, u64)>,
    /// RPCs with a range to retransmit, each at most once.
    resends: List,
}

impl SendQueue {
    /// Creates a queue that gives `fifo_fraction` of 1000 packets to the oldest message.
    pub(super) fn new(fifo_fraction: u32) -> Self {
        Self {
            shortest: InlineHeap::default(),
            oldest: InlineHeap::default(),
            resends: List::default(),
            fifo_fraction,
            fifo_credit: 0,
        }
    }

    /// Where the fields begin that every packet of data reads.
    pub(super) const HOT: usize = offset_of!(Self, fifo_fraction);

    /// Requests the cache line with the next message.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch(&self.fifo_fraction);
    }

    /// The message with the fewest bytes left.
    #[inline]
    pub(super) fn shortest(&self) -> Option<u32> {
        self.shortest.first().map(|(_, slot)| slot)
    }

    /// Adds a message that is not in the queue.
    pub(super) fn push(&mut self, ready: Ready) {
        self.shortest.set(ready.slot, (ready.left, ready.birth));
        if self.fifo_fraction > 0 {
            self.oldest.set(ready.slot, ready.birth);
        }
    }

    /// The message whose packet is sent next.
    #[inline]
    pub(super) fn pick(&mut self) -> Option<u32> {
        let (_, shortest) = self.shortest.first()?;
        if self.fifo_fraction > 0 && self.shortest.len() > 1 {
            self.fifo_credit += self.fifo_fraction;
            if self.fifo_credit >= 1000 {
                self.fifo_credit -= 1000;
                return self.oldest.first().map(|(_, slot)| slot);
            }
        }
        Some(shortest)
    }

    /// Updates a message after one of its packets was sent. `ready` is its new state; without `more` it leaves
    /// the queue.
    #[inline]
    pub(super) fn sent(&mut self, ready: Ready, more: bool) {
        if more {
            self.shortest.set(ready.slot, (ready.left, ready.birth));
        } else {
            self.shortest.remove(ready.slot);
            if self.fifo_fraction > 0 {
                self.oldest.remove(ready.slot);
            }
        }
    }

    /// Removes a message from all lists.
    pub(super) fn remove(&mut self, slot: u32) {
        self.shortest.remove(slot);
        self.oldest.remove(slot);
        self.resends.remove(slot);
    }

    /// Whether no message has new bytes that may be sent.
    pub(super) fn nothing_new(&self) -> bool {
        self.shortest.is_empty()
    }

    /// Adds an RPC with bytes to retransmit that is not in the list.
    pub(super) fn push_resend(&mut self, slot: u32) {
        self.resends.push_back(slot);
    }

    /// Removes an RPC from the list of retransmissions.
    pub(super) fn remove_resend(&mut self, slot: u32) {
        self.resends.remove(slot);
    }

    /// The RPC whose retransmission is next.
    #[inline]
    pub(super) fn first_resend(&self) -> Option<u32> {
        self.resends.first()
    }

    /// Updates the first RPC of the list after a retransmission. With `more` to send it moves to the end.
    pub(super) fn resend_sent(&mut self, more: bool) {
        if let Some(slot) = self.resends.pop_front()
            && more
        {
            self.resends.push_back(slot);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.shortest.is_empty() && self.oldest.is_empty() && self.resends.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackweave_core::Rng;

    #[test]
    fn serves_the_shortest_and_among_equals_the_oldest() {
        let mut rng = Rng::stream(1, 0, 0, "srpt");
        let mut queue = SendQueue::new(0);
        let mut model: Vec<Ready> = Vec::new();
        let key = |ready: &Ready| (ready.left, ready.birth);
        for birth in 0..2_000 {
            let slot = birth as u32;
            let ready = Ready { left: 1 + rng.below(50) as u32, slot, birth };
            queue.push(ready);
            model.push(ready);
            for _ in 0..rng.below(4) {
                let Some(slot) = queue.pick() else { break };
                let expected = (0..model.len()).min_by_key(|&i| key(&model[i])).unwrap();
                assert_eq!(model[expected].slot, slot);
                let left = model[expected].left - 1;
                let more = left > 0 && !rng.chance(0.3);
                queue.sent(Ready { left, ..model[expected] }, more);
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
        assert_eq!(queue.shortest.len(), model.len());
    }

    #[test]
    fn one_packet_in_twenty_is_of_the_oldest() {
        let mut queue = SendQueue::new(50);
        queue.push(Ready { left: 1_000_000, slot: 7, birth: 0 });
        queue.push(Ready { left: 10, slot: 8, birth: 1 });
        let oldest = (0..2_000).filter(|_| queue.pick().unwrap() == 7).count();
        assert_eq!(oldest, 100);
    }
}
