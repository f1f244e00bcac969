//! Running jobs in the simulator.

use std::sync::atomic::Ordering;

use rackweave_aggregation::switch::{self, Program};
use rackweave_aggregation::system::NoSwitch;
use rackweave_core::rng::mix;
use rackweave_core::{DropReason, Mixed, Time};
use rackweave_sim::{Attached, GroupModel, World};
use rackweave_switch::net::Slab;
use rackweave_switch::system;
use rackweave_wire::Header as WireHeader;

use super::ReduceConfig;
use super::control::{ControlPlane, Simulated};
use super::job::{JobNode, NodeHeader};
use super::summary::{ReduceResult, ReduceSummary};
use crate::results::trunk_bytes;
use crate::study::{Done, Setting, StudyError, StudySummary};

/// The packets of a run.
type RunHeader = Mixed<WireHeader, NodeHeader>;
/// The programs of the switches.
pub(super) type Programs = system::Simulated<Option<Program>, RunHeader>;

/// Runs jobs to their end, and in parallel the streams of the configuration.
pub(super) fn run(reduce: &ReduceConfig, setting: &Setting<'_>) -> Result<Done, StudyError> {
    let &Setting { config, control, .. } = setting;
    let switches = setting.fabric.switches();
    if let Some(chosen) = reduce.switches.as_ref().filter(|chosen| chosen.number >= switches) {
        return Err(StudyError::of_kind(NoSwitch { number: chosen.number, switches }));
    }
    let node = |host| {
        let node = JobNode::new(host, reduce.job.clone(), &reduce.carrier, &reduce.jobs);
        Attached::at(host, node)
    };
    let hosts = reduce.hosts();
    let nodes = hosts.iter().copied().map(node).collect();
    let program = |number: u32| {
        let chosen = reduce.switches.as_ref().filter(|chosen| chosen.number == number)?;
        let secret = mix(config.seed ^ u64::from(number));
        let limits = switch::Config::new(chosen.slots, secret);
        Some(Program::new(number, switch::Config { ways: chosen.ways, ..limits }))
    };
    let program = |number| -> Programs { system::Simulated::new(program(number)) };
    let mut world: World<'_, GroupModel<JobNode, Programs, Slab>> =
        setting.world(nodes, program)?;
    let mut reconfigurations = 0;
    if let Some(how) = &reduce.control {
        let mut plane = ControlPlane::new(reduce, how.clone(), config);
        let limit = Time::ZERO + config.measure.time_limit;
        let mut at = Time::ZERO;
        while !world.run_until(at) && at < limit && !control.cancel.load(Ordering::Relaxed) {
            plane.act(&mut Simulated { reduce, world: &mut world, hosts: &hosts }, at);
            control.sim_time_ticks.store(at.ticks(), Ordering::Relaxed);
            at = plane.next_time(at).min(limit);
        }
        reconfigurations = plane.reconfigurations();
    }
    // With a control plane what is left is the end itself: nothing remains to be decided.
    let end = world.run_to_end(control);
    let report = world.report(end);
    let mut results = ReduceResult {
        jobs: Vec::with_capacity(reduce.jobs.len()),
        trunk_bytes: trunk_bytes(world.fabric(), &report.links),
        reconfigurations,
        lost_in_moves: report.counters.drops[DropReason::Reconfiguration as usize],
        ..ReduceResult::of(reduce)
    };
    for node in world.nodes() {
        let records = node.node().records();
        results.jobs.extend(records.map(|(job, record)| (job.clone(), *record)));
    }
    results.jobs.sort_by_key(|(job, _)| (job.start, job.number));
    for number in 0..world.fabric().switches() {
        if let Some(program) = world.program(number).program() {
            results.add_switch(program.counts());
        }
    }
    let (mut result, capture) = setting.divide(report)?;
    results.put_into(world.fabric(), &mut result);
    let summary = StudySummary::Reduce(ReduceSummary::new(&results));
    Ok(Done { result, summary, detail: None, capture })
}
