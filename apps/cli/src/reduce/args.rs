//! Arguments of `rackweave reduce`.

use std::path::PathBuf;

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use rackweave_core::{Rate, Span};
use rackweave_rackless::cost::{Reconfiguration, Scope};
use rackweave_rackless::fabric::{Architecture, Reach};
use rackweave_rackless::plan::{Algorithm, Options};

/// Plan which server is below which ToR, and when, for a recorded trace.
///
/// Servers are joined to ToRs by an optical switch, and programmable ToRs aggregate uploads (P4-ORDC). For each period of the
/// trace the plan has a configuration; the time of a period is that of its busiest link. Prints the plan with what
/// it absorbs and moves, next to a fixed configuration and, for small pods, the best plan.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave reduce plan scenarios/reduce-two-groups.csv\n  \
    rackweave reduce plan trace.csv --tors 4,2,2 --programmable 0 --delay 10ms --scope moved\n  \
    rackweave reduce plan trace.csv --pod pod.toml --algorithm eclipse --format json | jq .total_s\n\n\
    The trace has a line for each transfer: period (or start_s and end_s), src, dst, bytes, and as needed job, kind (data, \
    upload, broadcast) and distinct (bytes of the upload after aggregation). See docs/ops/reduce-plan.md.\n\n\
    Exit codes: 0 done, 2 wrong usage or file.")]
pub(crate) struct PlanArgs {
    /// The trace.
    #[arg(value_name = "TRACE.csv")]
    pub(super) trace: PathBuf,
    /// The pod (default: the options below).
    #[arg(long, value_name = "FILE.toml", conflicts_with_all = ["tors", "programmable", "slots", "uplinks", "link", "uplink_link", "servers"])]
    pub(super) pod: Option<PathBuf>,
    /// Server ports of each ToR.
    #[arg(long, value_name = "PORTS", value_delimiter = ',', default_value = "4,2,2")]
    pub(super) tors: Vec<u32>,
    /// Programmable ToR, from 0, or `none`; may be repeated.
    #[arg(long, value_name = "TOR", value_delimiter = ',', default_value = "0")]
    pub(super) programmable: Vec<String>,
    /// Key-value slots of each programmable ToR.
    #[arg(long, value_name = "N", default_value_t = 1 << 16, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) slots: u64,
    /// Uplinks of each ToR (default: one for two server ports).
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub(super) uplinks: Vec<u32>,
    /// Rate of the servers' links.
    #[arg(long, value_name = "RATE", default_value = "10 Gbps")]
    pub(super) link: Rate,
    /// Rate of an uplink (default: that of the servers' links).
    #[arg(long, value_name = "RATE")]
    pub(super) uplink_link: Option<Rate>,
    /// Number of servers (default: one for each server port).
    #[arg(long, value_name = "N")]
    pub(super) servers: Option<u32>,
    /// Length of a period, for a trace with start_s and end_s.
    #[arg(long, value_name = "TIME", default_value = "1 s", value_parser = some_time)]
    pub(super) period: Span,
    /// Time of a reconfiguration, until links are up again.
    #[arg(long, value_name = "TIME", default_value = "25 ms")]
    pub(super) delay: Span,
    /// Ports that are dark meanwhile.
    #[arg(long, value_name = "SCOPE", default_value = "all")]
    pub(super) scope: ScopeArg,
    #[command(flatten)]
    pub(super) planner: PlannerArgs,
    /// Architecture of the pod.
    #[arg(long, value_name = "NAME", default_value = "p4-ordc")]
    pub(super) architecture: ArchitectureArg,
    /// Restarts of each local search.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(..=10_000))]
    pub(super) restarts: u32,
    /// Random seed of the restarts.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Add the totals of all four architectures.
    #[arg(long)]
    pub(super) compare: bool,
    /// What to print.
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub(super) format: Format,
}

/// How circuits are planned.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct PlannerArgs {
    /// How plans are found.
    #[arg(long, value_name = "NAME", default_value = "heuristic")]
    pub(crate) algorithm: AlgorithmArg,
    /// Uploads that a programmable ToR adds up: what passes it, all by a detour, or those with all servers below it.
    #[arg(long, value_name = "NAME", default_value = "path", value_parser = reaches())]
    pub(crate) reach: Reach,
}

/// Parses a reach by its name.
fn reaches() -> impl TypedValueParser<Value = Reach> {
    PossibleValuesParser::new(Reach::ALL.map(Reach::name))
        .map(|text| Reach::ALL.into_iter().find(|it| it.name() == text).unwrap_or_default())
}

impl PlanArgs {
    /// The options of planning.
    pub(super) fn options(&self) -> Options {
        let reconfiguration = Reconfiguration { delay: self.delay, scope: self.scope.into() };
        let options = Options::new(self.planner.algorithm.into(), reconfiguration);
        Options { restarts: self.restarts, ..options }
    }
}

fn some_time(text: &str) -> Result<Span, String> {
    match text.parse::<Span>() {
        Ok(Span::ZERO) => Err("a period must have a length".to_owned()),
        result => result.map_err(|error| error.to_string()),
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Format {
    /// A table, with the totals below.
    Table,
    /// One JSON document.
    Json,
    /// A line for each period.
    Csv,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ScopeArg {
    /// All ports of the optical switch.
    All,
    /// Those of the moved servers.
    Moved,
}

impl From<ScopeArg> for Scope {
    fn from(arg: ScopeArg) -> Self {
        match arg {
            ScopeArg::All => Self::All,
            ScopeArg::Moved => Self::Moved,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum AlgorithmArg {
    /// The first configuration throughout.
    Fixed,
    /// The best plan that there is; for pods with at most 2000 configurations.
    Exact,
    /// Local search for periods and for windows of periods, and a dynamic program over what it finds.
    Heuristic,
    /// The best configuration for each period, whatever the delay.
    Greedy,
    /// Period by period without knowledge of later ones: a move must save more than it delays.
    Hysteresis,
    /// The configuration and number of periods with the most work per time, again and again.
    Eclipse,
}

impl From<AlgorithmArg> for Algorithm {
    fn from(arg: AlgorithmArg) -> Self {
        match arg {
            AlgorithmArg::Fixed => Self::Fixed,
            AlgorithmArg::Exact => Self::Exact,
            AlgorithmArg::Heuristic => Self::Heuristic,
            AlgorithmArg::Greedy => Self::Greedy,
            AlgorithmArg::Hysteresis => Self::Hysteresis,
            AlgorithmArg::Eclipse => Self::Eclipse,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ArchitectureArg {
    /// Fixed racks below packet switches, no aggregation.
    FatTree,
    /// An optical switch between servers and ToRs, no aggregation.
    Ordc,
    /// Fixed racks, an optical switch above the ToRs, aggregation.
    #[value(name = "p4inc-aoi")]
    P4IncAoi,
    /// An optical switch between servers and ToRs, aggregation.
    #[value(name = "p4-ordc")]
    P4Ordc,
}

impl From<ArchitectureArg> for Architecture {
    fn from(arg: ArchitectureArg) -> Self {
        match arg {
            ArchitectureArg::FatTree => Self::FatTree,
            ArchitectureArg::Ordc => Self::Ordc,
            ArchitectureArg::P4IncAoi => Self::P4IncAoi,
            ArchitectureArg::P4Ordc => Self::P4Ordc,
        }
    }
}
