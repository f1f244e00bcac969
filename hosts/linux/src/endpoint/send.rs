//! The endpoint's turn, and packets and HELLOs on their way to the socket.

use std::io;
use std::ops::ControlFlow;

use rackweave_core::{HostId, Node as _, Packet, Time, Transport as _};
use rackweave_wire::{Header, frame, overlay};

use super::Endpoint;
use super::outgoing::Payload;
use crate::driver::{Driven, Driver, Platform};
use crate::sys::{Path, ReceiveBatch};

/// Packets that are passed to the kernel together.
const SEND_BATCH: usize = 128;

/// While the socket is blocked, HELLOs and held packets are dropped if this many datagrams wait already.
pub(super) const MAX_BATCH: usize = 4 * SEND_BATCH;

/// The traffic class of HELLOs: the highest priority.
pub(super) const HELLO_CLASS: u8 = 7 << 5;

impl<P: Platform> Driven<P> for Endpoint<P> {
    fn driver(&mut self) -> &mut Driver<P> {
        &mut self.driver
    }

    fn handle_datagrams(&mut self, now: Time, batch: &ReceiveBatch) {
        self.handle_received(now, batch);
    }

    fn handle_timeout(&mut self, now: Time, _more: bool) -> ControlFlow<()> {
        if std::mem::take(&mut self.restarted) {
            // Packets meant for the peer's previous incarnation are not sent to the new one before the application has
            // had a chance to cancel them.
            return ControlFlow::Break(());
        }
        // What has arrived since waits for the next turn.
        self.machine.arrived_until(self.driver.emptied_at());
        if self.machine.poll_timeout().is_some_and(|at| at <= now) {
            self.machine.handle_timeout(now);
            self.changed();
        }
        while let Some(address) = self.driver.take_lost() {
            self.peers.forget_local(address);
        }
        for host in self.peers.due(now) {
            self.send_hello(host);
        }
        self.poll_asks(now);
        self.report_mismatches();
        self.peers.release_idle(now);
        self.note_too_long(now);
        self.poll_probes(now);
        if self.sweep_at <= now && !self.is_swept() {
            self.sweep(now, false);
        }
        ControlFlow::Continue(())
    }

    fn transmit(&mut self, now: Time) -> io::Result<bool> {
        let ahead = now + self.config.run_ahead;
        loop {
            if self.driver.batch().len() >= SEND_BATCH {
                self.driver.flush()?;
                if self.is_blocked() {
                    return Ok(false);
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
        // Polling for packets may have produced events too.
        while let Some(event) = self.machine.poll_event() {
            self.on_event(event);
        }
        self.driver.flush()?;
        Ok(false)
    }

    fn finish_turn(&mut self, _now: Time) -> Option<Time> {
        // By then the kernel still holds half of `run_ahead`: trains form, and the link does not idle.
        let link = (!self.idle && !self.is_blocked()).then(|| {
            Time::from_ticks(
                self.link_free.ticks().saturating_sub(self.config.run_ahead.ticks() / 2),
            )
        });
        let sweep = (!self.is_swept()).then_some(self.sweep_at);
        let hello = self.peers.next_due().into_iter().chain(self.next_ask()).min();
        let times = [self.machine.poll_timeout(), hello, link, sweep];
        times.into_iter().flatten().min()
    }
}

impl<P: Platform> Endpoint<P> {
    /// Writes a packet to the batch, or holds it until the peer's incarnation (with a key, a session) is known.
    pub(super) fn queue(&mut self, now: Time, packet: Packet<Header>) {
        if self.is_of_module() {
            return self.queue_bare(now, &packet);
        }
        if self.secure.is_some() {
            return self.queue_sealed(now, packet);
        }
        let Some(peer) = self.peers.get_mut(packet.dst) else { return };
        peer.used = now;
        let Some(to) = peer.incarnation else {
            if !self.peers.hold(now, packet) {
                self.stats.not_held += 1;
            }
            return;
        };
        if self.driver.batch().len() >= MAX_BATCH {
            self.stats.not_held += 1;
            return;
        }
        let (ours, path) = (peer.ours, peer.path());
        let Some(payload) = self.payload_of(packet.dst, packet.payload()) else { return };
        let check = payload.iter().fold(0, |check, bytes| overlay::crc32c(check, bytes));
        let layout = self.layout;
        let class = frame::traffic_class(&packet);
        let write = |out: &mut Vec<u8>| overlay::encode(&packet, layout, ours, to, check, out);
        let bytes = self.datagram_bytes(&packet.header);
        if let Some(limit) = self.watch_path(now, packet.dst, bytes)
            && bytes > limit
        {
            let mut whole = Vec::with_capacity(bytes);
            write(&mut whole);
            payload.iter().for_each(|piece| whole.extend_from_slice(piece));
            return self.send_fragments(now, packet.dst, class, &whole, limit);
        }
        self.driver.batch().push(path, class, write, payload);
    }

    /// Asks a peer for its incarnation.
    pub(super) fn send_hello(&mut self, host: HostId) {
        let Some(peer) = self.peers.get(host) else { return };
        let (path, ours, theirs) = (peer.path(), peer.ours, peer.incarnation.unwrap_or(0));
        self.send_hello_to(path, host, ours, theirs);
    }

    /// Sends this host's incarnation, as that peer is to use it, by a path.
    pub(super) fn send_hello_to(&mut self, to: Path, host: HostId, ours: u32, theirs: u32) {
        if self.driver.batch().len() >= MAX_BATCH {
            self.stats.not_held += 1;
            return;
        }
        let src = self.config.host;
        let write = |out: &mut Vec<u8>| overlay::encode_hello(src, host, ours, theirs, out);
        self.driver.batch().push(to, HELLO_CLASS, write, Payload::new());
    }
}
