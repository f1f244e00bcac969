//! What ports of switches write into packets that have room for it ([`rackweave_core::telemetry`]).
//!
//! Networks whose headers have no room ([`Header::STAMPED`]) have none of this code. In others a port writes as a packet begins to leave,
//! as in HPCC's simulator (`switch-node.cc`, `SwitchNotifyDequeue`). Hosts' NICs write nothing.

use rackweave_core::telemetry::{Stamp, rate_code};
use rackweave_core::{Header, PacketRef, PayloadStore, SwitchProgram, Time};

use super::{Net, STAMPING};
use crate::fabric::Node;

/// What a port writes besides the state of its queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stamper {
    sent_bytes: u64,
    rate: u8,
}

impl<P: SwitchProgram, B: PayloadStore<P::Header>> Net<P, B> {
    /// Has all ports of switches write whose rates have a code.
    pub(super) fn mark_stamping_ports(&mut self) {
        if !P::Header::STAMPED {
            return;
        }
        self.stampers = vec![Stamper::default(); self.links.len()];
        let ports = self.links.iter_mut().zip(&mut self.stampers);
        for ((link, stamper), spec) in ports.zip(self.fabric.links()) {
            if let (Node::Switch(_), Some(rate)) = (spec.from, rate_code(spec.rate)) {
                link.special |= STAMPING;
                stamper.rate = rate;
            }
        }
    }

    /// Writes into a packet that begins to leave.
    pub(super) fn stamp(&mut self, link: u32, packet: PacketRef, at: Time) {
        let queue_bytes = self.links[link as usize].queue.bytes();
        let stamper = &mut self.stampers[link as usize];
        let Stamper { sent_bytes, rate } = *stamper;
        stamper.sent_bytes += u64::from(self.pool.wire_bytes(packet));
        let stamp = Stamp { port: link, rate, at, sent_bytes, queue_bytes };
        self.pool.modify(packet, |packet| packet.header.stamp(stamp));
    }
}
