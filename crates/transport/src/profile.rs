//! What is asked of the parameters of every transport.

use core::error::Error;

use rackweave_core::frame::IPV4;
use rackweave_core::{Event, Framing, Placement, Span, Transport};
use rackweave_wire::overlay;

/// Bytes in front of every header inside a UDP datagram ([`rackweave_wire::overlay`]), from the IP header on.
pub(crate) const UDP_FRONT: u32 = IPV4 + overlay::OVERHEAD;

/// What a receiver sends back for the packets of a message: an estimate, for the cost of a simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Feedback {
    /// The bytes at the start of a message for which nothing is sent back.
    pub free_bytes: u64,
    /// The packets sent back for each data packet after those.
    pub packets: f64,
}

/// The parameters of a transport.
pub trait Profile: Clone {
    /// The transport at one host.
    type Host: Transport<Event = Event, Placement = Placement>;

    /// Why parameters make no sense.
    type Error: Error + Send + Sync + 'static;

    /// The names by which scenarios and results call it. Parameters decide which of several it is.
    const NAMES: &'static [&'static str];

    /// Its name with these parameters.
    #[must_use]
    fn name(&self) -> &'static str {
        Self::NAMES.first().copied().unwrap_or_default()
    }

    /// Whether the state machine can work with these parameters.
    ///
    /// # Errors
    /// See [`Profile::Error`].
    fn check(&self) -> Result<(), Self::Error>;

    /// How it cuts messages into packets.
    #[must_use]
    fn framing(&self) -> Framing;

    /// What receivers send back.
    #[must_use]
    fn feedback(&self) -> Feedback;

    /// Whether it has streams ([`Transport::open`]).
    #[must_use]
    fn has_streams(&self) -> bool {
        false
    }

    /// The same inside UDP datagrams of the usual MTU, as packets travel on Linux: header sizes as they are on the
    /// wire, and packets that are shorter by what the datagram adds. Of the shorter packets of one transport, all
    /// count as the longest.
    #[must_use]
    fn over_udp(self) -> Self;

    /// The same, but a peer counts as silent after this time at the earliest, and finished messages are remembered
    /// for as much longer.
    ///
    /// The profiles' times (60 to 800 ms) are right in a fabric, and too short for processes that wait for a processor.
    /// Nothing else changes: not what is asked, nor how often. (The questions of NDP, pHost and Polo become rarer up
    /// to a quarter of the patience at most, which is longer then.)
    #[must_use]
    fn patient(self, at_least: Span) -> Self;
}
