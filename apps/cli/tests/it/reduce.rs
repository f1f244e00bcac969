//! `rackweave reduce plan` as operators and scripts use it.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

fn run(arguments: &[&str]) -> Output {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackweave"));
    command.args(["reduce", "plan"]).args(arguments).current_dir(root).stdin(Stdio::null());
    command.output().unwrap()
}

fn text(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The sentence of a command that refuses its arguments, on one line.
fn refused(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    let words: Vec<_> = text.split_whitespace().filter(|it| !["│", "×"].contains(it)).collect();
    words.join(" ")
}

const EXAMPLE: &str = "scenarios/reduce-two-groups.csv";

#[test]
fn the_shipped_trace_is_planned_as_the_guide_says() {
    let guide = include_str!("../../../../docs/ops/reduce-plan.md");
    let table = text(&[EXAMPLE]);
    assert!(guide.contains(table.trim()), "{table}");
    let slow: Vec<&str> = "--uplinks 1,1,1 --uplink-link 4Gbps --delay 5ms".split(' ').collect();
    let alternating = text(&[&[EXAMPLE], &slow[..]].concat());
    let compared = text(&[EXAMPLE, "--compare"]);
    for line in alternating.lines().rev().take(5).chain(compared.lines().rev().take(4)) {
        assert!(guide.contains(line), "{line}");
    }
}

#[test]
fn formats_agree() {
    let plan: Value = serde_json::from_str(&text(&[EXAMPLE, "--format", "json"])).unwrap();
    let periods = plan["periods"].as_array().unwrap();
    let sum: f64 = periods.iter().map(|it| it["time_s"].as_f64().unwrap()).sum();
    assert!((plan["total_s"].as_f64().unwrap() - sum).abs() < 1e-9);
    assert_eq!(plan["total_s"], plan["exact_s"]);
    assert!(plan["total_s"].as_f64() < plan["fixed_s"].as_f64());
    let csv = text(&[EXAMPLE, "--format", "csv"]);
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows.len(), 1 + periods.len());
    for (row, period) in rows[1..].iter().zip(periods) {
        assert_eq!(row.len(), rows[0].len());
        assert_eq!(row[1].parse::<f64>().unwrap(), period["time_s"].as_f64().unwrap());
        assert_eq!(row[5].parse::<u64>().unwrap(), period["absorbed_bytes"].as_u64().unwrap());
    }
    let again = text(&[EXAMPLE, "--format", "csv", "--seed", "1"]);
    assert_eq!(again, csv, "the same seed gives the same plan");
}

#[test]
fn a_pod_can_be_a_file_and_every_algorithm_and_architecture_plans() {
    let folder = TempDir::new().unwrap();
    let pod = folder.path().join("pod.toml");
    let tors = "[[tor]]\nports = 4\nslots = 65536\n[[tor]]\nports = 2\n[[tor]]\nports = 2\n";
    std::fs::write(&pod, tors).unwrap();
    let pod = pod.to_str().unwrap();
    assert_eq!(text(&[EXAMPLE, "--pod", pod]), text(&[EXAMPLE]));
    for algorithm in ["fixed", "exact", "heuristic", "greedy", "hysteresis", "eclipse"] {
        for architecture in ["fat-tree", "ordc", "p4inc-aoi", "p4-ordc"] {
            let arguments = ["--algorithm", algorithm, "--architecture", architecture];
            let table = text(&[&[EXAMPLE, "--scope", "moved"], &arguments[..]].concat());
            assert!(table.starts_with(&format!("{architecture}, {algorithm} plan")), "{table}");
        }
    }
    std::fs::write(pod, tors.replace("ports = 2", "port = 2")).unwrap();
    let sentence = refused(&[EXAMPLE, "--pod", pod]);
    assert!(sentence.contains(&format!("{pod}:5:1: unknown field `port`")), "{sentence}");
}

#[test]
fn mistakes_are_named_with_file_line_and_column() {
    assert_eq!(
        refused(&[EXAMPLE, "--tors", "4,2"]),
        "scenarios/reduce-two-groups.csv:9:5: `6` is not a value for `dst`: it must be a server, from 0 to 5"
    );
    assert!(refused(&["no.csv"]).contains("cannot open the trace no.csv: No such file"));
    assert!(refused(&["scenarios"]).contains("cannot read the trace: Is a directory"));
    assert!(
        refused(&[EXAMPLE, "--programmable", "3"]).contains("not the number of a ToR, from 0 to 2")
    );
    assert!(refused(&[EXAMPLE, "--uplinks", "1"]).contains("has 1 numbers, but there are 3 ToRs"));
    assert!(refused(&[EXAMPLE, "--tors", "4,0"]).contains("ToR 1 has no server port"));
    assert!(
        refused(&[EXAMPLE, "--tors", "16,16", "--algorithm", "exact"]).contains("more than 2000")
    );
    assert!(refused(&[EXAMPLE, "--delay", "25"]).contains("the unit must be one of"));
    assert!(refused(&[EXAMPLE, "--period", "0 s"]).contains("must have a length"));
}
