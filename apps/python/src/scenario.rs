//! Scenarios: a file, a built-in one, TOML or a dictionary, with keys that are set.

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rackweave_lab::command_line;
use rackweave_lab::scenario::{ScenarioText, World};
use rackweave_lab::sweep::SweepFile;

use crate::error::scenario_error;

/// A checked scenario.
#[pyclass(frozen, module = "rackweave._native")]
pub(crate) struct Scenario {
    pub(crate) scenario: rackweave_lab::Scenario,
    /// What other processes need to know of it.
    pub(crate) file: SweepFile,
}

#[pymethods]
impl Scenario {
    /// Reads a scenario. `source` is the name of a built-in one or a path if `kind` is "name", else TOML ("toml") or JSON ("json").
    /// `sets` are arguments of `--set`.
    #[staticmethod]
    #[pyo3(signature = (kind, source, sets, seed=None))]
    fn read(
        py: Python<'_>,
        kind: &str,
        source: String,
        sets: Vec<String>,
        seed: Option<u64>,
    ) -> PyResult<Self> {
        let text = match kind {
            "name" => ScenarioText::load(&source),
            "toml" => Ok(ScenarioText {
                file: "scenario.toml".to_owned(),
                text: source.clone(),
                folder: PathBuf::from("."),
            }),
            "json" => ScenarioText::from_json("scenario.toml", &source),
            other => return Err(PyValueError::new_err(format!("no kind of scenario: {other}"))),
        };
        let text = text.map_err(|error| scenario_error(&error))?;
        let scenario = py
            .detach(|| text.read(World::Simulator, &sets, seed))
            .map_err(|error| scenario_error(&error))?;
        let command = if kind == "name" {
            command_line::run(&source, &sets, None, scenario.one_seed())
        } else {
            // The text has no name; the resolved scenario is written next to the report, and has what was set.
            command_line::run("scenario.resolved.toml", &[], None, scenario.one_seed())
        };
        let file = SweepFile::new(text, &sets, seed, &command);
        Ok(Self { scenario, file })
    }

    /// The number of points of its sweep.
    #[getter]
    fn points(&self) -> usize {
        self.scenario.points.len()
    }

    /// Says what the scenario means and what it will cost, without running it.
    fn explain(&self) -> String {
        self.scenario.explain()
    }
}

/// Returns the argument of `--set` for a key and a value in JSON.
#[pyfunction]
pub(crate) fn set_argument(key: &str, json: &str) -> PyResult<String> {
    let value = serde_json::from_str(json).map_err(|e| PyValueError::new_err(e.to_string()))?;
    rackweave_lab::scenario::set_argument(key, &value).map_err(|error| scenario_error(&error))
}
