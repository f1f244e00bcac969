//! Running an all-reduce in the simulator.

use std::sync::Arc;

use rackweave_aggregation::switch::{self, Program};
use rackweave_aggregation::system::NoSwitch;
use rackweave_aggregation::vector::layout::Layout;
use rackweave_aggregation::vector::master::{self, Master};
use rackweave_aggregation::vector::node::{Aggregator, VectorNode, WorkerSide};
use rackweave_aggregation::vector::ring::Ring;
use rackweave_aggregation::vector::worker;
use rackweave_core::rng::mix;
use rackweave_core::{Destination, HostId, Mixed, Time};
use rackweave_sim::{Attached, GroupModel, World};
use rackweave_switch::net::Slab;
use rackweave_switch::system::Simulated;
use rackweave_wire::Header as WireHeader;

use super::node::{AggregatedHost, Host, NodeHeader, Training, instance};
use super::ring::{Memory, RingHost};
use super::summary::{AllreduceResult, AllreduceSummary};
use super::{AllreduceConfig, Scheme};
use crate::study::{Done, Setting, StudyError, StudySummary};

/// The packets of a run.
type RunHeader = Mixed<WireHeader, NodeHeader>;
/// The programs of the switches.
type Programs = Simulated<Option<Program>, RunHeader>;

/// The number of the job, the only one of a run.
const JOB: u16 = 1;

/// Runs an all-reduce to its end, and in parallel the streams of the configuration.
pub(super) fn run(allreduce: &AllreduceConfig, setting: &Setting<'_>) -> Result<Done, StudyError> {
    let allreduce = &Arc::new(allreduce.clone());
    let config = setting.config;
    let switches = setting.fabric.switches();
    let chosen = match allreduce.scheme {
        Scheme::Switch { number, .. } if number >= switches => {
            return Err(StudyError::of_kind(NoSwitch { number, switches }));
        }
        Scheme::Switch { number, slots } => Some((number, slots)),
        Scheme::Host { .. } | Scheme::Ring { .. } => None,
    };
    let memory = Memory::default();
    let hosts = allreduce.hosts().into_iter();
    let nodes = hosts.map(|host| Attached::at(host, node(allreduce, host, &memory))).collect();
    let program = |number: u32| -> Programs {
        let slots = chosen.filter(|(chosen, _)| *chosen == number).map(|(_, slots)| slots);
        let secret = mix(config.seed ^ u64::from(number));
        Simulated::new(slots.map(|slots| Program::new(number, switch::Config::new(slots, secret))))
    };
    let mut world: World<'_, GroupModel<Host, Programs, Slab>> = setting.world(nodes, program)?;
    let end = world.run_to_end(setting.control);
    let report = world.report(end);
    let mut results = AllreduceResult::new(allreduce, setting.fabric.host_rate());
    for node in world.nodes() {
        results.add(node.node());
    }
    for number in 0..world.fabric().switches() {
        if let Some(program) = world.program(number).program() {
            results.add_program(program.counts());
        }
    }
    results.check(allreduce);
    let (mut result, capture) = setting.divide(report)?;
    results.put_into(world.fabric(), &mut result);
    let summary = StudySummary::Allreduce(AllreduceSummary::new(&results));
    Ok(Done { result, summary, detail: None, capture })
}

/// What runs at a host.
fn node(config: &Arc<AllreduceConfig>, host: HostId, memory: &Memory) -> Host {
    let number = config.workers.iter().position(|worker| *worker == host);
    let training = number.map(|number| Training::new(config, number as u8));
    if let (Scheme::Ring { carrier, piece_bytes }, Some(number), Some(training)) =
        (&config.scheme, number, training.clone())
    {
        let (workers, length) = (config.workers.len(), config.vectors.length as usize);
        let piece = (piece_bytes / config.element_bytes()).max(1) as usize;
        let ring = Ring::new(number as u16, workers as u16, length, piece);
        let (next, machine) = (config.workers[(number + 1) % workers], carrier.machine(host));
        let bytes = config.element_bytes();
        let ring = RingHost::new((host, next), ring, machine, training, memory, bytes);
        return Host::Ring(Box::new(ring));
    }
    let (aggregator, master) = match config.scheme {
        Scheme::Switch { number, .. } => (Destination::Switch(number).address(), config.workers[0]),
        Scheme::Host { server } => (server, server),
        Scheme::Ring { .. } => (host, host),
    };
    let mut node = VectorNode::new(host);
    if let Some(number) = number {
        let worker = worker::Config {
            length: config.vectors.length,
            format: config.vectors.format,
            min_rto: config.min_rto,
            fixed_timer: config.fixed_timer,
            ..worker::Config::new(JOB, number as u8, master, instance(config.seed, host))
        };
        node = node.with_worker(WorkerSide::new(worker, Time::ZERO));
    }
    let (token, secret) = (mix(config.seed), mix(config.seed ^ 1));
    if host == master {
        let workers = config.workers.len() as u8;
        let master = master::Config {
            aggregators: vec![aggregator],
            ..master::Config::new(JOB, workers, config.vectors, token, secret)
        };
        node = node.with_master(Master::new(master, Time::ZERO));
    }
    if host == aggregator {
        let layout = Layout {
            length: config.vectors.length,
            elements: config.vectors.elements,
            pool: config.vectors.pool,
            format: config.vectors.format,
            steps: config.vectors.steps,
            workers: config.workers.len() as u8,
        };
        // Twice what can be outstanding: each chunk has an answer for each worker.
        let limit = 2 * usize::from(layout.pool) * config.workers.len();
        let limits = Aggregator::limits(&layout, mix(secret));
        node = node.with_aggregator(Aggregator::new(host, limits, limit));
    }
    Host::Aggregated(Box::new(AggregatedHost::new(node, training)))
}
