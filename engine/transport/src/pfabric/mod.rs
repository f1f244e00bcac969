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
//! # At most once, memory
//! As for all transports of [`crate::exchange`].

pub mod config;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use rackweave_core::{HostId, Packet, Placement, Time};
use rackweave_wire::pfabric::{Body, Header};

use crate::common::{Arriving, Driven, Heap, Jitter, Scheme};
pub use config::Config;
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
    type Outgoing = Outgoing;
    type Incoming = Arriving;

    fn new(_: HostId, _: &Config) -> Self {
        Self { ready: Heap::default() }
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
            Body::Busy => host.handle_known(now, from, id),
            Body::Unknown => host.handle_unknown(now, from, id),
            Body::Ask => host.handle_ask_for_response(from, id, Body::Busy),
        }
        Placement::Discard
    }

    #[inline]
    fn next_data(host: &mut Host, now: Time) -> Option<Packet<Header>> {
        host.next_packet(now)
    }

    fn sender_deadline(outgoing: &Outgoing, config: &Config) -> Time {
        outgoing.deadline(config)
    }

    fn receiver_deadline(&self, incoming: &Arriving, _: Time, config: &Config) -> Time {
        incoming.last_received().saturating_add(config.common.patience)
    }

    fn sender_due(host: &mut Host, now: Time, slot: u32) {
        host.sender_due(now, slot);
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
                    incoming.check_bounds(
                        host.config.common.max_message_bytes,
                        host.config.common.max_gaps,
                    );
                }
                _ => {}
            }
        }
        if host.exchanges.live() == 0 {
            assert!(host.scheme.ready.is_empty());
        }
    }
}
