//! The file system as the writers of received files and images see it: the operations that decide what is left after a crash. The
//! code above runs on the operating system's files, or on simulated ones that lose what was not synced (`rackweave chaos`).
//!
//! [`Part`] is a file that is written aside and gets its name when it is whole.

mod container;
mod os;
mod part;

use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub use self::container::{Container, Stream, command, container};
pub use self::os::{open, open_existing};
pub use self::part::{INCOMPLETE, Part, PartError, is_incomplete, new_mode};

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// For reading.
    Read,
    /// For reading and writing.
    Update,
    /// For reading and writing; it is created with mode 0600 if there is none.
    UpdateOrCreate,
    /// It is created with mode 0600, for reading and writing; an existing file is an error.
    Create,
}

/// What a name refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, wherever it leads.
    SymbolicLink,
    /// Anything else, such as a device.
    Other,
}

/// The attributes of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// What it is.
    pub kind: FileKind,
    /// Its file system and its number there.
    pub id: (u64, u64),
    /// The length in bytes.
    pub len: u64,
    /// The permission bits.
    pub mode: u32,
    /// The time of the last modification: seconds and nanoseconds since 1970.
    pub modified: (i64, u32),
    /// The time of the last change of its bytes or attributes, which nobody can set: seconds and nanoseconds since 1970.
    pub changed: (i64, u32),
    /// Whether it belongs to the user of this process.
    pub is_own: bool,
    /// The numbers of the user and the group that it belongs to.
    pub owner: (u32, u32),
    /// The number of its names.
    pub names: u64,
}

/// A directory of a file system.
pub trait Directory: Debug + Send + Sync {
    /// Returns the same directory to be looked at as it is: nothing in it or below it gets another mode to be opened, not for a moment
    /// either.
    ///
    /// # Errors
    /// If the system refuses.
    fn as_is(&self) -> io::Result<Arc<dyn Directory>>;

    /// Opens the subdirectory of this name, and creates it if it does not exist.
    ///
    /// # Errors
    /// If the system refuses; [`io::ErrorKind::NotADirectory`] if the name is that of anything else, links included.
    fn subdir(&self, name: &OsStr) -> io::Result<Arc<dyn Directory>>;

    /// Returns the attributes of what has this name, without following links; `None` if nothing has it.
    fn stat(&self, name: &OsStr) -> Option<Stat>;

    /// Opens a regular file. One of this user is opened for reading whatever its mode, unless it is looked at [`as_is`](Self::as_is).
    ///
    /// # Errors
    /// If the system refuses, or the name is that of anything else.
    fn open(&self, name: &OsStr, how: Open) -> io::Result<Box<dyn DiskFile>>;

    /// Removes a file.
    ///
    /// # Errors
    /// If the system refuses, or there is none.
    fn remove(&self, name: &OsStr) -> io::Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// If the system refuses, or there is none; [`io::ErrorKind::DirectoryNotEmpty`] if something is in it.
    fn remove_directory(&self, name: &OsStr) -> io::Result<()>;

    /// Returns the names in it, in their order.
    ///
    /// # Errors
    /// If the system refuses.
    fn names(&self) -> io::Result<Vec<OsString>>;

    /// Renames a file in one step, replacing one that has the new name.
    ///
    /// # Errors
    /// If the system refuses; [`io::ErrorKind::AlreadyExists`] if the new name exists and `replace` is false.
    fn rename(&self, from: &OsStr, to: &OsStr, replace: bool) -> io::Result<()>;

    /// Whether the path by which the directory was opened still leads to it: it was neither removed nor renamed, and no directory above
    /// it was.
    fn is_in_place(&self) -> bool;

    /// Gives an open file of the same file system another name, which nothing has yet.
    ///
    /// # Errors
    /// If the system refuses, or the file system has no hard links; [`io::ErrorKind::AlreadyExists`] if the name is taken.
    fn link(&self, file: &dyn DiskFile, name: &OsStr) -> io::Result<()>;

    /// Creates a symbolic link with this text, which is not looked at.
    ///
    /// # Errors
    /// If the system refuses, or the file system has no symbolic links; [`io::ErrorKind::AlreadyExists`] if the name is taken.
    fn symlink(&self, target: &OsStr, name: &OsStr) -> io::Result<()>;

    /// Returns the text of the symbolic link of this name.
    ///
    /// # Errors
    /// If the system refuses, or the name is that of anything else.
    fn target(&self, name: &OsStr) -> io::Result<OsString>;

    /// Sets the time of the last modification of the symbolic link of this name, in seconds and nanoseconds since 1970.
    ///
    /// # Errors
    /// If the system refuses, or the name is that of anything else.
    fn set_link_modified(&self, name: &OsStr, modified: (i64, u32)) -> io::Result<()>;

    /// Gives the symbolic link of this name to a user and a group, by their numbers.
    ///
    /// # Errors
    /// If the system refuses, or has no owners.
    fn set_link_owner(&self, _name: &OsStr, _owner: (u32, u32)) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes names permanent: returns when a crash of the machine can no longer undo what was done in this directory.
    ///
    /// # Errors
    /// If the system refuses.
    fn sync(&self) -> io::Result<()>;

    /// Sets the permission bits of the directory.
    ///
    /// # Errors
    /// If the system refuses.
    fn set_mode(&self, mode: u32) -> io::Result<()>;

    /// Sets the permission bits and the time of the last modification of the directory.
    ///
    /// # Errors
    /// If the system refuses.
    fn set_attributes(&self, mode: u32, modified: (i64, u32)) -> io::Result<()>;

    /// Opens it as a file, which has attributes and no bytes.
    ///
    /// # Errors
    /// If the system refuses, or has no such attributes.
    fn handle(&self) -> io::Result<Box<dyn DiskFile>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns the number of bytes that this user can still write to the file system, if it is known.
    fn free(&self) -> Option<u64>;

    /// Whether this user may add and remove names in it, or may give itself the permission.
    fn may_change(&self) -> bool;

    /// Returns the number of the mount that it is on: a part of a file system that is mounted a second time has another one. 0 if the
    /// system does not tell.
    fn mount(&self) -> u64;
}

/// An open regular file.
pub trait DiskFile: Debug + Send + Sync {
    /// Opens a second handle of the same file.
    ///
    /// # Errors
    /// If the system refuses.
    fn duplicate(&self) -> io::Result<Box<dyn DiskFile>>;

    /// Makes a range a hole, which reads as zeros. The length does not change.
    ///
    /// # Errors
    /// If the file system has no holes.
    fn punch(&self, range: Range<u64>) -> io::Result<()>;

    /// Whether a range is a hole; false if it is not known.
    fn is_hole(&self, range: Range<u64>) -> bool;

    /// Reads bytes at an offset; returns how many, 0 at the end.
    ///
    /// # Errors
    /// If the system refuses.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes bytes at an offset; returns how many, which may be fewer than all.
    ///
    /// # Errors
    /// If the system refuses.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Cuts the file, or extends it with zeros.
    ///
    /// # Errors
    /// If the system refuses.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Returns the attributes.
    ///
    /// # Errors
    /// If the system refuses.
    fn stat(&self) -> io::Result<Stat>;

    /// Sets the permission bits.
    ///
    /// # Errors
    /// If the system refuses.
    fn set_mode(&self, mode: u32) -> io::Result<()>;

    /// Gives it to a user and a group, by their numbers.
    ///
    /// # Errors
    /// If the system refuses, or has no owners.
    fn set_owner(&self, _owner: (u32, u32)) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Sets the time of the last modification, in seconds and nanoseconds since 1970.
    ///
    /// # Errors
    /// If the system refuses.
    fn set_modified(&self, modified: (i64, u32)) -> io::Result<()>;

    /// Returns when a crash of the machine can no longer change the bytes and the length.
    ///
    /// # Errors
    /// If the system refuses, or could not write them.
    fn sync(&self) -> io::Result<()>;

    /// Syncs the file, and makes the system forget what it keeps of it in memory, so that reads are of what is on the disk.
    ///
    /// Whoever counts bytes as there that it has not written and synced itself calls this before it reads them. After a sync that
    /// failed, Linux shows lost pages as they were written, counts them as clean, and lets later syncs succeed, whichever process
    /// had written them. Pages that another process has mapped into its memory stay.
    ///
    /// # Errors
    /// If the system refuses, or could not write what was not on the disk.
    fn settle(&self) -> io::Result<()>;

    /// Overwrites a range with zeros.
    ///
    /// # Errors
    /// If the system refuses.
    fn zero(&self, range: Range<u64>) -> io::Result<()>;

    /// Returns the names, with their namespaces, and the values of the extended attributes that this user may read.
    ///
    /// # Errors
    /// If the system refuses, or the file system has none.
    fn attributes(&self) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Sets an extended attribute, or removes it.
    ///
    /// # Errors
    /// If the system refuses, or the file system has none.
    fn set_attribute(&self, _name: &[u8], _value: Option<&[u8]>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns the operating system's descriptor, if it has one.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Locks the file against other processes until it is closed or [`unlock`](Self::unlock)ed; returns false if another one holds the
    /// lock.
    fn lock(&self) -> bool;

    /// Ends the lock at once. Closing the file alone leaves it to a child process that has not begun its program yet, since that one has
    /// the file open too.
    fn unlock(&self);
}

/// Writes all bytes.
///
/// # Errors
/// If the system refuses.
pub fn write_all_at(file: &dyn DiskFile, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_at(bytes, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(len) => {
                bytes = &bytes[len..];
                at += len as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes zeros.
///
/// # Errors
/// If the system refuses.
pub fn write_zeros(file: &dyn DiskFile, range: Range<u64>) -> io::Result<()> {
    const ZEROS: &[u8] = &[0; 64 << 10];
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(ZEROS.len() as u64);
        write_all_at(file, &ZEROS[..len as usize], at)?;
        at += len;
    }
    Ok(())
}

/// Fills a buffer.
///
/// # Errors
/// If the system refuses, or the file ends before.
pub fn read_exact_at(file: &dyn DiskFile, mut buffer: &mut [u8], mut at: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        match file.read_at(buffer, at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => {
                buffer = &mut buffer[len..];
                at += len as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads a file from an offset on.
#[derive(Debug)]
pub struct Reading<'a>(pub &'a dyn DiskFile, pub u64);

impl io::Read for Reading<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.0.read_at(buffer, self.1)?;
        self.1 += len as u64;
        Ok(len)
    }
}

/// Writes a file from an offset on.
#[derive(Debug)]
pub struct Writing<'a>(pub &'a dyn DiskFile, pub u64);

impl io::Write for Writing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.0.write_at(bytes, self.1)?;
        self.1 += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
