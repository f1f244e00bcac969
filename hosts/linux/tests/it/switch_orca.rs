//! Orca's packets through the user-space switch, by UDP ports on loopback.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rackweave_core::{DropReason, HostId, Rate, Span, Time};
use rackweave_linux::Clock;
use rackweave_linux::switch::{Control, Edge, Report, Switch, SwitchConfig};
use rackweave_orca::label::Layout;
use rackweave_orca::system::Orca;
use rackweave_switch::Fabric;
use rackweave_switch::config::{FabricConfig, SwitchConfig as OneSwitch};
use rackweave_wire::orca::{self, Body, Data, Header, Label, Labelled, Session, TO_GROUP};
use rackweave_wire::overlay;

const PATIENCE: Duration = Duration::from_secs(60);
const LINK: Rate = Rate(200_000_000);
const PAYLOAD: &[u8] = b"bytes of a stream";

/// Two racks of two hosts.
fn fabric() -> FabricConfig {
    FabricConfig::leaf_spine(2, 2, 2, LINK)
        .with_core_link(LINK)
        .with_link_delay(Span::from_us(1))
        .without_host_delays()
        .with_switch(OneSwitch::default().with_buffer(1_000_000).without_marking())
}

struct Host {
    me: HostId,
    socket: UdpSocket,
    port: SocketAddr,
}

impl Host {
    fn send(&self, to: HostId, orca: &[u8]) {
        let mut bytes = Vec::new();
        overlay::encode_group(orca::KIND, self.me, to, orca.len() as u16, &mut bytes);
        bytes.extend_from_slice(orca);
        self.socket.send_to(&bytes, self.port).unwrap();
    }

    /// Returns the sender of the next packet, and the packet.
    fn receive(&self) -> (HostId, Vec<u8>) {
        let mut bytes = [0; 2048];
        let len = self.socket.recv(&mut bytes).expect("something comes");
        let envelope = overlay::decode_group(&bytes[..len]).unwrap();
        (envelope.src, bytes[overlay::BYTES as usize..len].to_vec())
    }
}

fn data(words: u8, labelled: Labelled, label: Label) -> Vec<u8> {
    let header = Header::Data(Data {
        labelled,
        label,
        session: Session(7),
        offset: 1000,
        len: PAYLOAD.len() as u16,
        repair: false,
        end: false,
        parity: None,
    });
    let mut bytes = Vec::new();
    orca::encode_header(&header, words, None, &[PAYLOAD], &mut bytes);
    bytes.extend_from_slice(PAYLOAD);
    bytes
}

fn control(from: HostId, to: HostId, body: Body) -> Vec<u8> {
    let header = Header::Control(orca::Control { from, to, session: Session(7), body });
    let mut bytes = Vec::new();
    orca::encode_header(&header, 1, None, &[], &mut bytes);
    bytes
}

/// Waits until a counter of the switch has reached a value.
fn wait_for(control: &Control, what: &str, reached: impl Fn(&Report) -> bool) {
    let clock = Clock::start();
    // The switch answers when it next wakes up.
    while !control.report().is_some_and(|report| reached(&report)) {
        assert!(clock.now() < Time::from_ticks(Span::from_secs(60).ticks()), "{what}");
    }
}

#[test]
fn labels_lead_from_rack_to_rack_and_copies_go_to_learnt_addresses() {
    let bind = "127.0.0.1:0".parse().unwrap();
    let edges = vec![Edge::Udp { bind, host: None }; 4];
    let boss = HostId(1);
    let orca = Orca { controller: Some(boss), key: None };
    let config = SwitchConfig::new(fabric(), edges).with_system(orca);
    let layout = Layout::new(&Fabric::new(&config.fabric).unwrap()).unwrap();
    let mut switch = Switch::new(config).unwrap();
    let ports: Vec<_> = switch.udp_ports().into_iter().map(Option::unwrap).collect();
    let handle = Arc::new(Control::default());
    let shared = Arc::clone(&handle);
    let thread = std::thread::spawn(move || switch.run(&shared));
    let hosts: Vec<Host> = (0..4)
        .map(|host| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            let me = HostId(host);
            let mut hello = Vec::new();
            overlay::encode_hello(me, me, 1, 0, &mut hello);
            socket.send_to(&hello, ports[host as usize]).unwrap();
            Host { me, socket, port: ports[host as usize] }
        })
        .collect();
    wait_for(&handle, "all hosts are known", |report| report.counters.learnt == 4);

    // Rack 1 has no agent yet, so packets to it are dropped.
    let pilot = data(layout.words(), Labelled::Pilot, layout.pilot(HostId(0), [1].into_iter(), 3));
    hosts[0].send(TO_GROUP, &pilot);
    let lost = |report: &Report| {
        let drops = report.counters.drops;
        drops[DropReason::Program as usize] == 1
    };
    wait_for(&handle, "rack 1 has no active agent", lost);

    // The controller makes host 2 the active agent of rack 1.
    let order = Body::SetActive { rack: 1, agent: 0, epoch: 1 };
    hosts[1].send(HostId(2), &control(boss, HostId(2), order));
    wait_for(&handle, "the command has arrived", |report| report.counters.consumed == 1);
    hosts[0].send(TO_GROUP, &pilot);
    let (from, mut packet) = hosts[2].receive();
    assert_eq!((from, &packet), (HostId(0), &pilot), "up, across and down to the agent");

    // The agent replaces the label with the rack label.
    assert!(orca::relabel(&mut packet, Labelled::Rack, layout.rack_label(0b10)));
    hosts[2].send(TO_GROUP, &packet);
    let (from, got) = hosts[3].receive();
    assert_eq!((from, &got), (HostId(2), &packet));
    let read = orca::decode(&got, None).unwrap();
    assert_eq!(&got[read.payload], PAYLOAD, "its check is still right");

    // The packet goes to both hosts of the local rack, but not back through the port that it came from.
    let rack = data(layout.words(), Labelled::Rack, layout.rack_label(0b11));
    hosts[0].send(TO_GROUP, &rack);
    assert_eq!(hosts[1].receive(), (HostId(0), rack));

    handle.stop.store(true, Ordering::Relaxed);
    thread.join().unwrap().unwrap();
}
