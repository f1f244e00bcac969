//! The description of a fabric and of the faults in it: plain numbers, the same for the simulator and the user-space
//! switch.

use std::num::NonZeroU8;
use std::sync::Arc;

use rackweave_core::{HostId, Rate, Span, Time};

use crate::{QueueConfig, SharedBuffer, Trim};

pub use crate::QueueOptions;
pub use crate::pod::{CircuitError, Circuits, Dark, Move, Ocs, Pod, Tor};

/// A fabric: its topology, its delays and its switches.
#[derive(Clone, Debug, PartialEq)]
pub struct FabricConfig {
    /// The arrangement of switches and hosts.
    pub topology: Topology,
    /// Propagation delay of a host's link, each way.
    pub host_link_delay: Span,
    /// Propagation delays that differ between hosts, in place of `host_link_delay`: host `i` has entry `i`
    /// modulo the length. Empty if all hosts are alike.
    pub host_link_delays: Vec<Span>,
    /// Propagation delay of a link between switches, each way.
    pub core_link_delay: Span,
    /// Delay of a sending host, from the transport's decision to the first bit on the link.
    pub host_send_delay: Span,
    /// Delay of a receiving host, from the last bit on the link to the transport.
    pub host_receive_delay: Span,
    /// The configuration of every switch.
    pub switch: SwitchConfig,
}

/// The arrangement of switches and hosts. Hosts are numbered leaf by leaf, except in a rackless pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// All hosts on one switch.
    SingleSwitch {
        /// Number of hosts.
        hosts: u32,
        /// Rate of the hosts' links.
        host_link: Rate,
    },
    /// Two switches joined by one link.
    Dumbbell {
        /// Hosts at the first switch.
        left: u32,
        /// Hosts at the second.
        right: u32,
        /// Rate of the hosts' links.
        host_link: Rate,
        /// The link between the switches.
        core_link: Rate,
    },
    /// Every leaf joined to every spine by one link.
    LeafSpine {
        /// Number of leaves (`ToR`s).
        leaves: u32,
        /// Number of hosts at each leaf.
        hosts_per_leaf: u32,
        /// Number of spines.
        spines: u32,
        /// Rate of the hosts' links.
        host_link: Rate,
        /// Rate of the links between leaves and spines.
        core_link: Rate,
    },
    /// The three-stage fat-tree of k-port switches: k^3/4 hosts. In the paper (Al-Fares et al., SIGCOMM 2008) all links
    /// are alike; see [`Topology::fat_tree`].
    FatTree {
        /// Number of ports of a switch, which must be even.
        k: u32,
        /// Rate of the hosts' links.
        host_link: Rate,
        /// Rate of the links between edge and aggregation switches.
        aggregation_link: Rate,
        /// Rate of the links between aggregation and core switches.
        core_link: Rate,
    },
    /// `ToR`s of any sizes below one core switch, with or without an optical circuit switch.
    Pod(Arc<Pod>),
}

/// The configuration of a switch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwitchConfig {
    /// Delay of a switch, from the last bit received to the packet joining the queue of its output port.
    pub latency: Span,
    /// The buffers of its ports.
    pub buffer: BufferConfig,
    /// A packet that finds more than this many bytes queued is marked. `None`: no marking.
    pub ecn_threshold_bytes: Option<u64>,
    /// Whether each port has strict priorities; otherwise it has one FIFO.
    pub priorities: bool,
    /// NDP's trimming. `None`: a full queue drops the packet.
    pub trim: Option<TrimConfig>,
    /// Rules of its queues that only some transports need.
    pub options: QueueOptions,
    /// How one of several equal-cost paths is chosen.
    pub routing: Routing,
}

/// The buffers of a switch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BufferConfig {
    /// Each port has a separate buffer.
    PerPort {
        /// Size of each port's buffer; `u64::MAX` is no limit.
        bytes: u64,
    },
    /// All ports share one buffer with dynamic thresholds: a port may hold up to `alpha` times the free bytes.
    Shared {
        /// Size of the switch's buffer.
        bytes: u64,
        /// Bytes that a port may hold for each free byte.
        alpha: f64,
    },
}

/// NDP's trimming: packets beyond the data queue are trimmed to their headers, which have a queue of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimConfig {
    /// Size of a port's data queue.
    pub data_queue_bytes: u64,
    /// Size of a port's header queue.
    pub header_queue_bytes: u64,
    /// Whether a trimmed packet that finds the header queue full is returned to its sender.
    pub return_to_sender: bool,
    /// Number of headers and control packets after which one packet of data is sent, if one waits; `None` for strict
    /// priority. See [`Trim::headers_per_packet`].
    pub headers_per_packet: Option<NonZeroU8>,
}

impl TrimConfig {
    /// The switch of NDP (SIGCOMM'17, sections 3.1 and 3.2.4) with packets of 1538 bytes on the link: a data queue of eight
    /// packets, ten headers for each packet, and headers without room returned to their senders. For headers it has
    /// twice the bytes, as in htsim; the paper has the same number.
    pub const NDP: Self = Self {
        data_queue_bytes: 8 * 1538,
        header_queue_bytes: 16 * 1538,
        return_to_sender: true,
        headers_per_packet: NonZeroU8::new(10),
    };
}

/// How a switch chooses one of several equal-cost paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// As the packet's transport asks: by flow, or sprayed.
    Transport,
    /// By a hash of addresses and ports, for all packets (ECMP).
    Ecmp,
    /// At random for each packet (packet spraying).
    Spray,
}

/// An injected fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// When the fault starts.
    pub from: Time,
    /// When the fault ends; [`Time::MAX`] if it never does.
    pub until: Time,
    /// The links or the host that the fault affects.
    pub place: FaultPlace,
    /// What happens to these links or this host.
    pub kind: FaultKind,
}

/// The place of a fault. A link fault affects both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultPlace {
    /// Every link of the fabric.
    AllLinks,
    /// Every link between switches.
    CoreLinks,
    /// The link of one host.
    HostLink(HostId),
    /// One link between switches, in the order of [`crate::fabric::Fabric::core_links`] at the time.
    CoreLink(u32),
    /// A host, for [`FaultKind::Pause`] and [`FaultKind::Crash`].
    Host(HostId),
}

/// The effect of a fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// Packets are lost with this probability.
    Loss(f64),
    /// Packets are damaged with this probability, which the receiver's checksum detects.
    Corruption(f64),
    /// Packets arrive twice with this probability.
    Duplication(f64),
    /// Packets arrive late with this probability, by a time uniform up to the given one.
    Reordering {
        /// Share of the packets that are delayed.
        probability: f64,
        /// The longest delay.
        delay: Span,
    },
    /// The link is down: packets on it are lost, and others are rerouted or dropped.
    Down,
    /// The host does nothing: arriving packets wait in a bounded ring.
    Pause,
    /// The host loses all state, and restarts when the fault ends.
    Crash,
}

impl SwitchConfig {
    /// What the queue of each port does with a packet.
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
                return_to_sender: trim.return_to_sender,
                headers_per_packet: trim.headers_per_packet,
            }),
            options: self.options,
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
