//! SWP2P on the network engine: server, clients, switches with their program, TCP as carrier.

mod chaos;
mod goals;
mod golden;
mod hostile;
mod several;
mod single;

use std::sync::Arc;

use rackweave_core::{HostId, Packet, PayloadStore, Rate, Rng, Span, Time};
use rackweave_switch::config::{FabricConfig, Fault, FaultKind, SwitchConfig, Topology};
use rackweave_switch::net::{Edge, NetEvent, Slab};
use rackweave_switch::system::{Simulated, System as _};
use rackweave_switch::{Fabric, Net, NetConfig};
use rackweave_transport::{TransportConfig, tcp};

use super::node::{Carrier, ClientConfig, NodeHeader, P2pNode, Record};
use super::{client, server};
use crate::intake::Expand;
use crate::switch::Program;
use crate::system::Swp2p;
use crate::{Shape, directory, switch};

const SERVER: HostId = HostId(0);
const IMAGE: u32 = 3;
const NAME: &[u8] = b"debian";
const SECOND: (u32, &[u8]) = (4, b"fedora");

/// Who redirects requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Assist {
    Switch,
    Server,
    Nobody,
}

#[derive(Clone, Debug)]
struct Setup {
    rate: Rate,
    /// The numbers of leaf switches, and of hosts at each.
    leaves: u32,
    per_leaf: u32,
    clients: u32,
    expected: u16,
    shape: Shape,
    starts: Vec<Span>,
    assist: Assist,
    directory: directory::Config,
    client: client::Config,
    serve: super::Serve,
    per_second: u32,
    queue: u32,
    expand: Option<Expand>,
    faults: Vec<Fault>,
    corrupts: Vec<u32>,
    /// The clients of a second image of the same shape.
    of_second: Vec<u32>,
    seed: u64,
    until: Span,
}

impl Setup {
    fn new(clients: u32, chunks: u64, mbps: u64) -> Self {
        Self {
            rate: Rate(mbps * 1_000_000),
            leaves: 1,
            per_leaf: clients + 1,
            clients,
            expected: 0,
            shape: Shape::new(chunks << 20, 1 << 20).unwrap(),
            starts: Vec::new(),
            assist: Assist::Switch,
            directory: directory::Config::default(),
            client: client::Config::default(),
            serve: super::Serve::default(),
            per_second: 0,
            queue: 1000,
            expand: None,
            faults: Vec::new(),
            corrupts: Vec::new(),
            of_second: Vec::new(),
            seed: 1,
            until: Span::from_secs(600),
        }
    }

    fn fabric(&self) -> Fabric {
        let topology = if self.leaves > 1 {
            Topology::LeafSpine {
                leaves: self.leaves,
                hosts_per_leaf: self.per_leaf,
                spines: 1,
                host_link: self.rate,
                core_link: self.rate,
            }
        } else {
            Topology::SingleSwitch { hosts: self.per_leaf, host_link: self.rate }
        };
        Fabric::new(
            &FabricConfig::new(topology)
                .with_link_delay(Span::from_us(5))
                .without_host_delays()
                .with_switch(
                    SwitchConfig::default()
                        .with_latency(Span::from_us(1))
                        .with_buffer(512 << 10)
                        .without_marking(),
                ),
        )
        .unwrap()
    }

    fn run(&self) -> Outcome {
        let fabric = Arc::new(self.fabric());
        let transport = Carrier::Transport(TransportConfig::Tcp(Arc::new(tcp::Config::tcp())));
        let mut images = vec![(IMAGE, NAME.to_vec(), self.shape)];
        if !self.of_second.is_empty() {
            images.push((SECOND.0, SECOND.1.to_vec(), self.shape));
        }
        let own = (self.assist == Assist::Server).then_some(self.directory);
        let config = server::Config { serve: self.serve, directory: own, expected: self.expected };
        let mut nodes = vec![P2pNode::server(SERVER, &transport, config, &images)];
        for host in 1..fabric.hosts() {
            let start = self.starts.get(host as usize - 1).copied().unwrap_or(Span::ZERO);
            let is_client = host <= self.clients;
            let config = ClientConfig {
                client: self.client,
                server: SERVER,
                name: if self.of_second.contains(&host) { SECOND.1 } else { NAME }.to_vec(),
                start: if is_client { Time::ZERO + start } else { Time::MAX },
                expand: self.expand,
                corrupts: self.corrupts.contains(&host),
            };
            let rng = Rng::stream(self.seed, 0, u64::from(host), "client");
            nodes.push(P2pNode::client(HostId(host), &transport, config, rng));
        }
        let directory = self.directory;
        let config = switch::Config {
            server: SERVER,
            directory,
            per_second: self.per_second,
            queue: self.queue,
        };
        let active = self.assist == Assist::Switch;
        let mut programs = Swp2p { config, key: None }.programs(&fabric).unwrap().into_iter();
        let faults = self.faults.clone();
        let net_config = NetConfig { faults, ..NetConfig::new(fabric, self.seed, 0) };
        let program = |_| Simulated::new(active.then(|| programs.next().unwrap()));
        let net: Network = Net::new(net_config, Slab::default(), program);
        let mut world = World { net, hosts: Hosts { nodes } };
        let end = world.run(self.clients, Time::ZERO + self.until);
        Outcome { world, end, setup: self.clone() }
    }
}

type Network = Net<Simulated<Option<Program>, NodeHeader>, Slab>;

struct Hosts {
    nodes: Vec<P2pNode>,
}

impl Edge<NodeHeader> for Hosts {
    fn poll_transmit(&mut self, host: HostId, at: Time) -> Option<Packet<NodeHeader>> {
        use rackweave_core::Node as _;
        self.nodes[host.0 as usize].poll_transmit(at, 0)
    }

    fn poll_with_payload<B: PayloadStore<NodeHeader>>(
        &mut self,
        host: HostId,
        at: Time,
        payloads: &mut B,
    ) -> Option<Packet<NodeHeader>> {
        let mut packet = self.poll_transmit(host, at)?;
        let bytes = self.nodes[host.0 as usize].payload();
        if !bytes.is_empty() {
            packet.header = payloads.make(packet.header, bytes.len())?;
            payloads.write(&packet).copy_from_slice(bytes);
        }
        Some(packet)
    }

    fn poll_timeout(&self, host: HostId) -> Time {
        use rackweave_core::Node as _;
        self.nodes[host.0 as usize].poll_timeout().unwrap_or(Time::MAX)
    }
}

struct World {
    net: Network,
    hosts: Hosts,
}

impl World {
    /// Runs until all clients are done.
    fn run(&mut self, clients: u32, until: Time) -> Time {
        use rackweave_core::Node as _;
        for host in 0..self.net.hosts() {
            self.net.wake(&mut self.hosts, HostId(host));
        }
        let mut same = (Time::ZERO, 0);
        while let Some(event) = self.net.step(&mut self.hosts, until) {
            let now = self.net.now();
            same = if same.0 == now { (now, same.1 + 1) } else { (now, 0) };
            assert!(same.1 < 1_000_000, "time stands still at {now}");
            match event {
                NetEvent::Arrived { host, packet } => {
                    self.net.flush(&mut self.hosts, host);
                    let node = &mut self.hosts.nodes[host.0 as usize];
                    node.receive(now, self.net.packet(packet), self.net.payload(packet));
                    self.net.free(packet);
                    self.net.wake(&mut self.hosts, host);
                }
                NetEvent::Timer(host) => {
                    self.net.flush(&mut self.hosts, host);
                    self.hosts.nodes[host.0 as usize].handle_timeout(now);
                    self.net.wake(&mut self.hosts, host);
                }
                NetEvent::Faults => self.crash(now),
                _ => continue,
            }
            if self.hosts.nodes[1..=clients as usize].iter().all(P2pNode::is_done) {
                return now;
            }
        }
        self.net.now()
    }

    fn crash(&mut self, now: Time) {
        for host in 0..self.net.hosts() {
            let down = self.net.host_fault(HostId(host)) == Some(FaultKind::Crash);
            let node = &mut self.hosts.nodes[host as usize];
            if down != node.is_down() {
                node.crash(now, down);
                self.net.resume(&mut self.hosts, HostId(host));
            }
        }
    }
}

struct Outcome {
    world: World,
    end: Time,
    setup: Setup,
}

impl Outcome {
    fn record(&self, client: u32) -> &Record {
        self.world.hosts.nodes[client as usize].record().unwrap()
    }

    fn client(&self, host: u32) -> &client::Client {
        self.world.hosts.nodes[host as usize].as_client().unwrap()
    }

    fn server(&self) -> &server::Server {
        self.world.hosts.nodes[0].as_server().unwrap()
    }

    fn switches(&self) -> impl Iterator<Item = &switch::Counters> {
        let count = self.world.net.fabric().switches();
        (0..count).filter_map(|n| Some(self.world.net.program(n).program().as_ref()?.counts()))
    }

    fn copies(&self) -> f64 {
        self.server().counters().started as f64 / f64::from(self.setup.shape.chunks())
    }

    /// The time in which each client received the image, over the ideal time of one copy over one link.
    fn slowdowns(&self) -> Vec<f64> {
        let wire = self.setup.shape.bytes().div_ceil(1448) * 1538;
        let ideal = self.setup.rate.span_of(wire).as_secs_f64();
        let time = |host: u32| {
            let start = self.setup.starts.get(host as usize - 1).copied().unwrap_or(Span::ZERO);
            let received = self.record(host).received.unwrap_or(Time::MAX);
            received.since(Time::ZERO + start).as_secs_f64() / ideal
        };
        (1..=self.setup.clients).map(time).collect()
    }

    /// Every client has every chunk, each received once.
    fn check_complete(&self) {
        for host in 1..=self.setup.clients {
            assert!(self.record(host).written.is_some(), "client {host}: {:?}", self.record(host));
        }
    }
}
