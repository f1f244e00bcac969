//! Parity as bytes: made of what a source has, and missing cells computed from it.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::Time;
use rackweave_group::orca::flow::Recovery;
use rackweave_group::orca::parity::{self, Repair};
use rackweave_wire::orca::{Parity, Session};

use super::Engine;
use crate::sink::Drain;
use crate::source::{Payload, Source, SourceError};

/// The parity of a block that begins at `offset`, in cells of `payload` bytes.
pub(super) fn encode(
    source: &mut dyn Source,
    offset: u64,
    payload: u16,
    of: Parity,
) -> Result<Bytes, SourceError> {
    let mut bytes = vec![0; usize::from(payload)];
    let mut cell = Payload::new();
    for number in 0..of.data {
        let len = if number + 1 == of.data { of.last } else { payload };
        let from = offset + u64::from(number) * u64::from(payload);
        cell.clear();
        source.read(from, usize::from(len), &mut cell)?;
        let mut at = 0;
        for piece in &cell {
            parity::add(&mut bytes[at..], of.index, number, piece);
            at += piece.len();
        }
    }
    Ok(bytes.into())
}

/// Parities of a stream that comes in, of blocks that lack something.
#[derive(Debug, Default)]
pub(super) struct Parities {
    blocks: BTreeMap<u64, Block>,
}

#[derive(Debug)]
struct Block {
    end: u64,
    parities: Vec<(u8, Box<[u8]>)>,
}

impl Parities {
    pub(super) fn keep(&mut self, block: u64, end: u64, index: u8, payload: &[u8]) {
        let kept = self.blocks.entry(block).or_insert(Block { end, parities: Vec::new() });
        kept.end = end;
        kept.parities.push((index, payload.into()));
    }

    /// All bytes below are here.
    pub(super) fn forget_below(&mut self, upto: u64) {
        while self.blocks.first_entry().is_some_and(|block| block.get().end <= upto) {
            self.blocks.pop_first();
        }
    }

    /// Computes what is missing of a block and puts it to its place; false: that is not possible.
    fn recover(&mut self, of: &Recovery, drain: &mut Drain) -> bool {
        let Some(kept) = self.blocks.remove(&of.block) else { return false };
        let wanted = kept.parities.iter().filter(|(index, _)| of.parities >> index & 1 == 1);
        let parities = wanted.map(|(index, bytes)| (*index, &bytes[..]));
        let Some(mut repair) = Repair::new(of.missing, parities) else { return false };
        let payload = u64::from(of.payload);
        let cells = (of.end - of.block).div_ceil(payload) as u8;
        let place = |cell: u8| {
            let from = of.block + u64::from(cell) * payload;
            (from, (of.end - from).min(payload) as usize)
        };
        for cell in (0..cells).filter(|cell| of.missing >> cell & 1 == 0) {
            let (from, len) = place(cell);
            let Some(bytes) = drain.read(from, len) else { return false };
            repair.add(cell, &bytes);
        }
        repair.finish().iter().all(|(cell, bytes)| {
            let (from, len) = place(*cell);
            drain.put(from, &bytes[..len.min(bytes.len())])
        })
    }
}

impl Engine {
    pub(super) fn recover(&mut self, now: Time, session: Session, of: &Recovery) {
        let stored = match self.incoming.get_mut(&session) {
            Some(incoming) => incoming.parities.recover(of, &mut incoming.drain),
            None => false,
        };
        self.stats.recovered += if stored { u64::from(of.missing.count_ones()) } else { 0 };
        self.host.recovered(now, session, of.block, stored);
    }
}
