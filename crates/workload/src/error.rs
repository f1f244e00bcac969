//! Errors in workloads, with messages for the author of the scenario.

use rackweave_core::Span;

use crate::sizes::SizeDist;

/// Reasons why a workload cannot be run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// There are no senders.
    #[error("the workload has no hosts")]
    NoHosts,
    /// The load is outside (0, 1].
    #[error("the load must be above 0 and at most 1 (the share of a host's link), not {0}")]
    Load(f64),
    /// A link without a rate.
    #[error("the hosts' links have a rate of 0, so that no load can be put on them")]
    NoRate,
    /// A constant rate of zero.
    #[error("messages at a constant rate need a rate above 0")]
    NoConstantRate,
    /// The gap between messages was not given, or is zero.
    #[error("an open loop needs a mean gap between a host's messages of at least 1 ps")]
    NoGap,
    /// A closed loop that never starts.
    #[error("a closed loop needs at least 1 outstanding message")]
    NoOutstanding,
    /// A count that must be at least one.
    #[error("{what} must be at least 1")]
    Zero {
        /// The name of the count.
        what: &'static str,
    },
    /// More than the generator counts or stores.
    #[error("{what} is {value}, more than the {max} that are possible")]
    TooMany {
        /// The name of the count.
        what: &'static str,
        /// The requested value.
        value: u64,
        /// The greatest value that is possible.
        max: u64,
    },
    /// A range of hosts without a host.
    #[error("the range of {what}, {start}..{end}, is empty")]
    EmptyRange {
        /// "senders" or "receivers".
        what: &'static str,
        /// The first host of the range.
        start: u32,
        /// One past the last host.
        end: u32,
    },
    /// A host that is not in the fabric.
    #[error("host {host} ({what}) does not exist: the fabric has hosts 0 to {}", hosts.saturating_sub(1))]
    NoSuchHost {
        /// The host's role in the workload.
        what: &'static str,
        /// The number of the host.
        host: u32,
        /// The number found.
        hosts: u32,
    },
    /// There is no host to send to but the sender itself.
    #[error("host {0} has nobody to send to but itself")]
    NoDestination(u32),
    /// An incast without a sender.
    #[error("the only sender of the incast is its receiver, host {0}")]
    NoSender(u32),
    /// A permutation between sets of different size.
    #[error("a permutation needs as many receivers as senders, not {senders} to {receivers}")]
    UnequalPermutation {
        /// Hosts that send.
        senders: u32,
        /// Hosts that receive.
        receivers: u32,
    },
    /// A restriction that this pattern has no use for.
    #[error("`{what}` cannot be restricted for the pattern `{pattern}`")]
    NotApplicable {
        /// "senders" or "receivers".
        what: &'static str,
        /// The pattern's name.
        pattern: &'static str,
    },
    /// The time of the workload is over before it begins.
    #[error("the workload stops at {stop}, before its messages start at {start}")]
    StopsBeforeStart {
        /// When its (last) messages start.
        start: Span,
        /// When it stops.
        stop: Span,
    },
    /// A built-in distribution that does not exist.
    #[error("there is no size distribution `{0}`; there are {names}", names = SizeDist::NAMES.join(", "))]
    UnknownDistribution(String),
    /// A size distribution that is none.
    #[error(transparent)]
    Sizes(#[from] SizesError),
    /// A trace that cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// A fault in a size distribution.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SizesError {
    /// There is not one point.
    #[error("the size distribution has no points")]
    Empty,
    /// A size out of the possible range.
    #[error("a message size must be from 1 to {max} bytes, not {0}", max = crate::sizes::MAX_MESSAGE_BYTES)]
    Size(u64),
    /// A uniform distribution upside down.
    #[error("the smallest size, {low}, is above the largest, {high}")]
    Reversed {
        /// The smallest size.
        low: u64,
        /// The largest size.
        high: u64,
    },
    /// A line of a CSV file.
    #[error("line {line}: {problem}")]
    Line {
        /// Counted from 1.
        line: u64,
        /// The fault of the line.
        problem: LineProblem,
    },
}

/// A fault in a trace.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TraceError {
    /// There is not one message.
    #[error("the trace has no messages")]
    Empty,
    /// A line of a CSV file.
    #[error("line {line}: {problem}")]
    Line {
        /// Counted from 1.
        line: u64,
        /// The fault of the line.
        problem: LineProblem,
    },
    /// An entry that was not read from a file.
    #[error("message {index} of the trace: {problem}")]
    Entry {
        /// Counted from 0.
        index: usize,
        /// The fault of the entry.
        problem: LineProblem,
    },
    /// A message from or to a host that is not in the fabric.
    #[error("{place}: host {host} does not exist: the fabric has hosts 0 to {}", hosts.saturating_sub(1))]
    NoSuchHost {
        /// "line 7", or "message 6" if the trace was not read from a file.
        place: String,
        /// The number of the host.
        host: u32,
        /// The number found.
        hosts: u32,
    },
}

/// A fault in a line of a CSV file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LineProblem {
    /// Not text at all.
    #[error("this is not text (UTF-8)")]
    NotText,
    /// The first line lacks a column.
    #[error("the header has no column `{column}`; it must have {expected}")]
    MissingColumn {
        /// The missing column.
        column: &'static str,
        /// The required columns.
        expected: &'static str,
    },
    /// A line ends too early.
    #[error("there is no value for `{column}`")]
    MissingValue {
        /// The name of the missing column.
        column: &'static str,
    },
    /// Not a number, or not one in range.
    #[error("`{value}` is not a value for `{column}`: it must be {expected}")]
    BadValue {
        /// The name of the column.
        column: &'static str,
        /// The text found (shortened).
        value: String,
        /// What was expected.
        expected: &'static str,
    },
    /// A size is not above the one before.
    #[error("size {size} is below the one before it, {before}: sizes must increase")]
    SizeDecreases {
        /// The size on this line.
        size: u64,
        /// The size before.
        before: u64,
    },
    /// A cumulative probability falls.
    #[error("cdf {cdf} is below the one before it, {before}: a CDF cannot decrease")]
    CdfDecreases {
        /// The probability on this line.
        cdf: f64,
        /// The one before.
        before: f64,
    },
    /// The last cumulative probability is not 1.
    #[error("the last cdf is {0}, but must be 1 (not percent)")]
    CdfEnd(f64),
    /// A message from a host to itself.
    #[error("host {0} sends to itself")]
    ToItself(u32),
}
