//! Packet traces of whole conversations.

use rackweave_core::{HostId, Kind, Span, Time};

use super::{Body, Config, Polo};
use crate::polo::Host;
use crate::tests::Network;
use crate::tests::driven::{lost, trace};
use crate::tests::suite::{at, events, network, submit};

/// A window of three packets, so that driving packets start early.
pub(super) fn small() -> Config {
    Config { first_window: 3, ..Config::slides() }
}

const US: fn(u64) -> Span = Span::from_us;
const MS: fn(u64) -> Span = Span::from_ms;

#[test]
fn a_short_request() {
    let mut network = network::<Polo>(&small(), 2, US(1));
    submit(&mut network, 0, 1, 1, 100, Kind::Request);
    network.run_until(at(MS(10)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p0 DATA 1 0 +100",
            "h0>h1 p7 ADJOINT 1 sent 1 epoch 0",
            "h1>h0 p7 COMPLETE 1",
            "h1>h0 p0 DATA 1r 0 +100",
            "h1>h0 p7 ADJOINT 1r sent 1 epoch 0",
            "h0>h1 p7 COMPLETE 1r",
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
fn a_short_request_between_processes() {
    let mut network = network::<Polo>(&small().for_hosts(), 2, US(1));
    submit(&mut network, 0, 1, 1, 100, Kind::Request);
    network.run_until(at(MS(30)));
    // The response acknowledges the request.
    assert_eq!(
        trace(&mut network),
        ["h0>h1 p0 DATA 1 0 +100", "h1>h0 p0 DATA 1r 0 +100", "h0>h1 p7 COMPLETE 1r"]
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
    assert!(network.hosts[0].is_idle() && network.hosts[1].is_idle());
}

/// Between processes, adjoint packets are sent no faster than `min_epoch` permits, and everything is delivered.
#[test]
fn epochs_between_processes_are_long() {
    let config = small().for_hosts();
    let ticks = |config: &Config| {
        let mut network = network::<Polo>(config, 3, US(1));
        for from in [1, 2] {
            submit(&mut network, from, 0, u64::from(from), 20_000_000, Kind::OneWay);
        }
        assert!(network.run_until(at(MS(500))), "all of it arrives");
        let finished = network.events.iter().map(|(at, ..)| *at).max().unwrap_or_default();
        let ticks = trace(&mut network).iter().filter(|line| line.ends_with("tick")).count() as u64;
        (ticks, finished.since(Time::ZERO))
    };
    let (often, slides_took) = ticks(&small());
    let (rarely, took) = ticks(&config);
    assert!(often > 1_000, "{often}");
    assert!(
        (2..=took.ticks() / config.min_epoch.ticks() + 3).contains(&rarely),
        "{rarely} in {took}"
    );
    assert!(took < slides_took * 2, "{took}, {slides_took}");
}

#[test]
fn a_driven_message() {
    let mut network = network::<Polo>(&small(), 2, US(1));
    submit(&mut network, 0, 1, 1, 8 * 1_460, Kind::OneWay);
    network.run_until(at(MS(10)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p0 DATA 1 0 +1460",
            "h0>h1 p0 DATA 1 1 +1460",
            "h0>h1 p0 DATA 1 2 +1460",
            // The first epoch: D grows by one with each packet.
            "h1>h0 p7 DRIVE 1 upto 4",
            "h0>h1 p7 ADJOINT 1 sent 3 epoch 0",
            "h0>h1 p0 DATA 1 3 +1460 driven",
            "h1>h0 p7 DRIVE 1 upto 5",
            "h0>h1 p0 DATA 1 4 +1460 driven",
            "h1>h0 p7 DRIVE 1 upto 6",
            // The adjoint packet is answered; its return ends the first epoch.
            "h1>h0 p7 ADJOINT-ACK 1 epoch 1 tick",
            "h0>h1 p0 DATA 1 5 +1460 driven",
            "h1>h0 p7 DRIVE 1 upto 7",
            // All packets are requested.
            "h1>h0 p7 DRIVE 1 upto 8",
            "h0>h1 p7 ADJOINT 1 sent 6 epoch 1",
            "h0>h1 p0 DATA 1 6 +1460 driven",
            "h0>h1 p0 DATA 1 7 +1460 driven",
            "h1>h0 p7 ADJOINT-ACK 1 epoch 2 tick",
            "h0>h1 p7 ADJOINT 1 sent 8 epoch 2",
            "h1>h0 p7 COMPLETE 1",
        ]
    );
    assert_eq!(events(&mut network), ["h1: OneWay 1 of 11680 bytes from h0", "h0: 1 sent to h1",]);
}

/// Slide 11: packet 4 is lost, which the arrival of packet 5 reveals.
#[test]
fn recovery_1_finds_a_gap() {
    let mut network = network::<Polo>(&small(), 2, US(1));
    network.lose = Some(|packet| {
        matches!(packet.header.body, Body::Data { offset: 5_840, retransmit: false, .. })
    });
    submit(&mut network, 0, 1, 1, 9 * 1_460, Kind::OneWay);
    network.run_until(at(MS(10)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p0 DATA 1 0 +1460",
            "h0>h1 p0 DATA 1 1 +1460",
            "h0>h1 p0 DATA 1 2 +1460",
            "h1>h0 p7 DRIVE 1 upto 4",
            "h0>h1 p7 ADJOINT 1 sent 3 epoch 0",
            "h0>h1 p0 DATA 1 3 +1460 driven",
            "h1>h0 p7 DRIVE 1 upto 5",
            "h0>h1 p0 DATA 1 4 +1460 driven",
            "h1>h0 p7 DRIVE 1 upto 6",
            "h1>h0 p7 ADJOINT-ACK 1 epoch 1 tick",
            "h0>h1 p0 DATA 1 5 +1460 driven",
            "h1>h0 p7 DRIVE 1 upto 7",
            "h1>h0 p7 DRIVE 1 upto 8",
            "h0>h1 p7 ADJOINT 1 sent 6 epoch 1",
            "h0>h1 p0 DATA 1 6 +1460 driven",
            "h0>h1 p0 DATA 1 7 +1460 driven",
            // Packet 5 has arrived.
            "h1>h0 p7 LOSS 1 4 +1",
            "h1>h0 p7 DRIVE 1 upto 9",
            "h1>h0 p7 ADJOINT-ACK 1 epoch 2 tick",
            "h0>h1 p7 DATA 1 4 +1460 driven retransmit",
            "h0>h1 p7 ADJOINT 1 sent 8 epoch 2",
            "h0>h1 p0 DATA 1 8 +1460 driven",
            "h1>h0 p7 ADJOINT-ACK 1 epoch 3 tick",
            "h0>h1 p7 ADJOINT 1 sent 9 epoch 3",
            "h1>h0 p7 COMPLETE 1",
        ]
    );
    assert_eq!(events(&mut network), ["h1: OneWay 1 of 13140 bytes from h0", "h0: 1 sent to h1",]);
}

/// Slide 11: all packets from packet 3 on are lost, so that there is no gap; the clock continues.
#[test]
fn recovery_2_finds_silence() {
    let mut network = network::<Polo>(&small(), 2, US(1));
    network.lose = Some(|packet| {
        matches!(packet.header.body, Body::Data { offset: 4_380.., retransmit: false, .. })
    });
    submit(&mut network, 0, 1, 1, 8 * 1_460, Kind::OneWay);
    network.run_until(at(MS(1)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p0 DATA 1 0 +1460",
            "h0>h1 p0 DATA 1 1 +1460",
            "h0>h1 p0 DATA 1 2 +1460",
            "h1>h0 p7 DRIVE 1 upto 4",
            "h0>h1 p7 ADJOINT 1 sent 3 epoch 0",
            "h0>h1 p0 DATA 1 3 +1460 driven",
            "h1>h0 p7 DRIVE 1 upto 5",
            "h0>h1 p0 DATA 1 4 +1460 driven",
            "h1>h0 p7 DRIVE 1 upto 6",
            "h1>h0 p7 ADJOINT-ACK 1 epoch 1 tick",
            "h0>h1 p0 DATA 1 5 +1460 driven",
            "h0>h1 p7 ADJOINT 1 sent 6 epoch 1",
            "h1>h0 p7 ADJOINT-ACK 1 epoch 2 tick",
            "h0>h1 p7 ADJOINT 1 sent 6 epoch 2",
            "h1>h0 p7 ADJOINT-ACK 1 epoch 3 tick",
            "h0>h1 p7 ADJOINT 1 sent 6 epoch 3",
            "h1>h0 p7 ADJOINT-ACK 1 epoch 4 tick",
            // Two epochs without data.
            "h1>h0 p7 LOSS 1 3 +1",
            "h0>h1 p7 ADJOINT 1 sent 6 epoch 4",
            "h0>h1 p7 DATA 1 3 +1460 driven retransmit",
            "h1>h0 p7 ADJOINT-ACK 1 epoch 5 tick",
            "h1>h0 p7 LOSS 1 4 +2",
            "h0>h1 p7 ADJOINT 1 sent 6 epoch 5",
            "h0>h1 p7 DATA 1 4 +1460 driven retransmit",
            "h1>h0 p7 DRIVE 1 upto 7",
            "h0>h1 p7 DATA 1 5 +1460 driven retransmit",
            "h1>h0 p7 ADJOINT-ACK 1 epoch 6 tick",
            "h1>h0 p7 DRIVE 1 upto 8",
            "h0>h1 p7 ADJOINT 1 sent 6 epoch 6",
            "h0>h1 p0 DATA 1 6 +1460 driven",
            "h0>h1 p0 DATA 1 7 +1460 driven",
            "h1>h0 p7 ADJOINT-ACK 1 epoch 7 tick",
            "h0>h1 p7 ADJOINT 1 sent 8 epoch 7",
            "h1>h0 p7 ADJOINT-ACK 1 epoch 8 tick",
            "h0>h1 p7 ADJOINT 1 sent 8 epoch 8",
            "h1>h0 p7 ADJOINT-ACK 1 epoch 9 tick",
            "h1>h0 p7 LOSS 1 6 +1",
            "h0>h1 p7 ADJOINT 1 sent 8 epoch 9",
            "h0>h1 p7 DATA 1 6 +1460 driven retransmit",
            "h1>h0 p7 ADJOINT-ACK 1 epoch 10 tick",
            "h1>h0 p7 LOSS 1 7 +1",
            "h0>h1 p7 ADJOINT 1 sent 8 epoch 10",
            "h0>h1 p7 DATA 1 7 +1460 driven retransmit",
            "h1>h0 p7 ADJOINT-ACK 1 epoch 11 tick",
            "h0>h1 p7 ADJOINT 1 sent 8 epoch 11",
            "h1>h0 p7 COMPLETE 1",
        ]
    );
    assert_eq!(events(&mut network), ["h1: OneWay 1 of 11680 bytes from h0", "h0: 1 sent to h1",]);
}

/// Slide 11: the first window is lost, and its adjoint packet with it.
#[test]
fn recovery_3_is_a_timeout() {
    let mut network = network::<Polo>(&small(), 2, US(1));
    lost(&mut network, |network| {
        submit(network, 0, 1, 1, 4 * 1_460, Kind::OneWay);
        network.run_until(at(US(20)));
    });
    network.run_until(at(US(1_000)));
    assert_eq!(trace(&mut network).len(), 4);
    network.run_until(at(MS(2)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p7 ADJOINT 1 sent 3 epoch 0 timeout",
            "h1>h0 p7 ADJOINT-ACK 1 epoch 1 tick",
            "h1>h0 p7 LOSS 1 0 +1",
            "h0>h1 p7 ADJOINT 1 sent 3 epoch 1",
            "h0>h1 p7 DATA 1 0 +1460 driven retransmit",
            "h1>h0 p7 ADJOINT-ACK 1 epoch 2 tick",
            "h0>h1 p7 ADJOINT 1 sent 3 epoch 2",
            "h1>h0 p7 LOSS 1 1 +1",
            "h1>h0 p7 ADJOINT-ACK 1 epoch 3 tick",
            "h1>h0 p7 LOSS 1 2 +1",
            "h0>h1 p7 DATA 1 1 +1460 driven retransmit",
            "h0>h1 p7 ADJOINT 1 sent 3 epoch 3",
            "h0>h1 p7 DATA 1 2 +1460 driven retransmit",
            "h1>h0 p7 DRIVE 1 upto 4",
            "h1>h0 p7 ADJOINT-ACK 1 epoch 4 tick",
            "h0>h1 p0 DATA 1 3 +1460 driven",
            "h0>h1 p7 ADJOINT 1 sent 4 epoch 4",
            "h1>h0 p7 COMPLETE 1",
        ]
    );
    assert_eq!(events(&mut network), ["h1: OneWay 1 of 5840 bytes from h0", "h0: 1 sent to h1",]);
}

#[test]
fn with_room_for_a_packet_a_newcomer_is_not_paused() {
    let pauses = |pause_only_if_full| {
        let config = Config { pause_only_if_full, ..Config::slides() };
        let mut network = network::<Polo>(&config, 3, US(1));
        // The second packet is marked, and the others raise D, so that the next flow could have several packets in a round trip.
        network.mark = Some(|packet| {
            matches!(packet.header.body, Body::Data { offset: 1_460, .. })
                && packet.header.id.get() == 2
        });
        submit(&mut network, 1, 0, 1, 200 * 1_460, Kind::OneWay);
        network.run_until(at(US(9)));
        submit(&mut network, 2, 0, 2, 20 * 1_460, Kind::OneWay);
        network.run_until(at(MS(50)));
        assert_eq!(events(&mut network).len(), 4);
        trace(&mut network).iter().any(|line| line.contains("paused"))
    };
    assert!(pauses(false));
    assert!(!pauses(true));
}

/// Slide 12: the second flow is activated when the first has nothing left to be driven.
#[test]
fn a_flow_that_starts_after_a_mark_is_paused() {
    let literally = Config { pause_only_if_full: false, ..small() };
    let mut network = network::<Polo>(&literally, 3, US(1));
    network.mark = Some(|packet| {
        matches!(packet.header.body, Body::Data { offset: 1_460, .. })
            && packet.header.id.get() == 2
    });
    submit(&mut network, 1, 0, 1, 5 * 1_460, Kind::OneWay);
    network.run_until(at(US(4)));
    submit(&mut network, 2, 0, 2, 5 * 1_460, Kind::OneWay);
    network.run_until(at(MS(10)));
    assert_eq!(
        trace(&mut network),
        [
            "h1>h0 p0 DATA 1 0 +1460",
            "h1>h0 p0 DATA 1 1 +1460",
            "h1>h0 p0 DATA 1 2 +1460",
            "h0>h1 p7 DRIVE 1 upto 4",
            "h1>h0 p7 ADJOINT 1 sent 3 epoch 0",
            "h2>h0 p0 DATA 2 0 +1460",
            "h1>h0 p0 DATA 1 3 +1460 driven",
            "h2>h0 p0 DATA 2 1 +1460",
            "h0>h1 p7 DRIVE 1 upto 5",
            "h0>h1 p7 ADJOINT-ACK 1 epoch 1 tick",
            "h2>h0 p0 DATA 2 2 +1460",
            "h1>h0 p0 DATA 1 4 +1460 driven",
            // The answer to its first packet pauses it.
            "h0>h2 p7 ADJOINT-ACK 2 epoch 1 paused",
            // The wasted-driving rule: the first flow has nothing left to send.
            "h0>h2 p7 DRIVE 2 upto 4",
            "h2>h0 p7 ADJOINT 2 sent 3 epoch 0",
            "h1>h0 p7 ADJOINT 1 sent 5 epoch 1",
            "h2>h0 p0 DATA 2 3 +1460 driven",
            "h0>h2 p7 DRIVE 2 upto 5",
            "h2>h0 p0 DATA 2 4 +1460 driven",
            "h0>h2 p7 ADJOINT-ACK 2 epoch 1",
            "h0>h1 p7 ADJOINT-ACK 1 epoch 2 tick",
            "h1>h0 p7 ADJOINT 1 sent 5 epoch 2",
            "h0>h1 p7 COMPLETE 1",
            "h0>h2 p7 ADJOINT-ACK 2 epoch 2 tick",
            "h2>h0 p7 ADJOINT 2 sent 5 epoch 2",
            "h0>h2 p7 COMPLETE 2",
        ]
    );
    assert_eq!(
        events(&mut network),
        [
            "h0: OneWay 1 of 7300 bytes from h1",
            "h1: 1 sent to h0",
            "h0: OneWay 2 of 7300 bytes from h2",
            "h2: 2 sent to h0",
        ]
    );
}

/// A sender that is paused within its first window stops, reports how much it has sent, and is quiet. The
/// packet that ends the pause is lost, and repeated until it arrives.
#[test]
fn a_paused_sender_is_quiet_and_a_lost_resume_is_repeated() {
    let variant = Config {
        wasted_driving_rule: false,
        wake_in_quiet_epochs: false,
        pause_only_if_full: false,
        ..Config::slides()
    };
    let mut network = network::<Polo>(&variant, 3, US(1));
    network.mark = Some(|packet| matches!(packet.header.body, Body::Data { offset: 0, .. }));
    // 500 packets take 0.6 ms.
    submit(&mut network, 1, 0, 1, 500 * 1_460, Kind::OneWay);
    network.run_until(at(US(100)));
    submit(&mut network, 2, 0, 2, 13 * 1_460, Kind::OneWay);
    network.run_until(at(US(500)));
    let of_second = |network: &mut Network<Host>| -> Vec<String> {
        trace(network).into_iter().filter(|line| line.contains("h2")).collect()
    };
    assert_eq!(
        of_second(&mut network),
        [
            "h2>h0 p0 DATA 2 0 +1460",
            "h2>h0 p0 DATA 2 1 +1460",
            "h2>h0 p0 DATA 2 2 +1460",
            "h2>h0 p0 DATA 2 3 +1460",
            "h0>h2 p7 ADJOINT-ACK 2 epoch 24 paused",
            "h2>h0 p0 DATA 2 4 +1460",
            "h2>h0 p7 ADJOINT 2 sent 5 epoch 0",
            "h0>h2 p7 ADJOINT-ACK 2 epoch 25 paused",
        ]
    );
    network.lose =
        Some(|packet| matches!(packet.header.body, Body::Loss { .. }) && packet.dst == HostId(2));
    network.run_until(at(US(900)));
    assert_eq!(
        events(&mut network)[..],
        ["h0: OneWay 1 of 730000 bytes from h1", "h1: 1 sent to h0"]
    );
    assert!(of_second(&mut network).iter().any(|line| line.contains("LOSS 2 5")));
    network.lose = None;
    network.run_until(at(MS(2)));
    assert_eq!(events(&mut network), ["h0: OneWay 2 of 18980 bytes from h2", "h2: 2 sent to h0"]);
}

/// The first window of a message arrives while D is used up, and shorter messages come for as long as it takes.
#[test]
fn a_flow_without_outstanding_packets_does_not_wait_for_all_shorter_ones() {
    let config = Config { max_drives: 8, ..Config::slides() };
    let mut network = network::<Polo>(&config, 4, US(1));
    submit(&mut network, 1, 0, 1, 300 * 1_460, Kind::OneWay);
    network.run_until(at(US(150)));
    submit(&mut network, 2, 0, 2, 320 * 1_460, Kind::OneWay);
    for n in 3..63 {
        network.run_until(at(US(300 * (n - 2))));
        submit(&mut network, if n % 2 == 0 { 1 } else { 3 }, 0, n, 300 * 1_460, Kind::OneWay);
    }
    let events = events(&mut network);
    assert!(events.contains(&"h2: 2 sent to h0".to_owned()), "{events:#?}");
}
