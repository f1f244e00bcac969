//! Groups of workers that add up vectors, for `rackweave.torch`.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use rackweave_core::Span;
use rackweave_reduce::{
    AllReduceConfig, Element, Key, MAX_CHUNK_BYTES, Offer, OpenGroup, ReduceError, VectorMaster,
    VectorMasterConfig,
};

create_exception!(
    rackweave,
    GroupError,
    PyRuntimeError,
    "A group of workers has ended. The arguments are the reason, the numbers of the workers that are to blame, and how vectors differ: what the first that differs has, what others have, and whether most do."
);

/// The number of elements, their type and the label of a vector; `None` if there is none.
type Described = Option<(u64, String, u32)>;

fn described(offer: &Offer) -> Described {
    let Offer { length, format, label, .. } = *offer;
    (length > 0).then(|| (length, format.to_string(), label))
}

fn failed(error: &ReduceError) -> PyErr {
    let workers = error.workers();
    let numbers: Vec<u32> = (0..u64::BITS).filter(|number| workers >> number & 1 == 1).collect();
    let numbers = if matches!(error, ReduceError::MasterSilent { .. }) { vec![0] } else { numbers };
    let difference = error
        .difference()
        .map(|it| (described(&it.found), described(&it.expected), it.has_majority));
    GroupError::new_err((error.to_string(), numbers, difference))
}

fn address(text: &str) -> PyResult<SocketAddr> {
    text.parse()
        .map_err(|_| PyValueError::new_err(format!("{text:?} is not an address and a port")))
}

fn span(seconds: f64) -> Span {
    Span::from_secs_f64(seconds)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The master of a group, which adds up on a thread of its own.
#[pyclass(frozen, module = "rackweave._native")]
pub(crate) struct Master {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Why it has ended.
    error: Arc<Mutex<Option<String>>>,
}

#[pymethods]
impl Master {
    /// Begins to serve `workers` workers at an address, whose port may be 0. A worker that is silent is given up after `patience` seconds,
    /// and one that does not join after `join_within`. Workers must know the `key`, if it is not 0.
    #[staticmethod]
    #[pyo3(signature = (listen, workers, patience, join_within, pool, key))]
    fn start(
        listen: &str,
        workers: u8,
        patience: f64,
        join_within: f64,
        pool: u16,
        key: u64,
    ) -> PyResult<Self> {
        let config = VectorMasterConfig {
            steps: 0,
            pool,
            key: Key(key),
            chunk_bytes: MAX_CHUNK_BYTES,
            patience: span(patience),
            join_within: span(join_within),
            ..VectorMasterConfig::new(address(listen)?, workers)
        };
        let master = VectorMaster::bind(config).map_err(|error| failed(&error))?;
        let (address, stop) = (master.local_addr(), Arc::new(AtomicBool::new(false)));
        let flag = Arc::clone(&stop);
        let error = Arc::new(Mutex::new(None));
        let reason = Arc::clone(&error);
        let thread = std::thread::spawn(move || {
            if let Err(error) = master.run(&flag, &mut |_| {}) {
                *locked(&reason) = Some(error.to_string());
            }
        });
        Ok(Self { address, stop, thread: Mutex::new(Some(thread)), error })
    }

    /// The address of its socket.
    #[getter]
    fn address(&self) -> String {
        self.address.to_string()
    }

    /// Why the job has failed, once it has ended.
    #[getter]
    fn error(&self) -> Option<String> {
        locked(&self.error).clone()
    }

    /// Ends the job, informs the workers, and waits until the thread has ended.
    fn stop(&self, py: Python<'_>) {
        self.stop.store(true, Ordering::Relaxed);
        let thread = locked(&self.thread).take();
        // A thread that has panicked has ended, too.
        py.detach(|| thread.map(JoinHandle::join));
    }

    /// Whether the job has ended, and the workers know or do not answer.
    #[getter]
    fn has_ended(&self) -> bool {
        locked(&self.thread).as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A worker's place in a group. Calls do not hold the GIL; another thread may end them by `abort`.
#[pyclass(frozen, module = "rackweave._native")]
pub(crate) struct Group {
    group: Mutex<Option<OpenGroup>>,
    stop: Arc<AtomicBool>,
}

#[pymethods]
impl Group {
    /// A worker that has not joined.
    #[new]
    fn new() -> Self {
        Self { group: Mutex::new(None), stop: Arc::default() }
    }

    /// Joins the group of the master at this address as this worker, and waits for all others. A silent master is given up after `patience`
    /// seconds, and a sum is waited for `timeout` seconds.
    fn join(
        &self,
        py: Python<'_>,
        master: &str,
        number: u8,
        patience: f64,
        timeout: f64,
        key: u64,
    ) -> PyResult<()> {
        let config = AllReduceConfig {
            key: Key(key),
            patience: span(patience),
            sum_within: Some(span(timeout)),
            ..AllReduceConfig::new(number, address(master)?)
        };
        let stop = Arc::clone(&self.stop);
        let joined = py.detach(|| OpenGroup::join(config, stop));
        *locked(&self.group) = Some(joined.map_err(|error| failed(&error))?);
        Ok(())
    }

    /// Replaces floats of 32 bits by their sums over all workers. `memory` is called before and after, and returns their address and number;
    /// meanwhile the memory may be freed. Workers with another `label` differ.
    fn allreduce_f32(&self, memory: &Bound<'_, PyAny>, label: u32) -> PyResult<()> {
        self.allreduce::<f32>(memory, label)
    }

    /// As `allreduce_f32`, of integers of 64 bits, modulo 2^64.
    fn allreduce_i64(&self, memory: &Bound<'_, PyAny>, label: u32) -> PyResult<()> {
        self.allreduce::<i64>(memory, label)
    }

    /// The numbers of vectors, of chunks sent, of chunks sent again, and of bytes received.
    fn report(&self) -> Option<(u32, u64, u64, u64)> {
        let group = locked(&self.group);
        let report = group.as_ref()?.report();
        Some((report.steps, report.chunks, report.retransmitted, report.received_bytes))
    }

    /// Says that there is no further vector, waits for no longer than `within` seconds until all workers have said so, and leaves.
    fn finish(&self, py: Python<'_>, within: f64) -> PyResult<()> {
        py.detach(|| {
            let group = locked(&self.group).take();
            let finished = group.map(|group| group.finish_within(Some(span(within))));
            finished.map_or(Ok(()), |report| report.map(|_| ()))
        })
        .map_err(|error| failed(&error))
    }

    /// Ends the calls of other threads, and later ones. Leaves the group when none is under way.
    fn abort(&self, py: Python<'_>) {
        self.stop.store(true, Ordering::Relaxed);
        py.detach(|| drop(locked(&self.group).take()));
    }
}

impl Group {
    fn allreduce<T: Element>(&self, memory: &Bound<'_, PyAny>, label: u32) -> PyResult<()> {
        let (address, length) = memory.call0()?.extract()?;
        if length == 0 {
            return Ok(());
        }
        let mut vector: Vec<T> = of_memory(address, length)?.to_vec();
        memory
            .py()
            .detach(|| {
                let mut group = locked(&self.group);
                let group = group.as_mut().ok_or(ReduceError::Interrupted)?;
                group.allreduce_as(&mut vector, label)
            })
            .map_err(|error| failed(&error))?;
        let (address, length) = memory.call0()?.extract()?;
        if length != vector.len() {
            return Err(PyValueError::new_err("a tensor has another length than before"));
        }
        of_memory(address, length)?.copy_from_slice(&vector);
        Ok(())
    }
}

/// Returns the memory of a tensor, to be used before anything else runs in Python.
fn of_memory<'a, T: Element>(address: usize, length: usize) -> PyResult<&'a mut [T]> {
    let is_possible = address != 0
        && address.is_multiple_of(align_of::<T>())
        && length <= isize::MAX as usize / size_of::<T>();
    if !is_possible {
        return Err(PyValueError::new_err("this is not the memory of a tensor"));
    }
    #[expect(unsafe_code, reason = "Python has no other way to lend memory to this ABI")]
    // SAFETY: the address is aligned and not null, and any bits are an `f32` or an `i64`. The tensor has had the memory when the caller's
    // function returned, and nothing in Python can free it while the caller holds the GIL. This covers what is added up in place; copies of
    // other tensors are torch's, which does not hold the GIL meanwhile.
    Ok(unsafe { core::slice::from_raw_parts_mut(address as *mut T, length) })
}
