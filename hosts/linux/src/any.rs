//! An endpoint over UDP or over the kernel's TCP, chosen at run time.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use bytes::Bytes;
use rackweave_core::{HostId, Kind, MessageId, Span, Time};
use smallvec::SmallVec;

use crate::endpoint::{Endpoint, Event, SendError, Stats, TicketStore};
use crate::kernel::TcpEndpoint;
use crate::{Clock, wait};

/// A transport of this project over UDP, or the kernel's TCP. Both have the same methods and events.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there are few of them, and they do not move")]
pub enum AnyEndpoint {
    /// A transport of this project.
    Udp(Endpoint),
    /// The kernel's TCP.
    Kernel(TcpEndpoint),
}

impl From<Endpoint> for AnyEndpoint {
    fn from(endpoint: Endpoint) -> Self {
        Self::Udp(endpoint)
    }
}

impl From<TcpEndpoint> for AnyEndpoint {
    fn from(endpoint: TcpEndpoint) -> Self {
        Self::Kernel(endpoint)
    }
}

/// Calls the same method of whichever endpoint this is.
macro_rules! delegate {
    ($this:expr, $endpoint:ident => $call:expr) => {
        match $this {
            Self::Udp($endpoint) => $call,
            Self::Kernel($endpoint) => $call,
        }
    };
}

impl AnyEndpoint {
    /// Returns the address of its socket; see [`Endpoint::local_addr`].
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        delegate!(self, endpoint => endpoint.local_addr())
    }

    /// Returns the time of the last call that has changed something, without reading the clock where that was read. Times that
    /// this method returns never decrease.
    #[must_use]
    pub fn last_now(&self) -> Time {
        match self {
            Self::Udp(endpoint) => endpoint.last_now(),
            Self::Kernel(endpoint) => endpoint.clock().now(),
        }
    }

    /// Returns the number of this host; see [`Endpoint::host`].
    #[must_use]
    pub const fn host(&self) -> HostId {
        delegate!(self, endpoint => endpoint.host())
    }

    /// Returns the clock of all its times; see [`Endpoint::clock`].
    #[must_use]
    pub const fn clock(&self) -> Clock {
        delegate!(self, endpoint => endpoint.clock())
    }

    /// Returns its counters; see [`Endpoint::stats`] and [`TcpEndpoint::stats`].
    #[must_use]
    pub fn stats(&self) -> Stats {
        delegate!(self, endpoint => endpoint.stats())
    }

    /// Returns the bytes buffered for sending and for receiving; see [`Endpoint::memory`].
    #[must_use]
    pub const fn memory(&self) -> (u64, u64) {
        delegate!(self, endpoint => endpoint.memory())
    }

    /// Returns the messages that have arrived in part; see [`Endpoint::arriving`] and [`TcpEndpoint::arriving`].
    #[must_use]
    pub fn arriving(&self) -> Vec<(HostId, MessageId, u64)> {
        delegate!(self, endpoint => endpoint.arriving())
    }

    /// Returns the number of the peer at an address; see [`Endpoint::add_peer`].
    pub fn add_peer(&mut self, address: SocketAddr) -> HostId {
        delegate!(self, endpoint => endpoint.add_peer(address))
    }

    /// Returns the address of a peer; see [`Endpoint::peer_addr`].
    #[must_use]
    pub fn peer_addr(&self, peer: HostId) -> Option<SocketAddr> {
        delegate!(self, endpoint => endpoint.peer_addr(peer))
    }

    /// Sends a request or a one-way message; see [`Endpoint::send`].
    ///
    /// # Errors
    /// See [`SendError`]; the call had no effect then.
    pub fn send(&mut self, peer: HostId, kind: Kind, bytes: Bytes) -> Result<MessageId, SendError> {
        delegate!(self, endpoint => endpoint.send(peer, kind, bytes))
    }

    /// Sends an idempotent request or one-way message; see [`Endpoint::send_idempotent`].
    ///
    /// # Errors
    /// See [`SendError`]; the call had no effect then.
    pub fn send_idempotent(
        &mut self,
        peer: HostId,
        kind: Kind,
        bytes: Bytes,
    ) -> Result<MessageId, SendError> {
        match self {
            Self::Udp(endpoint) => endpoint.send_idempotent(peer, kind, bytes),
            Self::Kernel(endpoint) => endpoint.send(peer, kind, bytes),
        }
    }

    /// The tickets of its peers if they have changed since the last call; see [`Endpoint::tickets`].
    pub fn changed_tickets(&mut self) -> Option<&TicketStore> {
        match self {
            Self::Udp(endpoint) => endpoint.tickets_changed().then(|| endpoint.tickets())?,
            Self::Kernel(_) => None,
        }
    }

    /// The tickets of its peers; see [`Endpoint::tickets`].
    #[must_use]
    pub fn tickets(&self) -> Option<&TicketStore> {
        match self {
            Self::Udp(endpoint) => endpoint.tickets(),
            Self::Kernel(_) => None,
        }
    }

    /// Answers a request; see [`Endpoint::respond`].
    ///
    /// # Errors
    /// See [`SendError`]; the call had no effect then.
    pub fn respond(
        &mut self,
        peer: HostId,
        request: MessageId,
        bytes: Bytes,
    ) -> Result<(), SendError> {
        delegate!(self, endpoint => endpoint.respond(peer, request, bytes))
    }

    /// Cancels a message or stream; see [`Endpoint::cancel`].
    pub fn cancel(&mut self, peer: HostId, id: MessageId) {
        delegate!(self, endpoint => endpoint.cancel(peer, id));
    }

    /// Opens a stream; see [`Endpoint::open`].
    ///
    /// # Errors
    /// See [`SendError`]; the call had no effect then.
    pub fn open(&mut self, peer: HostId, deadline: Time) -> Result<MessageId, SendError> {
        delegate!(self, endpoint => endpoint.open(peer, deadline))
    }

    /// Writes to a stream; see [`Endpoint::write`].
    ///
    /// # Errors
    /// See [`SendError`]; the call had no effect then.
    pub fn write(
        &mut self,
        peer: HostId,
        id: MessageId,
        bytes: Bytes,
        end: bool,
    ) -> Result<(), SendError> {
        delegate!(self, endpoint => endpoint.write(peer, id, bytes, end))
    }

    /// Returns how many bytes of a direction are not acknowledged; see [`Endpoint::unacknowledged`] and
    /// [`TcpEndpoint::unacknowledged`].
    #[must_use]
    pub fn unacknowledged(&self, peer: HostId, id: MessageId) -> u64 {
        delegate!(self, endpoint => endpoint.unacknowledged(peer, id))
    }

    /// Reports that bytes of a stream were read; see [`Endpoint::consume`].
    pub fn consume(&mut self, peer: HostId, id: MessageId, bytes: u64) {
        delegate!(self, endpoint => endpoint.consume(peer, id, bytes));
    }

    /// Returns the next event; see [`Endpoint::poll_event`].
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        delegate!(self, endpoint => endpoint.poll_event())
    }

    /// Receives, serves timers and sends; see [`Endpoint::turn`].
    ///
    /// # Errors
    /// If a socket has failed.
    pub fn turn(&mut self) -> io::Result<Option<Time>> {
        delegate!(self, endpoint => endpoint.turn())
    }

    /// Serves timers and sends; see [`Endpoint::send_turn`].
    ///
    /// # Errors
    /// If a socket has failed.
    pub fn send_turn(&mut self) -> io::Result<Option<Time>> {
        delegate!(self, endpoint => endpoint.send_turn())
    }

    /// Returns whether the last turn may have left something to receive that is not notified again; see
    /// [`Endpoint::left_datagrams`].
    #[must_use]
    pub const fn left_to_receive(&self) -> bool {
        match self {
            Self::Udp(endpoint) => endpoint.left_datagrams(),
            Self::Kernel(endpoint) => endpoint.left_events(),
        }
    }

    /// Returns whether the socket's send buffer is full; see [`Endpoint::is_blocked`].
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        delegate!(self, endpoint => endpoint.is_blocked())
    }

    /// Waits until there is something to do; see [`Endpoint::wait`].
    ///
    /// # Errors
    /// If the system refuses to wait.
    pub fn wait(&mut self, until: Option<Time>) -> io::Result<()> {
        delegate!(self, endpoint => endpoint.wait(until))
    }

    fn has_events(&self) -> bool {
        delegate!(self, endpoint => endpoint.has_events())
    }

    const fn busy_poll(&self) -> Span {
        delegate!(self, endpoint => endpoint.busy_poll())
    }
}

impl AsFd for AnyEndpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        delegate!(self, endpoint => endpoint.as_fd())
    }
}

/// Waits until one of several endpoints that share a clock has something to do, or until a time of that clock (the
/// earliest that their turns have returned). Before it sleeps it polls for the longest `busy_poll` of these endpoints.
/// Without endpoints it returns at once.
///
/// # Errors
/// If the system refuses to wait.
pub fn wait_any(endpoints: &mut [AnyEndpoint], until: Option<Time>) -> io::Result<()> {
    let Some(first) = endpoints.first() else { return Ok(()) };
    if endpoints.iter().any(AnyEndpoint::has_events) {
        return Ok(());
    }
    let clock = first.clock();
    let busy = endpoints.iter().map(AnyEndpoint::busy_poll).max().unwrap_or(Span::ZERO);
    let fds: SmallVec<[(BorrowedFd<'_>, bool); 8]> =
        endpoints.iter().map(|endpoint| (endpoint.as_fd(), endpoint.is_blocked())).collect();
    wait::until(clock, &fds, until, busy)
}
