//! `rackweave report`.

use std::path::PathBuf;

use rackweave_lab::output::OutputDir;
use rackweave_lab::redraw::Redrawn;

use crate::run;
use crate::shell::{exit, print};

/// Draw the report of finished results again, or one report on several.
///
/// Reads summary.json and the CSV files, and runs nothing. Of one result, report.html and the pictures are replaced. Several results become
/// one: the settings that differ become columns and names, results that differ in their seeds only become means with confidence
/// intervals, and results that do not differ are named by their directories.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave report out/quickstart\n  \
    rackweave report out/seed1 out/seed2 out/seed3 --out out/seeds\n  \
    rackweave report out/before out/after --out out/both\n\n\
    Exit codes: 0 drawn, 1 messages or points are missing in the results, 2 wrong usage, or no complete results.")]
pub(crate) struct ReportArgs {
    /// Directories that `rackweave run`, `merge`, `testbed` or `report` has written.
    #[arg(value_name = "DIR", required = true)]
    pub(crate) folders: Vec<PathBuf>,
    /// Directory for the report and, of several results, their tables (default: that of the only result).
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print every column of tables, as to a file or pipe.
    #[arg(long)]
    pub(crate) wide: bool,
    /// Print only summary.json on standard output.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print no table.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

pub(crate) fn report(args: &ReportArgs) -> miette::Result<u8> {
    let redrawn = Redrawn::read(&args.folders)?;
    let out = match (&args.out, redrawn.only_folder()) {
        (Some(out), _) => out.clone(),
        (None, Some(folder)) => folder.to_owned(),
        (None, None) => {
            return Err(miette::miette!(
                help = "the report on several results has tables of its own",
                "name a directory for the report with --out DIR"
            ));
        }
    };
    let out = OutputDir::prepare(&out)?;
    redrawn.write(&out)?;
    let results = redrawn.results();
    if args.json {
        print(&results.to_json())?;
    } else if !args.quiet {
        print(&run::table(results, &out, args.wide))?;
    }
    if args.json || args.quiet {
        run::report(results);
    }
    redrawn.notes().for_each(|note| run::warn(&format!("note: {note}")));
    let is_missing = results.summary.interrupted || run::exit_code(results) != exit::DONE;
    Ok(if is_missing { exit::FAILED } else { exit::DONE })
}
