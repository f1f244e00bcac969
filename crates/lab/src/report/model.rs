//! The input of a report: plain numbers, in the units that stand in their names.
//!
//! Any `f64` may be NaN or infinite; it is shown as missing. Any list may be empty.

/// A comparison of runs, and what is needed to repeat it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The scenario's name.
    pub title: String,
    /// What it is about, in a sentence or two; may be empty.
    pub description: String,
    /// The scenario as it was run, all defaults filled in.
    pub scenario_toml: String,
    /// The command that gives the same numbers again.
    pub command: String,
    /// Version of the program.
    pub version: String,
    /// The seed.
    pub seed: u64,
    /// Further lines for the head of the page, as (name, value): hosts, links, workload...
    pub facts: Vec<(String, String)>,
    /// The runs, in the order of the sweep.
    pub points: Vec<Point>,
}

/// One run.
#[derive(Clone, Debug, Default)]
pub struct Point {
    /// Names the point among the others: "homa", or "homa, load 0.8".
    pub label: String,
    /// What is compared, the transport as a rule: points of one group share a colour.
    pub group: String,
    /// The swept keys and their values, as in `("workload.load", "0.8")`; a value that is the
    /// group itself may be among them and is not shown twice.
    pub set: Vec<(String, String)>,
    /// Slowdown by message size, in the scenario's buckets.
    pub by_size: Vec<SizeBucket>,
    /// Slowdown by message size, in many small steps of equally many messages.
    pub slowdown_curve: Vec<CurvePoint>,
    /// Distribution of latency: (microseconds, fraction of messages that took at most that).
    pub latency_cdf: Vec<(f64, f64)>,
    /// The switches' queues over time.
    pub queue_series: Vec<QueueDepth>,
    /// The whole run in numbers.
    pub totals: Totals,
    /// Of files from one to many.
    pub cast: Option<Cast>,
}

/// Files from one to many. Times are in microseconds.
#[derive(Clone, Debug, Default)]
pub struct Cast {
    /// Who makes the copies.
    pub copied_by: String,
    /// From the first chunk to the last acknowledgement.
    pub execution_us: f64,
    /// What each receiver gets in that time.
    pub receiver_gbps: f64,
    /// Bytes on the sender's links for each byte of the files.
    pub copies: f64,
    /// Median, and 99th percentile, of the times from a file's first chunk to its last acknowledgement.
    pub send_us: (f64, f64),
    /// Likewise of the times that receivers wait for the next file.
    pub wait_us: (f64, f64),
    /// Bytes sent again.
    pub repaired_bytes: u64,
    /// How often receivers were served alone.
    pub detached: u64,
    /// Receivers that were given up.
    pub lost: u64,
    /// Distributions: (microseconds, share of files, of waits).
    pub send_cdf: Vec<(f64, f64)>,
    /// See `send_cdf`.
    pub wait_cdf: Vec<(f64, f64)>,
    /// Each receiver: its host, when its last file was whole, and the longest time without a byte.
    pub receivers: Vec<(u32, f64, f64)>,
}

/// The messages of one size bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SizeBucket {
    /// Largest size in it; `u64::MAX` is no limit. The smallest follows from the bucket before.
    pub up_to_bytes: u64,
    /// Number of messages.
    pub count: u64,
    /// Their slowdown.
    pub slowdown: Stats,
}

/// A distribution in three numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stats {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Mean.
    pub mean: f64,
}

impl Default for Stats {
    /// Nothing known.
    fn default() -> Self {
        Self { p50: f64::NAN, p99: f64::NAN, mean: f64::NAN }
    }
}

/// One step of a slowdown curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// Share of all messages that are at most as large as this step's, 0 to 1.
    pub count_fraction: f64,
    /// Size of the step's largest message.
    pub size_bytes: f64,
    /// Median slowdown of the step's messages.
    pub p50: f64,
    /// 99th percentile of their slowdown.
    pub p99: f64,
}

/// One look at the switches' queues.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueDepth {
    /// When, since the start of the run.
    pub time_us: f64,
    /// Bytes in the longest queue.
    pub max_bytes: f64,
    /// Bytes in all queues together.
    pub total_bytes: f64,
}

/// A run in numbers.
#[derive(Clone, Debug)]
pub struct Totals {
    /// Slowdown of all measured messages.
    pub slowdown: Stats,
    /// Their latency in microseconds.
    pub latency_us: Stats,
    /// Payload delivered in the measured time.
    pub goodput_gbps: f64,
    /// Measured messages that were submitted.
    pub started: u64,
    /// Those that arrived whole.
    pub completed: u64,
    /// Those that failed.
    pub failed: u64,
    /// Those under way when the run ended.
    pub unfinished: u64,
    /// Those of them that no statistic speaks of.
    pub left_out: u64,
    /// Packets dropped.
    pub drops: u64,
    /// The same by reason; reasons without drops may be left out.
    pub drops_by_reason: Vec<(String, u64)>,
    /// Packets trimmed.
    pub trims: u64,
    /// Packets marked.
    pub ecn_marks: u64,
    /// Time-averaged bytes in a switch port's queue.
    pub queue_mean_bytes: f64,
    /// Most bytes that any switch port's queue held.
    pub queue_max_bytes: f64,
    /// Why the run ended: "all done" or something else.
    pub end: String,
}

/// The end of a run in which nothing is missing.
pub const ALL_DONE: &str = "all done";

impl Default for Totals {
    fn default() -> Self {
        Self {
            slowdown: Stats::default(),
            latency_us: Stats::default(),
            goodput_gbps: f64::NAN,
            started: 0,
            completed: 0,
            failed: 0,
            unfinished: 0,
            left_out: 0,
            drops: 0,
            drops_by_reason: Vec::new(),
            trims: 0,
            ecn_marks: 0,
            queue_mean_bytes: f64::NAN,
            queue_max_bytes: f64::NAN,
            end: ALL_DONE.to_owned(),
        }
    }
}

impl Totals {
    /// Whether its numbers speak of every message that was started.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.failed == 0 && self.unfinished == 0 && self.end == ALL_DONE
    }
}

impl Point {
    /// The swept keys and values that the group does not already tell.
    pub fn variant(&self) -> impl Iterator<Item = (&str, &str)> {
        self.set
            .iter()
            .filter(|(_, value)| *value != self.group)
            .map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// [`Point::variant`] in words: "load 0.8, buffer 500 KB"; empty if there is none.
    #[must_use]
    pub fn variant_label(&self) -> String {
        self.variant()
            .map(|(key, value)| format!("{} {value}", short_key(key)))
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// The last part of a dotted key: what "workload.load" is called in a label.
#[must_use]
pub fn short_key(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

/// Neighbouring points that have the same buckets, as ranges of indices: each range is a table.
#[must_use]
pub fn bucketed_alike(points: &[Point]) -> Vec<std::ops::Range<usize>> {
    let edges = |p: &Point| -> Vec<u64> { p.by_size.iter().map(|b| b.up_to_bytes).collect() };
    let mut from = 0;
    let alike = points.chunk_by(|a, b| edges(a) == edges(b));
    alike
        .map(|chunk| {
            let range = from..from + chunk.len();
            from = range.end;
            range
        })
        .collect()
}

/// The bucket edges of all points together, ascending.
#[must_use]
pub fn bucket_edges(points: &[Point]) -> Vec<u64> {
    let mut edges: Vec<u64> =
        points.iter().flat_map(|p| p.by_size.iter().map(|b| b.up_to_bytes)).collect();
    edges.sort_unstable();
    edges.dedup();
    edges
}
