//! RoCEv2 with DCQCN: senders with a rate for each message, which congestion notification packets (CNPs) of its
//! receiver cut, over switches that pause instead of dropping (`PfcConfig` of the crate `switch`). Without such switches it works, and
//! repairs losses as RDMA NICs do.
//!
//! Sources: Zhu et al., *Congestion control for large-scale RDMA deployments*, SIGCOMM'15 ("the paper"); Li et al., *HPCC*,
//! SIGCOMM'19, whose simulator has the rules and the parameters of a vendor's NIC. `docs/protocols/dcqcn.md` lists them; rules without
//! a source are marked "our choice".
//!
//! - [`config`]: the parameters.
//! - `rate`: the sender's rate (the paper's reaction point); `sender`: pacing and repair; `receiver`: acknowledgements and CNPs (the
//!   notification point).
//!
//! A message has the part of a queue pair, as in HPCC's simulator: it begins at the rate of the link.
//!
//! # Loss
//! A receiver discards what arrives out of order and says which packet it expects; the sender goes back to that one. With
//! selective repeat it keeps such packets. A lost last packet costs a timeout, after which one packet is sent until the
//! receiver answers (our choice).
//!
//! # At most once, memory
//! As for all transports of [`crate::exchange`].

pub mod config;
mod rate;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use rackweave_core::{HostId, Packet, Placement, Time};
use rackweave_wire::dcqcn::{Body, Header};

use crate::common::{Arriving, Driven, Heap, Jitter, Scheme};
pub use config::Config;
use receiver::Notes;
use sender::Outgoing;

/// DCQCN at one host.
pub type Host = Driven<Dcqcn>;

/// The state of a host that is specific to DCQCN.
#[derive(Debug)]
pub struct Dcqcn {
    /// The messages with something to send, by the time from which their rates permit it, and age.
    ready: Heap<(Time, u64)>,
    /// When the driver has polled for packets, or will before it asks when to call again.
    polled_until: Time,
    /// For each slot, what the receiver has sent lately.
    notes: Vec<Notes>,
}

impl Scheme for Dcqcn {
    type Config = Config;
    type Header = Header;
    type Outgoing = Outgoing;
    type Incoming = Arriving;

    fn new(_: HostId, _: &Config) -> Self {
        Self { ready: Heap::default(), polled_until: Time::ZERO, notes: Vec::new() }
    }

    fn complete(_: &Header) -> Option<Body> {
        Some(Body::Complete)
    }

    fn outgoing(&mut self, now: Time, bytes: u32, jitter: Jitter, config: &Config) -> Outgoing {
        Outgoing::new(now, bytes, jitter, config)
    }

    fn submitted(host: &mut Host, _: Time, slot: u32) {
        host.make_ready(slot);
    }

    #[inline]
    fn on_packet(host: &mut Host, now: Time, packet: &Packet<Header>) -> Placement {
        let header = &packet.header;
        let (from, id) = (packet.src, header.id.get());
        match header.body {
            Body::Data { .. } => return host.handle_data(now, packet),
            Body::Ack { next, sack } => host.handle_ack(now, from, id, next, sack, false),
            Body::Nack { next, sack } => host.handle_ack(now, from, id, next, sack, true),
            Body::Cnp => host.handle_cnp(now, from, id),
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

    fn on_timeout(host: &mut Host, now: Time) {
        host.run_timers(now);
        // The driver polls for packets after this call.
        if host.scheme.poll_timeout() <= now {
            host.scheme.polled_until = now;
        }
    }

    #[inline]
    fn poll_timeout(&self) -> Time {
        // A link is polled when its last packet has arrived: at a rate just below its own that is late.
        let free_at = self.ready.first().map_or(Time::MAX, |((free_at, _), _)| free_at);
        if free_at > self.polled_until { free_at } else { Time::MAX }
    }

    fn sender_deadline(outgoing: &Outgoing, _: &Config) -> Time {
        outgoing.deadline()
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
        assert!(host.scheme.notes.len() <= host.config.common.max_exchanges as usize);
    }
}
