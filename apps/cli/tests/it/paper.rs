//! Tests of `rackweave paper` as scripts use it.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::common::interrupt_after;
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

/// A directory with a scenario and claims, in which the command runs.
struct Place(TempDir);

impl Place {
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

/// Two claims on a small scenario: one that holds, one that does not.
const CLAIMS: &str = r#"
paper = "small"
title = "A small paper"
source = "nowhere"
written = "2026-02-03"

[scenarios.small]
file = "small.toml"
quick = { set = ["measure.messages=100"], only = { seed = 1 } }

[[claims]]
id = "small-faster"
claim = "Homa is faster than TCP"
source = "section 1"
paper = "twice as fast"
holds_when = "its p99 slowdown is lower"
scenario = "small"

[[claims.rules]]
say = "p99 slowdown of Homa below TCP's"
set = "before"
for_each = "seed"
left = { metric = "slowdown.p99", of = { transport = "homa" } }
is = "<"
right = { metric = "slowdown.p99", of = { transport = "tcp" } }
paper_ratio = "0.5"

[[claims.figures]]
name = "p99"
title = "Slowdown"
x = { key = "seed" }
y = { metric = "slowdown.p99" }

[[claims]]
id = "small-fewer"
claim = "Homa takes no time"
source = "section 2"
paper = "none at all"
holds_when = "its mean slowdown is below 1"
cause = "nothing is faster than ideal"
scenario = "small"

[[claims.rules]]
say = "mean slowdown below 1"
set = "before"
of = { transport = "homa" }
left = { metric = "slowdown.mean", over = "max" }
is = "<"
right = { value = 1.0 }
"#;

fn with_claims(claims: &str) -> Place {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("small.toml"), SMALL).unwrap();
    std::fs::write(folder.path().join("claims.toml"), claims).unwrap();
    Place(folder)
}

#[test]
fn claims_are_decided_by_their_rules() {
    let place = with_claims(CLAIMS);
    let output = place.run(&["paper", "claims.toml", "--json", "--out", "out"]);
    // A claim that does not hold is a result.
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(stderr(&output), "", "progress is for terminals");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let claims = document["claims"].as_array().unwrap();
    for field in [
        "id", "system", "claim", "source", "paper", "here", "holds", "why", "rule", "rules",
        "scenario", "seconds", "verdict", "remarks", "notes", "warnings", "figures", "results",
    ] {
        assert!(claims[0].get(field).is_some(), "{field}");
    }
    assert_eq!((&claims[0]["holds"], &claims[1]["holds"]), (&true.into(), &false.into()));
    assert_eq!(claims[0]["rules"][0]["checks"].as_array().unwrap().len(), 2);
    assert!(claims[0]["here"].as_str().unwrap().ends_with("paper 0.5"));
    // What the file says is apart from what was measured.
    assert_eq!(claims[0]["remarks"].get("cause"), None, "it holds");
    assert_eq!(claims[1]["remarks"]["cause"], "nothing is faster than ideal");
    assert!(!claims[1]["why"].as_str().unwrap().contains("faster than ideal"));
    assert_eq!(claims[1]["remarks"]["written"], "2026-02-03");
    let out = place.path().join("out");
    assert_eq!(std::fs::read_to_string(out.join("claims.json")).unwrap(), stdout(&output));
    let page = std::fs::read_to_string(out.join("index.html")).unwrap();
    assert!(page.contains("small-faster: holds") && page.contains("small-fewer: does not hold"));
    let details = std::fs::read_to_string(out.join("claims.html")).unwrap();
    assert!(details.contains("small-faster: holds") && details.contains("nothing is faster than"));
    let figure = std::fs::read_to_string(out.join("small-faster-p99.svg")).unwrap();
    assert!(figure.starts_with("<svg"));
    // The page can be drawn again from what is on the disk.
    let again = place.run(&["paper", "--page", "out", "--out", "page", "--json"]);
    assert_eq!(code(&again), 0, "{}", stderr(&again));
    let read: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(read["claims"][0]["results"][0], "../out/runs/small-small");
    assert_eq!(read["claims"][0]["figures"], claims[0]["figures"]);
    let redrawn = std::fs::read_to_string(place.path().join("page/index.html")).unwrap();
    let figures = |page: &str| page.matches("<figure").count();
    assert_eq!((figures(&redrawn), figures(&page)), (1, 1));
    let missing = place.run(&["paper", "--page", "nowhere"]);
    assert_eq!(code(&missing), 2);
    assert!(stderr(&missing).contains("nowhere/claims.json"), "{}", stderr(&missing));
    // Both claims share one run.
    let summary = std::fs::read_to_string(out.join("runs/small-small/summary.json")).unwrap();
    let summary: Value = serde_json::from_str(&summary).unwrap();
    assert_eq!(summary["points"].as_array().unwrap().len(), 6);
}

#[test]
fn quick_claims_run_less_and_one_claim_runs_separately() {
    let place = with_claims(CLAIMS);
    let output = place.run(&["paper", "claims.toml", "--claim", "small-faster", "--quick"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.starts_with("small-faster: HOLDS\n"), "{text}");
    assert!(text.contains("1 claim, which holds; "), "{text}");
    assert!(text.contains("--quick has not tried 3 of 6 points: seed 2"), "{text}");
    assert!(text.contains("--quick has set measure.messages=100"), "{text}");
    let summary =
        std::fs::read_to_string(place.path().join("out/papers/runs/small-small/summary.json"));
    let summary: Value = serde_json::from_str(&summary.unwrap()).unwrap();
    let points = summary["points"].as_array().unwrap();
    assert_eq!(points.len(), 3);
    assert!(points.iter().all(|point| point["messages"]["started"] == 100));
}

#[test]
fn an_exploration_is_no_claim_and_remarks_of_the_file_are_dated() {
    let claims = CLAIMS
        .replace("[[claims.rules]]\nsay = \"p99", "[[claims.rules]]\nreport = true\nsay = \"p99");
    let place = with_claims(&claims);
    let output = place.run(&["paper", "claims.toml", "--out", "out"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.starts_with("small-faster: EXPLORED\n"), "{text}");
    assert!(text.contains("1 claim, which does not hold, and 1 exploration; "), "{text}");
    let (measured, remarks) =
        text.split_once("-- text of claims.toml of 2026-02-03, not of this run").unwrap();
    assert!(!measured.contains("nothing is faster than ideal"), "{text}");
    assert!(remarks.contains("cause  nothing is faster than ideal"), "{text}");
    // The table at the end has a measured number of each.
    let table = text
        .lines()
        .filter(|line| line.contains("does not hold  1.") && line.starts_with("small-fewer "));
    assert_eq!(table.count(), 1, "{text}");
}

/// A scenario next to the claims counts, also where its name lacks `.toml` and is that of a built-in one.
#[test]
fn a_scenario_beside_the_claims_comes_before_a_built_in_one() {
    let claims = CLAIMS.replace("\"small.toml\"", "\"quickstart\"");
    let place = with_claims(&claims);
    std::fs::rename(place.path().join("small.toml"), place.path().join("quickstart.toml")).unwrap();
    let output = place.run(&["paper", "claims.toml", "--quick", "--json"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}

#[test]
fn an_undecided_claim_is_a_failure_with_a_reason() {
    let place = with_claims(&CLAIMS.replace("slowdown.mean", "by_size[up_to_bytes=31].mean"));
    let output = place.run(&["paper", "claims.toml", "--json", "--quick"]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["claims"][0]["holds"], true, "others are decided all the same");
    assert_eq!(document["claims"][1]["holds"], Value::Null);
    let why = document["claims"][1]["why"].as_str().unwrap();
    assert!(why.contains("claims.toml, claim `small-fewer`"), "{why}");
    assert!(why.contains("no item has up_to_bytes = 31"), "{why}");
}

#[test]
fn the_help_names_every_paper() {
    let place = with_claims(CLAIMS);
    let help = stdout(&place.run(&["paper", "--help"]));
    let listed = place.run(&["list", "claims", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    for claim in listed["claims"].as_array().unwrap() {
        let paper = claim["system"].as_str().unwrap();
        assert!(
            help.contains(&format!("{paper},")) || help.contains(&format!("{paper})")),
            "{paper}"
        );
    }
}

#[test]
fn wrong_claims_and_papers_are_wrong_usage() {
    let place = with_claims(CLAIMS);
    for (args, named) in [
        (&["paper", "homa", "--claim", "homa-sigcom"][..], "did you mean `homa-sigcomm`?"),
        (&["paper", "hoam"], "did you mean `homa`?"),
        (&["paper", "small.toml"], "is no file of claims"),
        (&["paper", "--jobs", "0"], "--jobs"),
    ] {
        let output = place.run(args);
        assert_eq!(code(&output), 2, "{args:?}");
        assert!(stderr(&output).contains(named), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
    }
    // A metric that no result has is wrong before anything is run.
    let wrong = with_claims(&CLAIMS.replace("slowdown.mean", "slowdown.meen"));
    let output = wrong.run(&["paper", "claims.toml"]);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    let words = stderr(&output).replace(['│', '×'], " ");
    let words: Vec<&str> = words.split_whitespace().collect();
    let named = "claims.toml, claim `small-fewer`: rule \"mean slowdown below 1\": `slowdown.meen` is no metric: there is no `meen` in";
    assert!(words.join(" ").contains(named), "{words:?}");
    assert!(!wrong.path().join("out").exists(), "nothing is run");
    let listed = place.run(&["paper", "claims.toml", "--list", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["claims"][1]["id"], "small-fewer");
    assert!(!place.path().join("out").exists(), "a list runs nothing");
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_what_is_finished_and_ends_with_130() {
    let place = with_claims(CLAIMS);
    // Points that take an instant, and one that takes hours.
    let text = SMALL.replace("seed = [1, 2]", "measure.messages = [300, 2_000_000_000]");
    let text = text.replace("messages = 300", "time_limit = \"100000 s\"");
    std::fs::write(place.path().join("small.toml"), text).unwrap();
    let claims = CLAIMS.replace("\"seed\"", "\"measure.messages\"");
    std::fs::write(place.path().join("claims.toml"), claims).unwrap();
    let child = place
        .command(&["paper", "claims.toml", "--json", "--jobs", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The first points take milliseconds.
    interrupt_after(&child, Duration::from_millis(1500));
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 130, "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["interrupted"], true);
    assert_eq!(document["claims"][0]["holds"], Value::Null);
    assert!(place.path().join("out/papers/index.html").exists());
    assert!(place.path().join("out/papers/runs/small-small/summary.json").exists());
}

/// Its scenario is a trace in a file, so that it is not among the built-in ones.
#[test]
fn the_outcast_of_eqds_keeps_its_bounds() {
    let claims =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/papers/uet/outcast-claims.toml");
    let place = Place(tempfile::tempdir().unwrap());
    let output = place.run(&["paper", claims]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.starts_with("eqds-outcast: HOLDS\n"), "{text}");
}
