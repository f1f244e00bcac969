//! Labels: their fields, the widths of the fields in a fabric, and the places of hosts.
//!
//! The fields are those of the evaluation's Fig. 4, most significant first. The figure prints "aggregate upstream" a
//! second time before "aggregate downstream"; a tree needs only one such field (`docs/protocols/orca.md#orca-labels`).
//!
//! ```text
//! pilot label:  ToR up (port) | aggregate up (port) | core down (pods) | aggregate down (racks of a pod)
//! rack label:   ToR down (hosts of the rack)
//! ```
//!
//! The sender sets the pilot label, which the active agent of a receiving rack replaces by the rack label (evaluation,
//! section IV.B). The packet's kind determines which label it carries. An "up" field is a port number that selects one
//! of several equal paths; a "down" field has a bit for each port. The paper's testbed has a bitmap of 8 bits for each
//! hop; here widths follow from the topology, as in the PEEL authors' model of Orca. The field for aggregates applies
//! to all pods, so a rack without receivers may get a copy, which its agent drops. A leaf-spine fabric is one pod
//! without core switches. Where no switch forwards by pilot labels, they still name racks.

use rackweave_core::rng::mix;
use rackweave_core::{HostId, Port};
use rackweave_switch::config::Topology;
use rackweave_switch::fabric::Fabric;
use rackweave_wire::orca::{Label, Place};

/// Why a fabric cannot have labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// A field would have more bits than the ports to which a switch can replicate a packet.
    #[error("{what} would need {ports} bits of a label; at most 64 are possible")]
    TooManyPorts {
        /// What the bits represent, such as the hosts of a rack.
        what: &'static str,
        /// The number of bits.
        ports: u32,
    },
    /// The pilot label would be longer than the label field of a packet.
    #[error("pilot labels would have {0} bits; at most 128 are possible")]
    TooLong(u32),
    /// The fabric would have more racks than 16-bit numbers.
    #[error("the fabric would have {0} racks; at most 65535 are possible")]
    TooManyRacks(u64),
    /// A dimension of the fabric is zero.
    #[error("a fabric needs at least one of: {0}")]
    Zero(&'static str),
    /// The fabric is a pod, whose racks differ in size and may change.
    #[error("labels name hosts by their racks, which must be fixed and alike: a pod has none")]
    Pod,
    /// The fabric has no switch with this number.
    #[error("there is no switch {0}")]
    NoSwitch(u32),
}

/// A bit field of a label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Field {
    /// The position of the field's lowest bit in the label.
    pub shift: u8,
    /// The width in bits; 0 where there is only one choice.
    pub width: u8,
}

/// How racks are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// The racks are not connected: there is one switch, or the fabric is unknown.
    Isolated,
    /// Two racks, connected by one link.
    Pair { left: u32 },
    /// Pods of racks below spines or aggregates, and several pods below cores.
    Tree,
}

/// The layout of labels in a fabric, and the places of its hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    shape: Shape,
    hosts: u32,
    hosts_per_rack: u32,
    racks_per_pod: u32,
    pods: u32,
    /// The number of uplinks of a ToR, then of an aggregate.
    tor_ups: u32,
    aggregate_ups: u32,
    up_leaf: Field,
    up_spine: Field,
    core_down: Field,
    agg_down: Field,
    /// A bit for each class of racks; of no width without a filter.
    filter: Field,
}

/// Returns the number of bits of a port number below `ports`.
const fn bits_of(ports: u32) -> u32 {
    if ports < 2 { 0 } else { 32 - (ports - 1).leading_zeros() }
}

/// The class of a rack among this many.
const fn class(rack: u32, classes: u8) -> u64 {
    mix(rack as u64) % classes as u64
}

impl Field {
    /// Returns the value of this field in a label.
    #[must_use]
    pub const fn get(self, label: Label) -> u64 {
        if self.width == 0 { 0 } else { (label.0 >> self.shift) as u64 & self.mask() }
    }

    const fn encode(self, value: u64) -> u128 {
        if self.width == 0 { 0 } else { ((value & self.mask()) as u128) << self.shift }
    }

    const fn mask(self) -> u64 {
        if self.width >= 64 { u64::MAX } else { (1 << self.width) - 1 }
    }
}

impl Layout {
    /// Returns the layout for a fabric.
    ///
    /// # Errors
    /// [`LabelError`] with more than 64 hosts in a rack, 64 racks in a pod (leaves of a leaf-spine fabric) or 64 pods,
    /// or if the pilot label needs more than 128 bits.
    pub fn new(fabric: &Fabric) -> Result<Self, LabelError> {
        match fabric.config().topology {
            Topology::SingleSwitch { hosts, .. } => {
                at_most_64("the hosts of a rack", hosts)?;
                Ok(Self { hosts_per_rack: hosts.max(1), ..Self::flat(hosts) })
            }
            Topology::Dumbbell { left, right, .. } => {
                at_most_64("the hosts of a rack", left.max(right))?;
                let hosts = left.saturating_add(right);
                Ok(Self {
                    shape: Shape::Pair { left },
                    racks_per_pod: 2,
                    tor_ups: 1,
                    agg_down: Field { shift: 0, width: 2 },
                    ..Self::flat(hosts)
                })
            }
            Topology::LeafSpine { leaves, hosts_per_leaf, spines, .. } => {
                Self::tree(1, leaves, hosts_per_leaf, spines, 0)
            }
            Topology::FatTree { k, .. } => Self::tree(k, k / 2, k / 2, k / 2, k / 2),
            Topology::Pod(_) => Err(LabelError::Pod),
        }
    }

    /// Returns the layout for one rack without uplinks, or for an unknown fabric, where each 64 hosts count as a rack.
    /// With more than 64 hosts its labels only serve relaying hosts; no switch can forward by them.
    #[must_use]
    pub const fn flat(hosts: u32) -> Self {
        let none = Field { shift: 0, width: 0 };
        let racks = hosts.div_ceil(64);
        let agg_down = Field { shift: 0, width: if racks < 64 { racks as u8 } else { 64 } };
        Self {
            shape: Shape::Isolated,
            hosts,
            hosts_per_rack: 64,
            racks_per_pod: racks,
            pods: 1,
            tor_ups: 0,
            aggregate_ups: 0,
            up_leaf: none,
            up_spine: none,
            core_down: none,
            agg_down,
            filter: none,
        }
    }

    /// Returns this layout with a filter of this many bits at the end of pilot labels. All pods share the racks' bits of a label, so
    /// that it leads to a rack without receivers wherever another pod has receivers in the rack of the same number. With a filter, a
    /// switch above sends a copy down only to racks whose bit is set. Which bit a rack has is Rackweave's choice: the field is
    /// known from its width only, 16 bits by default in the PEEL authors' model.
    ///
    /// # Errors
    /// [`LabelError::TooLong`] if the label has no room for it.
    pub fn with_filter(self, bits: u32) -> Result<Self, LabelError> {
        let shift = self.pilot_bits() - u32::from(self.filter.width);
        if bits > 64 || shift + bits > 128 {
            return Err(LabelError::TooLong(shift + bits));
        }
        Ok(Self { filter: Field { shift: shift as u8, width: bits as u8 }, ..self })
    }

    /// The bit of a rack in the filter.
    fn filter_of(&self, rack: u32) -> u64 {
        if self.filter.width == 0 { 0 } else { 1 << class(rack, self.filter.width) }
    }

    /// Returns those of a pod's racks that a pilot label names and its filter lets a packet down to, as a bitmap.
    #[must_use]
    pub fn leaves_below(&self, pilot: Label, pod: u32) -> u64 {
        let mut leaves = self.agg_down.get(pilot);
        if self.filter.width > 0 {
            let filter = self.filter.get(pilot);
            for leaf in 0..self.racks_per_pod.min(64) {
                if filter & self.filter_of(pod * self.racks_per_pod + leaf) == 0 {
                    leaves &= !(1 << leaf);
                }
            }
        }
        leaves
    }

    /// Returns the number of racks in a pod.
    #[must_use]
    pub const fn racks_per_pod(&self) -> u32 {
        self.racks_per_pod
    }

    /// Returns the layout for pods of racks of hosts, with `tor_ups` aggregates or spines in each pod, each of these
    /// with `aggregate_ups` uplinks to cores. A single pod needs no cores.
    ///
    /// # Errors
    /// The same as for [`Layout::new`].
    pub fn tree(
        pods: u32,
        racks_per_pod: u32,
        hosts_per_rack: u32,
        tor_ups: u32,
        aggregate_ups: u32,
    ) -> Result<Self, LabelError> {
        let all = [
            ("pods", pods),
            ("racks", racks_per_pod),
            ("hosts per rack", hosts_per_rack),
            ("spines", tor_ups),
        ];
        for (what, n) in all {
            if n == 0 {
                return Err(LabelError::Zero(what));
            }
        }
        if pods > 1 && aggregate_ups == 0 {
            return Err(LabelError::Zero("core switches"));
        }
        at_most_64("the hosts of a rack", hosts_per_rack)?;
        at_most_64("the racks of a pod", racks_per_pod)?;
        at_most_64("the pods", pods)?;
        let racks = u64::from(pods) * u64::from(racks_per_pod);
        if racks > u64::from(u16::MAX) {
            return Err(LabelError::TooManyRacks(racks));
        }
        let cores = pods > 1;
        let widths = [
            racks_per_pod,
            if cores { pods } else { 0 },
            if cores { bits_of(aggregate_ups) } else { 0 },
            bits_of(tor_ups),
        ];
        let bits = widths.iter().sum();
        if bits > 128 {
            return Err(LabelError::TooLong(bits));
        }
        let mut shift = 0;
        let [agg_down, core_down, up_spine, up_leaf] = widths.map(|width| {
            let field = Field { shift, width: width as u8 };
            shift += width as u8;
            field
        });
        Ok(Self {
            shape: Shape::Tree,
            hosts: racks as u32 * hosts_per_rack,
            hosts_per_rack,
            racks_per_pod,
            pods,
            tor_ups,
            aggregate_ups: if cores { aggregate_ups } else { 0 },
            up_leaf,
            up_spine,
            core_down,
            agg_down,
            filter: Field::default(),
        })
    }

    /// Returns the rack and port of a host.
    #[must_use]
    pub const fn place(&self, host: HostId) -> Place {
        let HostId(host) = host;
        match self.shape {
            Shape::Pair { left } if host >= left => {
                // A number beyond the fabric must not get the place of one of its hosts.
                let port = host - left;
                Place { rack: 1, port: if port < 64 { port as u8 } else { 63 } }
            }
            Shape::Pair { .. } => Place { rack: 0, port: host as u8 },
            _ => {
                let rack = host / self.hosts_per_rack;
                let rack = if rack > u16::MAX as u32 { u16::MAX } else { rack as u16 };
                Place { rack, port: (host % self.hosts_per_rack) as u8 }
            }
        }
    }

    /// Returns the host at a place, if there is one.
    #[must_use]
    pub fn host(&self, place: Place) -> Option<HostId> {
        let (rack, port) = (u32::from(place.rack), u32::from(place.port));
        let host = match self.shape {
            Shape::Pair { left } => match rack {
                0 if port < left => port,
                1 => left + port,
                _ => return None,
            },
            _ if port < self.hosts_per_rack => rack * self.hosts_per_rack + port,
            _ => return None,
        };
        (host < self.hosts).then_some(HostId(host))
    }

    /// Returns the number of hosts.
    #[must_use]
    pub const fn hosts(&self) -> u32 {
        self.hosts
    }

    /// Returns the number of racks.
    #[must_use]
    pub const fn racks(&self) -> u16 {
        let racks = self.pods * self.racks_per_pod;
        if racks > u16::MAX as u32 { u16::MAX } else { racks as u16 }
    }

    /// Returns the number of hosts in a rack.
    #[must_use]
    pub fn hosts_of(&self, rack: u16) -> u32 {
        match self.shape {
            Shape::Pair { left } if rack == 0 => left,
            Shape::Pair { left } if rack == 1 => self.hosts - left,
            _ => {
                let first = u32::from(rack).saturating_mul(self.hosts_per_rack);
                self.hosts.saturating_sub(first).min(self.hosts_per_rack)
            }
        }
    }

    /// Returns the number of uplinks of a ToR.
    #[must_use]
    pub const fn uplinks(&self) -> u16 {
        self.tor_ups as u16
    }

    /// Returns whether a packet with a pilot label can come back to its sender's own rack. If not, the sender sends its
    /// rack a separate copy.
    #[must_use]
    pub const fn reaches_own_rack(&self) -> bool {
        matches!(self.shape, Shape::Tree)
    }

    /// Returns whether pilot labels can lead to other racks.
    #[must_use]
    pub const fn reaches_other_racks(&self) -> bool {
        !matches!(self.shape, Shape::Isolated)
    }

    /// Returns the pilot label's field for the ToR's uplink, numbered from 0.
    #[must_use]
    pub const fn up_leaf(&self) -> Field {
        self.up_leaf
    }

    /// Returns the pilot label's field for the aggregate's uplink, numbered from 0.
    #[must_use]
    pub const fn up_spine(&self) -> Field {
        self.up_spine
    }

    /// Returns the pilot label's field with a bit for each pod. Without any bit the label applies to the sender's pod
    /// only.
    #[must_use]
    pub const fn core_down(&self) -> Field {
        self.core_down
    }

    /// Returns the pilot label's field with a bit for each rack of a pod.
    #[must_use]
    pub const fn agg_down(&self) -> Field {
        self.agg_down
    }

    /// Returns the pilot label from a host to these racks. `salt` selects one of the equal paths up. Racks that the
    /// fabric does not have are ignored.
    #[must_use]
    pub fn pilot(&self, from: HostId, racks: impl Iterator<Item = u16>, salt: u32) -> Label {
        let (mut pods, mut leaves, mut filter) = (0_u64, 0_u64, 0_u64);
        for rack in racks.map(u32::from).filter(|rack| *rack < self.pods * self.racks_per_pod) {
            pods |= 1 << (rack / self.racks_per_pod).min(63);
            leaves |= 1 << (rack % self.racks_per_pod).min(63);
            filter |= self.filter_of(rack);
        }
        if leaves == 0 {
            return Label(0);
        }
        let own = u64::from(self.place(from).rack) / u64::from(self.racks_per_pod.max(1));
        if own < 64 && pods == 1 << own {
            pods = 0;
        }
        let random = mix(u64::from(salt) << 32 | u64::from(from.0));
        let leaf = (random >> 32) % u64::from(self.tor_ups.max(1));
        let spine = (random & 0xffff_ffff) % u64::from(self.aggregate_ups.max(1));
        Label(
            self.up_leaf.encode(leaf)
                | self.up_spine.encode(spine)
                | self.core_down.encode(pods)
                | self.agg_down.encode(leaves)
                | self.filter.encode(filter),
        )
    }

    /// Returns the racks to which a pilot label from this host leads, racks without receivers included.
    pub fn racks_of(&self, from: HostId, pilot: Label) -> impl Iterator<Item = u16> + use<> {
        let own = u32::from(self.place(from).rack) / self.racks_per_pod.max(1);
        let (pods, leaves) = (self.core_down.get(pilot), self.agg_down.get(pilot));
        let pods = if pods == 0 && own < 64 { 1 << own } else { pods };
        let per_pod = self.racks_per_pod;
        let (filter, classes) = (self.filter.get(pilot), self.filter.width);
        let led = move |rack: &u32| {
            let (pod, leaf) = (rack / per_pod, rack % per_pod);
            let is_admitted = classes == 0 || filter >> class(*rack, classes) & 1 == 1;
            is_admitted && pods >> pod.min(63) & leaves >> leaf.min(63) & 1 == 1
        };
        (0..u32::from(self.racks())).filter(led).map(|rack| rack as u16)
    }

    /// Returns the distance of a rack from a host: 0 for its own rack, 1 within its pod, 2 for others.
    #[must_use]
    pub fn distance(&self, from: HostId, rack: u16) -> u8 {
        let own = self.place(from).rack;
        let pod = |rack: u16| u32::from(rack) / self.racks_per_pod.max(1);
        match () {
            () if own == rack => 0,
            () if pod(own) == pod(rack) => 1,
            () => 2,
        }
    }

    /// Divides a pilot label of the first of these hosts, which are the ports of one sender. The label for each port
    /// names only the racks to which no other port is nearer, and is `Label(0)` without any.
    #[must_use]
    pub fn split(&self, ports: &[HostId], pilot: Label, salt: u32) -> Vec<Label> {
        let Some(first) = ports.first() else { return Vec::new() };
        let mut racks: Vec<Vec<u16>> = vec![Vec::new(); ports.len()];
        for rack in self.racks_of(*first, pilot) {
            let near = (0..ports.len()).min_by_key(|port| self.distance(ports[*port], rack));
            racks[near.unwrap_or(0)].push(rack);
        }
        let label = |(from, racks): (&HostId, Vec<u16>)| self.pilot(*from, racks.into_iter(), salt);
        ports.iter().zip(racks).map(label).collect()
    }

    /// Returns the rack label for these ports.
    #[must_use]
    pub fn rack_label(&self, ports: u64) -> Label {
        Label(u128::from(ports))
    }

    /// Returns the ports of a rack label.
    #[must_use]
    pub const fn ports(&self, label: Label) -> u64 {
        label.0 as u64
    }

    /// Returns the port of the uplink that a pilot label names at a ToR with `hosts` hosts.
    #[must_use]
    pub(crate) fn uplink(&self, label: Label, hosts: u16) -> Port {
        let ways = u64::from(self.tor_ups.max(1));
        Port(hosts + (self.up_leaf.get(label) % ways) as u16)
    }

    /// Returns the width of the longest rack label in bits.
    #[must_use]
    pub fn rack_bits(&self) -> u32 {
        match self.shape {
            Shape::Pair { left } => left.max(self.hosts - left),
            _ => self.hosts_per_rack.min(self.hosts).max(1),
        }
    }

    /// Returns the width of a pilot label in bits.
    #[must_use]
    pub fn pilot_bits(&self) -> u32 {
        let fields = [self.up_leaf, self.up_spine, self.core_down, self.agg_down, self.filter];
        fields.iter().map(|field| u32::from(field.width)).sum()
    }

    /// Returns the size of a label in a packet, in words of 32 bits: 1 to 4.
    #[must_use]
    pub fn words(&self) -> u8 {
        self.rack_bits().max(self.pilot_bits()).div_ceil(32).clamp(1, 4) as u8
    }

    /// Returns the bits of a label in a packet without rounding to words, in the PEEL authors' model of Orca: `1 +
    /// max(rack, up + up + core + aggregates + filter)`, where one bit distinguishes the two labels and the filter has
    /// 16 bits by default (`docs/protocols/orca.md#orca-labels`). `filter_bits` is added to those of this layout's filter.
    #[must_use]
    pub fn model_bits(&self, filter_bits: u32) -> u32 {
        1 + self.rack_bits().max(self.pilot_bits() + filter_bits)
    }
}

const fn at_most_64(what: &'static str, ports: u32) -> Result<(), LabelError> {
    if ports > 64 { Err(LabelError::TooManyPorts { what, ports }) } else { Ok(()) }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use rackweave_core::Rate;
    use rackweave_switch::config::{FabricConfig, SwitchConfig};

    use super::*;

    const GBPS: Rate = Rate::from_gbps(10);

    pub(crate) fn fabric(topology: Topology) -> Fabric {
        let switch = SwitchConfig::unlimited().without_priorities();
        let config = FabricConfig::new(topology).without_delays().with_switch(switch);
        Fabric::new(&config).expect("a fabric")
    }

    pub(crate) fn single(hosts: u32) -> Topology {
        Topology::SingleSwitch { hosts, host_link: GBPS }
    }

    pub(crate) fn leaf_spine(leaves: u32, hosts_per_leaf: u32, spines: u32) -> Topology {
        Topology::LeafSpine { leaves, hosts_per_leaf, spines, host_link: GBPS, core_link: GBPS }
    }

    pub(crate) fn dumbbell(left: u32, right: u32) -> Topology {
        Topology::Dumbbell { left, right, host_link: GBPS, core_link: GBPS }
    }

    pub(crate) fn fat_tree(k: u32) -> Topology {
        Topology::fat_tree(k, GBPS)
    }

    fn of(topology: Topology) -> Layout {
        Layout::new(&fabric(topology)).expect("labels")
    }

    #[test]
    fn every_host_has_a_place_of_its_own() {
        let topologies =
            [single(64), single(5), leaf_spine(4, 16, 4), dumbbell(3, 7), fat_tree(8), fat_tree(2)];
        for topology in topologies {
            let fabric = fabric(topology.clone());
            let layout = Layout::new(&fabric).expect("labels");
            let mut per_rack = vec![0; usize::from(layout.racks())];
            for host in (0..fabric.hosts()).map(HostId) {
                let place = layout.place(host);
                assert_eq!(layout.host(place), Some(host), "{topology:?}");
                per_rack[usize::from(place.rack)] += 1;
                // The expected port is that of the fabric's own ToR.
                let leaf = fabric.links()[host.0 as usize].to;
                let rackweave_switch::fabric::Node::Switch(leaf) = leaf else { panic!("{leaf:?}") };
                assert_eq!(leaf, u32::from(place.rack));
                assert_eq!(fabric.downlink(host) - fabric.ports(leaf).start, u32::from(place.port));
            }
            for (rack, hosts) in per_rack.into_iter().enumerate() {
                assert_eq!(layout.hosts_of(rack as u16), hosts, "{topology:?}");
            }
            assert_eq!(layout.host(Place { rack: layout.racks(), port: 0 }), None);
            assert_eq!(layout.host(Place { rack: 0, port: 255 }), None);
        }
    }

    /// `get_orca_per_pkt_overhead_bytes` of the PEEL authors' simulator, for fat-trees of k-port switches.
    fn peel_bits(k: u32, filter: u32) -> u32 {
        let log = (k / 2).next_power_of_two().trailing_zeros();
        1 + (k / 2).max(log + log + k + k / 2 + filter)
    }

    #[test]
    fn sizes_are_those_of_the_model() {
        for k in [4, 8, 16, 24, 32, 48, 64] {
            let layout = Layout::tree(k, k / 2, k / 2, k / 2, k / 2).expect("labels");
            for filter in [0, 16] {
                assert_eq!(layout.model_bits(filter), peel_bits(k, filter), "k = {k}");
            }
        }
        // The 27,648 hosts of the paper's simulation.
        let large = Layout::tree(12, 48, 48, 48, 48).expect("labels");
        assert_eq!(large.hosts(), 27_648);
        assert_eq!((large.model_bits(16), large.model_bits(16).div_ceil(8)), (89, 12));
        assert_eq!((large.pilot_bits(), large.words()), (72, 3));
        assert_eq!((of(single(4)).words(), of(leaf_spine(4, 16, 4)).words()), (1, 1));
    }

    #[test]
    fn fabrics_without_labels_are_refused() {
        let refused = |topology| Layout::new(&fabric(topology)).unwrap_err().to_string();
        assert!(refused(single(65)).contains("65 bits"));
        assert!(refused(leaf_spine(65, 2, 2)).contains("the racks of a pod"));
        assert!(refused(dumbbell(2, 70)).contains("70"));
        assert!(refused(fat_tree(66)).contains("the pods"));
        assert_eq!(Layout::tree(64, 64, 2, 2, 2), Err(LabelError::TooLong(130)));
        assert_eq!(Layout::tree(2, 2, 2, 2, 0), Err(LabelError::Zero("core switches")));
    }

    proptest! {
        #[test]
        fn a_pilot_label_leads_to_its_racks(
            pods in 1..12_u32, racks in 1..20_u32, ups in 1..10_u32, from in 0..1000_u32,
            some in proptest::collection::btree_set(0..240_u16, 0..20), salt: u32
        ) {
            let layout = Layout::tree(pods, racks, 8, ups, ups).expect("labels");
            let from = HostId(from % layout.hosts());
            let there: Vec<_> = some.iter().copied().filter(|r| *r < layout.racks()).collect();
            let label = layout.pilot(from, there.iter().copied(), salt);
            let led: Vec<_> = layout.racks_of(from, label).collect();
            prop_assert!(there.iter().all(|rack| led.contains(rack)));
            // In one pod, the label leads to exactly these racks.
            if pods == 1 || there.len() == 1 {
                prop_assert_eq!(&led, &there);
            }
            prop_assert!(layout.up_leaf().get(label) < u64::from(ups));
            prop_assert_eq!(label.0 >> layout.pilot_bits(), 0);
        }
    }
}
