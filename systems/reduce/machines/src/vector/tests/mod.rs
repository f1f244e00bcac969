//! The machines and the program together, on a network that loses, repeats and reorders.

mod chaos;
mod commit;
mod faults;
mod hostile;
mod open;
mod starved;
mod whole;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rackweave_core::{
    Destination, HostId, Node, Packet, PayloadStore, Port, Rng, Schedule, Span, SwitchProgram,
    Time, Verdict,
};
use rackweave_switch::net::{HasPayload, Slab};
use rackweave_switch::system::Simulated;
use rackweave_wire::reduce::Format;

use super::layout::Layout;
use super::master::{self, Master, Vectors};
use super::node::{Aggregator, VectorNode, WorkerSide};
use super::values::Values;
use super::worker::{self, Event};
use crate::Failure;
use crate::packet::Header;
use crate::switch::{self, Program};

const MASTER: HostId = HostId(0);
const SWITCH: HostId = Destination::Switch(0).address();
const JOB: u16 = 7;
const TOKEN: u64 = 0x1234_5678_9abc;

/// What the network does to packets.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    loss: f64,
    repeat: f64,
    /// The longest additional delay, which reorders.
    delay: Span,
}

#[derive(Debug)]
enum Flight {
    Packet(Packet<Header>, Vec<u8>),
    Act(Act),
}

/// How hosts run whose processors others take.
#[derive(Clone, Copy, Debug)]
struct Turns {
    /// The time between two turns of a host. Those of different hosts are at different times.
    interval: Span,
    /// The most packets that a host handles in a turn.
    handled: usize,
    /// The number of packets for which a host's socket has room.
    room: usize,
}

/// What happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// The worker of this number disappears.
    Kill(u8),
    /// It returns without memory.
    Return(u8),
    /// The switch loses its memory.
    RestartSwitch,
    /// The switch no longer answers.
    KillSwitch,
    /// The result of the worker of this instance is whole.
    Prepare(u8, u32),
    /// It gets its name.
    Name(u8, u32),
}

/// How workers write results.
#[derive(Clone, Copy, Debug)]
struct Results {
    /// The longest time to prepare one, and to give it its name.
    within: Span,
    /// One worker that is prepared this much later, and one that names its result this much later.
    unready: Option<(u8, Span)>,
    late: Option<(u8, Span)>,
    /// One worker that does not confirm the end.
    held: Option<u8>,
    /// One worker with another sum.
    wrong: Option<u8>,
}

/// A job and where it is added up.
#[derive(Clone, Copy, Debug)]
struct Job {
    workers: u8,
    vectors: Vectors,
    slots: u32,
    has_switch: bool,
    seed: u64,
    /// `None`: sums are all that there is.
    results: Option<Results>,
    /// The number of vectors of an open job.
    open: u32,
    /// A worker whose vector of a step is another one.
    odd: Option<(u8, u32, Odd)>,
}

/// How a vector of an open job is another one than those of the other workers.
#[derive(Clone, Copy, Debug)]
enum Odd {
    Longer,
    Integers,
    Label,
    /// There is none.
    Last,
}

impl Job {
    const fn new(workers: u8, vectors: Vectors) -> Self {
        let (slots, has_switch, seed, results) = (4_096, true, 1, None);
        Self { workers, vectors, slots, has_switch, seed, results, open: 0, odd: None }
    }

    /// The length of the vector of a step, and what its elements are.
    fn shape(&self, step: u32) -> (usize, Format) {
        if self.vectors.steps > 0 {
            return (self.vectors.length as usize, self.vectors.format);
        }
        let mut rng = Rng::stream(self.seed, 0, step.into(), "shape");
        let length = [1, 3, 40, 600][rng.below(4) as usize] + rng.below(40) as usize;
        let format = if rng.chance(0.3) { Format::I64 } else { Format::BlockFloat };
        (length, format)
    }

    /// The number of vectors of the job.
    fn steps(&self) -> u32 {
        self.vectors.steps.max(self.open)
    }

    /// The vector of a worker for a step.
    fn vector(&self, worker: u8, step: u32) -> Values {
        let component = u64::from(step) << 8 | u64::from(worker);
        let mut rng = Rng::stream(self.seed, 0, component, "vector");
        let (length, format) = self.shape(step);
        match format {
            Format::I64 => Values::Integers((0..length).map(|_| rng.next_u64() as i64).collect()),
            Format::BlockFloat => {
                let float = |rng: &mut Rng| {
                    let exponent = rng.below(40) as i32 - 20;
                    ((rng.unit() - 0.5) * f64::from(exponent).exp2()) as f32
                };
                Values::Floats((0..length).map(|_| float(&mut rng)).collect())
            }
        }
    }

    /// Offers the vector of a worker for a step.
    fn offer(&self, side: &mut WorkerSide, worker: u8, step: u32) {
        let odd = self.odd.filter(|(who, when, _)| (*who, *when) == (worker, step));
        let (length, _) = self.shape(step);
        match odd.map(|(_, _, odd)| odd) {
            None => side.offer(step, self.vector(worker, step)),
            Some(Odd::Longer) => side.offer(step, Values::Floats(vec![1.0; length + 1])),
            Some(Odd::Integers) => side.offer(step, Values::Integers(vec![1; length])),
            Some(Odd::Label) => side.offer_as(step, self.vector(worker, step), 7),
            Some(Odd::Last) => side.release(),
        }
    }

    /// The result by definition.
    fn expected(&self, step: u32) -> Values {
        let vectors: Vec<Values> = (0..self.workers).map(|w| self.vector(w, step)).collect();
        let mut elements = self.vectors.elements;
        if self.vectors.steps == 0 {
            // The job was given a chunk of floats, which has as many bytes with integers.
            elements = elements / 2 * if self.shape(step).1 == Format::I64 { 1 } else { 2 };
        }
        Values::sum(&vectors.iter().collect::<Vec<_>>(), elements).unwrap()
    }
}

struct World {
    now: Time,
    job: Job,
    faults: Faults,
    rng: Rng,
    flights: Schedule<Flight>,
    /// The master's host is 0, the workers' hosts follow.
    nodes: Vec<VectorNode>,
    switch: Option<Simulated<Program, Header>>,
    switch_config: switch::Config,
    payloads: Slab,
    down: Vec<bool>,
    /// The host whose packets to the switch are lost.
    blocked: Option<HostId>,
    lives: u32,
    packets: u64,
    /// How often a life of a worker has had the sums of a step.
    summed: BTreeMap<(u8, u32), u32>,
    attempts: Vec<master::Event>,
    /// Workers that were once prepared, and those whose results have their names, as bitmaps.
    prepared: u64,
    named: u64,
    /// The lives that have joined the job.
    joined: BTreeSet<(u8, u32)>,
    /// For how long all packets are lost after a worker has heard of the end, and until when.
    dark: Option<Span>,
    dark_until: Time,
    /// Whether a worker's process ends when its machine has nothing left to do.
    has_ends: bool,
}

impl World {
    fn new(job: Job, faults: Faults) -> Self {
        let Job { workers, vectors, seed, .. } = job;
        let mut config = master::Config::new(JOB, workers, vectors, TOKEN, seed);
        config.commits = job.results.is_some();
        let layout = Layout {
            length: vectors.length,
            elements: vectors.elements,
            pool: vectors.pool,
            format: vectors.format,
            steps: vectors.steps,
            workers,
        };
        config.aggregators = vec![MASTER];
        if job.has_switch {
            config.aggregators.insert(0, SWITCH);
        }
        let aggregator = Aggregator::new(MASTER, Aggregator::limits(&layout, seed), 4_096);
        let master = VectorNode::new(MASTER)
            .with_master(Master::new(config, Time::ZERO))
            .with_aggregator(aggregator);
        let switch_config = switch::Config::new(job.slots, seed ^ 0x5717_c4ed);
        let switch = job.has_switch.then(|| Simulated::new(Program::new(0, switch_config)));
        let mut world = Self {
            now: Time::ZERO,
            faults,
            rng: Rng::stream(seed, 0, 0, "network"),
            flights: Schedule::default(),
            nodes: vec![master],
            switch,
            switch_config,
            payloads: Slab::default(),
            down: vec![false; usize::from(workers) + 1],
            blocked: None,
            lives: 0,
            packets: 0,
            summed: BTreeMap::new(),
            attempts: Vec::new(),
            prepared: 0,
            named: 0,
            joined: BTreeSet::new(),
            dark: None,
            dark_until: Time::ZERO,
            has_ends: false,
            job,
        };
        for number in 0..workers {
            let node = world.worker(number);
            world.nodes.push(node);
        }
        world
    }

    fn worker(&mut self, number: u8) -> VectorNode {
        self.lives += 1;
        let Vectors { length, format, steps, .. } = self.job.vectors;
        let format = if steps == 0 { Format::I64 } else { format };
        let config = worker::Config::new(JOB, number, MASTER, self.lives);
        let holds_end = self.job.results.is_some() || steps == 0;
        let linger = if holds_end { Span::from_ms(600) } else { Span::ZERO };
        let config = worker::Config { length, format, holds_end, linger, ..config };
        VectorNode::new(HostId(u32::from(number) + 1))
            .with_worker(WorkerSide::new(config, self.now))
    }

    fn at(&mut self, at: Time, act: Act) {
        self.flights.push(at, Flight::Act(act));
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Kill(number) => self.down[usize::from(number) + 1] = true,
            Act::Return(number) => {
                let host = usize::from(number) + 1;
                self.down[host] = false;
                self.nodes[host] = self.worker(number);
            }
            Act::RestartSwitch => {
                self.switch_config.secret += 1;
                self.switch = Some(Simulated::new(Program::new(0, self.switch_config)));
            }
            Act::KillSwitch => self.switch = None,
            Act::Prepare(number, instance) => {
                if let Some(side) = self.alive(number, instance) {
                    side.release();
                    self.prepared |= 1 << number;
                }
            }
            Act::Name(number, instance) => {
                let wrong = self.job.results.and_then(|results| results.wrong);
                if let Some(side) = self.alive(number, instance) {
                    side.name(if wrong == Some(number) { 3 } else { 5 });
                    self.named |= 1 << number;
                }
            }
        }
    }

    /// Returns the worker, if its process is the one of this instance.
    fn alive(&mut self, number: u8, instance: u32) -> Option<&mut WorkerSide> {
        let host = usize::from(number) + 1;
        let side = self.nodes[host].worker_mut().filter(|_| !self.down[host])?;
        let is_same = side.machine().config().instance == instance;
        (is_same && side.outcome().is_none()).then_some(side)
    }

    /// All workers, as a bitmap.
    fn all(&self) -> u64 {
        (1 << self.job.workers) - 1
    }

    /// When a result that is begun now is prepared or named.
    fn written(&mut self, results: Results) -> Time {
        self.now + Span::from_ticks(self.rng.below(results.within.ticks() + 1))
    }

    fn master(&self) -> &Master {
        self.nodes[0].master().unwrap()
    }

    fn outcome(&self, worker: u8) -> Option<Result<(), Failure>> {
        self.nodes[usize::from(worker) + 1].worker().unwrap().outcome()
    }

    fn send(&mut self, packet: Packet<Header>, payload: &[u8]) {
        self.packets += 1;
        if packet.dst == SWITCH && self.blocked == Some(packet.src) {
            return;
        }
        assert_eq!(packet.header.message.payload_len() as usize, payload.len());
        if self.now < self.dark_until {
            return;
        }
        let copies = if self.rng.chance(self.faults.repeat) { 2 } else { 1 };
        for _ in 0..copies {
            if self.rng.chance(self.faults.loss) {
                continue;
            }
            let delay = Span::from_ticks(self.rng.below(self.faults.delay.ticks() + 1));
            let at = self.now + Span::from_us(5) + delay;
            self.flights.push(at, Flight::Packet(packet, payload.to_vec()));
        }
    }

    fn deliver(&mut self, packet: Packet<Header>, payload: &[u8]) {
        if packet.dst == SWITCH {
            let Some(switch) = &mut self.switch else { return };
            let mut packet = packet;
            if !payload.is_empty() {
                let id = self.payloads.insert(payload).unwrap();
                packet.header = packet.header.with_payload(id);
            }
            let verdict = switch.handle_packet(self.now, Port(0), &mut packet, &mut self.payloads);
            assert!(matches!(verdict, Verdict::Consume | Verdict::Drop(_)), "{verdict:?}");
            self.payloads.release(&packet);
            let mut made = Vec::new();
            while let Some((_, packet)) = switch.poll_transmit(self.now, &mut self.payloads) {
                made.push(packet);
            }
            for packet in made {
                let payload = self.payloads.read(&packet).to_vec();
                self.payloads.release(&packet);
                self.send(packet, &payload);
            }
            return;
        }
        let host = packet.dst.0 as usize;
        if self.down.get(host) == Some(&false) {
            self.nodes[host].receive(self.now, packet.src, &packet.header.message, payload);
            self.application(host);
        }
    }

    /// Offers vectors, and checks sums.
    fn application(&mut self, host: usize) {
        let job = self.job;
        while let Some(event) = self.nodes[0].master_mut().unwrap().poll_event() {
            if event == master::Event::Complete && job.results.is_some() {
                assert_eq!(self.named, self.all(), "the job is complete without a result");
            }
            self.attempts.push(event);
        }
        let Some(side) = self.nodes[host].worker_mut() else { return };
        let worker::Config { number, instance, .. } = *side.machine().config();
        let mut events = Vec::new();
        while let Some(event) = side.poll_event() {
            events.push(event);
            match event {
                Event::Wanted { step } if step == job.steps() => side.release(),
                Event::Wanted { step } => job.offer(side, number, step),
                Event::Summed { step } => {
                    *self.summed.entry((number, step)).or_default() += 1;
                    assert!(side.sums().is_same(&job.expected(step)), "step {step} at {number}");
                }
                // Its result may be another file than that of the life before. Until the master has taken it in, the job may end with that one.
                Event::Planned(_) if self.joined.insert((number, instance)) => {
                    self.named &= !(1 << number);
                }
                Event::Planned(_) | Event::Committed | Event::Complete | Event::Failed(_) => {}
            }
        }
        let has_sums = side.machine().layout().is_some();
        if events.contains(&Event::Complete) {
            if let Some(dark) = self.dark.take() {
                self.dark_until = self.now + dark;
            }
            if job.vectors.steps == 0 {
                side.acknowledge(self.now);
            }
        }
        let Some(results) = job.results else { return };
        for event in events {
            match event {
                Event::Summed { step } if step + 1 == job.vectors.steps => {
                    let unready = results.unready.filter(|(unready, _)| *unready == number);
                    let at = self.written(results) + unready.map_or(Span::ZERO, |(_, late)| late);
                    self.at(at, Act::Prepare(number, instance));
                }
                Event::Committed => {
                    assert_eq!(self.prepared, self.all(), "a commit without all workers");
                    let late = results.late.filter(|(late, _)| *late == number);
                    let at = self.written(results) + late.map_or(Span::ZERO, |(_, late)| late);
                    self.at(at, Act::Name(number, instance));
                }
                Event::Complete if has_sums => {
                    assert_eq!(self.named, self.all(), "a worker ends without all results");
                    let side = self.nodes[host].worker_mut();
                    if let Some(side) = side.filter(|_| results.held != Some(number)) {
                        side.acknowledge(self.now);
                    }
                }
                _ => {}
            }
        }
    }

    fn flush(&mut self) {
        for host in 0..self.nodes.len() {
            self.application(host);
            while !self.down[host]
                && let Some(packet) = self.nodes[host].poll_transmit(self.now, 0)
            {
                let payload = self.nodes[host].payload().to_vec();
                self.send(packet, &payload);
            }
            self.application(host);
            let side = self.nodes[host].worker();
            self.down[host] |= self.has_ends
                && side.is_some_and(|it| it.outcome().is_some() && it.machine().is_over());
        }
    }

    /// Runs until the job has ended for the master, or the time has come.
    fn run(&mut self, until: Time) {
        let mut rounds = 0;
        loop {
            rounds += 1;
            assert!(rounds < 2_000_000, "no progress at {:?}", self.now);
            self.flush();
            if self.master().is_over() {
                return;
            }
            let timers = (0..self.nodes.len()).filter(|host| !self.down[*host]);
            let timer = timers.filter_map(|host| self.nodes[host].poll_timeout()).min();
            let next = [self.flights.next_time(), timer].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= until) else { return };
            self.now = self.now.max(next);
            while let Some((_, flight)) = self.flights.pop_due(self.now) {
                match flight {
                    Flight::Packet(packet, payload) => self.deliver(packet, &payload),
                    Flight::Act(act) => self.act(act),
                }
            }
            for host in 0..self.nodes.len() {
                if !self.down[host] {
                    self.nodes[host].expire(self.now);
                }
            }
        }
    }

    /// Runs to the end. That each sum is right is checked when it is there; here, that all are.
    fn run_to_end(&mut self, until: Time) {
        self.run(until);
        assert!(self.master().has_ended(), "{:?} at {:?}", self.attempts, self.now);
        assert_eq!(self.attempts.last(), Some(&master::Event::Complete));
        for worker in 0..self.job.workers {
            for step in 0..self.job.steps() {
                let summed = self.summed.get(&(worker, step)).copied().unwrap_or(0);
                assert!(summed >= 1, "step {step} at worker {worker}");
            }
        }
    }

    /// As [`World::run`], but each host has a turn only now and then.
    fn run_in_turns(&mut self, until: Time, turns: Turns) {
        let Turns { interval, handled, room } = turns;
        let hosts = self.nodes.len();
        let mut sockets = vec![VecDeque::new(); hosts];
        for round in 0_u64.. {
            self.now = Time::ZERO + Span::from_ticks(interval.ticks() / hosts as u64 * round);
            if self.now > until || self.master().is_over() {
                return;
            }
            while let Some((_, flight)) = self.flights.pop_due(self.now) {
                match flight {
                    Flight::Packet(packet, payload) if packet.dst == SWITCH => {
                        self.deliver(packet, &payload);
                    }
                    Flight::Packet(packet, payload) => {
                        let socket: &mut VecDeque<_> = &mut sockets[packet.dst.0 as usize];
                        if socket.len() < room {
                            socket.push_back((packet, payload));
                        }
                    }
                    Flight::Act(act) => self.act(act),
                }
            }
            let host = round as usize % hosts;
            if self.down[host] {
                sockets[host].clear();
                continue;
            }
            let arrived = sockets[host].len().min(handled);
            for (packet, payload) in sockets[host].drain(..arrived).collect::<Vec<_>>() {
                self.deliver(packet, &payload);
            }
            self.nodes[host].expire(self.now);
            self.application(host);
            while let Some(packet) = self.nodes[host].poll_transmit(self.now, 0) {
                let payload = self.nodes[host].payload().to_vec();
                self.send(packet, &payload);
            }
            self.application(host);
        }
    }

    fn switch_counts(&self) -> switch::Counters {
        *self.switch.as_ref().unwrap().program().counts()
    }
}

const fn seconds(n: u64) -> Time {
    Time::ZERO.saturating_add(Span::from_secs(n))
}

const fn vectors(length: u64, format: Format) -> Vectors {
    Vectors { length, format, steps: 3, elements: 16, pool: 8 }
}
