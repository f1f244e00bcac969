//! A host's transport over UDP: pacing, buffers and peers around one [`Machine`]; [`Driver`] does its I/O.

mod announce;
pub mod config;
mod early;
mod event;
mod events;
mod fragments;
mod homa_module;
mod ids;
mod incoming;
mod outgoing;
mod path;
mod peers;
mod receive;
mod secure;
mod send;
mod tickets;

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use bytes::Bytes;
use rackweave_core::{
    HostId, Kind, MessageId, Node as _, Open, RecoveryCounters, Refused, RoundTrip, Span,
    StreamEvent, Submit, Time, Transport as _,
};
pub use rackweave_crypt::KeyMismatch;
use rackweave_transport::Machine;
use rackweave_wire::homa::Layout;

pub use self::config::{EndpointConfig, Network, Peers, Wire};
pub use self::event::{EndpointError, Event, PathChange, SendError, Stats};
use self::events::Events;
use self::fragments::Reassembly;
pub(crate) use self::ids::{Ids, first_id};
use self::incoming::Incoming;
use self::outgoing::Outgoing;
use self::peers::{PeerTable, Secret};
use self::secure::Secure;
pub use self::tickets::{MAX_TICKETS, NotTickets, TicketFile, TicketFileError, TicketStore};
use crate::clock::Clock;
use crate::driver::{Driver, DriverStats, Platform};
use crate::sys::UdpSocket;

/// The interval at which incoming messages that the machine has dropped are freed.
const SWEEP: Span = Span::from_secs(1);

/// [`Endpoint::finish`] ends after no activity for this long. The value is our choice: several times the delay after
/// which transports ask for an acknowledgement.
const QUIET: Span = Span::from_ms(50);

/// A host's transport over UDP. Only [`Endpoint::wait`] and [`Endpoint::finish`] block, and nothing happens in the
/// background.
///
/// # Driving it
/// Call [`Endpoint::turn`]
/// - when the socket ([`AsFd`]) is readable;
/// - at the time that the last call returned, at once if it has passed;
/// - after sending, responding, writing, consuming or cancelling: these only record what is to be done;
/// - if [`Endpoint::is_blocked`]: when the socket is writable.
///
/// Then drain [`Endpoint::poll_event`]. A turn receives and sends a bounded number of packets; if there is more to do, it
/// returns a time that has passed. A spurious turn has no effect. A dedicated thread waits with [`Endpoint::wait`]; an
/// event loop (tokio's `AsyncFd` and a timer) waits for the same conditions.
///
/// ```
/// use bytes::Bytes;
/// use rackweave_core::{HostId, Kind};
/// use rackweave_linux::{Endpoint, EndpointConfig, Event, Peers};
/// use rackweave_transport::{TransportConfig, homa};
///
/// let transport = TransportConfig::Homa(homa::Config::leverage(rackweave_core::Rate::from_gbps(10)).into());
/// let end = |host| {
///     let peers = Peers::Direct { hosts: Default::default(), allow: vec!["127.0.0.1".parse().unwrap()] };
///     Endpoint::new(EndpointConfig::new(HostId(host), "127.0.0.1:0".parse().unwrap(), peers, &transport))
/// };
/// let (mut client, mut server) = (end(0)?, end(1)?);
/// let address = server.local_addr();
///
/// std::thread::spawn(move || -> std::io::Result<()> {
///     loop {
///         while let Some(event) = server.poll_event() {
///             if let Event::Message { peer, id, kind: Kind::Request, bytes } = event {
///                 let _ = server.respond(peer, id, bytes);
///             }
///         }
///         let next = server.turn()?;
///         server.wait(next)?;
///     }
/// });
///
/// let server = client.add_peer(address);
/// client.send(server, Kind::Request, Bytes::from_static(b"echo"))?;
/// let answer = loop {
///     match client.poll_event() {
///         Some(Event::Message { bytes, .. }) => break bytes,
///         Some(Event::Failed { reason, .. }) => panic!("{reason}"),
///         Some(_) => {}
///         None => {
///             let next = client.turn()?;
///             client.wait(next)?;
///         }
///     }
/// };
/// assert_eq!(answer, "echo");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Endpoint<P = UdpSocket> {
    config: EndpointConfig,
    layout: Layout,
    machine: Machine,
    driver: Driver<P>,
    peers: PeerTable,
    /// `None` without a key.
    secure: Option<Box<Secure>>,
    outgoing: Outgoing,
    incoming: Incoming,
    reassembly: Reassembly,
    /// Numbers of the next probe of a path, and of the next datagram in fragments.
    probe_number: u32,
    fragment_number: u32,
    events: Events,
    /// When the link will have sent everything that was passed to the kernel.
    link_free: Time,
    /// The machine had nothing to send when it was last polled.
    idle: bool,
    /// A peer was found to have restarted in this turn.
    restarted: bool,
    /// When messages that the machine has dropped are next removed from `incoming`.
    sweep_at: Time,
    /// Cancelled messages whose packets the machine still sends.
    leaving: BTreeSet<(HostId, MessageId)>,
    ids: Ids,
    stats: Stats,
}

impl Endpoint {
    /// Binds the socket.
    ///
    /// # Errors
    /// If the address is in use or not local, or parts of the configuration exclude each other.
    pub fn new(mut config: EndpointConfig) -> Result<Self, EndpointError> {
        Self::check_config(&config)?;
        let address = config.bind;
        if let (Wire::HomaModule, SocketAddr::V4(v4)) = (config.wire, address) {
            let socket = UdpSocket::raw(v4, homa_module::PROTOCOL, config.socket_buffer);
            let socket = socket.map_err(|source| match source.kind() {
                io::ErrorKind::PermissionDenied => EndpointError::NoRawRights,
                _ => EndpointError::Raw { address, source },
            })?;
            config.bind = socket.local_addr();
            return Ok(Self::with(config, socket));
        }
        let socket = UdpSocket::bind(address, config.socket_buffer, false)
            .map_err(|source| EndpointError::Bind { address, source })?;
        Self::on(config, socket)
    }

    /// The address that its socket is bound to.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.driver.local_addr()
    }

    /// Waits until the socket is readable (or writable, if [`Endpoint::is_blocked`]), or until a time; not at all if an
    /// event waits to be polled. Makes the timers of the calling thread exact ([`crate::sys::tighten_timers`]).
    ///
    /// # Errors
    /// If the system refuses to wait.
    pub fn wait(&mut self, until: Option<Time>) -> io::Result<()> {
        self.driver.expect_wait();
        if self.events.is_empty() { self.sleep(until) } else { Ok(()) }
    }

    fn sleep(&mut self, until: Option<Time>) -> io::Result<()> {
        self.driver.wait(until, self.config.busy_poll, &[])
    }

    /// Drives the endpoint until everything that was sent is acknowledged and peers have the acknowledgements that they
    /// wait for, or until a time; returns whether the former was reached. Events are kept for [`Endpoint::poll_event`].
    ///
    /// A host that stops immediately after its last message leaves the peer without an acknowledgement of its response.
    ///
    /// # Errors
    /// If the socket has failed.
    pub fn finish(&mut self, until: Time) -> io::Result<bool> {
        let mut quiet = self.driver.now();
        let mut received = self.stats.received;
        loop {
            let next = self.turn()?;
            let now = self.driver.now();
            let busy = self.outgoing.bytes() > 0 || !self.idle || self.is_blocked();
            if busy || received != self.stats.received {
                (quiet, received) = (now, self.stats.received);
            }
            if now.since(quiet) >= QUIET || now >= until {
                return Ok(now.since(quiet) >= QUIET);
            }
            let end = until.min(quiet + QUIET);
            self.sleep(Some(next.map_or(end, |next| next.min(end))))?;
        }
    }
}

impl<P: Platform> Endpoint<P> {
    fn check_config(config: &EndpointConfig) -> Result<(), EndpointError> {
        if config.key.is_some() && matches!(config.peers, Peers::Switch { .. }) {
            return Err(EndpointError::KeyThroughSwitch);
        }
        match config.wire {
            Wire::Udp => Ok(()),
            Wire::HomaModule => homa_module::check(config),
        }
    }

    /// An endpoint on this platform, whose address is the configured one.
    ///
    /// # Errors
    /// If parts of the configuration exclude each other.
    pub fn on(config: EndpointConfig, platform: P) -> Result<Self, EndpointError> {
        Self::check_config(&config)?;
        Ok(Self::with(config, platform))
    }

    fn with(config: EndpointConfig, mut platform: P) -> Self {
        let secret = Secret::new(platform.random());
        let has_aes = platform.has_aes();
        Self {
            layout: config.transport.layout(),
            machine: config.transport.machine(config.host),
            peers: PeerTable::new(config.peers.clone(), config.host, secret),
            secure: Secure::new(&config, has_aes),
            outgoing: Outgoing::default(),
            incoming: Incoming::new(config.receive_bytes),
            reassembly: Reassembly::default(),
            probe_number: 0,
            // Fragments of an earlier start of this host may still be waited for.
            fragment_number: platform.random() as u32,
            events: Events::default(),
            link_free: Time::ZERO,
            idle: true,
            restarted: false,
            sweep_at: Time::ZERO,
            leaving: BTreeSet::new(),
            ids: Ids::at(&mut platform),
            driver: Driver::new(config.clock, platform).dropping_stale(),
            stats: Stats::default(),
            config,
        }
        .announced()
    }

    /// The number of this host.
    #[must_use]
    pub const fn host(&self) -> HostId {
        self.config.host
    }

    /// The clock of all its times.
    #[must_use]
    pub const fn clock(&self) -> Clock {
        self.driver.clock()
    }

    /// The time on its clock at the last call that sent, cancelled, read or wrote something, or at the last turn.
    #[must_use]
    pub const fn last_now(&self) -> Time {
        self.driver.last_now()
    }

    /// The counters since the endpoint was created.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let DriverStats { sent, refused, send_calls, trains } = self.driver.stats();
        let receive_calls = self.driver.receive_calls();
        let receive_batches = self.driver.receive_batches();
        Stats {
            sent,
            send_refused: refused,
            send_calls,
            trains,
            receive_calls,
            receive_batches,
            not_admitted: self.machine.not_admitted(),
            ..self.stats
        }
    }

    /// Bytes buffered for sending, and for receiving.
    #[must_use]
    pub const fn memory(&self) -> (u64, u64) {
        (self.outgoing.bytes(), self.incoming.bytes() + self.reassembly.bytes() as u64)
    }

    /// The messages that have arrived partly, each with the number of its bytes that were stored.
    #[must_use]
    pub fn arriving(&self) -> Vec<(HostId, MessageId, u64)> {
        self.incoming.arriving()
    }

    /// The round-trip times to its peers, as the transport has measured them.
    #[must_use]
    pub fn round_trips(&self) -> Vec<RoundTrip> {
        self.machine.round_trips()
    }

    /// How often the transport of this host had to repair losses.
    #[must_use]
    pub fn recovery_counters(&self) -> RecoveryCounters {
        self.machine.recovery_counters()
    }

    /// The number of the peer at an address, which is added if it is not known. Not for [`Peers::Switch`].
    pub fn add_peer(&mut self, address: SocketAddr) -> HostId {
        self.peers.add(address)
    }

    /// The address of a peer; with [`Peers::Switch`], that of the switch's port.
    #[must_use]
    pub fn peer_addr(&self, peer: HostId) -> Option<SocketAddr> {
        self.peers.get(peer).map(|peer| peer.path().remote)
    }

    fn check(&self, peer: HostId, bytes: usize) -> Result<(), SendError> {
        if !self.peers.knows(peer) {
            return Err(SendError::UnknownPeer(peer));
        }
        let waiting = self.outgoing.bytes();
        // If nothing else waits, a message of any length is accepted.
        if waiting > 0 && waiting.saturating_add(bytes as u64) > self.config.send_bytes {
            return Err(SendError::Full { waiting });
        }
        Ok(())
    }

    fn new_id(&mut self) -> MessageId {
        self.ids.next()
    }

    /// Sends a request, or a one-way message.
    ///
    /// # Errors
    /// See [`SendError`]; the call had no effect then.
    pub fn send(&mut self, peer: HostId, kind: Kind, bytes: Bytes) -> Result<MessageId, SendError> {
        self.check(peer, bytes.len())?;
        if kind == Kind::OneWay && self.is_of_module() {
            return Err(Refused::Unsupported.into());
        }
        let now = self.driver.now();
        let id = self.new_id();
        self.machine.submit(now, Submit { id, peer, bytes: bytes.len() as u64, kind })?;
        self.outgoing.insert(peer, id, bytes);
        self.changed();
        Ok(id)
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
        self.check(peer, bytes.len())?;
        let now = self.driver.now();
        let id = request.response();
        let kind = Kind::Response;
        self.machine.submit(now, Submit { id, peer, bytes: bytes.len() as u64, kind })?;
        self.outgoing.insert(peer, id, bytes);
        self.changed();
        Ok(())
    }

    /// Cancels a message or stream; no event of it follows, and events that wait to be polled are removed.
    pub fn cancel(&mut self, peer: HostId, id: MessageId) {
        let now = self.driver.now();
        self.machine.cancel(now, peer, id);
        let request = MessageId(id.0 & !1);
        for id in [request, request.response()] {
            if self.machine.is_leaving(peer, id) {
                self.leaving.insert((peer, id));
            }
        }
        self.forget(peer, id);
        self.changed();
        self.events.cancel(peer, MessageId(id.0 | 1));
    }

    /// Opens a stream; a deadline of [`Time::MAX`] means none.
    ///
    /// # Errors
    /// See [`SendError`]; the call had no effect then.
    pub fn open(&mut self, peer: HostId, deadline: Time) -> Result<MessageId, SendError> {
        self.check(peer, 0)?;
        if self.is_of_module() {
            return Err(Refused::Unsupported.into());
        }
        let now = self.driver.now();
        let id = self.new_id();
        self.machine.open(now, Open { id, peer, deadline })?;
        self.outgoing.open(peer, id);
        self.changed();
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
        bytes: Bytes,
        end: bool,
    ) -> Result<(), SendError> {
        self.check(peer, bytes.len())?;
        let now = self.driver.now();
        self.machine.write(now, peer, id, bytes.len() as u64, end)?;
        self.outgoing.write(peer, id, bytes);
        self.changed();
        Ok(())
    }

    /// The number of bytes of a direction that are written and not acknowledged.
    #[must_use]
    pub fn unacknowledged(&self, peer: HostId, id: MessageId) -> u64 {
        self.outgoing.unacknowledged(peer, id)
    }

    /// Reports that the application has consumed bytes of a stream's direction, which lets the peer send as many more.
    pub fn consume(&mut self, peer: HostId, id: MessageId, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let now = self.driver.now();
        self.machine.consume(now, peer, id, bytes);
        self.changed();
    }

    /// The number of events that wait to be polled; some may belong to messages that were cancelled since.
    #[must_use]
    pub fn events_waiting(&self) -> usize {
        self.events.len()
    }

    /// The next event for the application.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    /// Receives what has arrived, serves timers, and sends what the link has room for. Returns when the next turn is
    /// due if nothing happens before; a time that has passed means at once.
    ///
    /// # Errors
    /// If the socket has failed.
    pub fn turn(&mut self) -> io::Result<Option<Time>> {
        Driver::turn(self)
    }

    /// [`Endpoint::turn`] without receiving: serves timers and sends. For an event loop that has changed something and
    /// turns the endpoint again when the socket is readable, so that a call to receive would usually find nothing.
    ///
    /// # Errors
    /// If the socket has failed.
    pub fn send_turn(&mut self) -> io::Result<Option<Time>> {
        Driver::send_turn(self)
    }

    /// Whether the last [`Endpoint::turn`] may have left datagrams in the socket: an edge-triggered event loop, which is not
    /// notified of them again, then turns once more.
    #[must_use]
    pub const fn left_datagrams(&self) -> bool {
        self.driver.left_datagrams()
    }

    /// Whether the socket's send buffer is full: the next turn is due when it is writable.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.driver.is_blocked()
    }

    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub(crate) const fn busy_poll(&self) -> Span {
        self.config.busy_poll
    }

    /// Whether there is nothing that [`Endpoint::sweep`] might free.
    fn is_swept(&self) -> bool {
        self.incoming.is_empty() && self.reassembly.bytes() == 0
    }

    /// Frees incoming messages that the machine has dropped without an event.
    fn sweep(&mut self, now: Time, all: bool) {
        let machine = &self.machine;
        self.incoming.sweep(all, |peer, id| machine.is_arriving(peer, id));
        self.reassembly.expire(now);
        self.sweep_at = now + SWEEP;
    }

    /// To be called after each call of the machine that may produce packets or events.
    fn changed(&mut self) {
        self.idle = false;
        while let Some(event) = self.machine.poll_event() {
            self.on_event(event);
        }
        while let Some((peer, id)) = self.machine.poll_left() {
            self.leaving.remove(&(peer, id));
            self.outgoing.remove(peer, id);
        }
    }

    fn on_event(&mut self, event: rackweave_core::Event) {
        use rackweave_core::Event as MachineEvent;
        let event = match event {
            MachineEvent::Delivered { peer, id, kind, .. } => {
                let Some(bytes) = self.incoming.take(peer, id) else {
                    debug_assert!(false, "{id} is delivered, but nothing of it was stored");
                    return;
                };
                if kind == Kind::Response {
                    self.outgoing.remove(peer, MessageId(id.0 & !1));
                }
                Event::Message { peer, id, kind, bytes }
            }
            MachineEvent::Sent { peer, id } => {
                self.outgoing.remove(peer, id);
                Event::Sent { peer, id }
            }
            MachineEvent::Failed { peer, id, reason } => {
                self.forget(peer, id);
                Event::Failed { peer, id, reason }
            }
            MachineEvent::Stream(StreamEvent::Opened { peer, id }) => {
                self.outgoing.open(peer, id.response());
                Event::Opened { peer, id }
            }
            MachineEvent::Stream(StreamEvent::Readable { peer, id, bytes, end }) => {
                let pieces = self.incoming.read(peer, id, bytes);
                Event::Readable { peer, id, pieces, end }
            }
            MachineEvent::Stream(StreamEvent::Acked { peer, id, bytes }) => {
                self.outgoing.acknowledge(peer, id, bytes);
                Event::Written { peer, id, bytes }
            }
            MachineEvent::Stream(StreamEvent::Closed { peer, id }) => {
                self.forget(peer, id);
                Event::Closed { peer, id }
            }
        };
        self.events.push(event);
    }

    /// Frees all buffers of an exchange.
    fn forget(&mut self, peer: HostId, id: MessageId) {
        let request = MessageId(id.0 & !1);
        for id in [request, request.response()] {
            if !self.leaving.contains(&(peer, id)) {
                self.outgoing.remove(peer, id);
            }
            self.outgoing.close(peer, id);
            self.incoming.remove(peer, id);
        }
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.driver.as_fd()
    }
}
