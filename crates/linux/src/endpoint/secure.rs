//! Hosts that share a key: the handshake's datagrams, and sealed packets.

use rackweave_core::{HostId, Packet, Slice, Time};
use rackweave_crypt::{
    Accepted, Association, Cipher, Due, Early, Key, Local, Offers, OpenError, Unopened,
};
use rackweave_wire::secure::{self as wire, CLEAR_BYTES, Clear, Datagram, Handshake, Kind, Notice};
use rackweave_wire::{Header, frame, overlay};

use super::config::EndpointConfig;
use super::early::EarlyState;
use super::event::KeyMismatch;
use super::outgoing::Payload;
use super::peers::Origin;
use super::send::{HELLO_CLASS, MAX_BATCH};
use super::{Endpoint, Event};
use crate::driver::Platform;
use crate::sys::{self, Path};

/// What an endpoint with a key has besides its peers' associations.
#[derive(Debug)]
pub(super) struct Secure {
    key: Key,
    ciphers: u8,
    offers: Offers,
    /// Peers that were asked and have not confirmed, each with the number of the ask.
    asking: Vec<(HostId, u64)>,
    /// The packet that is being opened.
    opened: Vec<u8>,
    pub(super) early: EarlyState,
}

impl Secure {
    /// `None` without a key.
    pub(super) fn new(config: &EndpointConfig, has_aes: bool) -> Option<Box<Self>> {
        let key = config.key.clone()?;
        Some(Box::new(Self {
            key,
            ciphers: Cipher::preferred(has_aes),
            offers: Offers::default(),
            asking: Vec::new(),
            opened: Vec::new(),
            early: EarlyState::new(config.accept_early, config.tickets.clone()),
        }))
    }

    pub(super) const fn local_and_early(
        &mut self,
        incarnation: u32,
    ) -> (Local<'_>, &mut EarlyState) {
        (Local { key: &self.key, ciphers: self.ciphers, incarnation }, &mut self.early)
    }

    /// Whether a message of the handshake is this host's own.
    fn is_own(&self, read: &Handshake) -> bool {
        read.kind != Kind::Offer && self.asking.iter().any(|(_, nonce)| *nonce == read.nonce)
    }

    const fn local(&self, incarnation: u32) -> Local<'_> {
        Local { key: &self.key, ciphers: self.ciphers, incarnation }
    }
}

pub(super) fn random_bytes(platform: &mut impl Platform) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&platform.random().to_ne_bytes());
    bytes[16..].copy_from_slice(&platform.random().to_ne_bytes());
    bytes
}

impl<P: Platform> Endpoint<P> {
    /// Handles a datagram between hosts with keys at a host that has none.
    pub(super) fn handle_keyless(&mut self, from: Path, bytes: &[u8]) {
        self.stats.malformed += 1;
        match wire::decode(bytes) {
            Ok(Datagram::Notice(notice)) => self.on_notice(from, notice),
            Ok(_) => self.send_notice(from, Notice::NoKey),
            Err(_) => {}
        }
    }

    /// Handles any datagram from an admitted address at a host that has a key.
    pub(super) fn handle_secure(&mut self, now: Time, datagram: &sys::Datagram<'_>) {
        let (from, bytes) = (datagram.path(), datagram.bytes);
        let Some(secure) = &self.secure else { return };
        let Ok(read) = wire::decode(bytes) else {
            self.stats.malformed += 1;
            if overlay::decode(bytes, datagram.traffic_class).is_ok() {
                self.send_notice(from, Notice::NeedsKey);
            }
            return;
        };
        let has_tag = matches!(read, Datagram::Handshake(_) | Datagram::Lost(_));
        if has_tag && !secure.key.verify(bytes) {
            self.stats.forged += 1;
            if let Datagram::Handshake(Handshake { kind: Kind::Ask, .. }) = read {
                self.send_notice(from, Notice::OtherKey);
            }
            return;
        }
        match read {
            Datagram::Notice(notice) => self.on_notice(from, notice),
            Datagram::Handshake(handshake) => self.handle_handshake(now, from, &handshake),
            Datagram::Sealed(clear) => self.handle_sealed(now, datagram, clear),
            Datagram::Lost(clear) => {
                let Some(peer) = self.peers.at(from) else { return };
                let Some(known) = self.peers.get_mut(peer) else { return };
                if known.association.on_lost(now, clear.session) {
                    self.ask(now, peer);
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
        if self.secure.as_ref().is_some_and(|secure| secure.is_own(read)) {
            self.stats.reflected += 1;
            return;
        }
        if read.kind == Kind::Resume {
            self.on_resume(now, from, known, ours, read);
        }
        let Some(secure) = &mut self.secure else { return };
        let address = rackweave_crypt::address_bytes(from.remote);
        secure.offers.advance(now, || random_bytes(self.driver.platform()));
        let Secure { key, ciphers, offers, .. } = &mut **secure;
        let local = Local { key, ciphers: *ciphers, incarnation: ours };
        match read.kind {
            Kind::Accept if read.to == ours => {
                let mut first = Association::default();
                let association = match known.and_then(|host| self.peers.get_mut(host)) {
                    Some(peer) => &mut peer.association,
                    None => &mut first,
                };
                let Some(accepted) = association.on_accept(now, &local, offers, &address, read)
                else {
                    self.stats.late += 1;
                    return;
                };
                let Some(host) = known.or_else(|| self.peers.admit(now, from)) else {
                    self.stats.foreign += 1;
                    return;
                };
                if known.is_none()
                    && let Some(peer) = self.peers.get_mut(host)
                {
                    peer.association = first;
                }
                self.peers.heard(now, host, from.local);
                self.send_empty(now, host);
                if let Accepted::New(restarted) = accepted {
                    self.on_session(now, host, restarted);
                    self.issue_ticket(now, host);
                }
            }
            // An acceptance of what an earlier incarnation of this host has offered is answered as an ask.
            Kind::Ask | Kind::Accept | Kind::Resume => {
                self.stats.unproven += 1;
                let peer = self.peers.at(from).and_then(|host| self.peers.get(host));
                let flags = peer.map_or(0, |peer| peer.association.flags(read));
                if let Some(offer) = local.offer(now, offers, &address, read, flags) {
                    self.send_bytes(from, &offer);
                }
            }
            _ => {
                let Some(peer) = known.and_then(|host| self.peers.get_mut(host)) else { return };
                let ephemeral = || random_bytes(self.driver.platform());
                let Some(accept) = peer.association.on_offer(now, &local, read, ephemeral) else {
                    self.stats.late += 1;
                    return;
                };
                let (ready, resumed) = (peer.association.is_ready(), peer.association.is_resumed());
                match resumed {
                    // What was sent early has arrived, or is lost like any other packet.
                    Some(true) => peer.drop_early(),
                    Some(false) => secure.early.refused(from.remote),
                    None => {}
                }
                self.send_bytes(from, &accept);
                if let Some(host) = known
                    && ready
                {
                    self.release(now, host);
                }
            }
        }
    }

    fn handle_sealed(&mut self, now: Time, datagram: &sys::Datagram<'_>, fields: Clear) {
        let Some(secure) = &mut self.secure else { return };
        let mut buffer = std::mem::take(&mut secure.opened);
        let (clear, sealed) = datagram.bytes.split_at(CLEAR_BYTES);
        buffer.clear();
        buffer.extend_from_slice(sealed);
        self.open_sealed(now, datagram, fields, clear, &mut buffer);
        if let Some(secure) = &mut self.secure {
            secure.opened = buffer;
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
        if peer.association.ask(now, || self.driver.platform().random() as u64)
            && let Some(nonce) = peer.association.asking()
        {
            secure.asking.push((host, nonce));
        }
        if peer.idempotent.is_empty() {
            return;
        }
        secure.early.equip(&mut peer.association, peer.path.remote);
        let local = secure.local(peer.ours);
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
        let mut index = 0;
        let mut asking = std::mem::take(&mut secure.asking);
        while let Some(&(host, nonce)) = asking.get(index) {
            let Some(secure) = &self.secure else { break };
            let peer = self.peers.get_mut(host);
            let peer = peer.filter(|peer| peer.association.asking() == Some(nonce));
            let due = peer.map_or((Due::Idle, None), |peer| {
                let due = peer.association.poll_ask(now, &secure.local(peer.ours));
                (due, Some(peer.path))
            });
            match due {
                (Due::Send(bytes), Some(path)) => self.send_bytes(path, &bytes),
                (Due::Later(_), _) => {}
                (due, _) => {
                    asking.swap_remove(index);
                    if due == Due::Silent {
                        self.peers.give_up(host);
                    }
                    continue;
                }
            }
            index += 1;
        }
        if let Some(secure) = &mut self.secure {
            secure.asking.append(&mut asking);
        }
    }

    /// When the next ask or acceptance is due, or the session of a resumption ends.
    pub(super) fn next_ask(&self) -> Option<Time> {
        let secure = self.secure.as_ref()?;
        let due = |(host, _): &(HostId, u64)| self.peers.get(*host)?.association.ask_due();
        secure.asking.iter().filter_map(due).chain(secure.early.next_end()).min()
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
        let path = peer.path;
        let session = match peer.association.is_ready() {
            true => peer.association.sealing(),
            false => peer.association.seal_early(now),
        };
        let Some(session) = session else { return };
        let write = |out: &mut Vec<u8>| {
            let clear = |session: u32, counter: u64, out: &mut Vec<u8>| {
                wire::encode_sealed(Clear { session, counter }, out);
            };
            // A session that can seal was just returned, so nothing is left out.
            let sealed = session.seal(out, clear, body);
            debug_assert_eq!(sealed, Ok(()));
        };
        self.driver.batch().push(path, class, write, Payload::new());
    }

    fn send_lost(&mut self, to: Path, fields: Clear) {
        let Some(secure) = &self.secure else { return };
        let mut bytes = Vec::with_capacity(wire::LOST_BYTES);
        wire::encode_lost(fields, &mut bytes);
        let tag = secure.key.tag(&bytes);
        bytes.extend_from_slice(&tag);
        self.send_bytes(to, &bytes);
    }

    fn send_notice(&mut self, to: Path, notice: Notice) {
        let mut bytes = Vec::with_capacity(wire::NOTICE_BYTES);
        wire::encode_notice(notice, &mut bytes);
        self.send_bytes(to, &bytes);
    }

    fn on_notice(&mut self, from: Path, notice: Notice) {
        let Some(host) = self.peers.at(from) else { return };
        let why = match (notice, self.secure.is_some()) {
            (Notice::NoKey, true) => KeyMismatch::PeerHasNone,
            (Notice::OtherKey, true) => KeyMismatch::Another,
            (Notice::NeedsKey, false) => KeyMismatch::PeerHasOne,
            _ => return,
        };
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
