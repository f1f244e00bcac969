//! Events, progress and counters of an engine, and why it cannot be created.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use rackweave_core::HostId;
use rackweave_group::orca::controller::ControllerEvent;
use rackweave_group::orca::flow::{ReceiverStatus, SenderEvent, SenderSummary, SlowReason};
use rackweave_wire::orca::{Reason, Session};

use crate::sink::{FileDone, SinkError};
use crate::source::SourceError;

/// Why an engine cannot be created.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields repeat their types")]
pub enum EngineError {
    /// The address is in use, or is not one of this machine.
    #[error("cannot use UDP address {address}: {source}")]
    Bind { address: SocketAddr, source: io::Error },
    /// The interface cannot join the multicast group.
    #[error("cannot join the multicast group on {interface}: {source}")]
    Group { interface: Ipv4Addr, source: io::Error },
    /// The system refuses something else that the engine needs.
    #[error("the system refuses what is needed: {0}")]
    System(io::Error),
}

/// What an engine reports to its application.
#[derive(Debug)]
pub enum EngineEvent {
    /// An event of a session that this host sends, as [`Host`](rackweave_group::orca::host::Host) reports it. The end of a session is
    /// reported by [`EngineEvent::Sent`] or [`EngineEvent::Renewed`] instead.
    Sender(Session, SenderEvent),
    /// A session that this host sent has ended.
    Sent {
        /// The session.
        session: Session,
        /// Its state at the end.
        view: SendView,
        /// The error of the source that ended it early.
        error: Option<SourceError>,
    },
    /// A session has ended, and another one continues the stream for receivers that fell silent and may come back.
    Renewed {
        /// The session that has ended.
        old: Session,
        /// The session that continues.
        session: Session,
        /// The state of the old session at its end.
        view: SendView,
    },
    /// The sink of an incoming stream is ready, and its bytes are expected.
    Receiving {
        /// The session.
        session: Session,
        /// The address of the sender.
        from: SocketAddr,
        /// The offset of the first byte that is needed: above 0 if an interrupted transfer resumes.
        at: u64,
    },
    /// An incoming stream is complete.
    Received {
        /// The session.
        session: Session,
        /// The address of the sender.
        from: SocketAddr,
        /// Bytes of the stream that were received.
        bytes: u64,
        /// The complete files.
        files: Vec<FileDone>,
    },
    /// An incoming stream has failed.
    ReceiveFailed {
        /// The session.
        session: Session,
        /// The address of the sender.
        from: SocketAddr,
        /// The reason, as the protocol reports it.
        reason: Reason,
        /// The error of the sink, if this host is the cause.
        error: Option<SinkError>,
    },
    /// An event of the controller that runs on this host.
    Control(ControllerEvent),
}

/// The progress of a session that this host receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The session.
    pub session: Session,
    /// Bytes of the stream that are in order.
    pub bytes: u64,
    /// Bytes of file content so far, and of all files begun so far, where that is known.
    pub content: (u64, Option<u64>),
}

/// The state of a session that this host sends.
#[derive(Clone, Debug)]
pub struct SendView {
    /// Bytes of the stream so far, and whether that is all of it.
    pub length: (u64, bool),
    /// Bytes of file content in it.
    pub content: u64,
    /// The receivers.
    pub receivers: Vec<ReceiverProgress>,
    /// The sender's counters.
    pub summary: SenderSummary,
    /// How many copies of each packet leave by this host's link.
    pub copies: usize,
}

/// The progress of a receiver of a session that this host sends.
#[derive(Clone, Copy, Debug)]
pub struct ReceiverProgress {
    /// Its host number.
    pub host: HostId,
    /// Its address.
    pub address: SocketAddr,
    /// It has all bytes below this offset.
    pub have: u64,
    /// The offset at which it joined.
    pub from: u64,
    /// Its state in the session.
    pub status: ReceiverStatus,
    /// The rate at which it receives.
    pub bits_per_second: u64,
    /// Bytes that were sent again because it lacked them.
    pub repairs: u64,
    /// Why it was detached the last time; `None` if it never was.
    pub slow_reason: Option<SlowReason>,
    /// The seconds from the opening of the session until it was complete.
    pub seconds: Option<f64>,
}

/// The counters of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Datagrams received.
    pub received: u64,
    /// Datagrams ignored because their sender is not admitted.
    pub foreign: u64,
    /// Datagrams that are not packets, are damaged, or have the wrong key.
    pub malformed: u64,
    /// Those of them that have a key where none is expected, or none where one is.
    pub key_mismatch: u64,
    /// Datagrams passed to the kernel.
    pub sent: u64,
    /// Bytes of packets sent, IP and UDP headers included.
    pub sent_bytes: u64,
    /// Datagrams that the kernel refused.
    pub refused: u64,
    /// Packets dropped because the address of their receiver is not known.
    pub unroutable: u64,
    /// Packets that were computed from parity instead of being received.
    pub recovered: u64,
    /// System calls that sent datagrams.
    pub send_calls: u64,
    /// Trains of datagrams that those calls passed to the kernel.
    pub trains: u64,
}
