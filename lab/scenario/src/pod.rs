//! The keys of `[fabric]` for pods: `ToR`s of any sizes, with or without an optical circuit switch (OCS).

use std::fmt;
use std::sync::Arc;

use rackweave_core::{Rate, Span, Time};
use rackweave_sim::Fabric as Layout;
use rackweave_sim::config::{Circuits, Dark, Move, Ocs, Pod, Topology, Tor};
use serde::de::{Error, SeqAccess, Visitor};
use serde::ser::SerializeTuple;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::fabric::{Fabric, TopologyName, either_or, positive_rate};
use super::problem::Problem;
use super::values::{AtLeast, Unit};

/// A number for all `ToR`s, or a list with one for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PerTor {
    All(u32),
    Each(Vec<u32>),
}

/// One entry of `circuits`: the `ToR` of a server, or a pair of `ToR`s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Circuit {
    Server(u16),
    Pair(u16, u16),
}

/// One entry of `[[fabric.moves]]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MoveSpec {
    /// When the ports go dark. Required.
    at: Unit<Span>,
    /// The new circuits, as in `circuits`. Required.
    circuits: Vec<Circuit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DarkName {
    All,
    Moved,
}

struct PerTorVisitor;

impl<'de> Visitor<'de> for PerTorVisitor {
    type Value = PerTor;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number, or a list with one for each ToR")
    }

    fn visit_u64<E: Error>(self, n: u64) -> Result<PerTor, E> {
        let n = u32::try_from(n);
        n.map(PerTor::All).map_err(|_| E::custom("is too large"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<PerTor, A::Error> {
        let mut each = Vec::new();
        while let Some(n) = list.next_element::<AtLeast<0>>()? {
            each.push(n.0);
        }
        Ok(PerTor::Each(each))
    }
}

impl<'de> Deserialize<'de> for PerTor {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(PerTorVisitor)
    }
}

impl Serialize for PerTor {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All(n) => to.serialize_u32(*n),
            Self::Each(list) => list.serialize(to),
        }
    }
}

struct CircuitVisitor;

impl<'de> Visitor<'de> for CircuitVisitor {
    type Value = Circuit;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the number of a server's ToR, or a pair of ToRs such as [0, 1]")
    }

    fn visit_u64<E: Error>(self, n: u64) -> Result<Circuit, E> {
        let n = u16::try_from(n);
        n.map(Circuit::Server).map_err(|_| E::custom("is too large for the number of a ToR"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Circuit, A::Error> {
        let mut next = || list.next_element::<AtLeast<0, u16>>();
        match (next()?, next()?, next()?) {
            (Some(a), Some(b), None) => Ok(Circuit::Pair(a.0, b.0)),
            _ => Err(A::Error::custom("a pair has two ToRs, as in [0, 1]")),
        }
    }
}

impl<'de> Deserialize<'de> for Circuit {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(CircuitVisitor)
    }
}

impl Serialize for Circuit {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Server(tor) => to.serialize_u16(*tor),
            Self::Pair(a, b) => {
                let mut pair = to.serialize_tuple(2)?;
                pair.serialize_element(a)?;
                pair.serialize_element(b)?;
                pair.end()
            }
        }
    }
}

impl Fabric {
    pub(super) fn pod(&self, host_link: Rate) -> Result<Topology, Problem> {
        let ports = self.tors.as_ref().filter(|tors| !tors.is_empty()).ok_or_else(|| {
            self.missing("tors").with_help("the server ports of each ToR, as in tors = [4, 2, 2]")
        })?;
        let uplinks = match &self.uplinks {
            None if self.topology != TopologyName::TorCircuits => {
                return Err(self.missing("uplinks").with_help(
                    "links from each ToR to the core switch: a number, or a list with one for each ToR",
                ));
            }
            given => per_tor("uplinks", given.as_ref(), ports.len())?,
        };
        let at_ocs = per_tor("circuit_ports", self.circuit_ports.as_ref(), ports.len())?;
        if self.topology == TopologyName::TorCircuits && self.circuit_ports.is_none() {
            return Err(self.missing("circuit_ports").with_help(
                "ports of each ToR at the optical circuit switch: a number, or a list with one for each ToR",
            ));
        }
        let tors: Vec<Tor> = (ports.iter().zip(&uplinks).zip(&at_ocs))
            .map(|((ports, uplinks), circuit_ports)| Tor {
                server_ports: ports.0,
                uplinks: *uplinks,
                circuit_ports: *circuit_ports,
            })
            .collect();
        let circuits = match self.topology {
            TopologyName::Rackless => self.first_servers(&tors)?,
            TopologyName::TorCircuits => {
                let given = self.circuits.as_deref().ok_or_else(|| {
                    self.missing("circuits").with_help("pairs of ToRs, as in [[0, 1], [0, 2]]")
                })?;
                circuits_of(self.topology, "fabric.circuits", given)?
            }
            _ => Circuits::None,
        };
        let core_link = self.pod_core_link(&tors, host_link)?;
        let ocs = Ocs {
            // That of a crossconnect of 32 ports with moving mirrors.
            switching_delay: self.switching_delay.map_or(Span::from_ms(25), |delay| delay.0),
            link_delay: self.link_delay.map_or(Span::ZERO, |delay| delay.0),
            dark: match self.dark {
                Some(DarkName::All) => Dark::All,
                None | Some(DarkName::Moved) => Dark::Moved,
            },
        };
        let pod = Pod { tors, host_link, core_link, circuits, ocs };
        super::fabric::hosts("fabric.tors", u64::from(pod.servers()))?;
        Ok(Topology::Pod(Arc::new(pod)))
    }

    /// The first circuits of a rackless pod: the given ones, or servers in the order of their numbers.
    fn first_servers(&self, tors: &[Tor]) -> Result<Circuits, Problem> {
        let ports = tors.iter().map(|tor| u64::from(tor.server_ports)).sum::<u64>();
        let hosts = self.hosts.as_ref().map(|hosts| hosts.0);
        if let Some(hosts) = hosts.filter(|hosts| u64::from(*hosts) > ports) {
            let message = format!("{hosts} servers need more than the {ports} ports of the ToRs");
            return Err(Problem::new("fabric.hosts", message));
        }
        if let Some(given) = &self.circuits {
            if let Some(hosts) = hosts.filter(|hosts| *hosts as usize != given.len()) {
                let message = format!("{} circuits are not those of {hosts} servers", given.len());
                return Err(Problem::new("fabric.circuits", message));
            }
            return circuits_of(self.topology, "fabric.circuits", given);
        }
        super::fabric::hosts("fabric.tors", ports)?;
        let in_order = (0..)
            .zip(tors)
            .flat_map(|(number, tor)| std::iter::repeat_n(number, tor.server_ports as usize));
        Ok(Circuits::Servers(in_order.take(hosts.unwrap_or(u32::MAX) as usize).collect()))
    }

    /// The rate of uplinks and circuits. With `oversubscription`, the ToR with the most server ports for each link upwards
    /// is oversubscribed by that factor, and others by less.
    fn pod_core_link(&self, tors: &[Tor], host_link: Rate) -> Result<Rate, Problem> {
        match (self.core_link, self.oversubscription) {
            (Some(_), Some(_)) => Err(either_or()),
            (Some(rate), None) => positive_rate("fabric.core_link", rate),
            (None, None) => Ok(host_link),
            (None, Some(times)) => {
                let ratio = |tor: &Tor| {
                    f64::from(tor.server_ports) / f64::from(tor.uplinks + tor.circuit_ports)
                };
                let most = tors.iter().map(ratio).filter(|ratio| ratio.is_finite());
                super::fabric::divided(host_link.0 as f64 * most.fold(0.0, f64::max), times)
            }
        }
    }

    /// The moves, checked against the fabric.
    pub fn moves(&self, layout: &Layout) -> Result<Vec<Move>, Problem> {
        let moves = self.moves.iter().enumerate().map(|(index, change)| {
            let key = format!("fabric.moves.{index}.circuits");
            let circuits = circuits_of(self.topology, &key, &change.circuits)?;
            let possible = layout.with_circuits(&circuits);
            possible.map_err(|error| Problem::new(&key, error.to_string()))?;
            Ok(Move { at: Time::ZERO + change.at.0, circuits })
        });
        moves.collect()
    }
}

fn per_tor(key: &str, given: Option<&PerTor>, tors: usize) -> Result<Vec<u32>, Problem> {
    match given {
        None => Ok(vec![0; tors]),
        Some(PerTor::All(n)) => Ok(vec![*n; tors]),
        Some(PerTor::Each(list)) if list.len() == tors => Ok(list.clone()),
        Some(PerTor::Each(list)) => Err(Problem::new(
            format!("fabric.{key}"),
            format!("`{key}` has {} numbers, and there are {tors} ToRs", list.len()),
        )),
    }
}

fn circuits_of(topology: TopologyName, key: &str, given: &[Circuit]) -> Result<Circuits, Problem> {
    if topology == TopologyName::Rackless {
        let tor = |circuit: &Circuit| match circuit {
            Circuit::Server(tor) => Some(*tor),
            Circuit::Pair(..) => None,
        };
        let tors: Option<Vec<u16>> = given.iter().map(tor).collect();
        return tors.map(Circuits::Servers).ok_or_else(|| {
            Problem::new(key, "the circuits of a rackless fabric are the ToRs of its servers")
                .with_help("such as [0, 0, 0, 0, 1, 1, 2, 2] for eight servers")
        });
    }
    let pair = |circuit: &Circuit| match circuit {
        Circuit::Pair(a, b) => Some((*a, *b)),
        Circuit::Server(_) => None,
    };
    let pairs: Option<Vec<_>> = given.iter().map(pair).collect();
    pairs.map(Circuits::Tors).ok_or_else(|| {
        Problem::new(key, "circuits between ToRs are pairs of ToRs")
            .with_help("such as [[0, 1], [0, 2]]")
    })
}
