//! Which bytes of a disk are unused: the free blocks of its ext4 file systems.
//!
//! Whatever is in doubt is used. A superblock is no proof: it stays when a disk is given to something else. So the partition
//! table must be understood in full, and nobody else may have left a mark.

mod ext4;
mod guid;
mod others;
mod partitions;

pub(crate) use self::guid::{GuidHeader, GuidTable};

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

    /// Returns the bytes of a logical sector; `None` if it is not known, as of a file.
    fn sector_size(&self) -> Option<u32> {
        None
    }
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

/// An open file or block device with its size and, of a device, the bytes of a logical sector.
pub(crate) struct OpenDisk<'a>(pub(crate) &'a File, pub(crate) u64, pub(crate) Option<u32>);

impl Disk for OpenDisk<'_> {
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn size(&self) -> u64 {
        self.1
    }

    fn sector_size(&self) -> Option<u32> {
        self.2
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
/// If the partition table is not understood in full, or the disk has marks of another owner, as half a sentence.
pub fn file_systems(disk: &dyn Disk) -> Result<Vec<FileSystem>, String> {
    let whole = 0..disk.size();
    let find = |range: Range<u64>, doubt: &dyn Fn() -> Result<(), String>| {
        let unused = ext4::unused(disk, &range)?;
        Some(FileSystem { range, unused: unused.and_then(|unused| doubt().map(|()| unused)) })
    };
    let alone = |range: &Range<u64>, except: &[Range<u64>]| {
        others::owner(disk, range, except)?.map_or(Ok(()), |owner| Err(marks_of(owner)))
    };
    let partitions = partitions::partitions(disk);
    let Some(partitions) = partitions.as_ref().ok().and_then(Option::as_ref) else {
        let table = || partitions.as_ref().map(|_| ()).map_err(|_| TABLE_TOO.to_owned());
        let found = find(whole.clone(), &|| table().and_then(|()| alone(&whole, &[])));
        return match (found, partitions) {
            (None, Err(why)) => Err(why),
            (found, _) => Ok(found.into_iter().collect()),
        };
    };
    if let Some(found) = find(whole.clone(), &|| Err(TABLE_TOO.to_owned())) {
        return Ok(vec![found]);
    }
    // What is in a partition is its own.
    let inside: Vec<_> = partitions.iter().map(|it| it.range.clone()).collect();
    let mut found = Vec::new();
    for partition in partitions {
        let range = &partition.range;
        let doubt = || {
            let mut boot = [0; 2];
            disk.read(&mut boot, range.start + 510).map_err(|error| error.to_string())?;
            match () {
                () if !partition.is_linux => {
                    Err("its partition has the type of something else".to_owned())
                }
                () if boot == [0x55, 0xaa] => Err(marks_of("a boot sector")),
                () => alone(range, &[]),
            }
        };
        found.extend(find(range.clone(), &doubt));
    }
    if !found.is_empty() {
        alone(&whole, &inside)?;
    }
    Ok(found)
}

/// Making a file system erases the table, but making a table leaves the superblock of a file system.
const TABLE_TOO: &str = "there is also a partition table, so that its superblock may be an old one: \
    wipefs shows all";

fn marks_of(owner: &str) -> String {
    format!(
        "there are also marks of {owner}, so that its superblock may be an old one: wipefs shows all"
    )
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |it| u16::from_le_bytes(*it))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |it| u32::from_le_bytes(*it))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |it| u64::from_le_bytes(*it))
}
