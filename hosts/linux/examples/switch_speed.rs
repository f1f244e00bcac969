//! Measures how many frames per second the user-space switch forwards on one core, from socket to socket.
//!
//! ```text
//! cargo run --release -p rackweave-linux --example switch_speed            # UDP ports on loopback
//! cargo run --release -p rackweave-linux --example switch_speed -- veth    # interfaces; as root
//! ```
//! Two senders, each with a link of 100 Gbps, send to two receivers as fast as they can: first small frames, then full
//! ones. The example prints how many frames the switch forwarded, how many the kernel dropped before the switch could
//! read them, and how much processor time its thread used.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rackweave_core::{HostId, Packet, Rate, Span};
use rackweave_linux::switch::{Control, Edge, Switch, SwitchConfig};
use rackweave_switch::config::{FabricConfig, SwitchConfig as OneSwitch};
use rackweave_wire::{Id64, homa, overlay};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const HOSTS: u32 = 4;
const SECONDS: u64 = 3;

fn datagram(src: u32, dst: u32, payload: usize) -> Vec<u8> {
    let body = homa::Body::Data {
        message_length: 100_000,
        incoming: 10_000,
        ack_id: Id64::new(0),
        ack_port: 0,
        cutoff_version: 0,
        retransmit: false,
        offset: 0,
        segment_length: payload as u16,
        stamps: homa::DataStamps::default(),
    };
    let header = homa::Header { id: Id64::new(4), one_way: true, body };
    let packet = Packet::new(HostId(src), HostId(dst), 1500, header.into()).with_ports(1, 2);
    let (mut out, bytes) = (Vec::new(), vec![7; payload]);
    let check = overlay::crc32c(0, &bytes);
    overlay::encode(&packet, homa::Layout::Head, 1, 2, check, &mut out);
    out.extend_from_slice(&bytes);
    out
}

fn fabric() -> FabricConfig {
    FabricConfig::single_switch(HOSTS, Rate::from_gbps(100))
        .without_delays()
        .with_switch(OneSwitch::unlimited().with_buffer(4 << 20))
}

/// The namespaces of this process, which are removed at the end.
struct Spaces;

fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).status();
    assert!(done.is_ok_and(|status| status.success()), "ip {arguments}: are you root?");
}

fn space(host: u32) -> String {
    format!("rwb-{}-{host}", std::process::id())
}

fn end(host: u32) -> String {
    format!("rwb{}{host}", std::process::id())
}

impl Spaces {
    fn make() -> Self {
        for host in 0..HOSTS {
            let (name, end) = (space(host), end(host));
            ip(&format!("netns add {name}"));
            ip(&format!("link add {end} type veth peer name eth0 netns {name}"));
            ip(&format!("link set {end} up"));
            let mac = format!("02:00:00:00:00:{host:02x}");
            ip(&format!("-n {name} link set eth0 address {mac} gso_max_segs 1 up"));
            ip(&format!("-n {name} addr add 10.0.0.{host}/32 dev eth0"));
            ip(&format!("-n {name} route add 10.0.0.0/8 dev eth0 scope link"));
            for peer in (0..HOSTS).filter(|peer| *peer != host) {
                let mac = format!("02:00:00:00:00:{peer:02x}");
                ip(&format!(
                    "-n {name} neigh add 10.0.0.{peer} lladdr {mac} dev eth0 nud permanent"
                ));
            }
        }
        Self
    }
}

impl Drop for Spaces {
    fn drop(&mut self) {
        for host in 0..HOSTS {
            let _ = Command::new("ip").args(["netns", "del", &space(host)]).status();
        }
    }
}

fn socket(host: u32, veth: bool) -> UdpSocket {
    if !veth {
        return UdpSocket::bind("127.0.0.1:0").expect("a port");
    }
    let made = std::thread::spawn(move || {
        let space = std::fs::File::open(format!("/run/netns/{}", space(host))).expect("made above");
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(space.as_fd(), kind).expect("root");
        UdpSocket::bind((std::net::Ipv4Addr::from(10 << 24 | host), 4000)).expect("a port")
    });
    made.join().expect("a socket")
}

fn measure(payload: usize, veth: bool) {
    let sockets: Vec<UdpSocket> = (0..HOSTS).map(|host| socket(host, veth)).collect();
    let edge = |host: u32| match veth {
        true => Edge::Interface { name: end(host) },
        false => Edge::Udp {
            bind: SocketAddr::from(([127, 0, 0, 1], 0)),
            host: sockets[host as usize].local_addr().ok(),
        },
    };
    let config = SwitchConfig::new(fabric(), (0..HOSTS).map(edge).collect());
    let clock = config.clock;
    let mut switch = Switch::new(config).expect("a switch");
    let ports = switch.udp_ports();
    let control = Arc::new(Control::default());
    let shared = Arc::clone(&control);
    let run = std::thread::spawn(move || {
        let cpu = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        switch.run(&shared).expect("the sockets live");
        let cpu = cpu();
        (switch.report(), cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9)
    });
    let stop = Arc::new(AtomicBool::new(false));
    let senders: Vec<_> = [0, 1]
        .into_iter()
        .map(|src| {
            let socket = sockets[src as usize].try_clone().expect("a descriptor");
            let to = ports[src as usize]
                .unwrap_or_else(|| SocketAddr::from(([10, 0, 0, src as u8 + 2], 4000)));
            let (bytes, stop) = (datagram(src, src + 2, payload), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let _ = socket.send_to(&bytes, to);
                }
            })
        })
        .collect();
    let began = clock.now();
    while clock.now().since(began) < Span::from_secs(SECONDS) {
        std::thread::park_timeout(std::time::Duration::from_millis(100));
    }
    stop.store(true, Ordering::Relaxed);
    senders.into_iter().for_each(|sender| sender.join().expect("a sender"));
    control.stop.store(true, Ordering::Relaxed);
    let (report, cpu) = run.join().expect("the switch");
    let counters = report.counters;
    let seconds = clock.now().since(began).as_secs_f64();
    println!(
        "{} bytes: {:.0} frames/s, {:.0} per second of its processor ({:.0} % of one core), {} lost by the kernel, late p50 {} p99 {}",
        payload,
        counters.forwarded as f64 / seconds,
        counters.forwarded as f64 / cpu,
        cpu / seconds * 100.0,
        counters.kernel_drops,
        report.lateness.p50,
        report.lateness.p99,
    );
}

fn main() {
    let veth = std::env::args().any(|argument| argument == "veth");
    let spaces = veth.then(Spaces::make);
    for payload in [64, 1350] {
        measure(payload, veth);
    }
    drop(spaces);
}
