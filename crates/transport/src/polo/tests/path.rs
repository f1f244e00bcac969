//! Times on an idle path, and of an incast.

use rackweave_core::{Event, HostId, Kind, Span, Time};

use super::{Config, Host, LINK, at, id, network, submit};

#[test]
fn a_message_within_the_first_window_goes_back_to_back() {
    for delay in [Span::ZERO, Span::from_us(2), Span::from_us(50)] {
        let config = Config::slides();
        for bytes in [1, 100, 1_460, 1_461, 9_329, 17_520] {
            let mut network = network(&config, 2, delay);
            submit(&mut network, 0, 1, 1, bytes, Kind::OneWay);
            assert!(network.run_until(at(Span::from_secs(1))));
            let ideal = LINK.span_of(config.framing().message_wire_bytes(bytes)) + delay;
            let delivered =
                Event::Delivered { peer: HostId(0), id: id(1), bytes, kind: Kind::OneWay };
            let sent = Event::Sent { peer: HostId(1), id: id(1) };
            assert_eq!(network.events[0], (Time::ZERO + ideal, HostId(1), delivered));
            assert_eq!(network.events[1].2, sent);
            assert_eq!(network.events.len(), 2);
            assert!(network.hosts.iter().all(Host::is_idle));
        }
    }
}

/// Beyond it the adjoint packets cost their 84 bytes an epoch.
#[test]
fn a_long_message_fills_the_link_but_for_adjoint_packets() {
    let config = Config::slides();
    let mut network = network(&config, 2, Span::from_us(2));
    let bytes = 50_000_000;
    submit(&mut network, 0, 1, 1, bytes, Kind::OneWay);
    assert!(network.run_until(at(Span::from_secs(1))));
    let adjoints = network
        .packets
        .iter()
        .filter(|(_, packet)| packet.src == HostId(0) && packet.priority == 7);
    let adjoints = LINK.span_of(84) * adjoints.count() as u64;
    let ideal = LINK.span_of(config.framing().message_wire_bytes(bytes)) + Span::from_us(2);
    let took = network.events[0].0.since(Time::ZERO);
    assert!(took >= ideal && took <= ideal + adjoints, "{took}: {ideal} and {adjoints}");
    assert!(adjoints * 50 < ideal, "{adjoints} of {ideal}");
}

#[test]
fn a_window_below_the_round_trip_leaves_gaps() {
    let config = Config { first_window: 2, ..Config::slides() };
    let mut network = network(&config, 2, Span::from_us(20));
    submit(&mut network, 0, 1, 1, 100_000, Kind::OneWay);
    network.run_until(at(Span::from_secs(1)));
    let ideal = LINK.span_of(config.framing().message_wire_bytes(100_000));
    assert!(network.events[0].0 > Time::ZERO + ideal * 2, "the time above is not always ideal");
}
