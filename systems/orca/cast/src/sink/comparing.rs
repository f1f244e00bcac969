//! A sink that takes a manifest and compares it with a directory. It changes no content, and deletes only what
//! [`Delete::Now`] asks for. It gives a file the sender's mode, time and attributes only where files are replaced, or where the
//! sender's hash is that of the file, and only if nothing is in the way of the cast.

mod place;
mod targets;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) use self::place::Opened;
use self::place::{Place, Places, Seen, split};
use self::targets::Targets;
use super::folder::FolderConfig;
use super::{Answer, Comparison, Sink, SinkError, deleting, state};
use crate::format::{
    Delete, Deleted, Deletion, Difference, Findings, HASH, Lacking, MANIFEST_FRONT, Manifest,
    ManifestEntry, Obstacle, ObstacleKind, Purpose, cast_hash, part_number,
};
use crate::store::{Dir, StoreError};

/// The bytes of manifests that a process keeps at a time.
const MAX_KEPT: u64 = 256 << 20;

/// How many bytes of manifests are kept. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Manifests(Arc<AtomicU64>);

/// Compares a manifest with what is in a directory.
#[derive(Debug)]
pub struct Comparing {
    /// `None` if the files do not go into a directory: all of them are lacking.
    place: Option<(Dir, FolderConfig)>,
    allows_deletion: bool,
    /// Whether it takes one file only.
    takes_one: bool,
    kept: Manifests,
    /// The bytes that count in `kept`.
    counted: u64,
    bytes: Vec<u8>,
    answer: Option<Answer>,
}

impl Drop for Comparing {
    fn drop(&mut self) {
        self.kept.0.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

impl Comparing {
    /// Compares with the directory of a configuration, which is not created.
    ///
    /// # Errors
    /// If the directory cannot be opened.
    pub fn new(config: FolderConfig) -> Result<Self, SinkError> {
        match Dir::open_existing(&config.folder)? {
            Some(root) => Ok(Self::in_dir(root, config)),
            None => {
                let mut this = Self::with_nothing(config.manifests);
                this.allows_deletion = config.allow_delete;
                this.takes_one = config.only.is_some();
                Ok(this)
            }
        }
    }

    /// As [`Self::new`], with an open directory.
    #[must_use]
    pub fn in_dir(root: Dir, config: FolderConfig) -> Self {
        Self {
            kept: config.manifests.clone(),
            allows_deletion: config.allow_delete && config.only.is_none(),
            takes_one: config.only.is_some(),
            place: Some((root, config)),
            counted: 0,
            bytes: Vec::new(),
            answer: None,
        }
    }

    /// Answers that the one file of a cast is lacking, as of a pipe.
    #[must_use]
    pub fn with_nothing(kept: Manifests) -> Self {
        Self {
            place: None,
            allows_deletion: false,
            takes_one: true,
            kept,
            counted: 0,
            bytes: Vec::new(),
            answer: None,
        }
    }

    /// Counts the memory that a manifest of this length needs.
    fn count(&mut self, length: usize) -> Result<(), SinkError> {
        if self.counted > 0 {
            return Ok(());
        }
        self.counted = length as u64;
        match self.kept.0.fetch_add(self.counted, Ordering::Relaxed) + self.counted > MAX_KEPT {
            true => Err(SinkError::Output("it compares the files of many senders")),
            false => Ok(()),
        }
    }

    fn compare(&self, manifest: &Manifest) -> Result<Answer, SinkError> {
        let Purpose { dry_run, delete, .. } = manifest.purpose;
        if delete != Delete::Never && !self.allows_deletion {
            return Ok(refused(manifest));
        }
        let mut found = Found::new(manifest);
        let place = match &self.place {
            Some((root, config)) if dry_run => Some((root.as_is()?, config)),
            place => place.as_ref().map(|(root, config)| (root.clone(), config)),
        };
        let mut places =
            place.as_ref().map(|(root, config)| Places::new(root, config, manifest.purpose));
        let mut targets = Targets::new(manifest);
        for (number, entry) in (0..).zip(&manifest.entries) {
            let place = match &mut places {
                _ if self.takes_one && (number > 0 || !entry.header.is_file()) => {
                    Place::Taken(ObstacleKind::Several, Difference::New)
                }
                Some(places) => {
                    if places.config.cancel.is_set() {
                        return Err(StoreError::Cancelled(places.config.folder.clone()).into());
                    }
                    targets.find(places, entry)?
                }
                None => Place::Lacking(Difference::New),
            };
            found.add(number, entry, place);
        }
        let comparison = &mut found.comparison;
        if let Some((root, config)) = &place
            && (delete == Delete::Later || dry_run)
            && comparison.obstacle.is_none()
            && !found.misplaced.is_empty()
        {
            match deleting::make_room(root, config, manifest, &found.misplaced)? {
                Ok(deleted) => comparison.deletion = Deletion::Done(deleted),
                Err(obstacle) => comparison.obstacle = Some(obstacle),
            }
        }
        if let Some(places) = places.as_mut().filter(|_| !dry_run)
            && found.comparison.obstacle.is_none()
        {
            found.change(places, &targets)?;
        }
        // Directories have their own modes again.
        drop(places);
        let Found { lacking, differences, mut comparison, .. } = found;
        comparison.is_complete = lacking.is_empty();
        let is_due = match delete {
            Delete::Never => false,
            Delete::Later => dry_run,
            Delete::Now => dry_run || comparison.is_complete,
        };
        if let Some((root, _)) = place.as_ref().filter(|_| comparison.is_complete && !dry_run) {
            // An attempt that was killed in the end has left it.
            let headers = manifest.entries.iter().map(|entry| &entry.header);
            state::remove_of(root, part_number(&cast_hash(headers), &[0; HASH]));
        }
        if let Some((root, config)) =
            place.as_ref().filter(|_| is_due && comparison.obstacle.is_none())
        {
            comparison.deletion.add(Deletion::Done(deleting::delete(root, config, manifest)?));
        }
        if delete == Delete::Now && !is_due {
            comparison.deletion = Deletion::NotDone(Deleted::default());
        }
        let Comparison { deletion, obstacle, .. } = comparison.clone();
        let findings = Findings { lacking, differences, deletion, obstacle };
        Ok(Answer { bytes: findings.encode().into(), comparison })
    }
}

/// What a comparison has found.
struct Found<'a> {
    manifest: &'a Manifest,
    lacking: Lacking,
    differences: Option<Vec<Difference>>,
    comparison: Comparison,
    /// What is in the way and may be deleted.
    misplaced: Vec<(ObstacleKind, &'a [u8])>,
    /// The entries that are to get their modes, times and attributes.
    changes: Vec<(u32, Seen)>,
    /// The files that are to get their first names.
    links: Vec<u32>,
}

impl<'a> Found<'a> {
    fn new(manifest: &'a Manifest) -> Self {
        Self {
            manifest,
            lacking: Lacking::nothing(manifest.entries.len() as u32),
            differences: manifest.purpose.itemize.then(Vec::new),
            comparison: Comparison { purpose: manifest.purpose, ..Comparison::default() },
            misplaced: Vec::new(),
            changes: Vec::new(),
            links: Vec::new(),
        }
    }

    /// Adds what is at the place of the next entry.
    fn add(&mut self, number: u32, entry: &'a ManifestEntry, place: Place) {
        let header = &entry.header;
        self.differences.iter_mut().for_each(|it| it.push(place.difference()));
        self.comparison.files += u64::from(!header.is_directory());
        let bytes = self.comparison.bytes.saturating_add(header.length.unwrap_or(0));
        self.comparison.bytes = bytes;
        match place {
            Place::Taken(kind @ (ObstacleKind::IsDirectory | ObstacleKind::NotDirectory), _)
                if self.manifest.purpose.delete != Delete::Never =>
            {
                self.misplaced.push((kind, &header.path[..]));
            }
            Place::Taken(kind, _) => {
                Obstacle::add(&mut self.comparison.obstacle, kind, &header.path);
            }
            Place::Other(found, _) => self.changes.push((number, found)),
            Place::Elsewhere(_, found) => {
                self.links.push(number);
                self.changes.extend(found.map(|found| (number, found)));
            }
            Place::There | Place::Lacking(_) => {}
        }
        if !place.is_there() {
            self.lack(number);
        }
    }

    fn lack(&mut self, number: u32) {
        if self.lacking.contains(number) {
            return;
        }
        self.lacking.add(number);
        let header = &self.manifest.entries[number as usize].header;
        let comparison = &mut self.comparison;
        comparison.lacking_files += u64::from(!header.is_directory());
        let bytes = header.length.unwrap_or(0);
        comparison.lacking_bytes = comparison.lacking_bytes.saturating_add(bytes);
    }

    /// Adds all names of the file that an entry is a name of to what is lacking.
    fn lack_names(&mut self, number: u32, targets: &Targets<'_>) {
        let header = &self.manifest.entries[number as usize].header;
        targets.names(number, header).into_iter().for_each(|it| self.lack(it));
    }

    /// Gives files their first names, and entries their modes, times and attributes. What cannot get them, or be synced, is sent again: then
    /// the cause is reported.
    fn change(&mut self, places: &mut Places<'_>, targets: &Targets<'_>) -> Result<(), SinkError> {
        let manifest = self.manifest;
        let links = std::mem::take(&mut self.links).into_iter().map(|number| (number, None));
        let changes = std::mem::take(&mut self.changes).into_iter();
        let changes = links.chain(changes.map(|(number, found)| (number, Some(found))));
        for (number, found) in changes {
            let entry = &manifest.entries[number as usize];
            let header = &entry.header;
            let is_changed = match found {
                None => targets.link(places, entry)?,
                Some(found) => {
                    let copy = targets.copy(header);
                    places.change(copy.as_ref().unwrap_or(header), found)?
                }
            };
            if !is_changed {
                self.lack_names(number, targets);
            }
        }
        if places.config.sync {
            self.sync_names(places, targets)?;
        }
        Ok(())
    }

    /// Makes the names of entries that are there permanent: whoever made them may have been killed before. Each directory is synced once.
    fn sync_names(
        &mut self,
        places: &mut Places<'_>,
        targets: &Targets<'_>,
    ) -> Result<(), SinkError> {
        let mut there: BTreeMap<&[u8], Vec<u32>> = BTreeMap::new();
        for (number, entry) in (0..).zip(&self.manifest.entries) {
            if !self.lacking.contains(number) {
                there.entry(split(&entry.header.path).0).or_default().push(number);
            }
        }
        for (folder, numbers) in there {
            if !places.sync(folder)? {
                numbers.into_iter().for_each(|number| self.lack_names(number, targets));
            }
        }
        Ok(())
    }
}

/// Returns the answer of a receiver that deletes nothing.
fn refused(manifest: &Manifest) -> Answer {
    let files = manifest.entries.iter().filter(|entry| !entry.header.is_directory());
    let lengths = files.map(|entry| entry.header.length.unwrap_or(0));
    let add = |(files, bytes), length| (files + 1, u64::saturating_add(bytes, length));
    let (files, bytes) = lengths.fold((0, 0), add);
    let (purpose, deletion) = (manifest.purpose, Deletion::Refused);
    let comparison = Comparison { purpose, files, bytes, deletion, ..Comparison::default() };
    let lacking = Lacking::nothing(manifest.entries.len() as u32);
    let findings =
        Findings { lacking, differences: None, deletion: Deletion::Refused, obstacle: None };
    Answer { bytes: findings.encode().into(), comparison }
}

impl Sink for Comparing {
    fn begins_at(&self) -> u64 {
        0
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() < MANIFEST_FRONT {
            return Ok(());
        }
        let length = Manifest::length(&self.bytes)?;
        self.count(length)?;
        if self.bytes.len() < length {
            return Ok(());
        }
        let manifest = Manifest::decode(&std::mem::take(&mut self.bytes))?;
        self.answer = Some(self.compare(&manifest)?);
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.answer.is_some()
    }

    fn answer(&self) -> Option<Answer> {
        self.answer.clone()
    }
}
