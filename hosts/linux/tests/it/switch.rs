//! Endpoints on loopback through the user-space switch.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use bytes::Bytes;
use rackweave_core::{DropReason, HostId, Kind, Rate, Span, Time};
use rackweave_linux::switch::{Control, Edge, Report, Switch, SwitchConfig, SwitchError};
use rackweave_linux::{Endpoint, EndpointConfig, Event, Peers};
use rackweave_switch::config::{
    BufferConfig, FabricConfig, Fault, FaultKind, FaultPlace, SwitchConfig as OneSwitch, Topology,
    TrimConfig,
};
use rackweave_transport::{TransportConfig, homa, ndp, tcp};
use rackweave_wire::overlay;

/// Long, because a thread may compete with other tests for the processor.
const PATIENCE: Span = Span::from_secs(60);
const LINK: Rate = Rate(200_000_000);

fn fabric(topology: Topology, trim: bool) -> FabricConfig {
    let packets = |n: u64| n * 1538;
    let mut switch = OneSwitch::default().with_buffer(packets(200)).with_ecn_threshold(packets(20));
    if trim {
        switch = switch.with_trim(TrimConfig::NDP.with_queues(packets(8), packets(8)));
    }
    FabricConfig::new(topology)
        .with_link_delay(Span::from_us(1))
        .without_host_delays()
        .with_switch(switch)
}

fn single(hosts: u32) -> Topology {
    Topology::SingleSwitch { hosts, host_link: LINK }
}

fn leaf_spine() -> Topology {
    Topology::LeafSpine {
        leaves: 2,
        hosts_per_leaf: 2,
        spines: 2,
        host_link: LINK,
        core_link: LINK,
    }
}

fn homa() -> TransportConfig {
    // On a busy machine, peers are silent for some time.
    let config = homa::Config { timeout_resends: 500, ..homa::Config::fabric(LINK, 15_000) };
    TransportConfig::Homa(Arc::new(config))
}

/// A switch in a thread of its own, which stops when it is dropped.
struct Running {
    control: Arc<Control>,
    thread: Option<JoinHandle<Result<(), SwitchError>>>,
    ports: Vec<SocketAddr>,
    config: SwitchConfig,
}

impl Running {
    fn start(fabric: FabricConfig, faults: Vec<Fault>) -> Self {
        let hosts = fabric.topology.hosts() as usize;
        let bind = "127.0.0.1:0".parse().unwrap();
        let edges = vec![Edge::Udp { bind, host: None }; hosts];
        let config = SwitchConfig { faults, ..SwitchConfig::new(fabric, edges) };
        let mut switch = Switch::new(config.clone()).unwrap();
        let ports = switch.udp_ports().into_iter().map(Option::unwrap).collect();
        let control = Arc::new(Control::default());
        let shared = Arc::clone(&control);
        let thread = std::thread::spawn(move || switch.run(&shared));
        Self { control, thread: Some(thread), ports, config }
    }

    fn endpoint(&self, host: u32, transport: &TransportConfig) -> Endpoint {
        let hosts = self.ports.len() as u32;
        let peers = Peers::Switch { port: self.ports[host as usize], hosts };
        let bind = "127.0.0.1:0".parse().unwrap();
        let config = EndpointConfig::new(HostId(host), bind, peers, transport);
        let clock = self.config.clock;
        Endpoint::new(EndpointConfig { clock, link: LINK, ..config }).unwrap()
    }

    fn endpoints(&self, transport: &TransportConfig) -> Vec<Endpoint> {
        // On a busy machine, peers are silent for some time.
        let transport = transport.patient(PATIENCE);
        (0..self.ports.len() as u32).map(|host| self.endpoint(host, &transport)).collect()
    }

    fn report(&self) -> Report {
        let clock = self.config.clock;
        let until = clock.now() + PATIENCE;
        loop {
            // The switch may fail to answer only because its thread was not scheduled.
            if let Some(report) = self.control.report() {
                return report;
            }
            assert!(clock.now() < until, "the switch does not run");
        }
    }

    fn stop(mut self) -> Report {
        let report = self.report();
        self.control.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap().unwrap();
        report
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.control.stop.store(true, Ordering::Relaxed);
    }
}

fn bytes(len: usize, seed: usize) -> Bytes {
    (0..len).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

/// Drives all endpoints until `done` returns true.
fn drive(ends: &mut [Endpoint], mut done: impl FnMut(&mut [Endpoint]) -> bool) {
    let clock = ends[0].clock();
    let until = clock.now() + PATIENCE;
    loop {
        let mut next = clock.now() + Span::from_us(200);
        for end in ends.iter_mut() {
            next = next.min(end.turn().unwrap().unwrap_or(Time::MAX));
        }
        if done(ends) {
            return;
        }
        let stats: Vec<_> = ends.iter().map(Endpoint::stats).collect();
        assert!(clock.now() < until, "{stats:?}");
        ends[0].wait(Some(next)).unwrap();
    }
}

/// All hosts but 0 send messages of this length to host 0; each arrives once, byte for byte.
fn incast(ends: &mut [Endpoint], len: usize, messages: usize) {
    let senders = ends.len() - 1;
    for (sender, end) in ends.iter_mut().enumerate().skip(1) {
        for message in 0..messages {
            let body = bytes(len, sender * 1000 + message);
            end.send(HostId(0), Kind::OneWay, body).unwrap();
        }
    }
    let mut seen = std::collections::BTreeMap::new();
    drive(ends, |ends| {
        for (host, end) in ends.iter_mut().enumerate() {
            while let Some(event) = end.poll_event() {
                match event {
                    Event::Message { peer, id, bytes: body, .. } => {
                        assert_eq!((host, body.len()), (0, len));
                        let known = (0..messages)
                            .any(|message| body == bytes(len, peer.0 as usize * 1000 + message));
                        assert!(known, "damaged");
                        assert!(seen.insert((peer, id), ()).is_none(), "twice");
                    }
                    Event::Failed { peer, reason, .. } => panic!("{host} to {peer}: {reason}"),
                    _ => {}
                }
            }
        }
        seen.len() == senders * messages
    });
}

#[test]
fn an_incast_over_homa_arrives_through_queues_of_priorities() {
    let running = Running::start(fabric(single(4), false), Vec::new());
    let mut ends = running.endpoints(&homa());
    // Whether one has to wait for another depends on when the senders' threads are scheduled.
    let until = running.config.clock.now() + PATIENCE;
    loop {
        incast(&mut ends, 40_000, 5);
        let report = running.report();
        let down = report.links.iter().find(|link| link.name == "switch0->h0").unwrap();
        assert!(down.bytes > 600_000, "{down:?}");
        if down.max_queue_bytes > 1538 {
            break;
        }
        assert!(running.config.clock.now() < until, "{down:?}");
    }
    let counters = running.stop().counters;
    assert_eq!((counters.malformed, counters.foreign), (0, 0));
    assert!(counters.learnt >= 4, "{counters:?}");
}

#[test]
fn an_incast_over_ndp_is_trimmed_and_arrives() {
    let running = Running::start(fabric(single(6), true), Vec::new());
    let mut ends = running.endpoints(&TransportConfig::Ndp(Arc::new(ndp::Config::paper(LINK))));
    // How many are trimmed depends on when the senders' threads are scheduled.
    let until = running.config.clock.now() + PATIENCE;
    loop {
        incast(&mut ends, 100_000, 2);
        let counters = running.report().counters;
        if counters.trims > 20 {
            break;
        }
        assert!(running.config.clock.now() < until, "{counters:?}");
    }
    let malformed: u64 = ends.iter().map(|end| end.stats().malformed).sum();
    let counters = running.stop().counters;
    assert_eq!(malformed, 0, "what a switch has cut can be read: {counters:?}");
}

#[test]
fn everything_arrives_across_a_bad_fabric_of_several_switches() {
    let always = |kind| {
        let place = FaultPlace::AllLinks;
        Fault { from: Time::ZERO, until: Time::MAX, place, kind }
    };
    let faults = vec![
        always(FaultKind::Loss(0.002)),
        always(FaultKind::Corruption(0.002)),
        always(FaultKind::Duplication(0.002)),
        always(FaultKind::Reordering { probability: 0.002, delay: Span::from_ms(1) }),
    ];
    for transport in [homa(), TransportConfig::Tcp(Arc::new(tcp::Config::tcp()))] {
        let running = Running::start(fabric(leaf_spine(), false), faults.clone());
        let mut ends = running.endpoints(&transport);
        incast(&mut ends, 100_000, 10);
        let malformed: u64 = ends.iter().map(|end| end.stats().malformed).sum();
        let counters = running.stop().counters;
        assert!(counters.drops[DropReason::FaultLoss as usize] > 0, "{counters:?}");
        assert!(counters.corrupted > 0 && counters.duplicated > 0 && counters.reordered > 0);
        // Frames damaged on their first links may be lost, or damaged again, on later ones.
        assert!(malformed > 0 && malformed <= counters.corrupted + counters.duplicated);
    }
}

/// Builds a datagram with 1400 bytes of payload, to be sent from a plain socket.
fn greeting(src: u32, dst: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    overlay::encode_hello(HostId(src), HostId(dst), 1, 2, &mut bytes);
    bytes
}

fn socket() -> std::net::UdpSocket {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    socket
}

fn receive(socket: &std::net::UdpSocket) -> HostId {
    let mut bytes = [0; 2048];
    let len = socket.recv(&mut bytes).expect("something comes");
    overlay::decode(&bytes[..len], 0).unwrap().envelope.src
}

#[test]
fn hosts_are_known_by_their_addresses_and_found_again() {
    let running = Running::start(fabric(single(3), false), Vec::new());
    let [zero, one, other] = [socket(), socket(), socket()];
    zero.send_to(&greeting(0, 0), running.ports[0]).unwrap();
    // At first the address of host 1 is unknown; then it is learnt.
    one.send_to(&greeting(1, 0), running.ports[1]).unwrap();
    assert_eq!(receive(&zero), HostId(1));
    zero.send_to(&greeting(0, 1), running.ports[0]).unwrap();
    assert_eq!(receive(&one), HostId(0));
    // A datagram that belongs to another port, one that is not valid, and one to a host that does not exist.
    other.send_to(&greeting(2, 0), running.ports[1]).unwrap();
    other.send_to(b"hello", running.ports[2]).unwrap();
    other.send_to(&greeting(2, 77), running.ports[2]).unwrap();
    // Host 1 returns at another port.
    other.send_to(&greeting(1, 0), running.ports[1]).unwrap();
    assert_eq!(receive(&zero), HostId(1));
    zero.send_to(&greeting(0, 1), running.ports[0]).unwrap();
    assert_eq!(receive(&other), HostId(0));
    let counters = running.stop().counters;
    assert_eq!((counters.foreign, counters.malformed), (1, 1), "{counters:?}");
    assert_eq!(counters.drops[DropReason::NoRoute as usize], 1);
    assert!(counters.learnt == 3, "{counters:?}");
}

#[test]
fn a_fixed_address_is_not_learnt() {
    let [zero, one] = [socket(), socket()];
    let bind = "127.0.0.1:0".parse().unwrap();
    let of = |socket: &std::net::UdpSocket| Some(socket.local_addr().unwrap());
    let edges = vec![Edge::Udp { bind, host: of(&zero) }, Edge::Udp { bind, host: of(&one) }];
    let config = SwitchConfig::new(fabric(single(2), false), edges);
    let mut switch = Switch::new(config).unwrap();
    let ports: Vec<_> = switch.udp_ports().into_iter().map(Option::unwrap).collect();
    socket().send_to(&greeting(1, 0), ports[1]).unwrap();
    one.send_to(&greeting(1, 0), ports[1]).unwrap();
    let until = switch.clock().now() + PATIENCE;
    while switch.report().counters.forwarded == 0 && switch.clock().now() < until {
        let next = switch.turn().unwrap();
        switch.wait(next.unwrap_or(until).min(switch.clock().now() + Span::from_ms(5))).unwrap();
    }
    assert_eq!(receive(&zero), HostId(1));
    let counters = switch.report().counters;
    assert_eq!((counters.forwarded, counters.foreign, counters.learnt), (1, 1, 0));
}

#[test]
fn a_backlog_never_passes_faster_than_the_link() {
    const RATE: Rate = Rate(2_000_000);
    // All of them fit into any socket's buffer, so that none is lost while a thread is not scheduled.
    const DATAGRAMS: u64 = 200;
    let topology = Topology::SingleSwitch { hosts: 3, host_link: RATE };
    let mut fabric = fabric(topology, false);
    fabric.switch.buffer = BufferConfig::PerPort { bytes: u64::MAX };
    let running = Running::start(fabric, Vec::new());
    let [zero, one, two] = [socket(), socket(), socket()];
    zero.send_to(&greeting(0, 0), running.ports[0]).unwrap();
    one.send_to(&greeting(1, 0), running.ports[1]).unwrap();
    assert_eq!(receive(&zero), HostId(1));
    let before = running.report();
    let wire_bytes = |report: &Report| {
        let down = report.links.iter().find(|link| link.name == "switch0->h0").unwrap();
        (down.frames, down.bytes)
    };
    // The clock is read before the first is sent, so that scheduling delays can only lengthen the measured time.
    let clock = running.config.clock;
    let began = clock.now();
    let [from_one, from_two] = [greeting(1, 0), greeting(2, 0)];
    for _ in 0..DATAGRAMS / 2 {
        one.send_to(&from_one, running.ports[1]).unwrap();
        two.send_to(&from_two, running.ports[2]).unwrap();
    }
    let mut from = [0, 0, 0];
    for _ in 0..DATAGRAMS {
        from[receive(&zero).0 as usize] += 1;
    }
    let took = clock.now().since(began);
    let report = running.stop();
    assert_eq!(from, [0, DATAGRAMS / 2, DATAGRAMS / 2], "{report:?}");
    let ((frames, bytes), (frames_before, bytes_before)) =
        (wire_bytes(&report), wire_bytes(&before));
    assert_eq!(frames - frames_before, DATAGRAMS, "{report:?}");
    let due = RATE.span_of(bytes - bytes_before);
    assert!(due > Span::from_ms(60), "{due} for {report:?}");
    // The clock counts whole nanoseconds.
    assert!(took + Span::from_ns(1) >= due, "{took}, due {due}: {report:?}");
    assert_eq!(report.counters.forwarded, DATAGRAMS + 1, "{report:?}");
    assert_eq!(report.lateness.frames, DATAGRAMS + 1, "{report:?}");
}

#[test]
fn what_cannot_be_is_said_in_a_sentence() {
    let udp = |bind: SocketAddr| Edge::Udp { bind, host: None };
    let local: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let taken = socket();
    let error = |edges, faults| {
        let config = SwitchConfig::new(fabric(single(2), false), edges);
        Switch::new(SwitchConfig { faults, ..config }).unwrap_err().to_string()
    };
    let said = error(vec![udp(local)], Vec::new());
    assert_eq!(said, "the fabric has 2 hosts, but the configuration attaches 1");
    let address = taken.local_addr().unwrap();
    let said = error(vec![udp(local), udp(address)], Vec::new());
    assert!(said.starts_with(&format!("cannot bind UDP port {address} of h1: ")), "{said}");
    let interface = Edge::Interface { name: "rwt-no-such".into() };
    let said = error(vec![udp(local), interface.clone()], Vec::new());
    assert!(said.starts_with("all hosts must be attached in the same way"), "{said}");
    let said = error(vec![interface.clone(), interface], Vec::new());
    assert_eq!(said, "there is no interface `rwt-no-such` in this network namespace");
    let fault = |place, kind| Fault { from: Time::ZERO, until: Time::MAX, place, kind };
    let place = FaultPlace::HostLink(HostId(9));
    let said = error(vec![udp(local), udp(local)], vec![fault(place, FaultKind::Down)]);
    assert_eq!(said, "host 9 of a fault does not exist: the fabric has 2");
    let wrong = fault(FaultPlace::AllLinks, FaultKind::Loss(2.0));
    let said = error(vec![udp(local), udp(local)], vec![wrong]);
    assert_eq!(said, "a fault's probability must be between 0 and 1, not 2");
}
