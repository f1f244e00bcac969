//! The longest path of a fabric, and what an unloaded round trip over it takes.

use rackweave_core::{Rate, Span, frame};
use rackweave_sim::config::{FabricConfig, Topology};

/// The links from a host to the host farthest from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    links: Vec<Rate>,
    /// Everything that does not depend on the packet: propagation, switches, hosts.
    fixed: Span,
}

impl Path {
    pub(crate) fn longest(fabric: &FabricConfig) -> Self {
        let (host, core) = match fabric.topology {
            Topology::SingleSwitch { host_link, .. } => (host_link, vec![]),
            Topology::Dumbbell { host_link, core_link, .. } => (host_link, vec![core_link]),
            Topology::LeafSpine { leaves: 1, host_link, .. } => (host_link, vec![]),
            Topology::LeafSpine { host_link, core_link, .. } => (host_link, vec![core_link; 2]),
            Topology::FatTree { host_link, .. } => (host_link, vec![host_link; 4]),
        };
        let switches = core.len() as u64 + 1;
        let fixed = fabric.host_link_delay * 2
            + fabric.core_link_delay * core.len() as u64
            + fabric.switch.latency * switches
            + fabric.host_send_delay
            + fabric.host_receive_delay;
        let mut links = vec![host];
        links.extend(core);
        links.push(host);
        Self { links, fixed }
    }

    /// One way for one packet, stored and forwarded by each switch.
    pub(crate) fn one_way(&self, wire_bytes: u64) -> Span {
        self.links.iter().map(|link| link.span_of(wire_bytes)).sum::<Span>() + self.fixed
    }

    /// From a full packet's first bit until the answer to it, of the least size, is there.
    pub(crate) fn base_rtt(&self) -> Span {
        let full = u64::from(frame::wire_bytes(frame::MTU));
        let least = u64::from(frame::wire_bytes(0));
        self.one_way(full) + self.one_way(least)
    }

    /// What the host's link carries in that time: the bandwidth-delay product.
    pub(crate) fn base_rtt_bytes(&self) -> u32 {
        u32::try_from(self.links[0].bytes_in(self.base_rtt())).unwrap_or(u32::MAX)
    }

    /// Links on the way.
    pub(crate) fn hops(&self) -> u64 {
        self.links.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackweave_core::Framing;
    use rackweave_sim::Fabric;
    use rackweave_sim::config::{BufferConfig, Routing, SwitchConfig};

    fn fabric(topology: Topology) -> FabricConfig {
        FabricConfig {
            topology,
            host_link_delay: Span::ZERO,
            core_link_delay: Span::ZERO,
            host_send_delay: Span::from_us(1),
            host_receive_delay: Span::from_ns(500),
            switch: SwitchConfig {
                latency: Span::from_ns(250),
                buffer: BufferConfig::PerPort { bytes: u64::MAX },
                ecn_threshold_bytes: None,
                trim: None,
                routing: Routing::Transport,
            },
        }
    }

    fn leaf_spine(leaves: u32, hosts_per_leaf: u32, spines: u32) -> Topology {
        let (host_link, core_link) = (Rate::from_gbps(10), Rate::from_gbps(40));
        Topology::LeafSpine { leaves, hosts_per_leaf, spines, host_link, core_link }
    }

    #[test]
    fn the_fabric_of_the_homa_paper_has_its_round_trip() {
        // SIGCOMM'18, section 5.2: 7.8 us, so that RTTbytes is about 9.7 KB.
        let path = Path::longest(&fabric(leaf_spine(9, 16, 4)));
        assert!((7.6..7.9).contains(&path.base_rtt().as_us_f64()), "{}", path.base_rtt());
        assert!((9_500..9_800).contains(&path.base_rtt_bytes()));
        assert_eq!(path.hops(), 4);
    }

    #[test]
    fn the_simulator_takes_the_same_time() {
        let host_link = Rate::from_gbps(10);
        let core_link = Rate::from_gbps(40);
        let topologies = [
            Topology::SingleSwitch { hosts: 5, host_link },
            Topology::Dumbbell { left: 2, right: 3, host_link, core_link },
            leaf_spine(1, 3, 2),
            leaf_spine(4, 3, 2),
            Topology::FatTree { k: 2, host_link },
            Topology::FatTree { k: 4, host_link },
        ];
        for topology in topologies {
            let mut config = fabric(topology);
            config.host_link_delay = Span::from_ns(30);
            config.core_link_delay = Span::from_ns(70);
            let framing =
                Framing { max_payload: 1460, header_bytes: 40, spray_above_bytes: u32::MAX };
            let simulated = Fabric::new(&config).unwrap().base_rtt(framing, frame::wire_bytes(0));
            assert_eq!(Path::longest(&config).base_rtt(), simulated, "{topology:?}");
        }
    }
}
