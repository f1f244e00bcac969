//! The table `[host]`.

use std::path::Path;

use rackweave_core::Span;
use rackweave_sim::config::{Costs, HostConfig, HostModel, Processors, Quantiles, SwitchProcess};

use crate::scenario::{Scenario, ScenarioText, World};

const SCENARIO: &str = "fabric = { topology = 'single-switch', hosts = 4 }\ntransport.name = 'homa'\n\
                        workload = { arrivals = 'permutation', sizes = '10 KB' }\n";

fn read(text: &str, folder: &Path, sets: &[&str]) -> Result<Scenario, String> {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    Scenario::parse("x.toml", &format!("{SCENARIO}{text}"), folder, &sets, None).map_err(|error| {
        let handler = miette::GraphicalReportHandler::new_themed(miette::GraphicalTheme::none());
        let mut shown = String::new();
        handler.render_report(&mut shown, &error).unwrap();
        shown
    })
}

fn host(scenario: &Scenario) -> HostConfig {
    scenario.points[0].config.host.as_deref().cloned().unwrap()
}

#[test]
fn every_key_reaches_the_configuration_and_the_resolved_scenario() {
    let text = "[host]\nprocessors = 2\nsend_system_call_ns = 1500\nsend_call_ns = 300.5\nsend_packet_ns = 700\n\
                send_byte_ns = 0.25\nreceive_system_call_ns = 4000\nreceive_call_ns = 1\nreceive_packet_ns = 2\n\
                receive_byte_ns = 0.01\nsend_pair_ns = 70\nreceive_pair_ns = 80.5\nsend_batch = 64\nreceive_batch = 32\nsend_ahead_us = 200\n\
                timer_grain_us = 55\nclock_grain_ns = 20\nwake_us = [[0.5, 10], [0.999, 80.5], [1, 900]]\nwake_cost_ns = 12\n\
                [host.switch]\nsystem_call_ns = 9\npacket_ns = 8\nbyte_ns = 0.07\npair_ns = 90\nwake_cost_ns = 11\nwake_us = [[1, 7]]\nwindow_us = 50\n\
                [host.kernel_tcp]\nsend_call_ns = 21\nsend_byte_ns = 0.3\nreceive_system_call_ns = 22\nreceive_call_ns = 23\nreceive_byte_ns = 0.4\nswitch_packet_ns = 24\nswitch_byte_ns = 0.5\n\
                [host.measured]\nkernel = '6.1'\nrounds = 5\n";
    let scenario = read(text, Path::new("."), &[]).unwrap();
    let (ns, us) = (Span::from_ns, Span::from_us);
    let mut expected = HostConfig::default();
    expected.processors = Processors::Shared(2);
    expected.send = Costs {
        system_call: ns(1500),
        call: Span::from_ps(300_500),
        packet: ns(700),
        byte: Span::from_ps(250),
        work: ns(70),
    };
    expected.receive = Costs {
        system_call: ns(4000),
        call: ns(1),
        packet: ns(2),
        byte: Span::from_ps(10),
        work: Span::from_ps(80_500),
    };
    expected.send_batch = 64;
    expected.receive_batch = 32;
    expected.send_ahead = us(200);
    expected.timer_grain = us(55);
    expected.wake_cost = ns(12);
    expected.wake = Quantiles::new(vec![
        (500_000, us(10)),
        (999_000, Span::from_ns(80_500)),
        (1_000_000, us(900)),
    ])
    .unwrap();
    expected.switch_wake = Quantiles::new(vec![(1_000_000, us(7))]).unwrap();
    expected.switch = Some(SwitchProcess {
        costs: Costs {
            system_call: ns(9),
            call: ns(0),
            packet: ns(8),
            byte: Span::from_ps(70),
            work: ns(90),
        },
        wake_cost: ns(11),
        window: us(50),
    });
    expected.replaces_delays = true;
    assert_eq!(host(&scenario), expected);
    let again = Scenario::parse("y.toml", &scenario.resolved, Path::new("."), &[], None).unwrap();
    assert_eq!(host(&again), expected);
    // Homa is not in the kernel; TCP is, unless it is Rackweave's.
    let (mut in_kernel, sets) = (expected.clone(), ["transport.name=tcp", "testbed.tcp=machine"]);
    in_kernel.model = HostModel::Kernel;
    in_kernel.send = Costs { call: ns(21), byte: Span::from_ps(300), ..Costs::default() };
    in_kernel.receive =
        Costs { system_call: ns(22), call: ns(23), byte: Span::from_ps(400), ..Costs::default() };
    if let Some(switch) = &mut in_kernel.switch {
        (switch.costs.packet, switch.costs.byte) = (ns(24), Span::from_ps(500));
    }
    assert_eq!(host(&read(text, Path::new("."), &sets[..1]).unwrap()), in_kernel);
    assert_eq!(host(&read(text, Path::new("."), &sets).unwrap()), expected);
    assert!(scenario.resolved.contains("kernel = \"6.1\""), "{}", scenario.resolved);
}

#[test]
fn a_file_is_named_in_the_scenario_or_by_an_argument_and_errors_point_into_it() {
    let folder = tempfile::tempdir().unwrap();
    let write = |text: &str| std::fs::write(folder.path().join("h.toml"), text).unwrap();
    write("[host]\nsend_packet_ns = 700\n");
    let scenario = read("", folder.path(), &["host=\"h.toml\""]).unwrap();
    assert_eq!(host(&scenario).send.packet, Span::from_ns(700));
    let named = |text: &str| {
        write(text);
        Scenario::parse("x.toml", &format!("host = 'h.toml'\n{SCENARIO}"), folder.path(), &[], None)
            .map_err(|error| {
                let mut shown = String::new();
                let theme = miette::GraphicalTheme::none();
                miette::GraphicalReportHandler::new_themed(theme)
                    .render_report(&mut shown, &error)
                    .unwrap();
                shown
            })
    };
    assert!(named("[host]\nsend_packet_ns = 700\n").is_ok());
    for (text, words) in [
        (
            "[host]\n\nsend_packet_ns = -1\n",
            ["h.toml:3:", "from 0 to 1000000000, not -1", "send_packet_ns"],
        ),
        ("[host]\nsend_packet = 1\n", ["h.toml:2:", "send_packet", "send_packet_ns"]),
        ("[host]\nprocessors = 0\n", ["h.toml:2:", "must be from 1 to 65536", "processors"]),
        (
            "[host]\nwake_us = [[0.9, 3], [0.5, 4]]\n",
            ["h.toml:2:", "shares must increase", "wake_us"],
        ),
        ("[host]\nwake_us = [[1.5, 3]]\n", ["h.toml:2:", "from 0 to 1, not 1.5", "wake_us"]),
        ("[hosts]\nx = 1\n", ["x.toml:1:", "has no [host] table", "calibrate"]),
        ("[host]\n[fabric]\n", ["h.toml:2:", "unknown key `fabric` next to [host]", "fabric"]),
        ("host = 3\n", ["h.toml:1:", "must be a table", "host"]),
        ("[host", ["h.toml:1:", "not TOML", "host"]),
    ] {
        let shown = named(text).unwrap_err();
        assert!(words.iter().all(|word| shown.contains(word)), "{text}\n{shown}");
    }
    std::fs::remove_file(folder.path().join("h.toml")).unwrap();
    let shown = read("", folder.path(), &["host=\"h.toml\""]).unwrap_err();
    assert!(shown.contains("cannot read") && shown.contains("--set"), "{shown}");
}

#[test]
fn one_cost_is_not_given_twice_and_may_be_swept() {
    let shown = read(
        "[host]\nreceive_packet_ns = 1\n",
        Path::new("."),
        &["fabric.host_receive_cost=400 ns"],
    );
    assert!(shown.unwrap_err().contains("mean the same"));
    let sets = ["sweep.host.send_packet_ns=[1, 2, 3]"];
    let scenario = read("[host]\n", Path::new("."), &sets).unwrap();
    let packets: Vec<Span> = (scenario.points.iter())
        .map(|point| point.config.host.as_ref().unwrap().send.packet)
        .collect();
    assert_eq!(packets, [1, 2, 3].map(Span::from_ns));
}

#[test]
fn on_real_hosts_the_table_is_read_and_has_no_effect() {
    let text = ScenarioText {
        file: "x.toml".into(),
        text: format!("{SCENARIO}[host]\nsend_packet_ns = 700\n"),
        folder: Path::new(".").to_owned(),
    };
    let scenario = text.read(World::Testbed, &[], None).unwrap();
    assert!(scenario.points[0].config.host.is_some(), "notes report it");
}
