//! The user-space switch between interfaces of network namespaces, which the test creates and removes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use rackweave_core::{HostId, Kind, Rate, Span, Time};
use rackweave_linux::switch::{Control, Edge, Report, Switch, SwitchConfig};
use rackweave_linux::{Endpoint, EndpointConfig, Event, Peers};
use rackweave_switch::config::{FabricConfig, SwitchConfig as OneSwitch, TrimConfig};
use rackweave_switch::system::System;
use rackweave_transport::{TransportConfig, homa, ndp};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Long, because a thread may compete with other tests for the processor.
const PATIENCE: Span = Span::from_secs(60);
const LINK: Rate = Rate(200_000_000);
const PORT: u16 = 4000;

/// Requests a report until the switch answers, which it does not while its thread is not scheduled. `None`: it is not
/// running.
fn await_report(control: &Control) -> Option<Report> {
    (0..30).find_map(|_| control.report())
}

/// Namespaces with one interface each, whose other ends are in this namespace. They are removed on drop.
struct Spaces {
    names: Vec<String>,
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("ip {arguments}: {said}")) }
}

fn address(host: u32) -> Ipv4Addr {
    Ipv4Addr::from(10 << 24 | host)
}

impl Spaces {
    /// Returns `None` if this process may not create namespaces.
    fn make(test: &str, hosts: u32) -> Option<Self> {
        let prefix = format!("rwt-{}-{test}", std::process::id());
        let mut spaces = Self { names: Vec::new() };
        rackweave_testing::needs!(NetAdmin, None);
        for host in 0..hosts {
            let name = format!("{prefix}{host}");
            ip(&format!("netns add {name}")).unwrap();
            spaces.names.push(name.clone());
            let end = spaces.end(host);
            ip(&format!("link add {end} type veth peer name eth0 netns {name}")).unwrap();
            ip(&format!("link set {end} up")).unwrap();
            // Frames must be as they are on a link, so the kernel segments trains itself.
            let mac = format!("02:00:00:00:00:{host:02x}");
            ip(&format!("-n {name} link set eth0 address {mac} gso_max_segs 1 up")).unwrap();
            ip(&format!("-n {name} addr add {}/32 dev eth0", address(host))).unwrap();
            ip(&format!("-n {name} route add 10.0.0.0/8 dev eth0 scope link")).unwrap();
            for peer in (0..hosts).filter(|peer| *peer != host) {
                let to = address(peer);
                let mac = format!("02:00:00:00:00:{peer:02x}");
                ip(&format!("-n {name} neigh add {to} lladdr {mac} dev eth0 nud permanent"))
                    .unwrap();
            }
        }
        Some(spaces)
    }

    /// Returns the name of the switch's end of a host's link: at most 15 characters.
    fn end(&self, host: u32) -> String {
        let test = self.names[0].rsplit('-').next().unwrap();
        format!("rw{}{}{host}", std::process::id(), &test[..1])
    }

    /// Runs a function in a host's namespace. Sockets that it creates stay there.
    fn inside<T: Send + 'static>(
        &self,
        host: u32,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> std::thread::JoinHandle<T> {
        let path = format!("/run/netns/{}", self.names[host as usize]);
        std::thread::spawn(move || {
            let space = File::open(path).unwrap();
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(space.as_fd(), kind).unwrap();
            run()
        })
    }

    fn config(&self, trim: bool) -> SwitchConfig {
        let packets = |n: u64| n * 1538;
        let mut switch =
            OneSwitch::default().with_buffer(packets(200)).with_ecn_threshold(packets(20));
        if trim {
            switch = switch.with_trim(TrimConfig::NDP.with_queues(packets(8), packets(4)));
        }
        let hosts = self.names.len() as u32;
        let fabric = FabricConfig::single_switch(hosts, LINK)
            .with_link_delay(Span::from_us(1))
            .without_host_delays()
            .with_switch(switch);
        let edges = (0..hosts).map(|host| Edge::Interface { name: self.end(host) });
        SwitchConfig::new(fabric, edges.collect())
    }

    /// Runs a function while a switch is running.
    fn with_switch<S: System, T>(
        &self,
        config: SwitchConfig<S>,
        run: impl FnOnce(&Control) -> T,
    ) -> (T, Report) {
        let mut switch = Switch::new(config).unwrap();
        let control = Arc::new(Control::default());
        let shared = Arc::clone(&control);
        let thread = std::thread::spawn(move || switch.run(&shared));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&control)));
        let report = await_report(&control);
        control.stop.store(true, Ordering::Relaxed);
        thread.join().unwrap().unwrap();
        match result {
            Ok(result) => (result, report.unwrap()),
            Err(panic) => {
                eprintln!("{:?}", report.map(|report| report.counters));
                std::panic::resume_unwind(panic)
            }
        }
    }

    fn endpoints(
        &self,
        config: &SwitchConfig,
        transport: &TransportConfig,
        port: u16,
    ) -> Vec<Endpoint> {
        let hosts = self.names.len() as u32;
        let ends = (0..hosts).map(|host| {
            let known = (0..hosts).filter(|peer| *peer != host);
            let known: BTreeMap<HostId, SocketAddr> =
                known.map(|peer| (HostId(peer), (address(peer), port).into())).collect();
            let peers = Peers::Direct { hosts: known, allow: Vec::new() };
            let bind = (address(host), port).into();
            let mut end = EndpointConfig::new(HostId(host), bind, peers, transport);
            (end.clock, end.link) = (config.clock, LINK);
            self.inside(host, move || Endpoint::new(end).unwrap()).join().unwrap()
        });
        ends.collect()
    }
}

impl Drop for Spaces {
    fn drop(&mut self) {
        for name in &self.names {
            if let Err(error) = ip(&format!("netns del {name}")) {
                eprintln!("{error}");
            }
        }
    }
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

/// All hosts but 0 send messages to host 0.
fn incast(ends: &mut [Endpoint], len: usize, messages: usize) {
    let clock = ends[0].clock();
    let until = clock.now() + PATIENCE;
    let mut left = (ends.len() - 1) * messages;
    for (sender, end) in ends.iter_mut().enumerate().skip(1) {
        for _ in 0..messages {
            end.send(HostId(0), Kind::OneWay, Bytes::from(bytes(len, sender))).unwrap();
        }
    }
    while left > 0 {
        let mut next = clock.now() + Span::from_us(200);
        for end in ends.iter_mut() {
            next = next.min(end.turn().unwrap().unwrap_or(Time::MAX));
            while let Some(event) = end.poll_event() {
                match event {
                    Event::Message { peer, bytes: body, .. } => {
                        assert!(body[..] == bytes(len, peer.0 as usize)[..]);
                        left -= 1;
                    }
                    Event::Failed { peer, reason, .. } => panic!("{peer}: {reason}"),
                    _ => {}
                }
            }
        }
        assert!(clock.now() < until, "{left} are missing");
        ends[0].wait(Some(next)).unwrap();
    }
}

#[test]
fn our_transports_between_interfaces() {
    let Some(spaces) = Spaces::make("a", 4) else { return };
    let homa = homa::Config { timeout_resends: 500, ..homa::Config::fabric(LINK, 15_000) };
    let config = spaces.config(false);
    let homa = TransportConfig::Homa(Arc::new(homa)).patient(PATIENCE);
    let mut ends = spaces.endpoints(&config, &homa, PORT);
    let ((), report) = spaces.with_switch(config, |_| incast(&mut ends, 50_000, 5));
    let counters = report.counters;
    assert_eq!((counters.foreign, counters.malformed, counters.oversized), (0, 0, 0));
    assert!(counters.forwarded_bytes > 750_000, "{counters:?}");
    drop(ends);

    let config = spaces.config(true);
    let clock = config.clock;
    let ndp = TransportConfig::Ndp(Arc::new(ndp::Config::paper(LINK))).patient(PATIENCE);
    // The port differs, because a process that another test is starting may still hold a copy of the first socket.
    let mut ends = spaces.endpoints(&config, &ndp, PORT + 1);
    let ((), report) = spaces.with_switch(config, |control| {
        // Whether there are any depends on when the hosts' threads are scheduled.
        let until = clock.now() + PATIENCE;
        loop {
            incast(&mut ends, 100_000, 2);
            let counters = await_report(control).unwrap().counters;
            if counters.trims > 0 {
                return;
            }
            assert!(clock.now() < until, "{counters:?}");
        }
    });
    let malformed: u64 = ends.iter().map(|end| end.stats().malformed).sum();
    assert_eq!(malformed, 0, "{:?}", report.counters);
}

const TCP_BYTES: usize = 3_000_000;

/// Hosts 1 and 2 send bytes to host 0 by the kernel's TCP.
fn send_by_tcp(spaces: &Spaces, port: u16) {
    let listener = spaces.inside(0, move || TcpListener::bind((address(0), port)).unwrap());
    let listener = listener.join().unwrap();
    let server = std::thread::spawn(move || {
        let connections = (0..2).map(|_| listener.accept().unwrap().0);
        let readers = connections.map(|mut connection| {
            std::thread::spawn(move || {
                let mut all = Vec::new();
                connection.read_to_end(&mut all).unwrap();
                assert!(all == bytes(TCP_BYTES, 5));
            })
        });
        let readers: Vec<_> = readers.collect();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    let clients = [1, 2].map(|host| {
        spaces.inside(host, move || {
            let until = std::time::Duration::from_secs(60);
            let to = (address(0), port).into();
            let mut connection = TcpStream::connect_timeout(&to, until).unwrap();
            connection.write_all(&bytes(TCP_BYTES, 5)).unwrap();
        })
    });
    clients.into_iter().for_each(|client| client.join().unwrap());
    server.join().unwrap();
}

#[test]
fn the_kernels_tcp_between_interfaces() {
    let Some(spaces) = Spaces::make("k", 3) else { return };
    let config = spaces.config(false);
    let (took, report) = spaces.with_switch(config.clone(), |_| {
        let began = config.clock.now();
        send_by_tcp(&spaces, PORT);
        config.clock.now().since(began)
    });
    let counters = report.counters;
    assert_eq!((counters.oversized, counters.malformed, counters.foreign), (0, 0, 0));
    // Six megabytes cross one link, which must take at least their transmission time.
    let due = LINK.span_of(2 * TCP_BYTES as u64);
    assert!(took > due, "{took} for {due}: {counters:?}");
    assert!(counters.forwarded_bytes > 2 * TCP_BYTES as u64);
}

/// The receivers' kernels accept what the switch has readdressed and made, and TCP at the same port passes.
#[test]
fn swp2ps_requests_and_the_kernels_tcp_between_interfaces() {
    use rackweave_swp2p::{switch::Config, system::Swp2p};
    use rackweave_wire::frisbee::{
        self, Auth, Body, Chunks, Direction, Header, Key, REPORT_MAP_BYTES,
    };
    let Some(spaces) = Spaces::make("w", 3) else { return };
    let key = Key::derive(b"secret");
    let system = Swp2p { config: Config::data_plane(HostId(0)), key: Some(key) };
    let config = spaces.config(false).with_system(system);
    let message = |from: u32, body, payload: &[u8]| {
        let mut bytes = Vec::new();
        frisbee::encode(&Header::new(HostId(from), body), &mut bytes);
        bytes.extend_from_slice(payload);
        Auth::Key(key).seal(&mut bytes, 0, 7, Direction::ToServer);
        bytes
    };
    let batch = |first, count| Body::Batch(Chunks { image: 1, first, count, tries: 0 });
    let mut map = [0; REPORT_MAP_BYTES as usize];
    map[1023] = 0x80;
    let ((), report) = spaces.with_switch(config, |_| {
        let sockets = [0, 1, 2].map(|host| {
            let socket = spaces.inside(host, move || {
                let socket = std::net::UdpSocket::bind((address(host), frisbee::PORT)).unwrap();
                socket.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
                socket
            });
            socket.join().unwrap()
        });
        let send = |from: u32, bytes: &[u8]| {
            let sent = sockets[from as usize].send_to(bytes, (address(0), frisbee::PORT));
            assert_eq!(sent.unwrap(), bytes.len());
        };
        let receive = |host: usize| {
            let mut bytes = [0; 2048];
            let (len, from) = sockets[host].recv_from(&mut bytes).unwrap();
            (from, bytes[..len].to_vec())
        };
        let from = |host| SocketAddr::from((address(host), frisbee::PORT));
        let report = message(1, Body::Report { image: 1, window: 0 }, &map);
        send(1, &report);
        assert_eq!(receive(0), (from(1), report));
        let request = message(2, batch(8191, 1), &[]);
        send(2, &request);
        assert_eq!(receive(1), (from(2), request.clone()), "as the requester sent it");
        send(2, &message(2, batch(8190, 2), &[]));
        assert_eq!(receive(0), (from(2), message(2, batch(8190, 1), &[])));
        assert_eq!(receive(1), (from(2), request.clone()));
        send(2, &request[..request.len() - 1]);
        send_by_tcp(&spaces, frisbee::PORT);
        sockets[0].set_nonblocking(true).unwrap();
        assert!(sockets[0].recv(&mut [0; 2048]).is_err(), "without its whole tag it is dropped");
    });
    let (counters, program) = (report.counters, report.program);
    assert_eq!((counters.oversized, counters.malformed, counters.foreign), (0, 0, 0));
    assert_eq!((program["redirected"], program["split"], program["not_authentic"]), (2, 1, 1));
    assert!(counters.forwarded_bytes > 2 * TCP_BYTES as u64);
}

#[test]
fn orcas_multicast_frames_between_interfaces() {
    use rackweave_orca::system::Orca;
    use rackweave_wire::orca::{self, Data, GROUP, Header, Label, Labelled, Session};
    let Some(spaces) = Spaces::make("o", 4) else { return };
    for name in &spaces.names {
        ip(&format!("-n {name} route add 224.0.0.0/4 dev eth0")).unwrap();
    }
    let config = spaces.config(false).with_system(Orca::default());
    const PAYLOAD: &[u8] = &[7; 1000];
    let header = Header::Data(Data {
        labelled: Labelled::Rack,
        label: Label(0b0110),
        session: Session(7),
        offset: 0,
        len: PAYLOAD.len() as u16,
        repair: false,
        end: false,
        parity: None,
    });
    let mut packet = Vec::new();
    orca::encode_header(&header, 1, None, &[PAYLOAD], &mut packet);
    packet.extend_from_slice(PAYLOAD);
    let ((), report) = spaces.with_switch(config, |_| {
        let member = |host| {
            let group = Ipv4Addr::from(GROUP);
            let socket = spaces.inside(host, move || {
                let socket = std::net::UdpSocket::bind(("0.0.0.0", orca::PORT)).unwrap();
                socket.join_multicast_v4(&group, &address(host)).unwrap();
                socket.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
                socket
            });
            socket.join().unwrap()
        };
        let members = [1, 2, 3].map(member);
        let (sent, to) = (packet.clone(), (Ipv4Addr::from(GROUP), orca::PORT));
        let sender = spaces.inside(0, move || {
            let socket = std::net::UdpSocket::bind((address(0), 0)).unwrap();
            assert_eq!(socket.send_to(&sent, to).unwrap(), sent.len());
        });
        sender.join().unwrap();
        for socket in &members[..2] {
            let mut bytes = [0; 2048];
            let (len, from) = socket.recv_from(&mut bytes).unwrap();
            assert_eq!((&bytes[..len], from.ip()), (&packet[..], address(0).into()));
        }
        members[2].set_nonblocking(true).unwrap();
        assert!(members[2].recv(&mut [0; 2048]).is_err(), "no bit of the label is its");
    });
    let counters = report.counters;
    assert_eq!((counters.copied, counters.forwarded, counters.foreign), (1, 2, 0), "{counters:?}");
}
