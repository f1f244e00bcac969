//! Disk images for many hosts, in the simulator.
//!
//! - [`ImageConfig`]: the parameters of a run, resolved from a scenario's `[workload.image]`.
//! - [`ImageSummary`]: the results that only images have.

mod keys;
mod nodes;
mod run;
mod scheme;
mod section;
mod summary;
mod tables;

/// Returns how many hosts each rack of a fabric has, if its hosts are numbered by rack: directories prefer holders in the requester's.
pub const fn hosts_per_rack(fabric: &rackweave_sim::config::FabricConfig) -> Option<u32> {
    match fabric.topology {
        rackweave_sim::config::Topology::LeafSpine { hosts_per_leaf, .. } => Some(hosts_per_leaf),
        _ => None,
    }
}

#[cfg(test)]
mod tests;

use rackweave_core::{HostId, Span, Time};
use rackweave_scenario::keys::Chosen;
use rackweave_scenario::problem::Problem;
use rackweave_swp2p::frisbee::{ClientConfig, PaceConfig};
use rackweave_swp2p::intake::Expand;
use rackweave_swp2p::p2p::node::Carrier;
use rackweave_swp2p::{Shape, directory, p2p};
use rackweave_transport::TransportConfig;

pub use self::keys::CHUNK_SIZES;
pub use self::summary::{
    ClientReport, ClientSummary, ImageResult, ImageSummary, ServerReport, SwitchReport,
};
use super::{Configured, Done, Ground, Kind, Setting, StudyError};
use crate::explain::Volume;
use crate::report::html::KindSection;
use crate::results::PointResult;
use crate::tables::Sink;

/// The parameters of a run in which one server puts an image on many hosts.
#[derive(Clone, Debug)]
pub struct ImageConfig {
    /// The server's host.
    pub server: HostId,
    /// The clients' hosts, and when each of them starts.
    pub clients: Vec<(HostId, Time)>,
    /// The length of the image, and that of its chunks.
    pub image: Shape,
    /// The scheme that carries it.
    pub scheme: Scheme,
    /// The hosts that crash during the run.
    pub crashed: Vec<HostId>,
}

/// The scheme that carries an image.
#[derive(Clone, Debug)]
pub enum Scheme {
    /// Frisbee: multicast.
    Frisbee {
        /// The parameters of each client.
        client: ClientConfig,
        /// How the server paces blocks.
        pace: PaceConfig,
    },
    /// Clients request chunks, which TCP carries: SWP2P, or unicast from the server.
    P2p(Box<P2pScheme>),
}

/// The parameters of SWP2P, and of unicast, which is SWP2P without redirection.
#[derive(Clone, Debug)]
pub struct P2pScheme {
    /// What carries chunks.
    pub carrier: Carrier,
    /// The least time between two computations of the rates of flows, if those carry chunks.
    pub fluid_interval: Span,
    /// How fast clients expand and write chunks.
    pub expand: Expand,
    /// Who redirects requests to clients that have the chunk.
    pub redirects: Redirects,
    /// What its directory does.
    pub directory: directory::Config,
    /// The number of clients that the server announces to each of them; 0 if it does not know it.
    pub expected: u32,
    /// The parameters of each client.
    pub client: p2p::client::Config,
    /// How the server serves.
    pub serve: p2p::Serve,
}

impl P2pScheme {
    /// Unicast with the defaults of clients and server.
    #[must_use]
    pub fn over(carrier: TransportConfig, expand: Expand) -> Self {
        Self {
            carrier: Carrier::Transport(carrier),
            fluid_interval: Span::ZERO,
            expand,
            redirects: Redirects::Nobody,
            directory: directory::Config::default(),
            expected: 0,
            client: p2p::client::Config::default(),
            serve: p2p::Serve::default(),
        }
    }
}

/// Who redirects requests to clients that have the chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirects {
    /// The server sends all chunks itself.
    Nobody,
    /// The server, without help of switches.
    Server,
    /// Switches, on the path to the server.
    Switches {
        /// Control packets that a switch's processor handles in a second; 0 if the data plane handles them.
        per_second: u32,
        /// Maximum number of packets that wait for the processor.
        queue: u32,
    },
}

impl ImageConfig {
    /// Returns whether chunks are flows instead of packets.
    #[must_use]
    pub fn has_flows(&self) -> bool {
        matches!(&self.scheme, Scheme::P2p(scheme) if matches!(scheme.carrier, Carrier::Fluid))
    }

    /// Returns how long the clients' starts are apart, from the first to the last.
    #[must_use]
    pub fn last_start(&self) -> Time {
        self.clients.iter().map(|(_, start)| *start).max().unwrap_or_default()
    }
}

impl Kind for ImageConfig {
    type Keys = keys::ImageKeys;
    type Scheme = scheme::Name;

    const CARRIES: Option<&'static str> = Some("puts an image on many hosts");
    const SIZES: &'static [&'static str] = &["workload.image.size"];
    #[cfg(test)]
    const EXAMPLE: &'static str = "[workload.image]\nclients = [1, 2]\nsize = '1 MiB'";

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

    fn section(section: &mut KindSection<'_, Self>) {
        section::write(section);
    }
}

impl Configured for ImageConfig {
    fn run(&self, setting: &Setting<'_>) -> Result<Done, StudyError> {
        run::run(self, setting)
    }

    /// A message is the image on its way to a client.
    fn volume(&self) -> Volume {
        let bytes = self.image.bytes() as f64;
        // Blocks, and now and then a request.
        Volume::of_messages(self.clients.len() as u64, bytes, bytes / 1024.0 * 1.1)
    }

    fn data_bytes(&self) -> u64 {
        self.image.bytes()
    }
}
