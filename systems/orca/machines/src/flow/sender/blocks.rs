//! The missing cells of each block, collected until it is decided whether the block is repaired by retransmitting cells
//! (`retransmit`) or by parity.
//!
//! Parity on request is NORM's idea (RFC 5740, section 5.4): one parity packet fills different gaps at different
//! receivers. When to send it and how much is our choice: as much as costs less on the sender's link than the cells
//! themselves.

use std::collections::{BTreeMap, VecDeque};

use rackweave_core::{Span, Time};
use rackweave_wire::orca::Parity;

use super::super::{Outgoing, Piece};
use super::Sender;
use super::peers::{Peer, State};
use crate::parity::{MAX_CELLS, MAX_PARITIES};

/// The number of receivers of a block whose missing cells are recorded. The others report theirs again after the
/// decision about these.
const MAX_RECEIVERS: usize = 1024;
/// After this many rounds of parity for a block, its cells are retransmitted, in case a receiver cannot use parity.
const ROUNDS: u8 = 3;
/// How long the decision about a block waits for the rest of the block to be sent.
const GATHER: Span = Span::from_ms(10);

/// The cells of a block that one receiver lacks.
#[derive(Clone, Copy, Debug)]
struct Miss {
    peer: u32,
    /// The cells whose repair is undecided, as a bit set.
    open: u64,
    /// The cells whose repair was decided; the repair may still be in flight.
    answered: u64,
    /// The cells that the last round of parity was for. If they are still missing, some of that parity was lost.
    before: u64,
    /// The number of unicast repairs to the receiver, parities or cells, that may be in flight.
    given: u8,
}

impl Miss {
    /// Returns how many repair packets the receiver needs beyond those in flight; `all` of them were sent to everyone.
    fn needs(&self, all: u8) -> u8 {
        let misses = (self.open | self.answered).count_ones() as u8;
        let more = misses.saturating_sub(all.saturating_add(self.given));
        more.min(self.open.count_ones() as u8)
    }
}

#[derive(Clone, Debug, Default)]
struct Block {
    /// One entry for each receiver that lacks cells, sorted by the receiver's number.
    misses: Vec<Miss>,
    /// The time since which it waits for a decision, if it does, and the earliest time of that decision.
    since: Option<Time>,
    due: Time,
    /// The time at which all of the block was first seen to be sent.
    whole_at: Option<Time>,
    /// The index of the next parity, and the number of rounds of parity so far.
    next: u8,
    rounds: u8,
    /// The number of parities for everyone that are in flight or queued.
    all: u8,
    /// Whether the last decision was for parity.
    by_parity: bool,
    /// The number of queued parities.
    queued: u32,
    /// The time by which the repairs in flight have arrived or are reported missing again.
    until: Option<Time>,
}

/// Consecutive queued parities of one block.
#[derive(Clone, Copy, Debug)]
struct ParityRun {
    block: u64,
    next: u8,
    left: u8,
    /// The number of the receiver; `None` for everyone.
    to: Option<u32>,
}

/// The blocks of the group's stream that at least one receiver lacks cells of.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    /// The number of cells in a block; 0 disables parity.
    cells: u64,
    map: BTreeMap<u64, Block>,
    /// The numbers of the blocks that wait for a decision.
    pending: Vec<u64>,
    parity_queue: VecDeque<ParityRun>,
}

impl Blocks {
    pub(super) fn new(cells: u8) -> Self {
        Self { cells: u64::from(cells), ..Self::default() }
    }

    /// Returns the offset at which the block of the byte at `at` begins.
    pub(super) const fn start_of(&self, at: u64, payload: u64) -> u64 {
        if self.cells == 0 { at } else { at - at % (self.cells * payload) }
    }

    /// Records that a receiver lacks a cell. No decision is made before `due`. Returns whether a repair of the cell had
    /// been sent to the receiver and was lost; `None` if the cell must be repaired without parity.
    pub(super) fn report_missing(
        &mut self,
        now: Time,
        due: Time,
        cell: u64,
        peer: u32,
    ) -> Option<bool> {
        let number = cell / self.cells;
        let bit = 1 << (cell % self.cells);
        let block = self.map.entry(number).or_default();
        if block.queued == 0 && block.until.is_some_and(|until| now >= until) {
            (block.until, block.all) = (None, 0);
            block.misses.retain_mut(|miss| {
                // The retransmission queue counts lost retransmissions of cells.
                miss.before = if block.by_parity { miss.answered } else { 0 };
                (miss.answered, miss.given) = (0, 0);
                miss.open | miss.before != 0
            });
        }
        let known = block.misses.binary_search_by_key(&peer, |miss| miss.peer);
        if known.is_ok_and(|at| block.misses[at].answered & bit != 0) {
            return Some(false);
        }
        let lost_again = known.is_ok_and(|at| block.misses[at].before & bit != 0);
        if block.rounds >= ROUNDS || block.next >= MAX_PARITIES {
            return None;
        }
        match known {
            Ok(at) => {
                block.misses[at].open |= bit;
                block.misses[at].before &= !bit;
            }
            Err(_) if block.misses.len() >= MAX_RECEIVERS => return Some(false),
            Err(at) => {
                let miss = Miss { peer, open: bit, answered: 0, before: 0, given: 0 };
                block.misses.insert(at, miss);
            }
        }
        if block.since.is_none() {
            (block.since, block.due) = (Some(now), due);
            self.pending.push(number);
        }
        Some(lost_again)
    }

    /// Drops blocks below a cell that all receivers have.
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
            self.parity_queue.retain(|run| run.block >= first);
        }
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 3] {
        assert!(self.pending.len() <= self.map.len());
        let misses = self.map.values().map(|block| block.misses.len()).max();
        [self.map.len(), misses.unwrap_or(0), self.parity_queue.len()]
    }
}

impl Block {
    /// Returns how many parities to send to everyone, where a packet to everyone costs as much as `copies` packets to
    /// one receiver. Receivers that need more get the rest by unicast. Returns 0 if retransmitting the cells costs no
    /// more.
    fn common(&self, copies: u32) -> u8 {
        let mut needs: Vec<u8> = self.misses.iter().map(|miss| miss.needs(self.all)).collect();
        needs.sort_unstable_by(|a, b| b.cmp(a));
        // Another parity for everyone pays off as long as more receivers need it than it costs in packets to one
        // receiver.
        let copies = copies as usize;
        let common = needs.get(copies).copied().unwrap_or(0);
        let most = needs.first().copied().unwrap_or(0);
        if common == 0 || self.next.saturating_add(most) > MAX_PARITIES {
            return 0;
        }
        let unicast: usize =
            needs.iter().map(|need| usize::from(need.saturating_sub(common))).sum();
        let parity = usize::from(common) * copies + unicast;
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
    /// Records that an attached receiver lacks a cell. Returns true if a repair of the cell had been sent to it and was
    /// lost.
    pub(super) fn report_missing(
        &mut self,
        now: Time,
        due: Time,
        cell: u64,
        number: u32,
        max_cells: usize,
    ) -> bool {
        // Parity pays off only if a packet to everyone is cheaper than one to each receiver.
        if self.blocks.cells > 0
            && self.peers.watermarks.attached > self.copies
            && let Some(lost_again) = self.blocks.report_missing(now, due, cell, number)
        {
            return lost_again;
        }
        self.group.retransmit.report_missing(now, due, cell, number, max_cells)
    }

    /// Makes the decisions that are due, and returns the next parity to send.
    pub(super) fn poll_parity(&mut self, now: Time) -> Option<Outgoing> {
        if self.blocks.map.is_empty() {
            return None;
        }
        let rto = self.group_rto();
        let mut at = 0;
        while let Some(&number) = self.blocks.pending.get(at) {
            match self.decision_at(now, number, rto) {
                Some(wait) => {
                    self.timers.next_poll = self.timers.next_poll.min(wait);
                    at += 1;
                }
                None => {
                    self.blocks.pending.swap_remove(at);
                    self.decide(now, number, rto);
                }
            }
        }
        self.next_parity(now, rto)
    }

    /// Returns start and end of a block and its number of cells, up to the end of the stream if that is known.
    fn extent(&self, number: u64) -> (u64, u64, u64) {
        let payload = u64::from(self.config.payload);
        let start = number * self.blocks.cells * payload;
        let full = start + self.blocks.cells * payload;
        let end = self.source.length.map_or(full, |length| length.min(full));
        (start, end, end.saturating_sub(start).div_ceil(payload))
    }

    /// Returns the time at which the repair of a block can be decided; `None` if it can be decided now.
    fn decision_at(&mut self, now: Time, number: u64, rto: Span) -> Option<Time> {
        let (_, end, _) = self.extent(number);
        let (whole, progress) = (self.group.head >= end, self.peers.watermarks.min_progress);
        let sendable = self
            .peers
            .watermarks
            .min_limit
            .min(self.peers.watermarks.min_have.saturating_add(self.config.window));
        let goes_on = !self.paused && end <= self.source.offered.min(sendable);
        let block = self.blocks.map.get_mut(&number)?;
        let since = block.since?;
        let last = if whole {
            // The decision waits until all receivers have reported what they lack of the block, or should have.
            let whole_at = *block.whole_at.get_or_insert(now);
            if progress >= end { block.due } else { block.due.max(whole_at.saturating_add(rto)) }
        } else if goes_on {
            block.due.max(since.saturating_add(GATHER))
        } else {
            block.due
        };
        (now < last).then_some(last)
    }

    fn decide(&mut self, now: Time, number: u64, rto: Span) {
        let payload = u64::from(self.config.payload);
        let (start, end, _) = self.extent(number);
        let first = number * self.blocks.cells;
        let max_cells = self.config.window_packets();
        let Self { blocks, peers, group, .. } = self;
        let Some(block) = blocks.map.get_mut(&number) else { return };
        (block.since, block.until) = (None, Some(now.saturating_add(rto)));
        let mut usable = group.head >= end && start >= self.source.released;
        for miss in &mut block.misses {
            let peer = peers.get(miss.peer).filter(|peer| peer.state == State::Attached);
            let here = peer.map_or(64, |peer| (peer.have / payload).saturating_sub(first).min(64));
            miss.open &= u64::MAX.checked_shl(here as u32).unwrap_or(0);
            // A receiver that joined in the middle of the block cannot use its parity.
            usable &= miss.open == 0 || peer.is_none_or(|peer| peer.start <= start);
        }
        let common = if usable { block.common(self.copies) } else { 0 };
        let (all, next) = (block.all, block.next);
        block.by_parity = common > 0;
        if common > 0 {
            block.queued += u32::from(common);
            blocks.parity_queue.push_back(ParityRun {
                block: number,
                next,
                left: common,
                to: None,
            });
        }
        let mut used = common;
        for miss in &mut block.misses {
            let unicast = miss.needs(all).saturating_sub(common);
            let mut open = miss.open;
            (miss.answered, miss.open) = (miss.answered | open, 0);
            miss.given = miss.given.saturating_add(unicast);
            if common > 0 {
                used = used.max(common + unicast);
                if unicast > 0 {
                    let to = Some(miss.peer);
                    block.queued += u32::from(unicast);
                    let next = next + common;
                    blocks.parity_queue.push_back(ParityRun {
                        block: number,
                        next,
                        left: unicast,
                        to,
                    });
                }
                continue;
            }
            for _ in 0..unicast {
                let cell = first + u64::from(open.trailing_zeros());
                open &= open - 1;
                let lost_again =
                    group.retransmit.report_missing(now, now, cell, miss.peer, max_cells);
                group.on_retransmit_lost(lost_again.into());
            }
        }
        if common > 0 {
            (block.all, block.next) = (all + common, next + used);
            block.rounds += 1;
        }
    }

    fn next_parity(&mut self, now: Time, rto: Span) -> Option<Outgoing> {
        loop {
            let run = self.blocks.parity_queue.front_mut()?;
            if self.group.retransmits_in_flight(now, rto) >= self.group.congestion.window() {
                let until = self.group.retransmit_expiry(rto).unwrap_or(Time::MAX);
                self.timers.next_poll = self.timers.next_poll.min(until.max(now + Span::TICK));
                return None;
            }
            let ParityRun { block: number, next: index, to, .. } = *run;
            (run.next, run.left) = (run.next + 1, run.left - 1);
            if run.left == 0 {
                self.blocks.parity_queue.pop_front();
            }
            let (start, end, cells) = self.extent(number);
            let Some(block) = self.blocks.map.get_mut(&number) else { continue };
            block.queued -= 1;
            let lacks = |peer: &&mut Peer| peer.state == State::Attached && peer.have < end;
            let receiver = match to {
                None => None,
                Some(to) => match self.peers.list.get_mut(to as usize).filter(lacks) {
                    None => continue,
                    Some(peer) => Some(peer),
                },
            };
            block.until = Some(now.saturating_add(rto));
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
            // A parity gives no RTT sample, so the offset for Karn's algorithm does not move.
            self.group.on_retransmit(now, rto, 0, payload);
            self.counters.parity += u64::from(payload);
            let outgoing = match receiver {
                Some(peer) => {
                    peer.repairs += u64::from(payload);
                    peer.last_sent = now;
                    Outgoing::One(peer.host, piece)
                }
                None => {
                    self.group.last_sent = now;
                    Outgoing::Everyone(piece)
                }
            };
            return Some(outgoing);
        }
    }
}
