//! dcPIM: receivers and senders are matched in rounds of requests, offers and acceptances, as the inputs and outputs of a crossbar
//! switch by parallel iterative matching; a match is used for the data phase that follows, while the next one is found. Switches need
//! only strict priorities.
//!
//! Sources: Cai, Arashloo and Agarwal, *dcPIM: Near-Optimal Proactive Datacenter Transport*, SIGCOMM'22 ("the paper";
//! only its abstract was available), and its authors' code. `docs/protocols/dcpim.md#dcpim-matching` lists the rules
//! with their places; rules without a source are marked "our choice".
//!
//! - [`config`]: the parameters; `clock`: epochs and rounds.
//! - `matching`: the receiver's half of the matching, and the tokens of matched channels; `offers`: the sender's half;
//!   `pace`: the number of requests.
//! - `receiver`: arriving messages; `sender`: messages that are sent, and the use of tokens.
//!
//! # Clocks
//! Epochs follow the clock of each host. With equal clocks, as in the authors' simulator, all packets of a round arrive before the
//! next stage. Nothing depends on that: a host handles at each stage what has arrived since the last one, whatever round it belongs to,
//! as the authors' DPDK implementation does. An acceptance carries the epochs of both ends, so that each counts channels in its
//! own; requests and offers carry the receiver's, by which it sees how late offers are. What clocks that differ cost is
//! fewer effective rounds, and released channels (`docs/protocols/dcpim.md`).
//!
//! # Loss
//! A lost packet of the matching costs a channel for an epoch, or for the rest of it. Lost data and lost tokens are repaired by
//! the receiver with new tokens, for which it has to be matched again. A lost announcement is repaired by the sender, which repeats it until it is
//! acknowledged; after a long silence it is repeated too, so that a lost FIN is repaired. A client that awaits its response
//! periodically asks whether the server still knows the request (our choice).
//!
//! # At most once, memory
//! As for all transports of [`crate::exchange`]. Besides, a host holds one request or offer for each exchange, with tokens for
//! [`Config::token_window`] packets, and matches for [`Config::channels`] channels in two epochs.

mod clock;
pub mod config;
mod matching;
mod offers;
mod pace;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use rackweave_core::rng::mix;
use rackweave_core::{HostId, Packet, Placement, Time};
use rackweave_wire::dcpim::{Body, Header};

use crate::common::{Driven, Heap, Jitter, Lateness, Scheme};
use clock::Clock;
pub use config::Config;
use matching::Matching;
use offers::Offers;
use receiver::Incoming;
use sender::Outgoing;

/// dcPIM at one host.
pub type Host = Driven<DcPim>;

/// dcPIM's state of a host, besides its exchanges.
#[derive(Debug)]
pub struct DcPim {
    clock: Clock,
    draws: Draws,
    /// The host as a receiver.
    matching: Matching,
    /// The host as a sender.
    offers: Offers,
    /// Messages that may have a valid token, by the priority of the token, then in SRPT order, then by age.
    ready: Heap<(u8, u32, u64)>,
    /// How much later than [`Config::resend_after`] data arrives after its token.
    lateness: Lateness,
}

/// The random choices of a host: hashes of its number and a counter, because machines own no randomness.
#[derive(Clone, Copy, Debug)]
struct Draws {
    seed: u64,
    count: u64,
}

impl Draws {
    /// A number below `n`, which must be above zero.
    fn below(&mut self, n: usize) -> usize {
        self.count += 1;
        (mix(self.seed ^ mix(self.count)) % n as u64) as usize
    }
}

impl Scheme for DcPim {
    type Config = Config;
    type Header = Header;
    type Outgoing = Outgoing;
    type Incoming = Incoming;

    fn new(id: HostId, config: &Config) -> Self {
        Self {
            clock: Clock::new(id, config),
            draws: Draws { seed: mix(u64::from(id.0)), count: 0 },
            matching: Matching::default(),
            offers: Offers::default(),
            ready: Heap::default(),
            lateness: Lateness::default(),
        }
    }

    fn complete(_: &Header) -> Option<Body> {
        Some(Body::Fin)
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
            Body::Token { .. } => host.handle_token(now, from, header),
            Body::Notify { message_length, free } => {
                host.handle_notify(now, from, header, message_length, free);
            }
            Body::Rts { epoch, missing, channels } => {
                host.handle_rts(now, from, id, offers::Request { epoch, missing, channels });
            }
            Body::Grant { epoch, sender_epoch, channels } => {
                let offer = matching::Offer { sender_epoch, channels };
                host.handle_grant(now, from, id, epoch, offer);
            }
            Body::Accept { epoch, sender_epoch, channels } => {
                host.handle_accept(now, from, header, epoch, sender_epoch, channels);
            }
            Body::Release { epoch, channels } => host.handle_release(from, epoch, channels),
            Body::Fin => host.handle_fin(now, from, id),
            Body::NotifyAck => host.handle_notify_ack(now, from, id),
            Body::Unknown => host.handle_unknown(now, from, id),
            Body::Ask => host.handle_ask_for_response(from, id, Body::NotifyAck),
        }
        Placement::Discard
    }

    #[inline]
    fn next_data(host: &mut Host, now: Time) -> Option<Packet<Header>> {
        host.next_packet(now)
    }

    fn on_timeout(host: &mut Host, now: Time) {
        host.run_timers(now);
        host.run_offers(now);
        host.run_matching(now);
    }

    #[inline]
    fn poll_timeout(&self) -> Time {
        self.matching.next_at().min(self.offers.next_at())
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
        self.matching.leave(slot);
        self.offers.leave(slot);
    }

    #[cfg(test)]
    fn check_bounds(host: &Host) {
        use crate::common::State;

        for exchange in host.exchanges.iter() {
            if let State::Sending(outgoing) = &exchange.state {
                assert!(outgoing.waiting_tokens() <= host.config.token_window as usize + 1);
            }
        }
        host.scheme.matching.check(host.config.channels);
        host.scheme.offers.check(host.config.channels);
        if host.exchanges.live() == 0 {
            assert!(host.scheme.ready.is_empty());
            assert!(host.scheme.matching.is_empty() && host.scheme.offers.is_empty());
        }
    }
}
