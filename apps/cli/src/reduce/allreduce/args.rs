//! Arguments of `rackweave reduce allreduce`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use rackweave_core::{Bytes, Span};

use super::super::hosts_args::{OutputArgs, OverlayArgs, address, some_time};

/// Add up the vectors of many workers, such as gradients: each worker gets the sum of all.
///
/// A switch adds up on the way (SwitchML's scheme), or the master's host does. All workers get the same bits, whatever is lost, repeated
/// or started again: integers are added modulo 2^64, floats as block floating point (docs/ops/allreduce.md). Programs can call the same
/// as a library: `rackweave_reduce::AllReduce`.
#[derive(Debug, clap::Args)]
pub(crate) struct AllReduceArgs {
    #[command(subcommand)]
    pub(super) command: AllReduceCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum AllReduceCommand {
    Master(MasterArgs),
    Worker(WorkerArgs),
    Bench(BenchArgs),
}

/// Form a group of workers, and add up their vectors where no switch does.
///
/// Length and type are those of the first worker that joins; workers with others are refused.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave reduce allreduce master --workers 2\n  \
    rackweave reduce allreduce master --workers 2 --switch 172.16.0.0\n  \
    rackweave reduce allreduce master --workers 2 --overlay 127.0.0.1:4100 --me 0 --switch 0\n\n\
    The kernel's switch (`rackweave switch --bpf`) does not add up vectors; the user-space switch does.\n\
    Nothing is encrypted, and there is no key: any host that reaches the master can join as a worker that has not joined yet.\n\n\
    Exit codes: 0 all workers have the sum, 1 the job failed, 2 wrong usage, 130 interrupted.")]
pub(super) struct MasterArgs {
    /// Number of workers.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(super) workers: u8,
    #[command(flatten)]
    pub(super) job: JobArgs,
    /// Address to receive at; with --switch its port must be 6731.
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:6731", value_parser = address, conflicts_with = "overlay")]
    pub(super) listen: SocketAddr,
    #[command(flatten)]
    pub(super) overlay: OverlayArgs,
    /// The switch that adds up: its IPv4 address; with --overlay its number.
    #[arg(long, value_name = "ADDR|N")]
    pub(super) switch: Option<String>,
    /// Fail if the switch cannot be used, instead of adding up here.
    #[arg(long, requires = "switch")]
    pub(super) require_switch: bool,
    #[command(flatten)]
    pub(super) pool: PoolArgs,
    /// How long to wait for all workers to join.
    #[arg(long, value_name = "TIME", default_value = "600 s", value_parser = some_time)]
    pub(super) wait: Span,
    /// Print what was added up as one line of JSON on standard output.
    #[arg(long)]
    pub(super) json: bool,
    /// Print neither progress nor a summary.
    #[arg(long, short)]
    pub(super) quiet: bool,
}

/// What master and workers of a job must agree on.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct JobArgs {
    /// Number of the job, one of its own on a switch.
    #[arg(long = "job", value_name = "ID", default_value_t = 1)]
    pub(super) number: u16,
    /// How long to wait for a silent host.
    #[arg(long, value_name = "TIME", default_value = "30 s", value_parser = some_time)]
    pub(super) patience: Span,
}

/// How vectors are sent.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct PoolArgs {
    /// Chunks that each worker has in flight, if the switch has room.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) pool: u16,
    /// Bytes of a chunk; those of floats share an exponent.
    #[arg(long, value_name = "BYTES", default_value_t = 1024, value_parser = clap::value_parser!(u16).range(8..=1400))]
    pub(super) chunk: u16,
}

/// Add the values of a file to those of the other workers, and write the sums.
///
/// The file has the values one after the other, in little-endian order, as `numpy.ndarray.tofile` writes them. All workers' files must
/// have the same number of values. A worker that dies and is started again with the same arguments takes its place again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave reduce allreduce worker --master 192.0.2.1 --worker 0 --type f32 gradients.bin --out sum.bin\n  \
    rackweave reduce allreduce worker --master 0 --worker 1 --overlay 127.0.0.1:4100 --me 2 --type i64 counts.bin --out sum.bin\n\n\
    Exit codes: 0 all workers have the sum, and it is written here; 1 the job or writing failed, 2 wrong usage or input, 130 interrupted.")]
pub(super) struct WorkerArgs {
    /// The master's address (default port 6731); with --overlay the number of its host.
    #[arg(long, value_name = "ADDR|N")]
    pub(super) master: String,
    /// Number of this worker, from 0.
    #[arg(long, value_name = "I", value_parser = clap::value_parser!(u8).range(..64))]
    pub(super) worker: u8,
    #[command(flatten)]
    pub(super) job: JobArgs,
    /// Address to send from (default: port 6731 if free and the master elsewhere, else any).
    #[arg(long, value_name = "ADDR", value_parser = address, conflicts_with = "overlay")]
    pub(super) bind: Option<SocketAddr>,
    #[command(flatten)]
    pub(super) overlay: OverlayArgs,
    /// What the values are.
    #[arg(long = "type", value_name = "TYPE")]
    pub(super) kind: TypeArg,
    /// File with the values; `-` is standard input.
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// Measure how fast workers in this process add up vectors: through a switch that adds up, and through a host.
///
/// Workers, master and the user-space switch are threads that share the processors, so the rates compare the ways with each other, and
/// are not those of machines. Vectors are random, and every sum is compared with the right one, bit for bit. A ring of workers exists
/// in the simulator only (`rackweave run allreduce`).
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave reduce allreduce bench\n  \
    rackweave reduce allreduce bench --workers 8 --size 16MB --type i64 --json\n\n\
    Exit codes: 0 all sums were right, 1 failed, 2 wrong usage, 130 interrupted.")]
pub(super) struct BenchArgs {
    /// Number of workers.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(super) workers: u8,
    /// Length of a vector.
    #[arg(long, value_name = "BYTES", default_value = "4 MB")]
    pub(super) size: Bytes,
    /// How many vectors are added up one after the other.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) steps: u32,
    /// What the values are.
    #[arg(long = "type", value_name = "TYPE", default_value = "f32")]
    pub(super) kind: TypeArg,
    #[command(flatten)]
    pub(super) pool: PoolArgs,
    /// Slots of the switch.
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(16..=1 << 26))]
    pub(super) slots: u32,
    /// Random seed of the vectors.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Print each result as one line of JSON on standard output.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum TypeArg {
    /// Integers of 64 bits, added modulo 2^64.
    I64,
    /// Floats of 32 bits, added as block floating point.
    F32,
}
