//! SWP2P's program in the kernel at the ports of a Linux bridge, and of a router, between namespaces that the test creates and
//! removes. Hosts are plain UDP sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use bytes::Bytes;
use rackweave_bpf::TorError;
use rackweave_bpf::swp2p::{PORT, Tor, TorConfig, TorCounters};
use rackweave_bpf::tc::TcError;
use rackweave_core::Rng;
use rackweave_linux::sys::{self, SendBatch};
use rackweave_wire::frisbee::{self, Auth, Body, Chunks, Direction, Header, Key, REPORT_MAP_BYTES};

use crate::namespaces::{Namespaces, inside, ip};

/// The server, and its clients.
const HOSTS: u8 = 5;
const PATIENCE: Duration = Duration::from_secs(60);
const IMAGE: u32 = 7;

/// The namespaces of a switch and of its hosts. Host 0 is the server.
struct Rack {
    namespaces: Namespaces,
    is_routed: bool,
}

impl Rack {
    /// Returns `None` if this process may not create namespaces. The switch is a bridge, or a router with a network at
    /// each port.
    fn make(test: &str, is_routed: bool) -> Option<Self> {
        let rack = Self { namespaces: Namespaces::make(test)?, is_routed };
        let switch = rack.namespaces.switch();
        if is_routed {
            // A namespace has its own value, which the thread's own folder of /proc shows.
            inside(&switch, || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
        } else {
            ip(&format!("-n {switch} link add br0 type bridge"));
            ip(&format!("-n {switch} link set br0 up"));
        }
        for host in 0..HOSTS {
            rack.namespaces.add_host(host, "");
            let (name, address) = (rack.namespaces.host(host), rack.address(host));
            ip(&format!("-n {name} addr add {address}/24 dev eth0"));
            if is_routed {
                let gateway = Ipv4Addr::from(address.to_bits() & !0xff | 1);
                ip(&format!("-n {switch} addr add {gateway}/24 dev p{host}"));
                ip(&format!("-n {name} route add default via {gateway}"));
            } else {
                ip(&format!("-n {switch} link set p{host} master br0"));
            }
        }
        Some(rack)
    }

    fn address(&self, host: u8) -> Ipv4Addr {
        if self.is_routed {
            Ipv4Addr::new(198, 18, host, 10)
        } else {
            Ipv4Addr::new(192, 0, 2, 200 - 10 * host)
        }
    }

    fn config(&self) -> TorConfig {
        // The server's port needs no program.
        let ports = (1..HOSTS).map(|host| format!("p{host}")).collect();
        TorConfig::new(ports, self.address(0))
    }

    fn tor(&self) -> Tor {
        inside(&self.namespaces.switch(), || Tor::attach(&self.config())).unwrap()
    }

    fn endpoint(&self, host: u8) -> Endpoint {
        self.endpoint_at(host, self.address(host))
    }

    /// A host's socket, which may have the address of another host.
    fn endpoint_at(&self, host: u8, address: Ipv4Addr) -> Endpoint {
        let server = SocketAddrV4::new(self.address(0), PORT);
        let socket =
            inside(&self.namespaces.host(host), || UdpSocket::bind((address, PORT)).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Endpoint { socket, address, server }
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        (0..HOSTS).map(|host| self.endpoint(host)).collect()
    }
}

struct Endpoint {
    socket: UdpSocket,
    address: Ipv4Addr,
    server: SocketAddrV4,
}

impl Endpoint {
    fn message(&self, body: Body, payload: &[u8]) -> Vec<u8> {
        let mut message = Vec::new();
        frisbee::encode(&Header { source: self.address.octets(), body }, &mut message);
        message.extend_from_slice(payload);
        message
    }

    fn batch(&self, first: u32, tries: u16) -> Vec<u8> {
        self.message(Body::Batch(Chunks { image: IMAGE, first, count: 1, tries }), &[])
    }

    fn report(&self, chunks: &[u32]) -> Vec<u8> {
        let mut map = [0; REPORT_MAP_BYTES as usize];
        for chunk in chunks {
            map[*chunk as usize / 8] |= 1 << (chunk % 8);
        }
        self.message(Body::Report { image: IMAGE, window: 0 }, &map)
    }

    /// Sends a message to the server.
    fn send(&self, message: &[u8]) {
        assert_eq!(self.socket.send_to(message, self.server).unwrap(), message.len());
    }

    /// Waits for a message from `from`.
    fn expect(&self, message: &[u8], from: &Self) {
        let mut buffer = [0; 2048];
        let (length, source) = self.socket.recv_from(&mut buffer).unwrap();
        assert_eq!(source, SocketAddr::from((from.address, PORT)));
        assert_eq!(&buffer[..length], message);
    }

    /// Sends a message to the server, and waits until it is there.
    fn tell(&self, message: &[u8], server: &Self) {
        self.send(message);
        server.expect(message, self);
    }

    /// Checks that no message has arrived.
    fn is_silent(&self) {
        self.socket.set_nonblocking(true).unwrap();
        let nothing = self.socket.recv_from(&mut [0; 2048]).unwrap_err();
        assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
        self.socket.set_nonblocking(false).unwrap();
    }
}

/// Clients join, and a request goes to one that has the chunk.
fn requests_find_holders(rack: &Rack) -> TorCounters {
    let tor = rack.tor();
    let hosts = rack.endpoints();
    let [server, a, b, c, d] = &hosts[..] else { unreachable!() };
    for client in [a, b, c] {
        let enter = client.message(Body::Enter { client: 1, name_len: 6 }, b"debian");
        client.tell(&enter, server);
        client.tell(&client.report(&[]), server);
    }
    a.tell(&a.report(&[5]), server);
    // The holder sees the requester's address, and bytes behind the message arrive, as a tag does.
    let key = Key::derive(b"secret");
    let mut request = b.batch(5, 0);
    Auth::Key(key).seal(&mut request, 0, 7, Direction::ToServer);
    b.send(&request);
    a.expect(&request, b);
    // Nobody has chunk 6: the request goes to the server, and the next one waits at the client that has asked.
    b.tell(&b.batch(6, 0), server);
    c.send(&c.batch(6, 0));
    b.expect(&c.batch(6, 0), c);
    b.tell(&b.report(&[5, 6]), server);
    // What a holder returns goes to another one, and to the server if there is none.
    let chunks = |first| Chunks { image: IMAGE, first, count: 1, tries: 0 };
    let give_back = |from: &Endpoint, first, requester: &Endpoint| {
        let requester = requester.address.octets();
        from.message(Body::Return { chunks: chunks(first), requester }, &[])
    };
    c.send(&c.batch(5, 0));
    a.expect(&c.batch(5, 0), c);
    a.send(&give_back(a, 5, c));
    b.expect(&give_back(a, 5, c), a);
    b.tell(&give_back(b, 5, c), server);
    // One that leaves is not asked, nor one that has not joined.
    b.tell(&b.message(Body::Exit { client: 1, image: IMAGE }, &[]), server);
    c.tell(&c.batch(6, 3), server);
    for host in &hosts {
        host.is_silent();
    }
    d.tell(&d.batch(99, 0), server);
    let clients = tor.clients().unwrap();
    let addresses: Vec<_> = clients.iter().map(|client| client.ip).collect();
    assert_eq!(addresses, [a.address, d.address, c.address]);
    assert!(clients.iter().all(|client| client.image == Some(IMAGE)), "{clients:?}");
    let counters = tor.counters().unwrap();
    drop(tor);
    // A program that another test has just started holds the links for a moment longer; the switch still sends this to d, then.
    let last = c.batch(99, 0);
    server.socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let is_there = |_: &u32| {
        c.send(&last);
        server.socket.recv_from(&mut [0; 2048]).is_ok_and(|(length, _)| length == last.len())
    };
    assert!((0..120).any(|attempt| is_there(&attempt)), "the server hears its clients again");
    server.socket.set_read_timeout(Some(PATIENCE)).unwrap();
    a.tell(&a.batch(5, 0), server);
    counters
}

#[test]
fn requests_cross_a_bridge_to_holders() {
    let Some(rack) = Rack::make("swp2p-b", false) else { return };
    let counters = requests_find_holders(&rack);
    let expected = TorCounters {
        messages: 17,
        requests: 6,
        reports: 5,
        returned: 2,
        to_holders: 3,
        to_pending: 1,
        to_server: 4,
        ..TorCounters::default()
    };
    assert_eq!(counters, expected);
}

#[test]
fn requests_cross_a_router_to_holders() {
    let Some(rack) = Rack::make("swp2p-r", true) else { return };
    assert_eq!(requests_find_holders(&rack).lost, 0);
}

#[test]
fn everything_else_crosses_the_bridge_as_before() {
    let Some(rack) = Rack::make("swp2p-t", false) else { return };
    let tor = rack.tor();
    let bytes: Vec<u8> =
        (0..4_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let to = SocketAddr::from((rack.address(2), PORT));
    let listener = inside(&rack.namespaces.host(2), || TcpListener::bind(to).unwrap());
    let mut stream =
        inside(&rack.namespaces.host(1), || TcpStream::connect_timeout(&to, PATIENCE).unwrap());
    let (mut from, _) = listener.accept().unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            stream.write_all(&bytes).unwrap();
            drop(stream);
        });
        let mut got = Vec::new();
        from.read_to_end(&mut got).unwrap();
        assert!(got == bytes);
    });
    // Messages of the server, and between clients, are not for a switch.
    let hosts = rack.endpoints();
    let message = hosts[1].batch(5, 0);
    for (from, to) in [(0, 1), (1, 2)] {
        hosts[from].socket.send_to(&message, (rack.address(to as u8), PORT)).unwrap();
        hosts[to].expect(&message, &hosts[from]);
    }
    assert_eq!(tor.counters().unwrap(), TorCounters::default());
}

#[test]
fn forged_and_damaged_messages_change_nothing() {
    let Some(rack) = Rack::make("swp2p-h", false) else { return };
    let tor = rack.tor();
    let hosts = rack.endpoints();
    let [server, a, b, c, _] = &hosts[..] else { unreachable!() };
    for client in [a, b, c] {
        client.tell(&client.report(&[5]), server);
    }
    b.tell(&b.report(&[]), server);
    c.tell(&c.report(&[]), server);
    // Host 4 pretends to be a.
    ip(&format!("-n {} addr add {}/32 dev eth0", rack.namespaces.host(4), a.address));
    let thief = rack.endpoint_at(4, a.address);
    let theft = [
        thief.report(&[9]),
        thief.batch(5, 0),
        thief.message(Body::Exit { client: 1, image: IMAGE }, &[]),
        thief.message(Body::Enter { client: 99, name_len: 1 }, b"x"),
        thief.message(Body::Damaged { image: IMAGE, chunk: 5, holder: c.address.octets() }, &[]),
    ];
    for message in &theft {
        thief.tell(message, server);
    }
    assert_eq!(tor.counters().unwrap().spoofed, theft.len() as u64);
    // Datagrams that are no messages, and messages with an error, all arrive at the server.
    let mut rng = Rng::stream(1, 0, 0, "hostile datagrams");
    for round in 0..500 {
        let mut message = match round % 4 {
            0 => c.report(&[5, 6, 7]),
            1 => c.batch(5, 0),
            2 => (0..rng.below(1200)).map(|_| rng.next_u64() as u8).collect(),
            _ => a.report(&[9]),
        };
        match round % 3 {
            0 => message.truncate(rng.below(message.len() as u64 + 1) as usize / 2),
            // The length, or the type.
            1 if message.len() > 12 => message[[0, 3, 8, 9, 11][rng.below(5) as usize]] ^= 0x40,
            _ if message.len() > 16 => message[12 + rng.below(4) as usize] ^= 1,
            _ => {}
        }
        c.tell(&message, server);
    }
    // Several messages in one packet, which a host leaves to its interface to segment, go to the server.
    let mut socket = inside(&rack.namespaces.host(3), || {
        let any = SocketAddr::from((c.address, 9999));
        sys::UdpSocket::bind(any, 1 << 20, false).unwrap()
    });
    let mut batch = SendBatch::default();
    for _ in 0..8 {
        let piece = Bytes::from(c.batch(5, 0));
        batch.push(SocketAddr::from(c.server), 0, |_| {}, [piece].into_iter().collect());
    }
    while !batch.is_empty() {
        assert_eq!(socket.send(&mut batch).unwrap(), 0);
    }
    for _ in 0..8 {
        let (length, from) = server.socket.recv_from(&mut [0; 2048]).unwrap();
        assert_eq!((length, from.port()), (28, 9999));
    }
    assert!(tor.counters().unwrap().super_packets > 0);
    // The directory has not changed.
    assert_eq!(tor.clients().unwrap().len(), 3);
    b.tell(&b.batch(9, 0), server);
    b.send(&b.batch(5, 0));
    a.expect(&b.batch(5, 0), b);
    for host in &hosts {
        host.is_silent();
    }
}

#[test]
fn a_port_has_one_program_and_is_free_when_that_is_gone() {
    let Some(rack) = Rack::make("swp2p-o", false) else { return };
    let tor = rack.tor();
    let config = TorConfig { ports: vec!["p1".into()], ..rack.config() };
    let second = inside(&rack.namespaces.switch(), || Tor::attach(&config).map(drop));
    assert!(matches!(second, Err(TorError::Tc(TcError::Taken(name))) if name == "p1"));
    drop(tor);
    inside(&rack.namespaces.switch(), || Tor::attach(&config).map(drop)).unwrap();
    let config = TorConfig { ports: vec!["nothing".into()], ..rack.config() };
    let third = inside(&rack.namespaces.switch(), || Tor::attach(&config).map(drop));
    assert!(
        matches!(third, Err(TorError::Tc(TcError::Attach { interface, .. })) if interface == "nothing")
    );
}
