//! pHost: a receiver sends tokens, one per packet time, and each permits one packet for a short time.
//! Switches need only strict priorities.
//!
//! Sources: Gao et al., *pHost: distributed near-optimal datacenter transport over commodity network fabric*,
//! CoNEXT'15 ("the paper"), and its authors' simulator, YAPS. `docs/protocols/phost.md#phost-tokens` lists their rules;
//! rules without a source are marked "our choice".
//!
//! - [`config`]: the parameters.
//! - `sender`: the use of tokens; `receiver`: their distribution.
//!
//! # Loss
//! A receiver repairs lost data and lost tokens with new tokens for the missing packets. It cannot know of a request to
//! send without an arrived packet, nor of a lost acknowledgement. The sender repairs these: it repeats its request to
//! send after a long silence (our choice). A client that awaits its response periodically asks whether the server still
//! knows the request (our choice).
//!
//! # At most once, memory
//! As for all transports of [`crate::exchange`].

pub mod config;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use rackweave_core::{HostId, Packet, Placement, Time};
use rackweave_wire::phost::{Body, Header};

use crate::common::{Driven, Heap, Jitter, Lateness, Scheme};
pub use config::{Config, TokenOrder};
use receiver::Incoming;
use sender::Outgoing;

/// pHost at one host.
pub type Host = Driven<PHost>;

/// pHost's state of a host, besides its exchanges.
#[derive(Debug)]
pub struct PHost {
    /// Messages that may have a valid token, in SRPT order, then by age.
    ready: Heap<(u32, u64)>,
    /// Messages that wait for tokens, in the order of [`Config::order`].
    waiting: Heap<(u64, u64)>,
    /// The earliest time of the next token.
    next_token_at: Time,
    /// Number of tokens sent.
    turns: u64,
    /// How much later than [`Config::resend_after`] data arrives after its token.
    lateness: Lateness,
}

impl Scheme for PHost {
    type Config = Config;
    type Header = Header;
    type Outgoing = Outgoing;
    type Incoming = Incoming;

    fn new(_: HostId, _: &Config) -> Self {
        Self {
            ready: Heap::default(),
            waiting: Heap::default(),
            next_token_at: Time::ZERO,
            turns: 0,
            lateness: Lateness::default(),
        }
    }

    fn complete(_: &Header) -> Option<Body> {
        Some(Body::Ack)
    }

    fn outgoing(&mut self, now: Time, bytes: u32, jitter: Jitter, config: &Config) -> Outgoing {
        Outgoing::new(now, bytes, jitter, config)
    }

    fn submitted(host: &mut Host, _: Time, slot: u32) {
        host.begin_sending(slot);
    }

    #[inline]
    fn on_packet(host: &mut Host, now: Time, packet: &Packet<Header>) -> Placement {
        let header = &packet.header;
        let (from, id) = (packet.src, header.id.get());
        match header.body {
            Body::Data { .. } => return host.handle_data(now, packet),
            Body::Rts { message_length, free } => {
                host.handle_rts(now, from, header, message_length, free);
            }
            Body::Token { packet, number, missing } => {
                host.handle_token(now, from, id, packet, number, missing);
            }
            Body::Ack => host.handle_ack(now, from, id),
            Body::Busy => host.handle_busy(now, from, id),
            Body::Unknown => host.handle_unknown(now, from, id),
            Body::Ask => host.handle_ask_for_response(from, id, Body::Busy),
        }
        Placement::Discard
    }

    #[inline]
    fn next_data(host: &mut Host, now: Time) -> Option<Packet<Header>> {
        host.next_packet(now)
    }

    fn on_timeout(host: &mut Host, now: Time) {
        host.run_timers(now);
        host.pace_tokens(now);
    }

    #[inline]
    fn poll_timeout(&self) -> Time {
        if self.waiting.is_empty() { Time::MAX } else { self.next_token_at }
    }

    fn sender_deadline(outgoing: &Outgoing, config: &Config) -> Time {
        outgoing.deadline(config)
    }

    fn receiver_deadline(&self, incoming: &Incoming, _: Time, config: &Config) -> Time {
        incoming.deadline(self.lateness, config)
    }

    fn sender_due(host: &mut Host, now: Time, slot: u32) {
        host.sender_due(now, slot);
    }

    fn receiver_due(host: &mut Host, now: Time, slot: u32) {
        host.receiver_due(now, slot);
    }

    fn leave_lists(&mut self, slot: u32) {
        self.ready.remove(slot);
        self.waiting.remove(slot);
    }

    #[cfg(test)]
    fn check_bounds(host: &Host) {
        use crate::common::State;

        for exchange in host.exchanges.iter() {
            if let State::Sending(outgoing) = &exchange.state {
                assert!(outgoing.waiting_tokens() <= 64);
            }
        }
        if host.exchanges.live() == 0 {
            assert!(host.scheme.ready.is_empty() && host.scheme.waiting.is_empty());
        }
    }
}
