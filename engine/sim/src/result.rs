//! The result of a run.

use crate::config::Circuits;
use rackweave_core::{HostId, RecoveryCounters, Span, Time};
pub use rackweave_switch::net::{Captured, Counters, LinkStats, QueueSample};
use rackweave_wire::Header;
pub use rackweave_workload::app::{MessageRecord, Outcome};
pub use rackweave_workload::collective::RankReport;

/// The reason why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub enum End {
    /// Every measured message completed or failed.
    AllDone,
    /// The time limit was reached.
    TimeLimit,
    /// No event was left, but messages were unfinished.
    Stalled,
    /// More packets were under way than [`crate::Control::packet_limit`].
    PacketLimit,
    /// The caller cancelled it.
    Cancelled,
    /// The load exceeds what the network carries: the bytes of unfinished messages grew with time, and the last measured message may never
    /// end.
    Overloaded,
    /// Measured messages waited 200 times as long as all of them took to start.
    Starved,
    /// All measured messages that were unfinished are of hosts that faults have cut off for good, and their transports do not report it.
    CutOff,
    /// Ports of switches waited for each other, and none would ever have sent ([`RunResult::deadlock`]).
    Deadlock,
    /// Packets had crossed more links than [`crate::config::MeasureConfig::hop_limit`].
    HopLimit,
    /// The caller ended it after some time of its own clock: what it has depends on the machine.
    PointLimit,
}

/// How the bytes of unfinished messages grew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Backlog {
    /// The time from which on they were observed.
    pub since: Time,
    /// The least bytes in the first part of that time.
    pub from_bytes: u64,
    /// The least bytes in the last part.
    pub to_bytes: u64,
}

/// A measured message for which a run waits, or waited when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Waiting {
    /// Its stream.
    pub stream: u16,
    /// The host that started it.
    pub src: HostId,
    /// The other end.
    pub dst: HostId,
    /// Its length.
    pub bytes: u64,
    /// The bytes that had not arrived, with those of the response; `None` in a run that is divided into windows, which does not count
    /// them by message.
    pub left: Option<u64>,
    /// When it started.
    pub since: Time,
}

impl Waiting {
    /// The most messages that are named.
    pub const MOST: usize = 8;

    /// Keeps the messages that have waited longest.
    pub(crate) fn longest(all: &mut Vec<Self>, most: usize) {
        all.sort_unstable_by_key(|it| (it.since, it.src, it.dst, it.bytes));
        all.truncate(most);
    }
}

/// A transport's measurements of the round trip between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct MeasuredRoundTrip {
    /// The first of the run's streams that uses this transport.
    pub stream: u16,
    /// The host that measured.
    pub src: HostId,
    /// The peer that it measured the round trip to.
    pub dst: HostId,
    /// The smallest recent round trip.
    pub min: Span,
    /// The latest round trip.
    pub recent: Span,
    /// The round trip on the idle fabric ([`crate::Fabric::base_rtt_between`]): a full data packet of this transport
    /// to the peer, and the smallest packet back.
    pub base: Span,
    /// The number of measurements.
    pub samples: u64,
}

/// How often one of a run's transports had to repair losses, at all hosts together, over the whole run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct TransportRecovery {
    /// The streams that use this transport.
    pub streams: Vec<u16>,
    /// The sums over all hosts.
    pub counters: RecoveryCounters,
}

/// Payload that receivers have stored over time, from the start of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Goodput {
    /// The length of an interval.
    pub interval: Span,
    /// The bytes of each interval, by stream; intervals after the last byte are missing.
    pub bytes: Vec<Vec<u64>>,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct RunResult<H = Header> {
    /// The reason why it ended.
    pub end: End,
    /// Simulated time at the end.
    pub ended_at: Time,
    /// The time in which messages were measured: from the end of the warm-up to the last outcome.
    pub measured: Span,
    /// Measured messages of all streams, in the order of their start.
    pub messages: Vec<MessageRecord>,
    /// What each rank of the first stream's collective has done; empty without one.
    pub ranks: Vec<RankReport>,
    /// Payload bytes of complete and incomplete messages that receivers stored in the measured time, by stream.
    pub delivered_bytes: Vec<u64>,
    /// The same bytes for the first stream, by the host that started the message (or sent the request).
    pub delivered_by_sender: Vec<u64>,
    /// All payload over time, by stream.
    pub goodput: Goodput,
    /// Round trips that transports measured, by transport, then host, then peer.
    pub round_trips: Vec<MeasuredRoundTrip>,
    /// Repairs of losses, for each transport; those of the kernel's transports and of group systems are not known.
    pub recovery: Vec<TransportRecovery>,
    /// Counts of the whole run, warm-up included.
    pub counters: Counters,
    /// The drops among them before the statistics of ports began; `None` if that is not known.
    pub dropped_before: Option<u64>,
    /// Messages that transports refused at submission.
    pub refused: u64,
    /// Time-averaged bytes in a switch port's queue, over all switch ports, since
    /// statistics of ports began.
    pub mean_queue_bytes: f64,
    /// Most bytes that any switch port's queue held since then.
    pub max_queue_bytes: u64,
    /// Samples of the queues over time.
    pub queue_series: Vec<QueueSample>,
    /// Statistics of all links, in the fabric's order.
    pub links: Vec<LinkStats>,
    /// For each of the configured kinds of traffic, the bytes of each interval, preamble and gap included.
    pub traffic: Vec<Vec<u64>>,
    /// The circuits since the run began, and the time from which each of them was in force; empty without an optical circuit
    /// switch.
    pub circuits: Vec<(Time, Circuits)>,
    /// Names of the capture's interfaces.
    pub capture_names: Vec<String>,
    /// The captured packets of all interfaces, in the order in which they were sent.
    pub capture: Vec<Captured<H>>,
    /// Measured messages that were unfinished at the end: the ones that had waited longest.
    pub waiting: Vec<Waiting>,
    /// How the bytes of unfinished messages grew, if the run ended because of it.
    pub backlog: Option<Backlog>,
    /// The names of the links of a cycle of ports that waited for each other, if the run ended because of it: each was paused by the
    /// switch at its end, where its packets waited for the next link. The last waited for the first.
    pub deadlock: Vec<String>,
    /// Most packets in the network at one time.
    pub peak_packets: u64,
    /// Messages whose bytes were checked; 0 unless [`crate::config::MeasureConfig::verify`] is set.
    pub verified_messages: u64,
}

impl<H> RunResult<H> {
    /// Separates the captured packets, whose headers may be those of a group system, from the result.
    #[must_use]
    pub fn split_capture<T>(self) -> (RunResult<T>, Vec<Captured<H>>) {
        let result = RunResult {
            end: self.end,
            ended_at: self.ended_at,
            measured: self.measured,
            messages: self.messages,
            ranks: self.ranks,
            delivered_bytes: self.delivered_bytes,
            delivered_by_sender: self.delivered_by_sender,
            goodput: self.goodput,
            round_trips: self.round_trips,
            recovery: self.recovery,
            counters: self.counters,
            dropped_before: self.dropped_before,
            refused: self.refused,
            mean_queue_bytes: self.mean_queue_bytes,
            max_queue_bytes: self.max_queue_bytes,
            queue_series: self.queue_series,
            links: self.links,
            traffic: self.traffic,
            circuits: self.circuits,
            capture_names: self.capture_names,
            capture: Vec::new(),
            waiting: self.waiting,
            backlog: self.backlog,
            deadlock: self.deadlock,
            peak_packets: self.peak_packets,
            verified_messages: self.verified_messages,
        };
        (result, self.capture)
    }
}
