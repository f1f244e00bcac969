//! Two endpoints on loopback.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use rackweave_core::{HostId, Kind, Rate, Span, Time};
use rackweave_linux::{Clock, Endpoint, EndpointConfig, Event, Peers};
use rackweave_transport::{TransportConfig, homa, ndp, phost, polo, tcp};

const LOCAL: &str = "127.0.0.1:0";
const PATIENCE: Span = Span::from_secs(20);

fn transports() -> Vec<(&'static str, TransportConfig)> {
    let link = Rate::from_gbps(10);
    let homa = |config| TransportConfig::Homa(Arc::new(config));
    vec![
        ("homa", homa(homa::Config::sigcomm18(link, 60_000))),
        ("homa linux", homa(homa::Config::linux(link))),
        ("leverage-homa", homa(homa::Config::leverage(link))),
        ("tcp", TransportConfig::Tcp(Arc::new(tcp::Config::tcp()))),
        ("ndp", TransportConfig::Ndp(Arc::new(ndp::Config::paper(link)))),
        ("phost", TransportConfig::PHost(Arc::new(phost::Config::paper(link)))),
        ("polo", TransportConfig::Polo(Arc::new(polo::Config::slides()))),
    ]
}

/// Two endpoints that know each other.
fn pair(transport: &TransportConfig) -> [Endpoint; 2] {
    let clock = Clock::start();
    let bind: SocketAddr = LOCAL.parse().unwrap();
    let end = |host: u32| {
        let peers =
            Peers::Direct { hosts: BTreeMap::new(), allow: vec!["127.0.0.1".parse().unwrap()] };
        let config = EndpointConfig::new(HostId(host), bind, peers, transport);
        Endpoint::new(EndpointConfig { clock, ..config }).unwrap()
    };
    [end(0), end(1)]
}

/// Turns both until `done` says so.
fn drive(ends: &mut [Endpoint; 2], mut done: impl FnMut(&mut [Endpoint; 2]) -> bool) {
    let clock = ends[0].clock();
    let until = clock.now() + PATIENCE;
    loop {
        let next = [0, 1].map(|i| ends[i].turn().unwrap().unwrap_or(Time::MAX));
        if done(ends) {
            return;
        }
        let now = clock.now();
        assert!(now < until, "{:?} {:?}", ends[0].stats(), ends[1].stats());
        let wake = next[0].min(next[1]).min(now + Span::from_us(100));
        ends[1].wait(Some(wake)).unwrap();
    }
}

fn bytes(len: usize) -> Bytes {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn requests_are_answered_over_every_transport() {
    for (name, transport) in transports() {
        let mut ends = pair(&transport);
        let address = ends[1].local_addr();
        let server = ends[0].add_peer(address);
        let sizes = [1, 100, 1500, 20_000, 300_000];
        for len in sizes {
            ends[0].send(server, Kind::Request, bytes(len)).unwrap();
        }
        let mut answers = Vec::new();
        drive(&mut ends, |ends| {
            while let Some(event) = ends[1].poll_event() {
                if let Event::Message { peer, id, kind: Kind::Request, bytes } = event {
                    let answer = Bytes::from(bytes.iter().map(|b| !b).collect::<Vec<_>>());
                    ends[1].respond(peer, id, answer).unwrap();
                }
            }
            while let Some(event) = ends[0].poll_event() {
                match event {
                    Event::Message { kind: Kind::Response, bytes, .. } => answers.push(bytes),
                    Event::Failed { reason, .. } => panic!("{name}: {reason}"),
                    _ => {}
                }
            }
            answers.len() == sizes.len()
        });
        answers.sort_by_key(Bytes::len);
        for (answer, len) in answers.iter().zip(sizes) {
            let expected: Vec<u8> = bytes(len).iter().map(|b| !b).collect();
            assert!(answer[..] == expected, "{name}: {len} bytes");
        }
    }
}

#[test]
fn a_stream_carries_megabytes_in_bounded_memory() {
    const TOTAL: usize = 64 << 20;
    for (name, transport) in transports().into_iter().filter(|t| ["homa", "tcp"].contains(&t.0)) {
        let mut ends = pair(&transport);
        let address = ends[1].local_addr();
        let server = ends[0].add_peer(address);
        let stream = ends[0].open(server, Time::MAX).unwrap();
        let block = bytes(251 * 1024);
        let (mut written, mut read, mut closed) = (0, 0, false);
        drive(&mut ends, |ends| {
            while written < TOTAL && ends[0].unacknowledged(server, stream) < 4 << 20 {
                let piece = block.slice(..block.len().min(TOTAL - written));
                written += piece.len();
                ends[0].write(server, stream, piece, written == TOTAL).unwrap();
            }
            while let Some(event) = ends[1].poll_event() {
                match event {
                    Event::Readable { peer, id, pieces, end } => {
                        for piece in pieces {
                            let at = read % block.len();
                            let known = block.len().min(at + piece.len()) - at;
                            assert!(piece[..known] == block[at..at + known], "{name} at {read}");
                            assert!(piece[known..] == block[..piece.len() - known]);
                            read += piece.len();
                            ends[1].consume(peer, id, piece.len() as u64);
                        }
                        if end {
                            ends[1].write(peer, id.response(), Bytes::new(), true).unwrap();
                        }
                    }
                    Event::Failed { reason, .. } => panic!("{name}: {reason}"),
                    _ => {}
                }
            }
            while let Some(event) = ends[0].poll_event() {
                match event {
                    Event::Failed { reason, .. } => panic!("{name}: {reason}"),
                    Event::Closed { .. } => closed = true,
                    _ => {}
                }
            }
            assert!(ends[1].memory().1 < 8 << 20 && ends[0].memory().0 < 8 << 20);
            closed
        });
        assert_eq!(read, TOTAL, "{name}");
        assert_eq!(ends[0].memory(), (0, 0), "{name}");
    }
}
