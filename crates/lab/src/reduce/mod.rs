//! Jobs of MapReduce whose pairs are added up on the way, in the simulator.
//!
//! - [`ReduceConfig`]: the parameters of a run, resolved from a scenario's `[workload.reduce]`.
//! - [`run()`]: a run on a [`World`](rackweave_sim::World).
//! - [`ReduceSummary`]: the results that only such jobs have.

mod control;
mod node;
mod run;
mod summary;
#[cfg(test)]
mod tests;
mod turns;

use rackweave_core::{HostId, Span};
use rackweave_group::reduce::job::{self, Job};
use rackweave_transport::TransportConfig;

pub(crate) use self::control::{Controlled, Controller, planned_fabric};
pub use self::run::{ReduceError, ReduceRun, run};
pub use self::summary::{JobSummary, ReduceResult, ReduceSummary};

/// The parameters of a run with jobs.
#[derive(Clone, Debug)]
pub struct ReduceConfig {
    /// The jobs, in the order of their starts.
    pub jobs: Vec<Job>,
    /// What they have in common.
    pub job: job::Config,
    /// What carries the master's data to the workers.
    pub carrier: TransportConfig,
    /// The switches that add up; `None` if masters do.
    pub switches: Option<Switches>,
    /// How often the control plane looks at the jobs, if it schedules their uploads and moves circuits for them.
    pub control: Option<Span>,
    /// When circuits are planned.
    pub occasion: Occasion,
    /// Times at which completed jobs are counted.
    pub marks: Vec<Span>,
    /// The groups of hosts that jobs run on by turns; empty if there are none.
    pub groups: Vec<Vec<u32>>,
}

/// When the control plane plans circuits. The paper does not say it; an architecture that plans more often than another one has an
/// advantage, or a disadvantage where each move costs more than it saves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Occasion {
    /// Whenever a job begins or ends to transfer data or to upload.
    #[default]
    Phases,
    /// When uploads begin.
    Uploads,
}

/// The switches that add up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switches {
    /// The number of the switch that all jobs use.
    pub number: u32,
    /// The number of its slots.
    pub slots: u32,
    /// The number of slots of a bucket.
    pub ways: u8,
}

impl ReduceConfig {
    /// Returns the hosts that are a master or a worker of a job, in their order.
    #[must_use]
    pub fn hosts(&self) -> Vec<HostId> {
        let of_job =
            |job: &Job| job.workers.iter().copied().chain([job.master]).collect::<Vec<_>>();
        let mut hosts: Vec<_> = self.jobs.iter().flat_map(of_job).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }

    /// Returns the length of all jobs' data in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.jobs.iter().map(|job| job.bytes).sum()
    }
}
