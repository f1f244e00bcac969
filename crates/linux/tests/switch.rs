//! Endpoints on loopback through the user-space switch.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use bytes::Bytes;
use rackweave_core::{HostId, Kind, Rate, Span, Time};
use rackweave_linux::switch::{Control, Edge, Report, Switch, SwitchConfig, SwitchError};
use rackweave_linux::{Endpoint, EndpointConfig, Event, Peers};
use rackweave_switch::config::{
    BufferConfig, FabricConfig, Fault, Routing, SwitchConfig as OneSwitch, Topology, TrimConfig,
};
use rackweave_transport::{TransportConfig, homa, ndp};

const PATIENCE: Span = Span::from_secs(20);
const LINK: Rate = Rate(200_000_000);

fn fabric(topology: Topology, trim: bool) -> FabricConfig {
    let packets = |n: u64| n * 1538;
    FabricConfig {
        topology,
        host_link_delay: Span::from_us(1),
        host_link_delays: Vec::new(),
        core_link_delay: Span::from_us(1),
        host_send_delay: Span::ZERO,
        host_receive_delay: Span::ZERO,
        switch: OneSwitch {
            latency: Span::from_ns(250),
            buffer: BufferConfig::PerPort { bytes: packets(200) },
            ecn_threshold_bytes: Some(packets(20)),
            priorities: true,
            trim: trim.then_some(TrimConfig {
                data_queue_bytes: packets(8),
                header_queue_bytes: packets(8),
                return_to_sender: true,
            }),
            routing: Routing::Transport,
        },
    }
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
    TransportConfig::Homa(Arc::new(homa::Config::sigcomm18(LINK, 15_000)))
}

/// A switch in a thread of its own, which ends with the test.
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
        (0..self.ports.len() as u32).map(|host| self.endpoint(host, transport)).collect()
    }

    fn report(&self) -> Report {
        self.control.report().expect("the switch runs")
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

/// Turns all endpoints until `done` says so.
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

/// All but host 0 send messages of this length to host 0; each arrives once, byte for byte.
fn incast(ends: &mut [Endpoint], len: usize, messages: usize) {
    let senders = ends.len() - 1;
    for sender in 1..=senders {
        for message in 0..messages {
            let body = bytes(len, sender * 1000 + message);
            ends[sender].send(HostId(0), Kind::OneWay, body).unwrap();
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
                    Event::Failed { peer, reason, .. } => panic!("{peer}: {reason}"),
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
    incast(&mut ends, 40_000, 5);
    let report = running.stop();
    let counters = report.counters;
    assert_eq!((counters.malformed, counters.foreign), (0, 0));
    assert!(counters.learnt >= 4, "{counters:?}");
    let down = report.links.iter().find(|link| link.name == "switch0->h0").unwrap();
    assert!(down.bytes > 600_000 && down.max_queue_bytes > 1538, "{down:?}");
}

#[test]
fn an_incast_over_ndp_is_trimmed_and_arrives() {
    let running = Running::start(fabric(single(6), true), Vec::new());
    let mut ends = running.endpoints(&TransportConfig::Ndp(Arc::new(ndp::Config::paper(LINK))));
    incast(&mut ends, 100_000, 2);
    let malformed: u64 = ends.iter().map(|end| end.stats().malformed).sum();
    let counters = running.stop().counters;
    assert!(counters.trims > 20, "{counters:?}");
    assert_eq!(malformed, 0, "what a switch has cut can be read: {counters:?}");
}
