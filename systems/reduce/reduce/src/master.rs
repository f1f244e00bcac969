//! A master over a socket.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rackweave_aggregation::Failure;
use rackweave_aggregation::master::{Absence, Aggregation, Config, Event};
use rackweave_aggregation::membership::NotTaken;
use rackweave_aggregation::node::MasterSide;
use rackweave_aggregation::totals::Totals;
use rackweave_core::{HostId, Span, Time};
use rackweave_linux::{Clock, random};
use rackweave_wire::reduce::{Header, MAX_WORKERS, Operator};

use crate::ReduceError;
use crate::error::without;
use crate::members::{MemberEvent, Waiting};
use crate::moves::{Mover, Moves};
use crate::net::{self, Attachment, Net};

/// The configuration of a master.
#[derive(Clone, Copy, Debug)]
pub struct MasterConfig {
    /// How this host is attached.
    pub attachment: Attachment,
    /// The number of the job, which master and workers share.
    pub job: u16,
    /// The number of workers, 1 to [`MAX_WORKERS`].
    pub workers: u8,
    /// How values of equal keys are combined.
    pub operator: Operator,
    /// The switch that adds up; `None`: the master does. Its number is that of [`rackweave_wire::reduce::number_of`].
    pub aggregation: Option<Aggregation>,
    /// Whether the job fails if the switch cannot be used; otherwise the master adds up instead.
    pub requires_switch: bool,
    /// How long the master waits for a worker that is silent.
    pub patience: Span,
    /// How long the master waits for all workers to join, from its start on.
    pub join_within: Span,
}

impl MasterConfig {
    /// A master of job 1 that adds up itself, with 30 s of patience, and 10 minutes for all workers to join.
    #[must_use]
    pub const fn new(listen: SocketAddr, workers: u8) -> Self {
        Self {
            attachment: Attachment::Udp(listen),
            job: 1,
            workers,
            operator: Operator::Sum,
            aggregation: None,
            requires_switch: false,
            patience: Span::from_secs(30),
            join_within: Span::from_secs(600),
        }
    }
}

/// What a master reports while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MasterEvent {
    /// A worker has joined or left, or is waited for.
    Member(MemberEvent),
    /// All workers have joined, and begin to send.
    Started {
        /// The number of slots that the switch has granted, 0 without a switch.
        slots: u32,
        /// The number of ranges of keys that are sent one after the other.
        epochs: u16,
        /// The estimated number of distinct keys.
        keys: u64,
    },
    /// The switch is not used, for this reason.
    WithoutSwitch(String),
    /// A worker, or the switch if there is no number, has lost its memory: the epochs that are not collected are sent again.
    Repeated {
        /// The worker's number.
        worker: Option<u8>,
    },
    /// The sums of an epoch are there.
    Collected {
        /// The number of epochs that are there.
        epochs: u16,
        /// The number of all epochs.
        of: u16,
    },
    /// All sums are there, and the result is not delivered: reported after 5 s, and every 30 s.
    Delivers,
    /// All workers have joined, and the upload waits for its [`Coordinator`].
    Waits,
    /// The upload may begin.
    Granted {
        /// The slots to ask the switch for, 0 without a switch.
        slots: u32,
    },
    /// Circuits have changed, and their ports are lit again.
    Moved {
        /// The number of changes so far.
        changes: u64,
    },
    /// Circuits have not changed, for this reason. The job goes on.
    NotMoved(String),
}

/// What a job has sent and what has reached the master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The pairs that the workers had, after their own combining: P.
    pub sent: u64,
    /// The pairs that reached the master as such: with a switch, those without a slot. Pairs sent again in another
    /// attempt count again, here and below.
    pub pairs: u64,
    /// The sums that were fetched from the switch.
    pub sums: u64,
    /// Keys or values too large for a slot, which always go to the master.
    pub records: u64,
    /// The number of distinct keys: K. At least one pair for each of them reaches the master.
    pub keys: u64,
    /// Bytes of all messages that reached the master, from their IP headers on.
    pub received_bytes: u64,
    /// Datagrams that were dropped: no messages, or from hosts that are not listened to.
    pub refused: u64,
    /// Messages of another job, another attempt or another process than the job's.
    pub stale: u64,
    /// Attempts after the first.
    pub restarts: u64,
    /// The number of slots that the switch has granted; 0 if it was not used, or not to the end.
    pub slots: u32,
    /// The number of epochs.
    pub epochs: u16,
    /// The time from the start of the upload to the last sum.
    pub upload: Span,
    /// The number of changes of circuits in the middle of the job.
    pub moves: u64,
    /// The time for which the job was stopped for them, which `upload` includes.
    pub stopped: Span,
}

impl Stats {
    /// Returns the number of pairs, sums and records that reached the master.
    #[must_use]
    pub const fn reached(&self) -> u64 {
        self.pairs + self.sums + self.records
    }
}

/// The result of a job.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// All keys with their combined values, in the order of the keys' bytes.
    pub totals: Vec<(Box<[u8]>, u64)>,
    /// What was sent and received for it.
    pub stats: Stats,
}

/// Who decides when the upload of a job begins, and with which slots: the control plane of P4-ORDC (section 2). Nothing here may block,
/// since the master has other work.
pub trait Coordinator {
    /// All workers have joined, from these hosts, with an estimate of the distinct keys.
    fn ready(&mut self, workers: &[HostId], keys: u64);

    /// Whether the upload may begin: with these slots, or without a switch. Called after [`Coordinator::ready`], until it returns
    /// something.
    fn poll(&mut self) -> Option<Option<Aggregation>>;

    /// All sums are there: the workers had this many pairs, with an estimate of the distinct keys.
    fn uploaded(&mut self, pairs: u64, keys: u64);
}

/// How often a [`Coordinator`] and a delivery are polled.
const POLL_EVERY: Span = Span::from_ms(2);

/// How long a master that is stopped waits for a delivery that has begun.
const LAST_CALL: Span = Span::from_secs(2);

/// The coordinator of a job, and how far it is.
enum Turn<'a> {
    /// Workers join.
    Joining(&'a mut dyn Coordinator),
    /// The upload waits.
    Waiting(&'a mut dyn Coordinator),
    /// It goes on.
    Uploading(&'a mut dyn Coordinator),
    /// There is nothing to be told.
    Over,
}

/// What is done with the result before the workers hear that the job has ended. Its error is a sentence.
type Deliver = Box<dyn FnOnce(&Outcome) -> Result<(), String> + Send>;

/// A result that is being delivered by a thread of its own, while the master answers its workers.
type Delivering = JoinHandle<(Outcome, Result<(), String>)>;

/// The master of a job, whose socket is bound.
pub struct Master {
    config: MasterConfig,
    net: Net,
    deliver: Deliver,
}

/// The machine, and when its driver has something else to do: moves and turns, and a delivery.
struct Machine(MasterSide, Option<Time>, Option<Time>);

impl net::Machine for Machine {
    fn handle(&mut self, now: Time, from: HostId, header: &Header, marked: bool, payload: &[u8]) {
        self.0.handle(now, from, header, marked, payload);
    }

    fn handle_timeout(&mut self, now: Time) {
        self.0.handle_timeout(now);
    }

    fn poll_timeout(&self) -> Option<Time> {
        [self.0.machine().poll_timeout(), self.1, self.2].into_iter().flatten().min()
    }

    fn poll(&mut self, now: Time) -> Option<(HostId, Header, &[u8])> {
        self.0.poll(now)
    }
}

impl std::fmt::Debug for Master {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Master").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Master {
    /// Binds the socket.
    ///
    /// # Errors
    /// If the address cannot be bound, or the configuration is impossible.
    pub fn bind(config: MasterConfig) -> Result<Self, ReduceError> {
        if !(1..=MAX_WORKERS).contains(&config.workers) {
            return Err(ReduceError::Config(format!("a job has 1 to {MAX_WORKERS} workers")));
        }
        let has_switch = config.aggregation.is_some();
        let net = Net::bind(config.attachment, has_switch, Clock::start())?;
        Ok(Self { config, net, deliver: Box::new(|_| Ok(())) })
    }

    /// Delivers the result by this function, such as to a file. Until it returns, no worker hears that the job has ended well; if it fails, the
    /// job has failed for all ([`ReduceError::NotDelivered`]).
    #[must_use]
    pub fn delivering(
        self,
        deliver: impl FnOnce(&Outcome) -> Result<(), String> + Send + 'static,
    ) -> Self {
        Self { deliver: Box::new(deliver), ..self }
    }

    /// Returns the address of the socket.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.net.local_addr()
    }

    /// Collects the sums of all workers. Once `stop` is set, the job ends, and the workers hear of it.
    ///
    /// # Errors
    /// See [`ReduceError`]; [`ReduceError::Interrupted`] after `stop`.
    pub fn run(
        self,
        stop: &AtomicBool,
        report: &mut dyn FnMut(MasterEvent),
    ) -> Result<Outcome, ReduceError> {
        self.run_to_end(stop, None, Turn::Over, report)
    }

    /// As [`Master::run`], and begins the upload when the coordinator says so. The coordinator's slots replace the configured ones.
    ///
    /// # Errors
    /// As [`Master::run`].
    pub fn run_coordinated(
        self,
        stop: &AtomicBool,
        coordinator: &mut dyn Coordinator,
        report: &mut dyn FnMut(MasterEvent),
    ) -> Result<Outcome, ReduceError> {
        self.run_to_end(stop, None, Turn::Joining(coordinator), report)
    }

    /// As [`Master::run`], and changes circuits meanwhile. A change that is refused or not answered is reported as
    /// [`MasterEvent::NotMoved`], and the job goes on.
    ///
    /// # Errors
    /// As [`Master::run`].
    pub fn run_with_moves(
        self,
        stop: &AtomicBool,
        moves: Moves<'_>,
        report: &mut dyn FnMut(MasterEvent),
    ) -> Result<Outcome, ReduceError> {
        self.run_to_end(stop, Some(Mover::new(moves)), Turn::Over, report)
    }

    fn run_to_end(
        self,
        stop: &AtomicBool,
        mut mover: Option<Mover<'_>>,
        mut turn: Turn<'_>,
        report: &mut dyn FnMut(MasterEvent),
    ) -> Result<Outcome, ReduceError> {
        let Self { mut config, mut net, deliver } = self;
        let secrets = random();
        let (host, workers) = (config.attachment.master_host(), config.workers);
        let mut machine = Config {
            operator: config.operator,
            aggregation: config.aggregation,
            probe: config.requires_switch,
            hold: !matches!(turn, Turn::Over),
            holds_end: true,
            ..Config::new(config.job, host, workers, secrets as u64, (secrets >> 64) as u64)
        };
        machine.members.give_up = config.patience;
        machine.members.join_within = config.join_within;
        let now = net.now();
        let mut machine = Machine(MasterSide::new(machine, now), None, None);
        let mut refused: Option<Absence> = None;
        let mut waiting = Waiting::new(now);
        let mut delivery = Delivery::new(deliver, now);
        while !machine.0.machine().is_over() {
            net.turn_and_wait(&mut machine)?;
            let side = &mut machine.0;
            let now = net.now();
            net.keep((0..workers).filter_map(|worker| side.machine().worker_host(worker)));
            let is_stopped = stop.load(Ordering::Relaxed);
            if is_stopped {
                side.interrupt(now);
            }
            if let Some(mover) = &mut mover {
                mover.step(now, side, report);
                machine.1 = mover.due(&machine.0, now);
            }
            if let Some(aggregation) = turn.step(now, &mut machine, report) {
                config.aggregation = aggregation;
            }
            let side = &mut machine.0;
            while let Some(event) = side.poll_event() {
                if let Event::WithoutSwitch(absence) = event
                    && config.requires_switch
                {
                    refused = refused.or(Some(absence));
                    side.interrupt(now);
                }
                // The job ends for this reason; what follows from it is no news.
                if refused.is_some() {
                    continue;
                }
                if let Some(event) = translated(event, side, &net, &config) {
                    report(event);
                }
            }
            while let Some(NotTaken { worker, host, why }) = side.machine_mut().poll_refused() {
                let address = net.numbers.name(host);
                report(MasterEvent::Member(MemberEvent::NotTaken { worker, address, why }));
            }
            if let Some(workers) = waiting.due(now, side.machine().missing())
                && side.progress().outcome.is_none()
            {
                report(MasterEvent::Member(MemberEvent::Waiting { workers }));
            }
            delivery.step(now, &mut machine, &net, mover.as_ref(), is_stopped, report);
            // The result is delivered, whoever has heard of it.
            if is_stopped && matches!(delivery.result, Some(Ok(_))) {
                break;
            }
        }
        // What was polled last is sent.
        net.turn(&mut machine)?;
        let side = machine.0;
        match (side.progress().outcome, delivery.result) {
            (_, Some(delivered)) => delivered,
            (Some(Err(failure)), None) => Err(match (refused, config.aggregation) {
                (Some(absence), Some(wanted)) => {
                    ReduceError::NoSwitch { switch: wanted.switch, absence }
                }
                _ => explain(failure, &config, &side, &net),
            }),
            (Some(Ok(())) | None, None) => Err(ReduceError::Interrupted),
        }
    }
}

/// Returns what a job that has all sums has sent, but for what its sums tell.
fn stats(side: &MasterSide, net: &Net, mover: Option<&Mover<'_>>) -> Stats {
    let (progress, counters) = (side.progress(), side.machine().counters());
    let upload = progress.ended.zip(progress.started);
    Stats {
        sent: side.announced(),
        pairs: counters.pairs,
        sums: counters.sums,
        received_bytes: net.traffic.received_bytes,
        refused: net.traffic.refused,
        stale: counters.stale,
        restarts: counters.restarts,
        slots: progress.slots,
        epochs: progress.epochs,
        upload: upload.map_or(Span::ZERO, |(ended, started)| ended.since(started)),
        moves: mover.map_or(0, |mover| mover.made),
        stopped: mover.map_or(Span::ZERO, |mover| mover.stopped),
        ..Stats::default()
    }
}

/// The end of a job: its result is delivered by a thread, and then the workers hear of it.
struct Delivery {
    deliver: Option<Deliver>,
    thread: Option<Delivering>,
    result: Option<Result<Outcome, ReduceError>>,
    waiting: Waiting,
    /// When a master that is stopped no longer waits.
    until: Option<Time>,
}

impl Delivery {
    fn new(deliver: Deliver, now: Time) -> Self {
        let waiting = Waiting::new(now);
        Self { deliver: Some(deliver), thread: None, result: None, waiting, until: None }
    }

    /// Goes on.
    fn step(
        &mut self,
        now: Time,
        machine: &mut Machine,
        net: &Net,
        mover: Option<&Mover<'_>>,
        is_stopped: bool,
        report: &mut dyn FnMut(MasterEvent),
    ) {
        let side = &mut machine.0;
        if side.progress().outcome == Some(Ok(()))
            && let Some(deliver) = self.deliver.take()
        {
            let stats = stats(side, net, mover);
            match start(deliver, side.take_totals(), stats) {
                Ok(thread) => self.thread = Some(thread),
                Err(why) => self.end(now, side, Err(ReduceError::NotDelivered(why))),
            }
        }
        if let Some(thread) = self.thread.take_if(|thread| thread.is_finished()) {
            let result = match thread.join() {
                Ok((outcome, result)) => result.map(|()| outcome),
                Err(_) => Err("the result cannot be delivered: an error in Rackweave".into()),
            };
            self.end(now, side, result.map_err(ReduceError::NotDelivered));
        }
        if is_stopped && self.thread.is_some() {
            // A file is soon written; who reads a pipe may never.
            let until = *self.until.get_or_insert(now.saturating_add(LAST_CALL));
            if now >= until {
                self.thread = None;
                self.end(now, side, Err(ReduceError::Interrupted));
            }
        }
        if self.waiting.due(now, self.thread.iter().map(|_| 0)).is_some() {
            report(MasterEvent::Delivers);
        }
        machine.2 = self.thread.is_some().then(|| now.saturating_add(POLL_EVERY));
    }

    fn end(&mut self, now: Time, side: &mut MasterSide, result: Result<Outcome, ReduceError>) {
        side.conclude(now, result.is_ok());
        self.result = Some(result);
    }
}

/// Sorts the sums and delivers them, in a thread.
fn start(deliver: Deliver, totals: Totals, mut stats: Stats) -> Result<Delivering, String> {
    let work = move || {
        stats.records = totals.records();
        stats.sent += stats.records;
        let totals = totals.into_sorted();
        stats.keys = totals.len() as u64;
        let outcome = Outcome { totals, stats };
        let result = deliver(&outcome);
        (outcome, result)
    };
    let thread = std::thread::Builder::new().name("result".into()).spawn(work);
    thread.map_err(|error| format!("the result cannot be delivered: no thread: {error}"))
}

impl Turn<'_> {
    /// Goes on. Returns what the upload is given when it is.
    fn step(
        &mut self,
        now: Time,
        machine: &mut Machine,
        report: &mut dyn FnMut(MasterEvent),
    ) -> Option<Option<Aggregation>> {
        let side = &mut machine.0;
        let mut granted = None;
        *self = match std::mem::replace(self, Turn::Over) {
            Turn::Joining(it) if side.machine().is_waiting() => {
                let workers = 0..side.machine().config().members.workers;
                let hosts = workers.filter_map(|worker| side.machine().worker_host(worker));
                it.ready(&hosts.collect::<Vec<_>>(), side.machine().keys());
                report(MasterEvent::Waits);
                machine.1 = Some(now.saturating_add(POLL_EVERY));
                Turn::Waiting(it)
            }
            Turn::Waiting(it) => match it.poll() {
                Some(aggregation) => {
                    machine.1 = None;
                    report(MasterEvent::Granted { slots: aggregation.map_or(0, |it| it.slots) });
                    side.grant(now, aggregation);
                    granted = Some(aggregation);
                    Turn::Uploading(it)
                }
                None => {
                    machine.1 = Some(now.saturating_add(POLL_EVERY));
                    Turn::Waiting(it)
                }
            },
            Turn::Uploading(it) if side.progress().ended.is_some() => {
                it.uploaded(side.announced(), side.progress().keys);
                Turn::Over
            }
            other => other,
        };
        granted
    }
}

/// Returns an event of the machine in the words of the driver.
fn translated(
    event: Event,
    side: &MasterSide,
    net: &Net,
    config: &MasterConfig,
) -> Option<MasterEvent> {
    Some(match event {
        Event::Joined { worker } => {
            let address = net.numbers.name(side.machine().worker_host(worker)?);
            MasterEvent::Member(MemberEvent::Joined { worker, address })
        }
        Event::Left { worker } => MasterEvent::Member(MemberEvent::Left { worker }),
        Event::Started { slots, epochs, keys } => MasterEvent::Started { slots, epochs, keys },
        Event::WithoutSwitch(absence) => {
            MasterEvent::WithoutSwitch(without(config.aggregation?.switch, absence))
        }
        Event::Discard { worker, .. } => MasterEvent::Repeated { worker },
        Event::Drained { epoch } => {
            MasterEvent::Collected { epochs: epoch + 1, of: side.machine().progress().0 }
        }
        _ => return None,
    })
}

fn explain(failure: Failure, config: &MasterConfig, side: &MasterSide, net: &Net) -> ReduceError {
    let gone = |worker, has_left| {
        let host = side.machine().worker_host(worker);
        net.gone(worker, host, has_left, config.patience)
    };
    match failure {
        Failure::WorkerSilent { worker } => gone(worker, false),
        Failure::WorkerLeft { worker, .. } => gone(worker, true),
        Failure::Interrupted => ReduceError::Interrupted,
        other => ReduceError::Failed(other),
    }
}
