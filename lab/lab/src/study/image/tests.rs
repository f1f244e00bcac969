//! Images in the simulator, from scenario files to results.

use std::path::Path;

use super::ImageConfig;
use crate::results::{Capture, PointResult};
use crate::{Batch, Scenario};

fn scenario(fabric: &str, more: &str) -> Result<Scenario, crate::ScenarioError> {
    let text = format!(
        "{fabric}\n[transport]\nname = 'frisbee'\nrate = '700 Mbps'\n{more}\n[measure]\ntime_limit = '60 s'"
    );
    Scenario::parse("image.toml", &text, Path::new("."), &[], None)
}

fn run(fabric: &str, more: &str) -> PointResult {
    let batch = Batch::new(scenario(fabric, more).unwrap());
    batch.run(Some(1)).unwrap().points.remove(0)
}

/// A scenario with another scheme than Frisbee.
fn scheme(name: &str, more: &str) -> Result<Scenario, crate::ScenarioError> {
    let text =
        format!("{SWITCH}\n[transport]\nname = '{name}'\n{more}\n[measure]\ntime_limit = '60 s'");
    Scenario::parse("image.toml", &text, Path::new("."), &[], None)
}

fn run_scheme(name: &str, more: &str) -> PointResult {
    Batch::new(scheme(name, more).unwrap()).run(Some(1)).unwrap().points.remove(0)
}

const SWITCH: &str = "[fabric]\ntopology = 'single-switch'\nhosts = 9\nhost_link = '1 Gbps'";

#[test]
fn an_image_reaches_all_clients_once_on_every_fabric() {
    let fabrics = [
        SWITCH,
        "[fabric]\ntopology = 'dumbbell'\nleft = 4\nright = 5\nhost_link = '1 Gbps'",
        "[fabric]\ntopology = 'leaf-spine'\nleaves = 3\nhosts_per_leaf = 3\nspines = 2\nhost_link = '1 Gbps'\ncore_link = '1 Gbps'",
        "[fabric]\ntopology = 'fat-tree'\nk = 4\nhost_link = '1 Gbps'",
    ];
    for fabric in fabrics {
        let point = run(fabric, "[workload.image]\nclients = 8\nsize = '6 MiB'");
        let image = point.summary.of::<ImageConfig>().unwrap().clone();
        assert_eq!((image.incomplete, image.wrong, image.chunks), (0, 0, 6), "{fabric}");
        assert_eq!((image.copies, image.dropped_bytes), (1.0, 0), "{fabric}");
        // 6 MiB at 700 Mbit/s on the link are 78 ms, after 30 ms of silence.
        assert!((108e3..115e3).contains(&image.run_us.mean), "{fabric}: {:?}", image.run_us);
        assert_eq!(point.summary.messages.completed, 8);
        // No copy crosses a link twice: blocks make one tree.
        let blocks = 6 * 1024 * 1114;
        let most = point.links.iter().map(|link| link.bytes).max().unwrap();
        assert!((blocks..blocks + 20_000).contains(&most), "{fabric}: {most}");
        // Every request was seen by all: 8 joins, and 12 requests at least.
        assert!(image.messages >= 20 && image.redundant_share > 0.3, "{image:?}");
    }
}

#[test]
fn late_clients_cost_repetitions() {
    let groups = "[workload.image]\nclients = 8\nsize = '20 MiB'\ngroups = 2\ninterval = '150 ms'";
    let image = run(SWITCH, groups).summary.of::<ImageConfig>().unwrap().clone();
    assert_eq!((image.incomplete, image.wrong), (0, 0));
    assert!((0.2..0.5).contains(&image.duplicate_share), "{}", image.duplicate_share);
    assert_eq!(image.clients.iter().filter(|client| client.start_us == 150e3).count(), 4);
    assert!(image.clients.iter().all(|client| client.run_us > 200e3), "{image:?}");
}

#[test]
fn a_lagging_disk_drops_blocks_and_the_image_is_still_whole() {
    let slow = "[transport.frisbee]\nbuffers = 3\n[workload.image]\nclients = 3\nsize = '12 MiB'\ndisk_rate = '100 Mbps'\nwrite_buffer = '1 MiB'";
    let image = run(SWITCH, slow).summary.of::<ImageConfig>().unwrap().clone();
    assert_eq!((image.incomplete, image.wrong), (0, 0));
    assert!(image.dropped_bytes > 0, "{image:?}");
    // 12 MiB at 100 Mbit/s.
    assert!(image.run_us.min > 1.0e6, "{:?}", image.run_us);
}

#[test]
fn loss_is_repaired_and_a_crashed_client_does_not_stop_the_others() {
    let faults = "[workload.image]\nclients = 5\nsize = '8 MiB'\n\
        [[faults]]\nkind = 'loss'\nplace = 'all links'\nprobability = 0.01\n\
        [[faults]]\nkind = 'crash'\nplace = 'host 3'\nfrom = '60 ms'";
    let point = run(SWITCH, faults);
    let image = point.summary.of::<ImageConfig>().unwrap().clone();
    assert_eq!((image.incomplete, image.wrong), (1, 0));
    assert!(image.partial_requests > 0 && image.copies > 1.0);
    assert_eq!((point.summary.messages.completed, point.summary.messages.failed), (4, 1));
}

#[test]
fn requests_are_in_captures_and_results_do_not_depend_on_workers() {
    let text = "[workload.image]\nclients = 3\nsize = '2 MiB'";
    let set = ["measure.capture=[\"host 1 sends\"]".to_owned(), "sweep.seed=[1, 2]".to_owned()];
    let read = || {
        let text = format!("{SWITCH}\n[transport]\nname = 'frisbee'\n{text}");
        Scenario::parse("image.toml", &text, Path::new("."), &set, None).unwrap()
    };
    let results: Vec<_> = [1, 2].map(|jobs| Batch::new(read()).run(Some(jobs)).unwrap()).into();
    for (one, two) in results[0].points.iter().zip(&results[1].points) {
        let json = |point: &PointResult| serde_json::to_string(&point.summary.study).unwrap();
        assert_eq!(json(one), json(two));
        let Capture::Frames(frames) = &one.capture else { panic!("frames of a group system") };
        let lines: Vec<String> = frames.iter().map(|frame| format!("{frame:?}")).collect();
        for name in ["JOIN client", "REQUEST chunk", "LEAVE2"] {
            assert!(lines.iter().any(|line| line.contains(name)), "{name}: {lines:?}");
        }
    }
    let image = |at: usize| results[0].points[at].summary.of::<ImageConfig>().unwrap().requests;
    assert!(image(0) > 0 && image(1) > 0);
}

#[test]
fn what_makes_no_sense_is_refused_with_a_reason() {
    let wrong = |fabric: &str, more: &str| scenario(fabric, more).unwrap_err().to_string();
    for (more, expected) in [
        ("[workload.image]\nclients = 9", "9 clients: the fabric has 1 to 8 hosts"),
        ("[workload.image]\nserver = 9", "there is no host 9"),
        ("[workload.image]\nclients = [0]", "host 0 does not exist, is the server's"),
        ("[workload.image]\nsize = '1500 KB'", "whole chunks of 1 MiB"),
        ("[workload.image]\ninterval = '1 s'", "`interval` has no meaning with one group"),
        ("[workload.image]\ngroups = 2", "`interval` is the time between"),
        ("[workload.image]\ngroups = 2\ninterval = '1 s'\nspread = '1 s'", "not both"),
        ("gap = '1 ms'\n[workload.image]", "`rate` determines the gap"),
        ("[workload.image]\n[workload.cast]", "`image` has no meaning with [workload.cast]"),
        ("[workload]\nload = 0.5\n[workload.image]", "`load` has no meaning with"),
        ("[workload]\narrivals = 'incast'", "it needs [workload.image]"),
    ] {
        let message = wrong(SWITCH, more);
        assert!(message.contains(expected), "{more}: {message}");
    }
    let text = format!("{SWITCH}\n[transport]\nname = 'homa'\n[workload.image]");
    let error = Scenario::parse("image.toml", &text, Path::new("."), &[], None).unwrap_err();
    assert!(error.to_string().contains("carries messages between two hosts"), "{error}");
    let wide = "[fabric]\ntopology = 'single-switch'\nhosts = 70";
    let batch = Batch::new(scenario(wide, "[workload.image]\nsize = '1 MiB'").unwrap());
    let error = batch.run(Some(1)).unwrap_err();
    let reason = std::error::Error::source(&error).unwrap().to_string();
    assert!(reason.contains("a switch with 70 ports cannot copy"), "{reason}");
}

const EIGHT: &str = "[workload.image]\nclients = 8\nsize = '32 MiB'";

#[test]
fn unicast_sends_a_copy_to_each_client() {
    let point = run_scheme("image-unicast", EIGHT);
    let image = point.summary.of::<ImageConfig>().unwrap().clone();
    assert_eq!((image.incomplete, image.wrong, image.copies), (0, 0, 8.0));
    assert_eq!((image.from_peers_bytes, image.switches), (0, super::SwitchReport::default()));
    // 8 x 32 MiB over 1 Gbit/s, with headers, are 2.28 s.
    assert!((2.2e6..2.6e6).contains(&image.makespan_us), "{}", image.makespan_us);
    assert_eq!(point.summary.messages.completed, 8);
}

#[test]
fn swp2p_takes_copies_from_clients_and_every_byte_is_counted_once() {
    let paper =
        "order = 'paper'\npolicy = 'round-robin'\npending = 0\nuploads = 0\noutstanding = 4\n";
    for keys in ["", "assist = 'server'\n", paper] {
        let point = run_scheme("swp2p", &format!("{keys}{EIGHT}"));
        let image = point.summary.of::<ImageConfig>().unwrap().clone();
        assert_eq!((image.incomplete, image.wrong), (0, 0), "{keys}");
        // With two copies, clients get six of eight from each other, as is asserted below.
        assert!((1.0..=2.0).contains(&image.copies), "{keys}: {}", image.copies);
        let received: u64 = image.clients.iter().map(|client| client.received_bytes).sum();
        let served: u64 = image.clients.iter().map(|client| client.served_bytes).sum();
        assert_eq!(received, 8 * image.bytes, "{keys}");
        assert!(served <= image.from_peers_bytes && image.from_peers_bytes >= 6 * image.bytes);
        assert_eq!(image.switches.requests > 0, keys != "assist = 'server'\n", "{keys}");
        assert!(image.makespan_us < 0.8e6, "{keys}: {}", image.makespan_us);
    }
}

#[test]
fn a_slow_switch_has_a_queue_and_batches_shorten_it() {
    let slow = "switch_requests_per_second = 400\n";
    let one =
        run_scheme("swp2p", &format!("{slow}{EIGHT}")).summary.of::<ImageConfig>().unwrap().clone();
    let batched = format!("{slow}batch = 8\nreport_every = 8\n{EIGHT}");
    let batched = run_scheme("swp2p", &batched).summary.of::<ImageConfig>().unwrap().clone();
    assert_eq!((one.incomplete, batched.incomplete), (0, 0));
    assert!(one.switches.max_queue > 20, "{:?}", one.switches);
    assert!(batched.switches.requests * 2 < one.switches.requests, "{:?}", batched.switches);
    assert!(batched.switches.max_queue < one.switches.max_queue, "{:?}", batched.switches);
}

#[test]
fn clients_that_stay_serve_those_that_come_later() {
    let late = "[workload.image]\nclients = 4\nsize = '8 MiB'\ngroups = 4\ninterval = '2 s'";
    let alone = run_scheme("swp2p", late).summary.of::<ImageConfig>().unwrap().clone();
    assert_eq!((alone.copies, alone.from_peers_bytes), (4.0, 0));
    let linger = run_scheme("swp2p", &format!("linger = '10 s'\n{late}"))
        .summary
        .of::<ImageConfig>()
        .unwrap()
        .clone();
    assert_eq!((linger.copies, linger.incomplete), (1.0, 0));
    assert_eq!(linger.from_peers_bytes, 3 * linger.bytes);
}

#[test]
fn a_crashed_client_does_not_stop_swp2p_and_captures_have_both_kinds_of_packets() {
    let crash = "[workload.image]\nclients = 5\nsize = '16 MiB'\n\
        [[faults]]\nkind = 'crash'\nplace = 'host 3'\nfrom = '60 ms'";
    let set = ["measure.capture=[\"host 1 sends\"]".to_owned()];
    let text = format!("{SWITCH}\n[transport]\nname = 'swp2p'\n{crash}");
    let read = Scenario::parse("image.toml", &text, Path::new("."), &set, None).unwrap();
    let point = Batch::new(read).run(Some(1)).unwrap().points.remove(0);
    let image = point.summary.of::<ImageConfig>().unwrap();
    assert_eq!((image.incomplete, image.wrong), (1, 0));
    assert_eq!((point.summary.messages.completed, point.summary.messages.failed), (4, 1));
    let Capture::Frames(frames) = &point.capture else { panic!("frames of a group system") };
    let lines: Vec<String> = frames.iter().map(|frame| format!("{frame:?}")).collect();
    for name in ["swp2p JOIN", "swp2p REQUEST", "swp2p REPORT"] {
        assert!(lines.iter().any(|line| line.contains(name)), "{name}: {:?}", &lines[..4]);
    }
}

#[test]
fn keys_of_swp2p_that_make_no_sense_are_refused() {
    for (name, more, expected) in [
        ("swp2p", "order = 'paper'\nwindow = 8", "`window` has no meaning"),
        ("swp2p", "batch = 64", "`outstanding` is 16"),
        ("swp2p", "switch_queue = 8", "only with `switch_requests_per_second`"),
        ("swp2p", "assist = 'server'\nswitch_queue = 8", "no switch takes part"),
        ("image-unicast", "linger = '1 s'", "not a key of image-unicast"),
        ("swp2p", "snoop = true", "not a key of swp2p, but of frisbee"),
        ("swp2p", "fluid_interval = '1 ms'", "only flows have rates"),
        ("swp2p", "congestion = 'reno'", "congestion"),
        ("frisbee", "\n[workload]\nimage.chunk_size = '256 KiB'", "Frisbee's chunks have 1 MiB"),
    ] {
        let more = if name == "frisbee" { more.to_owned() } else { format!("{more}\n{EIGHT}") };
        let error = scheme(name, &more).unwrap_err().to_string();
        assert!(error.contains(expected), "{more}: {error}");
    }
}

/// Chunks as flows take about as long as chunks over TCP, packet by packet, and lead to the same copies.
#[test]
fn flows_agree_with_packets() {
    let most = |image: &super::ImageSummary| image.receive_us.max;
    for (name, keys) in [
        ("swp2p", "linger = '10 s'\n"),
        ("swp2p", "assist = 'server'\nlinger = '10 s'\n"),
        ("image-unicast", ""),
    ] {
        let run = |carrier: &str| {
            let image = run_scheme(name, &format!("{carrier}{keys}{EIGHT}"))
                .summary
                .of::<ImageConfig>()
                .unwrap()
                .clone();
            assert_eq!((image.incomplete, image.wrong), (0, 0), "{name} {carrier}");
            image
        };
        let (packets, exact) = (run(""), run("carrier = 'fluid'\n"));
        let coarse = run("carrier = 'fluid'\nfluid_interval = '1 ms'\n");
        // A flow that starts gets its rate half an interval later on average, and a client's 128 chunks of 256 KiB arrive
        // one after the other.
        let late_us = 128.0 * 500.0;
        for (fluid, late_us) in [(&exact, 0.0), (&coarse, late_us)] {
            let ratio = (most(fluid) - late_us) / most(&packets);
            println!(
                "{name} {keys:?}: {:.0} us, {:.0} us, {ratio:.3}",
                most(&packets),
                most(fluid)
            );
            assert!((0.8..1.1).contains(&ratio), "{name} {keys:?}: {ratio}");
            assert!(
                (fluid.copies - packets.copies).abs() < 0.1,
                "{} {}",
                fluid.copies,
                packets.copies
            );
            // Acknowledgements are missing.
            let bytes = fluid.server_link_bytes as f64 / packets.server_link_bytes as f64;
            assert!((0.85..1.05).contains(&bytes), "{bytes}");
        }
    }
}

#[test]
fn flows_survive_the_crash_of_a_holder() {
    let crash = "[workload.image]\nclients = 5\nsize = '16 MiB'\n\
        [[faults]]\nkind = 'crash'\nplace = 'host 3'\nfrom = '60 ms'";
    let image = run_scheme("swp2p", &format!("carrier = 'fluid'\n{crash}"))
        .summary
        .of::<ImageConfig>()
        .unwrap()
        .clone();
    assert_eq!((image.incomplete, image.wrong), (1, 0));
}
