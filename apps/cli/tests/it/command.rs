//! Tests of the command as scripts use it: exit codes, standard output, files.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::common::{interrupt_after, until};
use serde_json::Value;
use tempfile::TempDir;

const SMALL: &str = r#"
[fabric]
topology = "single-switch"
hosts = 4

[transport]
name = "homa"

[workload]
arrivals = "poisson"
sizes = "W1"
load = 0.5

[measure]
messages = 300

[sweep]
"transport.name" = ["homa", "dctcp", "tcp"]
seed = [1, 2]
"#;

/// A directory with a scenario, in which the command runs.
struct Place(TempDir);

impl Place {
    fn new(scenario: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("small.toml"), scenario).unwrap();
        Self(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rackweave"));
        command.args(args).current_dir(self.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A summary without the fields that depend on the machine.
fn without_wall_clock(mut summary: Value) -> Value {
    fn clear(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|key, _| {
                    !rackweave_lab::results::WALL_CLOCK_FIELDS.contains(&key.as_str())
                });
                fields.values_mut().for_each(clear);
            }
            Value::Array(items) => items.iter_mut().for_each(clear),
            _ => {}
        }
    }
    clear(&mut summary);
    summary
}

#[test]
fn a_run_prints_a_table_and_writes_its_files() {
    let place = Place::new(SMALL);
    let output = place.run(&["run", "small.toml", "--set", "measure.messages_csv=true"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("dctcp"));
    assert_eq!(stderr(&output), "", "progress is for terminals");
    let folder = place.path().join("out/small");
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "goodput.csv",
            "latency_cdf.csv",
            "links.csv",
            "messages.csv",
            "over_seeds.csv",
            "points.csv",
            "queues.csv",
            "report.html",
            "scenario.resolved.toml",
            "slowdown.svg",
            "slowdown_by_size.csv",
            "slowdown_curve.csv",
            "summary.json",
        ]
    );
    let messages = std::fs::read_to_string(folder.join("messages.csv")).unwrap();
    assert_eq!(messages.lines().count(), 1 + 6 * 300);
    // Without the option, the file of the first run must not remain among the results of the second.
    assert_eq!(code(&place.run(&["run", "small.toml", "--quiet"])), 0);
    assert!(!folder.join("messages.csv").exists());
}

#[test]
fn json_is_one_document_with_the_fields_of_the_contract() {
    let place = Place::new(SMALL);
    let output = place.run(&["run", "small.toml", "--json", "--seed", "7"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let file = std::fs::read_to_string(place.path().join("out/small/summary.json")).unwrap();
    assert_eq!(file, stdout(&output));
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&summary)[..5], ["scenario", "seed", "wall_s", "peak_rss_bytes", "points"]);
    assert_eq!(summary["seed"], 7);
    // --seed replaces the sweep over seeds.
    assert_eq!(summary["points"].as_array().unwrap().len(), 3);
    let point = &summary["points"][0];
    assert_eq!(
        keys(point)[..18],
        [
            "set",
            "transport",
            "label",
            "messages",
            "slowdown",
            "latency_us",
            "goodput_gbps",
            "drops",
            "trims",
            "ecn_marks",
            "queue_bytes",
            "packet_hops",
            "events",
            "cpu_s",
            "end",
            "by_size",
            "simulated_us",
            "measured_us",
        ]
    );
    assert_eq!(keys(&point["messages"])[..3], ["started", "completed", "failed"]);
    assert_eq!(keys(&point["slowdown"])[..3], ["p50", "p99", "mean"]);
    assert_eq!(keys(&point["queue_bytes"]), ["mean", "max", "max_switch"]);
    assert_eq!(keys(&point["by_size"][0])[..5], ["up_to_bytes", "count", "mean", "p50", "p99"]);
    assert_eq!(point["messages"]["completed"], 300);
    assert_eq!(point["end"], "all done");
    let counted: u64 = point["by_size"]
        .as_array()
        .unwrap()
        .iter()
        .map(|bucket| bucket["count"].as_u64().unwrap())
        .sum();
    assert_eq!(counted, 300);
    assert!(point["slowdown"]["p50"].as_f64().unwrap() >= 1.0);
}

#[test]
fn results_do_not_depend_on_the_number_of_jobs() {
    let place = Place::new(SMALL);
    let run = |args: &[&str]| -> Value {
        let args = [&["run", "small.toml", "--json"], args].concat();
        serde_json::from_slice(&place.run(&args).stdout).unwrap()
    };
    let one = without_wall_clock(run(&["--jobs", "1"]));
    assert_eq!(one.to_string(), without_wall_clock(run(&["--jobs", "2"])).to_string());
    assert_ne!(one["points"][0], one["points"][1], "another seed gives other results");
}

#[test]
fn a_scenario_comes_from_standard_input() {
    use std::io::Write as _;
    let place = Place::new(SMALL);
    let from_file = place.run(&["run", "small.toml", "--json", "--out", "a"]);
    let mut command = place.command(&["run", "-", "--json", "--out", "b"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(SMALL.as_bytes()).unwrap();
    let piped = child.wait_with_output().unwrap();
    let points = |output: &Output| {
        let mut summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        for point in summary["points"].as_array_mut().unwrap() {
            point["cpu_s"] = Value::Null;
        }
        summary["points"].clone()
    };
    assert_eq!((code(&from_file), code(&piped)), (0, 0));
    assert_eq!(points(&from_file), points(&piped));
}

#[test]
fn a_resolved_scenario_gives_the_same_results() {
    let place = Place::new(SMALL);
    let first: Value =
        serde_json::from_slice(&place.run(&["run", "small.toml", "--json"]).stdout).unwrap();
    let again = place.run(&["run", "out/small/scenario.resolved.toml", "--json", "--out", "again"]);
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(without_wall_clock(first)["points"], without_wall_clock(again)["points"]);
}

#[test]
fn unfinished_messages_are_told_and_fail_the_run() {
    let place = Place::new(SMALL);
    let output = place.run(&[
        "run",
        "small.toml",
        "--json",
        "--set",
        "workload={ arrivals = 'permutation', sizes = '100 MB' }",
        "--set",
        "measure={ time_limit = '10 ms' }",
    ]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    let expected = " 4 were unfinished at the end, waits for host 0 to ";
    let errors = stderr(&output);
    assert!(
        errors.contains(expected) && errors.contains("left, since 0 ns, ... (time limit)"),
        "{errors}"
    );
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let point = &summary["points"][0];
    assert_eq!(point["messages"]["unfinished"], 4);
    // They are counted with the time they have taken, which is less than their ideal time.
    assert_eq!(point["slowdown"]["p99"], 1.0);
    assert_eq!(point["end"], "time limit");
}

#[test]
fn unfinished_messages_can_be_left_out_and_then_a_time_limit_is_no_failure() {
    // At 10 Gbps, a message of 4 MB ends before 4 ms only if it does not share its receiver.
    let place = Place::new(SMALL);
    let run = |unfinished: &str, limit: &str| {
        let set = format!(
            "measure={{ warmup = '1 ms', messages = 'unlimited', time_limit = '{limit}', \
             unfinished = '{unfinished}', size_buckets = ['1 MB'] }}"
        );
        let workload = "workload={ arrivals = 'poisson', load = 0.9, sizes = '4 MB' }";
        let args =
            ["--set", workload, "--set", &set, "--set", "transport.name=homa", "--seed", "3"];
        let output = place.run(&[&["run", "small.toml", "--json"][..], &args].concat());
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        (code(&output), stderr(&output), summary["points"][0].clone())
    };
    let (code, printed, point) = run("leave out", "40 ms");
    assert_eq!(code, 0, "{printed}");
    let count = |name: &str| point["messages"][name].as_u64().unwrap();
    assert!(count("completed") > 10 && count("unfinished") > 0, "{point}");
    assert_eq!(count("left_out"), count("unfinished"));
    assert_eq!(point["by_size"][1]["count"], count("completed"));
    assert_eq!(point["end"], "time limit");
    let note = format!("{} of {} messages", count("unfinished"), count("started"));
    assert!(printed.contains("\nnote: homa") && printed.contains(&note), "{printed}");
    // Poisson arrivals at 90 % and the headers of these few messages are too much for one host.
    assert!(printed.starts_with("warning: offered by host 0: 1.01 times its link"), "{printed}");
    let html = std::fs::read_to_string(place.path().join("out/small/report.html")).unwrap();
    assert!(html.contains("<dt>Left out</dt>"));

    let (code, printed, counted) = run("count", "40 ms");
    assert_eq!(code, 1);
    assert!(printed.contains("\nwarning: homa"), "{printed}");
    assert_eq!(counted["messages"]["left_out"], 0);
    assert_eq!(counted["by_size"][1]["count"], counted["messages"]["started"]);
    assert_eq!(counted["messages"]["unfinished"], point["messages"]["unfinished"]);
    assert_eq!(counted["goodput_gbps"], point["goodput_gbps"]);
    // Only finished messages count; if there are none, there is no result.
    let (code, printed, _) = run("leave out", "4 ms");
    let is_told = printed.contains("unfinished at the end") && printed.contains("(time limit)");
    assert!(code == 1 && is_told, "{printed}");
    let (code, printed, _) = run("leave out", "1001 us");
    assert!(code == 1 && printed.contains("no message started"), "{printed}");
}

#[test]
fn wrong_scenarios_and_arguments_end_with_2() {
    let place = Place::new(&SMALL.replace("load = 0.5", "load = 5"));
    std::fs::write(place.path().join("file"), "").unwrap();
    let cases: [(&[&str], &str); 8] = [
        (&["run", "small.toml"], "small.toml:"),
        (&["run", "nosuch.toml"], "nosuch.toml"),
        (&["run", "quickstart", "--set", "workload.laod=0.5"], "did you mean `load`?"),
        (&["run", "quickstart", "--out", "file/below"], "cannot write results to `file/below`"),
        (&["run", "quickstart", "--jobs", "0"], "--jobs"),
        (&["run"], "SCENARIO.toml"),
        (&["list", "transport"], "transports"),
        (&["fly"], "unrecognized subcommand"),
    ];
    for (args, message) in cases {
        let output = place.run(args);
        assert_eq!(code(&output), 2, "{args:?}: {}", stdout(&output));
        assert_eq!(stdout(&output), "", "{args:?}");
        assert!(stderr(&output).contains(message), "{args:?}: {}", stderr(&output));
    }
    assert!(!place.path().join("out").exists(), "nothing is written");
}

#[test]
fn explain_runs_nothing() {
    let place = Place::new(SMALL);
    let output = place.run(&["run", "small.toml", "--explain"]);
    assert_eq!(code(&output), 0);
    let text = stdout(&output);
    assert!(text.contains("4 hosts at 10 Gbps, 1 switch, 4 links"), "{text}");
    assert!(text.contains("buffer") || text.contains("ecn_threshold"), "{text}");
    assert!(!place.path().join("out").exists());
    let json = place.run(&["run", "small.toml", "--explain", "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["points"].as_array().unwrap().len(), 6);
}

#[test]
fn lists_are_tables_and_documents() {
    let place = Place::new(SMALL);
    let names = |topic: &str| -> Vec<String> {
        let output = place.run(&["list", topic, "--json"]);
        assert_eq!(code(&output), 0);
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        let items = document[topic].as_array().unwrap();
        items.iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(
        names("transports"),
        [
            "homa",
            "dctcp",
            "tcp",
            "ndp",
            "phost",
            "polo",
            "pfabric",
            "sird",
            "swift",
            "dcpim",
            "uet",
            "dcqcn",
            "hpcc",
            "datagram",
            "srpt-oracle",
            "orca",
            "cast-unicast",
            "cast-tcp",
            "cast-chain",
            "frisbee",
            "swp2p",
            "image-unicast",
            "reduce-switch",
            "reduce-master",
            "circuit-plan",
            "allreduce-switch",
            "allreduce-host",
            "allreduce-ring"
        ]
    );
    let pods = ["racks", "rackless", "tor-circuits"];
    assert_eq!(names("fabrics")[..4], ["single-switch", "dumbbell", "leaf-spine", "fat-tree"]);
    assert_eq!(names("fabrics")[4..], pods);
    assert!(names("workloads").contains(&"W4".to_owned()));
    let scenarios = names("scenarios");
    assert_eq!(scenarios[..3], ["quickstart", "incast", "many-senders"]);
    assert!(scenarios.contains(&"polo-core".to_owned()), "{scenarios:?}");
    assert_eq!(scenarios.last().unwrap(), "small.toml");
    let claims = names("claims");
    assert_eq!((claims[0].as_str(), claims.len() > 60), ("homa-sigcomm", true));
    let claims: Value =
        serde_json::from_slice(&place.run(&["list", "claims", "--json"]).stdout).unwrap();
    let scenario = claims["claims"][0]["scenario"].as_str().unwrap();
    assert_eq!(code(&place.run(&["run", scenario, "--explain"])), 0);
    let text = stdout(&place.run(&["list", "workloads"]));
    assert!(text.contains("W4") && text.contains("mean 127.797 KB"), "{text}");
}

#[test]
fn completions_and_manuals_cover_every_command() {
    let place = Place::new(SMALL);
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = place.run(&["completions", shell]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let script = stdout(&output);
        assert!(script.contains("RACKWEAVE_COMPLETE"), "{shell}: {script}");
    }
    assert_eq!(code(&place.run(&["completions", "tcsh"])), 2);
    // As bash asks: the word to complete is the last one.
    let completed = |words: &[&str]| -> Vec<String> {
        let line = [&["--", "rackweave"], words].concat();
        let mut command = place.command(&line);
        command
            .env("RACKWEAVE_COMPLETE", "bash")
            .env("_CLAP_COMPLETE_INDEX", words.len().to_string());
        command.env("_CLAP_COMPLETE_COMP_TYPE", "9").env("_CLAP_COMPLETE_SPACE", "true");
        let output = command.env("_CLAP_IFS", "\n").output().unwrap();
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        stdout(&output).lines().map(str::to_owned).collect()
    };
    std::fs::write(place.path().join("quick.toml"), SMALL).unwrap();
    std::fs::write(place.path().join("quick.csv"), "").unwrap();
    assert_eq!(completed(&["run", "qu"]), ["quickstart", "quick.toml"]);
    assert_eq!(completed(&["image", "fetch", "--overw"]), ["--overwrite"]);

    let output = place.run(&["man", "pages/man1"]);
    assert_eq!((code(&output), stdout(&output).as_str()), (0, ""), "{}", stderr(&output));
    let page = |name: &str| std::fs::read_to_string(place.path().join("pages/man1").join(name));
    let top = page("rackweave.1").unwrap();
    assert!(top.contains("rackweave\\-run(1)") && !top.contains("testbed\\-part"), "{top}");
    assert!(page("rackweave-cast-receive.1").unwrap().contains("\\-\\-overwrite"));
    assert!(page("rackweave-testbed-part.1").is_err());
    // Twice, over its own pages.
    assert_eq!(code(&place.run(&["man", "pages/man1"])), 0);
    let names = std::fs::read_dir(place.path().join("pages/man1")).unwrap();
    assert!(names.map(|it| it.unwrap().file_name()).all(|it| it.to_string_lossy().ends_with(".1")));

    let output = place.run(&["man", "small.toml"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("cannot write small.toml"), "{}", stderr(&output));
}

#[test]
fn results_are_compared() {
    let place = Place::new(SMALL);
    for (out, load) in [("a", "0.5"), ("b", "0.5"), ("c", "0.2")] {
        let set = format!("workload.load={load}");
        let output = place.run(&["run", "small.toml", "--quiet", "--out", out, "--set", &set]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
    }
    let same = place.run(&["compare", "a", "b", "--all", "--exit-code"]);
    assert_eq!(code(&same), 0, "{}{}", stdout(&same), stderr(&same));
    assert!(stdout(&same).contains("measures are the same in every run"), "{}", stdout(&same));
    assert!(!stdout(&same).contains("Settings that differ"), "{}", stdout(&same));

    // The name of a file does as well.
    let other = place.run(&["compare", "a", "c/summary.json"]);
    assert_eq!(code(&other), 0, "{}", stderr(&other));
    assert!(stdout(&other).contains("workload.load  0.5 -> 0.2"), "{}", stdout(&other));
    assert!(stdout(&other).contains("homa (2 seeds, compared one by one)"), "{}", stdout(&other));
    let output = place.run(&["compare", "a", "c", "--json", "--exit-code"]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    let document: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(document["points"].as_array().unwrap().len(), 3);
    assert_eq!(document["settings"][0]["key"], "workload.load");

    // The help says how many differences chance makes.
    let help = stdout(&place.run(&["compare", "--help"]));
    let measures = rackweave_lab::difference::HEADLINE_MEASURES;
    assert!(help.contains(&format!("{measures} measures of each point")), "{help}");
    let by_chance = format!("{:.2} for each point without", measures as f64 / 20.0);
    assert!(help.split_whitespace().collect::<Vec<_>>().join(" ").contains(&by_chance), "{help}");

    let output = place.run(&["compare", "a", "none"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("cannot read none"), "{}", stderr(&output));
}

#[test]
fn the_schema_is_printed() {
    let place = Place::new(SMALL);
    let output = place.run(&["schema"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let schema: Value = serde_json::from_slice(&output.stdout).unwrap();
    let described = &schema["$defs"]["PointSummary"]["properties"]["goodput_gbps"]["description"];
    assert!(described.as_str().unwrap().contains("payload"), "{described}");
}

#[test]
fn reports_are_drawn_from_files() {
    let place = Place::new(SMALL);
    for (out, load) in [("a", "0.5"), ("b", "0.2")] {
        let set = format!("workload.load={load}");
        let output = place.run(&["run", "small.toml", "--quiet", "--out", out, "--set", &set]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
    }
    let page = std::fs::read_to_string(place.path().join("a/report.html")).unwrap();
    std::fs::remove_file(place.path().join("a/report.html")).unwrap();
    let output = place.run(&["report", "a"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("report:  a/report.html"), "{}", stdout(&output));
    assert_eq!(std::fs::read_to_string(place.path().join("a/report.html")).unwrap(), page);

    let output = place.run(&["report", "a", "b/summary.json"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("--out DIR"), "{}", stderr(&output));
    let output = place.run(&["report", "a", "b", "--out", "both", "--json"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let document: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(document["over_seeds"].as_array().unwrap().len(), 6, "3 transports at 2 loads");
    assert!(place.path().join("both/points.csv").exists());
    let output = place.run(&["report", "none"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("`none` has no results"), "{}", stderr(&output));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let place = Place::new(SMALL);
    let mut child = place
        .command(&["list", "workloads"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((code(&output), stderr(&output).as_str()), (0, ""));
}

#[cfg(unix)]
#[test]
fn ctrl_c_before_any_point_is_finished_leaves_earlier_results() {
    let place = Place::new(SMALL);
    assert_eq!(code(&place.run(&["run", "small.toml", "--quiet"])), 0);
    let file = place.path().join("out/small/summary.json");
    let before = std::fs::read(&file).unwrap();
    let endless = ["--set", "measure={ messages = 4_000_000_000, time_limit = '10000 s' }"];
    let args = [&["run", "small.toml"][..], &endless].concat();
    let child = place.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    interrupt_after(&child, Duration::ZERO);
    let output = child.wait_with_output().unwrap();
    assert_eq!((code(&output), stdout(&output).as_str()), (130, ""));
    assert_eq!(stderr(&output), "Interrupted: no point was finished; no files are written.\n");
    assert_eq!(std::fs::read(&file).unwrap(), before);
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_is_finished_and_ends_with_130() {
    // The second point would take hours to run.
    let place =
        Place::new(&SMALL.replace("seed = [1, 2]", "measure.messages = [50, 4_000_000_000]"));
    let set = ["--set", "transport.name=homa", "--set", "measure.time_limit='10000 s'"];
    let args = [&["run", "small.toml", "--json", "--jobs", "1"][..], &set].concat();
    let child = place.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The first point takes milliseconds.
    interrupt_after(&child, Duration::from_secs(1));
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 130, "{}", stderr(&output));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["interrupted"], true);
    let points = summary["points"].as_array().unwrap();
    assert_eq!(points.len(), 1);
    assert_eq!(points[0]["set"]["measure.messages"], 50);
    let partial = std::fs::read_dir(place.path().join("out/small"))
        .unwrap()
        .any(|entry| entry.unwrap().file_name().to_string_lossy().ends_with(".part"));
    assert!(!partial);
}

/// The result files of a folder. What depends on the machine is removed from them.
fn result_files(folder: &Path) -> std::collections::BTreeMap<String, String> {
    let mut files = std::collections::BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() || name == "sweep.json" {
            continue;
        }
        let mut text = std::fs::read_to_string(&path).unwrap();
        if name == "summary.json" {
            text = without_wall_clock(serde_json::from_str(&text).unwrap()).to_string();
        } else if name == "points.csv" {
            let column = text.split(['\n', ',']).position(|cell| cell == "cpu_s").unwrap();
            let without = |line: &str| {
                let cells = line.split(',').enumerate().filter(|(cell, _)| *cell != column);
                cells.map(|(_, cell)| cell.to_owned()).collect::<Vec<_>>().join(",")
            };
            text = text.lines().map(without).collect::<Vec<_>>().join("\n");
        }
        files.insert(name, text);
    }
    files
}

/// The fabric is large enough to be divided; `--threads` changes no file, and what cannot use it is named.
#[test]
fn threads_change_no_result() {
    let large = "fabric = { topology = 'leaf-spine', leaves = 8, hosts_per_leaf = 32, spines = 4 }
        workload = { arrivals = 'poisson', sizes = 'W2', load = 0.5 }
        measure = { messages = 1500, warmup = '20 us', verify = true }
        sweep = { transport.name = ['homa', 'dctcp'] }";
    let place = Place::new(large);
    for threads in ["1", "2", "3", "7"] {
        let output =
            place.run(&["run", "small.toml", "--quiet", "--threads", threads, "--out", threads]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert!(!stderr(&output).contains("one thread"), "{}", stderr(&output));
    }
    let one = result_files(&place.path().join("1"));
    for threads in ["2", "3", "7"] {
        assert_eq!(result_files(&place.path().join(threads)), one, "{threads} threads");
    }
    let explained = stdout(&place.run(&["run", "small.toml", "--explain"]));
    assert!(explained.contains("as many as --threads says"), "{explained}");
    let stops = "measure.load_after=\"stop\"";
    let args = ["run", "small.toml", "--quiet", "--threads", "2", "--out", "x", "--set", stops];
    let output = place.run(&args);
    let note = "one thread for each point: measure.load_after";
    assert!(stderr(&output).contains(note), "{}", stderr(&output));
    let explained = stdout(&place.run(&["run", "small.toml", "--explain", "--set", stops]));
    assert!(explained.contains("one: measure.load_after"), "{explained}");
    assert_eq!(code(&place.run(&["run", "small.toml", "--threads", "0"])), 2);
}

#[cfg(feature = "parquet")]
#[test]
fn run_and_merge_write_the_same_parquet_files() {
    let place = Place::new(SMALL);
    let shard = place.run(&["run", "small.toml", "--shard", "0/1", "--out", "shard", "--quiet"]);
    assert_eq!(code(&shard), 0, "{}", stderr(&shard));
    let whole = place.run(&["run", "small.toml", "--parquet", "--out", "whole", "--quiet"]);
    assert_eq!(code(&whole), 0, "{}", stderr(&whole));
    let merged = place.run(&["merge", "shard", "--parquet", "--out", "merged", "--quiet"]);
    assert_eq!(code(&merged), 0, "{}", stderr(&merged));
    // `points` has the processor time.
    for name in ["slowdown_by_size", "latency_cdf", "links", "over_seeds"] {
        let [whole, merged] = ["whole", "merged"].map(|folder| {
            std::fs::read(place.path().join(folder).join(format!("{name}.parquet"))).unwrap()
        });
        assert!(whole.starts_with(b"PAR1") && whole.ends_with(b"PAR1"), "{name}");
        assert!(whole == merged, "{name}");
    }
    let refused = place.run(&["run", "small.toml", "--shard", "0/1", "--parquet"]);
    assert_eq!(code(&refused), 2, "a shard has no tables");
}

/// A Slurm array and a Kubernetes indexed job differ in the name of the variable that has the number of the task.
#[test]
fn shards_of_array_jobs_are_one_run() {
    let place = Place::new(SMALL);
    assert_eq!(code(&place.run(&["run", "small.toml", "--quiet", "--out", "whole"])), 0);
    for (variable, folder) in [("SLURM_ARRAY_TASK_ID", "slurm"), ("JOB_COMPLETION_INDEX", "k8s")] {
        let shell = format!(
            "exec \"$RACKWEAVE\" run small.toml --shard \"${variable}/4\" --out {folder} --quiet"
        );
        let task = |index: usize| {
            let mut command = Command::new("sh");
            command.args(["-c", &shell]).current_dir(place.path()).stdin(Stdio::null());
            command.env("RACKWEAVE", env!("CARGO_BIN_EXE_rackweave"));
            command.env(variable, index.to_string()).spawn().unwrap()
        };
        // Three of four tasks, at one time; then it is said which points are missing.
        let tasks: Vec<_> = [0, 1, 3].map(task).into_iter().collect();
        for mut task in tasks {
            assert!(task.wait().unwrap().success());
        }
        let early = place.run(&["merge", folder, "--out", "early"]);
        assert_eq!(code(&early), 2);
        assert!(stderr(&early).contains("1 of 6 points are missing: 2"), "{}", stderr(&early));
        assert!(task(2).wait().unwrap().success());
        let merged = format!("{folder}-merged");
        let output = place.run(&["merge", folder, "--out", &merged, "--quiet"]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let [merged, whole] =
            [&*merged, "whole"].map(|name| result_files(&place.path().join(name)));
        assert_eq!(merged, whole);
    }
}

#[test]
fn shards_in_separate_folders_are_merged_and_those_of_other_sweeps_are_refused() {
    let place = Place::new(SMALL);
    for (shard, out, seed) in [("0/2", "a", "1"), ("1/2", "b", "1"), ("1/2", "c", "2")] {
        let args = ["run", "small.toml", "--shard", shard, "--out", out];
        let output = place.run(
            &[&args[..], &["--set", "sweep.workload.load=[0.3, 0.5]", "--seed", seed]].concat(),
        );
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert!(stdout(&output).contains(&format!("rackweave merge {out}")), "{}", stdout(&output));
        assert!(!place.path().join(out).join("summary.json").exists());
    }
    let output = place.run(&["merge", "a", "b", "--out", "all", "--json"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let merged: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(merged["points"].as_array().unwrap().len(), 6);
    let output = place.run(&["merge", "a", "c", "--out", "all"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("different scenarios"), "{}", stderr(&output));
    let output = place.run(&["merge", "small.toml", "--out", "all"]);
    assert_eq!(code(&output), 2);
    assert_eq!(code(&place.run(&["run", "small.toml", "--shard", "2/2"])), 2);
}

#[test]
fn an_interrupted_sweep_is_resumed() {
    let place = Place::new(SMALL);
    let args = ["run", "small.toml", "--resume", "--out", "resumed", "--set"];
    let long = "sweep.measure.messages=[300, 100_000_000]";
    let mut command = place.command(&[&args[..], &[long, "--jobs", "1"]].concat());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let points = place.path().join("resumed/points");
    let is_begun = || std::fs::read_dir(&points).is_ok_and(|mut entries| entries.next().is_some());
    until("a point is finished", is_begun);
    interrupt_after(&child, Duration::ZERO);
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 130, "{}", stderr(&output));
    // What is finished is not run again: the file keeps its time. A damaged one is.
    let entries = || std::fs::read_dir(&points).unwrap().map(|entry| entry.unwrap().path());
    let finished: Vec<_> = entries().collect();
    let time = |path: &Path| std::fs::metadata(path).unwrap().modified().unwrap();
    let before: Vec<_> = finished.iter().map(|path| time(path)).collect();
    let short = "sweep.measure.messages=[300, 200]";
    assert_eq!(code(&place.run(&[&args[..], &[short, "--quiet"]].concat())), 0);
    assert_eq!(finished.iter().map(|path| time(path)).collect::<Vec<_>>(), before);
    std::fs::write(&finished[0], "rackweave point 1\n").unwrap();
    assert_eq!(code(&place.run(&[&args[..], &[short, "--quiet"]].concat())), 0);
    assert!(std::fs::metadata(&finished[0]).unwrap().len() > 100);
    assert_eq!(
        code(&place.run(&["run", "small.toml", "--quiet", "--out", "whole", "--set", short])),
        0
    );
    let [resumed, whole] = ["resumed", "whole"].map(|name| result_files(&place.path().join(name)));
    assert_eq!(resumed, whole);
}

/// What a report's reader does not get is no success, whichever command writes it.
#[test]
fn a_report_that_cannot_be_written_to_standard_output_ends_with_1() {
    let place = Place::new(SMALL);
    assert_eq!(code(&place.run(&["run", "small.toml", "--quiet", "--out", "a"])), 0);
    for args in [
        &["run", "small.toml", "--json", "--out", "b"][..],
        &["run", "small.toml", "--out", "b"],
        &["run", "small.toml", "--explain"],
        &["compare", "a", "a", "--json"],
        &["list", "transports"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = place.command(args).stdout(full).output().unwrap();
        assert_eq!(code(&output), 1, "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("cannot write to standard output"), "{args:?}");
    }
}

/// Job arrays depend on the exit code of shards: points that are stored are a success, whatever they warn of.
#[test]
fn a_shard_with_unfinished_messages_is_stored_and_merging_reports_them() {
    let place = Place::new(SMALL);
    let mut shard = vec!["run", "small.toml", "--shard", "0/1", "--out", "shards"];
    shard.extend(["--set", "workload={ arrivals = 'permutation', sizes = '100 MB' }"]);
    shard.extend(["--set", "measure={ time_limit = '10 ms' }"]);
    for _ in 0..2 {
        let output = place.run(&shard);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert!(stderr(&output).contains("were unfinished"), "{}", stderr(&output));
    }
    let merged = place.run(&["merge", "shards", "--out", "all"]);
    assert_eq!(code(&merged), 1, "{}", stderr(&merged));
}

/// What the units of systemd start is what the command takes.
#[test]
fn units_name_commands_and_options_that_exist() {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/systemd");
    let mut count = 0;
    for unit in std::fs::read_dir(units).unwrap() {
        let text = std::fs::read_to_string(unit.unwrap().path()).unwrap();
        let start = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        let words: Vec<&str> = start.split(' ').skip(1).collect();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rackweave"));
        let output = command.args(&words[..2]).arg("--help").output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        for option in words.iter().filter(|word| word.starts_with("--")) {
            assert!(help.contains(&format!("{option} <")), "{start}: {option}");
            count += 1;
        }
    }
    assert_eq!(count, 3);
}
