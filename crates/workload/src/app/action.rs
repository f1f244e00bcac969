//! What an application is made of, what it asks of its driver, and what it records.

use rackweave_core::{FailReason, HostId, Kind, MessageId, Time};

use super::channel::{ChannelId, Direction, Place};
use super::collector::MessageStart;
use super::message::MessageKey;
use crate::application::{Application, Streaming};
use crate::generator::HostGenerator;
use crate::pattern::{Exchange, WorkloadConfig};

/// A stream of messages at one host.
#[derive(Debug)]
pub struct AppStream {
    /// The transport that carries it.
    pub instance: u8,
    /// Whether messages are answered.
    pub exchange: Exchange,
    /// Whether messages travel on channels.
    pub streaming: Option<Streaming>,
    /// What it costs to take messages in.
    pub application: Application,
    /// Draws the messages of this host.
    pub generator: HostGenerator,
}

impl AppStream {
    /// The share of one host in a workload.
    #[must_use]
    pub const fn new(config: &WorkloadConfig, instance: u8, generator: HostGenerator) -> Self {
        Self {
            instance,
            exchange: config.exchange,
            streaming: config.streaming,
            application: config.application,
            generator,
        }
    }
}

/// How the sender of a one-way message is notified of its arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OneWayEnd {
    /// From its transport: [`Event::Sent`](rackweave_core::Event::Sent), or the acknowledgement of a stream's bytes.
    WhenSent,
    /// From its driver, by [`App::received_by_peer`](super::App::received_by_peer).
    WhenReceived,
}

/// An action that the driver takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Submit a message that this host starts. The driver reports its id with [`App::submitted`](super::App::submitted), or
    /// that it was refused with [`App::submit_refused`](super::App::submit_refused).
    Submit {
        /// The message to submit.
        key: MessageKey,
        /// The stream of messages that it belongs to.
        stream: u16,
        /// Index of the transport.
        instance: u8,
        /// The receiving host.
        peer: HostId,
        /// Length of the message.
        bytes: u64,
        /// [`Kind::OneWay`] or [`Kind::Request`].
        kind: Kind,
        /// When it was to start.
        start: Time,
    },
    /// Submit the response to a request; if it is refused, [`App::respond_refused`](super::App::respond_refused) says so.
    Respond {
        /// The stream of messages that it belongs to.
        stream: u16,
        /// Index of the transport.
        instance: u8,
        /// The client that gets the response.
        peer: HostId,
        /// The id of the response.
        id: MessageId,
        /// Length of the response.
        bytes: u64,
    },
    /// Open a stream of the transport, without a deadline; answered by [`App::opened`](super::App::opened) or
    /// [`App::open_refused`](super::App::open_refused).
    Open {
        /// The stream of messages that it carries.
        stream: u16,
        /// The channel that it carries.
        channel: ChannelId,
        /// A key that no message has, for a driver that makes ids of keys.
        key: MessageKey,
        /// Index of the transport.
        instance: u8,
        /// The server of the stream.
        peer: HostId,
    },
    /// The next `bytes` of a direction are a message. Nothing is written yet: the driver notes what the bytes
    /// are, and lets the receiver know ([`App::announce`](super::App::announce)) in its own way.
    Append {
        /// The stream of messages that it belongs to.
        stream: u16,
        /// The direction of the stream that carries it.
        direction: Direction,
        /// The message, as the host that started the exchange names it.
        key: MessageKey,
        /// Length of the message.
        bytes: u64,
    },
    /// Write the next bytes of a direction; if they are refused, [`App::write_refused`](super::App::write_refused) says so.
    Write {
        /// The direction that is written.
        direction: Direction,
        /// Number of bytes to write.
        bytes: u64,
    },
    /// The application has consumed bytes of a stream.
    Consume {
        /// The direction that was read.
        direction: Direction,
        /// Number of bytes consumed.
        bytes: u64,
    },
    /// Cancel a message, or a stream, at this host's transport.
    Cancel {
        /// Index of the transport.
        instance: u8,
        /// The peer of the message or stream.
        peer: HostId,
        /// The message or stream.
        id: MessageId,
    },
    /// The same; and a driver that can cancels it at the peer's transport too.
    CancelAtBothEnds {
        /// Index of the transport.
        instance: u8,
        /// The peer of the message or stream.
        peer: HostId,
        /// The message or stream.
        id: MessageId,
    },
    /// This host has lost a peer's message after its transport had acknowledged it. A driver that can fails it at
    /// the peer; on real hosts, the peer's application would wait for its own timeout.
    Abandon {
        /// Index of the transport.
        instance: u8,
        /// The peer that started it.
        peer: HostId,
        /// The message's id in the transport.
        id: MessageId,
        /// The message, as the peer names it.
        key: MessageKey,
    },
    /// This host, the server of a stream, has given it up. A driver that can fails it at the client;
    /// on real hosts the transport lets it know.
    AbandonStream {
        /// What the client sends.
        direction: Direction,
        /// The reason of the failure.
        reason: FailReason,
    },
}

impl Action {
    pub(super) const fn instance(&self) -> u8 {
        match self {
            Self::Submit { instance, .. }
            | Self::Respond { instance, .. }
            | Self::Open { instance, .. }
            | Self::Cancel { instance, .. }
            | Self::CancelAtBothEnds { instance, .. }
            | Self::Abandon { instance, .. } => *instance,
            Self::Append { direction, .. }
            | Self::Write { direction, .. }
            | Self::Consume { direction, .. }
            | Self::AbandonStream { direction, .. } => direction.instance,
        }
    }
}

/// An event in the life of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// This host has started a message.
    Started {
        /// The key of the message.
        key: MessageKey,
        /// Its stream, hosts, length and start.
        start: MessageStart,
    },
    /// A message of this host has ended.
    Ended {
        /// The key of the message.
        key: MessageKey,
        /// The stream of messages that it belongs to.
        stream: u16,
        /// The receiving host.
        dst: HostId,
        /// Its id in the transport, if it was submitted by itself.
        id: Option<MessageId>,
        /// The time of its end.
        at: Time,
        /// Its completion or failure.
        end: MessageEnd,
    },
    /// The application of this host has taken in a one-way message.
    Received {
        /// The host that sent it.
        peer: HostId,
        /// The message, as its sender names it.
        key: MessageKey,
        /// Its id in the transport, or that of the stream that carried it.
        id: MessageId,
        /// The time at which it was processed.
        at: Time,
    },
}

/// The end of a message, as its sender knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub enum MessageEnd {
    /// It has arrived, and its response too if it is a request.
    Completed,
    /// It will not complete.
    Failed(FailReason),
}

/// Facts about a message that its receiver cannot see: its driver has them, from the sender or from the message's
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The stream of messages that it belongs to.
    pub stream: u16,
    /// The message, as the host that started the exchange names it.
    pub key: MessageKey,
    /// Its place in its channel, if that is one of unary RPCs.
    pub place: Option<Place>,
}

/// The configuration of an application.
#[derive(Debug)]
pub struct AppConfig {
    /// The host that it runs on.
    pub host: HostId,
    /// Its streams of messages; the first is the one that is measured.
    pub streams: Vec<AppStream>,
    /// How one-way messages end.
    pub one_way_end: OneWayEnd,
    /// Whether the bytes of what arrives are checked. The driver then calls [`App::handle_store`](super::App::handle_store).
    pub verify: bool,
    /// The process before this one crashed at the first of these times and this one began at the second: messages
    /// that were to start in between fail, and those of before are not started again.
    pub restarted: Option<(Time, Time)>,
}
