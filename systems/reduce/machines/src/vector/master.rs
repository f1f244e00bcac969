//! The master: forms the job, reserves slots, and decides where another attempt begins. Elements do not pass through it.
//!
//! Workers learn of the job by one state with a version ([`super::super::membership`]), and answer with the first chunk whose sum they do not
//! have. When a worker or an aggregator has lost its memory, the state says so; once all have answered and slots are reserved again, the
//! next attempt begins at the least of these chunks.
//!
//! A job whose workers have results to write ends in two phases ([`Config::commits`]), Rackweave's choice. A worker prepares its result
//! and says that it has all sums. When all have, the master commits: each worker names its result, and says so. When all have, the job is
//! complete. A worker that returns between the two is one more attempt of the last step: the others remain, and have its elements.

use std::collections::VecDeque;

use rackweave_core::{HostId, Span, Time};
use rackweave_wire::Id64;
use rackweave_wire::reduce::{
    Blame, Body, Format, Header, MAX_POOL, MAX_WORKERS, Offer, OpenVector, PLAN_BYTES, Phase, Plan,
    Refusal, Shape, done_payload,
};

use super::super::Failure;
use super::super::master::Absence;
use super::super::membership::{self, Arrival, Leaving, Membership};
use super::layout::Layout;
use super::offers::Offers;
use super::reservation::{Reservation, Step};

/// The vectors of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vectors {
    /// The number of elements. 0: length and format are those of the first worker that joins, and chunks have as many bytes as here. In an
    /// open job it is 0.
    pub length: u64,
    /// What they are.
    pub format: Format,
    /// How many vectors are added up one after the other. 0: the job is open, see [`super::layout`].
    pub steps: u32,
    /// The number of elements of a chunk. SwitchML has 64 or 256 integers of 32 bits.
    pub elements: u16,
    /// The number of chunks that a worker has in flight.
    pub pool: u16,
}

impl Vectors {
    /// One step with chunks of 1024 bytes, 64 of them in flight.
    #[must_use]
    pub const fn new(length: u64, format: Format) -> Self {
        Self { length, format, steps: 1, elements: 1024 / format.bytes(), pool: 64 }
    }
}

/// How a master behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The job, and how its workers are kept.
    pub members: membership::Config,
    /// What is added up.
    pub vectors: Vectors,
    /// What adds up: the addresses of switches and hosts, in the order in which they are asked.
    pub aggregators: Vec<HostId>,
    /// How long the master waits for an answer of the aggregator before it asks the next one.
    pub patience: Span,
    /// Whether workers have results that get their names when all have their sums: the job is then complete when all results have
    /// their names, and not when all sums are there.
    pub commits: bool,
    /// The digest that workers of an open job must have, so that no stranger becomes one; 0: any.
    pub key: Key,
}

/// What processes must know to become workers of an open job; 0: nothing. It is not printed.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Key(pub u64);

impl core::fmt::Debug for Key {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Config {
    /// A master with the timers of [`membership::Config::new`], 3 s of patience with an aggregator, and no commit.
    #[must_use]
    pub const fn new(job: u16, workers: u8, vectors: Vectors, token: u64, secret: u64) -> Self {
        Self {
            members: membership::Config::new(job, workers, token, secret),
            vectors,
            aggregators: Vec::new(),
            patience: Span::from_secs(3),
            commits: false,
            key: Key(0),
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
    /// All workers have the sums of all steps, and give their results their names. A worker that returns then is followed by
    /// another commit.
    Committed,
    /// All workers have the sums of all steps, and results that have names are named.
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

/// The master of a job.
#[derive(Clone, Debug)]
pub struct Master {
    config: Config,
    attempt: u16,
    phase: Phase,
    first: u64,
    layout: Option<Layout>,
    members: Membership,
    /// The first chunk whose sum a worker does not have, among workers that were in the job before the present attempt.
    lows: Vec<Option<u64>>,
    /// What the workers of an open job add up.
    offers: Offers,
    /// The workers whose results have their names, as a bitmap, and the digest that they have in common.
    named: u64,
    digest: Option<u64>,
    is_committed: bool,
    failure: Option<Failure>,
    reservation: Option<Reservation>,
    /// The aggregator that is asked next.
    next_aggregator: usize,
    /// Whether length and format are those of the first worker that joins.
    adopts: bool,
    events: VecDeque<Event>,
    closes: u8,
    /// Workers that have confirmed the end and may go, with their hosts.
    free: VecDeque<(u8, HostId)>,
    stale: u64,
}

impl Master {
    /// A master that waits for its workers from now on. What is impossible in its configuration is replaced by the nearest possible value.
    #[must_use]
    pub fn new(config: Config, now: Time) -> Self {
        let workers = config.members.workers.clamp(1, MAX_WORKERS);
        let members = membership::Config { workers, ..config.members };
        let Vectors { length, format, steps, elements, pool } = config.vectors;
        let elements = elements.clamp(1, format.max_elements());
        let pool = pool.clamp(1, MAX_POOL);
        let vectors = if steps == 0 {
            // The slots of integers have room for either format.
            let elements = (elements * format.bytes() / Format::I64.bytes()).max(1);
            Vectors { length: 0, format: Format::I64, steps, elements, pool }
        } else {
            Vectors { length, format, steps, elements, pool }
        };
        let config = Config { members, vectors, ..config };
        Self {
            attempt: 0,
            phase: Phase::Wait,
            first: 0,
            layout: None,
            members: Membership::new(members, now).informing_left(),
            lows: vec![None; usize::from(workers)],
            offers: Offers::new(workers),
            named: 0,
            digest: None,
            is_committed: false,
            failure: None,
            reservation: None,
            next_aggregator: 0,
            adopts: length == 0 && steps > 0,
            events: VecDeque::new(),
            closes: 0,
            free: VecDeque::new(),
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
        self.members.missing()
    }

    /// Returns a process that wants to be a worker and is not taken, which was not returned before.
    pub fn poll_refused(&mut self) -> Option<membership::NotTaken> {
        self.members.poll_refused()
    }

    /// Returns the address of a worker that has joined.
    #[must_use]
    pub fn worker_host(&self, number: u8) -> Option<HostId> {
        self.members.host_of(number)
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
        let lows = self.lows.iter().map(|low| low.unwrap_or(self.first));
        Some((lows.min()?, layout.end()))
    }

    /// Returns the workers that have not said that their result has its name, as a bitmap; `None` before the commit.
    #[must_use]
    pub fn unnamed(&self) -> Option<u64> {
        self.is_committed.then(|| self.members.all() & !self.named)
    }

    /// Ends the job: workers are informed.
    pub fn interrupt(&mut self, now: Time) {
        self.fail(now, Failure::Interrupted);
    }

    /// Whether the job has ended, one way or the other.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.members.has_ended()
    }

    /// Whether nothing remains to be sent: the job has ended, and the workers know or do not answer.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.members.is_over() && self.events.is_empty() && self.free.is_empty()
    }

    fn fail(&mut self, now: Time, failure: Failure) {
        if !self.has_ended() {
            (self.phase, self.failure) = (Phase::Failed, Some(failure));
            self.members.change();
            self.members.fail(now);
            self.closes = if self.reservation.is_some() { 2 } else { 0 };
            self.events.push_back(Event::Failed(failure));
        }
    }

    /// Handles a message with its payload. Any field may be wrong or forged.
    pub fn handle(&mut self, now: Time, from: HostId, header: &Header, payload: &[u8]) {
        if header.job != self.config.members.job {
            self.stale += 1;
            return;
        }
        if matches!(header.body, Body::JoinVector { .. }) {
            return self.join(now, from, header, payload);
        }
        if header.token.get() != self.config.members.token {
            self.stale += 1;
            return;
        }
        if let Body::VectorProgress { version, low, is_known, has_offer } = header.body {
            let offer = Offer::decode(payload).ok().filter(|_| has_offer && self.is_open());
            self.compare(now, from, header.worker, offer);
            return self.progress(now, from, header.worker, version, is_known.then(|| low.get()));
        }
        if let Body::VectorNamed { version, digest } = header.body {
            return self.name(now, from, header.worker, version, digest.get());
        }
        if header.body == Body::Close {
            return self.leave(now, from, header.worker);
        }
        let is_current = header.attempt == self.attempt;
        match &mut self.reservation {
            Some(reservation) if reservation.aggregator == from && !self.members.has_ended() => {
                let step = reservation.handle(now, &header.body, is_current);
                self.step(now, step);
            }
            _ => self.stale += 1,
        }
    }

    fn join(&mut self, now: Time, from: HostId, header: &Header, payload: &[u8]) {
        let Body::JoinVector { instance, cookie, digest } = header.body else { return };
        let Ok(Shape { length, format }) = Shape::decode(payload) else {
            self.stale += 1;
            return;
        };
        if !self.members.admits(from, header, instance, cookie.get()) {
            return;
        }
        let number = header.worker;
        let Key(key) = if self.is_open() { self.config.key } else { Key(0) };
        if key != 0 && digest.get() != key {
            return self.members.reject_stranger(now, number, (from, instance));
        }
        if usize::from(number) >= self.lows.len() {
            self.members.join(now, number, (from, instance), (digest.get(), false));
            return;
        }
        let vectors = self.config.vectors;
        let is_first = vectors.length == 0 && self.adopts;
        if !is_first && (vectors.length, vectors.format) != (length, format) {
            // A worker repeats its message until it has the answer; one event suffices.
            let event = Event::OtherVector { worker: number, length, format };
            if !self.events.contains(&event) {
                self.events.push_back(event);
            }
            let body = Body::VectorState { version: 0, instance, phase: Phase::Wait };
            return self.members.answer(from, header, body);
        }
        let digest = (digest.get(), self.layout.is_some());
        let arrival = self.members.join(now, number, (from, instance), digest);
        if arrival == Some(Arrival::First) {
            self.events.push_back(Event::Joined { worker: number });
        }
        if is_first && self.members.host_of(number).is_some() {
            let bytes = u32::from(vectors.elements) * u32::from(vectors.format.bytes());
            let elements = (bytes / u32::from(format.bytes())) as u16;
            let elements = elements.clamp(1, format.max_elements());
            self.config.vectors = Vectors { length, format, elements, ..vectors };
        }
        if arrival == Some(Arrival::Replaced) && !self.has_ended() {
            self.lows[usize::from(number)] = None;
            if self.is_open() && self.layout.is_some() {
                // Nobody knows where the chunks of its next vector begin.
                return self.fail(now, Failure::WorkerLeft { worker: number, waited: 0 });
            }
            // Its result may be another file.
            self.named &= !(1 << number);
            self.events.push_back(Event::Replaced { worker: number });
            // The aggregator has the address of the one that was replaced.
            if self.reservation.is_some() {
                self.restart(now);
            }
        }
        if self.reservation.is_none() && !self.has_ended() && self.members.is_complete() {
            self.reserve(now);
        }
    }

    /// Whether the job is open.
    const fn is_open(&self) -> bool {
        self.config.vectors.steps == 0
    }

    /// A worker ends before the job does.
    fn leave(&mut self, now: Time, from: HostId, number: u8) {
        if self.has_ended() {
            self.stale += u64::from(self.members.member(number, from).is_none());
            return;
        }
        let has_begun = self.reservation.is_some() || self.is_open();
        match self.members.leave(from, number, has_begun) {
            Leaving::Left => {
                let is_ready = self.lows[usize::from(number)] == Some(u64::MAX);
                if self.is_open() {
                    self.events.push_back(Event::Left { worker: number });
                    // The others hear at once that they wait in vain. One that has no further vector is not missed for now.
                    if !is_ready {
                        let waited = self.offers.behind(number);
                        self.fail(now, Failure::WorkerLeft { worker: number, waited });
                    }
                    return;
                }
                // It takes back that it is ready for the commit.
                self.lows[usize::from(number)] = None;
                self.events.push_back(Event::Left { worker: number });
                if self.adopts && self.members.is_empty() {
                    self.config.vectors.length = 0;
                }
            }
            Leaving::Again => {}
            Leaving::Stranger => self.stale += 1,
        }
    }

    /// Asks the next aggregator for slots.
    fn reserve(&mut self, now: Time) -> bool {
        let (retry, patience) = (self.config.members.retry, self.config.patience);
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
        self.members.change();
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
                    let workers = self.config.members.workers;
                    let Vectors { length, format, steps, elements, .. } = self.config.vectors;
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
        let blocks = match length {
            0 => u64::from(pool),
            _ => length.div_ceil(u64::from(elements)).min(u64::from(pool)),
        };
        self.layout.map_or(blocks as u16, |layout| layout.pool)
    }

    /// A worker of an open job says what it adds up. Nothing is added up if that is not the same everywhere.
    fn compare(&mut self, now: Time, from: HostId, number: u8, offer: Option<Offer>) {
        let Some(offer) = offer.filter(|_| self.members.member(number, from).is_some()) else {
            return;
        };
        self.offers.note(number, offer);
        if let Some(difference) = self.offers.difference(now, self.config.members.takeover) {
            self.fail(now, Failure::Differ(difference));
        }
    }

    fn progress(&mut self, now: Time, from: HostId, number: u8, version: u32, low: Option<u64>) {
        let current = self.members.version();
        let Some(member) = self.members.member(number, from) else {
            self.stale += 1;
            return;
        };
        member.hear(now);
        if version != current {
            return;
        }
        // A commit is confirmed by the name.
        if self.phase == Phase::Commit {
            return;
        }
        member.confirm(version, true);
        if self.has_ended() {
            // A worker that has a result, or one of an open job, stays until it knows that its confirmation is here.
            let stays = self.config.commits || self.is_open();
            if self.phase == Phase::Done && stays && self.free.len() < usize::from(MAX_WORKERS) {
                self.free.push_back((number, from));
            }
            return;
        }
        self.lows[usize::from(number)] = low;
        match (self.phase, self.layout) {
            (Phase::Wait, _) => self.run(now),
            (Phase::Run, Some(layout)) => {
                let is_done = |low: &Option<u64>| low.is_some_and(|low| low >= layout.end());
                if self.lows.iter().all(is_done) {
                    if self.config.commits {
                        self.commit(now);
                    } else {
                        self.complete(now);
                    }
                }
            }
            _ => {}
        }
    }

    /// All workers are prepared. Patience with them begins again: a result may take long to write where it has no name, such as to a pipe.
    fn commit(&mut self, now: Time) {
        (self.phase, self.is_committed) = (Phase::Commit, true);
        self.members.change();
        self.members.hear_all(now);
        self.events.push_back(Event::Committed);
    }

    /// The result of a worker has its name.
    fn name(&mut self, now: Time, from: HostId, number: u8, version: u32, digest: u64) {
        let current = self.members.version();
        let Some(member) = self.members.member(number, from) else {
            self.stale += 1;
            return;
        };
        member.hear(now);
        if version != current || self.phase != Phase::Commit {
            return;
        }
        member.confirm(version, true);
        if *self.digest.get_or_insert(digest) != digest {
            return self.fail(now, Failure::OtherSum { worker: number });
        }
        self.named |= 1 << number;
        if self.named == self.members.all() {
            self.complete(now);
        }
    }

    fn complete(&mut self, now: Time) {
        self.phase = Phase::Done;
        self.members.change();
        self.members.complete(now);
        self.closes = 2;
        self.events.push_back(Event::Complete);
    }

    /// Begins the attempt, if slots are reserved and all workers have said what they have.
    fn run(&mut self, now: Time) {
        let (Some(layout), Some(reservation)) = (self.layout, &self.reservation) else { return };
        if !reservation.is_open() || !self.members.have_confirmed() {
            return;
        }
        let least = self.lows.iter().flatten().copied().min().unwrap_or(0);
        self.first = if self.lows.iter().all(Option::is_some) || least == 0 {
            least
        } else {
            // A worker without memory needs all of a step. One that all others have is over. In an open job nobody has a sum without it.
            layout.start(layout.step(least).min(layout.steps.saturating_sub(1)))
        };
        let (aggregator, attempt, first) = (reservation.aggregator, self.attempt, self.first);
        self.phase = Phase::Run;
        self.members.change();
        self.events.push_back(Event::Started { aggregator, attempt, first });
        self.members.hear_all(now);
    }

    /// The workers whose silence does not matter: those whose results have their names, as a bitmap.
    fn unawaited(&self) -> u64 {
        if self.phase == Phase::Commit { self.named } else { 0 }
    }

    /// Called when the time that [`Master::poll_timeout`] returned has come.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.members.expire(now) {
            return;
        }
        if let Some(reservation) = &mut self.reservation {
            let step = reservation.handle_timeout(now);
            self.step(now, step);
        }
        let except = self.unawaited();
        let failure = self.members.not_joined(now).or_else(|| self.members.silent(now, except));
        if let Some(failure) = failure {
            self.fail(now, failure);
        }
    }

    /// Returns when to call [`Master::handle_timeout`], or to poll again.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.is_over() {
            return None;
        }
        let reservation = self.reservation.as_ref().filter(|_| !self.has_ended());
        let reservation = reservation.map(Reservation::poll_timeout);
        let times = [
            self.members.announcement_due(),
            self.members.patience_due(self.unawaited()),
            reservation,
        ];
        times.into_iter().flatten().min()
    }

    fn header(&self, worker: u8, body: Body) -> Header {
        let membership::Config { job, token, .. } = self.config.members;
        let token = Id64::new(token);
        Header { job, attempt: self.attempt, worker, token, body }
    }

    /// The payload of the answer to a worker that has other vectors.
    fn vectors(&self) -> Vec<u8> {
        let Vectors { length, format, steps, elements, pool } = self.config.vectors;
        let (aggregator, workers) = (HostId(0), self.config.members.workers);
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
            _ if self.phase == Phase::Done => done_payload(self.digest.unwrap_or(0)),
            _ if self.phase == Phase::Failed => Blame::encode(self.blame().as_ref()),
            _ => vec![0; PLAN_BYTES as usize],
        }
    }

    /// Who is to blame for the end of the job.
    const fn blame(&self) -> Option<Blame> {
        match self.failure {
            Some(Failure::WorkerSilent { worker }) => {
                Some(Blame::Gone { worker, has_left: false, waited: 0 })
            }
            Some(Failure::WorkerLeft { worker, waited }) => {
                Some(Blame::Gone { worker, has_left: true, waited })
            }
            Some(Failure::NotJoined { workers }) => Some(Blame::NotJoined(workers)),
            Some(Failure::Differ(difference)) => Some(Blame::Differ(difference)),
            _ => None,
        }
    }

    /// Returns the next message, if there is something to send now.
    pub fn poll(&mut self, now: Time) -> Option<Outgoing> {
        if let Some((to, header)) = self.members.poll_answer() {
            let is_refusal = matches!(header.body, Body::VectorState { .. });
            let payload = if is_refusal { self.vectors() } else { Vec::new() };
            return Some(Outgoing { to, header, payload });
        }
        if !self.members.has_ended()
            && let Some(reservation) = &mut self.reservation
            && reservation.poll(now)
        {
            let (to, cookie) = (reservation.aggregator, Id64::new(reservation.cookie));
            let Vectors { elements, format, .. } = self.config.vectors;
            let (pool, workers) = (self.pool(), self.config.members.workers);
            let body = Body::OpenVector(OpenVector { cookie, pool, elements, format, workers });
            let payload = self.members.addresses();
            return Some(Outgoing { to, header: self.header(0, body), payload });
        }
        if let Some((worker, to)) = self.free.pop_front() {
            let (header, payload) = (self.header(worker, Body::Close), Vec::new());
            return Some(Outgoing { to, header, payload });
        }
        if self.closes > 0 {
            self.closes -= 1;
            let to = self.reservation.as_ref()?.aggregator;
            let (header, payload) = (self.header(0, Body::Close), Vec::new());
            return Some(Outgoing { to, header, payload });
        }
        let (number, to, instance) = self.members.poll_announcement(now)?;
        let (version, phase) = (self.members.version(), self.phase);
        let body = Body::VectorState { version, instance, phase };
        Some(Outgoing { to, header: self.header(number, body), payload: self.plan() })
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}
