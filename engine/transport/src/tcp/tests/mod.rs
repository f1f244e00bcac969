//! Tests of conversations between two or more hosts.

mod abort;
mod bottleneck;
mod chaos;
pub(super) mod delay;
mod dialogue;
mod halves;
mod pool;
mod streams;

use std::sync::Arc;

use rackweave_core::{HostId, Kind, MessageId, Packet, Rate, Rng, Span, Time};
use rackweave_switch::config::{FabricConfig, Topology};
use rackweave_wire::tcp::{Body, Header, flags};

use crate::tcp::{Config, Host};
use crate::testkit::Faults;
use crate::tests;
use crate::tests::fabric;
use crate::tests::suite::{Expect, Limits, Subject, control_span, transport_suite};

type Network = tests::Network<Host>;

struct Tcp;

transport_suite!(Tcp);

impl Subject for Tcp {
    type Config = Config;
    type Host = Host;

    /// A host holds a connection and the pool that contains it; the last acknowledgement may precede the
    /// response.
    const EXPECT: Expect = Expect {
        held_per_message: 2,
        longest: Some(u32::MAX as u64),
        overtaking: control_span(),
        ..Expect::RELIABLE
    };

    fn variants() -> Vec<Config> {
        let plain = Config { handshake: true, sack: false, ..Config::new_reno() };
        vec![Config::tcp(), Config::dctcp(), plain]
    }

    /// Sequence numbers are known, so that forged segments can be close to them.
    fn limited(config: Config, limits: &Limits) -> Config {
        let (max_connections, max_messages) = (limits.live, limits.live);
        Config { max_connections, max_messages, initial_sequence: Some(7), ..config }
    }

    fn host(id: HostId, config: &Arc<Config>) -> Host {
        Host::new(id, Arc::clone(config))
    }

    fn check(host: &Host, limits: Option<&Limits>) {
        let Some(limits) = limits else { return };
        let [control, data, submitted, _, strays, _] = host.backlog();
        let most = limits.live as usize;
        assert!(host.connections() <= limits.live && submitted <= most);
        assert!(control <= most && data <= most && strays <= 256);
    }

    fn is_idle(host: &Host) -> bool {
        host.backlog() == [0; 6]
    }

    fn held(host: &Host) -> usize {
        host.connections() as usize + host.pools() + host.backlog().iter().sum::<usize>()
    }

    fn quiet_after(config: &Config) -> Span {
        config.idle_timeout * 3
    }

    fn forge(rng: &mut Rng, from: HostId) -> Packet<Header> {
        let mut packet = chaos::forge(rng, 7, &[5001 << 16 | 40_000]);
        packet.src = from;
        packet
    }

    /// Messages within the first window of a connection that needs no handshake.
    fn back_to_back() -> (Vec<Config>, [Span; 3], Vec<u64>) {
        let sizes = vec![1, 100, 1_460, 1_461, 9_329, 14_600];
        let delays = [Span::ZERO, Span::from_us(2), Span::from_us(20)];
        (vec![Config::tcp(), Config::dctcp()], delays, sizes)
    }
}

/// Propagation delay from host to host, excluding the transmission times on both links.
const DELAY: Span = Span::from_us(10);

/// Hosts at one switch, with links of 10 Gbps, that record their packets and do not answer requests. `fate`
/// decides what happens to each packet.
fn network<F>(hosts: u32, config: &Config, fate: F) -> Network
where
    F: FnMut(Time, &mut Packet<Header>) -> Vec<Span> + 'static,
{
    let host_link = Rate::from_gbps(10);
    let mut net = on(&fabric(Topology::SingleSwitch { hosts, host_link }, DELAY), config);
    net.keep_packets = true;
    net.fate = Some(Box::new(fate));
    net
}

/// The hosts of a fabric.
fn on(fabric: &FabricConfig, config: &Config) -> Network {
    let hosts = match &fabric.topology {
        Topology::SingleSwitch { hosts, .. } => *hosts,
        Topology::Dumbbell { left, right, .. } => left + right,
        other => panic!("{other:?} has no use here"),
    };
    let hosts = (0..hosts).map(|id| Host::new(HostId(id), config.clone())).collect();
    let mut net = Network::on(fabric, hosts, 1, Faults::default());
    net.respond = None;
    net
}

/// Forwards every packet without delay.
fn faithful(_: Time, _: &mut Packet<Header>) -> Vec<Span> {
    vec![Span::ZERO]
}

fn send(net: &mut Network, from: u32, to: u32, number: u64, bytes: u64, kind: Kind) {
    net.submit(from, to, MessageId::request(number), bytes, kind).expect("a good message");
}

/// One line for each packet, with the time at which it was sent.
fn trace(net: &Network) -> Vec<String> {
    let line = |(at, packet): &(Time, Packet<Header>)| {
        let lost = if net.lost.contains(&(*at, packet.src)) { "  (lost)" } else { "" };
        format!(
            "{}.{:02} {}{lost}",
            at.as_ps() / 1_000_000,
            at.as_ps() / 10_000 % 100,
            describe(packet)
        )
    };
    net.packets.iter().map(line).collect()
}

/// The lines of the trace that contain `what`, without their times.
fn lines(net: &Network, what: &str) -> Vec<String> {
    let lines = trace(net).into_iter().filter(|line| line.contains(what));
    lines.map(|line| line.split_once(' ').expect("a time and a text").1.to_owned()).collect()
}

/// A packet as a line: its data, acknowledgements and flags.
fn describe(packet: &Packet<Header>) -> String {
    let header = &packet.header;
    let mut text = format!("{}>{}", packet.src, packet.dst);
    match header.body {
        Body::Data { len, .. } => {
            text += &format!(" data {}+{len}", header.seq);
        }
        Body::Ack { .. } => {}
    }
    if header.flags & flags::ACK != 0 && matches!(header.body, Body::Ack { .. }) {
        text += &format!(" ack {}", header.ack);
    }
    if let Body::Ack { count, sack } = header.body {
        for (from, to) in &sack[..usize::from(count)] {
            text += &format!(" [{from}..{to})");
        }
    }
    let names = [
        (flags::SYN, "syn"),
        (flags::FIN, "fin"),
        (flags::RST, "rst"),
        (flags::PSH, "end"),
        (flags::ECE, "ece"),
        (flags::CWR, "cwr"),
    ];
    for (flag, name) in names {
        if header.flags & flag != 0 {
            text += &format!(" {name}");
        }
    }
    text
}

/// Whether a packet carries the byte with this sequence number.
fn carries(packet: &Packet<Header>, sequence: u32) -> bool {
    matches!(packet.header.body, Body::Data { len, .. }
        if sequence.wrapping_sub(packet.header.seq) < u32::from(len))
}
