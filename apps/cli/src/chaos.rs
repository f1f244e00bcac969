//! `rackweave chaos`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum;
use miette::IntoDiagnostic as _;
use rackweave_chaos::{self as chaos, Chaos, Product, Report};
use rackweave_lab::output::OutputDir;

use crate::progress::Progress;
use crate::run::warn;
use crate::shell::signal::stop_on_ctrl_c;
use crate::shell::{exit, print};

/// Run random scenarios with random faults, and check what must hold in all of them.
///
/// Each seed draws a fabric, a workload, and faults of links and hosts: packets are lost, damaged, repeated and
/// delayed, links fail, hosts stand still, and crash and return. Nothing wrong may be delivered, and whoever can be reached must
/// get everything. A seed that fails is written to a scenario file, which gives the same run again.
///
/// `fetch`, `rpc` and `store` simulate processes too. `fetch`: images are written to disks that lose what was not synced. `rpc`: processes are killed and started again, and somebody replays and forges
/// datagrams. `store`: processes are killed in the middle of what they write, machines lose power, disks fail and fill up. The file of a
/// seed that fails has the trace of its run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave chaos messages --seeds 10000\n  \
    rackweave chaos reduce --seed 17 --print      print the scenario of a seed\n  \
    rackweave chaos rpc --seeds 1000\n  \
    rackweave chaos store --seeds 1000\n  \
    rackweave chaos cast --first 1000 --seeds 500 --json | jq .failures\n\n\
    Exit codes: 0 all seeds hold, 1 one does not, 2 wrong usage, 130 interrupted.")]
pub(crate) struct ChaosArgs {
    /// What is tried.
    #[arg(value_enum)]
    product: ProductName,
    /// The number of seeds.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed.
    #[arg(long, value_name = "N", default_value_t = 0)]
    first: u64,
    /// Run this seed only.
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "first"])]
    seed: Option<u64>,
    /// Print the scenario of the first seed, without running it.
    #[arg(long)]
    print: bool,
    /// Seeds to run in parallel (default: one per core).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Directory for the scenarios of seeds that fail (default: out/chaos).
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ProductName {
    /// Messages and calls over every transport.
    Messages,
    /// Files from one host to many.
    Cast,
    /// Images from one host to many.
    Image,
    /// Pairs that are added up on their way.
    Reduce,
    /// Vectors that are added up on their way.
    Allreduce,
    /// Images that are written to disks, by processes that are killed.
    Fetch,
    /// Calls and streams between processes that are killed, with and without a key.
    Rpc,
    /// Files from one host to many, with processes that are killed and disks that lose what was not synced.
    Store,
}

impl From<ProductName> for Product {
    fn from(name: ProductName) -> Self {
        match name {
            ProductName::Messages => Self::Messages,
            ProductName::Cast => Self::Cast,
            ProductName::Image => Self::Image,
            ProductName::Reduce => Self::Reduce,
            ProductName::Allreduce => Self::Allreduce,
            ProductName::Fetch => Self::Fetch,
            ProductName::Rpc => Self::Rpc,
            ProductName::Store => Self::Store,
        }
    }
}

pub(crate) fn chaos(args: &ChaosArgs) -> miette::Result<u8> {
    let product = Product::from(args.product);
    let (first, seeds) = args.seed.map_or((args.first, args.seeds), |seed| (seed, 1));
    if args.print {
        return print(&chaos::scenario(product, first));
    }
    let chaos = Arc::new(Chaos::new(product, first, seeds));
    stop_on_ctrl_c(&chaos, Chaos::cancel)?;
    let progress = Progress::start(&chaos, Chaos::progress, true);
    let report = chaos.run(args.jobs.map(usize::from));
    drop(progress);
    let report = report?;
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from("out/chaos"));
    write_failures(&report, &out)?;
    if args.json {
        print(&format!("{:#}\n", serde_json::to_value(&report).into_diagnostic()?))?;
    } else {
        print(&text(&report, &out))?;
    }
    if report.interrupted {
        warn("Interrupted: the remaining seeds were not run.");
        return Ok(exit::INTERRUPTED);
    }
    Ok(if report.failures.is_empty() { exit::DONE } else { exit::FAILED })
}

fn file(report: &Report, seed: u64) -> String {
    format!("chaos-{}-{seed}.toml", report.product)
}

/// Returns the command that repeats the run of a seed.
fn again(report: &Report, path: &Path, seed: u64) -> String {
    let has_file = |product: &Product| product.has_files() && report.product == product.name();
    if !Product::ALL.iter().any(has_file) {
        let (product, path) = (report.product, path.display());
        return format!("rackweave chaos {product} --seed {seed}    # its trace: {path}");
    }
    format!("rackweave run {}", path.display())
}

fn write_failures(report: &Report, out: &Path) -> miette::Result<()> {
    if report.failures.is_empty() {
        return Ok(());
    }
    let out = OutputDir::prepare(out)?;
    for failure in &report.failures {
        let path = out.path().join(file(report, failure.seed));
        std::fs::write(&path, &failure.scenario)
            .map_err(|error| miette::miette!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}

fn text(report: &Report, out: &Path) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    for failure in &report.failures {
        let path = out.join(file(report, failure.seed));
        let _ = writeln!(text, "seed {}: {}", failure.seed, failure.why);
        let _ = writeln!(text, "  {}", again(report, &path, failure.seed));
    }
    let last = report.first.wrapping_add(report.seeds).wrapping_sub(1);
    let _ = writeln!(
        text,
        "{}: {} seeds from {} to {last}, {} failed; {} messages, of which faults ended {}; \
         {} packet hops, {} dropped; digest {}",
        report.product,
        report.seeds,
        report.first,
        report.failures.len(),
        report.messages,
        report.failed,
        report.packet_hops,
        report.drops,
        report.digest
    );
    text
}
