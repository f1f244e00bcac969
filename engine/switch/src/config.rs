//! The description of a fabric and of the faults in it: plain numbers, the same for the simulator and the user-space
//! switch.
//!
//! [`FabricConfig::single_switch`] and its siblings begin with the values that a scenario has without keys; methods
//! `with_...` and the public fields change them:
//!
//! ```
//! use rackweave_core::{Rate, Span};
//! use rackweave_switch::config::{FabricConfig, SwitchConfig, TrimConfig};
//!
//! let switch = SwitchConfig::default().with_trim(TrimConfig::NDP);
//! let fabric = FabricConfig::leaf_spine(9, 16, 4, Rate::from_gbps(10))
//!     .with_link_delay(Span::from_ns(100))
//!     .with_switch(switch);
//! assert_eq!(fabric.topology.hosts(), 144);
//! ```

use std::num::NonZeroU8;
use std::sync::Arc;

use rackweave_core::{HostId, Rate, Span, Time, frame};

use crate::{QueueConfig, SharedBuffer, Trim};

pub use crate::pfc::PfcConfig;
pub use crate::pod::{CircuitError, Circuits, Dark, Move, Ocs, Pod, Tor};
pub use crate::{QueueOptions, Ramp};

/// A fabric: its topology, its delays and its switches.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
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

/// The configuration of a switch. The default is the switch of a scenario without `[fabric.switch]`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct SwitchConfig {
    /// Delay of a switch, from the last bit received to the packet joining the queue of its output port.
    pub latency: Span,
    /// The buffers of its ports.
    pub buffer: BufferConfig,
    /// Which packets its queues mark (ECN).
    pub marking: Marking,
    /// Whether each port has strict priorities; otherwise it has one FIFO.
    pub priorities: bool,
    /// NDP's trimming. `None`: a full queue drops the packet.
    pub trim: Option<TrimConfig>,
    /// Rules of its queues that only some transports need.
    pub options: QueueOptions,
    /// How one of several equal-cost paths is chosen.
    pub routing: Routing,
    /// Priority flow control. `None`: full queues drop packets.
    pub pfc: Option<PfcConfig>,
}

/// Which packets a switch marks (ECN): each that finds more than a number of bytes queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marking {
    /// None.
    Never,
    /// This many bytes, at every port.
    Above(u64),
    /// Multiples of a bandwidth-delay product, the rate of a link times the fabric's longest idle round trip:
    /// [`crate::fabric::Fabric::ecn_threshold`].
    Products {
        /// The link.
        of: Product,
        /// The multiple, in thousandths.
        thousandths: u32,
        /// The least threshold, in bytes.
        least: u64,
    },
    /// RED's marks at random, from Kmin to Kmax.
    Ramp {
        /// Kmin: shorter queues mark nothing.
        from: Depth,
        /// Kmax: longer queues mark each packet.
        full: Depth,
        /// The probability at Kmax, in millionths.
        millionths: u32,
    },
}

/// The length of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// This many bytes, at every port.
    Bytes(u64),
    /// This many bytes for each Gbps of the port's link.
    PerGbps(u64),
}

impl Depth {
    /// The bytes at a port of this rate.
    #[must_use]
    pub const fn bytes_at(self, link: Rate) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::PerGbps(bytes) => {
                (bytes as u128 * link.0 as u128 / Rate::from_gbps(1).0 as u128) as u64
            }
        }
    }
}

/// The link of a bandwidth-delay product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// Each port's own link.
    Link,
    /// The link of a host.
    Host,
}

impl Marking {
    /// The threshold for DCTCP where hosts send packet by packet: 1.25 products, as in SIRD's study of DCTCP, and at least 5 packets
    /// for the bursts that one acknowledgement releases (our choice). It is 8.75 times the lower bound of the DCTCP paper (section
    /// 3.4), a seventh of a product. `docs/sources.md#switches-and-queues` has what was measured.
    pub const DCTCP: Self =
        Self::Products { of: Product::Link, thousandths: 1250, least: 5 * FULL_PACKET };

    /// The marks for DCQCN of HPCC's evaluation (SIGCOMM'19, section 5.1, and `simulation/run.py`): from 100 KB to
    /// 400 KB at 25 Gbps and in proportion at other rates, with a probability of 0.2 at the end.
    pub const DCQCN: Self = Self::Ramp {
        from: Depth::PerGbps(4_000),
        full: Depth::PerGbps(16_000),
        millionths: 200_000,
    };
}

impl From<Option<u64>> for Marking {
    fn from(bytes: Option<u64>) -> Self {
        bytes.map_or(Self::Never, Self::Above)
    }
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
#[non_exhaustive]
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

    /// The same switch with queues of these sizes.
    #[must_use]
    pub const fn with_queues(mut self, data_bytes: u64, header_bytes: u64) -> Self {
        self.data_queue_bytes = data_bytes;
        self.header_queue_bytes = header_bytes;
        self
    }

    /// Whether a trimmed packet without room is returned to its sender.
    #[must_use]
    pub const fn with_return_to_sender(mut self, returns: bool) -> Self {
        self.return_to_sender = returns;
        self
    }

    /// The number of headers after which one packet of data is sent; `None` for strict priority.
    #[must_use]
    pub const fn with_headers_per_packet(mut self, headers: Option<NonZeroU8>) -> Self {
        self.headers_per_packet = headers;
        self
    }
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

impl FabricConfig {
    /// The propagation delay of ten metres of fibre, which links have by default.
    pub const LINK_DELAY: Span = Span::from_ns(50);

    /// The default delay of a host in each direction.
    pub const HOST_DELAY: Span = Span::from_ns(500);

    /// A fabric of default switches, with the default delays of links and hosts.
    #[must_use]
    pub fn new(topology: Topology) -> Self {
        Self {
            topology,
            host_link_delay: Self::LINK_DELAY,
            host_link_delays: Vec::new(),
            core_link_delay: Self::LINK_DELAY,
            host_send_delay: Self::HOST_DELAY,
            host_receive_delay: Self::HOST_DELAY,
            switch: SwitchConfig::default(),
        }
    }

    /// All hosts on one switch.
    #[must_use]
    pub fn single_switch(hosts: u32, host_link: Rate) -> Self {
        Self::new(Topology::SingleSwitch { hosts, host_link })
    }

    /// Two switches, joined by a link of the same rate as the hosts'.
    #[must_use]
    pub fn dumbbell(left: u32, right: u32, host_link: Rate) -> Self {
        Self::new(Topology::Dumbbell { left, right, host_link, core_link: host_link })
    }

    /// Leaves and spines without oversubscription: a leaf's links to the spines together have the rate of its hosts' links.
    #[must_use]
    pub fn leaf_spine(leaves: u32, hosts_per_leaf: u32, spines: u32, host_link: Rate) -> Self {
        let below = u128::from(host_link.0) * u128::from(hosts_per_leaf);
        let spines_above = u128::from(spines.max(1));
        let core_link = (below + spines_above / 2) / spines_above;
        let core_link = Rate(u64::try_from(core_link).unwrap_or(u64::MAX));
        Self::new(Topology::LeafSpine { leaves, hosts_per_leaf, spines, host_link, core_link })
    }

    /// The three-stage fat-tree of k-port switches, whose links are all alike.
    #[must_use]
    pub fn fat_tree(k: u32, link: Rate) -> Self {
        Self::new(Topology::fat_tree(k, link))
    }

    /// Links between switches have this rate. A single switch has none.
    #[must_use]
    pub fn with_core_link(mut self, rate: Rate) -> Self {
        match &mut self.topology {
            Topology::SingleSwitch { .. } => {}
            Topology::Dumbbell { core_link, .. } | Topology::LeafSpine { core_link, .. } => {
                *core_link = rate;
            }
            Topology::FatTree { aggregation_link, core_link, .. } => {
                (*aggregation_link, *core_link) = (rate, rate);
            }
            Topology::Pod(pod) => Arc::make_mut(pod).core_link = rate,
        }
        self
    }

    /// All links have this propagation delay, each way.
    #[must_use]
    pub fn with_link_delay(self, delay: Span) -> Self {
        self.with_link_delays(delay, delay)
    }

    /// Hosts' links have the first propagation delay, and links between switches the second one.
    #[must_use]
    pub fn with_link_delays(mut self, host: Span, core: Span) -> Self {
        self.host_link_delay = host;
        self.host_link_delays = Vec::new();
        self.core_link_delay = core;
        self
    }

    /// Hosts have these delays: see [`FabricConfig::host_send_delay`] and [`FabricConfig::host_receive_delay`].
    #[must_use]
    pub fn with_host_delays(mut self, send: Span, receive: Span) -> Self {
        self.host_send_delay = send;
        self.host_receive_delay = receive;
        self
    }

    /// Hosts have no delays, as where real or modelled hosts take their own time.
    #[must_use]
    pub fn without_host_delays(self) -> Self {
        self.with_host_delays(Span::ZERO, Span::ZERO)
    }

    /// Neither links nor hosts have delays: packets take the time of their bits, and that of switches.
    #[must_use]
    pub fn without_delays(self) -> Self {
        self.with_link_delay(Span::ZERO).without_host_delays()
    }

    /// All switches are like this one.
    #[must_use]
    pub fn with_switch(mut self, switch: SwitchConfig) -> Self {
        self.switch = switch;
        self
    }
}

/// The bytes of a full packet on the link, in which the usual sizes of queues are given.
const FULL_PACKET: u64 = frame::wire_bytes(frame::MTU) as u64;

impl Default for SwitchConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl SwitchConfig {
    const DEFAULT: Self = Self {
        latency: Span::from_ns(250),
        buffer: BufferConfig::PerPort { bytes: 500_000 },
        marking: Marking::DCTCP,
        priorities: true,
        trim: None,
        options: QueueOptions { by_remaining: false, selective_drop: false, ramp: None },
        routing: Routing::Transport,
        pfc: None,
    };

    /// A switch that takes no time, and neither drops nor marks a packet.
    #[must_use]
    pub const fn unlimited() -> Self {
        Self::DEFAULT.with_latency(Span::ZERO).with_buffer(u64::MAX).without_marking()
    }

    /// From the last bit received to the packet joining the queue of its output port it takes this time.
    #[must_use]
    pub const fn with_latency(mut self, latency: Span) -> Self {
        self.latency = latency;
        self
    }

    /// Each port has a buffer of this size; `u64::MAX` is no limit.
    #[must_use]
    pub const fn with_buffer(mut self, bytes: u64) -> Self {
        self.buffer = BufferConfig::PerPort { bytes };
        self
    }

    /// All ports share one buffer: see [`BufferConfig::Shared`].
    #[must_use]
    pub const fn with_shared_buffer(mut self, bytes: u64, alpha: f64) -> Self {
        self.buffer = BufferConfig::Shared { bytes, alpha };
        self
    }

    /// A packet that finds more than this many bytes queued is marked.
    #[must_use]
    pub const fn with_ecn_threshold(mut self, bytes: u64) -> Self {
        self.marking = Marking::Above(bytes);
        self
    }

    /// No packet is marked.
    #[must_use]
    pub const fn without_marking(mut self) -> Self {
        self.marking = Marking::Never;
        self
    }

    /// Each port has one FIFO.
    #[must_use]
    pub const fn without_priorities(mut self) -> Self {
        self.priorities = false;
        self
    }

    /// Full queues trim packets.
    #[must_use]
    pub const fn with_trim(mut self, trim: TrimConfig) -> Self {
        self.trim = Some(trim);
        self
    }

    /// pFabric's queues: in the order of remaining bytes, and of two bandwidth-delay products, 36 KB on its paper's fabric
    /// (SIGCOMM'13, section 5.1).
    #[must_use]
    pub const fn with_pfabric(mut self) -> Self {
        self.options.by_remaining = true;
        self.with_buffer(24 * FULL_PACKET)
    }

    /// Full queues pause those who send to them, instead of dropping packets.
    #[must_use]
    pub const fn with_pfc(mut self, pfc: PfcConfig) -> Self {
        self.pfc = Some(pfc);
        self
    }

    /// One of several equal-cost paths is chosen in this way.
    #[must_use]
    pub const fn with_routing(mut self, routing: Routing) -> Self {
        self.routing = routing;
        self
    }

    /// What the queue of a port does with a packet that finds more than `ecn_threshold` bytes there, if it marks any, or marks at
    /// random.
    #[must_use]
    pub fn queue(&self, ecn_threshold: Option<u64>, ramp: Option<Ramp>) -> QueueConfig {
        QueueConfig {
            limit_bytes: match self.buffer {
                BufferConfig::PerPort { bytes } if self.pfc.is_none() => bytes,
                // With PFC packets are counted where they enter the switch.
                BufferConfig::PerPort { .. } | BufferConfig::Shared { .. } => u64::MAX,
            },
            ecn_threshold_bytes: ecn_threshold.unwrap_or(u64::MAX),
            priorities: self.priorities,
            trim: self.trim.map(|trim| Trim {
                data_limit_bytes: trim.data_queue_bytes,
                header_limit_bytes: trim.header_queue_bytes,
                return_to_sender: trim.return_to_sender,
                headers_per_packet: trim.headers_per_packet,
            }),
            options: QueueOptions { ramp, ..self.options },
        }
    }

    /// Its shared buffer, if it has one without PFC.
    #[must_use]
    pub fn shared_buffer(&self) -> Option<SharedBuffer> {
        match self.buffer {
            BufferConfig::Shared { bytes, alpha } if self.pfc.is_none() => {
                Some(SharedBuffer::new(bytes, (alpha * 256.0) as u64))
            }
            BufferConfig::PerPort { .. } | BufferConfig::Shared { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fabric;

    /// Hosts on one switch, with the default delays: 1.25 products of 3,581, 6,619, 11,681 and 36,994 bytes, at least 5 packets.
    #[test]
    fn the_threshold_of_marks_follows_from_rate_and_round_trip() {
        for (gbps, bytes) in [(1, 7_690), (10, 8_273), (25, 14_601), (100, 46_242)] {
            let link = Rate::from_gbps(gbps);
            let fabric = Fabric::new(&FabricConfig::single_switch(8, link)).unwrap();
            assert_eq!(fabric.ecn_threshold(link), Some(bytes), "{gbps} Gbps");
        }
        // Ten times the delay of a host in each direction is 9 us more.
        let far = FabricConfig::single_switch(8, Rate::from_gbps(10))
            .with_host_delays(Span::from_us(5), Span::from_us(5));
        let far = Fabric::new(&far).unwrap();
        assert_eq!(
            far.ecn_threshold(Rate::from_gbps(10)),
            Some(8_273 + 2 * 9 * 1250 * 1250 / 1000)
        );
        // Links of four times the rate have four times the threshold, and a given one is that of all links.
        let racks = FabricConfig::leaf_spine(4, 8, 2, Rate::from_gbps(10));
        let own = Fabric::new(&racks).unwrap();
        let at = |fabric: &Fabric, gbps| fabric.ecn_threshold(Rate::from_gbps(gbps)).unwrap();
        assert!(at(&own, 40).abs_diff(4 * at(&own, 10)) < 4);
        let given = racks.with_switch(SwitchConfig::default().with_ecn_threshold(20_000));
        let given = Fabric::new(&given).unwrap();
        assert_eq!([at(&given, 10), at(&given, 40)], [20_000; 2]);
        let sird = Marking::Products { of: Product::Host, thousandths: 1250, least: 0 };
        let mut host = FabricConfig::leaf_spine(4, 8, 2, Rate::from_gbps(10));
        host.switch.marking = sird;
        let host = Fabric::new(&host).unwrap();
        assert_eq!([at(&host, 10), at(&host, 40)], [at(&own, 10); 2]);
        let never = SwitchConfig::default().without_marking();
        let never = FabricConfig::single_switch(2, Rate::from_gbps(10)).with_switch(never);
        assert_eq!(Fabric::new(&never).unwrap().ecn_threshold(Rate::from_gbps(10)), None);
    }
}
