//! Disk images for many hosts, in the simulator.
//!
//! - [`ImageConfig`]: the parameters of a run, resolved from a scenario's `[workload.image]`.
//! - [`run()`]: a run on a [`World`](rackweave_sim::World).
//! - [`ImageSummary`]: the results that only images have.

mod run;
mod summary;
#[cfg(test)]
mod tests;

use rackweave_core::{HostId, Time};
use rackweave_group::imaging::Shape;
use rackweave_group::imaging::frisbee::{ClientConfig, PaceConfig};

pub use self::run::{ImageError, ImageRun, run};
pub use self::summary::{
    ClientReport, ClientSummary, ImageResult, ImageSummary, Range, ServerReport,
};

/// The parameters of a run in which one server puts an image on many hosts.
#[derive(Clone, Debug)]
pub struct ImageConfig {
    /// The server's host.
    pub server: HostId,
    /// The clients' hosts, and when each of them starts.
    pub clients: Vec<(HostId, Time)>,
    /// The image.
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
}

impl ImageConfig {
    /// Returns how long the clients' starts are apart, from the first to the last.
    #[must_use]
    pub fn last_start(&self) -> Time {
        self.clients.iter().map(|(_, start)| *start).max().unwrap_or_default()
    }
}
