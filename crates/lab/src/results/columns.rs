//! Columns of tables. `points.csv`, the terminal and the page share these definitions.

use std::borrow::Cow;
use std::fmt;

use rackweave_core::{HostId, Span, Time};
use rackweave_sim::result::{LinkStats, MeasuredRoundTrip, MessageRecord, Outcome, QueueSample};

use super::{
    CurvePoint, PointSummary, SeedSpread, SizeBucket, Spread, StreamSummary, TrafficSample,
};
use crate::allreduce::{AllreduceSummary, StepSummary};
use crate::cast::{CastSummary, ReceiverSummary};
use crate::image::{ClientSummary, ImageSummary};
use crate::reduce::{JobSummary, ReduceSummary};
use rackweave_group::app::CastTimes;

/// One column: its heading with the unit, and its value in a row.
pub(crate) struct Column<T: 'static> {
    /// The heading in CSV files; empty if only the report has the column.
    pub(crate) name: &'static str,
    pub(crate) get: fn(&T) -> Value<'_>,
    /// How the report shows the column; `None` if only CSV files have it.
    pub(crate) shown: Option<Shown>,
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

const fn column<T>(name: &'static str, get: fn(&T) -> Value<'_>) -> Column<T> {
    Column { name, get, shown: None }
}

const fn shown<T>(name: &'static str, shown: Shown, get: fn(&T) -> Value<'_>) -> Column<T> {
    Column { name, get, shown: Some(shown) }
}

const PLAIN: Shown = Shown {
    group: "",
    name: "",
    unit: Unit::None,
    better: Better::Neither,
    of_messages: false,
    rank: 0,
    optional: false,
};
const MESSAGES: Shown = Shown { group: "messages", unit: Unit::Count, ..PLAIN };
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

/// The measures of a point, for CSV files and the report.
pub(crate) const POINT: &[Column<PointSummary>] = &[
    column("started", |p| p.messages.started.into()),
    shown("completed", Shown { name: "done", ..MESSAGES }, |p| p.messages.completed.into()),
    shown("", Shown { name: "missing", optional: true, rank: 1, ..MESSAGES }, |p| {
        p.messages.failed.saturating_add(p.messages.unfinished).into()
    }),
    column("failed", |p| p.messages.failed.into()),
    column("unfinished", |p| p.messages.unfinished.into()),
    shown("slowdown_p50", Shown { name: "p50", ..SLOWDOWN }, |p| p.slowdown.p50.into()),
    shown("slowdown_p99", Shown { name: "p99", ..SLOWDOWN }, |p| p.slowdown.p99.into()),
    column("slowdown_p999", |p| p.slowdown.p999.into()),
    shown("slowdown_mean", Shown { name: "mean", rank: 6, ..SLOWDOWN }, |p| p.slowdown.mean.into()),
    shown("latency_p50_us", Shown { name: "p50", rank: 4, ..LATENCY }, |p| p.latency_us.p50.into()),
    shown("latency_p99_us", Shown { name: "p99", rank: 3, ..LATENCY }, |p| p.latency_us.p99.into()),
    column("latency_p999_us", |p| p.latency_us.p999.into()),
    shown("latency_mean_us", Shown { name: "mean", rank: 7, ..LATENCY }, |p| {
        p.latency_us.mean.into()
    }),
    shown("goodput_gbps", GOODPUT, |p| p.goodput_gbps.into()),
    shown("drops", Shown { name: "drops", ..PACKETS }, |p| p.drops.into()),
    shown("trims", Shown { name: "trims", optional: true, rank: 8, ..PACKETS }, |p| p.trims.into()),
    shown("ecn_marks", Shown { name: "marks", optional: true, rank: 9, ..PACKETS }, |p| {
        p.ecn_marks.into()
    }),
    shown("queue_mean_bytes", Shown { name: "mean", rank: 10, ..QUEUE }, |p| {
        p.queue_bytes.mean.into()
    }),
    shown("queue_max_bytes", Shown { name: "max", rank: 5, ..QUEUE }, |p| p.queue_bytes.max.into()),
    column("packet_hops", |p| p.packet_hops.into()),
    column("events", |p| p.events.into()),
    column("cpu_s", |p| p.cpu_s.into()),
    column("simulated_us", |p| p.simulated_us.into()),
    column("measured_us", |p| p.measured_us.into()),
    column("end", |p| p.end.into()),
    column("left_out", |p| p.messages.left_out.into()),
    column("goodput_by_sender_min_gbps", |p| by_sender(p, |spread| spread.min)),
    column("goodput_by_sender_mean_gbps", |p| by_sender(p, |spread| spread.mean)),
    column("goodput_by_sender_max_gbps", |p| by_sender(p, |spread| spread.max)),
    column("busiest_port", |p| p.busiest_port.as_ref().map(|port| port.name.as_str()).into()),
    column("busiest_port_mean_queue_bytes", |p| {
        p.busiest_port.as_ref().map(|port| port.mean_queue_bytes).into()
    }),
    column("returned_to_sender", |p| p.returned_to_sender.into()),
];

/// Returns half the width of a measure's confidence interval, in a point that is the mean over seeds.
fn half_width(point: &PointSummary, of: fn(&SeedSpread) -> f64) -> Value<'_> {
    point.over_seeds.as_ref().map(of).into()
}

/// Means over seeds, for CSV files. `_ci95` is half the width of the confidence interval.
pub(crate) const OVER_SEEDS: &[Column<PointSummary>] = &[
    column("seeds", |p| p.over_seeds.as_ref().map(|spread| spread.seeds.len() as u64).into()),
    column("completed", |p| p.messages.completed.into()),
    column("failed", |p| p.messages.failed.into()),
    column("unfinished", |p| p.messages.unfinished.into()),
    column("slowdown_p50", |p| p.slowdown.p50.into()),
    column("slowdown_p50_ci95", |p| half_width(p, |spread| spread.slowdown.p50)),
    column("slowdown_p99", |p| p.slowdown.p99.into()),
    column("slowdown_p99_ci95", |p| half_width(p, |spread| spread.slowdown.p99)),
    column("slowdown_mean", |p| p.slowdown.mean.into()),
    column("slowdown_mean_ci95", |p| half_width(p, |spread| spread.slowdown.mean)),
    column("latency_p50_us", |p| p.latency_us.p50.into()),
    column("latency_p50_us_ci95", |p| half_width(p, |spread| spread.latency_us.p50)),
    column("latency_p99_us", |p| p.latency_us.p99.into()),
    column("latency_p99_us_ci95", |p| half_width(p, |spread| spread.latency_us.p99)),
    column("latency_mean_us", |p| p.latency_us.mean.into()),
    column("latency_mean_us_ci95", |p| half_width(p, |spread| spread.latency_us.mean)),
    column("latency_max_us", |p| p.latency_us.max.into()),
    column("latency_max_us_ci95", |p| half_width(p, |spread| spread.latency_us.max)),
    column("goodput_gbps", |p| p.goodput_gbps.into()),
    column("goodput_gbps_ci95", |p| half_width(p, |spread| spread.goodput_gbps)),
    column("drops", |p| p.drops.into()),
];

pub(crate) const BY_SIZE: &[Column<SizeBucket>] = &[
    column("up_to_bytes", |bucket| bucket.up_to_bytes.into()),
    column("count", |bucket| bucket.count.into()),
    column("slowdown_mean", |bucket| bucket.mean.into()),
    column("slowdown_p50", |bucket| bucket.p50.into()),
    column("slowdown_p99", |bucket| bucket.p99.into()),
    column("latency_p50_us", |bucket| bucket.latency_p50_us.into()),
    column("latency_p99_us", |bucket| bucket.latency_p99_us.into()),
    column("slowdown_p99_by_receiver", |bucket| bucket.p99_by_receiver.into()),
];

pub(crate) const CURVE: &[Column<CurvePoint>] = &[
    column("count_fraction", |step| step.count_fraction.into()),
    column("size_bytes", |step| step.size_bytes.into()),
    column("slowdown_p50", |step| step.p50.into()),
    column("slowdown_p99", |step| step.p99.into()),
];

pub(crate) const CDF: &[Column<(f64, f64)>] =
    &[column("latency_us", |step| step.0.into()), column("fraction", |step| step.1.into())];

pub(crate) const QUEUES: &[Column<QueueSample>] = &[
    column("time_us", |sample| sample.at.into()),
    column("max_bytes", |sample| sample.max_bytes.into()),
    column("total_bytes", |sample| sample.total_bytes.into()),
];

pub(crate) const TRAFFIC: &[Column<TrafficSample>] = &[
    column("traffic", |sample| Value::Text(sample.name.as_str().into())),
    column("from_us", |sample| sample.at.into()),
    column("bytes", |sample| sample.bytes.into()),
    column("gbps", |sample| sample.gbps.into()),
];

/// A circuit from a time on.
pub(crate) struct Circuit {
    pub(crate) from: Time,
    /// What it joins: "h3", "tor1".
    pub(crate) ends: (String, String),
}

pub(crate) const CIRCUITS: &[Column<Circuit>] = &[
    column("from_us", |circuit| circuit.from.into()),
    column("end", |circuit| Value::Text(circuit.ends.0.as_str().into())),
    column("other_end", |circuit| Value::Text(circuit.ends.1.as_str().into())),
];

pub(crate) const LINKS: &[Column<LinkStats>] = &[
    column("link", |link| link.name.as_str().into()),
    column("utilisation", |link| link.utilisation.into()),
    column("mean_queue_bytes", |link| link.mean_queue_bytes.into()),
    column("max_queue_bytes", |link| link.max_queue_bytes.into()),
    column("drops", |link| link.drops.into()),
];

fn latency(message: &MessageRecord) -> Option<Span> {
    match message.outcome {
        Outcome::Completed(at) => Some(at.since(message.start)),
        Outcome::Failed(_) | Outcome::Unfinished => None,
    }
}

pub(crate) const MESSAGE: &[Column<MessageRecord>] = &[
    column("stream", |message| u64::from(message.stream).into()),
    column("source", |message| message.src.into()),
    column("destination", |message| message.dst.into()),
    column("bytes", |message| message.bytes.into()),
    column("start_us", |message| message.start.into()),
    column("ideal_us", |message| message.ideal.into()),
    column("latency_us", |message| latency(message).into()),
    column("slowdown", |message| {
        latency(message)
            .map(|span| span.ticks() as f64 / message.ideal.ticks().max(1) as f64)
            .into()
    }),
    column("outcome", |message| match message.outcome {
        Outcome::Completed(_) => "completed".into(),
        Outcome::Failed(reason) => Value::Text(reason.to_string().into()),
        Outcome::Unfinished => "unfinished".into(),
    }),
];

pub(crate) const ROUND_TRIP: &[Column<MeasuredRoundTrip>] = &[
    column("stream", |trip| u64::from(trip.stream).into()),
    column("src", |trip| trip.src.into()),
    column("dst", |trip| trip.dst.into()),
    column("min_us", |trip| trip.min.into()),
    column("recent_us", |trip| trip.recent.into()),
    column("base_us", |trip| trip.base.into()),
    column("samples", |trip| trip.samples.into()),
];

/// The columns for a file of a cast.
pub(crate) const CAST_FILE: &[Column<CastTimes>] = &[
    column("file", |file| u64::from(file.cast).into()),
    column("bytes", |file| file.bytes.into()),
    column("begun_us", |file| file.begun.into()),
    column("ended_us", |file| file.ended.into()),
    column("send_us", |file| file.ended.map(|at| at.since(file.begun)).into()),
];

/// The delivery of a file to one receiver of a cast.
pub(crate) struct Arrival {
    pub(crate) host: HostId,
    pub(crate) file: u64,
    pub(crate) completed: Time,
    /// The time since the delivery of the previous file; `None` for the first file.
    pub(crate) wait: Option<Span>,
}

pub(crate) const CAST_RECEIVER: &[Column<Arrival>] = &[
    column("host", |arrival| arrival.host.into()),
    column("file", |arrival| arrival.file.into()),
    column("completed_us", |arrival| arrival.completed.into()),
    column("wait_us", |arrival| arrival.wait.into()),
];

const MICROS: Shown = Shown { unit: Unit::Micros, ..PLAIN };

/// The columns for a cast in the report.
pub(crate) const CAST: &[Column<CastSummary>] = &[
    shown("", Shown { name: "copied by", ..PLAIN }, |cast| cast.copied_by.into()),
    shown("", Shown { name: "execution", ..MICROS }, |cast| cast.execution_us.into()),
    shown("", Shown { name: "Gbit/s each", ..PLAIN }, |cast| cast.receiver_gbps.into()),
    shown("", Shown { name: "copies", ..PLAIN }, |cast| cast.copies.into()),
    shown("", Shown { name: "send p50", ..MICROS }, |cast| cast.send_us.p50.into()),
    shown("", Shown { name: "send p99", ..MICROS }, |cast| cast.send_us.p99.into()),
    shown("", Shown { name: "wait p50", ..MICROS }, |cast| cast.wait_us.p50.into()),
    shown("", Shown { name: "wait p99", ..MICROS }, |cast| cast.wait_us.p99.into()),
    shown("", Shown { name: "retransmitted", unit: Unit::Bytes, ..PLAIN }, |cast| {
        cast.repaired_bytes.into()
    }),
    shown("", Shown { name: "detached", unit: Unit::Count, ..PLAIN }, |cast| cast.detached.into()),
    shown("", Shown { name: "lost", unit: Unit::Count, ..PLAIN }, |cast| cast.lost.into()),
];

/// The columns for an image in the report.
pub(crate) const IMAGE: &[Column<ImageSummary>] = &[
    shown("", Shown { name: "mean", group: "run time", ..MICROS }, |i| i.run_us.mean.into()),
    shown("", Shown { name: "first", group: "run time", ..MICROS }, |i| i.run_us.min.into()),
    shown("", Shown { name: "last", group: "run time", ..MICROS }, |i| i.run_us.max.into()),
    shown("", Shown { name: "makespan", ..MICROS }, |i| i.makespan_us.into()),
    shown("", Shown { name: "copies", ..PLAIN }, |i| i.copies.into()),
    shown("", Shown { name: "duplicate share", ..PLAIN }, |i| i.duplicate_share.into()),
    shown("", Shown { name: "trunks", unit: Unit::Bytes, ..PLAIN }, |i| i.trunk_bytes.into()),
    shown("", Shown { name: "messages", unit: Unit::Count, ..PLAIN }, |i| i.messages.into()),
    shown("", Shown { name: "messages/s", ..PLAIN }, |i| i.messages_per_s.into()),
    shown("", Shown { name: "from clients", unit: Unit::Bytes, ..PLAIN }, |i| {
        i.from_peers_bytes.into()
    }),
    shown(
        "",
        Shown { name: "longest queue", group: "switches", unit: Unit::Count, ..PLAIN },
        |i| i.switches.max_queue.into(),
    ),
    shown("", Shown { name: "dropped", unit: Unit::Bytes, ..PLAIN }, |i| i.dropped_bytes.into()),
    shown("", Shown { name: "incomplete", unit: Unit::Count, ..PLAIN }, |i| i.incomplete.into()),
];

/// The columns for a client of an image, for `image_clients.csv` and the report.
pub(crate) const IMAGE_CLIENT: &[Column<ClientSummary>] = &[
    shown("host", Shown { name: "host", ..PLAIN }, |c| Value::Count(u64::from(c.host))),
    shown("start_us", Shown { name: "start", ..MICROS }, |c| c.start_us.into()),
    shown("receive_us", Shown { name: "received after", ..MICROS }, |c| c.receive_us.into()),
    shown("run_us", Shown { name: "run time", ..MICROS }, |c| c.run_us.into()),
    shown("concurrency", Shown { name: "beside others", ..PLAIN }, |c| c.concurrency.into()),
    shown("received_bytes", Shown { name: "received", unit: Unit::Bytes, ..PLAIN }, |c| {
        c.received_bytes.into()
    }),
    shown("from_peers_bytes", Shown { name: "from clients", unit: Unit::Bytes, ..PLAIN }, |c| {
        c.from_peers_bytes.into()
    }),
    shown("served_bytes", Shown { name: "served", unit: Unit::Bytes, ..PLAIN }, |c| {
        c.served_bytes.into()
    }),
    shown("duplicate_bytes", Shown { name: "again", unit: Unit::Bytes, ..PLAIN }, |c| {
        c.duplicate_bytes.into()
    }),
    shown("dropped_bytes", Shown { name: "dropped", unit: Unit::Bytes, ..PLAIN }, |c| {
        c.dropped_bytes.into()
    }),
    shown("requests", Shown { name: "requests", unit: Unit::Count, ..PLAIN }, |c| {
        c.requests.into()
    }),
    column("rerequests", |c| c.rerequests.into()),
];

/// The columns for jobs in the report.
pub(crate) const REDUCE: &[Column<ReduceSummary>] = &[
    shown("", Shown { name: "mean", group: "completion", ..MICROS }, |r| r.jct_us.mean.into()),
    shown("", Shown { name: "first", group: "completion", rank: 2, ..MICROS }, |r| {
        r.jct_us.min.into()
    }),
    shown("", Shown { name: "last", group: "completion", rank: 2, ..MICROS }, |r| {
        r.jct_us.max.into()
    }),
    shown("", Shown { name: "upload", ..MICROS }, |r| r.upload_us.mean.into()),
    shown("", Shown { name: "pairs to masters", ..PLAIN }, |r| r.to_master.into()),
    shown("", Shown { name: "at least", ..PLAIN }, |r| r.to_master_bound.into()),
    shown("", Shown { name: "trunks", unit: Unit::Bytes, rank: 1, ..PLAIN }, |r| {
        r.trunk_bytes.into()
    }),
    shown("", Shown { name: "exact", unit: Unit::Count, rank: 1, ..PLAIN }, |r| r.exact.into()),
    shown("", Shown { name: "finished", unit: Unit::Count, rank: 2, ..PLAIN }, |r| {
        r.finished.into()
    }),
    shown("", Shown { name: "unfinished", unit: Unit::Count, rank: 1, ..PLAIN }, |r| {
        r.unfinished.into()
    }),
];

/// The columns for a job, for `reduce_jobs.csv` and the report.
pub(crate) const REDUCE_JOB: &[Column<JobSummary>] = &[
    shown("job", Shown { name: "job", ..PLAIN }, |j| Value::Count(u64::from(j.job))),
    shown("master", Shown { name: "master", ..PLAIN }, |j| Value::Count(u64::from(j.master))),
    shown("workers", Shown { name: "workers", unit: Unit::Count, ..PLAIN }, |j| j.workers.into()),
    shown("bytes", Shown { name: "data", unit: Unit::Bytes, ..PLAIN }, |j| j.bytes.into()),
    shown("start_us", Shown { name: "start", ..MICROS }, |j| j.start_us.into()),
    shown("ready_us", Shown { name: "ready", ..MICROS }, |j| j.ready_us.into()),
    shown("granted_us", Shown { name: "upload begins", ..MICROS }, |j| j.granted_us.into()),
    shown("uploaded_us", Shown { name: "uploaded", ..MICROS }, |j| j.uploaded_us.into()),
    shown("finished_us", Shown { name: "finished", ..MICROS }, |j| j.finished_us.into()),
    shown("words", Shown { name: "words", unit: Unit::Count, ..PLAIN }, |j| j.words.into()),
    shown("pairs", Shown { name: "pairs", unit: Unit::Count, ..PLAIN }, |j| j.pairs.into()),
    shown("received", Shown { name: "to the master", unit: Unit::Count, ..PLAIN }, |j| {
        j.received.into()
    }),
    shown("epochs", Shown { name: "epochs", unit: Unit::Count, ..PLAIN }, |j| j.epochs.into()),
    column("slots", |j| j.slots.into()),
    column("missing", |j| j.missing.into()),
    column("wrong", |j| j.wrong.into()),
    column("exact", |j| u64::from(j.exact).into()),
];

/// The columns for an all-reduce in the report.
pub(crate) const ALLREDUCE: &[Column<AllreduceSummary>] = &[
    shown("", Shown { name: "workers", unit: Unit::Count, ..PLAIN }, |r| r.workers.into()),
    shown("", Shown { name: "vector", unit: Unit::Bytes, ..PLAIN }, |r| r.vector_bytes.into()),
    shown("", Shown { name: "mean", group: "step", ..MICROS }, |r| r.step_us.mean.into()),
    shown("", Shown { name: "longest", group: "step", ..MICROS }, |r| r.step_us.max.into()),
    shown("", Shown { name: "worker", group: "Gbit/s", ..PLAIN }, |r| r.worker_gbps.into()),
    shown("", Shown { name: "bus", group: "Gbit/s", ..PLAIN }, |r| r.bus_gbps.into()),
    shown("", Shown { name: "at most", group: "Gbit/s", ..PLAIN }, |r| r.bound_gbps.into()),
    shown("", Shown { name: "sent again", unit: Unit::Count, ..PLAIN }, |r| r.retransmitted.into()),
    shown("", Shown { name: "exact", unit: Unit::Count, ..PLAIN }, |r| r.exact.into()),
    shown("", Shown { name: "finished", unit: Unit::Count, ..PLAIN }, |r| r.finished.into()),
    shown("", Shown { name: "unfinished", unit: Unit::Count, ..PLAIN }, |r| r.unfinished.into()),
];

/// The columns for a step of an all-reduce, for `allreduce_steps.csv` and the report.
pub(crate) const ALLREDUCE_STEP: &[Column<StepSummary>] = &[
    shown("step", Shown { name: "step", ..PLAIN }, |s| s.step.into()),
    shown("start_us", Shown { name: "start", ..MICROS }, |s| s.start_us.into()),
    shown("end_us", Shown { name: "end", ..MICROS }, |s| s.end_us.into()),
    shown("step_us", Shown { name: "time", ..MICROS }, |s| s.step_us.into()),
    shown("exact", Shown { name: "exact at workers", unit: Unit::Count, ..PLAIN }, |s| {
        s.exact.into()
    }),
];

/// The columns for a stream beside the measured workload, for `streams.csv` and the report.
pub(crate) const STREAM: &[Column<StreamSummary>] = &[
    shown("stream", Shown { name: "stream", ..PLAIN }, |s| (&*s.label).into()),
    column("started", |s| s.messages.started.into()),
    shown("completed", Shown { name: "messages", unit: Unit::Count, ..PLAIN }, |s| {
        s.messages.completed.into()
    }),
    column("failed", |s| s.messages.failed.into()),
    column("unfinished", |s| s.messages.unfinished.into()),
    shown("slowdown_p50", Shown { name: "slowdown p50", ..PLAIN }, |s| s.slowdown.p50.into()),
    shown("slowdown_p99", Shown { name: "slowdown p99", ..PLAIN }, |s| s.slowdown.p99.into()),
    column("slowdown_mean", |s| s.slowdown.mean.into()),
    shown("latency_p50_us", Shown { name: "latency p50", ..MICROS }, |s| s.latency_us.p50.into()),
    shown("latency_p99_us", Shown { name: "latency p99", ..MICROS }, |s| s.latency_us.p99.into()),
    column("latency_mean_us", |s| s.latency_us.mean.into()),
    shown("goodput_gbps", Shown { name: "Gbit/s", ..PLAIN }, |s| s.goodput_gbps.into()),
];

/// The columns for a receiver of a cast in the report.
pub(crate) const RECEIVER: &[Column<ReceiverSummary>] = &[
    shown("", Shown { name: "host", ..PLAIN }, |r| Value::Text(r.host.to_string().into())),
    shown("", Shown { name: "completed", ..MICROS }, |r| r.completed_us.into()),
    shown("", Shown { name: "longest gap", ..MICROS }, |r| r.longest_gap_us.into()),
];
