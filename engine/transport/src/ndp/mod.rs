//! NDP: a first window at line rate, then packets pulled by the receiver. Switches trim packets for which they
//! have no room, so that the receiver learns of every packet at once.
//!
//! Source: Handley et al., *Re-architecting datacenter networks and stacks for low latency and high
//! performance*, SIGCOMM'17. The rules are those of its authors' simulator, htsim
//! (`docs/protocols/ndp.md#ndp-sender`); rules without a source are marked "our choice". Switches must trim
//! ([`rackweave_core::Packet::trimmable`]); where they drop packets instead, only the timeout repairs the loss.
//!
//! - [`config`]: the parameters.
//! - `sender`: transmission and retransmission; `paths`: the choice of a path for each packet; `receiver`:
//!   answers and the pull pacer.
//!
//! Each message is a flow of its own, as in `htsim`. An answer takes the path of the packet that it answers, so
//! that the path in its header identifies the path of that packet.
//!
//! # Completion
//! The answer to a message's last missing packet carries a completion flag, as does every later answer. Only
//! this flag ends the message at its sender ([`Event::Sent`](rackweave_core::Event::Sent)); for a request, the
//! first packet of the response does so too. A client that awaits its response periodically asks whether the
//! server still knows the request (our choice: otherwise it would wait forever for a server that has
//! restarted).
//!
//! # At most once, memory
//! As for all transports of [`crate::exchange`]. Answers carry the receiver's incarnation, by which a sender detects that the receiver has
//! lost the first part of a message.

pub mod config;
mod paths;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use rackweave_core::rng::mix;
use rackweave_core::{HostId, Packet, Placement, Span, Time};
use rackweave_wire::Id64;
use rackweave_wire::ndp::{Body, Header};

use crate::common::{Driven, Jitter, List, Pacer, Scheme};
pub use config::{Config, MAX_PATHS};
use paths::Paths;
use receiver::Incoming;
use sender::{Outgoing, Piece};

/// Maximum number of sender states that are kept for reuse, so that later messages need no allocation.
const MAX_SPARE: usize = 64;

/// NDP at one host.
pub type Host = Driven<Ndp>;

/// NDP's state of a host, besides its exchanges.
#[derive(Debug)]
pub struct Ndp {
    /// Messages that may send a packet, in round-robin order.
    ready: List,
    /// Messages with pulls owed to their senders, in round-robin order.
    pulls: List,
    pull_spacing: Span,
    pacer: Pacer,
    /// The paths of control packets that are not answers to a packet.
    control_paths: Paths,
    spare: Vec<Outgoing>,
}

impl Scheme for Ndp {
    type Config = Config;
    type Header = Header;
    type Outgoing = Outgoing;
    type Incoming = Incoming;

    fn new(id: HostId, config: &Config) -> Self {
        let mut control_paths = Paths::default();
        control_paths.restart(mix(u64::from(id.0)));
        Self {
            ready: List::default(),
            pulls: List::default(),
            pull_spacing: config.pull_spacing(),
            pacer: Pacer::default(),
            control_paths,
            spare: Vec::new(),
        }
    }

    #[inline]
    fn header(&mut self, config: &Config, id: Id64, one_way: bool, body: Body) -> Header {
        Header { id, one_way, path: self.control_paths.next(config.paths), body }
    }

    fn complete(header: &Header) -> Option<Body> {
        let Body::Data { offset, .. } = header.body else { return None };
        Some(Body::Ack { offset, pull: 0, incarnation: 0, complete: true })
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
            Body::Ack { offset, pull, incarnation, .. } => {
                let piece = Piece { offset, trimmed: false, path: header.path };
                host.handle_answer(now, from, id, Some(piece), pull, incarnation);
            }
            Body::Nack { offset, pull, incarnation } => {
                let piece = Piece { offset, trimmed: true, path: header.path };
                host.handle_answer(now, from, id, Some(piece), pull, incarnation);
            }
            Body::Pull { pull, incarnation } => {
                host.handle_answer(now, from, id, None, pull, incarnation);
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
        if !host.scheme.pulls.is_empty() && host.scheme.pacer.next_at() <= now {
            host.pace_pulls(now);
        }
        host.run_timers(now);
    }

    #[inline]
    fn poll_timeout(&self) -> Time {
        if self.pulls.is_empty() { Time::MAX } else { self.pacer.next_at() }
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
        self.pulls.remove(slot);
    }

    fn recycle(&mut self, outgoing: Outgoing) {
        if self.spare.len() < MAX_SPARE {
            self.spare.push(outgoing);
        }
    }

    #[cfg(test)]
    fn check_bounds(host: &Host) {
        use crate::common::State;

        let Self { ready, pulls, spare, .. } = &host.scheme;
        assert!(spare.len() <= MAX_SPARE);
        for exchange in host.exchanges.iter() {
            if let State::Sending(outgoing) = &exchange.state {
                assert!(outgoing.backlog() < 100_000);
            }
        }
        if host.exchanges.live() == 0 {
            assert!(ready.is_empty() && pulls.is_empty());
        }
    }
}
