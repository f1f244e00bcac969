//! Why an image cannot be packed, read or written.

use std::io;
use std::path::{Path, PathBuf};

use crate::{ChunkError, ManifestError};

/// Why an operation on an image failed. Each message is a sentence for an operator.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The system refused to read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file or device.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The system refused to write, for another reason than a full disk.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file or device.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The disk, or the user's quota of it, is full.
    #[error("the disk is full: cannot write {}{}", path.display(), free.map_or_else(String::new, |free| format!(", and {free} bytes are free")))]
    Full {
        /// The file that cannot be written.
        path: PathBuf,
        /// The number of bytes that are free, if it is known.
        free: Option<u64>,
    },
    /// The file would exceed a limit of the process or of the file system.
    #[error("{0} would be larger than the file system or `ulimit -f` allows")]
    TooLarge(PathBuf),
    /// The target exists and must not be replaced.
    #[error("{0} exists already: use --overwrite to replace it")]
    Exists(PathBuf),
    /// The target would be a new file among the devices, where its name is that of a device that is not there.
    #[error("there is no device {0}, and no file is created there")]
    NoDevice(PathBuf),
    /// The target, or the name under which it is written aside, is the file that is read.
    #[error("{0} is the file that is read: choose another name")]
    Same(PathBuf),
    /// Another process writes the same file.
    #[error("another process is writing {0}")]
    Busy(PathBuf),
    /// The source is not a regular file or block device.
    #[error(
        "{path} is {kind}: an image is made from, or written to, a regular file or a block device"
    )]
    Kind {
        /// The path that was given.
        path: PathBuf,
        /// The kind of file at the path, such as "a directory".
        kind: &'static str,
    },
    /// The source is not a disk, but a file that holds one.
    #[error(
        "{path} is {what}, not the disk itself: make that with `{convert}`, or pack the file itself with --raw"
    )]
    Container {
        /// The source.
        path: PathBuf,
        /// What it is, such as "a qcow2 disk".
        what: &'static str,
        /// The command that makes the disk of it.
        convert: String,
    },
    /// The file is not an image.
    #[error("{path} is not an image{}: `rackweave image pack` makes one of a disk", what.map_or_else(String::new, |it| format!(", but {it}")))]
    NoImage {
        /// The file.
        path: PathBuf,
        /// What it is, such as "a qcow2 disk", if that is known.
        what: Option<&'static str>,
    },
    /// The source changed while it was read.
    #[error(
        "{0} changed while it was read, so the image would be inconsistent; nothing was written"
    )]
    Changed(PathBuf),
    /// The device, or a part of it, is used by the system.
    #[error("{device} is in use: {why}")]
    InUse {
        /// The device.
        device: PathBuf,
        /// Who uses it, as half a sentence.
        why: String,
    },
    /// The image does not fit on the device.
    #[error("the image has {image} bytes, but {} only {device_size}", device.display())]
    TooSmall {
        /// The device.
        device: PathBuf,
        /// The size of the device in bytes.
        device_size: u64,
        /// The size of the image in bytes.
        image: u64,
    },
    /// The device does not accept writes.
    #[error("{0} is read-only: `blockdev --setrw` or the device's own switch permits writing")]
    ReadOnly(PathBuf),
    /// The sectors of the device have another size than those of the disk that the image was made of.
    #[error("the image is of a disk with sectors of {image} bytes, and those of {} have {found}: its partitions would be in wrong places, and it would not boot; --force-sector-size writes it nevertheless", device.display())]
    SectorSize {
        /// The device.
        device: PathBuf,
        /// The bytes of its sectors.
        found: u32,
        /// Those of the image.
        image: u32,
    },
    /// The copy of the device's partition table was to be moved to its end, which would destroy something.
    #[error("the copy of the partition table of {} stays where it is, and nothing was changed: {why}", device.display())]
    PartitionTable {
        /// The device.
        device: PathBuf,
        /// Why, as half a sentence.
        why: String,
    },
    /// The file is not an image, or its header, index or footer is damaged.
    #[error("{path}: {source}")]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: ManifestError,
    },
    /// The chunks of an `.ndz` file contradict each other.
    #[error("{path}: {why}")]
    Ndz {
        /// The file.
        path: PathBuf,
        /// What is wrong, as a sentence.
        why: String,
    },
    /// A chunk is damaged, or could not be written.
    #[error("chunk {chunk} of {path}: {source}")]
    Chunk {
        /// The file.
        path: PathBuf,
        /// The number of the chunk, from 0.
        chunk: u32,
        /// What is wrong.
        source: ChunkError,
    },
    /// The target was to be completed, but a chunk is missing.
    #[error("{path} is not complete: chunk {chunk} is missing")]
    Missing {
        /// The target.
        path: PathBuf,
        /// The number of the first missing chunk.
        chunk: u32,
    },
    /// The unused blocks of a file system were to be skipped, but cannot be determined.
    #[error("the unused blocks of {path} cannot be determined: {why}")]
    Free {
        /// The source.
        path: PathBuf,
        /// Why, as half a sentence.
        why: String,
    },
    /// An option has a value that no image can have.
    #[error("{0}")]
    Option(String),
    /// [`Progress::stop`](crate::Progress::stop) was called.
    #[error("interrupted")]
    Interrupted,
}

impl ImageError {
    /// Makes the error of a failed read.
    pub(crate) fn read(path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| {
            let source = match source.kind() {
                kind @ io::ErrorKind::UnexpectedEof => {
                    io::Error::new(kind, "the file is too short")
                }
                _ => source,
            };
            Self::Read { path: path.clone(), source }
        }
    }

    /// Makes the error of a failed write.
    pub(crate) fn write(path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.to_owned();
        let free = {
            let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new(".")).to_owned();
            move || {
                let disk = rustix::fs::statvfs(&folder).ok()?;
                Some(disk.f_bavail.saturating_mul(disk.f_frsize))
            }
        };
        move |source| Self::of_write(&path, source, &free)
    }

    /// Makes the error of a failed write to what has its space already, a device or a complete file: what is free in its folder
    /// says nothing of it.
    pub(crate) fn overwrite(path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::of_write(&path, source, || None)
    }

    /// Makes the error of a failed write; `free` returns how many bytes are free where the file is, if it is known.
    pub(crate) fn of_write(
        path: &Path,
        source: io::Error,
        free: impl FnOnce() -> Option<u64>,
    ) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::Full { path, free: free() }
            }
            io::ErrorKind::FileTooLarge => Self::TooLarge(path),
            _ => Self::Write { path, source },
        }
    }
}
