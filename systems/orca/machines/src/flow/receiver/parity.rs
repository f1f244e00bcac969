//! Parities that a receiver stores until they suffice to recover the missing cells of their block.

use std::collections::BTreeMap;

use rackweave_core::Time;
use rackweave_core::ranges::Assembler;
use rackweave_wire::orca::{Data, Parity};
use smallvec::SmallVec;

use super::super::{Placement, ReceiverEvent, Recovery};
use super::{Receiver, Stage};
use crate::parity::{MAX_CELLS, MAX_PARITIES};

/// The largest number of blocks with stored parities, and of parities of all blocks together.
const MAX_BLOCKS: usize = 128;
const MAX_PARITIES_KEPT: u32 = 1024;

/// The stored parities of one block.
#[derive(Clone, Copy, Debug)]
struct Kept {
    /// The block's shape as its first parity described it. Parities that contradict it are ignored.
    shape: Parity,
    end: u64,
    /// The stored parities, as a bit set.
    held: u32,
    /// Whether the driver is computing the missing cells.
    recovering: bool,
}

/// All stored parities, by the offset of their block.
#[derive(Clone, Debug)]
pub(super) struct Parities {
    blocks: BTreeMap<u64, Kept>,
    payload: u64,
    /// The offset at which the receiver joined; the driver may not hold earlier bytes.
    start: u64,
}

impl Parities {
    pub(super) const fn new(start: u64, payload: u16) -> Self {
        Self { blocks: BTreeMap::new(), payload: payload as u64, start }
    }

    /// Returns the end of the block that a parity belongs to, or `None` if its fields are inconsistent.
    fn block_end(&self, data: &Data, parity: Parity) -> Option<u64> {
        let Parity { index, data: cells, parity: count, last } = parity;
        let right = (1..=MAX_CELLS).contains(&cells)
            && count <= MAX_PARITIES
            && index < count
            && (1..=self.payload).contains(&u64::from(last))
            && u64::from(data.len) == self.payload
            && data.offset.is_multiple_of(self.payload)
            && data.offset >= self.start
            && !data.end;
        let full = u64::from(cells) - u64::from(right);
        let end = data.offset.checked_add(full * self.payload + u64::from(last))?;
        (right && end < 1 << 48).then_some(end)
    }

    /// Returns the cells of a block that lack at least one byte, as a bit set.
    fn missing(&self, ranges: &Assembler, block: u64, end: u64) -> u64 {
        let mut missing = 0;
        for cell in 0..u64::from(MAX_CELLS) {
            let from = block + cell * self.payload;
            if from < end && !ranges.contains_range(from..(from + self.payload).min(end)) {
                missing |= 1 << cell;
            }
        }
        missing
    }

    /// Stores a parity of a block that lacks these cells. Returns false if it is of no use.
    fn keep(&mut self, block: u64, end: u64, parity: Parity, missing: u64) -> bool {
        let shape = Parity { index: 0, ..parity };
        let all: u32 = self.blocks.values().map(|kept| kept.held.count_ones()).sum();
        let full = self.blocks.len() >= MAX_BLOCKS && !self.blocks.contains_key(&block);
        if missing == 0 || full || all >= MAX_PARITIES_KEPT {
            return false;
        }
        let new = Kept { shape, end, held: 0, recovering: false };
        let kept = self.blocks.entry(block).or_insert(new);
        let bit = 1 << parity.index;
        if kept.shape != shape || kept.recovering || kept.held & bit != 0 {
            return false;
        }
        kept.held |= bit;
        true
    }

    /// Records that the driver does not hold the bytes before an offset.
    pub(super) fn skip(&mut self, upto: u64) {
        self.start = self.start.max(upto);
        self.blocks = self.blocks.split_off(&upto);
    }

    /// Drops the parities of complete blocks.
    pub(super) fn forget_below(&mut self, prefix: u64) {
        while self.blocks.first_entry().is_some_and(|block| block.get().end <= prefix) {
            self.blocks.pop_first();
        }
    }

    /// Returns the ranges that need not be reported as missing because stored parities will recover them: the last
    /// missing cells of each block. They are sorted.
    pub(super) fn recoverable(&self, ranges: &Assembler) -> SmallVec<[(u64, u64); 4]> {
        let range = |(block, kept): (&u64, &Kept)| {
            let mut missing = self.missing(ranges, *block, kept.end);
            let needed = missing.count_ones().saturating_sub(kept.held.count_ones());
            for _ in 0..needed {
                missing &= missing - 1;
            }
            (missing != 0)
                .then(|| (block + u64::from(missing.trailing_zeros()) * self.payload, kept.end))
        };
        self.blocks.iter().filter_map(range).collect()
    }

    #[cfg(test)]
    pub(super) fn check_bounds(&self) {
        assert!(self.blocks.len() <= MAX_BLOCKS);
        assert!(
            self.blocks.values().map(|kept| kept.held.count_ones()).sum::<u32>()
                <= MAX_PARITIES_KEPT
        );
    }
}

impl Receiver {
    pub(super) fn handle_parity(
        &mut self,
        now: Time,
        data: &Data,
        parity: Parity,
    ) -> Option<Placement> {
        let end = self.parities.block_end(data, parity)?;
        let block = data.offset;
        if self.length.is_some_and(|length| end > length) {
            return None;
        }
        self.on_heard(now);
        self.begin_receiving();
        // A correct sender never exceeds the receive window.
        if self.stage != Stage::Receiving || end > self.limit() {
            return None;
        }
        self.report.on_parity(now, end, &self.ranges);
        let missing = self.parities.missing(&self.ranges, block, end);
        if !self.parities.keep(block, end, parity, missing) {
            return None;
        }
        self.check_recovery(block);
        let (session, index) = (self.session, parity.index);
        Some(Placement::Keep { session, block, end, index })
    }

    /// Asks the driver to recover the block that contains the byte at `at`, if its parities now suffice.
    pub(super) fn check_recovery(&mut self, at: u64) {
        if self.parities.blocks.is_empty() {
            return;
        }
        self.parities.forget_below(self.ranges.prefix());
        let Some((&block, &kept)) = self.parities.blocks.range(..=at).next_back() else { return };
        if kept.recovering || at >= kept.end {
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
            kept.recovering = true;
        }
        self.events.push_back(ReceiverEvent::Recover(Recovery {
            block,
            end: kept.end,
            payload: self.config.payload,
            missing,
            parities: kept.held,
        }));
    }

    /// Handles the driver's answer to [`ReceiverEvent::Recover`]. With `stored`, the missing bytes of the block are
    /// stored. Otherwise they are reported missing once more, and both the receiver and the driver drop the block's
    /// parities.
    pub fn recovered(&mut self, now: Time, block: u64, stored: bool) {
        let Some(kept) = self.parities.blocks.get(&block).copied().filter(|kept| kept.recovering)
        else {
            return;
        };
        self.parities.blocks.remove(&block);
        if !stored || self.stage != Stage::Receiving {
            self.report.request_now(now);
            return;
        }
        let before = self.ranges.prefix();
        let max_gaps = usize::from(self.config.max_gaps);
        if let Some(new) = self.ranges.insert_evicting(block..kept.end, max_gaps) {
            self.report.on_recovered(now, new.end - new.start);
        }
        let prefix = self.ranges.prefix();
        if prefix > before {
            self.on_readable(prefix);
        }
    }
}
