//! Fabrics: how links connect switches and hosts, and the delays of their idle paths.

mod partition;
mod pods;

use std::sync::Arc;

use rackweave_core::time::TICKS_PER_SECOND;
use rackweave_core::{Framing, HostId, Rate, Rng, Span, frame};

use crate::config::{CircuitError, FabricConfig, Marking, Product, Routing, Topology};
use crate::{Forwarder, PathChoice};

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

/// A switch before its links are numbered: the nodes that its ports lead to.
struct Draft {
    role: &'static str,
    index: u32,
    first_host: u32,
    hosts_per_port: u32,
    downs: Vec<Node>,
    ups: Vec<u32>,
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

/// The role of a fat-tree's highest switches.
const CORE: &str = "core";

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
            return Self::of_pod(config, pod);
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
        Ok(Self { config: config.clone(), hosts, switches, links, hosts_per_group, pod: None })
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

    /// The links of the path between two hosts; of several equal-cost paths, the first.
    #[must_use]
    pub fn path(&self, src: HostId, dst: HostId) -> Vec<u32> {
        self.path_by(src, dst, 0)
    }

    /// The links of the path with this number among the equal-cost paths between two hosts. Numbers beyond the last path begin with
    /// the first again.
    #[must_use]
    pub fn path_by(&self, src: HostId, dst: HostId, number: u32) -> Vec<u32> {
        if let Some(pod) = &self.pod {
            return self.pod_path(pod, src, dst, number);
        }
        // As in [`Forwarder::with_stride`].
        let leaf_ups = u32::from(self.switches[0].ups).max(1);
        let mut path = vec![src.0];
        let mut node = self.links[src.0 as usize].to;
        while let Node::Switch(switch) = node {
            let spec = &self.switches[switch as usize];
            let below = dst.0.wrapping_sub(spec.first_host);
            let port = if below < u32::from(spec.downs) * spec.hosts_per_port {
                below / spec.hosts_per_port
            } else {
                let stride = if spec.hosts_per_port > 1 { leaf_ups } else { 1 };
                u32::from(spec.downs) + number / stride % u32::from(spec.ups).max(1)
            };
            let link = spec.first_link + port;
            path.push(link);
            node = self.links[link as usize].to;
        }
        path
    }

    /// The time from submission to delivery of a message on idle links, sent at line rate and stored and forwarded at
    /// every switch.
    ///
    /// Sprayed packets count as using all equal-cost paths at once, evenly and in order. Where links between switches
    /// are slower than hosts' links, random spraying does worse than that: a sprayed message takes some percent
    /// longer even on an idle fabric.
    #[must_use]
    pub fn ideal(&self, src: HostId, dst: HostId, bytes: u64, framing: Framing) -> Span {
        let full_packets = bytes.div_ceil(u64::from(framing.max_payload)).max(1) - 1;
        let rest = (bytes - full_packets * u64::from(framing.max_payload)) as u32;
        let full_bytes = framing.packet_wire_bytes(framing.max_payload);
        let last_bytes = framing.packet_wire_bytes(rest);
        // `full` is when the last full packet has crossed a link, `last` when the last packet has.
        let sprayed = match self.config.switch.routing {
            Routing::Transport => bytes > u64::from(framing.spray_above_bytes),
            Routing::Ecmp => false,
            Routing::Spray => true,
        };
        let path = self.path(src, dst);
        let shares = self.pod.as_ref().filter(|_| sprayed).map(|pod| self.shares(pod, &path, dst));
        let (mut first, mut slowest) = (Span::ZERO, Span::ZERO);
        let mut last = Span::ZERO;
        for (hop, &link) in path.iter().enumerate() {
            let spec = &self.links[link as usize];
            let full_span = spec.span_of(full_bytes);
            let last_span = spec.span_of(last_bytes);
            if full_packets > 0 {
                first += full_span;
                slowest = slowest.max(match &shares {
                    Some(shares) => shares[hop].of(full_span),
                    None if sprayed => {
                        Span::from_ticks(full_span.ticks() / self.sharing_links(link))
                    }
                    None => full_span,
                });
                let full = first + slowest * (full_packets - 1);
                last = last.max(full) + last_span + spec.delay;
                first += spec.delay;
            } else {
                last = last + last_span + spec.delay;
            }
        }
        last
    }

    /// The number of links that share the packets of one message with this link.
    fn sharing_links(&self, link: u32) -> u64 {
        let spec = &self.links[link as usize];
        let (Node::Switch(from), Node::Switch(to)) = (spec.from, spec.to) else { return 1 };
        let spread = |switch: u32| u64::from(self.switches[switch as usize].ups);
        // Upwards, there is one link for each path of the lower switch; downwards, the paths converge.
        spread(from).max(spread(to)).max(1)
    }

    /// The time from the decision to send a full data packet to the arrival of a reply of `reply_wire_bytes`, sent at
    /// once, on idle links. It includes the delays of hosts and switches in both directions.
    #[must_use]
    pub fn base_rtt_between(
        &self,
        src: HostId,
        dst: HostId,
        framing: Framing,
        reply_wire_bytes: u32,
    ) -> Span {
        let there = self.ideal(src, dst, u64::from(framing.max_payload), framing);
        let back: Span = self
            .path(dst, src)
            .iter()
            .map(|link| &self.links[*link as usize])
            .map(|spec| spec.span_of(reply_wire_bytes) + spec.delay)
            .sum();
        there + back
    }

    /// The longest [`Fabric::base_rtt_between`] two hosts: what an unscheduled window must cover.
    #[must_use]
    pub fn base_rtt(&self, framing: Framing, reply_wire_bytes: u32) -> Span {
        let pairs = self.farthest().into_iter();
        let rtts =
            pairs.map(|(src, dst)| self.base_rtt_between(src, dst, framing, reply_wire_bytes));
        rtts.max().unwrap_or(Span::ZERO)
    }

    /// The longest time from the first bit of a full packet to the last bit of its answer, a packet of minimum size, on idle links.
    #[must_use]
    pub fn idle_rtt(&self) -> Span {
        let full =
            Framing { max_payload: frame::MTU, header_bytes: 0, spray_above_bytes: u32::MAX };
        self.base_rtt(full, frame::wire_bytes(0))
    }

    /// The bytes in a queue above which a port with a link of this rate marks packets; `None`: it marks none.
    #[must_use]
    pub fn ecn_threshold(&self, link: Rate) -> Option<u64> {
        match self.config.switch.marking {
            Marking::Never => None,
            Marking::Above(bytes) => Some(bytes),
            Marking::Products { of, thousandths, least } => {
                let link = if of == Product::Host { self.host_rate() } else { link };
                let product = link.bytes_in(self.idle_rtt());
                Some((product.saturating_mul(u64::from(thousandths)) / 1000).max(least))
            }
        }
    }

    /// Pairs of hosts that include one with the longest path.
    ///
    /// A path's length depends on the number of switch layers that it climbs and on the links at its two ends. So for
    /// each layer it is enough to consider the two hosts with the longest links among those whose path climbs to that
    /// layer.
    fn farthest(&self) -> Vec<(HostId, HostId)> {
        let ends = (HostId(0), HostId(self.hosts - 1));
        if self.pod.is_some() {
            return self.farthest_in_pod();
        }
        if self.config.host_link_delays.is_empty() {
            return vec![ends];
        }
        let leaf = |host: HostId| match self.links[host.0 as usize].to {
            Node::Switch(leaf) => leaf,
            Node::Host(host) => host,
        };
        let pod = |host: HostId| match self.config.topology {
            Topology::FatTree { k, .. } => host.0 / (k / 2 * (k / 2)),
            _ => leaf(host),
        };
        let layers: [&dyn Fn(HostId) -> u32; 3] = [&|host| host.0, &leaf, &pod];
        let longest = |apart: &dyn Fn(HostId) -> bool| {
            let hosts = (0..self.hosts).map(HostId).filter(|host| apart(*host));
            hosts.max_by_key(|host| self.config.link_delay_of(*host))
        };
        let one = longest(&|_| true).unwrap_or(ends.0);
        let mut pairs: Vec<_> = layers
            .iter()
            .filter_map(|layer| Some((one, longest(&|host| layer(host) != layer(one))?)))
            .collect();
        if pairs.is_empty() {
            pairs.push(ends);
        }
        pairs
    }

    /// The longest serialisation delay of a full packet on any link.
    #[must_use]
    pub fn longest_hop(&self) -> Span {
        let mtu = u64::from(frame::wire_bytes(frame::MTU));
        self.links
            .iter()
            .map(|spec| spec.rate.span_of(mtu) + spec.delay)
            .max()
            .unwrap_or(Span::ZERO)
    }

    /// For each switch, its lowest port on a shortest path to the switch `to`; [`u16::MAX`] at that switch, and where
    /// there is no path.
    #[must_use]
    pub fn ports_towards_switch(&self, to: u32) -> Vec<u16> {
        let links = || (self.hosts..self.links.len() as u32).map(|link| &self.links[link as usize]);
        let mut before = vec![Vec::new(); self.switches.len()];
        for link in links() {
            if let (Node::Switch(from), Node::Switch(to)) = (link.from, link.to) {
                before[to as usize].push(from);
            }
        }
        let mut distance = vec![u32::MAX; self.switches.len()];
        distance[to as usize] = 0;
        let mut frontier = std::collections::VecDeque::from([to]);
        while let Some(switch) = frontier.pop_front() {
            for &from in &before[switch as usize] {
                if distance[from as usize] == u32::MAX {
                    distance[from as usize] = distance[switch as usize] + 1;
                    frontier.push_back(from);
                }
            }
        }
        let port = |switch: u32| {
            let here = distance[switch as usize];
            let mut ports = self.ports(switch);
            let first = ports.start;
            let nearer = ports.find(|link| match self.links[*link as usize].to {
                Node::Switch(next) => distance[next as usize] < here && here != u32::MAX,
                Node::Host(_) => false,
            });
            nearer.map_or(u16::MAX, |link| (link - first) as u16)
        };
        (0..self.switches.len() as u32).map(port).collect()
    }

    /// For each switch, the ports on shortest paths to each group of hosts over the working links; and the number of
    /// hosts in a group.
    #[must_use]
    pub fn detours(&self, works: impl Fn(u32) -> bool) -> (u32, Vec<Vec<Vec<u16>>>) {
        if self.pod.is_some() {
            return (1, self.pod_tables(works));
        }
        let groups = self.hosts.div_ceil(self.hosts_per_group);
        let mut tables = vec![vec![Vec::new(); groups as usize]; self.switches.len()];
        let mut into = vec![Vec::new(); self.switches.len()];
        for (number, _) in self.switches.iter().enumerate() {
            for link in self.ports(number as u32).filter(|link| works(*link)) {
                if let Node::Switch(to) = self.links[link as usize].to {
                    into[to as usize].push(number as u32);
                }
            }
        }
        for group in 0..groups {
            let Node::Switch(leaf) = self.links[(group * self.hosts_per_group) as usize].to else {
                continue;
            };
            let mut distance = vec![u32::MAX; self.switches.len()];
            distance[leaf as usize] = 0;
            let mut frontier = std::collections::VecDeque::from([leaf]);
            while let Some(switch) = frontier.pop_front() {
                for &before in &into[switch as usize] {
                    if distance[before as usize] == u32::MAX {
                        distance[before as usize] = distance[switch as usize] + 1;
                        frontier.push_back(before);
                    }
                }
            }
            for (number, table) in tables.iter_mut().enumerate() {
                let here = distance[number];
                let ports = self.ports(number as u32);
                table[group as usize] = (ports.clone())
                    .filter(|link| works(*link))
                    .filter(|link| match self.links[*link as usize].to {
                        Node::Switch(to) => distance[to as usize] < here && here != u32::MAX,
                        Node::Host(_) => false,
                    })
                    .map(|link| (link - ports.start) as u16)
                    .collect();
            }
        }
        (self.hosts_per_group, tables)
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

/// The rates of hosts' links, of those between the two lower stages of switches, and of those to the core.
fn rates(topology: &Topology) -> Result<[Rate; 3], FabricError> {
    let rates = match *topology {
        Topology::SingleSwitch { host_link, .. } => [host_link; 3],
        Topology::FatTree { host_link, aggregation_link, core_link, .. } => {
            [host_link, aggregation_link, core_link]
        }
        Topology::Dumbbell { host_link, core_link, .. }
        | Topology::LeafSpine { host_link, core_link, .. } => [host_link, core_link, core_link],
        Topology::Pod(ref pod) => [pod.host_link, pod.core_link, pod.core_link],
    };
    for (name, rate) in ["host", "aggregation", "core"].into_iter().zip(rates) {
        if rate < SLOWEST {
            return Err(FabricError::TooSlow { name, rate });
        }
    }
    Ok(rates)
}

/// The switches of a topology other than a pod.
fn drafts(topology: &Topology) -> Result<Vec<Draft>, FabricError> {
    let check =
        |what: &'static str, n: u32| if n == 0 { Err(FabricError::Zero(what)) } else { Ok(()) };
    let hosts = u64::from(topology.hosts());
    if hosts > 1_000_000 {
        return Err(FabricError::TooManyHosts(hosts));
    }
    let ports = |n: u64| if n > 65_535 { Err(FabricError::TooManyPorts(n)) } else { Ok(()) };
    let down_to_hosts = |first: u32, n: u32| (first..first + n).map(Node::Host).collect::<Vec<_>>();
    Ok(match *topology {
        Topology::SingleSwitch { hosts, .. } => {
            check("hosts", hosts)?;
            ports(u64::from(hosts))?;
            vec![Draft::new("switch", 0, 0, 1, down_to_hosts(0, hosts), vec![])]
        }
        Topology::Dumbbell { left, right, .. } => {
            check("hosts on the left", left)?;
            check("hosts on the right", right)?;
            ports(u64::from(left.max(right)) + 1)?;
            vec![
                Draft::new("left", 0, 0, 1, down_to_hosts(0, left), vec![1]),
                Draft::new("right", 0, left, 1, down_to_hosts(left, right), vec![0]),
            ]
        }
        Topology::LeafSpine { leaves, hosts_per_leaf, spines, .. } => {
            check("leaves", leaves)?;
            check("hosts per leaf", hosts_per_leaf)?;
            check("spines", spines)?;
            ports(u64::from(hosts_per_leaf) + u64::from(spines))?;
            ports(u64::from(leaves))?;
            let leaf = |l: u32| {
                let first = l * hosts_per_leaf;
                let ups = (leaves..leaves + spines).collect();
                Draft::new("leaf", l, first, 1, down_to_hosts(first, hosts_per_leaf), ups)
            };
            let spine = |s: u32| {
                let downs = (0..leaves).map(Node::Switch).collect();
                Draft::new("spine", s, 0, hosts_per_leaf, downs, vec![])
            };
            (0..leaves).map(leaf).chain((0..spines).map(spine)).collect()
        }
        Topology::FatTree { k, .. } => fat_tree(k)?,
        Topology::Pod(_) => Vec::new(),
    })
}

/// The three-stage fat-tree (Al-Fares et al., SIGCOMM 2008): k pods of k/2 edge and k/2 aggregation
/// switches, and (k/2)^2 core switches.
fn fat_tree(k: u32) -> Result<Vec<Draft>, FabricError> {
    if k < 2 || k % 2 == 1 {
        return Err(FabricError::OddK(k));
    }
    let half = k / 2;
    let (edges, aggs) = (k * half, k * half);
    let mut drafts = Vec::new();
    for e in 0..edges {
        let pod = e / half;
        let hosts = (e * half..(e + 1) * half).map(Node::Host).collect();
        let ups = (0..half).map(|i| edges + pod * half + i).collect();
        drafts.push(Draft::new("edge", e, e * half, 1, hosts, ups));
    }
    for a in 0..aggs {
        let (pod, i) = (a / half, a % half);
        let downs = (0..half).map(|j| Node::Switch(pod * half + j)).collect();
        let ups = (0..half).map(|c| edges + aggs + i * half + c).collect();
        drafts.push(Draft::new("agg", a, pod * half * half, half, downs, ups));
    }
    for core in 0..half * half {
        let i = core / half;
        let downs = (0..k).map(|pod| Node::Switch(edges + pod * half + i)).collect();
        drafts.push(Draft::new(CORE, core, 0, half * half, downs, vec![]));
    }
    Ok(drafts)
}

impl Draft {
    const fn new(
        role: &'static str,
        index: u32,
        first_host: u32,
        hosts_per_port: u32,
        downs: Vec<Node>,
        ups: Vec<u32>,
    ) -> Self {
        Self { role, index, first_host, hosts_per_port, downs, ups }
    }
}
