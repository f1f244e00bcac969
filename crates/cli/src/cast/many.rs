//! `--method unicast`: application-layer multicast over UDP as the paper compares with (Section V of the end-to-end
//! evaluation): several processes, each with copies for its share of the receivers. Here they are threads, each with a
//! socket, a reader of the files and Orca's flow control of its own: what differs from `--method cast` is only that every
//! receiver costs a copy, and how many threads make copies.

use std::net::SocketAddr;

use miette::miette;
use rackweave_cast::engine::{Engine, EngineConfig, EngineEvent, SendView};
use rackweave_cast::source::{Files, Source as _};
use rackweave_core::{HostId, Span};
use rackweave_group::orca::flow::FlowConfig;
use rackweave_group::orca::host::Spread;
use serde_json::json;

use super::send::{SendArgs, is_complete, state};
use super::{Interrupted, rate, say, size};
use crate::{exit, print};

/// A share that has nothing to do looks whether it was interrupted so often.
const LOOK: Span = Span::from_ms(100);

/// What became of a share.
struct Share {
    view: SendView,
    error: Option<String>,
    link_bytes: u64,
}

/// Deals the receivers out to at most `processes`.
fn deal(to: &[SocketAddr], processes: usize) -> Vec<Vec<SocketAddr>> {
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
    stop: &Interrupted,
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
                    // Farewells leave.
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
        let look = engine.clock().now() + LOOK;
        let until = until.map_or(look, |until| until.min(look));
        engine.wait(Some(until)).map_err(|error| error.to_string())?;
    }
}

/// Sends to each receiver by itself. Nobody is waited for who comes back: it is here to compare.
pub(super) fn send(
    args: &SendArgs,
    mut config: EngineConfig,
    flow: FlowConfig,
    stop: &Interrupted,
) -> miette::Result<u8> {
    let bytes = Files::new(&args.files).map_err(|error| miette!("{error}"))?.content();
    config.retry = Span(0);
    config.flow = flow;
    let clock = rackweave_linux::Clock::start();
    let began = clock.now();
    let shares = deal(&args.to, args.processes as usize);
    let results: Vec<Result<Share, String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = shares
            .iter()
            .map(|to| {
                let config = config.clone();
                scope.spawn(move || share(args, config, flow, to, stop))
            })
            .collect();
        let join = |it: std::thread::ScopedJoinHandle<'_, _>| {
            it.join().unwrap_or_else(|_| Err("a thread has failed".to_owned()))
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
            say(&format!("error: {error}\n"));
        }
        for to in to {
            let view = views.iter().find(|view| view.address == *to);
            let complete = view.is_some_and(is_complete);
            code = if complete { code } else { exit::FAILED };
            let state = view.map_or_else(|| "not sent to".to_owned(), state);
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
            1 => "one sender of copies".to_owned(),
            count => format!("{count} senders of copies"),
        },
        size(link_bytes)
    );
    if args.common.json {
        let document = json!({
            "wall_s": seconds, "spread": "unicast", "method": "unicast", "processes": shares.len(),
            "bytes": bytes, "link_bytes": link_bytes, "copies": args.to.len(), "receivers": receivers,
        });
        print(&format!("{document:#}\n"))?;
    } else if !args.common.quiet {
        print(&text)?;
    }
    Ok(if stop.is_set() { exit::INTERRUPTED } else { code })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_receivers_are_dealt_out_evenly() {
        let to: Vec<SocketAddr> =
            (1..=7).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
        for processes in 0..10 {
            let shares = deal(&to, processes);
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
