//! Files and directories that can be sent, and their names in a stream.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{
    CWD, Dir, Mode, OFlags, ResolveFlags, SeekFrom, lgetxattr, lgetxattr_query, openat, openat2,
    readlinkat, seek,
};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

use super::{Catalogue, Files, MAX_STREAM, Source, SourceError, read_error};
use crate::excludes::{self, Excludes, Used};
use crate::format::{
    self, Attribute, CHUNK, Extents, FileHeader, Hash, MAX_ATTRIBUTES, Protected, RecordKind,
};
use crate::sink;

/// The most patterns that are tried in the place of patterns that match nothing.
const MAX_CANDIDATES: usize = 1024;

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
    skipped: Vec<Skipped>,
    /// What has bits of its mode that are not sent.
    special: Vec<PathBuf>,
    /// What has too many extended attributes: none is sent.
    bare: Vec<PathBuf>,
    /// What belongs to another user or group than this process, which is not sent.
    foreign: Vec<PathBuf>,
    /// What is neither sent nor deleted elsewhere.
    protected: Protected,
    /// Patterns of what is excluded that have matched nothing.
    unmatched: Vec<Unmatched>,
}

/// A device, a pipe or a socket, which is not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its path.
    pub path: PathBuf,
    /// The name that it would have in the stream.
    pub name: Vec<u8>,
    /// What it is.
    pub kind: &'static str,
}

/// A pattern that has matched nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmatched {
    /// The pattern.
    pub pattern: String,
    /// The pattern that would match something, if that is the same one in a directory that is sent.
    pub meant: Option<String>,
}

/// What a walk through directories has found.
struct Walk<'a> {
    excludes: Used<'a>,
    keeps: Keeps,
    /// The user and the group of this process.
    own: (u32, u32),
    found: Vec<Found>,
    /// The first names in the stream of files that have several.
    named: BTreeMap<(u64, u64), Vec<u8>>,
    skipped: Vec<Skipped>,
    special: Vec<PathBuf>,
    bare: Vec<PathBuf>,
    foreign: Vec<PathBuf>,
}

/// What of files is sent besides names, modes, times and content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keeps {
    /// Extended attributes.
    pub attributes: bool,
    /// The numbers of users and groups.
    pub owners: bool,
}

impl Listing {
    /// Lists these files and everything below these directories. A file is named by the last component of its path; a
    /// file in a directory, by the directory's name and the path below it. One of these paths that is a symbolic link is followed, and
    /// none in a directory is: those are listed. Devices, pipes and sockets in directories are skipped.
    ///
    /// # Errors
    /// If one of them cannot be read or has no name.
    pub fn new(paths: &[PathBuf]) -> Result<Self, SourceError> {
        Self::without(paths, &Excludes::default())
    }

    /// As [`Self::new`], without the files and directories whose names in the stream are excluded. Nothing below an excluded
    /// directory is read.
    ///
    /// # Errors
    /// The same as for [`Self::new`].
    pub fn without(paths: &[PathBuf], excludes: &Excludes) -> Result<Self, SourceError> {
        Self::list(paths, excludes, Keeps::default())
    }

    /// As [`Self::without`], and on demand with extended attributes and owners.
    ///
    /// # Errors
    /// The same as for [`Self::new`].
    pub fn list(paths: &[PathBuf], excludes: &Excludes, keeps: Keeps) -> Result<Self, SourceError> {
        let mut walk = Walk {
            excludes: Used::new(excludes),
            keeps,
            own: (geteuid().as_raw(), getegid().as_raw()),
            found: Vec::new(),
            named: BTreeMap::new(),
            skipped: Vec::new(),
            special: Vec::new(),
            bare: Vec::new(),
            foreign: Vec::new(),
        };
        for path in in_order(paths) {
            let meta = std::fs::metadata(path).map_err(|error| read_error(path, error))?;
            if !meta.is_file() && !meta.is_dir() {
                return Err(SourceError::Kind { path: path.clone() });
            }
            let whole = std::fs::canonicalize(path).map_err(|error| read_error(path, error))?;
            let meta = metadata_of(&whole).map_err(|error| read_error(path, error))?;
            // The name is that of the link that was given, not of its target.
            let name = match path.file_name() {
                Some(name) => Some(name.as_bytes().to_vec()),
                None => whole.file_name().map(|name| name.as_bytes().to_vec()),
            };
            let name = name.ok_or_else(|| SourceError::NoName { path: path.clone() })?;
            walk.walk(&whole, &name, meta)?;
        }
        let Walk { found, skipped, special, bare, foreign, excludes: used, .. } = walk;
        let mut names = BTreeSet::new();
        for Found { header, .. } in &found {
            if !names.insert(&header.path) {
                let name = String::from_utf8_lossy(&header.path).into_owned();
                return Err(SourceError::Twice { name });
            }
        }
        let paths = skipped.iter().map(|it| it.name.clone()).collect();
        let protected = Protected { patterns: excludes.patterns().to_vec(), paths };
        let unmatched = Unmatched::all(used.unused(), &found);
        Ok(Self { found, skipped, special, bare, foreign, protected, unmatched })
    }

    /// Returns the patterns of what is excluded that have matched nothing that no other one excludes.
    #[must_use]
    pub fn unmatched(&self) -> &[Unmatched] {
        &self.unmatched
    }

    pub(super) fn found(&self) -> &[Found] {
        &self.found
    }

    /// Returns the devices, pipes and sockets that are not sent.
    #[must_use]
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// Returns the files and directories with setuid, setgid or sticky bits, which are not sent: what they permit would be
    /// permitted by another user's file.
    #[must_use]
    pub fn with_special_bits(&self) -> &[PathBuf] {
        &self.special
    }

    /// Returns the files and directories whose extended attributes are too many to be sent.
    #[must_use]
    pub fn with_too_many_attributes(&self) -> &[PathBuf] {
        &self.bare
    }

    /// Returns what belongs to another user or group than this process, if that is not sent.
    #[must_use]
    pub fn with_other_owners(&self) -> &[PathBuf] {
        &self.foreign
    }
}

impl Unmatched {
    fn all(patterns: Vec<String>, found: &[Found]) -> Vec<Self> {
        let is_top = |it: &&Found| it.header.is_directory() && !it.header.path.contains(&b'/');
        let tops = found.iter().filter(is_top);
        let tops: Vec<_> =
            tops.filter_map(|top| std::str::from_utf8(&top.header.path).ok()).collect();
        let below = |pattern: &str| -> Vec<String> {
            tops.iter().filter_map(|top| excludes::below(pattern, top)).collect()
        };
        let candidates = patterns.iter().flat_map(|it| below(it)).take(MAX_CANDIDATES).collect();
        let paths = || found.iter().map(|it| (path_of(&it.header.path), it.header.is_directory()));
        let matching = excludes::matching(candidates, paths);
        let unmatched = |pattern: String| {
            let meant = below(&pattern).into_iter().find(|it| matching.contains(it));
            Self { pattern, meant }
        };
        patterns.iter().cloned().map(unmatched).collect()
    }
}

impl Catalogue for Listing {
    fn headers(&self) -> Vec<FileHeader> {
        self.found.iter().map(|found| found.header.clone()).collect()
    }

    fn hash(&mut self, entry: u32) -> Result<Option<Hash>, SourceError> {
        let Some(found) = self.found.get(entry as usize).filter(|it| it.header.is_file()) else {
            return Ok(None);
        };
        let wrong = |error| read_error(&found.local, error);
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(open(&found.local).map_err(wrong)?).map_err(wrong)?;
        Ok(Some(*hasher.finalize().as_bytes()))
    }

    fn protected(&self) -> Protected {
        self.protected.clone()
    }

    fn stream(&self, wanted: &dyn Fn(u32) -> bool) -> Result<Box<dyn Source>, SourceError> {
        Ok(Box::new(Files::of(self, wanted)?))
    }
}

/// Returns what is no file, directory or symbolic link.
fn special(meta: &Metadata) -> &'static str {
    let kind = meta.file_type();
    match (kind.is_fifo(), kind.is_socket()) {
        (true, _) => "pipe",
        (_, true) => "socket",
        _ => "device",
    }
}

fn path_of(name: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(name))
}

pub(super) fn header_of(path: &[u8], meta: &Metadata) -> FileHeader {
    FileHeader {
        path: path.to_vec(),
        kind: if meta.is_dir() { RecordKind::Directory } else { RecordKind::File },
        length: Some(if meta.is_file() { meta.len() } else { 0 }),
        attributes: None,
        owner: None,
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

/// Opens a file or directory without following a link or waiting for the other end of a pipe.
pub(super) fn open(path: &Path) -> io::Result<File> {
    open_as(path, OFlags::RDONLY | OFlags::NONBLOCK)
}

/// Opens what has this path, which has no links in it: whoever may exchange a folder for a link must not have other files sent.
fn open_as(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        // Linux before 5.6: a link in the place of a folder is followed.
        Err(Errno::NOSYS) => openat(CWD, path, flags, Mode::empty()),
        other => other,
    };
    Ok(File::from(opened?))
}

/// Returns what a path is, also of a link.
pub(super) fn metadata_of(path: &Path) -> io::Result<Metadata> {
    open_as(path, OFlags::PATH)?.metadata()
}

/// Returns the text of a symbolic link.
fn target_of(path: &Path) -> io::Result<Vec<u8>> {
    Ok(readlinkat(open_as(path, OFlags::PATH)?, "", Vec::new())?.into_bytes())
}

/// Returns the names in a directory, sorted.
fn names_in(path: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::new(open(path)?)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name.to_vec()));
        }
    }
    names.sort();
    Ok(names)
}

/// Returns the chunks of a file that have content; `None` if it has no holes. Those within chunks are found again by their zeros.
fn extents_of(path: &Path, meta: &Metadata) -> io::Result<Option<Extents>> {
    if meta.blocks().saturating_mul(512) >= meta.len() {
        return Ok(None);
    }
    let file = open(path)?;
    let (mut ranges, mut at, mut content) = (Vec::new(), 0, 0);
    while at < meta.len() {
        let data = match seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            // This file system does not tell.
            Err(_) => return Ok(None),
        };
        let hole = seek(&file, SeekFrom::Hole(data)).unwrap_or(meta.len()).min(meta.len());
        at = hole.max(data + 1);
        content += hole.saturating_sub(data);
        ranges.push(data / CHUNK as u64..hole.div_ceil(CHUNK as u64));
    }
    Ok((content < meta.len()).then(|| Extents::new(ranges.into_iter())))
}

/// The extended attributes of a file or directory that are sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Attributes {
    /// Its file system has none.
    Unsupported,
    /// All of them.
    Some(Vec<Attribute>),
    /// None: they are more than a header takes, or than the system tells.
    TooMany,
}

impl Attributes {
    pub(super) fn new(found: io::Result<Vec<Attribute>>) -> io::Result<Self> {
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                return match Errno::from_io_error(&error) {
                    _ if error.kind() == io::ErrorKind::Unsupported => Ok(Self::Unsupported),
                    Some(Errno::TOOBIG | Errno::RANGE) => Ok(Self::TooMany),
                    _ => Err(error),
                };
            }
        };
        let bytes = found.iter().map(|it| format::attribute_bytes(it.name.len(), it.value.len()));
        Ok(match bytes.sum::<usize>() > MAX_ATTRIBUTES {
            true => Self::TooMany,
            false => Self::Some(found),
        })
    }
}

/// Returns the permission bits of a file or directory whose ACL is not sent.
fn mode_without_acl(path: &Path, mode: u16) -> u16 {
    let Ok(len) = lgetxattr_query(path, sink::ACL) else { return mode };
    let mut acl = vec![0; len];
    match lgetxattr(path, sink::ACL, &mut acl[..]) {
        Ok(len) => sink::without_acl(mode.into(), &acl[..len]) as u16,
        // It has changed meanwhile: to nobody's favour.
        Err(_) => mode & !0o070,
    }
}

/// Checks whether a file can be sent, before anything is sent.
fn check(path: &Path, meta: &Metadata) -> Result<(), SourceError> {
    let wrong = |error| read_error(path, error);
    if meta.len() >= MAX_STREAM {
        return Err(SourceError::TooLong { path: path.to_owned() });
    }
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

impl Walk<'_> {
    fn is_excluded(&mut self, name: &[u8], is_directory: bool) -> bool {
        self.excludes.matches(path_of(name), is_directory)
    }

    fn walk(&mut self, local: &Path, name: &[u8], meta: Metadata) -> Result<(), SourceError> {
        if self.is_excluded(name, meta.is_dir()) {
            return Ok(());
        }
        format::check_path(name).map_err(|_| SourceError::NoName { path: local.to_owned() })?;
        let mut header = header_of(name, &meta);
        if meta.is_file() && meta.nlink() > 1 {
            let first = self.named.entry((meta.dev(), meta.ino()));
            if let Entry::Occupied(first) = &first {
                (header.kind, header.length) = (RecordKind::HardLink(first.get().clone()), Some(0));
            }
            first.or_insert_with(|| name.to_vec());
        }
        if meta.is_symlink() {
            let target = target_of(local).map_err(|error| read_error(local, error))?;
            header.kind = RecordKind::SymbolicLink(target);
        }
        if header.is_file() {
            check(local, &meta)?;
            let extents = extents_of(local, &meta).map_err(|error| read_error(local, error))?;
            header.kind = extents.map_or(RecordKind::File, RecordKind::WithHoles);
        }
        if header.hard_link().is_none() {
            let owner = (meta.uid(), meta.gid());
            match self.keeps.owners {
                true => header.owner = Some(owner),
                false if owner != self.own => self.foreign.push(local.to_owned()),
                false => {}
            }
        }
        if self.keeps.attributes && (header.is_file() || header.is_directory()) {
            let found = open(local).and_then(|file| Attributes::new(sink::attributes_of(&file)));
            match found.map_err(|error| read_error(local, error))? {
                Attributes::Some(found) => header.attributes = Some(found),
                Attributes::TooMany => self.bare.push(local.to_owned()),
                Attributes::Unsupported => {}
            }
        }
        if header.attributes.is_none() && !meta.is_symlink() {
            header.mode = mode_without_acl(local, header.mode);
        }
        if meta.mode() & 0o7000 != 0 {
            self.special.push(local.to_owned());
        }
        let is_file = !meta.is_dir();
        let changed = (meta.ctime(), meta.ctime_nsec());
        self.found.push(Found { local: local.to_owned(), header, changed });
        if is_file {
            return Ok(());
        }
        for inside in names_in(local).map_err(|error| read_error(local, error))? {
            // A folder that is sent may be one that something was received into.
            if inside.as_bytes().starts_with(format::STATE_PREFIX) {
                continue;
            }
            let path = local.join(&inside);
            let meta = metadata_of(&path).map_err(|error| read_error(&path, error))?;
            let name = [name, b"/", inside.as_bytes()].concat();
            if !meta.is_file() && !meta.is_dir() && !meta.is_symlink() {
                if !self.is_excluded(&name, false) {
                    self.skipped.push(Skipped { path, name, kind: special(&meta) });
                }
                continue;
            }
            self.walk(&path, &name, meta)?;
        }
        Ok(())
    }
}
