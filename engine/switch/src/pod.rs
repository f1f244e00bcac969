//! A pod: `ToR`s of any sizes below one core switch, and the optical circuit switch (OCS) that it may have.
//!
//! | [`Circuits`] | the OCS | what moves |
//! |---|---|---|
//! | [`Circuits::None`] | there is none: racks are fixed (an oversubscribed two-stage tree) | nothing |
//! | [`Circuits::Servers`] | between servers and `ToR`s (RDC, NSDI 2022) | which servers share a `ToR` |
//! | [`Circuits::Tors`] | above the `ToR`s (P4INC-AOI, OFC 2023) | which `ToR`s are joined directly |
//!
//! In each of them a `ToR` can have electrical uplinks to the core switch. Packets take the shortest paths by number of
//! switches, so a circuit between two `ToR`s is preferred to the way through the core, and where a path through a third
//! `ToR` is as short as one through the core, both are used. What is published, and what is our choice:
//! `docs/sources.md#optical-circuits`.

use std::collections::BTreeMap;

use rackweave_core::{HostId, Rate, Span, Time};

/// Most `ToR`s of a pod.
pub const MAX_TORS: usize = 256;

/// Most servers of a pod: each switch has a table of them.
pub const MAX_SERVERS: u32 = 4096;

/// A pod of `ToR`s below one core switch. Hosts are its servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// The `ToR`s, in the order of their numbers.
    pub tors: Vec<Tor>,
    /// Rate of the servers' links.
    pub host_link: Rate,
    /// Rate of each uplink, and of each circuit between two `ToR`s.
    pub core_link: Rate,
    /// The circuits with which a run begins. Their kind says where the OCS is.
    pub circuits: Circuits,
    /// How the OCS changes circuits. Without an OCS it has no meaning.
    pub ocs: Ocs,
}

/// The ports of a `ToR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tor {
    /// Ports for servers. In a rackless pod they lead to the OCS.
    pub server_ports: u32,
    /// Ports that lead to the core switch.
    pub uplinks: u32,
    /// Ports that lead to an OCS above the `ToR`s; only with [`Circuits::Tors`].
    pub circuit_ports: u32,
}

/// How an optical circuit switch changes circuits.
///
/// A port without a circuit to a lit port at its other end has its link down. From the time of the change it is dark for the
/// sum of both delays, because a receiver that has lost light must lock again, whether or not its circuit is a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ocs {
    /// Time in which the OCS moves its mirrors.
    pub switching_delay: Span,
    /// Time after it in which transceivers lock and links come up.
    pub link_delay: Span,
    /// Which ports are dark meanwhile.
    pub dark: Dark,
}

/// The ports of an OCS that are dark while circuits change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dark {
    /// All ports, if any circuit changes.
    All,
    /// The ports of circuits that end or begin.
    Moved,
}

/// An assignment of the ports of an OCS.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub enum Circuits {
    /// There is no OCS. Servers are at `ToR`s in the order of their numbers, as many as each has ports.
    None,
    /// The `ToR` of each server. A server that stays at its `ToR` stays at its port; one that comes takes the lowest free
    /// port.
    Servers(Vec<u16>),
    /// The pairs of `ToR`s that are joined, in any order; a pair that occurs twice has two circuits. Servers are at `ToR`s as
    /// with [`Circuits::None`]. A circuit of a pair that was joined before stays at its ports.
    Tors(Vec<(u16, u16)>),
}

/// A change of circuits at a time that is known beforehand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// When the OCS begins to change: its ports are dark from then on.
    pub at: Time,
    /// The new circuits.
    pub circuits: Circuits,
}

/// Reasons why a pod cannot have these circuits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CircuitError {
    /// The fabric has no OCS, or the circuits are those of an OCS at another place.
    #[error("the fabric has no optical circuit switch for circuits of {0}")]
    Kind(&'static str),
    /// The list of servers has another length than the pod has servers.
    #[error("the circuits are of {given} servers, and the pod has {servers}")]
    Servers {
        /// The length of the list.
        given: usize,
        /// The number of servers of the pod.
        servers: usize,
    },
    /// A circuit leads to a `ToR` that the pod does not have.
    #[error("there is no ToR {tor}: the pod has {tors}")]
    NoSuchTor {
        /// The number of the `ToR`.
        tor: u16,
        /// The number of `ToR`s.
        tors: usize,
    },
    /// A `ToR` has fewer ports than circuits.
    #[error("ToR {tor} has {ports} ports at the optical circuit switch, and would need {needed}")]
    Ports {
        /// The number of the `ToR`.
        tor: u16,
        /// The ports that it has.
        ports: u32,
        /// The circuits that lead to it.
        needed: u32,
    },
    /// A circuit from a `ToR` to itself.
    #[error("a circuit joins ToR {0} to itself")]
    Loop(u16),
    /// Two `ToR`s with servers have no path to each other, as neither uplinks nor circuits join them.
    #[error("no path leads from ToR {from} to ToR {to}: it takes uplinks, or other circuits")]
    NoPath {
        /// The first `ToR`.
        from: u16,
        /// The second `ToR`.
        to: u16,
    },
}

/// What the ports of a pod are connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wiring {
    /// For each server, its `ToR` and the port there.
    pub(crate) servers: Vec<(u16, u16)>,
    /// For each `ToR` and circuit port, the `ToR` and circuit port at the other end.
    pub(crate) circuits: Vec<CircuitPorts>,
}

/// The far end of each circuit port of a `ToR`: the other `ToR`, and its circuit port.
type CircuitPorts = Vec<Option<(u16, u16)>>;

impl Circuits {
    /// The things that the circuits lead to, for errors.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::None => "no OCS",
            Self::Servers(_) => "servers",
            Self::Tors(_) => "ToRs",
        }
    }
}

impl Pod {
    /// Number of servers.
    #[must_use]
    pub fn servers(&self) -> u32 {
        match &self.circuits {
            Circuits::Servers(tors) => u32::try_from(tors.len()).unwrap_or(u32::MAX),
            _ => self.tors.iter().fold(0, |sum, tor| sum.saturating_add(tor.server_ports)),
        }
    }

    /// Whether the pod has an optical circuit switch.
    #[must_use]
    pub fn has_ocs(&self) -> bool {
        self.circuits != Circuits::None
    }

    /// The time from the beginning of a change until its links are up.
    #[must_use]
    pub fn dark_time(&self) -> Span {
        self.ocs.switching_delay + self.ocs.link_delay
    }

    /// The `ToR` of a server under these circuits, which must be possible.
    #[must_use]
    pub fn tor_of(&self, circuits: &Circuits, host: HostId) -> Option<u16> {
        if let Circuits::Servers(tors) = circuits {
            return tors.get(host.0 as usize).copied();
        }
        let mut first = 0;
        (self.tors.iter().zip(0..)).find_map(|(tor, number)| {
            first += tor.server_ports;
            (host.0 < first).then_some(number)
        })
    }

    /// Connects the ports by these circuits, with as few changes to those `before` as possible.
    pub(crate) fn wire(
        &self,
        circuits: &Circuits,
        before: Option<&Wiring>,
    ) -> Result<Wiring, CircuitError> {
        if std::mem::discriminant(circuits) != std::mem::discriminant(&self.circuits) {
            return Err(CircuitError::Kind(circuits.kind()));
        }
        let wiring = match circuits {
            Circuits::None => Wiring { servers: self.fixed(), circuits: Vec::new() },
            Circuits::Servers(tors) => {
                Wiring { servers: self.assign_servers(tors, before)?, circuits: Vec::new() }
            }
            Circuits::Tors(pairs) => {
                Wiring { servers: self.fixed(), circuits: self.join_tors(pairs, before)? }
            }
        };
        self.check_paths(&wiring)?;
        Ok(wiring)
    }

    /// The servers' ports where racks are fixed.
    fn fixed(&self) -> Vec<(u16, u16)> {
        let tors = self.tors.iter().zip(0..);
        tors.flat_map(|(tor, number)| (0..tor.server_ports as u16).map(move |port| (number, port)))
            .collect()
    }

    fn check_tor(&self, tor: u16) -> Result<(), CircuitError> {
        let tors = self.tors.len();
        if usize::from(tor) < tors { Ok(()) } else { Err(CircuitError::NoSuchTor { tor, tors }) }
    }

    fn assign_servers(
        &self,
        tors: &[u16],
        before: Option<&Wiring>,
    ) -> Result<Vec<(u16, u16)>, CircuitError> {
        let servers = self.servers() as usize;
        if tors.len() != servers {
            return Err(CircuitError::Servers { given: tors.len(), servers });
        }
        let mut needed = vec![0; self.tors.len()];
        for &tor in tors {
            self.check_tor(tor)?;
            needed[usize::from(tor)] += 1;
        }
        self.check_ports(&needed, |tor| tor.server_ports)?;
        let mut free: Vec<Vec<bool>> =
            self.tors.iter().map(|tor| vec![true; tor.server_ports as usize]).collect();
        let kept = |server: usize| {
            let port = before.map(|wiring| wiring.servers[server])?;
            (port.0 == tors[server]).then_some(port)
        };
        for (tor, port) in (0..servers).filter_map(kept) {
            free[usize::from(tor)][usize::from(port)] = false;
        }
        let place = |server| {
            kept(server).unwrap_or_else(|| (tors[server], take_lowest(&mut free, tors[server])))
        };
        Ok((0..servers).map(place).collect())
    }

    fn join_tors(
        &self,
        pairs: &[(u16, u16)],
        before: Option<&Wiring>,
    ) -> Result<Vec<CircuitPorts>, CircuitError> {
        let mut needed = vec![0; self.tors.len()];
        let mut wanted: BTreeMap<(u16, u16), u32> = BTreeMap::new();
        for &(a, b) in pairs {
            self.check_tor(a)?;
            self.check_tor(b)?;
            if a == b {
                return Err(CircuitError::Loop(a));
            }
            needed[usize::from(a)] += 1;
            needed[usize::from(b)] += 1;
            *wanted.entry((a.min(b), a.max(b))).or_default() += 1;
        }
        self.check_ports(&needed, |tor| tor.circuit_ports)?;
        let mut ends: Vec<CircuitPorts> =
            self.tors.iter().map(|tor| vec![None; tor.circuit_ports as usize]).collect();
        let mut free: Vec<Vec<bool>> = ends.iter().map(|ports| vec![true; ports.len()]).collect();
        let mut join = |free: &mut Vec<Vec<bool>>, a: (u16, u16), b: (u16, u16)| {
            for (from, to) in [(a, b), (b, a)] {
                free[usize::from(from.0)][usize::from(from.1)] = false;
                ends[usize::from(from.0)][usize::from(from.1)] = Some(to);
            }
        };
        let known = before.map(|wiring| wiring.circuits.as_slice()).unwrap_or_default();
        for (tor, ports) in (0..).zip(known) {
            for (port, end) in (0..).zip(ports) {
                let Some(end) = end.filter(|end| tor < end.0) else { continue };
                if let Some(count) = wanted.get_mut(&(tor, end.0)).filter(|count| **count > 0) {
                    *count -= 1;
                    join(&mut free, (tor, port), end);
                }
            }
        }
        for ((a, b), count) in wanted {
            for _ in 0..count {
                let ends = [a, b].map(|tor| (tor, take_lowest(&mut free, tor)));
                join(&mut free, ends[0], ends[1]);
            }
        }
        Ok(ends)
    }

    fn check_ports(&self, needed: &[u32], of: impl Fn(&Tor) -> u32) -> Result<(), CircuitError> {
        for ((tor, needed), number) in self.tors.iter().zip(needed).zip(0..) {
            let (ports, needed) = (of(tor), *needed);
            if needed > ports {
                return Err(CircuitError::Ports { tor: number, ports, needed });
            }
        }
        Ok(())
    }

    /// Checks that all `ToR`s with servers reach each other.
    fn check_paths(&self, wiring: &Wiring) -> Result<(), CircuitError> {
        let Some(&(first, _)) = wiring.servers.first() else { return Ok(()) };
        let mut reached = vec![false; self.tors.len()];
        reached[usize::from(first)] = true;
        let mut frontier = vec![first];
        let mut core_reached = false;
        while let Some(tor) = frontier.pop() {
            let mut reach = |tor: u16| {
                if !std::mem::replace(&mut reached[usize::from(tor)], true) {
                    frontier.push(tor);
                }
            };
            let ports = wiring.circuits.get(usize::from(tor)).into_iter().flatten();
            ports.flatten().for_each(|end| reach(end.0));
            if self.tors[usize::from(tor)].uplinks > 0
                && !std::mem::replace(&mut core_reached, true)
            {
                let joined = self.tors.iter().zip(0..).filter(|(tor, _)| tor.uplinks > 0);
                joined.for_each(|(_, tor)| reach(tor));
            }
        }
        let missing = wiring.servers.iter().find(|(tor, _)| !reached[usize::from(*tor)]);
        missing.map_or(Ok(()), |&(to, _)| Err(CircuitError::NoPath { from: first, to }))
    }
}

/// Takes the lowest free port of a `ToR`. The number of ports has been checked.
fn take_lowest(free: &mut [Vec<bool>], tor: u16) -> u16 {
    let ports = &mut free[usize::from(tor)];
    let port = ports.iter().position(|free| *free).expect("a ToR has a port for each circuit");
    ports[port] = false;
    port as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(circuits: Circuits) -> Pod {
        let tor = |server_ports, circuit_ports| Tor { server_ports, uplinks: 0, circuit_ports };
        let rate = Rate::from_gbps(10);
        Pod {
            tors: vec![tor(4, 2), tor(2, 1), tor(2, 1)],
            host_link: rate,
            core_link: rate,
            circuits,
            ocs: Ocs {
                switching_delay: Span::from_ms(25),
                link_delay: Span::ZERO,
                dark: Dark::Moved,
            },
        }
    }

    fn with_uplinks(circuits: Circuits) -> Pod {
        let mut pod = pod(circuits);
        pod.tors.iter_mut().for_each(|tor| tor.uplinks = 1);
        pod
    }

    #[test]
    fn servers_that_stay_keep_their_ports() {
        let first = Circuits::Servers(vec![0, 0, 0, 0, 1, 1, 2, 2]);
        let pod = with_uplinks(first.clone());
        let before = pod.wire(&first, None).unwrap();
        assert_eq!(before.servers[..5], [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]);
        let after = pod.wire(&Circuits::Servers(vec![2, 0, 1, 0, 1, 0, 2, 0]), Some(&before));
        let expected = [(2, 0), (0, 1), (1, 1), (0, 3), (1, 0), (0, 0), (2, 0), (0, 2)];
        let mut expected = expected.to_vec();
        // Server 6 stays at port 0 of ToR 2, so that server 0 gets port 1.
        expected[0] = (2, 1);
        assert_eq!(after.unwrap().servers, expected);
    }

    #[test]
    fn circuits_that_stay_keep_their_ports() {
        let first = Circuits::Tors(vec![(0, 1), (2, 0)]);
        let pod = pod(first.clone());
        let before = pod.wire(&first, None).unwrap();
        assert_eq!(before.circuits[0], [Some((1, 0)), Some((2, 0))]);
        let after = pod.wire(&Circuits::Tors(vec![(0, 2), (0, 1)]), Some(&before)).unwrap();
        assert_eq!(after, before);
        let twice = pod.wire(&Circuits::Tors(vec![(0, 1), (1, 0)]), None);
        assert_eq!(twice, Err(CircuitError::Ports { tor: 1, ports: 1, needed: 2 }));
    }

    #[test]
    fn impossible_circuits_are_refused() {
        let first = Circuits::Servers(vec![0, 0, 0, 0, 1, 1, 2, 2]);
        let wire = |tors: &[u16]| {
            with_uplinks(first.clone()).wire(&Circuits::Servers(tors.to_vec()), None).unwrap_err()
        };
        assert_eq!(wire(&[0, 0, 0]), CircuitError::Servers { given: 3, servers: 8 });
        assert_eq!(
            wire(&[0, 0, 0, 0, 0, 1, 2, 2]),
            CircuitError::Ports { tor: 0, ports: 4, needed: 5 }
        );
        assert_eq!(wire(&[0, 0, 0, 0, 3, 1, 2, 2]), CircuitError::NoSuchTor { tor: 3, tors: 3 });
        let isolated = pod(first.clone()).wire(&first, None);
        assert_eq!(isolated, Err(CircuitError::NoPath { from: 0, to: 1 }));
        let pairs = |pairs: &[(u16, u16)]| {
            let circuits = Circuits::Tors(pairs.to_vec());
            pod(circuits.clone()).wire(&circuits, None).unwrap_err()
        };
        assert_eq!(pairs(&[(0, 1)]), CircuitError::NoPath { from: 0, to: 2 });
        assert_eq!(pairs(&[(1, 1)]), CircuitError::Loop(1));
        let wrong = with_uplinks(first).wire(&Circuits::Tors(Vec::new()), None);
        assert_eq!(wrong, Err(CircuitError::Kind("ToRs")));
    }
}
