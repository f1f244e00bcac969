//! The measurements of a run, per interval and in total. A call starts and ends as a message of a scenario does
//! (`rackweave_workload::app`).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use hdrhistogram::Histogram;
use rackweave_core::{FailReason, Span, Time};
use rackweave_linux::endpoint::KeyMismatch;
use rackweave_workload::app::{MessageEnd, MessageStart};

/// Upper bounds of the length groups in the summary.
pub(crate) const GROUPS: [u64; 7] = [100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, u64::MAX];

/// Significant digits of recorded round trips.
const DIGITS: u8 = 3;

/// The largest number of round trips per thread that wait to be written to the dump.
const MAX_ROWS: usize = 1 << 22;

pub(crate) fn histogram() -> Histogram<u64> {
    // Three digits are valid, and the histogram resizes itself.
    Histogram::new(DIGITS).unwrap_or_else(|_| unreachable!("one to five digits"))
}

fn record(histogram: &mut Histogram<u64>, rtt_ns: u64) {
    // The histogram resizes itself, so no value is out of range.
    let _ = histogram.record(rtt_ns.max(1));
}

/// A call that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// The request; [`MessageStart::at`] is when it was due.
    pub(crate) start: MessageStart,
    /// When the transport took it.
    pub(crate) sent: Time,
    pub(crate) at: Time,
    pub(crate) end: MessageEnd,
    /// Length of the response.
    pub(crate) response: u64,
}

impl Ended {
    pub(crate) const fn rtt_ns(&self) -> u64 {
        self.at.since(self.sent).as_ns()
    }
}

/// The measurements of all calls in an interval.
#[derive(Clone, Debug)]
pub struct Interval {
    /// The length of the interval.
    pub span: Duration,
    /// The round trips of calls, in nanoseconds: from when the transport took the request, as `cp_node` counts.
    pub rtt_ns: Histogram<u64>,
    /// Latencies of calls, in nanoseconds: from when the request was due, as in scenarios. In a closed loop that is
    /// when the call before it ended.
    pub latency_ns: Histogram<u64>,
    /// Bytes of answered requests, or of streams.
    pub bytes_out: u64,
    /// The bytes of responses.
    pub bytes_in: u64,
    /// The number of failures for each reason.
    pub failures: BTreeMap<FailReason, u64>,
    /// How far an open loop is behind its schedule, in nanoseconds.
    pub lag_ns: u64,
    /// The requests that were due while the maximum was outstanding.
    pub backed_up: u64,
    /// Requests that were sent.
    pub sent: u64,
    /// The requests that are outstanding.
    pub outstanding: u64,
    /// Rows for the dump: length, and round trip in nanoseconds.
    pub(crate) rows: Vec<(u64, u64)>,
    /// Rows that were dropped because they were not fetched in time.
    pub rows_lost: u64,
}

impl Default for Interval {
    fn default() -> Self {
        Self {
            span: Duration::ZERO,
            rtt_ns: histogram(),
            latency_ns: histogram(),
            bytes_out: 0,
            bytes_in: 0,
            failures: BTreeMap::new(),
            lag_ns: 0,
            backed_up: 0,
            sent: 0,
            outstanding: 0,
            rows: Vec::new(),
            rows_lost: 0,
        }
    }
}

impl Interval {
    /// A call has ended.
    pub(crate) fn ended(&mut self, call: &Ended, dump: bool) {
        if let MessageEnd::Failed(reason) = call.end {
            *self.failures.entry(reason).or_default() += 1;
            return;
        }
        let (request, rtt_ns) = (call.start.bytes, call.rtt_ns());
        record(&mut self.rtt_ns, rtt_ns);
        record(&mut self.latency_ns, call.at.since(call.start.at).as_ns());
        self.bytes_out += request;
        self.bytes_in += call.response;
        if dump && self.rows.len() < MAX_ROWS {
            self.rows.push((request, rtt_ns));
        } else if dump {
            self.rows_lost += 1;
        }
    }

    /// Payload of calls that have completed, both ways: what the goodput of scenarios counts.
    #[must_use]
    pub const fn payload(&self) -> u64 {
        self.bytes_out + self.bytes_in
    }

    /// Returns the counters since the last call and resets them; current values such as `outstanding` remain.
    pub(crate) fn take(&mut self) -> Self {
        let taken = std::mem::take(self);
        (self.lag_ns, self.outstanding) = (taken.lag_ns, taken.outstanding);
        taken
    }

    /// Adds another thread's measurements of the same interval.
    pub(crate) fn join(&mut self, mut other: Self) {
        // Histograms resize themselves.
        let _ = self.rtt_ns.add(&other.rtt_ns);
        let _ = self.latency_ns.add(&other.latency_ns);
        self.bytes_out += other.bytes_out;
        self.bytes_in += other.bytes_in;
        for (reason, count) in other.failures {
            *self.failures.entry(reason).or_default() += count;
        }
        self.lag_ns = self.lag_ns.max(other.lag_ns);
        self.backed_up += other.backed_up;
        self.sent += other.sent;
        self.outstanding += other.outstanding;
        self.rows.append(&mut other.rows);
        self.rows_lost += other.rows_lost;
    }

    /// Adds the measurements of a later interval.
    pub(crate) fn extend(&mut self, mut later: Self) {
        let (lag_ns, outstanding) = (later.lag_ns, later.outstanding);
        later.rows.clear();
        self.join(later);
        (self.lag_ns, self.outstanding) = (lag_ns, outstanding);
    }

    /// Returns the number of calls that were answered.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.rtt_ns.len()
    }
}

/// A problem that ended a run early or invalidated it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// No server has answered from the beginning.
    #[error(
        "nobody answers at {server} over {transport} (asked for {waited_s:.1} s). Does `rackweave rpc serve \
         {option}` run there and listen at this address and port (--listen, --ports)? Does it \
         serve this host (--allow)? Does a firewall let {protocol} port {} through, both ways?",
        .server.port()
    )]
    NoAnswer {
        /// The address of the servers.
        server: SocketAddr,
        /// The name of the transport.
        transport: String,
        /// The option that selects it.
        option: String,
        /// Its IP protocol, as firewalls see it.
        protocol: &'static str,
        /// For how long they were greeted.
        waited_s: Seconds,
    },
    /// A server has another key, or one of the two has none.
    #[error(
        "cannot talk to {server}: {why}. Give `rackweave rpc serve` and `rackweave rpc bench` the same --key FILE"
    )]
    Key {
        /// The address of the server.
        server: SocketAddr,
        /// How the keys differ.
        why: KeyMismatch,
    },
    /// No server has answered for some time.
    #[error(
        "no server has answered for {waited_s:.1} s: {failed} requests have failed since the last answer \
         ({reason}). Does `rackweave rpc serve` still run?"
    )]
    WentSilent {
        /// The time since the last answer.
        waited_s: Seconds,
        /// The number of requests that failed in that time.
        failed: u64,
        /// The reason of the last failure.
        reason: String,
    },
    /// A socket failed, with this error.
    #[error("a socket has failed: {0}")]
    Socket(String),
    /// The file of tickets could not be written.
    #[error("cannot keep tickets for the next run: {0}")]
    Tickets(String),
    /// The transport refused a request.
    #[error("a request was refused: {0}")]
    Refused(String),
    /// A stream failed.
    #[error("the stream to {server} has failed: {reason}")]
    Stream {
        /// The address of the server.
        server: SocketAddr,
        /// The reason of the failure.
        reason: String,
    },
}

/// Seconds, displayed with their unit.
#[derive(Clone, Copy, Debug)]
pub struct Seconds(pub f64);

impl PartialEq for Seconds {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Seconds {}

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The results of one thread.
#[derive(Debug)]
pub(crate) struct ThreadEnd {
    /// Round trips by length, for [`GROUPS`].
    pub(crate) groups: Vec<Histogram<u64>>,
    /// How long the first request took, and whether it was answered before the handshake's end.
    pub(crate) first: Option<(Span, bool)>,
    pub(crate) trouble: Option<Trouble>,
    pub(crate) corrupt: u64,
    pub(crate) digests: Option<Digests>,
}

impl ThreadEnd {
    pub(crate) fn new() -> Self {
        let groups = GROUPS.iter().map(|_| histogram()).collect();
        Self { groups, first: None, trouble: None, corrupt: 0, digests: None }
    }

    pub(crate) fn record(&mut self, len: u64, rtt_ns: u64) {
        let group = GROUPS.iter().position(|most| len <= *most);
        if let Some(histogram) = group.and_then(|group| self.groups.get_mut(group)) {
            record(histogram, rtt_ns);
        }
    }
}

/// BLAKE3 of everything that a thread has sent and received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digests {
    /// The number of digested bytes.
    pub bytes: u64,
    /// Digest of the requests (or the stream), in the order of their responses.
    pub sent: String,
    /// Digest of the responses, or the server's digest of the stream.
    pub back: String,
}

/// The results of a run.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The whole run as one interval.
    pub all: Interval,
    /// Round trips by length: the upper bound of each group, and its histogram.
    pub groups: Vec<(u64, Histogram<u64>)>,
    /// How long the first request of a thread took, which greets a server, and whether packets of it were sent before the
    /// handshake.
    pub first: Option<(Span, bool)>,
    /// Problems that occurred during the run.
    pub troubles: Vec<Trouble>,
    /// Responses that differ from what was sent.
    pub corrupt: u64,
    /// Digests per thread, if requested.
    pub digests: Vec<Digests>,
    /// The peak memory of the process, in bytes.
    pub peak_rss_bytes: u64,
}

impl Summary {
    /// Returns whether everything succeeded.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.troubles.is_empty()
            && self.corrupt == 0
            && self.all.failures.is_empty()
            && self.digests.iter().all(|digests| digests.sent == digests.back)
    }
}

/// Returns the peak memory of this process in bytes; 0 if it is unknown.
pub(crate) fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
