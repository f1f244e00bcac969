//! The switch program of Orca.
//!
//! A ToR replicates by rack labels, and forwards data with pilot labels up, or down to the active agent of its rack.
//! Its whole state is one register with the port of that agent, whatever the number of sessions. The paper divides
//! "state and tasks of the data plane" in this way (NSDI '22, abstract); the register is the authors' `active_agent_id`
//! (`docs/protocols/orca.md#orca-switch`). The switches above forward by the pilot label and are stateless.

use std::sync::Arc;

use rackweave_core::{
    DropReason, Header, HostId, Packet, PayloadStore, Port, PortSet, Time, Verdict,
};
use rackweave_switch::config::Topology;
use rackweave_switch::fabric::Fabric;
use rackweave_switch::system::SystemProgram;
use rackweave_wire::orca::{Labelled, TO_GROUP};

use super::label::{LabelError, Layout};
use super::view::{Made, View};

/// The value for "no agent" in [`Register`] and in `SetActive`.
pub const NO_AGENT: u8 = 255;

/// The whole state of a ToR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// The port of the active agent, or [`NO_AGENT`].
    pub agent: u8,
    /// The epoch of the `SetActive` that set it, 0 before the first one.
    pub epoch: u32,
}

impl Default for Register {
    fn default() -> Self {
        Self { agent: NO_AGENT, epoch: 0 }
    }
}

/// The role of a switch in the fabric. Down ports have lower numbers than up ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Tor {
        rack: u16,
        active: Register,
    },
    /// An aggregate switch of this pod, or a spine of a leaf-spine fabric, which has no uplinks.
    Aggregate {
        pod: u32,
    },
    Core,
}

/// The program of one switch.
#[derive(Clone, Debug)]
pub struct Program {
    layout: Arc<Layout>,
    role: Role,
    downs: u16,
    ups: u16,
    /// The controller's host; if set, control packets from other hosts are dropped.
    controller: Option<HostId>,
    /// The number of packets for the active agent of a rack that had none.
    no_agent: u64,
}

impl Program {
    /// Returns the program of a switch of this fabric, from which the layout was made.
    ///
    /// # Errors
    /// [`LabelError`] if there is no such switch, or if it has more ports than a packet can be replicated to.
    pub fn new(layout: Arc<Layout>, fabric: &Fabric, switch: u32) -> Result<Self, LabelError> {
        if switch >= fabric.switches() {
            return Err(LabelError::NoSwitch(switch));
        }
        let tor = Role::Tor { rack: switch as u16, active: Register::default() };
        let (role, downs, ups) = match fabric.config().topology {
            Topology::SingleSwitch { hosts, .. } => (tor, hosts, 0),
            Topology::Dumbbell { .. } => (tor, layout.hosts_of(switch as u16), 1),
            Topology::LeafSpine { leaves, hosts_per_leaf, spines, .. } => {
                if switch < leaves {
                    (tor, hosts_per_leaf, spines)
                } else {
                    (Role::Aggregate { pod: 0 }, leaves, 0)
                }
            }
            Topology::FatTree { k, .. } => {
                let (half, edges) = (k / 2, k * (k / 2));
                match switch {
                    _ if switch < edges => (tor, half, half),
                    _ if switch < 2 * edges => {
                        (Role::Aggregate { pod: (switch - edges) / half }, half, half)
                    }
                    _ => (Role::Core, k, 0),
                }
            }
            Topology::Pod(_) => return Err(LabelError::Pod),
        };
        if downs > 64 {
            return Err(LabelError::TooManyPorts { what: "a switch", ports: downs });
        }
        let (downs, ups) = (downs as u16, ups as u16);
        Ok(Self { layout, role, downs, ups, controller: None, no_agent: 0 })
    }

    /// Accepts control packets of the controller only from this host.
    #[must_use]
    pub const fn with_controller(mut self, controller: HostId) -> Self {
        self.controller = Some(controller);
        self
    }

    /// Returns the state of a ToR; `None` for other switches, which have none.
    #[must_use]
    pub const fn register(&self) -> Option<Register> {
        match self.role {
            Role::Tor { active, .. } => Some(active),
            _ => None,
        }
    }

    /// Returns the size in bytes of the state that packets can change and that influences other packets.
    #[must_use]
    pub const fn state_bytes(&self) -> usize {
        match self.role {
            Role::Tor { .. } => size_of::<Register>(),
            _ => 0,
        }
    }

    const fn all_down(&self) -> u64 {
        if self.downs >= 64 { u64::MAX } else { (1 << self.downs) - 1 }
    }

    const fn is_from_below(&self, port: Port) -> bool {
        port.0 < self.downs
    }

    /// Returns the verdict on a packet that arrived at `port` with these addresses and this view of its header.
    #[must_use]
    pub fn decide(&mut self, port: Port, src: HostId, dst: HostId, view: View) -> Verdict {
        match view {
            View::Data { labelled: Labelled::Host, .. } if dst == TO_GROUP => self.flood(port),
            View::Control | View::Data { labelled: Labelled::Host, .. } => Verdict::Route,
            // Relays send labelled data to individual hosts.
            View::Data { .. } if dst != TO_GROUP => Verdict::Route,
            _ => match self.role {
                Role::Tor { rack, active } => self.decide_at_tor(rack, active, port, src, view),
                _ => self.decide_above(port, view),
            },
        }
    }

    fn decide_at_tor(
        &mut self,
        mine: u16,
        active: Register,
        port: Port,
        src: HostId,
        view: View,
    ) -> Verdict {
        let below = self.is_from_below(port);
        match view {
            View::Data { labelled: Labelled::Rack, label } if below => {
                replicate(self.layout.ports(label) & self.all_down() & !bit(port))
            }
            View::Data { labelled: Labelled::Pilot, label } if below && self.ups > 0 => {
                Verdict::Forward(self.layout.uplink(label, self.downs))
            }
            View::Data { labelled: Labelled::Pilot, .. } => self.forward_to_agent(active),
            // Rack labels are set within the rack, so they never come from above.
            View::Data { .. } => DROP,
            View::ToAgent if below => self.forward_to_agent(active),
            View::ToAgent => DROP,
            View::SetActive { rack, agent, epoch } if rack == mine => {
                let known = agent == NO_AGENT || u16::from(agent) < self.downs;
                let is_newer_epoch = active.epoch == 0 || is_newer(epoch, active.epoch);
                if !self.is_from_controller(port, src) || !known {
                    return DROP;
                }
                if is_newer_epoch {
                    self.role = Role::Tor { rack: mine, active: Register { agent, epoch } };
                }
                Verdict::Consume
            }
            View::Sync { rack } if rack == mine => {
                if self.is_from_controller(port, src) {
                    replicate(self.all_down())
                } else {
                    DROP
                }
            }
            // A ping must arrive at the port that it names.
            View::Ping { place }
                if below && (place.rack, u16::from(place.port)) != (mine, port.0) =>
            {
                DROP
            }
            _ => Verdict::Route,
        }
    }

    fn decide_above(&self, port: Port, view: View) -> Verdict {
        let View::Data { labelled, label } = view else {
            return if view == View::ToAgent { DROP } else { Verdict::Route };
        };
        if labelled != Labelled::Pilot {
            return DROP;
        }
        let layout = &self.layout;
        let pods = layout.core_down().get(label);
        match self.role {
            Role::Core => replicate(pods & self.all_down()),
            // With other pods in the label, the packet goes up, and the core sends a copy down into this pod too.
            _ if self.is_from_below(port) && pods != 0 && self.ups > 0 => {
                let uplink = layout.up_spine().get(label) % u64::from(self.ups);
                Verdict::Forward(Port(self.downs + uplink as u16))
            }
            Role::Aggregate { pod } => replicate(layout.leaves_below(label, pod) & self.all_down()),
            Role::Tor { .. } => DROP,
        }
    }

    fn forward_to_agent(&mut self, active: Register) -> Verdict {
        if active.agent == NO_AGENT {
            self.no_agent += 1;
            return DROP;
        }
        Verdict::Forward(Port(u16::from(active.agent)))
    }

    /// Handles IP multicast: sends a copy to all hosts, through the first uplink.
    fn flood(&self, port: Port) -> Verdict {
        let down = self.all_down() & !bit(port);
        let up = if self.ups > 0 && self.is_from_below(port) { bit(Port(self.downs)) } else { 0 };
        replicate(down | up)
    }

    /// Returns whether a packet comes from the controller, as far as its source address and its port can show.
    fn is_from_controller(&self, port: Port, src: HostId) -> bool {
        let Some(controller) = self.controller else { return true };
        let Role::Tor { rack, .. } = self.role else { return false };
        let place = self.layout.place(controller);
        let right_port = if place.rack == rack {
            port.0 == u16::from(place.port)
        } else {
            !self.is_from_below(port)
        };
        src == controller && right_port
    }
}

impl SystemProgram for Program {
    type View = View;
    type Made = Made;

    #[inline]
    fn handle_packet<H: Header, S: PayloadStore<H>>(
        &mut self,
        _now: Time,
        port: Port,
        view: View,
        packet: &mut Packet<H>,
        _payloads: &mut S,
    ) -> Verdict {
        self.decide(port, packet.src, packet.dst, view)
    }

    fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        core::iter::once(("no_agent", self.no_agent))
    }
}

const DROP: Verdict = Verdict::Drop(DropReason::Program);

const fn bit(port: Port) -> u64 {
    if port.0 < 64 { 1 << port.0 } else { 0 }
}

const fn replicate(ports: u64) -> Verdict {
    if ports == 0 { DROP } else { Verdict::Replicate(PortSet::from_bits(ports)) }
}

/// Returns whether serial number `a` is newer than `b`, where numbers wrap around (RFC 1982, section 3.2).
pub(crate) const fn is_newer(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

// The documentation and `scale` state this size for a ToR's state.
const _: () = assert!(size_of::<Register>() == 8);

#[cfg(test)]
mod tests {
    use rackweave_core::Rng;
    use rackweave_wire::orca::{Data, Header, Label, Place, Session};

    use super::super::label::tests::{dumbbell, fabric, fat_tree, leaf_spine, single};
    use super::*;

    fn programs(topology: Topology) -> (Arc<Layout>, Fabric, Vec<Program>) {
        let fabric = fabric(topology);
        let layout = Arc::new(Layout::new(&fabric).expect("labels"));
        let programs = (0..fabric.switches())
            .map(|switch| Program::new(Arc::clone(&layout), &fabric, switch).expect("a program"))
            .collect();
        (layout, fabric, programs)
    }

    const CONTROLLER: HostId = HostId(0);

    fn set_active(program: &mut Program, port: u16, rack: u16, agent: u8, epoch: u32) -> Verdict {
        let view = View::SetActive { rack, agent, epoch };
        program.decide(Port(port), CONTROLLER, HostId(1), view)
    }

    fn pilot(label: Label) -> View {
        View::Data { labelled: Labelled::Pilot, label }
    }

    #[test]
    fn a_rack_label_is_replicated_but_not_back() {
        let (_, _, mut programs) = programs(single(4));
        let view = View::Data { labelled: Labelled::Rack, label: Label(0b1_1011) };
        let verdict = programs[0].decide(Port(1), HostId(1), TO_GROUP, view);
        assert_eq!(verdict, Verdict::Replicate(PortSet::from_bits(0b1001)));
        let alone = View::Data { labelled: Labelled::Rack, label: Label(0b10) };
        assert_eq!(programs[0].decide(Port(1), HostId(1), TO_GROUP, alone), DROP);
    }

    #[test]
    fn the_newest_epoch_counts() {
        let (_, _, mut programs) = programs(leaf_spine(2, 4, 2));
        let tor = &mut programs[1];
        assert_eq!(tor.decide(Port(5), HostId(0), TO_GROUP, pilot(Label(2))), DROP);
        assert_eq!(tor.counters().collect::<Vec<_>>(), [("no_agent", 1)]);
        for (agent, epoch, now) in
            [(2, 7, 2), (3, 6, 2), (1, 7, 2), (1, 8, 1), (200, 9, 1), (255, 10, 255)]
        {
            set_active(tor, 5, 1, agent, epoch);
            assert_eq!(tor.register().expect("a ToR").agent, now, "after {agent} at {epoch}");
        }
        assert_eq!(set_active(tor, 5, 0, 1, 99), Verdict::Route, "another rack's");
        set_active(tor, 5, 1, 3, u32::MAX / 2);
        set_active(tor, 5, 1, 2, 5_u32.wrapping_add(u32::MAX / 2));
        set_active(tor, 5, 1, 3, u32::MAX / 2);
        assert_eq!(tor.register().expect("a ToR").agent, 2, "numbers count around");
        let up = tor.decide(Port(5), HostId(0), TO_GROUP, pilot(Label(2)));
        assert_eq!(up, Verdict::Forward(Port(2)), "from above, to the agent");
        let down = tor.decide(Port(1), HostId(5), TO_GROUP, pilot(Label(1 << 2 | 1)));
        assert_eq!(down, Verdict::Forward(Port(5)), "from below, up by the second uplink");
        let asked = tor.decide(Port(0), HostId(4), HostId(u32::MAX), View::ToAgent);
        assert_eq!(asked, Verdict::Forward(Port(2)));
    }

    #[test]
    fn only_the_controller_is_trusted() {
        let (_, _, programs) = programs(leaf_spine(2, 4, 2));
        let mut tors: Vec<_> = programs
            .into_iter()
            .take(2)
            .map(|program| program.with_controller(CONTROLLER))
            .collect();
        // The controller's packets are accepted in its own rack only from its port, and in others only from above.
        for (tor, right, wrong) in [(0, 0, [1, 4]), (1, 4, [0, 3])] {
            for port in wrong {
                assert_eq!(set_active(&mut tors[tor], port, tor as u16, 1, 1), DROP);
                let sync = View::Sync { rack: tor as u16 };
                assert_eq!(tors[tor].decide(Port(port), CONTROLLER, HostId(1), sync), DROP);
            }
            let view = View::SetActive { rack: tor as u16, agent: 1, epoch: 1 };
            assert_eq!(tors[tor].decide(Port(right), HostId(3), HostId(1), view), DROP);
            assert_eq!(tors[tor].register(), Some(Register::default()));
            assert_eq!(set_active(&mut tors[tor], right, tor as u16, 1, 1), Verdict::Consume);
            let sync = View::Sync { rack: tor as u16 };
            let copied = tors[tor].decide(Port(right), CONTROLLER, HostId(1), sync);
            assert_eq!(copied, Verdict::Replicate(PortSet::from_bits(0b1111)));
        }
    }

    #[test]
    fn agents_ping_from_their_own_port() {
        let (_, _, mut programs) = programs(leaf_spine(2, 4, 2));
        let ping = |rack, port| View::Ping { place: Place { rack, port } };
        let tor = &mut programs[1];
        assert_eq!(tor.decide(Port(2), HostId(6), HostId(0), ping(1, 2)), Verdict::Route);
        assert_eq!(tor.decide(Port(2), HostId(6), HostId(0), ping(1, 3)), DROP);
        assert_eq!(tor.decide(Port(2), HostId(6), HostId(0), ping(0, 2)), DROP);
        assert_eq!(tor.decide(Port(5), HostId(6), HostId(0), ping(0, 2)), Verdict::Route);
    }

    /// Follows a packet through the fabric and returns the hosts that get it. The agents are at port 0.
    fn spread(
        fabric: &Fabric,
        programs: &mut [Program],
        from: HostId,
        dst: HostId,
        view: View,
    ) -> Vec<u32> {
        use rackweave_switch::fabric::Node;
        let links = fabric.links();
        let mut at = vec![from.0];
        let mut hosts = Vec::new();
        while let Some(link) = at.pop() {
            let Node::Switch(switch) = links[link as usize].to else {
                let Node::Host(host) = links[link as usize].to else { unreachable!() };
                hosts.push(host);
                continue;
            };
            assert!(hosts.len() + at.len() < 10_000, "circulates");
            let back = fabric
                .ports(switch)
                .position(|port| links[port as usize].to == links[link as usize].from);
            let port = Port(back.expect("cables have two directions") as u16);
            let ports = match programs[switch as usize].decide(port, from, dst, view) {
                Verdict::Forward(Port(port)) => vec![u32::from(port)],
                Verdict::Replicate(mut set) => {
                    std::iter::from_fn(|| set.pop().map(|port| u32::from(port.0))).collect()
                }
                Verdict::Drop(_) => vec![],
                other => panic!("{other:?}"),
            };
            at.extend(ports.into_iter().map(|port| fabric.ports(switch).start + port));
        }
        hosts.sort_unstable();
        hosts
    }

    #[test]
    fn pilot_labels_lead_to_the_agents_of_their_racks() {
        let mut rng = Rng::stream(1, 0, 0, "racks");
        for topology in [leaf_spine(6, 4, 3), fat_tree(8), fat_tree(4)] {
            let (plain, fabric, mut programs) = programs(topology.clone());
            let filtered = Arc::new(Layout::clone(&plain).with_filter(16).expect("room"));
            for program in &mut programs {
                if let Role::Tor { rack, .. } = program.role {
                    let port = if rack == 0 { 0 } else { program.downs };
                    set_active(program, port, rack, 0, 1);
                }
            }
            for salt in 0..200 {
                let layout = if salt % 2 == 0 { &plain } else { &filtered };
                programs.iter_mut().for_each(|program| program.layout = Arc::clone(layout));
                let from = HostId(rng.below(u64::from(fabric.hosts())) as u32);
                let racks: Vec<u16> = (0..layout.racks()).filter(|_| rng.chance(0.2)).collect();
                let label = layout.pilot(from, racks.iter().copied(), salt);
                let got = spread(&fabric, &mut programs, from, TO_GROUP, pilot(label));
                let agents: Vec<u32> = layout
                    .racks_of(from, label)
                    .map(|rack| layout.host(Place { rack, port: 0 }).expect("a host").0)
                    .collect();
                assert_eq!(got, agents, "each once, {topology:?}");
                assert!(racks.iter().all(|rack| layout.racks_of(from, label).any(|r| r == *rack)));
            }
        }
    }

    #[test]
    fn plain_multicast_reaches_everybody_else_once() {
        let host = View::Data { labelled: Labelled::Host, label: Label(0) };
        for topology in [single(5), dumbbell(2, 3), leaf_spine(3, 4, 2), fat_tree(4)] {
            let (_, fabric, mut programs) = programs(topology.clone());
            let got = spread(&fabric, &mut programs, HostId(1), TO_GROUP, host);
            let all: Vec<u32> = (0..fabric.hosts()).filter(|host| *host != 1).collect();
            assert_eq!(got, all, "{topology:?}");
        }
    }

    #[test]
    fn a_million_sessions_leave_no_trace_in_switches() {
        let (_, _, mut programs) = programs(leaf_spine(2, 48, 4));
        let mut rng = Rng::stream(2, 0, 0, "sessions");
        set_active(&mut programs[1], 50, 1, 3, 1);
        let before: Vec<_> =
            programs.iter().map(|program| (program.register(), program.state_bytes())).collect();
        assert_eq!(before[1], (Some(Register { agent: 3, epoch: 1 }), 8));
        assert_eq!(before[2], (None, 0));
        for session in 0..1_000_000 {
            let header = Header::Data(Data {
                labelled: if session % 2 == 0 { Labelled::Pilot } else { Labelled::Rack },
                label: Label(u128::from(rng.next_u64())),
                session: Session(session),
                offset: 0,
                len: 1,
                repair: false,
                end: false,
                parity: None,
            });
            let mut packet = Packet::new(HostId(50), TO_GROUP, 100, header);
            let (port, view) = (Port(session as u16 % 52), View::of(&header));
            let program = &mut programs[session as usize % 6];
            let _ = program.handle_packet(Time::ZERO, port, view, &mut packet, &mut ());
        }
        let after: Vec<_> =
            programs.iter().map(|program| (program.register(), program.state_bytes())).collect();
        assert_eq!(before, after);
    }
}
