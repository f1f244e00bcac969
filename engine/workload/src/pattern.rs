//! The configuration of a workload.

use core::ops::Range;

use rackweave_core::{HostId, Rate, Span, Time};

use crate::application::{Application, Streaming};
use crate::collective::Collective;
use crate::sizes::SizeDist;
use crate::trace::Trace;

/// The configuration of a workload: which hosts send what to which hosts, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadConfig {
    /// The pattern of messages in time and space.
    pub pattern: Pattern,
    /// Whether messages get responses.
    pub exchange: Exchange,
    /// Whether messages travel on streams; with `None`, each travels separately.
    pub streaming: Option<Streaming>,
    /// The CPU cost of receiving messages.
    pub application: Application,
    /// The time before which no message starts.
    pub start: Span,
    /// The time after which no message starts.
    pub stop: Span,
    /// The hosts that send; `None` for all. Not supported by traces.
    pub senders: Option<Range<u32>>,
    /// The hosts that receive; `None` for all. Not supported by traces and incasts.
    pub receivers: Option<Range<u32>>,
}

impl WorkloadConfig {
    /// Creates a workload of one-way messages among all hosts, from the start of the run to its end.
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

/// A workload of one-way messages: see [`WorkloadConfig::new`].
impl From<Pattern> for WorkloadConfig {
    fn from(pattern: Pattern) -> Self {
        Self::new(pattern)
    }
}

/// Whether and how messages are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Messages without a response.
    OneWay,
    /// Requests with a response of the same length.
    Echo,
    /// Requests with a response of this many bytes.
    Respond(u64),
}

impl Exchange {
    /// Returns the length of the response to a message of `bytes`, or `None` if it is not answered.
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
    /// All time on the link counts: headers, preamble, gaps, grants.
    Wire,
    /// Only the bytes of messages count.
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
        /// The number of outstanding messages per sender.
        outstanding: u32,
        /// The time from the end of a message to the start of the next.
        think: Span,
        /// The time over which the first messages start, evenly spaced, with senders in turns: those of the first round
        /// find an idle network. With zero all start at once.
        ramp: Span,
    },
    /// Each sender starts messages at a constant rate: the next one when the bytes of those before
    /// would have been sent at that rate. It begins at a random moment within the time of a message of mean
    /// length, because senders in step would meet at every message.
    Periodic {
        /// Distribution of message sizes.
        sizes: SizeDist,
        /// The rate of each sender, in message bytes.
        rate: Rate,
    },
    /// Many hosts send to one at the same time.
    Incast {
        /// Number of senders; `None`: every host but the receiver, once. More senders than hosts are
        /// spread over them round robin.
        senders: Option<u32>,
        /// The host that receives all messages.
        receiver: HostId,
        /// Distribution of message sizes.
        sizes: SizeDist,
        /// The number of messages per sender, all started at once.
        messages_per_sender: u64,
        /// The start time, counted from the start of the workload.
        at: Span,
        /// The upper bound of the uniformly distributed random delay of each sender.
        spread: Span,
    },
    /// Incasts at a constant rate: every time, some of the senders, drawn at random, send to one host at once.
    RecurringIncast {
        /// Number of senders of each incast; `None`: every host but the receiver, once. More senders than hosts are
        /// spread over them round robin.
        senders: Option<u32>,
        /// The host that receives all messages; `None`: a host drawn uniformly for each incast.
        receiver: Option<HostId>,
        /// Distribution of message sizes.
        sizes: SizeDist,
        /// The number of messages per sender and incast.
        messages_per_sender: u64,
        /// The time from one incast to the next; the first is at the start of the workload.
        every: Span,
    },
    /// Each sender sends to one receiver and each receiver receives from one sender, drawn at
    /// random; no host sends to itself. All messages start at once.
    Permutation {
        /// Distribution of message sizes.
        sizes: SizeDist,
        /// The number of messages per host.
        messages_per_host: u64,
    },
    /// Each host sends to each other host. All messages start at once; host i begins with host i + 1.
    AllToAll {
        /// Distribution of message sizes.
        sizes: SizeDist,
        /// The number of messages from each host to each other.
        messages_per_pair: u64,
    },
    /// Messages that were read from a file.
    Trace(Trace),
    /// The messages of a collective operation, each when what it depends on is done.
    Collective(Collective),
}

impl Pattern {
    /// Every sender starts messages at random moments; their bytes are this share of its link.
    #[must_use]
    pub const fn open_loop(sizes: SizeDist, load: f64) -> Self {
        Self::OpenLoop { sizes, load, counts: LoadCounts::Payload }
    }

    /// Every other host sends one message to the receiver, all at the start.
    #[must_use]
    pub const fn incast(receiver: HostId, sizes: SizeDist) -> Self {
        let (at, spread) = (Span::ZERO, Span::ZERO);
        Self::Incast { senders: None, receiver, sizes, messages_per_sender: 1, at, spread }
    }

    /// Every host sends one message to a host of its own, all at the start.
    #[must_use]
    pub const fn permutation(sizes: SizeDist) -> Self {
        Self::Permutation { sizes, messages_per_host: 1 }
    }

    /// Returns the name in scenarios and errors.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::OpenLoop { .. } => "poisson",
            Self::ClosedLoop { .. } => "closed-loop",
            Self::Periodic { .. } => "periodic",
            Self::Incast { .. } | Self::RecurringIncast { .. } => "incast",
            Self::Permutation { .. } => "permutation",
            Self::AllToAll { .. } => "all-to-all",
            Self::Trace(_) => "trace",
            Self::Collective(_) => "collective",
        }
    }

    /// Returns the distribution of message sizes, or `None` for a trace or a collective, whose messages are given.
    #[must_use]
    pub const fn sizes(&self) -> Option<&SizeDist> {
        match self {
            Self::OpenLoop { sizes, .. }
            | Self::ClosedLoop { sizes, .. }
            | Self::Periodic { sizes, .. }
            | Self::Incast { sizes, .. }
            | Self::RecurringIncast { sizes, .. }
            | Self::Permutation { sizes, .. }
            | Self::AllToAll { sizes, .. } => Some(sizes),
            Self::Trace(_) | Self::Collective(_) => None,
        }
    }
}

/// A message to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The time at which it starts.
    pub at: Time,
    /// The host that receives it.
    pub dst: HostId,
    /// The length in bytes.
    pub bytes: u64,
}
