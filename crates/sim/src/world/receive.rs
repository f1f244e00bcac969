//! The processor of each host that handles received packets, one after the other.
//!
//! It stands for the kernel's receive path (interrupt, NAPI, the transport), which handles the packets of one NIC queue
//! on one core. Sending needs no such model: a transport is polled for its next packet when its link is free, and a
//! NIC segments large sends.

use std::collections::VecDeque;

use rackweave_core::{DropReason, HostId, PacketRef, Span};

use super::World;
use super::host::RECEIVE_RING;
use crate::model::Model;

/// The receive processors of all hosts.
#[derive(Debug)]
pub(super) struct Receivers {
    /// The time that each packet takes.
    per_packet: Span,
    /// The number of the first host's wake-up.
    first_wake: u32,
    /// The packets of each host that have arrived; the first one is being handled.
    rings: Vec<VecDeque<PacketRef>>,
}

impl Receivers {
    pub(super) fn new(per_packet: Span, hosts: u32, first_wake: u32) -> Self {
        Self { per_packet, first_wake, rings: vec![VecDeque::new(); hosts as usize] }
    }

    /// The host whose wake-up this is, if it is one of a receive processor.
    pub(super) fn host_of(&self, wake: u32) -> Option<HostId> {
        wake.checked_sub(self.first_wake).map(HostId)
    }
}

impl<M: Model> World<'_, M> {
    /// Handles a packet that has reached its host: at once, or when the host's processor has handled it and those
    /// before it.
    #[inline]
    pub(super) fn arrived(&mut self, host: HostId, packet: PacketRef) {
        if self.receivers.is_none() {
            return self.receive(host, packet);
        }
        self.wait_for_processor(host, packet);
    }

    #[inline(never)]
    fn wait_for_processor(&mut self, host: HostId, packet: PacketRef) {
        let Some(receivers) = &mut self.receivers else { return };
        let ring = &mut receivers.rings[host.0 as usize];
        if ring.len() >= RECEIVE_RING {
            return self.net.discard(packet, DropReason::QueueFull);
        }
        ring.push_back(packet);
        if ring.len() == 1 {
            let done = self.net.now() + receivers.per_packet;
            self.net.wake_at(done, receivers.first_wake + host.0);
        }
    }

    /// Handles the packet whose processing has ended, and starts the next one.
    pub(super) fn on_processed(&mut self, host: HostId) {
        let Some(receivers) = &mut self.receivers else { return };
        let ring = &mut receivers.rings[host.0 as usize];
        let Some(packet) = ring.pop_front() else { return };
        if !ring.is_empty() {
            let done = self.net.now() + receivers.per_packet;
            self.net.wake_at(done, receivers.first_wake + host.0);
        }
        self.receive(host, packet);
    }
}
