//! Packets before the handshake: tickets, resumptions, and what may be sealed in their sessions.

use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::Bytes;
use rackweave_core::{Header as _, HostId, Kind, MessageId, Packet, Time};
use rackweave_crypt::{Association, Early, Ticket, Tickets, address_bytes};
use rackweave_transport::TransportConfig;
use rackweave_wire::Header;
use rackweave_wire::secure::{self as wire, Handshake};

use super::peers::Peer;
use super::secure::{Secure, random_bytes};
use super::send::HELLO_CLASS;
use super::tickets::TicketStore;
use super::{Endpoint, SendError};
use crate::clock::realtime_ns;
use crate::driver::Platform;
use crate::sys::Path;

/// Bytes of an address without its port. A ticket is for these: a client that restarts gets another port (as with a token of
/// RFC 9000, section 8.1.4).
const IP_BYTES: usize = 16;

/// What an endpoint with a key has for packets before the handshake.
#[derive(Debug, Default)]
pub(super) struct EarlyState {
    /// `None` if this host accepts none.
    pub(super) issued: Option<Tickets>,
    /// Tickets of peers; `None` if this host sends none.
    store: Option<TicketStore>,
    changed: bool,
    /// Hosts with which there is a session of a resumption, and when it ends, in the order of that. A guest that resumes and is silent
    /// afterwards would otherwise leave its keys here for as long as it is known.
    expiring: VecDeque<(Time, HostId)>,
}

impl EarlyState {
    pub(super) fn new(accepts: bool, store: Option<TicketStore>) -> Self {
        Self {
            issued: accepts.then(Tickets::default),
            store,
            changed: false,
            expiring: VecDeque::new(),
        }
    }

    /// Gives an association the ticket of its peer, if it has none and the peer was not met before.
    pub(super) fn equip(&self, association: &mut Association, address: SocketAddr) {
        if association.ticket().is_none()
            && association.incarnation().is_none()
            && let Some(ticket) = self.store.as_ref().and_then(|store| store.get(address))
        {
            association.set_ticket(ticket.clone());
        }
    }

    /// Notes that a session of a resumption with a host ends at a time, if there is one.
    pub(super) fn expires(&mut self, host: HostId, association: &Association) {
        // All have the same lifetime, so the queue is in order.
        self.expiring.extend(association.early_until().map(|at| (at, host)));
    }

    /// When the next session of a resumption ends.
    pub(super) fn next_end(&self) -> Option<Time> {
        self.expiring.front().map(|(at, _)| *at)
    }

    /// Drops a ticket that was refused.
    pub(super) fn refused(&mut self, address: SocketAddr) {
        self.changed |= self.store.as_mut().is_some_and(|store| store.remove(address));
    }
}

/// The time since 1970.
pub(super) fn wall_ms() -> u64 {
    realtime_ns() / 1_000_000
}

impl Peer {
    /// Whether a packet may be sealed in the session of a resumption: at the host that has resumed, a packet of an idempotent
    /// message; at the other one, what answers, which the resuming host can check to be no replay.
    pub(super) fn may_go_early(&self, now: Time, packet: &Packet<Header>) -> bool {
        match self.association.early(now) {
            Early::No => false,
            Early::Asked => {
                packet.header.exchange_id().is_some_and(|id| self.idempotent.contains(&id))
            }
            Early::Answers => {
                packet.header.exchange_id().is_some()
                    && packet.payload().is_none_or(|slice| slice.message.is_response())
            }
        }
    }
}

impl<P: Platform> Endpoint<P> {
    /// [`Endpoint::send`] for a message that may be executed more than once and late. If this host has a ticket of the peer and
    /// no session, its packets are sent together with the handshake
    /// ([`EndpointConfig::tickets`](super::EndpointConfig::tickets)). Someone on the path who holds them back can have
    /// them executed at the peer up to fifteen seconds later, in addition to their execution after the handshake.
    ///
    /// # Errors
    /// See [`SendError`]; the call had no effect then.
    pub fn send_idempotent(
        &mut self,
        peer: HostId,
        kind: Kind,
        bytes: Bytes,
    ) -> Result<MessageId, SendError> {
        let id = self.send(peer, kind, bytes)?;
        // TCP's packets carry a stream of bytes that messages share.
        let has_messages = !matches!(self.config.transport, TransportConfig::Tcp(_));
        if has_messages
            && self.secure.as_ref().is_some_and(|secure| secure.early.store.is_some())
            && let Some(peer) = self.peers.get_mut(peer)
            && !peer.association.is_ready()
        {
            peer.idempotent.insert(id);
        }
        Ok(id)
    }

    /// The tickets of its peers, to be kept for the host's next start; `None` without [`EndpointConfig::tickets`](
    /// super::EndpointConfig::tickets) or a key.
    #[must_use]
    pub fn tickets(&self) -> Option<&TicketStore> {
        self.secure.as_ref()?.early.store.as_ref()
    }

    /// Whether [`Endpoint::tickets`] has changed since the last call.
    pub fn tickets_changed(&mut self) -> bool {
        self.secure.as_mut().is_some_and(|secure| std::mem::take(&mut secure.early.changed))
    }

    /// Handles a resumption whose tag is right, which is answered as an ask in any case. A ticket for the address proves that a
    /// host there has received from this one (RFC 9000, section 8.1.3), so that the peer is admitted and may be sent to; since a
    /// resumption counts once, nobody can repeat one to have more sent there.
    pub(super) fn on_resume(
        &mut self,
        now: Time,
        from: Path,
        known: Option<HostId>,
        ours: u32,
        read: &Handshake,
    ) {
        let Some(secure) = &mut self.secure else { return };
        let Secure { all, early } = &mut **secure;
        let local = all.local(ours);
        let Some(tickets) = &mut early.issued else { return };
        tickets.advance(now, || random_bytes(self.driver.platform()));
        let mut first = Association::default();
        let association = match known.and_then(|host| self.peers.get_mut(host)) {
            Some(peer) => &mut peer.association,
            None => &mut first,
        };
        let ip = &address_bytes(from.remote)[..IP_BYTES];
        if association.on_resume(now, &local, tickets, ip, read).is_err() {
            // It is sent twice.
            let is_known = association.incarnation() == Some(read.from);
            self.stats.early_refused += u64::from(!is_known);
            return;
        }
        let Some(host) = known.or_else(|| self.peers.admit(now, from)) else {
            self.stats.foreign += 1;
            return;
        };
        if let Some(peer) = self.peers.get_mut(host) {
            if known.is_none() {
                peer.association = first;
            }
            early.expires(host, &peer.association);
        }
        self.stats.resumed += 1;
        self.peers.heard(now, host, from.local);
    }

    /// Drops the sessions of resumptions whose time is over.
    pub(super) fn expire_early(&mut self, now: Time) {
        let Some(secure) = &mut self.secure else { return };
        let expiring = &mut secure.early.expiring;
        while let Some((_, host)) = expiring.pop_front_if(|(at, _)| *at <= now) {
            if let Some(peer) = self.peers.get_mut(host) {
                peer.association.expire_early(now);
            }
        }
    }

    /// Hands a ticket to a peer with which a session has begun.
    pub(super) fn issue_ticket(&mut self, now: Time, host: HostId) {
        let Some(secure) = &mut self.secure else { return };
        let Some(tickets) = &mut secure.early.issued else { return };
        let Some(peer) = self.peers.get(host) else { return };
        if !peer.association.is_ready() {
            return;
        }
        tickets.advance(now, || random_bytes(self.driver.platform()));
        let ip = &address_bytes(peer.path().remote)[..IP_BYTES];
        let mut random = [0; 12];
        random.copy_from_slice(&self.driver.platform().random().to_ne_bytes()[..12]);
        let issued = tickets.issue(now, ip, random);
        if let Some((name, secret)) = issued
            && self.has_room()
        {
            let body = |out: &mut Vec<u8>| wire::encode_grant(&name, &secret, out);
            self.push_sealed(now, host, HELLO_CLASS, body);
        }
    }

    /// Keeps a ticket that a peer has handed out.
    pub(super) fn on_grant(&mut self, host: HostId, name: wire::Ticket, secret: [u8; 32]) {
        let Some(own) = &mut self.secure else { return };
        let Some(store) = &mut own.early.store else { return };
        let Some(peer) = self.peers.get_mut(host) else { return };
        let Some(cipher) = peer.association.cipher() else { return };
        let ticket =
            Ticket::new(name, secret, cipher, self.driver.platform().realtime_ns() / 1_000_000);
        peer.association.set_ticket(ticket.clone());
        store.insert(peer.path().remote, ticket);
        own.early.changed = true;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rackweave_core::{Rate, Span};
    use rackweave_crypt::{EARLY_LIFETIME, Key};

    use rackweave_transport::homa;

    use super::*;
    use crate::Clock;
    use crate::endpoint::{EndpointConfig, Event, Peers};

    fn endpoint(clock: Clock, tickets: Option<TicketStore>) -> Endpoint {
        let allow = vec!["127.0.0.0/8".parse().unwrap()];
        let peers = Peers::Direct { hosts: BTreeMap::new(), allow };
        let transport = TransportConfig::Homa(homa::Config::linux(Rate::from_gbps(10)).into());
        let bind = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut config = EndpointConfig::new(HostId(0), bind, peers, &transport);
        config.clock = clock;
        (config.accept_early, config.tickets) = (tickets.is_none(), tickets);
        Endpoint::new(config.key(Key::derive(&[7; 32]).unwrap())).unwrap()
    }

    /// Whether an endpoint has a session of a resumption with the host at an address.
    fn is_early(endpoint: &Endpoint, address: SocketAddr) -> bool {
        let peer = endpoint.peers.at(address.into()).and_then(|host| endpoint.peers.get(host));
        peer.is_some_and(|peer| peer.association.early_until().is_some())
    }

    /// A client that resumes and is silent from then on, and one whose server does not answer: neither end keeps the session.
    #[test]
    fn sessions_of_resumptions_end_also_if_nothing_arrives_any_more() {
        let clock = Clock::start();
        let mut server = endpoint(clock, None);
        let mut client = endpoint(clock, Some(TicketStore::default()));
        let at = client.add_peer(server.local_addr());
        client.send_idempotent(at, Kind::Request, Bytes::from_static(b"first")).unwrap();
        while client.tickets().unwrap().is_empty() {
            client.turn().unwrap();
            server.turn().unwrap();
            while let Some(event) = server.poll_event() {
                if let Event::Message { peer, id, bytes, .. } = event {
                    server.respond(peer, id, bytes).unwrap();
                }
            }
        }
        let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut tickets = client.tickets().unwrap().clone();
        let ticket = tickets.get(server.local_addr()).unwrap().clone();
        tickets.insert(nobody.local_addr().unwrap(), ticket);
        let mut silent = endpoint(clock, Some(tickets.clone()));
        let mut unanswered = endpoint(clock, Some(tickets));
        let servers = [server.local_addr(), nobody.local_addr().unwrap()];
        for (client, server) in [&mut silent, &mut unanswered].into_iter().zip(servers) {
            let at = client.add_peer(server);
            client.send_idempotent(at, Kind::Request, Bytes::from_static(b"early")).unwrap();
            client.turn().unwrap();
        }
        let began = clock.now();
        while server.stats().resumed == 0 {
            assert!(clock.now().since(began) < EARLY_LIFETIME);
            server.turn().unwrap();
        }
        let nobody = nobody.local_addr().unwrap();
        let guest = silent.local_addr();
        assert!(is_early(&server, guest) && is_early(&unanswered, nobody));
        let end = began + EARLY_LIFETIME + Span::from_ms(300);
        for (endpoint, peer) in [(&mut server, guest), (&mut unanswered, nobody)] {
            let mut until = endpoint.turn().unwrap();
            // The endpoints' own timeouts wake them: nothing arrives.
            while let Some(at) = until.filter(|at| *at < end) {
                endpoint.wait(Some(at)).unwrap();
                until = endpoint.turn().unwrap();
                while endpoint.poll_event().is_some() {}
            }
            assert!(!is_early(endpoint, peer));
        }
    }
}
