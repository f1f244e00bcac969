//! The switches of the topologies, before their links are numbered.

use rackweave_core::Rate;

use super::{FabricError, Node, SLOWEST};
use crate::config::Topology;

/// A switch before its links are numbered: the nodes that its ports lead to.
pub(super) struct Draft {
    pub(super) role: &'static str,
    pub(super) index: u32,
    pub(super) first_host: u32,
    pub(super) hosts_per_port: u32,
    pub(super) downs: Vec<Node>,
    pub(super) ups: Vec<u32>,
}

/// The role of a fat-tree's highest switches.
pub(super) const CORE: &str = "core";

/// The rates of hosts' links, of those between the two lower stages of switches, and of those to the core.
pub(super) fn rates(topology: &Topology) -> Result<[Rate; 3], FabricError> {
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
pub(super) fn drafts(topology: &Topology) -> Result<Vec<Draft>, FabricError> {
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
