//! The file system as the writers of received files and images see it: the operations that decide what is left after a crash. The
//! code above runs on the operating system's files, or on simulated ones that lose what was not synced (`rackweave chaos`).
//!
//! [`Part`] is a file that is written aside and gets its name when it is whole.

mod part;

use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs::{File, FileTimes, Permissions};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, SeekFrom,
};
use rustix::fs::{
    fallocate, flock, fstat, fstatvfs, mkdirat, openat, renameat, renameat_with, seek, stat,
    statat, unlinkat,
};
use rustix::io::Errno;

pub use self::part::{INCOMPLETE, Part, PartError, is_incomplete, new_mode};

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// For reading.
    Read,
    /// For reading and writing.
    Update,
    /// For reading and writing; it is created with mode 0600 if there is none.
    UpdateOrCreate,
    /// It is created with mode 0600, for reading and writing; an existing file is an error.
    Create,
}

/// What a name refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// Anything else, such as a symbolic link.
    Other,
}

/// The attributes of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// What it is.
    pub kind: FileKind,
    /// Its file system and its number there.
    pub id: (u64, u64),
    /// The length in bytes.
    pub len: u64,
    /// The permission bits.
    pub mode: u32,
    /// The time of the last modification: seconds and nanoseconds since 1970.
    pub modified: (i64, u32),
    /// Whether it belongs to the user of this process.
    pub is_own: bool,
    /// The number of its names.
    pub names: u64,
}

/// A directory of a file system.
pub trait Directory: Debug + Send + Sync {
    /// Opens the subdirectory of this name, and creates it if it does not exist.
    ///
    /// # Errors
    /// If the system refuses; [`io::ErrorKind::NotADirectory`] if the name is that of anything else, links included.
    fn subdir(&self, name: &OsStr) -> io::Result<Arc<dyn Directory>>;

    /// Returns the attributes of what has this name, without following links; `None` if nothing has it.
    fn stat(&self, name: &OsStr) -> Option<Stat>;

    /// Opens a regular file.
    ///
    /// # Errors
    /// If the system refuses, or the name is that of anything else.
    fn open(&self, name: &OsStr, how: Open) -> io::Result<Box<dyn DiskFile>>;

    /// Removes a file.
    ///
    /// # Errors
    /// If the system refuses, or there is none.
    fn remove(&self, name: &OsStr) -> io::Result<()>;

    /// Renames a file in one step, replacing one that has the new name.
    ///
    /// # Errors
    /// If the system refuses; [`io::ErrorKind::AlreadyExists`] if the new name exists and `replace` is false.
    fn rename(&self, from: &OsStr, to: &OsStr, replace: bool) -> io::Result<()>;

    /// Whether the path by which the directory was opened still leads to it: it was neither removed nor renamed, and no directory above
    /// it was.
    fn is_in_place(&self) -> bool;

    /// Makes names permanent: returns when a crash of the machine can no longer undo what was done in this directory.
    ///
    /// # Errors
    /// If the system refuses.
    fn sync(&self) -> io::Result<()>;

    /// Sets the permission bits and the time of the last modification of the directory.
    ///
    /// # Errors
    /// If the system refuses.
    fn set_attributes(&self, mode: u32, modified: (i64, u32)) -> io::Result<()>;

    /// Returns the number of bytes that this user can still write to the file system, if it is known.
    fn free(&self) -> Option<u64>;
}

/// An open regular file.
pub trait DiskFile: Debug + Send + Sync {
    /// Opens a second handle of the same file.
    ///
    /// # Errors
    /// If the system refuses.
    fn duplicate(&self) -> io::Result<Box<dyn DiskFile>>;

    /// Makes a range a hole, which reads as zeros. The length does not change.
    ///
    /// # Errors
    /// If the file system has no holes.
    fn punch(&self, range: Range<u64>) -> io::Result<()>;

    /// Whether a range is a hole; false if it is not known.
    fn is_hole(&self, range: Range<u64>) -> bool;

    /// Reads bytes at an offset; returns how many, 0 at the end.
    ///
    /// # Errors
    /// If the system refuses.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes bytes at an offset; returns how many, which may be fewer than all.
    ///
    /// # Errors
    /// If the system refuses.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Cuts the file, or extends it with zeros.
    ///
    /// # Errors
    /// If the system refuses.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Returns the attributes.
    ///
    /// # Errors
    /// If the system refuses.
    fn stat(&self) -> io::Result<Stat>;

    /// Sets the permission bits.
    ///
    /// # Errors
    /// If the system refuses.
    fn set_mode(&self, mode: u32) -> io::Result<()>;

    /// Sets the time of the last modification, in seconds and nanoseconds since 1970.
    ///
    /// # Errors
    /// If the system refuses.
    fn set_modified(&self, modified: (i64, u32)) -> io::Result<()>;

    /// Returns when a crash of the machine can no longer change the bytes and the length.
    ///
    /// # Errors
    /// If the system refuses, or could not write them.
    fn sync(&self) -> io::Result<()>;

    /// Locks the file against other processes until it is closed; returns false if another one holds the lock.
    fn lock(&self) -> bool;
}

/// Writes all bytes.
///
/// # Errors
/// If the system refuses.
pub fn write_all_at(file: &dyn DiskFile, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_at(bytes, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(len) => {
                bytes = &bytes[len..];
                at += len as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Fills a buffer.
///
/// # Errors
/// If the system refuses, or the file ends before.
pub fn read_exact_at(file: &dyn DiskFile, mut buffer: &mut [u8], mut at: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        match file.read_at(buffer, at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => {
                buffer = &mut buffer[len..];
                at += len as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads a file from an offset on.
#[derive(Debug)]
pub struct Reading<'a>(pub &'a dyn DiskFile, pub u64);

impl io::Read for Reading<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.0.read_at(buffer, self.1)?;
        self.1 += len as u64;
        Ok(len)
    }
}

/// Writes a file from an offset on.
#[derive(Debug)]
pub struct Writing<'a>(pub &'a dyn DiskFile, pub u64);

impl io::Write for Writing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.0.write_at(bytes, self.1)?;
        self.1 += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A directory of the operating system. It need not be readable.
#[derive(Debug)]
struct OsDirectory {
    fd: OwnedFd,
    path: PathBuf,
}

/// Opens a directory of the operating system by its path, and creates it if it does not exist.
///
/// # Errors
/// If the system refuses.
pub fn open(path: &Path) -> io::Result<Arc<dyn Directory>> {
    std::fs::create_dir_all(path)?;
    open_existing(path)
}

/// Opens a directory of the operating system by its path.
///
/// # Errors
/// If there is none, or the system refuses.
pub fn open_existing(path: &Path) -> io::Result<Arc<dyn Directory>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty())?;
    Ok(Arc::new(OsDirectory { fd, path: path.to_owned() }))
}

/// Returns file times for a modification time; an impossible one changes nothing.
fn times((seconds, nanos): (i64, u32)) -> FileTimes {
    let since = Duration::from_secs(seconds.unsigned_abs());
    let second = match seconds < 0 {
        true => UNIX_EPOCH.checked_sub(since),
        false => UNIX_EPOCH.checked_add(since),
    };
    second
        .and_then(|second| second.checked_add(Duration::from_nanos(nanos.into())))
        .map_or_else(FileTimes::new, |time| FileTimes::new().set_modified(time))
}

impl OsDirectory {
    /// Returns a descriptor that can set times and `fsync`, which one of `O_PATH` cannot.
    fn file(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(openat(&self.fd, ".", flags, Mode::empty())?.into())
    }
}

impl Directory for OsDirectory {
    fn subdir(&self, name: &OsStr) -> io::Result<Arc<dyn Directory>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || openat(&self.fd, name, flags, Mode::empty());
        let opened = match open() {
            Err(Errno::NOENT) => match mkdirat(&self.fd, name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => open(),
                Err(error) => Err(error),
            },
            other => other,
        };
        match opened {
            Ok(fd) => Ok(Arc::new(Self { fd, path: self.path.join(name) })),
            Err(Errno::NOTDIR | Errno::LOOP) => Err(io::ErrorKind::NotADirectory.into()),
            Err(error) => Err(error.into()),
        }
    }

    fn stat(&self, name: &OsStr) -> Option<Stat> {
        let stat = statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => FileKind::File,
            FileType::Directory => FileKind::Directory,
            _ => FileKind::Other,
        };
        #[allow(clippy::useless_conversion, reason = "its type depends on the architecture")]
        let names = u64::from(stat.st_nlink);
        Some(Stat {
            kind,
            id: (stat.st_dev, stat.st_ino),
            len: u64::try_from(stat.st_size).unwrap_or_default(),
            mode: stat.st_mode & 0o777,
            modified: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or_default()),
            is_own: stat.st_uid == rustix::process::geteuid().as_raw(),
            names,
        })
    }

    fn open(&self, name: &OsStr, how: Open) -> io::Result<Box<dyn DiskFile>> {
        let how = match how {
            Open::Read => OFlags::RDONLY,
            Open::Update => OFlags::RDWR,
            Open::UpdateOrCreate => OFlags::RDWR | OFlags::CREATE,
            Open::Create => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        };
        // The flags prevent following a link, and waiting for the other end of a pipe.
        let flags = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&self.fd, name, flags, Mode::from_raw_mode(0o600))?);
        match file.metadata()?.is_file() {
            true => Ok(Box::new(file)),
            false => Err(io::Error::other("it is not a file")),
        }
    }

    fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    fn rename(&self, from: &OsStr, to: &OsStr, replace: bool) -> io::Result<()> {
        if !replace {
            match renameat_with(&self.fd, from, &self.fd, to, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST) => return Err(io::ErrorKind::AlreadyExists.into()),
                // On file systems without RENAME_NOREPLACE, check first.
                Err(_) if self.stat(to).is_some() => {
                    return Err(io::ErrorKind::AlreadyExists.into());
                }
                Err(_) => {}
            }
        }
        Ok(renameat(&self.fd, from, &self.fd, to)?)
    }

    fn is_in_place(&self) -> bool {
        let (open, named) = (fstat(&self.fd), stat(&self.path));
        open.is_ok_and(|open| {
            named.is_ok_and(|named| (open.st_dev, open.st_ino) == (named.st_dev, named.st_ino))
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.file()?.sync_all()
    }

    fn set_attributes(&self, mode: u32, modified: (i64, u32)) -> io::Result<()> {
        let file = self.file()?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.set_times(times(modified))
    }

    fn free(&self) -> Option<u64> {
        fstatvfs(&self.fd).ok().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize))
    }
}

impl DiskFile for File {
    fn duplicate(&self) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(self.try_clone()?))
    }

    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(self, flags, range.start, range.end - range.start)?)
    }

    fn is_hole(&self, range: Range<u64>) -> bool {
        match seek(self, SeekFrom::Data(range.start)) {
            Ok(data) => data >= range.end,
            // There is no data up to the end of the file, which may be before the end of the range.
            Err(Errno::NXIO) => {
                self.metadata().is_ok_and(|found| found.is_file() && found.len() >= range.end)
            }
            Err(_) => false,
        }
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::write_at(self, bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Self::set_len(self, len)
    }

    fn stat(&self) -> io::Result<Stat> {
        let meta = self.metadata()?;
        Ok(Stat {
            kind: FileKind::File,
            id: (meta.dev(), meta.ino()),
            len: meta.len(),
            mode: meta.mode() & 0o777,
            modified: (meta.mtime(), u32::try_from(meta.mtime_nsec()).unwrap_or_default()),
            is_own: meta.uid() == rustix::process::geteuid().as_raw(),
            names: meta.nlink(),
        })
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.set_permissions(Permissions::from_mode(mode))
    }

    fn set_modified(&self, modified: (i64, u32)) -> io::Result<()> {
        self.set_times(times(modified))
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }

    fn lock(&self) -> bool {
        // Some file systems have no locks.
        flock(self, FlockOperation::NonBlockingLockExclusive) != Err(Errno::WOULDBLOCK)
    }
}
