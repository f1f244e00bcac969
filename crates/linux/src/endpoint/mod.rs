//! A host's transport over UDP: sockets, timers, pacing and buffers around one machine.

mod announce;
pub mod config;
mod event;
mod ids;
mod incoming;
mod outgoing;
mod peers;
mod receive;
mod send;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use bytes::Bytes;
use rackweave_core::{
    HostId, Kind, MessageId, Node as _, Open, RoundTrip, Span, StreamEvent, Submit, Time,
    Transport as _,
};
use rackweave_transport::Machine;
use rackweave_wire::homa::Layout;

pub use self::config::{EndpointConfig, Network, Peers};
pub use self::event::{EndpointError, Event, SendError, Stats};
pub(crate) use self::ids::{Ids, first_id};
use self::incoming::Incoming;
use self::outgoing::Outgoing;
use self::peers::{PeerTable, Secret};
use crate::clock::Clock;
use crate::driver::{Driver, DriverStats};
use crate::sys::UdpSocket;

/// How often it is looked for messages whose sender fell silent.
const SWEEP: Span = Span::from_secs(1);

/// How often it is looked whether what was cancelled has left.
const LEAVING: Span = Span::from_ms(10);

/// [`Endpoint::finish`] ends when it has been quiet for so long: our own choice, several times what transports
/// wait before they ask for an acknowledgement.
const QUIET: Span = Span::from_ms(50);

/// A host's transport over UDP. Nothing blocks but [`Endpoint::wait`] and [`Endpoint::finish`], and nothing
/// happens by itself.
///
/// # Who drives it
/// Call [`Endpoint::turn`]
/// - when the socket ([`AsFd`]) is readable;
/// - when the time has come that the last call returned, at once if it has passed;
/// - after sending, responding, writing, consuming or cancelling: these only note what is to be done;
/// - if [`Endpoint::is_blocked`]: when the socket is writable, which need not be waited for else.
///
/// Then take what [`Endpoint::poll_event`] has. A turn receives and sends a bounded number of packets: with more
/// to do it returns a time that has passed. A spurious turn does no harm. A thread of its own lets
/// [`Endpoint::wait`] do the waiting; an event loop (tokio's `AsyncFd` and a timer) waits for the same things.
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
pub struct Endpoint {
    config: EndpointConfig,
    layout: Layout,
    machine: Machine,
    driver: Driver,
    peers: PeerTable,
    outgoing: Outgoing,
    incoming: Incoming,
    events: VecDeque<Event>,
    /// When the link will have sent everything that was passed to the kernel.
    link_free: Time,
    /// The machine had nothing to send when it was last polled.
    idle: bool,
    /// A peer was found to have restarted in this turn.
    restarted: bool,
    /// When messages that the machine has dropped are next removed from `incoming`.
    sweep_at: Time,
    /// Cancelled messages of which the machine still sends packets.
    leaving: Vec<(HostId, MessageId)>,
    /// When `leaving` is next examined.
    leaving_at: Time,
    ids: Ids,
    stats: Stats,
}

impl Endpoint {
    /// Binds the socket.
    ///
    /// # Errors
    /// If the address can't be had.
    pub fn new(config: EndpointConfig) -> Result<Self, EndpointError> {
        let address = config.bind;
        let socket = UdpSocket::bind(address, config.socket_buffer, false)
            .map_err(|source| EndpointError::Bind { address, source })?;
        Ok(Self {
            layout: config.transport.layout(),
            machine: config.transport.machine(config.host),
            driver: Driver::new(config.clock, socket),
            peers: PeerTable::new(config.peers.clone(), config.host, Secret::new()),
            outgoing: Outgoing::default(),
            incoming: Incoming::new(config.receive_bytes),
            events: VecDeque::new(),
            link_free: Time::ZERO,
            idle: true,
            restarted: false,
            sweep_at: Time::ZERO,
            leaving: Vec::new(),
            leaving_at: Time::ZERO,
            ids: Ids::new(),
            stats: Stats::default(),
            config,
        }
        .announced())
    }

    /// Where its socket is.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.driver.local_addr()
    }

    /// This host's number.
    #[must_use]
    pub const fn host(&self) -> HostId {
        self.config.host
    }

    /// The clock that all its times are of.
    #[must_use]
    pub const fn clock(&self) -> Clock {
        self.driver.clock()
    }

    /// What it has counted.
    #[must_use]
    pub const fn stats(&self) -> Stats {
        let DriverStats { sent, refused, send_calls, trains } = self.driver.stats();
        Stats { sent, send_refused: refused, send_calls, trains, ..self.stats }
    }

    /// Bytes kept for what is sent, and for what arrives.
    #[must_use]
    pub const fn memory(&self) -> (u64, u64) {
        (self.outgoing.bytes(), self.incoming.bytes())
    }

    /// The messages that have arrived in part, each with the bytes of it that were stored.
    #[must_use]
    pub fn arriving(&self) -> Vec<(HostId, MessageId, u64)> {
        self.incoming.arriving()
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

    /// Where a peer is: with [`Peers::Switch`], the port.
    #[must_use]
    pub fn peer_addr(&self, peer: HostId) -> Option<SocketAddr> {
        self.peers.get(peer).map(|peer| peer.address)
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

    fn new_id(&mut self) -> MessageId {
        self.ids.next()
    }

    /// Sends a request, or a one-way message.
    ///
    /// # Errors
    /// See [`SendError`]; nothing has changed then.
    pub fn send(&mut self, peer: HostId, kind: Kind, bytes: Bytes) -> Result<MessageId, SendError> {
        self.check(peer, bytes.len())?;
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
    /// See [`SendError`]; nothing has changed then.
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

    /// Gives a message or stream up; no event of it follows, not even one that was waiting to be polled.
    pub fn cancel(&mut self, peer: HostId, id: MessageId) {
        let now = self.driver.now();
        self.machine.cancel(now, peer, id);
        let request = MessageId(id.0 & !1);
        for id in [request, request.response()] {
            if self.machine.is_leaving(peer, id) {
                self.leaving.push((peer, id));
                self.leaving_at = now + LEAVING;
            }
        }
        self.forget(peer, id);
        self.changed();
        let of = |id: MessageId| id.0 | 1;
        self.events
            .retain(|event| event.exchange().is_none_or(|it| it != (peer, MessageId(of(id)))));
    }

    /// Opens a stream. [`Time::MAX`]: no deadline.
    ///
    /// # Errors
    /// See [`SendError`]; nothing has changed then.
    pub fn open(&mut self, peer: HostId, deadline: Time) -> Result<MessageId, SendError> {
        self.check(peer, 0)?;
        let now = self.driver.now();
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
        let now = self.driver.now();
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
        if bytes == 0 {
            return;
        }
        let now = self.driver.now();
        self.machine.consume(now, peer, id, bytes);
        self.changed();
    }

    /// How many events wait to be polled.
    #[must_use]
    pub fn events_waiting(&self) -> usize {
        self.events.len()
    }

    /// The next thing for the application to know.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Receives what has arrived, serves timers, and sends what the link has room for. Returns when the next turn is
    /// due if nothing happens before; a time that has passed means at once.
    ///
    /// # Errors
    /// If the socket has failed.
    pub fn turn(&mut self) -> io::Result<Option<Time>> {
        Driver::turn(self)
    }

    /// Whether the socket's send buffer is full: the next turn is due when it is writable.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.driver.is_blocked()
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

    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub(crate) const fn busy_poll(&self) -> Span {
        self.config.busy_poll
    }

    /// Goes on until all that was sent has arrived and peers have the acknowledgements that they wait for, or
    /// until a time; `true`: the former. Events are kept for [`Endpoint::poll_event`].
    ///
    /// Who stops at once after its last message leaves the peer in doubt whether its answer has arrived.
    ///
    /// # Errors
    /// If the socket does not work any more.
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

    /// Frees what the machine has forgotten without a word.
    fn sweep(&mut self, now: Time, all: bool) {
        let machine = &self.machine;
        self.incoming.sweep(all, |peer, id| machine.is_arriving(peer, id));
        self.sweep_at = now + SWEEP;
    }

    /// Frees what was cancelled and has left.
    fn leave(&mut self, now: Time) {
        let (machine, outgoing) = (&self.machine, &mut self.outgoing);
        self.leaving.retain(|&(peer, id)| {
            let leaves = machine.is_leaving(peer, id);
            if !leaves {
                outgoing.remove(peer, id);
            }
            leaves
        });
        self.leaving_at = now + LEAVING;
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
                let Some(bytes) = self.incoming.take(peer, id) else {
                    debug_assert!(false, "{id} is delivered, and nothing of it was stored");
                    return;
                };
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
