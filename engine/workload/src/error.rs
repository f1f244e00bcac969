//! Errors in workloads, whose messages address the author of the scenario.

use rackweave_core::Span;

use crate::sizes::SizeDist;

/// Why a workload cannot be run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// The workload has no senders.
    #[error("the workload has no hosts")]
    NoHosts,
    /// The load is not in (0, 1].
    #[error("the load must be above 0 and at most 1 (the share of a host's link), not {0}")]
    Load(f64),
    /// The rate of a host's link is zero.
    #[error("a load requires links with a rate above 0")]
    NoRate,
    /// The rate of a periodic workload is zero.
    #[error("a constant rate must be above 0")]
    NoConstantRate,
    /// The mean gap between messages is missing or zero.
    #[error("an open loop needs a mean gap between a host's messages of at least 10 ps")]
    NoGap,
    /// A closed loop has no outstanding messages, so it would never start.
    #[error("a closed loop needs at least 1 outstanding message")]
    NoOutstanding,
    /// A count is zero.
    #[error("{what} must be at least 1")]
    Zero {
        /// The name of the count.
        what: &'static str,
    },
    /// A count exceeds what the generator can count or store.
    #[error("{what} is {value}, above the maximum of {max}")]
    TooMany {
        /// The name of the count.
        what: &'static str,
        /// The requested value.
        value: u64,
        /// The largest possible value.
        max: u64,
    },
    /// A range of hosts is empty.
    #[error("the range of {what}, {start}..{end}, is empty")]
    EmptyRange {
        /// The role of the range: "senders" or "receivers".
        what: &'static str,
        /// The first host of the range.
        start: u32,
        /// One past the last host.
        end: u32,
    },
    /// A host is not in the fabric.
    #[error("host {host} ({what}) does not exist: the fabric has hosts 0 to {}", hosts.saturating_sub(1))]
    NoSuchHost {
        /// The host's role in the workload.
        what: &'static str,
        /// The number of the host.
        host: u32,
        /// The number of hosts of the fabric.
        hosts: u32,
    },
    /// This sender has no destination except itself.
    #[error("host {0} has no destination other than itself")]
    NoDestination(u32),
    /// Incasts recur without any time between them.
    #[error("the time between incasts must be above 0")]
    NoPeriod,
    /// An incast to this receiver has no sender.
    #[error("the only sender of the incast is its receiver, host {0}")]
    NoSender(u32),
    /// A permutation between sets of different sizes.
    #[error(
        "a permutation requires equal numbers of senders and receivers, not {senders} and {receivers}"
    )]
    UnequalPermutation {
        /// The number of sending hosts.
        senders: u32,
        /// The number of receiving hosts.
        receivers: u32,
    },
    /// A restriction of hosts that this pattern does not support.
    #[error("`{what}` cannot be restricted for the pattern `{pattern}`")]
    NotApplicable {
        /// What is restricted: "senders" or "receivers".
        what: &'static str,
        /// The name of the pattern.
        pattern: &'static str,
    },
    /// The workload stops before it starts.
    #[error("the workload stops at {stop}, before its messages start at {start}")]
    StopsBeforeStart {
        /// The time at which its (last) messages start.
        start: Span,
        /// The time at which it stops.
        stop: Span,
    },
    /// There is no built-in distribution of this name.
    #[error("there is no size distribution `{0}`; there are {names}", names = SizeDist::NAMES.join(", "))]
    UnknownDistribution(String),
    /// A collective has another number of ranks than of hosts.
    #[error("{ranks} ranks need as many hosts, not {hosts}")]
    UnequalRanks {
        /// The number of ranks.
        ranks: u32,
        /// The number of hosts.
        hosts: u64,
    },
    /// The messages of a collective are to be answered, or to travel on streams.
    #[error("the messages of a collective are one-way, without responses and streams")]
    Answered,
    /// Two ranks of a collective are at the same host.
    #[error("host {host} has rank {first} and rank {second}: a host has one")]
    TwoRanks {
        /// The host.
        host: u32,
        /// The first of them.
        first: u32,
        /// The second one.
        second: u32,
    },
    /// The size distribution is invalid.
    #[error(transparent)]
    Sizes(#[from] SizesError),
    /// The trace is invalid.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// Why a size distribution is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SizesError {
    /// The distribution has no points.
    #[error("the size distribution has no points")]
    Empty,
    /// A size is outside the permitted range.
    #[error("a message size must be from 1 to {max} bytes, not {0}", max = crate::sizes::MAX_MESSAGE_BYTES)]
    Size(u64),
    /// The lower bound of a uniform distribution exceeds the upper one.
    #[error("the smallest size, {low}, is above the largest, {high}")]
    Reversed {
        /// The smallest size.
        low: u64,
        /// The largest size.
        high: u64,
    },
    /// A line of a CSV file is invalid.
    #[error("line {line}: {problem}")]
    Line {
        /// The number of the line, from 1.
        line: u64,
        /// What is wrong with the line.
        problem: LineProblem,
    },
}

/// Why a trace is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TraceError {
    /// The trace has no messages.
    #[error("the trace has no messages")]
    Empty,
    /// A line of a CSV file is invalid.
    #[error("line {line}: {problem}")]
    Line {
        /// The number of the line, from 1.
        line: u64,
        /// What is wrong with the line.
        problem: LineProblem,
    },
    /// An entry that was not read from a file is invalid.
    #[error("message {index} of the trace: {problem}")]
    Entry {
        /// The index of the entry, from 0.
        index: usize,
        /// What is wrong with the entry.
        problem: LineProblem,
    },
    /// The source or destination of a message is not in the fabric.
    #[error("{place}: host {host} does not exist: the fabric has hosts 0 to {}", hosts.saturating_sub(1))]
    NoSuchHost {
        /// "line 7", or "message 6" if the trace was not read from a file.
        place: String,
        /// The number of the host.
        host: u32,
        /// The number of hosts of the fabric.
        hosts: u32,
    },
}

/// What is wrong with a line of a CSV file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LineProblem {
    /// The line is not valid text.
    #[error("this is not text (UTF-8)")]
    NotText,
    /// The header lacks a column.
    #[error("the header has no column `{column}`; it must have {expected}")]
    MissingColumn {
        /// The missing column.
        column: &'static str,
        /// All required columns.
        expected: &'static str,
    },
    /// A line ends before a required column.
    #[error("there is no value for `{column}`")]
    MissingValue {
        /// The name of the missing column.
        column: &'static str,
    },
    /// A value is not a number, or is out of range.
    #[error("`{value}` is not a value for `{column}`: it must be {expected}")]
    BadValue {
        /// The name of the column.
        column: &'static str,
        /// The text that was found, shortened.
        value: String,
        /// What was expected.
        expected: &'static str,
    },
    /// A size is not greater than the previous one.
    #[error("size {size} is below the one before it, {before}: sizes must increase")]
    SizeDecreases {
        /// The size on this line.
        size: u64,
        /// The size on the previous line.
        before: u64,
    },
    /// A cumulative probability is less than the previous one.
    #[error("cdf {cdf} is below the one before it, {before}: a CDF cannot decrease")]
    CdfDecreases {
        /// The probability on this line.
        cdf: f64,
        /// The probability on the previous line.
        before: f64,
    },
    /// The last cumulative probability is not 1.
    #[error("the last cdf is {0}, but must be 1 (not percent)")]
    CdfEnd(f64),
    /// A message from this host to itself.
    #[error("host {0} sends to itself")]
    ToItself(u32),
}
