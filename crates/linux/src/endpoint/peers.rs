//! Who is on the other side: addresses, and the lives of hosts.
//!
//! Each host tells each of its peers another number as its incarnation: a keyed hash of the peer's address (or
//! number, behind a switch), with a key that is random in each life. So who has learnt its own can't
//! speak for another, and a host need not remember whom it has told.

use std::collections::VecDeque;
use std::hash::{Hash as _, Hasher as _};
use std::net::SocketAddr;

use rackweave_core::{HostId, Packet, Span, Time};
use rackweave_wire::Header;
use rustc_hash::FxHashMap;
use siphasher::sip::SipHasher24;

use super::config::{FIRST_GUEST, Network, Peers};

/// Packets that wait for a peer's incarnation; more are dropped, and the transport repairs it.
const MAX_HELD: usize = 256;

/// From one HELLO without an answer to the next: doubled each time, up to the second.
const HELLO_RETRY: (Span, Span) = (Span::from_ms(1), Span::from_ms(100));

/// How long an answer is waited for that would tell of a peer's new life.
const DOUBT: Span = Span::from_secs(1);

/// Between two questions of doubt to one peer.
const ASK_AGAIN: Span = Span::from_ms(1);

/// Guests that are known at one time.
const MAX_GUESTS: usize = 1 << 16;

/// When there are as many, those are forgotten that have not been heard for this long: longer than any
/// transport waits for a silent peer.
const GUEST_IDLE: Span = Span::from_secs(60);

/// A host's key for a life.
#[derive(Clone, Copy, Debug)]
pub(super) struct Secret(pub(super) [u64; 2]);

impl Secret {
    /// A new life's key.
    pub(super) fn new() -> Self {
        let number = crate::random();
        Self([number as u64, (number >> 64) as u64])
    }

    fn number(self, write: impl FnOnce(&mut SipHasher24)) -> u32 {
        let mut hasher = SipHasher24::new_with_keys(self.0[0], self.0[1]);
        write(&mut hasher);
        // 0 stands for "not known".
        (hasher.finish() as u32).max(1)
    }

    fn for_address(self, address: SocketAddr) -> u32 {
        self.number(|hasher| (address.ip(), address.port()).hash(hasher))
    }

    fn for_host(self, host: HostId) -> u32 {
        self.number(|hasher| host.0.hash(hasher))
    }
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    /// This host's incarnation, as the peer is told it.
    pub(super) ours: u32,
    /// Its incarnation, once known.
    pub(super) incarnation: Option<u32>,
    /// Another incarnation said HELLO, then.
    candidate: Option<(u32, Time)>,
    /// It was asked, because of another incarnation, then.
    asked: Option<Time>,
    /// It came by itself, and was heard last then.
    guest: Option<Time>,
    /// Packets that wait for its incarnation.
    held: VecDeque<Packet<Header>>,
    /// When the next HELLO is due, and how long after it the one after that.
    hello: Option<(Time, Span)>,
}

impl Peer {
    const fn new(address: SocketAddr, ours: u32) -> Self {
        Self {
            address,
            ours,
            incarnation: None,
            candidate: None,
            asked: None,
            guest: None,
            held: VecDeque::new(),
            hello: None,
        }
    }
}

/// Where a datagram comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A peer, which is told this incarnation of ours.
    Peer(HostId, u32),
    /// An address that may become a peer, likewise.
    Guest(u32),
    /// Nobody that we listen to.
    Foreign,
}

/// What a datagram that knows us says of its sender's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// It is the one that we know, or the first that we learn of.
    Known,
    /// It is a new one.
    New,
    /// It is another one, and may be one that is over: not to be listened to. Whether the peer is to be asked.
    Doubtful(bool),
}

/// All peers of an endpoint.
#[derive(Debug)]
pub(super) struct PeerTable {
    peers: FxHashMap<HostId, Peer>,
    by_address: FxHashMap<SocketAddr, HostId>,
    allow: Vec<Network>,
    switch: Option<SocketAddr>,
    secret: Secret,
    next_guest: HostId,
    /// Those that came by themselves.
    guests: usize,
    /// When idle guests were looked for last.
    swept: Option<Time>,
    /// Peers that a HELLO is due to at some time.
    greeting: Vec<HostId>,
}

impl PeerTable {
    pub(super) fn new(peers: Peers, this: HostId, secret: Secret) -> Self {
        let mut table = Self {
            peers: FxHashMap::default(),
            by_address: FxHashMap::default(),
            allow: Vec::new(),
            switch: None,
            secret,
            next_guest: FIRST_GUEST,
            guests: 0,
            swept: None,
            greeting: Vec::new(),
        };
        match peers {
            Peers::Direct { hosts, allow } => {
                table.allow = allow;
                for (host, address) in hosts {
                    table.insert(host, address);
                }
            }
            Peers::Switch { port, hosts } => {
                table.switch = Some(port);
                for host in (0..hosts).map(HostId).filter(|host| *host != this) {
                    let ours = secret.for_host(host);
                    table.peers.insert(host, Peer::new(port, ours));
                }
            }
        }
        table
    }

    fn insert(&mut self, host: HostId, address: SocketAddr) {
        self.by_address.insert(address, host);
        let ours = self.secret.for_address(address);
        self.peers.insert(host, Peer::new(address, ours));
    }

    pub(super) fn knows(&self, host: HostId) -> bool {
        self.peers.contains_key(&host)
    }

    pub(super) fn get(&self, host: HostId) -> Option<&Peer> {
        self.peers.get(&host)
    }

    /// The number of the peer at an address, which gets one if it has none.
    pub(super) fn add(&mut self, address: SocketAddr) -> HostId {
        if let Some(&host) = self.by_address.get(&address) {
            if let Some(peer) = self.peers.get_mut(&host)
                && peer.guest.take().is_some()
            {
                self.guests -= 1;
            }
            return host;
        }
        let host = self.next_guest;
        self.next_guest.0 += 1;
        self.insert(host, address);
        host
    }

    /// Where a datagram comes from, without looking at it: behind a switch, that is `None`, "it says so".
    pub(super) fn admits(&self, from: SocketAddr) -> bool {
        match self.switch {
            Some(port) => port == from,
            None => {
                self.by_address.contains_key(&from)
                    || self.allow.iter().any(|network| network.contains(from.ip()))
            }
        }
    }

    /// Where a datagram comes from whose address is admitted; `said` is what its sender calls itself, and
    /// `to` whom it is for.
    pub(super) fn origin(&self, from: SocketAddr, said: HostId, to: bool) -> Origin {
        if self.switch.is_some() {
            return match self.peers.get(&said) {
                Some(peer) if to => Origin::Peer(said, peer.ours),
                _ => Origin::Foreign,
            };
        }
        match self.by_address.get(&from).and_then(|host| Some((*host, self.peers.get(host)?))) {
            Some((host, peer)) => Origin::Peer(host, peer.ours),
            None => Origin::Guest(self.secret.for_address(from)),
        }
    }

    /// A guest has shown that it is at its address. `None`: there are too many.
    pub(super) fn admit(&mut self, now: Time, from: SocketAddr) -> Option<HostId> {
        if self.guests >= MAX_GUESTS {
            if self.swept.is_some_and(|at| now.since(at) < DOUBT) {
                return None;
            }
            self.swept = Some(now);
            let by_address = &mut self.by_address;
            let guests = &mut self.guests;
            self.peers.retain(|_, peer| {
                let idle = peer.guest.is_some_and(|heard| now.since(heard) >= GUEST_IDLE);
                if idle {
                    by_address.remove(&peer.address);
                    *guests -= 1;
                }
                !idle
            });
            if self.guests >= MAX_GUESTS {
                return None;
            }
        }
        let host = self.next_guest;
        self.next_guest.0 += 1;
        self.insert(host, from);
        if let Some(peer) = self.peers.get_mut(&host) {
            peer.guest = Some(now);
        }
        self.guests += 1;
        Some(host)
    }

    /// A peer that does not know us (any more) has named its incarnation: it may be a new one.
    pub(super) fn suspect(&mut self, now: Time, host: HostId, incarnation: u32) {
        if let Some(peer) = self.peers.get_mut(&host)
            && peer.incarnation.is_some_and(|known| known != incarnation)
        {
            peer.candidate = Some((incarnation, now));
        }
    }

    /// A peer that knows us names its incarnation. Another one than before counts only if it has said HELLO just
    /// now, or answers a HELLO of ours: a packet of a life that is over may come late.
    pub(super) fn hear(&mut self, now: Time, host: HostId, incarnation: u32, hello: bool) -> Life {
        let Some(peer) = self.peers.get_mut(&host) else { return Life::Doubtful(false) };
        if let Some(heard) = &mut peer.guest {
            *heard = now;
        }
        match peer.incarnation {
            Some(known) if known == incarnation => Life::Known,
            None => {
                peer.incarnation = Some(incarnation);
                peer.hello = None;
                Life::Known
            }
            Some(_) => {
                let recent = |at: Time| now.since(at) <= DOUBT;
                let said = peer.candidate.is_some_and(|(it, at)| it == incarnation && recent(at));
                if said || hello && peer.asked.is_some_and(recent) {
                    peer.incarnation = Some(incarnation);
                    (peer.candidate, peer.asked) = (None, None);
                    return Life::New;
                }
                let ask = peer.asked.is_none_or(|at| now.since(at) >= ASK_AGAIN);
                if ask {
                    peer.asked = Some(now);
                }
                Life::Doubtful(ask)
            }
        }
    }

    /// Keeps a packet until its receiver's incarnation is known. `false`: there are too many.
    pub(super) fn hold(&mut self, now: Time, packet: Packet<Header>) -> bool {
        let Some(peer) = self.peers.get_mut(&packet.dst) else { return false };
        if peer.hello.is_none() {
            peer.hello = Some((now, HELLO_RETRY.0));
            self.greeting.push(packet.dst);
        }
        if peer.held.len() >= MAX_HELD {
            return false;
        }
        peer.held.push_back(packet);
        true
    }

    /// The packets that have waited for a peer's incarnation.
    pub(super) fn release(&mut self, host: HostId) -> VecDeque<Packet<Header>> {
        self.peers.get_mut(&host).map(|peer| std::mem::take(&mut peer.held)).unwrap_or_default()
    }

    /// Peers to which a HELLO is due now.
    pub(super) fn due(&mut self, now: Time) -> Vec<HostId> {
        let mut due = Vec::new();
        let peers = &mut self.peers;
        self.greeting.retain(|host| {
            let Some(peer) = peers.get_mut(host) else { return false };
            let Some((at, gap)) = peer.hello else { return false };
            if at > now {
                return true;
            }
            if gap > HELLO_RETRY.1 {
                // Nobody waits for it any more: the next packet asks anew.
                peer.hello = None;
                peer.held.clear();
                return false;
            }
            due.push(*host);
            peer.hello = Some((now + gap, Span(gap.0 * 2)));
            true
        });
        due
    }

    /// When the next HELLO is due.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.greeting.iter().filter_map(|host| Some(self.peers.get(host)?.hello?.0)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: HostId = HostId(7);

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_ms(ms)
    }

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn table() -> PeerTable {
        let hosts = [(HOST, address(1))].into();
        let allow = vec!["127.0.0.0/8".parse().unwrap()];
        PeerTable::new(Peers::Direct { hosts, allow }, HostId(0), Secret([1, 2]))
    }

    #[test]
    fn each_peer_is_told_another_incarnation() {
        let table = table();
        let Origin::Peer(HOST, first) = table.origin(address(1), HostId(9), true) else { panic!() };
        let Origin::Guest(second) = table.origin(address(2), HOST, true) else { panic!() };
        assert_ne!(first, second);
        let again = PeerTable::new(
            Peers::Direct { hosts: [(HOST, address(1))].into(), allow: Vec::new() },
            HostId(0),
            Secret([1, 3]),
        );
        assert_ne!(again.get(HOST).unwrap().ours, first, "another life");
    }

    #[test]
    fn a_life_that_is_over_does_not_come_back() {
        let mut table = table();
        assert_eq!(table.hear(at(0), HOST, 10, false), Life::Known);
        // A new life says HELLO, and then knows us.
        table.suspect(at(1), HOST, 20);
        assert_eq!(table.hear(at(2), HOST, 20, false), Life::New);
        // Late packets of the old one: the peer is asked, not too often, and does not say that it is
        // the old one.
        assert_eq!(table.hear(at(3), HOST, 10, false), Life::Doubtful(true));
        assert_eq!(table.hear(at(3), HOST, 10, false), Life::Doubtful(false));
        assert_eq!(table.hear(at(5), HOST, 10, false), Life::Doubtful(true));
        assert_eq!(table.hear(at(6), HOST, 20, false), Life::Known);
        // A HELLO that answers none of ours is not believed either: the peer is asked.
        assert_eq!(table.hear(at(2000), HOST, 10, true), Life::Doubtful(true));
    }

    #[test]
    fn a_new_life_is_learnt_from_its_answer() {
        let mut table = table();
        assert_eq!(table.hear(at(0), HOST, 10, false), Life::Known);
        // Its own HELLO was lost, or too long ago.
        assert_eq!(table.hear(at(1), HOST, 20, false), Life::Doubtful(true));
        assert_eq!(table.hear(at(2), HOST, 20, true), Life::New);
        assert_eq!(table.hear(at(3), HOST, 20, false), Life::Known);
    }

    #[test]
    fn guests_are_bounded_and_idle_ones_make_room() {
        let mut table = table();
        let many = |n: usize| SocketAddr::from(([127, 1, (n >> 8) as u8, n as u8], 9));
        for n in 0..MAX_GUESTS {
            assert!(table.admit(at(0), many(n)).is_some());
        }
        assert_eq!(table.admit(at(1), address(5)), None);
        // One that was heard, and one that the application knows, stay.
        let Origin::Peer(heard, _) = table.origin(many(3), HOST, true) else { panic!() };
        assert_eq!(table.hear(at(50_000), heard, 1, false), Life::Known);
        let named = table.add(many(4));
        assert!(table.admit(at(61_000), address(5)).is_some());
        assert!(table.admit(at(61_000), address(6)).is_some());
        assert_eq!((table.guests, table.peers.len()), (3, 5));
        assert!(table.knows(heard) && table.knows(named) && table.knows(HOST));
    }

    #[test]
    fn hellos_to_a_silent_peer_end() {
        let mut table = table();
        let header = rackweave_wire::datagram::Header {
            id: rackweave_wire::Id64::new(2),
            message_length: 1,
            offset: 0,
            len: 1,
        };
        let packet = Packet::new(HostId(0), HOST, 100, Header::Datagram(header));
        assert!(table.hold(at(0), packet));
        let mut hellos = 0;
        while let Some(next) = table.next_due() {
            assert!(next <= at(1000));
            hellos += table.due(next).len();
        }
        assert!((5..20).contains(&hellos), "{hellos}");
        assert!(table.release(HOST).is_empty());
        for _ in 0..MAX_HELD {
            assert!(table.hold(at(2000), packet));
        }
        assert!(!table.hold(at(2000), packet));
        assert_eq!(table.due(at(2000)), [HOST]);
    }
}
