//! What an engine tells.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use rackweave_core::HostId;
use rackweave_group::orca::controller::ControllerEvent;
use rackweave_group::orca::flow::{ReceiverStatus, SenderSummary, SlowReason};
use rackweave_wire::orca::{Reason, Session};

use crate::sink::{FileDone, SinkError};
use crate::source::SourceError;

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The address is taken, or not this machine's.
    #[error("cannot use UDP address {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The interface can't.
    #[error("cannot join the multicast group on {interface}: {source}")]
    Group {
        /// The interface's address.
        interface: Ipv4Addr,
        /// What the system says.
        source: io::Error,
    },
    /// Anything else.
    #[error("the system refuses what is needed: {0}")]
    System(io::Error),
}

/// What happens.
#[derive(Debug)]
pub enum EngineEvent {
    /// A receiver takes part, from this byte of the stream on.
    Joined {
        /// Which session.
        session: Session,
        /// Who.
        host: HostId,
        /// From where on.
        at: u64,
    },
    /// A receiver is too slow for the others (true), or is with them (again).
    Alone {
        /// Which session.
        session: Session,
        /// Who.
        host: HostId,
        /// Whether alone.
        alone: bool,
    },
    /// A receiver is out; it may be invited again.
    Lost {
        /// Which session.
        session: Session,
        /// Who.
        host: HostId,
        /// Why.
        reason: Reason,
    },
    /// A receiver has everything, and it is right.
    Completed {
        /// Which session.
        session: Session,
        /// Who.
        host: HostId,
    },
    /// A session that was sent is over.
    Sent {
        /// Which.
        session: Session,
        /// How it stood at the end.
        view: SendView,
        /// Why it could not go on.
        error: Option<SourceError>,
    },
    /// A session is over, but a receiver that fell silent may come back: the stream goes on in another session.
    Renewed {
        /// Which is over.
        old: Session,
        /// Which goes on.
        session: Session,
        /// How the old one stood at its end.
        view: SendView,
    },
    /// A stream begins to come in.
    Receiving {
        /// Which session.
        session: Session,
        /// From where.
        from: SocketAddr,
        /// The first byte that is needed: above 0 if it goes on.
        at: u64,
    },
    /// A stream is complete.
    Received {
        /// Which session.
        session: Session,
        /// From where.
        from: SocketAddr,
        /// Bytes of the stream.
        bytes: u64,
        /// Its files.
        files: Vec<FileDone>,
    },
    /// The controller, which this host is, has something to tell.
    Control(ControllerEvent),
    /// A stream has ended early.
    ReceiveFailed {
        /// Which session.
        session: Session,
        /// From where.
        from: SocketAddr,
        /// Why, as the protocol says it.
        reason: Reason,
        /// Why, if this host is the cause.
        error: Option<SinkError>,
    },
}

/// How far a stream is that comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Which session.
    pub session: Session,
    /// Bytes of the stream in order.
    pub bytes: u64,
    /// Bytes of files, and how many they will be at least.
    pub content: (u64, Option<u64>),
}

/// How far a session is that is sent.
#[derive(Clone, Debug)]
pub struct SendView {
    /// Bytes of the stream so far, and whether that is all.
    pub length: (u64, bool),
    /// Bytes of files in it.
    pub content: u64,
    /// Its receivers.
    pub receivers: Vec<ReceiverProgress>,
    /// The sender's counters.
    pub summary: SenderSummary,
    /// Copies of each packet on the sender's link.
    pub copies: usize,
}

/// How far a receiver is.
#[derive(Clone, Copy, Debug)]
pub struct ReceiverProgress {
    /// Who.
    pub host: HostId,
    /// Where.
    pub address: SocketAddr,
    /// It has all bytes below.
    pub have: u64,
    /// It began there.
    pub from: u64,
    /// How it stands.
    pub standing: ReceiverStatus,
    /// Bits per second that it takes.
    pub bits_per_second: u64,
    /// Bytes that went again because of it.
    pub repairs: u64,
    /// Why it is alone.
    pub slow: Option<SlowReason>,
    /// When it had everything, in seconds from the opening.
    pub seconds: Option<f64>,
}

/// What an engine counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Datagrams that came in.
    pub received: u64,
    /// Datagrams of strangers, not looked at.
    pub foreign: u64,
    /// Datagrams that are no packets, are damaged, or have another key or none.
    pub malformed: u64,
    /// Among them, those that do not match in having a key.
    pub key_mismatch: u64,
    /// Datagrams handed to the kernel.
    pub sent: u64,
    /// Their bytes, IP and UDP headers included.
    pub sent_bytes: u64,
    /// Datagrams that the kernel refused.
    pub refused: u64,
    /// Packets to hosts that are not known.
    pub nowhere: u64,
    /// Packets that were not received, but computed from parity.
    pub recovered: u64,
    /// Calls to send, and trains in them.
    pub send_calls: u64,
    /// See `send_calls`.
    pub trains: u64,
}
