//! Sources and images for the tests.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rackweave_image::{Image, ImageError, Packing, Progress, Target, TargetConfig, pack};
use tempfile::TempDir;

/// Bytes that no compression shortens, different for each seed.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// Text that compresses well.
pub(crate) fn text(seed: u64, len: usize) -> Vec<u8> {
    let line = |number| format!("line {number} of {seed}\n").into_bytes();
    (0_u64..).flat_map(line).take(len).collect()
}

/// A sparse file with pieces at offsets.
pub(crate) fn sparse(path: &Path, size: u64, pieces: &[(u64, Vec<u8>)]) {
    let file = File::create(path).unwrap();
    file.set_len(size).unwrap();
    for (offset, bytes) in pieces {
        file.write_all_at(bytes, *offset).unwrap();
    }
}

/// A folder with a disk of 1.25 MiB, in chunks of 64 KiB, that has noise, text, short and long zeros, and holes.
pub(crate) struct Disk {
    pub(crate) folder: TempDir,
    pub(crate) disk: PathBuf,
    pub(crate) image: PathBuf,
}

pub(crate) const DISK: u64 = (5 << 18) + 1000;

impl Disk {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (disk, image) = (folder.path().join("disk"), folder.path().join("disk.rwi"));
        let pieces = [
            (0, noise(1, 100_000)),
            (150_000, text(2, 300_000)),
            (500_000, vec![0; 50_000]),
            (900_000, noise(3, 4096)),
            (DISK - 700, noise(4, 700)),
        ];
        sparse(&disk, DISK, &pieces);
        Self { folder, disk, image }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Packs the disk, and opens the image.
    pub(crate) fn pack(&self) -> Image {
        pack(&self.disk, &self.image, &packing(), &Progress::default()).unwrap();
        Image::open(&self.image, &Progress::default()).unwrap()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.disk).unwrap()
    }
}

pub(crate) fn packing() -> Packing {
    Packing { chunk_size: Some(64 << 10), threads: 2, ..Packing::new("test") }
}

/// Writes the missing chunks of an image to a target, and completes it. Returns how many there were.
pub(crate) fn unpack(
    image: &Image,
    path: &Path,
    config: &TargetConfig,
) -> Result<usize, ImageError> {
    let progress = Progress::default();
    let mut target = Target::open(path, image.manifest().clone(), config, &progress)?;
    let missing = target.missing();
    let count = missing.len();
    let mut stored = Vec::new();
    for chunk in missing.rev() {
        image.read(chunk, &mut stored)?;
        target.write(chunk, &stored)?;
    }
    target.finish(&progress)?;
    Ok(count)
}

/// Returns the bytes that a file occupies on the disk.
pub(crate) fn occupied(path: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(&path.metadata().unwrap()) * 512
}
