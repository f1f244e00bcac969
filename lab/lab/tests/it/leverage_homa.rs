//! The keys of Leverage Homa, and the scenarios of its claims.

use std::path::Path;

use rackweave_core::{Rate, Span};
use rackweave_lab::Scenario;
use rackweave_sim::config::HostConfig;
use rackweave_transport::{TransportConfig, homa};
use rackweave_workload::Pattern;

const BASE: &str = r#"
[fabric]
topology = "single-switch"
hosts = 4
host_link = "25 Gbps"

[transport]
name = "homa"

[workload]
arrivals = "permutation"
sizes = "100 KB"
"#;

fn parse(sets: &[&str]) -> Result<homa::Config, String> {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let scenario = Scenario::parse("test.toml", BASE, Path::new("."), &sets, None)
        .map_err(|error| error.message().to_owned())?;
    match &scenario.points[0].config.streams[0].transport {
        TransportConfig::Homa(config) => Ok((**config).clone()),
        other => panic!("{other:?}"),
    }
}

const LINK: Rate = Rate::from_gbps(25);

#[test]
fn the_profile_is_the_talks() {
    assert_eq!(parse(&["transport.profile=leverage-homa"]), Ok(homa::Config::leverage(LINK)));
    assert_eq!(parse(&["transport.profile=linux"]), Ok(homa::Config::linux(LINK)));
}

#[test]
fn each_switch_is_a_key() {
    let given = parse(&[
        "transport.profile=linux",
        "transport.measure_rtt=true",
        "transport.min_rtt_window=2 s",
        "transport.scheduled_window=true",
        "transport.scheduled_factor=4",
        "transport.unscheduled_window=true",
        "transport.peer_link=10 Gbps",
        "transport.congestion_by=average",
        "transport.congestion_factor=6",
        "transport.average_shift=4",
        "transport.average_deviation=0.25",
        "transport.unscheduled_ratio=true",
        "transport.ratio_threshold=0.3",
        "transport.ratio_period=2 ms",
        "transport.host_delay=true",
        "transport.rtt_pacer=true",
        "transport.trickle_share=0.1",
        "transport.back_off_packets=2",
    ]);
    let leverage = homa::Leverage {
        measure_rtt: true,
        min_rtt_window: Span::from_secs(2),
        scheduled_window: true,
        scheduled_factor: 4,
        unscheduled_window: true,
        peer_link: Some(Rate::from_gbps(10)),
        congestion: Some(homa::Detection::Average),
        congestion_factor: 6,
        average_shift: 4,
        average_deviation: 250,
        unscheduled_ratio: true,
        ratio_threshold: 300,
        ratio_period: Span::from_ms(2),
        host_delay: true,
        rtt_pacer: true,
        trickle_share: 100,
        back_off_packets: 2,
    };
    assert_eq!(given, Ok(homa::Config::linux(LINK).with_leverage(leverage)));
    let without = [
        "transport.profile=leverage-homa",
        "transport.measure_rtt=false",
        "transport.scheduled_window=false",
        "transport.unscheduled_window=false",
        "transport.congestion_by=none",
        "transport.unscheduled_ratio=false",
    ];
    assert_eq!(parse(&without), Ok(homa::Config::linux(LINK)));
}

#[test]
fn what_makes_no_sense_is_said() {
    let error = |set: &str| parse(&["transport.profile=linux", set]).unwrap_err();
    let needs = "needs measured round trips";
    for (key, value) in [
        ("scheduled_window", "true"),
        ("unscheduled_window", "true"),
        ("congestion_by", "recent"),
        ("host_delay", "true"),
        ("rtt_pacer", "true"),
    ] {
        assert_eq!(error(&format!("transport.{key}={value}")), format!("`{key}` {needs}"));
    }
    assert_eq!(error("transport.average_shift=17"), "`average_shift` must be from 0 to 16");
    let share = "`trickle_share` must be from 0 to 1, not 1.5";
    assert_eq!(error("transport.trickle_share=1.5"), share);
    assert_eq!(error("transport.ratio_period=0 s"), "`ratio_period` must be at least 1");
    let deviation = "`average_deviation` must be from 0 to 1000, not -1";
    assert_eq!(error("transport.average_deviation=-1.0"), deviation);
    let only = "only the profiles `fabric` and `sigcomm18` have `rtt_bytes`";
    assert_eq!(error("transport.rtt_bytes=10 KB"), only);
}

#[test]
fn a_ramp_and_the_cost_of_receiving_are_in_the_resolved_scenario() {
    let text = BASE
        .replace("\"permutation\"", "\"closed-loop\"\noutstanding = 8\nramp = \"20 ms\"")
        + "\n[measure]\nwarmup = \"50 ms\"\n";
    let sets = ["fabric.host_receive_cost=400 ns".to_owned()];
    let first = Scenario::parse("test.toml", &text, Path::new("."), &sets, None).unwrap();
    let again = Scenario::parse("x.toml", &first.resolved, Path::new("."), &[], None).unwrap();
    for scenario in [&first, &again] {
        let config = &scenario.points[0].config;
        assert_eq!(config.host, HostConfig::of_receive_cost(Span::from_ns(400)));
        let workload = &config.streams[0].workload;
        let Pattern::ClosedLoop { outstanding, ramp, .. } = workload.pattern else { panic!() };
        assert_eq!((outstanding, ramp), (8, Span::from_ms(20)), "{}", scenario.resolved);
    }
    let plain = Scenario::parse("test.toml", BASE, Path::new("."), &[], None).unwrap();
    assert!(!plain.resolved.contains("ramp") && !plain.resolved.contains("receive_cost"));
}

#[test]
fn the_scenarios_of_the_claims_are_right() {
    let folder: std::path::PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "..", "..", "scenarios", "papers", "homa"].iter().collect();
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a scenario");
        let name = path.file_stem().and_then(|stem| stem.to_str()).expect("a name").to_owned();
        if name == "claims" {
            continue;
        }
        let scenario = Scenario::parse(&name, &text, &folder, &[], None)
            .unwrap_or_else(|error| panic!("{name}: {}", error.message()));
        assert!(!scenario.points.is_empty());
        let is_named = |name: &str| text.contains(&format!("\nname = \"{name}\"\n"));
        assert!(is_named(&name) || is_named(&format!("homa-{name}")), "{name}");
        names.push(name);
    }
    for claim in ["rtt", "window", "mixed-rtt", "incast", "tcp"] {
        assert!(names.contains(&format!("homa-{claim}")), "{names:?}");
    }
    assert_eq!(names.iter().filter(|name| name.starts_with("homa-future-")).count(), 3);
}
