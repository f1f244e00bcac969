//! What the transports have in common whose receivers acknowledge whole messages: NDP, pHost, Polo, pFabric, SIRD, Swift, dcPIM and UET.
//!
//! # At most once
//! A finished exchange is remembered for [`Config::finished_for`], so that late or duplicate packets do not start it
//! again. A restarted peer has lost this memory: a message that it had in part is sent again from the start.
//!
//! # Memory
//! For any input, a host holds at most [`Config::max_exchanges`] exchanges (further ones are refused with
//! [`Refused::Busy`](rackweave_core::Refused::Busy), or dropped if a peer starts them) of up to [`Config::max_gaps`] ranges each,
//! [`Config::max_finished`] ids of finished exchanges for [`Config::finished_for`], and [`Config::max_control`] control packets.
//! State of a silent peer is discarded after [`Config::patience`], with a failure if the application waits for it
//! ([`FailReason::PeerSilent`](rackweave_core::FailReason::PeerSilent)). A delivered request stays until the application answers or
//! cancels it.

use rackweave_core::{Framing, Span};
use thiserror::Error;

/// The parameters that each of these transports has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Payload bytes of a full packet. All packets but the last of a message are full.
    pub max_payload: u32,
    /// Header bytes of a data packet, from the IP header to the payload.
    pub header_bytes: u32,
    /// Size of every other packet, from the IP header on.
    pub control_bytes: u32,
    /// Whether each packet takes a path of its own, which switches choose at random, or, in NDP and UET, the sender. Otherwise ECMP
    /// chooses one per pair of hosts, on which packets of one priority stay in order.
    pub spray: bool,
    /// Priority of all packets but data in switches, 0 (lowest) to 7.
    pub control_priority: u8,
    /// Time without a packet from a peer that should answer after which the peer is declared silent.
    pub patience: Span,

    /// Maximum message length, in bytes.
    pub max_message_bytes: u32,
    /// Maximum number of exchanges (requests with their responses, one-way messages) in progress at the host.
    /// Further ones are refused, or dropped if a peer starts them.
    pub max_exchanges: u32,
    /// Maximum number of finished exchanges that are remembered. At this number no new exchange is accepted,
    /// because it could be a duplicate.
    pub max_finished: u32,
    /// Minimum time for which finished exchanges are remembered. It must exceed `patience` plus the lifetime of
    /// any packet.
    pub finished_for: Span,
    /// Maximum number of queued control packets. Further ones are dropped.
    pub max_control: u32,
    /// Maximum number of gaps between arrived packets of one message. A packet that would exceed it is dropped, or, in NDP and UET,
    /// answered as if it had been trimmed.
    pub max_gaps: u16,
}

impl Config {
    /// The packets of most simulators, 1460 bytes behind the headers of TCP. Times and bounds are Rackweave's choice, because
    /// simulated hosts neither fall silent nor run out of memory.
    pub const USUAL: Self = Self {
        max_payload: 1460,
        header_bytes: 40,
        control_bytes: 40,
        spray: true,
        control_priority: 7,
        patience: Span::from_ms(160),
        max_message_bytes: u32::MAX,
        max_exchanges: 1 << 20,
        max_finished: 1 << 20,
        finished_for: Span::from_ms(200),
        max_control: 1 << 14,
        max_gaps: 1024,
    };

    /// How messages are divided into packets.
    #[must_use]
    #[inline]
    pub const fn framing(&self) -> Framing {
        Framing {
            max_payload: self.max_payload,
            header_bytes: self.header_bytes,
            spray_above_bytes: if self.spray { 0 } else { u32::MAX },
        }
    }

    /// Number of packets of a message of this length.
    #[must_use]
    pub const fn packets(&self, bytes: u32) -> u32 {
        bytes.div_ceil(self.max_payload)
    }

    /// Whether `len` bytes at `offset` are exactly one packet of a message of this length.
    #[inline]
    pub(crate) fn is_packet(&self, message_length: u32, offset: u32, len: u16) -> bool {
        offset.is_multiple_of(self.max_payload)
            && offset < message_length
            && u32::from(len) == self.max_payload.min(message_length - offset)
            && message_length <= self.max_message_bytes
    }

    /// Checks the rules for these parameters, that each value in `own` is above zero (`true`), and the transport's own `priorities`.
    ///
    /// # Errors
    /// See [`InvalidConfig`].
    pub fn check(
        &self,
        own: &[(&'static str, bool)],
        priorities: &[u8],
    ) -> Result<(), InvalidConfig> {
        let shared = [
            ("max_payload", self.max_payload > 0),
            ("max_message_bytes", self.max_message_bytes > 0),
            ("max_exchanges", self.max_exchanges > 0),
            ("max_finished", self.max_finished > 0),
            ("max_control", self.max_control > 0),
            ("max_gaps", self.max_gaps > 0),
        ];
        above_zero(own.iter().chain(&shared))?;
        let data = self.max_payload.saturating_add(self.header_bytes);
        is_packet_length(data.max(self.control_bytes))?;
        is_priority(priorities.iter().copied().fold(self.control_priority, u8::max))?;
        InvalidConfig::unless(self.finished_for > self.patience, || {
            InvalidConfig::FinishedFor(self.patience)
        })
    }

    /// Checks that a peer is asked again before it is declared silent: `patience` is above `longest`, as `what` names it.
    ///
    /// # Errors
    /// [`InvalidConfig::Patience`].
    pub fn check_patience(&self, longest: Span, what: &'static str) -> Result<(), InvalidConfig> {
        InvalidConfig::unless(self.patience > longest, || InvalidConfig::Patience(what))
    }
}

/// Reasons why the parameters of one of these transports, or of datagrams, are invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidConfig {
    /// A field must be above zero.
    #[error("{0} must be above zero")]
    Zero(&'static str),
    /// The longest packet exceeds its 16-bit length field.
    #[error("a packet of {0} bytes is longer than 65000")]
    TooLong(u32),
    /// A priority above 7.
    #[error("priority {0} is above 7")]
    Priority(u8),
    /// A late duplicate could start a message a second time.
    #[error("finished_for must be above {0}, the time for which a sender tries")]
    FinishedFor(Span),
    /// A peer would be declared silent before it is asked again.
    #[error("patience must be above {0}")]
    Patience(&'static str),
    /// The first field exceeds the second one, or that number.
    #[error("{0} is above {1}")]
    Above(&'static str, &'static str),
    /// A rule of one transport.
    #[error("{text}")]
    Rule {
        /// The field that breaks it.
        field: &'static str,
        /// What it says.
        text: String,
    },
}

impl InvalidConfig {
    /// Returns the error of a condition that does not hold.
    pub(crate) fn unless(holds: bool, error: impl FnOnce() -> Self) -> Result<(), Self> {
        if holds { Ok(()) } else { Err(error()) }
    }
}

/// Checks a rule of one transport, about this field.
pub(crate) fn rule(
    holds: bool,
    field: &'static str,
    text: impl FnOnce() -> String,
) -> Result<(), InvalidConfig> {
    InvalidConfig::unless(holds, || InvalidConfig::Rule { field, text: text() })
}

/// Checks that the first of two named values is not above the second.
pub(crate) fn in_order<T: PartialOrd>(
    low: (&'static str, T),
    high: (&'static str, T),
) -> Result<(), InvalidConfig> {
    InvalidConfig::unless(low.1 <= high.1, || InvalidConfig::Above(low.0, high.0))
}

/// Checks that each of these fields is above zero (`true`).
pub(crate) fn above_zero<'a>(
    fields: impl IntoIterator<Item = &'a (&'static str, bool)>,
) -> Result<(), InvalidConfig> {
    match fields.into_iter().find(|(_, positive)| !positive) {
        Some((name, _)) => Err(InvalidConfig::Zero(name)),
        None => Ok(()),
    }
}

/// Checks that the longest packet, from the IP header on, fits its length field.
pub(crate) fn is_packet_length(longest: u32) -> Result<(), InvalidConfig> {
    InvalidConfig::unless(longest <= 65_000, || InvalidConfig::TooLong(longest))
}

pub(crate) fn is_priority(highest: u8) -> Result<(), InvalidConfig> {
    InvalidConfig::unless(highest <= 7, || InvalidConfig::Priority(highest))
}
