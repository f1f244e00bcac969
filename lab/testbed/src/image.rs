//! The image of a run on the testbed: generated once, and packed as `rackweave image pack` does.

use std::fs::{DirBuilder, File};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rackweave_core::{HostId, Rng};
use rackweave_image::{Packing, Progress, pack};
use rackweave_lab::study::image::ImageConfig;

use super::TestbedError;
use super::cleanup::RunEntry;

/// The name of the image.
pub(super) const NAME: &str = "image";

/// A folder in memory, if there is room. A disk would limit hosts that are simulated without one.
const MEMORY: &str = "/dev/shm";

/// The folder of a run, with its image and the clients' targets. It is removed on drop.
#[derive(Debug)]
pub(super) struct ImageFolder(PathBuf);

impl ImageFolder {
    /// Generates and packs the image of a point. The run's journal entry already names the folder.
    pub(super) fn make(
        entry: &RunEntry,
        image: &ImageConfig,
        seed: u64,
    ) -> Result<Self, TestbedError> {
        let bytes = image.image.bytes();
        // The content, the image file, and a target for each client.
        let needed = bytes.saturating_mul(image.clients.len() as u64 + 2);
        let folders = folders(&entry.prefix());
        let has_room = |folder: &&PathBuf| {
            let room = folder.parent().and_then(|parent| rustix::fs::statvfs(parent).ok());
            // Some of it stays free for others.
            room.is_some_and(|room| room.f_bavail.saturating_mul(room.f_frsize) / 5 * 4 > needed)
        };
        let Some(folder) = folders.iter().find(has_room) else {
            return Err(TestbedError::Image(format!(
                "the image and the targets of {} clients need {needed} bytes, and neither {MEMORY} nor the folder \
                 for temporary files has room for them",
                image.clients.len()
            )));
        };
        let failed = |error: io::Error| {
            TestbedError::Image(format!("cannot write in `{}`: {error}", folder.display()))
        };
        DirBuilder::new().mode(0o700).create(folder).map_err(failed)?;
        // On an error, this is dropped and removes what was created.
        let this = Self(folder.clone());
        generate(&content(folder), bytes, seed).map_err(failed)?;
        let packing = Packing { chunk_size: Some(image.image.chunk_bytes()), ..Packing::new(NAME) };
        pack(&content(folder), &packed(folder), &packing, &Progress::default())
            .map_err(|error| TestbedError::Image(error.to_string()))?;
        Ok(this)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ImageFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The folders that a run may have, the preferred one first.
fn folders(prefix: &str) -> [PathBuf; 2] {
    let name = format!("{prefix}-image");
    [Path::new(MEMORY).join(&name), std::env::temp_dir().join(&name)]
}

/// Removes the folder of a run that was killed.
pub(super) fn remove(prefix: &str) {
    for folder in folders(prefix) {
        let _ = std::fs::remove_dir_all(folder);
    }
}

/// The file with the image's content, for comparison.
pub(super) fn content(folder: &Path) -> PathBuf {
    folder.join("content")
}

/// The image file.
pub(super) fn packed(folder: &Path) -> PathBuf {
    folder.join("image.rwi")
}

/// The file to which a client writes.
pub(super) fn target(folder: &Path, client: HostId) -> PathBuf {
    folder.join(format!("host-{}", client.0))
}

/// Writes random bytes, which cannot be compressed, so that as many bytes cross the links as in the simulator.
fn generate(path: &Path, bytes: u64, seed: u64) -> io::Result<()> {
    let mut rng = Rng::stream(seed, 0, 0, "testbed image");
    let mut file = BufWriter::new(File::create_new(path)?);
    let mut left = bytes;
    while left > 0 {
        let word = rng.next_u64().to_le_bytes();
        let most = left.min(word.len() as u64) as usize;
        file.write_all(&word[..most])?;
        left -= most as u64;
    }
    file.flush()
}
