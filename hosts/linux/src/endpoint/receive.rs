//! Receiving: datagrams from the socket to the machine.

use rackweave_core::{HostId, Node as _, Packet, Placement, Span, Time, Transport as _};
use rackweave_wire::overlay::{self, Envelope};
use rackweave_wire::path::PathMessage;
use rackweave_wire::{Header, secure};

use super::peers::{Incarnation, Origin};
use super::{Endpoint, Event};
use crate::driver::Platform;
use crate::sys::{Path, ReceiveBatch};

/// The least interval between attempts to free memory when there is no room for a packet.
const MAKE_ROOM: Span = Span::from_ms(100);

/// What follows the envelope of a datagram.
enum Content<'a> {
    Hello,
    /// A packet and its payload.
    Packet(Packet<Header>, &'a [u8]),
    /// A message about the path, what follows its head, and the traffic class.
    Path(PathMessage, &'a [u8], u8),
}

impl<P: Platform> Endpoint<P> {
    /// Handles the datagrams of one call to receive.
    pub(super) fn handle_received(&mut self, now: Time, batch: &ReceiveBatch) {
        if self.is_of_module() {
            return self.handle_bare(now, batch);
        }
        for datagram in batch.datagrams() {
            self.stats.received += 1;
            if !self.peers.admits(datagram.from) {
                self.stats.foreign += 1;
                continue;
            }
            if self.secure.is_some() || secure::is_secure(datagram.bytes) {
                self.handle_secure(now, &datagram);
                continue;
            }
            let class = datagram.traffic_class;
            if overlay::is_path(datagram.bytes) {
                match overlay::decode_path(datagram.bytes) {
                    Ok((envelope, message, rest)) => {
                        let rest = &datagram.bytes[rest];
                        let content = Content::Path(message, rest, class);
                        self.handle_datagram(now, datagram.path(), envelope, content);
                    }
                    Err(_) => self.stats.malformed += 1,
                }
                continue;
            }
            let Ok(read) = overlay::decode(datagram.bytes, class) else {
                self.stats.malformed += 1;
                continue;
            };
            let content = match read.packet {
                Some(packet) => Content::Packet(packet, &datagram.bytes[read.payload]),
                None => Content::Hello,
            };
            self.handle_datagram(now, datagram.path(), read.envelope, content);
        }
    }

    fn handle_datagram(&mut self, now: Time, from: Path, envelope: Envelope, content: Content<'_>) {
        let to_us = envelope.dst == self.config.host;
        let (known, ours) = match self.peers.origin(from, envelope.src, to_us) {
            Origin::Peer(host, ours) => (Some(host), ours),
            Origin::Guest(ours) => (None, ours),
            Origin::Foreign => {
                self.stats.foreign += 1;
                return;
            }
        };
        if envelope.to != ours {
            // The sender does not know this host's incarnation. It gets no more than a HELLO, which is not longer than what it
            // sent: a forged source address gains no amplification.
            self.stats.unproven += 1;
            if let Some(host) = known {
                self.peers.note_candidate(now, host, envelope.from);
            }
            return self.send_hello_to(from, envelope.src, ours, envelope.from);
        }
        let Some(peer) = known.or_else(|| self.peers.admit(now, from)) else {
            self.stats.foreign += 1;
            return;
        };
        match self.peers.on_incarnation(now, peer, envelope.from, matches!(content, Content::Hello))
        {
            Incarnation::Current => {}
            Incarnation::New => {
                self.on_restart(now, peer);
            }
            Incarnation::Unproven(ask) => {
                self.stats.late += 1;
                if ask {
                    self.send_hello(peer);
                }
                return;
            }
        }
        if from.local.is_some() {
            self.peers.heard(now, peer, from.local);
        }
        for packet in self.peers.release(peer) {
            self.queue(now, packet);
        }
        match content {
            Content::Hello => {}
            Content::Packet(packet, payload) => self.deliver(now, peer, packet, payload),
            Content::Path(message, rest, class) => {
                self.on_plain_path(now, peer, envelope, (message, rest), class);
            }
        }
    }

    /// A peer has a new incarnation.
    pub(super) fn on_restart(&mut self, now: Time, peer: HostId) {
        self.stats.restarts += 1;
        self.restarted = true;
        self.events.push(Event::PeerRestarted { peer });
        self.machine.peer_restarted(now, peer);
        self.changed();
    }

    /// Passes a packet of a peer to the machine, and its payload to where the machine places it.
    pub(super) fn deliver(
        &mut self,
        now: Time,
        peer: HostId,
        mut packet: Packet<Header>,
        payload: &[u8],
    ) {
        (packet.src, packet.dst) = (peer, self.config.host);
        if let Some(known) = self.peers.get_mut(peer) {
            known.used = now;
        }
        let message = packet.header.message_bytes();
        let sent = packet.payload();
        if let Some(slice) = sent
            && !self.incoming.has_room(peer, slice, message)
        {
            if self.sweep_at.since(now) < super::SWEEP - MAKE_ROOM {
                self.sweep(now, true);
            }
            if !self.incoming.has_room(peer, slice, message) {
                self.stats.no_room += 1;
                return;
            }
        }
        if let Placement::Store(slice) = self.machine.handle_packet(now, 0, &packet) {
            // The slice may be a part of the packet's payload.
            let skip = slice.offset.wrapping_sub(sent.map_or(0, |sent| sent.offset)) as usize;
            let payload = payload.get(skip..).unwrap_or_default();
            let payload = payload.get(..slice.len as usize).unwrap_or(payload);
            self.incoming.store(peer, slice, message, payload);
        }
        self.changed();
    }
}
