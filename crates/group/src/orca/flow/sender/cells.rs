//! What is to be sent again. A cell is the place of one full packet: packets are cut at multiples of the payload.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rackweave_core::{Span, Time};

/// Most receivers that a cell names one by one; if more miss it, it goes to everyone.
const NAMES: usize = 3;
const NOBODY: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Cell {
    /// Who misses it: receivers' numbers; `NOBODY`: none.
    names: [u32; NAMES],
    /// Bits of those of `names` to whom it was sent again.
    served: u8,
    /// More than `NAMES` miss it.
    many: bool,
    /// It was sent again to everyone.
    to_all: bool,
    queued: bool,
    /// Reports of it before this are older than its last repetition.
    held_until: Time,
}

const EMPTY: Cell = Cell {
    names: [NOBODY; NAMES],
    served: 0,
    many: false,
    to_all: false,
    queued: false,
    held_until: Time::ZERO,
};

impl Cell {
    fn named(&mut self, peer: u32) {
        match self.names.iter().position(|name| *name == NOBODY) {
            Some(free) => {
                self.names[free] = peer;
                self.served &= !(1 << free);
            }
            None => self.many = true,
        }
    }

    const fn lacks(&self, name: usize) -> bool {
        self.names[name] != NOBODY && self.served >> name & 1 == 0
    }
}

/// To whom a cell goes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    Everyone,
    One(u32),
}

/// The cells of a flow from the lowest byte that anyone lacks on, and a queue of those to be sent again.
#[derive(Clone, Debug, Default)]
pub(super) struct Cells {
    /// Number of the first cell in the ring.
    base: u64,
    ring: VecDeque<Cell>,
    /// Those that were reported just now, in the order of their reports: when each may be sent.
    young: VecDeque<(Time, u64)>,
    /// Those that may be sent, lowest first: who lacks it can hand on nothing, and may have no room for what comes after.
    ready: BinaryHeap<Reverse<u64>>,
}

impl Cells {
    /// A receiver may miss a cell: sends it again whether or not it is still on its way.
    pub(super) fn probe(&mut self, now: Time, cell: u64, peer: u32, most: usize) {
        if let Some(state) =
            cell.checked_sub(self.base).and_then(|at| self.ring.get_mut(at as usize))
        {
            state.held_until = Time::ZERO;
        }
        let _ = self.missing(now, now, cell, peer, most);
    }

    /// A receiver misses a cell. `due`: not before, so that others can say so too. `most` bounds the ring. True if it was
    /// sent to this receiver again, and that was lost too.
    pub(super) fn missing(
        &mut self,
        now: Time,
        due: Time,
        cell: u64,
        peer: u32,
        most: usize,
    ) -> bool {
        let Some(at) = cell.checked_sub(self.base) else { return false };
        let at = at as usize;
        if at >= most {
            return false;
        }
        if at >= self.ring.len() {
            self.ring.resize(at + 1, EMPTY);
        }
        let state = &mut self.ring[at];
        let waits = now < state.held_until;
        let mut again = false;
        match state.names.iter().position(|name| *name == peer) {
            Some(name) if state.served >> name & 1 == 1 => {
                if waits {
                    return false; // What was sent is still on its way.
                }
                again = true;
                state.served &= !(1 << name);
            }
            Some(_) => {}
            None if state.many || waits && state.to_all => {}
            None => {
                if !waits {
                    again = state.to_all;
                    state.to_all = false;
                    for (name, who) in state.names.iter_mut().enumerate() {
                        if state.served >> name & 1 == 1 {
                            *who = NOBODY;
                        }
                    }
                    state.served = 0;
                }
                state.named(peer);
            }
        }
        let open = state.many || (0..NAMES).any(|name| state.lacks(name));
        if open && !state.queued {
            state.queued = true;
            match due <= now {
                true => self.ready.push(Reverse(cell)),
                false => self.young.push_back((due, cell)),
            }
        }
        again
    }

    /// Everyone has the cells below: forgets them.
    pub(super) fn forget_below(&mut self, cell: u64) {
        let gone = cell.saturating_sub(self.base).min(self.ring.len() as u64) as usize;
        self.ring.drain(..gone);
        self.base = self.base.max(cell);
        while self.ready.peek().is_some_and(|first| first.0 < self.base) {
            self.ready.pop();
        }
        while self.young.front().is_some_and(|front| front.1 < self.base) {
            self.young.pop_front();
        }
    }

    /// Someone has come who lacks cells from this one on, fewer than `most` before those known.
    pub(super) fn remember_from(&mut self, cell: u64, most: usize) {
        if self.ring.is_empty() {
            self.base = self.base.min(cell);
        }
        while self.base > cell && self.ring.len() < most {
            self.ring.push_front(EMPTY);
            self.base -= 1;
        }
    }

    /// When the next may be sent.
    pub(super) fn due(&self) -> Option<Time> {
        match self.ready.is_empty() {
            false => Some(Time::ZERO),
            true => self.young.front().map(|front| front.0),
        }
    }

    /// The next cell to send again, and to whom. One that goes to several, one by one, is given so often. `lacks`:
    /// whether that receiver still lacks it; `copies`: what a packet to everyone costs on the sender's link.
    pub(super) fn next(
        &mut self,
        now: Time,
        hold: Span,
        copies: u32,
        mut lacks: impl FnMut(u32, u64) -> bool,
    ) -> Option<(u64, Again)> {
        while let Some(&(due, cell)) = self.young.front()
            && due <= now
        {
            self.young.pop_front();
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
            for name in 0..NAMES {
                if !state.lacks(name) {
                    continue;
                }
                if lacks(state.names[name], cell) {
                    count += 1;
                    first = first.or(Some(name));
                } else {
                    state.names[name] = NOBODY;
                }
            }
            let all = state.many || count > copies;
            let Some(name) = first.filter(|_| !all) else {
                state.queued = false;
                self.ready.pop();
                if all {
                    let held_until = now.saturating_add(hold);
                    *state = Cell { to_all: true, held_until, ..EMPTY };
                    return Some((cell, Again::Everyone));
                }
                continue;
            };
            state.served |= 1 << name;
            state.held_until = now.saturating_add(hold);
            if count == 1 {
                state.queued = false;
                self.ready.pop();
            }
            return Some((cell, Again::One(state.names[name])));
        }
        None
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.ring.len(), self.ready.len() + self.young.len())
    }
}
