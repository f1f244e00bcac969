//! What attempts at a stream leave to the next ones, on the disk and in memory.

use std::os::unix::ffi::OsStrExt as _;

use super::{
    Decoder, Done, FileHeader, Folder, Found, Handover, Hash, Known, Names, Place, Resume,
    SinkError, StoreError, StreamDigest, Visitor as _, Writer, state,
};

/// Returns the position to which the entries of a state lead.
pub(super) fn resume_after(found: &Found) -> Resume {
    let mut digest = StreamDigest::default();
    for done in &found.done {
        digest.file(&done.header);
        done.hash.iter().for_each(|hash| digest.file_end(hash));
    }
    let last = found.done.last().map(|done| done.after).unwrap_or_default();
    let Place { at, files, bytes } = found.current.as_ref().map_or(last, |current| current.1);
    let file = found.current.as_ref().map(|(header, _)| (header.clone(), Vec::new()));
    Resume { files, bytes, file, single: None, at, digest }
}

/// Returns a place; `None` if something else is on the path. Where nothing more can be opened, that is not known.
fn usable<T>(place: Result<T, SinkError>) -> Result<Option<T>, SinkError> {
    match place {
        Ok(place) => Ok(Some(place)),
        Err(error @ SinkError::Store(StoreError::ManyOpen(_))) => Err(error),
        Err(_) => Ok(None),
    }
}

impl Writer {
    /// Goes on at a position.
    pub(super) fn resume(mut self, mut resume: Resume) -> Result<Folder, SinkError> {
        (self.files, self.bytes) = (resume.files, resume.bytes);
        self.digest = resume.digest.clone();
        self.resume_file(&mut resume)?;
        let begins_at = resume.at;
        Ok(Folder { decoder: Decoder::resume(resume), writer: self, begins_at })
    }

    /// Goes on where the attempt before has found another file than the one that is sent: with that file.
    pub(super) fn go_on(mut self, handover: Handover) -> Result<Folder, SinkError> {
        let Handover { state, header, place, digest, done, directories, names } = handover;
        (self.state, self.done, self.directories) = (state, done, directories);
        self.names = names;
        let Place { at, files, bytes } = place;
        self.resume(Resume {
            files,
            bytes,
            file: Some((header, Vec::new())),
            single: None,
            at,
            digest,
        })
    }

    /// Leaves what this attempt has found and written to the next one.
    fn hand_over(&mut self, header: FileHeader, place: Place) {
        let handover = Handover {
            state: self.state.take(),
            header,
            place,
            digest: std::mem::take(&mut self.digest),
            done: std::mem::take(&mut self.done),
            directories: std::mem::take(&mut self.directories),
            names: std::mem::take(&mut self.names),
        };
        self.config.handovers.put(self.stream, handover);
    }

    /// Returns of what an earlier attempt has left everything before the first file that is not there, or has another content.
    pub(super) fn keep_present(&mut self, mut found: Found) -> Result<Found, SinkError> {
        let (mut present, mut names) = (0, Names::new());
        for done in &found.done {
            let content = done.header.hard_link().map(|target| names.get(target).copied());
            if content == Some(None) || !self.is_present(done, content.flatten())? {
                break;
            }
            if let (Some(length), Some(hash)) = (done.header.length, done.hash) {
                names.insert(done.header.path.clone(), (length, hash));
            }
            state::remove_table(&self.root, &done.header);
            present += 1;
        }
        let Some(first) = found.done.get(present) else {
            self.left = found.current.as_ref().map(|(header, _)| header.path.clone());
            return Ok(found);
        };
        // The earlier attempt may have been interrupted before the last file got its name.
        let unnamed = present + 1 == found.done.len() && found.current.is_none();
        self.left = unnamed.then(|| first.header.path.clone());
        let begun = first.begun.filter(|_| unnamed);
        found.current = begun.map(|place| (first.header.clone(), place));
        found.done.truncate(present);
        Ok(found)
    }

    /// Returns whether a file or directory of an earlier attempt is there. A file must have its content: it is hashed, since a
    /// file that is changed within a tick of the clock has the times and the length that were recorded. A further name may be a copy
    /// of that content.
    fn is_present(&mut self, done: &Done, content: Option<(u64, Hash)>) -> Result<bool, SinkError> {
        if let Some(target) = done.header.symbolic_link() {
            let Some(entry) = usable(self.place(&done.header))? else { return Ok(false) };
            if entry.target().is_none_or(|it| it.as_bytes() != target) {
                return Ok(false);
            }
            self.sync_later(entry.dir())?;
            return Ok(true);
        }
        if let (Some(target), Some(content)) = (done.header.hard_link(), content) {
            let name = usable(self.place(&done.header))?;
            let Some((name, target)) = name.zip(usable(self.place_of(target))?) else {
                return Ok(false);
            };
            let (Some(found), Some(file)) = (name.stat(), target.stat()) else { return Ok(false) };
            if found.id != file.id && self.copy_at(&name, content)?.is_none() {
                return Ok(false);
            }
            self.sync_later(name.dir())?;
            return Ok(true);
        }
        let Done { header, hash: Some(hash), .. } = done else {
            // Its files are checked one by one.
            return Ok(usable(self.open_dir(&done.header.path))?.is_some());
        };
        let Some(entry) = usable(self.place(header))? else { return Ok(false) };
        let Some(file) = entry.open_read()? else { return Ok(false) };
        if !file.stat().is_ok_and(|stat| Some(stat.len) == header.length)
            || self.hash_of(&*file, &entry)? != Some(*hash)
            || self.keep_attributes(&*file, header).is_err()
            || self.config.sync && file.sync().is_err()
        {
            return Ok(false);
        }
        self.sync_later(entry.dir())?;
        Ok(true)
    }

    /// Handles that the file that was found is not the one that is sent: the next attempt at the stream begins with it,
    /// if it may be replaced.
    pub(super) fn replace_known(&mut self) -> Result<(), SinkError> {
        let Some(Known { path, header, at, .. }) = self.known.take() else { return Ok(()) };
        if !self.config.overwrite {
            return Err(StoreError::Exists(path).into());
        }
        let place = self.place_at(at);
        self.note(|state| state.begin(&header, place))?;
        self.sync_links()?;
        self.hand_over(header, place);
        Err(SinkError::Again(path))
    }

    /// Opens the file that was being written, and moves `resume` past its chunks up to the first one that is missing.
    fn resume_file(&mut self, resume: &mut Resume) -> Result<(), SinkError> {
        let Some((header, hashes)) = &mut resume.file else { return Ok(()) };
        self.open(header)?;
        let kept = self.kept()?;
        let right = kept.hashes.len() as u64;
        (*hashes, resume.single) = (kept.hashes, kept.single);
        // Offsets in a stream have 48 bits, but the stored state may contain anything.
        resume.at = resume.at.saturating_add(header.bytes_before(right)).min(u64::MAX >> 1);
        Ok(())
    }
}
