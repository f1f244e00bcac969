//! The messages between the coordinator and its workers, as one JSON document per line. The coordinator writes to a
//! worker's standard input, the worker to its standard output.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use rackweave_aggregation::Failure;
use rackweave_core::{FailReason, RecoveryCounters, RoundTrip, Span, Time};
use rackweave_lab::study::image::{ClientReport, ServerReport};
use rackweave_lab::study::reduce::job::{Errors, Record};
use rackweave_orca::app::Report;
use rackweave_sim::config::Circuits;
use rackweave_sim::result::{Counters, LinkStats, QueueSample};
use rackweave_wire::pcapng::Frame;
use serde::{Deserialize, Serialize};

/// The role of a process in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub enum Role {
    /// All switches of the fabric.
    Switch,
    /// The host with this number.
    Host(u32),
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Switch => f.write_str("the switch"),
            Self::Host(host) => write!(f, "host {host}"),
        }
    }
}

/// The first message to a worker. From it and the scenario, the worker derives what it will send.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Setup {
    pub(super) role: Role,
    /// The process id of the coordinator. The worker ends when that process ends.
    pub(super) parent: u32,
    /// The version of the coordinator, which must be that of the worker.
    pub(super) version: String,
    pub(super) file: String,
    pub(super) text: String,
    pub(super) folder: String,
    /// The arguments of `--set` that select one point.
    pub(super) sets: Vec<String>,
    pub(super) seed: u64,
    pub(super) overlay: bool,
    /// The network namespace of the worker; `None` in the overlay.
    pub(super) namespace: Option<String>,
    /// The folder with the image, if the workload is one, in which clients create their targets.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) image: Option<PathBuf>,
}

/// A command to a worker.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) enum Command {
    /// The worker binds its addresses. The load starts at `start_ticks` of the clock.
    Bind(Bind),
    /// All workers are ready: the host greets its peers.
    Greet,
    /// The host lets the upload of a job begin whose master it is, with so many slots.
    Grant {
        /// The job.
        job: u16,
        /// 0: the master adds up.
        slots: u32,
    },
    /// The switch changes its circuits, and answers with [`WorkerMessage::Moved`].
    Move(WireCircuits),
    /// The worker sends its last report and ends.
    Stop,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Bind {
    /// The origin of the clock, in nanoseconds of the system's monotonic clock.
    pub(super) origin_ns: u64,
    pub(super) start_ticks: u64,
    /// For a host, the addresses of its sockets; port 0 means any port.
    pub(super) at: Vec<SocketAddr>,
    /// For a host in the overlay, its port of the switch.
    pub(super) switch: Option<SocketAddr>,
    /// For a host that begins a new incarnation, the time since `start_ticks` at which the previous one crashed.
    pub(super) crashed_ticks: Option<u64>,
}

/// A message from a worker.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) enum WorkerMessage {
    /// The worker has read the scenario.
    Up,
    /// The worker has bound its addresses: a host's sockets, or the switch's ports by host.
    Bound(Vec<Option<SocketAddr>>),
    Records(Records),
    /// The switch has begun to change circuits; its ports are lit again at this time of the clock, in ticks.
    Moved(u64),
    HostEnd(Box<HostEnd>),
    SwitchEnd(Box<SwitchEnd>),
    /// The worker cannot continue, for this reason.
    Failed(String),
}

/// What happened to messages since the last report. All times are in ticks since the start of the load.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Records {
    /// The time up to which everything has been reported.
    pub(super) until: u64,
    /// Whether the first stream of messages has ended at this host: nothing will start, and nothing is in flight.
    pub(super) idle: bool,
    pub(super) started: Vec<Started>,
    pub(super) ended: Vec<Ended>,
    pub(super) arrived: Vec<Arrived>,
    /// The jobs whose master is at this host.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(crate) jobs: Vec<JobEnd>,
}

/// Circuits on their way between processes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) enum WireCircuits {
    None,
    Servers(Vec<u16>),
    Tors(Vec<(u16, u16)>),
}

impl From<&Circuits> for WireCircuits {
    fn from(circuits: &Circuits) -> Self {
        match circuits {
            Circuits::None => Self::None,
            Circuits::Servers(tors) => Self::Servers(tors.clone()),
            Circuits::Tors(pairs) => Self::Tors(pairs.clone()),
        }
    }
}

impl From<WireCircuits> for Circuits {
    fn from(circuits: WireCircuits) -> Self {
        match circuits {
            WireCircuits::None => Self::None,
            WireCircuits::Servers(tors) => Self::Servers(tors),
            WireCircuits::Tors(pairs) => Self::Tors(pairs),
        }
    }
}

/// A message that this host has started.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Started {
    #[serde(rename = "i")]
    pub(super) key: u64,
    /// The endpoint that accepted it, and its id there; `None` if none did.
    #[serde(rename = "w", skip_serializing_if = "Option::is_none", default)]
    pub(super) wire: Option<(u8, u64)>,
    #[serde(rename = "s")]
    pub(super) stream: u16,
    #[serde(rename = "d")]
    pub(super) dst: u32,
    #[serde(rename = "b")]
    pub(super) bytes: u64,
    #[serde(rename = "t")]
    pub(super) at: u64,
}

/// A message of this host that, as far as this host knows, is complete or has failed.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Ended {
    #[serde(rename = "i")]
    pub(super) key: u64,
    #[serde(rename = "t")]
    pub(super) at: u64,
    #[serde(rename = "f", skip_serializing_if = "Option::is_none", default)]
    pub(super) failed: Option<FailReason>,
}

/// The arrival of a message, or of bytes of it, at this host.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Arrived {
    /// Its id in the transport. For a message on a channel, which has a key, only the lowest bit counts, which is set
    /// in responses.
    #[serde(rename = "i")]
    pub(super) id: u64,
    /// The key of a message on a channel, as assigned by the host that started the exchange.
    #[serde(rename = "k", skip_serializing_if = "Option::is_none", default)]
    pub(super) key: Option<u64>,
    #[serde(rename = "o")]
    pub(super) endpoint: u8,
    #[serde(rename = "p")]
    pub(super) peer: u32,
    /// The number of new bytes, if the message is not complete.
    #[serde(rename = "b")]
    pub(super) bytes: u64,
    #[serde(rename = "e")]
    pub(super) whole: bool,
    #[serde(rename = "t")]
    pub(super) at: u64,
}

/// A host's report at its end.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct HostEnd {
    pub(super) cpu_s: f64,
    /// The number of datagrams sent and received.
    pub(super) packets: u64,
    /// The number of messages that transports refused.
    pub(super) refused: u64,
    pub(super) verified: u64,
    pub(super) lag: Lag,
    pub(super) round_trips: Vec<MeasuredRoundTrips>,
    /// How often each endpoint had to repair losses, by its number; none of endpoints that use the kernel's TCP.
    #[serde(default)]
    pub(super) recovery: Vec<(u8, RecoveryCounters)>,
    #[serde(default)]
    pub(super) work: HostWork,
    /// The report on the workload, if it is of a kind.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) study: Option<StudyEnd>,
}

/// What a host's process has done since it was ready for the load.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct HostWork {
    /// The elapsed time, and the time of processors.
    pub(crate) seconds: f64,
    pub(crate) cpu_s: f64,
    /// Messages that the application has passed to transports, and was given by them.
    pub(crate) submitted: u64,
    pub(crate) delivered: u64,
    /// Datagrams, and system calls that moved some.
    pub(crate) sent: u64,
    pub(crate) send_calls: u64,
    pub(crate) received: u64,
    pub(crate) receive_batches: u64,
    /// Pairs and sums in the datagrams, of hosts with jobs.
    pub(crate) sent_pairs: u64,
    pub(crate) received_pairs: u64,
    /// How often its threads have gone to sleep.
    pub(crate) sleeps: u64,
    /// Bytes on the host's link in either direction, which the switch has counted.
    #[serde(default)]
    pub(crate) sent_bytes: u64,
    #[serde(default)]
    pub(crate) received_bytes: u64,
}

/// What the switch's process has done since it was ready for the load.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct SwitchWork {
    /// The elapsed time, and the time of processors.
    pub(crate) seconds: f64,
    pub(crate) cpu_s: f64,
    /// Turns that have found something to do.
    pub(crate) turns: u64,
    /// How often its threads have gone to sleep.
    pub(crate) sleeps: u64,
    /// Frames passed on, and their bytes on links.
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// Frames that have entered the fabric.
    pub(crate) received: u64,
    /// Pairs that programs have added up.
    pub(crate) pairs: u64,
}

/// A host's report on a kind of workload.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) enum StudyEnd {
    Cast(CastEnd),
    Image(ImageEnd),
    Reduce(ReduceEnd),
}

impl StudyEnd {
    /// Returns reasons to doubt the results, for which host this number stands.
    pub(super) fn doubts(&self, host: u32) -> Vec<String> {
        match self {
            Self::Cast(_) => Vec::new(),
            Self::Image(end) => {
                let problem = end.problem.iter();
                problem.map(|problem| format!("host {host}: {problem}")).collect()
            }
            Self::Reduce(end) => {
                let failed =
                    |job: &JobEnd| Some(format!("job {}: {}", job.job, job.failed.as_ref()?));
                end.jobs.iter().filter_map(failed).collect()
            }
        }
    }
}

/// A host's report on the jobs whose master it is.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct ReduceEnd {
    pub(crate) jobs: Vec<JobEnd>,
}

/// How far a job has come. Times are in ticks since the start of the load.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct JobEnd {
    pub(crate) job: u16,
    started: Option<u64>,
    ready: Option<u64>,
    granted: Option<u64>,
    uploaded: Option<u64>,
    finished: Option<u64>,
    /// Why it failed.
    pub(super) failed: Option<String>,
    exact: bool,
    words: u64,
    /// Words missing, words wrong, occurrences missing, and occurrences.
    errors: [u64; 4],
    pairs: u64,
    received: u64,
    epochs: u16,
    slots: u32,
}

impl JobEnd {
    pub(super) fn new(job: u16, record: &Record) -> Self {
        let ticks = |time: Option<Time>| time.map(|time| time.ticks());
        Self {
            job,
            started: ticks(record.started),
            ready: ticks(record.ready),
            granted: ticks(record.granted),
            uploaded: ticks(record.uploaded),
            finished: ticks(record.finished),
            failed: record.failed.map(|failure| failure.to_string()),
            exact: record.exact,
            words: record.words,
            errors: [
                record.errors.missing,
                record.errors.wrong,
                record.errors.lost,
                record.errors.occurrences,
            ],
            pairs: record.pairs,
            received: record.received,
            epochs: record.epochs,
            slots: record.slots,
        }
    }

    /// Returns the record, in which the reason of a failure is only that its master has reported one.
    pub(crate) fn record(&self) -> Record {
        let time = |ps: Option<u64>| ps.map(Time::from_ticks);
        let [missing, wrong, lost, occurrences] = self.errors;
        Record {
            started: time(self.started),
            // Data are at the workers before a job starts.
            distributed: time(self.started),
            ready: time(self.ready),
            granted: time(self.granted),
            uploaded: time(self.uploaded),
            finished: time(self.finished),
            failed: self.failed.as_ref().map(|_| Failure::Refused),
            exact: self.exact,
            words: self.words,
            errors: Errors { missing, wrong, lost, occurrences },
            pairs: self.pairs,
            received: self.received,
            epochs: self.epochs,
            slots: self.slots,
        }
    }
}

/// A host's report on an image at its end.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct ImageEnd {
    /// The client's report, if the host is one.
    pub(crate) client: Option<ClientReport>,
    /// The server's report, if the host is the server.
    pub(crate) server: Option<ServerReport>,
    /// Why the image was not fetched, or could not be served.
    pub(super) problem: Option<String>,
    /// The number of bytes sent over the host's interface since the load started, including Ethernet's preamble and
    /// gap.
    pub(crate) link_bytes: u64,
}

/// A host's report on a cast at its end.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct CastEnd {
    pub(crate) report: Report,
    /// The number of bytes sent over the host's interface since the load started, including Ethernet's preamble and
    /// gap.
    pub(crate) link_bytes: u64,
}

/// The delays with which a host started its messages.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct Lag {
    /// The number of messages that were started.
    pub(super) starts: u64,
    pub(super) p99: Span,
    pub(super) max: Span,
}

/// The round trips that the transport of an endpoint has measured.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct MeasuredRoundTrips {
    pub(super) endpoint: u8,
    pub(super) trips: Vec<RoundTrip>,
}

/// The switch's report at its end.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct SwitchEnd {
    pub(super) cpu_s: f64,
    #[serde(default)]
    pub(super) work: SwitchWork,
    pub(crate) counters: Counters,
    pub(super) queues: Vec<QueueSample>,
    pub(crate) links: Vec<LinkStats>,
    pub(super) capture: Vec<Frame>,
    /// What the programs of all switches have counted, by name.
    pub(crate) program: BTreeMap<String, u64>,
    /// The circuits over time, in ticks since the start of the load; empty without an optical circuit switch.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(super) circuits: Vec<(u64, WireCircuits)>,
    /// The packets that were lost elsewhere than in its queues: the place, and their number.
    pub(super) lost: Vec<(String, u64)>,
    /// The lateness of frames that left the switch: the 99th percentile, and then the largest.
    pub(super) late_p99: Span,
    pub(super) late_max: Span,
}
