//! pFabric: switches serve the message with the fewest remaining bytes and drop packets of the one with the most, so
//! that hosts need next to no rate control. It needs switches with such queues
//! (`QueueOptions::by_remaining` of the crate `switch`); over others it works, and is unlikely to be fast.
//!
//! Sources: Alizadeh et al., *pFabric: minimal near-optimal datacenter transport*, SIGCOMM'13 ("the paper"), and YAPS, a
//! simulator that is widely used for it. `docs/protocols/pfabric.md#pfabric-rate-control` lists their rules; rules without a
//! source are marked "our choice". The paper's text was not available: its section numbers are `unverified`, and so is
//! probe mode in detail, which YAPS does not have.
//!
//! - [`config`]: the parameters.
//! - `sender`: windows, timeouts and probes; `receiver`: acknowledgements.
//!
//! # Loss
//! A sender repairs losses after a fixed, short timeout, which also resets its window (section 4.3): there are no
//! duplicate acknowledgements to count. After several timeouts in succession it only sends probes, until one is
//! acknowledged. A client that awaits its response periodically asks whether the server still knows the request (our
//! choice).
//!
//! # At most once
//! A finished exchange is remembered for [`Config::finished_for`], so that late or duplicate packets do not start it
//! again. A restarted peer has lost this memory: a message of which it had a part is sent again from the start.
//!
//! # Memory
//! For any input, a host holds at most [`Config::max_exchanges`] exchanges (further ones are refused with
//! [`Refused::Busy`](rackweave_core::Refused::Busy), or dropped if a peer starts them) of up to
//! [`Config::max_gaps`] ranges each, [`Config::max_finished`] ids of finished exchanges for
//! [`Config::finished_for`], and [`Config::max_control`] control packets. State of a silent peer is discarded
//! after [`Config::patience`], with a failure if the application waits for it
//! ([`FailReason::PeerSilent`](rackweave_core::FailReason::PeerSilent)). A delivered request stays until the
//! application answers or cancels it.

pub mod config;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use rackweave_core::{HostId, Packet, Placement, Time};
use rackweave_wire::Id64;
use rackweave_wire::pfabric::{Body, Header};

use crate::common::{Arriving, Driven, Heap, Jitter, Scheme};
pub use config::{Config, InvalidConfig};
use sender::Outgoing;

/// pFabric at one host.
pub type Host = Driven<PFabric>;

/// The state of a host that is specific to pFabric.
#[derive(Debug)]
pub struct PFabric {
    /// The messages whose windows have room, by remaining bytes and age.
    ready: Heap<(u32, u64)>,
}

impl Scheme for PFabric {
    type Config = Config;
    type Header = Header;
    type Body = Body;
    type Outgoing = Outgoing;
    type Incoming = Arriving;

    const ASK: Body = Body::Ask;
    const UNKNOWN: Body = Body::Unknown;

    fn new(_: HostId, _: &Config) -> Self {
        Self { ready: Heap::default() }
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
        matches!(header.body, Body::Data { .. } | Body::Probe { .. } | Body::Ask)
    }

    fn complete(_: &Header) -> Option<Body> {
        Some(Body::Complete)
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
            Body::Probe { message_length, .. } => {
                host.handle_probe(now, from, header, message_length);
            }
            Body::Ack { next, packet, sack } => {
                host.handle_ack(now, from, id, next, packet, sack);
            }
            Body::Complete => host.handle_complete(now, from, id),
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
    }

    #[inline]
    fn poll_timeout(&self) -> Time {
        Time::MAX
    }

    fn sender_deadline(outgoing: &Outgoing, config: &Config) -> Time {
        outgoing.deadline(config)
    }

    fn receiver_deadline(&self, incoming: &Arriving, _: Time, config: &Config) -> Time {
        incoming.last_received().saturating_add(config.patience)
    }

    fn sender_due(host: &mut Host, now: Time, slot: u32) {
        host.sender_due(now, slot);
    }

    fn receiver_due(host: &mut Host, now: Time, slot: u32) {
        host.sender_is_silent(now, slot);
    }

    fn leave_lists(&mut self, slot: u32) {
        self.ready.remove(slot);
    }

    #[cfg(test)]
    fn check_bounds(host: &Host) {
        use crate::common::State;

        for exchange in host.exchanges.iter() {
            match &exchange.state {
                State::Sending(outgoing) => outgoing.check_bounds(&host.config),
                State::Receiving(incoming) => {
                    incoming.check_bounds(host.config.max_message_bytes, host.config.max_gaps);
                }
                _ => {}
            }
        }
        if host.exchanges.live() == 0 {
            assert!(host.scheme.ready.is_empty());
        }
    }
}
