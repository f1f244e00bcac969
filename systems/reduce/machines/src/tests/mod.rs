//! The machines and the program together, on a network that loses, repeats and reorders.

mod chaos;
mod faults;
mod hostile;
mod whole;

use std::collections::BTreeMap;

use rackweave_core::{
    Destination, HostId, Node, Packet, PayloadStore, Port, Rng, Schedule, Span, SwitchProgram,
    Time, Verdict,
};
use rackweave_switch::net::{HasPayload, Slab};
use rackweave_switch::system::Simulated;
use rackweave_wire::reduce::{Body, Operator};

use super::master::{self, Aggregation};
use super::node::{MasterSide, ReduceNode, WorkerSide};
use super::packet::Header;
use super::source::{Order, Pairs};
use super::switch::{self, Program};
use super::worker;

const MASTER: HostId = HostId(0);
const SWITCH: HostId = Destination::Switch(0).address();
const JOB: u16 = 7;

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
    /// All reservations lapse, as they do if nothing of the master arrives for long; the switch goes on.
    Lapse,
    /// The master stops the job, and resumes it later.
    Quiesce,
    Resume,
}

/// A job: what its workers have, and how.
#[derive(Clone, Debug)]
struct Job {
    words: Vec<Vec<Vec<u8>>>,
    operator: Operator,
    aggregation: Option<Aggregation>,
    order: Order,
    window: u16,
    holds_end: bool,
}

impl Job {
    fn new(words: Vec<Vec<Vec<u8>>>, aggregation: Option<Aggregation>) -> Self {
        let (operator, order, window) = (Operator::Sum, Order::Hash, 32);
        Self { words, operator, aggregation, order, window, holds_end: false }
    }

    fn pairs(&self, worker: u8) -> Pairs {
        let mut pairs = Pairs::new(self.operator);
        for word in &self.words[usize::from(worker)] {
            pairs.add(word, word.len() as u64);
        }
        pairs
    }

    /// The result by definition.
    fn expected(&self) -> Vec<(Box<[u8]>, u64)> {
        let mut counts: BTreeMap<Box<[u8]>, Vec<u64>> = BTreeMap::new();
        for word in self.words.iter().flatten() {
            counts.entry(word.as_slice().into()).or_default().push(word.len() as u64);
        }
        let combined = |values: Vec<u64>| match self.operator {
            Operator::Sum => values.iter().sum(),
            Operator::Min => values.into_iter().min().unwrap(),
            Operator::Max => values.into_iter().max().unwrap(),
            Operator::Count => values.len() as u64,
        };
        counts.into_iter().map(|(word, values)| (word, combined(values))).collect()
    }
}

struct World {
    now: Time,
    job: Job,
    faults: Faults,
    rng: Rng,
    flights: Schedule<Flight>,
    /// The master's host is 0, the worker's hosts follow.
    nodes: Vec<ReduceNode>,
    switch: Option<Simulated<Program, Header>>,
    switch_config: switch::Config,
    payloads: Slab,
    down: Vec<bool>,
    /// The host whose packets of pairs are lost.
    mute: Option<HostId>,
    /// The host whose packets to the switch are lost.
    blocked: Option<HostId>,
    /// Until when confirmations of workers are lost.
    unconfirmed_until: Time,
    /// Whether the announced length of records is too short on its way.
    shortened: bool,
    lives: u32,
    packets: u64,
}

impl World {
    fn new(job: Job, slots: u32, faults: Faults, seed: u64) -> Self {
        let workers = job.words.len() as u8;
        let mut config = master::Config::new(JOB, MASTER, workers, 0x1234_5678_9abc, seed);
        config.aggregation = job.aggregation;
        config.operator = job.operator;
        config.window = job.window;
        config.holds_end = job.holds_end;
        let mut master = ReduceNode::new(MASTER);
        master.add_master(MasterSide::new(config, Time::ZERO));
        let switch_config = switch::Config::new(slots, seed ^ 0x5717_c4ed);
        let switch = job.aggregation.map(|_| Simulated::new(Program::new(0, switch_config)));
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
            mute: None,
            blocked: None,
            unconfirmed_until: Time::ZERO,
            shortened: false,
            lives: 0,
            packets: 0,
            job,
        };
        for number in 0..workers {
            let node = world.worker(number);
            world.nodes.push(node);
        }
        world
    }

    fn worker(&mut self, number: u8) -> ReduceNode {
        self.lives += 1;
        let host = HostId(u32::from(number) + 1);
        let mut config = worker::Config::new(JOB, number, MASTER, self.lives);
        if self.job.holds_end {
            config.linger = Span::from_ms(600);
        }
        let mut node = ReduceNode::new(host);
        let side = WorkerSide::new(config, self.job.pairs(number), self.job.order, self.now);
        node.add_worker(side);
        node
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
            Act::Lapse => {
                let late = self.now + self.switch_config.lease + Span::from_ms(1);
                if let Some(switch) = &mut self.switch {
                    switch.handle_timeout(late);
                }
            }
            Act::Quiesce => self.master().machine_mut().quiesce(),
            Act::Resume => self.master().machine_mut().resume(),
        }
    }

    fn master(&mut self) -> &mut MasterSide {
        &mut self.nodes[0].masters_mut()[0]
    }

    fn send(&mut self, packet: Packet<Header>, payload: &[u8]) {
        self.packets += 1;
        if packet.dst == SWITCH && self.blocked == Some(packet.src) {
            return;
        }
        let is_pairs = matches!(packet.header.message.body, Body::Data(_) | Body::Fin { .. });
        if is_pairs && self.mute == Some(packet.src) {
            return;
        }
        let is_confirm = matches!(packet.header.message.body, Body::Confirm { .. });
        if is_confirm && self.now < self.unconfirmed_until {
            return;
        }
        let mut packet = packet;
        if let Body::Fin { long_bytes, .. } = &mut packet.header.message.body
            && self.shortened
        {
            *long_bytes -= 1;
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
            self.nodes[host].receive(self.now, &packet, payload);
        }
    }

    fn flush(&mut self) {
        for host in 0..self.nodes.len() {
            while !self.down[host]
                && let Some(packet) = self.nodes[host].poll_transmit(self.now, 0)
            {
                let payload = self.nodes[host].payload().to_vec();
                self.send(packet, &payload);
            }
        }
    }

    /// Runs until the job has ended for the master, or the time has come.
    fn run(&mut self, until: Time) {
        let mut rounds = 0;
        loop {
            rounds += 1;
            assert!(rounds < 2_000_000, "no progress at {:?}", self.now);
            self.flush();
            if self.master().machine().is_over() {
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
                let is_due = self.nodes[host].poll_timeout().is_some_and(|at| at <= self.now);
                if !self.down[host] && is_due {
                    self.nodes[host].handle_timeout(self.now);
                }
            }
        }
    }

    /// Runs to the end, and checks the result against its definition.
    /// Runs until 2 ms after the start of the upload.
    fn run_until_started(&mut self) {
        while self.master().progress().started.is_none() {
            self.run(self.now + Span::from_ms(1));
            self.now += Span::from_us(100);
        }
        self.run(self.now + Span::from_ms(2));
    }

    fn run_to_end(&mut self, until: Time) {
        self.run(until);
        let progress = *self.master().progress();
        assert_eq!(progress.outcome, Some(Ok(())), "{progress:?} at {:?}", self.now);
        assert_eq!(self.result(), self.job.expected());
    }

    fn result(&mut self) -> Vec<(Box<[u8]>, u64)> {
        self.master().totals().clone().into_sorted()
    }

    /// Whether the master has reported that a worker has left.
    fn left(&mut self) -> bool {
        let master = self.master();
        std::iter::from_fn(|| master.poll_event())
            .any(|event| matches!(event, master::Event::Left { worker: 1 }))
    }

    fn switch_counts(&self) -> switch::Counters {
        *self.switch.as_ref().unwrap().program().counts()
    }
}

/// Words of a skewed distribution, with some that do not fit a slot.
fn words(seed: u64, workers: usize, each: usize, vocabulary: u64) -> Vec<Vec<Vec<u8>>> {
    let mut rng = Rng::stream(seed, 0, 1, "words");
    let word = |rng: &mut Rng| {
        let rank = (rng.unit() * rng.unit() * vocabulary as f64) as u64;
        match rank % 19 {
            7 => format!("a long word with number {rank}, longer than a slot").into_bytes(),
            11 => format!("{rank}\0").into_bytes(),
            _ => format!("w{rank}").into_bytes(),
        }
    };
    (0..workers).map(|_| (0..each).map(|_| word(&mut rng)).collect()).collect()
}

const fn seconds(n: u64) -> Time {
    Time::ZERO.saturating_add(Span::from_secs(n))
}
