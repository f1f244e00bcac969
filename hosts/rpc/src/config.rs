//! The configuration of a node.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rackweave_core::{HostId, Rate, Span};
use rackweave_linux::endpoint::{Network, TicketFile};
use rackweave_linux::{AnyEndpoint, Endpoint, EndpointConfig, Key, Peers, TcpConfig, TcpEndpoint};
use rackweave_transport::{Profile as _, TransportConfig, homa, polo, tcp};

use crate::error::BindError;

/// The round trip between processes that the windows of [`Transport`]'s profiles cover: two system calls, two wake-ups
/// and a switch.
const RTT: Span = Span::from_us(60);

/// The shortest time after which a peer is considered dead. It is long because processes wait for a processor.
const PATIENCE: Span = Span::from_secs(2);

/// The longest message of [`Transport`]'s profiles. Both ends hold a message in memory as a whole,
/// so streams suit longer ones better.
const MAX_MESSAGE: u32 = 64 << 20;

/// A transport and its parameters, the same at both ends.
///
/// The profiles are those of the simulator, adapted to real hosts: windows that cover a round trip between processes,
/// about two seconds of patience with a silent peer, messages of up to 64 MiB. The values are Rackweave's choice.
#[derive(Clone, Debug)]
pub struct Transport(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Udp { config: TransportConfig, link: Rate },
    Kernel { congestion: Option<String> },
}

impl Transport {
    /// Homa as in the Linux kernel module, for a link of this rate: short calls overtake long ones
    /// at both ends and, with priorities, in the network. Calls and streams.
    #[must_use]
    pub fn homa(link: Rate) -> Self {
        Self::of_homa(homa::Config::linux(link))
    }

    /// Homa with the enhancements of the talk on Leverage Homa: windows that follow each peer's measured
    /// round trip. Calls and streams.
    #[must_use]
    pub fn leverage_homa(link: Rate) -> Self {
        Self::of_homa(homa::Config::leverage(link))
    }

    fn of_homa(mut config: homa::Config) -> Self {
        let link = config.link;
        let window = (link.bytes_in(RTT).min(1 << 20) as u32).max(config.window);
        config.unscheduled_bytes = window;
        config.window = window;
        config.fifo_grant_increment = window;
        config.max_incoming = config.max_incoming.max(u64::from(window) * 8);
        config.max_message_bytes = MAX_MESSAGE;
        config.paced_resends = true;
        config.one_resend_per_peer = false;
        config.busy_if_unsent = false;
        config.need_ack_resends = false;
        config.resend_ticks = 5;
        config.resend_interval = 5;
        config.request_ack_ticks = 5;
        config.max_finished = 1 << 20;
        let mut config = config.patient(PATIENCE);
        config.finished_ticks = config.remembered_for() + 500;
        Self::custom(TransportConfig::Homa(Arc::new(config)), link)
    }

    /// Polo: receivers keep queues in the network short by ECN, and admit very many senders at once.
    /// Calls, no streams.
    #[must_use]
    pub fn polo(link: Rate) -> Self {
        let mut config = polo::Config::slides().for_path(link, RTT).for_hosts();
        config.common.max_message_bytes = MAX_MESSAGE;
        Self::custom(TransportConfig::Polo(Arc::new(config)).patient(PATIENCE), link)
    }

    /// TCP with CUBIC, implemented in this library and carried by UDP like the others. Calls and streams.
    #[must_use]
    pub fn tcp(link: Rate) -> Self {
        Self::of_tcp(tcp::Config::tcp(), link)
    }

    /// DCTCP: TCP whose window follows the share of packets that the network has marked (RFC 8257).
    /// Calls and streams.
    #[must_use]
    pub fn dctcp(link: Rate) -> Self {
        Self::of_tcp(tcp::Config::dctcp(), link)
    }

    fn of_tcp(config: tcp::Config, link: Rate) -> Self {
        Self::custom(TransportConfig::Tcp(Arc::new(config)).patient(PATIENCE), link)
    }

    /// The kernel's TCP, with the named congestion control or the system's default: for comparison, and for
    /// networks that carry nothing else. Calls and streams.
    #[must_use]
    pub fn kernel_tcp(congestion: Option<&str>) -> Self {
        Self(Kind::Kernel { congestion: congestion.map(str::to_owned) })
    }

    /// Any transport with any parameters, on a link of this rate.
    #[must_use]
    pub const fn custom(config: TransportConfig, link: Rate) -> Self {
        Self(Kind::Udp { config, link })
    }

    /// The transport with its parameters, and the rate of the link; `None` for the kernel's TCP.
    #[must_use]
    pub const fn parameters(&self) -> Option<(&TransportConfig, Rate)> {
        match &self.0 {
            Kind::Udp { config, link } => Some((config, *link)),
            Kind::Kernel { .. } => None,
        }
    }

    /// Bytes that the application reads from a stream before the peer's window is updated.
    pub(crate) fn credit_step(&self) -> u64 {
        let window = match &self.0 {
            Kind::Udp { config: TransportConfig::Homa(config), .. } => {
                u64::from(config.streams.window_bytes)
            }
            Kind::Udp { config: TransportConfig::Tcp(config), .. } => {
                u64::from(config.receive_window)
            }
            Kind::Udp { .. } => u64::MAX,
            Kind::Kernel { .. } => KERNEL_WINDOW,
        };
        (window / 8).clamp(1, 128 << 10)
    }
}

/// Bytes of a stream over the kernel's TCP that may wait for the application.
const KERNEL_WINDOW: u64 = 1 << 20;

/// The configuration of a [`Node`](crate::Node).
///
/// ```
/// # use rackweave_rpc::{NodeConfig, Rate, Transport};
/// # use std::time::Duration;
/// let config = NodeConfig::new(Transport::homa(Rate::from_gbps(25)), ([0, 0, 0, 0], 7000).into())
///     .allow("10.0.0.0/8".parse()?)
///     .default_deadline(Duration::from_secs(2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct NodeConfig {
    pub(crate) transport: Transport,
    bind: SocketAddr,
    peers: Vec<SocketAddr>,
    allow: Vec<Network>,
    switch: Option<(HostId, SocketAddr, u32)>,
    send_bytes: u64,
    pub(crate) receive_bytes: u64,
    socket_buffer: usize,
    key: Option<Key>,
    tickets: Option<PathBuf>,
    accept_early: bool,
    pub(crate) deadline: Duration,
    pub(crate) max_waiting_requests: usize,
    pub(crate) max_waiting_calls: usize,
    pub(crate) write_ahead: u64,
    pub(crate) grace: Duration,
}

impl NodeConfig {
    /// A node with this transport and its socket at this address; with port 0 the system chooses a port.
    ///
    /// It may call any peer, and serves peers whose addresses are named or
    /// [allowed](NodeConfig::allow), or that it has called.
    #[must_use]
    pub const fn new(transport: Transport, bind: SocketAddr) -> Self {
        Self {
            transport,
            bind,
            peers: Vec::new(),
            allow: Vec::new(),
            switch: None,
            send_bytes: 256 << 20,
            receive_bytes: 256 << 20,
            socket_buffer: 4 << 20,
            key: None,
            tickets: None,
            accept_early: false,
            deadline: Duration::from_secs(10),
            max_waiting_requests: 4096,
            max_waiting_calls: 65_536,
            write_ahead: 1 << 20,
            grace: Duration::from_secs(5),
        }
    }

    /// Serves the peer at this address.
    #[must_use]
    pub fn peer(mut self, address: SocketAddr) -> Self {
        self.peers.push(address);
        self
    }

    /// Serves peers at these addresses, whatever their ports.
    #[must_use]
    pub fn allow(mut self, network: Network) -> Self {
        self.allow.push(network);
        self
    }

    /// Makes the node host number `host` of `hosts` at a port of a user-space switch: all its packets go there, and it
    /// accepts no others. Peers are known by number ([`Node::host`](crate::Node::host)).
    #[must_use]
    pub const fn through_switch(mut self, host: u32, port: SocketAddr, hosts: u32) -> Self {
        self.switch = Some((HostId(host), port, hosts));
        self
    }

    /// Maximum of bytes that wait to be sent or acknowledged, messages and streams together: 256 MiB. Further calls wait for
    /// room. One message at a time is always admitted.
    #[must_use]
    pub const fn send_memory(mut self, bytes: u64) -> Self {
        self.send_bytes = bytes;
        self
    }

    /// Maximum of bytes of arriving messages and streams: 256 MiB. Packets that find no room are
    /// dropped and retransmitted; a message longer than this never arrives. The same number of bytes of requests and
    /// messages may wait for a server. Unread bytes of streams count against each stream's own window
    /// instead.
    #[must_use]
    pub const fn receive_memory(mut self, bytes: u64) -> Self {
        self.receive_bytes = bytes;
        self
    }

    /// Size of the socket's buffers in either direction: 4 MiB; the kernel may grant less.
    #[must_use]
    pub const fn socket_buffer(mut self, bytes: usize) -> Self {
        self.socket_buffer = bytes;
        self
    }

    /// Encrypts and authenticates everything that the node sends and receives: it talks only to nodes with the same key, among
    /// the peers that it serves. Not with [`Transport::kernel_tcp`] or [through a switch](NodeConfig::through_switch).
    /// `docs/ops/security.md` says what this protects.
    ///
    /// ```
    /// # use rackweave_rpc::{Key, NodeConfig, Rate, Transport};
    /// # let secret = [7; 32];
    /// let config = NodeConfig::new(Transport::homa(Rate::from_gbps(25)), ([0, 0, 0, 0], 7000).into())
    ///     .allow("10.0.0.0/8".parse()?)
    ///     .key(Key::derive(&secret)?); // for instance the content of a file
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn key(mut self, key: Key) -> Self {
        self.key = Some(key);
        self
    }

    /// Keeps in this file what servers that [accept early calls](NodeConfig::accept_early) hand out, so that the first
    /// [idempotent](crate::Call::idempotent) calls of the next process need not wait for a handshake: they are sent
    /// together with it. The file is replaced as a whole, has mode 0600, and several processes may use it. Only with a
    /// [key](NodeConfig::key).
    ///
    /// Someone on the path who holds such a call back can have it executed up to fifteen seconds later, in addition to its own
    /// execution; and who learns the content of this file and the key can read the early calls of the last hour.
    /// `docs/ops/security.md` has the rule.
    #[must_use]
    pub fn tickets(mut self, file: impl Into<PathBuf>) -> Self {
        self.tickets = Some(file.into());
        self
    }

    /// Accepts early calls: the client has marked them as [idempotent](crate::Call::idempotent), and sent them together
    /// with the handshake ([`NodeConfig::tickets`]). Each is accepted once, but its client cannot know whether it was.
    /// Only with a [key](NodeConfig::key).
    #[must_use]
    pub const fn accept_early(mut self) -> Self {
        self.accept_early = true;
        self
    }

    /// Deadline of calls that do not set one: 10 s.
    #[must_use]
    pub const fn default_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Maximum of requests, messages and streams that wait for [`Server::next`](crate::Server::next): 4096. Further requests
    /// are refused ([`Refusal::Full`](crate::Refusal::Full)), streams reset, and one-way messages dropped
    /// and counted.
    #[must_use]
    pub const fn max_waiting_requests(mut self, requests: usize) -> Self {
        self.max_waiting_requests = requests;
        self
    }

    /// Maximum of calls that wait for [send memory](NodeConfig::send_memory): 65,536. Further calls fail with
    /// [`CallError::Full`](crate::CallError::Full).
    #[must_use]
    pub const fn max_waiting_calls(mut self, calls: usize) -> Self {
        self.max_waiting_calls = calls;
        self
    }

    /// Bytes that a stream accepts from its writer beyond the bytes that the peer has: 1 MiB.
    #[must_use]
    pub const fn write_ahead(mut self, bytes: u64) -> Self {
        self.write_ahead = if bytes == 0 { 1 } else { bytes };
        self
    }

    /// How long [`Node::shutdown`](crate::Node::shutdown) waits for outstanding work, and how long a
    /// stream that was shut down and dropped may take to end: 5 s.
    #[must_use]
    pub const fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Whether there are peers that the node serves before it has called them.
    pub(crate) fn serves_anybody(&self) -> bool {
        !self.peers.is_empty() || !self.allow.is_empty() || self.switch.is_some()
    }

    /// Binds the socket, and reads the file of tickets.
    pub(crate) fn endpoint(&self) -> Result<(AnyEndpoint, Option<TicketFile>), BindError> {
        if (self.tickets.is_some() || self.accept_early) && self.key.is_none() {
            return Err(BindError::EarlyWithoutKey);
        }
        let (file, tickets) = self.tickets.as_deref().map(TicketFile::open).transpose()?.unzip();
        let (host, peers) = match self.switch {
            Some((host, port, hosts)) => (host, Peers::Switch { port, hosts }),
            None => {
                (HostId(0), Peers::Direct { hosts: BTreeMap::new(), allow: self.allow.clone() })
            }
        };
        let mut endpoint = match &self.transport.0 {
            Kind::Udp { config, link } => AnyEndpoint::from(Endpoint::new(EndpointConfig {
                link: *link,
                send_bytes: self.send_bytes,
                receive_bytes: self.receive_bytes,
                socket_buffer: self.socket_buffer,
                key: self.key.clone(),
                accept_early: self.accept_early,
                tickets,
                ..EndpointConfig::new(host, self.bind, peers, config)
            })?),
            Kind::Kernel { .. } if self.key.is_some() => return Err(BindError::KeyOverTcp),
            Kind::Kernel { congestion } => AnyEndpoint::from(TcpEndpoint::new(TcpConfig {
                congestion: congestion.clone(),
                send_bytes: self.send_bytes,
                receive_bytes: self.receive_bytes,
                max_message_bytes: u64::from(MAX_MESSAGE),
                stream_window: KERNEL_WINDOW,
                ..TcpConfig::new(host, self.bind, peers)
            })?),
        };
        for &peer in &self.peers {
            endpoint.add_peer(peer);
        }
        Ok((endpoint, file))
    }
}
