//! A worker: sends its pairs to the aggregator, epoch by epoch, until the master has all sums.
//!
//! The pairs of an epoch are those whose keys are in one range of hashes, and all workers send the same epoch at the same time, so that a
//! small table of the switch has room for the keys of an epoch. A worker sends an epoch once the master has announced that its slots are
//! free, and finishes it when each of its packets has been acknowledged, by the switch or by the master. It keeps all pairs until the
//! master has their sums, and sends them a second time in another attempt.

mod congestion;
mod window;

use rackweave_core::{HostId, Span, Time};
use rackweave_wire::Id64;
use rackweave_wire::reduce::{Body, Header, LONG_BYTES, MAX_PAIRS, Operator, Pairs, Phase, State};

use self::congestion::Congestion;
use self::window::{Item, Window};
use super::Failure;
use super::membership::{Place, Silence};

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
    /// How it has combined its values, which must be the master's way.
    pub operator: Operator,
    /// The digest of its pairs ([`crate::source::Pairs::digest`]).
    pub digest: u64,
    /// How often it joins until the master answers.
    pub join_interval: Span,
    /// The shortest retransmission timeout. SwitchML's is 10 ms.
    pub min_rto: Span,
    /// How long it waits for a master that is silent.
    pub give_up: Span,
    /// How long it stays after it has heard of the job's end, to confirm it again if its confirmation was lost; zero: not at all. A master
    /// with [`holds_end`](super::master::Config::holds_end) lets it go at once by [`Body::Close`].
    pub linger: Span,
}

impl Config {
    /// A worker with the default timers: 100 ms between joins, 10 ms of timeout, 30 s of patience, no stay after the end.
    #[must_use]
    pub const fn new(job: u16, number: u8, master: HostId, instance: u32) -> Self {
        let (join_interval, min_rto) = (Span::from_ms(100), Span::from_ms(10));
        let (operator, digest, give_up) = (Operator::Sum, 0, Span::from_secs(30));
        let linger = Span::ZERO;
        Self {
            job,
            number,
            master,
            instance,
            operator,
            digest,
            join_interval,
            min_rto,
            give_up,
            linger,
        }
    }
}

/// What a worker has of one epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// The number of pairs.
    pub pairs: u32,
    /// The length of the records of long keys in bytes.
    pub long_bytes: u32,
}

impl Sizes {
    const fn pair_packets(self) -> u32 {
        self.pairs.div_ceil(MAX_PAIRS as u32)
    }

    /// The number of packets.
    #[must_use]
    pub const fn packets(self) -> u32 {
        self.pair_packets() + self.long_bytes.div_ceil(LONG_BYTES as u32)
    }
}

/// What a worker reports to its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The driver must divide the pairs into this number of epochs and call [`Worker::encoded`]. Hashes have this seed.
    Encode {
        /// The number of epochs.
        epochs: u16,
        /// The seed of the hashes.
        seed: u64,
    },
    /// The master has the sums of all pairs.
    Complete,
    /// The worker has given up.
    Failed(Failure),
}

/// The bytes of a message that only the driver has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// None.
    None,
    /// The worker's sketch.
    Sketch,
    /// These pairs of an epoch.
    Pairs {
        /// The epoch.
        epoch: u16,
        /// The index of the first pair.
        first: u32,
        /// The number of pairs.
        count: u8,
    },
    /// These bytes of the records of an epoch.
    Long {
        /// The epoch.
        epoch: u16,
        /// Offset of the first byte.
        offset: u32,
        /// The number of bytes.
        len: u16,
    },
}

/// A message of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Where it goes.
    pub to: HostId,
    /// The message.
    pub header: Header,
    /// Its payload.
    pub content: Content,
}

/// What a worker has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets of pairs and records that were sent, repetitions included.
    pub packets: u64,
    /// Packets that were sent again.
    pub retransmitted: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Acknowledgements of packets that a queue had marked.
    pub marked: u64,
    /// Attempts after the first.
    pub restarts: u64,
}

/// How often a worker that ends early says so: nothing confirms it.
const CLOSES: u8 = 3;

/// The worker of a job.
#[derive(Clone, Debug)]
pub struct Worker {
    config: Config,
    place: Place,
    state: Option<State>,
    sizes: Option<Vec<Sizes>>,
    /// What is sent next: its epoch, and the number of its packet in the epoch.
    next: (u16, u32),
    /// For each open epoch, from [`State::drained`] on: packets that are not acknowledged, sent or not, and whether all are.
    open: Vec<Progress>,
    window: Window,
    congestion: Congestion,
    is_confirm_due: bool,
    /// Since a packet was last acknowledged, or nothing was outstanding.
    progressed: Silence,
    encode: Option<Event>,
    outcome: Option<Event>,
    is_over: bool,
    /// Until when it stays after the end; see [`Config::linger`].
    lingers_until: Option<Time>,
    /// Whether it is over because of what this worker found: it answers nothing any longer.
    has_given_up: bool,
    /// How often the master is still to hear that the worker ends before the job.
    closes: u8,
    counters: Counters,
}

#[derive(Clone, Copy, Debug)]
struct Progress {
    epoch: u16,
    unacked: u32,
    fin_sent: bool,
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
            sizes: None,
            next: (0, 0),
            open: Vec::new(),
            window: Window::default(),
            congestion: Congestion::new(config.min_rto),
            is_confirm_due: false,
            progressed: Silence::since(now),
            encode: None,
            outcome: None,
            is_over: false,
            lingers_until: None,
            has_given_up: false,
            closes: 0,
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

    /// Returns the newest state that the master has announced.
    #[must_use]
    pub const fn state(&self) -> Option<&State> {
        self.state.as_ref()
    }

    /// Whether the worker has nothing more to do.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.is_over && !self.is_confirm_due && self.closes == 0 && self.lingers_until.is_none()
    }

    /// The driver has divided the pairs: what it has of each epoch.
    ///
    /// # Panics
    /// If there is not one entry for each epoch that [`Event::Encode`] named.
    pub fn encoded(&mut self, sizes: Vec<Sizes>) {
        let epochs = self.state.map_or(0, |state| state.epochs);
        assert_eq!(sizes.len(), usize::from(epochs), "one entry for each epoch");
        self.sizes = Some(sizes);
        self.open_epochs();
    }

    /// Handles a message. Any field of it may be wrong or forged.
    pub fn handle(&mut self, now: Time, from: HostId, header: &Header) {
        let is_mine = self.place.is_named_by(header);
        if !is_mine || self.is_over && !matches!(header.body, Body::State(_) | Body::Close) {
            return;
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
            Body::State(state) if self.place.is_for(from, state.instance) => {
                self.handle_state(now, header, state);
            }
            Body::Close
                if from == self.config.master && header.token.get() == self.place.token() =>
            {
                self.lingers_until = None;
            }
            Body::Ack { seq, marked } => {
                let is_from_aggregator = self.state.is_some_and(|state| state.aggregator == from);
                let is_current = self.state.is_some() && self.place.is_current(header);
                if (from == self.config.master || is_from_aggregator) && is_current {
                    self.handle_ack(now, seq, marked);
                }
            }
            _ => {}
        }
    }

    fn handle_state(&mut self, now: Time, header: &Header, state: State) {
        if self.has_given_up {
            return;
        }
        if let Some(old) = self.state {
            let is_other_division =
                old.epochs > 0 && state.epochs != old.epochs && state.phase != Phase::Failed;
            if header.token.get() != self.place.token()
                || state.version < old.version
                || is_other_division
            {
                return;
            }
            self.is_confirm_due = true;
            self.place.hear(now);
            if self.is_over {
                self.linger(now);
                return;
            }
            if state.version == old.version {
                return;
            }
        }
        if state.operator != self.config.operator {
            self.place.enter(header.token.get());
            return self.give_up(Failure::OtherOperator { operator: state.operator });
        }
        self.is_confirm_due = true;
        self.place.hear(now);
        self.place.enter(header.token.get());
        let is_new_attempt = self.state.is_none() || header.attempt != self.place.attempt();
        let had_epochs = self.state.map_or(0, |old| old.epochs);
        self.state = Some(state);
        match state.phase {
            Phase::Done => {
                self.is_over = true;
                self.outcome = Some(Event::Complete);
                self.window.clear();
                self.linger(now);
                return;
            }
            Phase::Failed => {
                self.is_over = true;
                self.outcome = Some(Event::Failed(Failure::Refused));
                self.window.clear();
                return;
            }
            Phase::Wait | Phase::Run | Phase::Quiesce | Phase::Commit => {}
        }
        if is_new_attempt {
            self.counters.restarts += u64::from(self.place.attempt() != header.attempt);
            self.place.begin(header.attempt);
            self.window.clear();
            self.progressed = Silence::since(now);
            self.congestion = Congestion::new(self.config.min_rto);
            self.next = (state.drained, 0);
            self.open.clear();
        }
        if had_epochs == 0 && state.epochs > 0 {
            self.sizes = None;
            self.encode = Some(Event::Encode { epochs: state.epochs, seed: self.place.token() });
        }
        self.open_epochs();
    }

    /// Makes the epochs sendable whose slots are free.
    fn open_epochs(&mut self) {
        let (Some(state), Some(sizes)) = (&self.state, &self.sizes) else { return };
        self.open.retain(|progress| progress.epoch >= state.drained);
        let end = state.drained.saturating_add(u16::from(state.copies)).min(state.epochs);
        let from = self.open.last().map_or(state.drained, |progress| progress.epoch + 1);
        for epoch in from..end {
            let unacked = sizes.get(usize::from(epoch)).map_or(0, |sizes| sizes.packets());
            self.open.push(Progress { epoch, unacked, fin_sent: false });
        }
        if self.next.0 < state.drained {
            self.next = (state.drained, 0);
        }
    }

    fn handle_ack(&mut self, now: Time, seq: u32, marked: bool) {
        let Some(acked) = self.window.acknowledge(now, seq) else { return };
        self.place.hear(now);
        self.progressed.hear(now);
        self.counters.marked += u64::from(marked);
        self.congestion.acknowledged(seq, acked.rtt, marked, self.window.next());
        if let Item::Packet { epoch, .. } = acked.item
            && let Some(progress) = self.open.iter_mut().find(|open| open.epoch == epoch)
        {
            progress.unacked -= 1;
        }
        if self.window.is_empty() && self.state.is_some_and(|state| state.phase == Phase::Quiesce) {
            self.is_confirm_due = true;
        }
        let lost = self.window.find_lost(now, self.congestion.loss_delay());
        if lost {
            self.congestion.lost(self.window.first(), self.window.next());
        }
    }

    /// The master announces the end, for the first time or again.
    fn linger(&mut self, now: Time) {
        let stays = self.config.linger > Span::ZERO;
        self.lingers_until = stays.then(|| now.saturating_add(self.config.linger));
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
        // What it has sent is not acknowledged, although the master is alive.
        if !self.window.is_empty() && self.progressed.look(now, limit) {
            let aggregator = self.state.map_or(self.config.master, |state| state.aggregator);
            return self.give_up(Failure::NotAcknowledged { aggregator });
        }
        let is_early = self.window.find_lost(now, self.congestion.loss_delay());
        let is_late = self.window.time_out(now, self.congestion.rto());
        if is_late {
            self.counters.timeouts += 1;
            self.congestion.timed_out(self.window.first(), self.window.next());
        } else if is_early {
            self.congestion.lost(self.window.first(), self.window.next());
        }
    }

    /// Ends the worker, which answers nothing from now on: it informs the master, which notices its silence if those messages are lost.
    pub fn give_up(&mut self, failure: Failure) {
        if !self.is_over {
            (self.is_over, self.has_given_up) = (true, true);
            self.is_confirm_due = false;
            self.closes = if self.place.token() == 0 { 0 } else { CLOSES };
            self.window.clear();
            self.outcome = Some(Event::Failed(failure));
        }
    }

    /// Returns when to call [`Worker::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.is_over {
            return self.lingers_until;
        }
        let limit = self.config.give_up;
        let no_progress = (!self.window.is_empty()).then(|| self.progressed.due(limit));
        let loss = self.window.timer(self.congestion.loss_delay(), self.congestion.rto());
        [Some(self.place.due(limit)), no_progress, loss].into_iter().flatten().min()
    }

    /// Returns the next message, if there is something to send now.
    pub fn poll(&mut self, now: Time) -> Option<Outgoing> {
        let master = self.config.master;
        if !self.is_over
            && let Some((instance, cookie)) = self.place.poll_join(now)
        {
            let digest = Id64::new(self.config.digest);
            let header = self.place.header(Body::Join { instance, cookie, digest });
            return Some(Outgoing { to: master, header, content: Content::Sketch });
        }
        if self.closes > 0 {
            self.closes -= 1;
            let (header, content) = (self.place.header(Body::Close), Content::None);
            return Some(Outgoing { to: master, header, content });
        }
        let state = self.state?;
        if core::mem::take(&mut self.is_confirm_due) {
            let body = Body::Confirm { version: state.version, idle: self.is_idle() };
            let (header, content) = (self.place.header(body), Content::None);
            return Some(Outgoing { to: master, header, content });
        }
        if self.is_over || self.sizes.is_none() {
            return None;
        }
        if let Some((seq, item)) = self.window.next_lost(now) {
            self.counters.retransmitted += 1;
            return Some(self.message(seq, item));
        }
        let has_room = self.window.in_flight() < self.congestion.window()
            && self.window.span() < u32::from(state.window);
        if state.phase != Phase::Run || !has_room {
            return None;
        }
        let item = self.next_item()?;
        if self.window.is_empty() {
            self.progressed.hear(now);
        }
        let seq = self.window.push(now, item)?;
        Some(self.message(seq, item))
    }

    /// Whether all that was sent is acknowledged.
    fn is_idle(&self) -> bool {
        self.window.is_empty()
    }

    /// Chooses what to send next: the end of an epoch, or the next packet of an open one.
    fn next_item(&mut self) -> Option<Item> {
        let done = |open: &&mut Progress| open.unacked == 0 && !open.fin_sent;
        if let Some(progress) = self.open.iter_mut().find(done) {
            progress.fin_sent = true;
            return Some(Item::Fin { epoch: progress.epoch });
        }
        let last = self.open.last()?.epoch;
        let sizes = self.sizes.as_ref()?;
        while self.next.0 <= last {
            let (epoch, index) = self.next;
            if index < sizes.get(usize::from(epoch))?.packets() {
                self.next.1 += 1;
                return Some(Item::Packet { epoch, index });
            }
            self.next = (epoch + 1, 0);
        }
        None
    }

    fn message(&mut self, seq: u32, item: Item) -> Outgoing {
        self.counters.packets += 1;
        let master = self.config.master;
        let sizes = |epoch: u16| {
            let sizes = self.sizes.as_ref().and_then(|sizes| sizes.get(usize::from(epoch)));
            sizes.copied().unwrap_or_default()
        };
        match item {
            Item::Fin { epoch } => {
                let Sizes { pairs, long_bytes } = sizes(epoch);
                let body = Body::Fin { seq, epoch, long_bytes, pairs };
                Outgoing { to: master, header: self.place.header(body), content: Content::None }
            }
            Item::Packet { epoch, index } => {
                let of_epoch = sizes(epoch);
                if let Some(long) = index.checked_sub(of_epoch.pair_packets()) {
                    let offset = long * u32::from(LONG_BYTES);
                    let left = of_epoch.long_bytes.saturating_sub(offset);
                    let len = left.min(u32::from(LONG_BYTES)) as u16;
                    let header = self.place.header(Body::Long { seq, epoch, offset, len });
                    let content = Content::Long { epoch, offset, len };
                    return Outgoing { to: master, header, content };
                }
                let first = index * u32::from(MAX_PAIRS);
                let count = of_epoch.pairs.saturating_sub(first).min(u32::from(MAX_PAIRS)) as u8;
                let header = self.place.header(Body::Data(Pairs { seq, epoch, count }));
                let to = self.state.map_or(master, |state| state.aggregator);
                Outgoing { to, header, content: Content::Pairs { epoch, first, count } }
            }
        }
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.encode.take().or_else(|| self.outcome.take())
    }
}
