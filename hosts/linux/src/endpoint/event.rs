//! Events, errors and counters of an endpoint.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use rackweave_core::{FailReason, HostId, Kind, MessageId, Refused};
use rackweave_crypt::KeyMismatch;
use smallvec::SmallVec;

/// Why an endpoint cannot be created.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields repeat their types")]
pub enum EndpointError {
    /// The address is in use, or is not one of this machine.
    #[error("cannot bind UDP socket {address}: {source}")]
    Bind { address: SocketAddr, source: io::Error },
    /// The process lacks the right to open raw sockets.
    #[error("packets of IP protocol 146 need the capability CAP_NET_RAW: run as root")]
    NoRawRights,
    /// The port is in use, the address is not one of this machine, or the system has no raw sockets.
    #[error("cannot open a raw socket of IP protocol 146 for {address}: {source}")]
    Raw { address: SocketAddr, source: io::Error },
    /// A key and HomaModule's packets.
    #[error("HomaModule's packets cannot be encrypted: use no key, or UDP")]
    ModuleWithKey,
    /// HomaModule's packets by another way than IPv4.
    #[error("HomaModule's packets are carried over IPv4 only, and by no switch in user space")]
    ModuleNeedsIpv4,
    /// A port that the module gives to clients.
    #[error("HomaModule's servers have ports below 32768, not {0}")]
    ModulePort(u16),
    /// Another transport, or longer messages than the module's.
    #[error(
        "HomaModule's packets are those of Homa in its layout of 2026, with messages of at most 1000000 bytes"
    )]
    ModuleTransport,
    /// A key and a switch of this project.
    #[error(
        "a key cannot be used through a switch of Rackweave: it reads and trims the headers that a key encrypts. Use direct \
         peers with the key, or the switch without one"
    )]
    KeyThroughSwitch,
}

/// Why a message or stream was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The transport has refused it.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The peer is not known.
    #[error("host {} is not a known peer", .0.0)]
    UnknownPeer(HostId),
    /// The send buffer is full: try again after the next [`Event::Sent`] or
    /// [`Event::Written`].
    #[error("the send buffer is full: {waiting} bytes wait to be sent")]
    Full {
        /// Bytes in the send buffer.
        waiting: u64,
    },
}

/// What an endpoint reports to its application. A response has the id of its request with the low bit set; a direction of
/// a stream has an even id from the client and an odd one from the server.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "fields repeat their types")]
pub enum Event {
    /// A message has arrived completely; reported once.
    Message { peer: HostId, id: MessageId, kind: Kind, bytes: Bytes },
    /// The receiver has the whole message.
    Sent { peer: HostId, id: MessageId },
    /// A message or stream will not complete.
    Failed { peer: HostId, id: MessageId, reason: FailReason },
    /// A client has opened a stream.
    Opened { peer: HostId, id: MessageId },
    /// The next bytes of a stream. [`consume`](super::Endpoint::consume) makes room for more.
    Readable {
        peer: HostId,
        id: MessageId,
        pieces: SmallVec<[Bytes; 1]>,
        /// Whether the direction ends with these bytes.
        end: bool,
    },
    /// The peer has acknowledged the next bytes of a direction.
    Written { peer: HostId, id: MessageId, bytes: u64 },
    /// A stream has ended in both directions.
    Closed { peer: HostId, id: MessageId },
    /// A peer has restarted, and has lost its earlier messages and streams. Messages and streams that this host sends
    /// fail by their transport. Streams that it only receives may wait without an end, so the application cancels them.
    PeerRestarted { peer: HostId },
    /// A peer cannot be talked to because its key differs. The peer's report is not authentic, so this is reported only when the
    /// peer has not answered otherwise; the peer's messages then wait for the transport's timeout, unless cancelled.
    KeyMismatch { peer: HostId, why: KeyMismatch },
    /// The length of packets that arrive at a peer has changed.
    PathMtu { peer: HostId, change: PathChange },
}

/// Packets of one length do not arrive at a peer though shorter ones do, or arrive again. Nothing is to be done about it: what is longer
/// is sent in fragments, which costs processor time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathChange {
    /// The length of the packets, with the headers of IP and UDP.
    pub packet_bytes: usize,
    /// The longest packets that are sent from now on; `None` if there is no limit any more.
    pub limit: Option<usize>,
}

impl std::fmt::Display for PathChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { packet_bytes, limit } = self;
        match limit {
            Some(limit) => write!(
                f,
                "packets of {packet_bytes} bytes do not arrive, and shorter ones do: they are sent in fragments of at most {limit} bytes. A \
                 link on the path has a smaller MTU than this host's"
            ),
            None => write!(f, "packets of {packet_bytes} bytes arrive again"),
        }
    }
}

impl Event {
    /// The peer and exchange that the event belongs to, as the id of the response.
    pub(super) fn exchange(&self) -> Option<(HostId, MessageId)> {
        match *self {
            Self::Message { peer, id, .. }
            | Self::Sent { peer, id }
            | Self::Failed { peer, id, .. }
            | Self::Opened { peer, id }
            | Self::Readable { peer, id, .. }
            | Self::Written { peer, id, .. }
            | Self::Closed { peer, id } => Some((peer, MessageId(id.0 | 1))),
            Self::PeerRestarted { .. } | Self::KeyMismatch { .. } | Self::PathMtu { .. } => None,
        }
    }
}

/// The counters of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Datagrams that the kernel has accepted.
    pub sent: u64,
    /// Datagrams received, dropped ones included.
    pub received: u64,
    /// Datagrams that the kernel refused.
    pub send_refused: u64,
    /// Datagrams dropped because their address is not a peer's.
    pub foreign: u64,
    /// Datagrams dropped because they are not of the overlay, or damaged.
    pub malformed: u64,
    /// Datagrams dropped because their sender does not know this host's incarnation.
    pub unproven: u64,
    /// Datagrams dropped because they were not made with this host's key.
    pub forged: u64,
    /// Sealed packets dropped because they are replays, or too late.
    pub replayed: u64,
    /// Messages of this host's own handshakes that somebody has returned to it.
    pub reflected: u64,
    /// Resumptions that were accepted.
    pub resumed: u64,
    /// Resumptions that were refused, and answered as asks.
    pub early_refused: u64,
    /// Packets sealed before the handshake.
    pub early_sent: u64,
    /// Packets dropped because the receive buffer is full.
    pub no_room: u64,
    /// Packets dropped because too many wait for the receiver's incarnation, or for the socket.
    pub not_held: u64,
    /// Datagrams dropped because they have another incarnation than the sender's present one.
    pub late: u64,
    /// Packets that were not sent because their message was cancelled.
    pub stale: u64,
    /// Packets dropped that would have begun a message of a peer, because the transport had no room for it, or none to
    /// remember it after its end. Their senders send them again.
    pub not_admitted: u64,
    /// Datagrams that were sent in fragments, because they do not arrive in one piece.
    pub fragmented: u64,
    /// Restarts of peers.
    pub restarts: u64,
    /// System calls that sent datagrams.
    pub send_calls: u64,
    /// Trains of datagrams in those calls, each segmented by the kernel or the network interface.
    pub trains: u64,
    /// System calls to receive datagrams, including calls that found none.
    pub receive_calls: u64,
    /// System calls that received datagrams.
    pub receive_batches: u64,
}
