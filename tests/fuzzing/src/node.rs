//! Nodes whose packets carry payload, and the program of a switch, as stations of a mesh.

use rackweave_core::{HostId, Node, Packet, PayloadStore as _, Port, SwitchProgram as _, Time};
use rackweave_switch::net::{HasPayload, Slab};
use rackweave_switch::system::{Makeable, Simulated, SystemProgram, Visible};

use crate::mesh::Station;

/// A packet with its payload.
pub(crate) type Full<H> = (Packet<H>, Vec<u8>);

/// A node that takes and gives payload as well as its packets.
pub(crate) trait Laden: Node {
    /// The address that all hosts receive.
    const GROUP: Option<HostId> = None;

    fn receive(&mut self, now: Time, packet: &Packet<Self::Header>, payload: &[u8]);
    fn payload(&self) -> &[u8];

    /// What the application does after any call.
    fn work(&mut self, _now: Time) {}
}

/// A node at a host, or a program at a switch that only its own packets reach.
pub(crate) enum Place<N: Laden, P = ()> {
    Host { id: HostId, node: N },
    Switch(Box<Switch<N, P>>),
}

pub(crate) struct Switch<N: Laden, P> {
    pub(crate) id: HostId,
    pub(crate) program: Simulated<P, N::Header>,
    pub(crate) payloads: Slab,
}

impl<N: Laden, P> Place<N, P> {
    pub(crate) const fn host(id: u32, node: N) -> Self {
        Self::Host { id: HostId(id), node }
    }

    pub(crate) fn switch(id: HostId, program: P) -> Self {
        let (program, payloads) = (Simulated::new(program), Slab::default());
        Self::Switch(Box::new(Switch { id, program, payloads }))
    }

    pub(crate) const fn node(&self) -> Option<&N> {
        match self {
            Self::Host { node, .. } => Some(node),
            Self::Switch(_) => None,
        }
    }

    pub(crate) const fn node_mut(&mut self) -> Option<&mut N> {
        match self {
            Self::Host { node, .. } => Some(node),
            Self::Switch(_) => None,
        }
    }
}

impl<N, P> Station for Place<N, P>
where
    N: Laden,
    N::Header: HasPayload + Visible<P::View> + Makeable<P::Made>,
    P: SystemProgram,
{
    type Packet = Full<N::Header>;

    fn receive(&mut self, now: Time, (packet, payload): &Full<N::Header>) {
        match self {
            Self::Host { node, .. } => node.receive(now, packet, payload),
            Self::Switch(switch) => {
                let Switch { program, payloads, .. } = &mut **switch;
                let mut packet = *packet;
                if !payload.is_empty() {
                    let Some(id) = payloads.insert(payload) else { return };
                    packet.header = packet.header.with_payload(id);
                }
                let _verdict = program.handle_packet(now, Port(0), &mut packet, payloads);
                payloads.release(&packet);
            }
        }
    }

    fn expire(&mut self, now: Time) {
        match self {
            Self::Host { node, .. } => node.handle_timeout(now),
            Self::Switch(switch) => switch.program.handle_timeout(now),
        }
    }

    fn poll(&mut self, now: Time) -> Option<Full<N::Header>> {
        match self {
            Self::Host { node, .. } => {
                let packet = node.poll_transmit(now, 0)?;
                Some((packet, node.payload().to_vec()))
            }
            Self::Switch(switch) => {
                let Switch { program, payloads, .. } = &mut **switch;
                let (_, packet) = program.poll_transmit(now, payloads)?;
                let payload = payloads.read(&packet).to_vec();
                payloads.release(&packet);
                Some((packet, payload))
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self {
            Self::Host { node, .. } => node.poll_timeout(),
            Self::Switch(switch) => switch.program.poll_timeout(),
        }
    }

    fn work(&mut self, now: Time) {
        if let Self::Host { node, .. } = self {
            node.work(now);
        }
    }

    fn is_for(&self, (packet, _): &Full<N::Header>) -> bool {
        match self {
            Self::Host { id, .. } => {
                packet.dst == *id || packet.src != *id && N::GROUP == Some(packet.dst)
            }
            Self::Switch(switch) => packet.dst == switch.id,
        }
    }
}
