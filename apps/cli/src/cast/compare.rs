//! Baselines: unicast copies from several threads, and the kernel's TCP in parallel or in a chain.
//!
//! `--method unicast` is the application-layer multicast that the Orca paper compares with (End-to-end Evaluations, Section
//! V): several processes, each with the copies for its share of the receivers. Here they are threads, each with its own
//! socket, its own reader of the files and Orca's flow control, so that only the number of copies and of copying threads differs from
//! `--method cast`.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Instant;

use miette::miette;
use rackweave_cast::baseline;
use rackweave_cast::orca::{Engine, EngineConfig, EngineEvent, SendView};
use rackweave_cast::source::{Files, Source as _};
use rackweave_cast::store::Cancel;
use rackweave_core::{HostId, Rate, Span};
use rackweave_orca::flow::FlowConfig;
use rackweave_orca::host::Spread;
use serde_json::json;

use super::args::{MethodArg, ReceiveArgs, SendArgs, Target};
use super::outcome::{is_complete, report, state};
use crate::shell::signal::Interrupt;
use crate::shell::{events, exit, print, rate, size, status};

/// The interval at which an idle thread checks for an interruption.
const POLL: Span = Span::from_ms(100);

/// The results of one thread.
struct Share {
    view: SendView,
    error: Option<String>,
    link_bytes: u64,
}

/// Distributes the receivers over at most `processes` threads.
fn distribute(to: &[SocketAddr], processes: usize) -> Vec<Vec<SocketAddr>> {
    let count = processes.clamp(1, to.len().max(1));
    let mut shares = vec![Vec::new(); count];
    for (index, to) in to.iter().enumerate() {
        shares[index % count].push(*to);
    }
    shares
}

fn share(
    args: &SendArgs,
    config: EngineConfig,
    flow: FlowConfig,
    to: &[SocketAddr],
    stop: &Interrupt,
) -> Result<Share, String> {
    let source = Files::new(&args.files).map_err(|error| error.to_string())?;
    let mut engine = Engine::new(config, None).map_err(|error| error.to_string())?;
    let hosts: Vec<HostId> = to.iter().map(|to| engine.add_peer(*to)).collect();
    let opened = engine.open(Box::new(source), &hosts, Spread::Unicast, flow);
    let mut session = opened.map_err(|error| error.to_string())?;
    let mut stopped = false;
    loop {
        let until = engine.turn().map_err(|error| error.to_string())?;
        while let Some(event) = engine.poll_event() {
            match event {
                EngineEvent::Renewed { session: next, .. } => session = next,
                EngineEvent::Sent { view, error, .. } => {
                    // The last turn sends the closing packets.
                    let _ = engine.turn();
                    let link_bytes = engine.stats().sent_bytes;
                    let error = error.map(|error| error.to_string());
                    return Ok(Share { view, error, link_bytes });
                }
                _ => {}
            }
        }
        if stop.is_set() && !stopped {
            stopped = true;
            engine.abort(session);
            continue;
        }
        let poll = engine.clock().now() + POLL;
        let until = until.map_or(poll, |until| until.min(poll));
        engine.wait(Some(until)).map_err(|error| error.to_string())?;
    }
}

/// Sends a copy to each receiver. As a baseline, it does not wait for receivers that restart.
pub(super) fn send_copies(
    args: &SendArgs,
    mut config: EngineConfig,
    flow: FlowConfig,
    stop: &Interrupt,
) -> miette::Result<u8> {
    let bytes = Files::new(&args.files).map_err(|error| miette!("{error}"))?.content();
    config.retry = Span::ZERO;
    config.flow = flow;
    let clock = rackweave_linux::Clock::start();
    let began = clock.now();
    let shares = distribute(&args.to, args.processes as usize);
    // Each receiver has a session of its own.
    let max_rate = flow.max_rate.map(|rate| Rate(rate.0 / args.to.len().max(1) as u64));
    let flow = FlowConfig { max_rate, ..flow };
    let results: Vec<Result<Share, String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = shares
            .iter()
            .map(|to| {
                let config = config.clone();
                scope.spawn(move || share(args, config, flow, to, stop))
            })
            .collect();
        let join = |it: std::thread::ScopedJoinHandle<'_, _>| {
            it.join().unwrap_or_else(|_| Err("a thread panicked".to_owned()))
        };
        threads.into_iter().map(join).collect()
    });
    let seconds = clock.now().since(began).as_secs_f64();
    let (mut code, mut link_bytes) = (exit::DONE, 0);
    let (mut text, mut receivers) = (String::new(), Vec::new());
    for (to, result) in shares.iter().zip(results) {
        let (views, error) = match result {
            Ok(share) => {
                link_bytes += share.link_bytes;
                (share.view.receivers, share.error)
            }
            Err(error) => (Vec::new(), Some(error)),
        };
        if let Some(error) = error {
            code = exit::FAILED;
            status(&format!("error: {error}\n"));
        }
        for to in to {
            let view = views.iter().find(|view| view.address == *to);
            let complete = view.is_some_and(is_complete);
            code = if complete { code } else { exit::FAILED };
            let state = view.map_or_else(|| "not reached".to_owned(), state);
            let wall = view.and_then(|view| view.seconds).unwrap_or(seconds);
            let got = view.map_or(0, |view| view.have.saturating_sub(view.from));
            let speed = rate(got as f64 * 8.0 / wall.max(1e-6));
            text += &format!("{to}  {state}  {} in {wall:.2} s, {speed}\n", size(got));
            receivers.push(json!({
                "host": to.to_string(), "state": state, "wall_s": wall, "bytes": got,
                "repair_bytes": view.map(|view| view.repairs),
            }));
        }
    }
    text += &format!(
        "{} by {} in {seconds:.2} s; the sender's link carried {}\n",
        size(bytes),
        match shares.len() {
            1 => "one copying thread".to_owned(),
            count => format!("{count} copying threads"),
        },
        size(link_bytes)
    );
    if args.common.json {
        let document = json!({
            "wall_s": seconds, "spread": "unicast", "method": "unicast", "processes": shares.len(),
            "bytes": bytes, "link_bytes": link_bytes, "copies": args.to.len(), "receivers": receivers,
        });
        events::emit("result", document)?;
    } else if !args.common.quiet {
        print(&text)?;
    }
    Ok(if stop.is_set() { exit::INTERRUPTED } else { code })
}

/// Sends over the kernel's TCP: a connection to each receiver, or a chain.
pub(super) fn send_tcp(args: &SendArgs) -> miette::Result<u8> {
    if args.is_stdin() || args.common.key.is_some() {
        return Err(miette!(
            "--method tcp and chain are baselines for comparison: they send files only, and take no --key"
        ));
    }
    #[expect(clippy::disallowed_methods, reason = "a transfer over real sockets is timed")]
    let began = Instant::now();
    let files = Files::new(&args.files).map_err(|error| miette!("{error}"))?;
    let bytes = files.content();
    let routes: Vec<Vec<SocketAddr>> = match args.method {
        MethodArg::Chain => vec![args.to.clone()],
        _ => args.to.iter().map(|to| vec![*to]).collect(),
    };
    drop(files);
    let threads: Vec<_> = routes
        .into_iter()
        .map(|to| {
            let files = args.files.clone();
            std::thread::spawn(move || {
                let failed = |error: String| -> Vec<(SocketAddr, Result<_, String>)> {
                    to.iter().map(|to| (*to, Err(error.clone()))).collect()
                };
                match Files::new(&files) {
                    Err(error) => failed(error.to_string()),
                    Ok(mut files) => baseline::send(&mut files, &to)
                        .unwrap_or_else(|error| failed(error.to_string())),
                }
            })
        })
        .collect();
    let mut results = Vec::new();
    for thread in threads {
        results.extend(thread.join().map_err(|_| miette!("a thread panicked"))?);
    }
    let seconds = began.elapsed().as_secs_f64();
    let mut code = exit::DONE;
    let (mut text, mut receivers) = (String::new(), Vec::new());
    for (address, result) in &results {
        let (state, wall, error) = match result {
            Ok(wall) => ("complete", wall.as_secs_f64(), None),
            Err(error) => {
                code = exit::FAILED;
                status(&format!("error: {address}: {error}\n"));
                ("lost", seconds, Some(error))
            }
        };
        let speed = bytes as f64 * 8.0 / wall.max(1e-6);
        text += &format!("{address}  {state}  {} in {wall:.2} s, {}\n", size(bytes), rate(speed));
        receivers.push(json!({
            "host": address.to_string(), "state": state, "wall_s": wall, "bytes": bytes,
            "bits_per_second": speed as u64, "error": error,
        }));
    }
    if args.common.json {
        let spread = if args.method == MethodArg::Chain { "chain" } else { "tcp" };
        let document =
            json!({ "wall_s": seconds, "spread": spread, "bytes": bytes, "receivers": receivers });
        events::emit("result", document)?;
    } else if !args.common.quiet {
        print(&text)?;
    }
    Ok(code)
}

/// Receives over the kernel's TCP.
pub(super) fn receive_tcp(
    args: &ReceiveArgs,
    target: &Target,
    admitted: &[IpAddr],
) -> miette::Result<u8> {
    let listener = match TcpListener::bind(args.listen) {
        Ok(listener) => listener,
        Err(error) => {
            status(&format!("error: cannot listen on {}: {error}\n", args.listen));
            return Ok(exit::FAILED);
        }
    };
    let admits = |from: SocketAddr| match admitted {
        [] => from.ip().is_loopback(),
        _ => admitted.contains(&from.ip().to_canonical()),
    };
    loop {
        #[expect(clippy::disallowed_methods, reason = "a transfer over real sockets is timed")]
        let began = Instant::now();
        let sink = |stream| target.sink(stream, &Cancel::never());
        let taken = baseline::receive(&listener, args.forward, admits, sink)
            .map_err(|error| miette!("cannot accept connections: {error}"))?;
        let bytes = taken.files.iter().map(|file| file.bytes).sum();
        let seconds = began.elapsed().as_secs_f64();
        report(args, taken.from, bytes, &taken.files, seconds, taken.error.as_deref())?;
        if args.once {
            return Ok(if taken.error.is_some() { exit::FAILED } else { exit::DONE });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_receivers_are_dealt_out_evenly() {
        let to: Vec<SocketAddr> =
            (1..=7).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
        for processes in 0..10 {
            let shares = distribute(&to, processes);
            let (least, most) = (
                shares.iter().map(Vec::len).min().unwrap(),
                shares.iter().map(Vec::len).max().unwrap(),
            );
            assert!(least > 0 && most - least <= 1);
            assert_eq!(shares.len(), processes.clamp(1, 7));
            let mut all: Vec<_> = shares.into_iter().flatten().collect();
            all.sort();
            assert_eq!(all, to);
        }
    }
}
