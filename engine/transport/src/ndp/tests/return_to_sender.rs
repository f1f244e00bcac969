//! Packets that switches return to their senders, and packets that name their path.

use std::collections::BTreeSet;

use rackweave_core::{HostId, Kind, Node as _, Packet, Span, Time, Transport};
use rackweave_wire::ndp::{ANY_PATH, Body, Header};

use super::{Config, LINK, Ndp};
use crate::ndp::Host;
use crate::tests::Network;
use crate::tests::driven::trace;
use crate::tests::suite::{at, events, id, network, submit};

fn small() -> Config {
    Config { initial_window: 3, ..Config::paper(LINK) }
}

/// Submits a message, drops its packets, and returns them as a switch would.
fn returned(config: &Config, bytes: u64) -> (Network<Host>, Vec<Packet<Header>>) {
    let mut network = network::<Ndp>(config, 2, Span::from_us(1));
    network.set_down(1, true);
    submit(&mut network, 0, 1, 1, bytes, Kind::OneWay);
    network.run_until(at(Span::from_us(10)));
    network.set_down(1, false);
    let mut packets: Vec<_> = network.packets.drain(..).map(|(_, packet)| packet).collect();
    packets.iter_mut().for_each(Packet::return_to_sender);
    (network, packets)
}

#[test]
fn the_last_returned_packet_is_retransmitted_at_once() {
    let (mut network, packets) = returned(&small(), 3 * 1_436);
    // Other packets are in flight: pulls may come for all.
    network.inject(packets[0]);
    network.inject(packets[1]);
    network.run_until(at(Span::from_us(11)));
    assert_eq!(trace(&mut network), [""; 0]);
    network.inject(packets[2]);
    network.run_until(at(Span::from_ms(1)));
    // One packet is retransmitted, and each that arrives triggers another one: no timeout, and no burst of a
    // window.
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p0 DATA 1 0 +1436 of 4308",
            "h1>h0 p7 ACK 1 0 pull 0",
            "h0>h1 p0 DATA 1 1 +1436 of 4308",
            "h1>h0 p7 ACK 1 1 pull 0",
            "h0>h1 p0 DATA 1 2 +1436 of 4308",
            "h1>h0 p7 ACK 1 complete",
        ]
    );
    assert_eq!(events(&mut network), ["h1: OneWay 1 of 4308 bytes from h0", "h0: 1 sent to h1"]);
}

#[test]
fn a_returned_packet_waits_while_pulls_are_expected() {
    let (mut network, packets) = returned(&small(), 3 * 1_436);
    let header =
        Header { body: Body::Nack { offset: 1_436, pull: 0, incarnation: 7 }, ..packets[0].header };
    network.inject(Packet::new(HostId(1), HostId(0), 64, header));
    network.inject(packets[0]);
    network.inject(packets[2]);
    network.run_until(at(Span::from_ms(1)));
    assert_eq!(trace(&mut network), [""; 0], "the NACK's pull is to come");
    let header = Header { body: Body::Pull { pull: 1, incarnation: 7 }, ..header };
    network.inject(Packet::new(HostId(1), HostId(0), 64, header));
    network.run_until(network.now() + Span::from_us(1));
    assert_eq!(trace(&mut network), ["h0>h1 p0 DATA 1 1 +1436 of 4308"]);
}

#[test]
fn duplicate_and_forged_returned_packets_have_no_effect() {
    let (mut network, packets) = returned(&small(), 50_000);
    let mut forged = packets[0];
    for (offset, id) in [(0, 2), (0, 3), (49_000, 2), (u32::MAX, 2), (0, 99)] {
        let body = Body::Data { message_length: 50_000, offset, len: 1_436, window: 3 };
        forged.header = Header { id: rackweave_wire::Id64::new(id), body, ..packets[0].header };
        network.inject(forged);
        network.inject(forged);
    }
    network.run_until(at(Span::from_us(12)));
    assert_eq!(trace(&mut network), [""; 0]);
    for packet in packets.iter().chain(&packets) {
        network.inject(*packet);
    }
    assert!(network.run_until(at(Span::from_secs(1))));
    assert_eq!(events(&mut network).len(), 2, "it arrives, and its sender hears of it");
}

#[test]
fn data_take_every_path_by_turns_and_answers_take_theirs() {
    let config = Config { paths: 8, ..Config::paper(LINK) };
    let mut network = network::<Ndp>(&config, 2, Span::from_us(1));
    submit(&mut network, 0, 1, 1, 40 * 1_436, Kind::OneWay);
    assert!(network.run_until(at(Span::from_secs(1))));
    let headers: Vec<Header> = network.packets.iter().map(|(_, packet)| packet.header).collect();
    let mut by_offset = std::collections::BTreeMap::new();
    let mut data = Vec::new();
    for header in &headers {
        assert!(header.path < 8);
        match header.body {
            Body::Data { offset, .. } => {
                by_offset.insert(offset, header.path);
                data.push(header.path);
            }
            Body::Ack { offset, .. } => assert_eq!(by_offset[&offset], header.path),
            _ => {}
        }
    }
    assert_eq!(data.len(), 40);
    for round in data.chunks(8) {
        assert_eq!(round.iter().collect::<BTreeSet<_>>().len(), 8, "{round:?}");
    }
}

#[test]
fn without_numbered_paths_switches_pick() {
    let mut host = Host::new(HostId(0), Config::paper(LINK).into());
    let message =
        rackweave_core::Submit { id: id(1), peer: HostId(1), bytes: 10_000, kind: Kind::OneWay };
    host.submit(Time::ZERO, message).unwrap();
    let packet = host.poll_transmit(Time::ZERO, 0).unwrap();
    assert!(packet.is_sprayed() && packet.header.path == ANY_PATH);
    assert_eq!(rackweave_core::Header::path(&packet.header), None);
}
