//! One-to-many transfers in the simulator: one application over Orca, over UDP sockets and over connections.
//!
//! - [`CastConfig`]: the parameters of a run, resolved from a scenario's `[workload.cast]`.
//! - [`CastSummary`]: the results that only casts have.

mod keys;
mod nodes;
mod orca;
mod run;
mod scheme;
mod section;
mod summary;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;

use rackweave_core::{HostId, Rate, Span, Time};
use rackweave_orca::app::Cost;
use rackweave_orca::host::Spread;
use rackweave_orca::scale::ScaleConfig;
use rackweave_scenario::keys::Chosen;
use rackweave_scenario::problem::Problem;
use rackweave_transport::TransportConfig;

pub use self::orca::{fail_reason, flow_config};
pub use self::section::times_us;
pub use self::summary::{
    CastDetail, CastResult, CastSummary, PlaneSummary, Quantiles, ReceiverSummary,
};
use super::{Configured, Done, Ground, Kind, Setting, StudyDetail, StudyError, StudySummary};
use crate::explain::Volume;
use crate::report::html::KindSection;
use crate::results::PointResult;
use crate::tables::{Sink, Table};

/// The lengths in bytes of the files of the Orca end-to-end evaluation, in order (`docker/broadcast_files_0.txt` of its
/// repository). There are 34 files; the text counts 33 rounds. Its larger workloads have each size times 2, 4,
/// 8 and 16.
pub const PAPER_FILES: [u64; 34] = [
    61_768, 3_574, 5_086, 3_573, 9_187_341, 5_219, 3_573, 9_187_341, 5_352, 3_573, 9_187_341,
    5_485, 2_918, 3_573, 9_187_341, 5_618, 3_573, 9_187_341, 5_751, 3_573, 9_187_341, 5_884, 3_573,
    3_924, 9_187_341, 6_017, 3_573, 9_187_341, 4_307, 3_573, 9_187_341, 4_953, 3_573, 9_187_341,
];

/// The parameters of a transfer of files from one host to many.
#[derive(Clone, Debug)]
pub struct CastConfig {
    /// The sender's hosts: one for each of its ports.
    pub senders: Vec<HostId>,
    /// The hosts that receive every file.
    pub receivers: Vec<HostId>,
    /// The length of each file in bytes, in the order in which they are sent.
    pub files: Vec<u64>,
    /// Whether each file waits for the acknowledgements of the previous one.
    pub wait: bool,
    /// The size in bytes of the buffers that the sender's processes write.
    pub buffer: u64,
    /// The number of the sender's processes, which share the receivers.
    pub processes: u32,
    /// The CPU cost of writing a buffer.
    pub cost: Cost,
    /// The scheme that carries the files.
    pub scheme: Scheme,
    /// The hosts of each rack.
    pub racks: Vec<Range<u32>>,
    /// The hosts that crash during the run.
    pub crashed: Vec<HostId>,
    /// The time of the first crash; `None` if no host crashes.
    pub fault: Option<Time>,
    /// The control-plane tables that are built and measured in addition to the run, on a separate fabric.
    pub plane: Option<ScaleConfig>,
}

/// The scheme that carries files to many receivers.
#[derive(Clone, Debug)]
pub enum Scheme {
    /// Orca: agents, and label switches if the spread uses labels.
    Orca(OrcaScheme),
    /// A UDP socket for each receiver.
    Unicast {
        /// The number of bytes that can wait in a socket before it blocks.
        socket_bytes: u64,
    },
    /// Connections to the receivers, or a chain of them.
    Streams {
        /// The transport of the connections.
        transport: TransportConfig,
        /// The size in bytes of the chunks in which receivers forward the data in a chain; `None` if the sender has a
        /// connection to each receiver.
        chunk: Option<u64>,
        /// The number of bytes that can wait in a socket before it blocks.
        socket_bytes: u64,
    },
}

/// The parameters of Orca.
#[derive(Clone, Debug)]
pub struct OrcaScheme {
    /// How packets are replicated: by switches, by relaying hosts, by IP multicast or by the sender.
    pub spread: Spread,
    /// The controller's host; `None` unless the spread is by labels.
    pub controller: Option<HostId>,
    /// The bits of the filter in labels; 0: none.
    pub filter_bits: u32,
    /// The payload of a full packet in bytes.
    pub payload: u16,
    /// The largest number of bytes in flight; `None` for the flow's default.
    pub window: Option<u64>,
    /// The interval between two pings of an agent.
    pub heartbeat: Span,
    /// The time of silence after which an agent is replaced: the paper's T.
    pub timeout: Span,
    /// The time of silence after which a receiver is lost; `None` for the flow's default.
    pub patience: Option<Span>,
    /// The largest sending rate; `None` for no limit.
    pub max_rate: Option<Rate>,
    /// The interval between two reports of an agent; `None` for the host's default.
    pub status_interval: Option<Span>,
    /// The number of packets in a block for parity, 0 for no parity; `None` for the flow's default.
    pub fec_block: Option<u8>,
}

impl CastConfig {
    /// Returns the number of bytes of all files together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().sum()
    }

    /// Returns the index of the rack that a host is in.
    #[must_use]
    pub fn rack_of(&self, host: HostId) -> Option<usize> {
        self.racks.iter().position(|rack| rack.contains(&host.0))
    }

    /// Returns the sender's port towards a receiver: the one in the receiver's rack, or else the first.
    #[must_use]
    pub fn port_to(&self, receiver: HostId) -> u8 {
        let rack = self.rack_of(receiver);
        let near = self.senders.iter().position(|sender| self.rack_of(*sender) == rack);
        near.unwrap_or(0) as u8
    }

    /// Returns the scheme's name in `summary.json` and tables, which says who copies the data.
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

impl Kind for CastConfig {
    type Keys = keys::CastKeys;
    type Scheme = scheme::Name;

    const CARRIES: Option<&'static str> = Some("carries files to many");
    const SIZES: &'static [&'static str] =
        &["workload.cast.files", "workload.cast.scale", "workload.cast.repeat"];
    const DRAWN: &'static [&'static str] = &[tables::FILES, tables::RECEIVERS];
    #[cfg(test)]
    const EXAMPLE: &'static str =
        "[workload.cast]\nsender = 0\nreceivers = [1, 2]\nfiles = ['1 KB']";

    fn check(ground: &Ground<'_>) -> Result<(), Problem> {
        let help = "workload.cast.files and workload.cast.repeat name the files; `warmup` leaves out the first of them";
        ground.measure.check_for_many("cast", Some(help))
    }

    fn resolve(
        keys: &Self::Keys,
        scheme: &Chosen<Self::Scheme>,
        ground: &Ground<'_>,
    ) -> Result<Self, Problem> {
        keys.resolve(scheme, ground)
    }

    fn kernel_tcp(scheme: &Chosen<Self::Scheme>) -> Vec<Option<&'static str>> {
        scheme::kernel_tcp(scheme).into_iter().map(Some).collect()
    }

    fn tables<S: Sink>(points: &[PointResult], sink: &mut S) -> Result<(), S::Error> {
        tables::write(points, sink)
    }

    fn warning(summary: &CastSummary) -> Option<String> {
        summary.incomplete()
    }

    fn section(section: &mut KindSection<'_, Self>) {
        section::write(section);
    }

    fn restore(table: &Table, points: &mut BTreeMap<u64, &mut PointResult>) -> Result<(), String> {
        section::restore(table, points)
    }
}

impl Configured for CastConfig {
    fn run(&self, setting: &Setting<'_>) -> Result<Done, StudyError> {
        let run::CastRun { result, cast, capture } = run::run(self, setting)?;
        let summary = StudySummary::Cast(CastSummary::new(self, &cast));
        let detail = Some(StudyDetail::Cast(CastDetail::Run(cast)));
        Ok(Done { result, summary, detail, capture })
    }

    /// A message is a file on its way to a receiver.
    fn volume(&self) -> Volume {
        let mean_bytes = self.bytes() as f64 / self.files.len().max(1) as f64;
        let messages = self.files.len() as u64 * self.receivers.len() as u64;
        // Full frames, and now and then a report.
        Volume::of_messages(messages, mean_bytes, mean_bytes / 1440.0 * 1.1)
    }

    fn data_bytes(&self) -> u64 {
        self.bytes()
    }
}
