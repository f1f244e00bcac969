//! What counts as a sync that has failed.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use super::super::folder::hashes_on_disk;
use crate::store::disk::{DiskFile, Stat};
use crate::store::{Cancel, Dir};

/// A file that shows other bytes once it was settled.
#[derive(Debug)]
struct Settling {
    file: File,
    /// Whether another program writes them; otherwise a sync has failed, and the file does not change.
    is_written: bool,
    settled: std::sync::atomic::AtomicBool,
}

impl DiskFile for Settling {
    fn duplicate(&self) -> io::Result<Box<dyn DiskFile>> {
        self.file.duplicate()
    }
    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        self.file.punch(range)
    }
    fn is_hole(&self, range: Range<u64>) -> bool {
        self.file.is_hole(range)
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = DiskFile::read_at(&self.file, buffer, offset)?;
        if self.settled.load(std::sync::atomic::Ordering::Relaxed) {
            buffer[..len].fill(0);
        }
        Ok(len)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        DiskFile::write_at(&self.file, bytes, offset)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        DiskFile::set_len(&self.file, len)
    }
    fn stat(&self) -> io::Result<Stat> {
        self.file.stat()
    }
    fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.file.set_mode(mode)
    }
    fn set_modified(&self, modified: (i64, u32)) -> io::Result<()> {
        DiskFile::set_modified(&self.file, modified)
    }
    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
    fn settle(&self) -> io::Result<()> {
        if self.is_written {
            self.file.write_all_at(b"other", 0)?;
            // A tick of the clock later than the file was created.
            DiskFile::set_modified(&self.file, (2000, 0))?;
        }
        self.settled.store(true, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }
    fn zero(&self, range: Range<u64>) -> io::Result<()> {
        self.file.zero(range)
    }
    fn lock(&self) -> bool {
        DiskFile::lock(&self.file)
    }
    fn unlock(&self) {
        DiskFile::unlock(&self.file);
    }
}

#[test]
fn a_file_that_another_program_changes_meanwhile_keeps_its_time() {
    for (is_written, expected) in [(true, 2000), (false, 0)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, b"shown").unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let file = Settling { file, is_written, settled: false.into() };
        let entry = Dir::open(folder.path()).unwrap().entry(OsStr::new("f"));
        let (shown, on_disk) = hashes_on_disk(&file, &entry, &Cancel::default()).unwrap();
        assert_eq!(shown, Some(*blake3::hash(b"shown").as_bytes()));
        assert!(on_disk != shown && on_disk.is_none() == is_written);
        assert_eq!(file.stat().unwrap().modified.0, expected);
    }
}
