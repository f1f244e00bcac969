//! The master: forms the job, reserves slots, and decides where another attempt begins. Elements do not pass through it.
//!
//! Workers learn of the job by one state with a version, as in [`super::super::master`], and answer with the first chunk whose sum they do not
//! have. When a worker or an aggregator has lost its memory, the state says so; once all have answered and slots are reserved again, the
//! next attempt begins at the least of these chunks.

use std::collections::VecDeque;

use rackweave_core::rng::mix;
use rackweave_core::{HostId, Span, Time};
use rackweave_wire::Id64;
use rackweave_wire::reduce::{
    ADDRESS_BYTES, Body, Format, Header, MAX_POOL, MAX_WORKERS, OpenVector, PLAN_BYTES, Phase,
    Plan, Refusal, Shape,
};

use super::super::Failure;
use super::super::master::Absence;
use super::super::master::member::{Arrival, Member};
use super::super::silence::Silence;
use super::layout::Layout;
use super::reservation::{Reservation, Step};

/// The vectors of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vectors {
    /// The number of elements. 0: length and format are those of the first worker that joins, and chunks have as many bytes as here.
    pub length: u64,
    /// What they are.
    pub format: Format,
    /// How many vectors are added up one after the other, at least 1.
    pub steps: u32,
    /// The number of elements of a chunk. SwitchML has 64 or 256 integers of 32 bits.
    pub elements: u16,
    /// The number of chunks that a worker has in flight.
    pub pool: u16,
}

impl Vectors {
    /// One step with chunks of 1024 bytes, of which 64 are in flight.
    #[must_use]
    pub const fn new(length: u64, format: Format) -> Self {
        Self { length, format, steps: 1, elements: 1024 / format.bytes(), pool: 64 }
    }
}

/// How a master behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The number of the job.
    pub job: u16,
    /// The number of workers, 1 to 64.
    pub workers: u8,
    /// What is added up.
    pub vectors: Vectors,
    /// What adds up: the addresses of switches and hosts, in the order in which they are asked.
    pub aggregators: Vec<HostId>,
    /// A random number that becomes the job's token.
    pub token: u64,
    /// A random number from which cookies are made.
    pub secret: u64,
    /// How long a message waits for its answer before it is repeated; it doubles with each repetition.
    pub retry: Span,
    /// How often workers hear of the master, and must answer.
    pub keepalive: Span,
    /// After which silence another process may take a worker's place.
    pub takeover: Span,
    /// How long the master waits for an answer of the aggregator before it asks the next one.
    pub patience: Span,
    /// How long the master waits for a worker that is silent.
    pub give_up: Span,
    /// How long the master waits for all workers to join.
    pub join_within: Span,
}

impl Config {
    /// A master with the timers of [`super::super::master::Config::new`], and 3 s of patience with an aggregator.
    #[must_use]
    pub const fn new(job: u16, workers: u8, vectors: Vectors, token: u64, secret: u64) -> Self {
        Self {
            job,
            workers,
            vectors,
            aggregators: Vec::new(),
            token,
            secret,
            retry: Span::from_ms(20),
            keepalive: Span::from_ms(250),
            takeover: Span::from_secs(1),
            patience: Span::from_secs(3),
            give_up: Span::from_secs(30),
            join_within: Span::from_secs(30),
        }
    }
}

/// What a master reports to its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A worker has joined.
    Joined {
        /// Its number.
        worker: u8,
    },
    /// A worker ends before the job. Another process can take its place.
    Left {
        /// Its number.
        worker: u8,
    },
    /// Another process has taken the place of a worker: the step of the others begins again.
    Replaced {
        /// Its number.
        worker: u8,
    },
    /// A worker's vectors are not those of the job, and it is refused.
    OtherVector {
        /// The worker's number.
        worker: u8,
        /// The number of elements of its vectors.
        length: u64,
        /// What they are.
        format: Format,
    },
    /// An attempt has begun.
    Started {
        /// What adds up.
        aggregator: HostId,
        /// The number of the attempt.
        attempt: u16,
        /// The first chunk of the attempt.
        first: u64,
    },
    /// An aggregator is not used any longer.
    Without {
        /// Its address.
        aggregator: HostId,
        /// The reason: it did not answer, or it refused.
        absence: Absence,
    },
    /// All workers have the sums of all steps.
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
    /// Its payload.
    pub payload: Vec<u8>,
}

/// A worker as the master knows it.
#[derive(Clone, Debug)]
struct Worker {
    member: Member,
    /// The first chunk whose sum it does not have, if it was in the job before the present attempt.
    low: Option<u64>,
}

/// The master of a job.
#[derive(Clone, Debug)]
pub struct Master {
    config: Config,
    attempt: u16,
    version: u32,
    phase: Phase,
    first: u64,
    layout: Option<Layout>,
    workers: Vec<Worker>,
    reservation: Option<Reservation>,
    /// The aggregator that is asked next.
    next_aggregator: usize,
    /// Answers to hosts that are not members.
    answers: VecDeque<(HostId, Header)>,
    /// Whether length and format are those of the first worker that joins.
    adopts: bool,
    events: VecDeque<Event>,
    started: Time,
    closes: u8,
    /// Since the job has ended.
    ended: Option<Silence>,
    stale: u64,
}

impl Master {
    /// A master that waits for its workers from now on. What is impossible in its configuration is replaced by the nearest possible value.
    #[must_use]
    pub fn new(config: Config, now: Time) -> Self {
        let workers = config.workers.clamp(1, MAX_WORKERS);
        let Vectors { length, format, steps, elements, pool } = config.vectors;
        let vectors = Vectors {
            length,
            format,
            steps: steps.max(1),
            elements: elements.clamp(1, format.max_elements()),
            pool: pool.clamp(1, MAX_POOL),
        };
        let config = Config { workers, vectors, ..config };
        let worker = |_| Worker { member: Member::new(1), low: None };
        Self {
            attempt: 0,
            version: 1,
            phase: Phase::Wait,
            first: 0,
            layout: None,
            workers: (0..workers).map(worker).collect(),
            reservation: None,
            next_aggregator: 0,
            answers: VecDeque::new(),
            adopts: length == 0,
            events: VecDeque::new(),
            started: now,
            closes: 0,
            ended: None,
            stale: 0,
            config,
        }
    }

    /// Returns the master's configuration.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the number of messages that did not belong to the job.
    #[must_use]
    pub const fn stale(&self) -> u64 {
        self.stale
    }

    /// Returns the number of the attempt: how often a worker or an aggregator has lost its memory.
    #[must_use]
    pub const fn attempt(&self) -> u16 {
        self.attempt
    }

    /// Returns the numbers of the workers that have not joined.
    pub fn missing(&self) -> impl Iterator<Item = u8> {
        (0_u8..)
            .zip(&self.workers)
            .filter(|(_, worker)| !worker.member.has_joined())
            .map(|(n, _)| n)
    }

    /// Returns the address of a worker that has joined.
    #[must_use]
    pub fn worker_host(&self, number: u8) -> Option<HostId> {
        let member = &self.workers.get(usize::from(number))?.member;
        member.has_joined().then(|| member.host())
    }

    /// Returns how vectors are divided, once an attempt has begun.
    #[must_use]
    pub const fn layout(&self) -> Option<&Layout> {
        self.layout.as_ref()
    }

    /// Returns what adds up, once all workers have joined.
    #[must_use]
    pub fn aggregator(&self) -> Option<HostId> {
        self.reservation.as_ref().map(|reservation| reservation.aggregator)
    }

    /// Returns the first chunk whose sum not all workers have, as far as they have said, and the number of chunks of all steps; `None`
    /// while no attempt is under way.
    #[must_use]
    pub fn summed(&self) -> Option<(u64, u64)> {
        let layout = self.layout.filter(|_| self.phase == Phase::Run)?;
        let lows = self.workers.iter().map(|worker| worker.low.unwrap_or(self.first));
        Some((lows.min()?, layout.end()))
    }

    /// Ends the job: workers are informed.
    pub fn interrupt(&mut self, now: Time) {
        self.fail(now, Failure::Interrupted);
    }

    /// Whether the job has ended, one way or the other.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Whether nothing remains to be sent: the job has ended, and the workers know or do not answer.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let knows =
            |worker: &Worker| !worker.member.has_joined() || worker.member.has(self.version);
        self.ended.is_some() && self.events.is_empty() && self.workers.iter().all(knows)
    }

    fn fail(&mut self, now: Time, failure: Failure) {
        if self.ended.is_none() {
            self.phase = Phase::Failed;
            self.version += 1;
            self.ended = Some(Silence::since(now));
            self.closes = if self.reservation.is_some() { 2 } else { 0 };
            self.events.push_back(Event::Failed(failure));
        }
    }

    /// Handles a message with its payload. Any field may be wrong or forged.
    pub fn handle(&mut self, now: Time, from: HostId, header: &Header, payload: &[u8]) {
        if header.job != self.config.job {
            self.stale += 1;
            return;
        }
        if matches!(header.body, Body::JoinVector { .. }) {
            return self.join(now, from, header, payload);
        }
        if header.token.get() != self.config.token {
            self.stale += 1;
            return;
        }
        if let Body::VectorProgress { version, low, is_known } = header.body {
            return self.progress(now, from, header.worker, version, is_known.then(|| low.get()));
        }
        if header.body == Body::Close {
            return self.leave(from, header.worker);
        }
        let is_current = header.attempt == self.attempt;
        match &mut self.reservation {
            Some(reservation) if reservation.aggregator == from && self.ended.is_none() => {
                let step = reservation.handle(now, &header.body, is_current);
                self.step(now, step);
            }
            _ => self.stale += 1,
        }
    }

    const fn cookie(&self, host: HostId, instance: u32) -> u64 {
        mix(mix(self.config.secret ^ host.0 as u64) ^ instance as u64)
    }

    fn answer(&mut self, to: HostId, header: &Header, body: Body) {
        if self.answers.len() < usize::from(MAX_WORKERS) {
            self.answers.push_back((to, Header { body, token: Id64::new(0), ..*header }));
        }
    }

    fn join(&mut self, now: Time, from: HostId, header: &Header, payload: &[u8]) {
        let Body::JoinVector { instance, cookie, digest } = header.body else { return };
        let Ok(Shape { length, format }) = Shape::decode(payload) else {
            self.stale += 1;
            return;
        };
        let expected = self.cookie(from, instance);
        if cookie.get() != expected {
            let body = Body::Challenge { instance, cookie: Id64::new(expected) };
            return self.answer(from, header, body);
        }
        let number = header.worker;
        if usize::from(number) >= self.workers.len() {
            return;
        }
        let vectors = self.config.vectors;
        let is_first = vectors.length == 0;
        if !is_first && (vectors.length, vectors.format) != (length, format) {
            // A worker repeats its message until it has the answer; one event suffices.
            let event = Event::OtherVector { worker: number, length, format };
            if !self.events.contains(&event) {
                self.events.push_back(event);
            }
            let body = Body::VectorState { version: 0, instance, phase: Phase::Wait };
            return self.answer(from, header, body);
        }
        let (takeover, must_equal) = (self.config.takeover, self.layout.is_some());
        let Some(worker) = self.workers.get_mut(usize::from(number)) else { return };
        let digest = (digest.get(), must_equal);
        let arrival = worker.member.join(now, (from, instance), digest, takeover);
        if arrival == Arrival::First {
            self.events.push_back(Event::Joined { worker: number });
        }
        if is_first && worker.member.has_joined() {
            let bytes = u32::from(vectors.elements) * u32::from(vectors.format.bytes());
            let elements = (bytes / u32::from(format.bytes())) as u16;
            let elements = elements.clamp(1, format.max_elements());
            self.config.vectors = Vectors { length, format, elements, ..vectors };
        }
        if arrival == Arrival::Replaced && self.ended.is_none() {
            worker.low = None;
            self.events.push_back(Event::Replaced { worker: number });
            // The aggregator has the address of the one that was replaced.
            if self.reservation.is_some() {
                self.restart(now);
            }
        }
        if self.reservation.is_none() && self.ended.is_none() && self.missing().next().is_none() {
            self.reserve(now);
        }
    }

    /// A worker ends before the job does.
    fn leave(&mut self, from: HostId, number: u8) {
        let is_waiting = self.reservation.is_none();
        let worker = self.workers.get_mut(usize::from(number));
        let Some(worker) = worker.filter(|worker| worker.member.host() == from) else {
            self.stale += 1;
            return;
        };
        if self.ended.is_none() && !worker.member.has_left() {
            worker.member.leave(is_waiting);
            self.events.push_back(Event::Left { worker: number });
            let is_empty = self.workers.iter().all(|worker| !worker.member.has_joined());
            if self.adopts && is_empty {
                self.config.vectors.length = 0;
            }
        }
    }

    /// Asks the next aggregator for slots.
    fn reserve(&mut self, now: Time) -> bool {
        let Config { retry, patience, .. } = self.config;
        let next = self.config.aggregators.get(self.next_aggregator).copied();
        self.next_aggregator += usize::from(next.is_some());
        let Some(aggregator) = next else { return false };
        self.reservation = Some(Reservation::new(aggregator, now, retry, patience));
        true
    }

    /// Ends the attempt: workers say what they have, and slots are reserved for the next one.
    fn restart(&mut self, now: Time) {
        let Some(attempt) = self.attempt.checked_add(1) else {
            return self.fail(now, Failure::TooManyAttempts);
        };
        self.attempt = attempt;
        self.phase = Phase::Wait;
        self.version += 1;
        if let Some(reservation) = &mut self.reservation {
            reservation.begin(now);
        }
    }

    fn step(&mut self, now: Time, step: Step) {
        let Some(reservation) = &self.reservation else { return };
        let aggregator = reservation.aggregator;
        match step {
            Step::None => {}
            Step::Stale => self.stale += 1,
            Step::Ready(pool) => {
                let needed = self.layout.map_or(1, |layout| layout.pool);
                if pool < needed {
                    return self.without(now, aggregator, Absence::Refused(Refusal::Full));
                }
                self.layout.get_or_insert_with(|| {
                    let Config { vectors, workers, .. } = self.config;
                    let Vectors { length, format, steps, elements, .. } = vectors;
                    Layout { length, elements, pool, format, steps, workers }
                });
                self.run(now);
            }
            Step::Lost => self.restart(now),
            Step::Absent(absence) => self.without(now, aggregator, absence),
        }
    }

    /// Goes on with the next aggregator.
    fn without(&mut self, now: Time, aggregator: HostId, absence: Absence) {
        self.events.push_back(Event::Without { aggregator, absence });
        self.reservation = None;
        if !self.reserve(now) {
            return self.fail(now, Failure::NoAggregator { aggregator, absence });
        }
        self.restart(now);
    }

    /// The number of chunks in flight: that of the first attempt, since chunks are numbered by it.
    fn pool(&self) -> u16 {
        let Vectors { length, elements, pool, .. } = self.config.vectors;
        let blocks = length.div_ceil(u64::from(elements)).min(u64::from(pool));
        self.layout.map_or(blocks as u16, |layout| layout.pool)
    }

    fn progress(&mut self, now: Time, from: HostId, number: u8, version: u32, low: Option<u64>) {
        let current = self.version;
        let worker = self.workers.get_mut(usize::from(number));
        let Some(worker) = worker.filter(|worker| worker.member.host() == from) else {
            self.stale += 1;
            return;
        };
        worker.member.hear(now);
        if version != current || self.ended.is_some() {
            if version == current {
                worker.member.confirm(version, true);
            }
            return;
        }
        worker.member.confirm(version, true);
        worker.low = low;
        match (self.phase, self.layout) {
            (Phase::Wait, _) => self.run(now),
            (Phase::Run, Some(layout)) => {
                let is_done = |worker: &Worker| worker.low.is_some_and(|low| low >= layout.end());
                if self.workers.iter().all(is_done) {
                    self.phase = Phase::Done;
                    self.version += 1;
                    (self.ended, self.closes) = (Some(Silence::since(now)), 2);
                    self.events.push_back(Event::Complete);
                }
            }
            _ => {}
        }
    }

    /// Begins the attempt, if slots are reserved and all workers have said what they have.
    fn run(&mut self, now: Time) {
        let (Some(layout), Some(reservation)) = (self.layout, &self.reservation) else { return };
        let has_said = |worker: &Worker| worker.member.has(self.version);
        if !reservation.is_open() || !self.workers.iter().all(has_said) {
            return;
        }
        let lows = self.workers.iter().filter_map(|worker| worker.low);
        let least = lows.min().unwrap_or(0);
        let is_known = |worker: &Worker| worker.low.is_some();
        self.first = if self.workers.iter().all(is_known) || least == 0 {
            least
        } else {
            // A worker without memory needs all of a step. One that all others have is over.
            let step = layout.step(least).min(layout.steps - 1);
            layout.start(step)
        };
        let (aggregator, attempt, first) = (reservation.aggregator, self.attempt, self.first);
        self.phase = Phase::Run;
        self.version += 1;
        self.events.push_back(Event::Started { aggregator, attempt, first });
        for worker in &mut self.workers {
            worker.member.hear(now);
        }
    }

    /// Called when the time that [`Master::poll_timeout`] returned has come.
    pub fn handle_timeout(&mut self, now: Time) {
        if let Some(ended) = &mut self.ended {
            // Workers that are gone do not answer.
            if ended.look(now, self.config.takeover) {
                for worker in &mut self.workers {
                    worker.member.confirm(self.version, true);
                }
            }
            return;
        }
        if let Some(reservation) = &mut self.reservation {
            let step = reservation.handle_timeout(now);
            self.step(now, step);
        }
        let give_up = self.config.give_up;
        let missing = self.missing().fold(0, |set, number| set | 1 << number);
        if missing != 0 && now >= self.started.saturating_add(self.config.join_within) {
            return self.fail(now, Failure::NotJoined { workers: missing });
        }
        let is_silent = |worker: &mut Worker| worker.member.is_silent(now, give_up);
        if let Some(worker) = self.workers.iter_mut().position(is_silent) {
            let (member, worker) = (&self.workers[worker].member, worker as u8);
            let failure = match () {
                () if member.has_met_other() => Failure::OtherInput { worker },
                () if member.has_left() => Failure::WorkerLeft { worker },
                () => Failure::WorkerSilent { worker },
            };
            self.fail(now, failure);
        }
    }

    /// Returns when to call [`Master::handle_timeout`], or to poll again.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.is_over() {
            return None;
        }
        let Config { retry, keepalive, give_up, takeover, join_within, .. } = self.config;
        let has_ended = self.ended.is_some();
        let members = || self.workers.iter().map(|worker| &worker.member);
        let joined = || members().filter(|member| member.has_joined());
        let states = joined()
            .filter(|member| !(has_ended && member.has(self.version)))
            .map(|member| member.due(self.version, retry, keepalive));
        let give_up = match self.ended {
            Some(ended) => Some(ended.due(takeover)),
            None => {
                let silent = joined().map(|member| member.silent_due(give_up));
                let start = self.started.saturating_add(join_within);
                let start = self.missing().next().map(|_| start);
                silent.chain(start).min()
            }
        };
        let reservation = self.reservation.as_ref().filter(|_| !has_ended);
        let reservation = reservation.map(Reservation::poll_timeout);
        states.chain(give_up).chain(reservation).min()
    }

    fn header(&self, worker: u8, body: Body) -> Header {
        let (job, token) = (self.config.job, Id64::new(self.config.token));
        Header { job, attempt: self.attempt, worker, token, body }
    }

    fn addresses(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.workers.len() * ADDRESS_BYTES);
        for worker in &self.workers {
            bytes.extend_from_slice(&worker.member.host().0.to_be_bytes());
        }
        bytes
    }

    /// The payload of the answer to a worker that has other vectors.
    fn vectors(&self) -> Vec<u8> {
        let Vectors { length, format, steps, elements, pool } = self.config.vectors;
        let (aggregator, workers) = (HostId(0), self.config.workers);
        Plan { aggregator, first: 0, length, steps, pool, elements, format, workers }.encode()
    }

    /// The payload of a state.
    fn plan(&self) -> Vec<u8> {
        match (&self.layout, &self.reservation) {
            (Some(layout), Some(reservation)) if self.phase == Phase::Run => {
                let Layout { length, elements, pool, format, steps, workers } = *layout;
                let (aggregator, first) = (reservation.aggregator, self.first);
                Plan { aggregator, first, length, steps, pool, elements, format, workers }.encode()
            }
            _ => vec![0; PLAN_BYTES as usize],
        }
    }

    /// Returns the next message, if there is something to send now.
    pub fn poll(&mut self, now: Time) -> Option<Outgoing> {
        if let Some((to, header)) = self.answers.pop_front() {
            let is_refusal = matches!(header.body, Body::VectorState { .. });
            let payload = if is_refusal { self.vectors() } else { Vec::new() };
            return Some(Outgoing { to, header, payload });
        }
        if self.ended.is_none()
            && let Some(reservation) = &mut self.reservation
            && reservation.poll(now)
        {
            let (to, cookie) = (reservation.aggregator, Id64::new(reservation.cookie));
            let Vectors { elements, format, .. } = self.config.vectors;
            let (pool, workers) = (self.pool(), self.config.workers);
            let body = Body::OpenVector(OpenVector { cookie, pool, elements, format, workers });
            let payload = self.addresses();
            return Some(Outgoing { to, header: self.header(0, body), payload });
        }
        if self.closes > 0 {
            self.closes -= 1;
            let to = self.reservation.as_ref()?.aggregator;
            let (header, payload) = (self.header(0, Body::Close), Vec::new());
            return Some(Outgoing { to, header, payload });
        }
        let Config { retry, keepalive, .. } = self.config;
        let (version, phase, has_ended) = (self.version, self.phase, self.ended.is_some());
        let is_due = |worker: &Worker| {
            let member = &worker.member;
            member.has_joined()
                && member.due(version, retry, keepalive) <= now
                && !(has_ended && member.has(version))
        };
        let number = self.workers.iter().position(is_due)?;
        let member = &mut self.workers[number].member;
        member.announce(now, version);
        let (to, instance) = (member.host(), member.instance());
        let body = Body::VectorState { version, instance, phase };
        Some(Outgoing { to, header: self.header(number as u8, body), payload: self.plan() })
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}
