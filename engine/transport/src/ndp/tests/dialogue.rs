//! Packet traces of whole conversations.

use rackweave_core::{Kind, Span};

use super::{Config, LINK, Ndp};
use crate::tests::driven::{lost, trace};
use crate::tests::suite::{at, events, network, submit};

/// A window of three packets, so that pulls start early.
pub(super) fn small() -> Config {
    Config { initial_window: 3, ..Config::paper(LINK) }
}

const US: fn(u64) -> Span = Span::from_us;
const MS: fn(u64) -> Span = Span::from_ms;

#[test]
fn a_short_request() {
    let mut network = network::<Ndp>(&small(), 2, US(1));
    submit(&mut network, 0, 1, 1, 100, Kind::Request);
    network.run_until(at(MS(10)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p0 DATA 1 0 +100 of 100",
            "h1>h0 p7 ACK 1 complete",
            "h1>h0 p0 DATA 1r 0 +100 of 100",
            "h0>h1 p7 ACK 1r complete",
        ]
    );
    assert_eq!(
        events(&mut network),
        [
            "h1: Request 1 of 100 bytes from h0",
            "h0: 1 sent to h1",
            "h0: Response 1r of 100 bytes from h1",
            "h1: 1r sent to h0",
        ]
    );
}

#[test]
fn a_pulled_message() {
    let mut network = network::<Ndp>(&small(), 2, US(1));
    submit(&mut network, 0, 1, 1, 6 * 1_436, Kind::OneWay);
    network.run_until(at(MS(1)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p0 DATA 1 0 +1436 of 8616",
            "h0>h1 p0 DATA 1 1 +1436 of 8616",
            "h0>h1 p0 DATA 1 2 +1436 of 8616",
            // Packets arrive as fast as pulls may be sent: these travel with acknowledgements.
            "h1>h0 p7 ACK 1 0 pull 1",
            "h0>h1 p0 DATA 1 3 +1436 of 8616",
            "h1>h0 p7 ACK 1 1 pull 2",
            "h0>h1 p0 DATA 1 4 +1436 of 8616",
            "h1>h0 p7 ACK 1 2 pull 3",
            "h0>h1 p0 DATA 1 5 +1436 of 8616",
            "h1>h0 p7 ACK 1 3 pull 3",
            // Everything is in flight: no further pulls.
            "h1>h0 p7 ACK 1 4 pull 3",
            "h1>h0 p7 ACK 1 complete",
        ]
    );
}

#[test]
fn pulls_are_paced() {
    let config = Config { pull_percent: 50, ..small() };
    let mut network = network::<Ndp>(&config, 2, US(1));
    submit(&mut network, 0, 1, 1, 5 * 1_436, Kind::OneWay);
    network.run_until(at(MS(1)));
    let pulls = network.packets.iter().filter_map(|(time, packet)| match packet.header.body {
        super::Body::Ack { pull, complete: false, .. } | super::Body::Pull { pull, .. } => {
            Some((pull, *time))
        }
        _ => None,
    });
    // When each pull number was first sent.
    let mut pulls: Vec<_> = pulls.collect();
    pulls.dedup_by_key(|(pull, _)| *pull);
    let times: Vec<_> = pulls.iter().map(|(_, time)| *time).collect();
    assert_eq!(pulls.iter().map(|(pull, _)| *pull).collect::<Vec<_>>(), [1, 2]);
    // An acknowledgement may occupy the link when the second pull is due.
    let late = times[1].since(times[0]).as_ps() - config.pull_spacing().as_ps();
    assert!(late <= LINK.span_of(84).as_ps(), "{late} ps late");
}

#[test]
fn a_trimmed_packet_is_retransmitted_when_pulled_and_before_new_ones() {
    let mut network = network::<Ndp>(&small(), 2, US(1));
    network.set_down(1, true);
    submit(&mut network, 0, 1, 1, 5 * 1_436, Kind::OneWay);
    network.run_until(at(US(10)));
    network.set_down(1, false);
    let mut sent: Vec<_> = network.packets.drain(..).map(|(_, packet)| packet).collect();
    sent[0].trim();
    for packet in sent {
        network.inject(packet);
    }
    network.run_until(at(MS(1)));
    assert_eq!(
        trace(&mut network),
        [
            "h1>h0 p7 NACK 1 0 pull 1",
            "h1>h0 p7 ACK 1 1 pull 1",
            "h1>h0 p7 ACK 1 2 pull 1",
            "h0>h1 p0 DATA 1 0 +1436 of 7180",
            "h1>h0 p7 PULL 1 2",
            "h0>h1 p0 DATA 1 3 +1436 of 7180",
            "h1>h0 p7 PULL 1 3",
            "h0>h1 p0 DATA 1 4 +1436 of 7180",
            "h1>h0 p7 ACK 1 0 pull 3",
            "h1>h0 p7 ACK 1 3 pull 3",
            "h1>h0 p7 ACK 1 complete",
        ]
    );
}

#[test]
fn a_lost_packet_is_retransmitted_after_the_timeout() {
    let mut network = network::<Ndp>(&small(), 2, US(1));
    lost(&mut network, |network| submit(network, 0, 1, 1, 2 * 1_436, Kind::OneWay));
    network.run_until(at(Span::from_us(4_999)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p0 DATA 1 0 +1436 of 2872",
            "h0>h1 p0 DATA 1 1 +1436 of 2872",
            "h1>h0 p7 ACK 1 1 pull 0"
        ]
    );
    network.run_until(at(MS(6)));
    assert_eq!(trace(&mut network), ["h0>h1 p0 DATA 1 0 +1436 of 2872", "h1>h0 p7 ACK 1 complete"]);
}

#[test]
fn a_lost_pull_is_asked_for() {
    let config = Config { initial_window: 1, pull_percent: 50, ..Config::paper(LINK) };
    let mut network = network::<Ndp>(&config, 2, US(1));
    // There are two messages: the pull of the second one waits behind the first one's, and is lost.
    submit(&mut network, 0, 1, 1, 2 * 1_436, Kind::OneWay);
    submit(&mut network, 0, 1, 2, 2 * 1_436, Kind::OneWay);
    network.lose = Some(|packet| {
        matches!(packet.header.body, super::Body::Pull { pull: 1, .. })
            && packet.header.id.get() == 4
    });
    network.run_until(at(MS(4)));
    network.lose = None;
    network.run_until(at(MS(10)));
    let trace = trace(&mut network);
    let asked = trace.iter().position(|line| line.contains("ASK")).expect("asked");
    assert_eq!(
        trace[asked..],
        [
            "h0>h1 p7 ASK 2",
            "h1>h0 p7 PULL 2 1",
            // By the receiver's count a peer that asks has nothing in flight: it sends one more pull.
            "h1>h0 p7 PULL 2 2",
            "h0>h1 p0 DATA 2 1 +1436 of 2872",
            "h1>h0 p7 ACK 2 complete",
        ]
    );
}
