//! Which chunks of an image a file or device already holds.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rackweave_core::Bitmap;
use rackweave_disk::DiskFile;
use rustix::fs::OFlags;

use crate::expand::content_hasher;
use crate::parallel::for_each_chunk;
use crate::source::{is_zero, pieces};
use crate::{ImageError, Manifest, Progress};

/// Returns the chunks whose content a file or device holds at the right place, whatever is in the image's unused ranges.
/// Reading it takes as long as reading the used part of the image.
///
/// # Errors
/// If it cannot be read, or the scan is interrupted. A file that is too short holds fewer chunks, which is no error.
pub fn scan(
    path: &Path,
    manifest: &Manifest,
    progress: &Progress,
) -> Result<Bitmap<u32>, ImageError> {
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
    let file = options.open(path).map_err(ImageError::read(path))?;
    let all: Vec<u32> = (0..manifest.chunks()).collect();
    scan_chunks(&file, path, manifest, &all, progress)
}

/// Returns which of these chunks a file holds.
pub(crate) fn scan_chunks(
    file: &dyn DiskFile,
    path: &Path,
    manifest: &Manifest,
    chunks: &[u32],
    progress: &Progress,
) -> Result<Bitmap<u32>, ImageError> {
    let len = |chunk: u32| manifest.extents(chunk).iter().map(|it| it.len).sum::<u64>();
    progress.start(chunks.iter().map(|chunk| len(*chunk)).sum());
    let held = for_each_chunk(
        chunks.len() as u32,
        progress,
        || Ok(Vec::new()),
        |buffer, at| {
            let chunk = chunks[at as usize];
            let held = holds(file, manifest, chunk, buffer).map_err(ImageError::read(path))?;
            progress.advance(len(chunk));
            Ok(held)
        },
    )?;
    let mut set = Bitmap::new(manifest.chunks());
    for (chunk, _) in chunks.iter().zip(held).filter(|(_, held)| *held) {
        set.insert(*chunk);
    }
    Ok(set)
}

fn holds(
    file: &dyn DiskFile,
    manifest: &Manifest,
    chunk: u32,
    buffer: &mut Vec<u8>,
) -> io::Result<bool> {
    let Some(described) = manifest.chunk(chunk) else { return Ok(false) };
    let mut hasher = content_hasher(manifest.extents(chunk));
    let mut zero = true;
    for extent in manifest.extents(chunk) {
        let range = extent.start..extent.end();
        if extent.zero && file.is_hole(range.clone()) {
            continue;
        }
        let read = pieces(file, &range, buffer, &mut |bytes| {
            if extent.zero {
                zero &= is_zero(bytes);
            } else {
                hasher.update(bytes);
            }
            zero
        });
        match read {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            other => other?,
        }
        if !zero {
            return Ok(false);
        }
    }
    Ok(*hasher.finalize().as_bytes() == described.content)
}
