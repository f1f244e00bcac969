//! Peers by number and by address: which one sends by a path, and which one makes room for a stranger.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::{Deref, DerefMut, Range};

use rackweave_core::{HostId, Span, Time};
use rustc_hash::FxHashMap;

use crate::sys::Path;

/// Converts an IPv4-mapped IPv6 address, which a socket for both shows, to IPv4; others stay as they are.
#[must_use]
pub fn plain(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => address,
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::from((v4, v6.port())),
            None => address,
        },
    }
}

/// The party of an address, by which places are shared: an IPv4 address, or a network of IPv6 with 64 bits for its hosts, in which one host
/// has as many addresses as it likes. Pages share theirs by the same rule (`rackweave_page::Party`).
#[must_use]
pub const fn party(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

/// The limit of an [`AddressTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strangers {
    /// The most peers at a time that nobody has named.
    pub most: usize,
    /// A stranger is removed for another one only after it was silent for this long.
    pub silent: Span,
}

impl Strangers {
    /// All peers are named.
    pub const NONE: Self = Self { most: 0, silent: Span::MAX };
}

/// A peer of an [`AddressTable`], and what the table's owner keeps of it.
#[derive(Debug)]
pub struct Known<T> {
    path: Path,
    /// For a stranger: when it was last heard, and under which time it is in [`AddressTable::strangers`].
    stranger: Option<(Time, Time)>,
    value: T,
}

impl<T> Known<T> {
    /// Its address, and that of this host at which it has last proved itself.
    pub const fn path(&self) -> Path {
        self.path
    }

    /// Records that it is heard now.
    pub const fn touch(&mut self, now: Time) {
        if let Some((heard, _)) = &mut self.stranger {
            *heard = now;
        }
    }
}

impl<T> Deref for Known<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Known<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// Peers by number and by address. Named ones stay; of strangers there is a bounded number, and the one that was silent for
/// longest makes room for a further one.
///
/// A number names another peer only after all other free numbers have been given.
#[derive(Debug)]
pub struct AddressTable<T> {
    peers: FxHashMap<HostId, Known<T>>,
    by_address: FxHashMap<SocketAddr, HostId>,
    /// Strangers at an address of `by_address` whose packets go to another address of this host. To them this host is two peers, so that
    /// they are two to this host as well.
    by_path: FxHashMap<(SocketAddr, IpAddr), HostId>,
    /// Strangers, by a time at or before that at which they were last heard. It is brought up to date only when room is needed, so that a
    /// packet costs nothing here.
    strangers: BTreeSet<(Time, HostId)>,
    limit: Strangers,
    numbers: Range<u32>,
    next: u32,
}

impl<T> AddressTable<T> {
    /// An empty table, which gives these numbers. There must be more numbers than peers.
    #[must_use]
    pub fn new(numbers: Range<u32>, limit: Strangers) -> Self {
        Self {
            peers: FxHashMap::default(),
            by_address: FxHashMap::default(),
            by_path: FxHashMap::default(),
            strangers: BTreeSet::new(),
            limit,
            next: numbers.start,
            numbers,
        }
    }

    /// The number of peers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// The number of peers that nobody has named.
    #[must_use]
    pub fn strangers(&self) -> usize {
        self.strangers.len()
    }

    /// Whether a number is a peer's.
    #[must_use]
    pub fn knows(&self, host: HostId) -> bool {
        self.peers.contains_key(&host)
    }

    /// The peer with a number.
    #[must_use]
    pub fn get(&self, host: HostId) -> Option<&Known<T>> {
        self.peers.get(&host)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, host: HostId) -> Option<&mut Known<T>> {
        self.peers.get_mut(&host)
    }

    /// All peers, in no order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (HostId, &mut Known<T>)> {
        self.peers.iter_mut().map(|(host, peer)| (*host, peer))
    }

    /// The first peer at an address, whichever address of this host it sends to.
    #[must_use]
    pub fn at_address(&self, address: SocketAddr) -> Option<HostId> {
        self.by_address.get(&plain(address)).copied()
    }

    /// The peer that sends by a path.
    #[must_use]
    pub fn at(&self, path: Path) -> Option<HostId> {
        let remote = plain(path.remote);
        let first = self.by_address.get(&remote).copied();
        let Some(local) = path.local else { return first };
        let fits = |peer: &Known<T>| peer.path.local.is_none_or(|known| known == local);
        first
            .filter(|host| self.peers.get(host).is_some_and(fits))
            .or_else(|| self.by_path.get(&(remote, local)).copied())
    }

    /// Names a peer. One that has had the number or the address before has it no more.
    pub fn insert(&mut self, host: HostId, address: SocketAddr, value: T) {
        self.remove(host);
        self.put(host, address.into(), value, None);
    }

    /// Names a peer behind an address that others share, and at which it is not found.
    pub fn insert_behind(&mut self, host: HostId, address: SocketAddr, value: T) {
        let path = Path::from(plain(address));
        self.peers.insert(host, Known { path, stranger: None, value });
    }

    /// Names the peer at an address, and returns its number: a new one unless it is known.
    pub fn add(&mut self, address: SocketAddr, value: impl FnOnce() -> T) -> HostId {
        if let Some(host) = self.at_address(address) {
            self.name(host);
            return host;
        }
        let host = self.next_number();
        self.insert(host, address, value());
        host
    }

    /// Keeps a stranger for good.
    fn name(&mut self, host: HostId) {
        if let Some((_, queued)) = self.peers.get_mut(&host).and_then(|it| it.stranger.take()) {
            self.strangers.remove(&(queued, host));
        }
    }

    /// Adds a stranger that sends by a path which is nobody's. `None` if there are too many that were not silent for long enough, or are
    /// `in_use`.
    pub fn admit(
        &mut self,
        now: Time,
        path: Path,
        in_use: impl Fn(HostId) -> bool,
        value: T,
    ) -> Option<HostId> {
        if self.strangers.len() >= self.limit.most {
            let oldest = self.most_silent(now, in_use)?;
            self.remove(oldest);
        }
        let host = self.next_number();
        self.put(host, path, value, Some((now, now)));
        self.strangers.insert((now, host));
        Some(host)
    }

    fn put(&mut self, host: HostId, path: Path, value: T, stranger: Option<(Time, Time)>) {
        let path = Path { remote: plain(path.remote), ..path };
        match path.local {
            Some(local) if self.by_address.contains_key(&path.remote) => {
                self.by_path.insert((path.remote, local), host);
            }
            _ => {
                self.by_address.insert(path.remote, host);
            }
        }
        self.peers.insert(host, Known { path, stranger, value });
    }

    /// A number that no peer has. There are more numbers than peers.
    pub fn next_number(&mut self) -> HostId {
        loop {
            let host = HostId(self.next);
            self.next = match self.next + 1 {
                end if end >= self.numbers.end => self.numbers.start,
                next => next,
            };
            if !self.peers.contains_key(&host) {
                return host;
            }
        }
    }

    /// The stranger that was silent for longest, among strangers that are not in use and were silent for long enough.
    fn most_silent(&mut self, now: Time, in_use: impl Fn(HostId) -> bool) -> Option<HostId> {
        let mut used = None;
        loop {
            let next = match used {
                None => self.strangers.first(),
                Some(used) => self.strangers.range((Excluded(used), Unbounded)).next(),
            };
            let (queued, host) = *next?;
            if now.since(queued) < self.limit.silent {
                return None;
            }
            let peer = self.peers.get_mut(&host)?;
            let (heard, _) = peer.stranger?;
            if heard > queued {
                peer.stranger = Some((heard, heard));
                self.strangers.remove(&(queued, host));
                self.strangers.insert((heard, host));
            } else if in_use(host) {
                used = Some((queued, host));
            } else {
                return Some(host);
            }
        }
    }

    /// Removes a peer.
    pub fn remove(&mut self, host: HostId) -> Option<T> {
        self.name(host);
        let Known { path: Path { remote, local }, value, .. } = self.peers.remove(&host)?;
        if self.by_address.get(&remote) == Some(&host) {
            self.by_address.remove(&remote);
        } else if let Some(local) = local {
            self.by_path.remove(&(remote, local));
        }
        Some(value)
    }

    /// Records that an authentic packet of a peer has arrived now, at this address of the host: the peer is answered from there. A packet
    /// that proves nothing must not change that.
    pub fn prove(&mut self, now: Time, host: HostId, local: Option<IpAddr>) {
        let Some(peer) = self.peers.get_mut(&host) else { return };
        peer.touch(now);
        peer.path.local = local.or(peer.path.local);
    }

    /// Forgets an address that this host does not have any more: peers are sent to from another one.
    pub fn forget_local(&mut self, local: IpAddr) {
        let by_path = &self.by_path;
        let sent_from = |host: &HostId, peer: &Known<T>| {
            let is_other = by_path.get(&(peer.path.remote, local)) == Some(host);
            peer.path.local == Some(local) && !is_other
        };
        let peers = self.peers.iter_mut().filter(|(host, peer)| sent_from(host, peer));
        peers.for_each(|(_, peer)| peer.path.local = None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Strangers = Strangers { most: 64, silent: Span::from_secs(20) };

    fn table() -> AddressTable<u32> {
        AddressTable::new(100..1000, LIMIT)
    }

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_ms(ms)
    }

    fn admit(table: &mut AddressTable<u32>, now: Time, port: u16) -> Option<HostId> {
        table.admit(now, address(port).into(), |_| false, 0)
    }

    #[test]
    fn a_network_of_ipv6_is_one_party() {
        let of = |text: &str| party(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }

    #[test]
    fn an_ipv4_mapped_address_is_the_ipv4_address() {
        let mut table = table();
        let mapped = SocketAddr::from((std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped(), 5));
        let host = table.add(mapped, || 7);
        assert_eq!(table.add(address(5), || 8), host);
        assert_eq!(
            (table.at(mapped.into()), table.at(address(5).into())),
            (Some(host), Some(host))
        );
        assert_eq!(table.get(host).map(|it| (it.path().remote, **it)), Some((address(5), 7)));
        let local = Some(IpAddr::from([127, 0, 0, 9]));
        let path = Path { remote: mapped, local };
        table.prove(at(0), host, local);
        assert_eq!(table.at(path), Some(host));
        let other = Path { remote: mapped, local: Some(IpAddr::from([127, 0, 0, 8])) };
        let second = table.admit(at(0), other, |_| false, 9).unwrap();
        assert_eq!(table.at(Path { remote: address(5), ..other }), Some(second));
    }

    /// To a host, two addresses of this one are two peers, and so they are here.
    #[test]
    fn a_stranger_that_sends_to_two_addresses_of_this_host_is_two() {
        let mut table = table();
        let [first, second] = [2, 3]
            .map(|last| Path { remote: address(5), local: Some(IpAddr::from([127, 0, 0, last])) });
        let one = table.admit(at(0), first, |_| false, 1).unwrap();
        assert_eq!((table.at(first), table.at(second)), (Some(one), None));
        let two = table.admit(at(0), second, |_| false, 2).unwrap();
        assert_eq!((table.at(first), table.at(second)), (Some(one), Some(two)));
        // What comes by multicast is the first one's.
        assert_eq!(table.at(address(5).into()), Some(one));
        table.forget_local(IpAddr::from([127, 0, 0, 3]));
        assert_eq!(table.get(two).unwrap().path(), second, "nothing else tells the two apart");
        assert_eq!((table.remove(two), table.at(second)), (Some(2), None));
        // One that was named is known by the first address at which it has proved itself, while this host has that.
        let named = table.add(address(6), || 3);
        let [path, moved] = [first, second].map(|path| Path { remote: address(6), ..path });
        assert_eq!(table.at(moved), Some(named));
        table.prove(at(1), named, path.local);
        table.prove(at(2), named, None);
        assert_eq!((table.at(path), table.at(moved)), (Some(named), None));
        assert_eq!(table.get(named).unwrap().path(), path);
        table.forget_local(IpAddr::from([127, 0, 0, 2]));
        assert_eq!(table.at(moved), Some(named));
        // Both strangers go in time, and leave nothing.
        let two = table.admit(at(2), second, |_| false, 2).unwrap();
        for port in 0..LIMIT.most as u16 {
            assert!(admit(&mut table, at(60_000), 1000 + port).is_some());
        }
        assert!(!table.knows(one) && !table.knows(two) && table.by_path.is_empty());
        assert_eq!((table.len(), table.by_address.len()), (LIMIT.most + 1, LIMIT.most + 1));
    }

    /// The table agrees with one in which the stranger to remove is looked for among all.
    #[test]
    fn the_stranger_that_was_silent_for_longest_makes_room() {
        let mut table = table();
        let mut order: Vec<u16> = Vec::new();
        let (mut number, mut now) = (1_u64, Time::ZERO);
        for _ in 0..20_000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            now += Span::from_ms(400);
            let port = (number >> 40) as u16 % 96 + 1;
            match table.at(address(port).into()) {
                Some(host) => {
                    assert!(order.contains(&port));
                    table.get_mut(host).unwrap().touch(now);
                }
                None => {
                    assert!(!order.contains(&port));
                    admit(&mut table, now, port).unwrap();
                }
            }
            order.retain(|other| *other != port);
            order.push(port);
            if order.len() > LIMIT.most {
                order.remove(0);
            }
        }
        assert_eq!((table.len(), table.strangers()), (LIMIT.most, LIMIT.most));
        let named = table.add(address(order[0]), || 0);
        assert_eq!((table.len(), table.strangers()), (LIMIT.most, LIMIT.most - 1));
        for port in [701, 702] {
            now += Span::from_secs(30);
            admit(&mut table, now, port).unwrap();
        }
        assert_eq!(table.at(address(order[0]).into()), Some(named), "a named one stays");
        assert_eq!(table.at(address(order[1]).into()), None);
    }

    /// Whoever proves very many addresses takes no other peer's place while that is heard, is in use, or was heard a moment ago.
    #[test]
    fn a_flood_of_addresses_replaces_no_peer_that_is_heard_or_in_use() {
        let mut table = table();
        let used = admit(&mut table, at(0), 1).unwrap();
        let heard = admit(&mut table, at(0), 2).unwrap();
        let silent = admit(&mut table, at(0), 3).unwrap();
        let named = table.add(address(4), || 0);
        let mut port = 1000;
        let mut flood = |table: &mut AddressTable<u32>, now: Time| {
            let mut admitted = 0;
            for _ in 0..1000 {
                port += 1;
                let path = address(port).into();
                admitted += usize::from(table.admit(now, path, |it| it == used, 0).is_some());
            }
            admitted
        };
        assert_eq!(flood(&mut table, at(0)), LIMIT.most - 3);
        for second in (2..20).step_by(2) {
            table.prove(at(second * 1000), heard, None);
            assert_eq!(flood(&mut table, at(second * 1000)), 0);
        }
        assert_eq!(flood(&mut table, at(20_000)), LIMIT.most - 2);
        assert!(table.knows(used) && table.knows(heard) && !table.knows(silent));
        assert_eq!(table.at(address(1).into()), Some(used));
        assert_eq!((table.strangers(), table.len()), (LIMIT.most, LIMIT.most + 1));
        assert!(table.knows(named));
    }

    #[test]
    fn without_strangers_all_peers_are_named() {
        let mut table: AddressTable<()> = AddressTable::new(0..9, Strangers::NONE);
        assert_eq!(table.admit(at(0), address(1).into(), |_| false, ()), None);
        assert_eq!(table.admit(Time::MAX, address(1).into(), |_| false, ()), None);
        assert!(table.is_empty());
    }

    #[test]
    fn a_number_is_not_given_again_before_all_others() {
        let mut table: AddressTable<()> = AddressTable::new(7..12, LIMIT);
        let hosts: Vec<_> = (1..4).map(|port| table.add(address(port), || ()).0).collect();
        assert_eq!(hosts, [7, 8, 9]);
        table.remove(HostId(8));
        assert_eq!(table.at(address(2).into()), None);
        let next: Vec<_> = (4..7).map(|port| table.add(address(port), || ()).0).collect();
        assert_eq!(next, [10, 11, 8]);
        // Peers behind one address have numbers that others gave them, and are not found at it.
        table.insert_behind(HostId(1), address(9), ());
        assert!(table.knows(HostId(1)) && table.at(address(9).into()).is_none());
        table.insert(HostId(8), address(8), ());
        assert_eq!((table.at(address(6).into()), table.len()), (None, 6));
    }
}
