//! Tests of whole hosts.

mod dialogue;
mod faults;
mod leverage;
mod order;
mod path;
mod repair;
mod robust;
mod streams;

use std::fmt::Write as _;
use std::sync::Arc;

use rackweave_core::{Event, HostId, Kind, MessageId, Packet, Rate, Span, Time};
use rackweave_wire::Id64;
use rackweave_wire::homa::{Body, DataStamps, Header};

use super::{Config, Detection, Host, Leverage};
use crate::tests::Network;

const LINK: Rate = Rate::from_gbps(10);

fn network(config: &Config, hosts: u32, delay: Span) -> Network<Host> {
    let config = Arc::new(config.clone());
    let hosts = (0..hosts).map(|id| Host::new(HostId(id), Arc::clone(&config))).collect();
    let mut network = Network::new(hosts, LINK, delay);
    network.keep_packets = true;
    network
}

/// The published sets of parameters, Leverage Homa's, and that with all of its future work.
const PROFILES: usize = 5;

fn profile(number: usize) -> Config {
    match number {
        0 => Config::sigcomm18(LINK, 10_000),
        1 => Config::linux(LINK),
        2 => Config::leverage(LINK),
        future => Config::linux(LINK).with_leverage(Leverage {
            host_delay: true,
            rtt_pacer: true,
            congestion: Some(if future == 3 { Detection::Recent } else { Detection::Average }),
            ..Leverage::talk()
        }),
    }
}

fn at(span: Span) -> Time {
    Time::ZERO + span
}

/// A message's name.
fn id(n: u64) -> MessageId {
    MessageId::request(n)
}

/// One packet as a line: from, to, priority, and what its type says.
fn line(packet: &Packet<Header>) -> String {
    let mut text = format!("{}>{} p{} ", packet.src, packet.dst, packet.priority);
    let message = MessageId(packet.header.id.get());
    let _ = match packet.header.body {
        Body::Data { message_length, ack_id, retransmit, offset, segment_length, .. } => {
            let end = offset + u32::from(segment_length);
            let again = if retransmit { " again" } else { "" };
            let ack = match ack_id.get() {
                0 => String::new(),
                id => format!(" ack {}", MessageId(id)),
            };
            write!(text, "DATA {message} {offset}..{end} of {message_length}{again}{ack}")
        }
        Body::Grant { offset, priority, .. } => {
            write!(text, "GRANT {message} ..{offset} at p{priority}")
        }
        Body::Resend { offset, length: u32::MAX, .. } => {
            write!(text, "RESEND {message} {offset}.. all sent")
        }
        Body::Resend { offset, length, .. } => {
            write!(text, "RESEND {message} {offset}..{}", offset + length)
        }
        Body::Unknown => write!(text, "UNKNOWN {message}"),
        Body::Busy => write!(text, "BUSY {message}"),
        Body::Cutoffs { version, .. } => write!(text, "CUTOFFS version {version}"),
        Body::NeedAck => write!(text, "NEED_ACK {message}"),
        Body::Stream(stream) => streams::write_line(&mut text, message, &stream),
        Body::Ack { count, others } => {
            let _ = write!(text, "ACK {message}");
            for other in &others[..usize::from(count)] {
                let _ = write!(text, " {}", MessageId(other.get()));
            }
            Ok(())
        }
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

/// A one-way DATA packet's header.
fn data(message: MessageId, length: u32, offset: u32, len: u16) -> Header {
    let body = Body::Data {
        message_length: length,
        incoming: 10_000,
        ack_id: Id64::new(0),
        ack_port: 0,
        cutoff_version: 0,
        retransmit: false,
        offset,
        segment_length: len,
        stamps: DataStamps::default(),
    };
    Header { id: Id64::new(message.0), one_way: true, body }
}

fn packet(src: u32, dst: u32, header: Header) -> Packet<Header> {
    Packet::new(HostId(src), HostId(dst), 100, header)
}

fn submit(network: &mut Network<Host>, from: u32, to: u32, n: u64, bytes: u64, kind: Kind) {
    network.submit(from, to, id(n), bytes, kind).expect("taken");
}
