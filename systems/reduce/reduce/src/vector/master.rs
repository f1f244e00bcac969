//! The master of a group.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use rackweave_aggregation::Failure;
use rackweave_aggregation::membership::NotTaken;
use rackweave_aggregation::vector::layout::Layout;
use rackweave_aggregation::vector::master::{Config, Event, Key, Master, Vectors};
use rackweave_aggregation::vector::node::{Aggregator, VectorNode};
use rackweave_core::{HostId, Span, Time};
use rackweave_linux::{Clock, random};
use rackweave_wire::reduce::{Format, MAX_CHUNK_BYTES, MAX_POOL, MAX_WORKERS, Shape};

use crate::error::without;
use crate::members::{MemberEvent, Waiting};
use crate::net::{Attachment, Net};
use crate::{Absence, ReduceError};

/// The configuration of a group's master.
#[derive(Clone, Copy, Debug)]
pub struct VectorMasterConfig {
    /// How this host is attached.
    pub attachment: Attachment,
    /// The number of the job, which master and workers share.
    pub job: u16,
    /// The number of workers, 1 to [`MAX_WORKERS`].
    pub workers: u8,
    /// What the vectors are; `None`: as those of the first worker that joins.
    pub shape: Option<Shape>,
    /// How many vectors are added up one after the other. 0: the job is open, and its workers are [`OpenGroup`](super::OpenGroup)s.
    pub steps: u32,
    /// The switch that adds up; `None`: this host does. Its number is that of [`rackweave_wire::reduce::number_of`].
    pub switch: Option<HostId>,
    /// Whether the job fails if the switch cannot be used; otherwise this host adds up instead.
    pub requires_switch: bool,
    /// Bytes of the elements of a chunk, 8 to [`MAX_CHUNK_BYTES`].
    pub chunk_bytes: u16,
    /// The number of chunks that a worker has in flight, 1 to [`MAX_POOL`].
    pub pool: u16,
    /// How long the master waits for a worker that is silent.
    pub patience: Span,
    /// How long the master waits for all workers to join, from its start on.
    pub join_within: Span,
    /// What a process must know to become a worker of an open job. It is sent in the clear.
    pub key: Key,
}

impl VectorMasterConfig {
    /// A master of job 1 that adds up one vector of each worker itself, in chunks of 1024 bytes, 64 in flight, with 30 s of
    /// patience, and 10 minutes for all workers to join.
    #[must_use]
    pub const fn new(listen: SocketAddr, workers: u8) -> Self {
        Self {
            attachment: Attachment::Udp(listen),
            job: 1,
            workers,
            shape: None,
            steps: 1,
            switch: None,
            requires_switch: false,
            chunk_bytes: 1024,
            pool: 64,
            patience: Span::from_secs(30),
            join_within: Span::from_secs(600),
            key: Key(0),
        }
    }
}

/// What a master reports while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VectorMasterEvent {
    /// A worker has joined or left, or is waited for.
    Member(MemberEvent),
    /// A worker is refused, because its vectors are not those of the job.
    Refused {
        /// Its number.
        worker: u8,
        /// What its vectors are.
        found: Shape,
        /// What those of the job are.
        expected: Shape,
    },
    /// All workers have joined, and begin to send.
    Started {
        /// What their vectors are.
        shape: Shape,
        /// The number of chunks that each has in flight.
        pool: u16,
        /// The switch that adds up; `None`: this host does.
        switch: Option<String>,
    },
    /// The switch is not used, for this reason.
    WithoutSwitch(String),
    /// Another process has taken the place of a worker.
    Replaced {
        /// The worker's number.
        worker: u8,
    },
    /// All workers have the sums of this number of chunks. Each tenth of the job is reported.
    Summed {
        /// Chunks whose sums all workers have.
        chunks: u64,
        /// The number of chunks of the job.
        of: u64,
    },
    /// All workers are prepared, and give their results their names.
    Committed,
    /// These workers have not said that their results have their names, while the others may have: reported after 5 s, when others
    /// are missing, every 30 s, and when the job fails.
    Unnamed {
        /// Their numbers.
        workers: Vec<u8>,
        /// Whether the job has failed.
        has_failed: bool,
    },
    /// A worker, or what adds up, has lost its memory: chunks without a sum at all workers are sent again.
    Repeated,
}

/// What a job has added up, and what has reached the master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VectorStats {
    /// The number of elements of a vector.
    pub length: u64,
    /// How elements were sent.
    pub format: Format,
    /// How many vectors were added up one after the other.
    pub steps: u32,
    /// The number of chunks that each worker had in flight.
    pub pool: u16,
    /// Whether the switch has added up to the end.
    pub by_switch: bool,
    /// Sums of chunks that this host has made.
    pub sums_here: u64,
    /// Attempts after the first.
    pub restarts: u64,
    /// Bytes of all messages that reached the master, from their IP headers on.
    pub received_bytes: u64,
    /// Datagrams that were dropped: no messages, or from hosts that are not listened to.
    pub refused: u64,
    /// Messages of another job or another process than the job's.
    pub stale: u64,
    /// The time from the first chunk that a worker may have sent until all workers were prepared.
    pub elapsed: Span,
}

/// The master of a group, whose socket is bound.
pub struct VectorMaster {
    config: VectorMasterConfig,
    net: Net,
}

impl std::fmt::Debug for VectorMaster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VectorMaster").field("config", &self.config).finish_non_exhaustive()
    }
}

impl VectorMaster {
    /// Binds the socket.
    ///
    /// # Errors
    /// If the address cannot be bound, or the configuration is impossible.
    pub fn bind(config: VectorMasterConfig) -> Result<Self, ReduceError> {
        let VectorMasterConfig { workers, steps, chunk_bytes, pool, .. } = config;
        let wrong = |why: String| Err(ReduceError::Config(why));
        if !(1..=MAX_WORKERS).contains(&workers) {
            return wrong(format!("a job has 1 to {MAX_WORKERS} workers"));
        }
        if steps == 0 && config.shape.is_some() {
            return wrong("vectors of an open job have no common length".to_owned());
        }
        if !(8..=MAX_CHUNK_BYTES).contains(&chunk_bytes) {
            return wrong(format!("a chunk has 8 to {MAX_CHUNK_BYTES} bytes"));
        }
        if !(1..=MAX_POOL).contains(&pool) {
            return wrong(format!("a worker has 1 to {MAX_POOL} chunks in flight"));
        }
        let net = Net::bind(config.attachment, config.switch.is_some(), Clock::start())?;
        Ok(Self { config, net })
    }

    /// Returns the address of the socket.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.net.local_addr()
    }

    /// Serves the workers until the results of all have their names, see [`AllReduce::commit`](super::AllReduce::commit). Once `stop` is set, the job ends, and the workers are
    /// informed.
    ///
    /// # Errors
    /// See [`ReduceError`]; [`ReduceError::Interrupted`] after `stop`.
    pub fn run(
        self,
        stop: &AtomicBool,
        report: &mut dyn FnMut(VectorMasterEvent),
    ) -> Result<VectorStats, ReduceError> {
        let Self { config, mut net } = self;
        let host = config.attachment.master_host();
        let mut node = node(&config, host, net.now());
        let (started, summed, ended, absence, tenth) = (None, None, None, None, 0);
        let mut progress = Progress { host, started, summed, ended, absence, tenth };
        let mut waiting = Waiting::new(net.now());
        let mut naming = Waiting::new(net.now());
        while !node.is_done() {
            net.turn_and_wait(&mut node)?;
            let now = net.now();
            let Some(master) = node.master_mut() else { break };
            net.keep((0..config.workers).filter_map(|worker| master.worker_host(worker)));
            if stop.load(Ordering::Relaxed) {
                master.interrupt(now);
            }
            while let Some(event) = master.poll_event() {
                if let Some(event) = progress.note(now, event, master, &net, &config) {
                    report(event);
                }
            }
            if let Some(event) = progress.summed(master) {
                report(event);
            }
            while let Some(NotTaken { worker, host, why }) = master.poll_refused() {
                let address = net.numbers.name(host);
                report(VectorMasterEvent::Member(MemberEvent::NotTaken { worker, address, why }));
            }
            if let Some(workers) = waiting.due(now, master.missing())
                && progress.ended.is_none()
            {
                report(VectorMasterEvent::Member(MemberEvent::Waiting { workers }));
            }
            let unnamed = unnamed(master).filter(|_| progress.ended.is_none());
            if let Some(workers) = naming.due(now, unnamed.unwrap_or_default().into_iter()) {
                report(VectorMasterEvent::Unnamed { workers, has_failed: false });
            }
            // All results have their names, whoever has heard of it.
            if stop.load(Ordering::Relaxed) && matches!(progress.ended, Some((_, Ok(())))) {
                break;
            }
        }
        // What was polled last is sent.
        net.turn(&mut node)?;
        let Some(master) = node.master() else { return Err(ReduceError::Interrupted) };
        match progress.ended {
            Some((_, Ok(()))) => {}
            Some((_, Err(failure))) => {
                if let Some(workers) = unnamed(master) {
                    report(VectorMasterEvent::Unnamed { workers, has_failed: true });
                }
                return Err(explain(failure, &config, master, &net, progress.absence));
            }
            None => return Err(ReduceError::Interrupted),
        }
        let sums = node.aggregator().map(|aggregator| aggregator.program().counts().chunk_sums);
        let vectors = master.config().vectors;
        let elapsed = progress.summed.zip(progress.started);
        Ok(VectorStats {
            length: vectors.length,
            format: vectors.format,
            steps: vectors.steps,
            pool: master.layout().map_or(0, |layout| layout.pool),
            by_switch: config.switch.is_some() && master.aggregator() == config.switch,
            sums_here: sums.unwrap_or_default(),
            restarts: master.attempt().into(),
            received_bytes: net.traffic.received_bytes,
            refused: net.traffic.refused,
            stale: master.stale(),
            elapsed: elapsed.map_or(Span::ZERO, |(summed, started)| summed.since(started)),
        })
    }
}

/// The machines of the master's host.
fn node(config: &VectorMasterConfig, host: HostId, now: Time) -> VectorNode {
    let &VectorMasterConfig { job, workers, steps, chunk_bytes, pool, .. } = config;
    let shape = config.shape.unwrap_or(Shape { length: 0, format: Format::I64 });
    let elements = (chunk_bytes / shape.format.bytes()).max(1);
    let Shape { length, format } = shape;
    let vectors = Vectors { length, format, steps, elements, pool };
    let mut aggregators: Vec<HostId> = config.switch.into_iter().collect();
    if config.switch.is_none() || !config.requires_switch {
        aggregators.push(host);
    }
    let secrets = random();
    let mut machine = Config {
        aggregators,
        commits: steps > 0,
        key: config.key,
        ..Config::new(job, workers, vectors, secrets as u64, (secrets >> 64) as u64)
    };
    machine.members.give_up = config.patience;
    machine.members.join_within = config.join_within;
    // A chunk of integers takes as many slots as one of floats that has the same bytes.
    let (length, format, elements) = (1, Format::I64, chunk_bytes / Format::I64.bytes());
    let layout = Layout { length, elements, pool, format, steps, workers };
    // Twice what can be outstanding: each chunk has an answer for each worker.
    let limit = 2 * usize::from(pool) * usize::from(workers);
    let limits = Aggregator::limits(&layout, random() as u64);
    VectorNode::new(host)
        .with_master(Master::new(machine, now))
        .with_aggregator(Aggregator::new(host, limits, limit))
}

/// The workers that have not said that their results have their names; `None` before the commit.
fn unnamed(master: &Master) -> Option<Vec<u8>> {
    let workers = master.unnamed()?;
    Some((0..MAX_WORKERS).filter(|number| workers >> number & 1 == 1).collect())
}

/// What a master remembers of its job.
struct Progress {
    host: HostId,
    started: Option<Time>,
    /// When all workers had all sums.
    summed: Option<Time>,
    ended: Option<(Time, Result<(), Failure>)>,
    absence: Option<Absence>,
    /// The tenths of the job that have been reported.
    tenth: u64,
}

impl Progress {
    /// Returns what all workers have, if it is a tenth more than what was reported.
    fn summed(&mut self, master: &Master) -> Option<VectorMasterEvent> {
        let (chunks, of) = master.summed()?;
        let tenth = u128::from(chunks) * 10 / u128::from(of.max(1));
        let is_more = tenth > u128::from(self.tenth) && tenth < 10;
        self.tenth = self.tenth.max(tenth as u64);
        is_more.then_some(VectorMasterEvent::Summed { chunks, of })
    }

    /// Takes an event of the machine, and returns it in the words of the driver.
    fn note(
        &mut self,
        now: Time,
        event: Event,
        master: &Master,
        net: &Net,
        config: &VectorMasterConfig,
    ) -> Option<VectorMasterEvent> {
        let Vectors { length, format, .. } = master.config().vectors;
        let shape = Shape { length, format };
        Some(match event {
            Event::Joined { worker } => {
                let address = net.numbers.name(master.worker_host(worker)?);
                VectorMasterEvent::Member(MemberEvent::Joined { worker, address })
            }
            Event::Left { worker } => VectorMasterEvent::Member(MemberEvent::Left { worker }),
            Event::Replaced { worker } => VectorMasterEvent::Replaced { worker },
            Event::OtherVector { worker, length, format } => {
                let found = Shape { length, format };
                VectorMasterEvent::Refused { worker, found, expected: shape }
            }
            Event::Started { aggregator, .. } if self.started.is_none() => {
                self.started = Some(now);
                let pool = master.layout().map_or(0, |layout| layout.pool);
                let switch = (aggregator != self.host).then(|| crate::error::name_of(aggregator));
                VectorMasterEvent::Started { shape, pool, switch }
            }
            Event::Started { .. } => VectorMasterEvent::Repeated,
            Event::Committed => {
                self.summed = Some(now);
                VectorMasterEvent::Committed
            }
            Event::Without { aggregator, absence } => {
                self.absence = Some(absence);
                if config.requires_switch {
                    return None;
                }
                VectorMasterEvent::WithoutSwitch(without(aggregator, absence))
            }
            Event::Complete => {
                self.ended = Some((now, Ok(())));
                return None;
            }
            Event::Failed(failure) => {
                self.ended = Some((now, Err(failure)));
                return None;
            }
        })
    }
}

fn explain(
    failure: Failure,
    config: &VectorMasterConfig,
    master: &Master,
    net: &Net,
    absence: Option<Absence>,
) -> ReduceError {
    let gone =
        |worker, has_left| net.gone(worker, master.worker_host(worker), has_left, config.patience);
    match (failure, config.switch.zip(absence)) {
        (Failure::WorkerSilent { worker }, _) => gone(worker, false),
        (Failure::WorkerLeft { worker, waited: 0 }, _) => gone(worker, true),
        (Failure::Interrupted, _) => ReduceError::Interrupted,
        (Failure::NoAggregator { .. }, Some((switch, absence))) => {
            ReduceError::NoSwitch { switch, absence }
        }
        (other, _) => ReduceError::Failed(other),
    }
}
