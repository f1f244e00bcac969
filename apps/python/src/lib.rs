//! The native module of the Python package `rackweave`.
//!
//! It is a door to `rackweave-lab`, where all logic is: scenarios are read, points run and results written by the code of the command,
//! so that both give the same bytes. Groups of workers that add up vectors (`group`) are a door to `rackweave-reduce`. What users import is the package in `python/rackweave`, which adds progress, notebooks and
//! executors, and documents these classes.

mod batch;
mod error;
#[cfg(target_os = "linux")]
mod group;
mod results;
mod scenario;
mod sweep;
mod table;

/// The module as Python imports it.
#[pyo3::pymodule(name = "_native")]
mod native {
    #[pymodule_export]
    use super::batch::Batch;
    #[pymodule_export]
    use super::error::{OutputError, RunError, ScenarioError};
    #[cfg(target_os = "linux")]
    #[pymodule_export]
    use super::group::{Group, GroupError, Master};
    #[pymodule_export]
    use super::results::{Results, Saved};
    #[pymodule_export]
    use super::scenario::{Scenario, set_argument};
    #[pymodule_export]
    use super::sweep::{Sweep, run_point};
    #[pymodule_export]
    use super::table::Table;

    /// The version of Rackweave.
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name is Python's")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
