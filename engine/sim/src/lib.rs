//! A deterministic packet-level simulator of data-center fabrics.
//!
//! The transports, queues and forwarding also run on Linux; links, hosts and time are simulated with
//! integers. A run is a function of its [`config::RunConfig`]: its results are the same on every machine.
//!
//! - [`config`], [`result`]: the configuration and the result of a run.
//! - [`fabric`]: topologies, paths, ideal times.
//! - [`world`]: a network with its hosts and applications. [`events`]: the event queue.
//! - [`fluid`]: transfers as flows with max-min fair rates, in place of packets.
//! - [`oracle`]: a central scheduler in place of transports and network.
//! - [`model`]: the types of a run.
//! - [`run`]: a whole run of [`rackweave_transport::Machine`]s; [`run_on`]: the same on several threads.
//!
//! Three hosts send 100 KB each to a fourth one, over DCTCP:
//!
//! ```
//! use rackweave_core::{HostId, Rate};
//! use rackweave_sim::{Control, FabricConfig, RunConfig, result::End, run};
//! use rackweave_transport::tcp;
//! use rackweave_workload::{Pattern, SizeDist};
//!
//! let incast = Pattern::incast(HostId(0), SizeDist::fixed(100_000)?);
//! let fabric = FabricConfig::single_switch(4, Rate::from_gbps(10));
//! let config = RunConfig::new(fabric).with_stream(tcp::Config::dctcp(), incast);
//! let result = run(&config, &Control::default())?;
//! assert_eq!((result.end, result.messages.len()), (End::AllDone, 3));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `examples/` has more: an incast over several transports, slowdowns by size under load, and a failing link.

mod build;
pub mod config;
pub mod fluid;
mod host;
pub mod model;
pub mod oracle;
mod parallel;
pub mod result;
pub mod world;

pub use build::{BuildError, GroupModel, group_world, run, run_divided, run_on};
pub use config::{FabricConfig, MeasureConfig, RunConfig};
pub use model::{GroupNode, Model, Transfers};
pub use parallel::{OneThread, PARALLEL_FROM_HOSTS, Threads, windows};
pub use rackweave_switch::events;
pub use rackweave_switch::fabric::{self, Fabric, FabricError};
pub use result::RunResult;
pub use world::{Attached, Control, Division, Setup, World};
