//! Orca's ToR in the kernel, between interfaces of namespaces, which the test creates and removes.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::slice::from_ref;
use std::time::Duration;

use bytes::Bytes;
use rackweave_bpf::TorError;
use rackweave_bpf::orca::{Tor, TorConfig, TorCounters, TorHost};
use rackweave_bpf::tc::TcError;
use rackweave_core::HostId;
use rackweave_linux::sys::{ReceiveBatch, SendBatch, UdpSocket};
use rackweave_wire::orca::{
    Body, Control, Data, GROUP, Header, Label, Labelled, PORT, Place, Session, TO_AGENT, TO_GROUP,
    encode_header,
};
use socket2::SockRef;

use crate::namespaces::{Namespaces, inside, ip};

const HOSTS: u8 = 4;
const PATIENCE: Duration = Duration::from_secs(60);

/// The namespaces of a switch and of its hosts.
struct Rack {
    namespaces: Namespaces,
}

const fn address(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 1 + host)
}

const fn mac(host: u8) -> [u8; 6] {
    [2, 0, 0, 0, 1, host]
}

impl Rack {
    /// Returns `None` if this process may not create namespaces.
    fn make(test: &str) -> Option<Self> {
        let rack = Self { namespaces: Namespaces::make(test)? };
        for host in 0..HOSTS {
            let mac = mac(host).map(|byte| format!("{byte:02x}")).join(":");
            rack.namespaces.add_host(host, &format!(" address {mac}"));
            let name = rack.namespaces.host(host);
            ip(&format!("-n {name} addr add {}/24 dev eth0", address(host)));
            ip(&format!("-n {name} route add 224.0.0.0/4 dev eth0"));
        }
        Some(rack)
    }

    /// Attaches a ToR to the switch's interfaces.
    fn tor(&self, config: TorConfig) -> Tor {
        let config = TorConfig {
            ports: (0..HOSTS).map(|host| format!("p{host}")).collect(),
            hosts: (0..HOSTS)
                .filter(|host| !config.uplinks.contains(host))
                .map(|host| TorHost { mac: mac(host), ip: Some(address(host)), port: host })
                .collect(),
            ..config
        };
        inside(&self.namespaces.switch(), || Tor::attach(&config)).unwrap()
    }

    /// Creates a socket in a host's namespace that receives the group's packets.
    fn socket(&self, host: u8) -> UdpSocket {
        inside(&self.namespaces.host(host), || {
            let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
            let socket = UdpSocket::bind(any, 4 << 20, false).unwrap();
            SockRef::from(&socket).join_multicast_v4(&GROUP.into(), &address(host)).unwrap();
            SockRef::from(&socket).set_multicast_loop_v4(false).unwrap();
            socket
        })
    }

    /// Returns the bytes and frames that a host's interface has received.
    fn received(&self, host: u8) -> (u64, u64) {
        inside(&self.namespaces.host(host), || {
            let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
            let line = table.lines().find_map(|line| line.trim().strip_prefix("eth0:")).unwrap();
            let mut numbers = line.split_whitespace().map(|number| number.parse().unwrap());
            (numbers.next().unwrap(), numbers.next().unwrap())
        })
    }
}

fn group() -> SocketAddr {
    SocketAddr::from((GROUP, PORT))
}

fn send(socket: &mut UdpSocket, to: SocketAddr, packets: &[Vec<u8>]) {
    let mut batch = SendBatch::default();
    for packet in packets {
        batch.push(to, 0, |_| {}, [Bytes::copy_from_slice(packet)].into_iter().collect());
    }
    while !batch.is_empty() {
        assert_eq!(socket.send(&mut batch).unwrap(), 0);
    }
}

/// Waits until this number of packets have arrived.
fn receive(socket: &UdpSocket, packets: usize) -> Vec<Vec<u8>> {
    let begin = rackweave_linux::Clock::start();
    let mut batch = ReceiveBatch::default();
    let mut all = Vec::new();
    while all.len() < packets {
        if socket.receive(&mut batch).unwrap() == 0 {
            assert!(
                begin.now().ticks() < PATIENCE.as_nanos() as u64 * 1000,
                "{} of {packets}",
                all.len()
            );
            std::thread::park_timeout(Duration::from_millis(1));
            continue;
        }
        all.extend(batch.datagrams().map(|datagram| datagram.bytes.to_vec()));
    }
    all
}

/// Checks that no packet has arrived.
fn silent(socket: &UdpSocket) {
    assert_eq!(socket.receive(&mut ReceiveBatch::default()).unwrap(), 0);
}

fn data(labelled: Labelled, label: u128, offset: u64, len: u16) -> Vec<u8> {
    let header = Header::Data(Data {
        labelled,
        label: Label(label),
        session: Session(7),
        offset,
        len,
        repair: false,
        end: false,
        parity: None,
    });
    let payload = vec![offset as u8; usize::from(len)];
    let mut packet = Vec::new();
    encode_header(&header, 1, None, &[&payload], &mut packet);
    packet.extend_from_slice(&payload);
    packet
}

fn control(to: HostId, body: Body) -> Vec<u8> {
    let header = Header::Control(Control { from: HostId(0), to, session: Session(7), body });
    let mut packet = Vec::new();
    encode_header(&header, 1, None, &[], &mut packet);
    packet
}

#[test]
fn tcp_and_arp_cross_it_with_all_offloads_on() {
    let Some(rack) = Rack::make("orca-t") else { return };
    let tor = rack.tor(TorConfig::default());
    let bytes: Vec<u8> =
        (0..8_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let listener =
        inside(&rack.namespaces.host(2), || TcpListener::bind((address(2), 9000)).unwrap());
    let mut to = inside(&rack.namespaces.host(0), || {
        TcpStream::connect_timeout(&SocketAddr::from((address(2), 9000)), PATIENCE).unwrap()
    });
    let (mut from, _) = listener.accept().unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            to.write_all(&bytes).unwrap();
            drop(to);
        });
        let mut got = Vec::new();
        from.read_to_end(&mut got).unwrap();
        assert!(got == bytes);
    });
    let (overheard, _) = rack.received(3);
    let counters = tor.counters().unwrap();
    assert!(counters.flooded >= 1, "ARP asks all: {counters:?}");
    assert!(counters.routed >= 10 && counters.lost == 0, "{counters:?}");
    // The other hosts have received only flooded frames.
    assert!(overheard < 100_000, "{overheard} bytes");
}

#[test]
fn what_is_for_a_gateway_or_another_rack_finds_its_way() {
    let Some(rack) = Rack::make("orca-g") else { return };
    // Host 3 plays the role of the network above the rack.
    let config = TorConfig { uplinks: vec![3], agent: Some(1), ..TorConfig::default() };
    let tor = rack.tor(config);
    let mut sockets: Vec<UdpSocket> = (0..HOSTS).map(|host| rack.socket(host)).collect();
    let gateway = "lladdr 02:ff:00:00:00:01 dev eth0 nud permanent";
    ip(&format!("-n {} neigh replace {} {gateway}", rack.namespaces.host(0), address(2)));
    let packets: Vec<Vec<u8>> = (0..60).map(|i| data(Labelled::Host, 0, i * 1400, 1400)).collect();
    send(&mut sockets[0], SocketAddr::from((address(2), PORT)), &packets);
    assert!(receive(&sockets[2], packets.len()) == packets);
    send(&mut sockets[0], SocketAddr::from((address(3), PORT)), &packets);
    assert!(receive(&sockets[3], packets.len()) == packets);
    send(&mut sockets[3], SocketAddr::from((address(0), PORT)), &packets);
    assert!(receive(&sockets[0], packets.len()) == packets);
    // Pilot labels go up from a host, and to the active agent from above; rack labels from above are dropped.
    let pilot = data(Labelled::Pilot, 7, 0, 100);
    send(&mut sockets[2], group(), from_ref(&pilot));
    assert!(receive(&sockets[3], 1) == [pilot.clone()]);
    send(&mut sockets[3], group(), from_ref(&data(Labelled::Rack, 7, 0, 100)));
    send(&mut sockets[3], group(), from_ref(&pilot));
    assert!(receive(&sockets[1], 1) == [pilot]);
    silent(&sockets[0]);
    silent(&sockets[2]);
    assert_eq!(tor.counters().unwrap().spoofed, 1);
}

#[test]
fn super_packets_arrive_whole_at_just_the_ports_of_their_label() {
    let Some(rack) = Rack::make("orca-l") else { return };
    let tor = rack.tor(TorConfig::default());
    let mut sockets: Vec<UdpSocket> = (0..HOSTS).map(|host| rack.socket(host)).collect();
    let before: Vec<u64> = (0..HOSTS).map(|host| rack.received(host).1).collect();
    let flooded = tor.counters().unwrap();
    // The label names ports 1 and 3, the sender's own port, and ports that do not exist.
    let packets: Vec<Vec<u8>> =
        (0..160).map(|i| data(Labelled::Rack, 0xff_0000_000b, i * 1400, 1400)).collect();
    send(&mut sockets[0], group(), &packets);
    for host in [1, 3] {
        assert!(receive(&sockets[host], packets.len()) == packets);
        // Joining the group, and IPv6, cause a few frames.
        assert!(rack.received(host as u8).1 - before[host] < 40, "super-packets were cut");
    }
    for host in [0, 2] {
        silent(&sockets[host]);
    }
    let counters = tor.counters().unwrap();
    assert!((4..40).contains(&counters.replicated), "{counters:?}");
    assert!(counters.copies - flooded.copies >= 2 * counters.replicated, "{counters:?}");
    assert_eq!((counters.lost, counters.no_port), (0, 0));
}

#[test]
fn the_register_decides_where_pilots_and_words_to_the_agent_go() {
    let Some(rack) = Rack::make("orca-r") else { return };
    let config = TorConfig { rack: 5, controller: Some(3), ..TorConfig::default() };
    let mut tor = rack.tor(config);
    let mut sockets: Vec<UdpSocket> = (0..HOSTS).map(|host| rack.socket(host)).collect();
    let pilot = data(Labelled::Pilot, 0x1234, 0, 100);
    let word = control(TO_AGENT, Body::End { length: 9 });
    let set = |rack, agent, epoch| control(TO_GROUP, Body::SetActive { rack, agent, epoch });
    let wait = |what: &dyn Fn(&TorCounters) -> bool| {
        let begin = rackweave_linux::Clock::start();
        while !what(&tor.counters().unwrap()) {
            assert!(
                begin.now().ticks() < PATIENCE.as_nanos() as u64 * 1000,
                "{:?}",
                tor.counters()
            );
            std::thread::park_timeout(Duration::from_millis(1));
        }
    };

    assert_eq!(tor.active().unwrap(), None);
    send(&mut sockets[0], group(), from_ref(&pilot));
    send(&mut sockets[0], group(), from_ref(&word));
    wait(&|counters| counters.no_agent == 2);
    // The command comes from the wrong port, or is for another rack, in which case it is flooded.
    send(&mut sockets[0], group(), &[set(5, 1, 9)]);
    wait(&|counters| counters.spoofed == 1);
    send(&mut sockets[3], group(), &[set(4, 1, 9)]);
    assert_eq!(receive(&sockets[1], 1).len(), 1);
    assert_eq!(receive(&sockets[2], 1).len(), 1);
    assert_eq!(tor.active().unwrap(), None);

    send(&mut sockets[3], group(), &[set(5, 1, 9)]);
    wait(&|counters| counters.consumed == 1);
    assert_eq!(tor.active().unwrap(), Some(1));
    // An outdated command has no effect.
    send(&mut sockets[3], group(), &[set(5, 2, 8)]);
    wait(&|counters| counters.consumed == 2);
    assert_eq!(tor.active().unwrap(), Some(1));
    send(&mut sockets[0], group(), from_ref(&pilot));
    send(&mut sockets[0], group(), from_ref(&word));
    assert!(receive(&sockets[1], 2) == [pilot.clone(), word]);

    tor.set_active(Some(2)).unwrap();
    assert_eq!(tor.active().unwrap(), Some(2));
    assert!(tor.set_active(Some(4)).is_err());
    send(&mut sockets[0], group(), from_ref(&pilot));
    assert!(receive(&sockets[2], 1) == [pilot.clone()]);
    silent(&sockets[1]);

    // A ping that names another host's port is dropped; one that names its own port passes.
    let ping =
        |port, number| control(HostId(3), Body::Ping { place: Place { rack: 5, port }, number });
    let to = SocketAddr::from((address(3), PORT));
    send(&mut sockets[0], to, &[ping(1, 1)]);
    send(&mut sockets[0], to, &[ping(0, 2)]);
    // The first flooded command of the controller was its own.
    assert!(receive(&sockets[3], 1) == [ping(0, 2)]);
    assert_eq!(tor.counters().unwrap().spoofed, 2);
}

#[test]
fn a_port_has_one_tor_and_is_free_when_that_is_gone() {
    let Some(rack) = Rack::make("orca-o") else { return };
    let tor = rack.tor(TorConfig::default());
    let config = TorConfig { ports: vec!["p1".into()], ..TorConfig::default() };
    let second = inside(&rack.namespaces.switch(), || Tor::attach(&config).map(drop));
    assert!(matches!(second, Err(TorError::Tc(TcError::Taken(name))) if name == "p1"));
    drop(tor);
    inside(&rack.namespaces.switch(), || Tor::attach(&config).map(drop)).unwrap();
    let config = TorConfig { ports: vec!["nothing".into()], ..TorConfig::default() };
    let third = inside(&rack.namespaces.switch(), || Tor::attach(&config).map(drop));
    assert!(
        matches!(third, Err(TorError::Tc(TcError::Attach { interface, .. })) if interface == "nothing")
    );
}
