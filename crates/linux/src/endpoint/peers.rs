//! Who is on the other side: addresses and incarnations.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use rackweave_core::{HostId, Packet, Span, Time};
use rackweave_wire::Header;
use rustc_hash::FxHashMap;

use super::config::{FIRST_GUEST, Network, Peers};

/// Packets that wait for a peer's incarnation; more are dropped, and the transport repairs it.
const MAX_HELD: usize = 256;

/// From one HELLO without an answer to the next: doubled each time, up to the second.
const HELLO_AGAIN: (Span, Span) = (Span::from_ms(1), Span::from_ms(100));

/// Guests that are known at one time.
const MAX_GUESTS: u32 = 1 << 16;

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    /// Its incarnation, once known.
    pub(super) incarnation: Option<u32>,
    /// Packets that wait for it.
    held: VecDeque<Packet<Header>>,
    /// When the next HELLO is due, and how long after it the one after that.
    hello: Option<(Time, Span)>,
}

impl Peer {
    const fn new(address: SocketAddr) -> Self {
        Self { address, incarnation: None, held: VecDeque::new(), hello: None }
    }
}

/// All peers of an endpoint.
#[derive(Debug)]
pub(super) struct PeerTable {
    peers: BTreeMap<HostId, Peer>,
    by_address: FxHashMap<SocketAddr, HostId>,
    allow: Vec<Network>,
    switch: Option<SocketAddr>,
    next_guest: HostId,
    /// Peers that a HELLO is due to at some time.
    greeting: Vec<HostId>,
}

impl PeerTable {
    pub(super) fn new(peers: Peers, this: HostId) -> Self {
        let mut table = Self {
            peers: BTreeMap::new(),
            by_address: FxHashMap::default(),
            allow: Vec::new(),
            switch: None,
            next_guest: FIRST_GUEST,
            greeting: Vec::new(),
        };
        match peers {
            Peers::Direct { hosts, allow } => {
                table.allow = allow;
                for (host, address) in hosts {
                    table.by_address.insert(address, host);
                    table.peers.insert(host, Peer::new(address));
                }
            }
            Peers::Switch { port, hosts } => {
                table.switch = Some(port);
                for host in (0..hosts).map(HostId).filter(|host| *host != this) {
                    table.peers.insert(host, Peer::new(port));
                }
            }
        }
        table
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
            return host;
        }
        let host = self.next_guest;
        self.next_guest.0 += 1;
        self.by_address.insert(address, host);
        self.peers.insert(host, Peer::new(address));
        host
    }

    /// Whether an address may talk to us at all.
    pub(super) fn admits(&self, from: SocketAddr) -> bool {
        match self.switch {
            Some(port) => port == from,
            None => {
                self.by_address.contains_key(&from)
                    || self.allow.iter().any(|network| network.contains(from.ip()))
            }
        }
    }

    /// Who has sent a datagram that came from an admitted address, and has shown that it knows our
    /// incarnation. `said` is what it calls itself.
    pub(super) fn sender(&mut self, from: SocketAddr, said: HostId) -> Option<HostId> {
        if self.switch.is_some() {
            return self.knows(said).then_some(said);
        }
        match self.by_address.get(&from) {
            Some(host) => Some(*host),
            None if self.next_guest.0 - FIRST_GUEST.0 < MAX_GUESTS => Some(self.add(from)),
            None => None,
        }
    }

    /// A peer has told its incarnation. `true`: it is another one than before.
    pub(super) fn learn(&mut self, host: HostId, incarnation: u32) -> bool {
        let Some(peer) = self.peers.get_mut(&host) else { return false };
        let before = peer.incarnation.replace(incarnation);
        peer.hello = None;
        before.is_some_and(|before| before != incarnation)
    }

    /// Keeps a packet until its receiver's incarnation is known. `false`: there are too many.
    pub(super) fn hold(&mut self, now: Time, packet: Packet<Header>) -> bool {
        let Some(peer) = self.peers.get_mut(&packet.dst) else { return false };
        if peer.hello.is_none() {
            peer.hello = Some((now, HELLO_AGAIN.0));
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
            if at <= now {
                due.push(*host);
                peer.hello = Some((now + gap, Span((gap.0 * 2).min(HELLO_AGAIN.1.0))));
                // Nobody waits for it any more: the next packet asks anew.
                if gap == HELLO_AGAIN.1 {
                    peer.held.clear();
                }
            }
            true
        });
        due
    }

    /// When the next HELLO is due.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.greeting.iter().filter_map(|host| Some(self.peers.get(host)?.hello?.0)).min()
    }
}
