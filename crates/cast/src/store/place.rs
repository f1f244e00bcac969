//! Open directories and the names in them. Each directory is opened relative to its parent without following symbolic
//! links, so that replacing a directory by a link in the meantime does not redirect writes.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, mkdirat, openat, renameat_with};
use rustix::fs::{FlockOperation, fchmod, flock, fstatvfs, renameat, statat, unlinkat};
use rustix::io::Errno;

use super::{StoreError, fault};

/// The suffix of an incomplete file.
const PART: &str = ".part";

/// The longest name of a file in Linux, in bytes.
const MAX_NAME: usize = 255;

/// An open directory. It need not be readable.
#[derive(Clone, Debug)]
pub struct Dir {
    fd: Arc<OwnedFd>,
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
        std::fs::create_dir_all(path).map_err(|error| failed(path, error))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|error| failed(path, error.into()))?;
        Ok(Self { fd: Arc::new(fd), path: path.to_owned() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the same directory with another path for messages.
    pub(crate) fn with_path(&self, path: PathBuf) -> Self {
        Self { fd: Arc::clone(&self.fd), path }
    }

    /// Returns the entry of this name, which must be a single component.
    #[must_use]
    pub fn entry(&self, name: &OsStr) -> Entry {
        Entry { dir: self.clone(), name: name.to_owned() }
    }

    /// Opens the subdirectory of this name, and creates it if it does not exist; a link is refused.
    pub(crate) fn subdir(&self, name: &OsStr) -> Result<Self, StoreError> {
        let path = self.path.join(name);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || openat(&*self.fd, name, flags, Mode::empty());
        let opened = match open() {
            Err(Errno::NOENT) => match mkdirat(&*self.fd, name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => open(),
                Err(error) => Err(error),
            },
            other => other,
        };
        match opened {
            Ok(fd) => Ok(Self { fd: Arc::new(fd), path }),
            Err(Errno::NOTDIR | Errno::LOOP) => Err(StoreError::NotDirectory(path)),
            Err(error) => Err(failed(&path, error.into())),
        }
    }

    /// Returns a descriptor that can set times and `fsync`, which that of [`Self::open`] (`O_PATH`) cannot.
    pub(crate) fn file(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(openat(&*self.fd, ".", flags, Mode::empty())?.into())
    }

    /// Returns the bytes that this user can still write to its file system.
    pub(crate) fn free(&self) -> Option<u64> {
        fstatvfs(&*self.fd).ok().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize))
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

    /// Returns the type of the file with this name, without following links; `None` if there is none.
    pub(crate) fn kind(&self) -> Option<FileType> {
        let stat = statat(&*self.dir.fd, &self.name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(FileType::from_raw_mode(stat.st_mode))
    }

    fn open(&self, flags: OFlags) -> io::Result<File> {
        // The flags prevent following a link, and waiting for the other end of a pipe.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let file = File::from(openat(&*self.dir.fd, &self.name, flags, mode)?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::other("it is not a file")),
        }
    }

    /// Opens a regular file for reading; anything else counts as absent.
    pub(crate) fn open_read(&self) -> Option<File> {
        self.open(OFlags::RDONLY).ok()
    }

    /// Opens a regular file for reading and writing; anything else counts as absent.
    pub(crate) fn open_update(&self) -> Option<File> {
        self.open(OFlags::RDWR).ok()
    }

    /// Creates a file; fails if the name is taken.
    pub(crate) fn create(&self) -> io::Result<File> {
        fault::step()?;
        self.open(OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
    }

    /// Opens or creates a file, and locks it against other transfers. An existing file must be `ours` (left by an earlier attempt), or
    /// look like an incomplete file: mode 0600, or empty.
    pub(crate) fn open_write(&self, ours: bool) -> Result<File, StoreError> {
        let wrong = |error| failed(&self.path(), error);
        fault::step().map_err(wrong)?;
        let open = || self.open(OFlags::RDWR | OFlags::CREATE);
        let file = match open() {
            // An earlier attempt was interrupted after setting a read-only mode and before renaming the file.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && ours => {
                let unlock = |file: File| fchmod(file, Mode::from_raw_mode(0o600));
                self.open_read().map_or(Ok(()), unlock).map_err(|error| wrong(error.into()))?;
                open()
            }
            other => other,
        };
        let file = file.map_err(wrong)?;
        // Some file systems have no locks.
        if let Err(Errno::WOULDBLOCK) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            return Err(StoreError::Busy(self.path()));
        }
        let stat = rustix::fs::fstat(&file).map_err(|error| wrong(error.into()))?;
        let there = statat(&*self.dir.fd, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        // The file was renamed between opening and locking, so it is complete.
        if !there.is_ok_and(|there| (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino)) {
            return Err(StoreError::Busy(self.path()));
        }
        match ours || stat.st_mode & 0o777 == 0o600 || stat.st_size == 0 {
            true => Ok(file),
            false => Err(StoreError::Exists(self.path())),
        }
    }

    /// Removes the file with this name, if there is one.
    pub(crate) fn remove(&self) -> io::Result<()> {
        fault::step()?;
        match unlinkat(&*self.dir.fd, &self.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Renames the file within its directory, replacing any file with the new name.
    pub(crate) fn rename(&self, to: &Self) -> io::Result<()> {
        fault::step()?;
        Ok(renameat(&*self.dir.fd, &self.name, &*to.dir.fd, &to.name)?)
    }

    /// Renames the file within its directory, unless the new name exists.
    pub(crate) fn rename_new(&self, to: &Self) -> io::Result<()> {
        fault::step()?;
        let (from, into) = (&*self.dir.fd, &*to.dir.fd);
        match renameat_with(from, &self.name, into, &to.name, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => Err(io::ErrorKind::AlreadyExists.into()),
            // On file systems without RENAME_NOREPLACE, check first.
            Err(_) if to.kind().is_some() => Err(io::ErrorKind::AlreadyExists.into()),
            Err(_) => self.rename(to),
        }
    }
}
