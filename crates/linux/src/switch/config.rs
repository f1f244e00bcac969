//! The configuration of a user-space switch.

use std::io;
use std::net::SocketAddr;

use rackweave_core::{HostId, Span, Time};
use rackweave_switch::config::{BufferConfig, FabricConfig, Fault, FaultKind, FaultPlace};
use rackweave_switch::system::SystemError;
use rackweave_switch::{Fabric, FabricError};

use crate::Clock;
use crate::endpoint::Network;

/// A user-space switch: the whole fabric in one process. Its switches run the programs of the group system `S`;
/// `()` is none.
#[derive(Clone, Debug)]
pub struct SwitchConfig<S = ()> {
    /// Switches and links.
    pub fabric: FabricConfig,
    /// The group system whose programs the switches run.
    pub system: S,
    /// Faults to inject. Pauses and crashes of hosts are skipped.
    pub faults: Vec<Fault>,
    /// Seed of all random streams.
    pub seed: u64,
    /// Repetition.
    pub run: u64,
    /// The clock, which hosts can share; times of faults refer to it.
    pub clock: Clock,
    /// How each host is attached, by its number.
    pub edges: Vec<Edge>,
    /// The networks from which the address of a host may be learnt; loopback by default. Anyone who can send from there can
    /// take a host's place.
    pub learn_from: Vec<Network>,
    /// Most frames inside; each takes 2 KiB.
    pub frames: u32,
    /// Most bytes that wait for a host's own link, in its NIC's place.
    pub nic_queue_bytes: u64,
    /// The largest IP packet.
    pub mtu: u32,
    /// The interval at which sockets are read while there is traffic: a longer one takes less of the processor, and lets
    /// frames leave later than due by as much.
    pub batch_window: Span,
    /// Never sleeps.
    pub busy_poll: bool,
    /// Bytes of each socket's buffers, each way.
    pub socket_buffer: usize,
    /// The interval at which queues are sampled for [`Report::queue_series`](super::Report::queue_series); zero: never.
    pub sample_every: Span,
}

/// How a host is attached to the fabric. All hosts of a fabric are attached in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edge {
    /// By datagrams (`wire::overlay`): each host has a UDP port of the switch of its own.
    Udp {
        /// The port; 0: the system picks one.
        bind: SocketAddr,
        /// The host's address; datagrams from others are dropped. `None`: learnt from the first datagram that names this
        /// host as its source, and again when the host returns at another port.
        host: Option<SocketAddr>,
    },
    /// By Ethernet frames: an interface of this network namespace, the other end of the host's. Host `n` is
    /// 10.x.y.z with `n` in its last 24 bits.
    Interface {
        /// The interface.
        name: String,
    },
}

impl SwitchConfig {
    /// Switches that only forward, with defaults for all that is not named.
    #[must_use]
    pub fn new(fabric: FabricConfig, edges: Vec<Edge>) -> Self {
        let loopback = ["127.0.0.0/8", "::1"].map(|text| text.parse::<Network>());
        Self {
            fabric,
            system: (),
            faults: Vec::new(),
            seed: 1,
            run: 0,
            clock: Clock::start(),
            edges,
            learn_from: loopback.into_iter().flatten().collect(),
            frames: 1 << 16,
            // A thousand full packets: Linux's usual queue before a NIC.
            nic_queue_bytes: 1000 * 1538,
            mtu: 1500,
            batch_window: Span::from_us(20),
            busy_poll: false,
            socket_buffer: 8 << 20,
            sample_every: Span::ZERO,
        }
    }
}

impl<S> SwitchConfig<S> {
    /// The same with switches that run the programs of `system`.
    #[must_use]
    pub fn with_system<T>(self, system: T) -> SwitchConfig<T> {
        self.map_system(|_| system)
    }

    pub(super) fn map_system<T>(self, system: impl FnOnce(S) -> T) -> SwitchConfig<T> {
        SwitchConfig {
            fabric: self.fabric,
            system: system(self.system),
            faults: self.faults,
            seed: self.seed,
            run: self.run,
            clock: self.clock,
            edges: self.edges,
            learn_from: self.learn_from,
            frames: self.frames,
            nic_queue_bytes: self.nic_queue_bytes,
            mtu: self.mtu,
            batch_window: self.batch_window,
            busy_poll: self.busy_poll,
            socket_buffer: self.socket_buffer,
            sample_every: self.sample_every,
        }
    }

    /// Checks all that can be checked without a socket.
    pub(super) fn check(&self) -> Result<Fabric, SwitchError> {
        let fabric = Fabric::new(&self.fabric)?;
        let (hosts, edges) = (fabric.hosts(), self.edges.len());
        if hosts as usize != edges {
            return Err(SwitchError::Edges { hosts, edges });
        }
        let is_udp = |edge: &Edge| matches!(edge, Edge::Udp { .. });
        if self.edges.iter().any(is_udp) && !self.edges.iter().all(is_udp) {
            return Err(SwitchError::MixedEdges);
        }
        if let BufferConfig::Shared { alpha, .. } = self.fabric.switch.buffer
            && !(1.0 / 256.0..=1024.0).contains(&alpha)
        {
            return Err(SwitchError::Alpha(alpha));
        }
        if !(68..=super::frame::MAX_FRAME as u32 - 14).contains(&self.mtu) {
            return Err(SwitchError::Mtu(self.mtu));
        }
        let cables = fabric.core_links().len() as u32;
        for fault in &self.faults {
            check_fault(fault, hosts, cables)?;
        }
        Ok(fabric)
    }
}

fn check_fault(fault: &Fault, hosts: u32, cables: u32) -> Result<(), SwitchError> {
    let missing = |what, number, count| Err(SwitchError::NoSuchPlace { what, number, count });
    match fault.place {
        FaultPlace::Host(HostId(host)) | FaultPlace::HostLink(HostId(host)) if host >= hosts => {
            return missing("host", host, hosts);
        }
        FaultPlace::CoreLink(cable) if cable >= cables => {
            return missing("core link", cable, cables);
        }
        _ => {}
    }
    if fault.until <= fault.from {
        return Err(SwitchError::EmptyFault { from: fault.from, until: fault.until });
    }
    if let FaultKind::Loss(p)
    | FaultKind::Corruption(p)
    | FaultKind::Duplication(p)
    | FaultKind::Reordering { probability: p, .. } = fault.kind
        && !(0.0..=1.0).contains(&p)
    {
        return Err(SwitchError::Probability(p));
    }
    Ok(())
}

/// Why there is no switch, or no more.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// The fabric is impossible.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The system is impossible on this fabric.
    #[error(transparent)]
    System(#[from] SystemError),
    /// Each host needs an edge.
    #[error("the fabric has {hosts} hosts, but {edges} edges are given")]
    Edges {
        /// Hosts.
        hosts: u32,
        /// Edges.
        edges: usize,
    },
    /// UDP ports and interfaces at once.
    #[error("all hosts must be joined in the same way: by UDP ports, or by interfaces")]
    MixedEdges,
    /// The factor of dynamic thresholds must be positive.
    #[error("the shared buffer's alpha must be between 1/256 and 1024, not {0}")]
    Alpha(f64),
    /// Frames that do not fit their slots.
    #[error("the MTU must be between 68 and 2034, not {0}")]
    Mtu(u32),
    /// A fault names something that the fabric does not have.
    #[error("{what} {number} of a fault does not exist: the fabric has {count}")]
    NoSuchPlace {
        /// "host" or "core link".
        what: &'static str,
        /// Its number.
        number: u32,
        /// How many there are.
        count: u32,
    },
    /// A fault that ends before it begins.
    #[error("a fault from {from} until {until} never happens")]
    EmptyFault {
        /// Its beginning.
        from: Time,
        /// Its end.
        until: Time,
    },
    /// A probability out of [0, 1].
    #[error("a fault's probability must be between 0 and 1, not {0}")]
    Probability(f64),
    /// The address is taken, or not this machine's.
    #[error("cannot bind UDP port {address} of {host}: {source}")]
    Bind {
        /// Whose port.
        host: HostId,
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// There is no such interface here.
    #[error("there is no interface `{name}` in this network namespace")]
    NoInterface {
        /// Its name.
        name: String,
    },
    /// Packet sockets need a privilege.
    #[error(
        "cannot open interface `{name}`: packet sockets need the capability CAP_NET_RAW; run as root, or use UDP \
         ports (--listen), which need no privilege"
    )]
    NotPermitted {
        /// Its name.
        name: String,
    },
    /// Another failure of an interface.
    #[error("cannot open interface `{name}`: {source}")]
    Interface {
        /// Its name.
        name: String,
        /// What the system says.
        source: io::Error,
    },
    /// A socket has stopped to work.
    #[error("the socket of {host} does not work any more: {source}")]
    Socket {
        /// Whose.
        host: HostId,
        /// What the system says.
        source: io::Error,
    },
    /// Waiting failed.
    #[error("cannot wait for sockets: {0}")]
    Wait(io::Error),
}
