//! Paths between hosts: their links, their times on idle links, and what is left of them when links fail.

use rackweave_core::{Framing, HostId, Rate, Span, frame};

use super::{Fabric, Node};
use crate::config::{Marking, Product, Ramp, Routing, Topology};

impl Fabric {
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
            Marking::Ramp { from, .. } => Some(from.bytes_at(link)),
        }
    }

    /// How a port with a link of this rate marks packets at random above its threshold; `None`: it marks each.
    #[must_use]
    pub fn ecn_ramp(&self, link: Rate) -> Option<Ramp> {
        let Marking::Ramp { full, millionths, .. } = self.config.switch.marking else {
            return None;
        };
        Some(Ramp { full_bytes: full.bytes_at(link), millionths })
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
