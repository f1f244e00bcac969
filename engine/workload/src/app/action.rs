//! The configuration of an application, the actions that it requests from its driver, and its records.

use rackweave_core::{FailReason, HostId, Kind, MessageId, Span, Time};

use super::DELAY_AFTER_FAILURE;
use super::channel::{ChannelId, Direction, Place};
use super::collector::MessageStart;
use super::message::MessageKey;
use crate::application::{Application, Streaming};
use crate::collective::Collective;
use crate::generator::HostGenerator;
use crate::pattern::{Exchange, Pattern, WorkloadConfig};

/// A stream of messages at one host.
#[derive(Debug)]
pub struct AppStream {
    /// Index of the transport that carries the stream at this host.
    pub instance: u8,
    /// Whether messages get responses.
    pub exchange: Exchange,
    /// How messages travel on channels; `None` if each is submitted by itself.
    pub streaming: Option<Streaming>,
    /// The time that processing a message takes.
    pub application: Application,
    /// Draws the messages that this host starts.
    pub generator: HostGenerator,
    /// The collective whose messages are started instead, and when it begins.
    pub collective: Option<(Collective, Time)>,
    /// Maximum number of messages of an open loop that are in progress at this host. Further ones wait, and start
    /// when others end; their [`MessageStart::at`] remains the time at which they were due. (How many bytes are in
    /// progress is limited by the transport: see [`App::put_back`](super::App::put_back).)
    pub max_outstanding: u64,
    /// Time after which a message that has not ended fails with [`FailReason::Deadline`], from when it was first
    /// passed to the driver to be submitted; `None` if there is no such limit. A message that fails on a channel
    /// fails the channel.
    pub deadline: Option<Span>,
    /// Minimum time from the failure of a message of a closed loop to the start of the next one.
    pub delay_after_failure: Span,
}

impl AppStream {
    /// Creates the share of one host in a workload, without a limit of outstanding messages or a deadline.
    #[must_use]
    pub fn new(config: &WorkloadConfig, instance: u8, generator: HostGenerator) -> Self {
        let collective = match &config.pattern {
            Pattern::Collective(it) => Some((it.clone(), Time::ZERO.saturating_add(config.start))),
            _ => None,
        };
        Self {
            collective,
            instance,
            exchange: config.exchange,
            streaming: config.streaming,
            application: config.application,
            generator,
            max_outstanding: u64::MAX,
            deadline: None,
            delay_after_failure: DELAY_AFTER_FAILURE,
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
    /// Submit a message that this host starts. The driver calls [`App::submitted`](super::App::submitted) with
    /// its id or, if it was refused, [`App::submit_refused`](super::App::submit_refused).
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
        /// The time at which the message was scheduled to start.
        start: Time,
    },
    /// Submit the response to a request. If it is refused, the driver calls
    /// [`App::respond_refused`](super::App::respond_refused).
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
    /// Open a stream of the transport, without a deadline. The driver calls [`App::opened`](super::App::opened)
    /// or [`App::open_refused`](super::App::open_refused).
    Open {
        /// The stream of messages that it carries.
        stream: u16,
        /// The channel that it carries.
        channel: ChannelId,
        /// A key that no message has, for a driver that derives ids from keys.
        key: MessageKey,
        /// Index of the transport.
        instance: u8,
        /// The server of the stream.
        peer: HostId,
    },
    /// The next `bytes` of a direction are a message. Nothing is written yet: the driver records the message,
    /// and notifies the receiver ([`App::announce`](super::App::announce)) by its own means.
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
    /// Write the next bytes of a direction. If they are refused, the driver calls
    /// [`App::write_refused`](super::App::write_refused).
    Write {
        /// The direction that is written.
        direction: Direction,
        /// Number of bytes to write.
        bytes: u64,
    },
    /// Report that the application has consumed bytes of a stream.
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
    /// As `Cancel`; a driver that can also cancels it at the peer's transport.
    CancelAtBothEnds {
        /// Index of the transport.
        instance: u8,
        /// The peer of the message or stream.
        peer: HostId,
        /// The message or stream.
        id: MessageId,
    },
    /// This host has lost a peer's message that its transport had acknowledged. A driver that can fails the
    /// message at the peer; on real hosts, the peer's application would wait for its own timeout.
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
    /// This host, the server of a stream, has given the stream up. A driver that can fails it at the client; on
    /// real hosts the transport notifies the client.
    AbandonStream {
        /// The direction that the client sends.
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
        /// Its start, as in the record of that, so that the records need not be paired to measure a message.
        start: MessageStart,
        /// The message's id in the transport; `None` if it was not submitted by itself.
        id: Option<MessageId>,
        /// The time of its end.
        at: Time,
        /// Its completion or failure.
        end: MessageEnd,
    },
    /// The application of this host has processed a one-way message.
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

/// The outcome of a message at its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub enum MessageEnd {
    /// The message has arrived and, if it is a request, its response too.
    Completed,
    /// The message will not complete.
    Failed(FailReason),
}

/// Facts about a message that its receiver cannot see. Its driver gets them from the sender or from the
/// message's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The stream of messages that it belongs to.
    pub stream: u16,
    /// The message, as the host that started the exchange names it.
    pub key: MessageKey,
    /// The message's position in its channel; `None` unless its channel is one of unary RPCs.
    pub place: Option<Place>,
    /// The number of the message in its collective ([`Outgoing::number`](crate::collective::Outgoing::number)); 0 without one.
    pub number: u64,
}

/// The configuration of an application.
#[derive(Debug)]
pub struct AppConfig {
    /// The host that it runs on.
    pub host: HostId,
    /// The streams of messages of the host. The first is the measured one.
    pub streams: Vec<AppStream>,
    /// How the sender of a one-way message is notified of its arrival.
    pub one_way_end: OneWayEnd,
    /// Whether arriving bytes are checked. The driver then calls
    /// [`App::handle_store`](super::App::handle_store).
    pub verify: bool,
    /// When an earlier process of this host crashed, and when this one started; `None` if there was none.
    /// Messages scheduled in between fail, and those of the earlier process are not started a second time.
    pub restarted: Option<(Time, Time)>,
}
