//! A controller that changes circuits while other nodes send.

use std::collections::VecDeque;
use std::convert::Infallible;

use rackweave_core::{DropReason, Header, Node, Packet, Rate, Slice, Span};
use rackweave_switch::ForwardOnly;

use super::*;
use crate::config::{
    BufferConfig, CircuitError, Dark, FabricConfig, Ocs, Pod, Routing, SwitchConfig, Topology, Tor,
};
use crate::model::{GroupNode, GroupsOnly};

#[derive(Clone, Copy, Debug)]
struct Number(u32);

impl Header for Number {
    fn payload(&self) -> Option<Slice> {
        None
    }
}

/// Sends numbered packets to a peer, and changes circuits by a plan.
#[derive(Debug)]
struct Station {
    me: HostId,
    peer: HostId,
    left: u32,
    received: Vec<(Time, u32)>,
    /// Circuits, each with the time from the answer to the previous ones.
    plan: VecDeque<(Span, Circuits)>,
    next: Option<Time>,
    request: Option<Circuits>,
    answers: Vec<(Time, Result<Time, CircuitError>)>,
}

impl Station {
    const fn new(me: u32, peer: u32, packets: u32) -> Self {
        Self {
            me: HostId(me),
            peer: HostId(peer),
            left: packets,
            received: Vec::new(),
            plan: VecDeque::new(),
            next: None,
            request: None,
            answers: Vec::new(),
        }
    }
}

impl Node for Station {
    type Header = Number;
    type Event = Infallible;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, _port: u8, packet: &Packet<Number>) {
        self.received.push((now, packet.header.0));
    }

    fn handle_timeout(&mut self, now: Time) {
        if self.next.is_some_and(|next| next <= now) {
            self.next = None;
            self.request = self.plan.pop_front().map(|(_, circuits)| circuits);
        }
    }

    fn poll_transmit(&mut self, _now: Time, _port: u8) -> Option<Packet<Number>> {
        self.left = self.left.checked_sub(1)?;
        Some(Packet::new(self.me, self.peer, 1500, Number(self.left)))
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.next
    }

    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }
}

impl GroupNode for Station {
    fn is_done(&self) -> bool {
        self.left == 0 && self.plan.is_empty() && self.request.is_none()
    }

    fn poll_circuits(&mut self) -> Option<Circuits> {
        self.request.take()
    }

    fn handle_circuits(&mut self, now: Time, result: Result<Time, CircuitError>) {
        let up = result.clone().unwrap_or(now);
        self.next = self.plan.front().map(|(wait, _)| up + *wait);
        self.answers.push((now, result));
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
    let config = FabricConfig {
        topology: Topology::Pod(Arc::new(pod)),
        host_link_delay: Span::from_ns(100),
        host_link_delays: Vec::new(),
        core_link_delay: Span::from_ns(100),
        host_send_delay: Span::ZERO,
        host_receive_delay: Span::ZERO,
        switch: SwitchConfig {
            latency: Span::ZERO,
            buffer: BufferConfig::PerPort { bytes: u64::MAX },
            ecn_threshold_bytes: None,
            priorities: true,
            trim: None,
            options: Default::default(),
            routing: Routing::Transport,
        },
    };
    Fabric::new(&config).unwrap()
}

fn world(measure: &MeasureConfig) -> World<'_, GroupsOnly<Station, ForwardOnly<Number>>> {
    // The controller is at host 0. Hosts 3 and 4 exchange their ToRs while host 5 sends to host 4.
    let mut controller = Station::new(0, 0, 0);
    controller.next = Some(Time::ZERO + Span::from_us(100));
    let wait = Span::from_us(100);
    controller.plan = VecDeque::from([
        (wait, servers([0, 0, 0, 1, 0, 1, 2, 2])),
        (wait, servers([0, 0, 0, 0, 0, 1, 2, 2])),
        (wait, servers([0, 0, 0, 0, 1, 1, 2, 2])),
        (wait, servers([0, 0, 0, 0, 1, 1, 2, 2])),
    ]);
    let mut nodes = vec![Attached::at(HostId(0), controller)];
    for (me, packets) in [(4, 0), (5, 1000), (3, 0)] {
        nodes.push(Attached::at(HostId(me), Station::new(me, 4, packets)));
    }
    World::new(Setup {
        seed: 1,
        run: 0,
        fabric: Arc::new(fabric()),
        host: None,
        streams: Vec::new(),
        transports: Box::new(|_| Vec::new()),
        nodes,
        programs: Box::new(|_| ForwardOnly::new()),
        faults: &[],
        moves: &[],
        measure,
        division: None,
    })
    .unwrap()
}

#[test]
fn a_node_changes_circuits_and_hears_when_they_are_up() {
    let measure = MeasureConfig {
        warmup: Span::ZERO,
        messages: u64::MAX,
        time_limit: Span::from_secs(1),
        ports_from: None,
        sample_every: Span::ZERO,
        verify: false,
        capture: Vec::new(),
        capture_limit: 0,
        traffic: Vec::new(),
        stop_load: false,
    };
    let mut world = world(&measure);
    assert_eq!(world.run_to_end(&Control::default()), End::AllDone);
    world.run_until(Time::ZERO + Span::from_ms(5));
    let us = |us: u64| Time::ZERO + Span::from_us(us);
    let answers = &world.node(0).answers;
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
    let received = &world.node(1).received;
    let lost = world.counters().drops[DropReason::Reconfiguration as usize];
    assert_eq!(received.len() as u64 + lost, 1000);
    // 1,230.4 ns a packet: host 4 is dark for twice 60 us.
    assert!((95..=101).contains(&lost), "{lost}");
    let dark =
        |(at, _): &&(Time, u32)| (us(101)..us(160)).contains(at) || (us(361)..us(420)).contains(at);
    assert_eq!(received.iter().filter(dark).count(), 0);
}
