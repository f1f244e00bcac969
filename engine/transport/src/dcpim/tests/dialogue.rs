//! Packet traces of whole conversations.

use rackweave_core::{Kind, Packet, Span, Time};
use rackweave_wire::dcpim::{Body, Header};

use super::{Config, DcPim, DrivenSubject as _, with_delay};
use crate::dcpim::Host;
use crate::tests::Network;
use crate::tests::driven::{lost, trace};
use crate::tests::suite::{at, deliveries, events, network, submit};

const US: fn(u64) -> Span = Span::from_us;
const MS: fn(u64) -> Span = Span::from_ms;

/// Ten packets are free, and rounds have 13.2 us.
fn usual() -> Config {
    with_delay(US(5))
}

/// The packets of the matching that hosts have sent so far, and when, in tenths of a round.
fn matching(network: &Network<Host>, round: Span) -> Vec<String> {
    let is_matching = |packet: &Packet<Header>| {
        let body = packet.header.body;
        matches!(
            body,
            Body::Rts { .. } | Body::Grant { .. } | Body::Accept { .. } | Body::Release { .. }
        )
    };
    let packets = network.packets.iter().filter(|(_, packet)| is_matching(packet));
    let line = |(at, packet): &(Time, Packet<Header>)| {
        let tenths = at.since(Time::ZERO).ticks() * 10 / round.ticks();
        format!("{}.{} {}", tenths / 10, tenths % 10, DcPim::line(packet))
    };
    packets.map(line).collect()
}

#[test]
fn a_short_request() {
    let mut network = network::<DcPim>(&usual(), 2, US(5));
    submit(&mut network, 0, 1, 1, 2_000, Kind::Request);
    network.run_until(at(US(500)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p7 NOTIFY 1 of 2000",
            "h0>h1 p6 DATA 1 0 +1460 token 0",
            "h0>h1 p6 DATA 1 1 +540 token 1",
            "h1>h0 p7 NOTIFY_ACK 1",
            "h1>h0 p7 FIN 1",
            "h1>h0 p7 NOTIFY 1r of 2000",
            "h1>h0 p6 DATA 1r 0 +1460 token 0",
            "h1>h0 p6 DATA 1r 1 +540 token 1",
            "h0>h1 p7 NOTIFY_ACK 1r",
            "h0>h1 p7 FIN 1r",
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

/// The rounds of the matching, packet by packet. Packets leave at the stages; senders answer in the middle of a stage.
#[test]
fn two_senders_share_a_receiver() {
    let config = usual();
    let mut network = network::<DcPim>(&config, 3, US(5));
    submit(&mut network, 1, 0, 1, 30 * 1_460, Kind::OneWay);
    submit(&mut network, 2, 0, 2, 200 * 1_460, Kind::OneWay);
    network.run_until(at(config.epoch * 2));
    let lines = matching(&network, config.round);
    assert_eq!(
        lines,
        [
            "1.0 h0>h1 p7 RTS 1 missing 30 3+3",
            "1.0 h0>h2 p7 RTS 2 missing 200 4+4",
            "1.5 h1>h0 p7 GRANT 1 of 0 3+3",
            "1.5 h2>h0 p7 GRANT 2 of 0 4+4",
            // The second round chooses at random, and all channels are in use from now on.
            "2.0 h0>h2 p7 ACCEPT 2 epoch 0 of 0 4+4",
            "4.0 h0>h1 p7 RTS 1 missing 30 3+0",
            "4.0 h0>h2 p7 RTS 2 missing 188 4+0",
            "4.5 h1>h0 p7 GRANT 1 of 1 3+0",
            "4.5 h2>h0 p7 GRANT 2 of 1 4+0",
            // The first chooses the shortest message, and gives the rest to the other.
            "5.0 h0>h1 p7 ACCEPT 1 epoch 1 of 1 3+0",
            "5.0 h0>h2 p7 ACCEPT 2 epoch 1 of 1 1+0",
            // Of what was matched for this data phase nothing is left to request.
            "8.0 h0>h2 p7 RTS 2 missing 146 4+0",
        ]
    );
}

#[test]
fn a_lost_packet_gets_another_token_when_the_hosts_are_matched_again() {
    let mut network = network::<DcPim>(&usual(), 2, US(5));
    network.lose = Some(|packet| matches!(packet.header.body, Body::Data { token: 2, .. }));
    submit(&mut network, 0, 1, 1, 5 * 1_460, Kind::OneWay);
    network.run_until(at(MS(1)));
    let all = trace(&mut network);
    assert_eq!(
        all[7..],
        [
            "h1>h0 p7 RTS 1 missing 1 1+1",
            "h0>h1 p7 GRANT 1 of 0 1+1",
            "h1>h0 p7 ACCEPT 1 epoch 0 of 0 1+1",
            "h1>h0 p7 TOKEN 1 5 for 2 p7",
            "h0>h1 p6 DATA 1 2 +1460 token 5",
            "h1>h0 p7 FIN 1",
        ]
    );
}

/// Each packet of the matching, and each token, may be lost.
#[test]
fn losses_of_control_packets_only_cost_time() {
    let lose: [fn(&Packet<Header>) -> bool; 5] = [
        |packet| matches!(packet.header.body, Body::Rts { .. }),
        |packet| matches!(packet.header.body, Body::Grant { .. }),
        |packet| matches!(packet.header.body, Body::Accept { .. }),
        |packet| matches!(packet.header.body, Body::Token { .. }),
        |packet| matches!(packet.header.body, Body::NotifyAck | Body::Notify { .. }),
    ];
    for (n, lose) in lose.into_iter().enumerate() {
        let mut network = network::<DcPim>(&usual(), 2, US(5));
        network.lose = Some(lose);
        submit(&mut network, 0, 1, 1, 100 * 1_460, Kind::OneWay);
        network.run_until(at(US(200)));
        network.lose = None;
        network.run_until(at(MS(2)));
        let all = ["h1: OneWay 1 of 146000 bytes from h0", "h0: 1 sent to h1"];
        assert_eq!(events(&mut network), all, "{n}");
    }
}

#[test]
fn a_lost_announcement_is_repeated() {
    let mut network = network::<DcPim>(&usual(), 2, US(5));
    lost(&mut network, |network| {
        submit(network, 0, 1, 1, 20 * 1_460, Kind::OneWay);
        network.run_until(at(US(10)));
    });
    network.run_until(at(MS(10)));
    let all = trace(&mut network);
    assert_eq!(
        all[..3],
        ["h0>h1 p7 NOTIFY 1 of 29200", "h0>h1 p7 NOTIFY 1 of 29200", "h1>h0 p7 NOTIFY_ACK 1"]
    );
    assert_eq!(all.last().map(String::as_str), Some("h1>h0 p7 FIN 1"));
    assert_eq!(all.iter().filter(|line| line.contains("NOTIFY 1")).count(), 2, "{all:?}");
}

/// Clocks that differ cost rounds, but nothing waits for ever (docs/protocols/dcpim.md#dcpim-clocks).
#[test]
fn clocks_may_differ() {
    for skew_rounds in [0, 1, 4, 1_000] {
        let usual = usual();
        let config = Config { clock_skew: usual.round * skew_rounds, ..usual };
        let mut network = network::<DcPim>(&config, 8, US(5));
        let mut n = 0;
        for from in 0..8 {
            for to in (0..8).filter(|to| *to != from) {
                n += 1;
                submit(&mut network, from, to, n, 200 * 1_460, Kind::OneWay);
            }
        }
        assert!(network.run_until(at(Span::from_secs(1))), "{skew_rounds}");
        let last = deliveries(&network).map(|(at, _)| at).max().unwrap();
        let ideal = config.packet_span * (7 * 200);
        let times = last.since(Time::ZERO).as_us_f64() / ideal.as_us_f64();
        println!("{skew_rounds} {times}");
        assert!(times < 1.6, "{skew_rounds}: {times}");
    }
}
