//! Images on the testbed.

use serde_json::Value;

use super::{Place, code, stderr, wait, words};

const IMAGE: &str = r#"
fabric = { topology = "single-switch", hosts = 6, host_link = "100 Mbps" }
workload.image = { server = 1, clients = [0, 2, 3, 5], size = "3500 KiB" }
transport = { name = "swp2p", swp2p = { assist = "server" } }
measure = { time_limit = "120 s" }
"#;

#[test]
fn images_reach_all_clients_by_every_scheme() {
    rackweave_testing::needs!(NetAdmin);
    let place = Place::new(IMAGE);
    let cases = "sweep.cases=[\
                 { transport.name = 'swp2p' }, \
                 { transport.name = 'image-unicast' }, \
                 { transport.name = 'swp2p', transport.swp2p.assist = 'switch' }, \
                 { transport.name = 'swp2p', transport.swp2p.linger = '60 s', \
                   workload.image.groups = 4, workload.image.interval = '700 ms' }]";
    let mut child = place.start(&["testbed", "x.toml", "--set", cases, "--out", "real"]);
    let coordinator = child.id();
    wait(&mut child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(words(&stderr(&output)).contains("disk_rate and write_buffer are simulated"));
    let points = place.summary("real")["points"].clone();
    let points = points.as_array().unwrap();
    let bytes: u32 = 3500 * 1024;
    for point in points {
        let image = &point["image"];
        assert_eq!(point["end"], "all done", "{point:#}");
        assert_eq!(
            (&image["incomplete"], &image["wrong"], &image["chunks"]),
            (&0.into(), &0.into(), &4.into()),
            "{point:#}"
        );
        assert_eq!(point["messages"]["completed"], 4, "{point:#}");
        let link = image["server_link_bytes"].as_f64().unwrap();
        // Copies are counted in whole chunks, and the last one is short.
        assert!(link > f64::from(bytes), "{image:#}");
        for client in image["clients"].as_array().unwrap() {
            assert!(client["received_bytes"].as_u64().unwrap() >= u64::from(bytes), "{client:#}");
            // The transfer is no faster than the link, apart from the burst that the token bucket admits.
            let took = client["run_us"].as_f64().unwrap();
            assert!(took >= (f64::from(bytes) - 20_000.0) * 8.0 / 100.0, "{client:#}");
            assert!(client["receive_us"].as_f64().unwrap() <= took);
        }
    }
    let number = |nth: usize, key: &str| points[nth]["image"][key].as_u64().unwrap();
    assert_eq!(
        (number(1, "from_peers_bytes"), points[1]["image"]["copies"].as_f64()),
        (0, {
            // The last chunk counts as a whole one.
            Some(f64::from(4 * 4 * (1 << 20)) / f64::from(bytes))
        })
    );
    // How often clients ask the server again depends on the machine's load, but late clients find a holder.
    assert!(number(3, "from_peers_bytes") > 0, "{:#}", points[3]);
    for (point, redirects) in [(0, false), (2, true), (3, false)] {
        let switches = &points[point]["image"]["switches"];
        let redirected = switches["redirected"].as_u64().unwrap();
        assert_eq!(redirected > 0, redirects, "{switches:#}");
        assert!(switches["handled"].as_u64().unwrap() >= redirected, "{switches:#}");
    }
    // Another run of these tests may have images there.
    let left = std::fs::read_dir("/dev/shm").unwrap().flatten();
    let mut left = left.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let own = format!("rw-{coordinator:x}");
    let is_own =
        |name: &str| name.starts_with(&own) && name.len() == own.len() + "01234567-image".len();
    assert!(!left.any(|name| is_own(&name) && name.ends_with("-image")));
}

/// By multicast, over switches that copy packets: of one rack, and of two.
#[test]
fn images_reach_all_clients_by_multicast() {
    rackweave_testing::needs!(NetAdmin);
    let place = Place::new(IMAGE);
    let racks = "fabric={ topology = 'leaf-spine', leaves = 2, hosts_per_leaf = 3, spines = 1, host_link = '100 Mbps', core_link = '100 Mbps' }";
    for (name, fabric) in [("one", None), ("two", Some(racks))] {
        let mut args = vec![
            "testbed",
            "x.toml",
            "--out",
            name,
            "--set",
            "transport={ name = 'frisbee', rate = '70 Mbps' }",
            "--set",
            "workload.image={ server = 1, clients = [0, 2, 3, 5], size = '6 MiB', groups = 2, interval = '200 ms' }",
        ];
        args.extend(fabric.into_iter().flat_map(|fabric| ["--set", fabric]));
        let output = place.run(&args);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let summary = place.summary(name);
        let (point, image) = (&summary["points"][0], &summary["points"][0]["image"]);
        assert_eq!(point["end"], "all done", "{point:#}");
        assert_eq!((&image["incomplete"], &image["wrong"]), (&0.into(), &0.into()), "{image:#}");
        assert_eq!(image["from_peers_bytes"], 0, "{image:#}");
        // Four clients of a server that sends to each of them would need four copies.
        let copies = image["copies"].as_f64().unwrap();
        assert!((1.0..3.5).contains(&copies), "{image:#}");
        for client in image["clients"].as_array().unwrap() {
            assert!(client["received_bytes"].as_u64().unwrap() >= 6 << 20, "{client:#}");
            assert!(client["run_us"].as_f64().unwrap() > 500_000.0, "{client:#}");
        }
    }
}

#[test]
fn what_the_testbed_cannot_do_with_an_image_is_refused() {
    rackweave_testing::needs!(NetAdmin);
    let place = Place::new(IMAGE);
    let refused = |sets: &[&str], says: &str| {
        let mut args = vec!["testbed", "x.toml", "--out", "o"];
        args.extend(sets.iter().flat_map(|set| ["--set", set]));
        let output = place.run(&args);
        let message = words(&stderr(&output));
        assert!(message.contains(says), "{sets:?}: {message}");
        assert_eq!(code(&output), 2);
    };
    refused(
        &["transport.swp2p={ assist = 'switch', switch_requests_per_second = 1000 }"],
        "no slow processor",
    );
    refused(&["workload.image.size='2 GiB'"], "the testbed takes 1073741824 at most");
    refused(&["testbed.tcp='machine'"], "only over the kernel's TCP");
    refused(&["faults=[{ kind = 'crash', place = 'host 3', from = '1 s' }]"], "does not crash");
    let racks = "fabric={ topology = 'leaf-spine', leaves = 2, hosts_per_leaf = 3, spines = 1 }";
    refused(&[racks], "racks of 3 hosts");
    let beside =
        "background=[{ transport = { name = 'homa' }, arrivals = 'permutation', sizes = '1 KB' }]";
    refused(&[beside], "no [[background]] streams with an image");
}

/// The same images in both worlds.
#[test]
fn images_take_as_long_as_in_the_simulator() {
    rackweave_testing::needs!(NetAdmin);
    let place = Place::alone(IMAGE);
    let cases = "sweep.cases=[{ transport.name = 'swp2p' }, { transport.name = 'image-unicast' }]";
    let mut args = vec!["run", "x.toml", "-q", "--set", cases, "--out", "simulated"];
    assert_eq!(code(&place.run(&args)), 0);
    (args[0], *args.last_mut().unwrap()) = ("testbed", "real");
    let output = place.run(&args);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let (simulated, real) = (place.summary("simulated"), place.summary("real"));
    for point in 0..2 {
        let (simulated, real) = (&simulated["points"][point], &real["points"][point]);
        for exact in ["bytes", "chunks", "incomplete", "wrong"] {
            assert_eq!(simulated["image"][exact], real["image"][exact], "{exact}: {real:#}");
        }
        assert_eq!(simulated["messages"], real["messages"], "{real:#}");
        // A busy machine makes it slower; the links do not let it be much faster.
        let time = |world: &Value| world["image"]["makespan_us"].as_f64().unwrap();
        let ratio = time(real) / time(simulated);
        assert!((0.7..4.0).contains(&ratio), "{} {}", time(simulated), time(real));
    }
}

#[test]
fn the_overlay_carries_no_images() {
    let place = Place::new(IMAGE);
    let output = place.run(&["testbed", "x.toml", "--overlay", "--out", "o"]);
    assert_eq!(code(&output), 2);
    let message = words(&stderr(&output));
    assert!(message.contains("the overlay carries no images"), "{message}");
}
