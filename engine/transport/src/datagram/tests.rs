//! Tests of whole hosts.

use std::sync::Arc;

use rackweave_core::{
    Event, HostId, Kind, Node as _, Packet, Placement, Rate, Rng, Slice, Span, Submit, Time,
    Transport,
};
use rackweave_wire::Id64;
use rackweave_wire::datagram::Header;

use super::{Config, Host};
use crate::tests::Network;
use crate::tests::suite::{Expect, Limits, Subject, at, id, transport_suite};

const LINK: Rate = Rate::from_gbps(10);
/// Payload bytes of a full packet.
const FULL: u32 = 1_456;

struct Datagram;

transport_suite!(Datagram);

impl Subject for Datagram {
    type Config = Config;
    type Host = Host;

    const EXPECT: Expect = Expect { requests: false, repairs: false, ..Expect::RELIABLE };

    fn variants() -> Vec<Config> {
        vec![Config::default()]
    }

    fn limited(config: Config, limits: &Limits) -> Config {
        Config {
            max_sending: limits.live,
            max_arriving: limits.live,
            max_finished: limits.finished,
            max_gaps: limits.gaps,
            max_message_bytes: limits.message_bytes,
            ..config
        }
    }

    fn host(id: HostId, config: &Arc<Config>) -> Host {
        Host::new(id, Arc::clone(config))
    }

    fn check(host: &Host, limits: Option<&Limits>) {
        host.check_bounds();
        let most = limits.map_or(u32::MAX, |limits| limits.live);
        assert!(host.sending.live() <= most && host.arriving.live() <= most);
    }

    fn is_idle(host: &Host) -> bool {
        host.is_idle()
    }

    fn held(host: &Host) -> usize {
        (host.sending.live() + host.arriving.live()) as usize
    }

    fn quiet_after(_config: &Config) -> Span {
        Span::from_secs(1)
    }

    fn forge(rng: &mut Rng, from: HostId) -> Packet<Header> {
        let length = match rng.below(3) {
            0 => 1 + rng.below(30_000) as u32,
            1 => FULL * rng.below(100_000) as u32,
            _ => u32::MAX - rng.below(3) as u32,
        };
        let offset = FULL.saturating_mul(rng.below(u64::from(length.div_ceil(FULL)) + 1) as u32);
        let right = FULL.min(length.saturating_sub(offset));
        let len = if rng.chance(0.9) { right as u16 } else { rng.next_u64() as u16 };
        let mut packet = piece(rng.below(200), length, offset, len);
        packet.src = from;
        packet
    }

    fn back_to_back() -> (Vec<Config>, [Span; 3], Vec<u64>) {
        let sizes = vec![1, 100, 1_456, 1_457, 9_329, 50_000, 999_999];
        (Self::variants(), [Span::ZERO, Span::from_us(2), Span::from_us(20)], sizes)
    }
}

fn network(config: &Config, hosts: u32) -> Network<Host> {
    config.check().expect("a sound configuration");
    let config = Arc::new(config.clone());
    let hosts = (0..hosts).map(|id| Host::new(HostId(id), Arc::clone(&config))).collect();
    let mut network = Network::new(hosts, LINK, Span::from_us(1));
    network.keep_packets = true;
    network
}

fn piece(n: u64, message_length: u32, offset: u32, len: u16) -> Packet<Header> {
    let header = Header { id: Id64::new(id(n).0), message_length, offset, len };
    Packet::new(HostId(1), HostId(0), 100, header)
}

fn delivered(network: &Network<Host>, to: u32) -> usize {
    network.events_at(to).filter(|event| matches!(event, Event::Delivered { .. })).count()
}

#[test]
fn a_message_is_sent_at_line_rate_and_nothing_is_returned() {
    let mut network = network(&Config { priority: 3, ..Config::default() }, 2);
    for n in 1..=2 {
        network.submit(0, 1, id(n), 3_000, Kind::OneWay).unwrap();
    }
    network.run_until(at(Span::from_ms(1)));
    let packets: Vec<_> =
        network.packets.iter().map(|(at, packet)| (at.ticks(), *packet)).collect();
    let pieces = packets.iter().map(|(_, packet)| packet.header.payload());
    let of = |n, offset, len| Slice { message: id(n), offset, len };
    let whole = |n| [of(n, 0, FULL), of(n, FULL, FULL), of(n, 2 * FULL, 88)];
    assert!(pieces.eq([whole(1), whole(2)].concat()), "first come, first served");
    let full = LINK.span_of(1538).ticks();
    let rest = LINK.span_of(u64::from(rackweave_core::frame::wire_bytes(88 + 44))).ticks();
    let starts = [0, full, 2 * full, 2 * full + rest, 3 * full + rest, 4 * full + rest];
    assert!(packets.iter().map(|(at, _)| *at).eq(starts), "back to back");
    assert!(packets.iter().all(|(_, packet)| packet.src == HostId(0) && packet.priority == 3));
    let last_left = 2 * full;
    let sent = network.events.iter().find(|(_, _, event)| matches!(event, Event::Sent { .. }));
    let sent = sent.unwrap().0.ticks();
    assert!((last_left..=last_left + rest).contains(&sent), "when the last packet leaves: {sent}");
    assert_eq!(delivered(&network, 1), 2);
    assert!(network.hosts.iter().all(Host::is_idle));
}

#[test]
fn a_cancelled_message_is_not_sent() {
    let mut host = Host::new(HostId(0), Config::default().into());
    for n in [1, 2] {
        let message = Submit { id: id(n), peer: HostId(1), bytes: 1, kind: Kind::OneWay };
        host.submit(Time::ZERO, message).unwrap();
    }
    host.cancel(Time::ZERO, HostId(1), id(1));
    let left = std::iter::from_fn(|| host.poll_transmit(Time::ZERO, 0));
    assert_eq!(left.map(|packet| packet.header.id.get()).collect::<Vec<_>>(), [id(2).0]);
}

#[test]
fn contradictory_lengths_are_discarded() {
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
    network.run_until(at(Span::from_ms(11)));
    assert!(network.hosts.iter().all(Host::is_idle));
    assert!(
        network.run_until(at(Span::from_ms(26))),
        "the last check of the link was the last event"
    );
    let events: Vec<_> = network.events.iter().map(|(_, host, event)| (*host, *event)).collect();
    assert_eq!(events, [(HostId(0), Event::Sent { peer: HostId(1), id: id(1) })], "that is all");
}

#[test]
fn duplicates_are_not_delivered() {
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
fn without_room_to_remember_nothing_new_starts() {
    let mut host = Host::new(HostId(0), Config { max_finished: 4, ..Config::default() }.into());
    let mut arrive = |ms, n| host.handle_packet(at(Span::from_ms(ms)), 0, &piece(n, 100, 0, 100));
    for n in 1..=4 {
        assert!(matches!(arrive(1, n), Placement::Store(_)));
    }
    assert_eq!(arrive(1, 5), Placement::Discard);
    // It is forgotten after 200 ms, or at most half of that later.
    assert!(matches!(arrive(302, 5), Placement::Store(_)));
}

#[test]
fn invalid_parameters_are_refused() {
    let wrong = |change: fn(&mut Config)| {
        let mut config = Config::default();
        change(&mut config);
        config.check().unwrap_err().to_string()
    };
    assert_eq!(wrong(|c| c.forget_after = Span::ZERO), "forget_after must be above zero");
    assert_eq!(wrong(|c| c.max_payload = 65_000), "a packet of 65044 bytes is longer than 65000");
    assert_eq!(wrong(|c| c.priority = 8), "priority 8 is above 7");
}
