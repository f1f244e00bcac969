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

/// The stored chunks that a client keeps in memory: all unwritten ones, and as many others as its limits permit.
#[derive(Debug)]
pub(super) struct Cache {
    chunks: BTreeMap<u32, Entry>,
    compressed: Kept,
    raw: Kept,
    /// The most bytes of both.
    limit: u64,
}

#[derive(Debug)]
struct Entry {
    chunk: StoredChunk,
    is_raw: bool,
}

/// What is in memory of the chunks that are stored raw, or of the others.
#[derive(Debug, Default)]
struct Kept {
    /// The written ones, the oldest first.
    written: VecDeque<u32>,
    /// Bytes of all that are in memory.
    bytes: u64,
}

impl Cache {
    /// With a limit of 0 bytes, chunks are not kept after they are written.
    pub(super) fn new(limit: u64) -> Self {
        let (compressed, raw) = (Kept::default(), Kept::default());
        Self { chunks: BTreeMap::new(), compressed, raw, limit }
    }

    /// Keeps a chunk at least until it is written. The target gets the stored bytes of a raw chunk.
    pub(super) fn insert(&mut self, chunk: StoredChunk, is_raw: bool) {
        let bytes = chunk.bytes().len() as u64;
        if self.chunks.insert(chunk.number(), Entry { chunk, is_raw }).is_none() {
            self.kept(is_raw).bytes += bytes;
        }
    }

    pub(super) fn get(&self, chunk: u32) -> Option<&StoredChunk> {
        self.chunks.get(&chunk).map(|entry| &entry.chunk)
    }

    /// A chunk is written, so that it may be forgotten. Raw ones are forgotten first: they are read back without work.
    pub(super) fn written(&mut self, chunk: u32) {
        let Some(is_raw) = self.chunks.get(&chunk).map(|entry| entry.is_raw) else { return };
        self.kept(is_raw).written.push_back(chunk);
        while self.raw.bytes > MOST_RAW && self.forget(true) {}
        while self.raw.bytes + self.compressed.bytes > self.limit
            && (self.forget(true) || self.forget(false))
        {}
    }

    /// Forgets the oldest written chunk of a kind. Returns whether there was one.
    fn forget(&mut self, is_raw: bool) -> bool {
        let Some(oldest) = self.kept(is_raw).written.pop_front() else { return false };
        if let Some(gone) = self.chunks.remove(&oldest) {
            self.kept(is_raw).bytes -= gone.chunk.bytes().len() as u64;
        }
        true
    }

    const fn kept(&mut self, is_raw: bool) -> &mut Kept {
        if is_raw { &mut self.raw } else { &mut self.compressed }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rackweave_core::Rng;
    use rackweave_image::{Image, Packing, pack};

    use super::*;

    const CHUNK: usize = 256 << 10;

    /// The even chunks of the image are stored raw, the odd ones compressed to half their size or less.
    fn chunks(count: usize) -> Vec<(StoredChunk, bool)> {
        let folder = tempfile::tempdir().unwrap();
        let (raw, image) = (folder.path().join("disk"), folder.path().join("image"));
        let mut disk = vec![0; count * CHUNK];
        for (number, chunk) in disk.chunks_mut(CHUNK).enumerate() {
            let noise = if number % 2 == 0 { CHUNK } else { CHUNK / 2 };
            let mut rng = Rng::stream(number as u64, 0, 0, "disk");
            for word in chunk[..noise].chunks_mut(8) {
                word.copy_from_slice(&rng.next_u64().to_le_bytes());
            }
            chunk[noise..].fill(7);
        }
        fs::write(&raw, disk).unwrap();
        let packing = Packing { chunk_size: Some(CHUNK as u32), ..Packing::new("i") };
        pack(&raw, &image, &packing, &Progress::default()).unwrap();
        let image = Image::open(&image, &Progress::default()).unwrap();
        let read = |number: u32| {
            let mut bytes = Vec::new();
            image.read(number, &mut bytes).unwrap();
            let is_raw = bytes.len() == CHUNK;
            assert_eq!(is_raw, number.is_multiple_of(2));
            (StoredChunk::verify(image.manifest(), number, bytes.into()).unwrap(), is_raw)
        };
        (0..count as u32).map(read).collect()
    }

    #[test]
    fn raw_chunks_are_forgotten_first_and_compressed_ones_by_the_limit() {
        let chunks = chunks(8);
        let limit = 5 * CHUNK as u64 / 2;
        let mut cache = Cache::new(limit);
        for (number, (chunk, is_raw)) in chunks.iter().enumerate() {
            cache.insert(chunk.clone(), *is_raw);
            assert!(cache.get(number as u32).is_some(), "it is not written");
            cache.written(number as u32);
        }
        let left: Vec<u32> = (0..8).filter(|number| cache.get(*number).is_some()).collect();
        assert_eq!(left, [1, 3, 5, 7], "compressed ones need all the room that there is");
        assert!(cache.raw.bytes + cache.compressed.bytes <= limit && cache.raw.bytes == 0);
        let mut cache = Cache::new(0);
        cache.insert(chunks[1].0.clone(), false);
        cache.written(1);
        assert!(cache.get(1).is_none() && cache.compressed.bytes == 0);
    }

    #[test]
    fn raw_chunks_are_bounded_where_there_is_room_for_more() {
        let (chunk, _) = chunks(1).remove(0);
        let mut cache = Cache::new(1 << 40);
        cache.raw.bytes = MOST_RAW;
        cache.insert(chunk, true);
        cache.written(0);
        assert!(cache.get(0).is_none());
    }
}
