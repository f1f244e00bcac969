//! What a receiver has at the places of a manifest's entries.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;

use super::super::folder::{FolderConfig, hash_of, hashes_on_disk, set_attributes};
use super::super::{SinkError, attributes, state};
use crate::format::{Difference, FileHeader, Hash, ObstacleKind, Purpose};
use crate::store::disk::{FileKind, Stat};
use crate::store::{Dir, Entry, PART, StoreError};

/// The most directories on a path that stay open.
const MAX_OPEN: usize = 16;

/// The directories that lead to the present place. Only the last of them are open, however many there are in all.
pub(in crate::sink) struct Opened {
    root: Dir,
    on_path: Vec<Step>,
    /// Whether directories that their owner cannot look into stay as they are.
    keeps_modes: bool,
}

/// A directory on the path.
struct Step {
    name: Vec<u8>,
    /// `None` if it is too far above to stay open. It has its own mode then.
    dir: Option<Dir>,
    /// The mode that it has again when it is closed.
    mode: Option<u32>,
}

impl Step {
    /// Gives the directory its own mode, and closes it.
    fn close(&mut self) {
        if let (Some(dir), Some(mode)) = (self.dir.take(), self.mode.take()) {
            // A mode that is not right is found by the next comparison.
            let _ = dir.set_mode(mode);
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.close();
    }
}

impl Opened {
    pub(in crate::sink) fn new(root: &Dir, dry_run: bool) -> Self {
        Self { root: root.clone(), on_path: Vec::new(), keeps_modes: dry_run }
    }

    /// Returns the directory and the name at a path; `None` if there is no such directory. Nothing is created, and no link is followed.
    /// What is at the path has its own mode then: directories are opened up only to look at what is in them.
    pub(in crate::sink) fn parent<'a>(
        &mut self,
        path: &'a [u8],
    ) -> Result<Option<(Dir, &'a OsStr)>, StoreError> {
        let (folder, name) = split(path);
        Ok(self.dir(folder)?.map(|dir| (dir, OsStr::from_bytes(name))))
    }

    fn dir(&mut self, path: &[u8]) -> Result<Option<Dir>, StoreError> {
        let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).peekable();
        let mut common = 0;
        while let Some(step) = self.on_path.get(common)
            && names.next_if(|name| *name == step.name).is_some()
        {
            common += 1;
        }
        while self.on_path.len() > common {
            self.on_path.pop();
        }
        for name in names {
            self.on_path.push(Step { name: name.to_vec(), dir: None, mode: None });
        }
        self.present()
    }

    /// Opens the present directory, if it is there, and those on the path that lead to it. Only the last of these stay open.
    fn present(&mut self) -> Result<Option<Dir>, StoreError> {
        let open = self.on_path.iter().rposition(|step| step.dir.is_some());
        let mut above = open.and_then(|at| self.on_path[at].dir.clone());
        for at in open.map_or(0, |at| at + 1)..self.on_path.len() {
            let dir = above.as_ref().unwrap_or(&self.root);
            let name = OsStr::from_bytes(&self.on_path[at].name);
            let Some(inside) = dir.existing(name)? else {
                // What follows it is not there either.
                self.on_path.truncate(at);
                return Ok(None);
            };
            let found = dir.entry(name).stat();
            let found =
                found.filter(|it| !self.keeps_modes && it.is_own && it.mode & 0o700 != 0o700);
            let mode = found.map(|found| found.mode).filter(|mode| inside.open_up(*mode).is_ok());
            let step = &mut self.on_path[at];
            (step.dir, step.mode) = (Some(inside.clone()), mode);
            above = Some(inside);
            if let Some(far) = at.checked_sub(MAX_OPEN) {
                self.on_path[far].close();
            }
        }
        Ok(Some(above.unwrap_or_else(|| self.root.clone())))
    }
}

/// Splits a path into that of its directory, which may be empty, and its name there.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&path[..0], path),
    }
}

/// What is at the place of an entry of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The entry.
    There,
    /// The entry, with another mode, time or attributes, which it is to get.
    Other(Seen, Difference),
    /// Nothing or something that is replaced, and the file at a further name of the entry, which may be to get the entry's mode, time or
    /// attributes.
    Elsewhere(Difference, Option<Seen>),
    /// Nothing, something that is replaced, or a file whose hash decides whether it is the one.
    Lacking(Difference),
    /// Something that the cast does not replace.
    Taken(ObstacleKind, Difference),
}

impl Place {
    pub(super) const fn is_there(self) -> bool {
        matches!(self, Self::There | Self::Other(..) | Self::Elsewhere(..))
    }

    /// Returns how that differs from the entry.
    pub(super) const fn difference(self) -> Difference {
        match self {
            Self::There => Difference::None,
            Self::Other(_, it)
            | Self::Elsewhere(it, _)
            | Self::Lacking(it)
            | Self::Taken(_, it) => it,
        }
    }
}

/// What was compared: what has changed since is something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    id: (u64, u64),
    len: u64,
    modified: (i64, u32),
}

impl Seen {
    pub(super) const fn new(found: &Stat) -> Self {
        Self { id: found.id, len: found.len, modified: found.modified }
    }
}

/// Returns in which of time, mode and owner something differs from an entry.
fn difference(found: &Stat, header: &FileHeader, same_mode: bool) -> Difference {
    if found.modified != (header.mtime_s, header.mtime_ns) {
        Difference::Time
    } else if !same_mode {
        Difference::Mode
    } else if attributes::owner_for(header.owner, found) != found.owner {
        Difference::Owner
    } else {
        Difference::None
    }
}

/// The places of a manifest's entries at a receiver.
pub(super) struct Places<'a> {
    root: &'a Dir,
    pub(super) config: &'a FolderConfig,
    pub(super) purpose: Purpose,
    opened: Opened,
}

impl<'a> Places<'a> {
    pub(super) fn new(root: &'a Dir, config: &'a FolderConfig, purpose: Purpose) -> Self {
        Self { root, config, purpose, opened: Opened::new(root, purpose.dry_run) }
    }

    /// Returns the same places for a look at a second one while the first one is open. It is over before this one goes on.
    pub(super) fn again(&self) -> Self {
        Self::new(self.root, self.config, self.purpose)
    }

    /// Returns the name at a path, whether or not something has it; `None` if its directory is not there.
    pub(super) fn at(&mut self, path: &[u8]) -> Result<Option<Entry>, SinkError> {
        Ok(self.opened.parent(path)?.map(|(dir, name)| dir.entry(name)))
    }

    fn entry(&mut self, header: &FileHeader) -> Result<Option<Entry>, SinkError> {
        match &self.config.only {
            Some(only) => Ok(Some(self.root.entry(only.file_name().unwrap_or_default()))),
            None => self.at(&header.path),
        }
    }

    /// Syncs a directory. Returns whether it is synced.
    pub(super) fn sync(&mut self, folder: &[u8]) -> Result<bool, SinkError> {
        let dir = match self.config.only {
            Some(_) => Some(self.root.clone()),
            None => self.opened.dir(folder)?,
        };
        Ok(dir.is_some_and(|dir| dir.sync().is_ok()))
    }

    /// Gives what was found at the place of an entry the entry's mode, time and attributes. Returns whether it has them, or is not this
    /// user's and stays as it is, because files are not replaced.
    pub(super) fn change(&mut self, header: &FileHeader, seen: Seen) -> Result<bool, SinkError> {
        let Some(at) = self.entry(header)? else { return Ok(false) };
        if header.is_directory() {
            if let Some(inside) = at.dir().existing(at.name())? {
                let kept = attributes::keep_of(&inside, header);
                let _ = inside.set_mode(kept.mode);
            }
            // They are not worth to send it again.
            return Ok(true);
        }
        let is_done = |changed: io::Result<()>| match changed {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => !self.config.overwrite,
            changed => changed.is_ok(),
        };
        if header.symbolic_link().is_some() {
            // An owner that it cannot have is not worth to send it again.
            let _ = attributes::own_link(&at, header.owner);
            return Ok(is_done(at.set_link_modified((header.mtime_s, header.mtime_ns))));
        }
        let Some(file) = at.open_read()? else { return Ok(false) };
        Ok(file.stat().is_ok_and(|found| Seen::new(&found) == seen)
            && is_done(set_attributes(&*file, header).map(|_| ()))
            && (!self.config.sync || file.sync().is_ok()))
    }

    /// Compares what is at the place of an entry with the entry.
    pub(super) fn compare(
        &mut self,
        header: &FileHeader,
        hash: Option<Hash>,
    ) -> Result<Place, SinkError> {
        let (root, config) = (self.root, self.config);
        let Some(at) = self.entry(header)? else { return Ok(Place::Lacking(Difference::New)) };
        let Some(found) = at.stat() else { return Ok(Place::Lacking(Difference::New)) };
        if header.is_directory() {
            if found.kind != FileKind::Directory {
                return Ok(Place::Taken(ObstacleKind::NotDirectory, Difference::Kind));
            }
            let same_mode = attributes::is_mode(found.mode, header);
            return Ok(match difference(&found, header, same_mode) {
                Difference::None if config.overwrite && header.attributes.is_some() => {
                    Place::Other(Seen::new(&found), Difference::None)
                }
                Difference::None => Place::There,
                difference => Place::Lacking(difference),
            });
        }
        let is_rest = |found: &Stat| {
            let of = header.path.strip_suffix(PART.as_bytes());
            of.is_some_and(|of| state::is_rest(root, of, found))
        };
        let place = match found.kind {
            FileKind::SymbolicLink
                if header.symbolic_link().is_some_and(|target| {
                    at.target().is_some_and(|found| found.as_bytes() == target)
                }) =>
            {
                match difference(&found, header, true) {
                    Difference::None => Place::There,
                    difference => Place::Other(Seen::new(&found), difference),
                }
            }
            FileKind::File => {
                let place = match header.is_file() {
                    true => self.compare_file(&at, &found, header, hash)?,
                    false => Place::Taken(ObstacleKind::Exists, Difference::Kind),
                };
                match place {
                    // Once the other file is complete, it does not have this name any more, and the place is cleared otherwise.
                    Place::Taken(..) if is_rest(&found) => Place::Lacking(Difference::New),
                    place => place,
                }
            }
            FileKind::Directory => Place::Taken(ObstacleKind::IsDirectory, Difference::Kind),
            FileKind::SymbolicLink if header.symbolic_link().is_some() => {
                Place::Taken(ObstacleKind::Exists, Difference::Target)
            }
            FileKind::SymbolicLink | FileKind::Other => {
                Place::Taken(ObstacleKind::Exists, Difference::Kind)
            }
        };
        if place.is_there() && !self.purpose.dry_run {
            state::remove_table(root, header);
        }
        Ok(match place {
            Place::Taken(ObstacleKind::Exists, why) if config.overwrite => Place::Lacking(why),
            place => place,
        })
    }

    /// Returns whether a file is the one of an entry: one of the length and time, or with a hash one of the length and the hash. Where files are
    /// not replaced, one that is taken for the same by its time keeps its mode and attributes: it may be another.
    fn compare_file(
        &self,
        at: &Entry,
        found: &Stat,
        header: &FileHeader,
        hash: Option<Hash>,
    ) -> Result<Place, SinkError> {
        let (config, purpose) = (self.config, self.purpose);
        let same_time = found.modified == (header.mtime_s, header.mtime_ns);
        if Some(found.len) != header.length {
            return Ok(Place::Taken(ObstacleKind::Exists, Difference::Length));
        }
        if hash.is_none() && !same_time {
            return Ok(Place::Lacking(Difference::Time));
        }
        let difference = difference(found, header, found.mode == u32::from(header.mode));
        // Which attributes it has is seen when it gets them.
        let differs = difference != Difference::None || header.attributes.is_some();
        let place = match differs && (config.overwrite || hash.is_some()) {
            true => Place::Other(Seen::new(found), difference),
            false => Place::There,
        };
        if hash.is_none() && (purpose.dry_run || !config.sync) {
            return Ok(place);
        }
        let unread = Place::Lacking(Difference::Content);
        let Some(file) = at.open_read()? else { return Ok(unread) };
        // By its time it is the file that the system shows: with `sync`, that must be the one on the disk.
        let hashes = match config.sync && !purpose.dry_run {
            true => {
                let (shown, on_disk) = hashes_on_disk(&*file, at, &config.cancel)?;
                Some((on_disk, hash.or(shown)))
            }
            false if hash.is_some() => Some((hash_of(&*file, at, &config.cancel)?, hash)),
            false => None,
        };
        match hashes {
            Some((None, _)) => return Ok(unread),
            Some((found, wanted)) if found != wanted => {
                let differs = Place::Taken(ObstacleKind::Exists, Difference::Content);
                return Ok(if hash.is_some() { differs } else { unread });
            }
            _ => {}
        }
        // What cannot be synced is sent again: then the cause is reported. Its name is synced once the whole directory was compared.
        let is_synced = purpose.dry_run || !config.sync || file.sync().is_ok();
        Ok(if is_synced { place } else { unread })
    }
}
