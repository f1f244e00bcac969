//! Files into a folder.

use std::ffi::OsStr;
use std::fs::{File, FileTimes, OpenOptions, Permissions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::state::{self, State};
use super::{FileDone, Sink, SinkError};
use crate::format::{DecodeError, Decoder, FileHeader, Hash, Take};

/// What a file is called until it is complete.
const PART: &str = ".part";

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
    stream: u128,
    state: Option<State>,
    current: Option<Current>,
    files: u64,
    bytes: u64,
    written: u64,
    ended: bool,
    done: Vec<FileDone>,
    /// Directories get their times and modes when nothing is put into them any more.
    directories: Vec<(PathBuf, FileHeader)>,
}

#[derive(Debug)]
struct Current {
    file: File,
    part: PathBuf,
    path: PathBuf,
    header: FileHeader,
    bytes: u64,
}

impl Folder {
    /// Takes this stream; goes on where an earlier attempt was interrupted.
    ///
    /// # Errors
    /// If the folder can't be written.
    pub fn new(config: FolderConfig, stream: u128) -> Result<Self, SinkError> {
        std::fs::create_dir_all(&config.folder).map_err(|error| failed(&config.folder, error))?;
        let mut writer = Writer {
            config,
            stream,
            state: None,
            current: None,
            files: 0,
            bytes: 0,
            written: 0,
            ended: false,
            done: Vec::new(),
            directories: Vec::new(),
        };
        let path = |header: &FileHeader| writer.place(header).ok();
        let Some(found) = state::load(&writer.config.folder, stream, path, with_part) else {
            return Ok(Self { decoder: Decoder::default(), writer, begins_at: 0 });
        };
        let resume = found.resume;
        let folder = &writer.config.folder;
        let state =
            State::recreate(folder, stream, &resume).map_err(|error| failed(folder, error))?;
        writer.state = Some(state);
        (writer.files, writer.bytes) = (resume.files, resume.bytes);
        if let Some((header, _)) = &resume.file {
            writer.open(header, found.part_bytes)?;
        }
        let begins_at = resume.at;
        Ok(Self { decoder: Decoder::resume(resume), writer, begins_at })
    }
}

fn with_part(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(PART);
    name.into()
}

fn failed(path: &Path, source: io::Error) -> SinkError {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            SinkError::Full(path.to_owned())
        }
        _ => SinkError::Write { path: path.to_owned(), source },
    }
}

impl Writer {
    /// Where a file goes. Folders between are made; nothing is followed that leads out of them.
    fn place(&self, header: &FileHeader) -> Result<PathBuf, SinkError> {
        if let Some(only) = &self.config.only {
            return Ok(only.clone());
        }
        let mut path = self.config.folder.clone();
        let mut names = header.path.split(|byte| *byte == b'/').peekable();
        while let Some(name) = names.next() {
            path.push(OsStr::from_bytes(name));
            if names.peek().is_some() {
                make_folder(&path)?;
            }
        }
        Ok(path)
    }

    fn open(&mut self, header: &FileHeader, keep: u64) -> Result<(), SinkError> {
        let path = self.place(header)?;
        if !self.config.overwrite && path.symlink_metadata().is_ok() {
            return Err(SinkError::Exists(path));
        }
        let part = with_part(&path);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(keep == 0).mode(0o600);
        // No link, and no waiting for who reads a pipe.
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let open = || -> io::Result<File> {
            let mut file = options.open(&part)?;
            if !file.metadata()?.is_file() {
                return Err(io::Error::other("it is not a file"));
            }
            file.set_len(keep)?;
            file.seek(SeekFrom::Start(keep))?;
            Ok(file)
        };
        let file = open().map_err(|error| failed(&part, error))?;
        self.current = Some(Current { file, part, path, header: header.clone(), bytes: keep });
        Ok(())
    }

    fn finish(&mut self, current: Current, hash: &Hash, at: u64) -> Result<(), SinkError> {
        let Current { file, part, path, header, bytes } = current;
        let wrap = |error| failed(&part, error);
        file.set_permissions(Permissions::from_mode(u32::from(header.mode))).map_err(wrap)?;
        // A pipe has no time of its own.
        if header.length.is_some() {
            file.set_times(times(&header)).map_err(wrap)?;
        }
        if self.config.sync {
            file.sync_all().map_err(wrap)?;
        }
        drop(file);
        // What comes from a pipe comes only once.
        if header.length.is_some() {
            let place = [at, self.files + 1, self.bytes + bytes];
            self.note(|state| state.naming(&header, hash, place))?;
        }
        rename(&part, &path, self.config.overwrite)?;
        if self.config.sync
            && let Some(folder) = path.parent()
        {
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            File::open(folder)
                .and_then(|it| it.sync_all())
                .map_err(|error| failed(folder, error))?;
        }
        self.done.push(FileDone { path, bytes, hash: *hash });
        Ok(())
    }

    /// Notes something in the state; a disk that has no room for it has none for files either.
    fn note(&mut self, note: impl FnOnce(&mut State) -> io::Result<()>) -> Result<(), SinkError> {
        let folder = &self.config.folder;
        if self.state.is_none() {
            let state =
                State::create(folder, self.stream).map_err(|error| failed(folder, error))?;
            self.state = Some(state);
        }
        match &mut self.state {
            Some(state) => note(state).map_err(|error| failed(folder, error)),
            None => Ok(()),
        }
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

fn rename(from: &Path, to: &Path, overwrite: bool) -> Result<(), SinkError> {
    if !overwrite {
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::EXIST) => return Err(SinkError::Exists(to.to_owned())),
            // File systems that can't: it was looked before.
            Err(_) => {}
        }
    }
    std::fs::rename(from, to).map_err(|error| failed(to, error))
}

/// A folder below the one that was asked for: made, or there already, but no link.
fn make_folder(path: &Path) -> Result<(), SinkError> {
    match std::fs::create_dir(path) {
        Ok(()) => Ok(()),
        Err(error) => match path.symlink_metadata() {
            Ok(meta) if meta.is_dir() => Ok(()),
            Ok(_) => Err(SinkError::NotFolder(path.to_owned())),
            Err(_) => Err(failed(path, error)),
        },
    }
}

impl Take for Writer {
    type Error = SinkError;

    fn file(&mut self, header: &FileHeader, at: u64) -> Result<(), SinkError> {
        if self.config.only.is_some() && (self.files > 0 || header.directory) {
            return Err(SinkError::Several);
        }
        if header.directory {
            let path = self.place(header)?;
            make_folder(&path)?;
            self.directories.push((path, header.clone()));
            self.files += 1;
            return Ok(());
        }
        self.open(header, 0)?;
        // What comes from a pipe comes only once, and a short file soon again.
        if header.length.is_some_and(|length| length >= crate::format::CHUNK as u64) {
            let (files, bytes) = (self.files, self.bytes);
            self.note(|state| state.begin(header, at, files, bytes))?;
        }
        Ok(())
    }

    /// Into the part at once, while they are in the cache. What turns out to be wrong is never noted, so that it is cut off
    /// when the transfer goes on.
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        let Some(current) = &mut self.current else { return Ok(()) };
        self.written += bytes.len() as u64;
        if self.config.limit.is_some_and(|limit| self.written > limit) {
            return Err(SinkError::Full(current.part.clone()));
        }
        current.file.write_all(bytes).map_err(|error| failed(&current.part, error))?;
        current.bytes += bytes.len() as u64;
        Ok(())
    }

    fn chunk(&mut self, hash: &Hash, _: u64) -> Result<(), SinkError> {
        let Some(current) = &self.current else { return Ok(()) };
        if current.header.length.is_some_and(|length| length >= crate::format::CHUNK as u64) {
            self.note(|state| state.chunk(hash))?;
        }
        Ok(())
    }

    fn file_end(&mut self, length: u64, hash: &Hash, at: u64) -> Result<(), SinkError> {
        let Some(current) = self.current.take() else { return Ok(()) };
        let known = current.header.length.is_some();
        self.finish(current, hash, at)?;
        self.files += 1;
        self.bytes += length;
        let (files, bytes) = (self.files, self.bytes);
        if known {
            self.note(|state| state.done(at, files, bytes))?;
        }
        Ok(())
    }

    fn end(&mut self, _: u64, _: u64) -> Result<(), SinkError> {
        for (path, header) in self.directories.drain(..).rev() {
            let mode = u32::from(header.mode) | 0o700;
            // The files are right: a folder's time is not worth an error.
            let _ = std::fs::set_permissions(&path, Permissions::from_mode(mode));
            let _ = File::open(&path).and_then(|it| it.set_times(times(&header)));
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
        // The file was another one when its first chunks came (of the same length and time): the next attempt begins anew.
        if matches!(result, Err(SinkError::Stream(DecodeError::FileHash)))
            && let Some(state) = self.writer.state.take()
        {
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
