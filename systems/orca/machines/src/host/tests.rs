use rackweave_core::Span;
use rackweave_switch::config::{Fault, FaultKind, FaultPlace};

use super::*;
use crate::harness::{Network, always, config};
use crate::label::tests::{leaf_spine, single};

const LENGTH: u64 = 3_000_000;

/// Sends from one host to all others. Returns the time that it takes and the bytes that the sender's link carries.
fn transfer(spread: Spread, faults: &[Fault]) -> (Span, u64) {
    let mut net = Network::new(single(6), 1, faults);
    net.open(0, 9, &[1, 2, 3, 4, 5], spread, FlowConfig::default(), LENGTH);
    let took = net.run_for(Span::from_secs(20), |net| net.is_finished(0, 9));
    for host in 1..6 {
        assert!(net.has_whole(host, 9, LENGTH), "{}", net.state());
    }
    net.run_until(net.now() + Span::from_secs(10));
    for station in net.stations() {
        assert!(station.host.is_idle());
        assert_eq!(station.host.poll_timeout(), None, "nothing is left to do");
    }
    (took, net.sent_by(0))
}

#[test]
fn every_way_brings_every_byte() {
    for spread in [Spread::Relay, Spread::Multicast, Spread::Unicast] {
        let (took, bytes) = transfer(spread, &[]);
        println!("{spread:?}: {took}, {bytes} bytes");
        let copies = if spread == Spread::Unicast { 5 } else { 1 };
        assert!(bytes >= LENGTH * copies);
        assert!(bytes < LENGTH * copies * 3 / 2, "{spread:?}: {bytes}");
    }
}

#[test]
fn losses_are_repaired() {
    let late = FaultKind::Reordering { probability: 0.1, delay: Span::from_us(300) };
    let kinds = [FaultKind::Loss(0.02), FaultKind::Duplication(0.05), late];
    let faults = kinds.map(|kind| always(FaultPlace::AllLinks, kind));
    for spread in [Spread::Relay, Spread::Multicast, Spread::Unicast] {
        let (took, bytes) = transfer(spread, &faults);
        println!("{spread:?}: {took}, {bytes} bytes");
    }
}

#[test]
fn relays_of_two_racks() {
    let mut net = Network::new(leaf_spine(3, 4, 2), 1, &[]);
    net.open(0, 9, &[4, 5, 6, 8, 9, 11], Spread::Relay, FlowConfig::default(), LENGTH);
    net.run_for(Span::from_secs(20), |net| net.is_finished(0, 9));
    let sent = net.sent_by(0);
    assert!((2 * LENGTH..3 * LENGTH).contains(&sent), "a copy for each rack: {sent}");
}

#[test]
fn a_relay_dies_and_the_others_go_on() {
    let mut net = Network::new(single(6), 1, &[]);
    net.open(0, 9, &[1, 2, 3, 4, 5], Spread::Relay, FlowConfig::default(), 6 * LENGTH);
    net.run_until(Time::ZERO + Span::from_ms(4));
    net.crash(1, true);
    net.run_for(Span::from_secs(30), |net| net.is_finished(0, 9));
    for host in 2..6 {
        assert!(net.has_whole(host, 9, 6 * LENGTH), "{}", net.state());
    }
}

/// Replicate and Merge: data for everyone leaves once by each port; answers arrive at either.
#[test]
fn two_ports_carry_the_same() {
    let layout = Arc::new(Layout::flat(4));
    let mut host = Host::new(HostConfig { ports: 2, ..config(0, &layout) });
    let (session, now) = (Session(9), Time::ZERO);
    let receivers = [HostId(1), HostId(2)];
    host.open(now, session, 7, &receivers, Spread::Multicast, FlowConfig::default())
        .expect("opens");
    host.offer(now, session, LENGTH);
    let invited: Vec<_> = (0..2).map(|port| poll_all(&mut host, now, port).len()).collect();
    assert_eq!(invited, [2, 2], "no port is known yet");
    for (port, from) in [(0, 1), (1, 2)] {
        let place = layout.place(HostId(from));
        let body = Body::Join { incarnation: 1, stream: 7, place, at: 0, limit: 1 << 20 };
        let control = Control { from: HostId(from), to: HostId(0), session, body };
        let said = packet(HostId(from), HostId(0), 1, Header::Control(control));
        let _ = host.handle_packet(now, port, &said);
    }
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        left.extend(poll_all(&mut host, now, 0));
        right.extend(poll_all(&mut host, now, 1));
    }
    let data = |packets: &[Packet<Header>]| -> Vec<u64> {
        packets
            .iter()
            .filter_map(|packet| match packet.header {
                Header::Data(data) => Some(data.offset),
                Header::Control(_) => None,
            })
            .collect()
    };
    assert!(data(&left).len() > 10);
    assert_eq!(data(&left), data(&right));
    let to = |packets: &[Packet<Header>], host: u32| packets.iter().any(|p| p.dst == HostId(host));
    assert!(!to(&left, 2) && !to(&right, 1), "each is answered by the port at which it arrived");
}

/// Two ports in connected racks: each port's label names the racks next to it, and together they name all.
#[test]
fn two_ports_split_the_racks() {
    let layout = Arc::new(Layout::tree(3, 4, 4, 2, 2).expect("labels"));
    // The ports are in rack 0 of the first pod and in rack 5 of the second.
    let places = [HostId(0), HostId(20)];
    let config = HostConfig { ports: 2, ..config(0, &layout) };
    let mut host = Host::new(config).with_places(places.to_vec());
    let racks = [0, 1, 5, 6, 9];
    let label = layout.pilot(places[0], racks.into_iter(), 9);
    let data = Data {
        labelled: Labelled::Pilot,
        label,
        session: Session(9),
        offset: 0,
        len: 100,
        repair: false,
        end: false,
        parity: None,
    };
    host.send_data(None, data);
    let now = Time::ZERO;
    let reached: Vec<Vec<u16>> = (0..2)
        .map(|port| {
            let packets = poll_all(&mut host, now, port);
            let labels = packets.iter().filter_map(|packet| match packet.header {
                Header::Data(data) => Some(data.label),
                Header::Control(_) => None,
            });
            labels.flat_map(|label| layout.racks_of(places[usize::from(port)], label)).collect()
        })
        .collect();
    let all: Vec<u16> = layout.racks_of(places[0], label).collect();
    assert!(racks.iter().all(|rack| all.contains(rack)));
    let mut both = reached.concat();
    both.sort_unstable();
    assert_eq!(both, all, "each rack once");
    assert!(reached[0].iter().all(|rack| *rack < 4 || *rack >= 8), "{reached:?}");
    assert!(reached[1].iter().all(|rack| (4..8).contains(rack)), "{reached:?}");
    // For racks of one pod only, nothing leaves by the other port.
    let label = layout.pilot(places[0], [5, 6].into_iter(), 9);
    host.send_data(None, Data { label, ..data });
    assert_eq!([0, 1].map(|port| poll_all(&mut host, now, port).len()), [0, 1]);
}

fn poll_all(host: &mut Host, now: Time, port: u8) -> Vec<Packet<Header>> {
    std::iter::from_fn(|| host.poll_transmit(now, port)).take(1000).collect()
}

/// An invitation that the application has not answered: each repetition is answered, it can be refused by leaving, and the sender can
/// withdraw it.
#[test]
fn a_pending_invitation_is_answered_left_and_withdrawn() {
    let layout = Arc::new(Layout::flat(4));
    let (session, now) = (Session(9), Time::ZERO);
    let said = |from: u32, body| {
        let control = Control { from: HostId(from), to: HostId(1), session, body };
        packet(HostId(from), HostId(1), 1, Header::Control(control))
    };
    let invite =
        Body::Invite { stream: 7, place: layout.place(HostId(1)), payload: 1400, via_agent: false };
    let answers = |host: &mut Host| -> Vec<(HostId, Body)> {
        let packets = poll_all(host, now + Span::from_secs(1), 0);
        let controls = packets.into_iter().filter_map(|packet| match packet.header {
            Header::Control(control) => Some((packet.dst, control.body)),
            Header::Data(_) => None,
        });
        controls.collect()
    };
    let invited = || {
        let mut host = Host::new(config(1, &layout));
        let _ = host.handle_packet(now, 0, &said(0, invite));
        assert!(matches!(host.poll_event(), Some(Event::Invited { .. })));
        assert_eq!(answers(&mut host), []);
        host
    };
    let bytes = |body| u64::from(said(0, body).wire_bytes);
    assert!(bytes(Body::Preparing) <= bytes(invite), "nothing is amplified");

    let mut host = invited();
    let later = now + Span::from_ms(500);
    let _ = host.handle_packet(later, 0, &said(0, invite));
    let _ = host.handle_packet(later, 0, &said(2, invite));
    assert_eq!(
        answers(&mut host),
        [(HostId(0), Body::Preparing)],
        "the other did not invite first"
    );
    assert_eq!((host.poll_event(), host.last_heard(session)), (None, Some(later)));
    assert!(host.join(later, session, 0, 1 << 20));
    assert!(matches!(answers(&mut host)[..], [(HostId(0), Body::Join { .. })]));

    let mut host = invited();
    host.leave(now, session, Reason::Left);
    assert_eq!(answers(&mut host), [(HostId(0), Body::Bye { reason: Reason::Left })]);
    assert!(!host.join(now, session, 0, 1 << 20), "it has left");

    let mut host = invited();
    let bye = Body::Bye { reason: Reason::Left };
    let _ = host.handle_packet(now, 0, &said(2, bye));
    assert_eq!(host.poll_event(), None, "it is not that host's invitation");
    let _ = host.handle_packet(now, 0, &said(0, bye));
    assert_eq!(host.poll_event(), Some(Event::Withdrawn { session }));
    assert!(!host.join(now, session, 0, 1 << 20) && host.is_idle());
}

/// A receiver that answers that it is preparing is not silent, and one that stops answering is.
#[test]
fn a_receiver_that_prepares_is_waited_for() {
    let layout = Arc::new(Layout::flat(4));
    let (session, mut now) = (Session(9), Time::ZERO);
    let mut host = Host::new(config(0, &layout));
    let flow = FlowConfig::default();
    host.open(now, session, 7, &[HostId(1)], Spread::Unicast, flow).unwrap();
    host.offer(now, session, LENGTH);
    host.finish(now, session);
    let mut turn = |answers: bool| {
        now += Span::from_ms(100);
        host.handle_timeout(now);
        let invited = !poll_all(&mut host, now, 0).is_empty();
        if answers && invited {
            let body = Body::Preparing;
            let control = Control { from: HostId(1), to: HostId(0), session, body };
            let answer = packet(HostId(1), HostId(0), 1, Header::Control(control));
            let _ = host.handle_packet(now, 0, &answer);
        }
        host.receivers(session).next().unwrap().status
    };
    for _ in 0..600 {
        turn(true);
    }
    assert_eq!(turn(true), flow::ReceiverStatus::Preparing, "after a minute");
    let patience = flow.patience.as_ms() / 100;
    let states: Vec<_> = (0..patience + 10).map(|_| turn(false)).collect();
    assert_eq!(states[patience as usize / 2], flow::ReceiverStatus::Preparing);
    assert_eq!(states.last(), Some(&flow::ReceiverStatus::Lost(Reason::Silent)));
}

/// A full outbox drops packets and counts them; the driver sees beforehand how much room is left.
#[test]
fn the_outbox_is_bounded() {
    let layout = Arc::new(Layout::flat(4));
    let mut host = Host::new(config(1, &layout));
    let (session, now) = (Session(9), Time::ZERO);
    host.join_late(now, session, HostId(0), 7, 0, 1 << 30);
    let said = |body| {
        let control = Control { from: HostId(0), to: HostId(1), session, body };
        packet(HostId(0), HostId(1), 1, Header::Control(control))
    };
    // The label also names lower ports, to which nothing is forwarded.
    let sync = Body::Sync { rack: ANY_RACK, ports: 0b1111, version: 1 };
    let _ = host.handle_packet(now, 0, &said(sync));
    let mut announced = 0;
    for n in 0..OUTBOX as u64 {
        let data = Data {
            labelled: Labelled::Pilot,
            label: Label(0),
            session,
            offset: n * 100,
            len: 100,
            repair: false,
            end: false,
            parity: None,
        };
        let handled =
            host.handle_packet(now, 0, &packet(HostId(0), HostId(1), 1, Header::Data(data)));
        assert!(handled.store.is_some(), "its own copy is taken in any case");
        announced += usize::from(handled.relays);
        assert_eq!(host.relay_room(), OUTBOX - announced);
    }
    assert_eq!((announced, host.counters().relays_dropped), (OUTBOX, OUTBOX as u64));
    let relayed: Vec<_> = poll_all(&mut host, now, 0)
        .into_iter()
        .filter(|packet| matches!(packet.header, Header::Data(_)))
        .map(|packet| packet.dst.0)
        .collect();
    assert_eq!(relayed[..4], [2, 3, 2, 3]);
}
