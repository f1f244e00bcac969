//! One point of the sweep, from the start of its processes to their end.

mod outcome;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use rackweave_core::{HostId, Span, Time};
use rackweave_lab::results::MachineShare;
use rackweave_lab::scenario::PointSpec;
use rackweave_lab::study::reduce::{Control, ControlPlane, Controlled, ReduceConfig, Status};
use rackweave_lab::study::{Study, StudyDetail, StudySummary};
use rackweave_linux::Clock;
use rackweave_linux::sys::{set_ordinary_priority, set_realtime_priority};
use rackweave_sim::Fabric;
use rackweave_sim::config::{Circuits, FaultKind, FaultPlace};
use rackweave_sim::result::{End, RunResult};
use rackweave_wire::pcapng::Frame;
use rackweave_workload::Generator;
use rustix::process::Signal;

use super::cleanup::{CleanupJournal, RunEntry};
use super::collect::ReportCollector;
use super::endpoints::EndpointSpecs;
use super::image::ImageFolder;
use super::process::{PATIENCE, Update, Worker, Workers};
use super::protocol::{
    Bind, Command, HostEnd, JobEnd, Role, Setup, SwitchEnd, WireCircuits, WorkerMessage,
};
use super::worker::SWITCH_PRIORITY;
use super::{PointWork, Testbed, TestbedError, share, space, worker};

/// The time from when all workers have read the scenario to the start of the load. In it they bind their addresses and
/// greet their peers. If it is too short on a busy machine, the workers are started again with four times as much.
const HEAD_START: Span = Span::from_ms(500);
/// The longest head start before the testbed gives up.
const MAX_HEAD_START: Span = Span::from_secs(30);
/// The additional time for each host.
const HEAD_START_PER_HOST: Span = Span::from_ms(20);
/// The interval at which the coordinator checks for faults and cancellation.
const POLL_EVERY: Duration = Duration::from_millis(20);
/// How long a crashing host may take to report what had become of its messages.
const CRASH_REPORT_TIMEOUT: Span = Span::from_secs(2);
/// How long the switch may take to change its circuits.
const MOVE_WITHIN: Span = Span::from_secs(5);
/// The outcome of a point.
pub(super) struct PointOutcome {
    pub(super) result: RunResult,
    /// The results that only the workload's kind has.
    pub(super) study: Option<(StudySummary, Option<StudyDetail>)>,
    /// The frames that crossed the interfaces [`RunResult::capture_names`].
    pub(super) capture: Vec<Frame>,
    pub(super) cpu_s: f64,
    /// The work of its processes.
    pub(super) work: PointWork,
    /// Reasons why its numbers may not be trustworthy.
    pub(super) doubts: Vec<String>,
    /// What its processes got of the machine.
    pub(super) machine: Option<MachineShare>,
}

/// A fault that the coordinator applies to a host's process.
#[derive(Clone, Copy, Debug)]
enum HostFault {
    Pause,
    Resume,
    Kill,
    Revive,
}

struct PointRun<'a> {
    bed: &'a Testbed,
    point: &'a PointSpec,
    // Dropped in the order of declaration: processes, the image, namespaces, and the journal entry.
    workers: Workers,
    image: Option<ImageFolder>,
    space: Option<space::Space>,
    entry: RunEntry,
    fabric: Fabric,
    endpoints: EndpointSpecs,
    incarnations: BTreeMap<Role, u32>,
    sender: Sender<Update>,
    update: Receiver<Update>,
    collector: ReportCollector<'a>,
    clock: Clock,
    start: Span,
    /// For each host, its port of the switch, and its own addresses.
    ports: Vec<Option<SocketAddr>>,
    addresses: BTreeMap<u32, Vec<SocketAddr>>,
    /// The faults still to be applied, last first.
    host_faults: Vec<(Time, u32, HostFault)>,
    crashed_at: BTreeMap<u32, u64>,
    host_ends: BTreeMap<u32, HostEnd>,
    /// The control plane of jobs, if the scenario has one.
    plane: Option<ControlPlane>,
    /// How far jobs have come.
    jobs: BTreeMap<u16, JobEnd>,
    /// When the ports that are dark are lit again, by the clock, once the switch has said so.
    lit: Option<u64>,
    /// The kernel's counters when the load began, and when it had ended.
    began: Option<share::Counters>,
    ended: Option<share::Counters>,
}

/// The hosts and the switch of a run, as its control plane acts on them.
struct Bed<'r, 'a> {
    run: &'r mut PointRun<'a>,
    reduce: &'r ReduceConfig,
    /// Why the run cannot go on.
    failed: Option<TestbedError>,
}

impl Controlled for Bed<'_, '_> {
    fn look(&mut self) -> Vec<Status> {
        self.run.jobs.values().filter_map(|job| job.record().status(job.job)).collect()
    }

    fn grant(&mut self, _now: Time, job: u16, slots: u32) {
        if let Some(job) = self.reduce.job_of(job) {
            let grant = Command::Grant { job: job.number, slots };
            self.run.command(Role::Host(job.master.0), &grant);
        }
    }

    fn reconfigure(&mut self, to: &Circuits) -> Result<Time, String> {
        self.run.change_circuits(to).map_err(|error| {
            let why = error.to_string();
            self.failed = Some(error);
            why
        })
    }
}

/// Runs a point. Returns `None` if it was stopped.
pub(super) fn run(
    bed: &Testbed,
    point: &PointSpec,
    journal: &CleanupJournal,
) -> Result<Option<PointOutcome>, TestbedError> {
    let fabric = Fabric::new(&point.config.fabric)
        .map_err(|error| TestbedError::Worker(error.to_string()))?;
    let config = &point.config;
    let total = match config.streams.first() {
        Some(stream) => stream
            .mean_gap(fabric.host_rate())
            .and_then(|gap| {
                Generator::new(&stream.workload, fabric.hosts(), gap, config.seed, config.run, 0)
            })
            .map_err(|error| TestbedError::Worker(error.to_string()))?
            .total(),
        // Casts are not counted as messages: hosts report when they are idle, and at their end the outcome of the
        // files.
        None => None,
    };
    let entry = journal.begin()?;
    let image = match &point.study {
        Study::Image(image) => Some(ImageFolder::make(&entry, image, config.seed)?),
        _ => None,
    };
    let space = if bed.overlay { None } else { Some(space::Space::make(&entry, point)?) };
    let (sender, update) = channel();
    let planned = match &point.study {
        // Pipes between processes have their own delay, and lose nothing.
        Study::Reduce(reduce) => reduce.control.as_ref().map(|how| {
            let how = Control { latency: Span::ZERO, loss: 0.0, ..how.clone() };
            ControlPlane::new(reduce, how, config)
        }),
        _ => None,
    };
    let run = PointRun {
        bed,
        point,
        entry,
        image,
        space,
        endpoints: EndpointSpecs::of(point, bed.overlay),
        workers: Workers::new(),
        incarnations: BTreeMap::new(),
        sender,
        update,
        collector: ReportCollector::new(point, total),
        clock: Clock::start(),
        start: Span::ZERO,
        ports: vec![None; fabric.hosts() as usize],
        fabric,
        addresses: BTreeMap::new(),
        host_faults: host_faults(point),
        crashed_at: BTreeMap::new(),
        host_ends: BTreeMap::new(),
        plane: planned,
        jobs: BTreeMap::new(),
        lit: None,
        began: None,
        ended: None,
    };
    // The coordinator does little, but must notice the end of a run whose workers leave no processor to others: two
    // testbeds on one machine could go on forever.
    let _ = set_realtime_priority(SWITCH_PRIORITY + 1);
    let outcome = run.run();
    let _ = set_ordinary_priority();
    outcome
}

/// Returns the pauses and crashes, last first.
fn host_faults(point: &PointSpec) -> Vec<(Time, u32, HostFault)> {
    let mut host_faults = Vec::new();
    for fault in &point.config.faults {
        let FaultPlace::Host(HostId(host)) = fault.place else { continue };
        let (first, last) = match fault.kind {
            FaultKind::Pause => (HostFault::Pause, HostFault::Resume),
            FaultKind::Crash => (HostFault::Kill, HostFault::Revive),
            _ => continue,
        };
        host_faults.push((fault.from, host, first));
        host_faults.push((fault.until, host, last));
    }
    host_faults.sort_by_key(|(at, ..)| std::cmp::Reverse(*at));
    host_faults
}

impl PointRun<'_> {
    fn run(mut self) -> Result<Option<PointOutcome>, TestbedError> {
        let mut head_start = HEAD_START;
        loop {
            match self.start_workers(head_start) {
                Ok(true) => break,
                Ok(false) => return Ok(None),
                Err(TestbedError::Late(_)) if head_start < MAX_HEAD_START => {
                    head_start = head_start * 4;
                    self.workers.clear();
                    self.ports.fill(None);
                    self.addresses.clear();
                }
                Err(error) => return Err(error),
            }
        }
        let watch = &self.bed.watch;
        let limit = self.point.config.measure.time_limit;
        watch.limit_ticks.store(limit.ticks(), Ordering::Relaxed);
        let (end, ended_at) = loop {
            self.handle_updates(POLL_EVERY)?;
            let now = self.now();
            if self.began.is_none() && now > Time::ZERO {
                self.began = Some(share::Counters::read(&self.workers, now));
            }
            self.apply_faults(now)?;
            self.control(now)?;
            let (wanted, finished) = self.collector.progress();
            watch.wanted.store(wanted, Ordering::Relaxed);
            watch.finished.store(finished, Ordering::Relaxed);
            watch.now_ticks.store(now.ticks(), Ordering::Relaxed);
            if self.bed.is_cancelled() {
                return Ok(None);
            }
            if self.collector.is_done() {
                break (End::AllDone, now);
            }
            if now.ticks() >= limit.ticks() {
                break (End::TimeLimit, Time::ZERO + limit);
            }
        };
        self.ended = Some(share::Counters::read(&self.workers, self.now()));
        let mut switch = self.finish()?;
        let capture = std::mem::take(&mut switch.capture);
        Ok(Some(PointOutcome { capture, ..self.result(end, ended_at, &switch) }))
    }

    /// Returns the time since the load started; zero before.
    fn now(&self) -> Time {
        self.clock.now().saturating_sub(self.start)
    }

    fn hosts(&self) -> impl Iterator<Item = u32> + use<> {
        0..self.fabric.hosts()
    }

    fn start_worker(&mut self, role: Role) -> Result<(), TestbedError> {
        let incarnation =
            self.incarnations.entry(role).and_modify(|incarnation| *incarnation += 1).or_insert(0);
        let mut sets = self.bed.sets.clone();
        sets.extend(self.point.arguments.iter().cloned());
        let setup = Setup {
            role,
            parent: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            file: self.bed.text.file.clone(),
            text: self.bed.text.text.clone(),
            folder: self.bed.text.folder.to_string_lossy().into_owned(),
            sets,
            seed: self.point.config.seed,
            overlay: self.bed.overlay,
            namespace: self.space.as_ref().map(|space| space.namespace(role)),
            image: self.image.as_ref().map(|folder| folder.path().to_owned()),
        };
        let worker = Worker::start(&self.bed.command, &setup, *incarnation, self.sender.clone())?;
        self.entry.add_process(worker.id())?;
        self.workers.insert(role, worker);
        Ok(())
    }

    /// Starts all workers. Returns `false` if the run was stopped meanwhile.
    ///
    /// # Errors
    /// [`TestbedError::Late`] if not all of them are ready when the load should start.
    fn start_workers(&mut self, head_start: Span) -> Result<bool, TestbedError> {
        let hosts: Vec<Role> = self.hosts().map(Role::Host).collect();
        let all: Vec<Role> = std::iter::once(Role::Switch).chain(hosts.iter().copied()).collect();
        for role in &all {
            self.start_worker(*role)?;
        }
        let up = |message: &WorkerMessage| matches!(message, WorkerMessage::Up).then_some(());
        if self.wait_for(&all, up)?.is_none() {
            return Ok(false);
        }
        self.clock = Clock::start();
        self.start =
            head_start + Span::from_ticks(HEAD_START_PER_HOST.ticks() * hosts.len() as u64);
        let bound = |message: &WorkerMessage| match message {
            WorkerMessage::Bound(addresses) => Some(addresses.clone()),
            _ => None,
        };
        self.command(Role::Switch, &Command::Bind(self.bind(Role::Switch, None)));
        let Some(mut ports) = self.wait_for(&[Role::Switch], bound)? else { return Ok(false) };
        if self.bed.overlay {
            self.ports = ports.remove(&Role::Switch).unwrap_or_default();
        }
        for role in &hosts {
            let bind = self.bind(*role, None);
            self.command(*role, &Command::Bind(bind));
        }
        let Some(bound) = self.wait_for(&hosts, bound)? else { return Ok(false) };
        for (role, addresses) in bound {
            if let Role::Host(host) = role {
                self.addresses.insert(host, addresses.into_iter().flatten().collect());
            }
        }
        for role in &hosts {
            self.command(*role, &Command::Greet);
        }
        if self.clock.now().ticks() >= self.start.ticks() {
            return Err(TestbedError::Late("the last host".into()));
        }
        Ok(true)
    }

    fn bind(&self, role: Role, crashed_ticks: Option<u64>) -> Bind {
        let mut bind = Bind {
            origin_ns: self.clock.origin_ns(),
            start_ticks: self.start.ticks(),
            at: Vec::new(),
            switch: None,
            crashed_ticks,
        };
        if let Role::Host(host) = role {
            bind.switch = self.ports.get(host as usize).copied().flatten();
            bind.at = self.addresses.get(&host).cloned().unwrap_or_else(|| {
                let endpoints = 0..self.endpoints.endpoints.len() as u8;
                endpoints.map(|endpoint| self.address(host, endpoint)).collect()
            });
        }
        bind
    }

    fn address(&self, host: u32, endpoint: u8) -> SocketAddr {
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        if self.bed.overlay {
            anywhere
        } else {
            worker::address(HostId(host), endpoint).unwrap_or(anywhere)
        }
    }

    fn command(&mut self, role: Role, command: &Command) {
        if let Some(worker) = self.workers.get_mut(&role) {
            worker.command(command);
        }
    }

    /// Waits until some workers have all sent a message of one kind. Returns `None` if the run was stopped meanwhile.
    fn wait_for<T>(
        &mut self,
        roles: &[Role],
        what: impl Fn(&WorkerMessage) -> Option<T>,
    ) -> Result<Option<BTreeMap<Role, T>>, TestbedError> {
        let mut answers = BTreeMap::new();
        let patience = Span::from_ns(PATIENCE.as_nanos() as u64);
        let began = Clock::start();
        while let Some(missing) = roles.iter().find(|role| !answers.contains_key(*role)) {
            if self.bed.is_cancelled() {
                return Ok(None);
            }
            if began.now().ticks() > patience.ticks() {
                return Err(TestbedError::Late(missing.to_string()));
            }
            let Some(update) = self.next_update(POLL_EVERY)? else { continue };
            if let Some(answer) = what(&update.1) {
                answers.insert(update.0, answer);
            }
        }
        Ok(Some(answers))
    }

    /// Returns the next message of a worker. It is an error if the worker has ended or cannot continue.
    fn next_update(
        &mut self,
        patience: Duration,
    ) -> Result<Option<(Role, WorkerMessage)>, TestbedError> {
        let Update { role, incarnation, message } = match self.update.recv_timeout(patience) {
            Ok(update) => update,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(None),
        };
        let Some(worker) =
            self.workers.get_mut(&role).filter(|worker| worker.incarnation() == incarnation)
        else {
            // It is from an incarnation that was meant to end.
            return Ok(None);
        };
        match message {
            None => {
                let exit_report = worker.exit_report();
                Err(TestbedError::Worker(format!("{exit_report}, in the middle of the run")))
            }
            Some(WorkerMessage::Failed(problem)) => {
                Err(TestbedError::Worker(format!("{role}: {problem}")))
            }
            Some(message) => Ok(Some((role, message))),
        }
    }

    /// Handles the hosts' reports.
    fn handle_updates(&mut self, patience: Duration) -> Result<(), TestbedError> {
        let mut patience = patience;
        while let Some(update) = self.next_update(patience)? {
            patience = Duration::ZERO;
            match update {
                (Role::Host(host), WorkerMessage::Records(records)) => {
                    self.collector.add(host, &records);
                    self.jobs.extend(records.jobs.into_iter().map(|job| (job.job, job)));
                }
                (Role::Switch, WorkerMessage::Moved(lit)) => self.lit = Some(lit),
                (Role::Host(host), WorkerMessage::HostEnd(end)) => {
                    // The worker ends after this message, which is not an update.
                    self.host_ends.insert(host, *end);
                    self.workers.remove(&Role::Host(host));
                }
                (role @ Role::Host(_), WorkerMessage::Bound(_)) => {
                    self.command(role, &Command::Greet)
                }
                (role @ Role::Host(host), WorkerMessage::Up) => {
                    // The host is in its next incarnation.
                    let crashed = self.crashed_at.get(&host).copied();
                    let bind = self.bind(role, crashed);
                    self.command(role, &Command::Bind(bind));
                    let now = self.now();
                    self.collector.revived(host, now.ticks());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Lets the control plane act on what hosts have reported.
    fn control(&mut self, now: Time) -> Result<(), TestbedError> {
        let point = self.point;
        let Study::Reduce(reduce) = &point.study else { return Ok(()) };
        let Some(mut plane) = self.plane.take() else { return Ok(()) };
        let mut bed = Bed { run: self, reduce, failed: None };
        plane.act(&mut bed, now);
        let failed = bed.failed;
        self.plane = Some(plane);
        failed.map_or(Ok(()), Err)
    }

    /// Has the switch change its circuits. Returns when its ports are lit again, since the start of the load.
    fn change_circuits(&mut self, circuits: &Circuits) -> Result<Time, TestbedError> {
        self.lit = None;
        self.command(Role::Switch, &Command::Move(WireCircuits::from(circuits)));
        let began = Clock::start();
        while began.now() < Time::ZERO + MOVE_WITHIN {
            self.handle_updates(Duration::from_millis(1))?;
            if let Some(lit) = self.lit.take() {
                return Ok(Time::from_ticks(lit.saturating_sub(self.start.ticks())));
            }
        }
        Err(TestbedError::Worker("the switch does not change its circuits".into()))
    }

    /// Pauses and stops hosts at the times of their faults.
    fn apply_faults(&mut self, now: Time) -> Result<(), TestbedError> {
        while let Some((_, host, fault)) = self.host_faults.pop_if(|(at, ..)| *at <= now) {
            let role = Role::Host(host);
            match fault {
                HostFault::Pause | HostFault::Resume => {
                    let signal =
                        if matches!(fault, HostFault::Pause) { Signal::STOP } else { Signal::CONT };
                    if let Some(worker) = self.workers.get(&role) {
                        worker.signal(signal);
                    }
                }
                HostFault::Kill => self.crash(host, now)?,
                HostFault::Revive => self.start_worker(role)?,
            }
        }
        Ok(())
    }

    /// Crashes a host. Its process is stopped and not killed, so that it can report what had become of its messages.
    /// For its peers there is no difference: it ends without notice.
    fn crash(&mut self, host: u32, now: Time) -> Result<(), TestbedError> {
        let role = Role::Host(host);
        let Some(worker) = self.workers.get_mut(&role) else { return Ok(()) };
        worker.signal(Signal::CONT);
        worker.command(&Command::Stop);
        let began = Clock::start();
        while began.now() < Time::ZERO + CRASH_REPORT_TIMEOUT
            && self.host_ends.remove(&host).is_none()
        {
            self.handle_updates(POLL_EVERY)?;
        }
        self.workers.remove(&role);
        let at = self.collector.reported_until(host).max(now.ticks());
        self.crashed_at.insert(host, at);
        self.collector.crashed(host, at);
        Ok(())
    }

    /// Ends all workers, and handles their last reports.
    fn finish(&mut self) -> Result<SwitchEnd, TestbedError> {
        let roles: Vec<Role> = self.workers.keys().copied().collect();
        let hosts: Vec<Role> = roles.into_iter().filter(|role| *role != Role::Switch).collect();
        for role in &hosts {
            if let Some(worker) = self.workers.get(role) {
                worker.signal(Signal::CONT);
            }
            self.command(*role, &Command::Stop);
        }
        let mut left = hosts;
        let began = Clock::start();
        let patience = Span::from_ns(PATIENCE.as_nanos() as u64);
        while let Some(first) = left.first().copied() {
            if began.now().ticks() > patience.ticks() {
                return Err(TestbedError::Worker(format!(
                    "{first} does not end when it is asked to"
                )));
            }
            match self.next_update(POLL_EVERY)? {
                Some((Role::Host(host), WorkerMessage::Records(records))) => {
                    self.collector.add(host, &records);
                }
                Some((role @ Role::Host(host), WorkerMessage::HostEnd(end))) => {
                    self.host_ends.insert(host, *end);
                    left.retain(|other| *other != role);
                    self.workers.remove(&role);
                }
                _ => {}
            }
        }
        self.command(Role::Switch, &Command::Stop);
        let end = |message: &WorkerMessage| match message {
            WorkerMessage::SwitchEnd(end) => Some(SwitchEnd::clone(end)),
            _ => None,
        };
        let mut ends = self.wait_for(&[Role::Switch], end)?.unwrap_or_default();
        self.workers.clear();
        Ok(ends.remove(&Role::Switch).unwrap_or_default())
    }
}
