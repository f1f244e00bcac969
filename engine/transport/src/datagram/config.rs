//! Parameters of the datagram transport.

use std::sync::Arc;

#[cfg(any(test, feature = "testkit"))]
use rackweave_core::Rate;
use rackweave_core::{Framing, HostId, Span, frame};
use rackweave_wire::datagram::HEADER_BYTES;

use crate::exchange::{InvalidConfig, above_zero, is_packet_length, is_priority};
use crate::profile::{Control, Profile, Surroundings, UDP_FRONT};

/// Parameters of the datagram transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Payload bytes of a full packet. All packets but the last of a message are full.
    pub max_payload: u32,
    /// Header bytes of each packet, from the IP header to the payload.
    pub header_bytes: u32,
    /// Priority of all packets in switches, 0 (lowest) to 7.
    pub priority: u8,
    /// Whether switches choose a path for each packet at random; otherwise ECMP chooses one per pair of hosts.
    pub spray: bool,
    /// Time without a new packet after which an incomplete message is discarded.
    pub forget_after: Span,
    /// The time after which a message fails, if the host's link takes no packets.
    pub patience: Span,

    /// Maximum message length, in bytes.
    pub max_message_bytes: u32,
    /// Maximum number of messages that wait for the link. Further ones are refused, as by a full send buffer.
    pub max_sending: u32,
    /// Maximum number of incomplete messages at a receiver. Packets of further ones are dropped.
    pub max_arriving: u32,
    /// Maximum number of gaps between arrived packets of one message. A packet that would exceed it is dropped.
    pub max_gaps: u16,
    /// Maximum number of delivered messages that are remembered. At this number no new message is accepted,
    /// because it could be a duplicate.
    pub max_finished: u32,
    /// Minimum time for which a delivered message is remembered. It must exceed the lifetime of any packet.
    pub finished_for: Span,
}

impl Default for Config {
    /// Packets of the usual MTU at the lowest priority. The bounds are our choice: no source gives any.
    fn default() -> Self {
        let header_bytes = frame::IPV4 + HEADER_BYTES;
        Self {
            max_payload: frame::MTU - header_bytes,
            header_bytes,
            priority: 0,
            spray: false,
            forget_after: Span::from_ms(10),
            patience: Span::from_ms(200),
            max_message_bytes: u32::MAX,
            max_sending: 1 << 16,
            max_arriving: 1 << 12,
            max_gaps: 256,
            max_finished: 1 << 20,
            finished_for: Span::from_ms(200),
        }
    }
}

impl Config {
    /// Checks whether the state machine can run with these parameters.
    ///
    /// # Errors
    /// See [`InvalidConfig`].
    pub fn check(&self) -> Result<(), InvalidConfig> {
        above_zero(&[
            ("max_payload", self.max_payload > 0),
            ("forget_after", self.forget_after > Span::ZERO),
            ("patience", self.patience > Span::ZERO),
            ("max_message_bytes", self.max_message_bytes > 0),
            ("max_sending", self.max_sending > 0),
            ("max_arriving", self.max_arriving > 0),
            ("max_gaps", self.max_gaps > 0),
            ("max_finished", self.max_finished > 0),
            ("finished_for", self.finished_for > Span::ZERO),
        ])?;
        is_packet_length(self.max_payload.saturating_add(self.header_bytes))?;
        is_priority(self.priority)
    }

    /// How messages are divided into packets.
    #[must_use]
    pub const fn framing(&self) -> Framing {
        Framing {
            max_payload: self.max_payload,
            header_bytes: self.header_bytes,
            spray_above_bytes: if self.spray { 0 } else { u32::MAX },
        }
    }
}

impl Profile for Config {
    type Host = super::Host;
    type Error = InvalidConfig;

    const NAMES: &'static [&'static str] = &["datagram"];

    #[cfg(any(test, feature = "testkit"))]
    fn examples(_: Rate) -> Vec<Self> {
        vec![Self::default()]
    }

    fn host(self: Arc<Self>, id: HostId) -> Self::Host {
        super::Host::new(id, self)
    }

    fn check(&self) -> Result<(), InvalidConfig> {
        self.check()
    }

    fn framing(&self) -> Framing {
        self.framing()
    }

    fn max_message_bytes(&self) -> u64 {
        u64::from(self.max_message_bytes)
    }

    fn control(&self, _: u64, _: &Surroundings) -> Control {
        Control::default()
    }

    fn lost_after(&self) -> Option<Span> {
        Some(self.forget_after)
    }

    fn over_udp(mut self) -> Self {
        self.header_bytes = UDP_FRONT + HEADER_BYTES;
        self.max_payload = frame::MTU - self.header_bytes;
        self
    }

    fn patience(&self) -> Span {
        self.patience
    }

    fn patient(mut self, at_least: Span) -> Self {
        self.patience = self.patience.max(at_least);
        self
    }
}
