//! Parameters of datagrams.

use rackweave_core::{Framing, Span, frame};
use rackweave_wire::datagram::HEADER_BYTES;
use thiserror::Error;

use crate::profile::{Feedback, Profile, UDP_FRONT};

/// Parameters of datagrams: plain numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Payload bytes of a full packet. Every packet starts at a multiple of it.
    pub max_payload: u32,
    /// Bytes from the IP header to the payload.
    pub header_bytes: u32,
    /// The queue in switches.
    pub priority: u8,
    /// Whether switches pick a path for each packet.
    pub spray: bool,
    /// A message of which nothing has arrived for so long is forgotten.
    pub forget_after: Span,

    /// The longest message, in bytes.
    pub max_message_bytes: u32,
    /// Messages that wait for the link: more are refused, as by a full send buffer.
    pub max_sending: u32,
    /// Messages that have arrived in part; of more, packets are dropped.
    pub max_arriving: u32,
    /// Gaps between arrived packets that are remembered for a message. A packet that would make
    /// one more is dropped.
    pub max_gaps: u16,
    /// Delivered messages that are remembered. While that many are, no new one begins, because
    /// it could be an old one.
    pub max_finished: u32,
    /// For how long they are remembered: longer than any packet is on its way.
    pub finished_for: Span,
}

/// Why a configuration makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidConfig {
    /// A field must be above zero.
    #[error("{0} must be above zero")]
    Zero(&'static str),
    /// A packet must fit its 16-bit length.
    #[error("a packet of {0} bytes is longer than 65000")]
    TooLong(u32),
    /// A priority is above 7.
    #[error("priority {0} is above 7")]
    Priority(u8),
}

impl Default for Config {
    /// Packets of the usual MTU in the lowest queue; the bounds are ours.
    fn default() -> Self {
        let header_bytes = frame::IPV4 + HEADER_BYTES;
        Self {
            max_payload: frame::MTU - header_bytes,
            header_bytes,
            priority: 0,
            spray: false,
            forget_after: Span::from_ms(10),
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
    /// Whether the machine can work with these numbers.
    ///
    /// # Errors
    /// See [`InvalidConfig`].
    pub fn check(&self) -> Result<(), InvalidConfig> {
        for (name, positive) in [
            ("max_payload", self.max_payload > 0),
            ("forget_after", self.forget_after > Span::ZERO),
            ("max_message_bytes", self.max_message_bytes > 0),
            ("max_sending", self.max_sending > 0),
            ("max_arriving", self.max_arriving > 0),
            ("max_gaps", self.max_gaps > 0),
            ("max_finished", self.max_finished > 0),
            ("finished_for", self.finished_for > Span::ZERO),
        ] {
            if !positive {
                return Err(InvalidConfig::Zero(name));
            }
        }
        let longest = self.max_payload.saturating_add(self.header_bytes);
        if longest > 65_000 {
            return Err(InvalidConfig::TooLong(longest));
        }
        if self.priority > 7 {
            return Err(InvalidConfig::Priority(self.priority));
        }
        Ok(())
    }

    /// How messages are cut.
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

    fn check(&self) -> Result<(), InvalidConfig> {
        self.check()
    }

    fn framing(&self) -> Framing {
        self.framing()
    }

    fn feedback(&self) -> Feedback {
        Feedback { free_bytes: 0, packets: 0.0 }
    }

    fn over_udp(mut self) -> Self {
        self.header_bytes = UDP_FRONT + HEADER_BYTES;
        self.max_payload = frame::MTU - self.header_bytes;
        self
    }

    /// A sender waits for no answer.
    fn patient(self, _: Span) -> Self {
        self
    }
}
