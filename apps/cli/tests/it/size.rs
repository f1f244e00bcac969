//! `rackweave size`.

use std::process::Command;

fn size(args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackweave"));
    let output = command.arg("size").args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_smallest_buffer_is_the_same_with_any_number_of_jobs() {
    let json = |jobs| {
        let args = ["buffer", "buffer-size", "--transport", "homa", "--json", "--jobs", jobs];
        let (code, out, error) = size(&args);
        assert_eq!(code, 0, "{error}");
        out
    };
    assert_eq!(json("1"), json("3"));
    let found: serde_json::Value = serde_json::from_str(&json("2")).unwrap();
    let homa = &found["transports"][0];
    let (least, enough) =
        (homa["without_loss"].as_u64().unwrap(), homa["enough"].as_f64().unwrap());
    assert!(enough <= least as f64, "{homa}");
    let rows = homa["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["is_good"] == false && row["drops"].as_u64() > Some(0)));
}

#[test]
fn links_are_searched_for_each_transport_of_a_scenario() {
    let (code, out, error) = size(&["links", "oversubscription", "--set", "measure.messages=2000"]);
    assert_eq!(code, 0, "{error}");
    let [homa, dctcp] = ["homa: ", "dctcp: "].map(|name| out.split_once(name).expect(&out).1);
    assert!(!homa.starts_with("0 runs") && !dctcp.starts_with("0 runs"), "{out}");
    assert_eq!(
        out.matches("p99 within 5 % of that without oversubscription: oversubscription = ").count(),
        2,
        "{out}"
    );
    assert!(out.contains("highest p99") && out.contains("One seed"), "{out}");
    // A rate of the uplinks says the same in another way.
    let (code, _, error) = size(&["links", "quickstart"]);
    assert_eq!(code, 2);
    assert!(error.contains("core_link"), "{error}");
}

/// A transport that cannot run is known before another is searched, and a file stays what it was.
#[test]
fn a_search_that_fails_keeps_what_there_was() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept.toml");
    std::fs::write(&kept, "before").unwrap();
    let run = |out: &std::path::Path, transports: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rackweave"));
        command.args([
            "tune",
            "seeds",
            "--seed",
            "1",
            "--set",
            "measure.messages=200",
            "--transport",
            transports,
        ]);
        let output = command.arg("--out").arg(out).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, printed) = run(&kept, "dctcp,ndp");
    assert_eq!((code, printed.as_str()), (2, ""));
    let (code, printed) = run(&folder.path().join("missing/x.toml"), "dctcp");
    assert_eq!((code, printed.as_str()), (2, ""));
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "before");
    let (code, _) = run(&kept, "dctcp,dctcp");
    let written = std::fs::read_to_string(&kept).unwrap();
    assert_eq!((code, written.matches("dctcp").count() > 0), (0, true), "{written}");
    assert_eq!(written.matches("transport.name").count(), 1, "{written}");
    // What is written is a scenario, with the keys of `--set`.
    assert!(written.contains("messages = 200") && written.contains("seed = 1"), "{written}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackweave"));
    let explained = command.args(["run", "--explain"]).arg(&kept).output().unwrap();
    assert!(explained.status.success(), "{explained:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}
