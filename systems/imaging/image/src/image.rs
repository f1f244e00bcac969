//! Image files of either format, as a server reads them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rackweave_disk::container;

use crate::expand::content_hasher;
use crate::manifest::{Codec, Format, HEADER, Head, Index, MAX_CHUNKS, NewChunk};
use crate::parallel::for_each_chunk;
use crate::part::id;
use crate::{ChunkError, Expander, ImageError, Manifest, ManifestError, Progress, ndz};

/// An open image file.
#[derive(Debug)]
pub struct Image {
    file: File,
    path: PathBuf,
    manifest: Manifest,
}

/// What [`Image::verify`] has checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The number of chunks.
    pub chunks: u32,
    /// The bytes of data that they expand to, without zeros.
    pub data: u64,
    /// The number of chunks with an RSA signature of Frisbee's, which is not checked.
    pub unchecked_signatures: u32,
}

impl Image {
    /// Opens an image in either format, which its first bytes indicate.
    ///
    /// Of an `.rwi` file, header, index, root and signature are read and checked. An `.ndz` file has no index, so it is read
    /// and expanded once, on all cores, to compute its manifest; that is not stored.
    ///
    /// # Errors
    /// If it is not an image or damaged, or the system refuses.
    pub fn open(path: &Path, progress: &Progress) -> Result<Self, ImageError> {
        let wrong = ImageError::read(path);
        let not_image = |source| ImageError::Manifest { path: path.to_owned(), source };
        let found = path.metadata().map_err(&wrong)?;
        if !found.is_file() {
            return Err(ImageError::Kind {
                path: path.to_owned(),
                kind: crate::source::kind(&found),
            });
        }
        let file = File::open(path).map_err(&wrong)?;
        let mut header = [0; HEADER];
        let known = found.len().min(HEADER as u64) as usize;
        file.read_exact_at(&mut header[..known], 0).map_err(&wrong)?;
        if ndz::ChunkHeader::is_magic(&header) {
            let manifest = ndz_manifest(&file, path, found.len(), progress)?;
            return Ok(Self { file, path: path.to_owned(), manifest });
        }
        let tail = match Manifest::tail(&header, found.len()) {
            Err(ManifestError::Magic) => {
                let other = container(&file, found.len()).map_err(&wrong)?;
                let what = other.map(|it| it.name);
                return Err(ImageError::NoImage { path: path.to_owned(), what });
            }
            other => other.map_err(not_image)?,
        };
        let mut encoded = header.to_vec();
        // The file has this length, but it may be a hole.
        let room = encoded.try_reserve_exact((tail.end - tail.start) as usize);
        room.map_err(|_| wrong(io::ErrorKind::OutOfMemory.into()))?;
        encoded.resize(HEADER + (tail.end - tail.start) as usize, 0);
        file.read_exact_at(&mut encoded[HEADER..], tail.start).map_err(&wrong)?;
        let manifest = Manifest::decode(&encoded).map_err(not_image)?;
        Ok(Self { file, path: path.to_owned(), manifest })
    }

    /// Returns the manifest.
    #[must_use]
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the path by which it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file, in which stored chunks are at [`Chunk::offset`](crate::Chunk).
    #[must_use]
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Returns device and inode of the file, for [`TargetConfig::image`](crate::TargetConfig).
    ///
    /// # Errors
    /// If the system refuses.
    pub fn id(&self) -> Result<(u64, u64), ImageError> {
        self.file.metadata().map(|found| id(&found)).map_err(ImageError::read(&self.path))
    }

    /// Makes the error of a chunk.
    fn damaged(&self, chunk: u32) -> impl Fn(ChunkError) -> ImageError {
        let path = self.path.clone();
        move |source| ImageError::Chunk { path: path.clone(), chunk, source }
    }

    /// Reads the stored bytes of a chunk. They are not checked: the receiver does.
    ///
    /// # Errors
    /// If the image has no such chunk, or the system refuses.
    pub fn read(&self, chunk: u32, stored: &mut Vec<u8>) -> Result<(), ImageError> {
        let described = self.manifest.chunk(chunk).ok_or(ChunkError::Unknown);
        let described = described.map_err(self.damaged(chunk))?;
        stored.resize(described.stored as usize, 0);
        self.file.read_exact_at(stored, described.offset).map_err(ImageError::read(&self.path))
    }

    /// Reads a chunk of an `.ndz` file with its padding: [`ndz::CHUNK`] bytes. The first [`Chunk::stored`](crate::Chunk) are those
    /// of [`Self::read`].
    ///
    /// # Errors
    /// If the image is no `.ndz` file or has no such chunk, or the system refuses.
    pub fn read_padded(&self, chunk: u32, padded: &mut Vec<u8>) -> Result<(), ImageError> {
        let is_ndz = self.manifest.head().format == Format::Ndz;
        let described = self.manifest.chunk(chunk).filter(|_| is_ndz).ok_or(ChunkError::Unknown);
        let described = described.map_err(self.damaged(chunk))?;
        padded.resize(ndz::CHUNK, 0);
        self.file.read_exact_at(padded, described.offset).map_err(ImageError::read(&self.path))
    }

    /// Reads and expands all chunks on all cores, and checks them as a receiver would. [`Self::open`] has already checked header, index,
    /// root and signature, but not whose signature it is ([`Manifest::require_signer`]).
    ///
    /// # Errors
    /// The first chunk that is damaged; or the system refuses.
    pub fn verify(&self, progress: &Progress) -> Result<Verified, ImageError> {
        let chunks = self.manifest.chunks();
        progress.start((0..chunks).map(|chunk| self.manifest.data(chunk)).sum());
        let state = || Ok((Expander::new().map_err(ImageError::read(&self.path))?, Vec::new()));
        let verified = for_each_chunk(chunks, progress, state, |(expander, stored), chunk| {
            self.read(chunk, stored)?;
            self.manifest.verify_chunk(chunk, stored).map_err(self.damaged(chunk))?;
            let expanded = expander.expand(&self.manifest, chunk, stored, &mut |_, _| Ok(()));
            expanded.map_err(self.damaged(chunk))?;
            let data = self.manifest.data(chunk);
            progress.advance(data);
            if self.manifest.head().format == Format::Rackweave {
                return Ok((data, false));
            }
            let header = ndz::ChunkHeader::decode(stored).map_err(ChunkError::Ndz);
            let header = header.map_err(self.damaged(chunk))?;
            Ok((data, header.checksum == ndz::Checksum::Signed))
        })?;
        Ok(Verified {
            chunks,
            data: verified.iter().map(|(data, _)| data).sum(),
            unchecked_signatures: verified.iter().filter(|(_, signed)| *signed).count() as u32,
        })
    }
}

/// Computes the manifest of an `.ndz` file.
fn ndz_manifest(
    file: &File,
    path: &Path,
    length: u64,
    progress: &Progress,
) -> Result<Manifest, ImageError> {
    let wrong = |why: String| ImageError::Ndz { path: path.to_owned(), why };
    let chunks = length / ndz::CHUNK as u64;
    if !length.is_multiple_of(ndz::CHUNK as u64) || chunks == 0 {
        return Err(wrong(format!(
            "it has {length} bytes, which is not a multiple of 1 MiB: it is truncated"
        )));
    }
    let chunks = u32::try_from(chunks).ok().filter(|chunks| *chunks <= MAX_CHUNKS);
    let chunks = chunks.ok_or_else(|| wrong("it has more than 2^24 chunks".into()))?;
    progress.start(length);
    let made = for_each_chunk(
        chunks,
        progress,
        || Ok((Vec::new(), Vec::new())),
        |(stored, room), chunk| {
            stored.resize(ndz::CHUNK, 0);
            let offset = u64::from(chunk) * ndz::CHUNK as u64;
            file.read_exact_at(stored, offset).map_err(ImageError::read(path))?;
            let described = ndz_chunk(stored, room);
            progress.advance(ndz::CHUNK as u64);
            described.map_err(|source| ImageError::Chunk { path: path.to_owned(), chunk, source })
        },
    )?;
    let (mut index, mut size) = (Index::default(), 0);
    for (number, (header, chunk)) in (0..).zip(&made) {
        if header.index != number {
            return Err(wrong(format!("chunk {number} has the number {}", header.index)));
        }
        if header.image_id != made[0].0.image_id {
            return Err(wrong(format!("chunk {number} belongs to another image than chunk 0")));
        }
        size = size.max(header.end().map_err(wrong)?);
        index.push(u64::from(number) * ndz::CHUNK as u64, chunk);
    }
    let mut name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.retain(|character| !character.is_control());
    name.truncate(name.floor_char_boundary(crate::manifest::MAX_NAME));
    let head = Head {
        format: Format::Ndz,
        chunk_size: ndz::CHUNK as u32,
        size,
        chunks,
        level: 0,
        skipped_free: true,
        sector_size: None,
        name,
    };
    let checked = Manifest::decode(&index.finish(head, None).encode());
    checked.map_err(|source: ManifestError| ImageError::Manifest { path: path.to_owned(), source })
}

/// Checks and describes a chunk of an `.ndz` file.
pub(crate) fn ndz_chunk(
    stored: &[u8],
    room: &mut Vec<u8>,
) -> Result<(ndz::ChunkHeader, NewChunk), ChunkError> {
    let header = ndz::ChunkHeader::decode(stored).map_err(ChunkError::Ndz)?;
    let stored = &stored[..header.stored()];
    header.verify_checksum(stored).map_err(ChunkError::Ndz)?;
    let extents = header.extents().map_err(ChunkError::Ndz)?;
    let mut content = content_hasher(&extents);
    header.expand(stored, 0, room, &mut |_, bytes| {
        content.update(bytes);
        Ok(())
    })?;
    let chunk = NewChunk {
        codec: Codec::Ndz,
        stored: stored.len() as u32,
        hash: *blake3::hash(stored).as_bytes(),
        content: *content.finalize().as_bytes(),
        extents,
    };
    Ok((header, chunk))
}
