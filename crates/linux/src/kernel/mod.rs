//! Messages and streams over the kernel's TCP: what the transports of this project are compared with, and what
//! takes their place where there is nothing to gain.
//!
//! [`TcpEndpoint`] has the calls and events of [`crate::Endpoint`]:
//!
//! - A message goes over an idle connection to its peer, else over a new one, else (from
//!   [`TcpConfig::connections_per_peer`] on) over the one with the fewest bytes to go, as in the simulator's TCP. A
//!   response goes over its request's connection. A stream has a connection for itself while it lives.
//! - A response says that its request has arrived. Other messages, and a stream's ends, are confirmed by a frame,
//!   which goes with the next write or 200 µs later: that is [`Event::Sent`]. The memory of what is sent is free
//!   as soon as the kernel has taken it; at most [`TcpConfig::write_ahead`] and one write of 256 KiB wait in the
//!   kernel beyond what it may send. [`Event::Written`] tells the same of streams.
//! - A message that arrives is read into its place directly, once there is memory for all of it; until then its
//!   connection is not read. A stream's connection is not read while more than
//!   [`TcpConfig::stream_window`] bytes of it wait to be consumed.
//! - If a connection is lost, all that it carried fails: [`FailReason::PeerForgot`] if the peer had answered on it,
//!   else [`FailReason::PeerSilent`]. Only messages of which no byte was written go over another one. A peer
//!   that vanishes is noticed after [`TcpConfig::silence`]; one that hangs is a matter of deadlines.
//!
//! Peers are known by their address and the port that they say they listen at: TCP's handshake proves the former, and
//! the latter is believed. Nothing is encrypted or signed.

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
use self::connection::{Connection, Of};
use self::framing::{Frame, MAX_DATA_BYTES};
use self::peers::PeerTable;
use crate::endpoint::{Event, Ids, Peers, SendError, Stats, first_id};
use crate::{Clock, wait};

/// What an endpoint has counted of its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// Made to peers.
    pub made: u64,
    /// Made by others.
    pub accepted: u64,
    /// Closed at once: from an address that is not a peer's, or too many.
    pub refused: u64,
    /// Ended while something was under way on them.
    pub lost: u64,
    /// That are there now.
    pub open: u64,
}

/// One end of a stream.
#[derive(Debug)]
struct Stream {
    token: u64,
    /// This host has opened it.
    client: bool,
    deadline: Time,
    /// Our direction: its end is written, and the peer has it.
    ended: bool,
    confirmed: bool,
    /// The end of the other direction has been told.
    heard_end: bool,
    /// Bytes that the kernel has not taken.
    unwritten: u64,
    /// Bytes that were told and not consumed.
    unconsumed: u64,
}

/// Messages and streams over the kernel's TCP. Nothing blocks but [`TcpEndpoint::wait`], and nothing happens by
/// itself: call [`TcpEndpoint::turn`] when its descriptor is readable, when the time has come that it returned, and
/// after sending something; then take what [`TcpEndpoint::poll_event`] has. See the [module](self).
#[derive(Debug)]
pub struct TcpEndpoint {
    config: TcpConfig,
    epoll: OwnedFd,
    listener: Socket,
    /// The system had no descriptor for a connection; look again at the next check.
    deaf: bool,
    address: SocketAddr,
    incarnation: u64,
    peers: PeerTable,
    connections: BTreeMap<u64, Box<Connection>>,
    next_token: u64,
    ids: Ids,
    /// What this host sends and has not been confirmed (a request: answered), and its connection.
    outgoing: FxHashMap<(HostId, MessageId), (u64, Kind)>,
    /// Requests that are to be answered, and their connections.
    serving: FxHashMap<(HostId, MessageId), u64>,
    streams: FxHashMap<(HostId, MessageId), Stream>,
    deadlines: BTreeSet<(Time, HostId, MessageId)>,
    events: VecDeque<Event>,
    /// Connections that have something to write, or may be read again.
    dirty: BTreeSet<u64>,
    /// Connections with a message for which there was no memory.
    starved: BTreeSet<u64>,
    /// Connections with something to confirm, and when that is due at the latest.
    confirming: BTreeSet<u64>,
    confirm_at: Option<Time>,
    next_check: Option<Time>,
    /// Bytes of messages and streams that the kernel has not taken.
    queued: u64,
    /// Bytes that messages in the making hold, and bytes of streams that are not consumed.
    arriving: u64,
    unconsumed: u64,
    scratch: Vec<u8>,
    stats: Stats,
    counts: Connections,
}

/// The token of the listener.
const LISTENER: u64 = 0;

impl TcpEndpoint {
    /// Listens.
    ///
    /// # Errors
    /// If the address can't be had, or the kernel lacks the congestion control.
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
            deaf: false,
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

    /// Where it listens.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// This host's number.
    #[must_use]
    pub const fn host(&self) -> HostId {
        self.config.host
    }

    /// The clock that all its times are of.
    #[must_use]
    pub const fn clock(&self) -> Clock {
        self.config.clock
    }

    /// What it has counted; where datagrams are meant, frames are counted here, and dropped ones have cost their
    /// connection. `no_room` counts how often a message had to wait for memory.
    #[must_use]
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    /// The messages that have arrived in part, each with the bytes of it that are here.
    #[must_use]
    pub fn arriving(&self) -> Vec<(HostId, MessageId, u64)> {
        let arriving = self.connections.values().filter_map(|connection| {
            let (id, bytes) = connection.decoder.arriving()?;
            Some((connection.peer?, id, bytes))
        });
        arriving.collect()
    }

    /// What it has counted of its connections.
    #[must_use]
    pub fn connections(&self) -> Connections {
        Connections { open: self.connections.len() as u64, ..self.counts }
    }

    /// Bytes kept for what is sent, and for what arrives or waits to be consumed.
    #[must_use]
    pub const fn memory(&self) -> (u64, u64) {
        (self.queued, self.arriving + self.unconsumed)
    }

    /// The number of the peer at an address, which may be a new one.
    pub fn add_peer(&mut self, address: SocketAddr) -> HostId {
        self.peers.add(address)
    }

    /// Where a peer listens.
    #[must_use]
    pub fn peer_addr(&self, peer: HostId) -> Option<SocketAddr> {
        self.peers.get(peer).map(|peer| peer.address)
    }

    fn check(&self, peer: HostId, bytes: usize) -> Result<(), SendError> {
        if self.peers.get(peer).is_none() {
            return Err(SendError::UnknownPeer(peer));
        }
        let waiting = self.queued;
        // Whatever its length, one message at a time always goes.
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
    /// See [`SendError`]; nothing has changed then.
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

    /// Puts a message onto a connection; if there is none to be had, that is told as an event.
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
        connection.push(Of::Message(id, kind), frame, bytes);
        connection.exchanges.insert(id);
        self.outgoing.insert((peer, id), (token, kind));
        self.dirty.insert(token);
    }

    /// Answers a request.
    ///
    /// # Errors
    /// See [`SendError`]; nothing has changed then.
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

    /// Gives a message or stream up; no event follows.
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

    /// Takes a message off its connection, as far as that is possible.
    fn withdraw_message(&mut self, token: u64, id: MessageId, kind: Kind) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let of = Of::Message(id, kind);
        connection.exchanges.remove(&id);
        let waiting = connection.withdraw(|other| other == of);
        self.queued -= waiting.iter().map(|waiting| waiting.body.len() as u64).sum::<u64>();
        if !waiting.is_empty() && !id.is_response() {
            // The peer has never heard of it.
            return;
        }
        if connection.exchanges.is_empty() && connection.writes_only(of) {
            // Nobody wants the rest of it: it ends with its connection.
            self.drop_connection(token);
            return;
        }
        let request = MessageId(id.0 & !1);
        connection.control(Frame::Cancel { id: request, reason: FailReason::Cancelled });
        self.dirty.insert(token);
    }

    /// Opens a stream. [`Time::MAX`]: no deadline.
    ///
    /// # Errors
    /// See [`SendError`]; nothing has changed then.
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
        let left_ns = (deadline != Time::MAX).then_some(left.0 / 1000);
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
    /// server. With `end`, nothing follows.
    ///
    /// # Errors
    /// See [`SendError`]; nothing has changed then.
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
            connection.push(Of::Stream(key.1), frame, piece);
            if last {
                break;
            }
        }
        self.dirty.insert(stream.token);
        Ok(())
    }

    /// Bytes of a direction that are written and that the kernel has not taken.
    #[must_use]
    pub fn unacknowledged(&self, peer: HostId, id: MessageId) -> u64 {
        let stream = self.streams.get(&(peer, MessageId(id.0 & !1)));
        stream
            .filter(|stream| stream.client != id.is_response())
            .map_or(0, |stream| stream.unwritten)
    }

    /// The application has taken so many bytes of a stream's direction: there is room for as many more.
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

    /// The next thing for the application to know.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// `false`, always: its descriptor is readable also when there is something to be written. It is there so
    /// that both kinds of endpoints are driven alike.
    #[must_use]
    pub const fn is_blocked(&self) -> bool {
        false
    }

    /// Waits until there is something to do, or until a time.
    ///
    /// # Errors
    /// What the system says.
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

/// Messages of this host that are under way at a time.
const MAX_UNDER_WAY: usize = 1 << 20;

impl AsFd for TcpEndpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
