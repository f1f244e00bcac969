use std::path::Path;

use super::{AllreduceConfig, AllreduceSummary};
use crate::run::Batch;
use crate::scenario::Scenario;

fn run(sets: &[&str]) -> AllreduceSummary {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let scenario = Scenario::parse("test.toml", FOUR, Path::new("."), &sets, None).unwrap();
    let results = Batch::new(scenario).run(Some(1)).unwrap();
    assert!(results.summary.failures.is_empty(), "{:?}", results.summary.failures);
    let summary = &results.points[0].summary;
    assert_eq!(summary.end, "all done", "{sets:?}: the run ends with the job");
    summary.of::<AllreduceConfig>().unwrap().clone()
}

const FOUR: &str = "fabric = { topology = 'single-switch', hosts = 9 }
    transport = { name = 'allreduce-switch' }
    workload.allreduce = { workers = 4, size = '1 MB', steps = 2 }
    measure = { time_limit = '10 s' }";

const LOSS: &str = "faults=[{ kind = 'loss', place = 'all links', probability = 0.01 }]";
const HOST: &str = "transport={ name = 'allreduce-host' }";
const RING: &str = "transport={ name = 'allreduce-ring' }";

fn assert_exact(summary: &AllreduceSummary) {
    assert_eq!((summary.exact, summary.finished, summary.unfinished), (2, 2, 0), "{summary:?}");
    assert_eq!(summary.failure, None);
}

#[test]
fn a_switch_reaches_nine_tenths_of_its_bound_whatever_the_number_of_workers() {
    for workers in ["2", "8"] {
        for elements in ["f32", "i64"] {
            let workers = format!("workload.allreduce.workers={workers}");
            let elements = format!("workload.allreduce.elements='{elements}'");
            let summary = run(&[&workers, &elements, "workload.allreduce.size='4 MB'"]);
            assert_exact(&summary);
            assert!((0.9..1.0).contains(&summary.of_bound), "{summary:?}");
            assert_eq!((summary.retransmitted, summary.attempts), (0, 1), "{summary:?}");
        }
    }
}

#[test]
fn a_ring_and_a_host_are_never_above_their_bounds_and_below_the_switch() {
    for workers in ["2", "8"] {
        let workers = format!("workload.allreduce.workers={workers}");
        let [switch, host, ring] =
            [&[&*workers][..], &[&workers, HOST], &[&workers, RING]].map(run);
        for summary in [&switch, &host, &ring] {
            assert_exact(summary);
            assert!(summary.of_bound < 1.0, "{summary:?}");
        }
        assert!(host.worker_gbps < switch.worker_gbps, "{host:?} {switch:?}");
        assert!(ring.of_bound > 0.5, "{ring:?}");
    }
}

#[test]
fn sums_are_exact_while_the_network_loses() {
    for scheme in ["transport={ name = 'allreduce-switch' }", HOST, RING] {
        for elements in ["f32", "i64"] {
            let elements = format!("workload.allreduce.elements='{elements}'");
            let summary = run(&[scheme, LOSS, &elements]);
            assert_exact(&summary);
            assert_eq!(summary.attempts, u64::from(scheme != RING));
            assert!(scheme == RING || summary.retransmitted > 0, "{summary:?}");
        }
    }
}

#[test]
fn a_ring_runs_over_every_reliable_transport() {
    for carrier in ["homa", "dctcp", "tcp", "polo", "phost"] {
        let scheme = format!("transport={{ name = 'allreduce-ring', carrier = '{carrier}' }}");
        assert_exact(&run(&[&scheme, "workload.allreduce.size='200 KB'"]));
    }
    for (carrier, reason) in [("datagram", "reliable"), ("hpcc", "do not write")] {
        let sets = [format!("transport={{ name = 'allreduce-ring', carrier = '{carrier}' }}")];
        let error = Scenario::parse("test.toml", FOUR, Path::new("."), &sets, None).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn what_is_impossible_is_refused() {
    for (set, reason) in [
        ("workload.allreduce.workers=10", "as many hosts"),
        ("workload.allreduce.size='3 B'", "a vector has"),
        ("transport={ name = 'allreduce-host', server = 9 }", "no host 9"),
        ("transport={ name = 'allreduce-switch', at = 1 }", "no switch 1"),
        ("faults=[{ kind = 'crash', place = 'host 1' }]", "do not crash"),
    ] {
        let error = Scenario::parse("test.toml", FOUR, Path::new("."), &[set.to_owned()], None);
        let error = error.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn one_worker_and_a_vector_of_one_element_are_possible() {
    for scheme in ["transport={ name = 'allreduce-switch' }", HOST, RING] {
        let small = ["workload.allreduce.workers=1", "workload.allreduce.size='4 B'"];
        assert_exact(&run(&[scheme, small[0], small[1]]));
        assert_exact(&run(&[scheme, small[1]]));
    }
}
