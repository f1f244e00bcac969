//! The configuration of a run: plain numbers, resolved from a scenario by the caller.

use std::sync::Arc;

use rackweave_core::{HostId, Rate, Span, frame};
use rackweave_switch::Fabric;
use rackweave_transport::TransportConfig;
use rackweave_workload::{Grants, WorkloadConfig, WorkloadError, mean_gap};

pub use crate::host::{Costs, HostConfig, Processors, Quantiles, SwitchProcess};
pub use rackweave_switch::config::{
    BufferConfig, CircuitError, Circuits, Dark, FabricConfig, Fault, FaultKind, FaultPlace, Move,
    Ocs, Pod, QueueOptions, Routing, SwitchConfig, Topology, Tor, TrimConfig,
};

/// The configuration of one run.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// Seed of all random streams of the run.
    pub seed: u64,
    /// Index of the repetition. Each repetition of a seed has random streams of its own.
    pub run: u64,
    /// Switches, links and hosts.
    pub fabric: FabricConfig,
    /// The processors of hosts, for which packets wait; `None` if hosts take no time. The ideal times of messages do not
    /// include them.
    pub host: Option<Arc<HostConfig>>,
    /// The workloads. The first one is measured; the others are background traffic.
    pub streams: Vec<StreamConfig>,
    /// The faults to inject, in any order.
    pub faults: Vec<Fault>,
    /// The changes of circuits at known times, in any order; of those at one time the last one holds.
    pub moves: Vec<Move>,
    /// What is measured, and when the run ends.
    pub measure: MeasureConfig,
}

/// A workload over a transport.
#[derive(Clone, Debug)]
pub struct StreamConfig {
    /// The transport. Streams with equal transports share one state machine per host.
    pub transport: TransportConfig,
    /// The messages that it carries.
    pub workload: WorkloadConfig,
}

impl StreamConfig {
    /// The mean gap between the messages that a host starts in an open loop, for host links of this rate; `None` for
    /// other patterns.
    ///
    /// # Errors
    /// If the load is impossible.
    pub fn mean_gap(&self, link: Rate) -> Result<Option<Span>, WorkloadError> {
        // Receiver-driven transports send a grant for each packet beyond the unscheduled ones. With uniform
        // destinations, each host sends as many grants as it causes others to send.
        let grants = match &self.transport {
            TransportConfig::Homa(config) => Some(Grants {
                unscheduled_bytes: u64::from(config.unscheduled_bytes),
                bytes_per_grant: u64::from(config.max_payload),
                wire_bytes_per_grant: u64::from(frame::wire_bytes(config.header_bytes.grant)),
            }),
            // pFabric's receivers answer every packet. Beside messages of W1, whose mean is 187 bytes, these
            // acknowledgements are a quarter of all bytes, and the published loads count them
            // (docs/protocols/pfabric.md#pfabric-in-homas-study).
            TransportConfig::PFabric(config) => Some(Grants {
                unscheduled_bytes: 0,
                bytes_per_grant: u64::from(config.common.max_payload),
                wire_bytes_per_grant: u64::from(frame::wire_bytes(config.common.control_bytes)),
            }),
            // For other transports the load counts data only, without NDP's pulls and acknowledgements, pHost's
            // tokens and Polo's driving packets.
            _ => None,
        };
        mean_gap(&self.workload, link, self.transport.framing(), grants)
    }
}

/// What is measured, and when a run ends.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasureConfig {
    /// Messages that start before this are not measured.
    pub warmup: Span,
    /// Number of messages of the first stream that are measured; `u64::MAX`: all that start before the time limit.
    /// The load continues until all of them have ended.
    pub messages: u64,
    /// The latest end of the run.
    pub time_limit: Span,
    /// When the statistics of ports (utilisation, queues, drops) start; `None` for the end of the warm-up. A
    /// separate value, because queues may need time to reach their steady state while the very first messages
    /// are measured.
    pub ports_from: Option<Span>,
    /// Interval of the queue samples for the time series; zero for no samples.
    pub sample_every: Span,
    /// Whether receivers check every byte of every message.
    pub verify: bool,
    /// Ports whose packets are captured.
    pub capture: Vec<CapturePort>,
    /// Most packets in all captures together.
    pub capture_limit: usize,
    /// The traffic that is counted over time.
    pub traffic: Vec<TrafficConfig>,
    /// Whether no stream starts messages any more once all measured ones have started. Otherwise the load continues until they
    /// have ended.
    pub stop_load: bool,
}

/// Traffic that is counted over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficConfig {
    /// Its name in results.
    pub name: String,
    /// Where it is counted.
    pub at: TrafficPlace,
    /// The hosts that send the packets; empty for all packets.
    pub from: Vec<HostId>,
    /// The length of the intervals in which it is counted, above zero.
    pub interval: Span,
}

/// Where traffic is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrafficPlace {
    /// At these ports.
    Ports(Vec<CapturePort>),
    /// On all links into a switch.
    Into(u32),
}

/// A port to capture: the packets that its link carries, in the order in which they are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapturePort {
    /// The uplink of a host.
    HostSends(HostId),
    /// The downlink of a host.
    HostReceives(HostId),
    /// Both directions of a link between switches: upwards first.
    CoreLink(u32),
}

impl CapturePort {
    /// The links whose packets are captured, as the fabric numbers them. The port must be one of the fabric's.
    #[must_use]
    pub fn links(self, fabric: &Fabric) -> Vec<u32> {
        match self {
            Self::HostSends(host) => vec![host.0],
            Self::HostReceives(host) => vec![fabric.downlink(host)],
            Self::CoreLink(cable) => {
                let (up, down) = fabric.core_links()[cable as usize];
                vec![up, down]
            }
        }
    }
}
