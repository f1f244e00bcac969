//! When do 64 hosts have sent 100 KB each to one host, over each of four transports, and what did it take?
//!
//! `cargo run --release -p rackweave-sim --example incast`

use rackweave_core::{HostId, Rate};
use rackweave_sim::config::{FabricConfig, RunConfig, SwitchConfig, TrimConfig};
use rackweave_sim::result::{End, Outcome};
use rackweave_sim::{Control, run};
use rackweave_transport::{TransportConfig, homa, ndp, tcp};
use rackweave_workload::{Pattern, SizeDist};

const LINK: Rate = Rate::from_gbps(10);
const SENDERS: u32 = 64;
const BYTES: u64 = 100_000;

/// Prints a line for each transport.
pub(crate) fn main() {
    let plain = SwitchConfig::default();
    let cases: [(&str, TransportConfig, SwitchConfig); 4] = [
        ("homa", homa::Config::fabric(LINK, 10_000).into(), plain),
        ("ndp", ndp::Config::paper(LINK).into(), plain.with_trim(TrimConfig::NDP)),
        ("dctcp", tcp::Config::dctcp().into(), plain),
        ("tcp", tcp::Config::tcp().into(), plain),
    ];
    // The receiver's link is busy for at least as long as the bytes take.
    let least = LINK.span_of(u64::from(SENDERS) * BYTES);
    println!("the bytes alone take {least}");
    let mut drops = Vec::new();
    for (name, transport, switch) in cases {
        let fabric = FabricConfig::single_switch(SENDERS + 1, LINK).with_switch(switch);
        let incast = Pattern::incast(HostId(0), SizeDist::fixed(BYTES).expect("a size"));
        let config = RunConfig::new(fabric).with_stream(transport, incast);
        let result = run(&config, &Control::default()).expect("a possible run");
        let times = result.messages.iter().map(|message| match message.outcome {
            Outcome::Completed(at) => at.since(message.start),
            other => panic!("{name}: a message ended as {other:?}"),
        });
        let last = times.max().expect("there are messages");
        let dropped = result.counters.dropped();
        println!(
            "{name:<6} the last message after {last}; {dropped} packets lost, at most {} bytes in a queue",
            result.max_queue_bytes
        );
        assert_eq!((result.end, result.messages.len()), (End::AllDone, SENDERS as usize));
        assert!(last > least);
        drops.push(dropped);
    }
    // Trimmed packets are not lost, and TCP finds out about the queue only by losses.
    assert_eq!(drops[1], 0);
    assert!(drops[3] > 0);
}
