//! The longest path of a fabric, and its unloaded round trip.

use rackweave_core::{Framing, HostId, Rate, Span, frame};
use rackweave_sim::Fabric;

/// The path from a host to the host farthest from it and back, without load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    base_rtt: Span,
    host_link: Rate,
    links: u64,
}

/// The framing of a full packet, the same for all transports because only its length on the link counts here.
const FULL: Framing =
    Framing { max_payload: frame::MTU, header_bytes: 0, spray_above_bytes: u32::MAX };

impl Path {
    /// Returns the path between the first two hosts, which are in the same rack.
    pub fn shortest(fabric: &Fabric) -> Self {
        let near = HostId(1.min(fabric.hosts() - 1));
        Self {
            base_rtt: fabric.base_rtt_between(HostId(0), near, FULL, frame::wire_bytes(0)),
            host_link: fabric.host_rate(),
            links: fabric.path(HostId(0), near).len() as u64,
        }
    }

    /// Returns the path between the first and the last host.
    #[must_use]
    pub fn longest(fabric: &Fabric) -> Self {
        let last = HostId(fabric.hosts() - 1);
        Self {
            base_rtt: fabric.idle_rtt(),
            host_link: fabric.host_rate(),
            links: fabric.path(HostId(0), last).len() as u64,
        }
    }

    /// Returns the time from the first bit of a full packet to the last bit of the answer, a packet of minimum size.
    #[must_use]
    pub const fn base_rtt(self) -> Span {
        self.base_rtt
    }

    /// Returns the number of bytes that the host's link carries in that time: the bandwidth-delay product.
    pub fn base_rtt_bytes(self) -> u32 {
        u32::try_from(self.host_link.bytes_in(self.base_rtt)).unwrap_or(u32::MAX)
    }

    /// Returns the number of links on the path in one direction.
    pub const fn hops(self) -> u64 {
        self.links
    }
}

#[cfg(test)]
mod tests {
    use crate::fabric::Queues;

    use super::*;
    use crate::START;
    use crate::de::from_table;
    use crate::problem::SweptKeys;
    use crate::tree::parse_document;

    fn fabric(keys: &str) -> Fabric {
        let table = parse_document(keys, 0).ok().unwrap();
        let keys: crate::fabric::Fabric = from_table(&table, START).unwrap();
        Fabric::new(&keys.resolve(&SweptKeys::new(), &Queues::USUAL).unwrap()).unwrap()
    }

    #[test]
    fn the_fabric_of_the_homa_paper_has_its_round_trip() {
        // SIGCOMM'18, section 5.2: the round trip is 7.8 us, so that RTTbytes is about 9.7 KB.
        let path = Path::longest(&fabric(
            "topology = 'leaf-spine'\nleaves = 9\nhosts_per_leaf = 16\nspines = 4\nhost_link = '10 Gbps'\n\
             core_link = '40 Gbps'\nhost_link_delay = '0 ns'\ncore_link_delay = '0 ns'\n\
             host_send_delay = '1 us'\nhost_receive_delay = '500 ns'\nswitch.latency = '250 ns'",
        ));
        assert!((7.6..7.9).contains(&path.base_rtt().as_us_f64()), "{}", path.base_rtt());
        assert!((9_500..9_800).contains(&path.base_rtt_bytes()));
        assert_eq!(path.hops(), 4);
    }
}
