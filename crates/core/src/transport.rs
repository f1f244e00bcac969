//! Message transports: the verbs that an application has beyond those of a [`Node`], and what it learns.

use core::fmt;

use crate::frame::Framing;
use crate::ids::{HostId, MessageId};
use crate::node::Node;
use crate::packet::Slice;
use crate::time::{Span, Time};

/// What a message is to its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing comes back but the acknowledgement.
    OneWay,
    /// The receiver's application answers with a [`Kind::Response`].
    Request,
    /// The answer to a request; its id is [`MessageId::response`] of the request's.
    Response,
}

/// A message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submit {
    /// Its id, chosen by the caller, unique per client and increasing. A response has the
    /// request's id with the low bit set.
    pub id: MessageId,
    /// The receiver.
    pub peer: HostId,
    /// Its length.
    pub bytes: u64,
    /// What it is to the receiver.
    pub kind: Kind,
}

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The transport's length field cannot say it.
    #[error("the message is longer than the {max} bytes that the transport can carry")]
    TooLong {
        /// The longest possible message.
        max: u64,
    },
    /// A message without bytes.
    #[error("the message is empty")]
    Empty,
    /// A message with this id to or from this peer is still under way.
    #[error("a message with this id is still under way")]
    DuplicateId,
    /// A response to a request that is not known (any more).
    #[error("there is no such request to respond to")]
    UnknownRequest,
    /// The id's low bit does not fit the kind.
    #[error("requests have even ids and responses odd ones")]
    WrongId,
    /// As many messages as the configuration allows are under way.
    #[error("too many messages under way")]
    Busy,
    /// The transport has no such thing (streams).
    #[error("this transport does not do that")]
    Unsupported,
    /// There is no such stream, or this direction of it has ended.
    #[error("the stream has ended")]
    Ended,
}

/// A stream to open: one RPC whose two directions are written piece by piece and delivered in
/// order as they arrive. A unary RPC is a stream whose directions are written once each, with
/// their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Its id: even, unique per client and increasing like those of [`Submit`]. The direction
    /// from server to client has the [`MessageId::response`] of it.
    pub id: MessageId,
    /// The server.
    pub peer: HostId,
    /// If the stream has not closed by then, it fails with [`FailReason::Deadline`] at both ends;
    /// [`Time::MAX`]: no deadline.
    pub deadline: Time,
}

/// What a transport has measured of the round trip to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct RoundTrip {
    /// The peer.
    pub peer: HostId,
    /// The smallest of recent samples.
    pub min: Span,
    /// The last sample.
    pub recent: Span,
    /// Number of samples.
    pub samples: u64,
}

/// Why a message failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub enum FailReason {
    /// The peer did not answer for as long as the transport waits.
    PeerSilent,
    /// The peer lost its state of the message (it restarted).
    PeerForgot,
    /// The application cancelled it.
    Cancelled,
    /// This host stopped.
    HostCrashed,
    /// The stream's deadline passed.
    Deadline,
}

impl fmt::Display for FailReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PeerSilent => "peer silent",
            Self::PeerForgot => "peer forgot",
            Self::Cancelled => "cancelled",
            Self::HostCrashed => "host crashed",
            Self::Deadline => "deadline exceeded",
        })
    }
}

/// An event for the application of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message has arrived whole; once for each message.
    Delivered {
        /// Its sender.
        peer: HostId,
        /// Its id, as its sender submitted it.
        id: MessageId,
        /// Its length.
        bytes: u64,
        /// What it is.
        kind: Kind,
    },
    /// The receiver has the whole message; its bytes are not needed any more.
    Sent {
        /// Its receiver.
        peer: HostId,
        /// Its id.
        id: MessageId,
    },
    /// A message that this host submitted, or a request that it is to answer, will not complete.
    Failed {
        /// The other end.
        peer: HostId,
        /// Its id.
        id: MessageId,
        /// The reason.
        reason: FailReason,
    },
    /// Something about a stream; its failure is a [`Event::Failed`] of its id.
    Stream(StreamEvent),
}

/// An event of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// A client has opened a stream to this host; comes before any other event of it.
    Opened {
        /// The client.
        peer: HostId,
        /// Its id, as the client opened it: even.
        id: MessageId,
    },
    /// The next bytes of a stream's direction are here, in order.
    Readable {
        /// The sender.
        peer: HostId,
        /// The direction: even from the client, odd from the server.
        id: MessageId,
        /// How many, beyond those of earlier events.
        bytes: u64,
        /// Nothing comes after them: the peer has ended this direction.
        end: bool,
    },
    /// The receiver has the next bytes of what was written: they need not be kept any more.
    Acked {
        /// The receiver.
        peer: HostId,
        /// The direction.
        id: MessageId,
        /// How many, beyond those of earlier events.
        bytes: u64,
    },
    /// Both directions of a stream have ended and are acknowledged; nothing of it follows.
    Closed {
        /// The other end.
        peer: HostId,
        /// Its id: even.
        id: MessageId,
    },
}

/// What the driver does with a packet's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// No effect: there is no payload, it is a duplicate, or its message is not known.
    Discard,
    /// Copy these bytes into the message's buffer. They may overlap bytes stored before.
    Store(Slice),
}

/// One host's instance of a transport of messages. Its driver keeps the contract of a [`Node`].
pub trait Transport: Node<Event = Event, Placement = Placement> {
    /// Takes a message to send.
    ///
    /// # Errors
    /// See [`Refused`]; nothing has changed then.
    fn submit(&mut self, now: Time, message: Submit) -> Result<(), Refused>;

    /// Forgets a message that was submitted or is arriving, if it is known; no event follows.
    /// A stream is forgotten with both directions, and its other end is reset.
    fn cancel(&mut self, now: Time, peer: HostId, id: MessageId);

    /// Whether this message, or this direction of a stream, arrives here: begun, and neither delivered nor
    /// forgotten.
    ///
    /// A message of which the application has had no event is forgotten without one when its sender falls silent. A
    /// driver asks this of messages that have not grown for long, and frees their bytes.
    #[must_use]
    fn is_arriving(&self, peer: HostId, id: MessageId) -> bool;

    /// Whether bytes of a message that was cancelled are still to be sent: where they are part of a stream of
    /// bytes, as over TCP, what has begun to be sent is sent to its end. A driver keeps them for as long.
    #[must_use]
    fn is_leaving(&self, _peer: HostId, _id: MessageId) -> bool {
        false
    }

    /// How it cuts messages into packets.
    #[must_use]
    fn framing(&self) -> Framing;

    /// Opens a stream. The peer learns of it with the first bytes written, or the end of them.
    ///
    /// # Errors
    /// See [`Refused`]; nothing has changed then.
    fn open(&mut self, _now: Time, _stream: Open) -> Result<(), Refused> {
        Err(Refused::Unsupported)
    }

    /// Adds `bytes` to the direction `id` of a stream, which this host sends: the stream's own id
    /// at its client, the response's at its server. With `end`, nothing follows (half-close).
    ///
    /// The driver keeps the bytes until [`StreamEvent::Acked`] covers them, and bounds what it
    /// writes ahead by that. Offsets in [`Slice`]s of streams count modulo 2^32.
    ///
    /// # Errors
    /// See [`Refused`]; nothing has changed then.
    fn write(
        &mut self,
        _now: Time,
        _peer: HostId,
        _id: MessageId,
        _bytes: u64,
        _end: bool,
    ) -> Result<(), Refused> {
        Err(Refused::Unsupported)
    }

    /// The application has taken `bytes` of those announced by [`StreamEvent::Readable`]: the sender may send as many
    /// more (flow control). `id` is the direction that this host receives.
    fn consume(&mut self, _now: Time, _peer: HostId, _id: MessageId, _bytes: u64) {}

    /// The driver has found that a peer has restarted and lost its state. A transport need not make use of it: it finds
    /// that out by itself, later.
    fn peer_restarted(&mut self, _now: Time, _peer: HostId) {}

    /// Its measurements of the round trip to each peer, in the order of the peers' numbers; empty if it measures none.
    #[must_use]
    fn round_trips(&self) -> Vec<RoundTrip> {
        Vec::new()
    }
}
