//! The control plane of P4-ORDC on a run: what it knows of jobs and pods, and what it acts on in the simulator.

use std::collections::VecDeque;

use rackweave_core::rng::mix;
use rackweave_core::{Rng, Time};
use rackweave_rackless::config::Configuration;
use rackweave_rackless::control::{Controlled, Controller, Status};
use rackweave_rackless::cost::{Reconfiguration, Scope};
use rackweave_rackless::demand::JobId;
use rackweave_rackless::fabric::{Architecture, Fabric};
use rackweave_rackless::plan::{Algorithm, EXACT_LIMIT, Options};
use rackweave_rackless::pod::{Pod, Tor};
use rackweave_sim::config::{Circuits, Dark, RunConfig, Topology};
use rackweave_sim::{GroupModel, World};
use rackweave_switch::net::Slab;

use super::ReduceConfig;
use super::job::{self, Job, JobNode};
use super::run::Programs;

/// The run that it controls.
type Run<'a> = World<'a, GroupModel<JobNode, Programs, Slab>>;

/// A run of the simulator.
pub(super) struct Simulated<'r, 'w> {
    pub(super) reduce: &'r ReduceConfig,
    pub(super) world: &'r mut Run<'w>,
}

impl Controlled for Simulated<'_, '_> {
    fn look(&mut self, ready: &mut VecDeque<JobId>) -> Vec<Status> {
        let mut jobs = Vec::new();
        for index in 0..self.reduce.hosts().len() {
            let node = self.world.node_mut(index).node_mut();
            ready.extend(std::iter::from_fn(|| node.poll_ready()).map(job::id));
            jobs.extend(node.records().map(|(job, record)| record.status(job)));
        }
        jobs
    }

    fn grant(&mut self, now: Time, job: JobId) {
        let Some(Job { number, master, .. }) = self.reduce.job_of(job) else { return };
        let Ok(index) = self.reduce.hosts().binary_search(master) else { return };
        let node = self.world.node_mut(index).node_mut();
        node.grant(now, *number, self.reduce.job.aggregation);
    }

    fn reconfigure(&mut self, to: &Configuration) -> Option<Time> {
        self.world.reconfigure(&circuits(to)).ok()
    }
}

/// The control plane of a run.
#[must_use]
pub fn controller(reduce: &ReduceConfig, config: &RunConfig) -> Controller {
    let jobs = reduce.jobs.iter().map(|job| (job::id(job.number), job.registered(&reduce.job)));
    let rng = Rng::stream(mix(config.seed), 0, 0, "control plane");
    let (fabric, adds_up) = (fabric(reduce, config), reduce.switches.is_some());
    Controller::new(jobs.collect(), fabric, adds_up, reduce.occasion, rng)
}

/// The circuits of a configuration, as the network takes them.
#[must_use]
pub fn circuits(configuration: &Configuration) -> Circuits {
    let Some(between) = configuration.circuits() else {
        return Circuits::Servers(configuration.tor_of().to_vec());
    };
    let tors = u16::try_from(between.tors()).unwrap_or(u16::MAX);
    let mut pairs = Vec::new();
    for a in 0..tors {
        for b in a + 1..tors {
            let count = between.between(usize::from(a), usize::from(b));
            pairs.extend(std::iter::repeat_n((a, b), usize::from(count)));
        }
    }
    Circuits::Tors(pairs)
}

/// The pod as the planner sees it; `None` if it has no circuits.
fn fabric(reduce: &ReduceConfig, config: &RunConfig) -> Option<(Fabric, Options)> {
    let Topology::Pod(pod) = &config.fabric.topology else { return None };
    let is_added_up = reduce.switches.is_some();
    let architecture = match (&pod.circuits, is_added_up) {
        (Circuits::None, _) => return None,
        (Circuits::Servers(_), false) => Architecture::Ordc,
        (Circuits::Servers(_), true) => Architecture::P4Ordc,
        (Circuits::Tors(_), true) => Architecture::P4IncAoi,
        (Circuits::Tors(_), false) => return None,
    };
    let slots = |number: u32| {
        let switch = reduce.switches.as_ref().filter(|switch| switch.number == number);
        switch.map_or(0, |switch| u64::from(switch.slots))
    };
    let servers = config.fabric.topology.hosts();
    let fabric = planned_fabric(pod, servers, architecture, slots)?.with_detour(is_added_up);
    let reconfiguration = Reconfiguration {
        delay: pod.ocs.switching_delay + pod.ocs.link_delay,
        scope: if pod.ocs.dark == Dark::All { Scope::All } else { Scope::Moved },
    };
    let is_small = fabric.configurations(EXACT_LIMIT).is_some();
    let algorithm = if is_small { Algorithm::Exact } else { Algorithm::Heuristic };
    Some((fabric, Options::new(algorithm, reconfiguration)))
}

/// A simulated pod as the planner sees it; `None` if the planner cannot have it. `slots` are those of each `ToR`.
pub(crate) fn planned_fabric(
    pod: &rackweave_sim::config::Pod,
    servers: u32,
    architecture: Architecture,
    slots: impl Fn(u32) -> u64,
) -> Option<Fabric> {
    let tor = |(number, tor): (u32, &rackweave_sim::config::Tor)| Tor {
        ports: tor.server_ports,
        uplinks: (tor.uplinks + tor.circuit_ports).max(1),
        uplink_rate: pod.core_link,
        slots: slots(number),
    };
    let tors = (0..).zip(&pod.tors).map(tor).collect();
    let planned = Pod::new(servers, pod.host_link, tors).ok()?;
    let initial = match &pod.circuits {
        Circuits::Servers(tor_of) => Configuration::new(&planned, tor_of).ok()?,
        _ => Configuration::in_order(&planned),
    };
    Some(Fabric::new(planned, architecture).starting_from(initial))
}
