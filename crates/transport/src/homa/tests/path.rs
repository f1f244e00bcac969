//! Times on an idle path.

use rackweave_core::{Event, HostId, Kind, Span, Time};

use super::{Config, Host, LINK, at, id, network, submit};

/// One packet there and a grant back, both with the delay: what `rtt_bytes` must cover.
fn covering(delay: Span) -> Config {
    let packet = Config::sigcomm18(LINK, 1).framing().packet_wire_bytes(1442);
    Config::sigcomm18(LINK, 2 * (packet + 86) + 2 * LINK.bytes_in(delay) as u32)
}

#[test]
fn a_message_on_an_idle_path_goes_back_to_back() {
    for delay in [Span::ZERO, Span::from_us(2), Span::from_us(20)] {
        let mut configs = vec![covering(delay)];
        if delay < Span::from_us(3) {
            configs.push(Config::linux(LINK));
        }
        for config in configs {
            for bytes in [1, 100, 1_442, 1_443, 9_328, 9_329, 10_094, 10_095, 50_000, 999_999] {
                let mut network = network(&config, 2, delay);
                submit(&mut network, 0, 1, 1, bytes, Kind::OneWay);
                assert!(network.run_until(at(Span::from_secs(1))));
                let ideal = network.ideal(bytes, config.framing());
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
    let config = covering(delay);
    for bytes in [1, 1_442, 9_329, 100_000] {
        let mut network = network(&config, 2, delay);
        submit(&mut network, 0, 1, 1, bytes, Kind::Request);
        assert!(network.run_until(at(Span::from_secs(1))));
        let one_way = network.ideal(bytes, config.framing());
        let times: Vec<_> = network.events.iter().map(|(time, host, _)| (*time, host.0)).collect();
        let (there, back) = (Time::ZERO + one_way, Time::ZERO + one_way + one_way);
        assert_eq!(times[..2], [(there, 1), (back, 0)]);
        let sent = Event::Sent { peer: HostId(0), id: id(1).response() };
        assert_eq!((network.events.len(), network.events[2].2), (3, sent));
        assert!(network.hosts.iter().all(Host::is_idle));
    }
}

#[test]
fn a_window_below_the_round_trip_leaves_gaps() {
    let delay = Span::from_us(20);
    let config = Config::sigcomm18(LINK, 10_000);
    let mut network = network(&config, 2, delay);
    submit(&mut network, 0, 1, 1, 100_000, Kind::OneWay);
    network.run_until(at(Span::from_secs(1)));
    let ideal = network.ideal(100_000, config.framing());
    assert!(network.events[0].0 > Time::ZERO + ideal * 2, "the time above is not always ideal");
}
