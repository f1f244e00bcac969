//! The same scenario, really: hosts are processes with a real network between them, and the switch is the
//! simulator's, at real rates.
//!
//! - [`Testbed`] runs the points of a sweep one after the other. For each it starts the switch and a process a host
//!   (this program with other arguments, see [`worker_main`]), watches them, and makes of their reports what
//!   the simulator makes of its hosts: a [`RunResult`](rackweave_sim::RunResult).
//! - In the *overlay* each host is a UDP socket of this machine, joined to the switch by datagrams: no right is
//!   needed. Otherwise each is a network namespace, joined by a pair of virtual interfaces.
//! - No host is sent its messages: each reads the scenario, and generators are seeded alike.
//! - What a run makes is named after it and written down before it is made, so that the next run can remove what
//!   a killed one has left (`cleanup`).

mod check;
mod cleanup;
mod collect;
mod endpoints;
mod point;
mod process;
mod protocol;
mod space;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rackweave_core::Time;
use rackweave_sim::Fabric;

pub use self::process::WorkerCommand;
pub use self::protocol::Role;
pub use self::worker::main as worker_main;
use crate::cast::CastSummary;
use crate::error::ScenarioError;
use crate::results::{Capture, PointFailure, PointResult, Results};
use crate::run::{PointEnd, Progress, collect, peak_rss_bytes};
use crate::scenario::{PointSpec, Scenario, ScenarioText, World};

/// Why nothing can be run.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum TestbedError {
    /// This machine, or the testbed, cannot do what the scenario says.
    #[error("{message}")]
    Refused {
        /// What it cannot do.
        message: String,
        /// What can be done instead.
        #[help]
        help: String,
    },
    /// A process could not be started.
    #[error("cannot start the process of {what}: {source}")]
    Start {
        /// Whose.
        what: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// A process ended, or could not do its work.
    #[error("{0}")]
    Worker(String),
    /// The machine was too slow even to begin.
    #[error("{0} was not ready in time: this machine has too much else to do")]
    Late(String),
    /// Namespaces and interfaces.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Network(#[from] NetworkError),
    /// The folder in which running testbeds are written down.
    #[error("cannot write down what this run makes, in `{}`: {source}", .path.display())]
    CleanupJournal {
        /// The file.
        path: std::path::PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
}

/// Why the network cannot be made.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[error("cannot make the network of the testbed: {0}")]
#[diagnostic(help("`--overlay` needs no network of its own"))]
pub struct NetworkError(#[from] rackweave_linux::netns::NetnsError);

/// The links whose packets a point captures.
fn captured_links(point: &PointSpec, fabric: &Fabric) -> Vec<u32> {
    point.config.measure.capture.iter().flat_map(|port| port.links(fabric)).collect()
}

/// A scenario on its way on real hosts: can be watched and stopped from other threads.
#[derive(Debug)]
pub struct Testbed {
    text: ScenarioText,
    sets: Vec<String>,
    scenario: Scenario,
    overlay: bool,
    command: WorkerCommand,
    cancelled: AtomicBool,
    watch: Watch,
}

/// How far it is.
#[derive(Debug, Default)]
struct Watch {
    points_done: AtomicU64,
    wanted: AtomicU64,
    finished: AtomicU64,
    finished_before: AtomicU64,
    now_ps: AtomicU64,
    limit_ps: AtomicU64,
}

impl Testbed {
    /// Reads a scenario, and checks that this machine can run it.
    ///
    /// # Errors
    /// Says what is wrong with the scenario.
    pub fn load(
        name: &str,
        sets: &[String],
        seed: Option<u64>,
        overlay: bool,
        command: WorkerCommand,
    ) -> Result<Self, ScenarioError> {
        let text = ScenarioText::load(name)?;
        let scenario = text.read(World::Testbed, sets, seed)?;
        Ok(Self {
            text,
            sets: sets.to_vec(),
            scenario,
            overlay,
            command,
            cancelled: AtomicBool::new(false),
            watch: Watch::default(),
        })
    }

    /// The points of a scenario that was read already: in namespaces if this machine lets it, else in the
    /// overlay.
    pub(crate) fn of(
        text: &ScenarioText,
        sets: &[String],
        scenario: Scenario,
        command: WorkerCommand,
    ) -> Self {
        Self {
            text: text.clone(),
            sets: sets.to_vec(),
            scenario,
            overlay: check::machine(false).is_err(),
            command,
            cancelled: AtomicBool::new(false),
            watch: Watch::default(),
        }
    }

    /// The scenario.
    #[must_use]
    pub const fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// Whether hosts are sockets of this machine, and not namespaces.
    #[must_use]
    pub const fn is_overlay(&self) -> bool {
        self.overlay
    }

    /// Refuses what cannot be done, before anything is made.
    ///
    /// # Errors
    /// Says what cannot be done, and what can.
    pub fn check(&self) -> Result<(), TestbedError> {
        check::machine(self.overlay)?;
        self.scenario.points.iter().try_for_each(|point| check::point(point, self.overlay))
    }

    /// What is to be known about all results beforehand.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        check::notes(&self.scenario, self.overlay)
    }

    /// Stops at the next opportunity: finished points stay.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether [`Testbed::cancel`] was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let get = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let points = self.scenario.points.len();
        let (wanted, finished) = (get(&self.watch.wanted), get(&self.watch.finished));
        let (now, limit) = (get(&self.watch.now_ps), get(&self.watch.limit_ps).max(1));
        let by_messages = if wanted == 0 { 0.0 } else { finished as f64 / wanted as f64 };
        let share = by_messages.max(now as f64 / limit as f64).min(1.0);
        let points_done = get(&self.watch.points_done) as usize;
        Progress {
            points_done,
            points,
            fraction: ((points_done as f64 + share) / points.max(1) as f64).min(1.0),
            events: 0,
            messages: get(&self.watch.finished_before) + finished,
            simulated: Time(now),
        }
    }

    /// Runs all points, one after the other. A point in which a process ends too early is among
    /// `summary.failures`; the others are not touched by it.
    ///
    /// # Errors
    /// If nothing can be run at all; see [`Testbed::check`].
    #[expect(clippy::disallowed_methods, reason = "the wall time of a run is one of its results")]
    pub fn run(&self) -> Result<Results, TestbedError> {
        let began = std::time::Instant::now();
        self.check()?;
        let journal = cleanup::CleanupJournal::open()?;
        let mut ends = Vec::with_capacity(self.scenario.points.len());
        for index in 0..self.scenario.points.len() {
            ends.push(self.run_point(index, &journal));
            self.watch.points_done.fetch_add(1, Ordering::Relaxed);
            let finished = self.watch.finished.swap(0, Ordering::Relaxed);
            self.watch.finished_before.fetch_add(finished, Ordering::Relaxed);
            self.watch.now_ps.store(0, Ordering::Relaxed);
        }
        let wall_s = began.elapsed().as_secs_f64();
        Ok(collect(&self.scenario, ends, self.is_cancelled(), wall_s, peak_rss_bytes()))
    }

    fn run_point(&self, index: usize, journal: &cleanup::CleanupJournal) -> PointEnd {
        if self.is_cancelled() {
            return PointEnd::Cancelled;
        }
        let spec = &self.scenario.points[index];
        match point::run(self, spec, journal) {
            Ok(None) => PointEnd::Cancelled,
            Ok(Some(ran)) => {
                let mut result = PointResult::new(index, spec, ran.result, ran.cpu_s);
                result.summary.doubts = ran.doubts;
                result.capture = Capture::Frames(ran.capture);
                if let (Some(config), Some(cast)) = (&spec.cast, ran.cast) {
                    result.summary.cast = Some(CastSummary::new(config, &cast));
                    result.cast = Some(cast);
                }
                PointEnd::Finished(Box::new(result))
            }
            // A worker that had no session yet, or a program that makes namespaces, got the Ctrl-C too.
            Err(_) if self.is_cancelled() => PointEnd::Cancelled,
            Err(error) => PointEnd::Failed(PointFailure {
                set: spec.set.iter().cloned().collect(),
                transport: spec.transport.clone(),
                message: error.to_string(),
                arguments: spec.arguments.clone(),
                seed: spec.config.seed,
            }),
        }
    }
}
