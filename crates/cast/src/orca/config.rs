//! The configuration of an engine.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use rackweave_core::{HostId, Span};
use rackweave_group::orca::flow::FlowConfig;
use rackweave_group::orca::label::Layout;
use rackweave_wire::orca::{Reason, Session};

use super::Admission;
use crate::sink::MakeSink;

/// How many hosts an engine without a fabric can tell apart.
const HOSTS: u32 = 8192;

/// The configuration of an [`Engine`](super::Engine).
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The address to bind the socket to.
    pub bind: SocketAddr,
    /// The address of the interface for multicast; unspecified: the system chooses.
    pub interface: Ipv4Addr,
    /// Join the multicast group.
    pub in_group: bool,
    /// Loop the group's datagrams back to other sockets of this machine.
    pub group_loops: bool,
    /// The UDP port of the group.
    pub group_port: u16,
    /// The bytes of the key file, if packets are authenticated.
    pub secret: Option<Vec<u8>>,
    /// Whose packets are accepted, besides those of named peers.
    pub admission: Admission,
    /// The names of the groups that this host is a member of.
    pub groups: Vec<String>,
    /// The fabric, for labels and relays.
    pub fabric: Option<FabricPlace>,
    /// The configuration of flows.
    pub flow: FlowConfig,
    /// The receive window of a session, in bytes.
    pub room: u64,
    /// The socket's receive buffer in bytes.
    pub receive_buffer: usize,
    /// The socket's send buffer in bytes.
    pub send_buffer: usize,
    /// The largest number of sessions that are received at the same time.
    pub max_sessions: u32,
    /// How long a receiver that fell silent is invited again.
    pub retry: Span,
}

/// A host's place in a fabric whose hosts all know each other.
#[derive(Clone, Debug)]
pub struct FabricPlace {
    /// This host's number.
    pub me: HostId,
    /// Racks, ports and labels of the fabric.
    pub layout: Arc<Layout>,
    /// The hosts' addresses.
    pub hosts: Vec<(HostId, SocketAddr)>,
    /// The controller, if it is another host.
    pub controller: Option<HostId>,
    /// Whether the switches forward by labels.
    pub tor: bool,
    /// The interval at which this agent pings the controller; `None`: this host is no agent.
    pub heartbeat: Option<Span>,
    /// This host is the controller as well; an agent that is silent for this long is considered dead.
    pub control: Option<Span>,
}

impl FabricPlace {
    /// The controller's host, which may be this one.
    pub(super) fn controller(&self) -> Option<HostId> {
        if self.control.is_some() { Some(self.me) } else { self.controller }
    }
}

impl EngineConfig {
    /// The defaults: only packets from this machine are accepted.
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
            receive_buffer: 16 << 20,
            send_buffer: 1 << 20,
            max_sessions: 1024,
            retry: Span::from_secs(10),
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

/// An offer of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// The sender's address.
    pub from: SocketAddr,
    /// The session that carries it.
    pub session: Session,
    /// The identity of the stream's content.
    pub stream: u128,
}

/// The answer to an offer.
pub enum Decision {
    /// Receive the stream into the sink that this makes.
    Take(MakeSink),
    /// Do not receive it, for this reason.
    Refuse(Reason),
}

impl std::fmt::Debug for Decision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Take(_) => "Take",
            Self::Refuse(_) => "Refuse",
        })
    }
}

/// Decides on each offer.
pub type Accept = Box<dyn FnMut(&Offer) -> Decision + Send>;
