//! The testbed of a build without the feature `hosts`: there is none.

use std::convert::Infallible;

use crate::Results;
use crate::run::Progress;
use crate::scenario::{Scenario, ScenarioText};

/// The command that starts a process of the testbed. No value exists.
#[derive(Clone, Debug)]
pub struct WorkerCommand(Infallible);

/// Runs of a scenario on real hosts. No value exists.
#[derive(Debug)]
pub struct Testbed(Infallible);

impl Testbed {
    pub(crate) fn of(_: &ScenarioText, _: &[String], _: Scenario, workers: WorkerCommand) -> Self {
        match workers.0 {}
    }

    pub(crate) fn cancel(&self) {
        match self.0 {}
    }

    pub(crate) fn progress(&self) -> Progress {
        match self.0 {}
    }

    pub(crate) fn run(&self) -> Result<Results, Infallible> {
        match self.0 {}
    }
}
