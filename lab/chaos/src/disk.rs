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
use rackweave_disk::{Directory, DiskFile, FileKind, Open, Stat, write_zeros};

const PAGE: usize = 4096;
const SECTOR: usize = 512;

/// When directories are changed, in seconds since 1970.
const TODAY_S: i64 = 1_790_000_000;

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

/// The permission bits and the time of a directory.
type Attributes = (u32, (i64, u32));

#[derive(Clone, Debug, Default)]
struct DirNode {
    live: Names,
    durable: Names,
    /// Changes that were not synced.
    changes: Vec<Change>,
    attributes: Attributes,
    /// Those on the disk.
    durable_attributes: Attributes,
}

#[derive(Clone, Debug)]
enum Node {
    File(FileNode),
    Directory(DirNode),
    /// A symbolic link: its text and time, which are on the disk when its name is.
    Link(OsString, (i64, u32)),
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
    /// The number of changes of directories. Each has a time of its own.
    changes: u32,
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

    /// Returns the node at a path.
    fn find(&mut self, path: &[u8]) -> Option<u64> {
        use std::os::unix::ffi::OsStrExt as _;
        let mut node = ROOT;
        for name in path.split(|byte| *byte == b'/') {
            node = *self.folder(node).ok()?.live.get(OsStr::from_bytes(name))?;
        }
        Some(node)
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
        self.changes += 1;
        let now = (TODAY_S, self.changes);
        let folder = self.folder(folder)?;
        folder.attributes.1 = now;
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
            Node::Directory(DirNode { attributes: (mode, modified), .. }) => {
                (FileKind::Directory, 0, *mode, *modified)
            }
            Node::Link(target, modified) => {
                (FileKind::SymbolicLink, target.len() as u64, 0o777, *modified)
            }
        };
        // No other program writes here.
        let changed = modified;
        let (is_own, owner, names) = (true, (0, 0), 1);
        Some(Stat { kind, id: (1, node), len, mode, modified, changed, is_own, owner, names })
    }

    /// The power fails.
    fn lose_power(&mut self) {
        let Self { rng, nodes, .. } = self;
        for node in nodes.values_mut() {
            match node {
                Node::File(file) => file.lose_power(rng),
                Node::Link(..) => {}
                Node::Directory(folder) => {
                    let kept = rng.below(folder.changes.len() as u64 + 1) as usize;
                    for change in folder.changes.drain(..).take(kept) {
                        change.apply(&mut folder.durable);
                    }
                    folder.live = folder.durable.clone();
                    if rng.chance(0.5) {
                        folder.durable_attributes = folder.attributes;
                    }
                    folder.attributes = folder.durable_attributes;
                }
            }
        }
    }
}

impl DirNode {
    fn new() -> Self {
        let attributes = (0o755, (TODAY_S, 0));
        Self { attributes, durable_attributes: attributes, ..Self::default() }
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
        let nodes = BTreeMap::from([(ROOT, Node::Directory(DirNode::new()))]);
        Self(Arc::new(Mutex::new(State {
            rng,
            nodes,
            handles: 0,
            changes: 0,
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
        let content = Content { bytes: bytes.to_vec(), mode, modified };
        let file = FileNode { durable: content.clone(), live: content, ..FileNode::default() };
        self.put_node(path, &Node::File(file));
    }

    /// Puts a symbolic link with this text on the disk.
    pub(super) fn put_link(&self, path: &[u8], target: &str, modified: (i64, u32)) {
        self.put_node(path, &Node::Link(target.into(), modified));
    }

    fn put_node(&self, path: &[u8], last: &Node) {
        let mut state = self.state();
        let mut folder = ROOT;
        let mut names = path.split(|byte| *byte == b'/').peekable();
        while let Some(name) = names.next() {
            use std::os::unix::ffi::OsStrExt as _;
            let name = OsStr::from_bytes(name).to_owned();
            let known = state.folder(folder).ok().and_then(|it| it.live.get(&name).copied());
            let node = known.unwrap_or_else(|| {
                let node = match names.peek() {
                    Some(_) => Node::Directory(DirNode::new()),
                    None => last.clone(),
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

    /// Lets a sync of the file at a path have failed, whoever has written it: processes see what was written, and some
    /// pages are not on the disk.
    pub(super) fn lose_pages(&self, path: &[u8]) {
        let mut state = self.state();
        let mut rng = state.rng.clone();
        if let Some(node) = state.find(path)
            && let Ok(file) = state.file(node)
        {
            for page in file.durable.bytes.chunks_mut(PAGE).filter(|_| rng.chance(0.5)) {
                page.fill(0xe5);
            }
        }
        state.rng = rng;
    }

    /// Returns whether two paths are names of one file.
    pub(super) fn is_one(&self, path: &[u8], other: &[u8]) -> bool {
        let mut state = self.state();
        let file = state.find(path);
        file.is_some() && file == state.find(other)
    }

    /// Returns the text and time of the symbolic link at a path.
    pub(super) fn link(&self, path: &[u8]) -> Option<(OsString, (i64, u32))> {
        let mut state = self.state();
        let node = state.find(path)?;
        match state.nodes.get(&node)? {
            Node::Link(target, modified) => Some((target.clone(), *modified)),
            Node::File(_) | Node::Directory(_) => None,
        }
    }

    /// Returns the content, mode and time of the file at a path.
    pub(super) fn read(&self, path: &[u8]) -> Option<(Vec<u8>, u32, (i64, u32))> {
        let mut state = self.state();
        let node = state.find(path)?;
        let live = &state.file(node).ok()?.live;
        Some((live.bytes.clone(), live.mode, live.modified))
    }
}

impl Directory for Folder {
    fn as_is(&self) -> io::Result<Arc<dyn Directory>> {
        Ok(Arc::new(Self { disk: self.disk.clone(), node: self.node }))
    }

    /// Nobody renames folders here.
    fn is_in_place(&self) -> bool {
        true
    }

    /// All folders are the user's.
    fn may_change(&self) -> bool {
        true
    }

    /// Nothing is mounted here.
    fn mount(&self) -> u64 {
        0
    }

    fn subdir(&self, name: &OsStr) -> io::Result<Arc<dyn Directory>> {
        let mut state = self.disk.state();
        let known = state.folder(self.node)?.live.get(name).copied();
        let node = match known {
            Some(node) if matches!(state.nodes.get(&node), Some(Node::Directory(_))) => node,
            Some(_) => return Err(io::ErrorKind::NotADirectory.into()),
            None => {
                state.step()?;
                let node = state.insert(Node::Directory(DirNode::new()));
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

    fn remove_directory(&self, name: &OsStr) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        let node = state.folder(self.node)?.live.get(name).copied().ok_or_else(not_found)?;
        match state.folder(node)?.live.is_empty() {
            true => state.change(self.node, Change::Unlink(name.to_owned())),
            false => Err(io::ErrorKind::DirectoryNotEmpty.into()),
        }
    }

    fn names(&self) -> io::Result<Vec<OsString>> {
        Ok(self.disk.state().folder(self.node)?.live.keys().cloned().collect())
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

    fn link(&self, file: &dyn DiskFile, name: &OsStr) -> io::Result<()> {
        let (_, node) = file.stat()?.id;
        let mut state = self.disk.state();
        state.step()?;
        if state.folder(self.node)?.live.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.change(self.node, Change::Link(name.to_owned(), node))
    }

    fn symlink(&self, target: &OsStr, name: &OsStr) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        if state.folder(self.node)?.live.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let node = state.insert(Node::Link(target.to_owned(), (0, 0)));
        state.change(self.node, Change::Link(name.to_owned(), node))
    }

    fn target(&self, name: &OsStr) -> io::Result<OsString> {
        let mut state = self.disk.state();
        let node = *state.folder(self.node)?.live.get(name).ok_or_else(not_found)?;
        match state.nodes.get(&node) {
            Some(Node::Link(target, _)) => Ok(target.clone()),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn set_link_modified(&self, name: &OsStr, to: (i64, u32)) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        let node = *state.folder(self.node)?.live.get(name).ok_or_else(not_found)?;
        match state.nodes.get_mut(&node) {
            Some(Node::Link(_, modified)) => *modified = to,
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        let folder = state.folder(self.node)?;
        folder.durable = folder.live.clone();
        folder.durable_attributes = folder.attributes;
        folder.changes.clear();
        Ok(())
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        state.folder(self.node)?.attributes.0 = mode;
        Ok(())
    }

    fn set_attributes(&self, mode: u32, modified: (i64, u32)) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        state.folder(self.node)?.attributes = (mode, modified);
        Ok(())
    }

    fn handle(&self) -> io::Result<Box<dyn DiskFile>> {
        let (disk, node) = (self.disk.clone(), self.node);
        let mut state = self.disk.state();
        state.handles += 1;
        let handle = state.handles;
        Ok(Box::new(Handle { disk, node, handle, writable: false }))
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
        match state.nodes.get_mut(&self.node) {
            Some(Node::Directory(folder)) => folder.attributes.1 = modified,
            _ => state.file(self.node)?.live.modified = modified,
        }
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

    fn settle(&self) -> io::Result<()> {
        self.sync()?;
        let mut state = self.disk.state();
        let file = state.file(self.node)?;
        file.live.bytes.clone_from(&file.durable.bytes);
        Ok(())
    }

    fn zero(&self, range: Range<u64>) -> io::Result<()> {
        write_zeros(self, range)
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

    fn unlock(&self) {
        let handle = self.handle;
        let mut state = self.disk.state();
        if let Ok(file) = state.file(self.node)
            && file.lock == Some(handle)
        {
            file.lock = None;
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.unlock();
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
