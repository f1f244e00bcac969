//! SIRD: a receiver gives credit from a global bucket, and from a bucket for each sender whose capacity follows the
//! congestion of that sender and of the network. Switches need ECN, and no more than two priorities.
//!
//! Sources: Prasopoulos, Kosta, Bugnion and Kogias, *SIRD: A Sender-Informed, Receiver-Driven Datacenter Transport
//! Protocol*, NSDI'25 ("the paper"), and its authors' simulator. `docs/protocols/sird.md#sird-buckets` lists their rules;
//! rules without a source are marked "our choice".
//!
//! - [`config`]: the parameters.
//! - `buckets`: the global bucket and those of the senders; `receiver`: to whom credit is given; `sender`: how it is used.
//!
//! # Credit
//! A credit is for one packet, which it names. (Our choice: in the paper credit of one receiver is for any message to it. A named
//! credit that is lost, or whose packet is, can be told from one that waits at its sender, so that both buckets get back exactly what
//! they gave.) Data that is sent without credit is taken from both buckets when its first packet arrives, even if they have not that
//! much; so there may be less than nothing left, and then no credit is given.
//!
//! # Loss
//! The paper's simulations lose nothing, so all of this is our choice. A receiver takes a credit back whose packet has not arrived
//! after [`Config::resend_after`], and gives it again; until then what was lost takes its part of the global bucket. If nothing of the message has arrived in the meantime, it gives one credit at a
//! time until something does, so that a sender that has failed does not keep the buckets. It cannot know of a request
//! without an arrived packet, nor of a lost acknowledgement. The sender repairs these: it repeats its request after a
//! long silence. A client that awaits its response periodically asks whether the server still knows the request.
//!
//! # At most once, memory
//! As for all transports of [`crate::exchange`]. Besides, a host holds credits for [`Config::global_bucket`] bytes that it has given and, for
//! each message, for [`Config::sender_bucket`] bytes that it has got, and the buckets of senders: twice as many as have messages, and
//! of 4096 if that is more.

mod buckets;
pub mod config;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use rackweave_core::{HostId, Packet, Placement, Time};
use rackweave_wire::sird::{Body, Header};

use crate::common::{Driven, Jitter, Scheme};
pub use config::{Config, CreditOrder};
use receiver::{Giving, Incoming};
use sender::{Outgoing, Using};

/// SIRD at one host.
pub type Host = Driven<Sird>;

/// SIRD's state of a host, besides its exchanges.
#[derive(Debug)]
pub struct Sird {
    /// The state of the host as a receiver.
    giving: Giving,
    /// The state of the host as a sender.
    using: Using,
}

impl Scheme for Sird {
    type Config = Config;
    type Header = Header;
    type Outgoing = Outgoing;
    type Incoming = Incoming;

    fn new(_: HostId, _: &Config) -> Self {
        Self { giving: Giving::default(), using: Using::default() }
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
            Body::Request { message_length, unscheduled } => {
                host.handle_request(now, from, header, message_length, unscheduled);
            }
            Body::Credit { packet } => host.handle_credit(now, from, id, packet),
            Body::Ack => host.handle_ack(now, from, id),
            Body::Busy => host.handle_busy(now, from, id),
            Body::Unknown => host.handle_unknown(now, from, id),
            Body::Ask => host.handle_ask_for_response(from, id, Body::Busy),
        }
        Placement::Discard
    }

    #[inline]
    fn next_data(host: &mut Host, _: Time) -> Option<Packet<Header>> {
        host.next_packet()
    }

    fn on_timeout(host: &mut Host, now: Time) {
        loop {
            host.run_timers(now);
            host.pace_credit(now);
            // Credit that is withdrawn leaves less on its way, and so what else is out may count as lost.
            if host.timers.first().is_none_or(|(at, _)| at > now) {
                return;
            }
        }
    }

    #[inline]
    fn poll_timeout(&self) -> Time {
        self.giving.next_at()
    }

    fn sender_deadline(outgoing: &Outgoing, config: &Config) -> Time {
        outgoing.deadline(config)
    }

    fn receiver_deadline(&self, incoming: &Incoming, _: Time, config: &Config) -> Time {
        incoming.deadline(&self.giving, config)
    }

    fn sender_due(host: &mut Host, now: Time, slot: u32) {
        host.sender_due(now, slot);
    }

    fn receiver_due(host: &mut Host, now: Time, slot: u32) {
        host.receiver_due(now, slot);
    }

    fn leave_lists(&mut self, slot: u32) {
        self.giving.stop(slot);
        self.using.stop(slot);
    }

    fn ended(host: &mut Host, now: Time, slot: u32) {
        host.give_all_back(now, slot);
    }

    fn recycle(&mut self, outgoing: Outgoing) {
        self.using.drop_credit(&outgoing);
    }

    #[cfg(test)]
    fn check_bounds(host: &Host) {
        host.check_credit();
    }
}
