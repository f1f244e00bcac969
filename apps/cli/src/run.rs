//! `rackweave run`.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;

use miette::IntoDiagnostic as _;
use rackweave_lab::command_line;
pub(crate) use rackweave_lab::command_line::quoted;
use rackweave_lab::output::OutputDir;
use rackweave_lab::report::table::Style;
use rackweave_lab::results::{PointFailure, Weight};
use rackweave_lab::scenario::{ScenarioText, World};
use rackweave_lab::sweep::{self, PointStore, Shard, SweepFile};
use rackweave_lab::{Batch, Results, Scenario};

use crate::args::{MergeArgs, RunArgs};
use crate::progress::Progress;
use crate::shell::signal::stop_on_ctrl_c;
use crate::shell::{exit, print, text_width};

/// What is printed of results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printed {
    /// Only summary.json.
    pub(crate) json: bool,
    /// No tables.
    pub(crate) quiet: bool,
    /// Every column of tables.
    pub(crate) wide: bool,
}

pub(crate) fn run(args: RunArgs) -> miette::Result<u8> {
    let mut sets = args.sets.clone();
    if let Some(host) = &args.host {
        sets.push(host_set(host)?);
    }
    let text = ScenarioText::load(&args.scenario)?;
    let scenario = text.read(World::Simulator, &sets, args.seed)?;
    if let Some(path) = &args.export_goal
        && rackweave_lab::goal::export(&scenario, path)?.is_empty()
    {
        return Err(miette::miette!("--export-goal: the scenario has no [workload.collective]"));
    }
    if args.explain {
        return print(&match args.json {
            true => scenario.explain_json(),
            false => scenario.explain_within(text_width()),
        });
    }
    let out = args.out.clone().unwrap_or_else(|| scenario.default_out());
    let out = OutputDir::prepare(&out)?.with_parquet(args.parquet)?;
    let command = command_with(&args, &[], scenario.one_seed());
    scenario.unsuitable().iter().for_each(|told| warn(&format!("note: {told}")));
    let threads = u32::from(args.threads);
    if threads > 1 {
        scenario.one_thread().for_each(|note| warn(&format!("note: {note}")));
    }
    scenario.overload().iter().for_each(|line| warn(&format!("warning: {line}")));
    let batch = Batch::new(scenario).with_threads(threads).with_point_limit(args.point_limit);
    let batch = Arc::new(batch);
    stop_on_ctrl_c(&batch, Batch::cancel)?;
    let progress = Progress::start(&batch, Batch::progress, !args.quiet);
    let jobs = args.jobs.map(usize::from);
    let results = if args.resume || args.shard.is_some() {
        let sweep = SweepFile::new(text, &sets, args.seed, &command);
        run_stored(&batch, jobs, &out, &sweep, args.shard.unwrap_or(Shard::ALL))
    } else {
        batch.run(jobs).map_err(Into::into)
    };
    drop(progress);
    let results = results?;
    let printed = Printed { json: args.json, quiet: args.quiet, wide: args.wide };
    match args.shard {
        Some(shard) => finish_shard(&batch, &results, &out, shard, printed)?,
        None => finish(batch.scenario(), &results, &out, &command, printed)?,
    }
    if !args.json && !args.quiet && args.shard.is_none() {
        hint(&args, &results);
    }
    for failure in &results.summary.failures {
        warn(&format!(
            "error: the simulator failed in one of the points ({}): {}\n  \
             This is a bug in Rackweave, not in the scenario. To reproduce it:\n  {}",
            failure.transport,
            failure.message,
            replay(&args, failure)
        ));
    }
    Ok(match args.shard {
        Some(_) => shard_code(&results),
        None => exit_code(&results),
    })
}

/// The exit code of a shard: 0 if all of its points are stored. What they warn of, `merge` reports: a job array that depends on this code
/// is not to stop, or to try again, because messages were unfinished at a high load.
fn shard_code(results: &Results) -> u8 {
    if results.summary.interrupted {
        exit::INTERRUPTED
    } else if results.summary.failures.is_empty() {
        exit::DONE
    } else {
        exit::FAILED
    }
}

/// Runs the points of a shard that are not in the folder yet.
fn run_stored(
    batch: &Batch,
    jobs: Option<usize>,
    out: &OutputDir,
    sweep: &SweepFile,
    shard: Shard,
) -> miette::Result<Results> {
    sweep.write(out)?;
    let store = PointStore::create(out)?;
    Ok(batch.run_stored(jobs, &store, shard)?)
}

/// Reports on a shard, whose points are in the folder.
fn finish_shard(
    batch: &Batch,
    results: &Results,
    out: &OutputDir,
    shard: Shard,
    Printed { json, quiet, .. }: Printed,
) -> miette::Result<()> {
    if json {
        print(&results.to_json())?;
    } else if !quiet {
        let (ended, all) = (results.points.len(), batch.scenario().points.len());
        let path = quoted(&out.path().display().to_string());
        print(&format!(
            "shard {shard}: {ended} of the sweep's {all} points are finished\n\
             when all shards are: rackweave merge {path} --out DIR\n"
        ))?;
    }
    report(results);
    Ok(())
}

/// `rackweave merge`.
pub(crate) fn merge(args: &MergeArgs) -> miette::Result<u8> {
    let (scenario, results, command) = sweep::merge(&args.folders)?;
    let out = OutputDir::prepare(&args.out)?.with_parquet(args.parquet)?;
    let printed = Printed { json: args.json, quiet: args.quiet, wide: args.wide };
    finish(&scenario, &results, &out, &command, printed)?;
    for failure in &results.summary.failures {
        warn(&format!("error: {}: the simulator failed: {}", failure.transport, failure.message));
    }
    Ok(exit_code(&results))
}

/// Writes the results, prints the table or JSON, and reports on stderr what the table does not show.
pub(crate) fn finish(
    scenario: &Scenario,
    results: &Results,
    out: &OutputDir,
    command: &str,
    Printed { json, quiet, wide }: Printed,
) -> miette::Result<()> {
    if results.points.is_empty() {
        // With --json, the results of an earlier run are kept.
        if json {
            print(&results.to_json())?;
        }
        let why = if results.summary.interrupted { "Interrupted: no" } else { "No" };
        warn(&format!("{why} point was finished; no files are written."));
        return Ok(());
    }
    out.write(scenario, results, command)?;
    if json {
        print(&results.to_json())?;
    } else if !quiet {
        print(&table(results, out, wide))?;
        return Ok(());
    }
    report(results);
    Ok(())
}

/// Reports on stderr what a table would have shown as well as the numbers.
pub(crate) fn report(results: &Results) {
    results.warnings().for_each(|warning| warn(&format!("warning: {warning}")));
    for weight in [Weight::Note, Weight::Window] {
        results.remarks(weight).for_each(|note| warn(&format!("note: {note}")));
    }
    results.incomplete().iter().for_each(|line| warn(line));
}

/// Says what searches the smallest buffer, if packets found none.
fn hint(args: &RunArgs, results: &Results) {
    let points = results.points.iter().map(|point| &point.summary);
    if points.clone().any(|point| point.drops_by_reason.contains_key("queue_full"))
        && points.clone().all(|point| point.trims == 0)
        && args.scenario != "-"
    {
        let sets = args.sets.iter().map(|set| format!(" --set {}", quoted(set)));
        let command = format!("size buffer {}{}", quoted(&args.scenario), sets.collect::<String>());
        warn(&format!(
            "hint: queues were full; the smallest buffer without loss: rackweave {command}"
        ));
    }
}

/// Writes a line to stderr. If stderr is closed, there is nowhere to report that.
pub(crate) fn warn(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

pub(crate) fn exit_code(results: &Results) -> u8 {
    if results.summary.interrupted {
        exit::INTERRUPTED
    } else if results.warnings().next().is_some() || !results.summary.failures.is_empty() {
        exit::FAILED
    } else {
        exit::DONE
    }
}

pub(crate) fn table(results: &Results, out: &OutputDir, wide: bool) -> String {
    let stdout = std::io::stdout();
    let terminal = stdout.is_terminal();
    let utf8 = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .filter_map(|name| std::env::var(name).ok())
        .find(|value| !value.is_empty())
        .is_none_or(|value| value.to_lowercase().replace('-', "").contains("utf8"));
    let color = terminal && std::env::var_os("NO_COLOR").is_none();
    let mut text =
        results.to_table(text_width(), Style { color, unicode: utf8, wide: wide || !terminal });
    let path = out.path().display();
    text += &format!("\nresults: {path}/summary.json\nreport:  {path}/report.html\n");
    text
}

/// The command that reproduces a failed point.
fn replay(args: &RunArgs, failure: &PointFailure) -> String {
    command_with(args, &failure.arguments, Some(failure.seed))
}

/// Returns the command that reproduces these results, with further `--set` arguments.
fn command_with(args: &RunArgs, more: &[String], seed: Option<u64>) -> String {
    let sets: Vec<String> = args.sets.iter().chain(more).cloned().collect();
    let host = args.host.as_ref().map(|host| host.to_string_lossy());
    command_line::run(&args.scenario, &sets, host.as_deref(), seed)
}

/// Returns the argument of `--set` that simulates hosts as in a file.
///
/// # Errors
/// If the present directory is unknown.
pub(crate) fn host_set(file: &Path) -> miette::Result<String> {
    let path = std::path::absolute(file).into_diagnostic()?;
    let text = path
        .to_str()
        .ok_or_else(|| miette::miette!("the path of `{}` is not UTF-8", file.display()))?;
    // A TOML string: JSON's escapes are valid in it.
    Ok(format!("host={}", serde_json::Value::from(text)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    #[test]
    fn a_failed_point_exits_with_1_and_can_be_reproduced() {
        let line = ["rackweave", "run", "my file.toml", "--set", "workload.load=0.5"];
        let Command::Run(args) = Args::parse_from(line).command else { panic!("not a run") };
        let text = "fabric = { topology = 'single-switch', hosts = 4 }\ntransport.name = 'tcp'\n\
                    workload = { arrivals = 'permutation', sizes = '10 KB' }";
        let scenario = Scenario::parse("x.toml", text, Path::new("."), &[], None).unwrap();
        let mut results = Batch::new(scenario).run(Some(1)).unwrap();
        assert_eq!(exit_code(&results), exit::DONE);
        let failure = PointFailure {
            set: Default::default(),
            transport: "tcp".into(),
            message: "assertion failed".into(),
            seed: 3,
            arguments: vec!["fabric.host_link=\"25 Gbps\"".into()],
        };
        let again = replay(&args, &failure);
        let expected = "rackweave run 'my file.toml' --set workload.load=0.5 \
                        --set 'fabric.host_link=\"25 Gbps\"' --seed 3";
        assert_eq!(again, expected);
        results.summary.failures.push(failure);
        assert_eq!(exit_code(&results), exit::FAILED);
    }
}
