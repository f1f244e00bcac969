//! Tests of whole hosts.

mod dialogue;
mod leverage;
mod module;
mod order;
mod path;
mod repair;
mod robust;
mod streams;

use std::fmt::Write as _;
use std::sync::Arc;

use rackweave_core::{HostId, MessageId, Packet, Rate, Rng, Span};
use rackweave_wire::Id64;
use rackweave_wire::homa::{Body, DataStamps, Header};

use super::{Config, Detection, Host, Leverage};
use crate::tests::Network;
use crate::tests::suite::{Expect, Limits, Subject, at, events, id, submit, transport_suite};

const LINK: Rate = Rate::from_gbps(10);

fn network(config: &Config, hosts: u32, delay: Span) -> Network<Host> {
    let config = Arc::new(config.clone());
    let hosts = (0..hosts).map(|id| Host::new(HostId(id), Arc::clone(&config))).collect();
    let mut network = Network::new(hosts, LINK, delay);
    network.keep_packets = true;
    network
}

/// The published sets of parameters, Leverage Homa, and Leverage Homa with all of its future work.
const PROFILES: usize = 6;

fn profile(number: usize) -> Config {
    match number {
        0 => Config::fabric(LINK, 10_000),
        1 => Config::linux(LINK),
        2 => Config::leverage(LINK),
        3 => Config::linux_2026(LINK),
        future => Config::linux(LINK).with_leverage(Leverage {
            host_delay: true,
            rtt_pacer: true,
            congestion: Some(if future == 4 { Detection::Recent } else { Detection::Average }),
            ..Leverage::talk()
        }),
    }
}

struct Homa;

transport_suite!(Homa);

impl Subject for Homa {
    type Config = Config;
    type Host = Host;

    /// Its receivers wait before they ask again for what is missing.
    const EXPECT: Expect = Expect { repair: Span::from_ms(30), ..Expect::RELIABLE };

    fn variants() -> Vec<Config> {
        (0..PROFILES).map(profile).collect()
    }

    /// The kernel module's method of repair.
    fn fragile() -> Vec<Config> {
        vec![
            Config { max_restarts: 0, ..Config::linux(LINK) },
            Config { max_restarts: 0, ..Config::linux_2026(LINK) },
        ]
    }

    fn limited(mut config: Config, limits: &Limits) -> Config {
        config.max_rpcs = limits.live;
        config.max_control = limits.control;
        config.max_finished = limits.finished;
        config.max_gaps = limits.gaps;
        config.max_message_bytes = limits.message_bytes;
        config
    }

    fn host(id: HostId, config: &Arc<Config>) -> Host {
        Host::new(id, Arc::clone(config))
    }

    fn check(host: &Host, _limits: Option<&Limits>) {
        host.check_bounds();
    }

    fn is_idle(host: &Host) -> bool {
        host.is_idle()
    }

    fn held(host: &Host) -> usize {
        host.rpcs_under_way() as usize
    }

    fn quiet_after(_config: &Config) -> Span {
        Span::from_secs(2)
    }

    fn forge(rng: &mut Rng, from: HostId) -> Packet<Header> {
        packet(from.0, 0, robust::any_header(rng))
    }

    fn back_to_back() -> (Vec<Config>, [Span; 3], Vec<u64>) {
        let sizes = vec![1, 100, 1_442, 1_443, 9_328, 9_329, 10_094, 10_095, 50_000, 999_999];
        (vec![profile(0), profile(1)], [Span::ZERO, Span::from_us(2), Span::from_us(20)], sizes)
    }

    /// The round trip that `rtt_bytes` must cover: one packet and a grant back, over two links each, with the
    /// delay.
    fn covering(config: Config, delay: Span) -> Config {
        if config == profile(1) && delay < Span::from_us(3) {
            return config;
        }
        let packet = config.framing().packet_wire_bytes(config.max_payload);
        Config::fabric(LINK, 2 * (packet + 86) + 2 * LINK.bytes_in(delay) as u32)
    }
}

/// One packet as a line: source, destination, priority and the fields of its type.
fn line(packet: &Packet<Header>) -> String {
    let mut text = format!("{}>{} p{} ", packet.src, packet.dst, packet.priority);
    let message = MessageId(packet.header.id.get());
    let _ = match packet.header.body {
        Body::Data { message_length, ack_id, retransmit, offset, segment_length, .. } => {
            let end = offset + u32::from(segment_length);
            let retransmitted = if retransmit { " retransmit" } else { "" };
            let ack = match ack_id.get() {
                0 => String::new(),
                id => format!(" ack {}", MessageId(id)),
            };
            write!(text, "DATA {message} {offset}..{end} of {message_length}{retransmitted}{ack}")
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
        Body::Unknown { refused: false } => write!(text, "UNKNOWN {message}"),
        Body::Unknown { refused: true } => write!(text, "UNKNOWN {message} refused"),
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

/// Takes the trace of all packets so far.
fn trace(network: &mut Network<Host>) -> Vec<String> {
    network.packets.drain(..).map(|(_, packet)| line(&packet)).collect()
}

/// The header of a one-way DATA packet.
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
