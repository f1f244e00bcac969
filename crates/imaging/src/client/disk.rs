//! A client's disk: a thread that expands and writes chunks, and the chunks that are kept in memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rackweave_image::{ImageError, Progress, StoredChunk, Target};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// What the thread is to do.
#[derive(Debug)]
enum Work {
    Write(StoredChunk),
    /// All chunks are written.
    Finish,
}

/// What the thread has done.
#[derive(Debug)]
pub(super) enum Done {
    Written(u32),
    Failed(ImageError),
    Finished,
}

/// Chunks that the thread has and has not written. More are not passed to it.
const MOST_PASSED: usize = 4;

/// The thread that writes the target.
#[derive(Debug)]
pub(super) struct Disk {
    work: Sender<Work>,
    pub(super) done: UnboundedReceiver<Done>,
    passed: usize,
}

impl Disk {
    /// Starts the thread.
    pub(super) fn start(target: Target, progress: Arc<Progress>) -> std::io::Result<Self> {
        let (work, queue) = channel();
        let (report, done) = unbounded_channel();
        let run = move || write_all(target, &queue, &report, &progress);
        std::thread::Builder::new().name("disk".into()).spawn(run)?;
        Ok(Self { work, done, passed: 0 })
    }

    /// Whether it takes another chunk.
    pub(super) const fn has_room(&self) -> bool {
        self.passed < MOST_PASSED
    }

    /// Whether chunks that were passed to it are not written yet.
    pub(super) const fn is_busy(&self) -> bool {
        self.passed > 0
    }

    /// Writes a chunk.
    pub(super) fn write(&mut self, chunk: StoredChunk) {
        self.passed += 1;
        // If the thread has ended, it has reported why.
        let _ = self.work.send(Work::Write(chunk));
    }

    /// Completes the target.
    pub(super) fn finish(&self) {
        let _ = self.work.send(Work::Finish);
    }

    /// A chunk was written.
    pub(super) const fn written(&mut self) {
        self.passed -= 1;
    }
}

fn write_all(
    mut target: Target,
    queue: &Receiver<Work>,
    report: &UnboundedSender<Done>,
    progress: &Progress,
) {
    while let Ok(work) = queue.recv() {
        let done = match work {
            Work::Write(chunk) => {
                target.write_verified(&chunk).map(|()| Done::Written(chunk.number()))
            }
            Work::Finish => {
                let finished = target.finish(progress).map(|()| Done::Finished);
                let _ = report.send(finished.unwrap_or_else(Done::Failed));
                return;
            }
        };
        let failed = done.is_err();
        // Nobody listens if the client has ended.
        if report.send(done.unwrap_or_else(Done::Failed)).is_err() || failed {
            return;
        }
    }
}

/// The most bytes of chunks that are kept although they are on the target as they are stored. Others ask for a chunk soon after it has
/// arrived, if at all; later it is read from the target, which is in the system's memory once more.
const MOST_RAW: u64 = 32 << 20;

/// The stored chunks that a client keeps in memory: those that are not written yet, and as many others as its limits permit.
#[derive(Debug)]
pub(super) struct Cache {
    chunks: BTreeMap<u32, Entry>,
    compressed: Kept,
    raw: Kept,
}

#[derive(Debug)]
struct Entry {
    chunk: StoredChunk,
    is_raw: bool,
}

/// What is in memory of the chunks that are stored raw, or of the others.
#[derive(Debug)]
struct Kept {
    /// Those that are written, the oldest first.
    written: VecDeque<u32>,
    /// Bytes of all that are in memory.
    bytes: u64,
    limit: u64,
}

impl Kept {
    const fn new(limit: u64) -> Self {
        Self { written: VecDeque::new(), bytes: 0, limit }
    }
}

impl Cache {
    /// With a limit of 0 bytes, chunks are not kept after they are written.
    pub(super) const fn new(limit: u64) -> Self {
        let raw = if limit < MOST_RAW { limit } else { MOST_RAW };
        Self { chunks: BTreeMap::new(), compressed: Kept::new(limit - raw), raw: Kept::new(raw) }
    }

    /// Keeps a chunk at least until it is written. Of a raw one the stored bytes are those that are written to the target.
    pub(super) fn insert(&mut self, chunk: StoredChunk, is_raw: bool) {
        let number = chunk.number();
        let bytes = chunk.bytes().len() as u64;
        if self.chunks.insert(number, Entry { chunk, is_raw }).is_none() {
            self.kept(is_raw).bytes += bytes;
        }
    }

    pub(super) fn get(&self, chunk: u32) -> Option<&StoredChunk> {
        self.chunks.get(&chunk).map(|entry| &entry.chunk)
    }

    /// A chunk is written, so that it may be forgotten.
    pub(super) fn written(&mut self, chunk: u32) {
        let Some(entry) = self.chunks.get(&chunk) else { return };
        let kept = if entry.is_raw { &mut self.raw } else { &mut self.compressed };
        kept.written.push_back(chunk);
        while kept.bytes > kept.limit
            && let Some(oldest) = kept.written.pop_front()
        {
            if let Some(gone) = self.chunks.remove(&oldest) {
                kept.bytes -= gone.chunk.bytes().len() as u64;
            }
        }
    }

    const fn kept(&mut self, is_raw: bool) -> &mut Kept {
        if is_raw { &mut self.raw } else { &mut self.compressed }
    }
}
