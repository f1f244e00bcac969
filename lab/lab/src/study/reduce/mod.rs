//! Jobs of MapReduce whose pairs are added up on the way.
//!
//! - [`ReduceConfig`]: the parameters of a run, resolved from a scenario's `[workload.reduce]`.
//! - [`job`]: jobs at the hosts of a run, of the simulator or of the testbed.
//! - [`ControlPlane`]: the controller that grants their uploads and moves circuits.
//! - [`ReduceSummary`]: the results that only such jobs have.

mod control;
pub mod job;
mod keys;
mod run;
mod scheme;
mod section;
mod summary;
mod tables;
#[cfg(test)]
mod tests;
mod turns;

use rackweave_core::{HostId, Span};
use rackweave_scenario::keys::Chosen;
use rackweave_scenario::problem::Problem;
use rackweave_transport::TransportConfig;

pub(crate) use self::control::planned_fabric;
pub use self::control::{By, Control, ControlPlane, Controlled, Status};
use self::job::Job;
pub use self::summary::{JobSummary, ReduceResult, ReduceSummary};
use super::{Configured, Done, Ground, Kind, Setting, StudyError, TerminalTable};
use crate::explain::Volume;
use crate::report::html::KindSection;
use crate::results::PointResult;
use crate::tables::Sink;

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
    /// The control plane, if one schedules uploads and moves circuits for them.
    pub control: Option<Control>,
    /// Times at which completed jobs are counted.
    pub marks: Vec<Span>,
    /// The groups of hosts that jobs run on by turns; empty if there are none.
    pub groups: Vec<Vec<u32>>,
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
    /// Returns the length of all jobs' data in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.jobs.iter().map(|job| job.bytes).sum()
    }

    /// Returns the job of this number.
    #[must_use]
    pub fn job_of(&self, number: u16) -> Option<&Job> {
        self.jobs.iter().find(|job| job.number == number)
    }

    /// Returns the slots of a switch; 0 if it does not add up.
    fn slots_at(&self, number: u32) -> u64 {
        let switch = self.switches.as_ref().filter(|switch| switch.number == number);
        switch.map_or(0, |switch| u64::from(switch.slots))
    }

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
}

impl Kind for ReduceConfig {
    type Keys = keys::ReduceKeys;
    type Scheme = scheme::Name;

    const RUNS_ON_PODS: bool = true;
    const SIZES: &'static [&'static str] =
        &["workload.reduce.jobs", "workload.reduce.size", "workload.reduce.largest"];
    const TERMINAL: Option<TerminalTable<ReduceSummary>> =
        Some(TerminalTable("Jobs", tables::REDUCE));
    #[cfg(test)]
    const EXAMPLE: &'static str = "[workload.reduce]\nworkers = 2\nsize = '1 MB'";

    fn resolve(
        keys: &Self::Keys,
        scheme: &Chosen<Self::Scheme>,
        ground: &Ground<'_>,
    ) -> Result<Self, Problem> {
        keys.resolve(scheme, ground)
    }

    fn tables<S: Sink>(points: &[PointResult], sink: &mut S) -> Result<(), S::Error> {
        tables::write(points, sink)
    }

    fn section(section: &mut KindSection<'_, Self>) {
        section::write(section);
    }
}

impl Configured for ReduceConfig {
    fn run(&self, setting: &Setting<'_>) -> Result<Done, StudyError> {
        run::run(self, setting)
    }

    /// A message is the data of a job on their way to its workers, and the pairs on theirs to its master.
    fn volume(&self) -> Volume {
        let mean_bytes = self.bytes() as f64 / self.jobs.len().max(1) as f64;
        // Full frames, and a quarter of the data in pairs of 20 bytes.
        Volume::of_messages(self.jobs.len() as u64, mean_bytes, mean_bytes / 1460.0 * 1.5)
    }

    fn data_bytes(&self) -> u64 {
        self.bytes()
    }
}
