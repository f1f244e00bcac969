//! The configuration of an engine.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use rackweave_core::{HostId, Span};
use rackweave_orca::flow::FlowConfig;
use rackweave_orca::label::Layout;
use rackweave_wire::orca::{Reason, Session};

use super::{Admission, peers};
use crate::format::is_manifest;
use crate::sink::MakeSink;

/// How many hosts an engine without a fabric can distinguish.
const HOSTS: u32 = 8192;

/// The configuration of an [`Engine`](super::Engine).
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The address to bind the socket to.
    pub bind: SocketAddr,
    /// The address of the interface for multicast; if it is unspecified, the system chooses.
    pub interface: Ipv4Addr,
    /// Whether the engine joins the multicast group.
    pub in_group: bool,
    /// Whether the group's datagrams are looped back to other sockets of this machine.
    pub group_loops: bool,
    /// The UDP port of the multicast group.
    pub group_port: u16,
    /// The content of the key file, at least 16 bytes; `None` if packets are neither encrypted nor authenticated.
    pub secret: Option<Vec<u8>>,
    /// The hosts whose packets are accepted, in addition to those of named peers.
    pub admission: Admission,
    /// The names of the groups that this host belongs to.
    pub groups: Vec<String>,
    /// The fabric, for labels and relays; `None` if the hosts form no fabric that the engine knows.
    pub fabric: Option<FabricPlace>,
    /// The parameters of each session's flow control and retransmission.
    pub flow: FlowConfig,
    /// The largest receive window of a session, in bytes.
    pub room: u64,
    /// The memory in bytes that the windows of all received sessions may need together, as [`Window::memory`] counts it.
    /// As it is used up, further sessions get smaller windows, and then none.
    ///
    /// [`Window::memory`]: crate::sink::Window::memory
    pub receive_memory: u64,
    /// The socket's receive buffer in bytes.
    pub receive_buffer: usize,
    /// The socket's send buffer in bytes.
    pub send_buffer: usize,
    /// The largest number of sessions received at the same time.
    pub max_sessions: u32,
    /// For how long a receiver that fell silent is invited again.
    pub retry: Span,
    /// For how long reading what this host has of a stream may make no progress, and so keep its sender waiting. It must be longer than any
    /// single operation of a disk takes.
    pub prepare: Span,
}

/// A host's position in a fabric in which each host knows all others.
#[derive(Clone, Debug)]
pub struct FabricPlace {
    /// The number of this host.
    pub me: HostId,
    /// The racks, ports and labels of the fabric.
    pub layout: Arc<Layout>,
    /// The number and address of each host.
    pub hosts: Vec<(HostId, SocketAddr)>,
    /// The host of the controller, if it is another host.
    pub controller: Option<HostId>,
    /// Whether the switches forward by labels.
    pub tor: bool,
    /// The interval at which this agent pings the controller; `None` if this host is not an agent.
    pub heartbeat: Option<Span>,
    /// Set if this host is the controller as well: an agent that is silent for this long is considered dead.
    pub control: Option<Span>,
}

impl FabricPlace {
    /// Returns the controller's host, which may be this one.
    pub(super) fn controller(&self) -> Option<HostId> {
        if self.control.is_some() { Some(self.me) } else { self.controller }
    }
}

impl EngineConfig {
    /// Returns the default configuration, which accepts packets from this machine only.
    #[must_use]
    pub fn new(bind: SocketAddr) -> Self {
        Self {
            bind,
            interface: Ipv4Addr::UNSPECIFIED,
            in_group: false,
            group_loops: false,
            group_port: rackweave_wire::orca::PORT,
            secret: None,
            admission: Admission { loopback: true, ..Admission::default() },
            groups: Vec::new(),
            fabric: None,
            flow: FlowConfig::default(),
            room: 16 << 20,
            receive_memory: 1 << 30,
            receive_buffer: 16 << 20,
            send_buffer: 1 << 20,
            max_sessions: 1024,
            retry: Span::from_secs(10),
            // A system that writes much to a slow disk lets a sync wait for minutes.
            prepare: Span::from_secs(300),
        }
    }

    /// Returns the interface for multicast.
    pub(super) fn interface(&self) -> Ipv4Addr {
        match self.interface {
            Ipv4Addr::UNSPECIFIED => peers::interface(self.bind),
            named => named,
        }
    }

    pub(super) fn me(&self) -> HostId {
        self.fabric.as_ref().map_or(HostId(0), |fabric| fabric.me)
    }

    pub(super) fn layout(&self) -> Arc<Layout> {
        match &self.fabric {
            Some(fabric) => Arc::clone(&fabric.layout),
            None => Arc::new(Layout::flat(HOSTS)),
        }
    }
}

/// A sender's offer of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// The address of the sender.
    pub from: SocketAddr,
    /// The session that carries it.
    pub session: Session,
    /// The identity of the stream's content.
    pub stream: u128,
}

impl Offer {
    /// Returns whether the stream is a manifest, which [`Comparing`](crate::sink::Comparing) takes.
    #[must_use]
    pub const fn is_manifest(&self) -> bool {
        is_manifest(self.stream)
    }
}

/// A receiver's decision about an offer.
pub enum Decision {
    /// Receive the stream into the sink that this function creates.
    Accept(MakeSink),
    /// Refuse the stream, for this reason.
    Refuse(Reason),
}

impl std::fmt::Debug for Decision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Accept(_) => "Accept",
            Self::Refuse(_) => "Refuse",
        })
    }
}

/// A function that decides about each offer.
pub type Accept = Box<dyn FnMut(&Offer) -> Decision + Send>;
