//! Packets before the handshake (0-RTT), over sockets.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};

use bytes::Bytes;
use rackweave_core::{Kind, Span};
use rackweave_crypt::FRESH;
use rackweave_linux::endpoint::TicketStore;
use rackweave_linux::{Clock, Endpoint, EndpointConfig, Event, Key};
use rackweave_testing::bind_again;
use rackweave_transport::TransportConfig;
use rackweave_wire::secure::{self, Datagram};

use crate::common::proxy::{Faults, Proxy};
use crate::common::{PATIENCE, bytes, config, drive, leverage, local, patient};

fn key() -> Key {
    Key::derive(&[1; 32]).unwrap()
}

fn server(transport: &TransportConfig, clock: Clock, bind: SocketAddr) -> Endpoint {
    let config = EndpointConfig { accept_early: true, bind, ..config(1, transport, clock) };
    Endpoint::new(config.key(key())).unwrap()
}

fn client(transport: &TransportConfig, clock: Clock, tickets: TicketStore) -> Endpoint {
    let config = EndpointConfig { tickets: Some(tickets), ..config(0, transport, clock) };
    Endpoint::new(config.key(key())).unwrap()
}

/// Two hosts with a proxy between them; the second accepts early packets.
struct World {
    ends: [Endpoint; 2],
    proxy: Proxy,
    transport: TransportConfig,
    /// How often the server has taken each content.
    taken: BTreeMap<Bytes, u32>,
}

impl World {
    /// The client has no ticket.
    fn new(transport: &TransportConfig) -> Self {
        let clock = Clock::start();
        let ends =
            [client(transport, clock, TicketStore::default()), server(transport, clock, local())];
        let proxy = Proxy::new([ends[0].local_addr(), ends[1].local_addr()], 1);
        Self { ends, proxy, transport: transport.clone(), taken: BTreeMap::new() }
    }

    /// The same after a call, and after a restart of the client, which has kept its tickets.
    fn resuming(transport: &TransportConfig) -> Self {
        let mut world = Self::new(transport);
        world.call_and_wait(&bytes(1, 100));
        world.restart_client();
        world
    }

    fn serve(&mut self) {
        while let Some(event) = self.ends[1].poll_event() {
            if let Event::Message { peer, id, kind: Kind::Request, bytes } = event {
                *self.taken.entry(bytes.clone()).or_default() += 1;
                let _ = self.ends[1].respond(peer, id, bytes);
            }
        }
    }

    fn send(&mut self, content: &Bytes, idempotent: bool) {
        let peer = self.ends[0].add_peer(self.proxy.at(0));
        let content = content.clone();
        let sent = match idempotent {
            true => self.ends[0].send_idempotent(peer, Kind::Request, content),
            false => self.ends[0].send(peer, Kind::Request, content),
        };
        sent.unwrap();
    }

    /// Calls, and waits for the response and a ticket.
    fn call_and_wait(&mut self, content: &Bytes) {
        self.call(content, true);
    }

    fn call(&mut self, content: &Bytes, needs_ticket: bool) {
        let content = content.clone();
        self.send(&content, true);
        let mut answered = false;
        let Self { ends, proxy, taken, .. } = self;
        drive(ends, |ends| {
            proxy.turn();
            while let Some(event) = ends[1].poll_event() {
                if let Event::Message { peer, id, kind: Kind::Request, bytes } = event {
                    *taken.entry(bytes.clone()).or_default() += 1;
                    ends[1].respond(peer, id, bytes).unwrap();
                }
            }
            while let Some(event) = ends[0].poll_event() {
                match event {
                    Event::Message { bytes, .. } => answered |= bytes == content,
                    Event::Failed { reason, .. } => panic!("{reason}"),
                    _ => {}
                }
            }
            answered && !(needs_ticket && ends[0].tickets().unwrap().is_empty())
        });
    }

    /// A new start of the client, which has kept its tickets, and which the server sees at another port.
    fn restart_client(&mut self) {
        let old = self.proxy.at(0);
        let proxy = Proxy::new(self.proxy.hosts, 2);
        let earlier = std::mem::replace(&mut self.proxy, proxy);
        (self.proxy.recorded, self.proxy.faults) = (earlier.recorded, earlier.faults);
        let kept = self.ends[0].tickets().unwrap();
        let mut tickets = TicketStore::from_bytes(&kept.to_bytes()).unwrap();
        // The proxy is the server's address to the client.
        if let Some(ticket) = tickets.get(old).cloned() {
            tickets.insert(self.proxy.at(0), ticket);
        }
        self.begin_client(tickets);
    }

    /// A new start of the client that the server sees at the same port.
    fn restart_client_in_place(&mut self) {
        let tickets = self.ends[0].tickets().unwrap().clone();
        self.begin_client(tickets);
    }

    fn begin_client(&mut self, tickets: TicketStore) {
        self.ends[0] = client(&self.transport, self.ends[0].clock(), tickets);
        self.proxy.hosts[0] = self.ends[0].local_addr();
    }

    fn restart_server(&mut self, accept_early: bool) {
        let (at, clock) = (self.ends[1].local_addr(), self.ends[1].clock());
        self.ends[1] = server(&self.transport, clock, local());
        let config = EndpointConfig { bind: at, accept_early, ..config(1, &self.transport, clock) };
        self.ends[1] = bind_again(|| Endpoint::new(config.clone().key(key()))).unwrap();
    }

    /// Turns a host for 2 ms, and often enough if the test waits for a processor.
    fn turn(&mut self, host: usize) {
        let until = self.ends[host].clock().now() + Span::from_ms(2);
        let mut turns = 0;
        while self.ends[host].clock().now() < until || turns < 100 {
            turns += 1;
            self.ends[host].turn().unwrap();
            if host == 1 {
                self.serve();
            }
        }
    }

    /// Lets packets travel only once in each direction and trip; returns the number of trips until the response is there.
    fn trips_of(&mut self, content: &Bytes, idempotent: bool) -> u32 {
        self.send(content, idempotent);
        self.trips()
    }

    fn trips(&mut self) -> u32 {
        for trip in 1..=20 {
            self.turn(0);
            self.proxy.pass(0);
            self.turn(1);
            self.proxy.pass(1);
            self.turn(0);
            while let Some(event) = self.ends[0].poll_event() {
                match event {
                    Event::Message { .. } => return trip,
                    Event::Failed { reason, .. } => panic!("{reason}"),
                    Event::PeerRestarted { .. } => panic!("nobody has restarted"),
                    _ => {}
                }
            }
        }
        panic!("no response");
    }

    /// The datagrams that a host has sent since they were last forgotten.
    fn sent(&self, host: usize) -> Vec<Vec<u8>> {
        let sent = self.proxy.recorded.iter().filter(|(from, _)| *from == host);
        sent.map(|(_, bytes)| bytes.clone()).collect()
    }
}

fn is_resumption(bytes: &[u8]) -> bool {
    matches!(secure::decode(bytes), Ok(Datagram::Handshake(it)) if it.kind == secure::Kind::Resume)
}

fn is_sealed(bytes: &[u8]) -> bool {
    matches!(secure::decode(bytes), Ok(Datagram::Sealed(_)))
}

/// TCP's packets carry a stream of bytes that calls share.
fn goes_early(name: &str) -> bool {
    !name.contains("tcp")
}

#[test]
fn a_first_call_takes_one_round_trip_less_with_a_ticket() {
    for (name, transport) in patient() {
        let mut world = World::new(&transport);
        let without = world.trips_of(&bytes(1, 100), true);
        world.call_and_wait(&bytes(2, 100));
        for n in [3, 4] {
            world.restart_client();
            let content = bytes(n, 100);
            let with = world.trips_of(&content, true);
            assert_eq!(with + u32::from(goes_early(name)), without, "{name}");
            assert_eq!(world.taken[&content], 1, "{name}");
            // The handshake goes on in parallel, and later calls use its session.
            let content = bytes(n + 10, 20_000);
            world.call_and_wait(&content);
            assert_eq!(world.taken[&content], 1, "{name}");
        }
        let stats = world.ends[1].stats();
        assert_eq!(stats.resumed, if goes_early(name) { 2 } else { 0 }, "{name}");
        assert_eq!((stats.early_refused, stats.forged, stats.malformed), (0, 0, 0), "{name}");
    }
}

#[test]
fn only_idempotent_messages_go_early() {
    let mut world = World::resuming(&leverage());
    world.proxy.recorded.clear();
    assert_eq!(world.trips_of(&bytes(2, 100), false), 2);
    assert!(!world.sent(0).iter().any(|bytes| is_resumption(bytes)));
    // Next to an idempotent one, the other waits.
    world.call_and_wait(&bytes(3, 100));
    world.restart_client();
    world.proxy.recorded.clear();
    let (idempotent, other) = (bytes(4, 900), bytes(5, 100));
    world.send(&other, false);
    world.send(&idempotent, true);
    world.turn(0);
    world.proxy.pass(0);
    let flight = world.sent(0);
    let sealed: Vec<_> = flight.iter().filter(|bytes| is_sealed(bytes)).collect();
    assert!(!sealed.is_empty() && sealed.iter().all(|bytes| bytes.len() > 900));
    world.turn(1);
    assert_eq!((world.taken.get(&idempotent), world.taken.get(&other)), (Some(&1), None));
}

/// A resumption does not replace the life of the client that the server knows: the handshake does.
#[test]
fn a_client_that_restarts_at_its_port_waits_for_the_handshake() {
    let mut world = World::resuming(&leverage());
    world.call_and_wait(&bytes(2, 100));
    world.restart_client_in_place();
    let content = bytes(3, 100);
    assert_eq!(world.trips_of(&content, true), 2);
    assert_eq!(world.taken[&content], 1);
    let stats = world.ends[1].stats();
    assert_eq!((stats.resumed, stats.restarts), (1, 1));
    assert!(stats.early_refused > 0);
}

/// Whoever has recorded a first flight sends it again, to the same start of the server and to later ones.
#[test]
fn a_recorded_first_flight_has_no_effect() {
    for (name, transport) in patient().into_iter().filter(|(name, _)| goes_early(name)) {
        let mut world = World::resuming(&transport);
        world.restart_client();
        world.proxy.recorded.clear();
        let content = bytes(7, 3000);
        assert_eq!(world.trips_of(&content, true), 1, "{name}");
        let flight = world.sent(0);
        assert!(flight.iter().any(|bytes| is_resumption(bytes)), "{name}");
        world.call_and_wait(&bytes(8, 100));
        let stranger = UdpSocket::bind(local()).unwrap();
        stranger.set_nonblocking(true).unwrap();
        let replay = |world: &mut World| {
            let (mut sent, mut got, mut buffer) = (0, 0, [0; 2000]);
            for _ in 0..100 {
                for bytes in &flight {
                    sent += bytes.len();
                    stranger.send_to(bytes, world.proxy.hosts[1]).unwrap();
                    world.proxy.forward(0, bytes);
                }
                world.ends[1].turn().unwrap();
                world.serve();
                while let Ok(length) = stranger.recv(&mut buffer) {
                    got += length;
                }
            }
            assert!(got <= sent, "{name}: {got} for {sent}");
        };
        replay(&mut world);
        assert_eq!(world.taken[&content], 1, "{name}");
        assert_eq!(world.ends[1].stats().resumed, 1, "{name}");
        assert!(world.ends[1].stats().early_refused >= 100, "{name}");
        for _ in 0..2 {
            world.restart_server(true);
            replay(&mut world);
            assert_eq!(world.taken[&content], 1, "{name}");
            assert_eq!(world.ends[1].stats().resumed, 0, "{name}");
        }
        // The client learns of the restart, and goes on.
        world.call_and_wait(&bytes(9, 100));
    }
}

/// Someone on the path keeps the first flight from the server until the call was made after the handshake.
#[test]
fn a_first_flight_that_was_held_back_does_not_bring_its_call_again_at_the_clients_address() {
    let mut world = World::resuming(&leverage());
    world.proxy.recorded.clear();
    let content = bytes(7, 100);
    let began = world.ends[0].clock().now();
    world.send(&content, true);
    world.turn(0);
    world.proxy.faults = Faults { loss: 1.0, ..Faults::default() };
    world.proxy.pass(0);
    let flight = world.sent(0);
    assert!(flight.iter().any(|bytes| is_sealed(bytes)));
    world.proxy.faults = Faults::default();
    world.call_and_wait(&bytes(8, 100));
    let taken = |world: &World| world.taken.get(&content).copied();
    let until = world.ends[0].clock().now() + PATIENCE;
    while taken(&world).is_none() {
        assert!(world.ends[0].clock().now() < until);
        for host in [0, 1] {
            world.turn(host);
            world.proxy.turn();
        }
    }
    for bytes in &flight {
        world.proxy.forward(0, bytes);
    }
    world.turn(1);
    assert_eq!(taken(&world), Some(1));
    // From another port of the client's machine, a flight that the server has not seen counts once.
    let other = UdpSocket::bind(local()).unwrap();
    for _ in 0..5 {
        for bytes in &flight {
            other.send_to(bytes, world.proxy.hosts[1]).unwrap();
        }
        world.turn(1);
    }
    // If the machine was so busy that the flight is not fresh any more, it does not count.
    let was_fresh = world.ends[0].clock().now().since(began) < FRESH;
    assert!(taken(&world) == Some(2) || taken(&world) == Some(1) && !was_fresh);
    world.call_and_wait(&bytes(9, 100));
}

/// Someone on the path lets a resumption pass, and keeps the packets behind it until the packets that the client has
/// sent after the handshake have made the call.
#[test]
fn early_packets_that_were_held_back_do_not_bring_their_call_again() {
    for (name, transport) in patient().into_iter().filter(|(name, _)| goes_early(name)) {
        for length in [100, 4000] {
            let mut world = World::resuming(&transport);
            world.restart_client();
            world.proxy.recorded.clear();
            let content = bytes(7, length);
            let began = world.ends[0].clock().now();
            world.send(&content, true);
            world.turn(0);
            world.proxy.faults = Faults { loss: 1.0, ..Faults::default() };
            world.proxy.pass(0);
            world.proxy.faults = Faults::default();
            let flight = world.sent(0);
            let resumption = flight.iter().find(|bytes| is_resumption(bytes)).unwrap();
            world.proxy.forward(0, resumption);
            world.turn(1);
            assert_eq!(world.ends[1].stats().resumed, 1, "{name}");
            let until = began + PATIENCE;
            let mut answered = false;
            while !answered {
                assert!(world.ends[0].clock().now() < until, "{name}");
                for host in [0, 1] {
                    world.turn(host);
                    world.proxy.turn();
                }
                while let Some(event) = world.ends[0].poll_event() {
                    answered |= matches!(event, Event::Message { .. });
                }
            }
            // The client acknowledges the response, and goes on.
            world.call_and_wait(&bytes(8, 100));
            world.call_and_wait(&bytes(9, 100));
            let took = world.ends[0].clock().now().since(began);
            for bytes in flight.iter().filter(|bytes| is_sealed(bytes)) {
                world.proxy.forward(0, bytes);
            }
            world.turn(1);
            assert_eq!(world.taken[&content], 1, "{name}, {length}, after {took}");
        }
    }
}

#[test]
fn a_refused_ticket_costs_a_round_trip_and_nothing_else() {
    for (name, transport) in patient() {
        for accept_early in [false, true] {
            let mut world = World::resuming(&transport);
            world.restart_server(accept_early);
            let content = bytes(7, 3000);
            assert_eq!(world.trips_of(&content, true), 2, "{name}");
            assert_eq!(world.taken[&content], 1, "{name}");
            assert_eq!(world.ends[1].stats().resumed, 0, "{name}");
            // It is not tried again; a server that accepts early packets has handed out another one.
            let early = world.ends[0].stats().early_sent;
            assert_eq!(early > 0, goes_early(name), "{name}");
            if goes_early(name) {
                let tickets = world.ends[0].tickets().unwrap();
                assert_eq!(tickets.get(world.proxy.at(0)).is_some(), accept_early, "{name}");
            }
        }
    }
}

/// The server has answered in the early session, and restarts before the handshake.
#[test]
fn a_restart_after_early_packets_is_learnt() {
    let mut world = World::resuming(&leverage());
    let (first, long) = (bytes(7, 100), bytes(8, 200_000));
    world.send(&first, true);
    world.send(&long, true);
    world.turn(0);
    world.proxy.pass(0);
    world.turn(1);
    // Its offer is lost, its answers are not.
    let (mut buffer, mut answers) = ([0; 2000], 0);
    let tap = UdpSocket::bind(local()).unwrap();
    tap.set_nonblocking(true).unwrap();
    let hosts = world.proxy.hosts;
    world.proxy.hosts[0] = tap.local_addr().unwrap();
    world.proxy.pass(1);
    world.proxy.hosts = hosts;
    while let Ok(length) = tap.recv(&mut buffer) {
        if is_sealed(&buffer[..length]) {
            world.proxy.forward(1, &buffer[..length]);
            answers += 1;
        }
    }
    assert!(answers > 0);
    world.restart_server(true);
    world.turn(0);
    let (mut restarted, mut answered) = (0, 0);
    let World { ends, proxy, .. } = &mut world;
    drive(ends, |ends| {
        proxy.turn();
        while let Some(event) = ends[1].poll_event() {
            if let Event::Message { peer, id, kind: Kind::Request, bytes } = event {
                ends[1].respond(peer, id, bytes).unwrap();
            }
        }
        while let Some(event) = ends[0].poll_event() {
            match event {
                Event::PeerRestarted { .. } => restarted += 1,
                Event::Message { .. } => answered += 1,
                _ => {}
            }
        }
        restarted > 0
    });
    assert_eq!((restarted, answered), (1, 1));
}

/// Clients come and go at one address, over a network that loses, duplicates, damages and repeats datagrams: each call is
/// executed once, since the transport knows what it has had of the same start.
#[test]
fn restarting_clients_over_a_hostile_network() {
    for (name, transport) in patient().into_iter().filter(|(name, _)| goes_early(name)) {
        let mut world = World::new(&transport);
        world.proxy.faults = Faults { loss: 0.02, duplication: 0.1, damage: 0.02, replay: 0.3 };
        for n in 0..12_u64 {
            // The datagram with a ticket may be lost.
            world.call(&bytes(n, 1 + n as usize * 1000), false);
            if n % 3 == 0 {
                world.restart_client_in_place();
            } else {
                world.restart_client();
            }
        }
        assert!(
            world.taken.values().all(|count| *count == 1),
            "{name}: {:?}",
            world.taken.values()
        );
        let stats = world.ends[1].stats();
        assert!(stats.resumed >= 2, "{name}: {stats:?}");
    }
}
