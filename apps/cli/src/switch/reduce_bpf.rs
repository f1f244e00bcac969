//! `rackweave switch --program reduce --bpf`: the aggregating switch in the kernel.

use std::fmt::Write as _;

use miette::miette;
use rackweave_bpf::TorError;
use rackweave_bpf::reduce::{Tor, TorConfig, TorCounters};
use serde_json::json;

use super::args::SwitchArgs;
use crate::shell::{events, exit, print, status};

/// Attaches the program, and waits for Ctrl-C.
pub(super) fn run(args: &SwitchArgs) -> miette::Result<u8> {
    let tor = match Tor::attach(&config(args)?) {
        Ok(tor) => tor,
        Err(TorError::Config(why)) => return Err(miette!("{why}")),
        Err(error) => {
            status(&format!("error: {error}\n"));
            return Ok(exit::FAILED);
        }
    };
    let read = || tor.counters().map_err(|error| miette!("{error}"));
    let mut before = TorCounters::default();
    super::until_interrupted(|| {
        if args.show.stats {
            let counters = read()?;
            let jobs = tor.jobs().map_err(|error| miette!("{error}"))?.len();
            status(&line(&counters, &before, jobs));
            before = counters;
        }
        Ok(())
    })?;
    let counters = read()?;
    if args.show.json {
        events::emit("result", document(&counters))
    } else {
        print(&text(&counters))
    }
}

fn config(args: &SwitchArgs) -> miette::Result<TorConfig> {
    let others = [
        (args.hosts.is_some(), "--hosts"),
        (!args.uplinks.is_empty(), "--uplinks"),
        (args.controller.is_some(), "--controller"),
        (args.server.is_some(), "--server"),
        (args.fabric.is_some(), "--fabric"),
        (args.key_file.is_some(), "--key-file"),
        (!args.aggregate_at.is_empty(), "--aggregate-at"),
    ];
    if let Some((_, name)) = others.iter().find(|(is_there, _)| *is_there) {
        return Err(miette!("{name} is not of use with --program reduce --bpf"));
    }
    let Some(address) = args.address else {
        return Err(miette!(
            "--program reduce --bpf requires --address: where workers and masters send what is for the switch"
        ));
    };
    let defaults = TorConfig::new(args.ports.clone(), address, rackweave_linux::random() as u64);
    let ways = args.ways.unwrap_or(defaults.ways);
    let slots = args.slots.unwrap_or(defaults.slots);
    // As in the user-space switch, slots that fill no bucket are left out.
    let slots = slots - slots % u32::from(ways);
    let share = args.share().unwrap_or(defaults.share);
    Ok(TorConfig { slots, ways, share, ..defaults })
}

fn line(counters: &TorCounters, before: &TorCounters, jobs: usize) -> String {
    format!(
        "{jobs} jobs; pairs/s: {}, of them {} added up and {} sent on; sums read/s: {}; stale {}, refused {}\n",
        counters.pairs - before.pairs,
        counters.absorbed - before.absorbed,
        counters.residual - before.residual,
        counters.fetched - before.fetched,
        counters.stale,
        counters.refused,
    )
}

const fn rows(counters: &TorCounters) -> [(&'static str, &'static str, u64); 14] {
    [
        ("packets_added", "packets of pairs", counters.packets),
        ("pairs", "pairs in them", counters.pairs),
        ("pairs_absorbed", "pairs added up", counters.absorbed),
        ("pairs_residual", "pairs sent on to a master, for want of a slot", counters.residual),
        ("duplicates", "packets that had arrived before", counters.duplicates),
        ("sums_fetched", "sums read by masters", counters.fetched),
        ("stale", "messages of unknown jobs, attempts, epochs or senders", counters.stale),
        ("jobs_refused", "requests for slots that were refused", counters.refused),
        ("words_emitted", "words sent by P4-ORDC's rule", counters.emitted),
        ("malformed", "dropped: no message", counters.malformed),
        ("wrong_checksums", "dropped: wrong checksum", counters.wrong_checksums),
        (
            "super_packets",
            "dropped: several messages in one packet (UDP GSO)",
            counters.super_packets,
        ),
        ("busy", "dropped: the state was in use for too long", counters.busy),
        ("lost", "lost: the kernel could not make the reply", counters.lost),
    ]
}

fn text(counters: &TorCounters) -> String {
    let mut text = String::new();
    for (_, what, count) in rows(counters) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{count:>12}  {what}");
    }
    text
}

fn document(counters: &TorCounters) -> serde_json::Value {
    let mut document = json!({});
    for (name, _, count) in rows(counters) {
        document[name] = json!(count);
    }
    document
}
