//! The events, progress reports and counters of an engine, and the errors of creating one.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use rackweave_core::HostId;
use rackweave_orca::controller::ControllerEvent;
use rackweave_orca::flow::{ReceiverStatus, SenderEvent, SenderSummary, SlowReason};
use rackweave_wire::orca::{Reason, Session};

use crate::format::Findings;
use crate::sink::{Caveats, Comparison, FileDone, SinkError};
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
    /// The secret is too short.
    #[error(transparent)]
    Key(rackweave_crypt::ShortSecret),
    /// The system refuses something else that the engine needs.
    #[error("cannot set up the engine: {0}")]
    System(io::Error),
}

/// What an engine reports to its application.
#[derive(Debug)]
pub enum EngineEvent {
    /// An event of a session that this host sends, as [`Host`](rackweave_orca::host::Host) reports it. The end of a session is
    /// reported by [`EngineEvent::Sent`] or [`EngineEvent::Renewed`] instead.
    Sender(Session, SenderEvent),
    /// A session that this host sent has ended.
    Sent {
        /// The session that has ended.
        session: Session,
        /// The state of the session at its end.
        view: SendView,
        /// The error of the source, if that ended the session early.
        error: Option<SourceError>,
    },
    /// A session has ended, and another one continues the stream for receivers that fell silent and may return.
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
        /// The session that carries the stream.
        session: Session,
        /// The address of the sender.
        from: SocketAddr,
        /// The offset of the first byte that is needed; above 0 if an interrupted transfer resumes.
        at: u64,
    },
    /// An incoming stream is complete.
    Received {
        /// The session that carried the stream.
        session: Session,
        /// The address of the sender.
        from: SocketAddr,
        /// The number of bytes of the stream that were received.
        bytes: u64,
        /// The files; all are complete.
        files: Vec<FileDone>,
        /// In what they differ from the sender's.
        caveats: Caveats,
    },
    /// A receiver has answered a manifest that this host sends.
    Answered {
        /// The session of the manifest.
        session: Session,
        /// The receiver.
        host: HostId,
        /// What it has found; `None` if it has the manifest and does not answer.
        findings: Option<Findings>,
    },
    /// An incoming manifest was compared with this host's files.
    Compared {
        /// The session that carried it.
        session: Session,
        /// The address of the sender.
        from: SocketAddr,
        /// What was found.
        comparison: Comparison,
    },
    /// An incoming stream has failed.
    ReceiveFailed {
        /// The session that carried the stream.
        session: Session,
        /// The address of the sender.
        from: SocketAddr,
        /// The reason that is reported to the sender.
        reason: Reason,
        /// The error of the sink; `None` if this host is not the cause.
        error: Option<SinkError>,
        /// The number of bytes of the stream that have arrived in this session.
        bytes: u64,
    },
    /// An event of the controller that runs on this host.
    Control(ControllerEvent),
}

/// Describes to a receiver's user why a stream was not received to its end, if its own sink is not the cause.
#[must_use]
pub const fn why_receiving_failed(reason: Reason) -> &'static str {
    match reason {
        Reason::Silent => {
            "the sender stopped responding; partial files are kept, and the same `cast send` resumes from there"
        }
        Reason::Left => "the sender ended the transfer; partial files are kept for the next one",
        Reason::Damaged => "the data received is not the data sent",
        Reason::TooLate => "the sender no longer has the bytes that are missing here",
        Reason::Refused => "the sender could not read its files",
        _ => "the sender no longer knows this receiver",
    }
}

/// The progress of a session that this host receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The session that carries the stream.
    pub session: Session,
    /// The number of bytes of the stream that have arrived in order.
    pub bytes: u64,
    /// The bytes of file content so far, and the total length of all files begun so far, if it is known.
    pub content: (u64, Option<u64>),
}

/// The state of a session that this host sends.
#[derive(Clone, Debug)]
pub struct SendView {
    /// The length of the stream so far, and whether that is all of it.
    pub length: (u64, bool),
    /// The number of bytes of file content in it.
    pub content: u64,
    /// The size in bytes of a full IP packet.
    pub packet: u32,
    /// The progress of each receiver that was named, and of others that have joined.
    pub receivers: Vec<ReceiverProgress>,
    /// The counters of the sender's flow.
    pub summary: SenderSummary,
    /// How many copies of each packet leave through this host's link.
    pub copies: usize,
}

/// The progress of a receiver of a session that this host sends.
#[derive(Clone, Copy, Debug)]
pub struct ReceiverProgress {
    /// The number of the host.
    pub host: HostId,
    /// The address of the host.
    pub address: SocketAddr,
    /// The offset below which it has all bytes.
    pub have: u64,
    /// The length of its stream so far.
    pub of: u64,
    /// The offset at which it joined.
    pub from: u64,
    /// Its state within the session.
    pub status: ReceiverStatus,
    /// The rate at which it receives.
    pub bits_per_second: u64,
    /// The number of bytes that were retransmitted for it.
    pub repairs: u64,
    /// The reason for which it was last detached; `None` if it never was.
    pub slow_reason: Option<SlowReason>,
    /// Whether packets to the multicast group reach it; `None` if that is not known.
    pub multicast: Option<bool>,
    /// Whether labels were to reach it and never did: it got copies of its own.
    pub unlabelled: bool,
    /// The size in bytes of the largest IP packets that were found to reach it, if full ones do not.
    pub mtu: Option<u32>,
    /// The seconds from the opening of the session until this receiver was complete; `None` before that.
    pub seconds: Option<f64>,
    /// The bytes of file content that it had before, if it has answered the manifest.
    pub there: Option<u64>,
}

impl ReceiverProgress {
    /// A receiver that has got nothing.
    #[must_use]
    pub fn new(host: HostId, address: Option<SocketAddr>, status: ReceiverStatus) -> Self {
        let unknown = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        Self {
            host,
            address: address.unwrap_or(unknown),
            have: 0,
            of: 0,
            from: 0,
            status,
            bits_per_second: 0,
            repairs: 0,
            slow_reason: None,
            multicast: None,
            unlabelled: false,
            mtu: None,
            seconds: None,
            there: None,
        }
    }
}

/// The counters of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Datagrams received, ignored ones included.
    pub received: u64,
    /// Datagrams ignored because their sender is not admitted.
    pub foreign: u64,
    /// Datagrams that are not packets, are damaged, or have the wrong key.
    pub malformed: u64,
    /// Sealed packets that were received before, or are too late to tell.
    pub replayed: u64,
    /// Data packets that were dropped because they were forged, replayed, or of a session without a key here.
    pub unopened: u64,
    /// Sessions in which data was found that had the session's key and was not the sender's: another receiver has made it.
    pub forged: u64,
    /// Invitations from addresses that had proved nothing, which were answered with a cookie.
    pub challenged: u64,
    /// Packets and notices that show that a peer has another key, or one although this host has none, or the reverse.
    pub key_mismatch: u64,
    /// Datagrams passed to the kernel.
    pub sent: u64,
    /// Bytes of the packets sent, including IP and UDP headers.
    pub sent_bytes: u64,
    /// Datagrams that the kernel refused.
    pub refused: u64,
    /// Packets dropped because the address of their receiver is unknown.
    pub unroutable: u64,
    /// Packets that were reconstructed from parity instead of being received.
    pub recovered: u64,
    /// System calls that sent datagrams.
    pub send_calls: u64,
    /// Trains of datagrams that those calls passed to the kernel.
    pub trains: u64,
}
