//! Files into a folder.

use std::ffi::OsStr;
use std::fs::{File, FileTimes, Permissions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::FileType;

use super::place::{Held, Spot, failed};
use super::state::{self, State};
use super::{FileDone, Sink, SinkError};
use crate::format::{CHUNK, DecodeError, Decoder, FileHeader, Hash, Resume, Take};

/// Where files go, and how.
#[derive(Clone, Debug, Default)]
pub struct FolderConfig {
    /// The folder.
    pub folder: PathBuf,
    /// Instead of below the folder, the one file of the stream goes here (a path in the folder).
    pub only: Option<PathBuf>,
    /// Files that exist are replaced.
    pub overwrite: bool,
    /// A file is on the disk before it gets its name.
    pub sync: bool,
    /// The disk counts as full after so many bytes.
    pub limit: Option<u64>,
}

/// Takes a stream's files. What is not complete has `.part` behind its name, and stays when the transfer is
/// interrupted: the same stream goes on there.
#[derive(Debug)]
pub struct Folder {
    decoder: Decoder,
    writer: Writer,
    begins_at: u64,
}

#[derive(Debug)]
struct Writer {
    config: FolderConfig,
    root: Held,
    /// The folder that was entered last, and its path in the stream.
    entered: (Vec<u8>, Held),
    stream: u128,
    state: Option<State>,
    /// The path of the file that an earlier attempt at this stream was about.
    mine: Option<Vec<u8>>,
    current: Option<Current>,
    files: u64,
    bytes: u64,
    written: u64,
    ended: bool,
    done: Vec<FileDone>,
    /// Directories get their times and modes when nothing is put into them any more.
    directories: Vec<FileHeader>,
}

#[derive(Debug)]
struct Current {
    file: File,
    spot: Spot,
    header: FileHeader,
    bytes: u64,
}

impl Folder {
    /// Takes this stream; goes on where an earlier attempt was interrupted.
    ///
    /// # Errors
    /// If the folder can't be written.
    pub fn new(config: FolderConfig, stream: u128) -> Result<Self, SinkError> {
        let root = Held::open(&config.folder)?;
        let mut writer = Writer {
            config,
            entered: (Vec::new(), root.clone()),
            root: root.clone(),
            stream,
            state: None,
            mine: None,
            current: None,
            files: 0,
            bytes: 0,
            written: 0,
            ended: false,
            done: Vec::new(),
            directories: Vec::new(),
        };
        let Some(found) = state::load(&root, stream, |header| writer.place(header).ok()) else {
            return Ok(Self { decoder: Decoder::default(), writer, begins_at: 0 });
        };
        let resume = found.resume;
        (writer.directories, writer.mine) = (found.directories, found.under_way);
        let state = State::recreate(&root, stream, &resume, writer.directories.iter())
            .map_err(|error| failed(root.path(), error))?;
        writer.state = Some(state);
        (writer.files, writer.bytes) = (resume.files, resume.bytes);
        if let Some((header, _)) = &resume.file {
            writer.open(header, found.part_bytes)?;
        }
        let begins_at = resume.at;
        Ok(Self { decoder: Decoder::resume(resume), writer, begins_at })
    }
}

impl Writer {
    /// The folder that this is a path of in the stream; those that are missing are made.
    fn enter(&mut self, path: &[u8]) -> Result<Held, SinkError> {
        if self.entered.0 != path {
            let mut folder = self.root.clone();
            for name in path.split(|byte| *byte == b'/') {
                folder = folder.enter(OsStr::from_bytes(name))?;
            }
            self.entered = (path.to_vec(), folder);
        }
        Ok(self.entered.1.clone())
    }

    /// Where a file goes. Folders between are made; nothing is followed that leads out of them.
    fn place(&mut self, header: &FileHeader) -> Result<Spot, SinkError> {
        if let Some(only) = &self.config.only {
            let folder = only.parent().map(PathBuf::from).unwrap_or_default();
            return Ok(self.root.called(folder).at(only.file_name().unwrap_or_default()));
        }
        let slash = header.path.iter().rposition(|byte| *byte == b'/');
        Ok(match slash {
            Some(slash) => {
                let name = OsStr::from_bytes(&header.path[slash + 1..]);
                self.enter(&header.path[..slash])?.at(name)
            }
            None => self.root.at(OsStr::from_bytes(&header.path)),
        })
    }

    fn open(&mut self, header: &FileHeader, keep: u64) -> Result<(), SinkError> {
        let spot = self.place(header)?;
        match spot.kind() {
            Some(FileType::Directory) => return Err(SinkError::IsFolder(spot.path())),
            Some(_) if !self.config.overwrite => return Err(SinkError::Exists(spot.path())),
            _ => {}
        }
        let part = spot.part();
        let mine = self.config.overwrite || self.mine.take().is_some_and(|it| it == header.path);
        let mut file = part.write(mine)?;
        file.set_len(keep)
            .and_then(|()| file.seek(SeekFrom::Start(keep)))
            .map_err(|error| failed(&part.path(), error))?;
        self.current = Some(Current { file, spot, header: header.clone(), bytes: keep });
        Ok(())
    }

    fn finish(&mut self, hash: &Hash, at: u64) -> Result<(), SinkError> {
        let place = match &self.current {
            // What comes from a pipe comes only once, and has no time of its own.
            Some(current) if current.header.length.is_some() => {
                let bytes = self.bytes + current.bytes;
                Some((current.header.clone(), [at, self.files + 1, bytes]))
            }
            _ => None,
        };
        if let Some((header, place)) = &place {
            self.note(|state| state.naming(header, hash, *place))?;
        }
        let Some(current) = self.current.take() else { return Ok(()) };
        let Current { file, spot, header, bytes } = current;
        let part = spot.part();
        let wrap = |error| failed(&part.path(), error);
        if place.is_some() {
            file.set_times(times(&header)).map_err(wrap)?;
        }
        file.set_permissions(Permissions::from_mode(u32::from(header.mode))).map_err(wrap)?;
        if self.config.sync {
            file.sync_all().map_err(wrap)?;
        }
        let named = if self.config.overwrite { part.rename(&spot) } else { part.rename_new(&spot) };
        if let Err(error) = named {
            // Another attempt is to be able to write it.
            let _ = file.set_permissions(Permissions::from_mode(0o600));
            return Err(match error.kind() {
                io::ErrorKind::AlreadyExists => SinkError::Exists(spot.path()),
                _ => failed(&spot.path(), error),
            });
        }
        if self.config.sync {
            let folder = spot.folder();
            folder
                .file()
                .and_then(|it| it.sync_all())
                .map_err(|error| failed(folder.path(), error))?;
        }
        self.done.push(FileDone { path: spot.path(), bytes, hash: *hash });
        Ok(())
    }

    /// Notes something in the state; a disk that has no room for it has none for files either.
    fn note(&mut self, note: impl FnOnce(&mut State) -> io::Result<()>) -> Result<(), SinkError> {
        let noted = match &mut self.state {
            Some(state) => note(state),
            None => State::create(&self.root, self.stream).and_then(|mut state| {
                let result = note(&mut state);
                self.state = Some(state);
                result
            }),
        };
        noted.map_err(|error| self.failed(error))
    }

    /// What failed, for the file under way: what it lacks is what people want to know.
    fn failed(&self, error: io::Error) -> SinkError {
        let Some(current) = &self.current else { return failed(self.root.path(), error) };
        match failed(&current.spot.part().path(), error) {
            SinkError::Full { path, .. } => self.full(current, path),
            other => other,
        }
    }

    fn full(&self, current: &Current, path: PathBuf) -> SinkError {
        let needs = current.header.length.map(|length| length.saturating_sub(current.bytes));
        let free = match self.config.limit {
            Some(limit) => Some(limit.saturating_sub(self.written)),
            None => current.spot.folder().free(),
        };
        SinkError::Full { path, needs, free }
    }
}

fn times(header: &FileHeader) -> FileTimes {
    let nanos = Duration::from_nanos(header.mtime_ns.into());
    let seconds = Duration::from_secs(header.mtime_s.unsigned_abs());
    let second = match header.mtime_s < 0 {
        true => UNIX_EPOCH.checked_sub(seconds),
        false => UNIX_EPOCH.checked_add(seconds),
    };
    second
        .and_then(|second| second.checked_add(nanos))
        .map_or_else(FileTimes::new, |time| FileTimes::new().set_modified(time))
}

impl Take for Writer {
    type Error = SinkError;

    fn file(&mut self, header: &FileHeader, at: u64) -> Result<(), SinkError> {
        if self.config.only.is_some() && (self.files > 0 || header.directory) {
            return Err(SinkError::Several);
        }
        if header.directory {
            self.enter(&header.path)?;
            self.note(|state| state.directory(header))?;
            self.directories.push(header.clone());
            self.files += 1;
            return Ok(());
        }
        self.open(header, 0)?;
        // What comes from a pipe comes only once, and a short file soon again.
        if header.length.is_some_and(|length| length >= CHUNK as u64) {
            let (files, bytes) = (self.files, self.bytes);
            self.note(|state| state.begin(header, at, files, bytes))?;
        }
        Ok(())
    }

    /// Into the part at once, while they are in the cache. What turns out to be wrong is never noted, so that it is cut off
    /// when the transfer goes on.
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        let limit = self.config.limit.unwrap_or(u64::MAX);
        let Some(current) = &mut self.current else { return Ok(()) };
        let written = match self.written + bytes.len() as u64 > limit {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => current.file.write_all(bytes),
        };
        if let Err(error) = written {
            return Err(self.failed(error));
        }
        self.written += bytes.len() as u64;
        current.bytes += bytes.len() as u64;
        Ok(())
    }

    fn chunk(&mut self, hash: &Hash, _: u64) -> Result<(), SinkError> {
        let Some(current) = &self.current else { return Ok(()) };
        if current.header.length.is_some_and(|length| length >= CHUNK as u64) {
            self.note(|state| state.chunk(hash))?;
        }
        Ok(())
    }

    fn file_end(&mut self, length: u64, hash: &Hash, at: u64) -> Result<(), SinkError> {
        let Some(current) = &self.current else { return Ok(()) };
        let known = current.header.length.is_some();
        self.finish(hash, at)?;
        self.files += 1;
        self.bytes += length;
        let (files, bytes) = (self.files, self.bytes);
        if known {
            self.note(|state| state.done(at, files, bytes))?;
            if self.state.as_ref().is_some_and(State::is_long) {
                let done = Resume { files, bytes, file: None, single: None, at };
                let directories = self.directories.iter();
                let state = State::recreate(&self.root, self.stream, &done, directories)
                    .map_err(|error| failed(self.root.path(), error))?;
                self.state = Some(state);
            }
        }
        Ok(())
    }

    fn end(&mut self, _: u64, _: u64) -> Result<(), SinkError> {
        for header in std::mem::take(&mut self.directories).iter().rev() {
            let mode = u32::from(header.mode) | 0o700;
            // The files are right: a folder's time is not worth an error.
            if let Ok(folder) = self.enter(&header.path).map(|folder| folder.file())
                && let Ok(folder) = folder
            {
                let _ = folder.set_permissions(Permissions::from_mode(mode));
                let _ = folder.set_times(times(header));
            }
        }
        if let Some(state) = self.state.take() {
            state.remove();
        }
        self.ended = true;
        Ok(())
    }
}

impl Sink for Folder {
    fn begins_at(&self) -> u64 {
        self.begins_at
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        let result = self.decoder.push(bytes, &mut self.writer);
        if result.is_err() {
            // Another attempt may write it.
            self.writer.current = None;
        }
        // The file was another one when its first chunks came (of the same length and time), or the state is not what was
        // noted: the next attempt begins anew.
        let stale = match &result {
            Err(SinkError::Stream(DecodeError::FileHash)) => true,
            Err(SinkError::Stream(_)) => self.begins_at > 0,
            _ => false,
        };
        if stale && let Some(state) = self.writer.state.take() {
            state.remove();
        }
        result
    }

    fn is_complete(&self) -> bool {
        self.writer.ended
    }

    fn files(&self) -> Vec<FileDone> {
        self.writer.done.clone()
    }

    fn content(&self) -> (u64, Option<u64>) {
        let current = self.writer.current.as_ref();
        let of = current.and_then(|current| current.header.length);
        let bytes = current.map_or(0, |current| current.bytes);
        (self.writer.bytes + bytes, of.map(|of| self.writer.bytes + of))
    }
}
