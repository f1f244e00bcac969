//! From the keys of a topology to its switches and the rates of its links.

use rackweave_core::Rate;
use rackweave_sim::config::Topology;

use super::{Fabric, MAX_HOSTS, TopologyName};
use crate::problem::Problem;
use crate::values::{AtLeast, Unit};

/// The largest number of ports of a switch (the range of [`rackweave_core::Port`]).
const MAX_PORTS: u64 = 65_536;

/// Returns the number of links of a topology, each direction of a cable counted, without laying it out; of a pod those of servers and a
/// cable for each ToR, as its size is limited otherwise.
#[must_use]
pub fn links(topology: &Topology) -> u64 {
    let hosts = u64::from(topology.hosts());
    let core = match *topology {
        Topology::SingleSwitch { .. } => 0,
        Topology::Dumbbell { .. } => 1,
        Topology::LeafSpine { leaves, spines, .. } => u64::from(leaves) * u64::from(spines),
        // As many from edges to aggregation switches, and from there to the core, as hosts.
        Topology::FatTree { .. } => 2 * hosts,
        Topology::Pod(ref pod) => pod.tors.len() as u64,
    };
    2 * (hosts + core)
}

/// A key that only some topologies have: whether a fabric gives it, and those topologies.
type Key = (&'static str, fn(&Fabric) -> bool, &'static [TopologyName]);

const PODS: &[TopologyName] =
    &[TopologyName::Racks, TopologyName::Rackless, TopologyName::TorCircuits];
const WITH_OCS: &[TopologyName] = &[TopologyName::Rackless, TopologyName::TorCircuits];
const WITH_CORE_LINK: &[TopologyName] = &[
    TopologyName::Dumbbell,
    TopologyName::LeafSpine,
    TopologyName::FatTree,
    TopologyName::Racks,
    TopologyName::Rackless,
    TopologyName::TorCircuits,
];
const KEYS: [Key; 18] = [
    ("hosts", |it| it.hosts.is_some(), &[TopologyName::SingleSwitch, TopologyName::Rackless]),
    ("left", |it| it.left.is_some(), &[TopologyName::Dumbbell]),
    ("right", |it| it.right.is_some(), &[TopologyName::Dumbbell]),
    ("leaves", |it| it.leaves.is_some(), &[TopologyName::LeafSpine]),
    ("hosts_per_leaf", |it| it.hosts_per_leaf.is_some(), &[TopologyName::LeafSpine]),
    ("spines", |it| it.spines.is_some(), &[TopologyName::LeafSpine]),
    ("k", |it| it.k.is_some(), &[TopologyName::FatTree]),
    ("core_link", |it| it.core_link.is_some(), WITH_CORE_LINK),
    ("aggregation_link", |it| it.aggregation_link.is_some(), &[TopologyName::FatTree]),
    ("oversubscription", |it| it.oversubscription.is_some(), WITH_CORE_LINK),
    ("tors", |it| it.tors.is_some(), PODS),
    ("uplinks", |it| it.uplinks.is_some(), PODS),
    ("circuit_ports", |it| it.circuit_ports.is_some(), &[TopologyName::TorCircuits]),
    ("circuits", |it| it.circuits.is_some(), WITH_OCS),
    ("switching_delay", |it| it.switching_delay.is_some(), WITH_OCS),
    ("link_delay", |it| it.link_delay.is_some(), WITH_OCS),
    ("dark", |it| it.dark.is_some(), WITH_OCS),
    ("moves", |it| !it.moves.is_empty(), WITH_OCS),
];

impl TopologyName {
    /// The keys of `[fabric]` that this topology has, and not all others.
    pub fn keys(self) -> impl Iterator<Item = &'static str> {
        KEYS.into_iter().filter(move |(.., of)| of.contains(&self)).map(|(key, ..)| key)
    }
}

impl Fabric {
    /// Whether it is a pod, whose cables change their ends.
    pub fn is_pod(&self) -> bool {
        PODS.contains(&self.topology)
    }

    pub(super) fn refuse_foreign_keys(&self) -> Result<(), Problem> {
        let foreign =
            KEYS.iter().find(|(_, is_given, of)| is_given(self) && !of.contains(&self.topology));
        let Some((key, ..)) = foreign else { return Ok(()) };
        let (name, own) = (self.topology.name(), self.topology.keys().collect::<Vec<_>>());
        Err(Problem::new(
            format!("fabric.{key}"),
            format!("`{key}` has no meaning in a {name} fabric"),
        )
        .with_help(format!("a {name} fabric takes {}", own.join(", "))))
    }

    pub(super) fn topology(&self) -> Result<Topology, Problem> {
        let host_link = positive_rate("fabric.host_link", self.host_link)?;
        match self.topology {
            TopologyName::SingleSwitch => {
                let hosts = self.count("hosts", self.hosts)?;
                ports("fabric.hosts", u64::from(hosts))?;
                Ok(Topology::SingleSwitch { hosts, host_link })
            }
            TopologyName::Dumbbell => {
                let left = self.count("left", self.left)?;
                let right = self.count("right", self.right)?;
                ports("fabric.left", u64::from(left) + 1)?;
                ports("fabric.right", u64::from(right) + 1)?;
                let core_link = match (self.core_link, self.oversubscription) {
                    (Some(_), Some(_)) => return Err(either_or()),
                    (Some(rate), None) => positive_rate("fabric.core_link", rate)?,
                    (None, Some(times)) => {
                        divided(host_link.0 as f64 * f64::from(left.max(right)), times)?
                    }
                    (None, None) => host_link,
                };
                Ok(Topology::Dumbbell { left, right, host_link, core_link })
            }
            TopologyName::LeafSpine => self.leaf_spine(host_link),
            TopologyName::FatTree => {
                let k = self.count("k", self.k)?;
                if k % 2 != 0 {
                    return Err(Problem::new("fabric.k", format!("`k` must be even, not {k}"))
                        .with_help("half of a switch's k ports go up and half go down"));
                }
                hosts("fabric.k", u64::from(k).saturating_pow(3) / 4)?;
                self.fat_tree(k, host_link)
            }
            TopologyName::Racks | TopologyName::Rackless | TopologyName::TorCircuits => {
                self.pod(host_link)
            }
        }
    }

    fn fat_tree(&self, k: u32, host_link: Rate) -> Result<Topology, Problem> {
        let core_link = match (self.core_link, self.oversubscription) {
            (Some(_), Some(_)) => return Err(either_or()),
            (Some(rate), None) => positive_rate("fabric.core_link", rate)?,
            // A switch has as many ports up as down.
            (None, Some(times)) => divided(host_link.0 as f64, times)?,
            (None, None) => host_link,
        };
        let aggregation_link = match self.aggregation_link {
            Some(rate) => positive_rate("fabric.aggregation_link", rate)?,
            None => core_link,
        };
        Ok(Topology::FatTree { k, host_link, aggregation_link, core_link })
    }

    fn leaf_spine(&self, host_link: Rate) -> Result<Topology, Problem> {
        let leaves = self.count("leaves", self.leaves)?;
        let hosts_per_leaf = self.count("hosts_per_leaf", self.hosts_per_leaf)?;
        hosts("fabric.leaves", u64::from(leaves) * u64::from(hosts_per_leaf))?;
        let below = host_link.0 as f64 * f64::from(hosts_per_leaf);
        let (spines, core_link) = match (self.spines, self.core_link, self.oversubscription) {
            (Some(_), Some(_), Some(_)) => return Err(either_or()),
            (None, Some(_), None) => return Err(self.missing_one("`spines` or `oversubscription`")),
            (Some(spines), Some(rate), None) => {
                (spines.0, positive_rate("fabric.core_link", rate)?)
            }
            (None, Some(rate), Some(times)) => {
                let rate = positive_rate("fabric.core_link", rate)?;
                let spines = divided(below, times)?.0 as f64 / rate.0 as f64;
                if spines < 1.0 || (spines - spines.round()).abs() > 1e-9 {
                    return Err(Problem::new(
                        "fabric.oversubscription",
                        format!("{times}:1 with links of {rate} would take {spines:.2} spines"),
                    )
                    .with_help("give `spines` instead of `core_link`, or another factor"));
                }
                (spines.round() as u32, rate)
            }
            (None, None, Some(_)) => return Err(self.missing_one("`spines` or `core_link`")),
            (None, None, None) => {
                return Err(self.missing_one("`spines`, or `core_link` with `oversubscription`"));
            }
            (Some(spines), None, times) => {
                let spines = spines.0;
                (spines, divided(below / f64::from(spines), times.unwrap_or(1.0))?)
            }
        };
        ports("fabric.hosts_per_leaf", u64::from(hosts_per_leaf) + u64::from(spines))?;
        ports("fabric.leaves", u64::from(leaves))?;
        Ok(Topology::LeafSpine { leaves, hosts_per_leaf, spines, host_link, core_link })
    }

    fn count<const MIN: u32>(&self, key: &str, n: Option<AtLeast<MIN>>) -> Result<u32, Problem> {
        n.map(|n| n.0).ok_or_else(|| self.missing(key))
    }

    pub(in super::super) fn missing(&self, key: &str) -> Problem {
        self.missing_one(&format!("`{key}`"))
    }

    fn missing_one(&self, keys: &str) -> Problem {
        Problem::new("fabric", format!("a {} fabric needs {keys}", self.topology.name()))
    }
}

pub(crate) fn either_or() -> Problem {
    Problem::new(
        "fabric.oversubscription",
        "`oversubscription` follows from the links that are given",
    )
    .with_help("leave out `oversubscription`, `core_link` or (in a leaf-spine) `spines`")
}

pub(crate) fn positive_rate(key: &str, rate: Unit<Rate>) -> Result<Rate, Problem> {
    if rate.0.0 == 0 {
        return Err(Problem::new(key, "a link needs a rate above 0"));
    }
    Ok(rate.0)
}

pub(crate) fn divided(bits_per_second: f64, times: f64) -> Result<Rate, Problem> {
    let rate = (bits_per_second / times).round();
    if !(times.is_finite() && times > 0.0 && (1.0..1e18).contains(&rate)) {
        let message = format!("an oversubscription of {times} makes no link");
        return Err(Problem::new("fabric.oversubscription", message).with_help(
            "4 means that a leaf's hosts could send four times what its uplinks carry",
        ));
    }
    Ok(Rate(rate as u64))
}

pub(crate) fn hosts(key: &str, hosts: u64) -> Result<(), Problem> {
    if hosts < 2 {
        return Err(Problem::new(key, "a fabric needs at least two hosts"));
    }
    if hosts > MAX_HOSTS {
        return Err(Problem::new(key, format!("{hosts} hosts are more than {MAX_HOSTS}")));
    }
    Ok(())
}

fn ports(key: &str, ports: u64) -> Result<(), Problem> {
    if ports > MAX_PORTS {
        return Err(Problem::new(key, format!("a switch of {ports} ports: at most {MAX_PORTS}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rackweave_sim::Fabric as Layout;
    use rackweave_sim::config::FabricConfig;

    use super::*;

    #[test]
    fn links_are_counted_as_they_are_laid_out() {
        let rate = Rate::from_gbps(10);
        let (host_link, core_link) = (rate, rate);
        for topology in [
            Topology::SingleSwitch { hosts: 5, host_link },
            Topology::Dumbbell { left: 3, right: 4, host_link, core_link },
            Topology::LeafSpine { leaves: 3, hosts_per_leaf: 4, spines: 2, host_link, core_link },
            Topology::fat_tree(4, rate),
            Topology::fat_tree(8, rate),
        ] {
            let layout = Layout::new(&FabricConfig::new(topology.clone())).unwrap();
            assert_eq!(links(&topology), layout.links().len() as u64, "{topology:?}");
        }
    }
}
