//! Which message's bytes go next: shortest remaining processing time first.

use crate::common::{Heap, List};

/// A message or stream with bytes that may be sent now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    /// Bytes of it not yet sent, granted or not.
    pub(super) left: u32,
    /// Its place among the RPCs.
    pub(super) slot: u32,
    /// The smaller, the older.
    pub(super) birth: u64,
}

/// The messages with bytes that may be sent now, and those to send again.
///
/// It stands in for the kernel module's throttled list and pacer thread: bytes wait here, not in
/// the NIC, because the driver asks for a packet only when the link is free.
#[derive(Debug)]
pub(super) struct SendQueue {
    shortest: Heap<(u32, u64)>,
    /// The same by age, if the oldest has a share.
    oldest: Heap<u64>,
    /// RPCs with a range to retransmit, each at most once.
    again: List,
    /// Of 1000 packets, those that are of the oldest message instead of the shortest.
    fifo_fraction: u32,
    /// What the oldest message has to its credit, in 1/1000 of a packet.
    fifo_credit: u32,
}

impl SendQueue {
    /// A queue from which `fifo_fraction` of 1000 packets are of the oldest message.
    pub(super) fn new(fifo_fraction: u32) -> Self {
        Self {
            shortest: Heap::default(),
            oldest: Heap::default(),
            again: List::default(),
            fifo_fraction,
            fifo_credit: 0,
        }
    }

    /// Adds a message that is not in the queue.
    pub(super) fn push(&mut self, ready: Ready) {
        self.shortest.set(ready.slot, (ready.left, ready.birth));
        if self.fifo_fraction > 0 {
            self.oldest.set(ready.slot, ready.birth);
        }
    }

    /// The message whose packet goes next.
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

    /// A packet of a message in the queue was sent; what is left of it, and whether more of it may
    /// be sent now.
    #[inline]
    pub(super) fn sent(&mut self, ready: Ready, more: bool) {
        if more {
            self.shortest.set(ready.slot, (ready.left, ready.birth));
        } else {
            self.shortest.remove(ready.slot);
            self.oldest.remove(ready.slot);
        }
    }

    /// Takes a message out, whatever of it waits.
    pub(super) fn remove(&mut self, slot: u32) {
        self.shortest.remove(slot);
        self.oldest.remove(slot);
        self.again.remove(slot);
    }

    /// Whether no message has bytes that may be sent and never were.
    pub(super) fn nothing_new(&self) -> bool {
        self.shortest.is_empty()
    }

    /// Bytes of this RPC, not yet in the list, are to be sent again.
    pub(super) fn push_again(&mut self, slot: u32) {
        self.again.push_back(slot);
    }

    /// Nothing of this RPC is to be sent again any more.
    pub(super) fn remove_again(&mut self, slot: u32) {
        self.again.remove(slot);
    }

    /// The RPC that is to send bytes again first.
    #[inline]
    pub(super) fn first_resend(&self) -> Option<u32> {
        self.again.first()
    }

    /// The first RPC has sent a packet again; with `more` to send, the others have their turn first.
    pub(super) fn resend_sent(&mut self, more: bool) {
        if let Some(slot) = self.again.pop_front()
            && more
        {
            self.again.push_back(slot);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.shortest.is_empty() && self.oldest.is_empty() && self.again.is_empty()
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
