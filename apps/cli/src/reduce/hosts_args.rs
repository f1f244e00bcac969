//! Arguments of `rackweave reduce master`, `worker` and `wordcount`.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::shell::values;
use clap::ValueEnum;
use rackweave_core::Span;
use rackweave_reduce::JobMove;
use rackweave_reduce::words::Split;

/// Collect the pairs of the workers of a job, and write the combined values of all keys.
///
/// Without --switch the master adds up what workers send to it, at any UDP addresses. With it, workers send to the switch, which adds up
/// values of equal keys on the way; a switch that is absent, restarts or has no room changes only how much reaches the master, never the
/// result. The result has a line for each key in the order of the keys' bytes: the key, a tab, its value; tab, line feed, carriage return and backslash
/// in keys are written as \t, \n, \r and \\.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave reduce master --workers 3 --out counts.tsv\n  \
    rackweave reduce master --workers 3 --switch 172.16.0.0 --slots 16384 --out counts.tsv\n  \
    rackweave reduce master --workers 3 --overlay 127.0.0.1:4100 --me 0 --switch 0 > counts.tsv\n  \
    rackweave reduce master --workers 3 --overlay 127.0.0.1:4100 --me 0 --pod http://192.0.2.1:6790 --out counts.tsv\n  \
    rackweave reduce master --workers 3 --overlay 127.0.0.1:4100 --me 0 --switch 0 --ocs ocs.sock --move 200ms=1,0,0,0 --out counts.tsv\n\n\
    Nothing is encrypted, and there is no key: any host that reaches the master can join as a worker that has not joined yet.\n\n\
    Exit codes: 0 the result is whole and written, 1 the job or writing failed, 2 wrong usage, 130 interrupted.")]
pub(crate) struct MasterArgs {
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
    /// Slots to ask the switch for. Few suffice.
    #[arg(long, value_name = "N", default_value_t = 16_384, requires = "switch", value_parser = clap::value_parser!(u32).range(16..))]
    pub(super) slots: u32,
    /// Fail if the switch cannot be used, instead of adding up here.
    #[arg(long, requires = "switch")]
    pub(super) require_switch: bool,
    #[command(flatten)]
    pub(super) circuits: CircuitArgs,
    #[command(flatten)]
    pub(super) pod: PodArgs,
    /// How long to wait for all workers to join.
    #[arg(long, value_name = "TIME", default_value = "600 s", value_parser = some_time)]
    pub(super) wait: Span,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// Changes of circuits in the middle of a job.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CircuitArgs {
    /// Control channel of the switch (`rackweave switch --control`), for --move.
    #[arg(long, value_name = "PATH", requires = "moves")]
    pub(super) ocs: Option<PathBuf>,
    /// Change the circuits this long after the upload's start: the ToR of each server in turn. May
    /// be repeated.
    #[arg(long = "move", value_name = "TIME=TOR,TOR,...", requires = "ocs", value_parser = super::circuits::job_move)]
    pub(super) moves: Vec<JobMove>,
    /// Do not stop the job while circuits change.
    #[arg(long, requires = "ocs")]
    pub(super) no_quiesce: bool,
}

/// The controller of a pod, which assigns the number of the job and says when it uploads.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PodArgs {
    /// Register at this controller (`rackweave pod control`): it assigns the number of the job, which
    /// `ready` names, and the slots.
    #[arg(id = "pod", long = "pod", value_name = "URL", conflicts_with_all = ["number", "require_switch", "ocs"])]
    pub(super) url: Option<String>,
    /// File with the tenant's token.
    #[arg(id = "pod_token", long = "pod-token", value_name = "FILE", requires = "pod")]
    pub(super) token: Option<PathBuf>,
    /// What the job declares, as JSON (see docs/ops/pod.md).
    #[arg(id = "pod_job", long = "pod-job", value_name = "FILE", requires = "pod")]
    pub(super) declared: Option<PathBuf>,
    /// Name of the job: what is learned of one is expected of the next of its name (default: reduce).
    #[arg(id = "pod_name", long = "pod-name", value_name = "NAME", requires = "pod")]
    pub(super) name: Option<String>,
    /// Servers of the master and of each worker (default: with --overlay, their numbers).
    #[arg(
        id = "pod_servers",
        long = "pod-servers",
        value_name = "M,W,...",
        requires = "pod",
        value_delimiter = ','
    )]
    pub(super) servers: Vec<u32>,
    /// How long to wait for the controller and for the upload's turn; then it begins without them.
    #[arg(id = "pod_wait", long = "pod-wait", value_name = "TIME", default_value = "60 s", requires = "pod", value_parser = some_time)]
    pub(super) wait: Span,
}

/// What master and workers of a job must agree on.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct JobArgs {
    /// Number of the job, one of its own on a switch.
    #[arg(long = "job", value_name = "ID", default_value_t = 1)]
    pub(super) number: u16,
    /// How values of equal keys are combined.
    #[arg(long, value_name = "HOW", default_value = "sum")]
    pub(super) operator: OperatorArg,
    /// How long to wait for a silent host.
    #[arg(long, value_name = "TIME", default_value = "30 s", value_parser = some_time)]
    pub(super) patience: Span,
}

/// A user-space switch whose hosts are attached by UDP ports.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct OverlayArgs {
    /// Use the UDP ports of a `rackweave switch --listen` at this address.
    #[arg(long, value_name = "ADDR", value_parser = address, requires = "me")]
    pub(super) overlay: Option<SocketAddr>,
    /// With --overlay: the number of this host at the switch.
    #[arg(long, value_name = "N", requires = "overlay", value_parser = clap::value_parser!(u32).range(..1 << 24))]
    pub(super) me: Option<u32>,
}

/// Where a result goes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct OutputArgs {
    /// File for the result (default: standard output).
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
    /// Print events as lines of JSON, the last one with what was sent and received; requires --out.
    #[arg(long, requires = "out")]
    pub(super) json: bool,
    /// Print neither progress nor a summary.
    #[arg(long, short)]
    pub(super) quiet: bool,
}

/// Send pairs of key and value to the master of a job: the words of files, or pairs from a file or a program.
///
/// Values of equal keys are combined before they are sent. A worker that dies and is started again with the same arguments
/// takes its place again; what was not yet collected is sent again then.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave reduce worker --master 192.0.2.1 --worker 0 /usr/share/doc\n  \
    rackweave reduce worker --master 0 --worker 1 --overlay 127.0.0.1:4100 --me 2 text.txt\n  \
    generate | rackweave reduce worker --master 192.0.2.1 --worker 2 --operator max --pairs -\n\n\
    Exit codes: 0 the master has written the result, 1 the job failed, 2 wrong usage or input, 130 interrupted.")]
pub(crate) struct WorkerArgs {
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
    /// Send lines of key, tab and value instead of words, escaped as in results. `-` is standard
    /// input.
    #[arg(long, value_name = "FILE", conflicts_with = "paths", required_unless_present = "paths")]
    pub(super) pairs: Option<PathBuf>,
    /// With --pairs: they must end with a line `\.`, so that their writer's death is noticed.
    #[arg(long, requires = "pairs")]
    pub(super) complete: bool,
    #[command(flatten)]
    pub(super) words: WordsArgs,
    /// Files and directories whose words are counted.
    #[arg(value_name = "PATH")]
    pub(super) paths: Vec<PathBuf>,
    /// Print what was sent as one line of JSON on standard output.
    #[arg(long)]
    pub(super) json: bool,
    /// Print nothing but errors.
    #[arg(long, short)]
    pub(super) quiet: bool,
}

/// What a word is.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct WordsArgs {
    /// What a word is.
    #[arg(long = "words", value_name = "HOW", default_value = "space")]
    pub(super) split: SplitArg,
}

/// Count the words of files and directories in this process: a master, workers, and a switch that adds up between them.
///
/// The text is divided among the workers. The hosts are threads that are joined by a user-space switch on loopback, as separate processes and
/// machines are joined by `rackweave switch`; with --no-switch the workers send to the master. The result is the same.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave reduce wordcount /usr/share/doc --out counts.tsv\n  \
    rackweave reduce wordcount text.txt --workers 7 --slots 16384 > counts.tsv\n\n\
    Exit codes: 0 the result is whole and written, 1 failed, 2 wrong usage, 130 interrupted.")]
pub(crate) struct WordCountArgs {
    /// Files and directories whose words are counted.
    #[arg(value_name = "PATH", required = true)]
    pub(super) paths: Vec<PathBuf>,
    /// Number of workers.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(super) workers: u8,
    /// Slots of the switch.
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(16..=1 << 26))]
    pub(super) slots: u32,
    /// Let the master add up.
    #[arg(long, conflicts_with = "slots")]
    pub(super) no_switch: bool,
    #[command(flatten)]
    pub(super) words: WordsArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OperatorArg {
    /// Their sum, modulo 2^64.
    Sum,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// Their number.
    Count,
}

impl From<OperatorArg> for rackweave_reduce::Operator {
    fn from(arg: OperatorArg) -> Self {
        match arg {
            OperatorArg::Sum => Self::Sum,
            OperatorArg::Min => Self::Min,
            OperatorArg::Max => Self::Max,
            OperatorArg::Count => Self::Count,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum SplitArg {
    /// Whatever is between spaces, tabs, line feeds, form feeds and carriage returns, as in Hadoop's word count.
    Space,
    /// Letters from A to Z, in lower case.
    Letters,
}

impl From<SplitArg> for Split {
    fn from(arg: SplitArg) -> Self {
        match arg {
            SplitArg::Space => Self::Space,
            SplitArg::Letters => Self::Letters,
        }
    }
}

/// Parses `HOST` or `HOST:PORT`.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    values::address(text, rackweave_reduce::PORT)
}

pub(super) fn some_time(text: &str) -> Result<Span, String> {
    match text.parse::<Span>() {
        Ok(span) if span > Span::ZERO && span <= Span::from_secs(1_000_000) => Ok(span),
        Ok(_) => Err("must be more than nothing, and at most 1000000 s".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
