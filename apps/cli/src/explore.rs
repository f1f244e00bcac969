//! `rackweave explore`.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::mpsc::channel;

use rackweave_explore::{Config, Explore};
use rackweave_lab::scenario::ScenarioText;

use crate::generate;
use crate::run::{host_set, warn};
use crate::shell::exit;
use crate::shell::signal::Interrupt;

/// Watch a run of a scenario on a local page: queues, messages that wait, and packets hop by hop.
///
/// The page runs, pauses and steps one point of the scenario, sets its keys, and runs a second one
/// next to it. It is for this machine only. Ctrl-C ends it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave explore quickstart\n  \
    rackweave explore my.toml --set workload.load=0.8 --seed 3")]
pub(crate) struct ExploreArgs {
    /// Scenario file, `-` for standard input, or a built-in one (`rackweave list scenarios`).
    #[arg(value_name = "SCENARIO.toml", add = generate::scenarios())]
    scenario: String,
    /// Set a key, replacing its value in the file, or a sweep over it.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Simulate hosts with the costs of this file (`rackweave calibrate`).
    #[arg(long, value_name = "FILE")]
    host: Option<PathBuf>,
    /// Random seed (default: the scenario's).
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: Option<u64>,
    /// Port of the page on 127.0.0.1 (default: a free one).
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    port: u16,
}

pub(crate) fn explore(args: ExploreArgs) -> miette::Result<u8> {
    let ExploreArgs { scenario, mut sets, host, seed, port } = args;
    if let Some(host) = &host {
        sets.push(host_set(host)?);
    }
    sets.extend(seed.map(|seed| format!("seed={seed}")));
    let text = ScenarioText::load(&scenario)?;
    let (stop, stopped) = channel::<()>();
    Interrupt::watch_with(move || {
        // The command may be about to end by itself.
        let _ = stop.send(());
    })?;
    let page = Explore::start(Config { text, sets, port })?;
    // Without its address the page is of no use.
    let mut stdout = std::io::stdout().lock();
    let told = writeln!(stdout, "{}\nCtrl-C ends it.", page.url()).and_then(|()| stdout.flush());
    drop(stdout);
    if let Err(error) = told {
        page.end();
        warn(&format!("error: cannot write the page's address to standard output: {error}"));
        return Ok(exit::FAILED);
    }
    // The sender lives as long as the handler, which is as long as the process.
    let _ = stopped.recv();
    page.end();
    Ok(exit::INTERRUPTED)
}
