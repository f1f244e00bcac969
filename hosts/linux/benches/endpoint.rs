//! Measures how fast an endpoint is between two threads on loopback, compared with plain UDP and TCP sockets in the
//! same process.
//!
//! `cargo bench -p rackweave-linux` prints a table; arguments after `--` select lines by their names.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use rackweave_core::{HostId, Kind, Rate, Span, Time};
use rackweave_linux::{Clock, Endpoint, EndpointConfig, Event, Peers};
use rackweave_transport::{TransportConfig, homa, polo, tcp};

/// The measured time of each line.
const RUN: Span = Span::from_ms(1000);
/// The time before the measurement starts.
const WARM_UP: Span = Span::from_ms(200);

fn link() -> Rate {
    Rate::from_gbps(100)
}

fn transports() -> Vec<(&'static str, TransportConfig)> {
    vec![
        ("leverage-homa", TransportConfig::Homa(Arc::new(homa::Config::leverage(link())))),
        ("polo", TransportConfig::Polo(Arc::new(polo::Config::slides().for_hosts()))),
        ("tcp machine", TransportConfig::Tcp(Arc::new(tcp::Config::tcp()))),
    ]
}

fn local() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn endpoint(host: u32, transport: &TransportConfig, clock: Clock, busy_poll: Span) -> Endpoint {
    let allow = vec!["127.0.0.1".parse().expect("an address")];
    let peers = Peers::Direct { hosts: BTreeMap::new(), allow };
    let config = EndpointConfig::new(HostId(host), local(), peers, transport);
    let config = EndpointConfig { clock, link: link(), busy_poll, ..config };
    Endpoint::new(config).expect("loopback is there")
}

/// Echoes requests and reads streams until `stop` is set.
fn serve(mut server: Endpoint, stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        let next = server.turn().expect("the socket works").unwrap_or(Time::MAX);
        let mut answered = false;
        while let Some(event) = server.poll_event() {
            answered = true;
            match event {
                Event::Message { peer, id, kind: Kind::Request, bytes } => {
                    server.respond(peer, id, bytes).expect("there is room");
                }
                Event::Readable { peer, id, pieces, .. } => {
                    let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
                    server.consume(peer, id, bytes);
                }
                _ => {}
            }
        }
        if !answered {
            let soon = server.clock().now() + Span::from_ms(10);
            server.wait(Some(next.min(soon))).expect("the socket works");
        }
    }
}

/// Round trips per second, and percentiles of their times in nanoseconds.
struct Trips {
    per_s: f64,
    times: Vec<u64>,
}

impl Trips {
    fn new(mut times: Vec<u64>, span: Span) -> Self {
        times.sort_unstable();
        Self { per_s: times.len() as f64 / span.as_secs_f64(), times }
    }

    fn us(&self, share: f64) -> f64 {
        let at = (self.times.len() as f64 * share) as usize;
        self.times
            .get(at.min(self.times.len().saturating_sub(1)))
            .map_or(0.0, |ns| *ns as f64 / 1e3)
    }

    fn print(&self, name: &str, base: f64) {
        let (p50, p99) = (self.us(0.5), self.us(0.99));
        let (per_s, ratio) = (self.per_s, self.per_s / base);
        println!("{name:44} {per_s:>9.0}/s  p50 {p50:>6.1} us  p99 {p99:>6.1} us  x{ratio:.2}");
    }
}

fn calls(transport: &TransportConfig, bytes: usize, outstanding: usize, busy: Span) -> Trips {
    let clock = Clock::start();
    let server = endpoint(1, transport, clock, busy);
    let address = server.local_addr();
    let stop = AtomicBool::new(false);
    let stop = &stop;
    std::thread::scope(|scope| {
        scope.spawn(move || serve(server, stop));
        let mut client = endpoint(0, transport, clock, busy);
        let peer = client.add_peer(address);
        let payload = Bytes::from(vec![7; bytes]);
        let mut begun = BTreeMap::new();
        let mut times = Vec::with_capacity(1 << 20);
        let from = clock.now() + WARM_UP;
        let until = from + RUN;
        while clock.now() < until {
            while begun.len() < outstanding {
                let id = client.send(peer, Kind::Request, payload.clone()).expect("there is room");
                begun.insert(id.response(), clock.now());
            }
            let next = client.turn().expect("the socket works").unwrap_or(Time::MAX);
            let mut answered = false;
            while let Some(event) = client.poll_event() {
                match event {
                    Event::Message { id, .. } => {
                        let at = begun.remove(&id).expect("asked for");
                        if at >= from {
                            times.push(clock.now().since(at).as_ns());
                        }
                        answered = true;
                    }
                    Event::Failed { reason, .. } => panic!("{reason}"),
                    _ => {}
                }
            }
            if !answered {
                client.wait(Some(next.min(until))).expect("the socket works");
            }
        }
        stop.store(true, Relaxed);
        Trips::new(times, RUN)
    })
}

/// Returns the gigabits per second of one stream, and the number of datagrams per system call.
fn stream(transport: &TransportConfig) -> (f64, f64) {
    let clock = Clock::start();
    let server = endpoint(1, transport, clock, Span::ZERO);
    let address = server.local_addr();
    let stop = AtomicBool::new(false);
    let stop = &stop;
    std::thread::scope(|scope| {
        scope.spawn(move || serve(server, stop));
        let mut client = endpoint(0, transport, clock, Span::ZERO);
        let peer = client.add_peer(address);
        let payload = Bytes::from(vec![7; 256 << 10]);
        let id = client.open(peer, Time::MAX).expect("there is room");
        let from = clock.now() + WARM_UP;
        let until = from + RUN;
        let mut arrived = 0;
        while clock.now() < until {
            while client.unacknowledged(peer, id) < 4 << 20 {
                client.write(peer, id, payload.clone(), false).expect("there is room");
            }
            let next = client.turn().expect("the socket works").unwrap_or(Time::MAX);
            while let Some(event) = client.poll_event() {
                match event {
                    Event::Written { bytes, .. } if clock.now() >= from => arrived += bytes,
                    Event::Failed { reason, .. } => panic!("{reason}"),
                    _ => {}
                }
            }
            client.wait(Some(next.min(until))).expect("the socket works");
        }
        stop.store(true, Relaxed);
        let stats = client.stats();
        (arrived as f64 * 8e3 / RUN.ticks() as f64, stats.sent as f64 / stats.send_calls as f64)
    })
}

fn plain_udp(bytes: usize) -> Trips {
    let clock = Clock::start();
    let server = UdpSocket::bind(local()).expect("loopback is there");
    let client = UdpSocket::bind(local()).expect("loopback is there");
    let (here, there) = (client.local_addr(), server.local_addr());
    let (here, there) = (here.expect("bound"), there.expect("bound"));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            server.set_read_timeout(Some(Duration::from_secs(1))).expect("it is a socket");
            while let Ok((len, _)) = server.recv_from(&mut buffer)
                && len > 0
            {
                server.send_to(&buffer[..len], here).expect("the client is there");
            }
        });
        let mut buffer = vec![7; 1 << 16];
        let times = measure(clock, || {
            client.send_to(&buffer[..bytes], there).expect("the server is there");
            client.recv_from(&mut buffer).expect("an answer");
        });
        client.send_to(&[], there).expect("the server is there");
        times
    })
}

fn plain_tcp(bytes: usize) -> Trips {
    let clock = Clock::start();
    let listener = TcpListener::bind(local()).expect("loopback is there");
    let address = listener.local_addr().expect("bound");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut server, _) = listener.accept().expect("a client");
            server.set_nodelay(true).expect("it is a socket");
            let mut buffer = vec![0; bytes];
            while server.read_exact(&mut buffer).is_ok() {
                server.write_all(&buffer).expect("the client is there");
            }
        });
        let mut client = TcpStream::connect(address).expect("the server is there");
        client.set_nodelay(true).expect("it is a socket");
        let mut buffer = vec![7; bytes];
        measure(clock, || {
            client.write_all(&buffer).expect("the server is there");
            client.read_exact(&mut buffer).expect("an answer");
        })
    })
}

fn measure(clock: Clock, mut trip: impl FnMut()) -> Trips {
    let from = clock.now() + WARM_UP;
    let until = from + RUN;
    let mut times = Vec::with_capacity(1 << 20);
    let mut now = clock.now();
    while now < until {
        trip();
        let after = clock.now();
        if now >= from {
            times.push(after.since(now).as_ns());
        }
        now = after;
    }
    Trips::new(times, RUN)
}

fn plain_tcp_stream() -> f64 {
    let clock = Clock::start();
    let listener = TcpListener::bind(local()).expect("loopback is there");
    let address = listener.local_addr().expect("bound");
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let (mut server, _) = listener.accept().expect("a client");
            let mut buffer = vec![0; 256 << 10];
            let mut read = 0;
            let from = clock.now() + WARM_UP;
            while let Ok(len) = server.read(&mut buffer)
                && len > 0
            {
                let now = clock.now();
                read += if now >= from && now < from + RUN { len as u64 } else { 0 };
            }
            read
        });
        let mut client = TcpStream::connect(address).expect("the server is there");
        let buffer = vec![7; 256 << 10];
        let until = clock.now() + WARM_UP + RUN;
        while clock.now() < until {
            client.write_all(&buffer).expect("the server is there");
        }
        drop(client);
        reader.join().expect("it read to the end") as f64 * 8e3 / RUN.ticks() as f64
    })
}

fn main() {
    let chosen: Vec<String> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let wants =
        |name: &str| chosen.is_empty() || chosen.iter().any(|word| name.contains(word.as_str()));
    println!("x: beside plain UDP (round trips), or plain TCP (streams and long messages)");
    let mut base = f64::INFINITY;
    if wants("plain") || chosen.is_empty() {
        let udp = plain_udp(100);
        base = udp.per_s;
        udp.print("plain UDP, 100 B", base);
        plain_tcp(100).print("plain TCP, 100 B", base);
    }
    for (name, transport) in transports() {
        for (outstanding, busy) in [(1, Span::ZERO), (1, Span::from_us(50)), (64, Span::ZERO)] {
            let polls = if busy == Span::ZERO { "" } else { ", busy poll" };
            let line = format!("{name}, 100 B, {outstanding} outstanding{polls}");
            if wants(&line) {
                calls(&transport, 100, outstanding, busy).print(&line, base);
            }
        }
    }
    let mut base = f64::INFINITY;
    if wants("plain") {
        base = plain_tcp_stream();
        println!("{:44} {base:>9.2} Gbps", "plain TCP, stream");
    }
    for (name, transport) in transports() {
        let line = format!("{name}, 900 kB calls, 4 outstanding");
        if wants(&line) {
            let trips = calls(&transport, 900_000, 4, Span::ZERO);
            let gbps = trips.per_s * 900_000.0 * 8.0 / 1e9;
            println!("{line:44} {gbps:>9.2} Gbps each way  x{:.2}", gbps / base);
        }
        let line = format!("{name}, stream");
        if !matches!(transport, TransportConfig::Polo(_)) && wants(&line) {
            let (gbps, train) = stream(&transport);
            println!(
                "{line:44} {gbps:>9.2} Gbps  x{:.2}  {train:.1} datagrams a call",
                gbps / base
            );
        }
    }
}
