//! The configuration of an endpoint over the kernel's TCP.

use std::io;
use std::net::SocketAddr;

use rackweave_core::{HostId, Span};

use crate::{Clock, Peers};

/// The configuration of a [`TcpEndpoint`](crate::TcpEndpoint).
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// The number of this host.
    pub host: HostId,
    /// The address at which it listens; the system chooses a port if it is 0. Connections are made from the same address.
    pub bind: SocketAddr,
    /// Its peers, which must be [`Peers::Direct`].
    pub peers: Peers,
    /// The kernel's name of the congestion control of its sockets; `None` for the system's default.
    pub congestion: Option<String>,
    /// The most connections to a peer for messages; streams have their own.
    pub connections_per_peer: u32,
    /// The most streams at a time that this host opens to a peer, and that a peer opens to this host.
    pub streams_per_peer: u32,
    /// The most accepted connections at a time. An eighth is kept for configured peers. If all places are taken, the party that has most
    /// makes room for one that has fewer, also with a connection that is in use.
    pub max_accepted: usize,
    /// Whether small writes are sent at once (`TCP_NODELAY`).
    pub nodelay: bool,
    /// The most bytes of messages and streams that wait to be passed to the kernel.
    pub send_bytes: u64,
    /// The most bytes of messages that are being received.
    pub receive_bytes: u64,
    /// The longest message that is sent or accepted.
    pub max_message_bytes: u64,
    /// A stream is not read, beyond a frame that has begun, while this many of its bytes are not consumed by the application.
    pub stream_window: u64,
    /// Bytes that the kernel buffers beyond what it may send at present (`TCP_NOTSENT_LOWAT`).
    pub write_ahead: u32,
    /// A connection is closed if the peer does not accept it, or acknowledges nothing, for this long.
    pub silence: Span,
    /// How long a wait polls before it sleeps.
    pub busy_poll: Span,
    /// The clock of all times; hosts whose times are compared share one.
    pub clock: Clock,
}

impl TcpConfig {
    /// A configuration with defaults for everything else.
    #[must_use]
    pub fn new(host: HostId, bind: SocketAddr, peers: Peers) -> Self {
        Self {
            host,
            bind,
            peers,
            congestion: None,
            connections_per_peer: 8,
            streams_per_peer: 1024,
            max_accepted: 4096,
            nodelay: true,
            send_bytes: 256 << 20,
            receive_bytes: 256 << 20,
            max_message_bytes: 128 << 20,
            stream_window: 1 << 20,
            write_ahead: 128 << 10,
            silence: Span::from_secs(5),
            busy_poll: Span::ZERO,
            clock: Clock::start(),
        }
    }
}

/// Why an endpoint over the kernel's TCP cannot be created.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields repeat their types")]
pub enum TcpError {
    /// The address is in use, or is not one of this machine.
    #[error("cannot listen on TCP {address}: {source}")]
    Bind { address: SocketAddr, source: io::Error },
    /// The kernel does not have the congestion control, or this process may not use it.
    #[error("the kernel refuses congestion control `{name}` ({source}); available: {available}")]
    Congestion { name: String, source: io::Error, available: String },
    /// [`Peers::Switch`] is not supported.
    #[error("the kernel's TCP cannot run through an overlay switch: use a testbed instead")]
    Switch,
    /// The system has refused something else.
    #[error("cannot set up TCP: {0}")]
    System(#[from] io::Error),
}
