//! Hosts and their addresses, and the admission of packets.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use rackweave_core::{HostId, Span, Time};
use rackweave_crypt::handshake::OFFER_LIFETIME;
use rackweave_linux::sys::Path;

/// The largest number of peers that are learnt from their packets. A further one replaces the one that has been silent
/// for longest, if that was for [`LEAST_SILENCE`].
const MAX_LEARNT: usize = 4096;

/// How long a peer must have been silent before another one replaces it. Twice as long as its last acceptance can be repeated
/// ([`OFFER_LIFETIME`]), which would begin the session of the two once more; and longer than a live session is silent.
const LEAST_SILENCE: Span = Span::from_ticks(2 * OFFER_LIFETIME.ticks());

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
    /// The address of each host, and that of this one at which it has last proved itself.
    paths: BTreeMap<HostId, Path>,
    hosts: BTreeMap<SocketAddr, HostId>,
    /// Learnt hosts at an address of `hosts` that have sent to another address of this host, which is two hosts to them.
    others: BTreeMap<(SocketAddr, IpAddr), HostId>,
    admission: Admission,
    /// The hosts of a fabric have lower numbers, and are admitted as it names them.
    first: u32,
    next: u32,
    /// Peers that were learnt from their packets, and the value of `heard` at the last packet of each.
    learnt: BTreeMap<HostId, u64>,
    /// The same by that value, so that the peer that has been silent for longest is the first one, with the packet's time.
    by_age: BTreeMap<u64, (HostId, Time)>,
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
        let (paths, hosts, others) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (learnt, by_age) = (BTreeMap::new(), BTreeMap::new());
        Self { paths, hosts, others, admission, first, next: first, learnt, by_age, heard: 0 }
    }

    pub(crate) fn address(&self, host: HostId) -> Option<SocketAddr> {
        self.paths.get(&host).map(|path| path.remote)
    }

    /// Returns the path by which a host is sent to.
    pub(crate) fn path(&self, host: HostId) -> Option<Path> {
        self.paths.get(&host).copied()
    }

    pub(crate) fn set(&mut self, host: HostId, address: SocketAddr) {
        let address = plain(address);
        self.paths.insert(host, address.into());
        self.hosts.insert(address, host);
    }

    /// Records that a host has proved itself by a packet to this address of this host: it is answered from there. A packet that proves
    /// nothing must not change that.
    pub(crate) fn prove(&mut self, host: HostId, local: Option<IpAddr>) {
        if let Some(local) = local
            && let Some(path) = self.paths.get_mut(&host)
        {
            path.local = Some(local);
        }
    }

    /// Forgets an address that this host does not have any more: others are sent to from another one.
    pub(crate) fn forget_local(&mut self, local: IpAddr) {
        for host in self.hosts.values() {
            if let Some(path) = self.paths.get_mut(host) {
                path.local.take_if(|it| *it == local);
            }
        }
    }

    /// Returns the number of the host that sends by a path.
    fn at_path(&self, path: Path) -> Option<HostId> {
        let remote = plain(path.remote);
        let first = self.hosts.get(&remote).copied();
        let Some(local) = path.local else { return first };
        let known = |host: &HostId| self.paths.get(host).and_then(|path| path.local);
        let fits = |host: &HostId| known(host).is_none_or(|it| it == local);
        first.filter(fits).or_else(|| self.others.get(&(remote, local)).copied())
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
    pub(crate) fn find(&mut self, now: Time, from: Path) -> Option<HostId> {
        let host = self.at_path(from)?;
        if let Some(heard) = self.learnt.get_mut(&host) {
            // Most packets come from the peer of the packet before, whose place does not change.
            if *heard != self.heard {
                self.by_age.remove(heard);
                self.heard += 1;
                *heard = self.heard;
            }
            self.by_age.insert(self.heard, (host, now));
        }
        Some(host)
    }

    /// Returns the number of the host that sends by a path and has proved to receive at its address, and adds it if it is new. `None` if
    /// its packets are not accepted, or if there are too many hosts that have not been silent or are `in_use`. With it is returned
    /// whether the number was that of another host, which is forgotten.
    pub(crate) fn learn(
        &mut self,
        now: Time,
        from: Path,
        in_use: impl Fn(HostId) -> bool,
    ) -> Option<(HostId, bool)> {
        let from = Path { remote: plain(from.remote), ..from };
        if let Some(host) = self.find(now, from) {
            self.prove(host, from.local);
            return Some((host, false));
        }
        if !self.admits(from.remote) {
            return None;
        }
        // Each `cast send` uses another port, so an agent meets an unlimited number of peers over time.
        let full = self.learnt.len() >= MAX_LEARNT;
        let silent = |(_, heard): &(HostId, Time)| now.since(*heard) >= LEAST_SILENCE;
        let mut oldest = self.by_age.iter().take_while(|(_, it)| silent(it));
        let unused = oldest.find(|(_, (host, _))| !in_use(*host)).map(|(age, it)| (*age, it.0));
        if full && unused.is_none() {
            return None;
        }
        let forgotten = unused.filter(|_| full);
        let host = match forgotten {
            Some((age, oldest)) => {
                self.by_age.remove(&age);
                self.learnt.remove(&oldest);
                self.forget(oldest);
                oldest
            }
            None => {
                self.next += 1;
                HostId(self.next - 1)
            }
        };
        self.paths.insert(host, from);
        match from.local {
            Some(local) if self.hosts.contains_key(&from.remote) => {
                self.others.insert((from.remote, local), host);
            }
            _ => {
                self.hosts.insert(from.remote, host);
            }
        }
        self.heard += 1;
        self.learnt.insert(host, self.heard);
        self.by_age.insert(self.heard, (host, now));
        Some((host, forgotten.is_some()))
    }

    fn forget(&mut self, host: HostId) {
        let Some(Path { remote, local }) = self.paths.remove(&host) else { return };
        if self.hosts.get(&remote) == Some(&host) {
            self.hosts.remove(&remote);
        } else if let Some(local) = local {
            self.others.remove(&(remote, local));
        }
    }

    /// Returns whether streams are accepted from an address. Receivers of this host's own streams are not admitted as senders for that.
    pub(crate) fn admits_sender(&self, from: SocketAddr) -> bool {
        let from = plain(from);
        let of_fabric = |host: &HostId| host.0 < self.first;
        self.admission.admits(from.ip()) || self.hosts.get(&from).is_some_and(of_fabric)
    }

    /// Returns whether packets from an address are accepted, without learning the peer: those of senders, and of the receivers of this
    /// host's own streams.
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

    fn idle(_: HostId) -> bool {
        false
    }

    #[test]
    fn only_who_is_let_in_is_listened_to() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let path = |text: &str| Path::from(at(text));
        let mut now = Time::ZERO;
        let admission =
            Admission { loopback: true, addresses: vec![at("192.0.2.7:1").ip()], everyone: false };
        let mut peers = Peers::new(admission, 1);
        let named = peers.add(at("192.0.2.1:6722"));
        let known = |host| Some((host, false));
        assert_eq!(peers.find(now, path("[::ffff:192.0.2.1]:6722")), Some(named));
        assert_eq!(peers.learn(now, path("192.0.2.1:6722"), idle), known(named));
        assert_eq!(peers.learn(now, path("192.0.2.1:6723"), idle), None);
        assert_eq!(peers.learn(now, path("192.0.2.9:6722"), idle), None);
        assert_eq!(peers.find(now, path("192.0.2.7:99")), None);
        let (learnt, _) = peers.learn(now, path("192.0.2.7:99"), idle).unwrap();
        assert_ne!(learnt, named);
        assert_eq!(peers.address(learnt), Some(at("192.0.2.7:99")));
        assert!(peers.learn(now, path("127.0.0.1:5"), idle).is_some());
        let (busy, _) = peers.learn(now, path("127.0.0.1:60000"), idle).unwrap();
        let mut forgotten = 0;
        for port in 1..10_000_u16 {
            now += Span::from_ms(10);
            let found =
                peers.learn(now, SocketAddr::new(at("127.0.0.1:5").ip(), port).into(), idle);
            forgotten += usize::from(found.unwrap().1);
            assert_eq!(peers.find(now, path("127.0.0.1:60000")), Some(busy), "{port}");
        }
        assert!(forgotten > 5000);
        assert!(peers.paths.len() <= MAX_LEARNT + 1 && peers.hosts.len() <= MAX_LEARNT + 1);
        assert!(peers.learnt.len() <= MAX_LEARNT && peers.by_age.len() == peers.learnt.len());
        assert_eq!(peers.address(named), Some(at("192.0.2.1:6722")));
    }

    /// To a sender, two addresses of this host are two hosts.
    #[test]
    fn a_host_that_sends_to_two_addresses_of_this_one_is_two() {
        let remote = SocketAddr::from(([127, 0, 0, 1], 5));
        let [first, second] =
            [2, 3].map(|last| Path { remote, local: Some(IpAddr::from([127, 0, 0, last])) });
        let admission = Admission { loopback: true, ..Admission::default() };
        let mut peers = Peers::new(admission, 1);
        let mut now = Time::ZERO;
        let (one, _) = peers.learn(now, first, idle).unwrap();
        // A packet that proves nothing does not change the address from which the host is answered.
        assert_eq!(peers.find(now, second), None);
        assert_eq!(peers.path(one), Some(first));
        let (two, _) = peers.learn(now, second, idle).unwrap();
        assert_ne!(one, two);
        assert_eq!((peers.find(now, first), peers.find(now, second)), (Some(one), Some(two)));
        assert_eq!((peers.path(one), peers.path(two)), (Some(first), Some(second)));
        // What comes by multicast is the first one's.
        assert_eq!(peers.find(now, remote.into()), Some(one));
        // One that the user has named is known by the first address at which it has proved itself, while this host has that.
        let named = peers.add(SocketAddr::from(([127, 0, 0, 1], 6)));
        let [path, moved] = [first, second]
            .map(|path| Path { remote: SocketAddr::from(([127, 0, 0, 1], 6)), ..path });
        assert_eq!(peers.find(now, moved), Some(named));
        assert_eq!(peers.learn(now, path, idle), Some((named, false)));
        assert_eq!((peers.path(named), peers.find(now, moved)), (Some(path), None));
        peers.forget_local(IpAddr::from([127, 0, 0, 2]));
        assert_eq!(peers.find(now, moved), Some(named));
        peers.prove(one, first.local);
        // Both are forgotten for others in time.
        for port in 1000..6000 {
            now += Span::from_ms(10);
            peers.learn(now, SocketAddr::from(([127, 0, 0, 1], port)).into(), idle).unwrap();
        }
        assert_eq!((peers.find(now, first), peers.find(now, second)), (None, None));
        assert!(peers.others.is_empty() && peers.paths.len() == MAX_LEARNT + 1);
    }

    /// The table agrees with one in which the peer to forget is looked for among all.
    #[test]
    fn who_has_been_silent_for_longest_is_forgotten() {
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let admission = Admission { loopback: true, ..Admission::default() };
        let mut peers = Peers::new(admission, 1);
        let mut order: Vec<u16> = Vec::new();
        let (mut number, mut now) = (1_u64, Time::ZERO);
        for _ in 0..60_000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            now += Span::from_ms(10);
            let port = (number >> 40) as u16 % 6000 + 1;
            assert_eq!(peers.hosts.contains_key(&at(port)), order.contains(&port));
            peers.learn(now, at(port).into(), idle).unwrap();
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
        peers.learn(now, at(7001).into(), idle).unwrap();
        peers.learn(now, at(7002).into(), idle).unwrap();
        assert_eq!(peers.address(named), Some(at(order[0])), "a named one stays");
        assert!(!peers.hosts.contains_key(&at(order[1])));
    }

    /// Whoever proves very many addresses takes no other host's place while that is heard, is in use, or could have its
    /// handshake repeated.
    #[test]
    fn a_flood_of_addresses_replaces_no_host_that_is_heard_or_in_use() {
        let at =
            |n: u32| SocketAddr::from((Ipv4Addr::from(0x7f00_0000 + (n >> 8)), n as u16 & 255));
        let admission = Admission { loopback: true, ..Admission::default() };
        let mut peers = Peers::new(admission, 1);
        let mut now = Time::ZERO;
        let (used, _) = peers.learn(now, at(1).into(), idle).unwrap();
        let (heard, _) = peers.learn(now, at(2).into(), idle).unwrap();
        let (silent, _) = peers.learn(now, at(3).into(), idle).unwrap();
        let in_use = |host| host == used;
        let mut n = 1000;
        let mut flood = |peers: &mut Peers, now: Time| {
            (0..10_000)
                .filter(|_| {
                    n += 1;
                    peers.learn(now, at(n).into(), in_use).is_some()
                })
                .count()
        };
        assert_eq!(flood(&mut peers, now), MAX_LEARNT - 3);
        for _ in 0..9 {
            now += Span::from_secs(2);
            assert_eq!(peers.find(now, at(2).into()), Some(heard));
            assert_eq!(flood(&mut peers, now), 0);
        }
        now += Span::from_secs(2);
        assert_eq!(flood(&mut peers, now), MAX_LEARNT - 2);
        assert_eq!(peers.hosts.get(&at(1)), Some(&used));
        assert_eq!(peers.hosts.get(&at(2)), Some(&heard));
        assert_eq!(peers.hosts.get(&at(3)), None);
        assert_ne!(peers.address(silent), Some(at(3)));
        assert_eq!((peers.learnt.len(), peers.by_age.len()), (MAX_LEARNT, MAX_LEARNT));
    }
}
