//! Parities that a receiver keeps, of blocks that it lacks something of.

use std::collections::BTreeMap;

use rackweave_core::Time;
use rackweave_wire::orca::{Data, Parity};
use smallvec::SmallVec;

use super::super::ranges::Ranges;
use super::super::{Placement, ReceiverEvent, Recovery};
use super::{Receiver, Stage};
use crate::orca::parity::{MAX_CELLS, MAX_PARITIES};

/// Most blocks of which parities are kept, and most parities of all of them.
const BLOCKS: usize = 128;
const KEPT: u32 = 1024;

/// What is kept of a block.
#[derive(Clone, Copy, Debug)]
struct Kept {
    /// What all parities of the block say of it; of those that say something else, none is right.
    says: Parity,
    end: u64,
    /// A bit for each parity.
    held: u32,
    /// The driver is computing what is missing.
    asked: bool,
}

/// All that is kept, by where the blocks begin.
#[derive(Clone, Debug)]
pub(super) struct Parities {
    blocks: BTreeMap<u64, Kept>,
    payload: u64,
    /// Where the receiver began: what is before may not be in its driver's memory.
    began: u64,
}

impl Parities {
    pub(super) const fn new(began: u64, payload: u16) -> Self {
        Self { blocks: BTreeMap::new(), payload: payload as u64, began }
    }

    /// The block that a parity is of: its end, if the parity can be right.
    fn end_of(&self, data: &Data, parity: Parity) -> Option<u64> {
        let Parity { index, data: cells, parity: count, last } = parity;
        let right = (1..=MAX_CELLS).contains(&cells)
            && count <= MAX_PARITIES
            && index < count
            && (1..=self.payload).contains(&u64::from(last))
            && u64::from(data.len) == self.payload
            && data.offset.is_multiple_of(self.payload)
            && data.offset >= self.began
            && !data.end;
        let full = u64::from(cells) - u64::from(right);
        let end = data.offset.checked_add(full * self.payload + u64::from(last))?;
        (right && end < 1 << 48).then_some(end)
    }

    /// The cells of a block that are not wholly here, a bit for each.
    fn missing(&self, ranges: &Ranges, block: u64, end: u64) -> u64 {
        let mut missing = 0;
        for cell in 0..u64::from(MAX_CELLS) {
            let from = block + cell * self.payload;
            if from < end && ranges.lacks(from, (from + self.payload).min(end)) {
                missing |= 1 << cell;
            }
        }
        missing
    }

    /// Keeps a parity of a block that lacks these cells; whether it is of use.
    fn keep(&mut self, block: u64, end: u64, parity: Parity, missing: u64) -> bool {
        let says = Parity { index: 0, ..parity };
        let all: u32 = self.blocks.values().map(|kept| kept.held.count_ones()).sum();
        let full = self.blocks.len() >= BLOCKS && !self.blocks.contains_key(&block);
        if missing == 0 || full || all >= KEPT {
            return false;
        }
        let new = Kept { says, end, held: 0, asked: false };
        let kept = self.blocks.entry(block).or_insert(new);
        let bit = 1 << parity.index;
        if kept.says != says || kept.asked || kept.held & bit != 0 {
            return false;
        }
        kept.held |= bit;
        true
    }

    /// Everything below is here: what is kept of it is of no use.
    pub(super) fn forget_below(&mut self, prefix: u64) {
        while self.blocks.first_entry().is_some_and(|block| block.get().end <= prefix) {
            self.blocks.pop_first();
        }
    }

    /// What need not be sent again, since parities stand for it: of each block its last missing cells. Sorted.
    pub(super) fn hidden(&self, ranges: &Ranges) -> SmallVec<[(u64, u64); 4]> {
        let hide = |(block, kept): (&u64, &Kept)| {
            let mut missing = self.missing(ranges, *block, kept.end);
            let needed = missing.count_ones().saturating_sub(kept.held.count_ones());
            for _ in 0..needed {
                missing &= missing - 1;
            }
            (missing != 0)
                .then(|| (block + u64::from(missing.trailing_zeros()) * self.payload, kept.end))
        };
        self.blocks.iter().filter_map(hide).collect()
    }

    #[cfg(test)]
    pub(super) fn check_bounds(&self) {
        assert!(self.blocks.len() <= BLOCKS);
        assert!(self.blocks.values().map(|kept| kept.held.count_ones()).sum::<u32>() <= KEPT);
    }
}

impl Receiver {
    pub(super) fn handle_parity(
        &mut self,
        now: Time,
        data: &Data,
        parity: Parity,
    ) -> Option<Placement> {
        let end = self.parities.end_of(data, parity)?;
        let block = data.offset;
        if self.length.is_some_and(|length| end > length) {
            return None;
        }
        self.hear(now);
        if self.stage == Stage::Joining {
            self.stage = Stage::Taking;
        }
        // A sender never goes beyond the limit.
        if self.stage != Stage::Taking || end > self.limit() {
            return None;
        }
        self.report.parity(now, end, &self.ranges);
        let missing = self.parities.missing(&self.ranges, block, end);
        if !self.parities.keep(block, end, parity, missing) {
            return None;
        }
        self.look_for_recovery(block);
        let (session, index) = (self.session, parity.index);
        Some(Placement::Keep { session, block, end, index })
    }

    /// After something of the block that this byte is in has come: whether its parities suffice now.
    pub(super) fn look_for_recovery(&mut self, at: u64) {
        if self.parities.blocks.is_empty() {
            return;
        }
        self.parities.forget_below(self.ranges.prefix());
        let Some((&block, &kept)) = self.parities.blocks.range(..=at).next_back() else { return };
        if kept.asked || at >= kept.end {
            return;
        }
        let missing = self.parities.missing(&self.ranges, block, kept.end);
        if missing.count_ones() > kept.held.count_ones() {
            return;
        }
        if missing == 0 {
            self.parities.blocks.remove(&block);
            return;
        }
        if let Some(kept) = self.parities.blocks.get_mut(&block) {
            kept.asked = true;
        }
        self.events.push_back(ReceiverEvent::Recover(Recovery {
            block,
            end: kept.end,
            payload: self.config.payload,
            missing,
            parities: kept.held,
        }));
    }

    /// The driver has done what [`ReceiverEvent::Recover`] asked for: what was missing of the block is stored now. If not
    /// (`stored` is false), the bytes are asked for again, and the block's parities are forgotten here and there.
    pub fn recovered(&mut self, now: Time, block: u64, stored: bool) {
        let Some(kept) = self.parities.blocks.get(&block).copied().filter(|kept| kept.asked) else {
            return;
        };
        self.parities.blocks.remove(&block);
        if !stored || self.stage != Stage::Taking {
            self.report.soon(now);
            return;
        }
        let before = self.ranges.prefix();
        let max_gaps = usize::from(self.config.max_gaps);
        if let Some((from, to)) = self.ranges.insert(block, kept.end, max_gaps) {
            self.report.recovered(now, to - from);
        }
        let prefix = self.ranges.prefix();
        if prefix > before {
            self.readable(prefix);
        }
    }
}
