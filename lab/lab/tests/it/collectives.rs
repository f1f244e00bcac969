//! Collectives in scenarios: what they mean, what they measure, and what is refused.

use std::path::Path;

use rackweave_lab::output::OutputDir;
use rackweave_lab::report::table::Style;
use rackweave_lab::{Batch, Scenario, difference, goal};

const BASE: &str = "fabric = { topology = 'leaf-spine', leaves = 2, hosts_per_leaf = 4, spines = 4, host_link = '10 Gbps' }
    transport.name = 'datagram'
    [workload.collective]
    operation = 'all-reduce'
    size = '80 KB'
    ";

fn read(text: &str, sets: &[&str]) -> Result<Scenario, rackweave_lab::ScenarioError> {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    Scenario::parse("collective.toml", text, Path::new("tests/data"), &sets, None)
}

fn run(sets: &[&str]) -> rackweave_lab::Results {
    Batch::new(read(BASE, sets).unwrap()).run(Some(1)).unwrap()
}

#[test]
fn a_ring_takes_its_ideal_time_and_has_the_rates_of_nccls_tests() {
    let results = run(&[
        "fabric={ topology = 'single-switch', hosts = 8 }",
        "workload.collective.repeat=2",
        "workload.collective.pause='3 us'",
    ]);
    let summary = &results.points[0].summary;
    let collective = summary.collective.as_deref().unwrap();
    assert_eq!(
        (collective.operation.as_str(), collective.algorithm.as_str()),
        ("all-reduce", "ring")
    );
    assert_eq!((collective.ranks, collective.messages, collective.finished), (8, 112, 2));
    assert_eq!(collective.message_bytes, 14 * 80_000);
    assert_eq!(collective.size_bytes, Some(80_000));
    let [first, second] = &collective.iterations[..] else { panic!("two iterations") };
    assert!((second.start_us - first.end_us - 3.0).abs() < 1e-9, "all ranks are in step");
    assert!((collective.of_ideal - 1.0).abs() < 1e-12, "{}", collective.of_ideal);
    let rate = 80_000.0 * 8e-3 / collective.time_us.mean;
    assert!((collective.algorithm_gbps.unwrap() - rate).abs() < 1e-12);
    assert!((collective.bus_gbps.unwrap() - rate * 1.75).abs() < 1e-12);
    assert_eq!(summary.messages.completed, 224);
    assert_eq!(results.points[0].ranks.len(), 16);
}

#[test]
fn the_files_have_iterations_and_ranks_and_an_exported_schedule_runs_alike() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = read(
        BASE,
        &[
            "workload.collective.algorithm='tree'",
            "workload.collective.compute='20 Gbps'",
            "measure.messages_csv=true",
        ],
    )
    .unwrap();
    let path = folder.path().join("tree.goal");
    assert_eq!(goal::export(&scenario, &path).unwrap(), std::slice::from_ref(&path));
    let results = Batch::new(scenario.clone()).run(Some(1)).unwrap();
    let out = OutputDir::prepare(folder.path()).unwrap();
    out.write(&scenario, &results, "rackweave run collective.toml").unwrap();
    let text = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let ranks = text("collective_ranks.csv");
    assert!(
        ranks.starts_with("point,transport,label,rank,host,iteration,start_us,end_us\n"),
        "{ranks}"
    );
    assert_eq!((ranks.lines().count(), text("collective_iterations.csv").lines().count()), (9, 2));

    let base =
        BASE.replace("operation = 'all-reduce'\n    size = '80 KB'", "schedule = 'tree.goal'");
    let sets = ["measure.messages_csv=true".to_owned()];
    let again = Scenario::parse("again.toml", &base, folder.path(), &sets, None).unwrap();
    assert!(again.explain().contains("a schedule of 8 ranks: 14 messages"), "{}", again.explain());
    let other = Batch::new(again).run(Some(1)).unwrap();
    assert_eq!(other.points[0].messages, results.points[0].messages);
    let times = |results: &rackweave_lab::Results| {
        let collective = results.points[0].summary.collective.clone().unwrap();
        (collective.time_us.mean, collective.ideal_us, collective.bus_gbps.is_some())
    };
    assert_eq!(times(&other), (times(&results).0, times(&results).1, false));
}

#[test]
fn ranks_have_the_hosts_that_the_scenario_says() {
    let hosts = |sets: &[&str]| {
        let results = run(sets);
        results.points[0].ranks.iter().map(|rank| rank.host).collect::<Vec<u64>>()
    };
    let ranks = |value: &str| format!("workload.collective.ranks={value}");
    assert_eq!(hosts(&[&ranks("3")]), [0, 1, 2]);
    let spread = "workload.collective.placement='spread'";
    assert_eq!(hosts(&[&ranks("4"), spread]), [0, 4, 1, 5]);
    assert_eq!(hosts(&[&ranks("[7, 2]")]), [7, 2]);
    // The ranks of a rack are a group, wherever they are in the order.
    let hierarchical = "workload.collective.algorithm='hierarchical'";
    assert_eq!(hosts(&[hierarchical, spread]), [0, 4, 1, 5, 2, 6, 3, 7]);
}

#[test]
fn what_is_explained_is_what_runs() {
    let explained = read(BASE, &[]).unwrap().explain();
    let expected = "all-reduce (ring) of 80.0 KB by 8 ranks: 112 messages, 1.12 MB in all;";
    assert!(explained.contains(expected), "{explained}");
    let results =
        run(&["sweep.workload.collective.algorithm=['ring', 'tree', 'halving-doubling']"]);
    let style = Style { color: false, unicode: false, wide: true };
    let text = results.to_table(100, style);
    assert!(text.contains("of ideal"), "{text}");
}

#[test]
fn mistakes_are_refused_with_what_would_be_right() {
    for (set, reason) in [
        ("workload.collective.operation='allreduce'", "there is no operation `allreduce`"),
        ("workload.collective.algorithm='rung'", "there is no algorithm `rung` for all-reduce"),
        ("workload.collective.size='7 B'", "7 bytes are fewer than one for each of 8 ranks"),
        ("workload.collective.ranks=9", "9 ranks need as many hosts: the fabric has 8"),
        ("workload.collective.ranks=1", "a collective has 2 to 1048576 ranks, not 1"),
        ("workload.collective.ranks=[1, 1]", "host 1 has rank 0 and rank 1: a host has one"),
        ("workload.collective.ranks=[1, 8]", "host 8 (a rank) does not exist"),
        (
            "workload.collective.repeat=0",
            "the number of times that a collective runs must be at least 1",
        ),
        ("workload.collective.group=2", "`group` has a meaning for hierarchical algorithms only"),
        ("workload.collective.skew=1.0", "`skew` has a meaning for all-to-all only"),
        ("workload.collective.schedule='x.goal'", "`operation` has no meaning with a `schedule`"),
        ("workload.collective.tree=1", "unknown key `tree`"),
        ("workload.arrivals='poisson'", "a collective starts its messages itself"),
        ("workload.sizes='1 KB'", "`sizes` has no meaning for collective arrivals"),
        ("workload.stop='1 ms'", "a collective ends when all ranks have done their part"),
        ("workload.exchange='rpc'", "the messages of a collective are one-way"),
        ("measure.duration='1 ms'", "`duration` has no meaning with [workload.collective]"),
        ("measure.messages=3", "`messages` has no meaning with [workload.collective]"),
        ("transport.name='srpt-oracle'", "a central scheduler knows all messages before the run"),
    ] {
        let error = read(BASE, &[set]).map(|_| set).unwrap_err();
        assert!(error.to_string().contains(reason), "{set}: {error}");
    }
}

#[test]
fn a_place_that_means_nothing_is_refused() {
    let refused = |sets: &[&str]| read(BASE, sets).map(|_| ()).unwrap_err().to_string();
    let spread = "workload.collective.placement='spread'";
    let error = refused(&["workload.collective.ranks=[0, 4]", spread]);
    assert!(error.contains("`placement` has no meaning with the host of each rank"), "{error}");
    let pod = "fabric={ topology = 'racks', tors = [4, 2, 2], uplinks = 1 }";
    let error = refused(&[pod, spread]);
    assert!(error.contains("the racks of a pod change: name the host of each rank"), "{error}");
    let hierarchical = "workload.collective.algorithm='hierarchical'";
    let error = refused(&[pod, hierarchical]);
    assert!(error.contains("the racks of a pod change: `group` says how many"), "{error}");
    read(BASE, &[pod, hierarchical, "workload.collective.group=2"]).unwrap();
}

#[test]
fn times_are_in_the_tables_over_seeds_and_in_comparisons() {
    let folder = tempfile::tempdir().unwrap();
    // Repairs of lost packets take a time that depends on the seed.
    let run = |name: &str, loss: f64| {
        let faults =
            format!("faults=[{{ kind = 'loss', place = 'link of host 2', probability = {loss} }}]");
        let sets = ["transport.name='dctcp'", "sweep.seed=[1, 2, 3]", &faults];
        let scenario = read(BASE, &sets).unwrap();
        let results = Batch::new(scenario.clone()).run(Some(1)).unwrap();
        let at = folder.path().join(name);
        OutputDir::prepare(&at).unwrap().write(&scenario, &results, "rackweave run").unwrap();
        (at, results)
    };
    let (at, results) = run("a", 0.02);
    let column = |file: &str, name: &str| -> Vec<f64> {
        let text = std::fs::read_to_string(at.join(file)).unwrap();
        let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let heads = lines.next().unwrap();
        let nth = heads.iter().position(|head| *head == name).unwrap();
        lines.map(|line| line[nth].parse().unwrap()).collect()
    };
    let times: Vec<f64> = results
        .points
        .iter()
        .map(|point| point.summary.collective.as_deref().unwrap().time_us.mean)
        .collect();
    assert_eq!(column("points.csv", "collective_us"), times);
    let rates = column("points.csv", "collective_bus_gbps");
    assert!((rates[0] - 80_000.0 * 8e-3 / times[0] * 1.75).abs() < 1e-9, "{rates:?}");
    let mean = times.iter().sum::<f64>() / 3.0;
    let squares: f64 = times.iter().map(|time| (time - mean).powi(2)).sum();
    assert!((column("over_seeds.csv", "collective_us")[0] - mean).abs() < 1e-9);
    // Student's quantile of two degrees of freedom.
    let half = 4.302_652_73 * (squares / 2.0 / 3.0).sqrt();
    let measured = column("over_seeds.csv", "collective_us_ci95")[0];
    assert!(half > 0.0 && (measured / half - 1.0).abs() < 1e-3, "{measured} {half}");

    let (other, _) = run("b", 0.2);
    let read = |path: &Path| difference::Results::read(path).unwrap();
    let found = difference::Difference::between(&read(&at), &read(&other), false);
    let measures = &found.points[0].measures;
    assert!(measures.iter().any(|it| it.name == "collective.time_us.mean" && it.b > it.a));
}

#[test]
fn a_collective_that_cannot_end_names_who_waits() {
    let results = run(&[
        "transport.name='dctcp'",
        "faults=[{ kind = 'crash', place = 'host 2', from = '5 us' }]",
    ]);
    let warning = results.points[0].summary.warning().unwrap();
    let (cause, effect) = (warning.find("crashed").unwrap(), warning.find("waits for").unwrap());
    assert!(cause < effect, "the cause first: {warning}");
    for expected in ["the host of rank 2 crashed", "rank 3 waits for 10.0 KB of rank 2, tag 0"] {
        assert!(warning.contains(expected), "{warning}");
    }
}
