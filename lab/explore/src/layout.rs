//! How a fabric is drawn: its nodes by tier, and its links.

use rackweave_sim::Fabric;
use rackweave_sim::config::BufferConfig;
use rackweave_sim::fabric::Node;
use serde::Serialize;

/// A host or switch.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Place {
    pub(crate) name: String,
    /// 0 for hosts; of a switch, the number of links to its nearest host.
    pub(crate) tier: u32,
    /// Where it is within its tier, from 0 to 1.
    pub(crate) across: f64,
}

/// One direction of a cable, and the port before it.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Wire {
    pub(crate) name: String,
    /// The places at its ends.
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) gbps: f64,
    /// The bytes that the port may hold; `None` if there is no limit, or it is a host's.
    pub(crate) buffer: Option<u64>,
    /// The bytes above which it marks; `None` if it does not.
    pub(crate) threshold: Option<u64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Layout {
    pub(crate) hosts: u32,
    pub(crate) tiers: u32,
    /// Hosts, then switches.
    pub(crate) places: Vec<Place>,
    pub(crate) links: Vec<Wire>,
}

impl Layout {
    pub(crate) fn new(fabric: &Fabric) -> Self {
        let hosts = fabric.hosts();
        let number = |node: Node| match node {
            Node::Host(host) => host,
            Node::Switch(switch) => hosts + switch,
        };
        let ends: Vec<(u32, u32)> =
            fabric.links().iter().map(|link| (number(link.from), number(link.to))).collect();
        let tiers = tiers(hosts, fabric.switches(), &ends);
        let mut names = vec![String::new(); tiers.len()];
        for (link, (from, to)) in (0..).zip(&ends) {
            let name = fabric.link_name(link);
            let (one, other) = name.split_once("->").unwrap_or((&name, ""));
            one.clone_into(&mut names[*from as usize]);
            other.clone_into(&mut names[*to as usize]);
        }
        let across = across(hosts, &tiers, &ends);
        let switch = &fabric.config().switch;
        let buffer = match switch.buffer {
            BufferConfig::PerPort { bytes } | BufferConfig::Shared { bytes, .. } => bytes,
        };
        let links = (0..).zip(fabric.links()).map(|(link, spec)| {
            let is_port = matches!(spec.from, Node::Switch(_));
            let (from, to) = ends[link as usize];
            let trims = switch.trim.map(|trim| trim.data_queue_bytes);
            Wire {
                name: fabric.link_name(link),
                from,
                to,
                gbps: spec.rate.0 as f64 / 1e9,
                buffer: trims.or((buffer < u64::MAX).then_some(buffer)).filter(|_| is_port),
                threshold: fabric.ecn_threshold(spec.rate).filter(|_| is_port),
            }
        });
        let links = links.collect();
        let places = names.into_iter().zip(&tiers).zip(across);
        let places = places.map(|((name, tier), across)| Place { name, tier: *tier, across });
        let highest = tiers.iter().max().copied().unwrap_or(0);
        Self { hosts, tiers: highest + 1, places: places.collect(), links }
    }
}

/// The distance of each node from its nearest host.
fn tiers(hosts: u32, switches: u32, ends: &[(u32, u32)]) -> Vec<u32> {
    let all = (hosts + switches) as usize;
    let mut tiers = vec![u32::MAX; all];
    tiers[..hosts as usize].fill(0);
    for tier in 0..all as u32 {
        let mut grows = false;
        for (from, to) in ends {
            if tiers[*from as usize] == tier && tiers[*to as usize] == u32::MAX {
                tiers[*to as usize] = tier + 1;
                grows = true;
            }
        }
        if !grows {
            break;
        }
    }
    // What no link reaches, such as a switch without circuits, is drawn above the hosts.
    tiers.iter().map(|tier| if *tier == u32::MAX { 1 } else { *tier }).collect()
}

/// Hosts at equal distances, and switches above the middle of what is below them, at least one width of their tier apart.
fn across(hosts: u32, tiers: &[u32], ends: &[(u32, u32)]) -> Vec<f64> {
    let mut across = vec![0.0; tiers.len()];
    for host in 0..hosts {
        across[host as usize] = (f64::from(host) + 0.5) / f64::from(hosts.max(1));
    }
    for tier in 1..=tiers.iter().max().copied().unwrap_or(0) {
        let mut members: Vec<(f64, usize)> = Vec::new();
        for (node, _) in tiers.iter().enumerate().filter(|(_, it)| **it == tier) {
            let below = ends
                .iter()
                .filter(|(from, to)| *from as usize == node && tiers[*to as usize] + 1 == tier);
            let (sum, count) = below.fold((0.0, 0.0), |(sum, count), (_, to)| {
                (sum + across[*to as usize], count + 1.0)
            });
            members.push((if count > 0.0 { sum / count } else { 0.5 }, node));
        }
        members.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        let width = members.len() as f64;
        for (nth, (_, node)) in members.into_iter().enumerate() {
            across[node] = (nth as f64 + 0.5) / width;
        }
    }
    across
}

#[cfg(test)]
mod tests {
    use rackweave_core::Rate;
    use rackweave_sim::FabricConfig;

    use super::*;

    #[test]
    fn a_switch_is_one_tier_above_its_hosts() {
        let fabric = Fabric::new(&FabricConfig::single_switch(4, Rate::from_gbps(10))).unwrap();
        let layout = Layout::new(&fabric);
        assert_eq!((layout.hosts, layout.tiers, layout.links.len()), (4, 2, 8));
        assert_eq!(layout.places[4].tier, 1);
        assert_eq!(layout.places[4].across, 0.5);
        assert_eq!(layout.places[0].name, "h0");
        let down = layout.links.iter().find(|link| link.to == 3).unwrap();
        assert_eq!((down.from, down.gbps), (4, 10.0));
        assert!(down.buffer.is_some() && layout.links[0].buffer.is_none());
    }
}
