//! The path from packets to a sink: a window that puts received bytes in order, and the work of writing them, which may block on a disk.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use bytes::Bytes;
use rackweave_wire::orca::Reason;

use super::window::{Piece, Window};
use super::{Answer, Caveats, FileDone, Sink, SinkError};
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
    /// Whether the work has dropped the sink, whose files are unlocked then.
    ended: AtomicBool,
    content: AtomicU64,
    expected: AtomicU64,
    rest: Mutex<Rest>,
    outcome: Mutex<Outcome>,
}

/// What the work still gets when the input has ended.
struct Rest {
    pieces: VecDeque<Piece>,
    /// Why the input has ended.
    reason: Reason,
}

#[derive(Default)]
struct Outcome {
    error: Option<SinkError>,
    files: Vec<FileDone>,
    answer: Option<Answer>,
    caveats: Caveats,
}

/// The receiving end of a sink: its window, and what it shares with the [`SinkWork`] that feeds it.
pub struct Drain {
    window: Window,
    to: Option<SyncSender<Piece>>,
    back: Receiver<Arc<Vec<u8>>>,
    waiting: Option<Piece>,
    shared: Arc<Shared>,
    /// The work, before it is started.
    work: Option<SinkWork>,
    begins_at: Option<u64>,
    room: u64,
}

impl std::fmt::Debug for Drain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drain").field("window", &self.window.given()).finish_non_exhaustive()
    }
}

/// The work of a sink; each step may block on a disk. On a host a thread runs it ([`SinkWork::start`]); a simulator takes one
/// [`SinkTask`] after another ([`SinkWork::poll`]), and does each when the disk that it simulates has had the time for it.
pub struct SinkWork {
    /// `None` once the sink is there, or is not needed.
    make: Option<MakeSink>,
    sink: Option<Box<dyn Sink>>,
    /// The offset of the next byte.
    next: u64,
    has_ended: bool,
    from: Receiver<Piece>,
    back: SyncSender<Arc<Vec<u8>>>,
    waker: Waker,
    shared: Arc<Shared>,
}

/// One step of a [`SinkWork`].
pub struct SinkTask(Task);

enum Task {
    /// Creates the sink.
    Make,
    /// Passes bytes to it.
    Put(Piece),
    /// Says to it that no more come.
    End,
}

impl SinkTask {
    /// Returns how many bytes it passes to the sink; `None` if it creates the sink, which reads existing files.
    #[must_use]
    pub const fn bytes(&self) -> Option<usize> {
        match &self.0 {
            Task::Make => None,
            Task::Put(piece) => Some(piece.to - piece.from),
            Task::End => Some(0),
        }
    }
}

impl std::fmt::Debug for SinkTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SinkTask").field("bytes", &self.bytes()).finish()
    }
}

impl std::fmt::Debug for SinkWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SinkWork").field("next", &self.next).finish_non_exhaustive()
    }
}

/// Wakes the engine when the work ends, since another one may wait for that. A sink that panics has failed.
impl Drop for SinkWork {
    fn drop(&mut self) {
        let _end = OnEnd { shared: &self.shared, waker: &self.waker };
        (self.make, self.sink) = (None, None);
    }
}

/// Says that the work has ended, also if the sink panics while it is dropped.
struct OnEnd<'a> {
    shared: &'a Shared,
    waker: &'a Waker,
}

impl Drop for OnEnd<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.failed.store(true, Ordering::Release);
        }
        self.shared.ended.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl SinkWork {
    /// Starts a thread that does the work.
    ///
    /// # Errors
    /// If the system refuses one.
    pub fn start(mut self) -> std::io::Result<()> {
        let run = move || {
            // Dropping the other end of the channel ends the wait.
            while let Some(task) =
                self.next(|from| from.recv().map_err(|_| TryRecvError::Disconnected))
            {
                self.run(task);
            }
        };
        std::thread::Builder::new().name("cast output".into()).spawn(run).map(drop)
    }

    /// Returns the next task, which [`Self::run`] does; [`Poll::Pending`] if there is none yet, and `None` once the work has ended.
    pub fn poll(&mut self) -> Poll<Option<SinkTask>> {
        let mut is_empty = false;
        let task = self.next(|from| {
            from.try_recv().inspect_err(|error| is_empty = *error == TryRecvError::Empty)
        });
        if is_empty { Poll::Pending } else { Poll::Ready(task) }
    }

    /// Returns whether no bytes will come any more, so that a sink that is still to be created is not needed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.closed.is_set()
    }

    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.shared.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(
        &mut self,
        receive: impl FnOnce(&Receiver<Piece>) -> Result<Piece, TryRecvError>,
    ) -> Option<SinkTask> {
        if self.has_ended {
            return None;
        }
        if self.make.is_some() {
            return Some(SinkTask(Task::Make));
        }
        Some(SinkTask(match receive(&self.from) {
            Ok(piece) => Task::Put(piece),
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => match self.rest().pieces.pop_front() {
                Some(piece) => Task::Put(piece),
                None => Task::End,
            },
        }))
    }

    /// Does a task; there is one at a time.
    pub fn run(&mut self, SinkTask(task): SinkTask) {
        match task {
            Task::Make => self.make(),
            Task::Put(piece) => self.put(piece),
            Task::End => {
                let reason = self.rest().reason;
                if let Some(sink) = self.sink.as_mut().filter(|sink| !sink.is_complete()) {
                    sink.interrupted(reason);
                }
                self.has_ended = true;
            }
        }
    }

    fn end_with(&self, outcome: Outcome) {
        *self.shared.outcome.lock().unwrap_or_else(PoisonError::into_inner) = outcome;
    }

    fn make(&mut self) {
        let Some(make) = self.make.take().filter(|_| !self.shared.closed.is_set()) else {
            self.has_ended = true;
            return;
        };
        match make(&self.shared.closed) {
            Ok(sink) => {
                self.next = sink.begins_at();
                self.sink = Some(sink);
                self.shared.consumed.store(self.next, Ordering::Release);
                self.shared.ready.store(true, Ordering::Release);
            }
            Err(error) => {
                self.end_with(Outcome { error: Some(error), ..Outcome::default() });
                self.shared.failed.store(true, Ordering::Release);
                self.has_ended = true;
            }
        }
        self.waker.wake();
    }

    fn put(&mut self, piece: Piece) {
        let Some(sink) = &mut self.sink else { return };
        if piece.at > self.next {
            sink.omit_rest();
        }
        self.next = piece.at + (piece.to - piece.from) as u64;
        let lent = Bytes::from_owner(LentBlock { block: piece.block, back: self.back.clone() });
        let result = sink.put_shared(&lent.slice(piece.from..piece.to));
        drop(lent);
        let (content, expected) = sink.content();
        let (complete, failed) = (sink.is_complete(), result.is_err());
        let answer = sink.answer();
        let files = if complete || failed { sink.files() } else { Vec::new() };
        let (needs_from, caveats) = (sink.needs_from(), sink.caveats());
        let shared = &self.shared;
        shared.content.store(content, Ordering::Relaxed);
        shared.expected.store(expected.unwrap_or(u64::MAX), Ordering::Relaxed);
        if complete || failed {
            self.end_with(Outcome { error: result.err(), files, answer, caveats });
        }
        // This is stored before `consumed`, so that a thread that sees all bytes consumed also sees the outcome.
        shared.complete.store(complete, Ordering::Release);
        shared.failed.store(failed, Ordering::Release);
        shared.consumed.store(needs_from.unwrap_or(self.next).max(self.next), Ordering::Release);
        self.waker.wake();
        self.has_ended = failed;
    }
}

/// Creates a sink, in the [`SinkWork`] that will feed it: reading what an earlier attempt stored may take long, and ends when the input does
/// if the sink gets the argument ([`FolderConfig::cancel`](super::FolderConfig::cancel)).
pub type MakeSink = Box<dyn FnOnce(&Cancel) -> Result<Box<dyn Sink>, SinkError> + Send>;

impl Drain {
    /// Returns the size in bytes of the window with which the sink was started.
    #[must_use]
    pub const fn room(&self) -> u64 {
        self.room
    }

    /// Returns what is given to [`Self::begin`] later, so that the work of another sink with the same files can end before. The window
    /// holds `room` bytes that arrive out of order. Bytes may be stored only after [`Self::is_ready`] has returned true.
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
        let work = SinkWork {
            make: Some(make),
            sink: None,
            next: 0,
            has_ended: false,
            from,
            back: give_back,
            waker,
            shared: Arc::clone(&shared),
        };
        Self {
            window: Window::new(0, room),
            room,
            to: Some(to),
            back,
            waiting: None,
            shared,
            work: Some(work),
            begins_at: None,
        }
    }

    /// Returns whether the work is still to be started.
    #[must_use]
    pub const fn is_pending(&self) -> bool {
        self.work.is_some()
    }

    /// Starts the work by this function, [`SinkWork::start`] on a host; no effect if it was started before.
    ///
    /// # Errors
    /// That of the function. It is not tried once more.
    pub fn begin(
        &mut self,
        start: impl FnOnce(SinkWork) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        self.work.take().map_or(Ok(()), start)
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

    /// Returns the answer to a manifest that is complete.
    pub(crate) fn answer(&self) -> Option<Answer> {
        self.shared.outcome.lock().unwrap_or_else(PoisonError::into_inner).answer.take()
    }

    /// Returns [`Sink::caveats`] of a sink that has ended.
    #[must_use]
    pub fn caveats(&self) -> Caveats {
        self.shared.outcome.lock().unwrap_or_else(PoisonError::into_inner).caveats
    }

    /// Ends the input. The sink finishes with what it was given, without further waiting here, unless it reads files that are there
    /// already: that ends, and with it the sink.
    pub fn close(&mut self) {
        self.shared.closed.set();
        (self.to, self.work) = (None, None);
        (self.window, self.waiting) = (Window::new(0, 0), None);
    }

    /// As [`Self::close`], after the bytes below `upto`. All of them have arrived: the sink gets them, however many wait for it already.
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

    /// Returns whether the work has ended, or will never be started.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }
}
