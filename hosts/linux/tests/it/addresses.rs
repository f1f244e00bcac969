//! Servers at all addresses of their host, which are addressed by one that is not that of the route back.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::process::Command;

use crate::common::{bytes, config, drive, leverage, local, patient};
use rackweave_core::{HostId, Kind};
use rackweave_linux::endpoint::Stats;
use rackweave_linux::{Clock, Endpoint, EndpointConfig, Event, Key, Peers};
use rackweave_transport::TransportConfig;
use rackweave_wire::overlay;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use socket2::{Domain, Protocol, Socket, Type};

fn key() -> Option<Key> {
    Some(Key::derive(&[7; 32]).unwrap())
}

/// A client, and a server that is bound to `any`; both admit everybody.
fn pair(
    any: &str,
    client: SocketAddr,
    transport: &TransportConfig,
    key: Option<&Key>,
) -> [Endpoint; 2] {
    let clock = Clock::start();
    let binds = [client, any.parse().unwrap()];
    [0, 1].map(|host| {
        let allow = ["0.0.0.0/0", "::/0"].map(|network| network.parse().unwrap()).to_vec();
        let peers = Peers::Direct { hosts: std::collections::BTreeMap::new(), allow };
        let bind = binds[host as usize];
        let config = EndpointConfig { bind, peers, ..config(host, transport, clock) };
        Endpoint::new(EndpointConfig { key: key.cloned(), ..config }).unwrap()
    })
}

/// Calls the server at each of these addresses, all at once.
fn call(name: &str, ends: &mut [Endpoint; 2], addresses: &[IpAddr]) {
    let port = ends[1].local_addr().port();
    let mut waiting = Vec::new();
    for (n, address) in addresses.iter().enumerate() {
        let server = ends[0].add_peer((*address, port).into());
        for len in [1, 1400, 100_000] {
            let content = bytes(n as u64, len + n);
            let id = ends[0].send(server, Kind::Request, content.clone()).unwrap();
            waiting.push((server, id.response(), content));
        }
    }
    drive(ends, |ends| {
        while let Some(event) = ends[1].poll_event() {
            match event {
                Event::Message { peer, id, kind: Kind::Request, bytes } => {
                    ends[1].respond(peer, id, bytes).unwrap();
                }
                Event::PeerRestarted { .. } => panic!("{name}: no host has restarted"),
                _ => {}
            }
        }
        while let Some(event) = ends[0].poll_event() {
            match event {
                Event::Message { peer, id, kind: Kind::Response, bytes } => {
                    let at = waiting.iter().position(|it| (it.0, it.1) == (peer, id));
                    let (_, _, content) = waiting.remove(at.expect("a call waits for it"));
                    assert!(bytes == content, "{name}");
                }
                Event::Failed { reason, .. } => panic!("{name}: {reason}"),
                _ => {}
            }
        }
        waiting.is_empty()
    });
}

#[test]
fn every_address_of_a_server_answers() {
    let addresses = [2, 1, 3].map(|last| IpAddr::from([127, 0, 0, last]));
    for (name, transport) in patient() {
        for key in [None, key()] {
            for any in ["0.0.0.0:0", "[::]:0"] {
                call(name, &mut pair(any, local(), &transport, key.as_ref()), &addresses[..1]);
            }
            // One client, to which the server is three.
            call(name, &mut pair("0.0.0.0:0", local(), &transport, key.as_ref()), &addresses);
        }
    }
}

/// Removes a namespace when it is dropped.
struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

#[test]
fn every_address_of_ipv6_answers() {
    rackweave_testing::needs!(NetAdmin);
    rackweave_testing::needs!(Ipv6);
    let space = Namespace(format!("rwt-addresses-{}", std::process::id()));
    let ip = |line: &str| {
        let status = Command::new("ip").args(line.split(' ')).status().unwrap();
        assert!(status.success(), "{line}");
    };
    ip(&format!("netns add {}", space.0));
    ip(&format!("-n {} link set lo up", space.0));
    for last in 2..5 {
        ip(&format!("-n {} addr add fd00:6722::{last}/128 dev lo nodad", space.0));
    }
    let path = format!("/run/netns/{}", space.0);
    let inside = std::thread::spawn(move || {
        let space = File::open(path).unwrap();
        move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        let addresses = [2, 3, 4].map(|last| format!("fd00:6722::{last}").parse().unwrap());
        for key in [None, key()] {
            // From a client at one address and from one at all of them.
            for client in ["[fd00:6722::2]:0", "[::]:0"] {
                let client = client.parse().unwrap();
                for addresses in [&addresses[1..2], &addresses[2..], &addresses[..]] {
                    let mut ends = pair("[::]:0", client, &leverage(), key.as_ref());
                    call("IPv6", &mut ends, addresses);
                }
            }
        }
    });
    inside.join().unwrap();
}

/// Forged packets, which prove nothing, change no address from which a peer is answered.
#[test]
fn a_forged_packet_does_not_move_a_peer_to_another_address() {
    rackweave_testing::needs!(NetAdmin);
    for (key, is_named) in [(None, false), (None, true), (key(), false), (key(), true)] {
        let mut ends = pair("0.0.0.0:0", local(), &leverage(), key.as_ref());
        let (client, port) = (ends[0].local_addr(), ends[1].local_addr().port());
        let server = ends[0].add_peer((Ipv4Addr::new(127, 0, 0, 2), port).into());
        if is_named {
            assert_eq!(ends[1].add_peer(client), ends[1].add_peer(client));
        }
        let forger = Forger::new(client);
        let mut hello = Vec::new();
        overlay::encode_hello(HostId(0), HostId(1), 77, 78, &mut hello);
        for n in 0..50 {
            let id = ends[0].send(server, Kind::Request, bytes(n, 5000)).unwrap();
            drive(&mut ends, |ends| {
                if n > 0 {
                    for last in [1, 3, 4] {
                        forger.send((Ipv4Addr::new(127, 0, 0, last), port).into(), &hello);
                    }
                }
                while let Some(event) = ends[1].poll_event() {
                    if let Event::Message { peer, id, bytes, .. } = event {
                        ends[1].respond(peer, id, bytes).unwrap();
                    }
                }
                match ends[0].poll_event() {
                    Some(Event::Message { id: answer, .. }) => answer == id.response(),
                    Some(Event::Failed { reason, .. }) => panic!("{reason}"),
                    _ => false,
                }
            });
        }
        let Stats { restarts, unproven, malformed, .. } = ends[1].stats();
        assert_eq!(restarts, 0);
        assert!(unproven + malformed > 100, "{unproven} {malformed}");
    }
}

/// A host that forges the address and port of another one.
struct Forger {
    socket: Socket,
    source: u16,
}

impl Forger {
    fn new(source: SocketAddr) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP)).unwrap();
        socket.bind(&SocketAddr::new(source.ip(), 0).into()).unwrap();
        Self { socket, source: source.port() }
    }

    fn send(&self, to: SocketAddr, bytes: &[u8]) {
        let len = 8 + bytes.len() as u16;
        // Without a checksum (RFC 768).
        let mut packet: Vec<u8> =
            [self.source, to.port(), len, 0].iter().flat_map(|field| field.to_be_bytes()).collect();
        packet.extend_from_slice(bytes);
        self.socket.send_to(&packet, &SocketAddr::new(to.ip(), 0).into()).unwrap();
    }
}
