//! Files that are written aside and get their name when they are whole.

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::Arc;

use crate::{Directory, DiskFile, Open, Stat};

/// The mode of an incomplete file, by which a later attempt recognises it.
pub const INCOMPLETE: u32 = 0o600;

/// The longest target name that [`Part::create`] repeats in the name of its file. Names of Linux have 255 bytes at most.
const LONGEST: usize = 200;

/// A file that is written under a name of its own, and gets its final name when it is whole.
///
/// The caller writes through [`file`](Self::file) at any places and in any order; what it knows of what is written is its own (a table of
/// hashes, a record of chunks). The part only has the life of the file:
///
/// - [`open`](Self::open) continues what an earlier attempt has left under a fixed name, or [`create`](Self::create) takes a name
///   that nobody has;
/// - [`publish`](Self::publish) syncs the file, checks that it is still the file of that name, renames it, and syncs the directory.
///
/// What holds then:
///
/// - *A crash*, of the process or of the machine, before `publish`: the target is what it was before. The part of `open` is there with what
///   reached the disk, which the next attempt has to verify. That of `create` stays as a file that nobody needs, if no
///   destructor ran.
/// - *A crash during `publish`*: the target is what it was before, or the whole file. With `sync`, no third state is
///   possible, because the bytes are on the disk before the rename; without it a machine that loses power may leave a
///   target with missing bytes.
/// - *After `publish` with `sync`*: no crash takes away bytes or name.
/// - *A full disk* is an error of the write or of the sync. The part stays as it is, and can be opened again.
/// - *A sync that fails* ([`PartError::Unsynced`]): Linux reports it once and counts the lost pages as clean, so that a later sync
///   succeeds without them. The caller writes all bytes again, or cuts the file.
/// - *Two processes*, one name: the second `open` is [`PartError::Busy`] while the first has the file, by an advisory lock that ends
///   with the process. File systems without locks do not refuse the second one. Parts of `create` never meet, and the target is that of
///   the last one to publish, whole in any case.
/// - *Other programs* do not heed the lock. A part that was removed, renamed or replaced, or that is too short in the end, is not
///   published, nor one whose folder was renamed ([`PartError::Displaced`], [`PartError::Length`]). What they write into it meanwhile, or cut and is written again
///   behind the cut, is not noticed: the bytes are not read once more. One that belongs to somebody else is not continued
///   ([`PartError::Foreign`]).
///
/// Permission bits are the caller's: it sets them before `publish`, so that the target never has others, or afterwards, so that a part always has
/// those of an incomplete file ([`INCOMPLETE`]).
#[derive(Debug)]
pub struct Part {
    folder: Arc<dyn Directory>,
    name: OsString,
    file: Box<dyn DiskFile>,
    /// Whether nobody continues it.
    is_temporary: bool,
}

/// Why there is no part, or it does not get its name.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    /// Another process writes it, or has just given it its name.
    #[error("another process is writing it")]
    Busy,
    /// A file that no earlier attempt has left has the name.
    #[error("it exists already, and is not an incomplete file of Rackweave")]
    Foreign,
    /// The name is not that of the part any more, or the path to its folder leads elsewhere.
    #[error(
        "it, or its folder, was removed or renamed while it was written, or another program has replaced it"
    )]
    Displaced,
    /// It does not have the length that was written.
    #[error("it has {found} bytes in place of {expected}: another process has changed it")]
    Length {
        /// The length of the file.
        found: u64,
        /// The length that it should have.
        expected: u64,
    },
    /// The target exists, and is not to be replaced.
    #[error("the file exists already")]
    Exists,
    /// The file could not be synced: it has its old name, and bytes that were written are perhaps on no disk, whatever later syncs say.
    #[error(transparent)]
    Unsynced(io::Error),
    /// The file has its new name, but the directory could not be synced: a crash of the machine may undo it.
    #[error(transparent)]
    Unsettled(io::Error),
    /// The system refused something else.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<PartError> for io::Error {
    fn from(error: PartError) -> Self {
        let kind = match error {
            PartError::Unsynced(error) | PartError::Unsettled(error) | PartError::System(error) => {
                return error;
            }
            PartError::Busy => io::ErrorKind::ResourceBusy,
            PartError::Foreign | PartError::Exists => io::ErrorKind::AlreadyExists,
            PartError::Displaced => io::ErrorKind::NotFound,
            PartError::Length { .. } => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// Returns whether an earlier attempt of this user can have left a file: it belongs to the user, so that nobody else writes to it
/// meanwhile, has no second name, and is empty or has the mode of an incomplete file.
#[must_use]
pub const fn is_incomplete(found: &Stat) -> bool {
    found.is_own && found.names == 1 && (found.len == 0 || found.mode == INCOMPLETE)
}

/// Returns the permission bits of a new file of this process.
#[must_use]
pub fn new_mode() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    let mask = mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok());
    // Without /proc, nobody else may read the file.
    0o666 & !mask.unwrap_or(0o077)
}

impl Part {
    /// Opens the file of this name with what an earlier attempt has left in it, or creates it, and locks it. With `is_known`, the
    /// caller knows that an attempt has left it, whatever its mode. One that belongs to somebody else or has a second name is then
    /// replaced by an empty file: its owner may write to it, and its other name would change with it. The file has the mode of an
    /// incomplete one afterwards.
    ///
    /// # Errors
    /// [`PartError::Busy`], [`PartError::Foreign`], or [`PartError::System`] if the name is that of no file or the system refuses.
    pub fn open(
        folder: Arc<dyn Directory>,
        name: &OsStr,
        is_known: bool,
    ) -> Result<Self, PartError> {
        let file = match folder.open(name, Open::UpdateOrCreate) {
            // An attempt was interrupted between setting a read-only mode and the rename.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let is_left = |file: &dyn DiskFile| {
                    is_known || file.stat().is_ok_and(|found| is_incomplete(&found))
                };
                let left = folder.open(name, Open::Read).ok().filter(|file| is_left(&**file));
                left.ok_or(error)?.set_mode(INCOMPLETE)?;
                folder.open(name, Open::UpdateOrCreate)?
            }
            other => other?,
        };
        let mut part = Self { folder, name: name.to_owned(), file, is_temporary: false };
        if !part.file.lock() {
            return Err(PartError::Busy);
        }
        // Between opening and locking, another process may have completed the file.
        if !part.is_named() {
            return Err(PartError::Busy);
        }
        let mut found = part.file.stat()?;
        if !is_known && !is_incomplete(&found) {
            return Err(PartError::Foreign);
        }
        if !(found.is_own && found.names == 1) {
            part.folder.remove(name)?;
            part.file = part.folder.open(name, Open::Create)?;
            if !part.file.lock() {
                return Err(PartError::Busy);
            }
            found = part.file.stat()?;
        }
        if found.mode != INCOMPLETE {
            part.file.set_mode(INCOMPLETE)?;
        }
        Ok(part)
    }

    /// Creates a file for a target under a name that nobody has. It is removed when the part is dropped without having been published.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn create(folder: Arc<dyn Directory>, target: &OsStr) -> io::Result<Self> {
        let target = if target.len() <= LONGEST { target } else { OsStr::new("rackweave") };
        let mut number = 0_u32;
        loop {
            let mut name = OsString::from(".");
            name.push(target);
            name.push(format!(".{}-{number}.part", std::process::id()));
            match folder.open(&name, Open::Create) {
                Ok(file) => return Ok(Self { folder, name, file, is_temporary: true }),
                // Another part of this process, or what a killed one of the same number has left.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the file.
    #[must_use]
    pub fn file(&self) -> &dyn DiskFile {
        &*self.file
    }

    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Returns whether the name is that of this file; not any more after [`publish`](Self::publish).
    #[must_use]
    pub fn is_named(&self) -> bool {
        let open = self.file.stat().map(|found| found.id);
        let named = self.folder.stat(&self.name);
        named.is_some_and(|named| open.is_ok_and(|open| named.id == open))
    }

    /// Does all of [`publish`](Self::publish) that can fail for lack of room or because of other programs: a rename remains.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub fn prepare(&self, length: Option<u64>, sync: bool) -> Result<(), PartError> {
        if sync {
            self.file.sync().map_err(PartError::Unsynced)?;
        }
        if let Some(expected) = length {
            let found = self.file.stat()?.len;
            if found != expected {
                return Err(PartError::Length { found, expected });
            }
        }
        // If it was removed, the name may be that of another attempt's file, which is incomplete.
        // A folder that has another name now is not the one that was asked for.
        match self.is_named() && self.folder.is_in_place() {
            true => Ok(()),
            false => Err(PartError::Displaced),
        }
    }

    /// Gives the file its final name, in the same directory: if it has this length, and replacing a file of that name only if `replace`
    /// says so. With `sync` no crash undoes it, see [`Part`].
    ///
    /// # Errors
    /// If the file has changed since it was written, the target exists, or the system refuses. Only after
    /// [`PartError::Unsettled`] it has its new name.
    pub fn publish(
        &self,
        target: &OsStr,
        replace: bool,
        length: Option<u64>,
        sync: bool,
    ) -> Result<(), PartError> {
        self.prepare(length, sync)?;
        self.folder.rename(&self.name, target, replace).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => PartError::Exists,
            _ => PartError::System(error),
        })?;
        match sync {
            true => self.folder.sync().map_err(PartError::Unsettled),
            false => Ok(()),
        }
    }

    /// Removes the file, if the name is still its own.
    pub fn abandon(&self) {
        if self.is_named() {
            // If it cannot be removed, the next attempt continues it.
            let _ = self.folder.remove(&self.name);
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.is_temporary {
            self.abandon();
        }
        self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::*;
    use crate::{open_existing, write_all_at};

    fn part(folder: &Path) -> Result<Part, PartError> {
        Part::open(open_existing(folder).unwrap(), "x.part".as_ref(), false)
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_part_is_continued_and_gets_its_name_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let first = part(folder.path()).unwrap();
        write_all_at(first.file(), b"abc", 0).unwrap();
        assert!(matches!(part(folder.path()), Err(PartError::Busy)), "it is locked");
        drop(first);
        let second = part(folder.path()).unwrap();
        assert_eq!(
            (second.file().stat().unwrap().len, names(folder.path())),
            (3, vec!["x.part".into()])
        );
        let wrong = second.publish("x".as_ref(), false, Some(4), true);
        assert!(matches!(wrong, Err(PartError::Length { found: 3, expected: 4 })), "{wrong:?}");
        second.publish("x".as_ref(), false, Some(3), true).unwrap();
        assert!(!second.is_named());
        // A second file of the name replaces the first one only on request.
        let third = part(folder.path()).unwrap();
        assert!(matches!(third.publish("x".as_ref(), false, None, false), Err(PartError::Exists)));
        assert_eq!(std::fs::read(folder.path().join("x")).unwrap(), b"abc");
        third.publish("x".as_ref(), true, None, false).unwrap();
        third.abandon();
        assert_eq!(
            (std::fs::read(folder.path().join("x")).unwrap(), names(folder.path())),
            (vec![], vec!["x".into()])
        );
    }

    #[test]
    fn a_part_is_free_at_once_though_a_starting_program_has_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let first = part(folder.path()).unwrap();
        // What a process has between fork and exec.
        let inherited = first.file().descriptor().unwrap().try_clone_to_owned().unwrap();
        drop(first);
        assert!(part(folder.path()).is_ok());
        drop(inherited);
    }

    #[test]
    fn a_file_that_no_attempt_has_left_is_not_continued() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.part");
        std::fs::write(&path, "other").unwrap();
        assert!(matches!(part(folder.path()), Err(PartError::Foreign)), "it has another mode");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::hard_link(&path, folder.path().join("second")).unwrap();
        assert!(matches!(part(folder.path()), Err(PartError::Foreign)), "it has another name");
        std::fs::remove_file(folder.path().join("second")).unwrap();
        drop(part(folder.path()).unwrap());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
        let known = Part::open(open_existing(folder.path()).unwrap(), "x.part".as_ref(), true);
        assert_eq!(known.unwrap().file().stat().unwrap().len, 5);
        // What has a second name is replaced, and not written: neither with content, nor empty.
        let second = folder.path().join("second");
        std::fs::hard_link(&path, &second).unwrap();
        let known = Part::open(open_existing(folder.path()).unwrap(), "x.part".as_ref(), true);
        write_all_at(known.unwrap().file(), b"new", 0).unwrap();
        assert_eq!(std::fs::read(&second).unwrap(), b"other");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&second, "").unwrap();
        std::fs::hard_link(&second, &path).unwrap();
        assert!(matches!(part(folder.path()), Err(PartError::Foreign)), "empty, with another name");
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        assert!(matches!(part(folder.path()), Err(PartError::System(_))), "links are not followed");
    }

    #[test]
    fn what_is_not_the_part_gets_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.part");
        let part = part(folder.path()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let publish = || part.publish("x".as_ref(), true, Some(0), true);
        assert!(matches!(publish(), Err(PartError::Displaced)));
        std::fs::write(&path, "other").unwrap();
        let error = io::Error::from(publish().unwrap_err());
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("was removed or renamed"), "{error}");
        part.abandon();
        assert_eq!(names(folder.path()), ["x.part"], "it is another's");
    }

    #[test]
    fn a_part_in_a_folder_that_has_another_name_now_gets_no_name() {
        let above = tempfile::tempdir().unwrap();
        let [path, moved] = ["a", "b"].map(|name| above.path().join(name));
        std::fs::create_dir_all(path.join("c")).unwrap();
        let folder = open_existing(&path).unwrap();
        let create =
            |folder: &Arc<dyn Directory>| Part::create(Arc::clone(folder), "x".as_ref()).unwrap();
        // One that was opened by its path, and one below it.
        for folder in [&folder, &folder.subdir("c".as_ref()).unwrap()] {
            let part = create(folder);
            part.prepare(Some(0), true).unwrap();
            std::fs::rename(&path, &moved).unwrap();
            let publish = || part.publish("x".as_ref(), true, Some(0), true);
            assert!(matches!(publish(), Err(PartError::Displaced)));
            // Another folder of that name is not the one that was asked for either.
            std::fs::create_dir_all(path.join("c")).unwrap();
            assert!(matches!(publish(), Err(PartError::Displaced)));
            std::fs::remove_dir_all(&path).unwrap();
            // A link to it leads there.
            std::os::unix::fs::symlink("b", &path).unwrap();
            publish().unwrap();
            std::fs::remove_file(&path).unwrap();
            std::fs::rename(&moved, &path).unwrap();
        }
        assert_eq!(
            (names(&path), names(&path.join("c"))),
            (vec!["c".into(), "x".into()], vec!["x".into()])
        );
    }

    #[test]
    fn parts_of_names_that_nobody_has_do_not_meet_and_leave_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let create = |target: &str| {
            let part = Part::create(open_existing(folder.path()).unwrap(), target.as_ref());
            part.unwrap()
        };
        let (one, two, long) = (create("x"), create("x"), create(&"y".repeat(255)));
        assert!(one.name() != two.name() && one.is_named() && two.is_named() && long.is_named());
        write_all_at(one.file(), b"one", 0).unwrap();
        write_all_at(two.file(), b"two", 0).unwrap();
        one.prepare(Some(3), true).unwrap();
        two.publish("x".as_ref(), true, Some(3), true).unwrap();
        one.publish("x".as_ref(), true, Some(3), true).unwrap();
        assert_eq!(std::fs::read(folder.path().join("x")).unwrap(), b"one");
        drop((one, two, long));
        assert_eq!(names(folder.path()), ["x"]);
    }
}
