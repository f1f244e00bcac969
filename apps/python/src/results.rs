//! Results of runs, and folders of results.

use std::path::PathBuf;

use pyo3::prelude::*;
use rackweave_lab::output::{OutputDir, SavedDir};
use rackweave_lab::report::table::Style;

use crate::error::output_error;
use crate::table::Table;

/// The results of a run.
#[pyclass(frozen, module = "rackweave._native")]
pub(crate) struct Results {
    scenario: rackweave_lab::Scenario,
    results: rackweave_lab::Results,
    command: String,
}

impl Results {
    pub(crate) const fn new(
        scenario: rackweave_lab::Scenario,
        results: rackweave_lab::Results,
        command: String,
    ) -> Self {
        Self { scenario, results, command }
    }
}

#[pymethods]
impl Results {
    /// The contents of `summary.json`.
    fn json(&self, py: Python<'_>) -> String {
        py.detach(|| self.results.to_json())
    }

    /// The contents of `report.html`.
    fn html(&self, py: Python<'_>) -> PyResult<String> {
        Ok(py.detach(|| self.results.to_html(&self.scenario, &self.command)))
    }

    /// The tables that the command prints with `--wide`; other text is wrapped to this width in columns.
    fn text(&self, width: usize, unicode: bool) -> String {
        self.results.to_table(width, Style { color: false, unicode, wide: true })
    }

    /// The tables of the CSV files.
    fn tables(&self, py: Python<'_>) -> PyResult<Vec<Table>> {
        py.detach(|| self.results.tables().into_iter().map(Table::new).collect())
    }

    /// What makes the numbers doubtful, one line for each point concerned.
    fn warnings(&self) -> Vec<String> {
        let failed = self.results.summary.failures.iter();
        let failed =
            failed.map(|f| format!("{}: the simulator failed: {}", f.transport, f.message));
        self.results.warnings().chain(failed).chain(self.results.incomplete()).collect()
    }

    /// Writes the files that the command writes.
    fn save(&self, py: Python<'_>, folder: PathBuf) -> PyResult<()> {
        py.detach(|| {
            OutputDir::prepare(&folder)?.write(&self.scenario, &self.results, &self.command)
        })
        .map_err(|error| output_error(&error))
    }
}

/// A folder of results, which the command or [`Results::save`] has written.
#[pyclass(frozen, module = "rackweave._native")]
pub(crate) struct Saved(SavedDir);

#[pymethods]
impl Saved {
    #[new]
    fn new(folder: PathBuf) -> PyResult<Self> {
        SavedDir::open(&folder).map(Self).map_err(|error| output_error(&error))
    }

    fn json(&self) -> PyResult<String> {
        self.0.text("summary.json").map_err(|error| output_error(&error))
    }

    fn html(&self) -> PyResult<String> {
        self.0.text("report.html").map_err(|error| output_error(&error))
    }

    fn tables(&self, py: Python<'_>) -> PyResult<Vec<Table>> {
        let tables = py.detach(|| self.0.tables()).map_err(|error| output_error(&error))?;
        tables.into_iter().map(Table::new).collect()
    }

    fn save(&self, py: Python<'_>, folder: PathBuf) -> PyResult<()> {
        py.detach(|| self.0.copy_to(&OutputDir::prepare(&folder)?))
            .map_err(|error| output_error(&error))
    }
}
