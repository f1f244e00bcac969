//! Peers: their addresses and incarnations.
//!
//! A host announces a different incarnation to each of its peers: a keyed hash of the peer's address (or number, behind a
//! switch), with a key that is random for each start of the host. A peer that knows its own number therefore cannot forge
//! packets of another, and a host needs no state for the numbers that it has announced.

use std::collections::{BTreeSet, VecDeque};
use std::hash::{Hash as _, Hasher as _};
use std::net::{IpAddr, SocketAddr};

use rackweave_core::{HostId, MessageId, Packet, Span, Time};
use rackweave_crypt::{Association, Held, KeyMismatch};
use rackweave_wire::Header;
use rustc_hash::FxHashSet;
use siphasher::sip::SipHasher24;

use super::config::{FIRST_GUEST, Network, Peers};
use super::path::PathMtu;
use crate::addresses::{AddressTable, Known, Strangers, plain};
use crate::sys::Path;

/// The most packets that wait for a peer's incarnation; more are dropped, and the transport retransmits them.
const MAX_HELD: usize = 256;

/// The interval between HELLOs without an answer: it begins with the first value and doubles up to the second.
const HELLO_RETRY: (Span, Span) = (Span::from_ms(1), Span::from_ms(100));

/// How long a candidate incarnation, or a HELLO that asks for it, stays valid.
const CANDIDATE_LIFETIME: Span = Span::from_secs(1);

/// The least interval between HELLOs that ask one peer about an unproven incarnation.
const PROBE_INTERVAL: Span = Span::from_ms(1);

/// The most guests (peers that were not configured) at a time. One must have been silent for longer than every transport's timeout for
/// a silent peer before it makes room.
const GUESTS: Strangers = Strangers { most: 1 << 16, silent: Span::from_secs(60) };

/// After this long without a packet in either direction, the sessions with a peer are dropped. The value is
/// Rackweave's: several times [`rackweave_crypt::RENEW_AFTER`], so that only peers are concerned whose session would be
/// renewed anyway.
const IDLE: Span = Span::from_secs(600);

/// The key of a host's incarnations, chosen at its start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Secret(pub(super) [u64; 2]);

impl Secret {
    /// The key that a random number is.
    pub(super) const fn new(number: u128) -> Self {
        Self([number as u64, (number >> 64) as u64])
    }

    fn number(self, write: impl FnOnce(&mut SipHasher24)) -> u32 {
        let mut hasher = SipHasher24::new_with_keys(self.0[0], self.0[1]);
        write(&mut hasher);
        // 0 means "not known".
        (hasher.finish() as u32).max(1)
    }

    fn for_address(self, address: SocketAddr) -> u32 {
        let address = plain(address);
        self.number(|hasher| (address.ip(), address.port()).hash(hasher))
    }

    fn for_host(self, host: HostId) -> u32 {
        self.number(|hasher| host.0.hash(hasher))
    }
}

#[derive(Debug)]
pub(super) struct Peer {
    /// This host's incarnation, as announced to the peer.
    pub(super) ours: u32,
    /// The peer's incarnation, once known.
    pub(super) incarnation: Option<u32>,
    /// Another incarnation that sent a HELLO, and when.
    candidate: Option<(u32, Time)>,
    /// When it was asked about another incarnation.
    asked: Option<Time>,
    /// Packets that wait for the peer's incarnation, or for a session with it, and whether they were sent early.
    held: Held<(Packet<Header>, bool), MAX_HELD>,
    /// Idempotent messages that were submitted while there was no session.
    pub(super) idempotent: FxHashSet<MessageId>,
    /// Sessions with the peer, if hosts have a key.
    pub(super) association: Association,
    /// What the peer has reported about keys since the last ask.
    pub(super) mismatch: Option<KeyMismatch>,
    /// When the next HELLO is due, and the interval after it.
    hello: Option<(Time, Span)>,
    /// The length of datagrams that arrive at it.
    pub(super) path_mtu: PathMtu,
    /// When a packet was last sent to it or received from it.
    pub(super) used: Time,
}

impl Peer {
    fn new(ours: u32) -> Self {
        Self {
            ours,
            incarnation: None,
            candidate: None,
            asked: None,
            held: Held::default(),
            idempotent: FxHashSet::default(),
            association: Association::default(),
            mismatch: None,
            hello: None,
            path_mtu: PathMtu::default(),
            used: Time::ZERO,
        }
    }
}

impl Peer {
    /// Whether this host has asked the peer for its incarnation or a session, and has no answer yet.
    pub(super) fn is_asked(&self) -> bool {
        self.hello.is_some() || self.association.ask_due().is_some()
    }

    /// Holds a packet until there is a session; returns false if too many are held.
    pub(super) fn hold(&mut self, packet: &Packet<Header>, early: bool) -> bool {
        self.held.push((*packet, early))
    }

    /// Frees what can be made again when the peer is used again: sessions, what is known of the path, and the rooms of empty queues. Its
    /// number, address and incarnation stay, since the number is known to the application.
    fn release(&mut self) {
        if self.is_asked() || !self.held.is_empty() {
            return;
        }
        self.held = Held::default();
        self.idempotent = FxHashSet::default();
        self.path_mtu = PathMtu::default();
        self.association.release();
    }

    /// Drops the held packets that were sent early.
    pub(super) fn drop_early(&mut self) {
        self.held.retain(|(_, early)| !early);
    }
}

/// The origin of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A peer, and this host's incarnation as announced to it.
    Peer(HostId, u32),
    /// An address that may become a peer, and this host's incarnation as announced to it.
    Guest(u32),
    /// Neither a peer nor an address that may become one.
    Foreign,
}

/// How the sender's incarnation in a datagram with the correct receiver's incarnation compares with the known one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Incarnation {
    /// The known one, or the first one.
    Current,
    /// A new one: the peer has restarted.
    New,
    /// Another one, which may be an earlier one: the datagram is dropped. The field is whether to query the peer.
    Unproven(bool),
}

/// All peers of an endpoint.
#[derive(Debug)]
pub(super) struct PeerTable {
    peers: AddressTable<Peer>,
    allow: Vec<Network>,
    switch: Option<SocketAddr>,
    secret: Secret,
    /// Peers to which HELLOs are sent until they answer, by the time of the next one.
    pending_hellos: BTreeSet<(Time, HostId)>,
    /// Peers whose path is being probed, by the time of the next step.
    pending_probes: BTreeSet<(Time, HostId)>,
    /// Peers that have not answered and whose key differs, as they have reported.
    mismatches: VecDeque<(HostId, KeyMismatch)>,
    /// When what idle peers hold was last freed.
    released: Time,
}

impl PeerTable {
    pub(super) fn new(peers: Peers, this: HostId, secret: Secret) -> Self {
        let mut table = Self {
            peers: AddressTable::new(FIRST_GUEST.0..u32::MAX, GUESTS),
            allow: Vec::new(),
            switch: None,
            secret,
            pending_hellos: BTreeSet::new(),
            pending_probes: BTreeSet::new(),
            mismatches: VecDeque::new(),
            released: Time::ZERO,
        };
        match peers {
            Peers::Direct { hosts, allow } => {
                table.allow = allow;
                for (host, address) in hosts {
                    let ours = secret.for_address(address);
                    table.peers.insert(host, address, Peer::new(ours));
                }
            }
            Peers::Switch { port, hosts } => {
                table.switch = Some(port);
                for host in (0..hosts).map(HostId).filter(|host| *host != this) {
                    let ours = secret.for_host(host);
                    table.peers.insert_behind(host, port, Peer::new(ours));
                }
            }
        }
        table
    }

    pub(super) fn knows(&self, host: HostId) -> bool {
        self.peers.knows(host)
    }

    pub(super) fn get(&self, host: HostId) -> Option<&Known<Peer>> {
        self.peers.get(host)
    }

    pub(super) fn get_mut(&mut self, host: HostId) -> Option<&mut Known<Peer>> {
        self.peers.get_mut(host)
    }

    /// The number of the peer that sends by a path.
    pub(super) fn at(&self, path: Path) -> Option<HostId> {
        self.peers.at(path)
    }

    /// Forgets an address that this host does not have any more.
    pub(super) fn forget_local(&mut self, local: IpAddr) {
        self.peers.forget_local(local);
    }

    /// Records that an authentic packet of a peer has arrived now, at this address of the host.
    pub(super) fn heard(&mut self, now: Time, host: HostId, local: Option<IpAddr>) {
        self.peers.prove(now, host, local);
    }

    /// The number of the peer at an address, which is added if it is not known.
    pub(super) fn add(&mut self, address: SocketAddr) -> HostId {
        let secret = self.secret;
        self.peers.add(address, || Peer::new(secret.for_address(address)))
    }

    /// Whether datagrams from an address are admitted at all.
    pub(super) fn admits(&self, from: SocketAddr) -> bool {
        match self.switch {
            Some(port) => plain(port) == plain(from),
            None => {
                let ip = plain(from).ip();
                self.peers.at_address(from).is_some()
                    || self.allow.iter().any(|network| network.contains(ip))
            }
        }
    }

    /// The origin of a datagram from an admitted address. `claimed` is the sender's number in its header, and `to_us`
    /// whether it is addressed to this host.
    pub(super) fn origin(&self, from: Path, claimed: HostId, to_us: bool) -> Origin {
        if self.switch.is_some() {
            return match self.peers.get(claimed) {
                Some(peer) if to_us => Origin::Peer(claimed, peer.ours),
                _ => Origin::Foreign,
            };
        }
        match self.at(from).and_then(|host| Some((host, self.peers.get(host)?))) {
            Some((host, peer)) => Origin::Peer(host, peer.ours),
            None => Origin::Guest(self.secret.for_address(from.remote)),
        }
    }

    /// Adds a guest that has proved its address; `None` if there are too many.
    pub(super) fn admit(&mut self, now: Time, from: Path) -> Option<HostId> {
        let peer = Peer::new(self.secret.for_address(from.remote));
        self.peers.admit(now, from, |_| false, peer)
    }

    /// Records the incarnation of a peer that does not know this host's: the peer may have restarted.
    pub(super) fn note_candidate(&mut self, now: Time, host: HostId, incarnation: u32) {
        if let Some(peer) = self.peers.get_mut(host)
            && peer.incarnation.is_some_and(|known| known != incarnation)
        {
            peer.candidate = Some((incarnation, now));
        }
    }

    /// Compares the incarnation of a peer that knows this host's. A different one is accepted only if it has sent a HELLO
    /// recently, or answers one: a packet of an earlier incarnation may be delayed in the network.
    pub(super) fn on_incarnation(
        &mut self,
        now: Time,
        host: HostId,
        incarnation: u32,
        hello: bool,
    ) -> Incarnation {
        let Some(peer) = self.peers.get_mut(host) else { return Incarnation::Unproven(false) };
        peer.touch(now);
        match peer.incarnation {
            Some(known) if known == incarnation => Incarnation::Current,
            None => {
                peer.incarnation = Some(incarnation);
                peer.mismatch = None;
                if let Some((at, _)) = peer.hello.take() {
                    self.pending_hellos.remove(&(at, host));
                }
                Incarnation::Current
            }
            Some(_) => {
                let recent = |at: Time| now.since(at) <= CANDIDATE_LIFETIME;
                let announced =
                    peer.candidate.is_some_and(|(it, at)| it == incarnation && recent(at));
                if announced || hello && peer.asked.is_some_and(recent) {
                    peer.incarnation = Some(incarnation);
                    (peer.candidate, peer.asked) = (None, None);
                    return Incarnation::New;
                }
                let ask = peer.asked.is_none_or(|at| now.since(at) >= PROBE_INTERVAL);
                if ask {
                    peer.asked = Some(now);
                }
                Incarnation::Unproven(ask)
            }
        }
    }

    /// Holds a packet until its receiver's incarnation is known; returns false if too many are held.
    pub(super) fn hold(&mut self, now: Time, packet: Packet<Header>) -> bool {
        let Some(peer) = self.peers.get_mut(packet.dst) else { return false };
        if peer.hello.is_none() {
            peer.hello = Some((now, HELLO_RETRY.0));
            self.pending_hellos.insert((now, packet.dst));
        }
        peer.hold(&packet, false)
    }

    /// Drops the packets that wait for a peer that does not answer, and notes the reason if it has reported one.
    pub(super) fn give_up(&mut self, host: HostId) {
        if let Some(peer) = self.peers.get_mut(host) {
            peer.held.take();
            peer.idempotent = FxHashSet::default();
            self.mismatches.extend(peer.mismatch.take().map(|why| (host, why)));
        }
    }

    /// A peer that has not answered and whose key differs.
    pub(super) fn next_mismatch(&mut self) -> Option<(HostId, KeyMismatch)> {
        self.mismatches.pop_front()
    }

    /// Takes the packets that were held for a peer.
    pub(super) fn release(&mut self, host: HostId) -> impl Iterator<Item = Packet<Header>> + use<> {
        let held = self.peers.get_mut(host).map(|peer| {
            peer.idempotent = FxHashSet::default();
            peer.held.take()
        });
        held.unwrap_or_default().into_iter().map(|(packet, _)| packet)
    }

    /// Peers to which a HELLO is due now.
    pub(super) fn due(&mut self, now: Time) -> Vec<HostId> {
        let mut due = Vec::new();
        while let Some(&(at, host)) = self.pending_hellos.first()
            && at <= now
        {
            self.pending_hellos.pop_first();
            // A guest may have been removed.
            let Some(peer) = self.peers.get_mut(host) else { continue };
            let Some((_, gap)) = peer.hello else { continue };
            if gap > HELLO_RETRY.1 {
                // The peer does not answer: the next packet starts again.
                peer.hello = None;
                peer.held.take();
                self.mismatches.extend(peer.mismatch.take().map(|why| (host, why)));
                continue;
            }
            due.push(host);
            let next = now + gap;
            peer.hello = Some((next, gap * 2));
            self.pending_hellos.insert((next, host));
        }
        due
    }

    /// Frees what peers hold with which nothing was exchanged for [`IDLE`]. All peers are visited, but no more often than that.
    pub(super) fn release_idle(&mut self, now: Time) {
        if now.since(self.released) < IDLE {
            return;
        }
        self.released = now;
        let idle = self.peers.iter_mut().filter(|(_, peer)| now.since(peer.used) >= IDLE);
        idle.for_each(|(_, peer)| peer.release());
    }

    /// Arranges the next step in probing the path to a peer.
    pub(super) fn probe_at(&mut self, host: HostId, due: Option<Time>) {
        self.pending_probes.extend(due.map(|at| (at, host)));
    }

    /// The next peer whose path is to be probed now.
    pub(super) fn next_probe(&mut self, now: Time) -> Option<HostId> {
        let (at, _) = self.pending_probes.first()?;
        (*at <= now).then(|| self.pending_probes.pop_first().map(|(_, host)| host)).flatten()
    }

    /// When the next HELLO or probe of a path is due.
    pub(super) fn next_due(&self) -> Option<Time> {
        let first = |times: &BTreeSet<(Time, HostId)>| times.first().map(|(at, _)| *at);
        first(&self.pending_hellos).into_iter().chain(first(&self.pending_probes)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: HostId = HostId(7);

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_ms(ms)
    }

    fn packet_to(host: HostId) -> Packet<Header> {
        let id = rackweave_wire::Id64::new(2);
        let header = rackweave_wire::datagram::Header { id, message_length: 1, offset: 0, len: 1 };
        Packet::new(HostId(0), host, 100, Header::Datagram(header))
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
    fn each_peer_gets_a_different_incarnation() {
        let table = table();
        let Origin::Peer(HOST, first) = table.origin(address(1).into(), HostId(9), true) else {
            panic!()
        };
        let Origin::Guest(second) = table.origin(address(2).into(), HOST, true) else { panic!() };
        assert_ne!(first, second);
        let again = PeerTable::new(
            Peers::Direct { hosts: [(HOST, address(1))].into(), allow: Vec::new() },
            HostId(0),
            Secret([1, 3]),
        );
        assert_ne!(again.get(HOST).unwrap().ours, first, "another start of the host");
    }

    #[test]
    fn an_earlier_incarnation_does_not_come_back() {
        let mut table = table();
        assert_eq!(table.on_incarnation(at(0), HOST, 10, false), Incarnation::Current);
        // A new incarnation sends a HELLO, and knows this host's from then on.
        table.note_candidate(at(1), HOST, 20);
        assert_eq!(table.on_incarnation(at(2), HOST, 20, false), Incarnation::New);
        // Packets of the old incarnation arrive late: the peer is queried at a limited rate, and does not confirm them.
        assert_eq!(table.on_incarnation(at(3), HOST, 10, false), Incarnation::Unproven(true));
        assert_eq!(table.on_incarnation(at(3), HOST, 10, false), Incarnation::Unproven(false));
        assert_eq!(table.on_incarnation(at(5), HOST, 10, false), Incarnation::Unproven(true));
        assert_eq!(table.on_incarnation(at(6), HOST, 20, false), Incarnation::Current);
        // A HELLO that answers none of this host's is not accepted either: the peer is queried.
        assert_eq!(table.on_incarnation(at(2000), HOST, 10, true), Incarnation::Unproven(true));
    }

    #[test]
    fn a_new_incarnation_is_learnt_from_its_answer() {
        let mut table = table();
        assert_eq!(table.on_incarnation(at(0), HOST, 10, false), Incarnation::Current);
        // Its own HELLO was lost, or has expired.
        assert_eq!(table.on_incarnation(at(1), HOST, 20, false), Incarnation::Unproven(true));
        assert_eq!(table.on_incarnation(at(2), HOST, 20, true), Incarnation::New);
        assert_eq!(table.on_incarnation(at(3), HOST, 20, false), Incarnation::Current);
    }

    #[test]
    fn guests_are_bounded_and_idle_ones_make_room() {
        let mut table = table();
        let many =
            |n: usize| SocketAddr::from(([127, 1 + (n >> 16) as u8, (n >> 8) as u8, n as u8], 9));
        for n in 0..GUESTS.most {
            assert!(table.admit(at(0), many(n).into()).is_some());
        }
        assert_eq!(table.admit(at(1), address(5).into()), None);
        // A guest with recent traffic stays, and so does a peer that the application added.
        let Origin::Peer(heard, _) = table.origin(many(3).into(), HOST, true) else { panic!() };
        assert_eq!(table.on_incarnation(at(50_000), heard, 1, false), Incarnation::Current);
        let named = table.add(many(4));
        assert_eq!(
            (table.peers.strangers(), table.peers.len()),
            (GUESTS.most - 1, GUESTS.most + 1)
        );
        assert!(table.admit(at(59_999), address(5).into()).is_some(), "there is a place");
        assert_eq!(table.admit(at(59_999), address(6).into()), None);
        // The others were silent for a minute, and go in turn; the one that was heard is the last.
        for n in 0..GUESTS.most - 2 {
            assert!(table.admit(at(60_000), many(n + (1 << 16)).into()).is_some());
        }
        assert_eq!(table.admit(at(60_000), address(6).into()), None);
        assert_eq!((table.peers.strangers(), table.peers.len()), (GUESTS.most, GUESTS.most + 2));
        assert!(table.knows(heard) && table.knows(named) && table.knows(HOST));
    }

    /// To a guest, two addresses of this host are two peers: it announces another incarnation to each.
    #[test]
    fn a_guest_that_sends_to_two_addresses_of_this_host_is_two() {
        let mut table = table();
        let [first, second] = [[127, 0, 0, 2], [127, 0, 0, 3]]
            .map(|local| Path { remote: address(5), local: Some(IpAddr::from(local)) });
        let group = Path::from(address(5));
        let one = table.admit(at(0), first).unwrap();
        assert_eq!(
            (table.at(first), table.at(second), table.at(group)),
            (Some(one), None, Some(one))
        );
        let other = table.admit(at(0), second).unwrap();
        assert_eq!((table.at(first), table.at(second)), (Some(one), Some(other)));
        assert_eq!(table.on_incarnation(at(1), one, 10, false), Incarnation::Current);
        assert_eq!(table.on_incarnation(at(1), other, 20, false), Incarnation::Current);
        assert_eq!(table.get(other).unwrap().path(), second);
        // One that the application has named is known by the first address at which it has proved itself, while this host has that.
        let [named, moved] = [first, second].map(|path| Path { remote: address(1), ..path });
        assert_eq!(table.at(moved), Some(HOST));
        table.heard(at(2), HOST, first.local);
        table.heard(at(3), HOST, None);
        assert_eq!((table.at(named), table.at(moved)), (Some(HOST), None));
        assert_eq!(table.get(HOST).unwrap().path(), named);
        table.forget_local(IpAddr::from([127, 0, 0, 2]));
        assert_eq!(table.at(moved), Some(HOST));
        table.heard(at(4), one, first.local);
    }

    #[test]
    fn hellos_to_a_silent_peer_end() {
        let mut table = table();
        let packet = packet_to(HOST);
        assert!(table.hold(at(0), packet));
        let mut hellos = 0;
        while let Some(next) = table.next_due() {
            assert!(next <= at(1000));
            hellos += table.due(next).len();
        }
        assert!((5..20).contains(&hellos), "{hellos}");
        assert_eq!(table.release(HOST).count(), 0);
        for _ in 0..MAX_HELD {
            assert!(table.hold(at(2000), packet));
        }
        assert!(!table.hold(at(2000), packet));
        assert_eq!(table.due(at(2000)), [HOST]);
    }

    #[test]
    fn what_an_idle_peer_holds_is_freed_and_its_number_stays() {
        let mut table = table();
        let packet = packet_to(HOST);
        assert!(table.hold(at(0), packet));
        assert_eq!(table.on_incarnation(at(1), HOST, 10, true), Incarnation::Current);
        assert_eq!(table.release(HOST).count(), 1);
        let peer = table.get_mut(HOST).unwrap();
        peer.used = at(700_000);
        assert!(peer.path_mtu.on_send(at(2), 1440));
        // Used a second before, it keeps what it has; ten minutes later it does not.
        table.release_idle(at(701_000));
        assert!(table.get(HOST).unwrap().path_mtu.due().is_some());
        table.release_idle(at(1_300_500));
        assert!(table.get(HOST).unwrap().path_mtu.due().is_some(), "not before ten minutes");
        table.release_idle(at(1_301_000));
        let peer = table.get(HOST).unwrap();
        assert!(peer.path_mtu.due().is_none() && peer.held.capacity() == 0);
        assert_eq!((peer.incarnation, table.at(address(1).into())), (Some(10), Some(HOST)));
        // What waits is not dropped.
        assert!(table.hold(at(1_302_000), packet));
        table.release_idle(at(9_000_000));
        assert!(table.get(HOST).is_some_and(|peer| !peer.held.is_empty()));
    }

    /// Each HELLO costs the same however many peers have not answered: a scan of all of them at each one would take minutes.
    #[test]
    fn a_hundred_thousand_peers_are_asked_in_turn() {
        const PEERS: u32 = 100_000;
        let mut table = table();
        let hosts: Vec<_> = (0..PEERS)
            .map(|n| {
                table
                    .add(SocketAddr::from(([10, 1, (n >> 8) as u8, n as u8], 7 + (n >> 16) as u16)))
            })
            .collect();
        for (n, host) in hosts.iter().enumerate() {
            let now = Time::ZERO + Span::from_us(n as u64);
            assert!(table.hold(now, packet_to(*host)));
        }
        let (mut asked, mut last) = (0, Time::ZERO);
        while let Some(next) = table.next_due() {
            assert!(next >= last);
            last = next;
            let due = table.due(next);
            // Every second one answers its first HELLO.
            for host in due.iter().filter(|host| host.0 % 2 == 0) {
                assert_eq!(table.on_incarnation(next, *host, 5, true), Incarnation::Current);
            }
            asked += due.len() as u32;
        }
        // The others are asked until the interval exceeds its limit.
        assert!(asked > 3 * PEERS && asked < 6 * PEERS, "{asked}");
        assert!(table.pending_hellos.is_empty() && last < at(1_000), "{last}");
    }
}
