//! Aggregation in the network: workers send pairs of key and value, a switch adds up the values of equal keys, and a master collects the
//! result, which is exact whatever the network does.
//!
//! - [`worker`], [`master`]: the machines of hosts; [`switch`] and [`system`]: the program of switches.
//! - [`membership`]: who takes part in a job, of pairs or of vectors.
//! - [`key`], [`table`]: keys of fixed length, and the slots in which they are added up; [`sketch`]: how many keys there are.
//! - [`source`]: what a worker sends, divided into epochs; [`totals`]: what the master has collected.
//! - [`vector`]: the same for dense vectors, which all workers get the sum of (all-reduce).
//! - [`packet`]: packets in the simulator; [`node`]: the machines of a host.
//!
//! ```text
//!  Worker 0 ─ Data ─┐                    ┌─ Residual: pairs without a slot ──> Master
//!  Worker 1 ─ Data ─┼─> switch: table ───┤                                      |  sums of open epochs, of finished ones
//!  Worker 2 ─ Data ─┘     |              └─ Values <──────────── Fetch ─────────|
//!       ^                 | Ack                                                 |
//!       └─────────────────┴──────── Ack, State: which epochs are free ──────────┘
//! ```
//!
//! P4-ORDC (`docs/protocols/ordc.md#p4-ordc`) sends a sum when as many packets as there are workers have arrived for its key. A word that is
//! missing at one worker is then never sent, two words with the same hash are added together, and a repeated packet is counted twice.
//! That rule can be selected ([`rackweave_wire::reduce::Rule::Counter`]); the exact one takes from DAIET that the end is
//! announced by the workers, from ATP that keys are compared and that what finds no slot goes on to the master, and from ASK the window of
//! seen packets.

pub mod key;
pub mod master;
pub mod membership;
pub mod node;
pub mod packet;
pub mod sketch;
pub mod source;
pub mod switch;
pub mod system;
pub mod table;
#[cfg(test)]
mod tests;
pub mod totals;
pub mod vector;
pub mod worker;

/// Why a job has failed, at a worker or at the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The master did not answer the worker.
    #[error("the master has been silent for too long")]
    MasterSilent,
    /// What the worker has sent was not acknowledged.
    #[error("nothing that was sent to {aggregator} has been acknowledged for too long")]
    NotAcknowledged {
        /// The switch, or the master's host, that the worker sends its pairs to.
        aggregator: rackweave_core::HostId,
    },
    /// The job does not take this process as a worker.
    #[error("the job does not take this process as a worker: {why}")]
    Rejected {
        /// Why not.
        why: rackweave_wire::reduce::Rejection,
    },
    /// The master has ended the job.
    #[error("the master has reported that the job failed")]
    Refused,
    /// The master combines values in another way than the worker.
    #[error("the master combines values by `{operator}`, this worker does not")]
    OtherOperator {
        /// The master's operator.
        operator: rackweave_wire::reduce::Operator,
    },
    /// The user has ended the job.
    #[error("the job was interrupted")]
    Interrupted,
    /// A worker has ended before the job did, and has not returned.
    #[error("worker {worker} has left{}", Waited(*waited))]
    WorkerLeft {
        /// The worker's number.
        worker: u8,
        /// The workers of an open job for which it waited, as a bitmap, as far as it is known.
        waited: u64,
    },
    /// Workers did not join in time.
    #[error("workers have not joined: {}", Numbers(*workers))]
    NotJoined {
        /// Their numbers, as a bitmap.
        workers: u64,
    },
    /// A worker has stopped answering.
    #[error("worker {worker} has been silent for too long")]
    WorkerSilent {
        /// The worker's number.
        worker: u8,
    },
    /// Workers answer, but send nothing.
    #[error("workers have sent nothing new for too long, though they answer: {}", Numbers(*workers))]
    NoProgress {
        /// The workers that have not finished the epoch that is being collected, as a bitmap.
        workers: u64,
    },
    /// A worker has been silent for too long, and the process that was to take its place has other pairs.
    #[error("worker {worker} is gone, and what was started in its place has other input")]
    OtherInput {
        /// The worker's number.
        worker: u8,
    },
    /// A worker's records of long keys cannot be read.
    #[error("the records of worker {worker} cannot be read: {reason}")]
    Records {
        /// The worker's number.
        worker: u8,
        /// What is wrong with them.
        reason: totals::BadRecords,
    },
    /// The master has all sums and cannot write them.
    #[error("the result cannot be written")]
    NotWritten,
    /// A worker's long keys do not fit the format.
    #[error("{}", source::TooLong)]
    TooLong,
    /// The vector of a worker is not as long as those of the job, or its elements are something else.
    #[error(
        "the vectors of the job have {length} elements of type {format}, and those of this worker do not"
    )]
    OtherVector {
        /// The number of elements of the job's vectors.
        length: u64,
        /// What they are.
        format: rackweave_wire::reduce::Format,
    },
    /// Neither a switch nor a host adds up the vectors of a job.
    #[error("nothing adds up: {aggregator} {}", match *absence {
        master::Absence::Silent => "does not answer",
        master::Absence::Refused(rackweave_wire::reduce::Refusal::Full) => "has no room",
        master::Absence::Refused(_) => "has refused",
    })]
    NoAggregator {
        /// The last switch or host that was asked.
        aggregator: rackweave_core::HostId,
        /// Why it does not add up.
        absence: master::Absence,
    },
    /// A worker has written another result than the others.
    #[error("worker {worker} has another sum than other workers: this is an error in Rackweave")]
    OtherSum {
        /// The worker's number.
        worker: u8,
    },
    /// Workers of an open job add up vectors that have nothing to do with each other.
    #[error("workers do not add up the same vector {}: {}", .0.expected.step, Differing(.0))]
    Differ(rackweave_wire::reduce::Difference),
    /// Workers or the switch have lost their memory 65,535 times.
    #[error("the job was restarted too often")]
    TooManyAttempts,
}

/// What a worker that has left waited for, for people to read.
struct Waited(u64);

impl core::fmt::Display for Waited {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            0 => f.write_str(" and did not return"),
            workers => write!(f, " while it waited for the vectors of: {}", Numbers(workers)),
        }
    }
}

/// How the vectors of workers differ, for people to read.
struct Differing<'a>(&'a rackweave_wire::reduce::Difference);

impl core::fmt::Display for Differing<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let rackweave_wire::reduce::Difference { workers, found, expected, has_majority } = *self.0;
        let is_one = workers.is_power_of_two();
        let (who, has) = if is_one { ("worker", "has") } else { ("workers", "have") };
        write!(f, "{who} {} {has} ", Numbers(workers))?;
        vector(f, &found)?;
        f.write_str(if has_majority { ", and the others have " } else { ", or " })?;
        vector(f, &expected)
    }
}

/// Writes what a worker adds up.
fn vector(
    f: &mut core::fmt::Formatter<'_>,
    offer: &rackweave_wire::reduce::Offer,
) -> core::fmt::Result {
    let rackweave_wire::reduce::Offer { length, format, label, .. } = *offer;
    if length == 0 {
        return f.write_str("none");
    }
    write!(f, "{length} elements of type {format}")?;
    if label == 0 { Ok(()) } else { write!(f, " with label {label:#x}") }
}

/// The numbers of a bitmap, for people to read.
struct Numbers(u64);

impl core::fmt::Display for Numbers {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let numbers = (0..64).filter(|number| self.0 >> number & 1 == 1);
        for (position, number) in numbers.enumerate() {
            write!(f, "{}{number}", if position > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}
