//! One-to-many in the simulator: the same application over Orca, and over what applications do without it.
//!
//! - [`CastConfig`]: what is run, resolved from a scenario's `[workload.cast]`.
//! - [`run()`]: a run on a [`World`](rackweave_sim::World).
//! - [`CastSummary`]: what came of it, beside what every run has.

mod nodes;
mod orca;
mod run;
mod summary;
#[cfg(test)]
mod tests;

use std::ops::Range;

use rackweave_core::{HostId, Rate, Span, Time};
use rackweave_group::app::Cost;
use rackweave_group::orca::host::Spread;
use rackweave_group::orca::scale::ScaleConfig;
use rackweave_sim::config::Topology;
use rackweave_transport::TransportConfig;

pub(crate) use self::orca::{fail_reason, flow_config};
pub use self::run::{CastError, CastRun, run};
pub use self::summary::{CastResult, CastSummary, PlaneSummary, Quantiles, ReceiverSummary};

/// The files of the Orca end-to-end evaluation in their order (`docker/broadcast_files_0.txt` of its repository): 34, of
/// which the text counts 33 rounds. Its larger workloads have each size times 2, 4, 8 and 16.
pub const PAPER_FILES: [u64; 34] = [
    61_768, 3_574, 5_086, 3_573, 9_187_341, 5_219, 3_573, 9_187_341, 5_352, 3_573, 9_187_341,
    5_485, 2_918, 3_573, 9_187_341, 5_618, 3_573, 9_187_341, 5_751, 3_573, 9_187_341, 5_884, 3_573,
    3_924, 9_187_341, 6_017, 3_573, 9_187_341, 4_307, 3_573, 9_187_341, 4_953, 3_573, 9_187_341,
];

/// Files from one host to many.
#[derive(Clone, Debug)]
pub struct CastConfig {
    /// The sender's hosts: one for each of its ports.
    pub senders: Vec<HostId>,
    /// To whom.
    pub receivers: Vec<HostId>,
    /// Lengths of the files, in their order.
    pub files: Vec<u64>,
    /// Each file waits for the acknowledgements of the one before.
    pub wait: bool,
    /// Bytes of the buffers that the sender's processes hand over.
    pub buffer: u64,
    /// How many processes share the receivers.
    pub processes: u32,
    /// What their work costs.
    pub cost: Cost,
    /// What carries the files.
    pub scheme: Scheme,
    /// The hosts of each rack.
    pub racks: Vec<Range<u32>>,
    /// Hosts that crash.
    pub crashed: Vec<HostId>,
    /// When the first of them does.
    pub fault: Option<Time>,
    /// The control plane's tables that are built and measured beside the run, on a fabric of their own.
    pub plane: Option<ScaleConfig>,
}

/// What carries files to many.
#[derive(Clone, Debug)]
pub enum Scheme {
    /// Orca: agents, and labels in the switches if there are any.
    Orca(OrcaScheme),
    /// A UDP socket for each receiver.
    Unicast {
        /// Bytes that wait in a socket before it blocks.
        socket_bytes: u64,
    },
    /// Connections.
    Streams {
        /// Over what.
        transport: TransportConfig,
        /// Store-and-forward from receiver to receiver in such chunks; `None`: a connection to each.
        chunk: Option<u64>,
        /// Bytes that wait in a socket before it blocks.
        socket_bytes: u64,
    },
}

/// Orca's parameters.
#[derive(Clone, Debug)]
pub struct OrcaScheme {
    /// Who copies.
    pub spread: Spread,
    /// The controller's host; with labels only.
    pub controller: Option<HostId>,
    /// Bytes of a full packet.
    pub payload: u16,
    /// Bytes under way; `None`: the flow's own.
    pub window: Option<u64>,
    /// Between two pings of an agent.
    pub heartbeat: Span,
    /// An agent that is silent for so long is replaced: the paper's T.
    pub timeout: Span,
    /// A receiver that is silent for so long is lost; `None`: the flow's own.
    pub patience: Option<Span>,
    /// The sender never sends faster.
    pub max_rate: Option<Rate>,
    /// Between two reports of an agent; `None`: the host's own.
    pub status_interval: Option<Span>,
    /// Packets of a block of which there is parity; `None`: the flow's own.
    pub fec_block: Option<u8>,
}

impl CastConfig {
    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().sum()
    }

    /// The rack that a host is in.
    #[must_use]
    pub fn rack_of(&self, host: HostId) -> Option<usize> {
        self.racks.iter().position(|rack| rack.contains(&host.0))
    }

    /// The sender's port towards a receiver: the one in its rack, or else the first.
    #[must_use]
    pub fn port_to(&self, receiver: HostId) -> u8 {
        let rack = self.rack_of(receiver);
        let near = self.senders.iter().position(|sender| self.rack_of(*sender) == rack);
        near.unwrap_or(0) as u8
    }

    /// A name for `summary.json` and the tables of the scheme: who copies.
    #[must_use]
    pub const fn copied_by(&self) -> &'static str {
        match &self.scheme {
            Scheme::Orca(orca) => match orca.spread {
                Spread::Labels => "switches, by labels",
                Spread::Relay => "agents",
                Spread::Multicast => "switches, to everybody",
                Spread::Unicast => "the sender",
            },
            Scheme::Unicast { .. } | Scheme::Streams { chunk: None, .. } => "the sender",
            Scheme::Streams { chunk: Some(_), .. } => "receivers, in a chain",
        }
    }
}

/// The hosts below each switch that hosts are attached to.
#[must_use]
pub fn racks(topology: Topology) -> Vec<Range<u32>> {
    let even = |racks: u32, each: u32| (0..racks).map(|n| n * each..(n + 1) * each).collect();
    match topology {
        Topology::SingleSwitch { hosts, .. } => even(1, hosts),
        Topology::Dumbbell { left, right, .. } => vec![0..left, left..left + right],
        Topology::LeafSpine { leaves, hosts_per_leaf, .. } => even(leaves, hosts_per_leaf),
        Topology::FatTree { k, .. } => even(k * k / 2, k / 2),
    }
}
