//! What an endpoint over the kernel's TCP is made of.

use std::io;
use std::net::SocketAddr;

use rackweave_core::{HostId, Span};

use crate::{Clock, Peers};

/// Messages and streams over the kernel's TCP.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// This host's number.
    pub host: HostId,
    /// Where it listens; port 0: the system picks one. Connections leave from the same address.
    pub bind: SocketAddr,
    /// Whom it talks to: [`Peers::Direct`] only.
    pub peers: Peers,
    /// The congestion control of its sockets, by the kernel's name; `None`: the system's default.
    pub congestion: Option<String>,
    /// Most connections to a peer for messages. Streams have their own.
    pub connections_per_peer: u32,
    /// Most streams with a peer at a time that this host opens, and most that a peer opens here.
    pub streams_per_peer: u32,
    /// Most connections that others have made, at a time.
    pub max_accepted: usize,
    /// Small writes go at once (`TCP_NODELAY`).
    pub nodelay: bool,
    /// Most bytes of messages and streams that wait to be handed to the kernel.
    pub send_bytes: u64,
    /// Most bytes of messages that arrive.
    pub receive_bytes: u64,
    /// The longest message that is sent or taken.
    pub max_message_bytes: u64,
    /// Bytes of a stream that the application has not consumed: no more are read then, but for the frame
    /// that has begun.
    pub stream_window: u64,
    /// Bytes that the kernel holds beyond those that it may send now (`TCP_NOTSENT_LOWAT`).
    pub write_ahead: u32,
    /// A peer that does not take a connection, or acknowledges nothing, for so long is given up.
    pub silence: Span,
    /// How long a wait looks again and again before it sleeps. Zero: not at all.
    pub busy_poll: Span,
    /// Hosts that share a time line share a clock.
    pub clock: Clock,
}

impl TcpConfig {
    /// With defaults for all that is not named.
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

/// Why there is no endpoint over the kernel's TCP.
#[derive(Debug, thiserror::Error)]
pub enum TcpError {
    /// The address is taken, or not this machine's.
    #[error("cannot listen at TCP {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The kernel does not know the congestion control, or does not let this process use it.
    #[error("the kernel does not give congestion control `{name}` ({source}); it has: {available}")]
    Congestion {
        /// Its name.
        name: String,
        /// What the system says.
        source: io::Error,
        /// What there is.
        available: String,
    },
    /// [`Peers::Switch`].
    #[error("the kernel's TCP does not go through an overlay switch: use a testbed instead")]
    Switch,
    /// Something else did not work.
    #[error("cannot set up TCP: {0}")]
    System(#[from] io::Error),
}
