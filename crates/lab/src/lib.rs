//! From a scenario file to results.
//!
//! - [`scenario`]: TOML in, checked runs out.

pub mod builtin;
pub mod error;
mod path;
pub mod scenario;

pub use error::{OutputError, ScenarioError};
pub use scenario::{PointSpec, Scenario};
