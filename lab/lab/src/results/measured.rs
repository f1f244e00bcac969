//! From a run's messages and counters to the results of its point.

use std::collections::BTreeSet;

use rackweave_core::{DropReason, HostId, RecoveryCounters, Span, Time};
use rackweave_sim::config::{Dark, Pod, TrafficConfig};
use rackweave_sim::result::{MessageRecord, Outcome, RunResult};
use rackweave_workload::{Pattern, WorkloadConfig};

use super::collective::{CollectiveSummary, rank_iterations};
use super::stats::{self, Sample, Stats};
use super::{
    BacklogGrowth, BusiestPort, Capture, Halves, MessageCounts, PausedPort, PointResult,
    PointSummary, QueueBytes, RoundTripErrors, Spread, StreamSummary, TrafficSeries,
    WaitingMessage, capture_layout, end_name, naming,
};
use crate::faults;
use crate::offered::Offered;
use crate::scenario::{PointSpec, Unfinished};
use crate::study::StudySummary;

/// The number of steps of a slowdown curve.
const CURVE_STEPS: usize = 100;

impl PointResult {
    /// Computes the results of a run.
    #[must_use]
    pub fn new(index: usize, spec: &PointSpec, result: RunResult, cpu_s: f64) -> Self {
        // Kinds of workload are no streams of the configuration, but are measured like one.
        let first = usize::from(!spec.study.is_messages());
        let streams = spec.config.streams.len() + first;
        let by_stream = by_stream(&result.messages, streams);
        // The files of a cast have their own measured time; background streams are measured over the whole run.
        let whole_run = result.ended_at.since(Time::ZERO + spec.config.measure.warmup);
        let goodput = |stream: usize| {
            let bytes = result.delivered_bytes.get(stream).copied().unwrap_or(0);
            let span = if stream < first || first == 0 { result.measured } else { whole_run };
            if span.ticks() == 0 { 0.0 } else { bytes as f64 * 8e3 / span.as_ps() as f64 }
        };
        let hosts = spec.config.fabric.topology.hosts() as usize;
        let main = samples(&by_stream[0], &result, spec.unfinished);
        let (slowdown, latency_us) = distributions(&main);
        let window = Window::of(spec, &result, &by_stream[0]);
        let recovery = |stream: usize| recovery_of(&result, stream);
        let (background, all_streams) = streams_of(spec, &result, &by_stream, &goodput);
        let counters = &result.counters;
        let by_reason = DropReason::ALL.iter().zip(counters.drops).filter(|(_, drops)| *drops > 0);
        let summary = PointSummary {
            set: spec.set.iter().cloned().collect(),
            transport: spec.transport.clone(),
            label: spec.labels[0].clone(),
            messages: MessageCounts::of(&by_stream[0], spec.unfinished),
            slowdown,
            latency_us,
            goodput_gbps: goodput(0),
            goodput_by_sender_gbps: goodput_by_sender(spec, &result, &by_stream[0]),
            drops: counters.drops.iter().sum(),
            warmup_drops: result.dropped_before,
            trims: counters.trims,
            returned_to_sender: counters.returned_to_sender,
            ecn_marks: counters.ecn_marks,
            pauses: counters.pauses,
            most_paused: PausedPort::of(&result.links),
            deadlock: result.deadlock.clone(),
            retransmissions: recovery(0).map(|counters| counters.retransmissions),
            timeouts: recovery(0).map(|counters| counters.timeouts),
            queue_bytes: queue_bytes(&result, spec.config.measure.warmup),
            busiest_port: BusiestPort::of(result.links.get(hosts..).unwrap_or_default()),
            round_trips: RoundTripErrors::of(&result.round_trips),
            packet_hops: counters.packet_hops,
            events: counters.events,
            cpu_s,
            end: end_name(result.end),
            waiting: result.waiting.iter().map(WaitingMessage::of).collect(),
            backlog: result.backlog.map(|it| BacklogGrowth {
                since_us: it.since.as_us_f64(),
                from_bytes: it.from_bytes,
                to_bytes: it.to_bytes,
            }),
            by_size: stats::by_size(&main, &spec.size_buckets),
            simulated_us: result.ended_at.as_us_f64(),
            measured_us: result.measured.as_us_f64(),
            window_us: window.length().as_us_f64(),
            halves: spec.config.streams.first().filter(|_| first == 0).and_then(|stream| {
                window.halves(&by_stream[0], &result, &stream.workload, spec.unfinished)
            }),
            drops_by_reason: by_reason.map(|(r, n)| (r.name().to_owned(), n.into())).collect(),
            refused: result.refused,
            peak_packets: result.peak_packets,
            verified_messages: result.verified_messages,
            background,
            all_streams,
            collective: spec.config.streams.first().filter(|_| first == 0).and_then(|stream| {
                CollectiveSummary::new(stream, &spec.fabric, &result.ranks).map(Box::new)
            }),
            study: StudySummary::default(),
            doubts: Vec::new(),
            machine: None,
            full_links: Offered::of(spec).map_or_else(Vec::new, |it| it.full().collect()),
            cut_off: faults::cut_off(&spec.config.faults, result.ended_at),
            over_seeds: None,
        };
        let mut latencies: Vec<f64> = main.iter().map(|sample| sample.latency_us).collect();
        let traffic = traffic_series(spec, &result);
        Self {
            index,
            label: naming::label(&summary, spec.set.len(), true),
            variant: Vec::new(),
            summary,
            slowdown_curve: stats::slowdown_curve(&main, CURVE_STEPS),
            latency_cdf: stats::cdf(&mut latencies),
            queue_series: result.queue_series,
            links: result.links,
            round_trips: result.round_trips,
            goodput: result.goodput,
            messages: spec.messages_csv.then_some(result.messages),
            capture_layout: capture_layout(spec),
            capture_names: result.capture_names,
            capture: Capture::Packets(result.capture),
            ranks: rank_iterations(&result.ranks),
            detail: None,
            traffic,
            circuits: result.circuits,
            dark: spec.fabric.pod().map_or(Span::ZERO, Pod::dark_time),
            is_all_dark: spec.fabric.pod().is_some_and(|pod| pod.ocs.dark == Dark::All),
            lacks_rivals: false,
        }
    }
}

/// Returns the results of background streams, and of all streams together if messages are measured.
fn streams_of(
    spec: &PointSpec,
    result: &RunResult,
    by_stream: &[Vec<&MessageRecord>],
    goodput: &dyn Fn(usize) -> f64,
) -> (Vec<StreamSummary>, Option<StreamSummary>) {
    let first = usize::from(!spec.study.is_messages());
    let (streams, window) = (by_stream.len(), Window::of(spec, result, &by_stream[0]));
    let summary_of = |messages: &[&MessageRecord], names: [&str; 3], measured: Measured| {
        stream_summary(spec, result, messages, names, measured)
    };
    let halves = |stream: usize| {
        let workload = &spec.config.streams.get(stream.checked_sub(first)?)?.workload;
        window.halves(&by_stream[stream], result, workload, spec.unfinished)
    };
    let all_streams = (streams > 1 && first == 0).then(|| {
        let all: Vec<&MessageRecord> = by_stream.iter().flatten().copied().collect();
        summary_of(
            &all,
            ["all", &spec.transport, "all streams"],
            Measured {
                goodput_gbps: (0..streams).map(goodput).sum(),
                recovery: recovery_of_all(result),
                rounds: None,
                halves: None,
            },
        )
    });
    let background = by_stream.iter().enumerate().skip(1).map(|(stream, messages)| {
        let config = &spec.config.streams[stream - first];
        let arrivals = config.workload.pattern.name();
        let names = [arrivals, config.transport.name(), &spec.labels[stream]];
        let measured = Measured {
            goodput_gbps: goodput(stream),
            recovery: recovery_of(result, stream),
            rounds: window.rounds(&config.workload),
            halves: halves(stream),
        };
        summary_of(messages, names, measured)
    });
    (background.collect(), all_streams)
}

/// What is measured of a stream in addition to its messages.
struct Measured {
    goodput_gbps: f64,
    recovery: Option<RecoveryCounters>,
    rounds: Option<u64>,
    halves: Option<Halves>,
}

/// The measured window: the time in which messages start that are measured.
#[derive(Clone, Copy)]
struct Window {
    from: Time,
    /// The end, when the last measured message has started.
    until: Time,
}

impl Window {
    /// The least number of messages in a half: its 99th percentile is the fifth slowest.
    const LEAST_IN_HALF: usize = 500;

    fn of(spec: &PointSpec, result: &RunResult, measured: &[&MessageRecord]) -> Self {
        let measure = &spec.config.measure;
        let from = (Time::ZERO + measure.warmup).min(result.ended_at);
        let last = measured.last().map_or(from, |message| message.start + Span::TICK);
        let until = match measure.duration {
            Some(_) => measure.until().min(result.ended_at),
            None if spec.study.is_messages() => last,
            // What runs next to a kind of workload is measured over the whole run.
            None => result.ended_at,
        };
        Self { from, until: until.max(from) }
    }

    fn length(self) -> Span {
        self.until.since(self.from)
    }

    /// Returns how many rounds of an incast that recurs begin in the window; `None` for other workloads.
    fn rounds(self, workload: &WorkloadConfig) -> Option<u64> {
        let Pattern::RecurringIncast { every, .. } = workload.pattern else { return None };
        // The workload starts messages at its end too.
        let stop = Time::ZERO.saturating_add(workload.stop).saturating_add(Span::TICK);
        let start = Time::ZERO + workload.start;
        let before = |at: Time| at.ticks().saturating_sub(start.ticks()).div_ceil(every.ticks());
        Some(before(self.until.min(stop)).saturating_sub(before(self.from)))
    }

    /// Returns the slowdown in both halves, if the workload goes on over the window and they have enough messages.
    fn halves(
        self,
        messages: &[&MessageRecord],
        result: &RunResult,
        workload: &WorkloadConfig,
        unfinished: Unfinished,
    ) -> Option<Halves> {
        let goes_on = matches!(
            workload.pattern,
            Pattern::OpenLoop { .. }
                | Pattern::ClosedLoop { .. }
                | Pattern::Periodic { .. }
                | Pattern::RecurringIncast { .. }
        );
        let middle = self.from + self.length() / 2;
        let at = messages.partition_point(|message| message.start < middle);
        let (first, second) = messages.split_at(at);
        if !goes_on || first.len().min(second.len()) < Self::LEAST_IN_HALF {
            return None;
        }
        let slowdowns = |half: &[&MessageRecord]| {
            let samples = samples(half, result, unfinished);
            samples.iter().map(|sample| sample.slowdown).collect::<Vec<f64>>()
        };
        let mut halves = [slowdowns(first), slowdowns(second)];
        let differ = stats::tails_differ([&halves[0], &halves[1]]);
        Some(Halves::new(halves.each_mut().map(|half| Stats::of(half).p99), differ))
    }
}

/// Returns the counters of the transport of a stream, if they are known.
fn recovery_of(result: &RunResult, stream: usize) -> Option<RecoveryCounters> {
    let is_of = |streams: &[u16]| streams.iter().any(|of| usize::from(*of) == stream);
    result.recovery.iter().find(|recovery| is_of(&recovery.streams)).map(|it| it.counters)
}

/// Returns the sums over all transports; each counts once.
fn recovery_of_all(result: &RunResult) -> Option<RecoveryCounters> {
    let mut sum = None;
    for recovery in &result.recovery {
        *sum.get_or_insert_with(RecoveryCounters::default) += recovery.counters;
    }
    sum
}

/// What became of the messages of a stream, whose `names` are those of its arrivals and its transport, and its label.
fn stream_summary(
    spec: &PointSpec,
    result: &RunResult,
    messages: &[&MessageRecord],
    names: [&str; 3],
    measured: Measured,
) -> StreamSummary {
    let (slowdown, latency_us) = distributions(&samples(messages, result, spec.unfinished));
    let [arrivals, transport, label] = names.map(str::to_owned);
    let messages = MessageCounts::of(messages, spec.unfinished);
    StreamSummary {
        arrivals,
        transport,
        label,
        messages,
        slowdown,
        latency_us,
        goodput_gbps: measured.goodput_gbps,
        rounds: measured.rounds,
        halves: measured.halves,
        retransmissions: measured.recovery.map(|counters| counters.retransmissions),
        timeouts: measured.recovery.map(|counters| counters.timeouts),
    }
}

/// The goodput of each host that sends measured messages, or would: in a closed loop, a host that starts no message is starved by the hosts
/// that it waits for.
fn goodput_by_sender(
    spec: &PointSpec,
    result: &RunResult,
    messages: &[&MessageRecord],
) -> Option<Spread> {
    let mut senders: BTreeSet<HostId> = messages.iter().map(|message| message.src).collect();
    if let Some(workload) = spec.config.streams.first().map(|stream| &stream.workload)
        && spec.study.is_messages()
        && let (Pattern::ClosedLoop { .. }, Some(range)) = (&workload.pattern, &workload.senders)
    {
        senders.extend(range.clone().map(HostId));
    }
    Spread::of(senders.iter().filter_map(|sender| {
        let bytes = result.delivered_by_sender.get(sender.0 as usize)?;
        (result.measured.ticks() > 0).then(|| *bytes as f64 * 8e3 / result.measured.as_ps() as f64)
    }))
}

impl MessageCounts {
    fn of(messages: &[&MessageRecord], unfinished: Unfinished) -> Self {
        let mut counts = Self { started: messages.len() as u64, ..Self::default() };
        for message in messages {
            match message.outcome {
                Outcome::Completed(_) => counts.completed += 1,
                Outcome::Failed(_) => counts.failed += 1,
                Outcome::Unfinished => counts.unfinished += 1,
            }
        }
        if unfinished == Unfinished::LeaveOut {
            counts.left_out = counts.unfinished;
        }
        counts
    }
}

/// Returns the traffic that a run has counted over time.
fn traffic_series(spec: &PointSpec, result: &RunResult) -> Vec<TrafficSeries> {
    let series = |(of, bytes): (&TrafficConfig, &Vec<u64>)| TrafficSeries {
        name: of.name.clone(),
        interval: of.interval,
        bytes: bytes.clone(),
    };
    spec.config.measure.traffic.iter().zip(&result.traffic).map(series).collect()
}

/// Returns the messages of each stream.
fn by_stream(messages: &[MessageRecord], streams: usize) -> Vec<Vec<&MessageRecord>> {
    let mut by_stream: Vec<Vec<&MessageRecord>> = vec![Vec::new(); streams];
    for message in messages {
        if let Some(stream) = by_stream.get_mut(usize::from(message.stream)) {
            stream.push(message);
        }
    }
    by_stream
}

fn queue_bytes(result: &RunResult, warmup: Span) -> QueueBytes {
    let measured = result.queue_series.iter().filter(|sample| sample.at >= Time::ZERO + warmup);
    QueueBytes {
        mean: result.mean_queue_bytes,
        max: result.max_queue_bytes,
        max_switch: measured.map(|sample| sample.max_switch_bytes).max(),
    }
}

fn samples(messages: &[&MessageRecord], result: &RunResult, unfinished: Unfinished) -> Vec<Sample> {
    let counts = |message: &&&MessageRecord| {
        unfinished == Unfinished::Count || message.outcome != Outcome::Unfinished
    };
    messages.iter().filter(counts).map(|message| Sample::of(message, result.ended_at)).collect()
}

/// Returns the statistics of slowdown and latency.
fn distributions(samples: &[Sample]) -> (Stats, Stats) {
    let mut slowdowns: Vec<f64> = samples.iter().map(|sample| sample.slowdown).collect();
    let mut latencies: Vec<f64> = samples.iter().map(|sample| sample.latency_us).collect();
    (Stats::of(&mut slowdowns), Stats::of(&mut latencies))
}
