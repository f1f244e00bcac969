//! `rackweave testbed`.

use std::io::Write;
use std::sync::Arc;

use miette::IntoDiagnostic;
use rackweave_lab::Results;
use rackweave_lab::output::OutputDir;
use rackweave_lab::testbed::{PartCommand, Testbed, part_main};

use crate::args::{PartArgs, TestbedArgs};
use crate::print;
use crate::progress::Progress;
use crate::run::{INTERRUPTED, quoted, stop_on_ctrl_c, table};

pub(crate) fn testbed(args: &TestbedArgs) -> miette::Result<u8> {
    let parts = part_command()?;
    let testbed = Testbed::load(&args.scenario, &args.sets, args.seed, args.overlay, parts)?;
    testbed.check()?;
    let scenario = testbed.scenario();
    let out = args.out.clone().unwrap_or_else(|| scenario.default_out().with_extension("testbed"));
    let out = OutputDir::prepare(&out)?;
    let command = command_line(args, scenario.seed);
    let testbed = Arc::new(testbed);
    stop_on_ctrl_c(&testbed, Testbed::is_cancelled, Testbed::cancel)?;
    let progress = Progress::start_real(&testbed, Testbed::progress, !args.quiet);
    let results = testbed.run();
    drop(progress);
    let results = results?;
    // Nothing at all must not take the place of an earlier run's results.
    let any = !results.points.is_empty();
    if any {
        out.write(testbed.scenario(), &results, &command)?;
    }
    if args.json {
        print(&results.to_json())?;
    } else if any && !args.quiet {
        print(&table(&results, &out))?;
    }
    tell(args, &testbed, &results);
    Ok(crate::run::exit_code(&results))
}

/// What is to be known beside the numbers, on stderr.
fn tell(args: &TestbedArgs, testbed: &Testbed, results: &Results) {
    let mut stderr = std::io::stderr().lock();
    if results.points.is_empty() {
        let why = if results.summary.interrupted { "Interrupted: no" } else { "No" };
        let _ = writeln!(stderr, "{why} point was finished; no files are written.");
    } else if args.json || args.quiet {
        for warning in results.warnings() {
            let _ = writeln!(stderr, "warning: {warning}");
        }
        for note in results.notes() {
            let _ = writeln!(stderr, "note: {note}");
        }
        if results.summary.interrupted {
            let _ = writeln!(stderr, "{INTERRUPTED}");
        }
    }
    for note in testbed.notes() {
        let _ = writeln!(stderr, "note: {note}");
    }
    for failure in &results.summary.failures {
        let _ = writeln!(stderr, "error: {}: {}", failure.transport, failure.message);
    }
}

/// How the processes of a run are begun: this program, as [`part`].
pub(crate) fn part_command() -> miette::Result<PartCommand> {
    let program = std::env::current_exe().into_diagnostic()?;
    Ok(PartCommand { program, arguments: vec!["testbed-part".into()] })
}

/// A process of a run: only the testbed itself starts it.
pub(crate) fn part(_: &PartArgs) -> u8 {
    part_main()
}

/// What does the same again; other numbers come out, as it is no simulation.
fn command_line(args: &TestbedArgs, seed: u64) -> String {
    let mut parts = vec!["rackweave".into(), "testbed".into(), quoted(&args.scenario)];
    for set in &args.sets {
        parts.extend(["--set".into(), quoted(set)]);
    }
    parts.extend(["--seed".into(), seed.to_string()]);
    if args.overlay {
        parts.push("--overlay".into());
    }
    parts.join(" ")
}
