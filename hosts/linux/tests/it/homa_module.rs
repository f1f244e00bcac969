//! Packets of HomaModule's over raw sockets, on the loopback interface of a network namespace.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::process::Command;

use bytes::Bytes;
use rackweave_core::{HostId, Kind, Rate, Refused, Rng, Span, Time};
use rackweave_linux::endpoint::Network;
use rackweave_linux::sys::{Path, SendBatch, UdpSocket};
use rackweave_linux::{
    Clock, Endpoint, EndpointConfig, EndpointError, Event, Peers, SendError, netns,
};
use rackweave_testing::bind_again;
use rackweave_transport::{Profile as _, homa};
use smallvec::smallvec;

use crate::common::{bytes, drive};

const PROTOCOL: u8 = 146;
const PORT: u16 = 4000;

/// A namespace, which is removed on drop.
struct Space(String);

impl Drop for Space {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// Runs this in a namespace of its own whose loopback interface is up. Returns `false` if this process may not create one.
fn in_space(test: &str, run: impl FnOnce() + Send) -> bool {
    rackweave_testing::needs!(NetAdmin, false);
    let space = Space(format!("rwt-module-{test}-{}", std::process::id()));
    for line in [format!("netns add {}", space.0), format!("-n {} link set lo up", space.0)] {
        assert!(Command::new("ip").args(line.split(' ')).status().unwrap().success(), "{line}");
    }
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            netns::enter(&space.0).unwrap();
            run();
        });
        inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    true
}

fn config(bind: (Ipv4Addr, u16), allow: Vec<Network>, clock: Clock) -> EndpointConfig {
    let homa = homa::Config::linux_2026(Rate::from_gbps(10)).patient(Span::from_secs(10));
    let peers = Peers::Direct { hosts: BTreeMap::new(), allow };
    EndpointConfig { clock, ..EndpointConfig::homa_module(HostId(0), bind.into(), peers, homa) }
}

/// A client, and a server that admits every host at loopback.
fn pair() -> [Endpoint; 2] {
    let clock = Clock::start();
    let all: Network = "127.0.0.0/8".parse().unwrap();
    let client = config((Ipv4Addr::LOCALHOST, 0), Vec::new(), clock);
    let server = config((Ipv4Addr::LOCALHOST, PORT), vec![all], clock);
    [client, server].map(|config| Endpoint::new(config).unwrap())
}

/// Calls with a request and a response of this length; both must arrive as they were sent.
fn call(ends: &mut [Endpoint], server: HostId, len: usize) {
    let (request, response) = (bytes(1, len), bytes(2, len));
    let asked = ends[0].send(server, Kind::Request, request.clone()).unwrap();
    assert_eq!(asked.0 & 1, 0, "ids of requests are even");
    drive(ends, |ends| {
        while let Some(event) = ends[1].poll_event() {
            if let Event::Message { peer, id, kind: Kind::Request, bytes } = event {
                if bytes == request {
                    ends[1].respond(peer, id, response.clone()).unwrap();
                } else {
                    // A stranger's: whatever it has made up is answered in kind.
                    let _ = ends[1].respond(peer, id, Bytes::from_static(b"?"));
                }
            }
        }
        while let Some(event) = ends[0].poll_event() {
            match event {
                Event::Message { id, bytes, .. } => {
                    assert_eq!(id, asked.response());
                    assert!(bytes == response, "{len}");
                    return true;
                }
                Event::Failed { reason, .. } => panic!("{len}: {reason}"),
                _ => {}
            }
        }
        false
    });
}

#[test]
fn calls_of_every_length_are_complete_and_nothing_else_is_carried() {
    in_space("calls", || {
        let mut ends = pair();
        let address = ends[1].local_addr();
        assert!(ends[0].local_addr().port() >= 0x8000);
        let server = ends[0].add_peer(address);
        for len in [1, 100, 1424, 1425, 10_000, 100_000, 500_000, 1_000_000] {
            call(&mut ends, server, len);
        }
        let bytes = Bytes::from(vec![0; 1_000_001]);
        let long = ends[0].send(server, Kind::Request, bytes).unwrap_err();
        assert_eq!(long, SendError::Refused(Refused::TooLong { max: 1_000_000 }));
        let one_way = ends[0].send(server, Kind::OneWay, Bytes::from_static(b"x")).unwrap_err();
        let stream = ends[0].open(server, Time::MAX).unwrap_err();
        assert_eq!([one_way, stream], [SendError::Refused(Refused::Unsupported); 2]);
        let [client, server] = ends.each_ref().map(Endpoint::stats);
        assert_eq!((client.malformed, client.foreign), (0, 0), "{client:?}");
        assert_eq!((server.malformed, server.foreign), (0, 0), "{server:?}");
    });
}

#[test]
fn a_port_has_one_process_and_no_packets_of_other_ports() {
    in_space("ports", || {
        let mut ends = pair();
        let clock = ends[0].clock();
        let again = Endpoint::new(config((Ipv4Addr::LOCALHOST, PORT), Vec::new(), clock));
        let error = again.unwrap_err();
        let EndpointError::Raw { ref source, .. } = error else { panic!("{error}") };
        assert_eq!(source.kind(), std::io::ErrorKind::AddrInUse);
        // An endpoint at another port of the same address sees nothing of these calls.
        let other = Endpoint::new(config((Ipv4Addr::LOCALHOST, PORT + 1), Vec::new(), clock));
        let mut other = other.unwrap();
        let server = ends[0].add_peer(ends[1].local_addr());
        call(&mut ends, server, 50_000);
        other.turn().unwrap();
        assert_eq!(other.stats().received, 0);
        // Its port is free again once it is gone.
        drop(other);
        let again = || Endpoint::new(config((Ipv4Addr::LOCALHOST, PORT + 1), Vec::new(), clock));
        bind_again(again).unwrap();
    });
}

#[test]
fn a_server_at_all_addresses_answers_from_the_one_that_was_addressed() {
    in_space("all", || {
        let clock = Clock::start();
        let all: Network = "127.0.0.0/8".parse().unwrap();
        let client = config((Ipv4Addr::LOCALHOST, 0), Vec::new(), clock);
        let server = config((Ipv4Addr::UNSPECIFIED, PORT), vec![all], clock);
        let mut ends = [client, server].map(|config| Endpoint::new(config).unwrap());
        // The route's own address would be 127.0.0.1.
        let server = ends[0].add_peer((Ipv4Addr::new(127, 0, 0, 9), PORT).into());
        call(&mut ends, server, 20_000);
    });
}

/// What the sender's raw socket has of each recorded packet.
fn recorded() -> Vec<Vec<u8>> {
    rackweave_testing::homa_module().iter().map(rackweave_testing::Recorded::whole).collect()
}

#[test]
fn damaged_packets_of_a_stranger_change_nothing() {
    in_space("hostile", || {
        let mut ends = pair();
        let server = ends[0].add_peer(ends[1].local_addr());
        let (here, packets) = (ends.each_ref().map(Endpoint::local_addr), recorded());
        let at = SocketAddrV4::new(Ipv4Addr::new(127, 6, 6, 6), 666);
        let mut stranger = UdpSocket::raw(at, PROTOCOL, 1 << 20).unwrap();
        let mut rng = Rng::stream(7, 0, 0, "stranger");
        for round in 0..12 {
            let mut batch = SendBatch::default();
            for _ in 0..64 {
                let mut bytes = packets[rng.below(packets.len() as u64) as usize].clone();
                let to = here[usize::from(rng.chance(0.8))];
                for _ in 0..rng.below(4) {
                    let at = rng.below(bytes.len().min(64) as u64) as usize;
                    bytes[at] = rng.next_u64() as u8;
                }
                // Else hardly one of them would get through.
                bytes[2..4].copy_from_slice(&to.port().to_be_bytes());
                if rng.chance(0.3) {
                    bytes.truncate(rng.below(70) as usize);
                }
                let local = Some(IpAddr::V4(*at.ip()));
                let remote = SocketAddr::new(to.ip(), 0);
                let payload = smallvec![Bytes::from(bytes)];
                batch.push(Path { remote, local }, rng.next_u64() as u8, |_| {}, payload);
            }
            stranger.send(&mut batch).unwrap();
            // No longer ones: a host that is admitted may begin messages, and take its share of the grants.
            call(&mut ends, server, [100, 10_000, 40_000][round % 3]);
        }
        let [client, server] = ends.each_ref().map(Endpoint::stats);
        assert!(client.foreign > 20 && server.malformed > 20, "{client:?} {server:?}");
    });
}
