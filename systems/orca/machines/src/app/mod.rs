//! The application of one-to-many transfers ("casts") in the simulator and on real hosts: what one host does, and what
//! is measured.
//!
//! It is the application of the Orca end-to-end evaluation (section III.A): a sender sends casts of known lengths, one
//! after the other, to all its receivers as one byte stream. A receiver acknowledges each cast that it has received
//! completely with [`ACK_BYTES`] bytes. In a closed loop the next cast waits for all acknowledgements of the previous
//! one.
//!
//! [`Sender`] and [`Receiver`] are state machines without a clock, I/O or randomness. They do not depend on the carrier
//! of the bytes: Orca, datagrams or connections, simulated or real. A driver uses them as follows.
//!
//! - It passes the carrier's events to the sender: [`Sender::joined`], [`Sender::acknowledged`], [`Sender::detached`],
//!   [`Sender::failed`]. After each event, and when [`Sender::poll_timeout`] is due, it drains [`Sender::poll_write`]
//!   and gives the returned buffers to the carrier.
//! - It notifies the receiver which bytes were stored and which are readable in order. [`Receiver::readable`] returns the
//!   number of casts to acknowledge.
//! - At the end of the run it takes a [`Report`] from each application and adds all of them to a [`Collector`], so that
//!   completion, execution time, goodput, ideal time, slowdown and failure have one definition for both worlds.

mod collector;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;
mod writers;

pub use self::collector::{CastTimes, Collector, CollectorConfig, ReceiverTimes, Results};
pub use self::receiver::Receiver;
pub use self::sender::{Sender, SenderConfig};
pub use self::writers::{Cost, Write, Writers};

use rackweave_core::{FailReason, Span, Time};

/// The length of an acknowledgement, the string `ack_i` of the evaluation (section III.A.2), in bytes.
pub const ACK_BYTES: u32 = 8;

/// An event in the life of a cast. Casts are indexed from 0 in the order in which they are sent, receivers by their
/// position in the sender's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub enum Record {
    /// The sender has started a cast.
    Started {
        /// The index of the cast.
        cast: u32,
        /// The time at which its first buffer could be written.
        at: Time,
    },
    /// The sender has received a receiver's acknowledgement. A cast ends exactly once for each of its receivers: with
    /// this record or with [`Record::Failed`].
    Acknowledged {
        /// The index of the cast.
        cast: u32,
        /// The index of the receiver.
        receiver: u32,
        /// The time at which the acknowledgement arrived.
        at: Time,
    },
    /// A receiver will not acknowledge a cast.
    Failed {
        /// The index of the cast.
        cast: u32,
        /// The index of the receiver.
        receiver: u32,
        /// The time at which the sender learned of the failure, or the start of the cast if that is later.
        at: Time,
        /// Why the cast failed for this receiver.
        reason: FailReason,
    },
    /// This receiver has received a cast completely.
    Delivered {
        /// The index of the cast.
        cast: u32,
        /// The time at which all bytes up to the end of the cast were readable.
        at: Time,
    },
}

/// The report of one host's application at the end of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Report {
    /// The recorded events, in order of time.
    pub records: Vec<Record>,
    /// The number of times that a receiver was detached, that is, moved to unicast because it was too slow for the
    /// group.
    pub detached: u64,
    /// The longest interval without a new byte that ended before the run's first host crash.
    pub longest_gap_before: Span,
    /// The longest interval without a new byte that ended after it.
    pub longest_gap: Span,
    /// The number of bytes that differ from the ones sent or were stored at a wrong offset.
    pub wrong_bytes: u64,
    /// The number of payload bytes that were retransmitted. The driver sets it, because only the carrier knows it.
    pub repaired_bytes: u64,
    /// The number of times that the controller declared an agent silent. The driver sets it.
    pub silent_agents: u64,
}
