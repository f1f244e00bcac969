//! Files that record the progress of an interrupted transfer: of casts, and of images.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use rackweave_cast::sink::{Folder, FolderConfig, Sink as _};
use rackweave_image::{Manifest, Packing, Progress, Target, TargetConfig, pack};

use crate::input::Input;

const STREAM: u128 = 7;
const CAST_MAGIC: &[u8] = b"rackweave cast: state of an interrupted transfer, version 3\n";

/// Any bytes as the files that an interrupted cast or image has left: the transfer begins from the start, or goes on from what is really there.
///
/// # Panics
/// If a receiver claims bytes or chunks that it has not.
pub fn state(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let Ok(folder) = tempfile::tempdir_in(memory()) else { return };
    if kind % 2 == 0 { cast(folder.path(), *kind, bytes) } else { image(folder.path(), bytes) }
}

/// A directory in memory, if there is one.
fn memory() -> &'static Path {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() { shared } else { Path::new("/tmp") }
}

fn cast(folder: &Path, kind: u8, bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut state = Vec::new();
    if kind & 2 == 0 {
        state.extend_from_slice(CAST_MAGIC);
        state.extend_from_slice(&STREAM.to_be_bytes());
    }
    let (part, blocks) = (input.block(), input.block());
    state.extend_from_slice(input.rest());
    let name = |end: &str| folder.join(format!(".rackweave-cast-{STREAM:032x}.{end}"));
    let written = fs::write(name("state"), &state)
        .and_then(|()| fs::write(name("blocks"), blocks))
        .and_then(|()| fs::write(folder.join("a.part"), part))
        .and_then(|()| fs::write(folder.join("b"), part));
    if written.is_err() {
        return;
    }
    let config = FolderConfig { folder: folder.to_owned(), ..FolderConfig::default() };
    if let Ok(mut sink) = Folder::new(config, STREAM) {
        assert!(!sink.is_complete());
        // What follows in the stream is nonsense, and refused.
        let _ = sink.put(b"nonsense");
        assert!(!sink.is_complete());
    }
}

const CHUNK: usize = 64 << 10;
const CHUNKS: usize = 4;

/// An image, and the disk that it was made of.
fn packed() -> Option<&'static (Manifest, Vec<u8>)> {
    static MADE: OnceLock<Option<(Manifest, Vec<u8>)>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let folder = tempfile::tempdir_in(memory()).ok()?;
        let (disk, file) = (folder.path().join("disk"), folder.path().join("image"));
        let bytes: Vec<u8> = (0..CHUNK * CHUNKS).map(|n| (n % 251) as u8).collect();
        fs::write(&disk, &bytes).ok()?;
        let packing = Packing { chunk_size: Some(CHUNK as u32), ..Packing::new("any") };
        Some((pack(&disk, &file, &packing, &Progress::default()).ok()?.manifest, bytes))
    });
    made.as_ref()
}

fn image(folder: &Path, bytes: &[u8]) {
    let Some((manifest, disk)) = packed() else { return };
    let mut input = Input::new(bytes);
    let path = folder.join("disk");
    let progress = Progress::default();
    let open = || Target::open(&path, manifest.clone(), &TargetConfig::default(), &progress);
    // The file that an attempt leaves which has written nothing, and the record beside it.
    let target = open().expect("a directory that can be written");
    assert_eq!(target.missing().len(), CHUNKS);
    drop(target);
    let (part, record) = (folder.join("disk.part"), folder.join("disk.part.chunks"));
    let mut claims = fs::read(&record).expect("the record of an incomplete file");
    let mut content = disk.clone();
    for _ in 0..input.below(4) {
        let at = usize::from(input.u16()) * 4 % content.len();
        content[at] = input.u8();
    }
    content.truncate(content.len() - usize::from(input.u16()));
    for _ in 0..input.below(8) {
        claims.extend_from_slice(&claim(manifest, input.u8()));
    }
    if input.u8() & 1 == 1 {
        let at = input.below(claims.len());
        claims[at] = input.u8();
    }
    claims.extend_from_slice(input.rest());
    fs::write(&part, &content).expect("a file in memory");
    fs::write(&record, claims).expect("a file in memory");
    let Ok(target) = open() else { return };
    let missing: Vec<u32> = target.missing().collect();
    for chunk in 0..CHUNKS {
        let range = chunk * CHUNK..(chunk + 1) * CHUNK;
        let is_there = content.get(range.clone()) == Some(&disk[range]);
        assert!(is_there || missing.contains(&(chunk as u32)), "chunk {chunk} is not there");
    }
}

/// The record of a chunk, as an attempt writes it.
fn claim(manifest: &Manifest, chunk: u8) -> [u8; 16] {
    let mut record = [0; 16];
    record[0] = chunk;
    let sum = blake3::keyed_hash(manifest.root(), &record[..8]);
    record[8..].copy_from_slice(&sum.as_bytes()[..8]);
    record
}
