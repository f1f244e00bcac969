//! The reliable one-to-many stream. It is ours: the Orca paper has no loss recovery.
//!
//! A [`Sender`] and its [`Receiver`]s are state machines without payload, clock or randomness. They name bytes by their offset
//! in the stream; the driver holds the bytes.
//!
//! # The contract
//! After any call that takes `&mut self` the driver drains `poll_event`, calls `poll` as often as its link has room, and arms
//! one timer for `poll_timeout`. Times passed in never decrease. A spurious `handle_timeout` has no effect.
//!
//! # Recovery
//! Receivers report what they have and what they lack ([`Status`](rackweave_wire::orca::Status)), each by itself or in an
//! agent's [`Summary`]. The sender retransmits to the group or to single receivers, whichever costs less on its link. A
//! receiver that holds the others up is *detached*: it catches up by unicast, and then rejoins the group.
//!
//! # Parity
//! The stream is cut into blocks of [`FlowConfig::fec_block`] full packets, called cells. What receivers lack of a block is
//! collected until the block has been sent and all have reported on it. Then, where that costs less than retransmitting the
//! cells, parities over the block go to everyone, since one parity fills different gaps at different receivers. That is
//! NORM's repair (RFC 5740, section 5.4). How many are sent is ours: one more as long as more receivers need it than a packet
//! to everyone costs, and the rest to the receivers that need still more. Nothing is sent before it is missed.
//!
//! A receiver keeps parities of blocks that it lacks a part of. Once they suffice, it has the driver compute the missing cells
//! ([`ReceiverEvent::Recover`], [`crate::orca::parity`]). The driver therefore holds the bytes of a block for longer than the
//! application needs them.

mod config;
mod congestion;
mod receiver;
mod sender;
mod summary;
#[cfg(test)]
mod testkit;
#[cfg(test)]
mod tests;

pub use config::{FlowConfig, SlowPolicy};
pub use receiver::Receiver;
pub use sender::Sender;
pub use summary::{Summary, merge};

use rackweave_core::{HostId, Rate, Span};
use rackweave_wire::orca::{Body, Parity, Place, Reason, Session};

/// The content of one data packet: bytes of the stream, or a parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The offset of its first byte in the stream.
    pub offset: u64,
    /// Its length, from 1 to the session's payload size.
    pub len: u16,
    /// Whether it repairs a loss, so that its bytes were sent before.
    pub repair: bool,
    /// Whether the stream ends with its last byte.
    pub end: bool,
    /// If set, the packet carries this parity of the block that begins at `offset`, with the length of a full packet.
    pub parity: Option<Parity>,
}

/// A packet that a sender has to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// Data for all attached receivers, by whatever means the session reaches them.
    Everyone(Piece),
    /// Data for one receiver.
    One(HostId, Piece),
    /// A control packet for one receiver.
    Control(HostId, Body),
}

/// An event of a session for its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenderEvent {
    /// A receiver has joined. [`SenderEvent::Attached`] follows, at once or once it has caught up.
    Joined {
        /// The receiver.
        host: HostId,
        /// The first byte that it needs.
        at: u64,
    },
    /// A receiver is to be reached by what is sent to the group from now on. What it misses until it is, is repaired.
    Attached {
        /// The receiver.
        host: HostId,
    },
    /// A receiver is too slow for the group and is served by unicast. What is sent to the group need not reach it.
    Detached {
        /// The receiver.
        host: HostId,
    },
    /// A receiver has left the session without completing.
    Lost {
        /// The receiver.
        host: HostId,
        /// The reason that it gave, or for which the sender removed it.
        reason: Reason,
    },
    /// A receiver has the whole stream, and its application has verified it.
    Completed {
        /// The receiver.
        host: HostId,
    },
    /// The stream has ended and no receiver is left to serve. At least one has completed.
    Finished,
    /// No receiver is left and none has completed, or the session was aborted.
    Failed {
        /// The reason why the last receiver was lost, or of the abort.
        reason: Reason,
    },
}

/// An event of a session for one of its receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiverEvent {
    /// All bytes below an offset have been received.
    Readable {
        /// This offset, which grows from event to event.
        upto: u64,
    },
    /// The whole stream has been received; follows the last `Readable`. The application answers with
    /// [`Receiver::complete`] or [`Receiver::leave`].
    Ended {
        /// The stream's length.
        length: u64,
    },
    /// The sender serves this receiver by unicast from now on: the driver may leave the multicast group.
    Detached,
    /// The receiver gets what the sender multicasts again, after [`ReceiverEvent::Detached`].
    Rejoined,
    /// The parities kept of a block suffice to compute what is missing of it. The driver does so, stores the bytes, and answers
    /// with [`Receiver::recovered`]. Until then these bytes are not reported missing.
    Recover(Recovery),
    /// The session is over for this receiver, without success.
    Failed {
        /// The reason that the sender gave, or [`Reason::Silent`].
        reason: Reason,
    },
    /// The session is over: the sender has acknowledged that this receiver completed or left.
    Closed,
}

/// A block whose missing cells are to be computed from parities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// The offset at which the block begins.
    pub block: u64,
    /// The offset at which it ends.
    pub end: u64,
    /// The length of its cells, of which only the last may be shorter.
    pub payload: u16,
    /// The cells that are missing, a bit for each.
    pub missing: u64,
    /// The parities that are kept, a bit for each.
    pub parities: u32,
}

/// What the driver has to do with the payload of a data packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The payload is stored as bytes of the stream.
    Store {
        /// The session of the stream.
        session: Session,
        /// The offset of the first stored byte in the stream.
        offset: u64,
        /// Bytes of the payload to skip before it.
        skip: u16,
        /// Bytes of the payload to store.
        len: u16,
    },
    /// The payload is a parity, which is kept until the bytes below `end` are readable.
    Keep {
        /// The session of the stream.
        session: Session,
        /// The offset at which the parity's block begins.
        block: u64,
        /// The offset at which the block ends.
        end: u64,
        /// The index of the parity in its block.
        index: u8,
    },
}

/// The state of a receiver, as its sender sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiverStatus {
    /// It was invited and has not answered yet.
    Invited,
    /// It receives the packets that are sent to the whole group.
    Attached,
    /// It is served by unicast, because it was too slow, joined late, or resumed.
    Detached,
    /// It has the whole stream, and has confirmed it.
    Completed,
    /// It has left the session or was removed from it.
    Lost(Reason),
}

/// Why a receiver was detached the last time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowReason {
    /// No packet came from it.
    Silent,
    /// Its receive window was full, because its application did not consume.
    Window,
    /// Its link or host took less than those of the others.
    Rate,
}

/// What a sender knows of one of its receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverView {
    /// The receiver's host.
    pub host: HostId,
    /// Its place in the fabric.
    pub place: Place,
    /// The receiver has all bytes below.
    pub have: u64,
    /// Its state in the session.
    pub status: ReceiverStatus,
    /// The rate at which it received lately.
    pub rate: Rate,
    /// Bytes of repairs that were sent to it by unicast.
    pub repairs: u64,
    /// Why it was detached the last time; `None` if it never was.
    pub slow_reason: Option<SlowReason>,
}

/// The counters of a sender, and its present state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderSummary {
    /// Bytes sent to the group for the first time.
    pub sent: u64,
    /// Bytes retransmitted to the group.
    pub repaired_all: u64,
    /// Bytes retransmitted by unicast to attached receivers.
    pub repaired_one: u64,
    /// Bytes of parity, to the group and by unicast to attached receivers.
    pub parity: u64,
    /// Bytes sent by unicast to detached receivers.
    pub catch_up: u64,
    /// Status reports received.
    pub statuses: u64,
    /// The rate at which the slowest attached receiver receives the stream.
    pub rate: Rate,
    /// The smoothed round trip time.
    pub srtt: Span,
    /// The congestion window, in bytes.
    pub congestion_window: u64,
    /// Receivers that are attached at present.
    pub attached: u32,
    /// Receivers that are detached at present.
    pub detached: u32,
}

impl SenderSummary {
    /// Bytes that left beyond those of the first transmission: retransmissions, parity, and what detached receivers caught up with.
    #[must_use]
    pub const fn repaired_bytes(&self) -> u64 {
        self.repaired_all + self.repaired_one + self.parity + self.catch_up
    }
}
