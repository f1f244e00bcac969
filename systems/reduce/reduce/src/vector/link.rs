//! A worker's socket and machine, and the thread that answers the master between calls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rackweave_aggregation::Failure;
use rackweave_aggregation::vector::node::{VectorNode, WorkerSide};
use rackweave_aggregation::vector::worker::{Config, Event};
use rackweave_core::{HostId, Span, Time};
use rackweave_linux::random;
use rackweave_wire::reduce::{Format, Shape};

use super::group::{AllReduceConfig, AllReduceReport};
use super::{Element, NO_HOST};
use crate::ReduceError;
use crate::members::{Awaiting, Waits};
use crate::net::Net;
use crate::worker::{LINGER, MasterAt, explain};

/// The socket of a worker and its machine.
pub(super) struct Link {
    pub(super) net: Net,
    pub(super) node: VectorNode,
    master: HostId,
    /// The step whose vector is wanted, and the first step without a sum.
    pub(super) wanted: Option<u32>,
    pub(super) summed: u32,
    /// Whether all workers are prepared.
    pub(super) committed: bool,
    /// Why the keeper, or a call, has ended; later calls end so, too.
    broken: Option<ReduceError>,
}

/// The shortest retransmission timeout: longer than a process waits for a processor that others use too. It is SwitchML's
/// (`docs/protocols/ordc.md#switchml`); chunks that others have overtaken are noticed earlier.
const MIN_RTO: Span = Span::from_ms(10);

/// How often the master is answered between calls: it repeats what is not answered after 20 ms at the earliest.
const KEEP: Duration = Duration::from_millis(10);

impl Link {
    pub(super) fn side(&mut self) -> Option<&mut WorkerSide> {
        self.node.worker_mut()
    }

    /// One turn, without a wait. Returns when the next one is due.
    fn turn(&mut self) -> Result<Option<Time>, ReduceError> {
        let due = self.net.turn(&mut self.node)?;
        while let Some(event) = self.side().and_then(WorkerSide::poll_event) {
            match event {
                Event::Wanted { step } => self.wanted = Some(step),
                Event::Summed { step } => self.summed = step + 1,
                Event::Committed => self.committed = true,
                Event::Planned(_) | Event::Complete | Event::Failed(_) => {}
            }
        }
        Ok(due)
    }

    pub(super) fn outcome(&self) -> Option<Result<(), Failure>> {
        self.node.worker().and_then(WorkerSide::outcome)
    }

    /// Takes turns until `is_there`, or the job ends.
    pub(super) fn run(
        &mut self,
        config: &AllReduceConfig,
        stop: &AtomicBool,
        mut is_there: impl FnMut(&mut Self) -> bool,
    ) -> Result<(), ReduceError> {
        if let Some(broken) = self.broken.as_ref().and_then(ReduceError::again) {
            return Err(broken);
        }
        // A job that has failed has no vector to ask for, though it may have asked for this one.
        let has_failed = matches!(self.outcome(), Some(Err(_)));
        let run = self.wait(config, stop, |link| !has_failed && is_there(link));
        if let Err(error) = &run {
            self.broken = error.again();
        }
        run
    }

    fn wait(
        &mut self,
        config: &AllReduceConfig,
        stop: &AtomicBool,
        mut is_there: impl FnMut(&mut Self) -> bool,
    ) -> Result<(), ReduceError> {
        let began = self.net.now();
        let limit = config.sum_within.map_or(Time::MAX, |within| began.saturating_add(within));
        loop {
            let due = self.turn()?;
            if is_there(self) {
                return Ok(());
            }
            match self.outcome() {
                Some(Err(failure)) => {
                    // The master is informed that the worker ends.
                    self.turn()?;
                    let Config { length, format, .. } = *match self.node.worker() {
                        Some(side) => side.machine().config(),
                        None => return Err(ReduceError::Failed(failure)),
                    };
                    if let Failure::OtherVector { length: theirs, format: their_format } = failure {
                        return Err(ReduceError::OtherVector {
                            master: self.net.numbers.name(self.master),
                            theirs,
                            their_format,
                            ours: length,
                            our_format: format,
                        });
                    }
                    let (job, number) = (config.job, config.number);
                    let (net, master) = (&self.net, self.master);
                    return Err(explain(failure, job, number, config.patience, net, master));
                }
                Some(Ok(())) => {
                    self.acknowledge()?;
                    let digest = self.node.worker().and_then(|side| side.machine().digest());
                    return Err(ReduceError::Over { digest });
                }
                None => {}
            }
            if stop.load(Ordering::Relaxed) {
                self.leave()?;
                return Err(ReduceError::Interrupted);
            }
            if self.net.now() >= limit {
                let workers = self.node.worker().map_or(0, |side| side.machine().missing());
                self.leave()?;
                let within = config.sum_within.unwrap_or_default();
                return Err(ReduceError::NoSum { within, workers });
            }
            self.net.wait_for_turn(due)?;
        }
    }

    /// Informs the master that the worker knows of the end, and stays until the master knows, for some time at most.
    pub(super) fn acknowledge(&mut self) -> Result<(), ReduceError> {
        let now = self.net.now();
        if let Some(side) = self.side() {
            side.acknowledge(now);
        }
        loop {
            let due = self.turn()?;
            if self.node.worker().is_none_or(|side| side.machine().is_over()) {
                return Ok(());
            }
            self.net.wait_for_turn(due)?;
        }
    }

    /// Informs the master that the worker ends.
    pub(super) fn leave(&mut self) -> Result<(), ReduceError> {
        if let Some(side) = self.side() {
            side.leave();
        }
        self.turn()?;
        Ok(())
    }
}

fn locked(link: &Mutex<Link>) -> MutexGuard<'_, Link> {
    link.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers the master while nobody calls.
fn keep(link: &Mutex<Link>, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        // A call takes turns itself.
        if let Ok(mut link) = link.try_lock() {
            if link.broken.is_some() {
                return;
            }
            if let Err(error) = link.turn() {
                link.broken = Some(error);
                return;
            }
        }
        std::thread::park_timeout(KEEP);
    }
}

/// A worker's place in a group, and the thread that keeps it.
pub(super) struct Seat {
    link: Arc<Mutex<Link>>,
    pub(super) config: AllReduceConfig,
    pub(super) stop: Arc<AtomicBool>,
    /// The number of the next vector.
    pub(super) step: u32,
    keeper: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Seat {
    /// Joins a group, and returns when all workers have joined. `report` hears what is waited for.
    pub(super) fn take(
        config: AllReduceConfig,
        shape: Shape,
        stop: Arc<AtomicBool>,
        report: &mut dyn FnMut(Waits),
    ) -> Result<Self, ReduceError> {
        let (mut net, master) = Net::worker(config.master)?;
        let host = match config.master {
            MasterAt::Udp { .. } => NO_HOST,
            MasterAt::Overlay { me, .. } => me,
        };
        let machine = Config {
            length: shape.length,
            format: shape.format,
            digest: if shape.length == 0 { config.key.0 } else { config.digest },
            holds_end: true,
            min_rto: MIN_RTO,
            give_up: config.patience,
            linger: LINGER,
            ..Config::new(config.job, config.number, master, random() as u32)
        };
        let side = WorkerSide::new(machine, net.now());
        let node = VectorNode::new(host).with_worker(side);
        let (wanted, summed, committed, broken) = (None, 0, false, None);
        let mut link = Link { net, node, master, wanted, summed, committed, broken };
        let unlimited = AllReduceConfig { sum_within: None, ..config };
        let mut awaiting = Awaiting::new(link.net.now());
        link.run(&unlimited, &stop, |link| {
            let is_taken = link.node.worker().is_some_and(|side| side.machine().is_taken());
            let waits = if is_taken { Waits::Workers } else { Waits::Master };
            if let Some(waits) = awaiting.due(link.net.now(), Some(waits)) {
                report(waits);
            }
            link.wanted.is_some()
        })?;
        let step = link.wanted.unwrap_or(0);
        link.summed = step;
        let link = Arc::new(Mutex::new(link));
        let is_over = Arc::new(AtomicBool::new(false));
        let (kept, flag) = (Arc::clone(&link), Arc::clone(&is_over));
        let keeper = std::thread::spawn(move || keep(&kept, &flag));
        Ok(Self { link, config, stop, step, keeper: Some((is_over, keeper)) })
    }

    pub(super) fn link(&self) -> MutexGuard<'_, Link> {
        locked(&self.link)
    }

    /// The configuration of waits that no call limits.
    pub(super) const fn unlimited(&self) -> AllReduceConfig {
        AllReduceConfig { sum_within: None, ..self.config }
    }

    /// The number of elements that share an exponent in a vector of an open job, and travel together.
    pub(super) fn block(&self, length: u64, format: Format) -> usize {
        let link = self.link();
        let layout = link.node.worker().and_then(|side| side.machine().layout_for(length, format));
        layout.map_or(1, |layout| usize::from(layout.elements.max(1)))
    }

    /// Replaces a vector by the sum of all workers' vectors. In an open job `label` says what the application does with it.
    pub(super) fn allreduce<T: Element>(
        &mut self,
        vector: &mut [T],
        label: u32,
    ) -> Result<(), ReduceError> {
        let mut link = locked(&self.link);
        let step = self.step;
        link.run(&self.config, &self.stop, |link| link.wanted == Some(step))?;
        if let Some(side) = link.side() {
            side.offer_as(step, T::values(vector), label);
        }
        link.run(&self.config, &self.stop, |link| link.summed > step)?;
        if let Some(side) = link.node.worker() {
            T::copy(side.sums(), vector);
        }
        self.step += 1;
        Ok(())
    }

    /// What the worker has done so far.
    pub(super) fn report(&self) -> AllReduceReport {
        let link = self.link();
        let counters = link.node.worker().map(|side| *side.machine().counters());
        let counters = counters.unwrap_or_default();
        AllReduceReport {
            steps: self.step,
            chunks: counters.chunks,
            retransmitted: counters.retransmitted,
            restarts: counters.restarts,
            received_bytes: link.net.traffic.received_bytes,
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some((is_over, keeper)) = self.keeper.take() {
            is_over.store(true, Ordering::Relaxed);
            keeper.thread().unpark();
            let _ = keeper.join();
        }
        let mut link = locked(&self.link);
        // The master notices a worker's silence if it cannot be informed.
        let _ = match link.outcome() {
            None => link.leave(),
            Some(_) => link.acknowledge(),
        };
    }
}
