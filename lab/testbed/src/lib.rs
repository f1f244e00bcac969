//! Scenarios on real hosts. A run is one process per host, connected by the simulator's switch at real rates.
//!
//! - [`Testbed`] runs the points of a sweep one after the other. For each it starts the switch and a process per host
//!   (this program with other arguments, see [`worker_main`]), monitors them, and combines their reports into the
//!   result that the simulator has: a [`RunResult`](rackweave_sim::RunResult).
//! - In the *overlay* each host is a UDP socket of this machine, connected to the switch by datagrams, which needs no
//!   privileges. Otherwise each host is a network namespace, connected by a pair of virtual interfaces.
//! - No host receives a list of its messages: each reads the scenario, and generators have the same seeds.
//! - [`calibrate`]: what hosts cost on this machine. [`systems`]: the group systems that switches can run. [`deploy`]: the transport of a
//!   scenario, for nodes of [`rackweave_rpc`].
//! - Everything that a run creates is named after the run and recorded beforehand, so that the next run can remove what
//!   a killed one has left (`cleanup`).

pub mod calibrate;
mod check;
mod cleanup;
mod collect;
pub mod deploy;
mod endpoints;
mod image;
mod kinds;
mod point;
mod process;
mod protocol;
mod share;
mod space;
pub mod systems;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rackweave_core::Time;
use rackweave_lab::error::ScenarioError;
use rackweave_lab::results::{Capture, PointFailure, PointResult, Results};
use rackweave_lab::run::{PointEnd, Progress, collect, peak_rss_bytes};
use rackweave_lab::scenario::{PointSpec, Scenario, ScenarioText, World};
use rackweave_sim::Fabric;

pub(crate) use self::check::{LONGEST_MESSAGE, refused};
pub(crate) use self::endpoints::kernel_has;
pub use self::process::WorkerCommand;
pub use self::protocol::Role;
pub(crate) use self::protocol::{HostWork, StudyEnd, SwitchWork};
pub use self::worker::main as worker_main;
pub(crate) use self::worker::{SWITCH_PRIORITY, run_cast, run_image, run_reduce};

/// Why the testbed cannot run a scenario.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum TestbedError {
    /// This machine or the testbed does not support what the scenario requires.
    #[error("{message}")]
    Refused {
        /// What is not supported.
        message: String,
        /// A suggestion what to do instead.
        #[help]
        help: String,
    },
    /// A process could not be started.
    #[error("cannot start the process of {what}: {source}")]
    Start {
        /// The role of the process.
        what: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A process ended early or reported an error.
    #[error("{0}")]
    Worker(String),
    /// The machine was too slow to start the load on time.
    #[error("{0} was not ready in time: this machine is too busy")]
    Late(String),
    /// The namespaces or interfaces could not be created.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Network(#[from] NetworkError),
    /// The image could not be made.
    #[error("cannot make the image: {0}")]
    Image(String),
    /// The journal of running testbeds could not be read or written.
    #[error("cannot record what this run creates in `{}`: {source}", .path.display())]
    CleanupJournal {
        /// The path of the journal's file or directory.
        path: std::path::PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

/// Why the network of namespaces cannot be created.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[error("cannot create the network of the testbed: {0}")]
#[diagnostic(help("`--overlay` needs no network of its own"))]
pub struct NetworkError(#[from] rackweave_linux::netns::NetnsError);

/// Checks whether this machine lets hosts be network namespaces.
pub(crate) fn can_use_namespaces() -> Result<(), TestbedError> {
    check::machine(false)
}

/// The work of all processes of a point while its load went on.
#[derive(Clone, Debug)]
pub(crate) struct PointWork {
    /// By the number of the host.
    pub(crate) hosts: Vec<HostWork>,
    pub(crate) switch: SwitchWork,
}

impl PointWork {
    /// Whether every process has sent or received.
    pub(crate) fn is_complete(&self) -> bool {
        let has_worked = |host: &HostWork| host.sent + host.received > 0;
        self.switch.packets > 0 && self.hosts.iter().all(has_worked)
    }
}

/// Returns the links whose packets a point captures.
fn captured_links(point: &PointSpec, fabric: &Fabric) -> Vec<u32> {
    point.config.measure.capture.iter().flat_map(|port| port.links(fabric)).collect()
}

/// A run of a scenario on real hosts, which other threads can watch and stop.
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

/// The progress of a run.
#[derive(Debug, Default)]
struct Watch {
    points_done: AtomicU64,
    wanted: AtomicU64,
    finished: AtomicU64,
    finished_before: AtomicU64,
    now_ticks: AtomicU64,
    limit_ticks: AtomicU64,
}

impl Testbed {
    /// Reads a scenario, and checks that this machine can run it.
    ///
    /// # Errors
    /// The error says what is invalid in the scenario.
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

    /// Returns a testbed for the points of this text.
    pub(crate) fn of_text(
        text: &ScenarioText,
        overlay: bool,
        command: WorkerCommand,
    ) -> Result<Self, ScenarioError> {
        let scenario = text.read(World::Testbed, &[], None)?;
        Ok(Self { overlay, ..Self::of(text, &[], scenario, command) })
    }

    /// Runs a point for the work that its processes do; `None` if it was stopped.
    pub(crate) fn measure_work(&self, index: usize) -> Result<Option<PointWork>, TestbedError> {
        let journal = cleanup::CleanupJournal::open()?;
        let outcome = point::run(self, &self.scenario.points[index], &journal);
        match outcome {
            Ok(outcome) => Ok(outcome.map(|outcome| outcome.work)),
            Err(_) if self.is_cancelled() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns a testbed for the points of a scenario that was read already: in namespaces if this machine allows it,
    /// or else in the overlay.
    #[must_use]
    pub fn of(
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

    /// Returns the scenario with all its points.
    #[must_use]
    pub const fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// Returns whether hosts are sockets of this machine instead of namespaces.
    #[must_use]
    pub const fn is_overlay(&self) -> bool {
        self.overlay
    }

    /// Refuses what cannot be done, before anything is created.
    ///
    /// # Errors
    /// The error says what cannot be done, and what can be done instead.
    pub fn check(&self) -> Result<(), TestbedError> {
        check::machine(self.overlay)?;
        self.scenario.points.iter().try_for_each(|point| check::point(point, self.overlay))
    }

    /// Returns remarks that hold for all results.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        check::notes(&self.scenario, self.overlay)
    }

    /// Stops the run at the next opportunity. Finished points are kept.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Returns whether [`Testbed::cancel`] was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Returns the present progress.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let get = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let points = self.scenario.points.len();
        let (wanted, finished) = (get(&self.watch.wanted), get(&self.watch.finished));
        let (now, limit) = (get(&self.watch.now_ticks), get(&self.watch.limit_ticks).max(1));
        let by_messages = if wanted == 0 { 0.0 } else { finished as f64 / wanted as f64 };
        let share = by_messages.max(now as f64 / limit as f64).min(1.0);
        let points_done = get(&self.watch.points_done) as usize;
        Progress {
            points_done,
            points,
            fraction: ((points_done as f64 + share) / points.max(1) as f64).min(1.0),
            events: 0,
            messages: get(&self.watch.finished_before) + finished,
            simulated: Time::from_ticks(now),
            is_open_ended: false,
            waiting: 0,
            waiting_for: 0,
            longest: None,
        }
    }

    /// Runs all points, one after the other. A point in which a process ends too early is listed in `summary.failures`
    /// and does not affect the others.
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
            self.watch.now_ticks.store(0, Ordering::Relaxed);
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
                result.summary.machine = ran.machine;
                result.capture = Capture::Frames(ran.capture);
                if let Some((summary, detail)) = ran.study {
                    result.summary.study = summary;
                    result.detail = detail;
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
