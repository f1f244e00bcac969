//! Pods in scenarios: their keys, mistakes, and runs in which circuits change.

use std::path::Path;

use rackweave_core::{Rate, Span, Time};
use rackweave_lab::{Batch, Scenario, builtin};
use rackweave_sim::config::{Circuits, Dark, Move, Pod, Topology};

const RACKLESS: &str = r#"
[fabric]
topology = "rackless"
tors = [4, 2, 2]
uplinks = [2, 1, 1]
oversubscription = 4
switching_delay = "80 us"
link_delay = "20 us"
dark = "all"

[[fabric.moves]]
at = "2 ms"
circuits = [1, 1, 0, 0, 0, 0, 2, 2]

[transport]
name = "homa"

[workload]
arrivals = "poisson"
sizes = "W3"
load = 0.5
"#;

const TORS: &str = r#"
[fabric]
topology = "tor-circuits"
tors = [4, 2, 2]
circuit_ports = 2
circuits = [[0, 1], [0, 2]]

[[fabric.moves]]
at = "1 ms"
circuits = [[0, 1], [2, 1]]

[transport]
name = "tcp"

[workload]
arrivals = "permutation"
sizes = "1 MB"
"#;

fn parse(text: &str, sets: &[&str]) -> Scenario {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    Scenario::parse("test.toml", text, Path::new("."), &sets, None).unwrap()
}

fn pod(scenario: &Scenario) -> &Pod {
    match &scenario.points[0].config.fabric.topology {
        Topology::Pod(pod) => pod,
        other => panic!("{other:?}"),
    }
}

#[test]
fn keys_describe_the_pod_and_its_moves() {
    let rackless = parse(RACKLESS, &[]);
    let it = pod(&rackless);
    let ports: Vec<_> = it.tors.iter().map(|tor| (tor.server_ports, tor.uplinks)).collect();
    assert_eq!(ports, [(4, 2), (2, 1), (2, 1)]);
    assert_eq!(it.circuits, Circuits::Servers(vec![0, 0, 0, 0, 1, 1, 2, 2]));
    // Two server ports for each uplink, oversubscribed by 4.
    assert_eq!(it.core_link, Rate::from_gbps(5));
    assert_eq!((it.ocs.switching_delay, it.ocs.dark), (Span::from_us(80), Dark::All));
    let moved = Circuits::Servers(vec![1, 1, 0, 0, 0, 0, 2, 2]);
    let at = Time::ZERO + Span::from_ms(2);
    assert_eq!(rackless.points[0].config.moves, [Move { at, circuits: moved }]);

    let fewer = parse(RACKLESS, &["fabric.hosts=5", "fabric.moves=[]"]);
    assert_eq!(pod(&fewer).circuits, Circuits::Servers(vec![0, 0, 0, 0, 1]));

    let tors = parse(TORS, &[]);
    let it = pod(&tors);
    assert_eq!(it.circuits, Circuits::Tors(vec![(0, 1), (0, 2)]));
    assert_eq!((it.tors[1].uplinks, it.tors[1].circuit_ports), (0, 2));
    assert_eq!((it.ocs.switching_delay, it.core_link), (Span::from_ms(25), Rate::from_gbps(10)));

    let sets = ["fabric.topology=\"racks\"", "fabric.moves=[]", "fabric.uplinks=1"];
    let text = "[fabric]\ntopology = 'racks'\ntors = [4, 2, 2]\nuplinks = 1\n\
                [transport]\nname = 'tcp'\n[workload]\narrivals = 'permutation'\nsizes = '1 MB'\n";
    let racks = parse(text, &sets[2..]);
    assert_eq!((&pod(&racks).circuits, pod(&racks).servers()), (&Circuits::None, 8));
}

#[test]
fn resolved_scenarios_are_the_same() {
    for text in [RACKLESS, TORS] {
        let first = parse(text, &[]);
        let again = parse(&first.resolved, &[]);
        let of = |scenario: &Scenario| {
            let config = &scenario.points[0].config;
            (config.fabric.clone(), config.moves.clone())
        };
        assert_eq!(of(&again), of(&first), "{}", first.resolved);
        assert_eq!(again.resolved, first.resolved);
    }
}

#[test]
fn mistakes_are_named() {
    let error = |text: &str, sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let error = Scenario::parse("test.toml", text, Path::new("."), &sets, None).unwrap_err();
        error.to_string()
    };
    let cases: [(&str, &[&str], &str); 12] = [
        (
            RACKLESS,
            &["fabric.circuits=[0, 0, 0, 0, 0, 1, 2, 2]"],
            "ToR 0 has 4 ports at the optical circuit switch, and would need 5",
        ),
        (
            RACKLESS,
            &["fabric.circuits=[0, 0, 0, 1]"],
            "the circuits are of 8 servers, and the pod has 4",
        ),
        (
            RACKLESS,
            &["fabric.circuits=[[0, 1]]"],
            "the circuits of a rackless fabric are the ToRs of its servers",
        ),
        (RACKLESS, &["fabric.hosts=9"], "9 servers need more than the 8 ports of the ToRs"),
        (RACKLESS, &["fabric.uplinks=[1, 1]"], "`uplinks` has 2 numbers, and there are 3 ToRs"),
        (
            RACKLESS,
            &["fabric.uplinks=0", "fabric.oversubscription=1"],
            "an oversubscription of 1 makes no link",
        ),
        (RACKLESS, &["fabric.core_link='1 Gbps'"], "`oversubscription` follows from the links"),
        (RACKLESS, &["fabric.k=4"], "`k` has no meaning in a rackless fabric"),
        (RACKLESS, &["fabric.circuit_ports=1"], "`circuit_ports` has no meaning in a rackless"),
        (TORS, &["fabric.circuits=[0, 1]"], "circuits between ToRs are pairs of ToRs"),
        (TORS, &["fabric.circuits=[[0, 1, 2]]"], "a pair has two ToRs, as in [0, 1]"),
        (
            TORS,
            &["fabric.circuits=[[0, 1]]"],
            "no path leads from ToR 0 to ToR 2: it takes uplinks, or other circuits",
        ),
    ];
    for (text, sets, expected) in cases {
        let error = error(text, sets);
        assert!(error.contains(expected), "{sets:?}: {error}");
    }
    let moved = RACKLESS.replace("[1, 1, 0, 0, 0, 0, 2, 2]", "[1, 1, 1, 0, 0, 0, 2, 2]");
    let moved = error(&moved, &[]);
    assert!(moved.contains("ToR 1 has 2 ports"), "{moved}");
    let lonely = error(&RACKLESS.replace("uplinks = [2, 1, 1]", ""), &[]);
    assert!(lonely.contains("a rackless fabric needs `uplinks`"), "{lonely}");
    let cast = RACKLESS.replace(
        "[workload]\narrivals = \"poisson\"\nsizes = \"W3\"\nload = 0.5",
        "[workload.cast]\nsender = 0\nreceivers = [1, 2]\nfiles = ['1 KB']",
    );
    let cast = error(&cast.replace("homa", "orca"), &[]);
    assert!(cast.contains("runs on fabrics of equal racks, not on a pod"), "{cast}");
}

/// The shipped scenario: all messages arrive although circuits change under them, with any number of workers.
#[test]
fn messages_of_the_shipped_scenario_survive_its_moves() {
    let builtin = builtin::SCENARIOS.iter().find(|it| it.name == "rackless").unwrap();
    let run = |jobs| {
        let sets = ["measure.messages=4000".to_owned(), "workload.load=0.6".to_owned()];
        let scenario =
            Scenario::parse(builtin.file, builtin.text, Path::new("."), &sets, None).unwrap();
        Batch::new(scenario).run(Some(jobs)).unwrap()
    };
    let (one, two) = (run(1), run(2));
    assert_eq!(one.points.len(), 6);
    for (point, other) in one.points.iter().zip(&two.points) {
        let summary = &point.summary;
        let lost = summary.drops_by_reason.get("lost_in_reconfiguration");
        assert!(lost.and_then(serde_json::Value::as_u64).unwrap() > 0, "{:?}", summary.set);
        assert_eq!(summary.messages.completed, 4000, "{:?}", summary.set);
        assert_eq!(point.links, other.links);
        assert_eq!(summary.drops_by_reason, other.summary.drops_by_reason);
        let names: Vec<_> = point.links.iter().map(|link| link.name.as_str()).collect();
        assert!(names.contains(&"h3->ocs") && names.contains(&"core0->tor2"), "{names:?}");
    }
}
