//! A pod with an optical circuit switch between real hosts: its circuits change by schedule and on request.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rackweave_core::{DropReason, HostId, Rate, Span, Time};
use rackweave_switch::config::{
    CircuitError, Circuits, Dark, FabricConfig, Move, Ocs, Pod, SwitchConfig as OneSwitch,
    Topology, Tor,
};
use rackweave_wire::overlay;

use rackweave_linux::Clock;
use rackweave_linux::switch::{
    ChangeError, Control, Edge, Report, Switch, SwitchConfig, SwitchError,
};

const LINK: Rate = Rate(1_000_000_000);

/// Three servers, and ToRs with two server ports each.
fn pod(dark: Dark, switching_delay: Span) -> FabricConfig {
    let tor = Tor { server_ports: 2, uplinks: 1, circuit_ports: 0 };
    let ocs = Ocs { switching_delay, link_delay: Span::ZERO, dark };
    let circuits = Circuits::Servers(vec![0, 0, 1]);
    let pod = Pod { tors: vec![tor, tor], host_link: LINK, core_link: LINK, circuits, ocs };
    FabricConfig::new(Topology::Pod(Arc::new(pod)))
        .without_delays()
        .with_switch(OneSwitch::unlimited().with_buffer(500_000))
}

fn config(fabric: FabricConfig) -> SwitchConfig {
    let edge = |_| Edge::Udp { bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), host: None };
    SwitchConfig::new(fabric, (0..3).map(edge).collect())
}

/// A host with a socket, which sends HELLOs: frames that need no transport.
struct Host {
    number: HostId,
    socket: UdpSocket,
    port: SocketAddr,
}

impl Host {
    fn new(number: u32, port: SocketAddr) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let host = Self { number: HostId(number), socket, port };
        host.send(host.number);
        host
    }

    fn send(&self, to: HostId) {
        let mut bytes = Vec::new();
        overlay::encode_hello(self.number, to, 0, 0, &mut bytes);
        self.socket.send_to(&bytes, self.port).unwrap();
    }

    /// Whether a frame comes: within a minute if one is expected, since a machine can have much else to do.
    fn hears(&self, is_expected: bool) -> bool {
        let limit = Duration::from_millis(if is_expected { 60_000 } else { 400 });
        self.socket.set_read_timeout(Some(limit)).unwrap();
        self.socket.recv(&mut [0; 2048]).is_ok()
    }

    /// Forgets what has come.
    fn forget(&self) {
        self.socket.set_nonblocking(true).unwrap();
        while self.socket.recv(&mut [0; 2048]).is_ok() {}
        self.socket.set_nonblocking(false).unwrap();
    }
}

/// Runs a switch, and calls a function with its control and its hosts.
fn with_hosts(config: SwitchConfig, test: impl FnOnce(&Control, &[Host])) -> Report {
    let clock = config.clock;
    let mut switch = Switch::new(config).unwrap();
    let ports: Vec<_> = switch.udp_ports().into_iter().flatten().collect();
    let control = Control::default();
    std::thread::scope(|threads| {
        let running = threads.spawn(|| switch.run(&control).unwrap());
        let hosts: Vec<_> = (0..3).map(|host| Host::new(host, ports[host as usize])).collect();
        let until = clock.now() + Span::from_secs(60);
        while control.report().unwrap().counters.learnt < 3 {
            assert!(clock.now() < until, "the switch learns the hosts");
        }
        test(&control, &hosts);
        control.stop.store(true, Ordering::Relaxed);
        running.join().unwrap();
    });
    switch.report()
}

/// Lets time pass.
fn pass(clock: Clock, span: Span) {
    let until = clock.now() + span;
    while clock.now() < until {
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn lost(report: &Report) -> u64 {
    report.counters.drops[DropReason::Reconfiguration as usize]
}

#[test]
fn dark_ports_drop_what_is_sent_and_others_do_not() {
    for dark in [Dark::Moved, Dark::All] {
        // The longest possible, so that the ports stay dark during the test.
        let report = with_hosts(config(pod(dark, Span::from_secs(10))), |control, hosts| {
            for (from, to) in [(0, 1), (0, 2), (2, 1)] {
                hosts[to].forget();
                hosts[from].send(HostId(to as u32));
                assert!(hosts[to].hears(true), "before the move");
            }
            let change = control.reconfigure(Circuits::Servers(vec![0, 1, 1])).unwrap();
            assert_eq!(change.up.since(change.at), Span::from_secs(10));
            for (from, to, is_dark) in [(0, 1, true), (1, 0, true), (0, 2, dark == Dark::All)] {
                hosts[to].forget();
                hosts[from].send(HostId(to as u32));
                assert_eq!(hosts[to].hears(!is_dark), !is_dark, "{dark:?}: from {from} to {to}");
            }
        });
        assert_eq!(lost(&report), if dark == Dark::All { 3 } else { 2 });
        assert_eq!(report.circuits.len(), 2);
        assert_eq!(report.circuits[1].1, Circuits::Servers(vec![0, 1, 1]));
    }
}

#[test]
fn ports_are_lit_again_after_the_dark_time() {
    let dark = Span::from_ms(50);
    let config = config(pod(Dark::Moved, dark));
    let clock = config.clock;
    let report = with_hosts(config, |control, hosts| {
        for tors in [[0, 1, 1], [0, 1, 0], [1, 1, 0], [0, 0, 1]] {
            let change = control.reconfigure(Circuits::Servers(tors.to_vec())).unwrap();
            assert_eq!(change.up.since(change.at), dark);
            pass(clock, Span::from_ms(120));
            for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
                hosts[to].forget();
                hosts[from].send(HostId(to as u32));
                assert!(hosts[to].hears(true), "{tors:?}: from {from} to {to}");
            }
        }
        let change = control.reconfigure(Circuits::Servers(vec![0, 0, 1])).unwrap();
        assert_eq!(change.up, change.at, "nothing has moved");
    });
    assert_eq!((lost(&report), report.circuits.len()), (0, 5));
}

#[test]
fn a_schedule_is_followed_by_the_switchs_clock() {
    let mut config = config(pod(Dark::Moved, Span::from_ms(30)));
    let clock = config.clock;
    let at = clock.now() + Span::from_ms(300);
    config.moves = vec![Move { at, circuits: Circuits::Servers(vec![1, 0, 1]) }];
    let report = with_hosts(config, |control, hosts| {
        let until = clock.now() + Span::from_secs(60);
        while control.report().unwrap().circuits.len() < 2 {
            assert!(clock.now() < until, "the move begins");
        }
        pass(clock, Span::from_ms(100));
        hosts[2].forget();
        hosts[0].send(HostId(2));
        assert!(hosts[2].hears(true));
    });
    assert_eq!(report.circuits[1], (at, Circuits::Servers(vec![1, 0, 1])));
}

#[test]
fn impossible_circuits_are_refused_and_change_nothing() {
    let fabric = || pod(Dark::Moved, Span::from_ms(1));
    let ports = CircuitError::Ports { tor: 1, ports: 2, needed: 3 };
    let report = with_hosts(config(fabric()), |control, _| {
        for (circuits, error) in [
            (Circuits::Servers(vec![1, 1, 1]), ports.clone()),
            (Circuits::Servers(vec![0, 0]), CircuitError::Servers { given: 2, servers: 3 }),
            (Circuits::Servers(vec![0, 0, 7]), CircuitError::NoSuchTor { tor: 7, tors: 2 }),
            (Circuits::Tors(vec![(0, 1)]), CircuitError::Kind("ToRs")),
        ] {
            assert_eq!(control.reconfigure(circuits), Err(ChangeError::Circuits(error)));
        }
    });
    assert_eq!(report.circuits.len(), 1);
    let at = Time::from_ticks(7);
    let moves = vec![Move { at, circuits: Circuits::Servers(vec![1, 1, 1]) }];
    let refused = Switch::<()>::new(SwitchConfig { moves, ..config(fabric()) }).err();
    assert!(
        matches!(&refused, Some(SwitchError::Circuits { at: when, error }) if (*when, error) == (at, &ports)),
        "{refused:?}"
    );
    assert_eq!(
        Control::default().reconfigure(Circuits::None),
        Err(ChangeError::NoAnswer),
        "no switch runs"
    );
}
