//! Nodes behind a user-space switch on loopback whose links lose, damage, duplicate and delay packets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use rackweave_core::{Rate, Span, Time};
use rackweave_linux::switch::{Control, Counters, Edge, Switch, SwitchConfig, SwitchError};
use rackweave_rpc::{Node, NodeConfig, Transport};
use rackweave_switch::config::{
    FabricConfig, Fault, FaultKind, FaultPlace, SwitchConfig as OneSwitch,
};

/// A switch in a thread of its own, which stops when it is dropped.
pub(crate) struct BadFabric {
    control: Arc<Control>,
    thread: Option<JoinHandle<Result<(), SwitchError>>>,
    ports: Vec<SocketAddr>,
}

fn fabric(hosts: u32, host_link: Rate) -> FabricConfig {
    FabricConfig::single_switch(hosts, host_link)
        .with_link_delay(Span::from_us(1))
        .without_host_delays()
        .with_switch(OneSwitch::default().with_ecn_threshold(100_000))
}

impl BadFabric {
    /// Each fault happens to a packet with this probability, on each of its two links.
    pub(crate) fn new(hosts: u32, link: Rate, probability: f64) -> Self {
        let delay = Span::from_us(500);
        let faults = [
            FaultKind::Loss(probability),
            FaultKind::Corruption(probability),
            FaultKind::Duplication(probability),
            FaultKind::Reordering { probability, delay },
        ]
        .map(|kind| {
            let place = FaultPlace::AllLinks;
            Fault { from: Time::ZERO, until: Time::MAX, place, kind }
        });
        let bind = "127.0.0.1:0".parse().unwrap();
        let edges = vec![Edge::Udp { bind, host: None }; hosts as usize];
        let config = SwitchConfig::new(fabric(hosts, link), edges);
        let mut switch = Switch::new(SwitchConfig { faults: faults.into(), ..config }).unwrap();
        let ports = switch.udp_ports().into_iter().map(Option::unwrap).collect();
        let control = Arc::new(Control::default());
        let shared = Arc::clone(&control);
        let thread = std::thread::spawn(move || switch.run(&shared));
        Self { control, thread: Some(thread), ports }
    }

    pub(crate) fn node(&self, host: u32, transport: &Transport) -> Node {
        let local: SocketAddr = ([127, 0, 0, 1], 0).into();
        let config = NodeConfig::new(transport.clone(), local).default_deadline(super::PATIENCE);
        let hosts = self.ports.len() as u32;
        Node::bind(config.through_switch(host, self.ports[host as usize], hosts)).unwrap()
    }

    pub(crate) fn counters(&self) -> Counters {
        // The switch does not answer while its thread is not scheduled.
        (0..30).find_map(|_| self.control.report()).expect("the switch runs").counters
    }
}

impl Drop for BadFabric {
    fn drop(&mut self) {
        self.control.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
