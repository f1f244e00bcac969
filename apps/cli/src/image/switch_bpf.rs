//! `rackweave image switch --bpf`: SWP2P's program of a switch in the kernel.

use std::fmt::Write as _;
use std::net::SocketAddrV4;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use miette::miette;
use rackweave_bpf::TorError;
use rackweave_bpf::swp2p::{Policy, Tor, TorClient, TorConfig, TorCounters};
use serde_json::{Value, json};

use crate::shell::signal::Interrupt;
use crate::shell::{escaped, events, exit, print, status};
use crate::switch::args::ShowArgs;

// A doc comment here would replace the description of the command into which this is flattened.
#[derive(Debug, clap::Args)]
pub(crate) struct BpfArgs {
    /// Run the program in the kernel, at the ports of a Linux bridge or router. Needs root, clang and Linux 6.6.
    #[arg(long, conflicts_with_all = ["interface", "key_file", "metrics", "link", "buffer", "shared_buffer", "ecn", "latency", "delay", "window", "busy_poll"], requires = "ports")]
    pub(super) bpf: bool,
    /// With --bpf: the interfaces, separated by commas. Other hosts are served by the server.
    #[arg(long, value_name = "IF,...", value_delimiter = ',', requires = "bpf")]
    ports: Vec<String>,
    /// With --bpf: holders of a chunk take turns, as in SWP2P (default: the least loaded).
    #[arg(long, requires = "bpf")]
    turns: bool,
    /// With --bpf: only hosts that have a chunk serve it, as in SWP2P (default: also waiting ones,
    /// two in a row).
    #[arg(long, requires = "bpf")]
    no_pending: bool,
    /// With --bpf: largest image in chunks, of 264 bytes of memory each.
    #[arg(long, value_name = "N", default_value_t = 65_536)]
    chunks: u32,
    /// With --bpf: maximum number of hosts at one port.
    #[arg(long, value_name = "N", default_value_t = 16)]
    hosts_per_port: u8,
}

impl BpfArgs {
    pub(super) fn config(&self, server: SocketAddrV4) -> TorConfig {
        let defaults = TorConfig::new(self.ports.clone(), *server.ip());
        TorConfig {
            server_port: server.port(),
            policy: if self.turns { Policy::RoundRobin } else { Policy::LeastLoaded },
            pending: if self.no_pending { 0 } else { defaults.pending },
            // As many as the windows of reports that cover the image.
            chunks: self.chunks.max(1).div_ceil(rackweave_bpf::swp2p::WINDOW)
                * rackweave_bpf::swp2p::WINDOW,
            clients_per_port: self.hosts_per_port,
            ..defaults
        }
    }
}

/// Attaches the program, and waits for Ctrl-C.
pub(super) fn run(args: &BpfArgs, server: SocketAddrV4, show: &ShowArgs) -> miette::Result<u8> {
    let tor = match Tor::attach(&args.config(server)) {
        Ok(tor) => tor,
        Err(TorError::Config(why)) => return Err(miette!("{}", escaped(&why))),
        Err(error) => {
            status(&format!("error: {}\n", escaped(&error.to_string())));
            return Ok(exit::FAILED);
        }
    };
    let (ended, end) = channel();
    Interrupt::ends_by(move || {
        // If the receiver is gone, the command is ending anyway.
        let _ = ended.send(());
    })?;
    if show.json {
        events::emit("ready", json!({ "ports": args.ports, "server": server }))?;
    } else {
        status("ready\n");
    }
    let mut before = TorCounters::default();
    while end.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
        if show.stats {
            let (counters, clients) = read(&tor)?;
            if show.json {
                events::emit("stats", document(&counters, &clients))?;
            } else {
                status(&activity(&counters, &before, clients.len()));
            }
            before = counters;
        }
    }
    let (counters, clients) = read(&tor)?;
    if show.json {
        events::emit("ended", document(&counters, &clients))?;
    } else {
        print(&summary(&counters, clients.len()))?;
    }
    Ok(exit::DONE)
}

fn read(tor: &Tor) -> miette::Result<(TorCounters, Vec<TorClient>)> {
    let read = tor.counters().and_then(|counters| Ok((counters, tor.clients()?)));
    read.map_err(|error| miette!("{error}"))
}

fn activity(counters: &TorCounters, before: &TorCounters, clients: usize) -> String {
    format!(
        "{clients} hosts; requests/s: {} to holders, {} to hosts that wait, {} to the server; returned {}\n",
        counters.to_holders - before.to_holders,
        counters.to_pending - before.to_pending,
        counters.to_server - before.to_server,
        counters.returned - before.returned,
    )
}

fn summary(counters: &TorCounters, clients: usize) -> String {
    let mut text = format!("{clients} hosts\n");
    for (what, count) in rows(counters) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{count:>12}  {what}");
    }
    text
}

const fn rows(counters: &TorCounters) -> [(&'static str, u64); 10] {
    [
        ("requests", counters.requests),
        ("reports", counters.reports),
        ("requests redirected to hosts that have the chunks", counters.to_holders),
        ("requests redirected to hosts that wait for them", counters.to_pending),
        ("requests left to the server", counters.to_server),
        ("requests returned by holders", counters.returned),
        ("messages that were not recorded: no room", counters.refused),
        ("messages in the name of another host", counters.spoofed),
        ("packets with several messages, left to the server", counters.super_packets),
        ("hosts not asked any more, because of damaged chunks", counters.barred),
    ]
}

fn document(counters: &TorCounters, clients: &[TorClient]) -> Value {
    let clients: Vec<Value> = clients
        .iter()
        .map(|client| {
            json!({
                "ip": client.ip, "image": client.image, "load": client.load,
                "is_barred": client.is_barred,
            })
        })
        .collect();
    json!({
        "messages": counters.messages, "requests": counters.requests, "reports": counters.reports,
        "returned": counters.returned, "to_holders": counters.to_holders,
        "to_pending": counters.to_pending, "to_server": counters.to_server,
        "refused": counters.refused, "spoofed": counters.spoofed,
        "super_packets": counters.super_packets, "barred": counters.barred,
        "silent": counters.silent, "lost": counters.lost, "clients": clients,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        args: super::super::switch::SwitchArgs,
    }

    fn parse(arguments: &str) -> Result<TorConfig, clap::Error> {
        let command =
            Command::try_parse_from(std::iter::once("switch").chain(arguments.split(' ')))?;
        Ok(command.args.kernel_config().unwrap())
    }

    #[test]
    fn arguments_make_a_configuration() {
        let config = parse("--bpf --ports a,b --server 192.0.2.1").unwrap();
        assert_eq!(
            config,
            TorConfig::new(["a", "b"].map(String::from).to_vec(), [192, 0, 2, 1].into())
        );
        let all = "--bpf --ports a --server 192.0.2.1:7000 --turns --no-pending --chunks 8193 --hosts-per-port 2";
        let config = parse(all).unwrap();
        assert_eq!((config.server_port, config.chunks, config.clients_per_port), (7000, 16384, 2));
        assert_eq!((config.policy, config.pending), (Policy::RoundRobin, 0));
        for wrong in [
            "--ports a --server 192.0.2.1",
            "--bpf --server 192.0.2.1",
            "--bpf --ports a",
            "--bpf --ports a --interface b --server 192.0.2.1",
            "--bpf --ports a --server 192.0.2.1 --link 1Gbps",
            "--bpf --ports a --server 192.0.2.1 --buffer 500KB",
            "--bpf --ports a --server 192.0.2.1 --shared-buffer",
            "--bpf --ports a --server 192.0.2.1 --ecn 30KB",
            "--bpf --ports a --server 192.0.2.1 --latency 250ns",
            "--bpf --ports a --server 192.0.2.1 --delay 1us",
            "--bpf --ports a --server 192.0.2.1 --window 20us",
            "--bpf --ports a --server 192.0.2.1 --busy-poll",
            "--interface a --turns --server 1",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
