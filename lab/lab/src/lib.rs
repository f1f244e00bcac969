//! From a scenario file to results, in the simulator.
//!
//! - [`scenario`]: reads TOML files and checks the runs that they describe.
//! - [`explain`]: the meaning and the cost of a run, without running it.
//! - [`list`]: the scenarios, transports, patterns and size distributions that exist.
//! - [`run`]: runs in the simulator, on all cores.
//! - [`tune`] and [`size`]: searches for the parameters of a transport, and for the cheapest fabric.
//! - [`sweep`]: sweeps whose points are run by several processes.
//! - [`study`]: what points measure in addition to ordinary messages: files and images for many hosts, jobs, vectors,
//!   plans of circuits.
//! - [`results`]: the results of a scenario's runs.
//! - [`report`]: results as a table and as an HTML page.
//! - [`redraw`]: reports on finished results.
//! - [`difference`]: what differs between two results.
//! - [`output`]: results as files. [`tables`]: the same tables in memory.
//! - [`command_line`]: the command that repeats a run.
//!
//! ```
//! use std::path::Path;
//!
//! use rackweave_lab::{Batch, Scenario};
//!
//! let text = r#"
//! name = "example"
//! [fabric]
//! topology = "single-switch"
//! hosts = 4
//! host_link = "10 Gbps"
//! [transport]
//! name = "homa"
//! [workload]
//! arrivals = "incast"
//! sizes = "100 KB"
//! receiver = 0
//! "#;
//! let scenario = Scenario::parse("example.toml", text, Path::new("."), &[], None)?;
//! let results = Batch::new(scenario).run(Some(1))?;
//! assert_eq!(results.points.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod builtin;
pub mod command_line;
pub mod difference;
pub mod error;
mod estimate;
pub mod explain;
mod faults;
pub mod goal;
pub mod list;
mod null;
pub mod offered;
pub mod output;
mod parameters;
#[cfg(feature = "parquet")]
mod parquet;
pub mod redraw;
pub mod report;
pub mod results;
pub mod run;
pub mod scenario;
pub mod search;
pub mod size;
pub mod study;
pub mod sweep;
pub mod tables;
pub mod tune;

pub use error::{OutputError, ScenarioError};
pub use results::Results;
pub use run::{Batch, Progress, RunError};
pub use scenario::{PointSpec, Scenario};
