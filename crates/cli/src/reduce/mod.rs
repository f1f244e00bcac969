//! `rackweave reduce`: aggregation on the way, in racks that light arranges.

mod allreduce;
mod args;
mod circuits;
mod hosts_args;
mod local;
mod master;
mod output;
mod plan;
mod show;
mod wordcount;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Subcommand;
use miette::miette;

use crate::exit;

// Descriptions are those of the arguments' types: a doc comment here would replace them, and hide their long form.
#[derive(Debug, Subcommand)]
pub(crate) enum ReduceCommand {
    Plan(Box<args::PlanArgs>),
    Master(Box<hosts_args::MasterArgs>),
    Worker(Box<hosts_args::WorkerArgs>),
    #[command(name = "wordcount")]
    WordCount(Box<hosts_args::WordCountArgs>),
    #[command(name = "allreduce")]
    AllReduce(Box<allreduce::args::AllReduceArgs>),
}

pub(crate) fn reduce(command: &ReduceCommand) -> miette::Result<u8> {
    // If the system refuses, exceeding the file size limit ends the process, which loses nothing.
    let _ = rackweave_linux::sys::outlive_file_limit();
    match command {
        ReduceCommand::Plan(args) => plan::plan(args),
        ReduceCommand::Master(args) => master::master(args),
        ReduceCommand::Worker(args) => worker::worker(args),
        ReduceCommand::WordCount(args) => wordcount::wordcount(args),
        ReduceCommand::AllReduce(args) => allreduce::allreduce(args),
    }
}

/// Whether input is being read, of which nothing has been sent yet: a signal then ends the process, which may be waiting for the input.
static READING: AtomicBool = AtomicBool::new(false);

/// Returns a flag that Ctrl-C or SIGTERM sets. A second signal ends the process.
fn interrupted() -> miette::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    let handler = move || {
        if set.swap(true, Ordering::Relaxed) || READING.load(Ordering::Relaxed) {
            std::process::exit(i32::from(exit::INTERRUPTED));
        }
    };
    ctrlc::set_handler(handler).map_err(|error| miette!("cannot listen for Ctrl-C: {error}"))?;
    Ok(flag)
}

fn status(text: &str) {
    use std::io::Write as _;
    // If stderr is closed, the text cannot be reported anywhere.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Reports why a job has failed.
fn ended(why: &str) -> miette::Result<u8> {
    status(&format!("error: {why}\n"));
    Ok(exit::FAILED)
}
