//! The simulated world: a deterministic packet-level simulator of data-center fabrics.
//!
//! The same transports, queues and forwarding that run on Linux run here, on links and hosts that
//! are made of integers. A run is a function of its [`config::RunConfig`]: the same bytes on every
//! machine, whatever runs beside it.
//!
//! - [`config`], [`result`]: what goes in and what comes out.
//! - [`fabric`]: topologies, paths, ideal times.
//! - [`world`]: a network with its hosts and applications. [`events`]: the event queue.
//! - [`model`]: what a run is made of, as types.
//! - [`run`]: a whole run of [`rackweave_transport::Machine`]s.

mod build;
pub mod config;
pub mod model;
pub mod result;
pub mod world;

pub use build::{BuildError, GroupModel, group_world, run};
pub use config::RunConfig;
pub use model::{GroupNode, Model};
pub use rackweave_switch::events;
pub use rackweave_switch::fabric::{self, Fabric, FabricError};
pub use result::RunResult;
pub use world::{Attached, Control, Setup, World};
