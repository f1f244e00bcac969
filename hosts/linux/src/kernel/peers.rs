//! Peers of an endpoint over TCP.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use rackweave_core::HostId;
use rustc_hash::FxHashMap;

use crate::endpoint::config::{FIRST_GUEST, Network};

/// The most guests (peers that were not configured) at a time.
const MAX_GUESTS: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    /// The incarnation in its last HELLO.
    pub(super) incarnation: Option<u64>,
    /// The connections that this host has made.
    pub(super) connections: Vec<u64>,
    /// The number of connections that the peer has made.
    pub(super) accepted: u32,
    /// The number of streams that this host has opened, and that the peer has opened.
    pub(super) streams: (u32, u32),
    /// Whether it was not configured, and is removed when it has no connection.
    guest: bool,
}

#[derive(Debug)]
pub(super) struct PeerTable {
    peers: BTreeMap<HostId, Peer>,
    by_address: FxHashMap<SocketAddr, HostId>,
    allow: Vec<Network>,
    next_guest: HostId,
    guests: usize,
}

impl PeerTable {
    pub(super) fn new(hosts: &BTreeMap<HostId, SocketAddr>, allow: Vec<Network>) -> Self {
        let mut table = Self {
            peers: BTreeMap::new(),
            by_address: FxHashMap::default(),
            allow,
            next_guest: FIRST_GUEST,
            guests: 0,
        };
        for (&host, &address) in hosts {
            table.insert(host, address, false);
        }
        table
    }

    fn insert(&mut self, host: HostId, address: SocketAddr, guest: bool) {
        let (connections, streams) = (Vec::new(), (0, 0));
        let peer = Peer { address, incarnation: None, connections, accepted: 0, streams, guest };
        self.by_address.insert(address, host);
        self.peers.insert(host, peer);
    }

    pub(super) fn get(&self, host: HostId) -> Option<&Peer> {
        self.peers.get(&host)
    }

    pub(super) fn get_mut(&mut self, host: HostId) -> Option<&mut Peer> {
        self.peers.get_mut(&host)
    }

    /// The number of the peer at an address, which is added if it is not known.
    pub(super) fn add(&mut self, address: SocketAddr) -> HostId {
        if let Some(&host) = self.by_address.get(&address) {
            if let Some(peer) = self.peers.get_mut(&host)
                && std::mem::take(&mut peer.guest)
            {
                self.guests -= 1;
            }
            return host;
        }
        let host = self.next_guest;
        self.next_guest.0 += 1;
        self.insert(host, address, false);
        host
    }

    /// Whether connections from an address are accepted.
    pub(super) fn admits(&self, from: IpAddr) -> bool {
        self.allow.iter().any(|network| network.contains(from)) || self.names(from)
    }

    /// Whether an address is that of a configured peer.
    pub(super) fn names(&self, from: IpAddr) -> bool {
        self.peers.values().any(|peer| !peer.guest && peer.address.ip() == from)
    }

    /// Returns the number of a peer that has made a connection and whose HELLO names this listening address.
    pub(super) fn identify(&mut self, address: SocketAddr) -> Option<HostId> {
        if let Some(&host) = self.by_address.get(&address) {
            return Some(host);
        }
        if !self.allow.iter().any(|network| network.contains(address.ip())) {
            return None;
        }
        if self.guests >= MAX_GUESTS {
            self.remove_idle_guests();
        }
        if self.guests >= MAX_GUESTS {
            return None;
        }
        let host = self.next_guest;
        self.next_guest.0 += 1;
        self.guests += 1;
        self.insert(host, address, true);
        Some(host)
    }

    /// Removes guests without connections.
    fn remove_idle_guests(&mut self) {
        let by_address = &mut self.by_address;
        self.peers.retain(|_, peer| {
            let stays = !peer.guest || peer.accepted > 0 || !peer.connections.is_empty();
            if !stays {
                by_address.remove(&peer.address);
            }
            stays
        });
        self.guests = self.peers.values().filter(|peer| peer.guest).count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_without_connections_make_room() {
        let mut table = PeerTable::new(&BTreeMap::new(), vec!["10.0.0.0/8".parse().unwrap()]);
        let known = table.add("10.255.0.1:1".parse().unwrap());
        let address = |n: usize| {
            let [_, a, b, c] = u32::try_from(n).unwrap().to_be_bytes();
            SocketAddr::from(([10, a, b, c], 7))
        };
        let first = table.identify(address(0)).unwrap();
        table.get_mut(first).unwrap().accepted = 1;
        for n in 1..MAX_GUESTS {
            assert!(table.identify(address(n)).is_some());
        }
        let late = table.identify(address(MAX_GUESTS)).unwrap();
        assert!(table.get(first).is_some() && table.get(late).is_some());
        assert!(table.get(known).is_some());
        assert_eq!(table.peers.len(), 3);
        assert_eq!(table.identify("192.0.2.1:7".parse().unwrap()), None);
    }
}
