//! Tests of whole hosts.

mod dialogue;
mod faults;
mod path;
mod robust;

use std::fmt::Write as _;
use std::sync::Arc;

use rackweave_core::{Ecn, Event, HostId, Kind, MessageId, Packet, Rate, Span, Time};
use rackweave_wire::Id64;
use rackweave_wire::polo::{Body, Header};

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
    let mark = |set, text| if set { text } else { "" };
    let _ = match packet.header.body {
        Body::Data { offset, len, driven, again, .. } => {
            let number = offset / Config::slides().max_payload;
            let (driven, again) = (mark(driven, " driven"), mark(again, " again"));
            write!(text, "DATA {message} {number} +{len}{driven}{again}")
        }
        Body::Adjoint { sent, epoch, timeout, .. } => {
            let timeout = mark(timeout, " timeout");
            write!(text, "ADJOINT {message} sent {sent} epoch {epoch}{timeout}")
        }
        Body::AdjointAck { epoch, paused, tick } => {
            let (paused, tick) = (mark(paused, " paused"), mark(tick, " tick"));
            write!(text, "ADJOINT-ACK {message} epoch {epoch}{paused}{tick}")
        }
        Body::Drive { upto } => write!(text, "DRIVE {message} upto {upto}"),
        Body::Loss { first, count } => write!(text, "LOSS {message} {first} +{count}"),
        Body::Complete => write!(text, "COMPLETE {message}"),
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

/// A one-way DATA packet from host 1 to host 0.
fn data(message: MessageId, length: u32, offset: u32, len: u16) -> Packet<Header> {
    let body =
        Body::Data { message_length: length, offset, len, window: 12, driven: false, again: false };
    packet(1, 0, Header { id: Id64::new(message.0), one_way: true, body })
}

fn packet(src: u32, dst: u32, header: Header) -> Packet<Header> {
    Packet::new(HostId(src), HostId(dst), 100, header).with_ecn(Ecn::Capable)
}

fn submit(network: &mut Network<Host>, from: u32, to: u32, n: u64, bytes: u64, kind: Kind) {
    network.submit(from, to, id(n), bytes, kind).expect("taken");
}
