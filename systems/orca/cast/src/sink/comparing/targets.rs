//! What a receiver has of a manifest, with the further names of files.

use std::collections::BTreeMap;

use super::super::SinkError;
use super::place::{Place, Places, Seen};
use crate::format::{Difference, FileHeader, Manifest, ManifestEntry};

/// The files of a manifest that have further names in it.
pub(super) struct Targets<'a>(BTreeMap<&'a [u8], Target<'a>>);

struct Target<'a> {
    number: u32,
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
        let target = |(number, entry): (u32, &'a ManifestEntry)| {
            let path = &entry.header.path[..];
            let names = names.remove(path)?;
            Some((path, Target { number, entry, names, is_there: false, elsewhere: None }))
        };
        Self((0..).zip(&manifest.entries).filter_map(target).collect())
    }

    /// Returns the file that a further name is one of.
    fn of(&self, header: &FileHeader) -> Option<&Target<'a>> {
        self.0.get(header.hard_link()?)
    }

    /// Returns the header of a copy in the place of a further name.
    pub(super) fn copy(&self, header: &FileHeader) -> Option<FileHeader> {
        Some(self.of(header)?.header_at(&header.path))
    }

    /// Returns what is at the place of an entry. The file that a further name is one of is looked for before.
    pub(super) fn find(
        &mut self,
        places: &mut Places<'_>,
        entry: &ManifestEntry,
    ) -> Result<Place, SinkError> {
        if let Some(target) = self.of(&entry.header) {
            return target.name(places, &entry.header);
        }
        let mut place = places.compare(&entry.header, entry.hash)?;
        if let Some(target) = self.0.get_mut(&entry.header.path[..]) {
            if let Place::Lacking(difference) = place
                && places.at(&entry.header.path)?.is_some()
            {
                place = target.elsewhere(places, difference)?;
            }
            target.is_there = place.is_there();
        }
        Ok(place)
    }

    /// Gives a file that is at one of its further names the first one. Returns whether it has it.
    pub(super) fn link(
        &self,
        places: &mut Places<'_>,
        entry: &ManifestEntry,
    ) -> Result<bool, SinkError> {
        let target = self.0.get(&entry.header.path[..]);
        let Some((path, seen)) = target.and_then(|target| target.elsewhere) else {
            return Ok(false);
        };
        let Some(to) = places.at(&entry.header.path)? else { return Ok(false) };
        let mut others = places.again();
        let Some(from) = others.at(path)? else { return Ok(false) };
        let Some(file) = from.open_read()? else { return Ok(false) };
        Ok(file.stat().is_ok_and(|found| Seen::new(&found) == seen)
            && to.dir().keeping_time(|| to.link(&*file)).is_ok())
    }

    /// Returns the numbers of all names of the file that an entry is a name of: where one of them has to be sent, the others would be left
    /// with what it was.
    pub(super) fn names(&self, number: u32, header: &FileHeader) -> Vec<u32> {
        let target = self.of(header).or_else(|| self.0.get(&header.path[..]));
        let Some(Target { number: first, names, .. }) = target else { return vec![number] };
        std::iter::once(*first).chain(names.iter().map(|name| name.0)).collect()
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

    /// Returns what is at the first name, if the receiver lacks the file there: it may have it at one of the further ones.
    fn elsewhere(
        &mut self,
        places: &mut Places<'_>,
        difference: Difference,
    ) -> Result<Place, SinkError> {
        for (_, path) in &self.names {
            let found = places.compare(&self.header_at(path), self.entry.hash)?;
            let seen = places.at(path)?.and_then(|at| at.stat());
            if let Some(seen) = seen.filter(|_| found.is_there()) {
                let seen = Seen::new(&seen);
                self.elsewhere = Some((path, seen));
                let is_other = matches!(found, Place::Other(..));
                return Ok(Place::Elsewhere(difference, is_other.then_some(seen)));
            }
        }
        Ok(Place::Lacking(difference))
    }

    /// Returns what is at the place of a further name. A copy of the file is as good where files are not replaced, or cannot be linked.
    fn name(&self, places: &mut Places<'_>, header: &FileHeader) -> Result<Place, SinkError> {
        let mut id = |path: &[u8]| -> Result<_, SinkError> {
            Ok(places.at(path)?.and_then(|at| at.stat()).map(|found| found.id))
        };
        let (name, file) = (id(&header.path)?, id(self.path())?);
        if name.is_some() && name == file {
            return Ok(match self.is_there {
                true => Place::There,
                // Another file will have the names.
                false => Place::Lacking(Difference::Link),
            });
        }
        let place = places.compare(&self.header_at(&header.path), self.entry.hash)?;
        if places.config.overwrite && place.is_there() && self.may_link(places, header)? {
            return Ok(Place::Lacking(Difference::Link));
        }
        Ok(place)
    }

    /// Returns whether the system lets the file have this further name.
    fn may_link(&self, places: &mut Places<'_>, header: &FileHeader) -> Result<bool, SinkError> {
        let Some(name) = places.at(&header.path)? else { return Ok(true) };
        let mut others = places.again();
        let Some(file) = others.at(self.path())? else { return Ok(true) };
        let (Some(copy), Some(found)) = (name.stat(), file.stat()) else { return Ok(true) };
        if copy.id.0 != found.id.0 || name.dir().mount() != file.dir().mount() {
            return Ok(false);
        }
        // Another file will have the name.
        if !self.is_there || places.purpose.dry_run {
            return Ok(true);
        }
        Ok(file.open_read()?.is_none_or(|file| name.can_link(&*file)))
    }
}
