//! What a workload is.

use core::ops::Range;

use rackweave_core::{HostId, Rate, Span, Time};

use crate::application::{Application, Streaming};
use crate::sizes::SizeDist;
use crate::trace::Trace;

/// A workload.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadConfig {
    /// Which messages, and when.
    pub pattern: Pattern,
    /// Whether messages are answered.
    pub exchange: Exchange,
    /// Whether messages travel on streams; `None`: each by itself.
    pub streaming: Option<Streaming>,
    /// What it costs to take them in.
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

/// What the load of a link counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadCounts {
    /// Every byte time of the link: headers, preamble, gaps, grants.
    Wire,
    /// Message bytes only.
    Payload,
}

/// Which messages, and when.
#[derive(Clone, Debug, PartialEq)]
pub enum Pattern {
    /// Each sender starts messages as a Poisson process, each to a host picked uniformly among
    /// the others, however many are unfinished.
    OpenLoop {
        /// How long they are.
        sizes: SizeDist,
        /// Share of each sender's link, above 0 and at most 1.
        load: f64,
        /// What the load counts.
        counts: LoadCounts,
    },
    /// Each sender keeps a number of messages outstanding, each to a host picked uniformly among
    /// the others.
    ClosedLoop {
        /// How long they are.
        sizes: SizeDist,
        /// How many a sender has under way at most.
        outstanding: u32,
        /// From the end of a message to the start of the next.
        think: Span,
    },
    /// Each sender starts messages at a constant rate: the next one when the bytes of those before
    /// would have been sent at that rate. It begins at a random moment within the time of a message of mean
    /// length, because senders in step would meet at every message.
    Periodic {
        /// How long they are.
        sizes: SizeDist,
        /// Message bytes of each sender.
        rate: Rate,
    },
    /// Many send to one at the same time.
    Incast {
        /// How many; `None`: every host but the receiver, once. More than there are hosts are
        /// spread over them round robin.
        senders: Option<u32>,
        /// To whom.
        receiver: HostId,
        /// How long the messages are.
        sizes: SizeDist,
        /// How many each sender sends, all at once.
        messages_per_sender: u64,
        /// When, from the start of the workload.
        at: Span,
        /// Each sender is late by a time uniform up to this.
        spread: Span,
    },
    /// Each sender sends to one receiver and each receiver receives from one sender, drawn at
    /// random; nobody sends to itself. All messages start at once.
    Permutation {
        /// How long the messages are.
        sizes: SizeDist,
        /// How many each host sends.
        messages_per_host: u64,
    },
    /// Each sends to each other. All messages start at once; host i begins with host i + 1.
    AllToAll {
        /// How long the messages are.
        sizes: SizeDist,
        /// How many each sends to each.
        messages_per_pair: u64,
    },
    /// As written down.
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

    /// How long its messages are; for a trace, whose messages are given, `None`.
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
    /// When.
    pub at: Time,
    /// To whom.
    pub dst: HostId,
    /// How long.
    pub bytes: u64,
}
