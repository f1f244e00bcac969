//! Serves counters to Prometheus, in its text format.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use miette::miette;
use rackweave_core::DropReason;
use rackweave_linux::switch::{Control, Report};
use rackweave_page::Metrics;

/// Serves the counters of a switch, on loopback unless an address is given.
pub(super) fn serve(at: &str, control: &Arc<Control>) -> miette::Result<Metrics> {
    let address = match at.parse::<u16>() {
        Ok(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        Err(_) => at.parse().map_err(|_| {
            miette!("`--metrics {at}` is neither a port nor an address with a port")
        })?,
    };
    let control = Arc::clone(control);
    Metrics::start(address, move || control.report().as_ref().map(text))
        .map_err(|error| miette!("cannot listen on {address}: {error}"))
}

/// Returns the report as text. Names of links consist of letters, digits, `-` and `>`, so nothing needs escaping.
pub(super) fn text(report: &Report) -> String {
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, help: &str, values: &[(String, f64)]| {
        let _ = writeln!(out, "# HELP rackweave_switch_{name} {help}");
        let _ = writeln!(out, "# TYPE rackweave_switch_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(out, "rackweave_switch_{name}{labels} {value}");
        }
    };
    let counters = &report.counters;
    let plain = |value: u64| vec![(String::new(), value as f64)];
    family(
        "received_frames_total",
        "counter",
        "Frames from hosts that entered the fabric.",
        &plain(counters.received),
    );
    family(
        "forwarded_frames_total",
        "counter",
        "Frames sent to hosts.",
        &plain(counters.forwarded),
    );
    family(
        "forwarded_bytes_total",
        "counter",
        "Bytes of frames sent to hosts, with Ethernet overhead.",
        &plain(counters.forwarded_bytes),
    );
    let drops = DropReason::ALL.map(|reason| {
        (format!("{{reason=\"{}\"}}", reason.name()), counters.drops[reason as usize] as f64)
    });
    family("drops_total", "counter", "Frames dropped inside the fabric.", &drops);
    let refused = [
        ("foreign", counters.foreign),
        ("malformed", counters.malformed),
        ("ignored", counters.ignored),
        ("oversized", counters.oversized),
        ("no_memory", counters.no_memory),
        ("kernel", counters.kernel_drops),
        ("no_address", counters.no_address),
        ("send_refused", counters.send_refused),
    ];
    let refused = refused.map(|(why, count)| (format!("{{reason=\"{why}\"}}"), count as f64));
    family("edge_drops_total", "counter", "Frames dropped on entry or exit.", &refused);
    let changes = report.circuits.len().saturating_sub(1) as u64;
    for (name, help, value) in [
        ("ecn_marks_total", "Frames marked with ECN CE.", counters.ecn_marks),
        ("trims_total", "Frames trimmed to their headers.", counters.trims),
        (
            "returned_to_sender_total",
            "Trimmed frames that were returned to their senders.",
            counters.returned_to_sender,
        ),
        ("circuit_changes_total", "Changes of circuits.", changes),
        ("copies_total", "Copies by the program.", counters.copied),
        ("consumed_total", "Frames consumed by the program.", counters.consumed),
        ("made_total", "Frames created by the program.", counters.made),
    ] {
        family(name, "counter", help, &plain(value));
    }
    let own = report.program.iter();
    let own: Vec<_> =
        own.map(|(name, count)| (format!("{{name=\"{name}\"}}"), *count as f64)).collect();
    family("program_total", "counter", "Counters of the program, by name.", &own);
    let links = |value: fn(&rackweave_linux::switch::LinkStats) -> f64| -> Vec<_> {
        let of = |link: &rackweave_linux::switch::LinkStats| {
            (format!("{{link=\"{}\"}}", link.name), value(link))
        };
        report.links.iter().map(of).collect()
    };
    family(
        "link_bytes_total",
        "counter",
        "Bytes sent, with Ethernet overhead.",
        &links(|link| link.bytes as f64),
    );
    family("link_frames_total", "counter", "Frames sent.", &links(|link| link.frames as f64));
    family(
        "link_queue_bytes",
        "gauge",
        "Bytes in the queue.",
        &links(|link| link.queue_bytes as f64),
    );
    family(
        "link_queue_max_bytes",
        "gauge",
        "Longest queue in bytes.",
        &links(|link| link.max_queue_bytes as f64),
    );
    let late = report.lateness;
    let lateness = [("0.5", late.p50), ("0.99", late.p99), ("1", late.max)]
        .map(|(quantile, late)| (format!("{{quantile=\"{quantile}\"}}"), late.as_secs_f64()));
    family(
        "lateness_seconds",
        "gauge",
        "Delay of frames beyond the time at which they were due.",
        &lateness,
    );
    out
}
