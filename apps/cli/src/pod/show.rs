//! The pod as text.

use std::fmt::Write as _;

use serde_json::Value;

use crate::shell::escaped;

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn racks(value: &Value) -> String {
    let rack = |servers: &Value| {
        list(servers).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    list(value).iter().map(rack).collect::<Vec<_>>().join(" | ")
}

fn text(value: &Value) -> String {
    escaped(value.as_str().unwrap_or_default())
}

pub(super) fn jobs(answer: &Value) -> String {
    let mut out = format!(
        "{:>5}  {:<20} {:<12} {:>7} {:>8}  servers\n",
        "job", "name", "phase", "workers", "slots"
    );
    for job in list(answer) {
        let declared = &job["declared"];
        let workers = list(&declared["workers"]);
        let servers: Vec<_> = [&declared["master"]].into_iter().chain(workers).collect();
        let servers = servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let slots = job["grant"]["slots"].as_u64().map_or_else(String::new, |it| it.to_string());
        let _ = writeln!(
            out,
            "{:>5}  {:<20} {:<12} {:>7} {slots:>8}  {servers}",
            job["job"],
            text(&declared["name"]),
            text(&job["phase"]),
            workers.len(),
        );
    }
    out
}

pub(super) fn circuits(answer: &Value) -> String {
    let present = match &answer["racks"] {
        Value::Null => "not reported yet".to_owned(),
        value => racks(value),
    };
    format!("servers of each ToR: {present}\nchanges so far: {}\n", answer["version"])
}

pub(super) fn plan(answer: &Value) -> String {
    let period = answer["period_ms"].as_u64().unwrap_or(0);
    let mut out = format!(
        "{:>8} {:>5} {:>12} {:>12}  servers of each ToR\n",
        "ms", "moves", "MB", "absorbed MB"
    );
    for (number, step) in (0..).zip(list(&answer["steps"])) {
        let mb = |value: &Value| value.as_f64().unwrap_or(0.0) / 1e6;
        let _ = writeln!(
            out,
            "{:>8} {:>5} {:>12.1} {:>12.1}  {}",
            period * number,
            step["moves"],
            mb(&step["bytes"]),
            mb(&step["absorbed"]),
            racks(&step["racks"])
        );
    }
    out
}

pub(super) fn status(answer: &Value) -> String {
    let standing = match answer["standing"].as_str() {
        Some("active") => format!("commands, term {}", answer["term"]),
        Some("standby") => "another controller commands".to_owned(),
        _ => "no switch follows this controller".to_owned(),
    };
    let mut out = format!("{standing}\n{}", circuits(&answer["circuits"]));
    let mbps = |value: &Value| value.as_f64().unwrap_or(0.0) * 8.0 / 1e6;
    let rates = list(&answer["sent"]).iter().map(|it| format!("{:.1}", mbps(it)));
    let _ = writeln!(out, "Mbps from each server: {}", rates.collect::<Vec<_>>().join(" "));
    for agent in list(&answer["agents"]) {
        let state = match (&agent["problem"], agent["is_up"].as_bool()) {
            (Value::String(why), _) => escaped(why),
            (_, Some(true)) => "reports".to_owned(),
            _ => "silent".to_owned(),
        };
        let _ = writeln!(out, "switch {}: {state}", text(&agent["name"]));
    }
    out.push_str(&jobs(&answer["jobs"]));
    out
}
