//! A sink that takes a manifest and compares it with a directory. It changes no content.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::folder::{FolderConfig, hash_of, set_attributes};
use super::state;
use super::{Answer, Comparison, Sink, SinkError};
use crate::format::{FileHeader, Hash, Lacking, MANIFEST_FRONT, Manifest, ManifestEntry, Purpose};
use crate::store::disk::FileKind;
use crate::store::{Dir, Entry, StoreError};

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
    kept: Manifests,
    /// The bytes that count in `kept`.
    counted: u64,
    bytes: Vec<u8>,
    answer: Option<Answer>,
}

/// A directory of the manifest, if the receiver has it.
struct Opened {
    path: Vec<u8>,
    dir: Option<Dir>,
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
            None => Ok(Self::with_nothing(config.manifests)),
        }
    }

    /// As [`Self::new`], with an open directory.
    #[must_use]
    pub fn in_dir(root: Dir, config: FolderConfig) -> Self {
        let kept = config.manifests.clone();
        Self { place: Some((root, config)), kept, counted: 0, bytes: Vec::new(), answer: None }
    }

    /// Answers that everything is lacking, as of a pipe.
    #[must_use]
    pub fn with_nothing(kept: Manifests) -> Self {
        Self { place: None, kept, counted: 0, bytes: Vec::new(), answer: None }
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
        let mut lacking = Lacking::nothing(manifest.entries.len() as u32);
        let mut comparison = Comparison { purpose: manifest.purpose, ..Comparison::default() };
        let mut opened = Opened { path: Vec::new(), dir: None };
        for (number, entry) in (0..).zip(&manifest.entries) {
            let is_there = match &self.place {
                None => false,
                Some((root, config)) => {
                    if config.cancel.is_set() {
                        return Err(StoreError::Cancelled(root.path().to_owned()).into());
                    }
                    is_there(root, config, &mut opened, entry, manifest.purpose)?
                }
            };
            let bytes = entry.header.length.unwrap_or(0);
            let files = u64::from(!entry.header.directory);
            comparison.files += files;
            comparison.bytes += bytes;
            if !is_there {
                lacking.add(number);
                comparison.lacking_files += files;
                comparison.lacking_bytes += bytes;
            }
        }
        comparison.is_complete = lacking.is_empty();
        Ok(Answer { bytes: lacking.encode().into(), comparison })
    }
}

/// Returns the directory of an entry, if there is one, and the entry's name. Nothing is created, and no link is followed.
fn parent<'a>(root: &Dir, opened: &mut Opened, path: &'a [u8]) -> Option<(Dir, &'a OsStr)> {
    let (folder, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&path[..0], path),
    };
    if folder.is_empty() {
        return Some((root.clone(), OsStr::from_bytes(name)));
    }
    if opened.path != folder {
        let mut names = folder.split(|byte| *byte == b'/');
        let dir = names.try_fold(root.clone(), |dir, name| dir.existing(OsStr::from_bytes(name)));
        *opened = Opened { path: folder.to_vec(), dir };
    }
    Some((opened.dir.clone()?, OsStr::from_bytes(name)))
}

/// Returns whether an entry of a manifest is there.
fn is_there(
    root: &Dir,
    config: &FolderConfig,
    opened: &mut Opened,
    entry: &ManifestEntry,
    purpose: Purpose,
) -> Result<bool, SinkError> {
    let ManifestEntry { header, hash } = entry;
    let place = match &config.only {
        Some(only) => Some((root.clone(), only.file_name().unwrap_or_default())),
        None => parent(root, opened, &header.path),
    };
    let Some((dir, name)) = place else { return Ok(false) };
    let at = dir.entry(name);
    if header.directory {
        let found = at.stat().filter(|found| found.kind == FileKind::Directory);
        return Ok(config.only.is_none()
            && found.is_some_and(|found| {
                found.modified == (header.mtime_s, header.mtime_ns)
                    && found.mode == u32::from(header.mode) | 0o700
            }));
    }
    let found = file_is_there(config, &at, header, *hash, purpose)?;
    if found && !purpose.dry_run {
        state::remove_table(root, header);
    }
    Ok(found)
}

/// Returns whether a file is there: one of the length and time, or with a hash one of the length and the hash.
fn file_is_there(
    config: &FolderConfig,
    at: &Entry,
    header: &FileHeader,
    hash: Option<Hash>,
    purpose: Purpose,
) -> Result<bool, SinkError> {
    let Some(found) = at.stat().filter(|found| found.kind == FileKind::File) else {
        return Ok(false);
    };
    let same_time = found.modified == (header.mtime_s, header.mtime_ns);
    if Some(found.len) != header.length || hash.is_none() && !same_time {
        return Ok(false);
    }
    let changes = !same_time || found.mode != u32::from(header.mode);
    if hash.is_none() && (purpose.dry_run || !changes && !config.sync) {
        return Ok(true);
    }
    let Some(file) = at.open_read() else { return Ok(false) };
    if hash.is_some() && hash_of(&*file, at, &config.cancel)? != hash {
        return Ok(false);
    }
    if purpose.dry_run {
        return Ok(true);
    }
    // What cannot be given its attributes, or be synced, is sent again: then the cause is reported.
    Ok((!changes || set_attributes(&*file, header).is_ok())
        && (!config.sync || file.sync().is_ok() && at.dir().sync().is_ok()))
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
