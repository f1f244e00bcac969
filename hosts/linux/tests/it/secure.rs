//! Endpoints that share a key: what is on the wire, and what the network or a stranger can do about it.

use std::collections::BTreeSet;
use std::net::UdpSocket;

use crate::common::proxy::{Faults, Proxy};
use crate::common::{PATIENCE, bytes, config, drive, leverage, local, patient, run_for};
use bytes::Bytes;
use rackweave_core::{Kind, Span};
use rackweave_linux::endpoint::KeyMismatch;
use rackweave_linux::{Clock, Endpoint, EndpointConfig, EndpointError, Event, Key, Peers};
use rackweave_testing::{bind_again, free_address};
use rackweave_transport::TransportConfig;
use rackweave_wire::secure::{self, Datagram, HANDSHAKE_BYTES};

fn key(n: u8) -> Key {
    Key::derive(&[n; 32]).unwrap()
}

fn endpoint(host: u32, transport: &TransportConfig, clock: Clock, key: Option<Key>) -> Endpoint {
    Endpoint::new(EndpointConfig { key, ..config(host, transport, clock) }).unwrap()
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
            // Asks and acceptances are repeated until they are answered; a sealed packet never is.
            let sealed: Vec<_> = proxy
                .recorded
                .iter()
                .filter(|(_, bytes)| matches!(secure::decode(bytes), Ok(Datagram::Sealed(_))))
                .collect();
            let distinct: BTreeSet<_> = sealed.iter().collect();
            assert_eq!(distinct.len(), sealed.len(), "{name}: a packet was sent twice");
        }
    }
}

/// The network loses, duplicates and damages datagrams, and sends recorded ones again: each request is taken once, and
/// answered.
#[test]
fn requests_over_a_hostile_network() {
    for (seed, (name, transport)) in (1..).zip(patient()) {
        let clock = Clock::start();
        let mut ends = [0, 1].map(|host| endpoint(host, &transport, clock, Some(key(1))));
        let mut proxy = Proxy::new([ends[0].local_addr(), ends[1].local_addr()], seed);
        proxy.faults = Faults { loss: 0.03, duplication: 0.1, damage: 0.03, replay: 0.3 };
        let peer = ends[0].add_peer(proxy.at(0));
        let mut open = BTreeSet::new();
        let mut taken = BTreeSet::new();
        for n in 0..20 {
            let content = bytes(n, 1 + n as usize * 3000);
            open.insert((ends[0].send(peer, Kind::Request, content).unwrap().response(), n));
        }
        drive(&mut ends, |ends| {
            proxy.turn();
            while let Some(event) = ends[1].poll_event() {
                if let Event::Message { peer, id, kind: Kind::Request, bytes } = event {
                    assert!(taken.insert(id), "{name}: a request was taken twice");
                    ends[1].respond(peer, id, bytes).unwrap();
                }
            }
            while let Some(event) = ends[0].poll_event() {
                match event {
                    Event::Message { id, bytes: found, .. } => {
                        let at = open.iter().position(|(it, _)| *it == id);
                        let entry = *open.iter().nth(at.expect("once")).unwrap();
                        open.remove(&entry);
                        assert!(found == bytes(entry.1, 1 + entry.1 as usize * 3000), "{name}");
                    }
                    Event::Failed { reason, .. } => panic!("{name}: {reason}"),
                    Event::PeerRestarted { .. } => panic!("{name}: nobody has restarted"),
                    _ => {}
                }
            }
            open.is_empty()
        });
        assert_eq!(taken.len(), 20, "{name}");
        let stats = ends.map(|end| end.stats());
        assert!(stats.iter().any(|it| it.replayed > 0), "{name}: {stats:?}");
        assert!(stats.iter().any(|it| it.forged > 0), "{name}: {stats:?}");
    }
}

#[test]
fn keys_that_differ_are_reported_at_the_host_that_calls() {
    let cases = [
        (Some(key(1)), None, KeyMismatch::PeerHasNone),
        (None, Some(key(1)), KeyMismatch::PeerHasOne),
        (Some(key(1)), Some(key(2)), KeyMismatch::Another),
    ];
    for (client, server, expected) in cases {
        let right = client.clone();
        let clock = Clock::start();
        let transport = leverage();
        let at = free_address();
        let bound = |key| {
            let config = EndpointConfig { bind: at, key, ..config(1, &transport, clock) };
            Endpoint::new(config)
        };
        let mut ends = [endpoint(0, &transport, clock, client), bound(server).unwrap()];
        let peer = ends[0].add_peer(at);
        ends[0].send(peer, Kind::Request, bytes(1, 3000)).unwrap();
        drive(&mut ends, |ends| {
            assert!(ends[1].poll_event().is_none(), "{expected:?}: nothing arrives");
            while let Some(event) = ends[0].poll_event() {
                let Event::KeyMismatch { peer: reported, why } = event else { continue };
                assert_eq!((reported, why), (peer, expected));
                return true;
            }
            false
        });
        // A server with the right key is reached afterwards, at the same address.
        let [client, server] = ends;
        drop(server);
        let mut ends = [client, bind_again(|| bound(right.clone())).unwrap()];
        ends[0].send(peer, Kind::Request, bytes(2, 3000)).unwrap();
        drive(&mut ends, |ends| {
            echo(&mut ends[1]);
            matches!(ends[0].poll_event(), Some(Event::Message { .. }))
        });
    }
}

#[test]
fn a_key_does_not_go_through_a_switch() {
    let peers = Peers::Switch { port: local(), hosts: 2 };
    let config = EndpointConfig::new(rackweave_core::HostId(0), local(), peers, &leverage());
    let error = Endpoint::new(config.key(key(1))).unwrap_err();
    assert!(matches!(error, EndpointError::KeyThroughSwitch));
    assert!(error.to_string().contains("without one"), "{error}");
}

/// A stranger without the key floods a server with whatever it can make or has recorded, from an address of its own.
#[test]
fn a_flood_leaves_nothing_and_gains_nothing() {
    let clock = Clock::start();
    let transport = leverage();
    let mut ends = [0, 1].map(|host| endpoint(host, &transport, clock, Some(key(1))));
    let mut proxy = Proxy::new([ends[0].local_addr(), ends[1].local_addr()], 1);
    let peer = ends[0].add_peer(proxy.at(0));
    ends[0].send(peer, Kind::Request, bytes(1, 20_000)).unwrap();
    drive(&mut ends, |ends| {
        proxy.turn();
        echo(&mut ends[1]);
        matches!(ends[0].poll_event(), Some(Event::Message { .. }))
    });
    run_for(&mut ends, Span::from_ms(60));
    let tape: Vec<_> =
        proxy.recorded.iter().filter(|(from, _)| *from == 0).map(|(_, bytes)| bytes).collect();
    let stranger = UdpSocket::bind(local()).unwrap();
    stranger.set_nonblocking(true).unwrap();
    let (mut sent, mut got, mut buffer) = (0, 0, [0; 2000]);
    let server = ends[1].local_addr();
    let memory = ends[1].memory();
    for n in 0..3000_usize {
        let mut bytes = tape[n % tape.len()].clone();
        if n % 3 == 1 {
            let bit = n * 7919 % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        if n % 3 == 2 {
            bytes.truncate(1 + n % bytes.len());
        }
        sent += bytes.len();
        stranger.send_to(&bytes, server).unwrap();
        if n % 10 == 0 {
            ends[1].turn().unwrap();
        }
        while let Ok(length) = stranger.recv(&mut buffer) {
            got += length;
        }
    }
    let until = clock.now() + PATIENCE;
    while ends[1].turn().unwrap().is_some_and(|next| next <= clock.now()) {
        assert!(clock.now() < until);
    }
    while let Ok(length) = stranger.recv(&mut buffer) {
        got += length;
    }
    // Recorded asks are answered, and every answer is at most as long as what it answers.
    assert!(got > 0 && got <= sent, "{got} for {sent}");
    assert_eq!(ends[1].memory(), memory);
    assert!(ends[1].poll_event().is_none());
    let stats = ends[1].stats();
    assert_eq!((stats.restarts, stats.replayed), (0, 0), "it has no session: {stats:?}");
    assert!(stats.forged > 50 && stats.unproven > 50, "{stats:?}");
}

/// Someone on the path returns each packet of a host to it, as if from another of its peers. The host would make the handshake
/// with itself, and take its own request for that peer's.
#[test]
fn a_host_whose_packets_are_returned_from_another_peers_address_does_not_serve_itself() {
    let clock = Clock::start();
    let transport = leverage();
    let mut ends = [0, 1].map(|host| endpoint(host, &transport, clock, Some(key(1))));
    let mut proxy = Proxy::new([ends[0].local_addr(); 2], 1);
    let first = ends[0].add_peer(proxy.at(0));
    ends[0].add_peer(proxy.at(1));
    ends[0].send(first, Kind::Request, bytes(1, 3000)).unwrap();
    let until = clock.now() + Span::from_ms(500);
    drive(&mut ends, |ends| {
        proxy.turn();
        while let Some(event) = ends[0].poll_event() {
            assert!(!matches!(event, Event::Message { .. }), "{event:?}");
        }
        clock.now() >= until
    });
    let kinds = |kind: fn(&Datagram) -> bool| {
        proxy.recorded.iter().filter(|it| secure::decode(&it.1).is_ok_and(|it| kind(&it))).count()
    };
    assert!(kinds(|it| matches!(it, Datagram::Handshake(it) if it.kind == secure::Kind::Ask)) > 2);
    assert_eq!(
        kinds(|it| matches!(it, Datagram::Handshake(it) if it.kind == secure::Kind::Offer)),
        0
    );
    assert_eq!(kinds(|it| matches!(it, Datagram::Sealed(_))), 0);
    assert!(ends[0].stats().reflected > 2, "{:?}", ends[0].stats());
    // It reaches and is reached as before.
    let other = ends[0].add_peer(ends[1].local_addr());
    let back = ends[1].add_peer(ends[0].local_addr());
    for (from, to) in [(0, other), (1, back)] {
        ends[from].send(to, Kind::Request, bytes(2, 3000)).unwrap();
        drive(&mut ends, |ends| {
            let event = ends[from].poll_event();
            echo(&mut ends[1 - from]);
            matches!(event, Some(Event::Message { .. }))
        });
    }
}
