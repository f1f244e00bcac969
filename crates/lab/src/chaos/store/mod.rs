//! Casts with processes and disks: `cast receive` at up to three hosts, with the store of received files on a simulated disk,
//! and `cast send`, which is repeated until every host has everything.
//!
//! Processes are killed, also in the middle of an operation of their disk, and started again; machines lose power, and with it what was
//! not synced; processes handle nothing for a while; disks are full, fail, and write less than they were given; links have MTUs and
//! rates of their own; clocks begin anywhere up to an hour before the end of their range. Half of the seeds have a key: processes that are
//! started again have lost their sessions, somebody replays, returns, changes and cuts off recorded datagrams, and a receiver forges data
//! for the others, which verify what they pass on. The code is that of the
//! product from datagrams ([`rackweave_crypt`], [`rackweave_wire`]) and packets ([`rackweave_group::orca`]) to files
//! ([`rackweave_cast::sink::Folder`]); what is between, `cast::orca::Engine` with its sockets and threads, is replaced by `process` and
//! `secure`.
//!
//! What must hold: a file that has its name has the bytes that were sent (or those that it had before); what was reported as
//! complete, by a receiver or by exit code 0, is complete, and with `--sync` would be after a power failure at that moment; and after the
//! last failure a repeated `send` ends with exit code 0.

mod draw;
mod process;
mod secure;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Ran, disk};
use world::World;

/// Returns the scenario of a seed as text.
pub(super) fn scenario(seed: u64) -> String {
    draw::scenario(seed).text()
}

/// Runs a seed; returns the trace too.
fn run(seed: u64) -> Result<world::Outcome, String> {
    let scenario = draw::scenario(seed);
    catch_unwind(AssertUnwindSafe(|| World::new(&scenario).run())).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        format!("panic: {}", text.unwrap_or("without a message"))
    })
}

/// Returns the scenario of a seed with the trace of its run.
pub(super) fn traced(seed: u64) -> String {
    let trace = run(seed).map_or_else(|why| vec![why], |outcome| outcome.trace);
    super::with_trace(scenario(seed), &trace)
}

pub(super) fn run_seed(seed: u64) -> Result<Ran, String> {
    let outcome = run(seed)?;
    Ok(Ran {
        packet_hops: outcome.packets,
        events: outcome.events,
        messages: outcome.received,
        failed: outcome.failed,
        drops: outcome.drops,
        digest: outcome.digest,
        verdict: outcome.verdict,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the seeds are for occurs in the first of them.
    #[test]
    fn the_first_seeds_have_keys_attacks_and_receivers_that_prepare() {
        let (mut forged, mut replayed, mut found, mut prepared) = (0, 0, 0, [0; 2]);
        for (seed, outcome) in (0..40).filter_map(|seed| Some((seed, run(seed).ok()?))) {
            forged += outcome.refused.forged;
            replayed += outcome.refused.replayed;
            found += outcome.forged;
            // Senders wait for receivers that prepare, with a key and without one.
            let waits = outcome.trace.iter().filter(|line| line.contains(" prepares")).count();
            prepared[usize::from(draw::scenario(seed).key)] += waits;
        }
        assert!(forged > 0 && replayed > 0 && found > 5, "{forged} {replayed} {found}");
        assert!(prepared.iter().all(|waits| *waits > 50), "{prepared:?}");
    }

    /// A probe that was sealed as before was refused as a replay, so that its receiver, behind an MTU of 1300, got a packet a second.
    #[test]
    fn a_receiver_answers_a_probe_with_a_packet_that_it_has() {
        assert_eq!(run(141).map(|outcome| outcome.verdict), Ok(Ok(())));
    }

    #[test]
    fn a_seed_gives_the_same_trace_each_time() {
        for seed in [1, 2, 3] {
            let text = traced(seed);
            assert!(text.contains("exit code 0"), "{text}");
            assert_eq!(text, traced(seed));
            assert_ne!(text, traced(seed + 1));
        }
    }
}
