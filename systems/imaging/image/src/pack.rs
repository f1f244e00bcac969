//! Making an image in Rackweave's format.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rackweave_disk::write_all_at;
use zstd::bulk::Compressor;

use crate::expand::compress;
use crate::free::file_systems;
use crate::manifest::{
    FOOTER, Format, HEADER, Head, Index, MAX_CHUNK, MAX_CHUNKS, MAX_NAME, MIN_CHUNK, Manifest,
    NewChunk, RECORD,
};
use crate::part::{Named, Part, resolved};
use crate::source::Source;
use crate::{ImageError, Progress, SecretKey};

/// Whether the unused blocks of file systems are skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SkipFree {
    /// They are stored.
    No,
    /// Those of ext4 file systems are skipped where they can be determined; otherwise they are stored, and
    /// [`Packed::notes`] says why.
    #[default]
    Auto,
    /// Those of ext4 file systems are skipped, and if they cannot be determined, or there is no such file system, it
    /// is an error.
    Ext4,
}

/// How an image is made.
#[derive(Clone, Debug)]
pub struct Packing {
    /// The name of the image.
    pub name: String,
    /// The size of a chunk: a power of two from 64 KiB to 16 MiB. `None`: the smallest one from 256 KiB to 1 MiB with which
    /// there are at most 2048 chunks.
    pub chunk_size: Option<u32>,
    /// The level of zstd, 1 to 22; the default is 3. It changes the stored bytes, not the content.
    pub level: u8,
    /// Whether unused blocks are skipped.
    pub skip_free: SkipFree,
    /// The key that signs the image.
    pub key: Option<SecretKey>,
    /// The number of threads that compress, at least 1. The image is the same for any number. Each needs memory for about
    /// three chunks, and zstd's own.
    pub threads: usize,
    /// Whether to replace an existing file.
    pub overwrite: bool,
    /// Whether a device that is mounted for writing may be read; its image may be inconsistent.
    pub live: bool,
    /// Whether a source is packed that is known to hold a disk in another format, such as qcow2 or gzip.
    pub raw: bool,
}

impl Packing {
    /// Returns the default for an image with this name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            chunk_size: None,
            level: 3,
            skip_free: SkipFree::default(),
            key: None,
            threads: 1,
            overwrite: false,
            live: false,
            raw: false,
        }
    }

    /// Returns the size of a chunk for a source of this length. Rackweave's choice. Hosts that fetch an image serve
    /// whole chunks only. With few large chunks they have little to serve each other before the first has arrived, and
    /// wait for the last one. Each chunk costs messages and a record in the index, so there are not more than needed
    /// (`docs/ops/imaging.md`).
    fn chunk_size_for(&self, size: u64) -> u32 {
        self.chunk_size.unwrap_or_else(|| {
            let few = |shift: &u32| size.div_ceil(1 << shift) <= MANY_CHUNKS;
            1 << (18..20).find(few).unwrap_or(20)
        })
    }

    /// Returns the size of a chunk and the number of chunks.
    fn check(&self, size: u64) -> Result<(u32, u32), ImageError> {
        let option = |text: String| Err(ImageError::Option(text));
        let chunk_size = self.chunk_size_for(size);
        if !chunk_size.is_power_of_two() || !(MIN_CHUNK..=MAX_CHUNK).contains(&chunk_size) {
            return option("the chunk size must be a power of two from 64 KiB to 16 MiB".into());
        }
        if !(1..=22).contains(&self.level) {
            return option("the compression level must be from 1 to 22".into());
        }
        if self.name.len() > MAX_NAME || self.name.chars().any(char::is_control) {
            return option("the name must have at most 255 bytes and no control characters".into());
        }
        let chunks = size.div_ceil(u64::from(chunk_size));
        match u32::try_from(chunks) {
            Ok(chunks) if chunks <= MAX_CHUNKS && fits(chunks) => Ok((chunk_size, chunks)),
            Ok(chunks) if chunks <= MAX_CHUNKS => option(TOO_LARGE.into()),
            _ => option(format!(
                "the image would have {chunks} chunks, above the limit of {MAX_CHUNKS}: choose a larger chunk size"
            )),
        }
    }
}

/// Chunks are made larger, up to 1 MiB, for an image that would have more of them.
const MANY_CHUNKS: u64 = 2048;

const TOO_LARGE: &str = "the index would be larger than 1 GiB: choose a larger chunk size";

/// Returns whether the index of this number of chunks can be small enough, so that nothing is compressed in vain.
const fn fits(chunks: u32) -> bool {
    (HEADER + FOOTER) as u64 + chunks as u64 * RECORD as u64 <= Manifest::MAX_ENCODED
}

/// What [`pack`] made.
#[derive(Debug)]
pub struct Packed {
    /// The manifest of the image.
    pub manifest: Manifest,
    /// The length of the file in bytes.
    pub length: u64,
    /// For each ext4 file system, how much of it is unused or why that is unknown, as sentences.
    pub notes: Vec<String>,
}

/// Makes an image of a regular file or a block device. It is written under another name (with the suffix `.part`) and
/// renamed when it is complete; after an error, that file is removed.
///
/// The same source and options give the same bytes, whether the source has holes or zeros, with any number of threads.
///
/// # Errors
/// If an option is invalid, the target exists, the source changes, the system refuses, or the operation is stopped.
pub fn pack(
    source: &Path,
    target: &Path,
    packing: &Packing,
    progress: &Progress,
) -> Result<Packed, ImageError> {
    let source = Source::open(source, packing.live)?;
    if !packing.raw {
        source.check_raw()?;
    }
    let (chunk_size, chunks) = packing.check(source.size)?;
    let head = Head {
        format: Format::Rackweave,
        chunk_size,
        size: source.size,
        chunks,
        level: packing.level,
        skipped_free: false,
        sector_size: source.disk_sector_size(),
        name: packing.name.clone(),
    };
    let (unused, notes) = unused(&source, packing.skip_free)?;
    let head = Head { skipped_free: unused.is_some(), ..head };
    progress.start(head.size);
    let target = Named::new(&resolved(target))?;
    let part = Part::open(target, packing.overwrite, Some(source.id()?))?;
    let written = write(&source, &part, head, &unused.unwrap_or_default(), packing, progress);
    let written = written.and_then(|written| {
        source.check_unchanged()?;
        part.finish(written.1)?;
        Ok(written)
    });
    if written.is_err() {
        part.abandon();
    }
    let (manifest, length) = written?;
    Ok(Packed { manifest, length, notes })
}

pub(crate) type Unused = Option<Vec<Range<u64>>>;

/// Returns the unused ranges, if they are skipped, and notes about them.
pub(crate) fn unused(source: &Source, skip: SkipFree) -> Result<(Unused, Vec<String>), ImageError> {
    if skip == SkipFree::No {
        return Ok((None, Vec::new()));
    }
    let refused = |why: &str| match skip {
        SkipFree::Auto => Ok(()),
        _ => Err(ImageError::Free { path: source.path.clone(), why: why.to_owned() }),
    };
    let found = match file_systems(&source.disk()) {
        Ok(found) => found,
        Err(why) => {
            refused(&why)?;
            return Ok((None, vec![format!("unused blocks are stored, because {why}")]));
        }
    };
    if found.is_empty() {
        refused("there is no ext4 file system on it")?;
    }
    let (mut all, mut notes) = (None, Vec::new());
    for system in found {
        let at = system.range.start;
        match system.unused {
            Ok(unused) => {
                let bytes: u64 = unused.iter().map(|it| it.end - it.start).sum();
                notes.push(format!("the ext4 file system at byte {at} has {bytes} unused bytes"));
                all.get_or_insert_with(Vec::new).extend(unused);
            }
            Err(why) => {
                refused(&format!("of the ext4 file system at byte {at}, {why}"))?;
                notes.push(format!(
                    "unused blocks of the ext4 file system at byte {at} are stored: {why}"
                ));
            }
        }
    }
    Ok((all, notes))
}

/// A compressed chunk that waits for its turn to be written.
struct Ready {
    chunk: NewChunk,
    stored: Vec<u8>,
}

/// What the threads that compress share with the one that writes.
#[derive(Default)]
struct Queue {
    /// The next chunk to compress.
    next: u32,
    /// The number of chunks that are written.
    written: u32,
    ready: BTreeMap<u32, io::Result<Ready>>,
    /// No further chunk is needed.
    ended: bool,
}

struct Shared<'a> {
    queue: Mutex<Queue>,
    changed: Condvar,
    source: &'a Source,
    head: &'a Head,
    unused: &'a [Range<u64>],
    /// How many chunks may be between the one that is written and the one that is read.
    window: u32,
}

impl Shared<'_> {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while a condition holds.
    fn wait(&self, condition: impl Fn(&mut Queue) -> bool) -> MutexGuard<'_, Queue> {
        let waited = self.changed.wait_while(self.lock(), condition);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Compresses chunks until there are no more.
    fn work(&self) {
        let _guard = EndOnPanic(self);
        let mut compressor = Compressor::new(i32::from(self.head.level));
        let (mut bytes, mut data, mut room) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let full = |queue: &mut Queue| {
                !queue.ended
                    && queue.next < self.head.chunks
                    && queue.next - queue.written >= self.window
            };
            let mut queue = self.wait(full);
            if queue.ended || queue.next == self.head.chunks {
                return;
            }
            let number = queue.next;
            queue.next += 1;
            drop(queue);
            let made = compressor.as_mut().map_err(|error| io::Error::other(error.to_string()));
            let made = made.and_then(|compressor| {
                let range = self.head.range(number);
                let extents = self.source.read(&range, self.unused, &mut bytes)?;
                data.clear();
                for extent in extents.iter().filter(|it| !it.zero) {
                    let start = (extent.start - range.start) as usize;
                    data.extend_from_slice(&bytes[start..start + extent.len as usize]);
                }
                let (codec, stored) = compress(compressor, &data, &mut room);
                let chunk = NewChunk::new(codec, stored, extents, &data);
                Ok(Ready { chunk, stored: stored.to_vec() })
            });
            self.lock().ready.insert(number, made);
            self.changed.notify_all();
        }
    }

    /// Returns the next chunk in order.
    fn take(&self, number: u32) -> io::Result<Ready> {
        loop {
            let mut queue = self.wait(|queue| !queue.ended && !queue.ready.contains_key(&number));
            if let Some(ready) = queue.ready.remove(&number) {
                queue.written = number + 1;
                drop(queue);
                self.changed.notify_all();
                return ready;
            }
            if queue.ended {
                return Err(io::Error::other("a thread that compresses has panicked"));
            }
        }
    }

    fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }
}

/// Ends the queue if a thread panics, so that nobody waits for its chunk.
struct EndOnPanic<'a>(&'a Shared<'a>);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
        }
    }
}

/// Writes the whole file.
fn write(
    source: &Source,
    part: &Part,
    head: Head,
    unused: &[Range<u64>],
    packing: &Packing,
    progress: &Progress,
) -> Result<(Manifest, u64), ImageError> {
    let wrong = ImageError::write(part.path());
    // What an interrupted attempt has left.
    part.file().set_len(0).map_err(&wrong)?;
    let threads = packing.threads.clamp(1, 256);
    let shared = Shared {
        queue: Mutex::default(),
        changed: Condvar::new(),
        source,
        head: &head,
        unused,
        window: 2 * threads as u32,
    };
    let mut index = Index::default();
    let mut offset = HEADER as u64;
    let mut chunks = || {
        write_all_at(part.file(), &[0; HEADER], 0).map_err(&wrong)?;
        for number in 0..head.chunks {
            if progress.is_stopped() {
                return Err(ImageError::Interrupted);
            }
            let ready = shared.take(number).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => ImageError::Changed(source.path.clone()),
                _ => ImageError::read(&source.path)(error),
            })?;
            write_all_at(part.file(), &ready.stored, offset).map_err(&wrong)?;
            index.push(offset, &ready.chunk);
            offset += ready.stored.len() as u64;
            let range = head.range(number);
            progress.advance(range.end - range.start);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| shared.work());
        }
        let result = chunks();
        shared.end();
        result
    })?;
    let manifest = index.finish(head, packing.key.as_ref());
    let encoded = manifest.encode();
    if encoded.len() as u64 > Manifest::MAX_ENCODED {
        return Err(ImageError::Option(TOO_LARGE.into()));
    }
    let (header, tail) = encoded.split_at(HEADER);
    debug_assert!(tail.len() >= FOOTER, "the footer has a fixed length");
    write_all_at(part.file(), tail, offset).map_err(&wrong)?;
    write_all_at(part.file(), header, 0).map_err(&wrong)?;
    Ok((manifest, offset + tail.len() as u64))
}
