//! A worker's place in a group.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rackweave_aggregation::Failure;
use rackweave_aggregation::vector::node::{VectorNode, WorkerSide};
use rackweave_aggregation::vector::worker::{Config, Event};
use rackweave_core::{HostId, Span, Time};
use rackweave_linux::random;

use super::{Element, NO_HOST, digest_of};
use crate::ReduceError;
use crate::members::{Awaiting, Waits};
use crate::net::Net;
use crate::worker::{MasterAt, WorkerConfig, explain};

/// The configuration of a worker of a group.
#[derive(Clone, Copy, Debug)]
pub struct AllReduceConfig {
    /// Where the master is, and how this host reaches it.
    pub master: MasterAt,
    /// The number of the job, which master and workers share.
    pub job: u16,
    /// The number of the worker, from 0; a process with the same number takes the place of one that has died.
    pub number: u8,
    /// A digest of all vectors that the worker will add, or 0. If it is not 0, a process with another one cannot take the worker's place
    /// once the job has begun.
    pub digest: u64,
    /// How long the worker waits for a master, or what adds up, that is silent.
    pub patience: Span,
    /// How long a call waits for its sum, whatever the other workers do. `None`: without a limit, as long as the master answers.
    pub sum_within: Option<Span>,
}

impl AllReduceConfig {
    /// A worker of job 1 of the master at this address, with 30 s of patience.
    #[must_use]
    pub const fn new(number: u8, master: SocketAddr) -> Self {
        let WorkerConfig { master, job, number, patience, .. } = WorkerConfig::new(number, master);
        Self { master, job, number, digest: 0, patience, sum_within: None }
    }
}

/// What a worker has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllReduceReport {
    /// The number of vectors whose sums the worker has.
    pub steps: u32,
    /// Chunks that were sent, repetitions included.
    pub chunks: u64,
    /// Chunks that were sent again.
    pub retransmitted: u64,
    /// How often chunks without a sum were sent again from the first one on, because a worker or what adds up had lost its memory.
    pub restarts: u64,
    /// Bytes of all messages that have reached the worker, from their IP headers on.
    pub received_bytes: u64,
}

/// A worker's place in a group of workers, which adds up one vector after the other.
///
/// All workers must be there before the first sum, and all must add up the same number of vectors, of the same length and type: those of
/// the job's [`VectorMaster`](super::VectorMaster). Between calls a thread answers the master, so that a worker may compute for as long as
/// it likes.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::AtomicBool;
///
/// use rackweave_reduce::{AllReduce, AllReduceConfig, VectorMaster, VectorMasterConfig};
///
/// let stop = AtomicBool::new(false);
/// let config = VectorMasterConfig { steps: 2, ..VectorMasterConfig::new("127.0.0.1:0".parse().unwrap(), 3) };
/// let master = VectorMaster::bind(config)?;
/// let address = master.local_addr();
/// std::thread::scope(|scope| {
///     for number in 0..3 {
///         scope.spawn(move || {
///             let config = AllReduceConfig::new(number, address);
///             let mut group = AllReduce::<f32>::join(config, 1000, Arc::default())?;
///             let mut gradients = vec![f32::from(number); 1000];
///             group.allreduce(&mut gradients)?;
///             assert_eq!(gradients, [3.0; 1000]);
///             // These are the same at all workers: 9.
///             group.allreduce(&mut gradients)?;
///             assert_eq!(gradients, [9.0; 1000]);
///             group.finish()
///         });
///     }
///     master.run(&stop, &mut |_| {})
/// })?;
/// # Ok::<(), rackweave_reduce::ReduceError>(())
/// ```
pub struct AllReduce<T: Element> {
    link: Arc<Mutex<Link>>,
    config: AllReduceConfig,
    stop: Arc<AtomicBool>,
    length: usize,
    steps: u32,
    step: u32,
    keeper: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
    elements: std::marker::PhantomData<T>,
}

/// The socket of a worker and its machine.
struct Link {
    net: Net,
    node: VectorNode,
    master: HostId,
    /// The step whose vector is wanted, and the first step without a sum.
    wanted: Option<u32>,
    summed: u32,
    /// Whether all workers are prepared.
    committed: bool,
    /// Why the keeper has ended.
    broken: Option<ReduceError>,
}

/// The shortest retransmission timeout: longer than a process waits for a processor that others use too. It is SwitchML's
/// (`docs/protocols/ordc.md#switchml`); chunks that others have overtaken are noticed earlier.
const MIN_RTO: Span = Span::from_ms(10);

/// How often the master is answered between calls: it repeats what is not answered after 20 ms at the earliest.
const KEEP: Duration = Duration::from_millis(10);

impl Link {
    fn side(&mut self) -> Option<&mut WorkerSide> {
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

    fn outcome(&self) -> Option<Result<(), Failure>> {
        self.node.worker().and_then(WorkerSide::outcome)
    }

    /// Takes turns until `is_there`, or the job ends.
    fn run(
        &mut self,
        config: &AllReduceConfig,
        stop: &AtomicBool,
        mut is_there: impl FnMut(&mut Self) -> bool,
    ) -> Result<(), ReduceError> {
        if let Some(broken) = self.broken.take() {
            return Err(broken);
        }
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

    /// Informs the master that the worker knows of the end.
    fn acknowledge(&mut self) -> Result<(), ReduceError> {
        if let Some(side) = self.side() {
            side.acknowledge();
        }
        self.turn()?;
        Ok(())
    }

    /// Informs the master that the worker ends.
    fn leave(&mut self) -> Result<(), ReduceError> {
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

impl<T: Element> std::fmt::Debug for AllReduce<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { config, length, step, steps, .. } = self;
        f.debug_struct("AllReduce")
            .field("config", config)
            .field("length", length)
            .field("step", step)
            .field("steps", steps)
            .finish_non_exhaustive()
    }
}

impl<T: Element> AllReduce<T> {
    /// Joins a group with vectors of `length` elements, and returns when all workers have joined. Once `stop` is set, this call and later
    /// ones leave the group and end with [`ReduceError::Interrupted`].
    ///
    /// # Errors
    /// See [`ReduceError`].
    pub fn join(
        config: AllReduceConfig,
        length: usize,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, ReduceError> {
        Self::join_and_report(config, length, stop, &mut |_| {})
    }

    /// Joins like [`Self::join`]; `report` hears what the worker waits for.
    ///
    /// # Errors
    /// As [`Self::join`].
    pub fn join_and_report(
        config: AllReduceConfig,
        length: usize,
        stop: Arc<AtomicBool>,
        report: &mut dyn FnMut(Waits),
    ) -> Result<Self, ReduceError> {
        if length == 0 {
            return Err(ReduceError::Config("a vector has at least one element".to_owned()));
        }
        let (mut net, master) = Net::worker(config.master)?;
        let host = match config.master {
            MasterAt::Udp { .. } => NO_HOST,
            MasterAt::Overlay { me, .. } => me,
        };
        let machine = Config {
            length: length as u64,
            format: T::FORMAT,
            digest: config.digest,
            holds_end: true,
            min_rto: MIN_RTO,
            give_up: config.patience,
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
        let layout = link.node.worker().and_then(|side| side.machine().layout());
        let steps = layout.map_or(0, |layout| layout.steps);
        let step = link.wanted.unwrap_or(0);
        link.summed = step;
        let link = Arc::new(Mutex::new(link));
        let is_over = Arc::new(AtomicBool::new(false));
        let (kept, flag) = (Arc::clone(&link), Arc::clone(&is_over));
        let keeper = std::thread::spawn(move || keep(&kept, &flag));
        let (keeper, elements) = (Some((is_over, keeper)), std::marker::PhantomData);
        Ok(Self { link, config, stop, length, steps, step, keeper, elements })
    }

    /// Returns the number of vectors that the group adds up.
    #[must_use]
    pub const fn steps(&self) -> u32 {
        self.steps
    }

    /// Returns the number of the vector that the next call adds, from 0. For a worker that takes the place of one that has died, the first
    /// is that of the other workers' present one. It must be the same as the former process had.
    #[must_use]
    pub const fn step(&self) -> u32 {
        self.step
    }

    /// Replaces a vector by the sum of the vectors of all workers: the same bits at each of them.
    ///
    /// # Errors
    /// See [`ReduceError`]. The vector is then unchanged, and the group has ended for this worker, unless the error is
    /// [`ReduceError::Config`]: the vector has another length, or the group has added up all its vectors.
    pub fn allreduce(&mut self, vector: &mut [T]) -> Result<(), ReduceError> {
        let (length, steps) = (self.length, self.steps);
        if vector.len() != length {
            let found = vector.len();
            return Err(ReduceError::Config(format!(
                "the vectors of the group have {length} elements, and this one has {found}"
            )));
        }
        if self.step >= steps {
            return Err(ReduceError::Config(format!("the group adds up {steps} vectors only")));
        }
        let mut link = locked(&self.link);
        let step = self.step;
        link.run(&self.config, &self.stop, |link| link.wanted == Some(step))?;
        if let Some(side) = link.side() {
            side.offer(step, T::values(vector));
        }
        link.run(&self.config, &self.stop, |link| link.summed > step)?;
        if let Some(side) = link.node.worker() {
            T::copy(side.sums(), vector);
        }
        self.step += 1;
        Ok(())
    }

    /// Returns what the worker has done so far.
    #[must_use]
    pub fn report(&self) -> AllReduceReport {
        let link = locked(&self.link);
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

    /// Says that this worker is prepared, and waits until all workers have said so: its results are whole and safe, and nobody has
    /// seen them yet, such as files that do not have their names. The caller then gives them their names, which must not fail for lack
    /// of anything, and calls [`AllReduce::finish`]. From then on results can be seen while others are not there yet.
    ///
    /// # Errors
    /// See [`ReduceError`]; [`ReduceError::Config`] if there are vectors left.
    pub fn commit(&mut self) -> Result<(), ReduceError> {
        let (step, steps) = (self.step, self.steps);
        if step < steps {
            let why = format!("the group adds up {steps} vectors, and {step} have been added up");
            return Err(ReduceError::Config(why));
        }
        let mut link = locked(&self.link);
        if let Some(side) = link.side() {
            side.release();
        }
        let unlimited = AllReduceConfig { sum_within: None, ..self.config };
        link.run(&unlimited, &self.stop, |link| link.committed)
    }

    /// Says that this worker's results have their names, and waits until all workers have said so; commits before, if
    /// [`AllReduce::commit`] was not called. Until then any worker can be replaced, and the others help it: it gets the last sum again. A
    /// worker that ends before that leaves the group, as after a crash.
    ///
    /// # Errors
    /// See [`ReduceError`]; [`ReduceError::Config`] if there are vectors left.
    pub fn finish(self) -> Result<AllReduceReport, ReduceError> {
        self.finish_after(|report| report)
    }

    /// As [`AllReduce::finish`], with what the process does last. The master stays until this is done, so that a process which is killed
    /// meanwhile and started again learns that the job is over ([`ReduceError::Over`]).
    ///
    /// # Errors
    /// As [`AllReduce::finish`].
    pub fn finish_after<R>(
        mut self,
        last: impl FnOnce(AllReduceReport) -> R,
    ) -> Result<R, ReduceError> {
        if !locked(&self.link).committed {
            self.commit()?;
        }
        let mut link = locked(&self.link);
        if let Some(side) = link.side() {
            let digest = digest_of(side.sums());
            side.name(digest);
        }
        let unlimited = AllReduceConfig { sum_within: None, ..self.config };
        link.run(&unlimited, &self.stop, |link| link.outcome() == Some(Ok(())))?;
        drop(link);
        let result = last(self.report());
        // The master hears of it.
        drop(self);
        Ok(result)
    }
}

impl<T: Element> Drop for AllReduce<T> {
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
