//! The retransmission queue of a channel.
//!
//! Packets are cut at multiples of the payload size, so that a retransmission covers exactly what was lost. The range
//! of one full packet is a *cell* of the stream. A cell that few receivers lack is retransmitted to each of them; one
//! that many lack goes to everyone. The Orca paper has no loss recovery: both the queue and that rule are our choice.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rackweave_core::{Span, Time};

/// The largest number of receivers that a cell lists. If more lack the cell, it goes to everyone.
const MAX_RECEIVERS: usize = 3;
const NO_RECEIVER: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Cell {
    /// The numbers of the receivers that lack it, or [`NO_RECEIVER`].
    receivers: [u32; MAX_RECEIVERS],
    /// The slots of `receivers` to which it was retransmitted, as a bit set.
    served: u8,
    /// Whether more than [`MAX_RECEIVERS`] lack it.
    many: bool,
    /// Whether it was retransmitted to everyone.
    to_all: bool,
    queued: bool,
    /// Reports that it is missing are ignored before this time, because its last retransmission is still in flight.
    suppressed_until: Time,
}

const EMPTY: Cell = Cell {
    receivers: [NO_RECEIVER; MAX_RECEIVERS],
    served: 0,
    many: false,
    to_all: false,
    queued: false,
    suppressed_until: Time::ZERO,
};

impl Cell {
    fn add_receiver(&mut self, peer: u32) {
        match self.receivers.iter().position(|receiver| *receiver == NO_RECEIVER) {
            Some(free) => {
                self.receivers[free] = peer;
                self.served &= !(1 << free);
            }
            None => self.many = true,
        }
    }

    /// Returns whether a slot of `receivers` lists a receiver that was not served yet.
    const fn is_open(&self, slot: usize) -> bool {
        self.receivers[slot] != NO_RECEIVER && self.served >> slot & 1 == 0
    }
}

/// The destination of a retransmission: the group, or one receiver by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retransmit {
    Everyone,
    One(u32),
}

/// The missing cells of a channel, from the lowest byte that any of its receivers lacks, and the order in which they
/// are retransmitted.
#[derive(Clone, Debug, Default)]
pub(super) struct RetransmitQueue {
    /// The number of the first cell of `ring`.
    base: u64,
    ring: VecDeque<Cell>,
    /// Recently reported cells in the order of the reports, and the time at which each may be sent.
    delayed: VecDeque<(Time, u64)>,
    /// The cells that may be sent, lowest first: without the lowest one a receiver can deliver nothing, and its window
    /// may have no room for the others.
    ready: BinaryHeap<Reverse<u64>>,
}

impl RetransmitQueue {
    /// Retransmits a cell to a receiver that may lack it, even while an earlier retransmission may be in flight.
    pub(super) fn probe(&mut self, now: Time, cell: u64, peer: u32, max_cells: usize) {
        if let Some(state) =
            cell.checked_sub(self.base).and_then(|at| self.ring.get_mut(at as usize))
        {
            state.suppressed_until = Time::ZERO;
        }
        let _ = self.report_missing(now, now, cell, peer, max_cells);
    }

    /// Records that a receiver lacks a cell. The cell is not retransmitted before `due`, so that others can report it
    /// too. At most `max_cells` are remembered. Returns true if the cell had been retransmitted to this receiver and
    /// was lost once more.
    pub(super) fn report_missing(
        &mut self,
        now: Time,
        due: Time,
        cell: u64,
        peer: u32,
        max_cells: usize,
    ) -> bool {
        let Some(at) = cell.checked_sub(self.base) else { return false };
        let at = at as usize;
        if at >= max_cells {
            return false;
        }
        if at >= self.ring.len() {
            self.ring.resize(at + 1, EMPTY);
        }
        let state = &mut self.ring[at];
        let in_flight = now < state.suppressed_until;
        let mut lost_again = false;
        match state.receivers.iter().position(|receiver| *receiver == peer) {
            Some(slot) if state.served >> slot & 1 == 1 => {
                if in_flight {
                    return false;
                }
                lost_again = true;
                state.served &= !(1 << slot);
            }
            Some(_) => {}
            None if state.many || in_flight && state.to_all => {}
            None => {
                if !in_flight {
                    lost_again = state.to_all;
                    state.to_all = false;
                    for (slot, receiver) in state.receivers.iter_mut().enumerate() {
                        if state.served >> slot & 1 == 1 {
                            *receiver = NO_RECEIVER;
                        }
                    }
                    state.served = 0;
                }
                state.add_receiver(peer);
            }
        }
        let open = state.many || (0..MAX_RECEIVERS).any(|slot| state.is_open(slot));
        if open && !state.queued {
            state.queued = true;
            match due <= now {
                true => self.ready.push(Reverse(cell)),
                false => self.delayed.push_back((due, cell)),
            }
        }
        lost_again
    }

    /// Drops the cells below `cell`, which all receivers have.
    pub(super) fn forget_below(&mut self, cell: u64) {
        let gone = cell.saturating_sub(self.base).min(self.ring.len() as u64) as usize;
        self.ring.drain(..gone);
        self.base = self.base.max(cell);
        while self.ready.peek().is_some_and(|first| first.0 < self.base) {
            self.ready.pop();
        }
        while self.delayed.front().is_some_and(|front| front.1 < self.base) {
            self.delayed.pop_front();
        }
    }

    /// Makes room for a receiver that lacks cells from `cell` on, as far as the ring stays below `max_cells`.
    pub(super) fn extend_down_to(&mut self, cell: u64, max_cells: usize) {
        if self.ring.is_empty() {
            self.base = self.base.min(cell);
        }
        while self.base > cell && self.ring.len() < max_cells {
            self.ring.push_front(EMPTY);
            self.base -= 1;
        }
    }

    /// Returns the time at which the next retransmission may be sent.
    pub(super) fn due(&self) -> Option<Time> {
        match self.ready.is_empty() {
            false => Some(Time::ZERO),
            true => self.delayed.front().map(|front| front.0),
        }
    }

    /// Returns the next cell to retransmit and its destination. A cell for several receivers is returned once for each
    /// of them. `lacks` returns whether a receiver still lacks a cell; `copies` is the cost of a packet to everyone on
    /// the sender's link, in packets to one receiver.
    pub(super) fn pop(
        &mut self,
        now: Time,
        rto: Span,
        copies: u32,
        mut lacks: impl FnMut(u32, u64) -> bool,
    ) -> Option<(u64, Retransmit)> {
        while let Some(&(due, cell)) = self.delayed.front()
            && due <= now
        {
            self.delayed.pop_front();
            self.ready.push(Reverse(cell));
        }
        while let Some(&Reverse(cell)) = self.ready.peek() {
            let at = cell.checked_sub(self.base);
            let state = at.and_then(|at| self.ring.get_mut(at as usize));
            let Some(state) = state.filter(|state| state.queued) else {
                self.ready.pop();
                continue;
            };
            let mut count = 0;
            let mut first = None;
            for slot in 0..MAX_RECEIVERS {
                if !state.is_open(slot) {
                    continue;
                }
                if lacks(state.receivers[slot], cell) {
                    count += 1;
                    first = first.or(Some(slot));
                } else {
                    state.receivers[slot] = NO_RECEIVER;
                }
            }
            let to_all = state.many || count > copies;
            let Some(slot) = first.filter(|_| !to_all) else {
                state.queued = false;
                self.ready.pop();
                if to_all {
                    let suppressed_until = now.saturating_add(rto);
                    *state = Cell { to_all: true, suppressed_until, ..EMPTY };
                    return Some((cell, Retransmit::Everyone));
                }
                continue;
            };
            state.served |= 1 << slot;
            state.suppressed_until = now.saturating_add(rto);
            if count == 1 {
                state.queued = false;
                self.ready.pop();
            }
            return Some((cell, Retransmit::One(state.receivers[slot])));
        }
        None
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.ring.len(), self.ready.len() + self.delayed.len())
    }
}
