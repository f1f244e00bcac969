//! Tests of whole hosts.

use std::sync::Arc;

use rackweave_core::{Event, HostId, Kind, MessageId, Rate, Span, Time};

use super::{Config, Host};
use crate::testkit::Network;

const LINK: Rate = Rate::from_gbps(10);

fn network(config: Config, hosts: u32, delay: Span) -> Network<Host> {
    let config = Arc::new(config);
    let hosts = (0..hosts).map(|id| Host::new(HostId(id), Arc::clone(&config))).collect();
    Network::new(hosts, LINK, delay, 1)
}

/// One packet there, the smallest grant back, both with the delay: what `rtt_bytes` must cover.
fn rtt_bytes(config: &Config, delay: Span) -> u32 {
    let data = config.framing().packet_wire_bytes(config.max_payload);
    data + 84 + 2 * LINK.bytes_in(delay) as u32
}

#[test]
fn a_message_on_an_idle_path_goes_back_to_back() {
    let delay = Span::from_us(2);
    let mut config = Config::sigcomm18(LINK, 10_000);
    config = Config::sigcomm18(LINK, rtt_bytes(&config, delay));
    for config in [config, Config::linux(LINK)] {
        for bytes in [1, 100, 1_442, 1_443, 9_328, 9_329, 10_094, 10_095, 50_000, 999_999] {
            let framing = config.framing();
            let mut network = network(config.clone(), 2, delay);
            network.submit(0, 1, MessageId::request(1), bytes, Kind::OneWay).unwrap();
            network.run_until(Time::ZERO + Span::from_secs(1));
            let ideal = LINK.span_of(framing.message_wire_bytes(bytes)) + delay;
            let (at, host, event) = network.events[0];
            let (peer, id) = (HostId(0), MessageId::request(1));
            assert_eq!(event, Event::Delivered { peer, id, bytes, kind: Kind::OneWay });
            assert_eq!((host, at), (HostId(1), Time::ZERO + ideal), "{bytes} bytes");
            assert_eq!(network.events[1].2, Event::Sent { peer: HostId(1), id });
            assert_eq!(network.events.len(), 2);
            assert!(network.hosts.iter().all(Host::is_idle));
        }
    }
}
