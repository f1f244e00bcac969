//! What arrives.

use std::net::SocketAddr;

use rackweave_core::{Node as _, Placement, Span, Time, Transport as _};
use rackweave_wire::overlay;

use super::peers::{Life, Origin};
use super::{Endpoint, Event};
use crate::sys::ReceiveBatch;

/// When there is no room, it is looked at most this often for what has been forgotten.
const MAKE_ROOM: Span = Span::from_ms(100);

impl Endpoint {
    pub(super) fn handle_received(&mut self, now: Time, batch: &ReceiveBatch) {
        for datagram in batch.datagrams() {
            self.stats.received += 1;
            if !self.peers.admits(datagram.from) {
                self.stats.foreign += 1;
                continue;
            }
            let Ok(read) = overlay::decode(datagram.bytes, datagram.traffic_class) else {
                self.stats.malformed += 1;
                continue;
            };
            self.handle_datagram(now, datagram.from, &read, datagram.bytes);
        }
    }

    fn handle_datagram(
        &mut self,
        now: Time,
        from: SocketAddr,
        read: &overlay::Datagram,
        bytes: &[u8],
    ) {
        let envelope = read.envelope;
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
            // Who does not know us yet (any more) is told, with no more bytes than it sent, and only that.
            self.stats.unproven += 1;
            if let Some(host) = known {
                self.peers.suspect(now, host, envelope.from);
            }
            return self.answer_hello(from, envelope.src, ours, envelope.from);
        }
        let Some(peer) = known.or_else(|| self.peers.admit(now, from)) else {
            self.stats.foreign += 1;
            return;
        };
        match self.peers.hear(now, peer, envelope.from, read.packet.is_none()) {
            Life::Known => {}
            Life::New => {
                self.stats.restarts += 1;
                self.restarted = true;
                self.events.push_back(Event::PeerRestarted { peer });
                self.machine.peer_restarted(now, peer);
                self.changed();
            }
            Life::Doubtful(ask) => {
                self.stats.late += 1;
                if ask {
                    self.say_hello(peer);
                }
                return;
            }
        }
        for packet in self.peers.release(peer) {
            self.queue(now, packet);
        }
        let Some(mut packet) = read.packet else { return };
        (packet.src, packet.dst) = (peer, self.config.host);
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
            // A part of the packet's payload, or all of it.
            let skip = slice.offset.wrapping_sub(sent.map_or(0, |sent| sent.offset)) as usize;
            let payload = bytes[read.payload.clone()].get(skip..).unwrap_or_default();
            let payload = payload.get(..slice.len as usize).unwrap_or(payload);
            self.incoming.store(peer, slice, message, payload);
        }
        self.changed();
    }
}
