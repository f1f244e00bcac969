//! Columns of tables. `points.csv`, the terminal and the page share these definitions.

use std::borrow::Cow;
use std::fmt;

use rackweave_core::{HostId, Span, Time};
use rackweave_sim::result::{LinkStats, MeasuredRoundTrip, MessageRecord, Outcome, QueueSample};

use self::Kind::{Count, Real, Text};
use super::{
    CurvePoint, GoodputSample, IterationSummary, PointSummary, RankIteration, SeedSpread,
    SizeBucket, Spread, StreamSummary, TrafficSample,
};
use crate::study::allreduce::AllreduceConfig;
use crate::study::cast::CastConfig;

/// The group of columns that is shown next to a collective only.
pub(crate) const OF_COLLECTIVES: &str = "collective";

/// The column of the time of a collective.
pub(crate) const COLLECTIVE_US: &str = "collective_us";

/// One column: its heading with the unit, and its value in a row.
pub(crate) struct Column<T: 'static> {
    /// The heading in CSV files; empty if only the report has the column.
    pub(crate) name: &'static str,
    /// The kind of all its values in files and frames.
    pub(crate) kind: Kind,
    pub(crate) get: fn(&T) -> Value<'_>,
    /// How the report shows the column; `None` if only CSV files have it.
    pub(crate) shown: Option<Shown>,
}

/// The kind of a column's values; any may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Count,
    Real,
    Text,
}

/// A value in a cell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Count(u64),
    Real(f64),
    Text(Cow<'a, str>),
}

/// How the report shows a column.
#[derive(Clone, Copy)]
pub(crate) struct Shown {
    /// The heading above adjacent columns; may be empty.
    pub(crate) group: &'static str,
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    pub(crate) better: Better,
    /// Whether the value is only valid if no message is missing.
    pub(crate) of_messages: bool,
    /// The rank: the columns with the highest rank are the first to be left out where space is scarce.
    pub(crate) rank: u8,
    /// Whether the column is left out if all its values are zero or missing.
    pub(crate) optional: bool,
}

/// The unit of a number, which determines how the report formats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    None,
    Count,
    Bytes,
    Micros,
}

/// Which of two values is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    Lower,
    Higher,
    /// Neither value is better: the column only describes the run.
    Neither,
}

impl Value<'_> {
    /// Returns the value as a number; NaN for text.
    pub(crate) fn number(&self) -> f64 {
        match self {
            Self::Count(n) => *n as f64,
            Self::Real(x) => *x,
            Self::Text(_) => f64::NAN,
        }
    }
}

/// Formats the value as in CSV files: with all digits, and empty if it is missing.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(n) => n.fmt(f),
            Self::Real(x) if x.is_finite() => x.fmt(f),
            Self::Real(_) => Ok(()),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl From<u64> for Value<'_> {
    fn from(n: u64) -> Self {
        Self::Count(n)
    }
}

impl From<f64> for Value<'_> {
    fn from(x: f64) -> Self {
        Self::Real(x)
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<HostId> for Value<'_> {
    fn from(host: HostId) -> Self {
        Self::Count(u64::from(host.0))
    }
}

impl From<Time> for Value<'_> {
    fn from(time: Time) -> Self {
        Self::Real(time.as_us_f64())
    }
}

impl From<Span> for Value<'_> {
    fn from(span: Span) -> Self {
        Self::Real(span.as_us_f64())
    }
}

impl<'a, T: Into<Self>> From<Option<T>> for Value<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Real(f64::NAN), Into::into)
    }
}

pub(crate) const fn column<T>(
    name: &'static str,
    kind: Kind,
    get: fn(&T) -> Value<'_>,
) -> Column<T> {
    Column { name, kind, get, shown: None }
}

pub(crate) const fn shown<T>(
    name: &'static str,
    kind: Kind,
    shown: Shown,
    get: fn(&T) -> Value<'_>,
) -> Column<T> {
    Column { name, kind, get, shown: Some(shown) }
}

/// A column that only the report has, whose values may be of any kind.
pub(crate) const fn reported<T>(shown: Shown, get: fn(&T) -> Value<'_>) -> Column<T> {
    Column { name: "", kind: Real, get, shown: Some(shown) }
}

pub(crate) const PLAIN: Shown = Shown {
    group: "",
    name: "",
    unit: Unit::None,
    better: Better::Neither,
    of_messages: false,
    rank: 0,
    optional: false,
};
const MESSAGES: Shown = Shown { group: "messages", unit: Unit::Count, ..PLAIN };
const COLLECTIVE: Shown =
    Shown { group: OF_COLLECTIVES, of_messages: true, optional: true, ..PLAIN };
const SLOWDOWN: Shown =
    Shown { group: "slowdown", better: Better::Lower, of_messages: true, ..PLAIN };
const LATENCY: Shown = Shown { group: "latency", unit: Unit::Micros, ..SLOWDOWN };
const PACKETS: Shown = Shown { group: "packets", unit: Unit::Count, ..PLAIN };
const QUEUE: Shown = Shown { group: "queue", unit: Unit::Bytes, better: Better::Lower, ..PLAIN };
const GOODPUT: Shown = Shown { group: "goodput", name: "Gbit/s", better: Better::Higher, ..PLAIN };

/// Returns the value of the worst, the mean or the best sender.
fn by_sender(point: &PointSummary, of: fn(&Spread) -> f64) -> Value<'_> {
    point.goodput_by_sender_gbps.as_ref().map(of).into()
}

/// Returns the time of a collective, or of what does the same in another way: a step of an all-reduce, or files to many.
pub(crate) fn collective_us(point: &PointSummary) -> Option<f64> {
    if let Some(interval) = point.over_seeds.as_ref().and_then(|spread| spread.collective_us) {
        return Some(interval.mean);
    }
    let collective = point.collective.as_ref().map(|it| it.time_us.mean);
    let sums = || Some(point.of::<AllreduceConfig>()?.step_us.mean);
    let files = || Some(point.of::<CastConfig>()?.execution_us);
    collective.or_else(sums).or_else(files)
}

/// The measures of a point, for CSV files and the report.
pub(crate) const POINT: &[Column<PointSummary>] = &[
    column("started", Count, |p| p.messages.started.into()),
    shown("completed", Count, Shown { name: "done", ..MESSAGES }, |p| p.messages.completed.into()),
    reported(Shown { name: "missing", optional: true, rank: 1, ..MESSAGES }, |p| {
        p.messages.failed.saturating_add(p.messages.unfinished).into()
    }),
    column("failed", Count, |p| p.messages.failed.into()),
    column("unfinished", Count, |p| p.messages.unfinished.into()),
    shown(
        COLLECTIVE_US,
        Real,
        Shown { name: "time", unit: Unit::Micros, better: Better::Lower, ..COLLECTIVE },
        |p| collective_us(p).into(),
    ),
    shown("collective_of_ideal", Real, Shown { name: "of ideal", rank: 2, ..COLLECTIVE }, |p| {
        p.collective.as_ref().map(|it| it.of_ideal).into()
    }),
    shown(
        "collective_bus_gbps",
        Real,
        Shown { name: "bus Gbit/s", better: Better::Higher, rank: 1, ..COLLECTIVE },
        |p| {
            let sums = || Some(p.of::<AllreduceConfig>()?.bus_gbps);
            p.collective.as_ref().map_or_else(sums, |it| it.bus_gbps).into()
        },
    ),
    shown("slowdown_p50", Real, Shown { name: "p50", ..SLOWDOWN }, |p| p.slowdown.p50.into()),
    shown("slowdown_p99", Real, Shown { name: "p99", ..SLOWDOWN }, |p| p.slowdown.p99.into()),
    shown("slowdown_p999", Real, Shown { name: "p99.9", rank: 11, ..SLOWDOWN }, |p| {
        p.slowdown.p999.into()
    }),
    shown("slowdown_max", Real, Shown { name: "max", rank: 12, ..SLOWDOWN }, |p| {
        p.slowdown.max.into()
    }),
    shown("slowdown_mean", Real, Shown { name: "mean", rank: 6, ..SLOWDOWN }, |p| {
        p.slowdown.mean.into()
    }),
    shown("latency_p50_us", Real, Shown { name: "p50", rank: 4, ..LATENCY }, |p| {
        p.latency_us.p50.into()
    }),
    shown("latency_p99_us", Real, Shown { name: "p99", rank: 3, ..LATENCY }, |p| {
        p.latency_us.p99.into()
    }),
    shown("latency_p999_us", Real, Shown { name: "p99.9", rank: 13, ..LATENCY }, |p| {
        p.latency_us.p999.into()
    }),
    shown("latency_max_us", Real, Shown { name: "max", rank: 14, ..LATENCY }, |p| {
        p.latency_us.max.into()
    }),
    shown("latency_mean_us", Real, Shown { name: "mean", rank: 7, ..LATENCY }, |p| {
        p.latency_us.mean.into()
    }),
    shown("goodput_gbps", Real, GOODPUT, |p| p.goodput_gbps.into()),
    shown("drops", Count, Shown { name: "drops", ..PACKETS }, |p| p.drops.into()),
    reported(Shown { name: "in warm-up", optional: true, rank: 7, ..PACKETS }, |p| {
        p.warmup_drops.into()
    }),
    shown("trims", Count, Shown { name: "trims", optional: true, rank: 8, ..PACKETS }, |p| {
        p.trims.into()
    }),
    shown("ecn_marks", Count, Shown { name: "marks", optional: true, rank: 9, ..PACKETS }, |p| {
        p.ecn_marks.into()
    }),
    reported(Shown { name: "pauses", optional: true, rank: 17, ..PACKETS }, |p| p.pauses.into()),
    reported(Shown { name: "sent again", optional: true, rank: 15, ..PACKETS }, |p| {
        p.retransmissions.into()
    }),
    reported(Shown { name: "timeouts", optional: true, rank: 16, ..PACKETS }, |p| {
        p.timeouts.into()
    }),
    shown("queue_mean_bytes", Real, Shown { name: "mean", rank: 10, ..QUEUE }, |p| {
        p.queue_bytes.mean.into()
    }),
    shown("queue_max_bytes", Count, Shown { name: "max", rank: 5, ..QUEUE }, |p| {
        p.queue_bytes.max.into()
    }),
    column("queue_max_switch_bytes", Count, |p| p.queue_bytes.max_switch.into()),
    column("packet_hops", Count, |p| p.packet_hops.into()),
    column("events", Count, |p| p.events.into()),
    column("cpu_s", Real, |p| p.cpu_s.into()),
    column("simulated_us", Real, |p| p.simulated_us.into()),
    column("measured_us", Real, |p| p.measured_us.into()),
    column("end", Text, |p| p.end.into()),
    column("left_out", Count, |p| p.messages.left_out.into()),
    column("goodput_by_sender_min_gbps", Real, |p| by_sender(p, |spread| spread.min)),
    column("goodput_by_sender_mean_gbps", Real, |p| by_sender(p, |spread| spread.mean)),
    column("goodput_by_sender_max_gbps", Real, |p| by_sender(p, |spread| spread.max)),
    column("busiest_port", Text, |p| p.busiest_port.as_ref().map(|port| port.name.as_str()).into()),
    column("busiest_port_mean_queue_bytes", Real, |p| {
        p.busiest_port.as_ref().map(|port| port.mean_queue_bytes).into()
    }),
    column("returned_to_sender", Count, |p| p.returned_to_sender.into()),
    column("retransmissions", Count, |p| p.retransmissions.into()),
    column("timeouts", Count, |p| p.timeouts.into()),
    column("warmup_drops", Count, |p| p.warmup_drops.into()),
    column("pauses", Count, |p| p.pauses.into()),
];

/// Returns half the width of a measure's confidence interval, in a point that is the mean over seeds.
fn half_width(point: &PointSummary, of: fn(&SeedSpread) -> f64) -> Value<'_> {
    point.over_seeds.as_ref().map(of).into()
}

/// Means over seeds, for CSV files. `_ci95` is half the width of the confidence interval.
pub(crate) const OVER_SEEDS: &[Column<PointSummary>] = &[
    column("seeds", Count, |p| {
        p.over_seeds.as_ref().map(|spread| spread.seeds.len() as u64).into()
    }),
    column("completed", Count, |p| p.messages.completed.into()),
    column("failed", Count, |p| p.messages.failed.into()),
    column("unfinished", Count, |p| p.messages.unfinished.into()),
    column("slowdown_p50", Real, |p| p.slowdown.p50.into()),
    column("slowdown_p50_ci95", Real, |p| half_width(p, |spread| spread.slowdown.p50)),
    column("slowdown_p99", Real, |p| p.slowdown.p99.into()),
    column("slowdown_p99_ci95", Real, |p| half_width(p, |spread| spread.slowdown.p99)),
    column("slowdown_mean", Real, |p| p.slowdown.mean.into()),
    column("slowdown_mean_ci95", Real, |p| half_width(p, |spread| spread.slowdown.mean)),
    column("latency_p50_us", Real, |p| p.latency_us.p50.into()),
    column("latency_p50_us_ci95", Real, |p| half_width(p, |spread| spread.latency_us.p50)),
    column("latency_p99_us", Real, |p| p.latency_us.p99.into()),
    column("latency_p99_us_ci95", Real, |p| half_width(p, |spread| spread.latency_us.p99)),
    column("latency_mean_us", Real, |p| p.latency_us.mean.into()),
    column("latency_mean_us_ci95", Real, |p| half_width(p, |spread| spread.latency_us.mean)),
    column("latency_max_us", Real, |p| p.latency_us.max.into()),
    column("latency_max_us_ci95", Real, |p| half_width(p, |spread| spread.latency_us.max)),
    column("goodput_gbps", Real, |p| p.goodput_gbps.into()),
    column("goodput_gbps_ci95", Real, |p| half_width(p, |spread| spread.goodput_gbps)),
    column(COLLECTIVE_US, Real, |p| collective_us(p).into()),
    column("collective_us_ci95", Real, |p| {
        half_width(p, |spread| spread.collective_us.map_or(f64::NAN, |it| it.half_width))
    }),
    column("drops", Count, |p| p.drops.into()),
    column("retransmissions", Count, |p| p.retransmissions.into()),
    column("timeouts", Count, |p| p.timeouts.into()),
];

/// The iterations of collectives.
pub(crate) const ITERATION: &[Column<IterationSummary>] = &[
    column("iteration", Count, |it| it.iteration.into()),
    column("start_us", Real, |it| it.start_us.into()),
    column("end_us", Real, |it| it.end_us.into()),
    column("time_us", Real, |it| it.time_us.into()),
];

/// The iterations of their ranks.
pub(crate) const RANK: &[Column<RankIteration>] = &[
    column("rank", Count, |it| it.rank.into()),
    column("host", Count, |it| it.host.into()),
    column("iteration", Count, |it| it.iteration.into()),
    column("start_us", Real, |it| it.start_us.into()),
    column("end_us", Real, |it| it.end_us.into()),
];

pub(crate) const BY_SIZE: &[Column<SizeBucket>] = &[
    column("up_to_bytes", Count, |bucket| bucket.up_to_bytes.into()),
    column("count", Count, |bucket| bucket.count.into()),
    column("slowdown_mean", Real, |bucket| bucket.mean.into()),
    column("slowdown_p50", Real, |bucket| bucket.p50.into()),
    column("slowdown_p99", Real, |bucket| bucket.p99.into()),
    column("latency_p50_us", Real, |bucket| bucket.latency_p50_us.into()),
    column("latency_p99_us", Real, |bucket| bucket.latency_p99_us.into()),
    column("slowdown_p99_by_receiver", Real, |bucket| bucket.p99_by_receiver.into()),
];

pub(crate) const CURVE: &[Column<CurvePoint>] = &[
    column("count_fraction", Real, |step| step.count_fraction.into()),
    column("size_bytes", Count, |step| step.size_bytes.into()),
    column("slowdown_p50", Real, |step| step.p50.into()),
    column("slowdown_p99", Real, |step| step.p99.into()),
];

pub(crate) const CDF: &[Column<(f64, f64)>] = &[
    column("latency_us", Real, |step| step.0.into()),
    column("fraction", Real, |step| step.1.into()),
];

pub(crate) const QUEUES: &[Column<QueueSample>] = &[
    column("time_us", Real, |sample| sample.at.into()),
    column("max_bytes", Count, |sample| sample.max_bytes.into()),
    column("max_switch_bytes", Count, |sample| sample.max_switch_bytes.into()),
    column("total_bytes", Count, |sample| sample.total_bytes.into()),
];

pub(crate) const TRAFFIC: &[Column<TrafficSample>] = &[
    column("traffic", Text, |sample| Value::Text(sample.name.as_str().into())),
    column("from_us", Real, |sample| sample.at.into()),
    column("bytes", Count, |sample| sample.bytes.into()),
    column("gbps", Real, |sample| sample.gbps.into()),
];

pub(crate) const GOODPUT_OVER_TIME: &[Column<GoodputSample>] = &[
    column("stream", Count, |sample| sample.stream.into()),
    column("from_us", Real, |sample| sample.at.into()),
    column("bytes", Count, |sample| sample.bytes.into()),
    column("gbps", Real, |sample| sample.gbps.into()),
];

/// A circuit from a time on.
pub(crate) struct Circuit {
    pub(crate) from: Time,
    /// What it joins: "h3", "tor1".
    pub(crate) ends: (String, String),
}

pub(crate) const CIRCUITS: &[Column<Circuit>] = &[
    column("from_us", Real, |circuit| circuit.from.into()),
    column("end", Text, |circuit| Value::Text(circuit.ends.0.as_str().into())),
    column("other_end", Text, |circuit| Value::Text(circuit.ends.1.as_str().into())),
];

pub(crate) const LINKS: &[Column<LinkStats>] = &[
    column("link", Text, |link| link.name.as_str().into()),
    column("utilisation", Real, |link| link.utilisation.into()),
    column("mean_queue_bytes", Real, |link| link.mean_queue_bytes.into()),
    column("max_queue_bytes", Count, |link| link.max_queue_bytes.into()),
    column("drops", Count, |link| link.drops.into()),
    column("pauses", Count, |link| link.pauses.into()),
    column("paused", Real, |link| link.paused.into()),
];

fn latency(message: &MessageRecord) -> Option<Span> {
    match message.outcome {
        Outcome::Completed(at) => Some(at.since(message.start)),
        Outcome::Failed(_) | Outcome::Unfinished => None,
    }
}

pub(crate) const MESSAGE: &[Column<MessageRecord>] = &[
    column("stream", Count, |message| u64::from(message.stream).into()),
    column("source", Count, |message| message.src.into()),
    column("destination", Count, |message| message.dst.into()),
    column("bytes", Count, |message| message.bytes.into()),
    column("start_us", Real, |message| message.start.into()),
    column("ideal_us", Real, |message| message.ideal.into()),
    column("latency_us", Real, |message| latency(message).into()),
    column("slowdown", Real, |message| {
        latency(message)
            .map(|span| span.ticks() as f64 / message.ideal.ticks().max(1) as f64)
            .into()
    }),
    column("outcome", Text, |message| match message.outcome {
        Outcome::Completed(_) => "completed".into(),
        Outcome::Failed(reason) => Value::Text(reason.to_string().into()),
        Outcome::Unfinished => "unfinished".into(),
    }),
];

pub(crate) const ROUND_TRIP: &[Column<MeasuredRoundTrip>] = &[
    column("stream", Count, |trip| u64::from(trip.stream).into()),
    column("src", Count, |trip| trip.src.into()),
    column("dst", Count, |trip| trip.dst.into()),
    column("min_us", Real, |trip| trip.min.into()),
    column("recent_us", Real, |trip| trip.recent.into()),
    column("base_us", Real, |trip| trip.base.into()),
    column("samples", Count, |trip| trip.samples.into()),
];

/// A time in microseconds.
pub(crate) const MICROS: Shown = Shown { unit: Unit::Micros, ..PLAIN };

/// The columns for a background stream, for `streams.csv` and the report.
pub(crate) const STREAM: &[Column<StreamSummary>] = &[
    shown("arrivals", Text, Shown { name: "arrivals", ..PLAIN }, |s| (&*s.arrivals).into()),
    shown("stream", Text, Shown { name: "transport", ..PLAIN }, |s| (&*s.label).into()),
    column("started", Count, |s| s.messages.started.into()),
    shown("completed", Count, Shown { name: "done", ..MESSAGES }, |s| s.messages.completed.into()),
    reported(Shown { name: "missing", optional: true, rank: 1, ..MESSAGES }, |s| {
        s.messages.failed.saturating_add(s.messages.unfinished).into()
    }),
    column("failed", Count, |s| s.messages.failed.into()),
    column("unfinished", Count, |s| s.messages.unfinished.into()),
    shown("slowdown_p50", Real, Shown { name: "p50", ..SLOWDOWN }, |s| s.slowdown.p50.into()),
    shown("slowdown_p99", Real, Shown { name: "p99", ..SLOWDOWN }, |s| s.slowdown.p99.into()),
    column("slowdown_mean", Real, |s| s.slowdown.mean.into()),
    column("slowdown_p999", Real, |s| s.slowdown.p999.into()),
    column("slowdown_max", Real, |s| s.slowdown.max.into()),
    shown("latency_p50_us", Real, Shown { name: "p50", rank: 3, ..LATENCY }, |s| {
        s.latency_us.p50.into()
    }),
    shown("latency_p99_us", Real, Shown { name: "p99", rank: 2, ..LATENCY }, |s| {
        s.latency_us.p99.into()
    }),
    column("latency_mean_us", Real, |s| s.latency_us.mean.into()),
    shown("goodput_gbps", Real, GOODPUT, |s| s.goodput_gbps.into()),
    shown(
        "retransmissions",
        Count,
        Shown { name: "sent again", optional: true, rank: 4, ..PACKETS },
        |s| s.retransmissions.into(),
    ),
    shown("timeouts", Count, Shown { name: "timeouts", optional: true, rank: 5, ..PACKETS }, |s| {
        s.timeouts.into()
    }),
];
