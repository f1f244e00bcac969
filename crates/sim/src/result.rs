//! What a run leaves behind.

use rackweave_core::{HostId, Span, Time};
pub use rackweave_switch::net::{Captured, Counters, LinkStats, QueueSample};
use rackweave_wire::Header;
pub use rackweave_workload::app::{MessageRecord, Outcome};

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub enum End {
    /// Every measured message completed or failed.
    AllDone,
    /// The time limit came first.
    TimeLimit,
    /// Nothing was left to happen, but messages were unfinished.
    Stalled,
    /// The caller asked.
    Cancelled,
}

/// What a transport measured of the way from one host to another and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct MeasuredRoundTrip {
    /// The first of the run's streams that uses this transport.
    pub stream: u16,
    /// Who measured.
    pub src: HostId,
    /// To whom.
    pub dst: HostId,
    /// The smallest round trip of those that were not too old.
    pub min: Span,
    /// The last one.
    pub recent: Span,
    /// What the idle fabric takes ([`crate::Fabric::base_rtt_between`]): a full packet of data of this
    /// transport there, and the smallest packet back.
    pub base: Span,
    /// How many were measured.
    pub samples: u64,
}

/// All that a run found out.
#[derive(Clone, Debug)]
pub struct RunResult<H = Header> {
    /// Why it ended.
    pub end: End,
    /// Simulated time at the end.
    pub ended_at: Time,
    /// The time in which messages were measured: from the end of the warm-up to the last outcome.
    pub measured: Span,
    /// Measured messages of all streams, in the order of their start.
    pub messages: Vec<MessageRecord>,
    /// Payload bytes that receivers stored in the measured time, by stream, of messages complete or not.
    pub delivered_bytes: Vec<u64>,
    /// Those of the first stream, by the host that started the message (or sent the request).
    pub delivered_by_sender: Vec<u64>,
    /// Round trips that transports measured, by transport, then host, then peer.
    pub round_trips: Vec<MeasuredRoundTrip>,
    /// Counts of the whole run, warm-up included.
    pub counters: Counters,
    /// Messages that transports refused at submission.
    pub refused: u64,
    /// Time-averaged bytes in a switch port's queue, over all switch ports, since
    /// statistics of ports began.
    pub mean_queue_bytes: f64,
    /// Most bytes that any switch port's queue held since then.
    pub max_queue_bytes: u64,
    /// Queues over time.
    pub queue_series: Vec<QueueSample>,
    /// Every link.
    pub links: Vec<LinkStats>,
    /// Names of the capture's interfaces.
    pub capture_names: Vec<String>,
    /// The capture.
    pub capture: Vec<Captured<H>>,
    /// Most packets that were under way at one time.
    pub peak_packets: u64,
    /// Messages whose bytes were checked, if they were.
    pub verified_messages: u64,
}
