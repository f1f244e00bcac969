//! The division of a fabric into shards: sets of switches with the hosts below them, for a simulation on several threads.

use std::collections::BTreeMap;

use rackweave_core::{HostId, Span, frame};

use super::{Fabric, LinkSpec, Node, SwitchSpec};

/// Which shard each switch belongs to. A host belongs to the shard of its leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    shards: u32,
    of_switch: Vec<u32>,
    of_host: Vec<u32>,
}

impl Partition {
    /// The number of shards.
    #[must_use]
    pub const fn shards(&self) -> u32 {
        self.shards
    }

    /// The shard of a host.
    ///
    /// # Panics
    /// If there is no such host.
    #[must_use]
    #[inline]
    pub fn of_host(&self, host: HostId) -> u32 {
        self.of_host[host.0 as usize]
    }

    /// The shard of a node.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn of(&self, node: Node) -> u32 {
        match node {
            Node::Host(host) => self.of_host[host as usize],
            Node::Switch(switch) => self.of_switch[switch as usize],
        }
    }

    /// The shard to which the port before a link belongs.
    #[must_use]
    pub fn of_sender(&self, link: &LinkSpec) -> u32 {
        self.of(link.from)
    }
}

impl SwitchSpec {
    /// The first host below the switch, and the one after the last.
    fn below(&self) -> (u32, u32) {
        (self.first_host, self.first_host + u32::from(self.downs) * self.hosts_per_port)
    }
}

impl Fabric {
    /// Divides the fabric into at most this number of shards, of about the same number of hosts each.
    ///
    /// A shard consists of whole pods of a fat-tree, or whole leaves of a leaf-spine fabric, so that few links cross. If pods
    /// are too few to give all shards the same work, it consists of leaves there too. A switch above several of
    /// these belongs to one of them, evenly. Fabrics with an optical circuit switch are one shard.
    #[must_use]
    pub fn partition(&self, shards: u32) -> Partition {
        let (pods, leaves) = (self.pods(), self.leaves());
        let (shards, n) = (shards.max(1), pods.len() as u32);
        let is_even = n.is_multiple_of(shards) || n >= 4 * shards;
        let groups = if is_even { pods } else { leaves };
        let shards = shards.min(groups.len().max(1) as u32);
        let group_of = |host: u32| groups.partition_point(|first| *first <= host).max(1) - 1;
        let shard_of = |group: usize| (group * shards as usize / groups.len().max(1)) as u32;
        let above = |switch: &SwitchSpec| {
            let (first, end) = switch.below();
            (group_of(first), group_of(end.max(1) - 1))
        };
        let mut alike = BTreeMap::new();
        self.switches.iter().for_each(|switch| *alike.entry(above(switch)).or_insert(0) += 1);
        let mut placed = BTreeMap::new();
        let of_switch = self.switches.iter().map(|switch| {
            let (first, last) = above(switch);
            let nth: &mut usize = placed.entry((first, last)).or_default();
            let group = first + *nth * (last - first + 1) / alike[&(first, last)];
            *nth += 1;
            shard_of(group)
        });
        let of_switch: Vec<u32> = of_switch.collect();
        let of_host = self.links[..self.hosts as usize].iter().map(|link| match link.to {
            Node::Switch(leaf) => of_switch[leaf as usize],
            Node::Host(_) => 0,
        });
        Partition { shards, of_host: of_host.collect(), of_switch }
    }

    /// The first hosts of the largest sets that are below one switch without being all hosts: pods, or leaves.
    fn pods(&self) -> Vec<u32> {
        if self.has_ocs() || self.pod.is_some() {
            return vec![0];
        }
        let lower = self.switches.iter().filter(|switch| switch.ups > 0);
        let mut ranges: Vec<_> = lower.map(SwitchSpec::below).collect();
        // Among groups that begin at the same host, the largest is first.
        ranges.sort_unstable_by_key(|(first, end)| (*first, u32::MAX - end));
        let mut covered = 0;
        ranges.retain(|(first, end)| {
            let is_new = *first >= covered && end > first;
            covered = covered.max(*end);
            is_new
        });
        ranges.into_iter().map(|(first, _)| first).collect()
    }

    /// The first hosts of the leaves.
    fn leaves(&self) -> Vec<u32> {
        if self.has_ocs() || self.pod.is_some() {
            return vec![0];
        }
        let leaves =
            self.switches.iter().filter(|switch| switch.hosts_per_port == 1 && switch.downs > 0);
        let mut first: Vec<u32> = leaves.map(|leaf| leaf.first_host).collect();
        first.sort_unstable();
        first.dedup();
        first
    }

    /// How far apart in time two switches can be simulated: what one of them decides reaches the other no earlier than this.
    /// `None` if no link joins two switches.
    ///
    /// It is the least delay of a packet on such a link: the smallest frame of Ethernet, and the link's delay. It is one tick
    /// shorter, because a port is updated one tick after the moment of its decision ([`crate::net`]).
    #[must_use]
    pub fn lookahead(&self) -> Option<Span> {
        let is_between =
            |link: &&LinkSpec| matches!((link.from, link.to), (Node::Switch(_), Node::Switch(_)));
        let delay = |link: &LinkSpec| link.span_of(frame::wire_bytes(0)) + link.delay;
        let least = self.links.iter().filter(is_between).map(delay).min()?;
        Some(least.saturating_sub(Span::TICK))
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::Rate;

    use super::*;
    use crate::config::{FabricConfig, Routing, SwitchConfig, Topology};

    fn fabric(topology: Topology) -> Fabric {
        Fabric::new(
            &FabricConfig::new(topology)
                .with_link_delays(Span::ZERO, Span::from_ns(100))
                .without_host_delays()
                .with_switch(
                    SwitchConfig::default()
                        .with_buffer(100_000)
                        .without_marking()
                        .with_routing(Routing::Spray),
                ),
        )
        .unwrap()
    }

    fn hosts_of(partition: &Partition) -> Vec<usize> {
        let count = |shard| partition.of_host.iter().filter(|of| **of == shard).count();
        (0..partition.shards).map(count).collect()
    }

    #[test]
    fn a_fat_tree_is_divided_by_pods_or_else_by_leaves() {
        let fat_tree = fabric(Topology::fat_tree(8, Rate::from_gbps(10)));
        let partition = fat_tree.partition(2);
        assert_eq!(hosts_of(&partition), [64, 64]);
        let crossing =
            fat_tree.links().iter().filter(|link| partition.of(link.from) != partition.of(link.to));
        // Half of the links between aggregation and core, up and down.
        assert_eq!(crossing.count(), 128);
        // Leaves of 4 hosts: 11, 11 and 10 of them.
        let hosts = hosts_of(&fat_tree.partition(3));
        assert_eq!((hosts.iter().min(), hosts.iter().max()), (Some(&40), Some(&44)));
        assert_eq!(fat_tree.partition(1000).shards(), 32);
    }

    #[test]
    fn other_fabrics_are_divided_by_leaves_and_spines_are_spread_over_them() {
        let rate = Rate::from_gbps(10);
        let leaf_spine = fabric(Topology::LeafSpine {
            leaves: 9,
            hosts_per_leaf: 16,
            spines: 4,
            host_link: rate,
            core_link: rate,
        });
        let partition = leaf_spine.partition(3);
        assert_eq!(hosts_of(&partition), [48, 48, 48]);
        let spines: Vec<u32> = (9..13).map(|switch| partition.of(Node::Switch(switch))).collect();
        assert_eq!(spines, [0, 0, 1, 2], "spines belong to leaves 0, 2, 4 and 6");
        let two = Topology::Dumbbell { left: 3, right: 20, host_link: rate, core_link: rate };
        assert_eq!(hosts_of(&fabric(two).partition(7)), [3, 20]);
        let single = fabric(Topology::SingleSwitch { hosts: 4, host_link: rate });
        assert_eq!((single.partition(2).shards(), single.lookahead()), (1, None));
    }

    #[test]
    fn the_lookahead_is_the_smallest_frame_and_the_delay() {
        let fat_tree = fabric(Topology::fat_tree(4, Rate::from_gbps(10)));
        // 84 bytes at 10 Gbps are 67.2 ns.
        let expected = Span::from_ns(100 + 250 + 67) + Span::from_ticks(20);
        assert_eq!(fat_tree.lookahead().map(|it| it + Span::TICK), Some(expected));
    }
}
