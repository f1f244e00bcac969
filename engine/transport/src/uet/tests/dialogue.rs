//! Packet traces of whole conversations.

use rackweave_core::{Kind, Node as _, Span};
use rackweave_wire::uet::Body;

use super::{Config, LINK, RTT, Uet};
use crate::tests::Network;
use crate::tests::driven::trace;
use crate::tests::suite::{at, events, network, submit};
use crate::uet::{Credit, Host};

const US: fn(u64) -> Span = Span::from_us;
const MS: fn(u64) -> Span = Span::from_ms;

/// A window of four packets, so that credit is needed early.
pub(super) fn small(config: Config) -> Config {
    Config { max_window: 6_000, ..config }
}

/// The lines of the trace that begin so.
fn lines(network: &mut Network<Host>, beginnings: &[&str]) -> Vec<String> {
    let is_one = |line: &String| beginnings.iter().any(|beginning| line.starts_with(beginning));
    trace::<Uet>(network).into_iter().filter(is_one).collect()
}

#[test]
fn a_short_request() {
    for config in [Config::eqds(LINK), Config::uet(LINK, RTT)] {
        let mut network = network::<Uet>(&config, 2, US(1));
        submit(&mut network, 0, 1, 1, 100, Kind::Request);
        network.run_until(at(MS(10)));
        assert_eq!(
            trace::<Uet>(&mut network),
            [
                "h0>h1 p0 DATA 1 0 sa target 0",
                "h1>h0 p7 ACK 1 complete",
                "h1>h0 p0 DATA 1r 0 sa target 0",
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
}

/// Each packet asks for one more until the window or the message ends. Credit that was not asked for follows, for a window of 24
/// quanta at most.
#[test]
fn eqds_gives_credit_packet_by_packet() {
    let mut network = network::<Uet>(&small(Config::eqds(LINK)), 2, US(10));
    submit(&mut network, 0, 1, 1, 7 * 1_436, Kind::OneWay);
    network.run_until(at(MS(1)));
    assert_eq!(
        trace::<Uet>(&mut network),
        [
            // 1500 bytes are six quanta. The window is spent when the fourth is sent, and three packets are left.
            "h0>h1 p0 DATA 1 0 s target 6",
            "h0>h1 p0 DATA 1 1 s target 12",
            "h0>h1 p0 DATA 1 2 s target 18",
            "h0>h1 p0 DATA 1 3 sa target 18",
            // The first packet is acknowledged at once, then the one that asked for it.
            "h1>h0 p7 ACK 1 below 1 at 0 1 received 1",
            "h1>h0 p7 PULL 1 5",
            "h1>h0 p7 PULL 1 10",
            "h1>h0 p7 PULL 1 15",
            "h1>h0 p7 PULL 1 20",
            "h1>h0 p7 ACK 1 below 4 at 3 1111 received 4",
            "h1>h0 p7 PULL 1 25",
            "h1>h0 p7 PULL 1 30",
            "h1>h0 p7 PULL 1 35",
            "h1>h0 p7 PULL 1 40",
            "h1>h0 p7 PULL 1 45",
            "h0>h1 p0 DATA 1 4 a target 18",
            "h0>h1 p0 DATA 1 5 a target 18",
            "h0>h1 p0 DATA 1 6 a target 18",
            "h1>h0 p7 ACK 1 below 5 at 4 11111 received 5",
            "h1>h0 p7 ACK 1 below 6 at 5 111111 received 6",
            "h1>h0 p7 ACK 1 complete",
        ]
    );
}

/// RCCC gives up to four packets at a time, and not more than the sender asks for before all others have what they ask for.
#[test]
fn rccc_gives_what_is_asked_for() {
    let mut network = network::<Uet>(&small(Config::rccc(LINK, RTT)), 2, US(10));
    submit(&mut network, 0, 1, 1, 7 * 1_436, Kind::OneWay);
    network.run_until(at(MS(1)));
    assert_eq!(
        lines(&mut network, &["h1>h0 p7 PULL"]),
        [
            "h1>h0 p7 PULL 1 6",
            "h1>h0 p7 PULL 1 12",
            "h1>h0 p7 PULL 1 18",
            "h1>h0 p7 PULL 1 40",
            "h1>h0 p7 PULL 1 62",
        ]
    );
}

/// Without credit nothing but acknowledgements comes back.
#[test]
fn nscc_needs_no_credit() {
    let mut network = network::<Uet>(&Config::nscc(LINK, RTT), 2, US(10));
    submit(&mut network, 0, 1, 1, 30 * 1_436, Kind::OneWay);
    network.run_until(at(MS(1)));
    let back = lines(&mut network, &["h1>h0"]);
    assert!(back.len() > 5 && back.iter().all(|line| line.starts_with("h1>h0 p7 ACK")), "{back:?}");
}

/// Delivers what was sent while host 1 was down, with the packets that `trims` chooses trimmed.
fn trimmed(network: &mut Network<Host>, trims: fn(usize) -> bool) {
    network.set_down(1, true);
    submit(network, 0, 1, 1, 7 * 1_436, Kind::OneWay);
    network.run_until(at(US(10)));
    network.set_down(1, false);
    let sent: Vec<_> = network.packets.drain(..).map(|(_, packet)| packet).collect();
    for (number, mut packet) in sent.into_iter().enumerate() {
        if trims(number) {
            packet.trim();
        }
        network.inject(packet);
    }
}

#[test]
fn a_trimmed_packet_is_retransmitted_with_credit_and_before_new_ones() {
    for config in [Config::eqds(LINK), Config::rccc(LINK, RTT), Config::uet(LINK, RTT)] {
        let mut network = network::<Uet>(&small(config), 2, US(1));
        trimmed(&mut network, |number| number == 1);
        network.run_until(at(MS(1)));
        let nacks = lines(&mut network, &["h1>h0 p7 NACK", "h0>h1"]);
        assert_eq!(nacks[0], "h1>h0 p7 NACK 1 1 received 1");
        assert!(nacks[1].starts_with("h0>h1 p0 DATA 1 1 ra target "), "{nacks:?}");
        assert_eq!(nacks.len(), 5, "{nacks:?}");
    }
}

/// Each trimmed packet asks for credit for one more. Of forged ones, no more than two windows count, and no message has
/// credit for more than that and its window.
#[test]
fn forged_trimmed_packets_give_credit_for_two_windows_at_most() {
    let mut network = network::<Uet>(&small(Config::eqds(LINK)), 2, US(1));
    network.set_down(1, true);
    submit(&mut network, 0, 1, 1, 1_000 * 1_436, Kind::OneWay);
    network.run_until(at(US(10)));
    network.set_down(1, false);
    let sent: Vec<_> = network.packets.drain(..).map(|(_, packet)| packet).collect();
    network.set_down(0, true);
    for (number, packet) in sent.into_iter().enumerate() {
        network.inject(packet);
        for _ in 0..if number == 0 { 5_000 } else { 0 } {
            let mut forged = packet;
            if let Body::Data { offset, .. } = &mut forged.header.body {
                *offset += 10 * 1_436;
            }
            forged.trim();
            network.inject(forged);
        }
    }
    network.run_until(at(MS(10)));
    let pulls = lines(&mut network, &["h1>h0 p7 PULL"]);
    let last = pulls.iter().filter_map(|line| line.rsplit(' ').next()?.parse::<u32>().ok()).max();
    // The sender had asked for 18 to 24 quanta. A window of four packets is 24, and two of one packet more are 60.
    assert!(last.unwrap() <= 24 + 60 + 24 + 5, "{last:?}");
    assert!(pulls.len() <= 25, "{}", pulls.len());
}

/// EQDS: credit for packets that were trimmed precedes all other credit.
#[test]
fn eqds_serves_trimmed_messages_first() {
    let mut host = Host::new(rackweave_core::HostId(0), Config::eqds(LINK).into());
    let data = |n: u64, offset: u32, trimmed: bool| {
        let body = Body::Data {
            message_length: 143_600,
            offset,
            len: 1_436,
            pull_target: 100,
            ack_request: false,
            retransmitted: false,
            speculative: true,
        };
        let mut packet = crate::tests::driven::forged::<Uet>(crate::tests::suite::id(n), body);
        if trimmed {
            packet.trim();
        }
        packet
    };
    for n in 1..=3 {
        let _ = host.handle_packet(at(US(1)), 0, &data(n, 0, false));
    }
    let _ = host.handle_packet(at(US(1)), 0, &data(3, 1_436, true));
    let mut order = Vec::new();
    for us in 1..12 {
        host.handle_timeout(at(US(us)));
        while let Some(packet) = host.poll_transmit(at(US(us)), 0) {
            if let Body::Pull { pull, .. } = packet.header.body {
                order.push((packet.header.id.get() / 2, pull));
            }
        }
    }
    // A packet is six quanta and a pull five, so that it takes two pulls.
    assert_eq!(order[..6], [(3, 5), (3, 10), (1, 5), (2, 5), (3, 15), (1, 10)]);
}

/// All packets of the window are lost, and there is neither an answer nor credit: after the timeout the sender asks.
#[test]
fn a_lost_window_is_asked_for() {
    for config in [Config::eqds(LINK), Config::uet(LINK, RTT)] {
        let config = small(config);
        let mut network = network::<Uet>(&config, 2, US(1));
        network.lose = Some(|packet| matches!(packet.header.body, Body::Data { .. }));
        submit(&mut network, 0, 1, 1, 7 * 1_436, Kind::OneWay);
        network.run_until(at(US(20)));
        network.lose = None;
        network.run_until(at(MS(20)));
        let (trace, rts) = (trace::<Uet>(&mut network), "h0>h1 p7 RTS 1 target ");
        let asked = trace.iter().position(|line| line.starts_with(rts)).expect("an RTS");
        assert_eq!(asked, 4, "{trace:?}");
        // The first packet has timed out: six quanta, which UET's target includes. Three packets were never sent.
        let target = if config.credit == Credit::Eqds { "18 backlog 6" } else { "24 backlog 6" };
        assert_eq!(trace[asked], format!("{rts}{target}"));
        assert_eq!(trace[asked + 1], "h1>h0 p7 ACK 1 of RTS below 0 at 0 0 received 0");
        assert_eq!(trace[asked + 2], "h1>h0 p7 PULL 1 0");
        assert_eq!(trace.last().map(String::as_str), Some("h1>h0 p7 ACK 1 complete"));
        let resent = trace.iter().filter(|line| line.contains(" ra target")).count();
        assert_eq!(resent, 4, "{trace:?}");
    }
}

/// Credit is cumulative: a message whose PULLs were lost gets all of it with the answer to its RTS.
#[test]
fn lost_pulls_are_repeated() {
    for config in [Config::eqds(LINK), Config::uet(LINK, RTT)] {
        let mut network = network::<Uet>(&small(config), 2, US(1));
        network.lose = Some(|packet| matches!(packet.header.body, Body::Pull { .. }));
        submit(&mut network, 0, 1, 1, 7 * 1_436, Kind::OneWay);
        network.run_until(at(US(50)));
        network.lose = None;
        network.run_until(at(MS(20)));
        let asked = lines(&mut network, &["h0>h1 p7 RTS"]);
        assert_eq!(asked.len(), 1, "{asked:?}");
        assert_eq!(
            events(&mut network),
            ["h1: OneWay 1 of 10052 bytes from h0", "h0: 1 sent to h1"]
        );
    }
}

/// A mark is echoed at once, and so is a packet that is already there.
#[test]
fn marks_and_duplicates_are_acknowledged_at_once() {
    let config = Config { ack_bytes: 16_384, ..Config::nscc(LINK, RTT) };
    let mut network = network::<Uet>(&config, 2, US(1));
    network.set_down(1, true);
    submit(&mut network, 0, 1, 1, 9 * 1_436, Kind::OneWay);
    network.run_until(at(US(10)));
    network.set_down(1, false);
    let sent: Vec<_> = network.packets.drain(..).map(|(_, packet)| packet).collect();
    let mut marked = sent[3];
    marked.mark();
    for packet in [sent[0], sent[1], marked, sent[1], sent[2], sent[4]] {
        network.inject(packet);
    }
    network.run_until(at(US(14)));
    assert_eq!(
        lines(&mut network, &["h1>h0 p7 ACK"])[..3],
        [
            "h1>h0 p7 ACK 1 below 1 at 0 1 received 1",
            "h1>h0 p7 ACK 1 ecn below 2 at 3 1101 received 3",
            "h1>h0 p7 ACK 1 below 2 at 1 11 received 3",
        ]
    );
}
