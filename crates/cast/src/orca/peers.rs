//! Hosts and their addresses, and the admission of packets.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use rackweave_core::HostId;

/// The largest number of peers that are learnt from their packets. A further one replaces the one that has been silent
/// for longest.
const MAX_LEARNT: usize = 4096;

/// The hosts whose packets are accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Accept packets from all hosts; for use with a key that authenticates packets.
    pub everyone: bool,
    /// Accept packets from this machine.
    pub loopback: bool,
    /// Accept packets from these addresses.
    pub addresses: Vec<IpAddr>,
}

impl Admission {
    fn admits(&self, from: IpAddr) -> bool {
        self.everyone || (self.loopback && from.is_loopback()) || self.addresses.contains(&from)
    }
}

/// Hosts and their addresses. Host numbers are local to this process, except those of a fabric.
#[derive(Clone, Debug)]
pub(crate) struct Peers {
    addresses: BTreeMap<HostId, SocketAddr>,
    hosts: BTreeMap<SocketAddr, HostId>,
    admission: Admission,
    next: u32,
    /// Peers that were learnt from their packets, and the value of `heard` at the last packet of each.
    learnt: BTreeMap<HostId, u64>,
    /// The same by that value, so that the peer that has been silent for longest is the first one.
    by_age: BTreeMap<u64, HostId>,
    heard: u64,
}

/// Converts an IPv4-mapped IPv6 address to IPv4, and leaves others unchanged.
pub(crate) fn plain(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::V4(SocketAddrV4::new(v4, v6.port())),
            None => address,
        },
        SocketAddr::V4(_) => address,
    }
}

impl Peers {
    /// Creates the table. `first` is the first number for peers outside the fabric.
    pub(crate) fn new(admission: Admission, first: u32) -> Self {
        let (addresses, hosts) = (BTreeMap::new(), BTreeMap::new());
        let (learnt, by_age) = (BTreeMap::new(), BTreeMap::new());
        Self { addresses, hosts, admission, next: first, learnt, by_age, heard: 0 }
    }

    pub(crate) fn address(&self, host: HostId) -> Option<SocketAddr> {
        self.addresses.get(&host).copied()
    }

    pub(crate) fn set(&mut self, host: HostId, address: SocketAddr) {
        let address = plain(address);
        self.addresses.insert(host, address);
        self.hosts.insert(address, host);
    }

    /// Returns the number of a peer that the user has named, and adds it if it is new.
    pub(crate) fn add(&mut self, address: SocketAddr) -> HostId {
        let address = plain(address);
        if let Some(host) = self.hosts.get(&address) {
            if let Some(heard) = self.learnt.remove(host) {
                self.by_age.remove(&heard);
            }
            return *host;
        }
        let host = HostId(self.next);
        self.next += 1;
        self.set(host, address);
        host
    }

    /// Returns the number of the host at an address, if it is known.
    pub(crate) fn find(&mut self, from: SocketAddr) -> Option<HostId> {
        let host = *self.hosts.get(&plain(from))?;
        // Most packets come from the peer of the packet before, whose place does not change.
        if let Some(heard) = self.learnt.get_mut(&host)
            && *heard != self.heard
        {
            self.by_age.remove(heard);
            self.heard += 1;
            *heard = self.heard;
            self.by_age.insert(self.heard, host);
        }
        Some(host)
    }

    /// Returns the number of the host at an address that has proved to receive there, and adds it if it is new. `None` if
    /// its packets are not accepted. With it is returned whether the number was that of another host, which is forgotten.
    pub(crate) fn learn(&mut self, from: SocketAddr) -> Option<(HostId, bool)> {
        let from = plain(from);
        if let Some(host) = self.find(from) {
            return Some((host, false));
        }
        if !self.admission.admits(from.ip()) {
            return None;
        }
        // Each `cast send` uses another port, so an agent meets an unlimited number of peers over time.
        let full = self.learnt.len() >= MAX_LEARNT;
        let forgotten = full.then(|| self.by_age.pop_first()).flatten();
        let host = match forgotten {
            Some((_, oldest)) => {
                if let Some(address) = self.addresses.remove(&oldest) {
                    self.hosts.remove(&address);
                }
                self.set(oldest, from);
                oldest
            }
            None => self.add(from),
        };
        self.heard += 1;
        self.learnt.insert(host, self.heard);
        self.by_age.insert(self.heard, host);
        Some((host, forgotten.is_some()))
    }

    /// Returns whether packets from an address are accepted, without learning the peer.
    pub(crate) fn admits(&self, from: SocketAddr) -> bool {
        let from = plain(from);
        self.hosts.contains_key(&from) || self.admission.admits(from.ip())
    }
}

/// Returns the interface of an IPv4 address; unspecified for IPv6.
pub(crate) const fn interface(address: SocketAddr) -> Ipv4Addr {
    match address {
        SocketAddr::V4(v4) => *v4.ip(),
        SocketAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_is_let_in_is_listened_to() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let admission =
            Admission { loopback: true, addresses: vec![at("192.0.2.7:1").ip()], everyone: false };
        let mut peers = Peers::new(admission, 1);
        let named = peers.add(at("192.0.2.1:6722"));
        let known = |host| Some((host, false));
        assert_eq!(peers.find(at("[::ffff:192.0.2.1]:6722")), Some(named));
        assert_eq!(peers.learn(at("192.0.2.1:6722")), known(named));
        assert_eq!(peers.learn(at("192.0.2.1:6723")), None);
        assert_eq!(peers.learn(at("192.0.2.9:6722")), None);
        assert_eq!(peers.find(at("192.0.2.7:99")), None);
        let (learnt, _) = peers.learn(at("192.0.2.7:99")).unwrap();
        assert_ne!(learnt, named);
        assert_eq!(peers.address(learnt), Some(at("192.0.2.7:99")));
        assert!(peers.learn(at("127.0.0.1:5")).is_some());
        let (busy, _) = peers.learn(at("127.0.0.1:60000")).unwrap();
        let mut forgotten = 0;
        for port in 1..10_000_u16 {
            let found = peers.learn(SocketAddr::new(at("127.0.0.1:5").ip(), port));
            forgotten += usize::from(found.unwrap().1);
            assert_eq!(peers.find(at("127.0.0.1:60000")), Some(busy), "{port}");
        }
        assert!(forgotten > 5000);
        assert!(peers.addresses.len() <= MAX_LEARNT + 1 && peers.hosts.len() <= MAX_LEARNT + 1);
        assert!(peers.learnt.len() <= MAX_LEARNT && peers.by_age.len() == peers.learnt.len());
        assert_eq!(peers.address(named), Some(at("192.0.2.1:6722")));
    }

    /// The table agrees with one in which the peer to forget is looked for among all.
    #[test]
    fn who_has_been_silent_for_longest_is_forgotten() {
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let admission = Admission { loopback: true, ..Admission::default() };
        let mut peers = Peers::new(admission, 1);
        let mut order: Vec<u16> = Vec::new();
        let mut number = 1_u64;
        for _ in 0..60_000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let port = (number >> 40) as u16 % 6000 + 1;
            assert_eq!(peers.hosts.contains_key(&at(port)), order.contains(&port));
            peers.learn(at(port)).unwrap();
            order.retain(|other| *other != port);
            order.push(port);
            if order.len() > MAX_LEARNT {
                order.remove(0);
            }
        }
        assert_eq!(peers.hosts.len(), MAX_LEARNT);
        assert_eq!((peers.learnt.len(), peers.by_age.len()), (MAX_LEARNT, MAX_LEARNT));
        let named = peers.add(at(order[0]));
        assert_eq!((peers.learnt.len(), peers.by_age.len()), (MAX_LEARNT - 1, MAX_LEARNT - 1));
        peers.learn(at(7001)).unwrap();
        peers.learn(at(7002)).unwrap();
        assert_eq!(peers.address(named), Some(at(order[0])), "a named one stays");
        assert!(!peers.hosts.contains_key(&at(order[1])));
    }
}
