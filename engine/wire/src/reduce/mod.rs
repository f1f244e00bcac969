//! Packets of aggregation on the way: workers send pairs of key and value, switches add up values of equal keys, and a master collects
//! the result.
//!
//! P4-ORDC's packet has four fields, JobID, isAgg, key and value (`docs/protocols/ordc.md#p4-ordc`); their widths are not published, nor anything
//! that repairs a loss. This format is our own. It carries up to 64 pairs in a packet, as hosts are limited by packets rather than by
//! bytes, and what an exact result needs: who sent it, in which attempt, and a sequence number.
//!
//! ```text
//!  0: magic 0xa6   1: kind   2: job   4: attempt   6: worker   7: count, flags or operator   8: token (64 bits)
//! 16: fields of the kind, then its payload
//! ```
//!
//! All integers are big-endian, except in keys, which are bytes.
//!
//! | kind | message | from, to | fields, then payload |
//! |---|---|---|---|
//! | 1 | [`Body::Data`] | worker to aggregator | sequence (32), epoch (16), reserved (16); pairs of [`PAIR_BYTES`] |
//! | 2 | [`Body::Residual`] | aggregator to master | as data: the pairs that found no slot |
//! | 3 | [`Body::Long`] | worker to master | sequence (32), epoch (16), length (16), offset (32); bytes of the epoch's records of long keys |
//! | 4 | [`Body::Fin`] | worker to master | sequence (32), epoch (16), reserved (16), length of the records (32), number of pairs (32) |
//! | 5 | [`Body::Ack`] | aggregator or master to worker | sequence (32); flag 1: a queue has marked the packet |
//! | 6 | [`Body::Join`] | worker to master | instance (32), cookie (64), digest (64); a sketch of [`SKETCH_BYTES`] |
//! | 7 | [`Body::Challenge`] | to a host that has not proved its address | instance (32), cookie (64) |
//! | 8 | [`Body::State`] | master to worker | version (32), instance (32), aggregator (32), epochs (16), drained (16), window (16), copies (8), phase (8); at 7: operator |
//! | 9 | [`Body::Confirm`] | worker to master | version (32); flag 1: nothing is outstanding |
//! | 10 | [`Body::Open`] | master to switch | cookie (64), slots (32), first epoch (16), window (16), copies (8), operator (8), workers (8), rule (8); their addresses |
//! | 11 | [`Body::Opened`] | switch to master | slots (32), instance of the reservation (32) |
//! | 12 | [`Body::Refused`] | switch to master | reason (8) |
//! | 13 | [`Body::Fetch`] | master to switch | epoch (16), reservation (16), first slot (32) |
//! | 14 | [`Body::Values`] | switch to master | epoch (16), reserved (16), first slot (32); sums of [`SUM_BYTES`] |
//! | 15 | [`Body::Clear`] | master to switch | epoch (16), reservation (16) |
//! | 16 | [`Body::Cleared`] | switch to master | epoch (16) |
//! | 17 | [`Body::Close`] | master to switch, between worker and master | |
//! | 18 | [`Body::Unknown`] | switch to the sender | |
//! | 19 | [`Body::JoinVector`] | worker to master | instance (32), cookie (64), digest (64); a [`Shape`] |
//! | 20 | [`Body::VectorState`] | master to worker | version (32), instance (32), phase (8), reserved (24); a [`Plan`], or at the end a digest (64) and zeros, or a [`Blame`] |
//! | 21 | [`Body::VectorProgress`] | worker to master | version (32), chunk (64); flag 1: it has sums of the step; flag 2: an [`Offer`] follows |
//! | 22 | [`Body::OpenVector`] | master to aggregator | cookie (64), pool (16), elements (16), format (8), workers (8); their addresses |
//! | 23 | [`Body::Chunk`] | worker to aggregator | number (64), elements (16), exponent (8), format (8), with flag 1 tag (32); the elements |
//! | 24 | [`Body::ChunkSum`] | aggregator to worker | as chunk: the sums |
//! | 25 | [`Body::Waiting`] | aggregator to worker | number (64), bitmap of the workers whose chunk is missing (64) |
//! | 26 | [`Body::VectorNamed`] | worker to master | version (32), digest (64) |
//! | 27 | [`Body::Rejected`] | master to a process that is no worker | instance (32); at 7: reason |

mod address;
mod codec;
mod open;
#[cfg(test)]
mod tests;
mod vector;

use core::fmt;

use rackweave_core::{HostId, Slice};

use crate::Id64;

pub use address::{MASTER, address_of, number_of};
pub use codec::{Decoded, decode, encode};
pub use open::{Blame, Difference, FAILED_BYTES, OFFER_BYTES, Offer};
pub use vector::{
    Chunk, Format, MAX_CHUNK_BYTES, MAX_POOL, OpenVector, PLAN_BYTES, Plan, SHAPE_BYTES, Shape,
    digest_of_done, done_payload,
};

/// The UDP port of workers, masters and switches, our choice.
pub const PORT: u16 = 6731;

/// The number of the system in the overlay; see [`crate::overlay::Kind::Group`].
pub const KIND: u8 = 5;

/// Bytes of the fields that all messages have.
pub const HEADER_BYTES: u32 = 16;
/// Bytes of a key that a packet of pairs and a slot can hold. Of the words of a dictionary of English 99.8 % are not longer.
pub const KEY_BYTES: usize = 16;
/// Bytes of a pair: the key, and a value of 32 bits. Larger values are sent as records of long keys.
pub const PAIR_BYTES: usize = KEY_BYTES + 4;
/// The largest number of pairs in a packet: which of them found no slot is a bitmap of 64 bits.
pub const MAX_PAIRS: u8 = 64;
/// Bytes of a sum that a master fetches: the key, and a value of 64 bits.
pub const SUM_BYTES: usize = KEY_BYTES + 8;
/// The number of consecutive slots that one [`Body::Fetch`] covers, whose sums fit one packet.
pub const FETCH_SLOTS: u32 = 52;
/// Bytes of the sketch by which a worker estimates its number of distinct keys.
pub const SKETCH_BYTES: u32 = 1024;
/// The largest payload of a [`Body::Long`].
pub const LONG_BYTES: u16 = 1280;
/// The largest number of workers of a job.
pub const MAX_WORKERS: u8 = 64;
/// Bytes of a worker's address in the payload of an [`Body::Open`].
pub const ADDRESS_BYTES: usize = 4;

/// A message, without the bytes of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The number of the job, which the job handler has assigned.
    pub job: u16,
    /// How many times what was not yet collected has been discarded, because a worker or the switch had lost its memory. Packets of
    /// earlier attempts are ignored.
    pub attempt: u16,
    /// The worker that the message comes from or goes to; 0 where it concerns none.
    pub worker: u8,
    /// A random number that only the participants of the job know, 0 before they do.
    pub token: Id64,
    /// The message and its fields.
    pub body: Body,
}

/// The kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Pairs to be added up. Without an aggregator they go to the master.
    Data(Pairs),
    /// The pairs of a packet that the aggregator has no slots for. It has the sequence number and the source address of that packet, and
    /// the master acknowledges it to the worker.
    Residual(Pairs),
    /// A part of the records of an epoch whose keys or values do not fit a slot.
    Long {
        /// The sequence number, in the space of [`Pairs::seq`].
        seq: u32,
        /// The epoch.
        epoch: u16,
        /// Offset of the payload in the epoch's records.
        offset: u32,
        /// Length of the payload.
        len: u16,
    },
    /// All packets of an epoch have been acknowledged to the worker.
    Fin {
        /// The sequence number, in the space of [`Pairs::seq`].
        seq: u32,
        /// The epoch.
        epoch: u16,
        /// The length of the epoch's records of long keys.
        long_bytes: u32,
        /// The number of the epoch's pairs, without those in records: what the master would have received without an aggregator.
        pairs: u32,
    },
    /// The packet with this sequence number has been added up.
    Ack {
        /// The sequence number.
        seq: u32,
        /// Whether the packet was marked by a queue (ECN).
        marked: bool,
    },
    /// A worker joins its job. The payload is its sketch.
    Join {
        /// A random number of this life of the worker.
        instance: u32,
        /// The cookie from the challenge; 0 in the first message.
        cookie: Id64,
        /// A digest of the worker's pairs: who takes the place of a worker must have the same ones, as some of them may be collected.
        digest: Id64,
    },
    /// The receiver must repeat its message with this cookie, which proves that it receives at its address.
    Challenge {
        /// The instance in the message that is answered.
        instance: u32,
        /// The cookie.
        cookie: Id64,
    },
    /// What a worker has to know about the job. A newer version replaces an older one.
    State(State),
    /// The worker has this version of the state.
    Confirm {
        /// The version.
        version: u32,
        /// Whether all that the worker has sent is acknowledged.
        idle: bool,
    },
    /// Reserves slots for a job, or renews the reservation. The payload is the addresses of the workers.
    Open(Open),
    /// The reply to [`Body::Open`].
    Opened {
        /// The number of slots that the job has.
        slots: u32,
        /// A number of this reservation, as good as random: another one means that what the switch held is lost. Renewals and attempts keep
        /// it; a reservation that has lapsed and is made again has another one.
        instance: u32,
    },
    /// The switch does not serve the job.
    Refused {
        /// Why it does not, as far as the master can do something about it.
        reason: Refusal,
    },
    /// Asks for the sums in [`FETCH_SLOTS`] slots of an epoch.
    Fetch {
        /// The epoch.
        epoch: u16,
        /// The lower half of [`Body::Opened`]'s instance: sums of another reservation are not those of the job.
        reservation: u16,
        /// The first slot.
        first: u32,
    },
    /// The sums in these slots. Empty slots are left out.
    Values {
        /// The epoch.
        epoch: u16,
        /// The first slot.
        first: u32,
        /// The number of sums.
        sums: u8,
    },
    /// The master has all sums of an epoch: its slots are free for a later one.
    Clear {
        /// The epoch.
        epoch: u16,
        /// As in [`Body::Fetch`].
        reservation: u16,
    },
    /// The reply to [`Body::Clear`].
    Cleared {
        /// The epoch.
        epoch: u16,
    },
    /// To a switch: the job needs no slots any longer. From a worker: it ends before the job does. From the
    /// master: the worker's confirmation of the end is here.
    Close,
    /// The switch has no such job, or not this attempt of it.
    Unknown,
    /// A worker joins a job that adds up vectors. The payload is their [`Shape`].
    JoinVector {
        /// A random number of this life of the worker.
        instance: u32,
        /// The cookie from the challenge; 0 in the first message.
        cookie: Id64,
        /// A digest of its vectors, or 0: who takes the place of a worker must have the same ones, as others may have sums of them.
        digest: Id64,
    },
    /// What a worker has to know about a job that adds up vectors. A newer version replaces an older one. The payload is a [`Plan`]; in
    /// [`Phase::Done`] it is [`done_payload`], in [`Phase::Failed`] a [`Blame`].
    VectorState {
        /// The version of the state. 0 answers a worker whose vectors are not those of the job, which are in the plan.
        version: u32,
        /// The instance of the worker that the state is for.
        instance: u32,
        /// What the worker has to do. The plan has a meaning in [`Phase::Run`] only.
        phase: Phase,
    },
    /// The worker has this version of the state, and says what it has.
    VectorProgress {
        /// The version.
        version: u32,
        /// The first chunk whose sum it does not have.
        low: Id64,
        /// Whether it has been in the job before the present attempt, so that `low` has a meaning.
        is_known: bool,
        /// Whether the job is open: the payload is an [`Offer`].
        has_offer: bool,
    },
    /// The worker has this version of the state, which is a commit, and its result has its name.
    VectorNamed {
        /// The version.
        version: u32,
        /// A digest of the sums, the same at all workers.
        digest: Id64,
    },
    /// The job does not take the process as this worker.
    Rejected {
        /// The instance in the message that is answered.
        instance: u32,
        /// The reason, which the worker prints.
        why: Rejection,
    },
    /// Reserves slots for vectors, or renews the reservation. The answers are those to [`Body::Open`]; [`Body::Opened`] has the size of
    /// the pool. The payload is the addresses of the workers.
    OpenVector(OpenVector),
    /// A worker's elements, to be added up.
    Chunk(Chunk),
    /// The sums of the elements of all workers.
    ChunkSum(Chunk),
    /// The answer to a repeated chunk that cannot be complete yet.
    Waiting {
        /// The number of the chunk.
        number: Id64,
        /// The workers whose elements are missing, as a bitmap.
        missing: Id64,
    },
}

/// The fields of a packet of pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pairs {
    /// The packet's number among all that the worker has sent in this attempt.
    pub seq: u32,
    /// The epoch: the range of hashes that the keys are in.
    pub epoch: u16,
    /// The number of pairs.
    pub count: u8,
}

/// The fields of a [`Body::State`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The version of the state.
    pub version: u32,
    /// The instance of the worker that the state is for.
    pub instance: u32,
    /// The switch or host that workers send pairs to.
    pub aggregator: HostId,
    /// The number of epochs.
    pub epochs: u16,
    /// The first epoch whose sums the master does not have yet.
    pub drained: u16,
    /// How far sequence numbers may be ahead of the first that is not acknowledged.
    pub window: u16,
    /// How many epochs may be sent at once: the copies of the slots.
    pub copies: u8,
    /// What the worker has to do.
    pub phase: Phase,
    /// How values of equal keys are combined, by the workers too.
    pub operator: Operator,
}

/// What a worker has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Wait for the other workers.
    Wait = 0,
    /// Send.
    Run = 1,
    /// Send nothing new: the network is about to be reconfigured.
    Quiesce = 2,
    /// The job is complete.
    Done = 3,
    /// The job has failed.
    Failed = 4,
    /// The end is near. Of a job of pairs: the master has all sums and writes the result. Of vectors: all workers have their results,
    /// under no name yet, and each gives its result its name.
    Commit = 5,
}

/// The fields of a [`Body::Open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// The cookie from the challenge; 0 in the first message.
    pub cookie: Id64,
    /// The number of slots that the master wants.
    pub slots: u32,
    /// The first epoch of the attempt.
    pub first_epoch: u16,
    /// The window of the workers, at most [`MAX_WINDOW`].
    pub window: u16,
    /// Into how many copies the slots are divided, 1 or 2.
    pub copies: u8,
    /// How values of equal keys are combined.
    pub operator: Operator,
    /// The number of workers, 1 to [`MAX_WORKERS`].
    pub workers: u8,
    /// By which rule switches add up.
    pub rule: Rule,
}

/// The largest window of a worker: a switch keeps 16 bytes for each packet of it.
pub const MAX_WINDOW: u16 = 1024;

/// How the values of equal keys are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Operator {
    /// Their sum, modulo 2^64.
    #[default]
    Sum = 0,
    /// The smallest.
    Min = 1,
    /// The largest.
    Max = 2,
    /// Their number.
    Count = 3,
}

impl Operator {
    /// All operators.
    pub const ALL: [Self; 4] = [Self::Sum, Self::Min, Self::Max, Self::Count];

    /// Returns the name by which users select it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Min => "min",
            Self::Max => "max",
            Self::Count => "count",
        }
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// By which rule a switch adds up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Rule {
    /// Rackweave's: keys are compared, each packet is added once, and the sums remain until they are fetched.
    #[default]
    Exact = 0,
    /// P4-ORDC's: a register is found by a hash of the key, which is not compared; it is sent to the master when its counter equals the
    /// number of workers, and only then. It loses words, and is here to show that.
    Counter = 1,
}

/// Why a switch does not serve a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// All slots, or all places for jobs or workers, are taken.
    Full = 0,
    /// The number of the job is in use by another master.
    InUse = 1,
    /// The fields of the request are impossible.
    Invalid = 2,
}

/// Why a process that wants to be a worker is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Rejection {
    /// The job has no worker of this number.
    NoNumber = 0,
    /// Another process is this worker, and is alive.
    Taken = 1,
    /// It has other input than the process whose place it is to take.
    OtherInput = 2,
    /// It does not have the key of the job's workers.
    Stranger = 3,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoNumber => "the job has no such number",
            Self::Taken => "another process is this worker",
            Self::OtherInput => "the worker had other input before",
            Self::Stranger => "it does not have the key of the group",
        })
    }
}

impl Header {
    /// Returns the length of the fields of the header and the kind, without the payload, in bytes.
    #[must_use]
    pub const fn header_bytes(&self) -> u32 {
        HEADER_BYTES
            + match self.body {
                Body::Close | Body::Unknown => 0,
                Body::Refused { .. } => 1,
                Body::Cleared { .. } => 2,
                Body::Ack { .. }
                | Body::Confirm { .. }
                | Body::Clear { .. }
                | Body::Rejected { .. } => 4,
                Body::Data(_)
                | Body::Residual(_)
                | Body::Opened { .. }
                | Body::Fetch { .. }
                | Body::Values { .. } => 8,
                Body::Long { .. } => 12,
                Body::Fin { .. } => 16,
                Body::Challenge { .. } => 12,
                Body::Join { .. } => 20,
                Body::Open(_) => 20,
                Body::State(_) => 20,
                Body::JoinVector { .. } => 20,
                Body::VectorState { .. } => 12,
                Body::VectorProgress { .. } | Body::VectorNamed { .. } => 12,
                Body::Chunk(chunk) | Body::ChunkSum(chunk) => chunk.field_bytes(),
                Body::OpenVector(_) => 14,
                Body::Waiting { .. } => 16,
            }
    }

    /// Returns the length of the payload in bytes.
    #[must_use]
    pub const fn payload_len(&self) -> u32 {
        match self.body {
            Body::Data(pairs) | Body::Residual(pairs) => pairs.count as u32 * PAIR_BYTES as u32,
            Body::Long { len, .. } => len as u32,
            Body::Join { .. } => SKETCH_BYTES,
            Body::Open(open) => open.workers as u32 * ADDRESS_BYTES as u32,
            Body::Values { sums, .. } => sums as u32 * SUM_BYTES as u32,
            Body::VectorState { phase: Phase::Failed, .. } => FAILED_BYTES,
            Body::VectorState { .. } => PLAN_BYTES,
            Body::VectorProgress { has_offer: true, .. } => OFFER_BYTES,
            Body::JoinVector { .. } => SHAPE_BYTES,
            Body::OpenVector(open) => open.workers as u32 * ADDRESS_BYTES as u32,
            Body::Chunk(chunk) | Body::ChunkSum(chunk) => chunk.payload_len(),
            _ => 0,
        }
    }

    /// Returns the length of the packet from the IP header on, as [`rackweave_core::Packet::new`] takes it.
    #[must_use]
    pub const fn l3_bytes(&self) -> u32 {
        rackweave_core::frame::IPV4 + 8 + self.header_bytes() + self.payload_len()
    }

    /// Writes the message and its fields in one line, without addresses.
    ///
    /// # Errors
    /// Those of the formatter.
    pub fn fmt_line(&self, f: &mut dyn fmt::Write) -> fmt::Result {
        let Self { job, attempt, worker, .. } = *self;
        write!(f, "reduce job {job}.{attempt} worker {worker} ")?;
        match self.body {
            Body::Data(Pairs { seq, epoch, count }) => {
                write!(f, "DATA {seq} epoch {epoch}, {count} pairs")
            }
            Body::Residual(Pairs { seq, epoch, count }) => {
                write!(f, "RESIDUAL {seq} epoch {epoch}, {count} pairs")
            }
            Body::Long { seq, epoch, offset, len } => {
                let end = u64::from(offset) + u64::from(len);
                write!(f, "LONG {seq} epoch {epoch} [{offset}..{end})")
            }
            Body::Fin { seq, epoch, long_bytes, pairs } => {
                write!(f, "FIN {seq} epoch {epoch}, {pairs} pairs, {long_bytes} bytes of records")
            }
            Body::Ack { seq, marked } => {
                write!(f, "ACK {seq}{}", if marked { " marked" } else { "" })
            }
            Body::Join { instance, .. } => write!(f, "JOIN instance {instance:08x}"),
            Body::Challenge { instance, .. } => write!(f, "CHALLENGE instance {instance:08x}"),
            Body::State(state) => {
                let State { version, epochs, drained, phase, .. } = state;
                write!(f, "STATE {version} {phase:?} epoch {drained} of {epochs}")
            }
            Body::Confirm { version, idle } => {
                write!(f, "CONFIRM {version}{}", if idle { " idle" } else { "" })
            }
            Body::Open(open) => write!(f, "OPEN {} slots for {} workers", open.slots, open.workers),
            Body::Opened { slots, instance } => {
                write!(f, "OPENED {slots} slots, instance {instance:08x}")
            }
            Body::Refused { reason } => write!(f, "REFUSED {reason:?}"),
            Body::Fetch { epoch, first, .. } => write!(f, "FETCH epoch {epoch} slot {first}"),
            Body::Values { epoch, first, sums } => {
                write!(f, "VALUES epoch {epoch} slot {first}, {sums} sums")
            }
            Body::Clear { epoch, .. } => write!(f, "CLEAR epoch {epoch}"),
            Body::Cleared { epoch } => write!(f, "CLEARED epoch {epoch}"),
            Body::Close => f.write_str("CLOSE"),
            Body::Unknown => f.write_str("UNKNOWN"),
            Body::JoinVector { instance, .. } => write!(f, "JOIN-VECTOR instance {instance:08x}"),
            Body::VectorState { version, phase, .. } => {
                write!(f, "VECTOR-STATE {version} {phase:?}")
            }
            Body::VectorProgress { version, low, is_known, .. } => {
                let known = if is_known { "" } else { ", new" };
                write!(f, "VECTOR-PROGRESS {version} chunk {}{known}", low.get())
            }
            Body::Rejected { instance, why } => {
                write!(f, "REJECTED instance {instance:08x}: {why}")
            }
            Body::VectorNamed { version, digest } => {
                write!(f, "VECTOR-NAMED {version} digest {:016x}", digest.get())
            }
            Body::OpenVector(open) => write!(
                f,
                "OPEN-VECTOR {} chunks of {} elements for {} workers",
                open.pool, open.elements, open.workers
            ),
            Body::Chunk(chunk) | Body::ChunkSum(chunk) => {
                let Chunk { number, count, exponent, tag, .. } = chunk;
                let sum = if matches!(self.body, Body::ChunkSum(_)) { "-SUM" } else { "" };
                write!(f, "CHUNK{sum} {}, {count} elements, exponent {exponent}", number.get())?;
                if tag == 0 { Ok(()) } else { write!(f, ", tag {tag:08x}") }
            }
            Body::Waiting { number, missing } => {
                write!(f, "WAITING {} for {:#x}", number.get(), missing.get())
            }
        }
    }
}

impl rackweave_core::Header for Header {
    /// Its payload is not a part of a message that a transport would know.
    fn payload(&self) -> Option<Slice> {
        None
    }

    fn payload_bytes(&self) -> u32 {
        self.payload_len()
    }

    /// Each pair of key and value, or sum, is a unit. Records of long keys are not counted: they are added up by the master only, and
    /// are few.
    fn work(&self) -> u32 {
        match self.body {
            Body::Data(pairs) | Body::Residual(pairs) => pairs.count.into(),
            Body::Values { sums, .. } => sums.into(),
            _ => 0,
        }
    }
}

// Together with the name of a payload in the simulator, a packet still fills one cache line.
const _: () = assert!(size_of::<Header>() <= 40);
