//! The path from packets to a sink: a window that puts received bytes in order, and a thread that may block on a disk.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use bytes::Bytes;

use super::{FileDone, Sink, SinkError};
use crate::store::Cancel;
use crate::wake::Waker;

/// The size in bytes of a block of the window.
const BLOCK: usize = 1 << 20;

/// The least size in bytes at which a piece of a block is passed on without a copy.
const MIN_SHARED: usize = 256 << 10;

/// The most blocks that wait to be used again.
const SPARE: usize = 16;

/// The number of blocks that can wait for the sink, besides those in the window.
const QUEUE: usize = 64;

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

    /// Returns how many bytes of memory a window of `room` bytes may need: those of the window and as many of parities, which
    /// replace missing bytes, the blocks that wait to be used again, two that were passed on, and two that are used in part.
    #[must_use]
    pub const fn memory(room: u64) -> u64 {
        let block = BLOCK as u64;
        let room = if room < block { block } else { room };
        let spare = SPARE as u64 * block;
        let spare = if room < spare { room } else { spare };
        2 * room + spare + 4 * block
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
    fn take(&mut self, upto: u64, flush: bool) -> Option<Piece> {
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
    fn skip(&mut self, to: u64) {
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
    fn recycle(&mut self, block: Arc<Vec<u8>>) {
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
struct Piece {
    block: Arc<Vec<u8>>,
    from: usize,
    to: usize,
    /// The offset in the stream of its first byte.
    at: u64,
}

/// A block that the sink holds. When the last reference to it is dropped, it returns to the window.
struct LentBlock {
    block: Arc<Vec<u8>>,
    back: SyncSender<Arc<Vec<u8>>>,
}

impl AsRef<[u8]> for LentBlock {
    fn as_ref(&self) -> &[u8] {
        &self.block
    }
}

impl Drop for LentBlock {
    fn drop(&mut self) {
        // If the queue is full, there are enough spare blocks.
        let _ = self.back.try_send(std::mem::take(&mut self.block));
    }
}

struct Shared {
    consumed: AtomicU64,
    ready: AtomicBool,
    complete: AtomicBool,
    /// Set when the input has ended: a sink that has not been created yet is not needed any more, nor is what one that reads files that
    /// are there already would find.
    closed: Cancel,
    failed: AtomicBool,
    content: AtomicU64,
    expected: AtomicU64,
    outcome: Mutex<Outcome>,
}

#[derive(Default)]
struct Outcome {
    error: Option<SinkError>,
    files: Vec<FileDone>,
}

/// A sink and its thread.
pub struct Drain {
    window: Window,
    to: Option<SyncSender<Piece>>,
    back: Receiver<Arc<Vec<u8>>>,
    waiting: Option<Piece>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    begins_at: Option<u64>,
    room: u64,
}

impl std::fmt::Debug for Drain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drain").field("window", &self.window.given).finish_non_exhaustive()
    }
}

/// Marks a sink that panics as failed, so that no thread waits for it.
struct Panicked<'a>(&'a Shared, &'a Waker);

impl Drop for Panicked<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.store(true, Ordering::Release);
            self.1.wake();
        }
    }
}

fn work(
    before: &mut [Drain],
    make: MakeSink,
    shared: &Shared,
    from: &Receiver<Piece>,
    back: &SyncSender<Arc<Vec<u8>>>,
    waker: &Waker,
) {
    let end = |error, files| {
        let mut outcome = shared.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        (outcome.error, outcome.files) = (error, files);
    };
    let _panicked = Panicked(shared, waker);
    before.iter_mut().for_each(Drain::stop);
    if shared.closed.is_set() {
        return;
    }
    let mut sink = match make(&shared.closed) {
        Ok(sink) => sink,
        Err(error) => {
            end(Some(error), Vec::new());
            shared.failed.store(true, Ordering::Release);
            return waker.wake();
        }
    };
    let mut next = sink.begins_at();
    shared.consumed.store(next, Ordering::Release);
    shared.ready.store(true, Ordering::Release);
    waker.wake();
    while let Ok(piece) = from.recv() {
        if piece.at > next {
            sink.omit_rest();
        }
        next = piece.at + (piece.to - piece.from) as u64;
        let lent = Bytes::from_owner(LentBlock { block: piece.block, back: back.clone() });
        let result = sink.put_shared(&lent.slice(piece.from..piece.to));
        drop(lent);
        let (content, expected) = sink.content();
        shared.content.store(content, Ordering::Relaxed);
        shared.expected.store(expected.unwrap_or(u64::MAX), Ordering::Relaxed);
        let (complete, failed) = (sink.is_complete(), result.is_err());
        if complete || failed {
            end(result.err(), sink.files());
        }
        // This is stored before `consumed`, so that a thread that sees all bytes consumed also sees the outcome.
        shared.complete.store(complete, Ordering::Release);
        shared.failed.store(failed, Ordering::Release);
        shared.consumed.store(sink.needs_from().unwrap_or(next).max(next), Ordering::Release);
        waker.wake();
        if failed {
            return;
        }
    }
}

/// Creates a sink, in the thread that will feed it: reading what an earlier attempt stored may take long, and ends when the input does
/// if the sink gets the argument ([`FolderConfig::cancel`](super::FolderConfig::cancel)).
pub type MakeSink = Box<dyn FnOnce(&Cancel) -> Result<Box<dyn Sink>, SinkError> + Send>;

impl Drain {
    /// Returns the size in bytes of the window with which the sink was started.
    #[must_use]
    pub const fn room(&self) -> u64 {
        self.room
    }

    /// Starts the sink's thread. The window holds `room` bytes that arrive out of order. Bytes may be stored only after
    /// [`Self::is_ready`] has returned true.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(make: MakeSink, room: u64, waker: Waker) -> std::io::Result<Self> {
        Self::start_after(Vec::new(), make, room, waker)
    }

    /// As [`Self::start`], once other drains have ended, which this waits for in the sink's thread.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start_after(
        mut before: Vec<Self>,
        make: MakeSink,
        room: u64,
        waker: Waker,
    ) -> std::io::Result<Self> {
        let (to, from) = sync_channel::<Piece>(QUEUE);
        let (give_back, back) = sync_channel(QUEUE);
        let shared = Arc::new(Shared {
            consumed: AtomicU64::new(0),
            ready: AtomicBool::new(false),
            complete: AtomicBool::new(false),
            closed: Cancel::new(),
            failed: AtomicBool::new(false),
            content: AtomicU64::new(0),
            expected: AtomicU64::new(0),
            outcome: Mutex::default(),
        });
        let ours = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("cast output".into());
        let thread =
            builder.spawn(move || work(&mut before, make, &ours, &from, &give_back, &waker))?;
        Ok(Self {
            window: Window::new(0, room),
            room,
            to: Some(to),
            back,
            waiting: None,
            shared,
            thread: Some(thread),
            begins_at: None,
        })
    }

    /// Returns whether the sink has been created, from which time on [`Self::begins_at`] is known.
    pub fn is_ready(&mut self) -> bool {
        if self.begins_at.is_none() && self.shared.ready.load(Ordering::Acquire) {
            let at = self.shared.consumed.load(Ordering::Acquire);
            self.begins_at = Some(at);
            self.window = Window::new(at, self.window.room);
        }
        self.begins_at.is_some()
    }

    /// Returns the offset of the first byte that the sink needs.
    #[must_use]
    pub fn begins_at(&self) -> u64 {
        self.begins_at.unwrap_or(0)
    }

    /// Stores bytes; see [`Window::put`].
    pub fn put(&mut self, offset: u64, bytes: &[u8]) -> bool {
        self.window.put(offset, bytes)
    }

    /// Returns bytes that were stored, if they are still available; see [`Window::read`].
    #[must_use]
    pub fn read(&self, offset: u64, len: usize) -> Option<Cow<'_, [u8]>> {
        self.window.read(offset, len)
    }

    /// Passes bytes below `upto` to the sink, where `upto` is the offset below which all have arrived: whole blocks or,
    /// with `flush`, all of them.
    pub fn advance(&mut self, upto: u64, flush: bool) {
        while let Ok(block) = self.back.try_recv() {
            self.window.recycle(block);
        }
        let Some(to) = &self.to else { return };
        loop {
            let Some(piece) = self.waiting.take().or_else(|| self.window.take(upto, flush)) else {
                return;
            };
            match to.try_send(piece) {
                Ok(()) => {}
                Err(TrySendError::Full(piece)) => {
                    self.waiting = Some(piece);
                    return;
                }
                // The sink has failed, which `is_failed` reports.
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
    }

    /// Omits the bytes below an offset that have not been passed on; the sink does not need them.
    pub fn skip(&mut self, to: u64) {
        self.window.skip(to);
    }

    /// Returns whether bytes below `upto` have not been passed on yet.
    #[must_use]
    pub const fn lags(&self, upto: u64) -> bool {
        self.window.given < upto || self.waiting.is_some()
    }

    /// Returns the offset below which the sink has consumed all bytes, or does not need them.
    #[must_use]
    pub fn consumed(&self) -> u64 {
        self.shared.consumed.load(Ordering::Acquire)
    }

    /// Returns whether the sink has the whole stream, verified.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.shared.complete.load(Ordering::Acquire)
    }

    /// Returns whether the sink has failed.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.shared.failed.load(Ordering::Acquire)
    }

    /// Returns the bytes of file content so far, and the total length of all files begun so far, if it is known.
    #[must_use]
    pub fn content(&self) -> (u64, Option<u64>) {
        let expected = self.shared.expected.load(Ordering::Relaxed);
        (self.shared.content.load(Ordering::Relaxed), Some(expected).filter(|all| *all != u64::MAX))
    }

    /// Returns the reason for which the sink has failed, and the complete files.
    #[must_use]
    pub fn outcome(&self) -> (Option<SinkError>, Vec<FileDone>) {
        let mut outcome = self.shared.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        (outcome.error.take(), std::mem::take(&mut outcome.files))
    }

    /// Ends the input. The sink finishes with what it was given, without further waiting here, unless it reads files that are there
    /// already: that ends, and with it the sink.
    pub fn close(&mut self) {
        self.shared.closed.set();
        self.to = None;
        (self.window, self.waiting) = (Window::new(0, 0), None);
    }

    /// Returns whether the thread has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the input and waits for the thread.
    pub fn stop(&mut self) {
        self.to = None;
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic.
            let _ = thread.join();
        }
    }
}
