//! The interface of the parameters of every transport.

use core::error::Error;
use std::sync::Arc;

use rackweave_core::frame::IPV4;
use rackweave_core::{Event, Framing, HostId, Placement, Rate, Span, Transport};
use rackweave_wire::overlay;

/// Bytes that precede every header inside a UDP datagram ([`rackweave_wire::overlay`]), from the IP header on.
pub(crate) const UDP_FRONT: u32 = IPV4 + overlay::OVERHEAD;

/// The packets other than data of a message, if nothing is lost: an estimate, for offered loads and for the cost of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Control {
    /// Packets of the message's sender, such as announcements.
    pub there: f64,
    /// Packets of its receiver, such as grants and acknowledgements.
    pub back: f64,
    /// The bytes of such a packet on the link, gap included.
    pub wire_bytes: u32,
}

/// The part that a message has in an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A message that is not answered.
    OneWay,
    /// A request, which is answered at once.
    Request,
    /// The response to it.
    Response,
}

/// What the number of control packets depends on, apart from the message: some are sent by time, or for several messages together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Surroundings {
    /// The rate of a host's link.
    pub link: Rate,
    /// The round trip of a control packet between the hosts that are farthest apart, without load.
    pub control_rtt: Span,
    /// The share of time in which a receiver's link carries data.
    pub busy: f64,
    /// The messages that a host starts to another one in a second.
    pub per_second: f64,
    /// What the message is.
    pub part: Part,
}

impl Surroundings {
    /// Of a message without any others.
    #[must_use]
    pub const fn alone(link: Rate, control_rtt: Span) -> Self {
        Self { link, control_rtt, busy: 0.0, per_second: 0.0, part: Part::OneWay }
    }
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

    /// The packets other than data of a message of this length.
    #[must_use]
    fn control(&self, bytes: u64, at: &Surroundings) -> Control;

    /// Whether the loads in the transport's paper count what receivers send back. The load of other transports counts data only.
    #[must_use]
    fn counts_feedback(&self) -> bool {
        false
    }

    /// The length of the longest message in bytes.
    #[must_use]
    fn max_message_bytes(&self) -> u64;

    /// Whether the transport has streams ([`Transport::open`]).
    #[must_use]
    fn has_streams(&self) -> bool {
        false
    }

    /// Whether the transport needs switches that write into its packets ([`rackweave_core::telemetry`]): then its machines are
    /// [`crate::StampedMachine`]s.
    #[must_use]
    fn reads_stamps(&self) -> bool {
        false
    }

    /// The time after [`Event::Sent`] after which a message that has not arrived never will, of a transport that repairs nothing;
    /// `None` if it repairs losses, or reports them.
    #[must_use]
    fn lost_after(&self) -> Option<Span> {
        None
    }

    /// The time for which messages wait for a peer that is silent, or for the host's own link to take a packet, before they
    /// fail. A few wait somewhat longer: a receiver may be asked again for what has begun to arrive.
    #[must_use]
    fn patience(&self) -> Span;

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
