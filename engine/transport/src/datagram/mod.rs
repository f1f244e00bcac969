//! Datagrams, as in UDP (RFC 768). The packets of a message are sent at link rate, messages in order of
//! submission. There are no acknowledgements, no retransmissions and no congestion control.
//!
//! - [`config`]: the parameters.
//!
//! [`Event::Sent`] is raised when the last packet of a message has been sent, whether or not it arrives. It fails if
//! nobody takes a packet for [`Config::patience`]. A
//! message is delivered once all its packets have arrived. An incomplete message without a further packet is discarded
//! after [`Config::forget_after`] without an event, as IP does with fragments (RFC 1122,
//! section 3.3.2). There are no requests, because nothing would end a request whose response is lost.
//!
//! # At most once
//! A delivered message is remembered for [`Config::finished_for`], so that late or duplicate packets do not
//! deliver it again. UDP itself gives no such guarantee; drivers that count messages need it.

pub mod config;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use rackweave_core::{
    Assembler, Event, FailReason, Framing, HostId, Kind, MessageId, Node, Packet, Placement,
    Refused, Submit, Time, Transport, prefetch,
};
use rackweave_wire::Id64;
use rackweave_wire::datagram::Header;

use crate::common::{
    CLIENT_PORT, Exchanges, Heap, Known, Limits, List, Outlet, SERVER_PORT, State,
};
pub use config::Config;

/// The sender's state of a message.
#[derive(Debug)]
struct Outgoing {
    bytes: u32,
    sent: u32,
}

/// The receiver's state of a message, in packets.
#[derive(Debug)]
struct Incoming {
    bytes: u32,
    /// Number of packets that have not arrived.
    missing: u32,
    received: Assembler<u32>,
}

/// The datagram transport of one host.
#[derive(Debug)]
pub struct Host {
    id: HostId,
    config: Arc<Config>,
    /// Kept apart from arriving messages, so that a flood of packets leaves room for messages to send.
    sending: Exchanges<Outgoing, ()>,
    /// Messages with packets to send, in order of submission.
    queue: List,
    arriving: Exchanges<(), Incoming>,
    /// When each arriving message is discarded.
    deadlines: Heap<Time>,
    events: VecDeque<Event>,
    outlet: Outlet,
    /// See [`Transport::not_admitted`].
    not_admitted: u64,
}

impl Host {
    /// Creates the transport of host `id`, without messages. Hosts share their configuration, which must have
    /// passed [`Config::check`].
    #[must_use]
    pub fn new(id: HostId, config: Arc<Config>) -> Self {
        let (finished, finished_for) = (config.max_finished, config.finished_for);
        // Sent messages need not be remembered.
        let sending = Limits { live: config.max_sending, finished: 1, finished_for };
        let arriving = Limits { live: config.max_arriving, finished, finished_for };
        Self {
            id,
            sending: Exchanges::new(sending),
            queue: List::default(),
            arriving: Exchanges::new(arriving),
            deadlines: Heap::default(),
            events: VecDeque::new(),
            outlet: Outlet::new(config.patience),
            config,
            not_admitted: 0,
        }
    }

    /// Whether no message is in progress.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.sending.live() == 0 && self.arriving.live() == 0 && self.events.is_empty()
    }

    /// Asserts that all state is within the configured bounds.
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

    /// The slot of the message that a packet belongs to, which is created if it is new; `None` if there is no
    /// room.
    fn arriving_slot(&mut self, now: Time, from: HostId, header: &Header) -> Option<u32> {
        let local = header.id.get() ^ 1;
        match self.arriving.find(from, local) {
            Known::Slot(slot) => Some(slot),
            Known::Finished => None,
            Known::No => {
                let bytes = header.message_length;
                let missing = bytes.div_ceil(self.config.max_payload);
                let incoming = Incoming { bytes, missing, received: Assembler::default() };
                let state = State::Receiving(incoming);
                let slot = self.arriving.insert(now, from, local, true, state);
                self.not_admitted += u64::from(slot.is_none());
                slot
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
        if let Some(since) = self.outlet.check(now) {
            while let Some(slot) = self.sending.next_submitted(0, since) {
                let exchange = self.sending.get(slot);
                let (peer, id) = (exchange.peer, MessageId(exchange.local));
                self.queue.remove(slot);
                self.sending.remove(now, slot, false);
                self.events.push_back(Event::Failed { peer, id, reason: FailReason::PeerSilent });
            }
        }
        if self.queue.is_empty() {
            self.outlet.rest();
        }
    }

    #[inline]
    fn poll_transmit(&mut self, now: Time, _port: u8) -> Option<Packet<Header>> {
        self.outlet.polled(now);
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
        // `Config::check` ensures that a packet's length fits 16 bits.
        let header = Header { id: Id64::new(id.0), message_length, offset, len: len as u16 };
        let packet = Packet::new(self.id, peer, len + self.config.header_bytes, header)
            .with_priority(self.config.priority)
            .with_ports(CLIENT_PORT, SERVER_PORT)
            .sprayed(self.config.spray);
        Some(packet)
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Time> {
        let deadline = self.deadlines.first().map_or(Time::MAX, |(at, _)| at);
        let next = deadline.min(self.outlet.poll_timeout());
        (next < Time::MAX).then_some(next)
    }

    #[inline]
    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    #[inline]
    fn prefetch(&self) {
        prefetch(&self.sending);
        prefetch(&self.arriving);
        prefetch(&self.deadlines);
    }

    #[inline]
    fn prefetch_for(&self, packet: &Packet<Header>) {
        self.arriving.prefetch(packet.src, packet.header.id.get() ^ 1);
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
        self.outlet.submitted(now);
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

    fn not_admitted(&self) -> u64 {
        self.not_admitted
    }

    fn framing(&self) -> Framing {
        self.config.framing()
    }
}
