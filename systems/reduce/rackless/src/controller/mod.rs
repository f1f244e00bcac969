//! The controller of a pod: the control plane of P4-ORDC (section 2, figure 2(b)) as one machine without I/O.
//!
//! | paper | here |
//! |---|---|
//! | job handler, JobID database | [`JobHandler`], and [`Controller::register`] |
//! | TED | [`Ted`]: counters of agents and declarations of jobs become the demand of future periods |
//! | TPE | [`plan`](mod@crate::plan): a sequence of configurations, computed again when a phase ends and after each period |
//! | INC scheduler | [`inc`](crate::inc): which of the waiting uploads has the programmable `ToR` next; none is interrupted |
//! | OCS controller | one [`Command`] to each [`Agent`]: circuits and routes; repeated until reported |
//! | ToR controller | a grant names switch and slots, and the master asks the switch for them |
//!
//! *North* are masters of jobs: they register, report their phases, and ask before they upload. Each call can be repeated. *South* are
//! agents of switches ([`message`]). What a restart must not lose is a list of [`Change`]s, which [`Controller::commit`] gives to a
//! [`Store`]; before that no command leaves. After a restart jobs, grants and circuits are as they were.
//!
//! A controller is *active* while the agent that changes circuits lends it a lease ([`agent`]). Others wait for it.
//!
//! The paper is silent about messages that are lost, failures and restarts. The rules for them are Rackweave's.

pub mod agent;
mod agents;
mod decisions;
mod event;
mod job;
pub mod message;
mod north;
mod planning;
pub mod record;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rackweave_core::{Rng, Span, Time};

pub use self::agent::Agent;
pub use self::agents::AgentState;
use self::agents::Agents;
pub use self::event::{Event, Happening};
pub use self::job::{
    DeclarationError, Declared, Distributed, Entry, LONGEST_NAME, Phase, check_name,
};
use self::message::{Command, Report};
pub use self::north::Refusal;
use self::planning::Planning;
pub use self::planning::{Planned, PlannedStep};
use self::record::{Change, Head, Learned, Saved, Store};
use crate::config::Configuration;
use crate::demand::JobId;
use crate::fabric::Fabric;
use crate::inc::{Order, Regions};
use crate::jobs::JobHandler;
use crate::plan::Algorithm;
use crate::ted::Ted;

/// The most events that wait for the driver.
const MOST_EVENTS: usize = 1024;

/// What a controller controls, and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// The pod.
    pub fabric: Fabric,
    /// How circuits are planned. What a change costs is reported by the agent that makes it.
    pub algorithm: Algorithm,
    /// The length of a period of the forecast.
    pub period: Span,
    /// The periods that are planned at a time.
    pub horizon: usize,
    /// Who uploads next.
    pub order: Order,
    /// How many uploads have the programmable `ToR` at a time; each gets an equal part of its slots.
    pub uploads: u32,
    /// The lease for which an agent follows this controller only.
    pub lease: Span,
    /// How long an upload waits for its circuits before it begins without.
    pub patience: Span,
    /// After which silence of its master a job is given up, and that of an agent its switch.
    pub silence: Span,
    /// The most jobs at a time.
    pub most_jobs: usize,
    /// The most jobs of a tenant.
    pub most_of_tenant: usize,
}

impl Config {
    /// 16 periods of 200 ms, one upload at a time in the order of readiness, leases of 3 s, 2 s of patience, 30 s of
    /// silence, 4096 jobs, 1024 of a tenant.
    #[must_use]
    pub const fn new(fabric: Fabric, algorithm: Algorithm) -> Self {
        Self {
            fabric,
            algorithm,
            period: Span::from_ms(200),
            horizon: 16,
            order: Order::FirstCome,
            uploads: 1,
            lease: Span::from_secs(3),
            patience: Span::from_secs(2),
            silence: Span::from_secs(30),
            most_jobs: 4096,
            most_of_tenant: 1024,
        }
    }
}

/// Whether a controller commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It does.
    Active,
    /// No agent that could lend a lease has reported. Jobs are registered and upload without circuits and slots.
    Alone,
    /// Another one does.
    Standby,
}

/// The controller of a pod.
#[derive(Clone, Debug)]
pub struct Controller {
    config: Config,
    /// The number of this start.
    start: u64,
    head: Head,
    handler: JobHandler,
    entries: BTreeMap<JobId, Entry>,
    learned: BTreeMap<String, Learned>,
    ted: Ted,
    agents: Agents,
    planning: Planning,
    regions: Regions,
    /// The number of jobs that have become ready so far.
    readies: u64,
    /// The servers of the job that uploaded last.
    last_group: Vec<u32>,
    rng: Rng,
    dirty_head: bool,
    dirty_jobs: BTreeSet<JobId>,
    dirty_learned: BTreeSet<String>,
    events: VecDeque<Happening>,
    was_active: bool,
}

impl Controller {
    /// A controller with what it has stored before. `start` is the random number of this start, and becomes that of the controller if
    /// it is new. Planning draws from `rng`.
    #[must_use]
    pub fn new(config: Config, saved: Saved, start: u64, rng: Rng, now: Time) -> Self {
        let servers = config.fabric.pod().servers();
        let mut head =
            saved.head.unwrap_or(Head { identity: start, next_job: 1, ..Head::default() });
        // Commands of the former life are late from now on.
        head.term += 1;
        let ted = Ted::new(servers, config.fabric.pod().server_rate(), config.period);
        let wired =
            head.wiring.as_ref().and_then(|wiring| wiring.configuration(config.fabric.pod()).ok());
        if wired.is_none() {
            head.wiring = None;
        }
        let slots = config.fabric.pod().programmable();
        let slots = slots.map_or(0, |tor| config.fabric.pod().tors()[tor].slots);
        let mut controller = Self {
            handler: JobHandler::new(servers).starting_at(head.next_job),
            entries: BTreeMap::new(),
            learned: saved.learned.into_iter().collect(),
            ted,
            agents: Agents::new(&config, now),
            planning: Planning::new(wired, now),
            regions: Regions::new(slots),
            readies: 0,
            last_group: Vec::new(),
            rng,
            dirty_head: true,
            dirty_jobs: BTreeSet::new(),
            dirty_learned: BTreeSet::new(),
            events: VecDeque::new(),
            was_active: false,
            head,
            config,
            start,
        };
        for record in saved.jobs {
            let entry = Entry::restored(record, now);
            let id = entry.id;
            let job = entry.declared.job(controller.learned.get(&entry.kind()));
            controller.readies = controller.readies.max(entry.ready);
            // It was possible when it was registered: the pod has another configuration now.
            if let Err(error) = controller.handler.restore(id, job) {
                controller.dirty_jobs.insert(id);
                controller.note(now, Event::Dropped { job: id.0, why: error.to_string() });
                continue;
            }
            // One that reduces has given its slots back.
            let uploads = entry.phase == Phase::Upload;
            if let Some(grant) = entry.grant.as_ref().filter(|it| uploads && it.slots > 0) {
                controller.regions.allocate(id, u64::from(grant.slots));
                controller.last_group = entry.group();
            }
            controller.entries.insert(id, entry);
        }
        controller
    }

    /// Returns the configuration.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Returns what it knows of itself.
    #[must_use]
    pub const fn head(&self) -> &Head {
        &self.head
    }

    /// Returns whether it commands.
    #[must_use]
    pub fn standing(&self, now: Time) -> Standing {
        self.agents.standing(now, self.holder())
    }

    /// Returns the jobs in the order of their numbers.
    pub fn jobs(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// Returns the agents by name.
    pub fn agents(&self) -> impl Iterator<Item = (&str, &AgentState)> {
        self.agents.iter()
    }

    /// Returns the commanded circuits, or the reported ones if it has commanded none.
    #[must_use]
    pub const fn circuits(&self) -> Option<&Configuration> {
        self.planning.current()
    }

    /// Returns the sequence of configurations that was planned last.
    #[must_use]
    pub const fn planned(&self) -> &Planned {
        self.planning.planned()
    }

    /// Returns the number of changes of circuits that it has commanded.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.head.version
    }

    /// Returns what has happened since the last call.
    pub fn poll_event(&mut self) -> Option<Happening> {
        self.events.pop_front()
    }

    /// Handles the report of an agent.
    ///
    /// Returns whether it is the newest of its agent.
    pub fn handle(&mut self, now: Time, report: Report) -> bool {
        let holder = self.holder();
        let news = self.agents.handle(now, report, holder, &self.config);
        for event in news.events {
            self.note(now, event);
        }
        if let Some(other) = news.overtaken
            && other.term >= self.head.term
        {
            // Another controller commands or did. A claim is of use with a higher term only.
            self.head.term = other.term.saturating_add(1);
            if other.controller == self.head.identity {
                // It has a copy of this one's database. From now on they are two.
                self.head.identity = self.start;
            }
            self.dirty_head = true;
        }
        if let Some((sent, received)) = news.totals {
            let busy = self.busy_servers();
            let share = |totals: Vec<u64>| -> Vec<u64> {
                let others = (0..).zip(totals);
                others.map(|(it, bytes)| if busy.contains(&it) { 0 } else { bytes }).collect()
            };
            self.ted.observe_totals(&share(sent), &share(received));
        }
        self.adopt(now);
        self.step(now);
        news.is_taken
    }

    /// The servers of jobs that transfer something, whose bytes are the declared ones.
    fn busy_servers(&self) -> BTreeSet<u32> {
        let transfers = |entry: &&Entry| matches!(entry.phase, Phase::Map | Phase::Upload);
        self.entries.values().filter(transfers).flat_map(Entry::group).collect()
    }

    /// Takes over the circuits that an agent has found, if none are known, or if it has refused others.
    fn adopt(&mut self, now: Time) {
        let Some(arbiter) = self.agents.arbiter() else { return };
        let Some(wiring) = arbiter.wiring().cloned() else { return };
        if let Some(why) = arbiter.refusal(self.head.term, self.head.version) {
            self.note(now, Event::NotMoved { why: why.to_owned() });
            self.head.version += 1;
            self.planning.refused(now);
            self.agents.renew();
        } else if self.planning.current().is_some() {
            return;
        }
        if let Ok(found) = wiring.configuration(self.config.fabric.pod()) {
            self.planning.adopt(found);
            self.head.wiring = Some(wiring);
            self.dirty_head = true;
        }
    }

    const fn holder(&self) -> message::Holder {
        message::Holder { controller: self.head.identity, start: self.start, term: self.head.term }
    }

    /// Called when [`poll_timeout`](Self::poll_timeout) has passed.
    pub fn handle_timeout(&mut self, now: Time) {
        let silent = |entry: &&Entry| now.since(entry.heard) > self.config.silence;
        let silent: Vec<_> = self.entries.values().filter(silent).map(|entry| entry.id).collect();
        for id in silent {
            let why = "its master is silent".to_owned();
            self.note(now, Event::Dropped { job: id.0, why });
            self.remove(id);
        }
        for event in self.agents.expire(now, self.config.silence) {
            self.note(now, event);
        }
        self.step(now);
    }

    /// When [`handle_timeout`](Self::handle_timeout) or [`poll`](Self::poll) has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Time {
        let mut next = self.agents.next_command().min(self.planning.next(self.is_idle()));
        for entry in self.entries.values() {
            next = next.min(entry.heard.saturating_add(self.config.silence));
            if let Some((since, _)) = entry.chosen.filter(|_| entry.grant.is_none()) {
                next = next.min(since.saturating_add(self.config.patience));
                if let Some(lit) = self.agents.lit() {
                    next = next.min(lit);
                }
            }
        }
        next
    }

    fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    /// Stores what has changed. Nothing leaves before that.
    ///
    /// # Errors
    /// If the store fails; then the changes are offered again.
    pub fn commit<S: Store>(&mut self, store: &mut S) -> Result<(), S::Error> {
        let changes = self.changes();
        if changes.is_empty() {
            return Ok(());
        }
        store.write(&changes)?;
        self.dirty_head = false;
        self.dirty_jobs.clear();
        self.dirty_learned.clear();
        Ok(())
    }

    fn changes(&self) -> Vec<Change> {
        let head = self.dirty_head.then(|| Change::Head(self.head.clone()));
        let jobs = self.dirty_jobs.iter().map(|id| match self.entries.get(id) {
            Some(entry) => Change::Job(Box::new(entry.record())),
            None => Change::NoJob(id.0),
        });
        let learned = self.dirty_learned.iter().map(|kind| match self.learned.get(kind) {
            Some(learned) => Change::Learned(kind.clone(), *learned),
            None => Change::NotLearned(kind.clone()),
        });
        head.into_iter().chain(jobs).chain(learned).collect()
    }

    /// Whether there is something to [`commit`](Self::commit).
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.dirty_head || !self.dirty_jobs.is_empty() || !self.dirty_learned.is_empty()
    }

    /// Returns the next command and the name of its agent. There is none before changes are stored.
    pub fn poll(&mut self, now: Time) -> Option<(String, Command)> {
        if self.is_dirty() {
            return None;
        }
        let is_active = self.standing(now) == Standing::Active;
        let (name, has_circuits) = self.agents.due(now, is_active, self.config.lease)?;
        let wiring = self.head.wiring.clone().filter(|_| is_active && has_circuits);
        // What is adopted and was never changed needs no command.
        let version = if wiring.is_some() { self.head.version } else { 0 };
        let command = Command {
            holder: self.holder(),
            sent_ns: now.as_ns(),
            lease_ns: self.config.lease.as_ns(),
            version,
            wiring: wiring.filter(|_| version > 0),
            routes: if is_active { self.planning.routes().to_vec() } else { Vec::new() },
        };
        Some((name, command))
    }

    fn note(&mut self, at: Time, what: Event) {
        if self.events.len() >= MOST_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(Happening { at, what });
    }
}
