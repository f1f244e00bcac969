//! The receiver: requests to send, arriving packets, and the distribution of tokens.

use rackweave_core::{Assembler, FailReason, HostId, Packet, Placement, Slice, Span, Time};
use rackweave_wire::phost::{Body, Header};

use super::Host;
use super::config::{Config, TokenOrder};
use crate::common::{Lateness, State, Tokens};

/// Maximum number of overdue tokens that are sent at once when the driver is late.
const CATCH_UP: u64 = 8;

/// Why a message gets no tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    /// The message gets tokens.
    No,
    /// Its sender has not used the last ones (the paper: it is downgraded).
    Unused,
    /// Each missing packet has had a token.
    AllSent,
}

/// The receiver's state of a message, in packets.
#[derive(Debug)]
pub struct Incoming {
    length: u32,
    packets: u32,
    /// Number of packets that have not arrived.
    missing: u32,
    received: Assembler<u32>,
    /// The next token is for the first missing packet at or after this one.
    cursor: u32,
    tokens: Tokens,
    /// When the last token was sent, or the last free token is used.
    last_token_at: Time,
    pause: Pause,
    /// The value of the token counter at its last token, which gives the round-robin order.
    turn: u64,
    /// When a packet of the sender last arrived.
    last_received: Time,
}

impl Incoming {
    fn new(now: Time, length: u32, free: u16, config: &Config) -> Self {
        let packets = config.common.packets(length);
        let free = packets.min(u32::from(free));
        Self {
            length,
            packets,
            missing: packets,
            received: Assembler::default(),
            cursor: free,
            tokens: Tokens::after_free(free),
            // The last free packet needs this long to be sent.
            last_token_at: now.saturating_add(config.span_of(free)),
            pause: Pause::AllSent,
            turn: 0,
            last_received: now,
        }
    }

    /// When the message's timer expires.
    pub(super) fn deadline(&self, lateness: Lateness, config: &Config) -> Time {
        self.resume_at(lateness, config)
            .min(self.last_received.saturating_add(config.common.patience))
    }

    /// When its pause ends.
    fn resume_at(&self, lateness: Lateness, config: &Config) -> Time {
        let after = match self.pause {
            Pause::No => return Time::MAX,
            Pause::Unused => config.window_timeout,
            Pause::AllSent => config.resend_after,
        };
        self.last_token_at.saturating_add(lateness.prolong(after))
    }

    /// The packet that gets the next token; `None` if the message is paused.
    fn next_packet(&mut self, now: Time, lateness: Lateness, config: &Config) -> Option<u32> {
        if self.tokens.unused() >= config.token_window {
            self.pause = Pause::Unused;
            if now < self.resume_at(lateness, config) {
                return None;
            }
            // Permits one token, to see whether the sender uses it (`docs/protocols/phost.md#phost-tokens`).
            self.tokens.forgive(config.token_window.saturating_sub(1));
        }
        let mut packet = self.received.first_missing(self.cursor);
        if packet >= self.packets {
            self.pause = Pause::AllSent;
            if now < self.resume_at(lateness, config) {
                return None;
            }
            packet = self.received.first_missing(0);
        }
        self.pause = Pause::No;
        self.cursor = packet + 1;
        Some(packet)
    }

    /// The message's position among messages that wait for tokens.
    const fn key(&self, birth: u64, order: TokenOrder) -> (u64, u64) {
        match order {
            TokenOrder::Srpt => (self.missing as u64, birth),
            TokenOrder::RoundRobin => (self.turn, birth),
        }
    }
}

impl Host {
    /// Handles RTS, which announces a message or asks for its state.
    pub(super) fn handle_rts(
        &mut self,
        now: Time,
        from: HostId,
        header: &Header,
        length: u32,
        free: u16,
    ) {
        if length == 0 || length > self.config.common.max_message_bytes {
            return;
        }
        let Some((slot, new)) = self.receiving(now, from, header, length, free) else { return };
        let State::Receiving(incoming) = &mut self.exchanges.get_mut(slot).state else { return };
        incoming.last_received = now;
        if !new && incoming.length == length {
            self.send_control(from, header.id.get(), header.one_way, Body::Busy);
        }
        self.pace_tokens(now);
    }

    /// Handles a data packet.
    pub(super) fn handle_data(&mut self, now: Time, packet: &Packet<Header>) -> Placement {
        let header = &packet.header;
        let Body::Data { message_length, offset, len, free, token } = header.body else {
            return Placement::Discard;
        };
        let is_packet = self.config.common.is_packet(message_length, offset, len);
        if !is_packet || packet.is_trimmed() {
            return Placement::Discard;
        }
        let slot = self.receiving(now, packet.src, header, message_length, free);
        let Some((slot, _)) = slot else { return Placement::Discard };
        let (number, max_gaps) =
            (offset / self.config.common.max_payload, usize::from(self.config.common.max_gaps));
        let (window, order) = (self.config.token_window, self.config.order);
        let exchange = self.exchanges.get_mut(slot);
        let (peer, one_way) = (exchange.peer, exchange.one_way);
        let (id, birth) = (exchange.arriving(), exchange.birth);
        let State::Receiving(incoming) = &mut exchange.state else { return Placement::Discard };
        if incoming.length != message_length {
            return Placement::Discard;
        }
        incoming.last_received = now;
        if let Some(delay) = incoming.tokens.arrived(now, token, self.config.token_window) {
            self.scheme.lateness.sample(delay, self.config.resend_after);
        }
        let fresh = incoming.received.insert(number..number + 1, max_gaps).unwrap_or(0);
        incoming.missing -= fresh;
        if incoming.missing == 0 {
            self.deliver(now, slot, message_length);
            self.send_control(peer, id.0, one_way, Body::Ack);
        } else {
            let key = incoming.key(birth, order);
            match incoming.pause {
                Pause::Unused if incoming.tokens.unused() <= window => self.resume(now, slot),
                Pause::No => self.scheme.waiting.set(slot, key),
                Pause::Unused | Pause::AllSent => {}
            }
        }
        self.pace_tokens(now);
        if fresh == 0 {
            return Placement::Discard;
        }
        Placement::Store(Slice { message: id, offset, len: u32::from(len) })
    }

    /// The slot of the exchange that receives this message, and whether the exchange was just created.
    #[inline]
    fn receiving(
        &mut self,
        now: Time,
        from: HostId,
        header: &Header,
        length: u32,
        free: u16,
    ) -> Option<(u32, bool)> {
        let (slot, new) = self.receiving_slot(now, from, header, |host| {
            Incoming::new(now, length, free, &host.config)
        })?;
        if new {
            let packets = self.config.common.packets(length);
            let free = packets.min(u32::from(free));
            if free < packets {
                self.resume(now, slot);
            }
            // docs/protocols/phost.md#phost-tokens: "the receiver holds tokens back for the size of the free window
            // when an RTS arrives". Messages that arrive together share the pause (our choice: most packets of
            // an incast are lost).
            let pause =
                self.config.span_of(free).ticks().saturating_sub(self.config.token_lead.ticks());
            self.scheme.next_token_at =
                self.scheme.next_token_at.max(now.saturating_add(Span::from_ticks(pause)));
            self.arm(slot);
        }
        Some((slot, new))
    }

    /// Lets the message get tokens, for the first time or after a pause.
    fn resume(&mut self, now: Time, slot: u32) {
        let exchange = self.exchanges.get_mut(slot);
        let State::Receiving(incoming) = &mut exchange.state else { return };
        incoming.pause = Pause::No;
        let key = incoming.key(exchange.birth, self.config.order);
        if self.scheme.waiting.is_empty() {
            // Tokens that could not be sent for lack of a message are not sent later.
            self.scheme.next_token_at = self.scheme.next_token_at.max(now);
        }
        self.scheme.waiting.set(slot, key);
    }

    /// Arms the message's timer.
    fn arm(&mut self, slot: u32) {
        if let State::Receiving(incoming) = &self.exchanges.get(slot).state {
            let deadline = incoming.deadline(self.scheme.lateness, &self.config);
            self.timers.set_earlier(slot, deadline);
        }
    }

    /// Handles the end of a pause, or the silence of the sender.
    pub(super) fn receiver_due(&mut self, now: Time, slot: u32) {
        let State::Receiving(incoming) = &self.exchanges.get(slot).state else { return };
        let forget_at = incoming.last_received.saturating_add(self.config.common.patience);
        if forget_at <= now {
            return self.fail(now, slot, FailReason::PeerSilent);
        }
        // A sender that has not used its tokens is no loss.
        self.recovery.timeouts += u64::from(incoming.pause == Pause::AllSent);
        self.resume(now, slot);
        self.timers.set(slot, forget_at);
    }

    /// Sends the tokens that are due.
    #[inline]
    pub(super) fn pace_tokens(&mut self, now: Time) {
        let spacing = self.config.token_spacing;
        let earliest =
            Time::from_ticks(now.ticks().saturating_sub(spacing.ticks().saturating_mul(CATCH_UP)));
        while self.scheme.next_token_at <= now {
            if !self.next_token(now) {
                return;
            }
            self.scheme.next_token_at =
                self.scheme.next_token_at.max(earliest).saturating_add(spacing);
        }
    }

    /// Sends a token to the first message that may have one; returns whether there was one.
    fn next_token(&mut self, now: Time) -> bool {
        while let Some((_, slot)) = self.scheme.waiting.first() {
            let exchange = self.exchanges.get_mut(slot);
            let (peer, id, one_way) = (exchange.peer, exchange.arriving(), exchange.one_way);
            let birth = exchange.birth;
            let State::Receiving(incoming) = &mut exchange.state else {
                self.scheme.waiting.remove(slot);
                continue;
            };
            let lateness = self.scheme.lateness;
            let Some(packet) = incoming.next_packet(now, lateness, &self.config) else {
                self.scheme.waiting.remove(slot);
                self.arm(slot);
                continue;
            };
            let (number, missing) = (incoming.tokens.send(now), incoming.missing);
            incoming.last_token_at = now;
            self.scheme.turns += 1;
            incoming.turn = self.scheme.turns;
            self.scheme.waiting.set(slot, incoming.key(birth, self.config.order));
            self.send_control(peer, id.0, one_way, Body::Token { packet, number, missing });
            return true;
        }
        false
    }
}
