//! Circuits that change between events, while nodes send.

use std::convert::Infallible;

use rackweave_core::{DropReason, Header, Node, Packet, Rate, Slice, Span};
use rackweave_switch::ForwardOnly;

use super::*;
use crate::config::{
    CircuitError, Circuits, Dark, FabricConfig, Ocs, Pod, SwitchConfig, Topology, Tor,
};
use crate::model::{GroupNode, GroupsOnly};

#[derive(Clone, Copy, Debug)]
struct Number(u32);

impl Header for Number {
    fn payload(&self) -> Option<Slice> {
        None
    }
}

/// Sends numbered packets to a peer.
#[derive(Debug)]
struct Station {
    me: HostId,
    peer: HostId,
    left: u32,
    received: Vec<(Time, u32)>,
}

impl Station {
    const fn new(me: u32, peer: u32, packets: u32) -> Self {
        let (me, peer) = (HostId(me), HostId(peer));
        Self { me, peer, left: packets, received: Vec::new() }
    }
}

impl Node for Station {
    type Header = Number;
    type Event = Infallible;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, _port: u8, packet: &Packet<Number>) {
        self.received.push((now, packet.header.0));
    }

    fn handle_timeout(&mut self, _now: Time) {}

    fn poll_transmit(&mut self, _now: Time, _port: u8) -> Option<Packet<Number>> {
        self.left = self.left.checked_sub(1)?;
        Some(Packet::new(self.me, self.peer, 1500, Number(self.left)))
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }
}

impl GroupNode for Station {
    fn is_done(&self) -> bool {
        self.left == 0
    }
}

const G10: Rate = Rate::from_gbps(10);

fn servers(tors: [u16; 8]) -> Circuits {
    Circuits::Servers(tors.to_vec())
}

fn fabric() -> Fabric {
    let tor = |server_ports| Tor { server_ports, uplinks: 1, circuit_ports: 0 };
    let pod = Pod {
        tors: [4, 2, 2].map(tor).to_vec(),
        host_link: G10,
        core_link: G10,
        circuits: servers([0, 0, 0, 0, 1, 1, 2, 2]),
        ocs: Ocs {
            switching_delay: Span::from_us(50),
            link_delay: Span::from_us(10),
            dark: Dark::Moved,
        },
    };
    let config = FabricConfig::new(Topology::Pod(Arc::new(pod)))
        .with_link_delay(Span::from_ns(100))
        .without_host_delays()
        .with_switch(SwitchConfig::unlimited());
    Fabric::new(&config).unwrap()
}

/// Host 5 sends to host 4.
fn world(measure: &MeasureConfig) -> World<'_, GroupsOnly<Station, ForwardOnly<Number>>> {
    let nodes = [(4, 0), (5, 1000)]
        .map(|(me, packets)| Attached::at(HostId(me), Station::new(me, 4, packets)));
    World::new(Setup {
        nodes: nodes.into(),
        ..Setup::new(1, Arc::new(fabric()), measure, |_| ForwardOnly::new())
    })
    .unwrap()
}

#[test]
fn circuits_change_during_a_run_and_packets_of_the_dark_time_are_lost() {
    let measure = MeasureConfig { sample_every: Span::ZERO, ..MeasureConfig::default() };
    let mut world = world(&measure);
    let us = |us: u64| Time::ZERO + Span::from_us(us);
    // Hosts 3 and 4 exchange their ToRs, and then again.
    let plan = [
        servers([0, 0, 0, 1, 0, 1, 2, 2]),
        servers([0, 0, 0, 0, 0, 1, 2, 2]),
        servers([0, 0, 0, 0, 1, 1, 2, 2]),
        servers([0, 0, 0, 0, 1, 1, 2, 2]),
    ];
    let (mut at, mut answers) = (us(100), Vec::new());
    for circuits in plan {
        world.run_until(at);
        let answer = world.reconfigure(&circuits);
        at = answer.clone().unwrap_or(at) + Span::from_us(100);
        answers.push((world.now(), answer));
    }
    world.run_until(us(5000));
    let refused = CircuitError::Ports { tor: 0, ports: 4, needed: 5 };
    assert_eq!(
        answers[..],
        [
            (us(100), Ok(us(160))),
            (us(260), Err(refused)),
            (us(360), Ok(us(420))),
            // The circuits are those already.
            (us(520), Ok(us(520))),
        ]
    );
    let in_force: Vec<_> = world.circuits().iter().map(|(from, _)| *from).collect();
    assert_eq!(in_force, [Time::ZERO, us(100), us(360)]);
    let received = &world.node(0).received;
    let lost = world.counters().drops[DropReason::Reconfiguration as usize];
    assert_eq!(received.len() as u64 + lost, 1000);
    // 1,230.4 ns a packet: host 4 is dark for twice 60 us.
    assert!((95..=101).contains(&lost), "{lost}");
    let dark =
        |(at, _): &&(Time, u32)| (us(101)..us(160)).contains(at) || (us(361)..us(420)).contains(at);
    assert_eq!(received.iter().filter(dark).count(), 0);
}
