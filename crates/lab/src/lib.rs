//! From a scenario file to results.
//!
//! - [`scenario`]: TOML in, checked runs out.
//! - [`explain`]: what a run means and costs, without running it.
//! - [`list`]: what can be run.
//! - [`run`]: runs in the simulator, on all cores.
//! - [`testbed`]: runs on real hosts.
//! - [`cast`]: files from one host to many.
//! - [`systems`]: the group systems that switches can run.
//! - [`results`]: what was measured, as numbers.
//! - [`report`]: the same as a table and as a page.
//! - [`output`]: both as files.
//! - [`paper`]: what papers claim, and whether it holds here.

pub mod builtin;
pub mod cast;
pub mod error;
pub mod explain;
mod item;
pub mod list;
pub mod output;
pub mod paper;
mod path;
pub mod report;
pub mod results;
pub mod run;
pub mod scenario;
pub mod systems;
pub mod testbed;

pub use error::{OutputError, ScenarioError};
pub use results::Results;
pub use run::{Batch, Progress, RunError};
pub use scenario::{PointSpec, Scenario};
