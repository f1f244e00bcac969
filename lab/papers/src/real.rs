//! Real hosts, as claims about both worlds need them.

use std::fmt::Debug;

use rackweave_lab::scenario::ScenarioText;
use rackweave_lab::{Progress, Results, Scenario};

/// Where the scenarios of claims run on real hosts.
pub trait RealHosts: Debug + Send + Sync {
    /// Returns a run of a scenario that was read from this text with these arguments of `--set`. It has not started.
    fn prepare(&self, text: &ScenarioText, sets: &[String], scenario: Scenario)
    -> Box<dyn RealRun>;
}

/// A run of a scenario on real hosts, which other threads can watch and stop.
pub trait RealRun: Send + Sync {
    /// Runs all points, one after the other.
    ///
    /// # Errors
    /// In words, why nothing can be run at all.
    fn run(&self) -> Result<Results, String>;

    /// Returns the present progress.
    fn progress(&self) -> Progress;

    /// Stops the run at the next opportunity. Finished points are kept.
    fn cancel(&self);
}
