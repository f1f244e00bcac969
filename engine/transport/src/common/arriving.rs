//! The receiver's half of transports that acknowledge each packet: pFabric and Swift.

use rackweave_core::{Assembler, HostId, Placement, Slice, Time};
use rackweave_wire::pfabric::Sack;

use super::{Driven, Parameters as _, Scheme, State};

/// The receiver's state of a message, in packets.
#[derive(Debug)]
pub struct Arriving {
    length: u32,
    /// Number of packets that have not arrived.
    missing: u32,
    received: Assembler<u32>,
    /// When a packet of the sender last arrived.
    last_received: Time,
}

/// A data packet that belongs to a message.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The host that sends the message, for the packet that acknowledges this one.
    pub peer: HostId,
    /// The message's id.
    pub id: u64,
    /// Whether it expects no response.
    pub one_way: bool,
    /// What has arrived of the message: the first packet that has not, and those behind it. `None` if all has.
    pub acknowledged: Option<(u32, Sack)>,
    /// Where the payload belongs.
    pub placement: Placement,
}

/// Where a data packet belongs, as its header says.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Length of the whole message.
    pub message_length: u32,
    /// Offset of the payload in the message.
    pub offset: u32,
    /// Length of the payload.
    pub len: u16,
}

impl Arriving {
    fn new(now: Time, length: u32, max_payload: u32) -> Self {
        let missing = length.div_ceil(max_payload);
        Self { length, missing, received: Assembler::default(), last_received: now }
    }

    /// What an acknowledgement says of the message.
    pub(crate) fn acknowledged(&self) -> (u32, Sack) {
        let next = self.received.prefix();
        (next, Sack::behind(next, self.received.above().iter()))
    }

    /// When a packet of the sender last arrived.
    #[must_use]
    pub const fn last_received(&self) -> Time {
        self.last_received
    }

    #[cfg(test)]
    pub(crate) fn check_bounds(&self, max_message_bytes: u32, max_gaps: u16) {
        assert!(self.missing > 0 && self.length <= max_message_bytes);
        assert!(self.received.above().len() <= usize::from(max_gaps));
    }
}

impl<S: Scheme<Incoming = Arriving>> Driven<S> {
    /// Notes a packet of the sender of a message of this length, and returns what has arrived of that; `None` if the packet belongs to
    /// no such message.
    pub fn probed(
        &mut self,
        now: Time,
        from: HostId,
        header: &S::Header,
        length: u32,
    ) -> Option<(u32, Sack)> {
        if length == 0 || length > self.config.common().max_message_bytes {
            return None;
        }
        let slot = self.arriving_slot(now, from, header, length)?;
        let State::Receiving(incoming) = &mut self.exchanges.get_mut(slot).state else {
            return None;
        };
        if incoming.length != length {
            return None;
        }
        incoming.last_received = now;
        Some(incoming.acknowledged())
    }

    /// Notes a data packet, and delivers its message if that is complete; `None` if the packet belongs to no message, or there is no room
    /// to note it.
    #[inline]
    pub fn arrived(
        &mut self,
        now: Time,
        from: HostId,
        header: &S::Header,
        place: Place,
        max_gaps: u16,
    ) -> Option<Arrival> {
        let Place { message_length, offset, len } = place;
        let common = self.config.common();
        if !common.is_packet(message_length, offset, len) {
            return None;
        }
        let number = offset / common.max_payload;
        let slot = self.arriving_slot(now, from, header, message_length)?;
        let exchange = self.exchanges.get_mut(slot);
        let (peer, one_way, id) = (exchange.peer, exchange.one_way, exchange.arriving());
        let State::Receiving(incoming) = &mut exchange.state else { return None };
        if incoming.length != message_length {
            return None;
        }
        incoming.last_received = now;
        let fresh = incoming.received.insert(number..number + 1, usize::from(max_gaps)).ok()?;
        incoming.missing -= fresh;
        let acknowledged = (incoming.missing > 0).then(|| incoming.acknowledged());
        if acknowledged.is_none() {
            self.deliver(now, slot, message_length);
        }
        let placement = if fresh == 0 {
            Placement::Discard
        } else {
            Placement::Store(Slice { message: id, offset, len: u32::from(len) })
        };
        Some(Arrival { peer, id: id.0, one_way, acknowledged, placement })
    }

    /// The slot of the exchange that receives this packet's message, which is created if it is new.
    #[inline]
    fn arriving_slot(
        &mut self,
        now: Time,
        from: HostId,
        header: &S::Header,
        length: u32,
    ) -> Option<u32> {
        let (slot, is_new) = self.receiving_slot(now, from, header, |host| {
            Arriving::new(now, length, host.config.common().max_payload)
        })?;
        if is_new {
            let patience = self.config.common().patience;
            self.timers.set(slot, now.saturating_add(patience));
        }
        Some(slot)
    }
}

/// Adds what an acknowledgement names to the packets that are known to have arrived: all below `next`, those of the bits, and the one that it
/// answers. What was not sent has not arrived.
#[inline]
pub(crate) fn note_acknowledged(
    acked: &mut Assembler<u32>,
    sent_to: u32,
    (next, sack): (u32, Sack),
    answered: Option<u32>,
    max_gaps: usize,
) {
    let answered = answered.map(|packet| packet..packet.saturating_add(1));
    for range in core::iter::once(0..next).chain(sack.ranges(next)).chain(answered) {
        let range = range.start..range.end.min(sent_to);
        if range.start < range.end {
            // A range for which there is no room is sent again.
            let _ = acked.insert(range, max_gaps);
        }
    }
}
