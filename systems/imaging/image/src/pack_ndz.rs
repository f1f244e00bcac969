//! Making an image in Frisbee's format.

use std::io;
use std::path::Path;

use rackweave_disk::{DiskFile, read_exact_at, write_all_at};

use crate::ndz::encode::{Encoder, seal};
use crate::ndz::{CHUNK, SECTOR};
use crate::pack::{Packing, unused};
use crate::part::{Named, Part, resolved};
use crate::source::Source;
use crate::{ImageError, Progress};

/// What [`pack_ndz`] made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedNdz {
    /// The size of the disk.
    pub size: u64,
    /// The number of chunks, of 1 MiB each.
    pub chunks: u32,
    /// What [`Packed::notes`](crate::Packed::notes) says.
    pub notes: Vec<String>,
}

/// How much of the source is read at a time.
const READ: u64 = 1 << 20;
/// The largest disk whose sectors have numbers.
const MOST: u64 = u32::MAX as u64 * SECTOR;

/// Makes an image in Frisbee's format (`.ndz`, version 4 with a SHA-1 for each chunk) of a regular file or a block device, as [`pack`]
/// makes one in Rackweave's. Of `packing` it uses what this format has; its level is that of zlib, 9 at most. One thread compresses, as how
/// much of the disk is in a chunk follows from how much fits.
///
/// The same source and options give the same bytes.
///
/// [`pack`]: crate::pack()
///
/// # Errors
/// If an option is invalid, the target exists, the source changes, the system refuses, or the operation is stopped.
pub fn pack_ndz(
    source: &Path,
    target: &Path,
    packing: &Packing,
    progress: &Progress,
) -> Result<PackedNdz, ImageError> {
    let source = Source::open(source, packing.live)?;
    if !packing.raw {
        source.check_raw()?;
    }
    let refused = |text: &str| Err(ImageError::Option(text.to_owned()));
    match source.size {
        0 => return refused("Frisbee's format has no image without content"),
        size if size > MOST => return refused("Frisbee's format has no sector beyond 2 TiB"),
        _ => {}
    }
    if !(1..=9).contains(&packing.level) {
        return refused("the compression level of Frisbee's format must be from 1 to 9");
    }
    let (unused, notes) = unused(&source, packing.skip_free)?;
    let unused = unused.unwrap_or_default();
    progress.start(source.size);
    let target = Named::new(&resolved(target))?;
    let part = Part::open(target, packing.overwrite, Some(source.id()?))?;
    let mut buffer = Vec::new();
    let chunks =
        write(part.file(), part.path(), u32::from(packing.level), source.size, |encoder| {
            let mut at = 0;
            while at < source.size {
                if progress.is_stopped() {
                    return Err(ImageError::Interrupted);
                }
                let range = at..(at + READ).min(source.size);
                let extents = source.read(&range, &unused, &mut buffer);
                let extents = extents.map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof => ImageError::Changed(source.path.clone()),
                    _ => ImageError::read(&source.path)(error),
                })?;
                // The end of the last sector is padding.
                buffer.resize(buffer.len().next_multiple_of(SECTOR as usize), 0);
                for extent in extents {
                    let start = (extent.start - range.start) as usize;
                    let end = start + extent.len.next_multiple_of(SECTOR) as usize;
                    let written = encoder.write(extent.start, &buffer[start..end]);
                    written.map_err(ImageError::write(part.path()))?;
                }
                progress.advance(range.end - range.start);
                at = range.end;
            }
            Ok(())
        });
    let chunks = chunks.and_then(|chunks| {
        source.check_unchanged()?;
        part.finish(u64::from(chunks) * CHUNK as u64)?;
        Ok(chunks)
    });
    if chunks.is_err() {
        part.abandon();
    }
    Ok(PackedNdz { size: source.size, chunks: chunks?, notes })
}

/// Writes chunks, and then what depends on all of them.
fn write(
    file: &dyn DiskFile,
    path: &Path,
    level: u32,
    size: u64,
    produce: impl FnOnce(&mut Encoder<'_>) -> Result<(), ImageError>,
) -> Result<u32, ImageError> {
    let wrong = ImageError::write(path);
    file.set_len(0).map_err(&wrong)?;
    let (mut hasher, mut at) = (blake3::Hasher::new(), 0);
    let mut sink = |chunk: &[u8]| {
        hasher.update(chunk);
        write_all_at(file, chunk, at)?;
        at += CHUNK as u64;
        Ok(())
    };
    let mut encoder = Encoder::new(level, &mut sink);
    produce(&mut encoder)?;
    encoder.finish(size).map_err(&wrong)?;
    let chunks = encoder.chunks();
    drop(encoder);
    // Chunks of another image must not pass for those of this one.
    let mut image_id = [0; 16];
    hasher.finalize_xof().fill(&mut image_id);
    let mut chunk = vec![0; CHUNK];
    for number in 0..u64::from(chunks) {
        let at = number * CHUNK as u64;
        read_exact_at(file, &mut chunk, at).map_err(ImageError::read(path))?;
        seal(&mut chunk, image_id);
        write_all_at(file, &chunk[..crate::ndz::HEADER_AREA], at).map_err(&wrong)?;
    }
    Ok(chunks)
}
