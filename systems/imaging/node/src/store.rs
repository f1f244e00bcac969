//! Blobs in a folder, named by their digests.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rackweave_disk::{Directory, DiskFile, Open, Part, Reading, open};

use crate::digest::{Digest, Hasher};

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Its folder cannot be used.
    #[error("cannot use the folder {path}: {error}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// Another process uses it.
    #[error("another node uses the folder {0}")]
    Busy(PathBuf),
}

/// The name of the file whose lock says that a node uses the folder.
const LOCK: &str = ".lock";

#[derive(Clone, Copy, Debug)]
struct Entry {
    size: u64,
    /// The number of its last use.
    used: u64,
    /// Whether this process has written it or read all of it. A file of an earlier process is read once before it is served.
    is_known: bool,
}

#[derive(Debug, Default)]
struct Entries {
    all: BTreeMap<Digest, Entry>,
    uses: u64,
    bytes: u64,
}

/// The blobs of a node. The least recently used ones go when there is no room.
#[derive(Debug)]
pub(crate) struct Store {
    folder: Arc<dyn Directory>,
    entries: Mutex<Entries>,
    pub(crate) capacity: u64,
    /// Held while a file of an earlier process is read: once is enough.
    verifying: Mutex<()>,
    _lock: Box<dyn DiskFile>,
}

impl Store {
    /// Opens a folder, which is made if it does not exist. What an interrupted process has left unfinished is removed.
    pub(crate) fn open(path: &Path, capacity: u64) -> Result<Self, StoreError> {
        let failed = |error| StoreError::Folder { path: path.to_owned(), error };
        let folder = open(path).map_err(failed)?;
        let lock = folder.open(OsStr::new(LOCK), Open::UpdateOrCreate).map_err(failed)?;
        if !lock.lock() {
            return Err(StoreError::Busy(path.to_owned()));
        }
        let mut found = Vec::new();
        for name in folder.names().map_err(failed)? {
            let Some(text) = name.to_str() else { continue };
            if text.starts_with('.') && text.ends_with(".part") {
                // If it cannot be removed, it only takes room.
                let _ = folder.remove(&name);
            } else if let (Some(digest), Some(stat)) = (Digest::from_hex(text), folder.stat(&name))
            {
                found.push((stat.modified, digest, stat.len));
            }
        }
        found.sort_unstable_by_key(|it| (it.0, it.1));
        let mut entries = Entries::default();
        for (_, digest, size) in found {
            entries.add(digest, size, false);
        }
        Ok(Self {
            folder,
            entries: Mutex::new(entries),
            capacity,
            verifying: Mutex::default(),
            _lock: lock,
        })
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The digests and sizes of all blobs.
    pub(crate) fn all(&self) -> Vec<(Digest, u64)> {
        self.entries().all.iter().map(|(digest, entry)| (*digest, entry.size)).collect()
    }

    /// The number of blobs and their bytes.
    pub(crate) fn totals(&self) -> (usize, u64) {
        let entries = self.entries();
        (entries.all.len(), entries.bytes)
    }

    pub(crate) fn size(&self, digest: &Digest) -> Option<u64> {
        self.entries().all.get(digest).map(|entry| entry.size)
    }

    /// Opens a blob. It may read it all, and blocks.
    pub(crate) fn open_blob(&self, digest: &Digest) -> Option<(Arc<dyn DiskFile>, u64)> {
        let entry = self.entries().touch(digest)?;
        let file = match self.folder.open(OsStr::new(&digest.hex()), Open::Read) {
            Ok(file) => file,
            Err(error) => {
                // Another error, such as too many open files, says nothing of the blob.
                if error.kind() == io::ErrorKind::NotFound {
                    self.remove(digest);
                }
                return None;
            }
        };
        if !entry.is_known && !self.verify(digest, &*file, entry.size)? {
            self.remove(digest);
            return None;
        }
        Some((file.into(), entry.size))
    }

    /// Whether a file of an earlier process has its digest; `None` if it cannot be read.
    fn verify(&self, digest: &Digest, file: &dyn DiskFile, size: u64) -> Option<bool> {
        let _one = self.verifying.lock().unwrap_or_else(PoisonError::into_inner);
        if self.entries().all.get(digest).is_some_and(|entry| entry.is_known) {
            return Some(true);
        }
        let is_right = hash(file, size).ok()? == *digest;
        if let Some(entry) = self.entries().all.get_mut(digest).filter(|_| is_right) {
            entry.is_known = true;
        }
        Some(is_right)
    }

    fn remove(&self, digest: &Digest) {
        let mut entries = self.entries();
        if let Some(entry) = entries.all.remove(digest) {
            entries.bytes -= entry.size;
            // If it cannot be removed, it is read again by the next process.
            let _ = self.folder.remove(OsStr::new(&digest.hex()));
        }
    }

    /// A file for a blob that arrives.
    pub(crate) fn create(&self, digest: &Digest) -> io::Result<Part> {
        Part::create(Arc::clone(&self.folder), OsStr::new(&digest.hex()))
    }

    /// Takes in a file that has its digest. Returns how many others went for it.
    pub(crate) fn publish(&self, digest: &Digest, part: &Part, size: u64) -> io::Result<usize> {
        part.publish(OsStr::new(&digest.hex()), true, Some(size), true)?;
        let mut entries = self.entries();
        entries.add(*digest, size, true);
        let mut gone = Vec::new();
        while entries.bytes > self.capacity && entries.all.len() > 1 {
            let oldest = entries.all.iter().filter(|(it, _)| *it != digest);
            let Some(oldest) = oldest.min_by_key(|(_, entry)| entry.used).map(|(it, _)| *it) else {
                break;
            };
            if let Some(entry) = entries.all.remove(&oldest) {
                entries.bytes -= entry.size;
            }
            gone.push(oldest);
        }
        for digest in &gone {
            let _ = self.folder.remove(OsStr::new(&digest.hex()));
        }
        Ok(gone.len())
    }
}

impl Entries {
    fn add(&mut self, digest: Digest, size: u64, is_known: bool) {
        self.uses += 1;
        let entry = Entry { size, used: self.uses, is_known };
        if let Some(old) = self.all.insert(digest, entry) {
            self.bytes -= old.size;
        }
        self.bytes += size;
    }

    fn touch(&mut self, digest: &Digest) -> Option<Entry> {
        self.uses += 1;
        let uses = self.uses;
        let entry = self.all.get_mut(digest)?;
        entry.used = uses;
        Some(*entry)
    }
}

/// The digest of a file of this length.
fn hash(file: &dyn DiskFile, size: u64) -> io::Result<Digest> {
    use std::io::Read as _;
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    let mut reading = Reading(file, 0).take(size.saturating_add(1));
    loop {
        match reading.read(&mut buffer)? {
            0 => return Ok(hasher.finish()),
            read => hasher.update(&buffer[..read]),
        }
    }
}

#[cfg(test)]
mod tests {
    use rackweave_disk::write_all_at;

    use super::*;

    fn put(store: &Store, bytes: &[u8]) -> (Digest, usize) {
        let digest = Digest::of(bytes);
        let part = store.create(&digest).unwrap();
        write_all_at(part.file(), bytes, 0).unwrap();
        (digest, store.publish(&digest, &part, bytes.len() as u64).unwrap())
    }

    #[test]
    fn blobs_outlive_a_process_unless_they_are_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), 1 << 20).unwrap();
        let (a, b) = (put(&store, b"first").0, put(&store, b"second").0);
        std::fs::write(folder.path().join(".left.1-0.part"), "x").unwrap();
        assert!(matches!(Store::open(folder.path(), 1), Err(StoreError::Busy(_))));
        drop(store);
        std::fs::write(folder.path().join(b.hex()), "sicond").unwrap();
        let store = Store::open(folder.path(), 1 << 20).unwrap();
        assert_eq!(store.totals(), (2, 11));
        assert_eq!(store.open_blob(&a).unwrap().1, 5);
        assert!(store.open_blob(&b).is_none() && store.size(&b).is_none());
        assert!(!folder.path().join(b.hex()).exists());
        assert!(!folder.path().join(".left.1-0.part").exists());
    }

    #[test]
    fn the_least_recently_used_goes() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), 10).unwrap();
        let (a, b) = (put(&store, b"aaaa").0, put(&store, b"bbbb").0);
        assert!(store.open_blob(&a).is_some());
        let (c, gone) = put(&store, b"cccc");
        assert_eq!((gone, store.size(&b), store.totals()), (1, None, (2, 8)));
        assert!(store.open_blob(&a).is_some() && store.open_blob(&c).is_some());
        let (_, gone) = put(&store, b"longer than all");
        assert_eq!((gone, store.totals()), (2, (1, 15)), "what is fetched is kept");
    }
}
