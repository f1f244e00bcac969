//! Compares the program in the kernel with Orca's switch program, packet by packet.

use std::sync::Arc;

use rackweave_core::{HostId, Port, Rate, Rng, Verdict};
use rackweave_orca::label::Layout;
use rackweave_orca::switch::Program;
use rackweave_orca::view::View;
use rackweave_switch::config::{FabricConfig, SwitchConfig, Topology};
use rackweave_switch::fabric::Fabric;
use rackweave_wire::orca::{
    Body, Control, Data, Gap, Header, Key, Label, Labelled, PORT, Parity, Place, Reason, Session,
    Status, TO_AGENT, TO_GROUP, encode_header, glance,
};

use super::*;
use crate::trial::{self, CB, MARK};

/// The number of packets for each switch.
const PACKETS: u32 = 6000;
const RATE: Rate = Rate::from_gbps(10);

/// The verdict of the program in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KernelVerdict {
    Route,
    Forward(u32),
    Replicate(u64),
    Consume(u64),
    Drop,
}

fn verdict(loaded: &mut Loaded, frame: &[u8], port: u16) -> KernelVerdict {
    let ran = trial::run_with(&mut loaded.classifier, frame, &[(MARK, u32::from(port))]);
    assert_eq!(ran.verdict, 0, "the program did not decide");
    let word = |index| ran.word(CB + index);
    let ports = u64::from(word(3)) << 32 | u64::from(word(2));
    match word(0) {
        0 => KernelVerdict::Route,
        1 => KernelVerdict::Forward(word(1)),
        2 => KernelVerdict::Replicate(ports),
        3 => KernelVerdict::Consume(ports),
        4 => KernelVerdict::Drop,
        other => panic!("no such action: {other}"),
    }
}

fn fabric(topology: Topology) -> Fabric {
    let switch = SwitchConfig::unlimited().without_priorities();
    let config = FabricConfig::new(topology).without_delays().with_switch(switch);
    Fabric::new(&config).expect("a fabric")
}

/// The same ToR twice: in this process, and in the kernel.
struct Twins {
    ours: Program,
    kernel: Loaded,
    rack: u16,
    hosts: u16,
    ports: u16,
    controller: Option<HostId>,
    /// The port from which the controller's packets may come.
    trusted: u16,
    keyed: bool,
}

impl Twins {
    /// Returns `None` if this machine cannot run such programs.
    fn new(topology: Topology, rack: u16, controller: Option<u32>, keyed: bool) -> Option<Self> {
        rackweave_testing::needs!(NetAdmin, None);
        rackweave_testing::needs!(Clang, None);
        let fabric = fabric(topology);
        let layout = Arc::new(Layout::new(&fabric).expect("labels"));
        let controller = controller.map(HostId);
        let hosts = layout.hosts_of(rack) as u16;
        let ports = hosts + layout.uplinks();
        let field = layout.up_leaf();
        let place = controller.map(|controller| layout.place(controller));
        let config = TorConfig {
            ports: (0..ports).map(|port| format!("p{port}")).collect(),
            uplinks: (hosts..ports).map(|port| port as u8).collect(),
            uplink_shift: field.shift,
            uplink_width: field.width,
            rack,
            controller: place.map(|p| if p.rack == rack { p.port } else { hosts as u8 }),
            keyed,
            hosts: Vec::new(),
            agent: None,
        };
        let numbers: Vec<u32> = (1..=u32::from(ports)).collect();
        let kernel = Loaded::new(&config, &numbers, "rackweave_decide").unwrap();
        let trusted = u16::from(config.controller.unwrap_or(0));
        let mut ours = Program::new(layout, &fabric, u32::from(rack)).expect("a program");
        if let Some(controller) = controller {
            ours = ours.with_controller(controller);
        }
        Some(Self { ours, kernel, rack, hosts, ports, controller, trusted, keyed })
    }

    /// Returns the view of a switch that has the key, and whether both must decide the same, which holds only for
    /// packets with the format of Orca.
    fn view(&self, frame: &[u8]) -> Option<View> {
        let Some(payload) = orca_payload(frame) else { return Some(View::Control) };
        let key = self.keyed.then(key);
        let glance = glance(payload, key.as_ref()).ok()?;
        let view = View::of(&glance.header);
        let needs_check =
            matches!(view, View::SetActive { .. } | View::Sync { .. } | View::Ping { .. });
        if needs_check && !glance.verified {
            // The kernel cannot verify keyed packets.
            return if self.keyed { None } else { Some(View::Control) };
        }
        Some(view)
    }

    fn compare(&mut self, frame: &[u8], port: u16) {
        let before = self.kernel.register().unwrap();
        let kernel = verdict(&mut self.kernel, frame, port);
        let all = u64::MAX >> (64 - self.ports);
        let possible = match kernel {
            KernelVerdict::Forward(port) => port < u32::from(self.ports),
            KernelVerdict::Replicate(ports) => ports & !all == 0 && ports != 0,
            _ => true,
        };
        assert!(possible, "{kernel:?}");
        let Some(view) = self.view(frame) else {
            // The packet is damaged, which the kernel does not check: the register does not change, and hosts discard
            // the packet.
            let changed = matches!(kernel, KernelVerdict::Consume(register) if register != before);
            assert!(!changed || self.keyed, "a damaged packet has set the register: {frame:02x?}");
            return;
        };
        let from = self.controller.unwrap_or(HostId(0));
        // An unlabelled packet from a host to a group goes to all hosts there; here that is ordinary forwarding.
        let labelled = !matches!(view, View::Data { labelled: Labelled::Host, .. });
        let group = frame.get(30).is_some_and(|byte| byte & 0xf0 == 0xe0) && labelled;
        let to = if group { TO_GROUP } else { HostId(0) };
        let verdict = self.ours.decide(Port(port), from, to, view);
        let same = match (verdict, kernel) {
            (Verdict::Route, KernelVerdict::Route) | (Verdict::Drop(_), KernelVerdict::Drop) => {
                true
            }
            (Verdict::Forward(ours), KernelVerdict::Forward(theirs)) => u32::from(ours.0) == theirs,
            (Verdict::Replicate(ours), KernelVerdict::Replicate(theirs)) => ours.bits() == theirs,
            (Verdict::Consume, KernelVerdict::Consume(register)) => {
                self.kernel.set_register(register).unwrap();
                true
            }
            _ => false,
        };
        assert!(same, "port {port}, {view:?}: {verdict:?}, the kernel {kernel:?}; {frame:02x?}");
        let (ours, theirs) = (self.ours.register().unwrap(), self.kernel.register().unwrap());
        assert_eq!((ours.agent, ours.epoch), (theirs as u8, (theirs >> 32) as u32));
    }

    /// Returns a packet of a random kind.
    fn packet(&self, rng: &mut Rng) -> Vec<u8> {
        let (header, words, payload) = self.header(rng);
        let mut packet = Vec::new();
        let key = (self.keyed != rng.chance(0.05)).then(key);
        let payload = vec![rng.next_u64() as u8; payload];
        encode_header(&header, words, key.as_ref(), &[&payload], &mut packet);
        packet.extend_from_slice(&payload);
        packet
    }

    fn header(&self, rng: &mut Rng) -> (Header, u8, usize) {
        if rng.chance(0.4) {
            let labelled = [Labelled::Pilot, Labelled::Rack, Labelled::Host][rng.below(3) as usize];
            let random = u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64());
            let label = random >> [0, 32, 64, 96, 112, 124][rng.below(6) as usize];
            let parity = Parity { index: 1, data: 8, parity: 2, last: 7 };
            let len = rng.below(1500) as u16;
            let data = Data {
                labelled,
                label: Label(label),
                session: Session(rng.next_u64() as u32),
                offset: rng.next_u64() >> 16,
                len,
                repair: rng.chance(0.5),
                end: rng.chance(0.5),
                parity: rng.chance(0.2).then_some(parity),
            };
            return (Header::Data(data), 1 + rng.below(4) as u8, usize::from(len));
        }
        let rack = self.rack + u16::from(rng.chance(0.1));
        let port = match rng.below(8) {
            0 => 255,
            1 => rng.next_u64() as u8,
            _ => rng.below(u64::from(self.ports)) as u8,
        };
        let number = match rng.below(4) {
            0 => rng.next_u64() as u32,
            // Epochs around that of the register.
            _ => ((self.kernel.register().unwrap() >> 32) as u32)
                .wrapping_add(rng.below(8) as u32)
                .wrapping_sub(3),
        };
        let place = Place { rack, port };
        let gap = Gap { offset: 5, len: 9, who: 1 };
        let status =
            Status { rack, who: 1, have: 5, seen: 99, gaps: [gap; 3], ..Status::default() };
        let body = match rng.below(9) {
            0..3 => Body::SetActive { rack, agent: port, epoch: number },
            3 => Body::Sync { rack, ports: rng.next_u64(), version: number },
            4 | 5 => Body::Ping { place, number },
            6 => Body::Pong { number },
            7 => Body::Status(status),
            _ => Body::Bye { reason: Reason::Left },
        };
        // Packets that a switch itself acts on are for no agent.
        let any = !matches!(body, Body::SetActive { .. } | Body::Sync { .. } | Body::Ping { .. });
        let to = [TO_GROUP, HostId(1), TO_AGENT][rng.below(2 + u64::from(any)) as usize];
        let session = Session(rng.next_u64() as u32);
        (Header::Control(Control { from: HostId(0), to, session, body }), 1, 0)
    }
}

fn key() -> Key {
    Key::derive(b"a secret")
}

/// Returns a frame's Orca packet, if it is one that a ToR examines: unfragmented and in UDP.
fn orca_payload(frame: &[u8]) -> Option<&[u8]> {
    let (ethernet, ip) = frame.split_at_checked(14)?;
    let length = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
    let ip = ip.get(..length)?;
    let plain = ethernet[12..] == [8, 0] && ip.first() == Some(&0x45) && ip.get(9) == Some(&17);
    let fragment = u16::from_be_bytes([*ip.get(6)?, *ip.get(7)?]) & 0x3fff != 0;
    let udp = ip.get(20..)?;
    let to = u16::from_be_bytes([*udp.get(2)?, *udp.get(3)?]);
    let length = usize::from(u16::from_be_bytes([*udp.get(4)?, *udp.get(5)?]));
    if !plain || fragment || to != PORT {
        return None;
    }
    udp.get(8..length)
}

fn frame(packet: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut frame = vec![1, 0, 0x5e, 0x7f, 0x43, 0x16, 2, 0, 0, 0, 0, 1, 8, 0];
    let length = (28 + packet.len()) as u16;
    frame.extend_from_slice(&[0x45, 0]);
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1]);
    frame.extend_from_slice(if rng.chance(0.8) { &[239, 255, 67, 22] } else { &[10, 0, 0, 2] });
    let to = if rng.chance(0.97) { PORT } else { PORT ^ (1 << rng.below(16)) };
    frame.extend_from_slice(&[0x12, 0x34]);
    frame.extend_from_slice(&to.to_be_bytes());
    frame.extend_from_slice(&(length - 20).to_be_bytes());
    frame.extend_from_slice(&[0, 0]);
    frame.extend_from_slice(packet);
    frame
}

/// Damages packets in the ways that occur in networks.
fn mangled(mut packet: Vec<u8>, rng: &mut Rng) -> Vec<u8> {
    match rng.below(20) {
        0 => packet.truncate(rng.below(packet.len() as u64) as usize),
        1 => packet[0] = rng.next_u64() as u8,
        2 => packet[1] = rng.next_u64() as u8,
        3 => {
            let at = rng.below(packet.len() as u64) as usize;
            packet[at] ^= 1 << rng.below(8);
        }
        4 => packet.fill_with(|| rng.next_u64() as u8),
        5 => packet.push(0),
        _ => {}
    }
    let mut frame = frame(&packet, rng);
    match rng.below(20) {
        0 => {
            let at = rng.below(frame.len().min(48) as u64) as usize;
            frame[at] ^= 1 << rng.below(8);
        }
        // The kernel's test interface accepts no frame shorter than the Ethernet and IP headers.
        1 => frame.truncate(34 + rng.below(frame.len() as u64 - 34) as usize),
        2 => frame.resize(frame.len() + 1 + rng.below(20) as usize, 0),
        3 => frame[20] |= 0x20,
        _ => {}
    }
    frame
}

fn compare(topology: Topology, rack: u16, controller: Option<u32>, keyed: bool) {
    let Some(mut twins) = Twins::new(topology, rack, controller, keyed) else { return };
    let mut rng = Rng::stream(1, u64::from(rack), u64::from(twins.ports), "frames for a ToR");
    let mut kinds = [0_u32; 5];
    for _ in 0..PACKETS {
        let packet = twins.packet(&mut rng);
        let frame = mangled(packet, &mut rng);
        let port =
            if rng.chance(0.7) { rng.below(u64::from(twins.ports)) as u16 } else { twins.trusted };
        twins.compare(&frame, port);
        let kind = match verdict(&mut twins.kernel, &frame, port) {
            KernelVerdict::Route => 0,
            KernelVerdict::Forward(_) => 1,
            KernelVerdict::Replicate(_) => 2,
            KernelVerdict::Consume(_) => 3,
            KernelVerdict::Drop => 4,
        };
        kinds[kind] += 1;
    }
    // Each kind of decision was compared many times.
    assert!(kinds.iter().all(|count| *count > PACKETS / 200), "{kinds:?}");
    assert!(twins.kernel.register().unwrap() >> 32 != 0 && twins.hosts > 0);
}

#[test]
fn one_switch_decides_as_ours() {
    compare(Topology::SingleSwitch { hosts: 5, host_link: RATE }, 0, None, false);
}

#[test]
fn one_with_64_ports_and_a_controller_decides_as_ours() {
    compare(Topology::SingleSwitch { hosts: 64, host_link: RATE }, 0, Some(2), false);
}

#[test]
fn a_leaf_decides_as_ours() {
    let topology = Topology::LeafSpine {
        leaves: 3,
        hosts_per_leaf: 4,
        spines: 3,
        host_link: RATE,
        core_link: RATE,
    };
    compare(topology.clone(), 1, Some(0), false);
    compare(topology, 0, Some(0), false);
}

#[test]
fn an_edge_of_a_fat_tree_with_a_key_decides_as_ours() {
    compare(Topology::fat_tree(8, RATE), 9, Some(3), true);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let config = TorConfig { ports: vec!["a".into(), "b".into()], ..TorConfig::default() };
    let refused = |config: TorConfig| config.check().unwrap_err().to_string();
    assert_eq!(config.check().unwrap(), 3);
    assert_eq!(TorConfig { uplinks: vec![1], ..config.clone() }.check().unwrap(), 1);
    assert!(refused(TorConfig::default()).contains("1 to 64 ports"));
    assert!(refused(TorConfig { ports: vec!["x".into(); 65], ..config.clone() }).contains("65"));
    assert!(refused(TorConfig { controller: Some(2), ..config.clone() }).contains("no port 2"));
    assert!(refused(TorConfig { uplinks: vec![9], ..config.clone() }).contains("no port 9"));
    assert!(refused(TorConfig { uplink_width: 17, ..config.clone() }).contains("16"));
    assert!(refused(TorConfig { keyed: true, ..config }).contains("controller's port"));
}
