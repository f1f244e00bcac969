//! Open directories and the names in them. Each directory is opened relative to its parent without following symbolic
//! links, so that replacing a directory by a link in the meantime does not redirect writes.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

use super::disk::{self, Directory, DiskFile, FileKind, Open, Part, PartError, Stat};
use super::{StoreError, fault};
use crate::format::STATE_PREFIX;

/// The suffix of an incomplete file.
pub(crate) const PART: &str = ".part";

/// The suffix of a link that does not have its own name yet.
const LINK: &[u8] = b".link";

/// The most names that are tried for such a link.
const MAX_ASIDE: u32 = 16;

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

/// Returns whether a name is that of a link before it gets its own: what has it was left by an attempt that was killed.
pub(crate) fn is_left_link(name: &OsStr) -> bool {
    name.as_bytes().starts_with(STATE_PREFIX) && name.as_bytes().ends_with(LINK)
}

/// Returns whether a process, or the system, has as many open files as it can have.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Returns what was opened; `None` if there is none that can be opened. Where nothing more can be opened, that is not known.
fn existing<T>(path: PathBuf, opened: io::Result<T>) -> Result<Option<T>, StoreError> {
    match opened {
        Ok(opened) => Ok(Some(opened)),
        Err(error) if is_exhausted(&error) => Err(StoreError::ManyOpen(path)),
        Err(_) => Ok(None),
    }
}

pub(crate) fn failed(path: &Path, source: io::Error) -> StoreError {
    let path = path.to_owned();
    if is_exhausted(&source) {
        return StoreError::ManyOpen(path);
    }
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            StoreError::Full { path, needs: None, free: None }
        }
        io::ErrorKind::FileTooLarge => StoreError::TooLarge(path),
        _ => StoreError::Write { path, source },
    }
}

/// Returns whether an error says that no link is possible, though a copy may be: between file systems or mounts, of a file that belongs
/// to somebody else (`fs.protected_hardlinks`), of one that has as many names as it can have, or where the file system has no links.
pub(crate) fn refuses_links(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::CrossesDevices
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::TooManyLinks
            | io::ErrorKind::Unsupported
    )
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
    ///
    /// # Errors
    /// If nothing more can be opened.
    pub(crate) fn existing(&self, name: &OsStr) -> Result<Option<Self>, StoreError> {
        if self.entry(name).kind() != Some(FileKind::Directory) {
            return Ok(None);
        }
        let path = self.path.join(name);
        let found = existing(path.clone(), self.on.subdir(name))?;
        Ok(found.map(|on| Self { on, path }))
    }

    /// Returns the same directory for a look at it: nothing gets another mode to be opened, not for a moment either.
    pub(crate) fn as_is(&self) -> Result<Self, StoreError> {
        let on = self.on.as_is().map_err(|error| failed(&self.path, error))?;
        Ok(Self { on, path: self.path.clone() })
    }

    /// Returns the names in it.
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        self.on.names()
    }

    /// Makes the names in it permanent.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        fault::synced();
        self.on.sync().map_err(|error| failed(&self.path, error))
    }

    /// Fails if its path does not lead to it any more.
    pub(crate) fn check_place(&self) -> Result<(), StoreError> {
        match self.on.is_in_place() {
            true => Ok(()),
            false => Err(failed(&self.path, PartError::Displaced.into())),
        }
    }

    /// Lets its owner read it and change what is in it.
    pub(crate) fn open_up(&self, mode: u32) -> io::Result<()> {
        match mode & 0o700 {
            0o700 => Ok(()),
            _ => self.on.set_mode(mode | 0o700),
        }
    }

    pub(crate) fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.on.set_mode(mode)
    }

    pub(crate) fn set_attributes(&self, mode: u32, modified: (i64, u32)) -> io::Result<()> {
        self.on.set_attributes(mode, modified)
    }

    /// Changes names in it, and gives it the time again that it had before.
    pub(crate) fn keeping_time<T>(&self, change: impl FnOnce() -> T) -> T {
        let handle = self.handle().ok();
        let before = handle.as_ref().and_then(|it| it.stat().ok());
        let changed = change();
        if let Some((handle, before)) = handle.zip(before) {
            // A time that is not right is found by the next comparison.
            let _ = handle.set_modified(before.modified);
        }
        changed
    }

    /// Opens it as a file, which has attributes and no bytes.
    pub(crate) fn handle(&self) -> io::Result<Box<dyn DiskFile>> {
        self.on.handle()
    }

    /// Whether this user may add and remove names in it, or may give itself the permission.
    pub(crate) fn may_change(&self) -> bool {
        self.on.may_change()
    }

    /// Returns the number of the mount that it is on; 0 if it is not known.
    pub(crate) fn mount(&self) -> u64 {
        self.on.mount()
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

    pub(crate) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Returns the path, for messages.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path.join(&self.name)
    }

    /// Returns the entry that holds the bytes of an incomplete file.
    pub(crate) fn part(&self) -> Self {
        self.dir.entry(&part_name(&self.name))
    }

    /// Returns the entry that holds the bytes of an incomplete file if another file has the name of [`Self::part`].
    pub(crate) fn aside(&self) -> Self {
        let hash = blake3::hash(part_name(&self.name).as_bytes()).to_hex();
        self.dir.entry(format!("rackweave-cast-{hash}{PART}").as_ref())
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
    ///
    /// # Errors
    /// If nothing more can be opened.
    pub(crate) fn open_read(&self) -> Result<Option<Box<dyn DiskFile>>, StoreError> {
        existing(self.path(), self.open(Open::Read))
    }

    /// Opens a regular file for reading and writing; anything else counts as absent.
    ///
    /// # Errors
    /// If nothing more can be opened.
    pub(crate) fn open_update(&self) -> Result<Option<Box<dyn DiskFile>>, StoreError> {
        existing(self.path(), self.open(Open::Update))
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

    /// Gives this name to a file that has another one, in the place of any file that has it.
    pub(crate) fn link(&self, file: &dyn DiskFile) -> io::Result<()> {
        fault::step()?;
        if self.kind().is_none() {
            return self.new_link(file);
        }
        self.put(true, |aside| aside.new_link(file))
    }

    /// Gives this name to a new symbolic link of this time, which it has before the link has the name. With `replace` what has the name
    /// meanwhile is replaced, unless it is a directory.
    pub(crate) fn symlink(
        &self,
        target: &OsStr,
        modified: (i64, u32),
        replace: bool,
    ) -> io::Result<()> {
        self.put(replace, |aside| {
            fault::step()?;
            self.dir.on.symlink(target, &aside.name)?;
            aside.set_link_modified(modified)
        })
    }

    /// Gives this name to a link that is made under another one. Another transfer may take that for what a killed one has left,
    /// and remove it: then the link is made once more.
    fn put(&self, replace: bool, make: impl Fn(&Self) -> io::Result<()>) -> io::Result<()> {
        let mut tries = 3;
        loop {
            let aside = self.free_name()?;
            let made = make(&aside).and_then(|()| {
                fault::step()?;
                self.dir.on.rename(&aside.name, &self.name, replace)
            });
            let Err(error) = made else { return Ok(()) };
            // The next attempt finds what cannot be removed.
            let _ = aside.remove();
            tries -= 1;
            let is_lost =
                matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists);
            if tries == 0 || !is_lost {
                return Err(error);
            }
        }
    }

    /// Returns the text of the symbolic link with this name; `None` if there is none.
    pub(crate) fn target(&self) -> Option<OsString> {
        self.dir.on.target(&self.name).ok()
    }

    /// Sets the time of the symbolic link with this name, where the file system has times of links.
    pub(crate) fn set_link_modified(&self, modified: (i64, u32)) -> io::Result<()> {
        fault::step()?;
        self.stat().map_or(Ok(()), |found| fault::owner(found.id))?;
        match self.dir.on.set_link_modified(&self.name, modified) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
            set => set,
        }
    }

    /// Gives the symbolic link with this name to a user and a group.
    pub(crate) fn set_link_owner(&self, owner: (u32, u32)) -> io::Result<()> {
        fault::step()?;
        self.dir.on.set_link_owner(&self.name, owner)
    }

    fn new_link(&self, file: &dyn DiskFile) -> io::Result<()> {
        fault::link()?;
        self.dir.on.link(file, &self.name)
    }

    /// Returns a free name for a link that gets this one. What a killed attempt has left there is removed.
    fn free_name(&self) -> io::Result<Self> {
        let name = blake3::hash(self.name.as_bytes()).to_hex();
        let mut taken = io::Error::from(io::ErrorKind::DirectoryNotEmpty);
        for number in 0..MAX_ASIDE {
            let number = if number == 0 { String::new() } else { format!("-{number}") };
            let aside = [STATE_PREFIX, name[..32].as_bytes(), number.as_bytes(), LINK].concat();
            let aside = self.dir.entry(OsStr::from_bytes(&aside));
            // Somebody may have given a folder the name, or a file that is not this user's to remove.
            if aside.kind() == Some(FileKind::Directory) {
                continue;
            }
            match aside.remove() {
                Ok(()) => return Ok(aside),
                Err(error) => taken = error,
            }
        }
        Err(taken)
    }

    /// Returns whether the system lets a file have another name in this directory, which keeps its time.
    pub(crate) fn can_link(&self, file: &dyn DiskFile) -> bool {
        let linked = self.dir.keeping_time(|| {
            let aside = self.free_name()?;
            aside.new_link(file)?;
            aside.remove()
        });
        !linked.is_err_and(|error| refuses_links(&error))
    }

    /// Removes the file with this name, if there is one.
    pub(crate) fn remove(&self) -> io::Result<()> {
        fault::step()?;
        match self.dir.on.remove(&self.name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes the empty directory with this name.
    pub(crate) fn remove_directory(&self) -> io::Result<()> {
        fault::step()?;
        self.dir.on.remove_directory(&self.name)
    }

    /// Renames the file within its directory, replacing any file with the new name.
    pub(crate) fn rename(&self, to: &Self) -> io::Result<()> {
        fault::step()?;
        self.dir.on.rename(&self.name, &to.name, true)
    }
}
