//! The output of the switch command.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};

use rackweave_core::{Bytes, DropReason};
use rackweave_linux::switch::{LinkStats, Report};
use serde_json::{Value, json};

/// The largest number of hosts that fit a screen.
const MOST_ROWS: usize = 32;

/// The live display: on a terminal a table that is redrawn in place, otherwise one line per second.
pub(super) struct Live {
    before: Option<Report>,
    /// The number of lines of the last table.
    lines: usize,
    to_stdout: bool,
}

impl Live {
    pub(super) const fn new(to_stdout: bool) -> Self {
        Self { before: None, lines: 0, to_stdout }
    }

    pub(super) fn show(&mut self, report: &Report) {
        let terminal = match self.to_stdout {
            true => std::io::stdout().is_terminal(),
            false => std::io::stderr().is_terminal(),
        };
        let before = self.before.take().unwrap_or_default();
        let mut text = String::new();
        if terminal {
            let rows = table(&before, report);
            if self.lines > 0 {
                let _ = write!(text, "\x1b[{}A\x1b[J", self.lines);
            }
            self.lines = rows.len();
            rows.iter().for_each(|row| text += &format!("{row}\n"));
        } else {
            text = line(&before, report) + "\n";
        }
        // The switch continues even if its output cannot be written.
        let _ = match self.to_stdout {
            true => std::io::stdout().lock().write_all(text.as_bytes()),
            false => std::io::stderr().lock().write_all(text.as_bytes()),
        };
        self.before = Some(report.clone());
    }
}

/// Returns the rate in megabits per second between two reports.
fn mbps(before: &Report, now: &Report, bytes: u64) -> f64 {
    let span = now.at.since(before.at).as_secs_f64();
    if span > 0.0 { bytes as f64 * 8.0 / span / 1e6 } else { 0.0 }
}

fn line(before: &Report, now: &Report) -> String {
    let (new, old) = (&now.counters, &before.counters);
    let span = now.at.since(before.at).as_secs_f64().max(1e-9);
    let queues = now.links.iter().map(|link| link.queue_bytes);
    let mut program = String::new();
    for (name, count) in &now.program {
        let new = count - before.program.get(name).copied().unwrap_or(0);
        if new > 0 {
            let _ = write!(program, ", {new} {name}");
        }
    }
    format!(
        "{:.1} s: {:.0} frames/s, {:.1} Mbps, queues {} (longest {}), {} drops, {} marks, {} trims, late p99 {} max {}{program}",
        now.at.as_us_f64() / 1e6,
        (new.forwarded - old.forwarded) as f64 / span,
        mbps(before, now, new.forwarded_bytes - old.forwarded_bytes),
        Bytes(queues.clone().sum()),
        Bytes(queues.max().unwrap_or(0)),
        new.dropped() - old.dropped(),
        new.ecn_marks - old.ecn_marks,
        new.trims - old.trims,
        now.lateness.p99,
        now.lateness.max,
    )
}

fn table(before: &Report, now: &Report) -> Vec<String> {
    let mut rows = vec![line(before, now)];
    rows.push(format!(
        "{:>6} {:>10} {:>10} {:>10} {:>8}",
        "host", "in Mbps", "out Mbps", "queue", "drops"
    ));
    let hosts = now.links.iter().take_while(|link| link.name.starts_with('h')).count();
    let grown = |index: usize, value: fn(&LinkStats) -> u64| {
        let was = before.links.get(index).map_or(0, value);
        value(&now.links[index]).saturating_sub(was)
    };
    for host in 0..hosts.min(MOST_ROWS) {
        let suffix = format!("->h{host}");
        let up = mbps(before, now, grown(host, |link| link.bytes));
        let Some(down) = now.links.iter().position(|link| link.name.ends_with(&suffix)) else {
            // Behind an optical circuit switch no port is that of a host.
            rows.push(format!("{host:>6} {up:>10.1} {:>10} {:>10} {:>8}", "-", "-", "-"));
            continue;
        };
        rows.push(format!(
            "{host:>6} {up:>10.1} {:>10.1} {:>10} {:>8}",
            mbps(before, now, grown(down, |link| link.bytes)),
            Bytes(now.links[down].queue_bytes).to_string(),
            grown(down, |link| link.drops),
        ));
    }
    if hosts > MOST_ROWS {
        rows.push(format!("       and {} more hosts", hosts - MOST_ROWS));
    }
    rows
}

/// Returns the counters as sentences.
pub(super) fn summary(report: &Report) -> String {
    let counters = &report.counters;
    let mut text = format!(
        "{} frames in, {} out ({}); {} marked, {} trimmed, {} returned to their senders\n",
        counters.received,
        counters.forwarded,
        Bytes(counters.forwarded_bytes),
        counters.ecn_marks,
        counters.trims,
        counters.returned_to_sender,
    );
    if counters.copied + counters.consumed + counters.made > 0 {
        let _ = writeln!(
            text,
            "the program made {} copies, created {} frames, and consumed {} frames",
            counters.copied, counters.made, counters.consumed
        );
    }
    for (name, count) in report.program.iter().filter(|(_, count)| **count > 0) {
        let _ = writeln!(text, "counted by the program: {count} {name}");
    }
    for reason in DropReason::ALL {
        let count = counters.drops[reason as usize];
        if count > 0 {
            let _ = writeln!(text, "dropped: {count} {}", reason.name());
        }
    }
    if let Some((_, last)) = report.circuits.last() {
        let changes = report.circuits.len() - 1;
        let _ = writeln!(
            text,
            "circuits: {changes} changes, at the end {}",
            super::circuits::json_of(last)
        );
    }
    let edges = [
        (counters.foreign, "the source is not the host of the port"),
        (counters.malformed, "unreadable or damaged"),
        (
            counters.oversized,
            "longer than the MTU: turn off the host's offload (ethtool -K DEV tso off gso off)",
        ),
        (counters.no_memory, "all frame buffers were in use"),
        (counters.kernel_drops, "lost by the kernel because the switch was too slow"),
        (counters.no_address, "the address of the receiver is not known yet"),
        (counters.send_refused, "refused by the kernel"),
    ];
    for (count, why) in edges.iter().filter(|(count, _)| *count > 0) {
        let _ = writeln!(text, "dropped at the edge: {count} ({why})");
    }
    if counters.contested > 0 {
        let _ = writeln!(
            text,
            "two processes were the same host: {} times its packets came from the address that it had before",
            counters.contested
        );
    }
    let late = report.lateness;
    let _ = writeln!(
        text,
        "frames were sent late by {} (median), {} (p99), {} (maximum)",
        late.p50, late.p99, late.max
    );
    text
}

/// Returns the circuits since the start, and from when on they were in force; `null` without an optical circuit switch.
fn circuits(report: &Report) -> Value {
    if report.circuits.is_empty() {
        return Value::Null;
    }
    let since = |(at, circuits): &(rackweave_core::Time, _)| json!({ "since_s": at.as_us_f64() / 1e6, "circuits": super::circuits::json_of(circuits) });
    json!({
        "changes": report.circuits.len() - 1,
        "lost": report.counters.drops[DropReason::Reconfiguration as usize],
        "history": report.circuits.iter().map(since).collect::<Vec<_>>(),
    })
}

/// Returns the whole report as JSON.
pub(super) fn json(report: &Report) -> Value {
    let counters = &report.counters;
    let drops: serde_json::Map<String, Value> = DropReason::ALL
        .iter()
        .map(|reason| (reason.name().to_owned(), counters.drops[*reason as usize].into()))
        .collect();
    let links: Vec<Value> = report
        .links
        .iter()
        .map(|link| {
            json!({
                "name": link.name,
                "utilisation": link.utilisation,
                "mean_queue_bytes": link.mean_queue_bytes,
                "max_queue_bytes": link.max_queue_bytes,
                "drops": link.drops,
                "frames": link.frames,
                "bytes": link.bytes,
            })
        })
        .collect();
    let late = report.lateness;
    json!({
        "seconds": report.at.as_us_f64() / 1e6,
        "counters": {
            "received": counters.received,
            "forwarded": counters.forwarded,
            "forwarded_bytes": counters.forwarded_bytes,
            "drops": drops,
            "ecn_marks": counters.ecn_marks,
            "trims": counters.trims,
            "returned_to_sender": counters.returned_to_sender,
            "corrupted": counters.corrupted,
            "duplicated": counters.duplicated,
            "reordered": counters.reordered,
            "foreign": counters.foreign,
            "malformed": counters.malformed,
            "ignored": counters.ignored,
            "oversized": counters.oversized,
            "unfinished_checksums": counters.unfinished_checksums,
            "no_memory": counters.no_memory,
            "kernel_drops": counters.kernel_drops,
            "no_address": counters.no_address,
            "send_refused": counters.send_refused,
            "learnt": counters.learnt,
            "contested": counters.contested,
            "clamped": counters.clamped,
            "copied": counters.copied,
            "consumed": counters.consumed,
            "made": counters.made,
        },
        "program": report.program,
        "circuits": circuits(report),
        "lateness_us": {
            "frames": late.frames,
            "p50": late.p50.as_us_f64(),
            "p99": late.p99.as_us_f64(),
            "max": late.max.as_us_f64(),
        },
        "links": links,
    })
}
