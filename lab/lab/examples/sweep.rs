//! A sweep from Rust: loads times transports, and the 99th percentile of slowdown of each.
//!
//! `cargo run --release -p rackweave-lab --example sweep`

use std::path::Path;

use rackweave_lab::{Batch, Scenario};

const SCENARIO: &str = r#"
[fabric]
topology = "leaf-spine"
leaves = 2
hosts_per_leaf = 8
spines = 2
host_link = "25 Gbps"

[workload]
arrivals = "poisson"
sizes = "W2"
load = 0.5

[measure]
messages = 5_000

[sweep]
transport.name = ["homa", "dctcp"]
"#;

pub(crate) fn main() {
    // As `--set` on the command line: the text stays one scenario, and the program chooses what varies.
    let sets = ["sweep.workload.load=[0.3, 0.6, 0.8]".to_owned()];
    let scenario = Scenario::parse("sweep.toml", SCENARIO, Path::new("."), &sets, None)
        .expect("a scenario without mistakes");
    let results = Batch::new(scenario).run(None).expect("the simulator runs it");
    println!("{:<20} {:>6} {:>6} {:>12}", "point", "p50", "p99", "goodput");
    for point in &results.points {
        let (slowdown, gbps) = (&point.summary.slowdown, point.summary.goodput_gbps);
        println!(
            "{:<20} {:>6.2} {:>6.2} {gbps:>7.1} Gbps",
            point.label, slowdown.p50, slowdown.p99
        );
    }
    // Every number of `summary.json` is a field. `rackweave_lab::output::OutputDir` writes the files of the command.
    assert_eq!(results.points.len(), 6);
}
