//! The addresses of peers, and the numbers that the machines know them by.
//!
//! Machines name hosts by [`HostId`], and put the addresses that belong to these numbers (10.x.y.z) in messages. In a real network hosts
//! have other addresses, so that the addresses in messages are translated, on arrival and on departure.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rackweave_core::{HostId, Span, Time};
use rackweave_linux::addresses::{AddressTable, Strangers};
use rackweave_wire::frame::{host_at, ip_address};
use rackweave_wire::frisbee::Body;

/// Maximum number of peers. Packets with forged sources may claim addresses, unless there is a key.
const MOST_PEERS: usize = 1 << 16;
/// Maximum number of peers that have only sent requests, which anyone may forge, where nobody names the peers.
const STRANGERS: Strangers = Strangers { most: 1 << 10, silent: Span::ZERO };
/// Numbers of hosts have this many bits, those of an address below 10.0.0.0/8.
const HOST_BITS: u32 = 24;

/// The peers of a process.
#[derive(Debug)]
pub(crate) struct Peers {
    table: AddressTable<()>,
    /// The length of the prefix that the addresses of a rack share.
    rack_prefix: Option<u8>,
    racks: BTreeMap<u32, u32>,
}

/// A peer is one host, whichever of its ports it sends from.
fn key(address: Ipv4Addr) -> SocketAddr {
    SocketAddr::from((address, 0))
}

impl Peers {
    /// Peers with the same `rack_prefix` bits of their addresses, 16 to 30, are in the same rack.
    pub(crate) fn new(rack_prefix: Option<u8>) -> Self {
        let table = AddressTable::new(0..1 << HOST_BITS, STRANGERS);
        Self { table, rack_prefix, racks: BTreeMap::new() }
    }

    /// The number of hosts that a rack can have, by which machines divide the numbers of hosts.
    pub(crate) fn hosts_per_rack(prefix: u8) -> u32 {
        1 << (32 - u32::from(prefix.clamp(16, 30)))
    }

    /// Whether a peer has a number, or can get one.
    pub(crate) fn has_room(&self, address: Ipv4Addr) -> bool {
        let rack_has_room = self.rack_prefix.is_none_or(|prefix| {
            let size = Self::hosts_per_rack(prefix);
            (self.racks.len() as u32) < (1 << HOST_BITS) / size
                || self.racks.contains_key(&(address.to_bits() / size))
        });
        self.known(address).is_some() || (self.table.len() < MOST_PEERS && rack_has_room)
    }

    /// Returns the number of a peer, which gets one if it has none. `None` if there is no room.
    pub(crate) fn number(&mut self, address: Ipv4Addr) -> Option<HostId> {
        if self.known(address).is_some() {
            return Some(self.table.add(key(address), || ()));
        }
        if !self.has_room(address) {
            return None;
        }
        let host = match self.rack_prefix {
            None => self.table.next_number(),
            Some(prefix) => {
                let size = Self::hosts_per_rack(prefix);
                let bits = address.to_bits();
                let count = self.racks.len() as u32;
                let rack = *self.racks.entry(bits / size).or_insert(count);
                HostId(rack * size + bits % size)
            }
        };
        self.table.insert(host, key(address), ());
        Some(host)
    }

    /// Returns the number of a peer that may have been made up: unless [`Self::number`] has named it, others take its place while it is not
    /// `in_use`. There are no racks.
    pub(crate) fn stranger(
        &mut self,
        now: Time,
        address: Ipv4Addr,
        in_use: impl Fn(HostId) -> bool,
    ) -> Option<HostId> {
        if let Some(known) = self.known(address) {
            self.table.get_mut(known)?.touch(now);
            return Some(known);
        }
        let has_room = self.table.len() < MOST_PEERS;
        has_room.then(|| self.table.admit(now, key(address).into(), in_use, ()))?
    }

    /// Returns the number of a peer that has one.
    pub(crate) fn known(&self, address: Ipv4Addr) -> Option<HostId> {
        self.table.at_address(key(address))
    }

    /// Returns the address of a peer.
    pub(crate) fn address(&self, host: HostId) -> Option<Ipv4Addr> {
        match self.table.get(host)?.path().remote.ip() {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        }
    }

    /// Forgets a peer, whose number may be given to another one.
    pub(crate) fn forget(&mut self, address: Ipv4Addr) {
        if let Some(host) = self.known(address) {
            self.table.remove(host);
        }
    }

    /// Replaces the address in an arriving message by that which the machines use. `None` if there is no room for the peer.
    pub(crate) fn arrived(&mut self, mut body: Body) -> Option<Body> {
        if let Some(field) = field(&mut body) {
            let address = Ipv4Addr::from(*field);
            let host = self.known(address).or_else(|| self.number(address))?;
            *field = ip_address(host)?;
        }
        Some(body)
    }

    /// Replaces the address in a departing message by the peer's.
    pub(crate) fn departing(&self, mut body: Body) -> Option<Body> {
        if let Some(field) = field(&mut body) {
            *field = self.address(host_at(*field)?)?.octets();
        }
        Some(body)
    }
}

/// The address that a message names.
const fn field(body: &mut Body) -> Option<&mut [u8; 4]> {
    match body {
        Body::Return { requester, .. } | Body::Redirect { requester, .. } => Some(requester),
        Body::Damaged { holder, .. } => Some(holder),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rackweave_wire::frisbee::Chunks;

    use super::*;

    #[test]
    fn addresses_are_translated_in_both_directions() {
        let mut peers = Peers::new(None);
        let (a, b) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(198, 51, 100, 7));
        assert_eq!(peers.number(a), Some(HostId(0)));
        let chunks = Chunks { image: 1, first: 2, count: 3, tries: 0 };
        let wire = Body::Redirect { chunks, requester: b.octets() };
        let inner = peers.arrived(wire).unwrap();
        assert_eq!(inner, Body::Redirect { chunks, requester: [10, 0, 0, 1] });
        assert_eq!(peers.departing(inner), Some(wire));
        let unknown = Body::Return { chunks, requester: [10, 0, 0, 9] };
        assert_eq!(peers.departing(unknown), None);
        assert_eq!(peers.departing(Body::Batch(chunks)), Some(Body::Batch(chunks)));
        peers.forget(b);
        assert_eq!((peers.known(b), peers.address(HostId(1))), (None, None));
        assert_eq!(peers.number(b), Some(HostId(2)), "a number is not used again at once");
    }

    #[test]
    fn hosts_of_a_prefix_are_a_rack() {
        let mut peers = Peers::new(Some(26));
        let size = Peers::hosts_per_rack(26);
        assert_eq!(size, 64);
        let rack = |peers: &mut Peers, d: [u8; 4]| peers.number(d.into()).unwrap().0 / size;
        assert_eq!(rack(&mut peers, [192, 0, 2, 1]), rack(&mut peers, [192, 0, 2, 63]));
        assert_ne!(rack(&mut peers, [192, 0, 2, 1]), rack(&mut peers, [192, 0, 2, 64]));
        assert_eq!(rack(&mut peers, [192, 0, 2, 65]), 1);
    }

    #[test]
    fn racks_are_bounded() {
        let mut peers = Peers::new(Some(16));
        for rack in 0..256 {
            assert!(peers.number(Ipv4Addr::from_bits(rack << 16)).is_some());
        }
        assert_eq!(peers.number(Ipv4Addr::from_bits(256 << 16)), None);
        assert_eq!(peers.number(Ipv4Addr::from_bits(255 << 16 | 7)), Some(HostId(255 << 16 | 7)));
    }

    #[test]
    fn strangers_make_room_for_others_unless_they_are_named_or_in_use() {
        let mut peers = Peers::new(None);
        let server = peers.number(Ipv4Addr::from_bits(1));
        let mut at = |number: u32, used: Option<HostId>| {
            let now = Time::from_ticks(u64::from(number));
            peers.stranger(now, Ipv4Addr::from_bits(number), |host| Some(host) == used)
        };
        let (used, named) = (at(2, None), at(3, None));
        assert_eq!(at(2, None), used);
        let chunks = Chunks { image: 1, first: 2, count: 3, tries: 0 };
        let asks = Body::Return { chunks, requester: [0, 0, 0, 2] };
        assert!(peers.arrived(asks).is_some());
        assert_eq!(peers.number(Ipv4Addr::from_bits(3)), named);
        for number in 10..10 + 4 * STRANGERS.most as u32 {
            let now = Time::from_ticks(u64::from(number));
            let address = Ipv4Addr::from_bits(number);
            assert!(peers.stranger(now, address, |host| Some(host) == used).is_some());
        }
        let kept = [1, 2, 3].map(|number| peers.known(Ipv4Addr::from_bits(number)));
        assert_eq!(kept, [server, used, named]);
        assert_eq!(peers.table.len(), STRANGERS.most + 2);
        let now = Time::from_ns(1 << 30);
        assert_eq!(peers.stranger(now, Ipv4Addr::from_bits(9), |_| true), None);
    }

    #[test]
    fn peers_are_bounded() {
        let mut peers = Peers::new(None);
        for number in 0..MOST_PEERS as u32 {
            assert!(peers.number(Ipv4Addr::from_bits(number)).is_some());
        }
        assert_eq!(peers.number(Ipv4Addr::from_bits(1 << 20)), None);
        assert!(!peers.has_room(Ipv4Addr::from_bits(1 << 20)));
        assert!(peers.has_room(Ipv4Addr::from_bits(5)), "it has a number");
        assert_eq!(peers.number(Ipv4Addr::from_bits(5)), Some(HostId(5)));
    }
}
