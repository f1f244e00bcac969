//! What a receiver has at the places of a manifest's entries.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use super::super::folder::{FolderConfig, hash_of, hashes_on_disk, set_attributes};
use super::super::{SinkError, attributes, state};
use crate::format::{Difference, FileHeader, Hash, ManifestEntry, ObstacleKind, Purpose};
use crate::store::disk::{FileKind, Stat};
use crate::store::{Dir, Entry, PART};

/// A directory of the manifest, if the receiver has it.
pub(in crate::sink) struct Opened {
    path: Vec<u8>,
    dir: Option<Dir>,
    /// Directories that their owner could not look into, and their modes, which they have again in the end; `None` if modes are
    /// left alone.
    opened_up: Option<Vec<(Dir, u32)>>,
}

impl Opened {
    pub(in crate::sink) const fn new(dry_run: bool) -> Self {
        let opened_up = if dry_run { None } else { Some(Vec::new()) };
        Self { path: Vec::new(), dir: None, opened_up }
    }

    /// Opens a directory in one of the manifest, if there is one.
    fn step(&mut self, dir: &Dir, name: &OsStr) -> Option<Dir> {
        let inside = dir.existing(name)?;
        if let Some(opened_up) = &mut self.opened_up
            && let Some(found) = dir.entry(name).stat().filter(|found| found.is_own)
            && found.mode & 0o700 != 0o700
            && inside.open_up(found.mode).is_ok()
        {
            opened_up.push((inside.clone(), found.mode));
        }
        Some(inside)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        for (dir, mode) in self.opened_up.iter().flatten() {
            // A mode that is not right is found by the next comparison.
            let _ = dir.set_mode(*mode);
        }
    }
}

/// Returns the directory of an entry, if there is one, and the entry's name. Nothing is created, and no link is followed.
pub(in crate::sink) fn parent<'a>(
    root: &Dir,
    opened: &mut Opened,
    path: &'a [u8],
) -> Option<(Dir, &'a OsStr)> {
    let (folder, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&path[..0], path),
    };
    if folder.is_empty() {
        return Some((root.clone(), OsStr::from_bytes(name)));
    }
    if opened.path != folder {
        let mut names = folder.split(|byte| *byte == b'/');
        opened.dir =
            names.try_fold(root.clone(), |dir, name| opened.step(&dir, OsStr::from_bytes(name)));
        opened.path = folder.to_vec();
    }
    Some((opened.dir.clone()?, OsStr::from_bytes(name)))
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

const fn time_or_mode(same_time: bool) -> Difference {
    if same_time { Difference::Mode } else { Difference::Time }
}

/// Gives what was found at the place of an entry the entry's mode, time and attributes. Returns whether it has them.
pub(super) fn change(
    root: &Dir,
    config: &FolderConfig,
    opened: &mut Opened,
    header: &FileHeader,
    seen: Seen,
) -> bool {
    let Some((dir, name)) = place_of(root, config, opened, header) else { return false };
    if header.is_directory() {
        if let Some(inside) = dir.existing(name) {
            let kept = attributes::keep_of(&inside, header);
            let _ = inside.set_mode(kept.mode);
        }
        // They are not worth to send it again.
        return true;
    }
    let at = dir.entry(name);
    if header.symbolic_link().is_some() {
        return at.set_link_modified((header.mtime_s, header.mtime_ns)).is_ok()
            && (!config.sync || dir.sync().is_ok());
    }
    let Some(file) = at.open_read() else { return false };
    file.stat().is_ok_and(|found| Seen::new(&found) == seen)
        && set_attributes(&*file, header).is_ok()
        && (!config.sync || file.sync().is_ok() && dir.sync().is_ok())
}

/// Returns the directory and the name of an entry of a manifest.
fn place_of<'a>(
    root: &Dir,
    config: &'a FolderConfig,
    opened: &mut Opened,
    header: &'a FileHeader,
) -> Option<(Dir, &'a OsStr)> {
    match &config.only {
        Some(only) => Some((root.clone(), only.file_name().unwrap_or_default())),
        None => parent(root, opened, &header.path),
    }
}

/// Returns what is at the place of an entry of a manifest.
pub(super) fn find(
    root: &Dir,
    config: &FolderConfig,
    opened: &mut Opened,
    entry: &ManifestEntry,
    purpose: Purpose,
) -> Result<Place, SinkError> {
    let ManifestEntry { header, hash } = entry;
    let place = place_of(root, config, opened, header);
    let Some((dir, name)) = place else { return Ok(Place::Lacking(Difference::New)) };
    let at = dir.entry(name);
    let Some(found) = at.stat() else { return Ok(Place::Lacking(Difference::New)) };
    let same_time = found.modified == (header.mtime_s, header.mtime_ns);
    if header.is_directory() {
        return Ok(match found.kind {
            FileKind::Directory if same_time && attributes::is_mode(found.mode, header) => {
                match config.overwrite && header.attributes.is_some() {
                    true => Place::Other(Seen::new(&found), Difference::None),
                    false => Place::There,
                }
            }
            FileKind::Directory => Place::Lacking(time_or_mode(same_time)),
            _ => Place::Taken(ObstacleKind::NotDirectory, Difference::Kind),
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
            match same_time {
                true => Place::There,
                false => Place::Other(Seen::new(&found), Difference::Time),
            }
        }
        FileKind::File => {
            let place = match header.is_file() {
                true => find_file(config, &at, &found, header, *hash, purpose)?,
                false => Place::Taken(ObstacleKind::Exists, Difference::Kind),
            };
            match place {
                // Once the other file is complete, it does not have this name any more.
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
    if place.is_there() && !purpose.dry_run {
        state::remove_table(root, header);
    }
    Ok(match place {
        Place::Taken(ObstacleKind::Exists, why) if config.overwrite => Place::Lacking(why),
        place => place,
    })
}

/// Returns whether a file is the one of an entry: one of the length and time, or with a hash one of the length and the hash. Where files are
/// not replaced, one that is taken for the same by its time keeps its mode and attributes: it may be another.
fn find_file(
    config: &FolderConfig,
    at: &Entry,
    found: &Stat,
    header: &FileHeader,
    hash: Option<Hash>,
    purpose: Purpose,
) -> Result<Place, SinkError> {
    let same_time = found.modified == (header.mtime_s, header.mtime_ns);
    if Some(found.len) != header.length {
        return Ok(Place::Taken(ObstacleKind::Exists, Difference::Length));
    }
    if hash.is_none() && !same_time {
        return Ok(Place::Lacking(Difference::Time));
    }
    let same_mode = found.mode == u32::from(header.mode);
    let differs = !same_time || !same_mode || header.attributes.is_some();
    let place = match differs && (config.overwrite || hash.is_some()) {
        // Which attributes it has is seen when it gets them.
        true if same_time && same_mode => Place::Other(Seen::new(found), Difference::None),
        true => Place::Other(Seen::new(found), time_or_mode(same_time)),
        false => Place::There,
    };
    if hash.is_none() && (purpose.dry_run || !config.sync) {
        return Ok(place);
    }
    let unread = Place::Lacking(Difference::Content);
    let Some(file) = at.open_read() else { return Ok(unread) };
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
    // What cannot be synced is sent again: then the cause is reported.
    let is_synced = || file.sync().is_ok() && at.dir().sync().is_ok();
    Ok(if purpose.dry_run || !config.sync || is_synced() { place } else { unread })
}
