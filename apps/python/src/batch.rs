//! Running the points of a scenario while Python handles signals and shows progress.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rackweave_lab::output::OutputDir;
use rackweave_lab::sweep::{PointStore, Shard, SweepFile};

use crate::error::{output_error, run_error};
use crate::results::Results;
use crate::scenario::Scenario;

/// The time between two checks for Ctrl-C. People notice more than a tenth of a second.
const PERIOD: Duration = Duration::from_millis(100);

/// A run of a scenario's points.
#[pyclass(frozen, module = "rackweave._native")]
pub(crate) struct Batch {
    batch: Arc<rackweave_lab::Batch>,
    file: SweepFile,
}

/// What a run returns: its results and the exception that stopped it, if one did.
type Outcome = (Results, Option<PyErr>);

#[pymethods]
impl Batch {
    #[new]
    #[pyo3(signature = (scenario, threads=1))]
    fn new(scenario: &Scenario, threads: u32) -> Self {
        let batch = rackweave_lab::Batch::new(scenario.scenario.clone()).with_threads(threads);
        let batch = Arc::new(batch);
        Self { batch, file: scenario.file.clone() }
    }

    /// Runs all points on `jobs` threads; with a folder, stores finished points in it, and takes the points that it
    /// has. `progress` is called a few times per second with the numbers of points done and of all points, the share of
    /// the work done, the numbers of events and messages, and the simulated time in microseconds.
    ///
    /// Returns the results and the exception that stopped the run: KeyboardInterrupt or one of `progress`.
    #[pyo3(signature = (jobs=None, progress=None, folder=None))]
    fn run(
        &self,
        py: Python<'_>,
        jobs: Option<usize>,
        progress: Option<Py<PyAny>>,
        folder: Option<PathBuf>,
    ) -> PyResult<Outcome> {
        let open = |folder: PathBuf| {
            let out = OutputDir::prepare(&folder)?;
            self.file.write(&out)?;
            PointStore::create(&out)
        };
        let store = folder.map(open).transpose().map_err(|error| output_error(&error))?;
        let batch = Arc::clone(&self.batch);
        let (results, stopped) = wait(py, &self.batch, progress.as_ref(), move || match store {
            Some(store) => batch.run_stored(jobs, &store, Shard::ALL),
            None => batch.run(jobs),
        })?;
        let results = results.map_err(|error| run_error(&error))?;
        let scenario = self.batch.scenario().clone();
        Ok((Results::new(scenario, results, self.file.command.clone()), stopped))
    }
}

/// Does work on another thread, and waits for it without the GIL. An exception of a signal handler or of `progress` cancels the batch;
/// it is returned together with what the work then returns. A further exception of a signal handler is returned at
/// once.
///
/// Python delivers signals to its main thread, which therefore must not be the one that simulates.
pub(crate) fn wait<T: Send + 'static>(
    py: Python<'_>,
    batch: &rackweave_lab::Batch,
    progress: Option<&Py<PyAny>>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<(T, Option<PyErr>)> {
    let (sender, done) = channel();
    // If nobody waits any more, nobody misses the result.
    std::thread::spawn(move || drop(sender.send(work())));
    let (mut done, mut stopped) = (Some(done), None);
    loop {
        // A receiver may move to another thread, and may not be shared: it goes into the closure and comes back.
        let (received, receiver) = py.detach(|| {
            let receiver = done.take();
            let received = receiver
                .as_ref()
                .map_or(Err(RecvTimeoutError::Disconnected), |done| done.recv_timeout(PERIOD));
            (received, receiver)
        });
        done = receiver;
        match received {
            Ok(result) => return Ok((result, stopped)),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the run ended without a result"));
            }
            // The points stop soon. Whoever does not want to wait for that interrupts again, and the results are lost.
            Err(RecvTimeoutError::Timeout) if stopped.is_some() => py.check_signals()?,
            Err(RecvTimeoutError::Timeout) => {
                if let Err(error) = py.check_signals().and_then(|()| report(py, batch, progress)) {
                    batch.cancel();
                    stopped = Some(error);
                }
            }
        }
    }
}

fn report(
    py: Python<'_>,
    batch: &rackweave_lab::Batch,
    progress: Option<&Py<PyAny>>,
) -> PyResult<()> {
    let Some(progress) = progress else { return Ok(()) };
    let now = batch.progress();
    let simulated_us = now.simulated.as_us_f64();
    let numbers =
        (now.points_done, now.points, now.fraction, now.events, now.messages, simulated_us);
    progress.call1(py, numbers).map(|_| ())
}
