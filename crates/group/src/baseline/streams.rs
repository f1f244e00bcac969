//! One-to-many over streams (TCP's, or those of any transport that has some): a connection to each client, or to the first of
//! them, who passes everything on to the next.
//!
//! A link of the chain stores and forwards: it writes on what it has in chunks, the rest of a file when the file is whole.
//! Every client acknowledges files to the server, over a stream of its own.

use std::convert::Infallible;

use rackweave_core::{
    Event, HostId, MessageId, Node, Open, Packet, StreamEvent, Time, Transport as _,
};
use rackweave_transport::{Machine, TransportConfig};
use rackweave_wire::Header;

use super::{ACK_BYTES, Client, Cost, Deliveries, Rounds, Write, Writers};

/// How a server sends.
#[derive(Clone, Debug)]
pub struct Config {
    /// What carries the streams.
    pub transport: TransportConfig,
    /// The server's hosts: one for each of its ports.
    pub hosts: Vec<HostId>,
    /// Bytes of the buffers that its processes write.
    pub buffer: u64,
    /// Bytes that a socket holds until they are acknowledged.
    pub socket_bytes: u64,
    /// Processes that share the connections.
    pub processes: u32,
    /// What their work costs.
    pub cost: Cost,
    /// Only the first client is written to: the others get it from each other.
    pub chain: bool,
}

/// A direction of a stream that this host writes.
#[derive(Clone, Copy, Debug)]
struct Outlet {
    /// Which of the host's machines it belongs to.
    machine: usize,
    peer: HostId,
    id: MessageId,
    /// Written and not acknowledged.
    waits: u64,
}

/// Every host opens one stream to each other host at most, but for a client's two to its server and its successor: even so
/// ids are the same everywhere.
const STREAM: MessageId = MessageId::request(2);
const ACKS: MessageId = MessageId::request(1);

impl Outlet {
    fn open(machines: &mut [Machine], machine: usize, peer: HostId, id: MessageId) -> Option<Self> {
        let stream = Open { id, peer, deadline: Time::MAX };
        let opened = machines.get_mut(machine)?.open(Time::ZERO, stream).is_ok();
        opened.then_some(Self { machine, peer, id, waits: 0 })
    }

    /// What is refused was never written: a peer that is gone.
    fn write(&mut self, now: Time, machines: &mut [Machine], bytes: u64) -> bool {
        let Some(machine) = machines.get_mut(self.machine) else { return false };
        let taken = machine.write(now, self.peer, self.id, bytes, false).is_ok();
        self.waits += if taken { bytes } else { 0 };
        taken
    }
}

fn earliest(machines: &[Machine]) -> Option<Time> {
    machines.iter().filter_map(Machine::poll_timeout).min()
}

/// The server.
#[derive(Debug)]
pub struct Server {
    machines: Vec<Machine>,
    clients: Vec<Client>,
    outlets: Vec<Outlet>,
    rounds: Rounds,
    writers: Writers,
    socket_bytes: u64,
    /// By client: bytes of acknowledgements.
    acks: Vec<u64>,
    begun: bool,
}

impl Server {
    /// A server of these files. In a chain, clients are in its order.
    #[must_use]
    pub fn new(config: &Config, clients: Vec<Client>, rounds: Rounds) -> Self {
        let mut machines: Vec<Machine> =
            config.hosts.iter().map(|host| config.transport.machine(*host)).collect();
        let direct = if config.chain { 1 } else { clients.len() };
        let to = clients.iter().take(direct);
        let outlets: Vec<Outlet> = to
            .filter_map(|c| Outlet::open(&mut machines, usize::from(c.port), c.host, STREAM))
            .collect();
        let processes = config.processes as usize;
        Self {
            writers: Writers::new(config.cost, config.buffer, outlets.len(), processes),
            acks: vec![0; clients.len()],
            socket_bytes: config.socket_bytes,
            begun: false,
            machines,
            clients,
            outlets,
            rounds,
        }
    }

    /// Its files.
    #[must_use]
    pub const fn rounds(&self) -> &Rounds {
        &self.rounds
    }

    fn work(&mut self, now: Time) {
        self.begun = true;
        loop {
            while let Some(bytes) = self.rounds.begin(now, self.writers.is_idle()) {
                self.writers.begin(bytes);
            }
            let (outlets, most) = (&self.outlets, self.socket_bytes);
            let room = |socket: usize| outlets.get(socket).is_some_and(|o| o.waits < most);
            let Some(Write { socket, bytes }) = self.writers.advance(now, room) else { break };
            self.outlets[socket].write(now, &mut self.machines, bytes);
        }
    }

    fn events(&mut self, now: Time) {
        for machine in 0..self.machines.len() {
            while let Some(event) = self.machines[machine].poll_event() {
                match event {
                    Event::Stream(StreamEvent::Readable { peer, id, bytes, .. }) => {
                        self.machines[machine].consume(now, peer, id, bytes);
                        if let Some(client) = self.clients.iter().position(|c| c.host == peer) {
                            self.acks[client] += bytes;
                            let files = self.acks[client] / u64::from(ACK_BYTES);
                            self.rounds.acknowledge(now, client, files as u32);
                        }
                    }
                    Event::Stream(StreamEvent::Acked { peer, id, bytes }) => {
                        let of = |o: &&mut Outlet| (o.machine, o.peer, o.id) == (machine, peer, id);
                        if let Some(outlet) = self.outlets.iter_mut().find(of) {
                            outlet.waits = outlet.waits.saturating_sub(bytes);
                        }
                    }
                    Event::Failed { peer, .. } => {
                        if let Some(client) = self.clients.iter().position(|c| c.host == peer) {
                            self.rounds.lose(now, client);
                        }
                        // Its socket takes everything and passes on nothing: the others go on.
                        for outlet in self.outlets.iter_mut().filter(|o| o.peer == peer) {
                            outlet.waits = 0;
                        }
                    }
                    _ => {}
                }
            }
        }
        self.work(now);
    }
}

impl Node for Server {
    type Header = Header;
    type Event = Infallible;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, port: u8, packet: &Packet<Header>) {
        if let Some(machine) = self.machines.get_mut(usize::from(port)) {
            let _ = machine.handle_packet(now, 0, packet);
            self.events(now);
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        for machine in &mut self.machines {
            machine.handle_timeout(now);
        }
        self.events(now);
    }

    fn poll_transmit(&mut self, now: Time, port: u8) -> Option<Packet<Header>> {
        let port = usize::from(port);
        let packet = self.machines.get_mut(port)?.poll_transmit(now, 0);
        self.events(now);
        // What has only now been written leaves by a link that is free.
        packet.or_else(|| self.machines[port].poll_transmit(now, 0))
    }

    fn poll_timeout(&self) -> Option<Time> {
        if !self.begun {
            return Some(Time::ZERO);
        }
        [earliest(&self.machines), self.writers.poll_timeout()].into_iter().flatten().min()
    }

    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }
}

/// A client, and a link of the chain if it has a successor.
#[derive(Debug)]
pub struct Receiver {
    machines: [Machine; 1],
    server: Outlet,
    next: Option<Outlet>,
    deliveries: Deliveries,
    chunk: u64,
    socket_bytes: u64,
    /// Bytes here, and bytes passed on.
    have: u64,
    passed: u64,
}

impl Receiver {
    /// A client that acknowledges to `server` and passes everything on to `next` in chunks. `None`: its transport has no
    /// streams.
    #[must_use]
    pub fn new(
        config: &Config,
        me: HostId,
        server: HostId,
        next: Option<(HostId, u64)>,
        deliveries: Deliveries,
    ) -> Option<Self> {
        let mut machines = [config.transport.machine(me)];
        let server = Outlet::open(&mut machines, 0, server, ACKS)?;
        let chunk = next.map_or(1, |(_, chunk)| chunk.max(1));
        let next = match next {
            Some((next, _)) => Some(Outlet::open(&mut machines, 0, next, STREAM)?),
            None => None,
        };
        let socket_bytes = config.socket_bytes;
        Some(Self { machines, server, next, deliveries, chunk, socket_bytes, have: 0, passed: 0 })
    }

    /// What it has.
    #[must_use]
    pub const fn deliveries(&self) -> &Deliveries {
        &self.deliveries
    }

    fn events(&mut self, now: Time) {
        while let Some(event) = self.machines[0].poll_event() {
            match event {
                Event::Stream(StreamEvent::Readable { peer, id, bytes, .. }) => {
                    self.machines[0].consume(now, peer, id, bytes);
                    let had = self.deliveries.completed().len();
                    self.have += bytes;
                    self.deliveries.arrived(now);
                    if let Some(files) = self.deliveries.readable(now, self.have) {
                        let new = u64::from(files) - had as u64;
                        self.server.write(now, &mut self.machines, new * u64::from(ACK_BYTES));
                    }
                }
                Event::Stream(StreamEvent::Acked { peer, id, bytes }) => {
                    let outlets = self.next.iter_mut().chain([&mut self.server]);
                    for outlet in outlets.filter(|o| (o.peer, o.id) == (peer, id)) {
                        outlet.waits = outlet.waits.saturating_sub(bytes);
                    }
                }
                _ => {}
            }
        }
        self.pass_on(now);
    }

    fn pass_on(&mut self, now: Time) {
        let Some(next) = &mut self.next else { return };
        // What is here of a file that is not whole waits for a chunk to be full.
        let whole = self.deliveries.next_begin();
        while next.waits < self.socket_bytes {
            let waits = self.have - self.passed;
            let bytes =
                if waits >= self.chunk { self.chunk } else { whole.saturating_sub(self.passed) };
            if bytes == 0 || !next.write(now, &mut self.machines, bytes) {
                break;
            }
            self.passed += bytes;
        }
    }
}

impl Node for Receiver {
    type Header = Header;
    type Event = Infallible;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, _port: u8, packet: &Packet<Header>) {
        let _ = self.machines[0].handle_packet(now, 0, packet);
        self.events(now);
    }

    fn handle_timeout(&mut self, now: Time) {
        self.machines[0].handle_timeout(now);
        self.events(now);
    }

    fn poll_transmit(&mut self, now: Time, _port: u8) -> Option<Packet<Header>> {
        let packet = self.machines[0].poll_transmit(now, 0);
        self.events(now);
        packet.or_else(|| self.machines[0].poll_transmit(now, 0))
    }

    fn poll_timeout(&self) -> Option<Time> {
        earliest(&self.machines)
    }

    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rackweave_core::Span;
    use rackweave_transport::tcp;

    use super::*;

    #[expect(clippy::large_enum_variant, reason = "a handful in a test")]
    enum Any {
        Server(Server),
        Receiver(Receiver),
    }

    impl Any {
        fn node(&mut self) -> &mut dyn Node<Header = Header, Event = Infallible, Placement = ()> {
            match self {
                Self::Server(server) => server,
                Self::Receiver(receiver) => receiver,
            }
        }
    }

    /// All hosts on one wire of 1 us and no limit.
    fn run(files: &[u64], clients: u32, chain: bool) -> (Vec<Any>, Vec<u64>) {
        let config = Config {
            transport: TransportConfig::Tcp(Arc::new(tcp::Config::tcp())),
            hosts: vec![HostId(0)],
            buffer: 65_507,
            socket_bytes: 1 << 20,
            processes: 1,
            cost: Cost { per_buffer: Span::from_us(1), copy_rate: None },
            chain,
        };
        let who = (1..=clients).map(|host| Client { host: HostId(host), port: 0 }).collect();
        let rounds = Rounds::new(files.into(), clients as usize, true);
        let mut nodes = vec![Any::Server(Server::new(&config, who, rounds))];
        for host in 1..=clients {
            let next = (chain && host < clients).then_some((HostId(host + 1), 16_384));
            let deliveries = Deliveries::new(files, Time::MAX);
            let receiver = Receiver::new(&config, HostId(host), HostId(0), next, deliveries);
            nodes.push(Any::Receiver(receiver.expect("TCP has streams")));
        }
        let mut sent = vec![0; nodes.len()];
        let mut wire: Vec<(Time, Packet<Header>)> = Vec::new();
        let mut now = Time::ZERO;
        for _ in 0..1_000_000 {
            for (host, node) in nodes.iter_mut().enumerate() {
                while let Some(packet) = node.node().poll_transmit(now, 0) {
                    sent[host] += u64::from(packet.wire_bytes);
                    wire.push((now + Span::from_us(1), packet));
                }
            }
            if matches!(&nodes[0], Any::Server(server) if server.rounds().is_done()) {
                return (nodes, sent);
            }
            let arrival = wire.iter().map(|(at, _)| *at).min();
            let timeout = nodes.iter_mut().filter_map(|node| node.node().poll_timeout()).min();
            now = [arrival, timeout].into_iter().flatten().min().expect("stalled").max(now);
            for node in &mut nodes {
                if node.node().poll_timeout().is_some_and(|at| at <= now) {
                    node.node().handle_timeout(now);
                }
            }
            let (due, later): (Vec<_>, Vec<_>) = wire.into_iter().partition(|(at, _)| *at <= now);
            wire = later;
            for (_, packet) in due {
                nodes[packet.dst.0 as usize].node().handle_packet(now, 0, &packet);
            }
        }
        panic!("no end");
    }

    fn check(files: &[u64], clients: u32, chain: bool) -> Vec<u64> {
        let (nodes, sent) = run(files, clients, chain);
        for node in &nodes {
            match node {
                Any::Server(server) => {
                    let ended = server.rounds().times().filter(|(_, ended)| ended.is_some());
                    assert_eq!(ended.count(), files.len());
                }
                Any::Receiver(receiver) => assert!(receiver.deliveries().is_complete()),
            }
        }
        sent
    }

    #[test]
    fn connections_in_parallel_send_every_byte_to_each() {
        let files = [300_000, 1, 20_000];
        let sent = check(&files, 3, false);
        assert!(sent[0] > 3 * 320_001, "{sent:?}");
        assert!(sent[1] < 100_000, "clients only acknowledge: {sent:?}");
    }

    #[test]
    fn in_a_chain_every_host_sends_it_once() {
        let sent = check(&[300_000, 1, 20_000], 4, true);
        for host in 0..3 {
            assert!((320_001..500_000).contains(&sent[host]), "{sent:?}");
        }
        assert!(sent[4] < 100_000, "the last one only acknowledges: {sent:?}");
    }
}
