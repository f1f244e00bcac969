//! Sweeps whose points other processes run.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rackweave_lab::output::OutputDir;
use rackweave_lab::sweep::{PointStore, SweepError, SweepFile};

use crate::batch::wait;
use crate::error::{output_error, run_error, scenario_error};
use crate::results::Results;
use crate::scenario::Scenario;

/// The points of a sweep that are finished so far.
#[pyclass(module = "rackweave._native")]
pub(crate) struct Sweep {
    sweep: Option<rackweave_lab::sweep::Sweep>,
    file: SweepFile,
}

#[pymethods]
impl Sweep {
    /// Begins a sweep; with a folder, goes on with the points that are finished there.
    #[new]
    #[pyo3(signature = (scenario, folder=None))]
    fn new(py: Python<'_>, scenario: &Scenario, folder: Option<PathBuf>) -> PyResult<Self> {
        let open = |folder: PathBuf| {
            let out = OutputDir::prepare(&folder)?;
            scenario.file.write(&out)?;
            PointStore::create(&out)
        };
        let sweep = py
            .detach(|| {
                let store = folder.map(open).transpose()?;
                Ok(rackweave_lab::sweep::Sweep::new(scenario.scenario.clone(), store))
            })
            .map_err(|error: rackweave_lab::OutputError| output_error(&error))?;
        Ok(Self { sweep: Some(sweep), file: scenario.file.clone() })
    }

    /// What [`run_point`] needs to know of the sweep, as a text.
    fn spec(&self) -> String {
        self.file.to_json()
    }

    /// The indices of the points that are not finished.
    fn missing(&self) -> PyResult<Vec<usize>> {
        Ok(self.sweep.as_ref().ok_or_else(taken)?.missing())
    }

    /// Adds a point that [`run_point`] returned, and stores it in the folder.
    fn add(&mut self, py: Python<'_>, index: usize, point: &[u8]) -> PyResult<()> {
        let sweep = self.sweep.as_mut().ok_or_else(taken)?;
        py.detach(|| sweep.add(index, point)).map_err(|error| match error {
            SweepError::Output(error) => output_error(&error),
            SweepError::Point(error) => PyValueError::new_err(error.to_string()),
        })
    }

    /// Ends the sweep, and returns the results of the finished points.
    fn results(&mut self, py: Python<'_>) -> PyResult<Results> {
        let sweep = self.sweep.take().ok_or_else(taken)?;
        let (scenario, results) = py.detach(|| sweep.into_results());
        Ok(Results::new(scenario, results, self.file.command.clone()))
    }
}

fn taken() -> PyErr {
    PyRuntimeError::new_err("the results of this sweep have been taken")
}

/// The sweep whose points this process runs, so that its scenario is not read again for each of them.
static CURRENT: Mutex<Option<(String, Arc<rackweave_lab::Batch>)>> = Mutex::new(None);

fn current(spec: &str) -> PyResult<Arc<rackweave_lab::Batch>> {
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((of, batch)) = &*current
        && of == spec
        && !batch.is_cancelled()
    {
        return Ok(Arc::clone(batch));
    }
    let file =
        SweepFile::from_json(spec).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let scenario = file.scenario().map_err(|error| scenario_error(&error))?;
    let batch = Arc::new(rackweave_lab::Batch::new(scenario));
    *current = Some((spec.to_owned(), Arc::clone(&batch)));
    Ok(batch)
}

/// Runs one point of a sweep, on one core. Returns what [`Sweep::add`] takes, in whichever process.
#[pyfunction]
pub(crate) fn run_point<'py>(
    py: Python<'py>,
    spec: &str,
    index: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let batch = py.detach(|| current(spec))?;
    let running = Arc::clone(&batch);
    let (point, stopped) = wait(py, &batch, None, move || running.run_encoded(index))?;
    match stopped {
        Some(error) => Err(error),
        None => Ok(PyBytes::new(py, &point.map_err(|error| run_error(&error))?)),
    }
}
