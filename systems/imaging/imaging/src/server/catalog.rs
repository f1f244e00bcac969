//! The images of a server.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use rackweave_image::{Image, ImageError, Progress, StoredChunk, ndz};
use rackweave_swp2p::Shape;

use crate::buffers::Buffers;
use crate::status::{Listed, hex};

/// An image that is served.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) image: Image,
    /// The encoded manifest.
    pub(super) manifest: Bytes,
    pub(super) shape: Option<Shape>,
    /// Stored bytes of all chunks.
    pub(super) stored: u64,
    buffers: Buffers,
}

impl Entry {
    pub(super) fn name(&self) -> &str {
        &self.image.manifest().head().name
    }

    /// Returns the entry of the list that clients can ask for.
    pub(super) fn listed(&self) -> Listed {
        let manifest = self.image.manifest();
        Listed {
            name: self.name().to_owned(),
            root: hex(manifest.root()),
            chunks: manifest.chunks(),
            bytes: manifest.head().size,
            stored: self.stored,
            signed: manifest.signature().is_some(),
        }
    }

    /// Reads a chunk, and checks it: a damaged file must not be blamed on the network.
    pub(super) fn read(&self, chunk: u32) -> Result<StoredChunk, ImageError> {
        let len = self.image.manifest().chunk(chunk).map_or(0, |chunk| chunk.stored);
        let mut stored = self.buffers.take(len as usize);
        self.image.read(chunk, &mut stored)?;
        StoredChunk::verify(self.image.manifest(), chunk, stored.freeze()).map_err(|source| {
            ImageError::Chunk { path: self.image.path().to_owned(), chunk, source }
        })
    }

    /// Reads a chunk of an `.ndz` file with its padding, and checks it.
    pub(super) fn read_padded(&self, chunk: u32) -> Result<Bytes, ImageError> {
        let manifest = self.image.manifest();
        let mut padded = self.buffers.take(ndz::CHUNK);
        self.image.read_padded(chunk, &mut padded)?;
        let stored = manifest.chunk(chunk).map_or(0, |chunk| chunk.stored as usize);
        manifest.verify_chunk(chunk, padded.get(..stored).unwrap_or(&[])).map_err(|source| {
            ImageError::Chunk { path: self.image.path().to_owned(), chunk, source }
        })?;
        Ok(padded.freeze())
    }
}

/// Why images cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// An image cannot be opened.
    #[error("{0}")]
    Image(#[from] ImageError),
    /// A folder cannot be read.
    #[error("cannot read the folder {path}: {source}")]
    Folder {
        /// The folder, as given.
        path: PathBuf,
        /// The error of the system while its entries were read.
        source: std::io::Error,
    },
    /// A folder has no image.
    #[error("the folder {0} has no image: files named .rwi or .ndz")]
    Empty(PathBuf),
    /// A file is given twice, by itself or in a folder.
    #[error("the image {0} is given twice")]
    Twice(PathBuf),
    /// Two images have the same name.
    #[error(
        "{first} and {second} both contain an image named `{name}`: pack one of them with another --name"
    )]
    SameName {
        /// The name in the manifests of both.
        name: String,
        /// The file that was opened before.
        first: PathBuf,
        /// The file that is refused.
        second: PathBuf,
    },
}

/// Open images by the number that clients get.
#[derive(Debug, Default)]
pub struct Catalog {
    images: BTreeMap<u32, Arc<Entry>>,
}

impl Catalog {
    /// Opens image files, and all files named .rwi or .ndz in folders.
    ///
    /// # Errors
    /// If one of them is not an image, or two have the same name.
    pub fn open(paths: &[PathBuf], progress: &Progress) -> Result<Self, CatalogError> {
        let mut this = Self::default();
        for path in paths {
            if !path.is_dir() {
                this.add(path, progress)?;
                continue;
            }
            let found = images_in(path)
                .map_err(|source| CatalogError::Folder { path: path.clone(), source })?;
            if found.is_empty() {
                return Err(CatalogError::Empty(path.clone()));
            }
            for file in found {
                this.add(&file, progress)?;
            }
        }
        Ok(this)
    }

    fn add(&mut self, path: &Path, progress: &Progress) -> Result<(), CatalogError> {
        let image = Image::open(path, progress)?;
        let manifest = image.manifest();
        if let Some(other) = self.named(&manifest.head().name) {
            let other_path = other.1.image.path().canonicalize();
            if other_path.is_ok_and(|other| path.canonicalize().is_ok_and(|path| path == other)) {
                return Err(CatalogError::Twice(path.to_owned()));
            }
            return Err(CatalogError::SameName {
                name: manifest.head().name.clone(),
                first: other.1.image.path().to_owned(),
                second: path.to_owned(),
            });
        }
        let root = manifest.root();
        let mut number = u32::from_le_bytes([root[0], root[1], root[2], root[3]]).max(1);
        // Two roots begin alike; the numbers stay the same as long as the images do.
        while self.images.contains_key(&number) {
            number = number.wrapping_add(1).max(1);
        }
        let chunks = u64::from(manifest.chunks());
        let shape =
            Shape::new(chunks * u64::from(manifest.head().chunk_size), manifest.head().chunk_size);
        let entry = Entry {
            manifest: manifest.encode().into(),
            shape,
            stored: (0..manifest.chunks())
                .filter_map(|chunk| manifest.chunk(chunk))
                .map(|chunk| u64::from(chunk.stored))
                .sum(),
            buffers: Buffers::default(),
            image,
        };
        self.images.insert(number, Arc::new(entry));
        Ok(())
    }

    pub(super) fn named(&self, name: &str) -> Option<(u32, &Arc<Entry>)> {
        let found = self.images.iter().find(|(_, entry)| entry.name() == name);
        found.map(|(number, entry)| (*number, entry))
    }

    pub(super) fn get(&self, number: u32) -> Option<&Arc<Entry>> {
        self.images.get(&number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Arc<Entry>)> {
        self.images.iter().map(|(number, entry)| (*number, entry))
    }

    /// Returns the names of all images, and how many chunks each has.
    pub fn names(&self) -> impl Iterator<Item = (&str, u32)> {
        self.images.values().map(|entry| (entry.name(), entry.image.manifest().chunks()))
    }
}

fn images_in(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in folder.read_dir()? {
        let path = entry?.path();
        let extension = path.extension().and_then(|it| it.to_str());
        if matches!(extension, Some("rwi" | "ndz")) && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
