//! EQDS, and the congestion control of Ultra Ethernet (UET), which developed from it: RCCC, credit from receivers as in EQDS, and
//! NSCC, a window of senders. Switches trim packets for which they have no room.
//!
//! Sources: Olteanu et al., *An edge-queued datagram service for all datacenter traffic*, NSDI'22 ("EQDS"), and *Ultra Ethernet
//! Specification v1.0* (Ultra Ethernet Consortium, 2025). We had neither text; the rules are those of their authors' simulators
//! (`docs/protocols/uet.md#eqds-sender`, `docs/protocols/uet.md#uet-sender`), and rules without a source are marked "our choice".
//!
//! - [`config`]: the parameters.
//! - `sender`: transmission and retransmission; `entropy`: the choice of a path for each packet; `nscc`: the window; `receiver`:
//!   acknowledgements, and the pacer of credit.
//!
//! Each message is a flow of its own, as in the simulators. (EQDS's tunnels, which carry all packets between two hosts, are left
//! out: see `docs/protocols/uet.md`.)
//!
//! # Credit
//! A message's sender has credit for a window at its start, which it may use until the first answer arrives. Each packet says up to
//! which pull number its sender asks for credit, and the receiver gives it at the pace of its link.
//!
//! # Losses
//! A trimmed packet is reported by a NACK and retransmitted with credit. A packet without an answer is lost after a timeout; its
//! sender asks for credit with an RTS if it has none. (Our choice: a sender that neither has credit nor waits for an answer repeats
//! its RTS, at increasing intervals, and the answer to an RTS has a PULL as well as the ACK. In the simulators no PULL
//! is lost.)
//!
//! # At most once, memory
//! As for all transports of [`crate::exchange`]. A message holds up to [`Config::entropies`] entropy values. As in NDP (`crate::ndp`),
//! the acknowledgement of the last missing packet has a flag that ends the message at its sender, and answers have the incarnation of
//! the receiver's state.

pub mod config;
mod entropy;
mod nscc;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use rackweave_core::rng::mix;
use rackweave_core::{HostId, Packet, Placement, Span, Time};
use rackweave_wire::Id64;
use rackweave_wire::uet::{Body, Header};

use crate::common::{Driven, Jitter, List, Scheme};
pub use config::{Balancing, Config, Credit, MAX_ENTROPIES};
use entropy::Entropy;
use nscc::Params;
use receiver::{Giving, Incoming};
use sender::Outgoing;

/// Maximum number of sender states that are kept for reuse, so that later messages need no allocation.
const MAX_SPARE: usize = 64;

/// EQDS or UET at one host.
pub type Host = Driven<Uet>;

/// The state of a host, besides its exchanges.
#[derive(Debug)]
pub struct Uet {
    /// Messages that may send a packet, in round-robin order.
    ready: List,
    /// The state of the host as a receiver.
    giving: Giving,
    nscc: Params,
    /// The paths of control packets that are not answers to a packet.
    control_entropy: Entropy,
    spare: Vec<Outgoing>,
}

impl Scheme for Uet {
    type Config = Config;
    type Header = Header;
    type Outgoing = Outgoing;
    type Incoming = Incoming;

    fn new(id: HostId, config: &Config) -> Self {
        let mut control_entropy = Entropy::default();
        control_entropy.restart(mix(u64::from(id.0)));
        Self {
            ready: List::default(),
            giving: Giving::default(),
            nscc: Params::new(config),
            control_entropy,
            spare: Vec::new(),
        }
    }

    #[inline]
    fn header(&mut self, config: &Config, id: Id64, one_way: bool, body: Body) -> Header {
        Header { id, one_way, entropy: self.control_entropy.next(config), body }
    }

    fn complete(header: &Header) -> Option<Body> {
        matches!(header.body, Body::Data { .. } | Body::Rts { .. }).then(receiver::completed)
    }

    fn outgoing(&mut self, _: Time, bytes: u32, jitter: Jitter, config: &Config) -> Outgoing {
        let mut outgoing = self.spare.pop().unwrap_or_default();
        outgoing.reset(bytes, jitter, config);
        outgoing
    }

    fn submitted(host: &mut Host, _: Time, slot: u32) {
        host.scheme.ready.push_back(slot);
    }

    #[inline]
    fn on_packet(host: &mut Host, now: Time, packet: &Packet<Header>) -> Placement {
        let header = &packet.header;
        let (from, id) = (packet.src, header.id.get());
        match header.body {
            Body::Data { offset, .. } if packet.is_returned() => {
                host.handle_returned(now, from, id, offset);
            }
            Body::Data { .. } => return host.handle_data(now, packet),
            Body::Ack { complete: true, .. } => host.handle_complete(now, from, id),
            Body::Ack { .. } => host.handle_ack(now, from, header),
            Body::Nack { packet, incarnation, .. } => {
                host.handle_nack(now, from, header, packet, incarnation);
            }
            Body::Pull { pull, incarnation } => host.handle_pull(now, from, id, pull, incarnation),
            Body::Rts { message_length, pull_target, backlog } => {
                host.handle_rts(now, from, header, message_length, pull_target, backlog);
            }
            Body::Ask => host.handle_ask(now, from, id, header.one_way),
            Body::Unknown => host.handle_unknown(now, from, id),
        }
        Placement::Discard
    }

    #[inline]
    fn next_data(host: &mut Host, now: Time) -> Option<Packet<Header>> {
        host.next_packet(now)
    }

    fn on_timeout(host: &mut Host, now: Time) {
        if host.scheme.giving.next_at() <= now {
            host.pace_credit(now);
        }
        host.run_timers(now);
    }

    #[inline]
    fn poll_timeout(&self) -> Time {
        self.giving.next_at()
    }

    fn sender_deadline(outgoing: &Outgoing, config: &Config) -> Time {
        outgoing.deadline(config)
    }

    fn receiver_deadline(&self, incoming: &Incoming, now: Time, config: &Config) -> Time {
        incoming.deadline(now, config)
    }

    fn sender_due(host: &mut Host, now: Time, slot: u32) {
        host.sender_due(now, slot);
    }

    fn leave_lists(&mut self, slot: u32) {
        self.ready.remove(slot);
        self.giving.remove(slot);
    }

    fn recycle(&mut self, outgoing: Outgoing) {
        if self.spare.len() < MAX_SPARE {
            self.spare.push(outgoing);
        }
    }

    #[cfg(test)]
    fn check_bounds(host: &Host) {
        use crate::common::State;

        let Self { ready, giving, spare, .. } = &host.scheme;
        assert!(spare.len() <= MAX_SPARE);
        for exchange in host.exchanges.iter() {
            if let State::Sending(outgoing) = &exchange.state {
                outgoing.check_bounds(&host.config);
            }
        }
        if host.exchanges.live() == 0 {
            assert!(ready.is_empty() && giving.is_idle());
        }
    }
}

/// A deadline in the past, which occurs when it moves to an earlier time, is replaced by the current time.
fn after(now: Time, deadline: Time) -> Time {
    deadline.max(now.saturating_add(Span::TICK))
}
