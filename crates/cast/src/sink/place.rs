//! Places below a folder that is held open. Each step into it is taken from the folder before, and links are not followed: who
//! exchanges a folder for a link meanwhile leads nowhere.

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

use super::SinkError;

/// What a file is called until it is complete.
const PART: &str = ".part";

/// The longest name of a file in Linux.
const MAX_NAME: usize = 255;

/// A folder, held open. It need not be readable.
#[derive(Clone, Debug)]
pub(super) struct Held {
    fd: Arc<OwnedFd>,
    /// What it was called, for those who read messages.
    path: PathBuf,
}

/// A name in a folder that is held open.
#[derive(Clone, Debug)]
pub(super) struct Spot {
    folder: Held,
    name: OsString,
}

/// What a file is called until it is complete: where the system allows no longer name, another one that is as unique.
pub(super) fn part_name(name: &OsStr) -> OsString {
    let mut part = name.to_owned();
    if name.len() + PART.len() > MAX_NAME {
        part = format!("rackweave-cast-{}", blake3::hash(name.as_bytes()).to_hex()).into();
    }
    part.push(PART);
    part
}

pub(super) fn failed(path: &Path, source: io::Error) -> SinkError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            SinkError::Full { path, needs: None, free: None }
        }
        io::ErrorKind::FileTooLarge => SinkError::TooLarge(path),
        _ => SinkError::Write { path, source },
    }
}

impl Held {
    /// Opens a folder that a user has named, and makes it if there is none.
    pub(super) fn open(path: &Path) -> Result<Self, SinkError> {
        std::fs::create_dir_all(path).map_err(|error| failed(path, error))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|error| failed(path, error.into()))?;
        Ok(Self { fd: Arc::new(fd), path: path.to_owned() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The same folder by the name that its user has for it.
    pub(super) fn called(&self, path: PathBuf) -> Self {
        Self { fd: Arc::clone(&self.fd), path }
    }

    pub(super) fn at(&self, name: &OsStr) -> Spot {
        Spot { folder: self.clone(), name: name.to_owned() }
    }

    /// The folder of this name in it: made, or there already, but no link.
    pub(super) fn enter(&self, name: &OsStr) -> Result<Self, SinkError> {
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
            Err(Errno::NOTDIR | Errno::LOOP) => Err(SinkError::NotFolder(path)),
            Err(error) => Err(failed(&path, error.into())),
        }
    }

    /// Opens it for what [`Self::open`] does not allow: times, and having it on the disk.
    pub(super) fn file(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(openat(&*self.fd, ".", flags, Mode::empty())?.into())
    }

    /// Bytes that this user may still write there.
    pub(super) fn free(&self) -> Option<u64> {
        fstatvfs(&*self.fd).ok().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize))
    }
}

impl Spot {
    pub(super) const fn folder(&self) -> &Held {
        &self.folder
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.path.join(&self.name)
    }

    /// Where its bytes are until they are complete.
    pub(super) fn part(&self) -> Self {
        self.folder.at(&part_name(&self.name))
    }

    /// What is there; a link is one.
    pub(super) fn kind(&self) -> Option<FileType> {
        let stat = statat(&*self.folder.fd, &self.name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(FileType::from_raw_mode(stat.st_mode))
    }

    fn open(&self, flags: OFlags) -> io::Result<File> {
        // No link, and no waiting for who reads a pipe.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let file = File::from(openat(&*self.folder.fd, &self.name, flags, mode)?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::other("it is not a file")),
        }
    }

    /// A file to be looked at; nothing else is.
    pub(super) fn look(&self) -> Option<File> {
        self.open(OFlags::RDONLY).ok()
    }

    /// A file that is not there yet.
    pub(super) fn create(&self) -> io::Result<File> {
        self.open(OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)
    }

    /// A file to be written by one transfer at a time. What is there already must be `mine`, or look as parts do.
    pub(super) fn write(&self, mine: bool) -> Result<File, SinkError> {
        let wrong = |error| failed(&self.path(), error);
        let open = || self.open(OFlags::WRONLY | OFlags::CREATE);
        let file = match open() {
            // A part that has got the mode of a file that nobody may write, and not its name.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && mine => {
                let unlock = |file: File| fchmod(file, Mode::from_raw_mode(0o600));
                self.look().map_or(Ok(()), unlock).map_err(|error| wrong(error.into()))?;
                open()
            }
            other => other,
        };
        let file = file.map_err(wrong)?;
        // File systems that have no locks do without.
        if let Err(Errno::WOULDBLOCK) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            return Err(SinkError::Busy(self.path()));
        }
        let stat = rustix::fs::fstat(&file).map_err(|error| wrong(error.into()))?;
        let there = statat(&*self.folder.fd, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        // It has got its name between: it is no part any more.
        if !there.is_ok_and(|there| (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino)) {
            return Err(SinkError::Busy(self.path()));
        }
        match mine || stat.st_mode & 0o777 == 0o600 || stat.st_size == 0 {
            true => Ok(file),
            false => Err(SinkError::Exists(self.path())),
        }
    }

    pub(super) fn remove(&self) -> io::Result<()> {
        Ok(unlinkat(&*self.folder.fd, &self.name, AtFlags::empty())?)
    }

    /// Gives what is here another name in the same folder, instead of what is there.
    pub(super) fn rename(&self, to: &Self) -> io::Result<()> {
        Ok(renameat(&*self.folder.fd, &self.name, &*to.folder.fd, &to.name)?)
    }

    /// The same, but not if something is there.
    pub(super) fn rename_new(&self, to: &Self) -> io::Result<()> {
        let (from, into) = (&*self.folder.fd, &*to.folder.fd);
        match renameat_with(from, &self.name, into, &to.name, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => Err(io::ErrorKind::AlreadyExists.into()),
            // File systems that can't: it is looked before.
            Err(_) if to.kind().is_some() => Err(io::ErrorKind::AlreadyExists.into()),
            Err(_) => self.rename(to),
        }
    }
}
