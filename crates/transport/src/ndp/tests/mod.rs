//! Tests of whole hosts.

mod dialogue;
mod faults;
mod path;
mod robust;
mod turned_back;

use std::fmt::Write as _;
use std::sync::Arc;

use rackweave_core::{Event, HostId, Kind, MessageId, Packet, Rate, Span, Time};
use rackweave_wire::Id64;
use rackweave_wire::ndp::{ANY_PATH, Body, Header};

use super::{Config, Host};
use crate::testkit::Network;

const LINK: Rate = Rate::from_gbps(10);

fn network(config: &Config, hosts: u32, delay: Span) -> Network<Host> {
    let config = Arc::new(config.clone());
    let hosts = (0..hosts).map(|id| Host::new(HostId(id), Arc::clone(&config))).collect();
    let mut network = Network::new(hosts, LINK, delay, 1);
    network.keep_packets = true;
    network
}

fn at(span: Span) -> Time {
    Time::ZERO + span
}

/// A message's name.
fn id(n: u64) -> MessageId {
    MessageId::request(n)
}

/// One packet as a line: from, to, priority, and what its type says. Offsets are in packets.
fn line(packet: &Packet<Header>) -> String {
    let mut text = format!("{}>{} p{} ", packet.src, packet.dst, packet.priority);
    let message = MessageId(packet.header.id.get());
    let packets = |offset| offset / Config::paper(LINK).max_payload;
    let _ = match packet.header.body {
        Body::Data { message_length, offset, len, .. } => {
            write!(text, "DATA {message} {} +{len} of {message_length}", packets(offset))
        }
        Body::Ack { complete: true, .. } => write!(text, "ACK {message} complete"),
        Body::Ack { offset, pull, .. } => {
            write!(text, "ACK {message} {} pull {pull}", packets(offset))
        }
        Body::Nack { offset, pull, .. } => {
            write!(text, "NACK {message} {} pull {pull}", packets(offset))
        }
        Body::Pull { pull, .. } => write!(text, "PULL {message} {pull}"),
        Body::Ask => write!(text, "ASK {message}"),
        Body::Unknown => write!(text, "UNKNOWN {message}"),
    };
    text
}

/// All packets so far, and forgets them.
fn trace(network: &mut Network<Host>) -> Vec<String> {
    network.packets.drain(..).map(|(_, packet)| line(&packet)).collect()
}

/// All events so far, and forgets them.
fn events(network: &mut Network<Host>) -> Vec<String> {
    let text = |(_, host, event): (Time, HostId, Event)| match event {
        Event::Delivered { peer, id, bytes, kind } => {
            format!("{host}: {kind:?} {id} of {bytes} bytes from {peer}")
        }
        Event::Sent { peer, id } => format!("{host}: {id} sent to {peer}"),
        Event::Failed { peer, id, reason } => format!("{host}: {id} with {peer} failed: {reason}"),
        Event::Stream(event) => format!("{host}: {event:?}"),
    };
    network.events.drain(..).map(text).collect()
}

/// A one-way DATA packet.
fn data(message: MessageId, length: u32, offset: u32, len: u16) -> Packet<Header> {
    let body = Body::Data { message_length: length, offset, len, window: 15 };
    packet(1, 0, Header { id: Id64::new(message.0), one_way: true, path: ANY_PATH, body })
}

fn packet(src: u32, dst: u32, header: Header) -> Packet<Header> {
    Packet::new(HostId(src), HostId(dst), 100, header)
}

fn submit(network: &mut Network<Host>, from: u32, to: u32, n: u64, bytes: u64, kind: Kind) {
    network.submit(from, to, id(n), bytes, kind).expect("taken");
}
