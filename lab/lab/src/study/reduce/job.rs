//! Whole jobs at the hosts of a run: MapReduce's phases around the upload.
//!
//! ```text
//! master   start ── data, over a transport ──────────┐          collects ─── reduce ─> finished
//! worker                             received ── map, local shuffle ── joins, uploads ─┘
//! ```
//!
//! Computing takes configured times; what is computed, the number of times that each word occurs, is drawn from a model of text, and at
//! the end the result is compared with what was drawn.

use core::convert::Infallible;
use std::collections::VecDeque;

use rackweave_aggregation::Failure;
use rackweave_aggregation::master::{self, Aggregation};
use rackweave_aggregation::node::{MasterSide, ReduceNode, WorkerSide};
use rackweave_aggregation::packet::Header;
use rackweave_aggregation::source::{Order, Pairs};
use rackweave_aggregation::worker;
use rackweave_core::rng::mix;
use rackweave_core::time::TICKS_PER_SECOND;
use rackweave_core::{
    Event as Carried, HostId, Kind, MessageId, Mixed, Node, Packet, Rng, Schedule, Span, Submit,
    Time, Transport as _,
};
use rackweave_rackless::controller::{Declared, Distributed, Phase};
use rackweave_sim::GroupNode;
use rackweave_transport::{Machine, TransportConfig};
use rackweave_wire::reduce::{Operator, PAIR_BYTES};
use rackweave_workload::text::{TextModel, word};

use super::control::Status;

/// The header of a host's packets: those of the transport that carries the data, and those of the upload.
pub type NodeHeader = Mixed<rackweave_wire::Header, Header>;

/// How the master's data get to the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Map {
    /// Each worker gets its share of the data.
    #[default]
    Scatter,
    /// Each worker gets all data, as a message of its own: the "broadcast" of P4-ORDC's text.
    Broadcast,
    /// Workers have their data.
    Local,
}

/// What computing takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Time for each MiB of a worker's data, from their arrival until the upload can begin: map and local shuffle.
    pub map_per_mib: Span,
    /// Time for each pair or sum that reaches the master.
    pub reduce_per_pair: Span,
    /// Time for each distinct word of the result, which the master writes.
    pub reduce_per_word: Span,
    /// Time until a map or a reduce task does something, such as that of starting a process.
    pub task_start: Span,
    /// The most tasks that a host computes at a time; others wait. 0: any number.
    pub tasks_per_host: u32,
}

impl Costs {
    /// Returns the time that mapping this many bytes takes.
    fn map_of(&self, bytes: u64) -> Span {
        let ticks = u128::from(self.map_per_mib.ticks()) * u128::from(bytes);
        Span::from_ticks((ticks >> 20) as u64)
    }
}

/// A job.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its number.
    pub number: u16,
    /// When it starts.
    pub start: Time,
    /// The master's host.
    pub master: HostId,
    /// The workers' hosts; a host may have several.
    pub workers: Vec<HostId>,
    /// The length of the data in bytes.
    pub bytes: u64,
}

impl Job {
    /// Returns what the master declares of the job. The sizes of its pairs are the ones that the model of the text expects.
    #[must_use]
    pub fn declared(&self, config: &Config) -> Declared {
        let workers = self.workers.len() as u64;
        let words = config.text.words(self.bytes);
        let own = words / workers;
        let pairs = if config.combiner { config.text.distinct(own) } else { own as f64 };
        let words = config.text.distinct(words);
        let [pairs, distinct] = [pairs, words].map(|pairs| (pairs * PAIR_BYTES as f64) as u64);
        let Costs { reduce_per_pair, reduce_per_word, task_start, .. } = config.costs;
        let of_word = reduce_per_pair.saturating_add(reduce_per_word);
        let map = task_start.saturating_add(config.costs.map_of(self.bytes.div_ceil(workers)));
        let reduce = task_start.saturating_add(of_word.saturating_mul(words as u64));
        let ms = |span: Span| Some(span.as_ns() / 1_000_000);
        Declared {
            name: "words".to_owned(),
            master: self.master.0,
            workers: self.workers.iter().map(|worker| worker.0).collect(),
            input: (config.map != Map::Local).then_some(self.bytes),
            distribution: Some(match config.map {
                Map::Scatter | Map::Local => Distributed::Scatter,
                Map::Broadcast => Distributed::Unicast,
            }),
            map_ms: ms(map),
            upload: Some(vec![pairs; self.workers.len()]),
            // Without a combiner a worker has more than is distinct, which the planner does not know of.
            distinct: Some(distinct.clamp(pairs, pairs * workers)),
            reduce_ms: ms(reduce),
            reduce_bps: (PAIR_BYTES as u64 * 8 * TICKS_PER_SECOND)
                .checked_div(reduce_per_pair.ticks()),
            ..Declared::default()
        }
    }
}

/// What all jobs have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How the data get to the workers.
    pub map: Map,
    /// What computing takes.
    pub costs: Costs,
    /// The words of the text.
    pub text: TextModel,
    /// Whether workers combine their pairs before they send them.
    pub combiner: bool,
    /// How values are combined.
    pub operator: Operator,
    /// In which order pairs are sent.
    pub order: Order,
    /// The window of workers in packets.
    pub window: u16,
    /// Whether jobs wait for a grant once their workers are ready; otherwise they begin with `aggregation`.
    pub hold: bool,
    /// The slots that jobs ask for if they do not wait.
    pub aggregation: Option<Aggregation>,
    /// The seed of the texts and of the random numbers of jobs.
    pub seed: u64,
}

impl Config {
    /// Returns what an upload begins with that has been granted so many slots.
    #[must_use]
    pub fn aggregation_of(&self, slots: u32) -> Option<Aggregation> {
        self.aggregation.filter(|_| slots > 0).map(|all| Aggregation { slots, ..all })
    }
}

/// How far a job has come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Record {
    /// When its data began to be sent.
    pub started: Option<Time>,
    /// When all its data had been sent, as far as the master knows: all were acknowledged.
    pub distributed: Option<Time>,
    /// When all workers had mapped their data and joined.
    pub ready: Option<Time>,
    /// When the upload began.
    pub granted: Option<Time>,
    /// When the master had all sums.
    pub uploaded: Option<Time>,
    /// When the master had reduced them.
    pub finished: Option<Time>,
    /// Why it failed.
    pub failed: Option<Failure>,
    /// Whether the result was equal to the text.
    pub exact: bool,
    /// The number of distinct words of the text.
    pub words: u64,
    /// How the result differs from the text.
    pub errors: Errors,
    /// The number of pairs that the workers had.
    pub pairs: u64,
    /// The pairs, records and sums that reached the master.
    pub received: u64,
    /// The number of epochs.
    pub epochs: u16,
    /// The number of slots.
    pub slots: u32,
}

impl Record {
    /// Returns how far the job of this number has come, for the control plane; `None` before its start.
    #[must_use]
    pub fn status(&self, job: u16) -> Option<Status> {
        let reached = [
            (self.uploaded.is_some(), Phase::Reduce),
            (self.granted.is_some(), Phase::Upload),
            (self.ready.is_some(), Phase::Ready),
            (self.distributed.is_some(), Phase::Shuffle),
            (self.started.is_some(), Phase::Map),
        ];
        let phase = reached.into_iter().find(|(is_reached, _)| *is_reached)?.1;
        let is_over = self.finished.is_some() || self.failed.is_some();
        Some(Status { job, phase, is_over })
    }
}

/// How a result differs from the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// Words of the text that the result does not have.
    pub missing: u64,
    /// Words that the result has with another number.
    pub wrong: u64,
    /// Occurrences in the text that the result lacks, of missing and wrong words.
    pub lost: u64,
    /// Occurrences in the text.
    pub occurrences: u64,
}

impl Errors {
    /// Compares a result with the text's words. Both are sorted by their words.
    fn of(result: &[(Box<[u8]>, u64)], expected: &[(Box<[u8]>, u64)]) -> Self {
        let mut errors = Self::default();
        let mut rest = result.iter().peekable();
        for (word, count) in expected {
            errors.occurrences += count;
            while rest.next_if(|(other, _)| other < word).is_some() {
                // A word that the text does not have.
                errors.wrong += 1;
            }
            let found = rest.next_if(|(other, _)| other == word).map(|(_, found)| *found);
            errors.missing += u64::from(found.is_none());
            errors.wrong += u64::from(found.is_some_and(|found| found != *count));
            errors.lost += count.saturating_sub(found.unwrap_or(0));
        }
        errors.wrong += rest.count() as u64;
        errors
    }
}

/// The master of a job at a host.
#[derive(Debug)]
struct Mastered {
    job: Job,
    record: Record,
    /// Messages with data that have not been acknowledged.
    under_way: u32,
    /// The position of the machine in the node.
    side: Option<usize>,
}

/// What a host computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Start { mastered: usize },
    Arrived { assigned: usize },
    Mapped { assigned: usize },
    Reduced { mastered: usize },
}

/// A worker that a host runs once the data are there.
#[derive(Clone, Debug)]
struct Assigned {
    job: Job,
    number: u8,
    /// Whether it had nothing more to send when the host was asked last. A host knows this after a crash.
    done: bool,
}

/// A host with its jobs.
#[derive(Debug)]
pub struct JobNode {
    host: HostId,
    config: Config,
    reduce: ReduceNode,
    machine: Box<Machine>,
    mastered: Vec<Mastered>,
    assigned: Vec<Assigned>,
    work: Schedule<Work>,
    /// The number of tasks that the host computes, and the tasks that wait until it computes fewer.
    computing: u32,
    waiting: VecDeque<(Work, Span)>,
    /// Whether the host has crashed and not returned.
    down: bool,
    /// How often the host has started.
    lives: u32,
    carrier: TransportConfig,
    submitted: u64,
    unfinished: usize,
    /// Whether results are compared with the text by [`JobNode::compare`] only.
    defers_comparison: bool,
    /// The masters that have all sums of a job whose result has not been compared yet: since when, their position among those of the host,
    /// and that of their machine.
    uncompared: Vec<(Time, usize, usize)>,
    /// Whether the packet that was polled last is of the upload.
    has_payload: bool,
}

const JOB_BITS: u32 = 16;
const WORKER_BITS: u32 = 6;

fn message_of(sequence: u64, job: u16, worker: u8) -> MessageId {
    let low = u64::from(job) << WORKER_BITS | u64::from(worker);
    MessageId::request(sequence << (JOB_BITS + WORKER_BITS) | low)
}

const fn job_of(id: MessageId) -> (u16, u8) {
    let number = id.number();
    ((number >> WORKER_BITS) as u16, (number & ((1 << WORKER_BITS) - 1)) as u8)
}

impl JobNode {
    /// A host that takes part in some of these jobs.
    #[must_use]
    pub fn new(host: HostId, config: Config, carrier: &TransportConfig, jobs: &[Job]) -> Self {
        let mut node = Self {
            host,
            config,
            reduce: ReduceNode::new(host),
            machine: Box::new(carrier.machine(host)),
            mastered: Vec::new(),
            assigned: Vec::new(),
            work: Schedule::default(),
            computing: 0,
            waiting: VecDeque::new(),
            down: false,
            lives: 1,
            carrier: carrier.clone(),
            submitted: 0,
            unfinished: 0,
            defers_comparison: false,
            uncompared: Vec::new(),
            has_payload: false,
        };
        for job in jobs {
            for (number, _) in (0..).zip(&job.workers).filter(|(_, worker)| **worker == host) {
                let assigned = node.assigned.len();
                node.assigned.push(Assigned { job: job.clone(), number, done: false });
                if node.config.map == Map::Local {
                    node.work.push(job.start, Work::Arrived { assigned });
                }
            }
            if job.master == host {
                let mastered = node.mastered.len();
                node.work.push(job.start, Work::Start { mastered });
                let record = Record::default();
                node.mastered.push(Mastered { job: job.clone(), record, under_way: 0, side: None });
                node.unfinished += 1;
            }
        }
        node
    }

    /// Leaves the comparison of a result with the text to [`JobNode::compare`], for a driver that measures what an upload costs: on real
    /// hosts drawing the text again takes a processor's time.
    #[must_use]
    pub const fn with_deferred_comparison(mut self) -> Self {
        self.defers_comparison = true;
        self
    }

    /// Returns whether a master here has all sums of a job whose result has not been compared yet.
    #[must_use]
    pub const fn has_to_compare(&self) -> bool {
        !self.uncompared.is_empty()
    }

    /// Compares the results of the jobs that have been uploaded since the last call, which goes on with them.
    pub fn compare(&mut self) {
        for (at, index, side) in std::mem::take(&mut self.uncompared) {
            self.complete(at, index, side);
        }
    }

    /// Returns the jobs whose master is here, and how far they have come.
    pub fn records(&self) -> impl Iterator<Item = (&Job, &Record)> {
        self.mastered.iter().map(|mastered| (&mastered.job, &mastered.record))
    }

    /// Lets a job's upload begin with these slots, or without a switch.
    pub fn grant(&mut self, now: Time, job: u16, aggregation: Option<Aggregation>) {
        let mastered = self.mastered.iter_mut().find(|mastered| mastered.job.number == job);
        if let Some(mastered) = mastered
            && let Some(side) = mastered.side
        {
            self.reduce.masters_mut()[side].grant(now, aggregation);
            mastered.record.granted = Some(now);
        }
    }

    fn note_done_workers(&mut self) {
        for side in self.reduce.workers().iter().filter(|side| side.outcome() == Some(Ok(()))) {
            let config = side.machine().config();
            let is_this = |worker: &&mut Assigned| {
                worker.job.number == config.job && worker.number == config.number
            };
            if let Some(worker) = self.assigned.iter_mut().find(is_this) {
                worker.done = true;
            }
        }
    }

    /// Handles a packet with its payload.
    pub fn receive(&mut self, now: Time, packet: &Packet<NodeHeader>, payload: &[u8]) {
        match packet.header {
            Mixed::Transport(header) => {
                let _ = self.machine.handle_packet(now, 0, &packet.map(|_| header));
            }
            Mixed::Group(header) => self.reduce.receive(now, &packet.map(|_| header), payload),
        }
        self.pump(now);
    }

    fn pump(&mut self, now: Time) {
        while let Some(event) = self.machine.poll_event() {
            match event {
                Carried::Delivered { id, .. } => {
                    let (job, worker) = job_of(id);
                    self.arrived(now, job, worker);
                }
                Carried::Failed { id, .. } => {
                    let (job, _) = job_of(id);
                    let is_job = |mastered: &&mut Mastered| mastered.job.number == job;
                    if let Some(mastered) = self.mastered.iter_mut().find(is_job)
                        && mastered.record.finished.is_none()
                        && mastered.record.failed.is_none()
                    {
                        mastered.record.failed = Some(Failure::MasterSilent);
                        self.unfinished -= 1;
                    }
                }
                Carried::Sent { id, .. } => {
                    let (job, _) = job_of(id);
                    let is_job = |mastered: &&mut Mastered| mastered.job.number == job;
                    if let Some(mastered) = self.mastered.iter_mut().find(is_job) {
                        mastered.under_way = mastered.under_way.saturating_sub(1);
                        if mastered.under_way == 0 {
                            mastered.record.distributed.get_or_insert(now);
                        }
                    }
                }
                Carried::Stream(_) => {}
            }
        }
        while let Some((due, work)) = self.work.pop_due(now) {
            match work {
                Work::Start { mastered } => self.start(now, mastered),
                Work::Arrived { assigned } => self.map(now, assigned),
                Work::Mapped { assigned } => {
                    self.computed(now);
                    self.join(now, assigned);
                }
                Work::Reduced { mastered } => {
                    self.computed(now);
                    let record = &mut self.mastered[mastered].record;
                    if record.failed.is_none() {
                        // On real hosts the comparison with the text takes time, which is no part of the job.
                        record.finished = Some(due);
                        self.unfinished -= 1;
                    }
                }
            }
        }
        for mastered in 0..self.mastered.len() {
            self.watch(now, mastered);
        }
    }

    /// Computes something, now or when the host has room for another task.
    fn compute(&mut self, now: Time, work: Work, cost: Span) {
        let most = self.config.costs.tasks_per_host;
        if most > 0 && self.computing >= most {
            self.waiting.push_back((work, cost));
            return;
        }
        self.computing += 1;
        let cost = cost.saturating_add(self.config.costs.task_start);
        self.work.push(now.saturating_add(cost), work);
    }

    /// A task has ended, and the next one begins.
    fn computed(&mut self, now: Time) {
        self.computing -= 1;
        if let Some((work, cost)) = self.waiting.pop_front() {
            self.compute(now, work, cost);
        }
    }

    /// Sends a job's data, and waits for its workers.
    fn start(&mut self, now: Time, mastered: usize) {
        let Mastered { job, record, side, .. } = &mut self.mastered[mastered];
        record.started = Some(now);
        let workers = job.workers.len() as u8;
        let token = mix(self.config.seed ^ u64::from(job.number) << 32);
        let mut config = master::Config {
            operator: self.config.operator,
            aggregation: self.config.aggregation,
            hold: self.config.hold,
            window: self.config.window,
            ..master::Config::new(job.number, self.host, workers, token, mix(token))
        };
        config.members.give_up = Span::from_secs(3_600);
        *side = Some(self.reduce.masters().len());
        self.reduce.add_master(MasterSide::new(config, now));
        let (number, share) = (job.number, job.bytes.div_ceil(u64::from(workers)));
        let bytes = match self.config.map {
            Map::Scatter => share,
            Map::Broadcast => job.bytes,
            Map::Local => {
                record.distributed = Some(now);
                return;
            }
        };
        for (worker, host) in (0..).zip(job.workers.clone()) {
            if host == self.host {
                self.arrived(now, number, worker);
                continue;
            }
            self.submitted += 1;
            let id = message_of(self.submitted, number, worker);
            let submit = Submit { id, peer: host, bytes, kind: Kind::OneWay };
            self.mastered[mastered].under_way += 1;
            if self.machine.submit(now, submit).is_err() {
                let record = &mut self.mastered[mastered].record;
                record.failed = Some(Failure::MasterSilent);
                self.unfinished -= 1;
                return;
            }
        }
        if self.mastered[mastered].under_way == 0 {
            self.mastered[mastered].record.distributed = Some(now);
        }
    }

    /// A worker's data are here.
    fn arrived(&mut self, now: Time, job: u16, worker: u8) {
        let is_this = |assigned: &Assigned| assigned.job.number == job && assigned.number == worker;
        if let Some(assigned) = self.assigned.iter().position(is_this) {
            self.map(now, assigned);
        }
    }

    /// A worker maps its data.
    fn map(&mut self, now: Time, assigned: usize) {
        let bytes = self.share_of(&self.assigned[assigned].job);
        self.compute(now, Work::Mapped { assigned }, self.config.costs.map_of(bytes));
    }

    /// The length of a worker's part of the text.
    fn share_of(&self, job: &Job) -> u64 {
        job.bytes.div_ceil(job.workers.len() as u64)
    }

    /// The part of a job's text that a worker has: the same whenever it is drawn.
    fn text_of(&self, job: &Job, worker: u8) -> Vec<(u32, u32)> {
        let component = u64::from(job.number) << 8 | u64::from(worker);
        let mut rng = Rng::stream(self.config.seed, 0, component, "text of a job");
        let words = self.config.text.words(self.share_of(job));
        self.config.text.counts(words, &mut rng)
    }

    /// A worker has mapped its data: it joins the upload.
    fn join(&mut self, now: Time, assigned: usize) {
        let Assigned { job, number, .. } = self.assigned[assigned].clone();
        let mut pairs = Pairs::new(self.config.operator);
        let mut text = Vec::new();
        for (rank, count) in self.text_of(&job, number) {
            word(rank, &mut text);
            if self.config.combiner {
                pairs.add_uncombined(&text, u64::from(count), 1);
            } else {
                pairs.add_uncombined(&text, 1, count);
            }
        }
        let life = u64::from(self.lives) << 32;
        let instance = mix(life | u64::from(job.number) << 8 | u64::from(number)) as u32;
        let config = worker::Config {
            give_up: Span::from_secs(3_600),
            ..worker::Config::new(job.number, number, job.master, instance)
        };
        self.forget_workers();
        self.reduce.add_worker(WorkerSide::new(config, pairs, self.config.order, now));
    }

    /// Frees the pairs of workers that have ended.
    fn forget_workers(&mut self) {
        self.note_done_workers();
        self.reduce.forget_workers();
    }

    /// Takes the events of a job's master.
    fn watch(&mut self, now: Time, index: usize) {
        let Some(side) = self.mastered[index].side else { return };
        while let Some(event) = self.reduce.masters_mut()[side].poll_event() {
            let record = &mut self.mastered[index].record;
            match event {
                master::Event::Ready => record.ready = Some(now),
                master::Event::Started { slots, epochs, .. } => {
                    (record.slots, record.epochs) = (slots, epochs);
                    record.ready.get_or_insert(now);
                    record.granted.get_or_insert(now);
                }
                master::Event::Complete if self.defers_comparison => {
                    self.uncompared.push((now, index, side));
                }
                master::Event::Complete => self.complete(now, index, side),
                master::Event::Failed(failure)
                    if record.failed.is_none() && record.finished.is_none() =>
                {
                    record.failed = Some(failure);
                    self.unfinished -= 1;
                }
                _ => {}
            }
        }
    }

    /// A master has all sums: compares them with the text, and reduces them.
    fn complete(&mut self, now: Time, index: usize, side: usize) {
        let job = self.mastered[index].job.clone();
        let counters = *self.reduce.masters()[side].machine().counters();
        let totals = self.reduce.masters_mut()[side].take_totals();
        let received = counters.pairs + counters.sums + totals.records();
        let result = totals.into_sorted();
        let mut all: Vec<(u32, u64)> = Vec::new();
        let mut pairs = 0;
        for worker in 0..job.workers.len() as u8 {
            let counts = self.text_of(&job, worker);
            let own = |count: u32| if self.config.combiner { 1 } else { u64::from(count) };
            pairs += counts.iter().map(|(_, count)| own(*count)).sum::<u64>();
            all.extend(counts.into_iter().map(|(rank, count)| (rank, u64::from(count))));
        }
        all.sort_unstable();
        all.dedup_by(|next, first| {
            let is_same = next.0 == first.0;
            if is_same {
                first.1 += next.1;
            }
            is_same
        });
        let mut text = Vec::new();
        let mut expected: Vec<(Box<[u8]>, u64)> = Vec::with_capacity(all.len());
        for (rank, count) in all {
            word(rank, &mut text);
            expected.push((text.as_slice().into(), count));
        }
        expected.sort_unstable();
        let record = &mut self.mastered[index].record;
        record.exact = result == expected;
        record.errors = Errors::of(&result, &expected);
        (record.words, record.pairs, record.received) = (expected.len() as u64, pairs, received);
        record.uploaded = Some(now);
        let Costs { reduce_per_pair, reduce_per_word, .. } = self.config.costs;
        // What is lost is not written either.
        let of_words = reduce_per_word.ticks().saturating_mul(result.len() as u64);
        let cost = Span::from_ticks(
            reduce_per_pair.ticks().saturating_mul(received).saturating_add(of_words),
        );
        self.compute(now, Work::Reduced { mastered: index }, cost);
    }
}

impl Node for JobNode {
    type Header = NodeHeader;
    type Event = Infallible;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, _port: u8, packet: &Packet<NodeHeader>) {
        self.receive(now, packet, &[]);
    }

    fn handle_timeout(&mut self, now: Time) {
        self.machine.handle_timeout(now);
        self.reduce.handle_timeout(now);
        self.forget_workers();
        self.pump(now);
    }

    fn poll_transmit(&mut self, now: Time, port: u8) -> Option<Packet<NodeHeader>> {
        if self.down {
            return None;
        }
        self.has_payload = true;
        if let Some(packet) = self.reduce.poll_transmit(now, port) {
            return Some(packet.map(Mixed::Group));
        }
        // Messages between machines of one host have been handled while it was polled.
        self.pump(now);
        if let Some(packet) = self.reduce.poll_transmit(now, port) {
            return Some(packet.map(Mixed::Group));
        }
        self.has_payload = false;
        Some(self.machine.poll_transmit(now, port)?.map(Mixed::Transport))
    }

    fn poll_timeout(&self) -> Option<Time> {
        if self.down {
            return None;
        }
        let timers =
            [self.machine.poll_timeout(), self.reduce.poll_timeout(), self.work.next_time()];
        timers.into_iter().flatten().min()
    }

    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }
}

impl GroupNode for JobNode {
    /// Whether all jobs whose master is here have ended.
    fn is_done(&self) -> bool {
        self.unfinished == 0 && self.reduce.is_done()
    }

    /// The host crashes, or starts again. Its data are there after a crash; what it has computed and sent is not, so that its workers map
    /// their data again, and join with a new instance. A host with a master must not crash.
    fn crash(&mut self, now: Time, down: bool) {
        self.down = down;
        self.note_done_workers();
        self.reduce = ReduceNode::new(self.host);
        *self.machine = self.carrier.machine(self.host);
        (self.work, self.computing) = (Schedule::default(), 0);
        self.waiting.clear();
        if down {
            return;
        }
        self.lives += 1;
        for (assigned, worker) in self.assigned.iter().enumerate() {
            if !worker.done {
                self.work.push(worker.job.start.max(now), Work::Arrived { assigned });
            }
        }
    }

    fn poll_prepared_work(&mut self) -> u32 {
        u32::try_from(self.reduce.take_divided()).unwrap_or(u32::MAX)
    }

    #[inline]
    fn handle_payload(
        &mut self,
        now: Time,
        _port: u8,
        packet: &Packet<NodeHeader>,
        payload: &[u8],
    ) {
        self.receive(now, packet, payload);
    }

    #[inline]
    fn payload(&self) -> &[u8] {
        if self.has_payload { self.reduce.payload() } else { &[] }
    }
}
