//! Which messages make the load of the published workloads: the many short ones, or the few long ones?
//!
//! `cargo run -p rackweave-workload --example who_makes_the_load`

use rackweave_core::{Framing, HostId, Rate, Time};
use rackweave_workload::{Generator, LoadCounts, Pattern, SizeDist, WorkloadConfig, open_loop_gap};

const LINK: Rate = Rate::from_gbps(10);
const LOAD: f64 = 0.6;
const MESSAGES: u32 = 400_000;

/// Draws messages of each workload at 60 % load, and sorts them by whether they fit a packet.
pub(crate) fn main() {
    let framing = Framing { max_payload: 1460, header_bytes: 40, spray_above_bytes: u32::MAX };
    for name in ["W1", "W2", "W3", "W4", "W5"] {
        let sizes = SizeDist::named(name).expect("a published workload");
        let gap = open_loop_gap(&sizes, LOAD, LoadCounts::Payload, LINK, framing, |_| 0.0);
        let gap = gap.expect("a possible load");
        let config = WorkloadConfig::new(Pattern::open_loop(sizes.clone(), LOAD));
        let mut generator = Generator::new(&config, 2, Some(gap), 1, 0, 0).expect("two hosts");
        let (mut short, mut short_bytes, mut bytes) = (0, 0, 0);
        let mut last = Time::ZERO;
        for _ in 0..MESSAGES {
            let arrival = generator.next(HostId(0)).expect("an open loop has no end");
            (last, bytes) = (arrival.at, bytes + arrival.bytes);
            if arrival.bytes <= u64::from(framing.max_payload) {
                (short, short_bytes) = (short + 1, short_bytes + arrival.bytes);
            }
        }
        let load = LINK.span_of(bytes).ticks() as f64 / last.since(Time::ZERO).ticks() as f64;
        let share = f64::from(short) / f64::from(MESSAGES);
        println!(
            "{name}: {:>4.1} % of the messages fit a packet, with {:>4.1} % of the bytes; a message every {gap}, load {load:.3}",
            100.0 * share,
            100.0 * short_bytes as f64 / bytes as f64,
        );
        assert!((share - sizes.cdf(1460)).abs() < 0.01);
        // The tails are so heavy that the load of 400,000 messages still differs by a few percent.
        assert!((load / LOAD - 1.0).abs() < 0.1);
    }
}
