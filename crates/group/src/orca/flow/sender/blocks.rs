//! What is missed of each block, until it is decided how it goes again: as cells (`cells`), or as parity.

use std::collections::{BTreeMap, VecDeque};

use rackweave_core::{Span, Time};
use rackweave_wire::orca::Parity;

use super::super::{Outgoing, Piece};
use super::Sender;
use super::peers::{Peer, State};
use crate::orca::parity::{MAX_CELLS, MAX_PARITIES};

/// Receivers of which it is noted what they miss of a block. What more of them miss is told again, and then decided.
const NAMES: usize = 1024;
/// After so many times of parity for a block its cells go again as themselves: somebody may be unable to use it.
const ROUNDS: u8 = 3;
/// A block that is missed in part waits so long for the rest of it to be sent.
const GATHER: Span = Span::from_ms(10);

/// What one receiver misses of a block.
#[derive(Clone, Copy, Debug)]
struct Miss {
    peer: u32,
    /// Cells to be decided on, a bit for each.
    open: u64,
    /// Cells that were decided on, and what has been sent is under way.
    answered: u64,
    /// Cells for which parity was sent the last time: who misses them still has lost some of it.
    before: u64,
    /// Packets for it alone that are under way, or cells.
    given: u8,
}

impl Miss {
    /// Packets that it needs beside those that are under way, of which `all` go to everyone.
    fn needs(&self, all: u8) -> u8 {
        let misses = (self.open | self.answered).count_ones() as u8;
        let more = misses.saturating_sub(all.saturating_add(self.given));
        more.min(self.open.count_ones() as u8)
    }
}

#[derive(Clone, Debug, Default)]
struct Block {
    /// By number.
    misses: Vec<Miss>,
    /// It waits for a decision: since when, and at least until when.
    since: Option<Time>,
    due: Time,
    /// When all of it was known to be sent.
    whole_at: Option<Time>,
    /// The next parity's number, and how often parity was decided on.
    next: u8,
    rounds: u8,
    /// Parities for everyone that are under way, or about to be sent.
    all: u8,
    /// The last decision was for parity.
    by_parity: bool,
    /// Parities that are about to be sent.
    owed: u32,
    /// Then what is under way has come, or is told to be missed again.
    until: Option<Time>,
}

/// Parities that are to be sent: so many of a block, from one of these numbers on.
#[derive(Clone, Copy, Debug)]
struct Owed {
    block: u64,
    next: u8,
    left: u8,
    /// `None`: everyone.
    to: Option<u32>,
}

/// The blocks of what goes to everyone that somebody misses something of.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    /// Cells of a block; 0: no parity.
    cells: u64,
    map: BTreeMap<u64, Block>,
    /// Blocks that wait for a decision.
    pending: Vec<u64>,
    owed: VecDeque<Owed>,
}

impl Blocks {
    pub(super) fn new(cells: u8) -> Self {
        Self { cells: u64::from(cells), ..Self::default() }
    }

    /// Where in a stream the block of this byte begins.
    pub(super) const fn start_of(&self, at: u64, payload: u64) -> u64 {
        if self.cells == 0 { at } else { at - at % (self.cells * payload) }
    }

    /// A receiver misses a cell; `due`: no decision before. True if it was sent what fills it, and that was lost. `None`: it
    /// is not for a decision here.
    pub(super) fn missing(&mut self, now: Time, due: Time, cell: u64, peer: u32) -> Option<bool> {
        let number = cell / self.cells;
        let bit = 1 << (cell % self.cells);
        let block = self.map.entry(number).or_default();
        if block.owed == 0 && block.until.is_some_and(|until| now >= until) {
            (block.until, block.all) = (None, 0);
            block.misses.retain_mut(|miss| {
                // Cells may not have left yet: those that were lost are counted where they are.
                miss.before = if block.by_parity { miss.answered } else { 0 };
                (miss.answered, miss.given) = (0, 0);
                miss.open | miss.before != 0
            });
        }
        let known = block.misses.binary_search_by_key(&peer, |miss| miss.peer);
        if known.is_ok_and(|at| block.misses[at].answered & bit != 0) {
            return Some(false);
        }
        let again = known.is_ok_and(|at| block.misses[at].before & bit != 0);
        if block.rounds >= ROUNDS || block.next >= MAX_PARITIES {
            return None;
        }
        match known {
            Ok(at) => {
                block.misses[at].open |= bit;
                block.misses[at].before &= !bit;
            }
            Err(_) if block.misses.len() >= NAMES => return Some(false),
            Err(at) => {
                let miss = Miss { peer, open: bit, answered: 0, before: 0, given: 0 };
                block.misses.insert(at, miss);
            }
        }
        if block.since.is_none() {
            (block.since, block.due) = (Some(now), due);
            self.pending.push(number);
        }
        Some(again)
    }

    /// Everyone has the cells below.
    pub(super) fn forget_below(&mut self, cell: u64) {
        if self.map.is_empty() {
            return;
        }
        let first = cell / self.cells;
        let before = self.map.len();
        while self.map.first_entry().is_some_and(|block| *block.key() < first) {
            self.map.pop_first();
        }
        if self.map.len() < before {
            self.pending.retain(|block| *block >= first);
            self.owed.retain(|owed| owed.block >= first);
        }
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 3] {
        assert!(self.pending.len() <= self.map.len());
        let misses = self.map.values().map(|block| block.misses.len()).max();
        [self.map.len(), misses.unwrap_or(0), self.owed.len()]
    }
}

impl Block {
    /// How many parities are to go to everyone, where a packet to everyone costs as much as `copies` to one; who needs more
    /// gets more alone. 0: cells are as cheap.
    fn common(&self, copies: u32) -> u8 {
        let mut needs: Vec<u8> = self.misses.iter().map(|miss| miss.needs(self.all)).collect();
        needs.sort_unstable_by(|a, b| b.cmp(a));
        // One more is worth it while more receivers need it than it costs.
        let copies = copies as usize;
        let common = needs.get(copies).copied().unwrap_or(0);
        let most = needs.first().copied().unwrap_or(0);
        if common == 0 || self.next.saturating_add(most) > MAX_PARITIES {
            return 0;
        }
        let alone: usize = needs.iter().map(|need| usize::from(need.saturating_sub(common))).sum();
        let parity = usize::from(common) * copies + alone;
        let mut missed = [0_usize; MAX_CELLS as usize];
        for miss in self.misses.iter().filter(|miss| miss.needs(self.all) > 0) {
            for (cell, missed) in missed.iter_mut().enumerate() {
                *missed += (miss.open >> cell & 1) as usize;
            }
        }
        let cells: usize = missed.iter().map(|missed| (*missed).min(copies)).sum();
        if parity < cells { common } else { 0 }
    }
}

impl Sender {
    /// A receiver of what goes to everyone misses a cell. True if it was sent to it again, and that was lost too.
    pub(super) fn miss(
        &mut self,
        now: Time,
        due: Time,
        cell: u64,
        number: u32,
        most: usize,
    ) -> bool {
        // Parity pays only if one packet is cheaper than one for each.
        if self.blocks.cells > 0
            && self.lows.attached > self.copies
            && let Some(again) = self.blocks.missing(now, due, cell, number)
        {
            return again;
        }
        self.group.cells.missing(now, due, cell, number, most)
    }

    /// The next parity, if any is to be sent. Decides on what is missed first.
    pub(super) fn poll_parity(&mut self, now: Time) -> Option<Outgoing> {
        if self.blocks.map.is_empty() {
            return None;
        }
        let hold = self.group.hold_off(Self::reports(&self.config, self.via_agent));
        let mut at = 0;
        while let Some(&number) = self.blocks.pending.get(at) {
            match self.decision_at(now, number, hold) {
                Some(wait) => {
                    self.wait = self.wait.min(wait);
                    at += 1;
                }
                None => {
                    self.blocks.pending.swap_remove(at);
                    self.decide(now, number, hold);
                }
            }
        }
        self.next_parity(now, hold)
    }

    /// Where a block begins and ends, and how many cells it has, as far as is known.
    fn extent(&self, number: u64) -> (u64, u64, u64) {
        let payload = u64::from(self.config.payload);
        let start = number * self.blocks.cells * payload;
        let full = start + self.blocks.cells * payload;
        let end = self.length.map_or(full, |length| length.min(full));
        (start, end, end.saturating_sub(start).div_ceil(payload))
    }

    /// When it is to be decided how a block goes again; `None`: now.
    fn decision_at(&mut self, now: Time, number: u64, hold: Span) -> Option<Time> {
        let (_, end, _) = self.extent(number);
        let (whole, progress) = (self.group.head >= end, self.lows.progress);
        let most = self.lows.limit.min(self.lows.have.saturating_add(self.config.window));
        let goes_on = !self.held && end <= self.offered.min(most);
        let block = self.blocks.map.get_mut(&number)?;
        let since = block.since?;
        let last = if whole {
            // Until all have told what they miss of it, or should have.
            let whole_at = *block.whole_at.get_or_insert(now);
            if progress >= end { block.due } else { block.due.max(whole_at.saturating_add(hold)) }
        } else if goes_on {
            block.due.max(since.saturating_add(GATHER))
        } else {
            block.due
        };
        (now < last).then_some(last)
    }

    fn decide(&mut self, now: Time, number: u64, hold: Span) {
        let payload = u64::from(self.config.payload);
        let (start, end, _) = self.extent(number);
        let first = number * self.blocks.cells;
        let most = (self.config.window / payload + 2) as usize;
        let Self { blocks, peers, group, .. } = self;
        let Some(block) = blocks.map.get_mut(&number) else { return };
        (block.since, block.until) = (None, Some(now.saturating_add(hold)));
        let mut usable = group.head >= end && start >= self.released;
        for miss in &mut block.misses {
            let peer = peers.get(miss.peer).filter(|peer| peer.state == State::Attached);
            let here = peer.map_or(64, |peer| (peer.have / payload).saturating_sub(first).min(64));
            miss.open &= u64::MAX.checked_shl(here as u32).unwrap_or(0);
            // Who has begun in its middle can't compute anything of it.
            usable &= miss.open == 0 || peer.is_none_or(|peer| peer.begins <= start);
        }
        let common = if usable { block.common(self.copies) } else { 0 };
        let (all, next) = (block.all, block.next);
        block.by_parity = common > 0;
        if common > 0 {
            block.owed += u32::from(common);
            blocks.owed.push_back(Owed { block: number, next, left: common, to: None });
        }
        let mut used = common;
        for miss in &mut block.misses {
            let alone = miss.needs(all).saturating_sub(common);
            let mut open = miss.open;
            (miss.answered, miss.open) = (miss.answered | open, 0);
            miss.given = miss.given.saturating_add(alone);
            if common > 0 {
                used = used.max(common + alone);
                if alone > 0 {
                    let to = Some(miss.peer);
                    block.owed += u32::from(alone);
                    let next = next + common;
                    blocks.owed.push_back(Owed { block: number, next, left: alone, to });
                }
                continue;
            }
            for _ in 0..alone {
                let cell = first + u64::from(open.trailing_zeros());
                open &= open - 1;
                let again = group.cells.missing(now, now, cell, miss.peer, most);
                group.lost_again(again.into());
            }
        }
        if common > 0 {
            (block.all, block.next) = (all + common, next + used);
            block.rounds += 1;
        }
    }

    fn next_parity(&mut self, now: Time, hold: Span) -> Option<Outgoing> {
        loop {
            let owed = self.blocks.owed.front_mut()?;
            if self.group.repeated_bytes(now, hold) >= self.group.control.window() {
                let until = self.group.repeats_until(hold).unwrap_or(Time::MAX);
                self.wait = self.wait.min(until.max(Time(now.0 + 1)));
                return None;
            }
            let Owed { block: number, next: index, to, .. } = *owed;
            (owed.next, owed.left) = (owed.next + 1, owed.left - 1);
            if owed.left == 0 {
                self.blocks.owed.pop_front();
            }
            let (start, end, cells) = self.extent(number);
            let Some(block) = self.blocks.map.get_mut(&number) else { continue };
            block.owed -= 1;
            let lacks = |peer: &&mut Peer| peer.state == State::Attached && peer.have < end;
            let alone = match to {
                None => None,
                Some(to) => match self.peers.list.get_mut(to as usize).filter(lacks) {
                    None => continue,
                    Some(peer) => Some(peer),
                },
            };
            block.until = Some(now.saturating_add(hold));
            let payload = self.config.payload;
            let parity = Parity {
                index,
                data: cells as u8,
                parity: MAX_PARITIES,
                last: (end - start - (cells - 1) * u64::from(payload)) as u16,
            };
            let piece = Piece {
                offset: start,
                len: payload,
                repair: true,
                end: false,
                parity: Some(parity),
            };
            // It says nothing of when any byte was sent.
            self.group.repeats(now, hold, 0, payload);
            self.counters.parity += u64::from(payload);
            let outgoing = match alone {
                Some(peer) => {
                    peer.repairs += u64::from(payload);
                    peer.sent = now;
                    Outgoing::One(peer.host, piece)
                }
                None => {
                    self.group.sent = now;
                    Outgoing::Everyone(piece)
                }
            };
            self.pay(now, payload);
            return Some(outgoing);
        }
    }
}
