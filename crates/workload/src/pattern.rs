//! The configuration of a workload.

use core::ops::Range;

use rackweave_core::{HostId, Rate, Span, Time};

use crate::application::{Application, Streaming};
use crate::sizes::SizeDist;
use crate::trace::Trace;

/// A workload.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadConfig {
    /// The pattern of messages in time and space.
    pub pattern: Pattern,
    /// Whether messages get responses.
    pub exchange: Exchange,
    /// Whether messages travel on streams; `None`: each by itself.
    pub streaming: Option<Streaming>,
    /// CPU cost of receiving them.
    pub application: Application,
    /// No message starts before this.
    pub start: Span,
    /// No message starts after this.
    pub stop: Span,
    /// Only these hosts send; `None`: all. Not for a trace.
    pub senders: Option<Range<u32>>,
    /// Only to these hosts is sent; `None`: all. Not for a trace or an incast.
    pub receivers: Option<Range<u32>>,
}

impl WorkloadConfig {
    /// One-way messages among all hosts, from the start of the run to its end.
    #[must_use]
    pub const fn new(pattern: Pattern) -> Self {
        Self {
            pattern,
            exchange: Exchange::OneWay,
            streaming: None,
            application: Application::INSTANT,
            start: Span::ZERO,
            stop: Span::MAX,
            senders: None,
            receivers: None,
        }
    }
}

/// Whether messages get responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// One-way messages.
    OneWay,
    /// Requests with a response of the same length.
    Echo,
    /// Requests with a response of this many bytes.
    Respond(u64),
}

impl Exchange {
    /// The length of the response to a message of `bytes`; `None`: it is not answered.
    #[must_use]
    pub const fn response_bytes(self, bytes: u64) -> Option<u64> {
        match self {
            Self::OneWay => None,
            Self::Echo => Some(bytes),
            Self::Respond(response) => Some(response),
        }
    }
}

/// Which bytes count towards the load of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadCounts {
    /// Every byte time of the link: headers, preamble, gaps, grants.
    Wire,
    /// Message bytes only.
    Payload,
}

/// The pattern of messages in time and space.
#[derive(Clone, Debug, PartialEq)]
pub enum Pattern {
    /// Each sender starts messages as a Poisson process, each to a host picked uniformly among
    /// the others, however many are unfinished.
    OpenLoop {
        /// Distribution of message sizes.
        sizes: SizeDist,
        /// Share of each sender's link, above 0 and at most 1.
        load: f64,
        /// Which bytes count towards the load.
        counts: LoadCounts,
    },
    /// Each sender keeps a number of messages outstanding, each to a host picked uniformly among
    /// the others.
    ClosedLoop {
        /// Distribution of message sizes.
        sizes: SizeDist,
        /// Outstanding messages per sender.
        outstanding: u32,
        /// From the end of a message to the start of the next.
        think: Span,
    },
    /// Each sender starts messages at a constant rate: the next one when the bytes of those before
    /// would have been sent at that rate. It begins at a random moment within the time of a message of mean
    /// length, because senders in step would meet at every message.
    Periodic {
        /// Distribution of message sizes.
        sizes: SizeDist,
        /// Message bytes of each sender.
        rate: Rate,
    },
    /// Many hosts send to one at the same time.
    Incast {
        /// Number of senders; `None`: every host but the receiver, once. More senders than hosts are
        /// spread over them round robin.
        senders: Option<u32>,
        /// The receiver.
        receiver: HostId,
        /// Distribution of message sizes.
        sizes: SizeDist,
        /// Messages per sender, all at once.
        messages_per_sender: u64,
        /// Start time, from the start of the workload.
        at: Span,
        /// Each sender is delayed by a random time, uniform up to this.
        spread: Span,
    },
    /// Each sender sends to one receiver and each receiver receives from one sender, drawn at
    /// random; no host sends to itself. All messages start at once.
    Permutation {
        /// Distribution of message sizes.
        sizes: SizeDist,
        /// Messages per host.
        messages_per_host: u64,
    },
    /// Each host sends to each other host. All messages start at once; host i begins with host i + 1.
    AllToAll {
        /// Distribution of message sizes.
        sizes: SizeDist,
        /// Messages from each host to each other.
        messages_per_pair: u64,
    },
    /// Messages from a file.
    Trace(Trace),
}

impl Pattern {
    /// Its name in scenarios and errors.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::OpenLoop { .. } => "poisson",
            Self::ClosedLoop { .. } => "closed-loop",
            Self::Periodic { .. } => "periodic",
            Self::Incast { .. } => "incast",
            Self::Permutation { .. } => "permutation",
            Self::AllToAll { .. } => "all-to-all",
            Self::Trace(_) => "trace",
        }
    }

    /// Its distribution of message sizes; for a trace, whose messages are given, `None`.
    #[must_use]
    pub const fn sizes(&self) -> Option<&SizeDist> {
        match self {
            Self::OpenLoop { sizes, .. }
            | Self::ClosedLoop { sizes, .. }
            | Self::Periodic { sizes, .. }
            | Self::Incast { sizes, .. }
            | Self::Permutation { sizes, .. }
            | Self::AllToAll { sizes, .. } => Some(sizes),
            Self::Trace(_) => None,
        }
    }
}

/// A message to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Start time.
    pub at: Time,
    /// The receiver.
    pub dst: HostId,
    /// Length in bytes.
    pub bytes: u64,
}
