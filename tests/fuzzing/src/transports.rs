//! Each transport's machine at three hosts, with messages and streams.

use std::collections::BTreeMap;

use rackweave_core::{
    Event, HostId, Kind, MessageId, Node as _, Open, Packet, Rate, Span, StreamEvent, Submit, Time,
    Transport as _,
};
use rackweave_transport::testkit::Fates;
use rackweave_transport::{
    Machine, TransportConfig, datagram, homa, ndp, pfabric, phost, polo, tcp,
};
use rackweave_wire::homa::Layout;
use rackweave_wire::{Header, Ports, frame};

use crate::input::Input;
use crate::mesh::{Mesh, Station};

const LINK: Rate = Rate::from_gbps(10);
const HOSTS: u32 = 3;

/// Parameters of every transport. The order of the first ten is that of the inputs that have been recorded.
fn configs() -> Vec<TransportConfig> {
    let mut configs: Vec<TransportConfig> = vec![
        homa::Config::linux(LINK).into(),
        homa::Config::fabric(LINK, 9_700).into(),
        polo::Config::slides().into(),
        ndp::Config::paper(LINK).into(),
        phost::Config::paper(LINK).into(),
        tcp::Config::tcp().into(),
        tcp::Config::dctcp().into(),
        tcp::Config::new_reno().into(),
        datagram::Config::default().into(),
        pfabric::Config::paper().into(),
    ];
    for config in TransportConfig::examples(LINK) {
        if configs.iter().all(|listed| listed.name() != config.name()) {
            configs.push(config);
        }
    }
    configs
}

/// Bytes of one direction of a stream.
#[derive(Clone, Copy, Debug, Default)]
struct Direction {
    written: u64,
    readable: u64,
}

struct Host {
    id: HostId,
    machine: Machine,
    fates: Vec<Event>,
    /// The streams of this host, opened by others included.
    streams: Vec<(HostId, MessageId)>,
    directions: BTreeMap<(HostId, MessageId), Direction>,
}

impl Host {
    fn write(&mut self, now: Time, peer: HostId, id: MessageId, bytes: u64, end: bool) {
        let id = if self.is_ours(peer, id) { id } else { id.response() };
        if self.machine.write(now, peer, id, bytes, end).is_ok() {
            self.directions.entry((peer, id)).or_default().written += bytes;
        }
    }

    /// Whether this host has opened the stream: ids of a host are in a range of its own.
    const fn is_ours(&self, _peer: HostId, id: MessageId) -> bool {
        id.number() >> 20 == self.id.0 as u64
    }
}

impl Station for Host {
    type Packet = Packet<Header>;

    fn receive(&mut self, now: Time, packet: &Packet<Header>) {
        let _placement = self.machine.handle_packet(now, 0, packet);
    }

    fn expire(&mut self, now: Time) {
        self.machine.handle_timeout(now);
    }

    fn poll(&mut self, now: Time) -> Option<Packet<Header>> {
        let packet = self.machine.poll_transmit(now, 0)?;
        assert_eq!(packet.src, self.id);
        Some(packet)
    }

    fn deadline(&self) -> Option<Time> {
        self.machine.poll_timeout()
    }

    fn work(&mut self, now: Time) {
        while let Some(event) = self.machine.poll_event() {
            self.fates.push(event);
            match event {
                Event::Delivered { peer, id, bytes, kind: Kind::Request } => {
                    let bytes = 1 + bytes * 7 % 9_000;
                    let submit = Submit { id: id.response(), peer, bytes, kind: Kind::Response };
                    let _ = self.machine.submit(now, submit);
                }
                Event::Stream(StreamEvent::Opened { peer, id }) => self.streams.push((peer, id)),
                Event::Stream(StreamEvent::Readable { peer, id, bytes, end }) => {
                    self.directions.entry((peer, id)).or_default().readable += bytes;
                    self.machine.consume(now, peer, id, bytes);
                    if end && !id.is_response() {
                        self.write(now, peer, id, bytes % 5_000, true);
                    }
                }
                _ => {}
            }
        }
    }

    fn is_for(&self, packet: &Packet<Header>) -> bool {
        packet.dst == self.id
    }
}

/// Any commands and packets at hosts with one transport. If no packet is forged, each message ends once, and is delivered at most once.
///
/// # Panics
/// If that does not hold, or time stands still.
pub fn transports(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let configs = configs();
    let config = &configs[input.below(configs.len())];
    let flags = input.u8();
    let config = if flags & 1 == 0 { config.clone() } else { config.over_udp() };
    let forges = flags & 2 != 0;
    let begin = if flags & 4 == 0 { Time::ZERO } else { Time::from_ticks(u64::MAX / 2) };
    let host = |id| Host {
        id: HostId(id),
        machine: config.machine(HostId(id)),
        fates: Vec::new(),
        streams: Vec::new(),
        directions: BTreeMap::new(),
    };
    let mut mesh = Mesh::new(begin, (0..HOSTS).map(host).collect());
    let mut fates = Fates::new(config.name() != "datagram");
    let mut number = 0;
    for _ in 0..400 {
        if input.is_empty() {
            break;
        }
        let op = input.u8();
        let at = usize::from(op >> 4) % HOSTS as usize;
        let now = mesh.now;
        let me = &mut mesh.stations[at];
        let peer = HostId((at as u32 + 1 + u32::from(op >> 7)) % HOSTS);
        match op & 15 {
            0 | 1 => {
                number += 1;
                let id = MessageId::request(u64::from(me.id.0) << 20 | number);
                let is_request = op & 1 == 0 && config.name() != "datagram";
                let kind = if is_request { Kind::Request } else { Kind::OneWay };
                let bytes = u64::from(input.u16()) >> input.below(17);
                if me.machine.submit(now, Submit { id, peer, bytes, kind }).is_ok() {
                    fates.submitted(me.id.0, peer.0, id, kind);
                }
            }
            2 if config.has_streams() => {
                number += 1;
                let id = MessageId::request(u64::from(me.id.0) << 20 | number);
                let deadline = match input.u8() {
                    0..128 => Time::MAX,
                    ms => now + Span::from_ms(ms.into()),
                };
                if me.machine.open(now, Open { id, peer, deadline }).is_ok() {
                    me.streams.push((peer, id));
                }
            }
            3 | 4 if !me.streams.is_empty() => {
                let (peer, id) = me.streams[input.below(me.streams.len())];
                let bytes = u64::from(input.u16());
                me.write(now, peer, id, bytes, op & 15 == 4);
            }
            5 if !me.streams.is_empty() && input.u8() & 1 == 0 => {
                let (peer, id) = me.streams[input.below(me.streams.len())];
                me.machine.cancel(now, peer, id);
            }
            // The sender of a cancelled message gets no event, so that its end could not be checked.
            5 if forges => {
                let id = MessageId::request(u64::from(me.id.0) << 20 | u64::from(input.u8()));
                me.machine.cancel(now, peer, id);
            }
            6 if forges => {
                if let Some(packet) = forged(&mut input, me.id, peer) {
                    mesh.deliver(&packet);
                }
            }
            7 if forges && !mesh.flights.is_empty() => {
                let packet = mesh.flights[input.below(mesh.flights.len())];
                if let Some(packet) = changed(&mut input, &packet) {
                    mesh.deliver(&packet);
                }
            }
            8 if forges => {
                // All state is lost, and streams with it.
                fates.restarted(me.id.0);
                (me.machine, me.streams) = (config.machine(me.id), Vec::new());
            }
            9 if !mesh.flights.is_empty() => {
                let at = input.below(mesh.flights.len());
                let packet = &mut mesh.flights[at];
                if packet.is_trimmable() {
                    packet.trim();
                } else {
                    packet.mark();
                }
            }
            _ => mesh.step(&mut input),
        }
        mesh.pump();
    }
    let rounds = if forges { 300 } else { 30_000 };
    let is_over = |hosts: &[Host]| hosts.iter().all(|host| host.machine.poll_timeout().is_none());
    let is_over = mesh.finish(Span::from_secs(300), rounds, is_over);
    if !forges {
        check(config.name(), &mesh.stations, fates, is_over);
    }
}

fn check(name: &str, hosts: &[Host], mut fates: Fates, is_over: bool) {
    // What was delivered is recorded before what was answered and acknowledged.
    let of = |host: &Host| host.fates.iter().map(|event| (host.id, *event)).collect::<Vec<_>>();
    for (id, event) in hosts.iter().flat_map(of) {
        fates.record_event(id, &event).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    // What takes longer than the rounds may still be open, as long as a timer is armed.
    let all = if is_over || fates.open() == 0 { fates.check() } else { Ok(()) };
    all.unwrap_or_else(|error| panic!("{name}: {error}"));
    for host in hosts {
        for (&(peer, id), direction) in &host.directions {
            let theirs = hosts[peer.0 as usize].directions.get(&(host.id, id));
            let written = theirs.map_or(0, |it| it.written);
            assert!(direction.readable <= written, "{id} at {}: {direction:?}", host.id);
        }
    }
}

fn layout(input: &mut Input<'_>) -> Layout {
    Layout::ALL[input.below(Layout::ALL.len())]
}

/// A packet as it may come from the wire.
fn forged(input: &mut Input<'_>, to: HostId, from: HostId) -> Option<Packet<Header>> {
    let mut packet = frame::decode(input.block()).ok()?;
    (packet.dst, packet.src) = (to, from);
    Some(packet)
}

/// A packet with one changed byte in its header.
fn changed(input: &mut Input<'_>, packet: &Packet<Header>) -> Option<Packet<Header>> {
    let (layout, mut bytes) = (layout(input), Vec::new());
    let ports = Ports::of_packet(packet);
    packet.header.encode(layout, ports, &mut bytes);
    let at = input.below(bytes.len());
    bytes[at] = input.u8();
    let payload = packet.payload().map_or(0, |slice| slice.len as usize);
    let protocol = packet.header.ip_protocol(layout);
    let (header, ports) = Header::decode(protocol, &bytes, bytes.len() + payload).ok()?;
    Some(packet.map(|_| header).with_ports(ports.source, ports.destination))
}
