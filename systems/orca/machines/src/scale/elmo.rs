//! Elmo (SIGCOMM '19) on the same sessions: a packet's header has the ports of all switches, as bitmaps that similar switches share
//! (p-rules). Switches that find no room in the header have an entry in their group tables (s-rules), and without room there either
//! the header's default bitmap.
//!
//! The rules are those of the authors' simulator (`docs/sources.md`): a switch of its own bitmap each while there is room; else greedily the
//! sets of at most [`ElmoConfig::sharing`] switches with the smallest union whose redundant ports are within
//! [`ElmoConfig::redundancy`]. The header's fields are those of their P4 program.

/// Elmo's parameters. The authors sweep 10 to 30 rules for leaves, 1 to 3 for spines, 0 to 48 redundant ports, 10,000 or 64,000
/// entries, with 3 switches in a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElmoConfig {
    /// The most rules of a header for leaf switches.
    pub leaf_rules: usize,
    /// The most rules of a header for the spines of pods.
    pub spine_rules: usize,
    /// The most switches that share a rule.
    pub sharing: usize,
    /// The most redundant ports of a shared rule, all its switches together.
    pub redundancy: u32,
    /// The entries of a switch's group table.
    pub entries: u32,
}

impl Default for ElmoConfig {
    /// 30 rules for leaves and 2 for spines, which gives headers of at most about the paper's 325 bytes; 12 redundant ports, 10,000 entries.
    fn default() -> Self {
        Self { leaf_rules: 30, spine_rules: 2, sharing: 3, redundancy: 12, entries: 10_000 }
    }
}

/// Elmo's switches: how many entries of their group tables are taken.
#[derive(Clone, Debug)]
pub(super) struct Elmo {
    config: ElmoConfig,
    racks_per_pod: u32,
    hosts_per_rack: u32,
    pods: u32,
    leaves: Vec<u32>,
    spines: Vec<u32>,
}

/// What switches know of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Encoding {
    /// The header's bits as the sender's host sends it.
    pub(super) header_bits: u32,
    /// What remains of it below the cores, and below the spines.
    pub(super) below_core_bits: u32,
    pub(super) below_spine_bits: u32,
    /// The copies to racks without members, and from leaves to hosts that are none.
    pub(super) redundant_racks: u32,
    pub(super) redundant_hosts: u32,
}

/// The rules of one layer.
#[derive(Debug, Default)]
struct Layer {
    /// The number of switches in each rule of the header.
    rules: Vec<usize>,
    /// The ports of the switches in rules and of those with the default bitmap, without receivers behind them: by switch.
    redundant: Vec<(u32, u64)>,
    /// The default bitmap; 0 if no switch needs it.
    default: u64,
}

impl Elmo {
    pub(super) fn new(
        config: ElmoConfig,
        pods: u32,
        racks_per_pod: u32,
        hosts_per_rack: u32,
    ) -> Self {
        let (leaves, spines) = (pods * racks_per_pod, pods);
        Self {
            config,
            racks_per_pod,
            hosts_per_rack,
            pods,
            leaves: vec![0; leaves as usize],
            spines: vec![0; spines as usize],
        }
    }

    /// Returns the entries of all leaves, and of the fullest one.
    pub(super) fn entries(&self) -> (u64, u32) {
        let all = self.leaves.iter().map(|taken| u64::from(*taken)).sum();
        (all, self.leaves.iter().copied().max().unwrap_or(0))
    }

    /// Adds a session with members at these ports of racks.
    pub(super) fn add(&mut self, racks: &[(u16, u64)]) -> Encoding {
        let leaves: Vec<(u32, u64)> =
            racks.iter().map(|(rack, ports)| (u32::from(*rack), *ports)).collect();
        let mut pods = vec![0_u64; self.pods as usize];
        for (rack, _) in &leaves {
            pods[(rack / self.racks_per_pod) as usize] |= 1 << (rack % self.racks_per_pod);
        }
        let spines: Vec<(u32, u64)> =
            (0..).zip(pods).filter(|(_, leaves): &(u32, u64)| *leaves != 0).collect();
        let config = self.config;
        let below = encode(&config, config.leaf_rules, &leaves, &mut self.leaves);
        let above = encode(&config, config.spine_rules, &spines, &mut self.spines);
        let redundant_racks: u32 = above.redundant.iter().map(|(_, bits)| bits.count_ones()).sum();
        let redundant_hosts: u32 = below.redundant.iter().map(|(_, bits)| bits.count_ones()).sum();
        let leaf_bits = layer_bits(&below, self.hosts_per_rack, self.pods * self.racks_per_pod);
        let spine_bits = layer_bits(&above, self.racks_per_pod, self.pods);
        // Upstream at the leaf: the hosts of the sender's rack, an uplink for each aggregate, whether it is any of these, and whether more follows;
        // at the spine likewise. At the core: the pods.
        let up = (self.hosts_per_rack + self.racks_per_pod + 2) + (2 * self.racks_per_pod + 2);
        Encoding {
            header_bits: 1 + up + self.pods + spine_bits + leaf_bits,
            below_core_bits: 1 + spine_bits + leaf_bits,
            below_spine_bits: 1 + leaf_bits,
            redundant_racks,
            // A leaf that a redundant copy reaches has no rule of its own: it sends by the default bitmap.
            redundant_hosts: redundant_hosts + redundant_racks * below.default.count_ones(),
        }
    }
}

/// Returns the bits of a layer's rules: a bitmap, the numbers of its switches, a bit after each and after the rule; then the default bitmap.
fn layer_bits(layer: &Layer, ports: u32, switches: u32) -> u32 {
    let number = u32::BITS - switches.saturating_sub(1).leading_zeros() + 1;
    let rules = layer.rules.iter().map(|shared| ports + number * *shared as u32 + 1).sum::<u32>();
    rules + 1 + if layer.default == 0 { 0 } else { ports }
}

/// Divides switches among rules of the header, their tables and the default bitmap.
fn encode(config: &ElmoConfig, most: usize, switches: &[(u32, u64)], taken: &mut [u32]) -> Layer {
    let mut layer = Layer::default();
    if switches.len() <= most {
        layer.rules = vec![1; switches.len()];
        return layer;
    }
    let mut left = switches.to_vec();
    while layer.rules.len() < most && !left.is_empty() {
        let (union, chosen) = smallest_union(config, &left);
        for index in &chosen {
            let (switch, ports) = left[*index];
            layer.redundant.push((switch, union & !ports));
        }
        layer.rules.push(chosen.len());
        let mut index = 0;
        left.retain(|_| {
            index += 1;
            !chosen.contains(&(index - 1))
        });
    }
    left.retain(|(switch, _)| {
        let entries = &mut taken[*switch as usize];
        let has_room = *entries < config.entries;
        *entries += u32::from(has_room);
        !has_room
    });
    layer.default = left.iter().fold(0, |all, (_, ports)| all | ports);
    for (switch, ports) in left {
        layer.redundant.push((switch, layer.default & !ports));
    }
    layer
}

/// Returns as many switches as may share a rule, one after the other with the smallest union, and fewer if that has too many redundant ports.
fn smallest_union(config: &ElmoConfig, left: &[(u32, u64)]) -> (u64, Vec<usize>) {
    let (mut union, mut chosen) = (0_u64, Vec::<usize>::new());
    while chosen.len() < config.sharing.max(1).min(left.len()) {
        let free = (0..left.len()).filter(|index| !chosen.contains(index));
        let Some(next) = free.min_by_key(|index| (union | left[*index].1).count_ones()) else {
            break;
        };
        let wider = union | left[next].1;
        let redundant: u32 =
            chosen.iter().chain([&next]).map(|index| (wider & !left[*index].1).count_ones()).sum();
        if !chosen.is_empty() && redundant > config.redundancy {
            break;
        }
        union = wider;
        chosen.push(next);
    }
    (union, chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: ElmoConfig =
        ElmoConfig { leaf_rules: 2, spine_rules: 2, sharing: 2, redundancy: 1, entries: 1 };

    #[test]
    fn racks_with_a_rule_of_their_own_get_no_redundant_copies() {
        let mut elmo = Elmo::new(CONFIG, 2, 4, 4);
        let encoding = elmo.add(&[(0, 0b11), (5, 0b1)]);
        assert_eq!((encoding.redundant_racks, encoding.redundant_hosts), (0, 0));
        assert_eq!(elmo.entries(), (0, 0));
        // 1; up (4 + 4 + 2) + (8 + 2); pods 2; spines: 2 (4 + 1 + 1 + 1) + 1; leaves: 2 (4 + 3 + 1 + 1) + 1.
        assert_eq!(encoding.header_bits, 1 + 20 + 2 + 15 + 19);
        assert_eq!((encoding.below_core_bits, encoding.below_spine_bits), (1 + 15 + 19, 1 + 19));
    }

    #[test]
    fn similar_racks_share_a_rule_then_come_entries_then_the_default() {
        let mut elmo = Elmo::new(CONFIG, 1, 8, 4);
        // Racks 0 and 1 differ in one port; 2 and 3 share none. One rule has 0 and 1, one 2; 3 gets the entry of its switch.
        let session = [(0, 0b0001), (1, 0b0011), (2, 0b0100), (3, 0b1000)];
        let first = elmo.add(&session);
        assert_eq!((first.redundant_hosts, elmo.entries()), (1, (1, 1)));
        // Now the table is full: 3 has the default bitmap, which is its own.
        let second = elmo.add(&session);
        assert_eq!((second.redundant_hosts, elmo.entries()), (1, (1, 1)));
        assert_eq!(second.header_bits, first.header_bits + 4, "a default bitmap");
    }

    #[test]
    fn the_papers_fabric_has_headers_of_at_most_325_bytes_or_so() {
        let mut elmo =
            Elmo::new(ElmoConfig { redundancy: 1000, ..ElmoConfig::default() }, 12, 48, 48);
        let all: Vec<(u16, u64)> = (0..576).map(|rack| (rack, 1 << (rack % 48))).collect();
        let most = elmo.add(&all).header_bits.div_ceil(8);
        assert!((300..=360).contains(&most), "{most} bytes");
    }
}
