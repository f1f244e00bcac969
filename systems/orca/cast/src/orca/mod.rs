//! The driver of an Orca host and its controller over UDP sockets. One thread runs it.
//!
//! It is not generic over [`Node`](rackweave_core::Node): sessions, receivers, windows and completion belong to Orca,
//! and the engine makes decisions about all of them (which sink receives a session, when a receiver is invited again,
//! when a stream has ended).

mod answers;
mod cast;
mod config;
mod controller;
mod cookie;
mod entries;
mod event;
mod group;
mod incoming;
mod outgoing;
mod parity;
mod peers;
mod platform;
mod probe;
mod reach;
mod receive;
mod secure;
mod send;
#[cfg(test)]
mod tests;
mod verify;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::os::fd::AsFd as _;

use rackweave_core::{HostId, Node as _, Rate, Span, Time};
use rackweave_crypt::{Associations, GroupOpen};
use rackweave_linux::sys::{ReceiveBatch, UdpSocket, tighten_timers};
use rackweave_linux::{Clock, Driven, Driver, DriverStats, wait};
use rackweave_orca::controller::Controller;
use rackweave_orca::flow::FlowConfig;
use rackweave_orca::host::{Host, HostConfig, Tor};
use rackweave_wire::orca::{GROUP, Key, Session};

pub use self::answers::AnswerMessage;
use self::answers::Answers;
pub use self::cast::{Cast, CastConfig, CastError, CastReceiver, CastView};
pub use self::config::{Accept, Decision, EngineConfig, FabricPlace, Offer};
pub use self::cookie::CookieMessage;
use self::cookie::Cookies;
pub use self::event::{
    EngineError, EngineEvent, Progress, ReceiverProgress, SendView, Stats, why_receiving_failed,
};
pub use self::group::{GroupMessage, MAX_GROUP_NAME, is_group_name};
use self::incoming::Incoming;
use self::outgoing::{Memo, Relayed};
pub use self::peers::Admission;
use self::peers::Peers;
pub use self::platform::EnginePlatform;
pub use self::probe::keys;
use self::reach::Probes;
pub use self::reach::Reach;
pub use self::secure::SealedMessage;
use self::send::Sending;
pub use self::verify::{BlockHashes, Checked, HashCache, HashRequest, KeyRequest, Verifier};
use crate::sink::Drain;
use crate::wake::Waker;

/// The number of sessions whose labels an agent can hold.
const LABELS: u32 = 1 << 16;

/// The number of invitations that can wait for the application's decision in one turn; further ones are dropped.
const MAX_INVITED: usize = 1024;

/// The most addresses of hosts that are not admitted which are kept for a report.
pub const MAX_FOREIGN: usize = 8;

/// Above this rate of arrival, the engine receives packets in batches, by sleeping for [`TOGETHER`] instead of waiting
/// for the socket.
const FAST: Rate = Rate::from_gbps(2);
/// The length of this sleep. It is less than the delay that the sender allows for the path (`FlowConfig::path`).
const TOGETHER: Span = Span::from_us(300);
/// Sockets with a smaller receive buffer would overflow during this sleep.
const ROOMY: usize = 4 << 20;

/// An Orca host over UDP, on the operating system ([`Engine::new`]) or on another platform ([`Engine::on`]). Only [`Engine::wait`] and
/// what calls it block, and only sinks work in the background ([`EnginePlatform::start`]): call [`Engine::turn`], drain
/// [`Engine::poll_event`], and wait until the time that the turn returned.
pub struct Engine<P = UdpSocket> {
    config: EngineConfig,
    /// The driver of the socket. It receives from a second socket, bound to the group's address, if the first one does
    /// not receive the group's datagrams.
    driver: Driver<P>,
    host: Host,
    controller: Option<Controller>,
    interface: Ipv4Addr,
    /// Whether the engine is a member of the multicast group at present.
    grouped: bool,
    peers: Peers,
    words: u8,
    /// The key of the control packets that switches read.
    key: Option<Key>,
    /// The key of probes and of queries for groups.
    secret: Option<[u8; 32]>,
    /// `None` without a key.
    secure: Option<Associations<HostId>>,
    cookies: Cookies,
    /// Some addresses that are not admitted and sent datagrams.
    foreign: Vec<SocketAddr>,
    /// The senders of invitations that were not handled yet, and the keys of their sessions.
    invited: BTreeMap<Session, (HostId, Box<GroupOpen>)>,
    memo: Memo,
    relayed: VecDeque<Relayed>,
    sending: BTreeMap<Session, Sending>,
    answers: Answers,
    incoming: BTreeMap<Session, Incoming>,
    /// Sinks of ended sessions that are still writing, with the stream that each writes.
    closing: Vec<(u128, Drain)>,
    accept: Option<Accept>,
    events: VecDeque<EngineEvent>,
    waker: Waker,
    probes: Probes,
    query: Option<group::Query>,
    arrivals: Arrivals,
    /// When sinks that lag behind are next flushed.
    flush_at: Option<Time>,
    stats: Stats,
}

/// The rate at which packets arrive.
#[derive(Debug)]
struct Arrivals {
    since: Time,
    bytes: u64,
    fast: bool,
    /// Whether the sockets' buffers can hold what arrives during a sleep.
    roomy: bool,
}

impl Arrivals {
    /// Returns whether packets arrive so fast that waking up for each train costs more than polling at intervals.
    fn is_fast(&mut self, now: Time) -> bool {
        let span = now.since(self.since);
        if span >= Span::from_ms(1) {
            self.fast = self.roomy && FAST.span_of(self.bytes) > span;
            (self.since, self.bytes) = (now, 0);
        }
        self.fast
    }
}

impl<P> std::fmt::Debug for Engine<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("bind", &self.config.bind).finish_non_exhaustive()
    }
}

impl Engine {
    /// Binds the sockets. If `accept` is `None`, all offers of streams are refused.
    ///
    /// # Errors
    /// If an address is in use or the system refuses.
    pub fn new(config: EngineConfig, accept: Option<Accept>) -> Result<Self, EngineError> {
        let bind = |address: SocketAddr| {
            let failed = |source| EngineError::Bind { address, source };
            let socket = UdpSocket::bind(address, 1 << 18, false).map_err(failed)?;
            socket.set_buffers(config.receive_buffer, config.send_buffer).map_err(failed)?;
            Ok(socket)
        };
        let socket = bind(config.bind)?;
        let interface = config.interface();
        let mut group = None;
        if config.bind.is_ipv4() {
            let failed = |source| EngineError::Group { interface, source };
            let result = socket.send_groups_by(interface, 1, config.group_loops);
            if config.in_group {
                result.map_err(failed)?;
                let address = Ipv4Addr::from(GROUP);
                let any = peers::interface(socket.local_addr()).is_unspecified();
                if any && socket.local_addr().port() == config.group_port {
                    socket.join(address, interface).map_err(failed)?;
                } else {
                    let shared = SocketAddr::from((address, config.group_port));
                    let other = UdpSocket::bind(shared, 1 << 18, false).map_err(failed)?;
                    let buffers = (config.receive_buffer, config.send_buffer);
                    other.set_buffers(buffers.0, buffers.1).map_err(failed)?;
                    other.join(address, interface).map_err(failed)?;
                    group = Some(other);
                }
            }
        }
        let sockets = std::iter::once(&socket).chain(&group);
        let roomy = sockets.map(UdpSocket::receive_buffer).all(|bytes| bytes >= ROOMY);
        let driver = Driver::new(Clock::start(), socket).with_receiver(group);
        let mut this = Self::with(config, accept, driver)?;
        this.arrivals.roomy = roomy;
        Ok(this)
    }

    /// Returns the address of the socket.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.driver.local_addr()
    }

    /// Waits until a socket is readable (or writable, if datagrams wait), until the waker is used, or until a time.
    ///
    /// # Errors
    /// If the system refuses to wait.
    pub fn wait(&mut self, until: Option<Time>) -> io::Result<()> {
        let now = self.driver.now();
        if until.is_some_and(|until| until <= now) {
            return Ok(());
        }
        if self.arrivals.is_fast(now) && !self.driver.is_blocked() {
            tighten_timers();
            let together = now + TOGETHER;
            let until = until.map_or(together, |until| until.min(together));
            return wait::until(self.driver.clock(), &[], Some(until), Span::ZERO);
        }
        self.driver.wait(until, Span::ZERO, &[self.waker.as_fd()])
    }
}

impl<P: EnginePlatform> Engine<P> {
    /// An engine on this platform, whose address is the configured one, and which is a member of the multicast group if the
    /// configuration says so.
    ///
    /// # Errors
    /// If the secret is too short, or the system refuses a file descriptor.
    pub fn on(
        config: EngineConfig,
        accept: Option<Accept>,
        platform: P,
    ) -> Result<Self, EngineError> {
        Self::with(config, accept, Driver::new(Clock::with_origin(0), platform))
    }

    fn with(
        config: EngineConfig,
        accept: Option<Accept>,
        mut driver: Driver<P>,
    ) -> Result<Self, EngineError> {
        let layout = config.layout();
        let words = layout.words();
        let first = if config.fabric.is_some() { layout.hosts() } else { 1 };
        let fabric = config.fabric.as_ref();
        let platform = driver.platform();
        let host = Host::new(HostConfig {
            me: config.me(),
            incarnation: platform.random() as u32,
            layout,
            ports: 1,
            controller: fabric.and_then(FabricPlace::controller),
            tor: if fabric.is_some_and(|fabric| fabric.tor) { Tor::Switch } else { Tor::None },
            heartbeat: fabric.and_then(|fabric| fabric.heartbeat),
            flow: FlowConfig { ignore_end_mark: config.secret.is_some(), ..config.flow },
            max_sessions: match fabric {
                // An agent holds the labels of its whole rack, even if its own host receives few streams.
                Some(fabric) if fabric.tor => config.max_sessions.max(LABELS),
                // Manifests have places of their own.
                _ => config.max_sessions.saturating_add(incoming::MANIFESTS),
            },
            status_interval: config.flow.status_interval,
        });
        let controller =
            fabric.and_then(|fabric| controller::controller(fabric, platform.realtime_ns()));
        let secure = config.secret.as_deref().map(rackweave_crypt::Key::derive_for_casts);
        let secure = secure.transpose().map_err(EngineError::Key)?;
        let secure = secure.map(|key| Associations::new(key, platform.has_aes(), false));
        let incarnation = if secure.is_some() { platform.random() as u32 } else { 0 };
        let mut peers = Peers::new(config.admission.clone(), first, incarnation);
        for (host, address) in fabric.iter().flat_map(|fabric| &fabric.hosts) {
            peers.set(*host, *address);
        }
        let keys = config.secret.as_deref().map(keys);
        let waker = Waker::new().map_err(EngineError::System)?;
        Ok(Self {
            driver,
            host,
            controller,
            interface: config.interface(),
            grouped: config.in_group && config.bind.is_ipv4(),
            peers,
            words,
            key: keys.as_ref().map(|keys| keys.0.clone()),
            secret: keys.map(|keys| keys.1),
            secure,
            cookies: Cookies::default(),
            foreign: Vec::new(),
            invited: BTreeMap::new(),
            memo: Memo::default(),
            relayed: VecDeque::new(),
            sending: BTreeMap::new(),
            answers: Answers::default(),
            incoming: BTreeMap::new(),
            closing: Vec::new(),
            accept,
            events: VecDeque::new(),
            waker,
            probes: Probes::default(),
            query: None,
            arrivals: Arrivals { since: Time::ZERO, bytes: 0, fast: false, roomy: false },
            flush_at: None,
            stats: Stats::default(),
            config,
        })
    }

    /// Returns a handle that wakes [`Engine::wait`] from another thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Returns the counters since the engine was created.
    #[must_use]
    pub const fn stats(&self) -> Stats {
        let DriverStats { sent, refused, send_calls, trains } = self.driver.stats();
        Stats { sent: sent + refused, refused, send_calls, trains, ..self.stats }
    }

    /// Returns up to [`MAX_FOREIGN`] addresses whose datagrams were ignored because they are not admitted: a host with several addresses
    /// may answer from another one than it was asked at.
    #[must_use]
    pub fn foreign(&self) -> &[SocketAddr] {
        &self.foreign
    }

    /// Returns the number of the host at an address, and accepts its packets from now on.
    pub fn add_peer(&mut self, address: SocketAddr) -> HostId {
        self.peers.add(address)
    }

    /// Returns the address of a host, if it is known.
    #[must_use]
    pub fn address(&self, host: HostId) -> Option<SocketAddr> {
        self.peers.address(host)
    }

    /// The time by the platform's clock, by which all of the engine's times are.
    #[must_use]
    pub fn now(&self) -> Time {
        self.driver.peek_now()
    }

    /// Returns the clock to which all times refer.
    #[must_use]
    pub const fn clock(&self) -> Clock {
        self.driver.clock()
    }

    /// Returns whether datagrams wait because the socket's send buffer is full: the next turn is due when it is writable.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.driver.is_blocked()
    }

    /// Returns the next event for the application.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<EngineEvent> {
        let event = self.events.pop_front()?;
        tracing::debug!(?event);
        Some(event)
    }

    /// Receives what has arrived, serves timeouts, and sends what may be sent. Returns when the next turn is due if
    /// nothing happens before; a time that has passed means immediately.
    ///
    /// # Errors
    /// If the socket has failed.
    pub fn turn(&mut self) -> io::Result<Option<Time>> {
        self.waker.clear();
        Driver::turn(self)
    }
}

impl<P: EnginePlatform> Driven<P> for Engine<P> {
    fn driver(&mut self) -> &mut Driver<P> {
        &mut self.driver
    }

    fn handle_datagrams(&mut self, now: Time, batch: &ReceiveBatch) {
        self.handle_batch(now, batch);
    }

    fn handle_timeout(&mut self, now: Time, more: bool) -> ControlFlow<()> {
        if self.host.poll_timeout().is_some_and(|at| at <= now) {
            self.host.handle_timeout(now);
        }
        while let Some(address) = self.driver.take_lost() {
            self.peers.forget_local(address);
        }
        self.feed_sources(now);
        self.handle_events(now);
        self.probe_late_hosts(now);
        self.flush_at = self.drain(now, !more);
        ControlFlow::Continue(())
    }

    fn transmit(&mut self, now: Time) -> io::Result<bool> {
        self.poll_asks(now);
        self.poll_answers(now);
        let more = self.send(now)?;
        self.handle_events(now);
        self.reap();
        Ok(more)
    }

    fn finish_turn(&mut self, now: Time) -> Option<Time> {
        // Received packets may include reports of agents, which the controller answers.
        if self.control(now) || !self.events.is_empty() || self.has_work() {
            return Some(now);
        }
        let controller = self.next_control();
        let host = self.host.poll_timeout();
        let asks = [self.next_ask(), self.answers.next_ask()];
        let own = [self.flush_at, self.next_retry(), self.next_probe()];
        let times = [host, controller].into_iter().chain(own).chain(asks);
        times.flatten().min()
    }
}
