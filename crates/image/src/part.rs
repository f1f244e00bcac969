//! Files that are written aside and get their name when they are complete.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, RenameFlags, flock};

use crate::ImageError;

/// The mode of an incomplete file, by which it is recognised.
const INCOMPLETE: u32 = 0o600;

/// Device and inode of a file.
pub(crate) type FileId = (u64, u64);

pub(crate) fn id(found: &Metadata) -> FileId {
    (found.dev(), found.ino())
}

/// Returns whether a file that already exists may be another's: an incomplete file belongs to this user, so that nobody else can write to it
/// meanwhile, and has content, one name, and its mode.
pub(crate) fn is_foreign(found: &Metadata) -> bool {
    let is_own = found.uid() == rustix::process::geteuid().as_raw();
    let is_marked = found.mode() & 0o777 == INCOMPLETE && found.nlink() == 1;
    !is_own || found.len() > 0 && !is_marked
}

/// Returns the permissions that the process does not give to new files.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    // Without /proc, nobody else may read the file.
    line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o077)
}

/// A file that is being written under the name `TARGET.part`, locked against other processes.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) file: File,
    path: PathBuf,
    target: PathBuf,
    overwrite: bool,
    /// The mode that the complete file gets: that of the file that it replaces, or that of a new file.
    mode: u32,
}

/// Returns the path with a suffix.
pub(crate) fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Returns the path that a link names, so that a file replaces what the link refers to, not the link.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

impl Part {
    /// Opens or creates the incomplete file, with what an earlier attempt has left in it. The file that is read for it,
    /// if any, must not be touched.
    pub(crate) fn open(
        target: &Path,
        overwrite: bool,
        source: Option<FileId>,
    ) -> Result<Self, ImageError> {
        let target = resolved(target);
        let mut final_mode = 0o666 & !umask();
        if let Ok(found) = target.symlink_metadata() {
            if !found.is_file() {
                let kind = crate::source::kind(&found);
                return Err(ImageError::Kind { path: target, kind });
            }
            if !overwrite {
                return Err(ImageError::Exists(target));
            }
            if source == Some(id(&found)) {
                return Err(ImageError::Same(target));
            }
            final_mode = found.mode() & 0o777;
        }
        let path = suffixed(&target, ".part");
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(INCOMPLETE)
            .custom_flags(flags);
        let wrong = ImageError::write(&path);
        let file = options.open(&path).map_err(&wrong)?;
        let found = file.metadata().map_err(&wrong)?;
        if !found.is_file() {
            return Err(ImageError::Kind { kind: crate::source::kind(&found), path });
        }
        if source == Some(id(&found)) {
            return Err(ImageError::Same(path));
        }
        // Some file systems have no locks.
        if flock(&file, FlockOperation::NonBlockingLockExclusive)
            == Err(rustix::io::Errno::WOULDBLOCK)
        {
            return Err(ImageError::Busy(target));
        }
        // Between opening and locking, another process may have completed the file.
        let part = Self { file, path, target, overwrite, mode: final_mode };
        if !part.is_there() {
            return Err(ImageError::Busy(part.target));
        }
        if is_foreign(&found) {
            return Err(ImageError::Exists(part.path));
        }
        if found.mode() & 0o777 != INCOMPLETE {
            part.chmod(INCOMPLETE).map_err(wrong)?;
        }
        Ok(part)
    }

    /// Returns whether the path still names this file.
    fn is_there(&self) -> bool {
        let named = self.path.symlink_metadata().map(|found| id(&found));
        let open = self.file.metadata().map(|found| id(&found));
        named.ok().is_some_and(|named| open.is_ok_and(|open| named == open))
    }

    fn chmod(&self, mode: u32) -> io::Result<()> {
        self.file.set_permissions(Permissions::from_mode(mode))
    }

    /// Returns the path of the incomplete file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Syncs the file to the disk and gives it its name, if it has this length. Another process may have cut it.
    pub(crate) fn finish(&self, length: u64) -> Result<(), ImageError> {
        let wrong = ImageError::write(&self.path);
        self.file.sync_all().map_err(&wrong)?;
        let found = self.file.metadata().map_err(&wrong)?.len();
        if found != length {
            let what = format!(
                "it has {found} bytes in place of {length}: another process has changed it"
            );
            return Err(wrong(io::Error::other(what)));
        }
        // If it was removed, the name may be that of another attempt's file, which is incomplete.
        if !self.is_there() {
            return Err(wrong(io::ErrorKind::NotFound.into()));
        }
        self.chmod(self.mode).map_err(&wrong)?;
        if let Err(error) = self.rename() {
            // Another attempt must recognise the file.
            let _ = self.chmod(INCOMPLETE);
            return Err(match error.kind() {
                io::ErrorKind::AlreadyExists => ImageError::Exists(self.target.clone()),
                _ => ImageError::write(&self.target)(error),
            });
        }
        let folder = self.target.parent().filter(|it| !it.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        File::open(folder).and_then(|it| it.sync_all()).map_err(ImageError::write(folder))
    }

    fn rename(&self) -> io::Result<()> {
        let cwd = rustix::fs::CWD;
        if !self.overwrite {
            match rustix::fs::renameat_with(
                cwd,
                &self.path,
                cwd,
                &self.target,
                RenameFlags::NOREPLACE,
            ) {
                Err(rustix::io::Errno::EXIST) => return Err(io::ErrorKind::AlreadyExists.into()),
                // Some file systems cannot refuse to replace.
                Err(_) if self.target.symlink_metadata().is_ok() => {
                    return Err(io::ErrorKind::AlreadyExists.into());
                }
                Err(_) => {}
                Ok(()) => return Ok(()),
            }
        }
        std::fs::rename(&self.path, &self.target)
    }

    /// Removes the incomplete file.
    pub(crate) fn abandon(&self) {
        if self.is_there() {
            // If it cannot be removed, the next attempt overwrites it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
