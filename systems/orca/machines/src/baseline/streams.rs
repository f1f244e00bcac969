//! One-to-many over the streams of TCP or another transport: a connection to each client, or a chain in which the
//! server sends to the first client and each client to the next.
//!
//! A client in a chain stores and forwards: it forwards received bytes in chunks, and the rest of a file when the file
//! is complete. Every client acknowledges files to the server over its own stream. A client whose successor in the chain is gone
//! notifies the server over another stream, because the server has no connection on which it could notice that: in the real
//! chain, `cast::baseline`, the reply of a client says so.

use std::convert::Infallible;

use rackweave_core::{
    Event, FailReason, HostId, MessageId, Node, Open, Packet, StreamEvent, Time, Transport as _,
};
use rackweave_transport::{Machine, TransportConfig};
use rackweave_wire::Header;

use super::Client;
use crate::app::{ACK_BYTES, Receiver as Receiving, Sender, Write};

/// How a server sends.
#[derive(Clone, Debug)]
pub struct Config {
    /// The transport of the streams.
    pub transport: TransportConfig,
    /// The server's hosts, one for each port.
    pub hosts: Vec<HostId>,
    /// The capacity of a socket in bytes, including bytes not yet acknowledged.
    pub socket_bytes: u64,
    /// Whether the server writes to the first client only and each client to the next one.
    pub chain: bool,
}

/// A stream that this host writes to.
#[derive(Clone, Copy, Debug)]
struct Outlet {
    /// The index in `machines` of the machine that owns the stream.
    machine: usize,
    peer: HostId,
    id: MessageId,
    /// The number of bytes written and not yet acknowledged.
    unacked: u64,
}

/// A host opens at most one stream of each kind to another host, so three ids suffice.
const STREAM: MessageId = MessageId::request(2);
const ACKS: MessageId = MessageId::request(1);
/// The stream on which a client of a chain notifies the server that its successor is gone.
const CUT: MessageId = MessageId::request(3);

impl Outlet {
    fn open(
        now: Time,
        machines: &mut [Machine],
        machine: usize,
        peer: HostId,
        id: MessageId,
    ) -> Option<Self> {
        let stream = Open { id, peer, deadline: Time::MAX };
        let opened = machines.get_mut(machine)?.open(now, stream).is_ok();
        opened.then_some(Self { machine, peer, id, unacked: 0 })
    }

    /// Writes bytes. Returns false if the stream refuses them because its peer is gone.
    fn write(&mut self, now: Time, machines: &mut [Machine], bytes: u64) -> bool {
        let Some(machine) = machines.get_mut(self.machine) else { return false };
        let taken = machine.write(now, self.peer, self.id, bytes, false).is_ok();
        self.unacked += if taken { bytes } else { 0 };
        taken
    }
}

fn earliest(machines: &[Machine]) -> Option<Time> {
    machines.iter().filter_map(Machine::poll_timeout).min()
}

/// The server that sends the files.
#[derive(Debug)]
pub struct Server {
    config: Config,
    machines: Vec<Machine>,
    clients: Vec<Client>,
    outlets: Vec<Outlet>,
    app: Sender,
    /// The number of acknowledgement bytes received, by client.
    acks: Vec<u64>,
}

impl Server {
    /// Returns a server that runs this application over one socket for each client. In a chain there is one socket, and
    /// `clients` is in the order of the chain.
    #[must_use]
    pub fn new(config: &Config, clients: Vec<Client>, app: Sender) -> Self {
        let mut machines: Vec<Machine> =
            config.hosts.iter().map(|host| config.transport.machine(*host)).collect();
        let direct = if config.chain { 1 } else { clients.len() };
        let to = clients.iter().take(direct);
        let outlets: Vec<Outlet> = to
            .filter_map(|c| {
                Outlet::open(Time::ZERO, &mut machines, usize::from(c.port), c.host, STREAM)
            })
            .collect();
        let acks = vec![0; clients.len()];
        Self { config: config.clone(), machines, clients, outlets, app, acks }
    }

    /// Returns the application that this server runs.
    #[must_use]
    pub const fn app(&self) -> &Sender {
        &self.app
    }

    /// Its host crashes: all casts that were not acknowledged fail.
    pub fn crash(&mut self, now: Time) {
        self.app.all_failed(now, FailReason::HostCrashed);
    }

    /// The chain is cut before this client: neither it nor the clients behind it get anything more.
    fn cut(&mut self, now: Time, before: usize) {
        for client in self.clients.iter().skip(before) {
            self.app.failed(now, client.host, FailReason::PeerSilent);
        }
    }

    /// Its host is back after a crash. The process that sent is gone, and its connections are forgotten: all casts that were
    /// not acknowledged fail.
    pub fn restart(&mut self, now: Time) {
        let Config { transport, hosts, .. } = &self.config;
        self.machines = hosts.iter().map(|host| transport.machine(*host)).collect();
        self.outlets.clear();
        self.app.all_failed(now, FailReason::HostCrashed);
    }

    fn write(&mut self, now: Time) {
        loop {
            let (outlets, most) = (&self.outlets, self.config.socket_bytes);
            let room = |socket: usize| outlets.get(socket).is_some_and(|o| o.unacked < most);
            let Some(Write { socket, bytes }) = self.app.poll_write(now, room) else { break };
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
                            if id == CUT {
                                self.cut(now, client + 1);
                                continue;
                            }
                            self.acks[client] += bytes;
                            self.app.acknowledged_bytes(now, peer, self.acks[client]);
                        }
                    }
                    Event::Stream(StreamEvent::Acked { peer, id, bytes }) => {
                        let of = |o: &&mut Outlet| (o.machine, o.peer, o.id) == (machine, peer, id);
                        if let Some(outlet) = self.outlets.iter_mut().find(of) {
                            outlet.unacked = outlet.unacked.saturating_sub(bytes);
                        }
                    }
                    Event::Failed { peer, id, reason } => {
                        self.app.failed(now, peer, reason);
                        if self.config.chain && id == STREAM {
                            self.cut(now, 0);
                        }
                        // From here on the failed client's socket accepts all data, so that it does not block the
                        // others.
                        for outlet in self.outlets.iter_mut().filter(|o| o.peer == peer) {
                            outlet.unacked = 0;
                        }
                    }
                    _ => {}
                }
            }
        }
        self.write(now);
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
        // The events may have made room for data that can leave at once.
        packet.or_else(|| self.machines[port].poll_transmit(now, 0))
    }

    fn poll_timeout(&self) -> Option<Time> {
        [earliest(&self.machines), self.app.poll_timeout()].into_iter().flatten().min()
    }

    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }
}

/// A client, which in a chain forwards to the next client.
#[derive(Debug)]
pub struct Receiver {
    config: Config,
    me: HostId,
    machines: [Machine; 1],
    server: Outlet,
    next: Option<Outlet>,
    app: Receiving,
    chunk: u64,
    /// The number of bytes received, and how many of them were forwarded.
    have: u64,
    forwarded: u64,
}

impl Receiver {
    /// Returns a client that acknowledges to `server` and, if `next` is set, forwards everything to it in chunks of the
    /// given length. Returns `None` if the transport has no streams.
    #[must_use]
    pub fn new(
        config: &Config,
        me: HostId,
        server: HostId,
        next: Option<(HostId, u64)>,
        app: Receiving,
    ) -> Option<Self> {
        let chunk = next.map_or(1, |(_, chunk)| chunk.max(1));
        let next = next.map(|(next, _)| next);
        let (machines, server, next) = Self::connect(Time::ZERO, config, me, server, next)?;
        let config = config.clone();
        Some(Self { config, me, machines, server, next, app, chunk, have: 0, forwarded: 0 })
    }

    /// Opens the streams to the server and to the next client.
    fn connect(
        now: Time,
        config: &Config,
        me: HostId,
        server: HostId,
        next: Option<HostId>,
    ) -> Option<([Machine; 1], Outlet, Option<Outlet>)> {
        let mut machines = [config.transport.machine(me)];
        let server = Outlet::open(now, &mut machines, 0, server, ACKS)?;
        let next = match next {
            Some(next) => Some(Outlet::open(now, &mut machines, 0, next, STREAM)?),
            None => None,
        };
        Some((machines, server, next))
    }

    /// Its host is back after a crash, without what it had received, and its connections are forgotten.
    pub fn restart(&mut self, now: Time) {
        let (server, next) = (self.server.peer, self.next.map(|next| next.peer));
        if let Some(connected) = Self::connect(now, &self.config, self.me, server, next) {
            (self.machines, self.server, self.next) = connected;
        }
        (self.have, self.forwarded) = (0, 0);
        self.app.crashed();
    }

    /// Returns the application that this client runs.
    #[must_use]
    pub const fn app(&self) -> &Receiving {
        &self.app
    }

    fn events(&mut self, now: Time) {
        while let Some(event) = self.machines[0].poll_event() {
            match event {
                Event::Stream(StreamEvent::Readable { peer, id, bytes, .. }) => {
                    self.machines[0].consume(now, peer, id, bytes);
                    let had = self.app.delivered();
                    self.app.stored(now, self.have..self.have + bytes);
                    self.have += bytes;
                    if let Some(files) = self.app.readable(now, self.have) {
                        let new = u64::from(files) - had as u64;
                        self.server.write(now, &mut self.machines, new * u64::from(ACK_BYTES));
                    }
                }
                Event::Stream(StreamEvent::Acked { peer, id, bytes }) => {
                    let outlets = self.next.iter_mut().chain([&mut self.server]);
                    for outlet in outlets.filter(|o| (o.peer, o.id) == (peer, id)) {
                        outlet.unacked = outlet.unacked.saturating_sub(bytes);
                    }
                }
                Event::Failed { peer, id, .. }
                    if self.next.is_some_and(|next| (next.peer, next.id) == (peer, id)) =>
                {
                    self.next = None;
                    let server = self.server.peer;
                    let notice = Outlet::open(now, &mut self.machines, 0, server, CUT);
                    if let Some(mut notice) = notice {
                        notice.write(now, &mut self.machines, u64::from(ACK_BYTES));
                    }
                }
                _ => {}
            }
        }
        self.forward(now);
    }

    fn forward(&mut self, now: Time) {
        let Some(next) = &mut self.next else { return };
        // Bytes of an incomplete file wait for a full chunk. The application remembers files that a crash has taken from this host.
        let complete = self.app.next_start().min(self.have);
        while next.unacked < self.config.socket_bytes {
            let waiting = self.have - self.forwarded;
            let bytes = if waiting >= self.chunk {
                self.chunk
            } else {
                complete.saturating_sub(self.forwarded)
            };
            if bytes == 0 || !next.write(now, &mut self.machines, bytes) {
                break;
            }
            self.forwarded += bytes;
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
    use crate::app::{Cost, Record, SenderConfig};

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

    /// Runs all hosts over a network with a delay of 1 us and no rate limit.
    fn run(files: &[u64], clients: u32, chain: bool) -> (Vec<Any>, Vec<u64>) {
        let config = Config {
            transport: TransportConfig::Tcp(Arc::new(tcp::Config::tcp())),
            hosts: vec![HostId(0)],
            socket_bytes: 1 << 20,
            chain,
        };
        let who = (1..=clients).map(|host| Client { host: HostId(host), port: 0 }).collect();
        let app = Sender::new(SenderConfig {
            sockets: if chain { 1 } else { clients as usize },
            buffer: 65_507,
            cost: Cost { per_buffer: Span::from_us(1), ..Cost::default() },
            ..SenderConfig::new(files.into(), (1..=clients).map(HostId).collect())
        });
        let mut nodes = vec![Any::Server(Server::new(&config, who, app))];
        for host in 1..=clients {
            let next = (chain && host < clients).then_some((HostId(host + 1), 16_384));
            let app = Receiving::new(files, Time::MAX);
            let receiver = Receiver::new(&config, HostId(host), HostId(0), next, app);
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
            if matches!(&nodes[0], Any::Server(server) if server.app().is_done()) {
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
                    let records = server.app().report().records;
                    let ended = |record: &&Record| matches!(record, Record::Acknowledged { .. });
                    assert_eq!(
                        records.iter().filter(ended).count(),
                        files.len() * clients as usize
                    );
                }
                Any::Receiver(receiver) => assert!(receiver.app().is_complete()),
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
