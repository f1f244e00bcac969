//! Which chunks an incomplete file has, in a file beside it.
//!
//! ```text
//!  0  a line of text that names the format and its version, padded with zeros to 64 bytes
//! 64  the root hash of the image (32)
//! 96  a record for each chunk that was written: its number (4), zeros (4), a checksum (8)
//! ```
//!
//! A record is appended when its chunk is written, and is not synced to the disk: it is a claim, and the chunk is read and
//! hashed when the file is opened again. A record whose checksum does not match is ignored.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::part::{is_foreign, suffixed};
use crate::{ChunkSet, Hash};

const MAGIC: &[u8] = b"rackweave image: chunks of an incomplete file, version 1\n";
const HEADER: usize = 96;
const RECORD: usize = 16;

#[derive(Debug)]
pub(super) struct Record {
    file: File,
    path: PathBuf,
    root: Hash,
}

fn header(root: &Hash) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..MAGIC.len()].copy_from_slice(MAGIC);
    header[64..].copy_from_slice(root);
    header
}

fn record(root: &Hash, chunk: u32) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record[..4].copy_from_slice(&chunk.to_le_bytes());
    let sum = blake3::keyed_hash(root, &record[..8]);
    record[8..].copy_from_slice(&sum.as_bytes()[..8]);
    record
}

impl Record {
    /// Returns the chunks that an earlier attempt claims to have written, if there was one for this image.
    pub(super) fn read(part: &Path, root: &Hash, chunks: u32) -> Option<Vec<u32>> {
        let mut options = OpenOptions::new();
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let file = options.read(true).custom_flags(flags).open(suffixed(part, ".chunks")).ok()?;
        // Each chunk is recorded once, so more is none of ours.
        let limit = HEADER as u64 + u64::from(chunks) * RECORD as u64;
        let mut bytes = Vec::new();
        file.take(limit).read_to_end(&mut bytes).ok()?;
        let records = bytes.strip_prefix(&header(root))?;
        let claimed = records.chunks_exact(RECORD).filter_map(|found| {
            let chunk = u32::from_le_bytes(*found.first_chunk()?);
            (chunk < chunks && found == record(root, chunk)).then_some(chunk)
        });
        let mut claimed: Vec<u32> = claimed.collect();
        claimed.sort_unstable();
        claimed.dedup();
        Some(claimed)
    }

    /// Starts a record with the chunks that the file has.
    pub(super) fn create(part: &Path, root: &Hash, have: &ChunkSet) -> io::Result<Self> {
        let path = suffixed(part, ".chunks");
        let mut bytes = header(root).to_vec();
        for chunk in 0..have.as_bytes().len() as u32 * 8 {
            if have.contains(chunk) {
                bytes.extend_from_slice(&record(root, chunk));
            }
        }
        let mut options = OpenOptions::new();
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        options
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(flags.bits() as i32);
        let mut file = options.open(&path)?;
        if is_foreign(&file.metadata()?) {
            let text = format!("{} exists already, and is not Rackweave's", path.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        file.set_len(0)?;
        file.write_all(&bytes)?;
        Ok(Self { file, path, root: *root })
    }

    pub(super) fn add(&mut self, chunk: u32) -> io::Result<()> {
        self.file.write_all(&record(&self.root, chunk))
    }

    pub(super) fn remove(&self) {
        // Without the incomplete file it claims nothing.
        let _ = std::fs::remove_file(&self.path);
    }
}
