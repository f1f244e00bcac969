//! A lane: one run that is watched, on a thread of its own.
//!
//! Lanes share a [`Plan`]: up to which simulated time they run, and how fast. Each looks at it between the events of its run, and waits
//! there. So all lanes stand at the same simulated time whenever they wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rackweave_core::{Span, Time};
use rackweave_lab::run::PointEnd;
use rackweave_lab::{Batch, Scenario};
use rackweave_sim::result::{End, MessageRecord};
use rackweave_sim::world::{Next, Observer, State, View};

/// How often the state of a running lane is published.
const PICTURES: Duration = Duration::from_millis(120);
/// How far one of several lanes that run as fast as they can may be ahead of the last.
const LEAD: Span = Span::from_us(200);
/// How long a lane that is ahead waits before it looks again.
const PATIENCE: Duration = Duration::from_millis(2);
/// The most messages that are named as waiting.
const MOST_WAITING: usize = 20;
/// The most messages whose list a paused lane keeps: 64 MB.
const MOST_MESSAGES: u64 = 1 << 20;

/// What all lanes of a session do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// The simulated time at which they wait; [`Time::MAX`] while they run.
    pub(crate) target: Time,
    /// Simulated nanoseconds in a second of the clock; `None` for as many as they can.
    pub(crate) speed: Option<f64>,
    /// Whether they end.
    pub(crate) stop: bool,
}

/// The plan, and what lanes wait for.
#[derive(Debug)]
pub(crate) struct Shared {
    plan: Mutex<Plan>,
    changed: Condvar,
    /// Counts the changes of the plan.
    version: AtomicU64,
    /// Where each lane is, in ticks; [`u64::MAX`] after its end.
    at: Vec<AtomicU64>,
}

impl Shared {
    pub(crate) fn new(lanes: usize) -> Self {
        let plan = Plan { target: Time::ZERO, speed: None, stop: false };
        Self {
            plan: Mutex::new(plan),
            changed: Condvar::new(),
            version: AtomicU64::new(0),
            at: std::iter::repeat_with(AtomicU64::default).take(lanes).collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn plan(&self) -> Plan {
        *self.lock()
    }

    /// Changes the plan; `at` is where the first of the lanes is.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Plan, Time)) {
        let at = self.at.iter().map(|at| at.load(Ordering::Relaxed)).filter(|at| *at < u64::MAX);
        let at = Time::from_ticks(at.max().unwrap_or(0));
        change(&mut self.lock(), at);
        self.version.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Lets the lanes wait at one time, which none of them has passed.
    pub(crate) fn pause(&self) {
        let ahead = if self.at.len() > 1 { LEAD } else { Span::ZERO };
        self.change(|plan, at| plan.target = plan.target.min(at + ahead));
    }

    /// Where the last of the other lanes is that has not ended.
    fn others(&self, lane: usize) -> Option<Time> {
        let others = self.at.iter().enumerate().filter(|(other, _)| *other != lane);
        let at = others.map(|(_, at)| at.load(Ordering::Relaxed)).filter(|at| *at < u64::MAX);
        at.min().map(Time::from_ticks)
    }
}

/// What a lane shows.
#[derive(Clone, Debug)]
pub(crate) struct Picture {
    /// The simulated time.
    pub(crate) at: Time,
    pub(crate) state: State,
    /// The picture before it: its time, and the time for which each link was sending.
    pub(crate) before: Option<Arc<Self>>,
    /// Simulated nanoseconds in a second of the clock.
    pub(crate) speed: f64,
    /// All measured messages, of a lane that waits.
    pub(crate) messages: Option<Arc<Vec<MessageRecord>>>,
    /// The slowest of them.
    pub(crate) slowest: Arc<Vec<serde_json::Value>>,
    /// Whether the lane waits.
    pub(crate) waits: bool,
    /// How the run ended, if it has.
    pub(crate) end: Option<End>,
}

/// What has become of a lane.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It has run to its end: its table, and its `summary.json`.
    Finished {
        table: String,
        summary: String,
    },
    /// It was stopped.
    Stopped,
    Failed(String),
}

/// Where a lane shows its pictures.
pub(crate) trait Show: Send + Sync + std::fmt::Debug {
    fn picture(&self, lane: usize, picture: Picture);
    fn outcome(&self, lane: usize, outcome: Outcome);
}

/// Looks at the run of a lane.
#[derive(Debug)]
struct Watch {
    lane: usize,
    shared: Arc<Shared>,
    show: Arc<dyn Show>,
    /// The plan's version when the run was last looked at.
    version: u64,
    last: Option<Arc<Picture>>,
    shown: Instant,
    /// Simulated time and clock from which the speed counts, and that speed.
    anchor: (Time, Instant, Option<f64>),
}

/// What a lane does next.
enum Step {
    Go(Time),
    Wait(Option<Duration>),
    Cancel,
}

impl Watch {
    fn show(&mut self, view: &mut dyn View, waits: bool, end: Option<End>) {
        let at = view.now();
        let state = view.state(MOST_WAITING);
        let elapsed = self.shown.elapsed().as_secs_f64();
        let moved = self.last.as_ref().map_or(0, |last| at.since(last.at.min(at)).ticks());
        let speed = moved as f64 * Span::TICK.as_us_f64() * 1e3 / elapsed.max(1e-3);
        let is_list = (waits || end.is_some()) && state.messages.0 <= MOST_MESSAGES;
        let messages = is_list.then(|| Arc::new(view.messages()));
        // A link's picture is the difference from the one before, which is not that of the same time.
        let mut before = self.last.take();
        if before.as_ref().is_some_and(|last| last.at >= at) {
            before = before.and_then(|last| last.before.clone());
        }
        let before = before.map(|last| {
            Arc::new(Picture {
                before: None,
                messages: None,
                slowest: Arc::default(),
                ..(*last).clone()
            })
        });
        let slowest = messages.as_ref().map(|all| crate::view::slowest(all, MOST_WAITING));
        let slowest = Arc::new(slowest.unwrap_or_default());
        let picture = Picture { at, state, before, speed, messages, slowest, waits, end };
        self.last = Some(Arc::new(picture.clone()));
        self.shown = now();
        self.show.picture(self.lane, picture);
    }

    /// What the plan says for a lane that is at a time.
    fn step(&mut self, plan: &Plan, at: Time) -> Step {
        if plan.stop {
            return Step::Cancel;
        }
        if at >= plan.target {
            return Step::Wait(None);
        }
        let mut until = plan.target;
        if let Some(other) = self.shared.others(self.lane) {
            if at >= other + LEAD {
                return Step::Wait(Some(PATIENCE));
            }
            until = until.min(other + LEAD);
        }
        if self.anchor.2 != plan.speed {
            self.anchor = (at, now(), plan.speed);
        }
        if let Some(speed) = plan.speed {
            let (from, since, _) = self.anchor;
            let per_tick = Span::TICK.as_us_f64() * 1e3;
            let allowed = from.saturating_add(Span::from_ticks(
                (since.elapsed().as_secs_f64() * speed / per_tick) as u64,
            ));
            if at >= allowed {
                return Step::Wait(Some(PATIENCE));
            }
            until = until.min(allowed);
        }
        Step::Go(until)
    }
}

#[expect(clippy::disallowed_methods, reason = "pictures and speed are for people")]
fn now() -> Instant {
    Instant::now()
}

impl Observer for Watch {
    fn is_due(&mut self) -> bool {
        self.version != self.shared.version.load(Ordering::Relaxed)
            || self.shown.elapsed() >= PICTURES
    }

    fn look(&mut self, view: &mut dyn View) -> Next {
        let at = view.now();
        let shared = Arc::clone(&self.shared);
        shared.at[self.lane].store(at.ticks(), Ordering::Relaxed);
        loop {
            self.version = shared.version.load(Ordering::Relaxed);
            let plan = shared.plan();
            match self.step(&plan, at) {
                Step::Cancel => return Next::Cancel,
                Step::Go(until) => {
                    if self.shown.elapsed() >= PICTURES {
                        self.show(view, false, None);
                    }
                    return Next::Until(until);
                }
                Step::Wait(limit) => {
                    let is_shown = (self.last.as_ref())
                        .is_some_and(|last| last.at == at && last.waits == limit.is_none());
                    if !is_shown && (limit.is_none() || self.shown.elapsed() >= PICTURES) {
                        self.show(view, limit.is_none(), None);
                        self.anchor.2 = self.anchor.2.filter(|_| limit.is_some());
                    }
                    let limit = limit.unwrap_or(Duration::from_secs(3600));
                    let guard = shared.lock();
                    if self.version == shared.version.load(Ordering::Relaxed) {
                        // Whatever ends the wait, the plan is read again.
                        drop(shared.changed.wait_timeout(guard, limit));
                    }
                }
            }
        }
    }

    fn end(&mut self, view: &mut dyn View, end: End) {
        self.shared.at[self.lane].store(u64::MAX, Ordering::Relaxed);
        if end != End::Cancelled {
            self.show(view, false, Some(end));
        }
        self.shared.changed.notify_all();
    }
}

/// Runs a scenario of one point in a lane, and waits for its end.
pub(crate) fn run(scenario: Scenario, lane: usize, shared: Arc<Shared>, show: &Arc<dyn Show>) {
    let watch = Watch {
        lane,
        shared: Arc::clone(&shared),
        show: Arc::clone(show),
        version: 0,
        last: None,
        shown: now(),
        anchor: (Time::ZERO, now(), None),
    };
    let batch = Batch::new(scenario).with_observer(0, Box::new(watch));
    let began = now();
    let outcome = match batch.simulate(0) {
        Ok(PointEnd::Cancelled) => Outcome::Stopped,
        Ok(PointEnd::Failed(failure)) => Outcome::Failed(failure.message),
        Ok(end @ PointEnd::Finished(_)) => {
            let results = batch.results(vec![end], began.elapsed().as_secs_f64());
            let style =
                rackweave_lab::report::table::Style { color: false, unicode: true, wide: true };
            Outcome::Finished { table: results.to_table(160, style), summary: results.to_json() }
        }
        Err(error) => Outcome::Failed(chain(&error)),
    };
    // Also of a run that has no network, and so was never looked at.
    shared.at[lane].store(u64::MAX, Ordering::Relaxed);
    shared.changed.notify_all();
    show.outcome(lane, outcome);
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
