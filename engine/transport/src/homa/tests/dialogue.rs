//! Packet traces of whole conversations.

use rackweave_core::{Kind, Packet, Span};
use rackweave_wire::Id64;
use rackweave_wire::homa::{Body, Header};

use super::{Config, Host, HostId, LINK, at, events, id, network, packet, submit, trace};

fn paper() -> Config {
    Config::fabric(LINK, 10_000)
}

const MS: fn(u64) -> Span = Span::from_ms;

#[test]
fn a_short_request() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    submit(&mut network, 0, 1, 1, 100, Kind::Request);
    network.run_until(at(MS(10)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p7 DATA 1 0..100 of 100",
            "h1>h0 p7 DATA 1r 0..100 of 100",
            // No other packet to h1 can carry the acknowledgement.
            "h1>h0 p7 NEED_ACK 1r",
            "h0>h1 p7 ACK 1",
        ]
    );
}

#[test]
fn an_acknowledgement_travels_with_the_next_request() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    for n in 1..=3 {
        submit(&mut network, 0, 1, n, 100, Kind::Request);
        network.run_until(at(Span::from_us(10 * n)));
    }
    network.run_until(at(MS(10)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p7 DATA 1 0..100 of 100",
            "h1>h0 p7 DATA 1r 0..100 of 100",
            "h0>h1 p7 DATA 2 0..100 of 100 ack 1",
            "h1>h0 p7 DATA 2r 0..100 of 100",
            "h0>h1 p7 DATA 3 0..100 of 100 ack 2",
            "h1>h0 p7 DATA 3r 0..100 of 100",
            "h1>h0 p7 NEED_ACK 3r",
            "h0>h1 p7 ACK 3",
        ]
    );
}

#[test]
fn a_scheduled_message() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    submit(&mut network, 0, 1, 1, 13_000, Kind::OneWay);
    network.run_until(at(MS(1)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p5 DATA 1 0..1442 of 13000",
            "h0>h1 p5 DATA 1 1442..2884 of 13000",
            "h0>h1 p5 DATA 1 2884..4326 of 13000",
            "h1>h0 p7 GRANT 1r ..11536 at p5",
            "h0>h1 p5 DATA 1 4326..5768 of 13000",
            "h1>h0 p7 GRANT 1r ..12978 at p6",
            "h0>h1 p5 DATA 1 5768..7210 of 13000",
            "h1>h0 p7 GRANT 1r ..13000 at p7",
            "h0>h1 p5 DATA 1 7210..8652 of 13000",
            "h0>h1 p5 DATA 1 8652..10094 of 13000",
            "h0>h1 p7 DATA 1 10094..11536 of 13000",
            "h0>h1 p7 DATA 1 11536..12978 of 13000",
            "h0>h1 p7 DATA 1 12978..13000 of 13000",
        ]
    );
}

/// Drops all packets that hosts send while `f` runs.
fn lost(network: &mut super::Network<Host>, f: impl FnOnce(&mut super::Network<Host>)) {
    network.lose = Some(|_| true);
    f(network);
    network.lose = None;
}

#[test]
fn lost_data_is_asked_for() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    submit(&mut network, 0, 1, 1, 4_000, Kind::OneWay);
    // The first packet is in flight; the second is lost.
    lost(&mut network, |network| {
        network.run_until(at(Span::from_us(2)));
    });
    network.run_until(at(MS(20)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p5 DATA 1 0..1442 of 4000",
            "h0>h1 p6 DATA 1 1442..2884 of 4000",
            "h0>h1 p6 DATA 1 2884..4000 of 4000",
            // The data is not overdue; when it is, the receiver requests it.
            "h0>h1 p7 NEED_ACK 1",
            "h1>h0 p7 BUSY 1r",
            "h1>h0 p7 RESEND 1r 1442..2884",
            "h0>h1 p7 DATA 1 1442..2884 of 4000 retransmit",
            "h0>h1 p7 NEED_ACK 1",
            "h1>h0 p7 ACK 1r",
        ]
    );
}

/// The packets that repair a message of two packets whose second is lost.
fn repair_of_the_second_packet(config: &Config) -> Vec<(u64, String)> {
    let mut network = network(config, 2, Span::from_us(1));
    submit(&mut network, 0, 1, 1, 2_000, Kind::OneWay);
    lost(&mut network, |network| {
        network.run_until(at(Span::from_us(2)));
    });
    network.run_until(at(Span::from_us(15_500)));
    let all = network
        .packets
        .drain(..)
        .map(|(time, packet)| (time.ticks() / MS(1).ticks(), super::line(&packet)));
    all.filter(|(_, line)| line.contains("RESEND") || line.contains("retransmit")).collect()
}

#[test]
fn a_question_whether_data_has_arrived_requests_it_since_2025() {
    let of = |lines: [(u64, &str); 2]| lines.map(|(tick, line)| (tick, line.to_owned()));
    // `HomaModule` 2023: NEED_ACK changes nothing, and the timer asks after 15 ticks.
    let then = [
        (15, "h1>h0 p7 RESEND 1r 1420..2000"),
        (15, "h0>h1 p7 DATA 1 1420..2000 of 2000 retransmit"),
    ];
    assert_eq!(repair_of_the_second_packet(&Config::linux(LINK)), of(then));
    // 2026: NEED_ACK is sent after two ticks.
    let now = [
        (2, "h1>h0 p7 RESEND 1r 1424..2000"),
        (2, "h0>h1 p7 DATA 1 1424..2000 of 2000 retransmit"),
    ];
    assert_eq!(repair_of_the_second_packet(&Config::linux_2026(LINK)), of(now));
}

#[test]
fn a_sender_with_unsent_bytes_of_the_grant_is_busy() {
    let answer_to_resend = |config: &Config| {
        let mut network = network(config, 2, Span::from_us(1));
        submit(&mut network, 0, 1, 1, 100_000, Kind::OneWay);
        network.run_until(at(Span::from_ns(1_500)));
        let body = Body::Resend { offset: 0, length: 100, priority: 7 };
        let id = Id64::new(id(1).response().0);
        network.inject(packet(1, 0, Header { id, one_way: true, body }));
        network.run_until(at(Span::from_us(20)));
        let mut lines = trace(&mut network);
        lines.retain(|line| line.contains("BUSY") || line.contains("retransmit"));
        lines
    };
    assert_eq!(answer_to_resend(&Config::linux(LINK)), ["h0>h1 p7 BUSY 1"]);
    let resent = "h0>h1 p7 DATA 1 0..1424 of 100000 retransmit";
    assert_eq!(answer_to_resend(&Config::linux_2026(LINK)), [resent]);
}

#[test]
fn the_papers_simulation_requests_nothing() {
    let config = Config::sigcomm18(LINK, 10_000);
    assert!(!config.resends);
    let mut network = network(&config, 2, Span::from_us(1));
    submit(&mut network, 0, 1, 1, 4_000, Kind::OneWay);
    submit(&mut network, 0, 1, 2, 400, Kind::Request);
    lost(&mut network, |network| {
        network.run_until(at(Span::from_us(2)));
    });
    network.run_until(at(MS(1_000)));
    let lines = trace(&mut network);
    let is_repair = |line: &String| line.contains("RESEND") || line.contains("retransmit");
    assert!(!lines.iter().any(is_repair), "{lines:?}");
    assert_eq!(network.hosts[1].rpcs_under_way(), 1, "the incomplete message stays");
}

#[test]
fn a_lost_request_is_unknown_and_restarts() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    lost(&mut network, |network| submit(network, 0, 1, 1, 3_000, Kind::Request));
    lost(&mut network, |network| {
        network.run_until(at(MS(1)));
    });
    network.packets.clear();
    network.run_until(at(Span::from_us(5_500)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p7 RESEND 1 0..1442",
            "h1>h0 p7 UNKNOWN 1r",
            // One packet is sent; the receiver grants the rest.
            "h0>h1 p5 DATA 1 0..1442 of 3000",
            "h1>h0 p7 GRANT 1r ..3000 at p6",
            "h0>h1 p6 DATA 1 1442..2884 of 3000",
            "h0>h1 p6 DATA 1 2884..3000 of 3000",
            "h1>h0 p5 DATA 1r 0..1442 of 3000",
            "h1>h0 p6 DATA 1r 1442..2884 of 3000",
            "h1>h0 p7 DATA 1r 2884..3000 of 3000",
        ]
    );
}

/// The Linux profile without our additions.
fn kernel_module() -> Config {
    Config { max_restarts: 0, ..Config::linux(LINK) }
}

#[test]
fn the_kernel_module_restarts_a_lost_request_with_its_whole_window() {
    let mut network = network(&kernel_module(), 2, Span::from_us(1));
    lost(&mut network, |network| submit(network, 0, 1, 1, 3_000, Kind::Request));
    lost(&mut network, |network| {
        network.run_until(at(MS(1)));
    });
    network.packets.clear();
    network.run_until(at(Span::from_us(15_500)));
    assert_eq!(
        trace(&mut network)[..6],
        [
            "h0>h1 p7 RESEND 1 0..100",
            "h1>h0 p7 UNKNOWN 1r",
            "h0>h1 p7 DATA 1 0..1420 of 3000 retransmit",
            "h0>h1 p7 DATA 1 1420..2840 of 3000 retransmit",
            "h0>h1 p7 DATA 1 2840..3000 of 3000 retransmit",
            "h1>h0 p7 CUTOFFS version 1",
        ]
    );
}

/// Its client learns of that within some silent ticks: not only when finished messages are forgotten, after 10,000 ticks.
#[test]
fn a_server_that_restarts_in_the_middle_of_its_response_has_forgotten_it() {
    for config in [paper(), Config::linux(LINK), Config { max_restarts: 0, ..Config::linux(LINK) }]
    {
        let mut network = network(&config, 2, Span::from_us(1));
        submit(&mut network, 0, 1, 1, 60_000, Kind::Request);
        let is_response = |(_, packet): &(_, Packet<Header>)| {
            packet.dst == HostId(0) && matches!(packet.header.body, Body::Data { .. })
        };
        let mut now = Span::ZERO;
        while network.packets.iter().filter(|it| is_response(it)).count() < 5 {
            now += Span::from_us(1);
            network.run_until(at(now));
        }
        network.restart(1, Host::new(HostId(1), config.clone().into()));
        network.run_until(at(MS(150)));
        assert_eq!(events(&mut network).last().unwrap(), "h0: 1 with h1 failed: peer forgot");
        assert_eq!(network.hosts[0].rpcs_under_way(), 0);
    }
}

#[test]
fn a_slow_server_is_busy() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    network.respond = None;
    submit(&mut network, 0, 1, 1, 100, Kind::Request);
    network.run_until(at(Span::from_us(5_500)));
    assert_eq!(
        trace(&mut network),
        ["h0>h1 p7 DATA 1 0..100 of 100", "h0>h1 p7 RESEND 1 0..1442", "h1>h0 p7 BUSY 1r",]
    );
    network.run_until(at(MS(500)));
    // The peer is asked again after 5 to 40 ms.
    let asked = trace(&mut network).iter().filter(|line| line.contains("RESEND")).count();
    assert!((12..50).contains(&asked), "{asked}");
    assert_eq!(events(&mut network), ["h1: Request 1 of 100 bytes from h0"]);
    network.submit(1, 0, id(1).response(), 200, Kind::Response).unwrap();
    network.run_until(at(MS(600)));
    let expected = ["h0: Response 1r of 200 bytes from h1", "h1: 1r sent to h0"];
    assert_eq!(events(&mut network), expected);
}

#[test]
fn lost_grants_are_repaired() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    submit(&mut network, 0, 1, 1, 30_000, Kind::OneWay);
    network.lose = Some(|packet| matches!(packet.header.body, Body::Grant { .. }));
    network.run_until(at(MS(1)));
    network.packets.clear();
    network.lose = None;
    network.run_until(at(MS(40)));
    assert_eq!(events(&mut network), ["h1: OneWay 1 of 30000 bytes from h0", "h0: 1 sent to h1"]);
}

#[test]
fn a_silent_peer_is_given_up() {
    for (config, at_most) in
        [(paper(), MS(148)), (Config::linux(LINK), MS(123)), (kernel_module(), MS(67))]
    {
        let mut network = network(&config, 2, Span::from_us(1));
        network.set_down(1, true);
        for n in 1..=3 {
            submit(&mut network, 0, 1, n, 40_000, Kind::Request);
        }
        submit(&mut network, 0, 1, 4, 100, Kind::OneWay);
        submit(&mut network, 0, 1, 5, 40_000, Kind::OneWay);
        network.run_until(at(MS(300)));
        let mut failures = events(&mut network);
        failures.sort();
        let expected: Vec<_> =
            (1..=5).map(|n| format!("h0: {n} with h1 failed: peer silent")).collect();
        assert_eq!(failures, expected);
        assert!(network.hosts[0].is_idle());
        let last_request = network.packets.last().unwrap().0;
        assert!(last_request < at(at_most + MS(10)), "{last_request}");
    }
}

/// The ticks at which the client of a request asks a dead server for the response.
fn asks(config: &Config, number: u64) -> Vec<u64> {
    let mut network = network(config, 2, Span::from_us(1));
    network.set_down(1, true);
    submit(&mut network, 0, 1, number, 100, Kind::Request);
    assert!(network.run_until(at(MS(100_000))));
    assert_eq!(events(&mut network), [format!("h0: {number} with h1 failed: peer silent")]);
    let asks = network.packets.iter();
    let asks = asks.filter(|(_, packet)| matches!(packet.header.body, Body::Resend { .. }));
    asks.map(|(time, _)| time.ticks() / MS(1).ticks()).collect()
}

#[test]
fn questions_to_a_silent_peer_are_spread_and_never_sooner_than_the_interval() {
    let mut config = paper();
    let (interval, patience) = (u64::from(config.resend_interval), u64::from(config.patience()));
    let mut gaps = std::collections::BTreeSet::new();
    for number in 0..200 {
        let asks = asks(&config, number);
        assert_eq!((asks[0], asks.len()), (5, 10), "{asks:?}");
        assert!(asks[9] < patience, "{asks:?}");
        gaps.extend(asks.windows(2).map(|pair| pair[1] - pair[0]));
    }
    assert_eq!(gaps, (interval..=interval + 8).collect());
    assert_eq!(asks(&kernel_module(), 1), [15, 25, 35, 45, 55]);
    // Extreme values of the counters.
    config.timeout_resends = 2;
    config.resend_ticks = u16::MAX;
    assert!(config.check().is_err());
    config.finished_ticks = 100_000;
    assert_eq!(config.check(), Ok(()));
    assert_eq!(asks(&config, 1), [65_535, 65_536]);
}

/// One request of a dead peer, or a forged one, is not answered by a packet for each tick.
#[test]
fn a_peer_that_never_acknowledges_is_asked_less_and_less() {
    let config = paper();
    let mut network = network(&config, 2, Span::from_us(1));
    network.set_down(1, true);
    submit(&mut network, 0, 1, 1, 5_000, Kind::OneWay);
    network.run_until(at(Span::from_secs(30)));
    let asked = trace(&mut network).iter().filter(|line| line.contains("NEED_ACK")).count() as u32;
    // Eight until the pause is the longest.
    let patience = config.patience();
    assert!((8..=9 + patience / 64).contains(&asked), "{asked} in {patience} ticks");
    let events = events(&mut network);
    assert!(events.iter().any(|event| event.contains("failed")), "{events:?}");
}

#[test]
fn a_restarted_message_that_arrived_before_counts_as_sent() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    network.set_down(1, true);
    submit(&mut network, 0, 1, 1, 5_000, Kind::OneWay);
    network.run_until(at(Span::from_us(5_500)));
    let late: Vec<_> = network.packets.iter().map(|(_, packet)| *packet).collect();
    let text = trace(&mut network);
    assert_eq!(text.last().unwrap(), "h0>h1 p7 NEED_ACK 1");
    network.set_down(1, false);
    // RESEND overtakes the data, and its answer makes the client restart; then all of the old data arrive
    // before the packet of the restart.
    let unknown = Header {
        id: Id64::new(id(1).response().0),
        one_way: true,
        body: Body::Unknown { refused: false },
    };
    network.inject(packet(1, 0, unknown));
    for packet in late.into_iter().filter(|p| matches!(p.header.body, Body::Data { .. })) {
        network.inject(packet);
    }
    let ack = Body::Ack { count: 0, others: [Id64::new(0); 3] };
    network.inject(packet(1, 0, Header { body: ack, ..unknown }));
    network.run_until(at(MS(50)));
    assert_eq!(events(&mut network), ["h1: OneWay 1 of 5000 bytes from h0", "h0: 1 sent to h1"]);
}

#[test]
fn linux_asks_a_peer_for_one_thing_at_a_time() {
    let mut network = network(&kernel_module(), 2, Span::from_us(1));
    network.set_down(1, true);
    for n in 1..=3 {
        submit(&mut network, 0, 1, n, 100, Kind::Request);
    }
    let mut resends_until = |us| {
        network.set_down(1, us < 25_000);
        network.run_until(at(Span::from_us(us)));
        let mut resends = trace(&mut network);
        resends.retain(|line| line.contains("RESEND"));
        resends
    };
    assert_eq!(resends_until(24_500), ["h0>h1 p7 RESEND 1 0..100"]);
    // Ten ticks later it is the turn of a message for which none was sent. The peer answers, but the interval is the peer's.
    assert_eq!(resends_until(25_500), ["h0>h1 p7 RESEND 2 0..100"]);
    assert_eq!(resends_until(34_500), [""; 0]);
    assert_eq!(resends_until(45_500), ["h0>h1 p7 RESEND 3 0..100", "h0>h1 p7 RESEND 1 0..100"]);
}

#[test]
fn in_linux_the_timeout_is_the_peers() {
    // The fifth RESEND is sent at 55 ms. Without an answer the peer is dead when the next message is looked at.
    for (messages, dead_at) in [(1, 56), (2, 55)] {
        let mut network = network(&kernel_module(), 2, Span::from_us(1));
        network.set_down(1, true);
        (1..=messages).for_each(|n| submit(&mut network, 0, 1, n, 100, Kind::Request));
        network.run_until(at(Span::from_us(1_000 * dead_at - 100)));
        assert_eq!(events(&mut network), [""; 0]);
        network.run_until(at(Span::from_us(1_000 * dead_at + 100)));
        let failed = |n: u64| format!("h0: {n} with h1 failed: peer silent");
        assert_eq!(events(&mut network), (1..=messages).map(failed).collect::<Vec<_>>());
    }
    // A peer that answers other messages is alive, however long one is silent.
    let mut network = network(&kernel_module(), 2, Span::from_us(1));
    network.respond = None;
    network.lose = Some(|packet| packet.header.id.get() >> 1 == 3 && packet.src == HostId(1));
    submit(&mut network, 0, 1, 3, 100, Kind::Request);
    submit(&mut network, 0, 1, 4, 100, Kind::Request);
    network.run_until(at(MS(1_000)));
    let arrived = |n: u64| format!("h1: Request {n} of 100 bytes from h0");
    assert_eq!(events(&mut network), [arrived(3), arrived(4)]);
}

#[test]
fn a_server_that_restarts_executes_the_request_a_second_time() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    network.respond = None;
    submit(&mut network, 0, 1, 1, 100, Kind::Request);
    network.run_until(at(MS(1)));
    network.restart(1, Host::new(HostId(1), paper().into()));
    network.respond = Some(|_| 300);
    network.run_until(at(MS(20)));
    assert_eq!(
        events(&mut network),
        [
            "h1: Request 1 of 100 bytes from h0",
            "h1: Request 1 of 100 bytes from h0",
            "h0: Response 1r of 300 bytes from h1",
            "h1: 1r sent to h0",
        ]
    );
}

#[test]
fn a_server_that_restarts_within_the_response_makes_the_client_fail() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    network.respond = Some(|_| 1_000_000);
    submit(&mut network, 0, 1, 1, 100, Kind::Request);
    network.run_until(at(Span::from_us(100)));
    network.restart(1, Host::new(HostId(1), paper().into()));
    network.run_until(at(MS(100)));
    let expected = ["h1: Request 1 of 100 bytes from h0", "h0: 1 with h1 failed: peer forgot"];
    assert_eq!(events(&mut network), expected);
    assert!(network.hosts.iter().all(Host::is_idle));
}

#[test]
fn a_client_that_restarts_makes_the_response_fail() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    network.respond = Some(|_| 1_000_000);
    submit(&mut network, 0, 1, 1, 100, Kind::Request);
    network.run_until(at(Span::from_us(100)));
    network.restart(0, Host::new(HostId(0), paper().into()));
    network.run_until(at(MS(100)));
    let expected = ["h1: Request 1 of 100 bytes from h0", "h1: 1r with h0 failed: peer forgot"];
    assert_eq!(events(&mut network), expected);
    assert!(network.hosts.iter().all(Host::is_idle));
}

#[test]
fn cancelled_messages_leave_nothing_behind() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    submit(&mut network, 0, 1, 1, 500_000, Kind::OneWay);
    submit(&mut network, 0, 1, 2, 400_000, Kind::Request);
    submit(&mut network, 1, 0, 1, 300_000, Kind::Request);
    network.run_until(at(Span::from_us(50)));
    network.cancel(0, 1, id(1));
    network.cancel(0, 1, id(2));
    // The message arrives at h0; it was not submitted there.
    network.cancel(0, 1, id(1));
    network.run_until(at(MS(100)));
    assert_eq!(events(&mut network), ["h1: 1 with h0 failed: peer forgot"]);
    assert!(network.hosts.iter().all(Host::is_idle));
}
