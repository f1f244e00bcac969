//! Datagrams: what UDP does (RFC 768). A message's packets leave at the rate of the link, one message
//! after the other, and nothing comes back: no acknowledgement, no repetition, no congestion control.
//!
//! - [`config`]: the parameters.
//!
//! The sender gets [`Event::Sent`] when a message's last packet has left, whatever becomes of it. A
//! message is delivered when all its packets have arrived; one of which nothing arrives any more is
//! forgotten after [`Config::forget_after`], as IP does with the fragments of a packet (RFC 1122, section
//! 3.3.2), without an event. There are no requests: nothing would end one whose answer is lost.
//!
//! # At most once
//! A delivered message is remembered for [`Config::finished_for`], so that packets that come late or
//! twice are not taken for a new one. UDP itself promises nothing of that kind: a driver that counts
//! messages needs it.

pub mod config;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use rackweave_core::{
    Assembler, Event, Framing, HostId, Kind, MessageId, Node, Packet, Placement, Refused, Submit,
    Time, Transport,
};
use rackweave_wire::Id64;
use rackweave_wire::datagram::Header;

use crate::common::{CLIENT_PORT, Exchanges, Heap, Known, Limits, List, SERVER_PORT, State};
pub use config::{Config, InvalidConfig};

/// A message on its way out.
#[derive(Debug)]
struct Outgoing {
    bytes: u32,
    sent: u32,
}

/// A message on its way in, in packets.
#[derive(Debug)]
struct Incoming {
    bytes: u32,
    /// Packets that have not arrived.
    missing: u32,
    received: Assembler<u32>,
}

/// Datagrams at one host.
#[derive(Debug)]
pub struct Host {
    id: HostId,
    config: Arc<Config>,
    /// Apart from those that arrive, so that a flood from outside leaves room for what is to be sent.
    sending: Exchanges<Outgoing, ()>,
    /// Messages with packets to send: first come, first served.
    queue: List,
    arriving: Exchanges<(), Incoming>,
    /// When each of those is forgotten.
    deadlines: Heap<Time>,
    events: VecDeque<Event>,
}

impl Host {
    /// Datagrams at host `id`, without any message. Hosts share their configuration, which
    /// [`Config::check`] must have passed.
    #[must_use]
    pub fn new(id: HostId, config: Arc<Config>) -> Self {
        let (finished, finished_for) = (config.max_finished, config.finished_for);
        // What was sent is not remembered.
        let sending = Limits { live: config.max_sending, finished: 1, finished_for };
        let arriving = Limits { live: config.max_arriving, finished, finished_for };
        Self {
            id,
            config,
            sending: Exchanges::new(sending),
            queue: List::default(),
            arriving: Exchanges::new(arriving),
            deadlines: Heap::default(),
            events: VecDeque::new(),
        }
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.sending.live() == 0 && self.arriving.live() == 0 && self.events.is_empty()
    }

    /// Checks that no part of the state has outgrown the configuration.
    #[cfg(test)]
    fn check_bounds(&self) {
        self.sending.check_bounds();
        self.arriving.check_bounds();
        if self.sending.live() == 0 {
            assert!(self.queue.is_empty());
        }
        if self.arriving.live() == 0 {
            assert!(self.deadlines.is_empty());
        }
    }

    /// The message that this packet is a piece of, if there is one or it may begin.
    fn arriving_slot(&mut self, now: Time, from: HostId, header: &Header) -> Option<u32> {
        let local = header.id.get() ^ 1;
        match self.arriving.find(from, local) {
            Known::Slot(slot) => Some(slot),
            Known::Finished => None,
            Known::No => {
                let bytes = header.message_length;
                let missing = bytes.div_ceil(self.config.max_payload);
                let incoming = Incoming { bytes, missing, received: Assembler::default() };
                self.arriving.insert(now, from, local, true, State::Receiving(incoming))
            }
        }
    }
}

impl Node for Host {
    type Header = Header;
    type Event = Event;
    type Placement = Placement;

    #[inline]
    fn handle_packet(&mut self, now: Time, _port: u8, packet: &Packet<Header>) -> Placement {
        let header = &packet.header;
        let Header { message_length, offset, len, .. } = *header;
        let max_payload = self.config.max_payload;
        let is_piece = offset % max_payload == 0
            && offset < message_length
            && u32::from(len) == max_payload.min(message_length - offset);
        let is_ours = packet.dst == self.id && packet.src != self.id && header.id.get() & 1 == 0;
        let is_right = is_piece && is_ours && message_length <= self.config.max_message_bytes;
        if !is_right || packet.is_trimmed() {
            return Placement::Discard;
        }
        let from = packet.src;
        let Some(slot) = self.arriving_slot(now, from, header) else { return Placement::Discard };
        let exchange = self.arriving.get_mut(slot);
        let (id, kind) = (exchange.arriving(), exchange.arriving_kind());
        let State::Receiving(incoming) = &mut exchange.state else { return Placement::Discard };
        if incoming.bytes != message_length {
            return Placement::Discard;
        }
        let (number, max_gaps) = (offset / max_payload, usize::from(self.config.max_gaps));
        let fresh = incoming.received.insert(number..number + 1, max_gaps).unwrap_or(0);
        incoming.missing -= fresh;
        if incoming.missing == 0 {
            self.deadlines.remove(slot);
            self.arriving.remove(now, slot, true);
            let bytes = u64::from(message_length);
            self.events.push_back(Event::Delivered { peer: from, id, bytes, kind });
        } else {
            self.deadlines.set(slot, now.saturating_add(self.config.forget_after));
        }
        if fresh == 0 { Placement::Discard } else { Placement::Store(header.payload()) }
    }

    fn handle_timeout(&mut self, now: Time) {
        while let Some((at, slot)) = self.deadlines.first()
            && at <= now
        {
            self.deadlines.remove(slot);
            self.arriving.remove(now, slot, false);
        }
    }

    #[inline]
    fn poll_transmit(&mut self, now: Time, _port: u8) -> Option<Packet<Header>> {
        let slot = self.queue.first()?;
        let exchange = self.sending.get_mut(slot);
        let (peer, id) = (exchange.peer, MessageId(exchange.local));
        let State::Sending(outgoing) = &mut exchange.state else { return None };
        let (message_length, offset) = (outgoing.bytes, outgoing.sent);
        let len = self.config.max_payload.min(message_length - offset);
        outgoing.sent += len;
        if outgoing.sent == message_length {
            self.queue.pop_front();
            self.sending.remove(now, slot, false);
            self.events.push_back(Event::Sent { peer, id });
        }
        // `Config::check`: a packet's length has 16 bits.
        let header = Header { id: Id64::new(id.0), message_length, offset, len: len as u16 };
        let packet = Packet::new(self.id, peer, len + self.config.header_bytes, header)
            .with_priority(self.config.priority)
            .with_ports(CLIENT_PORT, SERVER_PORT)
            .sprayed(self.config.spray);
        Some(packet)
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Time> {
        self.deadlines.first().map(|(at, _)| at)
    }

    #[inline]
    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

impl Transport for Host {
    fn submit(&mut self, now: Time, message: Submit) -> Result<(), Refused> {
        if message.kind != Kind::OneWay {
            return Err(Refused::Unsupported);
        }
        self.sending.check(&message, self.config.max_message_bytes)?;
        let outgoing = State::Sending(Outgoing { bytes: message.bytes as u32, sent: 0 });
        let slot = self.sending.insert(now, message.peer, message.id.0, true, outgoing);
        self.queue.push_back(slot.ok_or(Refused::Busy)?);
        Ok(())
    }

    fn cancel(&mut self, now: Time, peer: HostId, id: MessageId) {
        if let Some(slot) = self.sending.find_message(peer, id) {
            self.queue.remove(slot);
            self.sending.remove(now, slot, false);
        }
        if let Some(slot) = self.arriving.find_message(peer, id) {
            self.deadlines.remove(slot);
            self.arriving.remove(now, slot, true);
        }
    }

    fn is_arriving(&self, peer: HostId, id: MessageId) -> bool {
        self.arriving.is_arriving(peer, id)
    }

    fn framing(&self) -> Framing {
        self.config.framing()
    }
}
