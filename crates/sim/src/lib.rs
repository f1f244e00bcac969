//! A deterministic packet-level simulator of data-center fabrics.
//!
//! The transports, queues and forwarding are those that run on Linux; links, hosts and time are simulated with
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
//! use std::sync::Arc;
//!
//! use rackweave_core::{HostId, Rate, Span};
//! use rackweave_sim::config::{MeasureConfig, RunConfig, StreamConfig};
//! use rackweave_sim::result::End;
//! use rackweave_sim::{Control, run};
//! use rackweave_switch::config::*;
//! use rackweave_transport::{TransportConfig, tcp};
//! use rackweave_workload::{Pattern, SizeDist, WorkloadConfig};
//!
//! let fabric = FabricConfig {
//!     topology: Topology::SingleSwitch { hosts: 4, host_link: Rate::from_gbps(10) },
//!     host_link_delay: Span::from_ns(100),
//!     host_link_delays: Vec::new(),
//!     core_link_delay: Span::ZERO,
//!     host_send_delay: Span::ZERO,
//!     host_receive_delay: Span::ZERO,
//!     switch: SwitchConfig {
//!         latency: Span::from_ns(250),
//!         buffer: BufferConfig::PerPort { bytes: 500_000 },
//!         ecn_threshold_bytes: Some(100_000),
//!         priorities: true,
//!         trim: None,
//!         options: Default::default(),
//!         routing: Routing::Transport,
//!     },
//! };
//! let incast = Pattern::Incast {
//!     senders: None,
//!     receiver: HostId(0),
//!     sizes: SizeDist::fixed(100_000)?,
//!     messages_per_sender: 1,
//!     at: Span::ZERO,
//!     spread: Span::ZERO,
//! };
//! let stream = StreamConfig {
//!     transport: TransportConfig::Tcp(Arc::new(tcp::Config::dctcp())),
//!     workload: WorkloadConfig::new(incast),
//! };
//! let measure = MeasureConfig {
//!     warmup: Span::ZERO,
//!     messages: u64::MAX,
//!     time_limit: Span::from_secs(1),
//!     ports_from: None,
//!     sample_every: Span::ZERO,
//!     verify: true,
//!     capture: Vec::new(),
//!     capture_limit: 0,
//!     traffic: Vec::new(),
//!     stop_load: false,
//! };
//! let config = RunConfig {
//!     seed: 1,
//!     run: 0,
//!     fabric,
//!     host: None,
//!     streams: vec![stream],
//!     faults: Vec::new(),
//!     moves: Vec::new(),
//!     measure,
//! };
//!
//! let result = run(&config, &Control::default())?;
//! assert_eq!((result.end, result.messages.len()), (End::AllDone, 3));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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
pub use config::RunConfig;
pub use model::{GroupNode, Model};
pub use parallel::{OneThread, PARALLEL_FROM_HOSTS, Threads, windows};
pub use rackweave_switch::events;
pub use rackweave_switch::fabric::{self, Fabric, FabricError};
pub use result::RunResult;
pub use world::{Attached, Control, Division, Setup, World};
