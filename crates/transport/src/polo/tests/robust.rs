//! Packets that lie, floods, and things that come twice.

use proptest::prelude::*;
use rackweave_core::{
    Event, Kind, MessageId, Node as _, Placement, Refused, Rng, Span, Submit, Time, Transport,
};
use rackweave_wire::Id64;
use rackweave_wire::polo::{Body, Header};

use super::{Config, Host, HostId, at, data, events, id, network, packet, submit, trace};

fn slides() -> Config {
    Config::slides()
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let config = Config { max_exchanges: 2, max_message_bytes: 1_000_000, ..slides() };
    let mut host = Host::new(HostId(0), config.into());
    let mut submit = |n: MessageId, bytes, kind| {
        host.submit(Time::ZERO, Submit { id: n, peer: HostId(1), bytes, kind })
    };
    assert_eq!(submit(id(1), 0, Kind::OneWay), Err(Refused::Empty));
    let too_long = Err(Refused::TooLong { max: 1_000_000 });
    assert_eq!(submit(id(1), 1_000_001, Kind::OneWay), too_long);
    assert_eq!(submit(id(1), 1, Kind::Response), Err(Refused::WrongId));
    assert_eq!(submit(id(1).response(), 1, Kind::Request), Err(Refused::WrongId));
    assert_eq!(submit(id(1).response(), 1, Kind::Response), Err(Refused::UnknownRequest));
    assert_eq!(submit(id(1), 1, Kind::OneWay), Ok(()));
    assert_eq!(submit(id(1), 1, Kind::Request), Err(Refused::DuplicateId));
    assert_eq!(submit(id(2), 1, Kind::Request), Ok(()));
    assert_eq!(submit(id(3), 1, Kind::Request), Err(Refused::Busy));
}

#[test]
fn a_packet_that_comes_again_after_the_end_is_acknowledged() {
    for kind in [Kind::OneWay, Kind::Request] {
        let mut network = network(&slides(), 2, Span::from_us(1));
        submit(&mut network, 0, 1, 1, 100, kind);
        network.run_until(at(Span::from_ms(10)));
        let first = network.packets[0].1;
        network.packets.clear();
        network.events.clear();
        network.run_until(at(Span::from_ms(150)));
        network.inject(first);
        assert!(network.run_until(at(Span::from_ms(155))));
        assert_eq!(trace(&mut network), ["h1>h0 p7 COMPLETE 1"]);
        assert_eq!(events(&mut network), [""; 0]);
        assert!(network.hosts.iter().all(Host::is_idle));
    }
}

#[test]
fn without_room_to_remember_nothing_new_begins() {
    let config = Config { max_finished: 4, ..slides() };
    let mut network = network(&config, 2, Span::from_us(1));
    for n in 1..=4 {
        submit(&mut network, 0, 1, n, 100, Kind::OneWay);
    }
    network.run_until(at(Span::from_ms(1)));
    assert_eq!(events(&mut network).len(), 8);
    submit(&mut network, 0, 1, 5, 100, Kind::OneWay);
    network.run_until(at(Span::from_ms(50)));
    assert_eq!(events(&mut network), [""; 0]);
    // The first four are forgotten after a second and half of one at most; a sender tries for less long.
    network.run_until(at(Span::from_ms(1_020)));
    assert_eq!(events(&mut network), ["h0: 5 with h1 failed: peer silent"]);
    network.run_until(at(Span::from_ms(1_550)));
    submit(&mut network, 0, 1, 6, 100, Kind::OneWay);
    network.run_until(at(Span::from_ms(1_560)));
    assert_eq!(events(&mut network).len(), 2);
}

#[test]
fn lengths_that_lie_are_thrown_away() {
    let config = Config { max_message_bytes: 1_000_000, ..slides() };
    let mut host = Host::new(HostId(0), config.into());
    let mut arrive =
        |length, offset, len| host.handle_packet(Time::ZERO, 0, &data(id(1), length, offset, len));
    assert_eq!(arrive(100, 0, 0), Placement::Discard);
    assert_eq!(arrive(0, 0, 100), Placement::Discard);
    assert_eq!(arrive(0, 0, 0), Placement::Discard);
    assert_eq!(arrive(100, 0, 99), Placement::Discard);
    assert_eq!(arrive(5_000, 100, 1_460), Placement::Discard, "not at a packet's start");
    assert_eq!(arrive(5_000, 1_460, 1_459), Placement::Discard);
    assert_eq!(arrive(100, 1_460, 1), Placement::Discard);
    assert_eq!(arrive(1_000_001, 0, 1_460), Placement::Discard);
    assert!(matches!(arrive(5_000, 0, 1_460), Placement::Store(_)));
    assert_eq!(arrive(6_000, 1_460, 1_460), Placement::Discard, "another length");
    assert_eq!(arrive(5_000, 0, 1_460), Placement::Discard, "known");
    assert!(matches!(arrive(5_000, 4_380, 620), Placement::Store(_)));
    assert_eq!(host.exchanges_under_way(), 1);
    let response = data(MessageId(3), 100, 0, 100);
    assert_eq!(host.handle_packet(Time::ZERO, 0, &response), Placement::Discard, "no such request");
    assert_eq!(host.exchanges_under_way(), 1);
}

#[test]
fn a_marked_copy_that_comes_late_pauses_no_later_flow() {
    let mut host = Host::new(HostId(0), slides().into());
    let arrive = |host: &mut Host, n, length: u32, marked: bool| {
        let len = length.min(1_460) as u16;
        let ecn = if marked { rackweave_core::Ecn::Marked } else { rackweave_core::Ecn::Capable };
        host.handle_packet(Time::ZERO, 0, &data(id(n), length, 0, len).with_ecn(ecn));
    };
    arrive(&mut host, 1, 100, false);
    arrive(&mut host, 1, 100, true);
    for n in 2..=5 {
        arrive(&mut host, n, 100_000, false);
    }
    assert!(host.scheme.inactive.is_empty());
    // While there are flows, a mark pauses the next ones, whose ever it is.
    arrive(&mut host, 1, 100, true);
    arrive(&mut host, 6, 100_000, false);
    assert!(!host.scheme.inactive.is_empty());
}

fn forge(network: &mut super::Network<Host>, body: Body) {
    network.inject(packet(1, 0, Header { id: Id64::new(id(1).0), one_way: true, body }));
}

/// A flood of driving packets sends each packet once, a window at a time; of loss packets, 64 are kept.
#[test]
fn forged_driving_and_loss_packets_are_bounded() {
    let mut network = network(&slides(), 2, Span::from_us(1));
    network.set_down(1, true);
    submit(&mut network, 0, 1, 1, 1_000 * 1_460, Kind::OneWay);
    network.run_until(at(Span::from_us(100)));
    assert_eq!(network.packets.len(), 12 + 1, "the first window and the adjoint packet");
    forge(&mut network, Body::Drive { upto: u32::MAX });
    network.run_until(at(Span::from_us(200)));
    assert_eq!(network.packets.len(), 13 + 48, "no more than D can be");
    for n in 0..200 {
        forge(&mut network, Body::Drive { upto: u32::MAX - n });
        network.run_until(network.now() + Span::from_us(100));
    }
    let data = network.packets.iter().filter(|(_, packet)| packet.payload().is_some()).count();
    assert_eq!(data, 1_000, "each packet once");
    for n in 0..10_000 {
        forge(&mut network, Body::Loss { first: n % 1_000, count: u16::MAX });
    }
    network.hosts[0].check_bounds();
    network.packets.clear();
    network.run_until(network.now() + Span::from_ms(10));
    let again = network.packets.iter().filter(|(_, packet)| packet.payload().is_some()).count();
    assert!(again <= 65 * 48, "{again}");
}

/// A flood of adjoint packets brings an answer each, and ends no epoch but the present one.
#[test]
fn forged_adjoint_packets_are_bounded() {
    let mut network = network(&slides(), 2, Span::from_us(1));
    network.set_down(1, true);
    let adjoint = |epoch, timeout| Body::Adjoint {
        message_length: 100_000,
        sent: u32::MAX,
        epoch,
        window: u16::MAX,
        timeout,
    };
    for n in 0..10_000 {
        forge(&mut network, adjoint(n, n % 3 == 0));
    }
    assert_eq!(network.hosts[0].exchanges_under_way(), 1);
    network.hosts[0].check_bounds();
    assert!(network.hosts[0].scheme.drives.d() <= 48);
    // And of acknowledgements, an adjoint packet each.
    submit(&mut network, 0, 1, 2, 1_460, Kind::OneWay);
    for n in 0..10_000 {
        let body = Body::AdjointAck { epoch: n, paused: n % 2 == 0, tick: true };
        network.inject(packet(1, 0, Header { id: Id64::new(id(2).0), one_way: true, body }));
        network.hosts[0].check_bounds();
    }
    assert!(network.run_until(at(Span::from_secs(3))));
    assert!(network.hosts[0].is_idle());
}

#[test]
fn what_a_silent_peer_began_is_forgotten() {
    let mut network = network(&slides(), 2, Span::from_us(1));
    network.set_down(1, true);
    for n in 0..100 {
        network.inject(data(id(n), 100_000, 1_460 * (n as u32 % 5), 1_460));
    }
    assert_eq!(network.hosts[0].exchanges_under_way(), 100);
    assert!(network.run_until(at(slides().patience + Span::from_ms(1))));
    assert_eq!(network.hosts[0].exchanges_under_way(), 0);
    network.hosts[0].check_bounds();
    // The application never heard of them.
    assert_eq!(events(&mut network), [""; 0]);
}

#[test]
fn control_packets_that_wait_are_limited() {
    let mut host = Host::new(HostId(0), Config { max_control: 10, ..slides() }.into());
    for n in 0..1_000 {
        let header = Header { id: Id64::new(2 * n), one_way: true, body: Body::Ask };
        host.handle_packet(Time::ZERO, 0, &packet(1, 0, header));
    }
    host.check_bounds();
    assert_eq!(std::iter::from_fn(|| host.poll_transmit(Time::ZERO, 0)).count(), 10);
}

fn any_packet(rng: &mut Rng, from: u32) -> super::Packet<Header> {
    // Small numbers meet state, large ones overflow.
    let number = |rng: &mut Rng| match rng.below(4) {
        0 => rng.below(40) as u32,
        1 => 1_460 * rng.below(20) as u32,
        2 => rng.below(3_000_000) as u32,
        _ => u32::MAX - rng.below(3) as u32,
    };
    let any_id = |rng: &mut Rng| match rng.below(8) {
        0 => rng.next_u64(),
        _ => rng.below(40),
    };
    let body = match rng.below(14) {
        0 => Body::Adjoint {
            message_length: number(rng),
            sent: number(rng),
            epoch: rng.below(5) as u32,
            window: rng.next_u64() as u16,
            timeout: rng.chance(0.3),
        },
        1 => {
            Body::AdjointAck { epoch: number(rng), paused: rng.chance(0.5), tick: rng.chance(0.5) }
        }
        2 => Body::Drive { upto: number(rng) },
        3 => Body::Loss { first: number(rng), count: number(rng) as u16 },
        4 => Body::Complete,
        5 => Body::Ask,
        6 => Body::Unknown,
        _ => Body::Data {
            message_length: number(rng),
            offset: number(rng),
            len: if rng.chance(0.8) { 1_460 } else { rng.below(1_461) as u16 },
            window: rng.next_u64() as u16,
            driven: rng.chance(0.5),
            again: rng.chance(0.2),
        },
    };
    let header = Header { id: Id64::new(any_id(rng)), one_way: rng.chance(0.5), body };
    let mut packet = packet(from, 0, header);
    if rng.chance(0.3) {
        packet.mark();
    }
    packet
}

/// Feeds a host with lies, and its applications with work.
fn flood(config: Config, seed: u64, packets: u32, sources: u64) {
    let mut rng = Rng::stream(seed, 0, 0, "flood");
    let mut host = Host::new(HostId(0), config.into());
    let mut now = Time::ZERO;
    let mut next_id = 0;
    for _ in 0..packets {
        now += Span::from_us(rng.below(300));
        if host.poll_timeout().is_some_and(|at| at <= now) {
            host.handle_timeout(now);
            assert!(host.poll_timeout().is_none_or(|at| at > now));
        }
        if rng.chance(0.05) {
            next_id += 1;
            let (peer, bytes) = (HostId(1 + rng.below(sources) as u32), 1 + rng.below(50_000));
            let kind = if rng.chance(0.5) { Kind::Request } else { Kind::OneWay };
            let _ = host.submit(now, Submit { id: id(next_id % 20), peer, bytes, kind });
        }
        let from = 1 + rng.below(sources) as u32;
        host.handle_packet(now, 0, &any_packet(&mut rng, from));
        if rng.chance(0.02) {
            host.check_bounds();
        }
        while let Some(event) = host.poll_event() {
            if let Event::Delivered { peer, id, kind: Kind::Request, .. } = event
                && rng.chance(0.5)
            {
                let bytes = 1 + rng.below(50_000);
                let response = Submit { id: id.response(), peer, bytes, kind: Kind::Response };
                host.submit(now, response).expect("the request is in service");
            }
        }
        for _ in 0..rng.below(3) {
            let _ = host.poll_transmit(now, 0);
        }
    }
    host.check_bounds();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn lies_do_no_harm(seed: u64) {
        let mut config = Config::slides();
        config.max_payload = 1_460;
        config.max_exchanges = 30;
        config.max_control = 50;
        config.max_finished = 20;
        config.max_gaps = 10;
        flood(config, seed, 3_000, 5);
    }
}

#[test]
fn a_flood_from_everywhere_is_bounded() {
    let config = Config { max_exchanges: 100, max_control: 50, max_finished: 100, ..slides() };
    flood(config, 1, 60_000, 1 << 30);
}

#[test]
fn timers_stop_and_a_spurious_timeout_does_nothing() {
    let mut network = network(&slides(), 2, Span::from_us(1));
    submit(&mut network, 0, 1, 1, 50_000, Kind::Request);
    network.run_until(at(Span::from_us(20)));
    let before = format!("{:?}", network.hosts);
    for host in &mut network.hosts {
        assert!(host.poll_timeout().is_none_or(|timeout| timeout > at(Span::from_us(20))));
        host.handle_timeout(at(Span::from_us(20)));
    }
    assert_eq!(before, format!("{:?}", network.hosts));
    assert!(network.run_until(at(Span::from_ms(400))));
    assert!(network.hosts.iter().all(|host| host.poll_timeout().is_none()));
}
