//! How switches copy the packets of a session to its members: by a tree of the fabric, with static membership.
//!
//! The tree consists of shortest paths to one switch, so that it has no loops. A switch sends a packet to all its ports of
//! the tree that have members behind them, except the one that it came from. Real switches learn the members by IGMP snooping; here
//! they are configured, because joining the group is no part of what is measured.

use std::sync::Arc;

use rackweave_core::{Header, HostId, Packet, PayloadStore, Port, PortSet, Time, Verdict};
use rackweave_switch::Fabric;
use rackweave_switch::fabric::Node;
use rackweave_switch::system::{
    Never, Outgoing, Parsed, Protocol, System, SystemError, SystemProgram,
};
use rackweave_wire::frisbee::{self, TO_GROUP};

/// Multicast of imaging's packets in the switches of a fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Multicast {
    /// The hosts that send and receive the group's packets.
    pub members: Arc<[HostId]>,
}

/// Why a group has no tree on a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MulticastError {
    /// A member is not a host of the fabric.
    #[error("host {number} is a member of the group, but the fabric has {hosts} hosts")]
    NoSuchHost {
        /// The member.
        number: u32,
        /// The number of hosts of the fabric.
        hosts: u32,
    },
    /// A copy to each port of a set is made for 64 ports only.
    #[error(
        "a switch with {ports} ports cannot copy packets: it can have {} at most",
        PortSet::CAPACITY
    )]
    TooManyPorts {
        /// The number of ports of that switch.
        ports: usize,
    },
}

impl Multicast {
    /// Returns the ports of each switch that have members behind them in the tree.
    ///
    /// # Errors
    /// See [`MulticastError`].
    pub fn ports(&self, fabric: &Fabric) -> Result<Vec<PortSet>, MulticastError> {
        let switches = fabric.switches();
        let hosts = fabric.hosts();
        let widest = (0..switches).map(|switch| fabric.ports(switch).len()).max();
        if let Some(ports) = widest.filter(|ports| *ports > usize::from(PortSet::CAPACITY)) {
            return Err(MulticastError::TooManyPorts { ports });
        }
        // The last switch is of the highest tier.
        let up = fabric.ports_towards_switch(switches - 1);
        let mut sets = vec![PortSet::EMPTY; switches as usize];
        let mut below = vec![0_usize; switches as usize];
        let port_to = |switch: u32, node: Node| {
            let mut ports = fabric.ports(switch);
            let first = ports.start;
            let link = ports.find(|link| fabric.links()[*link as usize].to == node);
            link.map(|link| PortSet::single(Port((link - first) as u16)))
        };
        let mut members = self.members.to_vec();
        members.sort_unstable();
        members.dedup();
        for member in &members {
            if member.0 >= hosts {
                return Err(MulticastError::NoSuchHost { number: member.0, hosts });
            }
            let mut child = Node::Host(member.0);
            let mut link = member.0;
            while let Node::Switch(switch) = fabric.links()[link as usize].to {
                let port = port_to(switch, child).unwrap_or_default();
                sets[switch as usize] = sets[switch as usize].union(port);
                below[switch as usize] += 1;
                if switch == switches - 1 || up[switch as usize] == u16::MAX {
                    break;
                }
                child = Node::Switch(switch);
                link = fabric.ports(switch).start + u32::from(up[switch as usize]);
            }
        }
        for switch in 0..switches as usize {
            // The rest of the members is above.
            if below[switch] > 0 && below[switch] < members.len() && up[switch] != u16::MAX {
                sets[switch] = sets[switch].union(PortSet::single(Port(up[switch])));
            }
        }
        Ok(sets)
    }
}

/// The program of one switch.
#[derive(Clone, Debug)]
pub struct Program {
    ports: PortSet,
    copied: u64,
}

impl Program {
    /// A program that copies the group's packets to these ports.
    #[must_use]
    pub const fn new(ports: PortSet) -> Self {
        Self { ports, copied: 0 }
    }

    /// Decides about a packet that came in at `port`.
    #[inline]
    pub fn decide(&mut self, port: Port, dst: HostId) -> Verdict {
        if dst != TO_GROUP {
            return Verdict::Route;
        }
        self.copied += 1;
        Verdict::Replicate(self.ports.without(port))
    }
}

impl System for Multicast {
    type View = frisbee::Header;
    type Program = Program;
    type Made = Never;

    fn protocols(&self) -> impl Iterator<Item = Protocol> {
        let group = Some((frisbee::GROUP, TO_GROUP));
        core::iter::once(Protocol {
            kind: frisbee::SESSION_KIND,
            port: frisbee::SESSION_PORT,
            group,
            has_check: true,
        })
    }

    fn resolves(&self, dst: HostId) -> bool {
        dst == TO_GROUP
    }

    fn parse(&self, _kind: u8, bytes: &[u8]) -> Option<Parsed<frisbee::Header>> {
        let decoded = frisbee::decode(bytes).ok()?;
        let (view, payload_at) = (decoded.header, decoded.payload.start);
        Some(Parsed { view, addresses: None, payload_at })
    }

    fn encode(&self, packet: &Outgoing<'_, Never>, _out: &mut Vec<u8>) -> u8 {
        match packet.header {}
    }

    fn programs(&self, fabric: &Fabric) -> Result<Vec<Program>, SystemError> {
        let ports = self.ports(fabric).map_err(SystemError::new)?;
        Ok(ports.into_iter().map(Program::new).collect())
    }
}

impl SystemProgram for Program {
    type View = frisbee::Header;
    type Made = Never;

    #[inline]
    fn handle_packet<H: Header, S: PayloadStore<H>>(
        &mut self,
        _now: Time,
        port: Port,
        _view: frisbee::Header,
        packet: &mut Packet<H>,
        _payloads: &mut S,
    ) -> Verdict {
        self.decide(port, packet.dst)
    }

    fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        core::iter::once(("image packets copied", self.copied))
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::Rate;
    use rackweave_switch::config::{FabricConfig, SwitchConfig, Topology};

    use super::*;

    fn fabric(topology: Topology) -> Fabric {
        let switch = SwitchConfig::default().without_marking();
        let config = FabricConfig::new(topology).without_delays().with_switch(switch);
        Fabric::new(&config).unwrap()
    }

    fn leaf_spine() -> Fabric {
        let (host_link, core_link) = (Rate::from_gbps(1), Rate::from_gbps(1));
        let (leaves, hosts_per_leaf, spines) = (3, 4, 2);
        fabric(Topology::LeafSpine { leaves, hosts_per_leaf, spines, host_link, core_link })
    }

    fn members(hosts: &[u32]) -> Multicast {
        Multicast { members: hosts.iter().copied().map(HostId).collect() }
    }

    /// Follows a packet from a host; returns how many copies each host got.
    fn deliver(fabric: &Fabric, ports: &[PortSet], from: u32) -> Vec<u32> {
        let mut got = vec![0; fabric.hosts() as usize];
        let mut links = vec![from];
        let mut steps = 0;
        while let Some(link) = links.pop() {
            steps += 1;
            assert!(steps < 10_000, "a loop");
            let Node::Switch(switch) = fabric.links()[link as usize].to else {
                let Node::Host(host) = fabric.links()[link as usize].to else { unreachable!() };
                got[host as usize] += 1;
                continue;
            };
            let first = fabric.ports(switch).start;
            let came = fabric.ports(switch).find(|port| {
                fabric.links()[*port as usize].to == fabric.links()[link as usize].from
            });
            let arrival = Port((came.unwrap() - first) as u16);
            let Verdict::Replicate(mut set) =
                Program::new(ports[switch as usize]).decide(arrival, TO_GROUP)
            else {
                panic!("a copy to each port")
            };
            while let Some(port) = set.pop() {
                links.push(first + u32::from(port.0));
            }
        }
        got
    }

    #[test]
    fn each_other_member_gets_one_copy_wherever_it_is() {
        let (host_link, core_link) = (Rate::from_gbps(1), Rate::from_gbps(1));
        let fabrics = [
            fabric(Topology::SingleSwitch { hosts: 9, host_link }),
            fabric(Topology::Dumbbell { left: 4, right: 5, host_link, core_link }),
            leaf_spine(),
            fabric(Topology::fat_tree(4, host_link)),
        ];
        for fabric in fabrics {
            for group in [&[0, 1][..], &[0, 8], &[0, 2, 5, 8], &[0, 1, 2, 3, 4, 5, 6, 7, 8]] {
                let ports = members(group).ports(&fabric).unwrap();
                for from in group {
                    let expected: Vec<u32> = (0..fabric.hosts())
                        .map(|host| u32::from(group.contains(&host) && host != *from))
                        .collect();
                    assert_eq!(deliver(&fabric, &ports, *from), expected, "{group:?} from {from}");
                }
            }
        }
    }

    #[test]
    fn a_group_in_one_rack_stays_there_and_other_packets_are_routed() {
        let ports = members(&[4, 6, 6]).ports(&leaf_spine()).unwrap();
        assert_eq!(ports.iter().filter(|set| !set.is_empty()).count(), 2, "its leaf and the root");
        assert_eq!(ports[1].bits(), 0b101);
        assert_eq!(Program::new(ports[1]).decide(Port(0), HostId(3)), Verdict::Route);
    }

    #[test]
    fn what_no_tree_can_have_is_refused() {
        let error = members(&[0, 12]).ports(&leaf_spine()).unwrap_err();
        assert_eq!(error, MulticastError::NoSuchHost { number: 12, hosts: 12 });
        let wide = fabric(Topology::SingleSwitch { hosts: 65, host_link: Rate::from_gbps(1) });
        let error = members(&[0]).ports(&wide).unwrap_err();
        assert_eq!(error, MulticastError::TooManyPorts { ports: 65 });
    }
}
