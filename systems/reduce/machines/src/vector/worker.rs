//! A worker: sends the chunks of its vectors, and receives the sums.
//!
//! The machine refers to elements by step and block; its driver has the values. A slot's next chunk is sent when the sum of the previous
//! one has come, so the pool is the window (`docs/protocols/ordc.md#switchml`). What is lost is repeated by slot, after a timeout that follows the
//! round-trip time, or when later chunks are complete.

use std::collections::VecDeque;

use rackweave_core::{Bitmap, HostId, Span, Time};
use rackweave_wire::Id64;
use rackweave_wire::reduce::{
    Blame, Body, Chunk, Format, Header, Offer, Phase, Plan, digest_of_done,
};

use super::super::Failure;
use super::super::membership::{Place, Silence};
use super::flight::Flight;
use super::layout::{Layout, Part};

/// How a worker behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The job.
    pub job: u16,
    /// The worker's number in the job.
    pub number: u8,
    /// The master's address.
    pub master: HostId,
    /// A random number of this life of the worker.
    pub instance: u32,
    /// The number of elements of its vectors; 0 in an open job, see [`super::layout`].
    pub length: u64,
    /// What they are; [`Format::I64`] in an open job.
    pub format: Format,
    /// A digest of its vectors, which a process that takes its place must have too; 0 if it is not known.
    pub digest: u64,
    /// Whether the worker has a result: the job must not end before [`Worker::release`], when the result is whole but has no name, and after
    /// [`Event::Committed`] not before [`Worker::name`]. Until then the worker can be replaced after its last sum too. The end itself is
    /// confirmed by [`Worker::acknowledge`], the last thing that the worker does: one that is killed before that and started again finds the master.
    pub holds_end: bool,
    /// The timer of SwitchML's code instead of one that follows the round-trip time: see [`FixedTimer`].
    pub fixed_timer: Option<FixedTimer>,
    /// How often it joins until the master answers.
    pub join_interval: Span,
    /// The shortest retransmission timeout.
    pub min_rto: Span,
    /// How long it waits for a master or an aggregator that is silent.
    pub give_up: Span,
    /// How long it stays after [`Worker::acknowledge`], to confirm the end again if its confirmation was lost; zero: not at all. The master
    /// lets it go at once by [`Body::Close`].
    pub linger: Span,
}

impl Config {
    /// A worker with the default timers: 100 ms between joins, 1 ms of timeout, 30 s of patience. SwitchML's code has
    /// 10 ms; here the round-trip time is measured, and this is its lower bound only.
    #[must_use]
    pub const fn new(job: u16, number: u8, master: HostId, instance: u32) -> Self {
        Self {
            job,
            number,
            master,
            instance,
            length: 0,
            format: Format::I64,
            digest: 0,
            holds_end: false,
            fixed_timer: None,
            join_interval: Span::from_ms(100),
            min_rto: Span::from_ms(1),
            give_up: Span::from_secs(30),
            linger: Span::ZERO,
        }
    }
}

/// The retransmission timer of SwitchML's code (`docs/protocols/ordc.md#switchml`): each chunk is sent again after a time that does not depend on
/// the path, and nothing is noticed before. After a number of timeouts the time doubles, until the next step, and the number grows by as
/// much. That the code waits longer for the first chunks of a step, by the factor of their number, is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedTimer {
    /// The time.
    pub timeout: Span,
    /// The number of timeouts after which it doubles.
    pub threshold: u32,
}

impl FixedTimer {
    /// The default of SwitchML's code: 10 ms, and 100 timeouts.
    pub const SWITCHML: Self = Self { timeout: Span::from_ms(10), threshold: 100 };
}

/// What a worker reports to its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// All workers are there: how vectors are divided.
    Planned(Layout),
    /// The driver must call [`Worker::offer`] with the vector of this step, or in an open job [`Worker::release`] if there is none. It must
    /// keep that of the step before.
    Wanted {
        /// The step.
        step: u32,
    },
    /// The sums of all elements of a step are there.
    Summed {
        /// The step.
        step: u32,
    },
    /// All workers are prepared: each gives its result its name, and calls [`Worker::name`].
    Committed,
    /// All workers have the sums of all steps, and results that have names are named.
    Complete,
    /// The worker has given up.
    Failed(Failure),
}

/// The elements of a chunk, which only the driver has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elements {
    /// The step.
    pub step: u32,
    /// The block.
    pub block: u32,
    /// The exponent of the block over all workers; 0 with integers.
    pub exponent: u8,
}

/// A message of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Where it goes.
    pub to: HostId,
    /// The message.
    pub header: Header,
    /// Its payload, if it has one.
    pub elements: Option<Elements>,
}

/// What a worker has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Chunks that were sent, repetitions included.
    pub chunks: u64,
    /// Chunks that were sent again.
    pub retransmitted: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Answers to repeated chunks for which other workers' were missing.
    pub waiting: u64,
    /// Attempts after the first.
    pub restarts: u64,
}

/// What is known of a step whose vector the driver has.
#[derive(Clone, Debug, Default)]
struct Offered {
    /// Its chunks.
    part: Option<Part>,
    /// What the application does with it.
    label: u32,
    /// The exponents of the worker's own blocks.
    own: Vec<u8>,
    /// Those over all workers, as far as they are known.
    of_all: Vec<u8>,
}

/// The worker of a job.
#[derive(Clone, Debug)]
pub struct Worker {
    config: Config,
    place: Place,
    /// The newest version of the master's state.
    state: Option<(u32, Phase)>,
    aggregator: HostId,
    layout: Option<Layout>,
    flight: Option<Flight>,
    /// The first step whose sums are not complete.
    step: u32,
    /// Steps below have been offered, and the chunk that follows them.
    offered: u32,
    offered_end: u64,
    /// Chunks of the present step whose sums are there.
    received: Bitmap,
    /// The step that is being summed and the one before, by number modulo 2.
    vectors: [Offered; 2],
    /// Their chunks, and those of vectors before them as long as a slot has one of their chunks.
    parts: VecDeque<Part>,
    is_progress_due: bool,
    /// Since the aggregator was heard last, or nothing was outstanding.
    answered: Silence,
    events: Vec<Event>,
    is_over: bool,
    has_given_up: bool,
    /// Whether the master is to be informed that the worker ends.
    is_leaving: bool,
    is_released: bool,
    /// Whether a commit has been announced, and the digest of the result once it has its name.
    is_committed: bool,
    named: Option<u64>,
    /// The digest of all results, at the end of the job.
    digest: Option<u64>,
    /// Whether the end may be confirmed.
    is_acknowledged: bool,
    /// Until when it stays after the end; see [`Config::linger`].
    lingers_until: Option<Time>,
    /// The workers whose elements were missing when the aggregator was asked last, as a bitmap.
    missing: u64,
    counters: Counters,
}

impl Worker {
    /// A worker that joins now.
    #[must_use]
    pub fn new(config: Config, now: Time) -> Self {
        let Config { job, number, master, instance, join_interval, .. } = config;
        Self {
            config,
            place: Place::new((job, number), master, instance, join_interval, now),
            state: None,
            aggregator: config.master,
            layout: None,
            flight: None,
            step: 0,
            offered: 0,
            offered_end: 0,
            received: Bitmap::default(),
            vectors: [Offered::default(), Offered::default()],
            parts: VecDeque::new(),
            is_progress_due: false,
            answered: Silence::since(now),
            events: Vec::new(),
            is_over: false,
            has_given_up: false,
            is_leaving: false,
            is_released: false,
            is_committed: false,
            named: None,
            digest: None,
            is_acknowledged: false,
            lingers_until: None,
            missing: 0,
            counters: Counters::default(),
        }
    }

    /// Returns the worker's configuration.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Returns what the worker has done.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns how vectors are divided, once all workers have joined.
    #[must_use]
    pub const fn layout(&self) -> Option<&Layout> {
        self.layout.as_ref()
    }

    /// Returns how the vector of a step is divided that was offered last or before that.
    #[must_use]
    pub fn layout_of(&self, step: u32) -> Option<&Layout> {
        Some(&self.offered_at(step)?.part.as_ref()?.layout)
    }

    /// Returns how a vector of this length and format would be divided.
    #[must_use]
    pub fn layout_for(&self, length: u64, format: Format) -> Option<Layout> {
        let layout = self.layout?;
        Some(if layout.is_open() { layout.of_vector(length, format) } else { layout })
    }

    /// Returns the first step whose sums are not complete.
    #[must_use]
    pub const fn step(&self) -> u32 {
        self.step
    }

    /// Whether the worker has nothing more to do.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.is_over && !self.is_progress_due && !self.is_leaving && self.lingers_until.is_none()
    }

    /// Whether the master has taken the worker.
    #[must_use]
    pub const fn is_taken(&self) -> bool {
        self.state.is_some()
    }

    /// Returns the workers for which this one waits, as a bitmap, as far as the aggregator has named them since the last sum.
    #[must_use]
    pub const fn missing(&self) -> u64 {
        self.missing
    }

    /// The worker is prepared: it has used its last sum, and its result is whole; see [`Config::holds_end`]. In an open job it has no
    /// further vector; the job is complete when no worker has.
    pub const fn release(&mut self) {
        (self.is_released, self.is_progress_due) = (true, self.state.is_some());
    }

    /// The worker's result has its name. `digest` is one of the sums, the same at all workers.
    pub const fn name(&mut self, digest: u64) {
        (self.named, self.is_progress_due) = (Some(digest), true);
    }

    /// Confirms that the job is complete; see [`Config::holds_end`].
    pub fn acknowledge(&mut self, now: Time) {
        if !core::mem::replace(&mut self.is_acknowledged, true) {
            self.is_progress_due = self.state.is_some();
            self.linger(now);
        }
    }

    /// The end is confirmed, for the first time or again.
    fn linger(&mut self, now: Time) {
        let is_done = self.state.is_some_and(|(_, phase)| phase == Phase::Done);
        let stays = self.config.linger > Span::ZERO && self.is_acknowledged && is_done;
        self.lingers_until = stays.then(|| now.saturating_add(self.config.linger));
    }

    /// Returns the digest of the sums that all workers have named, once the job is complete.
    #[must_use]
    pub const fn digest(&self) -> Option<u64> {
        self.digest
    }

    /// The first chunk whose sum the master is to know as missing here.
    fn reported(&self) -> u64 {
        match self.layout {
            Some(layout) if layout.is_open() && self.is_released => layout.end(),
            Some(layout) if self.config.holds_end && !self.is_released => {
                self.low().min(layout.end() - 1)
            }
            _ => self.low(),
        }
    }

    /// Ends the worker before the job has ended. The master is informed, so that another process can take its place at once.
    pub fn leave(&mut self) {
        self.give_up(Failure::Interrupted);
    }

    /// The driver has the vector of a step that [`Event::Wanted`] has asked for. `layout` is [`Worker::layout_for`] its length and format, and
    /// `exponents` are those of its blocks ([`super::block_float::exponent_of`]); none with integers. `label` says what the application does
    /// with it: the vectors of an open job are added up only if their labels are equal, too.
    ///
    /// # Panics
    /// If there is not one exponent for each block of floats, or if the step is not the one that was asked for.
    pub fn offer(&mut self, step: u32, layout: Layout, exponents: Vec<u8>, label: u32) {
        if self.layout.is_none() {
            return;
        }
        assert_eq!(step, self.offered, "steps are offered in order");
        let blocks = match layout.format {
            Format::I64 => 0,
            Format::BlockFloat => layout.blocks() as usize,
        };
        assert_eq!(exponents.len(), blocks, "one exponent for each block");
        let of_all = vec![0; blocks];
        let Layout { length, format, .. } = layout;
        let offer = Offer { step, length, format, label, is_last: false };
        let tag = if self.config.length == 0 { offer.tag() } else { 0 };
        let part = Part { step, start: self.offered_end, layout, tag };
        let offered = Offered { part: Some(part), label, own: exponents, of_all };
        self.vectors[step as usize % 2] = offered;
        (self.offered, self.offered_end) = (step + 1, part.end());
        self.received = Bitmap::new(layout.chunks());
        let first = self.flight.as_ref().map_or(u64::MAX, Flight::first);
        // All workers have the sums of the vector before the last one, but its chunks may have to be sent once more all the same.
        while self.parts.len() > 1 && self.parts.front().is_some_and(|part| part.end() <= first) {
            self.parts.pop_front();
        }
        self.parts.push_back(part);
        if let Some(flight) = &mut self.flight {
            flight.offer(self.offered_end, part.lead());
        }
    }

    /// Returns the vector to which a chunk belongs.
    fn part_of(&self, chunk: u64) -> Option<Part> {
        let is_before = |part: &Part| part.end() <= chunk;
        self.parts.get(self.parts.partition_point(is_before)).copied()
    }

    /// Returns what the master of an open job hears of the vector whose sum is awaited.
    #[must_use]
    pub fn present(&self) -> Offer {
        let (step, vector) = (self.step, self.offered_at(self.step));
        match vector.and_then(|vector| Some((vector.part.as_ref()?.layout, vector.label))) {
            Some((Layout { length, format, .. }, label)) => {
                Offer { step, length, format, label, is_last: false }
            }
            None => Offer::nothing(step, self.is_released),
        }
    }

    /// Returns what is kept of a vector.
    fn offered_at(&self, step: u32) -> Option<&Offered> {
        let is_it = |part: &Part| part.step == step;
        self.vectors.get(step as usize % 2).filter(|it| it.part.as_ref().is_some_and(is_it))
    }

    /// Handles a message, and returns the elements that its payload has, if the driver is to store them. Any field may be wrong or
    /// forged.
    pub fn handle(
        &mut self,
        now: Time,
        from: HostId,
        header: &Header,
        payload: &[u8],
    ) -> Option<Elements> {
        let is_mine = self.place.is_named_by(header);
        let is_at_end = matches!(header.body, Body::VectorState { .. } | Body::Close);
        if !is_mine || self.is_over && !is_at_end {
            return None;
        }
        match header.body {
            Body::Challenge { instance, cookie } if self.state.is_none() => {
                self.place.challenge(now, from, instance, cookie.get());
            }
            Body::Rejected { instance, why }
                if self.state.is_none() && self.place.is_for(from, instance) =>
            {
                self.give_up(Failure::Rejected { why });
            }
            Body::VectorState { version, instance, phase } if self.place.is_for(from, instance) => {
                self.handle_state(now, header, version, phase, payload);
            }
            Body::Close
                if from == self.config.master && header.token.get() == self.place.token() =>
            {
                self.lingers_until = None;
            }
            Body::ChunkSum(chunk) if self.is_from_aggregator(from, header) => {
                return self.handle_sum(now, &chunk, payload);
            }
            Body::Waiting { number, missing } if self.is_from_aggregator(from, header) => {
                if let Some(flight) = &mut self.flight {
                    flight.hold(number.get());
                }
                self.missing = missing.get();
                self.hear_aggregator(now);
                self.counters.waiting += 1;
            }
            _ => {}
        }
        None
    }

    /// The aggregator has answered. Where it is the master's host, the master is alive, too: an answer takes the place of a state that is lost.
    fn hear_aggregator(&mut self, now: Time) {
        self.answered.hear(now);
        if self.aggregator == self.config.master {
            self.place.hear(now);
        }
    }

    fn is_from_aggregator(&self, from: HostId, header: &Header) -> bool {
        from == self.aggregator && self.state.is_some() && self.place.is_current(header)
    }

    fn handle_state(
        &mut self,
        now: Time,
        header: &Header,
        version: u32,
        phase: Phase,
        payload: &[u8],
    ) {
        if version == 0 {
            if let Ok(plan) = Plan::decode(payload)
                && self.state.is_none()
            {
                let _ = self.check(&Layout::of(&plan));
            }
            return;
        }
        let plan = if phase == Phase::Run {
            let Ok(plan) = Plan::decode(payload) else { return };
            Some(plan)
        } else {
            None
        };
        if let Some((old, _)) = self.state
            && (header.token.get() != self.place.token() || version < old)
        {
            return;
        }
        let is_known = self.is_over || self.state.is_some_and(|(old, _)| old == version);
        let can_begin = match plan {
            Some(plan) => self.can_begin(&plan),
            None => phase != Phase::Commit || self.is_prepared(),
        };
        let can_begin = is_known || can_begin;
        if self.has_given_up || !can_begin {
            return;
        }
        self.is_progress_due = true;
        self.place.hear(now);
        if is_known {
            if phase == Phase::Done {
                self.linger(now);
            }
            return;
        }
        self.place.enter(header.token.get());
        let is_other = self.place.attempt() != header.attempt;
        self.counters.restarts += u64::from(self.state.is_some() && is_other);
        self.place.begin(header.attempt);
        self.state = Some((version, phase));
        match (phase, plan) {
            (Phase::Commit, _) => {
                self.flight = None;
                if !self.config.holds_end {
                    self.named = Some(0);
                } else if !core::mem::replace(&mut self.is_committed, true) {
                    self.events.push(Event::Committed);
                }
            }
            (Phase::Done, _) => {
                self.is_over = true;
                self.digest = digest_of_done(payload);
                self.flight = None;
                self.events.push(Event::Complete);
            }
            (Phase::Failed, _) => {
                self.is_over = true;
                self.flight = None;
                // In other jobs the master's output names it, with its address.
                let is_open = self.config.length == 0;
                let failure = match Blame::decode(payload).filter(|_| is_open) {
                    Some(Blame::Gone { worker, has_left: false, .. }) => {
                        Failure::WorkerSilent { worker }
                    }
                    Some(Blame::Gone { worker, has_left: true, waited }) => {
                        Failure::WorkerLeft { worker, waited }
                    }
                    Some(Blame::NotJoined(workers)) => Failure::NotJoined { workers },
                    Some(Blame::Differ(difference)) => Failure::Differ(difference),
                    None => Failure::Refused,
                };
                self.events.push(Event::Failed(failure));
            }
            (Phase::Run, Some(plan)) => self.begin(now, &plan),
            // Another attempt is being prepared: what is under way belongs to none.
            _ => self.flight = None,
        }
    }

    /// Whether the worker has its result: a master that is right commits nothing else.
    fn is_prepared(&self) -> bool {
        let has_all = self.layout.is_some_and(|layout| self.step == layout.steps);
        has_all && (self.is_released || !self.config.holds_end)
    }

    /// Whether the worker has what an attempt needs: a master that is right asks for nothing else.
    fn can_begin(&self, plan: &Plan) -> bool {
        let layout = Layout::of(plan);
        let is_inside = plan.first < layout.end() || self.step == layout.steps;
        if layout.is_open() && plan.first == layout.end() {
            // No worker has a further vector.
            return self.layout == Some(layout) && self.is_released;
        }
        match self.layout {
            None => is_inside,
            Some(known) => {
                let is_kept = if layout.is_open() {
                    let mut parts = self.parts.iter();
                    let first = parts.find(|part| part.step.saturating_add(2) > self.step);
                    let first = first.map(|part| part.start);
                    plan.first >= first.unwrap_or(self.offered_end)
                } else {
                    layout.step(plan.first).saturating_add(2) > self.step
                };
                known == layout && plan.first <= self.low() && is_kept
            }
        }
    }

    /// Gives up if the job's vectors are not like the worker's.
    fn check(&mut self, layout: &Layout) -> bool {
        let Layout { length, format, .. } = *layout;
        let is_right = (length, format) == (self.config.length, self.config.format);
        if !is_right {
            self.give_up(Failure::OtherVector { length, format });
        }
        is_right
    }

    /// Begins an attempt.
    fn begin(&mut self, now: Time, plan: &Plan) {
        let layout = Layout::of(plan);
        if !self.check(&layout) {
            return;
        }
        self.missing = 0;
        self.aggregator = plan.aggregator;
        self.answered.hear(now);
        if self.layout.is_none() {
            // A worker that replaces another one begins at the step of the others.
            let step = layout.step(plan.first);
            (self.layout, self.step, self.offered) = (Some(layout), step, step);
            self.offered_end = layout.start(step);
            self.events.push(Event::Planned(layout));
            self.events.push(Event::Wanted { step });
        }
        let offered = (self.offered_end, self.parts.iter().filter_map(Part::lead).collect());
        let Config { min_rto, fixed_timer, give_up, .. } = self.config;
        let flight = Flight::new(layout.pool, plan.first, offered, layout.end(), min_rto);
        self.flight = Some(flight.with_fixed_timer(fixed_timer).with_patience(give_up));
    }

    /// The first chunk whose sum is not here.
    fn low(&self) -> u64 {
        let missing = self.received.next_missing(0).unwrap_or(self.received.size());
        let part = self.parts.iter().find(|part| part.step == self.step);
        part.map_or(self.offered_end, |part| part.start + missing)
    }

    fn handle_sum(&mut self, now: Time, chunk: &Chunk, payload: &[u8]) -> Option<Elements> {
        let number = chunk.number.get();
        let Some((part, content)) =
            self.part_of(number).and_then(|part| Some((part, part.content(number)?)))
        else {
            // An answer of a vector that is long over says that the timeout was too short.
            self.flight.as_mut()?.come_again(now, number);
            return None;
        };
        let (layout, flight) = (part.layout, self.flight.as_mut()?);
        let count = content.block.map_or(0, |block| layout.range(block).len());
        if usize::from(chunk.count) != count
            || (chunk.format, chunk.tag) != (layout.format, part.tag)
            || payload.len() != chunk.payload_len() as usize
        {
            return None;
        }
        if !flight.is_outstanding(number) {
            flight.come_again(now, number);
            return None;
        }
        flight.complete(now, number);
        let late = flight.find_lost(now);
        self.counters.timeouts += late;
        self.missing = 0;
        self.hear_aggregator(now);
        let vector = &mut self.vectors[content.step as usize % 2];
        if let Some(block) = content.exponent_of
            && vector.part == Some(part)
            && let Some(of_all) = vector.of_all.get_mut(block as usize)
        {
            *of_all = chunk.exponent;
        }
        // Other workers may need what this one has had in an earlier attempt.
        if content.step != self.step || !self.received.insert(number - part.start) {
            return None;
        }
        if self.received.is_full() {
            self.finish_step();
        }
        let (step, block) = (content.step, content.block?);
        let vector = &self.vectors[step as usize % 2];
        let exponent = vector.of_all.get(block as usize).copied().unwrap_or(0);
        Some(Elements { step, block, exponent })
    }

    fn finish_step(&mut self) {
        self.events.push(Event::Summed { step: self.step });
        self.step += 1;
        self.received = Bitmap::default();
        if self.layout.is_some_and(|layout| layout.is_open() || self.step < layout.steps) {
            self.events.push(Event::Wanted { step: self.step });
        } else {
            self.is_progress_due = true;
        }
    }

    /// Called when the time that [`Worker::poll_timeout`] returned has come.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.is_over {
            self.lingers_until = self.lingers_until.filter(|until| *until > now);
            return;
        }
        let limit = self.config.give_up;
        if self.place.is_silent(now, limit) {
            return self.give_up(Failure::MasterSilent);
        }
        if self.is_outstanding() && self.answered.look(now, limit) {
            return self.give_up(Failure::NotAcknowledged { aggregator: self.aggregator });
        }
        if let Some(flight) = &mut self.flight {
            self.counters.timeouts += flight.find_lost(now);
        }
    }

    /// Ends the worker, which answers nothing from now on. It informs the master once, which notices its silence if that is lost.
    pub fn give_up(&mut self, failure: Failure) {
        if !self.is_over {
            self.is_leaving = self.state.is_some();
            (self.is_over, self.has_given_up) = (true, true);
            self.is_progress_due = false;
            self.flight = None;
            self.events.push(Event::Failed(failure));
        }
    }

    /// Whether the worker waits for the aggregator. One that does not answer at all is given up; one that waits for others says so.
    fn is_outstanding(&self) -> bool {
        self.flight.as_ref().is_some_and(|flight| !flight.is_empty())
    }

    /// Returns when to call [`Worker::handle_timeout`], or to poll again.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.is_over {
            return self.lingers_until;
        }
        let limit = self.config.give_up;
        let no_answer = self.is_outstanding().then(|| self.answered.due(limit));
        let loss = self.flight.as_ref().and_then(Flight::timer);
        [Some(self.place.due(limit)), no_answer, loss].into_iter().flatten().min()
    }

    /// Returns the next message, if there is something to send now.
    pub fn poll(&mut self, now: Time) -> Option<Outgoing> {
        let master = self.config.master;
        if core::mem::take(&mut self.is_leaving) {
            return Some(Outgoing {
                to: master,
                header: self.place.header(Body::Close),
                elements: None,
            });
        }
        if !self.is_over
            && let Some((instance, cookie)) = self.place.poll_join(now)
        {
            let digest = Id64::new(self.config.digest);
            let header = self.place.header(Body::JoinVector { instance, cookie, digest });
            return Some(Outgoing { to: master, header, elements: None });
        }
        let (version, phase) = self.state?;
        if core::mem::take(&mut self.is_progress_due) {
            if phase == Phase::Done && self.config.holds_end && !self.is_acknowledged {
                return None;
            }
            if let (Phase::Commit, Some(digest)) = (phase, self.named) {
                let body = Body::VectorNamed { version, digest: Id64::new(digest) };
                return Some(Outgoing {
                    to: master,
                    header: self.place.header(body),
                    elements: None,
                });
            }
            let (low, is_known) = (Id64::new(self.reported()), self.layout.is_some());
            let has_offer = self.config.length == 0;
            let body = Body::VectorProgress { version, low, is_known, has_offer };
            let header = self.place.header(body);
            return Some(Outgoing { to: master, header, elements: None });
        }
        let flight = self.flight.as_mut()?;
        if flight.is_empty() {
            self.answered.hear(now);
        }
        let (number, is_repeated) = flight.next(now)?;
        let part = self.part_of(number)?;
        let (layout, content) = (part.layout, part.content(number)?);
        self.counters.chunks += 1;
        self.counters.retransmitted += u64::from(is_repeated);
        let vector = self.offered_at(content.step);
        let (own, of_all): (&[u8], &[u8]) =
            vector.map_or((&[], &[]), |vector| (&vector.own, &vector.of_all));
        let of = |all: &[u8], block: u32| all.get(block as usize).copied().unwrap_or(0);
        let exponent = content.exponent_of.map_or(0, |block| of(own, block));
        let elements = content.block.map(|block| Elements {
            step: content.step,
            block,
            exponent: of(of_all, block),
        });
        let count = content.block.map_or(0, |block| layout.range(block).len()) as u16;
        let number = Id64::new(number);
        let chunk = Chunk { number, count, exponent, format: layout.format, tag: part.tag };
        let header = self.place.header(Body::Chunk(chunk));
        Some(Outgoing { to: self.aggregator, header, elements })
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        if self.events.is_empty() { None } else { Some(self.events.remove(0)) }
    }
}
