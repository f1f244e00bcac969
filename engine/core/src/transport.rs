//! Message transports: the commands of an application beyond those of a [`Node`], and the events that it receives.

use core::fmt;

use crate::frame::Framing;
use crate::ids::{HostId, MessageId};
use crate::node::Node;
use crate::packet::Slice;
use crate::time::{Span, Time};

/// The role of a message in an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The receiver's application does not reply; only the transport acknowledges.
    OneWay,
    /// The receiver's application answers with a [`Kind::Response`].
    Request,
    /// The answer to a request; its id is [`MessageId::response`] of the request's.
    Response,
}

/// A message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submit {
    /// The id, which the caller chooses: unique per client, and increasing. A response has the request's id with the
    /// low bit set.
    pub id: MessageId,
    /// The host that receives the message.
    pub peer: HostId,
    /// The length in bytes.
    pub bytes: u64,
    /// Whether the message is a request, a response, or neither.
    pub kind: Kind,
}

/// Why a transport rejected a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The message is longer than the transport's length field can express.
    #[error("the message is longer than the {max} bytes that the transport can carry")]
    TooLong {
        /// The length of the longest possible message, in bytes.
        max: u64,
    },
    /// The message has no bytes.
    #[error("the message is empty")]
    Empty,
    /// A message with this id to or from this peer is still in progress.
    #[error("a message with this id is still in progress")]
    DuplicateId,
    /// The response belongs to a request that the transport does not know, or has forgotten.
    #[error("the request to respond to is not known")]
    UnknownRequest,
    /// The low bit of the id contradicts the kind of message.
    #[error("requests have even ids and responses odd ones")]
    WrongId,
    /// As many messages as the configuration allows are in progress.
    #[error("too many messages in progress")]
    Busy,
    /// The transport does not support this (streams).
    #[error("the transport does not support this operation")]
    Unsupported,
    /// The stream does not exist, or this direction of it has ended.
    #[error("the stream has ended")]
    Ended,
}

/// A stream to open: one RPC whose two directions are written in pieces and delivered in order as they arrive. A unary
/// RPC is a stream in which each direction is written once and ended at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// The id: even, unique per client, and increasing like those of [`Submit`]. The direction from server to client
    /// has its [`MessageId::response`].
    pub id: MessageId,
    /// The host that serves the stream.
    pub peer: HostId,
    /// If the stream has not closed by this time, it fails with [`FailReason::Deadline`] at both ends. [`Time::MAX`]
    /// means that there is no deadline.
    pub deadline: Time,
}

/// A transport's measurements of the round trip to one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct RoundTrip {
    /// The host at the other end.
    pub peer: HostId,
    /// The smallest of the recent samples.
    pub min: Span,
    /// The latest sample.
    pub recent: Span,
    /// The number of samples taken since the start.
    pub samples: u64,
}

/// How often a transport had to repair losses since its start, or took packets for lost that were not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct RecoveryCounters {
    /// The number of data packets sent whose first byte this host had sent before.
    pub retransmissions: u64,
    /// The number of times that a timer expired after which this host sent data again, or requested again what had not arrived.
    /// Requests that ask for the state of a message only do not count, and neither do keepalives.
    pub timeouts: u64,
}

impl core::ops::AddAssign for RecoveryCounters {
    fn add_assign(&mut self, other: Self) {
        self.retransmissions = self.retransmissions.saturating_add(other.retransmissions);
        self.timeouts = self.timeouts.saturating_add(other.timeouts);
    }
}

/// Why a message failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub enum FailReason {
    /// The peer did not answer within the transport's timeouts.
    PeerSilent,
    /// The peer has lost its state of the message, usually because it restarted. It may have received the message before.
    PeerForgot,
    /// The application cancelled the message.
    Cancelled,
    /// This host stopped.
    HostCrashed,
    /// The deadline of the stream, or of the call, passed.
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
    /// A whole message has arrived. This event occurs once for each message.
    Delivered {
        /// The host that sent the message.
        peer: HostId,
        /// The id under which its sender submitted it.
        id: MessageId,
        /// The length in bytes.
        bytes: u64,
        /// Whether the message is a request, a response, or neither.
        kind: Kind,
    },
    /// The receiver has the whole message; the driver can free its bytes.
    Sent {
        /// The host that received the message.
        peer: HostId,
        /// The id under which this host submitted it.
        id: MessageId,
    },
    /// A message that this host submitted, or a request that it has yet to answer, will not complete.
    Failed {
        /// The host at the other end.
        peer: HostId,
        /// The id of the message or stream.
        id: MessageId,
        /// Why it failed.
        reason: FailReason,
    },
    /// A stream has changed. The failure of a stream is an [`Event::Failed`] with its id.
    Stream(StreamEvent),
}

/// An event on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// A client has opened a stream to this host. This event precedes every other event of the stream.
    Opened {
        /// The host that opened it.
        peer: HostId,
        /// The id under which the client opened it: even.
        id: MessageId,
    },
    /// More bytes of one direction of a stream have arrived in order.
    Readable {
        /// The host that sends this direction.
        peer: HostId,
        /// The direction: even from the client, odd from the server.
        id: MessageId,
        /// The number of bytes that have become readable since the previous event.
        bytes: u64,
        /// Whether the peer has ended this direction, so that nothing follows these bytes.
        end: bool,
    },
    /// The receiver has more of the written bytes; the driver can free them.
    Acked {
        /// The host that receives this direction.
        peer: HostId,
        /// The direction: even from the client, odd from the server.
        id: MessageId,
        /// The number of bytes acknowledged since the previous event.
        bytes: u64,
    },
    /// Both directions of a stream have ended and are acknowledged. No event of the stream follows.
    Closed {
        /// The host at the other end.
        peer: HostId,
        /// The id of the stream: even.
        id: MessageId,
    },
}

/// What the driver must do with a packet's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Nothing: there is no payload, it is a duplicate, or its message is unknown.
    Discard,
    /// Copy these bytes into the message's buffer. They may overlap bytes stored earlier.
    Store(Slice),
}

/// One host's instance of a message transport. Its driver follows the contract of a [`Node`].
pub trait Transport: Node<Event = Event, Placement = Placement> {
    /// Submits a message for transmission.
    ///
    /// # Errors
    /// See [`Refused`]. The transport is then unchanged.
    fn submit(&mut self, now: Time, message: Submit) -> Result<(), Refused>;

    /// Forgets a message that was submitted or is arriving, if it is known, without an event. A stream is forgotten in
    /// both directions, and its other end is reset.
    fn cancel(&mut self, now: Time, peer: HostId, id: MessageId);

    /// Returns whether this message, or this direction of a stream, is arriving here: it has started, and was neither
    /// delivered nor forgotten.
    ///
    /// If the sender of a message falls silent before the application has had an event of the message, the transport
    /// forgets it without one. Drivers therefore query messages that have not grown for some time, and free their
    /// bytes.
    #[must_use]
    fn is_arriving(&self, peer: HostId, id: MessageId) -> bool;

    /// Returns whether the transport still has to send bytes of a message that was cancelled. Where messages share a
    /// byte stream, as over TCP, a partly sent message must be sent completely. The driver keeps its
    /// bytes until this returns false.
    #[must_use]
    fn is_leaving(&self, _peer: HostId, _id: MessageId) -> bool {
        false
    }

    /// Returns the next cancelled message for which [`Transport::is_leaving`] was true and is not any more.
    fn poll_left(&mut self) -> Option<(HostId, MessageId)> {
        None
    }

    /// Says that everything which had arrived at the host by this time was passed to the transport. What the transport remembers of ended
    /// exchanges, so that late packets do not begin them again, must not expire by time that passes later: a process that stands still does
    /// not see the packets that wait for it. Without a call all packets count as passed when they arrive. A host that waits for room to be
    /// remembered ([`Refused::Busy`]) must go on receiving, so that this time passes.
    fn arrived_until(&mut self, _at: Time) {}

    /// Returns how the transport divides messages into packets.
    #[must_use]
    fn framing(&self) -> Framing;

    /// Opens a stream. The peer learns of it from the first bytes written, or from the end of the stream.
    ///
    /// # Errors
    /// See [`Refused`]. The transport is then unchanged.
    fn open(&mut self, _now: Time, _stream: Open) -> Result<(), Refused> {
        Err(Refused::Unsupported)
    }

    /// Writes `bytes` to the direction `id` of a stream, which this host sends: the stream's own id at the client, the
    /// response's id at the server. `end` closes this direction (half-close).
    ///
    /// The driver keeps the bytes until [`StreamEvent::Acked`] covers them, and limits by this how far it writes ahead.
    /// Offsets in [`Slice`]s of streams count modulo 2^32.
    ///
    /// # Errors
    /// See [`Refused`]. The transport is then unchanged.
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

    /// Reports that the application has read `bytes` of those announced by [`StreamEvent::Readable`], which allows the
    /// sender to send as many more (flow control). `id` is the direction that this host receives.
    fn consume(&mut self, _now: Time, _peer: HostId, _id: MessageId, _bytes: u64) {}

    /// Reports that the driver has seen a peer restart and lose its state. A transport may ignore this: it finds out
    /// later by its own timeouts.
    fn peer_restarted(&mut self, _now: Time, _peer: HostId) {}

    /// Returns the measured round trip to each peer, ordered by the peers' numbers; empty if the transport measures
    /// none.
    #[must_use]
    fn round_trips(&self) -> Vec<RoundTrip> {
        Vec::new()
    }

    /// Returns how many packets this host has dropped since its start that would have begun a message of a peer, because
    /// there was no room for it, or none to remember it after its end. Their senders send them again.
    #[must_use]
    fn not_admitted(&self) -> u64 {
        0
    }

    /// Returns how often this host has repaired losses; zeros for a transport that never does.
    #[must_use]
    fn recovery_counters(&self) -> RecoveryCounters {
        RecoveryCounters::default()
    }
}

impl<T: Transport + ?Sized> Transport for Box<T> {
    fn submit(&mut self, now: Time, message: Submit) -> Result<(), Refused> {
        (**self).submit(now, message)
    }

    fn cancel(&mut self, now: Time, peer: HostId, id: MessageId) {
        (**self).cancel(now, peer, id);
    }

    fn is_arriving(&self, peer: HostId, id: MessageId) -> bool {
        (**self).is_arriving(peer, id)
    }

    fn is_leaving(&self, peer: HostId, id: MessageId) -> bool {
        (**self).is_leaving(peer, id)
    }

    fn poll_left(&mut self) -> Option<(HostId, MessageId)> {
        (**self).poll_left()
    }

    fn arrived_until(&mut self, at: Time) {
        (**self).arrived_until(at);
    }

    fn framing(&self) -> Framing {
        (**self).framing()
    }

    fn open(&mut self, now: Time, stream: Open) -> Result<(), Refused> {
        (**self).open(now, stream)
    }

    fn write(
        &mut self,
        now: Time,
        peer: HostId,
        id: MessageId,
        bytes: u64,
        end: bool,
    ) -> Result<(), Refused> {
        (**self).write(now, peer, id, bytes, end)
    }

    fn consume(&mut self, now: Time, peer: HostId, id: MessageId, bytes: u64) {
        (**self).consume(now, peer, id, bytes);
    }

    fn peer_restarted(&mut self, now: Time, peer: HostId) {
        (**self).peer_restarted(now, peer);
    }

    fn round_trips(&self) -> Vec<RoundTrip> {
        (**self).round_trips()
    }

    fn not_admitted(&self) -> u64 {
        (**self).not_admitted()
    }

    fn recovery_counters(&self) -> RecoveryCounters {
        (**self).recovery_counters()
    }
}
