//! Plans 128 servers and 24 periods with each algorithm, and prints the totals and the time that planning took.
//!
//! `cargo run --release -p rackweave-rackless --example large`

#[expect(dead_code, reason = "this example uses only some of the instances")]
#[path = "../tests/it/instances.rs"]
mod instances;

use rackweave_core::Rng;
use rackweave_rackless::cost::Scope;
use rackweave_rackless::plan::{Algorithm, Options, plan};

#[expect(clippy::disallowed_methods, reason = "an example that measures")]
fn main() {
    println!("scope   algorithm        total  reconfigurations  planned in");
    for scope in [Scope::All, Scope::Moved] {
        let instance = instances::large(1, scope);
        for algorithm in Algorithm::ALL {
            let options = Options::new(algorithm, instance.reconfiguration);
            let start = std::time::Instant::now();
            let mut rng = Rng::stream(1, 0, 0, "plan");
            let Ok(plan) = plan(&instance.fabric, &instance.periods, &options, &mut rng) else {
                continue;
            };
            println!(
                "{:<7} {:<10} {:>9.1} ms {:>17} {:>8.0} ms",
                format!("{scope:?}").to_lowercase(),
                algorithm.name(),
                plan.total.as_us_f64() / 1000.0,
                plan.reconfigurations(),
                start.elapsed().as_secs_f64() * 1000.0
            );
        }
    }
}
