//! How much longer than on an idle fabric do short and long messages take under load, with Homa and with DCTCP?
//!
//! `cargo run --release -p rackweave-sim --example slowdowns`

use rackweave_core::Rate;
use rackweave_sim::config::{FabricConfig, MeasureConfig, RunConfig};
use rackweave_sim::result::{MessageRecord, Outcome, RunResult};
use rackweave_sim::{Control, Fabric, run};
use rackweave_transport::{TransportConfig, homa, tcp};
use rackweave_workload::{Pattern, SizeDist};

const LINK: Rate = Rate::from_gbps(10);

/// The time that a message took, as a multiple of what it takes on the idle fabric.
fn slowdown(message: &MessageRecord) -> f64 {
    match message.outcome {
        Outcome::Completed(at) => {
            at.since(message.start).ticks() as f64 / message.ideal.ticks() as f64
        }
        other => panic!("a message ended as {other:?}"),
    }
}

/// The 99th percentile of the slowdowns of messages with up to `most` bytes.
fn p99(result: &RunResult, most: u64) -> f64 {
    let short = result.messages.iter().filter(|message| message.bytes <= most);
    let mut slowdowns: Vec<f64> = short.map(slowdown).collect();
    slowdowns.sort_by(f64::total_cmp);
    slowdowns[slowdowns.len() * 99 / 100]
}

/// Runs W3 at 70 % load on 24 hosts.
pub(crate) fn main() {
    let fabric = FabricConfig::leaf_spine(3, 8, 2, LINK);
    let sizes = SizeDist::named("W3").expect("a published workload");
    // Homa's priorities follow the sizes, and its window the round trip.
    let round_trip = {
        let fabric = Fabric::new(&fabric).expect("a possible fabric");
        LINK.bytes_in(fabric.base_rtt(homa::Config::fabric(LINK, 10_000).framing(), 84)) as u32
    };
    let points: Vec<_> = sizes.points().map(|(size, share)| (size as u32, share)).collect();
    let transports: [(&str, TransportConfig); 2] = [
        ("homa", homa::Config::fabric(LINK, round_trip).with_workload(&points, None).into()),
        ("dctcp", tcp::Config::dctcp().into()),
    ];
    let mut of_short = Vec::new();
    for (name, transport) in transports {
        let config = RunConfig::new(fabric.clone())
            .with_stream(transport, Pattern::open_loop(sizes.clone(), 0.7))
            .with_measure(MeasureConfig::endless().with_messages(10_000));
        let result = run(&config, &Control::default()).expect("a possible run");
        assert!(result.messages.iter().all(|message| slowdown(message) >= 0.999));
        let (short, all) = (p99(&result, 1_000), p99(&result, u64::MAX));
        println!("{name:<6} 99 % of the messages up to 1 KB: {short:.2}, of all: {all:.2}");
        of_short.push(short);
    }
    assert!(2.0 * of_short[0] < of_short[1], "Homa serves short messages first");
}
