//! Calls, messages and streams between processes that are killed and started again, with and without a key.
//!
//! Each process is a [`rackweave_linux::Endpoint`], as `rackweave rpc` has it under its calls: peers and their incarnations, the
//! handshake and the sealing of datagrams, buffers, pacing, and a transport. Its socket, clock, time of day and random numbers are a
//! simulated [`platform`]. Above it, `app` does with its events what `rackweave_rpc` does: calls to a peer that has restarted
//! fail, and are cancelled before the next turn.
//!
//! Processes are killed and started again, with a clock that begins anywhere up to an hour before the end of its range
//! and a time of day that may jump. They handle nothing for a while. Links lose, repeat and delay datagrams, have MTUs,
//! and drop what a queue has no room for. Somebody replays recorded datagrams from true and from false addresses,
//! returns them to their senders, and changes their bits. With a key it forges notices; without one it forges HELLOs
//! without having seen any.
//!
//! What must hold (docs/ops/rpc.md#how-often-a-call-is-executed): no server executes a call twice, also not after a
//! restart, and every answer is the one of its call. A call fails only if one of its hosts was killed or stood still,
//! or its server was started again and the client had not learnt of it. A peer is reported as restarted only if it was.
//! All calls end; when all is quiet, no endpoint holds any bytes.

mod app;
mod draw;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Ran;
use world::World;

/// Returns the scenario of a seed as text.
pub(super) fn scenario(seed: u64) -> String {
    draw::scenario(seed).text()
}

/// Runs a seed; returns the trace too.
fn run(seed: u64) -> Result<world::Outcome, String> {
    let scenario = draw::scenario(seed);
    catch_unwind(AssertUnwindSafe(|| Ok(World::new(&scenario)?.run()))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("without a message")))
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
        messages: outcome.done,
        failed: outcome.failed,
        drops: outcome.drops,
        digest: outcome.digest,
        verdict: outcome.verdict,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_trace_each_time() {
        for seed in [1, 2, 3] {
            let text = traced(seed);
            assert!(text.contains("is answered"), "{text}");
            assert_eq!(text, traced(seed));
            assert_ne!(text, traced(seed + 1));
        }
    }

    /// What the seeds are for occurs in the first of them: otherwise they would try nothing.
    #[test]
    fn the_first_seeds_have_restarts_and_attacks() {
        let mut all = world::Counters::default();
        for seed in 0..40 {
            let outcome = run(seed).unwrap();
            assert_eq!(outcome.verdict, Ok(()), "seed {seed}");
            all.add(&outcome.counters);
        }
        let world::Counters { restarts, forged, replayed, reflected, unproven, .. } = all;
        let world::Counters { cancelled, narrow, fragmented, .. } = all;
        let all = [restarts, forged, replayed, reflected, unproven, cancelled, narrow, fragmented];
        assert!(all.iter().all(|count| *count > 0), "{all:?}");
    }
}
