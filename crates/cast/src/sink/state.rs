//! What of a stream is on disk already: a small file beside the files, so that a restarted receiver goes on.
//!
//! A line of text that says what it is, the stream's number, then entries that are only appended. A part that was written and
//! is not (any more) what its hashes say is taken as missing: so nothing of this needs to be forced to the disk.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt as _;

use super::place::{Held, Spot};
use crate::format::tree::chunk_hash;
use crate::format::{
    CHUNK, CHUNK_FRONT, DecodeError, Decoder, FileHeader, HASH, Hash, Resume, Take,
};

const MAGIC: &[u8] = b"rackweave cast: state of an interrupted transfer, 1\n";

/// An entry: a file begins; its next chunk is written; it is complete.
const FILE: u8 = b'F';
const CHUNK_DONE: u8 = b'C';
const DONE: u8 = b'D';

/// A directory: it gets its mode and time at the end, which another attempt may see.
const DIRECTORY: u8 = b'P';

/// Before a file gets its name: what `DONE` will say, and what the file is. Whoever is killed between finds the file in its place.
const NAMING: u8 = b'N';

/// Most bytes that are read of a state: a hash for each chunk of 128 TB is more, and begins anew.
const MAX_STATE: u64 = 1 << 30;

/// A state that has grown by so much, and to so many times what it needs, is written anew.
const SLACK: u64 = 1 << 18;
const SLACK_FACTOR: u64 = 4;

/// The file that is being written.
#[derive(Debug)]
pub(super) struct State {
    folder: Held,
    stream: u128,
    file: File,
    bytes: u64,
    /// Bytes when it was written anew.
    needed: u64,
}

/// What the state of a stream is called.
pub(super) fn name(stream: u128) -> OsString {
    format!(".rackweave-cast-{stream:032x}.state").into()
}

/// What it is called until it is whole.
fn name_aside(stream: u128) -> OsString {
    format!(".rackweave-cast-{stream:032x}.new").into()
}

/// A file that was about to get its name.
#[derive(Debug)]
struct Naming {
    header: FileHeader,
    hash: Hash,
    /// Where it goes on if it has got it.
    done: Resume,
}

/// What was found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) resume: Resume,
    /// Bytes of the part that are right.
    pub(super) part_bytes: u64,
    /// Directories before.
    pub(super) directories: Vec<FileHeader>,
    /// The path of the file that is not done.
    pub(super) under_way: Option<Vec<u8>>,
}

impl State {
    /// A new state, of nothing.
    pub(super) fn create(folder: &Held, stream: u128) -> io::Result<Self> {
        let mut this = Self::aside(folder, stream)?;
        this.settle()?;
        Ok(this)
    }

    /// Under another name: what is there already stays until the new one is whole, and no link is followed.
    fn aside(folder: &Held, stream: u128) -> io::Result<Self> {
        let aside = folder.at(&name_aside(stream));
        match aside.remove() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = aside.create()?;
        let mut this = Self { folder: folder.clone(), stream, file, bytes: 0, needed: 0 };
        this.write(MAGIC)?;
        this.write(&stream.to_be_bytes())?;
        Ok(this)
    }

    fn settle(&mut self) -> io::Result<()> {
        self.needed = self.bytes;
        self.folder.at(&name_aside(self.stream)).rename(&self.folder.at(&name(self.stream)))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    /// A state that says what was found, and goes on from there.
    pub(super) fn recreate<'a>(
        folder: &Held,
        stream: u128,
        found: &Resume,
        directories: impl Iterator<Item = &'a FileHeader>,
    ) -> io::Result<Self> {
        let mut this = Self::aside(folder, stream)?;
        for header in directories {
            this.directory(header)?;
        }
        let (files, bytes) = (found.files, found.bytes);
        match &found.file {
            Some((header, hashes)) => {
                let step = (CHUNK_FRONT + CHUNK + HASH) as u64;
                let data = found.at - hashes.len() as u64 * step;
                this.begin(header, data, files, bytes)?;
                for hash in hashes {
                    this.chunk(hash)?;
                }
            }
            None => this.done(found.at, files, bytes)?,
        }
        this.settle()?;
        Ok(this)
    }

    /// Whether most of it is about files that are done.
    pub(super) const fn is_long(&self) -> bool {
        self.bytes > self.needed * SLACK_FACTOR + SLACK
    }

    pub(super) fn directory(&mut self, header: &FileHeader) -> io::Result<()> {
        let mut record = Vec::new();
        crate::format::file(header, &mut record);
        let mut entry = vec![DIRECTORY];
        entry.extend_from_slice(&(record.len() as u64).to_be_bytes());
        entry.extend_from_slice(&record);
        self.write(&entry)
    }

    pub(super) fn naming(
        &mut self,
        header: &FileHeader,
        hash: &Hash,
        [at, files, bytes]: [u64; 3],
    ) -> io::Result<()> {
        let mut record = Vec::new();
        crate::format::file(header, &mut record);
        let mut entry = vec![NAMING];
        for number in [at, files, bytes, record.len() as u64] {
            entry.extend_from_slice(&number.to_be_bytes());
        }
        entry.extend_from_slice(hash);
        entry.extend_from_slice(&record);
        self.write(&entry)
    }

    pub(super) fn begin(
        &mut self,
        header: &FileHeader,
        at: u64,
        files: u64,
        bytes: u64,
    ) -> io::Result<()> {
        let mut record = Vec::new();
        crate::format::file(header, &mut record);
        let mut entry = vec![FILE];
        for number in [at, files, bytes, record.len() as u64] {
            entry.extend_from_slice(&number.to_be_bytes());
        }
        entry.extend_from_slice(&record);
        self.write(&entry)
    }

    pub(super) fn chunk(&mut self, hash: &Hash) -> io::Result<()> {
        let mut entry = [CHUNK_DONE; 1 + HASH];
        entry[1..].copy_from_slice(hash);
        self.write(&entry)
    }

    pub(super) fn done(&mut self, at: u64, files: u64, bytes: u64) -> io::Result<()> {
        let mut entry = vec![DONE];
        for number in [at, files, bytes] {
            entry.extend_from_slice(&number.to_be_bytes());
        }
        self.write(&entry)
    }

    pub(super) fn remove(self) {
        // Left over, it is stale, and found to be.
        let _ = self.folder.at(&name(self.stream)).remove();
    }
}

/// Reads a file record alone.
struct One(Option<FileHeader>);

impl Take for One {
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

fn number(bytes: &mut &[u8]) -> Option<u64> {
    cut(bytes, 8)?.try_into().ok().map(u64::from_be_bytes)
}

/// A file record that stands alone.
fn header(bytes: &[u8]) -> Option<FileHeader> {
    let mut one = One(None);
    let start = Resume { files: 0, bytes: 0, file: None, single: None, at: 1 };
    Decoder::resume(start).push(bytes, &mut one).ok()?;
    one.0
}

/// Three numbers: an offset of a stream, files, bytes.
fn place_of(bytes: &mut &[u8]) -> Option<Resume> {
    let (at, files, total) = (number(bytes)?, number(bytes)?, number(bytes)?);
    // Offsets of a stream have 48 bits.
    (at < 1 << 48).then_some(Resume { files, bytes: total, file: None, single: None, at })
}

/// What entries say; the last one may be cut off.
struct Said {
    resume: Resume,
    /// If the last one was a file that is about to get its name.
    naming: Option<Naming>,
    directories: Vec<FileHeader>,
}

fn parse(mut bytes: &[u8], stream: u128) -> Option<Said> {
    let mut found = Resume { files: 0, bytes: 0, file: None, single: None, at: 0 };
    if cut(&mut bytes, MAGIC.len())? != MAGIC || cut(&mut bytes, 16)? != stream.to_be_bytes() {
        return None;
    }
    let (mut naming, mut directories) = (None, Vec::new());
    // An entry counts as a whole or not at all. Nothing is copied: of a large file there are a million.
    let mut entry = || -> Option<()> {
        let kind = cut(&mut bytes, 1)?[0];
        match kind {
            CHUNK_DONE => {
                let hash = cut(&mut bytes, HASH)?.try_into().ok()?;
                found.file.as_mut()?.1.push(hash);
            }
            DONE => found = place_of(&mut bytes)?,
            DIRECTORY => {
                let len = usize::try_from(number(&mut bytes)?).ok()?;
                directories.push(header(cut(&mut bytes, len)?)?);
            }
            FILE | NAMING => {
                let mut place = place_of(&mut bytes)?;
                let len = usize::try_from(number(&mut bytes)?).ok()?;
                if kind == FILE {
                    place.file = Some((header(cut(&mut bytes, len)?)?, Vec::new()));
                    found = place;
                } else {
                    let hash = cut(&mut bytes, HASH)?.try_into().ok()?;
                    let header = header(cut(&mut bytes, len)?)?;
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
    any.then_some(Said { resume: found, naming, directories })
}

/// Whether a file is what it was about to be called.
fn is_named(spot: &Spot, naming: &Naming) -> bool {
    let Some(file) = spot.look() else { return false };
    let mut hasher = blake3::Hasher::new();
    file.metadata().is_ok_and(|meta| Some(meta.len()) == naming.header.length)
        && hasher.update_reader(file).is_ok()
        && *hasher.finalize().as_bytes() == naming.hash
}

/// Looks what there is of this stream. `place` says where a file is.
pub(super) fn load(
    folder: &Held,
    stream: u128,
    mut place: impl FnMut(&FileHeader) -> Option<Spot>,
) -> Option<Found> {
    let mut bytes = Vec::new();
    let file = folder.at(&name(stream)).look()?;
    file.take(MAX_STATE).read_to_end(&mut bytes).ok()?;
    let Said { mut resume, naming, directories } = parse(&bytes, stream)?;
    let mut under_way = resume.file.as_ref().map(|(header, _)| header.path.clone());
    if let Some(naming) = naming {
        if place(&naming.header).is_some_and(|spot| is_named(&spot, &naming)) {
            let (part_bytes, under_way) = (0, None);
            return Some(Found { resume: naming.done, part_bytes, directories, under_way });
        }
        under_way = Some(naming.header.path);
    }
    if resume.at == 0 && under_way.is_none() {
        return None;
    }
    let mut part_bytes = 0;
    if let Some((header, hashes)) = &mut resume.file {
        // Whole chunks only: where a short one ends is the end of the file, which comes again.
        let whole = header.length? / CHUNK as u64;
        hashes.truncate(usize::try_from(whole).ok()?);
        let mut right = 0;
        if let Some(file) = place(header).and_then(|spot| spot.part().look()) {
            let mut buffer = vec![0; CHUNK];
            for (index, hash) in hashes.iter().enumerate() {
                let offset = (index * CHUNK) as u64;
                if file.read_exact_at(&mut buffer, offset).is_err() {
                    break;
                }
                let (found, single) = chunk_hash(index as u64, &buffer);
                if found != *hash {
                    break;
                }
                resume.single = resume.single.or(single);
                right = index + 1;
            }
        }
        hashes.truncate(right);
        part_bytes = (right * CHUNK) as u64;
        resume.at = resume.at.checked_add(right as u64 * (CHUNK_FRONT + CHUNK + HASH) as u64)?;
    }
    Some(Found { resume, part_bytes, directories, under_way })
}
