//! An `.ndz` file whose chunks arrive in any order from a network, without a manifest: what each chunk says of itself is checked.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use rackweave_disk::{read_exact_at, write_all_at};

use crate::image::ndz_chunk;
use crate::manifest::MAX_CHUNKS;
use crate::ndz::CHUNK;
use crate::part::{Named, Part, resolved};
use crate::{ChunkError, Image, ImageError, Progress};

/// An `.ndz` file that is being received. It gets its name when it is complete, and verified as a whole.
///
/// A chunk of Frisbee's names its number and its image, and its data have a checksum of zlib; with version 4 all of it has a SHA-1. Neither
/// proves who has made it.
#[derive(Debug)]
pub struct IncomingNdz {
    part: Part,
    chunks: OnceLock<u32>,
    /// The chunks that are written, in places by their number. A place is locked while a chunk is written.
    written: [Mutex<BTreeMap<u32, WrittenNdz>>; PLACES],
}

/// As many chunks can be written at a time.
const PLACES: usize = 16;

/// A chunk that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenNdz {
    /// The version of the format, 1 to 4.
    pub version: u8,
    /// Whether a SHA-1 was checked: without one header and regions have no checksum.
    pub has_sha1: bool,
}

impl IncomingNdz {
    /// Creates the file. [`Self::begin`] must be called before chunks are written.
    ///
    /// # Errors
    /// If the file exists and must not be replaced, or the system refuses.
    pub fn open(target: &Path, overwrite: bool) -> Result<Self, ImageError> {
        let part = Part::open(Named::new(&resolved(target))?, overwrite, None)?;
        // What an interrupted attempt has left may be of another image.
        part.file().set_len(0).map_err(ImageError::write(part.path()))?;
        Ok(Self { part, chunks: OnceLock::new(), written: Default::default() })
    }

    /// The image has this many chunks.
    ///
    /// # Errors
    /// If it cannot have so many, or the system refuses.
    pub fn begin(&self, chunks: u32) -> Result<(), ImageError> {
        let path = self.part.path();
        if chunks == 0 || chunks > MAX_CHUNKS {
            let why = format!("an image cannot have {chunks} chunks");
            return Err(ImageError::Ndz { path: path.to_owned(), why });
        }
        let chunks = *self.chunks.get_or_init(|| chunks);
        let length = u64::from(chunks) * CHUNK as u64;
        self.part.file().set_len(length).map_err(ImageError::write(path))
    }

    fn chunks(&self) -> u32 {
        self.chunks.get().copied().unwrap_or(0)
    }

    /// Checks the bytes of a chunk, with its padding, and writes them, unless the chunk is written: a file that was verified must not change
    /// any more.
    ///
    /// # Errors
    /// [`ImageError::Chunk`] if they are not this chunk of an image; or the system refuses.
    pub fn write(&self, chunk: u32, bytes: &[u8]) -> Result<WrittenNdz, ImageError> {
        let path = self.part.path();
        let wrong = |source| ImageError::Chunk { path: path.to_owned(), chunk, source };
        if chunk >= self.chunks() {
            return Err(wrong(ChunkError::Unknown));
        }
        if bytes.len() != CHUNK {
            return Err(wrong(ChunkError::Length { expected: CHUNK as u32, found: bytes.len() }));
        }
        let (header, _) = ndz_chunk(bytes, &mut Vec::new()).map_err(wrong)?;
        if header.index != chunk {
            let why = format!("it has the number {}", header.index);
            return Err(wrong(ChunkError::Ndz(why)));
        }
        let place = &self.written[chunk as usize % PLACES];
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(written) = place.get(&chunk) {
            return Ok(*written);
        }
        let at = u64::from(chunk) * CHUNK as u64;
        write_all_at(self.part.file(), bytes, at).map_err(ImageError::write(path))?;
        let has_sha1 = matches!(header.checksum, crate::ndz::Checksum::Sha1(_));
        let written = WrittenNdz { version: header.version, has_sha1 };
        place.insert(chunk, written);
        Ok(written)
    }

    /// Reads a chunk that was written, with its padding.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn read(&self, chunk: u32, bytes: &mut Vec<u8>) -> Result<(), ImageError> {
        bytes.resize(CHUNK, 0);
        let at = u64::from(chunk) * CHUNK as u64;
        read_exact_at(self.part.file(), bytes, at).map_err(ImageError::read(self.part.path()))
    }

    /// Reads the complete file, checks that its chunks make an image, and gives it its name.
    ///
    /// # Errors
    /// If they do not, or the system refuses.
    pub fn finish(&self, progress: &Progress) -> Result<Image, ImageError> {
        let image = Image::open(self.part.path(), progress)?;
        self.part.finish(u64::from(self.chunks()) * CHUNK as u64)?;
        Ok(image)
    }

    /// Removes what was written.
    pub fn abandon(&self) {
        self.part.abandon();
    }
}
