//! The control plane of a run: which upload has the switch, and which circuits there are meanwhile.
//!
//! As in P4-ORDC (section 2) it knows the jobs and their phases, plans the circuits for what they transfer now, and gives the slots of the
//! programmable switch to one upload after the other. Its messages to hosts and switches are not in the network: it sees and acts
//! at intervals, which stands for its delay. It controls a run of the simulator, or one of the testbed ([`Controlled`]).

use std::collections::{BTreeMap, VecDeque};

use rackweave_core::rng::mix;
use rackweave_core::{HostId, Rng, Time};
use rackweave_group::reduce::job::{self, Job, Record};
use rackweave_rackless::config::Configuration;
use rackweave_rackless::cost::{Reconfiguration, Scope};
use rackweave_rackless::demand::{Flow, JobId, Period, Upload};
use rackweave_rackless::fabric::{Architecture, Fabric};
use rackweave_rackless::plan::{Algorithm, EXACT_LIMIT, Options, plan};
use rackweave_rackless::pod::{Pod, Tor};
use rackweave_sim::config::{Circuits, Dark, RunConfig, Topology};
use rackweave_sim::{GroupModel, World};
use rackweave_switch::net::Slab;
use rackweave_wire::reduce::PAIR_BYTES;

use super::node::Host;
use super::run::Programs;
use super::{Occasion, ReduceConfig};

/// The run that it controls.
type Run<'a> = World<'a, GroupModel<Host, Programs, Slab>>;

/// The hosts and switches that a control plane acts on.
pub trait Controlled {
    /// Returns all jobs and how far they have come, and adds the numbers of those that have become ready to `ready`.
    fn jobs(&mut self, ready: &mut VecDeque<u16>) -> Vec<(Job, Record)>;

    /// Lets the upload of a job begin.
    fn grant(&mut self, now: Time, job: &Job);

    /// Changes circuits. Returns when the ports that are dark for it are lit again; `None` if circuits have not changed.
    fn reconfigure(&mut self, circuits: &Circuits) -> Option<Time>;
}

/// A run of the simulator.
pub(super) struct Simulated<'r, 'w> {
    pub(super) reduce: &'r ReduceConfig,
    pub(super) world: &'r mut Run<'w>,
}

impl Controlled for Simulated<'_, '_> {
    fn jobs(&mut self, ready: &mut VecDeque<u16>) -> Vec<(Job, Record)> {
        let mut jobs = Vec::new();
        for index in 0..self.reduce.hosts().len() {
            let node = &mut self.world.node_mut(index).node_mut().0;
            ready.extend(std::iter::from_fn(|| node.poll_ready()));
            jobs.extend(node.records().map(|(job, record)| (job.clone(), *record)));
        }
        jobs
    }

    fn grant(&mut self, now: Time, job: &Job) {
        let Ok(index) = self.reduce.hosts().binary_search(&job.master) else { return };
        let node = &mut self.world.node_mut(index).node_mut().0;
        node.grant(now, job.number, self.reduce.job.aggregation);
    }

    fn reconfigure(&mut self, circuits: &Circuits) -> Option<Time> {
        self.world.reconfigure(circuits).ok()
    }
}

/// The control plane of a run.
pub struct Controller<'a> {
    reduce: &'a ReduceConfig,
    /// What circuits can be; `None` if there are none to move.
    fabric: Option<(Fabric, Options)>,
    /// Jobs whose workers are ready, in the order in which they became so.
    ready: VecDeque<u16>,
    /// The job whose upload has the switch.
    active: Option<u16>,
    /// Jobs whose uploads begin when the circuits that were planned for them are up.
    chosen: Vec<u16>,
    /// When the circuits are up.
    up: Time,
    rng: Rng,
    reconfigurations: u64,
    /// The phases for which circuits were planned last.
    planned: Vec<(u16, Phase)>,
    sizes: Sizes,
}

/// The bytes of pairs of each job, as the job handler knows them from its model of the text.
#[derive(Default)]
struct Sizes(BTreeMap<u16, [u64; 2]>);

impl Sizes {
    /// Returns the bytes of a worker's pairs, and those of all distinct words.
    fn of(&mut self, job: &Job, config: &job::Config) -> [u64; 2] {
        let compute = || {
            let words = config.text.words(job.bytes);
            let own = words / job.workers.len() as u64;
            let pairs = if config.combiner { config.text.distinct(own) } else { own as f64 };
            [pairs, config.text.distinct(words)].map(|pairs| (pairs * PAIR_BYTES as f64) as u64)
        };
        *self.0.entry(job.number).or_insert_with(compute)
    }
}

/// What a job transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Data,
    Upload,
}

impl<'a> Controller<'a> {
    /// Returns the control plane of a run that begins.
    #[must_use]
    pub fn new(reduce: &'a ReduceConfig, config: &RunConfig) -> Self {
        Self {
            reduce,
            fabric: fabric(reduce, config),
            ready: VecDeque::new(),
            active: None,
            chosen: Vec::new(),
            up: Time::ZERO,
            rng: Rng::stream(mix(config.seed), 0, 0, "control plane"),
            reconfigurations: 0,
            planned: Vec::new(),
            sizes: Sizes::default(),
        }
    }

    /// Returns how often it has changed circuits.
    #[must_use]
    pub const fn reconfigurations(&self) -> u64 {
        self.reconfigurations
    }

    /// Looks at the jobs, and decides.
    pub fn act(&mut self, world: &mut impl Controlled, now: Time) {
        let mut jobs = world.jobs(&mut self.ready);
        jobs.sort_by_key(|(job, _)| job.number);
        let was_chosen = self.chosen.len();
        if self.reduce.switches.is_some() {
            self.share_switch(&jobs);
        } else {
            // Nothing is shared, so that uploads do not wait for one another.
            self.chosen.extend(self.ready.drain(..));
        }
        let phases = self.phases(&jobs);
        let is_due = match self.reduce.occasion {
            Occasion::Phases => phases != self.planned,
            Occasion::Uploads => self.chosen.len() > was_chosen,
        };
        if is_due {
            self.move_circuits(world, now, &jobs, &phases);
            self.planned = phases;
        }
        if self.up <= now {
            for job in std::mem::take(&mut self.chosen) {
                self.grant(world, now, job);
            }
        }
    }

    /// One upload after the other has the switch.
    fn share_switch(&mut self, jobs: &[(Job, Record)]) {
        let has_ended = |number: u16| {
            let record =
                jobs.iter().find(|(job, _)| job.number == number).map(|(_, record)| record);
            record.is_some_and(|record| record.uploaded.is_some() || record.failed.is_some())
        };
        if self.active.is_some_and(has_ended) {
            self.active = None;
        }
        if self.active.is_none()
            && let Some(next) = self.ready.pop_front()
        {
            self.active = Some(next);
            self.chosen.push(next);
        }
    }

    /// What jobs transfer, and are about to.
    fn phases(&self, jobs: &[(Job, Record)]) -> Vec<(u16, Phase)> {
        let phase = |(job, record): &(Job, Record)| {
            let phase = match self.chosen.contains(&job.number) {
                true => Phase::Upload,
                false => phase(record)?,
            };
            Some((job.number, phase))
        };
        jobs.iter().filter_map(phase).collect()
    }

    fn grant(&self, world: &mut impl Controlled, now: Time, job: u16) {
        if let Some(job) = self.reduce.jobs.iter().find(|of| of.number == job) {
            world.grant(now, job);
        }
    }

    /// Plans circuits for what the jobs transfer, and moves to them if that saves time.
    fn move_circuits(
        &mut self,
        world: &mut impl Controlled,
        now: Time,
        jobs: &[(Job, Record)],
        phases: &[(u16, Phase)],
    ) {
        let Some((fabric, options)) = &mut self.fabric else { return };
        let is_added_up = self.reduce.switches.is_some();
        let mut flows = Vec::new();
        let mut uploads = Vec::new();
        for &(number, phase) in phases {
            let Some((job, _)) = jobs.iter().find(|(job, _)| job.number == number) else {
                continue;
            };
            let share = job.bytes / job.workers.len() as u64;
            let [pairs, distinct] = self.sizes.of(job, &self.reduce.job);
            if phase == Phase::Upload && is_added_up {
                let workers: Vec<_> = job.workers.iter().map(|worker| (worker.0, pairs)).collect();
                // Without a combiner a worker has more than is distinct, which the planner does not know of.
                let distinct = distinct.clamp(pairs, pairs * workers.len() as u64);
                let id = JobId(job.number + 1);
                uploads.extend(Upload::new(id, job.master.0, workers, distinct).ok());
                continue;
            }
            for HostId(worker) in job.workers.iter().copied() {
                let master = job.master.0;
                let (src, dst, bytes) = match phase {
                    Phase::Data => (master, worker, share),
                    Phase::Upload => (worker, master, pairs),
                };
                if src != dst {
                    flows.push(Flow { src, dst, bytes });
                }
            }
        }
        let Ok(period) = Period::new(fabric.pod().servers(), flows, uploads, Vec::new()) else {
            return;
        };
        let Ok(plan) = plan(fabric, &[period], options, &mut self.rng) else { return };
        let Some(step) = plan.steps.first().filter(|step| step.is_reconfigured()) else { return };
        if let Some(up) = world.reconfigure(&circuits(&step.configuration)) {
            *fabric = fabric.clone().starting_from(step.configuration.clone());
            self.up = self.up.max(up).max(now);
            self.reconfigurations += 1;
        }
    }
}

/// What a job transfers: nothing while it computes.
fn phase(record: &Record) -> Option<Phase> {
    match record {
        Record { uploaded: Some(_), .. } | Record { failed: Some(_), .. } => None,
        Record { granted: Some(_), .. } => Some(Phase::Upload),
        Record { distributed: None, started: Some(_), .. } => Some(Phase::Data),
        _ => None,
    }
}

/// The circuits of a configuration, as the network takes them.
fn circuits(configuration: &Configuration) -> Circuits {
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
