//! `rackweave calibrate`, and simulations with its table.

use super::*;

/// One message on an idle path, which costs can only delay. (Under an incast they also keep senders apart.)
const SCENARIO: &str = r#"
fabric = { topology = "single-switch", hosts = 2, host_link = "1 Gbps" }
transport = { name = "homa" }
workload = { arrivals = "incast", sizes = "10 KB", senders = 1 }
"#;

/// On a machine whose figures cannot be used the command says so, and leaves no file; otherwise `run` takes the file.
fn calibrates(place: &Place, more: &[&str]) {
    let output = place
        .run(&[&["calibrate", "host.toml", "--rounds", "3", "--load-ms", "300"], more].concat());
    let file = place.path().join("host.toml");
    let said = words(&stderr(&output));
    if code(&output) == 1 {
        assert!(said.contains("Nothing was written."), "{said}");
        let reasons = ["from round to round", "costs nothing by these figures", "was not carried"];
        assert!(reasons.iter().any(|reason| said.contains(reason)), "{said}");
        assert!(!file.exists());
        println!("this machine is too busy: {said}");
        return;
    }
    assert_eq!(code(&output), 0, "{said}");
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("system call") && shown.contains("written: host.toml"), "{shown}");
    let table: toml::Table = std::fs::read_to_string(&file).unwrap().parse().unwrap();
    let host = table["host"].as_table().unwrap();
    // Packets cost something in both directions: figures by which they do not are refused.
    for direction in ["send", "receive"] {
        let costs =
            ["system_call", "call", "packet", "byte"].map(|of| format!("{direction}_{of}_ns"));
        assert!(costs.iter().any(|key| host[key].as_float().unwrap() > 0.0), "{table}");
    }
    // So do pairs, unless their loads could not be measured, which the file says.
    let pairs = [&host["send_pair_ns"], &host["receive_pair_ns"], &host["switch"]["pair_ns"]];
    let missing = host["measured"]["missing"].as_array().unwrap().iter();
    let unknown = missing.filter(|it| it.as_str().unwrap().contains("the cost of a pair")).count();
    let known = pairs.iter().filter(|cost| cost.as_float().unwrap() > 0.0).count();
    assert_eq!(known + unknown, pairs.len(), "{table}");
    assert!(host["wake_us"].as_array().unwrap().len() > 3);
    let is_overlay = host["measured"]["in"].as_str() == Some("UDP on loopback");
    assert_eq!(is_overlay, !more.is_empty() || !may_make_namespaces());
    let run = |out: &str, more: &[&str]| {
        let output = place.run(&[&["run", "x.toml", "-q", "--out", out], more].concat());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        place.summary(out)["points"][0]["latency_us"]["mean"].as_f64().unwrap()
    };
    let (without, with) = (run("a", &[]), run("b", &["--host", "host.toml"]));
    assert!(with > without, "hosts cost time: {with} against {without} us");
    // The same seed and table give the same result, by any number of jobs, and from the resolved scenario.
    assert_eq!(run("c", &["--host", "host.toml", "--jobs", "2"]), with);
    let resolved = place.run(&["run", "b/scenario.resolved.toml", "-q", "--out", "d"]);
    assert_eq!(code(&resolved), 0);
    assert_eq!(place.summary("d")["points"][0]["latency_us"]["mean"].as_f64(), Some(with));
}

#[test]
fn without_privileges_loopback_is_measured_and_a_run_takes_the_table() {
    calibrates(&Place::alone(SCENARIO), &["--overlay"]);
}

#[test]
fn namespaces_are_measured_and_a_run_takes_the_table() {
    rackweave_testing::needs!(NetAdmin);
    calibrates(&Place::alone(SCENARIO), &[]);
}

#[test]
fn ctrl_c_leaves_no_file_and_no_process() {
    let place = Place::new(SCENARIO);
    std::fs::write(place.path().join("host.toml"), "earlier").unwrap();
    let child = place.start(&["calibrate", "host.toml", "--overlay"]);
    let mut found = None;
    until("the first load has been started", || {
        found = entry_of(child.id()).filter(|(_, entry)| processes_of(entry).len() == 3);
        found.is_some()
    });
    let parts = processes_of(&found.unwrap().1);
    signal(child.id(), "-INT");
    let mut child = child;
    wait(&mut child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 130, "{}", stderr(&output));
    assert!(stderr(&output).contains("nothing was written"));
    until("all processes have ended", || parts.iter().all(|part| !is_alive(*part)));
    let names: Vec<_> =
        std::fs::read_dir(place.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(std::fs::read_to_string(place.path().join("host.toml")).unwrap(), "earlier");
}

#[test]
fn a_host_table_has_no_effect_on_real_hosts_and_the_command_says_so() {
    let place = Place::new(&format!("{SCENARIO}\n[host]\nsend_packet_ns = 900_000_000\n"));
    let output = place.run(&["testbed", "x.toml", "--overlay", "-q", "--out", "o"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(
        words(&stderr(&output)).contains("real hosts cost what they cost"),
        "{}",
        stderr(&output)
    );
    // And without a table the command says what simulations leave out.
    std::fs::write(place.path().join("x.toml"), SCENARIO).unwrap();
    let output = place.run(&["testbed", "x.toml", "--overlay", "-q", "--out", "o"]);
    assert!(words(&stderr(&output)).contains("leaves out what hosts cost"), "{}", stderr(&output));
}
