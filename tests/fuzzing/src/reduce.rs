//! Aggregation of pairs: workers, a master and the program of a switch.

use std::collections::BTreeMap;

use rackweave_aggregation::master::{self, Aggregation};
use rackweave_aggregation::node::{MasterSide, ReduceNode, WorkerSide};
use rackweave_aggregation::packet::{Header, packet};
use rackweave_aggregation::source::{Order, Pairs};
use rackweave_aggregation::switch::{self, Program};
use rackweave_aggregation::worker;
use rackweave_core::{Destination, HostId, Packet, Span, Time};
use rackweave_wire::reduce::{self, Operator};

use crate::input::Input;
use crate::mesh::Mesh;
use crate::node::{Full, Laden, Place};

const MASTER: HostId = HostId(0);
pub(crate) const SWITCH: HostId = Destination::Switch(0).address();
pub(crate) const JOB: u16 = 7;
pub(crate) const TOKEN: u64 = 0x1234_5678_9abc;
const WORKERS: u8 = 3;
/// The address of a host that has no part in the job.
const STRANGER: u32 = 40;

impl Laden for ReduceNode {
    fn receive(&mut self, now: Time, packet: &Packet<Header>, payload: &[u8]) {
        Self::receive(self, now, packet, payload);
    }

    fn payload(&self) -> &[u8] {
        Self::payload(self)
    }

    fn work(&mut self, _now: Time) {
        for master in self.masters_mut() {
            while master.poll_event().is_some() {}
        }
    }
}

/// Words of a worker: some are in all workers, some are longer than a slot.
fn words(worker: u8, count: u8) -> impl Iterator<Item = (Vec<u8>, u64)> {
    (0..count).map(move |n| {
        let text = match n % 5 {
            0 => format!("word {n}"),
            1 => format!("a long word that fits no slot, with number {n}"),
            _ => format!("{worker}/{n}"),
        };
        let value = if n % 7 == 3 { 1 << 40 } else { u64::from(n) + 1 };
        (text.into_bytes(), value)
    })
}

/// A job, and how many of its workers have had several lives.
struct Job {
    count: u8,
    operator: Operator,
    lives: u32,
}

impl Job {
    fn worker(&mut self, number: u8, now: Time) -> ReduceNode {
        self.lives += 1;
        let mut pairs = Pairs::new(self.operator);
        for (word, value) in words(number, self.count) {
            pairs.add(&word, value);
        }
        let config = worker::Config::new(JOB, number, MASTER, self.lives);
        let mut node = ReduceNode::new(HostId(u32::from(number) + 1));
        node.add_worker(WorkerSide::new(config, pairs, Order::Hash, now));
        node
    }

    /// The result by definition.
    fn expected(&self) -> Vec<(Box<[u8]>, u64)> {
        let mut result: BTreeMap<Box<[u8]>, u64> = BTreeMap::new();
        for (word, value) in (0..WORKERS).flat_map(|number| words(number, self.count)) {
            let value = if self.operator == Operator::Count { 1 } else { value };
            let combined = result.entry(word.into()).or_insert(match self.operator {
                Operator::Min => u64::MAX,
                _ => 0,
            });
            *combined = match self.operator {
                Operator::Min => value.min(*combined),
                Operator::Max => value.max(*combined),
                Operator::Sum | Operator::Count => value + *combined,
            };
        }
        result.into_iter().collect()
    }
}

/// Any packets at the hosts and the switch of a job. If none is forged, the job ends with the exact result.
///
/// # Panics
/// If it does not, or time stands still.
pub fn reduce(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let flags = input.u8();
    let (forges, has_switch) = (flags & 1 != 0, flags & 2 == 0);
    let operators = [Operator::Sum, Operator::Min, Operator::Max, Operator::Count];
    let operator = operators[usize::from(flags >> 4) % 4];
    let mut job = Job { count: input.u8(), operator, lives: 0 };
    let slots = 1 + u32::from(input.u8());
    let mut config = master::Config::new(JOB, MASTER, WORKERS, TOKEN, 1);
    config.aggregation = has_switch.then(|| Aggregation::new(SWITCH, slots));
    (config.operator, config.window) = (operator, 1 + u16::from(input.u8() & 63));
    let mut master = ReduceNode::new(MASTER);
    master.add_master(MasterSide::new(config, Time::ZERO));
    let mut stations = vec![Place::host(0, master)];
    stations.extend((0..WORKERS).map(|n| Place::host(u32::from(n) + 1, job.worker(n, Time::ZERO))));
    let mut switch_config = switch::Config::new(slots, 2);
    stations.push(Place::switch(SWITCH, Program::at(SWITCH, switch_config)));
    let mut mesh = Mesh::new(Time::ZERO, stations);
    for _ in 0..400 {
        if input.is_empty() {
            break;
        }
        let op = input.u8();
        match op & 15 {
            0 => {
                let number = (op >> 4) % WORKERS;
                let node = job.worker(number, mesh.now);
                mesh.stations[usize::from(number) + 1] = Place::host(u32::from(number) + 1, node);
            }
            1 => {
                switch_config.secret += 1;
                let program = Program::at(SWITCH, switch_config);
                mesh.stations[usize::from(WORKERS) + 1] = Place::switch(SWITCH, program);
            }
            2 if forges => {
                let master = mesh.stations[0].node_mut().map(|node| &mut node.masters_mut()[0]);
                match (master, op >> 4) {
                    (Some(master), 0..8) => master.machine_mut().quiesce(),
                    (Some(master), _) => master.machine_mut().resume(),
                    (None, _) => {}
                }
            }
            3..6 if forges => {
                if let Some(packet) = forged(&mut input, u32::from(WORKERS)) {
                    mesh.deliver(&packet);
                }
            }
            6 | 7 if forges && !mesh.flights.is_empty() => {
                let packet = &mesh.flights[input.below(mesh.flights.len())];
                if let Some(packet) = changed(&mut input, packet) {
                    mesh.deliver(&packet);
                }
            }
            _ => mesh.step(&mut input),
        }
        mesh.pump();
        if let Place::Switch(switch) = &mesh.stations[usize::from(WORKERS) + 1] {
            assert!(switch.program.program().used() <= slots);
        }
    }
    let rounds = if forges { 300 } else { 20_000 };
    let over = |all: &[Place<ReduceNode, Program>]| all[0].node().is_some_and(ReduceNode::is_done);
    let is_over = mesh.finish(Span::from_secs(600), rounds, over);
    if forges {
        return;
    }
    let master = &mesh.stations[0].node().expect("the master's host").masters()[0];
    // A job whose workers or switch were silent for too long fails, and says so.
    if master.progress().outcome == Some(Ok(())) {
        assert_eq!(master.totals().clone().into_sorted(), job.expected());
    } else {
        assert!(is_over, "the job has not ended: {:?}", master.progress());
    }
}

/// A message as it may come from the wire, with the job's token if the fuzzer wants it.
pub(crate) fn forged(input: &mut Input<'_>, workers: u32) -> Option<Full<Header>> {
    let (from, to) = (input.u8(), input.u8());
    let bytes = input.block();
    let address = |number: u8| match u32::from(number) % (workers + 3) {
        number if number == workers + 1 => SWITCH,
        number if number == workers + 2 => HostId(STRANGER),
        number => HostId(number),
    };
    let read = reduce::decode(bytes).ok()?;
    let mut header = read.header;
    if from & 128 == 0 {
        (header.job, header.token) = (JOB, rackweave_wire::Id64::new(TOKEN));
    }
    let packet = packet(address(from & 127), address(to), header);
    Some((packet, bytes[read.payload].to_vec()))
}

/// A message with one changed byte.
pub(crate) fn changed(input: &mut Input<'_>, of: &Full<Header>) -> Option<Full<Header>> {
    let mut bytes = Vec::new();
    reduce::encode(&of.0.header.message, &mut bytes);
    bytes.extend_from_slice(&of.1);
    let at = usize::from(input.u16()) % bytes.len();
    bytes[at] = input.u8();
    let read = reduce::decode(&bytes).ok()?;
    Some((packet(of.0.src, of.0.dst, read.header), bytes[read.payload].to_vec()))
}
