//! Results of runs: `summary.json` and the data behind tables and plots.

pub(crate) mod collective;
pub(crate) mod columns;
mod machine;
mod measured;
mod naming;
mod remarks;
mod schema;
pub(crate) mod seeds;
pub(crate) mod stats;

use std::borrow::Cow;

use rackweave_core::{Span, Time};
use rackweave_sim::config::Circuits;
use rackweave_sim::result::{
    Captured, End, Goodput, LinkStats, MeasuredRoundTrip, MessageRecord, QueueSample, Waiting,
};
use rackweave_transport::TransportConfig;
use rackweave_wire::Header;
use rackweave_wire::frame::Unframeable;
use rackweave_wire::homa::Layout;
use rackweave_wire::pcapng::{Frame, Framed};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

pub use self::collective::{CollectiveSummary, IterationSummary, RankIteration};
pub use self::machine::{MOST_LACKING, MachineShare};
pub use self::naming::{plain, short_key};
pub(crate) use self::remarks::{FEW_ROUNDS, LENGTHENS, grouped};
pub use self::remarks::{Remark, Weight};
pub use self::schema::SUMMARY_SCHEMA;
pub use self::seeds::{Interval, SeedSpread, StreamSpread};
pub use self::stats::{CurvePoint, Range, SizeBucket, Stats, cdf, trunk_bytes};
use crate::report::number;
use crate::report::verdict::{self, StreamVerdict};
use crate::scenario::{PointSpec, Scenario};
use crate::study::{Listed, StudyDetail, StudySummary};

/// The fields of `summary.json` that depend on the machine and its load. All others are determined by scenario and
/// seed, byte for byte.
pub const WALL_CLOCK_FIELDS: [&str; 3] = ["wall_s", "peak_rss_bytes", "cpu_s"];

/// The fields of `summary.json` about the whole run. Their names and meanings, and those of [`PointSummary`], are
/// stable.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The name of the scenario.
    pub scenario: String,
    /// The seed of all random streams.
    pub seed: u64,
    /// The elapsed real time of the whole run, in seconds.
    pub wall_s: f64,
    /// The peak resident memory of the process, in bytes.
    pub peak_rss_bytes: u64,
    /// Whether the user stopped the run, so that points are missing.
    pub interrupted: bool,
    /// The points in which the simulator itself failed; they are missing in `points`.
    pub failures: Vec<PointFailure>,
    /// The points that were not finished.
    pub missing: Vec<MissingPoint>,
    /// The version of Rackweave that made the results.
    pub version: String,
}

/// The results of `rackweave run`, `merge`, `testbed` and `report`. `null` stands for a number that does not exist, such as a percentile
/// without messages. Optional keys are left out where they have no meaning.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(title = "summary.json of Rackweave"))]
struct Document<'a> {
    /// The name of the scenario.
    scenario: &'a str,
    /// The seed of all random streams.
    seed: u64,
    /// The elapsed real time of the whole run, in seconds.
    wall_s: f64,
    /// The peak resident memory of the process, in bytes.
    peak_rss_bytes: u64,
    /// The finished points, in the order of the sweep.
    points: Vec<&'a PointSummary>,
    /// If seeds are swept: the points without their seeds, as means over seeds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    over_seeds: Vec<PointSummary>,
    /// Which transport or setting has the lowest 99th percentile of slowdown, for the measured messages and for each background stream.
    /// Empty if there is nothing to compare.
    verdict: Vec<StreamVerdict>,
    /// What makes the numbers incomplete or wrong; the command ends with exit code 1.
    warnings: Vec<String>,
    /// What limits what the numbers say, such as a measured window that is too short.
    notes: Vec<String>,
    /// Whether the user stopped the run, so that points are missing.
    interrupted: bool,
    /// The points in which the simulator itself failed; they are missing in `points`.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    failures: &'a [PointFailure],
    /// The points that were not finished; they are missing in `points`.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    missing: &'a [MissingPoint],
    /// The version of Rackweave that made the results.
    version: &'a str,
}

/// One point of the sweep. `slowdown`, `latency_us`, `goodput_gbps` and `by_size` are those of the measured stream;
/// `drops` to `events` count the whole run, including the warm-up.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct PointSummary {
    /// The swept keys and their values.
    #[cfg_attr(test, schemars(schema_with = "schema::swept"))]
    pub set: Map<String, Value>,
    /// The name of the measured transport.
    pub transport: String,
    /// The transport's name in tables and charts: `transport.label`, or else the name.
    pub label: String,
    /// The outcomes of the measured messages.
    pub messages: MessageCounts,
    /// The slowdown: latency divided by the ideal time on the unloaded path.
    pub slowdown: Stats,
    /// The latency of measured messages in microseconds.
    pub latency_us: Stats,
    /// The rate at which payload arrived in the measured time, at all hosts together.
    pub goodput_gbps: f64,
    /// The number of packets dropped in the fabric, from the start of the run on.
    pub drops: u64,
    /// The number of packets trimmed to their headers.
    pub trims: u64,
    /// The number of packets marked by ECN.
    pub ecn_marks: u64,
    /// The number of times that PFC paused a port or a NIC.
    #[serde(skip_serializing_if = "is_zero")]
    pub pauses: u64,
    /// The port or NIC that PFC paused longest since the statistics of ports began; `None` if none was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_paused: Option<PausedPort>,
    /// The links of a cycle of ports that waited for each other, if the run ended as a deadlock: each was paused by the switch at its
    /// end, where its packets waited for the next one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deadlock: Vec<String>,
    /// The queue lengths at the switches' ports.
    pub queue_bytes: QueueBytes,
    /// The errors of the round trips that the measured transport estimated to its peers; `None` if it estimates none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_trips: Option<RoundTripErrors>,
    /// The sum over all packets of the links that they crossed.
    pub packet_hops: u64,
    /// The number of simulated events.
    pub events: u64,
    /// The CPU time of this point, in seconds.
    pub cpu_s: f64,
    /// Why the run ended.
    #[serde(deserialize_with = "named_end")]
    #[cfg_attr(test, schemars(schema_with = "schema::end"))]
    pub end: EndName,
    /// The measured messages that were unfinished at the end and had waited longest, at most eight.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<WaitingMessage>,
    /// How the bytes of unfinished messages grew, if the run ended as overloaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backlog: Option<BacklogGrowth>,
    /// The slowdown by message size.
    pub by_size: Vec<SizeBucket>,
    /// The simulated time at the end of the run.
    pub simulated_us: f64,
    /// The time from the end of the warm-up to the last outcome of a measured message.
    pub measured_us: f64,
    /// The measured window: the time from the end of the warm-up in which messages started that are measured.
    pub window_us: f64,
    /// The slowdown in the two halves of the measured window; `None` if the workload does not go on, or a half has few messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub halves: Option<Halves>,
    /// The drops before the statistics of queues and ports began: at `measure.queues_from`, by default the warm-up's end. `None` on
    /// real hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_drops: Option<u64>,
    /// The number of trimmed packets that were returned to their senders.
    pub returned_to_sender: u64,
    /// The number of data packets that the hosts of the measured transport sent again; `None` where that is not known, as with the kernel's
    /// TCP and of casts, images and jobs. Streams that share a transport share its counters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retransmissions: Option<u64>,
    /// The number of times that a timer of these hosts expired after which they sent again, or requested again, what had not arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<u64>,
    /// The goodput of each host that started measured messages, summarized: what it sent over the measured time,
    /// including, for RPCs, the responses to its requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goodput_by_sender_gbps: Option<Spread>,
    /// The switch port with the longest queue on average; `None` if there is no switch port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busiest_port: Option<BusiestPort>,
    /// The number of drops by reason; reasons without drops are left out.
    #[cfg_attr(test, schemars(with = "std::collections::BTreeMap<String, std::num::NonZeroU64>"))]
    pub drops_by_reason: Map<String, Value>,
    /// The number of messages that the transport refused.
    pub refused: u64,
    /// The largest number of packets in flight at one time.
    pub peak_packets: u64,
    /// The number of messages whose bytes were verified.
    pub verified_messages: u64,
    /// The results of the background streams.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub background: Vec<StreamSummary>,
    /// The messages of the measured stream and of the background streams together; `None` with one stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all_streams: Option<StreamSummary>,
    /// What a collective took, if the measured messages are those of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collective: Option<Box<CollectiveSummary>>,
    /// The results that only a kind of workload has, as an object of its name: `cast`, `image`, ...
    #[serde(flatten)]
    pub study: StudySummary,
    /// For a run on real hosts, reasons why these numbers may not be trustworthy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub doubts: Vec<String>,
    /// For a run on real hosts, what its processes got of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineShare>,
    /// The links that are offered 95 % of what they carry, or more, as calculated before the run: which, and how much.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub full_links: Vec<String>,
    /// The hosts that faults had cut off at the end, and the core links that were down, with the time since when.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cut_off: Vec<String>,
    /// If these are means over seeds: how much they are to be trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over_seeds: Option<SeedSpread>,
}

/// A point in which an assertion of the simulator failed.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PointFailure {
    /// The swept keys and their values.
    #[cfg_attr(test, schemars(schema_with = "schema::swept"))]
    pub set: Map<String, Value>,
    /// The name of the measured transport.
    pub transport: String,
    /// The message of the panic.
    pub message: String,
    /// The seed of all random streams.
    pub seed: u64,
    /// The `KEY=VALUE` arguments of `--set` that, with the seed, run only this point.
    pub arguments: Vec<String>,
}

/// A point of the sweep that has no results.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MissingPoint {
    /// The swept keys and their values.
    #[cfg_attr(test, schemars(schema_with = "schema::swept"))]
    pub set: Map<String, Value>,
    /// The transport's name in tables and charts.
    pub label: String,
    /// The seed of all random streams.
    pub seed: u64,
}

/// The results of a background stream.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StreamSummary {
    /// Its `arrivals` in the scenario, such as "incast"; of all streams together, "all".
    #[serde(default)]
    pub arrivals: String,
    /// The name of its transport.
    pub transport: String,
    /// The transport's name in tables: its `label`, or else the name.
    pub label: String,
    /// The outcomes of the stream's messages.
    pub messages: MessageCounts,
    /// The slowdown: latency divided by the ideal time on the unloaded path.
    pub slowdown: Stats,
    /// The latency of the stream's messages in microseconds.
    pub latency_us: Stats,
    /// The rate at which payload arrived in the measured time, at all hosts together.
    pub goodput_gbps: f64,
    /// For an incast that recurs: how many of its rounds began in the measured window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<u64>,
    /// The slowdown in the two halves of the measured window; see [`PointSummary::halves`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halves: Option<Halves>,
    /// The number of data packets that the hosts of its transport sent again; see [`PointSummary::retransmissions`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retransmissions: Option<u64>,
    /// The number of timeouts of these hosts; see [`PointSummary::timeouts`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<u64>,
}

/// The outcomes of messages. `started` is the sum of `completed`, `failed` and `unfinished`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MessageCounts {
    /// The number of messages submitted in the measured time.
    pub started: u64,
    /// The number of messages that arrived completely.
    pub completed: u64,
    /// The number of messages that the transport gave up.
    pub failed: u64,
    /// The number of messages in flight when the run ended.
    pub unfinished: u64,
    /// The number of unfinished messages that percentiles leave out, as the scenario requires.
    pub left_out: u64,
}

/// A measured message that was unfinished when the run ended.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WaitingMessage {
    /// Its stream; 0 is the measured one.
    pub stream: u64,
    /// The host that started it.
    pub source: u64,
    /// The other host.
    pub destination: u64,
    /// Its length.
    pub bytes: u64,
    /// The bytes that had not arrived, with those of the response; `None` where a run does not count them by message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_bytes: Option<u64>,
    /// When it started, in microseconds of simulated time.
    pub since_us: f64,
}

impl WaitingMessage {
    /// Returns what a run says of it.
    #[must_use]
    pub fn of(waiting: &Waiting) -> Self {
        Self {
            stream: waiting.stream.into(),
            source: waiting.src.0.into(),
            destination: waiting.dst.0.into(),
            bytes: waiting.bytes,
            left_bytes: waiting.left,
            since_us: waiting.since.as_us_f64(),
        }
    }

    /// Describes it: "host 3 to 0: 60.0 KB, 24.1 KB left, since 3.60 ms".
    #[must_use]
    pub fn text(&self) -> String {
        let bytes = |bytes: u64| number::bytes(bytes as f64);
        let left = self.left_bytes.map_or_else(String::new, |left| {
            let with = if left > self.bytes { " left with the response" } else { " left" };
            format!(", {}{with}", bytes(left))
        });
        let (source, destination) = (self.source, self.destination);
        let since = number::micros(self.since_us);
        format!("host {source} to {destination}: {}{left}, since {since}", bytes(self.bytes))
    }
}

/// How the bytes of unfinished messages grew in a run that was overloaded.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BacklogGrowth {
    /// The time from which on they were observed, in microseconds of simulated time.
    pub since_us: f64,
    /// The least bytes at first.
    pub from_bytes: u64,
    /// The least bytes at last.
    pub to_bytes: u64,
}

/// The 99th percentile of the slowdown of the messages that started in the first and in the second half of the measured window. Where
/// they differ, the window is too short, or the load is not steady.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Halves {
    /// The 99th percentile of each half.
    pub p99: [f64; 2],
    /// Whether they differ by more than chance explains with a probability of 5 %, and by a half or more.
    pub differ: bool,
}

/// The queue lengths at the switches' ports in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct QueueBytes {
    /// The mean over time and ports.
    pub mean: f64,
    /// The longest queue at any port since `measure.queues_from`.
    pub max: u64,
    /// The most bytes in all queues of one switch together, which is what a buffer that its ports share needs. It is that of the samples
    /// of `measure.sample_every` after the warm-up; `None` without them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_switch: Option<u64>,
}

/// The smallest, mean and largest of several values.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Spread {
    /// The smallest of the values.
    pub min: f64,
    /// The mean of the values.
    pub mean: f64,
    /// The largest of the values.
    pub max: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64> + Clone) -> Option<Self> {
        let count = values.clone().count();
        (count > 0).then(|| Self {
            min: values.clone().fold(f64::INFINITY, f64::min),
            mean: values.clone().sum::<f64>() / count as f64,
            max: values.fold(f64::NEG_INFINITY, f64::max),
        })
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The port or NIC that was paused longest.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PausedPort {
    /// The two ends of its link, as in "leaf0->h3".
    pub name: String,
    /// How often it was paused.
    pub pauses: u64,
    /// The share of the time in which any of its priorities was paused, from 0 to 1.
    pub paused: f64,
}

impl PausedPort {
    /// Returns the port that was paused longest; the first one if there are several.
    fn of(links: &[LinkStats]) -> Option<Self> {
        let most = links.iter().rev().max_by(|a, b| a.paused.total_cmp(&b.paused))?;
        let LinkStats { name, pauses, paused, .. } = most;
        (*paused > 0.0).then(|| Self { name: name.clone(), pauses: *pauses, paused: *paused })
    }
}

/// The switch port with the longest queue, averaged over time.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BusiestPort {
    /// The two ends of its link, as in "leaf0->h3".
    pub name: String,
    /// The number of waiting bytes, averaged exactly over time. It excludes the packet that is being sent.
    pub mean_queue_bytes: f64,
    /// The largest number of bytes that waited at one time.
    pub max_queue_bytes: u64,
    /// The number of packets dropped at the port.
    pub drops: u64,
    /// The share of the time in which the link carried bits, from 0 to 1.
    pub utilisation: f64,
}

impl BusiestPort {
    /// Returns the port with the longest queue; the first one if there are several.
    fn of(ports: &[LinkStats]) -> Option<Self> {
        let busiest = ports.iter().rev().max_by(|a, b| {
            let mean = |port: &LinkStats| port.mean_queue_bytes;
            mean(a).total_cmp(&mean(b))
        })?;
        Some(Self {
            name: busiest.name.clone(),
            mean_queue_bytes: busiest.mean_queue_bytes,
            max_queue_bytes: busiest.max_queue_bytes,
            drops: busiest.drops,
            utilisation: busiest.utilisation,
        })
    }
}

/// The errors of the smallest round trips that a transport measured, relative to those of the idle fabric.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RoundTripErrors {
    /// The number of pairs of hosts, counted per direction, with a measured round trip.
    pub pairs: u64,
    /// The relative error of the smallest round trip, without its sign, of the median pair.
    pub median_error: f64,
    /// The relative error of the worst pair.
    pub worst_error: f64,
}

impl RoundTripErrors {
    fn of(measured: &[MeasuredRoundTrip]) -> Option<Self> {
        let error = |trip: &MeasuredRoundTrip| {
            trip.min.ticks().abs_diff(trip.base.ticks()) as f64 / trip.base.ticks() as f64
        };
        let measured = measured.iter().filter(|trip| trip.stream == 0 && trip.samples > 0);
        let mut errors: Vec<f64> = measured.map(error).collect();
        errors.sort_by(f64::total_cmp);
        Some(Self {
            pairs: errors.len() as u64,
            median_error: stats::percentile(&errors, 0.5),
            worst_error: *errors.last()?,
        })
    }
}

/// One point with all data for files and plots.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct PointResult {
    /// The index of the point in the sweep.
    pub index: usize,
    /// The name that distinguishes it from the other points: "homa", or "homa, load 0.8".
    pub label: String,
    /// The swept keys and values that distinguish it from points with the same `summary.label`.
    pub variant: Vec<(String, String)>,
    /// The numbers of the point in `summary.json`.
    pub summary: PointSummary,
    /// The slowdown over message size.
    pub slowdown_curve: Vec<CurvePoint>,
    /// The distribution of latency, as pairs of microseconds and share.
    pub latency_cdf: Vec<(f64, f64)>,
    /// The samples of queue lengths over time.
    pub queue_series: Vec<QueueSample>,
    /// The statistics of every link.
    pub links: Vec<LinkStats>,
    /// The round trips that the transports measured.
    pub round_trips: Vec<MeasuredRoundTrip>,
    /// The payload that arrived over time, by stream.
    #[serde(default)]
    pub goodput: Goodput,
    /// Every measured message; `None` unless the scenario requests them.
    pub messages: Option<Vec<MessageRecord>>,
    /// The layout of Homa's headers in the capture.
    #[serde(skip)]
    pub capture_layout: Layout,
    /// The names of the capture's interfaces.
    pub capture_names: Vec<String>,
    /// The packets that the run captured.
    #[serde(skip)]
    pub capture: Capture,
    /// The times of the ranks of a collective.
    #[serde(default)]
    pub ranks: Vec<RankIteration>,
    /// What only files and charts show of a kind of workload.
    pub detail: Option<StudyDetail>,
    /// The traffic that the scenario counts over time.
    pub traffic: Vec<TrafficSeries>,
    /// The circuits since the run began, and the time from which each of them was in force; empty without an optical circuit
    /// switch.
    pub circuits: Vec<(Time, Circuits)>,
    /// The time in which ports are dark after a change of circuits.
    pub dark: Span,
    /// Whether all ports are dark then, and not only those whose circuits change.
    pub is_all_dark: bool,
    /// Whether a point that it would be compared with has no results, so that nothing can be called the best.
    #[serde(skip)]
    pub lacks_rivals: bool,
}

/// Traffic over time.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct TrafficSeries {
    /// Its name in the scenario.
    pub name: String,
    /// The length of an interval.
    pub interval: Span,
    /// The bytes of each interval, preamble and gap included; intervals after the last packet are missing.
    pub bytes: Vec<u64>,
}

/// The traffic of one interval.
#[derive(Clone, Debug, PartialEq)]
pub struct TrafficSample {
    /// The name of the traffic.
    pub name: String,
    /// When the interval begins.
    pub at: Time,
    /// The bytes in it.
    pub bytes: u64,
    /// The rate in Gbit/s.
    pub gbps: f64,
}

impl TrafficSeries {
    /// Returns the intervals.
    pub fn samples(&self) -> impl Iterator<Item = TrafficSample> + '_ {
        (0..).zip(&self.bytes).map(|(index, bytes)| TrafficSample {
            name: self.name.clone(),
            at: Time::from_ticks(self.interval.ticks() * index),
            bytes: *bytes,
            gbps: *bytes as f64 * 8e3 / self.interval.as_ps() as f64,
        })
    }
}

/// The goodput of a stream in one interval.
#[derive(Clone, Debug, PartialEq)]
pub struct GoodputSample {
    /// The number of the stream; 0 is the measured one.
    pub stream: u64,
    /// When the interval begins.
    pub at: Time,
    /// The payload bytes that arrived in it.
    pub bytes: u64,
    /// The rate in Gbit/s.
    pub gbps: f64,
}

impl PointResult {
    /// Returns the goodput of all streams over time.
    pub fn goodput_samples(&self) -> impl Iterator<Item = GoodputSample> + '_ {
        let interval = self.goodput.interval;
        (0..).zip(&self.goodput.bytes).flat_map(move |(stream, bytes)| {
            (0..).zip(bytes).map(move |(index, bytes)| GoodputSample {
                stream,
                at: Time::from_ticks(interval.ticks() * index),
                bytes: *bytes,
                gbps: *bytes as f64 * 8e3 / interval.as_ps() as f64,
            })
        })
    }

    /// Returns a name and pairs of microseconds and Gbit/s for each stream that has any goodput.
    pub(crate) fn goodput_series(&self) -> impl Iterator<Item = (String, Vec<(f64, f64)>)> + '_ {
        // A kind of workload is not one of the streams.
        let beside = self.summary.background.len();
        let measured = self.goodput.bytes.len().saturating_sub(beside);
        (0..self.goodput.bytes.len()).filter_map(move |stream| {
            let name =
                match stream.checked_sub(measured).and_then(|n| self.summary.background.get(n)) {
                    None => "measured messages".to_owned(),
                    Some(other) => format!("{} ({})", other.arrivals, other.label),
                };
            let own = self.goodput_samples().filter(|sample| sample.stream == stream as u64);
            let mut samples: Vec<(f64, f64)> =
                own.map(|sample| (sample.at.as_us_f64(), sample.gbps)).collect();
            let end = samples.last()?.0 + self.goodput.interval.as_us_f64();
            samples.push((end, 0.0));
            Some((name, samples))
        })
    }
}

/// All finished points of a scenario.
#[derive(Clone, Debug)]
pub struct Results {
    /// The contents of `summary.json`.
    pub summary: Summary,
    /// The finished points, in the order of the sweep.
    pub points: Vec<PointResult>,
}

/// The captured packets of a point, decoded or encoded.
#[derive(Clone, Debug)]
pub enum Capture {
    /// Packets of transports, which are encoded when they are written.
    Packets(Vec<Captured<Header>>),
    /// Encoded packets of transports and group systems.
    Frames(Vec<Frame>),
}

/// Encodes captured packets. Those of Homa have headers in this layout.
pub(crate) fn frames<H: Framed>(
    captured: &[Captured<H>],
    layout: Layout,
) -> Result<Vec<Frame>, Unframeable> {
    let frame =
        |packet: &Captured<H>| Frame::new(packet.at, packet.interface, &packet.packet, layout);
    captured.iter().map(frame).collect()
}

impl Default for Capture {
    fn default() -> Self {
        Self::Frames(Vec::new())
    }
}

impl PointSummary {
    /// Returns the results of a kind of workload, if the point is of this kind.
    #[must_use]
    pub fn of<K: Listed>(&self) -> Option<&K::Summary> {
        K::of(&self.study)
    }
}

/// Returns the layout of headers that hosts with this configuration would write. The simulations of 2018 had no
/// encoding.
#[must_use]
pub fn capture_layout(spec: &PointSpec) -> Layout {
    let mut homa = spec.config.streams.iter().map(|stream| &stream.transport);
    let homa = homa.find(|transport| matches!(transport, TransportConfig::Homa(_)));
    homa.map_or(Layout::Head, TransportConfig::layout)
}

/// How a run ended, as results name it.
#[must_use]
pub const fn end_name(end: End) -> &'static str {
    match end {
        End::AllDone => "all done",
        End::TimeLimit => "time limit",
        End::Stalled => "stalled",
        End::PacketLimit => "packet limit",
        End::Cancelled => "cancelled",
        End::Overloaded => "overloaded",
        End::Starved => "starved",
        End::CutOff => "cut off",
        End::HopLimit => "hop limit",
        End::PointLimit => "point limit",
        End::Deadlock => "deadlock",
    }
}

/// The name of an [`End`]. It has a name of its own because serde would otherwise borrow it from what it reads.
pub type EndName = &'static str;

const ENDS: [End; 11] = [
    End::AllDone,
    End::TimeLimit,
    End::Stalled,
    End::PacketLimit,
    End::Cancelled,
    End::Overloaded,
    End::Starved,
    End::CutOff,
    End::HopLimit,
    End::PointLimit,
    End::Deadlock,
];

/// Reads the name of an [`End`].
fn named_end<'de, D: Deserializer<'de>>(deserializer: D) -> Result<EndName, D::Error> {
    let name = String::deserialize(deserializer)?;
    let known = ENDS.into_iter().map(end_name).find(|known| *known == name);
    known.ok_or_else(|| serde::de::Error::custom(format_args!("no end of a run: `{name}`")))
}

impl Results {
    /// Combines finished points into results.
    #[must_use]
    pub fn new(
        scenario: &Scenario,
        mut points: Vec<PointResult>,
        wall_s: f64,
        peak_rss_bytes: u64,
    ) -> Self {
        naming::name(&mut points);
        let summary = Summary {
            scenario: scenario.name.clone(),
            seed: scenario.seed,
            wall_s,
            peak_rss_bytes,
            interrupted: false,
            failures: Vec::new(),
            missing: Vec::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        Self { summary, points }
    }

    /// Returns results that were stored: their points are named among each other.
    pub(crate) fn of(summary: Summary, mut points: Vec<PointResult>) -> Self {
        naming::name(&mut points);
        Self { summary, points }
    }

    /// Returns the contents of `summary.json`.
    #[must_use]
    pub fn to_json(&self) -> String {
        let Summary {
            scenario,
            seed,
            wall_s,
            peak_rss_bytes,
            interrupted,
            failures,
            missing,
            version,
        } = &self.summary;
        let compared = self.compared();
        let mut text = serde_json::to_string_pretty(&Document {
            scenario,
            seed: *seed,
            wall_s: *wall_s,
            peak_rss_bytes: *peak_rss_bytes,
            points: self.points.iter().map(|point| &point.summary).collect(),
            over_seeds: compared
                .iter()
                .filter(|point| point.summary.over_seeds.is_some())
                .map(|point| point.summary.clone())
                .collect(),
            verdict: verdict::of_streams(&compared),
            warnings: grouped(&self.points, Weight::Warning),
            notes: [Weight::Note, Weight::Window]
                .into_iter()
                .flat_map(|weight| grouped(&compared, weight))
                .collect(),
            interrupted: *interrupted,
            failures,
            missing,
            version,
        })
        .unwrap_or_default();
        text.push('\n');
        text
    }

    /// Returns the points to compare: all of them, or, if seeds are swept, the means over seeds.
    #[must_use]
    pub fn compared(&self) -> Cow<'_, [PointResult]> {
        let missing: Vec<MissingPoint> = self.without_results().collect();
        let combined = seeds::combined(&self.points);
        if missing.is_empty() {
            return combined.map_or(Cow::Borrowed(&self.points), Cow::Owned);
        }
        let mut compared = combined.unwrap_or_else(|| self.points.clone());
        seeds::mark(&mut compared, &missing);
        naming::mark(&mut compared, &missing);
        Cow::Owned(compared)
    }
}
