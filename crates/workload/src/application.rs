//! What the hosts' applications do with messages.

use core::num::NonZeroU16;

use rackweave_core::{Rate, Span};

/// What it costs a host's application to take in what arrives.
///
/// Each host has one thread for each stream of messages, which takes one thing after the other: that of
/// the talk's cp_node, whose servers and clients receive on one thread for each port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Application {
    /// Bytes in a second that the thread takes; `None`: no time for bytes.
    pub copy_rate: Option<Rate>,
    /// Time for each message.
    pub per_message: Span,
    /// Time for each RPC at either end, to create and reclaim it: a message that is an RPC of its
    /// own pays it when it arrives, a stream once in each direction.
    pub per_rpc: Span,
}

impl Application {
    /// Takes everything in at once.
    pub const INSTANT: Self =
        Self { copy_rate: None, per_message: Span::ZERO, per_rpc: Span::ZERO };

    /// Whether nothing takes any time.
    #[must_use]
    pub fn is_instant(&self) -> bool {
        *self == Self::INSTANT
    }

    /// The time for so many bytes.
    #[must_use]
    pub fn copying(&self, bytes: u64) -> Span {
        self.copy_rate.map_or(Span::ZERO, |rate| rate.span_of(bytes))
    }
}

/// Messages that travel on long-lived streams: those of a client to a server are taken in by the
/// server's application in the order in which they started, and so are the responses at the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streaming {
    /// What a stream is to the transport.
    pub mode: StreamMode,
    /// Streams from each client to each server; messages take turns.
    pub per_pair: NonZeroU16,
}

/// What a stream is to the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamMode {
    /// One long-lived RPC; messages are spans of its bytes.
    OneId,
    /// Many unary RPCs, one for each message, which the receiver puts in order: how the talk's
    /// streaming worked at first.
    Unary,
}
