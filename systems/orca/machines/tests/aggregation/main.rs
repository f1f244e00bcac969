//! Two group systems on the same switches of the simulator; one makes packets of its own.

mod sum;

use std::collections::BTreeMap;
use std::sync::Arc;

use rackweave_core::{
    Header, HostId, Packet, PayloadStore, Port, Slice, Span, SwitchProgram, Time, Verdict,
};
use rackweave_orca::system::Orca;
use rackweave_orca::view::{Made, View};
use rackweave_switch::net::{HasPayload, PayloadId, Slab};
use rackweave_switch::system::{Either, Makeable, Simulated, System, SystemProgram, Visible};
use rackweave_switch::{Net, NetConfig};
use rackweave_wire::orca;

use self::sum::{COUNTERS, Content, Got, HEADER_BYTES, Sum};

/// The header of every packet in the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Typed {
    Orca(orca::Header),
    Sum(sum::Header, Option<PayloadId>),
}

impl Header for Typed {
    fn payload(&self) -> Option<Slice> {
        None
    }
}

impl HasPayload for Typed {
    fn payload_id(&self) -> Option<PayloadId> {
        match self {
            Self::Orca(_) => None,
            Self::Sum(_, id) => *id,
        }
    }

    fn with_payload(self, id: PayloadId) -> Self {
        match self {
            Self::Orca(_) => self,
            Self::Sum(header, _) => Self::Sum(header, Some(id)),
        }
    }
}

impl Visible<Either<View, sum::Header>> for Typed {
    fn view(&self) -> Option<Either<View, sum::Header>> {
        Some(match self {
            Self::Orca(header) => Either::First(View::of(header)),
            Self::Sum(header, _) => Either::Second(*header),
        })
    }
}

/// The bytes of the IP, UDP and system headers.
const FRONT_BYTES: u32 = 28 + HEADER_BYTES as u32;

impl Makeable<Either<Made, sum::Header>> for Typed {
    const PORT: u16 = sum::PORT;

    fn make(header: Either<Made, sum::Header>) -> (Self, u32) {
        match header {
            Either::First(header) => match header {},
            Either::Second(header) => (Self::Sum(header, None), FRONT_BYTES),
        }
    }
}

/// The header in a fabric that runs only this system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Single(sum::Header, Option<PayloadId>);

impl Header for Single {
    fn payload(&self) -> Option<Slice> {
        None
    }
}

impl HasPayload for Single {
    fn payload_id(&self) -> Option<PayloadId> {
        self.1
    }

    fn with_payload(self, id: PayloadId) -> Self {
        Self(self.0, Some(id))
    }
}

impl Visible<sum::Header> for Single {
    fn view(&self) -> Option<sum::Header> {
        Some(self.0)
    }
}

impl Makeable<sum::Header> for Single {
    const PORT: u16 = sum::PORT;

    fn make(header: sum::Header) -> (Self, u32) {
        (Self(header, None), FRONT_BYTES)
    }
}

type Systems = (Option<Orca>, Sum);
type Network = Net<Simulated<<Systems as System>::Program, Typed>, Slab>;

fn run() -> (Vec<Got>, Network) {
    let fabric = Arc::new(sum::fabric());
    let system: Systems = (Some(Orca::default()), sum::system());
    let mut programs = system.programs(&fabric).unwrap().into_iter();
    let config = NetConfig::new(fabric, 1, 0);
    let program = |_| Simulated::new(programs.next().unwrap());
    let mut net: Network = Net::new(config, Slab::new(10), program);
    let mut got = Vec::new();
    for (src, dst, content) in sum::script() {
        let (header, bytes) = match content {
            Content::Orca(header) => (Typed::Orca(header), 0),
            Content::Sum(header, payload) => {
                let id = net.payloads().insert(&payload).unwrap();
                (Typed::Sum(header, Some(id)), payload.len() as u32)
            }
        };
        let packet = Packet::new(src, dst, FRONT_BYTES + bytes, header);
        net.arrive(net.now(), src, packet);
        net.run(net.now() + Span::from_us(100));
        while let Some(departure) = net.departure() {
            let packet = departure.packet;
            let content = match packet.header {
                Typed::Orca(header) => Content::Orca(header),
                Typed::Sum(header, _) => {
                    Content::Sum(header, net.payloads().read(&packet).to_vec())
                }
            };
            net.payloads().release(&packet);
            got.push(Got { host: departure.host, src: packet.src, content });
        }
    }
    assert_eq!((net.packets(), net.payloads().live()), (0, 0), "nothing is left behind");
    got.sort_by_key(|got| got.host);
    (got, net)
}

#[test]
fn a_leaf_switch_sums_up_and_orca_runs_beside_it() {
    let (got, net) = run();
    assert_eq!(got, sum::expected());
    let mut counters = BTreeMap::new();
    for switch in 0..4 {
        for (name, count) in net.program(switch).program().counters() {
            *counters.entry(name).or_insert(0) += count;
        }
    }
    assert_eq!(counters, BTreeMap::from(COUNTERS));
    assert_eq!((net.counters().made, net.program(0).dropped()), (12, 0));
}

#[test]
fn a_packet_without_room_for_its_payload_is_dropped_and_counted() {
    let system = Sum { workers: 1, ..sum::system() };
    let program = system.programs(&sum::fabric()).unwrap().swap_remove(0);
    let mut program = Simulated::<_, Single>::new(program);
    // The vector takes the only slot.
    let mut payloads = Slab::new(1);
    let id = payloads.insert(&[0; 8 * sum::WORDS]).unwrap();
    let header = sum::Header { kind: sum::Kind::Add, round: 0, worker: 0 };
    let mut packet = Packet::new(HostId(1), sum::LEAF, 100, Single(header, Some(id)));
    let verdict = program.handle_packet(Time::ZERO, Port(1), &mut packet, &mut payloads);
    assert_eq!(verdict, Verdict::Consume);
    let (_, ack) = program.poll_transmit(Time::ZERO, &mut payloads).unwrap();
    assert_eq!((ack.src, ack.dst, ack.priority), (sum::LEAF, HostId(1), 7));
    assert_eq!(program.poll_transmit(Time::ZERO, &mut payloads), None);
    assert_eq!((program.dropped(), payloads.live()), (1, 1));
}

#[test]
fn without_a_payload_store_packets_are_headers() {
    let system = Sum { workers: 1, words: 0, ..sum::system() };
    let program = system.programs(&sum::fabric()).unwrap().swap_remove(0);
    let mut program = Simulated::<_, Single>::new(program);
    let header = sum::Header { kind: sum::Kind::Add, round: 0, worker: 0 };
    let mut packet = Packet::new(HostId(1), sum::LEAF, 100, Single(header, None));
    let verdict = program.handle_packet(Time::ZERO, Port(1), &mut packet, &mut ());
    assert_eq!(verdict, Verdict::Consume);
    let made = std::iter::from_fn(|| program.poll_transmit(Time::ZERO, &mut ()));
    let kinds: Vec<_> = made.map(|(_, packet)| packet.header.0.kind).collect();
    assert_eq!(kinds, [sum::Kind::Ack, sum::Kind::Sum]);
}

#[test]
fn two_systems_with_one_protocol_are_refused() {
    let both = (sum::system(), sum::system());
    let error = both.programs(&sum::fabric()).unwrap_err();
    assert_eq!(error.to_string(), "two systems share the protocol 9 or the port 7009");
}
