//! Tests of whole hosts.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use rackweave_core::{
    Event, HostId, Kind, MessageId, Node as _, Packet, Placement, Rate, Refused, Rng, Slice, Span,
    Submit, Time, Transport,
};
use rackweave_wire::Id64;
use rackweave_wire::datagram::Header;

use super::{Config, Host};
use crate::testkit::Faults;
use crate::tests::Network;

const LINK: Rate = Rate::from_gbps(10);
/// A full packet's payload.
const FULL: u32 = 1_456;

fn network(config: &Config, hosts: u32) -> Network<Host> {
    config.check().expect("a sound configuration");
    let config = Arc::new(config.clone());
    let hosts = (0..hosts).map(|id| Host::new(HostId(id), Arc::clone(&config))).collect();
    let mut network = Network::new(hosts, LINK, Span::from_us(1));
    network.keep_packets = true;
    network
}

fn at(span: Span) -> Time {
    Time::ZERO + span
}

fn id(n: u64) -> MessageId {
    MessageId::request(n)
}

fn piece(n: u64, message_length: u32, offset: u32, len: u16) -> Packet<Header> {
    let header = Header { id: Id64::new(id(n).0), message_length, offset, len };
    Packet::new(HostId(1), HostId(0), 100, header)
}

fn delivered(network: &Network<Host>, to: u32) -> usize {
    network.events_at(to).filter(|event| matches!(event, Event::Delivered { .. })).count()
}

#[test]
fn a_message_leaves_at_line_rate_and_nothing_comes_back() {
    let mut network = network(&Config { priority: 3, ..Config::default() }, 2);
    for n in 1..=2 {
        network.submit(0, 1, id(n), 3_000, Kind::OneWay).unwrap();
    }
    network.run_until(at(Span::from_ms(1)));
    let packets: Vec<_> = network.packets.iter().map(|(at, packet)| (at.0, *packet)).collect();
    let pieces = packets.iter().map(|(_, packet)| packet.header.payload());
    let of = |n, offset, len| Slice { message: id(n), offset, len };
    let whole = |n| [of(n, 0, FULL), of(n, FULL, FULL), of(n, 2 * FULL, 88)];
    assert!(pieces.eq([whole(1), whole(2)].concat()), "first come, first served");
    let full = LINK.span_of(1538).0;
    let rest = LINK.span_of(u64::from(rackweave_core::frame::wire_bytes(88 + 44))).0;
    let starts = [0, full, 2 * full, 2 * full + rest, 3 * full + rest, 4 * full + rest];
    assert!(packets.iter().map(|(at, _)| *at).eq(starts), "back to back");
    assert!(packets.iter().all(|(_, packet)| packet.src == HostId(0) && packet.priority == 3));
    let last_left = 2 * full;
    let sent = network.events.iter().find(|(_, _, event)| matches!(event, Event::Sent { .. }));
    let sent = sent.unwrap().0.0;
    assert!((last_left..=last_left + rest).contains(&sent), "when the last packet leaves: {sent}");
    assert_eq!(delivered(&network, 1), 2);
    assert!(network.hosts.iter().all(Host::is_idle));
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let config = Config { max_sending: 2, max_message_bytes: 1_000_000, ..Config::default() };
    let mut host = Host::new(HostId(0), config.into());
    let mut submit = |n: MessageId, bytes, kind| {
        host.submit(Time::ZERO, Submit { id: n, peer: HostId(1), bytes, kind })
    };
    assert_eq!(submit(id(1), 100, Kind::Request), Err(Refused::Unsupported));
    assert_eq!(submit(id(1).response(), 100, Kind::Response), Err(Refused::Unsupported));
    assert_eq!(submit(id(1), 0, Kind::OneWay), Err(Refused::Empty));
    let too_long = Err(Refused::TooLong { max: 1_000_000 });
    assert_eq!(submit(id(1), 1_000_001, Kind::OneWay), too_long);
    assert_eq!(submit(id(1).response(), 1, Kind::OneWay), Err(Refused::WrongId));
    assert_eq!(submit(id(1), 1, Kind::OneWay), Ok(()));
    assert_eq!(submit(id(1), 1, Kind::OneWay), Err(Refused::DuplicateId));
    assert_eq!(submit(id(2), 1, Kind::OneWay), Ok(()));
    assert_eq!(submit(id(3), 1, Kind::OneWay), Err(Refused::Busy));
    host.cancel(Time::ZERO, HostId(1), id(1));
    let left = std::iter::from_fn(|| host.poll_transmit(Time::ZERO, 0));
    assert_eq!(left.map(|packet| packet.header.id.get()).collect::<Vec<_>>(), [id(2).0]);
}

#[test]
fn lengths_that_lie_are_thrown_away() {
    let config = Config { max_message_bytes: 1_000_000, ..Config::default() };
    let mut host = Host::new(HostId(0), config.into());
    let mut arrive =
        |length, offset, len| host.handle_packet(Time::ZERO, 0, &piece(1, length, offset, len));
    for (length, offset, len) in [
        (0, 0, 0),
        (0, 0, 100),
        (100, 0, 0),
        (100, 0, 99),
        (5_000, 100, FULL as u16),
        (5_000, FULL, FULL as u16 - 1),
        (100, FULL, 1),
        (1_000_001, 0, FULL as u16),
        (u32::MAX, u32::MAX - 1, 1),
    ] {
        assert_eq!(arrive(length, offset, len), Placement::Discard, "{length} {offset} {len}");
    }
    assert!(matches!(arrive(5_000, 0, FULL as u16), Placement::Store(_)));
    assert_eq!(arrive(6_000, FULL, FULL as u16), Placement::Discard, "another length");
    assert_eq!(arrive(5_000, 0, FULL as u16), Placement::Discard, "known");
    let mut response = piece(2, 100, 0, 100);
    response.header.id = Id64::new(id(2).response().0);
    assert_eq!(host.handle_packet(Time::ZERO, 0, &response), Placement::Discard, "no answers");
    let mut trimmed = piece(3, 100, 0, 100);
    trimmed.trim();
    assert_eq!(
        host.handle_packet(Time::ZERO, 0, &trimmed),
        Placement::Discard,
        "without its bytes"
    );
    assert_eq!(host.arriving.live(), 1);
}

#[test]
fn a_message_that_lost_a_packet_is_forgotten() {
    let mut network = network(&Config::default(), 2);
    network.lose = Some(|packet| packet.header.offset == FULL);
    network.submit(0, 1, id(1), 10_000, Kind::OneWay).unwrap();
    network.run_until(at(Span::from_us(30)));
    assert_eq!(network.hosts[1].arriving.live(), 1);
    assert!(network.run_until(at(Span::from_ms(11))));
    assert!(network.hosts.iter().all(Host::is_idle));
    let events: Vec<_> = network.events.iter().map(|(_, host, event)| (*host, *event)).collect();
    assert_eq!(events, [(HostId(0), Event::Sent { peer: HostId(1), id: id(1) })], "that is all");
}

#[test]
fn what_comes_again_is_not_delivered_again() {
    let mut network = network(&Config::default(), 2);
    network.submit(0, 1, id(1), 100, Kind::OneWay).unwrap();
    network.run_until(at(Span::from_ms(1)));
    let first = network.packets[0].1;
    for ms in [2, 100, 199] {
        network.run_until(at(Span::from_ms(ms)));
        network.inject(first);
        assert_eq!(delivered(&network, 1), 1);
    }
    assert!(network.hosts.iter().all(Host::is_idle));
}

#[test]
fn without_room_to_remember_nothing_new_begins() {
    let mut host = Host::new(HostId(0), Config { max_finished: 4, ..Config::default() }.into());
    let mut arrive = |ms, n| host.handle_packet(at(Span::from_ms(ms)), 0, &piece(n, 100, 0, 100));
    for n in 1..=4 {
        assert!(matches!(arrive(1, n), Placement::Store(_)));
    }
    assert_eq!(arrive(1, 5), Placement::Discard);
    // After 200 ms, and half as long again at most.
    assert!(matches!(arrive(302, 5), Placement::Store(_)));
}

proptest! {
    /// Whatever the network does: never twice, never in part (the kit checks both), and what no
    /// packet of was lost arrives.
    #[test]
    fn each_message_arrives_once_and_whole_or_not_at_all(
        seed: u64,
        (loss, duplication, reordering) in (0.0..0.3, 0.0..0.4, 0.0..0.9),
        longest in 1_u64..40_000,
        restarts: u8,
    ) {
        let faults = Faults { loss, duplication, reordering, lateness: Span::from_ms(3) };
        let config = Arc::new(Config::default());
        let hosts = (0..3).map(|id| Host::new(HostId(id), Arc::clone(&config))).collect();
        let mut network = Network::with_faults(hosts, LINK, Span::from_us(1), seed, faults);
        let mut rng = Rng::stream(seed, 0, 0, "datagrams");
        let mut submitted = BTreeSet::new();
        let (mut restarted, mut number) = ([false; 3], 0);
        for step in 0..8 {
            for _ in 0..4 {
                number += 1;
                let from = rng.below(3) as u32;
                let to = (from + 1 + rng.below(2) as u32) % 3;
                network.submit(from, to, id(number), 1 + rng.below(longest), Kind::OneWay).unwrap();
                submitted.insert((from, to, id(number)));
            }
            if restarts >> step & 1 == 1 && restarts & 0x11 == 0 {
                let host = rng.below(3) as u32;
                network.restart(host, Host::new(HostId(host), Config::default().into()));
                restarted[host as usize] = true;
            }
            network.run_until(network.now() + Span::from_us(rng.below(2_000)));
        }
        prop_assert!(network.run_until(Time::ZERO + Span::from_secs(1)), "it goes on and on");
        let (mut sent, mut arrived) = (BTreeSet::new(), BTreeSet::new());
        for &(_, host, event) in &network.events {
            match event {
                Event::Sent { peer, id } => prop_assert!(sent.insert((host.0, peer.0, id))),
                Event::Delivered { peer, id, kind, .. } => {
                    prop_assert_eq!(kind, Kind::OneWay);
                    let new = arrived.insert((peer.0, host.0, id));
                    prop_assert!(new || restarted[host.0 as usize]);
                }
                other => return Err(TestCaseError::fail(format!("{other:?}"))),
            }
        }
        prop_assert!(arrived.is_subset(&submitted) && sent.is_subset(&submitted));
        for message in &submitted {
            prop_assert!(sent.contains(message) || restarted[message.0 as usize]);
            if loss == 0.0 && restarted == [false; 3] {
                prop_assert!(arrived.contains(message));
            }
        }
        for host in &network.hosts {
            host.check_bounds();
            prop_assert!(host.is_idle());
        }
    }

    #[test]
    fn a_flood_of_lies_is_bounded_and_reclaimed(seed: u64, sources in 1_u64..1 << 30) {
        let (max_arriving, max_sending, max_finished, max_gaps) = (50, 20, 100, 8);
        let config =
            Config { max_arriving, max_sending, max_finished, max_gaps, ..Config::default() };
        let mut host = Host::new(HostId(0), Arc::new(config));
        let mut rng = Rng::stream(seed, 0, 0, "flood");
        let mut now = Time::ZERO;
        for n in 0..3_000 {
            now += Span::from_us(rng.below(30));
            if host.poll_timeout().is_some_and(|at| at <= now) {
                host.handle_timeout(now);
                assert!(host.poll_timeout().is_none_or(|at| at > now));
            }
            let length = match rng.below(3) {
                0 => 1 + rng.below(30_000) as u32,
                1 => FULL * rng.below(100_000) as u32,
                _ => u32::MAX - rng.below(3) as u32,
            };
            let offset = FULL.saturating_mul(rng.below(u64::from(length.div_ceil(FULL)) + 1) as u32);
            let right = FULL.min(length.saturating_sub(offset));
            let len = if rng.chance(0.9) { right as u16 } else { rng.next_u64() as u16 };
            let mut packet = piece(rng.below(200), length, offset, len);
            packet.src = HostId(1 + rng.below(sources) as u32);
            host.handle_packet(now, 0, &packet);
            if rng.chance(0.1) {
                let (peer, bytes, kind) = (HostId(9), 1 + rng.below(9_000), Kind::OneWay);
                let _ = host.submit(now, Submit { id: id(n), peer, bytes, kind });
            }
            for _ in 0..rng.below(2) {
                let _ = host.poll_transmit(now, 0);
            }
            while host.poll_event().is_some() {}
            host.check_bounds();
        }
        assert!(host.sending.live() <= max_sending && host.arriving.live() <= max_arriving);
        // Nobody goes on with any of it.
        while let Some(at) = host.poll_timeout() {
            now = now.max(at);
            host.handle_timeout(now);
        }
        assert_eq!(host.arriving.live(), 0);
        host.check_bounds();
    }
}

#[test]
fn a_spurious_timeout_does_nothing() {
    let mut network = network(&Config::default(), 2);
    network.submit(0, 1, id(1), 50_000, Kind::OneWay).unwrap();
    network.run_until(at(Span::from_us(20)));
    let before = format!("{:?}", network.hosts);
    for host in &mut network.hosts {
        assert!(host.poll_timeout().is_none_or(|timeout| timeout > at(Span::from_us(20))));
        host.handle_timeout(at(Span::from_us(20)));
    }
    assert_eq!(before, format!("{:?}", network.hosts));
}

#[test]
fn what_makes_no_sense_is_said() {
    let wrong = |change: fn(&mut Config)| {
        let mut config = Config::default();
        change(&mut config);
        config.check().unwrap_err().to_string()
    };
    assert_eq!(wrong(|c| c.forget_after = Span::ZERO), "forget_after must be above zero");
    assert_eq!(wrong(|c| c.max_payload = 65_000), "a packet of 65044 bytes is longer than 65000");
    assert_eq!(wrong(|c| c.priority = 8), "priority 8 is above 7");
}
