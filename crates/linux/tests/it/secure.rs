//! Endpoints that share a key: what is on the wire, and what the network or a stranger can do about it.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};

use crate::common::{PATIENCE, bytes, config, drive, leverage, local, patient, run_for};
use bytes::Bytes;
use rackweave_core::{Kind, Rng, Span};
use rackweave_linux::endpoint::KeyMismatch;
use rackweave_linux::{Clock, Endpoint, EndpointConfig, EndpointError, Event, Key, Peers};
use rackweave_transport::TransportConfig;
use rackweave_wire::secure::{self, Datagram, HANDSHAKE_BYTES};

fn key(n: u8) -> Key {
    Key::derive(&[n; 32]).unwrap()
}

fn endpoint(host: u32, transport: &TransportConfig, clock: Clock, key: Option<Key>) -> Endpoint {
    Endpoint::new(EndpointConfig { key, ..config(host, transport, clock) }).unwrap()
}

/// What a proxy does to datagrams, as probabilities.
#[derive(Clone, Copy, Default)]
struct Faults {
    loss: f64,
    duplication: f64,
    damage: f64,
    /// Of being sent again much later, as an attacker who has recorded it would.
    replay: f64,
}

/// A host between two others, which records what it forwards. Each of the two sees the proxy's address as the other's.
struct Proxy {
    /// The sockets that the first and the second host send to.
    sockets: [UdpSocket; 2],
    hosts: [SocketAddr; 2],
    recorded: Vec<(usize, Vec<u8>)>,
    faults: Faults,
    rng: Rng,
}

impl Proxy {
    fn new(hosts: [SocketAddr; 2], seed: u64) -> Self {
        let sockets = [0, 1].map(|_| {
            let socket = UdpSocket::bind(local()).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        });
        let rng = Rng::stream(seed, 0, 0, "proxy");
        Self { sockets, hosts, recorded: Vec::new(), faults: Faults::default(), rng }
    }

    /// The address at which a host reaches the other one.
    fn at(&self, host: usize) -> SocketAddr {
        self.sockets[host].local_addr().unwrap()
    }

    fn forward(&self, from: usize, bytes: &[u8]) {
        let _ = self.sockets[1 - from].send_to(bytes, self.hosts[1 - from]);
    }

    fn turn(&mut self) {
        let mut buffer = [0; 65_536];
        for from in 0..2 {
            while let Ok((length, _)) = self.sockets[from].recv_from(&mut buffer) {
                let mut bytes = buffer[..length].to_vec();
                self.recorded.push((from, bytes.clone()));
                let (faults, rng) = (self.faults, &mut self.rng);
                if rng.chance(faults.loss) {
                    continue;
                }
                let copies = 1 + u32::from(rng.chance(faults.duplication));
                if rng.chance(faults.damage) {
                    let bit = rng.below(length as u64 * 8) as usize;
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
                let old = rng
                    .chance(faults.replay)
                    .then(|| rng.below(self.recorded.len() as u64) as usize);
                for _ in 0..copies {
                    self.forward(from, &bytes);
                }
                if let Some(old) = old {
                    let (from, bytes) = &self.recorded[old];
                    self.forward(*from, bytes);
                }
            }
        }
    }
}

/// Answers requests with their own bytes.
fn echo(end: &mut Endpoint) {
    while let Some(event) = end.poll_event() {
        if let Event::Message { peer, id, kind: Kind::Request, bytes } = event {
            let _ = end.respond(peer, id, bytes);
        }
    }
}

/// Whether a slice is in another.
fn contains(within: &[u8], needle: &[u8]) -> bool {
    within.windows(needle.len()).any(|window| window == needle)
}

#[test]
fn a_call_with_each_transport() {
    for (name, transport) in patient() {
        let clock = Clock::start();
        let mut ends = [0, 1].map(|host| endpoint(host, &transport, clock, Some(key(1))));
        let peer = ends[0].add_peer(ends[1].local_addr());
        for len in [1, 1400, 300_000] {
            let content = bytes(len as u64, len);
            let id = ends[0].send(peer, Kind::Request, content.clone()).unwrap();
            drive(&mut ends, |ends| {
                echo(&mut ends[1]);
                match ends[0].poll_event() {
                    Some(Event::Message { id: answer, bytes, .. }) => {
                        assert_eq!(answer, id.response(), "{name}");
                        assert!(bytes == content, "{name}: {len}");
                        true
                    }
                    Some(Event::Failed { reason, .. }) => panic!("{name}: {reason}"),
                    _ => false,
                }
            });
        }
        let stats = ends[0].stats();
        assert_eq!((stats.forged, stats.replayed, stats.malformed), (0, 0, 0), "{name}");
    }
}

#[test]
fn nothing_of_a_message_is_readable() {
    const SECRET: &[u8] = b"the method and its arguments, 0123456789";
    const LENGTH: usize = 0x0003_d5b7;
    for (name, transport) in patient() {
        for key in [None, Some(key(1))] {
            let clock = Clock::start();
            let mut ends = [0, 1].map(|host| endpoint(host, &transport, clock, key.clone()));
            let mut proxy = Proxy::new([ends[0].local_addr(), ends[1].local_addr()], 1);
            let peer = ends[0].add_peer(proxy.at(0));
            let content: Bytes =
                SECRET.iter().copied().cycle().take(LENGTH).collect::<Vec<_>>().into();
            ends[0].send(peer, Kind::Request, content.clone()).unwrap();
            drive(&mut ends, |ends| {
                proxy.turn();
                echo(&mut ends[1]);
                matches!(ends[0].poll_event(), Some(Event::Message { .. }))
            });
            // Two turns of the text are in every full packet, wherever it begins.
            let long = proxy.recorded.iter().filter(|(_, bytes)| bytes.len() > 200);
            let shown = long.clone().filter(|(_, bytes)| contains(bytes, SECRET)).count();
            let length = (LENGTH as u32).to_be_bytes();
            let lengths = proxy.recorded.iter().filter(|(_, it)| contains(it, &length)).count();
            // The test would notice both without a key (TCP does not send a message's length in its headers).
            if key.is_none() {
                assert!(shown * 10 > long.count() * 9, "{name}: {shown}");
                assert!(lengths > 0 || name.contains("tcp"), "{name}");
                continue;
            }
            assert_eq!((shown, lengths), (0, 0), "{name}");
            for (_, bytes) in &proxy.recorded {
                match secure::decode(bytes) {
                    Ok(Datagram::Handshake(_)) => assert_eq!(bytes.len(), HANDSHAKE_BYTES),
                    Ok(Datagram::Sealed(_)) => {}
                    other => panic!("{name}: {other:?}"),
                }
            }
            let sealed: BTreeSet<_> = proxy.recorded.iter().map(|(_, bytes)| bytes).collect();
            assert_eq!(sealed.len(), proxy.recorded.len(), "{name}: no datagram is sent twice");
        }
    }
}
