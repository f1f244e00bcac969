//! Points that other processes have run give the files of one run.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::run::Batch;
use crate::tables::Table;

/// Workloads of every kind, with all that is written for each of them.
pub(crate) const SCENARIOS: [&str; 7] = [
    "[fabric]\ntopology = 'leaf-spine'\nleaves = 2\nhosts_per_leaf = 4\nspines = 1\ncore_link = '10 Gbps'\n\
     [transport]\nname = 'homa'\nprofile = 'leverage-homa'\n\
     [workload]\narrivals = 'poisson'\nsizes = 'W2'\ntruncate = '100 KB'\nload = 0.4\n\
     [[background]]\ntransport = { name = 'dctcp' }\narrivals = 'incast'\nsizes = '30 KB'\nreceiver = 0\n\
     [measure]\nmessages = 200\nmessages_csv = true\ncapture = ['host 3 sends', 'host 1 receives']\nsample_every = '50 us'\n\
     [[measure.traffic]]\nname = 'in'\nat = 'switch 0'\ninterval = '100 us'\n\
     [sweep]\nworkload.load = [0.2, 0.4]\nseed = [1, 2]",
    "[fabric]\ntopology = 'leaf-spine'\nleaves = 2\nhosts_per_leaf = 4\nspines = 1\ncore_link = '10 Gbps'\n\
     [workload.cast]\nsender = [0, 4]\nreceivers = [1, 2, 5, 6]\nfiles = ['500 KB', '3 KB', '200 KB']\n\
     [transport]\nname = 'cast-unicast'\n[measure]\ncapture = ['host 1 receives']\n\
     [sweep]\ntransport.name = ['cast-unicast', 'cast-tcp', 'orca']",
    "[fabric]\ntopology = 'single-switch'\nhosts = 9\nhost_link = '1 Gbps'\n\
     [transport]\nname = 'frisbee'\nrate = '700 Mbps'\n\
     [workload.image]\nsize = '4 MiB'\n[measure]\ntime_limit = '60 s'",
    "fabric = { topology = 'single-switch', hosts = 8 }\n\
     transport = { name = 'reduce-switch', slots = 4096 }\n\
     workload.reduce = { workers = 7, size = '200 KB', map = 'local' }\nmeasure = { time_limit = '60 s' }\n\
     sweep.workload.reduce.workers = [3, 7]",
    "fabric = { topology = 'single-switch', hosts = 9 }\ntransport = { name = 'allreduce-switch' }\n\
     workload.allreduce = { workers = 4, size = '100 KB', steps = 2 }\nmeasure = { time_limit = '10 s' }",
    "[fabric]\ntopology = 'rackless'\ntors = [4, 2, 2]\nuplinks = 1\ncore_link = '20 Gbps'\n\
     circuits = [0, 0, 0, 0, 1, 1, 2, 2]\nswitching_delay = '80 us'\nlink_delay = '20 us'\n\
     [[fabric.moves]]\nat = '1 ms'\ncircuits = [1, 1, 0, 0, 0, 0, 2, 2]\n\
     [transport]\nname = 'homa'\n[workload]\narrivals = 'poisson'\nsizes = 'W3'\nload = 0.5\n\
     [measure]\nwarmup = '0 s'\nmessages = 300",
    "fabric = { topology = 'rackless', tors = [4, 2, 2], uplinks = [2, 1, 1] }\n\
     transport = { name = 'circuit-plan' }\nworkload.plan = { instances = 6 }\n\
     [sweep]\ntransport.algorithm = ['exact', 'heuristic', 'fixed']",
];

fn scenario(text: &str, sets: &[&str]) -> Scenario {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    Scenario::parse("sweep.toml", text, Path::new("."), &sets, None).unwrap()
}

/// Returns the files of these results, without the values of clocks.
fn files(scenario: &Scenario, results: &Results) -> BTreeMap<String, Vec<u8>> {
    let mut results = results.clone();
    (results.summary.wall_s, results.summary.peak_rss_bytes) = (0.0, 0);
    results.points.iter_mut().for_each(|point| point.summary.cpu_s = 0.0);
    let folder = tempfile::tempdir().unwrap();
    let out = OutputDir::prepare(folder.path()).unwrap();
    out.write(scenario, &results, "rackweave run sweep.toml").unwrap();
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
    };
    std::fs::read_dir(folder.path()).unwrap().map(read).collect()
}

fn assert_equal(one: &BTreeMap<String, Vec<u8>>, other: &BTreeMap<String, Vec<u8>>, of: &str) {
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>(), "{of}");
    for (name, bytes) in one {
        assert!(bytes == &other[name], "{name} differs in {of}");
    }
}

#[test]
fn points_of_other_processes_give_the_files_of_one_run() {
    let mut names: Vec<String> = Vec::new();
    for text in SCENARIOS {
        let scenario = scenario(text, &[]);
        let direct = Batch::new(scenario.clone()).run(Some(1)).unwrap();
        assert!(direct.summary.failures.is_empty(), "{:?}", direct.summary.failures);
        let batch = Batch::new(scenario.clone());
        let mut sweep = Sweep::new(scenario.clone(), None);
        for index in sweep.missing().into_iter().rev() {
            sweep.add(index, &batch.run_encoded(index).unwrap()).unwrap();
        }
        assert!(sweep.missing().is_empty());
        let (scenario, collected) = sweep.into_results();
        assert!(!collected.summary.interrupted);
        let expected = files(&scenario, &direct);
        assert_equal(&expected, &files(&scenario, &collected), text);
        names.extend(expected.into_keys());
    }
    // Every file that runs can write was among them.
    for name in ["messages.csv", "streams.csv", "traffic.csv", "round_trips.csv", "over_seeds.csv"]
        .into_iter()
        .chain(["capture-0.pcapng", "cast_files.csv", "cast_receivers.csv", "image_clients.csv"])
        .chain(["reduce_jobs.csv", "allreduce_steps.csv", "circuits.csv", "queues.csv"])
    {
        assert!(names.iter().any(|written| written == name), "no run wrote {name}");
    }
}

#[test]
fn tables_in_memory_are_those_of_the_csv_files() {
    for text in SCENARIOS {
        let scenario = scenario(text, &[]);
        let results = Batch::new(scenario.clone()).run(Some(1)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        OutputDir::prepare(folder.path()).unwrap().write(&scenario, &results, "").unwrap();
        let tables = results.tables();
        assert!(tables.len() >= 6);
        for table in &tables {
            let file = folder.path().join(format!("{}.csv", table.name));
            let read = Table::from_csv(&table.name, &std::fs::read_to_string(file).unwrap());
            assert!(*table == read.unwrap(), "{} differs in {text}", table.name);
            assert!(table.columns.iter().all(|column| column.values.len() == table.rows()));
        }
    }
}

fn small() -> Scenario {
    scenario(SCENARIOS[4], &["sweep.workload.allreduce.steps=[1, 2, 3]"])
}

#[test]
fn shards_and_resumed_runs_do_each_point_once() {
    let folder = tempfile::tempdir().unwrap();
    let out = OutputDir::prepare(folder.path()).unwrap();
    let store = PointStore::create(&out).unwrap();
    let run = |shard: &str| {
        let shard = shard.parse().unwrap();
        Batch::new(small()).run_stored(Some(1), &store, shard).unwrap()
    };
    let indices =
        |results: &Results| results.points.iter().map(|point| point.index).collect::<Vec<_>>();
    assert_eq!(indices(&run("0/2")), [0, 2]);
    assert_eq!(Sweep::new(small(), Some(PointStore::create(&out).unwrap())).missing(), [1]);
    let written = || {
        let entries = std::fs::read_dir(folder.path().join("points")).unwrap();
        let time = |entry: std::io::Result<std::fs::DirEntry>| {
            let entry = entry.unwrap();
            (entry.file_name(), entry.metadata().unwrap().modified().unwrap())
        };
        entries.map(time).collect::<BTreeMap<_, _>>()
    };
    let before = written();
    let whole = run("0/1");
    assert_eq!(indices(&whole), [0, 1, 2]);
    assert!(!whole.summary.interrupted);
    let after = written();
    assert_eq!(after.len(), 3);
    assert!(
        before.iter().all(|(name, time)| after[name] == *time),
        "finished points were run again"
    );
    let direct = Batch::new(small()).run(Some(1)).unwrap();
    assert_equal(&files(&small(), &direct), &files(&small(), &whole), "a resumed run");
}

#[test]
fn damaged_points_and_points_of_other_scenarios_are_run_again() {
    let scenario = small();
    let (spec, other) = (&scenario.points[0], &scenario.points[1]);
    let bytes = Batch::new(scenario.clone()).run_encoded(0).unwrap();
    assert!(decode(spec, 0, &bytes).is_ok());
    assert!(matches!(decode(other, 1, &bytes), Err(PointError::Other { index: 1 })));
    let folder = tempfile::tempdir().unwrap();
    let store = PointStore::create(&OutputDir::prepare(folder.path()).unwrap()).unwrap();
    store.put(spec, &bytes).unwrap();
    assert!(store.finished(spec, 0).is_some());
    assert!(store.finished(other, 1).is_none());
    for length in [0, 10, MAGIC.len() + HASH_BYTES, bytes.len() - 1] {
        store.put(spec, &bytes[..length]).unwrap();
        assert!(store.finished(spec, 0).is_none(), "{length} bytes of {}", bytes.len());
    }
    // The key covers what the text of the scenario does not show.
    let mut seeded = spec.clone();
    seeded.config.seed += 1;
    assert_ne!(key(spec), key(&seeded));
    assert_eq!(key(spec), key(&small().points[0]));
}

#[test]
fn a_failed_point_is_a_result_of_merging_and_run_again_by_the_next_run() {
    let scenario = small();
    let failure = PointFailure {
        set: Default::default(),
        transport: "allreduce-switch".into(),
        message: "assertion failed".into(),
        seed: 1,
        arguments: Vec::new(),
    };
    let spec = &scenario.points[1];
    let bytes = encode(spec, &PointEnd::Failed(failure), 0).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = PointStore::create(&OutputDir::prepare(folder.path()).unwrap()).unwrap();
    store.put(spec, &bytes).unwrap();
    let mut sweep = Sweep::new(scenario.clone(), None);
    sweep.take(&store);
    assert_eq!(sweep.missing(), [0, 1, 2]);
    sweep.take_some(&store, |_| true);
    assert_eq!(sweep.missing(), [0, 2]);
    let (_, results) = sweep.into_results();
    assert_eq!(results.summary.failures.len(), 1);
    assert!(results.summary.interrupted, "two points are missing");
}

#[test]
fn shards_are_numbered_from_zero() {
    let shard = |text: &str| text.parse::<Shard>();
    assert_eq!(shard("3/8").unwrap().to_string(), "3/8");
    assert_eq!(shard("8/8"), Err(ShardError::Index { index: 8, count: 8 }));
    assert_eq!(shard("0/0"), Err(ShardError::Index { index: 0, count: 0 }));
    for text in ["", "3", "3/", "/8", "-1/8", "a/b", "1/2/3", "99999999999/2"] {
        assert_eq!(shard(text), Err(ShardError::Form), "{text}");
    }
}

proptest! {
    #![proptest_config(rackweave_testing::cases(256))]
    #[test]
    fn each_point_belongs_to_one_shard(count in 1_u32..100, point in 0_usize..100_000) {
        let shards = (0..count).filter(|index| Shard { index: *index, count }.has(point));
        prop_assert_eq!(shards.count(), 1);
    }

    #[test]
    fn decoding_survives_any_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..400), valid in any::<bool>()) {
        let scenario = small();
        if valid {
            // With a valid hash, the payload itself is decoded.
            let hash = blake3::hash(&bytes);
            bytes = [MAGIC, hash.as_bytes(), &bytes].concat();
        }
        prop_assert!(decode(&scenario.points[0], 0, &bytes).is_err());
    }
}
