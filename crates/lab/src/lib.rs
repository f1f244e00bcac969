//! From a scenario file to results.
//!
//! - [`scenario`]: TOML in, checked runs out.
//! - [`run`]: the runs on all cores.
//! - [`results`]: what they found out, as numbers and as files.

pub mod builtin;
pub mod error;
mod path;
pub mod results;
pub mod run;
pub mod scenario;

pub use error::{OutputError, ScenarioError};
pub use results::Results;
pub use run::{Batch, Progress, RunError};
pub use scenario::{PointSpec, Scenario};
