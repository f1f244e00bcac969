//! Random scenarios with random faults, and what must hold in all of them, as TigerBeetle's VOPR does for its database
//! (docs/sources.md#what-is-cited).
//!
//! Each seed draws a scenario: a fabric, a workload, and faults of links and hosts ([`Product`] lists the workloads). The simulator runs it,
//! and an oracle checks that nothing wrong is delivered, and that whoever can be reached gets everything. A seed that fails is
//! kept as a scenario file, which gives the same run, byte for byte, as often as it is run.
//!
//! What runs is the code of hosts and switches below sockets. [`Product::Store`] and [`Product::Rpc`] simulate processes and clocks of
//! hosts too, and disks, each with a network of its own.

mod disk;
mod draw;
mod fetch;
mod oracle;
mod platform;
mod rpc;
mod store;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rackweave_lab::run::{Batch, PointEnd, Progress, RunError};
use rackweave_lab::scenario::{ScenarioText, World};
use rayon::prelude::*;

/// What is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// Messages and calls over every transport that repairs losses.
    Messages,
    /// Files from one host to many: Orca in all its ways of making copies, TCP to each, and chains of TCP.
    Cast,
    /// Images from one host to many: SWP2P with and without switches, Frisbee, and unicast.
    Image,
    /// Jobs whose pairs are added up by a switch or by their master.
    Reduce,
    /// Vectors that a switch, a host or a ring adds up.
    Allreduce,
    /// Images that are written to disks which lose what was not synced, by processes that are killed.
    Fetch,
    /// Calls, messages and streams between processes that are killed and started again, with a key or without one.
    Rpc,
    /// Files from one host to many, with processes that are killed and started again, and disks that lose what was not synced.
    Store,
}

impl Product {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Messages,
        Self::Cast,
        Self::Image,
        Self::Reduce,
        Self::Allreduce,
        Self::Fetch,
        Self::Rpc,
        Self::Store,
    ];

    /// Returns whether its scenarios are files for `rackweave run`.
    #[must_use]
    pub const fn has_files(self) -> bool {
        !matches!(self, Self::Fetch | Self::Rpc | Self::Store)
    }

    /// Its name in commands and files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Cast => "cast",
            Self::Image => "image",
            Self::Reduce => "reduce",
            Self::Allreduce => "allreduce",
            Self::Fetch => "fetch",
            Self::Rpc => "rpc",
            Self::Store => "store",
        }
    }
}

/// A seed whose run contradicts the oracle.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// What does not hold, as a sentence.
    pub why: String,
    /// The scenario.
    #[serde(skip)]
    pub scenario: String,
}

/// What many seeds gave.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Report {
    /// The name of the product.
    pub product: &'static str,
    /// The first seed.
    pub first: u64,
    /// The number of seeds that were run.
    pub seeds: u64,
    /// Packets that crossed a link, in all runs.
    pub packet_hops: u64,
    /// Messages, files, images, jobs and steps that were measured, in all runs.
    pub messages: u64,
    /// Those of them that failed for a reason that the faults permit.
    pub failed: u64,
    /// Packets that were dropped or lost.
    pub drops: u64,
    /// A hash of all results. It does not depend on the number of threads.
    pub digest: String,
    /// The seeds that failed, in order.
    pub failures: Vec<Failure>,
    /// Whether it was stopped before all seeds had been run.
    pub interrupted: bool,
}

#[derive(Debug, Default)]
struct Totals {
    seeds: AtomicU64,
    packet_hops: AtomicU64,
    events: AtomicU64,
    messages: AtomicU64,
    failed: AtomicU64,
    drops: AtomicU64,
    digest: AtomicU64,
}

/// A run of many seeds, which other threads can watch and stop.
#[derive(Debug)]
pub struct Chaos {
    product: Product,
    first: u64,
    seeds: u64,
    totals: Totals,
    failures: Mutex<Vec<Failure>>,
    cancelled: AtomicBool,
}

/// What a seed gave.
struct Ran {
    packet_hops: u64,
    events: u64,
    messages: u64,
    failed: u64,
    drops: u64,
    digest: u64,
    verdict: Result<(), String>,
}

/// Returns the scenario of a seed, which `rackweave run` can run if [`Product::has_files`].
#[must_use]
pub fn scenario(product: Product, seed: u64) -> String {
    match product {
        Product::Fetch => fetch::scenario(seed),
        Product::Rpc => rpc::scenario(seed),
        Product::Store => store::scenario(seed),
        _ => draw::scenario(product, seed).text,
    }
}

/// What is kept of a seed that failed: its scenario, and the trace of its run where `rackweave run` cannot repeat it.
fn kept(product: Product, seed: u64) -> String {
    match product {
        Product::Fetch => fetch::traced(seed),
        Product::Rpc => rpc::traced(seed),
        Product::Store => store::traced(seed),
        _ => scenario(product, seed),
    }
}

/// Appends the trace of a run to its scenario, as comments.
fn with_trace(mut scenario: String, trace: &[String]) -> String {
    scenario.push_str("\n# Trace\n");
    for line in trace {
        scenario.push_str("# ");
        scenario.push_str(line);
        scenario.push('\n');
    }
    scenario
}

fn run_seed(product: Product, seed: u64) -> Result<Ran, String> {
    match product {
        Product::Fetch => return fetch::run_seed(seed),
        Product::Rpc => return rpc::run_seed(seed),
        Product::Store => return store::run_seed(seed),
        _ => {}
    }
    let drawn = draw::scenario(product, seed);
    let file = format!("chaos-{}-{seed}.toml", product.name());
    let text = ScenarioText { file, text: drawn.text.clone(), folder: PathBuf::from(".") };
    let scenario = text
        .read(World::Simulator, &[], None)
        .map_err(|error| format!("the scenario cannot be read: {error}"))?;
    let batch = Batch::new(scenario);
    let point = match batch.simulate(0) {
        Err(error) => return Err(format!("the scenario cannot be run: {}", chain(&error))),
        Ok(PointEnd::Failed(failure)) => return Err(format!("panic: {}", failure.message)),
        Ok(PointEnd::Cancelled) => return Err("the run was cancelled".to_owned()),
        Ok(PointEnd::Finished(point)) => point,
    };
    let verdict = oracle::check(product, &drawn, &point);
    let mut summary = point.summary;
    summary.cpu_s = 0.0;
    let mut hasher = DefaultHasher::new();
    // A summary has no maps with keys that are not strings, and no reader that fails.
    serde_json::to_string(&summary).unwrap_or_default().hash(&mut hasher);
    (seed, product.name()).hash(&mut hasher);
    Ok(Ran {
        packet_hops: summary.packet_hops,
        events: summary.events,
        messages: summary.messages.started,
        failed: summary.messages.failed,
        drops: summary.drops,
        digest: hasher.finish(),
        verdict,
    })
}

fn chain(error: &RunError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

impl Chaos {
    /// Prepares the run of `seeds` seeds from `first` on.
    #[must_use]
    pub fn new(product: Product, first: u64, seeds: u64) -> Self {
        Self {
            product,
            first,
            seeds,
            totals: Totals::default(),
            failures: Mutex::default(),
            cancelled: AtomicBool::new(false),
        }
    }

    /// Stops when the seeds that are being run have ended.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Returns whether [`Chaos::cancel`] was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Returns the present progress; a point is a seed.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let done = self.totals.seeds.load(Ordering::Relaxed);
        Progress {
            points_done: done as usize,
            points: self.seeds as usize,
            fraction: done as f64 / self.seeds.max(1) as f64,
            events: self.totals.events.load(Ordering::Relaxed),
            messages: self.totals.messages.load(Ordering::Relaxed),
            ..Progress::default()
        }
    }

    /// Runs the seeds on `jobs` threads (`None` for one per core).
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn run(&self, jobs: Option<usize>) -> Result<Report, RunError> {
        let jobs = jobs.unwrap_or(0);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(jobs)
            .build()
            .map_err(|error| RunError::Threads { jobs, message: error.to_string() })?;
        pool.install(|| {
            (0..self.seeds).into_par_iter().for_each(|index| {
                if !self.is_cancelled() {
                    self.run_one(self.first.wrapping_add(index));
                }
            });
        });
        Ok(self.report())
    }

    fn run_one(&self, seed: u64) {
        let add = |to: &AtomicU64, number| to.fetch_add(number, Ordering::Relaxed);
        let verdict = match run_seed(self.product, seed) {
            Err(why) => Err(why),
            Ok(ran) => {
                let totals = &self.totals;
                add(&totals.packet_hops, ran.packet_hops);
                add(&totals.events, ran.events);
                add(&totals.messages, ran.messages);
                add(&totals.failed, ran.failed);
                add(&totals.drops, ran.drops);
                // A sum does not depend on the order.
                add(&totals.digest, ran.digest);
                ran.verdict
            }
        };
        if let Err(why) = verdict {
            let failure = Failure { seed, why, scenario: kept(self.product, seed) };
            if let Ok(mut failures) = self.failures.lock() {
                failures.push(failure);
            }
        }
        add(&self.totals.seeds, 1);
    }

    fn report(&self) -> Report {
        let get = |from: &AtomicU64| from.load(Ordering::Relaxed);
        let totals = &self.totals;
        let mut failures = self.failures.lock().map(|list| list.clone()).unwrap_or_default();
        failures.sort();
        let seeds = get(&totals.seeds);
        Report {
            product: self.product.name(),
            first: self.first,
            seeds,
            packet_hops: get(&totals.packet_hops),
            messages: get(&totals.messages),
            failed: get(&totals.failed),
            drops: get(&totals.drops),
            digest: format!("{:016x}", get(&totals.digest)),
            failures,
            interrupted: self.is_cancelled() && seeds < self.seeds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackweave_lab::study::StudySummary;

    #[test]
    fn the_first_seeds_of_each_product_hold_with_any_number_of_threads() {
        for product in Product::ALL {
            let [one, two] = [1, 2].map(|jobs| Chaos::new(product, 0, 12).run(Some(jobs)).unwrap());
            assert_eq!(one.failures, [], "{product:?}");
            assert_eq!((one.seeds, &one.digest), (12, &two.digest), "{product:?}");
            assert!(one.messages > 0 && one.packet_hops > 0, "{product:?}");
        }
    }

    #[test]
    fn a_seed_is_a_scenario_that_can_be_run_by_itself() {
        for product in Product::ALL.into_iter().filter(|product| product.has_files()) {
            let text = scenario(product, 7);
            assert_eq!(text, scenario(product, 7));
            assert_ne!(text, scenario(product, 8));
            let file = ScenarioText { file: "x.toml".into(), text, folder: PathBuf::from(".") };
            assert_eq!(file.read(World::Simulator, &[], None).unwrap().points.len(), 1);
        }
    }

    #[test]
    fn what_the_oracle_rejects_is_reported_with_its_seed() {
        let chaos = Chaos::new(Product::Reduce, 5, 2);
        let drawn = draw::scenario(Product::Reduce, 5);
        let text = ScenarioText {
            file: "x.toml".into(),
            text: drawn.text.clone(),
            folder: PathBuf::from("."),
        };
        let batch = Batch::new(text.read(World::Simulator, &[], None).unwrap());
        let Ok(PointEnd::Finished(mut point)) = batch.simulate(0) else { panic!("it runs") };
        oracle::check(Product::Reduce, &drawn, &point).unwrap();
        if let StudySummary::Reduce(reduce) = &mut point.summary.study {
            reduce.exact -= 1;
        }
        let why = oracle::check(Product::Reduce, &drawn, &point).unwrap_err();
        assert!(why.contains("not those of the text"), "{why}");
        chaos.cancel();
        let report = chaos.run(Some(1)).unwrap();
        assert!(report.interrupted && report.seeds == 0);
    }
}
