//! Files that are written aside and get their name when they are complete.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rackweave_disk::{self as disk, Directory, DiskFile, FileKind, Open, PartError, Stat};

use crate::ImageError;

/// Device and inode of a file.
pub(crate) type FileId = (u64, u64);

pub(crate) fn id(found: &Metadata) -> FileId {
    (found.dev(), found.ino())
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
        let folder = disk::open_existing(folder.unwrap_or(Path::new(".")));
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
            (FileKind::SymbolicLink | FileKind::Other, Ok(found)) => crate::source::kind(&found),
            (FileKind::SymbolicLink | FileKind::Other, Err(_)) => "no regular file",
        }
    }
}

/// A file that is being written under the name `TARGET.part`. Its mode is that of an incomplete file until its name is permanent.
#[derive(Debug)]
pub(crate) struct Part {
    part: disk::Part,
    /// The name of the incomplete file.
    named: Named,
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
        let mut mode = disk::new_mode();
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
        let named = target.suffixed(".part");
        if let Some(found) = named.stat() {
            if found.kind != FileKind::File {
                let kind = named.kind(&found);
                return Err(ImageError::Kind { kind, path: named.path });
            }
            if source == Some(found.id) {
                return Err(ImageError::Same(named.path));
            }
        }
        match disk::Part::open(Arc::clone(&named.folder), &named.name, false) {
            Ok(part) => Ok(Self { part, named, target, overwrite, mode }),
            Err(PartError::Busy) => Err(ImageError::Busy(target.path)),
            Err(PartError::Foreign) => Err(ImageError::Exists(named.path)),
            Err(error) => Err(named.wrong()(error.into())),
        }
    }

    /// Returns the file.
    pub(crate) fn file(&self) -> &dyn DiskFile {
        self.part.file()
    }

    /// Returns the name of the incomplete file.
    pub(crate) const fn named(&self) -> &Named {
        &self.named
    }

    /// Returns the path of the incomplete file.
    pub(crate) fn path(&self) -> &Path {
        &self.named.path
    }

    /// Gives the file its name, if it has this length, so that no crash undoes it.
    pub(crate) fn finish(&self, length: u64) -> Result<(), ImageError> {
        let wrong = self.target.wrong();
        let Named { name, path, .. } = &self.target;
        self.part.publish(name, self.overwrite, Some(length), true).map_err(
            |error| match error {
                PartError::Exists => ImageError::Exists(path.clone()),
                PartError::Unsettled(error) | PartError::System(error) => wrong(error),
                error => self.named.wrong()(error.into()),
            },
        )?;
        // The mode comes after the name is permanent: a process that is killed, or a machine that loses power, between the two
        // would leave an incomplete file that no attempt recognises.
        self.file().set_mode(self.mode).map_err(&wrong)?;
        self.file().sync().map_err(&wrong)
    }

    /// Removes the incomplete file.
    pub(crate) fn abandon(&self) {
        self.part.abandon();
    }
}
