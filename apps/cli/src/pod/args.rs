//! Arguments of `rackweave pod`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Subcommand;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use rackweave_core::Span;
use rackweave_rackless::inc::Order;

use crate::reduce::args::PlannerArgs;

// Descriptions are those of the arguments' types.
#[derive(Debug, Subcommand)]
pub(crate) enum PodCommand {
    Control(Box<ControlArgs>),
    /// List the jobs of this tenant.
    Jobs(AskArgs),
    Submit(SubmitArgs),
    /// Show the circuits that are planned for the next periods.
    Plan(AskArgs),
    /// Show which server is below which ToR.
    Circuits(AskArgs),
    Top(TopArgs),
}

/// Run the controller of a pod: it registers jobs, plans which server is below which ToR, and lets one upload after the other have the
/// programmable ToR (P4-ORDC).
///
/// Masters register with `rackweave reduce master --pod`, and switches with `rackweave switch --pod`. Jobs, grants and circuits are in
/// the database: a controller that is killed and started again adopts what runs. A page at the address of --listen shows the pod.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave pod control --pod pod.toml --database pod.redb\n  \
    rackweave pod control --pod pod.toml --database pod.redb --listen 0.0.0.0:6790 --tenants tenants --agents 0.0.0.0:6791 --key-file key\n\n\
    Exit codes: 0 ended by Ctrl-C, 1 failed, 2 wrong usage or file.")]
pub(crate) struct ControlArgs {
    /// The pod (docs/ops/reduce-plan.md has its keys).
    #[arg(long, value_name = "FILE.toml")]
    pub(super) pod: PathBuf,
    /// File of the database, which is created if it does not exist.
    #[arg(long, value_name = "FILE")]
    pub(super) database: PathBuf,
    /// Where masters, commands and browsers ask, by HTTP.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6790")]
    pub(super) listen: SocketAddr,
    /// Where agents of switches report, by encrypted UDP.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6791")]
    pub(super) agents: SocketAddr,
    /// Key of the pod's controllers and switches; needed unless --agents is loopback.
    #[arg(long, value_name = "FILE")]
    pub(super) key_file: Option<PathBuf>,
    /// Tenants: lines of a name and a token; needed unless --listen is loopback.
    #[arg(long, value_name = "FILE")]
    pub(super) tenants: Option<PathBuf>,
    /// Another name by which browsers call this host; may be repeated.
    #[arg(long = "name", value_name = "NAME")]
    pub(super) names: Vec<String>,
    /// Which of the waiting uploads is next (alternating: groups of servers by turns).
    #[arg(long, value_name = "NAME", default_value = "first-come", value_parser = orders())]
    pub(super) order: Order,
    /// Uploads that have the programmable ToR at a time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(super) uploads: u32,
    /// Length of a period of the forecast.
    #[arg(long, value_name = "TIME", default_value = "200 ms", value_parser = period)]
    pub(super) period: Span,
    /// Periods that are planned at a time.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(super) horizon: u16,
    #[command(flatten)]
    pub(super) planner: PlannerArgs,
    /// How long an upload waits for its circuits.
    #[arg(long, value_name = "TIME", default_value = "2 s")]
    pub(super) patience: Span,
    /// Silence after which a master or switch is given up.
    #[arg(long, value_name = "TIME", default_value = "30 s", value_parser = silence)]
    pub(super) silence: Span,
    /// Print events as lines of JSON on standard output.
    #[arg(long)]
    pub(super) json: bool,
}

/// Which controller, and as whom.
#[derive(Debug, clap::Args)]
pub(crate) struct AskArgs {
    /// The controller.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:6790")]
    pub(super) url: String,
    /// File with the tenant's token.
    #[arg(long, value_name = "FILE")]
    pub(super) token: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// Show the pod once a second: who commands, circuits, switches and jobs.
#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// Show it once.
    #[arg(long)]
    pub(super) once: bool,
    #[command(flatten)]
    pub(super) ask: AskArgs,
}

/// Register a job whose master is another program, and print its number.
///
/// The master reports the job's phases itself: docs/ops/pod.md has the requests.
#[derive(Debug, clap::Args)]
pub(crate) struct SubmitArgs {
    /// What the job declares, as JSON.
    #[arg(value_name = "JOB.json")]
    pub(super) job: PathBuf,
    #[command(flatten)]
    pub(super) ask: AskArgs,
}

/// Parses an order by its name.
fn orders() -> impl TypedValueParser<Value = Order> {
    PossibleValuesParser::new(Order::ALL.map(Order::name))
        .map(|text| Order::ALL.into_iter().find(|it| it.name() == text).unwrap_or(Order::FirstCome))
}

fn at_least(text: &str, least: Span) -> Result<Span, String> {
    let span = text.parse::<Span>().map_err(|error| error.to_string())?;
    if span < least { Err(format!("at least {least}")) } else { Ok(span) }
}

fn period(text: &str) -> Result<Span, String> {
    at_least(text, Span::from_ms(1))
}

fn silence(text: &str) -> Result<Span, String> {
    at_least(text, Span::from_secs(5))
}
