//! Tickets of peers, by which a later start of this host may resume with them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use rackweave_crypt::{Ticket, address_bytes};

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

    /// Takes those tickets of another store that are newer than this one's for their peers.
    pub fn merge(&mut self, other: Self) {
        for (address, ticket) in other.tickets {
            let is_newer = |ours: &Ticket| ours.received_ms() < ticket.received_ms();
            if self.tickets.get(&address).is_none_or(is_newer) {
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

#[cfg(test)]
mod tests {
    use rackweave_crypt::Cipher;
    use rackweave_wire::secure::Ticket as Name;

    use super::*;

    fn ticket(n: u64) -> Ticket {
        let name = Name { stamp: n, incarnation: 2, random: 3 };
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
        store.merge(other);
        assert_eq!(store.get(address(10)), Some(&ticket(10)));
        assert_eq!(store.get(address(11)), Some(&ticket(12_000)));
    }
}
