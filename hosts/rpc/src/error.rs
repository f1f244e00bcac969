//! Errors of nodes and calls.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rackweave_linux::endpoint::{KeyMismatch, TicketFileError};
use rackweave_linux::{EndpointError, TcpError};

/// Why a node could not be created.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The socket could not be set up.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The kernel's TCP could not be set up.
    #[error(transparent)]
    Tcp(#[from] TcpError),
    /// A key and the kernel's TCP.
    #[error("a key protects the transports over UDP, and the kernel's TCP is not one of them")]
    KeyOverTcp,
    /// Tickets or early calls without a key.
    #[error("early calls are for nodes with a key: without one, nobody could tell whose they are")]
    EarlyWithoutKey,
    /// The file of tickets cannot be used.
    #[error(transparent)]
    Tickets(#[from] TicketFileError),
    /// [`Node::bind`](crate::Node::bind) was called outside of a tokio runtime.
    #[error("a node needs a tokio runtime to run in")]
    NoRuntime,
    /// The system provides no timer, or tokio does not accept it.
    #[error("cannot set up the node's timer: {0}")]
    Timer(#[source] io::Error),
}

/// Why a call, a message or a stream failed.
///
/// [`CallError::is_safe_to_retry`] states whether the server's application may have seen it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The deadline has passed. The server may have executed the call.
    #[error("no response from {peer} within the deadline of {deadline:?}")]
    Deadline {
        /// The server that was called.
        peer: SocketAddr,
        /// The deadline of the call.
        deadline: Duration,
    },
    /// The deadline that the client gave the stream has passed.
    #[error("the stream's deadline has passed")]
    StreamDeadline,
    /// The peer was silent for as long as the transport waits (about two seconds, unless configured
    /// otherwise). It may have executed the call.
    #[error("{}", silent(*peer, *paused))]
    PeerSilent {
        /// The address of the silent peer.
        peer: SocketAddr,
        /// For how long this node was not served shortly before, because its process was stopped, starved of processor time or busy: the
        /// peer may be well. `None` if it was.
        paused: Option<Duration>,
    },
    /// The peer has another key than this node, or one of the two has none. It may have executed the call only if its key was
    /// changed since.
    #[error("cannot talk to {peer}: {why}")]
    Key {
        /// The address of the peer.
        peer: SocketAddr,
        /// How the keys differ.
        why: KeyMismatch,
    },
    /// The peer has restarted and has lost the call. It may have executed it before.
    #[error("{peer} has restarted and no longer knows this call or stream")]
    PeerRestarted {
        /// The address of the restarted peer.
        peer: SocketAddr,
    },
    /// The peer has no state of the call or stream any more, or its process has ended (over the kernel's TCP: the
    /// connection was lost). It may have executed the call.
    #[error("{peer} no longer knows this call or stream; its process may have ended")]
    PeerForgot {
        /// The address of the peer that forgot it.
        peer: SocketAddr,
    },
    /// The server's application took the request and dropped it without a response.
    #[error("{peer} dropped the request without a response")]
    Unanswered {
        /// The address of the server.
        peer: SocketAddr,
    },
    /// The server has not executed the call.
    #[error("{peer} refused the request: {why}")]
    Refused {
        /// The address of the server that refused it.
        peer: SocketAddr,
        /// The reason that the server gave.
        why: Refusal,
    },
    /// The other end has reset the stream.
    #[error("the stream was reset by {peer}")]
    Reset {
        /// The address of the peer that reset it.
        peer: SocketAddr,
    },
    /// This end has reset the stream.
    #[error("this end has reset the stream")]
    Cancelled,
    /// The message is longer than the transport can carry. Streams have no limit.
    #[error("a message of {bytes} bytes exceeds this transport's maximum of {max}")]
    TooLong {
        /// The length of the message in bytes.
        bytes: u64,
        /// The longest message of the transport, in bytes.
        max: u64,
    },
    /// The transport has no streams.
    #[error("this transport does not support streams")]
    NoStreams,
    /// The [`Peer`](crate::Peer) belongs to another node.
    #[error("the peer belongs to another node")]
    UnknownPeer,
    /// The configured maximum of bytes or calls is already waiting to be sent.
    #[error("this node is full: {waiting} bytes and {calls} calls are waiting to be sent")]
    Full {
        /// The number of bytes that wait.
        waiting: u64,
        /// The number of calls that wait for room.
        calls: usize,
    },
    /// The transport refused the message.
    #[error("the transport refused the message: {0}")]
    Transport(rackweave_core::Refused),
    /// The response was not made by this library.
    #[error("{peer} sent a response that is not in this library's format")]
    Malformed {
        /// The address of the peer that sent it.
        peer: SocketAddr,
    },
    /// The node was shut down or dropped, or its socket failed.
    #[error("the node has stopped{}", cause(.0.as_ref()))]
    NodeStopped(#[source] Option<Arc<io::Error>>),
}

fn cause(error: Option<&Arc<io::Error>>) -> String {
    error.map_or_else(String::new, |error| format!(": {error}"))
}

/// Why a server refused a request without executing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Too many requests wait for the server's application.
    #[error("too many requests are waiting at the server")]
    Full,
    /// No application of that node takes requests.
    #[error("no application serves requests on that node")]
    NotServing,
    /// The node is shutting down.
    #[error("the server is shutting down")]
    Stopping,
    /// The request waited at the server for longer than its deadline.
    #[error("the request waited at the server beyond its deadline")]
    Expired,
}

fn silent(peer: SocketAddr, paused: Option<Duration>) -> String {
    match paused {
        Some(paused) => format!(
            "nothing was heard of {peer} for too long, but this process itself did not run for {:.1} s (stopped, starved of processor time or busy)",
            paused.as_secs_f64()
        ),
        None => format!(
            "{peer} is silent: it is down or unreachable, it is no Rackweave node of this transport, or it does not admit this node \
             (its `allow` list has to contain this address, or both need the same key)"
        ),
    }
}

impl CallError {
    /// Whether the server's application has certainly not seen the call, so that a retry
    /// cannot execute it twice.
    #[must_use]
    pub const fn is_safe_to_retry(&self) -> bool {
        matches!(
            self,
            Self::Refused { .. }
                | Self::TooLong { .. }
                | Self::NoStreams
                | Self::UnknownPeer
                | Self::Full { .. }
                | Self::Transport(_)
        )
    }

    const fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Deadline { .. } | Self::StreamDeadline | Self::PeerSilent { .. } => {
                io::ErrorKind::TimedOut
            }
            Self::PeerRestarted { .. } | Self::PeerForgot { .. } | Self::Reset { .. } => {
                io::ErrorKind::ConnectionReset
            }
            Self::Cancelled | Self::NodeStopped(_) => io::ErrorKind::ConnectionAborted,
            Self::NoStreams => io::ErrorKind::Unsupported,
            _ => io::ErrorKind::Other,
        }
    }
}

impl From<CallError> for io::Error {
    fn from(error: CallError) -> Self {
        Self::new(error.kind(), error)
    }
}
