//! Files and directories that can be sent, and their names in a stream.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::{Catalogue, Files, Source, SourceError, read_error};
use crate::format::{self, FileHeader, Hash};

/// Says whether a name in the stream is excluded, and gets whether it is a directory's.
pub type Excluded<'a> = dyn Fn(&Path, bool) -> bool + 'a;

/// A file or directory.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) local: PathBuf,
    pub(super) header: FileHeader,
    /// The time of the last change of its inode. Unlike the modification time, it cannot be set.
    pub(super) changed: (i64, i64),
}

/// Files and directories in the order of their stream.
#[derive(Debug)]
pub struct Listing {
    found: Vec<Found>,
    skipped: Vec<PathBuf>,
}

impl Listing {
    /// Lists these files and everything below these directories. A file is named by the last component of its path; a
    /// file in a directory, by the directory's name and the path below it. Links and devices inside directories are
    /// skipped.
    ///
    /// # Errors
    /// If one of them cannot be read or has no name.
    pub fn new(paths: &[PathBuf]) -> Result<Self, SourceError> {
        Self::without(paths, &|_, _| false)
    }

    /// As [`Self::new`], without the files and directories whose names in the stream are excluded; the second argument says
    /// whether it is a directory. Nothing below an excluded directory is read.
    ///
    /// # Errors
    /// The same as for [`Self::new`].
    pub fn without(paths: &[PathBuf], excluded: &Excluded<'_>) -> Result<Self, SourceError> {
        let mut found = Vec::new();
        let mut skipped = Vec::new();
        for path in in_order(paths) {
            let meta = std::fs::metadata(path).map_err(|error| read_error(path, error))?;
            if !meta.is_file() && !meta.is_dir() {
                return Err(SourceError::Kind { path: path.clone() });
            }
            let whole = std::fs::canonicalize(path).map_err(|error| read_error(path, error))?;
            // The name is that of the link that was given, not of its target.
            let name = match path.file_name() {
                Some(name) => Some(name.as_bytes().to_vec()),
                None => whole.file_name().map(|name| name.as_bytes().to_vec()),
            };
            let name = name.ok_or_else(|| SourceError::NoName { path: path.clone() })?;
            walk(&whole, &name, meta, excluded, (&mut found, &mut skipped))?;
        }
        let mut names = BTreeSet::new();
        for Found { header, .. } in &found {
            if !names.insert(&header.path) {
                let name = String::from_utf8_lossy(&header.path).into_owned();
                return Err(SourceError::Twice { name });
            }
        }
        Ok(Self { found, skipped })
    }

    pub(super) fn found(&self) -> &[Found] {
        &self.found
    }

    /// Returns the links and devices that are not sent.
    #[must_use]
    pub fn skipped(&self) -> &[PathBuf] {
        &self.skipped
    }
}

impl Catalogue for Listing {
    fn headers(&self) -> Vec<FileHeader> {
        self.found.iter().map(|found| found.header.clone()).collect()
    }

    fn hash(&mut self, entry: u32) -> Result<Option<Hash>, SourceError> {
        let Some(found) = self.found.get(entry as usize).filter(|it| !it.header.directory) else {
            return Ok(None);
        };
        let wrong = |error| read_error(&found.local, error);
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(open(&found.local).map_err(wrong)?).map_err(wrong)?;
        Ok(Some(*hasher.finalize().as_bytes()))
    }

    fn stream(&self, wanted: &dyn Fn(u32) -> bool) -> Result<Box<dyn Source>, SourceError> {
        Ok(Box::new(Files::of(self, wanted)?))
    }
}

pub(super) fn header_of(path: &[u8], meta: &Metadata) -> FileHeader {
    FileHeader {
        path: path.to_vec(),
        directory: meta.is_dir(),
        length: Some(if meta.is_dir() { 0 } else { meta.len() }),
        mode: (meta.mode() & 0o777) as u16,
        mtime_s: meta.mtime(),
        mtime_ns: meta.mtime_nsec() as u32,
    }
}

/// Returns the paths in the given order, except that `x` precedes `x.part`, which is the name that receivers give to
/// `x` until it is complete.
fn in_order(paths: &[PathBuf]) -> Vec<&PathBuf> {
    let family = |path: &PathBuf| {
        let (mut name, mut parts) = (path.file_name().unwrap_or_default().as_bytes(), 0);
        while let Some(shorter) = name.strip_suffix(b".part") {
            (name, parts) = (shorter, parts + 1);
        }
        (name.to_vec(), parts)
    };
    let mut first = BTreeMap::new();
    for (index, path) in paths.iter().enumerate() {
        first.entry(family(path).0).or_insert(index);
    }
    let mut sorted: Vec<&PathBuf> = paths.iter().collect();
    sorted.sort_by_cached_key(|path| {
        let (name, parts) = family(path);
        (first.get(&name).copied(), parts)
    });
    sorted
}

/// Opens a file without following a link or waiting for the other end of a pipe.
pub(super) fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// Checks whether a file can be sent, before anything is sent.
fn check(path: &Path, meta: &Metadata) -> Result<(), SourceError> {
    let wrong = |error| read_error(path, error);
    if meta.len() > 0 {
        return rustix::fs::access(path, rustix::fs::Access::READ_OK)
            .map_err(|error| wrong(error.into()));
    }
    // Files as in `/proc` have content although their length is 0.
    match open(path).and_then(|mut file| file.read(&mut [0])) {
        Ok(0) => Ok(()),
        Ok(_) => Err(SourceError::NoLength { path: path.to_owned() }),
        Err(error) => Err(wrong(error)),
    }
}

fn walk(
    local: &Path,
    name: &[u8],
    meta: Metadata,
    excluded: &Excluded<'_>,
    (found, skipped): (&mut Vec<Found>, &mut Vec<PathBuf>),
) -> Result<(), SourceError> {
    if excluded(Path::new(OsStr::from_bytes(name)), meta.is_dir()) {
        return Ok(());
    }
    format::check_path(name).map_err(|_| SourceError::NoName { path: local.to_owned() })?;
    let header = header_of(name, &meta);
    if !meta.is_dir() {
        check(local, &meta)?;
    }
    let is_file = !meta.is_dir();
    let changed = (meta.ctime(), meta.ctime_nsec());
    found.push(Found { local: local.to_owned(), header, changed });
    if is_file {
        return Ok(());
    }
    let read = std::fs::read_dir(local).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let mut inside = read.map_err(|error| read_error(local, error))?;
    inside.sort_by_key(std::fs::DirEntry::file_name);
    for entry in inside {
        let path = entry.path();
        let meta = entry.metadata().map_err(|error| read_error(&path, error))?;
        let name = [name, b"/", entry.file_name().as_bytes()].concat();
        if !meta.is_file() && !meta.is_dir() {
            if !excluded(Path::new(OsStr::from_bytes(&name)), false) {
                skipped.push(path);
            }
            continue;
        }
        walk(&path, &name, meta, excluded, (found, skipped))?;
    }
    Ok(())
}
