//! The sender's messages: announcements, the use of tokens, and the handling of the receiver's packets.

use std::collections::VecDeque;

use rackweave_core::{Assembler, FailReason, HostId, Packet, Span, Time};
use rackweave_wire::Id64;
use rackweave_wire::dcpim::{Body, Header, LIFETIME_UNIT_NS};

use super::Host;
use super::config::Config;
use super::offers::Request;
use crate::common::{Jitter, State, was_sent};

/// Priority of free packets among a sender's tokens (`docs/protocols/dcpim.md#dcpim-tokens`).
const FREE_PRIORITY: u8 = 1;

/// A permission to send one packet.
#[derive(Clone, Copy, Debug)]
struct Token {
    packet: u32,
    number: u32,
    expires: Time,
    priority: u8,
}

/// The sender's state of a message, in packets.
#[derive(Debug)]
pub struct Outgoing {
    length: u32,
    packets: u32,
    jitter: Jitter,
    /// Number of packets that are sent without tokens.
    free: u32,
    /// The first of these that was not sent.
    next_free: u32,
    tokens: VecDeque<Token>,
    /// The packets that were sent. Expired and lost tokens leave gaps.
    sent: Assembler<u32>,
    /// Number of packets that the receiver lacks, as far as is known; at first, the unsent packets.
    left: u32,
    /// A request of the receiver for channels since the last stage.
    pub(super) request: Option<Request>,
    /// Whether the receiver knows the message.
    is_known: bool,
    /// When a packet of the peer last arrived.
    last_received: Time,
    /// When a packet of the peer last arrived, or an announcement was last sent.
    quiet_since: Time,
    /// When an announcement was last sent.
    announced_at: Time,
    /// Number of announcements since the last answer.
    doublings: u32,
}

impl Outgoing {
    pub(super) fn new(now: Time, length: u32, jitter: Jitter, config: &Config) -> Self {
        let packets = config.common.packets(length);
        Self {
            length,
            packets,
            jitter,
            free: config.free_of(packets),
            next_free: 0,
            tokens: VecDeque::new(),
            sent: Assembler::default(),
            left: packets,
            request: None,
            is_known: false,
            quiet_since: now,
            announced_at: now,
            last_received: now,
            doublings: 0,
        }
    }

    /// A packet of the receiver that concerns the message has arrived.
    pub(super) const fn heard(&mut self, now: Time) {
        (self.last_received, self.quiet_since) = (now, now);
        (self.is_known, self.doublings) = (true, 0);
    }

    /// Takes the next packet to send, with the number of its token.
    #[inline]
    fn take_packet(&mut self, now: Time) -> Option<(u32, u32)> {
        if self.next_free < self.free {
            self.next_free += 1;
            self.left = self.left.saturating_sub(1);
            return Some((self.next_free - 1, self.next_free - 1));
        }
        loop {
            let token = self.tokens.pop_front()?;
            if token.expires >= now {
                return Some((token.packet, token.number));
            }
        }
    }

    /// The message's position among messages that may have a valid token; `None` if it has none.
    fn key(&self, birth: u64) -> Option<(u8, u32, u64)> {
        let priority =
            if self.next_free < self.free { FREE_PRIORITY } else { self.tokens.front()?.priority };
        Some((priority, self.left, birth))
    }

    fn notify(&self) -> Body {
        Body::Notify { message_length: self.length, free: self.free as u16 }
    }

    pub(super) fn deadline(&self, config: &Config) -> Time {
        let interval = if self.is_known {
            config.max_notify_interval
        } else {
            config.notify_interval(self.doublings)
        };
        // The last free packet needs this long to be sent.
        let interval = interval.saturating_add(config.span_of(self.free));
        let most = config.common.patience / 4;
        let interval = Span::from_ticks(interval.ticks().min(most.ticks()));
        let quiet = self.quiet_since.saturating_add(self.jitter.apply(interval, self.doublings));
        // A message that waits for tokens, or at its sender for shorter ones, may do so for longer than its receiver's patience.
        quiet.min(self.announced_at.saturating_add(most))
    }

    #[cfg(test)]
    pub(super) fn waiting_tokens(&self) -> usize {
        self.tokens.len()
    }
}

impl Host {
    /// Starts to send a submitted message: queues its announcement, which precedes the free packets.
    pub(super) fn begin_sending(&mut self, slot: u32) {
        let exchange = self.exchanges.get(slot);
        let State::Sending(outgoing) = &exchange.state else { return };
        let (peer, id, one_way) = (exchange.peer, exchange.local, exchange.one_way);
        let (notify, deadline) = (outgoing.notify(), outgoing.deadline(&self.config));
        if let Some(key) = outgoing.key(exchange.birth) {
            self.scheme.ready.set(slot, key);
        }
        self.timers.set(slot, deadline);
        self.send_control(peer, id, one_way, notify);
    }

    /// The next data packet, of the message whose token has the highest priority; of several, of that with the fewest packets left.
    #[inline]
    pub(super) fn next_packet(&mut self, now: Time) -> Option<Packet<Header>> {
        while let Some((_, slot)) = self.scheme.ready.first() {
            let exchange = self.exchanges.get_mut(slot);
            let birth = exchange.birth;
            let State::Sending(outgoing) = &mut exchange.state else {
                self.scheme.ready.remove(slot);
                continue;
            };
            let taken = outgoing.take_packet(now);
            match outgoing.key(birth) {
                Some(key) => self.scheme.ready.set(slot, key),
                None => self.scheme.ready.remove(slot),
            }
            let Some((packet, token)) = taken else { continue };
            self.recovery.retransmissions += u64::from(was_sent(&mut outgoing.sent, packet));
            let offset = packet * self.config.common.max_payload;
            let len = self.config.common.max_payload.min(outgoing.length - offset) as u16;
            let (message_length, free) = (outgoing.length, outgoing.free as u16);
            let priority = self.config.data_priority(outgoing.packets);
            let body = Body::Data { message_length, offset, len, free, token };
            let id = Id64::new(exchange.local);
            let header = Header { id, one_way: exchange.one_way, body };
            let (peer, bytes) = (exchange.peer, self.config.common.header_bytes + u32::from(len));
            return Some(self.packet(peer, bytes, priority, header));
        }
        None
    }

    /// Handles a TOKEN packet, which permits one data packet.
    #[inline]
    pub(super) fn handle_token(&mut self, now: Time, from: HostId, header: &Header) {
        let Body::Token { packet, number, missing, lifetime, priority } = header.body else {
            return;
        };
        let Some(slot) = self.outgoing_slot(from, header.id.get()) else { return };
        let exchange = self.exchanges.get_mut(slot);
        let birth = exchange.birth;
        let State::Sending(outgoing) = &mut exchange.state else { return };
        if packet >= outgoing.packets {
            return;
        }
        outgoing.heard(now);
        outgoing.left = missing;
        // No receiver with these parameters sends more before the first is used.
        if outgoing.tokens.len() <= self.config.token_window as usize {
            // docs/protocols/dcpim.md#dcpim-tokens: the authors' tokens carry the time at which they expire. A span needs no common clock.
            let expires = now.saturating_add(Span::from_ns(u64::from(lifetime) * LIFETIME_UNIT_NS));
            outgoing.tokens.push_back(Token { packet, number, expires, priority });
        }
        if let Some(key) = outgoing.key(birth) {
            self.scheme.ready.set(slot, key);
        }
    }

    /// Handles NOTIFY_ACK: the peer is alive and knows the message.
    pub(super) fn handle_notify_ack(&mut self, now: Time, from: HostId, id: u64) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        match &mut self.exchanges.get_mut(slot).state {
            State::Sending(outgoing) => outgoing.heard(now),
            State::Awaiting(awaiting) => awaiting.last_received = now,
            _ => {}
        }
    }

    /// Handles FIN: the message has arrived completely.
    pub(super) fn handle_fin(&mut self, now: Time, from: HostId, id: u64) {
        // A client that awaits its response knows that already.
        if let Some(slot) = self.outgoing_slot(from, id)
            && let State::Sending(_) = self.exchanges.get(slot).state
        {
            self.handle_complete(now, from, id);
        }
    }

    /// Handles the timer of a message whose receiver has sent nothing for too long.
    pub(super) fn sender_due(&mut self, now: Time, slot: u32) {
        let exchange = self.exchanges.get_mut(slot);
        let State::Sending(outgoing) = &mut exchange.state else { return };
        outgoing.doublings += 1;
        (outgoing.quiet_since, outgoing.announced_at) = (now, now);
        if now.since(outgoing.last_received) >= self.config.common.patience {
            return self.fail(now, slot, FailReason::PeerSilent);
        }
        let (peer, id, one_way) = (exchange.peer, exchange.local, exchange.one_way);
        let (notify, deadline) = (outgoing.notify(), outgoing.deadline(&self.config));
        self.timers.set(slot, deadline);
        self.send_control(peer, id, one_way, notify);
    }
}
