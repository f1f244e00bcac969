//! A worker's place in a group whose vectors have nothing in common.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rackweave_core::Span;
use rackweave_wire::reduce::{Format, Shape};

use super::Element;
use super::group::{AllReduceConfig, AllReduceReport};
use super::link::Seat;
use crate::ReduceError;

/// A worker's place in a group of an open job: each vector has a length and a type of its own, and nobody says before how many there are.
///
/// All workers must add up vectors of the same lengths and types in the same order. If they do not, nothing is added up, and all workers get
/// an error within some seconds that says which of them differ, and how ([`ReduceError::difference`]). The job's master has 0 steps ([`VectorMasterConfig::steps`]). A process that
/// ends cannot be replaced, since its successor could not know which vectors the others have added up: the job then fails at once, or
/// after the master's patience if the process could not say so.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::AtomicBool;
///
/// use rackweave_reduce::{AllReduceConfig, OpenGroup, VectorMaster, VectorMasterConfig};
///
/// let stop = AtomicBool::new(false);
/// let config = VectorMasterConfig { steps: 0, ..VectorMasterConfig::new("127.0.0.1:0".parse().unwrap(), 2) };
/// let master = VectorMaster::bind(config)?;
/// let address = master.local_addr();
/// std::thread::scope(|scope| {
///     for number in 0..2 {
///         scope.spawn(move || {
///             let mut group = OpenGroup::join(AllReduceConfig::new(number, address), Arc::default())?;
///             let mut gradients = vec![f32::from(number); 1000];
///             group.allreduce(&mut gradients)?;
///             assert_eq!(gradients, [1.0; 1000]);
///             let mut count = [7_i64];
///             group.allreduce(&mut count)?;
///             assert_eq!(count, [14]);
///             group.finish()
///         });
///     }
///     master.run(&stop, &mut |_| {})
/// })?;
/// # Ok::<(), rackweave_reduce::ReduceError>(())
/// ```
///
/// [`VectorMasterConfig::steps`]: super::VectorMasterConfig::steps
pub struct OpenGroup {
    seat: Seat,
}

impl std::fmt::Debug for OpenGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Seat { config, step, .. } = &self.seat;
        let mut group = f.debug_struct("OpenGroup");
        group.field("config", config).field("step", step).finish_non_exhaustive()
    }
}

impl OpenGroup {
    /// Joins a group, and returns when all workers have joined. Once `stop` is set, this call and later ones leave the group and end with
    /// [`ReduceError::Interrupted`].
    ///
    /// # Errors
    /// See [`ReduceError`].
    pub fn join(config: AllReduceConfig, stop: Arc<AtomicBool>) -> Result<Self, ReduceError> {
        let shape = Shape { length: 0, format: Format::I64 };
        Ok(Self { seat: Seat::take(config, shape, stop, &mut |_| {})? })
    }

    /// Replaces a vector by the sum of the vectors of all workers: the same bits at each of them. An empty vector is not sent.
    ///
    /// # Errors
    /// See [`ReduceError`]. The vector is then unchanged, but for parts of [`AllReduceConfig::part_bytes`], and the group has ended for this
    /// worker.
    pub fn allreduce<T: Element>(&mut self, vector: &mut [T]) -> Result<(), ReduceError> {
        self.allreduce_as(vector, 0)
    }

    /// As [`OpenGroup::allreduce`]. `label` says what the caller does with the vector: workers with different labels differ.
    ///
    /// # Errors
    /// As [`OpenGroup::allreduce`].
    pub fn allreduce_as<T: Element>(
        &mut self,
        vector: &mut [T],
        label: u32,
    ) -> Result<(), ReduceError> {
        if vector.is_empty() {
            return Ok(());
        }
        // Floats that share an exponent stay together, so that the sums are those of the whole vector.
        let block = self.seat.block(vector.len() as u64, T::FORMAT);
        let most = (self.seat.config.part_bytes / T::BYTES / block).max(1) * block;
        vector.chunks_mut(most).try_for_each(|part| self.seat.allreduce(part, label))
    }

    /// Returns what the worker has done so far.
    #[must_use]
    pub fn report(&self) -> AllReduceReport {
        self.seat.report()
    }

    /// Says that this worker has no further vector, and waits until all workers have said so.
    ///
    /// # Errors
    /// See [`ReduceError`].
    pub fn finish(self) -> Result<AllReduceReport, ReduceError> {
        self.finish_within(None)
    }

    /// As [`OpenGroup::finish`], and waits for no longer than this.
    ///
    /// # Errors
    /// As [`OpenGroup::finish`]; [`ReduceError::NoSum`] if not all workers have said so.
    pub fn finish_within(self, within: Option<Span>) -> Result<AllReduceReport, ReduceError> {
        let mut link = self.seat.link();
        if let Some(side) = link.side() {
            side.release();
        }
        let config = AllReduceConfig { sum_within: within, ..self.seat.config };
        link.run(&config, &self.seat.stop, |link| link.outcome() == Some(Ok(())))?;
        drop(link);
        Ok(self.report())
    }
}
