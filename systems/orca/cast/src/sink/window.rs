//! Received bytes in the order of the stream.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

/// The size in bytes of a block of the window.
const BLOCK: usize = 1 << 20;

/// The least size in bytes at which a piece of a block is passed on without a copy.
const MIN_SHARED: usize = 256 << 10;

/// The most blocks that wait to be used again.
const SPARE: usize = 16;

/// Received bytes by their offset in the stream. Bytes in order are passed on block by block, without a copy.
#[derive(Debug)]
pub struct Window {
    /// The offset of the first block.
    base: u64,
    blocks: VecDeque<Option<Vec<u8>>>,
    /// Bytes that were recently passed on, which the reconstruction of missing cells from parity may need: their first
    /// offset, their end, and the block that holds them. It has only bytes whose blocks are no longer in `blocks`.
    behind: VecDeque<(u64, u64, Arc<Vec<u8>>)>,
    /// Blocks that can be reused.
    spare: Vec<Vec<u8>>,
    /// The offset below which all bytes have been passed on.
    given: u64,
    /// The offset above which no byte has been received.
    top: u64,
    room: u64,
}

impl Window {
    /// Creates an empty window of `room` bytes that begins at an offset.
    #[must_use]
    pub fn new(at: u64, room: u64) -> Self {
        let base = at - at % BLOCK as u64;
        Self {
            base,
            blocks: VecDeque::new(),
            behind: VecDeque::new(),
            spare: Vec::new(),
            given: at,
            top: at,
            room: room.max(BLOCK as u64),
        }
    }

    /// Returns the size in bytes.
    #[must_use]
    pub const fn room(&self) -> u64 {
        self.room
    }

    /// Returns how many bytes of memory a window of `room` bytes may need. These are the bytes of the window and as
    /// many of parities, which replace missing bytes. The blocks that wait to be used again are added, and two blocks
    /// that were passed on, and two that are used in part.
    #[must_use]
    pub const fn memory(room: u64) -> u64 {
        let block = BLOCK as u64;
        let room = if room < block { block } else { room };
        let spare = SPARE as u64 * block;
        let spare = if room < spare { room } else { spare };
        2 * room + spare + 4 * block
    }

    /// Returns whether bytes below `upto` have not been passed on yet.
    pub(super) const fn lags(&self, upto: u64) -> bool {
        self.given < upto
    }

    /// Returns the offset below which all bytes have been passed on.
    pub(super) const fn given(&self) -> u64 {
        self.given
    }

    /// Stores bytes; returns `false` if they lie too far beyond the window.
    pub fn put(&mut self, offset: u64, mut bytes: &[u8]) -> bool {
        if offset < self.given || offset + bytes.len() as u64 > self.given + 2 * self.room {
            return false;
        }
        self.top = self.top.max(offset + bytes.len() as u64);
        let mut at = (offset - self.base) as usize;
        while !bytes.is_empty() {
            let (index, within) = (at / BLOCK, at % BLOCK);
            while self.blocks.len() <= index {
                self.blocks.push_back(None);
            }
            let spare = &mut self.spare;
            let block = self.blocks[index].get_or_insert_with(|| fresh(spare));
            let (now, rest) = bytes.split_at(bytes.len().min(BLOCK - within));
            block[within..within + now.len()].copy_from_slice(now);
            at += now.len();
            bytes = rest;
        }
        true
    }

    /// Returns the next piece below `upto`, the offset below which all bytes have arrived: a whole block or, with
    /// `flush`, part of one.
    pub(super) fn take(&mut self, upto: u64, flush: bool) -> Option<Piece> {
        let ends = self.base + BLOCK as u64;
        let from = (self.given - self.base) as usize;
        if upto >= ends {
            let block = Arc::new(self.blocks.pop_front()??);
            let at = self.given;
            self.base = ends;
            self.given = ends;
            self.keep(ends, &block);
            return Some(Piece { block, from, to: BLOCK, at });
        }
        if !flush || upto <= self.given {
            return None;
        }
        let to = (upto - self.base) as usize;
        let front = self.blocks.front_mut()?.as_mut()?;
        let at = self.given;
        self.given = upto;
        if to - from < MIN_SHARED {
            let block = front[from..to].to_vec();
            return Some(Piece { to: block.len(), block: Arc::new(block), from: 0, at });
        }
        // Bytes beyond a gap are moved to the block that takes its place.
        let mut next = fresh(&mut self.spare);
        let top = BLOCK.min((self.top.max(upto) - self.base) as usize);
        next[to..top].copy_from_slice(&front[to..top]);
        let block = Arc::new(std::mem::replace(front, next));
        self.keep(upto, &block);
        Some(Piece { block, from, to, at })
    }

    /// Moves the window to an offset; the bytes before it are omitted, and [`Self::read`] does not return them.
    pub(super) fn skip(&mut self, to: u64) {
        if to <= self.given {
            return;
        }
        let base = to - to % BLOCK as u64;
        while self.base < base {
            let Some(block) = self.blocks.pop_front() else {
                self.base = base;
                break;
            };
            let spares = self.spares();
            self.base += BLOCK as u64;
            self.spare.extend(block.filter(|_| self.spare.len() < spares));
        }
        self.behind.clear();
        (self.given, self.top) = (to, self.top.max(to));
    }

    /// Keeps a block that was passed on, for [`Self::read`].
    fn keep(&mut self, to: u64, block: &Arc<Vec<u8>>) {
        let first = (to - 1) - (to - 1) % BLOCK as u64;
        let from = self.behind.back().map_or(first, |last| last.1.max(first));
        self.behind.push_back((from, to, Arc::clone(block)));
        while let Some(&(_, ended, _)) = self.behind.front()
            && ended + BLOCK as u64 <= self.given
        {
            if let Some((_, _, block)) = self.behind.pop_front() {
                self.recycle(block);
            }
        }
    }

    /// Returns bytes that were stored, if they are still available: those in the window, and at least 1 MiB before it.
    #[must_use]
    pub fn read(&self, offset: u64, len: usize) -> Option<Cow<'_, [u8]>> {
        let end = offset.checked_add(len as u64)?;
        let first = self.part(offset, end)?;
        if first.len() == len {
            return Some(Cow::Borrowed(first));
        }
        let mut all = first.to_vec();
        while all.len() < len {
            all.extend_from_slice(self.part(offset + all.len() as u64, end)?);
        }
        Some(Cow::Owned(all))
    }

    /// Returns the bytes between `from` and `end` that are in one block.
    fn part(&self, from: u64, end: u64) -> Option<&[u8]> {
        let left = self.behind.back().map_or(self.base, |last| last.1.max(self.base));
        let (block, until) = if from >= left {
            let block = self.blocks.get((from - self.base) as usize / BLOCK)?.as_ref()?;
            (block, u64::MAX)
        } else {
            let holds = |kept: &&(u64, u64, Arc<Vec<u8>>)| (kept.0..kept.1).contains(&from);
            let (_, until, block) = self.behind.iter().find(holds)?;
            (&**block, *until)
        };
        let at = (from % BLOCK as u64) as usize;
        let len = (end.min(until) - from).min((BLOCK - at) as u64) as usize;
        block.get(at..at + len)
    }

    /// The most blocks that wait to be used again.
    fn spares(&self) -> usize {
        SPARE.min(self.room.div_ceil(BLOCK as u64) as usize)
    }

    /// Takes a block back for reuse, unless it is still in use.
    pub(super) fn recycle(&mut self, block: Arc<Vec<u8>>) {
        if let Ok(block) = Arc::try_unwrap(block)
            && block.len() == BLOCK
            && self.spare.len() < self.spares()
        {
            self.spare.push(block);
        }
    }
}

fn fresh(spare: &mut Vec<Vec<u8>>) -> Vec<u8> {
    spare.pop().unwrap_or_else(|| vec![0; BLOCK])
}

/// Bytes that are in order, as a range of a block.
pub(super) struct Piece {
    pub(super) block: Arc<Vec<u8>>,
    pub(super) from: usize,
    pub(super) to: usize,
    /// The offset in the stream of its first byte.
    pub(super) at: u64,
}
