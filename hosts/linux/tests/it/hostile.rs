//! Only peers are served, and forged source addresses gain nothing. The test speaks the overlay's protocol over plain
//! sockets.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use crate::common::{PATIENCE, bytes, config, drive, leverage, local, patient};
use bytes::Bytes;
use rackweave_core::frame::IPV4;
use rackweave_core::{HostId, Kind, Packet, Span};
use rackweave_linux::{Clock, Endpoint, EndpointConfig, Event, Key, Peers};
use rackweave_testing::{bind_again, free_address};
use rackweave_transport::{TransportConfig, datagram};
use rackweave_wire::{Header, Id64, datagram as wire, overlay};

/// A transport of single-packet messages without acknowledgements: what arrives is what was sent.
fn datagrams() -> TransportConfig {
    TransportConfig::Datagram(Arc::new(datagram::Config::default()))
}

/// A plain socket that plays the role of a host.
struct Raw {
    socket: UdpSocket,
    endpoint: SocketAddr,
    host: u32,
    datagrams: u64,
    sent: usize,
    received: usize,
    next: u64,
}

impl Raw {
    fn new(bind: &str, host: u32, endpoint: SocketAddr) -> Self {
        let socket = UdpSocket::bind(bind).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        Self { socket, endpoint, host, datagrams: 0, sent: 0, received: 0, next: 0 }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.socket.send_to(bytes, self.endpoint).unwrap();
        self.datagrams += 1;
        self.sent += bytes.len();
    }

    fn hello(&mut self, from: u32, to: u32) {
        let mut out = Vec::new();
        overlay::encode_hello(HostId(self.host), HostId(0), from, to, &mut out);
        self.send(&out);
    }

    /// Sends a new message of one packet.
    fn message(&mut self, from: u32, to: u32, payload: &[u8]) {
        self.next += 1;
        let len = payload.len();
        let id = Id64::new(self.next << 1);
        let header = wire::Header { id, message_length: len as u32, offset: 0, len: len as u16 };
        let header = Header::Datagram(header);
        let l3 = IPV4 + overlay::OVERHEAD + 24 + len as u32;
        let packet = Packet::new(HostId(self.host), HostId(0), l3, header);
        let check = overlay::crc32c(0, payload);
        let mut out = Vec::new();
        overlay::encode(&packet, Default::default(), from, to, check, &mut out);
        out.extend_from_slice(payload);
        self.send(&out);
    }

    /// Returns the next datagram; fails if none comes.
    fn await_one(&mut self, end: &mut Endpoint, what: &str) -> overlay::Datagram {
        let until = end.clock().now() + PATIENCE;
        loop {
            if let Some(datagram) = self.receive(end) {
                return datagram;
            }
            assert!(end.clock().now() < until, "{what}: {:?}", end.stats());
        }
    }

    /// Returns the next datagram while the endpoint is driven, or `None` if none comes.
    fn receive(&mut self, end: &mut Endpoint) -> Option<overlay::Datagram> {
        let mut buffer = [0; 2000];
        for _ in 0..20 {
            end.turn().unwrap();
            if let Ok((len, from)) = self.socket.recv_from(&mut buffer) {
                assert_eq!(from, self.endpoint);
                self.received += len;
                return Some(overlay::decode(&buffer[..len], 0).unwrap());
            }
        }
        None
    }

    /// Returns the incarnation that the endpoint announces to this host.
    fn introduce(&mut self, end: &mut Endpoint, from: u32) -> u32 {
        self.hello(from, 0);
        let answer = self.await_one(end, "a HELLO is answered").envelope;
        assert_eq!((answer.kind, answer.to), (overlay::Kind::Hello, from));
        answer.from
    }
}

/// Returns the messages that the endpoint has received, after it has read everything that these sockets have sent.
fn messages(end: &mut Endpoint, from: &[&Raw]) -> Vec<(HostId, Bytes)> {
    let sent = from.iter().map(|raw| raw.datagrams).sum();
    let mut messages = Vec::new();
    let until = end.clock().now() + PATIENCE;
    loop {
        end.turn().unwrap();
        while let Some(event) = end.poll_event() {
            if let Event::Message { peer, bytes, .. } = event {
                messages.push((peer, bytes));
            }
        }
        if end.stats().received >= sent {
            return messages;
        }
        let now = end.clock().now();
        assert!(now < until, "{:?}", end.stats());
        end.wait(Some(now + Span::from_us(200))).unwrap();
    }
}

fn endpoint() -> Endpoint {
    Endpoint::new(config(0, &datagrams(), Clock::start())).unwrap()
}

#[test]
fn a_host_that_is_not_a_peer_gets_no_answer() {
    let hosts = BTreeMap::from([(HostId(1), "127.0.0.1:9".parse().unwrap())]);
    let peers = Peers::Direct { hosts, allow: vec!["127.0.0.7".parse().unwrap()] };
    let config = EndpointConfig::new(HostId(0), local(), peers, &datagrams());
    let mut end = Endpoint::new(config).unwrap();
    let mut foreign = Raw::new("127.0.0.1:0", 1, end.local_addr());
    foreign.hello(5, 0);
    foreign.message(5, 0, b"x");
    assert_eq!(messages(&mut end, &[&foreign]), []);
    assert_eq!(end.stats().foreign, 2);
    assert!(foreign.receive(&mut end).is_none());
    // A host from an admitted network does.
    let mut guest = Raw::new("127.0.0.7:0", 1, end.local_addr());
    let ours = guest.introduce(&mut end, 5);
    guest.message(5, ours, b"hello");
    assert_eq!(messages(&mut end, &[&foreign, &guest]).len(), 1);
}

#[test]
fn a_flood_of_hellos_leaves_nothing_and_gains_nothing() {
    let mut end = endpoint();
    let mut flood = Raw::new("127.0.0.1:0", 1, end.local_addr());
    let mut answers = Vec::new();
    for n in 1..=3000 {
        match n % 3 {
            0 => flood.hello(n, n * 7),
            1 => flood.message(n, n * 5, b"not for you"),
            _ => flood.send(&[0xa1; 100]),
        }
        if n % 20 == 0 {
            end.turn().unwrap();
            while let Some(answer) = flood.receive(&mut end) {
                answers.push(answer.envelope);
                if answers.len() % 13 == 0 {
                    break;
                }
            }
        }
    }
    assert_eq!(messages(&mut end, &[&flood]), []);
    let stats = end.stats();
    while let Some(answer) = flood.receive(&mut end) {
        answers.push(answer.envelope);
    }
    assert!(answers.len() > 100 && answers.len() as u64 <= stats.unproven, "{}", answers.len());
    assert!(answers.iter().all(|answer| answer.kind == overlay::Kind::Hello));
    // All get the same incarnation, since they have one address: the endpoint keeps no state for each request.
    assert!(answers.iter().all(|answer| answer.from == answers[0].from));
    assert!(flood.received <= flood.sent, "{} > {}", flood.received, flood.sent);
    assert!(stats.malformed >= 900, "{stats:?}");
    assert_eq!(end.memory(), (0, 0));
    assert!(end.poll_event().is_none());
    assert_eq!(end.turn().unwrap(), None, "there is nothing to be done at any time");
}

#[test]
fn what_is_sent_to_an_address_that_has_shown_nothing_is_short() {
    let mut end = Endpoint::new(config(0, &leverage(), Clock::start())).unwrap();
    let mut raw = Raw::new("127.0.0.1:0", 1, end.local_addr());
    let peer = end.add_peer(raw.socket.local_addr().unwrap());
    for n in 0..10 {
        end.send(peer, Kind::OneWay, bytes(n, 100_000)).unwrap();
    }
    let until = end.clock().now() + Span::from_secs(1);
    while raw.received == 0 || end.clock().now() < until {
        if let Some(datagram) = raw.receive(&mut end) {
            assert_eq!(datagram.envelope.kind, overlay::Kind::Hello);
        }
    }
    assert!(raw.received > 0 && raw.received <= 32 * 200, "{} bytes", raw.received);
}

#[test]
fn a_wrong_incarnation_is_not_listened_to() {
    let mut end = endpoint();
    let mut raw = Raw::new("127.0.0.1:0", 1, end.local_addr());
    let ours = raw.introduce(&mut end, 10);
    for wrong in [0, 1, ours ^ 1, ours.wrapping_add(1), u32::MAX - ours] {
        raw.message(10, wrong, b"x");
    }
    assert_eq!(messages(&mut end, &[&raw]), []);
    raw.message(10, ours, b"y");
    assert_eq!(messages(&mut end, &[&raw]).len(), 1);
    // An incarnation learnt at one address is useless at another.
    let mut other = Raw::new("127.0.0.1:0", 1, end.local_addr());
    other.message(10, ours, b"z");
    assert_eq!(messages(&mut end, &[&raw, &other]), []);
    assert_ne!(other.introduce(&mut end, 10), ours);
}

#[test]
fn late_packets_of_a_life_that_is_over() {
    let mut end = endpoint();
    let mut raw = Raw::new("127.0.0.1:0", 1, end.local_addr());
    let ours = raw.introduce(&mut end, 10);
    raw.message(10, ours, b"first life");
    assert_eq!(messages(&mut end, &[&raw]).len(), 1);
    // An unknown incarnation: the endpoint asks the peer first.
    raw.message(20, ours, b"unheard of");
    let question = raw.await_one(&mut end, "the host is asked").envelope;
    assert_eq!((question.kind, question.to), (overlay::Kind::Hello, 10));
    assert_eq!(messages(&mut end, &[&raw]), []);
    raw.hello(20, ours);
    raw.message(20, ours, b"second life");
    let restarted = |end: &mut Endpoint| {
        std::iter::from_fn(|| end.poll_event())
            .filter(|event| matches!(event, Event::PeerRestarted { .. }))
            .count()
    };
    let mut restarts = 0;
    drive(std::slice::from_mut(&mut end), |ends| {
        restarts += restarted(&mut ends[0]);
        ends[0].stats().received >= 5
    });
    assert_eq!(restarts, 1);
    // Packets of the first incarnation arrive late.
    for _ in 0..10 {
        raw.message(10, ours, b"ghost");
    }
    assert_eq!(messages(&mut end, &[&raw]), []);
    assert_eq!(end.stats().late, 11);
    raw.message(20, ours, b"again");
    assert_eq!(messages(&mut end, &[&raw]).len(), 1);
    assert_eq!(end.stats().restarts, 1);
}

#[test]
fn behind_a_switch_no_host_speaks_for_another() {
    let mut port = Raw::new("127.0.0.1:0", 1, local());
    let peers = Peers::Switch { port: port.socket.local_addr().unwrap(), hosts: 4 };
    let config = EndpointConfig::new(HostId(0), local(), peers, &datagrams());
    let mut end = Endpoint::new(config).unwrap();
    port.endpoint = end.local_addr();
    // It announces its address without being asked, in a datagram to itself that no other host receives.
    let said = port.await_one(&mut end, "it says where it is").envelope;
    assert_eq!((said.kind, said.src, said.dst), (overlay::Kind::Hello, HostId(0), HostId(0)));
    assert_eq!((said.from, said.to), (0, 0), "it gives nothing away");
    // Hosts 1 and 3 are behind the same port. The incarnation announced to each reaches only that one.
    let to_one = port.introduce(&mut end, 10);
    port.host = 3;
    let to_three = port.introduce(&mut end, 30);
    assert_ne!(to_one, to_three);
    port.message(30, to_three, b"from 3");
    port.host = 1;
    port.message(10, to_three, b"from 3, as 1");
    port.message(30, to_three, b"from 3, as 1");
    port.message(10, to_one, b"from 1");
    let got = messages(&mut end, &[&port]);
    let from: Vec<_> = got.iter().map(|(peer, bytes)| (peer.0, &bytes[..])).collect();
    assert_eq!(from, [(3, &b"from 3"[..]), (1, b"from 1")]);
    // Datagrams whose source is no host of the fabric, or whose destination is another host.
    let foreign = end.stats().foreign;
    for host in [0, 4, u32::MAX] {
        port.host = host;
        port.hello(7, 0);
    }
    let mut elsewhere = Raw::new("127.0.0.1:0", 1, end.local_addr());
    elsewhere.message(10, to_one, b"not from the switch");
    assert_eq!(messages(&mut end, &[&port, &elsewhere]), []);
    assert_eq!(end.stats().foreign, foreign + 4);
}

fn with_and_without_key() -> impl Iterator<Item = (&'static str, TransportConfig, Option<Key>)> {
    let key = Key::derive(&[1; 32]).unwrap();
    patient().into_iter().flat_map(move |(name, transport)| {
        [None, Some(key.clone())].map(|key| (name, transport.clone(), key))
    })
}

fn keyed(
    host: u32,
    transport: &TransportConfig,
    clock: Clock,
    key: &Option<Key>,
) -> EndpointConfig {
    EndpointConfig { key: key.clone(), ..config(host, transport, clock) }
}

/// A peer restarts at the same address: calls in progress fail, and new ones succeed.
#[test]
fn a_peer_that_restarts() {
    for (name, transport, key) in with_and_without_key() {
        let config = |host, transport: &_, clock| keyed(host, transport, clock, &key);
        let clock = Clock::start();
        let client = Endpoint::new(config(0, &transport, clock)).unwrap();
        let address = free_address();
        let bound = || EndpointConfig { bind: address, ..config(1, &transport, clock) };
        let server = Endpoint::new(bound()).unwrap();
        let mut ends = [client, server];
        let peer = ends[0].add_peer(address);
        let mut open = BTreeMap::new();
        for n in 0..10 {
            let id = ends[0].send(peer, Kind::Request, bytes(n, 1 + n as usize * 30_000)).unwrap();
            open.insert(id.response(), n);
        }
        // Some requests have arrived by then, and none has been answered.
        drive(&mut ends, |ends| ends[1].events_waiting() > 1);
        let [client, server] = ends;
        drop(server);
        let mut ends = [client, bind_again(|| Endpoint::new(bound())).unwrap()];
        let mut answered = 0;
        let mut late = Vec::new();
        drive(&mut ends, |ends| {
            while let Some(event) = ends[1].poll_event() {
                if let Event::Message { peer, id, kind: Kind::Request, bytes } = event {
                    ends[1].respond(peer, id, bytes).unwrap();
                }
            }
            if late.is_empty() && ends[0].stats().restarts == 1 {
                late.push(ends[0].send(peer, Kind::Request, bytes(99, 5000)).unwrap().response());
                open.insert(late[0], 99);
            }
            while let Some(event) = ends[0].poll_event() {
                match event {
                    Event::Message { id, bytes: answer, .. } => {
                        let n = open.remove(&id).expect("each ends once");
                        let len = if n == 99 { 5000 } else { 1 + n as usize * 30_000 };
                        assert!(answer == bytes(n, len), "{name}: {n}");
                        answered += 1;
                    }
                    Event::Failed { id, .. } => {
                        let n = open.remove(&id.response()).expect("each ends once");
                        assert_ne!(n, 99, "{name}: new calls work");
                    }
                    _ => {}
                }
            }
            open.is_empty() && !late.is_empty()
        });
        assert!(answered > 0);
        assert_eq!(ends[0].memory().0, 0, "{name}");
    }
}

/// A client that restarts at the same address is served, and its old calls leave no state behind.
#[test]
fn a_client_that_restarts() {
    for (name, transport, key) in with_and_without_key() {
        let config = |host, transport: &_, clock| keyed(host, transport, clock, &key);
        let clock = Clock::start();
        let here = free_address();
        let bound = || EndpointConfig { bind: here, ..config(0, &transport, clock) };
        let client = Endpoint::new(bound()).unwrap();
        let server = Endpoint::new(config(1, &transport, clock)).unwrap();
        let there = server.local_addr();
        let mut ends = [client, server];
        let peer = ends[0].add_peer(there);
        for n in 0..5 {
            ends[0].send(peer, Kind::Request, bytes(n, 1 + n as usize * 50_000)).unwrap();
        }
        drive(&mut ends, |ends| ends[1].events_waiting() > 0);
        let [client, server] = ends;
        drop(client);
        let mut ends = [bind_again(|| Endpoint::new(bound())).unwrap(), server];
        let peer = ends[0].add_peer(there);
        let mut open = BTreeMap::new();
        for n in 10..15 {
            let id = ends[0].send(peer, Kind::Request, bytes(n, n as usize * 1000)).unwrap();
            open.insert(id.response(), n);
        }
        drive(&mut ends, |ends| {
            while let Some(event) = ends[1].poll_event() {
                if let Event::Message { peer, id, kind: Kind::Request, bytes } = event {
                    // The transport refuses it if the request came from the old incarnation and it knows that.
                    let _ = ends[1].respond(peer, id, bytes);
                }
            }
            while let Some(event) = ends[0].poll_event() {
                match event {
                    Event::Message { id, bytes: answer, .. } => {
                        let n = open.remove(&id).expect("of this life, once");
                        assert!(answer == bytes(n, n as usize * 1000), "{name}: {n}");
                    }
                    Event::Failed { reason, .. } => panic!("{name}: {reason}"),
                    _ => {}
                }
            }
            open.is_empty()
        });
        assert_eq!(ends[1].stats().restarts, 1, "{name}");
        drive(&mut ends, |ends| ends[0].memory() == (0, 0));
    }
}
