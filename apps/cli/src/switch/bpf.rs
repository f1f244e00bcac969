//! `rackweave switch --bpf`: Orca's `ToR` in the kernel.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use miette::miette;
use rackweave_bpf::orca::{Tor, TorConfig, TorCounters, TorHost};
use rackweave_orca::label::Layout;
use rackweave_switch::fabric::Fabric;
use serde_json::json;

use super::args::SwitchArgs;
use super::fabric_of;
use crate::shell::{events, exit, print, status};

/// Attaches the program, and waits for Ctrl-C.
pub(super) fn run(args: &SwitchArgs) -> miette::Result<u8> {
    let config = config(args)?;
    let mut tor = match Tor::attach(&config) {
        Ok(tor) => tor,
        Err(error) => {
            status(&format!("error: {error}\n"));
            return Ok(exit::FAILED);
        }
    };
    let mut before = TorCounters::default();
    super::until_interrupted(|| {
        if args.show.stats {
            let counters = read(&mut tor)?;
            status(&line(&tor, &counters, &before));
            before = counters;
        }
        Ok(())
    })?;
    let counters = read(&mut tor)?;
    if args.show.json {
        events::emit("result", document(&tor, &counters))
    } else {
        print(&text(&tor, &counters))
    }
}

fn read(tor: &mut Tor) -> miette::Result<TorCounters> {
    tor.counters().map_err(|error| miette!("{error}"))
}

fn config(args: &SwitchArgs) -> miette::Result<TorConfig> {
    let others = [
        (args.slots.is_some(), "--slots"),
        (args.ways.is_some(), "--ways"),
        (args.share.is_some(), "--share"),
        (args.address.is_some(), "--address"),
    ];
    if let Some((_, name)) = others.iter().find(|(is_there, _)| *is_there) {
        return Err(miette!("{name} is of use with --program reduce only"));
    }
    if !args.aggregate_at.is_empty() {
        return Err(miette!("--aggregate-at is of use with --program reduce only"));
    }
    if args.server.is_some() {
        return Err(miette!("--server is of use with --program swp2p only"));
    }
    let Some(listed) = &args.hosts else {
        return Err(miette!("--program orca --bpf requires --hosts"));
    };
    let port = |number: u32, what: &str| {
        let found = u8::try_from(number).ok().filter(|port| usize::from(*port) < args.ports.len());
        found.ok_or_else(|| {
            miette!("{what} {number}: there are ports 0 to {}", args.ports.len() - 1)
        })
    };
    let uplinks: miette::Result<Vec<u8>> =
        args.uplinks.iter().map(|number| port(*number, "--uplinks")).collect();
    let mut config = TorConfig {
        ports: args.ports.clone(),
        uplinks: uplinks?,
        rack: args.rack,
        controller: args.controller.map(|number| port(number, "--controller")).transpose()?,
        keyed: args.key_file.is_some(),
        hosts: hosts(listed)?,
        ..TorConfig::default()
    };
    if let Some(name) = &args.fabric {
        let fabric = fabric_of(name, &args.sets)?.fabric;
        let fabric = Fabric::new(&fabric).map_err(|error| miette!("{name}: {error}"))?;
        let layout = Layout::new(&fabric).map_err(|error| miette!("{name}: {error}"))?;
        if args.rack >= layout.racks() {
            return Err(miette!(
                "--rack {}: {name} has racks 0 to {}",
                args.rack,
                layout.racks() - 1
            ));
        }
        if config.uplinks.len() != usize::from(layout.uplinks()) {
            return Err(miette!(
                "{name}: racks have {} uplinks, but --uplinks names {}",
                layout.uplinks(),
                config.uplinks.len()
            ));
        }
        let field = layout.up_leaf();
        (config.uplink_shift, config.uplink_width) = (field.shift, field.width);
    } else if config.uplinks.len() > 1 {
        return Err(miette!(
            "several uplinks require --fabric FILE, which defines how labels name them"
        ));
    }
    Ok(config)
}

/// Parses `MAC,IP,PORT;...`, where the IP address may be empty.
fn hosts(text: &str) -> miette::Result<Vec<TorHost>> {
    let mut hosts = Vec::new();
    for one in text.split(';').map(str::trim).filter(|one| !one.is_empty()) {
        let host = host(one).ok_or_else(|| {
            miette!("`{one}` is not MAC,IP,PORT, as in 02:00:00:00:00:01,192.0.2.1,0")
        })?;
        hosts.push(host);
    }
    Ok(hosts)
}

fn host(text: &str) -> Option<TorHost> {
    let mut words = text.split(',').map(str::trim);
    let (mac, ip, port) = (words.next()?, words.next()?, words.next()?);
    if words.next().is_some() {
        return None;
    }
    let mut bytes = mac
        .split(':')
        .map(|byte| (byte.len() <= 2).then(|| u8::from_str_radix(byte, 16).ok()).flatten());
    let mut mac = [0; 6];
    for byte in &mut mac {
        *byte = bytes.next()??;
    }
    if bytes.next().is_some() {
        return None;
    }
    let ip = if ip.is_empty() { None } else { Some(ip.parse::<Ipv4Addr>().ok()?) };
    Some(TorHost { mac, ip, port: port.parse().ok()? })
}

fn agent(tor: &Tor) -> Option<u8> {
    tor.active().ok().flatten()
}

fn line(tor: &Tor, counters: &TorCounters, before: &TorCounters) -> String {
    let agent = agent(tor).map_or_else(|| "none".into(), |port| format!("port {port}"));
    format!(
        "frames/s: {} by label, {} to one host, {} ordinary; {} copies/s; active agent: {agent}; dropped {}, lost {}\n",
        counters.replicated - before.replicated,
        counters.forwarded - before.forwarded,
        counters.routed + counters.flooded - before.routed - before.flooded,
        counters.copies - before.copies,
        dropped(counters),
        counters.lost,
    )
}

const fn dropped(counters: &TorCounters) -> u64 {
    counters.no_agent + counters.spoofed + counters.no_port + counters.unknown
}

fn text(tor: &Tor, counters: &TorCounters) -> String {
    let agent = agent(tor).map_or_else(|| "none".into(), |port| format!("port {port}"));
    let mut text = format!("active agent: {agent}\n");
    for (what, count) in rows(counters) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{count:>12}  {what}");
    }
    text + "Super-packets of segmentation offloads count once.\n"
}

const fn rows(counters: &TorCounters) -> [(&'static str, u64); 11] {
    [
        ("Orca packets replicated by a label", counters.replicated),
        ("Orca packets forwarded to one port", counters.forwarded),
        ("copies", counters.copies),
        ("ordinary frames forwarded to one port", counters.routed),
        ("ordinary frames flooded", counters.flooded),
        ("commands of the controller", counters.consumed),
        ("dropped: no active agent", counters.no_agent),
        ("dropped: not valid from that port", counters.spoofed),
        ("dropped: the label names no port", counters.no_port),
        ("dropped: unknown destination", counters.unknown),
        ("lost: refused by an interface", counters.lost),
    ]
}

fn document(tor: &Tor, counters: &TorCounters) -> serde_json::Value {
    json!({
        "active_agent_port": agent(tor), "replicated": counters.replicated,
        "forwarded": counters.forwarded, "copies": counters.copies, "routed": counters.routed,
        "flooded": counters.flooded, "orders": counters.consumed, "no_agent": counters.no_agent,
        "spoofed": counters.spoofed, "nobody": counters.no_port, "unknown": counters.unknown,
        "lost": counters.lost,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_or_refused() {
        let read = hosts("02:77:00:00:00:0a,10.77.0.1,3; 2:0:0:0:0:1,,4;").unwrap();
        let first =
            TorHost { mac: [2, 0x77, 0, 0, 0, 10], ip: Some([10, 77, 0, 1].into()), port: 3 };
        assert_eq!(read[0], first);
        assert_eq!(read[1], TorHost { mac: [2, 0, 0, 0, 0, 1], ip: None, port: 4 });
        for wrong in [
            "x",
            "02:00,10.0.0.1,1",
            "2:0:0:0:0:1:1,,4",
            "2:0:0:0:0:1,10.0.0,4",
            "2:0:0:0:0:1,,256",
            "2:0:0:0:0:1,,1,1",
        ] {
            assert!(hosts(wrong).is_err(), "{wrong}");
        }
    }
}
