//! What a run is made of: plain numbers, resolved from a scenario by the caller.

use rackweave_core::{HostId, Rate, Span, frame};
use rackweave_transport::TransportConfig;
use rackweave_workload::{Grants, WorkloadConfig, WorkloadError, mean_gap};

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

impl StreamConfig {
    /// The mean gap between the messages that a host starts in an open loop, on hosts' links of this rate; `None`
    /// for other patterns.
    ///
    /// # Errors
    /// If the load is impossible.
    pub fn mean_gap(&self, link: Rate) -> Result<Option<Span>, WorkloadError> {
        // Receiver-driven transports send a grant for each packet beyond the unscheduled ones; with
        // uniform destinations each host sends as many as it causes.
        let grants = match &self.transport {
            TransportConfig::Homa(config) => Some(Grants {
                unscheduled_bytes: u64::from(config.unscheduled_bytes),
                bytes_per_grant: u64::from(config.max_payload),
                wire_bytes_per_grant: u64::from(frame::wire_bytes(config.header_bytes.grant)),
            }),
            // The load of the others counts data (not NDP's pulls and acknowledgements, pHost's tokens, nor
            // Polo's driving packets).
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
