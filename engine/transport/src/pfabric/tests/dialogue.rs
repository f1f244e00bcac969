//! Packet traces of whole conversations.

use rackweave_core::{Header as _, Kind, Packet, Span};
use rackweave_wire::pfabric::{Body, Header};

use super::{Config, PFabric};
use crate::pfabric::Host;
use crate::tests::driven::{impatient, kept_behind_shorter_ones, trace};
use crate::tests::suite::{at, events, network, submit};

const US: fn(u64) -> Span = Span::from_us;
const MS: fn(u64) -> Span = Span::from_ms;

pub(super) fn small() -> Config {
    Config { initial_window: 3, max_window: 4, ..Config::paper() }
}

const fn is_data(packet: &Packet<Header>) -> bool {
    matches!(packet.header.body, Body::Data { .. })
}

#[test]
fn a_short_request() {
    let mut network = network::<PFabric>(&Config::paper(), 2, US(1));
    submit(&mut network, 0, 1, 1, 2_000, Kind::Request);
    network.run_until(at(US(100)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p0 DATA 1 0 +1460 of 2000",
            "h0>h1 p0 DATA 1 1 +540 of 2000",
            "h1>h0 p7 ACK 1 0 next 1 sack 0",
            "h1>h0 p7 COMPLETE 1",
            "h1>h0 p0 DATA 1r 0 +1460 of 2000",
            "h1>h0 p0 DATA 1r 1 +540 of 2000",
            "h0>h1 p7 ACK 1r 0 next 1 sack 0",
            "h0>h1 p7 COMPLETE 1r",
        ]
    );
    assert_eq!(
        events(&mut network),
        [
            "h1: Request 1 of 2000 bytes from h0",
            "h0: 1 sent to h1",
            "h0: Response 1r of 2000 bytes from h1",
            "h1: 1r sent to h0",
        ]
    );
}

/// Section 4.3 and YAPS: the window does not move while the first packet is missing, the timeout is three round trips
/// after the last progress, and then only what is missing is sent, by slow start.
#[test]
fn a_lost_packet_is_sent_again_after_the_timeout() {
    let config = small();
    let mut network = network::<PFabric>(&config, 2, Span::ZERO);
    let mut lost = 0;
    network.fate = Some(Box::new(move |_, packet| {
        let is_second = matches!(packet.header.body, Body::Data { offset: 1_460, .. });
        lost += u32::from(is_second);
        if is_second && lost == 1 { vec![] } else { vec![Span::ZERO] }
    }));
    submit(&mut network, 0, 1, 1, 6 * 1_460, Kind::OneWay);
    network.run_until(at(MS(1)));
    let all = trace(&mut network);
    assert_eq!(
        all,
        [
            "h0>h1 p0 DATA 1 0 +1460 of 8760",
            "h0>h1 p0 DATA 1 1 +1460 of 8760",
            "h0>h1 p0 DATA 1 2 +1460 of 8760",
            "h1>h0 p7 ACK 1 0 next 1 sack 0",
            // The window is now 4, behind packet 0: packets 1 to 4.
            "h0>h1 p0 DATA 1 3 +1460 of 7300",
            "h0>h1 p0 DATA 1 4 +1460 of 7300",
            "h1>h0 p7 ACK 1 2 next 1 sack 1",
            // It is extended by the packet that has arrived.
            "h0>h1 p0 DATA 1 5 +1460 of 5840",
            "h1>h0 p7 ACK 1 3 next 1 sack 11",
            "h1>h0 p7 ACK 1 4 next 1 sack 111",
            "h1>h0 p7 ACK 1 5 next 1 sack 1111",
            "h0>h1 p0 DATA 1 1 +1460 of 1460",
            "h1>h0 p7 COMPLETE 1",
        ]
    );
}

/// Section 4.3: after five timeouts in succession only probes are sent, until one is acknowledged.
#[test]
fn probes_after_five_timeouts() {
    let mut network = network::<PFabric>(&small(), 2, Span::ZERO);
    network.lose = Some(is_data);
    submit(&mut network, 0, 1, 1, 6 * 1_460, Kind::OneWay);
    network.run_until(at(US(240)));
    let trace_of = trace(&mut network);
    let again = "h0>h1 p0 DATA 1 0 +1460 of 8760";
    assert_eq!(
        trace_of,
        [
            again,
            "h0>h1 p0 DATA 1 1 +1460 of 8760",
            "h0>h1 p0 DATA 1 2 +1460 of 8760",
            // After each of four timeouts of 45 us; the fifth begins probe mode.
            again,
            again,
            again,
            again,
            "h0>h1 p7 PROBE 1 of 8760",
            "h1>h0 p7 ACK 1 0 next 0 sack 0",
            // Slow start.
            again,
        ]
    );
    network.lose = None;
    network.run_until(at(MS(2)));
    assert_eq!(events(&mut network), ["h1: OneWay 1 of 8760 bytes from h0", "h0: 1 sent to h1"]);
    assert!(network.hosts.iter().all(Host::is_idle));
}

#[test]
fn the_shortest_message_of_a_host_is_first() {
    let mut network = network::<PFabric>(&Config::paper(), 3, Span::ZERO);
    submit(&mut network, 0, 1, 1, 10 * 1_460, Kind::OneWay);
    submit(&mut network, 0, 2, 2, 2 * 1_460, Kind::OneWay);
    network.run_until(at(US(100)));
    let order: Vec<u32> = network
        .packets
        .iter()
        .filter(|(_, packet)| is_data(packet))
        .map(|(_, packet)| packet.dst.0)
        .collect();
    // The first packet was on the link when the second message was submitted.
    assert_eq!(order, [&[1][..], &[2; 2], &[1; 9]].concat());
    assert!(network.packets.iter().all(|(_, packet)| packet.src != packet.dst));
}

/// A message that waits at its own host for longer than the patience is not given up, at either end.
#[test]
fn a_message_that_waits_for_shorter_ones_is_kept() {
    let config = Config { ask_interval: MS(2), ..Config::paper() };
    let network = kept_behind_shorter_ones::<PFabric>(config);
    // One every 2.5 ms, for 41.4 ms.
    assert_eq!(network.packets.iter().filter(|(_, packet)| is_probe(packet)).count(), 16);
}

/// A switch with shorter messages sends nothing of a longer one, probes included. Probes without a rank pass it, so that
/// the sender does not take the receiver for dead.
#[test]
fn a_message_that_a_switch_holds_back_is_not_given_up() {
    let config = impatient(Config { ask_interval: MS(2), ..Config::paper() }, MS(10));
    let mut network = network::<PFabric>(&config, 2, Span::ZERO);
    network.lose = Some(|packet| packet.header.rank().is_some());
    submit(&mut network, 0, 1, 1, 10_000, Kind::OneWay);
    network.run_until(at(MS(40)));
    let rank = |packet: &Packet<Header>| packet.header.rank().map(|rank| rank.remaining);
    let probes = network.packets.iter().filter(|(_, packet)| is_probe(packet));
    let (ranked, first): (Vec<_>, Vec<_>) = probes.partition(|(_, packet)| rank(packet).is_some());
    assert!(ranked.iter().all(|(_, packet)| rank(packet) == Some(10_000)));
    // The first answer is to the first probe without a rank, 2.5 ms after the first packet at the earliest.
    assert!(
        !ranked.is_empty() && (8..=16).contains(&first.len()),
        "{} {}",
        ranked.len(),
        first.len()
    );
    network.lose = None;
    network.run_until(at(MS(50)));
    assert_eq!(events(&mut network), ["h1: OneWay 1 of 10000 bytes from h0", "h0: 1 sent to h1"]);
}

const fn is_probe(packet: &Packet<Header>) -> bool {
    matches!(packet.header.body, Body::Probe { .. })
}
