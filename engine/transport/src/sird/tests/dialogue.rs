//! Packet traces of whole conversations.

use rackweave_core::{Kind, Packet, Span};
use rackweave_wire::sird::{Body, Header};

use super::{Config, Sird, paper};
use crate::tests::driven::{kept_behind_shorter_ones, trace};
use crate::tests::suite::{at, events, network, submit};

const US: fn(u64) -> Span = Span::from_us;
const MS: fn(u64) -> Span = Span::from_ms;

const fn is_data(packet: &Packet<Header>) -> bool {
    matches!(packet.header.body, Body::Data { .. })
}

#[test]
fn a_short_request() {
    let mut network = network::<Sird>(&paper(), 2, US(1));
    submit(&mut network, 0, 1, 1, 2_000, Kind::Request);
    network.run_until(at(US(100)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p7 DATA 1 0 +1460",
            "h0>h1 p7 DATA 1 1 +540",
            "h1>h0 p7 ACK 1",
            "h1>h0 p7 DATA 1r 0 +1460",
            "h1>h0 p7 DATA 1r 1 +540",
            "h0>h1 p7 ACK 1r",
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

/// The paper, section 4: a message above `UnschT` asks for credit. B is 12 packets, so that after 8 of them, the bucket of the
/// sender, credit waits for data.
#[test]
fn a_long_message_asks_for_credit() {
    let mut network = network::<Sird>(&paper(), 2, US(20));
    submit(&mut network, 0, 1, 1, 10 * 1_460, Kind::OneWay);
    network.run_until(at(US(500)));
    let mut expected = vec!["h0>h1 p7 REQUEST 1 of 14600 unscheduled 0".to_owned()];
    expected.extend((0..8).map(|n| format!("h1>h0 p7 CREDIT 1 {n}")));
    let all = trace(&mut network);
    assert_eq!(all[..1], expected[..1]);
    let credits: Vec<_> = all.iter().filter(|line| line.contains("CREDIT")).collect();
    assert_eq!(credits.len(), 10);
    let before_data = all.iter().take_while(|line| !line.contains("DATA")).count();
    assert_eq!(all[..before_data], expected[..before_data]);
    // 20 us there and back are longer than 8 packets take.
    assert_eq!(before_data, 9);
    let data: Vec<_> = all.iter().filter(|line| line.contains("DATA")).collect();
    assert_eq!(data[0], "h0>h1 p6 DATA 1 0 +1460");
    assert_eq!(data.len(), 10);
    assert_eq!(all.last().unwrap(), "h1>h0 p7 ACK 1");
}

/// With a threshold above the bandwidth-delay product, that much is sent at once, and the rest gets credit.
#[test]
fn a_message_below_the_threshold_sends_a_product_without_credit() {
    let config = Config { unscheduled_threshold: 100_000, ..paper() };
    let mut network = network::<Sird>(&config, 2, Span::ZERO);
    submit(&mut network, 0, 1, 1, 10 * 1_460, Kind::OneWay);
    network.run_until(at(US(100)));
    let all = trace(&mut network);
    let of = |kind: &str| -> Vec<String> {
        all.iter().filter(|line| line.contains(kind)).cloned().collect()
    };
    assert_eq!(of("REQUEST"), [""; 0]);
    assert_eq!(of("CREDIT"), ["h1>h0 p7 CREDIT 1 8", "h1>h0 p7 CREDIT 1 9"]);
    assert_eq!(of("p7 DATA").len(), 8);
    assert_eq!(of("p6 DATA"), ["h0>h1 p6 DATA 1 8 +1460", "h0>h1 p6 DATA 1 9 +1460"]);
}

/// Our choice: a credit is withdrawn after 1 ms, and its packet gets another.
#[test]
fn a_lost_packet_gets_another_credit() {
    let mut network = network::<Sird>(&paper(), 2, Span::ZERO);
    let mut lost = false;
    network.fate = Some(Box::new(move |_, packet| {
        let is_fourth = matches!(packet.header.body, Body::Data { offset: 4_380, .. });
        let loses = is_fourth && !lost;
        lost |= is_fourth;
        if loses { vec![] } else { vec![Span::ZERO] }
    }));
    submit(&mut network, 0, 1, 1, 20 * 1_460, Kind::OneWay);
    network.run_until(at(US(900)));
    trace(&mut network);
    network.run_until(at(US(1_100)));
    assert_eq!(
        trace(&mut network),
        ["h1>h0 p7 CREDIT 1 3", "h0>h1 p6 DATA 1 3 +1460", "h1>h0 p7 ACK 1"]
    );
    assert_eq!(events(&mut network), ["h1: OneWay 1 of 29200 bytes from h0", "h0: 1 sent to h1"]);
}

/// All of an unscheduled message is lost: its sender repeats the request, and after 1 ms the receiver gives credit, for one packet
/// until that arrives.
#[test]
fn an_unscheduled_message_that_is_lost_is_credited() {
    let mut network = network::<Sird>(&paper(), 2, Span::ZERO);
    network.lose = Some(is_data);
    submit(&mut network, 0, 1, 1, 3 * 1_460, Kind::OneWay);
    network.run_until(at(US(500)));
    network.lose = None;
    network.run_until(at(MS(3)));
    assert_eq!(
        trace(&mut network)[3..],
        [
            "h0>h1 p7 REQUEST 1 of 4380 unscheduled 3",
            "h1>h0 p7 CREDIT 1 0",
            "h0>h1 p7 DATA 1 0 +1460",
            "h1>h0 p7 CREDIT 1 1",
            "h0>h1 p7 DATA 1 1 +1460",
            "h1>h0 p7 CREDIT 1 2",
            "h0>h1 p7 DATA 1 2 +1460",
            "h1>h0 p7 ACK 1",
        ]
    );
}

/// A message that waits at its own host for longer than the patience is not given up, at either end.
#[test]
fn a_message_that_waits_for_shorter_ones_is_kept() {
    let config = Config { max_request_interval: MS(2), srpt_percent: 100, ..paper() };
    kept_behind_shorter_ones::<Sird>(config);
}
