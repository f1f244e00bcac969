//! The progress of a received stream, in a small file next to the received files. A restarted receiver resumes from it.
//!
//! The file is a line of text that names the format and its version, then the stream's number, then entries, which are only
//! appended. The store ([`crate::store`]) records which chunks of the current file are present.
//!
//! ```text
//! tag(1) offset in the stream(8) files(8) bytes(8) length of the record(8) [hash of the file(32)] file record checksum(8)
//! ```
//!
//! Nothing of it is synced to the disk. An entry has a checksum, because a power failure may leave only some of its bytes.
//! All that it says is checked against the disk when the stream is resumed: a file that was complete may have been removed or
//! changed since, lost in a power failure, or never have got its name. The stream goes on before the first file that differs.

use std::ffi::OsString;
use std::io::{self, Read as _};

use crate::format::{
    CHUNK, DecodeError, Decoder, FileHeader, HASH, Hash, Resume, StreamDigest, Visitor,
};
use crate::store::disk::{DiskFile, Reading, Stat, is_incomplete, write_all_at};
use crate::store::{Dir, StoreError, fault};

const MAGIC: &[u8] = b"rackweave cast: state of an interrupted transfer, version 4\n";

/// Tag of the entry for the start of a file.
const FILE: u8 = b'F';
/// Tag of the entry for a file that is complete. It precedes the final renaming.
const DONE: u8 = b'D';
/// Tag of the entry for a directory, which gets its mode and time at the end, perhaps in a later attempt.
const DIRECTORY: u8 = b'P';
/// Tag of the entry for a further name of a file before it, or for a symbolic link.
const LINK: u8 = b'L';

/// The length in bytes of an entry's checksum.
const SUM: usize = 8;

/// The largest number of bytes that are read of a state.
const MAX_STATE: u64 = 1 << 30;

/// The state of a stream, open for appending.
#[derive(Debug)]
pub(super) struct State {
    dir: Dir,
    stream: u128,
    file: Box<dyn DiskFile>,
    bytes: u64,
}

/// Returns the file name of a stream's state. All streams of a cast share it: where something else is lacking now, the state of the
/// stream before is of no use any more.
pub(super) fn name(stream: u128) -> OsString {
    format!(".rackweave-cast-{:016x}.state", stream >> 64).into()
}

/// Returns the file name of a state that is being compacted.
fn temporary_name(stream: u128) -> OsString {
    format!(".rackweave-cast-{:016x}.new", stream >> 64).into()
}

/// Removes the state of a cast that lacks nothing.
pub(super) fn remove_of(root: &Dir, stream: u128) {
    let state = root.entry(&name(stream));
    if state.kind().is_some() {
        // It would be found to be stale.
        let _ = state.remove();
    }
}

/// Returns the file name of the block table of a file that is incomplete, by the file's path in the stream: the next cast,
/// of whatever files, finds it.
pub(super) fn table_name(path: &[u8]) -> OsString {
    let hash = blake3::hash(path).to_hex();
    format!(".rackweave-cast-{}.blocks", &hash[..32]).into()
}

/// Returns whether a file can be what an interrupted transfer of the file of this path has left: it has a table.
pub(super) fn is_rest(root: &Dir, path: &[u8], part: &Stat) -> bool {
    is_incomplete(part) && root.entry(&table_name(path)).kind().is_some()
}

/// Removes the table of a file that has its name: an attempt that was killed before it did so has left it.
pub(super) fn remove_table(root: &Dir, header: &FileHeader) {
    if header.length >= Some(CHUNK as u64) {
        let table = root.entry(&table_name(&header.path));
        if table.kind().is_some() {
            // It does not match the next content.
            let _ = table.remove();
        }
    }
}

/// A position in a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// The offset in the stream.
    pub(super) at: u64,
    /// The number of complete files and directories before it.
    pub(super) files: u64,
    /// The total content bytes of those files.
    pub(super) bytes: u64,
}

/// A file or directory that an earlier attempt has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) header: FileHeader,
    /// The hash of the file; `None` for a directory or a link.
    pub(super) hash: Option<Hash>,
    /// The position of the file's first chunk, if the state has an entry for its start.
    pub(super) begun: Option<Place>,
    /// The position after it.
    pub(super) after: Place,
}

/// What an earlier attempt has left.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Files and directories in the order of the stream, from its beginning.
    pub(super) done: Vec<Done>,
    /// The file that was incomplete, and the position of its first chunk.
    pub(super) current: Option<(FileHeader, Place)>,
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
        let mut this = Self { dir: dir.clone(), stream, file, bytes: 0 };
        let mut head = MAGIC.to_vec();
        head.extend_from_slice(&stream.to_be_bytes());
        this.write(&head)?;
        Ok(this)
    }

    fn publish(&mut self) -> io::Result<()> {
        self.dir.entry(&temporary_name(self.stream)).rename(&self.dir.entry(&name(self.stream)))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        fault::step()?;
        write_all_at(&*self.file, bytes, self.bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Creates a state with the entries that lead to a position; further ones can be appended.
    pub(super) fn compact(dir: &Dir, stream: u128, found: &Found) -> io::Result<Self> {
        let mut this = Self::create_temporary(dir, stream)?;
        // They are written together, because there may be many.
        let mut entries = Vec::new();
        for done in &found.done {
            let tag = if done.hash.is_some() { DONE } else { named(&done.header) };
            encode(stream, tag, &done.header, done.hash.as_ref(), done.after, &mut entries);
        }
        if let Some((header, place)) = &found.current {
            encode(stream, FILE, header, None, *place, &mut entries);
        }
        this.write(&entries)?;
        this.publish()?;
        Ok(this)
    }

    fn append(
        &mut self,
        tag: u8,
        header: &FileHeader,
        hash: Option<&Hash>,
        place: Place,
    ) -> io::Result<()> {
        let mut entry = Vec::with_capacity(128 + header.path.len());
        encode(self.stream, tag, header, hash, place, &mut entry);
        self.write(&entry)
    }

    /// Records a directory or a link. `place` is the position after it.
    pub(super) fn named(&mut self, header: &FileHeader, place: Place) -> io::Result<()> {
        self.append(named(header), header, None, place)
    }

    /// Records that a file begins. `place` is the position of its first chunk.
    pub(super) fn begin(&mut self, header: &FileHeader, place: Place) -> io::Result<()> {
        self.append(FILE, header, None, place)
    }

    /// Records that all bytes of a file are verified, which has its name or gets it next. `place` is the position after it.
    pub(super) fn done(
        &mut self,
        header: &FileHeader,
        hash: &Hash,
        place: Place,
    ) -> io::Result<()> {
        self.append(DONE, header, Some(hash), place)
    }

    /// Removes the state.
    pub(super) fn remove(self) {
        // If it cannot be removed, the next attempt finds it to be stale.
        let _ = self.dir.entry(&name(self.stream)).remove();
    }
}

/// Returns the tag of an entry without content.
const fn named(header: &FileHeader) -> u8 {
    if header.is_directory() { DIRECTORY } else { LINK }
}

/// Appends an entry with its checksum.
fn encode(
    stream: u128,
    tag: u8,
    header: &FileHeader,
    hash: Option<&Hash>,
    place: Place,
    out: &mut Vec<u8>,
) {
    let from = out.len();
    let mut record = Vec::new();
    crate::format::file(header, &mut record);
    out.push(tag);
    for number in [place.at, place.files, place.bytes, record.len() as u64] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    out.extend_from_slice(hash.map_or(&[], |hash| &hash[..]));
    out.extend_from_slice(&record);
    let sum = checksum(stream, &out[from..]);
    out.extend_from_slice(&sum);
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
    fn hole(&mut self, _: usize, _: &Hash) -> Result<(), DecodeError> {
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
    let start = Resume {
        files: 0,
        bytes: 0,
        file: None,
        single: None,
        at: 1,
        digest: StreamDigest::default(),
    };
    Decoder::resume(start).push(bytes, &mut one).ok()?;
    one.0
}

fn place(bytes: &mut &[u8]) -> Option<Place> {
    let (at, files, total) = (number(bytes)?, number(bytes)?, number(bytes)?);
    // Offsets in a stream have 48 bits.
    (at < 1 << 48).then_some(Place { at, files, bytes: total })
}

/// Decodes the next entry: its tag, the position, the hash and the header.
fn entry(bytes: &mut &[u8], stream: u128) -> Option<(u8, Place, Option<Hash>, FileHeader)> {
    let whole = *bytes;
    let tag = cut(bytes, 1)?[0];
    let place = place(bytes)?;
    let len = usize::try_from(number(bytes)?).ok()?;
    let hash = match tag {
        DONE => Some(cut(bytes, HASH)?.try_into().ok()?),
        FILE | DIRECTORY | LINK => None,
        _ => return None,
    };
    let header = header(cut(bytes, len)?)?;
    let (entry, _) = whole.split_at(whole.len() - bytes.len());
    if cut(bytes, SUM)? != checksum(stream, entry) {
        return None;
    }
    let is_right = header.is_file() == matches!(tag, FILE | DONE);
    let fits = is_right && (header.is_file() || tag == named(&header)) && header.length.is_some();
    fits.then_some((tag, place, hash, header))
}

/// Decodes a state; its last entry may be truncated. `None` if it is not one of this stream.
fn parse(mut bytes: &[u8], stream: u128) -> Option<Found> {
    if cut(&mut bytes, MAGIC.len())? != MAGIC || cut(&mut bytes, 16)? != stream.to_be_bytes() {
        return None;
    }
    let mut found = Found::default();
    while let Some((tag, place, hash, header)) = entry(&mut bytes, stream) {
        let before = found.done.last().map(|done| done.after).unwrap_or_default();
        if place.at <= before.at {
            break;
        }
        if tag == FILE {
            if (place.files, place.bytes) != (before.files, before.bytes) {
                break;
            }
            found.current = Some((header, place));
            continue;
        }
        // After a file that has no entry, as one of unknown length, the state says nothing that could be checked.
        let length = header.length.unwrap_or(0);
        if (place.files, place.bytes) != (before.files + 1, before.bytes.saturating_add(length)) {
            break;
        }
        let begun = found.current.take().filter(|(current, _)| *current == header);
        let begun = begun.map(|(_, place)| place);
        found.done.push(Done { header, hash, begun, after: place });
    }
    Some(found)
}

/// Reads the state that an earlier attempt at this stream has left.
pub(super) fn load(dir: &Dir, stream: u128) -> Result<Option<Found>, StoreError> {
    let mut bytes = Vec::new();
    let Some(file) = dir.entry(&name(stream)).open_read()? else { return Ok(None) };
    let read = Reading(&*file, 0).take(MAX_STATE).read_to_end(&mut bytes);
    Ok(read.ok().and_then(|_| parse(&bytes, stream)))
}
