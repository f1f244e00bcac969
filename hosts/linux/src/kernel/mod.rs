//! Messages and streams over the kernel's TCP: the baseline of the other transports, and an alternative to them.
//!
//! [`TcpEndpoint`] has the calls and events of [`crate::Endpoint`]:
//!
//! - A message is sent over an idle connection to its peer, else over a new one, else (if there are
//!   [`TcpConfig::connections_per_peer`]) over the one with the fewest bytes to be written, as in the simulator's TCP. A
//!   response is sent over its request's connection. A stream uses a connection exclusively.
//! - A response confirms its request. Other messages, and the ends of a stream, are confirmed by a frame, which is sent
//!   with the next write or 200 µs later and causes [`Event::Sent`]. The memory of outgoing data is freed when the kernel
//!   has accepted them; at most [`TcpConfig::write_ahead`] and one write of 256 KiB wait in the kernel beyond what it may
//!   send. [`Event::Written`] reports the same for streams.
//! - A message is read into its buffer directly, once there is memory for all of it; until then its
//!   connection is not read. A stream's connection is not read while more than
//!   [`TcpConfig::stream_window`] bytes of it wait to be consumed.
//! - If a connection is lost, everything in progress on it fails: with [`FailReason::PeerForgot`] if the peer has answered
//!   on it, else with [`FailReason::PeerSilent`]. Only messages without a written byte are sent over another one. A
//!   peer that vanishes is detected after [`TcpConfig::silence`]; one that hangs is detected by deadlines only.
//!
//! Peers are identified by their address and the port in their HELLO: TCP's handshake proves the former; the latter is not
//! verified. Nothing is encrypted or signed.

mod config;
mod connection;
mod decoder;
mod drive;
mod framing;
mod inputs;
mod peers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::Bytes;
use rackweave_core::{FailReason, HostId, Kind, MessageId, Refused, Time};
use rustc_hash::FxHashMap;
use rustix::event::epoll;
use socket2::Socket;

pub use self::config::{TcpConfig, TcpError};
use self::connection::{Connection, Owner};
use self::framing::{Frame, MAX_DATA_BYTES};
use self::peers::PeerTable;
use crate::endpoint::{Event, Ids, Peers, SendError, Stats, first_id};
use crate::{Clock, wait};

/// The counters of an endpoint's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// Connections made to peers.
    pub made: u64,
    /// Connections accepted from peers.
    pub accepted: u64,
    /// Connections closed because their address is not a peer's, or to make room for another one.
    pub refused: u64,
    /// Connections that ended while messages or streams were in progress on them.
    pub lost: u64,
    /// Connections that exist at present.
    pub open: u64,
}

/// One end of a stream.
#[derive(Debug)]
struct Stream {
    token: u64,
    /// Whether this host has opened it.
    client: bool,
    deadline: Time,
    /// Whether the end of the outgoing direction is written, and whether the peer has confirmed it.
    ended: bool,
    confirmed: bool,
    /// Whether the incoming direction has ended.
    end_received: bool,
    /// Bytes that the kernel has not accepted.
    unwritten: u64,
    /// Bytes that were delivered and not consumed.
    unconsumed: u64,
}

/// Messages and streams over the kernel's TCP. Only [`TcpEndpoint::wait`] blocks, and nothing happens in the background:
/// call [`TcpEndpoint::turn`] when its descriptor is readable, at the time that it returned, and after sending something;
/// then drain [`TcpEndpoint::poll_event`]. See the [module](self).
#[derive(Debug)]
pub struct TcpEndpoint {
    config: TcpConfig,
    epoll: OwnedFd,
    listener: Socket,
    /// The system had no descriptor for a connection; accepting resumes at the next check.
    accept_paused: bool,
    address: SocketAddr,
    incarnation: u64,
    peers: PeerTable,
    connections: BTreeMap<u64, Box<Connection>>,
    next_token: u64,
    ids: Ids,
    /// Outgoing messages that are not confirmed (requests: not answered), and their connections.
    outgoing: FxHashMap<(HostId, MessageId), (u64, Kind)>,
    /// Received requests that are not answered, and their connections.
    serving: FxHashMap<(HostId, MessageId), u64>,
    streams: FxHashMap<(HostId, MessageId), Stream>,
    deadlines: BTreeSet<(Time, HostId, MessageId)>,
    events: VecDeque<Event>,
    /// Connections that have frames to write, or may be read again.
    dirty: BTreeSet<u64>,
    /// Whether the last turn may have left connections that are ready.
    left: bool,
    /// Connections whose next message waits for memory.
    starved: BTreeSet<u64>,
    /// Connections with messages to confirm, and the time at which that is due.
    confirming: BTreeSet<u64>,
    confirm_at: Option<Time>,
    next_check: Option<Time>,
    /// Bytes of messages and streams that the kernel has not accepted.
    queued: u64,
    /// The memory of incoming messages, and bytes of streams that are not consumed.
    arriving: u64,
    unconsumed: u64,
    scratch: Vec<u8>,
    stats: Stats,
    counts: Connections,
}

/// The token of the listener.
const LISTENER: u64 = 0;

impl TcpEndpoint {
    /// Creates the listening socket.
    ///
    /// # Errors
    /// If the address is in use or not local, or the kernel lacks the congestion control.
    pub fn new(config: TcpConfig) -> Result<Self, TcpError> {
        let Peers::Direct { hosts, allow } = &config.peers else { return Err(TcpError::Switch) };
        let peers = PeerTable::new(hosts, allow.clone());
        let (listener, address) = drive::listen(&config)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)
            .map_err(io::Error::from)?;
        Ok(Self {
            epoll,
            listener,
            accept_paused: false,
            address,
            incarnation: first_id(),
            peers,
            connections: BTreeMap::new(),
            next_token: LISTENER,
            ids: Ids::new(),
            outgoing: FxHashMap::default(),
            serving: FxHashMap::default(),
            streams: FxHashMap::default(),
            deadlines: BTreeSet::new(),
            events: VecDeque::new(),
            dirty: BTreeSet::new(),
            left: false,
            starved: BTreeSet::new(),
            confirming: BTreeSet::new(),
            confirm_at: None,
            next_check: None,
            queued: 0,
            arriving: 0,
            unconsumed: 0,
            scratch: vec![0; drive::SCRATCH_BYTES],
            stats: Stats::default(),
            counts: Connections::default(),
            config,
        })
    }

    /// The address at which it listens.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The number of this host.
    #[must_use]
    pub const fn host(&self) -> HostId {
        self.config.host
    }

    /// The clock of all its times.
    #[must_use]
    pub const fn clock(&self) -> Clock {
        self.config.clock
    }

    /// The counters since the endpoint was created. Frames are counted instead of datagrams, and a dropped one has closed
    /// its connection. `no_room` counts how often a message had to wait for memory.
    #[must_use]
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    /// The messages that have arrived partly, each with the number of its bytes that have arrived.
    #[must_use]
    pub fn arriving(&self) -> Vec<(HostId, MessageId, u64)> {
        let arriving = self.connections.values().filter_map(|connection| {
            let (id, bytes) = connection.decoder.arriving()?;
            Some((connection.peer?, id, bytes))
        });
        arriving.collect()
    }

    /// The counters of its connections.
    #[must_use]
    pub fn connections(&self) -> Connections {
        Connections { open: self.connections.len() as u64, ..self.counts }
    }

    /// Bytes buffered for sending, and for receiving or until they are consumed.
    #[must_use]
    pub const fn memory(&self) -> (u64, u64) {
        (self.queued, self.arriving + self.unconsumed)
    }

    /// The number of the peer at an address, which is added if it is not known.
    pub fn add_peer(&mut self, address: SocketAddr) -> HostId {
        self.peers.add(address)
    }

    /// The address at which a peer listens.
    #[must_use]
    pub fn peer_addr(&self, peer: HostId) -> Option<SocketAddr> {
        self.peers.get(peer).map(|peer| peer.address)
    }

    fn check(&self, peer: HostId, bytes: usize) -> Result<(), SendError> {
        if self.peers.get(peer).is_none() {
            return Err(SendError::UnknownPeer(peer));
        }
        let waiting = self.queued;
        // If nothing else waits, a message of any length is accepted.
        if waiting > 0 && waiting.saturating_add(bytes as u64) > self.config.send_bytes {
            return Err(SendError::Full { waiting });
        }
        Ok(())
    }

    fn check_message(&self, peer: HostId, bytes: usize) -> Result<(), SendError> {
        let max = self.config.max_message_bytes;
        if bytes == 0 {
            return Err(Refused::Empty.into());
        }
        if bytes as u64 > max {
            return Err(Refused::TooLong { max }.into());
        }
        self.check(peer, bytes)
    }

    const fn new_id(&mut self) -> MessageId {
        self.ids.next()
    }

    /// Sends a request, or a one-way message.
    ///
    /// # Errors
    /// See [`SendError`]; the call had no effect then.
    pub fn send(&mut self, peer: HostId, kind: Kind, bytes: Bytes) -> Result<MessageId, SendError> {
        self.check_message(peer, bytes.len())?;
        if kind == Kind::Response {
            return Err(Refused::WrongId.into());
        }
        if self.outgoing.len() >= MAX_UNDER_WAY {
            return Err(Refused::Busy.into());
        }
        let id = self.new_id();
        self.dispatch(peer, id, kind, bytes);
        Ok(id)
    }

    /// Queues a message on a connection; if there is none, the message fails with an event.
    fn dispatch(&mut self, peer: HostId, id: MessageId, kind: Kind, bytes: Bytes) {
        match self.connection_for_message(peer) {
            Some(token) => self.put(token, peer, id, kind, bytes),
            None => {
                let reason = FailReason::PeerSilent;
                self.events.push_back(Event::Failed { peer, id, reason });
            }
        }
    }

    fn put(&mut self, token: u64, peer: HostId, id: MessageId, kind: Kind, bytes: Bytes) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        self.queued += bytes.len() as u64;
        let frame = Frame::Message { kind, id, bytes: bytes.len() as u64 };
        connection.push(Owner::Message(id, kind), frame, bytes);
        connection.exchanges.insert(id);
        self.outgoing.insert((peer, id), (token, kind));
        self.dirty.insert(token);
    }

    /// Answers a request.
    ///
    /// # Errors
    /// See [`SendError`]; the call had no effect then.
    pub fn respond(
        &mut self,
        peer: HostId,
        request: MessageId,
        bytes: Bytes,
    ) -> Result<(), SendError> {
        self.check_message(peer, bytes.len())?;
        let Some(token) = self.serving.remove(&(peer, request)) else {
            return Err(Refused::UnknownRequest.into());
        };
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.exchanges.remove(&request);
        }
        self.put(token, peer, request.response(), Kind::Response, bytes);
        Ok(())
    }

    /// Cancels a message or stream; no event follows.
    pub fn cancel(&mut self, peer: HostId, id: MessageId) {
        let request = MessageId(id.0 & !1);
        if self.end_stream(peer, request, FailReason::Cancelled) {
            return;
        }
        for id in [request, request.response()] {
            if let Some((token, kind)) = self.outgoing.remove(&(peer, id)) {
                self.withdraw_message(token, id, kind);
            }
        }
        if let Some(token) = self.serving.remove(&(peer, request))
            && let Some(connection) = self.connections.get_mut(&token)
        {
            connection.exchanges.remove(&request);
            connection.control(Frame::Cancel { id: request, reason: FailReason::Cancelled });
            self.dirty.insert(token);
        }
    }

    /// Removes a message from its connection, as far as it is not written.
    fn withdraw_message(&mut self, token: u64, id: MessageId, kind: Kind) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let of = Owner::Message(id, kind);
        connection.exchanges.remove(&id);
        let waiting = connection.withdraw(|other| other == of);
        self.queued -= waiting.iter().map(|waiting| waiting.body.len() as u64).sum::<u64>();
        if !waiting.is_empty() && !id.is_response() {
            // The peer does not know of it.
            return;
        }
        if connection.exchanges.is_empty() && connection.writes_only(of) {
            // Nothing else uses the connection: closing it avoids writing the rest of the message.
            self.drop_connection(token);
            return;
        }
        let request = MessageId(id.0 & !1);
        connection.control(Frame::Cancel { id: request, reason: FailReason::Cancelled });
        self.dirty.insert(token);
    }

    /// Opens a stream; a deadline of [`Time::MAX`] means none.
    ///
    /// # Errors
    /// See [`SendError`]; the call had no effect then.
    pub fn open(&mut self, peer: HostId, deadline: Time) -> Result<MessageId, SendError> {
        self.check(peer, 0)?;
        let most = self.config.streams_per_peer;
        if self.peers.get(peer).is_some_and(|peer| peer.streams.0 >= most) {
            return Err(Refused::Busy.into());
        }
        let id = self.new_id();
        let Some(token) = self.connection_for_stream(peer) else {
            self.events.push_back(Event::Failed { peer, id, reason: FailReason::PeerSilent });
            return Ok(id);
        };
        let left = deadline.since(self.config.clock.now());
        let left_ns = (deadline != Time::MAX).then_some(left.as_ns());
        if let Some(connection) = self.connections.get_mut(&token) {
            for id in std::mem::take(&mut connection.confirm) {
                connection.control(Frame::Received { id });
            }
            connection.control(Frame::Open { id, left_ns });
        }
        self.begin_stream(token, peer, id, true, deadline);
        self.dirty.insert(token);
        Ok(id)
    }

    /// Writes to the direction `id` of a stream: the stream's own id at its client, the response's at its
    /// server. `end` ends the direction.
    ///
    /// # Errors
    /// See [`SendError`]; the call had no effect then.
    pub fn write(
        &mut self,
        peer: HostId,
        id: MessageId,
        mut bytes: Bytes,
        end: bool,
    ) -> Result<(), SendError> {
        self.check(peer, bytes.len())?;
        let key = (peer, MessageId(id.0 & !1));
        let Some(stream) = self.streams.get_mut(&key) else { return Err(Refused::Ended.into()) };
        let Some(connection) = self.connections.get_mut(&stream.token) else {
            return Err(Refused::Ended.into());
        };
        if stream.ended || stream.client == id.is_response() {
            return Err(Refused::Ended.into());
        }
        stream.ended = end;
        stream.unwritten += bytes.len() as u64;
        self.queued += bytes.len() as u64;
        while !bytes.is_empty() || end {
            let piece = bytes.split_to(bytes.len().min(MAX_DATA_BYTES));
            let last = bytes.is_empty();
            let frame = Frame::Data { id, bytes: piece.len() as u32, end: end && last };
            connection.push(Owner::Stream(key.1), frame, piece);
            if last {
                break;
            }
        }
        self.dirty.insert(stream.token);
        Ok(())
    }

    /// The number of bytes of a direction that are written and that the kernel has not accepted.
    #[must_use]
    pub fn unacknowledged(&self, peer: HostId, id: MessageId) -> u64 {
        let stream = self.streams.get(&(peer, MessageId(id.0 & !1)));
        stream
            .filter(|stream| stream.client != id.is_response())
            .map_or(0, |stream| stream.unwritten)
    }

    /// Reports that the application has consumed bytes of a stream's direction, which makes room for as many more.
    pub fn consume(&mut self, peer: HostId, id: MessageId, bytes: u64) {
        let Some(stream) = self.streams.get_mut(&(peer, MessageId(id.0 & !1))) else { return };
        if stream.client != id.is_response() {
            return;
        }
        let bytes = bytes.min(stream.unconsumed);
        let full = stream.unconsumed >= self.config.stream_window;
        stream.unconsumed -= bytes;
        self.unconsumed -= bytes;
        if full && stream.unconsumed < self.config.stream_window {
            self.dirty.insert(stream.token);
        }
    }

    /// The next event for the application.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Always false: its descriptor is also readable when a connection can be written. It exists so that both kinds of
    /// endpoints are driven in the same way.
    #[must_use]
    pub const fn is_blocked(&self) -> bool {
        false
    }

    /// Waits until a connection is ready, or until a time.
    ///
    /// # Errors
    /// If the system refuses to wait.
    pub fn wait(&mut self, until: Option<Time>) -> io::Result<()> {
        if !self.events.is_empty() {
            return Ok(());
        }
        wait::until(self.config.clock, &[(self.epoll.as_fd(), false)], until, self.config.busy_poll)
    }

    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub(crate) const fn busy_poll(&self) -> rackweave_core::Span {
        self.config.busy_poll
    }
}

/// The most unconfirmed messages of this host at a time.
const MAX_UNDER_WAY: usize = 1 << 20;

impl AsFd for TcpEndpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
