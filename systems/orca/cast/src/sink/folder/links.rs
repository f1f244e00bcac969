//! Further names of the files of a stream, hard links or copies, and symbolic links.

use std::os::unix::ffi::OsStrExt as _;

use super::{
    BlockConfig, BlockStore, CHUNK, DecodeError, DiskFile, Entry, FileDone, FileHeader, Finish,
    Hash, OsStr, SinkError, StoreError, Writer, attributes, chunk_hash, failed, io,
};
use crate::store::disk::{FileKind, read_exact_at};
use crate::store::refuses_links;

impl Writer {
    /// Gives a file of the stream another name. One that has it and the same content stays where files are not replaced, and where no
    /// link is possible; if there is none, it is written as a copy then.
    pub(super) fn link(
        &mut self,
        header: &FileHeader,
        target: &[u8],
        at: u64,
    ) -> Result<(), SinkError> {
        let Some(content) = self.names.get(target).copied() else {
            return Err(DecodeError::Link.into());
        };
        let (from, to) = (self.place_of(target)?, self.place(header)?);
        let file = from.open_read()?;
        let file = file.ok_or_else(|| failed(&from.path(), io::ErrorKind::NotFound.into()))?;
        let id = file.stat().map_err(|error| failed(&from.path(), error))?.id;
        self.clear_rest(&to, header)?;
        match to.stat() {
            Some(found) if found.id == id => {}
            Some(found) if found.kind == FileKind::Directory => {
                return Err(StoreError::IsDirectory(to.path()).into());
            }
            Some(_) if !self.config.overwrite => {
                if !self.keep_copy(&to, header, content)? {
                    return Err(StoreError::Exists(to.path()).into());
                }
            }
            _ => match to.link(&*file) {
                Ok(()) => {}
                Err(error) if refuses_links(&error) => {
                    if !self.keep_copy(&to, header, content)? {
                        self.copy(&from, &*file, &to, content)?;
                    }
                    self.caveats.copied += 1;
                }
                Err(error) => return Err(failed(&to.path(), error).into()),
            },
        }
        self.sync_later(to.dir())?;
        let (bytes, hash) = content;
        self.files += 1;
        self.digest.file(header);
        let place = self.place_at(at);
        self.note(|state| state.named(header, place))?;
        self.done.push(FileDone { path: to.path(), bytes, hash });
        Ok(())
    }

    /// Makes a symbolic link. One that has the same text stays, and gets the time; one of another user is replaced for that, or keeps its
    /// time.
    pub(super) fn symlink(
        &mut self,
        header: &FileHeader,
        target: &[u8],
        at: u64,
    ) -> Result<(), SinkError> {
        let (to, modified) = (self.place(header)?, (header.mtime_s, header.mtime_ns));
        self.clear_rest(&to, header)?;
        let make = |replace| to.symlink(OsStr::from_bytes(target), modified, replace);
        let refused = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        match to.kind() {
            Some(FileKind::SymbolicLink)
                if to.target().is_some_and(|found| found.as_bytes() == target) =>
            {
                let set = match to.set_link_modified(modified) {
                    // It is another user's, but it may be this one's to replace.
                    Err(error) if self.config.overwrite && refused(&error) => make(true),
                    set => set,
                };
                match set {
                    Err(error) if refused(&error) => self.caveats.foreign += 1,
                    set => set.map_err(|error| failed(&to.path(), error))?,
                }
            }
            Some(FileKind::Directory) => return Err(StoreError::IsDirectory(to.path()).into()),
            Some(_) if !self.config.overwrite => return Err(StoreError::Exists(to.path()).into()),
            _ => {
                make(self.config.overwrite).map_err(|error| match error.kind() {
                    io::ErrorKind::AlreadyExists => StoreError::Exists(to.path()),
                    _ => failed(&to.path(), error),
                })?;
            }
        }
        self.caveats.unowned += u64::from(!attributes::own_link(&to, header.owner));
        self.sync_later(to.dir())?;
        self.files += 1;
        self.digest.file(header);
        let place = self.place_at(at);
        self.note(|state| state.named(header, place))
    }

    /// Returns the file at a place, if it has this length and hash.
    pub(super) fn copy_at(
        &self,
        at: &Entry,
        (bytes, hash): (u64, Hash),
    ) -> Result<Option<Box<dyn DiskFile>>, SinkError> {
        let Some(file) = at.open_read()? else { return Ok(None) };
        let is_long = file.stat().is_ok_and(|stat| stat.len == bytes);
        Ok((is_long && self.hash_of(&*file, at)? == Some(hash)).then_some(file))
    }

    /// Keeps the file at the place of a further name if it has the content, and gives it the mode and time that it should have. Returns
    /// whether it does.
    fn keep_copy(
        &mut self,
        at: &Entry,
        header: &FileHeader,
        content: (u64, Hash),
    ) -> Result<bool, SinkError> {
        let Some(file) = self.copy_at(at, content)? else { return Ok(false) };
        let kept = self.keep_attributes(&*file, header);
        kept.and_then(|()| if self.config.sync { file.sync() } else { Ok(()) })
            .map_err(|error| failed(&at.path(), error))?;
        Ok(true)
    }

    /// Writes a further name of a file as a file of its own.
    fn copy(
        &mut self,
        from: &Entry,
        file: &dyn DiskFile,
        to: &Entry,
        content: (u64, Hash),
    ) -> Result<(), SinkError> {
        let stat = file.stat().map_err(|error| failed(&from.path(), error))?;
        let mut store = BlockStore::open(BlockConfig {
            replace: self.config.overwrite,
            ours: self.config.overwrite,
            ..BlockConfig::new(to.clone(), content.0)
        })?;
        match self.copy_bytes(file, &mut store, to, content) {
            Ok(true) => {}
            // Another program has changed the file since it was verified.
            Ok(false) => {
                store.abandon();
                return Err(SinkError::Again(from.path()));
            }
            Err(error) => {
                store.abandon();
                return Err(error);
            }
        }
        let attributes = attributes::of(file);
        let _ = attributes::own(store.file(), Some(stat.owner));
        let kept = attributes::keep_attributes(store.file(), attributes.as_deref().ok(), stat.mode);
        self.caveats.count(&kept);
        let (mode, modified) = (kept.mode, Some(stat.modified));
        Ok(store.finish(&Finish { mode, modified, sync: self.config.sync })?)
    }

    /// Copies the bytes of a file. Returns whether they have this length and hash.
    fn copy_bytes(
        &mut self,
        file: &dyn DiskFile,
        store: &mut BlockStore,
        to: &Entry,
        (bytes, hash): (u64, Hash),
    ) -> Result<bool, SinkError> {
        let (mut hasher, mut buffer) = (blake3::Hasher::new(), vec![0; CHUNK]);
        let limit = self.config.limit.unwrap_or(u64::MAX);
        for block in 0..bytes.div_ceil(CHUNK as u64) {
            if self.config.cancel.is_set() {
                return Err(StoreError::Cancelled(to.path()).into());
            }
            let at = block * CHUNK as u64;
            let buffer = &mut buffer[..(bytes - at).min(CHUNK as u64) as usize];
            if read_exact_at(file, buffer, at).is_err() {
                return Ok(false);
            }
            if self.written + buffer.len() as u64 > limit {
                return Err(failed(&to.part().path(), io::ErrorKind::StorageFull.into()).into());
            }
            hasher.update(buffer);
            store.write_sparse_at(at, buffer)?;
            store.commit(block, &chunk_hash(block, buffer).0)?;
            self.written += buffer.len() as u64;
        }
        Ok(*hasher.finalize().as_bytes() == hash)
    }
}
