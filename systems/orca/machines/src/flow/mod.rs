//! The reliable one-to-many stream. The Orca paper has no loss recovery, so the design of this module is our choice.
//!
//! A [`Sender`] and its [`Receiver`]s are state machines without payload, clock or randomness. They name bytes by their offset
//! in the stream; the driver holds the bytes.
//!
//! # The contract
//! After any call that takes `&mut self` the driver drains `poll_event`, calls `poll` as often as its link has room, and arms
//! one timer for `poll_timeout`. Times passed in never decrease. A spurious `handle_timeout` has no effect.
//!
//! # Recovery
//! Receivers report what they have and what they lack ([`Status`](rackweave_wire::orca::Status)), each by itself or in
//! an agent's [`Summary`]. The sender retransmits to the group or to single receivers, whichever costs less on its
//! link. A receiver that delays the group is *detached*: it catches up by unicast, and then rejoins the group.
//!
//! # Parity
//! The stream is cut into blocks of [`FlowConfig::fec_block`] full packets, called cells. The sender collects what
//! receivers lack of a block until the block has been sent and all have reported on it. Then, where that costs less
//! than retransmitting the cells, it sends parities over the block to everyone, since one parity fills different gaps
//! at different receivers. That is NORM's repair (RFC 5740, section 5.4). The number of parities is our choice: the
//! sender adds parities for everyone as long as more receivers need another one than a packet to everyone costs, and
//! sends further ones only to the receivers that need them. No parity is sent before a loss is reported.
//!
//! A receiver stores parities of incomplete blocks. Once they suffice, it asks the driver to compute the missing cells
//! ([`ReceiverEvent::Recover`], [`crate::parity`]). The driver therefore holds the bytes of a block for longer
//! than the application needs them.

mod config;
mod congestion;
#[cfg(test)]
mod network;
mod receiver;
mod sender;
mod summary;
#[cfg(test)]
mod tests;

pub use config::{FlowConfig, SlowPolicy};
pub use receiver::Receiver;
pub(super) use receiver::is_mode;
pub use sender::Sender;
pub use summary::{Summary, merge};

use rackweave_core::{HostId, Rate, Span};
use rackweave_wire::orca::{Body, Parity, Place, Reason, Session};

/// The content of one data packet: bytes of the stream, or a parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The offset of its first byte in the stream.
    pub offset: u64,
    /// The length in bytes, from 1 to the session's payload size.
    pub len: u16,
    /// Whether it is a retransmission, so that its bytes were sent before.
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
    /// A receiver that was invited has answered that it cannot join yet. Reported at each answer.
    Preparing {
        /// The host of the receiver.
        host: HostId,
    },
    /// A receiver has joined. [`SenderEvent::Attached`] follows, at once or once it has caught up.
    Joined {
        /// The host of the receiver.
        host: HostId,
        /// The first byte that it needs.
        at: u64,
    },
    /// What is sent to the group must reach this receiver from now on. What it misses until then is repaired.
    Attached {
        /// The host of the receiver.
        host: HostId,
    },
    /// A receiver is too slow for the group and is served by unicast. What is sent to the group need not reach it.
    Detached {
        /// The host of the receiver.
        host: HostId,
    },
    /// A receiver has left the session without completing.
    Lost {
        /// The host of the receiver.
        host: HostId,
        /// The reason that the receiver gave, or for which the sender removed it.
        reason: Reason,
    },
    /// A receiver has the whole stream, and its application has verified it.
    Completed {
        /// The host of the receiver.
        host: HostId,
    },
    /// The stream has ended and every receiver has completed or was lost. At least one has completed.
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
    /// The receiver gets the group's multicast packets once more, after [`ReceiverEvent::Detached`].
    Rejoined,
    /// The stored parities of a block suffice to compute its missing cells. The driver does so, stores the bytes, and
    /// answers with [`Receiver::recovered`]. Until then these bytes are not reported missing.
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
    /// The length of its cells in bytes; only the last cell may be shorter.
    pub payload: u16,
    /// The missing cells, as a bit set.
    pub missing: u64,
    /// The stored parities, as a bit set.
    pub parities: u32,
}

/// How the driver must handle the payload of a data packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The payload is stored as bytes of the stream.
    Store {
        /// The session of the stream.
        session: Session,
        /// The offset of the first stored byte in the stream.
        offset: u64,
        /// The number of bytes of the payload to skip before it.
        skip: u16,
        /// The number of bytes of the payload to store.
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
    /// It was invited and has answered that it cannot join yet, because it hashes what it has of the stream.
    Preparing,
    /// It receives the packets that are sent to the whole group.
    Attached,
    /// It is served by unicast, because it was too slow, joined late, or resumed an earlier transfer.
    Detached,
    /// It has the whole stream, and has confirmed it.
    Completed,
    /// It has left the session or was removed from it.
    Lost(Reason),
}

/// Why a receiver was last detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowReason {
    /// Packets to the group do not reach it ([`Sender::serve_by_unicast`]).
    NoMulticast,
    /// No packet came from it.
    Silent,
    /// Its receive window was full because its application did not consume data.
    Window,
    /// Its link or host accepted a lower rate than those of the others.
    Rate,
    /// Full packets do not reach it, because a link on the path has a smaller MTU.
    Path,
}

/// The sender's view of one of its receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverView {
    /// The receiver's host.
    pub host: HostId,
    /// The receiver's place in the fabric.
    pub place: Place,
    /// The offset below which the receiver has all bytes.
    pub have: u64,
    /// Its state in the session.
    pub status: ReceiverStatus,
    /// The rate at which it recently received.
    pub rate: Rate,
    /// The number of bytes retransmitted to it by unicast.
    pub repairs: u64,
    /// Why it was last detached; `None` if it never was.
    pub slow_reason: Option<SlowReason>,
    /// The largest payload of a packet in bytes that was found to reach it, if full packets do not.
    pub path_payload: Option<u16>,
}

/// The counters and the present state of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderSummary {
    /// The number of bytes sent to the group for the first time.
    pub sent: u64,
    /// The number of bytes retransmitted to the group.
    pub repaired_all: u64,
    /// The number of bytes retransmitted by unicast to attached receivers.
    pub repaired_one: u64,
    /// The number of bytes of parity sent to the group, and by unicast to attached receivers.
    pub parity: u64,
    /// The number of bytes sent by unicast to detached receivers.
    pub catch_up: u64,
    /// The number of status reports received.
    pub statuses: u64,
    /// The rate at which the slowest attached receiver receives the stream.
    pub rate: Rate,
    /// The smoothed round trip time.
    pub srtt: Span,
    /// The congestion window, in bytes.
    pub congestion_window: u64,
    /// The number of receivers that are attached at present.
    pub attached: u32,
    /// The number of receivers that are detached at present.
    pub detached: u32,
}

impl SenderSummary {
    /// Returns the number of bytes sent beyond the first transmission: retransmissions, parity, and what detached
    /// receivers caught up with.
    #[must_use]
    pub const fn repaired_bytes(&self) -> u64 {
        self.repaired_all + self.repaired_one + self.parity + self.catch_up
    }
}
