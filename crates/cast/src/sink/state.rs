//! The progress of a received stream, in a small file beside the received files, from which a restarted receiver
//! resumes.
//!
//! The file is a line of text that names the format and its version, then the stream's number and that of the machine's
//! start ([`Directory::boot`](crate::store::disk::Directory::boot)), then entries, which are only appended. The store
//! ([`crate::store`]) records which chunks of the current file are present.
//!
//! Nothing of it is synced to the disk. An entry has a checksum, because a power failure may leave only some of its bytes.
//! What it says of the current file is checked against that file. That earlier files are complete is not, so that it counts only
//! while the machine has not started again (where the system does not tell, it always counts): a power failure may have taken them,
//! and left the state. Those files are then
//! looked for, and hashed, as the stream comes to them.

use std::ffi::OsString;
use std::io::{self, Read as _};

use crate::format::{DecodeError, Decoder, FileHeader, HASH, Hash, Resume, Visitor};
use crate::store::disk::{DiskFile, Reading, write_all_at};
use crate::store::{Dir, Entry, fault};

const MAGIC: &[u8] = b"rackweave cast: state of an interrupted transfer, version 3\n";

/// Tag of the entry for the start of a file.
const FILE: u8 = b'F';
/// Tag of the entry for a file that is complete and has its final name.
const DONE: u8 = b'D';
/// Tag of the entry for a directory, which gets its mode and time at the end, perhaps in a later attempt.
const DIRECTORY: u8 = b'P';
/// Tag of the entry that precedes the final renaming of a file: it has the `DONE` entry that will follow, and the
/// identity of the file. After an interruption between the two, the file is found in its place.
const NAMING: u8 = b'N';

/// The number of a machine's start that is recorded if it is not known, as where `/proc` is hidden. All starts are then taken for
/// the same one.
const NO_BOOT: u128 = 0;

/// The length in bytes of an entry's checksum.
const SUM: usize = 8;

/// The largest number of bytes that are read of a state.
const MAX_STATE: u64 = 1 << 30;

/// A state that has grown by `SLACK` bytes, and to `SLACK_FACTOR` times the size of its last compaction, is compacted.
const SLACK: u64 = 1 << 18;
const SLACK_FACTOR: u64 = 4;

/// The state of a stream, open for appending.
#[derive(Debug)]
pub(super) struct State {
    dir: Dir,
    stream: u128,
    file: Box<dyn DiskFile>,
    bytes: u64,
    /// The length in bytes after the last compaction.
    compacted: u64,
}

/// Returns the file name of a stream's state.
pub(super) fn name(stream: u128) -> OsString {
    format!(".rackweave-cast-{stream:032x}.state").into()
}

/// Returns the file name of a state that is being compacted.
fn temporary_name(stream: u128) -> OsString {
    format!(".rackweave-cast-{stream:032x}.new").into()
}

/// Returns the file name of the block table of a stream's current file.
pub(super) fn table_name(stream: u128) -> OsString {
    format!(".rackweave-cast-{stream:032x}.blocks").into()
}

/// A file that was about to get its final name.
#[derive(Debug)]
struct Naming {
    header: FileHeader,
    hash: Hash,
    /// Where the stream continues if the file has got its name.
    done: Resume,
}

/// The state that an earlier attempt has left.
#[derive(Debug)]
pub(super) struct Found {
    /// The position after the last complete file, or at the first chunk of the current file.
    pub(super) resume: Resume,
    /// The directories before that position.
    pub(super) directories: Vec<FileHeader>,
    /// The path of the file that is incomplete.
    pub(super) under_way: Option<Vec<u8>>,
}

impl State {
    /// Creates an empty state.
    pub(super) fn create(dir: &Dir, stream: u128) -> io::Result<Self> {
        let mut this = Self::create_temporary(dir, stream)?;
        this.publish()?;
        Ok(this)
    }

    /// Creates the file under another name, so that the previous state stays until this one is complete, and no link is
    /// followed.
    fn create_temporary(dir: &Dir, stream: u128) -> io::Result<Self> {
        let aside = dir.entry(&temporary_name(stream));
        aside.remove()?;
        let file = aside.create()?;
        let mut this = Self { dir: dir.clone(), stream, file, bytes: 0, compacted: 0 };
        this.write(MAGIC)?;
        this.write(&stream.to_be_bytes())?;
        this.write(&dir.boot().unwrap_or(NO_BOOT).to_be_bytes())?;
        Ok(this)
    }

    fn publish(&mut self) -> io::Result<()> {
        self.compacted = self.bytes;
        self.dir.entry(&temporary_name(self.stream)).rename(&self.dir.entry(&name(self.stream)))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        fault::step()?;
        write_all_at(&*self.file, bytes, self.bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Appends an entry with its checksum.
    fn append(&mut self, mut entry: Vec<u8>) -> io::Result<()> {
        let sum = checksum(self.stream, &entry);
        entry.extend_from_slice(&sum);
        self.write(&entry)
    }

    /// Creates a state with the fewest entries that lead to this position; further ones can be appended.
    pub(super) fn compact<'a>(
        dir: &Dir,
        stream: u128,
        resume: &Resume,
        directories: impl Iterator<Item = &'a FileHeader>,
    ) -> io::Result<Self> {
        let mut this = Self::create_temporary(dir, stream)?;
        for header in directories {
            this.directory(header)?;
        }
        let place = [resume.at, resume.files, resume.bytes];
        match &resume.file {
            Some((header, _)) => this.begin(header, place)?,
            None => this.done(place)?,
        }
        this.publish()?;
        Ok(this)
    }

    /// Returns whether most of the state is about files that are complete.
    pub(super) const fn is_long(&self) -> bool {
        self.bytes > self.compacted * SLACK_FACTOR + SLACK
    }

    pub(super) fn directory(&mut self, header: &FileHeader) -> io::Result<()> {
        let mut record = Vec::new();
        crate::format::file(header, &mut record);
        let mut entry = vec![DIRECTORY];
        entry.extend_from_slice(&(record.len() as u64).to_be_bytes());
        entry.extend_from_slice(&record);
        self.append(entry)
    }

    pub(super) fn naming(
        &mut self,
        header: &FileHeader,
        hash: &Hash,
        place: [u64; 3],
    ) -> io::Result<()> {
        let mut record = Vec::new();
        crate::format::file(header, &mut record);
        let mut entry = vec![NAMING];
        for number in place.into_iter().chain([record.len() as u64]) {
            entry.extend_from_slice(&number.to_be_bytes());
        }
        entry.extend_from_slice(hash);
        entry.extend_from_slice(&record);
        self.append(entry)
    }

    /// Records that a file begins. `place` has the offset in the stream of its first chunk, and the numbers of files
    /// and bytes before it.
    pub(super) fn begin(&mut self, header: &FileHeader, place: [u64; 3]) -> io::Result<()> {
        let mut record = Vec::new();
        crate::format::file(header, &mut record);
        let mut entry = vec![FILE];
        for number in place.into_iter().chain([record.len() as u64]) {
            entry.extend_from_slice(&number.to_be_bytes());
        }
        entry.extend_from_slice(&record);
        self.append(entry)
    }

    /// Records that all files before an offset of the stream are complete. `place` is as for [`Self::begin`].
    pub(super) fn done(&mut self, place: [u64; 3]) -> io::Result<()> {
        let mut entry = vec![DONE];
        for number in place {
            entry.extend_from_slice(&number.to_be_bytes());
        }
        self.append(entry)
    }

    /// Removes the state, and the table of an incomplete file.
    pub(super) fn remove(self) {
        // If they cannot be removed, the next attempt finds them to be stale.
        let _ = self.dir.entry(&name(self.stream)).remove();
        let _ = self.dir.entry(&table_name(self.stream)).remove();
    }
}

/// A visitor that decodes a single file record.
struct One(Option<FileHeader>);

impl Visitor for One {
    type Error = DecodeError;
    fn file(&mut self, header: &FileHeader, _: u64) -> Result<(), DecodeError> {
        self.0 = Some(header.clone());
        Ok(())
    }
    fn bytes(&mut self, _: &[u8]) -> Result<(), DecodeError> {
        Ok(())
    }
    fn chunk(&mut self, _: &Hash, _: u64) -> Result<(), DecodeError> {
        Ok(())
    }
    fn file_end(&mut self, _: u64, _: &Hash, _: u64) -> Result<(), DecodeError> {
        Ok(())
    }
    fn end(&mut self, _: u64, _: u64) -> Result<(), DecodeError> {
        Ok(())
    }
}

fn cut<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (cut, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(cut)
}

fn checksum(stream: u128, entry: &[u8]) -> [u8; SUM] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&stream.to_be_bytes()).update(entry);
    let mut sum = [0; SUM];
    sum.copy_from_slice(&hasher.finalize().as_bytes()[..SUM]);
    sum
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    cut(bytes, 8)?.try_into().ok().map(u64::from_be_bytes)
}

/// Decodes a file record outside a stream.
fn header(bytes: &[u8]) -> Option<FileHeader> {
    let mut one = One(None);
    let start = Resume { files: 0, bytes: 0, file: None, single: None, at: 1 };
    Decoder::resume(start).push(bytes, &mut one).ok()?;
    one.0
}

/// Reads three numbers: an offset in a stream, a file count and a byte count.
fn place_of(bytes: &mut &[u8]) -> Option<Resume> {
    let (at, files, total) = (number(bytes)?, number(bytes)?, number(bytes)?);
    // Offsets in a stream have 48 bits.
    (at < 1 << 48).then_some(Resume { files, bytes: total, file: None, single: None, at })
}

/// What the entries of a state lead to.
struct Parsed {
    boot: u128,
    resume: Resume,
    naming: Option<Naming>,
    directories: Vec<FileHeader>,
    /// How many of the directories precede `resume`.
    placed: usize,
}

/// Replays the entries; the last one may be truncated. Returns the position that they lead to, the file that was about
/// to get its final name if that was the last entry, and the directories.
fn parse(mut bytes: &[u8], stream: u128) -> Option<Parsed> {
    let mut found = Resume { files: 0, bytes: 0, file: None, single: None, at: 0 };
    if cut(&mut bytes, MAGIC.len())? != MAGIC || cut(&mut bytes, 16)? != stream.to_be_bytes() {
        return None;
    }
    let boot = u128::from_be_bytes(cut(&mut bytes, 16)?.try_into().ok()?);
    let (mut naming, mut directories, mut placed) = (None, Vec::new(), 0);
    // An entry is used completely or not at all.
    let mut entry = || -> Option<()> {
        let whole = bytes;
        let kind = cut(&mut bytes, 1)?[0];
        let is_right = |bytes: &mut &[u8]| {
            let (entry, _) = whole.split_at(whole.len() - bytes.len());
            (cut(bytes, SUM)? == checksum(stream, entry)).then_some(())
        };
        match kind {
            DONE => {
                let place = place_of(&mut bytes)?;
                is_right(&mut bytes)?;
                (found, placed) = (place, directories.len());
            }
            DIRECTORY => {
                let len = usize::try_from(number(&mut bytes)?).ok()?;
                let record = cut(&mut bytes, len)?;
                is_right(&mut bytes)?;
                directories.push(header(record)?);
            }
            FILE | NAMING => {
                let mut place = place_of(&mut bytes)?;
                let len = usize::try_from(number(&mut bytes)?).ok()?;
                if kind == FILE {
                    let record = cut(&mut bytes, len)?;
                    is_right(&mut bytes)?;
                    let header = header(record)?;
                    header.length?;
                    place.file = Some((header, Vec::new()));
                    (found, placed) = (place, directories.len());
                } else {
                    let hash = cut(&mut bytes, HASH)?.try_into().ok()?;
                    let record = cut(&mut bytes, len)?;
                    is_right(&mut bytes)?;
                    let header = header(record)?;
                    naming = Some(Naming { header, hash, done: place });
                    return Some(());
                }
            }
            _ => return None,
        }
        naming = None;
        Some(())
    };
    while entry().is_some() {}
    let any = found.at > 0 || naming.is_some();
    any.then_some(Parsed { boot, resume: found, naming, directories, placed })
}

/// Returns whether the file that was about to get its final name has got it. With `sync`, it is synced, because the earlier
/// attempt may have been interrupted before it was.
fn is_named(entry: &Entry, naming: &Naming, sync: bool) -> bool {
    let Some(file) = entry.open_read() else { return false };
    let mut hasher = blake3::Hasher::new();
    file.stat().is_ok_and(|stat| Some(stat.len) == naming.header.length)
        && hasher.update_reader(Reading(&*file, 0)).is_ok()
        && *hasher.finalize().as_bytes() == naming.hash
        && (!sync || file.sync().is_ok() && entry.dir().sync().is_ok())
}

/// Reads the state that an earlier attempt at this stream has left. `place` returns the entry of a file. With `sync`, a file
/// that was about to get its name is synced.
pub(super) fn load(
    dir: &Dir,
    stream: u128,
    sync: bool,
    mut place: impl FnMut(&FileHeader) -> Option<Entry>,
) -> Option<Found> {
    let mut bytes = Vec::new();
    let file = dir.entry(&name(stream)).open_read()?;
    Reading(&*file, 0).take(MAX_STATE).read_to_end(&mut bytes).ok()?;
    let Parsed { boot, resume, naming, mut directories, placed } = parse(&bytes, stream)?;
    // After another start of the machine, files that are said to be complete may be lost.
    // (Directories count as files. A lost one is made again.)
    if resume.files > placed as u64 && boot != dir.boot().unwrap_or(NO_BOOT) {
        return None;
    }
    let mut under_way = resume.file.as_ref().map(|(header, _)| header.path.clone());
    if let Some(naming) = naming {
        if place(&naming.header).is_some_and(|entry| is_named(&entry, &naming, sync)) {
            return Some(Found { resume: naming.done, directories, under_way: None });
        }
        under_way = Some(naming.header.path);
    }
    // Those after the position are sent again.
    directories.truncate(placed);
    (resume.at > 0 || under_way.is_some()).then_some(Found { resume, directories, under_way })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(path: &str, length: Option<u64>) -> FileHeader {
        let directory = length.is_none();
        let path = path.as_bytes().to_vec();
        FileHeader { path, directory, length, mode: 0o644, mtime_s: 7, mtime_ns: 0 }
    }

    /// A file and a directory are complete, and a file in that directory was under way. As many directories as files precede the
    /// end of the state, but not the position at which it goes on.
    #[test]
    fn directories_do_not_stand_for_files_that_a_power_failure_may_have_taken() {
        let folder = tempfile::tempdir().unwrap();
        let dir = Dir::open(folder.path()).unwrap();
        if dir.boot().is_none() {
            return println!("skipped: needs /proc");
        }
        let mut state = State::create(&dir, 9).unwrap();
        state.directory(&header("c", None)).unwrap();
        state.done([1000, 2, 500]).unwrap();
        state.directory(&header("d", None)).unwrap();
        drop(state);
        let found = load(&dir, 9, false, |_| None).unwrap();
        assert_eq!((found.resume.at, found.resume.files), (1000, 2));
        assert_eq!(found.directories, [header("c", None)], "the other one is sent again");
        let path = folder.path().join(name(9));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[MAGIC.len() + 16] ^= 1;
        std::fs::write(path, bytes).unwrap();
        assert!(load(&dir, 9, false, |_| None).is_none(), "the machine has started again");
    }
}
