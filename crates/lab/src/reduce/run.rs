//! Running jobs in the simulator.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rackweave_core::rng::mix;
use rackweave_core::{DropReason, Mixed};
use rackweave_group::reduce::job::{JobNode, NodeHeader};
use rackweave_group::reduce::switch::{self, Program};
use rackweave_group::reduce::system::NoSwitch;
use rackweave_group::system::Simulated;
use rackweave_sim::config::RunConfig;
use rackweave_sim::result::RunResult;
use rackweave_sim::{
    Attached, BuildError, Control, Fabric, FabricError, GroupModel, World, group_world,
};
use rackweave_switch::net::Slab;
use rackweave_wire::Header as WireHeader;
use rackweave_wire::frame::Unframeable;
use rackweave_wire::homa::Layout;
use rackweave_wire::pcapng::Frame;

use super::ReduceConfig;
use super::control::{Controller, Simulated as Controlled};
use super::node::Host;
use super::summary::ReduceResult;
use crate::results::frames;

/// Why jobs cannot be run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReduceError {
    /// The configured fabric is invalid.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The places of hosts are invalid.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// There is no such switch.
    #[error(transparent)]
    NoSwitch(#[from] NoSwitch),
    /// A captured packet could not be encoded.
    #[error(transparent)]
    Capture(#[from] Unframeable),
}

/// The outcome of a run with jobs.
#[derive(Debug)]
pub struct ReduceRun {
    /// The results that every run has. Stream 0 is the jobs; the streams of the configuration follow.
    pub result: RunResult,
    /// The results of the jobs themselves.
    pub reduce: ReduceResult,
    /// The captured packets; [`RunResult::capture`] is empty.
    pub capture: Vec<Frame>,
}

/// The packets of a run.
type RunHeader = Mixed<WireHeader, NodeHeader>;
/// The programs of the switches.
pub(super) type Programs = Simulated<Option<Program>, RunHeader>;

/// Runs a configuration to its end, with jobs and beside them the streams of `config`. Captures have Homa's headers in this layout.
///
/// # Errors
/// See [`ReduceError`].
pub fn run(
    reduce: &ReduceConfig,
    config: &RunConfig,
    layout: Layout,
    control: &Control,
) -> Result<ReduceRun, ReduceError> {
    let fabric = Fabric::new(&config.fabric)?;
    // Progress is measured by simulated time only.
    control.wanted.store(u64::MAX, Ordering::Relaxed);
    let switches = fabric.switches();
    if let Some(chosen) = reduce.switches.as_ref().filter(|chosen| chosen.number >= switches) {
        return Err(NoSwitch { number: chosen.number, switches }.into());
    }
    let node = |host| {
        let node = JobNode::new(host, reduce.job.clone(), &reduce.carrier, &reduce.jobs);
        Attached::at(host, Host(node))
    };
    let nodes = reduce.hosts().into_iter().map(node).collect();
    let program = |number: u32| {
        let chosen = reduce.switches.as_ref().filter(|chosen| chosen.number == number)?;
        let secret = mix(config.seed ^ u64::from(number));
        let limits = switch::Config::new(chosen.slots, secret);
        Some(Program::new(number, switch::Config { ways: chosen.ways, ..limits }))
    };
    let program = |number| -> Programs { Simulated::new(program(number)) };
    let mut world: World<'_, GroupModel<Host, Programs, Slab>> =
        group_world(config, Arc::new(fabric), nodes, program)?;
    let mut reconfigurations = 0;
    let end = match reduce.control {
        None => world.run_to_end(control),
        Some(interval) => {
            let mut controller = Controller::new(reduce, config);
            let limit = rackweave_core::Time::ZERO + config.measure.time_limit;
            let mut at = rackweave_core::Time::ZERO;
            loop {
                let is_over = world.run_until(at) || at >= limit;
                if is_over || control.cancel.load(Ordering::Relaxed) {
                    break;
                }
                controller.act(&mut Controlled { reduce, world: &mut world }, at);
                control.sim_time_ticks.store(at.ticks(), Ordering::Relaxed);
                at = at.saturating_add(interval).min(limit);
            }
            reconfigurations = controller.reconfigurations();
            // What is left is the end itself: nothing remains to be decided.
            world.run_to_end(control)
        }
    };
    let report = world.report(end);
    let mut results = ReduceResult {
        jobs: Vec::with_capacity(reduce.jobs.len()),
        trunk_bytes: crate::image::ImageResult::trunk_bytes(world.fabric(), &report.links),
        reconfigurations,
        lost_in_moves: report.counters.drops[DropReason::Reconfiguration as usize],
        ..ReduceResult::of(reduce)
    };
    for node in world.nodes() {
        let records = node.node().0.records();
        results.jobs.extend(records.map(|(job, record)| (job.clone(), *record)));
    }
    results.jobs.sort_by_key(|(job, _)| (job.start, job.number));
    for number in 0..world.fabric().switches() {
        if let Some(program) = world.program(number).program() {
            results.add_switch(program.counts());
        }
    }
    let (mut result, captured) = report.split_capture();
    let capture = frames(&captured, layout)?;
    results.put_into(world.fabric(), &mut result);
    Ok(ReduceRun { result, reduce: results, capture })
}
