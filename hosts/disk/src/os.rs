//! The files of the operating system.

use std::ffi::{OsStr, OsString};
use std::fs::{File, FileTimes, Permissions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{
    Access, Advice, AtFlags, CWD, FallocateFlags, FileType, FlockOperation, Mode, OFlags,
    RenameFlags, SeekFrom, StatxFlags, Timespec, Timestamps, UTIME_OMIT, XattrFlags,
};
use rustix::fs::{
    accessat, chmod, chownat, fadvise, fallocate, fchown, fgetxattr, flistxattr, flock,
    fremovexattr, fsetxattr, fstat, fstatvfs, linkat, mkdirat, openat, readlinkat, renameat,
    renameat_with, seek, stat, statat, statx, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

use crate::{Directory, DiskFile, FileKind, Open, Stat, write_zeros};

/// The most bytes of a value of an extended attribute, and of the names of all, that Linux has.
const MAX_ATTRIBUTE: usize = 64 << 10;

/// A directory of the operating system. It need not be readable.
#[derive(Debug)]
struct OsDirectory {
    fd: OwnedFd,
    path: PathBuf,
    /// Whether nothing gets another mode to be opened.
    keeps_modes: bool,
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
    Ok(Arc::new(OsDirectory { fd, path: path.to_owned(), keeps_modes: false }))
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

/// Returns a path to what a descriptor is open for.
fn path_of(fd: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Opens for reading what a descriptor of `O_PATH` is open for and this user owns, whatever its mode, which it has again
/// afterwards.
fn open_own(fd: &OwnedFd, needed: u32) -> io::Result<File> {
    let found = fstat(fd)?;
    if found.st_uid != rustix::process::geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let (path, mode) = (path_of(fd), found.st_mode & 0o7777);
    chmod(&path, Mode::from_raw_mode(mode | needed))?;
    let opened = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    chmod(&path, Mode::from_raw_mode(mode))?;
    Ok(opened?.into())
}

/// Returns a user and a group. The largest number is nobody's.
fn owner(user: u32, group: u32) -> io::Result<(Uid, Gid)> {
    match user == u32::MAX || group == u32::MAX {
        true => Err(io::ErrorKind::InvalidInput.into()),
        false => Ok((Uid::from_raw(user), Gid::from_raw(group))),
    }
}

impl OsDirectory {
    /// Returns a descriptor that can set times and `fsync`, which one of `O_PATH` cannot.
    fn file(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat(&self.fd, ".", flags, Mode::empty()) {
            Err(Errno::ACCESS) if !self.keeps_modes => open_own(&self.fd, 0o500),
            other => Ok(other?.into()),
        }
    }
}

impl Directory for OsDirectory {
    fn as_is(&self) -> io::Result<Arc<dyn Directory>> {
        let (fd, path) = (self.fd.try_clone()?, self.path.clone());
        Ok(Arc::new(Self { fd, path, keeps_modes: true }))
    }

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
            Ok(fd) => {
                let (path, keeps_modes) = (self.path.join(name), self.keeps_modes);
                Ok(Arc::new(Self { fd, path, keeps_modes }))
            }
            Err(Errno::NOTDIR | Errno::LOOP) => Err(io::ErrorKind::NotADirectory.into()),
            Err(error) => Err(error.into()),
        }
    }

    fn stat(&self, name: &OsStr) -> Option<Stat> {
        let stat = statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => FileKind::File,
            FileType::Directory => FileKind::Directory,
            FileType::Symlink => FileKind::SymbolicLink,
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
            changed: (stat.st_ctime, u32::try_from(stat.st_ctime_nsec).unwrap_or_default()),
            is_own: stat.st_uid == rustix::process::geteuid().as_raw(),
            owner: (stat.st_uid, stat.st_gid),
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
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.fd, name, how | flags, Mode::from_raw_mode(0o600)) {
            Err(Errno::ACCESS) if how == OFlags::RDONLY && !self.keeps_modes => {
                let fd = openat(&self.fd, name, OFlags::PATH | flags, Mode::empty())?;
                // Opening a pipe could wait for its other end.
                if FileType::from_raw_mode(fstat(&fd)?.st_mode) != FileType::RegularFile {
                    return Err(io::ErrorKind::PermissionDenied.into());
                }
                open_own(&fd, 0o400)?
            }
            other => File::from(other?),
        };
        match file.metadata()?.is_file() {
            true => Ok(Box::new(file)),
            false => Err(io::Error::other("it is not a file")),
        }
    }

    fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    fn remove_directory(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name, AtFlags::REMOVEDIR)?)
    }

    fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(self.file()?)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        }
        names.sort();
        Ok(names)
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

    fn link(&self, file: &dyn DiskFile, name: &OsStr) -> io::Result<()> {
        let file = file.descriptor().ok_or(io::ErrorKind::Unsupported)?;
        Ok(linkat(CWD, path_of(&file), &self.fd, name, AtFlags::SYMLINK_FOLLOW)?)
    }

    fn symlink(&self, target: &OsStr, name: &OsStr) -> io::Result<()> {
        Ok(symlinkat(target, &self.fd, name)?)
    }

    fn target(&self, name: &OsStr) -> io::Result<OsString> {
        let target = readlinkat(&self.fd, name, Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()))
    }

    fn set_link_modified(&self, name: &OsStr, (seconds, nanos): (i64, u32)) -> io::Result<()> {
        // Nothing else than a symbolic link can be read as one.
        self.target(name)?;
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: seconds, tv_nsec: nanos.into() },
        };
        Ok(utimensat(&self.fd, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn set_link_owner(&self, name: &OsStr, (user, group): (u32, u32)) -> io::Result<()> {
        self.target(name)?;
        let (user, group) = owner(user, group)?;
        Ok(chownat(&self.fd, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?)
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

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(chmod(path_of(&self.fd), Mode::from_raw_mode(mode))?)
    }

    fn set_attributes(&self, mode: u32, modified: (i64, u32)) -> io::Result<()> {
        let file = self.file()?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.set_times(times(modified))
    }

    fn handle(&self) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(self.file()?))
    }

    fn free(&self) -> Option<u64> {
        fstatvfs(&self.fd).ok().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    fn may_change(&self) -> bool {
        let is_own =
            || fstat(&self.fd).is_ok_and(|it| it.st_uid == rustix::process::geteuid().as_raw());
        match accessat(&self.fd, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
            Ok(()) => true,
            Err(Errno::ACCESS) => is_own(),
            // A file system that is read-only, for example.
            Err(_) => false,
        }
    }

    fn mount(&self) -> u64 {
        let found = statx(&self.fd, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok();
        let told = found.filter(|it| it.stx_mask & StatxFlags::MNT_ID.bits() != 0);
        told.map_or(0, |it| it.stx_mnt_id)
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
            changed: (meta.ctime(), u32::try_from(meta.ctime_nsec()).unwrap_or_default()),
            is_own: meta.uid() == rustix::process::geteuid().as_raw(),
            owner: (meta.uid(), meta.gid()),
            names: meta.nlink(),
        })
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.set_permissions(Permissions::from_mode(mode))
    }

    fn set_owner(&self, (user, group): (u32, u32)) -> io::Result<()> {
        let (user, group) = owner(user, group)?;
        Ok(fchown(self, Some(user), Some(group))?)
    }

    fn set_modified(&self, modified: (i64, u32)) -> io::Result<()> {
        self.set_times(times(modified))
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }

    fn settle(&self) -> io::Result<()> {
        self.sync_all()?;
        Ok(fadvise(self, 0, None, Advice::DontNeed)?)
    }

    fn zero(&self, range: Range<u64>) -> io::Result<()> {
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        // A device can do it by itself.
        match fallocate(self, flags, range.start, range.end - range.start) {
            Ok(()) => Ok(()),
            Err(_) => write_zeros(self, range),
        }
    }

    fn attributes(&self) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let (mut names, mut value) = (vec![0; MAX_ATTRIBUTE], vec![0; MAX_ATTRIBUTE]);
        let len = flistxattr(self, &mut names[..])?;
        let mut found = Vec::new();
        for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            match fgetxattr(self, name, &mut value[..]) {
                Ok(len) => found.push((name.to_vec(), value[..len].to_vec())),
                // It is gone, or not this user's to read.
                Err(Errno::NODATA | Errno::ACCESS | Errno::PERM) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(found)
    }

    fn set_attribute(&self, name: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        match value {
            Some(value) => fsetxattr(self, name, value, XattrFlags::empty())?,
            None => fremovexattr(self, name)?,
        }
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn lock(&self) -> bool {
        // Some file systems have no locks.
        flock(self, FlockOperation::NonBlockingLockExclusive) != Err(Errno::WOULDBLOCK)
    }

    fn unlock(&self) {
        let _ = flock(self, FlockOperation::Unlock);
    }
}
