//! `rackweave reduce`: aggregation on the way, in racks that light arranges.

mod allreduce;
pub(crate) mod args;
mod circuits;
mod hosts_args;
mod local;
mod master;
mod output;
mod plan;
mod pod;
mod show;
mod wordcount;
mod worker;

pub(crate) use self::plan::read_pod;
pub(crate) use self::pod::{declaration, token};
use crate::shell::{exit, status};
use clap::Subcommand;
use rackweave_reduce::ReduceError;

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

/// Reports why a job has no result.
fn failed(error: &ReduceError) -> miette::Result<u8> {
    if matches!(error, ReduceError::Interrupted) {
        status("interrupted\n");
        return Ok(exit::INTERRUPTED);
    }
    ended(&error.to_string())
}

/// Reports why a job has failed.
fn ended(why: &str) -> miette::Result<u8> {
    status(&format!("error: {why}\n"));
    Ok(exit::FAILED)
}
