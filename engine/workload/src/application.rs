//! The applications' handling of messages: streams, and CPU cost.

use core::num::NonZeroU16;

use rackweave_core::{Rate, Span};

/// The CPU cost of receiving messages.
///
/// Each host has one application thread per stream of messages, which processes them one after the other, like
/// HomaModule's `cp_node`, whose servers and clients receive on one thread per port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Application {
    /// Bytes per second that the thread copies; `None`: copying takes no time.
    pub copy_rate: Option<Rate>,
    /// Time for each message.
    pub per_message: Span,
    /// Time for each RPC at either end, to create and reclaim it: a message that is an RPC of its
    /// own pays it when it arrives, a stream once in each direction.
    pub per_rpc: Span,
}

impl Application {
    /// An application whose processing takes no time.
    pub const INSTANT: Self =
        Self { copy_rate: None, per_message: Span::ZERO, per_rpc: Span::ZERO };

    /// Returns whether processing takes no time.
    #[must_use]
    pub fn is_instant(&self) -> bool {
        *self == Self::INSTANT
    }

    /// Returns the time to copy `bytes`.
    #[must_use]
    pub fn copying(&self, bytes: u64) -> Span {
        self.copy_rate.map_or(Span::ZERO, |rate| rate.span_of(bytes))
    }
}

/// Messages on long-lived streams: the server's application processes the messages of a client
/// in the order in which they started, and the client's application the responses likewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streaming {
    /// How a stream maps to the transport.
    pub mode: StreamMode,
    /// Streams from each client to each server, used round robin.
    pub per_pair: NonZeroU16,
}

/// How a stream maps to the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamMode {
    /// One long-lived RPC; messages are spans of its bytes.
    OneId,
    /// Many unary RPCs, one for each message, which the receiver puts in order. This is how the talk's streaming worked
    /// at first.
    Unary,
}
