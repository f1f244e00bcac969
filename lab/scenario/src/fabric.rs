//! The keys of `[fabric]`: switches, links and hosts.

use std::num::NonZeroU8;

use rackweave_core::{Bytes, Rate, Span};
use rackweave_sim::Fabric as Layout;
use rackweave_sim::config::{
    BufferConfig, FabricConfig, Marking, Routing, SwitchConfig, Topology, TrimConfig,
};
use serde::{Deserialize, Serialize};

use super::derived::{Amount, Far, Grid, Parameter};
use super::path::Path;
use super::pod::{Circuit, DarkName, MoveSpec, PerTor};
use super::problem::{Problem, SweptKeys};
use super::testbed::World;
use super::values::{AtLeast, Count, FULL_PACKET, Limit, Unit};

/// The largest number of hosts in a fabric, for which ids and tables are sized.
pub(crate) const MAX_HOSTS: u64 = 1_000_000;
/// The largest number of ports of a switch (the range of [`rackweave_core::Port`]).
const MAX_PORTS: u64 = 65_536;

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

/// The values of `topology`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TopologyName {
    /// All hosts on one switch.
    SingleSwitch,
    /// Two switches and a link between them.
    Dumbbell,
    /// Leaves, each with a link to every spine.
    LeafSpine,
    /// Three stages of switches with `k` ports.
    FatTree,
    /// ToRs below a core switch.
    Racks,
    /// An optical circuit switch between servers and ToRs.
    Rackless,
    /// An optical circuit switch above the ToRs of fixed racks.
    TorCircuits,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct Switch {
    /// From a packet's last bit to its output queue. Default: `"250 ns"`.
    latency: Unit<Span>,
    /// Limit: bytes per port. Default: `"500 KB"`; with `pfabric`: 24 packets, or two
    /// bandwidth-delay products.
    #[serde(skip_serializing_if = "Option::is_none")]
    buffer: Option<Limit>,
    /// Instead of `buffer`: bytes for all ports together.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_buffer: Option<Unit<Bytes>>,
    /// Multiple of its free part that a port may hold. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_alpha: Option<f64>,
    /// Limit: longer queues mark ECN-capable packets. Default: 1.25 bandwidth-delay products of the
    /// link, at least 5 packets; uet: 0.5, 4; testbed: 20 to 65.
    #[serde(skip_serializing_if = "Option::is_none")]
    ecn_threshold: Option<Limit>,
    /// `true` or a table: full queues trim packets to headers. Default: false.
    // A resolved scenario omits `trim = false`, because a sweep over a key of the table could not replace it.
    #[serde(skip_serializing_if = "Trim::is_off")]
    trim: Trim,
    /// false: one queue per port, without priorities. Default: true.
    #[serde(skip_serializing_if = "is_true")]
    priorities: bool,
    /// The message with the fewest remaining bytes goes first, and a full queue drops from that
    /// with the most. Only with `priorities`, without `trim` and `shared_buffer`. Default: false.
    #[serde(skip_serializing_if = "is_false")]
    pfabric: bool,
    /// Above `ecn_threshold` packets that are not ECN-capable are dropped (Aeolus). Default: false.
    #[serde(skip_serializing_if = "is_false")]
    selective_drop: bool,
    /// `"transport"`: as the transport requests. `"ecmp"`: by flow. `"spray"`: each packet at
    /// random. Default: `"transport"`.
    routing: RoutingName,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_true(value: &bool) -> bool {
    *value
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_false(value: &bool) -> bool {
    !*value
}

impl Default for Switch {
    fn default() -> Self {
        let switch = SwitchConfig::default();
        Self {
            latency: Unit(switch.latency),
            buffer: None,
            shared_buffer: None,
            shared_alpha: None,
            ecn_threshold: None,
            trim: Trim::Off,
            priorities: switch.priorities,
            pfabric: false,
            selective_drop: switch.options.selective_drop,
            routing: RoutingName::Transport,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum RoutingName {
    Transport,
    Ecmp,
    Spray,
}

/// The value of `trim`: `false`, `true` or a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trim {
    Off,
    On(TrimQueues),
}

impl Trim {
    fn is_off(&self) -> bool {
        *self == Self::Off
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct TrimQueues {
    /// Limits: data that a port holds before it trims, and headers. Default: `"8 packets"`; `"16
    /// packets"`.
    data_queue: Option<Limit>,
    /// Limits: data that a port holds before it trims, and headers. Default: `"8 packets"`, uet: or
    /// a bandwidth-delay product of a host; `"16 packets"`.
    header_queue: Limit,
    /// Headers without room return to senders. Default: true.
    return_to_sender: bool,
    /// Headers and packets of the highest priority per packet of data, at most 255. `"unlimited"`:
    /// strict priority; data can wait for seconds. Default: 10.
    headers_per_packet: Count,
}

impl Default for TrimQueues {
    /// NDP's queues. Without the return of headers, 32 or 64 windows that meet lose some, and one lost last packet costs
    /// a timeout of 5 ms (measured: 1.9 times the ideal time of 64 x 100 KB, with it 1.03).
    fn default() -> Self {
        let ndp = TrimConfig::NDP;
        Self {
            data_queue: None,
            header_queue: Limit(Some(ndp.header_queue_bytes)),
            return_to_sender: ndp.return_to_sender,
            headers_per_packet: Count(
                ndp.headers_per_packet.map(|headers| u64::from(headers.get())),
            ),
        }
    }
}

/// The weight of headers, which the queues count in 8 bits.
fn headers_per_packet(count: Count) -> Result<Option<NonZeroU8>, Problem> {
    let Some(headers) = count.0 else { return Ok(None) };
    match u8::try_from(headers).ok().and_then(NonZeroU8::new) {
        Some(headers) => Ok(Some(headers)),
        None => Err(Problem::new(
            "fabric.switch.trim".to_owned(),
            format!("`headers_per_packet` is at most 255, or \"unlimited\", not {headers}"),
        )),
    }
}

impl<'de> Deserialize<'de> for Trim {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Trim;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("`true`, `false` or a table with `data_queue` and `header_queue`")
            }
            fn visit_bool<E>(self, on: bool) -> Result<Trim, E> {
                Ok(if on { Trim::On(TrimQueues::default()) } else { Trim::Off })
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<Trim, A::Error> {
                TrimQueues::deserialize(serde::de::value::MapAccessDeserializer::new(map))
                    .map(Trim::On)
            }
        }
        from.deserialize_any(Visitor)
    }
}

impl Serialize for Trim {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => to.serialize_bool(false),
            Self::On(queues) => queues.serialize(to),
        }
    }
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
            .with_switch(self.switch.resolve(wanted.marking)?);
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
        let marking = self.marking_of(World::Testbed, Marking::DCTCP);
        self.resolve(&SweptKeys::new(), &Queues { marking, trim_at_product: false })
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

    /// The parameters of switches that follow from the fabric, whose layout with these keys is `layout`. Those of marks have a use if
    /// a transport reacts to marks.
    #[must_use]
    pub fn parameters(&self, layout: &Layout, wanted: &Queues, marks: bool) -> Vec<Parameter> {
        let mut all = Vec::new();
        let config = layout.config();
        if marks {
            let mut by_default = config.clone();
            by_default.switch.marking = wanted.marking;
            // The same layout, with another threshold: it cannot fail.
            if let Ok(by_default) = Layout::new(&by_default) {
                all.push(self.threshold(layout, &by_default));
            }
        }
        if let Some(trim) = config.switch.trim {
            let mut least = TrimConfig::NDP.data_queue_bytes;
            if wanted.trim_at_product {
                least = least.max(product_of_a_host(config).unwrap_or(least));
            }
            all.push(Parameter::new(
                "fabric.switch.trim.data_queue".to_owned(),
                (Amount::Bytes(trim.data_queue_bytes), Amount::Bytes(least)),
                SET,
                "8 packets (NDP), uet: or a bandwidth-delay product of a host (uet-htsim)",
                TRIMS,
                Grid::Factors(&[0.5, 2.0, 4.0]),
            ));
        }
        if let (true, BufferConfig::PerPort { bytes }) = (self.switch.pfabric, config.switch.buffer)
        {
            let products = 2 * u64::from(Path::longest(layout).base_rtt_bytes());
            let least = match SwitchConfig::default().with_pfabric().buffer {
                BufferConfig::PerPort { bytes } => bytes,
                BufferConfig::Shared { .. } => 0,
            };
            all.push(Parameter::new(
                "fabric.switch.buffer".to_owned(),
                (Amount::Bytes(bytes), Amount::Bytes(products.max(least))),
                SET,
                "24 packets, or two bandwidth-delay products (SIGCOMM 2013, section 5.1)",
                Far::WINDOW,
                Grid::Factors(&[0.5, 1.5, 2.0, 4.0]),
            ));
        }
        all
    }

    /// The threshold of marks at each rate of links, compared with the default.
    fn threshold(&self, layout: &Layout, by_default: &Layout) -> Parameter {
        let host = layout.host_rate();
        let at = |layout: &Layout, rate: Rate| {
            Amount::Bytes(layout.ecn_threshold(rate).unwrap_or(u64::MAX))
        };
        let values = (at(layout, host), at(by_default, host));
        let mut parameter = Parameter::new(
            "fabric.switch.ecn_threshold".to_owned(),
            values,
            SET,
            WHY_MARKS,
            MARKS,
            Grid::Factors(&[0.5, 1.5, 2.0, 4.0]),
        );
        let mut rates: Vec<Rate> = layout.links().iter().map(|link| link.rate).collect();
        rates.sort_unstable();
        rates.dedup();
        let all = |layout: &Layout| {
            let each = rates.iter().map(|rate| (at(layout, *rate), rate));
            let each: Vec<(String, &Rate)> = each.map(|(k, rate)| (k.to_string(), rate)).collect();
            match &each[..] {
                [(first, _), rest @ ..] if rest.iter().any(|(k, _)| k != first) => {
                    let each: Vec<String> =
                        each.iter().map(|(k, rate)| format!("{k} at {rate}")).collect();
                    each.join(", ")
                }
                [(first, _), ..] => first.clone(),
                [] => String::new(),
            }
        };
        (parameter.value, parameter.default) = (all(layout), all(by_default));
        let switch = &layout.config().switch;
        let (queue, what) = match (switch.trim, switch.buffer) {
            (Some(trim), _) => (trim.data_queue_bytes, "trimmed"),
            (None, BufferConfig::PerPort { bytes }) => (bytes, "dropped"),
            (None, BufferConfig::Shared { bytes, .. }) => (bytes, "dropped"),
        };
        match rates.iter().filter_map(|rate| layout.ecn_threshold(*rate)).min() {
            // A transport that needs no marks may run without, and the scenario says so.
            None => parameter.warning = None,
            Some(least) if least >= queue => {
                parameter.warning = Some(format!(
                    "{} = {} is not below the queue of {}: packets are {what} before any is marked",
                    parameter.key,
                    Amount::Bytes(least),
                    Bytes(queue)
                ));
            }
            Some(_) => {}
        }
        parameter
    }

    /// Time that a host's processor takes for each packet that it receives.
    pub fn receive_cost(&self) -> Span {
        self.host_receive_cost.map_or(Span::ZERO, |cost| cost.0)
    }

    fn refuse_foreign_keys(&self) -> Result<(), Problem> {
        use TopologyName::{
            Dumbbell, FatTree, LeafSpine, Rackless, Racks, SingleSwitch, TorCircuits,
        };
        let (pods, with_ocs) = (&[Racks, Rackless, TorCircuits], &[Rackless, TorCircuits]);
        let with_core_link = &[Dumbbell, LeafSpine, FatTree, Racks, Rackless, TorCircuits];
        let given: [(&str, bool, &[TopologyName]); 18] = [
            ("hosts", self.hosts.is_some(), &[SingleSwitch, Rackless]),
            ("left", self.left.is_some(), &[Dumbbell]),
            ("right", self.right.is_some(), &[Dumbbell]),
            ("leaves", self.leaves.is_some(), &[LeafSpine]),
            ("hosts_per_leaf", self.hosts_per_leaf.is_some(), &[LeafSpine]),
            ("spines", self.spines.is_some(), &[LeafSpine]),
            ("k", self.k.is_some(), &[FatTree]),
            ("core_link", self.core_link.is_some(), with_core_link),
            ("aggregation_link", self.aggregation_link.is_some(), &[FatTree]),
            ("oversubscription", self.oversubscription.is_some(), with_core_link),
            ("tors", self.tors.is_some(), pods),
            ("uplinks", self.uplinks.is_some(), pods),
            ("circuit_ports", self.circuit_ports.is_some(), &[TorCircuits]),
            ("circuits", self.circuits.is_some(), with_ocs),
            ("switching_delay", self.switching_delay.is_some(), with_ocs),
            ("link_delay", self.link_delay.is_some(), with_ocs),
            ("dark", self.dark.is_some(), with_ocs),
            ("moves", !self.moves.is_empty(), with_ocs),
        ];
        for (key, is_given, belongs) in given {
            if is_given && !belongs.contains(&self.topology) {
                let own: Vec<&str> = given
                    .iter()
                    .filter(|(.., belongs)| belongs.contains(&self.topology))
                    .map(|(key, ..)| *key)
                    .collect();
                return Err(Problem::new(
                    format!("fabric.{key}"),
                    format!("`{key}` has no meaning in a {} fabric", self.topology.name()),
                )
                .with_help(format!(
                    "a {} fabric takes {}",
                    self.topology.name(),
                    own.join(", ")
                )));
            }
        }
        Ok(())
    }

    fn topology(&self) -> Result<Topology, Problem> {
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
            (spines, Some(rate), None) => {
                (self.count("spines", spines)?, positive_rate("fabric.core_link", rate)?)
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
            (spines, None, times) => {
                let spines = self.count("spines", spines)?;
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

    pub(super) fn missing(&self, key: &str) -> Problem {
        Problem::new("fabric", format!("a {} fabric needs `{key}`", self.topology.name()))
    }
}

impl TopologyName {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::SingleSwitch => "single-switch",
            Self::Dumbbell => "dumbbell",
            Self::LeafSpine => "leaf-spine",
            Self::FatTree => "fat-tree",
            Self::Racks => "racks",
            Self::Rackless => "rackless",
            Self::TorCircuits => "tor-circuits",
        }
    }
}

/// Why a parameter of switches differs from its default.
const SET: &str = "set by the scenario";
/// What the default threshold of marks follows from.
const WHY_MARKS: &str = "1.25 bandwidth-delay products of the link (sird: of hosts' links; uet: 0.5), at least 5 packets (uet: 4)";
/// UET's simulator tries 0.2 to 5 products for its queues.
const TRIMS: Far = Far {
    below: (5.0, "bursts are trimmed that the link could carry"),
    above: (5.0, "headers of trimmed packets wait for that queue"),
};
/// Above four times the default a standing queue of five round trips delays each message. Below a quarter the threshold nears the lower
/// bound of the DCTCP paper (section 3.4), a seventh of a product.
const MARKS: Far = Far {
    below: (4.0, "windows shrink before the link is full"),
    above: (4.0, "each message waits in that queue"),
};

impl Switch {
    fn resolve(&self, marking: Marking) -> Result<SwitchConfig, Problem> {
        let key = |name: &str| format!("fabric.switch.{name}");
        let mut switch = SwitchConfig::default();
        if self.pfabric {
            switch = switch.with_pfabric();
        }
        let buffer = match (self.buffer, self.shared_buffer) {
            (Some(_), Some(_)) => {
                return Err(Problem::new(
                    key("shared_buffer"),
                    "a switch has either `buffer` for each port or one `shared_buffer`",
                ));
            }
            (None, Some(bytes)) => {
                let alpha = self.shared_alpha.unwrap_or(1.0);
                if !(alpha.is_finite() && alpha > 0.0) {
                    return Err(Problem::new(
                        key("shared_alpha"),
                        "`shared_alpha` must be above 0",
                    ));
                }
                holds_a_packet(&key("shared_buffer"), Some(bytes.0.0))?;
                BufferConfig::Shared { bytes: bytes.0.0, alpha }
            }
            (_, None) if self.shared_alpha.is_some() => {
                return Err(Problem::new(
                    key("shared_alpha"),
                    "`shared_alpha` has no meaning without `shared_buffer`",
                ));
            }
            (buffer, None) => {
                if let Some(limit) = buffer {
                    holds_a_packet(&key("buffer"), limit.0)?;
                    BufferConfig::PerPort { bytes: limit.0.unwrap_or(u64::MAX) }
                } else {
                    switch.buffer
                }
            }
        };
        let trim = match self.trim {
            Trim::Off => None,
            Trim::On(queues) => {
                let data =
                    queues.data_queue.unwrap_or(Limit(Some(TrimConfig::NDP.data_queue_bytes)));
                holds_a_packet(&key("trim"), data.0)?;
                holds_a_packet(&key("trim"), queues.header_queue.0)?;
                let bytes = |queue: Limit| queue.0.unwrap_or(u64::MAX);
                let trim = TrimConfig::NDP
                    .with_queues(bytes(data), bytes(queues.header_queue))
                    .with_return_to_sender(queues.return_to_sender)
                    .with_headers_per_packet(headers_per_packet(queues.headers_per_packet)?);
                Some(trim)
            }
        };
        if trim.is_some() && !self.priorities {
            return Err(Problem::new(
                key("priorities"),
                "switches that trim need `priorities`: headers overtake data",
            ));
        }
        if self.pfabric {
            let unfit = if trim.is_some() {
                Some("trim")
            } else if !self.priorities {
                Some("priorities")
            } else if matches!(buffer, BufferConfig::Shared { .. }) {
                Some("shared_buffer")
            } else {
                None
            };
            if let Some(other) = unfit {
                return Err(Problem::new(
                    key(other),
                    format!(
                        "`{other}` does not go with `pfabric`, whose queues are short, for each port, and drop the packet of the lowest priority"
                    ),
                ));
            }
        }
        if self.selective_drop && self.ecn_threshold == Some(Limit(None)) {
            return Err(Problem::new(
                key("selective_drop"),
                "`selective_drop` needs an `ecn_threshold`, above which packets that are not ECN-capable are dropped",
            ));
        }
        let routing = match self.routing {
            RoutingName::Transport => Routing::Transport,
            RoutingName::Ecmp => Routing::Ecmp,
            RoutingName::Spray => Routing::Spray,
        };
        switch = switch.with_latency(self.latency.0).with_routing(routing);
        switch.buffer = buffer;
        switch.marking = self.ecn_threshold.map_or(marking, |limit| limit.0.into());
        switch.priorities = self.priorities;
        switch.trim = trim;
        switch.options.selective_drop = self.selective_drop;
        Ok(switch)
    }
}

/// What a transport wants of the switches' queues where the scenario does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues {
    /// Which packets they mark.
    pub marking: Marking,
    /// Whether queues that trim hold a bandwidth-delay product of a host, if that is more than eight packets.
    pub trim_at_product: bool,
}

impl Queues {
    /// What most transports want, in the simulator.
    pub const USUAL: Self = Self { marking: Marking::DCTCP, trim_at_product: false };
}

/// The bandwidth-delay product of a host's link and the longest path.
fn product_of_a_host(config: &FabricConfig) -> Result<u64, Problem> {
    let layout = Layout::new(config).map_err(|error| Problem::new("fabric", error.to_string()))?;
    Ok(u64::from(Path::longest(&layout).base_rtt_bytes()))
}

fn holds_a_packet(key: &str, bytes: Option<u64>) -> Result<(), Problem> {
    match bytes {
        Some(bytes) if bytes < FULL_PACKET => Err(Problem::new(
            key,
            format!("{} can't hold one full packet of {FULL_PACKET} bytes", Bytes(bytes)),
        )),
        _ => Ok(()),
    }
}

pub(super) fn either_or() -> Problem {
    Problem::new(
        "fabric.oversubscription",
        "`oversubscription` follows from the links that are given",
    )
    .with_help("leave out `oversubscription`, `core_link` or (in a leaf-spine) `spines`")
}

pub(super) fn positive_rate(key: &str, rate: Unit<Rate>) -> Result<Rate, Problem> {
    if rate.0.0 == 0 {
        return Err(Problem::new(key, "a link needs a rate above 0"));
    }
    Ok(rate.0)
}

pub(super) fn divided(bits_per_second: f64, times: f64) -> Result<Rate, Problem> {
    let rate = (bits_per_second / times).round();
    if !(times.is_finite() && times > 0.0 && (1.0..1e18).contains(&rate)) {
        let message = format!("an oversubscription of {times} makes no link");
        return Err(Problem::new("fabric.oversubscription", message).with_help(
            "4 means that a leaf's hosts could send four times what its uplinks carry",
        ));
    }
    Ok(Rate(rate as u64))
}

pub(super) fn hosts(key: &str, hosts: u64) -> Result<(), Problem> {
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
