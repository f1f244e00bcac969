//! The keys of scenario files, without those of any kind of workload: places, units, tables, and what they resolve to.
//!
//! A file is read into a [`tree`] whose keys and values know their positions in the text. `--set` and `[sweep]` ([`sweep`]) operate on that
//! tree. Then [`de`] reads the tables of each point, and their values are checked against each other, so that an error in a swept value
//! points at that value wherever it was written ([`source`]). `rackweave-lab` has the file as a whole, and the kinds of workload.

mod application;
mod collective;
pub mod de;
pub mod derived;
pub mod error;
pub mod fabric;
pub mod file;
pub mod host;
mod hosts;
pub mod item;
pub mod keys;
pub mod measure;
pub mod path;
mod pod;
pub mod problem;
pub mod source;
pub mod sweep;
pub mod testbed;
pub mod transport;
pub mod tree;
pub mod values;
pub mod workload;

pub use self::error::ScenarioError;
pub use self::hosts::{FabricFile, Hosts};

/// The position for errors about missing keys.
pub const START: tree::Origin = tree::Origin { source: 0, start: 0, end: 0 };
