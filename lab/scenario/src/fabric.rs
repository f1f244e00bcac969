//! The keys of `[fabric]`: switches, links and hosts.

mod parameters;
mod pfc;
mod switch;
mod topology;

use rackweave_core::{Rate, Span};
use rackweave_sim::Fabric as Layout;
use rackweave_sim::config::{BufferConfig, FabricConfig, Marking};
use serde::{Deserialize, Serialize};

use self::parameters::product_of_a_host;
use self::pfc::Pfc;
use self::switch::{Switch, Trim, TrimQueues};
pub use self::topology::links;
pub(super) use self::topology::{divided, either_or, hosts, positive_rate};
use super::path::Path;
use super::pod::{Circuit, DarkName, MoveSpec, PerTor};
use super::problem::{Problem, SweptKeys};
use super::testbed::World;
use super::values::{AtLeast, FULL_PACKET, Unit};

/// The largest number of hosts in a fabric, for which ids and tables are sized.
pub(crate) const MAX_HOSTS: u64 = 1_000_000;

/// The table `[fabric]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// `"single-switch"`, `"dumbbell"`, `"leaf-spine"`, `"fat-tree"`, or a pod: `"racks"`,
    /// `"rackless"`, `"tor-circuits"`. Required.
    pub(crate) topology: TopologyName,
    /// single-switch: hosts, required. rackless: servers, by default one per port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hosts: Option<AtLeast<2>>,
    /// dumbbell: hosts at this side. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<AtLeast<1>>,
    /// dumbbell: hosts at this side. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    right: Option<AtLeast<1>>,
    /// leaf-spine: leaves, and hosts at each. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    leaves: Option<AtLeast<1>>,
    /// leaf-spine: leaves, and hosts at each. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    hosts_per_leaf: Option<AtLeast<1>>,
    /// leaf-spine: spines, with one link to each leaf. Default: by `oversubscription` and
    /// `core_link`.
    #[serde(skip_serializing_if = "Option::is_none")]
    spines: Option<AtLeast<1>>,
    /// fat-tree: ports of a switch, even, for k³/4 hosts. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    k: Option<AtLeast<2>>,
    /// Pods: server ports of each ToR, such as `[4, 2, 2]`. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tors: Option<Vec<AtLeast<1>>>,
    /// Pods: links from each ToR to the core switch, a number or a list. Default: tor-circuits: 0;
    /// otherwise required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) uplinks: Option<PerTor>,
    /// tor-circuits: ports of each ToR at the OCS, a number or a list. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) circuit_ports: Option<PerTor>,
    /// rackless: each server's ToR: `[0, 0, 1, 1]`. tor-circuits: pairs of ToRs, also repeated:
    /// `[[0, 1], [0, 2]]`. Default: rackless: in order; otherwise required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) circuits: Option<Vec<Circuit>>,
    /// Pods: time in which the OCS switches, and from then until links are up. Default: `"25 ms"`;
    /// `"0 s"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) switching_delay: Option<Unit<Span>>,
    /// Pods: time in which the OCS switches, and from then until links are up. Default: `"25 ms"`;
    /// `"0 s"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) link_delay: Option<Unit<Span>>,
    /// Pods: ports that are dark for both delays: `"moved"`, those of changed circuits, or `"all"`.
    /// Default: `"moved"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dark: Option<DarkName>,
    /// Rate of hosts' links. Default: `"10 Gbps"`.
    #[serde(default = "default_host_link")]
    host_link: Unit<Rate>,
    /// Rate between switches; pods: of an uplink or circuit; fat-tree: above the aggregation
    /// switches, and below. Default: `host_link`, leaf-spine: by `oversubscription` 1; `core_link`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) core_link: Option<Unit<Rate>>,
    /// Rate between switches; pods: of an uplink or circuit; fat-tree: above the aggregation
    /// switches, and below. Default: `host_link`, leaf-spine: by `oversubscription` 1; `core_link`.
    #[serde(skip_serializing_if = "Option::is_none")]
    aggregation_link: Option<Unit<Rate>>,
    /// Instead of `core_link` (leaf-spine: or `spines`): rate of a leaf's hosts over its uplinks',
    /// in pods at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) oversubscription: Option<f64>,
    /// Propagation delay of hosts' links, and between switches. Default: `"50 ns"`.
    #[serde(default = "default_link_delay")]
    host_link_delay: Unit<Span>,
    /// Those of hosts' links; host *i* uses entry *i* modulo their number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    host_link_delays: Vec<Unit<Span>>,
    /// Propagation delay of hosts' links, and between switches. Default: `"50 ns"`.
    #[serde(default = "default_link_delay")]
    core_link_delay: Unit<Span>,
    /// From the transport's decision to the first bit on the link; from the last bit to the
    /// transport. Default: `"500 ns"`.
    #[serde(default = "default_host_delay")]
    host_send_delay: Unit<Span>,
    /// From the transport's decision to the first bit on the link; from the last bit to the
    /// transport. Default: `"500 ns"`.
    #[serde(default = "default_host_delay")]
    host_receive_delay: Unit<Span>,
    /// Time per packet of a host's receive processor; 1024 wait, more are dropped. Not in ideal
    /// times or with `[host]`; simulator only.
    #[serde(skip_serializing_if = "Option::is_none")]
    host_receive_cost: Option<Unit<Span>>,
    /// Table: the switches, all alike.
    #[serde(default)]
    switch: Switch,
    /// Pods, list of tables: changes of circuits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) moves: Vec<MoveSpec>,
}

/// Makes the values of `topology` from one list: each has its name in scenarios and what `rackweave list` says.
macro_rules! topologies {
    ($($Name:ident: $name:literal, $description:literal;)+) => {
        /// The values of `topology`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
        pub enum TopologyName {
            $(
                #[doc = concat!("`", $name, "`: ", $description, ".")]
                #[serde(rename = $name)]
                $Name,
            )+
        }

        impl TopologyName {
            /// All topologies.
            pub const ALL: &'static [Self] = &[$(Self::$Name),+];

            /// The name in scenarios.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Name => $name,)+
                }
            }

            /// What `rackweave list` says about it.
            #[must_use]
            pub const fn description(self) -> &'static str {
                match self {
                    $(Self::$Name => $description,)+
                }
            }
        }
    };
}

topologies! {
    SingleSwitch: "single-switch", "all hosts on one switch";
    Dumbbell: "dumbbell", "two switches joined by one link";
    LeafSpine: "leaf-spine", "every leaf joined to every spine by one link";
    FatTree: "fat-tree", "three stages of k-port switches, k^3/4 hosts";
    Racks: "racks", "ToRs of any sizes below one core switch";
    Rackless: "rackless", "an optical circuit switch between servers and ToRs, reconfigured while it runs";
    TorCircuits: "tor-circuits", "an optical circuit switch above the ToRs of fixed racks, reconfigured while it runs";
}

const fn default_host_link() -> Unit<Rate> {
    Unit(Rate::from_gbps(10))
}
const fn default_link_delay() -> Unit<Span> {
    Unit(FabricConfig::LINK_DELAY)
}
const fn default_host_delay() -> Unit<Span> {
    Unit(FabricConfig::HOST_DELAY)
}

impl Fabric {
    /// Checks the keys against each other and derives the configuration. Queues without a key are as the transport wants them.
    pub fn resolve(&self, swept: &SweptKeys, wanted: &Queues) -> Result<FabricConfig, Problem> {
        if !swept.contains("fabric.topology") {
            self.refuse_foreign_keys()?;
        }
        let mut config = FabricConfig::new(self.topology()?)
            .with_link_delays(self.host_link_delay.0, self.core_link_delay.0)
            .with_host_delays(self.host_send_delay.0, self.host_receive_delay.0)
            .with_switch(self.switch.resolve(wanted.marking, wanted.pfc)?);
        config.host_link_delays = self.host_link_delays.iter().map(|delay| delay.0).collect();
        if self.switch.pfabric && self.switch.buffer.is_none() {
            // Two products (SIGCOMM 2013, section 5.1), and no less than on the paper's fabric.
            let layout =
                Layout::new(&config).map_err(|error| Problem::new("fabric", error.to_string()))?;
            let products = 2 * u64::from(Path::longest(&layout).base_rtt_bytes());
            if let BufferConfig::PerPort { bytes } = &mut config.switch.buffer {
                *bytes = products.max(*bytes);
            }
        }
        if config.switch.pfc.is_some() && wanted.pfc && !self.switch.has_buffer() {
            // Marks must come before pauses, also on fast links: 32 MB and an eighth of what is free (HPCC's simulator, `mix/config.txt`
            // and `third.cc`).
            config.switch.buffer = BufferConfig::Shared { bytes: 32_000_000, alpha: 0.125 };
        } else if config.switch.pfc.is_some() && !self.switch.has_buffer() {
            // The usual buffer, besides the headroom.
            let usual = std::mem::replace(
                &mut config.switch.buffer,
                BufferConfig::PerPort { bytes: u64::MAX },
            );
            let layout =
                Layout::new(&config).map_err(|error| Problem::new("fabric", error.to_string()))?;
            config.switch.buffer = match usual {
                BufferConfig::PerPort { bytes } => {
                    BufferConfig::PerPort { bytes: bytes.saturating_add(layout.most_headroom()) }
                }
                BufferConfig::Shared { .. } => usual,
            };
        }
        if let (Trim::On(TrimQueues { data_queue: None, .. }), true) =
            (self.switch.trim, wanted.trim_at_product)
        {
            let product = product_of_a_host(&config)?;
            if let Some(trim) = &mut config.switch.trim {
                trim.data_queue_bytes = trim.data_queue_bytes.max(product);
            }
        }
        Ok(config)
    }

    /// Derives the configuration of a fabric of real hosts.
    pub fn resolve_for_hosts(&self) -> Result<FabricConfig, Problem> {
        if self.switch.pfc.as_ref().is_some_and(Pfc::is_on) {
            let message =
                "the user-space switch cannot pause hosts: `pfc` is for simulated fabrics";
            return Err(Problem::new("fabric.switch.pfc", message));
        }
        let marking = self.marking_of(World::Testbed, Marking::DCTCP);
        self.resolve(&SweptKeys::new(), &Queues { marking, ..Queues::USUAL })
    }

    /// A transport's default threshold of marks in a world. Real hosts send bursts by segmentation offload, for which the DCTCP paper
    /// takes 20 packets at 1 Gbps and 65 at 10 Gbps (section 4).
    #[must_use]
    pub fn marking_of(&self, world: World, marking: Marking) -> Marking {
        match (world, marking) {
            (World::Testbed, Marking::Products { of, thousandths, least }) => {
                let bursts = if self.host_link.0 < Rate::from_gbps(10) { 20 } else { 65 };
                let least = least.max(bursts * FULL_PACKET);
                Marking::Products { of, thousandths, least }
            }
            _ => marking,
        }
    }

    /// Time that a host's processor takes for each packet that it receives.
    pub fn receive_cost(&self) -> Span {
        self.host_receive_cost.map_or(Span::ZERO, |cost| cost.0)
    }
}

/// What a transport wants of the switches' queues where the scenario does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues {
    /// Which packets they mark.
    pub marking: Marking,
    /// Whether queues that trim hold a bandwidth-delay product of a host, if that is more than eight packets.
    pub trim_at_product: bool,
    /// Whether switches pause instead of dropping (PFC).
    pub pfc: bool,
}

impl Queues {
    /// What most transports want, in the simulator.
    pub const USUAL: Self = Self { marking: Marking::DCTCP, trim_at_product: false, pfc: false };
}
