//! The database of a controller: one file of redb, whose values are JSON.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::{Path, PathBuf};
use std::sync::Once;

use rackweave_rackless::controller::record::{Change, Head, JobRecord, Learned, Saved, Store};
use redb::backends::{FileBackend, InMemoryBackend};
use redb::{ReadableDatabase as _, ReadableTable as _, StorageBackend as _, TableDefinition};
use serde::de::DeserializeOwned;

const HEAD: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("controller");
const JOBS: TableDefinition<'_, u16, &[u8]> = TableDefinition::new("jobs");
const LEARNED: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("learned");
/// The only key of the first table.
const ONLY: &str = "head";

/// Why a database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// It cannot be opened; perhaps another controller has it.
    #[error("cannot open the database {path}: {error}")]
    Open {
        /// Its path.
        path: String,
        /// The reason.
        error: Box<redb::Error>,
    },
    /// It is shorter than it was. Nothing has been written to it.
    #[error(
        "the database {path} is cut off: it has {found} bytes, and at least {expected} were stored (nothing is changed: restore a backup, or move it away to begin without jobs)"
    )]
    CutOff {
        /// Its path.
        path: String,
        /// Its bytes.
        found: u64,
        /// The bytes that its header names.
        expected: u64,
    },
    /// Its content contradicts itself. Nothing has been written to it.
    #[error(
        "the database {path} is damaged: {why} (nothing is changed: restore a backup, or move it away to begin without jobs)"
    )]
    Damaged {
        /// Its path.
        path: String,
        /// What is wrong.
        why: &'static str,
    },
    /// It cannot be read or written.
    #[error("the database fails: {0}")]
    Fails(Box<redb::Error>),
    /// A value is none that this program has written.
    #[error("the database has a value that this version does not know, in `{table}`: {error}")]
    Unknown {
        /// The table.
        table: &'static str,
        /// The reason.
        error: serde_json::Error,
    },
}

/// A database. While it is open no other process can open it.
#[derive(Debug)]
pub struct Database {
    path: PathBuf,
    /// `None` after a failure of the file.
    file: Option<redb::Database>,
}

fn fails(error: impl Into<redb::Error>) -> DatabaseError {
    DatabaseError::Fails(Box::new(error.into()))
}

fn create(path: &Path) -> Result<redb::Database, DatabaseError> {
    let failed = |error: redb::Error| {
        let path = path.display().to_string();
        DatabaseError::Open { path, error: Box::new(error) }
    };
    if let Some(why) = is_wrong(path).map_err(|error| failed(error.into()))? {
        return Err(why);
    }
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
    let file = file.map_err(|error| failed(error.into()))?;
    // From now on no other process has it.
    let file = FileBackend::new(file).map_err(|error| failed(error.into()))?;
    let copy = copy(&file).map_err(|error| failed(error.into()))?;
    let rehearsed = quietly(|| {
        let database = redb::Builder::new().create_with_backend(copy);
        let database = database.map_err(|error| failed(error.into()))?;
        write_all(&database, &[])?;
        read_all(&database)
    });
    let Some(rehearsed) = rehearsed else {
        let path = path.display().to_string();
        return Err(DatabaseError::Damaged { path, why: "its pages contradict each other" });
    };
    rehearsed?;
    redb::Builder::new().create_with_backend(file).map_err(|error| failed(error.into()))
}

/// A copy in memory, which is opened and read before the file: redb panics at some damages, perhaps after it has written.
fn copy(file: &FileBackend) -> io::Result<InMemoryBackend> {
    let (copy, len) = (InMemoryBackend::new(), file.len()?);
    copy.set_len(len)?;
    let mut piece = vec![0; 1 << 20];
    for at in (0..len).step_by(piece.len()) {
        let piece = &mut piece[..(len - at).min(1 << 20) as usize];
        file.read(at, piece)?;
        copy.write(at, piece)?;
    }
    Ok(copy)
}

/// Does something that may panic, and prints nothing then; `None` if it does.
fn quietly<T>(work: impl FnOnce() -> T) -> Option<T> {
    thread_local!(static IS_QUIET: Cell<bool> = const { Cell::new(false) });
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let tell = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_QUIET.get() {
                tell(panic);
            }
        }));
    });
    IS_QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    IS_QUIET.set(false);
    result.ok()
}

/// The start of redb's file format 3: its magic number, then from byte 12 on the sizes of pages and regions as numbers of 32 bits.
const MAGIC: &[u8] = b"redb\x1a\x0a\xa9\x0d\x0a";
const HEADER_BYTES: u64 = 320;
/// The only size of pages that redb opens.
const PAGE_BYTES: u64 = 4096;
/// A page has a number of 20 bits in its region, and a region one of as many.
const MOST_NUMBERED: u64 = 1 << 20;

/// What the header and the length of a file say against it, at which redb would panic.
fn is_wrong(path: &Path) -> io::Result<Option<DatabaseError>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let found = file.metadata()?.len();
    let mut header = Vec::new();
    Read::by_ref(&mut file).take(HEADER_BYTES).read_to_end(&mut header)?;
    if !header.starts_with(MAGIC) && !MAGIC.starts_with(&header) {
        // It is no database, which redb says.
        return Ok(None);
    }
    let path = || path.display().to_string();
    let cut_off = |expected| DatabaseError::CutOff { path: path(), found, expected };
    if found < HEADER_BYTES {
        return Ok(Some(cut_off(HEADER_BYTES)));
    }
    let damaged = |why| Ok(Some(DatabaseError::Damaged { path: path(), why }));
    let [page, head, data, regions, last] = [12, 16, 20, 24, 28].map(|at| {
        let bytes = header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_le_bytes).into()
    });
    let are_possible = page == PAGE_BYTES
        && (1..=MOST_NUMBERED).contains(&data)
        && [head, regions].iter().all(|it| *it <= MOST_NUMBERED)
        && last <= data
        && regions + last > 0;
    if !are_possible {
        return damaged("its header names impossible sizes");
    }
    let last = if last > 0 { head + last } else { 0 };
    let expected = (1 + (head + data) * regions + last) * page;
    if found < expected {
        return Ok(Some(cut_off(expected)));
    }
    if !found.is_multiple_of(page) {
        return damaged("its length is no whole number of pages");
    }
    Ok(None)
}

fn read<T: DeserializeOwned>(table: &'static str, bytes: &[u8]) -> Result<T, DatabaseError> {
    serde_json::from_slice(bytes).map_err(|error| DatabaseError::Unknown { table, error })
}

impl Database {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// See [`DatabaseError`].
    pub fn open(path: &Path) -> Result<Self, DatabaseError> {
        let mut database = Self { path: path.to_owned(), file: None };
        // Tables exist from now on.
        database.write(&[])?;
        Ok(database)
    }

    /// Reads all of it.
    ///
    /// # Errors
    /// See [`DatabaseError`].
    pub fn read(&self) -> Result<Saved, DatabaseError> {
        self.file.as_ref().map_or_else(|| Err(fails(redb::Error::PreviousIo)), read_all)
    }
}

fn read_all(file: &redb::Database) -> Result<Saved, DatabaseError> {
    let transaction = file.begin_read().map_err(fails)?;
    let table = transaction.open_table(HEAD).map_err(fails)?;
    let head = table.get(ONLY).map_err(fails)?;
    let head = head.map(|it| read::<Head>("controller", it.value())).transpose()?;
    let mut jobs = Vec::new();
    for row in transaction.open_table(JOBS).map_err(fails)?.iter().map_err(fails)? {
        jobs.push(read::<JobRecord>("jobs", row.map_err(fails)?.1.value())?);
    }
    let mut learned = Vec::new();
    for row in transaction.open_table(LEARNED).map_err(fails)?.iter().map_err(fails)? {
        let (name, value) = row.map_err(fails)?;
        let value = read::<Learned>("learned", value.value())?;
        learned.push((name.value().to_owned(), value));
    }
    Ok(Saved { head, jobs, learned })
}

fn write_all(file: &redb::Database, changes: &[Change]) -> Result<(), DatabaseError> {
    let bytes = |value: serde_json::Result<Vec<u8>>, table| {
        value.map_err(|error| DatabaseError::Unknown { table, error })
    };
    let transaction = file.begin_write().map_err(fails)?;
    {
        let mut head = transaction.open_table(HEAD).map_err(fails)?;
        let mut jobs = transaction.open_table(JOBS).map_err(fails)?;
        let mut learned = transaction.open_table(LEARNED).map_err(fails)?;
        for change in changes {
            match change {
                Change::Head(it) => {
                    let value = bytes(serde_json::to_vec(it), "controller")?;
                    head.insert(ONLY, &value[..]).map_err(fails)?;
                }
                Change::Job(it) => {
                    let value = bytes(serde_json::to_vec(&**it), "jobs")?;
                    jobs.insert(it.job, &value[..]).map_err(fails)?;
                }
                Change::NoJob(job) => {
                    jobs.remove(job).map_err(fails)?;
                }
                Change::Learned(name, it) => {
                    let value = bytes(serde_json::to_vec(it), "learned")?;
                    learned.insert(&name[..], &value[..]).map_err(fails)?;
                }
                Change::NotLearned(name) => {
                    learned.remove(&name[..]).map_err(fails)?;
                }
            }
        }
    }
    // It has survived when this returns.
    transaction.commit().map_err(fails)
}

impl Store for Database {
    type Error = DatabaseError;

    fn write(&mut self, changes: &[Change]) -> Result<(), DatabaseError> {
        let file = match self.file.take() {
            Some(file) => file,
            None => create(&self.path)?,
        };
        let result = write_all(&file, changes);
        // After a failure of its file redb refuses everything until it is opened again, as the next write does.
        let is_broken = |error: &DatabaseError| match error {
            DatabaseError::Fails(error) => {
                matches!(**error, redb::Error::Io(_) | redb::Error::PreviousIo)
            }
            _ => false,
        };
        if !result.as_ref().is_err_and(is_broken) {
            self.file = Some(file);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use redb::StorageBackend;

    use super::*;

    #[test]
    fn what_was_written_is_there_after_a_restart_and_one_process_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pod.redb");
        let record = JobRecord {
            job: 7,
            tenant: "a".to_owned(),
            nonce: u64::MAX,
            declared: Default::default(),
            phase: Default::default(),
            measured: Default::default(),
            ready: 3,
            grant: None,
        };
        let head = Head { identity: u64::MAX, term: 4, ..Head::default() };
        let changes = [
            Change::Head(head),
            Change::Job(Box::new(record.clone())),
            Change::Job(Box::new(JobRecord { job: 8, ..record })),
            Change::NoJob(8),
            Change::Learned("a/b".to_owned(), Learned { runs: 2, ..Learned::default() }),
        ];
        let mut expected = Saved::default();
        expected.apply(&changes);
        {
            let mut database = Database::open(&path).unwrap();
            database.write(&changes).unwrap();
            let other = Database::open(&path).unwrap_err().to_string();
            assert!(other.starts_with("cannot open the database"), "{other}");
        }
        assert_eq!(Database::open(&path).unwrap().read().unwrap(), expected);
    }

    #[test]
    fn a_database_that_is_cut_off_is_refused_and_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pod.redb");
        drop(Database::open(&path).unwrap());
        let whole = std::fs::read(&path).unwrap();
        let lengths = [0, 1, 9, 10, 319, 320, 321, 4096, whole.len() / 2, whole.len() - 1];
        for len in lengths {
            std::fs::write(&path, &whole[..len]).unwrap();
            let why = Database::open(&path).unwrap_err().to_string();
            assert!(why.contains("pod.redb is cut off: it has "), "{len}: {why}");
            assert_eq!(std::fs::read(&path).unwrap(), whole[..len], "{len}");
        }
        std::fs::write(&path, &whole).unwrap();
        drop(Database::open(&path).unwrap());
        std::fs::write(&path, "no database at all, but a text").unwrap();
        let why = Database::open(&path).unwrap_err().to_string();
        assert!(why.starts_with("cannot open the database"), "{why}");
    }

    #[test]
    fn a_database_that_is_damaged_is_refused_and_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pod.redb");
        let head = |term| [Change::Head(Head { term, ..Head::default() })];
        Database::open(&path).unwrap().write(&head(7)).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let refused = |name: &str, bytes: &[u8], why: &str| {
            std::fs::write(&path, bytes).unwrap();
            let said = Database::open(&path).unwrap_err().to_string();
            assert!(said.contains(why), "{name}: {said}");
            assert!(std::fs::read(&path).unwrap() == bytes, "{name}");
        };
        let sizes = [
            ("page", 12, &[0, 1, 3, 512, 8192, u32::MAX][..]),
            ("head", 16, &[u32::MAX]),
            ("data", 20, &[0, 1, (1 << 20) + 1, u32::MAX]),
            ("regions", 24, &[(1 << 20) + 1, u32::MAX]),
            ("last", 28, &[0, (1 << 20) + 1, u32::MAX]),
        ];
        for (name, at, values) in sizes {
            for value in values {
                let mut bytes = whole.clone();
                bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
                refused(name, &bytes, "pod.redb is damaged: its header names impossible sizes (");
            }
        }
        let longer = [&whole[..], &[0; 100_000]].concat();
        refused("longer", &longer, "pod.redb is damaged: its length");
        let mut regions = whole.clone();
        regions[24] = 1;
        refused("regions", &regions, "pod.redb is cut off: it has ");
        // What redb finds or panics at, with the flag that it was not closed and without.
        for flags in [whole[9], whole[9] | 2] {
            let mut pages = whole.clone();
            pages[9] = flags;
            pages[4096..].fill(0);
            refused("pages", &pages, "the database");
            pages[4096..].fill(0xa5);
            refused("pages", &pages, "the database");
        }
        std::fs::write(&path, &whole).unwrap();
        assert_eq!(Database::open(&path).unwrap().read().unwrap().head.unwrap().term, 7);
    }

    /// A disk that can be full.
    #[derive(Debug)]
    struct Disk(FileBackend, Arc<AtomicBool>);

    impl Disk {
        fn has_room(&self) -> io::Result<&FileBackend> {
            let is_full = self.1.load(Ordering::Relaxed);
            if is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(&self.0) }
        }
    }

    impl StorageBackend for Disk {
        fn len(&self) -> io::Result<u64> {
            self.0.len()
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.0.read(offset, out)
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.has_room()?.set_len(len)
        }

        fn sync_data(&self) -> io::Result<()> {
            self.has_room()?.sync_data()
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.has_room()?.write(offset, data)
        }

        fn close(&self) -> io::Result<()> {
            self.0.close()
        }
    }

    #[test]
    fn a_disk_that_was_full_is_written_to_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pod.redb");
        let head = |term| [Change::Head(Head { term, ..Head::default() })];
        let mut database = Database::open(&path).unwrap();
        database.write(&head(1)).unwrap();
        database.file = None;
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let is_full = Arc::new(AtomicBool::new(false));
        let disk = Disk(FileBackend::new(file).unwrap(), Arc::clone(&is_full));
        database.file = Some(redb::Builder::new().create_with_backend(disk).unwrap());
        is_full.store(true, Ordering::Relaxed);
        let why = database.write(&head(2)).unwrap_err().to_string();
        assert!(why.contains("the database fails"), "{why}");
        database.write(&head(3)).unwrap();
        assert_eq!(database.read().unwrap().head.unwrap().term, 3);
    }
}
