//! Which upload is next, and which circuits: the INC scheduler and the TPE module at work.

use rackweave_core::{Span, Time};

use super::job::{Entry, Phase};
use super::message::RouteEntry;
use super::{Config, Controller};
use crate::config::Configuration;
use crate::cost::{Endpoint, transfer_time};
use crate::demand::{JobId, Period};
use crate::inc::{Request, in_order};
use crate::jobs::Job;
use crate::plan::{Options, Plan, plan};
use crate::routing::route;
use crate::ted::Timeline;

/// How long no change is tried after the switch has refused one.
const AFTER_REFUSAL: Span = Span::from_secs(10);
/// The most plans of a period, besides those for uploads.
const PLANS_OF_PERIOD: u64 = 8;
/// The most routes of a command.
const MOST_ROUTES: usize = 1024;

/// A sequence of configurations from some time on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Planned {
    /// When it was planned, which is the start of the first period.
    pub at: Time,
    /// The length of a period.
    pub period: Span,
    /// One step for each period.
    pub steps: Vec<PlannedStep>,
}

/// A period of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedStep {
    /// The circuits.
    pub configuration: Configuration,
    /// The servers that move before it.
    pub moves: usize,
    /// The bytes that are to be transferred.
    pub bytes: u64,
    /// Those of them that programmable `ToR`s absorb.
    pub absorbed: u64,
    /// The time that the busiest link needs.
    pub time: Span,
    /// The jobs that upload.
    pub uploads: Vec<JobId>,
}

/// What is planned.
#[derive(Clone, Debug)]
pub(super) struct Planning {
    current: Option<Configuration>,
    planned: Planned,
    routes: Vec<RouteEntry>,
    /// The jobs and their phases at the last plan.
    signature: Vec<(JobId, Phase, bool)>,
    planned_at: Time,
    next: Time,
    not_before: Time,
    /// Why there was no plan the last time.
    problem: Option<String>,
}

impl Planning {
    pub(super) fn new(current: Option<Configuration>, now: Time) -> Self {
        Self {
            current,
            planned: Planned::default(),
            routes: Vec::new(),
            signature: Vec::new(),
            planned_at: now,
            next: now,
            not_before: now,
            problem: None,
        }
    }

    pub(super) const fn current(&self) -> Option<&Configuration> {
        self.current.as_ref()
    }

    pub(super) const fn planned(&self) -> &Planned {
        &self.planned
    }

    pub(super) fn routes(&self) -> &[RouteEntry] {
        &self.routes
    }

    pub(super) fn adopt(&mut self, found: Configuration) {
        self.current = Some(found);
    }

    pub(super) fn move_to(&mut self, next: Configuration) {
        self.current = Some(next);
    }

    pub(super) const fn refused(&mut self, now: Time) {
        self.not_before = now.saturating_add(AFTER_REFUSAL);
    }

    /// Whether a change may be tried, which the switch has not refused lately.
    pub(super) fn may_change(&self, now: Time) -> bool {
        now >= self.not_before
    }

    pub(super) const fn next(&self, is_idle: bool) -> Time {
        if is_idle { Time::MAX } else { self.next }
    }
}

/// Numbers of groups of servers.
#[derive(Default)]
struct Groups(Vec<Vec<u32>>);

impl Groups {
    fn number(&mut self, servers: Vec<u32>) -> u32 {
        let known = self.0.iter().position(|it| *it == servers);
        let number = known.unwrap_or_else(|| {
            self.0.push(servers);
            self.0.len() - 1
        });
        u32::try_from(number).unwrap_or(u32::MAX)
    }
}

impl Controller {
    /// The next of the waiting uploads. Only ready ones are chosen, so that a job that never becomes ready delays none.
    pub(super) fn next_upload(&self) -> Option<JobId> {
        let is_waiting = |it: &&Entry| it.phase == Phase::Ready && it.chosen.is_none();
        let mut groups = Groups::default();
        let last = groups.number(self.last_group.clone());
        let request = |entry: &Entry| Request {
            job: entry.id,
            group: groups.number(entry.group()),
            // They are released in this order.
            release: Time::from_ticks(entry.ready),
            work: self.upload_time(entry),
        };
        let waiting: Vec<_> = self.entries.values().filter(is_waiting).map(request).collect();
        crate::inc::next(&waiting, Some(last), self.config.order).map(|it| waiting[it].job)
    }

    /// How long a job's upload takes: as the last ones of its name did, or as long as the busiest link of its servers needs.
    fn upload_time(&self, entry: &Entry) -> Span {
        let learned = self.learned.get(&entry.kind());
        if let Some(ns) = learned.and_then(|learned| learned.measured.upload_ns) {
            return Span::from_ns(ns);
        }
        let Some(job) = self.handler.get(entry.id) else { return Span::ZERO };
        let adds_up = self.config.fabric.pod().programmable().is_some();
        let all = job.upload.iter().fold(0_u64, |sum, &bytes| sum.saturating_add(bytes));
        let most = job.upload.iter().copied().max().unwrap_or(0);
        let at_master = if adds_up {
            job.upload_of(entry.id).map_or(0, |upload| upload.distinct())
        } else {
            all
        };
        transfer_time(at_master.max(most), self.config.fabric.pod().server_rate())
    }

    /// Plans again if something has changed or a period is over. Returns the circuits to change to.
    pub(super) fn replan(&mut self, now: Time) -> Result<Option<Configuration>, String> {
        let signature: Vec<_> =
            self.entries.values().map(|it| (it.id, it.phase, it.chosen.is_some())).collect();
        if now < self.planning.next {
            if signature == self.planning.signature {
                return Ok(None);
            }
            // An upload waits for its circuits; other news do, so that many jobs do not cost many plans.
            let uploads = |all: &[(JobId, Phase, bool)]| -> Vec<JobId> {
                all.iter().filter(|it| it.2 || it.1 == Phase::Upload).map(|it| it.0).collect()
            };
            let gap = Span::from_ticks(self.config.period.ticks() / PLANS_OF_PERIOD);
            let soon = self.planning.planned_at.saturating_add(gap);
            if uploads(&signature) == uploads(&self.planning.signature) && now < soon {
                self.planning.next = soon;
                return Ok(None);
            }
        }
        let Some(current) = self.planning.current.clone() else { return Ok(None) };
        let Some(cost) = self.agents.reconfiguration() else { return Ok(None) };
        self.planning.planned_at = now;
        self.planning.signature = signature;
        self.planning.next = now.saturating_add(self.config.period);
        self.expect(now, cost.delay);
        match self.sequence(now, current, Options::new(self.config.algorithm, cost)) {
            Ok((planned, routes)) => {
                self.planning.problem = None;
                let first = planned.steps.first().filter(|step| step.moves > 0);
                let next = first.map(|step| step.configuration.clone());
                (self.planning.planned, self.planning.routes) = (planned, routes);
                Ok(next.filter(|_| self.planning.may_change(now)))
            }
            Err(why) if self.planning.problem.as_ref() == Some(&why) => Ok(None),
            Err(why) => {
                self.planning.problem = Some(why.clone());
                Err(why)
            }
        }
    }

    /// The configurations of the next periods, and the routes of the first.
    fn sequence(
        &mut self,
        now: Time,
        current: Configuration,
        options: Options,
    ) -> Result<(Planned, Vec<RouteEntry>), String> {
        let Config { fabric, period, horizon, .. } = &self.config;
        let periods = self.ted.forecast(now, *horizon).map_err(|error| error.to_string())?;
        if periods.iter().all(|it| it.bytes() == 0) {
            return Ok((Planned { at: now, period: *period, steps: Vec::new() }, Vec::new()));
        }
        let fabric = fabric.clone().starting_from(current);
        let Plan { steps, .. } =
            plan(&fabric, &periods, &options, &mut self.rng).map_err(|error| error.to_string())?;
        let routes = match (periods.first(), steps.first()) {
            (Some(period), Some(step)) => routes(&fabric, period, &step.configuration),
            _ => Vec::new(),
        };
        let steps = steps.into_iter().zip(&periods).map(|(step, period)| PlannedStep {
            moves: step.moves.len() + step.circuits_changed as usize,
            configuration: step.configuration,
            bytes: period.bytes(),
            absorbed: step.cost.absorbed,
            time: step.cost.time,
            uploads: period.uploads().iter().map(|upload| upload.job()).collect(),
        });
        Ok((Planned { at: now, period: *period, steps: steps.collect() }, routes))
    }

    /// Tells the database when the phases of all jobs are expected.
    fn expect(&mut self, now: Time, setup: Span) {
        let mut jobs: Vec<(JobId, Job, Timeline)> = Vec::new();
        for entry in self.entries.values() {
            if let Some(job) = self.handler.get(entry.id) {
                jobs.push((entry.id, job.clone(), self.expected(now, entry, job)));
            }
        }
        self.schedule_uploads(now, setup, &mut jobs);
        for (id, job, timeline) in jobs {
            self.ted.expect_at(id, job, timeline);
        }
    }

    /// When the phases of a job are expected if its upload waits for no other one.
    fn expected(&self, now: Time, entry: &Entry, job: &Job) -> Timeline {
        let whole = self.ted.timeline(job, Time::ZERO);
        let elapsed = entry.since.map_or(Span::ZERO, |since| now.since(since));
        let upload_end = whole.upload.0.saturating_add(self.upload_time(entry));
        let end = upload_end.saturating_add(job.reduce);
        // How far the job has come in its own time. A phase that takes longer than expected ends now.
        let (from, until) = match entry.phase {
            Phase::Registered => (Time::ZERO, Time::ZERO),
            Phase::Map => (Time::ZERO, whole.map.1),
            Phase::Shuffle => (whole.map.1, whole.upload.0),
            Phase::Ready => (whole.upload.0, whole.upload.0),
            Phase::Upload => (whole.upload.0, upload_end),
            Phase::Reduce => (upload_end, end),
        };
        let position = from.saturating_add(elapsed).min(until);
        let at = |time: Time| match time >= position {
            true => now.saturating_add(time.since(position)),
            false => now.saturating_sub(position.since(time)),
        };
        Timeline {
            map: (at(whole.map.0), at(whole.map.1)),
            shuffle: (at(whole.shuffle.0), at(whole.shuffle.1)),
            upload: (at(whole.upload.0), at(upload_end)),
            end: at(end),
        }
    }

    /// Moves expected uploads to when they are expected to have the programmable `ToR`.
    fn schedule_uploads(&self, now: Time, setup: Span, jobs: &mut [(JobId, Job, Timeline)]) {
        let mut groups = Groups::default();
        let last = groups.number(self.last_group.clone());
        let mut busy = now;
        let mut requests = Vec::new();
        let mut places = Vec::new();
        for (place, (id, _, timeline)) in jobs.iter_mut().enumerate() {
            let Some(entry) = self.entries.get(id) else { continue };
            let (start, end) = timeline.upload;
            if entry.phase == Phase::Upload || entry.chosen.is_some() {
                busy = busy.max(end);
            } else if entry.phase < Phase::Upload && end > start {
                let (job, group) = (*id, groups.number(entry.group()));
                requests.push(Request { job, group, release: start, work: end.since(start) });
                places.push(place);
            }
        }
        if self.config.uploads > 1 {
            return;
        }
        for request in &mut requests {
            request.release = request.release.max(busy);
        }
        for grant in in_order(&requests, Some(last), setup, self.config.order).grants {
            let (_, job, timeline) = &mut jobs[places[grant.request]];
            timeline.upload = (grant.start, grant.end);
            timeline.end = grant.end.saturating_add(job.reduce);
        }
    }
}

/// The routes of a period between `ToR`s, the largest transfers first.
fn routes(fabric: &crate::fabric::Fabric, period: &Period, at: &Configuration) -> Vec<RouteEntry> {
    let server = |end: Endpoint| match end {
        Endpoint::Server(server) => Some(server),
        Endpoint::Tor(_) => None,
    };
    let mut entries = Vec::new();
    for it in route(fabric, period, at).routes {
        entries.extend(it.hops.iter().map(|hop| RouteEntry {
            src: server(it.src),
            dst: server(it.dst),
            from: hop.from,
            up: hop.up,
            to: hop.to,
            down: hop.down,
        }));
    }
    entries.truncate(MOST_ROUTES);
    entries
}
