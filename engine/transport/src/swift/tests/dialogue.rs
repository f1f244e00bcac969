//! Packet traces of whole conversations.

use rackweave_core::{HostId, Kind, Packet, Span};
use rackweave_wire::swift::{Body, Header, Sack};

use super::{Config, Swift};
use crate::swift::Host;
use crate::tests::driven::{forged, impatient, trace};
use crate::tests::suite::{at, events, id, network, submit};

const US: fn(u64) -> Span = Span::from_us;
const MS: fn(u64) -> Span = Span::from_ms;

const fn is_data(packet: &Packet<Header>) -> bool {
    matches!(packet.header.body, Body::Data { .. })
}

#[test]
fn a_short_request() {
    let mut network = network::<Swift>(&Config::htsim(), 2, US(1));
    submit(&mut network, 0, 1, 1, 2_000, Kind::Request);
    network.run_until(at(US(100)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p0 DATA 1 0 +1460 #1",
            "h0>h1 p0 DATA 1 1 +540 #2",
            "h1>h0 p0 ACK 1 #1 next 1 sack 0 wait 0",
            "h1>h0 p0 COMPLETE 1 #2 wait 0",
            "h1>h0 p0 DATA 1r 0 +1460 #1",
            "h1>h0 p0 DATA 1r 1 +540 #2",
            "h0>h1 p0 ACK 1r #1 next 1 sack 0 wait 0",
            "h0>h1 p0 COMPLETE 1r #2 wait 0",
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

/// Section 3.1: an acknowledgement that waits for its host's link says for how long.
#[test]
fn an_acknowledgement_carries_its_wait() {
    let mut network = network::<Swift>(&Config::htsim(), 3, Span::ZERO);
    // Host 1 sends full packets of 1230.4 ns while the packet for it arrives at 2460.8 ns.
    submit(&mut network, 1, 2, 1, 20 * 1_460, Kind::OneWay);
    submit(&mut network, 0, 1, 2, 200, Kind::OneWay);
    network.run_until(at(US(100)));
    let waits: Vec<u32> = network
        .packets
        .iter()
        .filter_map(|(_, packet)| match packet.header.body {
            Body::Complete { wait_ns, .. } if packet.src == HostId(1) => Some(wait_ns),
            _ => None,
        })
        .collect();
    // A packet of 278 bytes on the link takes 222.4 ns for each of two links; the first full one leaves at 1230.4.
    assert_eq!(waits, [1_230 - 444]);
}

/// Three later packets have arrived: the packet is sent again, once, with a new number.
#[test]
fn a_lost_packet_is_sent_again_after_three_later_ones() {
    let config = Config { initial_window: 5, ..Config::htsim() };
    let mut network = network::<Swift>(&config, 2, US(5));
    network.lose = Some(|packet| matches!(packet.header.body, Body::Data { number: 2, .. }));
    submit(&mut network, 0, 1, 1, 6 * 1_460, Kind::OneWay);
    network.run_until(at(MS(1)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p0 DATA 1 0 +1460 #1",
            "h0>h1 p0 DATA 1 1 +1460 #2",
            "h0>h1 p0 DATA 1 2 +1460 #3",
            "h0>h1 p0 DATA 1 3 +1460 #4",
            "h0>h1 p0 DATA 1 4 +1460 #5",
            "h1>h0 p0 ACK 1 #1 next 1 sack 0 wait 0",
            "h1>h0 p0 ACK 1 #3 next 1 sack 1 wait 0",
            "h1>h0 p0 ACK 1 #4 next 1 sack 11 wait 0",
            "h1>h0 p0 ACK 1 #5 next 1 sack 111 wait 0",
            // The first acknowledgement opens the window by this packet, which is on its way when the third comes.
            "h0>h1 p0 DATA 1 5 +1460 #6",
            "h0>h1 p0 DATA 1 1 +1460 #7",
            "h1>h0 p0 ACK 1 #6 next 1 sack 1111 wait 0",
            "h1>h0 p0 COMPLETE 1 #7 wait 0",
        ]
    );
}

/// Below one packet, one is sent every RTT / cwnd: section 3.4.
#[test]
fn packets_are_paced_below_one_packet() {
    // A target that no delay meets: the window halves at each acknowledgement that is a round trip after the last decrease.
    let config = Config {
        initial_window: 1,
        base_target: US(1),
        per_hop: Span::ZERO,
        scaling_range: Span::ZERO,
        beta_permille: 1000,
        ..Config::htsim()
    };
    let mut network = network::<Swift>(&config, 2, US(50));
    submit(&mut network, 0, 1, 1, 5 * 1_460, Kind::OneWay);
    network.run_until(at(MS(20)));
    let times: Vec<u64> = network
        .packets
        .iter()
        .filter(|(_, packet)| is_data(packet))
        .map(|(time, _)| time.since(network.packets[0].0).as_us())
        .collect();
    // The round trip of 102.6 us over windows of 1/2, 1/4, 1/8 and 1/16.
    assert_eq!(times, [0, 205, 615, 1_436, 3_077]);
    assert_eq!(events(&mut network), ["h1: OneWay 1 of 7300 bytes from h0", "h0: 1 sent to h1"]);
}

#[test]
fn messages_to_one_host_are_sent_in_turn_and_share_a_window() {
    let config = Config { initial_window: 4, ..Config::htsim() };
    let mut network = network::<Swift>(&config, 2, US(20));
    for n in 1..=3 {
        submit(&mut network, 0, 1, n, 2 * 1_460, Kind::OneWay);
    }
    network.run_until(at(US(20)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p0 DATA 1 0 +1460 #1",
            "h0>h1 p0 DATA 1 1 +1460 #2",
            "h0>h1 p0 DATA 2 0 +1460 #3",
            "h0>h1 p0 DATA 3 0 +1460 #4",
        ]
    );
}

/// All messages to a silent peer fail at the same time, unsent ones included.
#[test]
fn the_window_to_a_silent_peer_shrinks() {
    let mut network = network::<Swift>(&Config::htsim(), 2, US(1));
    network.set_down(1, true);
    submit(&mut network, 0, 1, 1, 10_000, Kind::OneWay);
    for n in 2..=20 {
        submit(&mut network, 0, 1, n, 10_000, Kind::OneWay);
    }
    assert!(network.run_until(at(MS(200))));
    let events = events(&mut network);
    assert_eq!(events.len(), 20);
    assert!(events.iter().all(|event| event.ends_with("with h1 failed: peer silent")));
    // Windows of 15, 7, 3 and 1 after the first timeouts, and then every 10 ms what a timeout repeats, and at most one more.
    let sent = network.packets.iter().filter(|(_, packet)| is_data(packet)).count();
    assert!((26 + 14..=26 + 29).contains(&sent), "{sent}");
}

/// A message whose turn comes seldom, because its flow is slow, is not given up at either end.
#[test]
fn a_message_that_waits_for_its_turn_is_kept() {
    let config = Config {
        initial_window: 1,
        base_target: US(1),
        per_hop: Span::ZERO,
        scaling_range: Span::ZERO,
        beta_permille: 1000,
        ..Config::htsim()
    };
    let config = impatient(config, MS(50));
    let mut network = network::<Swift>(&config, 2, US(20));
    // At the smallest window a packet is sent every 10 ms: each message has a turn every 100 ms.
    for n in 1..=10 {
        submit(&mut network, 0, 1, n, 3 * 1_460, Kind::OneWay);
    }
    network.run_until(at(MS(600)));
    let events = events(&mut network);
    assert!(events.iter().all(|event| !event.contains("failed")), "{events:?}");
    assert_eq!(events.len(), 20);
    let is_probe = |packet: &Packet<Header>| matches!(packet.header.body, Body::Probe { .. });
    assert!(network.packets.iter().any(|(_, packet)| is_probe(packet)));
}

/// An acknowledgement of an earlier message names the number of a packet that is lost, as one can that is older than a restart. Neither the
/// message nor its flow has that packet to send again then; what the receiver misses when it is probed has not arrived.
#[test]
fn a_probed_receiver_gets_what_it_misses() {
    let config = impatient(Config::htsim(), MS(50));
    let mut network = network::<Swift>(&config, 2, US(1));
    network.lose = Some(|packet| matches!(packet.header.body, Body::Data { number: 3, .. }));
    submit(&mut network, 0, 1, 1, 3 * 1_460, Kind::OneWay);
    network.run_until(at(US(15)));
    let body = Body::Ack { number: 3, wait_ns: 0, next: 0, sack: Sack::default() };
    network.inject(forged::<Swift>(id(99), body));
    network.run_until(at(MS(100)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p0 DATA 1 0 +1460 #1",
            "h0>h1 p0 DATA 1 1 +1460 #2",
            "h0>h1 p0 DATA 1 2 +1460 #3",
            "h1>h0 p0 ACK 1 #1 next 1 sack 0 wait 0",
            "h1>h0 p0 ACK 1 #2 next 2 sack 0 wait 0",
            "h0>h1 p0 PROBE 1",
            "h1>h0 p0 ACK 1 #0 next 2 sack 0 wait 0",
            "h0>h1 p0 DATA 1 2 +1460 #4",
            "h1>h0 p0 COMPLETE 1 #4 wait 0",
        ]
    );
    assert_eq!(events(&mut network), ["h1: OneWay 1 of 4380 bytes from h0", "h0: 1 sent to h1"]);
}

/// A window that is remembered is used by the next message; one that was forgotten begins again.
#[test]
fn windows_of_idle_flows_are_remembered_up_to_their_number() {
    for (max_idle_flows, burst) in [(1, 7), (0, 15)] {
        let config = Config { max_idle_flows, ..Config::htsim() };
        let mut network = network::<Swift>(&config, 2, US(20));
        network.lose = Some(|packet| matches!(packet.header.body, Body::Data { number: 1, .. }));
        submit(&mut network, 0, 1, 1, 4 * 1_460, Kind::OneWay);
        network.run_until(at(MS(2)));
        network.lose = None;
        assert!(network.hosts.iter().all(Host::is_idle));
        network.packets.clear();
        let start = network.now();
        submit(&mut network, 0, 1, 2, 40 * 1_460, Kind::OneWay);
        network.run_until(start + US(30));
        let sent = network.packets.iter().filter(|(_, packet)| is_data(packet)).count();
        assert_eq!(sent, burst, "{max_idle_flows} flows are remembered");
    }
}
