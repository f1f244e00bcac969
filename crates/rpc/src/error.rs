//! What can go wrong, in sentences.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rackweave_linux::{EndpointError, TcpError};

/// Why there is no node.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The socket.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The kernel's TCP.
    #[error(transparent)]
    Tcp(#[from] TcpError),
    /// [`Node::bind`](crate::Node::bind) was called outside of a tokio runtime.
    #[error("a node needs a tokio runtime to run in")]
    NoRuntime,
    /// The system gives no timer, or tokio does not take it.
    #[error("cannot set up the node's timer: {0}")]
    Timer(#[source] io::Error),
}

/// Why a call, a message or a stream has failed.
///
/// [`CallError::is_safe_to_retry`] says of each whether the server's application may have seen it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The deadline has passed. The server may have executed the call.
    #[error("no answer from {peer} within the deadline of {deadline:?}")]
    Deadline {
        /// The other end.
        peer: SocketAddr,
        /// How long it was given.
        deadline: Duration,
    },
    /// The deadline that the client gave the stream has passed.
    #[error("the stream's deadline has passed")]
    StreamDeadline,
    /// Nothing was heard of the peer for as long as the transport waits (about two seconds, unless its
    /// configuration says otherwise). It may have executed the call.
    #[error("{peer} is silent: it is down, unreachable or not a Rackweave node of this transport")]
    PeerSilent {
        /// The other end.
        peer: SocketAddr,
    },
    /// The peer has begun a new life, which knows nothing of the call. The old one may have executed it.
    #[error("{peer} has restarted and knows nothing of this any more")]
    PeerRestarted {
        /// The other end.
        peer: SocketAddr,
    },
    /// The peer does not know the call or stream any more, or its process has ended (over the kernel's TCP:
    /// the connection was lost). It may have executed the call.
    #[error("{peer} has lost its state of this; its process may have ended")]
    PeerForgot {
        /// The other end.
        peer: SocketAddr,
    },
    /// The server's application took the request, and dropped it without an answer.
    #[error("{peer} has dropped the request without an answer")]
    Unanswered {
        /// The server.
        peer: SocketAddr,
    },
    /// The server has not executed the call.
    #[error("{peer} has refused the request: {why}")]
    Refused {
        /// The server.
        peer: SocketAddr,
        /// Why.
        why: Refusal,
    },
    /// The other end has given the stream up.
    #[error("the stream was reset by {peer}")]
    Reset {
        /// The other end.
        peer: SocketAddr,
    },
    /// This end has given it up.
    #[error("this end has given it up")]
    Cancelled,
    /// The transport cannot carry so long a message. Streams have no limit.
    #[error("{bytes} bytes are more than the {max} that this transport carries as one message")]
    TooLong {
        /// Its length.
        bytes: u64,
        /// The longest.
        max: u64,
    },
    /// The transport has no streams.
    #[error("this transport carries no streams")]
    NoStreams,
    /// The [`Peer`](crate::Peer) is of another node.
    #[error("this node does not know the peer")]
    UnknownPeer,
    /// As much waits to be sent as the configuration allows.
    #[error("this node is full: {waiting} bytes and {calls} calls wait to be sent")]
    Full {
        /// Bytes.
        waiting: u64,
        /// Calls that wait for room.
        calls: usize,
    },
    /// The transport did not take it.
    #[error("the transport has refused this: {0}")]
    Transport(rackweave_core::Refused),
    /// An answer that is not of this library.
    #[error("{peer} has answered with something that is no answer")]
    Malformed {
        /// The server.
        peer: SocketAddr,
    },
    /// The node was shut down or dropped, or its socket does not work any more.
    #[error("the node has stopped{}", cause(.0.as_ref()))]
    NodeStopped(#[source] Option<Arc<io::Error>>),
}

fn cause(error: Option<&Arc<io::Error>>) -> String {
    error.map_or_else(String::new, |error| format!(": {error}"))
}

/// Why a server has refused a request without executing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Too many requests wait for its application.
    #[error("too many requests wait there")]
    Full,
    /// No application takes requests there.
    #[error("nobody takes requests there")]
    NotServing,
    /// It is shutting down.
    #[error("it is shutting down")]
    Stopping,
    /// The request waited there for longer than its deadline.
    #[error("it waited there for longer than its deadline")]
    Expired,
}

impl CallError {
    /// Whether it is certain that the server's application has not seen the call: to make it again
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
