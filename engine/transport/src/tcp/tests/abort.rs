//! Connections that end before their messages have: what is cancelled or given up leaves nothing at the peer.

use proptest::prelude::*;
use rackweave_core::{
    Event, FailReason, HostId, Kind, MessageId, Node as _, Packet, Span, StreamEvent, Time,
    Transport,
};
use rackweave_wire::tcp::{Header, flags};

use super::chaos::{self, assert_quiet};
use super::{Network, lines, network, send, trace};
use crate::tcp::Config;

fn after(span: Span) -> Time {
    Time::ZERO + span
}

fn is_reset(packet: &Packet<Header>) -> bool {
    packet.header.flags & flags::RST != 0
}

fn delivered(event: &Event) -> bool {
    matches!(event, Event::Delivered { .. })
}

/// A path with a small MTU: full packets are lost.
fn without_full_packets(packet: &Packet<Header>) -> bool {
    packet.payload().is_none_or(|slice| slice.len < 1460)
}

/// Whether part of the first message has arrived at host 1, and is kept.
fn is_arriving(net: &Network) -> bool {
    net.hosts[1].is_arriving(HostId(0), MessageId::request(1))
}

fn cancel(net: &mut Network, number: u64) {
    net.cancel(0, 1, MessageId::request(number));
}

/// The reset comes behind bytes that were lost, so that its sequence number is not the one that is expected.
#[test]
fn a_cancelled_message_ends_its_connection_at_both_ends() {
    let config = Config { initial_sequence: Some(0), ..Config::tcp() };
    for config in [config.clone(), Config { handshake: true, ..config }] {
        for kind in [Kind::OneWay, Kind::Request] {
            let fate = |_: Time, packet: &mut Packet<Header>| {
                if without_full_packets(packet) { vec![Span::ZERO] } else { vec![] }
            };
            let mut net = network(2, &config, fate);
            send(&mut net, 0, 1, 1, 10_000, kind);
            net.run_until(after(Span::from_ms(100)));
            assert!(is_arriving(&net));
            net.packets.clear();
            cancel(&mut net, 1);
            net.run_until(net.now() + Span::from_us(50));
            assert_eq!(
                lines(&net, ""),
                ["h0>h1 rst", "h1>h0 ack 0 [8760..10000)", "h0>h1 rst"],
                "{:?}",
                trace(&net)
            );
            let sequences = net.packets.iter().filter(|it| is_reset(&it.1));
            assert_eq!(sequences.map(|it| it.1.header.seq).collect::<Vec<_>>(), [10_000, 0]);
            assert!(!is_arriving(&net));
            assert_eq!((net.hosts[0].connections(), net.hosts[1].connections()), (0, 0));
            assert_eq!(net.events.len(), 0);
        }
    }
}

#[test]
fn a_message_that_its_sender_gives_up_leaves_nothing_at_the_peer() {
    for config in [Config::tcp(), Config::dctcp(), Config { handshake: true, ..Config::tcp() }] {
        let fate = |_: Time, packet: &mut Packet<Header>| {
            if without_full_packets(packet) { vec![Span::ZERO] } else { vec![] }
        };
        let mut net = network(2, &config, fate);
        send(&mut net, 0, 1, 1, 10_000, Kind::Request);
        net.run_until(after(Span::from_ms(500)));
        assert!(is_arriving(&net));
        net.run_until(after(Span::from_ms(1500)));
        let silent =
            |event: &Event| matches!(event, Event::Failed { reason: FailReason::PeerSilent, .. });
        assert_eq!(net.count(0, silent), 1);
        assert!(!is_arriving(&net));
        assert_eq!(net.hosts[1].connections(), 0);
    }
}

/// A response that does not get through: the server gives it up, and the client learns of it.
#[test]
fn a_response_that_its_server_gives_up_fails_at_the_client() {
    let fate = |_: Time, packet: &mut Packet<Header>| {
        if without_full_packets(packet) { vec![Span::ZERO] } else { vec![] }
    };
    let mut net = network(2, &Config::tcp(), fate);
    net.respond = Some(|_| 10_000);
    send(&mut net, 0, 1, 1, 1000, Kind::Request);
    net.run_until(after(Span::from_ms(1500)));
    let forgot =
        |event: &Event| matches!(event, Event::Failed { reason: FailReason::PeerForgot, .. });
    assert_eq!(net.count(0, forgot), 1);
    assert_eq!((net.hosts[0].connections(), net.hosts[1].connections()), (0, 0));
}

/// RFC 9293, 3.10.7.1: a segment without a connection is answered by a reset.
#[test]
fn a_late_segment_replaces_a_reset_that_was_lost() {
    let mut resets = 0;
    let mut net = network(2, &Config::tcp(), move |now: Time, packet: &mut Packet<Header>| {
        if is_reset(packet) {
            resets += 1;
            return if resets == 1 { vec![] } else { vec![Span::ZERO] };
        }
        if now == Time::ZERO {
            return vec![Span::ZERO, Span::from_ms(300)];
        }
        if without_full_packets(packet) { vec![Span::ZERO] } else { vec![] }
    });
    send(&mut net, 0, 1, 1, 100_000, Kind::OneWay);
    net.run_until(after(Span::from_ms(200)));
    cancel(&mut net, 1);
    net.run_until(after(Span::from_ms(299)));
    assert!(is_arriving(&net));
    assert_eq!(net.hosts[0].connections(), 0);
    net.run_until(after(Span::from_ms(301)));
    assert!(!is_arriving(&net));
    assert_eq!(net.hosts[1].connections(), 0);
}

#[test]
fn without_resets_silence_ends_an_incomplete_message() {
    let config = Config { idle_timeout: Span::from_secs(1), ..Config::tcp() };
    let mut net = network(2, &config, |now: Time, packet: &mut Packet<Header>| {
        let lost = is_reset(packet) || now > Time::ZERO && !without_full_packets(packet);
        if lost { vec![] } else { vec![Span::ZERO] }
    });
    send(&mut net, 0, 1, 1, 100_000, Kind::OneWay);
    net.run_until(after(Span::from_ms(200)));
    cancel(&mut net, 1);
    net.run_until(after(Span::from_ms(1900)));
    assert!(is_arriving(&net));
    net.run_until(after(Span::from_ms(2300)));
    assert!(!is_arriving(&net));
    assert_eq!(net.hosts[1].connections(), 0);
    assert_eq!(net.hosts[1].poll_timeout(), None);
}

/// What others wait for on the connection is sent first.
#[test]
fn a_connection_is_reset_only_when_nothing_else_uses_it() {
    for second in [Kind::OneWay, Kind::Request] {
        let config = Config { connections_per_peer: 1, ..Config::tcp() };
        let mut net = network(2, &config, |_, _| vec![Span::ZERO]);
        net.respond = Some(|_| 1000);
        for (number, bytes, kind) in
            [(1, 20_000, Kind::OneWay), (2, 1000, second), (3, 1_000_000, Kind::OneWay)]
        {
            send(&mut net, 0, 1, number, bytes, kind);
        }
        net.run_until(after(Span::from_us(10)));
        cancel(&mut net, 1);
        net.run_until(after(Span::from_us(300)));
        assert_eq!(lines(&net, "rst").len(), 0);
        cancel(&mut net, 3);
        net.run_until(after(Span::from_us(400)));
        assert_eq!((net.hosts[0].connections(), net.hosts[1].connections()), (0, 0));
        let of_second = net.count(1, delivered) + net.count(0, delivered);
        let expected = if second == Kind::OneWay { 2 } else { 3 };
        assert_eq!(of_second, expected, "the first one, too, has arrived before the second");
        assert_eq!(net.count(0, |event| matches!(event, Event::Failed { .. })), 0);
    }
    // The response is awaited when the other message is cancelled.
    let config = Config { connections_per_peer: 1, ..Config::tcp() };
    let mut net = network(2, &config, |_, _| vec![Span::ZERO]);
    send(&mut net, 0, 1, 1, 1000, Kind::Request);
    send(&mut net, 0, 1, 2, 1_000_000, Kind::OneWay);
    net.run_until(after(Span::from_us(100)));
    cancel(&mut net, 2);
    net.run_until(after(Span::from_us(200)));
    assert_eq!(net.hosts[0].connections(), 1);
    net.submit(1, 0, MessageId::request(1).response(), 500, Kind::Response).expect("in service");
    net.run_until(after(Span::from_us(300)));
    assert_eq!(net.count(0, delivered), 1);
    assert_eq!((net.hosts[0].connections(), net.hosts[1].connections()), (0, 0));
    assert!(!net.hosts[1].is_arriving(HostId(0), MessageId::request(2)));
}

/// A server cannot know whether requests are on their way.
#[test]
fn a_server_does_not_reset_for_a_response_that_it_cancels() {
    let mut net = network(2, &Config::tcp(), |_, _| vec![Span::ZERO]);
    send(&mut net, 0, 1, 1, 1000, Kind::Request);
    net.run_until(after(Span::from_us(50)));
    let response = MessageId::request(1).response();
    net.submit(1, 0, response, 100_000, Kind::Response).expect("in service");
    net.run_until(after(Span::from_us(80)));
    net.cancel(1, 0, response);
    net.run_until(after(Span::from_ms(5)));
    assert_eq!(lines(&net, "rst").len(), 0);
    assert_eq!(
        (
            net.count(0, delivered),
            net.count(1, |event| *event == Event::Sent { peer: HostId(0), id: response })
        ),
        (1, 0)
    );
}

/// A stream with lost bytes, too, is reset at its peer.
#[test]
fn a_cancelled_stream_with_losses_ends_at_both_ends() {
    let mut net = network(2, &Config::tcp(), |now: Time, packet: &mut Packet<Header>| {
        let lost = now > Time::ZERO && !without_full_packets(packet);
        if lost { vec![] } else { vec![Span::ZERO] }
    });
    let id = MessageId::request(1);
    net.open(0, 1, id, Time::MAX).expect("a new stream");
    net.write(0, 1, id, 100_000, false).expect("an open stream");
    net.run_until(after(Span::from_ms(20)));
    assert_eq!(net.hosts[1].connections(), 1);
    net.cancel_stream(0, 1, id);
    net.run_until(net.now() + Span::from_us(100));
    assert_eq!(net.hosts[1].connections(), 0);
    let opened = |event: &Event| matches!(event, Event::Stream(StreamEvent::Opened { .. }));
    let failed = |event: &Event| matches!(event, Event::Failed { .. });
    assert_eq!((net.count(1, opened), net.count(1, failed)), (1, 1));
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, ..rackweave_testing::cases(300)
    })]

    /// Messages are cancelled at any time, on a path with any faults, which may go on for longer than they are retried.
    #[test]
    fn cancelled_messages_leave_nothing_and_others_arrive(
        config in chaos::config(),
        weather in chaos::weather(),
        messages in chaos::messages(),
        cancelled_after_us in prop::collection::vec(prop::option::of(0_u64..3000), 12),
        blocks_full in any::<bool>(),
    ) {
        let idle_timeout = Span::from_secs(1);
        let config = Config { idle_timeout, initial_sequence: None, ..config };
        let mss = config.mss;
        let mut fate = weather.fate();
        let mut net = network(2, &config, move |now, packet: &mut Packet<Header>| {
            if blocks_full && packet.payload().is_some_and(|slice| slice.len == mss) {
                return vec![];
            }
            fate(now, packet)
        });
        net.respond = Some(|_| 9_000);
        let mut due = Vec::new();
        for (number, &(reverse, bytes, kind)) in (1..).zip(&messages) {
            let from = u32::from(reverse);
            send(&mut net, from, 1 - from, number, bytes, kind);
            let next = net.now() + Span::from_us(number * 7 % 50);
            if let Some(after) = cancelled_after_us[number as usize - 1] {
                due.push((net.now() + Span::from_us(after), from, MessageId::request(number)));
            }
            net.run_until(next);
        }
        due.sort();
        for (at, from, id) in due {
            net.run_until(net.now().max(at));
            net.cancel(from, 1 - from, id);
        }
        net.run_until(Time::ZERO + Span::from_secs(5));
        for (number, &(reverse, _, kind)) in (1..).zip(&messages) {
            let (from, to) = (u32::from(reverse), u32::from(!reverse));
            let id = MessageId::request(number);
            prop_assert!(!net.hosts[to as usize].is_arriving(HostId(from), id));
            prop_assert!(!net.hosts[from as usize].is_leaving(HostId(to), id));
            let deliveries = net.count(to, |event| {
                matches!(event, Event::Delivered { id: i, .. } if *i == id)
            });
            prop_assert!(deliveries <= 1);
            if cancelled_after_us[number as usize - 1].is_some() || blocks_full {
                continue;
            }
            prop_assert_eq!(deliveries, 1, "{:?}", &net.events);
            let ended = net.count(from, |event| match (kind, event) {
                (Kind::Request, Event::Delivered { id: i, .. }) => *i == id.response(),
                (Kind::OneWay, Event::Sent { id: i, .. }) => *i == id,
                _ => false,
            });
            prop_assert_eq!(ended, 1, "{:?}", &net.events);
        }
        net.hosts.iter().for_each(assert_quiet);
    }
}
