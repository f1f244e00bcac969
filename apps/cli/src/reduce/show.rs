//! A plan as a table, as JSON and as CSV.

use std::fmt::Write as _;

use rackweave_core::Span;
use rackweave_rackless::cost::Scope;
use rackweave_rackless::plan::Step;
use serde_json::{Value, json};

use super::plan::Report;
use crate::shell::size;

/// Racks are shown in the table up to this number of servers.
const SHOWN_SERVERS: u32 = 16;

/// A time with three digits after the point; one without end is "never".
fn time(span: Span) -> String {
    match span {
        Span::MAX => "never".to_owned(),
        Span::ZERO => "0".to_owned(),
        span => span.to_string(),
    }
}

fn seconds(span: Span) -> Value {
    match span {
        Span::MAX => Value::Null,
        span => json!(span.as_secs_f64()),
    }
}

/// How a total compares with a reference, as in "the plan is 41.4 % shorter".
fn beside(total: Span, reference: Span) -> String {
    if total == reference {
        return "as long as the plan".to_owned();
    }
    if total == Span::MAX || reference == Span::MAX || reference == Span::ZERO {
        return "cannot be compared with the plan".to_owned();
    }
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let percent = 100.0 * (total.ticks() as f64 / reference.ticks() as f64 - 1.0);
    let how = if percent < 0.0 { "shorter" } else { "longer" };
    format!("the plan is {:.1} % {how}", percent.abs())
}

/// The racks, as in "0 1 2 3 | 4 5 | 6 7", and the circuits between them, as in "0-1:2".
fn racks(report: &Report<'_>, step: &Step, between: &str) -> String {
    let racks = step.configuration.racks(report.fabric.pod().tors().len());
    let names =
        |rack: &Vec<u32>| rack.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    racks.iter().map(names).collect::<Vec<_>>().join(between)
}

fn circuits(report: &Report<'_>, step: &Step) -> String {
    let Some(circuits) = step.configuration.circuits() else { return String::new() };
    let tors = report.fabric.pod().tors().len();
    let pairs = (0..tors).flat_map(|a| (a + 1..tors).map(move |b| (a, b)));
    let used = pairs.filter(|&(a, b)| circuits.between(a, b) > 0);
    used.map(|(a, b)| format!("{a}-{b}:{}", circuits.between(a, b))).collect::<Vec<_>>().join(" ")
}

fn bottleneck(step: &Step) -> String {
    step.cost.bottleneck.map_or_else(|| "-".to_owned(), |link| link.to_string())
}

/// What the plan is, in words.
fn title(report: &Report<'_>) -> String {
    let scope = match report.options.reconfiguration.scope {
        Scope::All => "all ports dark",
        Scope::Moved => "moved ports dark",
    };
    format!(
        "{}, {} plan, {} for a reconfiguration with {scope}",
        report.fabric.architecture().name(),
        report.options.algorithm.name(),
        report.options.reconfiguration.delay,
    )
}

pub(super) fn table(report: &Report<'_>) -> String {
    let few = report.fabric.pod().servers() <= SHOWN_SERVERS;
    let mut rows = vec![
        ["period", "time", "of it dark", "busiest link", "absorbed", "moved", "racks"]
            .map(str::to_owned),
    ];
    for (number, step) in report.plan.steps.iter().enumerate() {
        let moved = match step.circuits_changed {
            0 => step.moves.len().to_string(),
            changed => format!("{changed} circuits"),
        };
        let place = match (step.configuration.circuits(), few) {
            (Some(_), _) => circuits(report, step),
            (None, true) => racks(report, step, " | "),
            (None, false) => "(see --format json)".to_owned(),
        };
        rows.push([
            number.to_string(),
            time(step.cost.time),
            time(step.delay),
            bottleneck(step),
            size(step.cost.absorbed),
            moved,
            place,
        ]);
    }
    let mut widths = [0; 7];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    let mut text = format!("{}\n\n", title(report));
    for row in &rows {
        let mut line = String::new();
        for (index, (cell, width)) in row.iter().zip(widths).enumerate() {
            // Writing to a string cannot fail.
            let _ = match index {
                3 | 6 => write!(line, "{cell:<width$}  "),
                _ => write!(line, "{cell:>width$}  "),
            };
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text.push('\n');
    totals(report, &mut text);
    text
}

fn totals(report: &Report<'_>, text: &mut String) {
    let plan = &report.plan;
    let mut row = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<22} {value}");
    };
    row("total", time(plan.total));
    row("reconfigurations", plan.reconfigurations().to_string());
    row("absorbed", size(plan.absorbed()));
    let compared = |total| format!("{} ({})", time(total), beside(plan.total, total));
    row("fixed configuration", compared(report.fixed));
    row(
        "exact plan",
        report.exact.map_or_else(
            || "not computed, because there are too many configurations or periods".to_owned(),
            compared,
        ),
    );
    for (architecture, total, absorbed) in &report.architectures {
        let value = format!("{}, {} absorbed", time(*total), size(*absorbed));
        row(architecture.name(), value);
    }
}

pub(super) fn json(report: &Report<'_>) -> Value {
    let pod = report.fabric.pod();
    let step = |(number, step): (usize, &Step)| {
        let racks = step.configuration.racks(pod.tors().len());
        let moves = step.moves.iter();
        let moves = moves.map(|it| json!({ "server": it.server, "from": it.from, "to": it.to }));
        json!({
            "period": number,
            "time_s": seconds(step.cost.time),
            "dark_s": seconds(step.delay),
            "bottleneck": step.cost.bottleneck.map(|link| link.to_string()),
            "bytes": report.trace.periods[number].bytes(),
            "absorbed_bytes": step.cost.absorbed,
            "crossing_bytes": step.cost.crossing,
            "racks": racks,
            "circuits": step.configuration.circuits().map(|_| circuits(report, step)),
            "circuits_changed": step.circuits_changed,
            "moves": moves.collect::<Vec<_>>(),
        })
    };
    let architectures = report.architectures.iter().map(|(architecture, total, absorbed)| {
        json!({
            "architecture": architecture.name(),
            "total_s": seconds(*total),
            "absorbed_bytes": absorbed,
        })
    });
    json!({
        "architecture": report.fabric.architecture().name(),
        "algorithm": report.options.algorithm.name(),
        "delay_s": seconds(report.options.reconfiguration.delay),
        "scope": match report.options.reconfiguration.scope {
            Scope::All => "all",
            Scope::Moved => "moved",
        },
        "servers": pod.servers(),
        "transfers": report.trace.transfers,
        "total_s": seconds(report.plan.total),
        "fixed_s": seconds(report.fixed),
        "exact_s": report.exact.map(seconds),
        "reconfigurations": report.plan.reconfigurations(),
        "absorbed_bytes": report.plan.absorbed(),
        "architectures": architectures.collect::<Vec<_>>(),
        "periods": report.plan.steps.iter().enumerate().map(step).collect::<Vec<_>>(),
    })
}

pub(super) fn csv(report: &Report<'_>) -> String {
    let mut text =
        "period,time_s,dark_s,bottleneck,bytes,absorbed_bytes,crossing_bytes,moved_servers,\
                    circuits_changed,racks,circuits\n"
            .to_owned();
    for (number, step) in report.plan.steps.iter().enumerate() {
        let number_of = |span: Span| match span {
            Span::MAX => String::new(),
            span => span.as_secs_f64().to_string(),
        };
        let _ = writeln!(
            text,
            "{number},{},{},{},{},{},{},{},{},{},{}",
            number_of(step.cost.time),
            number_of(step.delay),
            step.cost.bottleneck.map(|link| link.to_string()).unwrap_or_default(),
            report.trace.periods[number].bytes(),
            step.cost.absorbed,
            step.cost.crossing,
            step.moves.len(),
            step.circuits_changed,
            racks(report, step, "|"),
            circuits(report, step)
        );
    }
    text
}
