//! What readers of the page see.

use rackweave_core::{Span, Time};
use rackweave_rackless::config::Configuration;
use rackweave_rackless::controller::{Controller, Entry, Event, Planned, Standing};
use serde::Serialize;

use crate::api::Job;
use crate::core::{Core, Told};
use crate::tenants::Tenant;

/// The pod at one time.
#[derive(Debug, Serialize)]
pub(crate) struct Status {
    now_ms: u64,
    standing: &'static str,
    term: u64,
    /// Why nothing is stored.
    problem: Option<String>,
    pub(crate) circuits: Circuits,
    jobs: Vec<Job>,
    agents: Vec<Agent>,
    pub(crate) plan: Plan,
    /// Bytes per second from and to each server.
    sent: Vec<u64>,
    received: Vec<u64>,
    events: Vec<Told>,
}

/// Which server is below which `ToR`.
#[derive(Debug, Serialize)]
pub(crate) struct Circuits {
    /// The changes that this pod's controllers have commanded.
    version: u64,
    /// The servers of each `ToR`; `None` as long as no agent has reported them.
    racks: Option<Vec<Vec<u32>>>,
    tors: Vec<Tor>,
}

#[derive(Debug, Serialize)]
struct Tor {
    ports: u32,
    slots: u64,
}

#[derive(Debug, Serialize)]
struct Agent {
    name: String,
    is_up: bool,
    problem: Option<String>,
    has_circuits: bool,
    tors: Vec<u16>,
}

/// The sequence of configurations.
#[derive(Debug, Serialize)]
pub(crate) struct Plan {
    planned_ms: u64,
    period_ms: u64,
    steps: Vec<Step>,
}

#[derive(Debug, Serialize)]
struct Step {
    racks: Vec<Vec<u32>>,
    moves: usize,
    bytes: u64,
    absorbed: u64,
    time_us: u64,
    uploads: Vec<u16>,
}

pub(crate) const fn name(standing: Standing) -> &'static str {
    match standing {
        Standing::Active => "active",
        Standing::Alone => "alone",
        Standing::Standby => "standby",
    }
}

impl Status {
    /// The pod at present, with the events after this one. A reader that is no operator sees the names of its own jobs only.
    pub(crate) fn of(core: &Core, after: u64, reader: Option<&Tenant>) -> Self {
        let sees = |tenant: &str| reader.is_some_and(|it| it.is_operator || it.name == tenant);
        let job = |it: &Entry| if sees(it.tenant()) { Job::of(it) } else { Job::unnamed(it) };
        let told = |it: &Told| match &it.what {
            Event::Registered { job, tenant, .. } if !sees(tenant) => it.unnamed(*job),
            _ => it.clone(),
        };
        let (controller, now) = (&core.controller, core.now());
        let servers = controller.config().fabric.pod().servers() as usize;
        let mut sent = vec![0_u64; servers];
        let mut received = vec![0_u64; servers];
        for (_, agent) in controller.agents().filter(|(_, agent)| agent.is_up()) {
            for (sums, rates) in
                [(&mut sent, &agent.rates().sent), (&mut received, &agent.rates().received)]
            {
                sums.iter_mut().zip(rates).for_each(|(sum, rate)| *sum = sum.saturating_add(*rate));
            }
        }
        Self {
            now_ms: now.as_ms(),
            standing: name(controller.standing(now)),
            term: controller.head().term,
            problem: core.problem.clone(),
            circuits: circuits(controller),
            jobs: controller.jobs().map(job).collect(),
            agents: agents(controller),
            plan: plan(controller, controller.planned()),
            sent,
            received,
            events: core.told.iter().filter(|it| it.number > after).map(told).collect(),
        }
    }
}

fn agents(controller: &Controller) -> Vec<Agent> {
    let agents = controller.agents().map(|(name, state)| {
        let abilities = &state.report().abilities;
        Agent {
            name: name.to_owned(),
            is_up: state.is_up(),
            problem: state.problem().map(ToOwned::to_owned),
            has_circuits: abilities.has_circuits(),
            tors: abilities.tors.iter().map(|it| it.tor).collect(),
        }
    });
    agents.collect()
}

pub(crate) fn circuits(controller: &Controller) -> Circuits {
    let pod = controller.config().fabric.pod();
    let racks = |it: &Configuration| it.racks(pod.tors().len());
    let tors = pod.tors().iter().map(|it| Tor { ports: it.ports, slots: it.slots });
    Circuits {
        version: controller.version(),
        racks: controller.circuits().map(racks),
        tors: tors.collect(),
    }
}

pub(crate) fn plan(controller: &Controller, planned: &Planned) -> Plan {
    let tors = controller.config().fabric.pod().tors().len();
    let steps = planned.steps.iter().map(|step| Step {
        racks: step.configuration.racks(tors),
        moves: step.moves,
        bytes: step.bytes,
        absorbed: step.absorbed,
        time_us: step.time.as_us(),
        uploads: step.uploads.iter().map(|job| job.0).collect(),
    });
    let period: Span = planned.period;
    let at: Time = planned.at;
    Plan { planned_ms: at.as_ms(), period_ms: period.as_ms(), steps: steps.collect() }
}
