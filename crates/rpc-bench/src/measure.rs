//! What has been measured.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use hdrhistogram::Histogram;

/// Up to this many bytes count as one group in the summary.
pub(crate) const GROUPS: [u64; 7] = [100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, u64::MAX];

/// Round trips are recorded with three digits.
const DIGITS: u8 = 3;

/// Rounds trips of a thread that wait to be written to the dump.
const MAX_ROWS: usize = 1 << 22;

pub(crate) fn histogram() -> Histogram<u64> {
    // Three digits are a number that the crate takes; it grows as it needs to.
    Histogram::new(DIGITS).unwrap_or_else(|_| unreachable!("one to five digits"))
}

fn record(histogram: &mut Histogram<u64>, rtt_ns: u64) {
    // It grows: nothing is too large.
    let _ = histogram.record(rtt_ns.max(1));
}

/// Calls of some time.
#[derive(Clone, Debug)]
pub struct Interval {
    /// How long it was.
    pub span: Duration,
    /// Round trips of calls, in nanoseconds.
    pub rtt_ns: Histogram<u64>,
    /// Bytes of requests that were answered, or of streams that went.
    pub bytes_out: u64,
    /// Bytes of responses.
    pub bytes_in: u64,
    /// What failed, by reason.
    pub failures: BTreeMap<String, u64>,
    /// How far behind its plan an open loop is, in nanoseconds.
    pub lag_ns: u64,
    /// Requests that were due and had to wait for others to end.
    pub backed_up: u64,
    /// Requests that were sent.
    pub sent: u64,
    /// Requests that are under way.
    pub outstanding: u64,
    /// Rows for the dump: length, round trip in nanoseconds.
    pub(crate) rows: Vec<(u64, u64)>,
    /// Rows that were not kept, since nobody fetched them.
    pub rows_lost: u64,
}

impl Default for Interval {
    fn default() -> Self {
        Self {
            span: Duration::ZERO,
            rtt_ns: histogram(),
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
    pub(crate) fn answered(&mut self, request: u64, response: u64, rtt_ns: u64, dump: bool) {
        record(&mut self.rtt_ns, rtt_ns);
        self.bytes_out += request;
        self.bytes_in += response;
        if dump && self.rows.len() < MAX_ROWS {
            self.rows.push((request, rtt_ns));
        } else if dump {
            self.rows_lost += 1;
        }
    }

    pub(crate) fn failed(&mut self, reason: impl ToString) {
        *self.failures.entry(reason.to_string()).or_default() += 1;
    }

    /// What there is since the last time; what is only known of now stays.
    pub(crate) fn take(&mut self) -> Self {
        let taken = std::mem::take(self);
        (self.lag_ns, self.outstanding) = (taken.lag_ns, taken.outstanding);
        taken
    }

    /// Adds another thread's.
    pub(crate) fn join(&mut self, mut other: Self) {
        // Both can grow: nothing does not fit.
        let _ = self.rtt_ns.add(&other.rtt_ns);
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

    /// Adds what came after it.
    pub(crate) fn extend(&mut self, mut later: Self) {
        let (lag_ns, outstanding) = (later.lag_ns, later.outstanding);
        later.rows.clear();
        self.join(later);
        (self.lag_ns, self.outstanding) = (lag_ns, outstanding);
    }

    /// Calls that were answered.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.rtt_ns.len()
    }
}

/// What ended a run before its time, or made it worthless.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// Nobody has answered from the beginning.
    #[error(
        "nobody answers at {server} over {transport} (asked for {waited_s:.1} s). Does `rackweave rpc serve \
         --transport {transport}` run there and listen at this address and port (--listen, --ports)? Does it \
         serve this host (--allow)? Does a firewall let {protocol} port {} through, both ways?",
        .server.port()
    )]
    NoAnswer {
        /// Whom.
        server: SocketAddr,
        /// Over what.
        transport: &'static str,
        /// What it goes through firewalls as.
        protocol: &'static str,
        /// How long it was asked.
        waited_s: Seconds,
    },
    /// Nobody answers any more.
    #[error(
        "no server has answered for {waited_s:.1} s: {failed} requests have failed since the last answer \
         ({reason}). Does `rackweave rpc serve` still run?"
    )]
    WentSilent {
        /// For how long.
        waited_s: Seconds,
        /// Requests that failed meanwhile.
        failed: u64,
        /// The last reason.
        reason: String,
    },
    /// A socket does not work any more.
    #[error("a socket has failed: {0}")]
    Socket(String),
    /// A request was refused.
    #[error("a request was refused: {0}")]
    Refused(String),
    /// A stream has ended otherwise than it should.
    #[error("the stream to {server} has failed: {reason}")]
    Stream {
        /// To whom.
        server: SocketAddr,
        /// Why.
        reason: String,
    },
}

/// Seconds that print as such.
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

/// What one thread knows at its end.
#[derive(Debug)]
pub(crate) struct ThreadEnd {
    /// Round trips by length, for [`GROUPS`].
    pub(crate) groups: Vec<Histogram<u64>>,
    pub(crate) trouble: Option<Trouble>,
    pub(crate) corrupt: u64,
    pub(crate) digests: Option<Digests>,
}

impl ThreadEnd {
    pub(crate) fn new() -> Self {
        let groups = GROUPS.iter().map(|_| histogram()).collect();
        Self { groups, trouble: None, corrupt: 0, digests: None }
    }

    pub(crate) fn record(&mut self, len: u64, rtt_ns: u64) {
        let group = GROUPS.iter().position(|most| len <= *most);
        if let Some(histogram) = group.and_then(|group| self.groups.get_mut(group)) {
            record(histogram, rtt_ns);
        }
    }
}

/// BLAKE3 of all that a thread has sent and got back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digests {
    /// Bytes that were digested.
    pub bytes: u64,
    /// Of requests (or the stream) in the order in which responses came.
    pub sent: String,
    /// Of the responses, or what the server says of the stream.
    pub back: String,
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct Summary {
    /// All of it.
    pub all: Interval,
    /// Round trips by length: the longest of the group, and how long they took.
    pub groups: Vec<(u64, Histogram<u64>)>,
    /// What has gone wrong.
    pub troubles: Vec<Trouble>,
    /// Responses that were not what was sent.
    pub corrupt: u64,
    /// What each thread has digested, if it was to.
    pub digests: Vec<Digests>,
    /// The most memory that the process has had.
    pub peak_rss_bytes: u64,
}

impl Summary {
    /// Whether all is as it should be.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.troubles.is_empty()
            && self.corrupt == 0
            && self.all.failures.is_empty()
            && self.digests.iter().all(|digests| digests.sent == digests.back)
    }
}

/// The most memory that this process has had; 0 where it can't be told.
pub(crate) fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
