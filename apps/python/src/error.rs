//! Errors of the laboratory as Python's exceptions.

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme};
use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};

create_exception!(
    rackweave,
    ScenarioError,
    PyValueError,
    "A scenario, or a key that was set, is invalid. The message names the place and suggests a correction."
);
create_exception!(rackweave, RunError, PyRuntimeError, "A scenario is valid and cannot be run.");
create_exception!(rackweave, OutputError, PyOSError, "Results cannot be written or read.");

/// Returns the message, its causes, place and advice, as the command prints them.
fn rendered(error: &dyn Diagnostic) -> String {
    let handler = GraphicalReportHandler::new_themed(GraphicalTheme::unicode_nocolor());
    let mut text = String::new();
    match handler.render_report(&mut text, error) {
        Ok(()) => text.trim().to_owned(),
        Err(_) => error.to_string(),
    }
}

pub(crate) fn scenario_error(error: &rackweave_lab::ScenarioError) -> PyErr {
    ScenarioError::new_err(rendered(error))
}

pub(crate) fn run_error(error: &rackweave_lab::RunError) -> PyErr {
    RunError::new_err(rendered(error))
}

pub(crate) fn output_error(error: &dyn Diagnostic) -> PyErr {
    OutputError::new_err(rendered(error))
}
