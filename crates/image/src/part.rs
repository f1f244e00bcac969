//! Files that are written aside and get their name when they are complete.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, RenameFlags, flock};

use crate::ImageError;

/// The mode of an incomplete file, by which it is recognised.
const INCOMPLETE: u32 = 0o600;

/// A file that is being written under the name `TARGET.part`, locked against other processes.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) file: File,
    path: PathBuf,
    target: PathBuf,
    overwrite: bool,
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
    /// Opens or creates the incomplete file, with what an earlier attempt has left in it.
    pub(crate) fn open(target: &Path, overwrite: bool) -> Result<Self, ImageError> {
        let target = resolved(target);
        if let Ok(found) = target.symlink_metadata() {
            if !found.is_file() {
                let kind = crate::source::kind(&found);
                return Err(ImageError::Kind { path: target, kind });
            }
            if !overwrite {
                return Err(ImageError::Exists(target));
            }
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
        // Some file systems have no locks.
        if flock(&file, FlockOperation::NonBlockingLockExclusive)
            == Err(rustix::io::Errno::WOULDBLOCK)
        {
            return Err(ImageError::Busy(target));
        }
        // Between opening and locking, another process may have completed the file.
        let there = path.symlink_metadata();
        if !there.is_ok_and(|it| (it.dev(), it.ino()) == (found.dev(), found.ino())) {
            return Err(ImageError::Busy(target));
        }
        if found.mode() & 0o777 != INCOMPLETE && found.len() > 0 {
            return Err(ImageError::Exists(path));
        }
        Ok(Self { file, path, target, overwrite })
    }

    /// Returns the path of the incomplete file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Syncs the file to the disk and gives it its name.
    pub(crate) fn finish(&self) -> Result<(), ImageError> {
        let wrong = ImageError::write(&self.path);
        self.file.sync_all().map_err(&wrong)?;
        let mode = |mode| self.file.set_permissions(Permissions::from_mode(mode));
        mode(0o644).map_err(&wrong)?;
        if let Err(error) = self.rename() {
            // Another attempt must recognise the file.
            let _ = mode(INCOMPLETE);
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
        // If it cannot be removed, the next attempt overwrites it.
        let _ = std::fs::remove_file(&self.path);
    }
}
