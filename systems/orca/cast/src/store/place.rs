//! Open directories and the names in them. Each directory is opened relative to its parent without following symbolic
//! links, so that replacing a directory by a link in the meantime does not redirect writes.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk::{self, Directory, DiskFile, FileKind, Open, Part, PartError, Stat};
use super::{StoreError, fault};

/// The suffix of an incomplete file.
const PART: &str = ".part";

/// The longest name of a file in Linux, in bytes.
const MAX_NAME: usize = 255;

/// An open directory. It need not be readable.
#[derive(Clone, Debug)]
pub struct Dir {
    on: Arc<dyn Directory>,
    /// The path when it was opened, which is used in messages only.
    path: PathBuf,
}

/// A name in a [`Dir`], whether or not a file has it.
#[derive(Clone, Debug)]
pub struct Entry {
    dir: Dir,
    name: OsString,
}

/// Returns the name of an incomplete file. If the suffix would make the name longer than the system allows, a hash of
/// the name takes its place.
pub(crate) fn part_name(name: &OsStr) -> OsString {
    let mut part = name.to_owned();
    if name.len() + PART.len() > MAX_NAME {
        part = format!("rackweave-cast-{}", blake3::hash(name.as_bytes()).to_hex()).into();
    }
    part.push(PART);
    part
}

pub(crate) fn failed(path: &Path, source: io::Error) -> StoreError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            StoreError::Full { path, needs: None, free: None }
        }
        io::ErrorKind::FileTooLarge => StoreError::TooLarge(path),
        _ => StoreError::Write { path, source },
    }
}

impl Dir {
    /// Opens a directory by its path, and creates it if it does not exist.
    ///
    /// # Errors
    /// If it can be neither opened nor created.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let on = disk::open(path).map_err(|error| failed(path, error))?;
        Ok(Self { on, path: path.to_owned() })
    }

    /// Opens a directory by its path; `None` if it does not exist.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open_existing(path: &Path) -> Result<Option<Self>, StoreError> {
        match disk::open_existing(path) {
            Ok(on) => Ok(Some(Self { on, path: path.to_owned() })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(path, error)),
        }
    }

    /// Returns a directory of another file system than the operating system's; `path` is used in messages only.
    #[must_use]
    pub fn on(on: Arc<dyn Directory>, path: PathBuf) -> Self {
        Self { on, path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the same directory with another path for messages.
    pub(crate) fn with_path(&self, path: PathBuf) -> Self {
        Self { on: Arc::clone(&self.on), path }
    }

    /// Returns the entry of this name, which must be a single component.
    #[must_use]
    pub fn entry(&self, name: &OsStr) -> Entry {
        Entry { dir: self.clone(), name: name.to_owned() }
    }

    /// Opens the subdirectory of this name, and creates it if it does not exist; a link is refused.
    pub(crate) fn subdir(&self, name: &OsStr) -> Result<Self, StoreError> {
        let path = self.path.join(name);
        match self.on.subdir(name) {
            Ok(on) => Ok(Self { on, path }),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                Err(StoreError::NotDirectory(path))
            }
            Err(error) => Err(failed(&path, error)),
        }
    }

    /// Opens the subdirectory of this name if there is one; a link is none.
    pub(crate) fn existing(&self, name: &OsStr) -> Option<Self> {
        let is_directory = self.entry(name).kind() == Some(FileKind::Directory);
        is_directory.then(|| self.subdir(name).ok()).flatten()
    }

    /// Makes the names in it permanent.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        self.on.sync().map_err(|error| failed(&self.path, error))
    }

    /// Fails if its path does not lead to it any more.
    pub(crate) fn check_place(&self) -> Result<(), StoreError> {
        match self.on.is_in_place() {
            true => Ok(()),
            false => Err(failed(&self.path, PartError::Displaced.into())),
        }
    }

    pub(crate) fn set_attributes(&self, mode: u32, modified: (i64, u32)) -> io::Result<()> {
        self.on.set_attributes(mode, modified)
    }

    /// Returns the bytes that this user can still write to its file system.
    pub(crate) fn free(&self) -> Option<u64> {
        self.on.free()
    }
}

impl Entry {
    pub(crate) const fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Returns the path, for messages.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path.join(&self.name)
    }

    /// Returns the entry that holds the bytes of an incomplete file.
    pub(crate) fn part(&self) -> Self {
        self.dir.entry(&part_name(&self.name))
    }

    /// Returns the attributes of what has this name, without following links.
    pub(crate) fn stat(&self) -> Option<Stat> {
        self.dir.on.stat(&self.name)
    }

    /// Returns the type of the file with this name, without following links; `None` if there is none.
    pub(crate) fn kind(&self) -> Option<FileKind> {
        self.stat().map(|stat| stat.kind)
    }

    fn open(&self, how: Open) -> io::Result<Box<dyn DiskFile>> {
        self.dir.on.open(&self.name, how)
    }

    /// Opens a regular file for reading; anything else counts as absent.
    pub(crate) fn open_read(&self) -> Option<Box<dyn DiskFile>> {
        self.open(Open::Read).ok()
    }

    /// Opens a regular file for reading and writing; anything else counts as absent.
    pub(crate) fn open_update(&self) -> Option<Box<dyn DiskFile>> {
        self.open(Open::Update).ok()
    }

    /// Creates a file; fails if the name is taken.
    pub(crate) fn create(&self) -> io::Result<Box<dyn DiskFile>> {
        fault::step()?;
        self.open(Open::Create)
    }

    /// Opens or creates the incomplete file of this name, and locks it against other transfers. An existing file must be `ours` (left
    /// by an earlier attempt), or look like an incomplete file.
    pub(crate) fn open_part(&self, ours: bool) -> Result<Part, StoreError> {
        let wrong = |error| failed(&self.path(), error);
        fault::step().map_err(wrong)?;
        Part::open(Arc::clone(&self.dir.on), &self.name, ours).map_err(|error| match error {
            PartError::Busy => StoreError::Busy(self.path()),
            PartError::Foreign => StoreError::Exists(self.path()),
            error => wrong(error.into()),
        })
    }

    /// Gives this name to an incomplete file of the same directory.
    pub(crate) fn publish(
        &self,
        part: &Part,
        replace: bool,
        length: Option<u64>,
        sync: bool,
    ) -> Result<(), PartError> {
        fault::step()?;
        part.publish(&self.name, replace, length, sync)
    }

    /// Removes the file with this name, if there is one.
    pub(crate) fn remove(&self) -> io::Result<()> {
        fault::step()?;
        match self.dir.on.remove(&self.name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Renames the file within its directory, replacing any file with the new name.
    pub(crate) fn rename(&self, to: &Self) -> io::Result<()> {
        fault::step()?;
        self.dir.on.rename(&self.name, &to.name, true)
    }
}
