//! What work costs hosts and the switch process, and what packets cost that a program consumes, against arithmetic.

use std::convert::Infallible;

use rackweave_core::{
    Destination, Egress, Header, Node, Packet, PayloadStore, Port, Rate, Slice, Span,
    SwitchProgram, Verdict,
};

use super::*;
use crate::config::{Costs, FabricConfig, Processors, SwitchConfig, SwitchProcess};
use crate::model::{GroupNode, GroupsOnly};

const US: fn(u64) -> Span = Span::from_us;
const NS: fn(u64) -> Span = Span::from_ns;

/// A header that says how much work its packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Carries(u32);

impl Header for Carries {
    fn payload(&self) -> Option<Slice> {
        None
    }

    fn work(&self) -> u32 {
        self.0
    }
}

/// Sends one packet of 1000 bytes at the start, if it has one, and records when the last packet arrived.
#[derive(Clone, Copy, Debug)]
struct Peer {
    me: HostId,
    packet: Option<(HostId, u32)>,
    /// The work that it has done for its packet.
    prepared: u32,
    awaits: u32,
    arrived: Time,
}

impl Peer {
    fn at(me: u32, packet: Option<(HostId, u32)>, awaits: u32) -> Attached<Self> {
        let me = HostId(me);
        let prepared = packet.map_or(0, |(_, work)| work);
        Attached::at(me, Self { me, packet, prepared, awaits, arrived: Time::ZERO })
    }
}

impl Node for Peer {
    type Header = Carries;
    type Event = Infallible;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, _port: u8, _packet: &Packet<Carries>) {
        self.awaits -= 1;
        self.arrived = now;
    }

    fn handle_timeout(&mut self, _now: Time) {}

    fn poll_transmit(&mut self, _now: Time, _port: u8) -> Option<Packet<Carries>> {
        let (to, work) = self.packet.take()?;
        Some(Packet::new(self.me, to, 1000, Carries(work)))
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }
}

impl GroupNode for Peer {
    fn is_done(&self) -> bool {
        self.packet.is_none() && self.awaits == 0
    }

    fn poll_prepared_work(&mut self) -> u32 {
        std::mem::take(&mut self.prepared)
    }
}

/// Consumes what is addressed to it, and answers it with this much work, if with any.
#[derive(Clone, Copy, Debug)]
struct Absorbs {
    answers_with: Option<u32>,
    answer: Option<(HostId, u32)>,
}

impl SwitchProgram for Absorbs {
    type Header = Carries;

    fn handle_packet<S: PayloadStore<Carries>>(
        &mut self,
        _now: Time,
        _port: Port,
        packet: &mut Packet<Carries>,
        _payloads: &mut S,
    ) -> Verdict {
        if packet.dst != SWITCH {
            return Verdict::Route;
        }
        self.answer = self.answers_with.map(|work| (packet.src, work));
        Verdict::Consume
    }

    fn poll_transmit<S: PayloadStore<Carries>>(
        &mut self,
        _now: Time,
        _payloads: &mut S,
    ) -> Option<(Egress, Packet<Carries>)> {
        let (to, work) = self.answer.take()?;
        let packet = Packet::new(SWITCH, to, 1000, Carries(work));
        Some((Egress::Route, packet.with_instance(Packet::<Carries>::NODE_INSTANCE)))
    }
}

const SWITCH: HostId = Destination::Switch(0).address();

/// When the last packet arrived at each of two hosts, which end once all that they await has arrived.
fn arrivals(
    nodes: [(Option<(HostId, u32)>, u32); 2],
    answers_with: Option<u32>,
    host: Option<HostConfig>,
) -> [Time; 2] {
    let fabric = FabricConfig::single_switch(2, Rate::from_gbps(8))
        .with_link_delay(US(1))
        .without_host_delays()
        .with_switch(SwitchConfig::unlimited().with_buffer(100_000));
    let measure = MeasureConfig { sample_every: Span::ZERO, ..MeasureConfig::default() };
    let nodes = (0..).zip(nodes).map(|(host, (packet, awaits))| Peer::at(host, packet, awaits));
    let mut world = World::<GroupsOnly<Peer, Absorbs>>::new(Setup {
        host: host.map(Arc::new),
        nodes: nodes.collect(),
        ..Setup::new(3, Arc::new(Fabric::new(&fabric).unwrap()), &measure, move |_| Absorbs {
            answers_with,
            answer: None,
        })
    })
    .unwrap();
    assert_eq!(world.run_to_end(&Control::default()), End::AllDone);
    [world.node(0).arrived, world.node(1).arrived]
}

/// Serialisation of 1000 bytes and their framing at 8 Gbps.
const WIRE: Span = Span::from_ns(1038);

#[test]
fn each_unit_costs_its_sender_and_its_receiver_and_not_the_switch_process_that_it_passes() {
    let idle = Time::ZERO + (WIRE + US(1)) * 2;
    let costs = |packet, work| Costs { packet: NS(packet), work: NS(work), ..Costs::default() };
    let switch = SwitchProcess { costs: costs(400, 70), wake_cost: US(0), window: US(0) };
    let host = HostConfig {
        send: costs(100, 10),
        receive: costs(200, 20),
        switch: Some(switch),
        ..HostConfig::default()
    };
    for work in [0, 1, 50] {
        let sends = [(Some((HostId(1), work)), 0), (None, 1)];
        assert_eq!(arrivals(sends, None, None)[1], idle);
        let expected = idle + NS(100 + 200 + 400) + NS(10 + 20) * u64::from(work);
        assert_eq!(arrivals(sends, None, Some(host.clone()))[1], expected, "{work} work");
    }
}

#[test]
fn a_switch_that_adds_up_pays_for_what_it_consumes_and_its_answer_waits_for_that() {
    let sends = [(Some((SWITCH, 50)), 1), (None, 0)];
    let idle = Time::ZERO + (WIRE + US(1)) * 2;
    assert_eq!(arrivals(sends, Some(0), None)[0], idle);
    let costs = Costs { system_call: US(3), packet: US(2), work: NS(100), ..Costs::default() };
    let process = SwitchProcess { costs, wake_cost: US(0), window: US(0) };
    for processors in [Processors::PerDirection, Processors::Shared(1)] {
        let host = HostConfig { processors, switch: Some(process), ..HostConfig::default() };
        // A turn for what was consumed: half of a packet, and 50 units. Then one for the answer, which is there by then: half of a
        // packet. That the answer carries work is paid with what was consumed.
        let consumed = Time::ZERO + WIRE + US(1);
        let expected = consumed + US(3 + 1) + NS(50 * 100) + US(3 + 1);
        for sums in [0, 50] {
            assert_eq!(arrivals(sends, Some(sums), Some(host.clone()))[0], expected);
        }
    }
    // Bytes are halved likewise.
    let costs = Costs { byte: NS(10), ..Costs::default() };
    let process = SwitchProcess { costs, ..process };
    let host = HostConfig { switch: Some(process), ..HostConfig::default() };
    let expected = Time::ZERO + WIRE + US(1) + NS(1038 * 10);
    assert_eq!(arrivals(sends, Some(0), Some(host))[0], expected);
}

/// What was consumed without an answer delays the packets of others.
#[test]
fn a_packet_of_another_host_waits_for_what_was_consumed_before_it() {
    let costs = Costs { packet: US(2), work: NS(100), ..Costs::default() };
    let process = SwitchProcess { costs, wake_cost: US(0), window: US(0) };
    let host = HostConfig { switch: Some(process), ..HostConfig::default() };
    let sends = |work| [(Some((SWITCH, work)), 1), (Some((HostId(0), 7)), 0)];
    // Both packets reach the switch at the same time, and the second one is at its host soon after.
    let due = Time::ZERO + (WIRE + US(1)) * 2;
    let consumed = Time::ZERO + WIRE + US(1);
    assert_eq!(arrivals(sends(0), None, Some(host.clone()))[0], due + US(2));
    let expected = consumed + US(1) + NS(50 * 100) + US(2);
    assert_eq!(arrivals(sends(50), None, Some(host))[0], expected);
}
