//! Aggregation's program in the user-space switch, on datagrams and on Ethernet frames.

use std::sync::Arc;

use rackweave_aggregation::switch::Config;
use rackweave_aggregation::system::Reduce;
use rackweave_core::{Destination, DropReason, HostId, Rate, Span, Time};
use rackweave_orca::system::Orca;
use rackweave_switch::Fabric;
use rackweave_switch::config::{FabricConfig, Fault, FaultKind, FaultPlace, SwitchConfig};
use rackweave_wire::frame::{host_at, ip_address};
use rackweave_wire::reduce::{
    Body, Header, KEY_BYTES, KIND, Open, Operator, PORT, Pairs, Rule, SUM_BYTES, decode, encode,
};
use rackweave_wire::{Id64, overlay};

use super::checksum;
use super::core::{Core, CoreConfig};
use super::frame::{
    Encapsulation, Rules, finish_datagram, finish_frame, read_datagram, read_frame,
};

type Systems = (Option<Orca>, Option<Reduce>);

const MASTER: HostId = HostId(0);
const SWITCH: HostId = Destination::Switch(0).address();
const TOKEN: u64 = 0x1234_5678_9abc_def0;

/// A packet that a host has received: who gets it, from whom, the message and its payload.
type Got = (HostId, HostId, Body, Vec<u8>);

struct Bench {
    core: Core<Systems>,
    rules: Rules<Systems>,
    encapsulation: Encapsulation,
    /// The lower half of the instance of the reservation.
    reservation: u16,
}

impl Bench {
    fn new(encapsulation: Encapsulation, reduce: Option<Reduce>, faults: Vec<Fault>) -> Self {
        let system: Arc<Systems> = Arc::new((Some(Orca::default()), reduce));
        let rules = Rules { hosts: 4, switches: 1, mtu: 1500, system: Arc::clone(&system) };
        let fabric = FabricConfig::single_switch(4, Rate::from_gbps(1))
            .with_link_delay(Span::from_us(1))
            .without_host_delays()
            .with_switch(SwitchConfig::unlimited());
        let core = CoreConfig {
            fabric: Fabric::new(&fabric).unwrap(),
            faults,
            moves: Vec::new(),
            seed: 1,
            run: 0,
            frames: 10,
            nic_queue_bytes: u64::MAX,
            sample_every: Span::ZERO,
            system,
            encapsulation,
            mtu: 1500,
        };
        Self { core: core.build().unwrap(), rules, encapsulation, reservation: 0 }
    }

    /// Passes a message to the switch, and returns its bytes.
    fn put(&mut self, src: HostId, dst: HostId, body: Body, worker: u8, payload: &[u8]) -> Vec<u8> {
        let header = Header { job: 3, attempt: 0, worker, token: Id64::new(TOKEN), body };
        let mut message = Vec::new();
        encode(&header, &mut message);
        message.extend_from_slice(payload);
        let (bytes, read) = if self.encapsulation == Encapsulation::Overlay {
            let mut bytes = Vec::new();
            overlay::encode_group(KIND, src, dst, message.len() as u16, &mut bytes);
            bytes.extend_from_slice(&message);
            let read = read_datagram(&bytes, 0, src, &self.rules);
            (bytes, read)
        } else {
            let bytes = ethernet(src, dst, &message);
            let read = read_frame(&bytes, src, &self.rules);
            (bytes, read)
        };
        let slot = self.core.payloads().insert(&bytes).unwrap();
        let packet = read.unwrap().map(|carried| carried.with_slot(slot));
        self.core.arrive(self.core.now(), src, packet);
        self.core.run(self.core.now() + Span::from_us(100));
        message
    }

    fn send(
        &mut self,
        src: HostId,
        dst: HostId,
        body: Body,
        worker: u8,
        payload: &[u8],
    ) -> Vec<Got> {
        self.put(src, dst, body, worker, payload);
        let mut got = Vec::new();
        while let Some(departure) = self.core.departure() {
            let (host, packet) = (departure.host, departure.packet);
            let (from, message) = if self.encapsulation == Encapsulation::Overlay {
                let (_, bytes) = finish_datagram(self.core.payloads(), &packet, host);
                let envelope = overlay::decode_group(bytes).unwrap();
                assert_eq!((envelope.dst, envelope.kind), (host, overlay::Kind::Group(KIND)));
                (envelope.src, bytes[overlay::BYTES as usize..].to_vec())
            } else {
                let len = finish_frame(self.core.payloads(), &packet, host);
                let bytes = &self.core.payloads().get(packet.header.slot)[..len];
                checksum::assert_right(bytes);
                let address = |at: usize| host_at(bytes[at..at + 4].try_into().unwrap()).unwrap();
                assert_eq!(address(30), host);
                // The port to which hosts answer.
                assert_eq!(bytes[34..38], [PORT.to_be_bytes(), PORT.to_be_bytes()].concat());
                (address(26), bytes[42..].to_vec())
            };
            self.core.payloads().release(packet.header.slot);
            let decoded = decode(&message).unwrap();
            got.push((host, from, decoded.header.body, message[decoded.payload].to_vec()));
        }
        assert_eq!(self.core.payloads().live(), 0);
        got
    }

    /// Sends a message between hosts, and returns whether it arrives unchanged; `None` if it does not arrive.
    fn send_raw(&mut self, src: HostId, dst: HostId, body: Body, payload: &[u8]) -> Option<bool> {
        let message = self.put(src, dst, body, 0, payload);
        let departure = self.core.departure()?;
        let front = match self.encapsulation {
            Encapsulation::Overlay => overlay::BYTES as usize,
            Encapsulation::Ethernet => 42,
        };
        let slot = departure.packet.header.slot;
        let same = self.core.payloads().get(slot)[front..front + message.len()] == message;
        self.core.payloads().release(slot);
        Some(same)
    }

    /// Reserves 16 slots for workers at hosts 1 and 2.
    fn open(&mut self) {
        let open = |cookie| {
            Body::Open(Open {
                cookie,
                slots: 16,
                first_epoch: 0,
                window: 16,
                copies: 1,
                operator: Operator::Sum,
                workers: 2,
                rule: Rule::Exact,
            })
        };
        let workers = [0, 0, 0, 1, 0, 0, 0, 2];
        let got = self.send(MASTER, SWITCH, open(Id64::new(0)), 0, &workers);
        let [(MASTER, SWITCH, Body::Challenge { cookie, .. }, _)] = got[..] else {
            panic!("{got:?}");
        };
        let got = self.send(MASTER, SWITCH, open(cookie), 0, &workers);
        let [(MASTER, SWITCH, Body::Opened { slots: 16, instance }, _)] = got[..] else {
            panic!("{got:?}");
        };
        self.reservation = instance as u16;
    }
}

fn ethernet(src: HostId, dst: HostId, message: &[u8]) -> Vec<u8> {
    let total = (28 + message.len()) as u16;
    let mut bytes = vec![0; 42];
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14] = 0x45;
    bytes[16..18].copy_from_slice(&total.to_be_bytes());
    bytes[22..24].copy_from_slice(&[64, 17]);
    bytes[26..30].copy_from_slice(&ip_address(src).unwrap());
    bytes[30..34].copy_from_slice(&ip_address(dst).unwrap());
    bytes[34..36].copy_from_slice(&PORT.to_be_bytes());
    bytes[36..38].copy_from_slice(&PORT.to_be_bytes());
    bytes[38..40].copy_from_slice(&(total - 20).to_be_bytes());
    bytes.extend_from_slice(message);
    checksum::fill(&mut bytes);
    // Ethernet's least length, with bytes that are no part of the packet.
    bytes.resize(bytes.len().max(60), 0xee);
    bytes
}

fn pairs(words: &[(&str, u32)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (word, value) in words {
        let mut key = [0; KEY_BYTES];
        key[..word.len()].copy_from_slice(word.as_bytes());
        bytes.extend_from_slice(&key);
        bytes.extend_from_slice(&value.to_be_bytes());
    }
    bytes
}

const fn data(seq: u32, count: u8) -> Body {
    Body::Data(Pairs { seq, epoch: 0, count })
}

fn reduce(slots: u32) -> Option<Reduce> {
    Some(Reduce { config: Config::new(slots, 77), switches: Vec::new() })
}

const WAYS: [Encapsulation; 2] = [Encapsulation::Overlay, Encapsulation::Ethernet];

#[test]
fn pairs_are_added_up_once_and_fetched() {
    for encapsulation in WAYS {
        let mut bench = Bench::new(encapsulation, reduce(64), Vec::new());
        bench.open();
        let (one, other) = (HostId(1), HostId(2));
        let ack = |to, seq| vec![(to, SWITCH, Body::Ack { seq, marked: false }, Vec::new())];
        let first = pairs(&[("a", 3), ("b", 4)]);
        assert_eq!(bench.send(one, SWITCH, data(0, 2), 0, &first), ack(one, 0));
        assert_eq!(bench.send(one, SWITCH, data(0, 2), 0, &first), ack(one, 0), "a repetition");
        assert_eq!(bench.send(other, SWITCH, data(0, 1), 1, &pairs(&[("a", 5)])), ack(other, 0));
        let wrong = bench.send(HostId(3), SWITCH, data(1, 1), 1, &pairs(&[("a", 9)]));
        assert_eq!(wrong, [], "from no worker");
        let got = bench.send(
            MASTER,
            SWITCH,
            Body::Fetch { epoch: 0, reservation: bench.reservation, first: 0 },
            0,
            &[],
        );
        let [(MASTER, SWITCH, Body::Values { epoch: 0, first: 0, sums: 2 }, values)] = &got[..]
        else {
            panic!("{got:?}");
        };
        let mut sums: Vec<_> = values
            .chunks_exact(SUM_BYTES)
            .map(|sum| (sum[0], u64::from_be_bytes(sum[KEY_BYTES..].try_into().unwrap())))
            .collect();
        sums.sort_unstable();
        assert_eq!(sums, [(b'a', 8), (b'b', 4)]);
        let got = bench.send(
            MASTER,
            SWITCH,
            Body::Clear { epoch: 0, reservation: bench.reservation },
            0,
            &[],
        );
        assert_eq!(got, [(MASTER, SWITCH, Body::Cleared { epoch: 0 }, Vec::new())]);
    }
}

#[test]
fn what_finds_no_slot_goes_to_the_master_in_the_workers_name() {
    for encapsulation in WAYS {
        let mut bench = Bench::new(encapsulation, reduce(64), Vec::new());
        bench.open();
        let words: Vec<String> = (0..40).map(|number| format!("w{number}")).collect();
        let words: Vec<_> = words.iter().map(|word| (word.as_str(), 1)).collect();
        let got = bench.send(HostId(2), SWITCH, data(5, 40), 1, &pairs(&words));
        let [(MASTER, HostId(2), Body::Residual(Pairs { seq: 5, epoch: 0, count }), rest)] =
            &got[..]
        else {
            panic!("{got:?}");
        };
        assert_eq!((*count, rest.len()), (24, 24 * 20), "16 slots");
        let again = bench.send(HostId(2), SWITCH, data(5, 40), 1, &pairs(&words));
        assert_eq!(again, got, "a repetition has the same rest");
        // Other messages between hosts pass by.
        let fin = Body::Fin { seq: 6, epoch: 0, long_bytes: 0, pairs: 40 };
        let got = bench.send(HostId(2), MASTER, fin, 1, &[]);
        assert_eq!(got, [(MASTER, HostId(2), fin, Vec::new())]);
    }
}

#[test]
fn what_a_link_damages_is_lost_because_nothing_else_would_find_it() {
    let kind = FaultKind::Corruption(0.3);
    let place = FaultPlace::AllLinks;
    let fault = Fault { from: Time::ZERO, until: Time::MAX, place, kind };
    for encapsulation in WAYS {
        // Also where the switch does not know the system: then its packets may have no check.
        for reduce in [reduce(64), None] {
            let is_known = reduce.is_some();
            let mut bench = Bench::new(encapsulation, reduce, vec![fault]);
            let (mut sent, mut whole) = (0, 0);
            let text = pairs(&[("word", 7)]);
            for seq in 0..300 {
                let residual = Body::Residual(Pairs { seq, epoch: 0, count: 1 });
                let got = bench.send_raw(HostId(1), MASTER, residual, &text);
                sent += 1;
                whole += u32::from(got == Some(true));
                // A frame of a system that the switch does not know has UDP's checksum, which the receiver's kernel verifies.
                let may_pass = !is_known && encapsulation == Encapsulation::Ethernet;
                assert!(got != Some(false) || may_pass, "{encapsulation:?} {is_known}");
            }
            assert!((100..250).contains(&whole), "{whole} of {sent}");
            let lost = bench.core.counters().drops[DropReason::Corrupted as usize];
            assert_eq!(lost > 50, is_known || encapsulation == Encapsulation::Overlay, "{lost}");
        }
    }
}
