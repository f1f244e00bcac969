//! Programs that read, combine and make payload, and packets that are addressed to switches.

use rackweave_core::{Destination, Egress};

use super::super::payload::{HasPayload, PayloadId, Slab};
use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Value(Option<PayloadId>);

impl Header for Value {
    fn payload(&self) -> Option<Slice> {
        None
    }
}

impl HasPayload for Value {
    fn payload_id(&self) -> Option<PayloadId> {
        self.0
    }

    fn with_payload(self, id: PayloadId) -> Self {
        Self(Some(id))
    }
}

const MASTER: HostId = HostId(0);

/// Sums the values of packets addressed to this switch, and sends the sum to the master after `wanted` of them.
#[derive(Clone, Debug)]
struct Adder {
    me: u32,
    wanted: u32,
    seen: u32,
    sum: Option<Packet<Value>>,
}

impl SwitchProgram for Adder {
    type Header = Value;

    fn handle_packet<S: PayloadStore<Value>>(
        &mut self,
        _now: Time,
        _port: Port,
        packet: &mut Packet<Value>,
        payloads: &mut S,
    ) -> Verdict {
        if Destination::from_address(packet.dst) != Destination::Switch(self.me) {
            return Verdict::Route;
        }
        if self.sum.is_none() {
            let header = payloads.make(Value(None), 8).unwrap();
            self.sum = Some(Packet::new(packet.src, MASTER, 100, header));
        }
        let sum = self.sum.as_ref().unwrap();
        let combined = payloads.combine(sum, packet, |sum, value| {
            let total = u64::from_be_bytes(sum.try_into().unwrap())
                + u64::from_be_bytes(value.try_into().unwrap());
            sum.copy_from_slice(&total.to_be_bytes());
        });
        assert!(combined);
        self.seen += 1;
        Verdict::Consume
    }

    fn poll_transmit<S: PayloadStore<Value>>(
        &mut self,
        _now: Time,
        payloads: &mut S,
    ) -> Option<(Egress, Packet<Value>)> {
        if self.seen < self.wanted {
            return None;
        }
        self.seen = 0;
        let sum = self.sum.take()?;
        // The lowest bit records that a switch has added.
        payloads.write(&sum)[0] |= 0x80;
        Some((Egress::Route, sum))
    }
}

#[test]
fn values_are_added_at_the_switch_that_they_are_addressed_to() {
    let topologies = [LEAF_SPINE, Topology::fat_tree(4, LINK)];
    for topology in topologies {
        let fabric = Arc::new(Fabric::new(&config(topology.clone())).unwrap());
        for target in 0..fabric.switches() {
            let hosts = fabric.hosts();
            let adder = |me| Adder { me, wanted: hosts - 1, seen: 0, sum: None };
            let config = NetConfig::new(Arc::clone(&fabric), 1, 0);
            let mut net = Net::new(config, Slab::new(64), adder);
            for host in 1..hosts {
                let id = net.payloads().insert(&u64::from(host).to_be_bytes()).unwrap();
                let dst = Destination::Switch(target).address();
                let packet = Packet::new(HostId(host), dst, 100, Value(Some(id)));
                net.arrive(Time::ZERO, HostId(host), packet);
            }
            net.run(LATER);
            let sum = net.departure().expect("the sum arrives").packet;
            let bytes = net.payloads().read(&sum).to_vec();
            let expected = u64::from(hosts * (hosts - 1) / 2) | 0x80 << 56;
            assert_eq!(bytes, expected.to_be_bytes(), "{topology:?}, switch {target}");
            PayloadStore::<Value>::release(net.payloads(), &sum);
            assert_eq!((net.departure(), net.payloads().live(), net.packets()), (None, 0, 0));
        }
    }
}

#[test]
fn a_switch_or_group_without_hosts_has_no_route() {
    let fabric = Arc::new(Fabric::new(&config(LEAF_SPINE)).unwrap());
    let switches = fabric.switches();
    let adder = |me| Adder { me, wanted: 1, seen: 0, sum: None };
    let mut net = Net::new(NetConfig::new(fabric, 1, 0), Slab::new(64), adder);
    for destination in [Destination::Switch(switches), Destination::Group(5)] {
        let packet = Packet::new(HostId(1), destination.address(), 100, Value(None));
        net.arrive(Time::ZERO, HostId(1), packet);
    }
    net.run(LATER);
    assert_eq!(net.counters().drops[DropReason::NoRoute as usize], 2);
    assert_eq!(net.packets(), 0);
}

#[test]
fn a_slab_reuses_buffers_and_keeps_its_limit() {
    let mut slab = Slab::new(2);
    let first = slab.insert(b"first").unwrap();
    let packet = Packet::new(HostId(0), HostId(1), 100, Value(Some(first)));
    let mut copy = packet;
    assert!(slab.duplicate(&mut copy));
    assert!(!slab.duplicate(&mut packet.clone()), "no room for a third");
    slab.write(&copy)[0] = b'F';
    assert_eq!((slab.read(&packet), slab.read(&copy)), (&b"first"[..], &b"First"[..]));
    assert!(!slab.combine(&packet, &packet, |_, _| panic!("the same payload twice")));
    slab.release(&packet);
    let made = packet.map(|header| slab.make(header, 3).unwrap());
    assert_eq!((slab.read(&made), slab.live()), (&[0; 3][..], 2));
}
