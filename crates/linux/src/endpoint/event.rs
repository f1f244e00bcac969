//! What an endpoint tells: events, errors, counts.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use rackweave_core::{FailReason, HostId, Kind, MessageId, Refused};
use smallvec::SmallVec;

/// Why there is no endpoint.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The address is taken, or not this machine's.
    #[error("cannot bind UDP socket {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
}

/// Why something was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The transport did not take it.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Not one of the configured peers.
    #[error("host {} is not a known peer", .0.0)]
    UnknownPeer(HostId),
    /// As many bytes as the configuration allows wait already: try again after the next [`Event::Sent`] or
    /// [`Event::Written`].
    #[error("{waiting} bytes wait to be sent, and no more are allowed")]
    Full {
        /// Bytes that wait.
        waiting: u64,
    },
}

/// What the application learns.
#[derive(Clone, Debug)]
pub enum Event {
    /// A message has arrived whole; told once.
    Message {
        /// Who sent it.
        peer: HostId,
        /// Its name: that of the request, of a response with its low bit set.
        id: MessageId,
        /// What it is.
        kind: Kind,
        /// Its bytes.
        bytes: Bytes,
    },
    /// The receiver has the whole message.
    Sent {
        /// Who.
        peer: HostId,
        /// Its name.
        id: MessageId,
    },
    /// A message or stream will not complete.
    Failed {
        /// The other end.
        peer: HostId,
        /// Its name.
        id: MessageId,
        /// Why.
        reason: FailReason,
    },
    /// A client has opened a stream.
    Opened {
        /// The client.
        peer: HostId,
        /// Its name.
        id: MessageId,
    },
    /// The next bytes of a stream. [`Endpoint::consume`](crate::Endpoint::consume) makes room for more.
    Readable {
        /// Who sent them.
        peer: HostId,
        /// The direction: even from the client, odd from the server.
        id: MessageId,
        /// The bytes, in pieces.
        pieces: SmallVec<[Bytes; 1]>,
        /// Nothing comes after them.
        end: bool,
    },
    /// The receiver has the next bytes of what was written.
    Written {
        /// Who.
        peer: HostId,
        /// The direction.
        id: MessageId,
        /// How many.
        bytes: u64,
    },
    /// A stream has ended in both directions.
    Closed {
        /// The other end.
        peer: HostId,
        /// Its name.
        id: MessageId,
    },
    /// A peer has begun a new life: it knows nothing of what was before.
    PeerRestarted {
        /// Who.
        peer: HostId,
    },
}

impl Event {
    /// The peer and exchange that it is of, as the id of the response.
    pub(super) fn exchange(&self) -> Option<(HostId, MessageId)> {
        match *self {
            Self::Message { peer, id, .. }
            | Self::Sent { peer, id }
            | Self::Failed { peer, id, .. }
            | Self::Opened { peer, id }
            | Self::Readable { peer, id, .. }
            | Self::Written { peer, id, .. }
            | Self::Closed { peer, id } => Some((peer, MessageId(id.0 | 1))),
            Self::PeerRestarted { .. } => None,
        }
    }
}

/// What an endpoint has counted since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Datagrams handed to the kernel.
    pub sent: u64,
    /// Datagrams that came.
    pub received: u64,
    /// Datagrams that the kernel refused.
    pub send_refused: u64,
    /// Dropped: from an address that is not a peer's.
    pub foreign: u64,
    /// Dropped: no datagram of the overlay, or damaged.
    pub malformed: u64,
    /// Dropped: its sender does not know this host's incarnation.
    pub unproven: u64,
    /// Dropped: no memory left for what arrives.
    pub no_room: u64,
    /// Dropped: the receiver's incarnation was asked for, and too many packets waited for it.
    pub not_held: u64,
    /// Dropped: of another life of its sender than the last that has shown to be alive.
    pub late: u64,
    /// Not sent: the message was given up meanwhile.
    pub stale: u64,
    /// Peers that began a new life.
    pub restarts: u64,
    /// Calls of the kernel to send.
    pub send_calls: u64,
    /// Trains of datagrams in them: what the kernel cuts, or the network interface.
    pub trains: u64,
}
