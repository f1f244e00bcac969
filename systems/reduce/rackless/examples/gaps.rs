//! Prints how far each heuristic is from the exact optimum over random instances of the paper's pod, and how long it takes.
//!
//! `cargo run --release -p rackweave-rackless --example gaps [INSTANCES]`

#[expect(dead_code, reason = "this example uses only some of the instances")]
#[path = "../tests/it/instances.rs"]
mod instances;

use rackweave_core::Rng;
use rackweave_rackless::cost::Scope;
use rackweave_rackless::plan::{Algorithm, Options, plan};

fn main() {
    let count = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(200);
    println!("gap to the exact optimum over {count} instances, in percent");
    println!("scope   algorithm    median     p95     max   equal  above 5 %");
    for scope in [Scope::All, Scope::Moved] {
        for algorithm in Algorithm::ALL {
            if algorithm == Algorithm::Exact {
                continue;
            }
            let mut gaps: Vec<f64> = (0..count).map(|seed| gap(seed, scope, algorithm)).collect();
            gaps.sort_by(f64::total_cmp);
            let at = |share: f64| gaps[((gaps.len() - 1) as f64 * share) as usize];
            let equal = gaps.iter().filter(|gap| **gap < 1e-9).count();
            let above = gaps.iter().filter(|gap| **gap > 5.0).count();
            println!(
                "{:<7} {:<10} {:>8.2} {:>7.2} {:>7.2} {equal:>7} {above:>10}",
                format!("{scope:?}").to_lowercase(),
                algorithm.name(),
                at(0.5),
                at(0.95),
                at(1.0)
            );
        }
    }
}

fn gap(seed: u64, scope: Scope, algorithm: Algorithm) -> f64 {
    let instance = instances::random(seed, scope);
    let total = |algorithm| {
        let options = Options::new(algorithm, instance.reconfiguration);
        let mut rng = Rng::stream(seed, 0, 0, "plan");
        let plan = plan(&instance.fabric, &instance.periods, &options, &mut rng);
        plan.expect("the paper's pod has few configurations").total.ticks() as f64
    };
    100.0 * (total(algorithm) / total(Algorithm::Exact) - 1.0)
}
