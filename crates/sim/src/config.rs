//! What a run is made of: plain numbers, resolved from a scenario by the caller.

use rackweave_core::{HostId, Span};
use rackweave_transport::TransportConfig;
use rackweave_workload::WorkloadConfig;

pub use rackweave_switch::config::{
    BufferConfig, FabricConfig, Fault, FaultKind, FaultPlace, Routing, SwitchConfig, Topology,
    TrimConfig,
};

/// One run.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// Everything random follows from it.
    pub seed: u64,
    /// Repetition: another one draws anew under the same seed.
    pub run: u64,
    /// Switches, links and hosts.
    pub fabric: FabricConfig,
    /// Who sends over what: the first is the one that is measured, the others run beside it.
    pub streams: Vec<StreamConfig>,
    /// What goes wrong, and when.
    pub faults: Vec<Fault>,
    /// What is measured.
    pub measure: MeasureConfig,
}

/// A workload over a transport.
#[derive(Clone, Debug)]
pub struct StreamConfig {
    /// The transport. Streams with equal transports share one machine a host.
    pub transport: TransportConfig,
    /// The messages.
    pub workload: WorkloadConfig,
}

/// What is measured, and when a run ends.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasureConfig {
    /// Messages that start before this are not measured.
    pub warmup: Span,
    /// How many messages of the first stream are measured; `u64::MAX`: all that start before the
    /// time limit. Load goes on until all of them have ended.
    pub messages: u64,
    /// The run ends here at the latest.
    pub time_limit: Span,
    /// Statistics of ports (use, queues, drops) begin here; `None`: when the warm-up ends. It is apart
    /// from that, because a queue may have to settle while the very first messages are to be measured.
    pub ports_from: Option<Span>,
    /// How often queues are looked at for the time series; zero: never.
    pub sample_every: Span,
    /// Receivers check every byte of every message.
    pub verify: bool,
    /// Ports whose packets are kept for a capture.
    pub capture: Vec<CapturePort>,
    /// Most packets kept in all captures together.
    pub capture_limit: usize,
}

/// A port to capture: the packets that its link carries, in the order in which they start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapturePort {
    /// What a host sends.
    HostSends(HostId),
    /// What a host receives.
    HostReceives(HostId),
    /// Both directions of a link between switches: up first.
    CoreLink(u32),
}
