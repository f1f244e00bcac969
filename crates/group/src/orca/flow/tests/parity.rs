//! What parity saves, and which parity goes for which reports.

use rackweave_core::{Rate, Span, Time};

use super::super::FlowConfig;
use super::super::testkit::{App, HEADERS, Link, Net};

/// 64 MiB to so many receivers at 1 Gbps, each of which loses so many of a million packets: the time as a multiple of what
/// the link needs, and packets on the wire beyond those of the stream, in percent.
fn cast(fec_block: u8, receivers: usize, lost: impl Fn(usize) -> u64) -> (f64, f64, Net) {
    let (bytes, mbps) = (64 << 20, 1000);
    let config = FlowConfig { fec_block, ..FlowConfig::default() };
    let mut net = Net::new(1, mbps, config);
    net.source(None);
    for end in 0..receivers {
        net.end(0, Link { lost: lost(end), ..Link::new(mbps) }, App::default());
    }
    for end in 0..receivers {
        net.invite(end);
    }
    net.sources[0].machine.offer(net.now, bytes);
    net.sources[0].machine.finish(net.now);
    net.run(Time::ZERO + Span::from_secs(100));
    net.check_bounds();
    let payload = u64::from(config.payload);
    let ideal = Rate(mbps * 1_000_000).span_of(bytes + bytes.div_ceil(payload) * HEADERS);
    let last = net.ends.iter().map(|end| end.ended.expect("ended")).max().expect("receivers");
    let summary = net.sources[0].machine.summary();
    let again = summary.repaired_all + summary.repaired_one + summary.parity + summary.alone;
    let more = again as f64 / bytes as f64 * 100.0;
    (last.as_us_f64() / ideal.as_us_f64(), more, net)
}

#[test]
fn random_loss_costs_less_than_a_tenth() {
    for (receivers, lost) in [
        (4, 10_000),
        (16, 10_000),
        (64, 10_000),
        (4, 1000),
        (16, 1000),
        (64, 1000),
        (4, 50_000),
        (16, 50_000),
    ] {
        let (clean, _, _) = cast(64, receivers, |_| 0);
        let [off, on] = [0, 64].map(|block| cast(block, receivers, |_| lost));
        println!(
            "{receivers} receivers, {} % each: {:.4} of the time without loss, {:.4} without parity; again {:.2} %, {:.2} %; {:?}",
            lost as f64 / 10_000.0,
            on.0 / clean,
            off.0 / clean,
            on.1,
            off.1,
            on.2.sources[0].machine.summary(),
        );
        if lost == 10_000 {
            assert!(on.0 < 1.10 * clean, "{}", on.0 / clean);
        }
    }
}

#[test]
fn without_loss_nothing_changes() {
    let [off, on] = [0, 64].map(|block| cast(block, 16, |_| 0));
    assert_eq!(off.0, on.0);
    let sent =
        |net: &Net| (net.sources[0].sent_bytes, net.sources[0].controls, net.sources[0].statuses);
    assert_eq!(sent(&off.2), sent(&on.2));
    assert_eq!(on.2.sources[0].machine.summary(), off.2.sources[0].machine.summary());
}

/// What one receiver misses goes to it alone, as cells.
#[test]
fn one_bad_receiver_of_many_costs_the_others_nothing() {
    let [off, on] = [0, 64].map(|block| cast(block, 16, |end| if end == 3 { 50_000 } else { 0 }));
    println!("{:.4} {:.4}; again {:.2} % {:.2} %", on.0, off.0, on.1, off.1);
    let summary = on.2.sources[0].machine.summary();
    assert_eq!(summary.parity, 0);
    assert!(on.0 < off.0 * 1.01 && on.1 < off.1 * 1.02);
}
