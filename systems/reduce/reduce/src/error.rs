//! Why a job has failed, for people to read.

use std::io;
use std::net::SocketAddr;

use rackweave_aggregation::Failure;
use rackweave_aggregation::master::Absence;
use rackweave_core::{Destination, HostId, Span};
use rackweave_wire::reduce::{Difference, Format, Operator, PORT, Refusal, Rejection, address_of};

/// Why a worker or a master has ended without the result.
#[derive(Debug, thiserror::Error)]
pub enum ReduceError {
    /// The socket cannot be bound.
    #[error("cannot listen at {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// The socket has failed.
    #[error("the socket has failed: {0}")]
    Socket(#[from] io::Error),
    /// The master is silent.
    #[error(
        "the master at {master} has been silent for {} s: it does not run, has ended, or runs another job than {job}{}",
        seconds(*patience),
        if *has_port { String::new() } else { format!("; if a switch adds up, UDP port {PORT} of this host must be free for the worker") }
    )]
    MasterSilent {
        /// Its address.
        master: String,
        /// The number of the job.
        job: u16,
        /// For how long.
        patience: Span,
        /// Whether a switch that adds up could have answered to the worker's port.
        has_port: bool,
    },
    /// The job does not take this process.
    #[error("the master at {master} does not take this process as worker {worker}: {why}")]
    Rejected {
        /// Its address.
        master: String,
        /// The number of the worker.
        worker: u8,
        /// Why not.
        why: Rejection,
    },
    /// Nothing is acknowledged.
    #[error("{aggregator} has not acknowledged anything for {} s, though the master is alive", seconds(*patience))]
    NotAcknowledged {
        /// The switch or master.
        aggregator: String,
        /// For how long.
        patience: Span,
    },
    /// The master has ended the job.
    #[error("the master at {master} has ended the job: its own output has the reason")]
    Refused {
        /// Its address.
        master: String,
    },
    /// Worker and master combine values in different ways.
    #[error("the master at {master} combines values by `{theirs}`, and this worker by `{ours}`")]
    OtherOperator {
        /// The master's address.
        master: String,
        /// The master's operator.
        theirs: Operator,
        /// The worker's operator.
        ours: Operator,
    },
    /// The vectors of the job are not like this worker's.
    #[error(
        "the vectors of the job at {master} have {theirs} elements of type {their_format}, and that of this worker has {ours} of type {our_format}"
    )]
    OtherVector {
        /// The master's address.
        master: String,
        /// The number of elements of the job's vectors.
        theirs: u64,
        /// What they are.
        their_format: Format,
        /// The number of elements of the worker's vectors.
        ours: u64,
        /// What they are.
        our_format: Format,
    },
    /// The sum of a vector was not there in time.
    #[error("there is no sum after {} s{}", seconds(*within), waiting(*workers))]
    NoSum {
        /// The limit.
        within: Span,
        /// The workers whose elements were missing when the aggregator was asked last, as a bitmap.
        workers: u64,
    },
    /// All workers have their results, also the one whose place this process was to take.
    #[error(
        "the job is over: when this process joined, all workers had their results, an earlier process of its number included"
    )]
    Over {
        /// [`digest`](crate::digest) of the last sum, if the master has named it.
        digest: Option<u64>,
    },
    /// A worker is silent, or has left.
    #[error("worker {worker} at {address} {}", if *has_left {
        "has left, and no other process has taken its place".to_owned()
    } else {
        format!("has been silent for {} s", seconds(*patience))
    })]
    WorkerGone {
        /// Its number.
        worker: u8,
        /// Its address.
        address: String,
        /// Whether it has said that it ends.
        has_left: bool,
        /// For how long it was waited for.
        patience: Span,
    },
    /// The switch is not used, though it is required.
    #[error("{}", without(*switch, *absence))]
    NoSwitch {
        /// The switch.
        switch: HostId,
        /// Why it is not used.
        absence: Absence,
    },
    /// The user has ended the job.
    #[error("interrupted")]
    Interrupted,
    /// All sums are there, and the master cannot deliver them, for this reason.
    #[error("{0}")]
    NotDelivered(String),
    /// Another reason.
    #[error("{0}")]
    Failed(Failure),
    /// The configuration is impossible.
    #[error("{0}")]
    Config(String),
}

impl ReduceError {
    /// Returns the workers that are to blame for the end of the job, as a bitmap: gone, or without their elements sent.
    #[must_use]
    pub const fn workers(&self) -> u64 {
        match *self {
            Self::WorkerGone { worker, .. } | Self::Failed(Failure::WorkerSilent { worker }) => {
                1 << worker
            }
            Self::Failed(Failure::WorkerLeft { worker, waited }) => 1 << worker | waited,
            Self::NoSum { workers, .. }
            | Self::Failed(
                Failure::NotJoined { workers } | Failure::Differ(Difference { workers, .. }),
            ) => workers,
            _ => 0,
        }
    }

    /// Returns the same error once more, if the outcome of the worker is not the reason.
    pub(crate) fn again(&self) -> Option<Self> {
        match self {
            Self::Socket(error) => {
                Some(Self::Socket(io::Error::new(error.kind(), error.to_string())))
            }
            &Self::NoSum { within, workers } => Some(Self::NoSum { within, workers }),
            _ => None,
        }
    }

    /// Returns how the vectors of the workers of an open job differ, if that is the reason.
    #[must_use]
    pub const fn difference(&self) -> Option<Difference> {
        match *self {
            Self::Failed(Failure::Differ(difference)) => Some(difference),
            _ => None,
        }
    }
}

/// Names the workers that are waited for.
fn waiting(workers: u64) -> String {
    let numbers: Vec<_> =
        (0..64).filter(|n| workers >> n & 1 == 1).map(|n: u32| n.to_string()).collect();
    match numbers.as_slice() {
        [] => String::new(),
        [one] => format!(": worker {one} has not sent its elements"),
        more => format!(": workers {} have not sent their elements", more.join(", ")),
    }
}

fn seconds(span: Span) -> f64 {
    span.as_secs_f64()
}

/// Says why a switch is not used.
pub(crate) fn without(switch: HostId, absence: Absence) -> String {
    let switch = name_of(switch);
    match absence {
        Absence::Silent => format!("{switch} does not answer"),
        Absence::Refused(Refusal::Full) => {
            format!("{switch} has no slots or no room for windows left")
        }
        Absence::Refused(Refusal::InUse) => {
            format!("{switch} serves another master that has the same job number")
        }
        Absence::Refused(Refusal::Invalid) => format!("{switch} refuses the request as impossible"),
    }
}

/// Names a host or a switch for people.
pub(crate) fn name_of(number: HostId) -> String {
    match (Destination::from_address(number), address_of(number)) {
        (Destination::Switch(switch), _) if switch < 1 << 20 => format!("switch {switch}"),
        (_, Some(address)) if number.0 >= 1 << 24 => format!("the switch at {address}"),
        _ => format!("host {}", number.0),
    }
}
