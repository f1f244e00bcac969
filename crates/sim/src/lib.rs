//! The simulated world: a deterministic packet-level simulator of data-center fabrics.
//!
//! The same transports, queues and forwarding that run on Linux run here, on links and hosts that
//! are made of integers. A run is a function of its [`config::RunConfig`]: the same bytes on every
//! machine, whatever runs beside it.
//!
//! - [`config`], [`result`]: what goes in and what comes out.
//! - [`fabric`]: topologies, paths, ideal times.
//! - [`world`]: the engine. [`events`]: its queue.
//! - [`cluster`]: the engine of group systems, whose hosts are [`rackweave_core::Node`]s.
//! - [`run`]: a whole run of [`rackweave_transport::Machine`]s.

mod build;
pub mod cluster;
pub mod config;
pub mod result;
pub mod world;

pub use build::{BuildError, has_streams, mean_gap, run};
pub use cluster::{Attached, Cluster, ClusterError, ClusterNode, ClusterSetup};
pub use config::RunConfig;
pub use rackweave_switch::events;
pub use rackweave_switch::fabric::{self, Fabric, FabricError};
pub use result::RunResult;
pub use world::{Control, Setup, World};
