//! A worker over a socket.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use rackweave_aggregation::Failure;
use rackweave_aggregation::node::WorkerSide;
use rackweave_aggregation::source::Order;
use rackweave_aggregation::worker::Config;
use rackweave_core::{HostId, Span, Time};
use rackweave_linux::random;
use rackweave_wire::reduce::{Header, MAX_WORKERS, PORT, Phase};

use crate::members::{Awaiting, Waits};
use crate::net::{self, Attachment, Net, Numbers};
use crate::{Encoder, ReduceError};

/// The configuration of a worker.
#[derive(Clone, Copy, Debug)]
pub struct WorkerConfig {
    /// Where the master is, and how this host reaches it.
    pub master: MasterAt,
    /// The number of the job, which master and workers share.
    pub job: u16,
    /// The number of the worker, from 0; a process with the same number takes the place of one that has died.
    pub number: u8,
    /// In which order pairs are sent.
    pub order: Order,
    /// How long the worker waits for a master, or a switch, that is silent.
    pub patience: Span,
}

/// How a worker reaches its master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MasterAt {
    /// By ordinary UDP.
    Udp {
        /// The master's address.
        master: SocketAddr,
        /// The worker's own; see [`Attachment::Udp`].
        bind: SocketAddr,
    },
    /// Through a user-space switch.
    Overlay {
        /// The number of the master's host.
        master: HostId,
        /// The switch's port for this host.
        port: SocketAddr,
        /// The number of this host.
        me: HostId,
    },
}

impl MasterAt {
    /// Returns how this host is attached, with the master as its peer.
    #[must_use]
    pub const fn attachment(&self) -> Attachment {
        match *self {
            Self::Udp { bind, .. } => Attachment::Udp(bind),
            Self::Overlay { port, me, .. } => Attachment::Overlay { port, me },
        }
    }
}

impl WorkerConfig {
    /// A worker of job 1 of the master at this address, with 30 s of patience.
    #[must_use]
    pub const fn new(number: u8, master: SocketAddr) -> Self {
        let bind = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        Self {
            master: MasterAt::Udp { master, bind },
            job: 1,
            number,
            order: Order::Hash,
            patience: Span::from_secs(30),
        }
    }
}

/// What a worker has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerReport {
    /// The number of distinct keys; each is a pair.
    pub pairs: u64,
    /// Packets of pairs and records, repetitions included.
    pub packets: u64,
    /// Packets that were sent again.
    pub retransmitted: u64,
    /// How often what was not yet collected was sent again, because another worker or the switch had lost its memory.
    pub restarts: u64,
}

/// How long a worker stays after the end if the master does not let it go: the master repeats the end after 20, 40, 80, 160 and 250 ms.
pub(crate) const LINGER: Span = Span::from_ms(600);

struct Machine(WorkerSide);

impl net::Machine for Machine {
    fn handle(&mut self, now: Time, from: HostId, header: &Header, _marked: bool, _payload: &[u8]) {
        self.0.handle(now, from, header);
    }

    fn handle_timeout(&mut self, now: Time) {
        self.0.handle_timeout(now);
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.0.machine().poll_timeout()
    }

    fn poll(&mut self, now: Time) -> Option<(HostId, Header, &[u8])> {
        self.0.poll(now)
    }
}

/// Sends the pairs to the job's master, and returns when the master has delivered the result. Once `stop` is set, the worker leaves:
/// the master is informed, and another process can take its place. `report` hears what the worker waits for.
///
/// # Errors
/// See [`ReduceError`]; [`ReduceError::Interrupted`] after `stop`.
pub fn run_worker(
    config: WorkerConfig,
    pairs: Encoder,
    stop: &AtomicBool,
    report: &mut dyn FnMut(Waits),
) -> Result<WorkerReport, ReduceError> {
    if config.number >= MAX_WORKERS {
        let most = MAX_WORKERS - 1;
        return Err(ReduceError::Config(format!("workers have the numbers 0 to {most}")));
    }
    let (mut net, master) = Net::worker(config.master)?;
    let operator = pairs.operator();
    let pairs = pairs.into_pairs();
    let count = pairs.len() as u64;
    let machine = Config {
        give_up: config.patience,
        linger: LINGER,
        ..Config::new(config.job, config.number, master, random() as u32)
    };
    let now = net.now();
    let mut machine = Machine(WorkerSide::new(machine, pairs, config.order, now));
    let mut awaiting = Awaiting::new(now);
    loop {
        net.turn_and_wait(&mut machine)?;
        let side = &mut machine.0;
        let waits = match side.machine().state() {
            None => Some(Waits::Master),
            Some(state) => match state.phase {
                Phase::Wait => Some(Waits::Workers),
                Phase::Commit => Some(Waits::Result),
                _ => None,
            },
        };
        if let Some(waits) = awaiting.due(net.now(), waits) {
            report(waits);
        }
        if stop.load(Ordering::Relaxed) && side.outcome().is_none() {
            side.leave();
        }
        if let Some(outcome) = side.outcome()
            && side.machine().is_over()
        {
            // What was polled last is sent.
            net.turn(&mut machine)?;
            let counters = machine.0.machine().counters();
            return match outcome {
                Ok(()) => Ok(WorkerReport {
                    pairs: count,
                    packets: counters.packets,
                    retransmitted: counters.retransmitted,
                    restarts: counters.restarts,
                }),
                Err(Failure::OtherOperator { operator: theirs }) => {
                    let master = net.numbers.name(master);
                    Err(ReduceError::OtherOperator { master, theirs, ours: operator })
                }
                Err(failure) => {
                    let WorkerConfig { job, number, patience, .. } = config;
                    Err(explain(failure, job, number, patience, &net, master))
                }
            };
        }
    }
}

/// Says why a worker has failed.
pub(crate) fn explain(
    failure: Failure,
    job: u16,
    worker: u8,
    patience: Span,
    net: &Net,
    master: HostId,
) -> ReduceError {
    let at = |number| net.numbers.name(number);
    match failure {
        Failure::MasterSilent => {
            // A master on this machine has the port itself.
            let has_port = match net.numbers {
                Numbers::Worker { master } => {
                    master.ip().is_loopback() || net.local_addr().port() == PORT
                }
                _ => true,
            };
            let master = at(master);
            ReduceError::MasterSilent { master, job, patience, has_port }
        }
        Failure::NotAcknowledged { aggregator } if aggregator != master => {
            let aggregator = crate::error::name_of(aggregator);
            ReduceError::NotAcknowledged { aggregator, patience }
        }
        Failure::NotAcknowledged { .. } => ReduceError::NotAcknowledged {
            aggregator: format!("the master at {}", at(master)),
            patience,
        },
        Failure::Rejected { why } => ReduceError::Rejected { master: at(master), worker, why },
        Failure::Refused => ReduceError::Refused { master: at(master) },
        Failure::Interrupted => ReduceError::Interrupted,
        other => ReduceError::Failed(other),
    }
}
