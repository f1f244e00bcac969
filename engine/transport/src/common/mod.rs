//! Code that transports share: lists and heaps of slots, the exchanges, and the host of all transports whose receivers acknowledge
//! whole messages ([`driven`]).

mod arriving;
mod driven;
mod exchanges;
mod finished;
mod grouped;
mod heap;
mod lateness;
mod list;
mod outlet;
mod pacer;
mod parameters;
mod scoreboard;
mod timeout;
mod tokens;

use rackweave_core::rng::mix;
use rackweave_core::{Assembler, HostId, Span};

pub(crate) use arriving::note_acknowledged;
pub use arriving::{Arrival, Arriving, Place};
pub(crate) use driven::Body;
pub use driven::{Driven, Scheme, Sending};
pub(crate) use exchanges::{Awaiting, Exchanges, Known, Limits, State};
pub(crate) use finished::Finished;
pub(crate) use grouped::Grouped;
pub use heap::Heap;
pub(crate) use heap::InlineHeap;
pub(crate) use lateness::Lateness;
pub(crate) use list::List;
pub(crate) use outlet::Outlet;
pub(crate) use pacer::Pacer;
pub use parameters::Parameters;
pub(crate) use scoreboard::{Before, Scoreboard};
pub(crate) use timeout::{RtoBounds, Timeout};
pub(crate) use tokens::Tokens;

/// The client's port in all packets. With [`SERVER_PORT`], it is what ECMP hashes.
pub(crate) const CLIENT_PORT: u16 = 0x8000;
/// The server's port in all packets.
pub(crate) const SERVER_PORT: u16 = 99;

/// The most ranges of sent packets that are kept for a message. They leave gaps only where tokens or credits were lost, or came late.
const MAX_SENT_RANGES: usize = 256;

/// Adds a packet to the sent ones, and returns whether it was among them. With more gaps than are kept it counts as new.
#[inline]
pub(crate) fn was_sent(sent: &mut Assembler<u32>, packet: u32) -> bool {
    sent.insert(packet..packet + 1, MAX_SENT_RANGES).is_ok_and(|new| new == 0)
}

/// Pseudo-random spreading of one message's retransmissions, so that many senders whose packets were lost in
/// the same buffer do not retransmit at the same time. (Our choice: the sources do not specify it.)
#[derive(Clone, Copy, Debug, Default)]
pub struct Jitter(u64);

impl Jitter {
    /// The spreading of a message of this host.
    pub(crate) fn new(host: HostId, local: u64) -> Self {
        Self(mix(mix(u64::from(host.0)) ^ local))
    }

    /// A pseudo-random number that is specific to the message.
    pub(crate) const fn seed(self) -> u64 {
        self.0
    }

    /// Returns `span` unchanged for the first try, and shortened by up to half for later ones.
    pub(crate) fn apply(self, span: Span, tries: u32) -> Span {
        if tries == 0 {
            return span;
        }
        Span::from_ticks(span.ticks() - mix(self.0 ^ u64::from(tries)) % (span.ticks() / 2 + 1))
    }
}
