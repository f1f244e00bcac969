//! Packet hops per CPU second on one core of a cluster whose switches replicate: `cargo bench -p rackweave-sim
//! --bench cluster [-- PACKETS]`. One host sends, all others receive and answer every 16th packet.

use std::convert::Infallible;
use std::sync::Arc;

use rackweave_core::{
    Header, HostId, Node, Packet, PayloadStore, Pool, Port, PortSet, Rate, Slice, Span,
    SwitchProgram, Time, Verdict,
};
use rackweave_sim::config::{FabricConfig, MeasureConfig, SwitchConfig, Topology};
use rackweave_sim::model::GroupsOnly;
use rackweave_sim::{Attached, Control, Fabric, GroupNode, Setup, World};
use rackweave_wire::orca;

const LINK: Rate = Rate::from_gbps(10);
const TO_ALL: HostId = orca::TO_GROUP;

/// A header of the same size as Orca's.
#[derive(Clone, Copy, Debug)]
struct Large {
    number: u64,
    _fill: [u8; size_of::<orca::Header>() - 8],
}

impl Header for Large {
    fn payload(&self) -> Option<Slice> {
        None
    }
}

fn packet(src: HostId, dst: HostId, bytes: u32, number: u64) -> Packet<Large> {
    Packet::new(src, dst, bytes, Large { number, _fill: [0; size_of::<orca::Header>() - 8] })
}

/// A switch program that replicates on a tree: a leaf copies a packet to all its hosts, and upwards if the
/// packet came from one of them; a spine copies it to the other leaves.
struct Copies {
    downs: u64,
    up: u64,
}

impl SwitchProgram for Copies {
    type Header = Large;

    #[inline]
    fn handle_packet<S: PayloadStore<Large>>(
        &mut self,
        _: Time,
        port: Port,
        packet: &mut Packet<Large>,
        _: &mut S,
    ) -> Verdict {
        if packet.dst != TO_ALL {
            return Verdict::Route;
        }
        let came_by = 1 << port.0;
        let up = if came_by & self.downs == 0 { 0 } else { self.up };
        Verdict::Replicate(PortSet::from_bits((self.downs | up) & !came_by))
    }
}

#[derive(Debug)]
enum Peer {
    Sender { left: u64, replies: u64 },
    Receiver { me: HostId, got: u64, wants: u64, answers: u64 },
}

impl Node for Peer {
    type Header = Large;
    type Event = Infallible;
    type Placement = ();

    #[inline]
    fn handle_packet(&mut self, _: Time, _: u8, packet: &Packet<Large>) {
        match self {
            Self::Sender { replies, .. } => *replies += 1,
            Self::Receiver { got, answers, .. } => {
                *got += 1;
                *answers += u64::from(packet.header.number.is_multiple_of(16));
            }
        }
    }

    fn handle_timeout(&mut self, _: Time) {}

    #[inline]
    fn poll_transmit(&mut self, _: Time, _: u8) -> Option<Packet<Large>> {
        match self {
            Self::Sender { left, .. } => {
                *left = left.checked_sub(1)?;
                Some(packet(HostId(0), TO_ALL, 1500, *left))
            }
            Self::Receiver { me, answers, .. } => {
                *answers = answers.checked_sub(1)?;
                Some(packet(*me, HostId(0), 100, 0))
            }
        }
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }
}

impl GroupNode for Peer {
    #[inline]
    fn is_done(&self) -> bool {
        match self {
            Self::Sender { left, .. } => *left == 0,
            Self::Receiver { got, wants, answers, .. } => got == wants && *answers == 0,
        }
    }
}

fn run(name: &str, topology: Topology, packets: u64) {
    let fabric = FabricConfig::new(topology)
        .with_link_delay(Span::from_ns(500))
        .without_host_delays()
        .with_switch(SwitchConfig::default().with_buffer(1_000_000).without_marking());
    let fabric = Fabric::new(&fabric).expect("a possible fabric");
    let hosts = fabric.hosts();
    let mut nodes = vec![Attached::at(HostId(0), Peer::Sender { left: packets, replies: 0 })];
    for host in 1..hosts {
        let me = HostId(host);
        nodes.push(Attached::at(me, Peer::Receiver { me, got: 0, wants: packets, answers: 0 }));
    }
    let leaves = match fabric.config().topology {
        Topology::LeafSpine { leaves, .. } => leaves,
        _ => 1,
    };
    let programs = move |switch: u32| match (leaves, switch < leaves) {
        (1, _) => Copies { downs: (1_u128 << hosts).wrapping_sub(1) as u64, up: 0 },
        (_, true) => {
            let downs = (1 << (hosts / leaves)) - 1;
            Copies { downs, up: downs + 1 }
        }
        (_, false) => Copies { downs: (1 << leaves) - 1, up: 0 },
    };
    let before = cpu_s();
    let measure =
        MeasureConfig::default().with_time_limit(Span::from_secs(1000)).with_samples(Span::ZERO);
    let mut world = World::<GroupsOnly<Peer, Copies>>::new(Setup {
        nodes,
        ..Setup::new(1, Arc::new(fabric), &measure, programs)
    })
    .expect("a possible world");
    let end = world.run_to_end(&Control::default());
    let took = cpu_s() - before;
    let net = *world.counters();
    println!(
        "{name:<22} {:>10} hops {:>5.2} events/hop {:>7.2} s {:>6.2} Mhop/s {:>8} dropped  {end:?} after {}",
        net.packet_hops,
        net.events as f64 / net.packet_hops as f64,
        took,
        net.packet_hops as f64 / took / 1e6,
        net.dropped(),
        world.now(),
    );
}

/// CPU time of this process in seconds, with a resolution of 10 ms, from /proc.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(f64::NAN);
    (ticks(11) + ticks(12)) / 100.0
}

fn main() {
    let packets = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(200_000);
    println!("A packet under way takes {} bytes.", Pool::<Large>::BYTES_PER_PACKET);
    let single = |hosts| Topology::SingleSwitch { hosts, host_link: LINK };
    run("1 to 4", single(5), packets * 8);
    run("1 to 63", single(64), packets);
    let topology = Topology::LeafSpine {
        leaves: 8,
        hosts_per_leaf: 16,
        spines: 1,
        host_link: LINK,
        core_link: LINK,
    };
    run("1 to 127, 8 leaves", topology, packets / 2);
}
