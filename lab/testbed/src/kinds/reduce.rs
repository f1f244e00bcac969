//! Jobs on real hosts.

use rackweave_aggregation::switch;
use rackweave_core::{DropReason, Time};
use rackweave_lab::results::trunk_bytes;
use rackweave_lab::scenario::PointSpec;
use rackweave_lab::study::reduce::job::{Job, Map, Record};
use rackweave_lab::study::reduce::{By, ReduceConfig, ReduceResult, ReduceSummary};
use rackweave_lab::study::{StudyDetail, StudySummary};
use rackweave_sim::result::RunResult;

use super::{Ends, HostProcess, OnTestbed};
use crate::systems::{self, Systems};
use crate::{StudyEnd, TestbedError, refused, run_reduce};

/// The largest data of a job in bytes.
const LARGEST_JOB: u64 = 1 << 30;

impl OnTestbed for ReduceConfig {
    fn check(&self, point: &PointSpec, _overlay: bool) -> Result<(), TestbedError> {
        check(self, point)
    }

    fn busy_hosts(&self) -> usize {
        self.hosts().len()
    }

    fn systems(&self) -> Systems {
        systems::of_reduce(self)
    }

    fn moves_circuits(&self) -> bool {
        true
    }

    fn note(&self) -> Option<&'static str> {
        Some(
            "jobs wait for map_cost and reduce_cost as in the simulator, and take the machine's time as well",
        )
    }

    fn run_host(&self, host: &HostProcess<'_>) -> Result<(), String> {
        run_reduce(self, host)
    }

    fn results(
        &self,
        ends: &Ends<'_>,
        result: &mut RunResult,
    ) -> (StudySummary, Option<StudyDetail>) {
        let in_time = |at: &Time| ends.is_in_time(*at);
        let of_job = |job: &Job| {
            let Some(StudyEnd::Reduce(end)) = &ends.hosts.get(&job.master.0)?.study else {
                return None;
            };
            let record = end.jobs.iter().find(|end| end.job == job.number)?.record();
            Some(Record { finished: record.finished.filter(in_time), ..record })
        };
        let jobs = self.jobs.iter().map(|job| (job.clone(), of_job(job).unwrap_or_default()));
        let count = |name: &str| ends.switch.program.get(name).copied().unwrap_or_default();
        let reduce = ReduceResult {
            jobs: jobs.collect(),
            switches: switch::Counters {
                packets: count("packets_added"),
                pairs: count("pairs"),
                absorbed: count("pairs_absorbed"),
                residual: count("pairs_residual"),
                duplicates: count("duplicates"),
                fetched: count("sums_fetched"),
                stale: count("stale"),
                refused: count("jobs_refused"),
                emitted: count("words_emitted"),
                chunks: count("chunks_added"),
                chunk_duplicates: count("chunk_duplicates"),
                chunk_sums: count("chunk_sums"),
            },
            trunk_bytes: trunk_bytes(ends.fabric, &ends.switch.links),
            reconfigurations: ends.reconfigurations,
            lost_in_moves: ends.switch.counters.drops[DropReason::Reconfiguration as usize],
            ..ReduceResult::of(self)
        };
        reduce.put_into(ends.fabric, result);
        (StudySummary::Reduce(ReduceSummary::new(&reduce)), None)
    }
}

fn check(reduce: &ReduceConfig, point: &PointSpec) -> Result<(), TestbedError> {
    let in_simulator = "`rackweave run` simulates it";
    if reduce.job.map != Map::Local {
        let message = "the testbed carries no data of jobs to their workers";
        return Err(refused(
            message,
            "set workload.reduce.map to \"local\": workers have their data",
        ));
    }
    if reduce.control.as_ref().is_some_and(|how| how.by == By::Traffic) {
        let message = "the testbed's switch counts no servers' traffic for its control plane";
        return Err(refused(message, in_simulator));
    }
    if !point.config.streams.is_empty() {
        let message = "the testbed carries no [[background]] streams with jobs";
        return Err(refused(message, in_simulator));
    }
    if let Some(job) = reduce.jobs.iter().find(|job| job.bytes > LARGEST_JOB) {
        let bytes = job.bytes;
        return Err(refused(
            format!("a job of {bytes} bytes: the testbed takes {LARGEST_JOB} at most"),
            "the pairs of all workers are in the memory of one machine",
        ));
    }
    Ok(())
}
