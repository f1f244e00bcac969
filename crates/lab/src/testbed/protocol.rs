//! The messages between the coordinator and its workers: a JSON document a line. The coordinator writes to a worker's
//! standard input, the worker to its standard output.

use std::net::SocketAddr;

use rackweave_core::{FailReason, RoundTrip, Span};
use rackweave_group::app::Report;
use rackweave_sim::result::{Counters, LinkStats, QueueSample};
use rackweave_wire::pcapng::Frame;
use serde::{Deserialize, Serialize};

/// What a process of a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub enum Role {
    /// The fabric's switches.
    Switch,
    /// A host.
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

/// The first thing that a worker reads. From it and the scenario it works out what it will send.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Setup {
    pub(super) role: Role,
    /// Who has started it: without this process it ends.
    pub(super) parent: u32,
    /// Both are the same program, or nothing works.
    pub(super) version: String,
    pub(super) file: String,
    pub(super) text: String,
    pub(super) folder: String,
    /// Arguments of `--set` that leave one point.
    pub(super) sets: Vec<String>,
    pub(super) seed: u64,
    pub(super) overlay: bool,
    /// The network namespace to work in.
    pub(super) namespace: Option<String>,
}

/// A command to a worker.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) enum Command {
    /// Take your addresses; load begins at `start_ps` of the clock.
    Bind(Bind),
    /// All are there: get to know your peers.
    Greet,
    /// Send the last report, and end.
    Stop,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Bind {
    /// The clock's origin.
    pub(super) origin_ns: u64,
    pub(super) start_ps: u64,
    /// Of a host: where its sockets are to be; port 0: anywhere.
    pub(super) at: Vec<SocketAddr>,
    /// Of a host in the overlay: its port of the switch.
    pub(super) switch: Option<SocketAddr>,
    /// Of a host that begins a new incarnation: when it lost the one before, since `start_ps`.
    pub(super) crashed_ps: Option<u64>,
}

/// A message from a worker.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) enum WorkerMessage {
    /// It has read the scenario.
    Up,
    /// It has its addresses: a host's sockets, or the switch's ports by host.
    Bound(Vec<Option<SocketAddr>>),
    Records(Records),
    HostEnd(Box<HostEnd>),
    SwitchEnd(Box<SwitchEnd>),
    /// It can't go on.
    Failed(String),
}

/// What became of messages since the last report. All times are since the start of load, in picoseconds.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Records {
    /// All that happened up to here has been reported.
    pub(super) until: u64,
    /// The first stream of messages has ended here: nothing will start, and nothing is under way.
    pub(super) idle: bool,
    pub(super) started: Vec<Started>,
    pub(super) ended: Vec<Ended>,
    pub(super) arrived: Vec<Arrived>,
}

/// A message that this host has started.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Started {
    #[serde(rename = "i")]
    pub(super) key: u64,
    /// The endpoint that took it, and its id there.
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

/// A message that this host had started, and that is complete, as far as this host knows, or has failed.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Ended {
    #[serde(rename = "i")]
    pub(super) key: u64,
    #[serde(rename = "t")]
    pub(super) at: u64,
    #[serde(rename = "f", skip_serializing_if = "Option::is_none", default)]
    pub(super) failed: Option<FailReason>,
}

/// A message that has arrived at this host, or bytes of it.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Arrived {
    /// Its id in the transport. Of a message on a channel, which has a key, only the low bit counts: it is set in
    /// responses.
    #[serde(rename = "i")]
    pub(super) id: u64,
    /// The key of a message on a channel, as the host that started the exchange names it.
    #[serde(rename = "k", skip_serializing_if = "Option::is_none", default)]
    pub(super) key: Option<u64>,
    #[serde(rename = "o")]
    pub(super) endpoint: u8,
    #[serde(rename = "p")]
    pub(super) peer: u32,
    /// The bytes that are new, if the message is not whole.
    #[serde(rename = "b")]
    pub(super) bytes: u64,
    #[serde(rename = "e")]
    pub(super) whole: bool,
    #[serde(rename = "t")]
    pub(super) at: u64,
}

/// A host's report at its end.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct HostEnd {
    pub(super) cpu_s: f64,
    /// Datagrams sent and received.
    pub(super) packets: u64,
    /// Messages that were refused.
    pub(super) refused: u64,
    pub(super) verified: u64,
    pub(super) lag: Lag,
    pub(super) round_trips: Vec<MeasuredRoundTrips>,
    /// Of a run with files to many.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) cast: Option<CastEnd>,
}

/// What a host of a cast reports at its end.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct CastEnd {
    pub(super) report: Report,
    /// Bytes that have left by the host's interface since load began, as on Ethernet.
    pub(super) link_bytes: u64,
}

/// How late a host started its messages.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct Lag {
    /// The number of messages.
    pub(super) starts: u64,
    pub(super) p99: Span,
    pub(super) max: Span,
}

/// What the transport of an endpoint has measured.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct MeasuredRoundTrips {
    pub(super) endpoint: u8,
    pub(super) trips: Vec<RoundTrip>,
}

/// The switch's report at its end.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct SwitchEnd {
    pub(super) cpu_s: f64,
    pub(super) counters: Counters,
    pub(super) queues: Vec<QueueSample>,
    pub(super) links: Vec<LinkStats>,
    pub(super) capture: Vec<Frame>,
    /// Packets that were lost elsewhere than in its queues: where, and how many.
    pub(super) lost: Vec<(String, u64)>,
    /// How late it was: the 99th percentile and the worst.
    pub(super) late_p99: Span,
    pub(super) late_max: Span,
}
