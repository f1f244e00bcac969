//! From a scenario file to results.
//!
//! - [`scenario`]: TOML in, checked runs out.
//! - [`explain`]: what they mean, without running them.
//! - [`list`]: what there is to run.
//! - [`run`]: the runs on all cores.
//! - [`testbed`]: the runs on real hosts.
//! - [`cast`]: files from one to many.
//! - [`systems`]: the group systems that switches can run.
//! - [`results`]: what they found out, as numbers and as files.
//! - [`report`]: the same as a table and as a page.
//! - [`paper`]: what papers claim, and whether it holds here.

pub mod builtin;
pub mod cast;
pub mod error;
pub mod explain;
pub mod list;
pub mod paper;
mod path;
pub mod report;
pub mod results;
pub mod run;
pub mod scenario;
pub mod systems;
pub mod testbed;
mod view;

pub use error::{OutputError, ScenarioError};
pub use results::Results;
pub use run::{Batch, Progress, RunError};
pub use scenario::{PointSpec, Scenario};
