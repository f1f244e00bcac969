//! Forged packets of Polo's own types, and marks that come late.

use rackweave_core::{Ecn, HostId, Kind, Node as _, Span, Time};
use rackweave_wire::polo::Body;

use super::{Config, DrivenSubject as _, Polo};
use crate::polo::Host;
use crate::tests::Network;
use crate::tests::driven::forged;
use crate::tests::suite::{at, id, network, submit};

#[test]
fn a_late_marked_duplicate_pauses_no_later_flow() {
    let mut host = Host::new(HostId(0), Config::slides().into());
    let arrive = |host: &mut Host, n, length: u32, marked: bool| {
        let len = length.min(1_460) as u16;
        let ecn = if marked { Ecn::Marked } else { Ecn::Capable };
        let packet = forged::<Polo>(id(n), Polo::data(length, 0, len)).with_ecn(ecn);
        let _ = host.handle_packet(Time::ZERO, 0, &packet);
    };
    arrive(&mut host, 1, 100, false);
    arrive(&mut host, 1, 100, true);
    for n in 2..=5 {
        arrive(&mut host, n, 100_000, false);
    }
    assert!(host.scheme.inactive.is_empty());
    // While there are flows, a mark of any flow pauses the next ones.
    arrive(&mut host, 1, 100, true);
    arrive(&mut host, 6, 100_000, false);
    assert!(!host.scheme.inactive.is_empty());
}

fn forge(network: &mut Network<Host>, n: u64, body: Body) {
    network.inject(forged::<Polo>(id(n), body).with_ecn(Ecn::Capable));
}

/// A flood of driving packets sends each packet once, a window at a time; 64 loss packets are stored.
#[test]
fn forged_driving_and_loss_packets_are_bounded() {
    let mut network = network::<Polo>(&Config::slides(), 2, Span::from_us(1));
    network.set_down(1, true);
    submit(&mut network, 0, 1, 1, 1_000 * 1_460, Kind::OneWay);
    network.run_until(at(Span::from_us(100)));
    assert_eq!(network.packets.len(), 12 + 1, "the first window and the adjoint packet");
    forge(&mut network, 1, Body::Drive { upto: u32::MAX });
    network.run_until(at(Span::from_us(200)));
    assert_eq!(network.packets.len(), 13 + 48, "no more than D can be");
    for n in 0..200 {
        forge(&mut network, 1, Body::Drive { upto: u32::MAX - n });
        network.run_until(network.now() + Span::from_us(100));
    }
    let data = network.packets.iter().filter(|(_, packet)| packet.payload().is_some()).count();
    assert_eq!(data, 1_000, "each packet once");
    for n in 0..10_000 {
        forge(&mut network, 1, Body::Loss { first: n % 1_000, count: u16::MAX });
    }
    network.hosts[0].check_bounds();
    network.packets.clear();
    network.run_until(network.now() + Span::from_ms(10));
    let resent = network.packets.iter().filter(|(_, packet)| packet.payload().is_some()).count();
    assert!(resent <= 65 * 48, "{resent}");
}

/// A flood of adjoint packets triggers one answer each, and ends no epoch except the current one.
#[test]
fn forged_adjoint_packets_are_bounded() {
    let mut network = network::<Polo>(&Config::slides(), 2, Span::from_us(1));
    network.set_down(1, true);
    let adjoint = |epoch, timeout| Body::Adjoint {
        message_length: 100_000,
        sent: u32::MAX,
        epoch,
        window: u16::MAX,
        timeout,
    };
    for n in 0..10_000 {
        forge(&mut network, 1, adjoint(n, n % 3 == 0));
    }
    assert_eq!(network.hosts[0].exchanges_under_way(), 1);
    network.hosts[0].check_bounds();
    assert!(network.hosts[0].scheme.drives.d() <= 48);
    // Each of a flood of acknowledgements triggers one adjoint packet.
    submit(&mut network, 0, 1, 2, 1_460, Kind::OneWay);
    for n in 0..10_000 {
        let body = Body::AdjointAck { epoch: n, paused: n % 2 == 0, tick: true };
        forge(&mut network, 2, body);
        network.hosts[0].check_bounds();
    }
    assert!(network.run_until(at(Span::from_secs(3))));
    assert!(network.hosts[0].is_idle());
}

/// A packet that counted as lost and arrives after it was requested again, and its copies, permit one packet in all.
#[test]
fn late_packets_and_their_copies_do_not_exceed_d() {
    let config = Config { first_window: 1, max_drives: 1, recovery_2: false, ..Config::slides() };
    let mut host = Host::new(HostId(0), config.into());
    let requests = |host: &mut Host, now| {
        let mut requests = Vec::new();
        while let Some(packet) = host.poll_transmit(now, 0) {
            if matches!(packet.header.body, Body::Drive { .. } | Body::Loss { .. }) {
                requests.push(Polo::line(&packet));
            }
        }
        requests
    };
    let arrive = |host: &mut Host, now, number: u32, retransmit| {
        let (message_length, offset, driven) = (100 * 1_460, number * 1_460, number > 0);
        let body = Body::Data { message_length, offset, len: 1_460, window: 1, driven, retransmit };
        let _ = host.handle_packet(now, 0, &forged::<Polo>(id(1), body).with_ecn(Ecn::Capable));
        host.check_bounds();
    };
    let (start, late) = (at(Span::from_us(10)), at(Span::from_us(1_010)));
    arrive(&mut host, start, 0, false);
    assert_eq!(requests(&mut host, start), ["h0>h1 p7 DRIVE 1 upto 2"]);
    host.handle_timeout(late);
    assert_eq!(requests(&mut host, late), ["h0>h1 p7 LOSS 1 1 +1"]);
    arrive(&mut host, late, 1, false);
    assert_eq!(requests(&mut host, late), ["h0>h1 p7 DRIVE 1 upto 3"]);
    for retransmit in [true, true, false] {
        arrive(&mut host, late, 1, retransmit);
        assert_eq!(requests(&mut host, late), [""; 0]);
    }
    arrive(&mut host, late, 2, false);
    assert_eq!(requests(&mut host, late), ["h0>h1 p7 DRIVE 1 upto 4"]);
}
