//! The hosts of a study: how scenarios name them, and how they are chosen.

use std::fmt::Formatter;
use std::ops::Range;

use rackweave_core::HostId;
use rackweave_sim::config::{FabricConfig, Topology};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of receivers, or a list of hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Receivers {
    Number(u32),
    Hosts(Vec<u32>),
}

struct HostList {
    expecting: &'static str,
}

impl<'de> Visitor<'de> for HostList {
    type Value = Receivers;
    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.expecting)
    }
    fn visit_u64<E: Error>(self, n: u64) -> Result<Receivers, E> {
        u32::try_from(n)
            .map(Receivers::Number)
            .map_err(|_| E::custom(format_args!("there are no {n} hosts")))
    }
    fn visit_i64<E: Error>(self, n: i64) -> Result<Receivers, E> {
        u32::try_from(n).map(Receivers::Number).map_err(|_| E::custom("there is no such host"))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Receivers, A::Error> {
        let mut hosts = Vec::new();
        while let Some(host) = list.next_element()? {
            hosts.push(host);
        }
        Ok(Receivers::Hosts(hosts))
    }
}

/// Reads a number, or a list of numbers.
pub(crate) fn numbers<'de, D: Deserializer<'de>>(
    from: D,
    expecting: &'static str,
) -> Result<Receivers, D::Error> {
    from.deserialize_any(HostList { expecting })
}

impl<'de> Deserialize<'de> for Receivers {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        numbers(from, "a number of hosts, or a list of hosts")
    }
}

impl Serialize for Receivers {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => number.serialize(to),
            Self::Hosts(hosts) => hosts.serialize(to),
        }
    }
}

/// Returns this number of hosts that are not in `taken`, from each rack in turn, or how many there are.
pub(crate) fn spread(
    number: u32,
    fabric: &FabricConfig,
    taken: &[HostId],
) -> Result<Vec<HostId>, usize> {
    let racks = racks(&fabric.topology);
    let free = |rack: &Range<u32>| -> Vec<HostId> {
        rack.clone().map(HostId).filter(|host| !taken.contains(host)).collect()
    };
    let free: Vec<Vec<HostId>> = racks.iter().map(free).collect();
    let longest = free.iter().map(Vec::len).max().unwrap_or(0);
    let in_turn = (0..longest).flat_map(|nth| free.iter().filter_map(move |rack| rack.get(nth)));
    let chosen: Vec<HostId> = in_turn.copied().take(number as usize).collect();
    if number == 0 || chosen.len() < number as usize {
        return Err(free.iter().map(Vec::len).sum());
    }
    Ok(chosen)
}

/// Returns the ranges of hosts below each switch that hosts are attached to; none of a pod, whose racks may change.
pub(crate) fn racks(topology: &Topology) -> Vec<Range<u32>> {
    let even = |racks: u32, each: u32| (0..racks).map(|n| n * each..(n + 1) * each).collect();
    match *topology {
        Topology::SingleSwitch { hosts, .. } => even(1, hosts),
        Topology::Dumbbell { left, right, .. } => vec![0..left, left..left + right],
        Topology::LeafSpine { leaves, hosts_per_leaf, .. } => even(leaves, hosts_per_leaf),
        Topology::FatTree { k, .. } => even(k * k / 2, k / 2),
        Topology::Pod(_) => Vec::new(),
    }
}
