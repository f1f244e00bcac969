//! The sender: the use of tokens, and the handling of the receiver's packets.

use std::collections::VecDeque;

use rackweave_core::{Assembler, FailReason, HostId, Packet, Span, Time};
use rackweave_wire::Id64;
use rackweave_wire::phost::{Body, Header};

use super::Host;
use super::config::Config;
use crate::common::{Jitter, State, was_sent};

/// Maximum number of stored tokens of a message. They expire before an honest receiver sends more.
const MAX_TOKENS: usize = 64;

/// A permission to send one packet.
#[derive(Clone, Copy, Debug)]
struct Token {
    packet: u32,
    number: u32,
    expires: Time,
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
    free_until: Time,
    tokens: VecDeque<Token>,
    /// The packets that were sent. Expired and lost tokens leave gaps.
    sent: Assembler<u32>,
    /// Number of packets that the receiver lacks, as far as is known; at first, the unsent packets.
    left: u32,
    /// When a packet of the peer last arrived.
    last_received: Time,
    /// When a packet of the peer last arrived, or a request to send was last sent.
    quiet_since: Time,
    /// When a request to send was last sent.
    announced_at: Time,
    /// Number of requests to send since the last token.
    doublings: u32,
    /// When the last token arrived.
    token_at: Time,
    /// The interval between the last two tokens.
    token_gap: Span,
}

impl Outgoing {
    pub(super) fn new(now: Time, length: u32, jitter: Jitter, config: &Config) -> Self {
        let packets = config.common.packets(length);
        let free = config.free_packets(packets);
        Self {
            length,
            packets,
            jitter,
            free,
            next_free: 0,
            // docs/protocols/phost.md#phost-tokens: "free tokens [expire] after 8 + 1.5".
            free_until: now
                .saturating_add(config.span_of(u32::from(config.free_tokens)))
                .saturating_add(config.token_expiry),
            tokens: VecDeque::new(),
            sent: Assembler::default(),
            left: packets,
            quiet_since: now,
            announced_at: now,
            last_received: now,
            doublings: 0,
            token_at: now,
            token_gap: Span::ZERO,
        }
    }

    /// Takes the next packet to send, with the number of its token.
    #[inline]
    fn take_packet(&mut self, now: Time) -> Option<(u32, u32)> {
        let (packet, number) = if self.next_free < self.free && now <= self.free_until {
            // The oldest token first, as for received ones.
            self.next_free += 1;
            self.left = self.left.saturating_sub(1);
            (self.next_free - 1, self.next_free - 1)
        } else {
            let token = loop {
                let token = self.tokens.pop_front()?;
                if token.expires >= now {
                    break token;
                }
            };
            (token.packet, token.number)
        };
        Some((packet, number))
    }

    pub(super) fn rts(&self) -> Body {
        Body::Rts { message_length: self.length, free: self.free as u16 }
    }

    pub(super) fn deadline(&self, config: &Config) -> Time {
        // At a receiver with a thousand senders, tokens for each are rare (our choice: the interval adapts to
        // them).
        let interval = config
            .rts_interval(self.doublings)
            .ticks()
            .max(self.token_gap.ticks().saturating_mul(2));
        let most = config.common.patience / 4;
        let interval = Span::from_ticks(interval).min(most);
        let quiet = self.quiet_since.saturating_add(self.jitter.apply(interval, self.doublings));
        // Tokens can arrive for longer than the receiver's patience without any data reaching it: the sender serves shorter
        // messages, or the data waits in queues, which requests to send overtake by their priority (our choice).
        quiet.min(self.announced_at.saturating_add(most))
    }

    #[cfg(test)]
    pub(super) fn waiting_tokens(&self) -> usize {
        self.tokens.len()
    }
}

impl Host {
    /// Starts to send a submitted message: queues its request to send, which precedes the free packets.
    pub(super) fn begin_sending(&mut self, slot: u32) {
        let exchange = self.exchanges.get(slot);
        let State::Sending(outgoing) = &exchange.state else { return };
        let (peer, id, one_way) = (exchange.peer, exchange.local, exchange.one_way);
        let (rts, deadline) = (outgoing.rts(), outgoing.deadline(&self.config));
        self.scheme.ready.set(slot, (outgoing.left, exchange.birth));
        self.timers.set(slot, deadline);
        self.send_control(peer, id, one_way, rts);
    }

    /// The next data packet, of the message with the fewest packets left among those with a valid token.
    #[inline]
    pub(super) fn next_packet(&mut self, now: Time) -> Option<Packet<Header>> {
        while let Some((_, slot)) = self.scheme.ready.first() {
            let exchange = self.exchanges.get_mut(slot);
            let State::Sending(outgoing) = &mut exchange.state else {
                self.scheme.ready.remove(slot);
                continue;
            };
            let Some((packet, token)) = outgoing.take_packet(now) else {
                self.scheme.ready.remove(slot);
                continue;
            };
            self.recovery.retransmissions += u64::from(was_sent(&mut outgoing.sent, packet));
            self.scheme.ready.set(slot, (outgoing.left, exchange.birth));
            let offset = packet * self.config.common.max_payload;
            let len = self.config.common.max_payload.min(outgoing.length - offset) as u16;
            let (message_length, free) = (outgoing.length, outgoing.free as u16);
            let priority = if outgoing.packets <= outgoing.free {
                self.config.short_priority
            } else {
                self.config.long_priority
            };
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
    pub(super) fn handle_token(
        &mut self,
        now: Time,
        from: HostId,
        id: u64,
        packet: u32,
        number: u32,
        missing: u32,
    ) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        let exchange = self.exchanges.get_mut(slot);
        let State::Sending(outgoing) = &mut exchange.state else { return };
        if packet >= outgoing.packets {
            return;
        }
        (outgoing.last_received, outgoing.quiet_since) = (now, now);
        outgoing.doublings = 0;
        outgoing.left = missing;
        outgoing.token_gap = now.since(outgoing.token_at);
        outgoing.token_at = now;
        if outgoing.tokens.len() < MAX_TOKENS {
            let expires = now.saturating_add(self.config.token_expiry);
            outgoing.tokens.push_back(Token { packet, number, expires });
            self.scheme.ready.set(slot, (outgoing.left, exchange.birth));
        }
    }

    /// Handles BUSY: the peer is alive and knows the message.
    pub(super) fn handle_busy(&mut self, now: Time, from: HostId, id: u64) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        match &mut self.exchanges.get_mut(slot).state {
            State::Sending(outgoing) => (outgoing.last_received, outgoing.quiet_since) = (now, now),
            State::Awaiting(awaiting) => awaiting.last_received = now,
            _ => {}
        }
    }

    /// Handles ACK: the message has arrived completely.
    pub(super) fn handle_ack(&mut self, now: Time, from: HostId, id: u64) {
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
        let (rts, deadline) = (outgoing.rts(), outgoing.deadline(&self.config));
        self.timers.set(slot, deadline);
        self.send_control(peer, id, one_way, rts);
    }
}
