//! Who is where, and who is listened to.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use rackweave_core::HostId;

/// Most peers that are learnt.
const MAX_LEARNT: u32 = 4096;

/// Whose packets are looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Anybody's: packets are keyed.
    pub anybody: bool,
    /// Those from this machine.
    pub loopback: bool,
    /// Those from these addresses.
    pub addresses: Vec<IpAddr>,
}

impl Admission {
    fn admits(&self, from: IpAddr) -> bool {
        self.anybody || (self.loopback && from.is_loopback()) || self.addresses.contains(&from)
    }
}

/// Hosts and their addresses. Numbers are this process's own, but for those that a fabric gives.
#[derive(Clone, Debug)]
pub(crate) struct Peers {
    addresses: BTreeMap<HostId, SocketAddr>,
    hosts: BTreeMap<SocketAddr, HostId>,
    admission: Admission,
    next: u32,
    learnt: u32,
}

/// The same address, however it is written.
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
    /// `first`: the number of the first peer that is not in a fabric.
    pub(crate) fn new(admission: Admission, first: u32) -> Self {
        let (addresses, hosts) = (BTreeMap::new(), BTreeMap::new());
        Self { addresses, hosts, admission, next: first, learnt: 0 }
    }

    pub(crate) fn address(&self, host: HostId) -> Option<SocketAddr> {
        self.addresses.get(&host).copied()
    }

    pub(crate) fn set(&mut self, host: HostId, address: SocketAddr) {
        let address = plain(address);
        self.addresses.insert(host, address);
        self.hosts.insert(address, host);
    }

    /// The number of a peer that the user has named.
    pub(crate) fn add(&mut self, address: SocketAddr) -> HostId {
        let address = plain(address);
        if let Some(host) = self.hosts.get(&address) {
            return *host;
        }
        let host = HostId(self.next);
        self.next += 1;
        self.set(host, address);
        host
    }

    /// Who has sent this; `None`: nobody that is listened to.
    pub(crate) fn who(&mut self, from: SocketAddr) -> Option<HostId> {
        let from = plain(from);
        if let Some(host) = self.hosts.get(&from) {
            return Some(*host);
        }
        if !self.admission.admits(from.ip()) || self.learnt >= MAX_LEARNT {
            return None;
        }
        self.learnt += 1;
        Some(self.add(from))
    }

    /// Whether this is looked at, without learning anything.
    pub(crate) fn admits(&self, from: SocketAddr) -> bool {
        let from = plain(from);
        self.hosts.contains_key(&from) || self.admission.admits(from.ip())
    }
}

/// The interface whose address this is; unspecified for addresses that are none of IPv4.
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
            Admission { loopback: true, addresses: vec![at("192.0.2.7:1").ip()], anybody: false };
        let mut peers = Peers::new(admission, 1);
        let named = peers.add(at("192.0.2.1:6722"));
        assert_eq!(peers.who(at("[::ffff:192.0.2.1]:6722")), Some(named));
        assert_eq!(peers.who(at("192.0.2.1:6723")), None);
        assert_eq!(peers.who(at("192.0.2.9:6722")), None);
        let learnt = peers.who(at("192.0.2.7:99")).unwrap();
        assert_ne!(learnt, named);
        assert_eq!(peers.address(learnt), Some(at("192.0.2.7:99")));
        assert!(peers.who(at("127.0.0.1:5")).is_some());
        for port in 0..10_000_u16 {
            let _ = peers.who(SocketAddr::new(at("127.0.0.1:5").ip(), port));
        }
        assert!(peers.addresses.len() <= MAX_LEARNT as usize + 1);
    }
}
