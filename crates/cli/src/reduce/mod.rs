//! `rackweave reduce`: aggregation on the way, in racks that light arranges.

mod args;
mod plan;
mod show;

use clap::Subcommand;

// Descriptions are those of the arguments' types: a doc comment here would replace them, and hide their long form.
#[derive(Debug, Subcommand)]
pub(crate) enum ReduceCommand {
    Plan(Box<args::PlanArgs>),
}

pub(crate) fn reduce(command: &ReduceCommand) -> miette::Result<u8> {
    match command {
        ReduceCommand::Plan(args) => plan::plan(args),
    }
}
