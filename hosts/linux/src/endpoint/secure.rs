//! Hosts that share a key: the handshake's datagrams, and sealed packets.

use rackweave_core::{HostId, Packet, Slice, Time};
use rackweave_crypt::{
    self as crypt, Accepted, Association, Associations, Due, Early, Handled, KeyMismatch,
    OpenError, Refused, Sender, Unopened,
};
use rackweave_wire::secure::{self as wire, CLEAR_BYTES, Clear, Datagram, Handshake, Kind, Notice};
use rackweave_wire::{Header, frame, overlay};

use super::config::EndpointConfig;
use super::early::EarlyState;
use super::outgoing::Payload;
use super::peers::{Origin, PeerTable};
use super::send::{HELLO_CLASS, MAX_BATCH};
use super::{Endpoint, Event};
use crate::driver::Platform;
use crate::sys::{self, Path};

/// What an endpoint with a key has besides its peers.
#[derive(Debug)]
pub(super) struct Secure {
    pub(super) all: Associations<HostId>,
    pub(super) early: EarlyState,
}

impl Secure {
    /// `None` without a key.
    pub(super) fn new(config: &EndpointConfig, has_aes: bool) -> Option<Box<Self>> {
        let key = config.key.clone()?;
        let early = EarlyState::new(config.accept_early, config.tickets.clone());
        Some(Box::new(Self { all: Associations::new(key, has_aes, true), early }))
    }
}

impl crypt::Peers<HostId> for PeerTable {
    fn association(&self, peer: HostId) -> Option<&Association> {
        self.get(peer).map(|peer| &peer.association)
    }

    fn association_mut(&mut self, peer: HostId) -> Option<(&mut Association, u32)> {
        self.get_mut(peer).map(|peer| {
            let ours = peer.ours;
            (&mut peer.association, ours)
        })
    }
}

pub(super) fn random_bytes(platform: &mut impl Platform) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&platform.random().to_ne_bytes());
    bytes[16..].copy_from_slice(&platform.random().to_ne_bytes());
    bytes
}

impl<P: Platform> Endpoint<P> {
    /// Handles any datagram from an admitted address at a host that has a key, or one between hosts with keys at a host that has none.
    pub(super) fn handle_secure(&mut self, now: Time, datagram: &sys::Datagram<'_>) {
        let (from, bytes) = (datagram.path(), datagram.bytes);
        let key = self.secure.as_ref().map(|secure| secure.all.key());
        let has_key = key.is_some();
        match crypt::read(key, bytes) {
            Ok(Datagram::Notice(notice)) => {
                self.stats.malformed += u64::from(!has_key);
                self.on_notice(from, notice);
            }
            Ok(Datagram::Handshake(handshake)) => self.handle_handshake(now, from, &handshake),
            Ok(Datagram::Sealed(clear)) => self.handle_sealed(now, datagram, clear),
            Ok(Datagram::Lost(clear)) => {
                let Some(peer) = self.peers.at(from) else { return };
                let Some(known) = self.peers.get_mut(peer) else { return };
                if known.association.on_lost(now, clear.session) {
                    self.ask(now, peer);
                }
            }
            Err(refused) => {
                match refused {
                    Refused::Forged(_) => self.stats.forged += 1,
                    Refused::Malformed | Refused::Keyless => self.stats.malformed += 1,
                }
                let is_plain = has_key && refused == Refused::Malformed;
                let class = datagram.traffic_class;
                let notice = match is_plain && overlay::decode(bytes, class).is_ok() {
                    true => Some(Notice::NeedsKey),
                    false => refused.answer(),
                };
                if let Some(notice) = notice {
                    self.send_bytes(from, &crypt::notice(notice));
                }
            }
        }
    }

    fn handle_handshake(&mut self, now: Time, from: Path, read: &Handshake) {
        let (known, ours) = match self.peers.origin(from, HostId(0), true) {
            Origin::Peer(host, ours) => (Some(host), ours),
            Origin::Guest(ours) => (None, ours),
            Origin::Foreign => return,
        };
        let Some(secure) = &self.secure else { return };
        if read.kind == Kind::Resume && !secure.all.is_own(read) {
            self.on_resume(now, from, known, ours, read);
        }
        // A resumption may have made it known.
        let sender = Sender { peer: self.peers.at(from).or(known), address: from.remote, ours };
        let Some(secure) = &mut self.secure else { return };
        let random = || random_bytes(self.driver.platform());
        match secure.all.on_handshake(now, &mut self.peers, sender, read, random) {
            Handled::Own => self.stats.reflected += 1,
            Handled::Stranger => {}
            Handled::Late => self.stats.late += 1,
            Handled::Asked(offer) => {
                self.stats.unproven += 1;
                if let Some(offer) = offer {
                    self.send_bytes(from, &offer);
                }
            }
            Handled::Accepted(accepted, association) => {
                let Some(host) = known.or_else(|| self.peers.admit(now, from)) else {
                    self.stats.foreign += 1;
                    return;
                };
                if let (Some(first), Some(peer)) = (association, self.peers.get_mut(host)) {
                    peer.association = *first;
                }
                self.peers.heard(now, host, from.local);
                self.send_empty(now, host);
                if let Accepted::New(restarted) = accepted {
                    self.on_session(now, host, restarted);
                    self.issue_ticket(now, host);
                }
            }
            Handled::Offered(acceptance) => {
                let Some((host, peer)) = known.and_then(|it| Some((it, self.peers.get_mut(it)?)))
                else {
                    return;
                };
                let (ready, resumed) = (peer.association.is_ready(), peer.association.is_resumed());
                match resumed {
                    // What was sent early has arrived, or is lost like any other packet.
                    Some(true) => peer.drop_early(),
                    Some(false) => secure.early.refused(from.remote),
                    None => {}
                }
                self.send_bytes(from, &acceptance);
                if ready {
                    self.release(now, host);
                }
            }
        }
    }

    fn handle_sealed(&mut self, now: Time, datagram: &sys::Datagram<'_>, fields: Clear) {
        let Some(secure) = &mut self.secure else { return };
        let (clear, mut buffer) = secure.all.take_buffer(datagram.bytes);
        self.open_sealed(now, datagram, fields, clear, &mut buffer);
        if let Some(secure) = &mut self.secure {
            secure.all.put_back(buffer);
        }
    }

    fn open_sealed(
        &mut self,
        now: Time,
        datagram: &sys::Datagram<'_>,
        fields: Clear,
        clear: &[u8],
        sealed: &mut [u8],
    ) {
        let Some(host) = self.peers.at(datagram.path()) else {
            return self.send_lost(datagram.path(), fields);
        };
        let Some(peer) = self.peers.get_mut(host) else { return };
        let opened = match peer.association.open(now, fields, clear, sealed) {
            Ok(opened) => opened,
            Err(Unopened::Unknown) => {
                self.stats.unproven += 1;
                return self.send_lost(datagram.path(), fields);
            }
            Err(Unopened::Session(OpenError::Forged)) => {
                self.stats.forged += 1;
                return;
            }
            Err(Unopened::Session(OpenError::Replayed)) => {
                self.stats.replayed += 1;
                return;
            }
        };
        self.peers.heard(now, host, datagram.local);
        if opened.confirmed {
            self.on_session(now, host, opened.restarted);
            self.issue_ticket(now, host);
        }
        if let Some((name, secret)) = wire::decode_grant(opened.bytes) {
            return self.on_grant(host, name, secret);
        }
        let class = datagram.traffic_class;
        match wire::decode_path(opened.bytes) {
            None => self.open_inner(now, host, opened.bytes, class),
            Some(Ok((message, rest))) => {
                let whole = self.on_path(now, host, message, &opened.bytes[rest], class);
                if let Some((whole, class)) = whole {
                    self.open_inner(now, host, &whole, class);
                }
            }
            Some(Err(_)) => self.stats.malformed += 1,
        }
    }

    /// Delivers a packet that was sealed, in one datagram or in fragments.
    fn open_inner(&mut self, now: Time, host: HostId, bytes: &[u8], class: u8) {
        let datagram_bytes = CLEAR_BYTES + bytes.len() + wire::TAG_BYTES;
        match wire::decode_inner(bytes, datagram_bytes, class) {
            Ok(Some((packet, payload))) => self.deliver(now, host, packet, &bytes[payload]),
            Ok(None) => {}
            Err(_) => self.stats.malformed += 1,
        }
    }

    /// A session with a peer begins.
    fn on_session(&mut self, now: Time, host: HostId, restarted: bool) {
        if let Some(peer) = self.peers.get_mut(host) {
            peer.mismatch = None;
        }
        if restarted {
            // What waits is meant for the earlier incarnation.
            drop(self.peers.release(host));
            self.on_restart(now, host);
        }
        self.release(now, host);
    }

    /// Sends the packets that wait for a session.
    fn release(&mut self, now: Time, host: HostId) {
        for packet in self.peers.release(host) {
            self.queue(now, packet);
        }
    }

    /// Asks a peer for a session, if it was not asked yet, and resumes if that helps.
    fn ask(&mut self, now: Time, host: HostId) {
        let Some(peer) = self.peers.get_mut(host) else { return };
        let Some(secure) = &mut self.secure else { return };
        let nonce = || self.driver.platform().random() as u64;
        secure.all.ask(now, host, &mut peer.association, nonce);
        if peer.idempotent.is_empty() {
            return;
        }
        let remote = peer.path().remote;
        secure.early.equip(&mut peer.association, remote);
        let local = secure.all.local(peer.ours);
        let wall_ms = self.driver.platform().realtime_ns() / 1_000_000;
        let nonce = || self.driver.platform().random() as u64;
        if peer.association.resume(now, &local, wall_ms, nonce) {
            secure.early.expires(host, &peer.association);
            // It has to leave before the packets of its session.
            self.poll_asks(now);
        }
    }

    /// Sends the asks and acceptances that are due.
    pub(super) fn poll_asks(&mut self, now: Time) {
        self.expire_early(now);
        let Some(secure) = &mut self.secure else { return };
        for (host, due) in secure.all.poll_asks(now, &mut self.peers) {
            match (due, self.peers.get(host)) {
                (Due::Send(bytes), Some(peer)) => self.send_bytes(peer.path(), &bytes),
                _ => self.peers.give_up(host),
            }
        }
    }

    /// When the next ask or acceptance is due, or the session of a resumption ends.
    pub(super) fn next_ask(&self) -> Option<Time> {
        let secure = self.secure.as_ref()?;
        secure.all.next_ask(&self.peers).into_iter().chain(secure.early.next_end()).min()
    }

    /// Seals a packet into the batch, or holds it until there is a session with its receiver.
    pub(super) fn queue_sealed(&mut self, now: Time, packet: Packet<Header>) {
        let host = packet.dst;
        let Some(peer) = self.peers.get_mut(host) else { return };
        peer.used = now;
        if !peer.association.is_ready() {
            let answers = peer.association.early(now) == Early::Answers;
            if !(answers && peer.may_go_early(now, &packet)) {
                self.ask(now, host);
                let Some(peer) = self.peers.get_mut(host) else { return };
                let early = peer.may_go_early(now, &packet);
                // What is sent early is held nevertheless, since it may be refused.
                if !peer.hold(&packet, early) {
                    self.stats.not_held += 1;
                }
                if !early {
                    return;
                }
            }
            self.stats.early_sent += 1;
        }
        let Some(peer) = self.peers.get_mut(host) else { return };
        let (is_old, is_ready) = (peer.association.is_old(now), peer.association.is_ready());
        if self.driver.batch().len() >= MAX_BATCH {
            self.stats.not_held += 1;
            return;
        }
        let payload = match packet.payload() {
            None | Some(Slice { len: 0, .. }) => Payload::new(),
            Some(slice) => match self.outgoing.slice(host, slice) {
                Some(payload) => payload,
                None => {
                    self.stats.stale += 1;
                    return;
                }
            },
        };
        let layout = self.layout;
        let class = frame::traffic_class(&packet);
        let write = |out: &mut Vec<u8>| {
            wire::encode_inner(&packet, layout, out);
            payload.iter().for_each(|piece| out.extend_from_slice(piece));
        };
        // A sealed datagram is as long as the plain one. Before there is a session no probe can be answered.
        let bytes = self.datagram_bytes(&packet.header);
        let limit = if is_ready { self.watch_path(now, host, bytes) } else { None };
        match limit.filter(|limit| bytes > *limit) {
            None => self.push_sealed(now, host, class, write),
            Some(limit) => {
                let mut whole = Vec::with_capacity(bytes);
                write(&mut whole);
                self.send_fragments(now, host, class, &whole, limit);
            }
        }
        if is_old {
            self.ask(now, host);
        }
    }

    /// Seals a packet of nothing, by which the peer learns that this host has the session.
    fn send_empty(&mut self, now: Time, host: HostId) {
        if self.has_room() {
            self.push_sealed(now, host, HELLO_CLASS, wire::encode_empty);
        }
    }

    /// Seals in the session of the handshake or, if there is none, of a resumption.
    pub(super) fn push_sealed(
        &mut self,
        now: Time,
        host: HostId,
        class: u8,
        body: impl FnOnce(&mut Vec<u8>),
    ) {
        let Some(peer) = self.peers.get_mut(host) else { return };
        let path = peer.path();
        let session = match peer.association.is_ready() {
            true => peer.association.sealing(),
            false => peer.association.seal_early(now),
        };
        let Some(session) = session else { return };
        let write = |out: &mut Vec<u8>| {
            // A session that can seal was just returned, so nothing is left out.
            let sealed = session.seal_datagram(out, body);
            debug_assert_eq!(sealed, Ok(()));
        };
        self.driver.batch().push(path, class, write, Payload::new());
    }

    fn send_lost(&mut self, to: Path, fields: Clear) {
        let Some(secure) = &self.secure else { return };
        let report = secure.all.lost(fields);
        self.send_bytes(to, &report);
    }

    fn on_notice(&mut self, from: Path, notice: Notice) {
        let Some(host) = self.peers.at(from) else { return };
        let Some(why) = KeyMismatch::of(notice, self.secure.is_some()) else { return };
        // Nobody can prepare a report for a later silence of the peer.
        if let Some(peer) = self.peers.get_mut(host)
            && peer.is_asked()
        {
            peer.mismatch = Some(why);
        }
    }

    /// Reports peers whose key differs and that have not answered.
    pub(super) fn report_mismatches(&mut self) {
        while let Some((peer, why)) = self.peers.next_mismatch() {
            self.events.push(Event::KeyMismatch { peer, why });
        }
    }

    pub(super) fn has_room(&mut self) -> bool {
        let room = self.driver.batch().len() < MAX_BATCH;
        if !room {
            self.stats.not_held += 1;
        }
        room
    }

    /// Sends a datagram of the handshake, or a notice.
    fn send_bytes(&mut self, to: Path, bytes: &[u8]) {
        if self.has_room() {
            let write = |out: &mut Vec<u8>| out.extend_from_slice(bytes);
            self.driver.batch().push(to, HELLO_CLASS, write, Payload::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::SocketAddr;

    use rackweave_core::Rate;
    use rackweave_crypt::Key;
    use rackweave_transport::{TransportConfig, homa};

    use super::*;
    use crate::endpoint::Peers;

    /// Nobody can prepare the report of a later silence: a notice counts only while the peer is asked and has not answered.
    #[test]
    fn a_notice_counts_until_there_is_a_session() {
        let peers = Peers::Direct { hosts: BTreeMap::new(), allow: Vec::new() };
        let transport = TransportConfig::Homa(homa::Config::linux(Rate::from_gbps(10)).into());
        let bind = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = EndpointConfig::new(HostId(0), bind, peers, &transport);
        let mut end = Endpoint::new(config.key(Key::derive(&[7; 32]).unwrap())).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 9));
        let host = end.add_peer(address);
        let now = end.driver.now();
        let said = |end: &mut Endpoint, notice| {
            end.on_notice(address.into(), notice);
            end.peers.get(host).unwrap().mismatch
        };
        assert_eq!(said(&mut end, Notice::OtherKey), None, "nothing was asked");
        end.ask(now, host);
        end.on_notice(SocketAddr::from(([127, 0, 0, 1], 8)).into(), Notice::OtherKey);
        assert_eq!(said(&mut end, Notice::NeedsKey), None, "it does not fit");
        assert_eq!(said(&mut end, Notice::OtherKey), Some(KeyMismatch::Another));
        assert_eq!(end.peers.next_mismatch(), None, "the peer may still answer");
        end.on_session(now, host, false);
        end.peers.give_up(host);
        assert_eq!(end.peers.next_mismatch(), None, "it has answered");
        assert_eq!(said(&mut end, Notice::OtherKey), Some(KeyMismatch::Another));
        end.peers.give_up(host);
        assert_eq!(end.peers.next_mismatch(), Some((host, KeyMismatch::Another)));
    }
}
