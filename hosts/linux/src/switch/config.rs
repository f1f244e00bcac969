//! The configuration of a user-space switch.

use std::io;
use std::net::SocketAddr;

use rackweave_core::{HostId, Span, Time};
use rackweave_switch::config::{
    BufferConfig, CircuitError, FabricConfig, Fault, FaultKind, FaultPlace, Move,
};
use rackweave_switch::system::SystemError;
use rackweave_switch::{Fabric, FabricError};

use crate::Clock;
use crate::endpoint::Network;

/// The configuration of a user-space switch: a whole fabric in one process, whose switches run the programs of the
/// group system `S`. With `()` they run none.
#[derive(Clone, Debug)]
pub struct SwitchConfig<S = ()> {
    /// The topology, links and switches.
    pub fabric: FabricConfig,
    /// The group system whose programs the switches run.
    pub system: S,
    /// Faults to inject. Pauses and crashes of hosts are skipped.
    pub faults: Vec<Fault>,
    /// Changes of circuits that are known beforehand; others are requested by
    /// [`Control::reconfigure`](super::Control::reconfigure). Only for pods with an optical circuit switch.
    pub moves: Vec<Move>,
    /// The seed of all random streams.
    pub seed: u64,
    /// The number of the repetition, which selects the random streams together with the seed.
    pub run: u64,
    /// The clock, which hosts can share. The times of faults and moves refer to it.
    pub clock: Clock,
    /// How each host is attached, by its number.
    pub edges: Vec<Edge>,
    /// The networks from which the switch learns the addresses of hosts; by default loopback. Anyone who can send from
    /// such a network can take the place of a host.
    pub learn_from: Vec<Network>,
    /// The largest number of frames in the fabric at a time; each takes 2 KiB of memory.
    pub frames: u32,
    /// The largest number of bytes that wait for a host's own link, as they would in the host's NIC.
    pub nic_queue_bytes: u64,
    /// The length of the largest IP packet in bytes.
    pub mtu: u32,
    /// The interval at which sockets are read while there is traffic. A longer interval needs less processor time, but
    /// frames may leave late by as much.
    pub batch_window: Span,
    /// Whether the switch polls continuously and never sleeps.
    pub busy_poll: bool,
    /// The size in bytes of the send buffer, and of the receive buffer, of each socket.
    pub socket_buffer: usize,
    /// The interval at which queues are sampled for [`Report::queue_series`](super::Report::queue_series); zero
    /// disables sampling.
    pub sample_every: Span,
}

/// How a host is attached to the fabric. All hosts of a fabric are attached in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edge {
    /// By datagrams (`wire::overlay`): the switch has one UDP port for each host.
    Udp {
        /// The address of the switch's port; with port number 0 the system chooses one.
        bind: SocketAddr,
        /// The address of the host; datagrams from others are dropped. With `None`, the switch learns it from the first
        /// datagram that names this host as its source, and learns it again if the host returns at another port.
        host: Option<SocketAddr>,
    },
    /// By Ethernet frames, through an interface in this network namespace that is connected to the host's. Host `n` has
    /// the address 10.x.y.z with `n` in the last 24 bits.
    Interface {
        /// The name of the interface in the switch's namespace.
        name: String,
    },
}

impl SwitchConfig {
    /// Creates a configuration of switches that only forward, with defaults for everything else.
    #[must_use]
    pub fn new(fabric: FabricConfig, edges: Vec<Edge>) -> Self {
        let loopback = ["127.0.0.0/8", "::1"].map(|text| text.parse::<Network>());
        Self {
            fabric,
            system: (),
            faults: Vec::new(),
            moves: Vec::new(),
            seed: 1,
            run: 0,
            clock: Clock::start(),
            edges,
            learn_from: loopback.into_iter().flatten().collect(),
            frames: 1 << 16,
            // A thousand full packets, which is the usual length of Linux's queue before a NIC.
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
    /// Returns the same configuration with switches that run the programs of `system`.
    #[must_use]
    pub fn with_system<T>(self, system: T) -> SwitchConfig<T> {
        self.map_system(|_| system)
    }

    pub(super) fn map_system<T>(self, system: impl FnOnce(S) -> T) -> SwitchConfig<T> {
        SwitchConfig {
            fabric: self.fabric,
            system: system(self.system),
            faults: self.faults,
            moves: self.moves,
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

    /// Validates everything that can be validated without a socket.
    pub(super) fn check(&self) -> Result<Fabric, SwitchError> {
        let fabric = Fabric::new(&self.fabric)?;
        for Move { at, circuits } in &self.moves {
            let possible = fabric.with_circuits(circuits);
            possible.map_err(|error| SwitchError::Circuits { at: *at, error })?;
        }
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

/// Why a switch cannot be created, or has stopped.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// No fabric can be built from this configuration.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The group system cannot run on this fabric.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The number of edges differs from the number of hosts.
    #[error("the fabric has {hosts} hosts, but the configuration attaches {edges}")]
    Edges {
        /// The number of hosts of the fabric.
        hosts: u32,
        /// The number of edges in the configuration.
        edges: usize,
    },
    /// Some hosts are attached by UDP ports, others by interfaces.
    #[error("all hosts must be attached in the same way: by UDP ports, or by interfaces")]
    MixedEdges,
    /// The factor of the dynamic thresholds is out of range.
    #[error("the shared buffer's alpha must be between 1/256 and 1024, not {0}")]
    Alpha(f64),
    /// Frames of this MTU are longer than a frame buffer.
    #[error("the MTU must be between 68 and 2034, not {0}")]
    Mtu(u32),
    /// A fault names a host or link that the fabric does not have.
    #[error("{what} {number} of a fault does not exist: the fabric has {count}")]
    NoSuchPlace {
        /// What the fault names: "host" or "core link".
        what: &'static str,
        /// The number that the fault names.
        number: u32,
        /// How many the fabric has.
        count: u32,
    },
    /// A fault ends before it begins.
    #[error("a fault must end after it begins: this one lasts from {from} until {until}")]
    EmptyFault {
        /// The time at which it begins.
        from: Time,
        /// The time at which it ends.
        until: Time,
    },
    /// The fabric cannot have the circuits of a move.
    #[error("the circuits at {at} are impossible: {error}")]
    Circuits {
        /// When the move would begin.
        at: Time,
        /// The reason.
        error: CircuitError,
    },
    /// A probability is outside [0, 1].
    #[error("a fault's probability must be between 0 and 1, not {0}")]
    Probability(f64),
    /// The address is in use, or is not one of this machine.
    #[error("cannot bind UDP port {address} of {host}: {source}")]
    Bind {
        /// The host that the port is for.
        host: HostId,
        /// The configured address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The interface does not exist in this namespace.
    #[error("there is no interface `{name}` in this network namespace")]
    NoInterface {
        /// The configured name.
        name: String,
    },
    /// The process lacks the capability that packet sockets need.
    #[error(
        "cannot open interface `{name}`: packet sockets need the capability CAP_NET_RAW; run as root, or use UDP \
         ports (--listen), which need no privilege"
    )]
    NotPermitted {
        /// The name of the interface.
        name: String,
    },
    /// An interface cannot be used for another reason.
    #[error("cannot open interface `{name}`: {source}")]
    Interface {
        /// The name of the interface.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// A socket has failed.
    #[error("the socket of {host} has failed: {source}")]
    Socket {
        /// The host that the socket belongs to.
        host: HostId,
        /// The system's error.
        source: io::Error,
    },
    /// The system refuses to wait.
    #[error("cannot wait for sockets: {0}")]
    Wait(io::Error),
}
