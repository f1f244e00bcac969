//! What can be typed.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use rackweave_lab::list::Topic;

use crate::cast::CastCommand;
use crate::rpc::RpcCommand;
use crate::switch::SwitchArgs;

/// Data-center transports, tried on a simulated fabric before they run on a real one.
#[derive(Debug, Parser)]
#[command(
    name = "rackweave",
    version,
    after_help = "Start here:\n  rackweave run quickstart          Homa, DCTCP and TCP beside each other\n  \
                  rackweave list scenarios          what else there is\n\n\
                  Exit codes: 0 done, 1 ran and something failed, 2 wrong usage or file, 130 interrupted."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a scenario: all points of its sweep, on all cores.
    Run(RunArgs),
    /// Run a scenario really: hosts are processes, the switch works at real rates.
    Testbed(TestbedArgs),
    /// Run what papers claim, and say whether it holds.
    Paper(PaperArgs),
    /// Run a user-space switch: the simulator's queues at real rates, for real hosts.
    Switch(Box<SwitchArgs>),
    /// List what scenarios can name.
    List(ListArgs),
    /// A process of a testbed.
    #[command(hide = true)]
    TestbedPart(PartArgs),
    /// Calls and streams between real hosts: serve them, or measure them.
    #[command(subcommand)]
    Rpc(RpcCommand),
    /// Files and streams to many hosts at once, with hashes and resumption.
    #[command(subcommand)]
    Cast(CastCommand),
}

/// Run a scenario: all points of its sweep, on all cores.
///
/// Prints a table, and writes summary.json, CSV files and report.html to a folder. The same
/// scenario and seed give the same results, with any number of jobs.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave run quickstart\n  \
    rackweave run my.toml --set workload.load=0.5 --set fabric.host_link=\"25 Gbps\"\n  \
    rackweave run my.toml --set 'sweep.workload.load=[0.2, 0.5, 0.8]' --out out/loads\n  \
    rackweave run my.toml --json | jq '.points[] | {transport, p99: .slowdown.p99}'")]
pub(crate) struct RunArgs {
    /// Scenario file, or the name of a built-in one (see `rackweave list scenarios`).
    #[arg(value_name = "SCENARIO.toml")]
    pub(crate) scenario: String,
    /// Set a key; it replaces what the file says, also a sweep over this key.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Seed of everything random (default: the scenario's).
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    pub(crate) seed: Option<u64>,
    /// Points that run at the same time (default: one for each core).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) jobs: Option<u16>,
    /// Folder for the results (default: out/NAME).
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print summary.json on standard output, and nothing else.
    #[arg(long)]
    pub(crate) json: bool,
    /// Say what the scenario means and what it will cost, without running it.
    #[arg(long)]
    pub(crate) explain: bool,
    /// No progress bar and no table.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// Run a scenario really: hosts are processes, the switch works at real rates.
///
/// Takes the same files as `run`, and writes the same. Each host is a network namespace with a link to the
/// switch, which takes root; with --overlay it is a UDP socket of this machine, which takes no right.
/// Transports are the simulator's code; TCP is the kernel's, but in the overlay.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave testbed testbed-incast --overlay\n  \
    rackweave testbed testbed --set 'sweep.transport.name=[\"homa\", \"tcp\"]'\n\n\
    Exit codes: 0 done, 1 ran and something failed, 2 wrong usage or file or refused, 130 interrupted.")]
pub(crate) struct TestbedArgs {
    /// Scenario file, or the name of a built-in one (see `rackweave list scenarios`).
    #[arg(value_name = "SCENARIO.toml")]
    pub(crate) scenario: String,
    /// Hosts are UDP sockets on loopback: no root, no kernel TCP.
    #[arg(long)]
    pub(crate) overlay: bool,
    /// Set a key; it replaces what the file says, also a sweep over this key.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Seed of everything random that is sent (default: the scenario's).
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    pub(crate) seed: Option<u64>,
    /// Folder for the results (default: out/NAME.testbed).
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print summary.json on standard output, and nothing else.
    #[arg(long)]
    pub(crate) json: bool,
    /// No progress bar and no table.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PartArgs {
    /// Which: for those who look at the list of processes.
    pub(crate) name: String,
}

/// Run what papers claim, and say whether it holds.
///
/// Prints for each claim what the paper says, what came out here, and whether and why the claim
/// holds; draws the papers' figures anew. A claim that does not hold is a result, no failure.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave paper --quick\n  \
    rackweave paper polo --out out/polo\n  \
    rackweave paper --claim homa-sigcomm --json | jq '.claims[] | {id, holds, here}'\n\n\
    Exit codes: 0 every claim was decided, 1 one could not be, 2 wrong usage or file, 130 interrupted.")]
pub(crate) struct PaperArgs {
    /// A paper (homa, polo), or a file of claims (default: all papers).
    #[arg(value_name = "PAPER")]
    pub(crate) paper: Option<String>,
    /// Only this claim (see --list).
    #[arg(long = "claim", value_name = "ID")]
    pub(crate) claims: Vec<String>,
    /// Smaller sizes and fewer repetitions: minutes instead of hours.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Folder for figures and results (default: out/papers).
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print claims.json on standard output, and nothing else.
    #[arg(long)]
    pub(crate) json: bool,
    /// Points that run at the same time (default: one for each core).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) jobs: Option<u16>,
    /// List the claims, and run nothing.
    #[arg(long)]
    pub(crate) list: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// What to list.
    pub(crate) topic: TopicArg,
    /// Print one JSON document.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum TopicArg {
    /// Transports, for `transport.name`.
    Transports,
    /// Topologies, for `fabric.topology`.
    Fabrics,
    /// Published message sizes, for `workload.sizes`.
    Workloads,
    /// Built-in scenarios, and scenario files in this folder.
    Scenarios,
    /// Published results that can be checked.
    Claims,
}

impl TopicArg {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Transports => "transports",
            Self::Fabrics => "fabrics",
            Self::Workloads => "workloads",
            Self::Scenarios => "scenarios",
            Self::Claims => "claims",
        }
    }
}

impl From<TopicArg> for Topic {
    fn from(topic: TopicArg) -> Self {
        match topic {
            TopicArg::Transports => Self::Transports,
            TopicArg::Fabrics => Self::Fabrics,
            TopicArg::Workloads => Self::Workloads,
            TopicArg::Scenarios => Self::Scenarios,
            TopicArg::Claims => Self::Claims,
        }
    }
}
