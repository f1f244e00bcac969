//! Connections: how they open and close, and which message uses which connection.

use rackweave_core::{
    Event, FailReason, HostId, Kind, MessageId, Node as _, Packet, Refused, Span, Submit, Time,
    Transport,
};
use rackweave_switch::config::Topology;
use rackweave_wire::tcp::{Body, Header, flags};

use super::{DELAY, Network, describe, fabric, faithful, lines, network, on, send, trace};
use crate::tcp::{Config, Host};

fn after(span: Span) -> Time {
    Time::ZERO + span
}

fn delivered(event: &Event) -> bool {
    matches!(event, Event::Delivered { .. })
}

fn failed(event: &Event, why: FailReason) -> bool {
    matches!(event, Event::Failed { reason, .. } if *reason == why)
}

#[test]
fn a_handshake_takes_one_round_trip() {
    let config = Config { handshake: true, initial_sequence: Some(0), ..Config::tcp() };
    let mut net = network(2, &config, faithful);
    send(&mut net, 0, 1, 1, 2920, Kind::OneWay);
    net.run_until(after(Span::from_ms(5)));
    assert_eq!(
        trace(&net),
        [
            "0.00 h0>h1 syn",
            "10.13 h1>h0 ack 0 syn",
            "20.26 h0>h1 data 0+1460",
            "21.49 h0>h1 data 1460+1460 end",
            "32.72 h1>h0 ack 1460",
            "33.96 h1>h0 ack 2920",
        ]
    );
}

#[test]
fn a_lost_syn_is_retransmitted() {
    let config = Config { handshake: true, ..Config::tcp() };
    let mut n = 0;
    let mut net = network(2, &config, move |_: Time, _: &mut Packet<Header>| {
        n += 1;
        // The first SYN and the first answer are lost.
        if n == 1 || n == 3 { vec![] } else { vec![Span::ZERO] }
    });
    send(&mut net, 0, 1, 1, 100, Kind::OneWay);
    net.run_until(after(Span::from_ms(10)));
    assert_eq!(lines(&net, "syn").len(), 5);
    assert_eq!(net.events[0].0.as_ps() / 1_000_000, 3030, "1 ms, then 2 ms, then 30 us");
    assert_eq!(net.count(1, delivered), 1);
}

#[test]
fn any_segment_of_the_first_window_opens_the_connection() {
    let mut first = true;
    let mut net = network(2, &Config::tcp(), move |_: Time, _: &mut Packet<Header>| {
        if core::mem::take(&mut first) { vec![] } else { vec![Span::ZERO] }
    });
    send(&mut net, 0, 1, 1, 14_600, Kind::OneWay);
    net.run_until(after(Span::from_ms(10)));
    assert_eq!(net.count(1, delivered), 1);
    assert!(net.events[0].0 < after(Span::from_us(100)), "by fast retransmit");
}

#[test]
fn messages_spread_over_connections_and_then_wait_in_order() {
    let config = Config { connections_per_peer: 3, ..Config::tcp() };
    let mut net = network(2, &config, faithful);
    for (number, kilobytes) in [(1, 400), (2, 100), (3, 300), (4, 50)] {
        send(&mut net, 0, 1, number, kilobytes * 1000, Kind::OneWay);
    }
    assert_eq!(net.hosts[0].connections(), 3);
    // The fourth message waits behind the second, which is shortest.
    net.run_until(after(Span::from_ms(5)));
    let sizes = net.events.iter().filter_map(|entry| match entry.2 {
        Event::Delivered { bytes, .. } => Some(bytes / 1000),
        _ => None,
    });
    assert_eq!(sizes.collect::<Vec<_>>(), [100, 50, 300, 400]);
    // All connections are idle now, and one is used again.
    send(&mut net, 0, 1, 5, 10, Kind::OneWay);
    net.run_until(after(Span::from_ms(10)));
    assert_eq!(net.hosts[0].connections(), 3);
    assert_eq!(net.hosts[1].connections(), 3);
}

#[test]
fn responses_return_on_the_connection_of_the_request() {
    let mut net = network(2, &Config::dctcp(), faithful);
    net.respond = Some(|_| 50_000);
    send(&mut net, 0, 1, 1, 3000, Kind::Request);
    net.run_until(after(Span::from_ms(5)));
    let wanted = MessageId::request(1);
    assert_eq!(net.count(1, |e| matches!(e, Event::Delivered { id, .. } if *id == wanted)), 1);
    assert_eq!(
        net.count(
            0,
            |e| matches!(e, Event::Delivered { id, bytes: 50_000, kind: Kind::Response, .. }
            if *id == wanted.response())
        ),
        1
    );
    assert_eq!(net.count(0, |e| matches!(e, Event::Sent { .. })), 1);
    assert_eq!(net.count(1, |e| matches!(e, Event::Sent { .. })), 1);
    assert_eq!(net.hosts[0].connections(), 1);
    assert_eq!(net.hosts[1].connections(), 1);
    assert_eq!(net.hosts[0].backlog(), [0; 6]);
    assert_eq!(net.hosts[1].backlog(), [0; 6]);
}

#[test]
fn a_restarted_server_reports_that_it_forgot() {
    let mut net = network(2, &Config::tcp(), faithful);
    send(&mut net, 0, 1, 1, 1000, Kind::OneWay);
    net.run_until(after(Span::from_ms(1)));
    net.restart(1, Host::new(HostId(1), Config::tcp()));
    send(&mut net, 0, 1, 2, 1000, Kind::OneWay);
    net.run_until(after(Span::from_ms(2)));
    assert_eq!(lines(&net, "rst").len(), 1);
    assert_eq!(net.count(0, |event| failed(event, FailReason::PeerForgot)), 1);
    // The next message opens a new connection.
    send(&mut net, 0, 1, 3, 1000, Kind::OneWay);
    net.run_until(after(Span::from_ms(3)));
    assert_eq!(net.count(1, delivered), 2);
}

#[test]
fn a_reset_counts_only_with_the_exact_sequence_number() {
    let config = Config { initial_sequence: Some(0), ..Config::tcp() };
    let mut net = network(2, &config, faithful);
    send(&mut net, 0, 1, 1, 1000, Kind::Request);
    net.run_until(after(Span::from_ms(1)));
    let opening = net.hosts[1].iter().next().expect("a connection").key;
    // RFC 5961, 3.2: what is in the window is challenged, and the rest ignored.
    let window = Config::tcp().receive_window;
    for (seq, left, challenges) in
        [(999, 1, 0), (1001, 1, 1), (999 + window, 1, 1), (1000 + window, 1, 0), (1000, 0, 0)]
    {
        let body = Body::Ack { count: 0, sack: [(0, 0); 3] };
        let header = Header { seq, ack: 0, window: 0, flags: flags::RST, body };
        let mut packet = Packet::new(HostId(0), HostId(1), 40, header);
        packet.ports = opening.ports.rotate_left(16);
        let now = net.now();
        let _ = net.host_mut(1).handle_packet(now, 0, &packet);
        assert_eq!(net.hosts[1].connections(), left, "{seq}");
        let answers: Vec<_> =
            core::iter::from_fn(|| net.host_mut(1).poll_transmit(now, 0)).collect();
        assert_eq!(answers.len(), challenges, "{seq}");
        assert!(answers.iter().all(|it| describe(it).ends_with(" ack 1000")), "{answers:?}");
    }
}

#[test]
fn a_client_that_restarted_gets_through_on_the_same_ports() {
    let mut net = network(2, &Config::tcp(), faithful);
    send(&mut net, 0, 1, 1, 5000, Kind::Request);
    net.run_until(after(Span::from_us(900)));
    net.restart(0, Host::new(HostId(0), Config::tcp()));
    net.reuse_ids();
    // It is shorter than the message of the old connection, and must not be mistaken for a duplicate of it.
    send(&mut net, 0, 1, 1, 4000, Kind::Request);
    net.run_until(after(Span::from_ms(10)));
    assert_eq!(lines(&net, "rst").len(), 3, "one for each segment: {:?}", trace(&net));
    assert_eq!(net.count(1, |event| failed(event, FailReason::PeerForgot)), 1, "the old request");
    assert_eq!(net.count(1, |e| matches!(e, Event::Delivered { bytes: 4000, .. })), 1);
}

/// Both connections on the port have ended when a duplicate of the first one's segment arrives, after this time. Returns how often the
/// server delivers a message after that. If it stands still, everything that has arrived since 29 ms waits until then.
fn late_segment_after_two_restarts(late: Span, stands_still: bool) -> usize {
    let mut copies_of_third = 0;
    let fate = move |_: Time, packet: &mut Packet<Header>| {
        let message = packet.payload().map(|slice| slice.message);
        if message == Some(MessageId::request(1)) {
            return vec![Span::ZERO, late];
        }
        copies_of_third += u32::from(message == Some(MessageId::request(3)));
        // The third message only causes the server to reset the second connection.
        if message == Some(MessageId::request(3)) && copies_of_third > 1 {
            return vec![];
        }
        vec![Span::ZERO]
    };
    let mut net = network(2, &Config::tcp(), fate);
    for (number, until_ms) in [(1, 1), (2, 15), (3, 29)] {
        net.restart(0, Host::new(HostId(0), Config::tcp()));
        send(&mut net, 0, 1, number, 1000, Kind::OneWay);
        net.run_until(after(Span::from_ms(until_ms)));
    }
    assert_eq!(lines(&net, "rst").len(), 2, "{:?}", trace(&net));
    assert_eq!(net.count(1, delivered), 2, "{:?}", net.events);
    assert_eq!(net.hosts[1].connections(), 0);
    if stands_still {
        net.hosts[1].arrived_until(after(Span::from_ms(29)));
    }
    net.run_until(after(late + Span::from_ms(10)));
    net.count(1, delivered) - 2
}

/// The segment must not open that connection again and deliver its message a second time (RFC 9293, 3.6.1).
#[test]
fn a_late_segment_of_an_ended_connection_opens_nothing_after_two_restarts() {
    assert_eq!(late_segment_after_two_restarts(Span::from_ms(30), false), 0);
    // No segment is that late, except in the socket of a process that has stood still.
    assert_eq!(late_segment_after_two_restarts(Span::from_secs(60), true), 0);
}

#[test]
fn a_client_that_awaits_a_response_notices_that_the_server_is_gone() {
    // The server has restarted: the keep-alive is answered by a reset.
    let mut net = network(2, &Config::tcp(), faithful);
    send(&mut net, 0, 1, 1, 1000, Kind::Request);
    net.run_until(after(Span::from_ms(1)));
    net.restart(1, Host::new(HostId(1), Config::tcp()));
    net.run_until(after(Span::from_ms(150)));
    assert_eq!(net.count(0, |event| failed(event, FailReason::PeerForgot)), 1);

    // The server is cut off: nothing answers.
    let mut net = network(2, &Config::tcp(), move |now: Time, _: &mut Packet<Header>| {
        if now < after(Span::from_ms(1)) { vec![Span::ZERO] } else { vec![] }
    });
    send(&mut net, 0, 1, 1, 1000, Kind::Request);
    net.run_until(after(Span::from_ms(900)));
    assert_eq!(net.count(0, |event| failed(event, FailReason::PeerSilent)), 1);
    assert_eq!(lines(&net, "lost").len(), 6, "keep-alives and a reset");
}

#[test]
fn a_client_that_stood_still_for_long_asks_before_it_gives_up() {
    let mut net = network(2, &Config::tcp(), faithful);
    send(&mut net, 0, 1, 1, 1000, Kind::Request);
    net.run_until(after(Span::from_ms(1)));
    let resumed = after(Span::from_secs(5));
    net.host_mut(0).handle_timeout(resumed);
    assert_eq!(net.host_mut(0).poll_event(), None);
    let probe = net.host_mut(0).poll_transmit(resumed, 0);
    assert!(probe.is_some_and(|packet| packet.payload().is_none()));
    assert_eq!(net.hosts[0].poll_timeout(), Some(resumed + Span::from_ms(100)));
}

#[test]
fn odd_parameters_stall_nothing() {
    for config in [
        Config { receive_window: 0, ..Config::tcp() },
        Config { mss: 0, initial_window_segments: 0, ..Config::tcp() },
        Config { max_ranges: 0, ack_every_segments: 0, dup_ack_threshold: 0, ..Config::tcp() },
        Config { delayed_ack: Span::ZERO, min_rto: Span::ZERO, ..Config::tcp() },
        Config { max_rto: Span::ZERO, connections_per_peer: 0, ..Config::tcp() },
        Config { mss: u32::MAX, receive_window: u32::MAX, ..Config::dctcp() },
    ] {
        let mut n = 0_u32;
        let mut net = network(2, &config, move |_: Time, _: &mut Packet<Header>| {
            n += 1;
            if n.is_multiple_of(11) { vec![] } else { vec![Span::ZERO] }
        });
        send(&mut net, 0, 1, 1, 300, Kind::OneWay);
        send(&mut net, 0, 1, 2, 30_000, Kind::OneWay);
        net.run_until(after(Span::from_secs(3)));
        assert_eq!(net.count(1, delivered), 2, "{config:?}");
    }
}

#[test]
fn the_limit_of_connections_holds_at_both_ends() {
    let config = Config { max_connections: 3, ..Config::tcp() };
    let mut net = network(6, &config, faithful);
    for to in 1..=4_u32 {
        let id = MessageId::request(u64::from(to));
        let message = Submit { id, peer: HostId(to), bytes: 10, kind: Kind::OneWay };
        let taken = net.host_mut(0).submit(Time::ZERO, message);
        assert_eq!(taken, if to <= 3 { Ok(()) } else { Err(Refused::Busy) });
    }
    for from in 1..=4_u32 {
        send(&mut net, from, 5, u64::from(from), 10, Kind::OneWay);
    }
    net.run_until(after(Span::from_secs(2)));
    assert_eq!(net.hosts[5].connections(), 3);
    assert_eq!(net.count(5, delivered), 3);
    let silent = (1..=4).map(|h| net.count(h, |e| failed(e, FailReason::PeerSilent)));
    assert_eq!(silent.sum::<usize>(), 1, "the fourth is not let in");
}

#[test]
fn a_slow_server_is_not_a_silent_one() {
    let mut net = network(2, &Config::tcp(), faithful);
    send(&mut net, 0, 1, 1, 1000, Kind::Request);
    net.run_until(after(Span::from_secs(60)));
    assert!(trace(&net).len() > 1000, "keep-alives and their answers");
    let id = MessageId::request(1).response();
    let response = Submit { id, peer: HostId(0), bytes: 10, kind: Kind::Response };
    let now = net.now();
    net.host_mut(1).submit(now, response).expect("the request is still known");
    assert_eq!(net.count(0, |event| matches!(event, Event::Failed { .. })), 0);
}

#[test]
fn idle_connections_end_at_both_ends() {
    for farewell_is_lost in [false, true] {
        let mut net = network(2, &Config::tcp(), move |now: Time, _: &mut Packet<Header>| {
            let lost = farewell_is_lost && now > after(Span::from_secs(1));
            if lost { vec![] } else { vec![Span::ZERO] }
        });
        send(&mut net, 0, 1, 1, 1000, Kind::OneWay);
        net.run_until(after(Span::from_secs(9)));
        assert_eq!((net.hosts[0].connections(), net.hosts[1].connections()), (1, 1));
        net.run_until(after(Span::from_secs(11)));
        assert_eq!(net.hosts[0].connections(), 0);
        assert_eq!(net.hosts[1].connections(), u32::from(farewell_is_lost));
        net.run_until(after(Span::from_secs(30)));
        assert_eq!(net.hosts[1].connections(), 0);
        assert_eq!(net.hosts[0].poll_timeout(), None);
        assert_eq!(net.hosts[1].poll_timeout(), None);
        assert_eq!(net.events.len(), 2, "delivered and sent, nothing failed");
    }
}

#[test]
fn a_cancelled_message_that_waits_is_not_sent() {
    let config = Config { connections_per_peer: 1, ..Config::tcp() };
    let mut net = network(2, &config, faithful);
    for number in 1..=3 {
        send(&mut net, 0, 1, number, 100_000, Kind::OneWay);
    }
    let now = net.now();
    net.host_mut(0).cancel(now, HostId(1), MessageId::request(1)); // In flight: continues.
    net.host_mut(0).cancel(now, HostId(1), MessageId::request(2)); // Not started.
    net.host_mut(0).cancel(now, HostId(1), MessageId::request(9)); // Unknown.
    net.run_until(after(Span::from_ms(5)));
    assert_eq!(net.count(1, delivered), 2);
    assert_eq!(
        net.count(0, |event| *event == Event::Sent { peer: HostId(1), id: MessageId(6) }),
        1
    );
    assert_eq!(net.count(0, |_| true), 1, "nothing of the cancelled ones: {:?}", net.events);
}

#[test]
fn a_cancelled_request_brings_no_response() {
    let mut net = network(2, &Config::tcp(), faithful);
    net.respond = Some(|_| 100_000);
    send(&mut net, 0, 1, 1, 1000, Kind::Request);
    net.run_until(after(Span::from_us(5)));
    let now = net.now();
    net.host_mut(0).cancel(now, HostId(1), MessageId::request(1));
    net.run_until(after(Span::from_ms(5)));
    assert_eq!(net.count(0, |_| true), 0);
    assert_eq!(net.stored[0], 0, "its bytes are thrown away");
    // The stream continues.
    send(&mut net, 0, 1, 2, 1000, Kind::Request);
    net.run_until(after(Span::from_ms(10)));
    assert_eq!(net.count(0, delivered), 1);
    assert_eq!(net.hosts[0].connections(), 1);
}

/// While the first request arrives, while it is served, and while its response waits behind another.
#[test]
fn a_request_that_its_server_cancels_fails_and_its_connection_goes_on() {
    for us in [40, 200, 400] {
        let config = Config { connections_per_peer: 1, ..Config::tcp() };
        let mut lost = 0;
        let mut net = network(2, &config, move |_, packet| {
            // The first notice is lost: it is repeated like any data.
            let notice = packet.header.flags & flags::FIN != 0;
            lost += u32::from(notice);
            if notice && lost == 1 { vec![] } else { vec![Span::ZERO] }
        });
        send(&mut net, 0, 1, 1, 100_000, Kind::Request);
        send(&mut net, 0, 1, 2, 1_000, Kind::Request);
        let respond = |net: &mut Network, number, bytes| {
            let id = MessageId::request(number).response();
            net.submit(1, 0, id, bytes, Kind::Response).expect("in service");
        };
        net.run_until(after(Span::from_us(us)));
        let mut cancelled = MessageId::request(1);
        if us == 400 {
            respond(&mut net, 2, 1_000_000);
            respond(&mut net, 1, 10_000);
            cancelled = cancelled.response();
        }
        let now = net.now();
        net.host_mut(1).cancel(now, HostId(0), cancelled);
        net.run_until(after(Span::from_us(400)));
        if us != 400 {
            respond(&mut net, 2, 1_000_000);
        }
        net.run_until(after(Span::from_ms(50)));
        let of_client: Vec<_> =
            net.events_at(0).filter(|event| !matches!(event, Event::Sent { .. })).collect();
        let (peer, reason) = (HostId(1), FailReason::PeerForgot);
        let failed = Event::Failed { peer, id: MessageId::request(1), reason };
        assert!(of_client.contains(&failed), "{us}: {of_client:?}");
        assert_eq!((of_client.len(), net.count(0, delivered)), (2, 1), "{us}: {of_client:?}");
        assert_eq!((net.hosts[0].connections(), net.hosts[0].backlog()[2]), (1, 0));
        assert!(!net.hosts[1].is_leaving(HostId(0), MessageId::request(1).response()));
        assert_eq!(net.hosts[1].backlog(), [0; 6]);
    }
}

#[test]
fn a_cancelled_arrival_is_discarded() {
    let mut net = network(2, &Config::tcp(), faithful);
    send(&mut net, 0, 1, 1, 100_000, Kind::OneWay);
    net.run_until(after(Span::from_us(30)));
    let before = net.stored[1];
    assert!(before > 0);
    let now = net.now();
    net.host_mut(1).cancel(now, HostId(0), MessageId::request(1));
    net.run_until(after(Span::from_ms(5)));
    assert_eq!(net.stored[1], before);
    assert_eq!(net.count(1, delivered), 0);
}

#[test]
fn sequence_numbers_wrap() {
    let config = Config { initial_sequence: Some(u32::MAX - 20_000), ..Config::tcp() };
    let mut n = 0_u32;
    let mut net = network(2, &config, move |_: Time, _: &mut Packet<Header>| {
        n += 1;
        if n.is_multiple_of(17) { vec![] } else { vec![Span::ZERO] }
    });
    send(&mut net, 0, 1, 1, 200_000, Kind::OneWay);
    net.run_until(after(Span::from_ms(100)));
    assert_eq!(net.count(1, delivered), 1);
    assert_eq!(net.count(0, |event| matches!(event, Event::Sent { .. })), 1);
}

#[test]
fn a_stream_of_more_than_four_gigabytes() {
    let config = Config {
        mss: 60_000,
        receive_window: 16 << 20,
        connections_per_peer: 1,
        ..Config::new_reno()
    };
    let mut n = 0_u32;
    let fabric = fabric(
        Topology::SingleSwitch { hosts: 2, host_link: rackweave_core::Rate::from_gbps(1000) },
        DELAY,
    );
    let mut net = on(&fabric, &config);
    net.fate = Some(Box::new(move |_, _| {
        n += 1;
        if n.is_multiple_of(5003) { vec![] } else { vec![Span::ZERO] }
    }));
    for number in 1..=2 {
        send(&mut net, 0, 1, number, 3_000_000_000, Kind::OneWay);
    }
    net.run_until(after(Span::from_secs(5)));
    assert_eq!(net.count(1, delivered), 2);
    assert_eq!(net.hosts[0].iter().next().unwrap().sender.una(), 6_000_000_000);
}

/// Ending a call takes the same work however many are outstanding: with a search among all of them, this test would take an hour.
#[test]
fn a_hundred_thousand_calls_end_one_by_one_and_at_once() {
    const CALLS: u64 = 100_000;
    let config =
        Config { connections_per_peer: 1, max_messages: CALLS as u32, ..Config::new_reno() };
    let submit = |host: &mut Host, now| {
        for number in 1..=CALLS {
            let (id, peer) = (MessageId::request(number), HostId(1));
            host.submit(now, Submit { id, peer, bytes: 100, kind: Kind::Request }).unwrap();
        }
    };
    // Newest first, oldest first, and from the middle; some of the first were sent.
    let step = |n: u64| (n * 7_919) % CALLS + 1;
    let orders: [fn(u64) -> u64; 2] = [|n| CALLS - n, |n| n + 1];
    for (number, of) in orders.into_iter().chain([step as fn(u64) -> u64]).enumerate() {
        let mut host = Host::new(HostId(0), config.clone());
        submit(&mut host, Time::ZERO);
        let sent = std::iter::from_fn(|| host.poll_transmit(Time::ZERO, 0)).count();
        assert!(sent > 1);
        for n in 0..CALLS {
            let id = MessageId::request(of(n));
            host.cancel(Time::ZERO, HostId(1), id);
            // Whoever cancels asks for both directions.
            let _leaves = [id, id.response()].map(|id| host.is_leaving(HostId(1), id));
        }
        assert_eq!((host.connections(), host.backlog()[2]), (0, 0), "order {number}");
        assert!(!host.is_leaving(HostId(1), MessageId::request(1)), "order {number}");
    }
    // The server has all requests, and restarts.
    let mut net = network(2, &config, faithful);
    net.respond = None;
    let now = net.now();
    submit(net.host_mut(0), now);
    net.run_until(after(Span::from_secs(2)));
    assert_eq!(net.count(1, delivered), CALLS as usize);
    let now = net.now();
    net.host_mut(0).peer_restarted(now, HostId(1));
    net.run_until(after(Span::from_ms(2_001)));
    let forgot = |event: &Event| failed(event, FailReason::PeerForgot);
    assert_eq!(net.count(0, forgot), CALLS as usize);
    assert_eq!(net.hosts[0].backlog(), [0; 6]);
}

/// An application cancels the calls of a peer that has restarted, which have ended: that must not cost a search of all connections for each.
#[test]
fn cancelling_what_has_ended_searches_the_connections_of_its_peer_only() {
    let config = Config { max_connections: 3_000, max_messages: 10_000, ..Config::tcp() };
    let mut host = Host::new(HostId(0), config);
    for peer in 1..=2_000 {
        let id = MessageId::request(u64::from(peer));
        let submit = Submit { id, peer: HostId(peer), bytes: 100, kind: Kind::Request };
        host.submit(Time::ZERO, submit).unwrap();
    }
    assert_eq!(host.connections(), 2_000);
    for number in 10_000..11_000 {
        host.cancel(Time::ZERO, HostId(7), MessageId::request(number));
    }
    assert_eq!(host.searched, 1_000);
    host.peer_restarted(Time::ZERO, HostId(7));
    host.cancel(Time::ZERO, HostId(7), MessageId::request(7));
    assert_eq!((host.connections(), host.searched), (1_999, 1_000));
}
