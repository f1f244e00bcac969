//! What an engine is told.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use rackweave_core::{HostId, Span};
use rackweave_group::orca::flow::FlowConfig;
use rackweave_group::orca::label::Layout;
use rackweave_wire::orca::{Reason, Session};

use super::Admission;
use crate::sink::MakeSink;

/// Hosts that an engine without a fabric can tell apart.
const HOSTS: u32 = 8192;

/// What an engine is made of.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Where its socket is.
    pub bind: SocketAddr,
    /// The interface of multicast groups, by its address; unspecified: the system's choice.
    pub interface: Ipv4Addr,
    /// It takes what is sent to the group.
    pub in_group: bool,
    /// What the group's datagrams also reach: other sockets of this machine.
    pub group_loops: bool,
    /// The group's port.
    pub group_port: u16,
    /// Bytes of the key file: everything is keyed.
    pub secret: Option<Vec<u8>>,
    /// Who is listened to, beside the peers that are named.
    pub admission: Admission,
    /// Groups that it says to be a member of, to those who are listened to.
    pub groups: Vec<String>,
    /// The fabric, if labels or relays are to be used.
    pub fabric: Option<FabricPlace>,
    /// The streams' machines.
    pub flow: FlowConfig,
    /// Bytes that a receiver holds of a session.
    pub room: u64,
    /// Bytes of the socket's buffers: what waits to be read ...
    pub receive_buffer: usize,
    /// ... and to be sent.
    pub send_buffer: usize,
    /// Most sessions.
    pub max_sessions: u32,
    /// How long a receiver that fell silent is invited again.
    pub retry: Span,
}

/// A host's place in a fabric whose hosts all know each other.
#[derive(Clone, Debug)]
pub struct FabricPlace {
    /// Its number.
    pub me: HostId,
    /// Labels.
    pub layout: Arc<Layout>,
    /// Where the hosts are.
    pub hosts: Vec<(HostId, SocketAddr)>,
    /// Where the controller is, if it is another host.
    pub controller: Option<HostId>,
    /// Switches go by labels.
    pub tor: bool,
    /// From one ping of this agent to the controller to the next; `None`: it is no agent.
    pub heartbeat: Option<Span>,
    /// This host is the controller, beside all else that it is; agents that are silent for so long are dead.
    pub control: Option<Span>,
}

impl FabricPlace {
    /// Where the controller is.
    pub(super) fn controller(&self) -> Option<HostId> {
        if self.control.is_some() { Some(self.me) } else { self.controller }
    }
}

impl EngineConfig {
    /// With defaults for all that is not named: this machine only is listened to.
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

/// A stream that a sender offers.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Where the sender is.
    pub from: SocketAddr,
    /// The session.
    pub session: Session,
    /// Names the stream.
    pub stream: u128,
}

/// What becomes of an offer.
pub enum Decision {
    /// This takes it.
    Take(MakeSink),
    /// Nobody does.
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

/// Decides on offers.
pub type Accept = Box<dyn FnMut(&Offer) -> Decision + Send>;
