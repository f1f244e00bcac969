//! `rackweave testbed`.

use std::sync::Arc;

use miette::IntoDiagnostic;
use rackweave_lab::output::OutputDir;
use rackweave_lab::scenario::ScenarioText;
use rackweave_lab::{Results, Scenario};
use rackweave_papers::{RealHosts, RealRun};
use rackweave_testbed::{Testbed, WorkerCommand, worker_main};

use crate::args::{TestbedArgs, WorkerArgs};
use crate::progress::Progress;
use crate::run::{Printed, exit_code, finish, quoted, warn};
use crate::shell::signal::stop_on_ctrl_c;

pub(crate) fn testbed(args: &TestbedArgs) -> miette::Result<u8> {
    let worker = worker_command()?;
    let testbed = Testbed::load(&args.scenario, &args.sets, args.seed, args.overlay, worker)?;
    testbed.check()?;
    let scenario = testbed.scenario();
    let out = args.out.clone().unwrap_or_else(|| scenario.default_out().with_extension("testbed"));
    let out = OutputDir::prepare(&out)?.with_parquet(args.parquet)?;
    let command = command_line(args, scenario.one_seed());
    let testbed = Arc::new(testbed);
    stop_on_ctrl_c(&testbed, Testbed::cancel)?;
    let progress = Progress::start_real(&testbed, Testbed::progress, !args.quiet);
    let results = testbed.run();
    drop(progress);
    let results = results?;
    let printed = Printed { json: args.json, quiet: args.quiet, wide: args.wide };
    finish(testbed.scenario(), &results, &out, &command, printed)?;
    testbed.notes().iter().for_each(|note| warn(&format!("note: {note}")));
    for failure in &results.summary.failures {
        warn(&format!("error: {}: {}", failure.transport, failure.message));
    }
    Ok(exit_code(&results))
}

/// The command that starts a worker: this program, as [`worker`].
pub(crate) fn worker_command() -> miette::Result<WorkerCommand> {
    let program = std::env::current_exe().into_diagnostic()?;
    Ok(WorkerCommand { program, arguments: vec!["testbed-part".into()] })
}

/// The testbed, for claims about both worlds.
#[derive(Debug)]
pub(crate) struct Workers(pub(crate) WorkerCommand);

impl RealHosts for Workers {
    fn prepare(
        &self,
        text: &ScenarioText,
        sets: &[String],
        scenario: Scenario,
    ) -> Box<dyn RealRun> {
        Box::new(Prepared(Testbed::of(text, sets, scenario, self.0.clone())))
    }
}

/// A run of a scenario for claims.
struct Prepared(Testbed);

impl RealRun for Prepared {
    fn run(&self) -> Result<Results, String> {
        self.0.run().map_err(|error| error.to_string())
    }

    fn progress(&self) -> rackweave_lab::Progress {
        self.0.progress()
    }

    fn cancel(&self) {
        self.0.cancel();
    }
}

/// Runs one worker of a run. Only the testbed itself starts it.
pub(crate) fn worker(_: &WorkerArgs) -> u8 {
    worker_main()
}

/// Returns the command that repeats the run. It is not a simulation, so its numbers will differ.
fn command_line(args: &TestbedArgs, seed: Option<u64>) -> String {
    let mut parts = vec!["rackweave".into(), "testbed".into(), quoted(&args.scenario)];
    for set in &args.sets {
        parts.extend(["--set".into(), quoted(set)]);
    }
    parts.extend(seed.iter().flat_map(|seed| ["--seed".into(), seed.to_string()]));
    if args.overlay {
        parts.push("--overlay".into());
    }
    parts.join(" ")
}
