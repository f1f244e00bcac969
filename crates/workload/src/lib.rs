//! Who sends how much to whom, and when: the same generators for both worlds.

use rackweave_core::{HostId, Span, Time};

/// A workload.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadConfig {
    /// Which messages, and when.
    pub pattern: Pattern,
    /// Whether messages are answered.
    pub exchange: Exchange,
    /// No message starts before this.
    pub start: Span,
    /// No message starts after this.
    pub stop: Span,
}

/// Whether messages are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// One-way messages.
    OneWay,
    /// Requests with a response of the same length.
    Echo,
    /// Requests with a response of this many bytes.
    Respond(u64),
}

/// Which messages, and when.
#[derive(Clone, Debug, PartialEq)]
pub enum Pattern {
    /// To be completed.
    Todo,
}

/// A message to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When.
    pub at: Time,
    /// To whom.
    pub dst: HostId,
    /// How long.
    pub bytes: u64,
}
