//! Routing per configuration: the `ToR`s that each transfer passes, and the uplink that it takes at each.

use std::collections::BTreeMap;

use rackweave_core::Span;

use crate::config::{Circuits, Configuration};
use crate::cost::{Endpoint, Origin, Paths, Placement, Segment, Visitor, transfer_time};
use crate::demand::Period;
use crate::fabric::Fabric;

/// One link between `ToR`s, or between a `ToR` and the packet switches above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hop {
    /// The `ToR` that the transfer leaves.
    pub from: u16,
    /// The `ToR` that it enters.
    pub to: u16,
    /// The number of the uplink that it leaves by; with circuits, the number of the circuit between the two `ToR`s.
    pub up: u16,
    /// The number of the uplink that it enters by; with circuits, the same circuit.
    pub down: u16,
}

/// The way of a transfer between `ToR`s. Transfers inside a rack need none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where the transfer starts.
    pub src: Endpoint,
    /// Where it ends.
    pub dst: Endpoint,
    /// The demand that it is a part of.
    pub origin: Origin,
    /// Its bytes.
    pub bytes: u64,
    /// The links, in order. A broadcast has one for each link of its tree.
    pub hops: Vec<Hop>,
}

/// The routes of a period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routing {
    /// The transfers between `ToR`s, the largest first.
    pub routes: Vec<Route>,
    /// The time that the busiest single uplink needs. The bottleneck bound counts the uplinks of a `ToR` together, so
    /// that this can be more.
    pub busiest: Span,
}

#[derive(Default)]
struct Transfers(Vec<(Segment, Vec<u16>)>);

impl Visitor for Transfers {
    fn server_out(&mut self, _: u32, _: u64, _: bool) {}

    fn server_in(&mut self, _: u32, _: u64, _: bool) {}

    fn segment(&mut self, segment: Segment) {
        self.0.push((segment, vec![segment.to]));
    }

    fn multicast(&mut self, segment: Segment, tors: &[u16]) {
        self.0.push((segment, tors.to_vec()));
    }

    fn absorbed(&mut self, _: u64) {}

    fn is_late(&self, _: u16, _: u16) -> bool {
        false
    }
}

/// The bytes on each of the parallel links at one end of a `ToR`, or between two.
#[derive(Default)]
struct Parallel(BTreeMap<(u16, u16, bool), Vec<u64>>);

impl Parallel {
    /// Chooses the link with the fewest bytes.
    fn choose(&mut self, key: (u16, u16, bool), links: u32, bytes: u64) -> u16 {
        let loads = self.0.entry(key).or_insert_with(|| vec![0; links.max(1) as usize]);
        let least = (0..loads.len()).min_by_key(|&link| (loads[link], link)).unwrap_or(0);
        loads[least] += bytes;
        least as u16
    }
}

/// Routes the transfers of a period: along the fewest circuits, and at each `ToR` over the uplink with the fewest bytes so far,
/// the largest transfer first. A transfer is not split.
#[must_use]
pub fn route(fabric: &Fabric, period: &Period, configuration: &Configuration) -> Routing {
    let mut transfers = Transfers::default();
    let tor_of = configuration.tor_of();
    Placement { fabric, tor_of, moved: &[] }.visit(period, &mut transfers);
    let mut transfers = transfers.0;
    transfers.retain(|(segment, _)| segment.bytes > 0);
    transfers.sort_by_key(|(it, _)| (u64::MAX - it.bytes, it.src, it.dst, it.origin));
    let tors = fabric.pod().tors();
    let circuits = configuration.circuits();
    let paths = circuits.map(|circuits| Paths::new(circuits, None, tors.len()));
    let mut parallel = Parallel::default();
    let mut routes = Vec::with_capacity(transfers.len());
    for (segment, ends) in transfers {
        let Segment { from, bytes, src, dst, origin, .. } = segment;
        let mut hops: Vec<Hop> = Vec::new();
        let mut pairs: Vec<(usize, usize)> = Vec::new();
        for to in ends {
            match &paths {
                Some(paths) => {
                    paths.walk(from, to, |a, b| {
                        if !pairs.contains(&(a, b)) {
                            pairs.push((a, b));
                        }
                    });
                }
                None => pairs.push((usize::from(from), usize::from(to))),
            }
        }
        for (a, b) in pairs {
            let (from, to) = (a as u16, b as u16);
            let hop = match circuits {
                Some(circuits) => {
                    let count = u32::from(circuits.between(a, b));
                    let circuit = parallel.choose((from, to, true), count, bytes);
                    Hop { from, to, up: circuit, down: circuit }
                }
                None => {
                    // The packets of a broadcast leave the ToR once and are replicated above it.
                    let known = hops.iter().find(|hop| hop.from == from).map(|hop| hop.up);
                    let choose_up = || parallel.choose((from, from, true), tors[a].uplinks, bytes);
                    let up = known.unwrap_or_else(choose_up);
                    let down = parallel.choose((to, to, false), tors[b].uplinks, bytes);
                    Hop { from, to, up, down }
                }
            };
            hops.push(hop);
        }
        routes.push(Route { src, dst, origin, bytes, hops });
    }
    let busiest = busiest(fabric, circuits, &parallel);
    Routing { routes, busiest }
}

fn busiest(fabric: &Fabric, circuits: Option<&Circuits>, parallel: &Parallel) -> Span {
    let tors = fabric.pod().tors();
    let time = |(&(a, b, _), loads): (&(u16, u16, bool), &Vec<u64>)| {
        let mut rate = tors[usize::from(a)].uplink_rate;
        if circuits.is_some() {
            rate = rate.min(tors[usize::from(b)].uplink_rate);
        }
        transfer_time(loads.iter().copied().max().unwrap_or(0), rate)
    };
    parallel.0.iter().map(time).max().unwrap_or(Span::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demand::{Broadcast, Flow, JobId, Upload};
    use crate::fabric::Architecture;
    use crate::pod::Pod;

    #[test]
    fn transfers_are_spread_over_uplinks_and_results_start_at_the_switch() {
        let fabric = Fabric::new(Pod::paper(), Architecture::P4Ordc);
        let flow = |src, dst, bytes| Flow { src, dst, bytes };
        let flows = vec![flow(0, 4, 70), flow(1, 6, 50), flow(2, 3, 900), flow(0, 7, 10)];
        let upload = Upload::new(JobId(1), 5, vec![(0, 100), (1, 100), (6, 100)], 150).unwrap();
        let broadcast = Broadcast::new(JobId(2), 4, vec![0, 5, 6, 7], 30).unwrap();
        let period = Period::new(8, flows, vec![upload], vec![broadcast]).unwrap();
        let routing = route(&fabric, &period, fabric.initial());
        let find = |src| routes(&routing, src);
        // The P-ToR sends what is left of two workers; the third is below a ToR that cannot aggregate.
        let [aggregated] = find(Endpoint::Tor(0))[..] else { panic!("{routing:?}") };
        assert!((101..200).contains(&aggregated.bytes), "{aggregated:?}");
        assert_eq!(aggregated.dst, Endpoint::Server(5));
        let up = |src| find(src).iter().flat_map(|it| it.hops.clone()).map(|it| it.up).collect();
        let first: Vec<u16> = up(Endpoint::Tor(0));
        assert_eq!(first, [0], "the largest is first");
        assert_eq!(up(Endpoint::Server(0)), [1_u16, 1], "the other uplink has 130 bytes at most");
        let [tree] = find(Endpoint::Server(4))[..] else { panic!("{routing:?}") };
        assert_eq!(tree.hops.iter().map(|hop| hop.to).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(tree.hops[0].up, tree.hops[1].up);
        let mut bytes = BTreeMap::new();
        for route in &routing.routes {
            *bytes.entry((route.hops[0].from, route.hops[0].up, true)).or_insert(0) += route.bytes;
            for hop in &route.hops {
                *bytes.entry((hop.to, hop.down, false)).or_insert(0) += route.bytes;
            }
        }
        let most = *bytes.values().max().unwrap();
        assert_eq!(routing.busiest, Span::from_ps(800 * most), "{bytes:?}");
    }

    fn routes(routing: &Routing, src: Endpoint) -> Vec<&Route> {
        routing.routes.iter().filter(|route| route.src == src).collect()
    }

    #[test]
    fn circuits_are_followed_through_other_tors() {
        let fabric = Fabric::new(Pod::paper(), Architecture::P4IncAoi);
        let flows = vec![Flow { src: 4, dst: 6, bytes: 1000 }];
        let period = Period::new(8, flows, vec![], vec![]).unwrap();
        let routing = route(&fabric, &period, fabric.initial());
        let hop = |from, to| Hop { from, to, up: 0, down: 0 };
        assert_eq!(routing.routes[0].hops, [hop(1, 0), hop(0, 2)]);
        assert_eq!(routing.busiest, Span::from_ns(800));
    }
}
