//! Times on an idle path, and of an incast.

use rackweave_core::{Event, HostId, Kind, Span, Time};

use super::{Config, Host, LINK, at, id, network, submit};

#[test]
fn a_message_on_an_idle_path_goes_back_to_back() {
    for delay in [Span::ZERO, Span::from_us(2), Span::from_us(5)] {
        for config in [Config::paper(LINK), Config::polo_slides(LINK)] {
            for bytes in [1, 100, 1_436, 1_460, 1_461, 9_329, 17_520, 17_521, 50_000, 200_000] {
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
}

#[test]
fn a_request_and_its_response_take_both_ideal_times() {
    let delay = Span::from_us(2);
    let config = Config::paper(LINK);
    for bytes in [1, 1_436, 9_329, 100_000] {
        let mut network = network(&config, 2, delay);
        submit(&mut network, 0, 1, 1, bytes, Kind::Request);
        assert!(network.run_until(at(Span::from_secs(1))));
        let one_way = LINK.span_of(config.framing().message_wire_bytes(bytes)) + delay;
        let delivered: Vec<_> = network
            .events
            .iter()
            .filter(|(.., event)| matches!(event, Event::Delivered { .. }))
            .map(|(time, host, _)| (*time, host.0))
            .collect();
        // The server's last acknowledgement goes before its response.
        let ack = LINK.span_of(84);
        let (there, back) = (Time::ZERO + one_way, Time::ZERO + one_way + one_way + ack);
        assert_eq!(delivered, [(there, 1), (back, 0)]);
        assert!(network.hosts.iter().all(Host::is_idle));
    }
}

#[test]
fn a_long_message_is_pulled_at_99_percent() {
    let config = Config::paper(LINK);
    let mut network = network(&config, 2, Span::from_us(2));
    let bytes = 50_000_000;
    submit(&mut network, 0, 1, 1, bytes, Kind::OneWay);
    assert!(network.run_until(at(Span::from_secs(1))));
    let ideal = LINK.span_of(config.framing().message_wire_bytes(bytes));
    let share = ideal.0 as f64 / network.events[0].0.0 as f64;
    assert!((0.989..0.992).contains(&share), "{share}");
}

#[test]
fn a_window_below_the_round_trip_leaves_gaps() {
    let config = Config { initial_window: 2, ..Config::paper(LINK) };
    let mut network = network(&config, 2, Span::from_us(20));
    submit(&mut network, 0, 1, 1, 100_000, Kind::OneWay);
    network.run_until(at(Span::from_secs(1)));
    let ideal = LINK.span_of(config.framing().message_wire_bytes(100_000));
    assert!(network.events[0].0 > Time::ZERO + ideal * 2, "the time above is not always ideal");
}

/// The kit's receivers have no queue before them: what arrives faster than the link could bring it
/// arrives nevertheless. So the first windows are there at once, and the rest at the pace of pulls.
#[test]
fn an_incast_is_pulled_at_the_receivers_pace_and_fairly() {
    let (senders, packets) = (40_u64, 100);
    let config = Config::paper(LINK);
    let mut network = network(&config, senders as u32 + 1, Span::from_us(2));
    for n in 1..=senders {
        submit(&mut network, n as u32, 0, n, packets * 1_436, Kind::OneWay);
    }
    assert!(network.run_until(at(Span::from_secs(1))));
    let delivered: Vec<Time> = network
        .events
        .iter()
        .filter(|(.., event)| matches!(event, Event::Delivered { .. }))
        .map(|(at, ..)| *at)
        .collect();
    assert_eq!(delivered.len(), senders as usize);
    let pulled = senders * (packets - u64::from(config.initial_window));
    let pace = config.pull_spacing() * pulled;
    let last = delivered[senders as usize - 1];
    assert!(last >= at(pace) && last < at(pace + Span::from_us(50)), "{last} for {pace}");
    // By turns, equal messages end together.
    assert!(last.since(delivered[0]) < config.pull_spacing() * (senders + 30));
}
