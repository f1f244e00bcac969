//! What transports share: lists and heaps by slot; and, of NDP, pHost and Polo, messages that are exchanges
//! with a sender's and a receiver's half each, found by a peer's id.

mod driven;
mod exchanges;
mod finished;
mod heap;
mod list;
mod parameters;

use rackweave_core::rng::mix;
use rackweave_core::{HostId, Span};

pub(crate) use driven::{Driven, Scheme};
pub(crate) use exchanges::{Awaiting, Exchanges, Known, Limits, State};
pub(crate) use finished::Finished;
pub(crate) use heap::Heap;
pub(crate) use list::List;
#[cfg(test)]
pub(crate) use parameters::Bounds;
pub(crate) use parameters::shared_parameters;
pub(crate) use parameters::{Parameters, Shared};

/// The client's port in all packets; with [`SERVER_PORT`], what ECMP hashes.
pub(crate) const CLIENT_PORT: u16 = 0x8000;
/// The server's port.
pub(crate) const SERVER_PORT: u16 = 99;

/// Where the repetitions of one message scatter: what a thousand senders have lost together they
/// must not repeat together (ours).
#[derive(Clone, Copy, Debug, Default)]
pub struct Scatter(u64);

impl Scatter {
    /// Of this host's message.
    pub(crate) fn new(host: HostId, local: u64) -> Self {
        Self(mix(mix(u64::from(host.0)) ^ local))
    }

    /// A number of this message's own.
    pub(crate) const fn seed(self) -> u64 {
        self.0
    }

    /// The first span as it is, each further one shortened by up to half.
    pub(crate) fn scatter(self, span: Span, tries: u32) -> Span {
        if tries == 0 {
            return span;
        }
        Span(span.0 - mix(self.0 ^ u64::from(tries)) % (span.0 / 2 + 1))
    }
}
