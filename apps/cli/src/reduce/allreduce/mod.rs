//! `rackweave reduce allreduce`: vectors of many workers are added up.

pub(super) mod args;
mod bench;
mod master;
mod worker;

use self::args::{AllReduceArgs, AllReduceCommand};

pub(super) fn allreduce(args: &AllReduceArgs) -> miette::Result<u8> {
    match &args.command {
        AllReduceCommand::Master(args) => master::master(args),
        AllReduceCommand::Worker(args) => worker::worker(args),
        AllReduceCommand::Bench(args) => bench::bench(args),
    }
}
