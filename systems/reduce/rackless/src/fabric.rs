//! The four architectures that the P4-ORDC paper compares, as models of one interface.

use crate::config::{Circuits, Configuration};
use crate::pod::Pod;

/// An architecture of a pod (P4-ORDC paper, section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Fixed racks below a network of packet switches, without aggregation.
    FatTree,
    /// An optical switch between servers and `ToR`s (RDC, NSDI 2022), without aggregation.
    Ordc,
    /// Fixed racks, an optical switch that joins the uplinks of `ToR`s in pairs, and aggregation in the programmable `ToR`.
    P4IncAoi,
    /// An optical switch between servers and `ToR`s, and aggregation in the programmable `ToR`.
    P4Ordc,
}

impl Architecture {
    /// All architectures, in the paper's order.
    pub const ALL: [Self; 4] = [Self::FatTree, Self::Ordc, Self::P4IncAoi, Self::P4Ordc];

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FatTree => "fat-tree",
            Self::Ordc => "ordc",
            Self::P4IncAoi => "p4inc-aoi",
            Self::P4Ordc => "p4-ordc",
        }
    }

    /// Returns whether servers can change their `ToR`.
    #[must_use]
    pub const fn is_rackless(self) -> bool {
        matches!(self, Self::Ordc | Self::P4Ordc)
    }

    /// Returns whether circuits join the `ToR`s, in place of packet switches.
    #[must_use]
    pub const fn has_circuits(self) -> bool {
        matches!(self, Self::P4IncAoi)
    }

    /// Returns whether programmable `ToR`s aggregate.
    #[must_use]
    pub const fn aggregates(self) -> bool {
        matches!(self, Self::P4IncAoi | Self::P4Ordc)
    }
}

/// Which uploads a programmable `ToR` adds up.
///
/// The paper has one sentence on it: during the upload of a group "the OXC arranges all the servers in the group as a rack under the
/// P-ToR switch" (section 3). It is silent about uploads of servers elsewhere, and about groups with more servers than ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reach {
    /// Plans count on uploads that pass it: from workers below it, or to a master below it. Others have slots too, over uplinks.
    #[default]
    Path,
    /// All: an upload that does not pass one makes a detour by the first programmable `ToR`.
    Detour,
    /// The paper's: those whose master and workers are all below it. A group that is too large for that is added up as with
    /// [`Self::Path`], if its master or all its workers are below it, which is Rackweave's choice.
    Rack,
}

impl Reach {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Path, Self::Detour, Self::Rack];

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Detour => "detour",
            Self::Rack => "rack",
        }
    }
}

/// A pod with an architecture: what a configuration can be, and what it costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fabric {
    pod: Pod,
    architecture: Architecture,
    reach: Reach,
    initial: Configuration,
}

impl Fabric {
    /// Creates a fabric that starts with the servers in order. Uploads in P4INC-AOI pass through the programmable
    /// `ToR`, as its circuits are there for that; in P4-ORDC they are aggregated only at the `ToR`s of workers and master.
    #[must_use]
    pub fn new(pod: Pod, architecture: Architecture) -> Self {
        let initial = Configuration::in_order(&pod);
        let reach = match architecture {
            Architecture::P4IncAoi => Reach::Detour,
            _ => Reach::Path,
        };
        Self { pod, architecture, reach, initial: initial.clone() }.starting_from(initial)
    }

    /// Returns the same fabric with these racks at the start. With circuits above, it starts with as equal numbers
    /// of them between the `ToR`s as uplinks permit, unless the configuration has some.
    #[must_use]
    pub fn starting_from(mut self, initial: Configuration) -> Self {
        self.initial = match (self.architecture.has_circuits(), initial.circuits()) {
            (true, None) => {
                let mut circuits = Circuits::none(self.pod.tors().len());
                circuits.fill(&self.pod);
                initial.with_circuits(circuits)
            }
            _ => initial,
        };
        self
    }

    /// Returns the same fabric with this rule. A detour absorbs more, for more bytes on uplinks.
    #[must_use]
    pub const fn with_reach(mut self, reach: Reach) -> Self {
        self.reach = reach;
        self
    }

    /// Returns the pod.
    #[must_use]
    pub const fn pod(&self) -> &Pod {
        &self.pod
    }

    /// Returns the architecture.
    #[must_use]
    pub const fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// Returns which uploads are added up.
    #[must_use]
    pub const fn reach(&self) -> Reach {
        self.reach
    }

    /// Returns whether so many servers can be a rack below a programmable `ToR`.
    pub(crate) fn fits_below_programmable(&self, servers: usize) -> bool {
        let programmable = self.pod.tors().iter().filter(|tor| tor.is_programmable());
        programmable.map(|tor| tor.ports as usize).max().is_some_and(|most| servers <= most)
    }

    /// Returns the configuration before the first period, which is also that of a fabric that never reconfigures.
    #[must_use]
    pub const fn initial(&self) -> &Configuration {
        &self.initial
    }

    /// Returns all configurations that the architecture can have; `None` if there are more than `limit`. The first
    /// configuration is one of them.
    #[must_use]
    pub fn configurations(&self, limit: usize) -> Option<Vec<Configuration>> {
        let mut all = if self.architecture.is_rackless() {
            Configuration::all(&self.pod, limit)?
        } else if self.architecture.has_circuits() {
            let racks = Configuration::trusted(self.initial.tor_of());
            let all = Circuits::all(&self.pod, limit)?;
            all.into_iter().map(|circuits| racks.clone().with_circuits(circuits)).collect()
        } else {
            Vec::new()
        };
        if !all.contains(&self.initial) {
            all.push(self.initial.clone());
        }
        (all.len() <= limit).then_some(all)
    }
}
