//! How long planning takes: `cargo bench -p rackweave-rackless`.

#[path = "../tests/it/instances.rs"]
mod instances;

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use rackweave_core::Rng;
use rackweave_rackless::cost::Scope;
use rackweave_rackless::plan::{Algorithm, Options, plan};

fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan");
    group.sample_size(10);
    for (scope, name) in [(Scope::All, "all"), (Scope::Moved, "moved")] {
        let (small, large) = (instances::random(1, scope), instances::large(1, scope));
        let cases = [
            (&small, Algorithm::Exact, "8 servers, exact"),
            (&small, Algorithm::Heuristic, "8 servers, heuristic"),
            (&large, Algorithm::Heuristic, "128 servers x 24 periods, heuristic"),
            (&large, Algorithm::Eclipse, "128 servers x 24 periods, eclipse"),
            (&large, Algorithm::Hysteresis, "128 servers x 24 periods, hysteresis"),
        ];
        for (instance, algorithm, what) in cases {
            let options = Options::new(algorithm, instance.reconfiguration);
            group.bench_function(format!("{what}, {name}"), |bencher| {
                bencher.iter(|| {
                    let mut rng = Rng::stream(1, 0, 0, "plan");
                    let (fabric, periods) = (&instance.fabric, &instance.periods);
                    black_box(plan(fabric, periods, &options, &mut rng))
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
