//! A configuration of the optical switches: which server is below which `ToR`, and which circuits join the `ToR`s.

use crate::pod::{Pod, Tor};

/// Which server is below which `ToR`; with an optical switch above the `ToR`s, also the circuits between them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Configuration {
    tor_of: Box<[u16]>,
    circuits: Option<Circuits>,
}

/// Numbers of circuits between pairs of `ToR`s. A circuit carries the rate of an uplink in each direction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Circuits {
    tors: usize,
    /// A symmetric matrix.
    counts: Box<[u16]>,
}

/// A server that changes its `ToR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Move {
    /// The server.
    pub server: u32,
    /// The `ToR` that it leaves.
    pub from: u16,
    /// The `ToR` that it joins.
    pub to: u16,
}

/// Why a configuration does not fit a pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigurationError {
    /// A server is missing, or there is one too many.
    #[error("the configuration has {found} servers, but the pod has {servers}")]
    Servers {
        /// The servers of the configuration.
        found: usize,
        /// The servers of the pod.
        servers: u32,
    },
    /// A server is in two racks, or in none, or does not exist.
    #[error("server {0} must be in exactly one rack")]
    Server(u32),
    /// There is no such `ToR`.
    #[error("ToR {tor} does not exist: the pod has ToRs 0 to {last}")]
    NoTor {
        /// The number of the `ToR`.
        tor: usize,
        /// The highest number of a `ToR`.
        last: usize,
    },
    /// A `ToR` has more servers than ports.
    #[error("ToR {tor} has {ports} server ports, too few for {servers} servers")]
    Ports {
        /// The number of the `ToR`.
        tor: usize,
        /// Its ports.
        ports: u32,
        /// The servers that the configuration gives it.
        servers: u32,
    },
}

impl Configuration {
    /// Creates a configuration from the `ToR` of each server.
    ///
    /// # Errors
    /// If a `ToR` has more servers than ports, or the number of servers is not the pod's.
    pub fn new(pod: &Pod, tor_of: &[u16]) -> Result<Self, ConfigurationError> {
        if tor_of.len() != pod.servers() as usize {
            let (found, servers) = (tor_of.len(), pod.servers());
            return Err(ConfigurationError::Servers { found, servers });
        }
        let mut used = vec![0_u32; pod.tors().len()];
        for &tor in tor_of {
            let last = used.len() - 1;
            let count = used.get_mut(usize::from(tor));
            *count.ok_or(ConfigurationError::NoTor { tor: usize::from(tor), last })? += 1;
        }
        for (tor, (&servers, Tor { ports, .. })) in used.iter().zip(pod.tors()).enumerate() {
            if servers > *ports {
                return Err(ConfigurationError::Ports { tor, ports: *ports, servers });
            }
        }
        Ok(Self { tor_of: tor_of.into(), circuits: None })
    }

    /// Creates a configuration from the servers of each `ToR`.
    ///
    /// # Errors
    /// If a server is in two racks or in none, or a `ToR` has more servers than ports.
    pub fn from_racks(pod: &Pod, racks: &[Vec<u32>]) -> Result<Self, ConfigurationError> {
        let last = pod.tors().len() - 1;
        if racks.len() > last + 1 {
            return Err(ConfigurationError::NoTor { tor: racks.len() - 1, last });
        }
        let mut tor_of = vec![None; pod.servers() as usize];
        for (tor, rack) in (0..).zip(racks) {
            for &server in rack {
                match tor_of.get_mut(server as usize) {
                    Some(place @ None) => *place = Some(tor),
                    _ => return Err(ConfigurationError::Server(server)),
                }
            }
        }
        let missing = (0..).zip(&tor_of).find(|(_, tor)| tor.is_none());
        if let Some((server, _)) = missing {
            return Err(ConfigurationError::Server(server));
        }
        let tor_of: Vec<u16> = tor_of.into_iter().flatten().collect();
        Self::new(pod, &tor_of)
    }

    /// Creates the configuration in which the servers fill the `ToR`s in the order of their numbers.
    #[must_use]
    pub fn in_order(pod: &Pod) -> Self {
        let tors = (0_u16..).zip(pod.tors());
        let ports = tors.flat_map(|(number, tor)| (0..tor.ports).map(move |_| number));
        Self { tor_of: ports.take(pod.servers() as usize).collect(), circuits: None }
    }

    /// Returns the same racks with these circuits above them.
    #[must_use]
    pub fn with_circuits(mut self, circuits: Circuits) -> Self {
        self.circuits = Some(circuits);
        self
    }

    /// Builds a configuration whose capacity the caller has kept.
    pub(crate) fn trusted(tor_of: &[u16]) -> Self {
        Self { tor_of: tor_of.into(), circuits: None }
    }

    /// Returns the `ToR` of each server.
    #[must_use]
    pub const fn tor_of(&self) -> &[u16] {
        &self.tor_of
    }

    /// Returns the circuits between the `ToR`s, if an optical switch joins them.
    #[must_use]
    pub const fn circuits(&self) -> Option<&Circuits> {
        self.circuits.as_ref()
    }

    /// Returns the servers of each `ToR`, in ascending order.
    #[must_use]
    pub fn racks(&self, tors: usize) -> Vec<Vec<u32>> {
        let mut racks = vec![Vec::new(); tors];
        for (server, &tor) in (0..).zip(&self.tor_of) {
            racks[usize::from(tor)].push(server);
        }
        racks
    }

    /// Returns the servers that change their `ToR` between two configurations.
    #[must_use]
    pub fn moves_to(&self, next: &Self) -> Vec<Move> {
        let pairs = (0..).zip(self.tor_of.iter().zip(&next.tor_of));
        let moved = pairs.filter(|(_, (from, to))| from != to);
        moved.map(|(server, (&from, &to))| Move { server, from, to }).collect()
    }

    /// Returns the same grouping with the `ToR`s of equal ports, uplinks and slots exchanged so that few servers
    /// move from `previous`: the pair of racks with the most servers in common is matched first.
    #[must_use]
    pub fn aligned(&self, pod: &Pod, previous: &Self) -> Self {
        let tors = pod.tors();
        let mut common = vec![0_u32; tors.len() * tors.len()];
        for (&new, &old) in self.tor_of.iter().zip(&previous.tor_of) {
            if tors[usize::from(new)] == tors[usize::from(old)] {
                common[usize::from(new) * tors.len() + usize::from(old)] += 1;
            }
        }
        let mut pairs: Vec<_> = (0..common.len()).filter(|&pair| common[pair] > 0).collect();
        pairs.sort_by_key(|&pair| (u32::MAX - common[pair], pair));
        let (mut name, mut taken) = (vec![None; tors.len()], vec![false; tors.len()]);
        for pair in pairs {
            let (new, old) = (pair / tors.len(), pair % tors.len());
            if name[new].is_none() && !taken[old] {
                (name[new], taken[old]) = (Some(old), true);
            }
        }
        for new in 0..tors.len() {
            if name[new].is_none() {
                let old = (0..tors.len()).find(|&old| !taken[old] && tors[old] == tors[new]);
                // Racks are renamed among equals only, so that as many names remain as there are racks without one.
                let old = old.unwrap_or(new);
                (name[new], taken[old]) = (Some(old), true);
            }
        }
        let renamed = self.tor_of.iter().map(|&tor| name[usize::from(tor)].unwrap_or(0) as u16);
        Self { tor_of: renamed.collect(), circuits: self.circuits.clone() }
    }

    /// Returns all assignments of servers to `ToR`s, in lexical order; `None` if there are more than `limit`.
    #[must_use]
    pub fn all(pod: &Pod, limit: usize) -> Option<Vec<Self>> {
        let mut left: Vec<u32> = pod.tors().iter().map(|tor| tor.ports).collect();
        let mut chosen = Vec::with_capacity(pod.servers() as usize);
        let mut all = Vec::new();
        place(pod.servers() as usize, &mut left, &mut chosen, &mut all, limit).then_some(all)
    }
}

/// Places the remaining servers in all ways; false if the limit is exceeded. Every partial placement can be completed, so
/// the time is proportional to the number of results.
fn place(
    servers: usize,
    left: &mut [u32],
    chosen: &mut Vec<u16>,
    all: &mut Vec<Configuration>,
    limit: usize,
) -> bool {
    if chosen.len() == servers {
        all.push(Configuration::trusted(chosen));
        return all.len() <= limit;
    }
    for tor in 0..left.len() {
        if left[tor] == 0 {
            continue;
        }
        left[tor] -= 1;
        chosen.push(tor as u16);
        let within = place(servers, left, chosen, all, limit);
        chosen.pop();
        left[tor] += 1;
        if !within {
            return false;
        }
    }
    true
}

impl Circuits {
    /// Creates circuits without any connection.
    #[must_use]
    pub fn none(tors: usize) -> Self {
        Self { tors, counts: vec![0; tors * tors].into() }
    }

    /// Returns the number of `ToR`s.
    #[must_use]
    pub const fn tors(&self) -> usize {
        self.tors
    }

    /// Returns the number of circuits between two `ToR`s.
    #[must_use]
    pub fn between(&self, a: usize, b: usize) -> u16 {
        self.counts[a * self.tors + b]
    }

    /// Sets the number of circuits between two different `ToR`s.
    pub fn set(&mut self, a: usize, b: usize, count: u16) {
        if a != b {
            self.counts[a * self.tors + b] = count;
            self.counts[b * self.tors + a] = count;
        }
    }

    /// Returns the number of uplinks of a `ToR` that are in use.
    #[must_use]
    pub fn degree(&self, tor: usize) -> u32 {
        (0..self.tors).map(|other| u32::from(self.between(tor, other))).sum()
    }

    /// Returns the number of circuits that are added or removed.
    #[must_use]
    pub fn changes_to(&self, next: &Self) -> u32 {
        let pairs = self.counts.iter().zip(&next.counts);
        pairs.map(|(&from, &to)| u32::from(from.abs_diff(to))).sum::<u32>() / 2
    }

    /// Adds circuits where two `ToR`s have free uplinks, until no such pair remains. The pair with the fewest circuits
    /// is first, so that the `ToR`s remain connected where possible.
    pub(crate) fn fill(&mut self, pod: &Pod) {
        let mut free: Vec<u32> = (0..self.tors)
            .map(|tor| pod.tors()[tor].uplinks.saturating_sub(self.degree(tor)))
            .collect();
        loop {
            let pairs = (0..self.tors).flat_map(|a| (a + 1..self.tors).map(move |b| (a, b)));
            let open = pairs.filter(|&(a, b)| free[a] > 0 && free[b] > 0);
            let Some((a, b)) = open.min_by_key(|&(a, b)| self.between(a, b)) else { return };
            self.set(a, b, self.between(a, b) + 1);
            free[a] -= 1;
            free[b] -= 1;
        }
    }

    /// Returns all sets of circuits to which none can be added; `None` if finding them exceeds the limit.
    #[must_use]
    pub fn all(pod: &Pod, limit: usize) -> Option<Vec<Self>> {
        let tors = pod.tors().len();
        let pairs: Vec<_> = (0..tors).flat_map(|a| (a + 1..tors).map(move |b| (a, b))).collect();
        let mut search = CircuitSearch {
            pairs,
            free: pod.tors().iter().map(|tor| tor.uplinks.min(u32::from(u16::MAX))).collect(),
            current: Self::none(tors),
            found: Vec::new(),
            limit,
            steps: limit.saturating_mul(64),
        };
        search.extend(0).then_some(search.found)
    }
}

struct CircuitSearch {
    pairs: Vec<(usize, usize)>,
    free: Vec<u32>,
    current: Circuits,
    found: Vec<Circuits>,
    limit: usize,
    /// The steps that are left, because most partial sets may lead to no maximal one.
    steps: usize,
}

impl CircuitSearch {
    fn extend(&mut self, index: usize) -> bool {
        let Some(steps) = self.steps.checked_sub(1) else { return false };
        self.steps = steps;
        let Some(&(a, b)) = self.pairs.get(index) else {
            let maximal = self.pairs.iter().all(|&(a, b)| self.free[a] == 0 || self.free[b] == 0);
            if maximal {
                self.found.push(self.current.clone());
            }
            return self.found.len() <= self.limit;
        };
        for count in (0..=self.free[a].min(self.free[b])).rev() {
            self.current.set(a, b, count as u16);
            self.free[a] -= count;
            self.free[b] -= count;
            let within = self.extend(index + 1);
            self.free[a] += count;
            self.free[b] += count;
            if !within {
                return false;
            }
        }
        self.current.set(a, b, 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::Rate;

    use super::*;

    #[test]
    fn the_papers_pod_has_420_configurations() {
        let all = Configuration::all(&Pod::paper(), 2000).unwrap();
        assert_eq!(all.len(), 420, "8! / (4! 2! 2!)");
        assert!(Configuration::all(&Pod::paper(), 420).is_some());
        assert!(Configuration::all(&Pod::paper(), 419).is_none());
        assert_eq!(all[0], Configuration::in_order(&Pod::paper()));
    }

    #[test]
    fn equal_racks_are_exchanged_to_save_moves() {
        let pod = Pod::paper();
        let before = Configuration::in_order(&pod);
        let exchanged = Configuration::new(&pod, &[0, 0, 0, 0, 2, 2, 1, 1]).unwrap();
        assert_eq!(exchanged.aligned(&pod, &before), before);
        let other = Configuration::new(&pod, &[0, 0, 1, 1, 0, 0, 2, 2]).unwrap();
        assert_eq!(other.aligned(&pod, &before), other, "the ToR with four ports keeps its name");
        assert_eq!(before.moves_to(&other).len(), 4);
    }

    #[test]
    fn circuits_use_every_uplink_that_has_a_partner() {
        let pod = Pod::paper();
        let all = Circuits::all(&pod, 100).unwrap();
        let counts = |c: &Circuits| (c.between(0, 1), c.between(0, 2), c.between(1, 2));
        assert_eq!(all.iter().map(counts).collect::<Vec<_>>(), [(1, 1, 0), (0, 0, 1)]);
        let mut filled = Circuits::none(3);
        filled.fill(&pod);
        assert_eq!(counts(&filled), (1, 1, 0));
        let tor = Tor { ports: 4, uplinks: 40, uplink_rate: Rate::from_gbps(10), slots: 0 };
        let large = Pod::new(32, Rate::from_gbps(10), vec![tor; 8]).unwrap();
        assert_eq!(Circuits::all(&large, 100), None);
    }

    #[test]
    fn wrong_configurations_are_refused_with_a_sentence() {
        let pod = Pod::paper();
        let sentence =
            |racks: &[Vec<u32>]| Configuration::from_racks(&pod, racks).unwrap_err().to_string();
        assert_eq!(
            sentence(&[vec![0, 1, 2, 3], vec![4, 5]]),
            "server 6 must be in exactly one rack"
        );
        assert_eq!(sentence(&[vec![0, 0]]), "server 0 must be in exactly one rack");
        assert_eq!(sentence(&[vec![8]]), "server 8 must be in exactly one rack");
        let five = [vec![0, 1, 2, 3, 4], vec![5], vec![6, 7]];
        assert_eq!(sentence(&five), "ToR 0 has 4 server ports, too few for 5 servers");
        assert_eq!(sentence(&vec![Vec::new(); 4]), "ToR 3 does not exist: the pod has ToRs 0 to 2");
    }
}
