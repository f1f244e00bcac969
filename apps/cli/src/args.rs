//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use rackweave_lab::sweep::Shard;

#[cfg(feature = "hosts")]
use crate::cast::CastCommand;
#[cfg(feature = "hosts")]
use crate::chaos::ChaosArgs;
use crate::compare::CompareArgs;
#[cfg(feature = "explore")]
use crate::explore::ExploreArgs;
use crate::generate::{self, CompletionsArgs, ManArgs};
#[cfg(feature = "hosts")]
use crate::image::ImageCommand;
use crate::new_transport::NewTransportArgs;
#[cfg(feature = "hosts")]
use crate::node::NodeArgs;
#[cfg(feature = "hosts")]
use crate::pod::args::PodCommand;
#[cfg(feature = "hosts")]
use crate::reduce::ReduceCommand;
use crate::report::ReportArgs;
#[cfg(feature = "hosts")]
use crate::rpc::RpcCommand;
#[cfg(feature = "hosts")]
use crate::switch::args::SwitchArgs;

#[cfg(feature = "hosts")]
const AFTER_HELP: &str = "Start here:\n  rackweave run quickstart          compare Homa, DCTCP and TCP\n  \
                          rackweave list scenarios          list the built-in scenarios\n\n\
                          Exit codes: 0 done, 1 ran and something failed, 2 wrong usage or file, 130 interrupted.";
#[cfg(not(feature = "hosts"))]
const AFTER_HELP: &str = "Start here:\n  rackweave run quickstart          compare Homa, DCTCP and TCP\n  \
                          rackweave list scenarios          list the built-in scenarios\n\n\
                          This build has no commands for real hosts (cast, image, rpc, switch, ...): those\n\
                          need Linux and the feature `hosts`.\n\n\
                          Exit codes: 0 done, 1 ran and something failed, 2 wrong usage or file, 130 interrupted.";

/// Compare data-center transports in simulation, and run the same code on real hosts.
#[derive(Debug, Parser)]
#[command(
    name = "rackweave",
    version,
    after_help = AFTER_HELP
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

// Commands without a comment have that of their arguments. `--help` shows all of them.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArgs),
    Merge(MergeArgs),
    #[cfg(feature = "hosts")]
    Testbed(TestbedArgs),
    Report(ReportArgs),
    Compare(CompareArgs),
    #[cfg(feature = "hosts")]
    Calibrate(CalibrateArgs),
    Paper(PaperArgs),
    /// Run random scenarios with random faults, and check what must hold in all of them.
    #[cfg(feature = "hosts")]
    Chaos(ChaosArgs),
    /// Run a user-space switch with the simulator's queues, for real hosts.
    #[cfg(feature = "hosts")]
    Switch(Box<SwitchArgs>),
    /// Watch a run of a scenario on a local page: queues, messages that wait, and packets hop by hop.
    #[cfg(feature = "explore")]
    Explore(ExploreArgs),
    /// Search the parameters of a transport that suit a scenario best.
    Tune(TuneArgs),
    /// Search the smallest buffer or the fewest uplinks that serve a scenario.
    Size(SizeArgs),
    /// List transports, fabrics, workloads, scenarios or claims.
    List(ListArgs),
    /// A host of a testbed, started by `testbed`.
    #[cfg(feature = "hosts")]
    #[command(hide = true)]
    TestbedPart(WorkerArgs),
    /// Serve or measure calls and streams between real hosts.
    #[cfg(feature = "hosts")]
    #[command(subcommand)]
    Rpc(RpcCommand),
    /// Send files and streams to many hosts at once, hashed and resumable.
    #[cfg(feature = "hosts")]
    #[command(subcommand)]
    Cast(CastCommand),
    /// Make, check and write images of disks, in chunks.
    #[cfg(feature = "hosts")]
    #[command(subcommand)]
    Image(ImageCommand),
    /// Add up pairs of key and value on their way to a master, count words, and plan racks for it.
    #[cfg(feature = "hosts")]
    #[command(subcommand)]
    Reduce(ReduceCommand),
    /// Run the controller of a rackless pod, and ask it: jobs, plans, circuits.
    #[cfg(feature = "hosts")]
    #[command(subcommand)]
    Pod(PodCommand),
    #[cfg(feature = "hosts")]
    Node(NodeArgs),
    /// Print the JSON schema of summary.json on standard output.
    Schema,
    NewTransport(NewTransportArgs),
    /// Print the completions of a shell on standard output.
    Completions(CompletionsArgs),
    /// Write manual pages to a directory.
    Man(ManArgs),
}

/// Run a scenario in the simulator: all points of its sweep, on all cores.
///
/// Prints a table, and writes summary.json, CSV files and report.html to a directory. The same
/// scenario and seed give the same results, with any number of jobs and threads.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave run quickstart\n  \
    rackweave run my.toml --set workload.load=0.5 --set fabric.host_link=\"25 Gbps\"\n  \
    rackweave run my.toml --set 'sweep.workload.load=[0.2, 0.5, 0.8]' --out out/loads\n  \
    rackweave run my.toml --json | jq '.points[] | {transport, p99: .slowdown.p99}'\n  \
    rackweave run my.toml --shard 3/8 --out out/shards; rackweave merge out/shards --out out/all\n\n\
    What buffer does it need, and how many uplinks? rackweave size")]
pub(crate) struct RunArgs {
    /// Scenario file, `-` for standard input, or a built-in one (`rackweave list scenarios`).
    #[arg(value_name = "SCENARIO.toml", add = generate::scenarios())]
    pub(crate) scenario: String,
    /// Set a key, replacing its value in the file, or a sweep over it.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Simulate hosts with the costs of this file (`rackweave calibrate`).
    #[arg(long, value_name = "FILE")]
    pub(crate) host: Option<PathBuf>,
    /// Random seed (default: the scenario's).
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    pub(crate) seed: Option<u64>,
    /// Points to run in parallel (default: one per core, or one for each `--threads` cores).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) jobs: Option<u16>,
    /// Threads for each point of 256 hosts or more, if --explain says so. Results are the same.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: u16,
    /// End each point after this time of the clock, such as 60s: it counts as unfinished, and its
    /// numbers depend on the machine.
    #[arg(long, value_name = "TIME", value_parser = point_limit)]
    pub(crate) point_limit: Option<Duration>,
    /// Directory for the results (default: out/NAME).
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Write every table as a Parquet file too.
    #[arg(long, conflicts_with = "shard")]
    pub(crate) parquet: bool,
    /// Write the schedule of a collective too, which `workload.collective.schedule` reads; of several, the
    /// number of the point is before the extension.
    #[arg(long, value_name = "FILE.goal")]
    pub(crate) export_goal: Option<PathBuf>,
    /// Keep each finished point in DIR/points, and take the points of an interrupted run.
    #[arg(long)]
    pub(crate) resume: bool,
    /// Run only each N-th point, from the I-th on, and keep them in DIR/points for `merge`; implies
    /// --resume.
    #[arg(long, value_name = "I/N", conflicts_with = "explain")]
    pub(crate) shard: Option<Shard>,
    /// Print every column of tables, as to a file or pipe.
    #[arg(long)]
    pub(crate) wide: bool,
    /// Print only summary.json on standard output, and nothing else there.
    #[arg(long)]
    pub(crate) json: bool,
    /// Describe the scenario and estimate its cost, without running it.
    #[arg(long)]
    pub(crate) explain: bool,
    /// Print neither a progress bar nor a table.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// Reads a time above zero, such as `60s`.
fn point_limit(text: &str) -> Result<Duration, String> {
    let span: rackweave_core::Span =
        text.parse().map_err(|_| "not a time such as 60s".to_owned())?;
    if span == rackweave_core::Span::ZERO {
        return Err("a point needs some time".to_owned());
    }
    Ok(Duration::from_secs_f64(span.as_secs_f64()))
}

/// What every search over a scenario takes.
#[derive(Debug, clap::Args)]
pub(crate) struct SearchArgs {
    /// Scenario file, `-` for standard input, or a built-in one (`rackweave list scenarios`).
    #[arg(value_name = "SCENARIO.toml", add = generate::scenarios())]
    pub(crate) scenario: String,
    /// Set a key, replacing its value in the file, or a sweep over it.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Random seed (default: the scenario's).
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    pub(crate) seed: Option<u64>,
    /// Points to run in parallel (default: one per core).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) jobs: Option<u16>,
    /// Print no progress bar.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// Search the parameters of a transport that suit a scenario best.
///
/// Varies the few keys that the transport's paper names, one after the other, in steps from the
/// values for this fabric, for the lowest 99th percentile of slowdown of the measured messages, with
/// no unfinished ones; where load waits for messages to end, also at a goodput within 1 % of the
/// best. That of background streams is printed and decides nothing. Runs of the search have an
/// eighth of the messages; the best are run in full. Prints what was found as a case of a sweep. The result does not depend on --jobs.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave tune quickstart --transport dctcp\n  \
    rackweave tune my.toml --transport homa,dctcp,swift --out tuned.toml\n\n\
    Exit codes: 0 done, 1 messages did not end, 2 wrong usage, 130 interrupted.")]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    pub(crate) search: SearchArgs,
    /// Transports to search for, with commas.
    #[arg(long, value_name = "NAME", required = true, value_delimiter = ',')]
    pub(crate) transport: Vec<String>,
    /// File for the scenario with what was found, as a sweep over the transports.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

/// Search the smallest buffer or the fewest uplinks that serve a scenario as well as the best fabric.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave size buffer my.toml --transport homa,dctcp\n  \
    rackweave size links my.toml --within 10\n\n\
    Exit codes: 0 done, 2 wrong usage, or no messages to compare, 130 interrupted.")]
pub(crate) struct SizeArgs {
    /// What is to be small: the switches' `buffer` of each port, or the `links` above racks.
    #[arg(value_name = "WHAT")]
    pub(crate) what: WhatArg,
    #[command(flatten)]
    pub(crate) search: SearchArgs,
    /// Transports to search for, with commas (default: the scenario's).
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) transport: Vec<String>,
    /// How much higher the 99th percentile of slowdown may be than on the best fabric, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) within: u16,
    /// Print only a JSON document on standard output.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WhatArg {
    /// The smallest `fabric.switch.buffer`.
    Buffer,
    /// The largest `fabric.oversubscription`.
    Links,
}

/// Combine the shards of a sweep into the results of one run.
///
/// Writes the files that one run of all points would have written, except for clocks: `wall_s` is the
/// sum of the points' processor times. All points must be finished.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave merge out/shards --out out/all\n  \
    rackweave merge node1/shards node2/shards --out out/all\n\n\
    Exit codes: 0 done, 1 something failed in a point, 2 wrong usage, or points are missing.")]
pub(crate) struct MergeArgs {
    /// Directories that `rackweave run` has written with --shard or --resume.
    #[arg(value_name = "DIR", required = true)]
    pub(crate) folders: Vec<PathBuf>,
    /// Directory for the results; may be one of the others.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Write every table as a Parquet file too, as `run --parquet` does.
    #[arg(long)]
    pub(crate) parquet: bool,
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

/// Run a scenario for real: one process per host, joined by a user-space switch at line rate.
///
/// Reads and writes the same files as `run`. Each host is a network namespace with a link to the
/// switch, which requires root; with --overlay it is a UDP socket on loopback, which requires no privileges.
/// Transports are the simulator's code. TCP is the kernel's, except in the overlay.
#[cfg(feature = "hosts")]
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave testbed testbed-incast --overlay\n  \
    rackweave testbed testbed --set 'sweep.transport.name=[\"homa\", \"tcp\"]'\n\n\
    Exit codes: 0 done, 1 ran and something failed, 2 wrong usage or file, or refused, 130 interrupted.")]
pub(crate) struct TestbedArgs {
    /// Scenario file, or a built-in one (`rackweave list scenarios`).
    #[arg(value_name = "SCENARIO.toml", add = generate::scenarios())]
    pub(crate) scenario: String,
    /// Make hosts UDP sockets on loopback: no root, no kernel TCP.
    #[arg(long)]
    pub(crate) overlay: bool,
    /// Set a key, replacing its value in the file, or a sweep over it.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Random seed of what is sent (default: the scenario's).
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    pub(crate) seed: Option<u64>,
    /// Directory for the results (default: out/NAME.testbed).
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Write every table as a Parquet file too, as `run --parquet` does.
    #[arg(long)]
    pub(crate) parquet: bool,
    /// Print every column of tables, as to a file or pipe.
    #[arg(long)]
    pub(crate) wide: bool,
    /// Print only summary.json on standard output.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print neither a progress bar nor a table.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// Measure what hosts cost on this machine, for `run --host`.
///
/// Runs two hosts and the switch process of the testbed under loads of its own, and derives the processor time of a
/// system call, a message, a packet and a byte, for sending and for receiving, and of the switch process. It also
/// measures how late timers and sleeping threads are. Namespaces require root; without it, or with --overlay, hosts are UDP
/// sockets on loopback, and the command reports what is missing. The file is written only when everything is measured.
#[cfg(feature = "hosts")]
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    sudo rackweave calibrate host.toml\n  \
    rackweave run two-worlds-load --host host.toml\n  \
    rackweave calibrate --overlay --json | jq .host.send_packet_ns\n\n\
    Exit codes: 0 done, 1 the figures cannot be used, 2 wrong usage, or it cannot be measured here, 130 interrupted.")]
pub(crate) struct CalibrateArgs {
    /// The file to write; without it the table is printed.
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Make hosts UDP sockets on loopback, which needs no privileges.
    #[arg(long)]
    pub(crate) overlay: bool,
    /// Number of rounds, whose medians count.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(3..=1000))]
    pub(crate) rounds: u32,
    /// Run each load for this time in a round. Shorter loads are measured less exactly.
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(200..=60_000))]
    pub(crate) load_ms: u32,
    /// Print only JSON on standard output.
    #[arg(long)]
    pub(crate) json: bool,
    /// Show no progress bar, and print no summary.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[cfg(feature = "hosts")]
#[derive(Debug, clap::Args)]
pub(crate) struct WorkerArgs {
    /// The worker's name, which shows in the list of processes.
    pub(crate) name: String,
}

/// Reproduce the claims of papers, and report which of them hold.
///
/// For each claim it prints the paper's numbers, the numbers measured here, and whether and why the claim
/// holds, and it redraws the papers' figures. A claim that does not hold is a result, not a failure.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave paper --quick\n  \
    rackweave paper polo --out out/polo\n  \
    rackweave paper --page out/polo out/orca --out out/page  # one page of finished runs\n  \
    rackweave paper --claim homa-sigcomm --json | jq '.claims[] | {id, holds, here}'\n\n\
    Exit codes: 0 every claim was decided, 1 one could not be, 2 wrong usage or file, 130 interrupted.")]
pub(crate) struct PaperArgs {
    /// A paper (dcpim, homa, orca, ordc, pfabric, polo, sird, swift, swp2p, two-worlds, uet), or a claims file (default: all papers).
    #[arg(value_name = "PAPER")]
    pub(crate) paper: Option<String>,
    /// Simulate hosts with the costs of this file (`rackweave calibrate`).
    #[arg(long, value_name = "FILE")]
    pub(crate) host: Option<PathBuf>,
    /// Set a key in all scenarios, for an experiment.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Run only this claim; may be repeated (see --list).
    #[arg(long = "claim", value_name = "ID")]
    pub(crate) claims: Vec<String>,
    /// Use smaller sizes and fewer repetitions: minutes instead of hours.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Draw the page of results in these directories instead of running claims.
    #[arg(long, value_name = "DIR", num_args = 1.., conflicts_with_all = ["paper", "host", "sets", "claims", "quick", "jobs", "threads", "list"])]
    pub(crate) page: Vec<PathBuf>,
    /// Directory for figures and results (default: out/papers).
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print only claims.json on standard output.
    #[arg(long)]
    pub(crate) json: bool,
    /// Points to run in parallel (default: one per core, or one for each `--threads` cores).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) jobs: Option<u16>,
    /// Threads for each point of 256 hosts or more. Results are the same.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: u16,
    /// List the claims without running them.
    #[arg(long)]
    pub(crate) list: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// What to list. Default: the topics.
    pub(crate) topic: Option<TopicArg>,
    /// Print the list as JSON.
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
    /// Built-in scenarios, and scenario files in this directory.
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
