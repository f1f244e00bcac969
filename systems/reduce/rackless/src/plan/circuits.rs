//! Candidates of circuits between `ToR`s, where there are too many to try all.

use super::matching::max_weight_matching;
use super::search::Prepared;
use crate::config::{Circuits, Configuration};
use crate::cost::{Placement, Segment, Visitor};
use crate::fabric::Fabric;

/// The bytes between each pair of `ToR`s, in either direction.
struct Between {
    tors: usize,
    bytes: Vec<u64>,
}

impl Visitor for Between {
    fn server_out(&mut self, _: u32, _: u64, _: bool) {}

    fn server_in(&mut self, _: u32, _: u64, _: bool) {}

    fn segment(&mut self, segment: Segment) {
        let (a, b) = (usize::from(segment.from), usize::from(segment.to));
        for pair in [a * self.tors + b, b * self.tors + a] {
            self.bytes[pair] = self.bytes[pair].saturating_add(segment.bytes);
        }
    }

    fn multicast(&mut self, segment: Segment, tors: &[u16]) {
        tors.iter().for_each(|&to| self.segment(Segment { to, ..segment }));
    }

    fn absorbed(&mut self, _: u64) {}

    fn is_late(&self, _: u16, _: u16) -> bool {
        false
    }
}

/// Returns circuits for some periods: one follows the load of each circuit, the other is made of matchings of maximum weight, one
/// for each uplink (as Helios and c-Through have them). Both keep the `ToR`s connected if their uplinks permit.
pub(crate) fn candidates(fabric: &Fabric, periods: &[&Prepared<'_>]) -> Vec<Configuration> {
    let pod = fabric.pod();
    let tors = pod.tors().len();
    let mut between = Between { tors, bytes: vec![0; tors * tors] };
    let tor_of = fabric.initial().tor_of();
    let placement = Placement { fabric, tor_of, moved: &[] };
    periods.iter().for_each(|prepared| placement.visit(prepared.period(), &mut between));
    let tree = spanning_tree(fabric, &between);
    let loaded = by_load(fabric, &between, tree.clone());
    let matched = by_matching(fabric, &between, tree);
    let racks = Configuration::trusted(tor_of);
    [loaded, matched].into_iter().map(|circuits| racks.clone().with_circuits(circuits)).collect()
}

fn free(fabric: &Fabric, circuits: &Circuits, tor: usize) -> u32 {
    fabric.pod().tors()[tor].uplinks.saturating_sub(circuits.degree(tor))
}

/// A tree of heavy pairs that leaves no `ToR` out, as far as uplinks permit: each joins the tree at the heaviest edge.
fn spanning_tree(fabric: &Fabric, between: &Between) -> Circuits {
    let tors = between.tors;
    let mut circuits = Circuits::none(tors);
    let mut inside = vec![false; tors];
    let most = (0..tors).max_by_key(|&tor| fabric.pod().tors()[tor].uplinks);
    inside[most.unwrap_or(0)] = true;
    for _ in 1..tors {
        let pairs = (0..tors).flat_map(|a| (0..tors).map(move |b| (a, b)));
        let open =
            pairs.filter(|&(a, b)| inside[a] && !inside[b] && free(fabric, &circuits, a) > 0);
        // A ToR with several uplinks keeps the tree open for others.
        let key = |&(a, b): &(usize, usize)| {
            let branches = fabric.pod().tors()[b].uplinks > 1;
            (branches, between.bytes[a * tors + b], tors - a, tors - b)
        };
        let Some((a, b)) = open.max_by_key(key) else { break };
        circuits.set(a, b, 1);
        inside[b] = true;
    }
    circuits
}

fn by_load(fabric: &Fabric, between: &Between, mut circuits: Circuits) -> Circuits {
    let tors = between.tors;
    let mut left: Vec<u32> = (0..tors).map(|tor| free(fabric, &circuits, tor)).collect();
    loop {
        let pairs = (0..tors).flat_map(|a| (a + 1..tors).map(move |b| (a, b)));
        let open = pairs.filter(|&(a, b)| left[a] > 0 && left[b] > 0);
        let load = |&(a, b): &(usize, usize)| {
            between.bytes[a * tors + b] / u64::from(circuits.between(a, b) + 1)
        };
        let Some((a, b)) = open.max_by_key(load) else { return circuits };
        circuits.set(a, b, circuits.between(a, b) + 1);
        left[a] -= 1;
        left[b] -= 1;
    }
}

fn by_matching(fabric: &Fabric, between: &Between, mut circuits: Circuits) -> Circuits {
    let tors = between.tors;
    let heaviest = between.bytes.iter().copied().max().unwrap_or(0);
    let shift = heaviest.checked_ilog2().unwrap_or(0).saturating_sub(40);
    loop {
        let left: Vec<u32> = (0..tors).map(|tor| free(fabric, &circuits, tor)).collect();
        let matching = max_weight_matching(tors, |a, b| match left[a] > 0 && left[b] > 0 {
            true => {
                let bytes = between.bytes[a * tors + b] >> shift;
                bytes / u64::from(circuits.between(a, b) + 1)
            }
            false => 0,
        });
        let mut added = false;
        for (a, partner) in matching.into_iter().enumerate() {
            if let Some(b) = partner.filter(|&b| a < b) {
                circuits.set(a, b, circuits.between(a, b) + 1);
                added = true;
            }
        }
        if !added {
            break;
        }
    }
    circuits.fill(fabric.pod());
    circuits
}
