//! Jobs whose pairs are added up, on the testbed.

use super::{Place, code, stderr, words};

const JOBS: &str = r#"
fabric = { topology = "single-switch", hosts = 5, host_link = "100 Mbps" }
workload.reduce = { jobs = 2, workers = 3, size = "400 KB", map = "local", interval = "3 s" }
transport = { name = "reduce-switch", slots = 2048 }
measure = { time_limit = "120 s" }
"#;

const CASES: &str = "sweep.cases=[\
    { transport.name = 'reduce-switch', transport.slots = 2048 }, \
    { transport.name = 'reduce-master' }]";

/// Checks both schemes in one of the real worlds against the simulator.
fn both_worlds(world: &[&str]) {
    let place = Place::new(JOBS);
    let run = |world: &[&str], out: &str| {
        let output = place.run(&[world, &["x.toml", "--set", CASES, "--out", out]].concat());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        place.summary(out)["points"].as_array().unwrap().clone()
    };
    let (real, simulated) = (run(world, "real"), run(&["run"], "simulated"));
    for (real, simulated) in real.iter().zip(&simulated) {
        let (jobs, same) = (&real["reduce"], &simulated["reduce"]);
        assert_eq!(
            (real["end"].as_str(), &jobs["exact"]),
            (Some("all done"), &2.into()),
            "{real:#}"
        );
        assert_eq!(real["messages"]["completed"], 2);
        for (job, same) in
            jobs["jobs"].as_array().unwrap().iter().zip(same["jobs"].as_array().unwrap())
        {
            for key in ["job", "master", "workers", "bytes", "start_us", "words", "pairs"] {
                assert_eq!(job[key], same[key], "the same job: {job:#} {same:#}");
            }
        }
        let share = |jobs: &serde_json::Value| jobs["to_master"].as_f64().unwrap();
        // Which pairs meet in a full bucket depends on the order of packets.
        assert!((share(jobs) - share(same)).abs() < 0.02, "{jobs:#} {same:#}");
        assert_eq!(jobs["to_master_bound"], same["to_master_bound"]);
    }
    let absorbed = |point: usize| real[point]["reduce"]["absorbed"].as_f64().unwrap();
    assert!(absorbed(0) > 0.9 && absorbed(1) == 0.0, "{} {}", absorbed(0), absorbed(1));
}

#[test]
fn jobs_are_exact_in_the_overlay_as_in_the_simulator() {
    both_worlds(&["testbed", "--overlay"]);
}

#[test]
fn jobs_are_exact_in_namespaces_as_in_the_simulator() {
    rackweave_testing::needs!(NetAdmin);
    both_worlds(&["testbed"]);
}

#[test]
fn jobs_survive_a_bad_network_between_real_hosts() {
    let fault =
        |kind: &str, more: &str| format!("{{ kind = '{kind}', place = 'all links', {more} }}");
    let faults = [
        fault("loss", "probability = 0.02"),
        fault("duplication", "probability = 0.02"),
        fault("reordering", "probability = 0.05, delay = '1 ms'"),
    ];
    let faults = format!("faults=[{}]", faults.join(", "));
    let place = Place::new(JOBS);
    let output = place.run(&["testbed", "x.toml", "--overlay", "--set", &faults, "--out", "real"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let jobs = place.summary("real")["points"][0]["reduce"].clone();
    assert_eq!((&jobs["exact"], &jobs["unfinished"]), (&2.into(), &0.into()), "{jobs:#}");
    assert!(jobs["duplicates"].as_u64().unwrap() > 0, "{jobs:#}");
}

#[test]
fn what_only_the_simulator_has_is_refused() {
    let place = Place::new(JOBS);
    for (set, sentence) in [
        ("workload.reduce.map='scatter'", "the testbed carries no data of jobs to their workers"),
        ("workload.reduce.size='2 GB'", "a job of 2000000000 bytes"),
    ] {
        let output = place.run(&["testbed", "x.toml", "--overlay", "--set", set]);
        assert_eq!(code(&output), 2, "{set}");
        assert!(words(&stderr(&output)).contains(sentence), "{set}: {}", stderr(&output));
    }
}

/// Two groups of hosts at a pod whose first ToR adds up, and more jobs than fit there at once.
const POD: &str = r#"
fabric = { topology = "rackless", tors = [3, 2, 2], hosts = 6, uplinks = 1, circuits = [0, 1, 2, 0, 1, 2], host_link = "20 Mbps", switching_delay = "20 ms" }
workload.reduce = { jobs = 4, workers = 2, size = "400 KB", map = "local", interval = "200 ms" }
transport = { name = "reduce-switch", slots = 2048 }
measure = { time_limit = "120 s" }
"#;

#[test]
fn results_are_exact_while_circuits_move_under_jobs() {
    let circuits = [[0, 0, 0, 1, 1, 2], [2, 1, 0, 0, 1, 2], [1, 1, 2, 2, 0, 0], [0, 1, 2, 0, 1, 2]];
    let moves = (0..60).map(|number| {
        format!("{{ at = '{} ms', circuits = {:?} }}", 50 + number * 60, circuits[number % 4])
    });
    let moves = format!("fabric.moves=[{}]", moves.collect::<Vec<_>>().join(", "));
    let place = Place::new(POD);
    for (world, out) in [(&["testbed", "--overlay"][..], "real"), (&["run"][..], "simulated")] {
        let output = place.run(&[world, &["x.toml", "--set", &moves, "--out", out]].concat());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let point = place.summary(out)["points"][0].clone();
        let jobs = &point["reduce"];
        assert_eq!((&jobs["exact"], &jobs["unfinished"]), (&4.into(), &0.into()), "{jobs:#}");
        assert!(jobs["lost_in_moves"].as_u64().unwrap() > 0, "{out}: {jobs:#}");
    }
}

/// Checks the control plane of P4-ORDC in one of the real worlds: it moves the servers of one upload after the other.
fn planned(world: &[&str]) {
    let place = Place::new(POD);
    let set = "transport.schedule='plan'";
    let output = place.run(&[world, &["x.toml", "--set", set, "--out", "real"]].concat());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let jobs = place.summary("real")["points"][0]["reduce"].clone();
    assert_eq!((&jobs["exact"], &jobs["unfinished"]), (&4.into(), &0.into()), "{jobs:#}");
    assert!(jobs["reconfigurations"].as_u64().unwrap() >= 1, "{jobs:#}");
    assert_eq!(jobs["upload_overlap"], 0.0, "one upload after the other: {jobs:#}");
    assert!(jobs["absorbed"].as_f64().unwrap() > 0.8, "{jobs:#}");
    for job in jobs["jobs"].as_array().unwrap() {
        let at = |key: &str| job[key].as_f64().unwrap();
        assert!(at("ready_us") <= at("granted_us") && at("granted_us") < at("uploaded_us"));
    }
}

#[test]
fn the_control_plane_moves_real_servers_in_the_overlay() {
    planned(&["testbed", "--overlay"]);
}

#[test]
fn the_control_plane_moves_real_servers_in_namespaces() {
    rackweave_testing::needs!(NetAdmin);
    planned(&["testbed"]);
}
