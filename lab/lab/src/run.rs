//! Running the points of a scenario on all cores.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rackweave_core::Time;
use rackweave_sim::result::{End, RunResult, Waiting};
use rackweave_sim::world::Observer;
use rackweave_sim::{BuildError, Control, Threads};
use rayon::prelude::*;

use crate::error::OutputError;
use crate::explain;
use crate::results::end_name;
use crate::results::{Capture, MissingPoint, PointFailure, PointResult, Results};
use crate::scenario::{PointSpec, Scenario};
use crate::study::{Setting, Study, StudyError};
use crate::sweep::{self, PointError, PointStore, Shard};

/// A run of a scenario's points, which other threads can watch and stop.
#[derive(Debug)]
pub struct Batch {
    scenario: Scenario,
    controls: Vec<Control>,
    /// For each point, whether it has ended, successfully or not.
    done: Vec<AtomicBool>,
    /// How much of the work each point is.
    weights: Vec<f64>,
    cancelled: AtomicBool,
    /// The most threads for each point.
    threads: u32,
    /// The most time of the machine's clock for each point, and when those began that run.
    point_limit: Option<Duration>,
    began: Vec<Mutex<Option<Instant>>>,
}

/// The progress of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// The number of points that have ended.
    pub points_done: usize,
    /// The number of all points of the sweep.
    pub points: usize,
    /// The share of all the work that is done, from 0 to 1, measured by messages or, where their number is unknown, by
    /// simulated time.
    pub fraction: f64,
    /// The number of simulated events so far.
    pub events: u64,
    /// The number of measured messages that have ended.
    pub messages: u64,
    /// Whether it is not known how much is left: all points that are running wait for their last messages, or others follow in a search.
    pub is_open_ended: bool,
    /// The number of points whose measured messages have all started, and that wait for the last of them.
    pub waiting: usize,
    /// The number of messages that those points wait for.
    pub waiting_for: u64,
    /// The lowest simulated time among the points that are running.
    pub simulated: Time,
    /// The message for which a point has waited longest; `None` if none waits, or the run has several threads.
    pub longest: Option<Waiting>,
}

/// Why a batch cannot be run.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum RunError {
    /// A point cannot be run, for example because its network cannot be built.
    #[error("point {index} of the scenario can't be run")]
    Point {
        /// The index of the point in the sweep.
        index: usize,
        /// The reason why it cannot be run.
        source: StudyError,
    },
    /// A finished point cannot be stored.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Store(#[from] OutputError),
    /// A finished point cannot be encoded.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Encode(#[from] PointError),
    /// The worker threads cannot be started.
    #[error("can't start {jobs} threads: {message}")]
    Threads {
        /// The requested number of threads.
        jobs: usize,
        /// The error message of the operating system.
        message: String,
    },
}

impl Batch {
    /// Returns a batch that has not started.
    #[must_use]
    pub fn new(scenario: Scenario) -> Self {
        let controls = scenario.points.iter().map(|_| Control::default()).collect();
        let done = scenario.points.iter().map(|_| AtomicBool::new(false)).collect();
        let began = scenario.points.iter().map(|_| Mutex::default()).collect();
        let weights = weights(&scenario.points);
        let cancelled = AtomicBool::new(false);
        Self { scenario, controls, done, weights, cancelled, threads: 1, point_limit: None, began }
    }

    /// Runs each point on up to this number of threads, at least 1. The results are the same; which points use one thread in any case
    /// says [`Scenario::explain`].
    #[must_use]
    pub fn with_threads(self, threads: u32) -> Self {
        Self { threads: threads.max(1), ..self }
    }

    /// Ends each point after this time of the machine's clock, with the results that it has so far: what these are depends on the machine
    /// and its load. Such points are not stored as finished.
    #[must_use]
    pub fn with_point_limit(self, limit: Option<Duration>) -> Self {
        Self { point_limit: limit, ..self }
    }

    /// Has a point looked at while it runs. Its results are the same. (Points that are computed without a network are not looked at.)
    #[must_use]
    pub fn with_observer(mut self, index: usize, observer: Box<dyn Observer>) -> Self {
        if let Some(control) = self.controls.get_mut(index) {
            control.observer = Mutex::new(Some(observer));
        }
        self
    }

    /// Ends the points whose time is over.
    fn expire(&self, limit: Duration) {
        for (control, began) in self.controls.iter().zip(&self.began) {
            let began = *began.lock().unwrap_or_else(PoisonError::into_inner);
            if began.is_some_and(|began| began.elapsed() >= limit) {
                control.expire.store(true, Ordering::Relaxed);
            }
        }
    }

    /// The number of points to run at one time: one per core, or fewer if each of them uses several threads.
    #[must_use]
    pub fn jobs(&self, jobs: Option<usize>) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        jobs.unwrap_or(cores / self.threads as usize).max(1)
    }

    /// Returns the scenario of this batch.
    #[must_use]
    pub const fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// Stops the batch at the next opportunity. Finished points are kept, others are dropped.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        for control in &self.controls {
            control.cancel.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether [`Batch::cancel`] was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Returns the present progress.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let points = self.controls.len();
        let mut progress = Progress { points, ..Progress::default() };
        let mut shares = 0.0;
        let mut slowest = u64::MAX;
        let points_of_all = self.controls.iter().zip(&self.done).zip(&self.scenario.points);
        for (((control, done), spec), weight) in points_of_all.zip(&self.weights) {
            let finished = control.finished.load(Ordering::Relaxed);
            let wanted = control.wanted.load(Ordering::Relaxed);
            let now = control.sim_time_ticks.load(Ordering::Relaxed);
            progress.events += control.events.load(Ordering::Relaxed);
            progress.messages += finished;
            let started = control.started.load(Ordering::Relaxed);
            if done.load(Ordering::Relaxed) {
                progress.points_done += 1;
                shares += weight;
            } else if wanted > 0 {
                let waiting = control.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                if started == wanted || !waiting.is_empty() {
                    progress.waiting += 1;
                    progress.waiting_for += started.saturating_sub(finished);
                }
                let longest = progress.longest.into_iter().chain(waiting.first().copied());
                progress.longest = longest.min_by_key(|it| it.since);
                // For the next call.
                control.ask.store(true, Ordering::Relaxed);
                // The time limit may come first, if messages do not end.
                let measure = &spec.config.measure;
                let end = measure.until().min(Time::ZERO + measure.time_limit);
                let by_time = now as f64 / end.ticks() as f64;
                shares += weight * (finished as f64 / wanted as f64).max(by_time).min(1.0);
                slowest = slowest.min(now);
            }
        }
        progress.fraction = shares / self.weights.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        progress.is_open_ended =
            progress.waiting > 0 && progress.points_done + progress.waiting == points;
        progress.simulated = Time::from_ticks(if slowest == u64::MAX { 0 } else { slowest });
        progress
    }

    /// Runs all points on `jobs` threads (`None` for one per core). The results do not depend on the number of threads.
    ///
    /// A point in which the simulator itself fails is listed in `summary.failures` and does not affect the others.
    ///
    /// # Errors
    /// If the simulated network of a point cannot be built.
    pub fn run(&self, jobs: Option<usize>) -> Result<Results, RunError> {
        self.run_with(jobs, &|spec, control| self.run_transports(spec, control))
    }

    /// Runs all points with the given function instead of the simulator.
    fn run_with(&self, jobs: Option<usize>, simulate: &Simulate<'_>) -> Result<Results, RunError> {
        self.run_each(jobs, |index| self.run_point(index, simulate))
    }

    /// Runs the points of a shard that are not finished in a store, and stores each of them when it has ended. The results are those
    /// of the shard's points; points of other shards are missing in them.
    ///
    /// # Errors
    /// If the simulated network of a point cannot be built, or a point cannot be stored.
    pub fn run_stored(
        &self,
        jobs: Option<usize>,
        store: &PointStore,
        shard: Shard,
    ) -> Result<Results, RunError> {
        let mut results = self.run_each(jobs, |index| {
            let spec = &self.scenario.points[index];
            if !shard.has(index) {
                return Ok(PointEnd::Cancelled);
            }
            if let Some(end) = store.finished(spec, index) {
                return Ok(end);
            }
            let simulate = |spec: &_, control: &_| self.run_transports(spec, control);
            let end = self.run_point(index, &simulate)?;
            if !matches!(end, PointEnd::Cancelled) && !end.depends_on_the_machine() {
                store.put(spec, &sweep::encode(spec, &end, peak_rss_bytes())?)?;
            }
            Ok(end)
        })?;
        let wanted = (0..self.scenario.points.len()).filter(|index| shard.has(*index)).count();
        let ended = results.points.len() + results.summary.failures.len();
        results.summary.interrupted = self.is_cancelled() && ended < wanted;
        if !results.summary.interrupted {
            // Those of other shards are not missing in this one.
            results.summary.missing.clear();
        }
        Ok(results)
    }

    /// Runs one point, and returns it in the form that [`crate::sweep::Sweep::add`] takes, for results that another process collects.
    ///
    /// # Errors
    /// If there is no such point, its network cannot be built, or the batch is cancelled.
    pub fn run_encoded(&self, index: usize) -> Result<Vec<u8>, RunError> {
        let spec = self.scenario.points.get(index).ok_or(PointError::Other { index })?;
        let end = self.simulate(index)?;
        Ok(sweep::encode(spec, &end, peak_rss_bytes())?)
    }

    /// Runs each point by a function on `jobs` threads.
    #[expect(clippy::disallowed_methods, reason = "the wall time of a run is one of its results")]
    fn run_each(
        &self,
        jobs: Option<usize>,
        run: impl Fn(usize) -> Result<PointEnd, RunError> + Sync,
    ) -> Result<Results, RunError> {
        let began = Instant::now();
        let jobs = self.jobs(jobs);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(jobs)
            .build()
            .map_err(|error| RunError::Threads { jobs, message: error.to_string() })?;
        let run_all = || -> Result<Vec<PointEnd>, RunError> {
            let all = (0..self.scenario.points.len()).into_par_iter().with_max_len(1);
            all.map(|index| {
                let set_began =
                    |to| *self.began[index].lock().unwrap_or_else(PoisonError::into_inner) = to;
                set_began(Some(Instant::now()));
                let end = run(index);
                set_began(None);
                self.done[index].store(true, Ordering::Relaxed);
                end
            })
            .collect()
        };
        let ends = std::thread::scope(|scope| {
            let (stop, stopped) = channel::<()>();
            if let Some(limit) = self.point_limit {
                let period = (limit / 10).min(Duration::from_millis(100));
                scope.spawn(move || {
                    while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                        self.expire(limit);
                    }
                });
            }
            let ends = pool.install(run_all);
            drop(stop);
            ends
        });
        Ok(self.results(ends?, began.elapsed().as_secs_f64()))
    }

    /// Returns the results from the outcomes of the points.
    #[must_use]
    pub fn results(&self, ends: Vec<PointEnd>, wall_s: f64) -> Results {
        collect(&self.scenario, ends, self.is_cancelled(), wall_s, peak_rss_bytes())
    }

    /// Runs one point, for callers that have their own thread pool.
    ///
    /// # Errors
    /// If the simulated network of the point cannot be built.
    ///
    /// # Panics
    /// If there is no such point.
    pub fn simulate(&self, index: usize) -> Result<PointEnd, RunError> {
        let simulate = |spec: &_, control: &_| self.run_transports(spec, control);
        let end = self.run_point(index, &simulate);
        self.done[index].store(true, Ordering::Relaxed);
        end
    }

    /// Runs a point whose messages are measured. Returns the processor time of all its threads but this one, too.
    fn run_transports(
        &self,
        spec: &PointSpec,
        control: &Control,
    ) -> Result<(RunResult, f64), BuildError> {
        let others = Mutex::new(0.0);
        let at_end = || *others.lock().unwrap_or_else(PoisonError::into_inner) += thread_cpu_s();
        let threads = Threads { number: self.threads, at_end: &at_end };
        let result = rackweave_sim::run_on(&spec.config, threads, control)?;
        let cpu_s = *others.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((result, cpu_s))
    }

    fn run_point(&self, index: usize, simulate: &Simulate<'_>) -> Result<PointEnd, RunError> {
        if self.is_cancelled() {
            return Ok(PointEnd::Cancelled);
        }
        let spec = &self.scenario.points[index];
        // State that a panic leaves inconsistent is not used afterwards, because the world is dropped with its run.
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let before = thread_cpu_s();
            let control = &self.controls[index];
            let failed = |source| RunError::Point { index, source };
            let mut others_cpu_s = 0.0;
            let mut measured = None;
            let result = if let Some(kind) = spec.study.kind() {
                let done = kind.run(&Setting::of(spec, control)).map_err(failed)?;
                measured = Some((done.summary, done.detail, done.capture));
                done.result
            } else if let Study::Messages(Some(rules)) = spec.study {
                let done = rackweave_sim::oracle::run(&spec.config, rules, control);
                done.map_err(|error| failed(error.into()))?
            } else {
                let done = simulate(spec, control);
                let (result, cpu_s) = done.map_err(|error| failed(error.into()))?;
                others_cpu_s = cpu_s;
                result
            };
            if result.end == End::Cancelled {
                return Ok(PointEnd::Cancelled);
            }
            let cpu_s = thread_cpu_s() - before + others_cpu_s;
            let mut point = PointResult::new(index, spec, result, cpu_s);
            if let Some((summary, detail, capture)) = measured {
                point.summary.study = summary;
                point.detail = detail;
                point.capture = Capture::Frames(capture);
            }
            Ok(PointEnd::Finished(Box::new(point)))
        }));
        ended.unwrap_or_else(|panic| {
            Ok(PointEnd::Failed(PointFailure {
                set: spec.set.iter().cloned().collect(),
                transport: spec.transport.clone(),
                message: panic_message(&*panic),
                arguments: spec.arguments.clone(),
                seed: spec.config.seed,
            }))
        })
    }
}

/// Returns how much of the work each point is: by what its messages cost, where that is known of all points.
fn weights(points: &[PointSpec]) -> Vec<f64> {
    let costs: Option<Vec<f64>> = points.iter().map(explain::cost_of_messages).collect();
    let is_positive = |costs: &Vec<f64>| costs.iter().all(|cost| *cost > 0.0 && cost.is_finite());
    costs.filter(is_positive).unwrap_or_else(|| vec![1.0; points.len()])
}

/// Returns the results from the outcomes of the points.
#[must_use]
pub fn collect(
    scenario: &Scenario,
    ends: Vec<PointEnd>,
    cancelled: bool,
    wall_s: f64,
    peak_rss_bytes: u64,
) -> Results {
    let (mut points, mut failures) = (Vec::new(), Vec::new());
    for end in ends {
        match end {
            PointEnd::Finished(point) => points.push(*point),
            PointEnd::Failed(failure) => failures.push(failure),
            PointEnd::Cancelled => {}
        }
    }
    let mut results = Results::new(scenario, points, wall_s, peak_rss_bytes);
    results.summary.interrupted =
        cancelled && results.points.len() + failures.len() < scenario.points.len();
    if results.summary.interrupted {
        let has_ended = |index: &usize| results.points.iter().any(|point| point.index == *index);
        let is_failed = |spec: &PointSpec| {
            let set: Vec<_> = spec.set.clone();
            failures.iter().any(|it| {
                it.seed == spec.config.seed
                    && it.set.iter().eq(set.iter().map(|(key, value)| (key, value)))
            })
        };
        let unfinished = scenario.points.iter().enumerate();
        let unfinished = unfinished.filter(|(index, spec)| !has_ended(index) && !is_failed(spec));
        let missing = unfinished.map(|(_, spec)| MissingPoint {
            set: spec.set.iter().cloned().collect(),
            label: spec.labels[0].clone(),
            seed: spec.config.seed,
        });
        results.summary.missing = missing.collect();
    }
    results.summary.failures = failures;
    results
}

/// A function that runs one point. It returns the processor time of other threads, too.
type Simulate<'a> =
    dyn Fn(&PointSpec, &Control) -> Result<(RunResult, f64), BuildError> + Sync + 'a;

/// The outcome of a point.
#[derive(Debug)]
pub enum PointEnd {
    /// It has results.
    Finished(Box<PointResult>),
    /// The simulator itself, or a process of the testbed, failed.
    Failed(PointFailure),
    /// It was stopped, or not started.
    Cancelled,
}

impl PointEnd {
    /// Returns whether the clock of the machine ended it.
    fn depends_on_the_machine(&self) -> bool {
        matches!(self, Self::Finished(point) if point.summary.end == end_name(End::PointLimit))
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown").to_owned()
}

fn thread_cpu_s() -> f64 {
    cpu_time::ThreadTime::try_now().map_or(0.0, |time| time.as_duration().as_secs_f64())
}

/// Returns the peak resident memory of this process in bytes; 0 where the system does not report it.
#[must_use]
pub fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const SWEEP: &str = "fabric = { topology = 'single-switch', hosts = 4 }
        transport.name = 'tcp'
        workload = { arrivals = 'permutation', sizes = '10 KB' }
        [sweep]
        cases = [{ workload.sizes = '1 KB' }, { workload.sizes = '2 KB', measure.verify = true }]
        fabric.hosts = [3, 4]
        seed = [7, 8]";

    fn parse(sets: &[String]) -> Scenario {
        Scenario::parse("sweep.toml", SWEEP, Path::new("."), sets, None).unwrap()
    }

    #[test]
    fn a_panic_in_one_point_does_not_affect_the_others() {
        let simulate = |spec: &PointSpec, control: &Control| {
            assert!(spec.config.seed == 8 || !spec.config.measure.verify, "{} lost", 3);
            Ok((rackweave_sim::run(&spec.config, control)?, 0.0))
        };
        for jobs in [1, 2] {
            let batch = Batch::new(parse(&[]));
            let results = batch.run_with(Some(jobs), &simulate).unwrap();
            assert_eq!(results.points.len(), 6);
            assert!(!results.summary.interrupted, "no user stopped it");
            let failures = &results.summary.failures;
            assert_eq!(failures.len(), 2);
            assert_eq!(failures[1].message, "3 lost");
            assert_eq!((failures[1].seed, &failures[1].set["fabric.hosts"]), (7, &4.into()));
            let progress = batch.progress();
            assert_eq!((progress.points_done, progress.fraction), (8, 1.0));
            assert!(results.to_json().contains("3 lost"));
        }
    }

    #[test]
    fn the_arguments_of_a_point_select_only_that_point() {
        let all = parse(&[]).points;
        for point in &all {
            let single = Scenario::parse(
                "sweep.toml",
                SWEEP,
                Path::new("."),
                &point.arguments,
                Some(point.config.seed),
            )
            .unwrap();
            assert_eq!(single.points.len(), 1);
            assert_eq!(format!("{:?}", single.points[0].config), format!("{:?}", point.config));
        }
    }

    #[test]
    fn progress_without_a_number_of_messages_is_by_time() {
        let scenario = parse(&["measure.time_limit='4 s'".into()]);
        let batch = Batch::new(scenario);
        batch.controls[0].wanted.store(u64::MAX, Ordering::Relaxed);
        batch.controls[0]
            .sim_time_ticks
            .store(rackweave_core::Span::from_secs(1).ticks(), Ordering::Relaxed);
        let weight = batch.weights[0] / batch.weights.iter().sum::<f64>();
        assert!((batch.progress().fraction - 0.25 * weight).abs() < 1e-12);
        assert!(weight != 1.0 / 8.0 && (weight - 1.0 / 8.0).abs() < 0.1, "{weight}");
        assert_eq!(batch.progress().simulated, Time::ZERO + rackweave_core::Span::from_secs(1));
    }
}
