//! The receiver's messages: announcements, arriving packets, and the packets that get tokens.

use rackweave_core::{Assembler, FailReason, HostId, Packet, Placement, Slice, Time};
use rackweave_wire::dcpim::{Body, Header};

use super::Host;
use super::config::Config;
use super::matching::Offer;
use crate::common::{Lateness, State, Tokens};

/// The answer of a message to a match that may send a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It gets a token for this packet.
    Token { packet: u32, number: u32 },
    /// Its sender has not used its last tokens, and is given time until then.
    Wait(Time),
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
    /// When the last token was sent, or the last free packet is sent.
    last_token_at: Time,
    /// Whether each missing packet has had a token, so that the message waits for them.
    all_sent: bool,
    /// An offer that its sender has made since the last stage.
    pub(super) offer: Option<Offer>,
    /// Whether channels were requested in its name, and no offer has arrived since.
    pub(super) asked: bool,
    /// When a packet of the sender last arrived.
    pub(super) last_received: Time,
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
            all_sent: free == packets,
            offer: None,
            asked: false,
            last_received: now,
        }
    }

    /// Number of packets that have not arrived.
    pub(super) const fn missing(&self) -> u32 {
        self.missing
    }

    /// Whether each missing packet has had a token.
    pub(super) const fn all_have_tokens(&self) -> bool {
        self.all_sent
    }

    /// When the message's timer expires.
    pub(super) fn deadline(&self, lateness: Lateness, config: &Config) -> Time {
        self.resume_at(lateness, config)
            .min(self.last_received.saturating_add(config.common.patience))
    }

    /// When it wants tokens again.
    fn resume_at(&self, lateness: Lateness, config: &Config) -> Time {
        if !self.all_sent {
            return Time::MAX;
        }
        self.last_token_at.saturating_add(lateness.prolong(config.resend_after))
    }

    /// Takes the next packet that gets a token, if no more than `window` tokens are unused.
    pub(super) fn next_token(
        &mut self,
        now: Time,
        window: u32,
        lateness: Lateness,
        config: &Config,
    ) -> Next {
        if self.tokens.unused() > window {
            let until = self.last_token_at.saturating_add(lateness.prolong(config.window_timeout));
            if now < until {
                return Next::Wait(until);
            }
            // docs/protocols/dcpim.md#dcpim-tokens: all but the window count as used.
            self.tokens.forgive(window);
        }
        let mut packet = self.received.first_missing(self.cursor);
        if packet >= self.packets {
            packet = self.received.first_missing(0);
        }
        let number = self.tokens.send(now);
        self.cursor = packet + 1;
        self.all_sent = self.received.first_missing(self.cursor) >= self.packets;
        self.last_token_at = now;
        Next::Token { packet, number }
    }

    /// The message's position among those of its sender.
    const fn key(&self, birth: u64) -> (u64, u64) {
        (self.missing as u64, birth)
    }
}

impl Host {
    /// Handles NOTIFY, which announces a message or asks for its state.
    pub(super) fn handle_notify(
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
        let Some(slot) = self.receiving(now, from, header, length, free) else { return };
        let State::Receiving(incoming) = &mut self.exchanges.get_mut(slot).state else { return };
        incoming.last_received = now;
        if incoming.length == length {
            self.send_control(from, header.id.get(), header.one_way, Body::NotifyAck);
        }
        self.send_tokens(now);
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
        let Some(slot) = slot else { return Placement::Discard };
        let (number, max_gaps) =
            (offset / self.config.common.max_payload, usize::from(self.config.common.max_gaps));
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
            self.send_control(peer, id.0, one_way, Body::Fin);
        } else if !incoming.all_sent {
            self.scheme.matching.move_wanting(now, peer, slot, incoming.key(birth));
        }
        self.send_tokens(now);
        if fresh == 0 {
            return Placement::Discard;
        }
        Placement::Store(Slice { message: id, offset, len: u32::from(len) })
    }

    /// The slot of the exchange that receives this message.
    #[inline]
    fn receiving(
        &mut self,
        now: Time,
        from: HostId,
        header: &Header,
        length: u32,
        free: u16,
    ) -> Option<u32> {
        let (slot, new) = self.receiving_slot(now, from, header, |host| {
            Incoming::new(now, length, free, &host.config)
        })?;
        if new {
            let packets = self.config.common.packets(length);
            let free = packets.min(u32::from(free));
            if free < packets {
                self.resume(now, slot);
            } else {
                let until = now.saturating_add(
                    self.config.span_of(free.min(u32::from(self.config.free_packets))),
                );
                self.scheme.matching.hold(until);
            }
            self.arm(slot);
        }
        Some(slot)
    }

    /// Lets the message want tokens, for the first time or because packets are late.
    fn resume(&mut self, now: Time, slot: u32) {
        let exchange = self.exchanges.get_mut(slot);
        let State::Receiving(incoming) = &mut exchange.state else { return };
        incoming.all_sent = false;
        let key = incoming.key(exchange.birth);
        self.scheme.matching.want(&self.scheme.clock, now, exchange.peer, slot, key);
    }

    /// Arms the message's timer.
    pub(super) fn arm(&mut self, slot: u32) {
        if let State::Receiving(incoming) = &self.exchanges.get(slot).state {
            let deadline = incoming.deadline(self.scheme.lateness, &self.config);
            self.timers.set_earlier(slot, deadline);
        }
    }

    /// Handles late packets, or the silence of the sender.
    pub(super) fn receiver_due(&mut self, now: Time, slot: u32) {
        let State::Receiving(incoming) = &self.exchanges.get(slot).state else { return };
        let forget_at = incoming.last_received.saturating_add(self.config.common.patience);
        if forget_at <= now {
            return self.fail(now, slot, FailReason::PeerSilent);
        }
        self.recovery.timeouts += 1;
        self.resume(now, slot);
        self.timers.set(slot, forget_at);
    }
}
