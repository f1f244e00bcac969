//! A run: hosts on a network, their applications, and measurements.
//!
//! The network ([`rackweave_switch::net`]) moves packets. A host holds message transports, nodes of group systems, or
//! both at one address; a node with several ports is several hosts of the fabric.

mod app;
#[cfg(test)]
mod circuit_tests;
mod circuits;
mod cut_off;
mod faults;
mod fluid;
mod host;
#[cfg(test)]
mod node_tests;
mod nodes;
mod observe;
mod probe;
mod processors;
mod shards;
mod steady;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod tests;
mod timeline;
mod unrepaired;
mod windows;
#[cfg(test)]
mod work_tests;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rackweave_core::{HostId, RecoveryCounters, Span, Time};
use rackweave_switch::{Net, NetConfig, NetEvent};
use rackweave_workload::Generator;

use crate::build::{BuildError, check_faults, check_moves};
use crate::config::{Fault, HostConfig, MeasureConfig, Move, StreamConfig};
use crate::fabric::Fabric;
use crate::model::Model;
use crate::result::{Backlog, End, RunResult, Waiting};

use app::Apps;
use host::Hosts;
use observe::Observed;
use probe::Probe;
use processors::Tasks;

pub use nodes::Attached;
pub use observe::{Next, Observer, State, Step, Traced, View};
pub use rackweave_switch::net::TraceStep;
pub use shards::{Lost, Meeting};
pub(crate) use timeline::Timeline;
pub use windows::Division;

/// Progress, cancellation and limits of a run, shared with other threads.
#[derive(Debug)]
pub struct Control {
    /// Set by the caller to end the run.
    pub cancel: AtomicBool,
    /// Set by the caller to end the run with the results that it has so far.
    pub expire: AtomicBool,
    /// Set by the caller to have `waiting` filled again. (A run of several threads does not answer.)
    pub ask: AtomicBool,
    /// The measured messages that wait longest, once all have started.
    pub waiting: Mutex<Vec<Waiting>>,
    /// Measured messages that have started.
    pub started: AtomicU64,
    /// Measured messages that have ended.
    pub finished: AtomicU64,
    /// Number of measured messages after which the run ends (`u64::MAX` if unknown).
    pub wanted: AtomicU64,
    /// Simulated time in ticks.
    pub sim_time_ticks: AtomicU64,
    /// Number of events handled.
    pub events: AtomicU64,
    /// Looks at the run while it goes on; taken when the run begins. (A run of several threads is not looked at.)
    pub observer: Mutex<Option<Box<dyn Observer>>>,
    /// The run ends when more packets than this are under way, because queues without a limit would otherwise fill the memory.
    pub packet_limit: u32,
}

impl Default for Control {
    fn default() -> Self {
        Self {
            cancel: AtomicBool::default(),
            expire: AtomicBool::default(),
            ask: AtomicBool::default(),
            waiting: Mutex::default(),
            started: AtomicU64::default(),
            finished: AtomicU64::default(),
            wanted: AtomicU64::default(),
            sim_time_ticks: AtomicU64::default(),
            events: AtomicU64::default(),
            observer: Mutex::default(),
            packet_limit: Self::PACKETS,
        }
    }
}

impl Control {
    /// How the caller ends the run, if it does.
    pub(crate) fn end(&self) -> Option<End> {
        if self.cancel.load(Ordering::Relaxed) {
            Some(End::Cancelled)
        } else {
            self.expire.load(Ordering::Relaxed).then_some(End::PointLimit)
        }
    }

    /// The usual limit of packets, which need about 5 GB.
    pub const PACKETS: u32 = 50_000_000;
}

/// The parts that a world is built from.
pub struct Setup<'a, M: Model> {
    /// Seed of all random streams of the run.
    pub seed: u64,
    /// Index of the repetition. Each repetition of a seed has random streams of its own.
    pub run: u64,
    /// Switches, links and hosts.
    pub fabric: Arc<Fabric>,
    /// The processors of hosts; `None` if hosts take no time.
    pub host: Option<Arc<HostConfig>>,
    /// For each stream of messages: its configuration and the index of its transport at each host.
    pub streams: Vec<(&'a StreamConfig, u8, Generator)>,
    /// Makes the transports of a host, at the start and after a crash.
    pub transports: Factory<'a, M::Transport>,
    /// The nodes of group systems.
    pub nodes: Vec<Attached<M::Group>>,
    /// Makes the program of the switch with this number.
    pub programs: Box<dyn FnMut(u32) -> M::Program + 'a>,
    /// The faults to inject, in any order.
    pub faults: &'a [Fault],
    /// The changes of circuits at known times, in any order.
    pub moves: &'a [Move],
    /// What is measured, and when the run ends.
    pub measure: &'a MeasureConfig,
    /// How the run is divided into windows, and into shards; `None` if it cannot be. The factory makes no transports for the
    /// hosts of other shards.
    pub division: Option<Division>,
}

impl<'a, M: Model> Setup<'a, M> {
    /// The parts of a world of hosts that take no time and have neither transports nor nodes yet, without faults and changes of
    /// circuits.
    pub fn new(
        seed: u64,
        fabric: Arc<Fabric>,
        measure: &'a MeasureConfig,
        programs: impl FnMut(u32) -> M::Program + 'a,
    ) -> Self {
        Self {
            seed,
            run: 0,
            fabric,
            host: None,
            streams: Vec::new(),
            transports: Box::new(|_| Vec::new()),
            nodes: Vec::new(),
            programs: Box::new(programs),
            faults: &[],
            moves: &[],
            measure,
            division: None,
        }
    }
}

/// Makes the transports of a host.
pub type Factory<'a, T> = Box<dyn FnMut(HostId) -> Vec<T> + 'a>;

impl<M: Model> std::fmt::Debug for Setup<'_, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup").field("seed", &self.seed).finish_non_exhaustive()
    }
}

/// The world's own wake-up numbers.
mod wake {
    pub(super) const APPS: u32 = 0;
    pub(super) const MEASURE: u32 = 1;
    pub(super) const FLUID: u32 = 2;
    /// Those of tasks on processors follow.
    pub(super) const COUNT: u32 = 3;
}

/// A network with its hosts and their applications, running.
pub struct World<'a, M: Model> {
    net: Net<M::Program, M::Payloads>,
    hosts: Hosts<M>,
    /// The fabric to which ideal times refer.
    ideal_fabric: Arc<Fabric>,
    /// The work of hosts on their processors; `None` if that takes no time.
    tasks: Option<Box<Tasks>>,
    factory: Factory<'a, M::Transport>,
    apps: Apps<'a>,
    /// Number of the first stream in results: 1 if the nodes of a group system are measured.
    first_stream: u16,
    measure: &'a MeasureConfig,
    probe: Probe,
    /// The transfers of nodes; `None` if nodes have none.
    flows: Option<Box<fluid::Flows<M::Group>>>,
    /// What the transports of crashed hosts had counted, by their index at each host.
    crashed: Vec<RecoveryCounters>,
    /// Whether the backlog grows.
    steady: steady::Steady,
    backlog: Option<Backlog>,
    cut_off: cut_off::CutOff,
}

impl<M: Model> std::fmt::Debug for World<'_, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("now", &self.net.now()).finish_non_exhaustive()
    }
}

impl<'a, M: Model> World<'a, M> {
    /// Builds a world at time 0.
    ///
    /// # Errors
    /// If a fault is impossible on this fabric, or a node is attached to a host that it cannot have.
    pub fn new(setup: Setup<'a, M>) -> Result<Self, BuildError> {
        let Setup {
            seed,
            run,
            fabric,
            host,
            streams,
            transports: mut factory,
            nodes,
            programs,
            faults,
            moves,
            measure,
            division,
        } = setup;
        let n_hosts = fabric.hosts();
        check_faults(faults, &fabric)?;
        check_moves(moves, &fabric)?;
        nodes::check(&nodes, n_hosts)?;
        let ideal_fabric = Arc::clone(&fabric);
        let fabric = match &host {
            Some(host) if host.replaces_delays => {
                Arc::new(Fabric::new(&fabric.config().clone().without_host_delays())?)
            }
            _ => fabric,
        };
        // Ties are broken by the number of a component. Fabrics with an optical circuit switch leave a number out, with which results
        // are those of earlier versions.
        let first_task = wake::COUNT + u32::from(ideal_fabric.has_ocs());
        let tasks = host
            .as_ref()
            .map(|host| Box::new(Tasks::new(Arc::clone(host), n_hosts, first_task, (seed, run))));
        let config = NetConfig {
            faults: faults.to_vec(),
            moves: moves.to_vec(),
            sample_every: measure.sample_every,
            sources: if streams.is_empty() { 0 } else { n_hosts },
            wakes: first_task + tasks.as_ref().map_or(0, |tasks| tasks.wakes()),
            consumed_wake: tasks.as_ref().and_then(|tasks| tasks.consumed_wake()),
            multi_homed: nodes.iter().map(|node| node.hosts.clone()).collect(),
            count_frames: !nodes.is_empty(),
            samples_when_idle: division.is_some(),
            shard: division.as_ref().and_then(|division| division.shard.clone()),
            ..NetConfig::new(fabric, seed, run)
        };
        let first_stream = u16::from(!nodes.is_empty());
        let patience = streams.iter().map(|(config, ..)| config.transport.patience()).max();
        let cut_off = cut_off::CutOff::new(patience.unwrap_or(Span::ZERO), !nodes.is_empty());
        let hosts = Hosts::new(n_hosts, &mut factory, nodes, host.as_deref());
        let apps = Apps::new(n_hosts, streams, measure, first_stream == 0, division);
        let mut world = Self {
            net: Net::new(config, M::Payloads::default(), programs),
            hosts,
            ideal_fabric,
            tasks,
            factory,
            apps,
            first_stream,
            measure,
            probe: Probe::default(),
            flows: None,
            crashed: Vec::new(),
            steady: steady::Steady::new(measure.offered_too_much),
            backlog: None,
            cut_off,
        };
        world.start_probes();
        world.start_apps();
        Ok(world)
    }

    /// Runs to the end and returns the result.
    #[must_use]
    pub fn run(mut self, control: &Control) -> RunResult<M::Header> {
        let end = self.run_to_end(control);
        self.report(end)
    }

    /// Runs until all measured messages have ended and all nodes are done (a crashed one counts as done), no event is
    /// left, the time limit is reached or `control` cancels the run.
    pub fn run_to_end(&mut self, control: &Control) -> End {
        self.wake_touched();
        control.wanted.store(self.apps.progress().0, Ordering::Relaxed);
        let observer = control.observer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut observed = observer.map(Observed::new);
        if let Some(windows) = &self.apps.windows {
            let length = windows.division.window;
            let end = self.run_in_windows(length, control, observed.as_mut());
            self.publish(control);
            if let Some(observed) = &mut observed {
                observed.end(self, end);
            }
            return end;
        }
        let limit = Time::ZERO + self.measure.time_limit;
        let end = loop {
            self.give_up_lost(self.net.now());
            if self.is_done() {
                break End::AllDone;
            }
            let ended = match &mut observed {
                None => self.run_some(limit),
                Some(observed) => self.run_some_observed(limit, observed),
            };
            if let Some(end) = ended {
                break end;
            }
            if self.net.deadlock().is_some() {
                break End::Deadlock;
            }
            if self.net.packets() > control.packet_limit {
                break End::PacketLimit;
            }
            if self.net.counters().packet_hops > self.measure.hop_limit {
                break End::HopLimit;
            }
            if !self.is_done() && self.waits_for_cut_off(self.net.now()) {
                break End::CutOff;
            }
            if let Some(end) = self.without_steady_state(self.net.now(), self.apps.backlog) {
                break end;
            }
            self.publish(control);
            if let Some(end) = control.end() {
                break end;
            }
        };
        self.publish(control);
        if let Some(observed) = &mut observed {
            observed.end(self, end);
        }
        end
    }

    /// The number of events after which `control` is read.
    const BATCH: u32 = 1024;

    /// Handles a number of events up to `limit`; returns the end of the run if no more are due. `control` is
    /// read only between such batches, because an atomic access per event would cost time.
    #[inline]
    fn run_some(&mut self, limit: Time) -> Option<End> {
        for _ in 0..Self::BATCH {
            if !self.step(limit) {
                return Some(self.end_of_events(limit));
            }
            if self.apps.may_be_done || self.hosts.nodes.may_be_done {
                break;
            }
        }
        self.apps.may_be_done = false;
        self.hosts.nodes.may_be_done = false;
        None
    }

    /// The end of a run that has no event left up to `limit`.
    fn end_of_events(&mut self, limit: Time) -> End {
        let is_stalled = self.net.is_quiet();
        if !is_stalled {
            self.net.advance(limit);
        }
        match (self.is_done(), is_stalled) {
            (true, _) => End::AllDone,
            (false, true) if self.is_cut_off(Time::MAX) => End::CutOff,
            (false, true) => End::Stalled,
            (false, false) => End::TimeLimit,
        }
    }

    /// Handles all events up to `until`, even after all nodes are done, and advances the time to it. Returns
    /// whether all nodes are done. The time limit is ignored.
    pub fn run_until(&mut self, until: Time) -> bool {
        self.wake_touched();
        while self.step(until) {}
        self.net.advance(until);
        self.is_done()
    }

    /// Samples the backlog if that is due, and returns how the run ends if it has no steady state.
    fn without_steady_state(&mut self, now: Time, backlog: u64) -> Option<End> {
        if !self.apps.goes_on || !self.steady.is_due(now) {
            return None;
        }
        self.steady.sample(now, backlog);
        if self.cut_off.is_news(now) {
            return None;
        }
        let (end, backlog) = self.steady.end(now, self.apps.collector.started_until()?)?;
        self.backlog = Some(backlog).filter(|_| end == End::Overloaded);
        Some(end)
    }

    fn publish(&self, control: &Control) {
        if control.ask.load(Ordering::Relaxed) && control.ask.swap(false, Ordering::Relaxed) {
            let waiting = self.apps.waiting();
            *control.waiting.lock().unwrap_or_else(PoisonError::into_inner) = waiting;
        }
        control.started.store(self.apps.started(), Ordering::Relaxed);
        control.finished.store(self.apps.progress().1, Ordering::Relaxed);
        control.sim_time_ticks.store(self.net.now().ticks(), Ordering::Relaxed);
        control.events.store(self.net.counters().events, Ordering::Relaxed);
    }

    /// Whether all measured messages have ended and all nodes are done.
    fn is_done(&mut self) -> bool {
        self.hosts.nodes.unfinished == 0 && self.apps.is_done()
    }

    /// Handles the next event that is due by `until`; false if there is none.
    #[inline]
    fn step(&mut self, until: Time) -> bool {
        let Some(event) = self.net.step(&mut self.hosts, until) else { return false };
        match event {
            NetEvent::Internal => {}
            NetEvent::Arrived { host, packet } => self.arrived(host, packet),
            NetEvent::Timer(host) => self.on_timer(host),
            NetEvent::Source(host) => self.on_app(HostId(host)),
            NetEvent::Faults => {
                self.note_cut_off();
                self.on_faults();
            }
            // The run ends before its next batch of events.
            NetEvent::Deadlock => self.apps.may_be_done = true,
            NetEvent::Wake(wake::APPS) => self.on_early_apps(),
            NetEvent::Wake(wake::FLUID) => self.on_transfers(),
            NetEvent::Wake(wake::MEASURE) => self.on_measure(),
            NetEvent::Wake(number) => self.on_task(number),
        }
        true
    }
}
