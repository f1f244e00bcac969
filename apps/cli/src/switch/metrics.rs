//! Serves counters to Prometheus, in its text format.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use miette::miette;
use rackweave_core::DropReason;
use rackweave_linux::switch::{Control, Report};

/// The longest request that is read, in bytes.
const MAX_REQUEST: usize = 2048;

/// The largest number of connections at a time; further ones are closed. A scraper uses one.
const MAX_CONNECTIONS: u32 = 16;

/// How long a client may take to send its request, and again to read the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Opens the port, on loopback unless an address is given.
pub(super) fn listen(text: &str) -> miette::Result<TcpListener> {
    let address = match text.parse::<u16>() {
        Ok(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        Err(_) => text.parse().map_err(|_| {
            miette!("`--metrics {text}` is neither a port nor an address with a port")
        })?,
    };
    TcpListener::bind(address).map_err(|error| miette!("cannot listen on {address}: {error}"))
}

/// Answers requests until the process ends, each in a thread of its own, so that a slow client holds up no other.
pub(super) fn serve(listener: &TcpListener, control: &Arc<Control>) {
    let connections = Arc::new(AtomicU32::new(0));
    for connection in listener.incoming() {
        let Ok(connection) = connection else {
            // The process is probably out of file descriptors, and retrying immediately would only keep a core busy.
            #[expect(clippy::disallowed_methods, reason = "a thread that waits for the system")]
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        if connections.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
            connections.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (control, count) = (Arc::clone(control), Arc::clone(&connections));
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(move || {
            // A client that disconnects or sends an invalid request gets no answer.
            let _ = answer(connection, &control);
            count.fetch_sub(1, Ordering::Relaxed);
        });
        if thread.is_err() {
            connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Returns what is left of [`PATIENCE`]: a client cannot extend it byte by byte.
fn left(since: Instant) -> std::io::Result<Option<Duration>> {
    match PATIENCE.saturating_sub(since.elapsed()) {
        Duration::ZERO => Err(std::io::ErrorKind::TimedOut.into()),
        left => Ok(Some(left)),
    }
}

#[expect(clippy::disallowed_methods, reason = "clients over real sockets are timed")]
fn answer(mut connection: TcpStream, control: &Control) -> std::io::Result<()> {
    let began = Instant::now();
    let mut request = Vec::new();
    let mut piece = [0; 512];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < MAX_REQUEST {
        connection.set_read_timeout(left(began)?)?;
        match connection.read(&mut piece)? {
            0 => break,
            read => request.extend_from_slice(&piece[..read]),
        }
    }
    let wanted = request.starts_with(b"GET /metrics ") || request.starts_with(b"GET / ");
    let report = if wanted { control.report() } else { None };
    let (status, body) = match (wanted, report) {
        (false, _) => ("404 Not Found", "the counters are at /metrics\n".to_owned()),
        (true, None) => ("503 Service Unavailable", "the switch does not answer\n".to_owned()),
        (true, Some(report)) => ("200 OK", text(&report)),
    };
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    let (began, mut rest) = (Instant::now(), answer.as_bytes());
    while !rest.is_empty() {
        connection.set_write_timeout(left(began)?)?;
        let written = connection.write(rest)?;
        rest = &rest[written..];
    }
    Ok(())
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
