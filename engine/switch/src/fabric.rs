//! Fabrics: how links connect switches and hosts, and the delays of their idle paths.

mod drafts;
mod partition;
mod paths;
mod pods;

use std::sync::Arc;

use rackweave_core::time::TICKS_PER_SECOND;
use rackweave_core::{HostId, Rate, Rng, Span};

use crate::config::{CircuitError, FabricConfig, Routing, Topology};
use crate::{Forwarder, PathChoice};

use self::drafts::{CORE, drafts, rates};
pub use self::partition::Partition;
use self::pods::PodLinks;

/// Minimum rate of a link. Lower rates would overflow the arithmetic of serialisation delays.
const SLOWEST: Rate = Rate(100_000);

/// Maximum delay of a link, host or switch. Longer ones would overflow sums of times.
const LONGEST_DELAY: Span = Span::from_secs(10);

/// Maximum number of entries of [`FabricConfig::host_link_delays`].
pub const MAX_HOST_DELAYS: usize = 10_000;

/// Reasons why a fabric cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// A number that must be positive is zero.
    #[error("a fabric needs at least one of: {0}")]
    Zero(&'static str),
    /// A fat-tree with an odd number of ports.
    #[error("a fat-tree's k must be even and at least 2, not {0}")]
    OddK(u32),
    /// A link whose rate is below the minimum.
    #[error("the {name} link must have a rate of at least {SLOWEST}, not {rate}")]
    TooSlow {
        /// The kind of the link: "host", "aggregation" or "core".
        name: &'static str,
        /// The configured rate.
        rate: Rate,
    },
    /// A delay above the maximum.
    #[error("a delay of {0} is too long: at most {LONGEST_DELAY} is possible")]
    TooLong(Span),
    /// More different link delays than the simulator can number.
    #[error("hosts can have at most {MAX_HOST_DELAYS} different link delays, not {0}")]
    TooManyDelays(usize),
    /// More ports than the simulator can number.
    #[error("a switch would have {0} ports; at most 65535 are possible")]
    TooManyPorts(u64),
    /// More hosts than the simulator can number.
    #[error("the fabric would have {0} hosts; at most 1000000 are possible")]
    TooManyHosts(u64),
    /// More `ToR`s than a pod can have.
    #[error("the pod would have {0} ToRs; at most {max} are possible", max = crate::pod::MAX_TORS)]
    TooManyTors(usize),
    /// More servers than a pod can have.
    #[error("the pod would have {0} servers; at most {max} are possible", max = crate::pod::MAX_SERVERS)]
    TooManyServers(u64),
    /// PFC with rules that drop or reorder packets at full queues, or with circuits that change.
    #[error("PFC does not go with {0}")]
    PfcWith(&'static str),
    /// A buffer with too little room beyond the headroom of PFC.
    #[error(
        "PFC needs a headroom of {headroom} bytes {place}, and room for two packets beside it, but the buffer has {buffer} bytes"
    )]
    NoHeadroom {
        /// "at one port" or "in one switch".
        place: &'static str,
        /// The headroom of all lossless priorities there.
        headroom: u64,
        /// The size of the buffer.
        buffer: u64,
    },
    /// The first circuits of a pod are impossible.
    #[error(transparent)]
    Circuits(#[from] CircuitError),
}

/// A host or a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// A host, by its number.
    Host(u32),
    /// A switch, by its number.
    Switch(u32),
}

/// One direction of a cable.
#[derive(Clone, Copy, Debug)]
pub struct LinkSpec {
    /// The sending node.
    pub from: Node,
    /// The receiving node.
    pub to: Node,
    /// The link's rate in this direction.
    pub rate: Rate,
    /// From the last bit sent to the packet's availability: propagation delay, the sending host's delay before it,
    /// and the delay of the receiving switch or host after it.
    pub delay: Span,
}

/// A switch's role and its index among the switches of that role.
#[derive(Clone, Copy, Debug)]
struct SwitchSpec {
    /// The role, such as "leaf" or "spine".
    role: &'static str,
    index: u32,
    first_host: u32,
    hosts_per_port: u32,
    downs: u16,
    ups: u16,
    first_link: u32,
}

/// A fabric. Its links are numbered: first the hosts' uplinks (link `h` is host `h`'s), then the ports of each
/// switch in order (down before up), switch by switch.
#[derive(Clone, Debug)]
pub struct Fabric {
    config: FabricConfig,
    hosts: u32,
    switches: Vec<SwitchSpec>,
    links: Vec<LinkSpec>,
    /// Number of hosts of a leaf, or 1 if leaves differ: the granularity of detours.
    hosts_per_group: u32,
    /// The circuits and paths of a pod; `None` for other topologies, which need no tables.
    pod: Option<Arc<PodLinks>>,
}

impl LinkSpec {
    /// Ticks that a byte takes, in 1/65536, rounded up: exact at every Ethernet rate.
    #[must_use]
    pub const fn ticks_per_byte_q16(&self) -> u64 {
        (((8 * TICKS_PER_SECOND as u128) << 16).div_ceil(self.rate.0 as u128)) as u64
    }

    /// Serialisation delay of `wire_bytes`.
    #[must_use]
    pub const fn span_of(&self, wire_bytes: u32) -> Span {
        serialisation(self.ticks_per_byte_q16(), wire_bytes)
    }
}

/// Serialisation delay of `wire_bytes`, given the ticks per byte (in units of 1/65536).
#[must_use]
#[inline]
pub const fn serialisation(ticks_per_byte_q16: u64, wire_bytes: u32) -> Span {
    Span::from_ticks((wire_bytes as u64 * ticks_per_byte_q16 + 0xffff) >> 16)
}

impl Fabric {
    /// Lays out a fabric.
    ///
    /// # Errors
    /// See [`FabricError`].
    pub fn new(config: &FabricConfig) -> Result<Self, FabricError> {
        let [host_link, aggregation_link, core_link] = rates(&config.topology)?;
        if config.host_link_delays.len() > MAX_HOST_DELAYS {
            return Err(FabricError::TooManyDelays(config.host_link_delays.len()));
        }
        let delays = [
            config.host_link_delay,
            config.core_link_delay,
            config.host_send_delay,
            config.host_receive_delay,
            config.switch.latency,
        ];
        for &delay in delays.iter().chain(&config.host_link_delays) {
            if delay > LONGEST_DELAY {
                return Err(FabricError::TooLong(delay));
            }
        }
        if let Topology::Pod(pod) = &config.topology {
            let fabric = Self::of_pod(config, pod)?;
            fabric.check_pfc()?;
            return Ok(fabric);
        }
        let drafts = drafts(&config.topology)?;
        let hosts = config.topology.hosts();
        let mut links = Vec::new();
        let core = config.core_link_delay + config.switch.latency;
        let mut leaf_of = vec![0; hosts as usize];
        for (switch, draft) in drafts.iter().enumerate() {
            for node in &draft.downs {
                if let Node::Host(host) = node {
                    leaf_of[*host as usize] = switch as u32;
                }
            }
        }
        for (host, leaf) in leaf_of.iter().enumerate() {
            let (from, to) = (Node::Host(host as u32), Node::Switch(*leaf));
            let delay = config.delay_from(HostId(host as u32));
            links.push(LinkSpec { from, to, rate: host_link, delay });
        }
        let mut switches = Vec::with_capacity(drafts.len());
        for (number, draft) in drafts.iter().enumerate() {
            switches.push(SwitchSpec {
                role: draft.role,
                index: draft.index,
                first_host: draft.first_host,
                hosts_per_port: draft.hosts_per_port,
                downs: draft.downs.len() as u16,
                ups: draft.ups.len() as u16,
                first_link: links.len() as u32,
            });
            let from = Node::Switch(number as u32);
            for &to in draft
                .downs
                .iter()
                .chain(&draft.ups.iter().map(|s| Node::Switch(*s)).collect::<Vec<_>>())
            {
                let (rate, delay) = match to {
                    Node::Host(host) => (host_link, config.delay_to(HostId(host))),
                    Node::Switch(other)
                        if draft.role == CORE || drafts[other as usize].role == CORE =>
                    {
                        (core_link, core)
                    }
                    Node::Switch(_) => (aggregation_link, core),
                };
                links.push(LinkSpec { from, to, rate, delay });
            }
        }
        let hosts_per_group = config.topology.hosts_per_leaf().unwrap_or(1);
        let fabric =
            Self { config: config.clone(), hosts, switches, links, hosts_per_group, pod: None };
        fabric.check_pfc()?;
        Ok(fabric)
    }

    /// The link in the other direction of the same cable or circuit; a link without a circuit is its own.
    #[must_use]
    pub fn reverse(&self, link: u32) -> u32 {
        if let Some(pod) = &self.pod {
            return pod.reverse(link);
        }
        let spec = &self.links[link as usize];
        match (spec.from, spec.to) {
            (Node::Host(host), _) => self.downlink(HostId(host)),
            (_, Node::Host(host)) => host,
            (from, Node::Switch(to)) => {
                let leads_back = |port: &u32| self.links[*port as usize].to == from;
                self.ports(to).find(leads_back).unwrap_or(link)
            }
        }
    }

    /// The configuration that it was built from.
    #[must_use]
    pub const fn config(&self) -> &FabricConfig {
        &self.config
    }

    /// Number of hosts.
    #[must_use]
    pub const fn hosts(&self) -> u32 {
        self.hosts
    }

    /// Number of switches.
    #[must_use]
    pub fn switches(&self) -> u32 {
        self.switches.len() as u32
    }

    /// All links: each direction of a cable is one.
    #[must_use]
    pub fn links(&self) -> &[LinkSpec] {
        &self.links
    }

    /// The links that leave a switch, in the order of its ports.
    #[must_use]
    pub fn ports(&self, switch: u32) -> std::ops::Range<u32> {
        let spec = &self.switches[switch as usize];
        spec.first_link..spec.first_link + u32::from(spec.downs) + u32::from(spec.ups)
    }

    /// The rate of a host's link.
    #[must_use]
    pub fn host_rate(&self) -> Rate {
        self.links[0].rate
    }

    /// The link from a host's leaf to the host. In a rackless pod it is that of the current circuits.
    #[must_use]
    pub fn downlink(&self, host: HostId) -> u32 {
        if let Some(pod) = &self.pod {
            return pod.reverse(host.0);
        }
        let Node::Switch(leaf) = self.links[host.0 as usize].to else {
            unreachable!("a host's link leads to a switch")
        };
        let spec = &self.switches[leaf as usize];
        spec.first_link + (host.0 - spec.first_host)
    }

    /// The cables between switches, as pairs of links (up, down). Those of a pod are its uplinks, and then the current circuits
    /// between `ToR`s.
    #[must_use]
    pub fn core_links(&self) -> Vec<(u32, u32)> {
        if let Some(pod) = &self.pod {
            return self.pod_cables(pod);
        }
        let mut cables = Vec::new();
        for (number, spec) in self.switches.iter().enumerate() {
            // The two switches of a dumbbell are each other's "up": their cable is counted once.
            for up in spec.first_link + u32::from(spec.downs)..self.ports(number as u32).end {
                let Node::Switch(above) = self.links[up as usize].to else { continue };
                let back = self
                    .ports(above)
                    .find(|port| self.links[*port as usize].to == Node::Switch(number as u32));
                let counted = self.switches.len() == 2 && number == 1;
                if let Some(down) = back.filter(|_| !counted) {
                    cables.push((up, down));
                }
            }
        }
        cables
    }

    /// A link's name: "leaf0->h3". A port at an OCS, whose other end changes, is named by its number: "tor0.2->ocs"; so is the
    /// link of a server of a rackless pod, "h3->ocs". Parallel links are numbered: "tor0->core0#1".
    #[must_use]
    pub fn link_name(&self, link: u32) -> String {
        if let Some(pod) = self.pod() {
            return self.pod_link_name(pod, link);
        }
        let name = |node| match node {
            Node::Host(host) => format!("h{host}"),
            Node::Switch(switch) => {
                let spec = &self.switches[switch as usize];
                format!("{}{}", spec.role, spec.index)
            }
        };
        let spec = &self.links[link as usize];
        format!("{}->{}", name(spec.from), name(spec.to))
    }

    /// The forwarder of a switch.
    #[must_use]
    pub fn forwarder(&self, switch: u32, seed: u64, run: u64) -> Forwarder {
        let spec = &self.switches[switch as usize];
        let choice = match self.config.switch.routing {
            Routing::Transport => PathChoice::Packet,
            Routing::Ecmp => PathChoice::Flow,
            Routing::Spray => PathChoice::Spray,
        };
        let rng = Rng::stream(seed, run, u64::from(switch), "switch");
        if let Some(pod) = &self.pod {
            // All of its packets are forwarded by the table.
            let mut forwarder = Forwarder::new(HostId(0), 1, 0, spec.ups, choice, rng);
            forwarder.detour(1, pod.table(switch).to_vec());
            return forwarder;
        }
        let first = HostId(spec.first_host);
        let forwarder =
            Forwarder::new(first, spec.hosts_per_port, spec.downs, spec.ups, choice, rng);
        // Paths are numbered by up ports, the leaf's first: above the leaves, the number is divided by the leaves'
        // ports.
        let above_leaves = spec.hosts_per_port > 1;
        forwarder.with_stride(if above_leaves { u32::from(self.switches[0].ups) } else { 1 })
    }
}

impl FabricConfig {
    /// Propagation delay of a host's link, each way.
    #[must_use]
    pub fn link_delay_of(&self, host: HostId) -> Span {
        match self.host_link_delays.as_slice() {
            [] => self.host_link_delay,
            delays => delays[host.0 as usize % delays.len()],
        }
    }

    /// From a host's decision to send until its packet can join a queue of its leaf, without the serialisation delay.
    fn delay_from(&self, host: HostId) -> Span {
        self.host_send_delay + self.link_delay_of(host) + self.switch.latency
    }

    /// From the last bit that a leaf sends to a host until the host's transport has the packet.
    fn delay_to(&self, host: HostId) -> Span {
        self.link_delay_of(host) + self.host_receive_delay
    }
}

impl Topology {
    /// Number of hosts.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        match *self {
            Self::SingleSwitch { hosts, .. } => hosts,
            Self::Dumbbell { left, right, .. } => left.saturating_add(right),
            Self::LeafSpine { leaves, hosts_per_leaf, .. } => leaves.saturating_mul(hosts_per_leaf),
            Self::FatTree { k, .. } => (k / 2).saturating_mul(k / 2).saturating_mul(k),
            Self::Pod(ref pod) => pod.servers(),
        }
    }

    /// The rate of hosts' links.
    #[must_use]
    pub fn host_link(&self) -> Rate {
        match self {
            Self::SingleSwitch { host_link, .. }
            | Self::Dumbbell { host_link, .. }
            | Self::LeafSpine { host_link, .. }
            | Self::FatTree { host_link, .. } => *host_link,
            Self::Pod(pod) => pod.host_link,
        }
    }

    /// A fat-tree with links that are all alike.
    #[must_use]
    pub const fn fat_tree(k: u32, rate: Rate) -> Self {
        Self::FatTree { k, host_link: rate, aggregation_link: rate, core_link: rate }
    }

    /// Number of paths between the two hosts that are farthest from each other: the path numbers that a sender can
    /// use. A pod has none, because the paths between its hosts change.
    #[must_use]
    pub fn paths(&self) -> u32 {
        match *self {
            Self::LeafSpine { leaves, spines, .. } if leaves > 1 => spines,
            Self::FatTree { k, .. } if k > 2 => (k / 2).saturating_mul(k / 2),
            _ => 1,
        }
    }

    /// Hosts of each leaf, if all leaves are alike.
    const fn hosts_per_leaf(&self) -> Option<u32> {
        match *self {
            Self::SingleSwitch { hosts, .. } => Some(hosts),
            Self::Dumbbell { .. } | Self::Pod(_) => None,
            Self::LeafSpine { hosts_per_leaf, .. } => Some(hosts_per_leaf),
            Self::FatTree { k, .. } => Some(k / 2),
        }
    }
}
