//! Tickets of peers, by which a later start of this host may resume with them.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rackweave_crypt::{Ticket, address_bytes};
use rustix::fs::OFlags;

use super::early::wall_ms;

/// The most tickets; beyond them, the oldest one is dropped.
pub const MAX_TICKETS: usize = 1024;

/// The first bytes of a store's encoding, which name its version.
const MAGIC: [u8; 8] = *b"rwtick01";

const ADDRESS_BYTES: usize = 18;
const ENTRY_BYTES: usize = ADDRESS_BYTES + Ticket::BYTES;

/// The bytes are no [`TicketStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a file of tickets that rackweave has written")]
pub struct NotTickets;

/// The newest ticket of each peer, by the peer's address. Who reads its bytes and has the key can read the early data of the
/// next hour: they belong in a file that only its owner can read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TicketStore {
    tickets: BTreeMap<[u8; ADDRESS_BYTES], Ticket>,
}

impl TicketStore {
    /// The number of tickets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tickets.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tickets.is_empty()
    }

    /// The ticket of the peer at an address.
    #[must_use]
    pub fn get(&self, address: SocketAddr) -> Option<&Ticket> {
        self.tickets.get(&address_bytes(address))
    }

    /// Keeps the ticket of the peer at an address in place of an earlier one.
    pub fn insert(&mut self, address: SocketAddr, ticket: Ticket) {
        self.put(address_bytes(address), ticket);
    }

    fn put(&mut self, address: [u8; ADDRESS_BYTES], ticket: Ticket) {
        self.tickets.insert(address, ticket);
        while self.tickets.len() > MAX_TICKETS {
            let oldest = self.tickets.iter().min_by_key(|(_, ticket)| ticket.received_ms());
            let Some(oldest) = oldest.map(|(address, _)| *address) else { return };
            self.tickets.remove(&oldest);
        }
    }

    /// Drops the ticket of the peer at an address; returns whether there was one.
    pub fn remove(&mut self, address: SocketAddr) -> bool {
        self.tickets.remove(&address_bytes(address)).is_some()
    }

    /// Takes those tickets of another store that were received since a time (in milliseconds since 1970) and are newer than this
    /// one's for their peers.
    pub fn merge(&mut self, other: Self, since_ms: u64) {
        for (address, ticket) in other.tickets {
            let is_newer = |ours: &Ticket| ours.received_ms() < ticket.received_ms();
            if ticket.received_ms() >= since_ms && self.tickets.get(&address).is_none_or(is_newer) {
                self.put(address, ticket);
            }
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MAGIC.len() + self.tickets.len() * ENTRY_BYTES);
        bytes.extend_from_slice(&MAGIC);
        for (address, ticket) in &self.tickets {
            bytes.extend_from_slice(address);
            bytes.extend_from_slice(&ticket.to_bytes());
        }
        bytes
    }

    /// The store with these bytes, at most [`MAX_TICKETS`] of its tickets.
    ///
    /// # Errors
    /// If they are not a store's.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NotTickets> {
        let entries = bytes.strip_prefix(&MAGIC).ok_or(NotTickets)?;
        let mut store = Self::default();
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        for entry in entries {
            let (address, ticket) = entry.split_first_chunk::<ADDRESS_BYTES>().ok_or(NotTickets)?;
            let ticket = ticket.try_into().ok().and_then(Ticket::from_bytes).ok_or(NotTickets)?;
            store.put(*address, ticket);
        }
        if rest.is_empty() { Ok(store) } else { Err(NotTickets) }
    }

    /// The addresses of the peers.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.tickets.keys().map(|bytes| {
            let (mut ip, port) = ([0; 16], u16::from_be_bytes([bytes[16], bytes[17]]));
            ip.copy_from_slice(&bytes[..16]);
            SocketAddr::new(IpAddr::V6(Ipv6Addr::from(ip)).to_canonical(), port)
        })
    }
}

/// Why tickets cannot be kept in a file.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields repeat their types")]
pub enum TicketFileError {
    /// The file cannot be read, or its folder does not exist.
    #[error("cannot keep tickets in {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// It is another file.
    #[error("{}: {source}; name another file, or remove it", path.display())]
    Content { path: PathBuf, source: NotTickets },
    /// Other users can read it.
    #[error(
        "{} can be read by other users (mode {mode:o}), who could read calls with it: chmod 600, or remove it", path.display()
    )]
    Exposed { path: PathBuf, mode: u32 },
}

/// A file with the tickets of a host's earlier starts. Several processes may use one: each keeps what the others have written
/// since it has read the file.
#[derive(Clone, Debug)]
pub struct TicketFile {
    path: PathBuf,
    read_ms: u64,
}

impl TicketFile {
    /// Reads the tickets in a file, which need not exist yet.
    ///
    /// # Errors
    /// If it cannot be read, is no file of tickets, or can be read by others.
    pub fn open(path: &Path) -> Result<(Self, TicketStore), TicketFileError> {
        let file = Self { path: path.to_owned(), read_ms: wall_ms() };
        let store = file.read()?;
        Ok((file, store))
    }

    fn read(&self) -> Result<TicketStore, TicketFileError> {
        let path = || self.path.clone();
        let io = |source| TicketFileError::Io { path: path(), source };
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // It can be written later.
                let folder = self.path.parent().filter(|it| !it.as_os_str().is_empty());
                fs::metadata(folder.unwrap_or(Path::new("."))).map_err(io)?;
                return Ok(TicketStore::default());
            }
            Err(error) => return Err(io(error)),
        };
        let mode = file.metadata().map_err(io)?.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(TicketFileError::Exposed { path: path(), mode });
        }
        let most = MAGIC.len() + MAX_TICKETS * ENTRY_BYTES;
        let mut bytes = Vec::new();
        file.take(most as u64 + 1).read_to_end(&mut bytes).map_err(io)?;
        // After a failure of power the file may have its name and not its bytes.
        if bytes.is_empty() {
            return Ok(TicketStore::default());
        }
        TicketStore::from_bytes(&bytes)
            .map_err(|source| TicketFileError::Content { path: path(), source })
    }

    /// Replaces the file: a new one is written next to it, with mode 0600, and takes its name. It is not synced to the
    /// disk: tickets that a crash of the machine loses cost a round trip.
    ///
    /// The new file has a fixed name (`.new` behind this one's) and is locked while it is written. So a process that was killed leaves
    /// one file at most, which the next one overwrites, and each takes over what the others have written. A file without a name
    /// (`O_TMPFILE`) would leave none, but `linkat` cannot give it a name that exists.
    ///
    /// # Errors
    /// If it cannot be written, if another process has been writing for 20 ms (it may have been stopped), or if there is a file of
    /// somebody else with the new file's name.
    pub fn save(&self, store: &TicketStore) -> io::Result<()> {
        let aside = self.aside();
        let mut file = self.lock_aside(&aside)?;
        let mut all = store.clone();
        if let Ok(others) = self.read() {
            all.merge(others, self.read_ms);
        }
        let mut write = || {
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(&all.to_bytes())?;
            fs::rename(&aside, &self.path)
        };
        write().inspect_err(|_| drop(fs::remove_file(&aside)))
    }

    /// The name of the new file before it replaces the old one.
    fn aside(&self) -> PathBuf {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        self.path.with_file_name(name)
    }

    /// Opens the new file, which a process may have left, and locks it until it is closed.
    fn lock_aside(&self, aside: &Path) -> io::Result<File> {
        let mut attempts = 0;
        loop {
            let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).mode(0o600).custom_flags(flags);
            let mut file = options.open(aside)?;
            match file.try_lock() {
                // The process that had the lock may have given this file the name of the old one, or removed it.
                Ok(()) if is_at(&file, aside)? => {
                    check_own(&mut file)?;
                    return Ok(file);
                }
                Ok(()) | Err(TryLockError::WouldBlock) if attempts < LOCK_ATTEMPTS => attempts += 1,
                Ok(()) | Err(TryLockError::WouldBlock) => {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
            #[expect(clippy::disallowed_methods, reason = "another process writes some kilobytes")]
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Attempts to lock the new file, one each millisecond. Writing it takes less than one.
const LOCK_ATTEMPTS: u32 = 20;

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let open = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(there) => Ok((open.dev(), open.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns an error unless an earlier process of this user has left the file while it wrote tickets, or this one has created it.
fn check_own(file: &mut File) -> io::Result<()> {
    let is = file.metadata()?;
    let own = is.is_file() && is.nlink() == 1 && is.uid() == rustix::process::geteuid().as_raw();
    let mut first = Vec::new();
    file.take(MAGIC.len() as u64).read_to_end(&mut first)?;
    // It may have been killed after some of the bytes.
    if own && is.mode() & 0o077 == 0 && MAGIC.starts_with(&first) {
        return Ok(());
    }
    let what = "there is another file with the name under which tickets are written first";
    Err(io::Error::new(io::ErrorKind::AlreadyExists, what))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use proptest::prelude::*;
    use rackweave_crypt::Cipher;
    use rackweave_wire::secure::Ticket as Name;

    use super::*;

    fn ticket(n: u64) -> Ticket {
        let name = Name { stamp: n, random: [3; 12] };
        Ticket::new(name, [n as u8; 32], Cipher::ChaCha20Poly1305, n)
    }

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 7], port))
    }

    #[test]
    fn what_is_written_is_read() {
        let mut store = TicketStore::default();
        assert_eq!(TicketStore::from_bytes(&store.to_bytes()), Ok(store.clone()));
        for port in 1..20 {
            store.insert(address(port), ticket(u64::from(port)));
        }
        store.insert("[2001:db8::1]:9".parse().unwrap(), ticket(99));
        let bytes = store.to_bytes();
        assert_eq!(TicketStore::from_bytes(&bytes), Ok(store.clone()));
        let mut addresses: Vec<_> = store.addresses().collect();
        addresses.sort_unstable();
        assert_eq!(addresses[0], address(1));
        assert!(store.remove(address(1)) && !store.remove(address(1)));
        // No byte that is missing or too many goes unnoticed, nor a cipher that does not exist.
        for length in 0..bytes.len() {
            let whole = length >= 8 && (length - 8) % ENTRY_BYTES == 0;
            assert_eq!(TicketStore::from_bytes(&bytes[..length]).is_ok(), whole, "{length}");
        }
        let mut wrong = bytes;
        wrong[8 + ADDRESS_BYTES + 20 + 32] = 7;
        assert_eq!(TicketStore::from_bytes(&wrong), Err(NotTickets));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_store_or_are_refused(
            mut bytes in prop::collection::vec(any::<u8>(), 0..400),
            entries in 0_usize..3,
        ) {
            prop_assert!(TicketStore::from_bytes(&bytes).is_err() || bytes.starts_with(&MAGIC));
            bytes.resize(entries * ENTRY_BYTES, 1);
            let file = [&MAGIC[..], &bytes].concat();
            if let Ok(store) = TicketStore::from_bytes(&file) {
                prop_assert!(store.len() <= entries);
                prop_assert_eq!(TicketStore::from_bytes(&store.to_bytes()), Ok(store));
            }
        }
    }

    #[test]
    fn the_oldest_make_room_and_the_newest_are_kept() {
        let mut store = TicketStore::default();
        for n in 0..MAX_TICKETS as u64 + 5 {
            store.insert(address(n as u16), ticket(n));
        }
        assert_eq!(store.len(), MAX_TICKETS);
        assert!(store.get(address(4)).is_none() && store.get(address(5)).is_some());
        let mut other = TicketStore::default();
        other.insert(address(10), ticket(9));
        other.insert(address(11), ticket(12_000));
        store.merge(other.clone(), 12_001);
        assert_eq!(store.get(address(11)), Some(&ticket(11)));
        store.merge(other, 12_000);
        assert_eq!(store.get(address(10)), Some(&ticket(10)));
        assert_eq!(store.get(address(11)), Some(&ticket(12_000)));
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_is_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tickets");
        let (file, mut store) = TicketFile::open(&path).unwrap();
        assert!(store.is_empty() && !path.exists());
        store.insert(address(1), ticket(7));
        file.save(&store).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let (second, mut others) = TicketFile::open(&path).unwrap();
        assert_eq!(others, store);
        // Two processes keep each other's tickets.
        others.insert(address(2), ticket(wall_ms() + 5));
        second.save(&others).unwrap();
        file.save(&store).unwrap();
        assert_eq!(TicketFile::open(&path).unwrap().1, others);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
        // A failure of power may leave a new name with no bytes, which must not keep the next start from its work.
        fs::write(&path, "").unwrap();
        assert!(TicketFile::open(&path).unwrap().1.is_empty());
        // What is not a file of tickets, or is open to others, is neither used nor replaced.
        fs::write(&path, "somebody's notes").unwrap();
        assert!(matches!(TicketFile::open(&path), Err(TicketFileError::Content { .. })));
        fs::write(&path, store.to_bytes()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = TicketFile::open(&path).unwrap_err();
        assert!(error.to_string().contains("chmod 600"), "{error}");
        assert!(matches!(
            TicketFile::open(folder.path().join("no/folder").as_path()),
            Err(TicketFileError::Io { .. })
        ));
    }

    /// A process that is killed while it writes leaves a part of the new file. The next one must not leave a second file, nor lose
    /// tickets; while one writes, no other does; and what is not Rackweave's stays as it is.
    #[test]
    fn one_file_is_left_by_killed_processes_and_the_next_one_takes_it_over() {
        let folder = tempfile::tempdir().unwrap();
        let names = || {
            let all = fs::read_dir(folder.path()).unwrap();
            let mut names: Vec<_> =
                all.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        let path = folder.path().join("tickets");
        let aside = folder.path().join("tickets.new");
        let (file, mut store) = TicketFile::open(&path).unwrap();
        store.insert(address(1), ticket(7));
        for left in 0..store.to_bytes().len() {
            // A longer store than the one that replaces it.
            let bytes = [store.to_bytes(), vec![1; 300]].concat();
            fs::write(&aside, &bytes[..left * 2]).unwrap();
            fs::set_permissions(&aside, fs::Permissions::from_mode(0o600)).unwrap();
            file.save(&store).unwrap();
            assert_eq!(TicketFile::open(&path).unwrap().1, store);
            assert_eq!(names(), ["tickets"]);
        }
        // A live process writes.
        let other = file.lock_aside(&aside).unwrap();
        let refused = file.save(&store).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop(other);
        file.save(&store).unwrap();
        // What somebody else has put there is not overwritten.
        let keep = |content: &str, mode| {
            fs::write(&aside, content).unwrap();
            fs::set_permissions(&aside, fs::Permissions::from_mode(mode)).unwrap();
            let error = file.save(&store).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(fs::read_to_string(&aside).unwrap(), content);
            fs::remove_file(&aside).unwrap();
        };
        keep("somebody's notes", 0o600);
        keep("rwtick01", 0o644);
        std::os::unix::fs::symlink("tickets", &aside).unwrap();
        assert!(file.save(&store).is_err());
        fs::remove_file(&aside).unwrap();
        fs::hard_link(&path, &aside).unwrap();
        assert!(file.save(&store).is_err());
        assert_eq!(TicketFile::open(&path).unwrap().1, store);
    }

    /// Many processes (here threads, whose locks are as separate) write at once: the tickets of each process that could
    /// write are kept.
    #[test]
    fn processes_that_write_at_once_keep_each_others_tickets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tickets");
        let now = wall_ms();
        let saved: Vec<u16> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8_u16)
                .map(|n| {
                    let path = &path;
                    scope.spawn(move || {
                        let (file, _) = TicketFile::open(path).unwrap();
                        let mut own = TicketStore::default();
                        let mut saved = Vec::new();
                        for turn in 0..20_u16 {
                            let port = n * 100 + turn + 1;
                            own.insert(address(port), ticket(now + 60_000));
                            match file.save(&own) {
                                Ok(()) => saved = own.addresses().map(|it| it.port()).collect(),
                                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                            }
                        }
                        saved
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let kept = TicketFile::open(&path).unwrap().1;
        assert!(!saved.is_empty());
        for port in saved {
            assert!(kept.get(address(port)).is_some(), "{port}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
