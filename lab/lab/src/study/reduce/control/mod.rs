//! The control plane of P4-ORDC on a run: the controller of a pod, the masters that ask it, the agent of the switches, and the messages
//! between them, in the simulator or on the testbed.

mod fabric;
mod master;

use std::convert::Infallible;

use rackweave_core::rng::mix;
use rackweave_core::{HostId, Rng, Schedule, Span, Time};
use rackweave_rackless::controller::message::{Command, Counters, Report, Wiring};
use rackweave_rackless::controller::record::{Change, Grant, Saved, Store};
use rackweave_rackless::controller::{Agent, Config, Controller, Phase};
use rackweave_rackless::demand::JobId;
#[cfg(doc)]
use rackweave_rackless::fabric::Reach;
use rackweave_rackless::inc::Order;
use rackweave_rackless::plan::Algorithm;
use rackweave_sim::config::{Circuits, RunConfig};
use rackweave_sim::{GroupModel, World};
use rackweave_switch::net::Slab;

pub(crate) use self::fabric::planned_fabric;
use self::fabric::{Plant, circuits};
use self::master::{Answer, Master, Request};
use super::ReduceConfig;
use super::job::JobNode;
use super::run::Programs;

/// Whose the jobs are.
const TENANT: &str = "run";

/// What circuits are planned by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// What masters declare of their jobs (P4-ORDC).
    Jobs,
    /// What servers have sent and received (RDC, NSDI 2022).
    Traffic,
}

/// How the control plane of a run works.
#[derive(Clone, Debug, PartialEq)]
pub struct Control {
    /// What circuits are planned by.
    pub by: By,
    /// Whether uploads make a detour by a programmable `ToR` elsewhere. If not, their servers are a rack below it ([`Reach::Rack`]).
    pub detour: bool,
    /// How often masters look how far their jobs have come.
    pub interval: Span,
    /// How long a message takes.
    pub latency: Span,
    /// The probability that a message is lost.
    pub loss: f64,
    /// Which of the waiting uploads is next.
    pub order: Order,
    /// The length of a period of the forecast.
    pub period: Span,
    /// The periods that are planned at a time.
    pub horizon: usize,
}

/// The hosts and switches that a control plane acts on.
pub trait Controlled {
    /// Returns how far the jobs have come that have started.
    fn look(&mut self) -> Vec<Status>;

    /// Lets the upload of a job begin with so many slots; 0: the master adds up.
    fn grant(&mut self, now: Time, job: u16, slots: u32);

    /// Changes circuits. Returns when the ports that are dark for it are lit again.
    ///
    /// # Errors
    /// If circuits have not changed, with the reason.
    fn reconfigure(&mut self, to: &Circuits) -> Result<Time, String>;

    /// Returns the bytes from and to each server so far, if they are counted.
    fn counters(&mut self) -> Option<Counters> {
        None
    }
}

/// How far a job has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The job's number in the run.
    pub job: u16,
    /// Its phase.
    pub phase: Phase,
    /// Whether it is over, well or not.
    pub is_over: bool,
}

/// A run of the simulator.
pub(super) struct Simulated<'r, 'w, 'c> {
    pub(super) reduce: &'r ReduceConfig,
    pub(super) world: &'r mut World<'w, GroupModel<JobNode, Programs, Slab>>,
    pub(super) hosts: &'c [HostId],
}

impl Controlled for Simulated<'_, '_, '_> {
    fn look(&mut self) -> Vec<Status> {
        let nodes = self.world.nodes().flat_map(|node| node.node().records());
        nodes.filter_map(|(job, record)| record.status(job.number)).collect()
    }

    fn grant(&mut self, now: Time, job: u16, slots: u32) {
        let Some(job) = self.reduce.job_of(job) else { return };
        let Ok(index) = self.hosts.binary_search(&job.master) else { return };
        let aggregation = self.reduce.job.aggregation_of(slots);
        self.world.node_mut(index).node_mut().grant(now, job.number, aggregation);
    }

    fn reconfigure(&mut self, to: &Circuits) -> Result<Time, String> {
        self.world.reconfigure(to).map_err(|error| error.to_string())
    }

    fn counters(&mut self) -> Option<Counters> {
        let stats = self.world.link_stats();
        let fabric = self.world.fabric();
        let bytes = |link: u32| stats.get(link as usize).map_or(0, |link| link.bytes);
        let servers = || 0..fabric.hosts();
        let received = servers().map(|host| bytes(fabric.downlink(HostId(host))));
        Some(Counters { sent: servers().map(bytes).collect(), received: received.collect() })
    }
}

/// What is on its way between the parts of a control plane.
#[derive(Clone, Debug)]
enum Message {
    Report(Box<Report>),
    Command(Box<Command>),
    Request(Box<Request>),
    Answer(Box<Answer>),
}

/// No run kills its controller.
struct Unsaved;

impl Store for Unsaved {
    type Error = Infallible;

    fn write(&mut self, _changes: &[Change]) -> Result<(), Infallible> {
        Ok(())
    }
}

/// The control plane of a run.
#[derive(Clone, Debug)]
pub struct ControlPlane {
    how: Control,
    controller: Controller,
    agent: Agent,
    masters: Vec<Master>,
    under_way: Schedule<Message>,
    rng: Rng,
    next_look: Time,
    reconfigurations: u64,
}

impl ControlPlane {
    /// The control plane of a run's jobs.
    #[must_use]
    pub fn new(reduce: &ReduceConfig, how: Control, config: &RunConfig) -> Self {
        let Plant { fabric, abilities, wiring } = Plant::of(reduce, &how, config);
        let adds_up = reduce.switches.is_some();
        let dark = Span::from_ns(abilities.dark_ns);
        // As `rackweave pod control` plans by default.
        let defaults = Config::new(fabric, Algorithm::Heuristic);
        let settings = Config {
            period: how.period,
            horizon: how.horizon,
            order: how.order,
            // Where nothing is shared, uploads do not wait for one another.
            uploads: if adds_up { 1 } else { u32::MAX },
            // A switch whose circuits take longer is not believed.
            patience: defaults.patience.max(dark.saturating_add(dark)),
            most_jobs: usize::from(u16::MAX),
            most_of_tenant: usize::from(u16::MAX),
            ..defaults
        };
        let stream = |purpose| Rng::stream(mix(config.seed), 0, 0, purpose);
        let (rng, start) = (stream("control plane"), mix(config.seed));
        let now = Time::ZERO;
        let agent = Agent::new("pod".to_owned(), 1, abilities, Some(wiring), now);
        let jobs = reduce.jobs.iter();
        Self {
            controller: Controller::new(settings, Saved::default(), start, rng, now),
            agent: match how.by {
                By::Jobs => agent,
                By::Traffic => agent.reporting_every(how.period),
            },
            masters: match how.by {
                By::Jobs => jobs.map(|job| Master::new(job, &reduce.job)).collect(),
                By::Traffic => Vec::new(),
            },
            under_way: Schedule::default(),
            rng: stream("messages of the control plane"),
            next_look: now,
            reconfigurations: 0,
            how,
        }
    }

    /// Returns how often circuits have changed.
    #[must_use]
    pub const fn reconfigurations(&self) -> u64 {
        self.reconfigurations
    }

    /// Does everything that is due.
    pub fn act(&mut self, controlled: &mut impl Controlled, now: Time) {
        if self.next_look <= now {
            self.next_look = now.saturating_add(self.how.interval);
            for status in controlled.look() {
                if let Some(master) = self.masters.iter_mut().find(|it| it.job() == status.job) {
                    master.has_come(now, status);
                }
            }
        }
        // Without latency an answer is due at once.
        loop {
            self.send_due(controlled, now);
            let Some((_, message)) = self.under_way.pop_due(now) else { return };
            self.deliver(controlled, now, message);
        }
    }

    /// When [`act`](Self::act) has something to do, after `now`.
    #[must_use]
    pub fn next_time(&self, now: Time) -> Time {
        // What is overdue waits for a message.
        let timers = [
            self.controller.poll_timeout(),
            self.agent.poll_timeout(),
            self.under_way.next_time().unwrap_or(Time::MAX),
        ];
        timers.into_iter().filter(|at| *at > now).fold(self.next_look, Time::min)
    }

    fn send(&mut self, now: Time, message: Message) {
        if !self.rng.chance(self.how.loss) {
            self.under_way.push(now.saturating_add(self.how.latency), message);
        }
    }

    fn send_due(&mut self, controlled: &mut impl Controlled, now: Time) {
        for index in 0..self.masters.len() {
            if let Some(request) = self.masters[index].poll(now) {
                self.send(now, Message::Request(Box::new(request)));
            }
        }
        while let Some(wiring) = self.agent.poll_change() {
            let result = self.change(controlled, now, &wiring);
            self.agent.changed(now, &wiring, result);
        }
        while self.agent.poll_timeout() <= now {
            // The traffic of jobs is declared, and a pod has no other here.
            let counters = match self.how.by {
                By::Jobs => None,
                By::Traffic => controlled.counters(),
            };
            let Some(report) = self.agent.poll_report(now, counters) else { break };
            self.send(now, Message::Report(Box::new(report)));
        }
        if self.controller.poll_timeout() <= now {
            self.controller.handle_timeout(now);
        }
        let Ok(()) = self.controller.commit(&mut Unsaved);
        while let Some((_, command)) = self.controller.poll(now) {
            self.send(now, Message::Command(Box::new(command)));
        }
        while self.controller.poll_event().is_some() {}
        for answer in self.grants() {
            self.send(now, Message::Answer(Box::new(answer)));
        }
    }

    /// The grants that masters have not been sent yet.
    fn grants(&mut self) -> Vec<Answer> {
        let mut answers = Vec::new();
        for entry in self.controller.jobs() {
            let Some(grant) = entry.grant() else { continue };
            let master = self.masters.iter_mut().find(|it| it.nonce() == entry.nonce());
            if let Some(master) = master.filter(|it| !it.is_sent) {
                master.is_sent = true;
                let known = (entry.phase(), false);
                let (job, grant) = (master.job(), Some(grant.clone()));
                answers.push(Answer { job, id: Some(entry.id), known, grant });
            }
        }
        answers
    }

    fn change(
        &mut self,
        controlled: &mut impl Controlled,
        now: Time,
        wiring: &Wiring,
    ) -> Result<Span, String> {
        let lit = controlled.reconfigure(&circuits(wiring))?;
        self.reconfigurations += 1;
        Ok(lit.since(now))
    }

    fn deliver(&mut self, controlled: &mut impl Controlled, now: Time, message: Message) {
        match message {
            Message::Report(report) => {
                self.controller.handle(now, *report);
            }
            Message::Command(command) => self.agent.handle(now, *command),
            Message::Request(request) => {
                let answer = self.answer(now, *request);
                self.send(now, Message::Answer(Box::new(answer)));
            }
            Message::Answer(answer) => {
                let job = answer.job;
                let master = self.masters.iter_mut().find(|it| it.job() == job);
                if let Some(slots) = master.and_then(|it| it.handle(*answer)) {
                    controlled.grant(now, job, slots);
                }
            }
        }
    }

    /// What the controller answers a master.
    fn answer(&mut self, now: Time, request: Request) -> Answer {
        let (job, phase, is_over) = (request.job, request.phase, request.is_over);
        let handled = self.handle(now, request);
        // A job that is refused, or is not known any more, goes on without.
        let (id, grant) = handled.unwrap_or((None, Some(Grant::default())));
        Answer { job, id, known: (phase, is_over), grant }
    }

    fn handle(
        &mut self,
        now: Time,
        request: Request,
    ) -> Result<(Option<JobId>, Option<Grant>), rackweave_rackless::controller::Refusal> {
        let Request { nonce, declared, id, phase, is_over, .. } = request;
        let id = match id {
            Some(id) => id,
            None => self.controller.register(now, TENANT, nonce, declared)?,
        };
        self.controller.phase(now, TENANT, id, phase)?;
        let grant = self.controller.heard(now, TENANT, id)?.grant().cloned();
        if is_over {
            self.controller.end(now, TENANT, id)?;
        }
        Ok((Some(id), grant))
    }
}
