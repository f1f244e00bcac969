//! What an image is made from: a regular file or a block device, read without its holes and unused ranges.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rackweave_disk::{DiskFile, command, container};
use rustix::fs::{OFlags, SeekFrom, seek};
use rustix::io::Errno;

use crate::free::{GuidHeader, OpenDisk};
use crate::manifest::{Extent, HEADER, MAGIC};
use crate::part::{FileId, id};
use crate::target::device;
use crate::{ImageError, PIECE, ndz};

/// The blocks in which zeros are found.
const BLOCK: usize = 4096;

/// Shorter runs of zeros or unused blocks between data are stored with the data, as zeros: they compress to almost
/// nothing, and writes stay long. The length is that of Frisbee (64 sectors).
const SHORT: u64 = 32 << 10;

/// Returns what a path names, for messages.
pub(crate) fn kind(found: &Metadata) -> &'static str {
    let kind = found.file_type();
    match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_file() => "a regular file",
        () if kind.is_block_device() => "a block device",
        () if kind.is_char_device() => "a character device",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () => "a link",
    }
}

/// Returns the size of a regular file or block device.
pub(crate) fn size(file: &File) -> io::Result<u64> {
    Ok(seek(file, SeekFrom::End(0))?)
}

/// An open regular file or block device.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    pub(crate) size: u64,
    /// The bytes of a logical sector, of a device.
    pub(crate) sector_size: Option<u32>,
    /// Whether it has holes that can be found.
    seekable: bool,
    stamp: Stamp,
}

/// Size, and the times of content and inode. A program can set the former, but not the latter.
type Stamp = (u64, [i64; 4]);

fn stamp(found: &Metadata) -> Stamp {
    (found.len(), [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()])
}

impl Source {
    /// Opens it for reading. A device that is mounted for writing changes meanwhile, so it is refused unless it is `live`.
    pub(crate) fn open(path: &Path, live: bool) -> Result<Self, ImageError> {
        let wrong = ImageError::read(path);
        // Opening must not wait for the other end of a pipe.
        let mut options = OpenOptions::new();
        let options = options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
        let file = options.open(path).map_err(&wrong)?;
        let found = file.metadata().map_err(&wrong)?;
        let kind = kind(&found);
        let seekable = found.is_file();
        if !seekable && !found.file_type().is_block_device() {
            return Err(ImageError::Kind { path: path.to_owned(), kind });
        }
        if !seekable && !live {
            device::check_unused(path, found.rdev(), device::Use::Writing)?;
            // A mount in another namespace is known to the kernel only.
            if device::check_unused(path, found.rdev(), device::Use::Any).is_ok() {
                device::open_exclusively(path, OpenOptions::new().read(true))?;
            }
        }
        let size = size(&file).map_err(&wrong)?;
        if !seekable && size == 0 {
            return Err(wrong(io::Error::other("the device has no medium")));
        }
        let sector_size = (!seekable).then(|| device::sector_size(&file)).flatten();
        Ok(Self { file, path: path.to_owned(), size, sector_size, seekable, stamp: stamp(&found) })
    }

    /// Returns the disk, to look at file systems and tables.
    pub(crate) const fn disk(&self) -> OpenDisk<'_> {
        OpenDisk(&self.file, self.size, self.sector_size)
    }

    /// Returns the bytes of a logical sector that places on the disk are counted in, if it is known: for the table that it has, whatever
    /// device it was copied to.
    pub(crate) fn disk_sector_size(&self) -> Option<u32> {
        let table = GuidHeader::primary(&self.disk());
        table.map(|it| it.sector as u32).or(self.sector_size)
    }

    /// Checks that the bytes are those of a disk, not of a file that holds one.
    pub(crate) fn check_raw(&self) -> Result<(), ImageError> {
        let wrong = ImageError::read(&self.path);
        let mut start = [0; HEADER];
        let known = self.size.min(HEADER as u64) as usize;
        self.file.read_exact_at(&mut start[..known], 0).map_err(&wrong)?;
        // The command does not overwrite what it reads.
        let to = if self.path.ends_with("disk.img") { "raw.img" } else { "disk.img" };
        let other = |what, convert| {
            let convert = command(convert, &self.path, to.as_ref());
            Err(ImageError::Container { path: self.path.clone(), what, convert })
        };
        if ndz::ChunkHeader::is_magic(&start) || start.starts_with(&MAGIC) {
            return other("an image already", "rackweave image unpack FILE --to TO");
        }
        match container(&self.file, self.size).map_err(&wrong)? {
            Some(found) => other(found.name, found.convert),
            None => Ok(()),
        }
    }

    /// Identifies the file.
    pub(crate) fn id(&self) -> Result<FileId, ImageError> {
        self.file.metadata().map(|found| id(&found)).map_err(ImageError::read(&self.path))
    }

    /// Checks that a regular file has not changed since it was opened.
    pub(crate) fn check_unchanged(&self) -> Result<(), ImageError> {
        let found = self.file.metadata().map_err(ImageError::read(&self.path))?;
        match !self.seekable || stamp(&found) == self.stamp {
            true => Ok(()),
            false => Err(ImageError::Changed(self.path.clone())),
        }
    }

    /// Returns the first range at or after an offset that is not a hole.
    fn data(&self, from: u64, end: u64) -> io::Result<Option<Range<u64>>> {
        if !self.seekable {
            return Ok((from < end).then_some(from..end));
        }
        let start = match seek(&self.file, SeekFrom::Data(from)) {
            Ok(start) if start < end => start,
            Ok(_) | Err(Errno::NXIO) => return Ok(None),
            // The file system does not know its holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok((from < end).then_some(from..end)),
            Err(error) => return Err(error.into()),
        };
        let hole = seek(&self.file, SeekFrom::Hole(start))?;
        Ok((start < end).then(|| start..hole.min(end).max(start + 1)))
    }

    /// Reads a range of the image into the buffer, where holes and unused ranges become zeros; the latter are not read.
    /// Returns the extents.
    pub(crate) fn read(
        &self,
        range: &Range<u64>,
        unused: &[Range<u64>],
        buffer: &mut Vec<u8>,
    ) -> io::Result<Vec<Extent>> {
        buffer.clear();
        buffer.resize((range.end - range.start) as usize, 0);
        let first = unused.partition_point(|it| it.end <= range.start);
        let unused = &unused[first..];
        let unused = &unused[..unused.partition_point(|it| it.start < range.end)];
        let mut at = range.start;
        while let Some(data) = self.data(at, range.end)? {
            at = data.end;
            for used in without(&data, unused) {
                let place = (used.start - range.start) as usize..(used.end - range.start) as usize;
                self.file.read_exact_at(&mut buffer[place], used.start)?;
            }
            if at >= range.end {
                break;
            }
        }
        Ok(extents(range, unused, buffer))
    }
}

/// Iterates over a range without the given ranges, which are in ascending order.
fn without<'a>(
    range: &Range<u64>,
    holes: &'a [Range<u64>],
) -> impl Iterator<Item = Range<u64>> + use<'a> {
    let Range { start, end } = *range;
    let starts = std::iter::once(start).chain(holes.iter().map(move |it| it.end.clamp(start, end)));
    let ends = holes.iter().map(move |it| it.start.clamp(start, end)).chain([end]);
    starts.zip(ends).map(|(start, end)| start..end).filter(|it| !it.is_empty())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Data,
    Zero,
    Unused,
}

/// Returns the extents of a range with these bytes.
fn extents(range: &Range<u64>, unused: &[Range<u64>], bytes: &[u8]) -> Vec<Extent> {
    let kind = |(number, block): (usize, &[u8])| {
        let start = range.start + (number * BLOCK) as u64;
        let end = start + block.len() as u64;
        let kind = match () {
            () if unused.iter().any(|it| it.start <= start && end <= it.end) => Block::Unused,
            () if is_zero(block) => Block::Zero,
            () => Block::Data,
        };
        (kind, start..end)
    };
    let mut runs: Vec<(Block, Range<u64>)> = Vec::new();
    for (kind, block) in bytes.chunks(BLOCK).enumerate().map(kind) {
        match runs.last_mut() {
            Some((last, run)) if *last == kind => run.end = block.end,
            _ => runs.push((kind, block)),
        }
    }
    let mut extents: Vec<Extent> = Vec::new();
    for (at, (kind, run)) in runs.iter().enumerate() {
        // The runs without data around this one, up to the next data.
        let before = runs[..at].iter().rposition(|it| it.0 == Block::Data);
        let after = runs[at..].iter().position(|it| it.0 == Block::Data).map(|it| it + at);
        let filled = before
            .zip(after)
            .is_some_and(|(before, after)| runs[after].1.start - runs[before].1.end < SHORT);
        let zero = match kind {
            Block::Data => false,
            _ if filled => false,
            Block::Zero => true,
            Block::Unused => continue,
        };
        match extents.last_mut() {
            Some(last) if last.end() == run.start && last.zero == zero => {
                last.len += run.end - run.start;
            }
            _ => extents.push(Extent { start: run.start, len: run.end - run.start, zero }),
        }
    }
    extents
}

/// Returns whether all bytes are zero.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    // Words are compared many at a time.
    let (words, rest) = bytes.as_chunks::<64>();
    words.iter().all(|word| *word == [0; 64]) && rest.iter().all(|byte| *byte == 0)
}

/// Calls a function for pieces of a range of a file.
pub(crate) fn pieces(
    file: &dyn DiskFile,
    range: &Range<u64>,
    buffer: &mut Vec<u8>,
    each: &mut dyn FnMut(&[u8]) -> bool,
) -> io::Result<()> {
    buffer.resize(PIECE, 0);
    let mut at = range.start;
    while at < range.end {
        let piece = &mut buffer[..(range.end - at).min(PIECE as u64) as usize];
        rackweave_disk::read_exact_at(file, piece, at)?;
        if !each(piece) {
            break;
        }
        at += piece.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_found_although_the_time_was_set_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::write(&path, [1; 100]).unwrap();
        let source = Source::open(&path, false).unwrap();
        source.check_unchanged().unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let before = file.metadata().unwrap();
        // The clock of the file system has steps of some milliseconds.
        while stamp(&file.metadata().unwrap()) == stamp(&before) {
            file.write_all_at(&[2], 50).unwrap();
            file.set_modified(before.modified().unwrap()).unwrap();
        }
        assert_eq!(file.metadata().unwrap().modified().unwrap(), before.modified().unwrap());
        assert!(matches!(source.check_unchanged(), Err(ImageError::Changed(_))));
    }

    fn extent(start: u64, len: u64, zero: bool) -> Extent {
        Extent { start: start * 4096, len: len * 4096, zero }
    }

    #[test]
    fn blocks_become_data_zeros_and_gaps() {
        let mut bytes = vec![0; 40 * BLOCK];
        let start = 100 * BLOCK as u64;
        let range = start..start + bytes.len() as u64;
        assert_eq!(extents(&range, &[], &bytes), [extent(100, 40, true)]);
        // Seven blocks are too short for a gap, eight are not.
        for block in [0, 8, 17, 39] {
            bytes[block * BLOCK + 5] = 1;
        }
        let expected = [
            extent(100, 9, false),
            extent(109, 8, true),
            extent(117, 1, false),
            extent(118, 21, true),
            extent(139, 1, false),
        ];
        assert_eq!(extents(&range, &[], &bytes), expected);
        // Unused blocks are in no extent, unless they are few and between data.
        let block = |at: u64| start + at * BLOCK as u64;
        let unused = [block(2)..block(4), block(9)..block(12), block(30)..block(39) + 1];
        let expected = [
            extent(100, 9, false),
            extent(112, 5, true),
            extent(117, 1, false),
            extent(118, 12, true),
            extent(139, 1, false),
        ];
        assert_eq!(extents(&range, &unused, &bytes), expected);
        let all = 0..u64::MAX;
        assert_eq!(extents(&range, &[all], &bytes), []);
    }

    #[test]
    fn a_block_that_ends_the_image_may_be_short() {
        let mut bytes = vec![0; BLOCK + 3];
        bytes[BLOCK + 2] = 1;
        let expected = [extent(0, 1, true), Extent { start: 4096, len: 3, zero: false }];
        assert_eq!(extents(&(0..bytes.len() as u64), &[], &bytes), expected);
        assert!(is_zero(&[]) && is_zero(&[0; 200]) && !is_zero(&[0, 1]) && !is_zero(&bytes));
    }

    #[test]
    fn what_is_left_of_a_range() {
        let left: Vec<_> = without(&(10..20), &[0..3, 8..11, 14..15, 19..30]).collect();
        assert_eq!(left, [11..14, 15..19]);
        assert!(without(&(10..20), &[5..15, 15..25]).next().is_none());
        assert!(without(&(10..20), &[]).eq(std::iter::once(10..20)));
    }
}
