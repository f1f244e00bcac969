//! The configuration of a run: plain numbers, resolved from a scenario by the caller.

use std::sync::Arc;

use rackweave_core::{HostId, Rate, Span, Time};
use rackweave_switch::Fabric;
use rackweave_transport::TransportConfig;
use rackweave_workload::{WorkloadConfig, WorkloadError, mean_gap};

pub use crate::host::{Costs, HostConfig, HostModel, Processors, Quantiles, SwitchProcess};
pub use rackweave_switch::config::{
    BufferConfig, CircuitError, Circuits, Dark, Depth, FabricConfig, Fault, FaultKind, FaultPlace,
    Marking, Move, Ocs, PfcConfig, Pod, Product, QueueOptions, Routing, SwitchConfig, Topology,
    Tor, TrimConfig,
};

/// The configuration of one run.
///
/// ```
/// use rackweave_core::{HostId, Rate, Span};
/// use rackweave_sim::config::{FabricConfig, MeasureConfig, RunConfig};
/// use rackweave_transport::tcp;
/// use rackweave_workload::{Pattern, SizeDist};
///
/// let incast = Pattern::incast(HostId(0), SizeDist::fixed(100_000)?);
/// let config = RunConfig::new(FabricConfig::fat_tree(4, Rate::from_gbps(10)))
///     .with_stream(tcp::Config::dctcp(), incast)
///     .with_measure(MeasureConfig::default().with_time_limit(Span::from_ms(100)))
///     .with_seed(7);
/// assert_eq!((config.fabric.topology.hosts(), config.streams.len()), (16, 1));
/// # Ok::<(), rackweave_workload::SizesError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
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

impl RunConfig {
    /// A run on this fabric without streams, of seed 1. Hosts take no time.
    #[must_use]
    pub fn new(fabric: FabricConfig) -> Self {
        Self {
            seed: 1,
            run: 0,
            fabric,
            host: None,
            streams: Vec::new(),
            faults: Vec::new(),
            moves: Vec::new(),
            measure: MeasureConfig::default(),
        }
    }

    /// All random streams have this seed.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The repetition with this index.
    #[must_use]
    pub fn with_run(mut self, run: u64) -> Self {
        self.run = run;
        self
    }

    /// Hosts have these processors.
    #[must_use]
    pub fn with_host(mut self, host: HostConfig) -> Self {
        self.host = Some(Arc::new(host));
        self
    }

    /// Adds a workload over a transport: the measured one if it is the first.
    #[must_use]
    pub fn with_stream(
        mut self,
        transport: impl Into<TransportConfig>,
        workload: impl Into<WorkloadConfig>,
    ) -> Self {
        self.streams.push(StreamConfig::new(transport, workload));
        self
    }

    /// Adds a fault.
    #[must_use]
    pub fn with_fault(mut self, fault: Fault) -> Self {
        self.faults.push(fault);
        self
    }

    /// Adds a change of circuits.
    #[must_use]
    pub fn with_move(mut self, change: Move) -> Self {
        self.moves.push(change);
        self
    }

    /// This is measured, and ends the run.
    #[must_use]
    pub fn with_measure(mut self, measure: MeasureConfig) -> Self {
        self.measure = measure;
        self
    }
}

/// A workload over a transport.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StreamConfig {
    /// The transport. Streams with equal transports share one state machine per host.
    pub transport: TransportConfig,
    /// The messages that it carries.
    pub workload: WorkloadConfig,
}

impl StreamConfig {
    /// A workload, such as a [`rackweave_workload::Pattern`] of messages, over a transport.
    #[must_use]
    pub fn new(transport: impl Into<TransportConfig>, workload: impl Into<WorkloadConfig>) -> Self {
        Self { transport: transport.into(), workload: workload.into() }
    }

    /// The mean gap between the messages that a host starts in an open loop, for host links of this rate; `None` for
    /// other patterns.
    ///
    /// # Errors
    /// If the load is impossible.
    pub fn mean_gap(&self, link: Rate) -> Result<Option<Span>, WorkloadError> {
        let feedback = |bytes| self.transport.counted_feedback(bytes, link);
        mean_gap(&self.workload, link, self.transport.framing(), feedback)
    }
}

/// What is measured, and when a run ends. The default is that of a scenario without `[measure]` whose workload has an end: all messages
/// are measured, for ten simulated seconds at most.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MeasureConfig {
    /// Messages that start before this are not measured.
    pub warmup: Span,
    /// Number of messages of the first stream that are measured; `u64::MAX`: all that start before the time limit.
    /// The load continues until all of them have ended.
    pub messages: u64,
    /// The time after the warm-up in which messages start that are measured, instead of their number; `None` if that decides.
    pub duration: Option<Span>,
    /// The latest end of the run.
    pub time_limit: Span,
    /// The run ends once packets have crossed more links than this; `u64::MAX` for no limit. It bounds the work of a run, at the same time
    /// on any machine and any number of threads. (The central scheduler has no packets, and no such limit.)
    pub hop_limit: u64,
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
    /// Whether some link is offered more than it carries, as the caller has calculated. A backlog that grows is then overload, however
    /// short the run is yet.
    pub offered_too_much: bool,
}

impl Default for MeasureConfig {
    fn default() -> Self {
        Self {
            warmup: Span::ZERO,
            messages: u64::MAX,
            duration: None,
            time_limit: Span::from_secs(10),
            hop_limit: u64::MAX,
            ports_from: None,
            sample_every: Span::from_us(20),
            verify: false,
            capture: Vec::new(),
            capture_limit: 100_000,
            traffic: Vec::new(),
            stop_load: false,
            offered_too_much: false,
        }
    }
}

impl MeasureConfig {
    /// As a scenario measures a workload without an end: 100,000 messages after a millisecond, in which the fabric fills.
    #[must_use]
    pub fn endless() -> Self {
        Self { warmup: Span::from_ms(1), messages: 100_000, ..Self::default() }
    }

    /// Messages that start at this time or later are not measured.
    #[must_use]
    pub fn until(&self) -> Time {
        let end = |duration| Time::ZERO + self.warmup + duration;
        self.duration.map_or(Time::MAX, end)
    }

    /// Messages that start before this are not measured.
    #[must_use]
    pub fn with_warmup(mut self, warmup: Span) -> Self {
        self.warmup = warmup;
        self
    }

    /// This number of messages is measured.
    #[must_use]
    pub fn with_messages(mut self, messages: u64) -> Self {
        self.messages = messages;
        self
    }

    /// The run ends at this time at the latest.
    #[must_use]
    pub fn with_time_limit(mut self, limit: Span) -> Self {
        self.time_limit = limit;
        self
    }

    /// Queues are sampled at this interval; zero for no samples.
    #[must_use]
    pub fn with_samples(mut self, every: Span) -> Self {
        self.sample_every = every;
        self
    }

    /// Receivers check every byte of every message.
    #[must_use]
    pub fn with_verification(mut self) -> Self {
        self.verify = true;
        self
    }
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
