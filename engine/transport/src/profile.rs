//! The interface of the parameters of every transport.

use core::error::Error;
use std::sync::Arc;

#[cfg(any(test, feature = "testkit"))]
use rackweave_core::Rate;
use rackweave_core::frame::IPV4;
use rackweave_core::{Event, Framing, HostId, Placement, Span, Transport};
use rackweave_wire::overlay;

/// Bytes that precede every header inside a UDP datagram ([`rackweave_wire::overlay`]), from the IP header on.
pub(crate) const UDP_FRONT: u32 = IPV4 + overlay::OVERHEAD;

/// What a receiver sends back for the packets of a message: an estimate, for the cost of a simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Feedback {
    /// The bytes at the start of a message for which nothing is sent back.
    pub free_bytes: u64,
    /// The packets sent back for each data packet after those.
    pub packets: f64,
}

/// The packets that a receiver sends back and that a load of the link counts: those of transports whose papers count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedFeedback {
    /// The bytes at the start of a message for which nothing is sent back.
    pub free_bytes: u64,
    /// The bytes of a message for which one packet is sent back, after those; at least 1.
    pub bytes_per_packet: u64,
    /// The bytes of such a packet on the link, gap included.
    pub wire_bytes: u32,
}

/// The parameters of a transport.
pub trait Profile: Clone {
    /// The transport's state machine at one host.
    type Host: Transport<Event = Event, Placement = Placement>;

    /// The reason why parameters are invalid.
    type Error: Error + Send + Sync + 'static;

    /// The names of the transport in scenarios and results. The parameters decide which of them applies.
    const NAMES: &'static [&'static str];

    /// Parameters of real hosts whose links have this rate, at least one set for each of [`Profile::NAMES`]: those with which
    /// tests and fuzzing go over all transports.
    #[cfg(any(test, feature = "testkit"))]
    #[must_use]
    fn examples(_link: Rate) -> Vec<Self> {
        Vec::new()
    }

    /// Creates the state machine of a host.
    #[must_use]
    fn host(self: Arc<Self>, id: HostId) -> Self::Host;

    /// The transport's name with these parameters, one of [`Profile::NAMES`].
    #[must_use]
    fn name(&self) -> &'static str {
        Self::NAMES.first().copied().unwrap_or_default()
    }

    /// Checks whether the state machine can run with these parameters.
    ///
    /// # Errors
    /// See [`Profile::Error`].
    fn check(&self) -> Result<(), Self::Error>;

    /// How messages are divided into packets.
    #[must_use]
    fn framing(&self) -> Framing;

    /// The packets that receivers send back.
    #[must_use]
    fn feedback(&self) -> Feedback;

    /// What receivers send back, if the loads in the transport's paper count it. The load of other transports counts data only.
    #[must_use]
    fn counted_feedback(&self) -> Option<CountedFeedback> {
        None
    }

    /// The length of the longest message in bytes.
    #[must_use]
    fn max_message_bytes(&self) -> u64;

    /// Whether the transport has streams ([`Transport::open`]).
    #[must_use]
    fn has_streams(&self) -> bool {
        false
    }

    /// The same parameters for packets inside UDP datagrams of the usual MTU, as on Linux: headers have their
    /// wire sizes, and payloads are reduced by the overhead of the datagram. All control packets of a transport
    /// count with the size of the longest one.
    #[must_use]
    fn over_udp(self) -> Self;

    /// The same parameters, but a peer is declared silent after `at_least` at the earliest, and finished
    /// messages are remembered for that much longer.
    ///
    /// The profiles' times (60 to 800 ms) are right for a simulated fabric, but too short for processes that
    /// may wait for a CPU. Neither the number nor the interval of retransmissions and probes changes, except
    /// that in NDP, pHost and Polo probe intervals back off up to a quarter of this longer time.
    #[must_use]
    fn patient(self, at_least: Span) -> Self;
}
