//! What does it cost that one of two links between racks fails for three milliseconds and comes back?
//!
//! `cargo run --release -p rackweave-sim --example broken_link`

use rackweave_core::{DropReason, Rate, Span, Time};
use rackweave_sim::config::{FabricConfig, Fault, FaultKind, FaultPlace, MeasureConfig, RunConfig};
use rackweave_sim::result::{End, Outcome, RunResult};
use rackweave_sim::{Control, run};
use rackweave_transport::tcp;
use rackweave_workload::{Pattern, SizeDist};

/// When the last message was there.
fn last(result: &RunResult) -> Time {
    let times = result.messages.iter().map(|message| match message.outcome {
        Outcome::Completed(at) => at,
        other => panic!("a message ended as {other:?}"),
    });
    times.max().expect("there are messages")
}

/// Runs the same permutation over a fabric with and without the fault.
pub(crate) fn main() {
    let fabric = FabricConfig::leaf_spine(2, 8, 2, Rate::from_gbps(10));
    let permutation = Pattern::permutation(SizeDist::fixed(10_000_000).expect("a size"));
    let whole = RunConfig::new(fabric)
        .with_stream(tcp::Config::dctcp(), permutation)
        .with_measure(MeasureConfig::default().with_verification());
    let at = |ms| Time::ZERO + Span::from_ms(ms);
    let broken = whole.clone().with_fault(Fault {
        from: at(2),
        until: at(5),
        place: FaultPlace::CoreLink(0),
        kind: FaultKind::Down,
    });
    let run = |config| run(config, &Control::default()).expect("a possible run");
    let (whole, broken) = (run(&whole), run(&broken));
    let lost = broken.counters.drops[DropReason::LinkDown as usize];
    println!("all messages are there at {}, with the fault at {}", last(&whole), last(&broken));
    println!("{lost} packets were on the link when it failed; flows then took the other one");
    for result in [&whole, &broken] {
        assert_eq!((result.end, result.verified_messages), (End::AllDone, 16));
    }
    assert!(lost > 0 && last(&broken) > last(&whole));
}
