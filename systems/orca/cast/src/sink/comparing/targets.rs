//! Further names of the files of a manifest.

use std::collections::BTreeMap;

use super::super::SinkError;
use super::super::folder::FolderConfig;
use super::place::{Opened, Place, Seen, find, parent};
use crate::format::{Difference, FileHeader, Manifest, ManifestEntry, Purpose};
use crate::store::Dir;

/// The files of a manifest that have further names in it.
pub(super) struct Targets<'a>(BTreeMap<&'a [u8], Target<'a>>);

pub(super) struct Target<'a> {
    entry: &'a ManifestEntry,
    /// The numbers of its further names among the entries, and these names.
    names: Vec<(u32, &'a [u8])>,
    is_there: bool,
    /// The further name where the receiver has the file, and what that is.
    elsewhere: Option<(&'a [u8], Seen)>,
}

impl<'a> Targets<'a> {
    pub(super) fn new(manifest: &'a Manifest) -> Self {
        let mut names: BTreeMap<&[u8], Vec<(u32, &[u8])>> = BTreeMap::new();
        for (number, ManifestEntry { header, .. }) in (0..).zip(&manifest.entries) {
            if let Some(target) = header.hard_link() {
                names.entry(target).or_default().push((number, &header.path));
            }
        }
        let target = |entry: &'a ManifestEntry| {
            let path = &entry.header.path[..];
            let names = names.remove(path)?;
            Some((path, Target { entry, names, is_there: false, elsewhere: None }))
        };
        Self(manifest.entries.iter().filter_map(target).collect())
    }

    /// Returns the file that a further name is one of.
    pub(super) fn of(&self, header: &FileHeader) -> Option<&Target<'a>> {
        self.0.get(header.hard_link()?)
    }

    /// Returns the header of a copy in the place of a further name.
    pub(super) fn copy(&self, header: &FileHeader) -> Option<FileHeader> {
        Some(self.of(header)?.header_at(&header.path))
    }

    /// Returns what is at the place of an entry that a receiver has at one of the further names, if it lacks it under the first one.
    pub(super) fn elsewhere(
        &mut self,
        root: &Dir,
        config: &FolderConfig,
        opened: &mut Opened,
        (entry, place): (&ManifestEntry, Place),
        purpose: Purpose,
    ) -> Result<Place, SinkError> {
        let Place::Lacking(difference) = place else { return Ok(place) };
        let Some(target) = self.0.get_mut(&entry.header.path[..]) else { return Ok(place) };
        if parent(root, opened, &entry.header.path).is_none() {
            return Ok(place);
        }
        for (_, path) in &target.names {
            let copy = ManifestEntry { header: target.header_at(path), hash: entry.hash };
            let found = find(root, config, opened, &copy, purpose)?;
            let seen = parent(root, opened, path).and_then(|(dir, name)| dir.entry(name).stat());
            if let Some(seen) = seen.filter(|_| found.is_there()) {
                let seen = Seen::new(&seen);
                target.elsewhere = Some((path, seen));
                let is_other = matches!(found, Place::Other(..));
                return Ok(Place::Elsewhere(difference, is_other.then_some(seen)));
            }
        }
        Ok(place)
    }

    /// Gives a file that is at one of its further names the first one. Returns whether it has it.
    pub(super) fn link(&self, root: &Dir, opened: &mut Opened, entry: &ManifestEntry) -> bool {
        let target = self.0.get(&entry.header.path[..]);
        let Some((path, seen)) = target.and_then(|target| target.elsewhere) else { return false };
        let mut at = |path: &[u8]| {
            let (dir, name) = parent(root, opened, path)?;
            Some(dir.entry(name))
        };
        let (Some(from), Some(to)) = (at(path), at(&entry.header.path)) else { return false };
        let Some(file) = from.open_read() else { return false };
        file.stat().is_ok_and(|found| Seen::new(&found) == seen)
            && to.dir().keeping_time(|| to.link(&*file)).is_ok()
    }

    /// Returns the numbers of the further names of an entry.
    pub(super) fn names(&self, entry: &ManifestEntry) -> impl Iterator<Item = u32> + use<'a> {
        let target = self.0.get(&entry.header.path[..]);
        let names = target.map(|target| target.names.clone()).unwrap_or_default();
        names.into_iter().map(|(number, _)| number)
    }

    pub(super) fn found(&mut self, entry: &ManifestEntry, place: Place) {
        if let Some(target) = self.0.get_mut(&entry.header.path[..]) {
            target.is_there = place.is_there();
        }
    }
}

impl Target<'_> {
    /// Returns the name where the receiver has the file, if it has it.
    fn path(&self) -> &[u8] {
        self.elsewhere.map_or(&self.entry.header.path, |(path, _)| path)
    }

    /// Returns the header of a copy of the file.
    fn header_at(&self, path: &[u8]) -> FileHeader {
        FileHeader { path: path.to_vec(), ..self.entry.header.clone() }
    }

    /// Returns what is at the place of a further name. A copy of the file is as good where files are not replaced, or cannot be linked.
    pub(super) fn find(
        &self,
        root: &Dir,
        config: &FolderConfig,
        opened: &mut Opened,
        entry: &ManifestEntry,
        purpose: Purpose,
    ) -> Result<Place, SinkError> {
        let mut id = |path: &[u8]| {
            let (dir, name) = parent(root, opened, path)?;
            dir.entry(name).stat().map(|found| found.id)
        };
        let (name, file) = (id(&entry.header.path), id(self.path()));
        if name.is_some() && name == file {
            return Ok(match self.is_there {
                true => Place::There,
                // Another file will have the names.
                false => Place::Lacking(Difference::Link),
            });
        }
        let header = self.header_at(&entry.header.path);
        let copy = ManifestEntry { header, hash: self.entry.hash };
        Ok(match find(root, config, opened, &copy, purpose)? {
            place
                if config.overwrite
                    && place.is_there()
                    && self.may_link(root, opened, entry, purpose) =>
            {
                Place::Lacking(Difference::Link)
            }
            place => place,
        })
    }

    /// Returns whether the system lets the file have this further name.
    fn may_link(
        &self,
        root: &Dir,
        opened: &mut Opened,
        entry: &ManifestEntry,
        purpose: Purpose,
    ) -> bool {
        let mut at = |path: &[u8]| {
            let (dir, name) = parent(root, opened, path)?;
            Some(dir.entry(name))
        };
        let (Some(name), Some(file)) = (at(&entry.header.path), at(self.path())) else {
            return true;
        };
        let (Some(copy), Some(found)) = (name.stat(), file.stat()) else { return true };
        if copy.id.0 != found.id.0 || name.dir().mount() != file.dir().mount() {
            return false;
        }
        // Another file will have the name.
        !self.is_there
            || purpose.dry_run
            || file.open_read().is_none_or(|file| name.can_link(&*file))
    }
}
