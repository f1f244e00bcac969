//! Who sends how much to whom, and when: the same generators for both worlds.
//!
//! - [`sizes`]: [`SizeDist`], how long messages are: published, from a file, or made up.
//! - [`pattern`]: [`WorkloadConfig`] and [`Pattern`], who sends to whom.
//! - [`load`]: how far apart messages are at a given load of the hosts' links.
//! - [`generator`]: [`Generator`], which draws the messages of each host from streams of its own.
//! - [`trace`]: [`Trace`], messages read from a file.

pub mod error;
pub mod generator;
pub mod load;
pub mod pattern;
mod rows;
pub mod sizes;
mod tables;
pub mod trace;

pub use error::{LineProblem, SizesError, TraceError, WorkloadError};
pub use generator::Generator;
pub use load::{Grants, open_loop_gap};
pub use pattern::{Arrival, Exchange, LoadCounts, Pattern, WorkloadConfig};
pub use sizes::{Interpolation, MAX_MESSAGE_BYTES, SizeDist};
pub use trace::{Trace, TraceEntry};
