//! A disk that loses what was not synced, tears it, fails and fills up.
//!
//! It is strict where file systems differ: nothing is permanent but what was synced: of a file its bytes and
//! attributes, of a directory its names (Linux, fsync(2)). When the power fails, each page of 4096 bytes that was written and not synced
//! is on the disk, is not, or is up to a sector of 512 bytes; of a directory's changes, the first ones are, in their order. A
//! rename is on the disk or is not. A process that is killed loses nothing that it has written. A sync that fails leaves pages
//! that count as clean and are not on the disk, as on Linux.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rackweave_core::Rng;
use rackweave_disk::{Directory, DiskFile, FileKind, Open, Stat};

const PAGE: usize = 4096;
const SECTOR: usize = 512;

/// The number of the root directory.
const ROOT: u64 = 0;

type Names = BTreeMap<OsString, u64>;

#[derive(Clone, Debug)]
enum Change {
    Link(OsString, u64),
    Unlink(OsString),
    Rename(OsString, OsString),
}

impl Change {
    fn apply(&self, names: &mut Names) {
        match self {
            Self::Link(name, node) => {
                names.insert(name.clone(), *node);
            }
            Self::Unlink(name) => {
                names.remove(name);
            }
            Self::Rename(from, to) => {
                if let Some(node) = names.remove(from) {
                    names.insert(to.clone(), node);
                }
            }
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    mode: u32,
    modified: (i64, u32),
}

#[derive(Clone, Debug, Default)]
struct FileNode {
    /// What processes see.
    live: Content,
    /// What is on the disk.
    durable: Content,
    /// Pages that may differ between the two.
    dirty: BTreeSet<usize>,
    /// The handle that holds the lock.
    lock: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct DirNode {
    live: Names,
    durable: Names,
    /// Changes that were not synced.
    changes: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Node {
    File(FileNode),
    Directory(DirNode),
}

/// Probabilities and limits of failures, while they last.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Failing {
    /// Probability that a write writes only a part.
    pub(super) short: f64,
    /// Probability that an operation fails with an I/O error.
    pub(super) error: f64,
    /// Whether there is no room for further bytes.
    pub(super) full: bool,
}

#[derive(Clone, Debug)]
struct State {
    rng: Rng,
    nodes: BTreeMap<u64, Node>,
    handles: u64,
    failing: Failing,
    /// After how many operations the process is killed that uses the disk.
    kill_after: Option<u64>,
}

/// A disk, shared by its handles.
#[derive(Clone, Debug)]
pub(super) struct Disk(Arc<Mutex<State>>);

#[derive(Debug)]
struct Folder {
    disk: Disk,
    node: u64,
}

#[derive(Debug)]
struct Handle {
    disk: Disk,
    node: u64,
    handle: u64,
    writable: bool,
}

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl State {
    fn folder(&mut self, node: u64) -> io::Result<&mut DirNode> {
        match self.nodes.get_mut(&node) {
            Some(Node::Directory(folder)) => Ok(folder),
            _ => Err(not_found()),
        }
    }

    fn file(&mut self, node: u64) -> io::Result<&mut FileNode> {
        match self.nodes.get_mut(&node) {
            Some(Node::File(file)) => Ok(file),
            _ => Err(not_found()),
        }
    }

    /// Counts an operation that changes something, and lets it fail if it is to fail.
    fn step(&mut self) -> io::Result<()> {
        if let Some(left) = &mut self.kill_after {
            if *left == 0 {
                return Err(io::Error::other("the process is dead"));
            }
            *left -= 1;
        }
        let error = self.failing.error;
        if error > 0.0 && self.rng.chance(error) {
            return Err(io::Error::other("simulated I/O error"));
        }
        Ok(())
    }

    fn change(&mut self, folder: u64, change: Change) -> io::Result<()> {
        let folder = self.folder(folder)?;
        change.apply(&mut folder.live);
        folder.changes.push(change);
        Ok(())
    }

    fn insert(&mut self, node: Node) -> u64 {
        let number = self.nodes.len() as u64;
        self.nodes.insert(number, node);
        number
    }

    fn stat(&mut self, node: u64) -> Option<Stat> {
        let (kind, len, mode, modified) = match self.nodes.get(&node)? {
            Node::File(FileNode { live, .. }) => {
                (FileKind::File, live.bytes.len() as u64, live.mode, live.modified)
            }
            Node::Directory(_) => (FileKind::Directory, 0, 0o755, (0, 0)),
        };
        Some(Stat { kind, id: (1, node), len, mode, modified, is_own: true, names: 1 })
    }

    /// The power fails.
    fn lose_power(&mut self) {
        let Self { rng, nodes, .. } = self;
        for node in nodes.values_mut() {
            match node {
                Node::File(file) => file.lose_power(rng),
                Node::Directory(folder) => {
                    let kept = rng.below(folder.changes.len() as u64 + 1) as usize;
                    for change in folder.changes.drain(..).take(kept) {
                        change.apply(&mut folder.durable);
                    }
                    folder.live = folder.durable.clone();
                }
            }
        }
    }
}

impl FileNode {
    fn lose_power(&mut self, rng: &mut Rng) {
        self.lock = None;
        let Self { live, durable, dirty, .. } = self;
        if rng.chance(0.5) {
            (durable.mode, durable.modified) = (live.mode, live.modified);
        }
        // A length is written after pages or before them.
        if rng.chance(0.5) {
            durable.bytes.resize(live.bytes.len(), 0);
        }
        for page in std::mem::take(dirty) {
            let from = page * PAGE;
            let written = match rng.below(4) {
                0 => 0,
                1 => rng.below((PAGE / SECTOR) as u64) as usize * SECTOR,
                _ => PAGE,
            };
            let to = (from + written).min(live.bytes.len()).min(durable.bytes.len());
            if from < to {
                durable.bytes[from..to].copy_from_slice(&live.bytes[from..to]);
            }
        }
        *live = durable.clone();
    }

    /// Makes pages permanent, except lost ones.
    fn sync(&mut self, mut is_lost: impl FnMut() -> bool) {
        let Self { live, durable, dirty, .. } = self;
        (durable.mode, durable.modified) = (live.mode, live.modified);
        durable.bytes.resize(live.bytes.len(), 0);
        for page in std::mem::take(dirty) {
            let (from, to) = (page * PAGE, ((page + 1) * PAGE).min(live.bytes.len()));
            if from < to && !is_lost() {
                durable.bytes[from..to].copy_from_slice(&live.bytes[from..to]);
            }
        }
    }

    fn soil(&mut self, from: usize, to: usize) {
        self.dirty.extend(from / PAGE..to.div_ceil(PAGE));
    }
}

impl Disk {
    pub(super) fn new(rng: Rng) -> Self {
        let nodes = BTreeMap::from([(ROOT, Node::Directory(DirNode::default()))]);
        Self(Arc::new(Mutex::new(State {
            rng,
            nodes,
            handles: 0,
            failing: Failing::default(),
            kill_after: None,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn root(&self) -> Arc<dyn Directory> {
        Arc::new(Folder { disk: self.clone(), node: ROOT })
    }

    pub(super) fn set_failing(&self, failing: Failing) {
        self.state().failing = failing;
    }

    /// Lets all operations fail after this number of them, as if the process had been killed then.
    pub(super) fn kill_after(&self, operations: Option<u64>) {
        self.state().kill_after = operations;
    }

    /// Whether the process was killed in the middle of an operation.
    pub(super) fn is_dead(&self) -> bool {
        self.state().kill_after == Some(0)
    }

    /// The process ends. What it has written stays.
    pub(super) fn release(&self) {
        let mut state = self.state();
        state.kill_after = None;
        for node in state.nodes.values_mut() {
            if let Node::File(file) = node {
                file.lock = None;
            }
        }
    }

    pub(super) fn lose_power(&self) {
        self.state().lose_power();
    }

    /// Returns the disk as it would be if the power failed now.
    pub(super) fn after_a_power_failure(&self) -> Self {
        let mut state = self.state().clone();
        state.lose_power();
        Self(Arc::new(Mutex::new(state)))
    }

    /// Puts a file with this content on the disk.
    pub(super) fn put(&self, path: &[u8], bytes: &[u8], mode: u32, modified: (i64, u32)) {
        let mut state = self.state();
        let mut folder = ROOT;
        let mut names = path.split(|byte| *byte == b'/').peekable();
        while let Some(name) = names.next() {
            use std::os::unix::ffi::OsStrExt as _;
            let name = OsStr::from_bytes(name).to_owned();
            let known = state.folder(folder).ok().and_then(|it| it.live.get(&name).copied());
            let node = known.unwrap_or_else(|| {
                let content = Content { bytes: bytes.to_vec(), mode, modified };
                let file =
                    FileNode { durable: content.clone(), live: content, ..FileNode::default() };
                let node = match names.peek() {
                    Some(_) => Node::Directory(DirNode::default()),
                    None => Node::File(file),
                };
                state.insert(node)
            });
            if let Ok(folder) = state.folder(folder) {
                folder.live.insert(name.clone(), node);
                folder.durable.insert(name, node);
            }
            folder = node;
        }
    }

    /// Returns the content, mode and time of the file at a path.
    pub(super) fn read(&self, path: &[u8]) -> Option<(Vec<u8>, u32, (i64, u32))> {
        use std::os::unix::ffi::OsStrExt as _;
        let mut state = self.state();
        let mut node = ROOT;
        for name in path.split(|byte| *byte == b'/') {
            node = *state.folder(node).ok()?.live.get(OsStr::from_bytes(name))?;
        }
        let live = &state.file(node).ok()?.live;
        Some((live.bytes.clone(), live.mode, live.modified))
    }
}

impl Directory for Folder {
    /// Nobody renames folders here.
    fn is_in_place(&self) -> bool {
        true
    }

    fn subdir(&self, name: &OsStr) -> io::Result<Arc<dyn Directory>> {
        let mut state = self.disk.state();
        let known = state.folder(self.node)?.live.get(name).copied();
        let node = match known {
            Some(node) if matches!(state.nodes.get(&node), Some(Node::Directory(_))) => node,
            Some(_) => return Err(io::ErrorKind::NotADirectory.into()),
            None => {
                state.step()?;
                let node = state.insert(Node::Directory(DirNode::default()));
                state.change(self.node, Change::Link(name.to_owned(), node))?;
                node
            }
        };
        Ok(Arc::new(Self { disk: self.disk.clone(), node }))
    }

    fn stat(&self, name: &OsStr) -> Option<Stat> {
        let mut state = self.disk.state();
        let node = *state.folder(self.node).ok()?.live.get(name)?;
        state.stat(node)
    }

    fn open(&self, name: &OsStr, how: Open) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.disk.state();
        let known = state.folder(self.node)?.live.get(name).copied();
        let node = match (known, how) {
            (Some(_), Open::Create) => return Err(io::ErrorKind::AlreadyExists.into()),
            (Some(node), _) => node,
            (None, Open::Read | Open::Update) => return Err(not_found()),
            (None, Open::Create | Open::UpdateOrCreate) => {
                state.step()?;
                let live = Content { mode: 0o600, ..Content::default() };
                let file = FileNode { durable: live.clone(), live, ..FileNode::default() };
                let node = state.insert(Node::File(file));
                state.change(self.node, Change::Link(name.to_owned(), node))?;
                node
            }
        };
        let mode = state.file(node)?.live.mode;
        if how != Open::Read && mode & 0o200 == 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        state.handles += 1;
        let handle = state.handles;
        let (disk, writable) = (self.disk.clone(), how != Open::Read);
        Ok(Box::new(Handle { disk, node, handle, writable }))
    }

    fn remove(&self, name: &OsStr) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        if !state.folder(self.node)?.live.contains_key(name) {
            return Err(not_found());
        }
        state.change(self.node, Change::Unlink(name.to_owned()))
    }

    fn rename(&self, from: &OsStr, to: &OsStr, replace: bool) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        let folder = state.folder(self.node)?;
        if !folder.live.contains_key(from) {
            return Err(not_found());
        }
        if !replace && folder.live.contains_key(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.change(self.node, Change::Rename(from.to_owned(), to.to_owned()))
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        let folder = state.folder(self.node)?;
        folder.durable = folder.live.clone();
        folder.changes.clear();
        Ok(())
    }

    fn set_attributes(&self, _mode: u32, _modified: (i64, u32)) -> io::Result<()> {
        self.disk.state().step()
    }

    fn free(&self) -> Option<u64> {
        None
    }
}

impl DiskFile for Handle {
    fn duplicate(&self) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.disk.state();
        state.handles += 1;
        let (disk, handle) = (self.disk.clone(), state.handles);
        Ok(Box::new(Self { disk, node: self.node, handle, writable: self.writable }))
    }

    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        let file = state.file(self.node)?;
        let len = file.live.bytes.len();
        let (from, to) = ((range.start as usize).min(len), (range.end as usize).min(len));
        file.live.bytes[from..to].fill(0);
        file.soil(from, to);
        Ok(())
    }

    fn is_hole(&self, _range: Range<u64>) -> bool {
        false
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.disk.state();
        let bytes = &state.file(self.node)?.live.bytes;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let len = buffer.len().min(bytes.len() - from);
        buffer[..len].copy_from_slice(&bytes[from..from + len]);
        Ok(len)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let mut state = self.disk.state();
        if !self.writable {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        state.step()?;
        if state.failing.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut len = bytes.len();
        let short = state.failing.short;
        if len > 1 && short > 0.0 && state.rng.chance(short) {
            len = 1 + state.rng.below(len as u64 - 1) as usize;
        }
        let file = state.file(self.node)?;
        let from = offset as usize;
        if file.live.bytes.len() < from + len {
            file.live.bytes.resize(from + len, 0);
        }
        file.live.bytes[from..from + len].copy_from_slice(&bytes[..len]);
        file.soil(from, from + len);
        Ok(len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        let file = state.file(self.node)?;
        let (was, is) = (file.live.bytes.len(), len as usize);
        file.live.bytes.resize(is, 0);
        file.soil(was.min(is), was.max(is));
        Ok(())
    }

    fn stat(&self) -> io::Result<Stat> {
        self.disk.state().stat(self.node).ok_or_else(not_found)
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        state.file(self.node)?.live.mode = mode;
        Ok(())
    }

    fn set_modified(&self, modified: (i64, u32)) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        state.file(self.node)?.live.modified = modified;
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        if let Err(error) = state.step() {
            if state.kill_after != Some(0) {
                let mut rng = state.rng.clone();
                state.file(self.node)?.sync(|| rng.chance(0.5));
                state.rng = rng;
            }
            return Err(error);
        }
        state.file(self.node)?.sync(|| false);
        Ok(())
    }

    fn lock(&self) -> bool {
        let mut state = self.disk.state();
        let handle = self.handle;
        let Ok(file) = state.file(self.node) else { return true };
        let is_free = file.lock.is_none_or(|held| held == handle);
        if is_free {
            file.lock = Some(handle);
        }
        is_free
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let handle = self.handle;
        let mut state = self.disk.state();
        if let Ok(file) = state.file(self.node)
            && file.lock == Some(handle)
        {
            file.lock = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> Disk {
        Disk::new(Rng::stream(1, 0, 0, "disk"))
    }

    #[test]
    fn what_was_synced_survives_and_the_rest_may_not() {
        let (mut names, mut torn) = (0, 0);
        for seed in 0..100 {
            let disk = Disk::new(Rng::stream(seed, 0, 0, "disk"));
            let root = disk.root();
            let kept = root.open("kept".as_ref(), Open::Create).unwrap();
            kept.write_at(&[1; 10_000], 0).unwrap();
            kept.sync().unwrap();
            root.sync().unwrap();
            kept.write_at(&[2; 10_000], 0).unwrap();
            let lost = root.open("lost".as_ref(), Open::Create).unwrap();
            lost.write_at(&[3; 10_000], 0).unwrap();
            disk.lose_power();
            let bytes = disk.read(b"kept").unwrap().0;
            assert!(bytes.len() == 10_000 && bytes.iter().all(|byte| [1, 2].contains(byte)));
            torn += u64::from(bytes.contains(&1) && bytes.contains(&2));
            names += u64::from(disk.read(b"lost").is_some());
        }
        assert!((1..99).contains(&names) && torn > 50, "{names} {torn}");
    }

    #[test]
    fn a_rename_is_one_step_and_a_directory_keeps_its_order() {
        for seed in 0..50 {
            let disk = Disk::new(Rng::stream(seed, 0, 0, "disk"));
            let root = disk.root();
            disk.put(b"x", b"old", 0o644, (0, 0));
            let file = root.open("x.part".as_ref(), Open::Create).unwrap();
            file.write_at(b"new", 0).unwrap();
            file.sync().unwrap();
            root.rename("x.part".as_ref(), "x".as_ref(), true).unwrap();
            let after = disk.after_a_power_failure();
            assert!([&b"old"[..], b"new"].contains(&&after.read(b"x").unwrap().0[..]));
            assert_eq!(disk.read(b"x").unwrap().0, b"new");
            root.sync().unwrap();
            disk.lose_power();
            assert_eq!(disk.read(b"x").unwrap().0, b"new");
        }
    }

    #[test]
    fn failures_are_those_that_were_asked_for() {
        let disk = disk();
        let file = disk.root().open("x".as_ref(), Open::Create).unwrap();
        disk.set_failing(Failing { full: true, ..Failing::default() });
        assert_eq!(file.write_at(b"x", 0).unwrap_err().kind(), io::ErrorKind::StorageFull);
        disk.set_failing(Failing { short: 1.0, ..Failing::default() });
        assert!(file.write_at(&[0; 100], 0).unwrap() < 100);
        disk.set_failing(Failing::default());
        disk.kill_after(Some(1));
        assert!(file.set_len(5).is_ok() && disk.is_dead() && file.set_len(6).is_err());
        disk.release();
        assert_eq!(file.stat().unwrap().len, 5);
        // Two handles cannot hold the lock of a file.
        let other = disk.root().open("x".as_ref(), Open::Update).unwrap();
        assert!(file.lock() && !other.lock());
        drop(file);
        assert!(other.lock());
    }
}
