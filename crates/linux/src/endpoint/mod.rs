//! A host's transport over UDP: sockets, timers, pacing and buffers around one machine.

mod announce;
pub mod config;
mod incoming;
mod outgoing;
mod peers;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use bytes::Bytes;
use rackweave_core::{
    FailReason, HostId, Kind, MessageId, Open, Packet, Placement, Refused, RoundTrip, StreamEvent,
    Submit, Time, Transport as _,
};
use rackweave_transport::Machine;
use rackweave_wire::homa::Layout;
use rackweave_wire::{Header, frame, overlay};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smallvec::SmallVec;

pub use self::config::{EndpointConfig, Network, Peers};
use self::incoming::Incoming;
use self::outgoing::Outgoing;
use self::peers::PeerTable;
use crate::clock::{Clock, realtime_ns, realtime_to_monotonic_ns};
use crate::sys::{ReceiveBatch, SendBatch, UdpSocket};

/// Packets that are handed to the kernel together.
const SEND_BATCH: usize = 128;

/// Calls to receive in one turn, before timers and sending get theirs.
const RECEIVE_CALLS: usize = 4;

/// Why there is no endpoint.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The address is taken, or not this machine's.
    #[error("cannot bind UDP socket {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
}

/// Why something was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The transport did not take it.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Not one of the configured peers.
    #[error("host {} is not a known peer", .0.0)]
    UnknownPeer(HostId),
    /// As many bytes as the configuration allows wait already: try again after the next [`Event::Sent`] or
    /// [`Event::Written`].
    #[error("{waiting} bytes wait to be sent, and no more are allowed")]
    Full {
        /// Bytes that wait.
        waiting: u64,
    },
}

/// What the application learns.
#[derive(Clone, Debug)]
pub enum Event {
    /// A message has arrived whole; told once.
    Message {
        /// Who sent it.
        peer: HostId,
        /// Its name: that of the request, of a response with its low bit set.
        id: MessageId,
        /// What it is.
        kind: Kind,
        /// Its bytes.
        bytes: Bytes,
    },
    /// The receiver has the whole message.
    Sent {
        /// Who.
        peer: HostId,
        /// Its name.
        id: MessageId,
    },
    /// A message or stream will not complete.
    Failed {
        /// The other end.
        peer: HostId,
        /// Its name.
        id: MessageId,
        /// Why.
        reason: FailReason,
    },
    /// A client has opened a stream.
    Opened {
        /// The client.
        peer: HostId,
        /// Its name.
        id: MessageId,
    },
    /// The next bytes of a stream. [`Endpoint::consume`] makes room for more.
    Readable {
        /// Who sent them.
        peer: HostId,
        /// The direction: even from the client, odd from the server.
        id: MessageId,
        /// The bytes, in pieces.
        pieces: SmallVec<[Bytes; 1]>,
        /// Nothing comes after them.
        end: bool,
    },
    /// The receiver has the next bytes of what was written.
    Written {
        /// Who.
        peer: HostId,
        /// The direction.
        id: MessageId,
        /// How many.
        bytes: u64,
    },
    /// A stream has ended in both directions.
    Closed {
        /// The other end.
        peer: HostId,
        /// Its name.
        id: MessageId,
    },
    /// A peer has begun a new life: it knows nothing of what was before.
    PeerRestarted {
        /// Who.
        peer: HostId,
    },
}

/// What an endpoint has counted since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Datagrams handed to the kernel.
    pub sent: u64,
    /// Datagrams that came.
    pub received: u64,
    /// Datagrams that the kernel refused.
    pub send_refused: u64,
    /// Dropped: from an address that is not a peer's.
    pub foreign: u64,
    /// Dropped: no datagram of the overlay, or damaged.
    pub malformed: u64,
    /// Dropped: its sender does not know this host's incarnation.
    pub unproven: u64,
    /// Dropped: no memory left for what arrives.
    pub no_room: u64,
    /// Dropped: the receiver's incarnation was asked for, and too many packets waited for it.
    pub not_held: u64,
    /// Not sent: the message was given up meanwhile.
    pub stale: u64,
    /// Peers that began a new life.
    pub restarts: u64,
}

/// A host's transport over UDP. Nothing blocks but [`Endpoint::wait`], and nothing happens by itself:
/// call [`Endpoint::turn`] when the socket is readable, when the time has come that it returned, and after
/// sending something; then take what [`Endpoint::poll_event`] has.
#[derive(Debug)]
pub struct Endpoint {
    config: EndpointConfig,
    layout: Layout,
    machine: Machine,
    socket: UdpSocket,
    incarnation: u32,
    peers: PeerTable,
    outgoing: Outgoing,
    incoming: Incoming,
    events: VecDeque<Event>,
    batch: SendBatch,
    receive: ReceiveBatch,
    /// What was handed to the kernel has left the link by then.
    link_free: Time,
    /// The machine had nothing to send when it was asked last.
    idle: bool,
    /// Time told to the machine never decreases.
    told: Time,
    next_id: u64,
    stats: Stats,
}

impl Endpoint {
    /// Binds the socket.
    ///
    /// # Errors
    /// If the address can't be had.
    pub fn new(config: EndpointConfig) -> Result<Self, EndpointError> {
        let address = config.bind;
        let socket = UdpSocket::bind(address, config.socket_buffer, config.receive_stamps)
            .map_err(|source| EndpointError::Bind { address, source })?;
        Ok(Self {
            layout: config.transport.layout(),
            machine: config.transport.machine(config.host),
            socket,
            incarnation: random_incarnation(),
            peers: PeerTable::new(config.peers.clone(), config.host),
            outgoing: Outgoing::default(),
            incoming: Incoming::new(config.receive_bytes),
            events: VecDeque::new(),
            batch: SendBatch::default(),
            receive: ReceiveBatch::default(),
            link_free: Time::ZERO,
            idle: true,
            told: Time::ZERO,
            next_id: first_id(),
            stats: Stats::default(),
            config,
        }
        .announced())
    }

    /// Where its socket is.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr()
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

    /// What it has counted.
    #[must_use]
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    /// Bytes kept for what is sent, and for what arrives.
    #[must_use]
    pub const fn memory(&self) -> (u64, u64) {
        (self.outgoing.bytes(), self.incoming.bytes())
    }

    /// What the transport has measured of the way to its peers and back.
    #[must_use]
    pub fn round_trips(&self) -> Vec<RoundTrip> {
        self.machine.round_trips()
    }

    /// The number of the peer at an address, which may be a new one. Not for [`Peers::Switch`].
    pub fn add_peer(&mut self, address: SocketAddr) -> HostId {
        self.peers.add(address)
    }

    fn check(&self, peer: HostId, bytes: usize) -> Result<(), SendError> {
        if !self.peers.knows(peer) {
            return Err(SendError::UnknownPeer(peer));
        }
        let waiting = self.outgoing.bytes();
        // Whatever its length, one message at a time always goes.
        if waiting > 0 && waiting.saturating_add(bytes as u64) > self.config.send_bytes {
            return Err(SendError::Full { waiting });
        }
        Ok(())
    }

    fn now(&mut self) -> Time {
        self.told = self.told.max(self.config.clock.now());
        self.told
    }

    const fn new_id(&mut self) -> MessageId {
        self.next_id += 1;
        MessageId::request(self.next_id)
    }

    /// Sends a request, or a one-way message.
    ///
    /// # Errors
    /// See [`SendError`]; nothing has changed then.
    pub fn send(&mut self, peer: HostId, kind: Kind, bytes: Bytes) -> Result<MessageId, SendError> {
        self.check(peer, bytes.len())?;
        let now = self.now();
        let id = self.new_id();
        self.machine.submit(now, Submit { id, peer, bytes: bytes.len() as u64, kind })?;
        self.outgoing.insert(peer, id, bytes);
        self.changed();
        Ok(id)
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
        self.check(peer, bytes.len())?;
        let now = self.now();
        let id = request.response();
        let kind = Kind::Response;
        self.machine.submit(now, Submit { id, peer, bytes: bytes.len() as u64, kind })?;
        self.outgoing.insert(peer, id, bytes);
        self.changed();
        Ok(())
    }

    /// Gives a message or stream up; no event follows.
    pub fn cancel(&mut self, peer: HostId, id: MessageId) {
        let now = self.now();
        self.machine.cancel(now, peer, id);
        self.forget(peer, id);
        self.changed();
    }

    /// Opens a stream. [`Time::MAX`]: no deadline.
    ///
    /// # Errors
    /// See [`SendError`]; nothing has changed then.
    pub fn open(&mut self, peer: HostId, deadline: Time) -> Result<MessageId, SendError> {
        self.check(peer, 0)?;
        let now = self.now();
        let id = self.new_id();
        self.machine.open(now, Open { id, peer, deadline })?;
        self.outgoing.open(peer, id);
        self.changed();
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
        bytes: Bytes,
        end: bool,
    ) -> Result<(), SendError> {
        self.check(peer, bytes.len())?;
        let now = self.now();
        self.machine.write(now, peer, id, bytes.len() as u64, end)?;
        self.outgoing.write(peer, id, bytes);
        self.changed();
        Ok(())
    }

    /// Bytes of a direction that are written and not acknowledged.
    #[must_use]
    pub fn unacknowledged(&self, peer: HostId, id: MessageId) -> u64 {
        self.outgoing.unacknowledged(peer, id)
    }

    /// The application has taken so many bytes of a stream's direction: there is room for as many more.
    pub fn consume(&mut self, peer: HostId, id: MessageId, bytes: u64) {
        let now = self.now();
        self.machine.consume(now, peer, id, bytes);
        self.changed();
    }

    /// The next thing for the application to know.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Receives what is there, lets timers act, and sends what the link has room for. Returns when it
    /// wants to be called again, if nothing happens before; `Some` of a time that has passed: at once.
    ///
    /// # Errors
    /// If the socket does not work any more.
    pub fn turn(&mut self) -> io::Result<Option<Time>> {
        let mut more = false;
        for call in 1..=RECEIVE_CALLS {
            let filled = self.socket.receive(&mut self.receive)?;
            self.handle_received();
            if !UdpSocket::was_full(filled) {
                break;
            }
            more = call == RECEIVE_CALLS;
        }
        let now = self.now();
        if self.machine.poll_timeout().is_some_and(|at| at <= now) {
            self.machine.handle_timeout(now);
            self.changed();
        }
        for host in self.peers.due(now) {
            self.say_hello(host);
        }
        self.transmit(now)?;
        Ok(if more { Some(now) } else { self.next_turn() })
    }

    /// Whether the socket's buffer is full: the next turn is due when it is writable.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        !self.batch.is_empty()
    }

    /// When the next turn is due.
    fn next_turn(&self) -> Option<Time> {
        let link = (!self.idle && !self.is_blocked())
            .then(|| Time(self.link_free.0.saturating_sub(self.config.run_ahead.0)));
        [self.machine.poll_timeout(), self.peers.next_due(), link].into_iter().flatten().min()
    }

    /// Waits until the socket is readable (or writable, if that is waited for), or until a time.
    ///
    /// # Errors
    /// What the system says.
    pub fn wait(&mut self, until: Option<Time>) -> io::Result<()> {
        if !self.events.is_empty() {
            return Ok(());
        }
        let clock = self.config.clock;
        let began = clock.now();
        let mut flags = PollFlags::IN;
        if self.is_blocked() {
            flags |= PollFlags::OUT;
        }
        loop {
            let now = clock.now();
            let left = until.map(|until| until.since(now));
            if left.is_some_and(|left| left.0 == 0) {
                return Ok(());
            }
            let busy = now.since(began) < self.config.busy_poll;
            let timeout = if busy { Some(Timespec::default()) } else { left.map(timespec) };
            let mut fds = [PollFd::new(&self.socket, flags)];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) if busy => {}
                Ok(_) => return Ok(()),
                // A signal: the caller may want to look.
                Err(rustix::io::Errno::INTR) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub(crate) const fn busy_poll(&self) -> rackweave_core::Span {
        self.config.busy_poll
    }

    /// After the machine has learnt something.
    fn changed(&mut self) {
        self.idle = false;
        while let Some(event) = self.machine.poll_event() {
            self.on_event(event);
        }
    }

    fn on_event(&mut self, event: rackweave_core::Event) {
        use rackweave_core::Event as Told;
        let event = match event {
            Told::Delivered { peer, id, kind, .. } => {
                let Some(bytes) = self.incoming.take(peer, id) else { return };
                if kind == Kind::Response {
                    self.outgoing.remove(peer, MessageId(id.0 & !1));
                }
                Event::Message { peer, id, kind, bytes }
            }
            Told::Sent { peer, id } => {
                self.outgoing.remove(peer, id);
                Event::Sent { peer, id }
            }
            Told::Failed { peer, id, reason } => {
                self.forget(peer, id);
                Event::Failed { peer, id, reason }
            }
            Told::Stream(StreamEvent::Opened { peer, id }) => {
                self.outgoing.open(peer, id.response());
                Event::Opened { peer, id }
            }
            Told::Stream(StreamEvent::Readable { peer, id, bytes, end }) => {
                let pieces = self.incoming.read(peer, id, bytes);
                Event::Readable { peer, id, pieces, end }
            }
            Told::Stream(StreamEvent::Acked { peer, id, bytes }) => {
                self.outgoing.acknowledge(peer, id, bytes);
                Event::Written { peer, id, bytes }
            }
            Told::Stream(StreamEvent::Closed { peer, id }) => {
                self.forget(peer, id);
                Event::Closed { peer, id }
            }
        };
        self.events.push_back(event);
    }

    /// Nothing of this exchange is needed any more.
    fn forget(&mut self, peer: HostId, id: MessageId) {
        let request = MessageId(id.0 & !1);
        for id in [request, request.response()] {
            self.outgoing.remove(peer, id);
            self.outgoing.close(peer, id);
            self.incoming.remove(peer, id);
        }
    }

    fn handle_received(&mut self) {
        let receive = std::mem::take(&mut self.receive);
        let to_monotonic = if self.config.receive_stamps { realtime_to_monotonic_ns() } else { 0 };
        let now = self.now();
        for datagram in receive.datagrams() {
            self.stats.received += 1;
            if !self.peers.admits(datagram.from) {
                self.stats.foreign += 1;
                continue;
            }
            let Ok(read) = overlay::decode(datagram.bytes, datagram.traffic_class) else {
                self.stats.malformed += 1;
                continue;
            };
            let at = datagram.realtime_ns.map_or(now, |realtime| {
                self.config.clock.at(realtime.saturating_add_signed(to_monotonic)).min(now)
            });
            self.told = self.told.max(at);
            self.handle_datagram(self.told, datagram.from, &read, datagram.bytes);
        }
        self.receive = receive;
        self.told = self.told.max(now);
    }

    fn handle_datagram(
        &mut self,
        now: Time,
        from: SocketAddr,
        read: &overlay::Datagram,
        bytes: &[u8],
    ) {
        let envelope = read.envelope;
        if envelope.to != self.incarnation {
            // Who does not know us yet (any more) is told, with no more bytes than it sent, and only that.
            self.stats.unproven += 1;
            let hello = |out: &mut Vec<u8>| {
                let (src, to) = (self.config.host, envelope.from);
                overlay::encode_hello(src, envelope.src, self.incarnation, to, out);
            };
            self.batch.push(from, frame_class(), hello, SmallVec::new());
            return;
        }
        let Some(peer) = self.peers.sender(from, envelope.src) else {
            self.stats.foreign += 1;
            return;
        };
        if self.peers.learn(peer, envelope.from) {
            self.stats.restarts += 1;
            self.events.push_back(Event::PeerRestarted { peer });
        }
        for packet in self.peers.release(peer) {
            self.queue(now, packet);
        }
        let Some(mut packet) = read.packet else { return };
        (packet.src, packet.dst) = (peer, self.config.host);
        let message = packet.header.message_bytes();
        let sent = packet.payload();
        if let Some(slice) = sent
            && !self.incoming.has_room(peer, slice, message)
        {
            self.stats.no_room += 1;
            return;
        }
        if let Placement::Store(slice) = self.machine.handle_packet(now, &packet) {
            // A part of the packet's payload, or all of it.
            let skip = slice.offset.wrapping_sub(sent.map_or(0, |sent| sent.offset)) as usize;
            let payload = bytes[read.payload.clone()].get(skip..).unwrap_or_default();
            let payload = payload.get(..slice.len as usize).unwrap_or(payload);
            self.incoming.store(peer, slice, message, payload);
        }
        self.changed();
    }

    fn transmit(&mut self, now: Time) -> io::Result<()> {
        let ahead = now + self.config.run_ahead;
        loop {
            if self.batch.len() >= SEND_BATCH {
                self.flush()?;
                if self.is_blocked() {
                    return Ok(());
                }
            }
            if self.idle || self.link_free > ahead {
                break;
            }
            let Some(packet) = self.machine.poll_transmit(now) else {
                self.idle = true;
                break;
            };
            let span = self.config.link.span_of(u64::from(packet.wire_bytes));
            self.link_free = self.link_free.max(now) + span;
            self.queue(now, packet);
        }
        // Polling for packets may have told something too.
        while let Some(event) = self.machine.poll_event() {
            self.on_event(event);
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let waiting = self.batch.len();
        let refused = self.socket.send(&mut self.batch)?;
        self.stats.send_refused += refused;
        self.stats.sent += (waiting - self.batch.len()) as u64 - refused;
        Ok(())
    }

    /// Writes a packet into the batch.
    fn queue(&mut self, now: Time, packet: Packet<Header>) {
        let Some(peer) = self.peers.get(packet.dst) else { return };
        let Some(to) = peer.incarnation else {
            if !self.peers.hold(now, packet) {
                self.stats.not_held += 1;
            }
            return;
        };
        let payload = match packet.payload() {
            None => SmallVec::new(),
            Some(slice) => match self.outgoing.slice(packet.dst, slice) {
                Some(payload) => payload,
                None => {
                    self.stats.stale += 1;
                    return;
                }
            },
        };
        let check = payload.iter().fold(0, |check, bytes: &Bytes| overlay::crc32c(check, bytes));
        let (layout, from) = (self.layout, self.incarnation);
        let write = |out: &mut Vec<u8>| overlay::encode(&packet, layout, from, to, check, out);
        self.batch.push(peer.address, frame::traffic_class(&packet), write, payload);
    }

    fn say_hello(&mut self, host: HostId) {
        let Some(peer) = self.peers.get(host) else { return };
        let (src, from, to) = (self.config.host, self.incarnation, peer.incarnation.unwrap_or(0));
        let hello = |out: &mut Vec<u8>| overlay::encode_hello(src, host, from, to, out);
        self.batch.push(peer.address, frame_class(), hello, SmallVec::new());
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// HELLOs go at the highest priority.
const fn frame_class() -> u8 {
    7 << 5
}

fn timespec(span: rackweave_core::Span) -> Timespec {
    let ns = span.0.div_ceil(1000);
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// Random, and not 0, which stands for "not known".
fn random_incarnation() -> u32 {
    loop {
        let mut bytes = [0; 4];
        // It asks until it has got them; a system without random numbers has others from the clock.
        let incarnation =
            match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
                Ok(4) => u32::from_ne_bytes(bytes),
                _ => realtime_ns() as u32,
            };
        if incarnation != 0 {
            return incarnation;
        }
    }
}

/// Where message numbers begin: they increase from one life of a host to the next, and differ
/// between hosts. Sixteenths of a second since 1970 (35 bits), then 9 random bits, then 19 to count: nobody
/// sends 2^28 messages in a sixteenth of a second.
pub(crate) fn first_id() -> u64 {
    let sixteenths = realtime_ns() / 62_500_000;
    sixteenths << 28 | u64::from(random_incarnation() & 0x1ff) << 19
}
