//! Writing an image to a file or a block device, chunk by chunk in any order.

pub(crate) mod device;
mod record;

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rackweave_core::Bitmap;
use rackweave_disk::{
    Directory, DiskFile, FileKind, INCOMPLETE, Open, PartError, new_mode, read_exact_at,
    write_all_at,
};

use self::record::Record;
use crate::manifest::gaps;
use crate::part::{Named, Part, resolved};
use crate::scan::scan_chunks;
use crate::{
    ChunkError, Codec, Expander, ImageError, Manifest, Piece, Progress, StoredChunk, recompress,
};

/// How a target is opened.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// Whether to replace an existing file. The chunks that it shares with the image are copied from it, so that they
    /// need not be fetched. A file that holds the image already is left as it is in any case.
    pub overwrite: bool,
    /// Whether a device is read first, so that the chunks that it holds already need not be fetched. It takes as
    /// long as reading the used part of the image. The default is true.
    pub scan_device: bool,
    /// Whether the ranges of a device that the image does not use are overwritten with zeros. In a file they are holes.
    pub zero_unused: bool,
    /// Whether an image of a disk whose sectors have another size than those of the device is written.
    pub force_sector_size: bool,
    /// Device and inode of the image file, which is refused as a target.
    pub image: Option<(u64, u64)>,
}

impl Default for TargetConfig {
    fn default() -> Self {
        Self {
            overwrite: false,
            scan_device: true,
            zero_unused: false,
            force_sector_size: false,
            image: None,
        }
    }
}

#[derive(Debug)]
enum Place {
    /// A file that is written aside and named in the end.
    Part(Part, Box<Record>),
    Device(Box<dyn DiskFile>),
    /// A file that holds the image already.
    Complete(Box<dyn DiskFile>, Named),
}

/// A file or block device that an image is written to. Only verified chunks are written, each at its place, so the
/// content is always correct. A target can be abandoned at any moment, and opened again.
///
/// A file is written under another name (with the suffix `.part`) and renamed when it has all chunks; holes stay holes.
/// Which chunks it has is recorded in a file next to it, and checked when it is opened again. A device must not be in
/// use, and is opened exclusively; which chunks it has is determined by reading it.
///
/// Nothing outside of the image's size is ever written.
#[derive(Debug)]
pub struct Target {
    place: Place,
    path: PathBuf,
    manifest: Arc<Manifest>,
    have: Bitmap<u32>,
    expander: Expander,
    zero_unused: bool,
}

impl Target {
    /// Opens or creates the target, and determines which chunks it has.
    ///
    /// # Errors
    /// If the target exists and must not be replaced, is in use or too small, or would be a file in `/dev`, the system refuses, or
    /// the operation is stopped.
    pub fn open(
        path: &Path,
        manifest: impl Into<Arc<Manifest>>,
        config: &TargetConfig,
        progress: &Progress,
    ) -> Result<Self, ImageError> {
        let manifest = manifest.into();
        let path = resolved(path);
        let found = path.symlink_metadata().ok();
        if let Some(found) = found.as_ref().filter(|it| it.file_type().is_block_device()) {
            let file = unused_device(&path, found.rdev(), &manifest, config)?;
            let start = device::partition_start(found.rdev());
            let mut this = Self::open_device(Box::new(file), path, manifest, config, progress)?;
            this.expander = this.expander.partition_start(start);
            return Ok(this);
        }
        if found.as_ref().is_none_or(std::fs::Metadata::is_file) && is_among_devices(&path) {
            return Err(ImageError::NoDevice(path));
        }
        Self::open_file(Named::new(&path)?, manifest, config, progress)
    }

    /// Opens or creates a target of this name in a directory, which may be one of another file system than the operating system's. `path`
    /// is used in messages only.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_in(
        folder: Arc<dyn Directory>,
        name: &OsStr,
        path: PathBuf,
        manifest: impl Into<Arc<Manifest>>,
        config: &TargetConfig,
        progress: &Progress,
    ) -> Result<Self, ImageError> {
        let named = Named { folder, name: name.to_owned(), path };
        Self::open_file(named, manifest.into(), config, progress)
    }

    /// Opens a device, or what is to be written like one: in place, whatever it holds, and at least as long as the image. `path`
    /// is used in messages only.
    ///
    /// # Errors
    /// If the system refuses, or the operation is stopped.
    pub fn open_device(
        file: Box<dyn DiskFile>,
        path: PathBuf,
        manifest: impl Into<Arc<Manifest>>,
        config: &TargetConfig,
        progress: &Progress,
    ) -> Result<Self, ImageError> {
        let manifest = manifest.into();
        let have = match config.scan_device {
            true => held(&*file, &path, &manifest, progress)?,
            false => Bitmap::new(manifest.chunks()),
        };
        let expander = Expander::new().map_err(ImageError::write(&path))?;
        let (place, zero_unused) = (Place::Device(file), config.zero_unused);
        Ok(Self { place, path, manifest, have, expander, zero_unused })
    }

    fn open_file(
        named: Named,
        manifest: Arc<Manifest>,
        config: &TargetConfig,
        progress: &Progress,
    ) -> Result<Self, ImageError> {
        let path = named.path.clone();
        let zero_unused = config.zero_unused;
        let expander = Expander::new().map_err(ImageError::write(&path))?;
        let old = match named.stat() {
            Some(found) if found.kind == FileKind::File => {
                let file = named.open(Open::Read).map_err(ImageError::read(&path))?;
                let have = held(&*file, &path, &manifest, progress)?;
                if have.is_full() && found.len == manifest.head().size {
                    let place = Place::Complete(file, named);
                    return Ok(Self { place, path, manifest, have, expander, zero_unused });
                }
                Some((file, have))
            }
            _ => None,
        };
        let part = Part::open(named, config.overwrite, config.image)?;
        let mut this = Self::resume(part, path, manifest, expander, progress)?;
        if let Some((file, have)) = old {
            this.copy(&*file, &have, progress)?;
        }
        Ok(this)
    }

    /// Opens the incomplete file with the chunks that an earlier attempt has left.
    fn resume(
        part: Part,
        path: PathBuf,
        manifest: Arc<Manifest>,
        expander: Expander,
        progress: &Progress,
    ) -> Result<Self, ImageError> {
        let claimed = Record::read(part.named(), manifest.root(), manifest.chunks());
        let mut have = match &claimed {
            Some(it) => scan_chunks(part.file(), part.path(), &manifest, &it.chunks, progress)?,
            None => Bitmap::new(manifest.chunks()),
        };
        let wrong = part.named().wrong();
        if claimed.is_some_and(|claimed| claimed.syncing) {
            write_again(part.file(), &manifest, &have).map_err(&wrong)?;
        }
        if have.is_empty() || clear(part.file(), &manifest, &have).is_err() {
            have = Bitmap::new(manifest.chunks());
            part.file().set_len(0).map_err(&wrong)?;
        }
        part.file().set_len(manifest.head().size).map_err(&wrong)?;
        let record = Record::create(part.named(), manifest.root(), &have).map_err(&wrong)?;
        let place = Place::Part(part, Box::new(record));
        Ok(Self { place, path, manifest, have, expander, zero_unused: false })
    }

    /// Copies chunks that an older file holds.
    fn copy(
        &mut self,
        old: &dyn DiskFile,
        held: &Bitmap<u32>,
        progress: &Progress,
    ) -> Result<(), ImageError> {
        let missing: Vec<_> = self.missing().filter(|chunk| held.contains(*chunk)).collect();
        progress.start(missing.iter().map(|chunk| self.manifest.data(*chunk)).sum());
        let mut buffer = Vec::new();
        for chunk in missing {
            if progress.is_stopped() {
                return Err(ImageError::Interrupted);
            }
            for extent in self.manifest.extents(chunk).iter().filter(|it| !it.zero) {
                let mut at = extent.start;
                let mut result = Ok(());
                let range = extent.start..extent.end();
                let read = crate::source::pieces(old, &range, &mut buffer, &mut |bytes| {
                    result = write_all_at(self.file(), bytes, at);
                    at += bytes.len() as u64;
                    result.is_ok()
                });
                read.map_err(ImageError::read(&self.path))?;
                result.map_err(|error| self.refused(error))?;
            }
            progress.advance(self.manifest.data(chunk));
            self.record(chunk)?;
        }
        Ok(())
    }

    /// Returns the manifest of the image.
    #[must_use]
    pub const fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// Returns the path of the file or device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the chunks that it has.
    #[must_use]
    pub const fn have(&self) -> &Bitmap<u32> {
        &self.have
    }

    /// Returns the chunks that it lacks, in ascending order.
    #[must_use]
    pub fn missing(&self) -> std::vec::IntoIter<u32> {
        self.have.missing().collect::<Vec<_>>().into_iter()
    }

    fn file(&self) -> &dyn DiskFile {
        match &self.place {
            Place::Part(part, _) => part.file(),
            Place::Device(file) | Place::Complete(file, _) => &**file,
        }
    }

    fn refused(&self, error: io::Error) -> ImageError {
        match &self.place {
            Place::Part(part, _) => part.named().wrong()(error),
            _ => ImageError::overwrite(&self.path)(error),
        }
    }

    /// Verifies the stored bytes of a chunk, expands them, and writes the content. A chunk that is there already is
    /// ignored.
    ///
    /// # Errors
    /// If the chunk is damaged, and then nothing was written (of an `.ndz` chunk that has the right hash and cannot be
    /// expanded, a part may be); or the system refuses.
    pub fn write(&mut self, chunk: u32, stored: &[u8]) -> Result<(), ImageError> {
        if self.have.contains(chunk) {
            return Ok(());
        }
        let damaged = |source| ImageError::Chunk { path: self.path.clone(), chunk, source };
        self.manifest.verify_chunk(chunk, stored).map_err(damaged)?;
        self.expand(chunk, stored)
    }

    /// Expands and writes a chunk that was verified when it arrived, like [`Self::write`].
    ///
    /// # Errors
    /// If the chunk cannot be expanded, or the system refuses.
    pub fn write_verified(&mut self, chunk: &StoredChunk) -> Result<(), ImageError> {
        if self.have.contains(chunk.number()) {
            return Ok(());
        }
        self.expand(chunk.number(), chunk.bytes())
    }

    fn expand(&mut self, chunk: u32, stored: &[u8]) -> Result<(), ImageError> {
        let device = match &self.place {
            Place::Device(file) => Some(&**file),
            // All that it does not have is a hole.
            Place::Part(..) | Place::Complete(..) => None,
        };
        let file: &dyn DiskFile = match &self.place {
            Place::Part(part, _) => part.file(),
            Place::Device(file) | Place::Complete(file, _) => &**file,
        };
        let mut sink = |offset, piece: Piece<'_>| match (piece, device) {
            (Piece::Data(bytes), _) => write_all_at(file, bytes, offset),
            (Piece::Zero(len), Some(device)) => device.zero(offset..offset + len),
            (Piece::Zero(_), None) => Ok(()),
        };
        let expanded = self.expander.expand_verified(&self.manifest, chunk, stored, &mut sink);
        match expanded {
            Ok(()) => self.record(chunk),
            Err(ChunkError::Sink(error)) => Err(self.refused(error)),
            Err(source) => Err(ImageError::Chunk { path: self.path.clone(), chunk, source }),
        }
    }

    fn record(&mut self, chunk: u32) -> Result<(), ImageError> {
        if let Place::Part(_, record) = &mut self.place
            && let Err(error) = record.add(chunk)
        {
            return Err(self.refused(error));
        }
        self.have.insert(chunk);
        Ok(())
    }

    /// Makes the stored bytes of a chunk from what was written, to serve them to others: `None` if the target does not have the
    /// chunk, if it is one of an `.ndz` file, or if this version of zstd compresses otherwise.
    ///
    /// # Errors
    /// If the target cannot be read.
    pub fn stored(&self, chunk: u32) -> Result<Option<Vec<u8>>, ImageError> {
        if !self.have.contains(chunk) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        let is_stored = stored(self.file(), &self.path, &self.manifest, chunk, &mut bytes)?;
        let is_intact = is_stored && self.manifest.verify_chunk(chunk, &bytes).is_ok();
        Ok(is_intact.then_some(bytes))
    }

    /// Opens a second handle, with which another thread makes stored chunks from what was written.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn reader(&self) -> Result<TargetReader, ImageError> {
        let file = self.file().duplicate().map_err(ImageError::read(&self.path))?;
        Ok(TargetReader { file, path: self.path.clone(), manifest: Arc::clone(&self.manifest) })
    }

    /// Completes the target: it is synced to the disk, and a file gets its name.
    ///
    /// # Errors
    /// If a chunk is missing, the system refuses, or the operation is stopped. What is written stays, and can be opened again.
    pub fn finish(mut self, progress: &Progress) -> Result<(), ImageError> {
        if let Some(chunk) = self.have.missing().next() {
            return Err(ImageError::Missing { path: self.path, chunk });
        }
        match &mut self.place {
            Place::Complete(file, named) => {
                let (part, root) = (named.suffixed(".part"), self.manifest.root());
                let finish = || {
                    // An attempt that was killed may have renamed it and not made the name permanent, nor given it its mode.
                    let was_killed = Record::read(&part, root, self.manifest.chunks()).is_some();
                    if was_killed && file.stat()?.mode == INCOMPLETE {
                        file.set_mode(new_mode())?;
                    }
                    file.sync()?;
                    named.folder.sync()?;
                    if !named.folder.is_in_place() {
                        return Err(PartError::Displaced.into());
                    }
                    if was_killed && part.stat().is_none() {
                        Record::remove_at(&part);
                    }
                    Ok(())
                };
                finish().map_err(named.wrong())
            }
            Place::Part(part, record) => {
                record.add_sync().map_err(part.named().wrong())?;
                part.finish(self.manifest.head().size)?;
                record.remove();
                Ok(())
            }
            Place::Device(file) => {
                if self.zero_unused {
                    zero_unused(&**file, &self.manifest, &self.path, progress)?;
                }
                file.sync().map_err(ImageError::overwrite(&self.path))
            }
        }
    }
}

/// Reads what was written to a target, also after the target is complete.
#[derive(Debug)]
pub struct TargetReader {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    manifest: Arc<Manifest>,
}

impl TargetReader {
    /// Returns the manifest of the image.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Replaces the content of `bytes` by the stored bytes of a chunk. They are to be verified ([`StoredChunk::verify`](crate::StoredChunk::verify)):
    /// those of a chunk that was not written are wrong. Returns `false` if the chunk cannot be compressed to the same bytes.
    ///
    /// # Errors
    /// If the target cannot be read.
    pub fn stored(&self, chunk: u32, bytes: &mut Vec<u8>) -> Result<bool, ImageError> {
        stored(&*self.file, &self.path, &self.manifest, chunk, bytes)
    }
}

/// Replaces the content of `bytes` by the stored bytes of a chunk, as they follow from the target. Raw ones are not verified.
fn stored(
    file: &dyn DiskFile,
    path: &Path,
    manifest: &Manifest,
    chunk: u32,
    bytes: &mut Vec<u8>,
) -> Result<bool, ImageError> {
    let data = manifest.data(chunk);
    let head = manifest.head();
    let codec = manifest.chunk(chunk).map(|chunk| chunk.codec);
    if codec.is_none() || head.level == 0 || data > u64::from(head.chunk_size) {
        return Ok(false);
    }
    bytes.resize(data as usize, 0);
    let mut rest = &mut bytes[..];
    for extent in manifest.extents(chunk).iter().filter(|it| !it.zero) {
        let (now, later) = rest.split_at_mut(extent.len as usize);
        read_exact_at(file, now, extent.start).map_err(ImageError::read(path))?;
        rest = later;
    }
    if codec == Some(Codec::Raw) {
        return Ok(true);
    }
    let compressed = recompress(manifest, chunk, bytes).map_err(ImageError::read(path))?;
    let is_equal = compressed.is_some();
    *bytes = compressed.unwrap_or_default();
    Ok(is_equal)
}

/// Returns which chunks are on the disk, of a file or device that others may have written.
fn held(
    file: &dyn DiskFile,
    path: &Path,
    manifest: &Manifest,
    progress: &Progress,
) -> Result<Bitmap<u32>, ImageError> {
    file.settle().map_err(ImageError::overwrite(path))?;
    let all: Vec<u32> = (0..manifest.chunks()).collect();
    scan_chunks(file, path, manifest, &all, progress)
}

/// Makes all of an incomplete file a hole, except the extents of the chunks that it has.
///
/// # Errors
/// If the file system cannot make holes.
fn clear(file: &dyn DiskFile, manifest: &Manifest, have: &Bitmap<u32>) -> io::Result<()> {
    let extents = have.iter().flat_map(|chunk| manifest.extents(chunk));
    let used = extents.map(|it| it.start..it.end()).collect();
    for gap in gaps(used, manifest.head().size) {
        file.punch(gap)?;
    }
    Ok(())
}

/// Writes what a file has of these chunks once more, because the system may believe that it is on the disk.
fn write_again(file: &dyn DiskFile, manifest: &Manifest, have: &Bitmap<u32>) -> io::Result<()> {
    let mut buffer = Vec::new();
    for extent in have.iter().flat_map(|chunk| manifest.extents(chunk)).filter(|it| !it.zero) {
        let mut at = extent.start;
        let mut result = Ok(());
        crate::source::pieces(file, &(extent.start..extent.end()), &mut buffer, &mut |bytes| {
            result = write_all_at(file, bytes, at);
            at += bytes.len() as u64;
            result.is_ok()
        })?;
        result?;
    }
    Ok(())
}

/// Overwrites what an image does not use of a device with zeros.
fn zero_unused(
    file: &dyn DiskFile,
    manifest: &Manifest,
    path: &Path,
    progress: &Progress,
) -> Result<(), ImageError> {
    /// The most that is overwritten between two looks at whether to stop.
    const STEP: u64 = 64 << 20;
    let unused = manifest.unused();
    progress.start(unused.iter().map(|range| range.end - range.start).sum());
    for range in unused {
        let mut at = range.start;
        while at < range.end {
            if progress.is_stopped() {
                return Err(ImageError::Interrupted);
            }
            let len = (range.end - at).min(STEP);
            file.zero(at..at + len).map_err(ImageError::overwrite(path))?;
            progress.advance(len);
            at += len;
        }
    }
    Ok(())
}

/// Whether a file would be created among the devices: in `/dev`, except for `/dev/shm`, which is for files. A mistyped name of a
/// device would otherwise fill memory, and look like success.
fn is_among_devices(path: &Path) -> bool {
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    let folder = resolved(folder.unwrap_or(Path::new(".")));
    folder.starts_with("/dev") && !folder.starts_with("/dev/shm")
}

/// Opens a device that nothing uses, exclusively.
fn unused_device(
    path: &Path,
    number: u64,
    manifest: &Manifest,
    config: &TargetConfig,
) -> Result<File, ImageError> {
    device::check_unused(path, number, device::Use::Any)?;
    if device::is_read_only(number) {
        return Err(ImageError::ReadOnly(path.to_owned()));
    }
    let file = device::open_exclusively(path, OpenOptions::new().read(true).write(true))?;
    let device_size = crate::source::size(&file).map_err(ImageError::read(path))?;
    let (image, sector_size) = (manifest.head().size, manifest.head().sector_size);
    if let (Some(image), Some(found)) = (sector_size, device::sector_size(&file))
        && image != found
        && !config.force_sector_size
    {
        return Err(ImageError::SectorSize { device: path.to_owned(), found, image });
    }
    match device_size >= image {
        true => Ok(file),
        false => Err(ImageError::TooSmall { device: path.to_owned(), device_size, image }),
    }
}
