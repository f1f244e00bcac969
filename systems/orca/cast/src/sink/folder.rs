//! A sink that writes a stream of files, in order, into a directory.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use super::comparing::Manifests;
use super::handover::{Handover, Handovers};
use super::state::{self, Done, Found, Place, State};
use rackweave_wire::orca::Reason;

use self::resumed::resume_after;
use super::{Caveats, FileDone, Sink, SinkError, attributes};
use crate::format::tree::chunk_hash;
use crate::format::{
    CHUNK, DecodeError, Decoder, FileHeader, Hash, Kept, Resume, StreamDigest, Visitor,
};
use crate::store::disk::{DiskFile, FileKind, Reading, Stat};
use crate::store::{
    BlockConfig, BlockStore, Cancel, Dir, Entry, Finish, PART, StoreError, UntilCancelled, failed,
    fault,
};

mod links;
mod resumed;

/// What a sender has sent of a file, in bytes, by the time it learns that the receiver has it already: its window.
const SENT_AHEAD: u64 = 8 << 20;

/// Where a [`Folder`] writes files, and how.
#[derive(Clone, Debug, Default)]
pub struct FolderConfig {
    /// The directory that files are written to.
    pub folder: PathBuf,
    /// The path within the directory for the only file of the stream, instead of the file's own.
    pub only: Option<PathBuf>,
    /// Whether existing files are replaced.
    pub overwrite: bool,
    /// Whether a file is synced to the disk before it gets its final name.
    pub sync: bool,
    /// Whether senders may ask to delete what they do not have in the directories that they send.
    pub allow_delete: bool,
    /// The number of bytes after which the disk is treated as full; `None` for no limit.
    pub limit: Option<u64>,
    /// Ends the hashing of files that are there already: with [`StoreError::Cancelled`], and nothing that was recorded is lost.
    pub cancel: Cancel,
    /// What attempts at streams leave to attempts that follow them at once; shared by the clones of a configuration.
    pub handovers: Handovers,
    /// The memory of manifests; shared by the clones of a configuration.
    pub manifests: Manifests,
}

/// Writes a stream's files. An incomplete file has the suffix `.part` and stays when the transfer is interrupted: the
/// next transfer of the same stream continues from there.
#[derive(Debug)]
pub struct Folder {
    decoder: Decoder,
    writer: Writer,
    begins_at: u64,
}

/// The files of a stream that have their names: their lengths and hashes.
pub(super) type Names = BTreeMap<Vec<u8>, (u64, Hash)>;

#[derive(Debug)]
struct Writer {
    config: FolderConfig,
    root: Dir,
    /// The directory that was opened last, and its path in the stream.
    opened: (Vec<u8>, Dir),
    stream: u128,
    state: Option<State>,
    /// The path of the file that an earlier attempt at this stream has left incomplete.
    left: Option<Vec<u8>>,
    current: Option<Current>,
    /// The file that was found at its place, and may be the one that is sent.
    known: Option<Known>,
    files: u64,
    bytes: u64,
    written: u64,
    ended: bool,
    done: Vec<FileDone>,
    /// The digest of the files and directories that are complete.
    digest: StreamDigest,
    /// The directory of links that are not synced yet.
    unsynced: Option<Dir>,
    /// Directories that get their times and modes once no more files are put into them.
    directories: Vec<FileHeader>,
    /// What a hard link of the stream can be to.
    names: Names,
    caveats: Caveats,
}

/// A file that exists already, with the length of the one that is sent.
#[derive(Debug)]
struct Known {
    file: Box<dyn DiskFile>,
    dir: Dir,
    path: PathBuf,
    header: FileHeader,
    hash: Hash,
    /// The offset in the stream of the file's first chunk.
    at: u64,
}

/// The file that is being written.
#[derive(Debug)]
struct Current {
    store: BlockStore,
    entry: Entry,
    header: FileHeader,
    /// The number of its bytes that have arrived, in order.
    bytes: u64,
    /// Whether it can be resumed after an interruption. A pipe cannot, because it cannot be read a second time; a short
    /// file need not, because it is soon sent again.
    resumable: bool,
}

impl Folder {
    /// Starts to receive this stream, and continues where an earlier attempt was interrupted.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub fn new(config: FolderConfig, stream: u128) -> Result<Self, SinkError> {
        Self::in_dir(Dir::open(&config.folder)?, config, stream)
    }

    /// As [`Folder::new`], with an open directory in place of the one that the configuration names.
    ///
    /// # Errors
    /// The same as for [`Folder::new`].
    pub fn in_dir(root: Dir, config: FolderConfig, stream: u128) -> Result<Self, SinkError> {
        let handover = config.handovers.take(stream);
        let mut writer = Writer {
            config,
            opened: (Vec::new(), root.clone()),
            root: root.clone(),
            stream,
            state: None,
            left: None,
            current: None,
            known: None,
            files: 0,
            bytes: 0,
            written: 0,
            ended: false,
            done: Vec::new(),
            digest: StreamDigest::default(),
            unsynced: None,
            directories: Vec::new(),
            names: Names::new(),
            caveats: Caveats::default(),
        };
        if let Some(handover) = handover {
            return writer.go_on(handover);
        }
        let found = state::load(&root, stream)?.map(|found| writer.keep_present(found));
        let found = found.transpose()?;
        let found = found.filter(|found| !found.done.is_empty() || found.current.is_some());
        let Some(found) = found else {
            return Ok(Self { decoder: Decoder::default(), writer, begins_at: 0 });
        };
        let state = State::compact(&root, stream, &found);
        writer.state = Some(state.map_err(|error| failed(root.path(), error))?);
        let resume = resume_after(&found);
        let complete = found
            .done
            .iter()
            .filter_map(|done| Some((done.header.path.clone(), (done.header.length?, done.hash?))));
        writer.names = complete.collect();
        let is_directory = |done: &Done| done.header.is_directory();
        let directories = found.done.into_iter().filter(is_directory);
        writer.directories = directories.map(|done| done.header).collect();
        writer.resume(resume)
    }
}

/// Returns the hash of a file; `None` if it cannot be read.
pub(super) fn hash_of(
    file: &dyn DiskFile,
    entry: &Entry,
    cancel: &Cancel,
) -> Result<Option<Hash>, SinkError> {
    let mut hasher = blake3::Hasher::new();
    let read = hasher.update_reader(UntilCancelled(Reading(file, 0), cancel)).map(|_| ());
    if cancel.is_set() {
        return Err(StoreError::Cancelled(entry.path()).into());
    }
    Ok(read.ok().map(|()| *hasher.finalize().as_bytes()))
}

/// Returns the hashes of what the system shows of a file, and of what is on the disk.
///
/// Where they differ and no other program has changed the file meanwhile, a sync has failed. The file loses its time, so that nobody
/// takes it by its time for the file that is sent: once the system has forgotten what it showed, that is the only trace.
pub(super) fn hashes_on_disk(
    file: &dyn DiskFile,
    entry: &Entry,
    cancel: &Cancel,
) -> Result<(Option<Hash>, Option<Hash>), SinkError> {
    let state = || file.stat().ok().map(|it| (it.len, it.modified, it.changed));
    let before = state();
    let shown = hash_of(file, entry, cancel)?;
    if file.settle().is_err() {
        return Ok((shown, None));
    }
    let on_disk = hash_of(file, entry, cancel)?;
    if shown != on_disk && before != state() {
        return Ok((shown, None));
    }
    if shown != on_disk {
        // It may belong to another user.
        let _ = file.set_modified((0, 0));
    }
    Ok((shown, on_disk))
}

/// Gives a file the mode, time, owner and attributes that it should have. Returns whether it has the latter two.
pub(super) fn set_attributes(
    file: &dyn DiskFile,
    header: &FileHeader,
) -> io::Result<attributes::Kept> {
    let stat = file.stat()?;
    fault::owner(stat.id)?;
    let kept = attributes::keep(file, header);
    let stat = file.stat()?;
    if stat.mode != kept.mode {
        file.set_mode(kept.mode)?;
    }
    if stat.modified != (header.mtime_s, header.mtime_ns) {
        file.set_modified((header.mtime_s, header.mtime_ns))?;
    }
    Ok(kept)
}

/// Returns whether the system lets this user set the mode and time of a file.
fn is_to_set(file: &dyn DiskFile, found: &Stat) -> bool {
    fault::owner(found.id).is_ok() && (found.is_own || file.set_modified(found.modified).is_ok())
}

/// Returns an identifier of a file's content: its name and attributes. Another content is found by the hash of the file.
fn content(header: &FileHeader) -> Hash {
    let mut bytes = Vec::new();
    crate::format::file(header, &mut bytes);
    *blake3::hash(&bytes).as_bytes()
}

impl Writer {
    /// Opens the directory with this path in the stream, and creates directories that do not exist.
    fn open_dir(&mut self, path: &[u8]) -> Result<Dir, SinkError> {
        if self.opened.0 != path {
            let mut dir = self.root.clone();
            let wrong = |error| failed(self.root.path(), error);
            for name in path.split(|byte| *byte == b'/') {
                let name = OsStr::from_bytes(name);
                let inside = dir.subdir(name)?;
                // It gets its mode in the end.
                let found = dir.entry(name).stat().filter(|found| found.is_own);
                found.map_or(Ok(()), |it| inside.open_up(it.mode)).map_err(wrong)?;
                if self.config.sync {
                    // Whoever created it, an earlier attempt included, may have been killed before its name was synced.
                    dir.sync()?;
                }
                dir = inside;
            }
            self.opened = (path.to_vec(), dir);
        }
        Ok(self.opened.1.clone())
    }

    /// Returns the entry of a file. Directories on the path are created; no link that leads out of them is followed.
    fn place(&mut self, header: &FileHeader) -> Result<Entry, SinkError> {
        self.place_of(&header.path)
    }

    fn place_of(&mut self, path: &[u8]) -> Result<Entry, SinkError> {
        if let Some(only) = &self.config.only {
            let folder = only.parent().map(PathBuf::from).unwrap_or_default();
            return Ok(self.root.with_path(folder).entry(only.file_name().unwrap_or_default()));
        }
        let slash = path.iter().rposition(|byte| *byte == b'/');
        Ok(match slash {
            Some(slash) => {
                let name = OsStr::from_bytes(&path[slash + 1..]);
                self.open_dir(&path[..slash])?.entry(name)
            }
            None => self.root.entry(OsStr::from_bytes(path)),
        })
    }

    /// Returns the hash of a file that others may have written, with `sync` of what is on the disk.
    fn hash_of(&self, file: &dyn DiskFile, entry: &Entry) -> Result<Option<Hash>, SinkError> {
        match self.config.sync {
            true => Ok(hashes_on_disk(file, entry, &self.config.cancel)?.1),
            false => hash_of(file, entry, &self.config.cancel),
        }
    }

    /// Returns a file that may be the one that is sent: it has the length. Its hash, which is compared in the end, decides. A file that
    /// may be replaced and has another modification time is compared only if that can save something: the sender learns
    /// from the end of the file on that it was another one, and begins it again.
    fn find(&mut self, header: &FileHeader, at: u64) -> Result<Option<Known>, SinkError> {
        let entry = self.place(header)?;
        let found = entry.open_read()?.and_then(|file| Some((file.stat().ok()?, file)));
        let Some((stat, file)) = found else { return Ok(None) };
        let same_time = stat.modified == (header.mtime_s, header.mtime_ns);
        let worth = same_time || !self.config.overwrite || stat.len > SENT_AHEAD;
        if Some(stat.len) != header.length || !worth {
            return Ok(None);
        }
        let is_same = same_time
            && stat.mode == u32::from(header.mode)
            && header.attributes.is_none()
            && attributes::owner_for(header.owner, &stat) == stat.owner;
        if self.config.overwrite && !is_same && !is_to_set(&*file, &stat) {
            // A file of this user takes its place.
            return Ok(None);
        }
        let hash = self.hash_of(&*file, &entry)?;
        let Some(hash) = hash else { return Ok(None) };
        let (path, header) = (entry.path(), header.clone());
        Ok(Some(Known { file, dir: entry.dir().clone(), path, header, hash, at }))
    }

    /// Gives a file that is there the mode, time and attributes that it should have. Where files are not replaced, one that belongs to
    /// somebody else stays as it is.
    fn keep_attributes(&mut self, file: &dyn DiskFile, header: &FileHeader) -> io::Result<()> {
        match set_attributes(file, header) {
            Ok(kept) => self.caveats.count(&kept),
            Err(error)
                if error.kind() == io::ErrorKind::PermissionDenied && !self.config.overwrite =>
            {
                self.caveats.foreign += 1;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Syncs a directory once no more links are made in it.
    fn sync_later(&mut self, dir: &Dir) -> Result<(), SinkError> {
        if self.config.sync && self.unsynced.as_ref().is_none_or(|it| it.path() != dir.path()) {
            self.sync_links()?;
            self.unsynced = Some(dir.clone());
        }
        Ok(())
    }

    /// Makes the links permanent that were made.
    fn sync_links(&mut self) -> Result<(), SinkError> {
        Ok(self.unsynced.take().map_or(Ok(()), |dir| dir.sync())?)
    }

    /// Makes room for an entry where an interrupted transfer of another file has left something, unless that goes on. Nothing but its
    /// progress is lost.
    fn clear_rest(&self, to: &Entry, header: &FileHeader) -> Result<(), SinkError> {
        let of = header.path.strip_suffix(PART.as_bytes());
        let of = of.filter(|_| self.config.only.is_none());
        let is_rest = |of: &[u8]| {
            let found = to.stat().filter(|found| found.kind == FileKind::File);
            found.is_some_and(|found| state::is_rest(&self.root, of, &found))
        };
        let Some(of) = of.filter(|of| is_rest(of)) else { return Ok(()) };
        let Some(file) = to.open_read()? else { return Ok(()) };
        if !file.lock() {
            return Err(StoreError::Busy(to.path()).into());
        }
        let table = self.root.entry(&state::table_name(of));
        let removed = to.remove().and_then(|()| table.remove());
        file.unlock();
        removed.map_err(|error| failed(&to.path(), error).into())
    }

    /// Keeps a file that is the one that was sent, and gives it the mode and time that it should have.
    fn keep(&mut self, known: Known, length: u64, at: u64) -> Result<(), SinkError> {
        let Known { file, dir, path, header, hash, .. } = known;
        let wrap = |error| failed(&path, error);
        self.keep_attributes(&*file, &header).map_err(wrap)?;
        if self.config.sync {
            // Whoever wrote it may not have synced it.
            file.sync().map_err(wrap)?;
            self.sync_later(&dir)?;
        }
        state::remove_table(&self.root, &header);
        self.done.push(FileDone { path, bytes: length, hash });
        (self.files, self.bytes) = (self.files + 1, self.bytes + length);
        self.digest_file(&header, &hash);
        let place = self.place_at(at);
        self.note(|state| state.done(&header, &hash, place))
    }

    fn digest_file(&mut self, header: &FileHeader, hash: &Hash) {
        self.names.insert(header.path.clone(), (header.length.unwrap_or(0), *hash));
        self.digest.file(header);
        self.digest.file_end(hash);
    }

    /// Returns the position at an offset of the stream, after the files that are complete.
    const fn place_at(&self, at: u64) -> Place {
        Place { at, files: self.files, bytes: self.bytes }
    }

    /// Opens a file, with the chunks that an earlier attempt has left.
    fn open(&mut self, header: &FileHeader) -> Result<(), SinkError> {
        let entry = self.place(header)?;
        let resumable = header.length.is_some_and(|length| length >= CHUNK as u64);
        let left = self.left.take_if(|path| *path == header.path).is_some();
        let is_rest = || {
            !resumable
                && entry
                    .part()
                    .stat()
                    .is_some_and(|it| state::is_rest(&self.root, &header.path, &it))
        };
        let store = BlockStore::open(BlockConfig {
            target: entry.clone(),
            table: resumable.then(|| self.root.entry(&state::table_name(&header.path))),
            content: content(header),
            length: header.length,
            resume: true,
            replace: self.config.overwrite,
            ours: left || is_rest(),
            cancel: self.config.cancel.clone(),
        })?;
        let header = header.clone();
        self.current = Some(Current { store, entry, header, bytes: 0, resumable });
        Ok(())
    }

    fn finish(&mut self, hash: &Hash, at: u64) -> Result<(), SinkError> {
        let known = self.current.as_ref().filter(|current| current.header.length.is_some());
        // The content of a pipe cannot be sent a second time, and has no modification time.
        let known = known.map(|current| (current.header.clone(), current.bytes));
        if let Some((header, bytes)) = &known {
            let place = Place { at, files: self.files + 1, bytes: self.bytes + bytes };
            self.note(|state| state.done(header, hash, place))?;
        }
        let Some(current) = self.current.take() else { return Ok(()) };
        let Current { store, entry, header, bytes, .. } = current;
        let kept = attributes::keep(store.file(), &header);
        self.caveats.count(&kept);
        store.finish(&Finish {
            mode: kept.mode,
            modified: known.is_some().then_some((header.mtime_s, header.mtime_ns)),
            sync: self.config.sync,
        })?;
        (self.files, self.bytes) = (self.files + 1, self.bytes + bytes);
        self.digest_file(&header, hash);
        self.done.push(FileDone { path: entry.path(), bytes, hash: *hash });
        Ok(())
    }

    /// Records something in the state. A disk that has no room for it has no room for files either.
    fn note(&mut self, note: impl FnOnce(&mut State) -> io::Result<()>) -> Result<(), SinkError> {
        let noted = match &mut self.state {
            Some(state) => note(state),
            None => State::create(&self.root, self.stream).and_then(|mut state| {
                let result = note(&mut state);
                self.state = Some(state);
                result
            }),
        };
        noted.map_err(|error| {
            let current = self.current.as_ref();
            let path = current.map_or(self.root.path().into(), |it| it.entry.part().path());
            self.failed(failed(&path, error))
        })
    }

    /// Converts an error; if the disk is full, it states how many bytes the current file still needs.
    fn failed(&self, error: StoreError) -> SinkError {
        match (error, &self.current) {
            (StoreError::Full { path, .. }, Some(current)) => {
                let length = current.header.length;
                let needs = length.map(|length| length.saturating_sub(current.bytes));
                let free = match self.config.limit {
                    Some(limit) => Some(limit.saturating_sub(self.written)),
                    None => current.entry.dir().free(),
                };
                StoreError::Full { path, needs, free }.into()
            }
            (other, _) => other.into(),
        }
    }
}

impl Visitor for Writer {
    type Error = SinkError;

    fn file(&mut self, header: &FileHeader, at: u64) -> Result<(), SinkError> {
        if self.config.only.is_some() && (self.files > 0 || !header.is_file()) {
            return Err(SinkError::Several);
        }
        if header.is_directory() {
            let dir = self.open_dir(&header.path)?;
            // Until it gets its mode in the end, it is open to nobody that it will be closed to.
            let _ = dir.set_mode(attributes::mode_without_acl(header) | 0o700);
            self.files += 1;
            self.digest.file(header);
            let place = self.place_at(at);
            self.note(|state| state.named(header, place))?;
            self.directories.push(header.clone());
            return Ok(());
        }
        if let Some(target) = header.hard_link() {
            return self.link(header, target, at);
        }
        if let Some(target) = header.symbolic_link() {
            return self.symlink(header, target, at);
        }
        if header.length.is_some() {
            self.known = self.find(header, at)?;
            if self.known.is_some() {
                return Ok(());
            }
        }
        let place = self.place(header)?;
        self.clear_rest(&place, header)?;
        self.open(header)?;
        if self.current.as_ref().is_some_and(|current| current.resumable) {
            let place = self.place_at(at);
            self.note(|state| state.begin(header, place))?;
        }
        Ok(())
    }

    fn known(&mut self) -> Option<Hash> {
        self.known.as_ref().map(|known| known.hash)
    }

    fn kept(&mut self) -> Result<Kept, SinkError> {
        let Some(current) = &mut self.current else { return Ok(Kept::default()) };
        let store = &mut current.store;
        // Only whole chunks count: after a short one comes the end of the file, which is sent again.
        let whole = current.header.length.unwrap_or(0) / CHUNK as u64;
        let hashes: Vec<Hash> = (0..whole).map_while(|block| store.hash(block)).collect();
        let single = match hashes.len() {
            1 => store.read(0)?.and_then(|bytes| chunk_hash(0, bytes).1),
            _ => None,
        };
        current.bytes = hashes.len() as u64 * CHUNK as u64;
        Ok(Kept { hashes, single })
    }

    /// Bytes are written immediately, while they are in the processor's cache. A chunk that turns out to be wrong is
    /// never committed, and is written again when the transfer continues.
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        let limit = self.config.limit.unwrap_or(u64::MAX);
        let Some(current) = &mut self.current else { return Ok(()) };
        let written = match self.written + bytes.len() as u64 > limit {
            true => Err(failed(&current.entry.part().path(), io::ErrorKind::StorageFull.into())),
            false if current.header.extents().is_some() => {
                current.store.write_sparse_at(current.bytes, bytes)
            }
            false => current.store.write_at(current.bytes, bytes),
        };
        if let Err(error) = written {
            return Err(self.failed(error));
        }
        self.written += bytes.len() as u64;
        current.bytes += bytes.len() as u64;
        Ok(())
    }

    fn chunk(&mut self, hash: &Hash, _: u64) -> Result<(), SinkError> {
        let Some(current) = &mut self.current else { return Ok(()) };
        let Some(last) = current.bytes.checked_sub(1) else { return Ok(()) };
        let committed = match current.header.length {
            Some(_) => current.store.commit(last / CHUNK as u64, hash),
            // Chunks of a pipe have any length.
            None => Ok(()),
        };
        committed.map_err(|error| self.failed(error))
    }

    fn hole(&mut self, len: usize, hash: &Hash) -> Result<(), SinkError> {
        let Some(current) = &mut self.current else { return Ok(()) };
        // Many holes take long.
        if self.config.cancel.is_set() {
            return Err(StoreError::Cancelled(current.entry.path()).into());
        }
        let block = current.bytes / CHUNK as u64;
        current.bytes += len as u64;
        current.store.hole(block, hash).map_err(|error| self.failed(error))
    }

    fn file_end(&mut self, length: u64, hash: &Hash, at: u64) -> Result<(), SinkError> {
        if let Some(known) = self.known.take() {
            return self.keep(known, length, at);
        }
        self.finish(hash, at)
    }

    fn end(&mut self, _: u64, _: u64) -> Result<(), SinkError> {
        self.sync_links()?;
        for header in std::mem::take(&mut self.directories).iter().rev() {
            // The files are correct, and the attributes of a directory are not worth an error.
            if let Ok(folder) = self.open_dir(&header.path) {
                let modified = (header.mtime_s, header.mtime_ns);
                let kept = attributes::keep_of(&folder, header);
                self.caveats.count(&kept);
                let _ = folder.set_attributes(kept.mode, modified);
            }
        }
        if let Some(state) = self.state.take() {
            state.remove();
        }
        self.ended = true;
        Ok(())
    }
}

impl Sink for Folder {
    fn begins_at(&self) -> u64 {
        self.begins_at
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        let mut result = self.decoder.push(bytes, &mut self.writer);
        if let Err(SinkError::Stream(DecodeError::KnownDiffers)) = result {
            result = self.writer.replace_known();
        }
        // Without the lock, another attempt can write the file.
        let failed = self.writer.current.take_if(|_| result.is_err());
        // Either the file has changed since its first chunks arrived (but not its length and time), or the state is
        // damaged: the next attempt starts from the beginning.
        let stale = match &result {
            // It begins at the first file, so that each present file is compared with what is sent.
            Err(SinkError::Stream(DecodeError::EarlierDiffers)) => {
                result = Err(SinkError::Again(self.writer.root.path().to_owned()));
                true
            }
            Err(SinkError::Stream(DecodeError::FileHash)) => true,
            Err(SinkError::Store(StoreError::Conflict { .. })) => true,
            Err(SinkError::Stream(_)) => self.begins_at > 0,
            _ => false,
        };
        if stale {
            if let Some(current) = failed {
                // Without its table nothing of it is of use.
                current.store.abandon();
            }
            if let Some(state) = self.writer.state.take() {
                state.remove();
            }
        }
        result
    }

    fn needs_from(&self) -> Option<u64> {
        self.decoder.needs_from()
    }

    /// A file that never had a byte leaves nothing, unless an earlier attempt has recorded it: that may be the only trace that the file
    /// at its place is not the one that is sent.
    fn interrupted(&mut self, _: Reason) {
        let is_empty = |it: &mut Current| it.bytes == 0 && it.store.have().is_empty();
        if let Some(current) = self.writer.current.take_if(is_empty) {
            current.store.abandon();
            let is_first = self.begins_at == 0 && self.writer.files == 0;
            if let Some(state) = self.writer.state.take_if(|_| is_first) {
                state.remove();
            }
        }
    }

    fn omit_rest(&mut self) {
        self.decoder.omit_rest();
    }

    fn is_complete(&self) -> bool {
        self.writer.ended
    }

    fn files(&self) -> Vec<FileDone> {
        self.writer.done.clone()
    }

    fn caveats(&self) -> Caveats {
        self.writer.caveats
    }

    fn content(&self) -> (u64, Option<u64>) {
        let current = self.writer.current.as_ref();
        let of = current.and_then(|current| current.header.length);
        let bytes = current.map_or(0, |current| current.bytes);
        (self.writer.bytes + bytes, of.map(|of| self.writer.bytes + of))
    }
}
