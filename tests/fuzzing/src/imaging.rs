//! Images for many hosts: Frisbee's clients and server, and those of SWP2P with TCP as carrier.

use rackweave_core::{HostId, Packet, Rate, Rng, Span, Time};
use rackweave_swp2p::frisbee::{Client, ClientConfig, Layout, PaceConfig, Server, ServerConfig};
use rackweave_swp2p::intake::Expand;
use rackweave_swp2p::node::{FrisbeeNode, Machine};
use rackweave_swp2p::p2p::node::{Carrier, NodeHeader, P2pNode};
use rackweave_swp2p::p2p::{client, node, server};
use rackweave_swp2p::packet::{Header, packet};
use rackweave_swp2p::{Shape, directory, switch};
use rackweave_transport::{TransportConfig, tcp};
use rackweave_wire::frisbee::{self, Body, TO_GROUP};

use crate::input::Input;
use crate::mesh::Mesh;
use crate::node::{Full, Laden, Place};

const SERVER: HostId = HostId(0);
const CLIENTS: u32 = 3;
const IMAGE: u32 = 3;
const NAME: &[u8] = b"debian";

impl Laden for FrisbeeNode {
    const GROUP: Option<HostId> = Some(TO_GROUP);

    fn receive(&mut self, now: Time, packet: &Packet<Header>, payload: &[u8]) {
        Self::receive(self, now, packet, payload);
    }

    fn payload(&self) -> &[u8] {
        Self::payload(self)
    }
}

impl Laden for P2pNode {
    fn receive(&mut self, now: Time, packet: &Packet<NodeHeader>, payload: &[u8]) {
        Self::receive(self, now, packet, payload);
    }

    fn payload(&self) -> &[u8] {
        Self::payload(self)
    }
}

/// Any messages at Frisbee's server and clients. If none is forged and few enough are lost, each client writes each chunk once.
///
/// # Panics
/// If it does not, or time stands still.
pub fn frisbee(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let flags = input.u8();
    let forges = flags & 1 != 0;
    let chunks = 1 + u64::from(flags >> 2 & 3);
    let bytes = chunks * u64::from(Shape::FRISBEE_CHUNK) - u64::from(input.u8()) * 1024;
    let image = Shape::new(bytes, Shape::FRISBEE_CHUNK).expect("an image");
    let server =
        Server::new(ServerConfig { image: Layout::even(image), pace: PaceConfig::default() });
    let server = FrisbeeNode::new(SERVER, SERVER, Machine::Server(Box::new(server)));
    let (expand_rate, disk_rate) = (Rate::from_gbps(1), Rate::from_gbps(1));
    let expand =
        Expand { expanded_bytes: 2 * bytes, expand_rate, disk_rate, write_buffer: 64 << 20 };
    let mut stations: Vec<Place<FrisbeeNode, switch::Program>> = vec![Place::host(0, server)];
    for host in 1..=CLIENTS {
        let config =
            ClientConfig { buffers: 1 + u16::from(flags >> 4), ..ClientConfig::new(expand) };
        let start = Time::ZERO + Span::from_ms(u64::from(input.u8()));
        let client = Client::new(config, start, Rng::stream(1, 0, u64::from(host), "client"));
        let machine = Machine::Client(Box::new(client));
        stations.push(Place::host(host, FrisbeeNode::new(HostId(host), SERVER, machine)));
    }
    let mut mesh = Mesh::new(Time::ZERO, stations);
    for _ in 0..400 {
        if input.is_empty() {
            break;
        }
        match input.u8() & 7 {
            0 | 1 if forges => {
                let (from, to) = (input.u8(), input.u8());
                let to = if to & 128 == 0 { TO_GROUP } else { HostId(u32::from(to) % 4) };
                if let Some(packet) = message(HostId(u32::from(from) % 5), to, input.block()) {
                    mesh.deliver(&packet);
                }
            }
            2 if forges && !mesh.flights.is_empty() => {
                let (of, payload) = &mesh.flights[input.below(mesh.flights.len())];
                let (src, dst, header, payload) = (of.src, of.dst, of.header, payload.clone());
                if let Some(packet) = changed(&mut input, src, dst, &header.message, &payload) {
                    mesh.deliver(&packet);
                }
            }
            _ => mesh.step(&mut input),
        }
        mesh.pump();
    }
    mesh.finish(Span::from_secs(30), 300, |all| {
        all.iter().filter_map(Place::node).all(FrisbeeNode::is_done)
    });
    for client in mesh.stations.iter().filter_map(|it| it.node()?.client()) {
        assert!(forges || client.finished_at().is_none() || client.is_exact());
    }
}

/// Any messages at SWP2P's server and clients. If none is forged, each client writes the image, or fails with a reason.
///
/// # Panics
/// If it does not, or time stands still.
pub fn swp2p(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let flags = input.u8();
    let forges = flags & 1 != 0;
    let carrier = Carrier::Transport(TransportConfig::from(tcp::Config::tcp()));
    let shape = Shape::new(u64::from(input.u8()) * 700 + 1, 3_000).expect("an image");
    let directory = (flags & 2 == 0).then(directory::Config::default);
    let config = server::Config { directory, ..server::Config::default() };
    let server = P2pNode::server(SERVER, &carrier, config, &[(IMAGE, NAME.to_vec(), shape)]);
    let mut stations: Vec<Place<P2pNode, switch::Program>> = vec![Place::host(0, server)];
    for host in 1..=CLIENTS {
        let config = node::ClientConfig {
            client: client::Config::default(),
            server: SERVER,
            name: NAME.to_vec(),
            start: Time::ZERO + Span::from_ms(u64::from(input.u8())),
            expand: None,
            corrupts: flags >> 4 == host as u8,
        };
        let rng = Rng::stream(1, 0, u64::from(host), "client");
        stations.push(Place::host(host, P2pNode::client(HostId(host), &carrier, config, rng)));
    }
    let mut mesh = Mesh::new(Time::ZERO, stations);
    for _ in 0..400 {
        if input.is_empty() {
            break;
        }
        let op = input.u8();
        match op & 7 {
            0 | 1 if forges => {
                let (from, to) = (HostId(u32::from(op >> 3) % 5), HostId(u32::from(op >> 6)));
                if let Some((packet, payload)) = message(from, to, input.block())
                    && is_moderate(&packet.header.message.body)
                {
                    mesh.deliver(&(packet.map(NodeHeader::Group), payload));
                }
            }
            2 => {
                let (now, at) = (mesh.now, usize::from(op >> 3) % mesh.stations.len());
                if let Some(node) = mesh.stations[at].node_mut() {
                    let down = !node.is_down();
                    node.crash(now, down);
                }
            }
            _ => mesh.step(&mut input),
        }
        mesh.pump();
    }
    let now = mesh.now;
    for node in mesh.stations.iter_mut().filter_map(Place::node_mut) {
        if node.is_down() {
            node.crash(now, false);
        }
    }
    let rounds = if forges { 300 } else { 30_000 };
    let is_over = mesh.finish(Span::from_secs(3_600), rounds, |all| {
        all.iter().filter_map(Place::node).all(P2pNode::is_done)
    });
    assert!(forges || is_over, "a client has neither the image nor a failure");
}

/// Whether a node of the simulator, which keeps state for any image that its server names, can bear the message. On a real host the
/// manifest bounds the image.
fn is_moderate(body: &Body) -> bool {
    match body {
        Body::Entered { bytes, chunk_bytes, .. } => {
            bytes.get() / u64::from((*chunk_bytes).max(1)) < 1 << 20
        }
        _ => true,
    }
}

fn message(from: HostId, to: HostId, bytes: &[u8]) -> Option<Full<Header>> {
    let read = frisbee::decode(bytes).ok()?;
    Some((packet(from, to, read.header.body), bytes[read.payload].to_vec()))
}

/// A message with one changed byte.
fn changed(
    input: &mut Input<'_>,
    from: HostId,
    to: HostId,
    of: &frisbee::Header,
    payload: &[u8],
) -> Option<Full<Header>> {
    let mut bytes = Vec::new();
    frisbee::encode(of, &mut bytes);
    bytes.extend_from_slice(payload);
    let at = input.below(bytes.len());
    bytes[at] = input.u8();
    message(from, to, &bytes)
}
