//! Which bytes of a disk are unused: the free blocks of its ext4 file systems.

mod ext4;
mod partitions;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

/// A disk or a partition that can be read anywhere.
pub trait Disk {
    /// Fills the buffer with the bytes at an offset.
    ///
    /// # Errors
    /// If the system refuses, or the disk ends before.
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Returns the size in bytes.
    fn size(&self) -> u64;
}

impl Disk for &[u8] {
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = usize::try_from(offset).ok().and_then(|at| self.get(at..)?.get(..buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn size(&self) -> u64 {
        self.len() as u64
    }
}

/// An open file or block device with its size.
pub(crate) struct OpenDisk<'a>(pub(crate) &'a File, pub(crate) u64);

impl Disk for OpenDisk<'_> {
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn size(&self) -> u64 {
        self.1
    }
}

/// An ext4 file system (or ext2, ext3) on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// Where it begins and ends on the disk; the whole disk, or a partition.
    pub range: Range<u64>,
    /// The ranges that are unused, in ascending order; or why they cannot be determined, as half a sentence.
    pub unused: Result<Vec<Range<u64>>, String>,
}

/// Finds the ext4 file systems of a disk: one that fills it, or those in the partitions of its GPT or MBR table.
///
/// # Errors
/// If the partition table is damaged, as half a sentence.
pub fn file_systems(disk: &dyn Disk) -> Result<Vec<FileSystem>, String> {
    let whole = 0..disk.size();
    let find = |range: Range<u64>| {
        let unused = ext4::unused(disk, &range)?;
        Some(FileSystem { range, unused })
    };
    let partitions = partitions::partitions(disk);
    if let Some(found) = find(whole) {
        // Making a file system erases the table, but making a table leaves the superblock of a file system.
        let unused = match partitions {
            Ok(none) if none.is_empty() => found.unused,
            _ => Err("there is also a partition table, so that its superblock may be an old one: \
                wipefs shows all"
                .to_owned()),
        };
        return Ok(vec![FileSystem { unused, ..found }]);
    }
    Ok(partitions?.into_iter().filter_map(find).collect())
}
