//! Deleting what a sender does not have. The rules are those of rsync's `--delete`:
//!
//! 1. Only what is in a directory of the manifest is deleted, and only once this host lacks nothing of the manifest. What has the name of
//!    an entry and is a directory where that is a file, or the reverse, is deleted before content ([`make_room`]).
//! 2. What the sender excludes or skips stays, and so does each directory that something stays in.
//! 3. No link is followed: a link is removed itself, and each directory is opened in its parent.
//!
//! Rackweave's own: progress of transfers stays, as do incomplete files that another transfer writes, but no link that a killed
//! transfer has left before it had its name, be it in the folder of the receiver itself. What is on another file
//! system or another mount is not deleted, which is a failure. A dry run changes no mode: directories that are closed to their owner it
//! only counts.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::comparing::Opened;
use super::folder::FolderConfig;
use super::{SinkError, attributes, state};
use crate::excludes::Excludes;
use crate::format::{Deleted, Manifest, Obstacle, ObstacleKind, STATE_PREFIX};
use crate::store::disk::{FileKind, Stat};
use crate::store::{Dir, Entry, PART, StoreError, failed, is_exhausted, is_left_link};

/// The deepest directories below one of the manifest that are deleted: each level takes a file descriptor while it is.
const MAX_DEPTH: u32 = 200;

struct Deleting<'a> {
    config: &'a FolderConfig,
    root: &'a Dir,
    excludes: Excludes,
    /// The names in each directory of the manifest that stay.
    known: BTreeMap<&'a [u8], BTreeSet<&'a [u8]>>,
    /// The file system of the present directory of the manifest, and the mount of it.
    device: (u64, u64),
    /// Whether nothing is removed.
    dry_run: bool,
    /// Whether directories that are closed to their owner stay so, and nobody looks into them.
    keeps_modes: bool,
    deleted: Deleted,
}

/// Deletes what is in the directories of a manifest and not in the manifest; in a dry run it only finds it.
pub(super) fn delete(
    root: &Dir,
    config: &FolderConfig,
    manifest: &Manifest,
) -> Result<Deleted, SinkError> {
    let mut known: BTreeMap<&[u8], BTreeSet<&[u8]>> = BTreeMap::new();
    let entries = manifest.entries.iter().map(|entry| &entry.header.path);
    for path in entries.chain(&manifest.protected.paths) {
        // A manifest need not have the directories that its entries are in.
        let mut rest = &path[..];
        while let Some(slash) = rest.iter().rposition(|byte| *byte == b'/') {
            let is_new = known.entry(&rest[..slash]).or_default().insert(&rest[slash + 1..]);
            if !is_new {
                break;
            }
            rest = &rest[..slash];
        }
    }
    let excludes = Excludes::new(&manifest.protected.patterns)?;
    let dry_run = manifest.purpose.dry_run;
    let mut this = Deleting {
        config,
        root,
        excludes,
        known,
        device: (0, 0),
        dry_run,
        keeps_modes: dry_run,
        deleted: Deleted::default(),
    };
    this.clean_top()?;
    let mut opened = Opened::new(root, dry_run);
    for entry in manifest.entries.iter().filter(|entry| entry.header.is_directory()) {
        let header = &entry.header;
        let Some((above, name)) = opened.parent(&header.path)? else { continue };
        let (Some(found), Some(dir)) = (above.entry(name).stat(), above.existing(name)?) else {
            continue;
        };
        if this.hides(&found) {
            this.deleted.hidden += 1;
            continue;
        }
        this.device = (found.id.0, dir.mount());
        this.open_up(&dir, &found);
        this.clean(&dir, &header.path)?;
        if !dry_run {
            // What is not right is found by the next comparison.
            let is_right = attributes::is_mode(found.mode, header);
            let mode = if is_right { found.mode } else { attributes::mode_without_acl(header) };
            let _ = dir.set_attributes(mode, (header.mtime_s, header.mtime_ns));
        }
    }
    Ok(this.deleted)
}

/// Deletes what is at the places of these entries of a manifest, all of it or nothing; in a dry run it only finds it. Returns what of it
/// cannot be deleted.
pub(super) fn make_room(
    root: &Dir,
    config: &FolderConfig,
    manifest: &Manifest,
    entries: &[(ObstacleKind, &[u8])],
) -> Result<Result<Deleted, Obstacle>, SinkError> {
    let mut deleted = Deleted::default();
    for dry_run in [true, false] {
        if manifest.purpose.dry_run && !dry_run {
            break;
        }
        let mut this = Deleting {
            config,
            root,
            excludes: Excludes::new(&manifest.protected.patterns)?,
            known: BTreeMap::new(),
            device: (0, 0),
            dry_run,
            keeps_modes: manifest.purpose.dry_run,
            deleted: Deleted::default(),
        };
        let (mut opened, mut obstacle) = (Opened::new(root, this.keeps_modes), None);
        for (kind, path) in entries {
            let Some((above, name)) = opened.parent(path)? else { continue };
            let Some(found) = above.entry(name).stat() else { continue };
            this.device = (found.id.0, above.mount());
            if !this.remove(&above, name, path.to_vec(), 0)? {
                Obstacle::add(&mut obstacle, *kind, path);
            }
        }
        if let Some(obstacle) = obstacle {
            return Ok(Err(obstacle));
        }
        deleted = this.deleted;
    }
    Ok(Ok(deleted))
}

fn joined(path: &[u8], name: &OsStr) -> Vec<u8> {
    [path, b"/", name.as_bytes()].concat()
}

/// Returns whether what was found has only one name.
fn is_single(found: &Stat) -> bool {
    found.kind == FileKind::Directory || found.names == 1
}

impl Deleting<'_> {
    /// Lets what is in a directory be deleted. What the system refuses then fails.
    fn open_up(&self, dir: &Dir, found: &Stat) {
        if !self.keeps_modes && found.is_own {
            let _ = dir.open_up(found.mode);
        }
    }

    /// Gives a directory that stays the mode that it had before [`Self::open_up`].
    fn close(&self, dir: &Dir, found: &Stat) {
        if !self.keeps_modes && found.is_own && found.mode & 0o700 != 0o700 {
            let _ = dir.set_mode(found.mode);
        }
    }

    /// Whether a directory stays closed that is opened up otherwise.
    fn hides(&self, found: &Stat) -> bool {
        self.keeps_modes
            && found.is_own
            && found.mode & 0o500 != 0o500
            && !rustix::process::geteuid().is_root()
    }

    /// Deletes links that killed transfers have left in the folder of the receiver. Those of other users are none of its business.
    fn clean_top(&mut self) -> Result<(), SinkError> {
        let names = match self.root.names() {
            Err(error) if is_exhausted(&error) => {
                return Err(failed(self.root.path(), error).into());
            }
            names => names.unwrap_or_default(),
        };
        for name in names.iter().filter(|name| is_left_link(name)) {
            let entry = self.root.entry(name);
            let is_link = entry.stat().is_some_and(|found| found.kind != FileKind::Directory);
            if is_link && self.may_remove(&entry) {
                self.deleted.add(name.as_bytes().to_vec());
            }
        }
        Ok(())
    }

    /// Removes what is no directory; in a dry run it only says whether it would.
    fn may_remove(&self, entry: &Entry) -> bool {
        match self.dry_run {
            true => entry.dir().may_change(),
            false => entry.remove().is_ok(),
        }
    }

    /// Deletes what is in a directory of the manifest and does not stay.
    fn clean(&mut self, dir: &Dir, path: &[u8]) -> Result<(), SinkError> {
        let Some(names) = self.names(dir, path)? else { return Ok(()) };
        let stays = self.known.get(path);
        let others = names.into_iter().filter(|name| {
            let is_known = |stays: &BTreeSet<&[u8]>| stays.contains(name.as_bytes());
            !stays.is_some_and(is_known)
        });
        let others: Vec<_> = others.collect();
        if others.is_empty() {
            return Ok(());
        }
        // Where case does not matter, a name in the directory may be another spelling of one that stays.
        let stat = |name: &OsStr| dir.entry(name).stat().filter(is_single);
        let ids = stays.into_iter().flatten().filter_map(|name| stat(OsStr::from_bytes(name)));
        let ids: BTreeSet<_> = ids.map(|found| found.id).collect();
        for name in &others {
            if !stat(name).is_some_and(|found| ids.contains(&found.id)) {
                self.remove(dir, name, joined(path, name), 0)?;
            }
        }
        Ok(())
    }

    /// Deletes what has a name, a directory with all that is in it. Returns whether nothing of it stays.
    fn remove(
        &mut self,
        dir: &Dir,
        name: &OsStr,
        path: Vec<u8>,
        depth: u32,
    ) -> Result<bool, SinkError> {
        if self.config.cancel.is_set() {
            return Err(StoreError::Cancelled(dir.path().join(name)).into());
        }
        let entry = dir.entry(name);
        let Some(found) = entry.stat() else {
            if self.dry_run {
                self.deleted.fail(path);
            }
            return Ok(!self.dry_run);
        };
        let is_directory = found.kind == FileKind::Directory;
        let is_progress = name.as_bytes().starts_with(STATE_PREFIX);
        if is_progress && (is_directory || !is_left_link(name))
            || self.excludes.matches(Path::new(OsStr::from_bytes(&path)), is_directory)
        {
            return Ok(false);
        }
        match is_directory {
            true => self.remove_directory(&entry, &found, path, depth),
            false => self.remove_file(&entry, &found, path),
        }
    }

    fn remove_directory(
        &mut self,
        entry: &Entry,
        found: &Stat,
        path: Vec<u8>,
        depth: u32,
    ) -> Result<bool, SinkError> {
        let inside = entry.dir().existing(entry.name())?;
        let is_here = |inside: &Dir| (found.id.0, inside.mount()) == self.device;
        let Some(inside) = inside.filter(|inside| depth < MAX_DEPTH && is_here(inside)) else {
            self.deleted.fail(path);
            return Ok(false);
        };
        if self.hides(found) {
            self.deleted.hidden += 1;
            let removed = entry.dir().may_change();
            self.count(removed, [&path[..], b"/"].concat());
            return Ok(removed);
        }
        self.open_up(&inside, found);
        let removed = self.remove_opened(entry, &inside, path, depth);
        if self.dry_run || !matches!(removed, Ok(true)) {
            self.close(&inside, found);
        }
        removed
    }

    /// Deletes a directory that is open, with all that is in it. Returns whether nothing of it stays.
    fn remove_opened(
        &mut self,
        entry: &Entry,
        inside: &Dir,
        path: Vec<u8>,
        depth: u32,
    ) -> Result<bool, SinkError> {
        let Some(names) = self.names(inside, &path)? else { return Ok(false) };
        let mut is_empty = true;
        for name in &names {
            is_empty &= self.remove(inside, name, joined(&path, name), depth + 1)?;
        }
        if is_empty {
            let removed = match self.dry_run {
                true => entry.dir().may_change(),
                false => entry.remove_directory().is_ok(),
            };
            self.count(removed, [&path[..], b"/"].concat());
            return Ok(removed);
        }
        Ok(false)
    }

    fn remove_file(
        &mut self,
        entry: &Entry,
        found: &Stat,
        path: Vec<u8>,
    ) -> Result<bool, SinkError> {
        let target = path.strip_suffix(PART.as_bytes()).filter(|_| found.kind == FileKind::File);
        // The lock is kept until the file has no name any more.
        let part = match target.filter(|_| !self.dry_run) {
            Some(target) => entry.open_read()?.map(|file| (target, file)),
            None => None,
        };
        if part.as_ref().is_some_and(|(_, file)| !file.lock()) {
            return Ok(false);
        }
        let removed = self.may_remove(entry);
        if let Some((target, file)) = part {
            if removed {
                let _ = self.root.entry(&state::table_name(target)).remove();
            }
            file.unlock();
        }
        self.count(removed, path);
        Ok(removed)
    }

    /// Returns the names in a directory; `None` if it cannot be read.
    fn names(&mut self, dir: &Dir, path: &[u8]) -> Result<Option<Vec<OsString>>, SinkError> {
        match dir.names() {
            Ok(names) => Ok(Some(names)),
            Err(error) if is_exhausted(&error) => Err(failed(dir.path(), error).into()),
            Err(_) => {
                self.deleted.fail(path.to_vec());
                Ok(None)
            }
        }
    }

    fn count(&mut self, removed: bool, path: Vec<u8>) {
        match removed {
            true => self.deleted.add(path),
            false => self.deleted.fail(path),
        }
    }
}
