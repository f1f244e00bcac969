//! What a fabric is made of, and what may go wrong in it: plain numbers, the same for both worlds.

use rackweave_core::{HostId, Rate, Span, Time};

use crate::{QueueConfig, SharedBuffer, Trim};

/// The fabric.
#[derive(Clone, Debug, PartialEq)]
pub struct FabricConfig {
    /// How switches and hosts are joined.
    pub topology: Topology,
    /// Propagation delay of a host's link, each way.
    pub host_link_delay: Span,
    /// Where hosts differ: that of host `i` is entry `i` modulo their number, in place of
    /// `host_link_delay`. Empty: all are alike.
    pub host_link_delays: Vec<Span>,
    /// Propagation delay of a link between switches, each way.
    pub core_link_delay: Span,
    /// From the transport's decision to the first bit on the link.
    pub host_send_delay: Span,
    /// From the last bit on the link to the transport.
    pub host_receive_delay: Span,
    /// All switches are alike.
    pub switch: SwitchConfig,
}

/// How switches and hosts are joined. Hosts are numbered leaf by leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// All hosts on one switch.
    SingleSwitch {
        /// Number of hosts.
        hosts: u32,
        /// Their links.
        host_link: Rate,
    },
    /// Two switches joined by one link.
    Dumbbell {
        /// Hosts at the first switch.
        left: u32,
        /// Hosts at the second.
        right: u32,
        /// Their links.
        host_link: Rate,
        /// The link between the switches.
        core_link: Rate,
    },
    /// Every leaf joined to every spine by one link.
    LeafSpine {
        /// Leaves (`ToR`s).
        leaves: u32,
        /// Hosts of each.
        hosts_per_leaf: u32,
        /// Spines.
        spines: u32,
        /// Links of hosts.
        host_link: Rate,
        /// Links between leaves and spines.
        core_link: Rate,
    },
    /// The three-stage fat-tree of k-port switches: k^3/4 hosts, all links alike.
    FatTree {
        /// Ports of a switch; even.
        k: u32,
        /// All links.
        host_link: Rate,
    },
}

/// A switch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwitchConfig {
    /// From the last bit in to the queue of the way out.
    pub latency: Span,
    /// Where packets wait.
    pub buffer: BufferConfig,
    /// A packet that finds more than this many bytes waiting is marked. `None`: never.
    pub ecn_threshold_bytes: Option<u64>,
    /// Whether packets wait by their priority, or all of a port in one queue.
    pub priorities: bool,
    /// NDP's trimming. `None`: full queues drop.
    pub trim: Option<TrimConfig>,
    /// How a path is picked among equals.
    pub routing: Routing,
}

/// A switch's buffers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BufferConfig {
    /// Each port has its own.
    PerPort {
        /// Bytes of each port; `u64::MAX` is no limit.
        bytes: u64,
    },
    /// All ports share one; a port may hold up to `alpha` times what is free (dynamic thresholds).
    Shared {
        /// Bytes of the whole switch.
        bytes: u64,
        /// The factor.
        alpha: f64,
    },
}

/// NDP's trimming: a full data queue cuts packets, and the cut ones wait in a queue of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimConfig {
    /// Bytes that the data queue of a port holds.
    pub data_queue_bytes: u64,
    /// Bytes that its header queue holds.
    pub header_queue_bytes: u64,
    /// A cut packet that finds the header queue full goes back to its sender.
    pub return_to_sender: bool,
}

/// How a switch picks one of several equally short ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// As the packet's transport wishes: by flow, or sprayed.
    Transport,
    /// By a hash of hosts and ports, for all packets.
    Ecmp,
    /// At random, for each packet.
    Spray,
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// From when.
    pub from: Time,
    /// Until when (for ever: [`Time::MAX`]).
    pub until: Time,
    /// Where.
    pub place: FaultPlace,
    /// What.
    pub kind: FaultKind,
}

/// Where a fault is. A link fault holds for both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultPlace {
    /// Every link.
    AllLinks,
    /// Every link between switches.
    CoreLinks,
    /// The link of one host.
    HostLink(HostId),
    /// One link between switches, in the order of [`crate::fabric::Fabric::core_links`].
    CoreLink(u32),
    /// A host.
    Host(HostId),
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// Packets vanish with this probability.
    Loss(f64),
    /// Packets are damaged with this probability; the receiver's checksum finds out.
    Corruption(f64),
    /// Packets arrive twice with this probability.
    Duplication(f64),
    /// Packets arrive late with this probability, by a time uniform up to the given one.
    Reordering {
        /// How many.
        probability: f64,
        /// How late at most.
        delay: Span,
    },
    /// The link is down: what is on it is lost, what would cross it finds another way or is dropped.
    Down,
    /// The host does nothing: arriving packets wait in a bounded ring.
    Pause,
    /// The host loses all state; at the end of the fault it starts anew.
    Crash,
}

impl SwitchConfig {
    /// What the queue of each port does.
    #[must_use]
    pub fn queue(&self) -> QueueConfig {
        QueueConfig {
            limit_bytes: match self.buffer {
                BufferConfig::PerPort { bytes } => bytes,
                BufferConfig::Shared { .. } => u64::MAX,
            },
            ecn_threshold_bytes: self.ecn_threshold_bytes.unwrap_or(u64::MAX),
            priorities: self.priorities,
            trim: self.trim.map(|trim| Trim {
                data_limit_bytes: trim.data_queue_bytes,
                header_limit_bytes: trim.header_queue_bytes,
                turn_back: trim.return_to_sender,
            }),
        }
    }

    /// Its shared buffer, if it has one.
    #[must_use]
    pub fn shared_buffer(&self) -> Option<SharedBuffer> {
        match self.buffer {
            BufferConfig::Shared { bytes, alpha } => {
                Some(SharedBuffer::new(bytes, (alpha * 256.0) as u64))
            }
            BufferConfig::PerPort { .. } => None,
        }
    }
}
