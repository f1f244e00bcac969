//! Packet traces of whole conversations.

use rackweave_core::telemetry::{Stamp, rate_code};
use rackweave_core::{Ecn, Kind, Packet, Span, Time};
use rackweave_wire::hpcc::stamped::{Body, Header};

use super::{Config, Hpcc, LINK, usual};
use crate::hpcc::Host;
use crate::tests::driven::trace;
use crate::tests::suite::{at, events, network, submit};

const US: fn(u64) -> Span = Span::from_us;

const fn is_data(packet: &Packet<Header>) -> bool {
    matches!(packet.header.body, Body::Data { .. })
}

/// Stamps data as a port does that is the bottleneck, with this queue.
fn stamps(queue_bytes: u64) -> impl FnMut(Time, &mut Packet<Header>) {
    let mut sent_bytes = 0;
    move |at, packet| {
        let rate = rate_code(LINK).expect("a rate with a code");
        if let Body::Data { stack, .. } = &mut packet.header.body {
            stack.push(Stamp { port: 1, rate, at, sent_bytes, queue_bytes });
            sent_bytes += u64::from(packet.wire_bytes);
        }
    }
}

#[test]
fn each_acknowledgement_returns_what_switches_wrote() {
    let mut network = network::<Hpcc>(&usual(), 2, US(1));
    let mut stamp = stamps(0);
    network.fate = Some(Box::new(move |at, packet| {
        stamp(at, packet);
        vec![Span::ZERO]
    }));
    submit(&mut network, 0, 1, 1, 4_000, Kind::OneWay);
    network.run_until(at(US(100)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p3 DATA 1 0 +1418 asks",
            "h0>h1 p3 DATA 1 1 +1418 asks",
            "h0>h1 p3 DATA 1 2 +1164 asks",
            "h1>h0 p3 ACK 1 next 1 sack 0 hops 1",
            "h1>h0 p3 ACK 1 next 2 sack 0 hops 1",
            "h1>h0 p3 COMPLETE 1",
        ]
    );
    assert_eq!(events(&mut network), ["h1: OneWay 1 of 4000 bytes from h0", "h0: 1 sent to h1"]);
}

#[test]
fn a_gap_is_reported_once_and_the_sender_goes_back() {
    let mut network = network::<Hpcc>(&usual(), 2, Span::ZERO);
    let mut lost = 0;
    network.fate = Some(Box::new(move |_, packet| {
        let is_second = matches!(packet.header.body, Body::Data { offset: 1_418, .. });
        lost += u32::from(is_second);
        if is_second && lost == 1 { vec![] } else { vec![Span::ZERO] }
    }));
    submit(&mut network, 0, 1, 1, 6 * 1_418, Kind::OneWay);
    network.run_until(at(US(100)));
    assert!(network.hosts.iter().all(Host::is_idle));
    let nacks = trace(&mut network).iter().filter(|line| line.contains("NACK")).count();
    assert_eq!(nacks, 1);
    assert_eq!(events(&mut network).len(), 2);
    assert!(network.hosts[0].recovery.retransmissions >= 2);
}

/// The data of a message of 2000 packets, over a port that shows this queue: their mean rate after 200 packets, in Gbps.
fn rate_with(queue_bytes: u64) -> f64 {
    // T is the round trip of this path: two links with 5 us each way, a full packet and its acknowledgement.
    let config = Config::paper(LINK, Span::from_ns(12_700));
    let mut network = network::<Hpcc>(&config, 2, US(5));
    let mut stamp = stamps(queue_bytes);
    network.fate = Some(Box::new(move |at, packet| {
        stamp(at, packet);
        vec![Span::ZERO]
    }));
    submit(&mut network, 0, 1, 1, 2_000 * 1_418, Kind::OneWay);
    network.run_until(at(Span::from_ms(60)));
    assert_eq!(events(&mut network).len(), 2, "it arrives");
    let data: Vec<_> = network.packets.iter().filter(|(_, packet)| is_data(packet)).collect();
    assert!(data.iter().all(|(_, packet)| packet.ecn() == Ecn::NotCapable));
    let (from, to) = (data[200].0, data[1_999].0);
    1_799.0 * 1_538.0 * 8.0 / to.since(from).as_ps() as f64 * 1e3
}

/// Theory: with a queue q that does not change, the fixed point of W = W / (U / eta) + W_AI is U = eta / (1 - W_AI / W), and the
/// port's own rate is U minus q / (B T). Without a queue that is eta of the link.
#[test]
fn a_flow_settles_where_the_busiest_port_is_at_eta() {
    let alone = rate_with(0);
    assert!(alone > 9.4 && alone < 9.7, "{alone}");
    // 10 Gbps in 12.7 us are 15,875 bytes; the queue has a fifth of that.
    let behind = rate_with(3_200);
    assert!(behind > 7.3 && behind < 7.8, "{behind}");
    // A queue of more than the product: the least rate, a tenth of the link.
    let stopped = rate_with(20_000);
    assert!(stopped > 0.9 && stopped < 1.2, "{stopped}");
}
