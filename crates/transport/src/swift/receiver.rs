//! The receiver: each packet of a message is acknowledged (section 3.6: without delay, so that each measures a delay).

use rackweave_core::{Assembler, FailReason, HostId, Packet, Placement, Slice, Time};
use rackweave_wire::swift::{Body, Header, Sack};

use super::Host;
use super::config::Config;
use crate::common::{Parameters as _, State};

/// The receiver's state of a message, in packets.
#[derive(Debug)]
pub struct Incoming {
    length: u32,
    /// Number of packets that have not arrived.
    missing: u32,
    received: Assembler<u32>,
    /// When a packet of the sender last arrived.
    last_received: Time,
}

impl Incoming {
    fn new(now: Time, length: u32, config: &Config) -> Self {
        let missing = config.packets(length);
        Self { length, missing, received: Assembler::default(), last_received: now }
    }

    /// When the message's timer expires: the sender counts as dead.
    pub(super) const fn deadline(&self, config: &Config) -> Time {
        self.last_received.saturating_add(config.patience)
    }

    /// The acknowledgement of the packet with this number. The header gets the time of its arrival.
    fn ack(&self, number: u32) -> Body {
        let next = self.received.prefix();
        let sack = Sack::behind(next, self.received.above().iter());
        Body::Ack { number, wait_ns: 0, next, sack }
    }

    #[cfg(test)]
    pub(super) fn check_bounds(&self, config: &Config) {
        assert!(self.missing > 0 && self.length <= config.max_message_bytes);
        assert!(self.received.above().len() <= usize::from(config.max_gaps));
    }
}

impl Host {
    /// Handles a probe of a sender whose message waits.
    pub(super) fn handle_probe(&mut self, now: Time, from: HostId, header: &Header, length: u32) {
        if length == 0 || length > self.config.max_message_bytes {
            return;
        }
        let Some(slot) = self.receiving(now, from, header, length) else { return };
        let State::Receiving(incoming) = &mut self.exchanges.get_mut(slot).state else { return };
        if incoming.length != length {
            return;
        }
        incoming.last_received = now;
        let ack = incoming.ack(0);
        self.send_control(from, header.id.get(), header.one_way, ack);
    }

    /// Handles a data packet.
    pub(super) fn handle_data(&mut self, now: Time, packet: &Packet<Header>) -> Placement {
        let header = &packet.header;
        let Body::Data { message_length, offset, len, number } = header.body else {
            return Placement::Discard;
        };
        let is_packet = self.config.shared().is_packet(message_length, offset, len);
        if !is_packet || packet.is_trimmed() {
            return Placement::Discard;
        }
        let slot = self.receiving(now, packet.src, header, message_length);
        let Some(slot) = slot else { return Placement::Discard };
        let (index, max_gaps) =
            (offset / self.config.max_payload, usize::from(self.config.max_gaps));
        let exchange = self.exchanges.get_mut(slot);
        let (peer, one_way, id) = (exchange.peer, exchange.one_way, exchange.arriving());
        let State::Receiving(incoming) = &mut exchange.state else { return Placement::Discard };
        if incoming.length != message_length {
            return Placement::Discard;
        }
        incoming.last_received = now;
        // A packet for which there is no room is not acknowledged.
        let Ok(fresh) = incoming.received.insert(index..index + 1, max_gaps) else {
            return Placement::Discard;
        };
        incoming.missing -= fresh;
        let is_complete = incoming.missing == 0;
        let answer =
            if is_complete { Body::Complete { number, wait_ns: 0 } } else { incoming.ack(number) };
        if is_complete {
            self.deliver(now, slot, message_length);
        }
        self.send_control(peer, id.0, one_way, answer);
        if fresh == 0 {
            return Placement::Discard;
        }
        Placement::Store(Slice { message: id, offset, len: u32::from(len) })
    }

    /// The slot of the exchange that receives this packet's message, which is created if it is new.
    #[inline]
    fn receiving(&mut self, now: Time, from: HostId, header: &Header, length: u32) -> Option<u32> {
        let (slot, is_new) = self
            .receiving_slot(now, from, header, |host| Incoming::new(now, length, &host.config))?;
        if is_new {
            self.timers.set(slot, now.saturating_add(self.config.patience));
        }
        Some(slot)
    }

    /// Handles the deadline of a message whose sender is silent.
    pub(super) fn receiver_due(&mut self, now: Time, slot: u32) {
        self.fail(now, slot, FailReason::PeerSilent);
    }
}
