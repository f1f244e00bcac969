//! Files that a process leaves for the next one: the progress of an interrupted cast or image, and tickets of early calls.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use rackweave_cast::format::{self, FileHeader, RecordKind};
use rackweave_cast::sink::{Folder, FolderConfig, Sink as _};
use rackweave_image::{Manifest, Packing, Progress, Target, TargetConfig, pack};
use rackweave_linux::endpoint::{MAX_TICKETS, TicketStore};

use crate::input::Input;

/// The kind of inputs that are files of tickets.
const TICKETS: u8 = 255;

const STREAM: u128 = 7;
const CAST_MAGIC: &[u8] = b"rackweave cast: state of an interrupted transfer, version 4\n";

/// The length in bytes of the number of the stream, which follows.
const CAST_NUMBERS: usize = 16;

/// Any bytes as a file of tickets, or as the files that an interrupted cast or image has left: the transfer begins from the start, or goes on from what is really there.
///
/// # Panics
/// If a receiver claims bytes or chunks that it has not.
pub fn state(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    if *kind == TICKETS {
        return tickets(bytes);
    }
    let Ok(folder) = tempfile::tempdir_in(memory()) else { return };
    if kind % 2 == 0 {
        cast(folder.path(), *kind, bytes);
    } else {
        image(folder.path(), bytes);
    }
}

/// Any bytes as a file of tickets of early calls: they are refused, or what was read is the same after it was written
/// and read again.
fn tickets(bytes: &[u8]) {
    if let Ok(store) = TicketStore::from_bytes(bytes) {
        assert!(store.len() <= MAX_TICKETS && store.addresses().count() == store.len());
        assert_eq!(TicketStore::from_bytes(&store.to_bytes()), Ok(store));
    }
}

/// A directory in memory, if there is one.
fn memory() -> &'static Path {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() { shared } else { Path::new("/tmp") }
}

/// The name of the state: all streams of a cast share the upper half of their numbers.
fn state_name() -> String {
    format!(".rackweave-cast-{:016x}.state", STREAM >> 64)
}

/// The name of the table of blocks of the file `a`.
fn blocks_name() -> String {
    format!(".rackweave-cast-{}.blocks", &blake3::hash(b"a").to_hex()[..32])
}

/// What the state of a cast begins with on this machine, from a cast that ends after its first record.
fn head() -> &'static [u8] {
    static MADE: OnceLock<Vec<u8>> = OnceLock::new();
    MADE.get_or_init(|| {
        let folder = tempfile::tempdir_in(memory()).expect("a directory in memory");
        let config = FolderConfig { folder: folder.path().to_owned(), ..FolderConfig::default() };
        let mut sink = Folder::new(config, STREAM).expect("an empty directory");
        let mut stream = Vec::new();
        format::start(&mut stream);
        format::file(&large_file(), &mut stream);
        sink.put(&stream).expect("a stream's beginning");
        drop(sink);
        let state = fs::read(folder.path().join(state_name())).expect("its state");
        assert!(state.starts_with(CAST_MAGIC), "the format of states has changed");
        state[..CAST_MAGIC.len() + CAST_NUMBERS].to_vec()
    })
}

/// A file that is large enough to be resumed.
fn large_file() -> FileHeader {
    FileHeader {
        attributes: None,
        owner: None,
        path: b"a".to_vec(),
        kind: RecordKind::File,
        length: Some(10 << 20),
        mode: 0o644,
        mtime_s: 1,
        mtime_ns: 2,
    }
}

/// Goes on with a cast that has left these files, and returns at which byte of the stream.
fn cast(folder: &Path, kind: u8, bytes: &[u8]) -> Option<u64> {
    let mut input = Input::new(bytes);
    let (part, blocks) = (input.block(), input.block());
    let mut state = Vec::new();
    if kind & 2 == 0 {
        state.extend_from_slice(head());
        // Entries, with their checksums, which random changes never hit.
        while kind & 4 == 0 && !input.is_empty() {
            let entry = input.block();
            let mut hasher = blake3::Hasher::new();
            hasher.update(&STREAM.to_be_bytes()).update(entry);
            state.extend_from_slice(entry);
            state.extend_from_slice(&hasher.finalize().as_bytes()[..8]);
        }
    }
    state.extend_from_slice(input.rest());
    let written = fs::write(folder.join(state_name()), &state)
        .and_then(|()| fs::write(folder.join(blocks_name()), blocks))
        .and_then(|()| fs::write(folder.join("a.part"), part))
        .and_then(|()| fs::write(folder.join("b"), part));
    written.ok()?;
    let config = FolderConfig { folder: folder.to_owned(), ..FolderConfig::default() };
    let mut sink = Folder::new(config, STREAM).ok()?;
    assert!(!sink.is_complete());
    let begins_at = sink.begins_at();
    // What follows in the stream is nonsense, and refused.
    let _ = sink.put(b"nonsense");
    assert!(!sink.is_complete());
    Some(begins_at)
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
    // The file that an attempt leaves which has written nothing, and the record next to it.
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn number(of: u64) -> [u8; 8] {
        of.to_be_bytes()
    }

    /// An entry about a file or directory: the position after it, or, for one that begins, of its first byte.
    fn entry(tag: u8, place: [u64; 3], hash: &[u8], header: &FileHeader) -> Vec<u8> {
        let mut record = Vec::new();
        format::file(header, &mut record);
        let mut entry = vec![tag];
        entry.extend(place.iter().chain([&(record.len() as u64)]).flat_map(|of| number(*of)));
        [entry, hash.to_vec(), record].concat()
    }

    /// The seeds that are entries of states, and where in the stream the cast goes on.
    fn seeds() -> Vec<(&'static str, Vec<Vec<u8>>, u64)> {
        let large = large_file();
        let short = FileHeader { path: b"b".to_vec(), length: Some(4), ..large.clone() };
        let absent = FileHeader { path: b"c".to_vec(), length: Some(1), ..large.clone() };
        let directory = FileHeader {
            path: b"d".to_vec(),
            kind: RecordKind::Directory,
            length: None,
            ..large.clone()
        };
        let named = |path: &[u8], kind: RecordKind| {
            let (path, length) = (path.to_vec(), Some(0));
            FileHeader { path, kind, length, ..large.clone() }
        };
        let link = |path: &[u8], to: &[u8]| named(path, RecordKind::HardLink(to.to_vec()));
        let hash = *blake3::hash(b"abcd").as_bytes();
        let done = entry(b'D', [500, 1, 4], &hash, &short);
        let begun = |at, files, bytes| entry(b'F', [at, files, bytes], &[], &large);
        let large_done = entry(b'D', [900, 1, 10 << 20], &[7; 32], &large);
        vec![
            ("cast_begun", vec![], 0),
            ("cast_done", vec![done.clone()], 500),
            (
                "cast_done_and_absent",
                vec![done.clone(), entry(b'D', [800, 2, 5], &[7; 32], &absent)],
                500,
            ),
            (
                "cast_link_absent",
                vec![done.clone(), entry(b'L', [600, 2, 4], &[], &link(b"l", b"b"))],
                500,
            ),
            ("cast_link_to_itself", vec![entry(b'L', [600, 1, 0], &[], &link(b"a", b"a"))], 0),
            ("cast_done_of_another", vec![entry(b'D', [500, 1, 4], &[7; 32], &short)], 0),
            ("cast_directory_absent", vec![entry(b'P', [400, 1, 0], &[], &directory)], 0),
            ("cast_file", vec![begun(700, 0, 0)], 700),
            ("cast_done_then_file", vec![done, begun(700, 1, 4)], 700),
            ("cast_file_then_done", vec![begun(700, 0, 0), large_done], 700),
            ("cast_at_beyond_48_bits", vec![entry(b'D', [1 << 48, 1, 4], &hash, &short)], 0),
        ]
    }

    /// If this fails because the format has changed, run it with `RACKWEAVE_WRITE_SEEDS=1`.
    #[test]
    fn the_seeds_of_casts_are_of_the_present_format() {
        let corpus: PathBuf =
            [env!("CARGO_MANIFEST_DIR"), "..", "..", "fuzz", "corpus", "state"].iter().collect();
        for (name, entries, begins_at) in seeds() {
            // An even kind: of a cast, with its head and with checksums. Then the bytes of the two files next to it.
            let mut seed = vec![0, 4, b'a', b'b', b'c', b'd', 0];
            for entry in &entries {
                seed.push(u8::try_from(entry.len()).expect("a short entry"));
                seed.extend_from_slice(entry);
            }
            let path = corpus.join(name);
            if std::env::var_os("RACKWEAVE_WRITE_SEEDS").is_some() {
                fs::write(&path, &seed).unwrap();
            }
            assert_eq!(fs::read(&path).ok(), Some(seed.clone()), "{}", path.display());
            let folder = tempfile::tempdir_in(memory()).unwrap();
            assert_eq!(cast(folder.path(), 0, &seed[1..]), Some(begins_at), "{name}");
        }
    }
}
