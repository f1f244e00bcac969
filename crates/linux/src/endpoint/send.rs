//! What leaves.

use std::io;
use std::net::SocketAddr;

use rackweave_core::{HostId, Node as _, Packet, Time};
use rackweave_wire::{Header, frame, overlay};

use super::Endpoint;
use super::outgoing::Payload;

/// Packets that are handed to the kernel together.
const SEND_BATCH: usize = 128;

/// While the socket has no room, HELLOs and packets that waited are lost if so much waits already.
const MAX_BATCH: usize = 4 * SEND_BATCH;

/// HELLOs go at the highest priority.
const HELLO_CLASS: u8 = 7 << 5;

impl Endpoint {
    pub(super) fn transmit(&mut self, now: Time) -> io::Result<()> {
        let ahead = now + self.config.run_ahead;
        loop {
            if self.batch.len() >= SEND_BATCH {
                self.flush()?;
                if self.is_blocked() {
                    return Ok(());
                }
            }
            if self.idle || self.link_free > ahead {
                break;
            }
            let Some(packet) = self.machine.poll_transmit(now, 0) else {
                self.idle = true;
                break;
            };
            let span = self.config.link.span_of(u64::from(packet.wire_bytes));
            self.link_free = self.link_free.max(now) + span;
            self.queue(now, packet);
        }
        // Polling for packets may have told something too.
        while let Some(event) = self.machine.poll_event() {
            self.on_event(event);
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let waiting = self.batch.len();
        let refused = self.socket.send(&mut self.batch)?;
        self.stats.send_refused += refused;
        self.stats.sent += (waiting - self.batch.len()) as u64 - refused;
        Ok(())
    }

    /// Writes a packet into the batch.
    pub(super) fn queue(&mut self, now: Time, packet: Packet<Header>) {
        let Some(peer) = self.peers.get(packet.dst) else { return };
        let Some(to) = peer.incarnation else {
            if !self.peers.hold(now, packet) {
                self.stats.not_held += 1;
            }
            return;
        };
        if self.batch.len() >= MAX_BATCH {
            self.stats.not_held += 1;
            return;
        }
        let payload = match packet.payload() {
            None => Payload::new(),
            Some(slice) => match self.outgoing.slice(packet.dst, slice) {
                Some(payload) => payload,
                None => {
                    self.stats.stale += 1;
                    return;
                }
            },
        };
        let check = payload.iter().fold(0, |check, bytes| overlay::crc32c(check, bytes));
        let (layout, from) = (self.layout, peer.ours);
        let write = |out: &mut Vec<u8>| overlay::encode(&packet, layout, from, to, check, out);
        self.batch.push(peer.address, frame::traffic_class(&packet), write, payload);
    }

    /// Asks a peer for its incarnation.
    pub(super) fn say_hello(&mut self, host: HostId) {
        let Some(peer) = self.peers.get(host) else { return };
        let (address, ours, theirs) = (peer.address, peer.ours, peer.incarnation.unwrap_or(0));
        self.hello(address, host, ours, theirs);
    }

    /// Tells who does not know it our incarnation.
    pub(super) fn answer_hello(&mut self, to: SocketAddr, host: HostId, ours: u32, theirs: u32) {
        self.hello(to, host, ours, theirs);
    }

    fn hello(&mut self, to: SocketAddr, host: HostId, ours: u32, theirs: u32) {
        if self.batch.len() >= MAX_BATCH {
            self.stats.not_held += 1;
            return;
        }
        let src = self.config.host;
        let write = |out: &mut Vec<u8>| overlay::encode_hello(src, host, ours, theirs, out);
        self.batch.push(to, HELLO_CLASS, write, Payload::new());
    }
}
