//! Running the points of a scenario on all cores.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rackweave_core::Time;
use rackweave_sim::result::End;
use rackweave_sim::{BuildError, Control};
use rayon::prelude::*;

use crate::results::{PointResult, Results};
use crate::scenario::Scenario;

/// A scenario on its way: can be watched and stopped from other threads.
#[derive(Debug)]
pub struct Batch {
    scenario: Scenario,
    controls: Vec<Control>,
    points_done: AtomicUsize,
    cancelled: AtomicBool,
}

/// How far a batch is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Points of the sweep that are done.
    pub points_done: usize,
    /// All points.
    pub points: usize,
    /// Share of all the work, 0 to 1, by measured messages.
    pub fraction: f64,
    /// Events of the engine so far.
    pub events: u64,
    /// Measured messages that have ended.
    pub messages: u64,
    /// Simulated time of the point that is farthest behind among those under way.
    pub simulated: Time,
}

/// Why a batch can't be run.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum RunError {
    /// A point that the world can't be built for.
    #[error("point {index} of the scenario can't be run: {source}")]
    Build {
        /// Its place in the sweep.
        index: usize,
        /// Why.
        source: BuildError,
    },
    /// No threads.
    #[error("can't start {jobs} threads: {message}")]
    Threads {
        /// How many were asked for.
        jobs: usize,
        /// What the system said.
        message: String,
    },
}

impl Batch {
    /// Ready to run.
    #[must_use]
    pub fn new(scenario: Scenario) -> Self {
        let controls = scenario.points.iter().map(|_| Control::default()).collect();
        Self {
            scenario,
            controls,
            points_done: AtomicUsize::new(0),
            cancelled: AtomicBool::new(false),
        }
    }

    /// The scenario.
    #[must_use]
    pub const fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// Stops at the next opportunity: finished points stay, others are dropped.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        for control in &self.controls {
            control.cancel.store(true, Ordering::Relaxed);
        }
    }

    /// Whether [`Batch::cancel`] was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let points = self.controls.len();
        let mut progress = Progress { points, ..Progress::default() };
        let mut shares = 0.0;
        let mut slowest = u64::MAX;
        for control in &self.controls {
            let finished = control.finished.load(Ordering::Relaxed);
            let wanted = control.wanted.load(Ordering::Relaxed);
            progress.events += control.events.load(Ordering::Relaxed);
            progress.messages += finished;
            if wanted > 0 && wanted < u64::MAX {
                shares += (finished as f64 / wanted as f64).min(1.0);
                if finished < wanted {
                    slowest = slowest.min(control.sim_time_ps.load(Ordering::Relaxed));
                }
            }
        }
        progress.points_done = self.points_done.load(Ordering::Relaxed);
        progress.fraction = shares.max(progress.points_done as f64) / points.max(1) as f64;
        progress.simulated = Time(if slowest == u64::MAX { 0 } else { slowest });
        progress
    }

    /// Runs all points on `jobs` threads (`None`: one for each core). The results don't depend on
    /// the number of threads.
    ///
    /// # Errors
    /// If a point's world can't be built.
    #[expect(clippy::disallowed_methods, reason = "the wall time of a run is one of its results")]
    pub fn run(&self, jobs: Option<usize>) -> Result<Results, RunError> {
        let began = std::time::Instant::now();
        let jobs = jobs.unwrap_or(0);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(jobs)
            .build()
            .map_err(|error| RunError::Threads { jobs, message: error.to_string() })?;
        let points: Result<Vec<Option<PointResult>>, RunError> = pool.install(|| {
            let all = (0..self.scenario.points.len()).into_par_iter().with_max_len(1);
            all.map(|index| self.run_point(index)).collect()
        });
        let points = points?.into_iter().flatten().collect();
        Ok(Results::new(&self.scenario, points, began.elapsed().as_secs_f64(), peak_rss_bytes()))
    }

    /// `None`: cancelled.
    fn run_point(&self, index: usize) -> Result<Option<PointResult>, RunError> {
        if self.is_cancelled() {
            return Ok(None);
        }
        let spec = &self.scenario.points[index];
        let before = thread_cpu_s();
        let result = rackweave_sim::run(&spec.config, &self.controls[index])
            .map_err(|source| RunError::Build { index, source })?;
        if result.end == End::Cancelled {
            return Ok(None);
        }
        let cpu_s = thread_cpu_s() - before;
        self.points_done.fetch_add(1, Ordering::Relaxed);
        Ok(Some(PointResult::new(index, spec, result, cpu_s)))
    }
}

fn thread_cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Most memory that this process ever held; 0 where the system does not say.
fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
