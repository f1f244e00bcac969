//! The reliable one-to-many stream (ours: the paper has no recovery). A [`Sender`] and its [`Receiver`]s are state
//! machines without payload, clock or randomness: they name bytes by their offset in the stream.
//!
//! # The contract
//! After any call that takes `&mut self` the driver drains `poll_event`, asks `poll` as often as its link has room, and
//! arms one timer for `poll_timeout`. Times never decrease. A spurious `handle_timeout` does nothing.
//!
//! # Parity
//! The stream is cut into blocks of [`FlowConfig::fec_block`] full packets' places ("cells"). What receivers miss of a block is
//! gathered until the block is sent and all have told what they miss of it; then, where that costs less than the cells
//! themselves, parities over the block go to everyone, since one parity fills different gaps at different receivers (as NORM's
//! repairs do, RFC 5740; how many, and to whom, is ours): one more as long as more receivers need it than a packet to everyone
//! costs; who needs still more gets the rest alone. Nothing is sent before it is missed. A receiver keeps parities of blocks that it lacks something of. Once they suffice it has the driver
//! compute the missing cells ([`ReceiverEvent::Recover`], [`crate::orca::parity`]), which therefore holds a block's bytes for
//! longer than the application needs them.

mod config;
mod congestion;
mod ranges;
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

/// Bytes of the stream to put into one data packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First byte.
    pub offset: u64,
    /// How many: at least 1, at most the session's payload.
    pub len: u16,
    /// Sent before.
    pub repair: bool,
    /// The stream ends with the last of them.
    pub end: bool,
    /// Not these bytes, but parity over the block that begins at `offset`: as many bytes as a full packet has.
    pub parity: Option<Parity>,
}

/// What a sender wants to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// To all attached receivers, by whatever way the session spreads.
    Everyone(Piece),
    /// To one receiver.
    One(HostId, Piece),
    /// A control packet to one receiver.
    Control(HostId, Body),
}

/// What a sender's application (and its [`Host`](super)) learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenderEvent {
    /// A receiver takes part, from this offset on. `Attached` follows, now or later.
    Joined {
        /// Which.
        host: HostId,
        /// The first byte that it needs.
        at: u64,
    },
    /// What goes to everyone is to reach this receiver from now on (what misses it until it does is repaired).
    Attached {
        /// Which.
        host: HostId,
    },
    /// What goes to everyone need not reach it any more: it is too slow, and gets its bytes alone.
    Detached {
        /// Which.
        host: HostId,
    },
    /// It is not in the session any more, and has not completed.
    Lost {
        /// Which.
        host: HostId,
        /// Why.
        reason: Reason,
    },
    /// It has everything, and its application says that it is right.
    Completed {
        /// Which.
        host: HostId,
    },
    /// The stream has ended and nobody is left to serve; at least one receiver has completed (or there were none).
    Finished,
    /// Nobody is left, and nobody has completed; or the session was aborted.
    Failed {
        /// Of the last receiver that was lost, or of the abort.
        reason: Reason,
    },
}

/// What a receiver's application learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiverEvent {
    /// All bytes below are here, in order.
    Readable {
        /// Grows from event to event.
        upto: u64,
    },
    /// All bytes of the stream are here; told after the last `Readable`. The application answers with
    /// [`Receiver::complete`] or [`Receiver::leave`].
    Ended {
        /// The stream's length.
        length: u64,
    },
    /// The sender serves this receiver by unicast from now on: the driver may leave the multicast group.
    Detached,
    /// The receiver gets what the sender multicasts again, after [`ReceiverEvent::Detached`].
    Rejoined,
    /// The parities that were kept of a block suffice: the driver computes what is missing of it, stores that, and answers
    /// with [`Receiver::recovered`]. Until then these bytes are not asked for again.
    Recover(Recovery),
    /// The session is over for this receiver, without success.
    Failed {
        /// Why.
        reason: Reason,
    },
    /// The session is over: completed and acknowledged, or left.
    Closed,
}

/// A block to be computed from its parities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// Where it begins in the stream.
    pub block: u64,
    /// Where it ends.
    pub end: u64,
    /// Bytes of its cells; only the last one may be shorter.
    pub payload: u16,
    /// The cells that are to be stored, a bit for each.
    pub missing: u64,
    /// The parities that were kept, a bit for each.
    pub parities: u32,
}

/// What the driver does with a data packet's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// It stores bytes of the stream.
    Store {
        /// Whose.
        session: Session,
        /// Where in the stream.
        offset: u64,
        /// Bytes of the payload to pass over.
        skip: u16,
        /// Bytes of the payload to store.
        len: u16,
    },
    /// It keeps all of it as a parity, until the bytes below `end` are readable.
    Keep {
        /// Whose.
        session: Session,
        /// Where the parity's block begins in the stream.
        block: u64,
        /// Where the block ends.
        end: u64,
        /// The parity's number in the block.
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
    /// It has the whole stream and has said so.
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

/// A receiver, as its sender sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverView {
    /// Which host.
    pub host: HostId,
    /// Where it is.
    pub place: Place,
    /// It has all bytes below.
    pub have: u64,
    /// Its state in the session.
    pub status: ReceiverStatus,
    /// What it took lately.
    pub rate: Rate,
    /// Bytes that were sent again because it lacked them (also those that others lacked too).
    pub repairs: u64,
    /// Why it was detached the last time; `None` if it never was.
    pub slow_reason: Option<SlowReason>,
}

/// A sender's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderSummary {
    /// New bytes sent to everyone, once each.
    pub sent: u64,
    /// Bytes sent again to everyone.
    pub repaired_all: u64,
    /// Bytes sent again to single attached receivers.
    pub repaired_one: u64,
    /// Bytes of parity, to everyone and to single attached receivers.
    pub parity: u64,
    /// Bytes sent by unicast to detached receivers.
    pub catch_up: u64,
    /// Status packets that came in.
    pub statuses: u64,
    /// At what rate the slowest attached receiver takes the stream.
    pub rate: Rate,
    /// Smoothed round trip.
    pub srtt: Span,
    /// Bytes that may be under way.
    pub congestion_window: u64,
    /// Attached receivers.
    pub attached: u32,
    /// Receivers that are detached at present.
    pub detached: u32,
}
