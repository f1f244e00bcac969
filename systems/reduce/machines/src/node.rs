//! The machines of a host with what they send and collect, for a driver: the simulator, tests, or sockets.

use core::convert::Infallible;
use std::collections::{BTreeMap, VecDeque};

use rackweave_core::rng::mix;
use rackweave_core::{Ecn, HostId, Node, Packet, Time};
use rackweave_wire::reduce::{self, Body};

use super::Failure;
use super::master::{self, Absence, Aggregation, Master, Placement};
use super::packet::{Header, packet};
use super::source::{Encoded, Order, Pairs};
use super::totals::Totals;
use super::worker::{self, Content, Worker};

/// A worker and its pairs.
#[derive(Clone, Debug)]
pub struct WorkerSide {
    worker: Worker,
    pairs: Pairs,
    order: Order,
    encoded: Encoded,
    /// The number of pairs that were divided into epochs since [`WorkerSide::take_divided`] was called.
    divided: usize,
    outcome: Option<Result<(), Failure>>,
}

impl WorkerSide {
    /// A worker that joins now.
    #[must_use]
    pub fn new(config: worker::Config, pairs: Pairs, order: Order, now: Time) -> Self {
        let (operator, digest) = (pairs.operator(), pairs.digest());
        let worker = Worker::new(worker::Config { operator, digest, ..config }, now);
        Self { worker, pairs, order, encoded: Encoded::default(), divided: 0, outcome: None }
    }

    /// Returns the machine.
    #[must_use]
    pub const fn machine(&self) -> &Worker {
        &self.worker
    }

    /// Returns how the job has ended for the worker; `None` if it has not.
    #[must_use]
    pub const fn outcome(&self) -> Option<Result<(), Failure>> {
        self.outcome
    }

    /// Handles a message.
    pub fn handle(&mut self, now: Time, from: HostId, header: &reduce::Header) {
        self.worker.handle(now, from, header);
        self.events();
    }

    /// Called when the machine's timer is due.
    pub fn handle_timeout(&mut self, now: Time) {
        self.worker.handle_timeout(now);
        self.events();
    }

    /// Ends the worker before the job ends, and informs the master.
    pub fn leave(&mut self) {
        self.worker.give_up(Failure::Interrupted);
        self.events();
    }

    /// Returns the pairs.
    #[must_use]
    pub const fn pairs(&self) -> &Pairs {
        &self.pairs
    }

    /// Returns the number of pairs that were divided into epochs since the last call, which takes a processor's time.
    pub const fn take_divided(&mut self) -> usize {
        std::mem::replace(&mut self.divided, 0)
    }

    fn events(&mut self) {
        while let Some(event) = self.worker.poll_event() {
            match event {
                worker::Event::Encode { epochs, seed } => {
                    match self.pairs.encode(epochs, seed, self.order) {
                        Ok(encoded) => {
                            self.worker.encoded(encoded.sizes());
                            self.encoded = encoded;
                            self.divided += self.pairs.len();
                        }
                        Err(_) => self.worker.give_up(Failure::TooLong),
                    }
                }
                worker::Event::Complete => self.outcome = Some(Ok(())),
                worker::Event::Failed(failure) => self.outcome = Some(Err(failure)),
            }
        }
    }

    /// Returns the next message with its payload.
    pub fn poll(&mut self, now: Time) -> Option<(HostId, reduce::Header, &[u8])> {
        let message = self.worker.poll(now)?;
        let payload = match message.content {
            Content::Sketch => self.pairs.sketch().bytes(),
            content => self.encoded.payload(content),
        };
        Some((message.to, message.header, payload))
    }
}

/// A master and what it has collected.
#[derive(Clone, Debug)]
pub struct MasterSide {
    master: Master,
    totals: Totals,
    progress: Progress,
    addresses: Vec<u8>,
    news: VecDeque<master::Event>,
    /// The number of pairs that workers had in each epoch, without records.
    announced: BTreeMap<u16, u64>,
}

/// How far a job has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The number of slots that the switch has granted, 0 without a switch.
    pub slots: u32,
    /// The number of epochs, 0 before the start.
    pub epochs: u16,
    /// The estimated number of distinct keys.
    pub keys: u64,
    /// When the workers began to send.
    pub started: Option<Time>,
    /// When the job ended.
    pub ended: Option<Time>,
    /// Why the switch is not used, although one was wanted.
    pub absence: Option<Absence>,
    /// How the job has ended; `None` if it has not.
    pub outcome: Option<Result<(), Failure>>,
}

impl MasterSide {
    /// A master that waits for its workers from now on.
    #[must_use]
    pub fn new(config: master::Config, now: Time) -> Self {
        Self {
            master: Master::new(config, now),
            totals: Totals::new(config.operator, mix(config.members.secret)),
            progress: Progress::default(),
            addresses: Vec::new(),
            news: VecDeque::new(),
            announced: BTreeMap::new(),
        }
    }

    /// Returns the machine.
    #[must_use]
    pub const fn machine(&self) -> &Master {
        &self.master
    }

    /// Returns the machine, to stop and resume the job.
    pub const fn machine_mut(&mut self) -> &mut Master {
        &mut self.master
    }

    /// Returns how far the job has come.
    #[must_use]
    pub const fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Returns the number of pairs that the workers had in the epochs that they have finished, without those in records.
    #[must_use]
    pub fn announced(&self) -> u64 {
        self.announced.values().sum()
    }

    /// Returns what has been collected. It is the result once the job has ended well.
    #[must_use]
    pub const fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Returns the result; it is complete if the job has ended well.
    #[must_use]
    pub fn into_totals(self) -> Totals {
        self.totals
    }

    /// Handles a message with its payload.
    pub fn handle(
        &mut self,
        now: Time,
        from: HostId,
        header: &reduce::Header,
        marked: bool,
        payload: &[u8],
    ) {
        match self.master.handle(now, from, header, marked, payload) {
            Placement::Discard => {}
            Placement::Pairs { epoch } => self.totals.add_pairs(epoch, payload),
            Placement::Sums { epoch } => self.totals.add_sums(epoch, payload),
            Placement::Long { worker, epoch, offset } => {
                if let Err(reason) = self.totals.add_records(epoch, worker, offset, payload) {
                    self.fail(now, Failure::Records { worker, reason });
                }
            }
        }
        self.events(now);
    }

    /// Ends the job before it is complete; the workers hear of it.
    pub fn interrupt(&mut self, now: Time) {
        if self.progress.outcome.is_none() {
            self.fail(now, Failure::Interrupted);
        }
    }

    /// Ends a job whose end is held ([`master::Config::holds_end`]): what was collected is written, or it cannot be.
    pub fn conclude(&mut self, now: Time, is_written: bool) {
        if !is_written {
            self.end(now, Err(Failure::NotWritten));
        }
        self.master.conclude(now, is_written);
        self.events(now);
    }

    /// Called when the machine's timer is due.
    pub fn handle_timeout(&mut self, now: Time) {
        self.master.handle_timeout(now);
        self.events(now);
    }

    fn events(&mut self, now: Time) {
        while let Some(event) = self.master.poll_event() {
            match event {
                master::Event::Started { slots, epochs, keys } => {
                    let started = Some(now);
                    self.progress = Progress { slots, epochs, keys, started, ..self.progress };
                }
                master::Event::WithoutSwitch(absence) => {
                    self.progress.absence = Some(absence);
                    self.progress.slots = 0;
                }
                master::Event::Discard { first, .. } => {
                    self.announced.retain(|epoch, _| *epoch < first);
                    self.totals.discard(first);
                }
                master::Event::Finished { worker, epoch, long_bytes, pairs } => {
                    *self.announced.entry(epoch).or_default() += u64::from(pairs);
                    if let Err(reason) = self.totals.finish(epoch, worker, long_bytes) {
                        self.fail(now, Failure::Records { worker, reason });
                    }
                }
                master::Event::Ready
                | master::Event::Joined { .. }
                | master::Event::Left { .. }
                | master::Event::Drained { .. }
                | master::Event::Quiesced => {}
                master::Event::Complete => self.end(now, Ok(())),
                master::Event::Failed(failure) => self.end(now, Err(failure)),
            }
            // The driver polls these, or it does not; only the newest matter.
            if self.news.len() < 1024 {
                self.news.push_back(event);
            }
        }
    }

    /// What was collected cannot be right, even if all epochs have just been drained.
    fn fail(&mut self, now: Time, failure: Failure) {
        self.end(now, Err(failure));
        self.master.fail(now, failure);
    }

    fn end(&mut self, now: Time, outcome: Result<(), Failure>) {
        // A job that could not be right stays so.
        if !matches!(self.progress.outcome, Some(Err(_))) {
            (self.progress.outcome, self.progress.ended) = (Some(outcome), Some(now));
        }
    }

    /// Lets a job begin that waits for slots.
    pub fn grant(&mut self, now: Time, aggregation: Option<Aggregation>) {
        self.master.grant(now, aggregation);
        self.events(now);
    }

    /// Drops what has been collected, and returns it.
    pub fn take_totals(&mut self) -> Totals {
        let config = self.master.config();
        let none = Totals::new(config.operator, mix(config.members.secret));
        core::mem::replace(&mut self.totals, none)
    }

    /// Returns the next event, which has been acted on.
    pub fn poll_event(&mut self) -> Option<master::Event> {
        self.news.pop_front()
    }

    /// Returns the next message with its payload.
    pub fn poll(&mut self, now: Time) -> Option<(HostId, reduce::Header, &[u8])> {
        let message = self.master.poll(now)?;
        self.addresses = if message.has_addresses { self.master.addresses() } else { Vec::new() };
        Some((message.to, message.header, &self.addresses))
    }
}

/// The workers and masters at a host, of any number of jobs.
#[derive(Clone, Debug)]
pub struct ReduceNode {
    host: HostId,
    workers: Vec<WorkerSide>,
    masters: Vec<MasterSide>,
    /// The machine that is polled first, so that each gets its turn.
    turn: usize,
    payload: Vec<u8>,
}

impl ReduceNode {
    /// A host without jobs.
    #[must_use]
    pub const fn new(host: HostId) -> Self {
        Self { host, workers: Vec::new(), masters: Vec::new(), turn: 0, payload: Vec::new() }
    }

    /// Adds a worker.
    pub fn add_worker(&mut self, worker: WorkerSide) {
        self.workers.push(worker);
    }

    /// Removes the workers of a job that have ended, with their pairs.
    pub fn forget_workers(&mut self) {
        self.workers.retain(|side| side.outcome.is_none() || !side.worker.is_over());
    }

    /// Ends the workers of this host before their jobs end; their masters hear of it.
    pub fn leave(&mut self) {
        self.workers.iter_mut().for_each(WorkerSide::leave);
    }

    /// Adds a master.
    pub fn add_master(&mut self, master: MasterSide) {
        self.masters.push(master);
    }

    /// Returns the host's workers.
    #[must_use]
    pub fn workers(&self) -> &[WorkerSide] {
        &self.workers
    }

    /// Returns the host's masters.
    #[must_use]
    pub fn masters(&self) -> &[MasterSide] {
        &self.masters
    }

    /// Returns the number of pairs that workers have divided into epochs since the last call.
    pub fn take_divided(&mut self) -> usize {
        self.workers.iter_mut().map(WorkerSide::take_divided).sum()
    }

    /// Returns the host's masters, to stop and resume their jobs.
    pub fn masters_mut(&mut self) -> &mut [MasterSide] {
        &mut self.masters
    }

    /// Handles a packet with its payload.
    pub fn receive(&mut self, now: Time, packet: &Packet<Header>, payload: &[u8]) {
        let message = packet.header.message;
        let marked = packet.ecn() == Ecn::Marked;
        let is_to_worker =
            matches!(message.body, Body::State(_) | Body::Ack { .. } | Body::Rejected { .. })
                || matches!(message.body, Body::Challenge { .. } if self.has_worker(&message))
                || matches!(message.body, Body::Close if self.has_ended(packet.src, &message));
        if is_to_worker {
            let workers = self.workers.iter_mut().filter(|side| {
                let config = side.worker.config();
                config.job == message.job && config.number == message.worker
            });
            for side in workers {
                side.handle(now, packet.src, &message);
            }
            return;
        }
        let masters =
            self.masters.iter_mut().filter(|side| side.master.config().members.job == message.job);
        for side in masters {
            side.handle(now, packet.src, &message, marked, payload);
        }
    }

    /// Returns the next message of the machine whose turn it is. Its payload is in `payload`.
    fn poll(&mut self, now: Time) -> Option<(HostId, reduce::Header)> {
        let (workers, all) = (self.workers.len(), self.workers.len() + self.masters.len());
        for offset in 0..all {
            let index = (self.turn + offset) % all;
            let message = match index.checked_sub(workers) {
                None => self.workers[index].poll(now),
                Some(master) => self.masters[master].poll(now),
            };
            let Some((to, message, payload)) = message else { continue };
            self.payload.clear();
            self.payload.extend_from_slice(payload);
            self.turn = index + 1;
            return Some((to, message));
        }
        None
    }

    /// Whether a challenge is for a worker here: the instance in it tells it from one for a master.
    fn has_worker(&self, message: &reduce::Header) -> bool {
        let Body::Challenge { instance, .. } = message.body else { return false };
        self.workers.iter().any(|side| {
            let config = side.worker.config();
            config.job == message.job
                && config.number == message.worker
                && config.instance == instance
        })
    }

    /// Whether this lets a worker here go: it is the master's, and the worker has heard of the end.
    fn has_ended(&self, from: HostId, message: &reduce::Header) -> bool {
        self.workers.iter().any(|side| {
            let &worker::Config { job, number, master, .. } = side.worker.config();
            (job, number, master) == (message.job, message.worker, from) && side.outcome.is_some()
        })
    }

    /// The payload of the packet that was polled last.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Whether all jobs of the host have ended, and nothing remains to be sent.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.workers.iter().all(|side| side.outcome.is_some() && side.worker.is_over())
            && self.masters.iter().all(|side| side.master.is_over())
    }
}

impl Node for ReduceNode {
    type Header = Header;
    type Event = Infallible;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, _port: u8, packet: &Packet<Header>) {
        self.receive(now, packet, &[]);
    }

    fn handle_timeout(&mut self, now: Time) {
        for side in &mut self.workers {
            if side.worker.poll_timeout().is_some_and(|at| at <= now) {
                side.handle_timeout(now);
            }
        }
        for side in &mut self.masters {
            if side.master.poll_timeout().is_some_and(|at| at <= now) {
                side.handle_timeout(now);
            }
        }
    }

    fn poll_transmit(&mut self, now: Time, _port: u8) -> Option<Packet<Header>> {
        loop {
            let (to, message) = self.poll(now)?;
            let packet = packet(self.host, to, message);
            if to == self.host {
                // A master and its worker at one host need no network.
                let payload = core::mem::take(&mut self.payload);
                self.receive(now, &packet, &payload);
                continue;
            }
            return Some(match message.body {
                Body::Data(_) | Body::Long { .. } => packet.with_ecn(Ecn::Capable),
                // What is small and ends a wait overtakes pairs.
                _ => packet.with_priority(7),
            });
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        let workers = self.workers.iter().filter_map(|side| side.worker.poll_timeout());
        let masters = self.masters.iter().filter_map(|side| side.master.poll_timeout());
        workers.chain(masters).min()
    }

    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }
}
