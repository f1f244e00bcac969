//! The application of one-to-many transfers ("casts"), in both worlds: what one host does, and what is measured of it.
//!
//! It is the application of the Orca end-to-end evaluation (section III.A): a sender sends casts, of known lengths, one after the
//! other to all its receivers, as one stream of bytes. A receiver acknowledges each cast that it has received completely, with
//! [`ACK_BYTES`] bytes. In a closed loop the next cast waits for all acknowledgements of the one before.
//!
//! [`Sender`] and [`Receiver`] are state machines without a clock, I/O or randomness. They do not depend on what carries the bytes:
//! Orca, datagrams or connections, simulated or real. Their driver uses them as follows.
//!
//! - It reports to the sender's what the carrier reports: [`Sender::joined`], [`Sender::acknowledged`], [`Sender::detached`],
//!   [`Sender::failed`]. After that, and when [`Sender::poll_timeout`] is due, it drains [`Sender::poll_write`] and hands the buffers
//!   that this returns to the carrier.
//! - It reports to the receiver's which bytes were stored and which are readable in order; [`Receiver::readable`] returns what
//!   it has to acknowledge.
//! - At the end it takes a [`Report`] from each, and gives all of them to a [`Collector`]. There is one definition of completion,
//!   execution time, goodput, ideal time, slowdown and failure for both worlds.

mod collector;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;
mod writers;

pub use self::collector::{CastTimes, Collector, CollectorConfig, FRAMING, ReceiverTimes, Results};
pub use self::receiver::Receiver;
pub use self::sender::{Sender, SenderConfig};
pub use self::writers::{Cost, Write, Writers};

use rackweave_core::{FailReason, Span, Time};

/// The length of an acknowledgement, the string `ack_i` of the evaluation (section III.A.2), in bytes.
pub const ACK_BYTES: u32 = 8;

/// An event in the life of a cast. Casts are numbered in their order, from 0; receivers by their place in the sender's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub enum Record {
    /// The sender has started a cast.
    Started {
        /// The cast.
        cast: u32,
        /// When its first buffer could be written.
        at: Time,
    },
    /// The sender has the acknowledgement of a receiver. A cast ends once for each of its receivers: with this, or with
    /// [`Record::Failed`].
    Acknowledged {
        /// The cast.
        cast: u32,
        /// The receiver.
        receiver: u32,
        /// When the acknowledgement arrived.
        at: Time,
    },
    /// A receiver will not acknowledge a cast.
    Failed {
        /// The cast.
        cast: u32,
        /// The receiver.
        receiver: u32,
        /// When the sender knew, or started the cast if it knew before.
        at: Time,
        /// The reason.
        reason: FailReason,
    },
    /// This receiver has a cast completely.
    Delivered {
        /// The cast.
        cast: u32,
        /// When its last byte, and all before, were there.
        at: Time,
    },
}

/// What the application of one host reports at the end of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Report {
    /// What happened, in order.
    pub records: Vec<Record>,
    /// How often a receiver was detached: served by unicast, because it was too slow for the others.
    pub detached: u64,
    /// The longest time without a new byte, of those that ended before the fault that the run is about.
    pub longest_gap_before: Span,
    /// The longest of the others.
    pub longest_gap: Span,
    /// Bytes that differ from those that were sent, or that were stored in a wrong place.
    pub wrong_bytes: u64,
    /// Payload that was sent again, which the driver fills in: only the carrier knows it.
    pub repaired_bytes: u64,
    /// Agents that fell silent, as their controller sees it, which the driver fills in.
    pub silent_agents: u64,
}
