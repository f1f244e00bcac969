//! Hosts and their addresses, and the admission of packets.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rackweave_core::{HostId, Span, Time};
use rackweave_crypt::handshake::OFFER_LIFETIME;
use rackweave_crypt::{self as crypt, Association, Held, KeyMismatch};
use rackweave_linux::addresses::{AddressTable, Known, Strangers, plain};
use rackweave_linux::sys::Path;
use rackweave_wire::orca::Control;

/// The largest number of peers that are learnt from their packets: each `cast send` uses another port, so an agent meets an unlimited
/// number over time. One makes room after twice as long as its last acceptance can be repeated ([`OFFER_LIFETIME`]), which would begin
/// the session of the two once more; and longer than a live session is silent.
const LEARNT: Strangers =
    Strangers { most: 4096, silent: Span::from_ticks(2 * OFFER_LIFETIME.ticks()) };

/// Numbers above are the protocol's.
const LAST: u32 = u32::MAX - 3;

/// The most control packets that wait for a session with one host.
const MAX_HELD: usize = 16;

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
#[derive(Debug)]
pub(crate) struct Peers {
    table: AddressTable<Peer>,
    admission: Admission,
    /// The hosts of a fabric have lower numbers, and are admitted as it names them.
    first: u32,
    /// This host's incarnation, in handshakes with all of them.
    incarnation: u32,
}

/// What is kept of one host besides its address.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    /// Sessions with it, if hosts have a key.
    pub(super) association: Association,
    /// Control packets that wait for a session.
    pub(super) held: Held<Control, MAX_HELD>,
    /// What its last notice said, if there was no session since.
    pub(super) mismatch: Option<KeyMismatch>,
}

impl crypt::Peers<HostId> for Peers {
    fn association(&self, peer: HostId) -> Option<&Association> {
        self.table.get(peer).map(|peer| &peer.association)
    }

    fn association_mut(&mut self, peer: HostId) -> Option<(&mut Association, u32)> {
        let incarnation = self.incarnation;
        self.table.get_mut(peer).map(|peer| (&mut peer.association, incarnation))
    }
}

impl Peers {
    /// Creates the table. `first` is the first number for peers outside the fabric.
    pub(crate) fn new(admission: Admission, first: u32, incarnation: u32) -> Self {
        Self { table: AddressTable::new(first..LAST, LEARNT), admission, first, incarnation }
    }

    /// This host's incarnation, as it announces it to all of them.
    pub(super) const fn incarnation(&self) -> u32 {
        self.incarnation
    }

    pub(super) fn get(&self, host: HostId) -> Option<&Known<Peer>> {
        self.table.get(host)
    }

    pub(super) fn get_mut(&mut self, host: HostId) -> Option<&mut Known<Peer>> {
        self.table.get_mut(host)
    }

    pub(crate) fn address(&self, host: HostId) -> Option<SocketAddr> {
        self.path(host).map(|path| path.remote)
    }

    /// Returns the path by which a host is sent to.
    pub(crate) fn path(&self, host: HostId) -> Option<Path> {
        self.table.get(host).map(|peer| peer.path())
    }

    pub(crate) fn set(&mut self, host: HostId, address: SocketAddr) {
        self.table.insert(host, address, Peer::default());
    }

    /// Records that a host has proved itself by a packet to this address of this host.
    pub(crate) fn prove(&mut self, now: Time, host: HostId, local: Option<IpAddr>) {
        self.table.prove(now, host, local);
    }

    /// Forgets an address that this host does not have any more.
    pub(crate) fn forget_local(&mut self, local: IpAddr) {
        self.table.forget_local(local);
    }

    /// Returns the number of a peer that the user has named, and adds it if it is new.
    pub(crate) fn add(&mut self, address: SocketAddr) -> HostId {
        self.table.add(address, Peer::default)
    }

    /// Returns the number of the host at an address, if it is known.
    pub(crate) fn find(&mut self, now: Time, from: Path) -> Option<HostId> {
        let host = self.table.at(from)?;
        if let Some(peer) = self.table.get_mut(host) {
            peer.touch(now);
        }
        Some(host)
    }

    /// Returns the number of the host that sends by a path and has proved to receive at its address, and adds it if it is new. `None` if
    /// its packets are not accepted, or if there are too many hosts that have not been silent or are `in_use`.
    pub(crate) fn learn(
        &mut self,
        now: Time,
        from: Path,
        in_use: impl Fn(HostId) -> bool,
    ) -> Option<HostId> {
        if let Some(host) = self.table.at(from) {
            self.table.prove(now, host, from.local);
            return Some(host);
        }
        if !self.admits(from.remote) {
            return None;
        }
        self.table.admit(now, from, in_use, Peer::default())
    }

    /// Returns whether streams are accepted from an address. Receivers of this host's own streams are not admitted as senders for that.
    pub(crate) fn admits_sender(&self, from: SocketAddr) -> bool {
        let of_fabric = |host: HostId| host.0 < self.first;
        self.admission.admits(plain(from).ip())
            || self.table.at_address(from).is_some_and(of_fabric)
    }

    /// Returns whether packets from an address are accepted, without learning the peer: those of senders, and of the receivers of this
    /// host's own streams.
    pub(crate) fn admits(&self, from: SocketAddr) -> bool {
        self.table.at_address(from).is_some() || self.admission.admits(plain(from).ip())
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
        let mut peers = Peers::new(admission, 1, 7);
        let named = peers.add(at("192.0.2.1:6722"));
        assert_eq!(peers.find(now, path("[::ffff:192.0.2.1]:6722")), Some(named));
        assert_eq!(peers.learn(now, path("192.0.2.1:6722"), idle), Some(named));
        assert_eq!(peers.learn(now, path("192.0.2.1:6723"), idle), None);
        assert_eq!(peers.learn(now, path("192.0.2.9:6722"), idle), None);
        assert_eq!(peers.find(now, path("192.0.2.7:99")), None);
        let learnt = peers.learn(now, path("[::ffff:192.0.2.7]:99"), idle).unwrap();
        assert_ne!(learnt, named);
        assert_eq!(peers.address(learnt), Some(at("192.0.2.7:99")));
        assert!(peers.learn(now, path("127.0.0.1:5"), idle).is_some());
        let busy = peers.learn(now, path("127.0.0.1:60000"), idle).unwrap();
        // Any packet keeps a place, and so does a session.
        let used = peers.learn(now, path("127.0.0.1:60001"), idle).unwrap();
        for port in 1..10_000_u16 {
            now += Span::from_ms(10);
            let from = SocketAddr::new(at("127.0.0.1:5").ip(), port).into();
            assert!(peers.learn(now, from, |host| host == used).is_some());
            assert_eq!(peers.find(now, path("127.0.0.1:60000")), Some(busy), "{port}");
        }
        assert_eq!(peers.table.strangers(), LEARNT.most);
        assert_eq!(peers.address(learnt), None);
        assert_eq!(peers.address(used), Some(at("127.0.0.1:60001")));
        assert_eq!(peers.address(named), Some(at("192.0.2.1:6722")));
        // Of a known sender, too, packets that prove nothing do not change where it is answered from.
        let local = |last| Some(IpAddr::from([127, 0, 0, last]));
        let [first, second] = [2, 3].map(|last| Path { local: local(last), ..path("127.0.0.1:7") });
        let host = peers.learn(now, first, idle).unwrap();
        assert_eq!((peers.find(now, second), peers.path(host)), (None, Some(first)));
    }

    /// A stranger that has just proved its address keeps its place for as long as its acceptance could be repeated.
    #[test]
    fn a_flood_of_addresses_waits_until_acceptances_cannot_be_repeated() {
        let admission = Admission { loopback: true, ..Admission::default() };
        let mut peers = Peers::new(admission, 1, 7);
        let at = |port| Path::from(SocketAddr::from(([127, 0, 0, 1], port)));
        for port in 0..LEARNT.most as u16 {
            assert!(peers.learn(Time::ZERO, at(port), idle).is_some());
        }
        let repeatable = Time::ZERO + OFFER_LIFETIME + OFFER_LIFETIME;
        let before = Time::from_ticks(repeatable.ticks() - 1);
        assert_eq!(peers.learn(before, at(5000), idle), None);
        assert_eq!(peers.learn(repeatable, at(5000), |_| true), None);
        assert!(peers.learn(repeatable, at(5000), idle).is_some());
    }
}
