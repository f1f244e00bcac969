//! The simulator's switches and the user-space switch decide alike: the same messages, sent at the same times, arrive at the same
//! hosts at the same times, to the tick, with the same bytes.

use rackweave_core::{Header as _, Mixed, Node as _, Packet, PayloadStore, Rng, Time};
use rackweave_switch::net::{Edge, NetEvent, Slab};
use rackweave_switch::system::{Simulated, System as _};
use rackweave_switch::{Net, NetConfig};
use rackweave_swp2p::p2p::node::{Carrier, ClientConfig, NodeHeader, P2pNode};
use rackweave_swp2p::p2p::{client, server};
use rackweave_swp2p::packet::packet;
use rackweave_swp2p::{Shape, switch};
use rackweave_transport::{TransportConfig, tcp};

use super::super::frame::Carried;
use super::*;

/// What a host sends: when its first bit leaves, and the payload of a message.
struct Sent {
    at: Time,
    host: HostId,
    packet: Packet<NodeHeader>,
    payload: Vec<u8>,
}

/// What a host receives: when its last bit arrives, which packet, and the message.
type Seen = (Time, HostId, HostId, HostId, u16, u8, Vec<u8>);

type Network = Net<Simulated<Option<switch::Program>, NodeHeader>, Slab>;

fn message_of(packet: &Packet<NodeHeader>, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Mixed::Group(header) = &packet.header {
        encode(&header.message, &mut bytes);
        bytes.extend_from_slice(payload);
    }
    bytes
}

fn network() -> Network {
    let fabric = Arc::new(fabric(LEAVES));
    let system = Swp2p { config: Config::data_plane(SERVER), key: None };
    let mut programs = system.programs(&fabric).unwrap().into_iter();
    Net::new(NetConfig::new(fabric, 1, 0), Slab::default(), |_| Simulated::new(programs.next()))
}

/// The simulated hosts: what they send is written down.
struct Hosts {
    nodes: Vec<P2pNode>,
    sent: Vec<Sent>,
}

impl Edge<NodeHeader> for Hosts {
    fn poll_transmit(&mut self, host: HostId, at: Time) -> Option<Packet<NodeHeader>> {
        self.nodes[host.0 as usize].poll_transmit(at, 0)
    }

    fn poll_with_payload<B: PayloadStore<NodeHeader>>(
        &mut self,
        host: HostId,
        at: Time,
        payloads: &mut B,
    ) -> Option<Packet<NodeHeader>> {
        let mut packet = self.poll_transmit(host, at)?;
        let payload = self.nodes[host.0 as usize].payload().to_vec();
        self.sent.push(Sent { at, host, packet, payload: payload.clone() });
        if !payload.is_empty() {
            packet.header = payloads.make(packet.header, payload.len())?;
            payloads.write(&packet).copy_from_slice(&payload);
        }
        Some(packet)
    }

    fn poll_timeout(&self, host: HostId) -> Time {
        self.nodes[host.0 as usize].poll_timeout().unwrap_or(Time::MAX)
    }
}

/// Runs the simulator until all clients have the image, and returns what was sent and received.
fn simulate(mut hosts: Hosts) -> (Vec<Sent>, Vec<Seen>) {
    let mut net = network();
    let mut seen = Vec::new();
    for host in 0..net.hosts() {
        net.wake(&mut hosts, HostId(host));
    }
    while let Some(event) = net.step(&mut hosts, Time::ZERO + Span::from_secs(60)) {
        let now = net.now();
        match event {
            NetEvent::Arrived { host, packet } => {
                net.flush(&mut hosts, host);
                let (of, payload) = (*net.packet(packet), net.payload(packet));
                let bytes = message_of(&of, payload);
                seen.push((now, host, of.src, of.dst, of.wire_bytes, of.priority, bytes));
                hosts.nodes[host.0 as usize].receive(now, &of, payload);
                net.free(packet);
                net.wake(&mut hosts, host);
            }
            NetEvent::Timer(host) => {
                net.flush(&mut hosts, host);
                hosts.nodes[host.0 as usize].handle_timeout(now);
                net.wake(&mut hosts, host);
            }
            _ => continue,
        }
        if hosts.nodes[1..].iter().all(P2pNode::is_done) {
            return (hosts.sent, seen);
        }
    }
    panic!("the image does not arrive: {:?}", hosts.nodes[1].record());
}

/// Sends the same through the user-space switch's fabric: messages as frames, packets of the carrier as frames of another kind.
fn replay(sent: &[Sent]) -> (Vec<Seen>, Bench) {
    let mut bench = Bench::new(LEAVES, Encapsulation::Ethernet, None);
    let mut seen = Vec::new();
    for Sent { at, host, packet, payload } in sent {
        bench.core.run(*at);
        take(&mut bench, &mut seen);
        let message = message_of(packet, payload);
        let (frame, read) = if message.is_empty() {
            (vec![0], packet.map(|header| Carried::opaque(0, 1, header.path())))
        } else {
            let frame = ethernet(packet.src, packet.dst, &message);
            let read = read_frame(&frame, *host, &bench.rules).unwrap();
            assert!(read.header.view().is_some());
            (frame, read)
        };
        let slot = bench.core.payloads().insert(&frame).unwrap();
        bench.core.arrive(*at, *host, read.map(|carried| carried.with_slot(slot)));
    }
    bench.core.run(bench.core.now() + Span::from_secs(1));
    take(&mut bench, &mut seen);
    (seen, bench)
}

fn take(bench: &mut Bench, seen: &mut Vec<Seen>) {
    while let Some(departure) = bench.core.departure() {
        let (host, of) = (departure.host, departure.packet);
        let mut bytes = Vec::new();
        if of.header.view().is_some() {
            let len = finish_frame(bench.core.payloads(), &of, host);
            let frame = &bench.core.payloads().get(of.header.slot)[..len];
            assert_eq!(check_frame(frame, host), of.src);
            bytes.extend_from_slice(&frame[42..]);
        }
        bench.core.payloads().release(of.header.slot);
        seen.push((departure.due, host, of.src, of.dst, of.wire_bytes, of.priority, bytes));
    }
}

/// Compares up to a time, and returns how many messages arrived.
fn compare(mut expected: Vec<Seen>, mut found: Vec<Seen>, until: Time) -> usize {
    for list in [&mut expected, &mut found] {
        list.retain(|seen| seen.0 < until);
        list.sort_unstable();
    }
    if let Some(at) = expected.iter().zip(&found).position(|(expected, found)| expected != found) {
        panic!("{at}: found {:?}, expected {:?}", found[at], expected[at]);
    }
    assert_eq!(expected.len(), found.len());
    expected.iter().filter(|seen| !seen.6.is_empty()).count()
}

/// Clients of an image, with chunks over TCP on the same links.
#[test]
fn clients_of_an_image() {
    let carrier = Carrier::Transport(TransportConfig::Tcp(Arc::new(tcp::Config::tcp())));
    let images = [(3, b"debian".to_vec(), Shape::new(96 << 16, 1 << 16).unwrap())];
    let config = server::Config::default();
    let mut nodes = vec![P2pNode::server(SERVER, &carrier, config, &images)];
    for host in 1..9 {
        let config = ClientConfig {
            client: client::Config {
                linger: Span::from_ms(20),
                // Batches of different clients do not begin at the same chunks, so that some have to be divided.
                batch: 5,
                ..client::Config::default()
            },
            server: SERVER,
            name: b"debian".to_vec(),
            start: Time::ZERO + Span::from_us(u64::from(host) * 3001),
            expand: None,
            corrupts: false,
        };
        let rng = Rng::stream(1, 0, u64::from(host), "client");
        nodes.push(P2pNode::client(HostId(host), &carrier, config, rng));
    }
    let (sent, expected) = simulate(Hosts { nodes, sent: Vec::new() });
    let (found, bench) = replay(&sent);
    let until = Time::from_ticks(expected.last().unwrap().0.ticks() - Span::from_us(100).ticks());
    let messages = compare(expected, found, until);
    let counters = bench.counters();
    assert!(messages > 500 && counters["redirected"] > 100, "{messages} {counters:?}");
    assert!(counters["split"] > 5 && counters["chunks_to_pending"] > 10, "{counters:?}");
}

/// All kinds of messages in any order, sensible or not.
#[test]
fn messages_in_any_order() {
    for seed in 1..=4 {
        let mut rng = Rng::stream(seed, 0, 0, "messages");
        let mut net = network();
        let (mut sent, mut expected) = (Vec::new(), Vec::new());
        let mut at = Time::ZERO;
        for _ in 0..3000 {
            at += Span::from_ticks(1 + rng.below(20_000_000));
            let host = HostId(rng.below(9) as u32);
            let (body, payload) = any(&mut rng);
            let to = if rng.chance(0.9) { SERVER } else { HostId(rng.below(9) as u32) };
            if host == to {
                continue;
            }
            let packet = packet(host, to, body).map(Mixed::Group).with_priority(7);
            sent.push(Sent { at, host, packet, payload: payload.clone() });
            net.run(at);
            drain(&mut net, &mut expected);
            let mut packet = packet;
            if !payload.is_empty() {
                packet.header = net.payloads().make(packet.header, payload.len()).unwrap();
                net.payloads().write(&packet).copy_from_slice(&payload);
            }
            net.arrive(at, host, packet);
        }
        net.run(at + Span::from_secs(1));
        drain(&mut net, &mut expected);
        let (found, bench) = replay(&sent);
        let messages = compare(expected, found, Time::MAX);
        let counters = bench.counters();
        assert!(messages > 2000, "{messages}");
        for name in
            ["redirected", "split", "chunks_returned", "chunks_to_pending", "chunks_to_server"]
        {
            assert!(counters[name] > 5, "{name}: {counters:?}");
        }
    }
}

fn drain(net: &mut Network, seen: &mut Vec<Seen>) {
    while let Some(departure) = net.departure() {
        let (host, of) = (departure.host, departure.packet);
        let bytes = message_of(&of, PayloadStore::read(net.payloads(), &of));
        PayloadStore::release(net.payloads(), &of);
        seen.push((departure.due, host, of.src, of.dst, of.wire_bytes, of.priority, bytes));
    }
}

/// A message about the first chunks of one of two images.
fn any(rng: &mut Rng) -> (Body, Vec<u8>) {
    let image = 1 + rng.below(2) as u32;
    let chunks = Chunks {
        image,
        first: rng.below(64) as u32,
        count: rng.below(9) as u16,
        tries: rng.below(20).saturating_sub(15) as u16,
    };
    let some_host = ip_address(HostId(rng.below(10) as u32)).unwrap();
    match rng.below(20) {
        0..8 => (Body::Batch(chunks), Vec::new()),
        8..12 => {
            let mut map = vec![0; REPORT_MAP_BYTES as usize];
            map[..8].copy_from_slice(&(rng.next_u64() & rng.next_u64()).to_le_bytes());
            (Body::Report { image, window: rng.below(3).saturating_sub(1) as u32 }, map)
        }
        12..16 => (Body::Return { chunks, requester: some_host }, Vec::new()),
        16 => (Body::Exit { client: 1, image }, Vec::new()),
        17 => (Body::Damaged { image, chunk: chunks.first, holder: some_host }, Vec::new()),
        18 => (Body::Enter { client: 1, name_len: 6 }, b"debian".to_vec()),
        _ => (Body::Redirect { chunks, requester: some_host }, Vec::new()),
    }
}
