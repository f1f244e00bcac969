//! pHost: receivers give out tokens, one a packet time, each good for one packet for a short
//! while; switches need to do nothing but strict priorities.
//!
//! Sources: Gao et al., *pHost: distributed near-optimal datacenter transport over commodity
//! network fabric*, CoNEXT'15 ("the paper"), and its authors' simulator, YAPS. `docs/sources.md#phost-tokens` lists their
//! rules; those without a source are marked "ours".
//!
//! - [`config`]: the parameters.
//! - `sender`: which token is used next; `receiver`: who gets the next one.
//!
//! # Loss
//! A receiver repairs the loss of data and tokens by giving out new tokens for what is missing.
//! What it cannot know of (a request of which no packet has arrived, an acknowledgement that was
//! lost) its sender repairs: it repeats the request when it has heard nothing for long (ours).
//! A client that waits for its response asks now and then whether the server still knows of it
//! (ours).
//!
//! # At most once
//! A finished exchange is remembered for [`Config::finished_for`], so that packets that come late
//! or twice are not taken for a new one. A peer that restarts has forgotten this: a message of which it
//! had half is sent again from the start.
//!
//! # Memory
//! Whatever arrives, a host holds at most [`Config::max_exchanges`] exchanges (more are refused with
//! [`Refused::Busy`](rackweave_core::Refused::Busy), or a peer's first packet of one is dropped) of up to [`Config::max_gaps`] ranges
//! each, [`Config::max_finished`] ids of finished ones for [`Config::finished_for`], and
//! [`Config::max_control`] packets that wait for the link. What a silent peer leaves is forgotten
//! after [`Config::patience`], and fails if the application waits for it ([`FailReason::PeerSilent`](rackweave_core::FailReason::PeerSilent)).
//! A request stays until the application answers or cancels it.

pub mod config;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use rackweave_core::{HostId, Packet, Placement, Time};
use rackweave_wire::Id64;
use rackweave_wire::phost::{Body, Header};

use crate::common::{Driven, Heap, Scatter, Scheme};
pub use config::{Config, InvalidConfig, TokenOrder};
use receiver::Incoming;
use sender::Outgoing;

/// pHost at one host.
pub type Host = Driven<PHost>;

/// The state of a host that is pHost's own.
#[derive(Debug)]
pub struct PHost {
    /// Messages that may have a valid token: shortest first, then oldest.
    ready: Heap<(u32, u64)>,
    /// Messages that wait for tokens, in the order of [`Config::order`].
    waiting: Heap<(u64, u64)>,
    /// No token is sent before.
    next_token_at: Time,
    /// Tokens given out so far.
    turns: u64,
}

impl Scheme for PHost {
    type Config = Config;
    type Header = Header;
    type Body = Body;
    type Outgoing = Outgoing;
    type Incoming = Incoming;

    const ASK: Body = Body::Ask;
    const UNKNOWN: Body = Body::Unknown;

    fn new(_: HostId, _: &Config) -> Self {
        Self {
            ready: Heap::default(),
            waiting: Heap::default(),
            next_token_at: Time::ZERO,
            turns: 0,
        }
    }

    #[inline]
    fn header(&mut self, _: &Config, id: Id64, one_way: bool, body: Body) -> Header {
        Header { id, one_way, body }
    }

    #[inline]
    fn message_of(header: &Header) -> (u64, bool) {
        (header.id.get(), header.one_way)
    }

    #[inline]
    fn is_from_sender(header: &Header) -> bool {
        matches!(header.body, Body::Data { .. } | Body::Rts { .. } | Body::Ask)
    }

    fn complete(_: &Header) -> Option<Body> {
        Some(Body::Ack)
    }

    fn outgoing(&mut self, now: Time, bytes: u32, scatter: Scatter, config: &Config) -> Outgoing {
        Outgoing::new(now, bytes, scatter, config)
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

    fn receiver_deadline(incoming: &Incoming, _: Time, config: &Config) -> Time {
        incoming.deadline(config)
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
