//! Files that are written aside and get their name when they are complete.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rackweave_disk::{Directory, DiskFile, FileKind, Open, Stat};

use crate::ImageError;

/// The mode of an incomplete file, by which it is recognised.
pub(crate) const INCOMPLETE: u32 = 0o600;

/// Device and inode of a file.
pub(crate) type FileId = (u64, u64);

pub(crate) fn id(found: &Metadata) -> FileId {
    (found.dev(), found.ino())
}

/// Returns whether a file that already exists may be another's: an incomplete file belongs to this user, so that nobody else can write to it
/// meanwhile, and has content, one name, and its mode.
pub(crate) const fn is_foreign(found: &Stat) -> bool {
    let is_marked = found.mode == INCOMPLETE && found.names == 1;
    !found.is_own || found.len > 0 && !is_marked
}

/// Returns the permissions that the process does not give to new files.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    // Without /proc, nobody else may read the file.
    line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o077)
}

/// The mode of a new file.
pub(crate) fn new_mode() -> u32 {
    0o666 & !umask()
}

/// A name in a directory.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) folder: Arc<dyn Directory>,
    pub(crate) name: OsString,
    /// The path, for messages.
    pub(crate) path: PathBuf,
}

impl Named {
    /// Returns what a path names in the operating system.
    pub(crate) fn new(path: &Path) -> Result<Self, ImageError> {
        let wrong = ImageError::write(path);
        let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
        let folder = rackweave_disk::open_existing(folder.unwrap_or(Path::new(".")));
        let folder = folder.map_err(&wrong)?;
        let name = path.file_name().ok_or_else(|| wrong(io::ErrorKind::InvalidInput.into()))?;
        Ok(Self { folder, name: name.to_owned(), path: path.to_owned() })
    }

    /// Makes the error of a failed write, which says what is free where the directory is.
    pub(crate) fn wrong(&self) -> impl Fn(io::Error) -> ImageError + use<> {
        let (folder, path) = (Arc::clone(&self.folder), self.path.clone());
        move |source| ImageError::of_write(&path, source, || folder.free())
    }

    /// Returns the name with a suffix.
    pub(crate) fn suffixed(&self, suffix: &str) -> Self {
        let mut name = self.name.clone();
        name.push(suffix);
        Self { folder: Arc::clone(&self.folder), name, path: suffixed(&self.path, suffix) }
    }

    pub(crate) fn stat(&self) -> Option<Stat> {
        self.folder.stat(&self.name)
    }

    pub(crate) fn open(&self, how: Open) -> io::Result<Box<dyn DiskFile>> {
        self.folder.open(&self.name, how)
    }

    /// What it names, for messages.
    fn kind(&self, found: &Stat) -> &'static str {
        match (found.kind, self.path.symlink_metadata()) {
            (FileKind::File, _) => "a regular file",
            (FileKind::Directory, _) => "a directory",
            (FileKind::Other, Ok(found)) => crate::source::kind(&found),
            (FileKind::Other, Err(_)) => "no regular file",
        }
    }
}

/// A file that is being written under the name `TARGET.part`, locked against other processes.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) file: Box<dyn DiskFile>,
    part: Named,
    target: Named,
    overwrite: bool,
    /// The mode that the complete file gets: that of the file that it replaces, or that of a new file.
    mode: u32,
}

/// Returns the path with a suffix.
fn suffixed(path: &Path, suffix: &str) -> PathBuf {
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
        target: Named,
        overwrite: bool,
        source: Option<FileId>,
    ) -> Result<Self, ImageError> {
        let mut mode = new_mode();
        if let Some(found) = target.stat() {
            if found.kind != FileKind::File {
                let kind = target.kind(&found);
                return Err(ImageError::Kind { path: target.path, kind });
            }
            if !overwrite {
                return Err(ImageError::Exists(target.path));
            }
            if source == Some(found.id) {
                return Err(ImageError::Same(target.path));
            }
            mode = found.mode;
        }
        let part = target.suffixed(".part");
        let wrong = part.wrong();
        if let Some(found) = part.stat()
            && found.kind != FileKind::File
        {
            let kind = part.kind(&found);
            return Err(ImageError::Kind { kind, path: part.path });
        }
        let file = part.open(Open::UpdateOrCreate).map_err(&wrong)?;
        let found = file.stat().map_err(&wrong)?;
        if source == Some(found.id) {
            return Err(ImageError::Same(part.path));
        }
        if !file.lock() {
            return Err(ImageError::Busy(target.path));
        }
        // Between opening and locking, another process may have completed the file.
        let this = Self { file, part, target, overwrite, mode };
        if !this.is_there() {
            return Err(ImageError::Busy(this.target.path));
        }
        if is_foreign(&found) {
            return Err(ImageError::Exists(this.part.path));
        }
        if found.mode != INCOMPLETE {
            this.file.set_mode(INCOMPLETE).map_err(wrong)?;
        }
        Ok(this)
    }

    /// Returns whether the name is still that of this file.
    fn is_there(&self) -> bool {
        let open = self.file.stat().map(|found| found.id);
        self.part.stat().is_some_and(|named| open.is_ok_and(|open| named.id == open))
    }

    /// Returns the name of the incomplete file.
    pub(crate) const fn named(&self) -> &Named {
        &self.part
    }

    /// Returns the path of the incomplete file.
    pub(crate) fn path(&self) -> &Path {
        &self.part.path
    }

    /// Syncs the file to the disk and gives it its name, if it has this length. Another process may have cut it.
    pub(crate) fn finish(&self, length: u64) -> Result<(), ImageError> {
        let wrong = self.part.wrong();
        self.file.sync().map_err(&wrong)?;
        let found = self.file.stat().map_err(&wrong)?.len;
        if found != length {
            let what = format!(
                "it has {found} bytes in place of {length}: another process has changed it"
            );
            return Err(wrong(io::Error::other(what)));
        }
        // If it was removed, the name may be that of another attempt's file, which is incomplete.
        if !self.is_there() {
            let what = "it, or its folder, was removed or renamed while it was written";
            return Err(wrong(io::Error::new(io::ErrorKind::NotFound, what)));
        }
        let Named { folder, name, path } = &self.target;
        folder.rename(&self.part.name, name, self.overwrite).map_err(|error| {
            match error.kind() {
                io::ErrorKind::AlreadyExists => ImageError::Exists(path.clone()),
                _ => self.target.wrong()(error),
            }
        })?;
        // The mode comes after the name is permanent: a process that is killed, or a machine that loses power, between the two
        // would leave an incomplete file that no attempt recognises.
        let wrong = self.target.wrong();
        folder.sync().map_err(&wrong)?;
        self.file.set_mode(self.mode).map_err(&wrong)?;
        self.file.sync().map_err(&wrong)
    }

    /// Removes the incomplete file.
    pub(crate) fn abandon(&self) {
        if self.is_there() {
            // If it cannot be removed, the next attempt overwrites it.
            let _ = self.part.folder.remove(&self.part.name);
        }
    }
}
