//! A worker's place in a group.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rackweave_aggregation::vector::master::Key;
use rackweave_core::Span;
use rackweave_wire::reduce::Shape;

use super::link::Seat;
use super::{Element, digest_of};
use crate::ReduceError;
use crate::members::Waits;
use crate::worker::{MasterAt, WorkerConfig};

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
    /// The most bytes of a vector of an [`OpenGroup`](super::OpenGroup) that are added up at once, the same at all workers. A longer vector is
    /// added up in parts, so that a worker answers the master while it prepares them, and [`Self::sum_within`] limits each part.
    pub part_bytes: usize,
    /// What the workers of an open job know, [`VectorMasterConfig::key`](super::VectorMasterConfig::key).
    pub key: Key,
}

impl AllReduceConfig {
    /// A worker of job 1 of the master at this address, with 30 s of patience.
    #[must_use]
    pub const fn new(number: u8, master: SocketAddr) -> Self {
        let WorkerConfig { master, job, number, patience, .. } = WorkerConfig::new(number, master);
        let (digest, sum_within, part_bytes, key) = (0, None, 64 << 20, Key(0));
        Self { master, job, number, digest, patience, sum_within, part_bytes, key }
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
    seat: Seat,
    length: usize,
    steps: u32,
    elements: std::marker::PhantomData<T>,
}

impl<T: Element> std::fmt::Debug for AllReduce<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seat, length, steps, .. } = self;
        f.debug_struct("AllReduce")
            .field("config", &seat.config)
            .field("length", length)
            .field("step", &seat.step)
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
        let shape = Shape { length: length as u64, format: T::FORMAT };
        let seat = Seat::take(config, shape, stop, report)?;
        let layout = seat.link().node.worker().and_then(|side| side.machine().layout().copied());
        let steps = layout.map_or(0, |layout| layout.steps);
        Ok(Self { seat, length, steps, elements: std::marker::PhantomData })
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
        self.seat.step
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
        if self.seat.step >= steps {
            return Err(ReduceError::Config(format!("the group adds up {steps} vectors only")));
        }
        self.seat.allreduce(vector, 0)
    }

    /// Returns what the worker has done so far.
    #[must_use]
    pub fn report(&self) -> AllReduceReport {
        self.seat.report()
    }

    /// Says that this worker is prepared, and waits until all workers have said so: its results are whole and safe, and nobody has
    /// seen them yet, such as files that do not have their names. The caller then gives them their names, which must not fail for lack
    /// of anything, and calls [`AllReduce::finish`]. From then on results can be seen while others are not there yet.
    ///
    /// # Errors
    /// See [`ReduceError`]; [`ReduceError::Config`] if there are vectors left.
    pub fn commit(&mut self) -> Result<(), ReduceError> {
        let (step, steps) = (self.seat.step, self.steps);
        if step < steps {
            let why = format!("the group adds up {steps} vectors, and {step} have been added up");
            return Err(ReduceError::Config(why));
        }
        let mut link = self.seat.link();
        if let Some(side) = link.side() {
            side.release();
        }
        link.run(&self.seat.unlimited(), &self.seat.stop, |link| link.committed)
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
        if !self.seat.link().committed {
            self.commit()?;
        }
        let mut link = self.seat.link();
        if let Some(side) = link.side() {
            let digest = digest_of(side.sums());
            side.name(digest);
        }
        let (unlimited, stop) = (self.seat.unlimited(), &self.seat.stop);
        link.run(&unlimited, stop, |link| link.outcome() == Some(Ok(())))?;
        drop(link);
        let result = last(self.report());
        // The master hears of it.
        drop(self);
        Ok(result)
    }
}
