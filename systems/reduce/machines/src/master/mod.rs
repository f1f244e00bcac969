//! The master: forms the job, reserves slots, collects what the switch could not take, and fetches the sums of each epoch.
//!
//! The worker's view of the job is one small state with a version ([`State`]), which the master repeats until each worker has
//! confirmed it; so a start, a free epoch, a pause, another attempt and the end are one message. If a worker or the switch loses its
//! memory, what it had added to a sum cannot be subtracted: the sums of open epochs are discarded, and the workers send these epochs again in
//! another attempt. Epochs whose sums the master has are never repeated.

mod config;
pub(super) mod switch;
mod taken;

use std::collections::VecDeque;

use rackweave_core::{HostId, Span, Time};
use rackweave_wire::Id64;
use rackweave_wire::reduce::{Body, Header, MAX_WORKERS, Pairs, Phase, Rule, State};

use self::switch::{Step, SwitchSide};
use self::taken::Taken;
use super::Failure;
use super::membership::{self, Arrival, Leaving, Membership, Silence};
use super::sketch::Sketch;

pub use self::config::{Aggregation, Config, Epochs};
pub use self::switch::Absence;

/// What the driver does with the payload of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Nothing.
    Discard,
    /// Combine these pairs with the sums of the epoch.
    Pairs {
        /// The epoch.
        epoch: u16,
    },
    /// Combine these sums with those of the epoch.
    Sums {
        /// The epoch.
        epoch: u16,
    },
    /// These are bytes of the records of a worker.
    Long {
        /// The worker.
        worker: u8,
        /// The epoch.
        epoch: u16,
        /// Offset of the first byte.
        offset: u32,
    },
}

/// What a master reports to its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A worker has joined, or another process in its place.
    Joined {
        /// The worker.
        worker: u8,
    },
    /// A worker ends before the job. Another process can take its place at once.
    Left {
        /// The worker.
        worker: u8,
    },
    /// All workers have joined, and the job waits for [`Master::grant`].
    Ready,
    /// All workers have joined, and the epochs have been chosen.
    Started {
        /// The number of slots that the switch has granted, 0 without a switch.
        slots: u32,
        /// The number of epochs.
        epochs: u16,
        /// The estimated number of distinct keys.
        keys: u64,
    },
    /// The job goes on without the switch.
    WithoutSwitch(Absence),
    /// The sums of the epochs from `first` on must be discarded: they will be sent again.
    Discard {
        /// The first such epoch.
        first: u16,
        /// The worker that has lost its memory; `None` if it was the switch.
        worker: Option<u8>,
    },
    /// A worker has finished an epoch. The driver has received this many bytes of records from it, or the job has failed.
    Finished {
        /// The worker.
        worker: u8,
        /// The epoch.
        epoch: u16,
        /// The length of its records in bytes.
        long_bytes: u32,
        /// The number of its pairs without those in records, as it says.
        pairs: u32,
    },
    /// All sums of an epoch are there.
    Drained {
        /// The epoch.
        epoch: u16,
    },
    /// Nothing is under way: the network can be reconfigured until [`Master::resume`].
    Quiesced,
    /// The sums of all epochs are there. With [`Config::holds_end`] the job ends by [`Master::conclude`].
    Complete,
    /// The job has failed.
    Failed(Failure),
}

/// A message of a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Where it goes.
    pub to: HostId,
    /// The message.
    pub header: Header,
    /// Whether its payload is [`Master::addresses`].
    pub has_addresses: bool,
}

/// What a master has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets of pairs and records that were taken.
    pub packets: u64,
    /// Pairs that came from workers or that the switch had no slots for.
    pub pairs: u64,
    /// Sums that were fetched from the switch.
    pub sums: u64,
    /// Packets that had been taken before.
    pub duplicates: u64,
    /// Messages that do not belong to the job.
    pub stale: u64,
    /// Attempts after the first.
    pub restarts: u64,
}

/// How many times as long as for a silent worker the master waits for workers that answer but send nothing. Rackweave's choice: at 1 Mbps
/// the largest epoch of a table of 65,536 slots takes a few seconds.
const STUCK_FOR: u64 = 10;

/// The most acknowledgements that wait for the link. A worker repeats what is not acknowledged.
const MAX_ACKS: usize = 8192;

/// The master of a job.
#[derive(Clone, Debug)]
pub struct Master {
    config: Config,
    attempt: u16,
    phase: Phase,
    epochs: u16,
    drained: u16,
    /// The workers that have finished each open epoch, by epoch modulo 2.
    finished: [u64; 2],
    members: Membership,
    /// The packets of each worker that were taken.
    taken: Vec<Taken>,
    sketch: Sketch,
    switch: SwitchSide,
    acks: VecDeque<(HostId, Header)>,
    events: VecDeque<Event>,
    /// Since a worker has sent something new, or sums were collected, for the last time.
    progressed: Silence,
    is_held: bool,
    is_ready: bool,
    is_quiesced: bool,
    closes: u8,
    counters: Counters,
}

impl Master {
    /// A master that waits for its workers from now on.
    #[must_use]
    pub fn new(config: Config, now: Time) -> Self {
        let workers = config.members.workers.clamp(1, MAX_WORKERS);
        let members = membership::Config { workers, ..config.members };
        let config = Config { members, ..config };
        let mut switch = SwitchSide::new(config.aggregation, members.retry);
        if config.probe {
            switch.probe(now);
        }
        Self {
            config,
            attempt: 0,
            phase: Phase::Wait,
            epochs: 0,
            drained: 0,
            finished: [0; 2],
            members: Membership::new(members, now),
            taken: (0..workers).map(|_| Taken::new(config.window)).collect(),
            sketch: Sketch::default(),
            switch,
            acks: VecDeque::new(),
            events: VecDeque::new(),
            progressed: Silence::since(now),
            is_held: config.hold,
            is_ready: false,
            is_quiesced: false,
            closes: 0,
            counters: Counters::default(),
        }
    }

    /// Returns the master's configuration.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Returns what the master has done.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the number of epochs and how many of them are complete.
    #[must_use]
    pub const fn progress(&self) -> (u16, u16) {
        (self.epochs, self.drained)
    }

    /// Returns the numbers of the workers that have not joined.
    pub fn missing(&self) -> impl Iterator<Item = u8> {
        self.members.missing()
    }

    /// Returns a process that wants to be a worker and is not taken, which was not returned before.
    pub fn poll_refused(&mut self) -> Option<membership::NotTaken> {
        self.members.poll_refused()
    }

    /// Returns the address of the process that has joined under a worker's number.
    #[must_use]
    pub fn worker_host(&self, worker: u8) -> Option<HostId> {
        self.members.host_of(worker)
    }

    /// Whether nothing remains to be sent: the job has ended, and the workers know or do not answer.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.members.is_over() && self.events.is_empty()
    }

    /// Whether the job has ended, one way or the other.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.members.has_ended()
    }

    /// The addresses of the workers, as [`Body::Open`] carries them.
    #[must_use]
    pub fn addresses(&self) -> Vec<u8> {
        self.members.addresses()
    }

    /// Stops the job: workers send nothing new, and [`Event::Quiesced`] follows once all they have sent is acknowledged.
    pub fn quiesce(&mut self) {
        if self.phase == Phase::Run {
            self.phase = Phase::Quiesce;
            self.is_quiesced = false;
            self.members.change();
        }
    }

    /// Goes on after [`Master::quiesce`].
    pub fn resume(&mut self) {
        if self.phase == Phase::Quiesce {
            self.phase = Phase::Run;
            self.members.change();
        }
    }

    /// Whether the job is stopped, and all that workers have sent is acknowledged: [`Event::Quiesced`] says when that begins.
    #[must_use]
    pub fn is_quiesced(&self) -> bool {
        self.phase == Phase::Quiesce && self.is_quiesced
    }

    /// The driver has found that the job cannot be right, for instance records that cannot be read.
    pub fn fail(&mut self, now: Time, failure: Failure) {
        if self.phase != Phase::Failed {
            self.phase = Phase::Failed;
            self.members.change();
            self.members.fail(now);
            self.events.push_back(Event::Failed(failure));
        }
    }

    /// Ends a job that waits for its driver ([`Config::holds_end`]): the sums are written, or they cannot be.
    pub fn conclude(&mut self, now: Time, is_written: bool) {
        if self.phase != Phase::Commit {
            return;
        }
        if is_written {
            self.phase = Phase::Done;
            self.members.change();
            self.members.complete(now);
        } else {
            self.fail(now, Failure::NotWritten);
        }
    }

    /// Handles a message, and returns what is done with its payload. Only a sketch is read here. Any field may
    /// be wrong or forged.
    pub fn handle(
        &mut self,
        now: Time,
        from: HostId,
        header: &Header,
        marked: bool,
        payload: &[u8],
    ) -> Placement {
        if header.job != self.config.members.job {
            return self.stale();
        }
        if let Body::Join { instance, cookie, digest } = header.body {
            self.join(now, from, header, (instance, cookie.get(), digest.get()), payload);
            return Placement::Discard;
        }
        if header.token.get() != self.config.members.token {
            return self.stale();
        }
        match header.body {
            Body::Data(pairs) if self.aggregator() == self.config.host => {
                self.pairs(now, from, header, pairs, marked)
            }
            Body::Residual(pairs) if self.switch.is_used() => {
                self.pairs(now, from, header, pairs, marked)
            }
            Body::Long { seq, epoch, offset, .. } => {
                if !self.take(now, from, header, seq, epoch, marked) {
                    return Placement::Discard;
                }
                Placement::Long { worker: header.worker, epoch, offset }
            }
            Body::Fin { seq, epoch, long_bytes, pairs } => {
                if self.take(now, from, header, seq, epoch, marked) {
                    let worker = header.worker;
                    self.finished[usize::from(epoch) % 2] |= 1 << worker;
                    self.events.push_back(Event::Finished { worker, epoch, long_bytes, pairs });
                    self.advance(now);
                }
                Placement::Discard
            }
            Body::Confirm { version, idle } => {
                self.confirm(now, from, header, version, idle);
                Placement::Discard
            }
            Body::Close => {
                self.leave(from, header.worker);
                Placement::Discard
            }
            _ if Some(from) == self.switch.address() && self.phase != Phase::Commit => {
                self.handle_switch(now, header)
            }
            _ => self.stale(),
        }
    }

    const fn stale(&mut self) -> Placement {
        self.counters.stale += 1;
        Placement::Discard
    }

    fn join(
        &mut self,
        now: Time,
        from: HostId,
        header: &Header,
        (instance, cookie, digest): (u32, u64, u64),
        payload: &[u8],
    ) {
        let Some(sketch) = Sketch::from_bytes(payload) else { return };
        if !self.members.admits(from, header, instance, cookie) {
            return;
        }
        // Before sums are collected, all that the former process has sent is discarded.
        let digest = (digest, self.drained > 0);
        let arrival = self.members.join(now, header.worker, (from, instance), digest);
        match arrival {
            None => return,
            Some(Arrival::Known | Arrival::Taken | Arrival::OtherInput) => {}
            Some(arrival @ (Arrival::First | Arrival::Replaced)) => {
                // Another life of the worker has the same pairs, so that the estimate of the keys remains.
                if arrival == Arrival::First {
                    self.sketch.merge(&sketch);
                }
                self.events.push_back(Event::Joined { worker: header.worker });
                // The switch knows the addresses of the workers from the request for slots, also while that is under way.
                let is_running = matches!(self.phase, Phase::Run | Phase::Quiesce);
                if is_running || self.switch.is_opening() {
                    self.restart(now, Some(header.worker));
                }
            }
        }
        let is_waiting = self.phase == Phase::Wait && !self.switch.is_opening();
        if is_waiting && self.members.is_complete() {
            self.start(now);
        }
    }

    /// Lets a job begin that waits ([`Config::hold`]), with these slots or without a switch.
    pub fn grant(&mut self, now: Time, aggregation: Option<Aggregation>) {
        if !self.is_held || self.has_ended() {
            return;
        }
        self.is_held = false;
        self.config.aggregation = aggregation;
        self.switch = SwitchSide::new(aggregation, self.config.members.retry);
        if self.is_ready {
            self.start(now);
        }
    }

    /// Whether all workers have joined, and the job waits for [`Master::grant`].
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        self.is_held && self.is_ready
    }

    /// The estimated number of distinct keys of the workers that have joined.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.sketch.estimate()
    }

    /// All workers are there: the switch is asked for slots, or the job begins.
    fn start(&mut self, now: Time) {
        if !core::mem::replace(&mut self.is_ready, true) && self.is_held {
            self.events.push_back(Event::Ready);
        }
        if self.is_held || self.switch.begin(now) {
            return;
        }
        self.run(now);
    }

    /// Begins with the slots that are there.
    fn run(&mut self, now: Time) {
        if self.epochs == 0 {
            let keys = self.sketch.estimate();
            let (slots, is_used) = (self.switch.slots(), self.switch.is_used());
            let aggregation = self.config.aggregation.filter(|_| is_used);
            self.epochs = aggregation.map_or(1, |wanted| wanted.epochs(slots, keys));
            self.events.push_back(Event::Started { slots, epochs: self.epochs, keys });
        }
        if self.phase == Phase::Wait {
            self.phase = Phase::Run;
        }
        self.members.change();
        self.progressed.hear(now);
        self.members.hear_all(now);
    }

    /// Discards the sums of open epochs and begins another attempt.
    fn restart(&mut self, now: Time, worker: Option<u8>) {
        let Some(attempt) = self.attempt.checked_add(1) else {
            return self.fail(now, Failure::TooManyAttempts);
        };
        self.attempt = attempt;
        self.counters.restarts += 1;
        self.finished = [0; 2];
        self.members.make_busy();
        self.taken.iter_mut().for_each(Taken::forget);
        self.acks.clear();
        self.is_quiesced = false;
        self.events.push_back(Event::Discard { first: self.drained, worker });
        if !self.switch.begin(now) {
            self.members.change();
        }
    }

    fn pairs(
        &mut self,
        now: Time,
        from: HostId,
        header: &Header,
        pairs: Pairs,
        marked: bool,
    ) -> Placement {
        if self.config.aggregation.is_some_and(|wanted| wanted.rule == Rule::Counter) {
            // P4-ORDC's master takes whatever the switch sends.
            self.acknowledge(from, header, pairs.seq, marked);
        } else if !self.take(now, from, header, pairs.seq, pairs.epoch, marked) {
            return Placement::Discard;
        }
        self.counters.pairs += u64::from(pairs.count);
        Placement::Pairs { epoch: pairs.epoch }
    }

    /// Returns whether a packet is new and of an open epoch, and acknowledges it if it is not beyond its window.
    fn take(
        &mut self,
        now: Time,
        from: HostId,
        header: &Header,
        seq: u32,
        epoch: u16,
        marked: bool,
    ) -> bool {
        let is_open = (self.drained..self.drained.saturating_add(2)).contains(&epoch)
            && epoch < self.epochs
            && !self.switch.is_opening();
        let taken = self.taken.get_mut(usize::from(header.worker));
        let member = self.members.member(header.worker, from);
        let Some((member, taken)) = member.zip(taken) else {
            self.stale();
            return false;
        };
        if header.attempt != self.attempt {
            self.stale();
            return false;
        }
        member.hear(now);
        match taken.has(seq) {
            None => {
                self.stale();
                return false;
            }
            Some(true) => {
                self.counters.duplicates += 1;
                self.acknowledge(from, header, seq, marked);
                return false;
            }
            Some(false) => {}
        }
        if !is_open {
            self.stale();
            return false;
        }
        taken.insert(seq);
        self.progressed.hear(now);
        self.counters.packets += 1;
        self.acknowledge(from, header, seq, marked);
        true
    }

    fn acknowledge(&mut self, to: HostId, header: &Header, seq: u32, marked: bool) {
        if self.acks.len() < MAX_ACKS {
            self.acks.push_back((to, Header { body: Body::Ack { seq, marked }, ..*header }));
        }
    }

    fn confirm(&mut self, now: Time, from: HostId, header: &Header, version: u32, idle: bool) {
        let current = self.members.version();
        let Some(member) = self.members.member(header.worker, from) else {
            self.stale();
            return;
        };
        member.hear(now);
        if self.phase != Phase::Run {
            // Workers that have been stopped have nothing new to send.
            self.progressed.hear(now);
        }
        if version == current {
            member.confirm(version, idle);
            self.check_quiesced();
            if self.phase == Phase::Done && self.config.holds_end {
                // It stays until it knows that its confirmation is here.
                let membership::Config { job, token, .. } = self.config.members;
                let (attempt, worker, token) = (self.attempt, header.worker, Id64::new(token));
                let body = Body::Close;
                self.acks.push_back((from, Header { job, attempt, worker, token, body }));
            }
        }
    }

    /// A worker ends. Its sums remain until another process takes its place, or until it is missed.
    fn leave(&mut self, from: HostId, worker: u8) {
        match self.members.leave(from, worker, self.phase != Phase::Wait) {
            Leaving::Left => self.events.push_back(Event::Left { worker }),
            Leaving::Again | Leaving::Stranger => self.counters.stale += 1,
        }
    }

    fn check_quiesced(&mut self) {
        if self.phase == Phase::Quiesce
            && !self.is_quiesced
            && !self.switch.is_busy()
            && self.members.are_idle()
        {
            self.is_quiesced = true;
            self.events.push_back(Event::Quiesced);
        }
    }

    /// Collects the first open epoch once all workers have finished it.
    fn advance(&mut self, now: Time) {
        let all = self.members.all();
        while self.drained < self.epochs && self.finished[usize::from(self.drained) % 2] == all {
            let is_exact = self.config.aggregation.is_some_and(|wanted| wanted.rule == Rule::Exact);
            if is_exact && self.switch.is_used() {
                self.switch.drain(now, self.drained);
                return;
            }
            self.drain(now);
        }
    }

    /// All sums of the first open epoch are there.
    fn drain(&mut self, now: Time) {
        let epoch = self.drained;
        self.progressed.hear(now);
        self.finished[usize::from(epoch) % 2] = 0;
        self.drained += 1;
        self.members.change();
        self.events.push_back(Event::Drained { epoch });
        if self.drained == self.epochs {
            if self.config.holds_end {
                // All that workers have is here: one that goes now is not missed.
                self.phase = Phase::Commit;
            } else {
                self.phase = Phase::Done;
                self.members.complete(now);
            }
            self.closes = if self.switch.is_used() { 2 } else { 0 };
            self.events.push_back(Event::Complete);
        }
    }

    fn handle_switch(&mut self, now: Time, header: &Header) -> Placement {
        let is_current = header.attempt == self.attempt;
        let step = self.switch.handle(now, &header.body, is_current);
        self.step(now, step)
    }

    fn step(&mut self, now: Time, step: Step) -> Placement {
        match step {
            Step::None => Placement::Discard,
            Step::Stale => self.stale(),
            Step::Ready => {
                self.run(now);
                Placement::Discard
            }
            Step::Sums { epoch, sums } => {
                self.counters.sums += u64::from(sums);
                Placement::Sums { epoch }
            }
            Step::Drained => {
                self.drain(now);
                self.advance(now);
                self.check_quiesced();
                Placement::Discard
            }
            Step::Lost => {
                self.restart(now, None);
                Placement::Discard
            }
            Step::Absent(absence) => {
                self.events.push_back(Event::WithoutSwitch(absence));
                Placement::Discard
            }
            Step::Without(absence) => {
                self.events.push_back(Event::WithoutSwitch(absence));
                if self.epochs == 0 {
                    self.run(now);
                } else {
                    self.restart(now, None);
                }
                Placement::Discard
            }
        }
    }

    /// The address that workers send pairs to.
    fn aggregator(&self) -> HostId {
        let switch = self.switch.address().filter(|_| self.switch.is_used());
        switch.unwrap_or(self.config.host)
    }

    /// Called when the time that [`Master::poll_timeout`] returned has come.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.members.expire(now) || self.phase == Phase::Commit {
            return;
        }
        let step = self.switch.handle_timeout(now);
        self.step(now, step);
        if let Some(failure) = self.members.not_joined(now) {
            return self.fail(now, failure);
        }
        let stuck_for = self.stuck_for();
        if self.phase == Phase::Run && self.progressed.look(now, stuck_for) {
            let workers = self.members.all() & !self.finished[usize::from(self.drained) % 2];
            return self.fail(now, Failure::NoProgress { workers });
        }
        if let Some(failure) = self.members.silent(now, 0) {
            self.fail(now, failure);
        }
    }

    /// After which time the job fails in which nothing new arrives, though all workers answer.
    const fn stuck_for(&self) -> Span {
        self.config.members.give_up.saturating_mul(STUCK_FOR)
    }

    /// Returns when to call [`Master::handle_timeout`], or to poll again.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.is_over() {
            return None;
        }
        let has_ended = self.has_ended() || self.phase == Phase::Commit;
        // While slots are reserved for another attempt, workers must not begin it.
        let is_announced = has_ended || !self.switch.is_opening();
        let state = is_announced.then(|| self.members.announcement_due()).flatten();
        let is_running = self.phase == Phase::Run;
        let stuck = is_running.then(|| self.progressed.due(self.stuck_for()));
        let switch = if has_ended { None } else { self.switch.poll_timeout() };
        let is_patient = self.phase == Phase::Commit;
        let patience = if is_patient { None } else { self.members.patience_due(0) };
        [state, patience, stuck, switch].into_iter().flatten().min()
    }

    /// Returns the next message, if there is something to send now.
    pub fn poll(&mut self, now: Time) -> Option<Outgoing> {
        let plain = |to, header| Some(Outgoing { to, header, has_addresses: false });
        if let Some((to, header)) = self.acks.pop_front().or_else(|| self.members.poll_answer()) {
            return plain(to, header);
        }
        let membership::Config { job, token, .. } = self.config.members;
        let token = Id64::new(token);
        let (attempt, is_opening) = (self.attempt, self.switch.is_opening());
        let has_sums = self.has_ended() || self.phase == Phase::Commit;
        if !has_sums && let Some(body) = self.switch.poll(now, &self.config, self.drained) {
            let to = self.switch.address()?;
            let has_addresses = matches!(body, Body::Open(_));
            return Some(Outgoing {
                to,
                header: Header { job, attempt, worker: 0, token, body },
                has_addresses,
            });
        }
        if self.closes > 0 {
            self.closes -= 1;
            let header = Header { job, attempt, worker: 0, token, body: Body::Close };
            return plain(self.switch.address()?, header);
        }
        // While slots are reserved for another attempt, workers must not begin it.
        if is_opening && !has_sums {
            return None;
        }
        let (worker, to, instance) = self.members.poll_announcement(now)?;
        let body = Body::State(State {
            version: self.members.version(),
            instance,
            aggregator: self.aggregator(),
            epochs: self.epochs,
            drained: self.drained,
            window: self.config.window,
            copies: self.config.aggregation.map_or(1, |wanted| wanted.copies.clamp(1, 2)),
            phase: self.phase,
            operator: self.config.operator,
        });
        plain(to, Header { job, attempt, worker, token, body })
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}
