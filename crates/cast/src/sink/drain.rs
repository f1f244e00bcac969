//! The path from packets to a sink: a window that puts received bytes in order, and a thread that may block on a disk.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use bytes::Bytes;
use rackweave_wire::orca::Reason;

use super::window::{Piece, Window};
use super::{FileDone, Sink, SinkError};
use crate::store::Cancel;
use crate::wake::Waker;

/// The number of blocks that can wait for the sink, besides those in the window.
const QUEUE: usize = 64;

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
    /// Whether the thread has dropped the sink, whose files are unlocked then.
    ended: AtomicBool,
    content: AtomicU64,
    expected: AtomicU64,
    rest: Mutex<Rest>,
    outcome: Mutex<Outcome>,
}

/// What the thread still gets when the input has ended.
struct Rest {
    pieces: VecDeque<Piece>,
    /// Why the input has ended.
    reason: Reason,
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
    /// What the thread is made of, before it is started.
    start: Option<Start>,
    thread: Option<JoinHandle<()>>,
    begins_at: Option<u64>,
    room: u64,
}

/// What a sink's thread needs.
struct Start {
    make: MakeSink,
    from: Receiver<Piece>,
    back: SyncSender<Arc<Vec<u8>>>,
    waker: Waker,
}

impl std::fmt::Debug for Drain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drain").field("window", &self.window.given()).finish_non_exhaustive()
    }
}

/// Wakes the engine when a sink's thread ends, since another one may wait for that. A sink that panics has failed.
struct OnEnd<'a>(&'a Shared, &'a Waker);

impl Drop for OnEnd<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.store(true, Ordering::Release);
        }
        self.0.ended.store(true, Ordering::Release);
        self.1.wake();
    }
}

fn work(start: Start, shared: &Shared) {
    let Start { make, from, back, waker } = start;
    let end = |error, files| {
        let mut outcome = shared.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        (outcome.error, outcome.files) = (error, files);
    };
    let _on_end = OnEnd(shared, &waker);
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
    let rest = || shared.rest.lock().unwrap_or_else(PoisonError::into_inner);
    let piece = || from.recv().ok().or_else(|| rest().pieces.pop_front());
    while let Some(piece) = piece() {
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
    let reason = rest().reason;
    if !sink.is_complete() {
        sink.interrupted(reason);
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
        let mut this = Self::new(make, room, waker);
        this.begin()?;
        Ok(this)
    }

    /// Returns what [`Self::begin`] starts, so that the thread of another sink with the same files can end before.
    #[must_use]
    pub fn new(make: MakeSink, room: u64, waker: Waker) -> Self {
        let (to, from) = sync_channel::<Piece>(QUEUE);
        let (give_back, back) = sync_channel(QUEUE);
        let shared = Arc::new(Shared {
            consumed: AtomicU64::new(0),
            ready: AtomicBool::new(false),
            complete: AtomicBool::new(false),
            closed: Cancel::new(),
            failed: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            content: AtomicU64::new(0),
            expected: AtomicU64::new(0),
            rest: Mutex::new(Rest { pieces: VecDeque::new(), reason: Reason::Left }),
            outcome: Mutex::default(),
        });
        Self {
            window: Window::new(0, room),
            room,
            to: Some(to),
            back,
            waiting: None,
            shared,
            start: Some(Start { make, from, back: give_back, waker }),
            thread: None,
            begins_at: None,
        }
    }

    /// Returns whether the thread is still to be started.
    #[must_use]
    pub const fn is_pending(&self) -> bool {
        self.start.is_some()
    }

    /// Starts the thread; no effect if it was started before.
    ///
    /// # Errors
    /// If the thread cannot be started. It is not tried once more.
    pub fn begin(&mut self) -> std::io::Result<()> {
        let Some(start) = self.start.take() else { return Ok(()) };
        let shared = Arc::clone(&self.shared);
        let builder = std::thread::Builder::new().name("cast output".into());
        self.thread = Some(builder.spawn(move || work(start, &shared))?);
        Ok(())
    }

    /// Returns a number that grows while the sink is being created; see [`Cancel::checks`].
    #[must_use]
    pub fn progress(&self) -> u64 {
        self.shared.closed.checks()
    }

    /// Returns whether the sink has been created, from which time on [`Self::begins_at`] is known.
    pub fn is_ready(&mut self) -> bool {
        if self.begins_at.is_none() && self.shared.ready.load(Ordering::Acquire) {
            let at = self.shared.consumed.load(Ordering::Acquire);
            self.begins_at = Some(at);
            self.window = Window::new(at, self.room);
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
        self.window.lags(upto) || self.waiting.is_some()
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
        (self.to, self.start) = (None, None);
        (self.window, self.waiting) = (Window::new(0, 0), None);
    }

    /// As [`Self::close`], after the bytes below `upto`, all of which have arrived: the sink gets them, however many wait for it already.
    /// `reason` says why no more come.
    pub fn end(&mut self, upto: u64, reason: Reason) {
        if self.to.is_some() {
            let pieces =
                std::iter::from_fn(|| self.waiting.take().or_else(|| self.window.take(upto, true)));
            let pieces = pieces.collect();
            let mut rest = self.shared.rest.lock().unwrap_or_else(PoisonError::into_inner);
            *rest = Rest { pieces, reason };
        }
        if reason == Reason::Unknown {
            // The same stream follows once more.
            self.shared.closed.set_to_begin_again();
        }
        self.close();
    }

    /// Returns whether the thread has ended, or will never be started.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let has_ended = || self.shared.ended.load(Ordering::Acquire);
        self.start.is_none() && (self.thread.is_none() || has_ended())
    }

    /// Ends the input and waits for the thread.
    pub fn stop(&mut self) {
        (self.to, self.start) = (None, None);
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic.
            let _ = thread.join();
        }
    }
}
