//! All-reduce: workers, a master with an aggregator, and the program of a switch.

use rackweave_aggregation::packet::Header;
use rackweave_aggregation::switch::{self, Program};
use rackweave_aggregation::vector::layout::Layout;
use rackweave_aggregation::vector::master::{self, Master, Vectors};
use rackweave_aggregation::vector::node::{Aggregator, VectorNode, WorkerSide};
use rackweave_aggregation::vector::values::Values;
use rackweave_aggregation::vector::worker::{self, Event};
use rackweave_core::{HostId, Packet, Span, Time};
use rackweave_wire::reduce::Format;

use crate::input::Input;
use crate::mesh::Mesh;
use crate::node::{Laden, Place};
use crate::reduce::{JOB, SWITCH, TOKEN, changed, forged};

const MASTER: HostId = HostId(0);
const WORKERS: u8 = 3;

/// A host, and the vectors that its worker adds.
struct Host {
    node: VectorNode,
    vectors: Vectors,
    /// Whether the sums must be right: no packet was forged.
    honest: bool,
    open: Option<Open>,
}

/// An open job.
#[derive(Clone, Copy)]
struct Open {
    /// The number of vectors.
    count: u32,
    /// Whether the last worker has another last vector.
    is_odd: bool,
}

impl Open {
    /// The vectors of a step.
    fn vectors(step: u32) -> Vectors {
        let format = if step.is_multiple_of(2) { Format::BlockFloat } else { Format::I64 };
        let length = [40, 1, 200][step as usize % 3];
        Vectors {
            elements: if format == Format::I64 { 8 } else { 16 },
            ..Vectors::new(length, format)
        }
    }

    fn is_odd(self, worker: u8, step: u32) -> bool {
        self.is_odd && worker + 1 == WORKERS && step + 1 == self.count
    }
}

impl rackweave_core::Node for Host {
    type Header = Header;
    type Event = core::convert::Infallible;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, port: u8, packet: &Packet<Header>) {
        self.node.handle_packet(now, port, packet);
    }

    fn handle_timeout(&mut self, now: Time) {
        self.node.handle_timeout(now);
    }

    fn poll_transmit(&mut self, now: Time, port: u8) -> Option<Packet<Header>> {
        self.node.poll_transmit(now, port)
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.node.poll_timeout()
    }

    fn poll_event(&mut self) -> Option<Self::Event> {
        None
    }
}

impl Laden for Host {
    fn receive(&mut self, now: Time, packet: &Packet<Header>, payload: &[u8]) {
        self.node.receive(now, packet.src, &packet.header.message, payload);
    }

    fn payload(&self) -> &[u8] {
        self.node.payload()
    }

    fn work(&mut self, _now: Time) {
        if let Some(master) = self.node.master_mut() {
            while master.poll_event().is_some() {}
        }
        let (vectors, honest, open) = (self.vectors, self.honest, self.open);
        let Some(side) = self.node.worker_mut() else { return };
        let number = side.machine().config().number;
        while let Some(event) = side.poll_event() {
            match (event, open) {
                (Event::Wanted { step }, Some(open)) if step >= open.count => side.release(),
                (Event::Wanted { step }, Some(open)) => {
                    let vector = vector(&Open::vectors(step), number, step);
                    side.offer_as(step, vector, open.is_odd(number, step).into());
                }
                (Event::Summed { step }, Some(open)) if honest => {
                    assert!(!open.is_odd(WORKERS - 1, step), "vectors that differ are added up");
                    assert_sum(side, &Open::vectors(step), step);
                }
                (Event::Wanted { step }, None) => side.offer(step, vector(&vectors, number, step)),
                (Event::Summed { step }, None) if honest => assert_sum(side, &vectors, step),
                _ => {}
            }
        }
    }
}

fn assert_sum(side: &WorkerSide, vectors: &Vectors, step: u32) {
    let all = [0, 1, 2].map(|worker| vector(vectors, worker, step));
    let sum = Values::sum(&all.each_ref(), vectors.elements);
    assert!(sum.is_some_and(|sum| side.sums().is_same(&sum)), "step {step}");
}

fn vector(vectors: &Vectors, worker: u8, step: u32) -> Values {
    let seed = (u64::from(step) * 256 + u64::from(worker) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let element = |n: u64| seed.rotate_left(n as u32 % 64).wrapping_mul(2 * n + 1);
    match vectors.format {
        Format::I64 => Values::Integers((0..vectors.length).map(|n| element(n) as i64).collect()),
        Format::BlockFloat => {
            let float = |n| (element(n) >> 40) as f32 * 2_f32.powi((element(n) % 40) as i32 - 20);
            Values::Floats((0..vectors.length).map(float).collect())
        }
    }
}

/// Any packets at the hosts and the switch of a job. If none is forged, each worker gets the exact sums.
///
/// # Panics
/// If it does not, or time stands still.
pub fn vectors(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let flags = input.u8();
    let (forges, has_switch) = (flags & 1 != 0, flags & 2 == 0);
    let vectors = Vectors {
        length: 1 + u64::from(input.u8()),
        format: if flags & 4 == 0 { Format::I64 } else { Format::BlockFloat },
        steps: 1 + u32::from(flags >> 4) % 3,
        elements: [16, 1, 5, 64][input.below(4)],
        pool: 1 + u16::from(input.u8() & 15),
    };
    let open = (flags & 8 != 0).then_some(Open { count: vectors.steps, is_odd: flags & 128 != 0 });
    let vectors = match open {
        // The slots of integers have room for floats too.
        Some(_) => Vectors { length: 0, format: Format::I64, steps: 0, elements: 8, ..vectors },
        None => vectors,
    };
    let mut config = master::Config::new(JOB, WORKERS, vectors, TOKEN, 1);
    config.aggregators = if has_switch { vec![SWITCH, MASTER] } else { vec![MASTER] };
    let Vectors { length, format, steps, elements, pool } = vectors;
    let layout = Layout { length, elements, pool, format, steps, workers: WORKERS };
    let aggregator = Aggregator::new(MASTER, Aggregator::limits(&layout, 3), 512);
    let master = VectorNode::new(MASTER)
        .with_master(Master::new(config, Time::ZERO))
        .with_aggregator(aggregator);
    let host = |node| Host { node, vectors, honest: !forges, open };
    let worker = |number: u8, life, now| {
        let config = worker::Config::new(JOB, number, MASTER, life);
        let config = worker::Config { length, format, ..config };
        let id = u32::from(number) + 1;
        let node = VectorNode::new(HostId(id)).with_worker(WorkerSide::new(config, now));
        Place::host(id, host(node))
    };
    let mut stations = vec![Place::host(0, host(master))];
    stations.extend((0..WORKERS).map(|number| worker(number, 1, Time::ZERO)));
    let mut switch_config = switch::Config::new(64 + 8 * u32::from(input.u8()), 2);
    stations.push(Place::switch(SWITCH, Program::at(SWITCH, switch_config)));
    let mut mesh = Mesh::new(Time::ZERO, stations);
    let mut life = 1;
    for _ in 0..400 {
        if input.is_empty() {
            break;
        }
        let op = input.u8();
        match op & 15 {
            0 => {
                let number = (op >> 4) % WORKERS;
                life += 1;
                mesh.stations[usize::from(number) + 1] = worker(number, life, mesh.now);
            }
            1 => {
                switch_config.secret += 1;
                let program = Program::at(SWITCH, switch_config);
                mesh.stations[usize::from(WORKERS) + 1] = Place::switch(SWITCH, program);
            }
            2..5 if forges => {
                if let Some(packet) = forged(&mut input, u32::from(WORKERS)) {
                    mesh.deliver(&packet);
                }
            }
            5 | 6 if forges && !mesh.flights.is_empty() => {
                let packet = &mesh.flights[input.below(mesh.flights.len())];
                if let Some(packet) = changed(&mut input, packet) {
                    mesh.deliver(&packet);
                }
            }
            _ => mesh.step(&mut input),
        }
        mesh.pump();
    }
    let is_over = |all: &[Place<Host, Program>]| {
        all[0].node().and_then(|host| host.node.master()).is_some_and(Master::is_over)
    };
    let rounds = if forges { 300 } else { 20_000 };
    let is_over = mesh.finish(Span::from_secs(600), rounds, is_over);
    assert!(forges || is_over, "the job has not ended");
}
